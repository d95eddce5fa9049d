"""The releases of a round, compared with the description that is charged while it is traced.

Drivers compute a round by `update`, which refuses an algorithm whose releases are not those of
`mechanism(hyper)`, or that reads rows or the key past its releases (`data_flow`). It looks at the
program once, when it is traced, and adds nothing to it. Descriptions inside a user's own `jax.jit`
that was traced before are not seen again; keys that differ by the place of a description
(`release_keys.stream`) need no such look. `numbered` counts releases while rounds run.
"""

import contextlib
import dataclasses
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.types import Algorithm, PyTree
from jaxminimax.releases import data_flow, release_operation

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


class Numbered(NamedTuple):
    """A release that was made: its stream of keys, its number, and the description's numbers."""

    kind: int
    place: int
    number: int
    settings: tuple[float, ...]


_SEEN: ContextVar[list[Seen] | None] = ContextVar("releases", default=None)
_NUMBERS: ContextVar[list[Numbered] | None] = ContextVar("numbers", default=None)
# Programs that were traced under another value of it are traced again.
_COUNTED = jax.make_user_context()


def watched(function: Function | None = None, *, data: str = "data",
            shown: Callable[[Any], PyTree] = lambda value: value) -> Any:
    """Records calls of a release function `(key, mechanism, spent, ...)`, but none inside it.

    Args:
      function: the release function; without it a decorator is returned.
      data: the name of its argument that holds the rows.
      shown: what of its value is the noisy sum.

    Raises:
      ValueError: for a function that has no argument of that name.
    """
    if function is None:
        return functools.partial(watched, data=data, shown=shown)
    if data not in inspect.signature(function).parameters:
        raise ValueError(f"{function.__name__} has no argument {data!r}: name the one that holds "
                         "the rows, watched(data='rows').")

    @functools.wraps(function)
    def release(key: jax.Array, mechanism: Any, spent: Any, *args: Any, **how: Any) -> Any:
        seen = _SEEN.get()
        # a release that calls others is charged as one
        token = _SEEN.set(None)
        try:
            value = release_operation.bind(function, data, key, mechanism, spent, *args, **how)
        finally:
            _SEEN.reset(token)
        if seen is None:
            return value
        seen.append(Seen(mechanism, spent, shown(value), _program()))
        if (numbers := _NUMBERS.get()) is not None:
            # with a number of what is released: one call for each lane of a vmap over points
            some = [jnp.ravel(x)[:1] for x in jax.tree.leaves(value) if jnp.size(x)][:1]
            jax.debug.callback(functools.partial(_note, numbers, *_stream(mechanism),
                                                 mechanism.releases()),
                               spent, jax.tree.leaves(mechanism), some)
        return value

    return release


def watched_pair(function: Function) -> Function:
    """Applies `watched` to a function of a pair; it records the first entry, the noisy sum."""
    return watched(function, shown=lambda value: value[0])


def _note(numbers: list[Numbered], kind: int, place: int, limit: int, spent: Any,
          settings: list[Any], _: list[Any]) -> None:
    if 0 <= int(spent) < limit:  # others release NaN
        numbers.append(Numbered(kind, place, int(spent), tuple(map(float, settings))))


def _program() -> Any:
    """The program that JAX traces at the moment."""
    from jax.extend.core import get_opaque_trace_state  # 0.2 s, for those who trace

    return get_opaque_trace_state()


def _stream(described: Any) -> tuple[int, int]:
    return described.kind, described.place


def update(algorithm: Algorithm[Any, Any], key: jax.Array, state: Any, data: PyTree, hyper: Any,
           problem: Any) -> Any:
    """Makes a round of `algorithm.update`, whose releases `algorithm.mechanism(hyper)` describes.

    Raises:
      ValueError: while tracing, for a release that the description does not have, or that differs
        from it; for a description that is charged and not released; for two releases of one
        description with one number.
    """
    return update_and_releases(algorithm, key, state, data, hyper, problem)[0]


def update_and_releases(algorithm: Algorithm[Any, Any], key: jax.Array, state: Any, data: PyTree,
                        hyper: Any, problem: Any) -> tuple[Any, list[Seen]]:
    """The state that `update` returns, and the releases in their order."""
    outer = _SEEN.get()
    seen: list[Seen] = []
    here: list[Any] = []  # the program of the round

    def traced(key: jax.Array, state: Any, data: PyTree) -> tuple[Any, list[PyTree]]:
        trace, token = _program(), _SEEN.set([])
        here.append(trace)
        try:
            state = algorithm.update(key, state, data, hyper, problem)
            seen.extend(_SEEN.get() or [])
        finally:
            _SEEN.reset(token)
        if seen:  # else all of them are in a program that was traced before
            _check(seen, algorithm.mechanism(hyper), algorithm.mechanism(hyper), trace)
        return state, [x.value for x in seen if x.trace == trace]

    program, shapes = jax.make_jaxpr(traced, return_shape=True)(key, state, data)
    rounds = None if isinstance(hyper.iterations, jax.core.Tracer) else int(hyper.iterations)
    data_flow.check(program, data, state, shapes[0], rounds)
    new, values = jax.tree.unflatten(jax.tree.structure(shapes), jax.core.eval_jaxpr(
        program.jaxpr, program.consts, *jax.tree.leaves((key, state, data))))
    seen = [x._replace(value=values.pop(0)) if x.trace == here[0] else x for x in seen]
    if outer is not None:  # a run inside a round
        outer += seen
    return new, seen


def _check(seen: list[Seen], described: Any, again: Any, trace: Any) -> None:
    charged = {_stream(one): (one, other) for one, other in zip(
        described.answered(), again.answered(), strict=True)}
    released = set()
    for one in seen:
        name, place = f"a {type(one.described).__name__}", _stream(one.described)
        if place not in charged:
            raise ValueError(f"update releases {name} at place {place[1]}, which mechanism(hyper) "
                             "does not have, so nothing charges it: release the parts of "
                             "mechanism(hyper) themselves.")
        if not _same(one.described, *charged[place], one.trace == trace):
            raise ValueError(f"update releases {name} with other settings than the one of "
                             "mechanism(hyper) that is charged for it: release the parts of "
                             "mechanism(hyper) as they are.")
        released.add(place)
    for place in set(charged) - released:
        raise ValueError(f"update never releases a {type(charged[place][0]).__name__} that "
                         "mechanism(hyper) charges for: give each release its own part of "
                         "mechanism(hyper).")


def _same(one: Any, charged: Any, again: Any, here: bool) -> bool:
    """Returns whether a description is the one that is charged.

    `charged` and `again` are from two calls of `mechanism(hyper)`. If both hold one traced number
    as the same object, `mechanism` passes it on, and `one` must hold that object too. A number that
    `mechanism` computes anew cannot be compared. Neither can arguments of a `jit` or a branch
    inside the round: `here` is True for a release outside of these.
    """
    if isinstance(one, jax.core.Tracer) and not here:
        return True
    if isinstance(charged, jax.core.Tracer):
        return one is charged or (isinstance(one, jax.core.Tracer) and charged is not again)
    if type(one) is not type(charged):
        return False
    if isinstance(one, tuple):
        return len(one) == len(charged) and all(
            _same(*each, here) for each in zip(one, charged, again, strict=True))
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        return all(_same(getattr(one, name), getattr(charged, name), getattr(again, name), here)
                   for name in (field.name for field in dataclasses.fields(one)))
    return one is charged or bool(np.array_equal(one, charged))


@contextlib.contextmanager
def numbered() -> Iterator[list[Numbered]]:
    """Collects the releases of rounds that are traced in this context, when they run."""
    numbers: list[Numbered] = []
    token = _NUMBERS.set(numbers)
    try:
        with _COUNTED(True):
            yield numbers
    finally:
        _NUMBERS.reset(token)


def check_numbers(numbers: list[Numbered], described: Any, spent: int) -> None:
    """Refuses what a run that stops after some rounds would not be charged for.

    Args:
      numbers: the releases of these rounds.
      described: the mechanism of the whole run.
      spent: of the state after them, by which a statement charges the run.

    Raises:
      ValueError: for two releases of one description with one number; for settings that are not
        charged; for more releases of a description than are charged after `spent`.
    """
    # callbacks of rounds that still run are waited for
    jax.effects_barrier()
    charged = {_stream(one): jax.tree.leaves(one) for one in described.answered()}
    for kind, place, _, settings in numbers:
        # but for rounding to float32
        if not np.allclose(settings, charged[kind, place], rtol=1e-6, atol=0.0):
            raise ValueError(f"update releases a description (kind {kind}, place {place}) with "
                             "other settings than the one of mechanism(hyper) that is charged for "
                             "it: release the parts of mechanism(hyper) as they are.")
    # two of one kind, place and number have one noise: their difference has none
    releases = [one[:3] for one in numbers]
    again = {one for one in releases if releases.count(one) > 1}
    if again:
        kind, place, number = min(again)
        raise ValueError(f"update makes two releases number {number} of one description (kind "
                         f"{kind}, place {place}), so with one noise: count on between them, and "
                         "from round to round.")
    begun = described.truncated(spent)
    charged_for = {} if begun is None else {
        _stream(one): one.releases() for one in begun.answered()}
    for (kind, place), count in Counter(one[:2] for one in releases).items():
        if count > (number := charged_for.get((kind, place), 0)):
            raise ValueError(f"update made {count} releases of one description (kind {kind}, place "
                             f"{place}), and a run that stops here, with spent = {spent}, is "
                             f"charged for {number}: count every release in the state's spent, and "
                             "state the releases of a round by Sequence(in_turn=True, each=...).")
