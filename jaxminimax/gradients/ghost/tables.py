"""Gradients of a table that is looked up and multiplied with: tied embeddings.

The gradient of example i by a table `[n, o]` is M + R: M = sum_t x_t d_t^T of the products, and
R = sum_s e_(r_s) c_s^T of the lookups, equal rows merged beforehand, so that those of R differ.
Both are pieces u w^T of one matrix, and a unit vector is a factor like any other:

    ||M + R||^2 = sum over pairs of pieces of (u . u')(w . w'),
    x_t . e_r = (x_t)_r,     e_r . e_r' = 1 if r = r' else 0,

so M and R may add up or cancel. (||M|| + ||R|| would be a bound as well, and clip records to
1 / sqrt(2) of the clip norm where M and R are orthogonal.) Norm and sum read the same x, d, r, c.

What is hidden by rounding is allowed for as in `factors`, over the pieces of both kinds; the sum
adds at most nine terms more to an entry than one product does (digits of `weighted_rows`, their
rest, and M to R), each with half a unit in the last place of the pieces' length: 2 * 9 / 2 of the
64 units that the norm allows for beyond its own products and sums.

The sum is `weighted_outer` plus `weighted_rows`. These grow apart, not row by row, so what cancels
in M + R is there at its full length in each. So the norm counts as at least `TIED` times the
pieces' norms, more than for pieces of one kind: after weighting, no piece and no entry is longer
than clip / TIED, which is the unit of `weighted_rows`. On the grid of a release both are added up
in float64, block by block, before the block is rounded once. Lookups are multiples of 2^-20 units
g there, whose sums are exact for up to 2^23 units in a clip norm, as all noise multipliers above
2^-23 have: in whatever order they are added, a block is the same to the last bit. An entry is off
by 2^-21 g, and a record by (s o)^(1/2) 2^-21 g; the charge allows for additions that are off by
2^-24 r^2 / 3^(1/2) > 2^-11 clip norms of some 2^17 g (`mechanism.grid`).

Kept of an example: t (n + o) + s (1 + o) numbers, and 2 (t + s)^2 for the Gram products. Unless
that is less than half of the table, its gradient is made of them instead, which is faster.
"""

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
    # for each lookup the number of the first one of the same row
    first = jnp.argmax(rows[:, None] == rows[None, :], 1)
    # d_s = sum of d_t over all t whose first lookup of the row is s
    return jnp.einsum("ts,to->so", jax.nn.one_hot(first, rows.shape[0], dtype=d.dtype), d,
                      precision=EXACT)


def rows_on_grid(rows: jax.Array, d: jax.Array, weight: jax.Array,
                 rounded: Callable[[jax.Array, jax.Array], jax.Array],
                 of: Callable[[jax.Array], PyTree], plus: Callable[[PyTree, PyTree], PyTree],
                 count: int) -> PyTree:
    """Adds up e_{row_it} rounded(weight_i d_it), record by record, so in whatever order.

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
    # weight_i d_it, and 0 for weight 0, since 0 * NaN is NaN
    left = jnp.where(weight > 0, weight * d, 0)

    def some(rows: jax.Array, left: jax.Array) -> PyTree:
        zeros = jnp.zeros((count, d.shape[-1]), jnp.int32)
        # word by word: lower ones have 20 bits, so that sums of 1024 cannot wrap around
        words = jax.tree.map(lambda a: zeros.at[rows].add(a, mode="drop"), of(rounded(left, rows)))
        return plus(words, of(zeros))

    parts = [some(rows[i: i + _ROWS], left[i: i + _ROWS]) for i in range(0, rows.shape[0], _ROWS)
             ] if rows.shape[0] <= _UNROLLED * _ROWS else None
    if parts is not None:
        return functools.reduce(plus, parts)
    in_blocks = rows.shape[0] // _ROWS * _ROWS

    def step(total: PyTree, these: Any) -> tuple[PyTree, None]:
        return plus(total, some(*these)), None

    # [b, ...] -> [blocks, 1024, ...]; what is left over is added first
    slices = tuple(a[:in_blocks].reshape(-1, _ROWS, *a.shape[1:]) for a in (rows, left))
    total = some(rows[in_blocks:], left[in_blocks:])
    return jax.lax.scan(step, total, slices)[0]


def weighted_rows(rows: jax.Array, d: jax.Array, weight: jax.Array, count: int,
                  clip: jax.typing.ArrayLike) -> jax.Array:
    """Computes sum_i weight_i sum_t e_{row_it} d_it^T, `[count, o]`; rows `[b, t]`, d `[b, t, o]`.

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
    # weight_i d_it, [b t, o]
    left = jnp.where(weight > 0, weight * d, 0).reshape(-1, d.shape[-1])
    rows, digits = rows.reshape(-1), limits.nmant + 1
    cut = digits - math.ceil(math.log2(2 * left.shape[0]))  # binary digits of a part
    longest = jnp.asarray(clip, d.dtype)  # no entry is longer, unless there is no clip
    # units that are powers of two, or multiples of them would be rounded
    most = jnp.minimum(jnp.ceil(jnp.log2(longest)), limits.maxexp - 1)
    step = jnp.where(jnp.isfinite(longest), jnp.exp2(most), 1.0)
    parts = []
    for _ in range(-(-28 // max(cut, 4))):
        step = jnp.maximum(step * 2.0**-cut, limits.tiny)  # or nothing is left to divide by
        # the next digits: multiples of a unit, whose sums are exact
        parts.append(jnp.round(left / step) * step)
        left = left - parts[-1]
    # side by side: sums added to each other are added up in one go by some compilers
    apart = jnp.stack([*parts, left], 1)
    zeros = jnp.zeros((count, *apart.shape[1:]), d.dtype)
    return jnp.sum(zeros.at[rows].add(apart, mode="drop"), 1)


TIED = 2.0**-3
