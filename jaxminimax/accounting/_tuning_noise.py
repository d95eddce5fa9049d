"""The noise at which a private search over settings meets its target.

One profile must meet two points, (e1, d1) and (epsilon - (eta + 1) e1, delta / E[K]), see
`_tuning`. The first candidate's noise is the least at which some e1 meets both; the others', and
that of a score on other records, is the least that meets them at the same e1. So the largest of the
profiles meets both, and the candidates are alike in privacy.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxminimax.accounting import _tuning
from jaxminimax.accounting._charge import charges
from jaxminimax.accounting._epsilon import check_delta, check_epsilon
from jaxminimax.accounting._search import check_met
from jaxminimax.base import checks
from jaxminimax.mechanism import NEIGHBOURS, Parallel, Repeat, leaves, with_noise
from jaxminimax.mechanism import Sequence as InSequence
from jaxminimax.mechanism.composed import disjoint_parts
from jaxminimax.mechanism.costs import Charge, silent
from jaxminimax.mechanism.description import Mechanism
from jaxminimax.mechanism.repetitions import Repetitions

_TOLERANCE = 2e-4  # relative, on a noise multiplier; the private side is returned

Points = tuple[tuple[float, float], ...]
Describe = Callable[[float], Mechanism]


class Target(NamedTuple):
    """What a search must meet.

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

    def cost(self, described: Mechanism) -> tuple[Charge, ...]:
        """The charges of one run."""
        return charges(described, self.neighbours)


def calibrate_search(algorithm: Any, candidates: Sequence[Any], score: Repeat, target: Target, *,
                     apart: bool, share: float) -> tuple[list[Any], Repeat]:
    """Candidates and score with the noise that makes the whole search meet the target.

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
    check_epsilon(target.epsilon)
    check_delta(target.delta)
    checks.one_of("neighbours", target.neighbours, NEIGHBOURS)
    checks.number("share", share, low=0.0, high=1.0)
    small = target._replace(epsilon=share * target.epsilon)
    if not apart:
        score = score.with_noise(least(lambda scale: with_noise(score, scale), small))
    points: Points | None = None
    known: dict[tuple, float] = {}

    def noise(describe: Describe) -> float:
        nonlocal points

        def run(scale: float) -> Mechanism:
            training = describe(scale)
            return training if apart else InSequence(parts=(training, score))

        same = target.cost(run(1.0)), target.cost(run(2.0))
        if same not in known:
            if any(map(silent, same[0])):
                raise ValueError("noise_multiplier of a candidate holds a 0, so no common factor "
                                 "makes the search private: give the ratio between the players, "
                                 "or leave it None.")
            known[same] = least(run, target) if points is None else enough(run, target, points)
            points = points or points_met(target.cost(run(known[same])), target)
        return known[same]

    made = [_with_noise(algorithm, hyper, noise, small) for hyper in candidates]
    assert points is not None
    if apart:
        score = score.with_noise(
            enough(lambda scale: with_noise(score, scale), target, points))
    costs = tuple(dict.fromkeys(
        cost for hyper in made
        for cost in target.cost(one_run(algorithm, hyper, score, apart))))
    check_met(_tuning.epsilon_of_best(costs, target.delta, target.runs, target.neighbours),
              target.epsilon * (1 + 1e-9))
    return made, score


def one_run(algorithm: Any, hyper: Any, score: Repeat, apart: bool) -> Mechanism:
    """What one run does to the data: it trains, and releases its score."""
    parts = (algorithm.mechanism(hyper), score)
    return Parallel(parts=parts) if apart else InSequence(parts=parts)


def _with_noise(algorithm: Any, hyper: Any, noise: Callable[[Describe], float],
                small: Target) -> Any:
    """`hyper` with the noise that `noise` finds for what it describes."""
    losses = getattr(hyper, "losses", None)
    if losses is not None and losses.noise_multiplier is None:
        (leaf,) = (x for x in leaves(algorithm.mechanism(hyper)) if type(x) is type(losses))
        scale = least(lambda scale: with_noise(leaf, scale), small)
        hyper = dataclasses.replace(hyper, losses=with_noise(losses, scale))
    if parts := disjoint_parts(hyper.query):  # a record is in one of them
        made = tuple(with_noise(part, noise(functools.partial(with_noise, part)))
                     for part in parts)
        return dataclasses.replace(hyper, query=dataclasses.replace(hyper.query, parts=made))

    def described(scale: float) -> Any:
        return dataclasses.replace(hyper, query=with_noise(hyper.query, scale))

    return described(noise(lambda scale: algorithm.mechanism(described(scale))))


# --- the least noise ---


def least(run: Describe, target: Target) -> float:
    """The scale of the noise at which a search of such runs meets the target."""
    def excess(scale: float) -> float:  # of the mu of a Gaussian with the same total
        total = _tuning.epsilon_of_best(target.cost(run(scale)), target.delta, target.runs,
                                        target.neighbours)
        if not total < 1e3:
            return 1e3
        mu = [_tuning.gaussian_of_total(max(x, 1e-6), target.delta, target.runs)
              for x in (total, target.epsilon)]
        return max(mu[0] / mu[1], 1 + 1e-9) if total > target.epsilon else min(mu[0] / mu[1], 1.0)

    return _reach(excess)


def points_met(costs: tuple[Charge, ...], target: Target) -> Points:
    """The points that a profile must meet, at the e1 of these charges."""
    runs = target.runs
    price = _tuning.price_of_choice(costs, runs, target.neighbours)
    e1 = (price - runs.ratio) / (runs.eta + 1)
    # a little less: e1 is found anew for all candidates together, to 1e-5 of itself
    return ((e1, _tuning.odds(runs) * math.expm1(e1) * (1 - 1e-4)),
            (target.epsilon - price, target.delta / runs.mean * (1 - 1e-3)))


def enough(run: Describe, target: Target, points: Points) -> float:
    """The scale of the noise at which the profile of such a run meets the points."""
    def excess(scale: float) -> float:  # of the mu of a Gaussian with the same delta
        costs, found = target.cost(run(scale)), 0.0
        for e, goal in points:
            here = _tuning.delta_of_one(costs, e, target.neighbours)
            mu = _tuning.gaussian_with(e, here) / _tuning.gaussian_with(e, goal)
            found = max(found, max(mu, 1 + 1e-9) if here > goal else min(mu, 1.0))
        return found

    return _reach(excess)


def _reach(excess: Callable[[float], float]) -> float:
    """The smallest scale, nearly, with excess(scale) <= 1; excess falls about like 1 / scale.

    Raises:
      ValueError: if no scale is enough.
    """
    low, high, scale = 0.0, math.inf, 1.0
    last: tuple[float, float] | None = None
    for tried in range(80):
        here = excess(scale)
        low, high = (low, scale) if here <= 1 else (scale, high)
        if high <= low * (1 + _TOLERANCE) or 1 - _TOLERANCE / 2 <= here <= 1:
            return high
        slope = -1.0
        if last is not None and here != last[1]:
            slope = math.log(here / last[1]) / math.log(scale / last[0])
        last = scale, here
        new = scale * min(max(here ** (-1 / min(max(slope, -4.0), -0.25)), 0.05), 20.0)
        new *= 1 + _TOLERANCE / 4  # a little to the private side
        if high < math.inf:
            new = min(new, high * (1 - _TOLERANCE / 2))
        scale = max(new, low * (1 + _TOLERANCE / 2))
        if low and high < math.inf and (scale >= high or tried > 8):
            scale = math.sqrt(low * high)
        if scale > 1e12:
            break
    raise ValueError("No noise makes the search as private as that: what samplers may depart from "
                     "their law already takes more than delta over the expected number of runs.")
