"""The doors that noisy gradients leave by: one group's mean, or all groups' weighted sum.

As in `sums`, sample and noise follow from the description that the accountant reads, and from the
key and the number of the release alone.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks, tree
from jaxminimax.base.random_bits import fold_in
from jaxminimax.base.types import GroupProblem, Problem, PyTree, Saddle
from jaxminimax.gradients import weights
from jaxminimax.gradients.clipping import clipped_sum
from jaxminimax.gradients.summation import Part, Rounding, Sums
from jaxminimax.mechanism import GroupGradients, Repeat, group_batch_sizes
from jaxminimax.mechanism.description import check_noise
from jaxminimax.mechanism.groups import in_group
from jaxminimax.mechanism.sampling import Sample
from jaxminimax.placement.shard_sums import one_group, sum_over_groups, sum_over_shards
from jaxminimax.placement.sharding import Sharded, arrays, check_key
from jaxminimax.releases import noising, opening, operator_rng, record_isolation
from jaxminimax.releases.reading import check_groups, sample_of_group, sampled_of_group
from jaxminimax.releases.sums import SLOTS, release
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
    z = check_noise(query)
    checks.scalars(clip=query.clip, noise_multiplier=z, group=group)
    if not jnp.issubdtype(jnp.result_type(group), jnp.integer):
        raise ValueError(f"group must be an integer, got {jnp.result_type(group)}.")
    w, data = jax.tree.map(jnp.asarray, w), arrays(data)
    check_groups(data, query.sizes)
    record_isolation.check_operator(problem, Saddle(w, ()), data, 2, sum(query.sizes))
    noising.check_size(w, query.parameters)
    p = len(query.sizes)
    allowed = opening.within_budget(spent, mechanism.times) & (group >= 0) & (group < p)
    group = jnp.clip(group, 0, p - 1)
    stream = opening.stream(opening.Kind.GROUP_GRADIENT, mechanism)
    keys = opening.keys_of_release(key, stream, spent)
    scale = noising.scales(Saddle(query.clip, None), Saddle(z, None), query.parameters)
    sums = clipped_sum(operator_rng.operator_of(problem), Saddle(query.clip, None)).sums
    words = opening.operator_key_data(key, stream, spent) if problem.random else None
    if isinstance(data, Sharded):
        check_key(key)
        sample = sample_of_group(keys, key, query, group)
        count = max(query.sizes) if sample.rows is None else sample.rows.shape[0]
        rounding = noising.rounding(keys.noise, scale, Saddle(w, None), count, query.parameters)
        total = _of_group(sums, w, data, query, group, sample, rounding, keys.noise, words)
    else:
        sample, records = sampled_of_group(keys, key, query, group, data)
        count = (records.count if isinstance(records, Part)
                 else jax.tree.leaves(records)[0].shape[0])
        if words is not None:
            if isinstance(records, Part):
                records = records.read(0, count)
            rows = jnp.arange(count) if sample.rows is None else sample.rows
            records = operator_rng.with_key_data(records, rows, words, group)
        rounding = noising.rounding(keys.noise, scale, Saddle(w, None), count, query.parameters)
        total = sums(Saddle(w, ()), records, sample.valid, rounding)
    # (I + X) g / m_i
    size = jnp.asarray(group_batch_sizes(query))[group]
    g = noising.add_noise_and_normalise(keys.noise, total, scale, size, query.exact).w
    return opening.nan_if_refused(allowed & sample.fits, g)


def _of_group(sums: Callable, w: PyTree, data: Sharded, query: GroupGradients, group: jax.Array,
              sample: Sample, rounding: Rounding, noise: jax.Array,
              words: jax.Array | None) -> Sums:
    """The clipped sum over a sample of one group's rows on a mesh, its sample drawn already."""
    if sample.rows is None:
        return sum_over_groups(sums, Saddle(w, ()), data, query.sizes, rounding,
                               operator_rng.with_key_data_if_any, words, group)

    def attach(examples: PyTree, rows: jax.Array, extra: tuple[jax.Array, jax.Array]) -> PyTree:
        words, group = extra
        return operator_rng.with_key_data(examples, rows, words, group)

    # of whatever group it is, its part in a shard has as many slots as that of any group needs
    each = tuple(in_group(query, size) for size in sorted(set(query.sizes)))
    return sum_over_shards(sums, Saddle(w, ()), one_group(data, group), each, sample.rows,
                           sample.valid, rounding, fold_in(noise, SLOTS), attach,
                           None if words is None else (words, group))[0]


@watched
def release_weighted_gradient(key: jax.Array, mechanism: Repeat, spent: jax.Array,
                              problem: GroupProblem, w: PyTree, data: PyTree,
                              v: jax.Array) -> PyTree:
    """A noisy gradient of sum_i v_i L_i at w, or NaN once the budget is spent.

        s (sum_i r_i sum_j clip(grad loss(w, z_ij), C) + N(0, (C noise_multiplier)^2 I)),

        s = max_i v_i / n_i,    r_i = v_i / (n_i s) <= 1.

    The bracket is what `release` answers to a `Query` on all N = sum_i n_i records at once, with
    clip norm C, of the operator

        (w; x, r) -> r clip(grad loss(w, x), C)

    of records (x, r) that hold the share r of their group: the same grid, rounding, noise and count
    of releases, and the same charge, which rests on no property of r. For `release` clips what the
    operator says to C once more. Where r is in [0, 1] that changes nothing; were it above 1, or
    NaN, the record would be clipped or left out. All that is needed is that a replaced record
    changes no r, and it does not: r is a function of v and of the public sizes. s and N, which the
    bracket is multiplied by, are too, so that is post-processing. Of a problem that draws, a record
    holds the words of its key as well, functions of the run's key, group and row.

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
    z = check_noise(query)
    checks.scalars(clip=query.clip, noise_multiplier=z)
    p, n = len(query.sizes), sum(query.sizes)
    if jnp.shape(v) != (p,) or not jnp.issubdtype(jnp.result_type(v), jnp.floating):
        raise ValueError(f"v must be one weight for each of {p} groups, got shape {jnp.shape(v)} "
                         f"and dtype {jnp.result_type(v)}.")
    w, data = jax.tree.map(jnp.asarray, w), arrays(data)
    check_groups(data, query.sizes)
    record_isolation.check_operator(problem, Saddle(w, ()), data, 2, n)
    operator = operator_rng.operator_of(problem)
    stream = opening.stream(opening.Kind.MEAN, mechanism)
    words = opening.operator_key_data(key, stream, spent) if problem.random else None
    s, r = shares(jnp.asarray(v, tree.float_dtype(w)), query.sizes)

    def weighted(z: Saddle, record: tuple[PyTree, jax.Array]) -> Saddle:
        x, share = record
        g = operator(z, x).w
        scale = share * _own_clip(g, query.clip)
        return Saddle(jax.tree.map(lambda a: a * scale.astype(tree.at_least_float32(a.dtype)), g),
                      ())

    whole = dataclasses.replace(mechanism, query=in_group(query, n), parts=1)
    if isinstance(data, Sharded):
        check_key(key)
        whole.query.check_own()
        noising.check_size(w, query.parameters)
        noise = opening.keys_of_release(key, stream, spent).noise
        scale = noising.scales(Saddle(query.clip, None), Saddle(z, None), query.parameters)
        rounding = noising.rounding(noise, scale, Saddle(w, None), n, query.parameters)

        def attach(x: PyTree, group: jax.Array, row: jax.Array, extra: tuple) -> tuple:
            words, r = extra
            x = operator_rng.with_key_data_if_any(x, group, row, words)
            return x, jnp.broadcast_to(r[group], row.shape)

        total = sum_over_groups(clipped_sum(weighted, Saddle(query.clip, None)).sums,
                                Saddle(w, ()), data, query.sizes, rounding, attach, (words, r))
        mean = noising.add_noise_and_normalise(noise, total, scale, n, query.exact).w
        mean = opening.nan_if_refused(opening.within_budget(spent, mechanism.times), mean)
        return jax.tree.map(lambda a: a * (n * s).astype(a.dtype), mean)

    if words is not None:
        data = operator_rng.with_key_data_of_groups(data, words)
    of_record = r[np.repeat(np.arange(p), query.sizes)]  # [N]
    rows = jax.tree.map(lambda x: jnp.concatenate(
        [x[i, :size] for i, size in enumerate(query.sizes)]), data)
    mean = release(key, whole, spent, Problem(weighted), Saddle(w, ()), (rows, of_record)).w
    return jax.tree.map(lambda a: a * (n * s).astype(a.dtype), mean)


def shares(v: jax.Array, sizes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """The largest weight of a record, s = max_i v_i / n_i `[]`, and r_i = v_i / (n_i s) `[p]`."""
    each = v / jnp.asarray(sizes, v.dtype)
    s = jnp.max(each)
    return s, each / jnp.where(s > 0, s, 1)


def _own_clip(g: PyTree, clip: jax.typing.ArrayLike) -> jax.Array:
    """min(1, C / ||g||) of one record; 0 for a NaN, and where the norm is not finite."""
    norm = weights.norm(jax.tree.map(lambda a: a[None], g)).reshape(())
    return weights.weight(norm / jnp.asarray(clip, norm.dtype), jnp.isfinite(norm))


def _described(mechanism: Repeat, door: str, groups: str) -> GroupGradients:
    """What is repeated.

    Raises:
      ValueError: for another description than the door's.
    """
    query = mechanism.query
    if not isinstance(query, GroupGradients):
        raise ValueError(f"{door} answers GroupGradients, got {type(query).__name__}.")
    if query.groups != groups:
        raise ValueError(f"{door} answers GroupGradients(groups={groups!r}), got "
                         f"groups={query.groups!r}.")
    return query
