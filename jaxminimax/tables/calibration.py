"""Calibration of a released scorer: one more release sets its slope, and of two values a shift.

Training that stops early makes scores too small, and noise in weights makes them too large. So
scores s become a + b s, by one Newton step from a = 0, b = 1 on the logistic loss of the training
records. (Platt, 1999, has these two numbers.) With p = sigma(s), c the log-odds of the released
share of positives and t = (s - c) / 2, cut to [-1, 1], the step needs the mean over persons of

    psi = (y - p, (y - p) t, h, h t, h t^2),     h = p (1 - p).

With q = |y - p|, |psi|^2 <= 2 q^2 + 3 q^2 (1 - q)^2, which increases in q up to 2 at q = 1. So the
clip norm sqrt(2) never binds, and the mean moves by at most 2 sqrt(2) / n when a person is
replaced. What follows is post-processing: eigenvalues of the noisy Hessian are taken as 0 at least,
and three standard deviations of the noise are added to them, so that noise alone moves little. A
step to a slope 1 + u below 1 goes to 1 / (1 - u), as Newton's steps from too large scores go too
far. So the slope stays positive: the order of scores, and with it the AUC, is the same.

**K classes** have one slope: scores s, `[K]`, become c + b (s - c), with c the logarithms of the
released shares. With p = softmax(s), and t = (s - c) / 2 less its mean, divided by its largest
absolute value where that is above 1, the step needs the mean of

    psi = (t_y - m, v),     m = sum_k p_k t_k,     v = sum_k p_k t_k^2 - m^2.

As |t_k| <= 1, v <= 1 - m^2 and |t_y - m| <= 1 + |m|. So |psi|^2 <= (1 + a)^2 + (1 - a^2)^2 with
a = |m|, which increases in a up to 4 at a = 1, as its derivative is (1 + a) (1 + (2 a - 1)^2). The
clip norm 2 never binds, and the mean moves by at most 4 / n. A row of no class adds 0.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxminimax.base.types import Problem, PyTree, Saddle
from jaxminimax.mechanism import Repeat
from jaxminimax.releases import sums
from jaxminimax.tables.scaling import MEMORY, Store, in_blocks

CLIP, OF_CLASSES = math.sqrt(2.0), 2.0
_UNIT = 2.0  # of log-odds, for t
_RIDGE = 3.0  # standard deviations of the noise


def _psi(z: Saddle, record: tuple[jax.Array, jax.Array, jax.Array, jax.Array]) -> Saddle:
    p, t, y, weight = record
    h = p * (1 - p)
    return Saddle(weight @ jnp.stack([y - p, (y - p) * t, h, h * t, h * t * t], 1), None)


def _several(z: Saddle, record: tuple[jax.Array, jax.Array, jax.Array, jax.Array]) -> Saddle:
    p, t, y, weight = record
    mean = jnp.sum(p * t, 1)
    variance = jnp.sum(p * t * t, 1) - mean**2
    labelled = jnp.sum(y, 1)
    return Saddle(weight @ jnp.stack([jnp.sum(y * t, 1) - labelled * mean, labelled * variance],
                                     1), None)


_PSI, _SEVERAL = Problem(_psi), Problem(_several)


def _of_two(scores: np.ndarray, middle: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns p and t."""
    return scipy.special.expit(scores), np.clip((scores - middle) / _UNIT, -1.0, 1.0)


def _of_several(scores: np.ndarray, middle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns p and t of K classes."""
    t = (scores - middle) / _UNIT
    t = t - t.mean(-1, keepdims=True)
    return scipy.special.softmax(scores, -1), t / np.maximum(
        np.abs(t).max(-1, keepdims=True), 1.0)


def release_line(key: jax.Array, described: Repeat, scores: np.ndarray, y: np.ndarray,
                 weight: np.ndarray, prior: float | np.ndarray,
                 store: Store = MEMORY,
                 place: Callable[[PyTree], PyTree] = jax.device_put) -> tuple[Any, float]:
    """Releases a and b, by which scores s become a + b s.

    Args:
      key: a key of its own, not the run's.
      described: `statistics.one_release` of vectors of length `CLIP`, of classes `OF_CLASSES`.
      scores: of a released scorer, `[n, rows]`, of classes `[n, rows, K]`.
      y: labels in {0, 1}, `[n, rows]`, of classes `[n, rows, K]`.
      weight: of a person's rows, `[n, rows]`; they add up to 1, or to 0 where there are none.
      prior: the released share of positives, or of all classes, `[K]`; a has its shape.
      store: of arrays that are made of these.
      place: puts all rows where they are read.
    """
    query, several = described.query, bool(np.ndim(prior))
    deviation = query.clip.w * query.noise_multiplier.w / query.population
    middle: Any = np.log(prior) if several else float(scipy.special.logit(prior))
    of: Any = _of_several if several else _of_two
    p, t = (in_blocks(lambda s, k=k: of(s, middle)[k], store.zeros(*scores.shape), scores)
            for k in (0, 1))
    data = place((p, t, np.asarray(y, np.float32), np.asarray(weight, np.float32)))
    numbers = sums.compiled_release(key, described, _SEVERAL if several else _PSI,
                                    Saddle(np.zeros(2 if several else 5, np.float32), ()), data).w
    numbers = np.asarray(numbers, np.float64)
    if several:
        shift, tilt = 0.0, numbers[0] / (max(numbers[1], 0.0) + _RIDGE * deviation)
    else:
        *gradient, flat, mixed, steep = numbers.tolist()
        values, vectors = np.linalg.eigh([[flat, mixed], [mixed, steep]])
        values = np.maximum(values, 0.0) + _RIDGE * deviation
        shift, tilt = vectors @ ((vectors.T @ gradient) / values)
    tilt /= _UNIT
    slope = float(1 + tilt if tilt > 0 else 1 / (1 - tilt))
    return np.asarray(shift + (1 - slope) * middle).tolist(), slope
