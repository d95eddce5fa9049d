"""Noisy gradients and losses of groups of records, and one record's noisy loss.

As in `sums`, sample and noise follow from the description that the accountant reads, and from the
key and the number of the release alone. A gradient is one group's mean or all groups' weighted sum.
Losses are clipped to [0, B] and added, and noise is added to the sum, all in integers
(`noisy_sums.add_noise_to_losses`); or the index of the largest is drawn from integers
(`noise.chosen`).
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks, random_bits, tree
from jaxminimax.base.types import GroupProblem, PyTree, Saddle
from jaxminimax.gradients import summation
from jaxminimax.mechanism import GroupLosses, Repeat, grid, groups
from jaxminimax.noise import chosen
from jaxminimax.noise.floats import ROUNDING_MARGIN
from jaxminimax.placement import shard_sums, sharding
from jaxminimax.releases import noisy_sums, opening, reading, release_keys
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
    opened = dataclasses.replace(opened, answered=opened.answered & (group >= 0) & (group < p))
    group = jnp.clip(group, 0, p - 1)
    # m_i: n_i, q n_i or m, never the realised size
    size = jnp.asarray(groups.group_batch_sizes(query))[group]
    return noisy_sum(opened, reading.group_rows(opened, group), size).value.w


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
    by_weight = query.clips == "by_weight"
    opened = opening.open_sum(key, mechanism, spent, problem, Saddle(w, ()), data, shared=True,
                              before_clip=by_weight)
    v = jnp.asarray(v, tree.float_dtype(opened.point.w))
    s, r = (factors if by_weight else shares)(v, query.sizes)
    mean = noisy_sum(opened, reading.all_group_rows(opened, r), n).value.w
    # the bracket is N times the mean; s and N are public, so this is postprocessing
    return jax.tree.map(lambda a: a * (n * s).astype(a.dtype), mean)


def shares(v: jax.Array, sizes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """The largest weight of a record, s = max_i v_i / n_i `[]`, and r_i = v_i / (n_i s) `[p]`."""
    weights = v / jnp.asarray(sizes, v.dtype)
    s = jnp.max(weights)
    # for v = 0 every r is 0, not 0 / 0
    return s, weights / jnp.where(s > 0, s, 1)


def factors(v: jax.Array, sizes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """The largest balanced weight of a record, s = 1 / (p min n) `[]`, and a_i = v_i / (n_i s)."""
    smallest = len(sizes) * min(sizes)
    return jnp.asarray(1 / smallest, v.dtype), v * smallest / jnp.asarray(sizes, v.dtype)


def _described(mechanism: Repeat, release: str, groups_described: str) -> groups.GroupGradients:
    """The description that is repeated.

    Raises:
      ValueError: for another description than it answers.
    """
    query: groups.GroupGradients = mechanism.query
    opening.check_kind(query, groups.GroupGradients, release, "GroupGradients")
    if query.groups != groups_described:
        raise ValueError(f"{release} answers GroupGradients(groups={groups_described!r}), got "
                         f"groups={query.groups!r}.")
    query.check(mechanism)
    return query


# --- losses ---


@watched
def release_group_losses(key: jax.Array, mechanism: GroupLosses, spent: jax.Array,
                         problem: GroupProblem, w: PyTree, data: PyTree) -> jax.Array:
    """Every group's noisy mean loss at w, or the number of the group where it is largest.

        y_i = (sum_j clip(loss(w, z_ij), 0, B) + B noise_multiplier X_i) / n_i,

    with X_1, ..., X_p independent Laplace numbers of scale 1, or standard Gaussian ones. A loss
    that is not a number counts as B. Losses are rounded to a grid one by one, and sum and noise are
    integers, so that the order of the additions decides nothing: on a mesh every shard has its own
    records' losses, and their integers are added up over the shards before there is any noise.

    Args:
      key: root key of the run, a secret; as in `release`.
      mechanism: what was promised to the accountant.
      spent: number of releases already made of this mechanism, int32 `[]`.
      problem: only `problem.loss` is used, and whether it draws.
      w: the point.
      data: leaves `[p, n_max, ...]`, see `problems.by_group`; or spread over a mesh.

    Returns:
      y `[p]`, float32 numbers in at least that dtype; with `mechanism.only_argmax` the index of its
      largest entry, int32 `[]`. NaN, or -1, if `mechanism.times` releases were made before.

    Raises:
      ValueError: while tracing, if `data` are not those of the described groups, if the noise
        multiplier was never set, for a bound or a record's loss that is not one number, or for data
        on a mesh with a key that is not threefry's.
    """
    opening.check_kind(mechanism, GroupLosses, "release_group_losses", "GroupLosses")
    opened = opening.open_losses(key, mechanism, spent, problem, w, data)
    losses = _losses(opened, problem)
    noisy = _noisy_means(opened, losses, mechanism.sizes, tree.float_dtype(opened.point))
    if mechanism.only_argmax:
        return jnp.where(opened.answered, jnp.argmax(noisy), -1).astype(jnp.int32)
    return opening.nan_if_refused(opened.answered, noisy)


@watched
def release_group_index(key: jax.Array, mechanism: groups.Selection | GroupLosses, spent: jax.Array,
                        problem: GroupProblem, w: PyTree, data: PyTree) -> jax.Array:
    """The number of the group whose noisy mean loss at w is largest, and nothing else.

        argmax_i (mean_j clip(loss(w, z_ij), 0, B) + b G_i),    b = noise_multiplier B / min_i n_i,

    with G_1, ..., G_p independent Gumbel numbers. A loss that is not a number counts as B. What is
    drawn is the index, from integers, and G never is.

    Losses are rounded one by one to integers, 2^20 in B, and group i's score is the integer next to
    c_i I_i, I_i their sum, c_i = 2^22 / 2^20 min_i n_i / (n_i noise_multiplier): that is
    mean_i / b in units of 2^-22. I_i is below 2^52 and a record moves it by at most 2^20, so it
    moves the product, whose rounding is a part 2^-52 of it, by at most 2^22 / noise_multiplier
    (1 + n_i 2^-51), and the score by one more: `costs.charged` has both. Groups of equal scores are
    equally likely, whatever their order.

    Args:
      key: root key of the run, a secret; as in `release`.
      mechanism: what was promised to the accountant; of `GroupLosses`, with `only_argmax`, see
        `release_group_losses`.
      spent: number of releases already made of this mechanism, int32 `[]`.
      problem: only `problem.loss` is used, and whether it draws.
      w: the point.
      data: leaves `[p, n_max, ...]`, see `problems.by_group`; or spread over a mesh.

    Returns:
      int32 `[]`; -1, which no release takes for a group, if `mechanism.times` releases were made
      before.

    Raises:
      ValueError: while tracing, as `release_group_losses`; for all losses instead of the index.
    """
    if isinstance(mechanism, GroupLosses) and mechanism.only_argmax:
        return release_group_losses(key, mechanism, spent, problem, w, data)
    opening.check_kind(mechanism, groups.Selection, "release_group_index",
                       "a Selection, or GroupLosses(only_argmax=True)")
    opened = opening.open_losses(key, mechanism, spent, problem, w, data)
    losses, z = _losses(opened, problem), grid.check_noise(mechanism)
    # `chosen` depends on the scores by max S - S_i alone
    below, argmax = tree.in_float64(functools.partial(_scores, mechanism.sizes))(
        *jax.tree.map(jnp.asarray, (losses, mechanism.bound, z)))
    # without noise the index is what it is
    index = jnp.where(argmax >= 0, argmax, chosen(opened.keys.noise, below))
    answered = opened.answered & (jnp.asarray(z) >= 0)  # not NaN, which no comparison is true of
    return jnp.where(answered, index, -1).astype(jnp.int32)


@watched
def release_loss(key: jax.Array, mechanism: groups.RecordLosses, spent: jax.Array,
                 problem: GroupProblem, w: PyTree, data: PyTree, place: opening.Place) -> jax.Array:
    """One record's noisy loss, clip(loss(w, x), 0, B) + B noise_multiplier Lap.

    Args:
      key: root key of the run, a secret. Noise is a function of it and `spent` alone.
      mechanism: what was promised to the accountant.
      spent: losses already released, int32 `[]`.
      problem: only `problem.loss` is used, and whether it draws.
      w: the point; may depend on earlier releases.
      data: as in `release_leaf`.
      place: where the record is; no other release may read it.

    Returns:
      `[]`, in at least float32; NaN once all releases are spent. A record that does not exist, or
      whose loss is no number, counts as B.

    Raises:
      ValueError: while tracing, if the noise multiplier was never set; for a loss that is not one
        number.
    """
    opening.check_kind(mechanism, groups.RecordLosses, "release_loss", "RecordLosses")
    opened = opening.open_losses(key, mechanism, spent, problem, w, data, place)
    record, exists = reading.record_of(opened, place)
    loss = release_keys.loss_of(problem)(opened.point, record)
    if jnp.shape(loss) != ():
        raise ValueError(f"The loss of one record must be one number, got shape {loss.shape}.")
    # without a record NaN, which counts as B, and not the loss of the nearest one
    losses = jnp.where(exists, loss, jnp.nan)[None, None]  # a group of one record
    noisy = _noisy_means(opened, losses, (1,), tree.at_least_float32(loss.dtype))
    return opening.nan_if_refused(opened.answered, noisy[0])


def _losses(opened: opening.Opened, problem: GroupProblem) -> jax.Array:
    """Every record's loss, `[p, n_max]`; on a mesh `[p, D m]`.

    Raises:
      ValueError: for a loss of one record that is not one number.
    """
    w, data, key_data = opened.point, opened.data, opened.operator_key_data
    loss = release_keys.loss_of(problem)
    if isinstance(data, sharding.Sharded):
        losses = shard_sums.each_record(
            loss, w, data, release_keys.with_key_data_in_groups, key_data)
    else:
        # [p, n_max]; the losses of padding are computed too, and masked by `_present`
        losses = summation.each_of_groups(
            loss, w, release_keys.with_key_data_of_groups(data, key_data))
    if losses.ndim != 2:
        raise ValueError("The loss of one record must be one number, got shape "
                         f"{losses.shape[2:]}.")
    tree.refuse_complex(losses, "the loss")
    return losses


def _present(losses: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    """Returns True for rows that are records, and not padding."""
    # row j of group i is a record if j < n_i: [1, n_max] and [p, 1]
    return jnp.arange(losses.shape[1])[None] < np.array(sizes)[:, None]


def _scores(sizes: tuple[int, ...], raw_losses: jax.Array, bound: jax.Array,
            z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns how far each group's score is below the largest, int32 `[p]`, and the argmax or -1.

    The argmax is -1 with noise. Call it with 64-bit types.
    """
    raw_losses, bound, z = tree.widened((raw_losses, bound, z))
    # clip(loss, 0, B) / B; padding adds 0
    losses = jnp.where(_present(raw_losses, sizes), _clipped_parts(raw_losses, bound), 0.0)
    bits = 20  # of a loss in a sum that scores are made of; 2^31 of them are below 2^52
    integers = jnp.round(losses * 2.0**bits)  # exact, and so are their sums
    noiseless = z == 0
    share = min(sizes) / np.array(sizes, np.float64)  # c_i is this over z in units of the grid
    unit = 2.0 ** (grid.MOST_BITS - bits) / (jnp.where(noiseless, 1.0, z) * ROUNDING_MARGIN)
    # the integer next to c_i I_i
    score = jnp.round(jnp.sum(integers, -1) * (share * unit))
    # capped for int32: `chosen` takes no group that is 2^29 or more below
    below = jnp.minimum(jnp.max(score) - score, 2.0**30).astype(jnp.int32)
    means = jnp.sum(losses, -1) / np.array(sizes, np.float64)
    largest = jnp.where(means == jnp.max(means), np.arange(len(sizes), dtype=np.int32), len(sizes))
    return below, jnp.where(noiseless, jnp.min(largest), -1)


def _clipped_parts(losses: jax.Array, bound: jax.Array) -> jax.Array:
    """Losses over B, in [0, 1] whatever B is; one that is not a number counts as 1."""
    part = losses / bound
    # part < 1 is false for NaN as well
    return jnp.where(part < 1, jnp.maximum(part, 0.0), 1.0)


def _clipped(each: jax.Array, bound: jax.Array) -> jax.Array:
    """Losses in [0, B]; one that is not a number counts as B."""
    return jnp.where(jnp.isnan(each), bound, jnp.clip(each, 0.0, bound))


def _noisy_means(opened: opening.Opened, each: jax.Array, sizes: tuple[int, ...],
                 dtype: Any) -> jax.Array:
    """Computes (sum_j clip(loss_j, 0, B) + B noise_multiplier X) / n of every group.

    Args:
      opened: the release.
      each: losses, `[p, n_max]`.
      sizes: n_1, ..., n_p; what is beyond is padding.
      dtype: of the result, at least float32.

    Raises:
      ValueError: for complex losses.
    """
    tree.refuse_complex(each, "the loss")
    mechanism = opened.mechanism

    def means(key: jax.Array, each: jax.Array, bound: jax.Array, z: jax.Array) -> jax.Array:
        each, bound, z = tree.widened((each, bound, z))
        n = jnp.asarray(sizes, jnp.float64)
        clipped = jnp.where(_present(each, sizes), _clipped(each, bound), 0.0)
        gaussian = isinstance(mechanism, GroupLosses) and mechanism.gaussian
        noisy = noisy_sums.add_noise_to_losses(key, clipped, bound, z, gaussian)
        # to float32 always: the last bits of a float64 would tell which sums are possible
        return (noisy / n).astype(jnp.float32).astype(dtype)

    return random_bits.with_key_in_float64(means, opened.keys.noise, each, mechanism.bound,
                                           grid.check_noise(mechanism))
