"""How often a program evaluates an operator: read off the compiled program, nothing assumed.

The operator, or a loss with its gradient, is marked as a function of its own; the traced program is
searched for the mark, and every place counts as many evaluations as it has batch entries, times the
lengths of the loops around it. A run takes one branch of a conditional, so the branch with the most
evaluations counts. Rows that only pad a sample count too: they are computed.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax import GroupProblem

_MARK = "operator_evaluation"


def marked(problem: Any) -> Any:
    """The same problem with an operator that `count` recognises."""
    def operator_evaluation(z: Any, x: Any) -> Any:
        # one number an evaluation, whatever the operator's shape
        one = sum(jnp.sum(a) for a in jax.tree.leaves((z, x)))
        return problem.operator(z, x), one

    call = jax.jit(operator_evaluation)
    return problem._replace(operator=lambda z, x: _kept(*call(z, x)))


def _kept(made: Any, one: jax.Array) -> Any:
    """What was made, as long as `one` is an output too: a program drops outputs without a use."""
    return jax.tree.map(lambda a: a + (0 * one).astype(a.dtype), made)


def marked_loss(problem: GroupProblem) -> GroupProblem:
    """The same problem with a loss that `count` recognises, for algorithms that differentiate it.

    A value and a gradient at one point are one evaluation.
    """
    def operator_evaluation(w: Any, x: Any) -> Any:
        one = sum(jnp.sum(a) for a in jax.tree.leaves((w, x)))
        return jax.value_and_grad(problem.loss)(w, x), one

    call = jax.jit(operator_evaluation)
    made = jax.custom_vjp(lambda w, x: _kept(*call(w, x))[0])
    made.defvjp(lambda w, x: _kept(*call(w, x)),
                lambda g, back: (jax.tree.map(lambda a: back * a, g), None))
    return problem._replace(loss=made)


def count(program: Callable[..., Any], *arguments: Any) -> int:
    """Evaluations of a marked operator in one call of `program`, every loop at its full length.

    Raises:
      ValueError: for an evaluation inside a loop whose length the program does not know.
    """
    closed = jax.make_jaxpr(program)(*arguments)
    return _of(closed.jaxpr)


def _of(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.params.get("name") == _MARK:
            total += math.prod(equation.outvars[-1].aval.shape)
            continue
        programs = [_of(sub) for sub in _inside(equation)]
        inner = max(programs) if equation.primitive.name == "cond" else sum(programs)
        if equation.primitive.name == "scan":
            inner *= equation.params["length"]
        elif equation.primitive.name == "while" and inner:
            raise ValueError("an operator is evaluated in a loop of unknown length")
        total += inner
    return total


def _inside(equation: Any) -> list[Any]:
    """The programs inside an equation."""
    result = []
    for value in equation.params.values():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(one, "jaxpr"):
                result.append(one.jaxpr)
            elif hasattr(one, "eqns"):
                result.append(one)
    return result
