"""Recursive regularisation on a bilinear game of small balls, and on a quadratic one."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxminimax as jmm
from benchmarks.papers import bounds
from benchmarks.rates.base import DELTA, Case, Job, around, spread, zeros
from jaxminimax import Saddle, metrics, problems

_K = 5
SMALL = problems.bilinear_game(coupling=1.0, radius=Saddle(0.5, 0.5))
SMALL_MEAN = (0.2 * jnp.eye(_K, dtype=jnp.float32)[:1], 0.2 * jnp.eye(_K, dtype=jnp.float32)[1:2])
SMALL_NUMBERS: dict[str, Any] = dict(dim=2 * _K, bound=math.sqrt(0.5) + math.sqrt(0.98),
                                     diameter=math.sqrt(2), delta=DELTA)
SMALL_START = zeros(_K)
SMALL_RADIUS = SMALL_NUMBERS["diameter"] / 2  # the start is in the middle of both balls
_QUADRATIC = problems.quadratic_game(modulus=1.0, coupling=0.0, radius=Saddle(1.0, 1.0))
_CENTRE = jnp.full((1, 3), 0.3, jnp.float32)
_SIZE = 1 + 0.3 * math.sqrt(3) + 0.3  # above a player's gradient


def small_sample(n: int) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """Records of the game of small balls."""
    return around(SMALL_MEAN, 0.5, n)


def small_gap(z: Saddle) -> jax.Array:
    """Strong gap on the population of the game of small balls."""
    return metrics.strong_gap(SMALL, z, SMALL_MEAN)


def recursive_job(n: int, epsilon: float | None, **settings: Any) -> Job:
    """Recursive regularisation by its plan, on the game of small balls."""
    plan = jmm.plan(jmm.recursive, population=n, smooth=1.0, epsilon=epsilon,
                    **{**SMALL_NUMBERS, **settings})
    return Job(jmm.recursive, plan.hyper, SMALL, SMALL_START, small_sample(n), small_gap)


def descent_job(n: int, epsilon: float | None, **settings: Any) -> Job:
    """Recursive regularisation without smoothness, by its plan, on the same game."""
    plan = jmm.plan(jmm.recursive_sgda, population=n, epsilon=epsilon,
                    **{**SMALL_NUMBERS, **settings})
    return Job(jmm.recursive_sgda, plan.hyper, SMALL, SMALL_START, small_sample(n), small_gap)


def _strong_job(n: int) -> Job:
    """Two rounds of recursive regularisation on a quadratic game."""
    plan = jmm.plan(jmm.recursive, population=n, dim=6, bound=math.hypot(_SIZE, _SIZE), smooth=1.0,
                    diameter=2 * math.sqrt(2), epsilon=1.0, delta=DELTA, rounds=2)
    mean = (_CENTRE, _CENTRE)
    return Job(jmm.recursive, plan.hyper, _QUADRATIC, zeros(3), around(mean, 0.3, n),
               lambda z: metrics.strong_gap(_QUADRATIC, z, mean))


def solution_cost(hyper: Any) -> int:
    """Operator evaluations of certified rounds: the steps and the certificate, on a part each."""
    steps = hyper.query.steps
    return hyper.query.population * (sum(steps) + 2 * len(steps))


def lower(n: int, epsilon: float | None) -> float:
    """What no private algorithm beats on all games with the constants of small balls."""
    return bounds.lower_bound(population=n, epsilon=epsilon, **{
        k: SMALL_NUMBERS[k] for k in ("dim", "bound", "diameter")})


def _rate(n: int) -> float:
    return n**-0.5 + spread(1.0, 2 * _K) / n


def _private(n: int) -> bool:
    return spread(1.0, 2 * _K) > n**0.5


def _descent_cost(n: int) -> int:
    hyper = descent_job(n, 1.0).hyper
    return hyper.iterations * jmm.mechanism.rows_read(hyper.query)


_ONE = ("logarithms left out; T is the largest whose proven bound is within a fifth of the "
        "smallest, 1 at small n: a regularised solution, whose bound falls like n^(-1/4), until "
        "more rounds pay.")

CASES = (
    Case("recursive", "default plan", "bilinear game on small balls", "strong", 1.0, -0.5,
         functools.partial(recursive_job, epsilon=1.0), _rate, _private,
         lambda n: solution_cost(recursive_job(n, 1.0).hyper),
         functools.partial(lower, epsilon=1.0), [2**12, 2**13, 2**14, 2**15, 2**16],
         [2**12, 2**13, 2**14], note=_ONE),
    Case("recursive_sgda", "default plan", "bilinear game on small balls", "strong", 1.0, -0.5,
         functools.partial(descent_job, epsilon=1.0), _rate, _private, _descent_cost,
         functools.partial(lower, epsilon=1.0), [2**10, 2**12, 2**13, 2**14, 2**15],
         [2**10, 2**12, 2**14], note=_ONE),
    Case("recursive", "T = 2", "quadratic game", "strong", 1.0, -0.5,
         _strong_job, lambda n: n**-0.5 + spread(1.0, 6) / n, lambda n: spread(1.0, 6) > n**0.5,
         lambda n: solution_cost(_strong_job(n).hyper),
         lambda n: bounds.lower_bound(population=n, dim=6, bound=math.hypot(_SIZE, _SIZE),
                                      diameter=2 * math.sqrt(2), epsilon=1.0),
         [2**12, 2**13, 2**14, 2**15], [2**12, 2**13, 2**14],
         note="with a fixed T lambda falls like n^(-1/4), and the bound too; on a strongly "
              "convex-concave game the bias falls like lambda^2."),
)
