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
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax import _check, _tree, averaging, schedules
from jaxminimax import mechanism as words
from jaxminimax._types import GroupProblem, Saddle, Tree, record
from jaxminimax.averaging import UNIFORM, Averaging
from jaxminimax.mechanism import GroupGradients, GroupLosses, Repeat, Sequence
from jaxminimax.release_groups import release_group_gradient, release_group_losses

# what the run's key is folded with for the draw of a group, which no guarantee rests on
_CHOICE = 0x6D6763


@record
class Hyper:
    """Numbers are leaves, so they may be traced and vmapped over; what shapes the program is not.

    Attributes:
      query: clip norm, noise multiplier, sampling, sizes.
      losses: bound, noise multiplier, the same sizes; its `times` is replaced by `iterations`.
      step: a number or a schedule `t -> step` [parameter units / gradient units].
      weight_step: of the log weights, a number or a schedule [1 / loss units].
      iterations: T, rounds of two releases.
      averaging: weights of w_1, ..., w_{T+1} in the average.
      strategy: how clipped sums are computed: "auto", "vmap", "microbatch" or "ghost", see
        `clipped_sum`.
      microbatch: see `clipped_sum`.
    """

    query: GroupGradients
    losses: GroupLosses
    step: Any
    weight_step: Any
    iterations: int = jax.tree.static()
    averaging: Averaging = UNIFORM
    strategy: str = jax.tree.static(default="auto")
    microbatch: int = jax.tree.static(default=32)


class State(NamedTuple):
    """Everything here is private output: it may be published and stored.

    Attributes:
      z: the model w and the logarithms of the weights v, `[p]`.
      mean: running average of w and of v, the first point included.
      spent: releases made so far, two a round, int32 `[]`.
    """

    z: Saddle
    mean: averaging.Mean
    spent: jax.Array

    @property
    def average(self) -> Saddle:
        """The averaged model and weights, in the dtypes of z."""
        return _tree.cast_like(self.mean.value, self.z)


def mechanism(hyper: Hyper) -> Sequence:
    """What a run does to the data: a gradient of one group and all losses in every round.

    Raises:
      ValueError: if the two parts are described for different groups, or if only the largest loss's
        index is to be released.
    """
    if hyper.query.sizes != hyper.losses.sizes:
        raise ValueError(f"query has sizes {hyper.query.sizes}, but losses has "
                         f"{hyper.losses.sizes}: they read the same groups.")
    if hyper.losses.only_argmax:
        raise ValueError("losses.only_argmax must be False: the weights need all losses. "
                         "active_groups releases the index alone.")
    return Sequence(parts=(Repeat(query=hyper.query, times=hyper.iterations),
                           dataclasses.replace(hyper.losses, times=hyper.iterations)),
                    in_turn=True)


def init(z: Saddle, hyper: Hyper) -> State:
    """The state before the first round.

    Args:
      z: `Saddle(w, ())`: the initial model, which must not depend on the data; the weights start
        uniform.
      hyper: see `Hyper`.

    Raises:
      ValueError: for weights, or a step or an average that is not defined.
    """
    _check.count("iterations", hyper.iterations)
    averaging.check(hyper.averaging)
    schedules.check("step", hyper.step)
    schedules.check("weight_step", hyper.weight_step)
    if jax.tree.leaves(z.v):
        raise ValueError("z must be Saddle(w, ()): the weights start uniform.")
    w = jax.tree.map(jnp.asarray, z.w)
    p = len(hyper.query.sizes)
    z = Saddle(w, jnp.full(p, -math.log(p), _tree.float_dtype(w)))
    first = _averaged(averaging.start(_point(z)), z, jnp.int32(1), hyper)
    return State(z, first, jnp.int32(0))


def _point(z: Saddle) -> Saddle:
    return Saddle(z.w, jnp.exp(z.v))


def _averaged(mean: averaging.Mean, z: Saddle, t: jax.Array, hyper: Hyper) -> averaging.Mean:
    return averaging.include(mean, _point(z), hyper.averaging, t, hyper.iterations + 1)


def update(key: jax.Array, state: State, data: Tree, hyper: Hyper, problem: GroupProblem) -> State:
    """One round.

    Args:
      key: root key of the run. A secret, so never part of the state.
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
    group = jax.random.categorical(
        jax.random.fold_in(jax.random.fold_in(key, _CHOICE), done), log_weights)
    g = release_group_gradient(key, gradients, done, problem, w, data, group,
                               strategy=hyper.strategy, microbatch=hyper.microbatch)
    y = release_group_losses(key, losses, done, problem, w, data)  # at w_t, before it moves
    z = Saddle(descend(w, g, schedules.at(hyper.step, t), problem),
               jax.nn.log_softmax(log_weights + _step(hyper.weight_step, t, y) * y))
    z = _tree.cast_like(z, state.z)
    return State(z, _averaged(state.mean, z, t + 1, hyper), state.spent + 2)


def _step(step: Any, t: jax.Array, like: jax.Array) -> jax.Array:
    return jnp.asarray(schedules.at(step, t), like.dtype)


def descend(w: Tree, g: Tree, step: jax.typing.ArrayLike, problem: GroupProblem) -> Tree:
    """P_W(w - step g), in the dtypes of w."""
    moved = jax.tree.map(lambda x, a: x - jnp.asarray(step, x.dtype) * a.astype(x.dtype), w, g)
    return _tree.cast_like(problem.project(moved), w)


def rounds(*, sizes: tuple[int, ...], dim: int, epsilon: float, delta: float) -> int:
    """A number of rounds that leaves the privacy term: ceil((n epsilon)^2 / (d ln(1/delta))).

    With n the smallest group's size. More rounds do not hurt the rate. Theorem 10's T has another
    factor, whose units do not cancel.
    """
    _check.count("dim", dim)
    _check.number("epsilon", epsilon, low=0.0)
    _check.number("delta", delta, low=0.0, high=1.0)
    return max(1, math.ceil((min(sizes) * epsilon) ** 2 / (dim * math.log(1 / delta))))


def gradient_step(query: GroupGradients, iterations: int, *, dim: int, diameter: float) -> float:
    """M / sqrt(T (C^2 + d sigma^2)), which minimises the bound on the regret of w.

    Args:
      query: calibrated; sigma is the noise of the smallest group's mean gradient.
      iterations: T.
      dim: d, of w.
      diameter: M, of W.

    Raises:
      ValueError: for numbers that are not positive, or a noise multiplier that was not set.
    """
    _check.count("dim", dim)
    _check.number("diameter", diameter, low=0.0)
    clip = words.concrete(query.clip)
    z = words.concrete(words.check_noise(query))
    noise = clip * z / min(words.group_batch_sizes(query))
    return diameter / math.sqrt(iterations * (clip**2 + dim * noise**2))


def weight_step(losses: GroupLosses, iterations: int) -> float:
    """sqrt(2 ln p / T) / U with U = B + tau ln(p n T), a bound on all noisy losses but seldom.

    tau and n are those of the smallest group. One group counts as two: its weight stays 1.

    Raises:
      ValueError: for a noise multiplier that was not set.
    """
    p, n = len(losses.sizes), min(losses.sizes)
    if losses.noise_multiplier is None:
        raise ValueError("noise_multiplier of losses is not set: calibrate first.")
    bound = words.concrete(losses.bound)
    scale = bound * words.concrete(losses.noise_multiplier) / n
    most = bound + scale * math.log(p * n * iterations)
    return math.sqrt(2 * math.log(max(p, 2)) / iterations) / most


def scheduled(hyper: Hyper, *, dim: int, diameter: float) -> Hyper:
    """`hyper`, calibrated, with the constant steps of `gradient_step` and `weight_step`."""
    return dataclasses.replace(
        hyper, step=gradient_step(hyper.query, hyper.iterations, dim=dim, diameter=diameter),
        weight_step=weight_step(hyper.losses, hyper.iterations))
