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
    """

    project: Callable[[PyTree], PyTree]
    support: Callable[[PyTree], PyTree]
    diameter: float
    reach: float


def ball(radius: float) -> Set:
    """||u|| <= radius, the norm being that of a whole pytree."""
    checks.number("radius", radius, low=0.0)

    def support(g):
        norm = optax.tree.norm(g)
        scale = jnp.where(norm > 0, -radius / jnp.where(norm > 0, norm, 1), 0)
        return jax.tree.map(lambda x: scale.astype(x.dtype) * x, g)

    return Set(lambda u: optax.projections.projection_l2_ball(u, radius), support, 2 * radius,
               float(radius))


def box(low: np.ndarray, high: np.ndarray) -> Set:
    """Low <= u <= high, arrays `[d]`."""
    low, high = (np.array(x, np.float64) for x in (low, high))
    if low.shape != high.shape or not np.all(low < high) or not np.all(np.isfinite(high - low)):
        raise ValueError(f"low must be below high, arrays of one shape, got {low!r} and {high!r}.")

    def support(g):
        return jnp.where(g > 0, low.astype(g.dtype), high.astype(g.dtype))

    return Set(lambda u: jnp.clip(u, low.astype(u.dtype), high.astype(u.dtype)), support,
               float(np.linalg.norm(high - low)),
               float(np.linalg.norm(np.maximum(abs(low), abs(high)))))


def simplex() -> Set:
    """The probability vectors of any length `[d]`."""
    def support(g):
        return jax.nn.one_hot(jnp.argmin(g), g.shape[0], dtype=g.dtype)

    return Set(optax.projections.projection_simplex, support, math.sqrt(2.0), 1.0)


def product(w: Set, v: Set) -> Set:
    """W x V, as a set of `Saddle` points."""
    return Set(lambda z: Saddle(w.project(z.w), v.project(z.v)),
               lambda g: Saddle(w.support(g.w), v.support(g.v)),
               math.hypot(w.diameter, v.diameter), math.hypot(w.reach, v.reach))
