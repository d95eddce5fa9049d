"""The grid of releases: its cost beyond a real Gaussian mechanism, and the numbers that fit it.

A released sum is (I + X) g: I an integer, the sum on a grid of unit g, and X = floor(2^L G) integer
noise, G ~ N(0, 1). The unit follows the noise, g = sigma / 2^L, with sigma = clip norm * noise
multiplier and L the `grid_bits`, for each player. As I is an integer, I + floor(2^L G) is
floor(I + 2^L G): what leaves is a function of a real Gaussian mechanism of deviation 2^L on the
integer I, and is as private as that, sampled, composed, adaptively or not. What is to be known is
how far I moves.

Sums of blocks. The rows of a sample keep their places (`sampling.places`), so a record is in one
block of at most `BLOCK` rows, and every other block is the same on neighbouring data to the last
bit. A block's sum B of vectors of norm at most C is added in floating point, along whatever tree of
additions for each coordinate. With D_k(i) the depth of leaf i in the tree of coordinate k, the
error there is at most u (1 + u)^r sum_i D_k(i) |x_ik|, u half a unit in the last place; so for
every unit vector phi

    sum_k phi_k error_k <= 1.001 u C sum_i (sum_k phi_k^2 D_k(i)^2)^(1/2)
                        <= 1.001 u C (r max_k sum_i D_k(i)^2)^(1/2)
                        <= 1.001 u C (r^2 / sqrt(3) + r / 2),

a running sum having the largest sum of squared depths. Products of weights with entries and the
scaling by 1/g add less than 7/2 u C r. Hence the length of the error is at most ETA C,

    ETA = 1.001 u (r^2 / sqrt(3) + 4 r),     r = BLOCK.

Rounding to the grid. a = B / g is rounded up where its fraction exceeds U, else down, U uniform on
{1/2, 3/2, ..., 511/2} / 256, fresh for every number and release, independent of the data and equal
on neighbouring data. Let ||a - a'|| <= D. Given the fractions, the rounded difference of a
coordinate takes two adjacent integers only, and its mean is within 1/255 of a_k - a'_k. So the
rounded difference is m + xi with ||m|| <= D + sqrt(d) / 255 =: M and xi_k independent, of mean 0,
with range 1. By Hoeffding's inequality <m, xi> <= t ||m|| and ||xi||^2 <= d/4 + t sqrt(d), but with
probability 2 exp(-2 t^2). And as every rounded number is off by less than 1, in any case,

    ||I - I'|| <= min{D + sqrt(d), (M^2 + 2 t M + d/4 + t sqrt(d))^(1/2)},

which grows with D, so that larger noise is never charged as smaller.

t = 6 fails once in 10^31 releases. U may be public, so a failure is one of public numbers, and its
probability is added to delta as it stands.

Source: Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020,
for the need; Mironov, "On significance of the least significant bits for differential privacy", CCS
2012, and Casacuberta, Shoemate, Vadhan and Wagaman, CCS 2022, for what goes wrong without. The
argument by floors of a real Gaussian, and the public dither, are this library's.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks

__all__ = ["PARAMETERS"]

BLOCK = 128  # rows that are added up in floating point
ETA = 1.001 * 2.0**-24 * (BLOCK**2 / math.sqrt(3) + 4 * BLOCK)
PARAMETERS = 2**20  # numbers of a release, unless a description says otherwise
MOST_BITS = 22  # of the integer noise
_T = 6.0  # of Hoeffding's inequality
DITHER_FAILURE = 2 * math.exp(-2 * _T**2)


def finer_bits(parameters: int) -> int:
    """Returns the bits by which the grid is finer for so many numbers: 0 to 2^24, 4 at 2^31."""
    # rounding grows like d^(1/2): half a bit for each bit of d beyond 24, rounded up
    return max(0, (parameters - 1).bit_length() - 24 + 1) // 2


def grid_bits(z: Any, parameters: int) -> Any:
    """L: the deviation of the integer noise is 2^L.

    Between 2^17 and 2^18 units in a clip norm, until L reaches what the sampler of the noise can
    do; finer for more than 2^24 numbers, whose rounding adds up.

    Args:
      z: a player's noise multiplier; a number, or traced. Read as float32 on either side.
      parameters: d.

    Returns:
      An int, or int32 `[]`.
    """
    finer = finer_bits(parameters)
    if isinstance(z, jax.core.Tracer):
        exponent = jnp.frexp(jnp.asarray(z, jnp.float32))[1].astype(jnp.int32)
        return jnp.clip(exponent + (17 + finer), 0, MOST_BITS)
    # z = f 2^e, 1/2 <= f < 1: L = e + 17 makes 2^L / z = 2^17 / f units in a clip norm
    return min(max(int(np.frexp(np.float32(z))[1]) + 17 + finer, 0), MOST_BITS)


def _rounding(distance: float, parameters: int) -> float:
    """Returns the distance that rounding adds, in units of the grid."""
    root = math.sqrt(parameters)
    # M = D + sqrt(d) / 255, and the smaller of both bounds of the module's docstring
    mean = distance + root / 255
    square = mean**2 + 2 * _T * mean + parameters / 4 + _T * root
    return min(root, math.sqrt(square) - distance)


def charged_multiplier(z: float, smallest: float, parameters: int, *, absent: bool,
                       eta: float = ETA) -> float:
    """The noise multiplier of a real Gaussian mechanism that is no more private than the release.

    With 2^L / z units in a clip norm and eta as above, one record put for another moves the integer
    sum by at most D + rounding of D = 2 (1 + eta) 2^L / z, and z' = 2 * 2^L over that. Where curves
    compare with the sum that a record does not take part in (Poisson samples under either relation,
    a record that is absent), D = (1 + 2 eta) 2^L / z, and z' = 2^L over that; half of the first
    would not do.

    Args:
      z: noise over clip norm, both players together; positive.
      smallest: the smallest multiplier of a player. Each player has a grid of its own; in units of
        the noise this one's is the coarsest, and rounding counts as if it were everybody's.
      parameters: d, an upper bound on the numbers of a release.
      absent: whether sums without the record are compared with.
      eta: error of a block's sum over the clip norm.
    """
    units = 2.0 ** grid_bits(smallest, parameters) / z  # in a clip norm
    distance = (1 + 2 * eta) * units if absent else 2 * (1 + eta) * units
    moved = distance + _rounding(distance, parameters)
    # z' over z is the described distance over what the integer sum may move by
    return z * (units if absent else 2 * units) / moved


# --- numbers that descriptions may have ---


def check_noise(query: Any) -> Any:
    """The noise multipliers of `query`: a `Saddle` of a `Query`, one number of the others.

    Raises:
      ValueError: if they were never set.
    """
    return check_set(query.noise_multiplier)


def check_set(noise_multiplier: Any) -> Any:
    """The noise multipliers.

    Raises:
      ValueError: if they were never set.
    """
    if noise_multiplier is None:
        raise ValueError("noise_multiplier is not set: calibrate(algorithm, hyper, epsilon=..., "
                         "delta=...) sets it; 0.0 (for two players Saddle(0.0, 0.0)) runs without "
                         "privacy.")
    return noise_multiplier


def check_grid(parameters: Any, exact: Any = True) -> None:
    """Refuses what no grid of a release can follow from."""
    if not isinstance(exact, bool):
        raise ValueError(f"exact must be True or False, got {exact!r}.")
    checks.count("parameters", parameters)
    if parameters >= 2**31 - 32:
        raise ValueError(f"parameters must be below 2**31 - 32, got {parameters}: a release draws "
                         "its noise in one go.")


def check_times(name: str, times: int) -> None:
    """Refuses a number of releases that a counter of 32 bits does not hold."""
    checks.count(name, times)
    if times >= 2**31:
        raise ValueError(f"{name} must be below 2**31, got {times}: the counter of releases has 32 "
                         "bits.")


def check_multiplier(name: str, z: Any) -> None:
    """Refuses a noise multiplier out of range; None, not set yet, passes."""
    if z is None:
        return
    checks.number(name, z, low=0.0, high=1e15, closed=True)
    if is_plain(z, lambda x: 0 < x < 1e-4):
        raise ValueError(f"{name} must be 0 (no privacy) or at least 1e-4, got {z!r}.")


def check_sizes(sizes: Any) -> None:
    """Refuses sizes of groups that are no tuple of counts."""
    if not isinstance(sizes, tuple) or not sizes:
        raise ValueError("sizes must be a tuple of every group's number of records, got "
                         f"{sizes!r}: problems.by_group returns it.")
    for n in sizes:
        checks.count("sizes", n)
        if n >= 2**31:
            raise ValueError(f"sizes must be below 2**31, got {n}: indices are 32-bit.")


def check_bound(name: str, bound: Any) -> None:
    """Refuses a clip norm, or a bound on losses, that float32 programs would lose."""
    checks.number(name, bound, low=1e-28, high=1e28, closed=True)


def is_plain(x: Any, true: Callable[[float], bool]) -> bool:
    """Returns whether that holds of a number; not of tracers, nor of arrays of several."""
    return not isinstance(x, jax.core.Tracer) and np.ndim(x) == 0 and true(float(x))


def are_plain(*numbers: Any) -> bool:
    """Returns whether all are single numbers that are known."""
    return not any(isinstance(x, jax.core.Tracer) or np.ndim(x) for x in numbers)
