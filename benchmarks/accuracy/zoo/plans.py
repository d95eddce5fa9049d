"""What `jmm.plan(jmm.optimistic, ...)` gives on the games of `benchmarks.accuracy.zoo`.

300 releases; "monotone" has weights t, "bilinear" equal ones, "strongly_monotone" a step that falls
linearly to 0 and the last iterate; kappa is the factor of the noise-limited step.
"""

import dataclasses
import itertools
import math
from typing import Any

import jax
import numpy as np

import jaxminimax as jmm
from benchmarks.accuracy.zoo.games import DELTA, EPSILONS, Game
from jaxminimax import optimistic
from jaxminimax.algorithms.descent import EUCLIDEAN

KAPPAS = (0.5, 1.0, 2.0)


def planned(game: Game, kind: str, epsilon: float, kappa: float, releases: int) -> Any:
    """The plan's settings, with the noise of n on the distinct records."""
    euclidean = game.geometry == EUCLIDEAN
    numbers: dict[str, Any] = (
        dict(dim=game.d, smooth=game.smooth, diameter=2 * game.radius, radius=game.radius)
        if euclidean else dict(dim=game.dim, smooth_l1=game.smooth, geometry=game.geometry))
    hyper = jmm.plan(optimistic, epsilon=epsilon, delta=DELTA, population=game.n, bound=game.clip,
                     game=kind, kappa=kappa, iterations=releases, **numbers).hyper
    return dataclasses.replace(hyper, query=dataclasses.replace(game.copied(hyper.query),
                                                                exact=False))


def rows_of(game: Game, kinds: tuple[str, ...], seeds: int,
            releases: int = 300) -> list[dict[str, Any]]:
    """A row for each epsilon, kind and kappa; the kinds' schedules must be alike."""
    chosen = list(itertools.product(EPSILONS, kinds, KAPPAS))
    hypers = [planned(game, kind, epsilon, kappa, releases) for epsilon, kind, kappa in chosen]
    keys = jax.random.split(jax.random.key(11), (len(hypers), seeds))
    program = jax.jit(lambda keys, hypers: jax.vmap(jax.vmap(game.gap))(jmm.sweep(
        keys, game.start, game.data, hypers, optimistic, game.problem)[0].average))
    result = np.asarray(program(keys, jmm.stack(hypers)))
    return [{"game": game.name, "geometry": game.geometry.w, "n": game.n, "d": game.d,
             "epsilon": epsilon, "method": "optimistic", "plan": kind, "kappa": kappa,
             "releases": releases, "gap": round(float(x.mean()), 6),
             "se": round(float(x.std(ddof=1)) / math.sqrt(seeds), 6), "seeds": seeds}
            for (epsilon, kind, kappa), x in zip(chosen, result, strict=True)]
