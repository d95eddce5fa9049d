"""Fingerprints of a saved run, in a few keyed words: its rows, its round, its machine.

A run that goes on with other rows, or with the same in another order, may read a record twice where
one reading is charged; with another operator, it repeats with other numbers what a crash made it
forget, under the same noise. So all of it is written next to the saved state, in 128 bits each that
only the owner of the run's key can compute: nobody else can test guesses about the data by them.

    rows      sum over rows i of mix(mix(i + s) ^ sum_j k_j x_ij)  mod 2^64, twice, then BLAKE2b

with the 32-bit words x_ij of a row and secret 64-bit k_j and s. Two rows that differ agree in both
inner sums with probability 2^-66 at most, and `mix` is a bijection. A sum over rows does not ask
which device or process held a row, so a run may go on with its data in other places; it takes one
pass over the data, a chunk at a time. Of records in groups, row j of group i has number
i n_max + j, wherever it is.

    round     the program of `init` and of one `update`, as JAX traces them, and BLAKE2b of it

with every array and number that they close over, by value. So loss, operator, public term,
projection, optimiser, schedule, sampling and algorithm count by what they compute, wherever their
code and numbers are kept, and in every process alike. What the trace does not hold is not seen:
what a callback computes on the host, and what the round does not read, such as a metric, or a
number of the problem that is used in sentences alone. A function that iterates over a set of
strings computes in another order in every process, where its run is refused: sort the set.
"""

import functools
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxminimax.accounting.ledger import RunMark
from jaxminimax.base import checks, programs, types
from jaxminimax.base.types import PyTree, Saddle
from jaxminimax.mechanism import Query, Repeat
from jaxminimax.placement import agreement, sharding
from jaxminimax.placement.host_data import HostData
from jaxminimax.releases import sums
from jaxminimax.releases.watch import update

ROUND = "operator, loss, public term, projection, optimiser, schedule, start or observe"
_CHUNK, _SENT = 2**20, 2**25  # bytes that are worked on, and fetched from a device, together
_ROWS = 2**14  # that are worked on together, at most
_WIDE = 2**12  # words of a row that are summed together


def secret(key: jax.Array) -> bytes:
    """Bytes that only the owner of a run's key can compute, apart from all its noise."""
    words = np.asarray(jax.random.key_data(key)).astype("<u4").tobytes()
    return hashlib.blake2b(words, digest_size=32, person=b"rows of a run").digest()


def hash_run(key: jax.Array, z: Saddle, data: PyTree, hyper: Any,
             algorithm: types.Algorithm[Any, Any], problem: types.AnyProblem,
             observe: Callable[[Any], PyTree] = lambda state: ()) -> dict[str, str]:
    """The fingerprints of what a run reads and computes, by what to call them.

    Args:
      key: root key of the run, or those of all runs of a sweep.
      z: its initial point; shapes and dtypes count.
      data: leaves `[n, ...]`, `HostData` or on a mesh. Where several processes hold them, all must
        call this.
      hyper: the algorithm's `Hyper`, of one run; its numbers are compared elsewhere.
      algorithm: a module such as `sgda`.
      problem: see `Problem`, `GroupProblem`. Its round is traced for rows on one device, by one
        strategy: where rows lie, and how sums are cut, do not count.
      observe: of a sweep; what is kept of a state.
    """
    hash_key, in_groups = secret(key), isinstance(problem, types.GroupProblem)
    on_host = isinstance(data, HostData)
    marks = {"data set, or order of its rows": hash_rows(
        hash_key, data, grouped=in_groups and not on_host)}
    if in_groups and on_host:  # refused later on
        return marks
    return marks | {ROUND: hash_round(
        hash_key, key.dtype, z, data, hyper, algorithm, problem, observe)}


def hash_round(hash_key: bytes, key: Any, z: Saddle, data: PyTree, hyper: Any,
               algorithm: types.Algorithm[Any, Any], problem: types.AnyProblem,
               observe: Callable[[Any], PyTree] = lambda state: ()) -> str:
    """The fingerprint of the program of one round.

    Args:
      hash_key: of the run's key, see `secret`.
      key: dtype of the key.
      z: as of `hash_run`.
      data: as of `hash_run`.
      hyper: as of `hash_run`.
      algorithm: as of `hash_run`.
      problem: as of `hash_run`.
      observe: as of `hash_run`.
    """
    problem = problem._replace(operator=types.with_strategy(problem.operator, "vmap"))
    z = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), z)  # wherever it lies

    def initial_state(z: Saddle, hyper: Any) -> Any:
        return algorithm.init(z, hyper)

    def one_round(key: jax.Array, z: Saddle, state: Any, rows: PyTree, hyper: Any) -> Any:
        # the run itself is refused for its numbers
        state = update(algorithm, key, state, rows, hyper, problem, numbered=False)
        return initial_state(z, hyper), state, observe(state)

    traced = jax.make_jaxpr(one_round)(jax.ShapeDtypeStruct((), key), z,
                                   jax.eval_shape(initial_state, z, hyper), row_shapes(data), hyper)
    return mark(hash_key, *_words(traced))


def _words(program: Any) -> Iterator[bytes]:
    """A traced program, equal in every process: its text, and what it closes over by value."""
    # without colours, line breaks, addresses, and the order of a set
    text = re.sub(r"\x1b\[[0-9;]*m| at 0x[0-9a-fA-F]+", "", str(program))
    text = re.sub(r"frozenset\(\{(.*?)\}\)", lambda match: str(sorted(match[1].split(", "))), text)
    yield " ".join(text.split()).encode()
    for x in programs.constants(program):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            yield str(jax.random.key_impl(x)).encode()
            x = jax.random.key_data(x)
        yield f"{x.dtype.name}{x.shape}".encode() + np.asarray(x).tobytes()


def hash_release(hash_key: bytes) -> dict[str, str]:
    """Fingerprint of how sums get noise: the program of one release, of one number of a record."""
    problem = types.Problem(lambda z, record: Saddle(record * z.w, None))
    query = Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=2)
    traced = jax.make_jaxpr(lambda *x: sums.release(*x[:3], problem, *x[3:]))(
        jax.random.key(0, impl="threefry2x32"), Repeat(query=query, times=1), jnp.int32(0),
        Saddle(jnp.ones(1), ()), jnp.ones((2, 1)))
    return {"program of a release": mark(hash_key, *_words(traced))}


def hash_machine(hash_key: bytes, problem: types.AnyProblem | None = None,
                 mesh: Mesh | None = None) -> dict[str, str]:
    """Fingerprint of all that decides rounding: device, mesh, strategy, versions."""
    # where arrays are made that nobody placed
    device = min(jnp.zeros(()).devices(), key=lambda x: x.id) if mesh is None else (
        mesh.devices.flat[0])
    strategy = [getattr(getattr(problem, "operator", None), name, None)
           for name in ("strategy", "microbatch", "memory", "precision")]
    # packages that round the point that a round begins at; variables that compilers read
    variables = ("LIBTPU_INIT_ARGS", "JAX_DISABLE_MOST_OPTIMIZATIONS", "NPROC")
    words = (*map(importlib.metadata.version, ("jax", "jaxlib", "numpy", "optax")), device.platform,
             device.device_kind, jnp.result_type(float).name,
             None if mesh is None else dict(mesh.shape), strategy,
             [checks.flags(), *(os.environ.get(name) or "" for name in variables)],
             _instructions() if device.platform == "cpu" else None)
    return {"device, mesh, strategy or version of a package": mark(hash_key, repr(words).encode())}


@functools.cache
def _instructions() -> tuple[str, str]:
    """The instructions of a processor: compilers round as these do."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return platform.machine(), next((line for line in lines
                                     if line.lower().startswith(("flags", "features"))), "")


def mark(hash_key: bytes, *contents: bytes) -> str:
    """Computes 128 bits of the bytes, which nobody can compute without `hash_key`."""
    digest = hashlib.blake2b(key=hash_key, digest_size=16)
    for content in contents:
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def mark_of_run(hash_key: bytes, promise: bytes, *, resumable: bool) -> RunMark:
    """Marks by which a ledger recognises a run: of its key, and of what it promised besides."""
    return RunMark(key=mark(hash_key, b"a key in a ledger"),
                   run=mark(hash_key, b"a run in a ledger", promise), resumable=resumable)


# --- rows ---


def hash_rows(hash_key: bytes, data: PyTree, *, grouped: bool = False) -> str:
    """The fingerprint of all rows, in their order, with shapes and dtypes; or of those of groups.

    Raises:
      ValueError: for rows on a mesh that are grouped where the problem's are not, or the reverse.
    """
    if isinstance(data, sharding.Sharded) and data.grouped != grouped:
        raise ValueError(f"data are spread over the mesh with grouped={data.grouped}, but the "
                         f"problem's records are{' not' * (not grouped)} in groups: "
                         f"shard(data, mesh, grouped={grouped}).")
    lead = 1 + grouped
    total, shapes, factors_of = np.zeros(2, np.uint64), [], []
    for number, (path, x) in enumerate(jax.tree_util.tree_leaves_with_path(row_shapes(data))):
        shapes.append(repr((jax.tree_util.keystr(path), x.shape, x.dtype.name)))
        words = -(-x.dtype.itemsize * int(np.prod(x.shape[lead:])) // 4)
        secrets = hashlib.shake_256(hash_key + number.to_bytes(4, "little")).digest(
            16 * (min(words, _WIDE) + 1))
        start, *factors = np.frombuffer(secrets, "<u8").astype(np.uint64).reshape(-1, 2)
        factors_of.append((x.dtype, np.array(factors, np.uint64).reshape(-1, 2), start))
    for number, first, piece in _pieces(data, grouped):
        dtype, leaf_factors, start = factors_of[number]
        with np.errstate(all="ignore"):  # no warning of what does not fit a narrower type
            total += _sums(piece.astype(dtype, copy=False), first, leaf_factors, start)
    if isinstance(data, sharding.Sharded):
        total = _over_processes(data.mesh, total)
    return mark(hash_key, total.tobytes(), *(x.encode() for x in shapes))


def row_shapes(data: PyTree) -> PyTree:
    """Shapes of all rows, and dtypes as a device has them."""
    if isinstance(data, HostData):
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(
            (data.population, *x.shape), _dtype(x)), data.record)
    if isinstance(data, sharding.Sharded):  # without the padding
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(
            (*data.lead, *x.shape[len(data.lead):]), _dtype(x)), data.rows)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), _dtype(x)), data)


def _dtype(x: Any) -> np.dtype:
    """The dtype of an array as a device has it."""
    return jnp.result_type(x.dtype.newbyteorder("=") if isinstance(x, np.ndarray) else x)


def _pieces(data: PyTree, grouped: bool) -> Iterator[tuple[int, int, np.ndarray]]:
    """Chunks of the rows that this process answers for: leaf, number of the first row, rows."""
    if isinstance(data, HostData):
        at_once = max(1, min(_ROWS, _CHUNK // max(1, data.record_bytes)))
        for first in range(0, data.population, at_once):
            gathered = data.take(np.arange(first, min(first + at_once, data.population)))
            for number, piece in enumerate(jax.tree.leaves(gathered)):
                yield number, first, piece
        return
    rows = data.rows if isinstance(data, sharding.Sharded) else data
    for number, x in enumerate(jax.tree.leaves(rows)):
        if not isinstance(data, sharding.Sharded):
            x = x if np.ndim(x) else x[None]
            yield from _leaf_pieces(number, x, 0, x.shape[int(grouped)], grouped)
            continue
        for shard in x.addressable_shards:  # with padding at the end
            first = shard.index[int(grouped)].start or 0
            if shard.replica_id == 0 and first < data.population:
                yield from _leaf_pieces(number, shard.data, first, data.population, grouped)


def _leaf_pieces(number: int, x: Any, first: int, population: int,
                 grouped: bool) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yields rows from number `first` on, of a population or of each group, without padding."""
    for group in range(len(x) if grouped else 1):
        rows = x[group] if grouped else x
        for offset, piece in _chunks(rows, min(len(rows), population - first)):
            yield number, group * population + first + offset, piece


def _chunks(x: Any, count: int) -> Iterator[tuple[int, np.ndarray]]:
    row = max(1, x.dtype.itemsize * int(np.prod(x.shape[1:])))
    sent, at_once = max(1, _SENT // row), max(1, min(_ROWS, _CHUNK // row))
    on_device = isinstance(x, jax.Array) and not _on_host(x)
    x = x if on_device else np.asarray(x)  # where the data are already
    for begin in range(0, count, sent):
        length = min(sent, count - begin)
        fetched = (np.asarray(jax.lax.dynamic_slice_in_dim(x, np.int32(begin), length)) if on_device
                else x[begin:begin + length])
        for first in range(0, length, at_once):
            yield begin + first, fetched[first:first + at_once]


def _on_host(x: jax.Array) -> bool:
    """Returns whether the host can look at an array without a copy."""
    return {device.platform for device in x.devices()} == {"cpu"}


def _sums(rows: np.ndarray, first: int, factors: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Both sums over these rows, `[2]`; their words times `factors` `[w, 2]`, mixed and added."""
    count, size = len(rows), rows.dtype.itemsize * int(np.prod(rows.shape[1:]))
    flat = np.ascontiguousarray(rows).view(np.uint8).reshape(count, size)
    wide = max(1, len(factors))
    blocks = max(1, -(-size // (4 * wide)))
    if size != 4 * wide * blocks:
        flat = np.pad(flat, ((0, 0), (0, 4 * wide * blocks - size)))
    words = flat.view("<u4").reshape(count * blocks, wide).astype(np.uint64)
    inner = 0 if not len(factors) else np.stack(
        [np.einsum("rw,w->r", words, np.ascontiguousarray(k)) for k in factors.T], -1)
    place = np.arange(first * blocks, (first + count) * blocks, dtype=np.uint64)
    return _mix(_mix(place[:, None] + start) ^ inner).sum(0, dtype=np.uint64)


def _mix(x: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit numbers in which every bit depends on all (MurmurHash3's last step)."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = (x ^ (x >> np.uint64(33))) * np.uint64(factor)
    return x ^ (x >> np.uint64(33))


def _over_processes(mesh: Mesh, total: np.ndarray) -> np.ndarray:
    if len(agreement.processes(mesh)) == 1:
        return total
    from jax.experimental import multihost_utils

    totals = np.asarray(multihost_utils.process_allgather(total.view(np.uint32)))
    return np.ascontiguousarray(totals).view(np.uint64).sum(0, dtype=np.uint64)
