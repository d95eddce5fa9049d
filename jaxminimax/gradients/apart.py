"""Operators of many records at once, where no record reaches another one's numbers.

`jax.vmap` makes one grouped convolution of the records' gradients by a kernel, and compilers make
grouped convolutions of others, in which what belongs to another group is multiplied by 0. A record
that is NaN or infinite then is NaN in every other record's gradient (seen on CPUs in float64), so
that it would not count as absent but take all others away with it.

So where a program with grouped convolutions gives anything that is not finite, the records that are
not finite by themselves are found one by one, another record is put in their places, and the same
program runs again. Then every product with 0 is 0, and the others' numbers are, to the bit, those
that they have beside any finite record. (A record may be finite by itself and not in that program,
at the end of the range of floats. Then all are done one by one, and rounded in another way.)
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax.base import programs
from jaxminimax.base.tree import in_any_lane
from jaxminimax.base.types import PyTree


def each(of_one: Callable[[Any, PyTree], PyTree], z: Any, examples: PyTree) -> PyTree:
    """`of_one(z, example)` of every example, leaves `[b, ...]`; NaN where one is not finite.

    Args:
      of_one: a function of one example.
      z: shared.
      examples: leaves `[b, ...]`.
    """
    def together(examples: PyTree) -> PyTree:
        return jax.vmap(of_one, (None, 0))(z, examples)

    if not _grouped(jax.make_jaxpr(together)(examples)):
        return together(examples)

    def alone() -> PyTree:
        return jax.lax.map(lambda x: of_one(z, x), examples)

    def once_more(carry: tuple) -> tuple:
        passes, hostile, _ = carry
        other = jnp.argmin(hostile)  # a finite one, if there is any
        found = together(jax.tree.map(lambda x: _where(hostile, x[other], x), examples))
        found = jax.tree.map(lambda x: _where(hostile, _not_finite(x.dtype), x), found)
        lost = (passes == 0) & ~jnp.all(_finite(found))
        hostile |= jax.lax.cond(in_any_lane(lost), lambda: ~_finite(alone()),
                                lambda: jnp.zeros_like(hostile)) & lost
        return passes + 1, hostile, found

    def needed(carry: tuple) -> jax.Array:
        passes, hostile, _ = carry
        return (passes == 0) | ((passes == 1) & jnp.any(hostile))

    (count,) = {x.shape[0] for x in jax.tree.leaves(examples)}
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype),
                           jax.eval_shape(together, examples))
    _, hostile, found = jax.lax.while_loop(
        needed, once_more, (jnp.int32(0), jnp.zeros(count, bool), nothing))
    return jax.lax.cond(in_any_lane(~jnp.all(_finite(found) | hostile)), alone, lambda: found)


def _grouped(program: Any) -> bool:
    return any(max(equation.params[f"{which}_group_count"] for which in ("feature", "batch")) > 1
               for equation in programs.equations(program)
               if equation.primitive.name == "conv_general_dilated")


def _finite(found: PyTree) -> jax.Array:
    """Of each example, whether all its numbers are, bool `[b]`."""
    rows = [jnp.all(jnp.isfinite(x.reshape(x.shape[0], -1)), 1) for x in jax.tree.leaves(found)]
    return jnp.all(jnp.stack(rows), 0)


def _not_finite(dtype: Any) -> jax.Array:
    return jnp.array(jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else 0, dtype)


def _where(rows: jax.Array, one: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.where(rows.reshape(-1, *(1,) * (other.ndim - 1)), one, other)
