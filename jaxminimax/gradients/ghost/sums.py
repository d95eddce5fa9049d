"""Norms and clipped sums of gradients as a plan keeps them: whole, as factors, or as rows.

Norm and sum of a parameter read the same numbers, which one pass over the examples leaves behind.
In floating point the sum of factors is one product of matrices; on the grid of a release it is
made block by block, of factors that are weighted and finite, so that a record moves what it moves
in its own block.

Tables that are looked up and multiplied with: tied embeddings. The gradient of example i by a table
`[n, o]` is M + R: M = sum_t x_t d_t^T of the products, and R = sum_s e_(r_s) c_s^T of the lookups,
equal rows merged beforehand (`treatment.gathered`), so that those of R differ.
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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.base.tree import at_least_float32
from jaxminimax.base.types import PyTree, Saddle, SaddleOperator
from jaxminimax.gradients import integer_sums, summation
from jaxminimax.gradients.ghost import factors
from jaxminimax.gradients.ghost.planning import Plan
from jaxminimax.gradients.ghost.treatment import Factors, Part, Treatment
from jaxminimax.gradients.ghost.uses import placed, unseen, viewed
from jaxminimax.gradients.summation import Rounding, Summation, Sums
from jaxminimax.mechanism.grid import BLOCK

TIED = 2.0**-3


def norms_of(g: Factors) -> tuple[jax.Array, ...]:
    """Numbers of each part, `[b, ...]`, with the norms of the gradients: one for a matrix."""
    if g.are_rows:
        return g.d
    if g.are_tied:
        # products x_t d_t^T and lookups e_r c_r^T are pieces of one matrix
        met, *d_and_c = factors.wide(g.x[0], *g.d)
        return (factors.union_norms(met, g.x[1], jnp.concatenate(d_and_c, 1), TIED),)

    def norm(x: jax.Array, d: jax.Array) -> jax.Array:
        # [b, G, t, k] as [b G, t, k]: a norm of each matrix, [b, G]
        norms = factors.norms(x.reshape(-1, *x.shape[-2:]), d.reshape(-1, *d.shape[-2:]))
        return norms.reshape(x.shape[:-2])

    return tuple(map(norm, g.x, g.d))


class Weighted(NamedTuple):
    """`Factors` of weighted gradients that are finite, the one with fewer numbers last."""

    x: tuple[jax.Array, ...]
    d: tuple[jax.Array, ...]


class Kept(NamedTuple):
    """The gradients g_i of all examples by one parameter, and what each example counts for.

    Attributes:
      treatment: how they are kept.
      g: `Factors`, `Weighted` or an array `[b, ...]`; None for a parameter that is not used.
      norms: of factors, as `norms_of`.
      weight: of each example, `[b]`; 0 where a norm is not finite.
      clip: the player's clip norm.
    """

    treatment: Treatment
    g: Any
    norms: Any
    weight: jax.Array
    clip: jax.typing.ArrayLike

    def total(self) -> jax.Array:
        """The weighted sum, sum_i weight_i g_i, in the parameter's shape."""
        t, g = self.treatment, self.g
        if g is None:
            return jnp.zeros(t.shape, at_least_float32(t.dtype))
        if not isinstance(g, Factors | Weighted):
            return summation.weighted_sum(g, self.weight)
        if t.kind == "rows":
            # sum_i weight_i sum_t e_(r_it) d_it^T
            return unseen(t.parts[0].view, weighted_rows(
                g.x[0], g.d[0], self.weight, t.parts[0].shape[0], self.clip))
        if t.kind == "tied":
            # M + R: no piece is longer than clip / TIED once it is weighted
            weight = jnp.ones_like(self.weight) if isinstance(g, Weighted) else self.weight
            products = factors.outer(g.x[0], g.d[0]) if isinstance(
                g, Weighted) else factors.weighted_outer(g.x[0], g.d[0], weight, self.norms[0])
            return unseen(t.parts[0].view, products + weighted_rows(
                g.x[1], factors.wide(g.d[1])[0], weight, g.x[0].shape[-1],
                self.clip / TIED))
        if isinstance(g, Weighted):
            return self._shaped([part.over_groups(factors.outer)(x, d)
                                 for part, x, d in zip(t.parts, *g, strict=True)])

        def part_sum(part: Part, norm: jax.Array, x: jax.Array, d: jax.Array) -> jax.Array:
            return part.over_groups(
                lambda x, d: factors.weighted_outer(x, d, self.weight, norm))(x, d)

        # parts are different entries, so each is put where it belongs
        return placed([(row[0].view, part_sum(*row)) for row in zip(
            t.parts, self.norms, *g, strict=True)], t.shape)

    def weighted(self, finite: bool) -> "Kept":
        """The same, with weights multiplied into factors; rows of a table stay as they are.

        Args:
          finite: whether the norms of all examples are; else other numbers are replaced by 0.
        """
        t, g = self.treatment, self.g
        if not isinstance(g, Factors):
            rows = summation.weighted_rows(g, self.weight, finite)  # one leaf, or none
            return self._replace(weight=rows[0][0], g=rows[0][1]) if rows else self
        if t.kind == "rows":
            return self
        if t.kind == "tied":
            # of both kinds of pieces
            x, d = factors.weighted(g.x[0], g.d[0], self.weight, finite)
            _, c = factors.weighted(g.x[0], g.d[1], self.weight, finite)
            return self._replace(g=Weighted((x, g.x[1]), (d, c)))

        def pair(part: Part, x: jax.Array, d: jax.Array) -> Any:
            if part.is_wide:  # the weight goes to the factor with fewer numbers
                x, d = d, x
            return part.over_groups(
                lambda x, d: factors.weighted(x, d, self.weight, finite), 1)(x, d)

        pairs = [pair(*row) for row in zip(t.parts, *g, strict=True)]
        return self._replace(g=Weighted(*map(tuple, zip(*pairs, strict=True))))

    def _shaped(self, part_sums: list[PyTree]) -> PyTree:
        """Brings weighted factors' products from their shapes to the parameter's."""
        parts = self.treatment.parts
        # (d x^T)^T = x d^T where the factors were exchanged
        part_sums = [jax.tree.map(lambda a: jnp.swapaxes(a, -1, -2), x) if part.is_wide else x
                    for part, x in zip(parts, part_sums, strict=True)]
        return jax.tree.map(lambda *a: placed(
            [(part.view, x) for part, x in zip(parts, a, strict=True)], self.treatment.shape),
            *part_sums)

    def _grids(self, grid: integer_sums.Leaf) -> list[integer_sums.Leaf]:
        """The grid of each part: of a whole parameter the dither's numbers are in any order."""
        return [grid if self.treatment.full else grid._replace(
            dither=viewed(part.view, grid.dither)) for part in self.treatment.parts]

    def on_grid(self, grid: integer_sums.Leaf) -> integer_sums.Words:
        """The sum on a grid, block by block; the dither's numbers are those of the matrix."""
        t, g, plus = self.treatment, self.g, integer_sums.plus
        if g is None:
            return grid.zeros()
        if not isinstance(g, Factors | Weighted):
            return grid.rows(self.weight, g)

        def block(total: jax.Array, scale: jax.Array, dither: jax.Array) -> integer_sums.Words:
            return grid._replace(scale=scale, dither=dither).block(total)

        def rounded(x: jax.Array, rows: jax.Array) -> jax.Array:
            # U of the looked up rows' entries, [b, t, o]
            return integer_sums.rounded(x, grid.scale, grid.dither.reshape(
                t.parts[0].shape).at[rows].get(mode="clip"))

        if t.kind in ("rows", "tied"):
            words = rows_on_grid(
                g.x[0], g.d[0], self.weight, rounded, grid.to_words, plus, t.parts[0].shape[0],
            ) if t.kind == "rows" else factors.outer_blocks(
                g.x[0], g.d[0], block, (grid.scale, grid.dither), plus, BLOCK, g.x[1], g.d[1])
            return jax.tree.map(lambda a: unseen(t.parts[0].view, a), words)

        def matrix_sum(x: jax.Array, d: jax.Array, dither: jax.Array) -> integer_sums.Words:
            if x.shape[1] == d.shape[-1] == 1 and not len(x) % BLOCK:
                # vectors: all blocks, which are the same ones, in one product
                words = grid._replace(dither=dither.reshape(-1)).rows(d[:, 0, 0], x[:, 0])
                return jax.tree.map(lambda a: a[:, None], words)
            return factors.outer_blocks(x, d, block, (grid.scale, dither), plus, BLOCK)

        # groups are axis 1 of x and d, [b, G, t, ...], and axis 0 of the dither
        return self._shaped([
            matrix_sum(x, d, leaf_grid.dither) if part.groups == 1 else
            jax.vmap(matrix_sum, (1, 1, 0))(x, d, leaf_grid.dither.reshape(part.groups, -1))
            for part, leaf_grid, x, d in zip(t.parts, self._grids(grid), *g, strict=True)])


def rows_on_grid(rows: jax.Array, d: jax.Array, weight: jax.Array,
                 rounded: Callable[[jax.Array, jax.Array], jax.Array],
                 to_words: Callable[[jax.Array], PyTree], plus: Callable[[PyTree, PyTree], PyTree],
                 count: int) -> PyTree:
    """Adds up e_{row_it} rounded(weight_i d_it), record by record, so in whatever order.

    Args:
      rows: `[b, t]`; those of one example differ, or their d is 0.
      d: `[b, t, o]`.
      weight: `[b]`.
      rounded: of numbers `[b, t, o]` that are added to the entries of these rows.
      to_words: from int32 numbers to integers of one word or two, whose words are added up.
      plus: adds two of those.
      count: rows of the table.
    """
    weight = weight.astype(d.dtype)[:, None, None]
    # weight_i d_it, and 0 for weight 0, since 0 * NaN is NaN
    weighted = jnp.where(weight > 0, weight * d, 0)

    def slice_sum(rows: jax.Array, weighted: jax.Array) -> PyTree:
        zeros = jnp.zeros((count, d.shape[-1]), jnp.int32)
        # word by word: lower ones have 20 bits, so that sums of 1024 cannot wrap around
        words = jax.tree.map(lambda a: zeros.at[rows].add(a, mode="drop"),
                             to_words(rounded(weighted, rows)))
        return plus(words, to_words(zeros))

    block = 1024
    if rows.shape[0] <= 4 * block:  # these are written out
        return functools.reduce(plus, [slice_sum(rows[i: i + block], weighted[i: i + block])
                                       for i in range(0, rows.shape[0], block)])
    in_blocks = rows.shape[0] // block * block

    def step(total: PyTree, rows_and_values: Any) -> tuple[PyTree, None]:
        return plus(total, slice_sum(*rows_and_values)), None

    # [b, ...] -> [blocks, 1024, ...]; what is left over is added first
    slices = tuple(a[:in_blocks].reshape(-1, block, *a.shape[1:]) for a in (rows, weighted))
    total = slice_sum(rows[in_blocks:], weighted[in_blocks:])
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
    remainder = jnp.where(weight > 0, weight * d, 0).reshape(-1, d.shape[-1])
    rows, digits = rows.reshape(-1), limits.nmant + 1
    cut = digits - math.ceil(math.log2(2 * remainder.shape[0]))  # binary digits of a part
    longest = jnp.asarray(clip, d.dtype)  # no entry is longer, unless there is no clip
    # units that are powers of two, or multiples of them would be rounded
    exponent = jnp.minimum(jnp.ceil(jnp.log2(longest)), limits.maxexp - 1)
    step = jnp.where(jnp.isfinite(longest), jnp.exp2(exponent), 1.0)
    parts = []
    for _ in range(-(-28 // max(cut, 4))):
        step = jnp.maximum(step * 2.0**-cut, limits.tiny)  # or nothing is left to divide by
        # the next digits: multiples of a unit, whose sums are exact
        parts.append(jnp.round(remainder / step) * step)
        remainder = remainder - parts[-1]
    # side by side: sums added to each other are added up in one go by some compilers
    side_by_side = jnp.stack([*parts, remainder], 1)
    zeros = jnp.zeros((count, *side_by_side.shape[1:]), d.dtype)
    return jnp.sum(zeros.at[rows].add(side_by_side, mode="drop"), 1)


def by_factors(how: Summation, plan: Plan, z: Saddle, examples: PyTree, mask: jax.Array,
               share: jax.Array | None, rounding: Rounding | None) -> Sums:
    """Norms and sums come from the factors that one pass leaves behind."""
    # once, for norms and sum alike, as in `summation.at_once`
    g = plan.gradients(z, examples, mask)
    norms = jax.tree.map(lambda x: norms_of(x) if isinstance(x, Factors) else x, g,
                         is_leaf=lambda x: isinstance(x, Factors))
    weight, finite = how.weights(norms, mask, share)
    kept_players = how.players(lambda clip, weight, *lists: [
        Kept(treatment, gradient, norm, weight, clip) for treatment, gradient, norm in zip(
            *lists, strict=True)], weight, plan.by_player(plan.treatments), g, norms)

    def floats(kept_players: Saddle) -> Saddle:
        return SaddleOperator.oriented(how.players(lambda _, x, rows: jax.tree.unflatten(
            jax.tree.structure(x), [row.total() for row in rows]), z, kept_players))

    def integers(kept_players: Saddle, grid: integer_sums.Grid) -> Saddle:
        words = how.on_leaves(lambda leaf, _, row: row.on_grid(leaf), grid, z, kept_players)
        # the sign of ascent, as for `floats`
        return words._replace(v=jax.tree.map(integer_sums.minus, words.v,
                                             is_leaf=integer_sums.is_words))

    def weighted(finite: bool) -> Saddle:
        return how.players(lambda _, rows: [row.weighted(finite) for row in rows], kept_players)

    sums = Sums(floats(kept_players), None) if rounding is None else how.both(
        floats, integers, weighted, finite, rounding)
    return sums._replace(num_unclipped=how.num_unclipped(weight))
