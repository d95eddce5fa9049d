"""Delta and epsilon of a `Charge`, from which all stated numbers follow.

`mechanism.description` computes the charges of a description, and `mechanism.costs` says how they
add up and what they are relative to.

`charge_delta` and `charge_epsilon` are upper bounds for k records of one person, failures of
sampler and noise included. Releases without sampling are one Gaussian, with its closed form; all
else is composed by `composition`. With delta_0 the curve of the described releases and

    r = ratio,  o = failures,  tau = departure,    each k times,

    delta(eps) = e^r (delta_0(eps - r) + o) + (1 + e^eps) tau.

dp-accounting 0.6 reads a noise multiplier in two ways under REPLACE_ONE: its PLD accountant doubles
the sensitivity, its RDP accountant does not. Here the multiplier is always noise over clip norm.
Its privacy loss distributions are not used: their truncation and rounding are absolute, near 1e-15
a convolution, which after 10^6 releases may be more than delta.

Two proofs cover k records of one person: a sharp one for some descriptions, and a lemma for all.
Descriptions with the sharp proof say so (`Description.supports_group_privacy`): then the pairs of a
charge, taken for k records, dominate. A description that is Gaussian throughout needs no proof of
its own: mu-Gaussian privacy for one record is k mu for k of them, wherever each of them is (Dong,
Roth and Su, "Gaussian differential privacy", JRSS B 2022, Theorem 2.14). If the records may be in
places of different cost, the largest failure and departure of any place are charged k times, as not
all of the records need be where epsilon is largest.

In any case the curve of one record bounds that of k,

    delta_k(k e) <= delta(e) sum_{j < k} e^(j e),

step by step along data sets that differ in one record each. It is used on the whole curve, largest
over the places, realised noise and failures of samplers included. If both bounds hold, the
smaller epsilon counts. Mostly that is the first, which is attained. The second is computed only if
it also holds at the epsilon of the first.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxminimax.accounting import composition, gaussian, pairs
from jaxminimax.base import arguments, checks
from jaxminimax.mechanism import NEIGHBOURS, Description, composed
from jaxminimax.mechanism.costs import Charge, silent


def charges(mechanism: Description, neighbours: str) -> tuple[Charge, ...]:
    """Returns the charges of a mechanism, one for each place where the differing record may be.

    Raises:
      ValueError: for a description that is not valid, or a relation it has no guarantee for.
    """
    checks.one_of("neighbours", neighbours, NEIGHBOURS)
    composed.check(mechanism)
    return composed.charges(mechanism, neighbours)


def run_description(algorithm: Any, hyper: Any) -> Description:
    """Describes a full run of an algorithm.

    Raises:
      TypeError: if it is not an algorithm, or the settings are not its own.
      ValueError: if its description is not one.
    """
    arguments.algorithm(algorithm)
    arguments.settings(hyper, algorithm)
    return composed.as_description(algorithm.mechanism(hyper))


def extras(mechanisms: Any) -> tuple[Description, ...]:
    """Returns other mechanisms on the same data as a tuple.

    Raises:
      TypeError: for what is no tuple or list.
      ValueError: for what is no description in it.
    """
    if not isinstance(mechanisms, tuple | list):
        raise TypeError("alongside must be a tuple of mechanisms, got "
                        f"{checks.describe(mechanisms)}: write one alone as (mechanism,).")
    return tuple(map(composed.as_description, mechanisms))


def shift(neighbours: str) -> float:
    """Returns the distance of neighbouring sums in clip norms."""
    return 2.0 if neighbours == "replace_one" else 1.0


def gaussian_mu(cost: Charge, neighbours: str, people: int = 1) -> float:
    """Returns how far k records move all Gaussian releases, in deviations of the noise."""
    # mu = k s (sum of 1 / z^2)^(1/2), s the distance of neighbouring sums
    return people * shift(neighbours) * math.sqrt(cost.gaussian)


def _directions(cost: Charge, neighbours: str, people: int) -> list[composition.Direction]:
    """Returns the releases to compose, for each direction of the pair."""
    releases = [composed for loss, times in cost.losses
             for composed in pairs.KINDS[loss.kind](loss, times, neighbours, people)]
    if cost.gaussian:
        mu = gaussian_mu(cost, neighbours, people)
        releases.append((pairs.symmetric(functools.partial(gaussian.delta, mu)), 1))
    # a pair that is its own mirror image takes part in every direction
    count = max(len(ways) for ways, _ in releases)
    return [[(ways[i % len(ways)], times) for ways, times in releases] for i in range(count)]


def apart(cost: Charge, people: int) -> tuple[float, float, float]:
    """Returns ratio, failures and departure from the described law, for k records."""
    return people * cost.ratio, cost.failures(people), people * cost.departure(people)


@functools.lru_cache(maxsize=4096)
def named_epsilon(cost: Charge, delta: float, neighbours: str, people: int = 1, *,
                  rough: bool = False) -> tuple[float, str]:
    """Computes epsilon, and names the bound: "gaussian", "pld" or "chernoff".

    With `rough` it is a quick guess of the same number, and not a bound.
    """
    r, o, tau = apart(cost, people)

    def paid(epsilon: float) -> float:  # by the described releases, at epsilon - r
        # delta = e^r (delta_0 + o) + (1 + e^(epsilon + r)) tau, solved for delta_0
        return math.exp(-min(r, 500.0)) * (
            delta - (1 + math.exp(min(epsilon + r, 500.0))) * tau) - o

    if not cost.losses:
        mu = gaussian_mu(cost, neighbours, people)
        return _fixed_point(lambda available: gaussian.epsilon(mu, available), paid) + r, "gaussian"
    if silent(cost):
        return math.inf, "pld"
    directions = _directions(cost.described(), neighbours, people)
    if rough:
        return composition.guess_epsilon(directions, paid) + r, "pld"
    answer = composition.epsilon_at(directions, paid)
    return answer.value + r, answer.name


def charge_epsilon(cost: Charge, delta: float, neighbours: str, people: int = 1) -> float:
    """Returns an upper bound on epsilon at delta, the largest over both directions.

    It is infinite without noise, or if failures alone use up delta.
    """
    return named_epsilon(cost, float(delta), neighbours, people)[0]


def _fixed_point(epsilon: Callable[[float], float], paid: Callable[[float], float]) -> float:
    """Finds an epsilon that needs at most `paid(epsilon)`; infinity if there is none."""
    available = paid(0.0)
    for _ in range(50):
        if available <= 0:
            return math.inf
        value = epsilon(available)
        if paid(value) >= available:
            return value
        # paid falls with epsilon; a little less than it, so that the next value may suffice
        available = paid(value) - 0.05 * (available - paid(value))
    return math.inf


Ways = tuple[np.ndarray, np.ndarray]  # P against Q, Q against P


def both_ways(cost: Charge, epsilons: np.ndarray, neighbours: str, people: int = 1) -> list[Ways]:
    """Bounds H at e^epsilon of each pair that dominates the charge, in both directions.

    With H_0 of the described releases, r, o and tau as in `curve`, and H_0(e - r) at most
    H_0(0) + 1 - e^(e - r) for e < r, as H grows by at most the difference of its arguments.

    Args:
      cost: of one alternative.
      epsilons: `[m]`, at least 0.
      neighbours: the relation.
      people: k records that differ.
    """
    epsilons = np.asarray(epsilons, np.float64)
    if silent(cost):
        return [(np.ones_like(epsilons), np.ones_like(epsilons))]
    r, o, tau = apart(cost, people)
    asked = epsilons - r
    # H_0(e - r) <= H_0(0) + 1 - e^(e - r) where e < r
    below = -np.expm1(np.minimum(asked, 0.0))
    with np.errstate(over="ignore"):
        law = (1 + np.exp(epsilons)) * tau if tau else 0.0
        ratio_factor = math.exp(min(r, 500.0))

    def charged(described: np.ndarray) -> np.ndarray:
        # e^r (H_0(e - r) + o) + (1 + e^e) tau
        return np.minimum(1.0, ratio_factor * (described + below + o) + law)

    ways = _described(cost.described(), np.maximum(asked, 0.0), neighbours, people)
    return [(charged(forward), charged(backward)) for forward, backward in ways]


def _described(cost: Charge, epsilons: np.ndarray, neighbours: str, people: int) -> list[Ways]:
    if not cost.losses:
        gaussian_delta = gaussian.delta(gaussian_mu(cost, neighbours, people), epsilons)
        return [(gaussian_delta, gaussian_delta)]
    ways = [composition.deltas_at(releases, epsilons)
            for releases in _directions(cost, neighbours, people)]
    # r people absent from one data set, k - r from the other: reversed, it is the one of k - r
    return [(ways[i], ways[-1 - i]) for i in range((len(ways) + 1) // 2)]


@functools.lru_cache(maxsize=4096)
def charge_delta(cost: Charge, epsilon: float, neighbours: str, people: int = 1) -> float:
    """Returns an upper bound on delta at epsilon, the largest over both directions."""
    return float(np.max(both_ways(cost, np.array([epsilon]), neighbours, people)))


class Dearest(NamedTuple):
    """The largest epsilon over the places where the records may be.

    Attributes:
      epsilon: infinity without a guarantee.
      bound: the name of the bound that it is from.
      cost: of one record, in the place that costs most; of several records in several places,
        with the largest failures and departures of any.
      lemma: whether it is from the group lemma.
    """

    epsilon: float
    bound: str
    cost: Charge
    lemma: bool = False


def check_people(mechanism: Description, people: int) -> None:
    """Refuses a number of records that one unit cannot have.

    Raises:
      ValueError: naming the value and the fix.
    """
    checks.count("people", people)
    n = mechanism.records()
    if people >= 2**31:
        raise ValueError(f"people must be below 2**31, got {people}.")
    if n and people > n:
        raise ValueError(f"people must be at most the number of records, {n}, got {people}.")


def together(mechanism: Description, costs: tuple[Charge, ...], people: int) -> bool:
    """Returns True if the charges of a description hold for k records together."""
    return (people == 1 or mechanism.supports_group_privacy()
            or not any(cost.losses for cost in costs))


def dearest(mechanism: Description, delta: float, neighbours: str, people: int = 1, *,
            rough: bool = False) -> Dearest:
    """Computes the largest epsilon of a description for k records, over all places.

    Args:
      mechanism: valid or not.
      delta: in (0, 1).
      neighbours: the relation.
      people: k.
      rough: a quick guess instead of a bound.

    Raises:
      ValueError: for a description that is not valid, or a relation it has no guarantee for.
    """
    costs = charges(mechanism, neighbours)
    check_people(mechanism, people)

    def over_places(share: float, k: int, charged: tuple[Charge, ...] = costs) -> Dearest:
        places = [Dearest(*named_epsilon(cost, share, neighbours, k, rough=rough), cost, k < people)
                  for cost in charged]
        return max(places, key=lambda place: place.epsilon)

    def lemma() -> Dearest:
        return _by_lemma(lambda share: over_places(share, 1), delta, people)

    if people == 1:
        return over_places(delta, 1)
    if not together(mechanism, costs, people):
        return lemma()
    # k records at once: mu and losses k times, failures of the worst place
    direct = over_places(delta, people, anywhere(costs))
    e = direct.epsilon / people
    # delta(e) sum_{j < k} e^(j e) > delta: the lemma does not hold at this epsilon
    if math.isfinite(e) and (rough or factor(e, people) * max(
            charge_delta(cost, e, neighbours) for cost in costs) > delta):
        return direct
    return min(direct, lemma(), key=lambda places: places.epsilon)


def anywhere(costs: tuple[Charge, ...]) -> tuple[Charge, ...]:
    """Returns the charges of all places, each with the largest failures and departures."""
    if len(costs) == 1:
        return costs
    largest = {name: max(getattr(cost, name) for cost in costs)
            for name in ("failure", "law_error", "ratio", "sample_error", "set_failure")}
    return tuple(cost._replace(**largest) for cost in costs)


def curves(mechanism: Description, epsilons: np.ndarray, neighbours: str,
           people: int) -> list[Ways]:
    """Bounds delta for each dominating pair both ways, by the group lemma where that is smaller."""
    costs = charges(mechanism, neighbours)
    direct = [(np.ones_like(epsilons), np.ones_like(epsilons))]
    if together(mechanism, costs, people):
        direct = [pair for cost in anywhere(costs)
                  for pair in both_ways(cost, epsilons, neighbours, people)]
    if people == 1:
        return direct
    # delta_k(k e) <= delta(e) sum_{j < k} e^(j e), e a k-th of the epsilon
    single = np.max([both_ways(cost, epsilons / people, neighbours) for cost in costs],
                    axis=(0, 1, 2))
    grown = np.array([factor(e, people) for e in epsilons / people])
    value = np.minimum(1.0, np.where(single > 0, single * grown, 0.0))
    return [(np.minimum(forward, value), np.minimum(backward, value))
            for forward, backward in direct]


def factor(epsilon: float, people: int) -> float:
    """Returns sum_{j < k} e^(j epsilon), rounded up."""
    if epsilon * (people - 1) > 690.0:
        return math.inf
    # e^((k - 1) eps) (1 - e^(-k eps)) / (1 - e^-eps), in which no term overflows
    total = (math.exp((people - 1) * epsilon) * math.expm1(-people * epsilon)
            / math.expm1(-epsilon) if epsilon > 0 else people)
    return (1 + 1e-12) * total


def _by_lemma(single_record: Callable[[float], Dearest], delta: float, people: int) -> Dearest:
    """Finds about the smallest k e with delta(e) factor(e) <= delta; infinity if there is none."""
    def at_share(e: float) -> Dearest:
        # delta(e) must be at most delta / sum_{j < k} e^(j e)
        share = delta / factor(e, people)
        return single_record(share) if share > 1e-300 else none

    none = single_record(delta)._replace(epsilon=math.inf)
    e = at_share(0.0).epsilon
    for _ in range(40):
        if not math.isfinite(e):
            return none
        next_one = at_share(e)
        if next_one.epsilon <= e:
            return next_one._replace(epsilon=people * e)
        # a fixed point is approached from below: a little more than the next step
        e = next_one.epsilon + 0.3 * (next_one.epsilon - e) + 1e-6 * next_one.epsilon
    return none
