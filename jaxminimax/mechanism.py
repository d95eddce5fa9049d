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
class FixedSize:
    """Exactly `batch` records take part, uniformly, anew in every release; replace-one only.

    Attributes:
      batch: m.
      replacement: whether a record may be drawn several times, as the papers' listings write it.
        It then costs much more than a Poisson sample of the same expected size.
    """

    batch: int = jax.tree.static()
    replacement: bool = jax.tree.static(default=False)


@record
class Query:
    """Release both players' clipped sums of per-record operators over one shared sample.

    Attributes:
      clip: per player, bound on the L2 norm of one record's operator [gradient units]. None for
        a player whose operator reads no data: it is neither computed, nor noised, nor charged.
      noise_multiplier: per player, standard deviation of the noise on the clipped sum / clip
        [dimensionless]; None where the clip is. Set by `calibrate`, which keeps the ratio between
        the players. None altogether: not calibrated yet, and `release` refuses.
      sampling: `Full()`, `Poisson(rate=...)`, `FixedSize(batch=...)` or `Disjoint(batch=...)`.
      population: n, the number of records; public.
      joint: one clip for both players: a record's operator g is scaled so that
        sum_p (||g_p|| / C_p)^2 <= 1, instead of ||g_p|| <= C_p for each p. It costs as much as the
        player with the smaller noise multiplier alone, and keeps the operator's direction.
    """

    clip: Saddle
    noise_multiplier: Saddle | None = None
    sampling: Full | Poisson | FixedSize | Disjoint = Full()
    population: int = jax.tree.static()
    joint: bool = jax.tree.static(default=False)


@record
class Repeat:
    """`times` adaptive uses of `query`, each on a fresh sample with fresh noise."""

    query: Query
    times: int = jax.tree.static()


@record
class GroupLosses:
    """`times` releases of p groups' mean losses over all their records, plus Laplace noise.

    A replaced record belongs to one group, so one coordinate moves, by at most B / n. With
    `only_argmax` the noisy values stay inside and the index of the largest is released, which costs
    the same: nothing better is proved for it. No minibatch may be read: amplification would have to
    cover this release and the gradient's together.

    Attributes:
      bound: B, losses lie in [0, B].
      group_size: n, records of the smallest group; public.
      noise_multiplier: Laplace scale over B / n [dimensionless].
      times: number of releases.
      only_argmax: whether only the index of the largest noisy loss is released.
    """

    bound: float | jax.Array
    group_size: int = jax.tree.static()
    noise_multiplier: float | jax.Array | None = None
    times: int = jax.tree.static()
    only_argmax: bool = jax.tree.static(default=False)


@record
class Tree:
    """All prefix sums of one pass of clipped vectors, by a binary tree of Gaussian sums (DP-FTRL).

    A record is in one leaf, hence in ceil(log2(leaves + 1)) nodes; replacing it moves each of them
    by at most twice the clip norm. (The published guarantee replaces it by zero: half of that.)

    Attributes:
      clip: bound on the L2 norm of a leaf's per-record vector.
      noise_multiplier: standard deviation of a node's noise over the clip norm.
      leaves: Q, the number of leaves.
    """

    clip: float | jax.Array
    noise_multiplier: float | jax.Array | None = None
    leaves: int = jax.tree.static()


@record
class Solution:
    """One release of a solver's certified solution plus Gaussian noise (output perturbation).

    Attributes:
      sensitivity: replace-one bound on how far the exact solution moves.
      slack: rho, certified distance of what is released from the exact solution over the
        sensitivity; the noise covers (1 + 2 rho) times the sensitivity.
      noise_multiplier: standard deviation over (1 + 2 rho) * sensitivity.
      because: the assumptions that the sensitivity rests on; printed in the statement.
    """

    sensitivity: float | jax.Array
    slack: float | jax.Array = 0.0
    noise_multiplier: float | jax.Array | None = None
    because: str = jax.tree.static()


@record
class Sequence:
    """Mechanisms on the same data one after the other, each free to look at the earlier ones."""

    parts: tuple[Any, ...]


@record
class Parallel:
    """Mechanisms on disjoint data sets, fixed in advance; each may look at the earlier answers.

    A record is in one of them, so the largest cost counts, never the sum; and each part is charged
    in full.
    """

    parts: tuple[Any, ...]


Leaf = Repeat | GroupLosses | Tree | Solution
Mechanism = Leaf | Sequence | Parallel


def releases(mechanism: Mechanism) -> int:
    """Number of releases that the mechanism allows."""
    match mechanism:
        case Repeat(times=times) | GroupLosses(times=times):
            return times
        case Tree(leaves=count):
            return count
        case Solution():
            return 1
    return sum(map(releases, mechanism.parts))


def leaves(mechanism: Mechanism) -> list[Leaf]:
    """The mechanisms that `Sequence` and `Parallel` are built from, in order."""
    if isinstance(mechanism, Sequence | Parallel):
        return [leaf for part in mechanism.parts for leaf in leaves(part)]
    return [mechanism]


def batch_size(query: Query) -> float:
    """The public number that a sum is divided by: n, q n or b; never the realised batch size."""
    match query.sampling:
        case Poisson(rate=rate):
            return rate * query.population
        case Disjoint(batch=batch) | FixedSize(batch=batch):
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
        case Disjoint(batch=batch) | FixedSize(batch=batch):
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
    match mechanism:
        case Sequence(parts=parts) | Parallel(parts=parts):
            for part in parts:
                check(part)
        case Repeat(query=query, times=times):
            _check_times("times (the number of releases)", times)
            _check_query(query)
        case GroupLosses():
            _check_times("times (the number of releases)", mechanism.times)
            _check.count("group_size", mechanism.group_size)
            _check.number("bound", mechanism.bound, low=1e-28, high=1e28, closed=True)
            _check_multiplier("noise_multiplier", mechanism.noise_multiplier)
        case Tree():
            _check_times("leaves", mechanism.leaves)
            _check.number("clip", mechanism.clip, low=1e-28, high=1e28, closed=True)
            _check_multiplier("noise_multiplier", mechanism.noise_multiplier)
        case Solution():
            _check.number("sensitivity", mechanism.sensitivity, low=0.0)
            _check.number("slack", mechanism.slack, low=0.0, high=1e6, closed=True)
            _check_multiplier("noise_multiplier", mechanism.noise_multiplier)
            if not mechanism.because:
                raise ValueError("because must name the assumptions that the sensitivity rests on.")
        case other:
            raise ValueError("A mechanism is a Repeat, a Sequence or another description of "
                             f"jaxminimax.mechanism, got {type(other).__name__}; pass "
                             "algorithm.mechanism(hyper).")


def _check_times(name: str, times: int) -> None:
    _check.count(name, times)
    if times >= 2**31:
        raise ValueError(f"{name} must be below 2**31, got {times}: the counter of releases has 32 "
                         "bits.")


def _check_multiplier(name: str, z: Any) -> None:
    if z is None:
        return
    _check.number(name, z, low=0.0, high=1e15, closed=True)
    if _is(z, lambda x: 0 < x < 1e-4):
        raise ValueError(f"{name} must be 0 (no privacy) or at least 1e-4, got {z!r}.")


def _check_query(query: Query) -> None:
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
        case Disjoint(batch=batch) | FixedSize(batch=batch):
            _check.count("batch", batch)
            if batch > n and not getattr(query.sampling, "replacement", False):
                raise ValueError(f"batch must be at most population={n}, got {batch}.")
        case other:
            raise ValueError("sampling must be Full(), Poisson(rate=...), FixedSize(batch=...) or "
                             f"Disjoint(batch=...), got {other!r}.")
    if query.clip.w is None and query.clip.v is None:
        raise ValueError("clip is None for both players: nothing would be released.")
    if query.joint and None in query.clip:
        raise ValueError(f"joint=True needs a clip norm for both players, got {query.clip!r}: "
                         "leave joint out where one player reads no data.")
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
                _check_multiplier(f"noise_multiplier.{name}", z)
                if _is(z, lambda x: x > 0) and _is(clip, math.isinf):
                    raise ValueError(f"clip.{name} is infinite, so no noise can cover it: give a "
                                     f"finite clip norm, or noise_multiplier.{name}=0.0.")


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
