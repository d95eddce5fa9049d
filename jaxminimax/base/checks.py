"""Refusals with the value and the fix in the message; tracers pass, they were numbers before."""

import math
import numbers
from typing import Any

import jax
import numpy as np


def _values(name: str, value: Any) -> np.ndarray | None:
    if isinstance(value, jax.core.Tracer):
        return None
    ok = isinstance(value, (numbers.Real, np.ndarray, jax.Array)) and not isinstance(value, bool)
    array = np.asarray(value) if ok else None
    if array is None or array.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be a number, got {value!r} ({type(value).__name__}).")
    return array.astype(np.float64)


def number(name: str, value: Any, *, low: float, high: float = math.inf, closed: bool = False,
           infinite: bool = False) -> None:
    """Refuses `value` (a number or an array of them) unless low < value < high everywhere.

    Args:
      name: what to call it in the message.
      value: tracers pass unchecked.
      low: lower end; allowed itself if `closed`.
      high: upper end; allowed itself if `closed`.
      closed: see `low` and `high`.
      infinite: whether infinity is allowed.

    Raises:
      ValueError: for a value that is no number, NaN, infinite, or out of range.
    """
    array = _values(name, value)
    if array is None:
        return
    inside = (array >= low) & (array <= high) if closed else (array > low) & (array < high)
    if infinite:
        inside |= array == math.inf
    if not np.all(inside & (infinite | np.isfinite(array))):
        span = f"{'[' if closed else '('}{low:g}, {high:g}{']' if closed else ')'}"
        raise ValueError(f"{name} must lie in {span}, got {value!r}.")


def count(name: str, value: Any, *, low: int = 1) -> None:
    """Refuses `value` unless it is an integer, at least `low`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < low:
        raise ValueError(f"{name} must be an integer, at least {low}, got {value!r}.")


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuses `value` unless it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")


def scalars(**values: Any) -> None:
    """Refuses arrays, traced or not: of several sizes, some would reach what others pay for.

    Raises:
      ValueError: naming the value.
    """
    for name, x in values.items():
        if np.shape(x) != ():
            raise ValueError(f"{name} must be one number, got shape {np.shape(x)}.")
