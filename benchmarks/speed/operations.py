"""Operations, bytes and kernels of a step, counted in its program before compilation.

Nothing is compiled and no array exists: `work` reads the equations of a traced function. A loop of
a known length counts its body as often as it runs. A loop of unknown length counts once, and of a
branch the way with fewest operations counts: both hold what is rare in a step. What no output needs
does not count.

Bytes are two bounds. "bytes" lets every operation read its operands and write its result, as if
nothing were fused. "fused bytes" lets elementwise work happen where its operands are read: then
products, convolutions, sorts, gathers and scatters read and write memory, a reduction reads what
its operands are made of, and a loop writes what a turn has made. "kernels" belong to the second
bound: one for each operation that is not elementwise, and one for all elementwise work that comes
after the same number of them and ends in memory.
"""

import collections
import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

Work = collections.Counter[str]
OPERATIONS = ("exact products", "products", "floats", "integers")
# the same numbers by another name, if as many bytes, and numbers in other places
_VIEWS = {"reshape", "transpose", "squeeze", "expand_dims", "copy", "bitcast_convert_type",
          "random_wrap", "random_unwrap", "broadcast_in_dim"}
_PLACES = {"iota", "rev", "concatenate", "pad", "stack", "platform_index"} | _VIEWS
_PARTS = {"slice", "dynamic_slice", "gather"}  # read what they return, not all of their operand
# the first touch what they are given, twice
_WRITES, _REDUCTIONS = ("scatter", "dynamic_update_slice"), ("reduce_", "arg", "cum")
_KERNELS = {"dot_general", "conv_general_dilated", "sort", "gather", "dynamic_slice", "top_k"}
_CONTROL = {"scan", "while", "cond"}


@dataclasses.dataclass(eq=False)
class _Value:
    """An array that an equation takes or makes.

    Attributes:
      shape: its shape.
      dtype: of its elements.
      size: how many elements it has.
      bytes: that they take; 0 for a constant of the program.
      depth: how many kernels come before it, one after the other.
      fusible: whether elementwise work made it.
      source: the array that it is a view of.
    """

    shape: tuple[int, ...]
    dtype: Any
    size: int
    bytes: int
    depth: int = 0
    fusible: bool = False
    source: Any = None


class _Step(NamedTuple):
    """An equation with its arrays, once for every time that its function is called."""

    equation: Any
    operands: list[_Value]
    results: list[_Value]


def _value(x: Any) -> _Value:
    width = 0 if isinstance(x, Literal) else x.aval.dtype.itemsize
    return _Value(x.aval.shape, x.aval.dtype, x.aval.size, x.aval.size * width)


def _programs(equation: Any) -> list[Any]:
    """Within an equation, but for how a scatter or a reduction joins two numbers."""
    if equation.primitive.name.startswith((*_WRITES, "reduce")):
        return []
    values = [v for x in equation.params.values()
              for v in (x if isinstance(x, tuple | list) else (x,))]
    return [getattr(v, "jaxpr", v) for v in values if hasattr(getattr(v, "jaxpr", v), "eqns")]


def _steps(program: Any, given: list[_Value]) -> tuple[list[_Step], list[_Value]]:
    """The equations of a program and of what it calls, in order, and its outputs."""
    values = dict(zip(program.invars, given, strict=True))
    values |= {x: _value(x) for x in program.constvars}

    def read(x: Any) -> _Value:
        return _value(x) if isinstance(x, Literal) else values[x]

    steps = []
    for equation in program.eqns:
        operands, inside = [read(x) for x in equation.invars], _programs(equation)
        if inside and equation.primitive.name not in _CONTROL:
            called, results = _steps(inside[0], operands[-len(inside[0].invars):])
            steps += called
        else:
            results = [_value(x) for x in equation.outvars]
            steps.append(_Step(equation, operands, results))
        values.update(zip(equation.outvars, results, strict=True))
    return steps, [read(x) for x in program.outvars]


def work(function: Callable[..., Any], *given: Any) -> Work:
    """Returns what one call of a function takes.

    Args:
      function: of arrays.
      *given: its arguments, as shapes (`jax.ShapeDtypeStruct`) or arrays.
    """
    return _count(jax.make_jaxpr(function)(*given).jaxpr)


def _count(program: Any) -> Work:
    steps, outputs = _steps(program, [_value(x) for x in program.invars])
    live, needed = set(outputs), []
    for step in reversed(steps):
        if live.intersection(step.results):
            needed.append(step)
            live.update(step.operands)
    # the last two: what elementwise work moves, and the depths at which it ends in memory
    total, moved, chains = Work(), set[_Value](), set[int]()
    for step in reversed(needed):
        equation, operands, results = step
        name, depth = equation.primitive.name, max((x.depth for x in operands), default=0)
        view = name in _VIEWS and operands[0].bytes == results[0].bytes
        if name in _CONTROL:
            total += _controlled(equation)
        else:
            total += arithmetic(step)
            total["bytes"] += _moved(step) * (not view)
        reduces = name.startswith(_REDUCTIONS)
        elementwise = not (reduces or name in _KERNELS | _CONTROL or name.startswith(_WRITES))
        if elementwise or reduces:
            total["fused bytes"] += results[0].bytes if name == "slice" or reduces else 0
            stored = [x for x in operands if not (x.fusible or view or name == "slice")]
            moved.update(x.source or x for x in stored)
        else:
            moved.update(x.source or x for x in operands if x.fusible)
            chains.update(x.depth for x in operands if x.fusible)
            total["fused bytes"] += 0 if name in _CONTROL else _moved(step)
        total["kernels"] += not elementwise and name not in _CONTROL
        for x in results:
            x.depth, x.fusible = depth + (not elementwise), elementwise
            if view:
                x.fusible, x.source = operands[0].fusible, operands[0].source or operands[0]
    ends = [x.source or x for x in outputs if x.fusible]
    total["kernels"] += len(chains.union(x.depth for x in ends))
    total["fused bytes"] += sum(x.bytes for x in moved.union(ends))
    return total


def arithmetic(step: _Step) -> Work:
    """Operations of an equation, by kind."""
    (equation, operands, [out, *_]), params = step, step.equation.params
    name = equation.primitive.name
    if name in ("dot_general", "conv_general_dilated"):
        if name == "dot_general":
            (over, _), _ = params["dimension_numbers"]
            terms: float = math.prod(operands[0].shape[k] for k in over)
        else:  # zeros that a dilation puts in are not multiplied
            kernel = operands[1].shape
            terms = math.prod(kernel) / max(1, kernel[params["dimension_numbers"].rhs_spec[0]])
            terms /= math.prod(params["lhs_dilation"])
        exact = "HIGHEST" in str(params["precision"]) or out.dtype == jnp.float64
        return Work({"exact products" if exact else "products": int(2 * terms * out.size)})
    if name in _PLACES | _PARTS:
        return Work()
    first = operands[0] if operands else out
    kind = "floats" if jnp.issubdtype(first.dtype, jnp.inexact) else "integers"
    writes = name.startswith(_WRITES)
    return Work({kind: operands[-1].size if writes else max(out.size, first.size)})


def _moved(step: _Step) -> int:
    """Bytes that an operation reads and writes if nothing is fused."""
    name = step.equation.primitive.name
    if name in _PARTS:
        return 2 * step.results[0].bytes + sum(x.bytes for x in step.operands[1:])
    if name.startswith(_WRITES):
        return 2 * sum(x.bytes for x in step.operands[1:])
    return sum(x.bytes for x in (*step.operands, *step.results))


def _controlled(equation: Any) -> Work:
    """Of a loop or a branch; the compiler takes one that names platforms."""
    name, params = equation.primitive.name, equation.params
    counts = [_count(x) for x in _programs(equation)]
    if name == "scan":
        return Work({kind: params["length"] * number for kind, number in counts[0].items()})
    if name == "while":
        return sum(counts, Work({"decisions": 1}))
    least = min(counts, key=lambda count: sum(count[kind] for kind in OPERATIONS))
    return least + Work({"decisions": not params.get("branches_platforms")})
