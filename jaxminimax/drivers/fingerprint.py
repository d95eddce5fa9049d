"""Fingerprints of a saved run, in a few keyed words: its rows, its problem, its optimisers.

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
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxminimax.base import checks, programs
from jaxminimax.base.types import AnyProblem, GroupProblem, PyTree, Saddle
from jaxminimax.placement import sent_rows, sharding
from jaxminimax.placement.host_data import HostData

KEY, RUN = b"a key in a ledger", b"a run in a ledger"  # what marks in ledgers are of
_LIBRARIES = ("jaxminimax", "jax", "optax", "chex", "numpy", "builtins")
# that compilers read, and XLA's flags
_VARIABLES = ("LIBTPU_INIT_ARGS", "JAX_DISABLE_MOST_OPTIMIZATIONS", "NPROC")
_CHUNK, _SENT = 2**20, 2**25  # bytes that are worked on, and fetched from a device, together
_ROWS = 2**14  # that are worked on together, at most
_WIDE = 2**12  # words of a row that are summed together


def secret(key: jax.Array) -> bytes:
    """Bytes that only the owner of a run's key can compute, apart from all its noise."""
    words = np.asarray(jax.random.key_data(key)).astype("<u4").tobytes()
    return hashlib.blake2b(words, digest_size=32, person=b"rows of a run").digest()


def of_run(key: jax.Array, z: Saddle, data: PyTree, hyper: Any,
           problem: AnyProblem) -> dict[str, str]:
    """The fingerprints of what a run reads and computes, by what to call them.

    Args:
      key: root key of the run.
      z: its initial point; shapes and dtypes count.
      data: leaves `[n, ...]`, `HostData` or on a mesh. Where several processes hold them, all must
        call this.
      hyper: the algorithm's `Hyper`.
      problem: see `Problem`, `GroupProblem`; functions that metrics alone call do not count.
    """
    own = secret(key)
    z = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), z)  # wherever it lies
    # the host's rows are refused later on
    grouped = isinstance(problem, GroupProblem) and not isinstance(
        data, HostData | sent_rows.HostShards)
    return {"data set, or order of its rows": of_rows(own, data, grouped=grouped),
            **_of_problem(own, z, data, problem),
            "optimiser, schedule or other function": mark(own, in_words(
                jax.tree.map(lambda _: None, hyper)).encode())}


def of_machine(own: bytes, problem: AnyProblem, mesh: Mesh | None) -> dict[str, str]:
    """Fingerprint of all that decides rounding: device, mesh, strategy, versions."""
    # where arrays are made that nobody placed
    device = min(jnp.zeros(()).devices(), key=lambda one: one.id) if mesh is None else (
        mesh.devices.flat[0])
    how = [getattr(problem.operator, name, None)
           for name in ("strategy", "microbatch", "memory", "precision")]
    words = (jax.__version__, importlib.metadata.version("jaxlib"), device.platform,
             device.device_kind, jnp.result_type(float).name,
             None if mesh is None else dict(mesh.shape), how,
             [checks.flags(), *(os.environ.get(name) or "" for name in _VARIABLES)],
             _instructions() if device.platform == "cpu" else None)
    return {"device, mesh, strategy or version of JAX": mark(own, repr(words).encode())}


@functools.cache
def _instructions() -> tuple[str, str]:
    """The instructions of a processor: compilers round as these do."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return platform.machine(), next((line for line in lines
                                     if line.lower().startswith(("flags", "features"))), "")


def mark(own: bytes, *parts: bytes) -> str:
    """Computes 128 bits of the bytes, which nobody can compute without `own`."""
    digest = hashlib.blake2b(key=own, digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


# --- rows ---


def of_rows(own: bytes, data: PyTree, *, grouped: bool = False) -> str:
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
        secrets = hashlib.shake_256(own + number.to_bytes(4, "little")).digest(
            16 * (min(words, _WIDE) + 1))
        start, *factors = np.frombuffer(secrets, "<u8").astype(np.uint64).reshape(-1, 2)
        factors_of.append((x.dtype, np.array(factors, np.uint64).reshape(-1, 2), start))
    for number, first, piece in _pieces(data, grouped):
        dtype, each, start = factors_of[number]
        with np.errstate(all="ignore"):  # no warning of what does not fit a narrower type
            total += _sums(piece.astype(dtype, copy=False), first, each, start)
    if isinstance(data, sharding.Sharded | sent_rows.HostShards):
        total = _over_processes(data.mesh, total)
    return mark(own, total.tobytes(), *(x.encode() for x in shapes))


def row_shapes(data: PyTree) -> PyTree:
    """Shapes of all rows, and dtypes as a device has them."""
    if isinstance(data, HostData | sent_rows.HostShards):
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
        yield from _on_host(data, [(0, data.count)], [True])
        return
    if isinstance(data, sent_rows.HostShards):
        yield from _on_host(data.data, data.stretches, data.counted)
        return
    rows = data.rows if isinstance(data, sharding.Sharded) else data
    for number, x in enumerate(jax.tree.leaves(rows)):
        if not isinstance(data, sharding.Sharded):
            x = x if np.ndim(x) else x[None]
            yield from _held(number, x, 0, x.shape[int(grouped)], grouped)
            continue
        for shard in x.addressable_shards:  # with padding at the end
            first = shard.index[int(grouped)].start or 0
            if shard.replica_id == 0 and first < data.population:
                yield from _held(number, shard.data, first, data.population, grouped)


def _held(number: int, x: Any, first: int, population: int,
          grouped: bool) -> Iterator[tuple[int, int, np.ndarray]]:
    """Hashes rows from number `first` on, of a population or of each group, without padding."""
    for group in range(len(x) if grouped else 1):
        rows = x[group] if grouped else x
        for at, piece in _chunks(rows, min(len(rows), population - first)):
            yield number, group * population + first + at, piece


def _on_host(data: HostData, stretches: list[tuple[int, int]],
             counted: list[bool]) -> Iterator[tuple[int, int, np.ndarray]]:
    """The rows on this host, as stretches of the population: first number, how many, and which."""
    begin, at_once = 0, max(1, min(_ROWS, _CHUNK // max(1, data.record_bytes)))
    for (first, count), mine in zip(stretches, counted, strict=True):
        for at in range(0, count if mine else 0, at_once):
            rows = data.take(np.arange(begin + at, begin + min(at + at_once, count)))
            for leaf, piece in enumerate(jax.tree.leaves(rows)):
                yield leaf, first + at, piece
        begin += count


def _chunks(x: Any, count: int) -> Iterator[tuple[int, np.ndarray]]:
    row = max(1, x.dtype.itemsize * int(np.prod(x.shape[1:])))
    sent, at_once = max(1, _SENT // row), max(1, min(_ROWS, _CHUNK // row))
    away = isinstance(x, jax.Array) and not _here(x)
    x = x if away else np.asarray(x)  # where the data are already
    for begin in range(0, count, sent):
        length = min(sent, count - begin)
        part = (np.asarray(jax.lax.dynamic_slice_in_dim(x, np.int32(begin), length)) if away
                else x[begin:begin + length])
        for first in range(0, length, at_once):
            yield begin + first, part[first:first + at_once]


def _here(x: jax.Array) -> bool:
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
    if len({device.process_index for device in mesh.devices.flat}) == 1:
        return total
    from jax.experimental import multihost_utils

    every = np.asarray(multihost_utils.process_allgather(total.view(np.uint32)))
    return np.ascontiguousarray(every).view(np.uint64).sum(0, dtype=np.uint64)


# --- functions ---


def _of_problem(own: bytes, z: Saddle, data: PyTree, problem: AnyProblem) -> dict[str, str]:
    grouped = isinstance(problem, GroupProblem)
    record = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1 + grouped:], x.dtype),
                          row_shapes(data))
    key = (jax.random.key(0, impl="threefry2x32"),) if problem.random else ()
    if isinstance(problem, GroupProblem):
        fields = {name: x for name, x in problem._asdict().items()
                  if not callable(x) and name != "random"}  # which the programs show
        return {"operator": _program(own, problem.operator, Saddle(z.w, ()), record, *key),
                "loss": _program(own, problem.loss, z.w, record, *key),
                "projection": _program(own, problem.project, z.w),
                "constant of the loss": mark(own, repr(fields).encode())}
    return {"operator": _program(own, problem.operator, z, record, *key),
            "public term": "" if problem.public is None else _program(own, problem.public, z, *key),
            "projection": _program(own, problem.project, z)}


def _program(own: bytes, function: Callable[..., Any], *arguments: Any) -> str:
    """Hashes a traced function: its equations, and the values of what it closes over."""
    traced = jax.make_jaxpr(function)(*arguments)
    return mark(own, plain(str(traced)).encode(), *(
        in_words(x).encode() for x in programs.constants(traced)))


# --- static values in words that are the same in every process: rules, functions, objects ---
#
# Functions count by their code, their defaults and what they close over; a user's also by the
# globals that they read, for a rule that is changed there is another rule; objects by what they
# hold.


def plain(text: str) -> str:
    """Removes addresses, colours and line breaks, which are other ones in every process."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return " ".join(re.sub(r" at 0x[0-9a-fA-F]+", "", text).split())


def in_words(x: Any, seen: frozenset[int] = frozenset()) -> str:
    """A static value in words: functions by their code, and by what they close over.

    Args:
      x: the value.
      seen: identities of the functions and objects that it is a part of.
    """
    def spelled(*parts: Any) -> str:
        return "(" + ", ".join(in_words(part, seen) for part in parts) + ")"

    if isinstance(x, np.ndarray | np.generic | jax.Array):
        if isinstance(x, jax.Array) and jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
            return f"key of {jax.random.key_impl(x)}" + spelled(jax.random.key_data(x))
        array = np.asarray(x)
        return f"{array.dtype.name}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
    writes: Any = type(x).__repr__
    bare = writes is object.__repr__ and hasattr(x, "__dict__")
    if bare or (callable(x) and not isinstance(x, type)):
        if id(x) in seen:  # a function that closes over itself
            return "again"
        seen = seen | {id(x)}
    name = f"{getattr(x, '__module__', '')}.{getattr(x, '__qualname__', type(x).__qualname__)}"
    match x:
        case functools.partial():
            return "partial" + spelled(x.func, x.args, x.keywords)
        case types.FunctionType():
            cells = tuple(cell.cell_contents for cell in x.__closure__ or ())
            return name + spelled(x.__code__, x.__defaults__, x.__kwdefaults__, cells,
                                  *_globals_of(x))
        case types.MethodType():
            return name + spelled(x.__func__, x.__self__)
        case types.CodeType():
            return f"{x.co_code.hex()} {x.co_names}" + spelled(*x.co_consts)
        case types.ModuleType():
            return x.__name__
        case dict():
            return "dict" + spelled(*x.items())
        case frozenset() | set():
            return "set" + str(sorted(in_words(one, seen) for one in x))
        case tuple() | list():
            return type(x).__qualname__ + spelled(*x)
    if callable(getattr(x, "__wrapped__", None)):  # jitted, or decorated otherwise
        return name + spelled(x.__wrapped__)
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return name + spelled(*((f.name, getattr(x, f.name)) for f in dataclasses.fields(x)),
                              *_own_methods(type(x)))
    if bare or (callable(x) and hasattr(x, "__dict__") and not isinstance(x, type)):
        return name + spelled(plain(repr(x)), vars(x), type(x).__call__ if callable(x) else None,
                              *_own_methods(type(x)))
    return plain(repr(x))


def _globals_of(function: types.FunctionType) -> list[tuple[str, Any]]:
    """The globals that a user's function reads, by name; other libraries have versions.

    Of modules that it reads, only their names count: keep rules, and their numbers, in the
    module that uses them.
    """
    if (function.__module__ or "").split(".")[0] in _LIBRARIES:
        return []
    return [(name, function.__globals__[name]) for name in sorted(_names(function.__code__))
            if not isinstance(function.__globals__.get(name), types.ModuleType | type | None)]


def _names(code: types.CodeType) -> set[str]:
    """Names of globals and attributes that code, or code within it, reads."""
    return set(code.co_names).union(*(
        _names(x) for x in code.co_consts if isinstance(x, types.CodeType)))


def _own_methods(kind: type) -> list[tuple[str, Any]]:
    """Methods, properties and plain numbers of a class that is not of a library, by name."""
    own = [base for base in kind.__mro__ if base is not object and
           base.__module__.split(".")[0] not in (*_LIBRARIES, "abc", "flax", "equinox", "haiku")]
    methods = [(name, getattr(value, "__func__", getattr(value, "fget", value)))
               for base in own for name, value in sorted(vars(base).items())
               if not name.startswith("__")]
    return [(name, value) for name, value in methods
            if isinstance(value, types.FunctionType | int | float | str | tuple)]
