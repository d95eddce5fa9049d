"""Data that stay on the host, and the rows of a few releases that were sent ahead of them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.types import PyTree, pytree_dataclass


@dataclasses.dataclass(frozen=True, eq=False)
class HostData:
    """A data set that is larger than the device's memory, for `fit` alone.

        fit(key, z, HostData((np.load("x.npy", mmap_mode="r"), y)), hyper, sgda, problem, ...)

    The rows that the next rounds will read are chosen and gathered on the host, and sent while the
    device works on earlier ones. Only rows that are read leave the disk, so a memory-mapped file
    is never loaded as a whole.

    Attributes:
      rows: leaves `[n, ...]`, NumPy arrays or memory-mapped ones.
      rounds: rounds whose rows are sent together; two such shares lie on the device at a time.
        None: as many as take 64 MiB, at least one.

    Examples:
        >>> rows = jmm.HostData((np.ones((100, 3)), np.zeros(100)))
        >>> rows.population, rows.take(np.array([5, 7]))[0].shape
        (100, (2, 3))
    """

    rows: PyTree = dataclasses.field(repr=False)
    rounds: int | None = None

    def __post_init__(self) -> None:
        leaves = jax.tree.leaves(self.rows)
        for x in leaves:
            if not isinstance(x, np.ndarray) or x.dtype.hasobject:
                raise ValueError("HostData are NumPy arrays of numbers, memory-mapped or not, got "
                                 f"{type(x).__name__}: arrays on the device need no HostData.")
        if len({x.shape[:1] for x in leaves} - {()}) != 1 or any(x.ndim == 0 for x in leaves):
            raise ValueError("HostData are arrays with one leading axis of records, got shapes "
                             f"{[x.shape for x in leaves]}.")
        if self.rounds is not None:
            checks.count("rounds", self.rounds)
            object.__setattr__(self, "rounds", int(self.rounds))  # NumPy's would overflow

    @property
    def population(self) -> int:
        """The number of records."""
        return int(jax.tree.leaves(self.rows)[0].shape[0])

    @property
    def record_bytes(self) -> int:
        """What one record takes."""
        return sum(x.dtype.itemsize * int(np.prod(x.shape[1:])) for x in jax.tree.leaves(self.rows))

    def take(self, numbers: np.ndarray) -> PyTree:
        """The records of these numbers, leaves `[*numbers.shape, ...]`, copied."""
        def one(x: np.ndarray) -> np.ndarray:
            # indexing copies these rows only; np.take would first bring order to the whole file
            found = np.asarray(x)[numbers]
            return found.astype(found.dtype.newbyteorder("="), copy=False)

        return jax.tree.map(one, self.rows)


def _refuse(_: HostData) -> Any:
    raise ValueError("HostData stay on the host: only fit without a mesh sends what its rounds "
                     "read. Give run, sweep, update and a mesh the arrays themselves.")


# no transformation may take them for arrays, or load them
jax.tree_util.register_pytree_node(HostData, _refuse, lambda _, rows: HostData(rows))


@pytree_dataclass
class Window:
    """The rows of releases `first`, ..., `first` + k - 1, sent ahead; made by `prefetch` alone.

    Attributes:
      rows: leaves `[k, c, ...]`.
      numbers: which rows of the data they are, int32 `[k, c]`.
      first: int32 `[]`.
      population: records of the whole data.
    """

    rows: PyTree = dataclasses.field(repr=False)
    numbers: jax.Array = dataclasses.field(repr=False)
    first: jax.Array
    population: int = jax.tree.static()

    def read(self, spent: jax.Array, wanted: jax.Array) -> tuple[PyTree, jax.Array, jax.Array]:
        """Where the rows of release `spent` are, and whether they are the `wanted` ones.

        Returns:
          Leaves `[k c, ...]`, the release's places in them, int32 `[c]`, and bool `[]`. Reading
          them is the operation that reads the data themselves, so it rounds no sum otherwise.

        Raises:
          ValueError: while tracing, if releases do not read as many rows as were sent.
        """
        sent, count = self.numbers.shape
        if wanted.shape != (count,):
            raise ValueError(f"A release reads {wanted.shape} rows, but {(count,)} were sent for "
                             "each: they were sent for another description.")
        place = spent - self.first
        at = jnp.clip(place, 0, sent - 1)
        numbers = jax.lax.dynamic_index_in_dim(self.numbers, at, keepdims=False)
        same = (place >= 0) & (place < sent) & jnp.all(numbers == wanted)
        rows = jax.tree.map(lambda x: x.reshape(sent * count, *x.shape[2:]), self.rows)
        return rows, at * count + jnp.arange(count, dtype=jnp.int32), same
