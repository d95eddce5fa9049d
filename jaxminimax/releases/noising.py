"""Sum plus noise over the batch size: exactly, on a grid, or in floating point where asked to.

    (I + X) g / m,    g = sigma / 2^L,    X = floor(2^L G),    sigma = clip norm * noise multiplier

for every number of a release, with one unit g for each player (`mechanism.grid`). I and X are
integers and their sum is exact; whatever rounding follows is post-processing. The standard
deviation is the one product of the numbers that the accountant reads, a part in four million louder
for what float32 descriptions lose: the noise multiplier, the product, its own product with
`ROUNDING_MARGIN` and 1 / g are four roundings of 2^-24.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.base.random_bits import fold_in, random_words
from jaxminimax.base.tree import at_least_float32, refuse_complex
from jaxminimax.base.types import PyTree, Saddle
from jaxminimax.gradients.integer_sums import SHORT, Grid, Words, as_float, dither, parts
from jaxminimax.gradients.summation import Rounding, Sums
from jaxminimax.mechanism import PARAMETERS
from jaxminimax.mechanism.factorisation import FRACTION, TOGETHER, coefficients
from jaxminimax.mechanism.grid import MOST_BITS, finer_bits, grid_bits
from jaxminimax.noise import floored_laplace, floored_normal
from jaxminimax.noise.floats import (
    ROUNDING_MARGIN,
    gaussian,
    standard_laplace,
    standard_normal,
)
from jaxminimax.releases import opening

_NOISE, _DITHER = 0, 1  # what the key of a release's noise is folded with
_HALF = 13  # bits of the lower part of an integer: sums of either part's products have 32 bits


class GridNoise(NamedTuple):
    """The grid that a player's numbers are rounded to, and the noise that is added to them.

    Attributes:
      stddev: sigma, `[]`, at least float32; 0: no noise.
      log2_steps: L, int32 `[]`: a standard deviation has 2^L steps of the grid.
    """

    stddev: jax.Array
    log2_steps: jax.Array

    @property
    def step(self) -> jax.Array:
        """G = sigma / 2^L; 1 where there is no noise, and nothing is rounded."""
        # the power by its bits: XLA's exp2 is off by up to nine parts in 2^24, and the margin for
        # rounding has four
        power = jax.lax.bitcast_convert_type((127 - self.log2_steps) << 23, jnp.float32)
        return jnp.where(self.stddev == 0, 1.0, self.stddev * power.astype(self.stddev.dtype))


def std(clip: jax.typing.ArrayLike, noise_multiplier: jax.typing.ArrayLike) -> jax.Array:
    """The standard deviation of the noise on a sum, at least float32."""
    # an infinite clip norm without noise is no noise; every other doubtful product stays NaN
    clip, noise_multiplier = (jnp.asarray(x, at_least_float32(jnp.asarray(x).dtype))
                              for x in (clip, noise_multiplier))
    return jnp.where(noise_multiplier == 0, 0.0, clip * noise_multiplier) * ROUNDING_MARGIN


def scales(clip: Saddle, noise_multiplier: Saddle, parameters: int) -> Saddle:
    """A `GridNoise` for each player with a clip norm, None for the other."""
    return Saddle(*(None if c is None else GridNoise(std(c, z), jnp.asarray(
        grid_bits(z, parameters), jnp.int32)) for c, z in zip(clip, noise_multiplier, strict=True)))


def finest(scale: Saddle) -> jax.Array:
    """The largest L of both players."""
    return jnp.max(jnp.stack([s.log2_steps for s in scale if s is not None]))


def check_size(like: PyTree, parameters: int, beside: int = 0) -> None:
    """Refuses a release of more numbers than its description pays for, and complex ones.

    Args:
      like: arrays of what is released.
      parameters: of the description.
      beside: numbers that are released with them.

    Raises:
      ValueError: naming both.
    """
    refuse_complex(like, "z")
    size = beside + sum(x.size for x in jax.tree.leaves(like))
    if size > parameters:
        raise ValueError(f"A release has {size} numbers, but its description is charged for "
                         f"parameters={parameters}: give the query parameters={size} or more.")


def rounding(key: jax.Array, scale: Saddle, like: Saddle, rows: int,
             parameters: int) -> Rounding:
    """The grid of a release, and which sums it needs.

    Args:
      key: of the release's noise.
      scale: of `scales`.
      like: arrays, or their shapes, of both players; None for one that is not released.
      rows: the most that a sum has.
      parameters: of the description, as for `scales`.
    """
    quiet = [s.stddev == 0 for s in scale if s is not None]
    grid = Grid(Saddle(*(None if s is None else 1 / s.step for s in scale)),
                dither(fold_in(key, _DITHER), like), wide=rows > SHORT >> finer_bits(parameters))
    return Rounding(grid, floats=jnp.any(jnp.stack(quiet)),
                    integers=~jnp.all(jnp.stack(quiet)))


def add_noise_and_normalise(key: jax.Array, sums: Sums, scale: Saddle, size: jax.typing.ArrayLike,
                            exact: bool) -> Saddle:
    """(sum + noise) / size; the plain sum over size for a player without noise.

    Args:
      key: that of `rounding`.
      sums: rounded to the grid of `rounding`.
      scale: that of `rounding`.
      size: m.
      exact: whether the noise is made of integers, and added to them.
    """
    noise = (integer_noise if exact else float_noise)(fold_in(key, _NOISE), sums.floats, scale)
    return added(sums, noise, scale, exact, size)


def added(sums: Sums, noise: Saddle, scale: Saddle, exact: bool,
          size: jax.typing.ArrayLike) -> Saddle:
    """`add_noise_and_normalise` with noise drawn before, in units of the grid if `exact`."""
    assert sums.integers is not None

    def leaf(total: Words, plain: jax.Array, noise: jax.Array, s: GridNoise) -> jax.Array:
        unit = s.step.astype(plain.dtype)
        if exact:
            loud = as_float(total, noise, plain.dtype) * unit
        else:  # the noise meets what is small of the sum first
            high, low = (x * unit for x in parts(total, plain.dtype))
            loud = high + (low + noise)
        return jnp.where(s.stddev == 0, plain, loud) / jnp.asarray(size, plain.dtype)

    return Saddle(*(None if s is None else jax.tree.map(
        lambda plain, total, e, s=s: leaf(total, plain, e, s), *x)
        for s, *x in zip(scale, sums.floats, sums.integers, noise, strict=True)))


def integer_noise(key: jax.Array, like: Saddle, scale: Saddle) -> Saddle:
    """floor(2^L G) for every number, each player with its own L: floors of floors nest."""
    known = [s for s in scale if s is not None]
    leaves, treedef = jax.tree.flatten(like)
    most = finest(scale)
    drawn = floored_normal(key, sum(x.size for x in leaves), most,
                           jnp.any(jnp.stack([s.stddev != 0 for s in known])))
    shifts = jax.tree.leaves(Saddle(*(None if s is None else jax.tree.map(
        lambda _, s=s: most - s.log2_steps, x) for s, x in zip(scale, like, strict=True))))
    noise, first = [], 0
    for x, shift in zip(leaves, shifts, strict=True):
        noise.append((drawn[first: first + x.size] >> shift).reshape(x.shape))
        first += x.size
    return jax.tree.unflatten(treedef, noise)


def float_noise(key: jax.Array, like: Saddle, scale: Saddle) -> Saddle:
    """N(0, sigma^2) for every number."""
    return gaussian(key, like, Saddle(*(None if s is None else s.stddev for s in scale)))


# --- noise that is correlated between releases ---


def correlated_noise(key: jax.Array, stream: int, spent: jax.Array, bands: int, like: Saddle,
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
    most = finest(scale)
    wanted = jnp.any(jnp.stack([s.stddev != 0 for s in scale if s is not None]))
    known = coefficients(bands)
    table = jnp.asarray(known).at[0].set(0)
    shift = jnp.concatenate([jnp.full(x.size, most - s.log2_steps) for s, player in zip(
        scale, like, strict=True) if s is not None for x in jax.tree.leaves(player)])

    def add(total: PyTree, block: jax.Array, lag: jax.Array) -> PyTree:
        now, high, low = total
        zeta = floored_normal(opening.keys_of_release(key, stream, block).noise,
                              rows * size, most, wanted).reshape(rows, size) >> shift[None]
        a = _weights(lag, table)[:, None]
        return (now + jnp.sum(jnp.where(lag == 0, 1, 0)[:, None] * zeta, 0, dtype=jnp.int32),
                high + jnp.sum(a * (zeta >> _HALF), 0, dtype=jnp.int32),
                low + jnp.sum(a * (zeta & (2**_HALF - 1)), 0, dtype=jnp.int32))

    zero = jnp.zeros(size, jnp.int32)
    now, high, low = _over_window(spent, bands, (zero, zero, zero), add)
    uniform = random_words(opening.keys_of_release(key, stream, spent).sample, (size,))
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
    std = Saddle(*(None if s is None else s.stddev for s in scale))
    several = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), like)

    def add(total: Saddle, block: jax.Array, lag: jax.Array) -> Saddle:
        drawn = gaussian(opening.keys_of_release(key, stream, block).noise, several, std)
        weights = _weights(lag, table)
        return jax.tree.map(lambda sum_, x: sum_ + jnp.tensordot(
            weights.astype(x.dtype), x, 1, precision="highest"), total, drawn)

    return _over_window(spent, bands, jax.tree.map(jnp.zeros_like, like), add)


# --- points and losses, in float64 ---


def add_noise_to_point(key: jax.Array, point: PyTree, length: jax.Array, z: jax.Array,
                       parameters: int,
                       exact: bool) -> PyTree:
    """Point + noise, float64, of a solution that is one block; to be called with 64-bit types.

    Integers below 2^52 are float64 numbers, and their sums are exact.

    Args:
      key: of the noise.
      point: float64 arrays.
      length: half of what replacing a record may do, float64 `[]`.
      z: noise multiplier, sigma over that; 0: the point as it is.
      parameters: of the description.
      exact: as in `add_noise_and_normalise`.
    """
    leaves, treedef = jax.tree.flatten(point)
    if not leaves:
        return point
    std = length * z * ROUNDING_MARGIN
    noise_key = fold_in(key, _NOISE)
    if not exact:
        noise = gaussian(noise_key, point, std)
        return jax.tree.map(jnp.add, point, noise)
    scale = GridNoise(std, jnp.asarray(grid_bits(z, parameters), jnp.int32))
    drawn = floored_normal(noise_key, sum(x.size for x in leaves), scale.log2_steps, std != 0)
    rows, first = jax.tree.leaves(dither(fold_in(key, _DITHER), point)), 0
    blurry = []
    for x, u in zip(leaves, rows, strict=True):
        a = jnp.clip(x / scale.step, -(2.0**50), 2.0**50)
        whole = jnp.floor(a)
        up = a - whole > (u.astype(x.dtype) + 0.5) * 2.0**-8
        noise = drawn[first: first + x.size].reshape(x.shape).astype(x.dtype)
        loud = (whole + up + noise + 0.5) * scale.step
        blurry.append(jnp.where(std == 0, x, loud))
        first += x.size
    return jax.tree.unflatten(treedef, blurry)


def add_noise_to_losses(key: jax.Array, losses: jax.Array, bound: jax.Array, z: jax.Array,
                        exact: bool, gaussian: bool = False) -> jax.Array:
    """Sums along the last axis of losses in [0, B], plus noise of scale B z, float64.

    To be called with 64-bit types. Each loss is rounded to a multiple of g = B z / 2^L; integers
    below 2^52 are float64 numbers, and their sums are exact.

    Args:
      key: of the noise.
      losses: in [0, B], float64 `[..., n]`; 0 where there is no record.
      bound: B, float64 `[]`.
      z: noise multiplier, float64 `[]`; 0: the plain sum.
      exact: whether the noise is made of integers.
      gaussian: whether it is Gaussian, of standard deviation B z, instead of Laplace.
    """
    width, shape = bound * z * ROUNDING_MARGIN, losses.shape[:-1]
    if not exact:
        drawn = (standard_normal if gaussian else standard_laplace)(key, shape, losses.dtype)
        return jnp.sum(losses, -1) + width * drawn
    bits = jnp.asarray(grid_bits(z, PARAMETERS), jnp.int32)
    unit = GridNoise(width, bits).step
    total = jnp.sum(jnp.round(jnp.minimum(losses / unit, 2.0**20)), -1)
    if gaussian:
        noise = floored_normal(key, math.prod(shape), bits, width != 0).reshape(shape)
    else:
        noise = floored_laplace(key, shape) >> (MOST_BITS - bits)
    loud = (total + noise + 0.5) * unit
    return jnp.where(width == 0, jnp.sum(losses, -1), loud)
