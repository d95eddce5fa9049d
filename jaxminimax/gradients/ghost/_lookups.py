"""Weighted sums of gradients of a table whose rows are looked up: row numbers and derivatives."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax.base.tree import EXACT, at_least_float32
from jaxminimax.base.types import PyTree

_ROWS = 1024  # in a block
_UNROLLED = 4  # blocks that are written out


def merged(rows: jax.Array, d: jax.Array, count: int) -> jax.Array:
    """The derivatives of one example's lookups, those of equal rows added to the first, `[t, o]`.

    Args:
      rows: t row numbers; from `count` on they are not there and get no derivative.
      d: `[t, o]`.
      count: rows of the table.
    """
    d = d.astype(at_least_float32(d.dtype))
    d = jnp.where((rows < count)[:, None], d, 0)
    if rows.shape[0] == 1:
        return d
    first = jnp.argmax(rows[:, None] == rows[None, :], 1)
    return jnp.einsum("ts,to->so", jax.nn.one_hot(first, rows.shape[0], dtype=d.dtype), d,
                      precision=EXACT)


def rows_on_grid(rows: jax.Array, d: jax.Array, weight: jax.Array,
                 rounded: Callable[[jax.Array, jax.Array], jax.Array],
                 of: Callable[[jax.Array], PyTree], plus: Callable[[PyTree, PyTree], PyTree],
                 count: int) -> PyTree:
    """sum_i sum_t e_{row_it} rounded(weight_i d_it), record by record, so in whatever order.

    Args:
      rows: `[b, t]`; those of one example differ, or their d is 0.
      d: `[b, t, o]`.
      weight: `[b]`.
      rounded: of numbers `[b, t, o]` that are added to the entries of these rows.
      of: from int32 numbers to integers of one word or two, whose words are added up.
      plus: adds two of those.
      count: rows of the table.
    """
    weight = weight.astype(d.dtype)[:, None, None]
    left = jnp.where(weight > 0, weight * d, 0)

    def some(rows: jax.Array, left: jax.Array) -> PyTree:
        zeros = jnp.zeros((count, d.shape[-1]), jnp.int32)
        # word by word: lower ones have 20 bits, so that sums of 1024 cannot wrap around
        found = jax.tree.map(lambda a: zeros.at[rows].add(a, mode="drop"), of(rounded(left, rows)))
        return plus(found, of(zeros))

    parts = [some(rows[i: i + _ROWS], left[i: i + _ROWS]) for i in range(0, rows.shape[0], _ROWS)
             ] if rows.shape[0] <= _UNROLLED * _ROWS else None
    if parts is not None:
        return functools.reduce(plus, parts)
    whole = rows.shape[0] // _ROWS * _ROWS

    def step(total: PyTree, these: Any) -> tuple[PyTree, None]:
        return plus(total, some(*these)), None

    slices = tuple(a[:whole].reshape(-1, _ROWS, *a.shape[1:]) for a in (rows, left))
    total = some(rows[whole:], left[whole:])
    return jax.lax.scan(step, total, slices)[0]


def weighted_rows(rows: jax.Array, d: jax.Array, weight: jax.Array, count: int,
                  clip: jax.typing.ArrayLike) -> jax.Array:
    """sum_i weight_i sum_t e_{row_it} d_it^T, `[count, o]`; rows `[b, t]`, d `[b, t, o]`.

    Rows are added one by one, and no rounding may depend on what other records hold. So each entry
    is cut into multiples of units that are fixed by the clip norm and the number of rows, so coarse
    that sums of them are exact. What is left of an entry is below 2^-28 of the clip norm, and its
    sum cannot lose much.

    Args:
      rows: row numbers; those from `count` on are left out.
      d: what is added to them.
      weight: `[b]`.
      count: rows of the table.
      clip: what no weighted entry exceeds; infinite if that is not known.
    """
    limits = jnp.finfo(d.dtype)
    weight = weight.astype(d.dtype)[:, None, None]
    left = jnp.where(weight > 0, weight * d, 0).reshape(-1, d.shape[-1])
    rows, digits = rows.reshape(-1), limits.nmant + 1
    cut = digits - math.ceil(math.log2(2 * left.shape[0]))  # binary digits of a part
    longest = jnp.asarray(clip, d.dtype)  # no entry is longer, unless there is no clip
    most = jnp.minimum(jnp.ceil(jnp.log2(longest)), limits.maxexp - 1)
    step = jnp.where(jnp.isfinite(longest), jnp.exp2(most), 1.0)
    parts = []
    for _ in range(-(-28 // max(cut, 4))):
        step = jnp.maximum(step * 2.0**-cut, limits.tiny)  # or nothing is left to divide by
        parts.append(jnp.round(left / step) * step)
        left = left - parts[-1]
    # side by side: sums added to each other are added up in one go by some compilers
    apart = jnp.stack([*parts, left], 1)
    zeros = jnp.zeros((count, *apart.shape[1:]), d.dtype)
    return jnp.sum(zeros.at[rows].add(apart, mode="drop"), 1)
