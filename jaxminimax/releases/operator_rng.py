"""Keys for operators that draw: latent points, dropout, augmentations, random starts.

The operator of a problem with `random=True` is `(z, record, key) -> g`, its public term
`(z, key) -> g`, and the loss of a `GroupProblem` `(w, record, key) -> []`. A record's key is

    threefry_{key of the release's operators}(group, row),      group = 0 where there are none,

a function of the run's key, of the release and of the row's number in the data: not of the row's
place in a sample, a slice, a shard or what was sent ahead. So a record's value is the same in every
pass over it (norm and sum are of one function), under every strategy, on every mesh, and after a
run was resumed. The words of the key travel as a part of the record.

Why that costs nothing. Let rho be all keys of operators of a run. Their law does not depend on the
data, and they are independent of samples and of noise: no two uses share a key (`opening`). Given
rho the run is the described mechanism with the operators g_rho(.; record of row i): each is
clipped whatever rho is, and a record that is replaced keeps its row, so that neighbours have the
same operators but for that record's. Hence for each rho the two outputs are (epsilon, delta)-close,
and so are their mixtures over rho: the divergence sup_S P(S) - e^epsilon Q(S) is jointly convex,
D(E P_rho, E Q_rho) <= E D(P_rho, Q_rho) <= delta. It would hold if rho were published, too. It
would not if a key of an operator served noise or samples as well, or if two passes over a record
had different keys: the norm would then be of another function than the sum.

Nothing of this is about means over all records. Gradients of groups, weighted or of a drawn one,
are clipped record by record whatever rho is, and so are losses, to [0, B]: those that are released,
those that an index is drawn from (a pass over all records moves one score by what one record's
clipped loss moves), and single ones. A record that is replaced keeps its group and its row, both
public, hence its key. Refused are proximal points and solutions: they clip nothing, so that rho
would have to be such that every operator has the constants which the sensitivity rests on, and a
certificate is of the operators that are minimised, not of their mean over rho.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax.base.random_bits import threefry, threefry_key
from jaxminimax.base.types import (
    GroupProblem,
    OwnOperator,
    Problem,
    PyTree,
    Saddle,
    SaddleOperator,
)
from jaxminimax.gradients.clipping import ClippedOperator


@dataclasses.dataclass(frozen=True)
class _WithKey:
    """A function of `(*point, record, key)`, as one of `(*point, (record, words))`."""

    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        # (z, (record, words)), or (w, v, (record, words)) for a loss of both players
        *point, (record, words) = arguments
        return self.function(*point, record, threefry_key(words))


def operator_of(problem: Problem | GroupProblem) -> Callable[[Saddle, PyTree], Saddle]:
    """The operator of one record, or of a pair of a record and its words if the problem draws."""
    return _keyed(problem.operator) if problem.random else problem.operator


def loss_of(problem: GroupProblem) -> Callable[[PyTree, PyTree], jax.Array]:
    """The loss of one record, or of a pair of a record and its words if the problem draws."""
    return _WithKey(problem.loss) if problem.random else problem.loss


def _keyed(operator: Callable[..., Any]) -> Callable[[Saddle, PyTree], Saddle]:
    if type(operator) is SaddleOperator:
        # the key goes to the loss, so that ghost clipping may still trace it
        return dataclasses.replace(operator, loss=_WithKey(operator.loss))
    if isinstance(operator, OwnOperator | ClippedOperator):
        return dataclasses.replace(operator, operator=_keyed(operator.operator))  # type: ignore[arg-type]
    return _WithKey(operator)


def with_key_data(examples: PyTree, rows: jax.Array, key_data: jax.Array | None,
                  group: jax.typing.ArrayLike = 0) -> PyTree:
    """Pairs of a record and the data of its key; the records themselves where nothing is drawn.

    Args:
      examples: leaves `[b, ...]`.
      rows: their numbers in the data, or in their group, int32 `[b]`; of any shape.
      key_data: of the release, `opening.operator_key_data`; None for a problem that draws nothing.
      group: that they are in; one for all, or of the shape of `rows`.
    """
    if key_data is None:
        return examples
    # threefry_{key of the operators}(group, row), [..., 2]
    group = jnp.broadcast_to(jnp.asarray(group).astype(jnp.uint32), rows.shape)
    return examples, jnp.stack(threefry(key_data, group, rows.astype(jnp.uint32)), -1)


def with_key_data_in_groups(examples: PyTree, group: jax.Array, rows: jax.Array,
                            key_data: jax.Array | None) -> PyTree:
    """Calls `with_key_data`, with the arguments in the order of `shard_sums.GroupAttach`."""
    return with_key_data(examples, rows, key_data, group)


def with_key_data_of_groups(data: PyTree, key_data: jax.Array | None) -> PyTree:
    """The same of all records of all groups, leaves `[p, n_max, ...]`."""
    # [p, 1] and [1, n_max]: numbers in the data, not places in a sample
    group, row = jnp.indices(jax.tree.leaves(data)[0].shape[:2], sparse=True)
    return with_key_data(data, jnp.broadcast_to(row, (group.size, row.size)), key_data, group)


def refuse(problem: Problem | GroupProblem, by: str) -> None:
    """Refuses a problem that draws.

    Raises:
      ValueError: naming who asks for an operator without a key.
    """
    if problem.random:
        raise ValueError(f"{by} needs one operator for a record, and with random=True the problem "
                         "draws another one in every release: give a problem whose operator takes "
                         "no key.")
