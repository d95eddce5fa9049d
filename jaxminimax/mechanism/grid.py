"""The cost of a release on a grid beyond the real Gaussian mechanism that it is made of.

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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
    more = finer_bits(parameters)
    if isinstance(z, jax.core.Tracer):
        exponent = jnp.frexp(jnp.asarray(z, jnp.float32))[1].astype(jnp.int32)
        return jnp.clip(exponent + (17 + more), 0, MOST_BITS)
    # z = f 2^e, 1/2 <= f < 1: L = e + 17 makes 2^L / z = 2^17 / f units in a clip norm
    return min(max(int(np.frexp(np.float32(z))[1]) + 17 + more, 0), MOST_BITS)


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
