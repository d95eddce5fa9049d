"""Sums over records in groups on a mesh: every shard sums its own rows of every group.

Rows of a group are spread like those of a population: row j of each group is in shard j // m,
m = ceil(n_max / D), and is its row j - m (j // m). So shard d holds m rows of each of the p groups,

    total = sum_d  sum_i  sum_{j < n_i in shard d} r_i clip(g(w; z_ij)),        d = 1, ..., D,

and what is beyond n_i is no record: the rows that `problems.by_group` pads a smaller group with,
and those that pad the last shards of all groups. Both are told by the row's number in its group,
whatever is in them, and in one mask.

Why that costs no privacy and is charged as it stands: a record is one row of one group, so it is
in one shard, clipped once and added once, or its loss clipped once and rounded once. Clipping and
the precautions for norms happen in the shard and look at its own records. What shards add up are
integers, exact in any order: for gradients as in `shard_sums`, for losses as numbers below 2^52 in
float64. Noise is added afterwards by the same code as without a mesh, once.

Samples of one group are rows of a population, see `shard_sums`. How a group's rows lie in the
shards is public, as is how many there are; a small group may lie in the first shards alone.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxminimax.base.types import PyTree, Saddle
from jaxminimax.gradients import summation
from jaxminimax.gradients.integer_sums import Grid
from jaxminimax.gradients.summation import Rounding, Sums
from jaxminimax.placement.shard_sums import add_up
from jaxminimax.placement.sharding import AXIS, Sharded, rows_spec

# (leaves [k, m, ...], groups [k, 1], rows [k, m], replicated numbers) -> leaves [k, m, ...]
Attach = Callable[[PyTree, jax.Array, jax.Array, PyTree], PyTree]


def counted(number: jax.Array, sizes: jax.Array) -> jax.Array:
    """Which rows are records, of numbers `[m]` in groups of these sizes, `[k, m]`."""
    return number[None] < sizes[:, None]


def one_group(data: Sharded, group: jax.Array) -> Sharded:
    """The rows of a group, as those of a population of n_max."""
    where = NamedSharding(data.mesh, rows_spec(False))
    return dataclasses.replace(data, grouped=False, rows=jax.tree.map(
        lambda x: jax.lax.with_sharding_constraint(x[group], where), data.rows))


def sum_over_groups(total: Callable[[Saddle, PyTree, jax.Array | None, Rounding], Sums], z: Saddle,
                    data: Sharded, sizes: tuple[int, ...], rounding: Rounding, attach: Attach,
                    extra: PyTree, group: jax.Array | None = None) -> Sums:
    """`total(z, examples, mask, rounding)` over all records of all groups or of one, added up.

    Args:
      total: a sum over examples, `ClippedSum.sums`.
      z: the point, on every device.
      data: of groups.
      sizes: n_1, ..., n_p.
      rounding: of the sums.
      attach: what is computed of a row's group and number besides the record.
      extra: arrays that `attach` gets, the same for all rows.
      group: i, int32 `[]`, one that there is; None for all groups.

    Returns:
      As `total`, the same on every device along the axis of the rows.
    """
    (scale, dither, wide), floats, integers = rounding

    def here(z: Saddle, mine: PyTree, first: jax.Array, groups: jax.Array, limits: jax.Array,
             rounding: tuple, extra: PyTree) -> Sums:
        scale, dither, floats, integers = rounding
        if group is not None:
            mine = jax.tree.map(lambda x: x[groups], mine)
        number = first[0] + jnp.arange(jax.tree.leaves(mine)[0].shape[1], dtype=jnp.int32)
        mask = counted(number, limits)
        rows = attach(mine, groups[:, None], jnp.broadcast_to(number, mask.shape), extra)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
        found = total(z, flat, mask.reshape(-1),
                      Rounding(Grid(scale, dither, wide), floats, integers))
        return add_up(found, floats)

    limits = jnp.asarray(sizes, jnp.int32)
    groups = jnp.arange(len(sizes), dtype=jnp.int32)
    if group is not None:
        groups = jnp.asarray(group, jnp.int32)[None]
        limits = limits[groups]
    everywhere = PartitionSpec()
    # unchecked for the same reason as in `shard_sums`
    one_sum = jax.shard_map(here, mesh=data.mesh, axis_names={AXIS}, out_specs=everywhere,
                            in_specs=(everywhere, rows_spec(True), rows_spec(False),
                                      *[everywhere] * 4), check_vma=False)
    return one_sum(z, data.rows, _firsts(data), groups, limits,
                   (scale, dither, floats, integers), extra)


def each_record(function: Callable[[PyTree, PyTree], jax.Array], w: PyTree, data: Sharded,
                attach: Attach, extra: PyTree) -> jax.Array:
    """`function(w, record)` of every row, `[p, D m, ...]`, each in its shard; of padding too.

    Args:
      function: of one record.
      w: the point, on every device.
      data: of groups.
      attach: as in `sum_over_groups`.
      extra: as in `sum_over_groups`.
    """
    def here(w: PyTree, mine: PyTree, first: jax.Array, extra: PyTree) -> jax.Array:
        p, size = jax.tree.leaves(mine)[0].shape[:2]
        row = jnp.broadcast_to(first[0] + jnp.arange(size, dtype=jnp.int32), (p, size))
        rows = attach(mine, jnp.arange(p, dtype=jnp.int32)[:, None], row, extra)
        return summation.each_of_groups(function, w, rows)

    everywhere = PartitionSpec()
    return jax.shard_map(here, mesh=data.mesh, axis_names={AXIS}, out_specs=rows_spec(True),
                         in_specs=(everywhere, rows_spec(True), rows_spec(False), everywhere),
                         check_vma=False)(w, data.rows, _firsts(data), extra)


def _firsts(data: Sharded) -> jax.Array:
    """The number of the first row of each device, as rows are laid out."""
    devices = data.mesh.shape[AXIS]
    size = jax.tree.leaves(data.rows)[0].shape[1] // devices
    return jnp.arange(devices, dtype=jnp.int32) * size
