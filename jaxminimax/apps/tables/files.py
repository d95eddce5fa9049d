"""Tables in files, and rows held out to test on."""

import codecs
import contextlib
import csv
import hashlib
import itertools
import pathlib
import re
import warnings
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from jaxminimax.apps.tables.columns import check_type
from jaxminimax.base import checks
from jaxminimax.base.identity import persons

_ROWS = 2**16  # of a frame
_SMALL = 2**22  # bytes of a CSV file that is read before pandas is loaded


def read(path: Any, numeric: Collection[str] = ()) -> Any:
    """Reads a CSV or Parquet file as a data frame.

    The cells of a CSV file stay text until a schema reads them. Columns in `numeric` become floats
    at once, if pandas can read them all: each cell is then what Python's `float` makes of its text,
    and NaN where that is no number.

    Of a CSV file the header line, which is public, says what separates columns: a comma, semicolon,
    tab or bar, and spaces after each one if the header has them after all of its own. Every line
    after it is a record, a blank line too: its cells are all missing. Lines within a quoted cell
    are one, so the writer of the file must quote cells that begin with a quote. Text is kept as it
    is, and a byte that is no UTF-8 becomes a surrogate of its own.

    Args:
      path: of the file.
      numeric: names of columns that a schema declares as numbers.

    Raises:
      ValueError: for a file that is not there or no table, has two columns of one name, more cells
        in a line than in the header, or a carriage return that ends no line, with the number of
        the line.
      ImportError: without pandas, or without pyarrow for a Parquet file.
    """
    (frame,) = _frames(path, numeric)
    return frame


class Frames:
    """A table in a file as frames of successive rows, read as by `read` but never all at once.

    A small CSV file is read as by `pieces`, which has the same cells without loading pandas.

    Attributes:
      columns: names of all columns.
      row_count: rows, at most: exact for a Parquet file, the lines of a CSV file.

    Args:
      path: of the file.
      numeric: as for `read`.
      wanted: names of the columns that frames of a Parquet file have, if it has all of them; other
        frames have all columns.

    Raises:
      ValueError: as `read`.
      ImportError: as `read`.
    """

    def __init__(self, path: Any, numeric: Collection[str], column_names: Collection[str]) -> None:
        self._path, self._numeric = path, numeric
        with _explained(path):
            if _is_parquet(path):
                import pyarrow.parquet

                file = pyarrow.parquet.ParquetFile(path)
                _check_types(file, numeric)
                self.columns, self.row_count = file.schema_arrow.names, file.metadata.num_rows
            else:
                self.columns, self.row_count = header(path)[0], _lines(path)
        self._wanted = list(column_names) if set(column_names) <= set(self.columns) else None

    def __iter__(self) -> Iterator[Any]:
        if not _is_parquet(self._path) and pathlib.Path(self._path).stat().st_size <= _SMALL:
            return pieces(self._path)
        return _frames(self._path, self._numeric, self._wanted, _ROWS)


def _is_parquet(path: Any) -> bool:
    return pathlib.Path(path).suffix.lower() in (".parquet", ".pq")


@contextlib.contextmanager
def _explained(path: Any) -> Iterator[None]:
    """Names the file in errors, and what to install.

    Raises:
      ValueError: for a file that is not there, and instead of errors of its content.
      ImportError: without pandas, or without pyarrow for a Parquet file.
    """
    if not pathlib.Path(path).is_file():
        raise ValueError(f"{path}: no such file; check the path.")
    try:
        with open(path, "rb") as file:
            first = file.read(512).removeprefix(codecs.BOM_UTF8)
        for pattern, advice in {
                rb"PK\x03\x04|\xd0\xcf\x11\xe0":
                    "a zip archive or an Excel workbook: save its sheet as CSV",
                rb"\x1f\x8b|BZh\d|\xfd7zXZ|\x28\xb5\x2f\xfd": "compressed: decompress it first",
                rb"\xff\xfe|\xfe\xff|[^\0]\0[^\0]\0|\0[^\0]\0[^\0]":
                    "text in UTF-16: save it as UTF-8",
                rb"PAR1": "Parquet: name it FILE.parquet",
                rb"ARROW1|FEA1|ORC|Obj\x01|\x89HDF|\x80[\x02-\x05]":
                    "of another program: save it as Parquet",
                rb"SQLite format 3":
                    "a database of SQLite: write its table with pandas.read_sql(...).to_csv",
                rb"%PDF": "a PDF: ask for the table as CSV",
                rb"(?i)\s*<(!doctype|!--|html|\?xml|table)":
                    "HTML or XML: ask for the table as CSV",
                rb"\s*[\[{]\s*([\[{\"\]}]|-?\d|null|true|false)":
                    "JSON or JSON lines: write it with pandas.read_json(FILE, lines=...)"
                    ".to_csv(FILE.csv)"}.items():
            if re.match(pattern, first) and not (pattern == b"PAR1" and _is_parquet(path)):
                raise ValueError(f"by its first bytes it is {advice}.")
        yield
    except ImportError as error:
        raise ImportError(
            "Parquet files need pyarrow: pip install 'jaxminimax[tables]'" if _is_parquet(path) else
            "tables in files need pandas: pip install 'jaxminimax[sklearn]'") from error
    except (ValueError, OSError, csv.Error) as error:
        # what a library says of a file may hold a cell; what is raised here holds none
        place = re.search(r"line \d+, saw \d+", str(error))
        text = error if type(error) is ValueError else (
            f"{type(error).__name__}{f' ({place[0]})' if place else ''}: is it a CSV file with a "
            "header line, or a Parquet file?")
        raise ValueError(f"{path} cannot be read as a table: {text}") from None


def _frames(path: Any, numeric: Collection[str], column_names: list[str] | None = None,
            rows: int | None = None) -> Iterator[Any]:
    """Reads a table as frames of so many rows, or as one."""
    with _explained(path):
        import pandas as pd

        if not _is_parquet(path):
            yield from _csv_frames(pd, path, numeric, rows)
            return
        import pyarrow.parquet

        # a missing integer would make floats of the others, and those from 2^53 on other values
        if rows is None:
            _check_types(pyarrow.parquet.ParquetFile(path), numeric)
            yield pyarrow.parquet.read_table(path).to_pandas(integer_object_nulls=True)
        else:
            # or what was read would stay in memory
            file = pyarrow.parquet.ParquetFile(path, pre_buffer=False)
            for batch in file.iter_batches(rows, columns=column_names):
                if len(batch):
                    yield pyarrow.Table.from_batches([batch]).to_pandas(
                        ignore_metadata=True, integer_object_nulls=True)


def _check_types(file: Any, numeric: Collection[str]) -> None:
    """Refuses columns of a Parquet file that are declared as numbers and are none by their type."""
    for field in file.schema_arrow:
        if field.name in numeric:
            check_type(field.name, field.type)


def _csv_frames(pd: Any, path: Any, numeric: Collection[str], rows: int | None) -> Iterator[Any]:
    """Reads the lines after the header, numeric columns as floats for as long as they can be."""
    names, options = header(path)
    _lines(path)
    options |= {"keep_default_na": False, "header": 0, "index_col": False, "encoding": "utf-8-sig",
                "skip_blank_lines": False, "iterator": True}
    places = [k for k, name in enumerate(names) if name in numeric]
    ways: list[dict[str, Any]] = [
        {"dtype": str},
        # the text of pandas holds no surrogates, Python's does
        {"dtype": object, "encoding_errors": "surrogateescape"}]
    if places:
        types = dict.fromkeys(range(len(names)), "str") | dict.fromkeys(places, "float64")
        # `float` refuses them, and pandas would too, or not in a column of truth values
        no_numbers = ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "null", "NULL", "None", "?", ".", "-",
                      "true", "True", "TRUE", "false", "False", "FALSE"]
        ways.insert(0, {"dtype": types, "na_values": dict.fromkeys(places, no_numbers)})
        if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):  # later ones round correctly
            ways[0]["float_precision"] = "round_trip"
    rows_yielded = 0
    for way in ways:
        first = 0
        try:
            with pd.read_csv(path, **options, **way) as reader:
                while (frame := _next(pd, reader, rows, names)) is not None:
                    first, last = first + len(frame), first
                    if first > rows_yielded or not first:  # rows that no way before could read
                        yield frame.iloc[max(rows_yielded - last, 0):]
                        rows_yielded = first
            return
        except UnicodeDecodeError:
            if way is ways[-1]:
                raise
        except ValueError:  # a cell that pandas does not read as a number
            if way is not ways[0] or not places:
                raise


def _next(pd: Any, reader: Any, rows: int | None, names: list[str]) -> Any:
    """Reads the next rows, or all of them; None after the last ones.

    Raises:
      ValueError: for lines with more cells than names, or fewer columns than names.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # of cells that it leaves out
            frame = reader.read(rows)
    except StopIteration:
        return None
    except pd.errors.ParserWarning as error:
        raise ValueError(f"its lines have at least one cell more than the {len(names)} names of "
                         "the header line. Name the numbers of rows, too, or write none (in R "
                         "col.names=NA or row.names=FALSE); quote cells that hold a separator, and "
                         "remove one that ends lines.") from error
    if len(names) != len(frame.columns):
        raise ValueError(f"its header line has {len(names)} names for {len(frame.columns)} "
                         "columns.")
    frame.columns = names
    return frame


def pieces(path: Any, rows: int = 2**13) -> Iterator[Any]:
    """Reads a table as dictionaries of columns, or as frames, a few rows at a time.

    The cells of a CSV file are those of `read`, and its refusals hold. Here the standard library
    reads them, because `import pandas` takes half a second.

    Args:
      path: of the file.
      rows: of a piece of a CSV file.

    Raises:
      ValueError: as `read`.
      ImportError: as `read`, for a Parquet file.
    """
    if _is_parquet(path):
        yield from _frames(path, (), rows=_ROWS)
        return
    with _explained(path):
        names, options = header(path)
        _lines(path)
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            csv.field_size_limit(2**31 - 1)
            lines = _records(csv.reader(
                itertools.chain(itertools.islice(file, options["skiprows"], None), ["\n"]),
                delimiter=options["sep"], skipinitialspace=options["skipinitialspace"]))
            next(lines)
            for number in itertools.count():
                block = list(itertools.islice(lines, rows))
                if number and not block:  # a table without rows has a piece without rows
                    return
                long = next((k for k, cells in enumerate(block) if len(cells) > len(names)), None)
                if long is not None:
                    raise ValueError(f"record {number * rows + long + 1} has {len(block[long])} "
                                     f"cells, more than the {len(names)} names of the header line: "
                                     "quote cells that hold a separator, and remove one that ends "
                                     "lines.")
                columns = itertools.zip_longest(names, *block, fillvalue="")
                yield {name: cells for name, *cells in columns}


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
        blank_lines, first = next((x for x in enumerate(file) if x[1].strip()), (0, ""))
        while first.count('"') % 2 and (next_line := file.readline()):
            first += next_line
    if not first:
        raise ValueError("there is no header line.")
    outside = "".join(first.split('"')[::2])
    separator = max(",;\t|", key=outside.count)
    spaced = [cell.startswith(" ") for cell in outside.split(separator)[1:]]
    cells = next(csv.reader(first.splitlines(True), delimiter=separator, skipinitialspace=True))
    names = [name.strip() or f"Unnamed: {k}" for k, name in enumerate(cells)]
    twins = [str(k) for k, name in enumerate(names, 1) if names.count(name) > 1]
    if twins:
        raise ValueError(f"several columns have one name, columns {', '.join(twins)}: give every "
                         "one a name of its own.")
    return names, {"sep": separator, "skiprows": blank_lines,
                   "skipinitialspace": bool(spaced) and all(spaced)}


def _lines(path: Any) -> int:
    """Counts lines, also those inside quotes; refuses a carriage return that would end a record.

    Raises:
      ValueError: with the number of the line.
    """
    with open(path, "rb") as file:
        ends = np.sum([(block.count(b"\n"), block.count(b"\r")) for block in iter(
            lambda: file.read(2**20), b"")], 0)
        if not ends[1]:
            return 1 + int(ends[0])
        file.seek(0)
        for number, line in enumerate(file, 1):
            text = line.removesuffix(b"\n").removesuffix(b"\r")
            if b"\r" in text and (number > 1 or line.endswith(b"\n")):  # or it ends all lines
                raise ValueError(f"line {number} has a carriage return that ends no line: remove "
                                 "it, or end every line in the same way.")
    return 1 + int(max(ends))


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
        hashes = [hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogatepass")).digest()
                  for name in names]
        chosen[sorted(range(people), key=hashes.__getitem__)[:count]] = True
    return chosen[person]
