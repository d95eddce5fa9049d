"""Recursive regularisation for smooth problems, by perturbed certified solutions.

    min over w in W, max over v in V, of  F(z) = E f(w, v; x)      (or a monotone VI)

The data are cut into T parts of m records, once. Round t = 1, ..., T solves, on its own part, the
problem regularised towards all earlier outputs,

    f  +  sum_{k < t} 2^(k+1) lambda (||w - w_k||^2 - ||v - v_k||^2),

whose quadratics are one, (mu_t / 2) ||. - c_t||^2 a player, with

    mu_t = 4 lambda (2^t - 1),     c_t = sum_{k < t} 2^k z_k / (2^t - 1)
                                       = ((2^(t-1) - 1) c_{t-1} + 2^(t-1) z_{t-1}) / (2^t - 1),

and releases its solution:

    u_t = the certified solution of  (1/m) sum_{i in part t} g(u; x_i) + mu_t (u - c_t)  over W x V
    z_t = P(u_t + N(0, sigma_t^2 I)),    sigma_t = z (1 + 2 rho) L / (mu_t m).

The output is z_T, never an average over rounds; the rounds before may be published too. A record is
in one part, so one release is charged. As mu_t doubles, so the noise halves.

Source: Bassily, Guzman and Menart, "Differentially private algorithms for the stochastic saddle
point problem with optimal rates for the strong gap", COLT 2023, arXiv:2302.12909, Algorithm 1 with
the output perturbation of Section 4.2. Departures: the noise is calibrated to the sensitivity of
certified solutions, 2 L / (mu_t m), instead of 8 L sqrt(ln(2/delta)) / (2^t lambda m epsilon),
which rests on an accuracy in expectation; the noisy point is projected; all data are used (their m
T is at most n / 2); lambda and T come from `plans.recursive`, whose constants are not vacuous.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax import _check, _tree, _valid
from jaxminimax._types import Problem, Saddle, Tree, record
from jaxminimax.mechanism import Repeat, Resolvent
from jaxminimax.release import release_resolvent


@record
class Hyper:
    """Numbers are leaves, so they may be traced and vmapped over; what shapes the program is not.

    Attributes:
      query: of the first round: population m, prox = 4 lambda, doubling; its inner steps are set by
        `certified`.
      iterations: T, the number of rounds and of releases.
    """

    query: Resolvent
    iterations: int = jax.tree.static()


class State(NamedTuple):
    """Everything here is private output: it may be published and stored.

    Attributes:
      z: the last round's output; the algorithm's output in the end.
      centre: c_t of the last round.
      spent: releases made so far, int32 `[]`.
    """

    z: Saddle
    centre: Saddle
    spent: jax.Array

    @property
    def average(self) -> Saddle:
        """The output: the last round's, not an average."""
        return self.z


def modulus(base: Any, t: Any) -> Any:
    """mu_t = 4 lambda (2^t - 1) of round t = 1, 2, ..."""
    return 4.0 * base * (2.0**t - 1)


def recentred(centre: Saddle, z: Saddle, t: jax.Array) -> Saddle:
    """c_t from c_{t-1} and z_{t-1}; the initial point for t = 1."""
    def leaf(c: jax.Array, x: jax.Array) -> jax.Array:
        new = 2.0 ** (jnp.asarray(t, c.dtype) - 1)  # 2^(t-1)
        return ((new - 1) * c + new * x) / (2 * new - 1)

    return jax.tree.map(leaf, centre, z)


def mechanism(hyper: Hyper) -> Repeat:
    """What a run does to the data: one release on each part. The accountant reads nothing else."""
    return Repeat(query=hyper.query, times=1, parts=hyper.iterations)


def certified(query: Resolvent, iterations: int) -> Resolvent:
    """`query` with the inner steps, a number a round, after which certificates cannot fail.

    Args:
      query: with plain numbers and `doubling=True`; the noise multiplier is not used.
      iterations: T.

    Raises:
      ValueError: for numbers out of range.
    """
    if not query.doubling:
        raise ValueError("doubling must be True: the weight of round t is 4 lambda (2^t - 1).")
    query = dataclasses.replace(query, steps=None)
    _valid.check(Repeat(query=query, times=1, parts=iterations))
    return dataclasses.replace(query, steps=_valid.inner_steps(query, iterations))


def init(z: Saddle, hyper: Hyper) -> State:
    """The state before the first round.

    Args:
      z: initial point in W x V; must not depend on the data. Leaves of any shape and float dtype.
      hyper: see `Hyper`.

    Raises:
      ValueError: for a count that is not positive, or a query that does not double.
    """
    _check.count("iterations", hyper.iterations)
    if not hyper.query.doubling:
        raise ValueError("query.doubling must be True: recursive.certified(query, iterations).")
    _valid.check(mechanism(hyper))
    z = jax.tree.map(jnp.asarray, z)
    return State(z, z, jnp.int32(0))


def update(key: jax.Array, state: State, data: Tree, hyper: Hyper, problem: Problem) -> State:
    """One round.

    Args:
      key: root key of the run. A secret, so never part of the state.
      state: from `init` or the previous round.
      data: leaves `[n, ...]` with n >= T m; round t reads rows [(t - 1) m, t m). Their order must
        not depend on their values.
      hyper: see `Hyper`.
      problem: operator, public terms (monotone) and the Euclidean projection on W x V.

    Returns:
      The next state, in the dtypes of `state.z`; NaN once `iterations` releases are spent, or if a
      solution could not be certified.

    Raises:
      ValueError: while tracing, if `data` has too few rows, no noise was calibrated, or a clipped
        operator is assumed to be monotone.
    """
    t = state.spent + 1
    centre = recentred(state.centre, state.z, t)
    z = release_resolvent(key, mechanism(hyper), state.spent, problem, centre, data)
    z = _tree.cast_like(problem.project(_tree.cast_like(z, state.z)), state.z)
    return State(z, centre, t)
