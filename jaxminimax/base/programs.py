"""Compiles programs with the effort that is worth it, and reads traced ones.

A table's programs run for milliseconds, and XLA takes seconds to compile them. Compiled *briefly*,
without LLVM's optimisations and with XLA's older generator of code, they take a quarter of that
time, and up to four times as long to run. Floating-point numbers are rounded at other places, so
that weights differ in the last digits. What privacy needs of a compiler is the same: integers are
exact, and no option allows arithmetic that IEEE 754 does not. The tests that hold sums, norms and
noise against a compiler run under both sets of options (`JAXMINIMAX_TEST_EFFORT=brief`).

The older generator compares row numbers of 8 bits in their own type, so a lookup by them goes
wrong. So only programs of the library's own tables are compiled briefly, and never a user's loss.
Shapes and settings decide, and nothing else: a run that goes on has the program that it began with.

JAX finds a program on disk after it traced and lowered a function, which takes longer than loading
it does. So programs of the library's own tables are stored by a name that says all of what tracing
reads: the library's files, versions, settings, static values, shapes and the processor. What has no
such name, such as a user's function, an array that a function closes over, or data on several
devices, is left to JAX. Nothing is stored by a process that may run other code than these files:
a test that replaces a function of the library, or one that began before an upgrade. A stored
program is code, so that only its user may write it; data are its arguments and not in it.
"""

import contextlib
import contextvars
import enum
import functools
import gc
import hashlib
import importlib.util
import inspect
import itertools
import math
import pathlib
import pickle
import platform
import struct
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache
from jax.interpreters import partial_eval

from jaxminimax.base import checks, own_files

BRIEF: dict[str, Any] = {
    "xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1}
BRIEF_NUMBERS = 2**25  # that a brief program computes at most, in all its rounds
EFFORT = "compiler's effort"
_WANTED: contextvars.ContextVar[bool | None] = contextvars.ContextVar(
    "whether programs of a table are compiled briefly; None elsewhere", default=None)
_PACKAGES = ("jax", "jaxlib", "numpy", "optax")
_NAMED = (*_PACKAGES, "jaxminimax", "builtins", "functools")  # modules of what has words
# what functions and classes in modules of the library are of, unless somebody replaced them
_OWN = {*_NAMED, "jaxlib", "sklearn", *sys.stdlib_module_names} - {"unittest"}
_LIBRARIES = (str(pathlib.Path(jax.__file__).parent), str(pathlib.Path(__file__).parents[1]),
              "<frozen")
_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint",
          "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin", "call")
_PROGRAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # names of their programs
_MOST = 64  # stored programs, of one or two megabytes
# an upgrade later on writes files that this process does not run; ten seconds for clocks of file
# servers, and for file systems that keep whole seconds
_LOADED = time.time_ns() - 10**10


def is_brief(data: Any, point: Any, rounds: int = 1) -> bool:
    """Returns whether a program of a table is compiled briefly, by shapes and rounds alone.

    Args:
      data: leaves `[n, ...]`, or `[p, n, ...]` of groups, all of which a round reads.
      point: parameters; a round computes at most as many numbers of a record as it has, or they.
      rounds: of the program.
    """
    shapes = [np.shape(x) for x in jax.tree.leaves(data)]
    records = max(math.prod(shape[:2]) for shape in shapes)
    wide = sum(math.prod(np.shape(x)) for x in jax.tree.leaves(point))
    return max(sum(map(math.prod, shapes)), records * wide) * rounds <= BRIEF_NUMBERS


@contextlib.contextmanager
def briefly(wanted: bool | None) -> Iterator[None]:
    """Has each `Compiled` that is called within stored, and compiled briefly if that is wanted.

    It is for programs of the library's own tables alone; None for those of others within.
    """
    before = _WANTED.set(wanted)
    try:
        yield
    finally:
        _WANTED.reset(before)


def effort() -> dict[str, Any]:
    """Returns what a saved run notes of how it is compiled: nothing as usual."""
    return {EFFORT: BRIEF} if _WANTED.get() else {}


class Compiled:
    """A function with a program by JAX's own options, and with those of the library's tables.

    Args:
      function: to compile.
      **how: for `jax.jit`: tuples `static_argnames` and `donate_argnames`.
    """

    def __init__(self, function: Callable[..., Any], **how: Any) -> None:
        self._function, self._how = function, how
        self._usual = jax.jit(function, **how)
        self._brief = functools.cache(lambda: jax.jit(function, compiler_options=_options(), **how))
        self._stored: dict[pathlib.Path, Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        """Calls the program that is wanted; see `briefly`. As a part of another one, the usual."""
        brief = _WANTED.get()
        if brief is None or is_traced(args):
            return self._usual(*args)
        arguments = dict(zip(inspect.signature(self._function).parameters, args, strict=False))
        static = {name: arguments.pop(name) for name in self._how.get("static_argnames", ())
                  if name in arguments}
        leaves, tree = jax.tree.flatten(arguments)
        path = _path(leaves, [self._function, brief, tree, static])
        if path is None:
            return (self._brief() if brief else self._usual)(*args)
        if path not in self._stored:
            self._stored[path] = _loaded(path, len(leaves)) or self._compiled(
                path, arguments, static, _options() if brief else None)
        return self._stored[path](*leaves)

    def trace(self, *args: Any) -> Any:
        """The traced program by JAX's own options; None where a table's is wanted."""
        return self._usual.trace(*args) if _WANTED.get() is None else None

    def _compiled(self, path: pathlib.Path, arguments: dict[str, Any], static: dict[str, Any],
                  options: dict[str, Any] | None) -> Callable[..., Any]:
        """Compiles a program of the leaves of arguments, and stores it unless it calls the host."""
        def flat(*leaves: Any) -> Any:
            return self._function(**jax.tree.unflatten(tree, leaves), **static)

        flat.__name__ = self._function.__name__
        places, tree = jax.tree.flatten_with_path(arguments)
        donated = tuple(k for k, (where, _) in enumerate(places)
                        if where[0].key in self._how.get("donate_argnames", ()))
        with _to_store():
            traced = jax.jit(flat, donate_argnums=donated, compiler_options=options).trace(
                *(x for _, x in places))
            program = traced.lower().compile()
        if not traced.jaxpr.effects:
            _store(path, program)
        return program


@functools.cache
def _options() -> dict[str, Any] | None:
    """Returns `BRIEF` where the compiler has all of these options; none on accelerators."""
    try:
        jax.jit(lambda x: x + 1, compiler_options=BRIEF)(np.float32(0))
    except jax.errors.JaxRuntimeError:
        return None
    return BRIEF if jax.default_backend() == "cpu" else None


def walk(program: Any) -> list[tuple[Any, int]]:
    """Yields a traced program, its equations and the programs inside these, outer ones first.

    Each comes with the number of its runs: equations in a scan run once an iteration, all others
    once.
    """
    passed: list[tuple[Any, int]] = []
    waiting = [(program, 1)]
    while waiting:
        x, times = waiting.pop()
        if hasattr(x, "eqns") or hasattr(x, "jaxpr"):
            passed.append((x, times))
            inner, times_inner = getattr(x, "jaxpr", x).eqns, times
        elif hasattr(x, "primitive"):
            passed.append((x, times))
            inner = list(x.params.values())
            times_inner = times * (x.params["length"] if x.primitive.name == "scan" else 1)
        elif isinstance(x, dict | tuple | list):
            inner, times_inner = list(x.values()) if isinstance(x, dict) else x, times
        else:
            continue
        waiting.extend(zip(reversed(inner), itertools.repeat(times_inner)))
    return passed


def equations(program: Any) -> list[Any]:
    """Yields every equation of a traced program, also of programs inside it."""
    return [x for x, _ in walk(program) if hasattr(x, "primitive")]


def called(equation: Any) -> Any:
    """The program that an operation such as a `jit` runs once, with its operands; else None."""
    params = equation.params if equation.primitive.name in _CALLS else {}
    program = next((params[x] for x in _PROGRAMS if x in params), None)
    inputs = getattr(program, "jaxpr", program).invars if program else None
    return program if inputs is not None and len(inputs) == len(equation.invars) else None


def calls_host(equation: Any) -> bool:
    """Returns whether an operation hands its operands to code of the host, for a result or not."""
    return any(x in equation.primitive.name for x in ("callback", "print", "ffi_call"))


def line(equation: Any) -> str:
    """Names the innermost line outside of JAX and of the library that made an operation."""
    frames = getattr(equation.source_info.traceback, "frames", ())
    theirs = [x for x in frames if not x.file_name.startswith(_LIBRARIES)]
    return f"{pathlib.Path(theirs[0].file_name).name}:{theirs[0].line_num}" if theirs else "?"


def without_unread(program: Any) -> Any:
    """The jaxpr of a closed one, without equations that none of its results reads.

    Rules for derivatives leave such equations, as of a convolution's derivative by its kernel.
    """
    return partial_eval.dce_jaxpr(program.jaxpr, [True] * len(program.out_avals), True)[0]


# A program never changes, so one walk through it serves every call of it.
_CONSTANTS: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def constants(program: Any) -> list[Any]:
    """Returns the arrays that a traced program and those inside it close over, in order."""
    if program in _CONSTANTS:
        return _CONSTANTS[program]
    arrays: list[Any] = []
    for x, _ in walk(program):
        arrays += [y.val for y in x.invars if np.ndim(getattr(y, "val", 0))] if hasattr(
            x, "primitive") else getattr(x, "consts", ())
    _CONSTANTS[program] = arrays
    return arrays


def is_traced(*trees: Any) -> bool:
    """Returns True if one of their numbers is a tracer, inside `jit`, `vmap` and the like."""
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(trees))


# --- programs of tables on disk ---


def _path(leaves: list[Any], static: Any) -> pathlib.Path | None:
    """Returns where a program is stored; None without a folder, a name, or on other devices.

    Args:
      leaves: its arguments, of which shapes and types count.
      static: all else that it is made of.
    """
    settings = {name: getattr(jax.config, name, None) for name in jax.config.values}
    base, device = settings["jax_compilation_cache_dir"], jax.devices()[0]
    folder = _folder(base) if base and settings["jax_enable_compilation_cache"] else None
    if folder is None or device.platform != "cpu" or any(
            x.devices() != {device} for x in leaves if isinstance(x, jax.Array)):
        return None
    kinds = [(x.shape, str(x.dtype), x.weak_type) for x in map(jax.typeof, leaves)]
    try:
        words = _words([kinds, static, settings, _versions()])
    except (OSError, TypeError, RecursionError):
        return None
    return folder / hashlib.sha256(words.encode()).hexdigest()


@functools.cache
def _folder(base: str) -> pathlib.Path | None:
    """Returns a folder of this user alone, in the one where JAX keeps programs; None without."""
    folder = pathlib.Path(base, "tables")
    with contextlib.suppress(OSError, ValueError):
        if sys.platform != "win32" and "://" not in base:  # owners are known, and no URL
            folder.parent.mkdir(parents=True, exist_ok=True)  # as JAX does
            own_files.make(folder)
            own_files.check(folder, secret=True)
            return folder
    return None


def _sources() -> list[pathlib.Path]:
    """Returns the files of the library: sources, and the tables of the noise.

    Raises:
      OSError: if one cannot be read, or need not be what this process loaded: it was written later,
        or after Python compiled a file of its size and second, which Python does not notice.
    """
    own = pathlib.Path(__file__)
    paths = [x for x in own.parents[1].rglob("*.[pn]*") if x.parent.name != "__pycache__"]
    for path in (own, *paths):
        stats, cached = path.stat(), pathlib.Path(importlib.util.cache_from_source(path))
        stale = cached.exists() and cached.stat().st_mtime_ns < stats.st_mtime_ns
        if stale:  # and Python would compile it anew
            header = struct.unpack("<III", cached.read_bytes()[4:16].ljust(12, b"1"))
            stale = header[0] or header == (0, int(stats.st_mtime) % 2**32, stats.st_size % 2**32)
        if stats.st_ctime_ns > _LOADED or stale:
            raise OSError(f"{path} may be newer than what this process runs.")
    return sorted(paths)


def _module(x: Any) -> str:
    """Returns the module that a function, a class or an object's class is of."""
    # `functools.wraps` gives a user's function the module of the library's that it wraps
    return str(x.__globals__.get("__name__") if isinstance(x, types.FunctionType) else
               x.__module__ if isinstance(x, type) else type(x).__module__)


def _is_replaced() -> bool:
    """Returns whether anything in a module of the library, or in its classes, is another's."""
    spaces: list[Any] = [vars(module) for name, module in sys.modules.copy().items()
                         if name.partition(".")[0] == "jaxminimax"]
    spaces += [vars(x) for space in spaces for x in space.values()
               if isinstance(x, type) and _module(x).partition(".")[0] == "jaxminimax"]
    values = [x for space in spaces for x in space.values() if not isinstance(x, types.ModuleType)]
    for name in ("fget", "__func__", "func", "__wrapped__"):  # what stands for a function
        values += [getattr(x, name) for x in values if hasattr(x, name)]
    packages = {_module(x).partition(".")[0] for x in values} - _OWN
    return not all(x.startswith("namedtuple_") for x in packages)


@functools.cache
def _versions() -> str:
    """Returns what decides how a function is traced and compiled, apart from its arguments.

    Raises:
      OSError: if the files of the library cannot be read, or need not be what this process loaded.
    """
    files = hashlib.sha256()
    for path in _sources():
        content = path.read_bytes()
        files.update(f"{path.parent.name}/{path.name} {len(content)} ".encode() + content)
    processor = {line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                 if line.startswith(("model name", "flags", "Features"))}
    return _words([files.hexdigest(), sorted(processor), platform.machine(), sys.version,
                   checks.flags(),
                   *(importlib.import_module(name).__version__ for name in _PACKAGES)])


def _words(x: Any) -> str:
    """Returns a value in words, equal in every process, and for other values other ones.

    A function of a library counts by its place in the source, its defaults and what it closes over.

    Raises:
      TypeError: for what has no such words: an array, or what is not of a library.
    """
    kind, module = x if isinstance(x, types.FunctionType | type) else type(x), _module(x)
    package = module.partition(".")[0]
    parts: Any = None
    match x:
        case _ if package not in _NAMED:
            pass
        case None | bool() | int() | str():
            return repr(x)
        case float():
            parts = [x.hex()]  # NumPy's has another type, which tracing keeps
        case types.FunctionType():
            # each instruction's lines and columns, packed
            places = x.__code__.co_firstlineno, x.__code__.co_linetable.hex()
            parts = [places, x.__defaults__, x.__kwdefaults__,
                     [cell.cell_contents for cell in x.__closure__ or ()]]
        case type():
            parts = []
        case enum.Enum():
            parts = [x.name]
        case functools.partial():
            parts = [x.func, x.args, x.keywords]
        case jax.tree_util.PyTreeDef():
            parts = [x.num_leaves, x.node_data(), x.children()]
        case tuple() | list():
            parts = x
        case dict():
            parts = x.items()
        case _ if package == "jaxminimax":
            parts = [vars(x)]
    if parts is None:
        raise TypeError(f"{kind} has no words.")
    return f"{module}.{kind.__qualname__}({', '.join(map(_words, parts))})"


def _loaded(path: pathlib.Path, count: int) -> Callable[..., Any] | None:
    """Loads a program of so many arguments; None if there is none, or a damaged one."""
    tree = jax.tree.structure(((0,) * count, {}))
    try:
        program, results = pickle.loads(own_files.read_bytes(path, secret=True))
        return serialize_executable.deserialize_and_load(program, tree, results)
    except Exception:  # whatever is wrong with it, it is compiled anew
        return None


def _store(path: pathlib.Path, program: Any) -> None:
    """Writes a compiled program, and removes the oldest ones; writes nothing if it cannot be.

    Nor does it write one that may be of other code than its name says.
    """
    with contextlib.suppress(OSError, RuntimeError, TypeError, ValueError):
        if _is_replaced() or not _sources():
            return
        content, _, results = serialize_executable.serialize(program)
        own_files.write(path, pickle.dumps((content, results)), mode=0o600)
        stored = sorted(path.parent.glob("[0-9a-f]" * 64), key=lambda one: one.stat().st_mtime)
        for one in stored[:-_MOST]:
            one.unlink(missing_ok=True)


@contextlib.contextmanager
def _to_store() -> Iterator[None]:
    """Has JAX compile, as a program that it loads from its own cache cannot be stored again.

    Python collects no garbage within: tracing makes little, and searching takes a tenth of it.
    """
    collects = gc.isenabled()
    gc.disable()
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()
        if collects:
            gc.enable()
