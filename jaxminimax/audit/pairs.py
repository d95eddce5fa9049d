"""Neighbouring data sets to attack, and rounds of runs on both, with and without noise.

From the state that a run has reached, a round is taken four times with the run's key: on each data
set of a pair, as described and with noise multipliers of 0. The key decides sample and noise, so
the described release less the release without noise is the noise of this release alone, however
the algorithm uses it. The releases without noise on both data sets show how far the record moves
them.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.algorithms.descent import EUCLIDEAN
from jaxminimax.base import types
from jaxminimax.base.types import Algorithm, GroupProblem, Problem, PyTree, Saddle
from jaxminimax.mechanism import Query, Resolvent, composed, costs, grid, sampling
from jaxminimax.releases.watch import update_and_releases

GIANT = 1e3  # norm of the records' operators in clip norms


def _loss(w: jax.Array, v: jax.Array, x: Saddle) -> jax.Array:
    """A loss whose saddle operator is the record, negated in the first round, which starts at 0."""
    first = jnp.all(w == 0) & jnp.all(v == 0)
    return jnp.where(first, -1.0, 1.0).astype(w.dtype) * (jnp.sum(w * x.w) - jnp.sum(v * x.v))


PROBLEM = Problem(types.saddle_operator(_loss))
# the same in every round, so that what a record adds does not depend on what was released
PLAIN = Problem(types.saddle_operator(lambda w, v, x: jnp.sum(w * x.w) - jnp.sum(v * x.v)))


def worst_case(query: Query | Resolvent) -> sampling.WorstCase:
    """Describes how a release reads the worst pair.

    Raises:
      ValueError: if no worst pair is known.
    """
    case = query.sampling.worst_case(query.population)
    if case is None:
        raise ValueError(f"No pair is known to be the worst for {query.sampling!r}: give "
                         "problem=..., z=... and pair=(data, neighbour).")
    return case


def rest_of(query: Query | Resolvent) -> float:
    """Returns the sum of all other records in the worst pair, in clip norms."""
    return -1.0 if worst_case(query).slots else 0.0


def clip_norms(query: Query | Resolvent) -> Saddle:
    """Returns the clip norms of both players; a Resolvent has one bound for both."""
    return Saddle(query.bound, query.bound) if isinstance(query, Resolvent) else query.clip


def share_of(query: Query | Resolvent) -> tuple[float, float]:
    """The norm of each player's clipped operator in the worst pair, in clip norms.

    It is 1 for each player under two clips. One joint clip gives it to the player with less noise.
    """
    if isinstance(query, Resolvent):
        return math.sqrt(0.5), math.sqrt(0.5)
    if not query.joint:
        return 1.0, 1.0
    w, v = (costs.concrete(z) for z in grid.check_noise(query))
    if w == v:
        return math.sqrt(0.5), math.sqrt(0.5)
    return float(w < v), float(v < w)


def worst_pair(query: Query | Resolvent, neighbours: str) -> Saddle:
    """Makes two data sets of operators, leaves `[2, n, 1]`, that differ in one record."""
    n, changed = query.population, -1.0 if neighbours == "replace_one" else math.nan
    sign = np.full((2, n, 1), rest_of(query))
    sign[:, 0, 0] = (1.0, changed)

    def leaf(clip: Any, towards: float, share: float) -> jax.Array:
        size = 0.0 if clip is None else GIANT * costs.concrete(clip)
        return jnp.asarray(towards * size * share * sign, jnp.float32)

    (w, v), clip = share_of(query), clip_norms(query)
    return Saddle(leaf(clip.w, 1.0, w), leaf(clip.v, -1.0, v))


def _records(x: np.ndarray, axes: int) -> np.ndarray:
    return x.reshape(*x.shape[:axes], -1)


def check_pair(pair: Any, problem: Problem | GroupProblem) -> PyTree:
    """Returns a user's pair as leaves `[2, n, ...]` (of groups `[2, p, n_max, ...]`).

    Raises:
      ValueError: unless it is two data sets of one shape that differ in one record.
    """
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ValueError(f"pair must be 'worst' or (data, neighbour), got {pair!r}.")
    shapes = [[(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(data)] for data in pair]
    structures = {str(jax.tree.structure(data)) for data in pair}
    if len(structures) > 1 or shapes[0] != shapes[1]:
        raise ValueError(f"pair must be two data sets of equal shapes and dtypes, got {shapes[0]} "
                         f"and {shapes[1]}: a record that is absent is one of NaN.")
    axes = 2 if isinstance(problem, GroupProblem) else 1
    differs: Any = False
    for a, b in zip(*(map(np.asarray, jax.tree.leaves(data)) for data in pair), strict=True):
        a, b = _records(a, axes), _records(b, axes)
        differs = differs | np.any((a != b) & ~((a != a) & (b != b)), -1)
    if np.sum(differs) != 1:
        raise ValueError(f"pair differs in {int(np.sum(differs))} records, neighbours differ in "
                         "one: replace one record of the data.")
    return jax.tree.map(lambda *x: jnp.stack([jnp.asarray(y) for y in x]), *pair)


# An observation of a round, `(state after the round, values that it released) -> tree`: a tree of
# numbers that noise was added to, or a tuple of trees for several releases.
Observe = Callable[[Any, list[Any]], PyTree]


class Rounds(NamedTuple):
    """The observations of runs on one data set of a pair.

    Attributes:
      noisy: the observations of each round on the two data sets, `[runs, rounds, 2, k]`; the run
        goes on from one of them.
      quiet: the same without noise.
      leaves: the numbers of each observed leaf, for each release of a round; they sum to k.
    """

    noisy: np.ndarray
    quiet: np.ndarray
    leaves: tuple[tuple[int, ...], ...]

    def spans(self) -> list[list[slice]]:
        """The places of the numbers of each leaf, for each release of a round."""
        ends = iter(np.cumsum([size for release in self.leaves for size in release]))
        return [[slice(int(end) - size, int(end)) for size, end in zip(release, ends, strict=False)]
                for release in self.leaves]

    def release(self, i: int) -> "Rounds":
        """Returns the i-th release of every round alone."""
        leaves = self.spans()[i]
        columns = slice(leaves[0].start, leaves[-1].stop)
        return Rounds(self.noisy[..., columns], self.quiet[..., columns], (self.leaves[i],))

    @property
    def noise(self) -> np.ndarray:
        """The noise of each round on the first data set, `[runs, rounds, k]`."""
        return self.noisy[:, :, 0] - self.quiet[:, :, 0]


def first_release(state: Any, released: list[Any]) -> PyTree:
    """Returns the first value that a round released.

    The noise of later values is known only if operators do not depend on the point, since the noise
    of the first value moves the point.

    Raises:
      ValueError: if there is none.
    """
    if not released:
        raise ValueError("An update called no release function of jaxminimax, so the audit cannot "
                         "separate noise from data: release by jmm.release, see "
                         "docs/adding_an_algorithm.md.")
    return released[0]


def all_releases(state: Any, released: list[Any]) -> PyTree:
    """Returns all values that a round released."""
    return tuple(released)


def straightened(hyper: Any) -> Any:
    """Returns `hyper` with Euclidean steps, if others only hide released values."""
    if hasattr(hyper, "geometry"):
        return dataclasses.replace(hyper, geometry=EUCLIDEAN)
    return hyper


def rounds(key: jax.Array, algorithm: Algorithm[Any, Any], hyper: Any, z: Saddle, data: PyTree,
           problem: Any, observe: Observe, runs: int) -> Rounds:
    """Makes runs on the first data set of a pair.

    Args:
      key: the key of all runs.
      algorithm: a module such as `sgda`.
      hyper: its `Hyper`, with noise multipliers.
      z: the initial point.
      data: leaves `[2, ...]`.
      problem: a problem that the algorithm takes.
      observe: `(state, released) -> tree`, the observed values of a round.
      runs: the number of runs.

    Raises:
      ValueError: if the observed values were released in a branch or a loop of the algorithm's own.
    """
    return rounds_of_keys([key], algorithm, hyper, z, data, problem, observe, runs)[0]


def rounds_of_keys(sides: list[jax.Array], algorithm: Algorithm[Any, Any], hyper: Any, z: Saddle,
                   data: PyTree, problem: Any, observe: Observe, runs: int) -> list[Rounds]:
    """Simulates the runs of `rounds`, with a key for each data set."""
    numbers, structure = jax.tree.flatten(hyper)
    silent = jax.tree.leaves(composed.with_noise_of_all(hyper, 0.0))
    # only what differs is mapped over: every other number stays the one that is described
    varied = [i for i, (a, b) in enumerate(zip(numbers, silent, strict=True)) if a is not b]
    noise = [jnp.stack([jnp.asarray(x) for x in (numbers[i], silent[i])]) for i in varied]
    noise = [x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float) for x in noise]
    start = algorithm.init(z, hyper)

    def described(noise: list[jax.Array]) -> Any:
        leaves = list(numbers)
        for i, x in zip(varied, noise, strict=True):
            leaves[i] = x
        return jax.tree.unflatten(structure, leaves)

    def update(key: jax.Array, state: Any, data: PyTree, hyper: Any) -> tuple[Any, PyTree]:
        new, released = update_and_releases(algorithm, key, state, data, hyper, problem)
        return new, observe(new, [release.value for release in released])

    shown = jax.eval_shape(lambda key, data: update(key, start, data, hyper)[1], sides[0],
                           jax.tree.map(lambda x: x[0], data))
    several = isinstance(shown, tuple) and not hasattr(shown, "_fields")
    leaves = tuple(tuple(x.size for x in jax.tree.leaves(release))
                   for release in (shown if several else (shown,)))
    count = sum(map(sum, leaves))

    @jax.jit
    def programme(keys: jax.Array, data: PyTree, side: jax.Array) -> Any:
        def one_run(key: jax.Array) -> Any:
            def step(state: Any, _: None) -> Any:
                def flat(noise: list[jax.Array], key: jax.Array,
                         data: PyTree) -> tuple[Any, jax.Array]:
                    new, shown = update(key, state, data, described(noise))
                    return new, jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(shown)])

                # with the noise and without it, under one key
                states, values = jax.vmap(jax.vmap(flat, (None, None, 0)), (0, 0, None))(
                    noise, jnp.stack([key, key]), data)
                return jax.tree.map(lambda x: x[0, side], states), (values[0], values[1])

            return jax.lax.scan(step, start, length=hyper.iterations)[1]

        # one after the other: lanes would all take the rare branches of any of them
        return jax.lax.map(lambda several: jax.lax.map(one_run, several), keys)

    # 2^24 numbers are on the device at a time
    together = max(1, min(runs, 1000, 2**24 // (8 * hyper.iterations * count)))
    results = []
    for side, key in enumerate(sides):
        keys = jax.random.split(key, (-(-runs // together), together))
        try:
            values = jax.device_get(programme(keys, data, jnp.int32(side)))
        except jax.errors.UnexpectedTracerError as error:
            raise ValueError(
                "The algorithm makes a release in a branch or a loop of its own, where it cannot "
                "be observed: give observe=lambda state, released: ..., of what its state holds of "
                "that release.") from error
        noisy, still = (np.asarray(x, np.float64).reshape(-1, *x.shape[2:])[:runs] for x in values)
        results.append(Rounds(noisy, still, leaves))
    return results
