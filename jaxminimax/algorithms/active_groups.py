"""Noisy SGD on the group whose noisy loss is largest.

    i_t     = argmax_i (L_i(w_t) + noise)
    w_{t+1} = P_W(w_t - step (noisy mean of clip(grad loss(w_t, z)) over a sample of group i_t)),

t = 1, ..., T, output the mean of w_1, ..., w_{T+1}; w_1 reads no data.

Source: Zhou and Bassily, "Differentially private worst-group risk minimization", arXiv:2402.19437,
Algorithm 5 (Noisy-SGD-AGS). Departures as in `group_sgd`; the step is that of Theorem 14. Only the
index of the largest loss is released: with Gumbel noise of one scale (`Selection`), which is
charged as the exponential mechanism, or with the paper's Laplace or Gaussian noise for each group's
own size (`GroupLosses(only_argmax=True)`), charged like all losses. A baseline: its rate has a term
that the weights of `group_sgd` avoid.

Examples:
    >>> sizes = (500, 200)  # records of each group, public
    >>> hyper = jmm.active_groups.Hyper(query=jmm.GroupGradients(clip=1.0, sizes=sizes),
    ...                                 losses=jmm.mechanism.Selection(bound=3.0, sizes=sizes),
    ...                                 step=1.0,
    ...                                 iterations=20)
    >>> hyper = jmm.calibrate(jmm.active_groups, hyper, epsilon=1.0, delta=1e-6)
    >>> jmm.epsilon(jmm.active_groups.mechanism(hyper), 1e-6) <= 1
    True
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.algorithms import bounds, descent, group_sgd, planning
from jaxminimax.base import tree
from jaxminimax.base.types import GroupProblem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Full, GroupLosses, Repeat, Sampling, Selection, Sequence, groups
from jaxminimax.releases.groups import release_group_gradient, release_group_index


@pytree_dataclass
class Hyper:
    """The settings of a run; its numbers are leaves, which may be traced and vmapped over.

    Attributes:
      query: clip norm, noise multiplier, sampling, sizes.
      losses: bound, noise multiplier, the same sizes: a `Selection`, or `GroupLosses` with
        `only_argmax=True`; its `times` is replaced by `iterations`.
      step: a number or a schedule `t -> step` [parameter units / gradient units].
      iterations: T, rounds of two releases.
      averaging: weights of w_1, ..., w_{T+1} in the average.
    """

    query: groups.GroupGradients
    losses: Selection | GroupLosses
    step: Any
    iterations: int = jax.tree.static()
    averaging: descent.Averaging = descent.UNIFORM


class State(NamedTuple):
    """The state of a run, all of it private output, which may be published and stored.

    Attributes:
      z: the model w, and the number of rounds in which each group was active, `[p]`.
      mean: running average of the models, the first one included.
      spent: number of releases so far, two a round, int32 `[]`.
    """

    z: Saddle
    mean: descent.Mean
    spent: jax.Array

    @property
    def average(self) -> Saddle:
        """The averaged model and the share of the rounds in which each group was active."""
        rounds = jnp.maximum(jnp.sum(self.z.v), 1)
        return Saddle(tree.cast_like(self.mean.value.w, self.z.w), self.z.v / rounds)


def mechanism(hyper: Hyper) -> Sequence:
    """Describes a run: the index of a group and its gradient in every round.

    Raises:
      ValueError: if the two parts are described for different groups, or all losses would be
        released.
    """
    group_sgd.check_same_groups(hyper)
    if not hyper.losses.only_argmax:
        raise ValueError("losses must be a Selection, or GroupLosses with only_argmax=True: only "
                         "the index of the largest loss is released.")
    return Sequence(parts=(dataclasses.replace(hyper.losses, times=hyper.iterations),
                           Repeat(query=hyper.query, times=hyper.iterations)),
                    in_turn=True)


def example(query: groups.GroupGradients, iterations: int,
            laplace: float | None = None, losses_noise: str | None = None) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits."""
    losses: Any = Selection(bound=1.0, noise_multiplier=laplace, sizes=query.sizes)
    if losses_noise is not None:
        losses = GroupLosses(bound=1.0, noise_multiplier=laplace, sizes=query.sizes,
                             only_argmax=True, noise=losses_noise)
    return Hyper(query=query, losses=losses, step=1.0, iterations=iterations)


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round.

    Args:
      z: `Saddle(w, ())`: the initial model, which must not depend on the data.
      hyper: see `Hyper`.

    Raises:
      ValueError: for a second player, or an undefined step or average.
    """
    if jax.tree.leaves(z.v):
        raise ValueError("z must be Saddle(w, ()): there are no weights.")
    w = descent.started(z, hyper).w
    z = Saddle(w, jnp.zeros(len(hyper.query.sizes), tree.float_dtype(w)))
    first = _averaged(descent.start_mean(Saddle(w, ())), w, jnp.int32(1), hyper)
    return State(z, first, jnp.int32(0))


def _averaged(mean: descent.Mean, w: PyTree, t: jax.Array, hyper: Hyper) -> descent.Mean:
    return descent.include(mean, Saddle(w, ()), hyper.averaging, t, hyper.iterations + 1)


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper,
           problem: GroupProblem) -> State:
    """Makes one round: the index of a group on `data`, its noisy gradient, and a step.

    `key` is the secret root key of the run; `data` has leaves `[p, n_max, ...]`, see
    `problems.by_group`. The result is NaN once all releases are spent.
    """
    losses, gradients = mechanism(hyper).parts
    done = state.spent // 2
    t = done + 1
    w, active = state.z
    group = release_group_index(key, losses, done, problem, w, data)  # i_t
    g = release_group_gradient(key, gradients, done, problem, w, data, group)
    w = descent.stepped(w, g, hyper.step, t, problem)  # w_{t+1}
    active = active + jax.nn.one_hot(group, active.shape[0], dtype=active.dtype)
    return State(Saddle(w, active), _averaged(state.mean, w, t + 1, hyper), state.spent + 2)


plan_variants = (planning.Variant({}, 0.041),)


def plan(target: planning.Target, *, problem: GroupProblem, sizes: tuple[int, ...], dim: int,
         iterations: int | None = None, sampling: Sampling | None = None) -> planning.Plan[Hyper]:
    """Plans four times the rounds of Theorem 14, and its step for the calibrated noise.

    The guarantee is on E max_i L_i(w) - min_w max_i L_i(w) of the records' own losses, w the
    average of T + 1 models: `group_sgd.model_regret` and, for every round, `bounds.
    selection_regret`. By four times the rounds the error of optimisation is halved and that of
    noisy losses is at most doubled. The theorem balances them up to a constant, so the rate stays
    the same.

    Args:
      target: the privacy target.
      problem: a problem, of which only the constants are used.
      sizes: the number of records of each group.
      dim: d, the dimension of w.
      iterations: T, the number of rounds; None for four times `rounds`.
      sampling: sampling of the drawn group; None for all its records.

    Raises:
      ValueError: for numbers out of range.
    """
    if iterations is None:  # `rounds` refuses a target without epsilon
        iterations = 4 * rounds(
            sizes=sizes, epsilon=target.epsilon,  # type: ignore[arg-type]
            delta=target.delta, bound=problem.bound,
            diameter=problem.diameter, lipschitz=problem.lipschitz)
    query = groups.GroupGradients(clip=problem.lipschitz, sizes=tuple(sizes),
                                  sampling=sampling or Full())
    losses = Selection(bound=problem.bound, sizes=tuple(sizes))
    hyper = target.noise(Hyper(query=query, losses=losses, step=1.0, iterations=iterations))
    hyper = scheduled(hyper, dim=dim, diameter=problem.diameter)
    chosen = bounds.selection_regret(groups=len(sizes), scale=group_sgd.noise_scale(hyper.losses))
    return group_sgd.risk_plan(hyper, problem, dim, chosen, (
        "The excess worst-group risk on the records by Theorem 14 of Zhou and Bassily (2024).",
        "By default the rounds are four times the theorem's, which at most doubles its bound.",
        "The step is for the calibrated noise."))


def rounds(*, sizes: tuple[int, ...], epsilon: float, delta: float, diameter: float,
           lipschitz: float, bound: float) -> int:
    """Theorem 14's number of rounds, M L n epsilon / (16 B sqrt(ln(1/delta))), rounded up.

    Here n is the smallest group's size, which is K / p for equal groups.
    """
    planning.check_numbers(epsilon=epsilon, diameter=diameter, lipschitz=lipschitz, bound=bound,
                           delta=delta)
    n = min(sizes)
    return max(1, math.ceil(diameter * lipschitz * n * epsilon
                            / (16 * bound * math.sqrt(math.log(1 / delta)))))


def scheduled(hyper: Hyper, *, dim: int, diameter: float) -> Hyper:
    """Returns the calibrated `hyper` with the constant step of `group_sgd.gradient_step`."""
    step = group_sgd.gradient_step(hyper.query, hyper.iterations, dim=dim, diameter=diameter)
    return dataclasses.replace(hyper, step=step)
