"""The clipped sum of a loss's gradients that are kept as factors."""

import jax
import jax.numpy as jnp

from jaxminimax.base.tree import at_least_float32, materialise
from jaxminimax.base.types import PyTree, Saddle, SaddleOperator
from jaxminimax.gradients import ghost, weights
from jaxminimax.gradients.integer_sums import Leaf, Words, is_words, minus
from jaxminimax.gradients.summation import Rounding, Summation, Sums


def by_factors(how: Summation, plan: ghost.Plan, z: Saddle, examples: PyTree, mask: jax.Array,
               rounding: Rounding | None) -> Sums:
    """Norms and sums come from the factors that one pass leaves behind, see `ghost`."""
    # once, for norms and sum alike, as in `summation.at_once`
    g = plan.gradients(z, examples, mask)
    lengths = jax.tree.map(lambda x: x.stand_in() if isinstance(x, ghost.Factors) else x, g,
                           is_leaf=lambda x: isinstance(x, ghost.Factors))
    scale = how.weights(lengths, mask)
    first = Saddle(0, plan.leaves.w)  # a player's leaves are numbered on from here

    def player(clip: jax.typing.ArrayLike, x: PyTree, g: list, norms: list, scale: jax.Array,
               first: int) -> PyTree:
        def leaf(k: int, like: jax.Array) -> jax.Array:
            if g[k] is None:
                return jnp.zeros(like.shape, at_least_float32(like.dtype))
            if isinstance(g[k], ghost.Silenced):
                return plan.silenced_total(first + k, g[k], clip)
            if isinstance(g[k], ghost.Factors):
                return plan.total(first + k, g[k], scale, norms[k], clip)
            return weights.weighted_sum(g[k], scale)

        leaves = jax.tree.leaves(x)
        return jax.tree.unflatten(jax.tree.structure(x), map(leaf, range(len(leaves)), leaves))

    def floats() -> Saddle:
        return SaddleOperator.oriented(how.players(player, z, g, lengths, scale, first))

    count = how.within(scale)
    if rounding is None:
        return Sums(floats(), None, count)
    # for both sums alike
    g = how.players(lambda _, g, norms, scale, first: [
        plan.silenced(first + k, x, scale, norms[k])
        if isinstance(x, ghost.Factors) and not x.are_rows else x for k, x in enumerate(g)],
        g, lengths, scale, first)
    rows = how.players(lambda _, g, scale, first: [
        (first + k, x, scale) for k, x in enumerate(g)], g, scale, first)

    def on_grid(leaf: Leaf, like: jax.Array, row: tuple) -> Words:
        number, g, scale = row
        if g is None:
            return leaf.zeros()
        if isinstance(g, ghost.Silenced):
            return plan.on_grid(number, g, leaf)
        if isinstance(g, ghost.Factors):
            return plan.rows_on_grid(number, g, scale, leaf)
        return leaf.rows(*weights.silenced(g, scale)[0])

    def pair(leaf: Leaf, like: jax.Array, row: tuple) -> tuple[jax.Array, Words]:
        number, g, scale = row
        if g is None:
            return jnp.zeros(like.shape, at_least_float32(like.dtype)), leaf.zeros()
        if isinstance(g, ghost.Silenced):
            return plan.both(number, g, leaf)
        return leaf.one_block(*weights.silenced(g, scale)[0])

    def oriented(integers: Saddle | None) -> Saddle:
        """The sign of ascent, for integers."""
        assert integers is not None
        return integers._replace(v=jax.tree.map(minus, integers.v, is_leaf=is_words))

    if how.in_one_go(z, mask) and not any(
            isinstance(x, ghost.Factors) or (isinstance(x, ghost.Silenced) and x.are_pieces)
            for x in jax.tree.leaves(g, is_leaf=ghost.is_kept)):
        def pairs() -> Sums:
            found = how.twice_on_leaves(pair, rounding.grid, z, rows)
            return Sums(SaddleOperator.oriented(found.floats), oriented(found.integers))

        return materialise(pairs)._replace(within=count)
    return how.both(floats, lambda grid: oriented(how.on_leaves(on_grid, grid, z, rows)),
                    rounding)._replace(within=count)
