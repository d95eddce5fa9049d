"""Data on the devices of a mesh, and the state of a run with them.

Rows are spread over the axis "data" of a mesh in their order, m = ceil(n / S) to each of S shards;
padding in the last ones is no record and never counts. Of records in groups, `[p, n_max]`, every
group's rows are spread so. There is one shard for each of the D devices along the axis, or a number
that D divides: then a device holds S / D of them, and the run has the same shapes on whatever
number of devices. `shard_sums` says how a release reads them. Where several
processes take part, all must hold the same key, state and settings, and those that share a shard
the same rows: `shard` and `agreement` check this. Nothing here defends the processes against each
other: they exchange exact sums.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxminimax.base import arguments, checks
from jaxminimax.base.types import PyTree, pytree_dataclass
from jaxminimax.placement.agreement import AXIS, agree_on_shards, check_copies, processes
from jaxminimax.placement.host_data import HostData

EVERYWHERE = PartitionSpec()


@pytree_dataclass
class Sharded:
    """A data set whose rows are spread over the axis "data" of a mesh; made by `shard`.

    Attributes:
      rows: leaves `[S m, ...]`, m rows a shard, in the order of the population; rows from
        `population` on are padding and never count.
      population: n, rows that are records; of groups n_max, the most that one has.
      mesh: a mesh with automatic axes. Axes other than "data" hold copies of the rows.
      grouped: whether leaves are `[p, D m, ...]`, m rows of each group a shard.
      shards: S, if it was chosen; None for one for each device along the axis "data".

    You may pass it to `run`, `sweep` and `update` as well, but only `fit` checks that several
    processes agree.

    Examples:
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
        >>> rows = jmm.placement.shard({"x": np.ones((8, 3))}, mesh)
        >>> isinstance(rows, jmm.placement.Sharded), rows.rows["x"].shape
        (True, (8, 3))
    """

    rows: PyTree
    population: int = jax.tree.static()
    mesh: Mesh = jax.tree.static()
    grouped: bool = jax.tree.static(default=False)
    shards: int | None = jax.tree.static(default=None)

    @property
    def lead(self) -> tuple[int, ...]:
        """The lengths of the axes that number the records, without the padding of shards."""
        groups = {np.shape(x)[0] for x in jax.tree.leaves(self.rows)} if self.grouped else set()
        return (*groups, self.population)


def automatic(mesh: Mesh) -> Mesh:
    """Returns `mesh` with automatic axes, along which the compiler places arrays."""
    if AXIS not in mesh.axis_names:
        raise ValueError(f"mesh must have an axis {AXIS!r} to spread rows over, got "
                         f"{mesh.axis_names}: jax.make_mesh((jax.device_count(),), ({AXIS!r},)).")
    axis_types = (AxisType.Auto,) * len(mesh.axis_names)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=axis_types)


def _check_processes(mesh: Mesh) -> None:
    # what processes compare is gathered from all there are: those of a mesh of some would wait for
    # the others for ever
    process_ids = processes(mesh)
    if process_ids not in ({jax.process_index()}, set(range(jax.process_count()))):
        raise ValueError(f"mesh must have devices of this process alone or of all "
                         f"{jax.process_count()}, got those of {sorted(process_ids)}.")


def count_shards(mesh: Mesh, shards: int | None = None) -> int:
    """Returns S, a chosen number of shards, or one for each device along the axis of the rows.

    Raises:
      ValueError: for a number that the devices do not divide.
    """
    devices = mesh.shape[AXIS]
    if shards is None:
        return devices
    checks.count("shards", shards)
    if shards % devices:
        raise ValueError(f"shards must be a multiple of the {devices} devices along the axis "
                         f"{AXIS!r} of the mesh, got {shards}.")
    return int(shards)


def shard_rows(population: int, mesh: Mesh, shards: int | None = None) -> int:
    """The number of rows of a shard, padding included.

    Raises:
      ValueError: for more rows than 32-bit numbers can count, or a number of shards that the
        devices do not divide.
    """
    checks.count("population", population)
    count = count_shards(mesh, shards)
    size = -(-population // count)  # m = ceil(n / S)
    if size * count >= 2**31:
        raise ValueError(f"data must have fewer than 2**31 rows, got {population}: row numbers "
                         "have 32 bits.")
    return size


def own_rows(population: int, mesh: Mesh, *, shards: int | None = None) -> np.ndarray:
    """The numbers of the rows that this process holds, sorted, int64; all if it is alone.

    Every record must be one row, and the order of the rows must be public and the same for all
    processes. Processes along other axes than "data" are to hold the same rows.

    Args:
      population: n.
      mesh: a mesh with an axis "data".
      shards: S, a multiple of the devices along that axis; None for one shard a device.

    Examples:
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
        >>> jmm.placement.own_rows(5, mesh).tolist()  # of a single process, all
        [0, 1, 2, 3, 4]
    """
    mesh = automatic(mesh)
    _check_processes(mesh)
    size, count = shard_rows(population, mesh, shards), count_shards(mesh, shards)
    # along the axis of the rows device d has the shards d S / D, ..., (d + 1) S / D - 1; a process
    # holds a shard if one of its devices does, as the only one or as a copy along other axes
    devices = mesh.shape[AXIS]
    holders = np.moveaxis(mesh.devices, mesh.axis_names.index(AXIS), 0).reshape(devices, -1)
    mine = [np.arange(k * size, (k + 1) * size) for k in range(count) if jax.process_index() in {
        device.process_index for device in holders[k * devices // count]}]
    rows = np.concatenate([np.zeros(0, np.int64), *mine])
    return rows[rows < population]  # from n on there are no records


def shard(data: PyTree, mesh: Mesh, *, population: int | None = None,
          grouped: bool = False, shards: int | None = None) -> Sharded:
    """Spreads rows over the devices of a mesh.

    Args:
      data: leaves `[n, ...]`, or `[p, n, ...]` if `grouped`. If the mesh spans several processes,
        each gives the rows `own_rows(population, mesh)` and no others; or all give global arrays
        whose axis of rows is padded at its end to the next multiple of S.
      mesh: a mesh with an axis "data" of D devices.
      population: n; needed if there are several processes. n need not be a multiple of D.
      grouped: whether the rows are those of p groups, as `problems.by_group` lays them out: n is
        then the most that one has, and a process gives the rows `own_rows(n, mesh)` of each.
      shards: S, a multiple of D; None for D. Devices sum a chosen number of shards one after
        another, each in the same shapes, so runs are the same on any number of devices that divides
        it. Groups have no chosen number.

    Raises:
      ValueError: for a mesh without the axis, data with another number of rows than this process is
        to hold, copies of rows along other axes that differ, processes that disagree on the
        population, the number of shards or the order of devices, or a number of shards that D does
        not divide.

    Examples:
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
        >>> rows = jmm.placement.shard(np.ones((8, 3)), mesh)
        >>> rows.population
        8
    """
    if isinstance(data, Sharded):
        raise ValueError("data are spread over a mesh already.")
    mesh = automatic(mesh)
    _check_processes(mesh)
    leaves = jax.tree.leaves(data)
    axis = int(grouped)
    lengths = {np.shape(x)[:1 + axis] for x in leaves}
    if len(lengths) != 1 or len(min(lengths)) <= axis:
        raise ValueError(f"data must share {'two leading axes' if grouped else 'one leading axis'}"
                         f", got leading axes {lengths}.")
    count = min(lengths)[axis]
    if population is None:
        if len(processes(mesh)) > 1:
            raise ValueError("population must be given where the mesh spans several processes: "
                             "shard(rows, mesh, population=n) with this process's "
                             "own_rows(n, mesh).")
        population = count
    if grouped and shards is not None:
        raise ValueError(f"shards={shards} is for one population: rows of groups are spread one "
                         "shard to a device, leave it None.")
    size = shard_rows(population, mesh, shards)
    all_rows = size * count_shards(mesh, shards)
    agree_on_shards(population, mesh, shards)
    spread = NamedSharding(mesh, rows_spec(grouped))
    everywhere = [isinstance(x, jax.Array) and not x.is_fully_addressable for x in leaves]
    if any(everywhere):
        if not all(everywhere) or count != all_rows:
            raise ValueError(f"Global arrays must have {all_rows} rows, {size} for each of "
                             f"{all_rows // size} shards with padding at the end, got {count}.")
        rows = jax.tree.map(lambda x: jax.device_put(x, spread), data)
        check_copies(mesh, rows)
        return Sharded(rows=rows, population=population, mesh=mesh, grouped=grouped, shards=shards)
    mine = own_rows(population, mesh, shards=shards)
    if count != len(mine):
        raise ValueError(f"data have {count} rows, but this process is to hold {len(mine)} of "
                         f"population={population}: give rows own_rows(population, mesh).")

    def leaf(x: Any) -> jax.Array:
        # one process has all rows, and no shard has padding
        if all_rows == population and len(processes(mesh)) == 1:
            return jax.device_put(x, spread)
        host = np.asarray(x)
        lead, trailing = host.shape[:axis], host.shape[axis + 1:]

        def piece(index: Any) -> np.ndarray:
            # rows first, ..., stop - 1 of the population are this device's. `mine` is sorted, so
            # those that are records are a range of it; zeros stand for the others, and whatever
            # stood there would not count, as rows from n on are masked by their number
            first, stop, _ = index[axis].indices(all_rows)
            begin, end = np.searchsorted(mine, [first, stop])
            padding = np.zeros((*lead, stop - first - (end - begin), *trailing), host.dtype)
            records = host[:, begin:end] if grouped else host[begin:end]
            return np.concatenate([records, padding], axis)

        return jax.make_array_from_callback((*lead, all_rows, *trailing), spread, piece)

    with np.errstate(all="ignore"):  # as in `arrays`
        rows = jax.tree.map(leaf, data)
    check_copies(mesh, rows)
    return Sharded(rows=rows, population=population, mesh=mesh, grouped=grouped, shards=shards)


def on_mesh(data: PyTree, mesh: Mesh | None, shards: int | None = None, *,
            grouped: bool = False) -> PyTree:
    """Spreads `data` over `mesh`, unless they already are or there is none.

    Args:
      data: see `fit`.
      mesh: see `fit`. Without one, a number of shards is spread over a mesh of one device.
      shards: as in `shard`.
      grouped: as in `shard`.

    Raises:
      ValueError: as `shard`; for data that are spread over another mesh or number of shards; for
        `HostData` with a mesh or a number of shards.
    """
    if isinstance(data, Sharded):
        if mesh is not None and automatic(mesh) != data.mesh:
            raise ValueError(f"data are spread over {data.mesh}, not over {mesh}.")
        if shards not in (None, data.shards):
            raise ValueError(f"data are spread over shards={data.shards}, not over {shards}.")
        return data
    if mesh is None and shards is None:
        return data
    if isinstance(data, HostData):
        raise ValueError(f"HostData are for one device, and got mesh={mesh} and shards={shards}: "
                         "leave both out, or give the arrays themselves, of several processes by "
                         "placement.shard(rows, mesh, population=n), which keeps them in the "
                         "memory of the mesh.")
    if mesh is None:
        mesh = jax.make_mesh((1,), (AXIS,), devices=jax.local_devices()[:1])
    return shard(data, mesh, shards=shards, grouped=grouped)


def rows_spec(grouped: bool) -> PartitionSpec:
    """Returns how the rows, or those of every group, are spread."""
    return PartitionSpec(None, AXIS) if grouped else PartitionSpec(AXIS)


def in_shards(function: Callable[..., PyTree], mesh: Mesh, in_specs: tuple[PartitionSpec, ...],
              out_specs: PartitionSpec = EVERYWHERE) -> Callable[..., PyTree]:
    """Applies `function` to the rows that each device along the axis of the rows holds.

    JAX's check of varying types is off on purpose: with varying types, the derivative of a shard's
    loss by a point that is the same for all shards would itself be a sum over them, made before
    anything is clipped.
    """
    return jax.shard_map(function, mesh=mesh, axis_names={AXIS}, in_specs=in_specs,
                         out_specs=out_specs, check_vma=False)


def held_rows(data: Sharded) -> int:
    """The number of rows of a device, or of each group on it, padding included."""
    rows: int = jax.tree.leaves(data.rows)[0].shape[int(data.grouped)]
    return rows // data.mesh.shape[AXIS]


def first_rows(mesh: Mesh, size: int) -> jax.Array:
    """Returns the number of the first row of each device, for `size` rows a device."""
    return jnp.arange(mesh.shape[AXIS], dtype=jnp.int32) * size


def check_records(data: PyTree) -> None:
    """Refuses data that are no arrays of numbers, see `arguments.records`; `HostData` pass."""
    if not isinstance(data, HostData):
        arguments.records(data)


def arrays(data: PyTree) -> PyTree:
    """Converts NumPy's arrays to JAX's, and returns other data as they are.

    Raises:
      ValueError: for `HostData`, which `fit` alone reads.
    """
    with np.errstate(all="ignore"):  # a warning would reveal that records do not fit
        return data if isinstance(data, Sharded) else jax.tree.map(jnp.asarray, data)


def as_rows(data: PyTree) -> PyTree:
    """Returns the `arrays` of data that are whole on their device, or spread by `shard`.

    Raises:
      ValueError: for rows that were spread over devices in another way, and for `HostData`.
    """
    for x in () if isinstance(data, Sharded) else jax.tree.leaves(data):
        if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and not (
                x.is_fully_replicated):
            raise ValueError(f"data are in parts on {len(x.sharding.device_set)} devices: give "
                             "placement.shard(data, mesh), over an axis 'data' of the mesh, so "
                             "that each device clips and sums its own rows.")
    return arrays(data)


def shards_of(data: PyTree, shards: int | None) -> int | None:
    """Returns the chosen number of shards; for data that are already cut, theirs."""
    return data.shards if isinstance(data, Sharded) and shards is None else shards


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
    """Puts `tree` on every device of the mesh; leaves that are already spread stay so.

    They may be spread over axes other than "data".

    Raises:
      ValueError: for a leaf that is spread over the axis of the rows.
    """
    mesh = automatic(mesh)

    def leaf(x: Any) -> jax.Array:
        spec, sharding = PartitionSpec(), getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.axis_names == mesh.axis_names and (
                sharding.device_set == set(mesh.devices.flat)):
            spec = sharding.spec  # copies along the axis of the rows, parts along others
        if AXIS in jax.tree.leaves(tuple(spec)):
            raise ValueError(f"Parameters must not be spread over the axis {AXIS!r}, got {spec}: "
                             "use another axis of the mesh.")
        if len(processes(mesh)) > 1 and getattr(x, "is_fully_addressable", True):
            # `agree` compares what processes hold; device_put would, too, and refuse NaN
            host = np.asarray(x)
            return jax.make_array_from_callback(
                host.shape, NamedSharding(mesh, spec), lambda index: host[index])
        return jax.device_put(x, NamedSharding(mesh, spec))

    return jax.tree.map(leaf, tree)


def on_host(tree: PyTree) -> PyTree:
    """Copies to NumPy's arrays; all processes call it if leaves are spread over them."""
    from jax.experimental import multihost_utils

    def leaf(x: Any) -> Any:
        if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
            return multihost_utils.process_allgather(x, tiled=True)
        return jax.device_get(x)

    return jax.tree.map(leaf, tree)
