"""Searches a loss for the uses of its parameters.

Casts, rearrangements and static slices of a parameter are followed to where it is used, and so is a
product or quotient with a scalar a: the derivative by P of what is done with a P is a times that by
a P, whatever a depends on; should it depend on P, then P is used elsewhere too, and that is looked
at there. (Elementwise masks are not followed: they cannot be moved over to d.) The same holds for a
sum P + Q and a product P M with what depends on no record (`uses.folded`), such as W + A B of low
rank: every term and factor is followed by itself. What no derivative comes back from is no use
(`without_derivative`): behind `stop_gradient` or `sign`, as in an attack on the record inside the
loss. Parameters that are not understood like that may be by way of a function of them (`derived`).

A scan is looked into. A matrix that all its L iterations share meets the rows of all of them, L t:
they add to the same entries. Of a parameter that is scanned over, iteration l sees slice l, so its
matrices are further groups, L G, and each meets t rows. What is carried from one iteration to the
next, or leaves the body, is not understood.

Some parameters meet a record only through functions of them, W = h(P): weight norm, standardised
kernels, a matrix over its own norm, masks: steps whose operands depend on no record are h. The
slots that they leave for the others, W_1, ..., W_m, are used like parameters. If all of these uses
are understood, then for each record

    dL/dP = sum_j (dh_j/dP)^T vec(sum_t x_t d_t^T),

with the matrix of W_j made of its factors, once for all iterations of a loop and all pixels of a
convolution. That is a gradient as `jax.vmap` gives it, held as an array of the size of P: its norm
and its part of the sum are read off the same numbers, whatever h is.

One array of the size of each W_j is made for each example, on the way, which
`planning.need_of_plan` counts.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.base.tree import at_least_float32
from jaxminimax.gradients.ghost.trace import Flat, Loop, Path, Step, run
from jaxminimax.gradients.ghost.treatment import Treatment, gathered, treatment_of
from jaxminimax.gradients.ghost.uses import (
    PICKED,
    Operand,
    Use,
    View,
    folded,
    grouped,
    kernel,
    lifted,
    lookup,
    product,
)

Uses = list[Use] | str  # all of them, or why they are not known
Scales = tuple[tuple[Operand, bool], ...]  # scalars, and whether they divide


class Place(NamedTuple):
    """A term of what stands in a slot: a parameter, as it is seen there.

    Attributes:
      name: of the parameter, or of a product with it that is followed.
      view: from it to the term.
      scales: what the term is multiplied by.
    """

    name: Hashable
    view: View = ()
    scales: Scales = ()


def _rearranged(step: Step, view: View) -> View | None:
    """The view of the result, where a step only rearranges, cuts or casts the parameter."""
    old_shape, new_shape, params = step.avals[0].shape, step.out.shape, step.params
    if step.name in ("convert_element_type", "copy", "copy_p"):
        floats = [jnp.issubdtype(x.dtype, jnp.floating) for x in (step.avals[0], step.out)]
        return view if all(floats) else None
    if step.name == "transpose":
        return (*view, ("transpose", tuple(params["permutation"]), old_shape))
    if step.name == "slice":
        strides = params["strides"] or (1,) * len(old_shape)
        cut = (params["start_indices"], params["limit_indices"], strides)
        return (*view, ("slice", tuple(map(tuple, cut)), old_shape))
    plain = {"reshape": params.get("dimensions") is None, "squeeze": True, "expand_dims": True,
             "broadcast_in_dim": math.prod(old_shape) == math.prod(new_shape)}
    return (*view, ("reshape", new_shape, old_shape)) if plain.get(step.name, False) else None


def _pieces(step: Step, view: View) -> list[View]:
    """The view of each result that is read, where a step cuts the parameter in pieces."""
    old_shape, axis = step.avals[0].shape, step.params["axis"]
    ends = [0, *itertools.accumulate(step.params["sizes"])]

    def piece(i: int) -> View:
        first, last = [0] * len(old_shape), list(old_shape)
        first[axis], last[axis] = ends[i], ends[i + 1]
        return (*view, ("slice", (tuple(first), tuple(last), (1,) * len(old_shape)), old_shape))

    return [piece(i) for i in step.read]


def _with_scales(use: Use, scales: Scales) -> Use:
    """The same use of the parameter before it is scaled: its d is scaled instead."""
    if not scales:
        return use

    def factors(met: Sequence[jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
        count = len(use.operands)
        x, d = use.factors(met[:count], d)
        d = d.astype(at_least_float32(d.dtype))
        # the derivative by P is a times that by a P
        for (_, divides), a in zip(scales, met[count:], strict=True):
            d = d / a.astype(d.dtype) if divides else d * a.astype(d.dtype)
        return x, d

    return use._replace(operands=(*use.operands, *[path for path, _ in scales]), factors=factors)


def _in_loop(use: Use, number: int, loop: Loop, scanned: bool, view: View) -> Use:
    """The use of a parameter that a use of the loop's operand is.

    Args:
      use: in the body, of what is there in one iteration.
      number: of the loop.
      loop: the loop.
      scanned: whether each iteration sees a slice of the operand.
      view: of the operand.
    """
    length, inner, t, (k, o) = loop.how["length"], use.groups, use.rows, use.shape
    # a slice an iteration: more matrices; one for all of them: more rows of each
    groups, rows = (length * inner, t) if scanned else (inner, length * t)
    if scanned:
        # slice l as matrices [G, k, o]; of all slices [L, G, k, o] -> [L G, k, o]
        split_shape = (length, *grouped(inner, k, o))
        view = (*view, *lifted(use.view, length), ("reshape", grouped(groups, k, o), split_shape))
    else:
        view = (*view, *use.view)

    def merged(a: jax.Array) -> jax.Array:
        if not scanned and inner > 1:
            # [L, G, t, ...] -> [G, L, t, ...]: all iterations meet the same matrices
            a = jnp.moveaxis(a, 0, 1)
        # [L G, t, k] or [G, L t, k]; row numbers [L, t] -> [L t]
        return a.reshape(*grouped(groups, rows), *a.shape[a.ndim - (a.ndim > 2):])

    def factors(met: Sequence[jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, d = jax.vmap(use.factors)(met, d)
        return merged(x), merged(d)

    return use._replace(
        step=(number, *use.step),
        operands=tuple([((number, *path), k) for path, k in use.operands]),
        view=view, groups=groups, rows=rows, factors=factors)


def _looked_into(number: int, step: Step, loop: Loop, places: dict[int, list[Place]],
                 free: set[int]) -> list[tuple[Hashable, Uses]]:
    """The uses of what is seen in `places` by the operands of a loop, name by name."""
    in_loop: list[tuple[Hashable, Uses]] = []
    inside: dict[int, list[Place]] = {}
    free_inside: set[int] = set()
    last = loop.constants + loop.carry
    for me, (slot, inner) in enumerate(zip(step.operands, loop.body.inputs, strict=True)):
        if loop.constants <= me < last:
            in_loop += [(place.name, "carried through a loop") for place in places.get(slot, ())]
            continue
        if slot in free:
            free_inside.add(inner)
        if slot in places:
            inside[inner] = [Place(me)]
    for me, uses in search(loop.body, inside, free_inside, "handed out of a loop").items():
        scanned = me >= last
        looked_up = not isinstance(uses, str) and "lookup" in [use.kind for use in uses]
        for name, view, scales in places[step.operands[me]]:
            outside = PICKED if looked_up and (scanned or view) else uses
            in_loop.append((name, outside if isinstance(outside, str) else [_with_scales(
                _in_loop(use, number, loop, scanned, view), scales) for use in outside]))
    return in_loop


# steps by which JAX's own rules have no derivative: a symbolic zero, and no array of zeros
_CONSTANT = {"stop_gradient", "sign", "floor", "ceil", "round"}


def without_derivative(flat: Flat) -> set[int]:
    """The numbers of steps to whose operands no derivative of an output comes back.

    Outputs are live. Backwards, a step is dead if none of its results is live, if it is one of
    `_CONSTANT`, or if all that is read of it is one result of integers or booleans. The operands of
    every other step are live.

    With L the loss and u_1, u_2, ... the operands where a parameter P is used,
    dL/dP = sum_j (du_j/dP)^T dL/du_j. The term of a dead step is zero, by induction from the last
    step to the first. JAX holds what it knows to be zero as a symbol, and a rule that gets nothing
    but symbols is not run. (i) A step without a live result: its results are operands of dead steps
    only, from which nothing but symbols comes back. (ii) A rule of `_CONSTANT` gives a symbol for
    the tangent, so that nothing is there to transpose. (iii) A number that is not inexact has no
    tangent (`float0`). So the gradient is the sum over live uses, in JAX as here. It is not 0 times
    a number, which would be NaN for an infinite one, in either of them.

    Only a first result's type is known. What is read of `sort((integers, floats))` may be its
    floats, which are live: the type decides only where the first result is what is read. All that
    the body of a loop hands on counts as live, whether or not it is read after the loop. A use that
    is dead and counted live adds a zero, and is kept for nothing.
    """
    live, dead = set(flat.outputs), set[int]()
    for number, step in reversed(list(enumerate(flat.steps))):
        counts = step.read == [0] and not jnp.issubdtype(step.out.dtype, jnp.inexact)
        if live.isdisjoint(step.results) or counts or step.name in _CONSTANT:
            dead.add(number)
        else:
            live.update(step.operands)
    return dead


def search(flat: Flat, places: dict[int, list[Place]], free: set[int],
           leaving: str = "the loss itself") -> dict[Any, Uses]:
    """The uses of what is seen in the slots `places`, or why they are not known.

    Args:
      flat: the steps.
      places: of the inputs.
      free: slots that depend on no record.
      leaving: why what is given out is not known.
    """
    uses_of: dict[Any, Uses] = {place.name: [] for listed in places.values() for place in listed}
    places = {slot: list(listed) for slot, listed in places.items()}
    free = free | set(flat.constants)
    folds: list[tuple[Hashable, Place, Path, Step, int]] = []  # products that are followed
    kinds = {"dot_general": product, "conv_general_dilated": kernel, "gather": lookup,
             "dynamic_slice": lookup}

    def add(name: Hashable, further: Uses) -> None:
        uses = uses_of[name]
        if not isinstance(uses, str):
            uses_of[name] = further if isinstance(further, str) else [*uses, *further]

    def used(place: Place, path: Path, step: Step, me: int) -> None:
        use = kinds[step.name](path, step, me, place.view)
        add(place.name, use if isinstance(use, str) else [_with_scales(use, place.scales)])

    def follow(place: Place, path: Path, step: Step, me: int) -> list[Place]:
        """The places of each result; none where the parameter is used, which is noted."""
        if step.name == "split":
            return [place._replace(view=view) for view in _pieces(step, place.view)]
        further = _rearranged(step, place.view) if me == 0 else None
        if further is not None:
            return [place._replace(view=further)]
        operator, operand = (step.name, me), step.avals[1 - me] if len(step.avals) == 2 else None
        if operand is not None and step.avals[me].ndim and not operand.ndim and (
                step.name == "mul" or operator == ("div", 0)):  # by a scalar
            scale = ((path, 1 - me), step.name == "div")
            return [place._replace(scales=(*place.scales, scale))]
        if operand is not None and step.operands[1 - me] in free:
            # the derivative by P is that by P + Q or P - Q, but minus that by Q - P
            if step.name in ("add", "add_any", "sub") and operator != ("sub", 1) and (
                    operand.shape == step.avals[me].shape):
                return [place]
            if step.name == "dot_general":
                name = ("fold", path, len(folds))
                folds.append((name, place, path, step, me))
                uses_of[name] = []
                return [Place(name)]
        if step.name in kinds:
            used(place, path, step, me)
        else:
            add(place.name, f"used by {step.name}")
        return []

    dead = without_derivative(flat)
    for number, step in enumerate(flat.steps):
        if free.issuperset(step.operands):
            free.update(step.results)
        if number in dead or places.keys().isdisjoint(step.operands):
            continue
        if step.loop is not None:
            for name, further in _looked_into(number, step, step.loop, places, free):
                add(name, further)
            continue
        for me, slot in enumerate(step.operands):
            for place in places.get(slot, ()):
                if not isinstance(uses_of[place.name], str):
                    onwards = follow(place, (number,), step, me)
                    for result, next_place in zip(step.results, onwards, strict=False):
                        places.setdefault(result, []).append(next_place)
    for slot in flat.outputs:
        for place in places.get(slot, ()):
            add(place.name, leaving)
    # the latest first: uses of P M M' become those of P M, and these those of P
    for name, place, path, step, me in reversed(folds):
        uses = uses_of.pop(name)
        folded_uses = [None] if isinstance(uses, str) else [
            folded(use, path, step, me, place.view) for use in uses]
        if None in folded_uses:
            used(place, path, step, me)
        else:
            add(place.name, [_with_scales(use, place.scales) for use in folded_uses if use])
    return uses_of


class _Split(NamedTuple):
    """A loss, cut where records come in.

    Attributes:
      record_free: the steps that depend on no record.
      steps: all steps, of which those are without results.
      free: slots that depend on no record.
      edge: those that meet records: the leaves they are made of, and shape and dtype; None for
        one that the loss gives out.
    """

    record_free: list[Step]
    steps: list[Step]
    free: set[int]
    edge: dict[int, tuple[frozenset[int], Any]]


def _split(flat: Flat, leaves: set[int], parameters: int) -> _Split:
    split = _Split([], [], {*flat.inputs[:parameters], *flat.constants}, {})
    # the leaves that a slot is made of
    leaves_of = {flat.inputs[k]: frozenset({k}) for k in leaves}
    for step in flat.steps:
        if split.free.issuperset(step.operands):
            split.free.update(step.results)
            union = frozenset[int]().union(*[leaves_of.get(slot, ()) for slot in step.operands])
            leaves_of.update({slot: union for slot in step.results if union})
            split.record_free.append(step)
            split.steps.append(step._replace(results=[], loop=None))
            continue
        split.steps.append(step)
        split.edge.update({slot: (leaves_of[slot], aval) for slot, aval in zip(
            step.operands, step.avals, strict=True) if slot in leaves_of})
    split.edge.update({slot: (leaves_of[slot], None) for slot in flat.outputs if slot in leaves_of})
    return split


def derived(flat: Flat, leaves: Mapping[int, Any], parameters: int) -> dict[int, Treatment]:
    """The treatments of those leaves that meet records only in functions that are understood.

    Args:
      flat: the steps of the loss.
      leaves: shapes and dtypes, by the numbers of the inputs.
      parameters: how many inputs are parameters.
    """
    split = _split(flat, set(leaves), parameters)
    uses = search(flat._replace(steps=split.steps), {
        slot: [Place(slot)] for slot in split.edge}, split.free)
    treatments = {}
    for k, leaf in leaves.items():
        through = [(slot, treatment_of(uses[slot], leaf if aval is None else aval))
                   for slot, (leaf_numbers, aval) in split.edge.items() if k in leaf_numbers and (
                       aval is None or jnp.issubdtype(aval.dtype, jnp.inexact))]
        if through and "vmap" not in [t.kind for _, t in through]:
            treatments[k] = Treatment("function", leaf.shape, leaf.dtype, through=tuple([
                (slot, t._replace(kind="matrix") if t.parts else t) for slot, t in through]))
    return treatments


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
    record_free = Flat([step for step in split.record_free if step.results],
                  flat.inputs[: len(parameters)], flat.constants, list(through))

    def h(leaves: dict[int, jax.Array]) -> list[jax.Array]:
        return run(record_free, [leaves.get(k, x) for k, x in enumerate(parameters)], {}, {})[0]

    values, back = jax.vjp(h, {k: parameters[k] for k in treatments})
    # (dh_j/dP)^T of the matrix of each W_j
    (gradients,) = back([gathered(t, factors).astype(value.dtype)
                         for t, value in zip(through.values(), values, strict=True)])
    return gradients
