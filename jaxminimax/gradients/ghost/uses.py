"""Uses of a parameter, and the contribution of each to its gradient.

A product, a convolution or an embedding of a parameter P adds sum_t x_t d_t^T to its gradient, with
x what the parameter met there and d the derivative of the loss by what came out: rank one for a
vector x, and one term more for each further row (a position, a pixel, a head) that meets the same
P. A product with G batch axes, and a convolution in G groups, is that G times: matrices P_1, ...,
P_G of different entries, of which each meets rows of its own. Which rows and columns those are is
read off the shapes alone.

A view says which entries of a parameter are met and in which order: it is a list of rearrangements
and static slices that leads from the parameter to the matrices `[k, o]`, or `[G, k, o]`, that are
used. No entry is seen twice through one view.

Products of a parameter with what depends on no record, as in x (W + A B), are `folded`. Where the
loss uses P M, with P `[k, r]` and M `[r, o]`, its derivative by P M is sum_t x_t d_t^T, and by P it
is sum_t x_t (M d_t)^T: rows x as they are and d of r numbers, where P M has o. For M P the rows are
M^T x_t. No matrix `[k, o]` is made. M is taken as a constant; if it depends on parameters, P or
others, they are followed by themselves. M d_t is computed before anything is held, so norm and sum
see the same numbers.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.tree import EXACT, at_least_float32
from jaxminimax.gradients.ghost import convolution
from jaxminimax.gradients.ghost.trace import Path, Step

# (kind, numbers, shape before); the numbers of a slice are starts, limits and strides
View = tuple[tuple[str, tuple[Any, ...], tuple[int, ...]], ...]


def viewed(view: View, x: Any) -> Any:
    """The entries of `x` that are seen, for JAX and NumPy arrays."""
    for kind, numbers, _ in view:
        if kind == "slice":
            x = x[tuple(slice(*ends) for ends in zip(*numbers, strict=True))]
        else:
            x = x.reshape(numbers) if kind == "reshape" else x.transpose(numbers)
    return x


def unseen(view: View, x: jax.Array) -> jax.Array:
    """The inverse of `viewed`, for a view of all entries."""
    for kind, numbers, shape in reversed(view):
        # the inverse permutation is its argsort
        x = x.reshape(shape) if kind == "reshape" else x.transpose(np.argsort(numbers))
    return x


def is_partial(view: View) -> bool:
    """Returns whether it may leave entries out."""
    return any(kind == "slice" for kind, _, _ in view)


def lifted(view: View, count: int) -> View:
    """The view of each of `count` parameters that are stacked along a new first axis."""
    def lifted_numbers(kind: str, numbers: tuple[Any, ...]) -> tuple[Any, ...]:
        if kind == "slice":
            return tuple((first, *tail) for first, tail in zip((0, count, 1), numbers, strict=True))
        return (count, *numbers) if kind == "reshape" else (0, *(i + 1 for i in numbers))

    return tuple((kind, lifted_numbers(kind, numbers), (count, *shape))
                 for kind, numbers, shape in view)


def _put(view: View, into: jax.Array, x: jax.Array) -> jax.Array:
    """Replaces what is seen of `into` by `x`."""
    if not view:
        return x
    (kind, numbers, _), inner_view = view[0], view[1:]
    x = _put(inner_view, viewed(view[:1], into), x)
    if kind != "slice":
        return unseen(view[:1], x)
    starts, _, strides = numbers
    if all(stride == 1 for stride in strides):
        return jax.lax.dynamic_update_slice(into, x, starts)
    return into.at[tuple(slice(*ends) for ends in zip(*numbers, strict=True))].set(x)


def placed(parts: Sequence[tuple[View, jax.Array]], shape: tuple[int, ...]) -> jax.Array:
    """The array `shape` of which different parts are seen through different views, 0 elsewhere."""
    if len(parts) == 1 and not is_partial(parts[0][0]):
        return unseen(*parts[0])
    array = jnp.zeros(shape, jnp.result_type(*(x for _, x in parts)))
    for view, x in parts:
        array = _put(view, array, x.astype(array.dtype))
    return array


def entries(view: View, shape: tuple[int, ...]) -> np.ndarray:
    """The number of each entry that is seen of a parameter of that shape."""
    return viewed(view, np.arange(math.prod(shape)).reshape(shape))


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
      folded: whether it is multiplied by more than scalars (`uses`).
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
    """Puts an axis of groups before `shape`, if there are several."""
    return shape if groups == 1 else (groups, *shape)


def as_matrices(view: View, old_shape: tuple[int, ...], order: tuple[int, ...],
                shape: tuple[int, ...]) -> View:
    """The view of an array with its axes in another order and then another shape."""
    turned = tuple([old_shape[i] for i in order])
    return (*view, ("transpose", order, old_shape), ("reshape", shape, turned))


def is_complex(step: Step) -> bool:
    """Returns whether a step reads or makes complex numbers."""
    return any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in (*step.avals, step.out))


def product(path: Path, step: Step, me: int, view: View) -> Use | str:
    """The use of operand `me` of a `dot_general`, or why there is none; `view` leads to it."""
    if is_complex(step):
        return "complex numbers"
    contracted, batch = step.params["dimension_numbers"]
    mine, other_axes = contracted[me], contracted[1 - me]
    p, x = step.avals[me], step.avals[1 - me]
    free = tuple(i for i in range(p.ndim) if i not in (*mine, *batch[me]))
    its_free = tuple(i for i in range(x.ndim) if i not in (*other_axes, *batch[1 - me]))
    # batch axes number the matrices, contracted ones their rows, others their columns
    groups, k, o = (math.prod(p.shape[i] for i in axes) for axes in (batch[me], mine, free))
    t = math.prod(x.shape[i] for i in its_free)
    if not t * groups:
        return "a product of nothing"

    def factors(met: Sequence[jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
        # batch, free and contracted axes of x: [G, t, k]
        x = met[0].transpose((*batch[1 - me], *its_free, *other_axes))
        x = x.reshape(grouped(groups, t, k))
        if me == 1:
            return x, d.reshape(grouped(groups, t, o))
        # dot_general puts the free axes of its first operand first
        return x, jnp.swapaxes(d.reshape(grouped(groups, o, t)), -1, -2)

    view = as_matrices(view, p.shape, (*batch[me], *mine, *free), grouped(groups, k, o))
    return Use(path, ((path, 1 - me),), "product", view, groups, t, (k, o), factors)


def kernel(path: Path, step: Step, me: int, view: View) -> Use | str:
    """The use of a kernel, operand 1 of a convolution, or why there is none; `view` leads to it."""
    params = step.params
    if is_complex(step):
        return "complex numbers"
    if me != 1:
        return "a convolution as its input"
    if params["batch_group_count"] != 1:
        return "a convolution with groups of the batch"
    shape = step.avals[1].shape
    read = convolution.matrices(params, shape, step.out.shape)
    if not read.rows:
        return "a convolution of nothing"
    for order, new_shape in read.orders:
        view, shape = as_matrices(view, shape, order, new_shape), new_shape
    return Use(path, ((path, 0),), "convolution", view, read.groups, read.rows, read.shape,
               lambda met, d: read.factors(met[0], d))


def _int32(rows: jax.Array) -> jax.Array:
    """Row numbers of any integer type; those beyond int32 end at its largest number."""
    limits = jnp.iinfo(rows.dtype)
    low, high = max(-(2**31), int(limits.min)), min(2**31 - 1, int(limits.max))
    return jnp.clip(rows, low, high).astype(jnp.int32)


def lookup(path: Path, step: Step, me: int, view: View) -> Use | str:
    """The use of a table of which rows are picked by number, or why there is none."""
    p, params = step.avals[me], step.params
    row_shape = tuple(p.shape[1:])
    n, o = p.shape[0] if p.ndim else 0, math.prod(row_shape)
    if me != 0 or view or p.ndim < 2 or tuple(params["slice_sizes"]) != (1, *row_shape):
        return PICKED
    t, clip = 1, True
    if step.name == "gather":
        axes, mode = params["dimension_numbers"], params["mode"]
        offset_dims = tuple(range(step.out.ndim - len(row_shape), step.out.ndim))
        if (axes.collapsed_slice_dims != (0,) or axes.start_index_map != (0,)
                or axes.operand_batching_dims or axes.offset_dims != offset_dims):
            return PICKED
        t = math.prod(step.out.shape[: step.out.ndim - len(row_shape)])
        clip = mode == jax.lax.GatherScatterMode.CLIP

    def factors(met: Sequence[jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = _int32(met[0].reshape(t))
        # a row that is not there is read as NaN or a neighbour, and has no derivative
        inside = (rows >= 0) & (rows < n)
        # n is no row, and sums leave it out
        rows = jnp.clip(rows, 0, n - 1) if clip else jnp.where(inside, rows, n)
        return rows, d.reshape(t, o)

    view = (("reshape", (n, o), p.shape),)
    return Use(path, ((path, 1),), "lookup", view, 1, t, (n, o), factors)


PICKED = "entries picked by number"


def folded(use: Use, path: Path, step: Step, me: int, view: View) -> Use | None:
    """The use of a parameter that a use of its product is; None if it is none of one matrix.

    Args:
      use: of the product.
      path: where the product is made.
      step: the product, `dot_general`.
      me: which operand of it the parameter is.
      view: from the parameter to that operand.
    """
    contracted, batch = step.params["dimension_numbers"]
    p, m = step.avals[me], step.avals[1 - me]
    mine, other_axes = contracted[me], contracted[1 - me]
    free = tuple(i for i in range(p.ndim) if i not in mine)
    its_free = tuple(i for i in range(m.ndim) if i not in other_axes)
    k, o = (math.prod(a.shape[i] for i in axes) for a, axes in ((p, free), (m, its_free)))
    r = math.prod(p.shape[i] for i in mine)
    if batch[0] or use.groups > 1 or use.kind == "lookup" or not k * o * r:
        return None
    if jnp.issubdtype(step.out.dtype, jnp.complexfloating) or sorted(use.shape) != sorted((k, o)):
        return None
    # which entry of P M is which, to see whether the use reads it as it is or transposed
    number = np.arange(k * o).reshape((k, o) if me == 0 else (o, k))
    number = number if me == 0 else number.T
    its_entries = entries(use.view, step.out.shape)
    along = np.array_equal(its_entries, number)  # whether x goes along the parameter's own axes
    if not along and not np.array_equal(its_entries, number.T):
        return None

    def factors(met: Sequence[jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, d = use.factors(met[:-1], d)
        # [o, r], from M or its transpose
        matrix = met[-1].transpose((*its_free, *other_axes)).reshape(o, r)

        def times_matrix(a: jax.Array) -> jax.Array:
            wide = at_least_float32(jnp.result_type(a, matrix))
            return jnp.matmul(a.astype(wide), matrix.astype(wide), precision=EXACT)

        # M d_t or M^T x_t: the factor that goes along the axis of M
        return (x, times_matrix(d)) if along else (times_matrix(x), d)

    order, shape = ((*free, *mine), (k, r)) if along else ((*mine, *free), (r, k))
    return use._replace(operands=(*use.operands, (path, 1 - me)), shape=shape, factors=factors,
                        view=as_matrices(view, p.shape, order, shape), folded=True)
