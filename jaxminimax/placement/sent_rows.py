"""Rows that are sent to the shards of a mesh from other shards, and sums of them in order.

A solver reads its rows a hundred times and more, so on a mesh they are spread evenly first: rows of
a sample or of a part, wherever they lie, are sent once a release, and every shard gets as many as
the others. (All rows of a population lie so already.) The shards send bits, and each row comes from
the one shard that has it. A single record goes to all in the same way. Every evaluation then sums
the shards' own rows and adds the D sums up, in floating point.

A solution is certified by a residual that is computed from such sums, so their rounding is a part
of what `mechanism.resolvent.rounding` and `mechanism.solutions.solution_rounding` allow for. A sum
of n vectors of norm at most M along a tree of additions of depth h is off by at most
h u n M (1 + O(h u)), u = 2^-53: coordinate by coordinate by h u times the sum of the lengths,
whatever the tree. Adding zeros is exact, and padding adds zeros.

* Proximal points: shards add in blocks of 32 by `base.tree.sum_rows`, and so are the D sums added.
  Hence h <= 33 (log_32 n + log_32 D + 4), D counting the shards that have rows, at most n; and h <
  n in any case. A residual has two means, off by h u M each, and the bound has 32 n^(1/2) u M for
  them: so h <= 16 n^(1/2) is to hold. It does for n <= 256, where h < n, and beyond, where h is at
  most 66 (log_32 n + 2), which is 238 at n = 257 and grows slower than n^(1/2).
* Worst-group solutions: the bound is for any order in which the N records of a phase are added, one
  running sum included, whose depth is N - 1; no tree over N records is deeper. A derivative is the
  sum of D copies of its D-th part, which is off by D u more, D <= N: 2 N u are allowed for.

So the bounds of one device hold on any number of them, and a certificate means the same: the point
is as near to the exact solution as the noise covers. Two numbers of devices compute points that
differ by rounding, as two solvers would; the noise does not depend on the point.

The D sums are gathered and added in the order of the shards, by the same program on every device;
derivatives of them are added by an all-reduce, which hands one result to all. So all hold the same
sum to the last bit, take the same branches, and end with the same point.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxminimax.base.tree import sum_rows
from jaxminimax.base.types import PyTree
from jaxminimax.placement import agreement, sharding
from jaxminimax.placement.sharding import EVERYWHERE, Sharded, in_shards, rows_spec


def added(function: Callable[..., PyTree], point: PyTree, rows: PyTree, mesh: Mesh | None,
          grouped: bool = False) -> PyTree:
    """Computes `function(point, rows)`, a sum over rows; on a mesh it adds shards up in order.

    Args:
      function: a sum over its rows, which may be differentiated by the point.
      point: the point, on every device.
      rows: leaves `[b, ...]`, or `[p, b, ...]` if `grouped`; on a mesh as `evenly` spreads them.
      mesh: the mesh of the rows; None for one device.
      grouped: whether the rows are those of groups.
    """
    if mesh is None:
        return function(point, rows)

    def on_device(point: PyTree, mine: PyTree) -> PyTree:
        # all D sums on every device, in the order of the shards: one order, hence the same bits
        return jax.tree.map(_in_order, jax.lax.all_gather(function(point, mine), agreement.AXIS))

    return in_shards(on_device, mesh, (EVERYWHERE, rows_spec(grouped)))(point, rows)


def _in_order(x: jax.Array) -> jax.Array:
    """Sums over the leading axis, in order."""
    if not x.size:
        return jnp.zeros(x.shape[1:], x.dtype)
    return sum_rows(jnp.ones(x.shape[0], x.dtype), x.reshape(x.shape[0], -1)).reshape(x.shape[1:])


def one_row(rows: PyTree, number: jax.Array, mesh: Mesh | None) -> PyTree:
    """Returns row `number` of leaves `[b, ...]`, as leaves `[1, ...]`."""
    if mesh is None:
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, number, 1), rows)
    size = jax.tree.leaves(rows)[0].shape[0] // mesh.shape[agreement.AXIS]

    def on_device(mine: PyTree, first: jax.Array, number: jax.Array) -> PyTree:
        # counted from a device's first row, the number is in [0, size) on one device alone
        return _taken(mine, number[None] - first[0], size, 0)

    return in_shards(on_device, mesh, (rows_spec(False), rows_spec(False), EVERYWHERE))(
        rows, sharding.first_rows(mesh, size), number)


def record(data: Sharded, place: tuple[jax.Array, ...]) -> PyTree:
    """Returns the record at a row's number, or at a group's and a row's; the nearest if none.

    Args:
      data: the data of a population, or of groups.
      place: one number or two, int32 `[]` each.
    """
    *group, row = place
    size = sharding.held_rows(data)

    def on_device(mine: PyTree, first: jax.Array, group: list[jax.Array], row: jax.Array) -> PyTree:
        mine = jax.tree.map(lambda x: x.at[tuple(group)].get(mode="clip"), mine)
        return jax.tree.map(lambda x: x[0], _taken(mine, row[None] - first[0], size, 0))

    return in_shards(on_device, data.mesh, (rows_spec(data.grouped), rows_spec(False), EVERYWHERE,
                                            EVERYWHERE))(
        data.rows, sharding.first_rows(data.mesh, size), [jnp.asarray(i) for i in group],
        jnp.clip(row, 0, data.population - 1))


def evenly(data: Sharded, numbers: jax.Array) -> PyTree:
    """Spreads rows by their numbers, the same number of them in every shard.

    Args:
      data: the data of a population, or of groups.
      numbers: int32 `[c]`, or `[p, c]` in each group.

    Returns:
      Leaves `[D w, ...]`, or `[p, D w, ...]`, w = ceil(c / D): the rows in the order of `numbers`,
      then the last one again; spread like `data`.
    """
    mesh, axis = data.mesh, int(data.grouped)
    shards, size = mesh.shape[agreement.AXIS], sharding.held_rows(data)
    width = -(-numbers.shape[-1] // shards)
    room = [(0, 0)] * axis + [(0, shards * width - numbers.shape[-1])]
    # the last row again fills the last shares, so that all have w rows
    numbers = jnp.pad(jnp.clip(numbers, 0, data.population - 1), room, mode="edge")

    def on_device(mine: PyTree, first: jax.Array, numbers: jax.Array) -> PyTree:
        # Shard after shard receives its share, numbers[receiver w : (receiver + 1) w]: every device
        # computes all shares, one at a time, and keeps its own, so none ever holds all rows.
        def send(receiver: jax.Array, received: PyTree) -> PyTree:
            share = jax.lax.dynamic_slice_in_dim(numbers, receiver * width, width, axis)
            sent = _taken(mine, share - first[0], size, axis)
            is_mine = first[0] == receiver * size
            return jax.tree.map(lambda a, b: jnp.where(is_mine, a, b), sent, received)

        zeros = jax.tree.map(lambda x: jnp.zeros(
            (*x.shape[:axis], width, *x.shape[axis + 1:]), x.dtype), mine)
        return jax.lax.fori_loop(0, shards, send, zeros)

    spread = rows_spec(data.grouped)
    return in_shards(on_device, mesh, (spread, rows_spec(False), EVERYWHERE), spread)(
        data.rows, sharding.first_rows(mesh, size), numbers)


def _taken(mine: PyTree, local: jax.Array, size: int, axis: int) -> PyTree:
    """Returns rows of all shards on each: a row's bits from the shard that has it."""
    present = (local >= 0) & (local < size)
    place = jnp.clip(local, 0, size - 1)  # of a row that it has not a device reads another one

    def leaf(x: jax.Array) -> jax.Array:
        bits, back = _bits(x)
        index: Any = place if axis == 0 else (jnp.arange(x.shape[0])[:, None], place)
        rows = bits[index]
        inside = present.reshape(*present.shape, *[1] * (rows.ndim - present.ndim))
        # Every row is in one shard, so the sum has one term besides zeros. As integers mod 2^32 or
        # 2^64 that is exact, and the record's bits arrive: a float that is NaN or -0, or an integer
        # below 0.
        return back(jax.lax.psum(jnp.where(inside, rows, 0), agreement.AXIS))

    return jax.tree.map(leaf, mine)


def _bits(x: jax.Array) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Returns numbers whose sum with zeros is exact, and the inverse; NaN and -0 are kept."""
    dtype, wide = x.dtype, jnp.uint64 if x.dtype.itemsize == 8 else jnp.uint32
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return x, lambda a: a  # x + 0 is x, but that -0 becomes 0
    if not jnp.issubdtype(dtype, jnp.floating):
        return x.astype(wide), lambda a: a.astype(dtype)
    word = jnp.dtype(f"uint{8 * dtype.itemsize}")
    return jax.lax.bitcast_convert_type(x, word).astype(wide), lambda a: (
        jax.lax.bitcast_convert_type(a.astype(word), dtype))
