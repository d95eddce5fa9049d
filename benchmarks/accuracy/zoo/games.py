"""The games of `benchmarks.accuracy.zoo`: exact gaps, and one-record stand-ins for n of them.

A run on the full batch sees its data only through the sum of the clipped operators. So n/m copies
of m records need not be computed n/m times: on the m records alone, with the noise multiplier of n
divided by n/m, the released mean operator has the same law. What a row is charged for, and where
its noise comes from, is the description with n records.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.examples import demo_games
from jaxminimax import Problem, Saddle, metrics, problems
from jaxminimax.algorithms.descent import ENTROPIC, EUCLIDEAN, release_variance

DELTA = 1e-6
EPSILONS = (0.3, 1.0, 8.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Game:
    """One game and one way to measure it.

    Attributes:
      name: of the game.
      n: records that are charged for.
      dim: coordinates of each player.
      problem: with the operator of one record.
      start: initial point.
      data: the distinct records, m of them.
      clip: of a record's operator, both players together.
      smooth: L of the mean operator, in the norm of the geometry.
      radius: R, of the set around the start, in that norm.
      size: G, bound on the mean operator in the dual norm.
      gap: `z ->` its gap, exact.
      geometry: of both players.
    """

    name: str
    n: int
    dim: Saddle
    problem: Problem
    start: Saddle
    data: Any
    clip: float
    smooth: float
    radius: float
    size: float
    gap: Callable[[Saddle], jax.Array]
    geometry: Saddle = EUCLIDEAN

    @property
    def d(self) -> int:
        """Coordinates of both players."""
        return self.dim.w + self.dim.v

    @property
    def rows(self) -> int:
        """m, the distinct records."""
        return len(jax.tree.leaves(self.data)[0])

    def query(self, epsilon: float, releases: int, n: int | None = None) -> jmm.Query:
        """So many records, full batches, calibrated for so many releases."""
        made = jmm.Query(clip=Saddle(self.clip, self.clip), joint=True, population=n or self.n)
        return _calibrated(made.population, releases, epsilon, made.clip)

    def copied(self, query: jmm.Query) -> jmm.Query:
        """The same law on the distinct records alone."""
        assert query.noise_multiplier is not None
        share = self.rows / query.population
        return dataclasses.replace(query, population=self.rows, noise_multiplier=Saddle(
            *(z * share for z in query.noise_multiplier)))

    def step(self, method: str, query: jmm.Query, releases: int) -> float:
        """The step from theory, for the noise as calibrated."""
        noise = release_variance(query, self.dim, self.geometry)
        match method:
            case "sgda":
                return self.radius / math.sqrt(releases * (self.size**2 + noise))
            case "optimistic" | "anchored":
                return min(1 / (2 * self.smooth), self.radius / math.sqrt(4 * releases * noise))
            case "extragradient":
                return min(1 / (math.sqrt(3) * self.smooth),
                           self.radius / math.sqrt(1.5 * releases * noise))
        raise ValueError(f"{method!r} has no step.")


@functools.cache
def _calibrated(n: int, releases: int, epsilon: float, clip: Saddle) -> jmm.Query:
    query = jmm.Query(clip=clip, joint=True, population=n)
    return jmm.accounting.calibrate_noise(jmm.Repeat(query=query, times=releases), epsilon,
                                          DELTA).query


def affine(modulus: float, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A of norm 1 and b, c for which the saddle point has both players at a distance of 0.6."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(d, d))
    a /= np.linalg.norm(a, 2)
    w, v = (0.6 * x / np.linalg.norm(x) for x in rng.normal(size=(2, d)))
    return a, -a @ v - modulus * w, a.T @ w - modulus * v


def _record(*arrays: np.ndarray) -> Any:
    """One record."""
    return tuple(jnp.asarray(x, jnp.float32)[None] for x in arrays)


def bilinear(d: int = 10, n: int = 2000) -> Game:
    """<w, A v> + <b, w> - <c, v> on unit balls, ||A|| = 1; a player's operator is at most 2."""
    a, b, c = affine(0.0, d)
    made = problems.bounded_bilinear(coupling=float(np.linalg.norm(a)) * 1.001, offset=1.0,
                                     radius=Saddle(1.0, 1.0))
    data, clip = _record(a, b, c), 2 * math.sqrt(2)
    return Game("bilinear, balls", n, Saddle(d, d), made.problem, _zeros(d), data, clip, 1.0,
                math.sqrt(2), clip, lambda z: metrics.strong_gap(made.problem, z, data))


def quadratic(d: int = 10, n: int = 2000, modulus: float = 0.2) -> Game:
    """The same with (mu/2)(||w||^2 - ||v||^2), public terms; exact best responses."""
    a, b, c = affine(modulus, d)
    made = problems.bounded_bilinear(coupling=float(np.linalg.norm(a)) * 1.001, offset=1.0,
                                     radius=Saddle(1.0, 1.0))
    ball = problems.ball(1.0)

    def value(z: Saddle, data: Any) -> jax.Array:
        assert made.problem.value is not None
        return made.problem.value(z, data) + modulus / 2 * (z.w @ z.w - z.v @ z.v)

    def best_w(v: jax.Array, data: Any) -> jax.Array:
        return ball.project(-(jnp.mean(data[0], 0) @ v + jnp.mean(data[1], 0)) / modulus)

    def best_v(w: jax.Array, data: Any) -> jax.Array:
        return ball.project((w @ jnp.mean(data[0], 0) - jnp.mean(data[2], 0)) / modulus)

    problem = made.problem._replace(
        public=lambda z: jax.tree.map(lambda x: modulus * x, z), value=value,
        best_response=Saddle(best_w, best_v))
    data, clip = _record(a, b, c), 2 * math.sqrt(2)
    return Game("quadratic", n, Saddle(d, d), problem, _zeros(d), data, clip, 1 + modulus,
                math.sqrt(2), clip, lambda z: metrics.strong_gap(problem, z, data))


def matrix(d: int = 20, n: int = 20_000, entropic: bool = False, planted: bool = False) -> Game:
    """w^T A v on simplices, payoffs in [-1, 1]: random ones, or an equilibrium of few strategies.

    Planted: each player has 5 good strategies, worth 0.5 more against all but the other's 5.
    """
    rng = np.random.default_rng(0)
    a = np.clip(rng.normal(size=(d, d)) * 0.5, -1, 1)
    if planted:
        a = np.clip(rng.normal(size=(d, d)) * 0.2, -0.5, 0.5)
        a[:5, 5:] -= 0.5
        a[5:, :5] += 0.5
    made = problems.matrix_game(entry_bound=1.0, shape=(d, d))
    data = jnp.asarray(a, jnp.float32)[None]
    start = Saddle(*(jnp.full(d, 1 / d, jnp.float32),) * 2)
    name = f"matrix {d} x {d}" + ", planted" * planted
    entropy = dict(smooth=float(np.abs(a).max()), radius=math.sqrt(4 * math.log(d)),
                   size=math.sqrt(2), geometry=ENTROPIC)
    euclidean = dict(smooth=float(np.linalg.norm(a, 2)), radius=math.sqrt(2),
                     size=math.sqrt(2 * d), geometry=EUCLIDEAN)
    return Game(name, n, Saddle(d, d), made.problem, start, data, made.bound,
                gap=lambda z: metrics.strong_gap(made.problem, z, data),
                **(entropy if entropic else euclidean))  # type: ignore[arg-type]


def cournot(k: int = 8, n: int = 1000) -> Game:
    """Eight firms, capacities 1, beta = 0.3; the clip of 1.5 binds away from the equilibrium."""
    cost = np.random.default_rng(0).uniform(0.1, 0.5, k)
    made = problems.cournot(cost=cost, slope=np.zeros(k), capacity=np.ones(k), price=1.5,
                            sensitivity=0.3)
    data = (jnp.ones(1, jnp.float32), jnp.full(1, 0.3, jnp.float32))
    start = Saddle(jnp.full(k, 0.5, jnp.float32), ())
    return Game("Cournot", n, Saddle(k, 0), made.problem, start, data, 1.5, 0.3 * (k + 1),
                math.sqrt(k) / 2, 1.5, lambda z: metrics.vi_gap(made.problem, z, data))


def robust(d: int = 10, n: int = 2000, rows: int = 50) -> Game:
    """Least squares against a common shift of the features; 50 distinct records."""
    made = demo_games.robust_regression(feature_bound=1.0, label_bound=1.0,
                                        radius=Saddle(1.0, 0.5), penalty=1.0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    w = rng.normal(size=d)
    y = x @ (0.8 * w / np.linalg.norm(w)) + 0.1 * rng.normal(size=rows)
    data = (jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))
    return Game("robust regression", n, Saddle(d, d), made.problem, _zeros(d), data, made.bound,
                made.smooth, math.hypot(1.0, 0.5), made.bound,
                lambda z: metrics.strong_gap(made.problem, z, data))


def _zeros(d: int) -> Saddle:
    return Saddle(*(jnp.zeros(d, jnp.float32),) * 2)


# Gaps of simulations of the same law made without this library: bilinear, quadratic, matrix and
# Cournot games, 48 seeds, steps from theory, equal weights, 30, 100, 300, 1000, 3000 releases.
# Their entropic steps had ln d in place of ln 2 d, so these are not compared.
ELSEWHERE: dict[tuple[str, float, str], tuple[float, ...]] = {
    ("bilinear, balls", 1.0, "sgda"): (0.373, 0.207, 0.124, 0.087, 0.076),
    ("bilinear, balls", 1.0, "optimistic"): (0.079, 0.084, 0.088, 0.088, 0.086),
    ("bilinear, balls", 1.0, "extragradient"): (0.110, 0.111, 0.120, 0.123, 0.123),
    ("bilinear, balls", 8.0, "sgda"): (0.366, 0.194, 0.110, 0.061, 0.031),
    ("bilinear, balls", 8.0, "optimistic"): (0.046, 0.016, 0.012, 0.013, 0.013),
    ("bilinear, balls", 8.0, "extragradient"): (0.080, 0.024, 0.015, 0.016, 0.017),
    ("quadratic", 1.0, "sgda"): (0.246, 0.084, 0.032, 0.016, 0.011),
    ("quadratic", 1.0, "optimistic"): (0.020, 0.017, 0.017, 0.016, 0.016),
    ("quadratic", 1.0, "extragradient"): (0.041, 0.027, 0.028, 0.027, 0.028),
    ("matrix 20 x 20", 1.0, "sgda"): (0.192, 0.074, 0.055, 0.034, 0.023),
    ("matrix 20 x 20", 1.0, "optimistic"): (0.043, 0.019, 0.015, 0.015, 0.015),
    ("matrix 20 x 20", 1.0, "extragradient"): (0.073, 0.030, 0.016, 0.017, 0.020),
    ("Cournot", 1.0, "sgda"): (0.032, 0.017, 0.011, 0.009, 0.009),
    ("Cournot", 1.0, "optimistic"): (0.034, 0.014, 0.012, 0.011, 0.011),
    ("Cournot", 1.0, "extragradient"): (0.048, 0.015, 0.013, 0.013, 0.014),
}
