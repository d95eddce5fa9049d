"""Descriptions of what a run does to the data, in the few numbers that decide its privacy.

The door (`release`) draws its sample and its noise from these descriptions; the accountant reads
the same ones. Neither has another source.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from scipy import special

from jaxminimax import _check
from jaxminimax._types import Saddle, record

# P[a Poisson sample outgrows a capacity that was not given], per release. With 10^6 releases the
# charge to delta stays near 1e-11 at epsilon = 1.
OVERFLOW = 1e-17


@record
class Full:
    """Every record takes part in every release."""


@record
class Poisson:
    """Every record takes part independently with probability `rate`, anew in every release.

    Both fields are static: the thresholds of the sampler are computed from `rate` with exact
    integer arithmetic on the host, and `capacity` is a shape.

    Attributes:
      rate: q in (0, 1].
      capacity: most records that a release can hold. A larger sample makes the release NaN, and
        the probability of that is charged to delta. None: the smallest capacity that overflows
        with probability at most 1e-17.
    """

    rate: float = jax.tree.static()
    capacity: int | None = jax.tree.static(default=None)


@record
class Disjoint:
    """Release k reads rows [k b, (k + 1) b), then the next b, and starts over after a pass.

    Rows beyond the last whole batch are never read. The order of the rows must be public: shuffle
    the data once with a permutation that does not depend on it.

    Attributes:
      batch: b, records in a release.
    """

    batch: int = jax.tree.static()


@record
class Query:
    """Release both players' clipped sums of per-record operators over one shared sample.

    Attributes:
      clip: per player, bound on the L2 norm of one record's operator [gradient units]. None for
        a player whose operator reads no data: it is neither computed, nor noised, nor charged.
      noise_multiplier: per player, standard deviation of the noise on the clipped sum / clip
        [dimensionless]; None where the clip is. Set by `calibrate`, which keeps the ratio between
        the players. None altogether: not calibrated yet, and `release` refuses.
      sampling: `Full()`, `Poisson(rate=...)` or `Disjoint(batch=...)`.
      population: n, the number of records; public.
    """

    clip: Saddle
    noise_multiplier: Saddle | None = None
    sampling: Full | Poisson | Disjoint = Full()
    population: int = jax.tree.static()


@record
class Repeat:
    """`times` adaptive uses of `query`, each on a fresh sample with fresh noise."""

    query: Query
    times: int = jax.tree.static()


@record
class Sequence:
    """Mechanisms on the same data one after the other, each free to look at the earlier ones."""

    parts: tuple[Any, ...]


Mechanism = Repeat | Sequence


def releases(mechanism: Mechanism) -> int:
    """Number of releases that the mechanism allows."""
    if isinstance(mechanism, Repeat):
        return mechanism.times
    return sum(map(releases, mechanism.parts))


def leaves(mechanism: Mechanism) -> list[Repeat]:
    """The repeated queries in a mechanism, in order."""
    if isinstance(mechanism, Repeat):
        return [mechanism]
    return [leaf for part in mechanism.parts for leaf in leaves(part)]


def batch_size(query: Query) -> float:
    """The public number that a sum is divided by: n, q n or b; never the realised batch size."""
    match query.sampling:
        case Poisson(rate=rate):
            return rate * query.population
        case Disjoint(batch=batch):
            return float(batch)
    return float(query.population)


def rows_read(query: Query) -> int:
    """Rows of the fixed-shape batch that a release works on."""
    match query.sampling:
        case Poisson(capacity=int() as capacity):
            return min(query.population, capacity)
        case Poisson(rate=rate):
            mean = rate * query.population
            room = np.arange(int(mean), int(mean + 20 * math.sqrt(mean)) + 40)
            fits = special.bdtrc(room, query.population, rate) <= OVERFLOW
            return min(query.population, int(room[np.argmax(fits)]))
        case Disjoint(batch=batch):
            return batch
    return query.population


def overflow_probability(query: Query) -> float:
    """P[a Poisson sample does not fit], for one release; 0 for the other samplings."""
    n = query.population
    if not isinstance(query.sampling, Poisson) or rows_read(query) >= n:
        return 0.0
    return float(special.bdtrc(rows_read(query), n, query.sampling.rate))


def with_noise(query: Query, scale: float) -> Query:
    """`query` with its noise multipliers (1 each if not set) times `scale`, as Python floats."""
    ratio = query.noise_multiplier
    if ratio is None:
        ratio = Saddle(*(None if c is None else 1.0 for c in query.clip))
    scaled = jax.tree.map(lambda x: float(x) * scale, ratio)
    return dataclasses.replace(query, noise_multiplier=scaled)


def budget_split(w: float) -> Saddle:
    """Ratio of noise multipliers that gives player w the share `w` of the budget, v the rest.

    The budget is the squared Gaussian parameter mu^2 = sum_p (2 / z_p)^2 T, so z_p goes like
    share_p^(-1/2).

    Raises:
      ValueError: unless 0 < w < 1.
    """
    _check.number("w", w, low=0.0, high=1.0)
    return Saddle(w**-0.5, (1.0 - w) ** -0.5)


def check(mechanism: Mechanism) -> None:
    """Refuses a description that no run or charge should start from.

    Raises:
      ValueError: naming the value and the fix.
    """
    if isinstance(mechanism, Sequence):
        for part in mechanism.parts:
            check(part)
        return
    if not isinstance(mechanism, Repeat):
        raise ValueError(f"A mechanism is a Repeat or a Sequence, got {type(mechanism).__name__}; "
                         "pass algorithm.mechanism(hyper).")
    _check.count("times (the number of releases)", mechanism.times)
    if mechanism.times >= 2**31:
        raise ValueError(f"times must be below 2**31, got {mechanism.times}: the counter of "
                         "releases has 32 bits.")
    query = mechanism.query
    _check.count("population", query.population)
    n = query.population
    if n >= 2**30:
        raise ValueError(f"population must be below 2**30, got {n}: indices are 32-bit.")
    match query.sampling:
        case Full():
            pass
        case Poisson(rate=rate, capacity=capacity):
            _check.number("rate", rate, low=0.0, high=math.nextafter(1.0, 2.0))
            _check.number("rate * population", rate * n, low=1e-6)
            if capacity is not None:
                _check.count("capacity", capacity)
        case Disjoint(batch=batch):
            _check.count("batch", batch)
            if batch > n:
                raise ValueError(f"batch must be at most population={n}, got {batch}.")
        case other:
            raise ValueError(f"sampling must be Full(), Poisson(rate=...) or Disjoint(batch=...), "
                             f"got {other!r}.")
    if query.clip.w is None and query.clip.v is None:
        raise ValueError("clip is None for both players: nothing would be released.")
    for name, clip in query.clip._asdict().items():
        if clip is not None:
            _check.number(f"clip.{name}", clip, low=1e-28, high=1e28, closed=True, infinite=True)
    if query.noise_multiplier is not None:
        for name, clip in query.clip._asdict().items():
            z = getattr(query.noise_multiplier, name)
            if (z is None) != (clip is None):
                raise ValueError(f"clip.{name} is {clip!r} but noise_multiplier.{name} is {z!r}: "
                                 "a player is released with both or with neither.")
            if z is not None:
                _check.number(f"noise_multiplier.{name}", z, low=0.0, high=1e15, closed=True)
                if _is(z, lambda x: x > 0) and _is(clip, math.isinf):
                    raise ValueError(f"clip.{name} is infinite, so no noise can cover it: give a "
                                     f"finite clip norm, or noise_multiplier.{name}=0.0.")
                if _is(z, lambda x: 0 < x < 1e-4):
                    raise ValueError(f"noise_multiplier.{name} must be 0 (no privacy) or at least "
                                     f"1e-4, got {z!r}.")


def _is(x: Any, true: Callable[[float], bool]) -> bool:
    return not isinstance(x, jax.core.Tracer) and np.ndim(x) == 0 and true(float(x))


def check_noise(query: Query) -> Saddle:
    """The noise multipliers of `query`.

    Raises:
      ValueError: if they were never set.
    """
    if query.noise_multiplier is None:
        raise ValueError("noise_multiplier is not set: calibrate(algorithm, hyper, epsilon=..., "
                         "delta=...) sets it; noise_multiplier=Saddle(0.0, 0.0) runs without "
                         "privacy.")
    return query.noise_multiplier


def concrete(x: Any) -> float:
    """A number out of a description as a Python float.

    Raises:
      ValueError: for a tracer or an array of several numbers: accounting runs on the host, on one
        description at a time.
    """
    if isinstance(x, jax.core.Tracer) or np.ndim(x) != 0:
        raise ValueError(f"Accounting needs one plain number, got {x!r}: call it outside jit and "
                         "vmap, on one description at a time.")
    return float(x)
