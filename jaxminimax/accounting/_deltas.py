"""Divergences of a charge at several epsilons, both ways round, failures included."""

import math

import numpy as np

from jaxminimax.accounting import _composed, _curves, _gaussian
from jaxminimax.mechanism.costs import Charge, silent

Ways = tuple[np.ndarray, np.ndarray]  # P against Q, Q against P


def both_ways(cost: Charge, epsilons: np.ndarray, neighbours: str, people: int = 1) -> list[Ways]:
    """Upper bounds on H of each pair that dominates the charge, both ways round, at e^epsilon.

    With H_0 of the described releases, r, o and tau as in `_curves`, and H_0(e - r) at most
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
    r, o, tau = _curves.apart(cost, people)
    asked = epsilons - r
    below = -np.expm1(np.minimum(asked, 0.0))
    with np.errstate(over="ignore"):
        law = (1 + np.exp(epsilons)) * tau if tau else 0.0
        more = math.exp(min(r, 500.0))

    def charged(described: np.ndarray) -> np.ndarray:
        return np.minimum(1.0, more * (described + below + o) + law)

    found = _described(cost.described(), np.maximum(asked, 0.0), neighbours, people)
    return [(charged(one), charged(two)) for one, two in found]


def _described(cost: Charge, epsilons: np.ndarray, neighbours: str, people: int) -> list[Ways]:
    if not cost.losses:
        one = _gaussian.delta(people * _curves.shift(neighbours) * math.sqrt(cost.gaussian),
                              epsilons)
        return [(one, one)]
    ways = [_along(releases, epsilons)
            for releases in _curves._directions(cost, neighbours, people)]
    # r people absent from one data set, k - r from the other: reversed, it is the one of k - r
    return [(ways[i], ways[-1 - i]) for i in range((len(ways) + 1) // 2)]


def _along(releases: _composed.Direction, epsilons: np.ndarray) -> np.ndarray:
    """Of one direction; a bound at a smaller epsilon holds at a larger one."""
    order = np.argsort(epsilons)
    values = np.empty_like(epsilons)
    values[order] = np.minimum.accumulate([
        _composed.delta_at([releases], float(epsilons[i])).value for i in order])
    return values


def apart(cost: Charge, people: int) -> float:
    """Probability of what is charged as a failure, and so is in no Renyi divergence."""
    return cost.failures(people) + people * cost.departure(people)
