"""Rows that are sent to the shards of a mesh: from the hosts that hold them, or from other shards.

**From hosts.** Each process sends its shards the rows that they will read. The run is that of
`shard_sums` on the same mesh, bit for bit: the same sample of the whole population, the same shard
for every row, the same slots and the same order of addition. A shard only reads its rows in another
place: not among all of its rows, but among those of its part of the sample, which the host drew by
the same function from the same key and sent ahead.

This costs no privacy beyond what is charged, for these reasons:

* Each shard checks that the numbers that it received are of its own rows, and adds up its part of
  the sample's mark (`host_data.mark`). All devices compare the total with the mark that the
  first shard's process drew with the sample, and decide alike: if one number of one shard is
  another, or is missing or there twice, if a process drew another sample, or a shard was sent
  another's rows, rows of another release or of another key, all release NaN. Whether they agree
  is a function of what processes sent and of the sample, never of a record.
* All processes draw the same sample, since they hold the same key, population, mesh and mechanism,
  which `agree` compares before any row is read. Each keeps the numbers in its own shards: a row is
  in one shard, so it is clipped once and added once.
* How many rows are sent ahead depends on the sample alone: room for one pass of `pass_rows` in
  every shard, and for as many as the fullest shard of a share needs where that is more, with a
  probability of 1e-27 a shard. The number of passes is charged as on a mesh in memory.
* Where the mesh has further axes, several devices, and perhaps processes, hold what a shard reads.
  The release compares their copies, numbers and rows, word for word, and is NaN if any differ
  (`agreement` says why).

Processes must trust each other as on any mesh. The caller must ensure that the record of a number
is the same in every pass over the data, and no other process's: no number shows it.

**From other shards.** A solver reads its rows a hundred times and more, so on a mesh they are
spread evenly first: rows of a sample or of a part, wherever they lie, are sent once a release, and
every shard gets as many as the others. (All rows of a population lie so already.) The shards send
bits, and each row comes from the one shard that has it. A single record goes to all in the same
way. Every evaluation then sums the shards' own rows and adds the D sums up, in floating point.

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

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxminimax.base.tree import sum_rows
from jaxminimax.base.types import PyTree
from jaxminimax.mechanism import Query
from jaxminimax.placement import agreement, shard_sums, sharding
from jaxminimax.placement.host_data import HostData, Sent, Window
from jaxminimax.placement.sharding import EVERYWHERE, Sharded, in_shards, rows_spec


@dataclasses.dataclass(frozen=True, eq=False)
class HostShards:
    """The `HostData` of every process, and the mesh of their shards; made by `on_mesh`.

    Attributes:
      data: the rows `own_rows` of this process.
      mesh: a mesh with automatic axes.
      shards: S, if it was chosen; None for one for each device along the axis "data".
    """

    data: HostData = dataclasses.field(repr=False)
    mesh: Mesh
    shards: int | None = None

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """The first row and the number of rows of each of this process's shards, in order."""
        return _stretches(self.population, self.mesh, self.shards)

    @property
    def counted(self) -> list[bool]:
        """The shards that this process answers for, if several processes hold copies of one."""
        holding = sharding.holding(self.mesh, self.shards)
        return [jax.process_index() == min(holding[k]) for k in self.own_shards()]

    @property
    def population(self) -> int:
        """Records of all processes."""
        return self.data.population

    @property
    def record(self) -> PyTree:
        """Shapes and dtypes of a record."""
        return self.data.record

    @property
    def size(self) -> int:
        """Rows of a shard, the padding included."""
        return sharding.shard_rows(self.population, self.mesh, self.shards)

    @property
    def count(self) -> int:
        """The number of shards."""
        return sharding.count_shards(self.mesh, self.shards)

    def at_once(self, query: Query) -> int:
        """The number of rows that a release sends to a shard, except with probability 1e-27."""
        return shard_sums.pass_rows(query, self.size, self.count)

    def rows_sent(self, query: Query) -> int:
        """The number of rows that a process sends to its shards per release, the same for all."""
        held = collections.Counter(
            one for who in sharding.holding(self.mesh, self.shards) for one in who)
        return self.at_once(query) * max(held.values())

    def own_shards(self) -> list[int]:
        """Numbers of the shards of this process."""
        return sharding.own_shards(self.mesh, self.shards)

    def gather(self, query: Query, rows: np.ndarray,
               valid: np.ndarray | None) -> tuple[np.ndarray, PyTree]:
        """Gathers the row numbers of each shard in k releases, and the rows of own shards.

        Args:
          query: how the samples were drawn.
          rows: of k samples, `[k, c]`.
          valid: which of them count; None for all.

        Returns:
          Numbers `[k, S, W]`, sorted in each shard, -1 where there is none; and leaves
          `[k, d, W, ...]` of the d own shards, zeros where there is none.
        """
        shards, size = self.count, self.size
        numbers = np.where(True if valid is None else valid, rows, np.int32(2**31 - 1))
        numbers = np.sort(numbers, 1)
        ends = np.stack([np.searchsorted(one, np.arange(shards + 1) * size) for one in numbers])
        begin, end = ends[:, :-1, None], ends[:, 1:, None]
        at_once = self.at_once(query)
        place = begin + np.arange(at_once * max(1, -(-int(np.max(end - begin)) // at_once)))
        present = place < end
        taken = np.take_along_axis(numbers[:, None], np.minimum(place, numbers.shape[1] - 1), 2)
        taken = np.where(present, taken, -1).astype(np.int32)
        own = self.own_shards()
        mine, counts = present[:, own], [count for _, count in self.stretches]
        before = np.cumsum([0, *counts[:-1]]) if counts else np.zeros(0, np.int64)
        local = taken[:, own] - np.array(own, np.int64)[:, None] * size + before[:, None]
        read = self.data.take(local[mine])

        def spread(x: np.ndarray) -> np.ndarray:
            out = np.zeros((*mine.shape, *x.shape[1:]), x.dtype)
            out[mine] = x
            return out

        return taken, jax.tree.map(spread, read)

    def window(self, sent: Sent, rows: PyTree, first: int, described: tuple[Any, ...]) -> Window:
        """Puts the result of `gather` on the devices of the mesh."""
        where = NamedSharding(self.mesh, PartitionSpec(None, agreement.AXIS))
        place = {shard: k for k, shard in enumerate(self.own_shards())}

        def send(x: np.ndarray, of: Callable[[int], int]) -> jax.Array:
            x = x.astype(jnp.result_type(x), copy=False)

            def part(index: Any) -> np.ndarray:
                first, stop, _ = index[1].indices(self.count)
                return x[:, of(first):of(first) + stop - first]

            return jax.make_array_from_callback((x.shape[0], self.count, *x.shape[2:]), where, part)

        def everywhere(x: np.ndarray) -> jax.Array:  # device_put would have processes compare it
            spec = NamedSharding(self.mesh, PartitionSpec())
            return jax.make_array_from_callback(x.shape, spec, lambda index: x[index])

        return Window(
            rows=jax.tree.map(lambda x: send(x, place.__getitem__), rows),
            numbers=send(sent.rows, lambda shard: shard), high=None, valid=None,
            fits=everywhere(sent.fits), marks=everywhere(sent.marks),
            first=everywhere(np.array(first, np.int32)), population=self.population,
            described=described, mesh=self.mesh, shards=self.shards)


def on_mesh(data: PyTree, mesh: Mesh | None, shards: int | None = None, *,
            grouped: bool = False) -> PyTree:
    """Spreads `data` over `mesh`, unless they already are or there is none; `HostData` stay.

    Args:
      data: see `fit`.
      mesh: see `fit`. Without one, a number of shards is spread over a mesh of one device.
      shards: as in `sharding.shard`.
      grouped: as in `sharding.shard`.

    Raises:
      ValueError: as `shard`; for data that are spread over another mesh or number of shards; for
        `HostData` of other rows than `own_rows`, on every process.
    """
    if isinstance(data, sharding.Sharded):
        if mesh is not None and sharding.automatic(mesh) != data.mesh:
            raise ValueError(f"data are spread over {data.mesh}, not over {mesh}.")
        if shards not in (None, data.shards):
            raise ValueError(f"data are spread over shards={data.shards}, not over {shards}.")
        return data
    if mesh is None and shards is not None:
        mesh = jax.make_mesh((1,), (agreement.AXIS,), devices=jax.local_devices()[:1])
    if isinstance(data, HostData):
        return _hosts(data, mesh, shards)
    return data if mesh is None else sharding.shard(data, mesh, shards=shards, grouped=grouped)


def _hosts(data: HostData, mesh: Mesh | None, shards: int | None) -> HostData | HostShards:
    if mesh is None:
        if data.count != data.population:
            raise ValueError(f"HostData hold {data.count} of population={data.population} rows: "
                             "the others are those of other processes, so give mesh=..., or all "
                             "rows.")
        return data
    mesh = sharding.automatic(mesh)
    wanted = sum(count for _, count in _stretches(data.population, mesh, shards))
    agreement.agree_on_shards(data.population, mesh, shards, **{
        "rounds, shapes and dtypes of HostData": repr((data.rounds, data.record)).encode(),
        "whether a process holds the rows own_rows(population, mesh)":
            repr(data.count == wanted).encode()})
    if data.count != wanted:
        raise ValueError(f"HostData hold {data.count} rows, but this process is to hold {wanted} "
                         f"of population={data.population}: give HostData(rows, population=n) "
                         "the rows own_rows(n, mesh).")
    return HostShards(data, mesh, shards)


def _stretches(population: int, mesh: Mesh, shards: int | None) -> list[tuple[int, int]]:
    size = sharding.shard_rows(population, mesh, shards)
    return [(k * size, max(0, min(size, population - k * size)))
            for k in sharding.own_shards(mesh, shards)]


# --- rows of other shards ---


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

    def here(point: PyTree, mine: PyTree) -> PyTree:
        return jax.tree.map(_in_order, jax.lax.all_gather(function(point, mine), agreement.AXIS))

    return in_shards(here, mesh, (EVERYWHERE, rows_spec(grouped)))(point, rows)


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

    def here(mine: PyTree, first: jax.Array, number: jax.Array) -> PyTree:
        return _taken(mine, number[None] - first[0], size, 0)

    return in_shards(here, mesh, (rows_spec(False), rows_spec(False), EVERYWHERE))(
        rows, sharding.first_rows(mesh, size), number)


def record(data: Sharded, place: tuple[jax.Array, ...]) -> PyTree:
    """Returns the record at a row's number, or at a group's and a row's; the nearest if none.

    Args:
      data: the data of a population, or of groups.
      place: one number or two, int32 `[]` each.
    """
    *group, row = place
    size = sharding.held_rows(data)

    def here(mine: PyTree, first: jax.Array, group: list[jax.Array], row: jax.Array) -> PyTree:
        mine = jax.tree.map(lambda x: x.at[tuple(group)].get(mode="clip"), mine)
        return jax.tree.map(lambda x: x[0], _taken(mine, row[None] - first[0], size, 0))

    return in_shards(here, data.mesh, (rows_spec(data.grouped), rows_spec(False), EVERYWHERE,
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
    numbers = jnp.pad(jnp.clip(numbers, 0, data.population - 1), room, mode="edge")

    def here(mine: PyTree, first: jax.Array, numbers: jax.Array) -> PyTree:
        def send(to: jax.Array, kept: PyTree) -> PyTree:  # a share at a time: no device holds all
            wanted = jax.lax.dynamic_slice_in_dim(numbers, to * width, width, axis)
            taken = _taken(mine, wanted - first[0], size, axis)
            return jax.tree.map(lambda a, b: jnp.where(first[0] == to * size, a, b), taken, kept)

        nothing = jax.tree.map(lambda x: jnp.zeros(
            (*x.shape[:axis], width, *x.shape[axis + 1:]), x.dtype), mine)
        return jax.lax.fori_loop(0, shards, send, nothing)

    spread = rows_spec(data.grouped)
    return in_shards(here, mesh, (spread, rows_spec(False), EVERYWHERE), spread)(
        data.rows, sharding.first_rows(mesh, size), numbers)


def _taken(mine: PyTree, local: jax.Array, size: int, axis: int) -> PyTree:
    """Returns rows of all shards on each: a row's bits from the shard that has it."""
    present = (local >= 0) & (local < size)
    place = jnp.clip(local, 0, size - 1)

    def leaf(x: jax.Array) -> jax.Array:
        bits, back = _bits(x)
        index: Any = place if axis == 0 else (jnp.arange(x.shape[0])[:, None], place)
        rows = bits[index]
        inside = present.reshape(*present.shape, *[1] * (rows.ndim - present.ndim))
        return back(jax.lax.psum(jnp.where(inside, rows, 0), agreement.AXIS))

    return jax.tree.map(leaf, mine)


def _bits(x: jax.Array) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Returns numbers whose sum with zeros is exact, and the inverse; NaN and -0 are kept."""
    dtype, wide = x.dtype, jnp.uint64 if x.dtype.itemsize == 8 else jnp.uint32
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return x, lambda a: a
    if not jnp.issubdtype(dtype, jnp.floating):
        return x.astype(wide), lambda a: a.astype(dtype)
    own = jnp.dtype(f"uint{8 * dtype.itemsize}")
    return jax.lax.bitcast_convert_type(x, own).astype(wide), lambda a: (
        jax.lax.bitcast_convert_type(a.astype(own), dtype))
