"""Calibration of a released scorer: one more release sets its intercept and its slope.

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
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxminimax.base.types import Problem, Saddle
from jaxminimax.mechanism import Repeat
from jaxminimax.releases.sums import compiled_release

CLIP = math.sqrt(2.0)
_UNIT = 2.0  # of log-odds, for t
_RIDGE = 3.0  # standard deviations of the noise


def _psi(z: Saddle, record: tuple[jax.Array, jax.Array, jax.Array, jax.Array]) -> Saddle:
    p, t, y, weight = record
    h = p * (1 - p)
    return Saddle(weight @ jnp.stack([y - p, (y - p) * t, h, h * t, h * t * t], 1), None)


_PSI = Problem(_psi)


def release_line(key: jax.Array, described: Repeat, scores: np.ndarray, y: np.ndarray,
                 weight: np.ndarray, prior: float) -> tuple[float, float]:
    """Releases a and b, by which scores s become a + b s.

    Args:
      key: a key of its own, not the run's.
      described: `statistics.one_release` of vectors of length `CLIP`.
      scores: of a released scorer, `[n, rows]`.
      y: labels in {0, 1}, `[n, rows]`.
      weight: of a person's rows, `[n, rows]`; they add up to 1, or to 0 where there are none.
      prior: the released share of positives.
    """
    middle = float(scipy.special.logit(prior))
    t = np.clip((scores - middle) / _UNIT, -1.0, 1.0)
    data = tuple(np.asarray(x, np.float32) for x in (scipy.special.expit(scores), t, y, weight))
    answer = compiled_release(key, described, _PSI, Saddle(np.zeros(5, np.float32), ()), data)
    *gradient, flat, mixed, steep = np.asarray(answer.w, np.float64).tolist()
    query = described.query
    deviation = query.clip.w * query.noise_multiplier.w / query.population
    values, vectors = np.linalg.eigh([[flat, mixed], [mixed, steep]])
    values = np.maximum(values, 0.0) + _RIDGE * deviation
    shift, tilt = vectors @ ((vectors.T @ gradient) / values)
    tilt /= _UNIT
    slope = 1 + tilt if tilt > 0 else 1 / (1 - tilt)
    return float(shift + (1 - slope) * middle), float(slope)
