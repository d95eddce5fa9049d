"""What a use of a parameter contributes to its gradient.

A product, a convolution or an embedding of a parameter P adds sum_t x_t d_t^T to its gradient, with
x what the parameter met there and d the derivative of the loss by what came out: rank one for a
vector x, and one term more for each further row (a position, a pixel, a head) that meets the same
P. A product with G batch axes, and a convolution in G groups, is that G times: matrices P_1, ...,
P_G of different entries, of which each meets rows of its own. Which rows and columns those are is
read off the shapes alone.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.gradients.ghost._convolution import patches
from jaxminimax.gradients.ghost._flat import Path, Step
from jaxminimax.gradients.ghost._views import View

Operand = tuple[Path, int]


class Use(NamedTuple):
    """One place where a loss uses a parameter.

    Attributes:
      step: where.
      operands: what is met there: what the parameter met, and what it is multiplied by.
      kind: "product", "convolution" or "lookup".
      view: from the parameter to the matrices `[G, k, o]` that are used; `[k, o]` if G = 1.
      groups: G.
      rows: t, how many rows x meet each matrix.
      shape: (k, o).
      factors: `(operands, derivative) -> (x [G, t, k], d [G, t, o])`, without the first axis if
        G = 1; for a lookup `(rows [t], d [t, o])`.
      folded: whether it is multiplied by more than scalars (`_folds`).
    """

    step: Path
    operands: tuple[Operand, ...]
    kind: str
    view: View
    groups: int
    rows: int
    shape: tuple[int, int]
    factors: Callable[[Sequence[jax.Array], jax.Array], tuple[jax.Array, jax.Array]]
    folded: bool = False


def grouped(groups: int, *shape: int) -> tuple[int, ...]:
    """`shape` with an axis of groups before it, if there are several."""
    return shape if groups == 1 else (groups, *shape)


def as_matrices(view: View, aval: Any, order: tuple[int, ...], shape: tuple[int, ...]) -> View:
    """The view of an array with its axes in another order and then another shape."""
    turned = tuple(aval.shape[i] for i in order)
    return (*view, ("transpose", order, aval.shape), ("reshape", shape, turned))


def _is_complex(step: Step) -> bool:
    return any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in (*step.avals, step.out))


def _product(at: Path, step: Step, me: int, view: View) -> Use | str:
    if _is_complex(step):
        return "complex numbers"
    contracted, batch = step.params["dimension_numbers"]
    mine, its = contracted[me], contracted[1 - me]
    p, x = step.avals[me], step.avals[1 - me]
    free = tuple(i for i in range(p.ndim) if i not in (*mine, *batch[me]))
    its_free = tuple(i for i in range(x.ndim) if i not in (*its, *batch[1 - me]))
    groups, k, o = (math.prod(p.shape[i] for i in axes) for axes in (batch[me], mine, free))
    t = math.prod(x.shape[i] for i in its_free)
    if not t * groups:
        return "a product of nothing"

    def factors(met: Sequence[jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = met[0].transpose((*batch[1 - me], *its_free, *its)).reshape(grouped(groups, t, k))
        if me == 1:
            return x, d.reshape(grouped(groups, t, o))
        return x, jnp.swapaxes(d.reshape(grouped(groups, o, t)), -1, -2)

    view = as_matrices(view, p, (*batch[me], *mine, *free), grouped(groups, k, o))
    return Use(at, ((at, 1 - me),), "product", view, groups, t, (k, o), factors)


def _convolution(at: Path, step: Step, me: int, view: View) -> Use | str:
    how = step.params
    if _is_complex(step):
        return "complex numbers"
    if me != 1:
        return "a convolution as its input"
    if how["batch_group_count"] != 1:
        return "a convolution with groups of the batch"
    groups = how["feature_group_count"]
    x_axes, (out, into, *space), d_axes = how["dimension_numbers"]
    p = step.avals[1]
    window = tuple(p.shape[i] for i in space)
    k, o = p.shape[into] * math.prod(window), p.shape[out] // groups
    t = math.prod(step.out.shape) // max(o * groups, 1)
    if not t:
        return "a convolution of nothing"

    def factors(met: Sequence[jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, d = (a.transpose((n, *pixels, features))
                for a, (n, features, *pixels) in ((met[0], x_axes), (d, d_axes)))
        x = patches(how, x, window)
        if groups == 1:
            return x.reshape(t, k), d.reshape(t, o)
        # the features of a group lie side by side, within each pixel of a window
        x = jnp.moveaxis(x.reshape(t, math.prod(window), groups, p.shape[into]), 2, 0)
        return x.reshape(groups, t, k), jnp.swapaxes(d.reshape(t, groups, o), 0, 1)

    if groups == 1:
        view = as_matrices(view, p, (*space, into, out), (k, o))
    else:
        turned = (groups, o, *window, p.shape[into])
        order = (0, *range(2, len(turned)), 1)
        view = (*as_matrices(view, p, (out, *space, into), turned),
                ("transpose", order, turned),
                ("reshape", (groups, k, o), tuple(turned[i] for i in order)))
    return Use(at, ((at, 0),), "convolution", view, groups, t, (k, o), factors)


def _int32(rows: jax.Array) -> jax.Array:
    """Row numbers of any integer type; those beyond int32 end at its largest number."""
    limits = jnp.iinfo(rows.dtype)
    low, high = max(-(2**31), int(limits.min)), min(2**31 - 1, int(limits.max))
    return jnp.clip(rows, low, high).astype(jnp.int32)


def _lookup(at: Path, step: Step, me: int, view: View) -> Use | str:
    p, how = step.avals[me], step.params
    rest = tuple(p.shape[1:])
    n, o = p.shape[0] if p.ndim else 0, math.prod(rest)
    if me != 0 or view or p.ndim < 2 or tuple(how["slice_sizes"]) != (1, *rest):
        return PICKED
    t, clip = 1, True
    if step.name == "gather":
        axes, mode = how["dimension_numbers"], how["mode"]
        where = tuple(range(step.out.ndim - len(rest), step.out.ndim))
        if (axes.collapsed_slice_dims != (0,) or axes.start_index_map != (0,)
                or axes.operand_batching_dims or axes.offset_dims != where):
            return PICKED
        t = math.prod(step.out.shape[: step.out.ndim - len(rest)])
        clip = mode == jax.lax.GatherScatterMode.CLIP

    def factors(met: Sequence[jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = _int32(met[0].reshape(t))
        # a row that is not there is read as NaN or a neighbour, and has no derivative
        inside = (rows >= 0) & (rows < n)
        rows = jnp.clip(rows, 0, n - 1) if clip else jnp.where(inside, rows, n)
        return rows, d.reshape(t, o)

    view = (("reshape", (n, o), p.shape),)
    return Use(at, ((at, 1),), "lookup", view, 1, t, (n, o), factors)


PICKED = "entries picked by number"
KINDS = {"dot_general": _product, "conv_general_dilated": _convolution, "gather": _lookup,
         "dynamic_slice": _lookup}
