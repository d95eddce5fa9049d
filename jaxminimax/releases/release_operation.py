"""A release as one operation of a traced program, by which programs are read.

`bind` traces a release function once, and binds the result as `private_release`: an operation with
the traced release as a parameter, whose operands are

    everything else that the release reads, key, number, settings, the leaves of the data,

in this order. `data_flow` follows rows and keys through a round by it. The operation adds nothing
to what runs: where a program is lowered or evaluated, the traced release stands in its place. It
has no derivative, since that would be the derivative of the sum without its noise.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
from jax.interpreters import ad, batching, mlir

from jaxminimax.base import programs

_INSIDE: ContextVar[bool] = ContextVar("whether a release is being traced", default=False)


class Operands(NamedTuple):
    """The operands of a `private_release`, or what is known of them, by sort and in their order."""

    rest: Any
    key: Any
    number: Any
    settings: Any
    data: Any

    def split(self, operands: Sequence[Any]) -> "Operands":
        """Cuts a list of all operands; `self` says how many there are of each sort."""
        ends = [0, *itertools.accumulate(self)]
        return Operands(*(list(operands[begin:end]) for begin, end in itertools.pairwise(ends)))


class Described(NamedTuple):
    """The description that a `private_release` answers.

    Attributes:
      stream: of its keys: kind and place of its description.
      structure: of the description, with all that is no number.
      numbers: of it, None for those that are operands.
    """

    stream: tuple[int, int]
    structure: Any
    numbers: tuple[Any, ...]


def bind(function: Callable[..., Any], data: str, key: Any, mechanism: Any, spent: Any, /,
         *args: Any, **kwargs: Any) -> Any:
    """Calls a release function, as one operation where a program is traced.

    Args:
      function: a release function `(key, mechanism, spent, ...)`.
      data: the name of its argument that holds the rows.
      key: its key.
      mechanism: its description.
      spent: its number.
      *args: its further arguments.
      **kwargs: those by name.

    Raises:
      ValueError: what the function raises; later, for a derivative of the result, and for a `vmap`
        over points that leaves key and number as they are.
    """
    if _INSIDE.get() or not programs.is_traced(key, mechanism, spent, args, kwargs):
        return function(key, mechanism, spent, *args, **kwargs)
    called = inspect.signature(function).bind(key, mechanism, spent, *args, **kwargs).arguments
    names = list(inspect.signature(function).parameters)
    places = (names[0], names[2], names[1], data)
    sorts, tree = jax.tree.flatten([called.get(name) for name in places])
    sizes = [len(jax.tree.leaves(called.get(name))) for name in places]
    # known numbers stay known: checks read them
    traced = [k for k, x in enumerate(sorts) if isinstance(x, jax.core.Tracer)
              or (k >= sum(sizes[:3]) and hasattr(x, "dtype"))]

    def call(*operands: Any) -> Any:
        values = list(sorts)
        for k, x in zip(traced, operands, strict=True):
            values[k] = x
        arguments = dict(called) | dict(zip(places, jax.tree.unflatten(tree, values), strict=True))
        bound = inspect.BoundArguments(inspect.signature(function), arguments)
        return function(*bound.args, **bound.kwargs)

    token = _INSIDE.set(True)
    try:
        program, shapes = jax.make_jaxpr(call, return_shape=True)(*(sorts[k] for k in traced))
    finally:
        _INSIDE.reset(token)
    ends = [0, *itertools.accumulate(sizes)]
    counts = [sum(begin <= k < end for k in traced) for begin, end in itertools.pairwise(ends)]
    numbers = tuple(None if isinstance(x, jax.core.Tracer) else x
                    for x in jax.tree.leaves(mechanism))
    values = private_release().bind(
        *program.consts, *(sorts[k] for k in traced),
        program=_without_constants(program), operands=Operands(len(program.consts), *counts),
        described=Described((mechanism.kind, mechanism.place), jax.tree.structure(mechanism),
                            numbers),
        number=None if isinstance(spent, jax.core.Tracer) else int(spent), mapped=False)
    return jax.tree.unflatten(jax.tree.structure(shapes), values)


def bind_public_key(function: Callable[..., jax.Array], *args: Any) -> jax.Array:
    """Derives the key of a public term from the run's, as one operation where that is traced.

    Keys are derived from words of the run's key, which a round may not read: as an operation, the
    derivation is known for what it is.

    Args:
      function: of `args`, which are arrays and numbers; its result serves no release.
      *args: its arguments.
    """
    if not programs.is_traced(args):
        return function(*args)
    program = jax.make_jaxpr(function)(*args)
    return public_key().bind(*program.consts, *args, program=_without_constants(program))[0]


def _without_constants(program: Any) -> Any:
    """A traced program whose constants are operands as its arguments are: it holds none."""
    jaxpr = program.jaxpr
    return jaxpr.with_consts(()) if hasattr(jaxpr, "with_consts") else jaxpr  # JAX 0.11, and 0.10


def _evaluated(*operands: Any, program: Any, **_: Any) -> list[Any]:
    constants = len(program.constvars)
    return jax.core.eval_jaxpr(program, operands[:constants], *operands[constants:])


def _shapes(*_: Any, program: Any, **__: Any) -> tuple[list[Any], Any]:
    return [x.aval for x in program.outvars], program.effects


def _batched(values: Sequence[Any], axes: Sequence[Any], *, program: Any, operands: Operands,
             described: Described, number: Any, mapped: bool) -> tuple[list[Any], list[int]]:
    """The release of every lane, as one operation; it keeps that its data were mapped over."""
    lanes = operands.split([axis is not None for axis in axes])
    if any(lanes.rest + lanes.settings) and not any(lanes.key + lanes.number + lanes.data):
        raise ValueError("vmap makes releases at several points, or with several closures, with "
                         "one key and one number, so with one noise: their differences have none. "
                         "Map over the key, or over the number, as well.")
    lanes_program = _lanes(values, axes, program)
    results = private_release().bind(
        *lanes_program.consts, *values, program=_without_constants(lanes_program),
        described=described, number=number,
        operands=operands._replace(rest=len(lanes_program.consts) + operands.rest),
        mapped=mapped or any(lanes.data))
    return results, [0] * len(results)


def _lanes(values: Sequence[Any], axes: Sequence[Any], program: Any) -> Any:
    lane = functools.partial(_evaluated, program=program)
    return jax.make_jaxpr(jax.vmap(lane, in_axes=tuple(axes)))(*values)


def _keys_of_lanes(values: Sequence[Any], axes: Sequence[Any], *,
                   program: Any) -> tuple[list[Any], list[int]]:
    lanes_program = _lanes(values, axes, program)
    return public_key().bind(*lanes_program.consts, *values,
                             program=_without_constants(lanes_program)), [0]


def _no_derivative(*_: Any, **__: Any) -> Any:
    raise ValueError("update takes a derivative through a release. It would be the derivative of "
                     "the sum without its noise: release what you need of it.")


def _operation(name: str, batched: Callable[..., Any]) -> Any:
    from jax.extend.core import Primitive  # 0.2 s, for those who trace

    operation: Any = Primitive(name)
    operation.multiple_results = True
    operation.def_impl(_evaluated)
    operation.def_effectful_abstract_eval(_shapes)
    # JAX 0.12 replaces operations of types of its own before it compiles, here those inside
    operation.to_lojax = _evaluated
    batching.primitive_batchers[operation] = batched
    mlir.register_lowering(operation, mlir.lower_fun(_evaluated, multiple_results=True))
    return operation


@functools.cache
def private_release() -> Any:
    """The operation that a traced release is."""
    operation = _operation("private_release", _batched)
    ad.primitive_jvps[operation] = _no_derivative
    return operation


@functools.cache
def public_key() -> Any:
    """The operation that derives the key of a public term."""
    return _operation("public_key", _keys_of_lanes)
