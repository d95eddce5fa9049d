"""Optimistic steps with Halpern's anchor, an algorithm that is measured and not recommended.

    z_{t+1} = P_{W x V}(z_t + (z_1 - z_t) / (t + 1) - step_t (2 g_t - g_{t-1})),      g_0 = g_1.

Without noise the pull towards the start gives the last iterate a rate. With noise it does not.

Source: Diakonikolas, "Halpern iteration for near-optimal and parameter-free monotone inclusion and
strong solutions to variational inequalities", COLT 2020, arXiv:2002.08872; its pull, on the steps
of `jaxminimax.optimistic`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax import Problem, Query, Repeat, Saddle, averaging
from jaxminimax.algorithms.descent import EUCLIDEAN, UNIFORM, Averaging, started, stepped
from jaxminimax.base import tree
from jaxminimax.releases.sums import noisy_operator
from jaxminimax.types import pytree_dataclass


@pytree_dataclass
class Hyper:
    """As `optimistic.Hyper`, with Euclidean steps only."""

    query: Query
    step: Saddle
    iterations: int = jax.tree.static()
    averaging: Averaging = UNIFORM
    geometry: Saddle = jax.tree.static(default=EUCLIDEAN)


class State(NamedTuple):
    """As `optimistic.State`, and the start."""

    z: Saddle
    start: Saddle
    before: Saddle
    mean: averaging.Mean
    spent: jax.Array

    @property
    def average(self) -> Saddle:
        """The averaged iterate."""
        return tree.cast_like(self.mean.value, self.z)


def mechanism(hyper: Hyper) -> Repeat:
    """One release a round."""
    return Repeat(query=hyper.query, times=hyper.iterations)


def init(z: Saddle, hyper: Hyper) -> State:
    """The state before the first round."""
    z = started(z, hyper)
    return State(z, z, jax.tree.map(jnp.zeros_like, z), averaging.start_mean(z), jnp.int32(0))


def update(key: jax.Array, state: State, data: object, hyper: Hyper, problem: Problem) -> State:
    """One round."""
    t = state.spent + 1
    g = noisy_operator(key, mechanism(hyper), state.spent, problem, state.z, data)
    ahead = jax.tree.map(lambda a, b: 2 * a - jnp.where(t == 1, a, b), g, state.before)
    pulled = jax.tree.map(lambda x, y: x + (y - x) / (t + 1).astype(x.dtype), state.z, state.start)
    z = stepped(pulled, ahead, hyper.step, t, problem)
    mean = averaging.include(state.mean, state.z, hyper.averaging, t, hyper.iterations)
    return State(z, state.start, g, mean, t)
