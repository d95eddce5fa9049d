"""Gradients of all groups in every release: balanced groups, then minimax.

    min over w in W, max over v in the simplex, of  sum_i v_i L_i(w),   L_i group i's mean loss.

    g_t     = sum_i v_t,i / n_i sum_j clip(grad loss(w_t, z_ij), C) + N(0, (D_t / mu)^2 I),
    D_t     = 2 C max_i v_t,i / n_i,
    w_{t+1} = P_W(a step of the optimiser along g_t),                              t = 1, ..., T,
    y_t     = all groups' noisy mean losses at w_t,                           t = T_0 + 1, ..., T,
    v_{t+1} = min{v_t exp(weight_step y_t) / sum, cap n_i / (p min n)}      from t = T_0 + 1 on,

v_1 = (1/p, ..., 1/p), output the average of w_1, ..., w_{T+1}; w_1 reads no data. In the first T_0
rounds every group has the same weight, and no loss is released. The noise of a round follows the
weights of that round, which were released before it: at most `cap` times that of balanced weights.

With a query of `clips="by_weight"` a weight shortens its group's clip norm instead, as the proof of
`GroupGradients` has it: the noise is that of balanced weights in every round, and v is not capped,

    g_t     = sum_i v_t,i / n_i sum_j clip(grad loss(w_t, z_ij), C / a_i) + N(0, (D / mu)^2 I),
    D       = 2 C / (p min n),    a_i = p min n v_t,i / n_i.

Source: the saddle problem and its weights are those of Sagawa, Koh, Hashimoto and Liang,
"Distributionally robust neural networks for group shifts", ICLR 2020, arXiv:1911.08731,
Algorithm 1, and of Zhou and Bassily, "Differentially private worst-group risk minimization",
arXiv:2402.19437, Algorithm 3. Departures: a release reads all groups instead of one that is drawn
(Algorithm 3's noise on the drawn group i is D_i = 2 C / n_i, and the balanced one is p times
smaller on the smallest group); balanced rounds come first; the weights are capped. Without `losses`
the weights stay balanced.

Examples:
    >>> sizes = (500, 200)  # records of each group, public
    >>> query = jmm.GroupGradients(clip=1.0, sizes=sizes, groups="all")
    >>> hyper = jmm.balanced_groups.Hyper(query=query, step=1.0, iterations=20,
    ...                                   losses=jmm.GroupLosses(bound=3.0, sizes=sizes))
    >>> hyper = jmm.calibrate(jmm.balanced_groups, hyper, epsilon=1.0, delta=1e-6)
    >>> jmm.epsilon(jmm.balanced_groups.mechanism(hyper), 1e-6) <= 1
    True
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxminimax.algorithms import descent, group_sgd, planning
from jaxminimax.base import checks, tree
from jaxminimax.base.types import GroupProblem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Description, GroupGradients, GroupLosses, Repeat, Sequence
from jaxminimax.releases.groups import release_group_losses, release_weighted_gradient


@pytree_dataclass
class Hyper:
    """The settings of a run; its numbers are leaves, which may be traced and vmapped over.

    Attributes:
      query: clip norm, noise multiplier, sizes; with `groups="all"`.
      losses: bound, noise multiplier, the same sizes; its `times` is replaced by the number of
        rounds in which weights move. None for weights that stay balanced.
      step: a number or a schedule `t -> step` [parameter units / gradient units].
      weight_step: the step of the log weights, a number or a schedule [1 / loss units].
      iterations: T, the number of rounds.
      balanced: T_0 over T, in [0, 1), rounded down to whole rounds.
      cap: the largest noise of moved weights divided by that of balanced ones; above 1. With
        clip norms by weight it is not read.
      averaging: weights of w_1, ..., w_{T+1} in the average.
      optimiser: a factory `step -> optax.GradientTransformation`; it sees released gradients only.
        Keep one function object: it is hashed by identity.
    """

    query: GroupGradients
    losses: GroupLosses | None
    step: Any
    weight_step: Any = 0.03
    iterations: int = jax.tree.static()
    balanced: float = jax.tree.static(default=0.3)
    cap: float | jax.Array = 2.0
    averaging: descent.Averaging = descent.UNIFORM
    optimiser: Callable[..., Any] = jax.tree.static(default=optax.sgd)


class State(NamedTuple):
    """The state of a run, all of it private output, which may be published and stored.

    Attributes:
      z: the model w and the logarithms of the weights v, `[p]`.
      mean: running average of w and of v, the first point included.
      memory: the optimiser's state.
      losses: the groups' noisy mean losses of the last round that released them, `[p]`; NaN before.
      spent: number of releases so far, int32 `[]`: one a round, and two from round T_0 + 1 on.
      rounds: number of rounds so far, int32 `[]`.
    """

    z: Saddle
    mean: descent.Mean
    memory: Any
    losses: jax.Array
    spent: jax.Array
    rounds: jax.Array

    @property
    def average(self) -> Saddle:
        """The averaged model and weights, in the dtypes of z."""
        return tree.cast_like(self.mean.value, self.z)


def rounds_balanced(hyper: Hyper) -> int:
    """T_0, the number of balanced rounds: all rounds without losses.

    Raises:
      ValueError: for a share that leaves no round for weights to move.
    """
    if hyper.losses is None:
        return hyper.iterations
    checks.number("balanced", hyper.balanced, low=-1e-300, high=1.0)
    return int(hyper.balanced * hyper.iterations)


def mechanism(hyper: Hyper) -> Description:
    """Describes a run: T gradients of all groups, and losses from T_0 + 1 on.

    A run that is stopped has made its first releases in this order, which `Sequence` charges:
    gradients alone in the first T_0 rounds.

    Raises:
      ValueError: if the two parts are described for different groups, if gradients are of one group
        each, or if only the largest loss's index is to be released.
    """
    if hyper.query.groups != "all":
        raise ValueError("query.groups must be 'all', got "
                         f"{hyper.query.groups!r}: GroupGradients(..., groups='all').")
    repeated = Repeat(query=hyper.query, times=hyper.iterations)
    if hyper.losses is None:
        return repeated
    group_sgd.check_same_groups(hyper)
    if hyper.losses.only_argmax:
        raise ValueError("losses.only_argmax must be False: the weights need all losses.")
    first = rounds_balanced(hyper)
    losses = dataclasses.replace(hyper.losses, times=hyper.iterations - first)
    return Sequence(parts=(repeated, losses), in_turn=True, alone=first)


def example(query: GroupGradients, iterations: int,
            laplace: float | None = None, losses_noise: str | None = None) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits.

    The weights move from the first round on.
    """
    losses = GroupLosses(bound=1.0, noise_multiplier=laplace, sizes=query.sizes, noise=losses_noise)
    return Hyper(query=dataclasses.replace(query, groups="all"), losses=losses, step=1.0,
                 weight_step=1.0, iterations=iterations, balanced=0.0)


def _optimiser(hyper: Hyper, t: jax.Array) -> Any:
    return hyper.optimiser(planning.step_at(hyper.step, t))


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round.

    Args:
      z: `Saddle(w, ())`: the initial model, which may depend on the data only through earlier
        releases; the weights start uniform.
      hyper: see `Hyper`.

    Raises:
      ValueError: for weights, or for an undefined step, average or cap.
    """
    z, first = group_sgd.uniform(z, hyper)
    checks.number("cap", hyper.cap, low=1.0, high=1e6, closed=True)
    return State(z, first, _optimiser(hyper, jnp.int32(1)).init(z.w), jnp.full_like(z.v, jnp.nan),
                 jnp.int32(0), jnp.int32(0))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper,
           problem: GroupProblem) -> State:
    """Makes one round: all groups' noisy gradients on `data`, from round T_0 on losses, and a step.

    `key` is the secret root key of the run; `data` has leaves `[p, n_max, ...]`, see
    `problems.by_group`. The result is NaN once all releases are spent.
    """
    mechanism(hyper)  # refuses what does not go together
    gradients = Repeat(query=hyper.query, times=hyper.iterations)
    first, rounds_done = rounds_balanced(hyper), state.rounds
    t = rounds_done + 1
    w, log_weights = state.z
    g = release_weighted_gradient(key, gradients, rounds_done, problem, w, data,
                                  jnp.exp(log_weights))  # g_t, by v_t
    y = state.losses
    if hyper.losses is not None:
        losses = dataclasses.replace(hyper.losses, times=hyper.iterations - first)
        y = jax.lax.cond(  # y_t, at w_t before it moves
            rounds_done >= first,
            lambda: release_group_losses(key, losses, rounds_done - first, problem, w, data).astype(
                y.dtype),
            lambda: y)
        weight_step = planning.step_at(hyper.weight_step, t).astype(y.dtype)
        moved = jax.nn.log_softmax(log_weights + weight_step * y)
        if hyper.query.clips == "equal":
            moved = jnp.minimum(moved, _most(hyper, log_weights.dtype))
        log_weights = jnp.where(rounds_done >= first, moved, log_weights)  # ln v_{t+1}
    change, memory = _optimiser(hyper, t).update(tree.cast_like(g, w), state.memory, w)
    w = descent.projected(tree.add(w, change), w, problem)  # w_{t+1}
    z = tree.cast_like(Saddle(w, log_weights), state.z)
    spent = t + jnp.maximum(t - first, 0) * (hyper.losses is not None)
    return State(z, group_sgd.averaged(state.mean, z, t + 1, hyper), memory, y, spent, t)


def _most(hyper: Hyper, dtype: jnp.dtype) -> jax.Array:
    """Returns the largest log weights, ln(cap n_i / (p min n)), `cap` times the balanced ones."""
    sizes = hyper.query.sizes
    share = jnp.asarray([n / (len(sizes) * min(sizes)) for n in sizes], dtype)
    return jnp.log(jnp.asarray(hyper.cap, dtype) * share)
