"""DPZero: private zeroth-order training, which releases one number a round.

    s_i     = clip((l(w_t + r u_t; x_i) - l(w_t - r u_t; x_i)) / (2 r), C),
    w_{t+1} = w_t - step (sum_{i in B_t} s_i + N(0, (C z)^2)) / m  u_t,

with u_t uniform on the sphere of radius sqrt(d), drawn from a public key: directions say nothing of
the records.

Source: Zhang, Li, Thekumparampil, Oh and He, "DPZero: private fine-tuning of language models
without backpropagation", ICML 2024, arXiv:2310.09639. The update is written from knowledge of the
paper. Departures: Poisson samples, and the noise of this library.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.algorithms import descent

_DIRECTIONS = 20231  # the seed of the public directions


@jmm.types.pytree_dataclass
class Hyper:
    """The settings of a run: `query` clips and charges one number, the slope along a direction."""

    query: jmm.Query
    step: float
    radius: float  # r, of the two-point difference
    iterations: int = jax.tree.static()


State = descent.State
init = descent.init


def mechanism(hyper: Hyper) -> jmm.Repeat:
    """Describes one release of one number in every round."""
    return jmm.Repeat(query=hyper.query, times=hyper.iterations)


def update(key: jax.Array, state: State, data: Any, hyper: Hyper, problem: jmm.Problem) -> State:
    """Makes one round; the loss is that of the problem's saddle operator, with v empty."""
    t, (flat, back) = state.spent + 1, ravel_pytree(state.z.w)
    u = jax.random.normal(jax.random.fold_in(jax.random.key(_DIRECTIONS), t), flat.shape)
    u = u * jnp.sqrt(flat.size) / jnp.linalg.norm(u)

    def slope(z: Saddle, record: Any) -> Saddle:
        operator: Any = problem.operator
        ends = [operator.loss(back(z.v["w"] + sign * hyper.radius * z.v["u"]), (), record)
                for sign in (1, -1)]
        return Saddle((ends[0] - ends[1]) / (2 * hyper.radius), jax.tree.map(jnp.zeros_like, z.v))

    # the released player is the slope, a number; the other one carries the point, unreleased
    point = Saddle(jnp.zeros(()), {"w": flat, "u": u})
    s = jmm.release(key, mechanism(hyper), state.spent, jmm.Problem(slope), point, data).w
    z = problem.project(Saddle(back(flat - hyper.step * s * u), ()))
    mean = descent.include(state.mean, z, descent.TAIL, t, hyper.iterations)
    return state._replace(z=z, mean=mean, spent=t)
