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
* A shard's part of a sample is a range of the sorted row numbers. It is taken in passes of a fixed
  number of rows, as many passes as it takes, so nothing can overflow that the description did not
  say can. A second pass is needed with a probability below 1e-4 a shard. How many there are, and so
  how long a release takes, depends on the sample and not on the records; it is not hidden.
* The sum over devices is what leaves this module. Noise is added to it afterwards by the same code
  as without a mesh, once: it is a function of the key, so replicas of the result are equal.
* Adding up devices takes D - 1 more additions, and a device's sum of its b / D rows takes fewer:
  b / D + D - 1 <= b, so the bound on what rounding may move is not above that of one device. (A
  disjoint batch may lie in one shard, and takes up to D - 1 more.)
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxminimax._tree import two_sum_error
from jaxminimax._types import Saddle, Tree
from jaxminimax.mechanism import Disjoint, FixedSize, Query, batch_size, rows_read
from jaxminimax.sharding import AXIS, Sharded, shard_rows


def _most_rows(query: Query, size: int) -> int:
    """Rows of a sample that may lie in one shard of `size` rows."""
    several = isinstance(query.sampling, FixedSize) and query.sampling.replacement
    return rows_read(query) if several else min(rows_read(query), size)


def pass_rows(query: Query, size: int, shards: int) -> int:
    """Rows that a shard of `size` rows works on at once: all of its sample, but for bad luck.

    A binomial number exceeds its mean by 4 (mean^(1/2) + 1) with a probability below 1e-4.
    """
    most = _most_rows(query, size)
    if shards == 1 or isinstance(query.sampling, Disjoint):  # one batch, side by side
        return most
    mean = batch_size(query) * min(1.0, size / query.population)
    return min(most, math.ceil(mean + 4 * math.sqrt(mean)) + 4)


def _add_up(total: Tree) -> Tree:
    """The sum over the shards, on every device."""
    return jax.lax.psum(total, AXIS)


def sum_over_shards(total: Callable[[Saddle, Tree, jax.Array | None], Saddle], z: Saddle,
                    data: Sharded, query: Query, rows: jax.Array | None,
                    valid: jax.Array | None) -> Saddle:
    """`total(z, examples, mask)` over the sampled rows, each in its shard, added up.

    Args:
      total: a sum over examples, such as `clipped_sum` makes.
      z: the point, on every device or spread over other axes than that of the rows.
      data: the data on the mesh.
      query: how the rows were sampled.
      rows: which rows take part, int32 `[c]`; None for the whole population.
      valid: which of `rows` count, the first ones; None for all.

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
    if rows is not None and isinstance(query.sampling, FixedSize):
        rows = jnp.sort(rows)  # with replacement they come in any order; all of them count
    at_once = pass_rows(query, size, shards)

    def passes(z: Saddle, mine: Tree, first: jax.Array, rows: jax.Array,
               valid: jax.Array | None) -> Saddle:
        count = rows.shape[0] if valid is None else jnp.sum(valid, dtype=jnp.int32)
        begin, end = jnp.minimum(jnp.searchsorted(rows, jnp.stack([first, first + size])), count)

        def one(number: jax.Array | int) -> Saddle:
            place = begin + number * at_once + jnp.arange(at_once, dtype=jnp.int32)
            local = jnp.clip(rows.at[place].get(mode="clip") - first, 0, size - 1)
            examples = jax.tree.map(lambda x: x.at[local].get(
                mode="clip", indices_are_sorted=True), mine)
            return total(z, examples, place < end)

        if at_once == _most_rows(query, size):
            return one(0)

        # compensated, as in `clipped_sum`: of a large sum and small terms none may be lost
        def step(number: jax.Array, carry: tuple[Saddle, Saddle]) -> tuple[Saddle, Saddle]:
            so_far, lost = carry
            more = jax.tree.map(jnp.add, one(number), lost)
            new = jax.tree.map(jnp.add, so_far, more)
            return new, jax.tree.map(two_sum_error, so_far, more, new)

        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(one, 0))
        needed = (end - begin + at_once - 1) // at_once
        return jax.tree.map(jnp.add, *jax.lax.fori_loop(0, needed, step, (zeros, zeros)))

    def here(z: Saddle, mine: Tree, first: jax.Array, rows: jax.Array | None,
             valid: jax.Array | None) -> Saddle:
        if rows is not None:
            return _add_up(passes(z, mine, first[0], rows, valid))
        number = first[0] + jnp.arange(size, dtype=jnp.int32)
        return _add_up(total(z, mine, None if whole == data.population
                             else number < data.population))

    # Unchecked on purpose: with varying types, the derivative of a shard's loss by a point that is
    # the same for all shards would itself be a sum over them, made before anything is clipped.
    one_sum = jax.shard_map(here, mesh=data.mesh, axis_names={AXIS}, out_specs=PartitionSpec(),
                            in_specs=(PartitionSpec(), PartitionSpec(AXIS), PartitionSpec(AXIS),
                                      PartitionSpec(), PartitionSpec()), check_vma=False)
    firsts = jnp.arange(shards, dtype=jnp.int32) * size
    return one_sum(z, data.rows, firsts, rows, valid)
