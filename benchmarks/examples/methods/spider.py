"""Private variance reduction: an estimate of the operator kept up by differences.

    min over w in W, max over v in V, of  F(w, v) = (1/n) sum_i f(w, v; x_i) + r(w, v).

Of each q rounds the first releases the operator, the others how it has changed since the last
point, clipped at L times the distance and with noise in proportion to it:

    u_t     = (sum_{i in B_t} clip(g(z_t; x_i)) + Gaussian) / m                     q divides t - 1,
    u_t     = u_{t-1} + (sum_{i in B_t} clip(g(z_t; x_i) - g(z_{t-1}; x_i), l_t) + l_t Gaussian) / m
              otherwise,  l_t = L ||z_t - z_{t-1}||,
    z_{t+1} = P_{W x V}(z_t - step_t (u_t + (grad_w r, -grad_v r)(z_t))),       t = 1, ..., T.

The differences are of both players together: one clip, one noise, one sample for both points. Each
release is charged as one on clipped operators (`windows` has the proof), and u_t is
postprocessing.

**When it helps.** With a share a of the budget for anchors and rho = l_t / C_1, the clip of a
difference over that of an anchor, the noise of u_t at the end of a window has 1 / (a q) +
q rho^2 / (1 - a) times the variance that `sgda` has; at a = 1/2 and q = 1 / rho that is 4 rho. So
it helps only where rho < 1/4, and the noise alone moves the points by so much that rho is at least
step L V^(1/2) / C_1, V the variance of a release. `docs/choosing.md` has where it was ahead, and
where it was not.

Source: Fang, Li, Lin and Zhang, "SPIDER", NeurIPS 2018, arXiv:1807.01695, Algorithm 1; private
differences, Arora, Bassily, Gonzalez, Guzman, Menart and Ullah, ICML 2023, arXiv:2206.00846.
Departures: both players descend and ascend along one estimate; the differences are clipped instead
of assumed Lipschitz; windows have a fixed length instead of ending by the path's length; steps are
not normalised; the terms r that read no data are neither clipped nor noised.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.examples.methods.windows import Windows, release_in_window
from jaxminimax.algorithms import descent
from jaxminimax.base import tree
from jaxminimax.base.types import Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.releases.release_keys import public_term


@pytree_dataclass
class Hyper:
    """The settings of a run; its numbers are leaves, which may be traced and vmapped over.

    Attributes:
      query: anchors, differences and the length of a window; its `rounds` is replaced by
        `iterations`.
      step: per player, a number or a schedule `t -> step` (`schedules.Decay`)
        [parameter units / gradient units].
      iterations: T, the number of rounds and of releases.
      averaging: weights of the average of the iterates.
    """

    query: Windows
    step: Saddle
    iterations: int = jax.tree.static()
    averaging: descent.Averaging = descent.UNIFORM


class State(NamedTuple):
    """The state of a run, all of it private output, which may be published and stored.

    Attributes:
      z: the iterate.
      before: z_{t-1}, the iterate of the round before.
      estimate: u_{t-1}, in at least float32.
      mean: running average of the iterates at which the operator was taken.
      spent: number of releases so far, int32 `[]`.
    """

    z: Saddle
    before: Saddle
    estimate: Saddle
    mean: descent.Mean
    spent: jax.Array

    @property
    def average(self) -> Saddle:
        """The averaged iterate, in the dtypes of z."""
        return tree.cast_like(self.mean.value, self.z)


def mechanism(hyper: Hyper) -> Windows:
    """Describes a run: one release a round. The accountant reads nothing else."""
    return dataclasses.replace(hyper.query, rounds=hyper.iterations)


def example(query: Windows, iterations: int) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits."""
    return Hyper(query=query, step=Saddle(0.5, 0.25), iterations=iterations)


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round, at z, which must not depend on the data."""
    z = descent.started(z, hyper)
    hyper.query.check_own()
    mean = descent.start_mean(z)
    return State(z, z, jax.tree.map(jnp.zeros_like, mean.value), mean, jnp.int32(0))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper, problem: Problem) -> State:
    """Makes one round: a release on `data`, leaves `[n, ...]`, and a step from the last state.

    `key` is the secret root key of the run. The result is NaN once all releases are spent.
    """
    t = state.spent + 1
    g, opens = release_in_window(key, mechanism(hyper), state.spent, problem, state.z, state.before,
                                 data)
    u = jax.tree.map(lambda a, b: jnp.where(opens, a, b + a), g, state.estimate)  # u_t
    along = u
    if problem.public is not None:
        along = tree.add(u, public_term(problem, state.z, key, mechanism(hyper), state.spent))
    z = descent.stepped(state.z, along, hyper.step, t, problem)  # z_{t+1}
    mean = descent.include(state.mean, state.z, hyper.averaging, t, hyper.iterations)
    return State(z, state.z, u, mean, t)
