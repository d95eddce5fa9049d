"""Benchmark data for private AUC maximisation, with data-independent preprocessing.

Every feature is a fixed function of its own record and of public constants. Nothing (no
minimum, maximum, mean or standard deviation) is estimated from the loaded rows, so
preprocessing costs no privacy budget and replacing one row changes one row of the result.
The constants are listed in ``Dataset.public``.
"""

import dataclasses
import functools
import os
from collections.abc import Callable

import numpy as np

from benchmarks.data_sets import adult, ijcnn1, images, randhie
from benchmarks.data_sets import features as maps


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


@dataclasses.dataclass(frozen=True)
class _Set:
    """What a module of a data set says of it; fields as of `Dataset`."""

    prior: float
    unit: str
    public: tuple[str, ...]
    parts: Callable[..., tuple[np.ndarray, ...]]  # of (split, seed, data_dir)
    people: int = 1


_SETS = {
    "randhie": _Set(randhie.PRIOR, randhie.UNIT, randhie.PUBLIC, randhie.parts,
                    randhie.PEOPLE),
    "ijcnn1": _Set(ijcnn1.PRIOR, ijcnn1.UNIT, ijcnn1.PUBLIC, ijcnn1.parts),
    **{name: _Set(images.PRIOR, unit, (), functools.partial(images.parts, name))
       for name, unit in images.UNITS.items()},
    "adult": _Set(adult.PRIOR, adult.UNIT, adult.PUBLIC, adult.parts),
}
NAMES = tuple(_SETS)


def load(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
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
    result = _SETS[name]
    x, y, x_test, y_test = result.parts(split, seed, data_dir)
    public = result.public
    if chosen is not None:
        if features == "published scaling":
            low, high = x.min(0), x.max(0)
            x, x_test = ((a - low) / np.where(high > low, high - low, 1) for a in (x, x_test))
        x, x_test = chosen.of(x), chosen.of(x_test)
        public = (*public, *chosen.public)
    return Dataset(name, x, y, x_test, y_test, result.prior, result.unit, public, result.people)
