"""Roots of falling functions of the scale of noise, in logarithms, from the private side.

Whatever the search, calibrations end with one check of their target, `check_met`.
"""

import math
from collections.abc import Callable

_LEAST_SCALE = 1e-4
_NEAR = 2e-4  # how far below its target a calibrated epsilon may end, relative
_FAR = 50.0  # of the logarithm of epsilon: as good as infinite
_MISSED = 2e-3  # how far at most, or calibration has failed
_EXACT = 1e-12  # relative, on a scale whose value is quick
_TUNED = 2e-4  # relative, on a multiplier of a search; the private side is returned
_SHARED = 1e-4  # relative, on a multiplier of a run in a ledger
Falling = Callable[[float], float]


def find(value: Falling, target: float, guess: Falling | None = None) -> float:
    """The scale at which `value` falls to just below `target`.

    Args:
      value: falls with the scale; may jump.
      target: positive.
      guess: a quick approximation of an expensive `value`; None if `value` itself is quick.

    Raises:
      ValueError: if no scale within reason reaches the target, or none comes near it.
    """
    if guess is None:
        scale = secant(value, *bracket(value, target, 1.0, 4.0), target, _EXACT)
    else:
        scale = _root(value, guess, target)
    check_met(value(scale), target)
    return scale


def check_met(epsilon: float, target: float) -> None:
    """Refuses an answer that is not just below its target.

    Raises:
      ArithmeticError: if it is above; a search has failed.
      ValueError: if it is further below than calibration promises.
    """
    if not epsilon <= target:
        raise ArithmeticError("calibration ended on the wrong side of the target.")
    if epsilon < target * (1 - _MISSED):
        raise ValueError(
            f"epsilon = {target:g} cannot be met closely: with the least noise that reaches it, it "
            f"is {epsilon:.6g}, as delta must pay for what samplers and noise depart from their "
            "laws by, too. Choose a smaller epsilon or a larger delta.")


def bracket(value: Falling, target: float, start: float, factor: float) -> tuple[float, float]:
    """(low, high) around the scale at which a falling `value` reaches `target`, from `start`.

    A step is `factor`, which grows, times what a value that falls like 1 / scale would need, at
    most 2.

    Raises:
      ValueError: if no scale within reason is on the other side.
    """
    def step(at: float, factor: float) -> float:
        return factor * min(max(value(at) / target, target / max(value(at), 1e-300)), 2.0)

    low = high = start
    if value(start) <= target:
        while value(low) <= target:
            low, high, factor = low / step(low, factor), low, factor**1.5
            if high < _LEAST_SCALE:
                raise _needless(value(high), target)
        return low, high
    while value(high) > target:
        low, high, factor = high, high * step(high, factor), factor**1.5
        if low > 1e4 * start and value(low) > 0.999 * value(low / 10):
            raise ValueError(f"No noise multiplier reaches epsilon = {target:g}: it stays at "
                             f"{value(low):.4g} however much noise there is, as rounding to the "
                             "grid, other releases and samplers cost what they cost. Choose a "
                             "larger epsilon or delta or fewer releases, or give the release's "
                             "`parameters`, if it has far fewer numbers than it is charged for.")
    return low, high


def _needless(value: float, target: float) -> ValueError:
    return ValueError(f"epsilon = {value:.4g} holds with next to no noise, below the target "
                      f"{target:g}: delta pays for publishing the records that are sampled. Choose "
                      "a smaller delta.")


def secant(value: Falling, low: float, high: float, target: float, tolerance: float) -> float:
    """Root of a falling function in log-log coordinates, from its private side.

    False position with a halved weight for an end that stays, so both ends move (Illinois rule).
    """
    def gap(scale: float) -> float:
        return min(math.log(max(value(scale), 1e-300) / target), 50.0)

    gap_low, gap_high = gap(low), gap(high)
    for _ in range(60):
        if high / low <= 1 + tolerance or -0.5 * tolerance < gap_high <= 0:
            break
        share = gap_low / (gap_low - gap_high)
        share = min(max(share, 0.02), 0.98)
        # aim a little to the private side, so that the returned end is the one that converges
        middle = low * (high / low) ** share * (1 + 0.2 * tolerance)
        middle = min(middle, high * (1 - 1e-12))
        g = gap(middle)
        if g <= 0:
            high, gap_high, gap_low = middle, g, gap_low / 2
        else:
            low, gap_low, gap_high = middle, g, gap_high / 2
    return high


def _root(value: Falling, guess: Falling, target: float) -> float:
    """The private end of the last bracket of an expensive `value`; `guess` is quick."""
    start = secant(guess, *bracket(guess, target, 1.0, 4.0), target, 1e-3)
    slope = -max(abs(math.log(max(guess(start * 1.01), 1e-300) / max(guess(start), 1e-300)))
                 / math.log(1.01), 0.1)
    low: tuple[float, float] | None = None
    high: tuple[float, float] | None = None
    at, farthest = math.log(start), 0.5
    for _ in range(60):
        gap = min(max(math.log(max(value(math.exp(at)), 1e-300) / target), -_FAR), _FAR)
        if gap > 0:
            low = at, gap
        else:
            high = at, gap
            if gap >= -_NEAR:
                break
        if low and high:
            width = high[0] - low[0]
            if width < (1e-4 if low[1] == _FAR else 1e-9):
                break
            slope = min((high[1] - low[1]) / width, -1e-3)
            if max(low[1], -high[1]) > 1:  # far from a straight line
                at = (low[0] + high[0]) / 2
                continue
        new = at + min(max((gap + _NEAR / 2) / -slope, -farthest), farthest)
        farthest *= 2
        if high and not low and new < math.log(_LEAST_SCALE):
            raise _needless(math.exp(gap) * target, target)
        if low and high:
            new = min(max(new, low[0] + 0.02 * width), high[0] - 0.02 * width)
        at = new
    if high is None:
        raise ValueError(f"No noise multiplier was found that reaches epsilon = {target:g}.")
    return math.exp(high[0])


def least(cost: Callable[[float], float], aim: float) -> float:
    """The least factor on noise at which a falling cost is at most `aim`, from above.

    Raises:
      ValueError: if no noise up to 1e15 reaches it.
    """
    low = high = 1.0
    while cost(high) > aim:
        low, high = high, 2 * high
        if high > 1e15:
            raise ValueError("No noise multiplier reaches that share of what is left.")
    while low == high or cost(low) <= aim:
        low, high = low / 2, low
        if low < 1e-15:
            raise ValueError("The run costs next to nothing without noise: nothing to calibrate.")
    while high / low > 1 + _SHARED:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= aim else (middle, high)
    return high


def reach(excess: Callable[[float], float]) -> float:
    """The smallest scale, nearly, with excess(scale) <= 1; excess falls about like 1 / scale.

    Raises:
      ValueError: if no scale is enough.
    """
    low, high, scale = 0.0, math.inf, 1.0
    last: tuple[float, float] | None = None
    for tried in range(80):
        here = excess(scale)
        low, high = (low, scale) if here <= 1 else (scale, high)
        if high <= low * (1 + _TUNED) or 1 - _TUNED / 2 <= here <= 1:
            return high
        slope = -1.0
        if last is not None and here != last[1]:
            slope = math.log(here / last[1]) / math.log(scale / last[0])
        last = scale, here
        new = scale * min(max(here ** (-1 / min(max(slope, -4.0), -0.25)), 0.05), 20.0)
        new *= 1 + _TUNED / 4  # a little to the private side
        if high < math.inf:
            new = min(new, high * (1 - _TUNED / 2))
        scale = max(new, low * (1 + _TUNED / 2))
        if low and high < math.inf and (scale >= high or tried > 8):
            scale = math.sqrt(low * high)
        if scale > 1e12:
            break
    raise ValueError("No noise makes the search as private as that: what samplers may depart from "
                     "their law already takes more than delta over the expected number of runs.")
