"""Looking into traced programs: their equations, and the arrays that they close over."""

import itertools
import weakref
from typing import Any

import jax
import numpy as np


def walk(program: Any) -> list[tuple[Any, int]]:
    """A traced program, its equations and the programs inside these, each before what is in it.

    With each, how often it is run: equations in a scan once an iteration, all others once.
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
    """Every equation of a traced program, those of programs inside it included."""
    return [x for x, _ in walk(program) if hasattr(x, "primitive")]


# A program never changes, so one walk through it serves every call of it.
_CONSTANTS: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def constants(program: Any) -> list[Any]:
    """The arrays that a traced program and those inside it close over, in their order."""
    if program in _CONSTANTS:
        return _CONSTANTS[program]
    arrays: list[Any] = []
    for x, _ in walk(program):
        arrays += [y.val for y in x.invars if np.ndim(getattr(y, "val", 0))] if hasattr(
            x, "primitive") else getattr(x, "consts", ())
    _CONSTANTS[program] = arrays
    return arrays


def is_traced(*trees: Any) -> bool:
    """Returns whether one of their numbers is not known yet: inside `jit`, `vmap` and the like."""
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(trees))
