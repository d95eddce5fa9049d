"""Noise multipliers of a description: set, shared, and read as plain numbers."""

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxminimax import _check
from jaxminimax._types import Saddle
from jaxminimax.mechanism._queries import Query


def with_noise(query: Any, scale: float) -> Any:
    """`query` with its noise multipliers (1 each if not set) times `scale`, as Python floats."""
    ratio = query.noise_multiplier
    if not isinstance(query, Query):
        one = 1.0 if ratio is None else concrete(ratio)
        return dataclasses.replace(query, noise_multiplier=one * scale)
    if ratio is None:
        ratio = Saddle(*(None if c is None else 1.0 for c in query.clip))
    scaled = jax.tree.map(lambda x: float(x) * scale, ratio)
    return dataclasses.replace(query, noise_multiplier=scaled)


def budget_split(w: float) -> Saddle:
    """Ratio of noise multipliers that gives player w the share `w` of the budget, v the rest.

    The budget is the squared Gaussian parameter mu^2 = sum_p (2 / z_p)^2 T, so z_p goes like
    share_p^(-1/2).

    Raises:
      ValueError: unless 0 < w < 1.
    """
    _check.number("w", w, low=0.0, high=1.0)
    return Saddle(w**-0.5, (1.0 - w) ** -0.5)


def check_noise(query: Any) -> Any:
    """The noise multipliers of `query`: a `Saddle` of a `Query`, one number of the others.

    Raises:
      ValueError: if they were never set.
    """
    if query.noise_multiplier is None:
        raise ValueError("noise_multiplier is not set: calibrate(algorithm, hyper, epsilon=..., "
                         "delta=...) sets it; 0.0 (for two players Saddle(0.0, 0.0)) runs without "
                         "privacy.")
    return query.noise_multiplier


def concrete(x: Any) -> float:
    """A number out of a description as a Python float.

    Raises:
      ValueError: for a tracer or an array of several numbers: accounting runs on the host, on one
        description at a time.
    """
    if isinstance(x, jax.core.Tracer) or np.ndim(x) != 0:
        raise ValueError(f"Accounting needs one plain number, got {x!r}: call it outside jit and "
                         "vmap, on one description at a time.")
    return float(x)
