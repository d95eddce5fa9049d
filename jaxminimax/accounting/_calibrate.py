"""From a privacy target to noise multipliers, or to a number of releases."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from jaxminimax.accounting import _curves
from jaxminimax.accounting._charge import charges
from jaxminimax.accounting._epsilon import check_delta, check_epsilon, warn_of, worst
from jaxminimax.base import checks
from jaxminimax.mechanism import (
    Charge,
    Leaf,
    Mechanism,
    Sequence,
    disjoint_parts,
    leaves,
    parts_of_data,
    with_noise,
)
from jaxminimax.mechanism.costs import silent

_CACHE: dict[tuple, float] = {}  # answers, by what is charged
_TOLERANCE = 2e-4  # relative, on the noise multiplier; the private side of the bracket is returned


def _bracket(value: Callable[[float], float], target: float, start: float,
             factor: float) -> tuple[float, float]:
    """(low, high) around the scale at which a falling `value` reaches `target`, from `start`.

    A step is `factor`, which grows, times what a value that falls like 1 / scale would need, at
    most 2.
    """
    def step(at: float, factor: float) -> float:
        return factor * min(max(value(at) / target, target / max(value(at), 1e-300)), 2.0)

    low = high = start
    if value(start) <= target:
        while value(low) <= target:
            low, high, factor = low / step(low, factor), low, factor**1.5
        return low, high
    while value(high) > target:
        low, high, factor = high, high * step(high, factor), factor**1.5
        if high > 1e100:
            raise ValueError("No noise multiplier up to 1e100 reaches the target.")
    return low, high


def _scale(at: Callable[[float], tuple[Charge, ...]], epsilon: float, delta: float,
           neighbours: str) -> float:
    """The factor on noise multipliers at which the charges `at(factor)` reach (epsilon, delta)."""
    def value(scale: float, coarse: float = 1.0) -> float:
        return worst(at(scale), delta, neighbours, coarse)[0]

    def guess(scale: float) -> float:
        return max(_curves.rdp_epsilon(cost, 0.99 * delta, neighbours) for cost in at(scale))

    low, high = _bracket(guess, epsilon, 1.0, 4.0)
    start = _secant(guess, low, high, epsilon, 0.02)
    if not any(cost.losses for cost in at(1.0)):  # exact and quick
        return _secant(value, *_bracket(value, epsilon, start, 1.1), epsilon, 1e-12)
    # each stage brackets around the answer of the quicker one before it
    for coarse, factor, tolerance in ((10.0, 1.15, 4e-3), (1.0, 1.002, _TOLERANCE)):
        stage = functools.partial(value, coarse=coarse)
        low, high = _bracket(stage, epsilon, start, factor)
        start = _secant(stage, low, high, epsilon, tolerance)
    return start


def _solve(describe: Callable[[float], Mechanism], epsilon: float, delta: float, neighbours: str,
           alongside: tuple[Mechanism, ...]) -> float:
    """The factor at which `describe(factor)` beside `alongside` is (epsilon, delta)-private."""
    check_epsilon(epsilon)
    check_delta(delta)
    epsilon, delta = float(epsilon), float(delta)
    fixed = Sequence(parts=tuple(alongside))
    alone = charges(describe(1.0), neighbours)
    # what is charged, not how it prints: arrays print fewer digits than they have
    # at two factors: some of what is charged may not change with it
    known = (alone, charges(describe(2.0), neighbours), charges(fixed, neighbours), epsilon, delta,
             neighbours)

    def at(scale: float) -> tuple[Charge, ...]:
        return charges(Sequence(parts=(fixed, describe(scale))), neighbours)

    # grids of players with other multipliers may be the same at these two factors, and not there
    if known in _CACHE and worst(at(_CACHE[known]), delta, neighbours)[0] <= epsilon:
        return _CACHE[known]
    if any(map(silent, alone)):
        raise ValueError("noise_multiplier holds a 0, so no common factor makes the run private: "
                         "give the ratio between the players, or leave it None.")
    if alongside:
        _leave_room(alongside, epsilon, delta, neighbours)
    scale = _scale(at, epsilon, delta, neighbours)
    if not worst(at(scale), delta, neighbours)[0] <= epsilon:
        raise ArithmeticError("calibration ended on the wrong side of the target.")
    if len(_CACHE) > 4096:
        _CACHE.clear()
    _CACHE[known] = scale
    return scale


def _leave_room(others: tuple[Mechanism, ...], epsilon: float, delta: float,
                neighbours: str) -> None:
    check_delta(delta)
    already, _ = worst(charges(Sequence(parts=others), neighbours), float(delta), neighbours)
    if already >= epsilon:
        raise ValueError(f"The other releases alone cost epsilon = {already:.4g} at delta = "
                         f"{delta:g}, and the target is {epsilon:g}: give them more noise.")


def _losses(algorithm: Any, hyper: Any) -> list[Leaf]:
    """What the run releases of the kind of `hyper.losses`."""
    return [leaf for leaf in leaves(algorithm.mechanism(hyper))
            if type(leaf) is type(hyper.losses)]


def _with_losses(algorithm: Any, hyper: Any, epsilon: float, delta: float, neighbours: str) -> Any:
    """`hyper` with noise on its groups' losses, if they have none yet."""
    if hyper.losses.noise_multiplier is not None:
        return hyper
    (losses,) = _losses(algorithm, hyper)
    made = _calibrated(losses, epsilon, delta, neighbours)
    return dataclasses.replace(hyper, losses=dataclasses.replace(
        hyper.losses, noise_multiplier=made.noise_multiplier))


def _each_part(algorithm: Any, hyper: Any, epsilon: float, delta: float, neighbours: str,
               alongside: tuple[Mechanism, ...]) -> Any:
    """`hyper` with parts of its query that reach the target each: a record is in one of them."""
    parts = tuple(_calibrated(part, epsilon, delta, neighbours, alongside)
                  for part in disjoint_parts(hyper.query))
    hyper = dataclasses.replace(hyper, query=dataclasses.replace(hyper.query, parts=parts))
    whole = Sequence(parts=(*alongside, algorithm.mechanism(hyper)))
    if not worst(charges(whole, neighbours), float(delta), neighbours)[0] <= epsilon:
        raise ArithmeticError("calibration ended on the wrong side of the target.")
    return hyper


def _secant(value: Callable[[float], float], low: float, high: float, target: float,
            tolerance: float) -> float:
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


def calibrate(algorithm: Any, hyper: Any, epsilon: float, delta: float, *,
              neighbours: str = "replace_one", alongside: tuple[Mechanism, ...] = (),
              share: float = 0.2) -> Any:
    """`hyper` with the noise multipliers that make a whole run (epsilon, delta)-private.

    The search is on the joint cost of everything the run releases, and the private side of its
    bracket is returned. The ratio between the players' multipliers is kept: give
    `Query(noise_multiplier=budget_split(w=...))` for an unequal split; unset means equal. Parts on
    disjoint data, a query that is `Parallel`, each reach the target by themselves.

    A hyper with `losses` releases groups' losses too. Their noise, unless it is set already, is
    the one at which they alone would cost `share * epsilon`; then `query`'s is found on the joint
    cost, which is far below the sum.

    Args:
      algorithm: a module such as `sgda`.
      hyper: its `Hyper`.
      epsilon: target, in (0, 1e6).
      delta: target, in (0, 1).
      neighbours: as in `epsilon`.
      alongside: other mechanisms on the same data that the budget must also pay, with their own
        fixed noise (an estimate of the class prior, say).
      share: of epsilon that groups' losses alone may cost, in (0, 1).

    Raises:
      ValueError: for numbers out of range, or a target that no noise reaches.
    """
    checks.number("share", share, low=0.0, high=1.0)
    check_epsilon(epsilon)
    check_delta(delta)
    made = _calibrate(algorithm, hyper, epsilon, delta, neighbours, alongside, share)
    warn_of(delta, algorithm.mechanism(made))
    return made


def _calibrate(algorithm: Any, hyper: Any, epsilon: float, delta: float, neighbours: str,
               alongside: tuple[Mechanism, ...], share: float) -> Any:
    if disjoint_parts(hyper.query):
        return _each_part(algorithm, hyper, epsilon, delta, neighbours, alongside)
    if getattr(hyper, "losses", None) is not None:
        hyper = _with_losses(algorithm, hyper, share * epsilon, delta, neighbours)
        _leave_room((*alongside, *_losses(algorithm, hyper)), epsilon, delta, neighbours)

    def described(scale: float) -> Any:
        return dataclasses.replace(hyper, query=with_noise(hyper.query, scale))

    scale = _solve(lambda scale: algorithm.mechanism(described(scale)), epsilon, delta, neighbours,
                   alongside)
    return described(scale)


def calibrate_noise(mechanism: Mechanism, epsilon: float, delta: float, *,
                    neighbours: str = "replace_one",
                    alongside: tuple[Mechanism, ...] = ()) -> Any:
    """`mechanism` with all its noise multipliers times the factor that reaches the target.

    For descriptions without an algorithm around them. To split a budget between gradients and group
    losses, calibrate the losses to their share first, then the run with `alongside=(losses,)`: the
    joint cost is far below the sum.

    Args and errors as in `calibrate`; a multiplier that is not set counts as 1.
    """
    made = _calibrated(mechanism, epsilon, delta, neighbours, alongside)
    warn_of(delta, made)
    return made


def _calibrated(mechanism: Mechanism, epsilon: float, delta: float, neighbours: str,
                alongside: tuple[Mechanism, ...] = ()) -> Any:
    scale = _solve(lambda scale: with_noise(mechanism, scale), epsilon, delta, neighbours,
                   alongside)
    return with_noise(mechanism, scale)


def calibrate_iterations(algorithm: Any, hyper: Any, epsilon: float, delta: float, *,
                         neighbours: str = "replace_one",
                         alongside: tuple[Mechanism, ...] = ()) -> Any:
    """`hyper` with the largest number of iterations that stays (epsilon, delta)-private.

    Args and errors as in `calibrate`; the noise multipliers of `hyper` are kept as they are.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    made = algorithm.mechanism(hyper)
    if parts_of_data(made) > 1 or not any(
            field.name == "iterations" for field in dataclasses.fields(hyper)):
        raise ValueError("Rounds on disjoint parts of the data cost no more than one of them, so "
                         "there is no number of iterations to calibrate: use plan(algorithm, ...).")

    def private(iterations: int) -> bool:
        changed = dataclasses.replace(hyper, iterations=iterations)
        whole = Sequence(parts=(*alongside, algorithm.mechanism(changed)))
        costs = charges(whole, neighbours)
        if all(_quickly(cost, epsilon, delta, neighbours) for cost in costs):
            return True
        return worst(costs, float(delta), neighbours)[0] <= epsilon

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
    warn_of(delta, made)
    return dataclasses.replace(hyper, iterations=low)


def _quickly(cost: Charge, epsilon: float, delta: float, neighbours: str) -> bool:
    """Whether the quick bound already shows that a charge meets the target."""
    if not {loss.kind for loss, _ in cost.losses} <= {"poisson", "laplace"}:
        return False
    failures = (math.expm1(cost.ratio) * delta + cost.overflow
                + (1 + math.exp(min(epsilon, 500.0))) * cost.law_error)
    return (failures <= 0.01 * delta
            and _curves.rdp_epsilon(cost, 0.98 * delta, neighbours) + cost.ratio <= epsilon)
