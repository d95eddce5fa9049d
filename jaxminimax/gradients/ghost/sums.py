"""Norms and clipped sums of gradients as a plan keeps them: whole, as factors, or as rows.

Norm and sum of a parameter read the same numbers, which one pass over the examples leaves behind.
In floating point the sum of factors is one product of matrices; on the grid of a release it is
made block by block, of factors that are weighted and finite, so that a record moves what it moves
in its own block.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.base.tree import at_least_float32
from jaxminimax.base.types import PyTree, Saddle, SaddleOperator
from jaxminimax.gradients import integer_sums, weights
from jaxminimax.gradients.ghost import factors, tables
from jaxminimax.gradients.ghost.planning import Plan
from jaxminimax.gradients.ghost.treatment import Factors, Part, Treatment
from jaxminimax.gradients.ghost.uses import placed, seen, unseen
from jaxminimax.gradients.summation import Rounding, Summation, Sums
from jaxminimax.mechanism.grid import BLOCK


def norms_of(g: Factors) -> tuple[jax.Array, ...]:
    """Numbers of each part, `[b, ...]`, with the norms of the gradients: one for a matrix."""
    if g.are_rows:
        return g.d
    if g.are_tied:
        # products x_t d_t^T and lookups e_r c_r^T are pieces of one matrix
        met, *d_and_c = factors.wide(g.x[0], *g.d)
        return (factors.union_norms(met, g.x[1], jnp.concatenate(d_and_c, 1), tables.TIED),)

    def norm(x: jax.Array, d: jax.Array) -> jax.Array:
        # [b, G, t, k] as [b G, t, k]: a norm of each matrix, [b, G]
        each = factors.norms(x.reshape(-1, *x.shape[-2:]), d.reshape(-1, *d.shape[-2:]))
        return each.reshape(x.shape[:-2])

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
            return weights.weighted_sum(g, self.weight)
        if t.kind == "rows":
            # sum_i weight_i sum_t e_(r_it) d_it^T
            return unseen(t.parts[0].view, tables.weighted_rows(
                g.x[0], g.d[0], self.weight, t.parts[0].shape[0], self.clip))
        if t.kind == "tied":
            # M + R: no piece is longer than clip / TIED once it is weighted
            weight = jnp.ones_like(self.weight) if isinstance(g, Weighted) else self.weight
            products = factors.outer(g.x[0], g.d[0]) if isinstance(
                g, Weighted) else factors.weighted_outer(g.x[0], g.d[0], weight, self.norms[0])
            return unseen(t.parts[0].view, products + tables.weighted_rows(
                g.x[1], factors.wide(g.d[1])[0], weight, g.x[0].shape[-1],
                self.clip / tables.TIED))
        if isinstance(g, Weighted):
            return self._shaped([part.of_groups(factors.outer)(x, d)
                                 for part, x, d in zip(t.parts, *g, strict=True)])

        def of_part(part: Part, norm: jax.Array, x: jax.Array, d: jax.Array) -> jax.Array:
            return part.of_groups(
                lambda x, d: factors.weighted_outer(x, d, self.weight, norm))(x, d)

        # parts are different entries, so each is put where it belongs
        return placed([(row[0].view, of_part(*row)) for row in zip(
            t.parts, self.norms, *g, strict=True)], t.shape)

    def weighted(self, finite: bool) -> "Kept":
        """The same, with weights multiplied into factors; rows of a table stay as they are.

        Args:
          finite: whether the norms of all examples are; else other numbers are replaced by 0.
        """
        t, g = self.treatment, self.g
        if not isinstance(g, Factors):
            rows = weights.weighted(g, self.weight, finite)  # one leaf, or none
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
            return part.of_groups(
                lambda x, d: factors.weighted(x, d, self.weight, finite), 1)(x, d)

        pairs = [pair(*row) for row in zip(t.parts, *g, strict=True)]
        return self._replace(g=Weighted(*map(tuple, zip(*pairs, strict=True))))

    def _shaped(self, of_parts: list[PyTree]) -> PyTree:
        """Brings weighted factors' products from their shapes to the parameter's."""
        parts = self.treatment.parts
        # (d x^T)^T = x d^T where the factors were exchanged
        of_parts = [jax.tree.map(lambda a: jnp.swapaxes(a, -1, -2), x) if part.is_wide else x
                    for part, x in zip(parts, of_parts, strict=True)]
        return jax.tree.map(lambda *a: placed(
            [(part.view, x) for part, x in zip(parts, a, strict=True)], self.treatment.shape),
            *of_parts)

    def _grids(self, grid: integer_sums.Leaf) -> list[integer_sums.Leaf]:
        """The grid of each part: of a whole parameter the dither's numbers are in any order."""
        return [grid if self.treatment.full else grid._replace(
            dither=seen(part.view, grid.dither)) for part in self.treatment.parts]

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

        if t.kind == "rows":
            words = tables.rows_on_grid(g.x[0], g.d[0], self.weight, rounded, grid.of, plus,
                                        t.parts[0].shape[0])
            return jax.tree.map(lambda a: unseen(t.parts[0].view, a), words)
        if t.kind == "tied":
            (x, rows), (d, c) = g
            words = factors.outer_blocks(x, d, block, (grid.scale, grid.dither), plus, BLOCK,
                                         rows, c)
            return jax.tree.map(lambda a: unseen(t.parts[0].view, a), words)

        def of_matrix(x: jax.Array, d: jax.Array, dither: jax.Array) -> integer_sums.Words:
            if x.shape[1] == d.shape[-1] == 1 and not len(x) % BLOCK:
                # vectors: all blocks, which are the same ones, in one product
                words = grid._replace(dither=dither.reshape(-1)).rows(d[:, 0, 0], x[:, 0])
                return jax.tree.map(lambda a: a[:, None], words)
            return factors.outer_blocks(x, d, block, (grid.scale, dither), plus, BLOCK)

        # groups are axis 1 of x and d, [b, G, t, ...], and axis 0 of the dither
        return self._shaped([
            of_matrix(x, d, its.dither) if part.groups == 1 else jax.vmap(of_matrix, (1, 1, 0))(
                x, d, its.dither.reshape(part.groups, -1))
            for part, its, x, d in zip(t.parts, self._grids(grid), *g, strict=True)])


def by_factors(how: Summation, plan: Plan, z: Saddle, examples: PyTree, mask: jax.Array,
               share: jax.Array | None, rounding: Rounding | None) -> Sums:
    """Norms and sums come from the factors that one pass leaves behind."""
    # once, for norms and sum alike, as in `summation.at_once`
    g = plan.gradients(z, examples, mask)
    norms = jax.tree.map(lambda x: norms_of(x) if isinstance(x, Factors) else x, g,
                         is_leaf=lambda x: isinstance(x, Factors))
    weight, finite = how.weights(norms, mask, share)
    kept = how.players(lambda clip, weight, *lists: [
        Kept(treatment, of_leaf, norm, weight, clip) for treatment, of_leaf, norm in zip(
            *lists, strict=True)], weight, plan.by_player(plan.treatments), g, norms)

    def floats(kept: Saddle) -> Saddle:
        return SaddleOperator.oriented(how.players(lambda _, x, rows: jax.tree.unflatten(
            jax.tree.structure(x), [row.total() for row in rows]), z, kept))

    def integers(kept: Saddle, grid: integer_sums.Grid) -> Saddle:
        words = how.on_leaves(lambda leaf, _, row: row.on_grid(leaf), grid, z, kept)
        # the sign of ascent, as for `floats`
        return words._replace(v=jax.tree.map(integer_sums.minus, words.v,
                                             is_leaf=integer_sums.is_words))

    def weighted(finite: bool) -> Saddle:
        return how.players(lambda _, rows: [row.weighted(finite) for row in rows], kept)

    sums = Sums(floats(kept), None) if rounding is None else how.both(
        floats, integers, weighted, finite, rounding)
    return sums._replace(num_unclipped=how.num_unclipped(weight))
