"""Data on the devices of a mesh, and the state of a run beside them.

Rows are spread over the axis "data" of a mesh in their order, m = ceil(n / D) to each of its D
shards; what pads the last ones is no record and never counts. `shard_sums` says how a release reads
them. Where several processes take part, each must hold other rows, and all must hold the same key,
state and settings: `shard` and `agree` see to it. Nothing here defends the processes against each
other: what they exchange are exact sums.
"""

import hashlib
from typing import Any, NoReturn, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxminimax.base import arguments, checks
from jaxminimax.base.types import PyTree, pytree_dataclass
from jaxminimax.placement.host_data import HostData, Window

AXIS = "data"
_LIMIT = 2**31  # row numbers have 32 bits


@pytree_dataclass
class Sharded:
    """A data set whose rows are spread over the axis "data" of a mesh; made by `shard`.

    Attributes:
      rows: leaves `[D m, ...]`, m rows a shard, in the order of the population; rows from
        `population` on are padding and never count.
      population: n, rows that are records.
      mesh: with automatic axes. Axes other than "data" hold copies of the rows.

    It may be handed to `run`, `sweep` and `update` as well, but only `fit` checks that several
    processes agree.

    Examples:
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
        >>> rows = jmm.shard({"x": np.ones((8, 3))}, mesh)
        >>> isinstance(rows, jmm.placement.Sharded), rows.rows["x"].shape
        (True, (8, 3))
    """

    rows: PyTree
    population: int = jax.tree.static()
    mesh: Mesh = jax.tree.static()


def automatic(mesh: Mesh) -> Mesh:
    """`mesh` with axes along which the compiler places what the program does not."""
    if AXIS not in mesh.axis_names:
        raise ValueError(f"mesh must have an axis {AXIS!r} to spread rows over, got "
                         f"{mesh.axis_names}: jax.make_mesh((jax.device_count(),), ({AXIS!r},)).")
    axis_types = (AxisType.Auto,) * len(mesh.axis_names)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=axis_types)


def _holders(mesh: Mesh) -> list[list[jax.Device]]:
    """The devices that hold copies of each shard."""
    return np.moveaxis(mesh.devices, mesh.axis_names.index(AXIS), 0).reshape(
        mesh.shape[AXIS], -1).tolist()


def _processes(mesh: Mesh) -> set[int]:
    return {device.process_index for device in mesh.devices.flat}


def _check_processes(mesh: Mesh) -> None:
    processes = _processes(mesh)
    if processes == {jax.process_index()}:
        return
    if processes != set(range(jax.process_count())):
        raise ValueError(f"mesh must have devices of this process alone or of all "
                         f"{jax.process_count()}, got those of {sorted(processes)}.")
    if any(len({device.process_index for device in copies}) > 1 for copies in _holders(mesh)):
        raise ValueError(f"Each row must be held by one process, or copies of it could differ: "
                         f"let only the axis {AXIS!r} of the mesh cross processes.")


def own_shards(mesh: Mesh) -> list[int]:
    """Numbers of the shards that this process holds.

    Raises:
      ValueError: for a mesh whose other axes cross processes.
    """
    _check_processes(mesh)
    return [k for k, copies in enumerate(_holders(mesh))
            if copies[0].process_index == jax.process_index()]


def shard_rows(population: int, mesh: Mesh) -> int:
    """Rows of a shard, the padding included.

    Raises:
      ValueError: for more rows than 32-bit numbers can tell apart.
    """
    checks.count("population", population)
    size = -(-population // mesh.shape[AXIS])
    if size * mesh.shape[AXIS] >= _LIMIT:
        raise ValueError(f"data must have fewer than 2**31 rows, got {population}: row numbers "
                         "have 32 bits.")
    return size


def own_rows(population: int, mesh: Mesh) -> np.ndarray:
    """Numbers of the rows that this process is to hold, sorted, int64; all of them if it is alone.

    Every record must be one row, and the order of the rows must be public and the same for all
    processes.

    Examples:
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
        >>> jmm.placement.own_rows(5, mesh).tolist()  # of a single process, all
        [0, 1, 2, 3, 4]
    """
    mesh = automatic(mesh)
    size = shard_rows(population, mesh)
    mine = [np.arange(k * size, (k + 1) * size) for k in own_shards(mesh)]
    rows = np.concatenate([np.zeros(0, np.int64), *mine])
    return rows[rows < population]


def shard(data: PyTree, mesh: Mesh, *, population: int | None = None) -> Sharded:
    """Spreads rows over the devices of a mesh.

    Args:
      data: leaves `[n, ...]`. If the mesh spans several processes, each gives the rows
        `own_rows(population, mesh)` and no others; or all give global arrays whose leading axis is
        padded at its end to the next multiple of D.
      mesh: with an axis "data" of D devices.
      population: n; needed if there are several processes. n need not be a multiple of D.

    Raises:
      ValueError: for a mesh without the axis, one whose other axes cross processes, data with
        another number of rows than this process is to hold, or processes that were told another
        population or order of devices.

    Examples:
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
        >>> rows = jmm.shard(np.ones((8, 3)), mesh)
        >>> rows.population
        8
    """
    if isinstance(data, Sharded):
        raise ValueError("data are spread over a mesh already.")
    mesh = automatic(mesh)
    _check_processes(mesh)
    leaves = jax.tree.leaves(data)
    given = {np.shape(x)[:1] for x in leaves}
    if len(given) != 1 or () in given:
        raise ValueError(f"data must share one leading axis, got leading axes {given}.")
    ((count,),) = given
    if population is None:
        if len(_processes(mesh)) > 1:
            raise ValueError("population must be given where the mesh spans several processes: "
                             "shard(rows, mesh, population=n) with this process's "
                             "own_rows(n, mesh).")
        population = count
    size = shard_rows(population, mesh)
    whole = size * mesh.shape[AXIS]
    agree_on_shards(population, mesh)
    spread = NamedSharding(mesh, PartitionSpec(AXIS))
    everywhere = [isinstance(x, jax.Array) and not x.is_fully_addressable for x in leaves]
    if any(everywhere):
        if not all(everywhere) or count != whole:
            raise ValueError(f"Global arrays must have {whole} rows, {size} for each of "
                             f"{mesh.shape[AXIS]} devices with padding at the end, got {count}.")
        return Sharded(rows=jax.tree.map(lambda x: jax.device_put(x, spread), data),
                       population=population, mesh=mesh)
    mine = own_rows(population, mesh)
    if count != len(mine):
        raise ValueError(f"data have {count} rows, but this process is to hold {len(mine)} of "
                         f"population={population}: give rows own_rows(population, mesh).")

    def leaf(x: Any) -> jax.Array:
        if whole == population and len(mine) == whole:
            return jax.device_put(x, spread)
        host = np.asarray(x)

        def part(index: Any) -> np.ndarray:
            first = index[0].start or 0
            begin, end = np.searchsorted(mine, [first, first + size])
            padding = np.zeros((size - (end - begin), *host.shape[1:]), host.dtype)
            return np.concatenate([host[begin:end], padding])

        return jax.make_array_from_callback((whole, *host.shape[1:]), spread, part)

    return Sharded(rows=jax.tree.map(leaf, data), population=population, mesh=mesh)


def check_records(data: PyTree) -> None:
    """Refuses data that are no arrays of numbers, see `arguments.records`; `HostData` are."""
    if not isinstance(data, HostData):
        arguments.records(data)


def arrays(data: PyTree) -> PyTree:
    """NumPy's arrays as JAX's, all else as it is.

    Raises:
      ValueError: for `HostData`, which `fit` alone reads.
    """
    return data if isinstance(data, Sharded) else jax.tree.map(jnp.asarray, data)


def is_spread(data: PyTree) -> TypeGuard[Sharded | Window]:
    """Whether data lie on a mesh, all or those that were sent ahead."""
    return isinstance(data, Sharded | Window) and data.mesh is not None


def refuse(data: PyTree) -> None:
    """Refuses data on a mesh.

    Raises:
      ValueError: for data that are spread over one.
    """
    if is_spread(data):
        refuse_mesh()


def refuse_mesh() -> NoReturn:
    """For what does not run on a mesh."""
    raise ValueError("data on a mesh are for algorithms that release clipped sums over a Query: "
                     "run this one on one device.")


def check_key(key: jax.Array) -> None:
    """Refuses a key whose numbers could differ between the devices of a mesh.

    Raises:
      ValueError: for a key that is not threefry's.
    """
    if jax.random.key_impl(key) != "threefry2x32":
        raise ValueError("A run on a mesh needs a key of threefry2x32, got one of "
                         f"{jax.random.key_impl(key)}: other generators may give every device its "
                         "own sample and its own noise, and what differs gives sums away.")


def replicated(tree: PyTree, mesh: Mesh) -> PyTree:
    """`tree` on every device of the mesh; leaves that are spread over it already stay so.

    They may be spread over axes other than "data".

    Raises:
      ValueError: for a leaf that is spread over the axis of the rows.
    """
    mesh = automatic(mesh)

    def leaf(x: Any) -> jax.Array:
        spec, where = PartitionSpec(), getattr(x, "sharding", None)
        if isinstance(where, NamedSharding) and where.mesh.axis_names == mesh.axis_names and (
                where.device_set == set(mesh.devices.flat)):
            spec = where.spec
        if AXIS in jax.tree.leaves(tuple(spec)):
            raise ValueError(f"Parameters must not be spread over the axis {AXIS!r}, got {spec}: "
                             "use another axis of the mesh.")
        return jax.device_put(x, NamedSharding(mesh, spec))

    return jax.tree.map(leaf, tree)


def agree(mesh: Mesh, **values: Any) -> None:
    """Refuses to go on unless all processes of the mesh hold the same values.

    With different keys they would draw different samples and add different noise to one sum, and
    what differs between their results would give it away.

    Args:
      mesh: a mesh of one process is agreed with itself.
      **values: bytes or pytrees of arrays; of them, only a hash leaves the process.

    Raises:
      ValueError: on every process, naming what differs.

    Examples:
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
        >>> jmm.placement.agree(mesh, key=jnp.zeros(2))  # silent if all processes have the same
    """
    if len(_processes(mesh)) == 1:
        return
    from jax.experimental import multihost_utils

    marks = np.stack([np.frombuffer(hashlib.sha256(_bytes(x)).digest(), np.uint8)
                      for x in values.values()])
    every = np.asarray(multihost_utils.process_allgather(marks))
    for k, name in enumerate(values):
        if (every[:, k] != marks[k]).any():
            raise ValueError(f"{name} must be equal on all processes, and is not: make it on one "
                             "and hand it to the others, a key by "
                             "multihost_utils.broadcast_one_to_all(jax.random.key_data(key)).")


def agree_on_shards(population: int, mesh: Mesh, **values: Any) -> None:
    """Refuses to go on unless all processes say alike which of them holds which rows.

    Or a row could be held, and counted, by two.

    Args:
      population: n.
      mesh: with the devices in their order.
      **values: as in `agree`.
    """
    agree(mesh, **{"population and mesh": repr((
        population, tuple(mesh.shape.items()), [d.id for d in mesh.devices.flat])).encode(),
        **values})


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    found = [str(jax.tree.structure(value)).encode()]
    for x in jax.tree.leaves(value):
        local = [x]
        if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
            # without the axis of the rows, every process holds all of it
            local = [s.data for s in sorted(x.addressable_shards, key=lambda s: str(s.index))]
        found += [repr((np.shape(x), jnp.result_type(x))).encode(),
                  *(np.asarray(part).tobytes() for part in local)]
    return b"|".join(found)
