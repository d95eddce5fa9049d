"""Training of one table by several processes: each holds its share of the rows of one file.

All processes make the same releases together: a shard's sum is exact integers, the sums of all
shards are added up, and noise is a function of the one key. So there is one release and one noise,
whatever the number of processes is, and the scorer is the same on all of them, to the last bit. The
rows are cut into a number of shards that does not depend on the processes, so any number of them
that divides it ends with the same scorer, one process too.

Before anything is released, processes compare hashes of their key, settings, schema and the whole
file, and refuse to go on where one differs. Only the first process writes.
"""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxminimax.apps.tables.files import Frames
from jaxminimax.apps.tables.schema import Schema
from jaxminimax.base import checks, types
from jaxminimax.noise import secret_key
from jaxminimax.placement import agreement, sharding


def begin(count: int, number: int | None, coordinator: str | None) -> Mesh:
    """Joins the other processes, before JAX has done anything else; returns their devices.

    Args:
      count: of all processes.
      number: of this one, from 0; None: as a launcher says in its variables (Slurm, Open MPI).
      coordinator: "host:port" of the first process; None like `number`.

    Raises:
      ValueError: for numbers out of range, or processes that a launcher counts otherwise.
    """
    checks.count("--processes", count)
    if (number is None) != (coordinator is None):
        raise ValueError("--process and --coordinator go together: say both, or none of them where "
                         "Slurm or Open MPI starts the processes.")
    if number is not None and not 0 <= number < count:
        raise ValueError(f"--process must be 0 to {count - 1}, got {number}.")
    if count > 1 or number is not None:
        try:
            with _printed_as_messages():
                jax.distributed.initialize(coordinator, count, number)
                _from_first(np.int32(count))
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"the {count} processes cannot be joined: {error}. Say --coordinator "
                             "HOST:PORT and --process I, or start them by Slurm or Open MPI."
                             ) from error
    if jax.process_count() != count:
        raise ValueError(f"--processes {count}, and the launcher started {jax.process_count()}: "
                         "say its number.")
    return jax.make_mesh((jax.device_count(),), (agreement.AXIS,))


@contextlib.contextmanager
def _printed_as_messages() -> Iterator[None]:
    """Sends to standard error what libraries print, as the command's output may be JSON."""
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(output, 1)
        os.close(output)


def shards_of(mesh: Mesh) -> int:
    """Returns how many shards the command uses: the same for 1, 2, 4 and 8 devices."""
    return math.lcm(8, mesh.devices.size)


def is_first() -> bool:
    """Returns whether this is the process that writes."""
    return jax.process_index() == 0


def in_first(make: Callable[[], Any]) -> Any:
    """Returns what `make` returns in the first process, and None in others.

    Raises:
      ValueError: in all processes, if it raised one in the first.
    """
    result, error = None, None
    if is_first():
        try:
            result = make()
        except (ValueError, OSError) as raised:
            error = raised
    if _from_first(np.int32(error is not None)):
        raise error or ValueError("the first process was refused, and says why.")
    return result


def _from_first(value: Any) -> Any:
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(value)


def share_of(frame: Any, schema: Schema, mesh: Mesh, shards: int | None,
             folder: Any) -> tuple["Share", Any]:
    """Returns this process's share of a table, and the frames of its rows.

    Raises:
      ValueError: for what takes all rows in one process, and as `Share`.
    """
    several = len(agreement.processes(mesh)) > 1
    for feature, wrong in (("an owner", schema.owner), ("groups", schema.groups),
                        ("ranges that are charged", schema.charged)):
        if wrong:
            raise ValueError(f"the schema has {feature}, which need all rows in one place: train "
                             "in one process and without shards.")
    if several and (folder is not None or not isinstance(frame, Frames)):
        raise ValueError("several processes train without a folder, and read their rows of a "
                         "Parquet file: leave folder out, and give files.Frames(...).")
    if not isinstance(frame, Frames):
        return Share(len(schema.cells(frame, schema.label)), mesh, shards), frame
    share = Share(frame.row_count, mesh, shards)
    return share, frame.stretch(share.first, share.count)


class Share:
    """The rows of a table that this process holds, as shards on its devices.

    Attributes:
      population: n, rows of all processes.
      first: number of the first own row.
      count: of own rows.
      padded_rows: of the own shards, those that pad the last ones included.
      mesh: the devices of all processes.

    Args:
      population: n.
      mesh: devices of all processes, or of this one, with the axis "data" alone.
      shards: a multiple of the devices; None for that of `shards_of`.

    Raises:
      ValueError: for another mesh or number of shards, or fewer rows than some process needs.
    """

    def __init__(self, population: int, mesh: Mesh, shards: int | None = None) -> None:
        self.mesh = sharding.automatic(mesh)
        if mesh.axis_names != (agreement.AXIS,):
            raise ValueError(f"tables are spread over a mesh of the axis {agreement.AXIS!r} alone, "
                             f"got {mesh.axis_names}.")
        devices = mesh.devices.size
        self._shards = shards_of(mesh) if shards is None else shards
        self._size = sharding.shard_rows(population, mesh, self._shards)
        own_shards = sharding.own_shards(mesh, self._shards)
        if population <= self._size * (self._shards - self._shards // devices):
            raise ValueError(f"{population} rows are too few for {devices} devices: use fewer "
                             "processes.")
        self.population, self.first, self.padded_rows = population, own_shards[0] * self._size, (
            len(own_shards) * self._size)
        self.count = min(self.padded_rows, population - self.first)

    def __repr__(self) -> str:
        return f"{self._shards} shards of {self._size} rows"

    def agreed(self, key: jax.Array | None, schema: Schema, frame: Any, settings: str) -> jax.Array:
        """Returns the key of all processes, if they have one key, file, schema and settings.

        Args:
          key: a key, the same in all; None in all: the first process draws one.
          schema: of the table.
          frame: of own rows.
          settings: in words, all that decides what is released.

        Raises:
          ValueError: in all processes, naming what differs.
        """
        words = np.zeros(2, np.uint32) if key is None else np.asarray(jax.random.key_data(key))
        agreement.agree(self.mesh, **{
            "key or seed": (words, np.bool_(key is None)),
            "table": frame.digest() if isinstance(frame, Frames) else b"",
            "schema": json.dumps(schema.to_dict()).encode(),
            "settings": f"{settings}, {self.population} rows, {self}".encode()})
        if key is not None:
            return key
        drawn = jax.random.key_data(secret_key("threefry2x32"))
        return jax.random.wrap_key_data(_from_first(np.asarray(drawn)), impl="threefry2x32")

    def shards(self, rows: int) -> list[slice]:
        """Returns where each own shard is among so many rows: work on one asks for no other."""
        return [slice(k, k + self._size) for k in range(0, rows, self._size)]

    def place(self, rows: types.PyTree) -> sharding.Sharded:
        """Puts own arrays `[padded_rows, ...]` on own devices: a CPU uses them as they lie."""
        placement = NamedSharding(self.mesh, sharding.rows_spec(False))

        def leaf(x: np.ndarray) -> jax.Array:
            rows = self._size * self._shards

            def held(index: Any) -> np.ndarray:
                first, last, _ = index[0].indices(rows)
                return x[first - self.first: last - self.first]

            return jax.make_array_from_callback((rows, *x.shape[1:]), placement, held)

        return sharding.Sharded(rows=jax.tree.map(leaf, rows), population=self.population,
                                mesh=self.mesh, shards=self._shards)
