"""Minimax phased empirical risk minimisation for the worst of several groups.

    min over w in W of max over groups i of E loss(w, z_i),

for convex losses. Each phase t = 1, ..., T reads n_t = floor(n / T) records of every group that no
other phase reads, finds the saddle point (w, v) over W x simplex of

    sum_i v_i L_i(w) + (mu_t / 2) ||w - w_{t-1}||^2 - mu_v sum_i v_i ln v_i,
    mu_t = 2^t / (eta n_t),   mu_v = M^2 / (eta n),

L_i the group's mean loss over the phase's records, and releases w alone:

    w_t = P_W(w + N(0, sigma_t^2 I)),     sigma_t = z (1 + 2 slack) exact_sensitivity(mu_t).

Output w_T. A record is in one phase, so all phases together cost as much as one. The noise rests on
true constants of the loss and on certified solutions, see `mechanism.GroupSolution`.

Source: Zhou and Bassily, "Differentially private worst-group risk minimization", arXiv:2402.19437,
Algorithm 1. Departures: sigma_t, which the listing uses as a variance and the proof as a standard
deviation, is one, calibrated exactly; the sensitivity is that of certified solutions, less than a
sixth of Lemma 3's, with the inner solver of `solvers.groups` instead of Algorithm 4, which the
accuracy that Lemma 3 takes for granted would cost 10^6 passes and more; w_t is projected, as the
next phase's analysis needs; T and n_t are rounded down and constants follow from the rounded
numbers; M^2 in mu_v, and B / M in eta, for units (the paper has M near 1); groups of different
sizes, the smallest of which decides.

Examples:
    >>> problem = jmm.problems.group_glm("logistic", feature_bound=2.0, radius=1.0)
    >>> plan = jmm.plan(jmm.phased_erm, problem=problem, sizes=(500, 200), dim=3, epsilon=1.0,
    ...                 delta=1e-6, phases=2)
    >>> jmm.epsilon(jmm.phased_erm.mechanism(plan.hyper), 1e-6) <= 1
    True
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.algorithms import descent, planning
from jaxminimax.base import arguments, checks, tree
from jaxminimax.base.types import GroupProblem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import GroupSolution, composed, solutions
from jaxminimax.releases.solutions import release_group_solution


@pytree_dataclass
class Hyper:
    """The settings of a run, all of which are in its description.

    Attributes:
      query: constants of the loss, weights of the regularisers, accuracy, noise, sizes, phases.
    """

    query: GroupSolution

    @property
    def iterations(self) -> int:
        """T, the number of phases and of releases."""
        return self.query.phases


class State(NamedTuple):
    """The state of a run, all of it private output, which may be published and stored.

    Attributes:
      z: (w_t, v), with the v of the start.
      spent: phases released so far, int32 `[]`.
    """

    z: Saddle
    spent: jax.Array

    @property
    def average(self) -> Saddle:
        """The output, which is the last point and no average."""
        return self.z


def mechanism(hyper: Hyper) -> GroupSolution:
    """Describes a run. The accountant reads nothing else."""
    return hyper.query


def example(query: GroupSolution, iterations: int) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits."""
    return Hyper(query=dataclasses.replace(query, phases=iterations))


def certified(query: GroupSolution) -> GroupSolution:
    """Returns `query` with the steps of the inner solver after which its certificate cannot fail.

    Args:
      query: a description with plain numbers; the noise multiplier is not used.

    Raises:
      ValueError: for numbers out of range, or an accuracy that float64 cannot reach.
    """
    composed.check(dataclasses.replace(query, steps=None))
    return dataclasses.replace(query, steps=solutions.solution_steps(query))


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first phase.

    Args:
      z: (w_0, ()), w_0 in W; must not depend on the data.
      hyper: see `Hyper`.

    Raises:
      ValueError: for a description that is not valid.
    """
    composed.check(mechanism(hyper))
    return State(arguments.point(z), jnp.int32(0))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper,
           problem: GroupProblem) -> State:
    """Makes one phase and returns the next state.

    Args:
      key: secret root key of the run, which is never part of the state.
      state: from `init` or the previous phase.
      data: leaves `[p, n_max, ...]`, see `problems.by_group`; their order must be public.
      hyper: see `Hyper`.
      problem: with constants no larger than the description's, and convex.

    Returns:
      The next state, in the dtypes of `state.z`; NaN once all phases are spent.

    Raises:
      ValueError: while tracing, for data or a problem that do not fit the description, or if no
        noise was calibrated.
    """
    previous = state.z.w
    w = release_group_solution(key, mechanism(hyper), state.spent, problem, previous, data)
    w = descent.projected(tree.cast_like(w, previous), previous, problem)  # w_t
    return State(Saddle(w, state.z.v), state.spent + 1)


# --- schedules, from public numbers ---


def theorem2_eta(*, sizes: tuple[int, ...], dim: int, lipschitz: float, bound: float,
                 diameter: float, epsilon: float, delta: float) -> float:
    """The step size eta of Theorem 2, for the paper's noise.

    It is (M / D) min{epsilon / (72 d ln(n) ln(1/delta))^(1/2), (p / K)^(1/2) / ln(K)^(3/4)},

    with n records in the smallest of p groups, K in all, and D = max(L, B / M).
    """
    _check_public(sizes, dim, lipschitz, bound, diameter, epsilon, delta)
    private = epsilon / math.sqrt(72 * dim * math.log(min(sizes)) * math.log(1 / delta))
    return _scale(lipschitz, bound, diameter) * min(private, _statistical(sizes))


def calibrated_eta(*, sizes: tuple[int, ...], dim: int, lipschitz: float, bound: float,
                   diameter: float, epsilon: float, delta: float, slack: float = 0.01) -> float:
    """The largest step size eta with E||noise of phase t||^2 <= 2^-t M^2 for all t, or Theorem 2's.

    The sensitivity is proportional to eta, so the first term of `theorem2_eta` becomes the smallest
    over t of 2^(-t/2) M eta / (d^(1/2) sigma_t(eta)), with the calibrated sigma_t. The
    arguments are those of `theorem2_eta`.
    """
    _check_public(sizes, dim, lipschitz, bound, diameter, epsilon, delta)
    unit = regularised(1.0, sizes=sizes, lipschitz=lipschitz, bound=bound, diameter=diameter,
                       slack=slack)
    noise = (1 + 2 * slack) * planning.gaussian_multiplier(epsilon, delta) * math.sqrt(dim)
    private = min(diameter * 2.0 ** (-t / 2)
                  / (noise * solutions.exact_sensitivity(unit, unit.reg_w * 2.0 ** (t - 1)))
                  for t in range(1, unit.phases + 1))
    return min(private, _scale(lipschitz, bound, diameter) * _statistical(sizes))


def regularised(eta: float, *, sizes: tuple[int, ...], lipschitz: float, bound: float,
                diameter: float, smooth: float | None = None, slack: float = 0.01,
                phases: int | None = None) -> GroupSolution:
    """Makes the description of a run with step size eta, without its inner steps.

    T = floor(log2 n) phases unless given, mu_1 = 2 / (eta n_t) and mu_v = M^2 / (eta n), n records
    in the smallest group and n_t = floor(n / T).
    """
    checks.number("eta", eta, low=0.0)
    n = int(min(sizes))
    phases = max(1, n.bit_length() - 1) if phases is None else phases
    return GroupSolution(lipschitz=lipschitz, bound=bound, smooth=smooth, diameter=diameter,
                         reg_w=2 / (eta * (n // phases)), reg_lam=diameter**2 / (eta * n),
                         slack=slack, sizes=tuple(sizes), phases=phases)


plan_variants = (planning.Variant({}, 0.2),)


def plan(target: planning.Target, *, problem: GroupProblem, sizes: tuple[int, ...], dim: int,
         slack: float = 0.01, eta: float | None = None,
         phases: int | None = None) -> planning.Plan[Hyper]:
    """Plans all phases of a problem with known constants, by Theorem 2.

    Args:
      target: the privacy target.
      problem: a problem, of which only the constants are used.
      sizes: the number of records of each group.
      dim: d, the dimension of w.
      slack: the slack of certificates, see `GroupSolution`; around 1 for losses that are not
        smooth, whose inner solver needs a number of steps that grows like its inverse square.
      eta: the step size; None for `calibrated_eta`.
      phases: T, the number of phases; None for floor(log2 n).

    Raises:
      ValueError: for numbers out of range.
    """
    constants: dict[str, Any] = dict(sizes=sizes, lipschitz=problem.lipschitz, bound=problem.bound,
                                     diameter=problem.diameter)
    if eta is None:
        eta = calibrated_eta(**constants, dim=dim, slack=slack, delta=target.delta,
                             epsilon=target.epsilon)  # type: ignore[arg-type]  # checked there
    query = certified(regularised(eta, **constants, smooth=problem.smooth, slack=slack,
                                  phases=phases))
    return planning.Plan(target.noise(Hyper(query=query)), None, False, (
        "The excess worst-group risk by Theorem 2 of Zhou and Bassily (2024), a rate.",
        "The step size is the largest with which the calibrated noise keeps the proof's bound."),
                         gap="risk")


def _check_public(sizes: tuple[int, ...], dim: int, lipschitz: float, bound: float, diameter: float,
                  epsilon: float, delta: float) -> None:
    for n in sizes:
        checks.count("sizes", n, low=2)
    planning.check_numbers(dim=dim, lipschitz=lipschitz, bound=bound, diameter=diameter,
                           epsilon=epsilon, delta=delta)


def _scale(lipschitz: float, bound: float, diameter: float) -> float:
    """Returns M / D, with D = max(L, B / M)."""
    return diameter / max(lipschitz, bound / diameter)


def _statistical(sizes: tuple[int, ...]) -> float:
    total = sum(map(int, sizes))
    return math.sqrt(len(sizes) / total) / math.log(total) ** 0.75
