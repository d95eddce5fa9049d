"""Planted bugs of rounds with several releases, and what catches them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import jaxminimax as jmm
from benchmarks.privacy.mutants.detectors import KEY, RUNS, Finding
from jaxminimax import Saddle
from jaxminimax.audit.released import shared_between_releases
from jaxminimax.mechanism import Query, Repeat, Sequence

_RECORDS = 20
_PROBLEM = jmm.Problem(lambda z, x: Saddle(x * jnp.tanh(z.w), ()))  # not the same at two points
_START, _DATA = Saddle(jnp.zeros(2), ()), jnp.ones((_RECORDS, 2))


class Two:
    """An extragradient whose two releases of a round have a description each."""

    @jmm.types.pytree_dataclass
    class Hyper:
        """Of the step, of the look ahead, and how many rounds."""

        query: Query
        ahead: Query
        iterations: int = jax.tree.static()

    class State(NamedTuple):
        """The point, twice, and releases made."""

        z: Saddle
        average: Saddle
        spent: jax.Array

    @staticmethod
    def mechanism(hyper: Any) -> Any:
        """A part for each."""
        return Sequence(parts=tuple(Repeat(query=query, times=hyper.iterations)
                                    for query in (hyper.ahead, hyper.query)), in_turn=True)

    @staticmethod
    def parts(described: Any) -> tuple[Any, Any]:
        """Of the look ahead and of the step."""
        ahead, step = described.parts
        return ahead, step

    @staticmethod
    def number(spent: jax.Array, before: int) -> jax.Array:
        """Of a release of its part, `before` releases into the round."""
        return spent // 2

    @staticmethod
    def init(z: Saddle, hyper: Any) -> "Two.State":
        """Nothing released."""
        return Two.State(z, z, jnp.int32(0))

    @classmethod
    def update(cls, key: jax.Array, state: Any, data: Any, hyper: Any, problem: Any) -> Any:
        """One round."""
        z = state.z
        for before, part in enumerate(cls.parts(cls.mechanism(hyper))):
            g = jmm.release(key, part, cls.number(state.spent, before), problem, z, data)
            z = Saddle(state.z.w - 0.5 * g.w, ())
        return Two.State(z, z, state.spent + 2)


class Twice(Two):
    """The same with one description of twice as many releases."""

    @staticmethod
    def mechanism(hyper: Any) -> Any:
        """One for both."""
        return Repeat(query=hyper.query, times=2 * hyper.iterations)

    @staticmethod
    def parts(described: Any) -> tuple[Any, Any]:
        """The same."""
        return described, described

    @staticmethod
    def number(spent: jax.Array, before: int) -> jax.Array:
        """Of all releases."""
        return spent + before


def _hyper() -> Any:
    query = Query(clip=Saddle(1.0, None), population=_RECORDS, noise_multiplier=Saddle(5.0, None))
    return Two.Hyper(query=query, ahead=dataclasses.replace(query, clip=Saddle(2.0, None)),
                     iterations=2)


def _shared(algorithm: Any) -> Finding:
    """The largest correlation of two releases' noise, from below; 0 if it may be chance."""
    return Finding(shared_between_releases(KEY, algorithm, _hyper(), _START, _DATA,
                                                   _PROBLEM, RUNS, 0.999), 0.0)


two_parts, one_part = functools.partial(_shared, Two), functools.partial(_shared, Twice)


def refused() -> Finding:
    """Runs that are refused, of one."""
    try:  # traced anew in every call
        jax.eval_shape(lambda key: jmm.run(key, _START, _DATA, _hyper(), Two, _PROBLEM).state, KEY)
    except ValueError:
        return Finding(1.0, 0.0)
    return Finding(0.0, 0.0)


def of_the_kind_alone(_: Callable[..., Any]) -> Callable[..., Any]:
    """Keys that do not ask for the place of a description."""
    return lambda described, further=None: int(described.kind if further is None else further)


def of_one_number(_: Callable[..., Any]) -> Callable[..., Any]:
    """The second release of a round has the number of the first, computed anew."""
    return lambda spent, before: spent + 0


def with_another_clip(parts: Callable[..., Any]) -> Callable[..., Any]:
    """The second release has a clip norm that is not charged."""
    def changed(described: Any) -> tuple[Any, Any]:
        ahead, step = parts(described)
        query = dataclasses.replace(step.query, clip=Saddle(4.0, None))
        return ahead, dataclasses.replace(step, query=query)

    return changed
