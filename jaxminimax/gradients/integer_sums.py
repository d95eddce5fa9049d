"""Sums that are integers: blocks of rows rounded to multiples of a public unit, added exactly.

    I = sum over blocks j of  ceil(B_j / g - U),      U in {1/2, 3/2, ..., 511/2} / 256,

with B_j the floating-point sum of at most `mechanism.BLOCK` rows and U one random number for each
number of the sum, the same for all blocks. Integers are added without rounding, in whatever order
and on however many devices, so what one record moves is what it moves in its own block:
`mechanism.grid` has the bound. (A sum of 2^24 clipped float32 vectors of one direction moves by
3.6 clip norms when one of them is replaced, and by 2 are charged.)

An integer of a short sum has one word of 32 bits. Long ones have two, high * 2^20 + low; in the end
they wrap around, modulo 2^52, which loses the number and tells nothing.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import random_bits, tree
from jaxminimax.base.types import PyTree, Saddle
from jaxminimax.mechanism.grid import BLOCK

_LOW = 20  # bits of the lower one of two words


class Words(NamedTuple):
    """Integers high * 2^20 + low, or low alone.

    Attributes:
      high: int32 or None.
      low: int32, in [0, 2^20) if there is a high.
    """

    high: jax.Array | None
    low: jax.Array


def is_words(x: Any) -> bool:
    """Returns whether `x` is a leaf of a tree of integers."""
    return isinstance(x, Words)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["scale", "dither"],
                   meta_fields=["wide"])
@dataclasses.dataclass(frozen=True)
class Grid:
    """The grid that sums are rounded to.

    Attributes:
      scale: per player 1 / g; None for one that is not released.
      dither: 256 U - 1/2 for every number, uint8, as the point.
      wide: whether integers have two words.
    """

    scale: Saddle
    dither: Saddle
    wide: bool


def dither(key: jax.Array, like: PyTree) -> PyTree:
    """Draws the index of one of 256 uniform numbers for every number of `like`, uint8."""
    size = sum(x.size for x in jax.tree.leaves(like))
    word = random_bits.random_words(key, (2, -(-size // 8)))
    place = np.arange(0, 32, 8, dtype=np.uint32)[:, None, None]
    # the four bytes of each word, [4, 2, words / 2], flat
    drawn = (word[None] >> place).astype(jnp.uint8)
    if size > 2**12:  # of a few, each reader may compute its own
        drawn = tree.materialise(lambda: (word[None] >> place).astype(jnp.uint8))
    return tree.as_leaves(drawn.reshape(-1), like)


def dither_block(key: jax.Array, size: jax.Array, block: int) -> jax.Array:
    """The numbers of `dither` for `size` of them, of which `block` or fewer are there, uint8."""
    words = 2 * (-(-size // 8))
    place = jnp.arange(block)
    byte = (place // words & 3).astype(jnp.uint32)
    return (random_bits.words_at(key, words, place % words) >> 8 * byte).astype(jnp.uint8)


def rounded(x: jax.Array, scale: jax.Array, dither: jax.Array) -> jax.Array:
    """Rounds finite numbers to ceil(scale x - U), int32: up where the fraction exceeds U."""
    # 128 rows have 2^25 units, and 2^29 on the finest grids; to clamp a block's sum moves no two
    # of them apart
    a = jnp.clip(x * scale.astype(x.dtype), -2.0**30, 2.0**30)
    lower = jnp.floor(a)
    # the fraction has no rounding error
    rounds_up = a - lower > (dither.astype(x.dtype) + 0.5) * 2.0**-8
    return lower.astype(jnp.int32) + rounds_up.astype(jnp.int32)


def _carried(high: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    # low = 2^20 carry + rest, also of a negative one: the shift is arithmetic
    return high + (low >> _LOW), low & (2**_LOW - 1)


def _words(x: jax.Array, wide: bool) -> Words:
    return Words(x >> _LOW, x & (2**_LOW - 1)) if wide else Words(None, x)


def plus(a: Words, b: Words) -> Words:
    """The sum A + B."""
    # of two words below 2^20 the sum has a carry of at most 1
    low = a.low + b.low
    if a.high is None or b.high is None:
        return Words(None, low)
    return Words(*_carried(a.high + b.high, low))


def minus(a: Words) -> Words:
    """The negative, -A."""
    return Words(None, -a.low) if a.high is None else Words(*_carried(-a.high, -a.low))


def across(a: Words, axis: str) -> Words:
    """The sum over the devices along an axis of the mesh; fewer than 2^11 of them."""
    low = jax.lax.psum(a.low, axis)
    return Words(None, low) if a.high is None else Words(*_carried(
        jax.lax.psum(a.high, axis), low))


def _added(blocks: jax.Array, wide: bool) -> Words:
    """The sum over the leading axis."""
    if not wide:
        return Words(None, jnp.sum(blocks, 0, dtype=jnp.int32))
    high, low = blocks >> _LOW, blocks & (2**_LOW - 1)
    while low.shape[0] > 1:
        # 1024 words below 2^20 add up to less than 2^30, before a carry is moved
        size = min(1024, low.shape[0])
        groups = -(-low.shape[0] // size)
        # [n, ...] -> [groups, 1024, ...], the last group filled with zeros
        room = [(0, groups * size - low.shape[0])] + [(0, 0)] * (low.ndim - 1)
        high, low = (jnp.sum(jnp.pad(x, room).reshape(groups, size, *x.shape[1:]), 1,
                             dtype=jnp.int32) for x in (high, low))
        high, low = _carried(high, low)
    return Words(high[0], low[0])


class Leaf(NamedTuple):
    """The rule by which one leaf's rows are added up on the grid.

    Attributes:
      scale: 1 / g.
      dither: as `Grid.dither`, of the leaf.
      wide: as in `Grid`.
    """

    scale: jax.Array
    dither: jax.Array
    wide: bool

    def zeros(self) -> Words:
        """The sum of no rows, in the leaf's shape."""
        return _words(jnp.zeros(self.dither.shape, jnp.int32), self.wide)

    def to_words(self, x: jax.Array) -> Words:
        """Integers of any shape."""
        return _words(x, self.wide)

    def block(self, x: jax.Array) -> Words:
        """A block's sum, of any shape with the leaf's numbers."""
        return _words(rounded(x, self.scale, self.dither.reshape(x.shape)), self.wide)

    def rows(self, weight: jax.Array, x: jax.Array) -> Words:
        """Adds up weight_i x_i of `[b]` and `[b, ...]`; rows of weight 0 are finite."""
        count, shape = x.shape[0], x.shape[1:]
        flat, dither = x.reshape(count, math.prod(shape)), self.dither.reshape(-1)
        inner = 32  # one level of the tree of additions inside a block
        rows_in_blocks = count // BLOCK * BLOCK
        # rows beyond the last full block are a block of their own
        last_block = rounded(tree.sum_rows(weight[rows_in_blocks:], flat[rows_in_blocks:]),
                             self.scale, dither)
        if not rows_in_blocks:
            return jax.tree.map(lambda a: a.reshape(shape), _words(last_block, self.wide))
        # blocks of 128 rows as trees of sums of 32
        parts = jnp.einsum(
            "bi,bik->bk", weight[:rows_in_blocks].reshape(rows_in_blocks // inner, inner),
            flat[:rows_in_blocks].reshape(rows_in_blocks // inner, inner, flat.shape[1]),
            precision=tree.EXACT)
        blocks = jnp.sum(parts.reshape(rows_in_blocks // BLOCK, BLOCK // inner, flat.shape[1]), 1)
        sums = plus(_added(rounded(blocks, self.scale, dither[None]), self.wide),
                    _words(last_block, self.wide))
        return jax.tree.map(lambda a: a.reshape(shape), sums)


def leaf_of(grid: Grid, player: str, number: int) -> Leaf:
    """The rule for a player's leaf of that number."""
    return Leaf(getattr(grid.scale, player), jax.tree.leaves(getattr(grid.dither, player))[number],
                grid.wide)


def parts(total: Words, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Splits I into two floating-point numbers, of which the first is large or 0."""
    if total.high is None:
        return jnp.zeros_like(total.low, dtype), total.low.astype(dtype)
    return total.high.astype(dtype) * 2.0**_LOW, total.low.astype(dtype)


def as_float(total: Words, noise: jax.Array, dtype: Any) -> jax.Array:
    """Returns I + X + 1/2 as a floating-point number: the half makes up for X being a floor."""
    if total.high is None:
        return (total.low + noise).astype(dtype) + jnp.asarray(0.5, dtype)
    # of one form for every integer, or it would show how blocks were added
    # a carry of the noise moves to the high word, so that the low one is exact as a float
    high, low = _carried(total.high, total.low + noise)
    return high.astype(dtype) * 2.0**_LOW + (low.astype(dtype) + jnp.asarray(0.5, dtype))
