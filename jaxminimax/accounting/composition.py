"""Upper bounds on epsilon and delta of composed releases, and quick guesses of them.

A direction of a pair is a list of dominating pairs and how often each is repeated; answers are the
largest over all directions. A tilted transform is accurate near the epsilon that it is tilted to,
so its tilt is guessed: from masses on geometric grids, with the tilted sum taken to be normal. What
is returned does not rest on guesses: every transform gives bounds (`tilt`).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from jaxminimax.accounting import pairs, roots, series, tilt

Direction = Sequence[tuple[pairs.Pair, int]]
_FEW_CELLS = 2**17  # of one release on either side
_LOOSENESS = 3e-6  # of epsilon, by the cells of a series, and once more by its smoothing
_ROUNDS = 4


class Answer(NamedTuple):
    """A bound, and how it was computed: "pld" by a transform, "chernoff" without."""

    value: float
    name: str


class _Guess:
    """The releases of one direction on geometric grids: for guesses, and for Chernoff's bound."""

    def __init__(self, releases: Direction, delta: float) -> None:
        self.releases, self.delta = releases, delta
        self.times = sum(times for _, times in releases)
        # what is cut off each release adds up to a small part of delta
        tail = 1e-4 * delta / self.times
        self.parts = [tilt.stretched(pair, tail, times) for pair, times in releases]
        self.tops = [float(np.abs(masses.loss).max()) for masses in self.parts]

    def near(self, t: float, eps: float | None = None) -> tuple[float, float, float]:
        """Returns ln delta of a normal tilted sum, at eps or its mean; eps; the deviation."""
        k, mean, variance = tilt.moments(self.parts, t)
        spread = math.sqrt(max(variance, 1e-300))
        eps = mean if eps is None else eps
        return tilt.normal_delta(k - t * eps, spread, t, mean - eps), eps, spread

    def tilt_for(self, delta: float) -> float:
        """Returns the t with about the epsilon of delta as tilted mean; 0 if that is too small."""
        target = math.log(delta)

        def gap(log_t: float) -> float:
            return self.near(math.exp(log_t))[0] - target

        if self.near(0.0)[0] <= target:
            return 0.0
        low, high = roots.bracket(lambda log_t: gap(log_t) > 0, 0.0, 2.0, factor=1.0,
                                  lowest=-26.0, highest=26.0)
        if high == -26.0:
            return 0.0
        return math.exp(roots.zero(gap, low, high, xtol=1e-3))

    def aim(self, delta: float) -> tuple[float, float]:
        """Returns `tilt_for` delta, and about the epsilon of delta."""
        t = self.tilt_for(delta)
        _, mean, spread = self.near(t)
        if t > 0:
            return t, mean
        return t, roots.zero(lambda eps: self.near(0.0, eps)[0] - math.log(delta),
                             max(0.0, mean - 30 * spread), mean, rtol=1e-6)

    def width(self, t: float, eps: float) -> float:
        """Returns how wide the cells of a transform are, for accuracy and memory."""
        spread = self.near(t)[2]
        cheap = max(20 * spread, max(self.tops)) / _FEW_CELLS  # so many cost nothing
        # fine enough for 1e-4 of epsilon, or finer where that costs nothing
        h = min(tilt.cell(eps, t, spread, self.times), cheap)
        return max(h, max(self.tops) / 2**19)

    def long(self, t: float, eps: float) -> bool:
        """Returns True where a transform is so long that its rounding exceeds what cells gain."""
        return (self.times <= tilt.MOST_TIMES
                and self.near(t)[2] > 2**16 * self.width(t, eps))

    def series(self, eps: float, log_delta: float, looseness: float = _LOOSENESS) -> series.Series:
        """Composes by the series, tilted for eps, of which it costs about a part `looseness`."""
        return series.Series(self.releases, self.tops, series.tilt_to(self.parts, eps), eps,
                             log_delta, looseness)

    def composed(self, t: float, eps: float, log_delta: float) -> tilt.Composed:
        """Composes by the transform, with cells of `width`, or as memory demands."""
        h = self.width(t, eps)
        for _ in range(40):
            parts = [tilt.uniform(pair, top, times, h) for (pair, times), top in
                     zip(self.releases, self.tops, strict=True)]
            try:
                return tilt.Composed(parts, self.parts, h, t, eps, log_delta)
            except MemoryError:
                h *= 1.5
        raise ArithmeticError("no grid holds the composed privacy loss")


def guess_epsilon(directions: Sequence[Direction], paid: Callable[[float], float]) -> float:
    """Guesses what `epsilon_at` returns, within a few per cent, usually a thousandth.

    Where hits are rare a normal sum may be far off: a quick series takes its place.
    """
    delta = paid(0.0)
    if delta <= 0:
        return math.inf
    guesses = [_Guess(releases, delta) for releases in directions]
    if any(tilt.atoms(guess.parts) >= delta for guess in guesses):
        return math.inf
    value = 0.0
    for _ in range(_ROUNDS):
        value = max(_rough_epsilon(guess, delta, paid) for guess in guesses)
        available = paid(value)
        if available >= 0.99 * delta:
            return value
        if available <= 0:
            return math.inf
        delta = available
    return value


def deltas_at(releases: Direction, epsilons: np.ndarray) -> np.ndarray:
    """Returns upper bounds on H of all releases of one direction at every e^eps.

    A series bounds delta at every eps. It serves smaller ones than its own too, for as long as its
    rounding, and what is beyond its last wave, are small there: what aliases is less than that, and
    delta is less steep, so that its cells are narrow enough.
    """
    values, composed, allowed = np.ones(len(epsilons)), None, 0.0
    order = np.argsort(epsilons)
    for i in order[::-1]:
        eps = min(float(epsilons[i]), 1e9)  # beyond, the bound at this one serves
        if composed is not None and eps >= composed.losses[0]:
            values[i], rounded = composed.bound(eps)
            if rounded <= allowed:
                continue
        values[i], composed = _delta(releases, eps)
        if composed is not None:
            allowed = max(3e-4, min(composed.bound(eps)[1], 1e-2))
    # delta falls: a bound at a smaller epsilon holds at a larger one
    values[order] = np.minimum.accumulate(values[order])
    return values


def _delta(releases: Direction, eps: float) -> tuple[float, series.Series | None]:
    """Returns an upper bound on delta at eps, and the series that it is from, if any."""
    guess, log_delta, t = _guessed_at(releases, eps)
    long = guess.long(t, eps)
    if long:  # a normal sum may be far off: a quick series says where to cut off
        quick = max(guess.series(eps, log_delta, 1e-3).delta(eps), 1e-280)
        guess, log_delta = _Guess(releases, quick), math.log(quick)
    value, composed = _bound(guess, eps, t, log_delta, long)
    for _ in range(_ROUNDS):
        if 0.5 < value / guess.delta < 1e3 or value < 1e-270:
            break
        # the guess is far off: cut off where that one says, and tilt again
        guess = _Guess(releases, value)
        better, finer = _bound(guess, eps, tilt.tilt_to(guess.parts, eps), math.log(value), long)
        if better > 0.99 * value:
            break
        value, composed = better, finer
    return value, composed


def _bound(guess: _Guess, eps: float, t: float, log_delta: float,
           long: bool) -> tuple[float, series.Series | None]:
    """Returns an upper bound on delta at eps of one direction, tilted by t, and its series."""
    best = tilt.chernoff(guess.parts, eps, t)
    # no transform is needed for so small a delta
    if guess.times > tilt.MOST_TIMES or best <= 1e-250:
        return best, None
    if long or guess.long(t, eps):
        composed = guess.series(eps, log_delta)
        return min(best, composed.delta(eps)), composed
    return min(best, guess.composed(t, eps, log_delta).delta(eps)), None


def _guessed_at(releases: Direction, eps: float) -> tuple[_Guess, float, float]:
    """Returns masses truncated for the delta at eps, ln of that delta, and the tilt."""
    delta = 1e-6
    for _ in range(_ROUNDS):
        guess = _Guess(releases, delta)
        t = tilt.tilt_to(guess.parts, eps)
        log_delta = max(min(guess.near(t, eps)[0], 0.0), -650.0)
        if math.exp(log_delta) * 1.5 >= delta or delta < 1e-270:
            break
        delta = math.exp(log_delta)
    return guess, log_delta, t


def epsilon_at(directions: Sequence[Direction], paid: Callable[[float], float]) -> Answer:
    """Finds about the smallest epsilon at which all directions need at most `paid(epsilon)`.

    Args:
      directions: of the pair.
      paid: falls with epsilon, if at all.
    """
    delta = paid(0.0)
    if delta <= 0:
        return Answer(math.inf, "pld")
    guesses = [_Guess(releases, delta) for releases in directions]
    worst = Answer(0.0, "pld")
    if len(guesses) > 1:
        guesses.sort(key=lambda guess: -guess.aim(delta)[1])
    for guess in guesses:
        if worst.value > 0 and tilt.chernoff(guess.parts, worst.value) <= paid(worst.value):
            continue
        worst = max(worst, _epsilon(guess, delta, paid))
    return worst


def _epsilon(guess: _Guess, delta: float, paid: Callable[[float], float]) -> Answer:
    best = Answer(_chernoff_epsilon(guess, delta, paid), "chernoff")
    if guess.times > tilt.MOST_TIMES or tilt.atoms(guess.parts) >= delta:
        return best
    t, eps = guess.aim(delta)
    affordable = _affordable(paid)
    if eps > affordable:  # beyond, most of delta goes elsewhere
        t, eps = tilt.tilt_to(guess.parts, affordable), affordable
    if guess.long(t, eps):
        starts = min(best.value, affordable), eps
        return min(best, Answer(_nearest_epsilon(guess, delta, paid, starts), "pld"))
    for _ in range(_ROUNDS):
        composed = guess.composed(t, eps, math.log(delta))
        value = _root(composed, paid, eps)
        if value is None:
            break
        best = min(best, Answer(value, "pld"))
        again = tilt.tilt_to(guess.parts, value)
        spread = guess.near(again)[2]
        slope = max(composed.slope(value), 1e-3 * t)
        fine = tilt.cell(value, slope, spread, guess.times) > 0.7 * composed.h
        if abs(value - eps) <= 4 * spread and fine:
            break
        t, eps = again, value
    return best


def _rough_epsilon(guess: _Guess, delta: float, paid: Callable[[float], float]) -> float:
    t, eps = guess.aim(delta)
    if not guess.long(t, eps):
        return eps
    start = _chernoff_epsilon(guess, delta, paid)
    starts = min(start, _affordable(paid)), eps
    return min(start, _nearest_epsilon(guess, delta, paid, starts, 1e-4))


def _nearest_epsilon(guess: _Guess, delta: float, paid: Callable[[float], float],
                     starts: tuple[float, float], looseness: float = _LOOSENESS) -> float:
    """Finds epsilon by series from Chernoff's bound, and from the guess if that is far below.

    Where delta is nearly that at epsilon 0, or more, Chernoff's bound is far above.
    """
    chernoff, guessed = starts
    value = _series_epsilon(guess, delta, paid, chernoff, looseness)
    if value > 2 * guessed:
        value = min(value, _series_epsilon(guess, delta, paid, guessed, looseness))
    return value


def _series_epsilon(guess: _Guess, delta: float, paid: Callable[[float], float], eps: float,
                    looseness: float = _LOOSENESS) -> float:
    """Finds epsilon by series, the first one tilted for `eps`; infinity if none reaches it."""
    best = math.inf
    for cost in (1e-3, looseness, looseness):  # a quick one says where the others are tilted to
        composed = guess.series(eps, math.log(delta), cost)
        value = _root(composed, paid, eps)
        if value is None:
            break
        best = min(best, value)
        if cost == looseness and eps <= 1.5 * value:
            break
        eps = value
    return best


def _affordable(paid: Callable[[float], float]) -> float:
    """Returns the largest epsilon that leaves nearly all of delta; infinity if all of them do."""
    least = 0.99 * paid(0.0)
    if paid(1e6) >= least:
        return math.inf
    return roots.bisect(lambda eps: paid(eps) >= least, 0.0, 1e6, width=1e-3)[0]


def _root(composed: tilt.Composed | series.Series, paid: Callable[[float], float],
          start: float) -> float | None:
    """Finds the root of delta(eps) = paid(eps) near `start`, from above; None without one."""
    @functools.cache
    def gap(eps: float) -> float:
        available = paid(eps)
        if available <= 0:
            return math.inf
        return math.log(max(composed.delta(eps), 1e-320)) - math.log(available)

    def short(eps: float) -> bool:
        return gap(eps) > 0

    lowest, highest = max(0.0, float(composed.losses[0])), float(composed.losses[-1])
    low, high = roots.bracket(short, min(max(start, lowest), highest), 0.05 * composed.spread,
                              lowest=lowest, highest=highest)
    if low == high:
        return None if short(high) else low
    width = 1e-7 * max(high, composed.h)
    # the root itself may be on either side of where the bound holds: a bracket from there on
    root = roots.zero(lambda eps: min(gap(eps), 100.0), low, high, xtol=width)
    return roots.bracket(short, root, width, lowest=root, highest=high)[1]


def _chernoff_epsilon(guess: _Guess, delta: float, paid: Callable[[float], float]) -> float:
    """Returns epsilon by Chernoff's bound, which holds for every t."""
    atom = tilt.atoms(guess.parts)
    for _ in range(_ROUNDS):
        if delta <= atom:
            return math.inf
        # delta = atom + e^(K - t eps + most(t)), solved for eps
        target = math.log(delta - atom)

        def bound(log_t: float, target: float = target) -> float:
            t = math.exp(log_t)
            k, _, _ = tilt.moments(guess.parts, t)
            off = tilt.rounding(guess.parts, t) + 8 * tilt.UNIT * abs(k)
            # eps = (K + ln most(t) - ln(delta - atom)) / t
            return (k + off - target + tilt.most_paid(t)) / t

        middle = math.log(max(guess.tilt_for(delta - atom), 1e-9))
        least = scipy.optimize.minimize_scalar(bound, bounds=(middle - 2, middle + 2),
                                               method="bounded", options={"xatol": 1e-2})
        value = max(0.0, float(least.fun)) * (1 + 1e-12)
        if paid(value) >= delta:
            return value
        delta = 0.999 * paid(value)
    return math.inf
