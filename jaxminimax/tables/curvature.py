"""Second moments of scaled rows, released once, and the preconditioner that is made of them.

Scaled rows are u with |u| <= 1, and a constant 1 after them (`scaling.scaled`). One release of

    M = mean over persons of sum_k weight_k u_k u_k^T,     |u u^T| = |u|^2 <= 1,

has a clip norm of 1, which never binds, and moves by at most 2 / n when a person is replaced. All
d^2 numbers get noise of standard deviation s = noise multiplier / n. The symmetric part of that
noise has the law of the noise on the products u_i u_j, i <= j, with those of i < j times sqrt(2);
its spectral norm is about s sqrt(2 d).

A loss whose second derivative by x w is at most 2 h has the Hessian 2 h diag(M, 1) at most, as rows
are centred. Steps along P g for a released gradient g, with

    P = (h diag(M_+, 1) + r I)^-1,     M_+: M without its negative eigenvalues,

are post-processing. All directions of curvature above r converge at one rate, and one without
curvature moves by g / r, whatever d is. Heavy-ball steps with momentum 1/2 converge up to three
times the curvature that P stands for. The derivative is below its bound on average, so h is half of
it: 1/8 of the logistic loss, where sigma (1 - sigma) is at most 1/4.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.types import Problem, PyTree, Saddle, saddle_operator
from jaxminimax.mechanism import Repeat
from jaxminimax.releases import sums
from jaxminimax.tables import statistics
from jaxminimax.tables.scaling import Moments, spread

_SAFE = 1.5  # ridge over what the noise of M may take away from the curvature


def _form(w: jax.Array, v: PyTree, record: tuple[jax.Array, jax.Array]) -> jax.Array:
    """sum_k weight_k u_k^T W u_k, whose gradient by W, `[d d]`, is a person's part of M."""
    x, weight = record
    u = x[:, :-1]
    return weight @ jnp.sum((u @ w.reshape(u.shape[-1], -1)) * u, -1)


_SECOND = Problem(saddle_operator(_form))


def least_ridge(width: int, population: int, noise_multiplier: float, half: float) -> float:
    """Returns the r from which on the noise of M makes no step too long; `half`: h."""
    return _SAFE * half * noise_multiplier / population * math.sqrt(2 * width)


def release_second_moments(key: jax.Array, described: Repeat, x: np.ndarray,
                           weight: np.ndarray,
                           place: Callable[[PyTree], PyTree] = jax.device_put) -> np.ndarray:
    """Releases M, symmetric, float64 `[d, d]`.

    Args:
      key: a key of its own, not the run's.
      described: `statistics.one_release` of vectors of length 1.
      x: scaled rows, `[n, rows, d + 1]`.
      weight: of a person's rows, `[n, rows]`; they add up to 1, or to 0 where there are none.
      place: puts all rows where they are read.
    """
    width = x.shape[-1] - 1
    # in one row: programs for small matrices take XLA three times as long to compile
    start = Saddle(np.zeros(width**2, np.float32), ())
    flat = sums.compiled_release(key, described, _SECOND, start, place((x, weight))).w
    noisy = np.asarray(flat, np.float64).reshape(width, width)
    return (noisy + noisy.T) / 2


def preconditioner(second: np.ndarray, ridge: float, half: float) -> np.ndarray:
    """Returns P, float32 `[d + 1, d + 1]`, of a released M, of r >= `least_ridge`, and of h."""
    full = np.eye(len(second) + 1)
    full[:-1, :-1] = second
    values, vectors = np.linalg.eigh(full)
    return np.asarray((vectors / (half * np.maximum(values, 0.0) + ridge)) @ vectors.T,
                      np.float32)


def variances(squares: Any, by: Moments, floor: float | None,
              described: Repeat) -> tuple[np.ndarray, np.ndarray]:
    """Returns features' variances by the diagonal of M, and their noise, both `[d]`.

    Cut rows make a variance smaller. Where `by` has other means than the data, it is larger by the
    square of the difference.

    Args:
      squares: the diagonal of a released M.
      by: the released moments that rows were scaled by.
      floor: least variance that a feature was divided by.
      described: the release of M.
    """
    divided = spread(by, floor)[1] ** 2
    return divided * np.asarray(squares), divided * statistics.deviation(described)
