"""Random words from a key, as fast as its generator gives them."""

import math

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32


def words(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Independent uniform uint32 numbers; uses the key up.

    `jax.random.bits` keeps one of the two words that threefry makes of a counter, this keeps both.
    """
    size = math.prod(shape)
    if jax.random.key_impl(key) != "threefry2x32":
        return jax.random.bits(key, shape, jnp.uint32)
    if size >= 2**32:
        raise ValueError(f"{size} random words are asked for, a key has less than 2^32.")
    if not size:
        return jnp.zeros(shape, jnp.uint32)
    count = jax.lax.iota(jnp.uint32, size + size % 2)
    return threefry_2x32(jax.random.key_data(key), count)[:size].reshape(shape)
