"""Records that are persons with several rows each."""

from typing import Any, NamedTuple

import numpy as np

from jaxminimax.base.types import PyTree


class People(NamedTuple):
    """Persons, or one of them without the leading axis; made by `by_person`.

    Attributes:
      rows: leaves `[persons, k, ...]`, at most k rows of each.
      present: which places hold a row, bool `[persons, k]`.
    """

    rows: PyTree
    present: Any

    @property
    def most(self) -> int:
        """k, the most rows of a person that are read."""
        return int(np.shape(self.present)[-1])


def rows_each(data: PyTree) -> int | None:
    """The most rows of a record, if the records are persons; None if they are not.

    Args:
      data: `People`, on a mesh, on the host or by group too.
    """
    rows = data
    if not isinstance(data, People):  # a reader on the host says what a record is
        rows = getattr(data, "record", getattr(data, "rows", data))
    return rows.most if isinstance(rows, People) else None


def unit_of(people: int = 1, rows: int | None = None) -> str:
    """The unit of privacy of a statement, if the user did not name one.

    Args:
      people: how many records of one person may differ.
      rows: as of `rows_each`.
    """
    if rows is not None:
        return "one person"
    return "one record" if people == 1 else f"any {people} records"
