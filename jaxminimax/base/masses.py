"""Binomial and hypergeometric laws in integer arithmetic, with one-sided bounds in floats.

Masses are computed from the likeliest one outwards, by the ratios of neighbours, in integers that
are rounded down. Ratios are at most 1, so each of N masses is off by less than N. Masses that are
not listed round to 0, and add up to less than N^2: the last one listed is below N, as the masses
are log-concave it is followed by ratios of at most r with r^N <= N / 2^bits, and
r / (1 - r) <= N / ln(2^bits / N).
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

BITS = 288  # of the likeliest mass


class Law(NamedTuple):
    """Bounds on P[k] for k = first, first + 1, ....

    Attributes:
      first: the least k that is not negligible.
      upper: an upper bound on each P[k], by k from `first` on.
      none: a lower bound on P[0].
      rest: an upper bound on the total probability of all k that are not listed.
    """

    first: int
    upper: tuple[float, ...]
    none: float
    rest: float


def outwards(middle: int, last: int, ratio: Callable[[int], tuple[int, int]],
             bits: int) -> tuple[int, tuple[int, ...]]:
    """Returns the least k that is not negligible, and the masses from it on, up to one factor.

    Args:
      middle: the likeliest k.
      last: the largest.
      ratio: P[k + 1] / P[k] as numerator and denominator.
      bits: the mass of `middle` is 2^bits.
    """
    down, up = [], [1 << bits]
    while up[-1] and middle + len(up) <= last:
        grows, shrinks = ratio(middle + len(up) - 1)
        up.append(up[-1] * grows // shrinks)
    mass, k = up[0], middle
    while mass and k:
        grows, shrinks = ratio(k - 1)
        mass = mass * shrinks // grows
        down.append(mass)
        k -= 1
    return k, (*reversed(down), *up)


def binomial_masses(trials: int, hit: int, both: int, bits: int) -> tuple[int, tuple[int, ...]]:
    """Returns `outwards` for the number of hits in trials of probability hit / both < 1 each."""
    miss = both - hit
    return outwards(min(trials, (trials + 1) * hit // both), trials,
                    lambda k: ((trials - k) * hit, (k + 1) * miss), bits)


@functools.lru_cache(maxsize=256)
def binomial(trials: int, hit: int, both: int) -> Law:
    """Bounds the law of the number of hits in trials, each with probability hit / both."""
    if hit >= both:
        return Law(trials, (1.0,), 0.0 if trials else 1.0, 0.0)
    return _enclosed(*binomial_masses(trials, hit, both, BITS), trials)


@functools.lru_cache(maxsize=256)
def hypergeometric(population: int, marked: int, draws: int) -> Law:
    """Bounds the law of the marked records in a subset of `draws`; marked + draws <= n."""
    left = population - marked - draws
    most = min(marked, draws)
    masses = outwards(min(most, (draws + 1) * (marked + 1) // (population + 2)), most,
                      lambda k: ((marked - k) * (draws - k), (k + 1) * (left + k + 1)), BITS)
    return _enclosed(*masses, most)


def _enclosed(first: int, masses: tuple[int, ...], last: int) -> Law:
    off, total = len(masses), sum(masses)
    all_listed = first == 0 and len(masses) == last + 1
    none = masses[0] / (total + 2 * off**2) if first == 0 else 0.0

    def above(mass: int) -> float:
        return math.nextafter(mass / total, math.inf)

    return Law(first, tuple(above(mass + off) for mass in masses), math.nextafter(none, 0.0),
               0.0 if all_listed else above(off**2))
