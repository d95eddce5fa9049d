"""Whether two releases of a run share noise, so that their difference has too little of it.

The states of a run mix its releases, and later releases depend on earlier ones. The test therefore
compares the releases themselves, for an operator that is 0 everywhere: each is its noise alone.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.audit._distance import shared_noise
from jaxminimax.base.types import Algorithm, GroupProblem, Problem, PyTree, Saddle
from jaxminimax.mechanism import GroupGradients, Query, Repeat
from jaxminimax.releases.watch import Seen, update_and_releases

_NUMBERS = 256  # how many numbers of a run are compared with each other
_ROUNDS = 16


def _independent(described: Any) -> bool:
    """Whether a description's releases are sums with noise of their own each."""
    query = getattr(described, "query", None)
    return (isinstance(described, Repeat) and isinstance(query, Query | GroupGradients)
            and getattr(query, "bands", 1) == 1)


def _zero(problem: Problem | GroupProblem) -> Any:
    """The problem of the same signature whose operator, or loss, is 0."""
    def operator(z: Saddle, *_: Any) -> Saddle:
        return jax.tree.map(jnp.zeros_like, z)

    if isinstance(problem, GroupProblem):
        return problem._replace(
            operator=operator, project=lambda w: w,
            loss=lambda w, *_: jnp.zeros(()))
    return problem._replace(operator=operator, public=None, project=lambda z: z)


def shared_between_releases(key: jax.Array, algorithm: Algorithm, hyper: Any, z: Saddle,
                            data: PyTree, problem: Problem | GroupProblem, runs: int,
                            confidence: float) -> float:
    """A lower bound on the largest |correlation| of two releases of a run; 0 if it is chance.

    It compares the first numbers of each release in the first rounds, and only for an algorithm
    that makes several releases of sums a round: `_signal` tests all others. It does not see a
    release inside a branch or a loop of the round.

    Args:
      key: for all the runs.
      algorithm: a module such as `extragradient`.
      hyper: its `Hyper`, with noise multipliers.
      z: the initial point.
      data: one data set; only its shapes matter.
      problem: only its kind matters.
      runs: how many.
      confidence: of the bound.
    """
    sums = [one for one in algorithm.mechanism(hyper).answered() if _independent(one)]
    if sum(one.releases() for one in sums) <= hyper.iterations:
        return 0.0
    problem = _zero(problem)

    def numbers(seen: Seen) -> list[jax.Array]:
        try:
            return [jnp.ravel(x)[:_NUMBERS // _ROUNDS // 2].astype(float)
                    for x in jax.tree.leaves(seen.value)]
        except jax.errors.UnexpectedTracerError:
            return []

    def one(key: jax.Array) -> list[jax.Array]:
        def step(state: Any, _: None) -> tuple[Any, list[jax.Array]]:
            state, seen = update_and_releases(algorithm, key, state, data, hyper, problem)
            return state, [x for release in seen if _independent(release.described)
                           for x in numbers(release)]

        return jax.lax.scan(step, algorithm.init(z, hyper),
                            length=min(hyper.iterations, _ROUNDS))[1]

    found = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(key, runs))
    noise = np.concatenate([np.asarray(x, np.float64).reshape(runs, -1) for x in found], 1)
    noise = noise[np.isfinite(noise).all(1)]  # NaN stands for samples that cannot be drawn
    columns = np.linspace(0, noise.shape[1] - 1, min(noise.shape[1], _NUMBERS)).astype(int)
    return shared_noise(noise[:, columns], np.zeros((len(noise), 0)), confidence)
