"""Arguments and results of planning an algorithm from public numbers.

    algorithm.plan(target, *, population, ...) -> Plan

is in each module that has a theorem. Users call `jaxminimax.plan(algorithm, epsilon=..., delta=...,
population=..., ...)`, which makes the target. A plan may need its noise, and the accountant that
sets the noise is in a layer above the algorithms.

Privacy never rests on a plan, because the noise is calibrated to the description that the run
executes. Utility does.
"""

import math
from collections.abc import Callable
from typing import Any, Generic, NamedTuple

from jaxminimax.algorithms import descent
from jaxminimax.base import checks
from jaxminimax.base.types import HyperT, Saddle
from jaxminimax.mechanism import Query, batch_size, grid
from jaxminimax.mechanism.costs import concrete

MOST_ROUNDS = 100_000  # more cost time, and the sampler's error in every release costs epsilon
_COUNTS = ("population", "dim", "iterations")


class Plan(NamedTuple, Generic[HyperT]):
    """Settings from a theorem, with its guarantee and its reasons.

    Attributes:
      hyper: the algorithm's `Hyper`, calibrated.
      guarantee: the theorem's bound on its measure with all constants, for this noise; None if
        the theorem is a rate.
      vacuous: whether the theorem promises nothing here: one of its conditions fails, or its bound
        is no better than the trivial one. The run is as private as any other.
      why: sentences on the theorem, its measure, the bound and the trivial one, and departures.
      trivial: the bound that every point of the feasible set keeps, L B; None if the theorem is a
        rate.
    """

    hyper: HyperT
    guarantee: float | None
    vacuous: bool
    why: tuple[str, ...]
    trivial: float | None = None


def with_trivial(bound: float, trivial: float) -> str:
    """Returns a sentence that compares a bound with the trivial one."""
    verdict = ("so it says nothing here" if bound >= trivial
               else "so it says something, of the worst problem with these constants")
    return f"The bound is {bound:.3g}; any point at all has one of L B = {trivial:.3g}, {verdict}."


def guaranteed(hyper: HyperT, bound: float, trivial: float, *why: str) -> Plan[HyperT]:
    """Returns a plan whose guarantee is a bound, compared with the trivial one."""
    return Plan(hyper, bound, bound >= trivial, (*why, with_trivial(bound, trivial)), trivial)


def batches(most: int) -> list[int]:
    """Returns a geometric grid of batches up to `most`, from which a schedule takes the best."""
    return sorted({min(most, round(2 ** (k / 8))) for k in range(8 * most.bit_length() + 1)})


class Target(NamedTuple):
    """The privacy target of a plan.

    Attributes:
      epsilon: epsilon of the target; None for no noise and no privacy.
      delta: delta of the target.
      noise: `hyper -> hyper`, with noise multipliers calibrated to the target.
      gaussian: returns the ratio of noise to sensitivity of one Gaussian release that meets the
        target; 0 without privacy.
    """

    epsilon: float | None
    delta: float
    noise: Callable[[Any], Any]
    gaussian: Callable[[], float]


def check_numbers(**numbers: Any) -> None:
    """Refuses public numbers out of range: counts below 1, others that are not positive.

    Raises:
      ValueError: naming the number.
    """
    for name, value in numbers.items():
        if name in _COUNTS:
            checks.count(name, value)
        else:
            checks.number(name, value, low=0.0, high=1.0 if name == "delta" else math.inf)


def privacy_term(dim: int, epsilon: float, delta: float) -> float:
    """Returns sqrt(d ln(1/delta)) / epsilon, n times the privacy term of most rates."""
    return math.sqrt(dim * math.log(1 / delta)) / epsilon


def joint_query(bound: float, population: int, sampling: Any) -> Query:
    """Makes a query of operators clipped at `bound`, players together, without noise."""
    return Query(clip=Saddle(bound, bound), joint=True, population=population, sampling=sampling)


def release_variance(query: Query, dim: int | Saddle,
                     geometry: Saddle = descent.EUCLIDEAN) -> float:
    """Returns V, a bound on E||xi||^2, xi the released operator less the mean of all clipped ones.

    Noise of deviation sigma = z C / m on each of d coordinates, and the sample's own error, in l2
    at most (1 - q) C^2 / (q n) for Poisson samples and C^2 / m for those of a fixed size:

        V = d_w sigma_w^2 + d_v sigma_v^2 + sample                            Euclidean,
        V = 2 sigma_w^2 ln(2 d_w) + 2 sigma_v^2 ln(2 d_v) + 2 sample ...      entropic,

    where the noise counts twice too if there is a sample: the l-infinity norm has no Pythagoras.
    (E max_j x_j^2 <= 2 ln(2 d) for d standard normals: with a such that 2 d Phi(-a) = 1 it is at
    most 1 + a phi(a) / Phi(-a), by the union bound.) The rounding of a sum to its grid is not
    counted: it is below the noise by many bits.

    Args:
      query: a calibrated query of full batches or of samples drawn anew in every release.
      dim: d of both players together, for one noise; or a `Saddle` of each player's.
      geometry: the geometry of the norm, the same for both players.

    Raises:
      ValueError: for disjoint batches, whose errors are not independent of the past; for different
        noise or entropic steps without the dimension of each player.
    """
    m = batch_size(query)
    sigmas = Saddle(*(0.0 if c is None else concrete(c) * concrete(z) / m for c, z in zip(
        query.clip, grid.check_noise(query), strict=True)))
    if not isinstance(dim, Saddle):
        if geometry != descent.EUCLIDEAN or (sigmas.w != sigmas.v and None not in query.clip):
            raise ValueError(f"dim must be a Saddle, the dimension of each player, got {dim!r}.")
        dim = Saddle(dim, 0) if query.clip.w is not None else Saddle(0, dim)
    clips = [concrete(c) ** 2 for c in query.clip if c is not None]
    square = max(clips) if query.joint else sum(clips)
    spread = query.sampling.spread()
    if spread is None:
        raise ValueError("sampling must be Full, Poisson or FixedSize, drawn anew in every "
                         f"release, got {query.sampling!r}.")
    sample = spread * square / m
    if geometry == descent.ENTROPIC:
        noise = sum(2 * s**2 * math.log(2 * d) for s, d in zip(sigmas, dim, strict=True) if d)
        return noise if sample == 0 else 2 * (noise + sample)
    return sum(d * s**2 for s, d in zip(sigmas, dim, strict=True)) + sample
