"""Sums of per-example operators, one for each player: at once, or slice by slice.

Slices cost no privacy. Clipping, absence and all precautions for norms look at one record, or at
the records of one slice. A row counts in one slice; where the last slice begins early it may be
there a second time, masked, and adds zeros. So a record changes one slice's sum, by at most its
clip norm. Slices are added with compensation in floating point, and exactly on a grid, where each
is cut into blocks of its own. All that holds for factors as for whole gradients.

A sum is made of the same weighted examples in floating point, for a player without noise, and on
the grid of a release, for one with noise; what is not wanted is 0, and is decided when the program
runs.

Operators of many records are computed at once (`each`) so that no record reaches another one's
numbers. `jax.vmap` makes one grouped convolution of the records' gradients by a kernel, one group a
record, and compilers make grouped convolutions of others, in which what belongs to another group is
multiplied by 0. A record that is NaN or infinite, or becomes so at the end of the range of floats
as such a program rounds it, is then NaN in every other record's gradient (seen on CPUs).

So a program whose convolutions have more groups for several records than for one is not used:
records are done one after another there, each by a program that reads nothing else. Convolutions
by a kernel that is the same for all have no more groups, and so are the factors of ghost clipping
("auto" takes it) computed at once. Runs that are mapped over, as in a sweep, have kernels of their
own: they are done one after another as well, or a record of one would reach those of others.

Of JAX's special functions, that of the incomplete beta integral is a loop over all numbers at once,
which goes on for all until the last one has converged: so the others' last digits, or more, tell of
that one. Records that it is computed of are done one after another too.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.base import programs, tree
from jaxminimax.base.types import PyTree, Saddle
from jaxminimax.gradients.integer_sums import Grid, is_words, leaf_of, plus

# --- the weight of each example: min(1, C / norm), and 0 where it is absent ---


def _longest(dtype: jnp.dtype) -> float:
    """Examples that count are shorter, in clip norms: 2^88 in float32, 2^984 in float64."""
    return 2.0**-38 / float(jnp.finfo(dtype).tiny)


def norms(g: PyTree) -> jax.Array:
    """Norm of each example, rounded up where squares vanish, `[b]`.

    One plain pass: squares that overflow make it infinite, which is a weight of 0, and what
    vanishing ones could have been is added. (Choosing between two sums by whether one overflowed is
    no alternative: it was rewritten by a compiler, and an example far above the clip norm came out
    unclipped.)
    """
    leaves = [x for x in jax.tree.leaves(g) if x.size]
    if not leaves:
        return jnp.zeros(())  # for every example
    dtype = tree.at_least_float32(jnp.result_type(*leaves))
    rows = [x.astype(dtype).reshape(x.shape[0], -1) for x in leaves]
    squares = [tree.squared(x) for x in rows]
    while len(squares) > 1:  # as a tree: of a running sum the 128th rounding exceeds the margin
        squares = [functools.reduce(jnp.add, squares[k: k + 2]) for k in range(0, len(squares), 2)]
    return jnp.sqrt(squares[0])


def joint_ratio(ratio: Saddle) -> Saddle:
    """Each player's ratio replaced by the norm of both, without overflow."""
    # (r_w^2 + r_v^2)^(1/2) = s ((r_w / s)^2 + (r_v / s)^2)^(1/2), s the larger one
    largest = jnp.maximum(*ratio)
    scale = tree.unit(largest)
    squares = jnp.square(ratio.w / scale) + jnp.square(ratio.v / scale)
    # not below the larger one, however the root is rounded
    both = jnp.maximum(scale * jnp.sqrt(squares), largest)
    return Saddle(both, both)


def widened(ratio: jax.Array, g: PyTree) -> jax.Array:
    """Enlarges `ratio` by the rounding of leaves that are narrower than it.

    `clip_weight` allows for the rounding, and the range, of its own type only.
    """
    # a norm of float32 leaves in float64 has the rounding errors of float32
    types = [tree.at_least_float32(x.dtype) for x in jax.tree.leaves(g)]
    coarse = max((float(jnp.finfo(t).eps) for t in types), default=0.0)
    if coarse <= jnp.finfo(ratio.dtype).eps:
        return ratio
    # infinite beyond the narrow type's range, which is a weight of 0
    return jnp.where(ratio < min(map(_longest, types)), ratio * (1.0 + 32 * coarse), jnp.inf)


def clip_weight(ratio: jax.Array, present: jax.Array) -> jax.Array:
    """The weight min(1, clip / norm) of each example, 0 for absent ones.

    A margin of 32 rounding errors keeps the clipped norm at or below the clip norm. Examples longer
    than 2^88 clip norms (`_longest`) count as absent: entries of one of their factors, times so
    small a weight, would be subnormal and vanish one by one, and what they cancel would stay.
    """
    margin = 1.0 - 32 * jnp.finfo(ratio.dtype).eps
    counts = present & (ratio >= 0) & (ratio < _longest(ratio.dtype))  # not for a NaN clip norm
    return jnp.where(counts, jnp.minimum(1.0, margin / ratio), 0.0).astype(ratio.dtype)


def weighted_rows(g: PyTree, weight: jax.Array, finite: bool) -> list[tuple[jax.Array, jax.Array]]:
    """Weights and rows of each leaf, in at least float32, finite.

    Args:
      g: leaves `[b, ...]`.
      weight: `[b]`; 0 for examples whose norm is not finite.
      finite: whether the norms of all examples are; else rows of weight 0 are replaced by zeros.
    """
    rows = []
    for x in jax.tree.leaves(g):
        x = x.astype(tree.at_least_float32(x.dtype))
        scale = weight.astype(x.dtype)
        if not finite:  # 0 * NaN is NaN
            x = jnp.where(scale.reshape(-1, *[1] * (x.ndim - 1)) > 0, x, 0)
        rows.append((scale, x))
    return rows


def weighted_sum(g: PyTree, weight: jax.Array) -> PyTree:
    """Adds up weight_i g_i over `[b, ...]` leaves, in at least float32; weight 0 silences NaN."""

    def leaf(x: jax.Array) -> jax.Array:
        x = x.astype(tree.at_least_float32(x.dtype))
        if not x.size:
            return jnp.zeros(x.shape[1:], x.dtype)
        scale = weight.astype(x.dtype)
        rows = x.reshape(x.shape[0], -1)
        return tree.sum_rows(scale, jnp.where(scale[:, None] > 0, rows, 0)).reshape(x.shape[1:])

    return jax.tree.map(leaf, g)


# --- operators and sums ---


def each(function: Callable[[Any, PyTree], PyTree], z: Any, examples: PyTree) -> PyTree:
    """Computes `function(z, example)` of every example, leaves `[b, ...]`.

    Args:
      function: of a point and one example.
      z: shared.
      examples: leaves `[b, ...]`.
    """
    batched, shapes = jax.make_jaxpr(jax.vmap(function, (None, 0)), return_shape=True)(z, examples)
    treedef = jax.tree.structure(shapes)
    needed = programs.without_unread(batched)
    equations = programs.equations(needed)
    # whether there is a loop that ends for all numbers together
    joint = "regularized_incomplete_beta" in [x.primitive.name for x in equations]
    groups = _groups(equations)
    if not groups and not joint:
        return jax.tree.unflatten(treedef, jax.core.eval_jaxpr(
            needed, batched.consts, *jax.tree.leaves((z, examples))))
    # shapes of one example
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), examples)
    alone = jax.make_jaxpr(function)(z, one)
    needed = programs.without_unread(alone)

    # a rule of vmap sees arguments alone: what a run closes over, as another may, becomes one
    def value(held: list[jax.Array], z: Any, example: PyTree) -> PyTree:
        return jax.tree.unflatten(treedef, jax.core.eval_jaxpr(
            needed, held, *jax.tree.leaves((z, example))))

    def together(held: list[jax.Array], z: Any, examples: PyTree) -> PyTree:
        return jax.vmap(value, (None, None, 0))(held, z, examples)

    def in_turn(held: list[jax.Array], z: Any, examples: PyTree) -> PyTree:
        return jax.lax.map(lambda x: value(held, z, x), examples)

    # no more groups for many than for one: no record meets what belongs to another
    apart = groups == _groups(programs.equations(needed)) and not joint
    return jax.custom_batching.sequential_vmap(together if apart else in_turn)(
        list(alone.consts), z, examples)


def each_of_groups(function: Callable[[Any, PyTree], PyTree], z: Any, data: PyTree) -> PyTree:
    """Computes `each` of records in groups, leaves `[p, n, ...]`."""
    p, n = jax.tree.leaves(data)[0].shape[:2]
    rows = jax.tree.map(lambda x: x.reshape(p * n, *x.shape[2:]), data)
    return jax.tree.map(lambda x: x.reshape(p, n, *x.shape[1:]), each(function, z, rows))


def _groups(equations: list[Any]) -> list[tuple[int, int]]:
    """The numbers of groups that features and batch of each convolution are cut into."""
    return [(x.params["feature_group_count"], x.params["batch_group_count"])
            for x in equations if x.primitive.name == "conv_general_dilated"]


@dataclasses.dataclass(frozen=True)
class Part:
    """Examples that lie in longer arrays, and are copied as they are read.

    Attributes:
      count: how many they are.
      read: `(start, size) -> leaves [size, ...]`, from example `start` on; start + size is at most
        `count`.
    """

    count: int
    read: Callable[[jax.typing.ArrayLike, int], PyTree]


def rows_from(rows: PyTree, first: jax.typing.ArrayLike, count: int) -> Part:
    """Returns `count` successive examples of leaves `[n, ...]`, from number `first` on."""
    return Part(count, lambda start, size: jax.tree.map(
        lambda x: jax.lax.dynamic_slice_in_dim(x, first + start, size), rows))


class Rounding(NamedTuple):
    """The rounding of sums.

    Attributes:
      grid: of the integers.
      floats: whether the floating-point sum is wanted, for a player without noise, bool `[]`.
      integers: whether that on the grid is, for a player with noise, bool `[]`.
    """

    grid: Grid
    floats: jax.Array
    integers: jax.Array


class Sums(NamedTuple):
    """A sum over examples, twice.

    Attributes:
      floats: in floating point.
      integers: `integer_sums.Words` for every leaf, on a grid; None without one.
      num_unclipped: per player, examples within the clip norm less longer ones, int32 `[]`; None
        if they are not counted.
    """

    floats: Saddle
    integers: Saddle | None
    num_unclipped: Saddle | None = None

    def plus(self, lost: Saddle, more: "Sums") -> tuple["Sums", Saddle]:
        """Adds `more`, in floating point as `add_compensated`: exact on the grid."""
        floats, lost = tree.add_compensated(self.floats, lost, more.floats)
        integers = jax.tree.map(plus, self.integers, more.integers, is_leaf=is_words)
        counts = jax.tree.map(jnp.add, self.num_unclipped, more.num_unclipped)
        return Sums(floats, integers, counts), lost


@dataclasses.dataclass(frozen=True)
class Summation:
    """Clips and adds up what an operator says of examples.

    Attributes:
      operator: of one example.
      clip: per player, see `clipped_sum`.
      joint: whether one factor clips both players.
      counted: whether examples within the clip norms are counted.
      before_clip: whether an example's share multiplies its operator before it is clipped.
    """

    operator: Callable[[Saddle, PyTree], Saddle]
    clip: Saddle
    joint: bool
    counted: bool = False
    before_clip: bool = False

    def in_matrices(self, z: Saddle, value: Saddle, rows: int, rounding: Rounding | None,
                    ) -> tuple["Summation", Saddle, Rounding | None]:
        """Makes many small leaves of a player one array, in the order of the leaves.

        Operations on whole leaves, of which a sum has ten, then cost what one leaf's do. Dither
        and noise are numbered along all leaves, so every number keeps its own.

        Args:
          z: the point.
          value: the operator's value, or its shapes.
          rows: that are held at a time.
          rounding: of the sums.

        Returns:
          The sum, what its results look like, and its rounding.
        """
        split = self.players(lambda _, x, g: _is_split(x, g, rows), z, value)
        if True not in split:
            return self, z, rounding

        def together(x: Saddle) -> Saddle:
            return Saddle(*(tree.in_one(a) if is_split else a
                            for is_split, a in zip(split, x, strict=True)))

        if rounding is not None:
            grid = dataclasses.replace(rounding.grid, dither=together(rounding.grid.dither))
            rounding = rounding._replace(grid=grid)
        merged = dataclasses.replace(self, operator=lambda z, x: together(self.operator(z, x)))
        return merged, jax.eval_shape(together, z), rounding

    def players(self, function: Callable[..., Any], *trees: Saddle) -> Saddle:
        """Applies `function` to each player that has a clip norm; None for the others."""
        rows = zip(self.clip, *trees, strict=True)
        return Saddle(*(None if clip is None else function(clip, *x) for clip, *x in rows))

    def weights(self, g: Saddle, mask: jax.Array,
                share: jax.Array | None) -> tuple[Saddle, jax.Array]:
        """Each player's weights of the examples, `[b]`, and whether all norms are finite.

        Args:
          g: what has the norms of the examples.
          mask: bool `[b]`, which of them count.
          share: what each counts for, `[b]`: cut to [0, 1], and 0 for NaN; None for 1. Before the
            clip it may be any finite number, which counts as 2^88 at most, and what is none, or is
            below 0, is 0.
        """
        norm = self.players(lambda _, x: norms(x), g)
        finite = functools.reduce(jnp.logical_and, map(jnp.isfinite, jax.tree.leaves(norm)))
        mask = mask & finite  # a non-finite example counts as absent, for both
        # ||g_p|| / C_p
        ratio = self.players(lambda clip, x: x / jnp.asarray(clip, x.dtype), norm)
        # (sum_p (||g_p|| / C_p)^2)^(1/2) for both players
        if self.joint:
            ratio, g = joint_ratio(ratio), Saddle(g, g)
        ratio = self.players(lambda _, r, x: widened(r, x), ratio, g)
        if share is None:
            return self.players(lambda _, r: clip_weight(r, mask), ratio), jnp.all(finite)
        here = Saddle(mask, mask)
        if self.before_clip:
            # clip(a g, C) = a min(1, C / (a ||g||)) g: of an example that is a times as long
            # beyond 2^88 a ratio that vanished would count, or a narrow leaf's weight overflow
            a = jnp.where((share > 0) & (share < jnp.inf),
                          jnp.minimum(share, _longest(jnp.dtype(jnp.float32))), 0)
            here = self.players(lambda _, r: mask & (r < _longest(r.dtype)), ratio)
            ratio = self.players(lambda _, r: r * a.astype(r.dtype), ratio)
        else:  # at most 1, so that no example is longer than its clip norm
            a = jnp.where(share > 0, jnp.minimum(share, 1), 0)
        return self.players(lambda _, r, m: clip_weight(r, m) * a.astype(r.dtype), ratio,
                            here), jnp.all(finite)

    def num_unclipped(self, weight: Saddle) -> Saddle | None:
        """Adds up 1 for each example of weight 1, -1 for each shortened one, 0 for absent ones."""
        if not self.counted:
            return None
        return self.players(lambda _, s: jnp.sum(
            jnp.where(s >= 1, 1, jnp.where(s > 0, -1, 0)), dtype=jnp.int32), weight)

    def nothing(self, z: Saddle, rounding: Rounding | None) -> Sums:
        """The sums of no examples."""
        count = self.players(lambda _: jnp.int32(0)) if self.counted else None
        zeros = self.players(lambda _, x: jax.tree.map(
            lambda a: jnp.zeros(a.shape, tree.at_least_float32(a.dtype)), x), z)
        return Sums(zeros, None if rounding is None else self.on_leaves(
            lambda leaf, _: leaf.zeros(), rounding.grid, z), count)

    def on_leaves(self, function: Callable[..., Any], grid: Grid, z: Saddle,
                  *lists: Saddle) -> Saddle:
        """Applies `function` to each leaf's rule of addition and to its numbers in `lists`."""
        def player(name: str, x: PyTree, *lists: list[Any]) -> PyTree:
            leaves = [function(leaf_of(grid, name, k), *row) for k, row in enumerate(
                zip(jax.tree.leaves(x), *lists, strict=True))]
            return jax.tree.unflatten(jax.tree.structure(x), leaves)

        return self.players(lambda _, *rest: player(*rest), Saddle("w", "v"), z, *lists)

    def both(self, floats: Callable[[Saddle], Saddle], integers: Callable[[Saddle, Grid], Saddle],
             weighted: Callable[[bool], Saddle], finite: jax.Array, rounding: Rounding) -> Sums:
        """The sums on the grid and in floating point, each 0 where it is not wanted.

        Where every norm is finite, one that is not wanted is not computed either.

        Args:
          floats: the sum of weighted examples.
          integers: that sum on a grid.
          weighted: the examples, from whether the norms of all of them are finite.
          finite: whether they are, bool `[]`.
          rounding: of the sums.
        """
        def quick() -> Sums:
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype),
                                 jax.eval_shape(lambda: floats(weighted(False))))
            return Sums(zeros, integers(weighted(True), rounding.grid))

        def without_noise() -> Sums:
            return Sums(floats(weighted(True)), self.on_leaves(
                lambda leaf, _: leaf.zeros(), rounding.grid, rounding.grid.dither))

        def careful() -> Sums:
            # what is not finite is 0, which changes no finite number, and so no other block
            examples = weighted(False)
            return Sums(floats(examples), integers(examples, rounding.grid))

        # what one lane needs, all lanes compute
        infinite, floating, integral = map(
            tree.in_any_lane, (~finite, rounding.floats, rounding.integers))
        return jax.lax.switch(
            jnp.where(infinite | floating & integral, 2, floating.astype(jnp.int32)),
            (quick, without_noise, careful))


def _is_split(z: PyTree, value: PyTree, rows: int) -> bool:
    """Returns whether a player has many small leaves of one type, that of sums."""
    shapes, of_value = ([x.shape for x in jax.tree.leaves(a)] for a in (z, value))
    types = {x.dtype for x in jax.tree.leaves((z, value))}
    # numbers of the leaves, and of their rows together
    size, total = 2**15, 2**20
    return (len(shapes) >= 8 and shapes == of_value and len(types) == 1
            and len({jax.tree.structure(a) for a in (z, value)}) == 1
            and sum(map(math.prod, shapes)) <= min(size, total // rows)
            and types == {*map(tree.at_least_float32, types)})


def at_once(how: Summation, z: Saddle, examples: PyTree, mask: jax.Array,
            share: jax.Array | None, rounding: Rounding | None) -> Sums:
    """Adds up the operators of all examples, which are held at once."""
    # once, for norms and sum alike: computed twice, cancelling terms could round differently
    g = tree.materialise_rows(lambda: each(how.operator, z, examples))
    # min(1, C / ||g_i||) times its share, [b]
    scale, finite = how.weights(g, mask, share)

    def floats(rows: Saddle) -> Saddle:
        return how.players(lambda _, x, rows: jax.tree.unflatten(
            jax.tree.structure(x), [weighted_sum(x, s) for s, x in rows]), g, rows)

    def integers(rows: Saddle, grid: Grid) -> Saddle:
        return how.on_leaves(lambda leaf, _, x: leaf.rows(*x), grid, g, rows)

    def weighted(finite: bool) -> Saddle:
        return how.players(lambda _, x, s: weighted_rows(x, s, finite), g, scale)

    sums = Sums(floats(weighted(True)), None) if rounding is None else how.both(
        floats, integers, weighted, finite, rounding)
    return sums._replace(num_unclipped=how.num_unclipped(scale))


def fresh(rows: jax.Array, first: jax.Array) -> jax.Array:
    """Marks rows of a slice that no slice before counted; `first` is the first one's number."""
    return rows >= first


def has_rows(counted: jax.Array) -> jax.Array:
    """Returns whether a row of a slice counts: by the mask, which no record has a part in."""
    return tree.in_any_lane(jnp.any(counted))


def by_slices(total: Callable[[PyTree, jax.Array], Sums], nothing: Sums, examples: PyTree | Part,
              mask: jax.Array, size: int, skip_empty: bool = False) -> Sums:
    """The sum of `total(examples, mask)` over slices of `size` rows, held one at a time.

    No row counts in two slices, so one record changes the sum of one slice, by as much as it would
    change a sum of that slice alone.

    Args:
      total: clips and adds up a slice.
      nothing: the sum of no examples.
      examples: leaves `[b, ...]`, or a part of longer ones.
      mask: bool `[b]`, which of them count.
      size: at most b.
      skip_empty: whether to leave out slices in which no row counts. Every number stays the same:
        they add weights 0 times finite numbers, which round to the integer 0 whatever the dither,
        and in floating point the compensated sum is already that of all before.
    """
    count = mask.shape[0]
    part = examples if isinstance(examples, Part) else rows_from(examples, 0, count)

    def step(carry: tuple[Sums, Saddle], start: jax.Array) -> tuple[tuple[Sums, Saddle], None]:
        first = jnp.minimum(start, count - size)  # the last slice begins early, to be whole
        counted = jax.lax.dynamic_slice_in_dim(mask, first, size)
        # rows before `start` are counted in the slice before
        counted &= fresh(first + jnp.arange(size), start)

        def more() -> tuple[Sums, Saddle]:
            return carry[0].plus(carry[1], total(part.read(first, size), counted))

        if not skip_empty:
            return more(), None
        return jax.lax.cond(has_rows(counted), more, lambda: carry), None

    # rows are read where they lie: slices as the scan's own arrays would be a copy of all
    (sums, lost), _ = jax.lax.scan(step, (nothing, nothing.floats),
                                   jnp.arange(-(-count // size)) * size)
    return sums._replace(floats=jax.tree.map(jnp.add, sums.floats, lost))
