"""Which entries of a parameter a loss multiplies with, and in which order.

A view is a list of rearrangements and static slices that leads from the parameter to the matrices
`[k, o]`, or `[G, k, o]`, that are used. No entry is seen twice through one view.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# (kind, numbers, shape before); the numbers of a slice are starts, limits and strides
View = tuple[tuple[str, tuple, tuple[int, ...]], ...]


def seen(view: View, x: Any) -> Any:
    """The entries of `x` that are seen, for JAX and NumPy arrays."""
    for kind, how, _ in view:
        if kind == "slice":
            x = x[tuple(slice(*ends) for ends in zip(*how, strict=True))]
        else:
            x = x.reshape(how) if kind == "reshape" else x.transpose(how)
    return x


def unseen(view: View, x: jax.Array) -> jax.Array:
    """The inverse of `seen`, for a view of all entries."""
    for kind, how, shape in reversed(view):
        x = x.reshape(shape) if kind == "reshape" else x.transpose(np.argsort(how))
    return x


def is_partial(view: View) -> bool:
    """Whether it may leave entries out."""
    return any(kind == "slice" for kind, _, _ in view)


def lifted(view: View, count: int) -> View:
    """The view of each of `count` parameters that are stacked along a new first axis."""
    def more(kind: str, how: tuple) -> tuple:
        if kind == "slice":
            return tuple((first, *rest) for first, rest in zip((0, count, 1), how, strict=True))
        return (count, *how) if kind == "reshape" else (0, *(i + 1 for i in how))

    return tuple((kind, more(kind, how), (count, *shape)) for kind, how, shape in view)


def _put(view: View, into: jax.Array, x: jax.Array) -> jax.Array:
    """`into` with what is seen of it replaced by `x`."""
    if not view:
        return x
    (kind, how, _), rest = view[0], view[1:]
    x = _put(rest, seen(view[:1], into), x)
    if kind != "slice":
        return unseen(view[:1], x)
    starts, _, strides = how
    if all(stride == 1 for stride in strides):
        return jax.lax.dynamic_update_slice(into, x, starts)
    return into.at[tuple(slice(*ends) for ends in zip(*how, strict=True))].set(x)


def placed(parts: Sequence[tuple[View, jax.Array]], shape: tuple[int, ...]) -> jax.Array:
    """The array `shape` of which different parts are seen through different views, 0 elsewhere."""
    if len(parts) == 1 and not is_partial(parts[0][0]):
        return unseen(*parts[0])
    made = jnp.zeros(shape, jnp.result_type(*(x for _, x in parts)))
    for view, x in parts:
        made = _put(view, made, x.astype(made.dtype))
    return made


def entries(view: View, shape: tuple[int, ...]) -> np.ndarray:
    """The number of each entry that is seen of a parameter of that shape."""
    return seen(view, np.arange(math.prod(shape)).reshape(shape))
