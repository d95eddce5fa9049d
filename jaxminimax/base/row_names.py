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
    named = _indices(rows)
    for what, index in (*named[1:], *_indices({"y": y})) if named else ():
        first, own = named[0]
        if index is own or index.equals(own):
            continue
        if what != "y" or (own.nlevels == index.nlevels and not len(
                own.symmetric_difference(index, sort=False))):
            raise ValueError(
                f"{what} and {first} name their rows differently, by their indexes, and rows are "
                "read by position. If their rows lie in one order, give both with .reset_index("
                "drop=True); otherwise align them by .loc, such as owners.loc[X.index].")


def has(rows: Any) -> bool:
    """Returns whether a table or a column has names of rows."""
    return hasattr(getattr(rows, "index", None), "equals")


def _indices(rows: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns what has names of rows, with these names."""
    flat = [each for what, one in rows.items() for each in (
        {f"column {name!r} of {what}": x for name, x in one.items()}
        if isinstance(one, Mapping) else {what: one}).items()]
    return [(what, one.index) for what, one in flat if has(one)]
