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

from jaxminimax.algorithms import bounds, descent, planning
from jaxminimax.base import checks, tree
from jaxminimax.base.types import Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Disjoint, FixedSize, Full, Query, Repeat
from jaxminimax.mechanism.costs import concrete
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
    averaging: descent.Averaging = descent.UNIFORM
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
    mean: descent.Mean
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
    return State(z, z, descent.start_mean(z), jnp.int32(0))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper, problem: Problem) -> State:
    """Makes one round: two releases on `data`, leaves `[n, ...]`, and a step.

    `key` is the secret root key of the run. The result is NaN once all releases are spent.
    """
    t = state.spent // 2 + 1
    described = mechanism(hyper)
    g = noisy_operator(key, described, state.spent, problem, state.z, data)  # g_t
    midpoint = descent.stepped(state.z, g, hyper.step, t, problem, hyper.geometry)  # w_t
    h = noisy_operator(key, described, state.spent + 1, problem, midpoint, data)  # h_t
    z = descent.stepped(state.z, h, hyper.step, t, problem, hyper.geometry)  # z_{t+1}
    weight = hyper.averaging.weight(t, hyper.iterations, state.mean.weight.dtype)
    mean = descent.weigh(state.mean, midpoint, weight * planning.step_at(hyper.step.w, t))
    return State(z, midpoint, mean, state.spent + 2)


plan_variants = (planning.Variant({"passes": "one"}, 0.11), planning.Variant({"passes": "many"}),
                 planning.Variant({"passes": "full"}, 0.048))


def plan(target: planning.Target, *, population: int, dim: int, bound: float, smooth: float,
         diameter: float, passes: str = "one", public_bound: float = 0.0,
         public_smooth: float = 0.0, radius: float | None = None) -> planning.Plan[Hyper]:
    """Plans one pass by its smallest bound, single records by Theorem 4, or full batches.

    See `single_pass`, `sampled` for "many" and `full_batch` for "full".

    Args:
      target: the privacy target.
      population: n, the number of records.
      dim: d, the number of coordinates of both players together.
      bound: M, the largest norm of a record's operator, players together: the joint clip.
      smooth: the Lipschitz constant of a record's operator.
      diameter: D, the diameter of W.
      passes: "one", "many" or "full".
      public_bound: the largest norm of the public terms' operator; 0 for none.
      public_smooth: its Lipschitz constant.
      radius: R, the largest distance of a point of W from the start; None for D.

    Raises:
      ValueError: for numbers out of range.
    """
    checks.one_of("passes", passes, ("one", "many", "full"))
    planning.check_numbers(epsilon=target.epsilon)
    ways: dict[str, tuple[Any, Any, str]] = {
        "one": (single_pass, Disjoint,
                "The strong gap, for independent records of which nothing is clipped, by the bound "
                "of `extragradient.single_pass`; the batch is not that of Corollary 1."),
        "many": (sampled, FixedSize,
                 "The weak gap by Theorem 4 of Boob and Guzman (2023), a rate."),
        "full": (full_batch, None,
                 "Boob and Guzman (2023) analyse the stability of full batches only; the step "
                 "balances it with the errors of optimisation and noise.")}
    schedule, kind, why = ways[passes]
    numbers: Any = dict(population=population, dim=dim, bound=bound, smooth=smooth + public_smooth,
                        diameter=diameter)
    numbers |= {"one": dict(radius=radius, multiplier=target.multiplier()),
                "many": dict(epsilon=target.epsilon, delta=target.delta),
                "full": dict(multiplier=target.multiplier())}[passes]
    chosen = schedule(**numbers)
    query = planning.joint_query(bound, population, kind(batch=chosen.batch) if kind else Full())
    hyper = target.noise(Hyper(query=query, step=Saddle(chosen.step, chosen.step),
                               iterations=chosen.iterations))
    reasons = (why, "The noise is calibrated to all 2T releases; the step is at most 1 / (sqrt(3) "
                    "L).")
    if passes != "one":
        return planning.Plan(hyper, None, False, reasons, gap="weak")
    numbers["multiplier"] = concrete(hyper.query.noise_multiplier.w)
    chosen = single_pass(**numbers, batch=chosen.batch)
    hyper = dataclasses.replace(hyper, step=Saddle(chosen.step, chosen.step))
    return planning.guaranteed(hyper, chosen.gap_bound, (bound + public_bound) * diameter, *reasons)


class Schedule(NamedTuple):
    """The parameters of a run.

    Attributes:
      batch: B, the number of records of a release.
      iterations: T, the number of rounds.
      step: the step of both players.
      gap_bound: a bound on the strong gap; infinite for a rate.
    """

    batch: int
    iterations: int
    step: float
    gap_bound: float = math.inf


def single_pass(*, population: int, dim: int, bound: float, smooth: float, diameter: float,
                multiplier: float, radius: float | None = None,
                batch: int | None = None) -> Schedule:
    """Sets one pass over disjoint batches, with the step and the batch of the smallest bound.

    Let records be independent, and V = (M^2 / B) (1 + d z^2 / B), z the noise multiplier. For step
    <= 1 / (sqrt(3) L) the expected strong gap is at most

        R^2 / (2 step T) + (5/4) step V + rho_D (V / T)^(1/2),           T = n / (2 B),

    with R and rho_D of Lemma (J) in `bounds`, so step = min{1 / (sqrt(3) L), R / (5 T V /
    2)^(1/2)}. B is the best of a geometric grid. Public terms count in L alone: M is that of the
    records.

    *Proof.* Write g = F(z) + x and h = F(w) + y for the releases of a round: x and y have mean 0
    given what came before them, and E||x||^2, E||y||^2 <= V. The inequalities of the two
    projections, at u for z' = P(z - step h) and at z' for w = P(z - step g), give

        2 step <h, w - u> <= ||z - u||^2 - ||z' - u||^2 - ||w - z||^2 + step^2 ||h - g||^2,

    and E||h - g||^2 <= 3 L^2 E||w - z||^2 + (3/2) V + V, of which the first term cancels. Summed,
    2 step E sup_u sum_t <F(w_t), w_t - u> <= R^2 + (5/2) step^2 T V + 2 step E sup_u sum_t <y_t,
    u - w_t>, whose last term is at most 2 step rho_D (T V)^(1/2) by (J). As F is monotone, dividing
    by 2 step T bounds the gap of the average. QED.

    Corollary 1 has B = sqrt(d ln(1/delta)) / epsilon and a bound by M^2 + d sigma^2 in place of V,
    which has larger constants: this B is larger, and the rate is the same.

    Args:
      population: n, the number of records.
      dim: d, the number of coordinates of both players together.
      bound: M, the largest norm of a record's operator, players together.
      smooth: L, the operator's Lipschitz constant, public terms included.
      diameter: D, the diameter of W.
      multiplier: z, of one release that alone meets the target, or the calibrated one.
      radius: R; None for D.
      batch: B; None for the best.
    """
    def schedule_of(batch: int) -> Schedule:
        rounds = max(1, population // (2 * batch))
        variance = bounds.fresh_variance(bound=bound, batch=batch, dim=dim,
                                         multiplier=multiplier)
        among: Any = dict(rounds=rounds, second=2.5 * variance, diameter=diameter, radius=radius)
        step = min(1 / (math.sqrt(3) * smooth), bounds.best_step(**among))
        gap = bounds.average_gap(step=step, variance=variance, **among)
        return Schedule(batch, rounds, step, gap)

    possible = planning.batches(max(1, population // 2)) if batch is None else [batch]
    return min(map(schedule_of, possible), key=lambda chosen: chosen.gap_bound)


def sampled(*, population: int, dim: int, bound: float, smooth: float, diameter: float,
            epsilon: float, delta: float) -> Schedule:
    """Sets n^2 draws of single records by Theorem 4: a weak gap of optimal order.

        B = 1,   T = n^2,   step = min{D / M, 1 / L} / (n max{sqrt n, sqrt(d ln(1/delta))/epsilon}).

    The step is also capped at 1 / (sqrt(3) L), which binds for n = 1 only. Use
    `FixedSize(batch=1)`; 2 n^2 operators are evaluated, and as many releases are charged. The
    arguments are those of `single_pass`, and the privacy target.
    """
    spread = planning.privacy_term(dim, epsilon, delta)
    if 2 * population**2 >= 2**31:
        raise ValueError(f"population must be at most {math.isqrt(2**30 - 1)} for n^2 rounds, got "
                         f"{population}: the counter of their 2 n^2 releases has 32 bits. Take "
                         "passes='one', or jmm.proximal with passes='many'.")
    step = min(diameter / bound, 1 / smooth) / (population * max(math.sqrt(population), spread))
    return Schedule(1, population**2, min(step, 1 / (math.sqrt(3) * smooth)))


def full_batch(*, population: int, dim: int, bound: float, smooth: float, diameter: float,
               multiplier: float) -> Schedule:
    """Sets the rounds on all records; the paper analyses only their stability.

        step T = S = min{min{D / M, 1 / L} sqrt n, D n / (M z (5 d)^(1/2))},

    which balances D^2 / (2 S), the optimisation error, with the stability term of Theorem 4 and
    with that of noise: (5/4) step V of `single_pass`, V = 2 T d (M z / n)^2 for 2T releases. None
    of the three depends on T. It is (L S)^2 rounds, from which on L^2 step^2 T <= 1, so that a run
    stretches the distance of two points by a constant at most; no fewer than sqrt(3) L S, and no
    more than 100,000. The arguments are those of `single_pass`.
    """
    length = min(min(diameter / bound, 1 / smooth) * math.sqrt(population),
                 diameter * population / (bound * multiplier * math.sqrt(5 * dim)))
    steep = smooth * length
    rounds = min(planning.MOST_ROUNDS, math.ceil(max(steep**2, math.sqrt(3) * steep)))
    return Schedule(population, rounds, min(length / rounds, 1 / (math.sqrt(3) * smooth)))
