"""Releases on one part of the data, of algorithms that describe a run on all of their data.

Recursive regularisation runs an algorithm anew on every part. Each of these runs describes K
releases of n records and counts them from 0, so two of them would read the same rows under the same
keys. Within `on_part` a release of `Repeat(query, times=K)` with number s is made as

    release  part * K + s  of  Repeat(query, times=K, parts=parts),

which reads rows [part n, (part + 1) n) and has keys of its own. That is the description which is
charged; a round that releases anything else is refused by `watch.update`, as everywhere.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.base import programs
from jaxminimax.mechanism import Repeat
from jaxminimax.releases.budget import within_budget


class _Part(NamedTuple):
    """Part `number` of `parts` of the data."""

    number: jax.Array
    parts: int


_PART: ContextVar[_Part | None] = ContextVar("part of the data", default=None)


@contextlib.contextmanager
def on_part(number: jax.Array, parts: int) -> Iterator[None]:
    """Makes all releases within on part `number` of `parts` of the data.

    Args:
      number: of the part, from 0; it must not depend on the data. From `parts` on all releases are
        refused.
      parts: of the data.
    """
    token = _PART.set(_Part(number, parts))
    try:
        # a `jit` inside the round that was traced for other parts is traced again
        with programs.traced_anew():
            yield
    finally:
        _PART.reset(token)


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Leaves what is inside a release as it is: its description has the part already."""
    token = _PART.set(None)
    try:
        yield
    finally:
        _PART.reset(token)


def placed(mechanism: Any, spent: Any) -> tuple[Any, Any]:
    """The description and the number that a release is made for.

    Args:
      mechanism: as the algorithm describes it.
      spent: as the algorithm counts it; none of the K of a part means none of all of them.

    Raises:
      ValueError: within `on_part`, for another description than a `Repeat` on one part, and for
        numbers as of `within_budget`.
    """
    part = _PART.get()
    if part is None:
        return mechanism, spent
    if not isinstance(mechanism, Repeat) or mechanism.parts != 1:
        raise ValueError(f"Only a Repeat of the whole data is released on a part of them, got a "
                         f"{type(mechanism).__name__}.")
    # none but 0, ..., K - 1 of parts 0, ..., parts - 1; number -1 is refused
    allowed = within_budget(spent, mechanism.times) & within_budget(part.number, part.parts)
    number = jnp.where(allowed, part.number * mechanism.times + jnp.asarray(spent), -1)
    return dataclasses.replace(mechanism, parts=part.parts), number
