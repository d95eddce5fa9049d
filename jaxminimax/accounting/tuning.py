"""Epsilon and delta of a private search over settings, and the noise that meets a target.

The theorem is in `mechanism.repetitions`: a search that makes a random number K of runs and
releases the best one has, with d the profile of one run, its score included,

    delta(e) = E[K] d(e - (eta + 1) e1),     d(e1) <= gamma / (1 - gamma) (exp(e1) - 1).

Each run draws its settings among the candidates, with public probabilities, and d is the largest of
the candidates' profiles, so that it does not matter which ones.

For the least noise that meets a target, one profile must meet two points, (e1, d1) and (epsilon -
(eta + 1) e1, delta / E[K]), see above. The first candidate's noise is the least at which some e1
meets both; the others', and that of a score on other records, is the least that meets them at the
same e1. So the largest of the profiles meets both, and the candidates are alike in privacy.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxminimax.accounting import calibration, epsilon_delta, gaussian, roots
from jaxminimax.accounting.curve import charge_delta, charge_epsilon, charges
from jaxminimax.base import checks
from jaxminimax.mechanism import NEIGHBOURS, Description, Parallel, Repeat, composed, with_noise
from jaxminimax.mechanism import Sequence as InSequence
from jaxminimax.mechanism.costs import REPLACE_ONE, Charge, silent
from jaxminimax.mechanism.repetitions import Repetitions

_RUNS = Repetitions()
_SAFE = 1 + 1e-9  # on what is found by floating-point roots


def tuned_epsilon(mechanisms: Description | Sequence[Description], delta: float,
                  runs: Repetitions = _RUNS, *, neighbours: str = REPLACE_ONE) -> float:
    """Computes the epsilon of the best of a random number of runs.

    Args:
      mechanisms: the description of one run, the release of its score included; several, if it
        draws its settings from candidates.
      delta: delta, in (0, 1).
      runs: the law of the number of runs, which must stay secret.
      neighbours: "replace_one" or "add_or_remove_one".

    Raises:
      ValueError: for numbers out of range, or a description that is not valid.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(40.0, None),
        ...                   population=100)
        >>> one = jmm.Repeat(query=query, times=20)
        >>> search = jmm.accounting.tuned_epsilon(one, 1e-6)
        >>> search > jmm.epsilon(one, 1e-6)  # a search costs more than a run
        True
    """
    epsilon_delta.check_delta(delta)
    runs.check()
    return epsilon_of_best(_costs(mechanisms, neighbours), float(delta), runs, neighbours)


def tuned_delta(mechanisms: Description | Sequence[Description], epsilon: float,
                runs: Repetitions = _RUNS, *, neighbours: str = REPLACE_ONE) -> float:
    """Computes the delta of the best of a random number of runs.

    Args:
      mechanisms: the description of one run, the release of its score included; several, if it
        draws its settings from candidates.
      epsilon: epsilon, in (0, 1e6).
      runs: the law of the number of runs, which must stay secret.
      neighbours: "replace_one" or "add_or_remove_one".

    Raises:
      ValueError: for numbers out of range, or a description that is not valid.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(40.0, None),
        ...                   population=100)
        >>> one = jmm.Repeat(query=query, times=20)
        >>> jmm.accounting.tuned_delta(one, 2.0) < 1e-6
        True
    """
    epsilon_delta.check_epsilon(epsilon)
    runs.check()
    costs = _costs(mechanisms, neighbours)
    # delta(e) = E[K] d(e - (eta + 1) e1)
    remaining = float(epsilon) - price_of_choice(costs, runs, neighbours)
    if remaining == -math.inf:
        return 1.0
    if remaining < 0:  # H_a(P || Q) = 1 - a + a H_{1/a}(Q || P)
        reverse = delta_of_one(costs, -remaining, neighbours)
        single = -math.expm1(remaining) + math.exp(remaining) * reverse
    else:
        single = delta_of_one(costs, remaining, neighbours)
    return min(1.0, runs.mean * single * _SAFE)


def _costs(mechanisms: Description | Sequence[Description], neighbours: str) -> tuple[Charge, ...]:
    several: Sequence[Any] = mechanisms if isinstance(mechanisms, list | tuple) else (mechanisms,)
    costs = dict.fromkeys(cost for mechanism in several for cost in charges(mechanism, neighbours))
    if not costs:
        raise ValueError("A search needs at least one mechanism, got none.")
    return tuple(costs)


def delta_of_one(costs: tuple[Charge, ...], epsilon: float, neighbours: str) -> float:
    """Returns the largest delta, over candidates and places of the differing record."""
    return max(charge_delta(cost, epsilon, neighbours) for cost in costs)


def epsilon_of_best(costs: tuple[Charge, ...], delta: float, runs: Repetitions,
                    neighbours: str) -> float:
    """Computes the epsilon of the best of a random number of runs from charges."""
    # delta = E[K] d(e), so one run has delta / E[K]
    single = max(charge_epsilon(cost, delta / runs.mean, neighbours) for cost in costs)
    return (single + price_of_choice(costs, runs, neighbours)) * (1 + 1e-15)


def price_of_choice(costs: tuple[Charge, ...], runs: Repetitions, neighbours: str) -> float:
    """Returns (eta + 1) e1 plus how far the realised law of K is from the described one."""
    # d(e1) <= gamma / (1 - gamma) (e^e1 - 1)
    e1 = condition(lambda e: delta_of_one(costs, e, neighbours), odds(runs))
    return (runs.eta + 1) * e1 + runs.ratio


def odds(runs: Repetitions) -> float:
    """Returns gamma / (1 - gamma), rounded down."""
    # smaller odds ask for a larger e1, which costs more
    return runs.gamma / (1 - runs.gamma) / _SAFE


def condition(profile: Callable[[float], float], factor: float) -> float:
    """Finds about the smallest e1 with profile(e1) <= factor (exp(e1) - 1), and checks it.

    By the Gaussian that has the profile's value at the last guess, for which it is a root.
    """
    def met(e: float) -> bool:
        return profile(e) <= factor * math.expm1(min(e, 500.0)) / _SAFE

    e, step = 0.3, 1e-5
    for _ in range(12):
        value = profile(e)
        if value >= 1:  # as no Gaussian has
            e *= 3
            if e > 1e4:
                return math.inf
            continue
        # the Gaussian with d's value at e has a condition in closed form but for a root
        new = gaussian_condition(gaussian_with(e, value), factor)
        settled, e = abs(new - e) <= step * e, new
        if settled:
            break
    # d falls and e^e1 - 1 grows, so what is beyond the root meets the condition
    while not met(e):
        e, step = e * (1 + step), 2 * step
        if e > 1e4:
            return math.inf
    return e


def gaussian_with(e: float, delta: float) -> float:
    """Returns about the mu at which a Gaussian mechanism has this delta at e >= 0."""
    # mu is infinite at delta = 1
    return gaussian.closest_mu(e, min(max(delta, 1e-280), 1 - 1e-9))


def gaussian_condition(mu: float, factor: float) -> float:
    """Returns e1 of the Gaussian mechanism."""
    def gap(e: float) -> float:
        # ln of d(e) over factor (e^e - 1), with e^e - 1 = e^e (1 - e^-e)
        return math.log(gaussian.delta(mu, e)) - math.log(factor) - e - math.log(-math.expm1(-e))

    # at the upper end s = e / mu - mu / 2 exceeds 20 + 19.5 mu + 200 / mu > 140, where d vanishes
    return roots.zero(gap, 1e-12, 20 * mu * mu + 20 * mu + 200, xtol=1e-13)


@functools.lru_cache(maxsize=64)
def gaussian_of_total(epsilon: float, delta: float, runs: Repetitions) -> float:
    """Returns the mu of one run at which a search with Gaussian runs meets the target."""
    def gap(log_mu: float) -> float:
        mu = math.exp(log_mu)
        remaining = epsilon - (runs.eta + 1) * gaussian_condition(mu, odds(runs)) - runs.ratio
        if remaining <= 0:  # the choice alone costs all of epsilon: mu is too large
            return 50.0
        # ln of E[K] d(epsilon - (eta + 1) e1) over delta, which grows with mu
        return min(math.log(gaussian.delta(mu, remaining)) - math.log(delta / runs.mean), 50.0)

    return math.exp(roots.zero(lambda x: -gap(x), -21.0, math.log(50 + epsilon), xtol=1e-13))


Points = tuple[tuple[float, float], ...]
Describe = Callable[[float], Description]


class Target(NamedTuple):
    """The privacy target of a search.

    Attributes:
      epsilon: of the whole search.
      delta: of the whole search.
      runs: the law of their number.
      neighbours: the relation.
    """

    epsilon: float
    delta: float
    runs: Repetitions
    neighbours: str

    def cost(self, described: Description) -> tuple[Charge, ...]:
        """Returns the charges of one run."""
        return charges(described, self.neighbours)


def calibrate_search(algorithm: Any, candidates: Sequence[Any], score: Repeat, target: Target, *,
                     apart: bool, share: float) -> tuple[list[Any], Repeat]:
    """Returns candidates and score with the noise that makes the search meet the target.

    Args:
      algorithm: a module such as `sgda`.
      candidates: its `Hyper`s; ratios between players' noise multipliers are kept.
      score: the release of a run's score.
      target: see `Target`.
      apart: whether the score reads other records than the training.
      share: of epsilon, what a search would cost that released the scores alone, if they read the
        training records; the same for groups' losses whose noise is not set.

    Raises:
      ValueError: for numbers out of range, or a target that no noise reaches, or none closely.
    """
    epsilon_delta.check_epsilon(target.epsilon)
    epsilon_delta.check_delta(target.delta)
    checks.one_of("neighbours", target.neighbours, NEIGHBOURS)
    checks.number("share", share, low=0.0, high=1.0)
    small = target._replace(epsilon=share * target.epsilon)
    if not apart:
        score = score.with_noise(least_scale(lambda scale: with_noise(score, scale), small))
    points: Points | None = None
    scales: dict[tuple[Any, ...], float] = {}

    def noise(describe: Describe) -> float:
        nonlocal points

        def run(scale: float) -> Description:
            training = describe(scale)
            return training if apart else InSequence(parts=(training, score))

        # candidates whose charges agree at two scales need the same scale
        charged = target.cost(run(1.0)), target.cost(run(2.0))
        if charged not in scales:
            if any(map(silent, charged[0])):
                raise ValueError("noise_multiplier of a candidate contains a 0, so no common "
                                 "factor makes the search private: state the ratio between the "
                                 "players, or leave it None.")
            scales[charged] = (least_scale(run, target) if points is None
                               else scale_for_points(run, target, points))
            points = points or points_met(target.cost(run(scales[charged])), target)
        return scales[charged]

    calibrated = [_with_noise(algorithm, hyper, noise, small) for hyper in candidates]
    assert points is not None
    if apart:
        score = score.with_noise(
            scale_for_points(lambda scale: with_noise(score, scale), target, points))
    costs = tuple(dict.fromkeys(
        cost for hyper in calibrated
        for cost in target.cost(one_run(algorithm, hyper, score, apart))))
    calibration.check_met(epsilon_of_best(costs, target.delta, target.runs, target.neighbours),
                          target.epsilon * (1 + 1e-9))
    return calibrated, score


def one_run(algorithm: Any, hyper: Any, score: Repeat, apart: bool) -> Description:
    """Describes one run: it trains, and releases its score."""
    parts = (algorithm.mechanism(hyper), score)
    return Parallel(parts=parts) if apart else InSequence(parts=parts)


def _with_noise(algorithm: Any, hyper: Any, noise: Callable[[Describe], float],
                small: Target) -> Any:
    """Returns `hyper` with the noise that `noise` finds for its description."""
    losses = getattr(hyper, "losses", None)
    if losses is not None and losses.noise_multiplier is None:
        described_leaves = composed.leaves(algorithm.mechanism(hyper))
        (leaf,) = (x for x in described_leaves if type(x) is type(losses))
        scale = least_scale(lambda scale: with_noise(leaf, scale), small)
        hyper = dataclasses.replace(hyper, losses=with_noise(losses, scale))
    if parts := composed.disjoint_parts(hyper.query):  # a record is in one of them
        noisy = tuple(with_noise(query, noise(functools.partial(with_noise, query)))
                      for query in parts)
        return dataclasses.replace(hyper, query=dataclasses.replace(hyper.query, parts=noisy))

    def described(scale: float) -> Any:
        return dataclasses.replace(hyper, query=with_noise(hyper.query, scale))

    return described(noise(lambda scale: algorithm.mechanism(described(scale))))


def least_scale(run: Describe, target: Target) -> float:
    """Finds the scale of the noise at which a search of such runs meets the target."""
    def excess(scale: float) -> float:  # of the mu of a Gaussian with the same total
        total = epsilon_of_best(target.cost(run(scale)), target.delta, target.runs,
                                target.neighbours)
        if not total < 1e3:
            return 1e3
        # mu falls like 1 / scale, which epsilon does not: searches converge on it
        mu = [gaussian_of_total(max(x, 1e-6), target.delta, target.runs)
              for x in (total, target.epsilon)]
        return _sided(mu[0] / mu[1], total > target.epsilon)

    return _scale(excess)


def points_met(costs: tuple[Charge, ...], target: Target) -> Points:
    """Returns the points that a profile must meet, at the e1 of these charges."""
    runs = target.runs
    price = price_of_choice(costs, runs, target.neighbours)
    # price = (eta + 1) e1 + ratio
    e1 = (price - runs.ratio) / (runs.eta + 1)
    # a little less: e1 is found anew for all candidates together, to 1e-5 of itself
    return ((e1, odds(runs) * math.expm1(e1) * (1 - 1e-4)),
            (target.epsilon - price, target.delta / runs.mean * (1 - 1e-3)))


def scale_for_points(run: Describe, target: Target, points: Points) -> float:
    """Finds the scale of the noise at which the profile of such a run meets the points."""
    def excess(scale: float) -> float:  # of the mu of a Gaussian with the same delta
        costs, worst = target.cost(run(scale)), 0.0
        for e, goal in points:
            delta_there = delta_of_one(costs, e, target.neighbours)
            mu = gaussian_with(e, delta_there) / gaussian_with(e, goal)
            # all points must be met, so the one that is missed most decides
            worst = max(worst, _sided(mu, delta_there > goal))
        return worst

    return _scale(excess)


def _sided(ratio: float, missed: bool) -> float:
    # the target itself says on which side of 1 a rounded ratio is
    return max(ratio, 1 + 1e-9) if missed else min(ratio, 1.0)


def _scale(excess: Callable[[float], float]) -> float:
    # to 2e-4 of the noise multiplier
    return calibration.find(excess, 1.0, tolerance=2e-4, name="excess")
