"""The releases that programs make while they run: their keys, their numbers and their settings.

Every release function notes its call (`noted`), by a callback that a program has only if it was
traced within `collected`. Two releases of one key, kind, place and number draw from one key: the
noise of one can be subtracted with the other's. So `check_apart` refuses them, over all that a
process did: rounds, trainings of tables, searches, runs that went on. `check_charge` compares the
releases of a run with its description. `jmm.check` does both for three rounds: there a loop, a
`vmap` over points and a number that stands still show, which the trace of a round does not.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import programs


class Made(NamedTuple):
    """A release that was made.

    Attributes:
      key: the words of the run's key.
      kind: of its description.
      place: of its description; with the kind it is the stream of keys (`release_keys.stream`).
      number: of the release in that stream.
      settings: the description's numbers.
    """

    key: tuple[int, ...]
    kind: int
    place: int
    number: int
    settings: tuple[float, ...]


_MADE: ContextVar[list[Made] | None] = ContextVar("releases that were made", default=None)


@contextlib.contextmanager
def collected() -> Iterator[list[Made]]:
    """Collects the releases of programs that are traced in this context, when they run.

    The list is whole after `jax.effects_barrier()`, which the checks below call.
    """
    releases: list[Made] = []
    token = _MADE.set(releases)
    try:
        with programs.traced_anew():
            yield releases
    finally:
        _MADE.reset(token)


def noted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Notes calls of a release function `(key, mechanism, spent, ...)`, but none inside it."""
    @functools.wraps(function)
    def release(key: jax.Array, mechanism: Any, spent: Any, *args: Any, **kwargs: Any) -> Any:
        releases = _MADE.get()
        if releases is None:
            return function(key, mechanism, spent, *args, **kwargs)
        token = _MADE.set(None)
        try:
            value = function(key, mechanism, spent, *args, **kwargs)
        finally:
            _MADE.reset(token)
        # nothing of what is released, and one call for each lane of a vmap over points
        lanes = [jnp.ravel(x)[:0] for x in jax.tree.leaves(value)]
        stream = mechanism.kind, mechanism.place, mechanism.releases()
        jax.debug.callback(functools.partial(_append, releases, *stream), jax.random.key_data(key),
                           spent, jax.tree.leaves(mechanism), lanes)
        return value

    return release


def _append(releases: list[Made], kind: int, place: int, limit: int, key: Any, number: Any,
            settings: list[Any], _: list[Any]) -> None:
    if 0 <= int(number) < limit:  # others release NaN
        releases.append(Made(tuple(np.ravel(key).tolist()), int(kind), place, int(number),
                         tuple(map(float, settings))))


def check_apart(releases: Iterable[Made]) -> None:
    """Refuses two releases of one key, kind, place and number.

    Raises:
      ValueError: naming kind, place and number, and never the key.
    """
    jax.effects_barrier()  # callbacks of programs that still run are waited for
    counts = Counter(release[:4] for release in releases)
    repeated = [release for release, count in counts.items() if count > 1]
    if repeated:
        _, kind, place, number = min(repeated)
        raise ValueError(f"two releases number {number} of one description (kind {kind}, place "
                         f"{place}) are made with one key, so with one noise: count on between "
                         "them, and from round to round; or give each a key of its own.")


def check_charge(releases: list[Made], described: Any, spent: int) -> None:
    """Refuses what a run that stops after some rounds would not be charged for.

    Args:
      releases: the releases of these rounds.
      described: the mechanism of the whole run.
      spent: of the state after them, by which a statement charges the run.

    Raises:
      ValueError: as `check_apart`; for settings that are not charged; for more releases of a
        description than are charged after `spent`.
    """
    jax.effects_barrier()
    charged = {(part.kind, part.place): jax.tree.leaves(part) for part in described.answered()}
    for _, kind, place, _, settings in releases:
        # but for rounding to float32
        if not np.allclose(settings, charged[kind, place], rtol=1e-6, atol=0.0):
            raise ValueError(f"update releases a description (kind {kind}, place {place}) with "
                             "other settings than the one of mechanism(hyper) that is charged for "
                             "it: release the parts of mechanism(hyper) as they are.")
    check_apart(releases)
    for stream, count in Counter(release[1:3] for release in releases).items():
        check_count(count, stream, described, spent)


def check_count(count: float, stream: tuple[int, int], described: Any, spent: int) -> None:
    """Refuses more releases of a kind and a place than a run that stops at `spent` is charged for.

    Raises:
      ValueError: naming both numbers.
    """
    begun = described.truncated(spent)
    charged = {} if begun is None else {
        (part.kind, part.place): part.releases() for part in begun.answered()}
    if count > (number := charged.get(stream, 0)):
        raise ValueError(f"update made {count:g} releases of one description (kind {stream[0]}, "
                         f"place {stream[1]}), and a run that stops here, with spent = {spent}, is "
                         f"charged for {number}: count every release in the state's spent, and "
                         "state the releases of a round by Sequence(in_turn=True, each=...).")
