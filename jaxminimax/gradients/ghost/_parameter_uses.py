"""Where a loss uses its parameters.

Casts, rearrangements and static slices of a parameter are followed to where it is used, and so is a
product or quotient with a scalar a: the derivative by P of what is done with a P is a times that by
a P, whatever a depends on; should it depend on P, then P is used elsewhere too, and that is looked
at there. (Elementwise masks are not followed: they cannot be moved over to d.)

A scan is looked into. A matrix that all its L iterations share meets the rows of all of them, L t:
they add to the same entries. Of a parameter that is scanned over, iteration l sees slice l, so its
matrices are further groups, L G, and each meets t rows. What is carried from one iteration to the
next, or leaves the body, is not understood.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax.base.tree import at_least_float32
from jaxminimax.gradients.ghost._flat import Flat, Loop, Path, Step
from jaxminimax.gradients.ghost._uses import KINDS, PICKED, Operand, Use, grouped
from jaxminimax.gradients.ghost._views import View, lifted

Found = dict[Any, list[Use] | str]
Scales = tuple[tuple[Operand, bool], ...]  # scalars, and whether they divide


def _rearranged(step: Step, view: View) -> View | None:
    """The view of the result, where a step only rearranges, cuts or casts the parameter."""
    before, after, how = step.avals[0].shape, step.out.shape, step.params
    if step.name in ("convert_element_type", "copy", "copy_p"):
        floats = (jnp.issubdtype(x.dtype, jnp.floating) for x in (step.avals[0], step.out))
        return view if all(floats) else None
    if step.name == "transpose":
        return (*view, ("transpose", tuple(how["permutation"]), before))
    if step.name == "slice":
        cut = (how["start_indices"], how["limit_indices"], how["strides"] or (1,) * len(before))
        return (*view, ("slice", tuple(map(tuple, cut)), before))
    plain = {"reshape": how.get("dimensions") is None, "squeeze": True, "expand_dims": True,
             "broadcast_in_dim": math.prod(before) == math.prod(after)}
    return (*view, ("reshape", after, before)) if plain.get(step.name, False) else None


def _scaled_by(at: Path, step: Step, me: int) -> Scales | None:
    """The scalar that a step multiplies or divides the parameter by, None for any other step.

    A parameter that is a scalar itself is not followed.
    """
    if step.name != "mul" and (step.name, me) != ("div", 0):
        return None
    if step.avals[1 - me].ndim or not step.avals[me].ndim:
        return None
    return (((at, 1 - me), step.name == "div"),)


def _with_scales(use: Use, scales: Scales) -> Use:
    """The same use of the parameter before it is scaled: its d is scaled instead."""
    if not scales:
        return use

    def factors(met: Sequence[jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
        count = len(use.operands)
        x, d = use.factors(met[:count], d)
        d = d.astype(at_least_float32(d.dtype))
        for (_, divides), a in zip(scales, met[count:], strict=True):
            d = d / a.astype(d.dtype) if divides else d * a.astype(d.dtype)
        return x, d

    return use._replace(operands=(*use.operands, *(at for at, _ in scales)), factors=factors)


def _in_loop(use: Use, number: int, loop: Loop, scanned: bool, view: View) -> Use | str:
    """The use of a parameter that a use of the loop's operand is.

    Args:
      use: in the body, of what is there in one iteration.
      number: of the loop.
      loop: the loop.
      scanned: whether each iteration sees a slice of the operand.
      view: of the operand.
    """
    length, inner, t, (k, o) = loop.length, use.groups, use.rows, use.shape
    if use.kind == "lookup" and (scanned or view):
        return PICKED
    groups, rows = (length * inner, t) if scanned else (inner, length * t)
    if scanned:
        apart = (length, *grouped(inner, k, o))
        view = (*view, *lifted(use.view, length), ("reshape", grouped(groups, k, o), apart))
    else:
        view = (*view, *use.view)

    def together(a: jax.Array) -> jax.Array:
        if not scanned and inner > 1:
            a = jnp.moveaxis(a, 0, 1)
        return a.reshape(*grouped(groups, rows), *a.shape[a.ndim - (a.ndim > 2):])

    def factors(met: Sequence[jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, d = jax.vmap(use.factors)(met, d)
        return together(x), together(d)

    return use._replace(
        step=(number, *use.step), operands=tuple(((number, *at), k) for at, k in use.operands),
        view=view, groups=groups, rows=rows, factors=factors)


def _looked_into(number: int, step: Step, loop: Loop,
                 places: dict[int, tuple[Hashable, View, Scales]]) -> Found:
    """The uses of the operands of a loop that are seen in `places`, by their numbers."""
    found: Found = {}
    inside: dict[int, tuple[Hashable, View, Scales]] = {}
    last = loop.constants + loop.carry
    for me, slot in enumerate(step.operands):
        if slot in places and loop.constants <= me < last:
            found[me] = "carried through a loop"
        elif slot in places:
            inside[loop.body.inputs[me]] = me, (), ()
    for me, uses in _search(loop.body, inside, "handed out of a loop").items():
        _, view, scales = places[step.operands[me]]
        more = uses if isinstance(uses, str) else [
            _in_loop(use, number, loop, me >= last, view) for use in uses]
        unknown = more if isinstance(more, str) else next(
            (use for use in more if isinstance(use, str)), None)
        found[me] = unknown if unknown is not None else [
            _with_scales(use, scales) for use in more if isinstance(use, Use)]
    return found


def _search(flat: Flat, places: dict[int, tuple[Hashable, View, Scales]], leaving: str) -> Found:
    """The uses of what is seen in the slots `places`, or why they are not known."""
    found: Found = {name: [] for name, _, _ in places.values()}

    def add(name: Hashable, more: list[Use] | str) -> None:
        uses = found[name]
        if not isinstance(uses, str):
            found[name] = more if isinstance(more, str) else [*uses, *more]

    places = dict(places)
    for number, step in enumerate(flat.steps):
        at = (number,)
        if not step.results:
            continue
        if step.loop is not None and any(slot in places for slot in step.operands):
            for me, more in _looked_into(number, step, step.loop, places).items():
                add(places[step.operands[me]][0], more)
            continue
        for me, slot in enumerate(step.operands):
            if slot not in places or isinstance(found[places[slot][0]], str):
                continue
            name, view, scales = places[slot]
            if step.name in KINDS:
                use = KINDS[step.name](at, step, me, view)
                add(name, use if isinstance(use, str) else [_with_scales(use, scales)])
                continue
            further = _rearranged(step, view) if me == 0 else None
            scale = _scaled_by(at, step, me)
            if further is not None:
                places[step.results[0]] = name, further, scales
            elif scale is not None:
                places[step.results[0]] = name, view, (*scales, *scale)
            else:
                add(name, f"used by {step.name}")
    for slot in flat.outputs:
        if slot in places:
            add(places[slot][0], leaving)
    return found


def find(flat: Flat, wanted: set[int]) -> dict[int, list[Use] | str]:
    """The uses of each wanted input, or why they are not known.

    Args:
      flat: the steps of the loss.
      wanted: numbers of the inputs to look for.
    """
    return _search(flat, {flat.inputs[leaf]: (leaf, (), ()) for leaf in wanted}, "the loss itself")
