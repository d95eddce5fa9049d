"""Names of rows: an index, as pandas keeps one. Rows that two objects name differently never meet.

Everything else reads rows by position. So a column of owners in another order than its table would
put a person's rows under several names, and epsilon would be about none of them.
"""

from collections.abc import Mapping
from typing import Any


def check(rows: Mapping[str, Any], y: Any = None) -> None:
    """Refuses objects of one table whose names of rows differ.

    Names are equal if they are the same in the same order; names that occur twice are no exception.
    What has no names, such as an array, a list or a frame of polars or pyarrow, is read by
    position, and so are labels with other names, which is scikit-learn's convention.

    Args:
      rows: tables and columns, each by what it is; of a dictionary all columns count.
      y: labels, refused only if they have the names of the others in another order.

    Raises:
      ValueError: naming both objects and the fix.
    """
    indices = _indices(rows)
    for name, index in (*indices[1:], *_indices({"y": y})) if indices else ():
        first_name, first_index = indices[0]
        if index is first_index or index.equals(first_index):
            continue
        if name != "y" or (first_index.nlevels == index.nlevels and not len(
                first_index.symmetric_difference(index, sort=False))):
            raise ValueError(
                f"{name} and {first_name} name their rows differently, by their indexes, and rows "
                "are read by position. If their rows lie in one order, give both with .reset_index("
                "drop=True); otherwise align them by .loc, such as owners.loc[X.index].")


def has(rows: Any) -> bool:
    """Returns whether a table or a column has names of rows."""
    return hasattr(getattr(rows, "index", None), "equals")


def _indices(rows: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns what has names of rows, with these names."""
    flat = [item for name, table in rows.items() for item in (
        {f"column {column!r} of {name}": x for column, x in table.items()}
        if isinstance(table, Mapping) else {name: table}).items()]
    return [(name, x.index) for name, x in flat if has(x)]
