"""From a description to what it costs: Gaussians that add up, subsampled ones, failures.

Conventions, all under one roof because a slip here is a factor of two in epsilon:

* z_p is the standard deviation of player p's noise over its clip norm. Given the sample, both
  players' sums are one Gaussian vector whose distance between neighbours, in units of the noise,
  is at most 1 / z_eff when a record is added or removed and 2 / z_eff when one is replaced,

      z_eff = (sum_p z_p^-2)^(-1/2).

  They read the same sample, so they are one release inside one sampling.
* Without sampling, T adaptive releases are one Gaussian of parameter mu = (1 or 2) sqrt(T) / z_eff.
* Disjoint batches read a record once a pass, so T counts passes, not releases.
* P[a Poisson sample overflows] is added to delta. That is more than needed: given which other
  records were drawn, a sample overflows with the same probability on both data sets, so its NaN
  tells nothing, and where it cannot overflow the pair is the Poisson one.
* A departure tau from the described law of the samples costs (1 + e^epsilon) tau of delta:
  P'(S) <= P(S) + tau and Q'(S) >= Q(S) - tau for the realised P', Q'.
"""

import math
from typing import NamedTuple

from jaxminimax import _check, sampling
from jaxminimax import mechanism as words
from jaxminimax.mechanism import Disjoint, Mechanism, Poisson, Query, Repeat, Sequence

NEIGHBOURS = ("replace_one", "add_or_remove_one")


class Charge(NamedTuple):
    """What a mechanism costs.

    Attributes:
      gaussian: sum of T / z_eff^2 over everything unsampled.
      sampled: ((rate, z_eff), T) of the Poisson releases, merged and sorted.
      overflow: total probability that a sample does not fit its capacity.
      law_error: total variation tau between the realised samples and the described ones.
    """

    gaussian: float = 0.0
    sampled: tuple[tuple[tuple[float, float], int], ...] = ()
    overflow: float = 0.0
    law_error: float = 0.0


def effective_noise_multiplier(query: Query) -> float:
    """z_eff = (sum_p z_p^-2)^(-1/2): one Gaussian as strong as both players' together."""
    z = [words.concrete(x) for x in words.check_noise(query) if x is not None]
    if min(z) == 0:
        return 0.0
    smallest = min(z)  # scaled, so that squares neither overflow nor underflow
    return float(smallest / math.sqrt(sum((smallest / x) ** 2 for x in z)))


def first(mechanism: Mechanism, spent: int) -> Mechanism | None:
    """`mechanism` stopped after `spent` releases; None if nothing was released."""
    if isinstance(mechanism, Repeat):
        times = min(spent, mechanism.times)
        return Repeat(query=mechanism.query, times=times) if times else None
    parts = []
    for part in mechanism.parts:
        done = first(part, spent)
        spent -= 0 if done is None else words.releases(done)
        parts += [] if done is None else [done]
    return Sequence(parts=tuple(parts)) if parts else None


def charge(mechanism: Mechanism, neighbours: str) -> Charge:
    """The cost of a mechanism.

    Raises:
      ValueError: for a description that is not valid, or a relation it has no guarantee for.
    """
    _check.one_of("neighbours", neighbours, NEIGHBOURS)
    words.check(mechanism)
    gaussian, overflow, law_error = 0.0, 0.0, 0.0
    sampled: dict[tuple[float, float], int] = {}
    for part in words.leaves(mechanism):
        query, times = part.query, part.times
        z = effective_noise_multiplier(query)
        if isinstance(query.sampling, Poisson):
            rate = float(query.sampling.rate)
            sampled[rate, z] = sampled.get((rate, z), 0) + times
            overflow += times * words.overflow_probability(query)
            law_error += times * sampling.law_error(query)
        else:
            if isinstance(query.sampling, Disjoint):
                if neighbours != "replace_one":
                    raise ValueError("add_or_remove_one is offered for Full() and Poisson(...) "
                                     "only: use neighbours='replace_one' with Disjoint(...).")
                times = math.ceil(times / (query.population // query.sampling.batch))
            gaussian += math.inf if z == 0 else times / z**2
    return Charge(gaussian, tuple(sorted(sampled.items())), overflow, law_error)


def together(*charges: Charge) -> Charge:
    """The cost of several mechanisms on the same data."""
    sampled: dict[tuple[float, float], int] = {}
    for one in charges:
        for key, times in one.sampled:
            sampled[key] = sampled.get(key, 0) + times
    return Charge(sum(c.gaussian for c in charges), tuple(sorted(sampled.items())),
                  sum(c.overflow for c in charges), sum(c.law_error for c in charges))


def louder(cost: Charge, scale: float) -> Charge:
    """`cost` with all its noise multipliers times `scale`."""
    sampled = tuple(((rate, z * scale), times) for (rate, z), times in cost.sampled)
    return cost._replace(gaussian=cost.gaussian / scale**2, sampled=sampled)
