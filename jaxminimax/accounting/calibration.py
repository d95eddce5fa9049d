"""From a privacy target to noise multipliers, or to a number of releases.

Roots of falling functions of a scale, in logarithms, ending on the side where they are below.

Whatever the search, calibrations end with one check of their target, `check_met`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from jaxminimax.accounting.answers import check_delta, check_epsilon, limits, refuse, warn_of
from jaxminimax.accounting.curve import beside, charges, dearest, of_run, together
from jaxminimax.base import checks
from jaxminimax.base.types import Algorithm, HyperT
from jaxminimax.mechanism import Leaf, Sequence, leaves, with_noise
from jaxminimax.mechanism.composed import (
    check,
    check_charged,
    descriptions,
    disjoint_parts,
    parts_of_data,
    with_noise_of_all,
)
from jaxminimax.mechanism.costs import silent
from jaxminimax.mechanism.description import Mechanism

_CACHE: dict[tuple[Any, ...], float] = {}  # answers, by what is charged


def _solve(describe: Callable[[float], Mechanism], epsilon: float, delta: float, neighbours: str,
           alongside: tuple[Mechanism, ...], people: int) -> float:
    """The factor at which `describe(factor)` beside `alongside` is (epsilon, delta)-private."""
    check_epsilon(epsilon)
    check_delta(delta)
    epsilon, delta = float(epsilon), float(delta)
    fixed = Sequence(parts=tuple(alongside))
    alone = charges(describe(1.0), neighbours)
    whole = together(describe(1.0), alone, people)
    # what is charged, not how it prints: arrays print fewer digits than they have
    # at two factors: some of what is charged may not change with it
    known = (alone, charges(describe(2.0), neighbours), charges(fixed, neighbours), epsilon, delta,
             neighbours, people, whole)

    def value(scale: float, rough: bool = False) -> float:
        made = Sequence(parts=(fixed, describe(scale)))
        return dearest(made, delta, neighbours, people, rough=rough).epsilon

    # grids of players with other multipliers may be the same at these two factors, and not there
    if known in _CACHE and value(_CACHE[known]) <= epsilon:
        return _CACHE[known]
    if any(map(silent, alone)):
        raise ValueError("noise_multiplier holds a 0, so no common factor makes the run private: "
                         "give the ratio between the players, or leave it None.")
    if not any(cost.losses or cost.gaussian for cost in alone):
        raise ValueError("There is nothing to calibrate: the mechanism releases nothing.")
    if alongside:
        _leave_room(alongside, epsilon, delta, neighbours, people)
    limit = limits(Sequence(parts=(fixed, describe(1.0))), delta, neighbours, people)
    refuse(epsilon, delta, limit)
    slow = any(cost.losses for cost in (*alone, *charges(fixed, neighbours)))
    scale = find(value, epsilon, (lambda scale: value(scale, True)) if slow else None)
    if len(_CACHE) > 4096:
        _CACHE.clear()
    _CACHE[known] = scale
    return scale


def _leave_room(others: tuple[Mechanism, ...], epsilon: float, delta: float,
                neighbours: str, people: int) -> None:
    check_delta(delta)
    already = dearest(Sequence(parts=others), float(delta), neighbours, people).epsilon
    if already >= epsilon:
        raise ValueError(f"The other releases alone cost epsilon = {already:.4g} at delta = "
                         f"{delta:g}, and the target is {epsilon:g}: give them more noise.")


def _losses(algorithm: Any, hyper: Any) -> list[Leaf]:
    """What the run releases of the kind of `hyper.losses`."""
    return [leaf for leaf in leaves(algorithm.mechanism(hyper))
            if type(leaf) is type(hyper.losses)]


def _with_losses(algorithm: Any, hyper: Any, epsilon: float, delta: float, neighbours: str,
                 people: int) -> Any:
    """`hyper` with noise on its groups' losses, if they have none yet."""
    if hyper.losses.noise_multiplier is not None:
        return hyper
    (losses,) = _losses(algorithm, hyper)
    made = _calibrated(losses, epsilon, delta, neighbours, people=people)
    return dataclasses.replace(hyper, losses=dataclasses.replace(made, times=hyper.losses.times))


def _each_part(algorithm: Any, hyper: Any, epsilon: float, delta: float, neighbours: str,
               alongside: tuple[Mechanism, ...]) -> Any:
    """`hyper` with parts of its query that reach the target each: a record is in one of them."""
    parts = tuple(_calibrated(part, epsilon, delta, neighbours, alongside)
                  for part in disjoint_parts(hyper.query))
    hyper = dataclasses.replace(hyper, query=dataclasses.replace(hyper.query, parts=parts))
    whole = Sequence(parts=(*alongside, algorithm.mechanism(hyper)))
    check_met(dearest(whole, float(delta), neighbours).epsilon, epsilon)
    return hyper


def calibrate(algorithm: Algorithm[HyperT, Any], hyper: HyperT, epsilon: float, delta: float, *,
              neighbours: str = "replace_one", alongside: tuple[Mechanism, ...] = (),
              share: float = 0.2, people: int = 1) -> HyperT:
    """`hyper` with the noise multipliers that make a whole run (epsilon, delta)-private.

    The search is on the joint cost of everything the run releases, and the private side of its
    bracket is returned. The ratio between the players' multipliers is kept: give
    `Query(noise_multiplier=budget_split(w=...))` for an unequal split; unset means equal. All
    descriptions of `hyper`, in whatever fields or tuples, are scaled by one factor, so the ratios
    between their multipliers are kept as well, and unset means 1: two queries with multipliers of
    Saddle(1.0, 1.0) and Saddle(3.0, 3.0) end with ratio 3. Parts on disjoint data, a single query
    that is `Parallel`, each reach the target by themselves.

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
      people: as in `epsilon`.

    Raises:
      ValueError: for numbers out of range; for a target that no noise reaches, or that is met with
        next to none; for one that would be missed by more than 0.2 %; for settings without a
        description, or with one that `algorithm.mechanism(hyper)` does not have.
      TypeError: for what is no algorithm, or settings that are not its own.

    Examples:
        >>> query = jmm.Query(clip=Saddle(5.0, 1.0), population=1000)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=20)
        >>> hyper = jmm.calibrate(jmm.sgda, hyper, epsilon=1.0, delta=1e-6)
        >>> 0.998 < jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-6) <= 1
        True
    """
    checks.number("share", share, low=0.0, high=1.0)
    check_epsilon(epsilon)
    check_delta(delta)
    checks.count("people", people)
    check(of_run(algorithm, hyper))
    check_charged(algorithm, hyper)
    made = _calibrate(algorithm, hyper, epsilon, delta, neighbours, beside(alongside), share,
                      int(people))
    warn_of(delta, algorithm.mechanism(made))
    return made


def _calibrate(algorithm: Any, hyper: Any, epsilon: float, delta: float, neighbours: str,
               alongside: tuple[Mechanism, ...], share: float, people: int) -> Any:
    losses = getattr(hyper, "losses", None)
    if set(descriptions(hyper)) - {"losses"} == {"query"} and disjoint_parts(hyper.query):
        hyper = _each_part(algorithm, hyper, epsilon, delta, neighbours, alongside)
        if people == 1:
            return hyper  # one record is in one part; several may be in several, see below
    if losses is not None:
        hyper = _with_losses(algorithm, hyper, share * epsilon, delta, neighbours, people)
        _leave_room((*alongside, *_losses(algorithm, hyper)), epsilon, delta, neighbours, people)

    def described(scale: float) -> Any:
        made = with_noise_of_all(hyper, scale)
        return made if losses is None else dataclasses.replace(made, losses=hyper.losses)

    scale = _solve(lambda scale: algorithm.mechanism(described(scale)), epsilon, delta, neighbours,
                   alongside, people)
    return described(scale)


def calibrate_noise(mechanism: Mechanism, epsilon: float, delta: float, *,
                    neighbours: str = "replace_one",
                    alongside: tuple[Mechanism, ...] = (), people: int = 1) -> Any:
    """`mechanism` with all its noise multipliers times the factor that reaches the target.

    For descriptions without an algorithm around them. To split a budget between gradients and group
    losses, calibrate the losses to their share first, then the run with `alongside=(losses,)`: the
    joint cost is far below the sum.

    Args and errors as in `calibrate`; a multiplier that is not set counts as 1.

    Examples:
        >>> tree = jmm.accounting.calibrate_noise(jmm.mechanism.TreeSums(clip=1.0, leaves=1000),
        ...                                       epsilon=1.0, delta=1e-6)
        >>> 0.998 < jmm.epsilon(tree, 1e-6) <= 1
        True
    """
    checks.count("people", people)
    check_epsilon(epsilon)
    check_delta(delta)
    check(mechanism)
    made = _calibrated(mechanism, epsilon, delta, neighbours, beside(alongside), int(people))
    warn_of(delta, made)
    return made


def _calibrated(mechanism: Mechanism, epsilon: float, delta: float, neighbours: str,
                alongside: tuple[Mechanism, ...] = (), people: int = 1) -> Any:
    choices = mechanism.alternatives() if isinstance(mechanism, Leaf) else ()
    if len(choices) > 1:
        return _cheapest(choices, epsilon, delta, neighbours, alongside, people)
    scale = _solve(lambda scale: with_noise(mechanism, scale), epsilon, delta, neighbours,
                   alongside, people)
    return with_noise(mechanism, scale)


def _cheapest(choices: tuple[Any, ...], epsilon: float, delta: float, neighbours: str,
              alongside: tuple[Mechanism, ...], people: int) -> Any:
    """The one of them that reaches the target with the smallest deviation of its noise."""
    best = _calibrated(choices[0], epsilon, delta, neighbours, alongside, people)
    for other in choices[1:]:
        # as noisy as the best so far: if that is private, it is cheaper
        level = with_noise(other, best.deviation() / with_noise(other, 1.0).deviation())
        whole = Sequence(parts=(*alongside, level))
        if dearest(whole, delta, neighbours, people).epsilon <= epsilon:
            best = _calibrated(other, epsilon, delta, neighbours, alongside, people)
    return best


def calibrate_iterations(algorithm: Algorithm[HyperT, Any], hyper: HyperT, epsilon: float,
                         delta: float, *, neighbours: str = "replace_one",
                         alongside: tuple[Mechanism, ...] = (), people: int = 1) -> HyperT:
    """`hyper` with the largest number of iterations that stays (epsilon, delta)-private.

    Args and errors as in `calibrate`; the noise multipliers of `hyper` are kept as they are.

    Examples:
        >>> query = jmm.Query(clip=Saddle(5.0, 1.0), population=1000,
        ...                   noise_multiplier=Saddle(50.0, 50.0))
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=1)
        >>> hyper = jmm.accounting.calibrate_iterations(jmm.sgda, hyper, epsilon=1.0, delta=1e-6)
        >>> jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-6) <= 1, hyper.iterations > 1
        (True, True)
    """
    check_epsilon(epsilon)
    check_delta(delta)
    checks.count("people", people)
    made, alongside = of_run(algorithm, hyper), beside(alongside)
    if parts_of_data(made) > 1 or not any(
            field.name == "iterations" for field in dataclasses.fields(hyper)):
        raise ValueError("Rounds on disjoint parts of the data cost no more than one of them, so "
                         "there is no number of iterations to calibrate: use plan(algorithm, ...).")

    def private(iterations: int, rough: bool = False) -> bool:
        changed = dataclasses.replace(hyper, iterations=iterations)
        whole = Sequence(parts=(*alongside, algorithm.mechanism(changed)))
        return dearest(whole, float(delta), neighbours, int(people), rough=rough).epsilon <= epsilon

    if not private(1):
        one = algorithm.mechanism(dataclasses.replace(hyper, iterations=1))
        refuse(0.0, delta, limits(Sequence(parts=(*alongside, one)), float(delta), neighbours,
                                  int(people)))
        raise ValueError(f"Even one iteration costs more than epsilon = {epsilon:g} at delta = "
                         f"{delta:g}: raise the noise multipliers.")
    about = _last(lambda n: private(n, True), 1, 2)
    step = max(1, about // 1000)
    low = high = about
    while not private(low):
        low, high, step = max(1, low - step), low, 2 * step
    if low == high:
        high = low + step
    best = _last(private, low, high)
    warn_of(delta, made)
    return dataclasses.replace(hyper, iterations=best)


def _last(private: Callable[[int], bool], low: int, high: int) -> int:
    """The last number that is private, from one that is, or is taken to be, and a larger one."""
    step = high - low
    while private(high):
        step *= 2
        low, high = high, high + step
        if high > 2**40:
            raise ValueError("More than 10^12 iterations would be private: nothing to calibrate.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if private(middle) else (low, middle)
    return low


_LEAST_SCALE = 1e-4
_NEAR = 2e-4  # how far below its target a calibrated epsilon may end, relative
_FAR = 50.0  # of the logarithm of epsilon: as good as infinite
_MISSED = 2e-3  # how far at most, or calibration has failed
_EXACT = 1e-12  # relative, on a scale whose value is quick
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
        scale = _costly_root(value, guess, target)
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


def _costly_root(value: Falling, guess: Falling, target: float) -> float:
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
