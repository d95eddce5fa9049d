"""The columns of a table as arrays: what training reads of it, encoded once and piece by piece."""

import math
import os
import tempfile
from typing import Any, NamedTuple

import numpy as np

from jaxminimax.base.identity import exact
from jaxminimax.tables import files, statistics
from jaxminimax.tables.columns import Charged
from jaxminimax.tables.schema import Schema

MAPPED = 0.3  # share of the memory from which on features lie in a file
_ALIGNED = 64  # bytes; a device that shares the host's memory uses such arrays as they lie


class Table(NamedTuple):
    """Everything that training reads of a table, row by row.

    Attributes:
      x: features in [-1, 1], and last a column for the constant, `[n, d + 1]` float32. Columns
        whose ranges are to be released are 0 until then.
      labels: as `Schema.labels`, `[n, ...]` float32.
      groups: the number of each row's group, `[n]`; None without groups.
      charged: cells of the columns whose ranges are to be released, `[n, c]`; None without them.
      owners: whose each row is; None if the schema has no owner.
    """

    x: np.ndarray
    labels: np.ndarray
    groups: np.ndarray | None
    charged: np.ndarray | None
    owners: Any


def encoded(frame: Any, schema: Schema) -> Table:
    """Encodes a table; one in a file never lies in memory as a whole, but for its owners.

    Args:
      frame: a data frame, a dictionary of columns or `files.Frames`.
      schema: of the table.

    Raises:
      ValueError: for a table without a declared column, and as `files.read`.
    """
    frames = frame if isinstance(frame, files.Frames) else [frame]
    declared, held = schema.without_charged(), _places(schema, charged=False)
    read: dict[str, list[np.ndarray]] = {"labels": [], "groups": [], "charged": [], "owners": []}
    x, first = np.empty(0), 0
    for piece in frames:
        labels = schema.labels(piece)
        last = first + len(labels)
        if not first:
            x = _zeros(max(last, getattr(frame, "most", 0)), schema.width + 1)
        if declared is not None:
            x[first:last, held] = _of_length(declared.features(piece), len(labels))
        read["labels"].append(labels)
        if schema.groups is not None:
            read["groups"].append(_of_length(schema.group_of(piece), len(labels)))
        if schema.charged:
            read["charged"].append(_of_length(statistics.charged_cells(schema, piece), len(labels)))
        if schema.owner is not None:
            read["owners"].append(exact(schema.owners(piece)))
        first = last
    joined = {name: np.concatenate(parts) for name, parts in read.items() if parts}
    return Table(x[:first], joined["labels"], joined.get("groups"), joined.get("charged"),
                 joined.get("owners"))


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


def _zeros(rows: int, width: int) -> np.ndarray:
    """Makes an array that a device may use as it lies; pages that nobody writes take no memory.

    A large one lies in a file without a name, which is the user's alone and ends with the process:
    the system writes pages there when it needs their memory, and reads them again.
    """
    size = 4 * rows * width
    if size > MAPPED * _memory():
        with tempfile.TemporaryFile() as file:
            flat = np.asarray(np.memmap(file, np.uint8, "w+", shape=(size,)))
        begin = 0
    else:
        flat = np.zeros(size + _ALIGNED, np.uint8)
        begin = -flat.ctypes.data % _ALIGNED
    return flat[begin: begin + size].view(np.float32).reshape(rows, width)


def _memory() -> float:
    """Returns the bytes of memory that the machine has; infinite where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf
