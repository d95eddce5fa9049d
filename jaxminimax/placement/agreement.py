"""Checks that devices and processes of a mesh agree: on settings, key, state, copies of rows.

Along axes other than that of the rows, devices hold copies of them, and the compiler may cut the
work on a record between these devices in any way: by parameters, by layers, by records. A release
is private for any such cut if the copies are equal, for then it computes what one device would.
Where they differ it need not be: a norm made of one copy may weigh a gradient made of another,

    |c_i g(z; x_i)| <= C  for  c_i = min(1, C / |g(z; x_i)|),  and not for  c_i = min(1, C /
    |g(z; x_i')|)  with x_i' another copy,

so that the sum moves by more than 2 C when a record is replaced, as much as the largest gradient.
(If parts of one gradient came from different copies, and the norm from the same parts, the gradient
would be clipped to C; but the compiler chooses the parts.) So copies are compared word for word, on
the devices that hold them, once, by `sharding.shard`. The noise does not cover whether they agree:
that is a fact about the caller's files, and a difference shows that there is one.
"""

import functools
import hashlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxminimax.base.types import PyTree

AXIS = "data"


def processes(mesh: Mesh) -> set[int]:
    """Returns the numbers of the processes that have devices of the mesh."""
    return {device.process_index for device in mesh.devices.flat}


def agree(mesh: Mesh, **values: Any) -> None:
    """Refuses to go on unless all processes of the mesh hold the same values.

    With different keys they would draw different samples and add different noise to one sum, and
    the difference of their results would reveal it.

    Args:
      mesh: the mesh; a mesh of one process agrees with itself.
      **values: bytes or pytrees of arrays; of them, only a hash leaves the process. Of leaves that
        are spread over processes, copies of each part are compared.

    Raises:
      ValueError: on every process, naming what differs.

    Examples:
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
        >>> jmm.placement.agree(mesh, key=jnp.zeros(2))  # silent if all processes have the same
    """
    if len(processes(mesh)) == 1:
        return
    from jax.experimental import multihost_utils

    # equal hashes of 256 bits are of equal values
    digests = np.stack([np.frombuffer(hashlib.sha256(_bytes(x)).digest(), np.uint8)
                      for x in values.values()])
    all_digests = np.asarray(multihost_utils.process_allgather(digests))
    for k, (name, value) in enumerate(values.items()):
        # all processes see all hashes, and judge alike: all take part in the comparison of copies,
        # which waits for every one of them, or none does, and all raise or none
        spread = [x for x in jax.tree.leaves(value) if _is_spread(x)]
        if not ((all_digests[:, k] == digests[k]).all() and _copies_agree(mesh, spread)):
            raise ValueError(f"{name} must be equal on all processes, and is not: make it on one "
                             "and hand it to the others, a key by "
                             "multihost_utils.broadcast_one_to_all(jax.random.key_data(key)).")


def agree_on_shards(population: int, mesh: Mesh, shards: int | None, **values: Any) -> None:
    """Refuses to go on unless all processes agree on the rows that each of them holds.

    Otherwise two processes could hold and count one row.

    Args:
      population: n.
      mesh: the mesh, with the devices in their order.
      shards: the number of shards, as passed to `sharding.shard`.
      **values: bytes or pytrees of arrays, as in `agree`.
    """
    agree(mesh, **{"population and mesh": repr((
        population, tuple(mesh.shape.items()), [d.id for d in mesh.devices.flat], shards)).encode(),
        **values})


def check_copies(mesh: Mesh, rows: PyTree) -> None:
    """Refuses rows on a mesh if devices that should hold the same rows hold different ones.

    Raises:
      ValueError: on every process.
    """
    if not _copies_agree(mesh, jax.tree.leaves(rows)):
        raise ValueError("Copies of the rows differ between devices along other axes of the mesh "
                         f"than {AXIS!r}: all processes along them must load the same rows "
                         "own_rows(population, mesh), in the same way.")


def _as_neighbours(x: jax.Array, axes: list[str], mesh: Mesh) -> jax.Array:
    """Returns True if an array equals that of the next device along these axes."""
    rows = x.reshape(x.shape[0] if x.ndim else 1, -1)
    # 16 MiB of a device's rows are sent to its neighbour together
    size = max(1, min(rows.shape[0], 2**24 // max(1, rows.shape[1] * x.dtype.itemsize)))

    def step(block: jax.Array, equal: jax.Array) -> jax.Array:
        words = _words(jax.lax.dynamic_slice_in_dim(rows, block * size, size))
        for axis in axes:  # the last rows may be compared twice
            count = mesh.shape[axis]
            ring = [(k, (k + 1) % count) for k in range(count)]
            equal &= jnp.all(jax.lax.ppermute(words, axis, ring) == words)
        return equal

    return jax.lax.fori_loop(0, -(-rows.shape[0] // size), step, jnp.array(True))


def _words(x: jax.Array) -> jax.Array:
    """The bits of an array, as unsigned integers of at most 32."""
    # as numbers a NaN differs from itself, and 0 equals -0, which divides to another infinity
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint8)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag])
    kind = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    return jax.lax.bitcast_convert_type(x, kind)


def _copies_agree(mesh: Mesh, leaves: list[jax.Array]) -> bool:
    """Returns True if replicas hold the same numbers, bit for bit; the same on all devices.

    Every device sends its words to the next one along each axis over which they are not spread,
    in a ring: if all that neighbours hold is equal, all copies are.
    """
    shardings = [x.sharding for x in leaves]
    specs = [sharding.spec for sharding in shardings if isinstance(sharding, NamedSharding)
             and sharding.mesh.axis_names == mesh.axis_names]
    if len(specs) < len(leaves):
        raise ValueError("Arrays of several processes must be spread over the axes of mesh, got "
                         f"{shardings}.")
    if all(math.prod(mesh.shape[axis] for axis in jax.tree.leaves(tuple(spec)))
           == mesh.devices.size for spec in specs):
        return True  # spread over all axes: no two devices hold the same part
    leaves = [jax.device_put(x, NamedSharding(mesh, spec))
              for x, spec in zip(leaves, specs, strict=True)]

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=tuple(specs), out_specs=PartitionSpec(),
                       check_vma=False)
    def all_agree(*leaves: jax.Array) -> jax.Array:
        agreed = jnp.array(True)
        for x, spec in zip(leaves, specs, strict=True):
            axes = [axis for axis in mesh.axis_names
                     if axis not in jax.tree.leaves(tuple(spec)) and mesh.shape[axis] > 1]
            if axes:
                agreed &= _as_neighbours(x, axes, mesh)
        # the minimum over all devices, so that all processes have the same answer
        return jax.lax.pmin(agreed.astype(jnp.int32), mesh.axis_names) == 1

    return bool(all_agree(*leaves))


def _is_spread(x: Any) -> bool:
    """Returns True if no process holds all of an array."""
    return isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated)


def _bytes(value: Any) -> bytes:
    """Returns the bytes of a value, or the layout of an array that is spread over processes."""
    if isinstance(value, bytes):
        return value
    # shapes and dtypes too: equal bytes of other types would be other numbers
    parts = [str(jax.tree.structure(value)).encode()]
    for x in jax.tree.leaves(value):
        parts.append(repr((np.shape(x), jnp.result_type(x))).encode())
        parts.append(repr(x.sharding).encode() if _is_spread(x) else np.asarray(x).tobytes())
    return b"|".join(parts)
