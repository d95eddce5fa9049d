"""Planted bugs in what is read off the program of a record's operator, and what finds them.

A use of a parameter that a derivative comes back from is left out of the clipped sum; a print
inside an operator, which sees a record without noise, is let through.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.privacy.mutants.detectors import Finding
from jaxminimax import Saddle, clipped_sum, saddle_operator
from jaxminimax.base import programs
from jaxminimax.gradients.ghost import search
from jaxminimax.releases import record_isolation

AIMS: dict[str, tuple[Any, str]] = {
    "uses without a derivative": (search, "without_derivative"),
    "names without a derivative": (search, "_CONSTANT"),
    "calls of the host": (programs, "calls_host"),
    "programs inside operations": (programs, "equations"),
}


# --- bugs ---


def by_first_types(dead: Any) -> Any:
    """The first result's type decides, whichever results are read."""
    def changed(flat: Any) -> set[int]:
        steps = [x._replace(read=[0]) for x in flat.steps]
        counted: set[int] = dead(flat._replace(steps=steps))
        return counted

    return changed


def for_results(_: Any) -> Any:
    """Calls for an effect alone are no calls of the host."""
    return lambda equation: equation.primitive.name == "pure_callback"


def outer_ones(equations: Any) -> Any:
    """Programs that operations hold, but those of control flow, are not looked into."""
    def changed(program: Any) -> list[Any]:
        jaxpr = getattr(program, "jaxpr", program)
        return list(jaxpr.eqns) if hasattr(jaxpr, "eqns") else equations(program)

    return changed


# --- detectors ---


def sorted_scores(w: Any, v: Any, x: Any) -> jax.Array:
    """Of a sort of integers and floats, the floats are read."""
    return jax.lax.sort((jnp.arange(5), x @ w), num_keys=1)[1] @ v + jnp.sum(x @ w)


def attacked(w: Any, v: Any, x: Any) -> jax.Array:
    """A record that is moved by a derivative, from which another one comes back."""
    def loss(x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w) @ v

    return loss(x + jnp.tanh(jax.grad(loss)(x)))


def other_sums() -> Finding:
    """Largest difference of clipped sums by ghost norms from those by whole gradients."""
    rng = np.random.default_rng(0)
    w, v, x = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((4, 5), (5,), (6, 4)))
    largest = 0.0
    for loss in (sorted_scores, attacked):
        ghost, whole = (clipped_sum(saddle_operator(loss), Saddle(0.5, 2.0), strategy=how)(
            Saddle(w, v), x) for how in ("ghost", "vmap"))
        largest = max(largest, float(jnp.max(jnp.abs(ghost.w - whole.w))))
    return Finding(largest, 1e-4)


def told() -> Finding:
    """Operators that print a record and are let through: by themselves, and inside a solver."""
    def printed(x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x)
        return x

    def solved(x: jax.Array) -> jax.Array:
        return jax.lax.custom_linear_solve(lambda y: 2 * y, x, lambda _, b: printed(b) / 2)

    def of(tells: Callable[[jax.Array], jax.Array], z: Saddle, x: jax.Array) -> Saddle:
        return Saddle(tells(x), ())

    passed = 0
    for tells in (printed, solved):
        try:
            record_isolation.check(
                functools.partial(of, tells), Saddle(jnp.zeros(()), ()), np.zeros(20, np.float32))
            passed += 1
        except ValueError:
            pass
    return Finding(float(passed), 0.0)


BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    ("floats of a sort counted by its integers", "which uses of a parameter count",
     "uses without a derivative", by_first_types, other_sums, "difference of clipped sums"),
    ("a use behind tanh left out", "which uses of a parameter count", "names without a derivative",
     lambda names: {*names, "tanh"}, other_sums, "difference of clipped sums"),
    ("prints of an operator let through", "no output without noise", "calls of the host",
     for_results, told, "operators that print and pass"),
    ("programs that operations hold not looked into", "no output without noise",
     "programs inside operations", outer_ones, told, "operators that print and pass"),
)
