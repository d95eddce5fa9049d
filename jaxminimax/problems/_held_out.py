"""Records held out of a training, at places drawn from public coins."""

import dataclasses
import functools

import jax
import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.types import PyTree

__all__ = ["HeldOut", "hold_out"]


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOut:
    """Records held out of a table, see `hold_out`.

    Rows of a table may be sorted, and its last ones are then no independent draws, fixed though
    their places are. So nobody gives the places: they are drawn here, and follow from the seed.

    One that is made by hand or by `dataclasses.replace` draws in the same way: without groups its
    labels are all 0, so that none but the coins chooses rows.

    Attributes:
      labels: the group of every record, `[n]`; all 0 without groups, negative in none.
      share: of each group, that is held out.
      seed: of the public coins.
      grouped: whether there are groups.

    Raises:
      ValueError: for a share that leaves no record on a side, or labels that are no groups.

    Examples:
        >>> held = jmm.problems.hold_out(1000, 0.1)
        >>> len(held.rows), held.taken(np.arange(1000)).tolist() == held.rows.tolist()
        (100, True)
    """

    labels: np.ndarray
    share: float
    seed: int
    grouped: bool

    def __post_init__(self) -> None:
        """Refuses what no coins draw from, and keeps labels of its own."""
        checks.number("share", self.share, low=0.0, high=1.0)
        checks.count("seed", self.seed, low=0)
        labels = np.array(self.labels)
        if (labels.ndim != 1 or labels.dtype.kind not in "iu" or not np.any(labels >= 0)
                or (not self.grouped and np.any(labels != 0))):
            raise ValueError("records must be n, or a vector of group numbers 0, 1, ..., got shape "
                             f"{labels.shape} and dtype {labels.dtype}. Labels are all 0 without "
                             "groups.")
        counts = np.bincount(labels[labels >= 0])
        if not all(1 <= int(self.share * n) < n for n in counts):
            raise ValueError(f"share={self.share:g} leaves no record on a side of a group of "
                             f"{counts.min()}: each needs one at least.")
        object.__setattr__(self, "labels", _unwritable(labels))

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """The numbers of the rows held out, in their order."""
        order = np.random.default_rng(self.seed).permutation(len(self.labels))
        groups = (order[self.labels[order] == k] for k in range(int(self.labels.max()) + 1))
        return _unwritable(np.sort(np.concatenate([x[: int(self.share * len(x))] for x in groups])))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many records of each group are held out, for `GroupLosses`."""
        return tuple(np.bincount(self.labels[self.rows]).tolist())

    def taken(self, data: PyTree) -> PyTree:
        """Returns the records held out of leaves `[n, ...]`."""
        return self._rows_of(data, self.rows)

    def rest(self, data: PyTree) -> PyTree:
        """Returns the other records, for the training."""
        return self._rows_of(data, np.setdiff1d(np.arange(len(self.labels)), self.rows))

    def _rows_of(self, data: PyTree, rows: np.ndarray) -> PyTree:
        lengths = {np.shape(x)[:1] for x in jax.tree.leaves(data)}
        if lengths != {(len(self.labels),)}:
            raise ValueError(f"data has leading axes {lengths}, and records were held out of "
                             f"{len(self.labels)}: give all of them, held_out takes its own.")
        return jax.tree.map(lambda x: x[rows], data)


def _unwritable(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


def hold_out(records: int | np.ndarray, share: float, *, seed: int = 0) -> HeldOut:
    """Draws the places of records to hold out of a training, from public coins.

    Args:
      records: n, or the public group of each record, integers from 0, `[n]`; negative for a record
        that is in none, which is never held out.
      share: of the records, or of each group's, in (0, 1).
      seed: of the draw; public, chosen without a look at the records.

    Raises:
      ValueError: for a share that leaves no record on a side, or labels that are no groups.

    Examples:
        >>> held = jmm.problems.hold_out(1000, 0.1)
        >>> len(held.rows), len(held.rest(np.zeros(1000)))
        (100, 900)
        >>> jmm.problems.hold_out(np.arange(1000) % 2, 0.1).sizes  # of two groups
        (50, 50)
    """
    grouped = np.ndim(records) > 0
    if not grouped:
        checks.count("records", records)
    return HeldOut(np.array(records) if grouped else np.zeros(records, int), share, seed, grouped)
