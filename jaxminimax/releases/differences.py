"""Noisy anchors and differences of operators, one a round.

A difference is the release of an ordinary `Query` on the quotients of `mechanism.difference`,
times the public number that they were divided by.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxminimax.base import arguments, checks, tree
from jaxminimax.base.types import OwnOperator, Problem, PyTree, Saddle, with_strategy
from jaxminimax.mechanism import Difference, Repeat, Windows
from jaxminimax.releases.sums import release
from jaxminimax.releases.watch import watched, watched_pair


@dataclasses.dataclass(frozen=True)
class _Quotient:
    """The quotient (g(z; x) - g(before; x)) / length of one record; one key for both points."""

    operator: Callable[..., Saddle]
    before: Saddle
    length: jax.Array

    def __call__(self, z: Saddle, example: PyTree, *key: jax.Array) -> Saddle:
        now, before = (_wide(self.operator(point, example, *key)) for point in (z, self.before))
        return jax.tree.map(lambda a, b: (a - b) / self.length.astype(a.dtype), now, before)


def _wide(z: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x.astype(tree.at_least_float32(x.dtype)), z)


def distance(z: Saddle, before: Saddle) -> jax.Array:
    """The distance ||z - before|| of both players, `[]`; not finite where one is not."""
    moves = jax.tree.leaves(jax.tree.map(jnp.subtract, _wide(z), _wide(before)))
    # ||d|| = s (sum_k (d_k / s)^2)^(1/2),  s near max_k |d_k|
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(x), initial=0.0) for x in moves]))
    scale = jnp.where(largest > 0, tree.unit(largest), 1.0)  # squares neither over- nor underflow
    return scale * jnp.sqrt(sum(jnp.sum(jnp.square(x / scale.astype(x.dtype))) for x in moves))


@watched
def release_difference(key: jax.Array, mechanism: Repeat, spent: jax.Array, problem: Problem,
                       z: Saddle, before: Saddle, data: PyTree) -> Saddle:
    """A noisy mean of the differences of the problem's operator at z and at `before`.

        l (sum_{i in B} clip((g(z; x_i) - g(before; x_i)) / l, 1) + N(0, z_2^2 I)) / m,

    l = L ||z - before||, the clip joint for both players, B one sample for both points.

    Args:
      key: as in `release`; no other release of the run has the same key and `spent`.
      mechanism: what was promised to the accountant, a `Repeat` of a `Difference`.
      spent: as in `release`.
      problem: as in `release`; "ghost", which looks inside a loss, is read as "microbatch".
      z: a released point.
      before: another one, like z.
      data: as in `release`.

    Returns:
      As `release`; 0 for equal points, NaN for a distance that is not finite.

    Raises:
      ValueError: as `release`.
      TypeError: for another mechanism.
    """
    if not isinstance(mechanism, Repeat) or not isinstance(mechanism.query, Difference):
        raise TypeError("release_difference answers a Repeat of a Difference, got "
                        f"{checks.describe(mechanism)}.")
    query = mechanism.query
    query.check_own()
    checks.scalars(lipschitz=query.lipschitz)
    for name, one, other in zip(Saddle._fields, z, before, strict=True):
        arguments.same_shapes(other, one, f"before.{name}", f"z.{name}")
        arguments.floats(one, f"z.{name}")
    z, before = jax.tree.map(jnp.asarray, (z, before))
    # l = L ||z - before|| of released points, so public given the past
    length = query.lipschitz * distance(z, before)
    strategy = getattr(problem.operator, "strategy", "auto")
    quotient = OwnOperator(_Quotient(problem.operator, before, length))
    problem = problem._replace(operator=with_strategy(
        quotient, "microbatch" if strategy == "ghost" else strategy,
        getattr(problem.operator, "microbatch", quotient.microbatch)))
    # (sum_{i in B} clip(quotient_i, 1) + N(0, z_2^2 I)) / m
    g = release(key, dataclasses.replace(mechanism, query=query.quotient), spent, problem, z, data)
    # times l is postprocessing; an l that is not finite gives NaN whatever the data
    length = jnp.where(jnp.isfinite(length), length, jnp.nan)
    return jax.tree.map(lambda x: x * length.astype(x.dtype), g)


@watched_pair
def release_in_window(key: jax.Array, mechanism: Windows, spent: jax.Array, problem: Problem,
                      z: Saddle, before: Saddle, data: PyTree) -> tuple[Saddle, jax.Array]:
    """The release of a round: `release` at z if it opens a window, else `release_difference`.

    Which one is decided by the number of the release, as it is charged.

    Args:
      key: root key of the run, a secret; as in `release`.
      mechanism: what was promised to the accountant.
      spent: number of releases already made, int32 `[]`.
      problem: as in `release_difference`.
      z: the point of this round.
      before: that of the round before, which no anchor reads.
      data: as in `release`.

    Returns:
      What is released, a `Saddle` like z in at least float32, and whether it is an anchor.

    Raises:
      ValueError: as `release`.
      TypeError: for another mechanism.
    """
    if not isinstance(mechanism, Windows):
        raise TypeError("release_in_window answers Windows, algorithm.mechanism(hyper), got "
                        f"{checks.describe(mechanism)}.")
    mechanism.check_own()
    # one stream of keys, numbered by rounds: of each number one of the two is released
    anchors, differences = (Repeat(query=query, times=mechanism.rounds, place=mechanism.place)
                            for query in (mechanism.anchor, mechanism.difference))
    opens = jnp.asarray(spent) % mechanism.length == 0

    def anchor() -> Saddle:
        return release(key, anchors, spent, problem, z, data)

    def difference() -> Saddle:
        return release_difference(key, differences, spent, problem, z, before, data)

    if mechanism.length == 1:
        return anchor(), opens
    return jax.lax.cond(opens, anchor, difference), opens
