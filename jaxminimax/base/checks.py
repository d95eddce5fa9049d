"""Checks of numbers, whose messages have the value and the fix. Tracers pass unchecked."""

import inspect
import math
import numbers
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def _is_jax(value: Any, kind: str = "Array") -> bool:
    """Returns whether a value is an array of JAX; none is before JAX is loaded."""
    loaded = sys.modules.get("jax")
    return loaded is not None and isinstance(
        value, loaded.Array if kind == "Array" else loaded.core.Tracer)


def _values(name: str, value: Any) -> np.ndarray | None:
    if _is_jax(value, "Tracer"):
        return None
    ok = isinstance(value, numbers.Real | np.ndarray) or _is_jax(value)
    ok = ok and not isinstance(value, bool)
    array = np.asarray(value) if ok else None
    if array is None or array.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be a number, got {describe(value)}.")
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
        raise ValueError(f"{name} must lie in {span}, got {describe(value)}.")


def positive(**values: Any) -> None:
    """Refuses numbers, or arrays of them, that are not positive and finite; see `number`."""
    for name, value in values.items():
        number(name, value, low=0.0)


def count(name: str, value: Any, *, low: int = 1, high: float = math.inf) -> None:
    """Refuses `value` unless it is an integer, at least `low` and at most `high`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < low:
        raise ValueError(f"{name} must be an integer, at least {low}, got {describe(value)}.")
    if int(value) > high:
        raise ValueError(f"{name} must be an integer, at most {high:g}, got {describe(value)}.")


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuses `value` unless it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {describe(value)}.")


TRUTH: tuple[Any, str] = (bool | np.bool_, "True or False")


def kinds(expected: Mapping[str, tuple[Any, str]], arguments: Mapping[str, Any]) -> None:
    """Refuses arguments of another kind than theirs.

    Args:
      expected: for each argument its kinds, as `isinstance` takes them, and what to give in words.
      arguments: by name; those that are not in `expected` pass.

    Raises:
      ValueError: naming the argument, its kind, and what to give.
    """
    for name, (kind, words) in expected.items():
        if name in arguments and not isinstance(arguments[name], kind):
            raise ValueError(f"{name} must be {words}, got {describe(arguments[name])}.")


def scalars(**values: Any) -> None:
    """Refuses arrays, traced or not: of several sizes, some would be used and others charged.

    Raises:
      ValueError: naming the value.
    """
    for name, x in values.items():
        if np.shape(x) != ():
            raise ValueError(f"{name} must be one number, got shape {np.shape(x)}.")


def describe(x: Any) -> str:
    """Describes a value for a message: its kind, and its print if it is one short word or number.

    What holds several values may be records, given in the place of a setting: it is not printed.
    """
    kind = type(x)
    module = kind.__module__.split(".")[0]
    name = kind.__qualname__ if module in ("builtins", "jaxminimax") else (
        f"{module}.{kind.__qualname__}")
    if isinstance(x, np.ndarray) or _is_jax(x):
        return f"an array of shape {np.shape(x)} and dtype {x.dtype}"
    if callable(x) and hasattr(x, "__qualname__"):
        return f"{'class' if isinstance(x, type) else 'function'} {x.__qualname__}"
    single = x is None or isinstance(x, str | numbers.Number)
    long = isinstance(x, int) and x.bit_length() > 200  # Python refuses to print the longest ones
    text = repr(x) if single and not long else ""
    return f"{text} ({name})" if 0 < len(text) <= 60 and "\n" not in text else name


def takes(name: str, function: Any, *arguments: str) -> None:
    """Refuses an object that is no function of so many arguments.

    Args:
      name: what to call it in the message.
      function: the argument that was passed; a function without a signature passes.
      *arguments: names of the positional arguments that it is called with.

    Raises:
      TypeError: naming the function and its arguments.
    """
    call_form = f"({', '.join(arguments)})"
    if not callable(function):
        raise TypeError(f"{name} must be a function of {call_form}, got {describe(function)}.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(f"{name} is called with {call_form}, and {describe(function)} takes "
                        f"{signature}: {error}.") from None


def without_value(name: str, update: Callable[..., Any], *args: Any) -> Any:
    """Returns what an optimiser's `update` makes of a release, its memory and the point.

    Raises:
      TypeError: for an optimiser that asks for more, such as the value of the loss.
    """
    try:
        return update(*args)
    except TypeError as error:
        if "keyword-only" not in str(error):
            raise
        raise TypeError(f"{name} asks for more than the gradient ({error}), but the loss of the "
                        "records is not released: take an optimiser that needs the gradient "
                        "alone, and a schedule in the place of reduce_on_plateau.") from error


def one_number(value: Any, name: str) -> Any:
    """Returns `value` if it is one number as an array.

    Raises:
      TypeError: for a tuple such as (loss, aux), or an array of several.
    """
    if not (isinstance(value, np.ndarray | np.generic | float | int) or _is_jax(value)):
        raise TypeError(f"{name} must return one number, got {describe(value)}: return the loss "
                        "alone, without auxiliary values.")
    if np.shape(value) != ():
        raise TypeError(f"{name} must return one number, got shape {np.shape(value)}: it is of one "
                        "record, and sums or means over its entries are yours to take.")
    return value


_FAST = ("xla_cpu_enable_fast_math", "xla_cpu_enable_fast_min_max", "xla_gpu_enable_fast_min_max",
         "xla_enable_fast_math")


def flags() -> str:
    """The flags of XLA in the environment, or in the file that the environment names."""
    stated = os.environ.get("XLA_FLAGS", "")
    if not stated.strip().startswith("-") and os.path.isfile(stated.strip()):
        with open(stated.strip()) as file:
            return file.read()
    return stated


def exact_arithmetic() -> None:
    """Refuses to release anything with arithmetic that treats NaN or infinity specially.

    Raises:
      ValueError: naming the option that is on.
    """
    import jax

    for name in ("debug_nans", "debug_infs"):
        if getattr(jax, name).value:
            raise ValueError(f"jax_{name} is on: a record whose operator is not finite would end "
                             "the run instead of counting as absent, and tell that it is there. "
                             "Switch it off; debug the operator on invented records.")
    set_to: dict[str, str] = {}
    for flag in flags().split():
        name, _, value = flag.lstrip("-").partition("=")
        set_to[name] = value.lower()
    for name in _FAST:
        if set_to.get(name, "false") not in ("false", "0"):
            raise ValueError(f"XLA_FLAGS has --{name}: compiled with it, a record that is not "
                             "finite need not count as absent, and sums need not be as exact as "
                             "the guarantee asks. Take it out.")
