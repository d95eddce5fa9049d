"""Makes the constants of the normal sampler anew, with mpmath, in ten seconds.

    python -m benchmarks.privacy.normal_tables

`jaxminimax.noise._tables` says what they are. The coefficients follow from y = q', y' = q y^2,
power series in t.
"""

from typing import Any

import mpmath as mp
import numpy as np

from jaxminimax.noise import _tables

_PRECISION = 360


def quantile(u: Any, near: Any) -> Any:
    """Computes q(u) in mpmath's precision, by Newton's method from a number near it."""
    x = near
    for _ in range(60):
        step = (mp.erfc(x / mp.sqrt(2)) - u) / (2 * mp.npdf(x))
        x += step
        if abs(step) < mp.mpf(2) ** (-mp.mp.prec // 2):
            # quadratic convergence, once more
            return x + (mp.erfc(x / mp.sqrt(2)) - u) / (2 * mp.npdf(x))
    raise ArithmeticError(f"Newton's method for q({u}) from {near} does not settle.")


def coefficients(q: Any, width: Any, degree: int) -> list[Any]:
    """The a_0, ..., a_degree of the cell of that width whose right end has this q (mpmath)."""
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
    """Writes floor(2^92 a) in digits of 16 bits, the lowest first."""
    number = int(mp.floor(a * mp.mpf(2) ** _tables.FRACTION))
    return [(number >> 16 * j) & 0xFFFF for j in range(_tables.LIMBS)]


def _octaves(octaves: int, count: int, degree: int) -> list[list[Any]]:
    rows, q = [], mp.mpf(0)
    for octave in range(octaves):
        more, _, q = cells(octave, count, degree, q)
        rows += more
    return rows


def first(middle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fits `base` and `slopes`: quadratics through three Chebyshev points of every cell.

    Whole numbers are taken out so that what is left is above 3, and stays so when a doubt is
    subtracted: conversion to an integer is then the floor. (A fit: it is bounded by the tests.)
    """
    ratio = _tables.FIRST.cells // _tables.MIDDLE.cells
    index = np.arange(_tables.FIRST.octaves * _tables.FIRST.cells)
    octave = _tables.FIRST.octaves - 1 - index // _tables.FIRST.cells
    cell = index % _tables.FIRST.cells
    width = 2.0 ** (30 - octave) / _tables.FIRST.cells  # in words
    a = middle[octave * _tables.MIDDLE.cells + cell // ratio].T  # [12, cells]

    def value(v: np.ndarray) -> np.ndarray:
        """The value of 2^22 q at v words from the cell's start."""
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


def make() -> _tables.Tables:
    """Computes the constants anew."""
    with mp.workprec(_PRECISION):
        rows = _octaves(*_tables.MIDDLE)
        middle = np.array([[float(mp.ldexp(a, _tables.BITS)) for a in row] for row in rows])
        rows = _octaves(*_tables.LAST)
        last = np.array([[limbs(a) for a in row] for row in rows], np.uint16)
    return _tables.Tables(*first(middle), middle, last)


if __name__ == "__main__":
    np.savez_compressed(_tables.FILE, **make()._asdict())
