"""The cases of `benchmarks.rates`: problems with exact gaps, schedules, promised rates, costs."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from jaxminimax import Problem, Query, Saddle, metrics, problems

DELTA = 1e-5
DIM = 6  # of both players of the bilinear game together


@dataclasses.dataclass(frozen=True)
class Job:
    """Runs at one n.

    Attributes:
      algorithm: a module.
      hyper: calibrated.
      problem: with the operator or the loss of one record.
      start: the initial point.
      sample: `key -> data`, n fresh records, of all groups together.
      gap: `z -> []`, exact, on the population.
    """

    algorithm: Any
    hyper: Any
    problem: Any
    start: Saddle
    sample: Callable[[jax.Array], Any]
    gap: Callable[[Saddle], jax.Array]


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the plot.

    Attributes:
      algorithm: name.
      variant: of the algorithm.
      problem: in words.
      measure: the gap that the theorem bounds: "strong", "weak" or "primal", the excess of the
        worst group's risk.
      epsilon: of every run.
      theory: exponent of n in the theorem's term that falls slower.
      build: `n -> Job`.
      rate: `n ->` the theorem's rate, both terms, without constants and logarithms.
      private: `n ->` whether its privacy term is the larger one.
      cost: `n ->` operator evaluations of one run by the theorem's schedule.
      ns: numbers of records.
      quick: fewer.
      coins: groups of runs with the same coins, for weak gaps.
      note: what a reader must know beside the numbers.
    """

    algorithm: str
    variant: str
    problem: str
    measure: str
    epsilon: float
    theory: float
    build: Callable[[int], Job]
    rate: Callable[[int], float]
    private: Callable[[int], bool]
    cost: Callable[[int], int]
    ns: list[int]
    quick: list[int]
    coins: int = 8
    note: str = ""

    @property
    def name(self) -> str:
        """Algorithm, variant and epsilon."""
        return f"{self.algorithm}, {self.variant}, epsilon {self.epsilon:g}"


# --- a bilinear game on unit balls with its saddle inside ---


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


def _spread(epsilon: float, dim: int = DIM) -> float:
    return math.sqrt(dim * math.log(1 / DELTA)) / epsilon


def query(n: int, sampling: Any) -> Query:
    """One joint clip at the operator's bound: the identity on these records."""
    return Query(clip=Saddle(BOUND, BOUND), sampling=sampling, population=n, joint=True)


def extragradient_job(n: int, epsilon: float, many: bool) -> Job:
    """NSEG: one pass over disjoint batches, or n^2 rounds on single records."""
    plan = jmm.plan(jmm.extragradient, population=n, epsilon=epsilon,
                    passes="many" if many else "one", **NUMBERS)
    return Job(jmm.extragradient, plan.hyper, GAME, START, game_sample(n), game_gap)


def proximal_job(n: int, epsilon: float, many: bool) -> Job:
    """NISPP: one pass over disjoint batches, or n rounds on uniform subsets."""
    plan = jmm.plan(jmm.proximal, population=n, epsilon=epsilon,
                    passes="many" if many else "one", **NUMBERS)
    return Job(jmm.proximal, plan.hyper, GAME, START, game_sample(n), game_gap)


def _resolvent_cost(n: int, epsilon: float, many: bool) -> int:
    hyper = proximal_job(n, epsilon, many).hyper
    return round(hyper.iterations * hyper.query.sampling.batch * (hyper.query.steps + 2))


# --- the hard linear instance of stochastic descent-ascent ---

HARD_DIM = 10


def sgda_job(n: int, epsilon: float) -> Job:
    """DP-SGDA by Theorem 2 on f = <a, w> - <b, v>, whose means shrink with the rate itself."""
    spread = math.sqrt(HARD_DIM * math.log(1 / DELTA)) / (n * epsilon)
    size = 1 / math.sqrt(n) + spread
    axes = jnp.eye(HARD_DIM, dtype=jnp.float32)
    mean = (size * axes[:1], size * axes[-1:])
    problem = problems.bilinear_game(coupling=0.0, radius=Saddle(1.0, 1.0))
    problem = problem._replace(operator=jmm.with_strategy(problem.operator, "vmap"))

    def sample(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jax.random.normal(key, (2, n, HARD_DIM), jnp.float32)
        x = x / jnp.linalg.norm(x, axis=2, keepdims=True) / 2
        return mean[0] + x[0], mean[1] + x[1]

    batch = max(1, round(math.sqrt(n * epsilon / 4)))
    clip = 0.5 + size
    one = Query(clip=Saddle(clip, clip), sampling=jmm.Poisson(rate=batch / n), population=n)
    step = jmm.sgda.theorem2_step(population=n, dim=HARD_DIM, smooth=1.0, epsilon=epsilon,
                                  delta=DELTA)
    hyper = jmm.sgda.Hyper(query=one, step=step, iterations=n)
    hyper = jmm.calibrate(jmm.sgda, hyper, epsilon, DELTA)
    start = Saddle(jnp.zeros(HARD_DIM, jnp.float32), jnp.zeros(HARD_DIM, jnp.float32))
    return Job(jmm.sgda, hyper, problem, start, sample,
               lambda z: metrics.strong_gap(problem, z, mean))


def _sgda_cost(n: int, epsilon: float) -> int:
    return n * jmm.mechanism.rows_read(sgda_job(n, epsilon).hyper.query)


# --- the quadratic game of full-batch descent-ascent ---


def gda_job(n: int, epsilon: float) -> Job:
    """DP-GDA with T = n^(2/3), as its Remarks prescribe."""
    dim, clip = 10, 4.0
    problem = problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
    mean = (0.6 * jnp.eye(dim, dtype=jnp.float32)[:1], -0.5 * jnp.eye(dim, dtype=jnp.float32)[1:2])

    def sample(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jax.random.normal(key, (2, n, dim), jnp.float32)
        x = 0.4 * x / jnp.linalg.norm(x, axis=2, keepdims=True)
        return mean[0] + x[0], mean[1] + x[1]

    one = Query(clip=Saddle(clip, clip), population=n)
    hyper = jmm.gda.Hyper(query=one, modulus=1.0, iterations=math.ceil(n ** (2 / 3)))
    hyper = jmm.calibrate(jmm.gda, hyper, epsilon, DELTA)
    start = Saddle(jnp.zeros(dim, jnp.float32), jnp.zeros(dim, jnp.float32))
    return Job(jmm.gda, hyper, problem, start, sample,
               lambda z: metrics.strong_gap(problem, z, mean))


# --- recursive regularisation: the bilinear game of small balls, and a quadratic one ---

_K = 5
SMALL = problems.bilinear_game(coupling=1.0, radius=Saddle(0.5, 0.5))
SMALL_MEAN = (0.2 * jnp.eye(_K, dtype=jnp.float32)[:1], 0.2 * jnp.eye(_K, dtype=jnp.float32)[1:2])
SMALL_NUMBERS: dict[str, Any] = dict(dim=2 * _K, bound=math.sqrt(0.5) + math.sqrt(0.98),
                                     diameter=math.sqrt(2), delta=DELTA)
SMALL_START = Saddle(jnp.zeros(_K, jnp.float32), jnp.zeros(_K, jnp.float32))
_QUADRATIC = problems.quadratic_game(modulus=1.0, coupling=0.0, radius=Saddle(1.0, 1.0))
_CENTRE = jnp.full((1, 3), 0.3, jnp.float32)


def _around(mean: tuple[jax.Array, jax.Array], spread: float,
            n: int) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """Pairs with the uniform laws on spheres around two means."""
    def sample(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        u = jax.random.normal(key, (2, n, mean[0].shape[1]), jnp.float32)
        u = spread * u / jnp.linalg.norm(u, axis=2, keepdims=True)
        return mean[0] + u[0], mean[1] + u[1]

    return sample


def small_sample(n: int) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """Records of the game of small balls."""
    return _around(SMALL_MEAN, 0.5, n)


def small_gap(z: Saddle) -> jax.Array:
    """Strong gap on the population of the game of small balls."""
    return metrics.strong_gap(SMALL, z, SMALL_MEAN)


def recursive_job(n: int, epsilon: float | None, **settings: Any) -> Job:
    """Recursive regularisation by its plan, on the game of small balls."""
    plan = jmm.plan(jmm.recursive, population=n, smooth=1.0, epsilon=epsilon,
                    **{**SMALL_NUMBERS, **settings})
    return Job(jmm.recursive, plan.hyper, SMALL, SMALL_START, small_sample(n), small_gap)


def _strong_job(n: int) -> Job:
    """Two rounds of recursive regularisation on a quadratic game."""
    size = 1 + 0.3 * math.sqrt(3) + 0.3
    plan = jmm.plan(jmm.recursive, population=n, dim=6, bound=math.hypot(size, size), smooth=1.0,
                    diameter=2 * math.sqrt(2), epsilon=1.0, delta=DELTA, rounds=2)
    start = Saddle(jnp.zeros(3, jnp.float32), jnp.zeros(3, jnp.float32))
    mean = (_CENTRE, _CENTRE)
    return Job(jmm.recursive, plan.hyper, _QUADRATIC, start, _around(mean, 0.3, n),
               lambda z: metrics.strong_gap(_QUADRATIC, z, mean))


def solution_cost(hyper: Any) -> int:
    """Operator evaluations of certified rounds: the steps and the certificate, on a part each."""
    steps = hyper.query.steps
    return hyper.query.population * (sum(steps) + 2 * len(steps))


# --- groups around a common point ---

_GROUPS, _GROUP_DIM, _FAR, _WIDE = 5, 10, 0.4, 0.5


def _simplex() -> np.ndarray:
    u = np.eye(_GROUPS, _GROUP_DIM) - np.append(np.full(_GROUPS, 1 / _GROUPS),
                                                np.zeros(_GROUP_DIM - _GROUPS))
    return u * (_FAR / np.linalg.norm(u[0]))


def group_excess(z: Saddle) -> jax.Array:
    """Excess worst-group risk at w: ||w||^2 / 2 - min_i <m_i, w>, for means of equal length."""
    return jnp.sum(jnp.square(z.w)) / 2 - jnp.min(jnp.asarray(_simplex(), z.w.dtype) @ z.w)


def group_sample(n: int) -> Callable[[jax.Array], jax.Array]:
    """Records m_i + x and m_i - x of one length ||x||, so that the sample's risks are exact too.

    What is left of the excess is the algorithm's, and no error of the sample hides it.
    """
    def sample(key: jax.Array) -> jax.Array:
        x = jax.random.normal(key, (_GROUPS, n // 2, _GROUP_DIM), jnp.float32)
        x = _WIDE * x / jnp.linalg.norm(x, axis=2, keepdims=True)
        return jnp.asarray(_simplex(), jnp.float32)[:, None] + jnp.concatenate([x, -x], 1)

    return sample


def group_job(n: int, epsilon: float) -> Job:
    """Noisy SGD for the worst of five groups of n records, full batches."""
    problem: Any = problems.group_means(radius=1.0, record_bound=1.0)
    sizes = (n,) * _GROUPS
    hyper = jmm.plan(jmm.group_sgd, problem=problem, sizes=sizes, dim=_GROUP_DIM, epsilon=epsilon,
                     delta=DELTA).hyper
    start = Saddle(jnp.zeros(_GROUP_DIM, jnp.float32) + 0.25, ())
    return Job(jmm.group_sgd, hyper, problem, start, group_sample(n), group_excess)


# --- the table ---


def _one_pass(algorithm: str, epsilon: float, ns: list[int], quick: list[int]) -> Case:
    prox = algorithm == "proximal"
    job = proximal_job if prox else extragradient_job

    def rate(n: int) -> float:
        if prox:
            return n ** (-1 / 3) + _spread(epsilon) / n ** (2 / 3)
        return _spread(epsilon) ** 0.5 / n**0.5 + _spread(epsilon) / n

    def cost(n: int) -> int:
        if prox:
            return _resolvent_cost(n, epsilon, False)
        plan = jmm.extragradient.single_pass(population=n, epsilon=epsilon, **NUMBERS)
        return 2 * plan.batch * plan.iterations

    return Case(algorithm, "one pass", "bilinear game on balls", "strong", epsilon,
                -1 / 3 if prox else -0.5, lambda n: job(n, epsilon, False), rate,
                lambda n: (_spread(epsilon) > n ** (1 / 3) if prox else _spread(epsilon) > n),
                cost, ns, quick,
                note="the rate bounds every monotone problem; on this one the bias of the start, "
                     "which falls faster, still shows, and the slope is steeper." if prox else "")


def _many(algorithm: str, epsilon: float, ns: list[int], quick: list[int], note: str = "") -> Case:
    prox = algorithm == "proximal"
    job = proximal_job if prox else extragradient_job

    def cost(n: int) -> int:
        return _resolvent_cost(n, epsilon, True) if prox else 2 * n * n

    return Case(algorithm, "many passes", "bilinear game on balls", "weak", epsilon, -0.5,
                lambda n: job(n, epsilon, True),
                lambda n: n**-0.5 + _spread(epsilon) / n, lambda n: _spread(epsilon) > n**0.5, cost,
                ns, quick, note=note)


def _recursive(epsilon: float, ns: list[int], quick: list[int]) -> Case:
    return Case("recursive", "largest T", "bilinear game on small balls", "strong", epsilon, -0.5,
                lambda n: recursive_job(n, epsilon),
                lambda n: n**-0.5 + _spread(epsilon, 2 * _K) / n,
                lambda n: _spread(epsilon, 2 * _K) > n**0.5,
                lambda n: solution_cost(recursive_job(n, epsilon).hyper), ns, quick,
                note="logarithms left out; T grows with n, which blurs the slope.")


def _sgda(epsilon: float, ns: list[int], quick: list[int]) -> Case:
    return Case("sgda", "Theorem 2", "hard linear instance", "weak", epsilon, -0.5,
                lambda n: sgda_job(n, epsilon),
                lambda n: n**-0.5 + _spread(epsilon, HARD_DIM) / n,
                lambda n: _spread(epsilon, HARD_DIM) > n**0.5,
                lambda n: _sgda_cost(n, epsilon), ns, quick)


# --- groups of points, and the point that is near them all ---

GROUPS_DIM = 10
NEAR = problems.group_means(radius=1.0, record_bound=1.0)


def _corners(p: int, radius: float) -> np.ndarray:
    """Means of p groups at distance `radius` from a centre, the corners of a regular simplex."""
    corners = np.eye(p, GROUPS_DIM) - np.eye(p, GROUPS_DIM).mean(0)
    centre = 0.3 * np.eye(GROUPS_DIM)[-1]
    return centre + radius * corners / np.linalg.norm(corners[0])


def _group_job(algorithm: Any, hyper: Any, means: np.ndarray, widths: np.ndarray,
               start: np.ndarray) -> Job:
    """Points uniform on spheres of given widths around the means, and the excess risk."""
    best = problems.group_means_optimum(means, widths**2 / 2)[2]
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
    means = _corners(5, 0.4)
    plan = jmm.plan(jmm.phased_erm, problem=NEAR, sizes=(n // 5,) * 5, dim=GROUPS_DIM,
                    epsilon=epsilon, delta=DELTA)
    return _group_job(jmm.phased_erm, plan.hyper, means, np.full(5, 0.3), np.zeros(GROUPS_DIM))


def _phased_cost(n: int, epsilon: float) -> int:
    query = phased_job(n, epsilon).hyper.query
    return (query.steps + 2) * query.phases * sum(jmm.mechanism.phase_sizes(query))


def oco_job(n: int, epsilon: float) -> Job:
    """One pass; two groups, of which the wider one has a weight of 0.946 at the optimum.

    Half as many rounds as a group has records: no group can run out.
    """
    means = np.zeros((2, GROUPS_DIM))
    means[:, 0] = -0.25, 0.25
    widths = np.sqrt([0.05, 0.05 + 2 * (0.946 - 0.5) * 0.25])
    plan = jmm.plan(jmm.group_oco, problem=NEAR, sizes=(n // 2,) * 2, dim=GROUPS_DIM,
                    epsilon=epsilon, delta=DELTA, iterations=n // 4, tree=True)
    return _group_job(jmm.group_oco, plan.hyper, means, widths, -0.5 * np.eye(GROUPS_DIM)[0])


CASES: tuple[Case, ...] = (
    Case("gda", "T = n^(2/3)", "quadratic game", "strong", 1.0, -2 / 3,
         lambda n: gda_job(n, 1.0), lambda n: n ** (-2 / 3), lambda n: True,
         lambda n: n * math.ceil(n ** (2 / 3)), [500, 1000, 2000, 4000, 8000, 16000],
         [500, 1000, 2000],
         note="the theorem is an upper bound for any strongly convex-concave loss; with calibrated "
              "noise the error here is all noise, of order 1 / n^2."),
    Case("group_sgd", "full batches", "groups around a point", "strong", 1.0, -1.0,
         lambda n: group_job(n, 1.0), lambda n: _spread(1.0, _GROUP_DIM) / n, lambda n: True,
         lambda n: n * group_job(n, 1.0).hyper.iterations, [126, 250, 500, 1000],
         [126, 250, 500],
         note="n is the records of one group; the gap is the excess worst-group risk."),
    _sgda(1.0, [500, 1000, 2000, 4000, 8000, 16000], [500, 1000, 2000]),
    _sgda(8.0, [500, 1000, 2000, 4000, 8000, 16000], [500, 1000, 2000]),
    _one_pass("extragradient", 8.0, [1600, 3200, 6400, 12800, 25600, 51200, 102400],
              [1600, 3200, 6400, 12800]),
    _one_pass("extragradient", 1.0, [6400, 12800, 25600, 51200, 102400, 204800],
              [6400, 12800, 25600]),
    _many("extragradient", 8.0, [50, 100, 200, 400], [50, 100, 200],
          note="n^2 rounds allow small n only, where the gap has just left its plateau and falls "
               "faster than the rate."),
    _one_pass("proximal", 8.0, [400, 1600, 6400, 25600, 102400], [400, 1600, 6400]),
    _recursive(1.0, [2**12, 2**13, 2**14, 2**15, 2**16, 2**17, 2**18], [2**12, 2**13, 2**14]),
    Case("recursive", "T = 2", "quadratic game", "strong", 1.0, -0.5,
         _strong_job, lambda n: n**-0.5 + _spread(1.0) / n, lambda n: _spread(1.0) > n**0.5,
         lambda n: solution_cost(_strong_job(n).hyper), [2**12, 2**13, 2**14, 2**15, 2**16],
         [2**12, 2**13, 2**14],
         note="the theorem is for all convex-concave losses; a strongly convex-concave one gains "
              "twice its slope without being told, for the bias is of order lambda^2."),
    _many("proximal", 8.0, [200, 400, 800, 1600, 3200, 6400], [200, 400, 800]),
    _many("proximal", 0.2, [400, 800, 1600, 3200, 6400], [400, 800, 1600],
          note="at small epsilon the privacy term, of slope -1, is the larger one."),
    Case("phased_erm", "certified", "five groups of points", "primal", 1.0, -0.5,
         lambda n: phased_job(n, 1.0), lambda n: (5 / n) ** 0.5 + 5 * _spread(1.0, GROUPS_DIM) / n,
         lambda n: 5 * _spread(1.0, GROUPS_DIM) > (5 * n) ** 0.5,
         lambda n: _phased_cost(n, 1.0), [1280, 5120, 20480, 81920], [1280, 5120, 20480]),
    Case("group_oco", "FTRL and EXP3", "two groups of points", "primal", 10.0, -0.5,
         lambda n: oco_job(n, 10.0),
         lambda n: (_spread(10.0, GROUPS_DIM) ** 0.5 + 1) / n**0.5,
         lambda n: _spread(10.0, GROUPS_DIM) > 1, lambda n: n // 4,
         [4000, 16000, 64000, 256000], [4000, 16000, 64000]),
)
