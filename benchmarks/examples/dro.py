"""Regression with a minority that answers otherwise: the average model beside robust ones."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.examples import runs
from benchmarks.examples.runs import Outcome, Task, Trained
from jaxminimax import Query, Saddle
from jaxminimax.base import checks

DATASETS = ("populations",)
EPSILONS, QUICK, SEEDS = (0.1, 0.3, 1.0, 3.0), (1.0,), 5
_DIM, _MINORITY, _LEVEL = 5, 0.1, 0.1
_UNIT = "one record (features, answer, population)"


def two_populations(key: jax.Array, count: int, *, dim: int = 5, minority: float = 0.1,
                    noise: float = 0.1) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Regression records of two populations whose answers to the same features differ.

    x is uniform on the unit sphere, y = <theta_g, x> + noise with orthogonal theta_0 and theta_1 of
    norm 1.

    Returns:
      Populations g `[n]`, 1 with probability `minority`, and pairs (x `[n, dim]`, y `[n]`).
    """
    checks.count("count", count)
    checks.count("dim", dim, low=2)
    checks.number("minority", minority, low=0.0, high=1.0)
    checks.number("noise", noise, low=0.0, closed=True)
    keys = jax.random.split(key, 3)
    g = jax.random.bernoulli(keys[0], minority, (count,)).astype(jnp.int32)
    x = jax.random.normal(keys[1], (count, dim))
    x = x / jnp.linalg.norm(x, axis=1, keepdims=True)
    y = jnp.take_along_axis(x[:, :2], g[:, None], 1)[:, 0]
    return g, (x, y + noise * jax.random.normal(keys[2], (count,)))


def tasks(records: int, rounds: int, data: Any) -> list[Task]:
    """The average model, the worst share of records, and the worst of the two populations."""
    g, pairs = data
    loss = jmm.problems.squared_loss
    common: dict[str, Any] = dict(population=records, sampling=jmm.Poisson(rate=0.05))
    theta = jnp.zeros(_DIM)
    how: dict[str, Any] = dict(iterations=rounds, averaging=jmm.averaging.TAIL)
    one = jmm.problems.worst_mixture(loss, shares=np.ones(1), radius=2.0)  # of one: the average
    cvar: dict[str, Any] = dict(divergence="cvar", level=_LEVEL)
    return [
        Task("average", one, Saddle(theta, jnp.ones(1)), (jnp.zeros_like(g), pairs),
             jmm.sgda.Hyper(query=Query(clip=Saddle(1.0, None), **common),
                            step=Saddle(0.5, 0.0), **how), _UNIT),
        Task("worst tenth", jmm.problems.reweighted(loss, **cvar, radius=2.0, bound=1.0),
             jmm.problems.reweighted_start(theta, "cvar", eta=0.1), pairs,
             jmm.sgda.Hyper(query=Query(clip=Saddle(1.1 / _LEVEL, None), **common),
                            step=Saddle(0.02, 0.0), **how), _UNIT),
        Task("worst population", jmm.problems.worst_mixture(
            loss, shares=np.array([1 - _MINORITY, _MINORITY]), radius=2.0),
             Saddle(theta, jnp.full(2, 0.5)), data,
             jmm.sgda.Hyper(query=Query(clip=Saddle(2.0, 2.0), **common,
                                        noise_multiplier=jmm.mechanism.budget_split(w=0.6)),
                            step=Saddle(0.2, 0.2), **how), _UNIT,
             ("The minority's share is known to be a tenth.",)),
    ]


def losses(theta: Any, pairs: Any) -> np.ndarray:
    """Squared errors of fresh records `[seeds, n]`."""
    x, y = (np.asarray(a, np.float64) for a in pairs)
    return (np.asarray(theta) @ x.T - y) ** 2 / 2


def run(args: Any) -> Outcome:
    """Trains every model at every epsilon, and looks at the losses of fresh records."""
    records = 5_000 if args.quick else 20_000
    data = two_populations(jax.random.key(0), records, dim=_DIM, minority=_MINORITY)
    g, test = two_populations(jax.random.key(1), 20_000, dim=_DIM, minority=_MINORITY)
    result = [one for task in tasks(records, 150 if args.quick else 1000, data)
              for one in runs.train(task, args.epsilon, args.delta, args.seeds)]
    rows, seen = [], []
    for one in result:
        w = one.average.w
        each = losses(w["theta"] if isinstance(w, dict) else w, test)
        seen.append(each)
        tail = [float(jmm.problems.reweighted_risk(jnp.asarray(x), divergence="cvar",
                                                   level=_LEVEL)) for x in each]
        rows.append(runs.row(one, args.delta, mean=each.mean(1), worst_tenth=tail,
                        minority=each[:, np.asarray(g) == 1].mean(1)))
    title = (f"{records} records of two populations, a tenth in the smaller; squared error / 2 on "
             "fresh records")
    return Outcome(title, rows, ("mean", "worst_tenth", "minority"),
                   [one.statement for one in result if one.statement],
                   lambda figure: draw(figure, rows, result, seen, args.delta))


def draw(figure: Any, rows: list[dict[str, Any]], found: list[Trained], seen: list[np.ndarray],
         delta: float) -> None:
    """The tail of the losses at one epsilon, and the minority's loss against epsilon."""
    near = min((x.epsilon for x in found if x.epsilon < math.inf), key=lambda e: abs(math.log(e)))
    figure.set_size_inches(9, 3.6)
    left, right = figure.subplots(1, 2)
    levels = np.linspace(0, 0.995, 200)
    for i, name in enumerate(dict.fromkeys(r["method"] for r in rows)):
        for one, each in zip(found, seen, strict=True):
            if one.task.name == name and one.epsilon == near:
                curves = np.quantile(each, levels, axis=1)
                left.plot(levels, curves.mean(1), color=f"C{i}", label=name)
                left.fill_between(levels, curves.min(1), curves.max(1), color=f"C{i}", alpha=0.2)
        runs.against_epsilon(right, [r for r in rows if r["method"] == name], "minority",
                             f"C{i}", name)
    left.set(xlabel="share of fresh records", ylabel="loss at most (squared error / 2)",
             yscale="log", ylim=(1e-4, None),
             title=f"{runs.epsilon_label(near)}, delta = {delta:g}, replace-one; band: runs")
    right.set(ylabel="mean loss of the minority", ylim=(0, None),
              title="mean, standard deviation; broken: without noise")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
