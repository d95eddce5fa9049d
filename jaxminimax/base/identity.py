"""Persons: exact names, the same from every kind of table, and records that are their rows."""

import decimal
import numbers
import operator
import re
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxminimax.base.types import PyTree  # loads JAX, which scoring does without

NAMES = ("The names of the persons, and so their number, are public. Neighbouring data sets differ "
         "in the rows of one person.")
LONGEST = 10**4000  # Python prints integers of 4,300 digits and no longer ones
MOST_ROWS = 10**6  # of one person that are read: a person has a place in memory for each


class People(NamedTuple):
    """Persons, or one person without the leading axis, as `by_person` returns them.

    Attributes:
      rows: leaves `[persons, k, ...]`, at most k rows of each.
      present: True for places that hold a row, bool `[persons, k]`.
    """

    rows: "PyTree"
    present: Any

    @property
    def most(self) -> int:
        """k, the largest number of rows of a person that are read."""
        return int(np.shape(self.present)[-1])


def rows_each(data: "PyTree") -> int | None:
    """The largest number of rows of a record if the records are persons, and None otherwise.

    Args:
      data: any records; `People` may lie on a mesh, on the host or in groups.
    """
    rows = data
    if not isinstance(data, People):  # a reader on the host says what a record is
        rows = getattr(data, "record", getattr(data, "rows", data))
    return rows.most if isinstance(rows, People) else None


def unit_of(people: int = 1, rows: int | None = None) -> str:
    """The unit of privacy of a statement, if the user did not name one.

    Args:
      people: the number of records of one person that may differ.
      rows: the result of `rows_each`.
    """
    if rows is not None:
        return "one person"
    return "one record" if people == 1 else f"any {people} records"


def persons(owners: Any, argument: str = "owners") -> tuple[list[str], np.ndarray]:
    """The names of all persons in order, and the number of each row's person, `[rows]`.

    A name is exact text: an integer by its decimal digits, whatever its size; text by its
    characters; bytes by their UTF-8 characters, with a surrogate for each invalid byte; a UUID by
    its 36 characters. No name passes through a float. So 1 and "1" are one person, because a
    CSV file does not distinguish them, and "1", "1.0", "01", " 1" and "true" are five.

    Integers come first, by value, and other names follow in the order of their characters.

    Args:
      owners: the owner of every row, as a list, an array, or a column of pandas, polars or pyarrow.
      argument: name of the argument, for errors.

    Raises:
      ValueError: for owners that are no vector, and with the number of the row for an owner that is
        missing or empty, for a float that is no integer below 2^53 in magnitude (2^24 in single
        precision), as larger integers share floats, and for booleans, dates and other kinds.
    """
    array = exact(owners)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iufOUST":
        raise ValueError(f"{argument} must be integers or text, one for each row, got shape "
                         f"{array.shape} and dtype {array.dtype}.")
    cells, rows = array, np.arange(array.size)
    if array.dtype.kind in "iu":
        cells, rows = np.unique(array, return_inverse=True)
    names = [_name(cell, f"row {row} of {argument} (from 0)") for row, cell in enumerate(cells)]
    people = sorted(set(names), key=_order)
    person_numbers = {name: k for k, name in enumerate(people)}
    return people, np.array([person_numbers[name] for name in names])[rows]


def exact(cells: Any) -> np.ndarray:
    """Returns the cells of a list, an array or a column as an array that rounds none of them.

    NumPy makes floats of some lists of integers, and of integers in columns with missing cells. It
    reads a missing cell of pyarrow's dictionaries as another cell. Cells under a mask are None.
    """
    if np.ma.isMaskedArray(cells) and cells.ndim == 1:
        cells = [None if cell is np.ma.masked else cell for cell in cells]
    kind = getattr(cells, "dtype", getattr(cells, "type", None))
    inner = getattr(getattr(kind, "categories", None), "dtype", kind)  # of categories in pandas
    if isinstance(kind, np.dtype) or ("float" in str(inner).lower() and not in_dictionary(cells)):
        return np.asarray(cells)
    for read in ("to_pylist", "to_list"):  # of pyarrow; of pandas and polars
        if hasattr(cells, read):
            cells = getattr(cells, read)()
    cells = list(cells)
    return np.fromiter(cells, object, len(cells))


def in_dictionary(cells: Any) -> bool:
    """Returns whether cells are a column of pyarrow that names each value once, in a dictionary."""
    return str(getattr(cells, "type", "")).startswith("dictionary")


def absent(cell: Any) -> bool:
    """Returns True if a cell is None, NaN, NaT or NA."""
    try:
        return cell is None or bool(cell != cell)
    except (TypeError, ValueError, ArithmeticError):  # NA of pandas is neither equal nor different
        return True


def _name(cell: Any, place: str) -> str:
    """Returns the name of an owner as text."""
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "surrogateescape")
    if absent(cell) or (isinstance(cell, str) and not cell):
        raise ValueError(f"{place} has no owner: every row belongs to a person; name its owner, or "
                         "leave the row out.")
    if isinstance(cell, str):
        return str.__str__(cell)  # an enumeration's own would add its name
    if isinstance(cell, uuid.UUID):
        return str(cell)
    digits = _digits(cell)
    if digits is None:
        raise ValueError(f"{place} has an owner of type {type(cell).__name__}: owners are text or "
                         "integers. A float must be an integer below 2^53 in magnitude (2^24 in "
                         "single precision), since larger integers share floats: read such a "
                         "column as integers or as text.")
    return digits


def _digits(cell: Any) -> str | None:
    """The digits of an integer; None for other kinds, and if rounding could have changed it."""
    if isinstance(cell, decimal.Decimal):
        sure = cell.is_finite() and cell.adjusted() < 4000 and cell == cell.to_integral_value()
    elif isinstance(cell, float | np.floating):
        limit = 2.0 ** min(53, 1 + np.finfo(type(cell)).nmant)
        sure = bool(-limit < cell < limit) and bool(cell == int(cell))
    else:
        sure = isinstance(cell, numbers.Integral) and not isinstance(cell, bool)
        cell = operator.index(cell) if sure else cell
    return str(int(cell)) if sure and abs(int(cell)) < LONGEST else None


def _order(name: str) -> tuple[bool, int, str]:
    """The sort key of a name: integers by value, then other text."""
    # of at most 1,000 digits: longer ones are ordered as text
    is_integer = re.fullmatch("0|-?[1-9][0-9]{0,999}", name) is not None
    return not is_integer, int(name) if is_integer else 0, name
