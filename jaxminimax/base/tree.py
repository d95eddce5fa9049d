"""Arithmetic on pytrees, with every scalar cast to the leaf's dtype at the point of use.

Other functions set how numbers are computed: once for all readers, or in 64 bits.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.types import PyTree, T

EXACT = jax.lax.Precision.HIGHEST  # a reduced one in a matrix unit would loosen every bound


@jax.custom_batching.custom_vmap
def in_any_lane(x: jax.Array) -> jax.Array:
    """Returns True if x is true anywhere, in any lane of a vmap: a branch on it stays a branch."""
    return jnp.any(x)


@in_any_lane.def_vmap
def any_lane_rule(_: int, __: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
    """The vmap rule of `in_any_lane`; a trace recognises it by its name."""
    return in_any_lane(x), False


def at_least_float32(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype that sums are accumulated in: float32, or wider if `dtype` is."""
    # strict promotion would refuse float64
    wide = jnp.issubdtype(dtype, jnp.inexact) and jnp.dtype(dtype).itemsize > 4
    return jnp.dtype(dtype) if wide else jnp.promote_types(dtype, jnp.float32)


def unit(x: jax.Array) -> jax.Array:
    """A number near x > 0 whose reciprocal is neither infinite nor, flushed as a subnormal, 0.

    Compilers multiply by reciprocals: divided by 1e38 itself, all float32 entries became 0.
    """
    limits = jnp.finfo(x.dtype)
    return jnp.clip(x, limits.tiny, limits.max / 8)


def squared(x: jax.Array) -> jax.Array:
    """Sums squares along the last axis, so that vanishing small squares never reduce the sum."""
    return jnp.sum(jnp.square(x), -1) + x.shape[-1] * jnp.finfo(x.dtype).tiny


def sum_rows(weight: jax.Array, x: jax.Array) -> jax.Array:
    """Computes sum_i weight_i x_i, `[k]`, of `[n]` and `[n, k]`; 0 * NaN is NaN.

    It adds in blocks. Matrix libraries use a single running sum for a vector, which loses small
    terms or rounds them up depending on the sum so far, so that one row may decide about all that
    follow. (One row moved the sum of n = 65,536 rows by 65 times its own value.)
    """
    block = 32  # rows
    count = x.shape[0] // block
    in_blocks = count * block
    blocks = jnp.einsum("bi,bik->bk", weight[:in_blocks].reshape(count, block),
                        x[:in_blocks].reshape(count, block, x.shape[1]), precision=EXACT)
    remainder = jnp.einsum("i,ik->k", weight[in_blocks:], x[in_blocks:], precision=EXACT)
    if blocks.shape[0] > block:
        return sum_rows(jnp.ones(blocks.shape[0], blocks.dtype), blocks) + remainder
    return jnp.sum(blocks, 0) + remainder


def two_sum_error(a: jax.Array, b: jax.Array, total: jax.Array) -> jax.Array:
    """The exact rounding error of a + b as `total`."""
    b_rounded = total - a
    return (a - (total - b_rounded)) + (b - b_rounded)


def add_compensated(total: PyTree, lost: PyTree, term: PyTree) -> tuple[PyTree, PyTree]:
    """Adds `term` and earlier rounding errors to `total`; returns the sum and its own error.

    With plain addition one record could decide whether small terms on a large sum are lost, and
    move the sum by far more than its clip norm.
    """
    term = jax.tree.map(jnp.add, term, lost)
    new = jax.tree.map(jnp.add, total, term)
    return new, jax.tree.map(two_sum_error, total, term, new)


def as_leaves(numbers: jax.Array, like: PyTree) -> PyTree:
    """Numbers `[k]` in the shapes of the arrays of `like`, which have k together."""
    leaves, treedef = jax.tree.flatten(like)
    ends = np.cumsum([0, *(x.size for x in leaves)])
    return jax.tree.unflatten(treedef, [numbers[a:b].reshape(x.shape) for a, b, x in zip(
        ends, ends[1:], leaves, strict=False)])


def in_one(x: PyTree) -> jax.Array:
    """All numbers of x in the order in which `as_leaves` takes them, `[k]`."""
    return jnp.concatenate([jnp.reshape(a, -1) for a in jax.tree.leaves(x)])


def arranged(x: PyTree, like: PyTree) -> PyTree:
    """Arranges numbers as in `like`, of which either may be one array in place of many leaves."""
    if len(jax.tree.leaves(x)) == len(jax.tree.leaves(like)):
        return x
    return as_leaves(x, like) if isinstance(x, jax.Array) else in_one(x)


def paths(name: str, x: PyTree) -> list[str]:
    """Names the leaves, as in name['w'][0]."""
    return [name + jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(x)]


def add(x: PyTree, y: PyTree) -> PyTree:
    """Returns x + y in the dtypes of x."""
    return jax.tree.map(lambda a, b: a + b.astype(a.dtype), x, y)


def cast_like(x: PyTree, like: T) -> T:
    """Casts x to the dtypes of `like`."""
    cast: T = jax.tree.map(lambda a, b: a.astype(b.dtype), x, like)
    return cast


def lerp(x: PyTree, y: PyTree, weight: jax.Array) -> PyTree:
    """Returns x + weight * (y - x) in the dtypes of x."""
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


if TYPE_CHECKING:
    from jax.extend.core import Jaxpr


def materialise(f: Callable[[], PyTree]) -> PyTree:
    """Returns `f()` in buffers of its own, which every reader reads.

    Compilers repeat cheap arithmetic inside each of its readers, at places that defeat vectors, and
    may round it differently in each: a product that is contracted with a sum in one place and not
    in the other cancels in one and not in the other. A norm and the sum that it is to bound must
    see the same numbers.

    XLA's compiler for CPUs drops barriers before it fuses, so there the results are those of a call
    that is never inlined. Other compilers of XLA keep barriers until everything is fused. A
    conditional would do, too, but may be a trip to the host on an accelerator.

    Args:
      f: computes a pytree of arrays.
    """
    from jax.experimental.xla_metadata import set_xla_metadata

    traced, shapes = jax.make_jaxpr(f, return_shape=True)()  # once for both ways

    def results() -> list[Any]:
        return jax.core.eval_jaxpr(traced.jaxpr, traced.consts)

    def body() -> list[Any]:
        with set_xla_metadata(inlineable="true"):  # calls inside, which the mark would reach
            return results()

    def call() -> list[Any]:
        with set_xla_metadata(inlineable="false"):
            return jax.jit(body)()

    return jax.tree.unflatten(jax.tree.structure(shapes), jax.lax.platform_dependent(
        cpu=call, default=lambda: jax.lax.optimization_barrier(results())))


def if_wanted(f: Callable[[], PyTree], condition: jax.Array) -> PyTree:
    """Returns `f()`, or zeros if `condition` is False in every lane of a vmap."""
    traced, shapes = jax.make_jaxpr(f, return_shape=True)()
    return jax.lax.cond(
        in_any_lane(condition), lambda: jax.tree.unflatten(
            jax.tree.structure(shapes), jax.core.eval_jaxpr(traced.jaxpr, traced.consts)),
        lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))


def materialise_rows(f: Callable[[], PyTree]) -> PyTree:
    """`materialise` of numbers of which some are others in another shape: each is kept once."""
    traced, shapes = jax.make_jaxpr(f, return_shape=True)()
    leaves, treedef = jax.tree.flatten(shapes)
    roots = _roots(traced.jaxpr)
    first: dict[Any, tuple[int, tuple[int, ...]]] = {}
    for i, (root, shape) in enumerate(roots):
        first.setdefault(root, (i, shape))

    def distinct() -> list[jax.Array]:
        results = jax.core.eval_jaxpr(traced.jaxpr, traced.consts)
        return [results[i].reshape(shape) for i, shape in first.values()]

    values = dict(zip(first, materialise(distinct), strict=True))
    return jax.tree.unflatten(treedef, [
        values[root].reshape(like.shape) for (root, _), like in zip(roots, leaves, strict=True)])


def _roots(jaxpr: "Jaxpr") -> list[tuple[Any, tuple[int, ...]]]:
    """Returns, for each result, the value that it reshapes and the shape of that value.

    A call holds each of its results, and axes of length 1 may make it copy them again; a layer's
    bias has the derivative of its product.
    """
    from jax.extend.core import Var

    def shape(x: Any) -> tuple[int, ...]:
        return x.aval.shape

    source = {eqn.outvars[0]: eqn.invars[0] for eqn in jaxpr.eqns
              if eqn.primitive.name in ("reshape", "squeeze", "expand_dims", "broadcast_in_dim")
            # a reshape in another order permutes, too
              and (eqn.primitive.name != "reshape" or eqn.params["dimensions"] is None)
              and math.prod(shape(eqn.outvars[0])) == math.prod(shape(eqn.invars[0]))}
    roots = []
    for i, x in enumerate(jaxpr.outvars):
        while isinstance(x, Var) and x in source:
            x = source[x]
        roots.append((x if isinstance(x, Var) else i, shape(x)))
    return roots


def in_float64(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Returns `function` traced with 64-bit types, under any setting of the caller.

    It gets arrays of any dtype and must return none that is wider than 32 bits. Under a vmap it is
    traced anew inside the switch, because batching the traced program would round its types.
    """
    @jax.custom_batching.custom_vmap
    def wide(*args: PyTree) -> PyTree:
        with jax.enable_x64(True):
            return function(*args)

    def rule(_: int, batched: list[Any], *args: PyTree) -> tuple[PyTree, PyTree]:
        axes = jax.tree.map(lambda b: 0 if b else None, tuple(batched))
        results = in_float64(jax.vmap(function, axes))(*args)
        return results, jax.tree.map(lambda _: True, results)

    wide.def_vmap(rule)
    return wide


def widened(numbers: PyTree) -> PyTree:
    """Casts numbers to float64; call it with 64-bit types switched on."""
    return jax.tree.map(lambda x: x.astype(jnp.float64), numbers)
