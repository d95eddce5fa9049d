"""Looking into traced programs: their equations, and the arrays that they close over."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np


def equations(program: Any) -> Iterator[Any]:
    """Every equation of a traced program, those of programs inside it included."""
    for equation in getattr(program, "jaxpr", program).eqns:
        yield equation
        for inner in inside(equation.params):
            yield from equations(inner)


def constants(program: Any) -> Iterator[Any]:
    """The arrays that a traced program and those inside it close over, in their order."""
    yield from getattr(program, "consts", ())
    for equation in getattr(program, "jaxpr", program).eqns:
        yield from (x.val for x in equation.invars if np.ndim(getattr(x, "val", 0)))
        for inner in inside(equation.params):
            yield from constants(inner)


def is_traced(*trees: Any) -> bool:
    """Whether one of their numbers is not known yet: inside `jit`, `vmap` and the like."""
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(trees))


def inside(value: Any) -> Iterator[Any]:
    """The traced programs in the parameters of an equation."""
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from inside(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from inside(one)
