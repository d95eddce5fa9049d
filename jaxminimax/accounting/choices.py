"""Finds by what it costs how many rounds a run may make, and whether parts should take turns."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxminimax.accounting import answers, calibration, curve, roots
from jaxminimax.base.types import Algorithm, HyperT
from jaxminimax.mechanism import Description, Sequence, composed, correlated

_QUIET = 1.2  # noise multiplier above which parts in turn gain nothing
_GAIN = 0.95  # what they must leave of the noise
_MOST = 64  # parts; a release draws as many numbers for each of its own
_ENDLESS = 2**40  # iterations


def calibrate_parts(algorithm: Algorithm[HyperT, Any], hyper: HyperT, epsilon: float,
                    delta: float, *, neighbours: str = "replace_one",
                    alongside: tuple[Description, ...] = (), people: int = 1) -> HyperT:
    """Returns calibrated `hyper`, with samples of parts in turn where that leaves less noise.

    Poisson samples of all records are compared with `CyclicPoisson` samples of p parts and as many
    bands, p = 2, 4, 8, ..., of the same expected batch. Compared is z(p) times the root of the mean
    variance of prefix sums, z(p) the calibrated multiplier, so that only public numbers decide. The
    best p must gain 5 %. If z(1) > 1.2, where no p was seen to gain anything, none is tried.

    Args:
      algorithm: a module with one release a round, such as `sgda`.
      hyper: its `Hyper`, whose query has Poisson samples and independent noise.
      epsilon: the target, in (0, 1e6).
      delta: the target, in (0, 1).
      neighbours: "replace_one" or "add_or_remove_one".
      alongside: other mechanisms on the same data that the budget must also pay.
      people: k, if any k records of one person may differ instead of one.

    Raises:
      ValueError: as `calibrate`; for other samples, bands, or several releases a round.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), joint=True, population=20_000,
        ...                   sampling=jmm.Poisson(rate=0.01))
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=800)
        >>> hyper = jmm.accounting.calibrate_parts(jmm.sgda, hyper, epsilon=1.0, delta=1e-6)
        >>> hyper.query.sampling  # large batches, small epsilon
        Poisson(rate=0.01, capacity=None, again=0.001)
    """
    query: Any = getattr(hyper, "query", None)
    described: Any = curve.of_run(algorithm, hyper)
    if correlated.in_turn(query, 2) is None:
        raise ValueError("calibrate_parts takes a Query of Poisson(rate=...) samples with bands=1, "
                         f"no capacity, no other again and fixed clip norms, got {query!r}.")
    if getattr(described, "parts", 0) != 1 or described.times != getattr(hyper, "iterations", None):
        raise ValueError("calibrate_parts is for one release a round on the whole data: with "
                         "several, those of one place in a round would read the same parts only.")
    rate, times = query.sampling.rate, described.times

    def calibrated(parts: int) -> tuple[float, Any]:
        """The noise on prefix sums, and the settings."""
        own: Any = hyper if parts == 1 else dataclasses.replace(
            hyper, query=correlated.in_turn(query, parts))
        own = calibration.calibrate(algorithm, own, epsilon, delta, neighbours=neighbours,
                                    alongside=alongside, people=people)
        bands = correlated.Bands(parts, times, query.parameters)
        return correlated.InTurn(parts).mean_prefix(bands) * own.query.multiplier(), own

    plain, best = calibrated(1)
    if best.query.multiplier() <= _QUIET:
        most = int(min(1 / rate, times, _MOST))
        others = [calibrated(2**k) for k in range(1, most.bit_length())]
        noise, other = min(others, key=lambda one: one[0], default=(plain, best))
        if noise <= _GAIN * plain:
            best = other
    chosen: HyperT = best
    return chosen


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
    epsilon, delta, people = answers.check_target(epsilon, delta, people)
    mechanism, alongside = curve.of_run(algorithm, hyper), curve.extras(alongside)
    if composed.parts_of_data(mechanism) > 1 or not any(
            field.name == "iterations" for field in dataclasses.fields(hyper)):
        raise ValueError("Rounds on disjoint parts of the data cost together what one of them "
                         "costs, so there is no number of iterations to calibrate: use "
                         "plan(algorithm, ...).")

    def private(iterations: int, rough: bool = False) -> bool:
        changed = dataclasses.replace(hyper, iterations=iterations)
        everything = Sequence(parts=(*alongside, algorithm.mechanism(changed)))
        cost = curve.dearest(everything, delta, neighbours, people, rough=rough)
        return cost.epsilon <= epsilon

    if not private(1):
        shortest = algorithm.mechanism(dataclasses.replace(hyper, iterations=1))
        answers.refuse(0.0, delta, answers.limits(
            Sequence(parts=(*alongside, shortest)), delta, neighbours, people))
        raise ValueError(f"One iteration alone exceeds epsilon = {epsilon:g} at delta = {delta:g}: "
                         "raise the noise multipliers.")
    about = _largest(lambda n: private(n, True), 2, 2)
    best = _largest(private, about, max(1, about // 1000))
    answers.warn_of(delta, mechanism)
    return dataclasses.replace(hyper, iterations=best)


def _largest(private: Callable[[int], bool], start: int, step: int) -> int:
    """Finds the largest private number, near `start`; 1 if there is none."""
    low, high = roots.bracket(private, start, step, lowest=1, highest=_ENDLESS)
    if low == _ENDLESS:
        raise ValueError("More than 10^12 iterations meet the target, so there is no largest "
                         "number to return: lower the noise multipliers.")
    return roots.bisect(private, low, high)[0]
