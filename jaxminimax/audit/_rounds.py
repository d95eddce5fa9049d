"""Rounds of a run, one by one: what each shows with and without noise, on both data sets.

From the state that a run has reached, a round is taken four times with the run's key: on each data
set of a pair, as described and with noise multipliers of 0. The key decides sample and noise, so
the noise alone is what the first two have over the others, and the record alone what tells the data
sets apart. That needs no knowledge of the algorithm, but that what is observed follows from what
was released by adding multiples; and none of the records.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.algorithms.common.steps import EUCLIDEAN
from jaxminimax.base.types import Algorithm, GroupProblem, Problem, PyTree, Saddle
from jaxminimax.door.watch import update
from jaxminimax.mechanism import Query

_NUMBERS = 2**24  # that are on the device at a time


class Rounds(NamedTuple):
    """Runs on one data set of a pair.

    Attributes:
      before: what was observed before each round, `[runs, rounds, k]`.
      noisy: after it on the two data sets, `[runs, rounds, 2, k]`; the run goes on from one.
      quiet: without noise.
      leaves: numbers of each leaf of what is observed, for each release of a round; they sum to k.
    """

    before: np.ndarray
    noisy: np.ndarray
    quiet: np.ndarray
    leaves: tuple[tuple[int, ...], ...]

    def spans(self) -> list[list[slice]]:
        """Where the numbers of each leaf are, for each release of a round."""
        ends = iter(np.cumsum([size for release in self.leaves for size in release]))
        return [[slice(int(end) - size, int(end)) for size, end in zip(release, ends, strict=False)]
                for release in self.leaves]

    def _ratio(self) -> np.ndarray:
        """How much larger a step is than without noise, `[rounds, k]`: some steps depend on it."""
        found: np.ndarray = np.ones(self.before.shape[1:])
        for span in (span for release in self.spans() for span in release):
            with np.errstate(invalid="ignore"):
                size = [np.nansum(np.abs(np.diff(x[..., span], axis=2)), (0, 2, 3))
                        for x in (self.noisy, self.quiet)]
            apart = (size[1] > 0) & np.isfinite(size[0])
            ratio = np.where(apart, size[0] / np.where(apart, size[1], 1.0), 1.0)
            # a clean number for steps that do not: what is left is rounding
            found[:, span] = np.where(np.abs(ratio - 1) < 1e-3, 1.0, ratio)[:, None]
        return found

    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        """What each round adds without noise on both data sets, and the noise on the first.

        Returns:
          `[runs, rounds, 2, k]` and `[runs, rounds, k]`.
        """
        ratio = self._ratio()
        signal = (self.quiet - self.before[:, :, None]) * ratio[:, None]
        return signal, self.noisy[:, :, 0] - self.before - signal[:, :, 0]


def silenced(described: Any) -> Any:
    """A `Hyper`, or a description, with noise multipliers of 0 throughout."""
    if isinstance(described, tuple) and not hasattr(described, "_fields"):
        return tuple(map(silenced, described))
    if not dataclasses.is_dataclass(described) or isinstance(described, type):
        return described
    values = {}
    for field in dataclasses.fields(described):
        value = getattr(described, field.name)
        quiet = (jax.tree.map(lambda _: 0.0, value) if field.name == "noise_multiplier"
                 else silenced(value))
        if quiet is not value:
            values[field.name] = quiet
    return dataclasses.replace(described, **values) if values else described


def points(state: Any) -> PyTree:
    """The points that a round's releases led to, a tuple of them if there are several."""
    return (state.ahead, state.z) if hasattr(state, "ahead") else state.z


def first_points(state: Any) -> PyTree:
    """Those that the first release of a round led to."""
    return getattr(state, "ahead", state.z)


def unprojected(problem: Problem | GroupProblem, hyper: Any) -> Problem | GroupProblem:
    """`problem` without its projection, where that only hides what was released."""
    if isinstance(problem, Problem) and isinstance(getattr(hyper, "query", None), Query):
        return problem._replace(project=lambda z: z)
    return problem


def straightened(hyper: Any) -> Any:
    """`hyper` with Euclidean steps, where others only hide what was released."""
    if hasattr(hyper, "geometry"):
        return dataclasses.replace(hyper, geometry=EUCLIDEAN)
    return hyper


def rounds(key: jax.Array, algorithm: Algorithm, hyper: Any, z: Saddle, data: PyTree, problem: Any,
           observe: Callable[[Any], PyTree], runs: int) -> Rounds:
    """Runs on the first data set of a pair.

    Args:
      key: for all the runs.
      algorithm: a module such as `sgda`.
      hyper: its `Hyper`, with noise multipliers.
      z: the initial point.
      data: leaves `[2, ...]`.
      problem: what the algorithm takes.
      observe: `state -> tree`, what is looked at; a tuple of trees for releases of one round.
      runs: how many.
    """
    return _taken([key], algorithm, hyper, z, data, problem, observe, runs)[0]


def rounds_of_both(key: jax.Array, algorithm: Algorithm, hyper: Any, z: Saddle, data: PyTree,
                   problem: Any, observe: Callable[[Any], PyTree], runs: int) -> list[Rounds]:
    """Runs on each data set of a pair; arguments as in `rounds`."""
    return _taken(list(jax.random.split(key)), algorithm, hyper, z, data, problem, observe, runs)


def _taken(sides: list[jax.Array], algorithm: Algorithm, hyper: Any, z: Saddle, data: PyTree,
           problem: Any, observe: Callable[[Any], PyTree], runs: int) -> list[Rounds]:
    """`rounds` for a key for each data set."""
    quiet = silenced(hyper)
    (loud, structure), hushed = jax.tree.flatten(hyper), jax.tree.leaves(quiet)
    # only what differs is mapped over: every other number stays the one that is described
    varied = [i for i, (a, b) in enumerate(zip(loud, hushed, strict=True)) if a is not b]
    noise = [jnp.stack([jnp.asarray(x) for x in (loud[i], hushed[i])]) for i in varied]
    noise = [x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float) for x in noise]
    start = algorithm.init(z, hyper)
    shown = jax.eval_shape(observe, start)
    several = isinstance(shown, tuple) and not hasattr(shown, "_fields")
    leaves = tuple(tuple(x.size for x in jax.tree.leaves(release))
                   for release in (shown if several else (shown,)))
    count = sum(map(sum, leaves))

    def flat(state: Any) -> jax.Array:
        return jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(observe(state))])

    def described(noise: list[jax.Array]) -> Any:
        leaves = list(loud)
        for i, x in zip(varied, noise, strict=True):
            leaves[i] = x
        return jax.tree.unflatten(structure, leaves)

    @jax.jit
    def programme(keys: jax.Array, data: PyTree, on: jax.Array) -> Any:
        def one(key: jax.Array) -> Any:
            def step(state: Any, _: None) -> Any:
                def taken(noise: list[jax.Array], data: PyTree) -> Any:
                    return update(algorithm, key, state, data, described(noise), problem)

                both = jax.vmap(jax.vmap(taken, (None, 0)), (0, None))(noise, data)
                seen = jax.vmap(jax.vmap(flat))(both)
                return jax.tree.map(lambda x: x[0, on], both), (flat(state), seen[0], seen[1])

            return jax.lax.scan(step, start, length=hyper.iterations)[1]

        # one after the other: lanes would all take the rare branches of any of them
        return jax.lax.map(lambda several: jax.lax.map(one, several), keys)

    together = max(1, min(runs, 1000, _NUMBERS // (8 * hyper.iterations * count)))
    results = []
    for on, key in enumerate(sides):
        keys = jax.random.split(key, (-(-runs // together), together))
        seen = jax.device_get(programme(keys, data, jnp.int32(on)))
        before, noisy, still = (np.asarray(x, np.float64).reshape(-1, *x.shape[2:])[:runs]
                                for x in seen)
        results.append(Rounds(before, noisy, still, leaves))
    return results
