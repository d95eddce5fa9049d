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
  order that is drawn anew: so which slots the other records are in tells nothing about one
  (`slots.places`). Slots are so many that they hold the part but for a probability of 1e-27; then
  further passes are made, and a record decides which rows come into a later one. How many passes
  there are depends on the sample and not on the records, so that is charged as a failure: for the
  shard of the record, if the others of the sample leave it no room. Other shards do not differ.
* What the shards add up are integers, exact in any order. The sum over devices is what leaves this
  module. Noise is added to it afterwards by the same code as without a mesh, once: it is a function
  of the key, so replicas of the result are equal.
"""

import math
from collections.abc import Callable

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
        lambda x: across(x, AXIS), found.integers, is_leaf=is_words))


def sum_over_shards(total: Callable[[Saddle, PyTree, jax.Array | None, Rounding], Sums], z: Saddle,
                    data: Sharded, query: Query, rows: jax.Array | None,
                    valid: jax.Array | None, rounding: Rounding, key: jax.Array,
                    attach: Attach | None = None, of_rows: jax.Array | None = None) -> Sums:
    """`total(z, examples, mask, rounding)` over the sampled rows, each in its shard, added up.

    Args:
      total: a sum over examples, `ClippedSum.sums`.
      z: the point, on every device or spread over other axes than that of the rows.
      data: the data on the mesh.
      query: how the rows were sampled.
      rows: which rows take part, int32 `[c]`; None for the whole population.
      valid: which of `rows` count; None for all.
      rounding: of the sums.
      key: for the slots of the shards' rows.
      attach: `(examples, numbers of their rows, of_rows) -> examples`, what is computed of a row's
        number beside the record; None: nothing.
      of_rows: an array that `attach` gets, the same for all rows.

    Returns:
      As `total`, the same on every device along the axis of the rows.

    Raises:
      ValueError: while tracing, for rows that are not laid out as `sharding.shard` does.
    """
    shards, size = data.mesh.shape[AXIS], shard_rows(data.population, data.mesh)
    whole, given = shards * size, {x.shape[:1] for x in jax.tree.leaves(data.rows)}
    if given != {(whole,)}:
        raise ValueError(f"Data on a mesh must have {whole} rows, {size} for each of {shards} "
                         f"shards, got leading axes {given}: sharding.shard lays them out.")
    count = None
    if rows is not None:
        count = jnp.int32(rows.shape[0]) if valid is None else jnp.sum(valid, dtype=jnp.int32)
        # what does not count comes last
        rows = jnp.sort(rows if valid is None else jnp.where(valid, rows, np.int32(2**31 - 1)))
    at_once = pass_rows(query, size, shards)
    moving = query.sampling.secret

    def passes(z: Saddle, mine: PyTree, first: jax.Array, rows: jax.Array, count: jax.Array,
               rounding: Rounding, words: jax.Array, of_rows: jax.Array | None) -> Sums:
        begin, end = jnp.minimum(jnp.searchsorted(rows, jnp.stack([first, first + size])), count)
        key = jax.random.wrap_key_data(words, impl="threefry2x32")

        def one(number: jax.Array | int) -> Sums:
            slot = jnp.arange(at_once, dtype=jnp.int32)
            if moving:
                slot = places(fold_in(key, number), at_once)
            place = begin + number * at_once + slot
            local = jnp.clip(rows.at[place].get(mode="clip") - first, 0, size - 1)
            examples = jax.tree.map(lambda x: x.at[local].get(mode="clip"), mine)
            if attach is not None and of_rows is not None:
                examples = attach(examples, first + local, of_rows)
            return total(z, examples, place < end, rounding)

        if at_once == _most_rows(query, size):
            return one(0)

        # compensated, as in `clipped_sum`: of a large sum and small terms none may be lost
        def step(number: jax.Array, carry: tuple[Saddle, Saddle, Saddle]) -> tuple:
            so_far, lost, integers = carry
            found = one(number)
            more = jax.tree.map(jnp.add, found.floats, lost)
            new = jax.tree.map(jnp.add, so_far, more)
            lost = jax.tree.map(two_sum_error, so_far, more, new)
            return new, lost, jax.tree.map(plus, integers, found.integers, is_leaf=is_words)

        first_sum = one(0)
        needed = (end - begin + at_once - 1) // at_once
        none = jax.tree.map(jnp.zeros_like, first_sum.floats)
        floats, lost, integers = jax.lax.fori_loop(1, needed, step, (
            first_sum.floats, none, first_sum.integers))
        return Sums(jax.tree.map(jnp.add, floats, lost), integers)

    def here(z: Saddle, mine: PyTree, first: jax.Array, rows: jax.Array | None,
             count: jax.Array | None, rounding: tuple, words: jax.Array,
             of_rows: jax.Array | None) -> Sums:
        scale, dither, floats, integers = rounding
        grid = Rounding(Grid(scale, dither, wide), floats, integers)
        if rows is not None and count is not None:
            return _add_up(passes(z, mine, first[0], rows, count, grid, words, of_rows), floats)
        number = first[0] + jnp.arange(size, dtype=jnp.int32)
        if attach is not None and of_rows is not None:
            mine = attach(mine, number, of_rows)
        return _add_up(total(z, mine, None if whole == data.population
                             else number < data.population, grid), floats)

    # Unchecked on purpose: with varying types, the derivative of a shard's loss by a point that is
    # the same for all shards would itself be a sum over them, made before anything is clipped.
    (scale, dither, wide), floats, integers = rounding
    everywhere = PartitionSpec()
    one_sum = jax.shard_map(here, mesh=data.mesh, axis_names={AXIS}, out_specs=everywhere,
                            in_specs=(everywhere, PartitionSpec(AXIS), PartitionSpec(AXIS),
                                      *[everywhere] * 5), check_vma=False)
    firsts = jnp.arange(shards, dtype=jnp.int32) * size
    return one_sum(z, data.rows, firsts, rows, count,
                   (scale, dither, floats, integers), jax.random.key_data(key), of_rows)
