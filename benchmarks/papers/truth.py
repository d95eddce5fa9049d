"""The privacy that published noise and published programs have: a bound and a pair below it.

PrivateDiff's program clips the mean gradient of every tensor, and no record's. So there is no bound
that holds for all records; but had it clipped records, at a norm so large that no record which
occurred was changed by it, its noise would give an epsilon that the accountant can certify. That
norm is seen in a re-run of the program's update, as published, on the data of the claim. Beside the
certified epsilon stands that of an explicit pair of data sets, in which no record's gradient is
above that norm either: all others contribute nothing, and one contributes the norm along one axis,
turned around between the two. Read charitably: samples are Poisson, only theta, a and b are
charged, the noise of all tensors is the loudest of them.

DP-FERMI's program clips, but after each gradient was divided by the batch size, so that its noise
has to hide a batch size times what it was made for.
"""

import dataclasses
import functools
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting.pld import pld_pmf
from scipy import special

import jaxminimax as jmm
from benchmarks.accuracy.auc import runs as auc_runs
from benchmarks.data_sets import data, features
from benchmarks.papers import auc
from benchmarks.papers.claims import DELTA, Cell, Fermi
from jaxminimax import Saddle

BATCH, EPOCHS, PERIOD, INNER, RATE = 2048, 80, 2, 3, 0.2  # of the published program
_WIDTH = 256
Parts = list[tuple[float, float, int]]  # noise over clip norm, sampling rate, releases


def certified(parts: Parts, population: int, delta: float,
              neighbours: str = "replace_one") -> float:
    """The accountant's upper bound on epsilon; infinite where it has none."""
    sampled = [jmm.Full() if q == 1 else jmm.Poisson(rate=q) for _, q, _ in parts]
    repeats = tuple(jmm.Repeat(query=jmm.Query(
        clip=Saddle(1.0, None), noise_multiplier=Saddle(z, None), population=population,
        sampling=how), times=times) for (z, _, times), how in zip(parts, sampled, strict=True))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "epsilon is (above|not)", UserWarning)
        return float(jmm.epsilon(jmm.Sequence(parts=repeats), delta, neighbours=neighbours))


def of_the_pair(parts: Parts, delta: float, up: bool) -> float:
    """Epsilon of (1 - q) N(0) + q N(1 / z) against (1 - q) N(0) + q N(-1 / z).

    Privacy losses are rounded to a grid, which moves epsilon by less than two per cent. Rounded
    down, the answer is a lower bound on that of the releases. Rounded up it is an upper bound for
    Poisson samples: no other pair has more (Zhu, Dong and Wang, AISTATS 2022, and Kahane's
    inequality).
    """
    laws, wide = [], 0.0
    for z, q, times in parts:
        x = np.linspace(-9 - 1 / z, 9 + 1 / z, 200_001)
        rest = math.log1p(-q) if q < 1 else -math.inf
        high, low = (np.logaddexp(rest, math.log(q) + sign * x / z - 0.5 / z**2)
                     for sign in (1, -1))
        loss = high - low  # grows with x, so a cell's ends have its extremes
        mass = (1 - q) * np.diff(special.ndtr(x)) + q * np.diff(special.ndtr(x - 1 / z))
        middle = (loss[1:] + loss[:-1]) / 2
        wide += times * float(mass @ middle) + 3 * math.sqrt(times * float(mass @ middle**2))
        laws.append((loss[1:] if up else loss[:-1], mass, times))
    grid = wide / (100 * sum(times for _, _, times in parts))
    full: Any = None
    for loss, mass, times in laws:
        cell = (np.ceil if up else np.floor)(loss / grid).astype(int)
        probs, outside = np.bincount(cell - cell[0], weights=mass), 1e-17 * up
        one = pld_pmf.DensePLDPmf(grid, int(cell[0]), probs, outside, up)
        with np.errstate(over="ignore"):  # of moments that only say where to cut tails
            many = one.self_compose(times)
        full = many if full is None else full.compose(many)
    return float(full.get_epsilon_for_delta(delta))


def bracket(parts: Parts, population: int, delta: float) -> tuple[float, float]:
    """Epsilon attained by the pair, and certified; beyond the accountant's reach by the pair."""
    high = certified(parts, population, delta)
    if not math.isfinite(high):
        high = of_the_pair(parts, delta, True)
    return min(of_the_pair(parts, delta, False), high), high


def fermi(epsilon: float, made: Fermi | None = None) -> tuple[float, float]:
    """Of theta alone, as published: batches of an epoch do not overlap, in a secret order.

    Above: as if the order were known, each record in one batch of every epoch. Below: the pair
    whose other records contribute nothing, seen in the sum of an epoch's batches, which holds the
    record unless it is among the few that are left over.
    """
    made = made or Fermi()
    z, batches = made.deviation(epsilon) / made.clip, made.records // made.batch
    high = bracket([(z, 1.0, made.epochs)], made.records, made.delta)[1]
    held = batches * made.batch / made.records
    seen = [(z * math.sqrt(batches), held, made.epochs)]
    return min(of_the_pair(seen, made.delta, False), high), high


def deviations(cell: Cell) -> tuple[float, float]:
    """The "sigmas" of the published program; noise has their square root times that of a clip."""
    budget = cell.noise_records * cell.epsilon
    root = math.sqrt(math.log(1 / DELTA))
    return math.sqrt(EPOCHS / PERIOD) * root / budget, root / budget


def _loss(w: dict[str, Any], alpha: jax.Array, x: jax.Array, y: jax.Array,
                 p: float) -> jax.Array:
    """The AUC margin loss of the program, and its sigmoid scores."""
    s = _scores(w, x)
    squares = (1 - p) * (s - w["a"]) ** 2 * y + p * (s - w["b"]) ** 2 * (1 - y)
    apart = p * s * (1 - y) - (1 - p) * s * y
    return jnp.mean(squares + 2 * alpha * apart) + 2 * alpha * p * (1 - p) - p * (1 - p) * alpha**2


def _scores(w: dict[str, Any], x: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(x @ w["W1"] + w["b1"][None])
    return jax.nn.sigmoid(hidden @ w["W2"] + w["b2"][None])[..., 0]


def record_norms(w: dict[str, Any], alpha: jax.Array, x: jax.Array, y: jax.Array,
                 p: float) -> jax.Array:
    """Norm over all tensors of every record's own gradient, `[b]`; in closed form."""
    h = x @ w["W1"] + w["b1"][None]
    r = jax.nn.relu(h)
    s = jax.nn.sigmoid(r @ w["W2"] + w["b2"][None])[..., 0]
    da, db = 2 * (1 - p) * (s - w["a"]) * y, 2 * p * (s - w["b"]) * (1 - y)
    out = (da + db + 2 * alpha * (p * (1 - y) - (1 - p) * y)) * s * (1 - s)
    back = jnp.sum(jnp.square((h > 0) * w["W2"][None, :, 0]), 1)
    square = out**2 * (1 + jnp.sum(r**2, 1) + back * (1 + jnp.sum(x**2, 1))) + da**2 + db**2
    return jnp.sqrt(square)


def _clip(t: jax.Array, c: Any) -> jax.Array:
    return t * jnp.minimum(1.0, c / jnp.maximum(jnp.linalg.norm(t), 1e-30))


@functools.partial(jax.jit, static_argnames="p")
def _epoch(carry: tuple[Any, ...], x: jax.Array, y: jax.Array, take: jax.Array, key: jax.Array,
           sigma: tuple[Any, ...], p: float) -> tuple[Any, ...]:
    """An epoch of the program's update; per round the largest record's gradient, and W1's noise."""
    def one(carry: tuple[Any, ...], rows: jax.Array) -> tuple[Any, ...]:
        w, alpha, old, before, v, r = carry
        xs, ys, ks = x[rows], y[rows], jax.random.split(jax.random.fold_in(key, r), 1 + len(w))
        for k in range(INNER):  # the first gradient is added to one of before
            g = jax.grad(_loss, 1)(w, alpha, xs, ys, p)
            alpha = alpha + RATE * _clip((1 + (k == 0)) * g, 1.0)
        alpha = alpha + jnp.sqrt(sigma[1]) * jax.random.normal(ks[0])
        grads, first = jax.grad(_loss)(w, alpha, xs, ys, p), r % PERIOD == 0
        move = {}
        for k, name in zip(ks[1:], sorted(w), strict=True):
            c = jnp.linalg.norm(w[name] - old[name])
            deviation = jnp.sqrt(jnp.where(first, sigma[0], sigma[1] * c))
            mean = jnp.where(first, _clip(grads[name], 1.0),
                             _clip(grads[name] - before[name], c) + v[name])
            move[name] = mean + deviation * jax.random.normal(k, w[name].shape)
            if name == "W1":
                std = deviation
        new = jax.tree.map(lambda a, b: a - RATE * b, w, move)
        return (new, alpha, w, grads, move, r + 1), (
            jnp.max(record_norms(w, alpha, xs, ys, p)), std)

    return jax.lax.scan(one, carry, take)


def _start(key: jax.Array, dim: int) -> dict[str, Any]:
    def uniform(k: jax.Array, shape: tuple[Any, ...], bound: float) -> jax.Array:
        return bound * jax.random.uniform(k, shape, minval=-1, maxval=1)

    a, b, c, d = jax.random.split(key, 4)
    return {"W1": uniform(a, (dim, _WIDTH), math.sqrt(6 / dim)),
            "b1": uniform(b, (_WIDTH,), dim**-0.5),
            "W2": uniform(c, (_WIDTH, 1), math.sqrt(6 / _WIDTH)),
            "b2": uniform(d, (1,), _WIDTH**-0.5), "a": jnp.zeros(()), "b": jnp.zeros(())}


def rerun(cell: Cell, dataset: data.Dataset, epochs: int, seed: int = 0) -> dict[str, Any]:
    """The program's update on pixels in [0, 1] for its first `epochs` of 80.

    Returns:
        "gradient", the largest norm of one record's gradient in a batch that was read; "noise",
        the median deviation of W1's noise in rounds that release a difference; and the best AUC.
    """
    x, y = jnp.asarray(dataset.x_train), jnp.asarray(dataset.y_train)
    rng, key = np.random.default_rng(seed), auc_runs.key(seed, f"PrivateDiff, {cell.name}")
    where = [np.flatnonzero(dataset.y_train == k) for k in (1, 0)]
    size = min(BATCH, len(y))
    positive = min(round(size * cell.ratio), len(where[0]))
    shares = [positive, min(size - positive, len(where[1]))]
    w = _start(key, x.shape[1])
    still = jax.tree.map(jnp.zeros_like, w)
    carry: tuple[Any, ...] = (w, jnp.zeros(()), w, still, still, jnp.int32(0))
    seen, noise, best = 0.0, list[Any](), 0.0
    for _ in range(epochs):
        orders = [rng.permutation(k) for k in where]
        rounds = min(len(o) // k for o, k in zip(orders, shares, strict=True))
        take = np.hstack([o[:rounds * k].reshape(rounds, k)
                          for o, k in zip(orders, shares, strict=True)])
        carry, (norms, std) = _epoch(carry, x, y, jnp.asarray(take), key, deviations(cell),
                                      cell.ratio)
        seen, noise = max(seen, float(jnp.max(norms))), [*noise, *np.asarray(std)]
        scores = _scores(carry[0], jnp.asarray(dataset.x_test))
        best = max(best, float(jmm.metrics.auc(scores, dataset.y_test)))
    later = noise[1::PERIOD] or noise
    return {"gradient": seen, "noise": float(np.median(later)), "best_auc": best, "epochs": epochs}


def privatediff(cell: Cell, data_dir: str | None, epochs: int, split: str) -> dict[str, Any]:
    """A re-run, and the bracket of epsilon that follows from it for all 80 epochs."""
    dataset = auc.images(cell.data, cell.ratio, map_of="standard", split=split,
                                   data_dir=data_dir)
    mean, deviation = features.PIXELS[cell.data]
    raw = {k: getattr(dataset, k) * np.float32(deviation) + np.float32(mean)
           for k in ("x_train", "x_test")}
    result = rerun(cell, dataclasses.replace(dataset, **raw), epochs)
    rounds = EPOCHS * (cell.records // BATCH)
    first, later = math.sqrt(deviations(cell)[0]), result["noise"]
    unit, q = BATCH / result["gradient"], BATCH / cell.records
    low, high = bracket([(first * unit, q, rounds - rounds // PERIOD),
                         (later * unit, q, rounds // PERIOD)], cell.records, DELTA)
    # a record of any size, from one end of the clip of the mean to the other, in the first batch
    return {**result, "low": low, "high": high, "one_release_any_size": once(first, q)}


def once(z: float, q: float, delta: float = DELTA) -> float:
    """Epsilon of one release of a mean that a single record carries from -1 to 1, if it is drawn.

    Below it lies P[x > t] - e^epsilon Q[x > t] = delta at the best threshold t.
    """
    t = np.linspace(-1, 1 + 8 * z, 4001)
    rest = math.log1p(-q) if q < 1 else -math.inf
    far, near = (np.logaddexp(rest + special.log_ndtr(-t / z),
                              math.log(q) + special.log_ndtr((sign - t) / z)) for sign in (1, -1))
    kept = far > math.log(delta)
    return float(np.max(far[kept] + np.log1p(-np.exp(math.log(delta) - far[kept])) - near[kept]))
