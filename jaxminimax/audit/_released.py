"""What whole runs released, read off their iterates, and the likelihood ratio of it."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax import mechanism
from jaxminimax.accounting import effective_noise_multiplier
from jaxminimax.audit._pairs import GIANT, PROBLEM, clip_norms, rest_of, share_of, worst_case
from jaxminimax.base.types import Algorithm, Problem, Saddle
from jaxminimax.drivers import run
from jaxminimax.mechanism import Full, Query, Resolvent


def observed(state: Any) -> Saddle:
    """The points that a round's releases led to, leaves `[releases, dim]`."""
    points = [state.ahead, state.z] if hasattr(state, "ahead") else [state.z]
    return Saddle(*(jnp.stack(x) for x in zip(*points, strict=True)))


def _moves(key: jax.Array, algorithm: Algorithm, hyper: Any, data: Saddle,
           problem: Problem) -> Saddle:
    """How far each release moves one run from where its round began, leaves `[releases, dim]`."""
    start = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), data)
    if getattr(hyper.query, "doubling", False):  # a solution moves away from its centre
        return run(key, start, data, hyper, algorithm, problem,
                   lambda state: jax.tree.map(jnp.subtract, state.z, state.centre))[1]
    _, path = run(key, start, data, hyper, algorithm, problem, observed)

    def moves(x: jax.Array) -> jax.Array:
        before = jnp.concatenate([jnp.zeros_like(x[:1, -1:]), x[:-1, -1:]])
        return (x - before).reshape(-1, x.shape[-1])

    return jax.tree.map(moves, path)


def releases(key: jax.Array, algorithm: Algorithm, hyper: Any, data: Saddle, runs: int,
             problem: Problem = PROBLEM, together: int = 1024) -> np.ndarray:
    """What runs on each of several data sets released, read off the iterates.

    Iterates move by a step times what was released; the steps are measured on a run without noise.
    Optimisers with a memory leave a mixture, on which only the attack is weaker.

    Args:
      key: for all the runs.
      algorithm: a module such as `sgda`.
      hyper: its `Hyper`.
      data: leaves `[sets, n, dim]`.
      runs: on each data set.
      problem: whose operator is the record, and how its clipped sums are computed.
      together: runs at a time.

    Returns:
      Noisy sums over clip norms (proximal points: over displacements), sign of the first release
      undone: `[sets, runs, releases, players, dim]`, the players that have a clip norm.
    """
    players = [p for p, clip in enumerate(clip_norms(hyper.query)) if clip is not None]
    together = min(together, runs)

    @jax.jit
    def programme(keys: jax.Array, data: Saddle) -> Saddle:
        # one after the other: lanes would all take the rare branches of any of them
        return jax.lax.map(lambda several: jax.lax.map(
            lambda key: _moves(key, algorithm, hyper, data, problem), several), keys)

    key, other = jax.random.split(key)
    sets = [Saddle(*x) for x in zip(*data, strict=True)]
    keys = jax.random.split(key, (len(sets), -(-runs // together), together))
    moves = [jax.device_get(programme(k, x)) for k, x in zip(keys, sets, strict=True)]
    size: Any
    if isinstance(hyper.query, Resolvent):  # a point moves against the operator, in every round
        query, made = hyper.query, algorithm.mechanism(hyper)
        parts = (mechanism.resolvent.on_part(query, k // made.times)
                 for k in range(mechanism.releases(made)))
        lengths = [mechanism.costs.concrete(mechanism.resolvent.noise_unit(part)) for part in parts]
        step, size = Saddle(-1.0, -1.0), 1 / np.array(lengths)[:, None]
    else:
        step, size = _steps(other, algorithm, hyper, sets[0]), mechanism.batch_size(hyper.query)
    flat = [[x[p].reshape(-1, *x[p].shape[2:])[:runs].astype(np.float64) for p in players]
            for x in moves]
    return np.stack([np.stack([x * (size / step[p]) for x, p in zip(row, players, strict=True)], 2)
                     for row in flat])


def _steps(key: jax.Array, algorithm: Algorithm, hyper: Any, data: Saddle) -> Saddle:
    """Moves per clip norm released, from a run without noise on one record, `[releases, 1]`."""
    query = hyper.query
    zero = jax.tree.map(lambda _: 0.0, query.noise_multiplier)
    plain = dataclasses.replace(hyper, query=dataclasses.replace(
        query, noise_multiplier=zero, sampling=Full(), population=1, joint=False))
    unit = Saddle(*(jnp.zeros_like(x[:1]) if c is None else jnp.zeros_like(x[:1]).at[:, 0].set(
        GIANT * mechanism.costs.concrete(c)) for x, c in zip(data, query.clip, strict=True)))
    unit = jax.tree.map(lambda x: jnp.repeat(x, algorithm.mechanism(hyper).parts, 0), unit)
    moves = jax.device_get(_moves(key, algorithm, plain, unit, PROBLEM))
    sizes = (np.abs(x[:, :1].astype(np.float64)) for x in moves)
    return Saddle(*(np.where(np.arange(len(x)) > 0, -1.0, 1.0)[:, None]  # players descend
                    * np.where((x > 0) & np.isfinite(x), x, 1.0) for x in sizes))


def likelihood_ratio(released: np.ndarray, query: Query | Resolvent, neighbours: str,
                     times: int | None = None) -> np.ndarray:
    """Log-likelihood ratio of the described mechanism on the two data sets of `worst_pair`.

    Args:
      released: from `releases`, `[runs, releases, players, 1]`.
      query: the description.
      neighbours: the relation.
      times: releases on the part of the data that the record is in; None: all of them.
    """
    noise, clips = mechanism.description.check_noise(query), clip_norms(query)
    noise = Saddle(noise, noise) if isinstance(query, Resolvent) else noise
    z = [mechanism.costs.concrete(x) for x in noise if x is not None]
    joint = effective_noise_multiplier(query)
    w, v = share_of(query)
    towards = [s for s, c in zip((w, -v), clips, strict=True) if c is not None]
    direction = joint * np.array(towards) / np.square(z)
    u = released[:, :times, :, 0] @ direction  # [runs, releases], N(contributions / joint, 1)
    found = worst_case(query)
    u = u[:, :: found.every]  # those that record 0 is read in
    k, weight = found.times, found.probability
    away = -1.0 if neighbours == "replace_one" else 0.0
    total = np.zeros(len(u))
    for sign, own in ((1.0, 1.0), (-1.0, away)):
        mean = (own * k + rest_of(query) * (found.slots - k)) / joint
        logs = [math.log(w) + u * x - x * x / 2 for w, x in zip(weight, mean, strict=True)]
        with np.errstate(invalid="ignore"):  # NaN is no evidence here; `failures` counts it
            total += sign * np.nansum(functools.reduce(np.logaddexp, logs), 1)
    return total
