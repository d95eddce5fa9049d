"""Ways to train a fair linear scorer privately, for `benchmarks.accuracy.fair`, and their settings.

All were chosen on random splits of this table at epsilon = 0.5, without paying for it.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxminimax as jmm
from jaxminimax import GroupGradients, GroupLosses, Query, Repeat, Saddle, problems
from jaxminimax.algorithms.descent import Averaging

SHARE = 0.02  # of mu^2, for the groups' shares
_SCORER = 0.9  # of the run's budget
_CLIP = 0.6
_LENGTH = 2.0  # of a row, at most, for `group_sgd`
_RADIUS = 20.0
_BALL = functools.partial(optax.sgd, momentum=0.9)


class Method(NamedTuple):
    """A way to train with private groups.

    Attributes:
      make: `(shares, weight, kind) -> Problem`.
      start: `(theta, shares, kind) -> z`.
      clip: of player v, for every kind and number of groups that it is used for.
      step: of player v, a function of the weight.
    """

    make: Callable[..., jmm.Problem]
    start: Callable[..., Saddle]
    clip: dict[tuple[str, int], float]
    step: Callable[[Any], Any]


def _fermi(shares: Any, weight: Any, kind: str) -> jmm.Problem:
    return problems.fermi(problems.linear_scorer, shares=shares, weight=weight, kind=kind)


def _parity(shares: Any, weight: Any, kind: str) -> jmm.Problem:
    return problems.parity(problems.linear_scorer, shares=shares, weight=weight, kind=kind,
                           reach=3.0)


def _lagrangian(shares: Any, weight: Any, kind: str) -> jmm.Problem:
    return problems.parity(problems.linear_scorer, shares=shares, weight=weight, kind=kind,
                           penalty="absolute")


_PARITY_CLIP = {("parity", 2): 1.6, ("odds", 2): 4.0}
METHODS = {
    "parity": Method(_parity, problems.parity_start, _PARITY_CLIP,
                     lambda weight: jnp.minimum(0.5 * weight, 30.0)),
    "fermi": Method(_fermi, problems.fermi_start,
                    {("parity", 2): 3.0, ("odds", 2): 3.0, ("parity", 6): 8.0},
                    lambda weight: 0.45 + 0 * weight),
    "lagrangian": Method(_lagrangian, problems.parity_start, _PARITY_CLIP,
                         lambda weight: 0.2 * weight),
}


def described(method: str, kind: str, groups: int, population: int, rounds: int, epsilon: float,
              delta: float) -> tuple[Repeat, jmm.sgda.Hyper]:
    """The release of shares, and the run, which together are (epsilon, delta)-private."""
    cells = groups * (2 if kind == "odds" else 1)
    one = Repeat(query=Query(clip=Saddle(math.sqrt(1 - 1 / cells), None), population=population),
                 times=1)
    full = jmm.accounting.calibrate_noise(one, epsilon, delta)
    ratio = full.query.noise_multiplier.w / math.sqrt(SHARE)
    ask = dataclasses.replace(one, query=dataclasses.replace(
        one.query, noise_multiplier=Saddle(ratio, None)))
    query = Query(clip=Saddle(_CLIP, METHODS[method].clip[kind, groups]), population=population,
                  noise_multiplier=jmm.mechanism.budget_split(w=_SCORER))
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(500.0 / rounds, 1.0), iterations=rounds,
                           averaging=Averaging(skip=0.7), optimiser=Saddle(_BALL, optax.sgd))
    return ask, jmm.calibrate(jmm.sgda, hyper, epsilon, delta, alongside=(ask,))


@functools.partial(jax.jit, static_argnames=("method", "kind", "k"))
def _trained(key: jax.Array, data: Any, weight: jax.Array, ask: Repeat, hyper: Any, method: str,
             kind: str, k: int) -> jax.Array:
    """One program for every weight, budget and seed."""
    one, way = METHODS[method], jax.random.split(key)
    _, y, s = data
    odds = kind == "odds"
    shares = problems.release_shares(way[0], ask, y * k + s if odds else s, (1 + odds) * k)
    shares = shares.reshape(2, k) if odds else shares
    hyper = dataclasses.replace(hyper, step=Saddle(hyper.step.w, one.step(weight)))
    start = one.start(jnp.zeros(data[0].shape[1], jnp.float32), shares=shares, kind=kind)
    problem = one.make(shares, weight, kind)
    return jmm.run(way[1], start, data, hyper, jmm.sgda, problem)[0].average.w


def trained(key: jax.Array, data: Any, weight: float, ask: Repeat, hyper: Any, method: str,
            kind: str, k: int) -> np.ndarray:
    """The weights of the scorer, `[d]`."""
    ask, hyper = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (ask, hyper))
    return np.asarray(_trained(key, data, jnp.float32(weight), ask, hyper, method, kind, k))


_GLM = problems.group_glm("logistic", feature_bound=_LENGTH, radius=_RADIUS)


def worst_group(key: jax.Array, data: Any, rounds: int, epsilon: float,
                delta: float) -> tuple[np.ndarray, Any]:
    """`group_sgd` on the same rows, for which the groups are public; the scorer, and its Hyper."""
    x, y, s = data
    rows, sizes = problems.by_group((x, (2 * y - 1).astype(np.float32)), s)
    hyper = jmm.group_sgd.Hyper(
        query=GroupGradients(clip=1.0, sizes=sizes), losses=GroupLosses(bound=3.0, sizes=sizes),
        step=1.0, weight_step=0.3, iterations=rounds, averaging=jmm.averaging.TAIL)
    hyper = jmm.calibrate(jmm.group_sgd, hyper, epsilon, delta)
    step = 0.4 * jmm.group_sgd.gradient_step(hyper.query, rounds, dim=x.shape[1],
                                             diameter=_GLM.diameter)
    hyper = dataclasses.replace(hyper, step=step)
    start = Saddle(jnp.zeros(x.shape[1], jnp.float32), ())
    leaves = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), hyper)
    done = jmm.run(key, start, rows, leaves, jmm.group_sgd, _GLM)
    return np.asarray(done[0].average.w), hyper
