"""The one door to the data: sample, clip per example, add or solve, blur, normalise.

Nothing else in the library's algorithms touches `data`. The standard deviation of the noise is one
product, clip * noise multiplier, of the numbers that the accountant reads.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax._tree import at_least_float32
from jaxminimax._types import Problem, Saddle, Tree
from jaxminimax.gradients import ClippedOperator, clipped_sum
from jaxminimax.mechanism import (
    FixedSize,
    Query,
    Repeat,
    Resolvent,
    batch_lipschitz,
    batch_size,
    check_noise,
    displacement,
    modulus,
)
from jaxminimax.noise import gaussian
from jaxminimax.sampling import Sample, draw
from jaxminimax.solvers import certify, in_float64, operator_extrapolation

# What keys are folded with: releases keep apart from whatever else is made from the run's key
# (split(key)[i] is fold_in(key, i)), and samples from noise.
_RELEASES, _SAMPLE, _NOISE = 0x6D6D78, 0, 1


def _blur(key: jax.Array, total: Tree, clip: jax.typing.ArrayLike,
          noise_multiplier: jax.typing.ArrayLike, size: jax.typing.ArrayLike) -> Tree:
    # an infinite clip norm without noise is no noise; every other doubtful product stays NaN
    clip, noise_multiplier = (jnp.asarray(x, at_least_float32(jnp.asarray(x).dtype))
                              for x in (clip, noise_multiplier))
    std = jnp.where(noise_multiplier == 0, 0.0, clip * noise_multiplier)
    noise = gaussian(key, total, std)
    return jax.tree.map(lambda x, e: (x + e) / jnp.asarray(size, x.dtype), total, noise)


def _sampled(key: jax.Array, query: Query | Resolvent, spent: jax.Array,
             data: Tree) -> tuple[jax.Array, Sample, Tree]:
    """The key of a release's noise, its sample, and the rows of the sample."""
    rows = {jnp.shape(x)[:1] for x in jax.tree.leaves(data)}
    if rows != {(query.population,)}:
        raise ValueError(f"data has leading axes {rows}, but the mechanism was described for "
                         f"population={query.population}.")
    key = jax.random.fold_in(jax.random.fold_in(key, _RELEASES), spent)
    sample = draw(jax.random.fold_in(key, _SAMPLE), query, spent)
    if sample.rows is not None:
        ordered = not isinstance(query.sampling, FixedSize)
        data = jax.tree.map(lambda x: x.at[sample.rows].get(
            mode="clip", indices_are_sorted=ordered), data)
    return jax.random.fold_in(key, _NOISE), sample, data


def release(key: jax.Array, mechanism: Repeat, spent: jax.Array, problem: Problem, z: Saddle,
            data: Tree, *, strategy: str = "vmap", microbatch: int = 32) -> Saddle:
    """A noisy mean of the problem's operator at z, or NaN once the budget is spent.

    For each player p with a clip norm,

        g_p = (sum_{i in B} clip(g_p(z; x_i), C_p) + N(0, (C_p z_p)^2 I)) / m,

    with B the sample that the mechanism describes, one for both players, and m the public batch
    size: n, q n or b, never the realised one. A joint clip scales both players' g by one factor.

    Args:
      key: root key of the run, a secret. Sample and noise are functions of it and `spent`
        alone, so a resumed run repeats exactly what it had released. For the same reason, never
        release at two different points with the same key and `spent`.
      mechanism: what was promised to the accountant.
      spent: number of releases already made, int32 `[]`.
      problem: only `problem.operator` is used.
      z: the point to query.
      data: leaves `[n, ...]`, n = `mechanism.query.population`.
      strategy: how the clipped sum is computed, see `clipped_sum`; never what it is.
      microbatch: see `clipped_sum`.

    Returns:
      A `Saddle` like z in at least float32; zeros for a player without a clip norm; NaN everywhere
      if `mechanism.times` releases were made before, or if a Poisson sample outgrew its capacity.

    Raises:
      ValueError: while tracing, if a leaf of `data` does not have n rows, or if the noise
        multipliers were never set.
    """
    query = mechanism.query
    if not isinstance(query, Query):
        raise ValueError(f"release answers a Query, got {type(query).__name__}: use the algorithm "
                         "that this mechanism belongs to.")
    noise_multiplier = check_noise(query)
    key, sample, data = _sampled(key, query, spent, data)
    total = clipped_sum(problem.operator, query.clip, strategy=strategy, microbatch=microbatch,
                        joint=query.joint)(z, data, sample.valid)
    allowed = sample.fits & (spent < mechanism.times)

    def player(number: int, x: Tree, total: Tree, clip: Any, noise_multiplier: Any) -> Tree:
        if clip is None:
            return jax.tree.map(lambda a: jnp.where(allowed, jnp.zeros_like(a), jnp.nan), x)
        g = _blur(jax.random.fold_in(key, number), total, clip, noise_multiplier,
                  batch_size(query))
        return jax.tree.map(lambda a: jnp.where(allowed, a, jnp.nan), g)

    return Saddle(*map(player, (0, 1), z, total, query.clip, noise_multiplier))


def release_resolvent(key: jax.Array, mechanism: Repeat, spent: jax.Array, problem: Problem,
                      z: Saddle, data: Tree) -> Saddle:
    """A noisy proximal point of the problem's operator around z, or NaN once the budget is spent.

        v + N(0, (noise multiplier * displacement)^2 I),

    v the certified solution in W of G(u) = (1/m) sum_{i in B} F_i(u) + r(u) + prox (u - z), with r
    the public terms. It is found by operator extrapolation from P_W(z), which tells nothing but
    what was released before. Solution, noise and sum are float64 and the sum alone is rounded to
    the dtypes of z, so that no rounding of the solution escapes the noise. NaN also if the residual
    exceeds what the noise pays for: under the assumptions that the statement lists it cannot, and
    without them nothing is promised. The residual itself stays inside.

    Args:
      key: as in `release`.
      mechanism: repeats a `Resolvent` whose steps are set.
      spent: as in `release`.
      problem: `operator`, `public` (monotone) and `project` (on a convex W, Euclidean) are used;
        none may close over traced values, and the operator must keep float64.
      z: the centre, public or released before; it may lie outside W.
      data: as in `release`.

    Returns:
      A `Saddle` like z in at least float32, not projected.

    Raises:
      ValueError: as `release`; for a clipped operator that is assumed to be monotone; for an
        operator that answers in less than float64.
    """
    query = mechanism.query
    if not isinstance(query, Resolvent):
        raise ValueError(f"release_resolvent answers a Resolvent, got {type(query).__name__}.")
    if query.steps is None:
        raise ValueError("steps of the inner solver are not set: proximal.certified(query) sets "
                         "them.")
    if query.assumes == "monotone" and isinstance(problem.operator, ClippedOperator):
        raise ValueError("The operator is clipped, and clipping destroys monotonicity: use "
                         "assumes='lipschitz', or sanitise the records instead of the operator.")
    check_noise(query)
    key, sample, batch = _sampled(key, query, spent, data)
    allowed = sample.fits & (spent < mechanism.times)

    @in_float64
    def answer(words: jax.Array, query: Resolvent, z: Saddle, batch: Tree,
               valid: jax.Array | None) -> Saddle:
        query, wide = jax.tree.map(lambda x: x.astype(jnp.float64), (query, z))
        v, exact = _proximal_point(query, problem, wide, batch, valid)
        key = jax.random.wrap_key_data(words, impl=implementation)
        std = displacement(query) * query.noise_multiplier
        noise = gaussian(key, v, std)
        return jax.tree.map(lambda a, e, x: jnp.where(exact, a + e, jnp.nan).astype(
            at_least_float32(x.dtype)), v, noise, z)

    implementation = jax.random.key_impl(key)
    g = answer(jax.random.key_data(key), jax.tree.map(jnp.asarray, query), z, batch, sample.valid)
    return jax.tree.map(lambda a: jnp.where(allowed, a, jnp.nan), g)


def _proximal_point(query: Resolvent, problem: Problem, z: Saddle, batch: Tree,
                    valid: jax.Array | None) -> tuple[Saddle, jax.Array]:
    """The solution around z, float64, and whether it is certified."""
    assert query.steps is not None
    size, smooth = batch_size(query), batch_lipschitz(query) + query.prox
    bound = query.bound if query.assumes == "lipschitz" else jnp.inf
    total = clipped_sum(problem.operator, Saddle(bound, bound), joint=True)

    def operator(u: Saddle) -> Saddle:
        g = total(u, batch, valid)
        if any(x.dtype != jnp.float64 for x in jax.tree.leaves(g)):
            raise ValueError("The operator answers in less than float64 at a float64 point: "
                             "cast the record to the point's dtype, not the reverse.")
        g = jax.tree.map(lambda s, a, c: s / size + query.prox * (a - c), g, u, z)
        return g if problem.public is None else jax.tree.map(jnp.add, g, problem.public(u))

    u = operator_extrapolation(operator, problem.project, problem.project(z), lipschitz=smooth,
                               modulus=modulus(query), steps=query.steps)
    found = certify(operator, problem.project, u, lipschitz=smooth)
    exact = (found.residual <= query.slack * query.bound / size) & (modulus(query) > 0)
    return found.point, exact
