"""Random words from a key, as fast as its generator computes them."""

import math
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxminimax.base.tree import in_float64, materialise
from jaxminimax.base.types import PyTree

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


@jax.jit
def threefry(key: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Applies Threefry-2x32 with 20 rounds to counters (x, y), uint32 `[...]`; key uint32 `[2]`.

    The result equals that of JAX. The rounds are written out, because JAX has a loop on CPUs, which
    takes six times as long for the few words of a small release.

    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    return _cipher(lax, key, x, y)


def _cipher(ops: Any, key: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Computes `threefry` by functions of `jax.lax`, traced faster than operators, or NumPy's."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    x, y = x + keys[0], y + keys[1]
    for i in range(5):
        for turn in _ROTATIONS[i % 2]:
            x = ops.add(x, y)
            y = ops.bitwise_xor(ops.bitwise_or(ops.shift_left(y, np.uint32(turn)),
                                             ops.shift_right_logical(y, np.uint32(32 - turn))), x)
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x, y


@jax.jit
def rolled_threefry(key: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes `threefry` as a loop, quicker to compile, for branches that are seldom taken."""
    third = key[0] ^ key[1] ^ np.uint32(0x1BD11BDA)
    turns = jnp.asarray(np.array(_ROTATIONS, np.uint32))

    def step(i: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        x, y, *keys = carry
        for turn in turns[i % 2]:
            x = x + y
            y = ((y << turn) | (y >> (np.uint32(32) - turn))) ^ x
        return x + keys[0], y + keys[1] + jnp.asarray(i + 1, jnp.uint32), *keys[1:], keys[0]

    return lax.fori_loop(0, 5, step, (x + key[0], y + key[1], key[1], third, key[0]))[:2]


def _generator(key: jax.Array) -> str:
    generator = str(jax.random.key_impl(key))
    if generator not in ("threefry2x32", "rbg"):
        raise ValueError(f"Noise needs a key of threefry2x32 or rbg, got {generator}: "
                         "use secret_key().")
    if key.shape != ():
        raise ValueError(f"One key is used up at a time, got an array of shape {key.shape}: "
                         "vmap over keys.")
    return generator


def fold_in(key: jax.Array, number: jax.typing.ArrayLike, kind: int = 0) -> jax.Array:
    """The key of a kind and a number, both below 2^32; `jax.random.fold_in`'s for kind 0.

    It is Threefry of the counter (kind, number), on each half of a key of rbg. For a given key that
    is a permutation of the counters, so different kinds or numbers never have the same key.
    """
    generator, data = _generator(key), jax.random.key_data(key)
    if generator == "rbg" and kind == 0:
        return jax.random.fold_in(key, number)
    counter = jnp.uint32(kind), jnp.asarray(number, jnp.uint32)
    halves = [jnp.stack(threefry(half, *counter)) for half in data.reshape(-1, 2)]
    return jax.random.wrap_key_data(jnp.concatenate(halves), impl=generator)


def fold_in_on_host(key: jax.Array, number: int) -> jax.Array:
    """Returns `fold_in(key, number)`, of threefry by NumPy: JAX would compile a program for it."""
    generator = _generator(key)
    if generator == "rbg" or isinstance(key, jax.core.Tracer):
        return fold_in(key, number)
    counter = np.array([[0], [number]], np.uint32)
    ops = types.SimpleNamespace(
        add=np.add, bitwise_or=np.bitwise_or, bitwise_xor=np.bitwise_xor,
        shift_left=np.left_shift, shift_right_logical=np.right_shift)
    words = _cipher(ops, np.asarray(jax.random.key_data(key)), *counter)
    return jax.random.wrap_key_data(jax.device_put(np.concatenate(words)), impl=generator)


def random_words(key: jax.Array, shape: tuple[int, ...], part: int = 0,
                 rolled: bool = False) -> jax.Array:
    """Draws independent uniform uint32 numbers; uses this part of the key up.

    `jax.random.bits` keeps one of the two words of threefry for a counter, and this keeps both.

    Args:
      key: a single key.
      shape: the shape of the result, at most 2^32 - 2 words.
      part: 0 or 1; numbers of both are independent.
      rolled: the same numbers by a loop, slower and quicker to compile.

    Raises:
      ValueError: for a generator other than threefry2x32 and rbg ("unsafe_rbg" folds numbers into
        keys so that the same noise comes up again), for several keys, for too many words.
    """
    size = math.prod(shape)
    # of fewer words, passes over rows cost more than they save
    if not (rolled or size < 2**12) and _generator(key) == "threefry2x32":
        return _many_words(jax.random.key_data(key), size, part).reshape(shape)
    return jnp.concatenate(word_pairs(key, ((size + 1) // 2,), part, rolled))[:size].reshape(shape)


def words_at(key: jax.Array, size: jax.Array | int, place: jax.Array) -> jax.Array:
    """The words at these places of `random_words(key, (size,))`, of a key of threefry.

    The size, an even number, may be traced, so that one program serves many; places from it on have
    words that no draw of that size has.
    """
    half = size // 2
    second = place >= half
    x, y = threefry(jax.random.key_data(key), jnp.where(second, place - half, place).astype(
        jnp.uint32), jnp.zeros(place.shape, jnp.uint32))
    return jnp.where(second, y, x)


def _many_words(data: jax.Array, size: int, part: int) -> jax.Array:
    """`random_words` of many, for which the cipher is computed once for both words of a counter.

    Compiled loops make one array, and would repeat the cipher for another one. So both words are in
    one array, side by side in rows of two vectors; the first ones of all rows come first. Counters
    beyond the last one fill up a row, and nobody reads their words.
    """
    count = (size + 1) // 2

    def interleaved() -> jax.Array:
        lanes = 16  # words in a row
        row, lane = (lax.broadcasted_iota(jnp.uint32, (-(-count // lanes), lanes), axis)
                     for axis in range(2))
        x, y = threefry(data, row * lanes + lane + np.uint32(part << 31), jnp.zeros_like(row))
        second = lax.broadcasted_iota(jnp.int32, (len(row), 2, lanes), 1) == 1
        return jnp.where(second, y[:, None], x[:, None])

    words = materialise(interleaved)
    # copied row by row, in shapes of whole vectors: flat, a loop would copy one word at a time
    halves = materialise(lambda: jnp.stack([words[:, 0], words[:, 1]])).reshape(2, -1)
    return halves[:, :count].reshape(-1)[:size]


def word_pairs(key: jax.Array, shape: tuple[int, ...], part: int = 0,
               rolled: bool = False) -> tuple[jax.Array, jax.Array]:
    """Draws two arrays of `random_words`; reading both at one place costs as much as one.

    (A compiler repeats the cipher in every reader that it fuses.)
    """
    generator, size = _generator(key), math.prod(shape)
    if size >= 2**31:
        raise ValueError(f"{2 * size} random words are asked for, a key has less than 2^32.")
    if generator == "rbg":
        x, y = _device_words(jax.random.key_data(fold_in(key, part)), (2, *shape))
        return x, y
    count = (lax.iota(jnp.uint32, size) + np.uint32(part << 31)).reshape(shape)
    cipher = rolled_threefry if rolled else threefry
    return cipher(jax.random.key_data(key), count, jnp.zeros_like(count))


def _device_words(data: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    @jax.custom_batching.sequential_vmap  # or all lanes would be given numbers of the first key
    def draw(data: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(data, impl="rbg")
        return jax.random.bits(key, shape, jnp.uint32)

    return draw(data)


def threefry_key(key_data: jax.Array) -> jax.Array:
    """Returns the key that a user's function draws from, of threefry for every generator.

    Under a vmap, rbg would give every record numbers that depend on its row in a batch.
    """
    return jax.random.wrap_key_data(key_data, impl="threefry2x32")


def with_key_in_float64(function: Callable[..., PyTree], key: jax.Array, *args: PyTree) -> PyTree:
    """Calls `function(key, *args)` by `in_float64`, and passes the key as its words."""
    generator = jax.random.key_impl(key)

    @in_float64
    def wide(words: jax.Array, *args: PyTree) -> PyTree:
        return function(jax.random.wrap_key_data(words, impl=generator), *args)

    return wide(jax.random.key_data(key), *jax.tree.map(jnp.asarray, args))
