"""The door to the data of several groups: one group's gradients, every group's mean loss.

As in `release`, sample and noise follow from the description that the accountant reads, and from
the key and the number of the release alone.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax import _check, _own_record, blur
from jaxminimax._tree import float_dtype, refuse_complex
from jaxminimax._types import GroupProblem, Saddle, Tree
from jaxminimax.gradients import clipped_sum
from jaxminimax.mechanism import (
    Full,
    GroupGradients,
    GroupLosses,
    Poisson,
    Repeat,
    check_noise,
    group_batch_sizes,
    in_group,
)
from jaxminimax.release_stream import check_rows
from jaxminimax.sampling import Sample, draw
from jaxminimax.solvers import in_float64

# what keys are folded with, apart from the constants of `release`
_GRADIENTS, _LOSSES, _SAMPLE, _NOISE = 0x6D6767, 0x6D676C, 0, 1


def _draw(key: jax.Array, query: GroupGradients, group: jax.Array) -> Sample:
    """The sample of a group, with rows for all of it, or for the largest sample of any group."""
    size = jnp.asarray(query.sizes, jnp.int32)[group]
    largest = max(query.sizes)
    first = jnp.int32(0)  # no sampling of a group depends on the number of the release
    if isinstance(query.sampling, Full):
        return Sample(None, jnp.arange(largest) < size, True)
    if isinstance(query.sampling, Poisson):
        sample = draw(key, in_group(query, largest), first)
        rows = jnp.arange(largest) if sample.rows is None else sample.rows
        valid = rows < size
        return Sample(rows, valid if sample.valid is None else valid & sample.valid, sample.fits)

    def of_size(n: int) -> Any:
        def one(key: jax.Array) -> Sample:
            sample = draw(key, in_group(query, n), first)
            rows = jnp.arange(n, dtype=jnp.int32) if sample.rows is None else sample.rows
            return Sample(rows, None, jnp.asarray(sample.fits))

        return one

    distinct = sorted(set(query.sizes))  # the law of a fixed-size sample is computed on the host
    number = jnp.asarray([distinct.index(n) for n in query.sizes])[group]
    return jax.lax.switch(number, [of_size(n) for n in distinct], key)


def release_group_gradient(key: jax.Array, mechanism: Repeat, spent: jax.Array,
                           problem: GroupProblem, w: Tree, data: Tree, group: jax.Array, *,
                           strategy: str = "auto", microbatch: int = 32) -> Tree:
    """A noisy mean of one group's loss gradients at w, or NaN once the budget is spent.

        (sum_{j in B} clip(grad loss(w, z_ij), C) + N(0, (C noise_multiplier)^2 I)) / m_i,

    with B the sample of group i that the mechanism describes and m_i the public n_i, q n_i or m.

    Args:
      key: root key of the run, a secret; as in `release`.
      mechanism: what was promised to the accountant: repeats `GroupGradients`.
      spent: number of releases already made of this mechanism, int32 `[]`.
      problem: only `problem.operator` is used.
      w: the point.
      data: leaves `[p, n_max, ...]`, see `problems.by_group`.
      group: i, int32 `[]`; public or a function of earlier releases.
      strategy: how the clipped sum is computed, see `clipped_sum`; never what it is.
      microbatch: see `clipped_sum`.

    Returns:
      A tree like w in at least float32; NaN everywhere if `mechanism.times` releases were made
      before, a Poisson sample outgrew its capacity, or there is no such group.

    Raises:
      ValueError: while tracing, if `data` are not those of the described groups, if the noise
        multiplier was never set, or for a clip norm or a group that is not one number.
    """
    query = mechanism.query
    if not isinstance(query, GroupGradients):
        raise ValueError(f"release_group_gradient answers GroupGradients, got "
                         f"{type(query).__name__}.")
    z = check_noise(query)
    _check.scalars(clip=query.clip, noise_multiplier=z, group=group)
    if not jnp.issubdtype(jnp.result_type(group), jnp.integer):
        raise ValueError(f"group must be an integer, got {jnp.result_type(group)}.")
    w, data = jax.tree.map(jnp.asarray, (w, data))
    check_rows(data, query.sizes)
    _own_record.check(problem.operator, Saddle(w, ()), data, 2, sum(query.sizes))
    blur.check_size(w, query.parameters)
    p = len(query.sizes)
    allowed = (spent >= 0) & (spent < mechanism.times) & (group >= 0) & (group < p)
    group = jnp.clip(group, 0, p - 1)
    key = jax.random.fold_in(jax.random.fold_in(key, _GRADIENTS), spent)
    sample = _draw(jax.random.fold_in(key, _SAMPLE), query, group)
    if sample.rows is None:
        records = jax.tree.map(lambda x: jnp.asarray(x)[group], data)
    else:
        records = jax.tree.map(
            lambda x: jnp.asarray(x).at[group, sample.rows].get(mode="clip"), data)
    key = jax.random.fold_in(key, _NOISE)
    scale = blur.scales(Saddle(query.clip, None), Saddle(z, None), query.parameters)
    rows = jax.tree.leaves(records)[0].shape[0]
    total = clipped_sum(problem.operator, Saddle(query.clip, None), strategy=strategy,
                        microbatch=microbatch).sums(
        Saddle(w, ()), records, sample.valid,
        blur.rounding(key, scale, Saddle(w, None), rows, query.parameters))
    size = jnp.asarray(group_batch_sizes(query))[group]
    g = blur.blurred(key, total, scale, size, query.exact).w
    return jax.tree.map(lambda a: jnp.where(allowed & sample.fits, a, jnp.nan), g)


def _clipped(each: jax.Array, bound: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(each), bound, jnp.clip(each, 0.0, bound))


def release_group_losses(key: jax.Array, mechanism: GroupLosses, spent: jax.Array,
                         problem: GroupProblem, w: Tree, data: Tree) -> jax.Array:
    """Every group's noisy mean loss at w, or the number of the group where it is largest.

        y_i = (sum_j clip(loss(w, z_ij), 0, B) + B noise_multiplier Lap_i) / n_i,

    with Lap_1, ..., Lap_p independent Laplace numbers of scale 1. A loss that is not a number
    counts as B. Losses are rounded to a grid one by one, and sum and noise are integers, so that
    the order of the additions decides nothing.

    Args:
      key: root key of the run, a secret; as in `release`.
      mechanism: what was promised to the accountant.
      spent: number of releases already made of this mechanism, int32 `[]`.
      problem: only `problem.loss` is used.
      w: the point.
      data: leaves `[p, n_max, ...]`, see `problems.by_group`.

    Returns:
      y `[p]`, float32 numbers in at least that dtype; with `mechanism.only_argmax` the index of its
      largest entry, int32 `[]`. NaN, or -1, if `mechanism.times` releases were made before.

    Raises:
      ValueError: while tracing, if `data` are not those of the described groups, if the noise
        multiplier was never set, or for a bound or a record's loss that is not one number.
    """
    if mechanism.noise_multiplier is None:
        raise ValueError("noise_multiplier of GroupLosses is not set: calibrate(algorithm, hyper, "
                         "epsilon=..., delta=...) sets it; 0.0 runs without privacy.")
    _check.scalars(bound=mechanism.bound, noise_multiplier=mechanism.noise_multiplier)
    w, data = jax.tree.map(jnp.asarray, (w, data))
    check_rows(data, mechanism.sizes)
    _own_record.check(problem.loss, w, data, 2, sum(mechanism.sizes))
    each = jax.vmap(jax.vmap(problem.loss, (None, 0)), (None, 0))(w, data)
    if each.shape != (len(mechanism.sizes), max(mechanism.sizes)):
        raise ValueError(f"The loss of one record must be one number, got shape {each.shape[2:]}.")
    refuse_complex(each, "the loss")
    dtype = float_dtype(w)
    key = jax.random.fold_in(jax.random.fold_in(key, _LOSSES), spent)
    implementation = jax.random.key_impl(key)

    @in_float64
    def means(words: jax.Array, each: jax.Array, bound: jax.Array, z: jax.Array) -> jax.Array:
        each, bound, z = (x.astype(jnp.float64) for x in (each, bound, z))
        n = jnp.asarray(mechanism.sizes, jnp.float64)
        clipped = _clipped(each, bound)
        present = jnp.arange(each.shape[1])[None] < n[:, None]
        key = jax.random.wrap_key_data(words, impl=implementation)
        noisy = blur.blurred_losses(key, jnp.where(present, clipped, 0.0), bound, z,
                                    mechanism.exact)
        # to float32 always: the last bits of a float64 would tell which sums are possible
        return (noisy / n).astype(jnp.float32).astype(dtype)

    noisy = means(jax.random.key_data(key), each, jnp.asarray(mechanism.bound),
                  jnp.asarray(mechanism.noise_multiplier))
    allowed = (spent >= 0) & (spent < mechanism.times)
    if mechanism.only_argmax:
        return jnp.where(allowed, jnp.argmax(noisy), -1).astype(jnp.int32)
    return jnp.where(allowed, noisy, jnp.nan)
