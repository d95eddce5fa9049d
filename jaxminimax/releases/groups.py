"""Noisy gradients of groups of records: one group's mean, or all groups' weighted sum.

As in `sums`, sample and noise follow from the description that the accountant reads, and from the
key and the number of the release alone.
"""

import jax
import jax.numpy as jnp

from jaxminimax.base import checks, tree
from jaxminimax.base.types import GroupProblem, PyTree, Saddle
from jaxminimax.mechanism import GroupGradients, Repeat, group_batch_sizes
from jaxminimax.releases import opening, reading
from jaxminimax.releases.noisy_sums import noisy_sum
from jaxminimax.releases.watch import watched


@watched
def release_group_gradient(key: jax.Array, mechanism: Repeat, spent: jax.Array,
                           problem: GroupProblem, w: PyTree, data: PyTree,
                           group: jax.Array) -> PyTree:
    """A noisy mean of one group's loss gradients at w, or NaN once the budget is spent.

        (sum_{j in B} clip(grad loss(w, z_ij), C) + N(0, (C noise_multiplier)^2 I)) / m_i,

    with B the sample of group i that the mechanism describes and m_i the public n_i, q n_i or m.

    Args:
      key: root key of the run, a secret; as in `release`.
      mechanism: what was promised to the accountant: repeats `GroupGradients`.
      spent: number of releases already made of this mechanism, int32 `[]`.
      problem: only `problem.operator` is used, and whether it draws.
      w: the point.
      data: leaves `[p, n_max, ...]`, see `problems.by_group`; or spread over a mesh.
      group: i, int32 `[]`; public or a function of earlier releases.

    Returns:
      A tree like w in at least float32; NaN everywhere if `mechanism.times` releases were made
      before, a sample does not fit, or there is no such group.

    Raises:
      ValueError: while tracing, if `data` are not those of the described groups, if the noise
        multiplier was never set, for a clip norm or a group that is not one number, or for data on
        a mesh with a key that is not threefry's.
    """
    query = _described(mechanism, "release_group_gradient", "one")
    checks.scalars(group=group)
    if not jnp.issubdtype(jnp.result_type(group), jnp.integer):
        raise ValueError(f"group must be an integer, got {jnp.result_type(group)}.")
    opened = opening.open_sum(key, mechanism, spent, problem, Saddle(w, ()), data)
    p = len(query.sizes)
    # without such a group NaN, and not the records of the nearest one
    opened = opened.only_if((group >= 0) & (group < p))
    group = jnp.clip(group, 0, p - 1)
    # m_i: n_i, q n_i or m, never the realised size
    size = jnp.asarray(group_batch_sizes(query))[group]
    return noisy_sum(opened, reading.of_group(opened, group), size).value.w


@watched
def release_weighted_gradient(key: jax.Array, mechanism: Repeat, spent: jax.Array,
                              problem: GroupProblem, w: PyTree, data: PyTree,
                              v: jax.Array) -> PyTree:
    """A noisy gradient of sum_i v_i L_i at w, or NaN once the budget is spent.

        s (sum_i r_i sum_j clip(grad loss(w, z_ij), C) + N(0, (C noise_multiplier)^2 I)),

        s = max_i v_i / n_i,    r_i = v_i / (n_i s) <= 1.

    The bracket is what `release` answers to a `Query` on all N = sum_i n_i records at once, with
    clip norm C, but that each clipped record counts for its group's share r: the same grid,
    rounding, noise and count of releases, and the same charge. For the sum cuts shares to [0, 1],
    whatever they are, so that no record adds a vector that is longer than C. All that is needed is
    that a replaced record changes no r, and it does not: r is a function of v and of the public
    sizes. s and N, which the bracket is multiplied by, are too, so that is post-processing. Of a
    problem that draws, a record holds the words of its key as well, functions of the run's key,
    group and row.

    On a mesh the bracket's sum is made shard by shard (`placement.shard_sums`): a record's share
    follows from its group wherever it is, and what is added to it is the same noise, once.

    Args:
      key: root key of the run, a secret; as in `release`.
      mechanism: what was promised to the accountant: repeats `GroupGradients(groups="all")`.
      spent: number of releases already made of this mechanism, int32 `[]`.
      problem: only `problem.operator` is used, and whether it draws.
      w: the point.
      data: leaves `[p, n_max, ...]`, see `problems.by_group`; or spread over a mesh.
      v: weights of the groups, at least 0, `[p]`; public or a function of earlier releases.

    Returns:
      A tree like w in at least float32; NaN everywhere if `mechanism.times` releases were made
      before.

    Raises:
      ValueError: while tracing, if `data` are not those of the described groups, if the noise
        multiplier was never set, for a clip norm that is not one number, for other weights than one
        for each group, or for data on a mesh with a key that is not threefry's.
    """
    query = _described(mechanism, "release_weighted_gradient", "all")
    p, n = len(query.sizes), sum(query.sizes)
    if jnp.shape(v) != (p,) or not jnp.issubdtype(jnp.result_type(v), jnp.floating):
        raise ValueError(f"v must be one weight for each of {p} groups, got shape {jnp.shape(v)} "
                         f"and dtype {jnp.result_type(v)}.")
    opened = opening.open_sum(key, mechanism, spent, problem, Saddle(w, ()), data)
    s, r = shares(jnp.asarray(v, tree.float_dtype(opened.point.w)), query.sizes)
    mean = noisy_sum(opened.of_shares(), reading.of_all_groups(opened, r), n).value.w
    # the bracket is N times the mean; s and N are public, so this is postprocessing
    return jax.tree.map(lambda a: a * (n * s).astype(a.dtype), mean)


def shares(v: jax.Array, sizes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """The largest weight of a record, s = max_i v_i / n_i `[]`, and r_i = v_i / (n_i s) `[p]`."""
    each = v / jnp.asarray(sizes, v.dtype)
    s = jnp.max(each)
    # for v = 0 every r is 0, not 0 / 0
    return s, each / jnp.where(s > 0, s, 1)


def _described(mechanism: Repeat, release: str, groups: str) -> GroupGradients:
    """The description that is repeated.

    Raises:
      ValueError: for another description than it answers.
    """
    query = mechanism.query
    if not isinstance(query, GroupGradients):
        raise ValueError(f"{release} answers GroupGradients, got {type(query).__name__}.")
    if query.groups != groups:
        raise ValueError(f"{release} answers GroupGradients(groups={groups!r}), got "
                         f"groups={query.groups!r}.")
    query.check(mechanism)
    return query
