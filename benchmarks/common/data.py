"""Benchmark data for private AUC maximisation, with data-independent preprocessing.

Every feature is a fixed function of its own record and of public constants. Nothing (no
minimum, maximum, mean or standard deviation) is estimated from the loaded rows, so
preprocessing costs no privacy budget and replacing one row changes one row of the result.
The constants are listed in ``Dataset.public``.
"""

import bz2
import dataclasses
import functools
import gzip
import hashlib
import http.client
import io
import os
import pathlib
import urllib.request

import numpy as np
import pandas as pd
from sklearn.datasets import load_svmlight_file
from sklearn.feature_extraction import FeatureHasher

from benchmarks import features as maps

NAMES = ("randhie", "ijcnn1", "mnist", "fashion_mnist", "adult")

_TICK = "https://raw.githubusercontent.com/X-DataInitiative/tick-datasets/master/binary/"
# Public address and file ending of each data folder. The Fashion-MNIST server offers no https;
# what protects its content is the checksum.
_SOURCES = {
    "ijcnn1": (_TICK + "ijcnn1/", ".bz2"),
    "adult": (_TICK + "adult/", ".bz2"),
    "mnist": ("https://ossci-datasets.s3.amazonaws.com/mnist/", "-ubyte.gz"),
    "fashion_mnist": ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", "-ubyte.gz"),
}
# SHA-256 of <folder>/<name><ending>.
_SHA256 = {
    "ijcnn1": {
        "ijcnn1.trn": "b38a4198ce142d43e96fb86d17b87211feec1f909ac344fa057455c69de29de3",
        "ijcnn1.tst": "acd1db430684fdd3f0c768ecc49aa8e749d0004fc117611220c2aa576a7b6a24",
    },
    "adult": {
        "adult123.trn": "73ce74d43bbfc988b08e6ecf738cf5484f19dafa143c31f702f3a8b779d277e5",
        "adult123.tst": "bdb2ec9642e77947a67269471506b18bc4dcf03413f44814dc24833432ba818d",
    },
    "mnist": {
        "train-images-idx3": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    "fashion_mnist": {
        "train-images-idx3": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
}

# An adult record has 14 attributes and switches on one bin for each, of 123 bins in all.
_ADULT_CENTRE = 14 / 123
_CSV_BUCKETS = 256
_CSV_MIN_ROWS = 100
_HELD_OUT = 10_000  # rows of a training file that validation tests on

# randhie: (threshold, rough share of rows that reach it). The numbers in this table and in
# _randhie_features are fixed and round: they were chosen once, by hand, from the documented
# meaning of the columns and a look at the published table.
_RATE_STEPS = ((1, 0.5), (40, 0.2), (80, 0.2), (98, 0.1))  # Rates: 0, 25, 50, 95 and 100 %.
_DISEASE_STEPS = (
    *((2, 0.9), (5, 0.8), (8, 0.7), (10, 0.6), (12, 0.4)),
    *((14, 0.2), (16, 0.2), (20, 0.1), (30, 0.0)),
)
# These two columns are logarithms, and 0 where nothing is paid: the first step is "any at all".
_INCENTIVE_STEPS = ((0.1, 0.8), (5.5, 0.6), (6, 0.5), (6.5, 0.3))
_EXPENDITURE_STEPS = ((0.1, 0.6), (6, 0.5), (6.5, 0.3), (7, 0.2), (8, 0.1))

# Prior, unit and public knowledge of each data set, as in Dataset.
_ABOUT = {
    "randhie": (
        0.7,
        "one person-year (one row), not one person: a person has up to 5 rows",
        (
            "The prior 0.7 is rounded from the published table (three in ten rows: no visit).",
            "Columns are centred, scaled and cut into steps at fixed round numbers, chosen by "
            + "hand from their documented meaning and the published table.",
        ),
    ),
    "ijcnn1": (
        0.1,
        "one row (time step), not one measured value: neighbouring rows share 9 lagged values",
        (
            "The prior 0.1 is the published share of positives (about 10 %).",
            "The publishers of the file had scaled its values.",
        ),
    ),
    "mnist": (
        0.5,
        "one image, not one writer: a writer contributed many",
        (),
    ),
    "fashion_mnist": (
        0.5,
        "one image",
        (),
    ),
    "adult": (
        0.25,
        "one census record (one person)",
        (
            "The prior 0.25 is rounded from the published share of positives (about 24 %).",
            "The 123 binary columns are centred at 14/123: a record fills about 14 of them.",
            "The publishers of the binary form cut numeric attributes at quintiles.",
        ),
    ),
}


# The most rows of one person, as documented: randhie's people were enrolled for up to 5 years.
_PEOPLE = {"randhie": 5}


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """A binary classification data set, split into a training and a test part.

    Attributes:
        name: Name of the data set.
        x_train: Features, float32 of shape [n, d].
        y_train: Labels, float32 of shape [n]; 1 is positive and 0 negative.
        x_test: Features of the test part.
        y_test: Labels of the test part.
        prior: Public guess of P(y = 1). Never computed from the loaded data.
        unit: What one record is, hence what the privacy guarantee protects.
        public: The public knowledge that preprocessing uses, one sentence each.
        people: The most records that one person has, where the publishers say so; else 1.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    prior: float
    unit: str
    public: tuple[str, ...]
    people: int = 1


def load(
    name: str,
    *,
    data_dir: str | os.PathLike | None = None,
    seed: int = 0,
    split: str = "random",
    features: str | None = None,
) -> Dataset:
    """Load one of the data sets in ``NAMES``.

    Files are looked up in ``data_dir``, else in the folder that the environment variable
    JAXMINIMAX_DATA names, as ``<data set>/<file>``. With neither they are downloaded once into
    ``~/.cache/jaxminimax``. Their SHA-256 is checked every time. randhie needs no file: it
    comes with statsmodels.

    Args:
        name: One of ``NAMES``.
        data_dir: Folder with the data files.
        seed: Fixes the order of the training rows, and the held-out rows where there are any.
        split: "random" tests on a random fifth of the rows (randhie, ijcnn1). "file" tests on
            the published test file; ijcnn1 then still trains on the four fifths of its training
            file that "random" trains on, and randhie has no such file. mnist, fashion_mnist and
            adult are tested on their published test file with either value. "validation" tests
            on rows of the training file that the other two train on, for choosing settings: the
            last 10,000 images (or adults), or a random fifth of the training rows of ijcnn1.
        features: A name in `features.FEATURES[name]`; None for the default. Only ijcnn1 and the
            images have a choice.

    Returns:
        The data set.

    Raises:
        ValueError: If an argument is not one of the above, a file is missing from the given
            folder, or the checksum of a file is wrong.
        OSError: If a download fails.
    """
    if name not in NAMES:
        raise ValueError(f"unknown data set {name!r}; choose one of {', '.join(NAMES)}")
    if split not in ("random", "file", "validation"):
        raise ValueError(f"split must be 'random', 'file' or 'validation', got {split!r}")
    known = maps.FEATURES.get(name, {})
    if features is not None and features not in known:
        raise ValueError(f"{name} has no features {features!r}; choose one of "
                         f"{', '.join(known) or 'none'}")
    chosen = known.get(features or maps.DEFAULT.get(name, ""))
    if name == "randhie":
        if split == "file":
            raise ValueError("randhie has no published test file; use split='random'")
        parts = _hold_out(*_load_randhie(), seed)
    elif name == "ijcnn1":
        parts = _hold_out(*_load_ijcnn1("trn", data_dir), seed)
        if split == "validation":
            parts = _hold_out(*parts[:2], seed + 100)
        if split == "file":
            parts = (*parts[:2], *_load_ijcnn1("tst", data_dir))
    elif split == "validation":
        load_part = _load_adult if name == "adult" else functools.partial(_load_images, name)
        x, y = load_part("trn" if name == "adult" else "train", data_dir)
        parts = (*_shuffle(x[:-_HELD_OUT], y[:-_HELD_OUT], seed), x[-_HELD_OUT:], y[-_HELD_OUT:])
    elif name == "adult":
        parts = (*_shuffle(*_load_adult("trn", data_dir), seed), *_load_adult("tst", data_dir))
    else:
        train = _shuffle(*_load_images(name, "train", data_dir), seed)
        parts = (*train, *_load_images(name, "t10k", data_dir))
    prior, unit, public = _ABOUT[name]
    if chosen is not None:
        x, y, x_test, y_test = parts
        if features == "published scaling":
            low, high = x.min(0), x.max(0)
            x, x_test = ((a - low) / np.where(high > low, high - low, 1) for a in (x, x_test))
        parts = (chosen.of(x), y, chosen.of(x_test), y_test)
        public = (*public, *chosen.public)
    return Dataset(name, *parts, prior, unit, public, _PEOPLE.get(name, 1))


def images(
    name: str, *, size: int = 7, data_dir: str | os.PathLike | None = None
) -> np.ndarray:
    """Load the training images of mnist or fashion_mnist as small grey pictures.

    Pixels are divided by 255 and averaged over square blocks, and nothing else: no centring, no
    normalising, no labels. The order is that of the file.

    Args:
        name: "mnist" or "fashion_mnist".
        size: Pixels along an edge, a divisor of 28.
        data_dir: Folder with the data files, see ``load``.

    Returns:
        Pixels in [0, 1], float32 of shape [60000, size * size].

    Raises:
        ValueError: If an argument is not one of the above, or as ``load``.
        OSError: If a download fails.
    """
    if name not in maps.PIXELS:
        raise ValueError(f"unknown images {name!r}; choose one of {', '.join(maps.PIXELS)}")
    if size < 1 or 28 % size:
        raise ValueError(f"size must divide 28, got {size}")
    raw = _read_idx(_read_verified(name, "train-images-idx3", data_dir))
    block = 28 // size
    blocks = raw.reshape(len(raw), size, block, size, block)
    return (blocks.mean(axis=(2, 4), dtype=np.float32) / 255).reshape(len(raw), -1)


def labelled_images(
    name: str, part: str = "train", data_dir: str | os.PathLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The images of mnist or fashion_mnist as they are, and their classes.

    Args:
        name: "mnist" or "fashion_mnist".
        part: "train" or "t10k", the test images.
        data_dir: Folder with the data files, see ``load``.

    Returns:
        Pixels, uint8 of shape [n, 784], and classes, int32 of shape [n].

    Raises:
        ValueError: If an argument is not one of the above, or as ``load``.
        OSError: If a download fails.
    """
    if name not in maps.PIXELS:
        raise ValueError(f"unknown images {name!r}; choose one of {', '.join(maps.PIXELS)}")
    pixels = _read_idx(_read_verified(name, f"{part}-images-idx3", data_dir))
    classes = _read_idx(_read_verified(name, f"{part}-labels-idx1", data_dir))
    return pixels.reshape(len(pixels), -1), classes.astype(np.int32)


def from_csv(
    path: str | os.PathLike,
    label: str,
    positive: object,
    *,
    prior: float = 0.5,
    seed: int = 0,
) -> Dataset:
    """Load a CSV file with a header line; a random fifth of its rows is the test part.

    A numeric column becomes the arcsinh of its value, and 0 where it is missing. All text
    columns together become 256 hashed one-hot features. A constant 1 is appended and each
    record is divided by its own L2 norm. Remove columns that identify a record beforehand.

    Args:
        path: The file.
        label: Name of the label column.
        positive: The value of the label column that counts as positive, compared as text.
            Every other value is negative.
        prior: Public guess of P(y = 1). Do not compute it from the file.
        seed: Fixes the order of the rows and which are held out.

    Returns:
        The data set.

    Raises:
        ValueError: If the file or the label column is missing, labels are missing, a class is
            missing from the training or the test part, a number is infinite, or there are fewer
            than 100 rows or no features. These checks read the data before any training.
    """
    path = pathlib.Path(path)
    if not 0 < prior < 1:
        raise ValueError(f"prior must be between 0 and 1, got {prior}")
    if not path.is_file():
        raise ValueError(f"no such file: {path}")
    columns = list(pd.read_csv(path, nrows=0, index_col=False).columns)
    if label not in columns:
        raise ValueError(f"no column {label!r} in {path}; its columns are {', '.join(columns)}")
    if len(columns) == 1:
        raise ValueError(f"{path} has no column besides the label")
    frame = pd.read_csv(path, index_col=False, low_memory=False).drop(columns=label)
    if len(frame) < _CSV_MIN_ROWS:
        raise ValueError(f"{path} has {len(frame)} rows; at least {_CSV_MIN_ROWS} are needed")
    # Labels are read as written, also those such as "NA" that pandas takes for missing values.
    written = pd.read_csv(path, index_col=False, usecols=[label], dtype=str, na_filter=False)
    labels = written[label].str.strip()
    if (labels == "").any():
        raise ValueError(f"column {label!r} of {path} has rows without a label; remove them")
    y = (labels == str(positive).strip()).to_numpy(np.float32)
    if not y.any():
        found = ", ".join(map(repr, labels.unique()[:5]))
        raise ValueError(f"no row has {label} == {str(positive)!r}; values found: {found}")
    for column in frame.select_dtypes("number"):
        if np.isinf(frame[column]).any():
            raise ValueError(f"column {column!r} of {path} holds infinite numbers")
    parts = _hold_out(_csv_features(frame), y, seed)
    for part, values in (("training", parts[1]), ("test", parts[3])):
        if values.min() == values.max():
            raise ValueError(f"the {part} part of {path} has one class only; more rows are needed")
    unit = "one row of the file, not one person, should a person have several rows"
    public = (
        f"The prior {prior} was supplied by the user.",
        "The column names, and which columns are numeric, are taken as public.",
        "Numbers are mapped by arcsinh (missing: 0) and text is hashed to 256 features.",
        "A constant 1 is appended and each record is divided by its own L2 norm.",
    )
    return Dataset(path.stem, *parts, prior, unit, public)


def _shuffle(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Permute rows, so that one disjoint pass over them sees mixed classes."""
    order = np.random.default_rng(seed).permutation(len(y))
    return x[order], y[order]


def _hold_out(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, ...]:
    """Permute rows and cut them into four fifths for training and one fifth for testing."""
    x, y = _shuffle(x, y, seed)
    cut = len(y) * 4 // 5
    return x[:cut], y[:cut], x[cut:], y[cut:]


def _load_randhie() -> tuple[np.ndarray, np.ndarray]:
    from statsmodels.datasets import randhie  # Slow to import and used only here.

    frame = randhie.load_pandas().data
    return _randhie_features(frame), (frame["mdvis"] > 0).to_numpy(np.float32)


def _randhie_features(frame: pd.DataFrame) -> np.ndarray:
    """Map the nine explanatory columns to 31 features.

    The first nine are the columns, centred and scaled to about [-1/2, 1/2]. The others are
    steps, which let a linear scorer bend (about two points of AUC without noise). Columns that
    are far from centred cost accuracy under noise.
    """
    linear = np.stack(
        [
            frame["lncoins"] / 5 - 0.4,  # At most ln 101 = 4.6.
            frame["lpi"] / 8 - 0.6,  # Logarithms of at most a few thousand dollars.
            frame["fmde"] / 9 - 0.4,
            frame["disea"] / 60 - 0.2,  # A count of up to about 60.
            frame["idp"] - 0.25,  # The rest are indicators.
            frame["physlm"] - 0.1,
            frame["hlthg"] - 0.35,
            frame["hlthf"] - 0.1,
            frame["hlthp"],
        ],
        axis=1,
    )
    steps = (
        _steps(np.expm1(frame["lncoins"]), _RATE_STEPS),
        _steps(frame["disea"], _DISEASE_STEPS),
        _steps(frame["lpi"], _INCENTIVE_STEPS),
        _steps(frame["fmde"], _EXPENDITURE_STEPS),
    )
    return np.hstack([linear, *steps]).astype(np.float32)


def _steps(values: pd.Series, steps: tuple[tuple[float, float], ...]) -> np.ndarray:
    """Make one column per (threshold, centre): whether the value reaches it, minus the centre."""
    thresholds, centres = np.array(steps).T
    return (values.to_numpy()[:, None] >= thresholds) - centres


def _load_ijcnn1(part: str, data_dir: str | os.PathLike | None) -> tuple[np.ndarray, np.ndarray]:
    content = _read_verified("ijcnn1", f"ijcnn1.{part}", data_dir)
    x, y = _read_svmlight(content, n_features=22, zero_based=False)
    return x, y


def _load_adult(part: str, data_dir: str | os.PathLike | None) -> tuple[np.ndarray, np.ndarray]:
    content = _read_verified("adult", f"adult123.{part}", data_dir)
    x, y = _read_svmlight(content, n_features=123, zero_based=True)
    return _adult_features(x), y


def _adult_features(x: np.ndarray) -> np.ndarray:
    return x - np.float32(_ADULT_CENTRE)


def _load_images(
    name: str, part: str, data_dir: str | os.PathLike | None
) -> tuple[np.ndarray, np.ndarray]:
    images = _read_idx(_read_verified(name, f"{part}-images-idx3", data_dir))
    classes = _read_idx(_read_verified(name, f"{part}-labels-idx1", data_dir))
    return images, (classes < 5).astype(np.float32)


def _csv_features(frame: pd.DataFrame) -> np.ndarray:
    """Map the columns of a user's table, without the label, to records of norm 1."""
    numeric = frame.select_dtypes(["number", "bool"])
    text = frame.drop(columns=numeric.columns)
    parts = [np.arcsinh(np.nan_to_num(numeric.to_numpy(np.float64)))]
    if text.shape[1]:
        # Hashing fixes the features in advance; a list of the values found would depend on data.
        tokens = (
            [f"{c}={v}" for c, v in zip(text.columns, row, strict=True) if not pd.isna(v)]
            for row in text.itertuples(index=False, name=None)
        )
        hasher = FeatureHasher(_CSV_BUCKETS, input_type="string")
        parts.append(hasher.transform(tokens).toarray())
    # The constant keeps the size of the other features visible after the division.
    parts.append(np.ones((len(frame), 1)))
    return maps.unit(np.hstack(parts)).astype(np.float32)


@functools.lru_cache(maxsize=2)  # the two files of a data set, split anew for every seed
def _read_svmlight(
    content: bytes, *, n_features: int, zero_based: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Read bzip2-compressed svmlight text; a positive label becomes 1, any other 0."""
    text = io.BytesIO(bz2.decompress(content))
    x, y = load_svmlight_file(text, n_features=n_features, dtype=np.float32, zero_based=zero_based)
    found = x.toarray(), (y > 0).astype(np.float32)
    for array in found:
        array.flags.writeable = False
    return found


def _read_idx(content: bytes) -> np.ndarray:
    """Read a gzip-compressed idx file of unsigned bytes."""
    raw = gzip.decompress(content)
    if raw[:3] != b"\0\0\x08":  # Two zero bytes, then the element type.
        raise ValueError("not an idx file of unsigned bytes")
    shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def _read_verified(folder: str, name: str, data_dir: str | os.PathLike | None) -> bytes:
    """Return the content of a data file, downloaded if need be and checked in any case."""
    base, ending = _SOURCES[folder]
    # The source calls the binary form of adult just "adult".
    url = base + name.replace("adult123", "adult") + ending
    expected = _SHA256[folder][name]
    given = data_dir or os.environ.get("JAXMINIMAX_DATA")
    path = pathlib.Path(given or "~/.cache/jaxminimax").expanduser() / folder / (name + ending)
    if path.is_file():
        content = path.read_bytes()
        _check_sha256(content, expected, str(path))
        return content
    if given:
        raise ValueError(
            f"{path} is missing; save {url} there, or give neither data_dir nor JAXMINIMAX_DATA "
            "to have it downloaded into ~/.cache/jaxminimax"
        )
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            content = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise OSError(
            f"could not download {url} ({error}); save it as {folder}/{path.name} in a folder of "
            "your choice and name that folder by data_dir or JAXMINIMAX_DATA"
        ) from error
    _check_sha256(content, expected, url)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renaming is atomic: another process sees the whole file or none.
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_bytes(content)
    os.replace(partial, path)
    return content


def _check_sha256(content: bytes, expected: str, where: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ValueError(
            f"wrong SHA-256 of {where}: expected {expected}, found {found}; the file is damaged "
            "or another version, so remove it and get it again"
        )
