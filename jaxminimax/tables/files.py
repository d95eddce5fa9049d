"""Tables in files, and rows held out to test on."""

import csv
import hashlib
import pathlib
from typing import Any

import numpy as np

from jaxminimax.base import checks
from jaxminimax.tables.columns import as_words

_PARQUET = (".parquet", ".pq")
_SEPARATORS = ",;\t|"


def read(path: Any) -> Any:
    """A data frame of a CSV or Parquet file; cells of a CSV stay text until a schema reads them.

    Of a CSV file the header line, which is public, says what separates columns: a comma, semicolon,
    tab or bar. What is no UTF-8 becomes a replacement character, in its own cell.

    Raises:
      ValueError: for a file that is not there or no table, or has two columns of one name.
      ImportError: without pandas, or without pyarrow for a Parquet file.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("tables in files need pandas: pip install 'jaxminimax[sklearn]'") from (
            error)
    if not pathlib.Path(path).is_file():
        raise ValueError(f"{path}: no such file; check the path.")
    if pathlib.Path(path).suffix.lower() in _PARQUET:
        try:
            return pd.read_parquet(path)
        except ImportError as error:
            raise ImportError("Parquet files need pyarrow: pip install 'jaxminimax[tables]'") from (
                error)
        except (ValueError, OSError) as error:
            raise ValueError(f"{path} cannot be read as a table: {error}") from error
    try:
        names, separator = header(path)
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True,
                            sep=separator, encoding="utf-8-sig", encoding_errors="replace",
                            header=0, index_col=False)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from error
    if len(names) != len(frame.columns):
        raise ValueError(f"{path} cannot be read as a table: its header line has {len(names)} "
                         f"names for {len(frame.columns)} columns.")
    frame.columns = names
    return frame


def header(path: Any) -> tuple[list[str], str]:
    """Names of the columns of a CSV file, and what separates them.

    Raises:
      ValueError: for a file without a header line, or two columns of one name.
      OSError: for one that cannot be read.
    """
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        # a quoted name may hold a separator, or a line's end
        first = next((line for line in file if line.strip()), "")
        while first.count('"') % 2 and (more := file.readline()):
            first += more
    if not first:
        raise ValueError("there is no header line.")
    outside = "".join(first.split('"')[::2])
    separator = max(_SEPARATORS, key=outside.count)
    cells = next(csv.reader(first.splitlines(True), delimiter=separator, skipinitialspace=True))
    names = [name.strip() or f"Unnamed: {k}" for k, name in enumerate(cells)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"several columns are named {', '.join(map(repr, twice))}: give every one "
                         "a name of its own.")
    return names, separator


def held_out(rows: int, owners: Any | None, fraction: float, seed: int) -> np.ndarray:
    """Which rows are held out, `[rows]` of bool; all rows of a person, or none.

    Of rows a draw of their numbers. Of persons those whose names have the smallest keyed hashes, so
    that putting one person for another, under whatever name, changes one person of the training set
    at most. A draw of places in the order of the names would put others elsewhere too.

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
        names, person = np.unique(as_words(owners).astype(str), return_inverse=True)
        people = len(names)
    count = round(fraction * people)
    if not 0 < count < people:
        raise ValueError(f"test fraction {fraction:g} of {people} persons holds out {count}: "
                         "train and test sets need one at least.")
    chosen = np.zeros(people, bool)
    if owners is None:
        chosen[np.random.default_rng(seed).permutation(people)[:count]] = True
    else:
        hashes = [_hashed(seed, str(name)) for name in names]
        chosen[sorted(range(people), key=hashes.__getitem__)[:count]] = True
    return chosen[person]


def _hashed(seed: int, name: str) -> bytes:
    """A number that follows from the seed and the name alone."""
    return hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogatepass")).digest()
