"""Gaussian and Laplace noise as a pure function of a key.

Box-Muller on threefry words: the radius takes 64 random bits a pair, so that the tails reach
9.4 standard deviations (the inverse-error-function generator of `jax.random.normal` stops near 5.4
in float32, which at delta = 1e-6 and many coordinates is not far enough out), and both outputs of
the transform are used. Samples are floating-point numbers, coarse at their last bits and near 0:
attacks on those are outside the threat model.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax._tree import at_least_float32
from jaxminimax._types import Tree

# Noise is a part in four million louder than described, for what float32 descriptions lose.
SPARE = 1 + 2.0**-22


def secret_key() -> jax.Array:
    """A fresh key with 64 bits from the operating system's generator, for one run.

    (`jax.random.key(seed)` keeps 32 bits of its seed unless 64-bit types are enabled; a seed that
    can be guessed gives the noise away.)
    """
    words = np.frombuffer(os.urandom(8), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def standard_normal(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Independent N(0, 1) numbers of float32 or float64."""
    size = 1
    for s in shape:
        size *= s
    half = (size + 1) // 2
    high, low, turn, fine = jax.random.bits(key, (4, half), jnp.uint32).astype(dtype)
    # u in (0, 1): 64 bits, of which a float keeps the leading ones, so small u stay fine
    u = (high * 2.0**32 + low + 0.5) * 2.0**-64
    radius = jnp.sqrt(-2.0 * jnp.log(jnp.minimum(u, 1.0)))
    angle = (2 * jnp.pi) * (turn * 2.0**-32 + fine * 2.0**-64).astype(dtype)
    pair = jnp.concatenate([radius * jnp.cos(angle), radius * jnp.sin(angle)])
    return pair[:size].reshape(shape)


def standard_laplace(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Independent numbers of density e^-|x| / 2, of float32 or float64.

    A sign and -ln u, with u of 64 bits: the tails reach 45, which e^-45 of the mass lies beyond.
    """
    high, low, sign = jax.random.bits(key, (3, *shape), jnp.uint32)
    high, low = high.astype(dtype), low.astype(dtype)
    u = (high * 2.0**32 + low + 0.5) * 2.0**-64
    return jnp.where(sign >> 31, 1.0, -1.0).astype(dtype) * jnp.log(jnp.minimum(u, 1.0))


def gaussian(key: jax.Array, tree: Tree, std: jax.Array) -> Tree:
    """N(0, std^2) for every number of `tree`, one key a leaf, in at least float32."""
    leaves, treedef = jax.tree.flatten(tree)
    keys = jax.random.split(key, max(1, len(leaves)))

    def leaf(k: jax.Array, x: jax.Array) -> jax.Array:
        dtype = at_least_float32(x.dtype)
        return jnp.asarray(std, dtype) * standard_normal(k, x.shape, dtype)

    noise = [leaf(k, x) for k, x in zip(keys[: len(leaves)], leaves, strict=True)]
    return jax.tree.unflatten(treedef, noise)
