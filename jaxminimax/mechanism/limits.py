"""Checks of numbers and of neighbouring relations, which descriptions make before a charge."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxminimax.base import checks
from jaxminimax.mechanism.costs import REPLACE_ONE


def check_noise(query: Any) -> Any:
    """The noise multipliers of `query`: a `Saddle` of a `Query`, one number of the others.

    Raises:
      ValueError: if they were never set.
    """
    return check_set(query.noise_multiplier)


def check_set(noise_multiplier: Any) -> Any:
    """The noise multipliers.

    Raises:
      ValueError: if they were never set.
    """
    if noise_multiplier is None:
        raise ValueError("noise_multiplier is not set: calibrate(algorithm, hyper, epsilon=..., "
                         "delta=...) sets it; 0.0 (for two players Saddle(0.0, 0.0)) runs without "
                         "privacy.")
    return noise_multiplier


def replace_one_only(neighbours: str) -> None:
    """Refuses other relations, for descriptions that have a guarantee for that one only.

    Raises:
      ValueError: naming the fix.
    """
    if neighbours != REPLACE_ONE:
        raise ValueError("add_or_remove_one is offered for releases on Full() and Poisson(...) "
                         "samples of the whole data only: use neighbours='replace_one'.")


def check_grid(exact: Any, parameters: Any = 1) -> None:
    """Refuses what no grid of a release can follow from."""
    if not isinstance(exact, bool):
        raise ValueError(f"exact must be True or False, got {exact!r}.")
    checks.count("parameters", parameters)
    if parameters >= 2**31 - 32:
        raise ValueError(f"parameters must be below 2**31 - 32, got {parameters}: a release draws "
                         "its noise in one go.")


def check_times(name: str, times: int) -> None:
    """Refuses a number of releases that a counter of 32 bits does not hold."""
    checks.count(name, times)
    if times >= 2**31:
        raise ValueError(f"{name} must be below 2**31, got {times}: the counter of releases has 32 "
                         "bits.")


def check_multiplier(name: str, z: Any) -> None:
    """Refuses a noise multiplier out of range; None, not set yet, passes."""
    if z is None:
        return
    checks.number(name, z, low=0.0, high=1e15, closed=True)
    if is_plain(z, lambda x: 0 < x < 1e-4):
        raise ValueError(f"{name} must be 0 (no privacy) or at least 1e-4, got {z!r}.")


def check_sizes(sizes: Any) -> None:
    """Refuses sizes of groups that are no tuple of counts."""
    if not isinstance(sizes, tuple) or not sizes:
        raise ValueError("sizes must be a tuple of every group's number of records, got "
                         f"{sizes!r}: problems.by_group returns it.")
    for n in sizes:
        checks.count("sizes", n)
        if n >= 2**31:
            raise ValueError(f"sizes must be below 2**31, got {n}: indices are 32-bit.")


def check_bound(name: str, bound: Any) -> None:
    """Refuses a clip norm, or a bound on losses, that float32 programs would lose."""
    checks.number(name, bound, low=1e-28, high=1e28, closed=True)


def is_plain(x: Any, true: Callable[[float], bool]) -> bool:
    """Returns whether that holds of a number; not of tracers, nor of arrays of several."""
    return not isinstance(x, jax.core.Tracer) and np.ndim(x) == 0 and true(float(x))


def are_plain(*numbers: Any) -> bool:
    """Returns whether all are single numbers that are known."""
    return not any(isinstance(x, jax.core.Tracer) or np.ndim(x) for x in numbers)
