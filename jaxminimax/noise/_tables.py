"""Constants of the normal sampler: how they are made, and the file that holds them.

q(u) is the inverse of u = P(|G| > x), G ~ N(0, 1). A cell is [r - w, r]; an octave, u in
[2^-(o+1), 2^-o), has 8, 16 or 256 of them, of one width w. In t = (r - u) / w,

    q(r - w t) = sum_k a_k t^k,        0 <= t <= 1,   a_k >= 0,

for with derivatives in direction -u, q' = sqrt(pi / 2) exp(q^2 / 2) > 0 and q'' = q q'^2, so that
q^(n) = P_n(q) q'^n with P_1 = 1, P_{n+1} = P_n' + n q P_n: coefficients that are not negative, and
q >= 0. Hence what remains when the sum is cut is not negative either and grows with t: at most
q(r - w) minus the sum of the coefficients, one number a cell. The coefficients follow from y = q',
y' = q y^2, power series in t.

    python -m jaxminimax.noise._tables

writes the file anew (with mpmath, in ten seconds). The tests remake it and bound what it misses.
"""

import functools
import pathlib
from typing import Any, NamedTuple

import numpy as np

BITS = 22                  # of the finest grid, 2^-22
FIRST_CELLS = 256          # an octave, in float32
FIRST_OCTAVES = 13         # words below 2^(31 - 13) are left to the next stage
MIDDLE_CELLS = 16          # in float64
MIDDLE_OCTAVES = 31
MIDDLE_DEGREE = 11
LAST_CELLS = 8             # in fixed point
LAST_OCTAVES = 168
LAST_DEGREE = 27
LIMBS = 6                  # of 16 bits each
FRACTION = 92              # bits after the point, of 16 LIMBS = 96
_PRECISION = 360

FILE = pathlib.Path(__file__).parent / "tables.npz"


class Tables(NamedTuple):
    """What `FILE` holds; rows are cells, by octave from u = 1 down, then by u upwards.

    Attributes:
      base: int32 `[13 * 256]`, by m upwards, where u = m / 2^31.
      slopes: float32 `[3, 13 * 256]`: 2^22 q is near base + c0 + c1 v + c2 v^2 at
        u = (start + v + 1/2) / 2^31.
      middle: float64 `[31 * 16, 12]`, 2^22 a_k.
      last: uint16 `[168 * 8, 28, 6]`, floor(2^92 a_k), the lowest limb first.
    """

    base: np.ndarray
    slopes: np.ndarray
    middle: np.ndarray
    last: np.ndarray


@functools.cache
def tables() -> Tables:
    """The constants."""
    with np.load(FILE) as file:
        return Tables(*(file[name] for name in Tables._fields))


def quantile(u: Any, near: Any) -> Any:
    """q(u) in mpmath's precision, by Newton's method from a number near it."""
    import mpmath as mp

    x = near
    for _ in range(60):
        step = (mp.erfc(x / mp.sqrt(2)) - u) / (2 * mp.npdf(x))
        x += step
        if abs(step) < mp.mpf(2) ** (-mp.mp.prec // 2):
            # quadratic convergence, once more
            return x + (mp.erfc(x / mp.sqrt(2)) - u) / (2 * mp.npdf(x))
    raise ArithmeticError(f"Newton's method for q({u}) from {near} does not settle.")


def coefficients(q: Any, width: Any, degree: int) -> list[Any]:
    """a_0, ..., a_degree of the cell of that width whose right end has this q (mpmath)."""
    import mpmath as mp

    slope = [width / (2 * mp.npdf(q))]
    a, squares = [q, slope[0]], []
    for n in range(degree - 1):
        squares.append(sum(slope[i] * slope[n - i] for i in range(n + 1)))
        slope.append(sum(a[i] * squares[n - i] for i in range(n + 1)) / (n + 1))
        a.append(slope[-1] / (n + 2))
    return a


def cells(octave: int, count: int, degree: int, q: Any) -> tuple[list[list[Any]], list[Any], Any]:
    """Coefficients and remainders of an octave's cells, by u upwards, and q at its left end.

    Args:
      octave: u in [2^-(octave + 1), 2^-octave).
      count: cells in it.
      degree: of the last coefficient.
      q: q(2^-octave).
    """
    import mpmath as mp

    left = mp.mpf(2) ** -(octave + 1)
    width = left / count
    rows, remainders = [], []
    for cell in reversed(range(count)):
        rows.append(coefficients(q, width, degree))
        total = mp.fsum(rows[-1])
        q = quantile(left + cell * width, total)
        remainders.append(q - total)
    return rows[::-1], remainders[::-1], q


def limbs(a: Any) -> list[int]:
    """floor(2^92 a) in digits of 16 bits, the lowest first."""
    import mpmath as mp

    whole = int(mp.floor(a * mp.mpf(2) ** FRACTION))
    return [(whole >> 16 * j) & 0xFFFF for j in range(LIMBS)]


def _octaves(octaves: int, count: int, degree: int) -> list[list[Any]]:
    import mpmath as mp

    rows, q = [], mp.mpf(0)
    for octave in range(octaves):
        more, _, q = cells(octave, count, degree, q)
        rows += more
    return rows


def first(middle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`base` and `slopes`: quadratics through three Chebyshev points of every cell.

    Whole numbers are taken out so that what is left is above 3, and stays so when a doubt is
    subtracted: conversion to an integer is then the floor. (A fit: it is bounded by the tests.)
    """
    ratio = FIRST_CELLS // MIDDLE_CELLS
    index = np.arange(FIRST_OCTAVES * FIRST_CELLS)
    octave, cell = FIRST_OCTAVES - 1 - index // FIRST_CELLS, index % FIRST_CELLS
    width = 2.0 ** (30 - octave) / FIRST_CELLS  # in words
    a = middle[octave * MIDDLE_CELLS + cell // ratio].T  # [12, cells]

    def value(v: np.ndarray) -> np.ndarray:
        """2^22 q at v words from the cell's start."""
        t = 1 - (cell % ratio + v / width) / ratio
        return np.polynomial.polynomial.polyval(t, a, tensor=False)

    end = np.floor(value(width)) - 4
    x = [(0.5 + 0.5 * np.cos(np.pi * (k + 0.5) / 3)) * width for k in range(3)]
    y = [value(v) - end for v in x]
    one = (y[1] - y[0]) / (x[1] - x[0])
    two = ((y[2] - y[1]) / (x[2] - x[1]) - one) / (x[2] - x[0])
    slope = one - two * (x[0] + x[1])
    slope, two = np.float32(slope + two), np.float32(two)  # in v + 1/2 from here on
    # what the quadratic with rounded slopes misses is halved by its level
    at = np.linspace(0.5, width - 0.5, 65)
    missed = np.array([value(v) - end - (v - 0.5) * (slope.astype(float) + two * (v - 0.5))
                       for v in at])
    level = np.float32((missed.min(0) + missed.max(0)) / 2)
    return end.astype(np.int32), np.stack([level, slope, two])


def make() -> Tables:
    """The constants, from nothing."""
    import mpmath as mp

    with mp.workprec(_PRECISION):
        middle = np.array([[float(mp.ldexp(a, BITS)) for a in row]
                           for row in _octaves(MIDDLE_OCTAVES, MIDDLE_CELLS, MIDDLE_DEGREE)])
        last = np.array([[limbs(a) for a in row]
                         for row in _octaves(LAST_OCTAVES, LAST_CELLS, LAST_DEGREE)], np.uint16)
    return Tables(*first(middle), middle, last)


if __name__ == "__main__":
    np.savez_compressed(FILE, **make()._asdict())
