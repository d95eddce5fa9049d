"""Strongly convex-concave games: noisy solutions, once or in phases, beside noisy steps.

The quadratic game of `games` with records (b_i, c_i) of spread 0.5 a player around their means;
the gap is that on the population. "solution": the saddle point of all n records with Gaussian noise
for its sensitivity 2 L / (mu n). "phases", after Zhang, Thekumparampil, Oh and He, "Bring your own
algorithm for optimal differentially private stochastic minimax optimization", NeurIPS 2022: K
parts, part k solved around the last answer with the further modulus lambda 2^k; the best K and
lambda of a grid, unpaid. Solutions are exact here, in NumPy; nothing is released. Steps are those
of the library.
"""

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.accuracy.zoo import games
from benchmarks.accuracy.zoo.games import DELTA, Game
from jaxminimax import Saddle
from jaxminimax.algorithms.descent import WEIGHTED
from jaxminimax.drivers.runs import gaussian_ratio

MODULUS, SPREAD = 0.2, 0.5


def _ball(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))


def _solutions(game: Game, n: int, epsilon: float,
               seeds: int) -> dict[str, tuple[np.ndarray, str]]:
    """Gaps of one noisy solution, and of the best phases, with a word on the settings."""
    a, b, c = (np.asarray(x[0], np.float64) for x in game.data)
    k, d = len(b), 2 * len(b)
    matrix = np.block([[MODULUS * np.eye(k), a], [-a.T, MODULUS * np.eye(k)]])
    offset, rng = np.concatenate([b, c]), np.random.default_rng(0)
    ratio, gap = gaussian_ratio(epsilon, DELTA), jax.jit(jax.vmap(game.gap))

    def measured(z: np.ndarray) -> np.ndarray:
        z = np.concatenate([_ball(z[:, :k]), _ball(z[:, k:])], 1)
        return np.asarray(gap(Saddle(*(jnp.asarray(x, jnp.float32) for x in (z[:, :k], z[:, k:])))))

    def answer(m: int, centre: np.ndarray, more: float) -> np.ndarray:
        data = offset + SPREAD / math.sqrt(k) * rng.normal(size=(seeds, d)) / math.sqrt(m)
        z = np.linalg.solve(matrix + more * np.eye(d), (more * centre - data).T).T
        return z + 2 * game.clip * ratio / ((MODULUS + more) * m) * rng.normal(size=z.shape)

    start = np.zeros((seeds, d))
    result = {"solution": (measured(answer(n, start, 0.0)), "")}
    tried = []
    for parts, base in itertools.product((2, 3, 5, 8), (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)):
        z = start
        for i in range(parts):
            z = answer(n // parts, z, base * 2**i)
            z = np.concatenate([_ball(z[:, :k]), _ball(z[:, k:])], 1)
        tried.append((measured(z), f"{parts} parts, lambda {base:g}"))
    result["phases"] = min(tried, key=lambda x: float(x[0].mean()))
    return result


def _program(game: Game, algorithm: Any) -> Any:
    """Gaps of the library's runs, each on a sample of its own: one program for all noise."""
    a, b, c = game.data

    def one(key: jax.Array, hyper: Any, scale: jax.Array) -> jax.Array:
        own, sample = jax.random.split(key)
        x = scale * jax.random.normal(sample, (2, *b.shape))
        data = (a, b + x[0], c + x[1])
        return game.gap(jmm.run(own, game.start, data, hyper, algorithm, game.problem)[0].average)

    return jax.jit(jax.vmap(one, (0, None, None)))


def _hyper(game: Game, n: int, epsilon: float, method: str, releases: int) -> Any:
    query = game.query(epsilon, releases, n)
    step = game.step(method, query, releases)
    made: Any = getattr(jmm, method).Hyper(
        query=dataclasses.replace(game.copied(query), exact=False), step=Saddle(step, step),
        iterations=releases, averaging=WEIGHTED)
    return made


def rows(quick: bool, seeds: int) -> list[dict[str, Any]]:
    """A row for each method, n and epsilon."""
    game, made = games.quadratic(modulus=MODULUS), []
    steps = {"sgda": 100 if quick else 3000, "optimistic": 300}
    programs = {method: _program(game, getattr(jmm, method)) for method in steps}
    keys = jax.random.split(jax.random.key(1), seeds)
    for n, epsilon in ((2000, 1.0),) if quick else itertools.product((2000, 20_000, 200_000),
                                                                     games.EPSILONS):
        result = _solutions(game, n, epsilon, 200)
        for method, releases in steps.items():
            hyper = _hyper(game, n, epsilon, method, releases)
            gaps = programs[method](keys, hyper, SPREAD / math.sqrt(game.dim.w * n))
            result[method] = (np.asarray(gaps), f"{releases} releases, theory's step, weights t")
        made += [{"game": "quadratic, population", "n": n, "d": game.d, "epsilon": epsilon,
                  "method": method, "settings": how, "step": "oracle" if method == "phases" else
                  "theory", "gap": float(f"{x.mean():.4g}"),
                  "se": float(f"{x.std(ddof=1) / math.sqrt(len(x)):.2g}"), "seeds": len(x)}
                 for method, (x, how) in result.items()]
    return made
