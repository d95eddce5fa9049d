"""Limits of the proofs: the largest epsilon at a delta, and the smallest delta.

With r = ratio, o = failures and tau = departure as in `_curves`, delta pays at an epsilon E for

    o e^r + (1 + e^E) tau

before anything is left for the described releases, however much noise they have. So there is

    a largest target,    E < ln((delta - o e^r) / tau - 1),      and
    a smallest delta,    o e^r + 2 tau.

Both are limits of the proof: tau is a bound on how far the noise sampler departs from its law, and
o on how often samplers fail. A run whose epsilon is proven below the limit meets every larger
target too, but calibration cannot match noise to such a target.
"""

import math
from typing import NamedTuple

from jaxminimax.accounting import _curves, _people
from jaxminimax.accounting._charge import charges
from jaxminimax.mechanism import Description
from jaxminimax.mechanism.costs import Charge, silent


class Limits(NamedTuple):
    """The range of epsilon and delta in which a proof is possible for a description.

    Attributes:
      epsilon: every proven epsilon at the delta that was asked for is below it; 0 if there is none.
      delta: every delta at which an epsilon is proven is above it.
    """

    epsilon: float
    delta: float


def limits(mechanism: Description, delta: float, neighbours: str = "replace_one",
           people: int = 1) -> Limits:
    """The limits of a description, whatever its noise is.

    Args:
      mechanism: valid, with noise; a multiplier that is not set is an error.
      delta: in (0, 1).
      neighbours: the relation.
      people: k, how many records of one person may differ.

    Raises:
      ValueError: as `charges`.
    """
    costs = charges(mechanism, neighbours)
    found = [Limits(people * _largest(costs, delta, people),
                    people * max(_floor(cost) for cost in costs))]
    if _people.together(mechanism, costs, people):
        places = _people.anywhere(costs)
        found.append(Limits(min(_ceiling(cost, delta, people) for cost in places),
                            max(_floor(cost, people) for cost in places)))
    return Limits(max(one.epsilon for one in found), min(one.delta for one in found))


def proven_up_to(mechanism: Description, delta: float, neighbours: str,
                 people: int = 1) -> float | None:
    """The largest epsilon of `limits`, for a statement; None without noise, or without a limit."""
    if any(map(silent, charges(mechanism, neighbours))):
        return None
    found = limits(mechanism, delta, neighbours, people).epsilon
    return found if math.isfinite(found) else None


def in_words(proven: float | None, delta: float) -> str:
    """What an infinite epsilon means, by what `proven_up_to` says."""
    if proven is None:
        return "infinite, which is no guarantee"
    if proven == 0:
        return (f"not proven at delta = {delta:g}: samplers of records and noise may fail with a "
                "larger probability, however much noise there is; choose a larger delta")
    return (f"above what is proven, {proven:.4g} at most at delta = {delta:g}, and so no useful "
            "guarantee")


def refuse(epsilon: float, delta: float, limit: Limits) -> None:
    """Refuses a target beyond the limits.

    Raises:
      ValueError: naming the limit and the fix.
    """
    if delta <= limit.delta:
        raise ValueError(f"delta = {delta:g} is too small: the smallest that is proven for these "
                         f"releases is {limit.delta:.3g}, which samplers of records and noise "
                         "may fail by, however much noise there is. Choose a larger delta, or "
                         "fewer releases.")
    if epsilon >= limit.epsilon:
        raise ValueError(f"epsilon = {epsilon:g} is above what is proven at delta = {delta:g} for "
                         f"these releases, {limit.epsilon:.4g}, so no noise can be matched to it: "
                         "noise is drawn from its law up to an error that counts e^epsilon times. "
                         "Choose a smaller epsilon or a larger delta, or give the release's "
                         "`parameters`, if it has far fewer numbers than it is charged for.")


def _ceiling(cost: Charge, delta: float, people: int = 1) -> float:
    r, o, tau = _curves.apart(cost, people)
    left = delta - o * math.exp(min(r, 500.0))
    if left <= 2 * tau:
        return 0.0
    return math.log(left / tau - 1) if tau else math.inf


def _floor(cost: Charge, people: int = 1) -> float:
    r, o, tau = _curves.apart(cost, people)
    return o * math.exp(min(r, 500.0)) + 2 * tau


def _largest(costs: tuple[Charge, ...], delta: float, people: int) -> float:
    """Nearly the largest epsilon of one record that the group lemma can prove at `delta`."""
    def proven(e: float) -> bool:
        share = delta / _people.factor(e, people)
        return all(e < _ceiling(cost, share) for cost in costs)

    low, high = 0.0, min(_ceiling(cost, delta) for cost in costs)
    if people == 1 or not proven(0.0):
        return high if people == 1 else 0.0
    high = min(high, 1e3)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if proven(middle) else (low, middle)
    return high
