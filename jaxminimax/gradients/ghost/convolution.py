"""A convolution in a loss: what each output pixel reads, its factors, and how it is run fast.

Orders of dimensions. `dimension_numbers` of JAX says where the axes of the three arrays are:

    input  (batch, features, *space)   kernel  (out, in, *space)   output  (batch, features, *space)

Here input and output are first brought into the order `[n, *space, features]`. Then

    patches   [n, *out pixels, *window, in]   what each output pixel reads, the last axes flat
    x         [t, k]    t = n times output pixels, k = pixels of a window times input features
    d         [t, o]    the derivative by the output pixels
    kernel    [k, o]    its axes in the order (*window, in, out), the first ones flat

so the gradient by the kernel is sum_t x_t d_t^T, and its norm is that of factors. A convolution in
G groups is G such matrices, of which each reads its own input features and makes its own outputs.

Two parameters are dilations. With `rhs_dilation` r, pixels of the window are r pixels of the input
apart: output pixel p reads the input at p * stride + r * offset. With `lhs_dilation` l, the input
first gets l - 1 zeros between neighbouring pixels. `patches` follows both, in any number of groups.

How it is run: the derivative by the input is a convolution with the kernel's two feature axes
exchanged. XLA's CPU compiler has a fast convolution for one order of these axes, and plain loops
for the other; here the exchange comes first, behind a barrier so that it is not folded back.
The numbers are the same. A convolution of few input features is slow in every order, so the patches
that the gradient by the kernel needs anyway are multiplied by the kernel instead. Both are a rule
for the backward pass: clipped sums with a convolution have no forward-mode derivative.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_THIN = 16  # input features, up to which a product of patches is faster; a vector of floats
_SLICES = 64  # pixels of a window, above which patches come from a convolution


def ungrouped(params: dict[str, Any]) -> bool:
    """True if neither features nor the batch are grouped.

    Used for speed only, to choose `convolve`; `matrices` is for those in groups too.
    """
    return bool(params["feature_group_count"] == 1 and params["batch_group_count"] == 1)


def convolve(params: dict[str, Any], x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The convolution of these parameters (of `conv_general_dilated`), if it is `ungrouped`.

    Used for speed only; convolutions in groups run as JAX has them.
    """
    x_axes, (out, into, *space), d_axes = params["dimension_numbers"]

    def plain(x: jax.Array, kernel: jax.Array, exchanged: bool = False) -> jax.Array:
        axes = (into, out, *space) if exchanged else (out, into, *space)
        return jax.lax.conv_general_dilated(
            x, kernel, params["window_strides"], params["padding"], params["lhs_dilation"],
            params["rhs_dilation"], jax.lax.ConvDimensionNumbers(x_axes, axes, d_axes),
            precision=params["precision"], preferred_element_type=params["preferred_element_type"])

    @jax.custom_vjp
    def fast(x: jax.Array, kernel: jax.Array) -> jax.Array:
        window = tuple([kernel.shape[i] for i in space])
        unrolled = kernel.shape[into] <= _THIN and math.prod(window) <= _SLICES
        if not unrolled or not jax.eval_shape(plain, x, kernel).size:
            return plain(x, kernel)
        n, last, *pixels = x_axes
        # [n, *out pixels, k] times [k, o]: the patches are those of the kernel's gradient
        read = patches(params, x.transpose((n, *pixels, last)), window)
        by_patches = jnp.matmul(
            read, kernel.transpose((*space, into, out)).reshape(-1, kernel.shape[out]),
            precision=params["precision"], preferred_element_type=params["preferred_element_type"])
        return by_patches.transpose(np.argsort((d_axes[0], *d_axes[2:], d_axes[1])))

    def back(met: tuple[jax.Array, jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, kernel = met
        turned = jax.lax.optimization_barrier(jnp.swapaxes(kernel, out, into))
        (d_x,) = jax.linear_transpose(lambda a: plain(a, turned, True), x)(d)
        (d_kernel,) = jax.linear_transpose(lambda a: plain(x, a), kernel)(d)
        return d_x, d_kernel

    fast.defvjp(lambda x, kernel: (fast(x, kernel), (x, kernel)), back)
    return fast(x, kernel)


def patches(params: dict[str, Any], x: jax.Array, window: tuple[int, ...]) -> jax.Array:
    """The patch of each output pixel, `[n, *out, *window, features]`, the last axes flat.

    Args:
      params: parameters of the convolution; strides, padding and both dilations are used.
      x: its input, `[n, *space, features]`.
      window: of the kernel.
    """
    if math.prod(window) > _SLICES:
        read = jax.lax.conv_general_dilated_patches(
            jnp.moveaxis(x, -1, 1), window, params["window_strides"], params["padding"],
            params["lhs_dilation"], params["rhs_dilation"], precision=jax.lax.Precision.HIGHEST)
        # that has features before pixels of a window: [n, features * window, *out]
        read = jnp.moveaxis(read, 1, -1)
        read = jnp.swapaxes(read.reshape(*read.shape[:-1], x.shape[-1], -1), -1, -2)
        return read.reshape(*read.shape[:-2], -1)
    # pad, and put lhs_dilation - 1 zeros between pixels of the input
    edges = [(low, high, dilation - 1)
             for (low, high), dilation in zip(params["padding"], params["lhs_dilation"],
                                              strict=True)]
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *edges, (0, 0, 0)])

    def window_part(x: jax.Array, offsets: dict[int, int]) -> jax.Array:
        """The pixels p * stride + offset * rhs_dilation for all p, along the axes of `offsets`."""
        first, last, strides = [0] * x.ndim, list(x.shape), [1] * x.ndim
        for axis, offset in offsets.items():
            dilation = params["rhs_dilation"][axis - 1]
            first[axis], strides[axis] = offset * dilation, params["window_strides"][axis - 1]
            # room for the width - 1 - offset pixels of the window that follow
            last[axis] += (offset + 1 - window[axis - 1]) * dilation
        return jax.lax.slice(x, first, last, strides)

    axes = range(1, x.ndim - 1)
    # slices of few numbers in a row are slow: then along the last axis first, which makes more
    one_by_one = [range(a, a + 1) for a in reversed(axes)]
    for chosen in [axes] if x.shape[-1] >= _THIN else one_by_one:
        x = jnp.concatenate([window_part(x, dict(zip(chosen, offset, strict=True))) for offset
                             in itertools.product(*(range(window[a - 1]) for a in chosen))], -1)
    return x


class Matrices(NamedTuple):
    """The gradient by a kernel as G matrices, each a sum of t terms x_t d_t^T.

    Attributes:
      groups: G.
      rows: t.
      shape: (k, o), of each matrix.
      orders: orders of axes, and shapes after them, that lead from the kernel to `[G, k, o]`.
      factors: `(input, derivative by the output) -> (x [G, t, k], d [G, t, o])`, without the first
        axis if G = 1.
    """

    groups: int
    rows: int
    shape: tuple[int, int]
    orders: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    factors: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def matrices(params: dict[str, Any], kernel: tuple[int, ...], output: tuple[int, ...]) -> Matrices:
    """The matrices of a kernel, of which none has a row if the convolution has no output.

    Args:
      params: parameters of the convolution, without groups of the batch.
      kernel: its shape.
      output: the shape of the result.
    """
    groups = params["feature_group_count"]
    x_axes, (out, into, *space), d_axes = params["dimension_numbers"]
    window, features = tuple([kernel[i] for i in space]), kernel[into]
    k, o = features * math.prod(window), kernel[out] // groups
    t = math.prod(output) // max(o * groups, 1)

    def factors(x: jax.Array, d: jax.Array) -> tuple[jax.Array, jax.Array]:
        # [n, *space, features] and [n, *out pixels, features]
        x, d = (a.transpose((n, *pixels, last))
                for a, (n, last, *pixels) in ((x, x_axes), (d, d_axes)))
        x = patches(params, x, window)
        if groups == 1:
            return x.reshape(t, k), d.reshape(t, o)
        # the features of a group lie side by side, within each pixel of a window
        # [G, t, window, in] and [G, t, o]
        x = jnp.moveaxis(x.reshape(t, math.prod(window), groups, features), 2, 0)
        return x.reshape(groups, t, k), jnp.swapaxes(d.reshape(t, groups, o), 0, 1)

    if groups == 1:
        return Matrices(1, t, (k, o), (((*space, into, out), (k, o)),), factors)
    # [groups, o, *window, features] first, whose second axis becomes the last
    turned = (groups, o, *window, features)
    return Matrices(groups, t, (k, o), (
        ((out, *space, into), turned),
        ((0, *range(2, len(turned)), 1), (groups, k, o))), factors)
