"""Variance reduction on AUC maximisation by an MLP, an ablation; see `variance`."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.metrics import roc_auc_score

import jaxminimax as jmm
from benchmarks.accuracy.auc import runs as auc_runs
from benchmarks.common import report, settings
from benchmarks.data_sets import data
from benchmarks.examples.methods import spider
from benchmarks.examples.methods.windows import Difference, Windows
from jaxminimax import Saddle, sgda

DELTA = 1e-6


def windows(rounds: int, n: int, bound: float, lipschitz: float, length: int, share: float,
            sampling: Any = jmm.Full()) -> Windows:  # noqa: B008
    """Releases of `spider` at ratios of noise that give anchors a share of the budget."""
    opens = -(-rounds // length)
    ratio = (opens / share) ** 0.5, max(rounds - opens, 1) ** 0.5 * (1 - share) ** -0.5
    shared: Any = dict(population=n, sampling=sampling, exact=False)
    anchor = jmm.Query(clip=Saddle(bound, bound), joint=True,
                       noise_multiplier=Saddle(ratio[0], ratio[0]), **shared)
    difference = Difference(lipschitz=lipschitz, noise_multiplier=ratio[1], **shared)
    return Windows(anchor=anchor, difference=difference, length=length)


def ablation(seeds: range, keep: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
    """AUC on held-out rows of ijcnn1 at epsilon = 1: descent-ascent, and windows of 10 rounds.

    Args:
      seeds: of each setting.
      keep: what is done with all that is known after each setting.
    """
    full = data.load("ijcnn1")
    rows = tuple(jnp.asarray(x, jnp.float32) for x in (full.x_train, full.y_train))
    n, own = len(rows[1]), settings.Settings(clip=35.0, step=0.1, iterations=100, norm=3.0)
    task = auc_runs.problem("mlp", 0.1, 1000.0, "best_response")
    # v is b - a and reads no data
    both = task._replace(operator=lambda z, x: Saddle(task.operator(z, x).w, jnp.zeros_like(z.v)))
    poisson, cases = jmm.Poisson(rate=0.05), []
    for lipschitz, step in itertools.product((None, 6.0, 18.0), (0.08, 0.16, 0.32)):
        made: Any = jmm.Query(clip=Saddle(35.0, None), sampling=poisson, population=n,
                              exact=False)
        if lipschitz is not None:
            made = windows(100, n, 35.0, lipschitz, 10, 0.5, poisson)
        algorithm: Any = sgda if lipschitz is None else spider
        hyper = algorithm.Hyper(query=made, step=Saddle(step, 0.1), iterations=100,
                                averaging=jmm.averaging.TAIL)
        hyper = _once(algorithm, hyper, lipschitz)
        problem = task if lipschitz is None else both
        scores = []
        for seed in seeds:
            start = auc_runs.start("mlp", own, rows[0].shape[1], seed)
            w = _run(jax.random.key(seed), start, rows, hyper, algorithm, problem).w
            scores.append(roc_auc_score(full.y_test, jax.vmap(
                jmm.problems.mlp_scorer, (None, 0))(w["theta"], jnp.asarray(full.x_test))))
        cases.append(dict(algorithm="sgda" if lipschitz is None else "spider", step=step,
                          lipschitz=lipschitz, auc=float(np.mean(scores)), seeds=len(seeds),
                          error=float(np.std(scores, ddof=1) / math.sqrt(len(seeds))),
                          epsilon=jmm.epsilon(algorithm.mechanism(hyper), DELTA)))
        report.say(str(cases[-1]))
        keep(cases)
    return cases


_NOISE: dict[Any, Any] = {}


def _once(algorithm: Any, hyper: Any, lipschitz: float | None) -> Any:
    """Calibrated; no cost depends on the step or on L."""
    kind = algorithm.__name__
    if kind not in _NOISE:
        _NOISE[kind] = jmm.calibrate(algorithm, hyper, 1.0, DELTA).query
    query = _NOISE[kind]
    if lipschitz is not None:
        query = dataclasses.replace(query, difference=dataclasses.replace(
            query.difference, lipschitz=lipschitz))
    return dataclasses.replace(hyper, query=query)


@functools.partial(jax.jit, static_argnames=("algorithm", "problem"))
def _run(key: Any, start: Any, rows: Any, hyper: Any, algorithm: Any, problem: Any) -> Saddle:
    return jmm.run(key, start, rows, hyper, algorithm, problem)[0].average
