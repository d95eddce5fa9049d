"""Epsilon and delta of a private search over settings.

The theorem is in `mechanism.repetitions`: a search that makes a random number K of runs and
releases the best one has, with d the profile of one run, its score included,

    delta(e) = E[K] d(e - (eta + 1) e1),     d(e1) <= gamma / (1 - gamma) (exp(e1) - 1).

Each run draws its settings among the candidates, with public probabilities, and d is the largest of
the candidates' profiles, so that it does not matter which ones.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import scipy

from jaxminimax.accounting._charge import charges
from jaxminimax.accounting._curves import delta_of, epsilon_of
from jaxminimax.accounting._epsilon import check_delta, check_epsilon
from jaxminimax.mechanism.costs import REPLACE_ONE, Charge
from jaxminimax.mechanism.description import Mechanism
from jaxminimax.mechanism.repetitions import Repetitions

_RUNS = Repetitions()
_SAFE = 1 + 1e-9  # on what is found by floating-point roots


def tuned_epsilon(mechanisms: Mechanism | Sequence[Mechanism], delta: float,
                  runs: Repetitions = _RUNS, *, neighbours: str = REPLACE_ONE) -> float:
    """The epsilon at which the best of a random number of runs is (epsilon, delta)-private.

    Args:
      mechanisms: what one run does to the data, the release of its score included; several, if it
        draws its settings among candidates.
      delta: in (0, 1).
      runs: the law of the number of runs, which must stay secret.
      neighbours: as in `epsilon`.

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
    check_delta(delta)
    runs.check()
    return epsilon_of_best(_costs(mechanisms, neighbours), float(delta), runs, neighbours)


def tuned_delta(mechanisms: Mechanism | Sequence[Mechanism], epsilon: float,
                runs: Repetitions = _RUNS, *, neighbours: str = REPLACE_ONE) -> float:
    """The delta at which the best of a random number of runs is (epsilon, delta)-private.

    Args and errors as in `tuned_epsilon`; epsilon in (0, 1e6).

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(40.0, None),
        ...                   population=100)
        >>> one = jmm.Repeat(query=query, times=20)
        >>> jmm.accounting.tuned_delta(one, 2.0) < 1e-6
        True
    """
    check_epsilon(epsilon)
    runs.check()
    costs = _costs(mechanisms, neighbours)
    left = float(epsilon) - price_of_choice(costs, runs, neighbours)
    if left == -math.inf:
        return 1.0
    if left < 0:  # H_a(P || Q) = 1 - a + a H_{1/a}(Q || P)
        one = -math.expm1(left) + math.exp(left) * delta_of_one(costs, -left, neighbours)
    else:
        one = delta_of_one(costs, left, neighbours)
    return min(1.0, runs.mean * one * _SAFE)


def _costs(mechanisms: Mechanism | Sequence[Mechanism], neighbours: str) -> tuple[Charge, ...]:
    several: Sequence[Any] = mechanisms if isinstance(mechanisms, list | tuple) else (mechanisms,)
    found = dict.fromkeys(cost for one in several for cost in charges(one, neighbours))
    if not found:
        raise ValueError("tuned_epsilon needs at least one mechanism.")
    return tuple(found)


def delta_of_one(costs: tuple[Charge, ...], epsilon: float, neighbours: str) -> float:
    """The largest delta, over candidates and places of the differing record."""
    return max(delta_of(cost, epsilon, neighbours) for cost in costs)


def epsilon_of_best(costs: tuple[Charge, ...], delta: float, runs: Repetitions,
                    neighbours: str) -> float:
    """Epsilon of the best of a random number of runs, of charges."""
    one = max(epsilon_of(cost, delta / runs.mean, neighbours) for cost in costs)
    return (one + price_of_choice(costs, runs, neighbours)) * (1 + 1e-15)


def price_of_choice(costs: tuple[Charge, ...], runs: Repetitions, neighbours: str) -> float:
    """(eta + 1) e1, and what the realised law of K departs from the described one."""
    e1 = condition(lambda e: delta_of_one(costs, e, neighbours), odds(runs))
    return (runs.eta + 1) * e1 + runs.ratio


def odds(runs: Repetitions) -> float:
    """Gamma / (1 - gamma), from below."""
    return runs.gamma / (1 - runs.gamma) / _SAFE


def condition(profile: Callable[[float], float], factor: float) -> float:
    """About the smallest e1 with profile(e1) <= factor (exp(e1) - 1); checked, so any is valid.

    By the Gaussian that has the profile's value at the last guess, for which it is a root.
    """
    def met(e: float) -> bool:
        return profile(e) <= factor * math.expm1(min(e, 500.0)) / _SAFE

    e, step = 0.3, 1e-5
    for _ in range(12):
        here = profile(e)
        if here >= 1:
            e *= 3
            if e > 1e4:
                return math.inf
            continue
        new = gaussian_condition(gaussian_with(e, here), factor)
        same, e = abs(new - e) <= step * e, new
        if same:
            break
    while not met(e):
        e, step = e * (1 + step), 2 * step
        if e > 1e4:
            return math.inf
    return e


# --- Gaussians, by which roots are guessed ---


def _log_delta(mu: float, e: float) -> float:
    """Ln H_{exp(e)}(N(mu, 1) || N(0, 1))."""
    a, b = scipy.special.log_ndtr(mu / 2 - e / mu), e + scipy.special.log_ndtr(-mu / 2 - e / mu)
    return max(float(a + math.log(-math.expm1(min(b - a, -1e-16)))), -1e5)


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function is 0; an end of the interval where it is not."""
    if falling(low) <= 0:
        return low
    if falling(high) >= 0:
        return high
    return float(scipy.optimize.brentq(falling, low, high, xtol=1e-13))


def gaussian_with(e: float, delta: float) -> float:
    """The mu at which the Gaussian mechanism has this profile at e >= 0."""
    goal = math.log(min(max(delta, 1e-280), 1 - 1e-9))
    return math.exp(_root(lambda x: goal - _log_delta(math.exp(x), e), -21.0,
                          math.log(20 + 2 * e) + 2))


def gaussian_condition(mu: float, factor: float) -> float:
    """E1 of the Gaussian mechanism."""
    def gap(e: float) -> float:
        return _log_delta(mu, e) - math.log(factor) - e - math.log(-math.expm1(-e))

    return _root(gap, 1e-12, 20 * mu * mu + 20 * mu + 200)


@functools.lru_cache(maxsize=64)
def gaussian_of_total(epsilon: float, delta: float, runs: Repetitions) -> float:
    """The mu of one run at which the search is (epsilon, delta)-private, if it were Gaussian."""
    def gap(log_mu: float) -> float:
        mu = math.exp(log_mu)
        left = epsilon - (runs.eta + 1) * gaussian_condition(mu, odds(runs)) - runs.ratio
        if left <= 0:
            return 50.0
        return min(_log_delta(mu, left) - math.log(delta / runs.mean), 50.0)

    return math.exp(_root(lambda x: -gap(x), -21.0, math.log(50 + epsilon)))
