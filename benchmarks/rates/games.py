"""Extragradient and proximal points on a bilinear game on unit balls, its saddle point inside."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.papers import bounds
from benchmarks.rates.base import DELTA, Case, Job, spread
from jaxminimax import Disjoint, Problem, Query, Saddle, metrics, problems

DIM = 6  # of both players together


def _game() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    u, _, vt = np.linalg.svd(rng.normal(size=(3, 3)))
    a = u @ np.diag([1.0, 0.75, 0.5]) @ vt
    w, v = (x / np.linalg.norm(x) / 2 for x in rng.normal(size=(2, 3)))
    return a, -a @ v, a.T @ w


_A, _B, _C = _game()
_BALLS = problems.product(problems.ball(1.0), problems.ball(1.0))
BOUND = math.sqrt(2) + float(np.hypot(np.linalg.norm(_B), np.linalg.norm(_C))) + 1.0
NUMBERS: dict[str, Any] = dict(dim=DIM, bound=BOUND, smooth=1.0, diameter=_BALLS.diameter,
                               delta=DELTA)


def _operator(z: Saddle, q: jax.Array) -> Saddle:
    a = jnp.asarray(_A, z.w.dtype)
    return Saddle(a @ z.v + q[:3].astype(z.w.dtype), -(a.T @ z.w) + q[3:].astype(z.w.dtype))


GAME = Problem(operator=_operator, project=_BALLS.project, support=_BALLS.support)
POPULATION = jnp.asarray(np.concatenate([_B, _C])[None], jnp.float32)
START = Saddle(jnp.zeros(3, jnp.float32), jnp.zeros(3, jnp.float32))


def game_gap(z: Saddle) -> jax.Array:
    """Strong gap on the population; the operator is skew, so the gap of z's own operator is it."""
    return metrics.vi_gap_bound(GAME, z, POPULATION)


def game_sample(n: int) -> Callable[[jax.Array], jax.Array]:
    """Records of mean (b, c), with the uniform law on the unit sphere around it."""
    def sample(key: jax.Array) -> jax.Array:
        x = jax.random.normal(key, (n, DIM), jnp.float32)
        return POPULATION + x / jnp.linalg.norm(x, axis=1, keepdims=True)

    return sample


def query(n: int, sampling: Any) -> Query:
    """One joint clip at the operator's bound: the identity on these records."""
    return Query(clip=Saddle(BOUND, BOUND), sampling=sampling, population=n, joint=True)


def _corollary1_batch(n: int, epsilon: float) -> int:
    return max(1, min(round(spread(epsilon, DIM)), n // 2))


def _corollary1(n: int, epsilon: float) -> Any:
    """One pass by Corollary 1 of Boob and Guzman, with its step for the calibrated noise.

    B = sqrt(d ln(1/delta)) / epsilon, T = n / (2 B), step D / (7 T (M^2 + d sigma^2))^(1/2).
    """
    batch = _corollary1_batch(n, epsilon)
    hyper = jmm.extragradient.Hyper(query=query(n, Disjoint(batch=batch)), step=Saddle(1.0, 1.0),
                                    iterations=n // (2 * batch))
    hyper = jmm.calibrate(jmm.extragradient, hyper, epsilon, DELTA)
    noise = BOUND * float(hyper.query.noise_multiplier.w) / batch
    step = min(1 / math.sqrt(3), _BALLS.diameter / math.sqrt(
        7 * hyper.iterations * (BOUND**2 + DIM * noise**2)))
    return dataclasses.replace(hyper, step=Saddle(step, step))


def extragradient_job(n: int, epsilon: float, many: bool) -> Job:
    """NSEG: one pass over disjoint batches, or n^2 rounds on single records."""
    hyper = jmm.plan(jmm.extragradient, population=n, epsilon=epsilon, passes="many",
                     **NUMBERS).hyper if many else _corollary1(n, epsilon)
    return Job(jmm.extragradient, hyper, GAME, START, game_sample(n), game_gap)


def _corollary2(n: int, epsilon: float) -> Any:
    """One pass by Corollary 2 of Boob and Guzman, with its noise calibrated.

    B = n^(1/3), T = n / B, lambda = max{M / D, L} max{n^(1/3), sqrt(d ln(1/delta)) / epsilon}.
    """
    batch = max(1, round(n ** (1 / 3)))
    prox = max(BOUND / _BALLS.diameter, 1.0) * max(n ** (1 / 3), spread(epsilon, DIM))
    resolvent = jmm.proximal.certified(jmm.mechanism.Resolvent(
        bound=BOUND, prox=prox, lipschitz=1.0, diameter=_BALLS.diameter, population=n,
        sampling=Disjoint(batch=batch), assumes="monotone"))
    return jmm.calibrate(jmm.proximal, jmm.proximal.Hyper(
        query=resolvent, iterations=n // batch), epsilon, DELTA)


def proximal_job(n: int, epsilon: float, many: bool) -> Job:
    """NISPP: one pass over disjoint batches, or n rounds on uniform subsets."""
    hyper = jmm.plan(jmm.proximal, population=n, epsilon=epsilon, passes="many",
                     **NUMBERS).hyper if many else _corollary2(n, epsilon)
    return Job(jmm.proximal, hyper, GAME, START, game_sample(n), game_gap)


def _resolvent_cost(n: int, epsilon: float, many: bool) -> int:
    hyper = proximal_job(n, epsilon, many).hyper
    return round(hyper.iterations * hyper.query.sampling.batch * (hyper.query.steps + 2))


def _lower(epsilon: float, n: int) -> float:
    return bounds.lower_bound(population=n, dim=DIM, bound=BOUND, diameter=_BALLS.diameter,
                              epsilon=epsilon)


def one_pass(algorithm: str, epsilon: float, ns: list[int], quick: list[int]) -> Case:
    prox = algorithm == "proximal"
    job = proximal_job if prox else extragradient_job

    def rate(n: int) -> float:
        if prox:
            return n ** (-1 / 3) + spread(epsilon, DIM) / n ** (2 / 3)
        return spread(epsilon, DIM) ** 0.5 / n**0.5 + spread(epsilon, DIM) / n

    def cost(n: int) -> int:
        if prox:
            return _resolvent_cost(n, epsilon, False)
        batch = _corollary1_batch(n, epsilon)
        return 2 * batch * (n // (2 * batch))

    return Case(algorithm, "one pass", "bilinear game on balls", "strong", epsilon,
                -1 / 3 if prox else -0.5, lambda n: job(n, epsilon, False), rate,
                lambda n: spread(epsilon, DIM) > (n ** (1 / 3) if prox else n),
                cost, functools.partial(_lower, epsilon), ns, quick,
                note="the rate bounds every monotone problem; on this one the bias of the start, "
                     "which falls faster, still shows, and the slope is steeper." if prox else "",
                settings="Corollary 2" if prox else "Corollary 1")


def many_passes(algorithm: str, epsilon: float, ns: list[int], quick: list[int],
                note: str = "") -> Case:
    prox = algorithm == "proximal"
    job = proximal_job if prox else extragradient_job

    def cost(n: int) -> int:
        return _resolvent_cost(n, epsilon, True) if prox else 2 * n * n

    return Case(algorithm, "many passes", "bilinear game on balls", "weak", epsilon, -0.5,
                lambda n: job(n, epsilon, True),
                lambda n: n**-0.5 + spread(epsilon, DIM) / n,
                lambda n: spread(epsilon, DIM) > n**0.5,
                cost, functools.partial(_lower, epsilon), ns, quick, note=note)


CASES = (
    one_pass("extragradient", 8.0, [1600 * 2**k for k in range(9)], [1600, 3200, 6400, 12800]),
    one_pass("extragradient", 1.0, [6400, 12800, 25600, 51200], [6400, 12800, 25600]),
    many_passes("extragradient", 8.0, [16, 32, 64, 128], [16, 32, 64],
                note="n^2 rounds allow small n only, where the gap has just left its plateau and "
                     "falls faster than the rate; n = 10,000 would take 10^8 releases a run."),
    one_pass("proximal", 8.0, [400, 1600, 6400, 25600], [400, 1600, 6400]),
    many_passes("proximal", 8.0, [200, 400, 800, 1600, 3200], [200, 400, 800]),
    many_passes("proximal", 0.2, [400, 800, 1600, 3200], [400, 800, 1600],
                note="at small epsilon the privacy term, of slope -1, is the larger one."),
)
