"""Epsilon of a mechanism: the number that is promised."""

import warnings
from collections.abc import Iterable

import jax
import numpy as np

from jaxminimax.accounting import _curves
from jaxminimax.accounting._charge import charges, spent_part
from jaxminimax.accounting._people import dearest
from jaxminimax.base import checks
from jaxminimax.mechanism import NEIGHBOURS, Description, Repeat
from jaxminimax.mechanism.costs import Charge, concrete
from jaxminimax.mechanism.description import check, known
from jaxminimax.mechanism.repeat import OneRelease

LARGE = 0.1  # a delta that is pointed at loudly


def check_epsilon(epsilon: float) -> None:
    """Refuses a target that is no number in range.

    Raises:
      ValueError: naming the value and the fix.
    """
    _plain("epsilon", epsilon)
    checks.number("epsilon", epsilon, low=0.0, high=1e6)
    concrete(epsilon)


def check_delta(delta: float) -> None:
    """Refuses a delta that is no number in range.

    Raises:
      ValueError: naming the value and the fix.
    """
    _plain("delta", delta)
    checks.number("delta", delta, low=0.0, high=1.0)
    concrete(delta)


def _plain(name: str, value: float) -> None:
    if isinstance(value, jax.core.Tracer) or np.ndim(value):
        raise ValueError(f"{name} must be one plain number, got {value!r}: account outside of jit "
                         "and vmap, for one target at a time.")


def warn_of(delta: float, mechanism: Description, stacklevel: int = 3) -> None:
    """Warns of a delta of 1/n or more, for the functions that a user calls; once in each call.

    Publishing one whole record, drawn at random, is (0, 1/n)-differentially private: such a delta
    does not rule it out. One of 1/10 is no privacy, however many records there are.
    """
    n = known(mechanism).records()
    if delta >= LARGE:
        warnings.warn(f"delta = {float(delta):g} IS NO PRIVACY: a mechanism that publishes all "
                      f"records with probability {float(delta):g} meets it, whatever epsilon is. "
                      "Choose a delta well below 1/n" + (f" = {1 / n:.3g}." if n else "."),
                      UserWarning, stacklevel=stacklevel)
    elif n and delta >= 1 / n:
        warnings.warn(f"delta = {float(delta):g} is at or above 1/n = {1 / n:.3g} for n = {n} "
                      "records: a mechanism that publishes whole records may meet it. Choose a "
                      "delta well below 1/n.", UserWarning, stacklevel=stacklevel)


def charged_epsilon(cost: Charge, delta: float, neighbours: str,
                    people: int = 1) -> tuple[float, str]:
    """Epsilon of a charge, failures paid out of delta, and the bound it is from."""
    return _curves.named_epsilon(cost, delta, neighbours, people)


def worst(costs: Iterable[Charge], delta: float, neighbours: str,
          people: int = 1) -> tuple[float, str]:
    """The largest epsilon over the alternatives, and the bound it is from."""
    return max(charged_epsilon(cost, delta, neighbours, people) for cost in costs)


def effective_noise_multiplier(query: OneRelease) -> float:
    """z_eff: one Gaussian as strong as both players' together.

    (sum_p z_p^-2)^(-1/2), or min_p z_p with one joint clip.

    Raises:
      ValueError: for a query that is not valid, or whose noise is not set to plain numbers.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(3.0, 4.0),
        ...                   population=100)
        >>> round(jmm.accounting.effective_noise_multiplier(query), 3)
        2.4
    """
    if not isinstance(query, OneRelease):
        raise ValueError("effective_noise_multiplier is of a Query, a Resolvent or GroupGradients, "
                         f"got {type(query).__name__}.")
    steps = getattr(query, "steps", None)  # one number a part, or one for all
    check(Repeat(query=query, times=1, parts=len(steps) if isinstance(steps, tuple) else 1))
    return query.multiplier()


def epsilon(mechanism: Description, delta: float, spent: int | None = None, *,
            neighbours: str = "replace_one", people: int = 1) -> float:
    """The epsilon of (epsilon, delta)-differential privacy of a mechanism.

    That is the cost of everything that the mechanism allows, and so of a run that stops earlier by
    whatever rule. Without sampling it is the exact Gaussian value, else that of the composed
    privacy loss distribution, rounded pessimistically, some ten-thousandths above it. Always an
    upper bound for what the code does: failures of samplers and noise are charged to delta.

    Args:
      mechanism: `algorithm.mechanism(hyper)`, or a `Sequence` of several.
      delta: in (0, 1).
      spent: a number of releases fixed before the first one, for a shorter run; None for all that
        the mechanism allows. For a run that ended because of what it had released, the epsilon of
        what it had spent then does not hold, only that of all that is allowed.
      neighbours: "replace_one" (one record is exchanged, n is public) or "add_or_remove_one" (one
        record is there or counts as absent; n is a declared constant).
      people: k, if any k records of one person may differ instead of one.

    Returns:
      Epsilon; 0 if nothing was released; infinity without noise, and if it is above what can be
      proven. The departures of samplers and noise from their laws limit the epsilon that can be
      proven from above, and delta from below.

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
    checks.one_of("neighbours", neighbours, NEIGHBOURS)
    checks.count("people", people)
    charges(mechanism, neighbours)  # refuses what is not valid, even if nothing was spent
    warn_of(delta, mechanism)
    if spent is not None:
        checks.count("spent", spent, low=0)
        done = spent_part(mechanism, int(spent))
        if done is None:
            return 0.0
        mechanism = done
    return dearest(mechanism, float(delta), neighbours, int(people)).epsilon
