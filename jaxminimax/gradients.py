"""Per-example clipped sums: the primitive under every private algorithm of the library.

    sum_i  m_i * g_p(z; x_i) * min(1, C_p / ||g_p(z; x_i)||),        p = w, v,

with a mask m in {0, 1} and one clip norm C_p a player, or, for a joint clip, with the factor
min(1, (sum_p (||g_p|| / C_p)^2)^(-1/2)) for both. Three strategies give the same number:

    vmap         all per-example operators at once; [batch, parameters] memory
    microbatch   a scan over contiguous slices of the batch; [microbatch, parameters] memory
    ghost        of a loss: one pass that keeps each gradient of a matrix as its factors, from which
                 norms and sums are made (`jaxminimax.ghost`); no [batch, parameters] memory but
                 for parameters whose use is not understood

and "auto" picks one of them by the shapes and by what the loss does with its parameters. In the
ghost strategy, an example whose gradient is a sum of terms that cancel by more than a factor of 256
is clipped to less than the clip norm (`ghost._factors` says why).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax import _check, ghost
from jaxminimax._held import held, written
from jaxminimax._tree import (
    at_least_float32,
    refuse_complex,
    squared,
    sum_rows,
    two_sum_error,
    unit,
)
from jaxminimax._types import Saddle, SaddleOperator, Tree
from jaxminimax.integer_sums import Grid, Leaf, Words, is_words, leaf_of, minus, plus
from jaxminimax.mechanism import BLOCK

STRATEGIES = ("vmap", "microbatch", "ghost")
_FEW = 2**14  # numbers of a sum that cost less to copy than a further branch does
_MANY = 2**28  # numbers of per-example gradients that "auto" does not hold at once


def _norm(_: jax.typing.ArrayLike, g: Tree) -> jax.Array:
    """Norm of each example, rounded up where squares vanish, `[b]`.

    One plain pass: squares that overflow make it infinite, which is a weight of 0, and what
    vanishing ones could have been is added. (Choosing between two sums by whether one overflowed is
    no alternative: it was rewritten by a compiler, and an example far above the clip norm came out
    unclipped.)
    """
    leaves = [x for x in jax.tree.leaves(g) if x.size]
    if not leaves:
        return jnp.zeros(())  # for every example
    dtype = at_least_float32(jnp.result_type(*leaves))
    rows = [x.astype(dtype).reshape(x.shape[0], -1) for x in leaves]
    squares = [squared(x) for x in rows]
    while len(squares) > 1:  # as a tree: of a running sum the 128th rounding exceeds the margin
        squares = [functools.reduce(jnp.add, squares[k: k + 2]) for k in range(0, len(squares), 2)]
    return jnp.sqrt(squares[0])


def _together(ratio: Saddle) -> Saddle:
    """Each player's ratio replaced by the norm of both, without overflow."""
    largest = jnp.maximum(*ratio)
    scale = unit(largest)
    squares = jnp.square(ratio.w / scale) + jnp.square(ratio.v / scale)
    both = jnp.maximum(scale * jnp.sqrt(squares), largest)
    return Saddle(both, both)


def _widened(ratio: jax.Array, g: Tree) -> jax.Array:
    """`ratio`, made larger by the rounding of leaves that are narrower than it.

    `_weight` allows for the rounding of its own type only.
    """
    types = [at_least_float32(x.dtype) for x in jax.tree.leaves(g)]
    coarse = max((float(jnp.finfo(t).eps) for t in types), default=0.0)
    return ratio * (1.0 + 32 * coarse) if coarse > jnp.finfo(ratio.dtype).eps else ratio


def _weight(_: jax.typing.ArrayLike, ratio: jax.Array, present: jax.Array) -> jax.Array:
    """min(1, clip / norm) of each example, 0 for absent ones.

    A margin of 32 rounding errors keeps the clipped norm at or below the clip norm.
    """
    margin = 1.0 - 32 * jnp.finfo(ratio.dtype).eps
    known = present & (ratio >= 0)  # not for a NaN clip norm
    return jnp.where(known, jnp.minimum(1.0, margin / ratio), 0.0).astype(ratio.dtype)


def _silenced(g: Tree, weight: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
    """Weights and rows of each leaf, in at least float32, with zeros where the weight is 0."""
    rows = []
    for x in jax.tree.leaves(g):
        x = x.astype(at_least_float32(x.dtype))
        scale = weight.astype(x.dtype)
        rows.append((scale, jnp.where(scale.reshape(-1, *[1] * (x.ndim - 1)) > 0, x, 0)))
    return rows


def _weighted_sum(g: Tree, weight: jax.Array) -> Tree:
    """sum_i weight_i g_i over `[b, ...]` leaves, in at least float32; weight 0 silences NaN."""

    def leaf(x: jax.Array) -> jax.Array:
        x = x.astype(at_least_float32(x.dtype))
        if not x.size:
            return jnp.zeros(x.shape[1:], x.dtype)
        scale = weight.astype(x.dtype)
        rows = x.reshape(x.shape[0], -1)
        return sum_rows(scale, jnp.where(scale[:, None] > 0, rows, 0)).reshape(x.shape[1:])

    return jax.tree.map(leaf, g)


@dataclasses.dataclass(frozen=True)
class ClippedSum:
    """A clipped sum that knows its sensitivity; made by `clipped_sum`.

    Guarantees, for every input: one example adds a vector of L2 norm at most `clip.p` to the sum
    of player p (two examples swapped move it by at most twice that, up to the rounding of the sum
    itself, a few units in its last place), and with `joint` a pair of vectors whose norms in units
    of the clip norms have squares that sum to at most 1; an example whose operator is not finite,
    or so long that its square is not (1e19 in float32), counts as absent; an empty batch gives
    zeros. Sums are at least float32 whatever the parameters
    are.
    """

    operator: Callable[[Saddle, Tree], Saddle]
    clip: Saddle
    strategy: str
    microbatch: int
    joint: bool = False
    talkative: bool = False

    def sensitivity(self, neighbours: str = "replace_one") -> Saddle:
        """Per player, the most that the sum can move between neighbouring data sets (L2).

        Args:
          neighbours: "replace_one" (twice the clip norm) or "add_or_remove_one" (the clip norm).
        """
        _check.one_of("neighbours", neighbours, ("replace_one", "add_or_remove_one"))
        factor = 2.0 if neighbours == "replace_one" else 1.0
        return jax.tree.map(lambda c: factor * c, self.clip)

    def __call__(self, z: Saddle, examples: Tree, mask: jax.Array | None = None) -> Saddle:
        """The sum over `examples`, in floating point.

        Args:
          z: the point; leaves of any shape and float dtype.
          examples: leaves `[b, ...]`.
          mask: bool `[b]`, which examples take part; None for all.

        Returns:
          A `Saddle` with the structure of z and at least float32 leaves; None for a player
          without a clip norm.

        Raises:
          ValueError: for examples without one leading axis, or complex numbers in z or in the
            operator's value.
        """
        return self.sums(z, examples, mask).floats

    def sums(self, z: Saddle, examples: Tree, mask: jax.Array | None = None,
             rounding: "Rounding | None" = None) -> "Sums":
        """The sum over `examples`, and the sum of blocks of them that are rounded to a grid.

        Args:
          z: as in `__call__`.
          examples: as in `__call__`.
          mask: as in `__call__`.
          rounding: the grid, and which of the two sums are wanted; None: no grid.

        Returns:
          What is not wanted is 0.
        """
        rows = {jnp.shape(x)[:1] for x in jax.tree.leaves(examples)}
        if len(rows) != 1 or () in rows:
            raise ValueError(f"examples must share one leading axis, got leading axes {rows}.")
        (size,) = rows.pop()
        if mask is None:
            mask = jnp.ones(size, bool)
        z, examples = jax.tree.map(jnp.asarray, (z, examples))
        if size == 0:
            return self._nothing(z, rounding)
        refuse_complex(z, "z")
        refuse_complex(jax.eval_shape(self.operator, z, jax.tree.map(lambda x: x[0], examples)),
                        "the operator's value")
        strategy, plan = self._chosen(z, examples, size)
        if self.talkative:
            print(self._explained(strategy, plan))
        if strategy == "microbatch":
            return self._by_slices(z, examples, mask, min(self.microbatch, size), rounding)
        if strategy == "ghost":
            assert plan is not None
            return self._by_factors(plan, z, examples, mask, rounding)
        return self._at_once(z, examples, mask, rounding)

    def explain(self, z: Saddle, examples: Tree) -> str:
        """Which strategy is taken, and how each parameter's gradient is kept; runs nothing.

        Args:
          z: the point, or its shapes and dtypes.
          examples: leaves `[b, ...]`, or their shapes and dtypes.
        """
        (size,) = {x.shape[0] for x in jax.tree.leaves(examples)}
        return self._explained(*self._chosen(z, examples, size))

    def _explained(self, strategy: str, plan: ghost.Plan | None) -> str:
        chosen = f"strategy {strategy}" + ", chosen by auto" * (self.strategy == "auto")
        return chosen if plan is None else f"{chosen}\n{plan}"

    def _chosen(self, z: Saddle, examples: Tree, size: int) -> tuple[str, ghost.Plan | None]:
        """The strategy, and the plan of a loss where one was made."""
        plan = None
        if type(self.operator) is SaddleOperator and self.strategy in ("auto", "ghost"):
            one = jax.eval_shape(lambda x: jax.tree.map(lambda a: a[0], x), examples)
            plan = ghost.plan(self.operator.loss, z, one,
                              Saddle(*(clip is not None for clip in self.clip)))
            if plan is None and self.strategy == "ghost":
                raise ValueError("strategy 'ghost' traces the loss and runs it afterwards, but a "
                                 "custom derivative rule in it closes over traced values: hand "
                                 "them over as arguments, or use strategy 'vmap'.")
        if self.strategy != "auto":
            return self.strategy, plan
        if plan is not None and plan.gains and size > 1:
            return "ghost", plan
        wanted = self._players(lambda _, x: sum(a.size for a in jax.tree.leaves(x)), z)
        many = size * sum(x for x in wanted if x is not None) > _MANY
        return "microbatch" if many else "vmap", plan

    def _players(self, of: Callable, *trees: Saddle) -> Saddle:
        """`of` applied to each player that has a clip norm, None for the others."""
        rows = zip(self.clip, *trees, strict=True)
        return Saddle(*(None if clip is None else of(clip, *x) for clip, *x in rows))

    def _zeros(self, z: Saddle) -> Saddle:
        def zeros(_: object, x: Tree) -> Tree:
            return jax.tree.map(lambda a: jnp.zeros(a.shape, at_least_float32(a.dtype)), x)

        return self._players(zeros, z)

    def _weights(self, g: Saddle, mask: jax.Array) -> tuple[Saddle, jax.Array]:
        """Each player's weights of the examples, and which examples are present, `[b]`."""
        norm = self._players(_norm, g)
        for x in jax.tree.leaves(norm):
            mask = mask & jnp.isfinite(x)  # a non-finite example counts as absent, for both
        ratio = self._players(lambda clip, x: x / jnp.asarray(clip, x.dtype), norm)
        if self.joint:
            ratio, g = _together(ratio), Saddle(g, g)
        ratio = self._players(lambda _, r, x: _widened(r, x), ratio, g)
        return self._players(lambda c, r: _weight(c, r, mask), ratio), mask

    def _both(self, floats: Callable[[], Saddle], integers: Callable[[Grid], Saddle],
              rounding: "Rounding | None") -> "Sums":
        if rounding is None:
            return Sums(floats(), None)
        return Sums(written(floats, rounding.floats),
                    written(lambda: integers(rounding.grid), rounding.integers))

    def _nothing(self, z: Saddle, rounding: "Rounding | None") -> "Sums":
        def zeros(grid: Grid) -> Saddle:
            return self._leaves(lambda leaf, _: leaf.zeros(), grid, z)

        return Sums(self._zeros(z), None if rounding is None else zeros(rounding.grid))

    def _leaves(self, of: Callable, grid: Grid, z: Saddle, *lists: Saddle) -> Saddle:
        """`of` applied to how a leaf is added up and to its numbers in `lists`."""
        def player(name: str, x: Tree, *lists: list) -> Tree:
            leaves = [of(leaf_of(grid, name, k), *row) for k, row in enumerate(
                zip(jax.tree.leaves(x), *lists, strict=True))]
            return jax.tree.unflatten(jax.tree.structure(x), leaves)

        return self._players(lambda _, *rest: player(*rest), Saddle("w", "v"), z, *lists)

    def _at_one_go(self, z: Saddle, mask: jax.Array) -> bool:
        """Whether both sums are made together: of one block, the same numbers, and few of them."""
        return mask.shape[0] < BLOCK and sum(x.size for x in jax.tree.leaves(z)) <= _FEW

    def _leaves_twice(self, of: Callable, grid: Grid, z: Saddle, *lists: Saddle) -> "Sums":
        """`_leaves` of what gives both sums at once."""
        found = self._leaves(lambda *x: Sums(*of(*x)), grid, z, *lists)
        return Sums(*(jax.tree.map(lambda x, k=k: x[k], found,
                                   is_leaf=lambda x: isinstance(x, Sums)) for k in range(2)))

    def _at_once(self, z: Saddle, examples: Tree, mask: jax.Array,
                 rounding: "Rounding | None") -> "Sums":
        # once, for norms and sum alike: computed twice, cancelling terms could round differently
        g = held(lambda: jax.vmap(self.operator, (None, 0))(z, examples), mask)
        weight, _ = self._weights(g, mask)

        if rounding is not None and self._at_one_go(z, mask):
            return written(lambda: self._leaves_twice(
                lambda leaf, _, x: leaf.one_block(*x), rounding.grid, z,
                self._players(lambda _, x, s: _silenced(x, s), g, weight)))

        def integers(grid: Grid) -> Saddle:
            silenced = self._players(lambda _, x, s: _silenced(x, s), g, weight)
            return self._leaves(lambda leaf, _, x: leaf.rows(*x), grid, z, silenced)

        return self._both(lambda: self._players(lambda _, x, s: _weighted_sum(x, s), g, weight),
                          integers, rounding)

    def _by_slices(self, z: Saddle, examples: Tree, mask: jax.Array, size: int,
                   rounding: "Rounding | None") -> "Sums":
        slices = mask.shape[0] // size
        whole = slices * size
        head = jax.tree.map(lambda x: x[:whole].reshape(slices, size, *x.shape[1:]),
                            (examples, mask))

        # Compensated: plainly added, many small terms on a large sum would be lost or not
        # depending on one record, and move the sum by far more than its clip norm.
        def step(carry: tuple, batch: Tree) -> tuple[tuple, None]:
            total, lost, so_far = carry
            examples, mask = batch
            found = self._at_once(z, examples, mask, rounding)
            more = jax.tree.map(jnp.add, found.floats, lost)
            new = jax.tree.map(jnp.add, total, more)
            lost = jax.tree.map(two_sum_error, total, more, new)
            if so_far is not None:
                so_far = jax.tree.map(plus, so_far, found.integers, is_leaf=is_words)
            return (new, lost, so_far), None

        nothing = self._nothing(z, rounding)
        carry, _ = jax.lax.scan(step, (nothing.floats, nothing.floats, nothing.integers), head)
        if whole < mask.shape[0]:
            carry, _ = step(carry, jax.tree.map(lambda x: x[whole:], (examples, mask)))
        return Sums(jax.tree.map(jnp.add, *carry[:2]), carry[2])

    def _by_factors(self, plan: ghost.Plan, z: Saddle, examples: Tree, mask: jax.Array,
                    rounding: "Rounding | None") -> "Sums":
        # once, for norms and sum alike, as in `_at_once`
        g = plan.gradients(z, examples, mask)
        lengths = jax.tree.map(lambda x: x.stand_in() if isinstance(x, ghost.Factors) else x, g,
                               is_leaf=lambda x: isinstance(x, ghost.Factors))
        weight, _ = self._weights(lengths, mask)
        first = Saddle(0, plan.leaves.w)

        def player(clip: jax.typing.ArrayLike, x: Tree, g: list, norms: list, scale: jax.Array,
                   first: int) -> Tree:
            def leaf(k: int, like: jax.Array) -> jax.Array:
                if g[k] is None:
                    return jnp.zeros(like.shape, at_least_float32(like.dtype))
                if isinstance(g[k], ghost.Silenced):
                    return plan.silenced_total(first + k, g[k])
                if isinstance(g[k], ghost.Factors):
                    return plan.total(first + k, g[k], scale, norms[k], clip)
                return _weighted_sum(g[k], scale)

            leaves = jax.tree.leaves(x)
            return jax.tree.unflatten(jax.tree.structure(x), map(leaf, range(len(leaves)), leaves))

        def floats() -> Saddle:
            return SaddleOperator.oriented(
                self._players(player, z, g, lengths, weight, first))

        if rounding is None:
            return Sums(floats(), None)
        # for both sums alike
        g = self._players(lambda _, g, norms, scale, first: [
            plan.silenced(first + k, x, scale, norms[k])
            if isinstance(x, ghost.Factors) and x.x.ndim > 2 else x for k, x in enumerate(g)],
            g, lengths, weight, first)

        rows = self._players(lambda _, g, scale, first: [
            (first + k, x, scale) for k, x in enumerate(g)], g, weight, first)

        def one(leaf: Leaf, like: jax.Array, row: tuple) -> Words:
            number, g, scale = row
            if g is None:
                return leaf.zeros()
            if isinstance(g, ghost.Silenced):
                return plan.on_grid(number, g, leaf)
            if isinstance(g, ghost.Factors):
                return plan.rows_on_grid(number, g, scale, leaf)
            return leaf.rows(*_silenced(g, scale)[0])

        def pair(leaf: Leaf, like: jax.Array, row: tuple) -> tuple[jax.Array, Words]:
            number, g, scale = row
            if g is None:
                return jnp.zeros(like.shape, at_least_float32(like.dtype)), leaf.zeros()
            if isinstance(g, ghost.Silenced):
                return plan.both(number, g, leaf)
            return leaf.one_block(*_silenced(g, scale)[0])

        def turned(sums: Saddle | None) -> Saddle:
            assert sums is not None
            return sums._replace(v=jax.tree.map(minus, sums.v, is_leaf=is_words))

        if self._at_one_go(z, mask) and not any(
                isinstance(x, ghost.Factors) or (isinstance(x, ghost.Silenced) and x.x.shape[1] > 1)
                for x in jax.tree.leaves(g, is_leaf=ghost.is_kept)):
            def pairs() -> Sums:
                floats, integers = self._leaves_twice(pair, rounding.grid, z, rows)
                return Sums(SaddleOperator.oriented(floats), turned(integers))

            return written(pairs)
        return self._both(floats, lambda grid: turned(self._leaves(one, grid, z, rows)), rounding)


class Rounding(NamedTuple):
    """Which sums are wanted.

    Attributes:
      grid: of the integers.
      floats: whether the floating-point sum is wanted, bool `[]`.
      integers: whether the sum on the grid is wanted, bool `[]`.
    """

    grid: Grid
    floats: jax.Array
    integers: jax.Array


class Sums(NamedTuple):
    """A sum over examples, twice.

    Attributes:
      floats: in floating point.
      integers: `integer_sums.Words` for every leaf, on a grid; None without one.
    """

    floats: Saddle
    integers: Saddle | None


@dataclasses.dataclass(frozen=True)
class ClippedOperator:
    """One example's operator, clipped to `bound` in the norm of both players together.

    For solvers that ask for bounded operators. A clipped operator keeps a Lipschitz constant, and
    loses monotonicity.
    """

    operator: Callable[[Saddle, Tree], Saddle]
    bound: float

    def __call__(self, z: Saddle, example: Tree) -> Saddle:
        """The clipped operator of one example."""
        total = clipped_sum(self.operator, Saddle(self.bound, self.bound), strategy="vmap",
                            joint=True)
        return total(z, jax.tree.map(lambda x: jnp.asarray(x)[None], example))


def clipped_sum(operator: Callable[[Saddle, Tree], Saddle], clip: Saddle, *,
                strategy: str = "auto", microbatch: int = 32, joint: bool = False,
                explain: bool = False) -> ClippedSum:
    """The clipped sum of `operator`, a callable that knows its sensitivity; see `ClippedSum`.

    Args:
      operator: `(z, example) -> Saddle` for one example.
      clip: per player, bound on the L2 norm of one example's operator over the player's whole
        pytree; None for a player whose operator is not wanted.
      strategy: "vmap", "microbatch", "ghost" (needs `saddle_operator(loss)`) or "auto": ghost for
        a loss where that saves memory or time, else vmap, or microbatch where the per-example
        gradients are more than 2^28 numbers.
      microbatch: examples in a slice of the "microbatch" strategy.
      joint: one clip for both players together, in units of their clip norms.
      explain: prints `ClippedSum.explain` when traced.

    Raises:
      ValueError: for an unknown strategy, ghost without a loss, or a joint clip of one player.
    """
    _check.one_of("strategy", strategy, (*STRATEGIES, "auto"))
    _check.count("microbatch", microbatch)
    if strategy == "ghost" and type(operator) is not SaddleOperator:  # a subclass may do more
        raise ValueError("strategy 'ghost' looks inside a loss: give saddle_operator(loss), or use "
                         "'auto', 'vmap' or 'microbatch'.")
    if joint and None in clip:
        raise ValueError(f"joint=True needs a clip norm for both players, got {clip!r}.")
    return ClippedSum(operator, clip, strategy, microbatch, joint, explain)
