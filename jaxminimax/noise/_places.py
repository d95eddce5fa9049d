"""Where the set bits are."""

import jax
import jax.numpy as jnp
import numpy as np

_BLOCK = 32


def places(flags: jax.Array, rank: jax.Array) -> jax.Array:
    """Of the set bits with these ranks, int32 `[c]`; anything for ranks beyond the last.

    Bit i of word j, of n, is place i n + j; ranks count by words, then by bits.

    Args:
      flags: uint32 `[n]`.
      rank: int32 `[c]`.
    """
    count = jax.lax.population_count(flags).astype(jnp.int32)
    upto = _running_sums(count)
    word = jnp.searchsorted(upto, rank, side="right").astype(jnp.int32)
    word = jnp.minimum(word, flags.shape[0] - 1)
    return _bit(flags[word], rank - (upto - count)[word]) * flags.shape[0] + word


def _bit(word: jax.Array, rank: jax.Array) -> jax.Array:
    """Number of the set bit of that rank: whether it is in the upper half, and so on."""
    bit = jnp.zeros_like(rank)
    for step in (16, 8, 4, 2, 1):
        below = jax.lax.population_count(word & ((1 << step) - 1)).astype(jnp.int32)
        upper = rank >= below
        rank = jnp.where(upper, rank - below, rank)
        word = jnp.where(upper, word >> step, word)
        bit = jnp.where(upper, bit + step, bit)
    return bit


def _running_sums(x: jax.Array) -> jax.Array:
    """Of the numbers up to and including each, `[n]`; block by block, which takes few programs."""
    n = x.shape[0]
    blocks = jnp.pad(x, (0, -n % _BLOCK)).reshape(-1, _BLOCK)
    upto = np.tri(_BLOCK, dtype=bool)
    sums = jnp.sum(jnp.where(upto[None], blocks[:, None, :], 0), -1, dtype=x.dtype)
    if len(blocks) > 1:
        before = _running_sums(sums[:, -1]) - sums[:, -1]
        sums = sums + before[:, None]
    return sums.reshape(-1)[:n]
