"""Noise that is a combination of the latest independent numbers, each drawn anew from the key."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxminimax.base.random_bits import random_words
from jaxminimax.base.types import PyTree, Saddle
from jaxminimax.mechanism.factorisation import FRACTION, TOGETHER, coefficients
from jaxminimax.noise import floored_normal, gaussian
from jaxminimax.releases import core, noising

_HALF = 13  # bits of the lower part of an integer: sums of either part's products have 32 bits


def noise(key: jax.Array, stream: int, spent: jax.Array, bands: int, like: Saddle,
          scale: Saddle, exact: bool) -> Saddle:
    """What is added to release `spent` = 0, 1, ..., in units of the grid if `exact`.

        X_t = zeta_t + floor((U_t + sum over 0 < k < p of a_k zeta_{t-k}) / 2^17),

    zeta_t the floors of real normals and U_t uniform on {0, ..., 2^17 - 1}; the argument is in
    `mechanism.factorisation`. Both are functions of the key, the stream and the number, so that no
    state holds what later noise is made of. The numbers of `TOGETHER` releases are one draw. Sums
    of products are those of 13 lower and 13 upper bits, with sum |a_k| below 2^17: below 2^31 each
    unless a number is 15 deviations off. A constant makes up for zeta's means of -1/2, but for X's.

    Args:
      key: root key of the run.
      stream: of `Kind.INNOVATION` or `Kind.MEAN_INNOVATION`. A run may release both; made of one
        draw, their difference would have no noise.
      spent: releases made before, int32 `[]`.
      bands: p.
      like: arrays of both players.
      scale: of the independent numbers.
      exact: whether they are integers.
    """
    window = _integers if exact else _floats
    return window(key, stream, jnp.asarray(spent, jnp.int32), bands, like, scale)


def _over_window(spent: jax.Array, bands: int, start: PyTree,
                 add: Callable[[PyTree, jax.Array, jax.Array], PyTree]) -> PyTree:
    """`add(total, block, lag)` over all blocks with one of the last p releases.

    `lag` is how long ago each release of a block was, `[releases]`: negative for those to come.
    """
    size = min(TOGETHER, bands)
    first = jnp.maximum(spent - (bands - 1), 0) // size

    def one(block: jax.Array, total: PyTree) -> PyTree:
        return add(total, block, spent - block * size - jnp.arange(size, dtype=jnp.int32))

    return jax.lax.fori_loop(first, spent // size + 1, one, start)


def _weights(lag: jax.Array, table: jax.Array) -> jax.Array:
    """A release's coefficient; 0 outside of the bands."""
    there = (lag >= 0) & (lag < table.shape[0])
    return jnp.where(there, table[jnp.clip(lag, 0, table.shape[0] - 1)], 0)


def _integers(key: jax.Array, stream: int, spent: jax.Array, bands: int, like: Saddle,
              scale: Saddle) -> Saddle:
    leaves, treedef = jax.tree.flatten(like)
    size, rows = sum(x.size for x in leaves), min(TOGETHER, bands)
    finest = noising.finest(scale)
    wanted = jnp.any(jnp.stack([s.std != 0 for s in scale if s is not None]))
    known = coefficients(bands)
    table = jnp.asarray(known).at[0].set(0)
    shift = jnp.concatenate([jnp.full(x.size, finest - s.bits) for s, player in zip(
        scale, like, strict=True) if s is not None for x in jax.tree.leaves(player)])

    def add(total: PyTree, block: jax.Array, lag: jax.Array) -> PyTree:
        now, high, low = total
        zeta = floored_normal(core.keys_of_release(key, stream, block).noise,
                              rows * size, finest, wanted).reshape(rows, size) >> shift[None]
        a = _weights(lag, table)[:, None]
        return (now + jnp.sum(jnp.where(lag == 0, 1, 0)[:, None] * zeta, 0, dtype=jnp.int32),
                high + jnp.sum(a * (zeta >> _HALF), 0, dtype=jnp.int32),
                low + jnp.sum(a * (zeta & (2**_HALF - 1)), 0, dtype=jnp.int32))

    zero = jnp.zeros(size, jnp.int32)
    now, high, low = _over_window(spent, bands, (zero, zero, zero), add)
    uniform = random_words(core.keys_of_release(key, stream, spent).sample, (size,))
    uniform = (uniform >> (32 - FRACTION)).astype(jnp.int32)
    # half of the sum of the coefficients in use: the means of zeta are -1/2
    half = jnp.asarray((known.cumsum() - known[0]) >> 1, jnp.int32)[jnp.clip(spent, 0, bands - 1)]
    # floors of floors nest
    mixed = (high + ((low + uniform + half) >> _HALF)) >> (FRACTION - _HALF)
    found, first = [], 0
    for x in leaves:
        found.append((now + mixed)[first: first + x.size].reshape(x.shape))
        first += x.size
    return jax.tree.unflatten(treedef, found)


def _floats(key: jax.Array, stream: int, spent: jax.Array, bands: int, like: Saddle,
            scale: Saddle) -> Saddle:
    rows = min(TOGETHER, bands)
    table = jnp.asarray(coefficients(bands) * 2.0**-FRACTION, jnp.float32)
    std = Saddle(*(None if s is None else s.std for s in scale))
    several = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), like)

    def add(total: Saddle, block: jax.Array, lag: jax.Array) -> Saddle:
        drawn = gaussian(core.keys_of_release(key, stream, block).noise, several, std)
        weights = _weights(lag, table)
        return jax.tree.map(lambda sum_, x: sum_ + jnp.tensordot(
            weights.astype(x.dtype), x, 1, precision="highest"), total, drawn)

    return _over_window(spent, bands, jax.tree.map(jnp.zeros_like, like), add)
