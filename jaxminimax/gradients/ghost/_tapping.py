"""Runs the steps of a loss with zeros added to some results, and hands out what was met there.

The derivative by such a zero, a tap, is that by the result. Where steps in the body of a scan are
tapped, the scan is built anew around them: taps `[L, ...]` come in beside what it scans over, and
are added to the results of the steps; what the steps met goes out beside what it stacks, so both
stand in the order of the iterations, whichever way it runs. A body that was marked for
rematerialisation, in whole or in part, is rematerialised as a whole.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax.gradients.ghost._flat import Flat, Loop, Path


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
