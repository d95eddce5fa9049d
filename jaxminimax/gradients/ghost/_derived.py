"""Parameters that meet a record only through functions of them, W = h(P).

Weight norm, standardised kernels, a matrix over its own norm, masks: steps whose operands depend on
no record are h. The slots that they leave for the others, W_1, ..., W_m, are used like parameters.
If all of these uses are understood, then for each record

    dL/dP = sum_j (dh_j/dP)^T vec(sum_t x_t d_t^T),

with the matrix of W_j made of its factors, once for all iterations of a loop and all pixels of a
convolution. That is a gradient as `jax.vmap` gives it, held as an array of the size of P: its norm
and its part of the sum are read off the same numbers, whatever h is.

One array of the size of each W_j is made for each example, on the way; `budget.of_plan` counts it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.gradients.ghost._flat import Flat
from jaxminimax.gradients.ghost._parameter_uses import Place, search
from jaxminimax.gradients.ghost._tapping import run
from jaxminimax.gradients.ghost._treatment import Treatment, gathered, treatment_of
from jaxminimax.gradients.ghost._uses import Use


class _Split(NamedTuple):
    """A loss, cut where records come in.

    Attributes:
      before: the steps that depend on no record.
      after: all steps, of which those are without results.
      free: slots that depend on no record.
      edge: those that meet records: the leaves they are made of, and shape and dtype; None for
        one that the loss gives out.
    """

    before: tuple
    after: tuple
    free: set[int]
    edge: dict[int, tuple[frozenset[int], Any]]


def _split(flat: Flat, leaves: set[int], parameters: int) -> _Split:
    free = set(flat.inputs[:parameters]) | set(flat.constants)
    made: dict[int, frozenset[int]] = {flat.inputs[k]: frozenset({k}) for k in leaves}
    before, after = [], []
    edge: dict[int, tuple[frozenset[int], Any]] = {}
    for step in flat.steps:
        if all(slot in free for slot in step.operands):
            free.update(step.results)
            of = frozenset[int]().union(*(made.get(slot, ()) for slot in step.operands))
            made.update((slot, of) for slot in step.results if of)
            before.append(step)
            after.append(step._replace(results=(), loop=None))
            continue
        after.append(step)
        edge.update((slot, (made[slot], aval)) for slot, aval in zip(
            step.operands, step.avals, strict=True) if slot in made)
    edge.update((slot, (made[slot], None)) for slot in flat.outputs if slot in made)
    return _Split(tuple(before), tuple(after), free, edge)


def derived(flat: Flat, leaves: Mapping[int, Any], parameters: int) -> dict[int, Treatment]:
    """The treatments of those leaves that meet records only in functions that are understood.

    Args:
      flat: the steps of the loss.
      leaves: shapes and dtypes, by the numbers of the inputs.
      parameters: how many inputs are parameters.
    """
    split = _split(flat, set(leaves), parameters)
    uses = search(flat._replace(steps=split.after), {
        slot: [Place(slot, (), ())] for slot in split.edge}, split.free, "the loss itself")
    found = {}
    for k, leaf in leaves.items():
        edge = [(slot, aval) for slot, (of, aval) in split.edge.items() if k in of and (
            aval is None or jnp.issubdtype(aval.dtype, jnp.inexact))]
        through = [(slot, treatment_of(uses[slot], leaf if aval is None else aval))
                   for slot, aval in edge]
        if through and all(t.kind != "vmap" for _, t in through):
            found[k] = Treatment("function", (), "", leaf.shape, leaf.dtype, tuple(
                (slot, t._replace(kind="matrix") if t.parts else t) for slot, t in through))
    return found


def pulled_back(flat: Flat, treatments: Mapping[int, Treatment], parameters: Sequence[jax.Array],
                factors: Callable[[Use], tuple[jax.Array, jax.Array]]) -> dict[int, jax.Array]:
    """The gradients of one example by leaves that are treated as in `derived`.

    Args:
      flat: the steps of the loss.
      treatments: by the numbers of the leaves.
      parameters: all of them.
      factors: of a use.
    """
    through = {slot: t for treatment in treatments.values() for slot, t in treatment.through
               if t.parts}
    split = _split(flat, set(treatments), len(parameters))
    before = Flat(tuple(step for step in split.before if step.results),
                  flat.inputs[: len(parameters)], flat.constants, tuple(through))

    def h(leaves: dict[int, jax.Array]) -> list[jax.Array]:
        return run(before, [leaves.get(k, x) for k, x in enumerate(parameters)], {}, {})[0]

    values, back = jax.vjp(h, {k: parameters[k] for k in treatments})
    (found,) = back([gathered(t, factors).astype(value.dtype)
                     for t, value in zip(through.values(), values, strict=True)])
    return found
