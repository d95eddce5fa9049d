"""A bound on the gap or the primal risk of a released point, from records held out, plus noise."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxminimax.base import checks, tree
from jaxminimax.base.random_bits import with_key_in_float64
from jaxminimax.base.types import Problem, PyTree, Saddle, SaddleOperator
from jaxminimax.gradients.clipping import ClippedOperator, clipped_sum
from jaxminimax.mechanism import HeldOutBound, held_out
from jaxminimax.mechanism.grid import check_noise
from jaxminimax.placement import sharding
from jaxminimax.releases import noisy_sums, opening, record_isolation, release_keys
from jaxminimax.releases.watch import watched


@watched
def release_held_out_bound(key: jax.Array, mechanism: HeldOutBound, spent: jax.Array,
                           problem: Problem, z: Saddle, data: PyTree,
                           radius: jax.typing.ArrayLike) -> jax.Array:
    """A noisy c(z) of the description, or NaN once the budget is spent.

        c(z) + N(0, (noise_multiplier (1 + 2 slack) Delta)^2),    Delta = (B + 2 L R) / h,

    with r(z) of the public terms added to the mean of the g_i. r reads no data, so it moves no
    difference of c on neighbouring data. With a loss, g_i is the operator of player v alone, and
    the players' v is compared with u. Everything is computed in float64 before there is noise, and
    rounded after it. NaN if the linear minimiser answers a point farther from z than R: under what
    the statement assumes it cannot.

    Args:
      key: root key, a secret; as in `release`.
      mechanism: what was promised to the accountant.
      spent: number of releases already made of this mechanism, int32 `[]`.
      problem: `operator`, `support` and `public` are used, and must keep float64; with a loss the
        operator is a `saddle_operator`, without public terms.
      z: the point, public or released before, in the feasible set.
      data: the records held out, leaves `[h, ...]`; not on a mesh.
      radius: R, at least the distance of every point of the set from z; public, or a function of z.

    Returns:
      `[]`, float32.

    Raises:
      ValueError: as `release`; for an operator that is clipped, draws, or answers in less than
        float64; for a problem without a linear minimiser, or without a loss where one is described.
    """
    opening.check_kind(mechanism, HeldOutBound, "release_held_out_bound", "a HeldOutBound")
    release_keys.refuse(problem, "A bound from records held out")
    check_bounded(problem, mechanism)
    checks.scalars(bound=mechanism.bound, slack=mechanism.slack, radius=radius,
                   noise_multiplier=check_noise(mechanism))
    sharding.refuse_ahead(data)
    if sharding.is_spread(data):
        raise ValueError("Records held out lie on one device: give their arrays, not a mesh's.")
    opening.check_layout(data, mechanism)
    record_isolation.check(problem.operator, z, data)
    opened = opening.open_release(key, mechanism, spent, z, data)
    opening.check_size(opened.point, mechanism.parameters)

    def answer(key: jax.Array, query: HeldOutBound, radius: jax.Array, z: Saddle,
               data: PyTree) -> jax.Array:
        query, radius, z = tree.widened((query, radius, z))
        value, distance = _largest_mean(problem, query, z, data)
        length = (1 + 2 * query.slack) * held_out.sensitivity(query, radius)
        # the description's multiplier is over all of what replacing a record may do
        noisy = noisy_sums.add_noise_to_point(key, value, length / 2, 2 * check_noise(query), 1,
                                              query.exact)
        within = distance <= radius * (1 + 1e-6)
        return opening.nan_if_refused(within, noisy.astype(jnp.float32))

    noisy = with_key_in_float64(answer, opened.keys.noise, mechanism,
                                jnp.asarray(radius, jnp.float32), opened.point, opened.data)
    return opening.nan_if_refused(opened.answered, noisy)


def check_bounded(problem: Problem, mechanism: HeldOutBound) -> None:
    """Refuses a problem that no bound can be computed for.

    Raises:
      ValueError: naming what is missing.
    """
    if problem.support is None:
        raise ValueError("The problem has no linear minimiser over its feasible set: give "
                         "Problem(support=...) one, as those of jmm.problems have.")
    if isinstance(problem.operator, ClippedOperator):
        raise ValueError("The operator is clipped, and a clipped operator is that of no game: a "
                         "bound on its gap says nothing of the game. Sanitise the records instead.")
    if mechanism.loss_range is None:
        return
    if not isinstance(problem.operator, SaddleOperator):
        raise ValueError("A primal risk needs the loss of a record: give "
                         "saddle_operator(loss) for the problem's operator.")
    if problem.public is not None:
        raise ValueError("The problem has public terms, whose value is unknown here: certify "
                         "the risk of its loss alone, problem._replace(public=None).")


def _largest_mean(problem: Problem, query: HeldOutBound, z: Saddle,
                  data: PyTree) -> tuple[jax.Array, jax.Array]:
    """Returns c(z) and the distance of z from the point where the maximum is, float64."""
    total = clipped_sum(problem.operator, Saddle(query.bound, query.bound), joint=True)
    g = jax.tree.map(lambda x: x / query.population, total(z, data))
    g = g if problem.public is None else optax.tree.add(g, problem.public(z))
    offset = jnp.zeros((), jnp.float64)
    if query.loss_range is not None:
        low, high = query.loss_range
        loss: Any = problem.operator.loss  # type: ignore[attr-defined]
        each = jax.vmap(loss, (None, None, 0))(z.w, z.v, data)
        # in [low, high] whatever a record contains; what is not a number counts as high
        each = jnp.where(jnp.isnan(each), high, jnp.clip(each, low, high))
        offset = jnp.mean(each)
        g = Saddle(jax.tree.map(jnp.zeros_like, g.w), g.v)
    u = problem.support(g)  # type: ignore[misc]
    if any(x.dtype != jnp.float64 for x in jax.tree.leaves((g, u, offset))):
        raise ValueError("The problem answers in less than float64 at a float64 point: cast the "
                         "record to the point's dtype, not the reverse.")
    away = optax.tree.sub(z, u)
    if query.loss_range is not None:
        away = Saddle(jax.tree.map(jnp.zeros_like, away.w), away.v)
    return offset + optax.tree.vdot(g, away), optax.tree.norm(away)


def largest_distance(problem: Problem, z: Saddle, reach: float | None, diameter: float,
                     player: bool = False) -> float:
    """Bounds the distance of a point of the set from z.

    It is the smaller of D and

        (||z||^2 - 2 min_u <z, u> + reach^2)^(1/2)  >=  max_u ||z - u||,

    equal to it for balls around 0 and for simplices. With `player` of v alone.

    Args:
      problem: of which `support` is used.
      z: the point, public.
      reach: the largest norm of a point of the set, of v's with `player`; None for D alone.
      diameter: D.
      player: whether only v's distance counts.
    """
    if reach is None:
        return diameter
    if player:
        z = Saddle(jax.tree.map(jnp.zeros_like, z.w), z.v)
    u = problem.support(z)  # type: ignore[misc]
    if player:
        u = Saddle(jax.tree.map(jnp.zeros_like, u.w), u.v)
    square = float(optax.tree.vdot(z, z)) - 2 * float(optax.tree.vdot(z, u)) + reach**2
    # a part in 10^5 more, for what float32 loses
    return min(diameter, (1 + 1e-5) * math.sqrt(max(square, 0.0)))
