"""The worst of several groups: full batches, the active group, phases, and one pass."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.examples import demo_games
from benchmarks.papers import bounds
from benchmarks.rates.base import DELTA, Case, Job, spread
from jaxminimax import Saddle, problems

GROUPS_DIM = 10
_GROUPS, _FAR, _WIDE = 5, 0.4, 0.5


def _simplex() -> np.ndarray:
    u = np.eye(_GROUPS, GROUPS_DIM) - np.append(np.full(_GROUPS, 1 / _GROUPS),
                                                np.zeros(GROUPS_DIM - _GROUPS))
    return u * (_FAR / np.linalg.norm(u[0]))


def group_excess(z: Saddle) -> jax.Array:
    """Excess worst-group risk at w: ||w||^2 / 2 - min_i <m_i, w>, for means of equal length."""
    return jnp.sum(jnp.square(z.w)) / 2 - jnp.min(jnp.asarray(_simplex(), z.w.dtype) @ z.w)


def group_sample(n: int) -> Callable[[jax.Array], jax.Array]:
    """Records m_i + x and m_i - x of one length ||x||, so that the sample's risks are exact too.

    What is left of the excess is the algorithm's, and no error of the sample hides it.
    """
    def sample(key: jax.Array) -> jax.Array:
        x = jax.random.normal(key, (_GROUPS, n // 2, GROUPS_DIM), jnp.float32)
        x = _WIDE * x / jnp.linalg.norm(x, axis=2, keepdims=True)
        return jnp.asarray(_simplex(), jnp.float32)[:, None] + jnp.concatenate([x, -x], 1)

    return sample


def group_job(n: int, epsilon: float) -> Job:
    """Noisy SGD for the worst of five groups of n records, full batches."""
    problem: Any = problems.group_means(radius=1.0, record_bound=1.0)
    sizes = (n,) * _GROUPS
    hyper = jmm.plan(jmm.group_sgd, problem=problem, sizes=sizes, dim=GROUPS_DIM, epsilon=epsilon,
                     delta=DELTA).hyper
    start = Saddle(jnp.zeros(GROUPS_DIM, jnp.float32) + 0.25, ())
    return Job(jmm.group_sgd, hyper, problem, start, group_sample(n), group_excess)


def active_job(n: int, epsilon: float) -> Job:
    """The same groups; a step on the one whose noisy loss is largest."""
    job = group_job(n, epsilon)
    plan = jmm.plan(jmm.active_groups, problem=job.problem, sizes=job.hyper.query.sizes,
                    dim=GROUPS_DIM, epsilon=epsilon, delta=DELTA)
    return Job(jmm.active_groups, plan.hyper, job.problem, job.start, job.sample, job.gap)


# --- groups of points, and the point that is near them all ---

NEAR = problems.group_means(radius=1.0, record_bound=1.0)


def corners(p: int, radius: float) -> np.ndarray:
    """Means of p groups at distance `radius` from a centre, the corners of a regular simplex."""
    corners = np.eye(p, GROUPS_DIM) - np.eye(p, GROUPS_DIM).mean(0)
    centre = 0.3 * np.eye(GROUPS_DIM)[-1]
    return centre + radius * corners / np.linalg.norm(corners[0])


def _group_job(algorithm: Any, hyper: Any, means: np.ndarray, widths: np.ndarray,
               start: np.ndarray) -> Job:
    """Points uniform on spheres of given widths around the means, and the excess risk."""
    best = demo_games.group_means_optimum(means, widths**2 / 2)[2]
    sizes = hyper.sizes if hasattr(hyper, "sizes") else hyper.query.sizes
    centre, width = jnp.asarray(means, jnp.float32), jnp.asarray(widths, jnp.float32)

    def sample(key: jax.Array) -> jax.Array:
        x = jax.random.normal(key, (len(sizes), max(sizes), GROUPS_DIM), jnp.float32)
        x = x / jnp.linalg.norm(x, axis=2, keepdims=True)
        return centre[:, None, :] + width[:, None, None] * x

    def excess(z: Saddle) -> jax.Array:
        return jnp.max(jnp.sum((z.w[None] - centre) ** 2, 1) / 2 + width**2 / 2) - best

    return Job(algorithm, hyper, NEAR, Saddle(jnp.asarray(start, jnp.float32), ()), sample, excess)


def phased_job(n: int, epsilon: float) -> Job:
    """Phased empirical risk minimisation; five groups in general position."""
    means = corners(5, 0.4)
    plan = jmm.plan(jmm.phased_erm, problem=NEAR, sizes=(n // 5,) * 5, dim=GROUPS_DIM,
                    epsilon=epsilon, delta=DELTA)
    return _group_job(jmm.phased_erm, plan.hyper, means, np.full(5, 0.3), np.zeros(GROUPS_DIM))


def _phased_cost(n: int, epsilon: float) -> int:
    query = phased_job(n, epsilon).hyper.query
    return (query.steps + 2) * query.phases * sum(jmm.mechanism.phase_sizes(query))


def oco_job(n: int, epsilon: float, paper: bool = True, **settings: Any) -> Job:
    """One pass; two groups, of which the wider one has a weight of 0.946 at the optimum.

    As in the paper the noise is a tree's and the step that of the smallest bound, with half as many
    rounds as a group has records: no group can run out. Otherwise it is the default plan.
    `settings` are for the plan.
    """
    means = np.zeros((2, GROUPS_DIM))
    means[:, 0] = -0.25, 0.25
    widths = np.sqrt([0.05, 0.05 + 2 * (0.946 - 0.5) * 0.25])
    if paper:
        settings |= dict(iterations=n // 4, tree=True)
    hyper = jmm.plan(jmm.group_oco, problem=NEAR, sizes=(n // 2,) * 2, dim=GROUPS_DIM,
                     epsilon=epsilon, delta=DELTA, **settings).hyper
    if paper:
        hyper = dataclasses.replace(hyper, step=jmm.ftrl.theorem_step(
            hyper.query.parts[0], dim=GROUPS_DIM, diameter=NEAR.diameter))
    return _group_job(jmm.group_oco, hyper, means, widths, -0.5 * np.eye(GROUPS_DIM)[0])


def _lower(epsilon: float, groups: int, each: bool, n: int) -> float:
    """n: records of each group, or of all."""
    return bounds.group_lower_bound(
        population=groups * n if each else n, groups=groups, dim=GROUPS_DIM,
        lipschitz=NEAR.lipschitz, diameter=NEAR.diameter, epsilon=epsilon)


def _oco(variant: str, note: str, **settings: Any) -> Case:
    """One pass over two groups of points, with further settings of its plan."""
    return Case("group_oco", variant, "two groups of points", "primal", 10.0, -0.5,
                functools.partial(oco_job, epsilon=10.0, **settings),
                lambda n: (spread(10.0, GROUPS_DIM) ** 0.5 + 1) / n**0.5,
                lambda n: spread(10.0, GROUPS_DIM) > 1, lambda n: n // 4,
                functools.partial(_lower, 10.0, 2, False), [4000, 16000, 64000, 128000],
                [4000, 16000, 64000], note=note, settings="the paper's step for w")


CASES = (
    Case("group_sgd", "full batches", "groups around a point", "primal", 1.0, -1.0,
         lambda n: group_job(n, 1.0), lambda n: spread(1.0, GROUPS_DIM) / n, lambda n: True,
         lambda n: n * group_job(n, 1.0).hyper.iterations,
         functools.partial(_lower, 1.0, _GROUPS, True), [126, 250, 500, 1000], [126, 250, 500],
         note="n is the records of one group; the gap is the excess worst-group risk."),
    Case("active_groups", "full batches", "groups around a point", "primal", 1.0, -0.5,
         lambda n: active_job(n, 1.0),
         lambda n: (spread(1.0, 1) / n) ** 0.5 + spread(1.0, GROUPS_DIM) / n,
         lambda n: True, lambda n: n * active_job(n, 1.0).hyper.iterations,
         functools.partial(_lower, 1.0, _GROUPS, True), [250, 500, 1000, 2000], [250, 500, 1000],
         note="n is the records of one group; both terms of Theorem 14 are of privacy."),
    Case("phased_erm", "certified", "five groups of points", "primal", 1.0, -0.5,
         lambda n: phased_job(n, 1.0),
         lambda n: (5 / n) ** 0.5 + 5 * spread(1.0, GROUPS_DIM) / n,
         lambda n: 5 * spread(1.0, GROUPS_DIM) > (5 * n) ** 0.5,
         lambda n: _phased_cost(n, 1.0), functools.partial(_lower, 1.0, 5, False),
         [1280, 5120, 20480, 81920], [1280, 5120, 20480]),
    _oco("FTRL and EXP3", ""),
    _oco("losses in [0, 0.75]", "the plan has loss_bound=0.75 in place of the problem's bound 2.",
         loss_bound=0.75),
)
