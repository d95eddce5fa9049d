"""Sums over data on a mesh: every shard sums its own rows of one sample, and the sums add up.

    total = sum_s  sum_{i in B and in shard s} clip(g(z; x_i)),            s = 1, ..., S.

The sample B is drawn once for the whole population, from the key and the number of the release
alone, exactly as without a mesh. Row numbers are cheap: O(capacity) on every device, whatever n is.
So the release equals that of one device, up to the rounding of the sum, for every
sampling and any number of devices, and a saved state may go on elsewhere. (Samples that each shard
draws for itself would have the same law for Poisson sampling only: fixed-size samples of the shards
do not make a uniform one of the whole.)

There are as many shards as devices, S = D, unless another number was chosen. A device then sums its
S / D shards one after another, in a loop whose body has the shapes of one shard, whatever D is. All
that is below is of shards, so it holds for S as for D; and since the integers of shards add up
exactly, the release is the same number on any number of devices if a shard's own arithmetic is.

This costs no privacy beyond what is charged, for these reasons:

* A row is in one shard, so a record is clipped once, and once added. Rows that pad the last shard
  are masked by their number, for any content. Clipping, absence of non-finite records and the
  precautions for norms happen inside a shard and look at its own records alone.
* A shard's part of a sample is a range of the sorted row numbers, which are put into slots in an
  order that is drawn anew by each shard: so which slots the other records of all shards are in
  tells nothing about one (`distinct.places`). Slots are so many that they hold the part but for a
  probability of 1e-27; then further passes are made, and a record decides which rows come into a
  later one. How many passes there are depends on the sample and not on the records, so that is
  charged as a failure: for the shard of the record, if the others of the sample leave it no room.
  Other shards do not differ.
* What the shards add up are integers, exact in any order. The sum over devices is what leaves this
  module. Noise is added to it afterwards by the same code as without a mesh, once: it is a function
  of the key, so replicas of the result are equal.

Records in groups are summed shard by shard, too.
Rows of a group are spread like those of a population: row j of each group is in shard j // m,
m = ceil(n_max / D), and is its row j - m (j // m). So shard d holds m rows of each of the p groups,

    total = sum_d  sum_i  sum_{j < n_i in shard d} r_i clip(g(w; z_ij)),        d = 1, ..., D,

and what is beyond n_i is no record: the rows that `problems.by_group` pads a smaller group with,
and those that pad the last shards of all groups. The row's number in its group identifies both,
for any content, in one mask.

This costs no privacy beyond what is charged, for these reasons: a record is one row of one group,
so it is in one shard, clipped once and added once, or its loss clipped once and rounded once.
Clipping and the precautions for norms happen in the shard and look at its own records. What shards
add up are integers, exact in any order: for gradients as above, for losses as numbers below 2^52 in
float64. Noise is added afterwards by the same code as without a mesh, once.

Samples of one group are rows of a population, see above. How a group's rows lie in the
shards is public, as is how many there are; a small group may lie in the first shards alone.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from jaxminimax.base.random_bits import fold_in
from jaxminimax.base.tree import if_wanted
from jaxminimax.base.types import PyTree, Saddle
from jaxminimax.gradients import summation
from jaxminimax.gradients.integer_sums import across, is_words
from jaxminimax.gradients.summation import Rounding, Sums
from jaxminimax.mechanism import Query, batch_size, distinct
from jaxminimax.placement import sharding
from jaxminimax.placement.agreement import AXIS
from jaxminimax.placement.sharding import EVERYWHERE, Sharded, in_shards, rows_spec

Attach = Callable[[PyTree, jax.Array, Any], PyTree]


def _most_rows(query: Query, size: int) -> int:
    """The largest number of rows of a sample in one shard of `size` rows."""
    return query.sampling.rows_in_shard(query.population, size)


def pass_rows(query: Query, size: int, shards: int) -> int:
    """The rows that a shard of `size` rows works on at once; more have probability `CROWDED`.

    That is so if every row is drawn equally often, with the mean that a sampling states; without
    one there are slots for every row that a sample may have in a shard. By Bernstein's inequality
    a sum of independent draws of that mean, and so one of draws without replacement, exceeds it by
    a with probability at most exp(-a^2 / (2 (mean + a / 3))).
    """
    max_rows = _most_rows(query, size)
    drawn = query.sampling.mean_drawn(query.population)
    # known rows may all lie in one shard
    if shards == 1 or not query.sampling.secret or math.isinf(drawn):
        return max_rows
    # without a record, the others of a sample are fewer, but not if more than n rows are drawn
    n = query.population - (batch_size(query) > query.population)
    mean = drawn * min(1.0, size / max(n, 1))
    # the a with a^2 / (2 (mean + a / 3)) = -ln(CROWDED), a root of a quadratic
    exponent = -math.log(distinct.CROWDED)
    margin = exponent / 3 + math.sqrt((exponent / 3) ** 2 + 2 * exponent * mean)
    return min(max_rows, math.ceil(mean + margin))


def add_up(sums: Sums, floats: jax.Array) -> Sums:
    """Adds the sums of shards up on every device; floating-point sums only if wanted."""
    # integers on the grid are exact in any order of the devices, and so are counts of records;
    # floating-point sums are rounded
    return Sums(if_wanted(lambda: jax.lax.psum(sums.floats, AXIS), floats), jax.tree.map(
        lambda x: across(x, AXIS), sums.integers, is_leaf=is_words), jax.tree.map(
        lambda x: jax.lax.psum(x, AXIS), sums.num_unclipped))


def sum_over_shards(total: Callable[[Saddle, PyTree, jax.Array | None, Rounding], Sums], z: Saddle,
                    data: Sharded, query: Query | tuple[Query, ...], rows: jax.Array | None,
                    valid: jax.Array | None, rounding: Rounding, key: jax.Array,
                    attach: Attach | None = None, extra: PyTree = None) -> Sums:
    """Adds up `total(z, examples, mask, rounding)` over the sampled rows, each in its shard.

    Args:
      total: a sum over examples, `ClippedSum.sums`.
      z: the point, on every device or spread over other axes than that of the rows.
      data: the data on the mesh.
      query: how the rows were sampled; if that is one of several, all of them.
      rows: which rows take part, int32 `[c]`; None for the whole population.
      valid: which of `rows` count; None for all.
      rounding: of the sums.
      key: for the slots of the shards' rows.
      attach: `(examples, numbers of their rows, extra) -> examples`, what is computed of a row's
        number next to the record; None: nothing.
      extra: arrays that `attach` gets, the same for all rows.

    Returns:
      As `total`, the same on every device along the axis of the rows.

    Raises:
      ValueError: while tracing, for rows that are not laid out as `sharding.shard` does.
    """
    queries = query if isinstance(query, tuple) else (query,)
    mesh, shards = data.mesh, sharding.count_shards(data.mesh, data.shards)
    size = sharding.shard_rows(data.population, mesh, data.shards)
    shards_here = shards // mesh.shape[AXIS]
    # every query in the same shapes, so that the program does not depend on which was drawn
    rows_in_all, slots = shards * size, max(pass_rows(q, size, shards) for q in queries)
    max_rows = max(_most_rows(q, size) for q in queries)
    lengths = {x.shape[:1] for x in jax.tree.leaves(data.rows)}
    if lengths != {(rows_in_all,)}:
        raise ValueError(f"Data on a mesh must have {rows_in_all} rows, {size} for each of "
                         f"{shards} shards, got leading axes {lengths}: sharding.shard lays them "
                         "out.")
    count = None
    if rows is not None:
        count = jnp.int32(rows.shape[0]) if valid is None else jnp.sum(valid, dtype=jnp.int32)
        # sorted, the rows of shard s are one range: those in [s size, (s + 1) size). Rows that do
        # not count come last, as the largest int32, beyond every shard: S size is below 2^31
        rows = jnp.sort(rows if valid is None else jnp.where(valid, rows, np.int32(2**31 - 1)))

    def sum_sample(z: Saddle, mine: PyTree, shard: jax.Array | int, first: jax.Array,
                   rows: jax.Array, begin: jax.Array, end: jax.Array, rounding: Rounding,
                   key_words: jax.Array, extra: PyTree) -> Sums:
        """Sums over places `begin`, ..., `end` - 1 of the sorted `rows`, all in this shard."""
        # of each shard its own: one order for all would tell, by where two shards' rows come to
        # lie, how many rows of the sample are before them
        key = fold_in(jax.random.wrap_key_data(key_words, impl="threefry2x32"), first // size)

        def one_pass(turn: jax.Array | int) -> Sums:
            # Slot k takes the row at place begin + turn slots + order[k]. The last bits of what is
            # computed for a record may depend on its slot. In sorted order one record would push
            # all later ones a slot on; in a drawn order the others' slots have the same law with
            # it and without. A sample that is public hides nothing, and keeps its order.
            order = jnp.arange(slots, dtype=jnp.int32)
            if queries[0].sampling.secret:
                order = distinct.places(fold_in(key, turn), slots)
            place = begin + turn * slots + order
            # row numbers of the population, then of this shard; empty slots read some row of the
            # shard, which the mask `place < end` takes out of the sum, whatever it holds
            local = jnp.clip(rows.at[place].get(mode="clip") - first, 0, size - 1)
            row = shard * size + local  # among all rows of the device
            examples = jax.tree.map(lambda x: x.at[row].get(mode="clip"), mine)
            if attach is not None and extra is not None:
                examples = attach(examples, first + local, extra)
            return total(z, examples, place < end, rounding)

        if slots == max_rows:  # no sample has more rows in one shard
            return one_pass(0)
        # ceil((end - begin) / slots) passes: depends on the sample, never on what records hold
        return _one_after_another(one_pass, one_pass(0), 1, (end - begin + slots - 1) // slots)

    def sum_shard(z: Saddle, mine: PyTree, shard: jax.Array | int, first: jax.Array,
                  rounding: Rounding, rows: jax.Array | None, count: jax.Array | None,
                  key_words: jax.Array, extra: PyTree) -> Sums:
        """Sums over the rows `first`, ..., `first` + size - 1: number `shard` of its device."""
        if rows is not None and count is not None:
            # places of the shard's range among the sorted rows; from `count` on none is a record
            ends = jnp.stack([first, first + size])
            begin, end = jnp.minimum(jnp.searchsorted(rows, ends), count)
            return sum_sample(z, mine, shard, first, rows, begin, end, rounding, key_words, extra)
        if shards_here > 1:  # the rows of a device's shards lie one after another
            mine = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, shard * size, size), mine)
        numbers = first + jnp.arange(size, dtype=jnp.int32)
        if attach is not None and extra is not None:
            mine = attach(mine, numbers, extra)
        # rows from n on are padding of the last shard: out by their number, whatever they hold
        return total(z, mine, None if rows_in_all == data.population
                     else numbers < data.population, rounding)

    def on_device(z: Saddle, mine: PyTree, firsts: jax.Array, rounding: Rounding,
                  *arguments: Any) -> Sums:
        # It sees its own rows, and the first row numbers of its own shards. The point, the sampled
        # row numbers and the rounding are the same along the axis of the rows: all round on one
        # grid.
        def shard_sum(shard: jax.Array | int) -> Sums:
            return sum_shard(z, mine, shard, firsts[shard], rounding, *arguments)

        # Integers are exact in any order; floats are added first in the order of a device's shards,
        # then of the devices. Without a chosen number of shards the program has no loop.
        sums = shard_sum(0) if data.shards is None else _each_shard(shard_sum, shards_here)
        return add_up(sums, rounding.floats)

    firsts = jnp.arange(shards, dtype=jnp.int32) * size  # split among devices, like the rows
    return in_shards(on_device, mesh, (EVERYWHERE, *[rows_spec(False)] * 2, *[EVERYWHERE] * 5))(
        z, data.rows, firsts, rounding, rows, count, jax.random.key_data(key), extra)


def _one_after_another(term: Callable[[Any], Sums], initial: Sums, first: int,
                       stop: jax.Array) -> Sums:
    """Adds `term(k)` for k = first, ..., stop - 1 to `initial`.

    The addition is compensated, as in `clipped_sum`, so that a large sum loses no small terms.
    """
    def step(k: jax.Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        sums, lost = carry
        return sums.plus(lost, term(k))

    zeros = jax.tree.map(jnp.zeros_like, initial.floats)  # what rounding has taken from the sums
    sums, lost = jax.lax.fori_loop(first, stop, step, (initial, zeros))
    return sums._replace(floats=jax.tree.map(jnp.add, sums.floats, lost))


def _each_shard(shard_sum: Callable[[Any], Sums], shards: int) -> Sums:
    """Sums over a device's own shards.

    It takes them in turns of a loop, whose number is hidden from the compiler: the compiler would
    unroll a loop of one turn, and might round differently than on a device with more shards.
    """
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype),
                         jax.eval_shape(shard_sum, jnp.int32(0)))
    turns = jax.lax.optimization_barrier(jnp.int32(shards))
    return _one_after_another(shard_sum, zeros, 0, turns)


# (leaves [k, m, ...], groups [k, 1], rows [k, m], replicated numbers) -> leaves [k, m, ...]
GroupAttach = Callable[[PyTree, jax.Array, jax.Array, PyTree], PyTree]


def counted(number: jax.Array, sizes: jax.Array) -> jax.Array:
    """Returns True for rows that are records, for numbers `[m]` in groups of sizes, `[k, m]`."""
    return number[None] < sizes[:, None]


def one_group(data: Sharded, group: jax.Array) -> Sharded:
    """Returns the rows of a group, as a population of n_max."""
    # row j of a group stays in its shard j // m, so none has to move
    spread = NamedSharding(data.mesh, rows_spec(False))
    return dataclasses.replace(data, grouped=False, rows=jax.tree.map(
        lambda x: jax.lax.with_sharding_constraint(x[group], spread), data.rows))


def sum_over_groups(total: Callable[[Saddle, PyTree, jax.Array | None, Rounding], Sums], z: Saddle,
                    data: Sharded, sizes: tuple[int, ...], rounding: Rounding, attach: GroupAttach,
                    extra: PyTree, group: jax.Array | None = None) -> Sums:
    """Adds up `total(z, examples, mask, rounding)` over all records of all groups or of one.

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
    def on_device(z: Saddle, mine: PyTree, first: jax.Array, groups: jax.Array, limits: jax.Array,
                  rounding: Rounding, extra: PyTree) -> Sums:
        if group is not None:  # its rows alone, as a population of one group
            mine = jax.tree.map(lambda x: x[groups], mine)
        # row j of every group on this device is number first + j of that group: a record if below
        # the group's size n_i, padding if not
        numbers = first[0] + jnp.arange(jax.tree.leaves(mine)[0].shape[1], dtype=jnp.int32)
        mask = counted(numbers, limits)
        rows = attach(mine, groups[:, None], jnp.broadcast_to(numbers, mask.shape), extra)
        # group after group, and the mask in the same order
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
        return add_up(total(z, flat, mask.reshape(-1), rounding), rounding.floats)

    limits = jnp.asarray(sizes, jnp.int32)
    groups = jnp.arange(len(sizes), dtype=jnp.int32)
    if group is not None:
        # its rows have the same shapes whichever group it is
        groups = jnp.asarray(group, jnp.int32)[None]
        limits = limits[groups]
    return in_shards(on_device, data.mesh, (EVERYWHERE, rows_spec(True), rows_spec(False),
                                            *[EVERYWHERE] * 4))(
        z, data.rows, sharding.first_rows(data.mesh, sharding.held_rows(data)), groups, limits,
        rounding, extra)


def each_record(function: Callable[[PyTree, PyTree], jax.Array], w: PyTree, data: Sharded,
                attach: GroupAttach, extra: PyTree) -> jax.Array:
    """Computes `function(w, record)` of every row, padding too, `[p, D m, ...]`, in its shard.

    Args:
      function: of one record.
      w: the point, on every device.
      data: of groups.
      attach: as in `sum_over_groups`.
      extra: as in `sum_over_groups`.
    """
    def on_device(w: PyTree, mine: PyTree, first: jax.Array, extra: PyTree) -> jax.Array:
        # nothing is added up here: values stay with their rows, and the release masks padding
        p, size = jax.tree.leaves(mine)[0].shape[:2]
        numbers = jnp.broadcast_to(first[0] + jnp.arange(size, dtype=jnp.int32), (p, size))
        rows = attach(mine, jnp.arange(p, dtype=jnp.int32)[:, None], numbers, extra)
        return summation.each_of_groups(function, w, rows)

    return in_shards(on_device, data.mesh, (EVERYWHERE, rows_spec(True), rows_spec(False),
                                            EVERYWHERE), rows_spec(True))(
        w, data.rows, sharding.first_rows(data.mesh, sharding.held_rows(data)), extra)
