"""Private online optimisation by follow-the-regularised-leader on noisy prefix sums of gradients.

It reads one record a round, each record once. With G_t the noisy sum of the clipped operators so
far,

    z_{t+1} = P(z_1 - step G_t),   G_t = G_{t-1} + release_leaf(t),                t = 1, ..., T,

the minimiser of <G_t, z> + ||z - z_1||^2 / (2 step). The sums' noise is that of a binary tree
(`TreeSums`: O(log t) nodes instead of t) or of a matrix factorisation (`CorrelatedSums`: less by
half); there is no sampling, and so no assumption on the order of the records. The output is the
average of z_1 ... z_T. Public terms of the problem are linearised: their operator at z_t, which
reads no record, is added to the leaf of a round that has a record.

It is an `OnlineOptimiser`: `update` reads the records of a data set in their order, and
`observe_record` any record that its caller has not used before. It holds two vectors; a round draws
two vectors of noise on average from a tree, and as many as there are bands of correlated noise.

Source: Kairouz, McMahan, Song, Thakkar, Thakurta and Xu, "Practical and private (deep) learning
without sampling or shuffling", arXiv:2103.00039, as the optimiser that Zhou and Bassily,
arXiv:2402.19437, leave open in Algorithm 2. Departures: replacing a record moves a node by twice
the clip norm (their guarantee is for a record replaced by zero), which the accountant charges; the
state holds noisy sums only; `plan` takes the noise of a factorisation where it is less.

Examples:
    >>> plan = jmm.plan(jmm.ftrl, population=200, dim=3, bound=1.0, diameter=2.0, epsilon=1.0,
    ...                 delta=1e-6)
    >>> jmm.mechanism.releases(jmm.ftrl.mechanism(plan.hyper))  # every record once
    200
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax.algorithms import bounds, descent, planning
from jaxminimax.base import arguments, checks, tree
from jaxminimax.base.types import Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import TreeSums, costs, factorisation, sums_for
from jaxminimax.releases.stream import release_leaf


@pytree_dataclass
class Hyper:
    """The settings of a run; its numbers are leaves, which may be traced and vmapped over.

    Attributes:
      query: clip norm of both players together, noise multiplier, number of leaves T.
      step: [parameter units / gradient units]; see `theorem_step`.
    """

    query: factorisation.PrefixSums
    step: float | jax.Array

    @property
    def iterations(self) -> int:
        """T, the number of rounds and of releases."""
        return self.query.leaves


State = descent.State  # its memory: z_1, and G_t, noisy, in at least float32


def mechanism(hyper: Hyper) -> factorisation.PrefixSums:
    """Describes a run: one leaf a round. The accountant reads nothing else."""
    return hyper.query


def example(query: TreeSums, iterations: int) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits."""
    return Hyper(query=dataclasses.replace(query, leaves=iterations), step=1.0)


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round.

    Args:
      z: initial point in the feasible set; must not depend on the data.
      hyper: see `Hyper`.

    Raises:
      ValueError: for a step that is not positive.
    """
    checks.number("step", hyper.step, low=0.0)
    z = arguments.point(z)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, tree.at_least_float32(x.dtype)), z)
    return State(z, (z, zeros), descent.start_mean(z), jnp.int32(0))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper, problem: Problem) -> State:
    """Makes one round on record t of the data set; beyond the last record leaves are empty.

    Args:
      key: secret root key of the run, which is never part of the state.
      state: from `init` or the previous round.
      data: leaves `[n, ...]`; their order must be public.
      hyper: see `Hyper`.
      problem: operator and projection.

    Returns:
      The next state, in the dtypes of `state.z`; NaN once all leaves are spent.

    Raises:
      ValueError: while tracing, if no noise was calibrated.
    """
    return observe_record(key, state, data, (state.spent,), jnp.array(True), hyper, problem)


def observe_record(key: jax.Array, state: State, data: PyTree, place: tuple[jax.Array, ...],
                   present: jax.Array, hyper: Hyper, problem: Problem) -> State:
    """Makes one round on the record at `place`, which no other round may read.

    Args:
      key: root key of the run.
      state: from `init` or the previous round.
      data: leaves `[n, ...]`, or `[p, n_max, ...]`.
      place: an index for each leading axis.
      present: whether there is a record, bool `[]`.
      hyper: see `Hyper`.
      problem: operator and projection.
    """
    t = state.spent + 1
    gradient = release_leaf(key, mechanism(hyper), state.spent, problem, state.z, data, place,
                            present)
    origin, total = state.memory  # z_1, G_{t-1}
    total = jax.tree.map(jnp.add, total, gradient)  # G_t
    z = descent.stepped(origin, total, hyper.step, t, problem)  # z_{t+1}
    mean = descent.include(state.mean, state.z, descent.UNIFORM, t, hyper.iterations)
    return State(z, (origin, total), mean, t)


plan_variants = (planning.Variant({}, 0.11),)


def plan(target: planning.Target, *, population: int, dim: int, bound: float,
         diameter: float, public_bound: float = 0.0,
         radius: float | None = None) -> planning.Plan[Hyper]:
    """Plans one pass over n records, with `planned_step`, and its bound on the strong gap.

    With N_t the noise of a prefix, of norm at most sigma (d h)^(1/2) in the mean, see
    `theorem_step`, for every u of the set

        (1/T) sum <g_t, z_t - u>
            <=  R^2 / (2 step T) + (step / 2) L_all (L_all + 2 sigma (d h)^(1/2)),

    the average regret, since g_t = G_{x_t}(z_t) + r(z_t) moves no point without noise further than
    step L_all, and noise moves a point by step ||N_t|| at most. This holds for each run and every u
    at once, public terms linearised. As x_t is fresh, g_t - F(z_t) meets Lemma (J) of `bounds` with
    V = L^2: the strong gap on the population is at most rho_D L T^(-1/2) more. T counts the rounds
    that have a record. (The proximal form, argmin <G_t, z> + t r(z) + ..., needs r to be a gradient
    in both players at once.)

    Args:
      target: the privacy target; without epsilon there is no noise.
      population: n, the number of rounds.
      dim: d, the number of coordinates of both players together; larger points are refused.
      bound: L, the largest norm of a record's operator, players together: the clip norm.
      diameter: D, the diameter of the feasible set.
      public_bound: P, the largest norm of the public terms' operator; 0 for none.
      radius: R, the largest distance of a point of the set from the start; None for D.

    Raises:
      ValueError: for numbers out of range.
    """
    hyper = target.noise(Hyper(query=sums_for(bound, population, dim), step=1.0))
    numbers: Any = dict(dim=dim, diameter=diameter, public_bound=public_bound, radius=radius)
    step = planned_step(hyper.query, **numbers)
    regret = regret_bound(hyper.query, **numbers, step=step)
    gap = regret + bounds.reaches(diameter, radius)[1] * bound / math.sqrt(population)
    longer = step / theorem_step(hyper.query, **numbers)
    return planning.guaranteed(
        dataclasses.replace(hyper, step=step), gap, (bound + public_bound) * diameter,
        "The strong gap, for independent records of which nothing is clipped: the average regret, "
        f"{regret:.3g}, of follow-the-regularised-leader on noisy sums, Kairouz et al. (2021), "
        "with the deviation of their noise, and the sampling error of one record a round.",
        f"The step is {longer:.3g} times the one of the smallest bound.",
        "The noise is that of a replaced record, twice the published sensitivity.")


def _second(query: factorisation.PrefixSums, dim: int, public_bound: float,
            noise_multiplier: Any) -> float:
    """L_all^2 + 2 L_all sigma (d h)^(1/2)."""
    z = query.noise_multiplier if noise_multiplier is None else noise_multiplier
    checks.number("noise_multiplier", z, low=0.0, closed=True)
    clip = costs.concrete(query.clip)
    noise = clip * costs.concrete(z) * math.sqrt(dim) * query.spread()
    return (clip + public_bound) * (clip + public_bound + 2 * noise)


def theorem_step(query: factorisation.PrefixSums, *, dim: int, diameter: float,
                 noise_multiplier: Any = None, public_bound: float = 0.0,
                 radius: float | None = None) -> float:
    """The step that minimises the bound on the regret; see `plan`.

    It is R / (T (L_all^2 + 2 L_all sigma (d h)^(1/2)))^(1/2), sigma = L noise_multiplier and sigma
    h^(1/2) above the deviation of every prefix sum's noise: h = ceil(log2(T + 1)) for a tree's
    nodes.

    Args:
      query: clip norm L and leaves T.
      dim: d, the number of coordinates of z.
      diameter: D, the diameter of the feasible set.
      noise_multiplier: the noise multiplier; None for that of the query.
      public_bound: P, L_all = L + P.
      radius: R; None for D.

    Raises:
      ValueError: for numbers out of range, or a noise multiplier that was not set.
    """
    planning.check_numbers(dim=dim, diameter=diameter)
    return bounds.best_step(rounds=query.leaves, diameter=diameter, radius=radius,
                            second=_second(query, dim, public_bound, noise_multiplier))


def planned_step(query: factorisation.PrefixSums, *, dim: int, diameter: float,
                 noise_multiplier: Any = None, public_bound: float = 0.0,
                 radius: float | None = None) -> float:
    """The step min{2 `theorem_step`, R / (L_all T^(1/2))}, the second as without noise.

    The bound has noise move every point against the gradient. On the average it moves points in no
    direction, so a longer step costs less than the bound says. On the two bilinear games of
    `benchmarks.rates`, n of 1,000 and 10,000, twice the step had 0.5 to 0.95 of the gap,
    and longer ones had no less. The arguments are those of `theorem_step`.
    """
    step = theorem_step(query, dim=dim, diameter=diameter, noise_multiplier=noise_multiplier,
                        public_bound=public_bound, radius=radius)
    return min(2 * step, bounds.best_step(
        rounds=query.leaves, second=(costs.concrete(query.clip) + public_bound) ** 2,
        diameter=diameter, radius=radius))


def regret_bound(query: factorisation.PrefixSums, *, dim: int, diameter: float,
                 public_bound: float = 0.0, radius: float | None = None,
                 step: float | None = None) -> float:
    """The bound of `plan` on the average regret, for convex losses.

    With the best step it is R ((L_all^2 + 2 L_all L z (d h)^(1/2)) / T)^(1/2), z the noise
    multiplier, and c times that step has (c + 1/c) / 2 of it. The arguments are those of
    `theorem_step`, and `step`; None for the best.
    """
    among: Any = dict(rounds=query.leaves, diameter=diameter, radius=radius,
                      second=_second(query, dim, public_bound, None))
    return bounds.average_gap(step=bounds.best_step(**among) if step is None else step,
                              variance=0.0, **among)
