"""Differentially private stochastic gradient descent-ascent (DP-SGDA).

    min over w in W, max over v in V, of  F(w, v) = (1/n) sum_i f(w, v; x_i) + r(w, v).

Both players move at once from z_t = (w_t, v_t), along one private estimate of the saddle operator
g = (grad_w f, -grad_v f):

    g_t     = (sum_{i in B_t} clip(g(z_t; x_i)) + Gaussian) / m  +  (grad_w r, -grad_v r)(z_t)
    z_{t+1} = P_{W x V}(z_t - step_t * g_t),                              t = 1, ..., T.

Source: Yang, Hu, Lei, Varshney, Lyu and Ying, "Differentially Private SGDA for Minimax Problems",
UAI 2022, arXiv:2201.09046, Algorithm 1. Departures: B_t is the sample that the mechanism describes
(Poisson, full batch or disjoint passes) instead of indices drawn with replacement, and the noise is
calibrated to it instead of by Theorem 1; clipping replaces the Lipschitz assumption; each player
has its own clip norm and noise; the terms r that read no data are neither clipped nor noised; any
optax optimiser may take the step; averages are over the points z_1 ... z_T at which the operator
was taken, as in the proofs.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxminimax import _check, _tree, averaging, schedules
from jaxminimax._types import Problem, Saddle, Tree, record
from jaxminimax.averaging import UNIFORM, Averaging
from jaxminimax.mechanism import Query, Repeat
from jaxminimax.release import release


@record
class Hyper:
    """Numbers are leaves, so they may be traced and vmapped over; what shapes the program is not.

    Attributes:
      query: clip norms, noise multipliers, sampling, population.
      step: per player, a number or a schedule `t -> step` (`schedules.Decay`)
        [parameter units / gradient units].
      iterations: T, the number of rounds and of releases.
      averaging: weights of the average of the iterates.
      optimiser: per player, a factory `step -> optax.GradientTransformation`; it sees released
        operators only. Keep one function object: it is hashed by identity.
      strategy: how clipped sums are computed: "auto", "vmap", "microbatch" or "ghost", see
        `clipped_sum`.
      microbatch: see `clipped_sum`.
    """

    query: Query
    step: Saddle
    iterations: int = jax.tree.static()
    averaging: Averaging = UNIFORM
    optimiser: Saddle = jax.tree.static(default=Saddle(optax.sgd, optax.sgd))
    strategy: str = jax.tree.static(default="auto")
    microbatch: int = jax.tree.static(default=32)


class State(NamedTuple):
    """Everything here is private output: it may be published and stored.

    Attributes:
      z: the iterate.
      mean: running average of the iterates at which the operator was taken.
      memory: the two optimisers' states.
      spent: releases made so far, int32 `[]`.
    """

    z: Saddle
    mean: averaging.Mean
    memory: Saddle
    spent: jax.Array

    @property
    def average(self) -> Saddle:
        """The averaged iterate, in the dtypes of z."""
        return _tree.cast_like(self.mean.value, self.z)


def mechanism(hyper: Hyper) -> Repeat:
    """What a run does to the data: one release a round. The accountant reads nothing else."""
    return Repeat(query=hyper.query, times=hyper.iterations)


def _optimisers(hyper: Hyper, t: jax.Array) -> Saddle:
    return Saddle(*(make(schedules.at(step, t))
                    for make, step in zip(hyper.optimiser, hyper.step, strict=True)))


def init(z: Saddle, hyper: Hyper) -> State:
    """The state before the first round.

    Args:
      z: initial point; must not depend on the data. Leaves of any shape and float dtype.
      hyper: see `Hyper`.

    Raises:
      ValueError: for a step or an average that is not defined.
    """
    _check.count("iterations", hyper.iterations)
    averaging.check(hyper.averaging)
    for name, step in hyper.step._asdict().items():
        schedules.check(f"step.{name}", step)
    z = jax.tree.map(jnp.asarray, z)
    make = _optimisers(hyper, jnp.int32(1))
    memory = Saddle(*(tx.init(x) for tx, x in zip(make, z, strict=True)))
    return State(z, averaging.start(z), memory, jnp.int32(0))


def update(key: jax.Array, state: State, data: Tree, hyper: Hyper, problem: Problem) -> State:
    """One round.

    Args:
      key: root key of the run. A secret, so never part of the state.
      state: from `init` or the previous round.
      data: leaves `[n, ...]`, with n = `hyper.query.population`.
      hyper: see `Hyper`.
      problem: operator, public terms and projection.

    Returns:
      The next state, in the dtypes of `state.z`; NaN once `iterations` releases are spent.

    Raises:
      ValueError: while tracing, if `data` does not have n rows or no noise was calibrated.
    """
    t = state.spent + 1
    g = release(key, mechanism(hyper), state.spent, problem, state.z, data,
                strategy=hyper.strategy, microbatch=hyper.microbatch)
    if problem.public is not None:
        g = _tree.add(g, problem.public(state.z))
    g = _tree.cast_like(g, state.z)
    moves = [tx.update(*x)
             for tx, *x in zip(_optimisers(hyper, t), g, state.memory, state.z, strict=True)]
    change, memory = (Saddle(*x) for x in zip(*moves, strict=True))
    z = _tree.cast_like(problem.project(_tree.add(state.z, change)), state.z)
    mean = averaging.include(state.mean, state.z, hyper.averaging, t, hyper.iterations)
    return State(z, mean, memory, t)


def theorem2_step(*, population: int, dim: int, smooth: float, epsilon: float,
                  delta: float) -> Saddle:
    """Constant steps of Theorem 2(a), convex-concave and smooth, for T = n rounds.

    step = 1 / (L max{sqrt(n), sqrt(d ln(1/delta)) / epsilon}), the same for both players;
    d is the larger of their dimensions and L = `smooth` the Lipschitz constant of the
    operator. (The statement in the paper's main text omits L; its proof has it.)
    """
    _check_theorem(population, dim, epsilon, delta)
    _check.number("smooth", smooth, low=0.0)
    step = 1.0 / (smooth * _theorem2_scale(population, dim, epsilon, delta))
    return Saddle(step, step)


def theorem2_step_nonsmooth(*, population: int, dim: int, epsilon: float, delta: float) -> Saddle:
    """Constant steps of Theorem 2(b), convex-concave without smoothness, for T = n^2 rounds."""
    _check_theorem(population, dim, epsilon, delta)
    step = 1.0 / (population * _theorem2_scale(population, dim, epsilon, delta))
    return Saddle(step, step)


def theorem3_step(*, pl: float, smooth: float, modulus: float) -> Saddle:
    """Decaying steps of Theorems 3 and 5: Polyak-Lojasiewicz in w, strongly concave in v.

        step_w(t) = min{2 / (mu t), 1 / (L + L^2/rho)}
        step_v(t) = min{2 c / (mu t^(2/3)), 1/L},
        c = max{8 kappa^2 sqrt((L + L^2/rho) / mu), 4 sqrt(2) kappa^2},  kappa = L / rho.

    The caps are conditions of the proof that the printed schedules break in the first rounds
    (uncapped they overflow on a quadratic).

    Args:
      pl: mu, the PL constant of the primal function.
      smooth: L, the Lipschitz constant of the operator.
      modulus: rho, the modulus of strong concavity in v.
    """
    for name, value in dict(pl=pl, smooth=smooth, modulus=modulus).items():
        _check.number(name, value, low=0.0)
    kappa, primal = smooth / modulus, smooth + smooth**2 / modulus
    ratio = max(8 * kappa**2 * math.sqrt(primal / pl), 4 * math.sqrt(2) * kappa**2)
    return Saddle(
        schedules.Decay(scale=2 / pl, power=1.0, cap=1 / primal),
        schedules.Decay(scale=2 * ratio / pl, power=2 / 3, cap=1 / smooth),
    )


def _check_theorem(population: int, dim: int, epsilon: float, delta: float) -> None:
    _check.count("population", population)
    _check.count("dim", dim)
    _check.number("epsilon", epsilon, low=0.0)
    _check.number("delta", delta, low=0.0, high=1.0)


def _theorem2_scale(population: int, dim: int, epsilon: float, delta: float) -> float:
    return max(math.sqrt(population), math.sqrt(dim * math.log(1 / delta)) / epsilon)
