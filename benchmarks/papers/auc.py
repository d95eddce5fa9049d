"""Private AUC on balanced and imbalanced images, by two ways of training.

`mlp`: stochastic gradient descent ascent of a two-layer scorer, as in `benchmarks.accuracy.auc`.

`whitened`: a linear scorer. One release of all second moments of the features, labels left out,
pays for a linear map that makes them nearly uncorrelated; full-batch descent ascent then needs
few rounds, and noise that is equal in all directions harms all of them alike. Where positives are
rare this is what counts: the rounds hear a record of the rare class 1 / p times as strongly as
their noise allows, but the second moments hear all records.

With x a record's features, of norm at most 1, the released vector is the upper triangle of a a^T,
a = (x, 1) / sqrt 2, entries off the diagonal times sqrt 2: its norm is |a|^2 <= 1, so a clip of 1
changes nothing. From it follow the mean m and the covariance S = U diag(s) U^T, up to noise, and

    x  ->  R u / |u|,   u = U diag(max(s, 0) + ridge)^(-1/2) U^T (x - m),

a function of the record and of released numbers: replacing a record still replaces one row.
"""

import dataclasses
import functools
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxminimax as jmm
from benchmarks.accuracy.auc import runs as auc_runs
from benchmarks.common import report, settings
from benchmarks.data_sets import data, features
from jaxminimax import Saddle

_CLASSES = "Classes 5-9 are positive and 0-4 negative; the prior is that of the task, {:g}."
_LENGTH = 8.0  # norm of an image's features
_RUN = jax.jit(jmm.run, static_argnames=("algorithm", "problem"))
_RELEASE = jax.jit(jmm.release, static_argnames="problem")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whitened:
    """Settings of the linear scorer on whitened features, all of them public numbers.

    Attributes:
        clip: Clip norm, in gradients of a positive record whose score is 0.
        step: Step of theta, a and b, on rows of norm sqrt(d / 2).
        iterations: Rounds.
        share: Of mu^2, for the second moments.
        ridge: Added to the variances, for features of norm 1.
        features: Name in `features.FEATURES`.
    """

    clip: float
    step: float
    iterations: int
    share: float = 0.2
    ridge: float = 0.01
    features: str = "cosines 5"


def images(name: str, ratio: float, *, seed: int = 0, map_of: str | None = None,
           split: str = "file", data_dir: str | None = None) -> data.Dataset:
    """Classes 5-9 against 0-4, with positives left out until they are `ratio` of the training rows.

    Test rows stay as they are: AUC does not depend on the share of positives among them.

    Args:
        name: "mnist" or "fashion_mnist".
        ratio: 0.5 leaves all rows in.
        seed: of the draw of the positives that stay.
        map_of: Name of the features; None for the default.
        split: "validation" trains and tests on rows of the training file.
        data_dir: As in `data.load`.
    """
    result = data.load(name, data_dir=data_dir, seed=seed, split=split, features=map_of)
    y = 1 - result.y_train
    stays = np.ones(len(y), bool)
    if ratio < 0.5:
        left = int((y == 0).sum() / (1 - ratio) * ratio)
        stays[np.flatnonzero(y == 1)[left:]] = False
    public = tuple(x for x in result.public if not x.startswith("Classes"))
    return dataclasses.replace(
        result, x_train=result.x_train[stays], y_train=y[stays], y_test=1 - result.y_test,
        prior=ratio, public=(*public, _CLASSES.format(ratio)))


@functools.cache  # one object a problem: it is hashed by identity
def moments_problem(dim: int) -> jmm.Problem:
    """Whose operator at any point is the record's vector of second moments."""
    rows, columns = np.triu_indices(dim + 1)
    weight = np.where(rows == columns, 0.5, math.sqrt(0.5)).astype(np.float32)

    def operator(z: Saddle, x: jax.Array) -> Saddle:
        a = jnp.concatenate([x, jnp.ones(1, x.dtype)])
        return Saddle(weight * a[rows] * a[columns], None)

    return jmm.Problem(operator=operator)


def whitening(released: np.ndarray, dim: int, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """The mean `[d]` and the map `[d, d]` that follow from released second moments."""
    rows, columns = np.triu_indices(dim + 1)
    full = np.zeros((dim + 1, dim + 1))
    full[rows, columns] = released * np.where(rows == columns, 2, math.sqrt(2))
    full[columns, rows] = full[rows, columns]
    mean = full[:dim, dim]
    size, axes = np.linalg.eigh(full[:dim, :dim] - np.outer(mean, mean))
    return mean, (axes / np.sqrt(np.maximum(size, 0) + ridge)) @ axes.T


def plan(s: Whitened, n: int, dim: int, prior: float, epsilon: float,
         delta: float) -> tuple[Any, ...]:
    """The release of moments and `sgda`'s hyper-parameters, which together cost epsilon.

    Raises:
        ValueError: if no noise gives this epsilon and delta.
    """
    once = jmm.Repeat(query=jmm.Query(clip=Saddle(1.0, None), population=n), times=1)
    one = jmm.accounting.calibrate_noise(once, epsilon, delta).query
    louder = Saddle(one.noise_multiplier.w / math.sqrt(s.share), None)
    moments = jmm.Repeat(query=dataclasses.replace(one, noise_multiplier=louder), times=1)
    clip = s.clip * 2 / prior * math.sqrt(dim / 2)
    hyper = jmm.sgda.Hyper(
        query=jmm.Query(clip=Saddle(clip, None), population=n), step=Saddle(s.step, 0.1),
        iterations=s.iterations, averaging=jmm.averaging.TAIL,
        optimiser=Saddle(auc_runs.optimiser(0.9), optax.sgd))
    return moments, jmm.calibrate(jmm.sgda, hyper, epsilon=epsilon, delta=delta,
                                  alongside=(moments,))


def whitened(s: Whitened, dataset: data.Dataset, epsilon: float, delta: float, seed: int,
             label: str) -> dict[str, Any]:
    """The AUC of the linear scorer."""
    n, dim = dataset.x_train.shape
    moments, hyper = plan(s, n, dim, dataset.prior, epsilon, delta)
    problem = auc_runs.problem("linear", dataset.prior, 10.0, "best_response")
    x, x_test = dataset.x_train / np.float32(_LENGTH), dataset.x_test / np.float32(_LENGTH)
    start, length = time.perf_counter(), np.float32(math.sqrt(dim / 2))
    first, then = jax.random.split(auc_runs.key(seed, label, epsilon, delta))
    zero = Saddle(jnp.zeros((dim + 1) * (dim + 2) // 2), ())
    released = _RELEASE(first, moments, jnp.int32(0), moments_problem(dim), zero, jnp.asarray(x))
    mean, to = whitening(np.asarray(released.w, np.float64), dim, s.ridge)
    rows, held = (features.unit((part - mean) @ to).astype(np.float32) * length
                  for part in (x, x_test))
    state, _ = _RUN(then, jmm.problems.auc_start(jnp.zeros(dim)),
                    (jnp.asarray(rows), jnp.asarray(dataset.y_train)), hyper, jmm.sgda, problem)
    score = float(jmm.metrics.auc(held @ np.asarray(state.average.w["theta"]), dataset.y_test))
    released_too = ("All second moments of the features, labels left out, are released first; they "
                    "whiten the features of every record.")
    return _result(score, hyper, state, dataset, delta, (moments,), time.perf_counter() - start,
                   (released_too,))


def mlp(s: settings.Settings, dataset: data.Dataset, epsilon: float, delta: float, seed: int,
        label: str) -> dict[str, Any]:
    """The AUC of the two-layer scorer."""
    lane = auc_runs.lane(s, "sgda", "mlp", dataset, epsilon, delta, rate=s.rate)
    start = time.perf_counter()
    result = auc_runs.measure("sgda", "mlp", [lane], label, [
        (dataset, [(dataset.x_test, dataset.y_test)], [seed])], 1)
    return _result(float(result.auc[0][0][0]), lane.hyper, result.state[0], dataset, delta, (),
                   time.perf_counter() - start, ())


def _result(score: float, hyper: Any, state: Any, dataset: data.Dataset, delta: float,
            alongside: tuple[Any, ...], seconds: float, more: tuple[str, ...]) -> dict[str, Any]:
    full = jmm.Sequence(parts=(*alongside, jmm.sgda.mechanism(hyper)))
    stated = jmm.statement(jmm.sgda, hyper, state, delta=delta, alongside=alongside,
                           unit=dataset.unit)
    return {"auc": score, "ours_epsilon": float(jmm.epsilon(full, delta)), "seconds": seconds,
            "records": len(dataset.y_train), "iterations": int(hyper.iterations),
            "statement": report.stated(
                stated, (*dataset.public, *more, settings.ASSUMED))}
