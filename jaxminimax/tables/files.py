"""Tables in files, and rows held out to test on."""

import contextlib
import csv
import hashlib
import itertools
import pathlib
import warnings
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.identity import persons

_PARQUET = (".parquet", ".pq")
_SEPARATORS = ",;\t|"
# cells that `float` refuses, and pandas would refuse or, in a column of truth values, not refuse
_NO_NUMBERS = ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "null", "NULL", "None", "?", ".", "-",
               "true", "True", "TRUE", "false", "False", "FALSE"]


def read(path: Any, numeric: Collection[str] = ()) -> Any:
    """Reads a CSV or Parquet file as a data frame.

    The cells of a CSV file stay text until a schema reads them. Columns in `numeric` become floats
    at once, if pandas can read them all: each cell is then what Python's `float` makes of its text,
    and NaN where that is no number.

    Of a CSV file the header line, which is public, says what separates columns: a comma, semicolon,
    tab or bar, and spaces after each one if the header has them after all of its own. Every line
    after it is a record, a blank line too: its cells are all missing. Text is kept as it is, and a
    byte that is no UTF-8 becomes a surrogate of its own.

    Args:
      path: of the file.
      numeric: names of columns that a schema declares as numbers.

    Raises:
      ValueError: for a file that is not there or no table, has two columns of one name, more cells
        in a line than in the header, or a carriage return that ends no line, with the number of
        the line.
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
        names, how = header(path)
        _refuse_stray_ends(path)
        how |= {"keep_default_na": False, "encoding": "utf-8-sig", "header": 0, "index_col": False,
                "skip_blank_lines": False}
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # of cells that it leaves out
            frame = _parsed(pd, path, names, how, numeric)
    except pd.errors.ParserWarning as error:
        raise ValueError(f"{path} cannot be read as a table: its lines have at least one cell more "
                         f"than the {len(names)} names of the header line. Name the numbers of "
                         "rows, too, or write none (in R col.names=NA or row.names=FALSE); quote "
                         "cells that hold a separator, and remove one that ends lines.") from error
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from error
    if len(names) != len(frame.columns):
        raise ValueError(f"{path} cannot be read as a table: its header line has {len(names)} "
                         f"names for {len(frame.columns)} columns.")
    frame.columns = names
    return frame


def _parsed(pd: Any, path: Any, names: list[str], how: dict[str, Any],
            numeric: Collection[str]) -> Any:
    """Reads the lines after the header, the numeric columns as floats if all of them can be."""
    places = [k for k, name in enumerate(names) if name in numeric]
    if places:
        types = dict.fromkeys(range(len(names)), "str") | dict.fromkeys(places, "float64")
        if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):  # later ones round correctly
            how = how | {"float_precision": "round_trip"}
        with contextlib.suppress(ValueError):  # a cell that pandas does not read as a number
            return pd.read_csv(path, dtype=types, na_values=dict.fromkeys(places, _NO_NUMBERS),
                               **how)
    try:
        return pd.read_csv(path, dtype=str, **how)
    except UnicodeDecodeError:  # the text of pandas holds no surrogates, Python's does
        return pd.read_csv(path, dtype=object, encoding_errors="surrogateescape", **how)


def pieces(path: Any, rows: int = 2**13) -> Iterator[Any]:
    """Reads a table as dictionaries of columns, so many rows at a time, or a Parquet file at once.

    The cells of a CSV file are those of `read`, and its refusals hold. Here the standard library
    reads them, because `import pandas` takes half a second.

    Args:
      path: of the file.
      rows: of a piece.

    Raises:
      ValueError: as `read`.
      ImportError: as `read`, for a Parquet file.
    """
    if pathlib.Path(path).suffix.lower() in _PARQUET or not pathlib.Path(path).is_file():
        yield read(path)
        return
    try:
        names, how = header(path)
        _refuse_stray_ends(path)
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            csv.field_size_limit(2**31 - 1)
            lines = _records(csv.reader(
                itertools.chain(itertools.islice(file, how["skiprows"], None), ["\n"]),
                delimiter=how["sep"], skipinitialspace=how["skipinitialspace"]))
            next(lines)
            while block := list(itertools.islice(lines, rows)):
                columns = list(itertools.zip_longest(names, *block, fillvalue=""))
                if len(columns) > len(names):
                    raise ValueError(f"a line has more cells than the {len(names)} names of the "
                                     "header line: quote cells that hold a separator, and remove "
                                     "one that ends lines.")
                yield {name: cells for name, *cells in columns}
    except (ValueError, OSError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from error


def _records(lines: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yields all records but the last, which is empty unless a quote before it is open.

    Raises:
      ValueError: for that quote.
    """
    following = [""]
    for record, following in itertools.pairwise(lines):  # noqa: B007
        yield record
    if following:
        raise ValueError("a quote is opened and not closed: close it, or double it within a cell.")


def header(path: Any) -> tuple[list[str], dict[str, Any]]:
    """Returns the columns of a CSV file by name, and the arguments with which pandas reads it.

    Raises:
      ValueError: for a file without a header line, or two columns of one name.
      OSError: for one that cannot be read.
    """
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        # a quoted name may hold a separator, or a line's end
        before, first = next((x for x in enumerate(file) if x[1].strip()), (0, ""))
        while first.count('"') % 2 and (more := file.readline()):
            first += more
    if not first:
        raise ValueError("there is no header line.")
    outside = "".join(first.split('"')[::2])
    separator = max(_SEPARATORS, key=outside.count)
    spaced = [part.startswith(" ") for part in outside.split(separator)[1:]]
    cells = next(csv.reader(first.splitlines(True), delimiter=separator, skipinitialspace=True))
    names = [name.strip() or f"Unnamed: {k}" for k, name in enumerate(cells)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"several columns are named {', '.join(map(repr, twice))}: give every one "
                         "a name of its own.")
    return names, {"sep": separator, "skiprows": before,
                   "skipinitialspace": bool(spaced) and all(spaced)}


def _refuse_stray_ends(path: Any) -> None:
    """Refuses a carriage return inside a line, at which a record would be cut in two."""
    with open(path, "rb") as file:
        if not any(b"\r" in block for block in iter(lambda: file.read(2**20), b"")):
            return
        file.seek(0)
        for number, line in enumerate(file, 1):
            text = line.removesuffix(b"\n").removesuffix(b"\r")
            if b"\r" in text and (number > 1 or line.endswith(b"\n")):  # or it ends all lines
                raise ValueError(f"line {number} has a carriage return that ends no line: remove "
                                 "it, or end every line in the same way.")


def held_out(rows: int, owners: Any | None, fraction: float, seed: int) -> np.ndarray:
    """Draws the rows that are held out, `[rows]` of bool; all rows of a person, or none.

    Of rows a draw of their numbers. Of persons those whose names have the smallest keyed hashes, so
    that putting one person for another, under whatever name, changes one person of the training set
    at most. A draw of places in the order of the names would put others elsewhere too.

    Args:
      rows: how many there are.
      owners: whose each one is; None: every row is a person's only one.
      fraction: of persons, in (0, 1).
      seed: of the draw.

    Raises:
      ValueError: for a fraction out of range, one that leaves no person on a side, or owners that
        `problems.by_person` refuses.
    """
    checks.number("test fraction", fraction, low=0.0, high=1.0)
    if owners is None:
        person, people = np.arange(rows), rows
    else:
        names, person = persons(owners)
        people = len(names)
    count = round(fraction * people)
    if not 0 < count < people:
        raise ValueError(f"test fraction {fraction:g} of {people} persons holds out {count}: "
                         "train and test sets need one at least.")
    chosen = np.zeros(people, bool)
    if owners is None:
        chosen[np.random.default_rng(seed).permutation(people)[:count]] = True
    else:
        hashes = [_hashed(seed, name) for name in names]
        chosen[sorted(range(people), key=hashes.__getitem__)[:count]] = True
    return chosen[person]


def _hashed(seed: int, name: str) -> bytes:
    """Hashes the seed and the name, and nothing else."""
    return hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogatepass")).digest()
