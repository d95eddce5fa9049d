"""The releases of a round, compared with the description that is charged while it is traced.

Drivers compute a round by `update`, which refuses an algorithm whose releases are not those of
`mechanism(hyper)`, or that reads rows or the key past its releases (`data_flow`). It looks at the
program once, when it is traced, and adds nothing to it. Descriptions inside a user's own `jax.jit`
that was traced before are not seen again; keys that differ by the place of a description
(`release_keys.stream`) need no such look. `made_releases` has the releases of rounds while they
run.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from jaxminimax.base.types import Algorithm, PyTree
from jaxminimax.releases import data_flow, made_releases, parts, release_operation

Function = TypeVar("Function", bound=Callable[..., Any])


class Seen(NamedTuple):
    """One release of a round, as the drivers see it.

    Attributes:
      described: its description.
      number: releases of this description that were made before.
      value: the released value.
      trace: the program that it is a part of; inside a `jit` or a branch of the round another one.
    """

    described: Any
    number: Any
    value: PyTree
    trace: Any


_SEEN: ContextVar[list[Seen] | None] = ContextVar("releases", default=None)


def watched(function: Function | None = None, *, data_argument: str = "data",
            shown: Callable[[Any], PyTree] = lambda value: value) -> Any:
    """Records calls of a release function `(key, mechanism, spent, ...)`, but none inside it.

    Args:
      function: the release function; without it a decorator is returned.
      data_argument: the name of its argument that holds the rows.
      shown: what of its value is the noisy sum.

    Raises:
      ValueError: for a function that has no argument of that name.
    """
    if function is None:
        return functools.partial(watched, data_argument=data_argument, shown=shown)
    if data_argument not in inspect.signature(function).parameters:
        raise ValueError(f"{function.__name__} has no argument {data_argument!r}: name the one "
                         "that holds the rows, watched(data_argument='rows').")

    function = made_releases.noted(function)  # type: ignore[assignment]

    @functools.wraps(function)
    def release(key: jax.Array, mechanism: Any, spent: Any, *args: Any, **kwargs: Any) -> Any:
        mechanism, spent = parts.placed(mechanism, spent)
        releases = _SEEN.get()
        # a release that calls others is charged as one
        token = _SEEN.set(None)
        try:
            with parts.whole():
                value = release_operation.bind(function, data_argument, key, mechanism, spent,
                                               *args, **kwargs)
        finally:
            _SEEN.reset(token)
        if releases is None:
            return value
        releases.append(Seen(mechanism, spent, shown(value), _program()))
        return value

    return release


def watched_pair(function: Function) -> Function:
    """Applies `watched` to a function of a pair; it records the first entry, the noisy sum."""
    return watched(function, shown=lambda value: value[0])


def _program() -> Any:
    """The program that JAX traces at the moment."""
    from jax.extend.core import get_opaque_trace_state  # 0.2 s, for those who trace

    return get_opaque_trace_state()


def _stream(described: Any) -> tuple[int, int]:
    return described.kind, described.place


def update(algorithm: Algorithm[Any, Any], key: jax.Array, state: Any, data: PyTree, hyper: Any,
           problem: Any, numbered: bool = True) -> Any:
    """Makes a round of `algorithm.update`, whose releases `algorithm.mechanism(hyper)` describes.

    `numbered` as of `data_flow.check`.

    Raises:
      ValueError: while tracing, for a release that the description does not have, or that differs
        from it; for a description that is charged and not released; for two releases of one
        description with one number.
    """
    return update_and_releases(algorithm, key, state, data, hyper, problem, numbered)[0]


def update_and_releases(algorithm: Algorithm[Any, Any], key: jax.Array, state: Any, data: PyTree,
                        hyper: Any, problem: Any,
                        numbered: bool = True) -> tuple[Any, list[Seen]]:
    """The state that `update` returns, and the releases in their order."""
    outer = _SEEN.get()
    releases: list[Seen] = []
    traces: list[Any] = []  # the program of the round

    def traced(key: jax.Array, state: Any, data: PyTree) -> tuple[Any, list[PyTree], list[Any]]:
        trace, token = _program(), _SEEN.set([])
        traces.append(trace)
        try:
            state = algorithm.update(key, state, data, hyper, problem)
            releases.extend(_SEEN.get() or [])
        finally:
            _SEEN.reset(token)
        described = algorithm.mechanism(hyper)
        if releases:  # else all of them are in a program that was traced before
            _check(releases, described, algorithm.mechanism(hyper), trace)
        # with which `data_flow` compares those of releases
        numbers = jax.tree.leaves(list(described.answered()))
        return state, [x.value for x in releases if x.trace == trace], numbers

    program, shapes = jax.make_jaxpr(traced, return_shape=True)(key, state, data)
    rounds = None if isinstance(hyper.iterations, jax.core.Tracer) else int(hyper.iterations)
    data_flow.check(program, key, data, state, shapes[0], rounds, algorithm.mechanism(hyper),
                    numbered)
    new, values, _ = jax.tree.unflatten(jax.tree.structure(shapes), jax.core.eval_jaxpr(
        program.jaxpr, program.consts, *jax.tree.leaves((key, state, data))))
    releases = [x._replace(value=values.pop(0)) if x.trace == traces[0] else x for x in releases]
    if outer is not None:  # a run inside a round
        outer += releases
    return new, releases


def _check(releases: list[Seen], described: Any, recomputed: Any, trace: Any) -> None:
    charged = {_stream(release): (release, other) for release, other in zip(
        described.answered(), recomputed.answered(), strict=True)}
    released = set()
    for release in releases:
        name, place = f"a {type(release.described).__name__}", _stream(release.described)
        if place not in charged:
            raise ValueError(f"update releases {name} at place {place[1]}, which mechanism(hyper) "
                             "does not have, so nothing charges it: release the parts of "
                             "mechanism(hyper) themselves.")
        if not _is_charged(release.described, *charged[place], release.trace == trace):
            raise ValueError(f"update releases {name} with other settings than the one of "
                             "mechanism(hyper) that is charged for it: release the parts of "
                             "mechanism(hyper) as they are.")
        released.add(place)
    for place in set(charged) - released:
        raise ValueError(f"update never releases a {type(charged[place][0]).__name__} that "
                         "mechanism(hyper) charges for: give each release its own part of "
                         "mechanism(hyper).")


def _is_charged(described: Any, charged: Any, recomputed: Any, in_round: bool) -> bool:
    """Returns whether a description is the one that is charged.

    `charged` and `recomputed` are from two calls of `mechanism(hyper)`. If both hold one traced
    number as the same object, `mechanism` passes it on, and `described` must hold that object too.
    A number that `mechanism` computes anew cannot be compared. Neither can arguments of a `jit` or
    a branch inside the round: `in_round` is True for a release outside of these.
    """
    traced = isinstance(described, jax.core.Tracer)
    if traced and not in_round:
        return True
    if isinstance(charged, jax.core.Tracer):
        return described is charged or (traced and charged is not recomputed)
    if type(described) is not type(charged):
        return False
    if isinstance(described, tuple):
        return len(described) == len(charged) and all(
            _is_charged(*entries, in_round)
            for entries in zip(described, charged, recomputed, strict=True))
    if dataclasses.is_dataclass(described) and not isinstance(described, type):
        return all(_is_charged(getattr(described, field.name), getattr(charged, field.name),
                               getattr(recomputed, field.name), in_round)
                   for field in dataclasses.fields(described))
    return described is charged or bool(np.array_equal(described, charged))
