"""Sums over data on a mesh: every shard sums its own rows of one sample, and the sums add up.

    total = sum_d  sum_{i in B and in shard d} clip(g(z; x_i)),            d = 1, ..., D.

The sample B is drawn once for the whole population, from the key and the number of the release
alone, exactly as without a mesh. Row numbers are cheap: O(capacity) on every device, whatever n is.
So what is released equals what one device would release, up to the rounding of the sum, for every
sampling and any number of devices, and a saved state may go on elsewhere. (Samples that each shard
draws for itself would have the same law for Poisson sampling only: fixed-size samples of the shards
do not make a uniform one of the whole.)

Why that costs no privacy and is charged as it stands:

* A row is in one shard, so a record is clipped once, and once added. Rows that pad the last shard
  are masked by their number, whatever is in them. Clipping, absence of non-finite records and the
  precautions for norms happen inside a shard and look at its own records alone.
* A shard's part of a sample is a range of the sorted row numbers, which are put into slots in an
  order that is drawn anew by each shard: so which slots the other records of all shards are in
  tells nothing about one (`slots.places`). Slots are so many that they hold the part but for a
  probability of 1e-27; then further passes are made, and a record decides which rows come into a
  later one. How many passes there are depends on the sample and not on the records, so that is
  charged as a failure: for the shard of the record, if the others of the sample leave it no room.
  Other shards do not differ.
* What the shards add up are integers, exact in any order. The sum over devices is what leaves this
  module. Noise is added to it afterwards by the same code as without a mesh, once: it is a function
  of the key, so replicas of the result are equal.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxminimax.base.materialise import materialise
from jaxminimax.base.random_bits import fold_in
from jaxminimax.base.tree import two_sum_error
from jaxminimax.base.types import PyTree, Saddle
from jaxminimax.gradients.integer_sums import Grid, across, is_words, plus
from jaxminimax.gradients.summation import Rounding, Sums
from jaxminimax.mechanism import Query, batch_size
from jaxminimax.mechanism.slots import CROWDED, places
from jaxminimax.placement.host_data import Window
from jaxminimax.placement.sharding import AXIS, Sharded, shard_rows

Attach = Callable[[PyTree, jax.Array, jax.Array], PyTree]


def _most_rows(query: Query, size: int) -> int:
    """Rows of a sample that may lie in one shard of `size` rows."""
    return query.sampling.rows_in_shard(query.population, size)


def pass_rows(query: Query, size: int, shards: int) -> int:
    """Rows that a shard of `size` rows works on at once: its sample, but for a chance of `CROWDED`.

    By Bernstein's inequality a sum of independent draws of that mean, and so one of draws without
    replacement, exceeds it by a with probability at most exp(-a^2 / (2 (mean + a / 3))).
    """
    most = _most_rows(query, size)
    if shards == 1 or not query.sampling.secret:  # known rows may all lie in one shard
        return most
    # without a record, the others of a sample are fewer, but not if more than n rows are drawn
    n = query.population - (batch_size(query) > query.population)
    mean = batch_size(query) * min(1.0, size / max(n, 1))
    chance = -math.log(CROWDED)
    more = chance / 3 + math.sqrt((chance / 3) ** 2 + 2 * chance * mean)
    return min(most, math.ceil(mean + more))


def _add_up(found: Sums, floats: jax.Array) -> Sums:
    """The sum over the shards, on every device; of floating-point sums only where it is wanted."""
    return Sums(materialise(lambda: jax.lax.psum(found.floats, AXIS), floats), jax.tree.map(
        lambda x: across(x, AXIS), found.integers, is_leaf=is_words), jax.tree.map(
        lambda x: jax.lax.psum(x, AXIS), found.within))


def sum_over_shards(total: Callable[[Saddle, PyTree, jax.Array | None, Rounding], Sums], z: Saddle,
                    data: Sharded | Window, query: Query, rows: jax.Array | None,
                    valid: jax.Array | None, rounding: Rounding, key: jax.Array,
                    attach: Attach | None = None, of_rows: jax.Array | None = None,
                    spent: jax.Array | None = None) -> tuple[Sums, jax.Array | None]:
    """`total(z, examples, mask, rounding)` over the sampled rows, each in its shard, added up.

    Args:
      total: a sum over examples, `ClippedSum.sums`.
      z: the point, on every device or spread over other axes than that of the rows.
      data: the data on the mesh, or what each shard reads of them in some releases.
      query: how the rows were sampled.
      rows: which rows take part, int32 `[c]`; None for the whole population.
      valid: which of `rows` count; None for all.
      rounding: of the sums.
      key: for the slots of the shards' rows.
      attach: `(examples, numbers of their rows, of_rows) -> examples`, what is computed of a row's
        number beside the record; None: nothing.
      of_rows: an array that `attach` gets, the same for all rows.
      spent: the number of the release, for rows that were sent ahead.

    Returns:
      As `total`, the same on every device along the axis of the rows; and whether the rows that
      were sent ahead are those of the sample in every shard, bool `[]`, None for all the data.

    Raises:
      ValueError: while tracing, for rows that are not laid out as `sharding.shard` or
        `host_shards` does.
    """
    assert data.mesh is not None
    shards, size = data.mesh.shape[AXIS], shard_rows(data.population, data.mesh)
    whole, at_once = shards * size, pass_rows(query, size, shards)
    _check_layout(data, whole, size, shards, at_once, query, rows)
    count = None
    if rows is not None:
        count = jnp.int32(rows.shape[0]) if valid is None else jnp.sum(valid, dtype=jnp.int32)
        # what does not count comes last
        rows = jnp.sort(rows if valid is None else jnp.where(valid, rows, np.int32(2**31 - 1)))
    moving = query.sampling.secret

    def passes(z: Saddle, mine: PyTree, first: jax.Array, rows: jax.Array, count: jax.Array,
               rounding: Rounding, words: jax.Array, of_rows: jax.Array | None,
               sent: tuple | None) -> tuple[Sums, jax.Array | None]:
        begin, end = jnp.minimum(jnp.searchsorted(rows, jnp.stack([first, first + size])), count)
        same = start = None
        if sent is not None:
            (numbers, at, inside), width = sent, sent[0].shape[-1]
            place = begin + jnp.arange(width, dtype=jnp.int32)
            equal = numbers.reshape(-1, width)[at] == rows.at[place].get(mode="clip")
            same = inside & (end - begin <= width) & jnp.all(equal | (place >= end))
            same = jax.lax.pmin(same.astype(jnp.int32), AXIS) == 1
            mine = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), mine)
            start = at * width - begin  # of the part in what was sent
        # of each shard its own: one order for all would tell, by where two shards' rows come to
        # lie, how many rows of the sample are before them
        key = fold_in(jax.random.wrap_key_data(words, impl="threefry2x32"), first // size)

        def one(number: jax.Array | int) -> Sums:
            slot = jnp.arange(at_once, dtype=jnp.int32)
            if moving:
                slot = places(fold_in(key, number), at_once)
            place = begin + number * at_once + slot
            local = jnp.clip(rows.at[place].get(mode="clip") - first, 0, size - 1)
            found = local if start is None else start + jnp.clip(place, begin, begin + width - 1)
            examples = jax.tree.map(lambda x: x.at[found].get(mode="clip"), mine)
            if attach is not None and of_rows is not None:
                examples = attach(examples, first + local, of_rows)
            return total(z, examples, place < end, rounding)

        if at_once == _most_rows(query, size):
            return one(0), same

        # compensated, as in `clipped_sum`: of a large sum and small terms none may be lost
        def step(number: jax.Array, carry: tuple) -> tuple:
            so_far, lost, integers, count = carry
            found = one(number)
            more = jax.tree.map(jnp.add, found.floats, lost)
            new = jax.tree.map(jnp.add, so_far, more)
            lost = jax.tree.map(two_sum_error, so_far, more, new)
            return (new, lost, jax.tree.map(plus, integers, found.integers, is_leaf=is_words),
                    jax.tree.map(jnp.add, count, found.within))

        first_sum = one(0)
        needed = (end - begin + at_once - 1) // at_once
        none = jax.tree.map(jnp.zeros_like, first_sum.floats)
        begun: tuple = (first_sum.floats, none, *first_sum[1:])
        floats, lost, *rest = jax.lax.fori_loop(1, needed, step, begun)
        return Sums(jax.tree.map(jnp.add, floats, lost), *rest), same

    def here(z: Saddle, mine: PyTree, numbers: jax.Array | None, first: jax.Array,
             rows: jax.Array | None, count: jax.Array | None, rounding: tuple, words: jax.Array,
             of_rows: jax.Array | None, at: Any) -> tuple[Sums, jax.Array | None]:
        scale, dither, floats, integers = rounding
        grid = Rounding(Grid(scale, dither, wide), floats, integers)
        if rows is not None and count is not None:
            found, same = passes(z, mine, first[0], rows, count, grid, words, of_rows,
                                 None if numbers is None else (numbers, *at))
            return _add_up(found, floats), same
        number = first[0] + jnp.arange(size, dtype=jnp.int32)
        if attach is not None and of_rows is not None:
            mine = attach(mine, number, of_rows)
        return _add_up(total(z, mine, None if whole == data.population
                             else number < data.population, grid), floats), None

    # Unchecked on purpose: with varying types, the derivative of a shard's loss by a point that is
    # the same for all shards would itself be a sum over them, made before anything is clipped.
    (scale, dither, wide), floats, integers = rounding
    everywhere, numbers, at = PartitionSpec(), None, None
    spread = PartitionSpec(AXIS)
    if isinstance(data, Window):
        assert spent is not None
        spread, numbers, at = PartitionSpec(None, AXIS), data.numbers, data.release(spent)
    one_sum = jax.shard_map(here, mesh=data.mesh, axis_names={AXIS}, out_specs=everywhere,
                            in_specs=(everywhere, spread, spread, PartitionSpec(AXIS),
                                      *[everywhere] * 6), check_vma=False)
    firsts = jnp.arange(shards, dtype=jnp.int32) * size
    return one_sum(z, data.rows, numbers, firsts, rows, count,
                   (scale, dither, floats, integers), jax.random.key_data(key), of_rows, at)


def _check_layout(data: Sharded | Window, whole: int, size: int, shards: int, at_once: int,
                  query: Query, rows: jax.Array | None) -> None:
    if isinstance(data, Sharded):
        given = {x.shape[:1] for x in jax.tree.leaves(data.rows)}
        if given != {(whole,)}:
            raise ValueError(f"Data on a mesh must have {whole} rows, {size} for each of {shards} "
                             f"shards, got leading axes {given}: sharding.shard lays them out.")
        return
    if rows is None:
        raise ValueError(f"{query.sampling!r} reads every record, not rows sent ahead.")
    sent = data.numbers.shape
    if sent[1] != shards or sent[2] % at_once:
        raise ValueError(f"A release reads {at_once} rows at once in each of {shards} shards, but "
                         f"{sent[1:]} were sent: they were sent for another description or mesh.")
