"""Attacks with many numbers or many records: on grids in the noise, and on rounding of sums.

With thousands of parameters one release shows thousands of the sampler's numbers, and a property
that one in ten thousand of them gives away names the data set. With millions of records the sum is
so large that its last bit is a good part of a clip norm, and a record may move it by more than
itself.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.privacy.attacks import certificate
from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import Saddle
from jaxminimax import audit as auditor
from jaxminimax.audit.pairs import Observe, Rounds, first_release, rounds_of_keys
from jaxminimax.audit.signals import signal_of
from jaxminimax.mechanism.costs import concrete
from jaxminimax.mechanism.resolvent import noise_unit
from jaxminimax.mechanism.solutions import solution_length
from jaxminimax.noise.floats import ROUNDING_MARGIN

RECORDS = jmm.Problem(operator=lambda z, x: Saddle(
    jax.tree.map(lambda a, b: a.astype(b.dtype), x, z.w), jax.tree.map(jnp.zeros_like, z.v)))
_RECORDS, _LENGTH, _FAR = 16, 0.9, 1e4
_DELTA = 1e-6


def _unit(w: Any, x: Any) -> jax.Array:
    """<w, x>, x scaled to a norm of 1 if it is larger, plus what keeps it positive."""
    size = jnp.sqrt(sum(jnp.sum(jnp.square(a)) for a in jax.tree.leaves(x)))
    product = sum(jnp.sum(a * b) for a, b in zip(*map(jax.tree.leaves, (w, x)), strict=True))
    product = jnp.asarray(product)
    return (product / jnp.maximum(size, 1.0).astype(product.dtype) + _FAR).astype(product.dtype)


LINES = jmm.problems.worst_group(_unit, jmm.problems.ball(_FAR), lipschitz=1.0, bound=2 * _FAR,
                                 smooth=1e-9, convex=True)
GROUPS = jmm.GroupProblem(
    loss=lambda w, x: jnp.float32(0.5), operator=lambda z, x: Saddle(x, ()), project=lambda w: w,
    diameter=1.0, lipschitz=1.0, bound=1.0)


class Path(NamedTuple):
    """An algorithm, and which of its releases is looked at.

    Attributes:
      algorithm: the module.
      hyper: calibrated.
      problem: whose records are their own gradients.
      unit: standard deviation of the noise on it.
      observe: `(state, released) -> tree`, what is looked at of a round.
      groups: whether data have an axis of groups.
    """

    algorithm: Any
    hyper: Any
    problem: Any
    unit: float
    observe: Observe
    groups: bool = False


def path(name: str, epsilon: float) -> Path:
    """The path of an algorithm, by name, with noise for epsilon on all records at once.

    Raises:
      LookupError: for a name that is none.
    """
    module = getattr(jmm, name)

    def calibrated(hyper: Any) -> Any:
        return jmm.calibrate(module, hyper, epsilon, _DELTA)

    def of_w(_: Any, released: list[Any]) -> Any:
        return released[0].w

    n = _RECORDS
    if name in ("sgda", "gda", "extragradient", "recursive_sgda"):
        query = jmm.Query(clip=Saddle(1.0, None), population=n)
        own: dict[str, Any] = {"step": Saddle(1.0, 1.0), "iterations": 1}
        if name == "gda":
            own = {"modulus": 1.0, "iterations": 1}
        if name == "recursive_sgda":
            own = {"base": 0.1, "diameter": 10.0, "rounds": 1, "inner": 2}
        hyper = calibrated(module.Hyper(query=query, **own))
        z = hyper.query.noise_multiplier.w
        return Path(module, hyper, RECORDS, z / n, of_w)
    if name in ("proximal", "recursive"):
        doubling = name == "recursive"
        resolvent = jmm.mechanism.Resolvent(bound=1.0, prox=1.0, lipschitz=0.0, diameter=10.0,
                                        population=n,
                                        doubling=doubling, assumes="lipschitz")
        query = module.certified(resolvent, 1) if doubling else module.certified(resolvent)
        hyper = calibrated(module.Hyper(query=query, iterations=1))
        size = concrete(noise_unit(hyper.query))
        return Path(module, hyper, RECORDS, size * hyper.query.noise_multiplier, of_w)
    if name == "phased_erm":
        solution = jmm.mechanism.GroupSolution(lipschitz=1.0, bound=2 * _FAR, smooth=1e-9,
                                            diameter=2 * _FAR,
                                            reg_w=1.0, reg_lam=1e12, sizes=(n,), phases=1)
        hyper = calibrated(module.Hyper(query=module.certified(solution)))
        size = concrete(solution_length(hyper.query, 1.0))
        return Path(module, hyper, LINES, size * hyper.query.noise_multiplier,
                    first_release, True)
    if name == "ftrl":
        hyper = calibrated(module.Hyper(query=jmm.mechanism.TreeSums(clip=1.0, leaves=2), step=1.0))
        return Path(module, hyper, RECORDS, hyper.query.noise_multiplier, of_w)
    if name == "group_oco":
        hyper = calibrated(module.Hyper(
            query=module.releases(clip=1.0, bound=1.0, iterations=2), step=1.0, weight_step=0.1,
            sizes=(n,)))
        return Path(module, hyper, GROUPS, hyper.query.parts[0].noise_multiplier,
                    lambda _, released: released[1].w, True)  # after a loss
    if name == "balanced_groups":
        hyper = calibrated(module.Hyper(
            query=jmm.GroupGradients(clip=1.0, sizes=(n,), groups="all"), losses=None, step=1.0,
            iterations=1))
        return Path(module, hyper, GROUPS, hyper.query.noise_multiplier / n,
                    first_release, True)
    if name in ("group_sgd", "active_groups"):
        active = name == "active_groups"
        own = {} if active else {"weight_step": 1.0}
        losses: Any = (jmm.mechanism.Selection if active else jmm.GroupLosses)(bound=1.0,
                                                                               sizes=(n,))
        hyper = calibrated(module.Hyper(
            query=jmm.GroupGradients(clip=1.0, sizes=(n,)), iterations=1, step=1.0,
            losses=losses, **own))
        return Path(module, hyper, GROUPS, hyper.query.noise_multiplier / n,
                    lambda _, released: released[active], True)  # after an index
    raise LookupError(f"no path of {name!r} is known: say in path how its releases are read.")


def pair(dim: int, dtype: Any, groups: bool = False, seed: int = 0) -> dict[str, jax.Array]:
    """Two data sets that differ in one record, of a scalar leaf and a vector, `[2, n, ...]`."""
    rng = np.random.default_rng(seed)
    one = rng.normal(size=(_RECORDS, dim))
    one *= _LENGTH / np.linalg.norm(one, axis=1, keepdims=True)
    both = np.stack([one, np.concatenate([-one[:1], one[1:]])])
    both = both[:, None] if groups else both
    result = {"bias": both[..., 0]} if dim > 1 else {}
    return {name: jnp.asarray(x, dtype) for name, x in (
        result | {"theta": both[..., len(result):]}).items()}


def coarse(noise: np.ndarray, bits: int) -> dict[str, np.ndarray]:
    """Computes statistics of released numbers less a candidate's sum, over the noise's scale.

    Args:
      noise: the numbers, `[runs, d]`, float64.
      bits: the digits of the type that they were drawn in, 24 or 53.

    Returns:
      Each `[runs]`: the share of small pairs (i, i + d / 2) whose 1 - exp(-r^2 / 2) is a multiple
      of 2^-bits, and whether all are; of numbers that are multiples of 2^-k; of numbers with no
      more than 8 or 11 digits; how many are equal but for a sign; the smallest and the largest.
    """
    runs, d = noise.shape
    half = (d + 1) // 2
    stats: dict[str, np.ndarray] = {}
    first, second = noise[:, : d - half], noise[:, half:]
    for digits in (bits - 1, bits, bits + 1):
        steps = -np.expm1(-(first**2 + second**2) / 2) * 2.0**digits
        # of 24 bits, 2,000 steps of the grid from 0 are looked at
        small = steps < (2000 if bits == 24 else 2.0**digits * 0.05**2 / 2)
        hit = small & (np.abs(steps - np.round(steps)) < 0.03)
        count = small.sum(1)
        stats[f"radii on 2^-{digits}"] = hit.sum(1) / np.maximum(count, 1)
        stats[f"all radii on 2^-{digits}"] = 1.0 * ((count > 0) & (hit.sum(1) == count))
    for k in range(4, 17, 2):
        steps = noise * 2.0**k
        stats[f"multiples of 2^-{k}"] = (np.abs(steps - np.round(steps)) < 2.0 ** (k - 21)).mean(1)
    fraction, _ = np.frexp(noise)
    for digits in (8, 11):
        steps = fraction * 2.0**digits
        stats[f"{digits} digits"] = (np.abs(steps - np.round(steps)) < 2.0 ** (digits - 19)).mean(1)
    size = np.sort(np.abs(noise), 1)
    gaps = np.diff(size, axis=1)
    stats["equal"] = (gaps <= 2.0**-20 * size[:, 1:]).mean(1) if d > 1 else np.zeros(runs)
    stats["smallest"], stats["largest"] = size[:, 0], size[:, -1]
    return stats


def coarse_scores(sides: list[Rounds], unit: float,
                  bits: int) -> list[dict[str, np.ndarray]]:
    """Computes `coarse` of the first round's releases, less the first data set's sum.

    Args:
      sides: the releases of runs on each data set.
      unit: the described standard deviation of their noise.
      bits: as in `coarse`.
    """
    scale = unit * ROUNDING_MARGIN
    return [coarse(np.nan_to_num(rounds.noisy[:, 0, i] - rounds.quiet[:, 0, 0]) / scale, bits)
            for i, rounds in enumerate(sides)]


def grids(key: jax.Array, dim: int, dtype: Any, *, name: str = "sgda", epsilon: float = 0.5,
          runs: int = 200, confidence: float = 0.999) -> auditor.Audit:
    """An attack on grids and holes in the noise of an algorithm's first release.

    An adversary with all records but one has what either would have added without noise, and
    subtracts the first one's part. Statistics of what is left, see
    `coarse`, tell runs on that data set from runs on the other. The records are vectors at random.

    Args:
      key: for all the runs.
      dim: numbers of the point.
      dtype: theirs.
      name: of the algorithm.
      epsilon: of the run.
      runs: on each data set.
      confidence: of the bound.
    """
    how = path(name, epsilon)
    data = pair(dim, dtype, how.groups)
    axes = 3 if how.groups else 2
    w = jax.tree.map(lambda x: jnp.zeros(x.shape[axes:], dtype), data)
    start = Saddle(w, jnp.zeros(1, dtype) if how.problem is RECORDS else ())
    result = rounds_of_keys(list(jax.random.split(key)), how.algorithm, how.hyper, start, data,
                            how.problem, how.observe, runs)
    scores = coarse_scores(result, how.unit, jnp.finfo(dtype).nmant + 1)
    value, statistic, hits, trials = auditor.lower_bound(scores[0], scores[1], _DELTA,
                                                             confidence)
    made = how.algorithm.mechanism(how.hyper)
    looked_at = made.parts[0] if isinstance(made, jmm.Parallel) else made
    if name == "extragradient":  # of whose two releases the first is looked at
        looked_at = dataclasses.replace(looked_at, times=1)
    gauge = signal_of(result[0], looked_at, confidence=confidence)
    return auditor.Audit(value, jmm.epsilon(made, _DELTA), _DELTA, confidence, "replace_one",
                         "random", statistic, runs, hits, trials, gauge)


def moved(n: int, clip: float, *, strategy: str = "auto", tries: int = 24,
          keys: int = 64) -> Finding:
    """How far one record moves the released sum of n aligned ones, in clip norms; charged are 2.

    The mean over keys of the difference of releases with equal noise, which rounding of what is
    released does not move, as the noise is far above it. The largest over some sums of the others.

    Args:
      n: records.
      clip: the clip norm.
      strategy: how sums are computed.
      tries: sums of the others.
      keys: releases.
    """
    loss = jmm.saddle_operator(lambda w, v, x: w * x, strategy, min(n, 2**16))
    plain = jmm.types.with_strategy(lambda z, x: Saddle(x, None), microbatch=min(n, 2**16))
    problem = jmm.Problem(plain if strategy == "auto" else loss)
    query = jmm.Query(clip=Saddle(clip, None), noise_multiplier=Saddle(8.0, None), population=n)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=1)
    state = jmm.sgda.init(Saddle(jnp.float32(0), ()), hyper)
    each = jax.random.split(jax.random.key(3), keys)

    @jax.jit
    def released(some: jax.Array, first: jax.Array) -> jax.Array:
        x = jnp.full(n, 50.0, jnp.float32)  # all far beyond the clip norm, on one side
        x = x.at[7::1000].set(some).at[0].set(first)
        return jax.vmap(lambda key: jmm.sgda.update(key, state, x, hyper, problem).z.w)(each)

    worst, spread = 0.0, 0.0
    for some in np.linspace(-clip, clip, tries):
        one, two = (np.asarray(released(jnp.float32(some), jnp.float32(x))) for x in (50.0, -50.0))
        apart = (one.astype(np.float64) - two) * n / clip
        # all differences may be rounded alike, which says nothing of how they are spread
        rounded = float(np.spacing(np.max(np.abs(one)))) * n / clip / 2
        gap = np.abs(np.mean(apart))
        if not gap <= worst:
            worst, spread = float(gap), max(float(np.std(apart)), rounded)
    return Finding(worst, 2 * (1 + 1e-6) + 4 * spread / math.sqrt(keys) + 2.0**-20)


# every algorithm, with the numbers of a point that its rounds are quick for
NAMES = ("sgda", "gda", "extragradient", "recursive_sgda", "proximal", "recursive", "phased_erm",
         "ftrl", "group_oco", "group_sgd", "active_groups",
         "balanced_groups")
SLOW = ("proximal", "recursive", "phased_erm")  # their points are solutions


def everything(quick: bool) -> list[dict[str, Any]]:
    """Rows of all attacks, in both types."""
    rows: list[dict[str, Any]] = []

    def keep(attack: str, case: str, value: float, limit: float, note: str) -> None:
        broken = not value <= limit
        value = value if math.isfinite(value) else 1e300
        rows.append({"attack": attack, "case": case, "measured": value, "limit": limit,
                     "violated": broken, "note": note})
        report.say(f"{attack}, {case}: {value:.4g} of {limit:.4g} ({note})")

    for wide in (False, True):
        dtype = jnp.float64 if wide else jnp.float32
        with jax.enable_x64(wide):
            for name in NAMES[:1] if quick else NAMES:
                for dim in (1, 2000) if quick or name in SLOW else (1, 100, 2000, 20_000):
                    result = grids(jax.random.key(17), dim, dtype, name=name)
                    case = f"{name}, {dim} numbers, {jnp.dtype(dtype).name}"
                    keep("grids", case, result.epsilon_lower, result.epsilon_claimed,
                         result.statistic)
                    assert result.signal is not None
                    keep("signal", case, result.signal.low, result.signal.charged,
                         f"estimate {result.signal.attained:.4g}")
    for power in (10, 18) if quick else (10, 14, 18, 20, 22):
        for strategy in ("auto", "microbatch", "ghost")[: 1 if quick else None]:
            for clip in (1.1,) if quick else (1.0, 1.01, 1.03, 1.1):
                found_ = moved(2**power, clip, strategy=strategy)
                keep("rounding", f"2^{power} records, clip {clip:g}, {strategy}", found_.value,
                     found_.limit, "clip norms that a record moves the sum by")
    for attack, case, found_ in certificate.everything(20_000 if quick else 100_000):
        keep(attack, case, found_.value, found_.limit, "a record that is held out")
    return rows
