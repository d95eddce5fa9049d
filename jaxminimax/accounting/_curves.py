"""Delta and epsilon of a `Charge`: the curves that everything which is stated is read from.

`delta_of` and `epsilon_of` are upper bounds for k records of one person, failures of sampler and
noise included. Releases without sampling are one Gaussian, with its closed form; all else is
composed by `_composed`. With delta_0 the curve of the described releases and

    r = ratio,  o = failures,  tau = departure,    each k times,

    delta(eps) = e^r (delta_0(eps - r) + o) + (1 + e^eps) tau.

dp-accounting 0.6 reads a noise multiplier in two ways under REPLACE_ONE: its PLD accountant doubles
the sensitivity, its RDP accountant does not. Here the multiplier is always noise over clip norm.
Its closed forms of one Gaussian are used; its privacy loss distributions are not, for their
truncation and rounding are absolute, near 1e-15 a convolution: more than delta may be after 10^6
releases.
"""

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from jaxminimax.accounting import _composed, _pairs
from jaxminimax.accounting._composed import Direction
from jaxminimax.mechanism.costs import Charge, silent

if TYPE_CHECKING:
    import dp_accounting


def shift(neighbours: str) -> float:
    """How many clip norms neighbouring sums are apart."""
    return 2.0 if neighbours == "replace_one" else 1.0


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest mu such that N(0, 1) against N(mu, 1) is (epsilon, delta), from the safe side."""
    import dp_accounting

    # the root is found to 1e-12 from either side
    return 1.0 / (float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * (1 + 1e-9) + 2e-12)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Exact epsilon of N(0, 1) against N(mu, 1), from the safe side."""
    if mu == 0:
        return 0.0
    if not math.isfinite(mu):
        return math.inf
    import dp_accounting

    with np.errstate(divide="ignore"):  # ln(1 - 1) far from it
        found = float(dp_accounting.get_epsilon_gaussian(1.0 / mu, delta))
    # The root is found to 1e-12, or 4 units in the last place, from either side. The arguments of
    # the tails, mu / 2 -+ epsilon / mu, are rounded by two more of epsilon / mu.
    return found * (1 + 2.0**-48) + 2e-12


def _gaussian_delta(mu: float, epsilon: float) -> float:
    """Exact delta of N(0, 1) against N(mu, 1), from the safe side."""
    if mu == 0:
        return 0.0
    if not math.isfinite(mu):
        return 1.0
    return min(1.0, float(_pairs.gaussian_profile(np.array([epsilon]), mu)[0]))


def _directions(cost: Charge, neighbours: str, people: int) -> list[Direction]:
    """What is composed, for each direction of the pair."""
    parts = [part for loss, times in cost.losses
             for part in _pairs.KINDS[loss.kind](loss, times, neighbours, people)]
    if cost.gaussian:
        parts += _pairs.gaussian(people * shift(neighbours) * math.sqrt(cost.gaussian))
    count = max(len(pairs) for pairs, _ in parts)
    return [[(pairs[i % len(pairs)], times) for pairs, times in parts] for i in range(count)]


def apart(cost: Charge, people: int) -> tuple[float, float, float]:
    """Ratio, failures and departure from the described law, for k records."""
    return people * cost.ratio, cost.failures(people), people * cost.departure(people)


def delta_of(cost: Charge, epsilon: float, neighbours: str, people: int = 1) -> float:
    """Delta at epsilon of what is charged, an upper bound; the largest over both directions.

    Args:
      cost: of everything, if the differing records are in one given part of the data.
      epsilon: at least 0.
      neighbours: the relation.
      people: k, how many records of one person may differ.
    """
    r, o, tau = apart(cost, people)
    described = 1.0
    if not silent(cost):
        # below 0, H at e^x is at most H at 1, and 1 - e^x more
        described = (_delta(cost.described(), max(float(epsilon) - r, 0.0), neighbours, people)
                     - math.expm1(min(float(epsilon) - r, 0.0)))
    # the exponent is capped only to keep exp finite: at such an epsilon the answer is 1
    return min(1.0, math.exp(min(r, 500.0)) * (described + o)
               + (1 + math.exp(min(epsilon, 500.0))) * tau)


@functools.lru_cache(maxsize=4096)
def _delta(cost: Charge, epsilon: float, neighbours: str, people: int) -> float:
    if not cost.losses:
        return _gaussian_delta(people * shift(neighbours) * math.sqrt(cost.gaussian), epsilon)
    return _composed.delta_at(_directions(cost, neighbours, people), epsilon).value


def epsilon_of(cost: Charge, delta: float, neighbours: str, people: int = 1) -> float:
    """Epsilon at delta of what is charged, an upper bound; the largest over both directions.

    Infinity without noise, or where failures alone cost delta.
    """
    return named_epsilon(cost, float(delta), neighbours, people)[0]


@functools.lru_cache(maxsize=4096)
def named_epsilon(cost: Charge, delta: float, neighbours: str, people: int = 1, *,
                  rough: bool = False) -> tuple[float, str]:
    """Epsilon, and the bound it is from: "gaussian", "pld" or "chernoff".

    With `rough` it is a quick guess of the same number, and no bound.
    """
    r, o, tau = apart(cost, people)

    def paid(epsilon: float) -> float:  # by the described releases, at epsilon - r
        return math.exp(-min(r, 500.0)) * (
            delta - (1 + math.exp(min(epsilon + r, 500.0))) * tau) - o

    if not cost.losses:
        mu = people * shift(neighbours) * math.sqrt(cost.gaussian)
        return _fixed_point(lambda left: gaussian_epsilon(mu, left), paid) + r, "gaussian"
    if silent(cost):
        return math.inf, "pld"
    directions = _directions(cost.described(), neighbours, people)
    if rough:
        return _composed.guess_epsilon(directions, paid) + r, "pld"
    found = _composed.epsilon_at(directions, paid)
    return found.value + r, found.name


def _fixed_point(epsilon: Callable[[float], float], paid: Callable[[float], float]) -> float:
    """An epsilon at which at most `paid(epsilon)` is used; infinity if none is found."""
    left = paid(0.0)
    for _ in range(50):
        if left <= 0:
            return math.inf
        value = epsilon(left)
        if paid(value) >= left:
            return value
        left = paid(value) - 0.05 * (left - paid(value))
    return math.inf


def event(charge: Charge) -> "dp_accounting.DpEvent":
    """The dp-accounting event of a charge, for the record; multipliers are Python floats.

    Gaussian multipliers are noise over clip norm, which is what that library's PLD accountant means
    by them under REPLACE_ONE (its RDP accountant does not).
    """
    import dp_accounting

    events = []
    if charge.gaussian:
        z = 0.0 if math.isinf(charge.gaussian) else charge.gaussian**-0.5
        events.append(dp_accounting.GaussianDpEvent(float(z)))
    for loss, times in charge.losses:
        one = dp_accounting.GaussianDpEvent(float(loss.z))
        match loss.kind:
            case "poisson":
                one = dp_accounting.PoissonSampledDpEvent(float(loss.rate), one)
            case "fixed":
                one = dp_accounting.SampledWithoutReplacementDpEvent(loss.population, loss.batch,
                                                                     one)
            case "replacement":
                one = dp_accounting.SampledWithReplacementDpEvent(loss.population, loss.batch, one)
            case "laplace":
                one = dp_accounting.LaplaceDpEvent(float(loss.z))
            case "selection":  # there is none for it; this one is what it costs at most
                one = (dp_accounting.ZCDpEvent(float(1 / loss.z**2 / 8)) if loss.z
                       else dp_accounting.NonPrivateDpEvent())
        events.append(dp_accounting.SelfComposedDpEvent(one, int(times)))
    if not events:
        return dp_accounting.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)
