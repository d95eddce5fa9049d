"""Algorithms of other papers, composed of the library, one file each; `contests` compares them."""

from typing import Any

import jax

import jaxminimax as jmm


def only(problem: jmm.Problem, *names: str) -> jmm.Problem:
    """Returns the problem whose operator is that of some entries of w alone, and zero elsewhere."""
    operator: Any = problem.operator

    def of_some(w: Any, v: Any, record: Any) -> jax.Array:
        held = jax.lax.stop_gradient(w)
        return operator.loss({**held, **{name: w[name] for name in names}}, v, record)

    return problem._replace(operator=jmm.saddle_operator(of_some))
