"""Finds the noise multipliers that meet a privacy target, or the number of rounds.

The privacy loss falls with the scale of the noise, and `find` finds the least scale.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from jaxminimax.accounting import roots
from jaxminimax.accounting.curve import charges, dearest, extras, run_description, together
from jaxminimax.accounting.epsilon_delta import check_target, limits, refuse, warn_about_delta
from jaxminimax.base import checks
from jaxminimax.base.types import Algorithm, HyperT
from jaxminimax.mechanism import Description, Leaf, Sequence, composed, costs, leaves, with_noise

_CACHE: dict[tuple[Any, ...], float] = {}  # answers, by what is charged
Falling = Callable[[float], float]


def _solve(describe: Callable[[float], Description], epsilon: float, delta: float, neighbours: str,
           alongside: tuple[Description, ...], people: int) -> float:
    """Finds the factor at which `describe(factor)` with `alongside` is (epsilon, delta)-private."""
    fixed = Sequence(parts=tuple(alongside))
    alone = charges(describe(1.0), neighbours)
    sharp = together(describe(1.0), alone, people)
    # what is charged, not how it prints: arrays print fewer digits than they have
    # at two factors: some of what is charged may not change with it
    question = (alone, charges(describe(2.0), neighbours), charges(fixed, neighbours), epsilon,
                delta, neighbours, people, sharp)

    def value(scale: float, rough: bool = False) -> float:
        everything = Sequence(parts=(fixed, describe(scale)))
        return dearest(everything, delta, neighbours, people, rough=rough).epsilon

    # grids of players with other multipliers may be the same at these two factors, and not there
    if question in _CACHE and value(_CACHE[question]) <= epsilon:
        return _CACHE[question]
    if any(map(costs.silent, alone)):
        raise ValueError("noise_multiplier contains a 0, so no common factor makes the run "
                         "private: state the ratio between the players, or leave it None.")
    if not any(cost.losses or cost.gaussian for cost in alone):
        raise ValueError("The mechanism makes no release, so there is no noise to calibrate.")
    if alongside:
        _leave_room(alongside, epsilon, delta, neighbours, people)
    limit = limits(Sequence(parts=(fixed, describe(1.0))), delta, neighbours, people)
    refuse(epsilon, delta, limit)
    slow = any(cost.losses for cost in (*alone, *charges(fixed, neighbours)))
    scale = find(value, epsilon, (lambda scale: value(scale, True)) if slow else None)
    if len(_CACHE) > 4096:
        _CACHE.clear()
    _CACHE[question] = scale
    return scale


def _leave_room(fixed: tuple[Description, ...], epsilon: float, delta: float,
                neighbours: str, people: int) -> None:
    already = dearest(Sequence(parts=fixed), delta, neighbours, people).epsilon
    if already >= epsilon:
        raise ValueError(f"The other releases alone have epsilon = {already:.4g} at delta = "
                         f"{delta:g}, and the target is {epsilon:g}: add more noise to them.")


def _losses(algorithm: Any, hyper: Any) -> list[Leaf]:
    """Returns the run's releases of the kind of `hyper.losses`."""
    return [leaf for leaf in leaves(algorithm.mechanism(hyper)) if type(leaf) is type(hyper.losses)]


def _each_part(algorithm: Any, hyper: Any, epsilon: float, delta: float, neighbours: str,
               alongside: tuple[Description, ...]) -> Any:
    """Calibrates each part of a query to the target: a record is in one of the parts."""
    parts = tuple(_calibrated(query, epsilon, delta, neighbours, alongside)
                  for query in composed.disjoint_parts(hyper.query))
    hyper = dataclasses.replace(hyper, query=dataclasses.replace(hyper.query, parts=parts))
    everything = Sequence(parts=(*alongside, algorithm.mechanism(hyper)))
    check_met(dearest(everything, delta, neighbours).epsilon, epsilon)
    return hyper


def calibrate(algorithm: Algorithm[HyperT, Any], hyper: HyperT, epsilon: float, delta: float, *,
              neighbours: str = "replace_one", alongside: tuple[Description, ...] = (),
              share: float = 0.2, people: int = 1) -> HyperT:
    """Returns `hyper` with the noise multipliers that make a whole run (epsilon, delta)-private.

    The search is on the joint cost of everything the run releases, and the private side of its
    bracket is returned. The ratio between the players' multipliers is kept: pass
    `Query(noise_multiplier=budget_split(w=...))` for an unequal split; unset means equal. All
    descriptions of `hyper`, in any fields or tuples, are scaled by one factor, so the ratios
    between their multipliers are kept as well, and unset means 1: two queries with multipliers of
    Saddle(1.0, 1.0) and Saddle(3.0, 3.0) end with ratio 3. Parts on disjoint data, a single query
    that is `Parallel`, each reach the target by themselves.

    A `Hyper` with `losses` releases groups' losses too. Their noise, unless it is set already, is
    the noise at which they alone would cost `share * epsilon`. The noise of `query` then follows
    from the joint cost, which is far below the sum.

    Args:
      algorithm: a module such as `sgda`.
      hyper: its `Hyper`.
      epsilon: the target, in (0, 1e6).
      delta: the target, in (0, 1).
      neighbours: "replace_one" or "add_or_remove_one".
      alongside: other mechanisms on the same data that the budget must also pay, with their own
        fixed noise (an estimate of the class prior, say).
      share: the part of epsilon that groups' losses alone may cost, in (0, 1).
      people: k, if any k records of one person may differ instead of one.

    Raises:
      ValueError: for numbers out of range; for a target that no noise reaches, or that is met with
        next to none; for one that would be missed by more than 0.2 %; for settings without a
        description, or with one that `algorithm.mechanism(hyper)` does not have.
      TypeError: for an object that is no algorithm, or settings of another one.

    Examples:
        >>> query = jmm.Query(clip=Saddle(5.0, 1.0), population=1000)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=20)
        >>> hyper = jmm.calibrate(jmm.sgda, hyper, epsilon=1.0, delta=1e-6)
        >>> 0.998 < jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-6) <= 1
        True
    """
    checks.number("share", share, low=0.0, high=1.0)
    epsilon, delta, people = check_target(epsilon, delta, people)
    composed.check(run_description(algorithm, hyper))
    composed.check_charged(algorithm, hyper)
    calibrated = _calibrate(algorithm, hyper, epsilon, delta, neighbours, extras(alongside), share,
                            people)
    warn_about_delta(delta, algorithm.mechanism(calibrated))
    return calibrated


def _calibrate(algorithm: Any, hyper: Any, epsilon: float, delta: float, neighbours: str,
               alongside: tuple[Description, ...], share: float, people: int) -> Any:
    losses = getattr(hyper, "losses", None)
    if (set(composed.descriptions(hyper)) - {"losses"} == {"query"}
            and composed.disjoint_parts(hyper.query)):
        hyper = _each_part(algorithm, hyper, epsilon, delta, neighbours, alongside)
        if people == 1:
            return hyper  # one record is in one part; several may be in several, see below
    if losses is not None:
        if losses.noise_multiplier is None:
            (charged,) = _losses(algorithm, hyper)
            noisy = _calibrated(charged, share * epsilon, delta, neighbours, people=people)
            hyper = dataclasses.replace(hyper, losses=dataclasses.replace(noisy,
                                                                          times=losses.times))
        _leave_room((*alongside, *_losses(algorithm, hyper)), epsilon, delta, neighbours, people)

    def described(scale: float) -> Any:
        scaled = composed.with_noise_of_all(hyper, scale)
        return scaled if losses is None else dataclasses.replace(scaled, losses=hyper.losses)

    scale = _solve(lambda scale: algorithm.mechanism(described(scale)), epsilon, delta, neighbours,
                   alongside, people)
    return described(scale)


def calibrate_noise(mechanism: Description, epsilon: float, delta: float, *,
                    neighbours: str = "replace_one",
                    alongside: tuple[Description, ...] = (), people: int = 1) -> Any:
    """Returns `mechanism` with all its noise multipliers times the factor that reaches the target.

    It is for descriptions without an algorithm around them. `calibrate_shares` splits a budget.

    Args:
      mechanism: a description; a multiplier that is not set counts as 1.
      epsilon: the target, in (0, 1e6).
      delta: the target, in (0, 1).
      neighbours: "replace_one" or "add_or_remove_one".
      alongside: other mechanisms on the same data that the budget must also pay.
      people: k, if any k records of one person may differ instead of one.

    Raises:
      ValueError: for numbers out of range, or a target that no noise reaches.

    Examples:
        >>> tree = jmm.accounting.calibrate_noise(jmm.mechanism.TreeSums(clip=1.0, leaves=1000),
        ...                                       epsilon=1.0, delta=1e-6)
        >>> 0.998 < jmm.epsilon(tree, 1e-6) <= 1
        True
    """
    epsilon, delta, people = check_target(epsilon, delta, people)
    composed.check(mechanism)
    calibrated = _calibrated(mechanism, epsilon, delta, neighbours, extras(alongside), people)
    warn_about_delta(delta, calibrated)
    return calibrated


def calibrate_shares(mechanisms: tuple[Description, ...], shares: tuple[float, ...], epsilon: float,
                     delta: float, *, neighbours: str = "replace_one",
                     alongside: tuple[Description, ...] = (), people: int = 1) -> tuple[Any, ...]:
    """Returns descriptions with the noise at which each takes its share of one budget.

    With the share s a description has s^(-1/2) times the noise at which it alone, next to
    `alongside`, would take all of (epsilon, delta). That is the share s of the squared parameter
    mu^2 of Gaussian releases, which add up. If the shares have the sum 1, one common factor then
    puts the joint cost of all at the target, which moves sampled and Laplace releases. If the sum
    is smaller, the rest is for others: `calibrate(algorithm, hyper, epsilon, delta,
    alongside=...)` gives a run all that is left.

    Args:
      mechanisms: descriptions; a multiplier that is not set counts as 1.
      shares: for each of them, in (0, 1], with a sum of at most 1.
      epsilon: of all together, in (0, 1e6).
      delta: of all together, in (0, 1).
      neighbours: "replace_one" or "add_or_remove_one".
      alongside: other mechanisms on the same data, with their own noise, that are paid first.
      people: k, if any k records of one person may differ instead of one.

    Raises:
      ValueError: for shares out of range, or as `calibrate_noise`.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, None), population=1000)
        >>> parts = jmm.Repeat(query=query, times=1), jmm.Repeat(query=query, times=50)
        >>> parts = jmm.accounting.calibrate_shares(parts, (0.1, 0.9), epsilon=1.0, delta=1e-6)
        >>> 0.998 < jmm.epsilon(jmm.Sequence(parts=parts), 1e-6) <= 1
        True
    """
    for share in shares:
        checks.number("a share", share, low=0.0, high=1.0 + 1e-9)
    total = math.fsum(shares)
    if len(shares) != len(mechanisms) or total > 1 + 1e-9:
        raise ValueError(f"shares must be one for each of {len(mechanisms)} mechanisms, with a sum "
                         f"of at most 1, got {shares!r} with the sum {total:g}.")
    epsilon, delta, people = check_target(epsilon, delta, people)
    for mechanism in mechanisms:
        composed.check(mechanism)
    alongside = extras(alongside)
    parts = tuple(_calibrated(mechanism, epsilon, delta, neighbours, alongside, people, share)
                  for mechanism, share in zip(mechanisms, shares, strict=True))
    if len(parts) > 1 and total > 1 - 1e-9:
        parts = _calibrated(Sequence(parts=parts), epsilon, delta, neighbours, alongside,
                            people).parts
    warn_about_delta(delta, Sequence(parts=parts))
    return parts


def _calibrated(mechanism: Description, epsilon: float, delta: float, neighbours: str,
                alongside: tuple[Description, ...] = (), people: int = 1,
                share: float = 1.0) -> Any:
    """Calibrates a release; of several ways to make it, it takes the one with least noise.

    For a share, the noise of the way that is best for the whole budget is share^(-1/2) times that.
    """
    choices = mechanism.alternatives() if isinstance(mechanism, Leaf) else ()
    best, shared = None, None
    for choice in choices if len(choices) > 1 else (mechanism,):
        if best is not None:
            # with as much noise as the best so far: if that is private, this one is cheaper
            # deviations of forms of one release compare; their multipliers do not
            level = with_noise(choice, best.deviation() / with_noise(choice, 1.0).deviation())
            everything = Sequence(parts=(*alongside, level))
            if dearest(everything, delta, neighbours, people).epsilon > epsilon:
                continue
        describe = functools.partial(with_noise, choice)
        scale = _solve(describe, epsilon, delta, neighbours, alongside, people)
        best, shared = describe(scale), describe(scale / math.sqrt(share))
    return shared


# --- the least scale, by root finding that ends on the private side ---


def calibrate_iterations(algorithm: Algorithm[HyperT, Any], hyper: HyperT, epsilon: float,
                         delta: float, *, neighbours: str = "replace_one",
                         alongside: tuple[Description, ...] = (), people: int = 1) -> HyperT:
    """Returns `hyper` with the largest number of iterations that stays (epsilon, delta)-private.

    Args:
      algorithm: a module such as `sgda`.
      hyper: its `Hyper`, whose noise multipliers are kept.
      epsilon: the target, in (0, 1e6).
      delta: the target, in (0, 1).
      neighbours: "replace_one" or "add_or_remove_one".
      alongside: other mechanisms on the same data that the budget must also pay.
      people: k, if any k records of one person may differ instead of one.

    Raises:
      ValueError: for numbers out of range, or settings without iterations to calibrate.

    Examples:
        >>> query = jmm.Query(clip=Saddle(5.0, 1.0), population=1000,
        ...                   noise_multiplier=Saddle(50.0, 50.0))
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=1)
        >>> hyper = jmm.accounting.calibrate_iterations(jmm.sgda, hyper, epsilon=1.0, delta=1e-6)
        >>> jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-6) <= 1, hyper.iterations > 1
        (True, True)
    """
    epsilon, delta, people = check_target(epsilon, delta, people)
    mechanism, alongside = run_description(algorithm, hyper), extras(alongside)
    if composed.parts_of_data(mechanism) > 1 or not any(
            field.name == "iterations" for field in dataclasses.fields(hyper)):
        raise ValueError("Rounds on disjoint parts of the data cost together what one of them "
                         "costs, so there is no number of iterations to calibrate: use "
                         "plan(algorithm, ...).")

    def private(iterations: int, rough: bool = False) -> bool:
        changed = dataclasses.replace(hyper, iterations=iterations)
        everything = Sequence(parts=(*alongside, algorithm.mechanism(changed)))
        cost = dearest(everything, delta, neighbours, people, rough=rough)
        return cost.epsilon <= epsilon

    if not private(1):
        shortest = algorithm.mechanism(dataclasses.replace(hyper, iterations=1))
        refuse(0.0, delta, limits(Sequence(parts=(*alongside, shortest)), delta, neighbours,
                                  people))
        raise ValueError(f"One iteration alone exceeds epsilon = {epsilon:g} at delta = {delta:g}: "
                         "raise the noise multipliers.")
    rough_best = _largest(lambda n: private(n, True), 2, 2)
    best = _largest(private, rough_best, max(1, rough_best // 1000))
    warn_about_delta(delta, mechanism)
    return dataclasses.replace(hyper, iterations=best)


def _largest(private: Callable[[int], bool], start: int, step: int) -> int:
    """Finds the largest private number, near `start`; 1 if there is none."""
    endless = 2**40
    low, high = roots.bracket(private, start, step, lowest=1, highest=endless)
    if low == endless:
        raise ValueError("More than 10^12 iterations meet the target, so there is no largest "
                         "number to return: lower the noise multipliers.")
    return roots.bisect(private, low, high)[0]


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
        tolerance = 1e-12 if guess is None else 2e-4
    mended, missed = start, value(start) / target
    if guess is not None and 0.01 < abs(math.log(max(missed, 1e-300))) < 5.0:
        # a guess that is far off is off by about the same factor nearby; not where it cannot be,
        # as next to releases with a cost that no noise lowers
        aim = guess(start) / missed
        with contextlib.suppress(ValueError):
            mended = _secant(guess, *_bracket(guess, aim, start, 1.01, name), aim, 1e-3)
    if value(max(start, mended)) <= target < value(min(start, mended)):
        low, high = sorted((start, mended))
    else:
        low, high = _bracket(value, target, mended, factor, name)
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
    if epsilon < target * (1 - 2e-3):  # ten times what `find` aims at
        raise ValueError(
            f"{name} = {target:g} cannot be met closely. The least noise that reaches it has "
            f"{name} = {epsilon:.6g}, because the charge jumps there: for rounding to the grid, "
            "which is finer for less noise, or for how far samplers are from their laws. State "
            "`parameters`, the numbers of a release, if they are fewer than the accountant "
            "assumes, or choose a smaller epsilon or a larger delta.")


def _bracket(value: Falling, target: float, start: float, factor: float, name: str,
             ) -> tuple[float, float]:
    """Returns (low, high) around the scale at which a falling `value` reaches `target`.

    A step is `factor`, which grows, times what a value that falls like 1 / scale would need, at
    most 2.

    Raises:
      ValueError: if no scale within reason is on the other side.
    """
    def step(scale: float, factor: float) -> float:
        return factor * min(max(value(scale) / target, target / max(value(scale), 1e-300)), 2.0)

    low = high = start
    if value(start) <= target:
        while value(low) <= target:
            low, high, factor = low / step(low, factor), low, factor**1.5
            if low < 1e-3:  # a description takes no noise multiplier between 0 and 1e-4
                raise ValueError(
                    f"{name} = {value(high):.4g} holds with almost no noise, below the target "
                    f"{target:g}: delta allows publishing the sampled records. Choose a smaller "
                    "delta.")
        return low, high
    while value(high) > target:
        # a value that falls like 1 / scale would be met by one such step
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
        # where the chord of both ends crosses 0, in log-log coordinates
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
