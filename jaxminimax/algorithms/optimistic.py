"""Noisy optimistic descent-ascent: extragradient's stability for one release a round.

    min over w in W, max over v in V, of  F(w, v) = (1/n) sum_i f(w, v; x_i) + r(w, v).

Each step extrapolates from the last two operators, the released ones with their public terms:

    g_t     = (sum_{i in B_t} clip(g(z_t; x_i)) + Gaussian) / m  +  (grad_w r, -grad_v r)(z_t)
    z_{t+1} = P_{W x V}(z_t - step_t (2 g_t - g_{t-1})),   g_0 = g_1,      t = 1, ..., T.

On a bilinear game, where the last iterate of plain descent-ascent spirals outwards, this one comes
in to the saddle. The noise of a step is that of 2 g_t - g_{t-1}, five times the variance of one
release; the sum over rounds has each release once.

Source: Daskalakis, Ilyas, Syrgkanis and Zeng, "Training GANs with Optimism", ICLR 2018,
arXiv:1711.00141, Section 2, after Popov, "A modification of the Arrow-Hurwicz method for search of
saddle points", 1980. Departures: both read the operator itself, here it is clipped per record,
noised and charged; the iterates are projected; g_0 = g_1 makes the first step a plain one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.algorithms.common import averaging
from jaxminimax.algorithms.common.averaging import UNIFORM, Averaging
from jaxminimax.algorithms.common.steps import started, stepped
from jaxminimax.base import tree
from jaxminimax.base.types import Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.door.noisy_operator import noisy_operator
from jaxminimax.mechanism import Query, Repeat


@pytree_dataclass
class Hyper:
    """Numbers are leaves, so they may be traced and vmapped over; what shapes the program is not.

    Attributes:
      query: clip norms, noise multipliers, sampling, population.
      step: per player, a number or a schedule `t -> step` (`schedules.Decay`)
        [parameter units / gradient units]; at most 1 / (2 L) for an L-Lipschitz operator.
      iterations: T, the number of rounds and of releases.
      averaging: weights of the average of the iterates.
    """

    query: Query
    step: Saddle
    iterations: int = jax.tree.static()
    averaging: Averaging = UNIFORM


class State(NamedTuple):
    """Everything here is private output: it may be published and stored.

    Attributes:
      z: the iterate.
      before: g_{t-1}, the operator of the last round.
      mean: running average of the iterates at which the operator was taken.
      spent: releases made so far, int32 `[]`.
    """

    z: Saddle
    before: Saddle
    mean: averaging.Mean
    spent: jax.Array

    @property
    def average(self) -> Saddle:
        """The averaged iterate, in the dtypes of z."""
        return tree.cast_like(self.mean.value, self.z)


def mechanism(hyper: Hyper) -> Repeat:
    """What a run does to the data: one release a round. The accountant reads nothing else."""
    return Repeat(query=hyper.query, times=hyper.iterations)


def example(query: Query, iterations: int) -> Hyper:
    """The smallest legal settings around a description: for accounting and audits."""
    return Hyper(query=query, step=Saddle(0.5, 0.25), iterations=iterations)


def init(z: Saddle, hyper: Hyper) -> State:
    """The state before the first round; arguments and errors as in `sgda.init`."""
    z = started(z, hyper)
    return State(z, jax.tree.map(jnp.zeros_like, z), averaging.start(z), jnp.int32(0))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper, problem: Problem) -> State:
    """One round; arguments, result and errors as in `sgda.update`."""
    t = state.spent + 1
    g = noisy_operator(key, mechanism(hyper), state.spent, problem, state.z, data)  # g_t
    before = jax.tree.map(lambda a, b: jnp.where(t == 1, a, b), g, state.before)  # g_{t-1}
    ahead = jax.tree.map(lambda a, b: 2 * a - b, g, before)
    z = stepped(state.z, ahead, hyper.step, t, problem)  # z_{t+1}
    mean = averaging.include(state.mean, state.z, hyper.averaging, t, hyper.iterations)
    return State(z, g, mean, t)
