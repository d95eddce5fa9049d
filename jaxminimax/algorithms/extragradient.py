"""Noisy stochastic extragradient (NSEG) for monotone variational inequalities and saddle points.

    find z* in W with <F(z*), z - z*> >= 0 for all z in W,      F(z) = (1/n) sum_i F(z; x_i) + r(z).

A round releases the operator twice, at the point and at a point ahead of it, and steps from the
point along the second release. Each release has its own sample and noise:

    g_t  = release at z_t,      w_t     = P_W(z_t - step_t g_t)
    h_t  = release at w_t,      z_{t+1} = P_W(z_t - step_t h_t),           t = 1, ..., T,

output sum_t step_t w_t / sum_t step_t. It is private for any operator: each record's operator
is clipped, and nothing else about it is assumed.

Source: Boob and Guzman, "Optimal algorithms for differentially private stochastic monotone
variational inequalities and saddle-point problems", arXiv:2104.02988, Algorithm 1. Departures: all
2T releases are charged (Proposition 7 pays for T), and the second has noise of its own (the listing
prints the first's twice); the noise is calibrated to the sampling instead of by Propositions 5 and
7; clipping replaces the bound on the operator; the terms r that read no data are neither clipped
nor noised; the players may take steps of a constant ratio, which rescales one of them; all batches
have one size and one noise, where Proposition 5 allows B_t and sigma_t (steps may vary). The last
release moves only z_{T+1}, which the output does not use; it is charged, because the state has it.

Examples:
    >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000)
    >>> hyper = jmm.extragradient.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=50)
    >>> jmm.mechanism.releases(jmm.extragradient.mechanism(hyper))  # two in a round
    100
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.algorithms import averaging, descent, planning, schedules
from jaxminimax.algorithms.averaging import UNIFORM, Averaging
from jaxminimax.base import checks, tree
from jaxminimax.base.types import Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Disjoint, FixedSize, Full, Query, Repeat, batch_size
from jaxminimax.mechanism.costs import concrete
from jaxminimax.mechanism.limits import check_noise
from jaxminimax.releases.sums import noisy_operator


@pytree_dataclass
class Hyper:
    """The settings of a run; its numbers are leaves, which may be traced and vmapped over.

    Attributes:
      query: clip norms, noise multipliers, sampling, population. With `Disjoint(batch=B)` the two
        releases of a round read different batches, and n // (2 B) rounds are one pass.
      step: per player, a number or a schedule `t -> step` (`schedules.Decay`)
        [parameter units / gradient units]; the theory has one for both, at most 1 / (sqrt(3) L).
      iterations: T, the number of rounds, two releases each.
      averaging: further weights of the points ahead, times the step.
      geometry: per player, "euclidean", or "entropy" for one whose leaves are probability vectors.
    """

    query: Query
    step: Saddle
    iterations: int = jax.tree.static()
    averaging: Averaging = UNIFORM
    geometry: Saddle = jax.tree.static(default=descent.EUCLIDEAN)


class State(NamedTuple):
    """The state of a run, all of it private output, which may be published and stored.

    Attributes:
      z: the point that the next round starts from.
      ahead: w_t of the last round.
      mean: running average of the points ahead, weighted by the steps.
      spent: number of releases so far, int32 `[]`.
    """

    z: Saddle
    ahead: Saddle
    mean: averaging.Mean
    spent: jax.Array

    @property
    def average(self) -> Saddle:
        """The weighted average, the algorithm's output, in the dtypes of z."""
        return tree.cast_like(self.mean.value, self.z)


def mechanism(hyper: Hyper) -> Repeat:
    """Describes a run: two releases a round. The accountant reads nothing else."""
    return Repeat(query=hyper.query, times=2 * hyper.iterations)


def example(query: Query, iterations: int) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits."""
    return Hyper(query=query, step=Saddle(0.5, 0.25), iterations=iterations)


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round.

    Args:
      z: initial point in W; must not depend on the data. Leaves of any shape and float dtype.
      hyper: see `Hyper`.

    Raises:
      ValueError: for an undefined step, average or geometry.
    """
    z = descent.started(z, hyper)
    return State(z, z, averaging.start(z), jnp.int32(0))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper, problem: Problem) -> State:
    """Makes one round: two releases on `data`, leaves `[n, ...]`, and a step.

    `key` is the secret root key of the run. The result is NaN once all releases are spent.
    """
    t = state.spent // 2 + 1
    described = mechanism(hyper)
    g = noisy_operator(key, described, state.spent, problem, state.z, data)  # g_t
    ahead = descent.stepped(state.z, g, hyper.step, t, problem, hyper.geometry)  # w_t
    h = noisy_operator(key, described, state.spent + 1, problem, ahead, data)  # h_t
    z = descent.stepped(state.z, h, hyper.step, t, problem, hyper.geometry)  # z_{t+1}
    weight = hyper.averaging.weight(t, hyper.iterations, state.mean.weight.dtype)
    mean = averaging.weigh(state.mean, ahead, weight * schedules.at(hyper.step.w, t))
    return State(z, ahead, mean, state.spent + 2)


def plan(target: planning.Target, *, population: int, dim: int, bound: float, smooth: float,
         diameter: float, passes: str = "one") -> planning.Plan[Hyper]:
    """Plans one pass by Corollary 1, single records by Theorem 4, or full batches.

    See `single_pass`, whose step is then that of the calibrated noise (`calibrated_step`),
    `sampled` for "many" and `full_batch` for "full".

    Args:
      target: the privacy target.
      population: n, the number of records.
      dim: d, the number of coordinates of both players together.
      bound: M, the largest norm of a record's operator, players together: the joint clip.
      smooth: L, the operator's Lipschitz constant.
      diameter: D, the diameter of W.
      passes: "one", "many" or "full".

    Raises:
      ValueError: for numbers out of range.
    """
    checks.one_of("passes", passes, ("one", "many", "full"))
    constants: dict[str, Any] = dict(dim=dim, bound=bound, smooth=smooth, diameter=diameter)
    privacy: dict[str, Any] = dict(epsilon=target.epsilon, delta=target.delta)
    schedule, kind, why = {
        "one": (single_pass, Disjoint,
                "The strong gap by Corollary 1 of Boob and Guzman (2023), a rate."),
        "many": (sampled, FixedSize,
                 "The weak gap by Theorem 4 of Boob and Guzman (2023), a rate."),
        "full": (full_batch, None,
                 "Boob and Guzman (2023) analyse the stability of full batches only; the step "
                 "balances it with the optimisation error.")}[passes]
    batch, rounds, step = schedule(population=population, **constants, **privacy)
    query = planning.joint_query(bound, population, kind(batch=batch) if kind else Full())
    hyper = target.noise(Hyper(query=query, step=Saddle(step, step), iterations=rounds))
    if passes == "one":
        step = calibrated_step(iterations=rounds, query=hyper.query, **constants)
        hyper = dataclasses.replace(hyper, step=Saddle(step, step))
    return planning.Plan(hyper, None, False, (
        why, "The noise is calibrated to all 2T releases; the step is at most 1 / (sqrt(3) L)."))


class Schedule(NamedTuple):
    """The parameters that a corollary or a theorem prescribes.

    Attributes:
      batch: B, the number of records of a release.
      iterations: T, the number of rounds.
      step: the step of both players.
    """

    batch: int
    iterations: int
    step: float


def _checked_term(**numbers: Any) -> float:
    """Checks the ranges of the numbers and returns sqrt(d ln(1/delta)) / epsilon."""
    planning.check_numbers(**numbers)
    return planning.privacy_term(numbers["dim"], numbers["epsilon"], numbers["delta"])


def single_pass(*, population: int, dim: int, bound: float, smooth: float, diameter: float,
                epsilon: float, delta: float) -> Schedule:
    """Sets one pass over disjoint batches by Corollary 1: a strong gap of optimal order.

        B = min{sqrt(d ln(1/delta)) / epsilon, n / 2},      T = n / (2 B),
        step = min{1 / (sqrt(3) L), D / (M (7 T (1 + 8 d ln(1/delta) / (B epsilon)^2))^(1/2))}.

    B and T are integers, at least 1, and the cap is a condition of the convergence theorem: the
    corollary leaves both out, and allows B = n, which is half a round.

    Args:
      population: n, the number of records.
      dim: d, the number of coordinates of both players together.
      bound: M, the largest norm of a record's operator, players together.
      smooth: L, the operator's Lipschitz constant.
      diameter: D, the diameter of W.
      epsilon: epsilon of the privacy target.
      delta: delta of the privacy target.
    """
    spread = _checked_term(population=population, dim=dim, bound=bound, smooth=smooth,
                           diameter=diameter, epsilon=epsilon, delta=delta)
    batch = max(1, min(round(spread), population // 2))
    rounds = max(1, population // (2 * batch))
    step = diameter / (bound * math.sqrt(7 * rounds * (1 + 8 * (spread / batch) ** 2)))
    return Schedule(batch, rounds, min(step, 1 / (math.sqrt(3) * smooth)))


def calibrated_step(*, dim: int, bound: float, smooth: float, diameter: float, iterations: int,
                    query: Query) -> float:
    """The step of Corollary 1 for the calibrated noise.

    It is min{1 / (sqrt(3) L), D / (7 T (M^2 + d sigma^2))^(1/2)}, with sigma the standard deviation
    on the mean operator, the larger of the players'.

    Args:
      dim: d, the number of coordinates of both players together.
      bound: M, the largest norm of a record's operator, players together.
      smooth: L, the operator's Lipschitz constant.
      diameter: D, the diameter of W.
      iterations: T, the number of rounds.
      query: a calibrated query.
    """
    planning.check_numbers(dim=dim, bound=bound, smooth=smooth, diameter=diameter,
                           iterations=iterations)
    noise = max(concrete(c) * concrete(z) for c, z in zip(query.clip, check_noise(query),
                                                          strict=True) if c is not None)
    variance = (noise / batch_size(query)) ** 2
    step = diameter / math.sqrt(7 * iterations * (bound**2 + dim * variance))
    return min(step, 1 / (math.sqrt(3) * smooth))


def sampled(*, population: int, dim: int, bound: float, smooth: float, diameter: float,
            epsilon: float, delta: float) -> Schedule:
    """Sets n^2 draws of single records by Theorem 4: a weak gap of optimal order.

        B = 1,   T = n^2,   step = min{D / M, 1 / L} / (n max{sqrt n, sqrt(d ln(1/delta))/epsilon}).

    The step is also capped at 1 / (sqrt(3) L), which binds for n = 1 only. Use
    `FixedSize(batch=1)`; 2 n^2 operators are evaluated, and as many releases are charged. The
    arguments are those of `single_pass`.
    """
    spread = _checked_term(population=population, dim=dim, bound=bound, smooth=smooth,
                           diameter=diameter, epsilon=epsilon, delta=delta)
    if 2 * population**2 >= 2**31:
        raise ValueError(f"population must be at most {math.isqrt(2**30 - 1)} for n^2 rounds, got "
                         f"{population}: the counter of their 2 n^2 releases has 32 bits. Take "
                         "passes='one', or jmm.proximal with passes='many'.")
    step = min(diameter / bound, 1 / smooth) / (population * max(math.sqrt(population), spread))
    return Schedule(1, population**2, min(step, 1 / (math.sqrt(3) * smooth)))


def full_batch(*, population: int, dim: int, bound: float, smooth: float, diameter: float,
               epsilon: float, delta: float) -> Schedule:
    """Sets n^(3/2) rounds on all records; the paper analyses only their stability.

        step T = (D / M) min{sqrt n, n epsilon / sqrt(d ln(1/delta))} min{1, M / (L D)},

    which balances the optimisation error with the stability terms of Theorem 4, as derived here.
    T is at most max{100,000, (L step T)^2}. The noise of all rounds together does not depend on T,
    and from (L step T)^2 on, L^2 step^2 T <= 1, so that a run stretches the distance of two points
    by a constant at most. The arguments are those of `single_pass`.
    """
    spread = _checked_term(population=population, dim=dim, bound=bound, smooth=smooth,
                           diameter=diameter, epsilon=epsilon, delta=delta)
    length = min(diameter / bound, 1 / smooth) * min(math.sqrt(population), population / spread)
    rounds = min(math.ceil(population**1.5),
                 max(planning.MOST_ROUNDS, math.ceil((smooth * length) ** 2)))
    return Schedule(population, rounds, min(length / rounds, 1 / (math.sqrt(3) * smooth)))
