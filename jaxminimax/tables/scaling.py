"""Arrays with a row for each row of a table: where they lie, and features on one scale.

Arrays lie in memory, or in files where they would fill it. All work on rows goes block by block,
with the same blocks in memory and in a file. So results are the same, bit for bit, and nothing else
grows with the number of rows. NumPy alone, as scoring needs no more.
"""

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np

MAPPED = 0.3  # share of the memory from which on the rows of a table lie in files
_ALIGNED = 64  # bytes; a device that shares the host's memory uses such arrays as they lie
_BLOCK = 2**14  # rows


def _memory() -> float:
    """Returns the bytes of memory that the machine has; infinite where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf


class Store:
    """Makes arrays for the rows of one table.

    Args:
      size: bytes of the table's features, which decide where all of its arrays lie.
    """

    def __init__(self, size: float = 0.0) -> None:
        self._in_files = size > MAPPED * _memory()

    def zeros(self, *shape: int) -> np.ndarray:
        """Makes float32 zeros that a device may use as they lie; pages not written take no memory.

        An array in a file lies in one without a name, which is the user's alone and ends with the
        process: the system writes pages there when it needs their memory, and reads them again.
        """
        size, begin = 4 * math.prod(shape), 0
        if self._in_files and size:
            with tempfile.TemporaryFile() as file:
                flat = np.asarray(np.memmap(file, np.uint8, "w+", shape=(size,)))
        else:
            flat = np.zeros(size + _ALIGNED, np.uint8)
            begin = -flat.ctypes.data % _ALIGNED
        return flat[begin: begin + size].view(np.float32).reshape(shape)


MEMORY = Store()


def blocks(rows: int) -> Iterator[slice]:
    """Yields the blocks of so many rows."""
    for first in range(0, rows, _BLOCK):
        yield slice(first, min(first + _BLOCK, rows))


def in_blocks(of: Callable[..., Any], out: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
    """Writes `of` of the arrays' rows into `out`, which may be one of them, and returns `out`."""
    for part in blocks(len(out)):
        out[part] = of(*(x[part] for x in arrays))
    return out


# --- features on one scale, by released moments ---


class Moments(NamedTuple):
    """The released means of a table's features and labels; public.

    Attributes:
      mean: of every feature, `[d]`.
      second: of every feature's square, `[d]`.
      prior: share of positive labels; of K classes their shares, `[K]`; of a number in [-1, 1] its
        mean and that of its square.
    """

    mean: np.ndarray
    second: np.ndarray
    prior: float | np.ndarray

    def to_json(self) -> dict[str, Any]:
        """Returns plain Python values."""
        return {"mean": self.mean.tolist(), "second": self.second.tolist(),
                "prior": np.asarray(self.prior).tolist()}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Reads the moments that `to_json` wrote as `record`."""
        prior = record["prior"]
        return cls(np.array(record["mean"]), np.array(record["second"]),
                   np.array(prior) if isinstance(prior, list) else prior)


def spread(by: Moments, floor: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns what is taken off each feature and what it is divided by, both `[d]`.

    With d features the second has a factor sqrt(d), so that rows have a length near 1. Without a
    `floor` it is that factor alone, and nothing is taken off.
    """
    width = math.sqrt(len(by.mean))
    if floor is None:
        return np.zeros(len(by.mean)), np.full(len(by.mean), width)
    return by.mean, width * np.sqrt(np.maximum(by.second - by.mean**2, 0.0) + floor)


def scaled(x: np.ndarray, by: Moments, floor: float | None,
           out: np.ndarray | None = None) -> np.ndarray:
    """Scales features, cuts rows to length 1 and adds a constant 1: rows are at most sqrt(2) long.

    A fixed function of the row and of released numbers.

    Args:
      x: `[..., d]`.
      by: the released numbers.
      floor: least variance that a feature is divided by; None: features are not scaled.
      out: where the result goes, `[..., d + 1]` float32, and `x` may lie; None: new memory.
    """
    result = np.empty((*x.shape[:-1], x.shape[-1] + 1), np.float32) if out is None else out
    result[..., -1] = 1
    for part in blocks(len(x)):  # float64 of all rows at once would be several copies
        block = np.asarray(x[part], np.float64)
        if floor is not None:
            block = (block - by.mean) / np.sqrt(np.maximum(by.second - by.mean**2, 0.0) + floor)
        block = block / np.sqrt(x.shape[-1])
        length = np.sqrt(np.sum(block * block, -1, keepdims=True))
        result[part, ..., :-1] = block / np.maximum(length, 1.0)
    return result
