"""Private linear classifiers as one would write them down, to compare `jaxminimax.tables` with.

Features are what schemas give, in [-1, 1], over sqrt(d), with a constant 1: rows x of length R at
most, R = sqrt(2). Noise is of the system's floats, so that guarantees are of real numbers.

**Descent.** Noisy full-batch gradient descent on the logistic loss, in 100 rounds of a fixed step.

**Objective perturbation.** w = argmin sum_i loss(w; x_i, y_i) + reg |w|^2 / 2 + <b, w> with
b ~ N(0, s^2 I), after Kifer, Smith and Thakurta, "Private convex empirical risk minimization and
high-dimensional regression", COLT 2012. (epsilon, delta) for one replaced record (x, y): b is a
smooth one-to-one function of w, of Jacobian J = reg I + sum of p (1 - p) x x^T, so the log ratio of
densities of w on both data sets is that of b and b' = b + g - g' plus that of the determinants. The
latter is at most ln(1 + R^2 / (4 reg)), for one term of rank one. The gradients are g = a x with a
of a known sign, |a| <= 1, so

    (|b'|^2 - |b|^2) / (2 s^2) <= (2 <b, g - g'> + 4 R^2) / (2 s^2),
    <b, g - g'> <= max(0, Z_1) + max(0, Z_2),

with Z_1, Z_2 normal of standard deviation s R at most: above t with a chance of at most
2 Q(t / (s R)) + Q(t / (2 s R)), Q the normal tail. s is the least for which this is delta where
(2 t + 4 R^2) / (2 s^2) is the epsilon that the determinants leave.

**Pure objective perturbation.** b has the density e^(-epsilon' |b| / 2) instead, on rows over R:
Chaudhuri, Monteleoni and Sarwate, "Differentially private empirical risk minimization", JMLR 12
(2011), Algorithm 2, with epsilon' = epsilon - 2 ln(1 + 1 / (4 reg)). It is what diffprivlib's
LogisticRegression runs; that package is not imported, as it needs an old scikit-learn.

Both take reg = 1, scikit-learn's default, or what leaves the half of epsilon for b, if larger.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import expit
from scipy.stats import norm

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.accounting import calibrate_noise

_ROUNDS, _CLIP = 100, 1.0  # of the descent
_LONGEST = math.sqrt(2.0)  # R


def with_constant(x: np.ndarray) -> np.ndarray:
    """Features in [-1, 1] as rows no longer than 1, and a constant 1."""
    return np.concatenate([x / np.sqrt(x.shape[1]), np.ones((len(x), 1))], 1)


def descent(rng: np.random.Generator, x: np.ndarray, y: np.ndarray, epsilon: float, delta: float,
            step: float) -> np.ndarray:
    """Noisy full-batch gradient descent: weights `[d + 1]`."""
    x = with_constant(x)
    query = jmm.Query(clip=Saddle(_CLIP, None), population=len(y))
    noise = jmm.Repeat(query=query, times=_ROUNDS)
    sigma = _CLIP * calibrate_noise(noise, epsilon, delta).query.noise_multiplier.w
    length, w = np.linalg.norm(x, axis=1), np.zeros(x.shape[1])
    for _ in range(_ROUNDS):
        slope = expit(x @ w) - y
        slope *= np.minimum(1, _CLIP / np.maximum(np.abs(slope) * length, 1e-12))
        w -= step * (slope @ x + rng.normal(0, sigma, len(w))) / len(y)
    return w


def _least(x: np.ndarray, y: np.ndarray, reg: float, b: np.ndarray) -> np.ndarray:
    """Returns the minimum of the perturbed objective."""
    def value(w: np.ndarray) -> tuple[float, np.ndarray]:
        s = x @ w
        return (float(np.sum(np.logaddexp(0, s) - y * s) + reg * w @ w / 2 + b @ w),
                (expit(s) - y) @ x + reg * w + b)

    def product(w: np.ndarray, v: np.ndarray) -> np.ndarray:
        p = expit(x @ w)
        return (p * (1 - p) * (x @ v)) @ x + reg * v

    return minimize(value, np.zeros(x.shape[1]), jac=True, hessp=product, method="trust-ncg",
                    options={"gtol": 1e-7 * len(y)}).x


def deviation(epsilon: float, delta: float, reg: float) -> float:
    """Returns s of objective perturbation with Gaussian noise."""
    left = epsilon - math.log1p(_LONGEST**2 / 4 / reg)

    def excess(s: float) -> float:
        t = max(left * s * s - 2 * _LONGEST**2, 0.0) / (s * _LONGEST)
        return 2 * norm.sf(t) + norm.sf(t / 2) - delta

    return brentq(excess, 1e-2, 1e6)


def objective(rng: np.random.Generator, x: np.ndarray, y: np.ndarray, epsilon: float,
              delta: float) -> np.ndarray:
    """Objective perturbation with Gaussian noise: weights `[d + 1]`."""
    reg = max(1.0, _LONGEST**2 / 4 / math.expm1(epsilon / 2))
    x = with_constant(x)
    b = np.asarray(rng.normal(0, deviation(epsilon, delta, reg), x.shape[1]))
    return _least(x, y, reg, b)


def pure_objective(rng: np.random.Generator, x: np.ndarray, y: np.ndarray, epsilon: float,
                   delta: float) -> np.ndarray:
    """Objective perturbation of delta = 0: weights `[d + 1]`."""
    reg = max(1.0, 0.25 / math.expm1(epsilon / 4))
    left = epsilon - 2 * math.log1p(0.25 / reg)
    x = with_constant(x) / _LONGEST
    direction = np.asarray(rng.normal(size=x.shape[1]))
    length = rng.gamma(x.shape[1], 2 / left)
    b: np.ndarray = length * direction / np.linalg.norm(direction)
    return _least(x, y, reg, b) / _LONGEST


METHODS: dict[str, Callable[..., np.ndarray]] = {
    "descent, step 2": functools.partial(descent, step=2.0),
    "descent, step 20": functools.partial(descent, step=20.0),
    "objective perturbation": objective, "pure objective perturbation": pure_objective}
