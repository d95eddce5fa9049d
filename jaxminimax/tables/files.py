"""Tables in files, and rows held out to test on."""

import pathlib
from typing import Any

import numpy as np

from jaxminimax.base import checks
from jaxminimax.tables.columns import as_words

_PARQUET = (".parquet", ".pq")


def read(path: Any) -> Any:
    """A data frame of a CSV or Parquet file; cells of a CSV stay text until a schema reads them.

    Raises:
      ValueError: for a file that is not there or no table.
      ImportError: without pandas.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("tables in files need pandas: pip install 'jaxminimax[sklearn]'") from (
            error)
    if not pathlib.Path(path).is_file():
        raise ValueError(f"{path}: no such file; check the path.")
    try:
        if pathlib.Path(path).suffix.lower() in _PARQUET:
            return pd.read_parquet(path)
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True)
    except (ValueError, OSError, ImportError) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from error
    frame.columns = [str(name).strip() for name in frame.columns]
    return frame


def held_out(rows: int, owners: Any | None, fraction: float, seed: int) -> np.ndarray:
    """Which rows are held out, `[rows]` of bool; all rows of a person, or none.

    Args:
      rows: how many there are.
      owners: whose each one is; None: every row is a person's only one.
      fraction: of persons, in (0, 1).
      seed: of the draw.

    Raises:
      ValueError: for a fraction out of range, or one that leaves no person on a side.
    """
    checks.number("test fraction", fraction, low=0.0, high=1.0)
    if owners is None:
        person, people = np.arange(rows), rows
    else:
        person = np.unique(as_words(owners).astype(str), return_inverse=True)[1]
        people = int(person.max(initial=-1)) + 1
    count = round(fraction * people)
    if not 0 < count < people:
        raise ValueError(f"test fraction {fraction:g} of {people} persons holds out {count}: "
                         "train and test sets need one at least.")
    chosen = np.zeros(people, bool)
    chosen[np.random.default_rng(seed).permutation(people)[:count]] = True
    return chosen[person]
