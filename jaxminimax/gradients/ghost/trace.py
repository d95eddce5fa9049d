"""A traced loss as a flat list of steps, so that one can look for parameters in it and tap it.

Calls that only group equations (jit, checkpoint) are unrolled; everything with a derivative rule
or a control flow of its own stays one step, and is run by JAX itself. Of a scan, the body is a list
of steps, too.

`run` runs them with zeros added to some results, and hands out what was met there. The derivative
by such a zero, a tap, is that by the result. Where steps in the body of a scan are tapped, the scan
is built anew around them: taps `[L, ...]` come in beside what it scans over, and are added to the
results of the steps; what the steps met goes out beside what it stacks, so both stand in the order
of the iterations, whichever way it runs. A body that was marked for rematerialisation, in whole or
in part, is rematerialised as a whole.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.gradients.ghost.convolution import convolve, understood
from jaxminimax.gradients.ghost.uses import Path

if TYPE_CHECKING:
    from jax.extend import core

# Never custom_jvp or custom_vjp: their rules, not the equations inside, are the derivative.
_GROUPS = {"jit": "jaxpr", "pjit": "jaxpr", "checkpoint": "jaxpr", "remat2": "jaxpr",
           "remat": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
_REMATS = ("checkpoint", "remat2", "remat")




class Loop(NamedTuple):
    """A scan.

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
    carried: tuple[Any, ...]
    read: tuple[int, ...]
    how: dict[str, Any]
    remat: Callable[[Callable], Callable] | None

    @property
    def length(self) -> int:
        """Number of iterations."""
        return self.how["length"]


class Step(NamedTuple):
    """One equation.

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
    avals: tuple[Any, ...]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    out: Any
    run: Callable[..., list]
    read: tuple[int, ...]
    loop: Loop | None = None


class Flat(NamedTuple):
    """A function `leaves -> values` as steps over numbered slots.

    Attributes:
      steps: in an order in which they can be run.
      inputs: slots of the leaves.
      constants: values of further slots.
      outputs: slots of the values.
    """

    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    constants: dict[int, Any]
    outputs: tuple[int, ...]

    @property
    def every_step(self) -> Iterator[Step]:
        """Those in bodies of loops, too."""
        for step in self.steps:
            yield step
            if step.loop is not None:
                yield from step.loop.body.every_step


def _runner(jaxpr: "core.Jaxpr", equation: "core.JaxprEqn",
            results: "Sequence[core.Var]") -> Callable:
    """`operands -> results` of one equation."""
    from jax.extend import core

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


def _remat_of(jaxpr: "core.Jaxpr") -> Callable[[Callable], Callable] | None:
    for equation in jaxpr.eqns:
        if equation.primitive.name in _REMATS:
            return functools.partial(jax.checkpoint, policy=equation.params["policy"],
                                     prevent_cse=equation.params["prevent_cse"])
        if equation.primitive.name in _GROUPS:
            inner = equation.params[_GROUPS[equation.primitive.name]]
            found = _remat_of(getattr(inner, "jaxpr", inner))
            if found is not None:
                return found
    return None


def _loop_of(equation: "core.JaxprEqn") -> Loop | None:
    """The loop of an equation; None for no scan, one of no iterations, and one with effects."""
    from jax.extend import core

    how = equation.params
    if equation.primitive.name != "scan" or not how["length"] or how["jaxpr"].effects:
        return None
    constants, carry = how["num_consts"], how["num_carry"]
    read = tuple(i for i, x in enumerate(equation.outvars) if not isinstance(x, core.DropVar))
    return Loop(flatten(how["jaxpr"]), constants, carry,
                tuple(x.aval for x in equation.invars[constants:][:carry]), read,
                {name: how[name] for name in ("length", "reverse", "unroll")},
                _remat_of(how["jaxpr"].jaxpr))


def flatten(closed: "core.ClosedJaxpr") -> Flat:
    """The steps of a traced function."""
    from jax.extend import core

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

    def unroll(jaxpr: "core.Jaxpr", consts: Sequence[int], inputs: Sequence[int]) -> list[int]:
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
                tuple(place[x] for x in read), next((x.aval for x in equation.outvars), None),
                _runner(jaxpr, equation, read),
                tuple(i for i, x in enumerate(equation.outvars) if x in place),
                _loop_of(equation)))
        return [slot(x) for x in jaxpr.outvars]

    inputs = [new() for _ in closed.jaxpr.invars]
    consts = [constant(x) for x in closed.consts]
    outputs = unroll(closed.jaxpr, consts, inputs)
    return Flat(tuple(steps), tuple(inputs), constants, tuple(outputs))


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


def _below(number: int, of: Mapping[Path, Any]) -> dict[Path, Any]:
    """What belongs to steps in the body of that one."""
    return {path[1:]: x for path, x in of.items() if len(path) > 1 and path[0] == number}


def _run_loop(loop: Loop, operands: Sequence[Any], taps: Mapping[Path, jax.Array],
              watched: Mapping[Path, set[int]]) -> tuple[list, dict]:
    """`run` of a scan: what is read of its results, and the watched operands, stacked."""
    first, last = loop.constants, loop.constants + loop.carry
    shared = operands[:first]

    def strong(values: Sequence[Any]) -> list:  # of the types that the body was traced for
        return [x if jnp.issubdtype(like.dtype, jax.dtypes.extended)
                else jax.lax.convert_element_type(x, like.dtype)
                for x, like in zip(values, loop.carried, strict=True)]

    def body(carry: list, these: tuple[list, dict]) -> tuple[list, tuple[list, dict]]:
        found, met = run(loop.body, [*shared, *carry, *these[0]], these[1], watched)
        # or their derivatives would be carried along
        met = jax.tree.map(jax.lax.stop_gradient, met)
        return strong(found[: loop.carry]), (found[loop.carry:], met)

    marked: Any = body if loop.remat is None else loop.remat(body)
    carry, (stacked, met) = jax.lax.scan(
        marked, strong(operands[first:last]), (list(operands[last:]), dict(taps)), **loop.how)
    every = [*carry, *stacked]
    return [every[i] for i in loop.read], met


def run(flat: Flat, leaves: Sequence[Any], taps: Mapping[Path, jax.Array],
        watched: Mapping[Path, set[int]]) -> tuple[list, dict[tuple[Path, int], jax.Array]]:
    """Runs the steps.

    Args:
      flat: the steps.
      leaves: values of the inputs.
      taps: what to add to the first result of a step, `[L, ...]` for one in a loop.
      watched: operands to hand out, by their step.

    Returns:
      The values, and the watched operands.
    """
    values = dict(flat.constants)
    values.update(zip(flat.inputs, leaves, strict=True))
    seen: dict[tuple[Path, int], jax.Array] = {}
    for number, step in enumerate(flat.steps):
        operands = [values[k] for k in step.operands]
        for k in watched.get((number,), ()):
            seen[(number,), k] = jnp.asarray(operands[k])
        below = _below(number, taps), _below(number, watched)
        if step.loop is not None and any(below):
            results, met = _run_loop(step.loop, operands, *below)
            seen.update({((number, *path), k): x for (path, k), x in met.items()})
        else:
            results = step.run(*operands)
        if (number,) in taps:
            results = [results[0] + taps[number,], *results[1:]]
        values.update(zip(step.results, results, strict=True))
    return [values[k] for k in flat.outputs], seen


def tap(flat: Flat, path: Path) -> jax.Array:
    """Zeros to add to the first result of a step."""
    lengths: list[int] = []
    for number in path[:-1]:
        loop = flat.steps[number].loop
        assert loop is not None
        lengths, flat = [*lengths, loop.length], loop.body
    out = flat.steps[path[-1]].out
    return jnp.zeros((*lengths, *out.shape), out.dtype)
