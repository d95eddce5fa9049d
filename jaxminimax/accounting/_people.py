"""k records of one person: when a charge may be read for all of them, and the lemma elsewhere.

Descriptions whose proof covers k records at once say so (`Description.together`): then the pairs of
a charge, taken for k records, dominate. A description that is Gaussian throughout needs no proof of
its own: mu-Gaussian privacy for one record is k mu for k of them, wherever each of them is (Dong,
Roth and Su, "Gaussian differential privacy", JRSS B 2022, Theorem 2.14). If the records may be
in places of different cost, the largest failure and departure of any place are charged k times, as
not all of the records need be where epsilon is largest.

In any case the curve of one record bounds that of k,

    delta_k(k e) <= delta(e) sum_{j < k} e^(j e),

step by step along data sets that differ in one record each. It is used on the whole curve, largest
over the places, realised noise and failures of samplers included. If both bounds hold, the
smaller epsilon is charged. Mostly that is the first, which is attained. The second is searched for
only if it also holds at the epsilon of the first.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from jaxminimax.accounting._charge import charges
from jaxminimax.accounting._curves import delta_of, named_epsilon
from jaxminimax.base import checks
from jaxminimax.mechanism import Description
from jaxminimax.mechanism.costs import Charge


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
    """Refuses numbers of records that a unit cannot have.

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
    """Whether the charges of a description may be read for k records."""
    return people == 1 or mechanism.together() or not any(cost.losses for cost in costs)


def dearest(mechanism: Description, delta: float, neighbours: str, people: int = 1, *,
            rough: bool = False) -> Dearest:
    """The largest epsilon of a description for k records.

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

    def one(share: float, k: int, of: tuple[Charge, ...] = costs) -> Dearest:
        found = [Dearest(*named_epsilon(cost, share, neighbours, k, rough=rough), cost, k < people)
                 for cost in of]
        return max(found, key=lambda place: place.epsilon)

    def lemma() -> Dearest:
        return _by_lemma(lambda share: one(share, 1), delta, people)

    if people == 1:
        return one(delta, 1)
    if not together(mechanism, costs, people):
        return lemma()
    direct = one(delta, people, anywhere(costs))
    e = direct.epsilon / people
    if math.isfinite(e) and (rough or factor(e, people) * max(
            delta_of(cost, e, neighbours) for cost in costs) > delta):
        return direct
    return min(direct, lemma(), key=lambda found: found.epsilon)


def anywhere(costs: tuple[Charge, ...]) -> tuple[Charge, ...]:
    """The charges of all places, each with the largest failures and departures of any."""
    if len(costs) == 1:
        return costs
    most = {name: max(getattr(cost, name) for cost in costs)
            for name in ("failure", "law_error", "ratio", "sample_error")}
    return tuple(cost._replace(**most) for cost in costs)


def factor(epsilon: float, people: int) -> float:
    """sum_{j < k} e^(j epsilon), rounded up."""
    if epsilon * (people - 1) > 690.0:
        return math.inf
    more = (math.exp((people - 1) * epsilon) * math.expm1(-people * epsilon)
            / math.expm1(-epsilon) if epsilon > 0 else people)
    return (1 + 1e-12) * more


def _by_lemma(one: Callable[[float], Dearest], delta: float, people: int) -> Dearest:
    """The smallest k e found with delta(e) factor(e) <= delta; infinity if there is none."""
    def at(e: float) -> Dearest:
        share = delta / factor(e, people)
        return one(share) if share > 1e-300 else none

    none = one(delta)._replace(epsilon=math.inf)
    e = at(0.0).epsilon
    for _ in range(40):
        if not math.isfinite(e):
            return none
        found = at(e)
        if found.epsilon <= e:
            return found._replace(epsilon=people * e)
        # a fixed point is approached from below: a little more than the next step
        e = found.epsilon + 0.3 * (found.epsilon - e) + 1e-6 * found.epsilon
    return none
