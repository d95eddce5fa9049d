"""A traced loss as a flat list of steps, so that one can look for parameters in it and tap it.

Calls that only group equations (jit, checkpoint) are unrolled; everything with a derivative rule
or a control flow of its own stays one step, and is run by JAX itself. Of a scan, the body is a list
of steps, too.

`run` runs them with zeros added to some results, and hands out what was met there. The derivative
by such a zero, a tap, is that by the result. Where steps in the body of a scan are tapped, the scan
is built anew around them: taps `[L, ...]` come in besides what it scans over, and are added to the
results of the steps; what the steps met goes out besides what it stacks, so both stand in the order
of the iterations, whichever way it runs. A body that was marked for rematerialisation, in whole or
in part, is rematerialised as a whole.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import programs
from jaxminimax.gradients.ghost.convolution import convolve, ungrouped

if TYPE_CHECKING:
    from jax.extend import core

# Never custom_jvp or custom_vjp: their rules, not the equations inside, are the derivative.
_GROUPS = {"jit": "jaxpr", "pjit": "jaxpr", "checkpoint": "jaxpr", "remat2": "jaxpr",
           "remat": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}

Path = tuple[int, ...]  # of a step: its number, in the body of the scan before it if there is one


class Loop(NamedTuple):
    """A scan of the traced loss.

    Attributes:
      body: its steps; `(constants, carry, scanned) -> (carry, stacked)`.
      constants: numbers of operands that all iterations share.
      carry: numbers of operands that go from one to the next.
      carried: shapes and dtypes of the carry.
      read: which of the results are read.
      how: length, direction and unrolling.
      remat: of the body, None for one that is not marked.
    """

    body: "Flat"
    constants: int
    carry: int
    carried: list[Any]
    read: list[int]
    how: dict[str, Any]
    remat: Callable[[Callable[..., Any]], Callable[..., Any]] | None


class Step(NamedTuple):
    """One equation of the traced loss.

    Attributes:
      name: of the primitive.
      params: of the primitive.
      avals: shapes and dtypes of all operands.
      operands: slot of each operand.
      results: slots of the results that are read.
      out: shape and dtype of the first result; None for a step without results.
      run: `operands -> results`.
      read: numbers of the results that are read.
      loop: of a scan that can be tapped.
    """

    name: str
    params: dict[str, Any]
    avals: list[Any]
    operands: list[int]
    results: list[int]
    out: Any
    run: Callable[..., list[Any]]
    read: list[int]
    loop: Loop | None = None


class Flat(NamedTuple):
    """A function `leaves -> values` as steps over numbered slots.

    Attributes:
      steps: in an order in which they can be run.
      inputs: slots of the leaves.
      constants: values of further slots.
      outputs: slots of the values.
    """

    steps: list[Step]
    inputs: list[int]
    constants: dict[int, Any]
    outputs: list[int]


def _run_equation(jaxpr: "core.Jaxpr", equation: "core.JaxprEqn", results: "list[core.Var]",
                  *operands: Any) -> list[Any]:
    from jax.extend import core

    if equation.primitive.name == "conv_general_dilated" and ungrouped(equation.params):
        return [convolve(equation.params, *operands)]
    # a program of this equation alone, with its literals in it
    inputs = {x: value for x, value in zip(equation.invars, operands, strict=True)
              if not isinstance(x, core.Literal)}
    closed = core.ClosedJaxpr(jaxpr.replace(
        constvars=[], invars=list(inputs), outvars=results, eqns=[equation],
        effects=equation.effects), [])
    return core.jaxpr_as_fun(closed)(*inputs.values())


def _remat_of(jaxpr: "core.Jaxpr") -> Callable[[Callable[..., Any]], Callable[..., Any]] | None:
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name in ("checkpoint", "remat2", "remat"):
            return functools.partial(jax.checkpoint, policy=params["policy"],
                                     prevent_cse=params["prevent_cse"])
        inner = params[_GROUPS[name]] if name in _GROUPS else None
        remat = inner and _remat_of(getattr(inner, "jaxpr", inner))
        if remat is not None:
            return remat
    return None


def _loop_of(params: dict[str, Any], avals: list[Any], read: list[int]) -> Loop | None:
    """The loop of a scan; None for one of no iterations, and one with effects."""
    body, (constants, carry) = params["jaxpr"], programs.scan_sizes(params)
    if not params["length"] or body.effects:
        return None
    return Loop(flatten(body), constants, carry, avals[constants:constants + carry], read,
                {name: params[name] for name in ("length", "reverse", "unroll")},
                _remat_of(body.jaxpr))


def flatten(closed: "core.ClosedJaxpr") -> Flat:
    """The steps of a traced function."""
    from jax.extend import core

    literal: Any = core.Literal
    steps: list[Step] = []
    constants: dict[int, Any] = {}
    new_slot = itertools.count().__next__

    def constant(value: Any) -> int:
        slot = new_slot()
        constants[slot] = value
        return slot

    def unroll(jaxpr: "core.Jaxpr", consts: Sequence[Any], inputs: list[int]) -> list[int]:
        place = dict(zip([*jaxpr.constvars, *jaxpr.invars],
                         [*map(constant, consts), *inputs], strict=True))

        def slots(variables: Sequence[Any]) -> list[int]:
            return [constant(np.asarray(x.val, x.aval.dtype)) if isinstance(x, literal)
                    else place[x] for x in variables]

        for equation in jaxpr.eqns:
            name, params, results = equation.primitive.name, equation.params, equation.outvars
            operands = slots(equation.invars)
            if name in _GROUPS:
                inner = params[_GROUPS[name]]
                place.update(zip(results, unroll(getattr(inner, "jaxpr", inner), getattr(
                    inner, "consts", ()), operands), strict=True))
                continue
            read = [i for i, x in enumerate(results) if not isinstance(x, core.DropVar)]
            place.update({results[i]: new_slot() for i in read})
            avals = [x.aval for x in equation.invars]
            steps.append(Step(
                name, params, avals, operands, [place[results[i]] for i in read],
                results[0].aval if results else None, functools.partial(
                    _run_equation, jaxpr, equation, [results[i] for i in read]), read,
                _loop_of(params, avals, read) if name == "scan" else None))
        return slots(jaxpr.outvars)

    inputs = [new_slot() for _ in closed.jaxpr.invars]
    outputs = unroll(closed.jaxpr, closed.consts, inputs)
    return Flat(steps, inputs, constants, outputs)


def moved(flat: Flat, last: Sequence[Any]) -> dict[int, Any]:
    """Values of the slots that only rearrange the last inputs."""
    values = dict(zip(flat.inputs[len(flat.inputs) - len(last):], last, strict=True))
    # no casts: compilers may skip a cast to a narrower type in one reader and not in another
    moves = {"reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "copy", "slice"}
    for step in flat.steps:
        if step.name in moves and values.keys() >= set(step.operands):
            values.update(zip(step.results, step.run(*[values[k] for k in step.operands]),
                              strict=True))
    return values


def _below(number: int, values_of: Mapping[Path, Any]) -> dict[Path, Any]:
    """The entries that belong to steps in the body of that one."""
    return {path[1:]: x for path, x in values_of.items() if len(path) > 1 and path[0] == number}


def _run_loop(loop: Loop, operands: list[Any], taps: Mapping[Path, jax.Array],
              watched: Mapping[Path, set[int]]) -> tuple[list[Any], dict[Any, jax.Array]]:
    """Runs a scan: returns what is read of its results, and the watched operands, stacked."""
    first, last = loop.constants, loop.constants + loop.carry
    shared = operands[:first]

    def strong(values: list[Any]) -> list[Any]:  # of the types that the body was traced for
        return [x if jnp.issubdtype(like.dtype, jax.dtypes.extended)
                else jax.lax.convert_element_type(x, like.dtype)
                for x, like in zip(values, loop.carried, strict=True)]

    def body(carry: list[Any], scanned: tuple[list[Any], dict[Path, jax.Array]]) -> Any:
        values, met = run(loop.body, [*shared, *carry, *scanned[0]], scanned[1], watched)
        # or their derivatives would be carried along
        met = jax.tree.map(jax.lax.stop_gradient, met)
        return strong(values[: loop.carry]), (values[loop.carry:], met)

    marked = body if loop.remat is None else loop.remat(body)
    # taps [L, ...] are scanned over: iteration l adds slice l
    carry, (stacked, met) = jax.lax.scan(
        marked, strong(operands[first:last]), (operands[last:], dict(taps)), **loop.how)
    results = [*carry, *stacked]
    return [results[i] for i in loop.read], met


def run(flat: Flat, leaves: Sequence[Any], taps: Mapping[Path, jax.Array],
        watched: Mapping[Path, set[int]]) -> tuple[list[Any], dict[tuple[Path, int], jax.Array]]:
    """Runs the steps of a trace.

    Args:
      flat: the steps.
      leaves: values of the inputs.
      taps: what to add to the first result of a step, `[L, ...]` for one in a loop.
      watched: operands to hand out, by their step.

    Returns:
      The values, and the watched operands.
    """
    values = flat.constants | dict(zip(flat.inputs, leaves, strict=True))
    recorded: dict[tuple[Path, int], jax.Array] = {}
    for number, step in enumerate(flat.steps):
        operands = [values[k] for k in step.operands]
        for k in watched.get((number,), ()):
            recorded[(number,), k] = jnp.asarray(operands[k])
        below = (_below(number, taps), _below(number, watched)) if step.loop else ({}, {})
        if step.loop is not None and any(below):
            results, met = _run_loop(step.loop, operands, *below)
            recorded |= {((number, *path), k): x for (path, k), x in met.items()}
        else:
            results = step.run(*operands)
        if (number,) in taps:
            results = [results[0] + taps[number,], *results[1:]]
        values.update(zip(step.results, results, strict=True))
    return [values[k] for k in flat.outputs], recorded


def tap(flat: Flat, path: Path) -> jax.Array:
    """Zeros to add to the first result of a step."""
    lengths: list[int] = []
    for number in path[:-1]:
        loop = flat.steps[number].loop
        assert loop is not None
        lengths, flat = [*lengths, loop.how["length"]], loop.body
    out = flat.steps[path[-1]].out
    # [L, ..., *out]: one for each iteration of the loops around it
    return jnp.zeros((*lengths, *out.shape), out.dtype)
