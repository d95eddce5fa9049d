"""Noisy counts of the records within their clip norms, and the clip norms that follow them.

`mechanism.query` has the law and the proof; a count is an integer of the release's own sample.
"""

import jax
import jax.numpy as jnp

from jaxminimax.base.random_bits import fold_in
from jaxminimax.base.types import Saddle
from jaxminimax.mechanism import Query, batch_size, rows_read
from jaxminimax.mechanism.query import REACH, count_grid, count_multiplier
from jaxminimax.noise import floored_normal

_COUNTS = 3  # what a release's noise key is folded with, beside those of `noising` and of `sums`


def reachable(query: Query, clip: Saddle) -> Saddle:
    """Clip norms of a state, float32 `[]`; NaN for one that no release can have led to.

    Of a tiny norm the noise would vanish where the sum does not.
    """
    def one(norm: jax.Array, start: jax.Array) -> jax.Array:
        low, high = _range(start)
        norm = jnp.asarray(norm, jnp.float32)
        return jnp.where((norm >= low) & (norm <= high), norm, jnp.nan)

    return jax.tree.map(one, clip, query.clip)


def _range(start: jax.typing.ArrayLike) -> tuple[jax.Array, jax.Array]:
    """The smallest and the largest norm that may follow the first one."""
    start = jnp.asarray(start, jnp.float32)
    return start / REACH, start * REACH


def followed(key: jax.Array, query: Query, clip: Saddle, within: Saddle) -> Saddle:
    """The clip norms after a release.

    Args:
      key: of the release's noise.
      query: the description.
      clip: norms of this release.
      within: per player, records within the norm less longer ones, int32 `[]`; not released.

    Returns:
      Per player, float32 `[]`: C exp(-rate (b - quantile)), b the noisy part of the records within.
    """
    adaptive = query.adaptive
    assert adaptive is not None
    z = count_multiplier(query)
    units, bits = count_grid(z, rows_read(query))
    number = adaptive.counts(query)
    drawn = floored_normal(fold_in(key, _COUNTS), number, bits, z != 0)

    def one(start: jax.Array, norm: jax.Array, quantile: jax.Array, count: jax.Array,
            noise: jax.Array) -> jax.Array:
        loud = (units * count + noise).astype(jnp.float32) + 0.5  # the noise is a floor
        noisy = jnp.where(z == 0, count.astype(jnp.float32), loud / units)
        part = 0.5 + noisy / (2 * batch_size(query))
        moved = norm * jnp.exp(-adaptive.rate * (part - quantile))
        new = jnp.clip(moved, *_range(start))
        return jnp.where(units > 0, new, jnp.nan).astype(jnp.float32)

    players = [k for k, norm in enumerate(query.clip) if norm is not None]
    made: list[jax.Array | None] = [None, None]
    for place, k in enumerate(players):
        at = 0 if query.joint else place  # one count for both
        made[k] = one(query.clip[k], clip[k], adaptive.quantile[players[at]],
                      within[players[at]], drawn[at])
    return Saddle(*made)
