"""A release's sum plus noise over its batch size: exactly, on a grid, or in floating point.

    (I + X) g / m,    g = sigma / 2^L,    X = floor(2^L G),    sigma = clip norm * noise multiplier

for every number of a release, with one step g for each player (`mechanism.grid`). I and X are
integers and their sum is exact; whatever rounding follows is post-processing. The standard
deviation is the one product of the numbers that the accountant reads, a part in four million larger
for what float32 descriptions lose: the noise multiplier, the product, its own product with
`ROUNDING_MARGIN` and 1 / g are four roundings of 2^-24.

`noisy_sum` is the only way that a sum of records leaves.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import programs
from jaxminimax.base.random_bits import fold_in
from jaxminimax.base.tree import arranged, as_leaves, at_least_float32
from jaxminimax.base.types import PyTree, Saddle
from jaxminimax.gradients import integer_sums
from jaxminimax.gradients.integer_sums import Grid, Words, as_float, dither, parts
from jaxminimax.gradients.summation import Rounding, Sums
from jaxminimax.mechanism import PARAMETERS, Repeat
from jaxminimax.mechanism.grid import MOST_BITS, are_plain, check_noise, finer_bits, grid_bits
from jaxminimax.noise import floored_laplace, floored_normal
from jaxminimax.noise._sampler import normal_block
from jaxminimax.noise.floats import ROUNDING_MARGIN, gaussian
from jaxminimax.releases import opening, reading, release_keys


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
        """The step g = sigma / 2^L; 1 where there is no noise, and nothing is rounded."""
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
    # L follows from z_p and d, which the accountant reads, whatever the clip norm is
    return Saddle(*(None if c is None else GridNoise(std(c, z), jnp.asarray(
        grid_bits(z, parameters), jnp.int32)) for c, z in zip(clip, noise_multiplier, strict=True)))


def finest(scale: Saddle) -> jax.Array:
    """The largest L of both players."""
    return jnp.max(jnp.stack([s.log2_steps for s in scale if s is not None]))


def rounding(thresholds: Saddle, scale: Saddle, rows: int, parameters: int) -> Rounding:
    """The grid of a release, and which sums it needs.

    Args:
      thresholds: `dither` of `Keys.dither` of the release, for the players that are released.
      scale: of `scales`.
      rows: the most that a sum has.
      parameters: of the description, as for `scales`.
    """
    # a player with sigma = 0 has no grid: its floating-point sum is the answer
    noiseless = jnp.stack([s.stddev == 0 for s in scale if s is not None])
    # two words if rows of up to 2^(18 + finer bits) units may exceed 2^30 together: over 4096 rows
    grid = Grid(Saddle(*(None if s is None else 1 / s.step for s in scale)),
                thresholds, wide=rows > 4096 >> finer_bits(parameters))
    return Rounding(grid, jnp.any(noiseless), ~jnp.all(noiseless))


class Noisy(NamedTuple):
    """The answer of a release of a sum, and the next clip norms.

    Attributes:
      value: like the point; NaN where the release is refused or the sample does not fit.
      num_unclipped: records within the clip norms less longer ones, by player; not released.
      answered: whether anything was released, bool `[]`.
    """

    value: Saddle
    num_unclipped: Saddle | None
    answered: jax.Array


Noise = Callable[[Saddle, Saddle], Saddle]  # of arrays like the sum, and the `GridNoise` of each


class Drawn(NamedTuple):
    """The random numbers of one release of a sum, drawn before it by a program that many share.

    Attributes:
      name: what they were drawn for, see `release_keys.name_of_draws`.
      thresholds: of the rounding, uint8 `[DRAWN]`.
      noise: floor(2^L G), int32 `[DRAWN]`.
    """

    name: jax.Array
    thresholds: jax.Array
    noise: jax.Array


DRAWN = 1024  # numbers of a release that are drawn before it; of more, each program draws its own


@programs.Compiled
def _draw(key: jax.Array, stream: jax.Array, number: jax.Array, size: jax.Array,
          bits: jax.Array) -> Drawn:
    keys = release_keys.Keys(key, stream, number)  # type: ignore[arg-type]
    return Drawn(release_keys.name_of_draws(key, stream, number, size, bits),
                 integer_sums.dither_block(keys.dither(), size, DRAWN),
                 normal_block(keys.added(), size, bits, DRAWN))


def drawn_before(key: jax.Array, mechanism: Repeat, number: int, point: Saddle) -> Drawn | None:
    """Draws the random numbers of a release that is compiled briefly, or None where it does itself.

    The numbers are those of the release, to the last bit. It compares what they were drawn for with
    its own key, stream, number, size and L, and is NaN where one of them differs.
    """
    query = mechanism.query
    noise = [z for z in check_noise(query) if z is not None]
    size = sum(np.size(x) for clip, player in zip(query.clip, point, strict=True)
               if clip is not None for x in jax.tree.leaves(player))
    # what is traced, or no number at all, is left to the release, which checks it
    if not (programs.effort() and query.exact and query.bands == 1 and 0 < size <= DRAWN
            and are_plain(*noise) and release_keys.is_threefry(key)):
        return None
    return _draw(key, np.uint32(release_keys.stream(mechanism)), np.int32(number), np.int32(size),
                 np.int32(max(grid_bits(z, query.parameters) for z in noise)))


def noisy_sum(opened: opening.Opened, rows: reading.Rows, size: jax.typing.ArrayLike,
              noise: Noise | None = None, drawn: Drawn | None = None) -> Noisy:
    """Computes (sum + noise) / size of an opened release.

    Args:
      opened: the release.
      rows: the records that it reads.
      size: m, public: the expected batch size.
      noise: that is correlated with that of other releases; None: independent noise.
      drawn: the random numbers of this release, where they were drawn before it: independent
        integers. A release of any other noise is NaN with them.
    """
    clipped, query, keys = opened.clipped, opened.query, opened.keys
    assert clipped is not None
    assert opened.noise_multiplier is not None
    scale = scales(clipped.clip, opened.noise_multiplier, query.parameters)
    thresholds = (dither(keys.dither(), opened.like) if drawn is None
                  else as_leaves(drawn.thresholds, opened.like))
    total, fits = rows.added(clipped.sums, rounding(thresholds, scale, rows.most,
                                                    query.parameters))
    if drawn is not None:
        fits &= noise is None and query.exact  # else it would lack what its description has
        noise = functools.partial(integer_noise, keys.added(), floors=drawn.noise)
        fits &= jnp.array_equal(drawn.name, release_keys.name_of_draws(
            keys.run, release_keys.stream(opened.mechanism), opened.number,
            sum(x.size for x in jax.tree.leaves(opened.like)), finest(scale)))
    # (I + X) g / m; a player without a clip norm releases nothing
    g = (add_noise_and_normalise(keys.added(), total, scale, size, query.exact)
         if noise is None else
         # which may be numbered by leaf
         added(total, Saddle(*map(arranged, noise(Saddle(*map(
             arranged, total.floats, opened.like)), scale), total.floats)), scale, query.exact,
             size))
    answered = opened.answered & fits
    g = Saddle(*(jax.tree.map(jnp.zeros_like, x) if norm is None else a
                 for norm, x, a in zip(clipped.clip, opened.point, g, strict=True)))
    value = Saddle(*map(arranged, opening.nan_if_refused(answered, g), opened.point))
    return Noisy(value, total.num_unclipped, answered)


def add_noise_and_normalise(key: jax.Array, sums: Sums, scale: Saddle, size: jax.typing.ArrayLike,
                            exact: bool) -> Saddle:
    """Computes (sum + noise) / size; the plain sum over size for a player without noise.

    Args:
      key: `Keys.added` of the release, another one than that of `rounding`.
      sums: rounded to the grid of `rounding`.
      scale: that of `rounding`.
      size: m.
      exact: whether the noise is made of integers, and added to them.
    """
    noise = (integer_noise if exact else float_noise)(key, sums.floats, scale)
    return added(sums, noise, scale, exact, size)


def added(sums: Sums, noise: Saddle, scale: Saddle, exact: bool,
          size: jax.typing.ArrayLike) -> Saddle:
    """Adds noise that was drawn before, in units of the grid if `exact`, and normalises."""
    assert sums.integers is not None

    def leaf(total: Words, plain: jax.Array, noise: jax.Array, s: GridNoise) -> jax.Array:
        step = s.step.astype(plain.dtype)
        if exact:  # (I + X) g
            noisy = as_float(total, noise, plain.dtype) * step
        else:  # the noise meets what is small of the sum first
            high, low = (x * step for x in parts(total, plain.dtype))
            noisy = high + (low + noise)
        # the plain sum where sigma = 0; m is public, so / m is postprocessing
        return jnp.where(s.stddev == 0, plain, noisy) / jnp.asarray(size, plain.dtype)

    return Saddle(*(None if s is None else jax.tree.map(
        lambda plain, total, e, s=s: leaf(total, plain, e, s), *x)
        for s, *x in zip(scale, sums.floats, sums.integers, noise, strict=True)))


def integer_noise(key: jax.Array, like: Saddle, scale: Saddle,
                  floors: jax.Array | None = None) -> Saddle:
    """Draws floor(2^L G) for every number, each player with its own L: floors of floors nest.

    Or takes `floors` that were drawn before of the key, at the largest L.
    """
    finest_bits = finest(scale)
    # both players in one draw, at the largest L
    size = sum(x.size for x in jax.tree.leaves(like))
    drawn = as_leaves(floored_normal(key, size, finest_bits) if floors is None else floors, like)
    # with F = finest_bits: floor(2^L G) = floor(floor(2^F G) / 2^(F - L))
    return Saddle(*(None if s is None else jax.tree.map(
        lambda x, s=s: x >> finest_bits - s.log2_steps, player)
        for s, player in zip(scale, drawn, strict=True)))


def float_noise(key: jax.Array, like: Saddle, scale: Saddle) -> Saddle:
    """Draws N(0, sigma^2) for every number."""
    return gaussian(key, like, Saddle(*(None if s is None else s.stddev for s in scale)))


# --- points and losses, in float64 ---


def add_noise_to_point(key: jax.Array, point: PyTree, length: jax.Array, z: jax.Array,
                       parameters: int) -> PyTree:
    """Adds noise to a solution that is one block, float64; to be called with 64-bit types.

    Integers below 2^52 are float64 numbers, and their sums are exact.

    Args:
      key: of the noise.
      point: float64 arrays.
      length: half of what replacing a record may do, float64 `[]`.
      z: noise multiplier, sigma over that; 0: the point as it is.
      parameters: of the description.
    """
    size = sum(x.size for x in jax.tree.leaves(point))
    if not size:
        return point
    # sigma; the margin is for what float32 descriptions lose
    std = length * z * ROUNDING_MARGIN
    scale = GridNoise(std, jnp.asarray(grid_bits(z, parameters), jnp.int32))

    def leaf(x: jax.Array, u: jax.Array, noise: jax.Array) -> jax.Array:
        # (floor(x / g) + [x / g is rounded up] + X + 1/2) g: X is a floor
        a = jnp.clip(x / scale.step, -(2.0**50), 2.0**50)
        integer = jnp.floor(a)
        # U = (u + 1/2) / 256, public and the same on neighbouring data
        up = a - integer > (u.astype(x.dtype) + 0.5) * 2.0**-8
        return jnp.where(std == 0, x, (integer + up + noise.astype(x.dtype) + 0.5) * scale.step)

    noise = as_leaves(floored_normal(fold_in(key, release_keys.ADDED), size, scale.log2_steps),
                      point)
    return jax.tree.map(leaf, point, dither(fold_in(key, release_keys.DITHER), point), noise)


def add_noise_to_losses(key: jax.Array, losses: jax.Array, bound: jax.Array, z: jax.Array,
                        gaussian: bool = False) -> jax.Array:
    """Sums along the last axis of losses in [0, B], plus noise of scale B z, float64.

    To be called with 64-bit types. Each loss is rounded to a multiple of g = B z / 2^L; integers
    below 2^52 are float64 numbers, and their sums are exact.

    Args:
      key: of the noise.
      losses: in [0, B], float64 `[..., n]`; 0 where there is no record.
      bound: B, float64 `[]`.
      z: noise multiplier, float64 `[]`; 0: the plain sum.
      gaussian: whether it is Gaussian, of standard deviation B z, instead of Laplace.
    """
    width, shape = bound * z * ROUNDING_MARGIN, losses.shape[:-1]
    bits = jnp.asarray(grid_bits(z, PARAMETERS), jnp.int32)
    step = GridNoise(width, bits).step
    # I = sum_j round(loss_j / g), of at most 2^20 each: 2^31 of them stay below 2^52
    total = jnp.sum(jnp.round(jnp.minimum(losses / step, 2.0**20)), -1)
    if gaussian:
        noise = floored_normal(key, math.prod(shape), bits).reshape(shape)
    else:
        # floor(2^L E) = floor(floor(2^22 E) / 2^(22 - L))
        noise = floored_laplace(key, shape) >> (MOST_BITS - bits)
    noisy = (total + noise + 0.5) * step  # the noise is a floor
    return jnp.where(width == 0, jnp.sum(losses, -1), noisy)
