"""Data that stay on the host, and the rows of a few releases that were sent ahead of them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxminimax.base import checks
from jaxminimax.base.types import PyTree, pytree_dataclass
from jaxminimax.placement.readers import Reader


@dataclasses.dataclass(frozen=True, eq=False)
class HostData:
    """A data set that is larger than the device's memory, for `fit` alone.

        fit(key, z, HostData((np.load("x.npy", mmap_mode="r"), y)), hyper, sgda, problem, ...)

    The rows that the next rounds will read are chosen and gathered on the host, and sent while the
    device works on earlier ones. Only rows that are read leave the disk, so a memory-mapped file
    is never loaded as a whole.

    Attributes:
      rows: a tree whose leaves are NumPy arrays `[n, ...]`, memory-mapped or not, or readers: any
        object with `__len__` and `__getitems__(list)` or `__getitem__(int)`. What a reader gives
        for a number is a record, or the part of it that stands at this leaf: an array or a tree of
        them. See `readers`.
      rounds: rounds whose rows are sent together; two such shares lie on the device at a time.
        None: as many as take 64 MiB, at least one.
      population: n, the records of all processes, where `rows` are those that this one is to hold
        on a mesh, `own_rows(n, mesh)`; see `host_shards`. None: `rows` are all.

    Raises:
      ValueError: for other things than arrays and readers; for leaves of different lengths; as
        `readers.Reader`.

    Examples:
        >>> rows = jmm.HostData((np.ones((100, 3)), np.zeros(100)))
        >>> rows.population, rows.take(np.array([5, 7]))[0].shape
        (100, (2, 3))
        >>> class Squares:
        ...     def __len__(self):
        ...         return 10**12
        ...     def __getitem__(self, number):
        ...         return {"x": np.float32(number), "y": np.float32(number) ** 2}
        >>> jmm.HostData(Squares()).take(np.array([3, 1]))["y"].tolist()
        [9.0, 1.0]
    """

    rows: PyTree = dataclasses.field(repr=False)
    rounds: int | None = None
    population: int = None  # type: ignore[assignment]  # set to the number of rows
    _held: PyTree = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        held = jax.tree.map(lambda x: x if isinstance(x, np.ndarray) else Reader(x), self.rows)
        object.__setattr__(self, "_held", held)
        leaves = jax.tree.leaves(held)
        arrays = [x for x in leaves if isinstance(x, np.ndarray)]
        for x in arrays:
            if x.dtype.hasobject:
                raise ValueError("HostData are NumPy arrays of numbers, memory-mapped or not, got "
                                 "objects: encode them by a rule that is public.")
        if len(set(map(_length, leaves))) != 1 or any(x.ndim == 0 for x in arrays):
            raise ValueError("HostData are arrays with one leading axis of records, got lengths "
                             f"{[_length(x) for x in leaves]}.")
        if self.rounds is not None:
            checks.count("rounds", self.rounds)
            object.__setattr__(self, "rounds", int(self.rounds))  # NumPy's would overflow
        if self.population is None:
            object.__setattr__(self, "population", self.count)
        checks.count("population", self.population, low=self.count)
        object.__setattr__(self, "population", int(self.population))

    @property
    def count(self) -> int:
        """The number of records that are here."""
        return _length(self.held[0])

    @property
    def record(self) -> PyTree:
        """Shapes and dtypes of a record."""
        return jax.tree.map(lambda x: x.record if isinstance(x, Reader) else jax.ShapeDtypeStruct(
            x.shape[1:], x.dtype.newbyteorder("=")), self._held)

    @property
    def held(self) -> list[np.ndarray | Reader]:
        """Arrays and readers, in the order of the leaves of a record."""
        return jax.tree.leaves(self._held)

    @property
    def record_bytes(self) -> int:
        """What one record takes."""
        return sum(x.dtype.itemsize * int(np.prod(x.shape)) for x in jax.tree.leaves(self.record))

    def take(self, numbers: np.ndarray) -> PyTree:
        """The records of these numbers, leaves `[*numbers.shape, ...]`, copied."""
        return jax.tree.map(lambda x: _take(x, numbers), self._held)

    def leaf(self, number: int, numbers: np.ndarray) -> np.ndarray:
        """As `take`, of one leaf of the records; other arrays are not read."""
        for x in self.held:
            width = len(x.leaves) if isinstance(x, Reader) else 1
            if number < width:
                return jax.tree.leaves(_take(x, numbers))[number]
            number -= width
        raise IndexError(number)


def _take(x: np.ndarray | Reader, numbers: np.ndarray) -> PyTree:
    if isinstance(x, Reader):
        return x.take(numbers)
    # indexing copies these rows only; np.take would first bring order to the whole file
    found = np.asarray(x)[numbers]
    return found.astype(found.dtype.newbyteorder("="), copy=False)


def _length(x: np.ndarray | Reader) -> int:
    return x.population if isinstance(x, Reader) else x.shape[0] if x.ndim else 0


def _refuse(_: HostData) -> Any:
    raise ValueError("HostData stay on the host: only fit sends what its rounds read. Give run, "
                     "sweep, update and shard the arrays themselves.")


# no transformation may take them for arrays, or load them
jax.tree_util.register_pytree_node(HostData, _refuse, lambda _, rows: HostData(rows))


@pytree_dataclass
class Window:
    """The rows of releases `first`, ..., `first` + k - 1, sent ahead; made by `prefetch` alone.

    Attributes:
      rows: leaves `[k, c, ...]`; on a mesh `[k, D, c, ...]`, spread over its axis "data".
      numbers: which rows of the data they are, int32 `[k, c]`, or `[k, D, c]`.
      first: int32 `[]`.
      population: records of the whole data.
      mesh: None: one device. On a mesh `shard_sums` reads it.
    """

    rows: PyTree = dataclasses.field(repr=False)
    numbers: jax.Array = dataclasses.field(repr=False)
    first: jax.Array
    population: int = jax.tree.static()
    mesh: Mesh | None = jax.tree.static(default=None)

    def release(self, spent: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Which of the k releases `spent` is, int32 `[]`, and whether it is one of them."""
        place = spent - self.first
        sent = self.numbers.shape[0]
        return jnp.clip(place, 0, sent - 1), (place >= 0) & (place < sent)

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
        at, inside = self.release(spent)
        numbers = jax.lax.dynamic_index_in_dim(self.numbers, at, keepdims=False)
        same = inside & jnp.all(numbers == wanted)
        rows = jax.tree.map(lambda x: x.reshape(sent * count, *x.shape[2:]), self.rows)
        return rows, at * count + jnp.arange(count, dtype=jnp.int32), same
