"""Private bilevel optimisation by a penalty, with first-order releases only.

    min over x of f(x, y*(x)),    y*(x) = argmin over y of g(x, y),

by way of  L(x, y, z) = f(x, y) + c (g(x, y) - g(x, z)),  which is smallest in y near y* and largest
in z at y*. A round makes k private steps of y and z, and then one of x:

    y <- y - a (d_y L released),   z <- z + a (d_z L released),      k times,
    x <- x - b (d_x f + c (d_x g(x, y) - d_x g(x, z)) released).

Source: Kornowski, "Differentially private bilevel optimization", 2024, arXiv:2409.19800. Its
abstract and reviews were read, which say that it builds on penalties and on first-order steps
alone; the formulas are those of such methods without privacy (Kwon, Kwon, Wright and Nowak, 2023,
arXiv:2301.10945) and are our reading of it. Departures: y and z go on from the round before, and
noise is calibrated to all releases together.
"""

from typing import Any

import jax

import jaxminimax as jmm
from benchmarks.examples.methods import only
from jaxminimax import Saddle
from jaxminimax.algorithms import descent
from jaxminimax.algorithms.descent import stepped
from jaxminimax.releases.sums import noisy_operator


@jmm.types.pytree_dataclass
class Hyper:
    """The settings of a run: `query` is of the k inner steps of y and z, `outer` of x."""

    query: jmm.Query
    outer: jmm.Query
    step: Saddle  # of y and of z
    step_outer: float
    inner: int = jax.tree.static()  # k
    iterations: int = jax.tree.static()


State = descent.State
init = descent.init  # of w = {"x": ..., "y": ...} and v = z


def mechanism(hyper: Hyper) -> jmm.Sequence:
    """Describes k releases for y and z, and one for x, in every round."""
    parts = (jmm.Repeat(query=hyper.query, times=hyper.inner * hyper.iterations),
             jmm.Repeat(query=hyper.outer, times=hyper.iterations))
    return jmm.Sequence(parts=parts, in_turn=True, each=(hyper.inner, 1))


def update(key: jax.Array, state: State, data: Any, hyper: Hyper, problem: jmm.Problem) -> State:
    """Makes one round."""
    inner, outer = mechanism(hyper).parts
    t = state.spent // (hyper.inner + 1)
    lower, upper = only(problem, "y"), only(problem, "x")

    def solve(j: jax.Array, z: Saddle) -> Saddle:
        g = noisy_operator(key, inner, hyper.inner * t + j, lower, z, data)
        return Saddle({**stepped(z, g, hyper.step, t + 1, problem).w, "x": z.w["x"]},
                      stepped(z, g, hyper.step, t + 1, problem).v)

    z = jax.lax.fori_loop(0, hyper.inner, solve, state.z)
    g = noisy_operator(key, outer, t, upper, z, data)
    x = stepped(z, g, Saddle(hyper.step_outer, 0.0), t + 1, problem).w["x"]
    z = Saddle({**z.w, "x": x}, z.v)
    mean = descent.include(state.mean, z, descent.TAIL, t + 1, hyper.iterations)
    return state._replace(z=z, mean=mean, spent=state.spent + hyper.inner + 1)
