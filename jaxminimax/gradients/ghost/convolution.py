"""Convolutions as the CPU compiler runs them fast, and the pixels that each output pixel reads.

The derivative by the input is a convolution with the kernel's two feature axes exchanged. XLA's CPU
compiler has a fast convolution for one order of these axes, and plain loops for the other; the
exchange is made beforehand here, behind a barrier so that it is not folded back. The numbers are
the same. That is a rule for the backward pass: clipped sums with a convolution have no forward-mode
derivative.
"""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxminimax.gradients.ghost.uses import Path, Use, View, as_matrices, is_complex

if TYPE_CHECKING:
    from jaxminimax.gradients.ghost.trace import Step

_SLICES = 64  # pixels of a window, above which patches come from a convolution


def understood(how: dict[str, Any]) -> bool:
    """Whether the parameters of a convolution are those of one without groups."""
    return how["feature_group_count"] == 1 and how["batch_group_count"] == 1


def convolve(how: dict[str, Any], x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The convolution of these parameters (of `conv_general_dilated`), without groups."""
    x_axes, (out, into, *space), d_axes = how["dimension_numbers"]

    def plain(x: jax.Array, kernel: jax.Array, exchanged: bool = False) -> jax.Array:
        axes = (into, out, *space) if exchanged else (out, into, *space)
        return jax.lax.conv_general_dilated(
            x, kernel, how["window_strides"], how["padding"], how["lhs_dilation"],
            how["rhs_dilation"], jax.lax.ConvDimensionNumbers(x_axes, axes, d_axes),
            precision=how["precision"], preferred_element_type=how["preferred_element_type"])

    @jax.custom_vjp
    def made(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return plain(x, kernel)

    def back(met: tuple[jax.Array, jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, kernel = met
        turned = jax.lax.optimization_barrier(jnp.swapaxes(kernel, out, into))
        (d_x,) = jax.linear_transpose(lambda a: plain(a, turned, True), x)(d)
        (d_kernel,) = jax.linear_transpose(lambda a: plain(x, a), kernel)(d)
        return d_x, d_kernel

    made.defvjp(lambda x, kernel: (plain(x, kernel), (x, kernel)), back)
    return made(x, kernel)


def patches(how: dict[str, Any], x: jax.Array, window: tuple[int, ...]) -> jax.Array:
    """What each output pixel reads, `[n, *out, *window, features]`, the last axes flat.

    Args:
      how: parameters of the convolution.
      x: its input, `[n, *space, features]`.
      window: of the kernel.
    """
    if math.prod(window) > _SLICES:
        read = jax.lax.conv_general_dilated_patches(
            jnp.moveaxis(x, -1, 1), window, how["window_strides"], how["padding"],
            how["lhs_dilation"], how["rhs_dilation"], precision=jax.lax.Precision.HIGHEST)
        read = jnp.moveaxis(read, 1, -1)
        read = jnp.swapaxes(read.reshape(*read.shape[:-1], x.shape[-1], -1), -1, -2)
        return read.reshape(*read.shape[:-2], -1)
    steps = list(zip(window, how["window_strides"], how["rhs_dilation"], strict=True))
    edges = [(low, high, dilation - 1)
             for (low, high), dilation in zip(how["padding"], how["lhs_dilation"], strict=True)]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *edges, (0, 0, 0)])

    def seen(offset: tuple[int, ...]) -> jax.Array:
        first = [o * dilation for o, (_, _, dilation) in zip(offset, steps, strict=True)]
        last = [size - (width - 1 - o) * dilation for size, o, (width, _, dilation)
                in zip(x.shape[1:-1], offset, steps, strict=True)]
        return jax.lax.slice(x, (0, *first, 0), (x.shape[0], *last, x.shape[-1]),
                             (1, *(stride for _, stride, _ in steps), 1))

    return jnp.concatenate([seen(o) for o in itertools.product(*map(range, window))], -1)


def use(at: Path, step: "Step", me: int, view: View) -> Use | str:
    """The use of a kernel, operand 1 of a convolution, or why there is none; `view` leads to it."""
    how = step.params
    if is_complex(step):
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
