"""Records that are not arrays: any object that hands them out by their numbers.

Such a reader has `__len__` and `__getitems__(list)`, or `__getitem__(int)` alone: data sets of
Hugging Face, sources of Grain, files of ArrayRecord, a class of one's own around a data base. A
record is an array, a number, or a tree of them, always of the same shapes and dtypes.

The number of a record is what a sampling draws, so the proof of amplification, the exact resume and
the fingerprint of a run all take the record of a number to be one and the same. What iterates, or
was found to answer one number in two ways, is refused; that the order is public, and stays as it
is for as long as the run may go on, is up to the caller.
"""

from typing import Any

import jax
import numpy as np

from jaxminimax.base.types import PyTree

_NUMBERS = (np.ndarray, np.generic, bool, int, float, complex)


class Reader:
    """The records of an object that is asked for them by number.

    Attributes:
      population: the number of records.
      record: shapes and dtypes of the first one, as they are for all.

    Raises:
      ValueError: for what cannot be asked by number, has no record, or answers one number in two
        ways; for records that are not trees of numbers.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        _check_kind(source)
        self.population = len(source)
        if self.population < 1:
            raise ValueError("HostData need at least one record, got a reader of none.")
        (first,) = self._read([0])
        self.record = jax.tree_util.tree_map_with_path(_spec, first)
        again = self._read(sorted({0, self.population - 1}))
        if _bytes(again[0]) != _bytes(first):
            raise ValueError("The reader answers record 0 in two ways: HostData must be in one "
                             "fixed order, without shuffling and without random augmentation. An "
                             "operator may draw instead, Problem(random=True).")
        self._columns(again)

    def take(self, numbers: np.ndarray) -> PyTree:
        """The records of these numbers, leaves `[*numbers.shape, ...]`.

        Each is asked for once, in increasing order and all in one call where the reader has
        `__getitems__`.

        Raises:
          RuntimeError: for a record of other shapes or dtypes than the first, and instead of a
            ValueError or a TypeError of the reader: what records contain is no refusal of a
            run, after which it would not be charged. The message says nothing of the record.
        """
        once, place = np.unique(numbers, return_inverse=True)
        place = place.reshape(np.shape(numbers))
        if not once.size:
            return jax.tree.map(
                lambda x: np.zeros((*place.shape, *x.shape), x.dtype), self.record)
        try:
            columns = self._columns(self._read(once.tolist()))
        except (ValueError, TypeError) as error:
            raise RuntimeError("The reader of HostData failed on records that a run reads; it "
                               "stays charged.") from error
        return jax.tree.map(lambda x: x[place], columns)

    @property
    def leaves(self) -> list[jax.ShapeDtypeStruct]:
        """Of a record."""
        return jax.tree.leaves(self.record)

    def _read(self, numbers: list[int]) -> list[PyTree]:
        """The records of increasing numbers."""
        if hasattr(self._source, "__getitems__"):
            found = list(self._source.__getitems__(numbers))
            if len(found) != len(numbers):
                raise ValueError(f"The reader was asked for {len(numbers)} records and gave "
                                 f"{len(found)}: __getitems__ must return one for each number.")
            return found
        return [self._source[number] for number in numbers]

    def _columns(self, records: list[PyTree]) -> PyTree:
        """The leaves of all records, one below the other."""
        wanted = self.leaves
        tree: Any = jax.tree.structure(self.record)
        found = []
        for record in records:
            leaves = [np.asarray(x) for x in jax.tree.leaves(record)]
            if jax.tree.structure(record) != tree or any(
                    x.shape != y.shape or x.dtype.newbyteorder("=") != y.dtype
                    for x, y in zip(leaves, wanted, strict=True)):
                raise ValueError("A record has other shapes or dtypes than the first: pad all to "
                                 f"{jax.tree.map(lambda x: (x.shape, x.dtype.name), self.record)}.")
            found.append(leaves)
        return jax.tree.unflatten(tree, [np.stack(x).astype(y.dtype, copy=False) for x, y in zip(
            zip(*found, strict=True), wanted, strict=True)])


def _check_kind(source: Any) -> None:
    kind = type(source)
    told = f"{kind.__module__.split('.')[0]}.{kind.__qualname__}"
    if isinstance(source, jax.Array | str | bytes | int | float) or hasattr(kind, "iloc"):
        raise ValueError("HostData are NumPy arrays of numbers, memory-mapped or not, or readers "
                         f"by number, got {told}: arrays on the device need no HostData, frames "
                         "are given by their to_numpy().")
    if not hasattr(kind, "__len__") or hasattr(kind, "__next__") or not (
            hasattr(kind, "__getitem__") or hasattr(kind, "__getitems__")):
        raise ValueError("HostData are asked for records by number, got "
                         f"{told}: give an object with __len__ and __getitems__(list) or "
                         "__getitem__(int), not one that iterates in an order of its own.")


def _spec(path: tuple, x: Any) -> jax.ShapeDtypeStruct:
    where = f"record{jax.tree_util.keystr(path)}"
    listed = any(isinstance(step, jax.tree_util.SequenceKey) for step in path)
    if not isinstance(x, _NUMBERS):
        raise ValueError(f"{where} must be an array of NumPy or a number, got "
                         f"{type(x).__module__.split('.')[0]}.{type(x).__qualname__}: let the "
                         "reader decode bytes, and give NumPy's arrays "
                         "(dataset.with_format('numpy')).")
    if listed and not isinstance(x, np.ndarray | np.generic):
        raise ValueError(f"{where} is a number in a list: give np.asarray(...) of the whole "
                         "(dataset.with_format('numpy')).")
    array = np.asarray(x)
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        raise ValueError(f"{where} has dtype {array.dtype}, which is no number.")
    return jax.ShapeDtypeStruct(array.shape, array.dtype.newbyteorder("="))


def _bytes(record: PyTree) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(record)]
