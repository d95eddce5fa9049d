"""The experiment of each method: its problem, its data, and candidates of settings for all."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sklearn.metrics

import jaxminimax as jmm
from benchmarks.data_sets import data as data_sets
from benchmarks.data_sets import images
from benchmarks.examples.methods import bilevel, double_spider, spider, zeroth_order
from benchmarks.examples.methods.windows import Difference, Windows
from jaxminimax import Query, Saddle

P = jmm.problems
SOURCES, WRONG = 8, 4  # sources of training records, and those with labels at random
PENALTY, RIDGE = 5.0, 1e-2  # c of the bilevel problem, and the ridge of its lower level
LAM = 1.0  # of the distributionally robust objective


@dataclasses.dataclass(frozen=True, eq=False)
class Contest:
    """A method against `sgda` and `spider` on one problem.

    Attributes:
      title: the problem and its data.
      problem: for all of them.
      start: the initial point.
      rows: training records.
      candidates: by name, an algorithm and settings that differ in their steps, not calibrated.
      measures: `(point, held-out or test rows) -> numbers`; the first one chooses.
      held_out: rows that choose among the candidates, and are not trained on.
      test: rows that are reported.
      unit: what one record is.
    """

    title: str
    problem: jmm.Problem
    start: Saddle
    rows: Any
    candidates: dict[str, tuple[Any, list[Any]]]
    measures: Callable[[Any, Any], dict[str, float]]
    held_out: Any
    test: Any
    unit: str


def _windows(query: Query, lipschitz: float, length: int) -> Windows:
    """Anchors and differences that share a budget equally."""
    clip, ratio = query.clip.w, (length - 1) ** 0.5  # as many as there are, for each anchor
    return Windows(
        anchor=dataclasses.replace(query, clip=Saddle(clip, clip), joint=True,
                                   noise_multiplier=Saddle(1.0, 1.0)), length=length,
        difference=Difference(lipschitz=lipschitz, population=query.population,
                              sampling=query.sampling, parameters=query.parameters,
                              noise_multiplier=ratio))


def _plain(query: Query, rounds: int, steps: list[Saddle], lipschitz: float,
           ) -> dict[str, tuple[Any, list[Any]]]:
    """`sgda` and `spider`, with the same candidates of steps."""
    windows = _windows(query, lipschitz, 5)
    return {"sgda": (jmm.sgda, [jmm.sgda.Hyper(
                query=query, step=step, iterations=rounds, averaging=jmm.averaging.TAIL)
                for step in steps]),
            "spider": (spider, [spider.Hyper(
                query=windows, step=step, iterations=rounds, averaging=jmm.averaging.TAIL)
                for step in steps])}


def _steps(*sizes: float, ratio: float = 1.0) -> list[Saddle]:
    return [Saddle(size, ratio * size) for size in sizes]


def _cut(rows: Any, first: int, last: int | None) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x[first:last]), rows)


def auc(quick: bool, folder: Any) -> Contest:
    """AUC with a linear scorer: k ascent steps of v in a round."""
    known = data_sets.load("ijcnn1", data_dir=folder, split="file")
    count = 2000 if quick else len(known.y_train) * 4 // 5
    rounds, inner = (12 if quick else 240), 5
    dim = known.x_train.shape[1]
    sampling = jmm.Poisson(rate=0.1)
    query = Query(clip=Saddle(9.0, 3.0), population=count, sampling=sampling, parameters=dim + 3,
                  noise_multiplier=jmm.mechanism.budget_split(w=0.8))
    # each of the k releases for v costs little: together they take a fifth
    in_turn = dataclasses.replace(query, noise_multiplier=Saddle(1.0, (4.0 * inner) ** 0.5))
    steps = _steps(0.1, 0.3, 1.0, ratio=0.3)
    rows = known.x_train, known.y_train
    score = jax.jit(lambda theta, x: x @ theta)

    def measures(z: Saddle, rows: Any) -> dict[str, float]:
        return {"AUC": float(sklearn.metrics.roc_auc_score(
            np.asarray(rows[1]), np.asarray(score(z.w["theta"], rows[0]))))}

    return Contest(
        "AUC of a linear scorer, ijcnn1",
        P.auc(P.linear_scorer, prior=known.prior, radius=Saddle(20.0, 20.0)),
        P.auc_start(jnp.zeros(dim)), _cut(rows, 0, count),
        {f"sgda, turns=Saddle(1, {inner})": (jmm.sgda, [jmm.sgda.Hyper(
            query=in_turn, step=step, turns=Saddle(1, inner), averaging=jmm.averaging.TAIL,
            iterations=rounds // (inner + 1)) for step in _steps(0.3, 1.0, 3.0, ratio=0.1)]),
         **_plain(query, rounds, steps, 4.0)},
        measures, _cut(rows, -2000 if quick else count, None),
        _cut((known.x_test, known.y_test), 0, None), known.unit)


def _pictures(part: str, folder: Any) -> tuple[np.ndarray, np.ndarray]:
    """Fashion-MNIST at 14 by 14 pixels, of norm 1, and classes."""
    pixels, classes = images.labelled("fashion_mnist", part, folder)
    x = pixels.reshape(-1, 14, 2, 14, 2).mean((2, 4), dtype=np.float32).reshape(len(pixels), -1)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-6), classes


def _cross_entropy(weights: jax.Array, record: Any) -> jax.Array:
    x, y = record
    # features of norm 1 are scaled, so that weights of norm 1 tell classes apart
    return -jax.nn.log_softmax(10.0 * (x @ weights))[y]


def _accuracies(weights: jax.Array, rows: Any) -> dict[str, float]:
    classes = np.asarray(rows[1])
    right = np.argmax(np.asarray(rows[0]) @ np.asarray(weights), 1) == classes
    few = classes < 5
    return {"accuracy": float(right.mean()), "rare classes": float(right[few].mean())}


def imbalanced(quick: bool, folder: Any) -> Contest:
    """Classes 0 to 4 have 100 training images each; chi-square robust training."""
    x, y = _pictures("train", folder)
    mixed = np.random.default_rng(0).permutation(len(y))
    x, y = x[mixed], y[mixed]
    kept = [np.flatnonzero(y == k)[:100 if k < 5 else 300 if quick else 5000] for k in range(10)]
    # the rest of every class, equally many, chooses the settings
    left = np.concatenate([np.flatnonzero(y == k)[5000:5500] for k in range(10)])
    order = np.random.default_rng(1).permutation(np.concatenate(kept))
    rounds = 4 if quick else 200
    query = Query(clip=Saddle(15.0, None), population=len(order), sampling=jmm.Poisson(rate=0.05),
                  parameters=1961)

    def loss(w: Any, v: Any, record: Any) -> jax.Array:
        t = (_cross_entropy(w["x"], record) - w["eta"]) / LAM
        return LAM * (jnp.square(jnp.maximum(t + 2, 0)) / 4 - 1) + w["eta"]

    threshold = _windows(dataclasses.replace(query, clip=Saddle(1.0, None)), 1.0, 5)
    steps = [0.05, 0.15, 0.5]
    return Contest(
        "chi-square robust training, imbalanced Fashion-MNIST", jmm.Problem(
            jmm.saddle_operator(loss)),
        Saddle({"x": jnp.zeros((196, 10)), "eta": jnp.zeros(())}, ()), _cut((x[order], y[order]),
                                                                           0, None),
        {"double spider": (double_spider, [double_spider.Hyper(
            query=_windows(query, 20.0, 5), threshold=threshold, step=step, step_threshold=0.5,
            length=1.0, iterations=rounds // 2) for step in (2 * np.array(steps)).tolist()]),
         **_plain(query, rounds, _steps(*steps), 20.0)},
        lambda z, rows: _accuracies(z.w["x"], rows), _cut((x[left], y[left]), 0, None),
        _cut(_pictures("t10k", folder), 0, None), "one image")


def _logistic(y: jax.Array, record: Any) -> jax.Array:
    x, label = record
    return jax.nn.softplus(-(2 * label - 1) * (x @ y))


def sources(quick: bool, folder: Any) -> Contest:
    """Weights of sources of training records, some with labels at random, by clean records."""
    known = data_sets.load("adult", data_dir=folder, split="file")
    count = 2000 if quick else len(known.y_train) - 4000
    draw = np.random.default_rng(0)
    source = draw.integers(0, SOURCES + 2, count)  # the last two numbers: clean, of f
    labels = np.where(source < WRONG, draw.integers(0, 2, count), known.y_train[:count])
    rounds, inner = (12 if quick else 300), 5
    query = Query(clip=Saddle(15.0, 15.0), population=count, sampling=jmm.Poisson(rate=0.03),
                  parameters=123 + 123 + SOURCES, joint=True)
    outer = dataclasses.replace(query, clip=Saddle(2.0, None), joint=False,
                                noise_multiplier=Saddle(2.0, None))

    def loss(w: Any, z: Any, record: Any) -> jax.Array:
        x, label, s = record
        trained = jax.nn.sigmoid(w["x"])[jnp.minimum(s, SOURCES - 1)] * (s < SOURCES)
        lower, upper = (_logistic(y, (x, label)) for y in (w["y"], z))
        return (s >= SOURCES) * lower + PENALTY * trained * (lower - upper)

    def public(z: Saddle) -> Saddle:
        scale = PENALTY * RIDGE
        return Saddle({"x": jnp.zeros(SOURCES), "y": scale * z.w["y"]}, scale * z.v)

    def measures(z: Saddle, rows: Any) -> dict[str, float]:
        right = (np.asarray(rows[0]) @ np.asarray(z.w["y"]) > 0) == (np.asarray(rows[1]) > 0.5)
        weights = np.asarray(jax.nn.sigmoid(z.w["x"]))
        return {"accuracy": float(right.mean()),
                "clean weights less wrong": float(weights[WRONG:].mean() - weights[:WRONG].mean())}

    steps = _steps(0.05, 0.15, 0.4)
    start = Saddle({"x": jnp.zeros(SOURCES), "y": jnp.zeros(123)}, jnp.zeros(123))
    return Contest(
        f"weights of {SOURCES} sources, {WRONG} with labels at random, Adult",
        jmm.Problem(jmm.saddle_operator(loss), public=public), start,
        _cut((known.x_train[:count], labels.astype(np.float32), source.astype(np.int32)), 0, None),
        {f"bilevel, k = {inner}": (bilevel, [bilevel.Hyper(
            query=query, outer=outer, step=step, step_outer=200.0 * step.w, inner=inner,
            iterations=rounds // (inner + 1)) for step in steps]),
         **_plain(query, rounds, steps, 10.0)},
        measures, _cut((known.x_train, known.y_train), -4000, None),
        _cut((known.x_test, known.y_test), 0, None), known.unit)


def pictures(quick: bool, folder: Any) -> Contest:
    """Ten classes of Fashion-MNIST by one number a round, against gradients."""
    x, y = _pictures("train", folder)
    count = 1000 if quick else 50_000
    rounds = 10 if quick else 1000
    query = Query(clip=Saddle(4.0, None), population=count, sampling=jmm.Poisson(rate=0.01),
                  parameters=1960)

    def loss(w: jax.Array, v: Any, record: Any) -> jax.Array:
        return _cross_entropy(w, record)

    steps = [0.05, 0.15, 0.5]
    number = dataclasses.replace(query, clip=Saddle(8.0, None), parameters=1)
    return Contest(
        "ten classes, Fashion-MNIST", jmm.Problem(jmm.saddle_operator(loss)),
        Saddle(jnp.zeros((196, 10)), ()), _cut((x, y), 0, count),
        {"zeroth order": (zeroth_order, [zeroth_order.Hyper(
            query=number, step=step, radius=1e-3, iterations=rounds)
            for step in (1e-4, 3e-4, 1e-3)]),
         **_plain(query, rounds, _steps(*steps), 20.0)},
        lambda z, rows: {"accuracy": _accuracies(z.w, rows)["accuracy"]},
        _cut((x, y), count, count + 10_000), _cut(_pictures("t10k", folder), 0, None), "one image")


CONTESTS: dict[str, Callable[[bool, Any], Contest]] = {
    "turns": auc, "double_spider": imbalanced, "bilevel": sources, "zeroth_order": pictures}
