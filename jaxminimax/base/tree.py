"""Arithmetic on pytrees, with every scalar cast to the leaf's dtype at the point of use."""

import jax
import jax.numpy as jnp

from jaxminimax.base.types import PyTree

_BLOCK = 32
EXACT = jax.lax.Precision.HIGHEST  # a reduced one in a matrix unit would loosen every bound


@jax.custom_batching.custom_vmap
def in_any_lane(x: jax.Array) -> jax.Array:
    """Whether any number of x is true, in any lane of a vmap: a branch on it stays a branch."""
    return jnp.any(x)


@in_any_lane.def_vmap
def any_lane_rule(_: int, __: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
    """What `in_any_lane` is under a vmap; by it, a trace can tell it from others' rules."""
    return in_any_lane(x), False


def at_least_float32(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype that sums are accumulated in: float32, or wider if `dtype` is."""
    return jnp.promote_types(dtype, jnp.float32)


def unit(x: jax.Array) -> jax.Array:
    """A number near x > 0 whose reciprocal is neither infinite nor, flushed as a subnormal, 0.

    Compilers multiply by reciprocals: over 1e38 itself, float32 entries all became 0.
    """
    limits = jnp.finfo(x.dtype)
    return jnp.clip(x, limits.tiny, limits.max / 8)


def squared(x: jax.Array) -> jax.Array:
    """Sum of squares along the last axis, never too small because small squares vanish."""
    return jnp.sum(jnp.square(x), -1) + x.shape[-1] * jnp.finfo(x.dtype).tiny


def sum_rows(weight: jax.Array, x: jax.Array) -> jax.Array:
    """sum_i weight_i x_i of `[n]` and `[n, k]`, `[k]`; 0 * NaN is NaN.

    In blocks: a single running sum, which is how matrix libraries go about a vector, loses small
    terms or rounds them up depending on what the sum has come to, so that one row may decide about
    all that follow. (n = 65,536 of them were moved by 65 times what the row itself had added.)
    """
    count = x.shape[0] // _BLOCK
    whole = count * _BLOCK
    blocks = jnp.einsum("bi,bik->bk", weight[:whole].reshape(count, _BLOCK),
                        x[:whole].reshape(count, _BLOCK, x.shape[1]), precision=EXACT)
    rest = jnp.einsum("i,ik->k", weight[whole:], x[whole:], precision=EXACT)
    if blocks.shape[0] > _BLOCK:
        return sum_rows(jnp.ones(blocks.shape[0], blocks.dtype), blocks) + rest
    return jnp.sum(blocks, 0) + rest


def two_sum_error(a: jax.Array, b: jax.Array, total: jax.Array) -> jax.Array:
    """What rounding a + b to `total` lost, exactly."""
    part = total - a
    return (a - (total - part)) + (b - part)


def add(x: PyTree, y: PyTree) -> PyTree:
    """X + y in the dtypes of x."""
    return jax.tree.map(lambda a, b: a + b.astype(a.dtype), x, y)


def cast_like(x: PyTree, like: PyTree) -> PyTree:
    """X in the dtypes of `like`."""
    return jax.tree.map(lambda a, b: a.astype(b.dtype), x, like)


def lerp(x: PyTree, y: PyTree, weight: jax.Array) -> PyTree:
    """X + weight * (y - x), in the dtypes of x."""
    return jax.tree.map(lambda a, b: a + weight.astype(a.dtype) * (b.astype(a.dtype) - a), x, y)


def float_dtype(tree: PyTree) -> jnp.dtype:
    """The widest dtype among the leaves, at least float32."""
    return at_least_float32(jnp.result_type(*jax.tree.leaves(tree)))


def refuse_complex(tree: PyTree, name: str) -> None:
    """Refuses complex leaves.

    Raises:
      ValueError: naming the dtype and the fix.
    """
    for x in jax.tree.leaves(tree):
        if jnp.issubdtype(jnp.result_type(x), jnp.complexfloating):
            raise ValueError(f"{name} has a leaf of dtype {jnp.result_type(x)}: complex numbers "
                             "are neither clipped nor noised here. Hold the real and the imaginary "
                             "part in leaves of their own, and combine them in the loss.")
