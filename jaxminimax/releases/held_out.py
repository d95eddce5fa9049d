"""A bound on the gap or the primal risk of a released point, from records held out, plus noise."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxminimax.base import checks, tree
from jaxminimax.base.random_bits import with_key_in_float64
from jaxminimax.base.types import OwnOperator, Problem, PyTree, Saddle, SaddleOperator
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

        c(z) + N(0, (noise_multiplier (1 + 2 SLACK) Delta)^2),    Delta = (B + 2 L R) / h,

    with r(z) of the public terms added to the mean of the g_i. r reads no data, so it moves no
    difference of c on neighbouring data. With a loss, g_i is the operator of player v alone, and
    the players' v is compared with u. Everything is computed in float64 before there is noise, and
    rounded after it. Nothing that is not a number may tell of records: losses count from the lower
    end of their range, which is added after the noise, and the minimiser gets an operator of
    largest entry 1, whose norm is never lost. NaN if r or z are so long that float64 loses more
    than SLACK, which is public; or if the minimiser answers a point farther from z than R: under
    what the statement assumes it cannot.

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
        float64; for a problem without a linear minimiser, or without a loss where one is described;
        for more records than float64 can add up.
    """
    opening.check_kind(mechanism, HeldOutBound, "release_held_out_bound", "a HeldOutBound")
    release_keys.refuse(problem, "A bound from records held out")
    _check(problem, mechanism, z)
    checks.scalars(bound=mechanism.bound, radius=radius, noise_multiplier=check_noise(mechanism))
    if isinstance(data, sharding.Sharded):
        raise ValueError("Records held out lie on one device: give their arrays, not a mesh's.")
    opening.check_layout(data, mechanism)
    record_isolation.check(problem.operator, z, data)
    opened = opening.open_release(key, mechanism, spent, z, data)

    def answer(key: jax.Array, query: HeldOutBound, radius: jax.Array, z: Saddle,
               data: PyTree) -> jax.Array:
        query, radius, z = tree.widened((query, radius, z))
        radius = radius * (1 + 1e-6)  # it was rounded to float32
        value, fits = _largest_mean(problem, query, z, data, radius)
        # the description's multiplier is over all of what replacing a record may do
        noisy = noisy_sums.add_noise_to_point(
            key, value, held_out.length(query, radius) / 2, 2 * check_noise(query), 1)
        low, _ = query.loss_range or (0.0, 0.0)
        return opening.nan_if_refused(fits, (noisy + low).astype(jnp.float32))

    noisy = with_key_in_float64(answer, opened.keys.noise, mechanism,
                                jnp.asarray(radius, jnp.float32), opened.point, opened.data)
    return opening.nan_if_refused(opened.answered, noisy)


def _check(problem: Problem, mechanism: HeldOutBound, z: Saddle) -> None:
    """Refuses a problem that no bound can be computed for, and more records than fit."""
    if problem.support is None:
        raise ValueError("The problem has no linear minimiser over its feasible set: give "
                         "Problem(support=...) one, as those of jmm.problems have.")
    operator: Any = problem.operator
    while type(operator) is OwnOperator:
        operator = operator.operator
    if isinstance(operator, ClippedOperator):
        raise ValueError("The operator is clipped, and a clipped operator is that of no game: a "
                         "bound on its gap says nothing of the game. Sanitise the records instead.")
    if _lost(mechanism, z) > held_out.SLACK:
        raise ValueError(f"population={mechanism.population} records are more than float64 adds "
                         "up within the charged slack: hold fewer records out.")
    if mechanism.loss_range is not None:
        if not isinstance(operator, SaddleOperator):
            raise ValueError("A primal risk needs the loss of a record: give "
                             "saddle_operator(loss) for the problem's operator.")
        if problem.public is not None:
            raise ValueError("The problem has public terms, whose value is unknown here: certify "
                             "the risk of its loss alone, problem._replace(public=None).")


def _lost(query: HeldOutBound, z: Saddle) -> float:
    """The part of Delta that float64 loses at a point near 0 and without r, see `HeldOutBound`."""
    h = query.population
    return h * max(h + sum(map(jnp.size, jax.tree.leaves(z))), 2**10) * 2.0**-52


def _compared_players(z: Saddle, player: bool) -> Saddle:
    """Returns z, or v alone."""
    return Saddle(jax.tree.map(jnp.zeros_like, z.w), z.v) if player else z


def _largest_mean(problem: Problem, query: HeldOutBound, z: Saddle, data: PyTree,
                  radius: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns c(z), less the lower end of losses, and whether R and float64 are wide enough."""
    total = clipped_sum(problem.operator, Saddle(query.bound, query.bound), joint=True)
    g = jax.tree.map(lambda x: x / query.population, total(z, data))
    r = jax.tree.map(jnp.zeros_like, g) if problem.public is None else problem.public(z)
    g, value = optax.tree.add(g, r), jnp.zeros((), jnp.float64)
    if query.loss_range is not None:
        low, high = query.loss_range
        loss: Any = problem.operator.loss  # type: ignore[attr-defined]
        losses = jax.vmap(loss, (None, None, 0))(z.w, z.v, data) - low
        # in [0, B] whatever a record contains; what is not a number counts as B
        value = jnp.mean(jnp.where(jnp.isnan(losses), high - low, jnp.clip(losses, 0, high - low)))
    g = _compared_players(g, query.loss_range is not None)
    largest = optax.tree.norm(g, ord=jnp.inf)
    u = problem.support(  # type: ignore[misc]
        jax.tree.map(lambda x: x / jnp.where(largest > 0, largest, 1), g))
    if any(x.dtype != jnp.float64 for x in jax.tree.leaves((g, r, u, value))):
        raise ValueError("The problem answers in less than float64 at a float64 point: cast the "
                         "record to the point's dtype, not the reverse.")
    away = _compared_players(optax.tree.sub(z, u), query.loss_range is not None)
    lost = _lost(query, z) * (1 + optax.tree.norm(r) / query.bound) * (
        1 + optax.tree.norm(z) / radius)
    fits = (optax.tree.norm(away) <= radius) & (lost <= held_out.SLACK)
    return value + optax.tree.vdot(g, away), fits


def shown_by_points(problem: Problem, z: Saddle, player: bool = False) -> tuple[float, float]:
    """The largest distance from z, and the largest norm, of some points of the feasible set.

    They are z and minimisers of a few public linear functions, of which the coordinates' signs are
    arbitrary: what they show to be too small is too small, and more cannot be seen this way.

    Args:
      problem: of which `support` is used.
      z: the point, public.
      player: whether only v counts.
    """
    leaves, form = jax.tree.flatten(_compared_players(z, player))
    rng = np.random.default_rng(0)
    draws = [[rng.normal(size=np.shape(x)).astype(x.dtype) for x in leaves] for _ in range(4)]
    distance, longest = 0.0, float(optax.tree.norm(_compared_players(z, player)))
    for draw in (leaves, *draws):
        for sign in (1, -1):
            u = _compared_players(problem.support(  # type: ignore[misc]
                jax.tree.unflatten(form, [sign * x for x in draw])), player)
            distance = max(distance, float(
                optax.tree.norm(optax.tree.sub(u, _compared_players(z, player)))))
            longest = max(longest, float(optax.tree.norm(u)))
    return distance, longest


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
    z = _compared_players(z, player)
    point, u = (np.concatenate([np.ravel(x).astype(float) for x in jax.tree.leaves(player_point)])
                for player_point in (z, _compared_players(problem.support(z), player)))  # type: ignore[misc]
    # a part in 10^5 of the squares more, for what float32 loses
    return min(diameter, math.sqrt(point @ point - 2 * point @ u + reach**2
                                   + 1e-5 * (point @ point + reach**2)))
