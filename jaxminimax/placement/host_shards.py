"""Rows that stay on the hosts of a mesh: each process sends its shards the rows they will read.

The run is that of `shard_sums` on the same mesh, bit for bit: the same sample of the whole
population, the same shard for every row, the same slots and the same order of addition. A shard
only reads its rows in another place: not among all of its rows, but among those of its part of the
sample, which the host drew by the same function from the same key and sent ahead.

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
"""

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxminimax.base.types import PyTree
from jaxminimax.mechanism import Query
from jaxminimax.placement import agreement, shard_sums, sharding
from jaxminimax.placement.host_data import HostData, Sent, Window


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
        taken = np.take_along_axis(
            numbers[:, None], np.minimum(place, numbers.shape[1] - 1), 2)
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

            return jax.make_array_from_callback(
                (x.shape[0], self.count, *x.shape[2:]), where, part)

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
