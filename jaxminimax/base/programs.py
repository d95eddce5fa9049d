"""Reads traced programs: their equations, and the arrays that they close over."""

import itertools
import weakref
from typing import Any

import jax
import numpy as np
from jax.interpreters import partial_eval


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
