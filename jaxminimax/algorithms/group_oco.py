"""One pass over groups of records: private online optimisation against bandit weights.

    min over w in W of max over groups i of E loss(w, z_i).

A round draws one group by the weights v_t, and reads the group's next two records, the first for a
step in w, the second for the weights:

    i ~ v_t;     w_{t+1} = one round of a private online optimiser on (i's next record)
    l = max{U - (loss(w_t, i's record after that) + Laplace), 0},      U = B + b u,
    ln v_{t+1, i} = ln v_{t, i} - eta l / v_{t, i},  renormalised;  t = 1, ..., T,

b the scale of the Laplace noise, u = ln(T / (8 p ln p)) / 2. Output the averages of w_1 ... w_T and
v_1 ... v_T. A record is read once, in one of two roles that its place in its group fixes, so the
run costs as much as the larger of the optimiser's cost and that of one noisy loss. The choice of
the next records depends on earlier records only through releases.

A group whose records are used up ends the run, because other records would not follow the weights.
Rounds from then on change nothing. Released numbers decide when that happens.

Source: Zhou and Bassily, "Differentially private worst-group risk minimization", arXiv:2402.19437,
Algorithm 2, with `ftrl` for the optimiser that it leaves open. Departures: records of finite groups
in a fixed order for a sampling oracle; the sums' sensitivity to a replaced record, which is twice
the published one; noise that is private against records chosen by looking at earlier answers, which
their Definition 5 does not ask for and the proof needs; losses are clipped to [0, B]; noisy losses
are clipped at U, which is post-processing, so that U need not be above nearly all of them, 2 b ln T
above B, and eta is longer; the number of a plan is proved for max_i E, see `bounds.bandit_regret`.

Examples:
    >>> problem = jmm.problems.group_glm("logistic", feature_bound=2.0, radius=1.0)
    >>> plan = jmm.plan(jmm.group_oco, problem=problem, sizes=(500, 200), dim=3, epsilon=1.0,
    ...                 delta=1e-6, iterations=50)
    >>> jmm.epsilon(jmm.group_oco.mechanism(plan.hyper), 1e-6) <= 1
    True
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.algorithms import bounds, descent, ftrl, planning
from jaxminimax.base import checks, tree
from jaxminimax.base.types import GroupProblem, Problem, PyTree, Saddle, pytree_dataclass
from jaxminimax.mechanism import Parallel, RecordLosses, TreeSums, factorisation, grid, sums_for
from jaxminimax.mechanism.costs import concrete
from jaxminimax.releases.groups import release_loss
from jaxminimax.releases.stream import next_pair


@pytree_dataclass
class Hyper:
    """The settings of a run; its numbers are leaves, which may be traced and vmapped over.

    Attributes:
      query: a `mechanism.Parallel` of the optimiser's releases and the losses, in turn; made by
        `releases`.
      step: the step of the optimiser [parameter units / gradient units].
      weight_step: eta, the step of the weights [1 / loss units].
      sizes: the public number of records of each group.
      optimiser: an `OnlineOptimiser`.
    """

    query: Parallel
    step: float | jax.Array
    weight_step: float | jax.Array
    sizes: tuple[int, ...] = jax.tree.static()
    optimiser: Any = jax.tree.static(default=ftrl)

    @property
    def iterations(self) -> int:
        """T, the number of rounds; each makes two releases."""
        return self.query.parts[1].times


class State(NamedTuple):
    """The state of a run, all of it private output, which may be published and stored.

    Attributes:
      online: the optimiser's state, with the point w_t as online.z.w.
      log_weights: ln v_t `[p]`.
      mean: running average of (w_t, v_t) over the rounds that read records.
      turns: the number of pairs read from each group, int32 `[p]`.
      over: whether a group that was drawn had no records left, bool `[]`.
      spent: number of releases so far, two a round, int32 `[]`.
    """

    online: Any
    log_weights: jax.Array
    mean: descent.Mean
    turns: jax.Array
    over: jax.Array
    spent: jax.Array

    @property
    def z(self) -> Saddle:
        """The model w and the logarithms of the weights v, `[p]`."""
        return Saddle(self.online.z.w, self.log_weights)

    @property
    def average(self) -> Saddle:
        """The averaged model and weights, in the dtypes of z."""
        return tree.cast_like(self.mean.value, self.z)


def mechanism(hyper: Hyper) -> Parallel:
    """Describes a run. The accountant reads nothing else."""
    return hyper.query


def releases(*, clip: float, bound: float, iterations: int,
             sums: factorisation.PrefixSums | None = None) -> Parallel:
    """Makes the description of a run: prefix sums of clipped gradients, and single losses.

    Args:
      clip: C, the clip norm of a record's gradient.
      bound: B; losses are clipped to [0, B].
      iterations: T, the number of rounds.
      sums: prefix sums of T leaves with that clip norm; None for a tree.
    """
    return Parallel(parts=(sums or TreeSums(clip=clip, leaves=iterations),
                           RecordLosses(bound=bound, times=iterations)), in_turn=True)


def example(query: TreeSums, iterations: int, laplace: float | None = None) -> Hyper:
    """Returns the smallest legal settings around a description, for accounting and audits."""
    losses = RecordLosses(bound=1.0, noise_multiplier=laplace, times=iterations)
    parts = (dataclasses.replace(query, leaves=iterations), losses)
    return Hyper(query=Parallel(parts=parts, in_turn=True), step=1.0, weight_step=1.0,
                 sizes=(2 * iterations,))


def init(z: Saddle, hyper: Hyper) -> State:
    """Returns the state before the first round.

    Args:
      z: `Saddle(w, ())`, w in W: the initial model, which must not depend on the data; the weights
        start uniform.
      hyper: see `Hyper`.

    Raises:
      ValueError: for weights, or undefined steps or sizes.
    """
    if jax.tree.leaves(z.v):
        raise ValueError("z must be Saddle(w, ()): the weights start uniform.")
    checks.number("weight_step", hyper.weight_step, low=0.0, closed=True)
    for n in hyper.sizes:
        checks.count("sizes", n)
    p = len(hyper.sizes)
    online = hyper.optimiser.init(Saddle(z.w, ()), _online(hyper))
    log_weights = jnp.full(p, -math.log(p), tree.float_dtype(online.z.w))
    mean = descent.start_mean(Saddle(online.z.w, jnp.exp(log_weights)))
    return State(online, log_weights, mean, jnp.zeros(p, jnp.int32), jnp.array(False), jnp.int32(0))


def update(key: jax.Array, state: State, data: PyTree, hyper: Hyper,
           problem: GroupProblem) -> State:
    """Makes one round and returns the next state.

    Args:
      key: secret root key of the run, which is never part of the state.
      state: from `init` or the previous round.
      data: leaves `[p, n_max, ...]`, see `problems.by_group`; their order must be public.
      hyper: see `Hyper`.
      problem: `operator`, `loss` and `project` are used.

    Returns:
      The next state; as it was if the run is over; NaN once all rounds are spent.

    Raises:
      ValueError: while tracing, if `data` are not those of the described groups or no noise was
        calibrated.
    """
    t = state.spent // 2
    # the draws of groups have a key of their own
    draw = jax.random.fold_in(jax.random.fold_in(key, 0x647261), t)
    group = jax.random.categorical(draw, state.log_weights).astype(jnp.int32)  # i ~ v_t
    first, second, present = next_pair(state.turns, group, hyper.sizes, data)
    over = state.over | ~present

    w, weight = state.online.z.w, jnp.exp(state.log_weights[group])
    losses = hyper.query.parts[1]
    loss = release_loss(key, losses, t, problem, w, data, second)
    online = hyper.optimiser.observe_record(key, state.online, data, first, present,  # w_{t+1}
                                            _online(hyper), _alone(problem))
    least = jnp.maximum(offset(losses, len(hyper.sizes)) - loss, 0)  # l
    estimate = least.astype(weight.dtype) / weight
    log_weights = jax.nn.log_softmax(  # ln v_{t+1}
        state.log_weights.at[group].add(-hyper.weight_step * estimate))
    point = Saddle(w, jnp.exp(state.log_weights))
    mean = descent.include(state.mean, point, descent.UNIFORM, t + 1, hyper.iterations)
    new = State(online, log_weights, mean, state.turns.at[group].add(1), over, state.spent + 2)
    return jax.tree.map(lambda a, b: jnp.where(over, b, a.astype(b.dtype)), new,
                        state._replace(over=over))


def _online(hyper: Hyper) -> Any:
    """Returns the optimiser's own settings."""
    return hyper.optimiser.Hyper(query=hyper.query.parts[0], step=hyper.step)


def _alone(problem: GroupProblem) -> Problem:
    """Returns the problem of one player that the optimiser solves."""
    return Problem(operator=problem.operator, random=problem.random,
                   project=lambda z: Saddle(problem.project(z.w), z.v))


def room(losses: RecordLosses, groups: int) -> float:
    """The room u = max{0, ln(T / (8 p ln p)) / 2}, nearly the best of `bounds.bandit_regret`.

    By the best eta that is (2 p ln p (U^2 + 2 b^2) / T)^(1/2) + (b / 2) e^(-u), whose derivative is
    about b (2 p ln p / T)^(1/2) - (b / 2) e^(-u). One group counts as two.
    """
    group_count = max(groups, 2)
    return max(0.0, math.log(losses.times / (8 * group_count * math.log(group_count))) / 2)


def offset(losses: RecordLosses, groups: int) -> Any:
    """U = B + b u, with the u of `room`."""
    return losses.bound * (1 + grid.check_noise(losses) * room(losses, groups))


def weight_step(losses: RecordLosses, groups: int) -> float:
    """The eta that minimises `bounds.bandit_regret`, (2 ln p / (p T (U^2 + 2 b^2)))^(1/2)."""
    checks.count("groups", groups)
    scale = losses.bound * grid.check_noise(losses)
    return math.sqrt(2 * math.log(groups) / (groups * losses.times)) / math.hypot(
        offset(losses, groups), math.sqrt(2) * scale)


plan_variants = (planning.Variant({}, 0.097),)


def plan(target: planning.Target, *, problem: GroupProblem, sizes: tuple[int, ...], dim: int,
         iterations: int | None = None, loss_bound: float | None = None,
         tree: bool = False) -> planning.Plan[Hyper]:
    """Plans one pass with the weights' step of the smallest bound, and `ftrl.planned_step` for w.

    That is up to twice the step of the smallest bound, so that the model's part of the excess risk
    is bounded by 5/4 of the smallest bound. A step longer still has a bound that grows in
    proportion, and does not pay on losses that are linear in w.

    The guarantee is on max_i E L_i(w) - min_w max_i L_i(w) on the population, w the average: the
    regret of the model against a fixed one (`ftrl.plan`), and that of the weights against a fixed
    group. It is for convex losses of which none is clipped, and for T up to half of the smallest
    group: a group that is drawn more often runs out of records, and ends the run. By the default T
    one nearly always does, so that there is no number; `iterations=min(sizes) // 2` has one.

    Args:
      target: the privacy target.
      problem: a problem, of which only the constants are used.
      sizes: the number of records of each group.
      dim: d, the dimension of w.
      iterations: T; None for half of all records, as in the paper.
      loss_bound: B, the public range of losses. None for `problem.bound`, which holds on all of W:
        the losses near the solutions may span less. A loss above B is clipped, so that a B too
        small costs accuracy and never privacy; the noise of losses and U fall with B.
      tree: whether sums always have the paper's tree of noise, even if correlated noise would be
        less; a round then draws two numbers for each of its own instead of one for each band.

    Raises:
      ValueError: for numbers out of range.
    """
    rounds = max(1, sum(sizes) // 2) if iterations is None else iterations
    planning.check_numbers(epsilon=target.epsilon)
    loss_bound = problem.bound if loss_bound is None else loss_bound
    sums = (TreeSums(clip=problem.lipschitz, leaves=rounds) if tree
            else sums_for(problem.lipschitz, rounds, dim))
    query = releases(clip=problem.lipschitz, bound=loss_bound, iterations=rounds, sums=sums)
    hyper = target.noise(Hyper(query=query, step=1.0, weight_step=1.0, sizes=tuple(sizes)))
    noisy, losses = hyper.query.parts
    numbers: Any = dict(dim=dim, diameter=problem.diameter)
    hyper = dataclasses.replace(hyper, step=ftrl.planned_step(noisy, **numbers),
                                weight_step=weight_step(losses, len(sizes)))
    why = ("The excess worst-group risk of Zhou and Bassily (2024), Algorithm 2, of max_i E L_i.",
           "The optimiser is follow-the-leader on noisy sums, whose step is up to twice that of "
           "the smallest bound for its own noise.")
    if not problem.convex or loss_bound < problem.bound:
        return planning.Plan(hyper, None, False, (
            *why, "A bound is for convex losses that none of the clipping touches."), gap="risk")
    if rounds > min(sizes) // 2:
        return planning.Plan(hyper, None, False, (
            *why, f"A bound is for iterations={min(sizes) // 2} or fewer: a group that is drawn "
            "more often has no records left, which ends the run."), gap="risk")
    weights = bounds.bandit_regret(
        groups=len(sizes), rounds=rounds, bound=loss_bound, room=room(losses, len(sizes)),
        scale=loss_bound * concrete(losses.noise_multiplier), step=hyper.weight_step)
    return planning.guaranteed(
        hyper, ftrl.regret_bound(noisy, step=hyper.step, **numbers) + weights, problem.bound, *why,
        gap="risk")
