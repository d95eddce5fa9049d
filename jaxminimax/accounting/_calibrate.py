"""From a privacy target to noise multipliers, or to a number of releases."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from jaxminimax.accounting import _curves
from jaxminimax.accounting._charge import Charge, charge, louder, together
from jaxminimax.accounting._epsilon import charged_epsilon, check_delta, check_epsilon
from jaxminimax.mechanism import Mechanism, Sequence, with_noise

_TOLERANCE = 2e-4  # relative, on the noise multiplier; the private side of the bracket is returned


def _bracket(value: Callable[[float], float], target: float, start: float,
             factor: float) -> tuple[float, float]:
    """(low, high) around the scale at which a falling `value` reaches `target`, from `start`."""
    low = high = start
    if value(start) <= target:
        while value(low) <= target:
            low, high, factor = low / factor, low, factor**1.5
        return low, high
    while value(high) > target:
        low, high, factor = high, high * factor, factor**1.5
        if high > 1e100:
            raise ValueError("No noise multiplier up to 1e100 reaches the target.")
    return low, high


@functools.lru_cache(maxsize=1024)
def _noise_scale(cost: Charge, fixed: Charge, epsilon: float, delta: float,
                 neighbours: str) -> float:
    """Factor on the noise multipliers of `cost` that reaches (epsilon, delta) beside `fixed`."""
    factor = _curves.shift(neighbours)
    if fixed != Charge():
        already, _ = charged_epsilon(fixed, delta, neighbours)
        if already >= epsilon:
            raise ValueError(f"The other releases alone cost epsilon = {already:.4g} at delta = "
                             f"{delta:g}, and the target is {epsilon:g}: give them more noise.")
    if not cost.sampled and not fixed.sampled:
        room = (_curves.gaussian_mu(epsilon, delta) / factor) ** 2 - fixed.gaussian
        return math.sqrt(cost.gaussian / room)

    def total(scale: float) -> Charge:
        return together(louder(cost, scale), fixed)

    def by_renyi(scale: float) -> float:
        return _curves.rdp_epsilon(total(scale), 0.99 * delta, neighbours)

    def value(scale: float, coarse: float) -> float:
        return charged_epsilon(total(scale), delta, neighbours, coarse)[0]

    # never more than without sampling, which is closed
    squares = cost.gaussian + sum(times / z**2 for (_, z), times in cost.sampled)
    unsampled = factor * math.sqrt(squares) / _curves.gaussian_mu(epsilon, 0.9 * delta)
    low, high = _bracket(by_renyi, epsilon, 1e-2 * unsampled, 4.0)
    start = _secant(by_renyi, low, high, epsilon, 0.02)
    # each stage brackets around the answer of the quicker one before it
    for coarse, factor, tolerance in ((10.0, 1.15, 2e-3), (1.0, 1.002, _TOLERANCE)):
        at = functools.partial(value, coarse=coarse)
        low, high = _bracket(at, epsilon, start, factor)
        start = _secant(at, low, high, epsilon, tolerance)
    return start


def _secant(value: Callable[[float], float], low: float, high: float, target: float,
            tolerance: float) -> float:
    """Root of a falling function in log-log coordinates, from its private side.

    False position with a halved weight for an end that stays, so both ends move (Illinois rule).
    """
    def gap(scale: float) -> float:
        return min(math.log(max(value(scale), 1e-300) / target), 50.0)

    gap_low, gap_high = gap(low), gap(high)
    for _ in range(60):
        if high / low <= 1 + tolerance or -0.1 * tolerance < gap_high <= 0:
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


def calibrate(algorithm: Any, hyper: Any, epsilon: float, delta: float, *,
              neighbours: str = "replace_one", alongside: tuple[Mechanism, ...] = ()) -> Any:
    """`hyper` with the noise multipliers that make a whole run (epsilon, delta)-private.

    The search is on the joint cost of everything the run releases, and the private side of its
    bracket is returned. The ratio between the players' multipliers is kept: give
    `Query(noise_multiplier=budget_split(w=...))` for an unequal split; unset means equal.

    Args:
      algorithm: a module such as `sgda`.
      hyper: its `Hyper`.
      epsilon: target, in (0, 1e6).
      delta: target, in (0, 1).
      neighbours: as in `epsilon`.
      alongside: other mechanisms on the same data that the budget must also pay, with their own
        fixed noise (an estimate of the class prior, say).

    Raises:
      ValueError: for numbers out of range, or a target that no noise reaches.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    base = _with_query(hyper, with_noise(hyper.query, 1.0))
    cost = charge(algorithm.mechanism(base), neighbours)
    fixed = charge(Sequence(parts=tuple(alongside)), neighbours)
    if math.isinf(cost.gaussian) or any(z == 0 for (_, z), _ in cost.sampled):
        raise ValueError("noise_multiplier holds a 0, so no common factor makes the run private: "
                         "give the ratio between the players, or leave it None.")
    scale = _noise_scale(cost, fixed, float(epsilon), float(delta), neighbours)
    out = _with_query(hyper, with_noise(hyper.query, scale))
    check = together(charge(algorithm.mechanism(out), neighbours), fixed)
    if not charged_epsilon(check, float(delta), neighbours)[0] <= epsilon * (1 + 1e-9):
        raise ArithmeticError("calibration ended on the wrong side of the target.")
    return out


def calibrate_iterations(algorithm: Any, hyper: Any, epsilon: float, delta: float, *,
                         neighbours: str = "replace_one",
                         alongside: tuple[Mechanism, ...] = ()) -> Any:
    """`hyper` with the largest number of iterations that stays (epsilon, delta)-private.

    Args and errors as in `calibrate`; the noise multipliers of `hyper` are kept as they are.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    fixed = charge(Sequence(parts=tuple(alongside)), neighbours)

    def cost(iterations: int) -> Charge:
        changed = dataclasses.replace(hyper, iterations=iterations)
        return together(charge(algorithm.mechanism(changed), neighbours), fixed)

    def private(iterations: int) -> bool:
        total = cost(iterations)
        by_renyi = _curves.rdp_epsilon(total, 0.99 * delta, neighbours)
        failures = total.overflow + (1 + math.exp(min(epsilon, 500.0))) * total.law_error
        if by_renyi <= epsilon and failures <= 0.01 * delta:
            return True  # the quick bound is enough
        return charged_epsilon(total, float(delta), neighbours)[0] <= epsilon

    if not private(1):
        raise ValueError(f"Even one iteration costs more than epsilon = {epsilon:g} at delta = "
                         f"{delta:g}: raise the noise multipliers.")
    low, high = 1, 2
    while private(high):
        low, high = high, 2 * high
        if high > 2**40:
            raise ValueError("More than 10^12 iterations would be private: nothing to calibrate.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if private(middle) else (low, middle)
    return dataclasses.replace(hyper, iterations=low)


def _with_query(hyper: Any, query: Any) -> Any:
    return dataclasses.replace(hyper, query=query)
