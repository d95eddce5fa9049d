"""Two Gaussians of unit variance, mu apart: their divergence, and the mu that a divergence needs.

    H_a(N(mu, 1) || N(0, 1)) = Phi(-s) - a Phi(-t),      a = e^epsilon,
    s = epsilon / mu - mu / 2,   t = epsilon / mu + mu / 2,

and with a phi(t) = phi(s) it is phi(s) (M(s) - M(t)), M = Phi(-.) / phi the Mills ratio, which
keeps relative accuracy far out in the tail.
"""

import math

import numpy as np
import scipy


def _safe(mu: float) -> float:
    """What the forms below may lose, relative: the difference of ratios has 1 / mu roundings."""
    return 1e-9 + 4e-15 / mu


def _mills(x: np.ndarray) -> np.ndarray:
    return math.sqrt(math.pi / 2) * scipy.special.erfcx(x / math.sqrt(2))


def _delta(mu: float, epsilon: np.ndarray) -> np.ndarray:
    """H at e^epsilon, as computed."""
    s, t = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    with np.errstate(over="ignore", invalid="ignore"):
        tail = np.exp(-(s**2) / 2) / math.sqrt(2 * math.pi) * (_mills(s) - _mills(t))
    near = scipy.special.ndtr(-s) - np.exp(epsilon + scipy.special.log_ndtr(-t))
    zero = scipy.special.erf(mu / math.sqrt(8))
    return np.where(epsilon == 0, zero, np.where(s > 0, tail, near))


def delta(mu: float, epsilon: np.ndarray) -> np.ndarray:
    """H at e^epsilon, rounded up.

    Args:
      mu: at least 0; infinity: no noise.
      epsilon: at least 0, any shape.
    """
    epsilon = np.asarray(epsilon, np.float64)
    if mu == 0:
        return np.zeros_like(epsilon)
    if not math.isfinite(mu):
        return np.ones_like(epsilon)
    return np.minimum(1.0, _delta(mu, epsilon) * (1 + _safe(mu)))


def closest_mu(epsilon: float, divergence: float) -> float:
    """The smallest mu whose divergence at e^epsilon is at least that, rounded up.

    Args:
      epsilon: at least 0.
      divergence: in [0, 1]; close to 1 it needs an infinite mu.
    """
    def enough(mu: float) -> bool:
        return float(_delta(mu, np.asarray(epsilon))) * (1 - _safe(mu)) >= divergence

    if divergence <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
        if high > 1e6:
            return math.inf
    while low == 0.0:
        if enough(high / 2):
            high /= 2
        else:
            low = high / 2
        if high < 1e-12:
            return high
    while high > low * (1 + 1e-12):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
