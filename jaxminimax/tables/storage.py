"""Arrays with a row for each row of a table: in memory, or in files where they would fill it.

All work on rows goes block by block, with the same blocks in memory and in a file. So results are
the same, bit for bit, and nothing else grows with the number of rows.
"""

import math
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

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
