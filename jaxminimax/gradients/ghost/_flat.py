"""A traced loss as a flat list of steps, so that one can look for parameters in it and tap it.

Calls that only group equations (jit, checkpoint) are unrolled; everything with a derivative rule
or a control flow of its own stays one step, and is run by JAX itself.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from jaxminimax.gradients.ghost._convolution import convolve, understood

# Never custom_jvp or custom_vjp: their rules, not the equations inside, are the derivative.
_GROUPS = {"jit": "jaxpr", "pjit": "jaxpr", "checkpoint": "jaxpr", "remat2": "jaxpr",
           "remat": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}


class Step(NamedTuple):
    """One equation.

    Attributes:
      name: of the primitive.
      params: of the primitive.
      avals: shapes and dtypes of all operands.
      operands: slot of each operand.
      results: slots of the results that are read.
      out: shape and dtype of the first result.
      run: `operands -> results`.
    """

    name: str
    params: dict[str, Any]
    avals: tuple[Any, ...]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    out: Any
    run: Callable[..., list]


class Flat(NamedTuple):
    """A function `leaves -> value` as steps over numbered slots.

    Attributes:
      steps: in an order in which they can be run.
      inputs: slots of the leaves.
      constants: values of further slots.
      output: slot of the value.
    """

    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    constants: dict[int, Any]
    output: int


def _runner(jaxpr: core.Jaxpr, equation: core.JaxprEqn, results: Sequence[core.Var]) -> Callable:
    """`operands -> results` of one equation."""
    if equation.primitive.name == "conv_general_dilated" and understood(equation.params):
        return lambda x, kernel: [convolve(equation.params, x, kernel)]
    inputs = list(dict.fromkeys(x for x in equation.invars if not isinstance(x, core.Literal)))
    alone = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr.replace(
        constvars=[], invars=inputs, outvars=list(results), eqns=[equation],
        effects=equation.effects), []))

    def run(*operands: Any) -> list:
        of = dict(zip((x for x in equation.invars if not isinstance(x, core.Literal)),
                      (a for x, a in zip(equation.invars, operands, strict=True)
                       if not isinstance(x, core.Literal)), strict=True))
        return alone(*(of[x] for x in inputs))

    return run


def flatten(closed: core.ClosedJaxpr) -> Flat:
    """The steps of a traced function with one result."""
    steps: list[Step] = []
    constants: dict[int, Any] = {}
    count = 0

    def new() -> int:
        nonlocal count
        count += 1
        return count - 1

    def constant(value: Any) -> int:
        slot = new()
        constants[slot] = value
        return slot

    def unroll(jaxpr: core.Jaxpr, consts: Sequence[int], inputs: Sequence[int]) -> list[int]:
        place = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

        def slot(x: Any) -> int:
            if isinstance(x, core.Literal):
                aval: Any = x.aval
                return constant(np.asarray(x.val, aval.dtype))
            return place[x]

        for equation in jaxpr.eqns:
            name = equation.primitive.name
            operands = [slot(x) for x in equation.invars]
            if name in _GROUPS:
                inner = equation.params[_GROUPS[name]]
                held: list[int] = []
                if isinstance(inner, core.ClosedJaxpr):
                    held, inner = [constant(x) for x in inner.consts], inner.jaxpr
                place.update(zip(equation.outvars, unroll(inner, held, operands), strict=True))
                continue
            read = [x for x in equation.outvars if not isinstance(x, core.DropVar)]
            place.update((x, new()) for x in read)
            steps.append(Step(
                name, equation.params, tuple(x.aval for x in equation.invars), tuple(operands),
                tuple(place[x] for x in read), equation.outvars[0].aval,
                _runner(jaxpr, equation, read)))
        return [slot(x) for x in jaxpr.outvars]

    inputs = [new() for _ in closed.jaxpr.invars]
    consts = [constant(x) for x in closed.consts]
    (output,) = unroll(closed.jaxpr, consts, inputs)
    return Flat(tuple(steps), tuple(inputs), constants, output)


# no casts: compilers may skip a cast to a narrower type in one reader and not in another
_MOVES = {"reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "copy", "slice"}


def moved(flat: Flat, last: Sequence[Any]) -> dict[int, Any]:
    """Values of the slots that only rearrange the last inputs."""
    values = dict(zip(flat.inputs[len(flat.inputs) - len(last):], last, strict=True))
    for step in flat.steps:
        if step.name in _MOVES and all(k in values for k in step.operands):
            values.update(zip(step.results, step.run(*(values[k] for k in step.operands)),
                              strict=True))
    return values


def run(flat: Flat, leaves: Sequence[Any], taps: dict[int, jax.Array],
        watched: dict[int, set[int]]) -> tuple[jax.Array, dict[tuple[int, int], jax.Array]]:
    """Runs the steps.

    Args:
      flat: the steps.
      leaves: values of the inputs.
      taps: what to add to the first result of a step, by its number.
      watched: operands to hand out, by the number of their step.

    Returns:
      The value, and the watched operands.
    """
    values = dict(flat.constants)
    values.update(zip(flat.inputs, leaves, strict=True))
    seen = {}
    for number, step in enumerate(flat.steps):
        operands = [values[k] for k in step.operands]
        for k in watched.get(number, ()):
            seen[number, k] = jnp.asarray(operands[k])
        results = step.run(*operands)
        if number in taps:
            results = [results[0] + taps[number], *results[1:]]
        values.update(zip(step.results, results, strict=True))
    return values[flat.output], seen
