"""A planted generator whose numbers lie on a grid, and the attack that must see it."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from benchmarks.privacy.attacks import wide as wide_attack
from benchmarks.privacy.mutants.detectors import KEY, Finding
from jaxminimax import Saddle


def naive_noise(_: Any) -> Any:
    """Sums of floats plus the textbook's Box-Muller numbers."""
    def normal(key: jax.Array, like: jax.Array) -> jax.Array:
        u, angle = jax.random.uniform(key, (2, (like.size + 1) // 2), like.dtype)
        radius, angle = jnp.sqrt(-2 * jnp.log1p(-u)), 2 * jnp.pi * angle
        return jnp.concatenate([radius * jnp.cos(angle), radius * jnp.sin(angle)])[: like.size]

    def changed(key: jax.Array, sums: Any, scale: Saddle, size: Any, exact: bool) -> Saddle:
        def player(key: jax.Array, s: Any, plain: Any) -> Any:
            flat, as_tree = ravel_pytree(plain)
            return as_tree((flat + s.stddev * normal(key, flat)) / size)

        return Saddle(*(None if s is None else player(k, s, x) for k, s, x in zip(
            jax.random.split(key), scale, sums.floats, strict=True)))

    return changed


def grids() -> Finding:
    """The lower bound on epsilon that grids in float64 noise give; the limit is the claimed one."""
    with jax.enable_x64(True):
        result = wide_attack.grids(KEY, 4000, jnp.float64)
    return Finding(result.epsilon_lower, result.epsilon_claimed)
