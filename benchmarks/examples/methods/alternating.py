"""Alternating DP-GDA: k private ascent steps of v, then one private descent step of w.

    v_{j+1} = P_V(v_j + step_v a_j),   a_j a release of grad_v f at (w_t, v_j),      j = 1, ..., k,
    w_{t+1} = P_W(w_t - step_w d_t),   d_t a release of grad_w f at (w_t, v_{k+1}).

Source: Nouiehed, Sanjabi, Huang, Lee and Razaviyayn, "Solving a class of non-convex min-max games
using iterative first order methods", NeurIPS 2019, arXiv:1902.08297, for the steps without noise.
Their paper has no private version: the releases, one for each step, are those of this library.
"""

from typing import Any

import jax

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.algorithms import descent
from jaxminimax.algorithms.descent import stepped
from jaxminimax.releases.sums import noisy_operator


@jmm.types.pytree_dataclass
class Hyper:
    """The settings of a run: `query` is of descent steps of w, `ascent` of ascent steps of v."""

    query: jmm.Query
    ascent: jmm.Query
    step: Saddle
    inner: int = jax.tree.static()  # k
    iterations: int = jax.tree.static()


State = descent.State
init = descent.init


def mechanism(hyper: Hyper) -> jmm.Sequence:
    """Describes k releases of the ascent and one of the descent in every round."""
    parts = (jmm.Repeat(query=hyper.ascent, times=hyper.inner * hyper.iterations),
             jmm.Repeat(query=hyper.query, times=hyper.iterations))
    return jmm.Sequence(parts=parts, in_turn=True, each=(hyper.inner, 1))


def update(key: jax.Array, state: State, data: Any, hyper: Hyper, problem: jmm.Problem) -> State:
    """Makes one round."""
    of_v, of_w = mechanism(hyper).parts
    t = state.spent // (hyper.inner + 1)

    def climb(j: jax.Array, v: Any) -> Any:
        z = Saddle(state.z.w, v)
        g = noisy_operator(key, of_v, hyper.inner * t + j, problem, z, data)
        return stepped(z, g, hyper.step, t + 1, problem).v

    z = Saddle(state.z.w, jax.lax.fori_loop(0, hyper.inner, climb, state.z.v))
    g = noisy_operator(key, of_w, t, problem, z, data)
    w = stepped(z, g, hyper.step, t + 1, problem).w
    mean = descent.include(state.mean, z, descent.TAIL, t + 1, hyper.iterations)
    return state._replace(z=Saddle(w, z.v), mean=mean, spent=state.spent + hyper.inner + 1)
