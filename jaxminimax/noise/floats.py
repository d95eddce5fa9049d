"""Gaussian noise in floating point, as a pure function of a key.

Box-Muller on threefry words: the radius takes 64 random bits a pair, so that the tails reach
9.4 standard deviations (the inverse-error-function generator of `jax.random.normal` stops near 5.4
in float32, which at delta = 1e-6 and many coordinates is not far enough out), the angle 32 (64 for
float64), and both outputs of the transform are used. Samples are floating-point numbers, coarse at
their last bits: attacks on those are outside the threat model (integer noise has none).
"""

import math
import os

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks, types
from jaxminimax.base.random_bits import random_words, word_pairs
from jaxminimax.base.tree import at_least_float32, float_dtype, materialise, refuse_complex

__all__ = ["gaussian", "secret_key", "standard_normal"]

# Noise is a part in four million larger than described, for what float32 descriptions lose.
ROUNDING_MARGIN = 1 + 2.0**-22


def secret_key(generator: str = "threefry2x32") -> jax.Array:
    """A fresh key from the operating system's generator, for one run.

    (`jax.random.key(seed)` keeps 32 bits of its seed unless 64-bit types are enabled; a seed that
    can be guessed gives the noise away.)

    Args:
      generator: "threefry2x32" (a key of 64 bits) or "rbg" (128 bits), which uses the generator of
        the device: meant for GPUs and TPUs (not measured there), slower on CPUs, and weaker, since
        its numbers are not those of a cipher everywhere. They are also others on other devices and
        under other compilers, so `fit` takes no such key together with a checkpoint: a round that
        is repeated after a crash must repeat its noise. Vmapped, lanes draw in turn.

    Returns:
      A typed key, `[]`.

    Raises:
      ValueError: for another generator.

    Examples:
        >>> key = jmm.noise.secret_key()
        >>> key.shape
        ()
    """
    checks.one_of("generator", generator, ("threefry2x32", "rbg"))
    drawn = np.frombuffer(os.urandom(8 if generator == "threefry2x32" else 16), np.uint32)
    return jax.random.wrap_key_data(jax.device_put(drawn), impl=generator)


def standard_normal(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Independent N(0, 1) numbers of float32 or float64.

    Args:
      key: a typed key of threefry2x32 or rbg, used up by this draw.
      shape: of the result.
      dtype: float32 or float64, the type of the result.

    Returns:
      Numbers of that shape and type.

    Raises:
      ValueError: for keys and sizes as in `random_bits.random_words`.

    Examples:
        >>> jmm.noise.standard_normal(jax.random.key(0), (3,), np.dtype(np.float32)).shape
        (3,)
    """
    size = math.prod(shape)
    half = (size + 1) // 2

    def drawn() -> tuple[jax.Array, jax.Array]:
        radius = jnp.sqrt(2.0 * _minus_log(*word_pairs(key, (half,)), dtype))
        if dtype == jnp.float32:
            cos, sin = _circle(random_words(key, (half,), part=1))
        else:
            cos, sin = _fine_circle(*word_pairs(key, (half,), part=1))
        return radius * cos, radius * sin

    return jnp.concatenate(materialise(drawn))[:size].reshape(shape)


def _minus_log(high: jax.Array, low: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Computes -log u, u in (0, 1) of 64 bits.

    A float keeps the leading bits of u, so that large results are fine. From 1/2 on, v = 1 - u is
    taken, by complements, and -log(1 - v): small results are as fine. (A float near 1 is a multiple
    of 2^-24, and the smallest results would be 0, 2^-24, 2 2^-24, ...)
    """
    upper = high >= np.uint32(2**31)
    high, low = (jnp.where(upper, ~word, word) for word in (high, low))
    v = (high.astype(dtype) * 2.0**32 + low.astype(dtype) + 0.5) * 2.0**-64
    return -jnp.where(upper, jnp.log1p(-v), jnp.log(v))


def _circle(turn: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of a uniform angle, float32.

    The upper two bits say which quarter of the circle, the others, read as a number with a sign, an
    angle t within an eighth of a turn of that quarter's start (never 0, so that no noise is). There
    a few terms of Taylor's series are as good as the type. (General cosines reduce their argument
    first, which costs more than all the rest of the noise.)
    """
    signed = jax.lax.bitcast_convert_type(turn << 2, jnp.int32)
    t = (2 * jnp.pi * 2.0**-34) * (signed.astype(jnp.float32) + 2.0)
    square = t * t
    cos, sin = (_series(square, first) for first in (0, 1))
    sin = t * sin
    odd, negative = (turn >> 30) & 1, turn >> 31
    x, y = jnp.where(odd, -sin, cos), jnp.where(odd, cos, sin)
    return jnp.where(negative, -x, x), jnp.where(negative, -y, y)


def _series(square: jax.Array, first: int) -> jax.Array:
    """Adds up (-square)^k / (first + 2 k)!, to the tenth or eleventh power."""
    total = jnp.zeros_like(square)
    for k in range(5, -1, -1):
        total = 1 / math.factorial(first + 2 * k) - square * total
    return total


def _fine_circle(turn: jax.Array, fine: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of turn / 2^32 + fine / 2^64 turns, float64."""
    high, low = turn.astype(jnp.float64), fine.astype(jnp.float64)
    angle = (2 * jnp.pi) * (high * 2.0**-32 + low * 2.0**-64)
    return jnp.cos(angle), jnp.sin(angle)


def gaussian(key: jax.Array, tree: types.PyTree, std: types.PyTree) -> types.PyTree:
    """Draws N(0, std^2) for every number of `tree`, in at least float32, all leaves at once.

    Args:
      key: a typed key of threefry2x32 or rbg, used up by this draw.
      tree: arrays; their shapes and dtypes count.
      std: a number for all leaves, or a tree of numbers that `tree` continues.

    Returns:
      A tree of the shapes of `tree`.

    Raises:
      ValueError: for complex leaves, and for keys and sizes as in `random_bits.random_words`.

    Examples:
        >>> tree = {"w": jnp.zeros(3), "b": jnp.zeros(())}
        >>> noise = jmm.noise.gaussian(jax.random.key(0), tree, 2.0)
        >>> {name: x.shape for name, x in sorted(noise.items())}
        {'b': (), 'w': (3,)}
    """
    refuse_complex(tree, "tree")
    leaves, treedef = jax.tree.flatten(tree)
    if not leaves:
        return tree
    draw = standard_normal(key, (sum(x.size for x in leaves),), float_dtype(tree))

    noise, first = [], 0
    for x, s in zip(leaves, jax.tree.leaves(jax.tree.broadcast(std, tree)), strict=True):
        dtype = at_least_float32(x.dtype)
        noise.append(jnp.asarray(s, dtype) * draw[first: first + x.size].reshape(x.shape).astype(
            dtype))
        first += x.size
    return jax.tree.unflatten(treedef, noise)
