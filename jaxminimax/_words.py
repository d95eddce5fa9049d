"""Random words from a key, as fast as its generator gives them."""

import math

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32


def words(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Independent uniform uint32 numbers; uses the key up.

    `jax.random.bits` keeps one of the two words that threefry makes of a counter, this keeps both.

    Raises:
      ValueError: for a generator other than threefry2x32 and rbg ("unsafe_rbg" folds numbers into
        keys so that the same noise comes up again), for several keys, for 2^32 words or more.
    """
    generator, size = jax.random.key_impl(key), math.prod(shape)
    if generator not in ("threefry2x32", "rbg"):
        raise ValueError(f"Noise needs a key of threefry2x32 or rbg, got {generator}: "
                         "use secret_key().")
    if key.shape != ():
        raise ValueError(f"One key is used up at a time, got an array of shape {key.shape}: "
                         "vmap over keys.")
    if size >= 2**32:
        raise ValueError(f"{size} random words are asked for, a key has less than 2^32.")
    if not size:
        return jnp.zeros(shape, jnp.uint32)
    if generator == "rbg":
        return _of_the_device(jax.random.key_data(key), shape)
    count = jax.lax.iota(jnp.uint32, size + size % 2)
    return threefry_2x32(jax.random.key_data(key), count)[:size].reshape(shape)


def _of_the_device(data: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    @jax.custom_batching.sequential_vmap  # or all lanes would be given numbers of the first key
    def draw(data: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(data, impl="rbg")
        return jax.random.bits(key, shape, jnp.uint32)

    return draw(data)
