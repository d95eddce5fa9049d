"""The releases of whole runs, and statistics that reveal the data set, grids and shared noise.

Releases are computed from a run's iterates. An adversary who knows all records but one subtracts
each candidate's sum from a release. Under the right candidate the rest is the sampler's own number,
and impossible numbers never occur; under the wrong one it is shifted. So every property of a
sampler's numbers that a shift destroys distinguishes the two, however small a part of the noise's
law it is.

Two releases that share noise have a difference with too little of it. The states of a run mix its
releases, and later releases depend on earlier ones. The test therefore compares the releases
themselves, for an operator that is 0 everywhere: each is its noise alone.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxminimax import mechanism
from jaxminimax.accounting import effective_noise_multiplier
from jaxminimax.audit import pairs
from jaxminimax.base.types import Algorithm, GroupProblem, Problem, PyTree, Saddle
from jaxminimax.drivers import run
from jaxminimax.mechanism import Full, GroupGradients, Query, Repeat, Resolvent
from jaxminimax.releases.watch import Seen, update_and_releases


def observed(state: Any) -> Saddle:
    """Returns the points after each of a round's releases, leaves `[releases, dim]`."""
    points = [state.ahead, state.z] if hasattr(state, "ahead") else [state.z]
    return Saddle(*(jnp.stack(x) for x in zip(*points, strict=True)))


def _moves(key: jax.Array, algorithm: Algorithm[Any, Any], hyper: Any, data: Saddle) -> Saddle:
    """Returns how far each release moves one run from its round's start, `[releases, dim]`."""
    start = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), data)
    if getattr(hyper.query, "doubling", False):  # a solution moves away from its centre
        return run(key, start, data, hyper, algorithm, pairs.PROBLEM,
                   lambda state: jax.tree.map(jnp.subtract, state.z, state.centre))[1]
    _, path = run(key, start, data, hyper, algorithm, pairs.PROBLEM, observed)

    def moves(x: jax.Array) -> jax.Array:
        previous = jnp.concatenate([jnp.zeros_like(x[:1, -1:]), x[:-1, -1:]])
        return (x - previous).reshape(-1, x.shape[-1])

    return jax.tree.map(moves, path)


def releases(key: jax.Array, algorithm: Algorithm[Any, Any], hyper: Any, data: Saddle,
             runs: int) -> np.ndarray:
    """Computes the releases of runs on each of several data sets from the iterates.

    Iterates move by a step times the release; the steps are measured on a run without noise.
    Optimisers with a memory leave a mixture, on which the attack is weaker.

    Args:
      key: the key of all runs.
      algorithm: a module such as `sgda`.
      hyper: its `Hyper`.
      data: leaves `[sets, n, dim]`.
      runs: the number of runs on each data set.

    Returns:
      Noisy sums over clip norms (proximal points: over displacements), sign of the first release
      undone: `[sets, runs, releases, players, dim]`, the players that have a clip norm.
    """
    players = [p for p, clip in enumerate(pairs.clip_norms(hyper.query)) if clip is not None]
    together = min(1024, runs)

    @jax.jit
    def programme(keys: jax.Array, data: Saddle) -> Saddle:
        # one after the other: lanes would all take the rare branches of any of them
        return jax.lax.map(lambda several: jax.lax.map(
            lambda key: _moves(key, algorithm, hyper, data), several), keys)

    key, steps_key = jax.random.split(key)
    sets = [Saddle(*x) for x in zip(*data, strict=True)]
    keys = jax.random.split(key, (len(sets), -(-runs // together), together))
    moves = [jax.device_get(programme(k, x)) for k, x in zip(keys, sets, strict=True)]
    size: Any
    if isinstance(hyper.query, Resolvent):  # a point moves against the operator, in every round
        query, described = hyper.query, algorithm.mechanism(hyper)
        parts = (mechanism.resolvent.on_part(query, k // described.times)
                 for k in range(mechanism.releases(described)))
        lengths = [mechanism.costs.concrete(mechanism.resolvent.noise_unit(q)) for q in parts]
        step, size = Saddle(-1.0, -1.0), 1 / np.array(lengths)[:, None]
    else:
        step, size = _steps(steps_key, algorithm, hyper, sets[0]), mechanism.batch_size(hyper.query)
    flat = [[x[p].reshape(-1, *x[p].shape[2:])[:runs].astype(np.float64) for p in players]
            for x in moves]
    return np.stack([np.stack([x * (size / step[p]) for x, p in zip(row, players, strict=True)], 2)
                     for row in flat])


def _steps(key: jax.Array, algorithm: Algorithm[Any, Any], hyper: Any, data: Saddle) -> Saddle:
    """The moves per released clip norm, from a run without noise on one record, `[releases, 1]`."""
    query = hyper.query
    zero = jax.tree.map(lambda _: 0.0, query.noise_multiplier)
    plain = dataclasses.replace(hyper, query=dataclasses.replace(
        query, noise_multiplier=zero, sampling=Full(), population=1, joint=False, bands=1))
    unit = Saddle(*(jnp.zeros_like(x[:1]) if c is None else jnp.zeros_like(x[:1]).at[:, 0].set(
        pairs.GIANT * mechanism.costs.concrete(c)) for x, c in zip(data, query.clip, strict=True)))
    unit = jax.tree.map(lambda x: jnp.repeat(x, algorithm.mechanism(hyper).parts, 0), unit)
    moves = jax.device_get(_moves(key, algorithm, plain, unit))
    sizes = (np.abs(x[:, :1].astype(np.float64)) for x in moves)
    return Saddle(*(np.where(np.arange(len(x)) > 0, -1.0, 1.0)[:, None]  # players descend
                    * np.where((x > 0) & np.isfinite(x), x, 1.0) for x in sizes))


def likelihood_ratio(released: np.ndarray, query: Query | Resolvent, neighbours: str,
                     times: int | None = None) -> np.ndarray:
    """The log-likelihood ratio of the described mechanism on the data sets of `worst_pair`.

    Args:
      released: from `releases`, `[runs, releases, players, 1]`.
      query: the description.
      neighbours: the neighbouring relation.
      times: the number of releases on the part of the data with the record; None for all.
    """
    noise, clips = mechanism.grid.check_noise(query), pairs.clip_norms(query)
    noise = Saddle(noise, noise) if isinstance(query, Resolvent) else noise
    z = [mechanism.costs.concrete(x) for x in noise if x is not None]
    joint = effective_noise_multiplier(query)
    w, v = pairs.share_of(query)
    towards = [s for s, c in zip((w, -v), clips, strict=True) if c is not None]
    direction = joint * np.array(towards) / np.square(z)
    u = released[:, :times, :, 0] @ direction  # [runs, releases], N(contributions / joint, 1)
    case = pairs.worst_case(query)
    u = u[:, :: case.every]  # those that record 0 is read in
    k, weight = case.times, case.probability
    changed = -1.0 if neighbours == "replace_one" else 0.0
    total = np.zeros(len(u))
    for sign, contribution in ((1.0, 1.0), (-1.0, changed)):
        mean = (contribution * k + pairs.rest_of(query) * (case.slots - k)) / joint
        logs = [math.log(w) + u * x - x * x / 2 for w, x in zip(weight, mean, strict=True)]
        with np.errstate(invalid="ignore"):  # NaN is no evidence here; `failures` counts it
            total += sign * np.nansum(functools.reduce(np.logaddexp, logs), 1)
    return total


def _independent(described: Any) -> bool:
    """Returns True if each release of a description is a sum with noise of its own."""
    query = getattr(described, "query", None)
    return (isinstance(described, Repeat) and isinstance(query, Query | GroupGradients)
            and getattr(query, "bands", 1) == 1)


def _zero(problem: Problem | GroupProblem) -> Any:
    """Returns a problem of the same signature whose operator, or loss, is 0."""
    def operator(z: Saddle, *_: Any) -> Saddle:
        return jax.tree.map(jnp.zeros_like, z)

    if isinstance(problem, GroupProblem):
        return problem._replace(operator=operator, project=lambda w: w,
                                loss=lambda w, *_: jnp.zeros(()))
    return problem._replace(operator=operator, public=None, project=lambda z: z)


def shared_between_releases(key: jax.Array, algorithm: Algorithm[Any, Any], hyper: Any, z: Saddle,
                            data: PyTree, problem: Problem | GroupProblem, runs: int,
                            confidence: float) -> float:
    """Bounds the largest |correlation| of two releases of a run from below; 0 if it is chance.

    It compares the first numbers of each release in the first rounds, and only for an algorithm
    that makes several releases of sums a round: `signals` tests all others. It does not see a
    release inside a branch or a loop of the round.

    Args:
      key: for all the runs.
      algorithm: a module such as `extragradient`.
      hyper: its `Hyper`, with noise multipliers.
      z: the initial point.
      data: one data set; only its shapes matter.
      problem: a problem, of which only the kind matters.
      runs: the number of runs.
      confidence: the confidence of the bound.
    """
    sums = [leaf for leaf in algorithm.mechanism(hyper).answered() if _independent(leaf)]
    if sum(leaf.releases() for leaf in sums) <= hyper.iterations:
        return 0.0
    problem = _zero(problem)
    rounds, largest = 16, 256  # that are looked at; numbers of a run that are compared

    def numbers(release: Seen) -> list[jax.Array]:
        try:
            return [jnp.ravel(x)[:largest // rounds // 2].astype(float)
                    for x in jax.tree.leaves(release.value)]
        except jax.errors.UnexpectedTracerError:
            return []

    def one_run(key: jax.Array) -> list[jax.Array]:
        def step(state: Any, _: None) -> tuple[Any, list[jax.Array]]:
            state, released = update_and_releases(algorithm, key, state, data, hyper, problem)
            return state, [x for release in released if _independent(release.described)
                           for x in numbers(release)]

        return jax.lax.scan(step, algorithm.init(z, hyper),
                            length=min(hyper.iterations, rounds))[1]

    shown = jax.jit(lambda keys: jax.lax.map(one_run, keys))(jax.random.split(key, runs))
    noise = np.concatenate([np.asarray(x, np.float64).reshape(runs, -1) for x in shown], 1)
    noise = noise[np.isfinite(noise).all(1)]  # NaN stands for samples that cannot be drawn
    columns = np.linspace(0, noise.shape[1] - 1, min(noise.shape[1], largest)).astype(int)
    return shared_noise(noise[:, columns], np.zeros((len(noise), 0)), confidence)


def shared_noise(noise: np.ndarray, reads: np.ndarray, confidence: float) -> float:
    """Returns a lower bound on the largest |correlation| of noise; 0 if it may be chance.

    It correlates noise, `[runs, k]`, and its size with those of other numbers, and with whether a
    sample holds the record, `[runs, releases]`, by Fisher's transformation, for all pairs together.
    """
    noise, reads = (x[:, x.std(0) > 0] for x in (noise, reads))
    runs, k = noise.shape
    columns = np.concatenate([noise, np.abs(noise), reads], 1)
    # pairs of which one at least is noise, but for a number and its own size
    pairs = np.triu(np.ones((2 * k, columns.shape[1]), bool), 1)
    pairs[np.arange(k), np.arange(k) + k] = False
    if not pairs.any():
        return 0.0
    correlation = np.abs(np.corrcoef(columns.T))[: 2 * k][pairs]
    error = scipy.stats.norm.isf((1 - confidence) / (2 * len(correlation))) / math.sqrt(runs - 3)
    return max(0.0, math.tanh(math.atanh(min(correlation.max(), 1 - 1e-15)) - error))
