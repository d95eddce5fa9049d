"""A mixture on a ring to show generators on, and how near their samples come to it."""

import jax
import jax.numpy as jnp

from jaxminimax.base import checks


def ring(key: jax.Array, count: int, *, modes: int = 8, spread: float = 0.1) -> jax.Array:
    """A mixture of Gaussians whose centres lie on the unit circle, `[count, 2]`."""
    checks.count("count", count)
    checks.number("spread", spread, low=0.0)
    one, two = jax.random.split(key)
    centres = ring_centres(modes)[jax.random.randint(one, (count,), 0, modes)]
    return centres + spread * jax.random.normal(two, (count, 2))


def ring_centres(modes: int = 8) -> jax.Array:
    """The centres of `ring`, `[modes, 2]`."""
    checks.count("modes", modes)
    angle = 2 * jnp.pi * jnp.arange(modes) / modes
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)], 1)


def sliced_wasserstein(key: jax.Array, made: jax.Array, data: jax.Array,
                       directions: int = 128) -> jax.Array:
    """Reads the data; not private. Mean Wasserstein-1 distance over random directions.

    On a line the distance of two samples of one size is the mean absolute difference of their order
    statistics; samples of different sizes are compared at the quantiles of the smaller one. Two
    samples of one law are about (sizes)^(-1/2) apart.

    Args:
      key: of the directions, uniform on the unit sphere.
      made: `[m, d]`.
      data: `[n, d]`.
      directions: how many.
    """
    checks.count("directions", directions)
    along = jax.random.normal(key, (directions, made.shape[1]), made.dtype)
    along = along / jnp.linalg.norm(along, axis=1, keepdims=True)
    count = min(len(made), len(data))
    levels = (jnp.arange(count) + 0.5) / count

    def quantiles(x: jax.Array, u: jax.Array) -> jax.Array:
        return jnp.quantile(x @ u, levels)

    return jnp.mean(jax.lax.map(
        lambda u: jnp.mean(jnp.abs(quantiles(made, u) - quantiles(data, u))), along))


def modes_covered(made: jax.Array, centres: jax.Array, *, within: float,
                  share: float = 0.2) -> tuple[jax.Array, jax.Array]:
    """How much of a known mixture is generated; reads no data, only the mixture's centres.

    Args:
      made: generated points `[m, d]`.
      centres: of equally likely modes, `[p, d]`.
      within: radius around a centre that belongs to its mode.
      share: of the fair share m / p that makes a mode count as covered.

    Returns:
      The number of modes covered, and the share of points within a mode.
    """
    away = jnp.linalg.norm(made[:, None] - centres[None], axis=2)
    inside = jnp.min(away, 1) <= within
    hits = jnp.zeros(len(centres)).at[jnp.argmin(away, 1)].add(inside.astype(made.dtype))
    return jnp.sum(hits >= share * len(made) / len(centres)), jnp.mean(inside.astype(made.dtype))
