"""Roots of monotone functions: ends that grow, brackets, bisection and zeros.

A bound holds on one side of a root only. `bracket` and `bisect` return a number of either side, and
a caller takes the one where its bound holds. `zero` may end on either side: a caller that needs one
of them goes on by `bracket`, from what `zero` returned.
"""

import functools
from collections.abc import Callable
from typing import TypeVar

import scipy

Number = TypeVar("Number", int, float)


def bracket(holds: Callable[[Number], bool], start: Number, step: Number, *, factor: Number = 2,
            lowest: Number, highest: Number) -> tuple[Number, Number]:
    """Finds two numbers: `holds` is true of the first, and not of the second, which is larger.

    Args:
      holds: true up to some number, and false beyond it.
      start: where to begin.
      step: the first one, in either direction.
      factor: by which steps grow.
      lowest: twice this one is returned if `holds` is false of it.
      highest: twice this one is returned if `holds` is true of it.
    """
    low = high = start
    while holds(high):
        if high >= highest:
            return highest, highest
        low, high, step = high, min(high + step, highest), factor * step
    while low == high or not holds(low):
        if low <= lowest:
            return lowest, lowest
        low, high, step = max(low - step, lowest), low, factor * step
    return low, high


def grown(short: Callable[[float], bool], start: float, factor: float, highest: float) -> float:
    """Returns the first of start, factor start, ... that is not short, or is above `highest`."""
    while short(start) and start <= highest:
        start *= factor
    return start


def bisect(holds: Callable[[Number], bool], low: Number, high: Number,
           width: float = 0.0) -> tuple[Number, Number]:
    """Bisects to neighbouring numbers: `holds` is true of the first and not of the second.

    Whole numbers, up to 2^52, stay whole. With a `width` the two may be that far apart.
    """
    while high - low > max(width, 2.0**-52 * high):
        middle = (low + high) // 2 if isinstance(low, int) else (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def zero(falling: Callable[[float], float], low: float, high: float, *, xtol: float = 2e-12,
         rtol: float = 2.0**-50) -> float:
    """Finds a zero of a falling function, to within xtol + rtol |zero|, or the nearest end."""
    falling = functools.cache(falling)
    if falling(low) <= 0:
        return low
    if falling(high) >= 0:
        return high
    return float(scipy.optimize.brentq(falling, low, high, xtol=xtol, rtol=rtol))
