"""ASC, worst groups by rates and clip norms that follow released losses, on all records.

    min over w in W, max over v in the simplex, of  sum_i v_i L_i(w),   L_i group i's mean loss.

ASC samples the records of group i at a rate q_i that grows with v_i / n_i, and clips their
gradients at C_i, which falls as q_i grows: all groups have the same privacy, and noise does not
grow with the weights. This file makes the mean of such a step over its samples, by one release:

    a_i     = p n_min v_t,i / n_i,    C_i = C / a_i,     n_min the smallest group's size,
    g_t     = (sum_i a_i sum_j clip(grad loss(w_t, z_ij), C_i) + N(0, (C z)^2 I)) / (p n_min),
    w_{t+1} = P_W(a step of the optimiser along g_t),                              t = 1, ..., T,
    y_t     = all groups' noisy mean losses at w_t,                           t = T_0 + 1, ..., T,
    v_{t+1} = v_t exp(weight_step y_t) / sum                                  from t = T_0 + 1 on.

Hyper, state, charge and all steps but g_t are those of `balanced_groups`, whose g_t has one clip
norm for all groups, noise in proportion to the largest weight of a record, and a cap on weights.
While weights are balanced the noise of both is the same.

**Sampling.** A record of group i that is read at rate q_i and clipped at C_i adds q_i clip(grad,
C_i) to the mean of a step. With q_i C_i = C for all groups that is clip(q_i grad, C): a record's
mean contribution has one bound for all groups. Only ratios of rates matter to the mean, so a_i, a
rate over that of a balanced smallest group, may exceed 1. Samples add variance to this mean. At
equal epsilon their noise, for each record that is read, is that of all records or more, within a
part of 0.002: `group_clips.noise_of_samples`. What they save is gradients. A rate that follows
releases is no number of a description that is charged before the run, so samples at such rates
would need a release and a charge of their own.

**Privacy.** Replace-one; who is in which group is public, and so are the sizes. Given all earlier
releases, v_t and every a_i are fixed and the same for neighbouring data sets. A record's vector
a_i clip(grad, C / a_i) = clip(a_i grad, C) is no longer than C, by the clip of the release, which
comes after the factor a_i: the sum moves by 2 C at most, whatever the weights, and its noise is
(C z)^2 in every round. So g_t is a Gaussian release of parameter 2 / z, which is what
`GroupGradients(groups="all")` charges. Weights read the data through y_t alone, released and
charged as `GroupLosses`; `balanced_groups.mechanism` is the sequence of both. It is the
library's `release_weighted_gradient` at equal weights of all records, of an operator that carries
the factor: no noise, clip or charge is written here, and the driver reads the round's program.

Source: Cairney-Leeming, Sanyal and Lampert, "Adaptive sampling and clipping for private worst-case
group optimization", 2026, arXiv:2602.10820. Its abstract and summaries of it were read; its text,
its rules for rates and clip norms and its proofs were not. From the abstract: each group's rate and
clip norm adapt, harder groups count more, and privacy is the same for all groups. Departures: the
mean over samples in place of a sample; multiplicative weights, and losses of all records; the
balanced rounds at first, averaging and optimiser of `balanced_groups`; noise of this library.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

import jaxminimax as jmm
from jaxminimax import GroupProblem, Saddle, balanced_groups
from jaxminimax.algorithms import group_sgd, planning
from jaxminimax.base import tree
from jaxminimax.releases.groups import release_group_losses, release_weighted_gradient

Hyper, State = balanced_groups.Hyper, balanced_groups.State  # `cap` is not read
mechanism, init = balanced_groups.mechanism, balanced_groups.init


def with_groups(data: Any) -> Any:
    """Pairs records, leaves `[p, n_max, ...]`, with the numbers of their groups `[p, n_max]`."""
    rows = jax.tree.leaves(data)[0].shape[:2]
    return data, jnp.broadcast_to(jnp.arange(rows[0], dtype=jnp.int32)[:, None], rows)


@functools.cache  # one object for one problem: programs are kept by it
def of_groups(problem: GroupProblem) -> GroupProblem:
    """A problem of records as the problem of what `with_groups` pairs them to."""
    operator: Any = problem.operator
    return problem._replace(loss=lambda w, row: problem.loss(w, row[0]),
                            operator=lambda z, row: operator(z, row[0]))


def factors(v: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    """a_i = p n_min v_i / n_i, by which gradients are multiplied before the clip, `[p]`."""
    return len(sizes) * min(sizes) * v / jnp.asarray(sizes, v.dtype)


def _multiplied(problem: GroupProblem, a: jax.Array) -> GroupProblem:
    """The problem whose operator is a_i grad loss(w, z), of a record z in group i."""
    operator: Any = problem.operator

    def of_row(z: Saddle, row: Any) -> Saddle:
        return jax.tree.map(lambda x: a[row[1]] * x, operator(z, row))

    return problem._replace(operator=of_row)


def update(key: jax.Array, state: State, data: Any, hyper: Hyper, problem: GroupProblem) -> State:
    """Makes one round: all groups' gradients, from round T_0 on losses, and a step.

    Args:
      key: the secret root key of the run.
      state: of `balanced_groups`.
      data: of `with_groups`.
      hyper: of `balanced_groups`.
      problem: of `of_groups`; one that does not draw.
    """
    mechanism(hyper)  # refuses what does not go together
    sizes, first, done = hyper.query.sizes, balanced_groups.rounds_balanced(hyper), state.rounds
    w, log_weights = state.z
    released = release_weighted_gradient(
        key, jmm.Repeat(query=hyper.query, times=hyper.iterations), done,
        _multiplied(problem, factors(jnp.exp(log_weights), sizes)), w, data,
        jnp.asarray(sizes, log_weights.dtype) / sum(sizes))  # one weight for all records
    scale = sum(sizes) / (len(sizes) * min(sizes))
    g = jax.tree.map(lambda x: scale * x, released)
    y = state.losses
    if hyper.losses is not None:
        losses = dataclasses.replace(hyper.losses, times=hyper.iterations - first)
        y = jax.lax.cond(  # y_t, at w_t before it moves
            done >= first,
            lambda: release_group_losses(key, losses, done - first, problem, w, data).astype(
                y.dtype),
            lambda: y)
        weight_step = planning.step_at(hyper.weight_step, done + 1).astype(y.dtype)
        log_weights = jnp.where(done >= first, jax.nn.log_softmax(log_weights + weight_step * y),
                                log_weights)  # ln v_{t+1}
    optimiser = hyper.optimiser(planning.step_at(hyper.step, done + 1))
    change, memory = optimiser.update(tree.cast_like(g, w), state.memory, w)
    z = tree.cast_like(Saddle(problem.project(tree.add(w, change)), log_weights), state.z)
    spent = done + 1 + jnp.maximum(done + 1 - first, 0) * (hyper.losses is not None)
    return State(z, group_sgd.averaged(state.mean, z, done + 2, hyper), memory, y, spent, done + 1)
