"""The one door to the data: sample, clip per example, add, blur, normalise.

Nothing else in the library's algorithms touches `data`. The standard deviation of the noise is one
product, clip * noise multiplier, of the numbers that the accountant reads.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax._tree import at_least_float32
from jaxminimax._types import Problem, Saddle, Tree
from jaxminimax.gradients import clipped_sum
from jaxminimax.mechanism import FixedSize, Repeat, batch_size, check_noise
from jaxminimax.noise import gaussian
from jaxminimax.sampling import draw

# What keys are folded with: releases keep apart from whatever else is made from the run's key
# (split(key)[i] is fold_in(key, i)), and samples from noise.
_RELEASES, _SAMPLE, _NOISE = 0x6D6D78, 0, 1


def _blur(key: jax.Array, total: Tree, clip: jax.typing.ArrayLike,
          noise_multiplier: jax.typing.ArrayLike, size: float) -> Tree:
    # an infinite clip norm without noise is no noise; every other doubtful product stays NaN
    clip, noise_multiplier = (jnp.asarray(x, at_least_float32(jnp.asarray(x).dtype))
                              for x in (clip, noise_multiplier))
    std = jnp.where(noise_multiplier == 0, 0.0, clip * noise_multiplier)
    noise = gaussian(key, total, std)
    return jax.tree.map(lambda x, e: (x + e) / jnp.asarray(size, x.dtype), total, noise)


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
    noise_multiplier = check_noise(query)
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
    total = clipped_sum(problem.operator, query.clip, strategy=strategy, microbatch=microbatch,
                        joint=query.joint)(z, data, sample.valid)
    key = jax.random.fold_in(key, _NOISE)
    allowed = sample.fits & (spent < mechanism.times)

    def player(number: int, x: Tree, total: Tree, clip: Any, noise_multiplier: Any) -> Tree:
        if clip is None:
            return jax.tree.map(lambda a: jnp.where(allowed, jnp.zeros_like(a), jnp.nan), x)
        g = _blur(jax.random.fold_in(key, number), total, clip, noise_multiplier,
                  batch_size(query))
        return jax.tree.map(lambda a: jnp.where(allowed, a, jnp.nan), g)

    return Saddle(*map(player, (0, 1), z, total, query.clip, noise_multiplier))
