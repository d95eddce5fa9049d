"""Epsilon and delta of a mechanism, and the limits of what can be proven about them.

With r = ratio, o = failures and tau = departure as in `curve`, delta pays at an epsilon E for

    o e^r + (1 + e^E) tau

before anything is left for the described releases, however much noise they have. So there is

    a largest target,    E < ln((delta - o e^r) / tau - 1),      and
    a smallest delta,    o e^r + 2 tau.

Both are limits of the proof: tau is a bound on how far the noise sampler departs from its law, and
o on how often samplers fail. A run whose epsilon is proven below the limit meets every larger
target too, but calibration cannot match noise to such a target.

The milestone odometer says what a run has cost that was stopped by looking at what it released.
Milestones T_1 < ... < T_r = T, the number of releases allowed, and shares delta_1 + ... + delta_r =
delta are fixed before the run, by a public rule: T_j = ceil(T / 1.5^k) for k = 0, ..., 12, half of
delta for T itself and the rest in equal shares. Let the run stop at any time tau that is a function
of what was released until then and of randomness independent of the data, and let J be the first
milestone at or beyond tau. The odometer prints epsilon_J = epsilon(T_J, delta_J), and for
neighbouring data with laws P and Q of the stopped transcript, and every event S,

    P(S) <= sum_j e^(epsilon_j) Q(S, J = j) + delta.

Proof. "S, and J = j" is decided by the first T_j releases and that randomness, and those are
(epsilon_j, delta_j)-private: P(S, J = j) <= e^(epsilon_j) Q(S, J = j) + delta_j. Sum over j.

So one delta covers every number that might have been printed. It does not cover a stop decided by
anything else, such as a private validation loss or a crash that depends on the data. To quote the
smaller of this number and the epsilon of all releases, add both deltas.

Odometers: Rogers, Roth, Ullman and Vadhan, "Privacy odometers and filters: pay-as-you-go
composition", NeurIPS 2016.
"""

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from jaxminimax.accounting import curve, roots
from jaxminimax.accounting.printing import limit_in_words
from jaxminimax.base import checks
from jaxminimax.mechanism import Description, Repeat, Sequence, composed, repeat
from jaxminimax.mechanism.costs import Charge, concrete, silent

LARGE = 0.1  # a delta from here on gets a warning of its own


def check_epsilon(epsilon: float) -> None:
    """Refuses a target epsilon that is not one number in its range, by a `ValueError`."""
    _check("epsilon", epsilon, 1e6)


def check_delta(delta: float) -> None:
    """Refuses a delta that is not one number in its range, by a `ValueError`."""
    _check("delta", delta, 1.0)


def _check(name: str, value: float, high: float) -> None:
    if isinstance(value, jax.core.Tracer) or np.ndim(value):
        raise ValueError(f"{name} must be one plain number, got {checks.describe(value)}: "
                         "account outside of jit and vmap, for one target at a time.")
    checks.number(name, value, low=0.0, high=high)


def check_target(epsilon: float, delta: float, people: int) -> tuple[float, float, int]:
    """Returns a target and a number of records as Python's numbers.

    Raises:
      ValueError: for one that is out of its range, or no single number.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    checks.count("people", people)
    return float(epsilon), float(delta), int(people)


def warn_about_delta(delta: float, mechanism: Description, stacklevel: int = 3) -> None:
    """Warns about a delta of 1/n or more; functions that a user calls do so once in each call.

    Publishing one whole record, drawn at random, is (0, 1/n)-differentially private, so such a
    delta allows it. A delta of 1/10 is no privacy, for any number of records.
    """
    n = composed.as_description(mechanism).records()
    if delta >= LARGE:
        warnings.warn(f"delta = {float(delta):g} IS NO PRIVACY: a program that publishes all "
                      f"records with probability {float(delta):g} meets it at every epsilon. "
                      "Choose a delta well below 1/n" + (f" = {1 / n:.3g}." if n else "."),
                      UserWarning, stacklevel=stacklevel)
    elif n and delta >= 1 / n:
        warnings.warn(f"delta = {float(delta):g} is at or above 1/n = {1 / n:.3g} for n = {n} "
                      "records: a program that publishes whole records may meet it. Choose a "
                      "delta well below 1/n.", UserWarning, stacklevel=stacklevel)


def effective_noise_multiplier(query: repeat.OneRelease) -> float:
    """Returns the noise multiplier of one release that costs as much as both players' releases.

    (sum_p z_p^-2)^(-1/2), or min_p z_p with one joint clip.

    Raises:
      ValueError: for a query that is not valid, or whose noise is not set to plain numbers.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(3.0, 4.0),
        ...                   population=100)
        >>> round(jmm.accounting.effective_noise_multiplier(query), 3)
        2.4
    """
    if not isinstance(query, repeat.OneRelease):
        raise ValueError("effective_noise_multiplier is of a Query, a Resolvent or GroupGradients, "
                         f"got {type(query).__name__}.")
    steps = getattr(query, "steps", None)  # one number a part, or one for all
    once = Repeat(query=query, times=1, parts=len(steps) if isinstance(steps, tuple) else 1)
    composed.check(once)
    return once.multiplier()


def epsilon(mechanism: Description, delta: float, spent: int | None = None, *,
            neighbours: str = "replace_one", people: int = 1) -> float:
    """Computes the epsilon at which a mechanism is (epsilon, delta)-differentially private.

    It is the cost of everything that the mechanism allows, and so of a run that stops earlier by
    any rule. Without sampling it is the exact Gaussian value. Otherwise it is that of the composed
    privacy loss distribution, rounded pessimistically, some ten-thousandths above it. It is always
    an upper bound for the code: failures of samplers and noise are charged to delta.

    Args:
      mechanism: `algorithm.mechanism(hyper)`, or a `Sequence` of several.
      delta: delta, in (0, 1).
      spent: a number of releases fixed before the first one, for a shorter run; None for all that
        the mechanism allows. If a run ended because of its releases, the epsilon of the releases
        made does not hold, only that of all that are allowed.
      neighbours: "replace_one" (one record is replaced, n is public) or "add_or_remove_one" (one
        record is present or counts as absent; n is a declared constant).
      people: k, if any k records of one person may differ instead of one.

    Returns:
      Epsilon; 0 if nothing was released; infinity without noise, and with a warning that names the
      limit if it is above what can be proven. The departures of samplers and noise from their
      laws limit the epsilon that can be proven from above, and delta from below.

    Raises:
      ValueError: for numbers that are not finite, out of range or of the wrong type.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(40.0, None),
        ...                   population=100)
        >>> steps = jmm.Repeat(query=query, times=20)
        >>> round(jmm.epsilon(steps, 1e-6), 2), round(jmm.epsilon(steps, 1e-6, people=5), 2)
        (0.94, 5.55)
    """
    check_delta(delta)
    released_part = released(mechanism, spent, neighbours, people)
    warn_about_delta(delta, mechanism)
    value = curve.dearest(released_part, float(delta), neighbours, int(people)).epsilon
    proven = (proven_up_to(released_part, float(delta), neighbours, int(people))
              if math.isinf(value) else None)
    if proven is not None:
        warnings.warn(f"epsilon is {limit_in_words(proven, float(delta))}.", UserWarning,
                      stacklevel=2)
    return value


def delta(mechanism: Description, epsilon: float, spent: int | None = None, *,
          neighbours: str = "replace_one", people: int = 1) -> float:
    """Computes an upper bound on delta at a given epsilon.

    Args:
      mechanism: `algorithm.mechanism(hyper)`, or a `Sequence` of several.
      epsilon: at least 0. At 0 it is the largest advantage of membership inference.
      spent: a number of releases fixed before the first one; None for all that are allowed.
      neighbours: "replace_one" or "add_or_remove_one".
      people: k, if any k records of one person may differ instead of one.

    Raises:
      ValueError: for numbers that are not finite, out of range or of the wrong type.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(40.0, None),
        ...                   population=100)
        >>> steps = jmm.Repeat(query=query, times=20)
        >>> jmm.delta(steps, 1.0) < 1e-6 < jmm.delta(steps, 0.5)
        True
    """
    checks.number("epsilon", epsilon, low=0.0, high=1e6, closed=True)
    concrete(epsilon)
    released_part = released(mechanism, spent, neighbours, people)
    # delta is the largest H, over both orders of every pair that dominates
    bounds = curve.curves(released_part, np.array([float(epsilon)]), neighbours, int(people))
    return float(np.max(bounds))


def released(mechanism: Description, spent: int | None, neighbours: str,
             people: int) -> Description:
    """Checks a question, and describes the first `spent` releases, or all of them."""
    curve.charges(mechanism, neighbours)
    curve.check_people(mechanism, people)
    if spent is None:
        return mechanism
    checks.count("spent", spent, low=0)
    return mechanism.truncated(int(spent)) or Sequence(parts=())


class Limits(NamedTuple):
    """The range of epsilon and delta in which something can be proven about a description.

    Attributes:
      epsilon: every proven epsilon at the delta that was asked for is below it; 0 if there is none.
      delta: every delta at which an epsilon is proven is above it.
    """

    epsilon: float
    delta: float


def limits(mechanism: Description, delta: float, neighbours: str = "replace_one",
           people: int = 1) -> Limits:
    """Computes the limits of a description, which hold for any amount of noise.

    Args:
      mechanism: valid, with noise; a multiplier that is not set is an error.
      delta: in (0, 1).
      neighbours: the relation.
      people: k, how many records of one person may differ.

    Raises:
      ValueError: as `charges`.
    """
    costs = curve.charges(mechanism, neighbours)
    # by the group lemma: k e at delta / factor(e, k), for the largest e that one record allows
    proven = [Limits(people * _largest(costs, delta, people),
                     people * max(_floor(cost) for cost in costs))]
    if curve.together(mechanism, costs, people):
        # by the sharp proof: the largest failures of any place, as the k records may be anywhere
        places = curve.anywhere(costs)
        proven.append(Limits(min(_ceiling(cost, delta, people) for cost in places),
                             max(_floor(cost, people) for cost in places)))
    return Limits(max(proof.epsilon for proof in proven), min(proof.delta for proof in proven))


def proven_up_to(mechanism: Description, delta: float, neighbours: str,
                 people: int = 1) -> float | None:
    """Returns the largest epsilon of `limits`; None without noise, or without a limit."""
    if any(map(silent, curve.charges(mechanism, neighbours))):
        return None
    largest = limits(mechanism, delta, neighbours, people).epsilon
    return largest if math.isfinite(largest) else None


def refuse(epsilon: float, delta: float, limit: Limits) -> None:
    """Refuses a target beyond the limits.

    Raises:
      ValueError: naming the limit and the fix.
    """
    if delta <= limit.delta:
        raise ValueError(f"delta = {delta:g} is too small: the smallest that is proven for these "
                         f"releases is {limit.delta:.3g}, the probability with which the samplers "
                         "of records and noise may fail, for any amount of noise. Choose a larger "
                         "delta, or fewer releases.")
    if epsilon >= limit.epsilon:
        raise ValueError(f"epsilon = {epsilon:g} is above what is proven at delta = {delta:g} for "
                         f"these releases, {limit.epsilon:.4g}, so no noise can be matched to it. "
                         "The noise generator has an error that counts e^epsilon times. Choose a "
                         "smaller epsilon or a larger delta, or state `parameters`, if the release "
                         "has far fewer numbers than the accountant assumes.")


def _ceiling(cost: Charge, delta: float, people: int = 1) -> float:
    r, o, tau = curve.apart(cost, people)
    # what o e^r leaves must exceed (1 + e^E) tau, or no noise is enough
    available = delta - o * math.exp(min(r, 500.0))
    if available <= 2 * tau:
        return 0.0
    # o e^r + (1 + e^E) tau < delta, solved for E
    return math.log(available / tau - 1) if tau else math.inf


def _floor(cost: Charge, people: int = 1) -> float:
    r, o, tau = curve.apart(cost, people)
    # at E = 0 the departure costs (1 + e^0) tau
    return o * math.exp(min(r, 500.0)) + 2 * tau


def _largest(costs: tuple[Charge, ...], delta: float, people: int) -> float:
    """Finds about the largest epsilon of one record that the group lemma can prove at `delta`."""
    def proven(e: float) -> bool:
        share = delta / curve.factor(e, people)
        return all(e < _ceiling(cost, share) for cost in costs)

    # the lemma divides delta by a factor that grows with e, so its limit is below that of one
    # record
    high = min(_ceiling(cost, delta) for cost in costs)
    if people == 1 or not proven(0.0):
        return high if people == 1 else 0.0
    return roots.bisect(proven, 0.0, min(high, 1e3))[1]


STEPS = 13  # milestones, T included


def shares(count: int, delta: float) -> list[float]:
    """Returns the share of delta of each milestone: half for the last, the rest equally."""
    if count == 1:
        return [delta]
    # rounded down, so that all shares together are at most delta
    return [0.5 * delta / (count - 1) * (1 - 1e-15)] * (count - 1) + [0.5 * delta]


def milestones(allowed: int, delta: float) -> tuple[tuple[int, float], ...]:
    """Returns numbers of releases, rising to `allowed`, and the share of `delta` of each."""
    # ceil(T 2^k / 3^k), by whole numbers
    ends = sorted({-(-allowed * 2**k // 3**k) for k in range(STEPS)})
    return tuple(zip(ends, shares(len(ends), delta), strict=True))


def odometer(part_at: Callable[[int], Description], allowed: int, spent: int, delta: float,
             neighbours: str, people: int = 1) -> tuple[float, int]:
    """Computes the odometer's epsilon of a run that stopped early, and its milestone.

    Args:
      part_at: the description of a number of releases; for 0, of the releases alongside the run.
      allowed: releases allowed, at least 1.
      spent: releases made, at most `allowed`.
      delta: delta of all milestones together.
      neighbours: "replace_one" or "add_or_remove_one".
      people: the number of records of one person that may differ.
    """
    if spent == 0 and not composed.leaves(part_at(0)):
        return 0.0, 0  # nothing was released, and coins alone decided it
    # T_J, the first milestone at or beyond tau, and delta_J
    end, share = next(x for x in milestones(allowed, delta) if x[0] >= spent)
    return curve.dearest(part_at(end), share, neighbours, people).epsilon, end
