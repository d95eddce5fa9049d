"""The weight of each example in a clipped sum: min(1, C / norm), and 0 where it is absent."""

import functools

import jax
import jax.numpy as jnp

from jaxminimax.base.tree import at_least_float32, squared, sum_rows, unit
from jaxminimax.base.types import PyTree, Saddle


def _longest(dtype: jnp.dtype) -> float:
    """Examples that count are shorter, in clip norms: 2^88 in float32, 2^984 in float64."""
    return 2.0**-38 / float(jnp.finfo(dtype).tiny)


def norm(g: PyTree) -> jax.Array:
    """Norm of each example, rounded up where squares vanish, `[b]`.

    One plain pass: squares that overflow make it infinite, which is a weight of 0, and what
    vanishing ones could have been is added. (Choosing between two sums by whether one overflowed is
    no alternative: it was rewritten by a compiler, and an example far above the clip norm came out
    unclipped.)
    """
    leaves = [x for x in jax.tree.leaves(g) if x.size]
    if not leaves:
        return jnp.zeros(())  # for every example
    dtype = at_least_float32(jnp.result_type(*leaves))
    rows = [x.astype(dtype).reshape(x.shape[0], -1) for x in leaves]
    squares = [squared(x) for x in rows]
    while len(squares) > 1:  # as a tree: of a running sum the 128th rounding exceeds the margin
        squares = [functools.reduce(jnp.add, squares[k: k + 2]) for k in range(0, len(squares), 2)]
    return jnp.sqrt(squares[0])


def joint_ratio(ratio: Saddle) -> Saddle:
    """Each player's ratio replaced by the norm of both, without overflow."""
    # (r_w^2 + r_v^2)^(1/2) = s ((r_w / s)^2 + (r_v / s)^2)^(1/2), s the larger one
    largest = jnp.maximum(*ratio)
    scale = unit(largest)
    squares = jnp.square(ratio.w / scale) + jnp.square(ratio.v / scale)
    # not below the larger one, however the root is rounded
    both = jnp.maximum(scale * jnp.sqrt(squares), largest)
    return Saddle(both, both)


def widened(ratio: jax.Array, g: PyTree) -> jax.Array:
    """Enlarges `ratio` by the rounding of leaves that are narrower than it.

    `weight` allows for the rounding, and the range, of its own type only.
    """
    # a norm of float32 leaves in float64 has the rounding errors of float32
    types = [at_least_float32(x.dtype) for x in jax.tree.leaves(g)]
    coarse = max((float(jnp.finfo(t).eps) for t in types), default=0.0)
    if coarse <= jnp.finfo(ratio.dtype).eps:
        return ratio
    # infinite beyond the narrow type's range, which is a weight of 0
    return jnp.where(ratio < min(map(_longest, types)), ratio * (1.0 + 32 * coarse), jnp.inf)


def weight(ratio: jax.Array, present: jax.Array) -> jax.Array:
    """The weight min(1, clip / norm) of each example, 0 for absent ones.

    A margin of 32 rounding errors keeps the clipped norm at or below the clip norm. Examples longer
    than 2^88 clip norms (`_longest`) count as absent: entries of one of their factors, times so
    small a weight, would be subnormal and vanish one by one, and what they cancel would stay.
    """
    margin = 1.0 - 32 * jnp.finfo(ratio.dtype).eps
    counts = present & (ratio >= 0) & (ratio < _longest(ratio.dtype))  # not for a NaN clip norm
    return jnp.where(counts, jnp.minimum(1.0, margin / ratio), 0.0).astype(ratio.dtype)


def weighted(g: PyTree, weight: jax.Array, finite: bool) -> list[tuple[jax.Array, jax.Array]]:
    """Weights and rows of each leaf, in at least float32, finite.

    Args:
      g: leaves `[b, ...]`.
      weight: `[b]`; 0 for examples whose norm is not finite.
      finite: whether the norms of all examples are; else rows of weight 0 are replaced by zeros.
    """
    rows = []
    for x in jax.tree.leaves(g):
        x = x.astype(at_least_float32(x.dtype))
        scale = weight.astype(x.dtype)
        if not finite:  # 0 * NaN is NaN
            x = jnp.where(scale.reshape(-1, *[1] * (x.ndim - 1)) > 0, x, 0)
        rows.append((scale, x))
    return rows


def weighted_sum(g: PyTree, weight: jax.Array) -> PyTree:
    """Adds up weight_i g_i over `[b, ...]` leaves, in at least float32; weight 0 silences NaN."""

    def leaf(x: jax.Array) -> jax.Array:
        x = x.astype(at_least_float32(x.dtype))
        if not x.size:
            return jnp.zeros(x.shape[1:], x.dtype)
        scale = weight.astype(x.dtype)
        rows = x.reshape(x.shape[0], -1)
        return sum_rows(scale, jnp.where(scale[:, None] > 0, rows, 0)).reshape(x.shape[1:])

    return jax.tree.map(leaf, g)
