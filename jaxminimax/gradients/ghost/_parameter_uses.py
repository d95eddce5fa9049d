"""Where a loss uses its parameters, and what a use contributes to their gradients.

A product, a convolution or an embedding of a parameter P adds sum_t x_t d_t^T to its gradient, with
x what the parameter met there and d the derivative of the loss by what came out: rank one for a
vector x, and one term more for each further row (a position, a pixel, a head) that meets the same
P. Which rows and columns those are is read off the shapes alone.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.gradients.ghost._convolution import patches, understood
from jaxminimax.gradients.ghost._flat import Flat, Step

View = tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]  # (kind, numbers, shape before)


def _seen(view: View, x: Any) -> Any:
    """`x` with its entries rearranged, for JAX and NumPy arrays."""
    for kind, how, _ in view:
        x = x.reshape(how) if kind == "reshape" else x.transpose(how)
    return x


def unseen(view: View, x: jax.Array) -> jax.Array:
    """The inverse of `_seen`."""
    for kind, how, shape in reversed(view):
        x = x.reshape(shape) if kind == "reshape" else x.transpose(np.argsort(how))
    return x


class Use(NamedTuple):
    """One place where a loss uses a parameter.

    Attributes:
      step: its number.
      operand: that meets the parameter there.
      kind: "product", "convolution" or "lookup".
      view: from the parameter to the matrix `[k, o]` that is used.
      rows: t, how many rows x meet the matrix.
      shape: (k, o).
      factors: `(operand, derivative) -> (x [t, k], d [t, o])`; for a lookup `(rows [t], d)`.
    """

    step: int
    operand: int
    kind: str
    view: View
    rows: int
    shape: tuple[int, int]
    factors: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def matrix_of(use: Use, shape: tuple[int, ...]) -> np.ndarray:
    """Which entry of the parameter is where in the matrix, `[k, o]`."""
    return _seen(use.view, np.arange(math.prod(shape)).reshape(shape))


def _as_matrix(view: View, aval: Any, order: tuple[int, ...], shape: tuple[int, int]) -> View:
    turned = tuple(aval.shape[i] for i in order)
    return (*view, ("transpose", order, aval.shape), ("reshape", shape, turned))


def _is_complex(step: Step) -> bool:
    return any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in (*step.avals, step.out))


def _product(number: int, step: Step, me: int, view: View) -> Use | str:
    if _is_complex(step):
        return "complex numbers"
    contracted, batch = step.params["dimension_numbers"]
    if batch[0]:
        return "a product with batch axes"
    mine, its = contracted[me], contracted[1 - me]
    p, x = step.avals[me], step.avals[1 - me]
    free = tuple(i for i in range(p.ndim) if i not in mine)
    its_free = tuple(i for i in range(x.ndim) if i not in its)
    k, o = (math.prod(p.shape[i] for i in axes) for axes in (mine, free))
    t = math.prod(x.shape[i] for i in its_free)
    if not t:
        return "a product of nothing"

    def factors(x: jax.Array, d: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = x.transpose((*its_free, *its)).reshape(t, k)
        return x, d.reshape(t, o) if me == 1 else d.reshape(o, t).T

    return Use(number, 1 - me, "product", _as_matrix(view, p, (*mine, *free), (k, o)), t, (k, o),
               factors)


def _convolution(number: int, step: Step, me: int, view: View) -> Use | str:
    how = step.params
    if _is_complex(step):
        return "complex numbers"
    if me != 1 or not understood(how):
        return "a convolution in groups" if me == 1 else "a convolution as its input"
    x_axes, (out, into, *space), d_axes = how["dimension_numbers"]
    p = step.avals[1]
    window = tuple(p.shape[i] for i in space)
    k, o = p.shape[into] * math.prod(window), p.shape[out]
    t = math.prod(step.out.shape) // max(o, 1)
    if not t:
        return "a convolution of nothing"

    def factors(x: jax.Array, d: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, d = (a.transpose((n, *pixels, features))
                for a, (n, features, *pixels) in ((x, x_axes), (d, d_axes)))
        return patches(how, x, window).reshape(t, k), d.reshape(t, o)

    view = _as_matrix(view, p, (*space, into, out), (k, o))
    return Use(number, 0, "convolution", view, t, (k, o), factors)


def _int32(rows: jax.Array) -> jax.Array:
    """Row numbers of any integer type; those beyond int32 end at its largest number."""
    limits = jnp.iinfo(rows.dtype)
    low, high = max(-(2**31), int(limits.min)), min(2**31 - 1, int(limits.max))
    return jnp.clip(rows, low, high).astype(jnp.int32)


def _lookup(number: int, step: Step, me: int, view: View) -> Use | str:
    p, how = step.avals[me], step.params
    rest = tuple(p.shape[1:])
    n, o = p.shape[0] if p.ndim else 0, math.prod(rest)
    if me != 0 or view or p.ndim < 2 or tuple(how["slice_sizes"]) != (1, *rest):
        return "entries picked by number"
    t, clip = 1, True
    if step.name == "gather":
        axes, mode = how["dimension_numbers"], how["mode"]
        where = tuple(range(step.out.ndim - len(rest), step.out.ndim))
        if (axes.collapsed_slice_dims != (0,) or axes.start_index_map != (0,)
                or axes.operand_batching_dims or axes.offset_dims != where):
            return "entries picked by number"
        t = math.prod(step.out.shape[: step.out.ndim - len(rest)])
        clip = mode == jax.lax.GatherScatterMode.CLIP

    def factors(rows: jax.Array, d: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = _int32(rows.reshape(t))
        # a row that is not there is read as NaN or a neighbour, and has no derivative
        inside = (rows >= 0) & (rows < n)
        rows = jnp.clip(rows, 0, n - 1) if clip else jnp.where(inside, rows, n)
        return rows, d.reshape(t, o)

    return Use(number, 1, "lookup", (("reshape", (n, o), p.shape),), t, (n, o), factors)


_KINDS = {"dot_general": _product, "conv_general_dilated": _convolution, "gather": _lookup,
          "dynamic_slice": _lookup}


def _rearranged(step: Step, view: View) -> View | None:
    """The view of the result, where a step only rearranges or casts the parameter."""
    before, after, how = step.avals[0].shape, step.out.shape, step.params
    if step.name in ("convert_element_type", "copy", "copy_p"):
        floats = (jnp.issubdtype(x.dtype, jnp.floating) for x in (step.avals[0], step.out))
        return view if all(floats) else None
    if step.name == "transpose":
        return (*view, ("transpose", tuple(how["permutation"]), before))
    plain = {"reshape": how.get("dimensions") is None, "squeeze": True, "expand_dims": True,
             "broadcast_in_dim": math.prod(before) == math.prod(after)}
    return (*view, ("reshape", after, before)) if plain.get(step.name, False) else None


def find(flat: Flat, wanted: set[int]) -> dict[int, list[Use] | str]:
    """The uses of each wanted input, or why they are not known.

    Args:
      flat: the steps of the loss.
      wanted: numbers of the inputs to look for.
    """
    found: dict[int, list[Use] | str] = {leaf: [] for leaf in wanted}
    views: dict[int, tuple[int, View]] = {flat.inputs[leaf]: (leaf, ()) for leaf in wanted}
    for number, step in enumerate(flat.steps):
        for me, slot in enumerate(step.operands):
            if slot not in views:
                continue
            leaf, view = views[slot]
            uses = found[leaf]
            if isinstance(uses, str):
                continue
            if step.name in _KINDS:
                use = _KINDS[step.name](number, step, me, view)
                found[leaf] = use if isinstance(use, str) else [*uses, use]
                continue
            further = _rearranged(step, view) if me == 0 else None
            if further is None:
                found[leaf] = f"used by {step.name}"
            elif step.results:
                views[step.results[0]] = (leaf, further)
    if flat.output in views:
        found[views[flat.output][0]] = "the loss itself"
    return found
