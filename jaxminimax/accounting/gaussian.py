"""Delta, epsilon and mu of two Gaussians of unit variance, mu apart, exact but for rounding.

With s = epsilon / mu - mu / 2, t = epsilon / mu + mu / 2 and a = e^epsilon,

    H_a(N(mu, 1) || N(0, 1)) = Phi(-s) - a Phi(-t),

the analytic Gaussian mechanism of Balle and Wang (ICML 2018, theorem 8). As a phi(t) = phi(s), both
terms have the factor phi(s), and with the Mills ratio M = Phi(-.) / phi

    H = phi(s) (M(s) - M(t)),      a Phi(-t) = phi(s) M(t),

which keeps relative accuracy far out in the tail, and has no large exponents that cancel.

Rounding, u = 2^-53: epsilon / mu is off by a part u, which is as if epsilon were, and H falls by a
part of at most a Phi(-t) / H for each unit of epsilon; the rounding of s makes a part s^2 u of
phi(s); ratios, exponentials and the difference are off by a few u of each of its terms. So with

    error = 4 u ((4 + s^2) H + (8 + epsilon) a Phi(-t)),   s > 0,

H lies within `error` of what is computed. For s <= 0 the first term is Phi(-s) itself, which moves
by |s| phi(s) u < u / 4, and s^2 goes with the second. What is returned is on the private side by
that error, and no more. Both are tested against 70 digits for mu from 1e-18 to 1e9: a smaller
positive mu counts as 1e-18, and a larger one as no noise. Below 1e-306 numbers lose digits: there a
divergence counts as 1e-306, and an epsilon as infinite.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy

_LEAST = 1e-306
_SMALLEST, _LARGEST = 1e-18, 1e9  # of mu
_FARTHEST = 39.0  # deviations, beyond which a Gaussian has less than that


def _mills(x: np.ndarray | float) -> np.ndarray:
    # M(x) = Phi(-x) / phi(x) = (pi / 2)^(1/2) erfcx(x / 2^(1/2))
    return math.sqrt(math.pi / 2) * scipy.special.erfcx(x / math.sqrt(2))


def _divergence(mu: float, epsilon: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """H at e^epsilon as computed, and a bound on its error."""
    mu = max(mu, _SMALLEST)
    s, t = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    square, near = s * s, s <= 0
    with np.errstate(under="ignore"):
        density = np.exp(-square / 2) / math.sqrt(2 * math.pi)
        # phi(s) M(t) = a Phi(-t)
        second = density * _mills(t)
        # Phi(-s) - a Phi(-t) for s <= 0, else phi(s) (M(s) - M(t))
        value = np.where(near, scipy.special.ndtr(-s) - second,
                         density * (_mills(np.maximum(s, 0.0)) - _mills(t)))
        # 4 u ((4 + s^2) H + (8 + epsilon) a Phi(-t)); s^2 goes with the second for s <= 0
        moved = np.where(near, (12 + epsilon + square) * second, (8 + epsilon) * second)
        error = 2.0**-51 * (np.where(near, 5.0, 4 + square) * np.maximum(value, 0.0) + moved)
    return value, error


def delta(mu: float, epsilon: np.ndarray | float) -> np.ndarray:
    """H at e^epsilon, rounded up.

    Args:
      mu: at least 0; infinity without noise.
      epsilon: at least 0, any shape.
    """
    epsilon = np.asarray(epsilon, np.float64)
    if mu == 0:
        return np.zeros_like(epsilon)
    if mu > _LARGEST:
        return np.ones_like(epsilon)
    value, error = _divergence(mu, epsilon)
    # the upper end of what is computed: delta is charged, so it is rounded up
    return np.clip(value + error, _LEAST, 1.0)


def epsilon(mu: float, delta: float) -> float:
    """Returns the smallest epsilon whose divergence is at most delta, rounded up."""
    if mu == 0:
        return 0.0
    if mu > _LARGEST or delta <= _LEAST:
        return math.inf
    mu = max(mu, _SMALLEST)

    def exceeds(at: float) -> bool:
        value, error = _divergence(mu, at)
        return bool(value + error > delta)

    if not exceeds(0.0):
        return 0.0
    # s = 39 at the upper end; of two neighbours, the one that does not exceed delta
    return last(exceeds, 0.0, mu * (_FARTHEST + mu / 2))[1]


def closest_mu(epsilon: float, divergence: float) -> float:
    """Returns the smallest mu whose divergence at e^epsilon is at least that, rounded up.

    Args:
      epsilon: at least 0.
      divergence: in [0, 1]; close to 1 it needs an infinite mu.
    """
    def short(at: float) -> bool:
        value, error = _divergence(at, epsilon)
        # the lower end counts, so that mu is rounded up: H grows with mu
        return bool(value - error < divergence)

    if divergence <= 0:
        return 0.0
    high = 1.0
    while short(high):
        high *= 2
        if high > 1e6:
            return math.inf
    return last(short, 0.0, high)[1]


def last(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Bisects to two neighbouring numbers: `holds` is true of the first and not of the second."""
    while high - low > 2.0**-52 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high
