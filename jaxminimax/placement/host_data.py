"""Data that stay on the host, and the rows of a few releases that are sent ahead.

The data are arrays, or readers: any object that returns records by their numbers. A reader has
`__len__` and `__getitems__(list)`, or `__getitem__(int)` alone: data sets of Hugging Face, sources
of Grain, files of ArrayRecord, a class of one's own around a data base. A record is an array, a
number, or a tree of them, always of the same shapes and dtypes.

The number of a record is what a sampling draws, so the proof of amplification, the exact resume and
the fingerprint of a run all take the record of a number to be one and the same. Iterators are
refused, and readers that return two records for one number. The caller must ensure that the order
is public, and stays the same for as long as the run may go on.
"""

import dataclasses
import mmap
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.random_bits import threefry
from jaxminimax.base.tree import materialise
from jaxminimax.base.types import PyTree, pytree_dataclass
from jaxminimax.mechanism.sampling import Sample


class Reader:
    """Reads the records of an object by their numbers.

    Attributes:
      population: the number of records.
      record: shapes and dtypes of the first record, which all records share.

    Raises:
      ValueError: for an object that cannot be read by number, has no record, or returns two
        records for one number; for records that are not trees of numbers.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        _check_kind(source)
        self.population = len(source)
        if self.population < 1:
            raise ValueError("HostData need at least one record, got a reader of none.")
        _check_count(self.population)
        # record 0 is read alone, and again with the last one: a random augmentation or an order of
        # the reader's own may show as two answers to one number
        (first,) = self._read([0])
        self.record = jax.tree_util.tree_map_with_path(_spec, first)
        ends = self._read(sorted({0, self.population - 1}))
        if _bytes(ends[0]) != _bytes(first):
            raise ValueError("The reader answers record 0 in two ways: HostData must be in one "
                             "fixed order, without shuffling and without random augmentation. An "
                             "operator may draw instead, Problem(random=True).")
        self._columns(ends)

    def take(self, numbers: np.ndarray) -> PyTree:
        """Returns the records of these numbers, leaves `[*numbers.shape, ...]`.

        Each is asked for once, in increasing order and all in one call where the reader has
        `__getitems__`.

        Raises:
          RuntimeError: for a record of other shapes or dtypes than the first, and instead of a
            ValueError or a TypeError of the reader: what records contain is no refusal of a
            run, after which it would not be charged. The message says nothing of the record.
        """
        # a record that is drawn twice is read once, so both copies are of one answer
        unique, place = np.unique(numbers, return_inverse=True)
        place = place.reshape(np.shape(numbers))
        if not unique.size:
            return jax.tree.map(lambda x: np.zeros((*place.shape, *x.shape), x.dtype), self.record)
        try:
            columns = self._columns(self._read(unique.tolist()))
        except (ValueError, TypeError) as error:
            raise RuntimeError("The reader of HostData failed on records that a run reads; it "
                               "stays charged.") from error
        return jax.tree.map(lambda x: x[place], columns)

    @property
    def leaves(self) -> list[jax.ShapeDtypeStruct]:
        """The leaves of a record."""
        return jax.tree.leaves(self.record)

    def _read(self, numbers: list[int]) -> list[PyTree]:
        """The records of increasing numbers."""
        if hasattr(self._source, "__getitems__"):
            records = list(self._source.__getitems__(numbers))
            if len(records) != len(numbers):
                raise ValueError(f"The reader was asked for {len(numbers)} records and gave "
                                 f"{len(records)}: __getitems__ must return one for each number.")
            return records
        return [self._source[number] for number in numbers]

    def _columns(self, records: list[PyTree]) -> PyTree:
        """Stacks the leaves of all records."""
        specs = self.leaves
        tree: Any = jax.tree.structure(self.record)
        leaves_of_records = []
        for record in records:
            leaves = [np.asarray(x) for x in jax.tree.leaves(record)]
            if jax.tree.structure(record) != tree or any(
                    x.shape != y.shape or x.dtype.newbyteorder("=") != y.dtype
                    for x, y in zip(leaves, specs, strict=True)):
                raise ValueError("A record has other shapes or dtypes than the first: pad all to "
                                 f"{jax.tree.map(lambda x: (x.shape, x.dtype.name), self.record)}.")
            leaves_of_records.append(leaves)
        return jax.tree.unflatten(tree, [np.stack(x).astype(y.dtype, copy=False) for x, y in zip(
            zip(*leaves_of_records, strict=True), specs, strict=True)])


def _check_kind(source: Any) -> None:
    kind = type(source)
    name = f"{kind.__module__.split('.')[0]}.{kind.__qualname__}"
    if isinstance(source, jax.Array | str | bytes | int | float) or hasattr(kind, "iloc"):
        raise ValueError("HostData are NumPy arrays of numbers, memory-mapped or not, or readers "
                         f"by number, got {name}: arrays on the device need no HostData, frames "
                         "are given by their to_numpy().")
    if not hasattr(kind, "__len__") or hasattr(kind, "__next__") or not (
            hasattr(kind, "__getitem__") or hasattr(kind, "__getitems__")):
        raise ValueError("HostData are asked for records by number, got "
                         f"{name}: give an object with __len__ and __getitems__(list) or "
                         "__getitem__(int), not one that iterates in an order of its own.")


def _spec(path: tuple[Any, ...], x: Any) -> jax.ShapeDtypeStruct:
    leaf_name = f"record{jax.tree_util.keystr(path)}"
    listed = any(isinstance(step, jax.tree_util.SequenceKey) for step in path)
    if not isinstance(x, np.ndarray | np.generic | bool | int | float | complex):
        raise ValueError(f"{leaf_name} must be an array of NumPy or a number, got "
                         f"{type(x).__module__.split('.')[0]}.{type(x).__qualname__}: let the "
                         "reader decode bytes, and give NumPy's arrays "
                         "(dataset.with_format('numpy')).")
    if listed and not isinstance(x, np.ndarray | np.generic):
        raise ValueError(f"{leaf_name} is a number in a list: give np.asarray(...) of the whole "
                         "(dataset.with_format('numpy')).")
    array = np.asarray(x)
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        raise ValueError(f"{leaf_name} has dtype {array.dtype}, which is no number.")
    return jax.ShapeDtypeStruct(array.shape, array.dtype.newbyteorder("="))


def _bytes(record: PyTree) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(record)]


@dataclasses.dataclass(frozen=True, eq=False)
class HostData:
    """A data set that is larger than the device's memory, for `fit` on one device alone.

        fit(key, z, HostData((np.load("x.npy", mmap_mode="r"), y)), hyper, sgda, problem, ...)

    The rows that the next rounds will read are chosen and gathered on the host, and sent while the
    device works on earlier ones. Only rows that are read leave the disk, so a memory-mapped file
    is never loaded as a whole.

    Attributes:
      rows: a tree whose leaves are NumPy arrays `[n, ...]`, memory-mapped or not, or readers: any
        object with `__len__` and `__getitems__(list)` or `__getitem__(int)`. A reader
        returns for a number the record, or the part of it at this leaf: an array or a tree of
        arrays. See `Reader`.
      rounds: the number of rounds whose rows are sent together; two such shares lie on the device
        at a time. None for as many as take 64 MiB, at least one.

    Raises:
      ValueError: for objects that are neither arrays nor readers, leaves of different lengths,
        readers that `Reader` refuses, or more records than 32-bit numbers can count.

    Examples:
        >>> rows = jmm.placement.HostData((np.ones((100, 3)), np.zeros(100)))
        >>> rows.population, rows.take(np.array([5, 7]))[0].shape
        (100, (2, 3))
        >>> class Squares:
        ...     def __len__(self):
        ...         return 10**9
        ...     def __getitem__(self, number):
        ...         return {"x": np.float32(number), "y": np.float32(number) ** 2}
        >>> jmm.placement.HostData(Squares()).take(np.array([3, 1]))["y"].tolist()
        [9.0, 1.0]
    """

    rows: PyTree = dataclasses.field(repr=False)
    rounds: int | None = None
    _sources: PyTree = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        sources = jax.tree.map(lambda x: x if isinstance(x, np.ndarray) else Reader(x), self.rows)
        object.__setattr__(self, "_sources", sources)
        leaves = jax.tree.leaves(sources)
        arrays = [x for x in leaves if isinstance(x, np.ndarray)]
        for x in arrays:
            if x.dtype.hasobject:
                raise ValueError("HostData are NumPy arrays of numbers, memory-mapped or not, got "
                                 "objects: encode them by a rule that is public.")
        if len(set(map(_length, leaves))) != 1 or any(x.ndim == 0 for x in arrays):
            raise ValueError("HostData are arrays with one leading axis of records, got lengths "
                             f"{[_length(x) for x in leaves]}.")
        _check_count(self.population)
        if self.rounds is not None:
            checks.count("rounds", self.rounds)
            object.__setattr__(self, "rounds", int(self.rounds))  # NumPy's would overflow

    @property
    def population(self) -> int:
        """The number of records, n."""
        return _length(self.sources[0])

    @property
    def record(self) -> PyTree:
        """Shapes and dtypes of a record."""
        return jax.tree.map(lambda x: x.record if isinstance(x, Reader) else jax.ShapeDtypeStruct(
            x.shape[1:], x.dtype.newbyteorder("=")), self._sources)

    @property
    def sources(self) -> list[np.ndarray | Reader]:
        """Arrays and readers, in the order of the leaves of a record."""
        return jax.tree.leaves(self._sources)

    @property
    def record_bytes(self) -> int:
        """The bytes of one record."""
        return sum(x.dtype.itemsize * int(np.prod(x.shape)) for x in jax.tree.leaves(self.record))

    def take(self, numbers: np.ndarray) -> PyTree:
        """Returns a copy of the records of these numbers, leaves `[*numbers.shape, ...]`."""
        return jax.tree.map(lambda x: _take(x, numbers), self._sources)

    def read_at_random(self, begin: bool) -> None:
        """Advises the system that mapped files are read at random places from now on, or no more.

        Otherwise it also reads data around each row, up to megabytes.
        """
        for x in self.sources:
            mapped: Any = x  # a view; the map of the file is the base of the last one
            while isinstance(mapped, np.ndarray | memoryview):
                mapped = mapped.base if isinstance(mapped, np.ndarray) else mapped.obj
            if isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise"):
                mapped.madvise(mmap.MADV_RANDOM if begin else mmap.MADV_NORMAL)


def _take(x: np.ndarray | Reader, numbers: np.ndarray) -> PyTree:
    if isinstance(x, Reader):
        return x.take(numbers)
    x = np.asarray(x)
    if x.flags.c_contiguous and x.flags.aligned and x.dtype.isnative:
        return np.take(x, numbers, 0)  # several times as fast, a copy of memory a row
    gathered = x[numbers]  # np.take would first bring order to the whole file
    return gathered.astype(gathered.dtype.newbyteorder("="), copy=False)


def _length(x: np.ndarray | Reader) -> int:
    return x.population if isinstance(x, Reader) else x.shape[0] if x.ndim else 0


def _check_count(population: int) -> None:
    if population >= 2**31:
        raise ValueError(f"HostData must have fewer than 2**31 records, got {population}: row "
                         "numbers have 32 bits. Give fewer of them, chosen by a rule that does not "
                         "depend on what they contain.")


def _refuse(_: HostData) -> Any:
    raise ValueError("HostData stay on the host: only fit sends what its rounds read. Give run, "
                     "sweep, update and shard the arrays themselves.")


# no transformation may take them for arrays, or load them
jax.tree_util.register_pytree_node(HostData, _refuse, lambda _, rows: HostData(rows))


class Sent(NamedTuple):
    """The samples of k releases, drawn ahead by `releases.reading.samples_ahead` alone.

    Attributes:
      rows: numbers of the data's rows, int32 `[k, c]`; of JAX's arrays or NumPy's, as all.
      valid: which of them take part, bool `[k, c]`; None for all.
      fits: whether the sample could be drawn, bool `[k]`.
      marks: uint32 `[k, 2]`, `mark` of the rows that take part, plus one if the sample fits.
    """

    rows: Any
    valid: Any
    fits: Any
    marks: Any


def mark(words: jax.Array, rows: jax.Array, present: jax.Array | None) -> jax.Array:
    """Returns sum_i E(0, row_i) over the rows present, each word mod 2^32; uint32 `[2]`.

    E is Threefry under the words of a release that serve nothing else. By it a release recognises
    its own sample without drawing it again: the sample and its mark are made by one program of one
    key, and no two sets of rows, nor two releases or keys, have the same mark but for a chance of
    2^-64, as good as the cipher is. If one row alone is another one, the marks differ for sure: E
    is a permutation of its counters. It guards against mistakes and not against intent, because the
    sender of the rows holds the key.

    Args:
      words: `release_keys.Keys.ahead` of the release, uint32 `[2]`.
      rows: int32 `[c]`, in any order.
      present: bool `[c]`; None for all.
    """
    counters = rows.astype(jnp.uint32)
    # not number by number in the sums
    drawn = materialise(lambda: threefry(words, jnp.zeros_like(counters), counters))
    return jnp.stack([jnp.sum(x if present is None else jnp.where(present, x, np.uint32(0)),
                              dtype=jnp.uint32) for x in drawn])


@pytree_dataclass
class Window:
    """The rows of releases `first`, ..., `first` + k - 1, which `long_runs` alone sends ahead.

    A release does not draw its sample again: it takes the one that was drawn ahead, from its own
    key and by its own sampler, if the mark is its own, and is NaN if not. So neither the law of
    the sample nor the answer depends on where the data are.

    Attributes:
      rows: leaves `[k, c, ...]`.
      numbers: which rows of the data they are, int32 `[k, c]`.
      valid: which of them take part, bool `[k, c]`; None for all.
      fits: bool `[k]`.
      marks: of the k samples, uint32 `[k, 2]`; see `mark`.
      first: int32 `[]`.
      population: records of the whole data.
      described: what the samples were drawn for.
    """

    rows: PyTree = dataclasses.field(repr=False)
    numbers: jax.Array = dataclasses.field(repr=False)
    valid: jax.Array | None = dataclasses.field(repr=False)
    fits: jax.Array = dataclasses.field(repr=False)
    marks: jax.Array = dataclasses.field(repr=False)
    first: jax.Array
    population: int = jax.tree.static()
    described: tuple[Any, ...] = jax.tree.static()

    def read(self, spent: jax.Array, words: jax.Array) -> tuple[Sample, jax.Array, PyTree]:
        """Returns the sample of release `spent`, and the places of its rows.

        Returns:
          The sample, which fits only if it is the release's own; its places, int32 `[c]`, in
          leaves `[k c, ...]`. Reading these is the operation that reads the data themselves, so it
          rounds no sum otherwise.
        """
        sent, count = self.numbers.shape
        # of the release among those sent; for another one some sample is read, and does not fit as
        # `inside` is False
        place = spent - self.first
        index, inside = jnp.clip(place, 0, sent - 1), (place >= 0) & (place < sent)
        numbers, valid, fits, marked = jax.tree.map(
            lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False),
            (self.numbers, self.valid, self.fits, self.marks))
        # a mark is one more where its sample fits, so that this flag is compared with it
        is_own = inside & jnp.all(mark(words, numbers, valid) + fits == marked)
        rows = jax.tree.map(lambda x: x.reshape(sent * count, *x.shape[2:]), self.rows)
        places = index * count + jnp.arange(count, dtype=jnp.int32)
        return Sample(numbers, valid, fits & is_own), places, rows
