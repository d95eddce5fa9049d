"""Gradients of a table that is looked up and multiplied with: tied embeddings.

The gradient of example i by a table `[n, o]` is M + R: M = sum_t x_t d_t^T of the products, and
R = sum_s e_(r_s) c_s^T of the lookups, equal rows merged beforehand, so that those of R differ.
Both are pieces u w^T of one matrix, and a unit vector is a factor like any other:

    ||M + R||^2 = sum over pairs of pieces of (u . u')(w . w'),
    x_t . e_r = (x_t)_r,     e_r . e_r' = 1 if r = r' else 0,

so M and R may add up or cancel. (||M|| + ||R|| would be a bound as well, and clip records to
1 / sqrt(2) of the clip norm where M and R are orthogonal.) Norm and sum read the same x, d, r, c.

What is hidden by rounding is allowed for as in `_factors`, over the pieces of both kinds; the sum
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

import jax
import jax.numpy as jnp

from jaxminimax.gradients.ghost._factors import (
    outer,
    silenced,
    union_norms,
    weighted_outer,
    wide,
)
from jaxminimax.gradients.ghost._lookups import weighted_rows

TIED = 2.0**-3

Pair = tuple[jax.Array, ...]  # of products and of lookups


def tied_numbers(t: int, s: int, n: int, o: int) -> int:
    """What is kept of t rows of products and s lookups for each example."""
    return t * (n + o) + s * (1 + o) + 2 * (t + s) ** 2


def tied_norms(x: Pair, d: Pair) -> jax.Array:
    """||M + R|| of each example, rounded up, `[b]`; not finite if an entry is not.

    Args:
      x: `[b, t, n]`, and row numbers `[b, s]`; those of an example differ, or their c is 0.
      d: `[b, t, o]`, and c `[b, s, o]`.
    """
    met, *d_and_c = wide(x[0], *d)
    return union_norms(met, x[1], jnp.concatenate(d_and_c, 1), TIED)


def tied_silenced(x: Pair, d: Pair, weight: jax.Array, norm: jax.Array) -> tuple[Pair, Pair]:
    """Both kinds of pieces of weight_i (M_i + R_i), finite; arguments as in `silenced`."""
    met, left = silenced(x[0], d[0], weight, norm)
    _, looked = silenced(x[0], d[1], weight, norm)
    return (met, x[1]), (left, looked)


def tied_total(x: Pair, d: Pair, weight: jax.Array, norm: jax.Array,
               clip: jax.typing.ArrayLike) -> jax.Array:
    """sum_i weight_i (M_i + R_i), `[n, o]`."""
    return weighted_outer(x[0], d[0], weight, norm) + weighted_rows(
        x[1], wide(d[1])[0], weight, x[0].shape[-1], clip / TIED)


def tied_silenced_total(x: Pair, d: Pair, clip: jax.typing.ArrayLike) -> jax.Array:
    """`tied_total` of pieces that are weighted and finite."""
    return outer(x[0], d[0]) + weighted_rows(
        x[1], d[1], jnp.ones(x[1].shape[0], d[1].dtype), x[0].shape[-1], clip / TIED)
