"""Stochastic and full-batch descent-ascent: a hard linear instance, and quadratic games."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

import jaxminimax as jmm
from benchmarks.papers import bounds
from benchmarks.rates.base import DELTA, Case, Job, around, spread, zeros
from jaxminimax import Poisson, Query, Saddle, metrics, problems
from jaxminimax.algorithms.descent import Averaging

HARD_DIM = 10


def sgda_job(n: int, epsilon: float, smooth: bool = True) -> Job:
    """DP-SGDA by Theorem 2 on f = <a, w> - <b, v>, whose means shrink with the rate itself.

    (a), n rounds for a smooth loss, or (b), n^2 rounds without using that it is one.
    """
    size = 1 / math.sqrt(n) + spread(epsilon, HARD_DIM) / n
    axes = jnp.eye(HARD_DIM, dtype=jnp.float32)
    mean = (size * axes[:1], size * axes[-1:])
    problem = problems.bilinear_game(coupling=0.0, radius=Saddle(1.0, 1.0))
    problem = problem._replace(operator=jmm.types.with_strategy(problem.operator, "vmap"))

    def sample(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jax.random.normal(key, (2, n, HARD_DIM), jnp.float32)
        x = x / jnp.linalg.norm(x, axis=2, keepdims=True) / 2
        return mean[0] + x[0], mean[1] + x[1]

    known: dict[str, Any] = dict(population=n, dim=HARD_DIM, epsilon=epsilon, delta=DELTA)
    rounds = n if smooth else n**2
    step = jmm.sgda.theorem2_step(smooth=1.0 if smooth else None, **known)
    batch, clip = max(1, round(n * math.sqrt(epsilon / (4 * rounds)))), 0.5 + size
    one = Query(clip=Saddle(clip, clip), sampling=Poisson(rate=batch / n), population=n)
    hyper = jmm.sgda.Hyper(query=one, step=step, iterations=rounds)
    return Job(jmm.sgda, jmm.calibrate(jmm.sgda, hyper, epsilon, DELTA), problem, zeros(HARD_DIM),
               sample, lambda z: metrics.strong_gap(problem, z, mean))


def _sgda(variant: str, smooth: bool, epsilon: float, ns: list[int], quick: list[int]) -> Case:
    def cost(n: int) -> int:
        hyper = sgda_job(n, epsilon, smooth).hyper
        return hyper.iterations * jmm.mechanism.rows_read(hyper.query)

    def lower(n: int) -> float:
        """Of records of length 1/2 and more on two unit balls."""
        return bounds.lower_bound(population=n, dim=2 * HARD_DIM, bound=math.sqrt(0.5),
                                  diameter=2 * math.sqrt(2), epsilon=epsilon)

    return Case("sgda", variant, "hard linear instance", "weak", epsilon, -0.5,
                lambda n: sgda_job(n, epsilon, smooth),
                lambda n: n**-0.5 + spread(epsilon, HARD_DIM) / n,
                lambda n: spread(epsilon, HARD_DIM) > n**0.5, cost, lower, ns, quick,
                settings="the paper's")


# --- quadratic games ---

_DIM = 10
MEAN = (0.6 * jnp.eye(_DIM, dtype=jnp.float32)[:1], -0.5 * jnp.eye(_DIM, dtype=jnp.float32)[1:2])
_GAME = problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
_CLIP = 4.0  # mu (R + r) + c R, above every gradient


def gda_job(n: int, epsilon: float) -> Job:
    """DP-GDA with T = n^(2/3), as its Remarks prescribe."""
    one = Query(clip=Saddle(_CLIP, _CLIP), population=n)
    hyper = jmm.gda.Hyper(query=one, modulus=1.0, iterations=math.ceil(n ** (2 / 3)))
    return Job(jmm.gda, jmm.calibrate(jmm.gda, hyper, epsilon, DELTA), _GAME, zeros(_DIM),
               around(MEAN, 0.4, n), lambda z: metrics.strong_gap(_GAME, z, MEAN))


def primal_excess(z: Saddle) -> jax.Array:
    """R(w) - min R on the population, R(w) = max_v F(w, v)."""
    saddle_point: Any = _GAME.saddle_point  # this game has one in closed form
    best = metrics.primal_risk(_GAME, saddle_point(MEAN).w, MEAN)
    return metrics.primal_risk(_GAME, z.w, MEAN) - best


def pl_job(n: int, epsilon: float) -> Job:
    """DP-SGDA by Theorem 5: T = n, steps of Theorem 3, a constant batch, the last iterate.

    Strongly convex in w, so the Polyak-Lojasiewicz condition holds with the modulus.
    """
    step = jmm.sgda.theorem3_step(pl=1.0, smooth=math.hypot(1.0, 0.5), modulus=1.0)
    one = Query(clip=Saddle(_CLIP, _CLIP), sampling=Poisson(rate=min(1.0, 16 / n)), population=n)
    hyper = jmm.sgda.Hyper(query=one, step=step, iterations=n,
                           averaging=Averaging(skip=1 - 0.5 / n))
    return Job(jmm.sgda, jmm.calibrate(jmm.sgda, hyper, epsilon, DELTA), _GAME, zeros(_DIM),
               around(MEAN, 0.4, n), primal_excess)


def _lower(epsilon: float, n: int) -> float:
    return bounds.lower_bound(population=n, dim=2 * _DIM, bound=_CLIP * math.sqrt(2),
                              diameter=4 * math.sqrt(2), epsilon=epsilon)


CASES = (
    Case("gda", "T = n^(2/3)", "quadratic game", "strong", 1.0, -2 / 3,
         lambda n: gda_job(n, 1.0), lambda n: n ** (-2 / 3), lambda n: True,
         lambda n: n * math.ceil(n ** (2 / 3)), functools.partial(_lower, 1.0),
         [500, 1000, 2000, 4000], [500, 1000, 2000],
         note="the theorem is an upper bound for any strongly convex-concave loss; with calibrated "
              "noise the error here is all noise, of order 1 / n^2.",
         settings="the paper's"),
    _sgda("Theorem 2", True, 1.0, [500, 1000, 2000, 4000, 8000], [500, 1000, 2000]),
    _sgda("Theorem 2", True, 8.0, [500, 1000, 2000, 4000, 8000], [500, 1000, 2000]),
    _sgda("Theorem 2b", False, 8.0, [20, 40, 80, 160], [20, 40, 80]),
    Case("sgda", "Theorem 5", "quadratic game", "primal", 8.0, -1 / 3,
         lambda n: pl_job(n, 8.0),
         lambda n: n ** (-1 / 3) + spread(8.0, _DIM) / n ** (5 / 6),
         lambda n: spread(8.0, _DIM) > n**0.5,
         lambda n: n * jmm.mechanism.rows_read(pl_job(n, 8.0).hyper.query),
         functools.partial(_lower, 8.0), [500, 1000, 2000, 4000, 8000], [500, 1000, 2000],
         note="the theorem holds under the Polyak-Lojasiewicz condition; this game is strongly "
              "convex, and its last iterate's error falls like the noise.",
         settings="the paper's"),
)
