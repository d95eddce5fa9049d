"""AUC maximisation in one pass: Poisson samples, disjoint batches, and correlated noise.

DP-SGDA on ijcnn1 with a linear scorer and batches of 100, in another order of the rows for every
seed. Correlated noise has as many bands on disjoint batches as on Poisson samples of parts that
take turns (`CyclicPoisson`). Steps are the best of five for each row, by the held-out AUC itself
and unpaid ("oracle").
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.accuracy.auc import __main__ as auc
from benchmarks.accuracy.auc import runs as auc_runs
from benchmarks.common import evaluations, report
from benchmarks.rates import cases as rate_cases
from jaxminimax import Disjoint, Poisson, Saddle
from jaxminimax.mechanism import CyclicPoisson

BATCH, BANDS, CLIP, SEEDS = 100, 32, 18.0, 20
STEPS = (0.003, 0.01, 0.03, 0.1, 0.25)


def queries(n: int) -> dict[str, jmm.Query]:
    """The releases by name, not calibrated."""
    disjoint = jmm.Query(clip=Saddle(CLIP, None), population=n, sampling=Disjoint(batch=BATCH))
    return {"Poisson": dataclasses.replace(disjoint, sampling=Poisson(rate=BATCH / n)),
            f"Poisson, {BANDS} parts in turn": dataclasses.replace(
                disjoint, bands=BANDS,
                sampling=CyclicPoisson(rate=min(1.0, BATCH * BANDS / n), parts=BANDS)),
            "disjoint": disjoint,
            f"disjoint, {BANDS} bands": dataclasses.replace(disjoint, bands=BANDS)}


def _scorers(key: jax.Array, data: Any, start: Saddle, lanes: Any,
             problem: jmm.Problem) -> jax.Array:
    """Scorers of one seed, `[lanes, d]`; all lanes have its order, samples and draws."""
    order, run = jax.random.split(key)
    mixed = jax.tree.map(lambda x: jax.random.permutation(order, x), data)
    count = len(jax.tree.leaves(lanes)[0])
    return jax.vmap(lambda run, hyper: jmm.run(run, start, mixed, hyper, jmm.sgda, problem)[
        0].average.w["theta"])(jnp.broadcast_to(run, count), lanes)


@functools.partial(jax.jit, static_argnames="problem")
def _all_scorers(keys: jax.Array, data: Any, start: Saddle, lanes: Any,
                 problem: jmm.Problem) -> jax.Array:
    return jax.lax.map(lambda key: _scorers(key, data, start, lanes, problem), keys)


def rows(epsilons: Sequence[float], data_dir: str | None, seeds: int = SEEDS
         ) -> list[dict[str, Any]]:
    """A row for each epsilon and kind of release."""
    given = ["--dataset", "ijcnn1", *(("--data-dir", data_dir) if data_dir else ())]
    one = auc.load(auc.parser().parse_args(given), 0)
    n, delta = len(one.y_train), rate_cases.DELTA
    problem = auc_runs.problem("linear", one.prior, 10.0, "best_response")
    start = jmm.problems.auc_start(jnp.zeros(one.x_train.shape[1], jnp.float32))
    train = jnp.asarray(one.x_train), jnp.asarray(one.y_train)
    keys = jax.random.split(jax.random.key(9), seeds)
    made = []
    for name, query in queries(n).items():
        plain = jmm.sgda.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=n // BATCH,
                               averaging=jmm.averaging.Averaging(skip=1 / 3))
        hypers = [jmm.calibrate(jmm.sgda, plain, e, delta) for e in epsilons]
        lanes = jmm.stack([dataclasses.replace(h, step=Saddle(x, x)) for h in hypers
                           for x in STEPS])
        result = np.asarray(_all_scorers(keys, train, start, lanes, problem))
        scores = np.array([[jmm.metrics.auc(one.x_test @ theta, one.y_test) for theta in of_seed]
                           for of_seed in result]).reshape(seeds, len(epsilons), len(STEPS))
        single = jax.tree.map(lambda x: x[:1], lanes)
        count = evaluations.count(functools.partial(
            _scorers, start=start, lanes=single, problem=evaluations.marked(problem)), keys[0],
            train)
        for i, (epsilon, hyper) in enumerate(zip(epsilons, hypers, strict=True)):
            best = int(np.argmax(scores[:, i].mean(0)))
            mine = scores[:, i, best]
            described = jmm.sgda.mechanism(hyper)
            made.append({
                "problem": f"AUC, ijcnn1, n = {n}", "algorithm": f"sgda, one pass, {name}, oracle",
                "measure": "AUC", "epsilon": jmm.epsilon(described, delta), "delta": delta,
                "target_epsilon": epsilon, "value": float(mine.mean()),
                "error": float(mine.std(ddof=1) / seeds**0.5) if seeds > 1 else 0.0,
                "releases": jmm.mechanism.releases(described), "evaluations": count,
                "seeds": seeds, "step": STEPS[best],
                "statement": report.stated(jmm.statement(jmm.sgda, hyper, delta=delta))})
    return made
