"""Epsilon of a mechanism: the number that is promised."""

import functools
import math
import warnings
from collections.abc import Iterable

from jaxminimax.accounting import _curves
from jaxminimax.accounting._charge import charges, spent_part
from jaxminimax.base import checks
from jaxminimax.mechanism import NEIGHBOURS, Charge, Description, OneRelease, Repeat, check
from jaxminimax.mechanism.costs import silent
from jaxminimax.mechanism.description import known

_LONGEST_PLD = 10**7  # releases


def _rounding(cost: Charge) -> float:
    """What a composed distribution may be off by in delta.

    The library truncates 1e-15 of tail mass a convolution; powers of Fourier coefficients lose
    about one rounding error a release. Against the same distributions composed with exponential
    tilting, which keeps relative accuracy in the tail, a quarter of the allowance was the most that
    was needed (3.2e-14 after 80 draws with replacement). The loss does not shrink with delta: after
    10^6 releases 3e-11 too little was seen far in the tail, so delta = 1e-10 is left to Renyi
    divergences there.
    """
    return 1e-13 + 5e-16 * sum(times for _, times in cost.losses)


def check_epsilon(epsilon: float) -> None:
    """Refuses a target that is no number in range.

    Raises:
      ValueError: naming the value and the fix.
    """
    checks.number("epsilon", epsilon, low=0.0, high=1e6)


def check_delta(delta: float) -> None:
    """Refuses a delta that is no number in range.

    Raises:
      ValueError: naming the value and the fix.
    """
    checks.number("delta", delta, low=0.0, high=1.0)


def warn_of(delta: float, mechanism: Description, stacklevel: int = 3) -> None:
    """Warns of a delta above 1/n, for the functions that a user calls; once in each call.

    Publishing one whole record, drawn at random, is (0, 1/n)-differentially private: such a delta
    does not rule it out.
    """
    n = known(mechanism).records()
    if n and delta > 1 / n:
        warnings.warn(f"delta = {float(delta):g} is above 1/n = {1 / n:.3g} for n = {n} records: a "
                      "mechanism that publishes whole records may meet it. Choose a delta well "
                      "below 1/n.", UserWarning, stacklevel=stacklevel)


def upper_bounds(cost: Charge, delta: float, neighbours: str,
                 coarse: float = 1.0) -> dict[str, float]:
    """Epsilon of a charge by every bound that applies to it, the sampler's own failures left out.

    `gaussian` alone, and exact, if nothing else is released. Otherwise `pld`, with the brackets
    `rdp`, which fixed-size samples do not have, and `unsampled` (the same Gaussian releases as if
    every record took part in all of them), which draws with replacement do not have.
    """
    factor = _curves.shift(neighbours)
    if not cost.losses:
        return {"gaussian": _curves.gaussian_epsilon(factor * math.sqrt(cost.gaussian), delta)}
    if silent(cost):
        return {"gaussian": math.inf}
    bounds = {}
    kinds = {loss.kind for loss, _ in cost.losses}
    if kinds <= {"poisson", "fixed"}:
        squares = cost.gaussian + sum(times / loss.z**2 for loss, times in cost.losses)
        bounds["unsampled"] = _curves.gaussian_epsilon(factor * math.sqrt(squares), delta)
    guess = _curves.rdp_epsilon(cost, delta, neighbours)
    if kinds <= {"poisson", "laplace"}:
        bounds["rdp"] = guess
    slack = _rounding(cost)
    if slack <= delta / 2 and all(times <= _LONGEST_PLD for _, times in cost.losses):
        bracket = min([*bounds.values(), 4 * guess])
        bounds["pld"] = _curves.pld_epsilon(cost, delta - slack, neighbours, bracket, coarse)
    return bounds or {"pld": math.inf}


@functools.lru_cache(maxsize=4096)
def charged_epsilon(cost: Charge, delta: float, neighbours: str,
                    coarse: float = 1.0) -> tuple[float, str]:
    """Epsilon of a charge with the sampler's failures paid out of delta, and the bound it is from.

    Raises:
      ValueError: if overflows would take more than half of delta.
    """
    reserved = 0.0
    for _ in range(50):
        bounds = upper_bounds(cost, delta - reserved, neighbours, coarse)
        name = min(bounds, key=lambda bound: bounds[bound])
        value = bounds[name] + cost.ratio
        # the exponent is capped only to keep exp finite: at such an epsilon the answer is infinity
        need = (math.expm1(cost.ratio) * delta + math.exp(cost.ratio) * cost.overflow
                + (1 + math.exp(min(value, 500.0))) * cost.law_error)
        if need <= reserved:
            return value, name
        if cost.overflow > delta / 2:
            raise ValueError(
                f"Samples outgrow their capacity with probability {cost.overflow:.3g} in all, "
                f"which delta = {delta:g} cannot pay: give Poisson(...) a larger capacity.")
        if need > delta / 2:
            return math.inf, name
        reserved = 1.05 * need
    return math.inf, name


def worst(costs: Iterable[Charge], delta: float, neighbours: str,
          coarse: float = 1.0) -> tuple[float, str]:
    """The largest epsilon over the alternatives, and the bound it is from."""
    return max(charged_epsilon(cost, delta, neighbours, coarse) for cost in costs)


def effective_noise_multiplier(query: OneRelease) -> float:
    """z_eff: one Gaussian as strong as both players' together.

    (sum_p z_p^-2)^(-1/2), or min_p z_p with one joint clip.

    Raises:
      ValueError: for a query that is not valid, or whose noise is not set to plain numbers.
    """
    if not isinstance(query, OneRelease):
        raise ValueError("effective_noise_multiplier is of a Query, a Resolvent or GroupGradients, "
                         f"got {type(query).__name__}.")
    steps = getattr(query, "steps", None)  # one number a part, or one for all
    check(Repeat(query=query, times=1, parts=len(steps) if isinstance(steps, tuple) else 1))
    return query.multiplier()


def epsilon(mechanism: Description, delta: float, spent: int | None = None, *,
            neighbours: str = "replace_one") -> float:
    """The epsilon of (epsilon, delta)-differential privacy of a mechanism.

    That is the cost of everything that the mechanism allows, and so of a run that stops earlier by
    whatever rule. Without sampling the exact Gaussian value; for Poisson sampling the composed
    privacy loss distribution, rounded pessimistically, or a Renyi bound where that is smaller.
    Always an upper bound for what the code does: failures of the sampler are charged to delta.

    Args:
      mechanism: `algorithm.mechanism(hyper)`, or a `Sequence` of several.
      delta: in (0, 1).
      spent: a number of releases fixed before the first one, for a shorter run; None for all that
        the mechanism allows. For a run that ended because of what it had released, the epsilon of
        what it had spent then does not hold, only that of all that is allowed.
      neighbours: "replace_one" (one record is exchanged, n is public) or "add_or_remove_one" (one
        record is there or counts as absent; n is a declared constant).

    Returns:
      Epsilon; infinity without noise, 0 if nothing was released. Sampled releases are infinite from
      about 40 on: there delta can no longer pay for the sampler's departure from its law, of about
      1e-25 a release, times e^epsilon.

    Raises:
      ValueError: for numbers that are not finite, out of range or of the wrong type.
    """
    check_delta(delta)
    checks.one_of("neighbours", neighbours, NEIGHBOURS)
    charges(mechanism, neighbours)  # refuses what is not valid, even if nothing was spent
    warn_of(delta, mechanism)
    if spent is not None:
        checks.count("spent", spent, low=0)
        done = spent_part(mechanism, int(spent))
        if done is None:
            return 0.0
        mechanism = done
    return worst(charges(mechanism, neighbours), float(delta), neighbours)[0]
