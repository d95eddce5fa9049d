"""The root finder of all calibrations, which ends on the private side, and bisection."""

import functools
import math
from collections.abc import Callable

_LEAST_SCALE = 1e-3  # a description takes no noise multiplier between 0 and 1e-4
_NEAR = 2e-4  # how far below its target a calibrated epsilon may end, relative
_MISSED = 2e-3  # how far at most, or calibration has failed
_EXACT = 1e-12  # relative, on a scale whose value is quick
Falling = Callable[[float], float]


def find(value: Falling, target: float, guess: Falling | None = None, *,
         tolerance: float | None = None, name: str = "epsilon") -> float:
    """Finds the scale at which `value` falls to just below `target`.

    Args:
      value: falls with the scale, about like 1 / scale; may jump.
      target: positive.
      guess: a quick approximation of an expensive `value`; None if `value` itself is quick.
      tolerance: relative, on value and scale; None: 1e-12 if `value` is quick, else 2e-4.
      name: of the value, for messages.

    Raises:
      ValueError: if no scale within reason reaches the target, or none comes near it.
    """
    value, start, factor = functools.cache(value), 1.0, 4.0
    if guess is not None:
        guess = functools.cache(guess)
        start = _secant(guess, *_bracket(guess, target, 1.0, 4.0, name), target, 1e-3)
        factor = 1.0005
    if tolerance is None:
        tolerance = _EXACT if guess is None else _NEAR
    low, high = _bracket(value, target, start, factor, name)
    scale = _secant(value, low, high, target, tolerance)
    check_met(value(scale), target, name)
    return scale


def check_met(epsilon: float, target: float, name: str = "epsilon") -> None:
    """Refuses an answer that is not just below its target.

    Raises:
      ArithmeticError: if it is above; a search has failed.
      ValueError: if it is further below than calibration promises.
    """
    if not epsilon <= target:
        raise ArithmeticError("calibration ended on the wrong side of the target.")
    if epsilon < target * (1 - _MISSED):
        raise ValueError(
            f"{name} = {target:g} cannot be met closely. The least noise that reaches it has "
            f"{name} = {epsilon:.6g}, because delta must also cover how far samplers and noise "
            "are from their laws. Choose a smaller epsilon or a larger delta.")


def last(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Bisects to two neighbouring numbers: `holds` is true of the first and not of the second."""
    while high - low > 2.0**-52 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def _bracket(value: Falling, target: float, start: float, factor: float, name: str,
             ) -> tuple[float, float]:
    """Returns (low, high) around the scale at which a falling `value` reaches `target`.

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
            if low < _LEAST_SCALE:
                raise ValueError(
                    f"{name} = {value(high):.4g} holds with almost no noise, below the target "
                    f"{target:g}: delta allows publishing the sampled records. Choose a smaller "
                    "delta.")
        return low, high
    while value(high) > target:
        low, high, factor = high, high * step(high, factor), factor**1.5
        if low > 1e4 * start and value(low) > 0.999 * value(low / 10):
            raise ValueError(
                f"No noise multiplier reaches {name} = {target:g}. It stays at {value(low):.4g} "
                "with any noise, because rounding to the grid, other releases and samplers have a "
                "cost of their own. Choose a larger epsilon or delta or fewer releases, or state "
                "`parameters`, if the release has far fewer numbers than the accountant assumes.")
    return low, high


def _secant(value: Falling, low: float, high: float, target: float, tolerance: float) -> float:
    """Finds the root of a falling function in log-log coordinates, from its private side.

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
