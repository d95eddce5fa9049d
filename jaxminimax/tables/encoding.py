"""The columns of a table as arrays: what training reads of it, encoded once and piece by piece."""

from typing import Any, NamedTuple

import numpy as np

from jaxminimax.base.identity import exact
from jaxminimax.drivers import runs
from jaxminimax.tables import files, statistics
from jaxminimax.tables.columns import Charged
from jaxminimax.tables.schema import Schema
from jaxminimax.tables.storage import MEMORY, Store


class Table(NamedTuple):
    """Everything that training reads of a table, row by row.

    Attributes:
      x: features in [-1, 1], and last a column for the constant, `[n, d + 1]` float32. Columns
        whose ranges are to be released are 0 until then.
      labels: as `Schema.labels`, `[n, ...]` float32.
      groups: the number of each row's group, `[n]`; None without groups.
      charged: cells of the columns whose ranges are to be released, `[n, c]`; None without them.
      owners: whose each row is; None if the schema has no owner.
      store: of features and labels, and of what is made of them.
    """

    x: np.ndarray
    labels: np.ndarray
    groups: np.ndarray | None
    charged: np.ndarray | None
    owners: Any
    store: Store


def encoded(frame: Any, schema: Schema, progress: bool = False, room: int = 0) -> Table:
    """Encodes a table; one in a file never lies in memory as a whole, but for its owners.

    Args:
      frame: a data frame, a dictionary of columns or `files.Frames`.
      schema: of the table.
      progress: whether to show a bar.
      room: rows that features and labels have at least; those after the table's are zeros.

    Raises:
      ValueError: for a table without a declared column, and as `files.read`.
    """
    frames = frame if isinstance(frame, files.Frames) else [frame]
    declared, held = schema.without_charged(), _places(schema, charged=False)
    read: dict[str, list[np.ndarray]] = {"groups": [], "charged": [], "owners": []}
    most, width = getattr(frame, "most", 0), schema.width + 1
    x, y, first, store = np.empty(0), np.empty(0), 0, MEMORY
    with runs.bar(most, 0, progress and most > 0, "row") as bar:
        for piece in frames:
            labels = schema.labels(piece)
            last = first + len(labels)
            if not first:
                most = max(last, most, room)
                store = Store(4.0 * most * width)
                x, y = store.zeros(most, width), store.zeros(most, *labels.shape[1:])
            y[first:last] = labels
            if declared is not None:
                x[first:last, held] = _of_length(declared.features(piece), len(labels))
            if schema.groups is not None:
                read["groups"].append(_of_length(schema.group_of(piece), len(labels)))
            if schema.charged:
                read["charged"].append(_of_length(
                    statistics.charged_cells(schema, piece), len(labels)))
            if schema.owner is not None:
                read["owners"].append(exact(schema.owners(piece)))
            if bar is not None:
                bar.update(len(labels))
            first = last
    joined = {name: np.concatenate(parts) for name, parts in read.items() if parts}
    rows = max(first, room)
    return Table(x[:rows], y[:rows], joined.get("groups"), joined.get("charged"),
                 joined.get("owners"), store)


def with_charged(table: Table, schema: Schema, released: Schema) -> Table:
    """Encodes the cells whose ranges were released into their places.

    Args:
      table: by `schema`.
      schema: with the charged columns.
      released: the same with their ranges.
    """
    assert table.charged is not None
    cells = dict(zip(schema.charged, table.charged.T, strict=True))
    table.x[:, _places(schema, charged=True)] = np.concatenate(
        [released.columns[name].encode(one) for name, one in cells.items()], 1)
    return table


def _places(schema: Schema, *, charged: bool) -> slice | np.ndarray:
    """Returns the places of the charged columns' numbers, or of the others'."""
    kinds = [isinstance(kind, Charged) for kind in schema.columns.values() for _ in
             range(kind.width)]
    if not any(kinds):
        return slice(0, 0 if charged else schema.width)
    return np.flatnonzero(np.array(kinds) == charged)


def _of_length(rows: np.ndarray, length: int) -> np.ndarray:
    """Returns the rows of a column, or of several, if there are as many as labels.

    Raises:
      ValueError: naming both numbers.
    """
    if len(rows) != length:
        raise ValueError(f"columns must have one length, got {len(rows)} rows and {length} labels.")
    return rows
