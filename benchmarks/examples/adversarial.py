"""Robust accuracy of private classifiers, trained against moved features and plainly."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.data_sets import data
from benchmarks.examples import demo_adversarial, runs
from benchmarks.examples.runs import Outcome, Task, Trained
from jaxminimax import Query, Saddle
from jaxminimax.base import checks

DATASETS = ("fragile", "mnist", "fashion_mnist", "adult", "ijcnn1")
EPSILONS, QUICK, SEEDS = (0.1, 0.3, 1.0, 3.0), (1.0,), 3
# by data set: the adversary's radius r, R, step, clip norm
_SETTINGS = {"fragile": (0.5, 20.0, 4.0, 1.0), "mnist": (0.5, 10.0, 0.1, 3.0),
             "fashion_mnist": (0.5, 10.0, 0.1, 3.0), "adult": (0.5, 10.0, 0.3, 2.0),
             "ijcnn1": (0.2, 10.0, 0.3, 2.0)}


def fragile_classes(key: jax.Array, count: int, *, dim: int = 10
                    ) -> tuple[jax.Array, jax.Array]:
    """Two classes with one feature that is hard to move and others that are easy to read.

    x_0 = y + 0.7 N(0, 1) and x_j = 0.15 y + 0.05 N(0, 1) for the rest: each of the rest tells the
    classes apart almost surely, and a shift of norm 0.3 (dim - 1)^(1/2) turns all of them round.

    Returns:
      x `[count, dim]` and y `[count]` in {-1, 1}.
    """
    checks.count("count", count)
    checks.count("dim", dim, low=2)
    one, two = jax.random.split(key)
    y = 2.0 * jax.random.bernoulli(one, 0.5, (count,)) - 1.0
    centre = jnp.full(dim, 0.15).at[0].set(1.0)
    size = jnp.full(dim, 0.05).at[0].set(0.7)
    return y[:, None] * centre[None] + size[None] * jax.random.normal(two, (count, dim)), y


def load(args: Any) -> tuple[Any, Any, str, tuple[str, ...]]:
    """Training and test pairs (x, y in {-1, 1}), the unit of privacy, and what is public."""
    if args.dataset == "fragile":
        training, test = (fragile_classes(jax.random.key(i), n) for i, n in
                          enumerate((4_000 if args.quick else 20_000, 10_000)))
        return training, test, "one record (features, class)", ()
    result = data.load(args.dataset, data_dir=args.data_dir)
    train_rows = slice(4_000 if args.quick else None)
    return ((result.x_train[train_rows], 2 * result.y_train[train_rows] - 1),
            (result.x_test, 2 * result.y_test - 1), result.unit, result.public)


def tasks(args: Any, pairs: Any, unit: str, public: tuple[str, ...]) -> list[Task]:
    """Training against shifts, and plain training: the same problem with r = 0."""
    r, reach, step, clip = _SETTINGS[args.dataset]
    n, dim = pairs[0].shape
    query = Query(clip=Saddle(clip, None), population=n, sampling=jmm.Poisson(rate=0.02))
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(step, 0.0), averaging=jmm.averaging.TAIL,
                           iterations=150 if args.quick else 1000)
    return [Task(name, demo_adversarial.adversarial(radius=Saddle(reach, radius),
                                                    dual="best_response"),
                 demo_adversarial.linear_start(dim), pairs, hyper, unit, public)
            for name, radius in (("robust", r), ("plain", 0.0))]


def run(args: Any) -> Outcome:
    """Trains both at every epsilon; every test record against its own worst shift."""
    pairs, test, unit, public = load(args)
    r = _SETTINGS[args.dataset][0]
    result = [one for task in tasks(args, pairs, unit, public)
              for one in runs.train(task, args.epsilon, args.delta, args.seeds)]
    test = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), test)
    radii = np.linspace(0, 2 * r, 21)
    measure = jax.jit(jax.vmap(jax.vmap(demo_adversarial.robust_accuracy, (None, None, 0)),
                               (0, None, None)))
    curves = [np.asarray(measure(one.average.w, test, jnp.asarray(radii, jnp.float32)))
              for one in result]
    rows = [runs.row(one, args.delta, accuracy=c[:, 0], robust_accuracy=c[:, 10])
            for one, c in zip(result, curves, strict=True)]
    title = (f"{args.dataset}: {len(pairs[1])} training records; robust accuracy: on test records "
             f"moved by at most {r:g}")
    return Outcome(title, rows, ("accuracy", "robust_accuracy"),
                   [one.statement for one in result if one.statement],
                   lambda figure: draw(figure, args, rows, result, radii, curves))


def draw(figure: Any, args: Any, rows: list[dict[str, Any]], found: list[Trained],
         radii: np.ndarray, curves: list[np.ndarray]) -> None:
    """Robust accuracy against the radius at one epsilon, and against epsilon at one radius."""
    near = min((x.epsilon for x in found if x.epsilon < math.inf), key=lambda e: abs(math.log(e)))
    figure.set_size_inches(9, 3.6)
    left, right = figure.subplots(1, 2, sharey=True)
    for i, name in enumerate(dict.fromkeys(r["method"] for r in rows)):
        for one, curve in zip(found, curves, strict=True):
            if one.task.name == name and one.epsilon in (near, math.inf):
                left.plot(radii, curve.mean(0), "-" if one.epsilon == near else "--",
                          color=f"C{i}", label=f"{name}, {runs.epsilon_label(one.epsilon)}")
                if one.epsilon == near:
                    left.fill_between(radii, curve.min(0), curve.max(0), color=f"C{i}", alpha=0.2)
        runs.against_epsilon(right, [r for r in rows if r["method"] == name], "robust_accuracy",
                        f"C{i}", name)
    left.axvline(radii[10], color="0.6", linestyle=":")
    left.set(xlabel="norm of the worst shift [feature units]", ylabel="accuracy on test records",
             title=f"{args.dataset}, delta = {args.delta:g}, replace-one")
    right.set(title=f"at norm {radii[10]:g}; broken: without noise")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
