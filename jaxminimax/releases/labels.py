"""How many of the data's labels are none of those that their problem documents.

A label coded otherwise ({1, 2} where {0, 1} is wanted) trains a model of something else, with no
sign of it. No run is refused for that all the same, at whatever share of wrong labels. The set is a
parameter like others, and whoever knows all records but one may choose it so that the others are
just below that share: whether the run is refused then says for sure whether the last label is in
the set. That is (epsilon, delta)-private for no delta below 1, and a refused run is not charged. So
`check` says the set, and `check(..., look=True)`, which is not private, counts the labels. Those
outside of the set are clipped like everything else.
"""

import jax
import numpy as np

from jaxminimax.base.types import Labels, People, PyTree
from jaxminimax.placement.host_data import HostData

_MOST = 2**20  # labels that are looked at
_AT_ONCE = 2**12  # records of the host that are read together for them


def outside(labels: Labels, data: PyTree) -> tuple[int, int]:
    """How many labels are none of the documented ones, and how many were looked at; not private.

    Args:
      labels: of the problem.
      data: leaves `[n, ...]`, `People` or rows on the host; not on a mesh, and not traced.
    """
    if isinstance(data, HostData):
        return _outside_host(labels, data)
    rows, there = data, None
    if isinstance(rows, People):
        rows, there = rows
    found = (jax.tree.leaves(rows) or [np.zeros(0)])[labels.leaf]
    if np.ndim(found) != 1 + (there is not None):
        return 0, 0  # of other shapes than documented, which the operator will say
    step = max(1, len(found) // _MOST)
    y = np.asarray(found[::step])
    wrong = ~np.isin(y, labels.values)
    if there is not None:
        there = np.asarray(there[::step])
        return int(np.sum(wrong & there)), int(np.sum(there))
    return int(np.sum(wrong)), y.size


def _outside_host(labels: Labels, data: HostData) -> tuple[int, int]:
    """The same, a chunk at a time."""
    record = data.record
    people = isinstance(record, People)
    leaves = jax.tree.leaves(record.rows if people else record)
    leaf = labels.leaf % len(leaves)
    if len(leaves[leaf].shape) != people:
        return 0, 0
    numbers = np.arange(0, data.count, max(1, data.count // _MOST))
    count = wrong = 0
    for at in np.array_split(numbers, -(-numbers.size // _AT_ONCE)):
        there = data.leaf(len(leaves), at) if people else np.ones(at.shape, bool)
        count += int(np.sum(there))
        wrong += int(np.sum(there & ~np.isin(data.leaf(leaf, at), labels.values)))
    return wrong, count
