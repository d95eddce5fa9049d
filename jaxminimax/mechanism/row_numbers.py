"""Numbers of rows beyond 32 bits: two words each, drawn on the host, for data that stay there.

Row number i < 2^62 is low + 2^31 high, low and high int32. Devices index no data by them: they get
the rows themselves, in the order of the sample, and use both words for its mark alone
(`host_data.mark`). Below `NARROW` rows there is one word, as ever.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.tree import in_float64

NARROW = 2**30  # with fewer rows than these, a number is one word
WIDE = 2**62


def scaled(words: jax.Array, population: int) -> tuple[jax.Array, jax.Array]:
    """floor(U n / 2^96) for U of 96 random bits: low and high words, int32 `[c]`.

    Word by word, the lowest first: c <- floor((word n + c) / 2^32) keeps c < n, and nested floors
    are the floor of the whole. With n = n_1 2^32 + n_0 < 2^62 and c alike, t = word n_0 + c_0 is
    below 2^64 and u = word n_1 + c_1 + floor(t / 2^32) below 2^63, so 64 bits hold both, and the
    new c is u.

    Args:
      words: uint32 `[3, c]`.
      population: n <= 2^62.
    """
    @in_float64
    def multiply(words: jax.Array) -> tuple[jax.Array, jax.Array]:
        low, high = jnp.uint64(population & (2**32 - 1)), jnp.uint64(population >> 32)
        carry = jnp.zeros(words.shape[1:], jnp.uint64)
        for word in words.astype(jnp.uint64):
            total = word * low + (carry & np.uint64(2**32 - 1))
            carry = word * high + (carry >> np.uint64(32)) + (total >> np.uint64(32))
        return _words(carry)

    return multiply(words)


def consecutive(number: jax.Array, batch: int) -> tuple[jax.Array, jax.Array]:
    """Rows k b, ..., (k + 1) b - 1 < 2^62: low and high words, int32 `[b]`.

    Args:
      number: k, int32 `[]`.
      batch: b.
    """
    @in_float64
    def rows(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        first = number.astype(jnp.uint64) * np.uint64(batch)
        return _words(first + jnp.arange(batch, dtype=jnp.uint64))

    return rows(number)


def _words(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    return ((rows & np.uint64(2**31 - 1)).astype(jnp.int32),
            (rows >> np.uint64(31)).astype(jnp.int32))


def joined(low: np.ndarray, high: np.ndarray | None) -> np.ndarray:
    """The numbers of two words, int64; of one, as they are."""
    return low if high is None else low + (high.astype(np.int64) << 31)
