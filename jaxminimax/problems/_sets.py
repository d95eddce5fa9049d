"""Convex sets with a projection, a linear minimiser and a diameter."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxminimax.base import checks
from jaxminimax.base.types import PyTree, Saddle


class Set(NamedTuple):
    """A compact convex set.

    Attributes:
      project: Euclidean projection.
      support: `g -> argmin_{u in W} <g, u>`.
      diameter: D, the largest distance of two points.
      reach: the largest norm of a point.

    Examples:
        >>> unit = jmm.problems.ball(1.0)
        >>> print(unit.project(jnp.array([3.0, 4.0])).round(3), unit.diameter)
        [0.6 0.8] 2.0
    """

    project: Callable[[PyTree], PyTree]
    support: Callable[[PyTree], PyTree]
    diameter: float
    reach: float


def ball(radius: float) -> Set:
    """||u|| <= radius, the norm being that of a whole pytree.

    Examples:
        >>> print(jmm.problems.ball(2.0).project(jnp.array([3.0, 4.0])).round(3))
        [1.2 1.6]
    """
    checks.number("radius", radius, low=0.0)

    def support(g):
        norm = optax.tree.norm(g)
        scale = jnp.where(norm > 0, -radius / jnp.where(norm > 0, norm, 1), 0)
        return jax.tree.map(lambda x: scale.astype(x.dtype) * x, g)

    return Set(lambda u: optax.projections.projection_l2_ball(u, radius), support, 2 * radius,
               float(radius))


def box(low: np.ndarray, high: np.ndarray) -> Set:
    """Low <= u <= high, arrays `[d]`.

    Examples:
        >>> unit = jmm.problems.box(np.zeros(2), np.ones(2))
        >>> unit.project(jnp.array([0.5, 7.0])).tolist(), round(unit.diameter, 3)
        ([0.5, 1.0], 1.414)
    """
    low, high = (np.array(x, np.float64) for x in (low, high))
    if low.shape != high.shape or not np.all(low < high) or not np.all(np.isfinite(high - low)):
        raise ValueError(f"low must be below high, arrays of one shape, got {low!r} and {high!r}.")

    def support(g):
        return jnp.where(g > 0, low.astype(g.dtype), high.astype(g.dtype))

    return Set(lambda u: jnp.clip(u, low.astype(u.dtype), high.astype(u.dtype)), support,
               float(np.linalg.norm(high - low)),
               float(np.linalg.norm(np.maximum(abs(low), abs(high)))))


def simplex() -> Set:
    """The probability vectors of any length `[d]`.

    Examples:
        >>> jmm.problems.simplex().project(jnp.array([1.0, 1.0])).tolist()
        [0.5, 0.5]
    """
    def support(g):
        return jax.nn.one_hot(jnp.argmin(g), g.shape[0], dtype=g.dtype)

    return Set(optax.projections.projection_simplex, support, math.sqrt(2.0), 1.0)


def product(w: Set, v: Set) -> Set:
    """W x V, as a set of `Saddle` points.

    Examples:
        >>> both = jmm.problems.product(jmm.problems.ball(1.0), jmm.problems.simplex())
        >>> z = both.project(Saddle(jnp.array([2.0, 0.0]), jnp.array([1.0, 1.0])))
        >>> z.w.tolist(), z.v.tolist()
        ([1.0, 0.0], [0.5, 0.5])
    """
    return Set(lambda z: Saddle(w.project(z.w), v.project(z.v)),
               lambda g: Saddle(w.support(g.w), v.support(g.v)),
               math.hypot(w.diameter, v.diameter), math.hypot(w.reach, v.reach))
