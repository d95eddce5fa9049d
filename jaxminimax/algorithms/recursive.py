"""Recursive regularisation for smooth problems, by perturbed certified solutions.

    min over w in W, max over v in V, of  F(w, v) = E f(w, v; x)

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
T is at most n / 2); lambda and T come from `plan`, by the theorem of `recursion`, which is about
monotone variational inequalities as well. (A strong gap of a variational inequality was first
bounded for a modified recursion: Bassily, Guzman and Menart, NeurIPS 2024.)

Examples:
    >>> plan = jmm.plan(jmm.recursive, population=5000, dim=10, bound=1.0, diameter=2.0,
    ...                 smooth=1.0, epsilon=1.0, delta=1e-6)
    >>> jmm.epsilon(jmm.recursive.mechanism(plan.hyper), 1e-6) <= 1
    True
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.algorithms import descent, planning, recursion
from jaxminimax.base import arguments, checks, tree
from jaxminimax.base.types import Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Repeat, Resolvent, composed, costs, resolvent
from jaxminimax.releases.solutions import release_resolvent


@pytree_dataclass
class Hyper:
    """The settings of a run; its numbers are leaves, which may be traced and vmapped over.

    Attributes:
      query: the description of the first round: population m, prox = 4 lambda, doubling;
        `certified` sets its inner steps.
      iterations: T, the number of rounds and of releases.
    """

    query: Resolvent
    iterations: int = jax.tree.static()


class State(NamedTuple):
    """The state of a run, all of it private output, which may be published and stored.

    Attributes:
      z: the last round's output; the algorithm's output in the end.
      centre: c_t of the last round.
      spent: number of releases so far, int32 `[]`.
    """

    z: Saddle
    centre: Saddle
    spent: jax.Array

    @property
    def average(self) -> Saddle:
        """The output, which is that of the last round and no average."""
        return self.z


def modulus(base: Any, t: Any) -> Any:
    """Returns mu_t = 4 lambda (2^t - 1) of round t = 1, 2, ..."""
    return 4.0 * base * (2.0**t - 1)


def recentred(centre: Saddle, z: Saddle, t: jax.Array) -> Saddle:
    """Returns c_t from c_{t-1} and z_{t-1}; the initial point for t = 1."""
    def leaf(c: jax.Array, x: jax.Array) -> jax.Array:
        new = 2.0 ** (jnp.asarray(t, c.dtype) - 1)  # 2^(t-1)
        return ((new - 1) * c + new * x) / (2 * new - 1)

    return jax.tree.map(leaf, centre, z)


def mechanism(hyper: Hyper) -> Repeat:
    """Describes a run: one release on each part. The accountant reads nothing else."""
    return Repeat(query=hyper.query, times=1, parts=hyper.iterations)


def example(query: Resolvent, iterations: int) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits."""
    return Hyper(query=dataclasses.replace(query, doubling=True), iterations=iterations)


def certified(query: Resolvent, iterations: int) -> Resolvent:
    """Returns `query` with the inner steps of each round, after which certificates cannot fail.

    Args:
      query: a description with plain numbers and `doubling=True`; the noise multiplier is not used.
      iterations: T, the number of rounds.

    Raises:
      ValueError: for numbers out of range.
    """
    if not query.doubling:
        raise ValueError("doubling must be True: the weight of round t is 4 lambda (2^t - 1).")
    query = dataclasses.replace(query, steps=None)
    composed.check(Repeat(query=query, times=1, parts=iterations))
    return dataclasses.replace(query, steps=resolvent.inner_steps(query, iterations))


plan_variants = (planning.Variant({}, 0.09),)


def plan(target: planning.Target, *, population: int, dim: int, bound: float, diameter: float,
         smooth: float, mode: str = "tight", kappa: float = 1.0,
         rounds: int | str = "near_optimal", modulus: float = 0.0, slack: float = 0.01,
         solver: Any = None, public_bound: float = 0.0, public_smooth: float = 0.0,
         radius: float | None = None) -> planning.Plan[Hyper]:
    """Plans rounds and lambda by the theorem, see `recursion`.

    Privacy rests on the constants of this call: the operator of a record of any content must be
    monotone, bounded and Lipschitz with them. `recursive_sgda` clips, and its privacy needs none.

    Args:
      target: the privacy target; without epsilon there is no noise.
      population: n, the number of records.
      dim: d, the number of coordinates of both players together.
      bound: L, the largest norm of a record's operator, players together.
      diameter: B, the diameter of W x V.
      smooth: the Lipschitz constant of a record's operator.
      mode: "tight", the lambda of the theorem's smallest bound; "manual", kappa times that; or
        "paper".
      kappa: the factor of "manual".
      rounds: "near_optimal", the largest T whose bound is at most 1.2 times the smallest;
        "bound_optimal", the T of the smallest; "largest" T with 2^T lambda B <= L,
        as in the paper; or a number.
      modulus: mu_0, the modulus of strong monotonicity of every record's operator; see
        `mechanism.Resolvent`. The noise falls with it; rounds and bound are those without it.
      slack: rho, the slack of certificates, relative to half of the sensitivity.
      solver: `(key, problem, residual) -> point`, see `mechanism.Resolvent`;
        `solvers.near_linear` is faster if the condition number is large.
      public_bound: P, the largest norm of the public terms' operator; 0 for none.
      public_smooth: its Lipschitz constant: without it certificates of a problem with public terms
        fail, and the result is NaN.
      radius: R, the largest distance of a point of the set from the start; None for B.

    Raises:
      ValueError: for numbers out of range.
    """
    public = recursion.Public(dim, bound, diameter, target.epsilon, target.delta,
                              target.multiplier(), slack, public_bound=public_bound,
                              radius=radius, parts=target.parts)
    planned = recursion.schedule(public, population, mode=mode, kappa=kappa, rounds=rounds)
    query = Resolvent(bound=bound, prox=4 * planned.base, lipschitz=float(smooth + public_smooth),
                      doubling=True, diameter=diameter, slack=slack, population=planned.population,
                      modulus=modulus, assumes="monotone", solver=solver)
    hyper = target.noise(Hyper(query=certified(query, planned.rounds), iterations=planned.rounds))
    noisy = dataclasses.replace(public, multiplier=costs.concrete(hyper.query.noise_multiplier))
    return recursion.guaranteed(hyper, noisy, planned)


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round.

    Args:
      z: initial point in W x V; must not depend on the data. Leaves of any shape and float dtype.
      hyper: see `Hyper`.

    Raises:
      ValueError: for a count that is not positive, or a query that does not double.
    """
    checks.count("iterations", hyper.iterations)
    if not hyper.query.doubling:
        raise ValueError("query.doubling must be True: recursive.certified(query, iterations).")
    composed.check(mechanism(hyper))
    z = arguments.point(z)
    return State(z, z, jnp.int32(0))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper, problem: Problem) -> State:
    """Makes one round and returns the next state.

    Args:
      key: secret root key of the run, which is never part of the state.
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
    centre = recentred(state.centre, state.z, t)  # c_t
    z = release_resolvent(key, mechanism(hyper), state.spent, problem, centre, data)
    z = descent.projected(tree.cast_like(z, state.z), state.z, problem)  # z_t
    return State(z, centre, t)
