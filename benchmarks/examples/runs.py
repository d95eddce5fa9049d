"""What the examples share: a task, its private runs at several budgets, and their statements."""

import argparse
import dataclasses
import math
import os
import pathlib
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.common import report
from jaxminimax import Saddle

ASSUMED = (
    "Keys follow from the seeds so that results can be repeated; a real run needs a secret key.",
    "Clip norms, steps and sizes were chosen on these data or their kin without paying for it.",
    "Measures and runs without privacy read the data without privacy, and pictures show records.",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A problem with data and settings, before privacy.

    Attributes:
      name: of the method.
      problem: the problem.
      start: the initial point, not from the data.
      data: leaves `[n, ...]`.
      hyper: of `jmm.sgda`, not calibrated.
      unit: what one record is.
      public: what else is taken as public, one sentence each.
    """

    name: str
    problem: jmm.Problem
    start: Saddle
    data: Any
    hyper: jmm.sgda.Hyper
    unit: str
    public: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Trained:
    """All runs of a task at one budget.

    Attributes:
      task: the task.
      epsilon: of the budget; infinity: the same run without noise.
      average: the averaged iterates, leaves `[seeds, ...]`.
      seconds: of all budgets together, compilation too.
      statement: of one run; None without privacy.
    """

    task: Task
    epsilon: float
    average: Saddle
    seconds: float
    statement: jmm.accounting.Statement | None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an example shows.

    Attributes:
      title: what was run, in a line.
      rows: the results, flat.
      columns: the names of the measures among them.
      statements: privacy statements.
      draw: `figure ->` draws the picture on a matplotlib figure.
    """

    title: str
    rows: list[dict[str, Any]]
    columns: tuple[str, ...]
    statements: list[jmm.accounting.Statement]
    draw: Callable[[Any], None]


def train(task: Task, epsilons: Sequence[float], delta: float, seeds: int) -> list[Trained]:
    """Runs a task at every epsilon, and last without noise, as one compiled program.

    Raises:
      ValueError: for a target that no noise reaches, or a run that diverged.
    """
    silent = Saddle(*(None if clip is None else 0.0 for clip in task.hyper.query.clip))
    hypers = [jmm.calibrate(jmm.sgda, task.hyper, epsilon, delta) for epsilon in epsilons]
    hypers.append(dataclasses.replace(task.hyper, query=dataclasses.replace(
        task.hyper.query, noise_multiplier=silent)))
    stacked = jmm.stack([jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), h)
                         for h in hypers for _ in range(seeds)])
    # a key for every run: the difference of two runs with the same noise would give data away
    root = jax.random.key(zlib.crc32(task.name.encode()))
    keys = jnp.concatenate([jax.random.split(
        jax.random.fold_in(root, np.float32(e).view(np.uint32)), seeds)
        for e in (*epsilons, math.inf)])
    rows, start = jax.tree.map(_float32, (task.data, task.start))

    @jax.jit
    def runs(keys: jax.Array, hypers: Any, start: Saddle, rows: Any) -> Any:
        # one after the other: compiles sooner than jmm.sweep, and is as fast on few cores
        return jax.lax.map(lambda x: jmm.run(x[0], start, rows, x[1], jmm.sgda, task.problem)[0],
                           (keys, hypers))

    clock = time.perf_counter()
    states = jax.block_until_ready(runs(keys, stacked, start, rows))
    seconds = time.perf_counter() - clock
    states = jax.tree.map(lambda x: x.reshape(len(hypers), seeds, *x.shape[1:]), states)
    result = []
    for i, (epsilon, hyper) in enumerate(zip((*epsilons, math.inf), hypers, strict=True)):
        average = jax.tree.map(lambda x, i=i: x[i], states.average)
        if not all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(average)):
            raise ValueError(f"{task.name} at epsilon {epsilon:g} diverged, or its sample did not "
                             "fit")
        statement = None if epsilon == math.inf else jmm.statement(
            jmm.sgda, hyper, jax.tree.map(lambda x, i=i: x[i, 0], states), delta=delta,
            unit=task.unit, assumed=(*task.public, *ASSUMED))
        result.append(Trained(task, epsilon, average, seconds, statement))
    return result


def _float32(x: Any) -> jax.Array:
    x = jnp.asarray(x)
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x


def row(found: Trained, delta: float, **measures: Sequence[float] | np.ndarray) -> dict[str, Any]:
    """One line of the results: mean and standard error over the seeds of each measure."""
    private = found.epsilon < math.inf
    line: dict[str, Any] = {"method": found.task.name,
                            "epsilon": found.epsilon if private else None,
                            "delta": delta if private else None}
    for name, measured in measures.items():
        values = np.asarray(measured, np.float64)
        line[name] = float(values.mean())
        line[f"{name}_se"] = (
            float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0)
    return {**line, "runs": len(values), "iterations": found.task.hyper.iterations,
            "records": found.task.hyper.query.population, "seconds": found.seconds}


def against_epsilon(axes: Any, rows: list[dict[str, Any]], name: str, color: str,
                    label: str) -> None:
    """A measure against epsilon with its standard error, and without noise as a broken line."""
    private = sorted((r for r in rows if r["epsilon"] is not None), key=lambda r: r["epsilon"])
    epsilons = [r["epsilon"] for r in private]
    axes.errorbar(epsilons, [r[name] for r in private], [r[f"{name}_se"] for r in private],
                  marker="o", capsize=3, color=color, label=label)
    for r in rows:
        if r["epsilon"] is None:
            axes.axhline(r[name], linestyle="--", color=color, linewidth=1)
    axes.set(xscale="log", xlabel="epsilon")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def epsilon_label(epsilon: float) -> str:
    """How a budget is called in a title."""
    return "without noise" if epsilon == math.inf else f"epsilon = {epsilon:g}"


def folder(text: str) -> pathlib.Path:
    """An argparse type: a folder that is there."""
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"got {text!r}, no such folder; check the path")
    return pathlib.Path(text)


def show(outcome: Outcome) -> str:
    """The table and the statements."""
    columns = outcome.columns
    lines = [(r["method"], "none" if r["epsilon"] is None else f"{r['epsilon']:g}",
              *(x for c in columns for x in (f"{r[c]:.4f}", f"{r[f'{c}_se']:.4f}")))
             for r in outcome.rows]
    header = ("method", "epsilon", *(x for c in columns for x in (c.replace("_", " "), "+-")))
    statements = report.paragraphs([str(s) for s in outcome.statements])
    return f"{outcome.title}\n\n{report.table(header, lines)}\n\n{statements}"
