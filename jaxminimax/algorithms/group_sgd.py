"""Noisy SGD on a drawn group, with weights of the groups by multiplicative updates.

    min over w in W, max over v in the simplex, of  sum_i v_i L_i(w),   L_i group i's mean loss.

    i_t ~ v_t
    w_{t+1} = P_W(w_t - step (noisy mean of clip(grad loss(w_t, z)) over a sample of group i_t))
    v_{t+1} ~ v_t exp(weight_step y_t),   y_t all groups' noisy mean losses at w_t,   t = 1, ..., T,

output the means of w_1, ..., w_{T+1} and of v_1, ..., v_{T+1}; w_1 reads no data, v_1 is uniform.

Source: Zhou and Bassily, "Differentially private worst-group risk minimization", arXiv:2402.19437,
Algorithm 3 (Noisy-SGD-MGR). Departures: noise is calibrated to sampler and rounds together, instead
of by Theorem 9, which has no batch size in it and fails for small ones; the sample is a full batch,
a Poisson sample or one of fixed size; gradients and losses are clipped; groups may differ in size;
`iterations` counts the rounds that release, one less than the paper's T. The step has the square
root that Theorem 10 lacks.

Examples:
    >>> sizes = (500, 200)  # records of each group, public
    >>> hyper = jmm.group_sgd.Hyper(query=jmm.GroupGradients(clip=1.0, sizes=sizes),
    ...                             losses=jmm.GroupLosses(bound=3.0, sizes=sizes), step=1.0,
    ...                             weight_step=0.3, iterations=20)
    >>> hyper = jmm.calibrate(jmm.group_sgd, hyper, epsilon=1.0, delta=1e-6)
    >>> jmm.epsilon(jmm.group_sgd.mechanism(hyper), 1e-6) <= 1
    True
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax.algorithms import bounds, descent, planning
from jaxminimax.base import tree
from jaxminimax.base.types import GroupProblem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Full, GroupGradients, GroupLosses, Repeat, Sampling, Sequence, grid
from jaxminimax.mechanism.costs import concrete
from jaxminimax.mechanism.groups import group_batch_sizes
from jaxminimax.releases.groups import release_group_gradient, release_group_losses

State = descent.State  # z: the model w and the logarithms of the weights v, `[p]`; no memory


@pytree_dataclass
class Hyper:
    """The settings of a run; its numbers are leaves, which may be traced and vmapped over.

    Attributes:
      query: clip norm, noise multiplier, sampling, sizes.
      losses: bound, noise multiplier, the same sizes; its `times` is replaced by `iterations`.
      step: a number or a schedule `t -> step` [parameter units / gradient units].
      weight_step: the step of the log weights, a number or a schedule [1 / loss units].
      iterations: T, rounds of two releases.
      averaging: weights of w_1, ..., w_{T+1} in the average.
    """

    query: GroupGradients
    losses: GroupLosses
    step: Any
    weight_step: Any
    iterations: int = jax.tree.static()
    averaging: descent.Averaging = descent.UNIFORM


def check_same_groups(hyper: Any) -> None:
    """Refuses gradients and losses that are described for different groups.

    Raises:
      ValueError: naming both sizes.
    """
    if hyper.query.sizes != hyper.losses.sizes:
        raise ValueError(f"query has sizes {hyper.query.sizes}, but losses has "
                         f"{hyper.losses.sizes}: they read the same groups.")


def uniform(z: Saddle, hyper: Any) -> tuple[Saddle, descent.Mean]:
    """Returns the model with uniform weights, and the average of this point alone.

    Args:
      z: `Saddle(w, ())`.
      hyper: settings with `query`, `averaging` and `iterations`; `started` checks the others.

    Raises:
      ValueError: for weights, or an undefined step or average.
    """
    if jax.tree.leaves(z.v):
        raise ValueError("z must be Saddle(w, ()): the weights start uniform.")
    w = descent.started(z, hyper).w
    p = len(hyper.query.sizes)
    z = Saddle(w, jnp.full(p, -math.log(p), tree.float_dtype(w)))
    return z, averaged(descent.start_mean(_point(z)), z, jnp.int32(1), hyper)


def _point(z: Saddle) -> Saddle:
    return Saddle(z.w, jnp.exp(z.v))


def averaged(mean: descent.Mean, z: Saddle, t: jax.Array, hyper: Any) -> descent.Mean:
    """Adds the model and the weights of round t = 1, ..., iterations + 1 to the mean."""
    return descent.include(mean, _point(z), hyper.averaging, t, hyper.iterations + 1)


def mechanism(hyper: Hyper) -> Sequence:
    """Describes a run: a gradient of one group and all losses in every round.

    Raises:
      ValueError: if the two parts are described for different groups, or if only the largest loss's
        index is to be released.
    """
    check_same_groups(hyper)
    if hyper.losses.only_argmax:
        raise ValueError("losses.only_argmax must be False: the weights need all losses. "
                         "active_groups releases the index alone.")
    return Sequence(parts=(Repeat(query=hyper.query, times=hyper.iterations),
                           dataclasses.replace(hyper.losses, times=hyper.iterations)),
                    in_turn=True)


def example(query: GroupGradients, iterations: int,
            laplace: float | None = None, losses_noise: str | None = None) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits."""
    losses = GroupLosses(bound=1.0, noise_multiplier=laplace, sizes=query.sizes, noise=losses_noise)
    return Hyper(query=query, losses=losses, step=1.0, weight_step=1.0, iterations=iterations)


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round.

    Args:
      z: `Saddle(w, ())`: the initial model, which must not depend on the data; the weights start
        uniform.
      hyper: see `Hyper`.

    Raises:
      ValueError: for weights, or an undefined step or average.
    """
    z, first = uniform(z, hyper)
    return State(z, (), first, jnp.int32(0))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper,
           problem: GroupProblem) -> State:
    """Makes one round and returns the next state.

    Args:
      key: secret root key of the run, which is never part of the state.
      state: from `init` or the previous round.
      data: leaves `[p, n_max, ...]`, see `problems.by_group`.
      hyper: see `Hyper`.
      problem: loss, operator and projection.

    Returns:
      The next state, in the dtypes of `state.z`; NaN once the releases are spent.

    Raises:
      ValueError: while tracing, if `data` are not those of the described groups or no noise was
        calibrated.
    """
    gradients, losses = mechanism(hyper).parts
    done = state.spent // 2
    t = done + 1
    w, log_weights = state.z
    # i_t, by a key of its own, which no guarantee rests on
    group = jax.random.categorical(
        jax.random.fold_in(jax.random.fold_in(key, 0x6D6763), done), log_weights)
    g = release_group_gradient(key, gradients, done, problem, w, data, group)
    y = release_group_losses(key, losses, done, problem, w, data)  # y_t, at w_t before it moves
    w = descent.stepped(w, g, hyper.step, t, problem)  # w_{t+1}
    weight_step = planning.step_at(hyper.weight_step, t).astype(y.dtype)
    v = jax.nn.log_softmax(log_weights + weight_step * y)  # ln v_{t+1}
    z = tree.cast_like(Saddle(w, v), state.z)
    return State(z, (), averaged(state.mean, z, t + 1, hyper), state.spent + 2)


plan_variants = (planning.Variant({}, 0.048),)


def plan(target: planning.Target, *, problem: GroupProblem, sizes: tuple[int, ...], dim: int,
         iterations: int | None = None, sampling: Sampling | None = None) -> planning.Plan[Hyper]:
    """Plans enough rounds for the privacy term, and Theorem 10's steps for the calibrated noise.

    The guarantee is on E max_i L_i(w) - min_w max_i L_i(w) of the records' own losses, w the
    average of T + 1 models: `model_regret` and `bounds.weights_regret`. With a further round whose
    releases are only thought of, both regrets are of T + 1 rounds. For the minimiser w* of the
    largest loss, sum_i v_i L_i(w*) <= max_i L_i(w*) for all weights v, so a fixed w* is enough.

    Args:
      target: the privacy target.
      problem: a problem, of which only the constants are used.
      sizes: the number of records of each group.
      dim: d, the dimension of w.
      iterations: T, the number of rounds; None for `rounds`.
      sampling: sampling of the drawn group; None for all its records.

    Raises:
      ValueError: for numbers out of range.
    """
    if iterations is None:  # `rounds` refuses a target without epsilon
        iterations = rounds(sizes=sizes, dim=dim, epsilon=target.epsilon,  # type: ignore[arg-type]
                            delta=target.delta)
    query = GroupGradients(clip=problem.lipschitz, sizes=tuple(sizes), sampling=sampling or Full())
    losses = GroupLosses(bound=problem.bound, sizes=tuple(sizes))
    hyper = target.noise(Hyper(query=query, losses=losses, step=1.0, weight_step=1.0,
                               iterations=iterations))
    hyper = scheduled(hyper, dim=dim, diameter=problem.diameter)
    weights = bounds.weights_regret(
        groups=len(sizes), rounds=iterations + 1, bound=problem.bound, step=hyper.weight_step,
        scale=noise_scale(hyper.losses), gaussian=hyper.losses.gaussian)
    return risk_plan(hyper, problem, dim, weights, (
        "The excess worst-group risk on the records by Theorem 10 of Zhou and Bassily (2024).",
        "Steps are for the calibrated noise, with the square root that the theorem lacks."))


def noise_scale(losses: Any) -> float:
    """The scale of the noise on the smallest group's mean loss."""
    return concrete(losses.bound) * concrete(grid.check_noise(losses)) / min(losses.sizes)


def model_regret(hyper: Any, *, dim: int, diameter: float) -> float:
    """Bounds E of the model's average regret, over T + 1 rounds, on the drawn groups' losses.

        M^2 / (2 step (T + 1)) + (step / 2) (C^2 (1 + s / m) + d sigma^2) + p_0 C M

    with sigma the noise of the smallest group, s the sampling's `spread`, and p_0 of Poisson
    samples (`bounds.with_redraws`).
    """
    query, clip = hyper.query, concrete(hyper.query.clip)
    largest = max(query.sizes)  # samples are drawn among so many rows
    # the second moment of a mean of m records is C^2 at most, but for sums of a random number
    spread = query.sampling.spread(largest) / min(group_batch_sizes(query))
    shortfall = query.sampling.shortfall(largest)
    return bounds.average_gap(
        step=hyper.step, rounds=hyper.iterations + 1, variance=0.0, diameter=diameter,
        second=clip**2 * (1 + spread) + dim * _gradient_noise(query) ** 2,
    ) + shortfall * clip * diameter


def risk_plan(hyper: Any, problem: GroupProblem, dim: int, weights: float,
              why: tuple[str, ...]) -> planning.Plan[Any]:
    """Returns the plan whose guarantee is `model_regret` and the regret of the groups' choice."""
    if not problem.convex:
        return planning.Plan(hyper, None, False, (*why, "A bound is for convex losses."),
                             gap="risk", on="records")
    return planning.guaranteed(
        hyper, model_regret(hyper, dim=dim, diameter=problem.diameter) + weights, problem.bound,
        *why, "That on the population is larger by what sampling adds.", gap="risk", on="records")


def rounds(*, sizes: tuple[int, ...], dim: int, epsilon: float, delta: float) -> int:
    """Rounds until the privacy term dominates: ceil((n epsilon)^2 / (d ln(1/delta))).

    n is the smallest group's size. More rounds do not hurt the rate. Theorem 10's T has another
    factor, whose units do not cancel. At most 100,000: with more records the first term, M L /
    T^(1/2), stays at 0.3 % of M L.
    """
    planning.check_numbers(dim=dim, epsilon=epsilon, delta=delta)
    most_iterations = math.ceil((min(sizes) * epsilon) ** 2 / (dim * math.log(1 / delta)))
    return max(1, min(most_iterations, planning.MOST_ROUNDS))


def gradient_step(query: GroupGradients, iterations: int, *, dim: int, diameter: float) -> float:
    """The step M / sqrt(T (C^2 + d sigma^2)), which minimises the bound on the regret of w.

    Args:
      query: a calibrated query; sigma is the noise of the smallest group's mean gradient.
      iterations: T, the number of rounds.
      dim: d, the dimension of w.
      diameter: M, the diameter of W.

    Raises:
      ValueError: for numbers that are not positive, or a noise multiplier that was not set.
    """
    planning.check_numbers(dim=dim, diameter=diameter)
    return bounds.best_step(rounds=iterations, diameter=diameter,
                            second=concrete(query.clip) ** 2 + dim * _gradient_noise(query) ** 2)


def _gradient_noise(query: GroupGradients) -> float:
    z, clip = concrete(grid.check_noise(query)), concrete(query.clip)
    return clip * z / min(group_batch_sizes(query))


def weight_step(losses: GroupLosses, iterations: int) -> float:
    """The step sqrt(2 ln p / T) / U, with U = B + tau ln(p n T) above nearly all noisy losses.

    If tau is the deviation of Gaussian noise, (2 ln(p n T))^(1/2) replaces the logarithm. tau and n
    are those of the smallest group. One group counts as two: its weight stays 1.

    Raises:
      ValueError: for a noise multiplier that was not set.
    """
    p, scale = len(losses.sizes), noise_scale(losses)
    reach = math.log(p * min(losses.sizes) * iterations)
    loss_bound = concrete(losses.bound) + scale * (
        math.sqrt(2 * reach) if losses.gaussian else reach)
    return math.sqrt(2 * math.log(max(p, 2)) / iterations) / loss_bound


def scheduled(hyper: Hyper, *, dim: int, diameter: float) -> Hyper:
    """Returns a calibrated `hyper` with the steps of `gradient_step` and `weight_step`."""
    return dataclasses.replace(
        hyper, step=gradient_step(hyper.query, hyper.iterations, dim=dim, diameter=diameter),
        weight_step=weight_step(hyper.losses, hyper.iterations))
