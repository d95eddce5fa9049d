"""A table of the user's own, from a file of comma-separated values."""

import os
import pathlib

import numpy as np
import pandas as pd
from sklearn.feature_extraction import FeatureHasher

from benchmarks.data_sets import features as maps
from benchmarks.data_sets import files
from benchmarks.data_sets.data import Dataset

_BUCKETS = 256
_MIN_ROWS = 100


def from_csv(
    path: str | os.PathLike[str],
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
    if len(frame) < _MIN_ROWS:
        raise ValueError(f"{path} has {len(frame)} rows; at least {_MIN_ROWS} are needed")
    # Labels are read as written, also those such as "NA" that pandas takes for missing values.
    written = pd.read_csv(path, index_col=False, usecols=[label], dtype=str, na_filter=False)
    labels = written[label].str.strip()
    if (labels == "").any():
        raise ValueError(f"column {label!r} of {path} has rows without a label; remove them")
    y = (labels == str(positive).strip()).to_numpy(np.float32)
    if not y.any():
        result = ", ".join(map(repr, labels.unique()[:5]))
        raise ValueError(f"no row has {label} == {str(positive)!r}; values found: {result}")
    for column in frame.select_dtypes("number"):
        if np.isinf(frame[column]).any():
            raise ValueError(f"column {column!r} of {path} holds infinite numbers")
    parts = files.hold_out(features_of(frame), y, seed)
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
    x, y_train, x_test, y_test = parts
    return Dataset(path.stem, x, y_train, x_test, y_test, prior, unit, public)


def features_of(frame: pd.DataFrame) -> np.ndarray:
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
        hasher = FeatureHasher(_BUCKETS, input_type="string")
        parts.append(hasher.transform(tokens).toarray())
    # The constant keeps the size of the other features visible after the division.
    parts.append(np.ones((len(frame), 1)))
    return maps.unit(np.hstack(parts)).astype(np.float32)
