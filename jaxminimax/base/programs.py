"""Compiles programs with the effort that is worth it, and reads traced ones.

A table's programs run for milliseconds, and XLA takes seconds to compile them. Compiled *briefly*,
without LLVM's optimisations and with XLA's older generator of code, they take a quarter of that
time, and rounds take up to seven times as long to run. Floating-point numbers are rounded at other
places, so that weights differ in the last digits. What privacy needs of a compiler is the same:
integers are exact, and no option allows arithmetic that IEEE 754 does not. The tests that hold
sums, norms and noise against a compiler run under both sets of options
(`JAXMINIMAX_TEST_EFFORT=brief`).

The older generator compares row numbers of 8 bits in their own type, so a lookup by them goes
wrong. So only programs of the library's own tables are compiled briefly, and never a user's loss.
Shapes and settings decide, and nothing else: a run that goes on has the program that it began with.

No program is stored here. JAX's own cache on disk, where a user has one, is named by the lowered
program and the compiler's options. So a process in which the library, JAX or a number of theirs was
changed leaves nothing that an unchanged process would load. A name made of files would not do:
tracing reads memory.
"""

import contextlib
import contextvars
import functools
import itertools
import math
import pathlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.interpreters import partial_eval

BRIEF: dict[str, Any] = {
    "xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1}
# numbers that a brief program computes at most: of one release, most of which are in products that
# no option changes, and of many rounds together; beyond, one fit loses what it gains
BRIEF_NUMBERS = (2**30, 2**28)
EFFORT = "compiler's effort"
_WANTED: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "whether programs are compiled briefly", default=False)
_TRACED_FOR, _CONTEXTS = jax.make_user_context(), itertools.count(1)


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
    return max(sum(map(math.prod, shapes)), records * wide) * rounds <= BRIEF_NUMBERS[rounds > 1]


@contextlib.contextmanager
def briefly(brief: bool) -> Iterator[None]:
    """Has each `Compiled` that is called within compiled briefly, if `brief`.

    It is for programs of the library's own tables alone; False for those of others within.
    """
    token = _WANTED.set(brief)
    try:
        yield
    finally:
        _WANTED.reset(token)


@contextlib.contextmanager
def traced_anew() -> Iterator[None]:
    """Has programs traced within that were traced outside, or in another context of this kind."""
    with _TRACED_FOR(next(_CONTEXTS)):
        yield


def effort() -> dict[str, Any]:
    """Returns what a saved run notes of how it is compiled: nothing as usual."""
    return {EFFORT: BRIEF} if _WANTED.get() else {}


class Compiled:
    """A function with a program by JAX's own options, and with those of the library's tables.

    Args:
      function: to compile.
      **jit_options: for `jax.jit`.
    """

    def __init__(self, function: Callable[..., Any], **jit_options: Any) -> None:
        self._usual = jax.jit(function, **jit_options)
        self._brief = functools.cache(
            lambda: jax.jit(function, compiler_options=_options(), **jit_options))

    def __call__(self, *args: Any) -> Any:
        """Calls the program that is wanted; see `briefly`. As a part of another one, the usual."""
        return self._program(args)(*args)

    def trace(self, *args: Any) -> Any:
        """Traces the program that is wanted, as `jax.jit` does."""
        return self._program(args).trace(*args)

    def _program(self, args: Any) -> Any:
        return self._brief() if _WANTED.get() and not is_traced(args) else self._usual


@functools.cache
def _options() -> dict[str, Any] | None:
    """Returns `BRIEF` where the compiler has all of these options; none on accelerators."""
    try:
        jax.jit(lambda x: x + 1, compiler_options=BRIEF)(np.float32(0))
    except jax.errors.JaxRuntimeError:
        return None
    return BRIEF if jax.default_backend() == "cpu" else None


def scan_sizes(params: dict[str, Any]) -> tuple[int, int]:
    """The numbers of constants and of carries of a scan, by its parameters.

    Raises:
      ValueError: for parameters that none of the known versions of JAX has.
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    parts: Any = params["ft_in"].unpack() if "ft_in" in params else ()  # from JAX 0.11 on
    if len(parts) != 3:
        raise ValueError("This version of JAX describes the carries of a scan in another way than "
                         "those that are known: take one that pyproject.toml allows.")
    return len(parts[0]), len(parts[1])


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
    calls = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint",
             "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin", "call")
    params = equation.params if equation.primitive.name in calls else {}
    program = next((params[x] for x in ("jaxpr", "call_jaxpr", "fun_jaxpr") if x in params), None)
    inputs = getattr(program, "jaxpr", program).invars if program else None
    return program if inputs is not None and len(inputs) == len(equation.invars) else None


def calls_host(equation: Any) -> bool:
    """Returns whether an operation hands its operands to code of the host, for a result or not."""
    return any(x in equation.primitive.name for x in ("callback", "print", "ffi_call"))


def line(equation: Any) -> str:
    """Names the innermost line outside of JAX and of the library that made an operation."""
    frames = getattr(equation.source_info.traceback, "frames", ())
    libraries = (str(pathlib.Path(jax.__file__).parent), str(pathlib.Path(__file__).parents[1]),
                 "<frozen")
    theirs = [x for x in frames if not x.file_name.startswith(libraries)]
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
