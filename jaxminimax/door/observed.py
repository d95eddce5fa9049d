"""The values that an update releases, observed where they leave the release functions.

A state shows a release only after the algorithm's own arithmetic: averages, projections, step sizes
that depend on the noise multiplier. An audit of the noise looks at the release itself.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

_Release = TypeVar("_Release", bound=Callable[..., Any])
_OBSERVED: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar(
    "_OBSERVED", default=None)


@contextlib.contextmanager
def observed() -> Iterator[list[Any]]:
    """A list that receives what release functions return meanwhile, in the order of the calls.

    Under a transformation of JAX these are values of the trace that the function is called in: a
    call inside a branch or a loop adds one that has no meaning outside of it.
    """
    values: list[Any] = []
    token = _OBSERVED.set(values)
    try:
        yield values
    finally:
        _OBSERVED.reset(token)


def observable(release: _Release) -> _Release:
    """A release function whose values `observed` receives.

    Of a release function that calls others, its own value alone.
    """
    return _observable(release, lambda value: value)


def first_observable(release: _Release) -> _Release:
    """As `observable`, of a function whose value is a pair: its first entry, the noisy sum."""
    return _observable(release, lambda value: value[0])


def _observable(release: _Release, part: Callable[[Any], Any]) -> _Release:
    @functools.wraps(release)
    def observing(*args: Any, **how: Any) -> Any:
        values = _OBSERVED.get()
        if values is None:
            return release(*args, **how)
        token = _OBSERVED.set(None)
        try:
            value = release(*args, **how)
        finally:
            _OBSERVED.reset(token)
        values.append(part(value))
        return value

    return cast(_Release, observing)
