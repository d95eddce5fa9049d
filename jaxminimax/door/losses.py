"""The doors that losses leave by: every group's mean, or that of one record.

Losses are clipped to [0, B], added and blurred by Laplace noise, all in integers (`noising`).
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax.base import checks
from jaxminimax.base.tree import at_least_float32, float_dtype, refuse_complex
from jaxminimax.base.types import GroupProblem, PyTree
from jaxminimax.door import core, noising, own_record
from jaxminimax.door.samples import Place, check_groups, record_at
from jaxminimax.mechanism import GroupLosses, RecordLosses, check_noise


def release_group_losses(key: jax.Array, mechanism: GroupLosses, spent: jax.Array,
                         problem: GroupProblem, w: PyTree, data: PyTree) -> jax.Array:
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
    if not isinstance(mechanism, GroupLosses):
        raise ValueError(f"release_group_losses answers GroupLosses, got "
                         f"{type(mechanism).__name__}.")
    checks.scalars(bound=mechanism.bound, noise_multiplier=check_noise(mechanism))
    w, data = jax.tree.map(jnp.asarray, (w, data))
    check_groups(data, mechanism.sizes)
    own_record.check(problem.loss, w, data, 2, sum(mechanism.sizes))
    each = jax.vmap(jax.vmap(problem.loss, (None, 0)), (None, 0))(w, data)
    if each.shape != (len(mechanism.sizes), max(mechanism.sizes)):
        raise ValueError(f"The loss of one record must be one number, got shape {each.shape[2:]}.")
    allowed = core.is_left(spent, mechanism.times)
    keys = core.keys_of_release(key, core.Kind.GROUP_LOSSES, spent)
    noisy = _noisy_means(keys.noise, mechanism, each, mechanism.sizes, float_dtype(w))
    if mechanism.only_argmax:
        return jnp.where(allowed, jnp.argmax(noisy), -1).astype(jnp.int32)
    return core.nan_unless(allowed, noisy)


def release_loss(key: jax.Array, mechanism: RecordLosses, spent: jax.Array, problem: GroupProblem,
                 w: PyTree, data: PyTree, place: Place) -> jax.Array:
    """One record's noisy loss, clip(loss(w, x), 0, B) + B noise_multiplier Lap.

    Args:
      key: root key of the run, a secret. Noise is a function of it and `spent` alone.
      mechanism: what was promised to the accountant.
      spent: losses already released, int32 `[]`.
      problem: only `problem.loss` is used.
      w: the point; may depend on earlier releases.
      data: as in `release_leaf`.
      place: where the record is; no other release may read it.

    Returns:
      `[]`, in at least float32; NaN once all releases are spent. A record that is not there, or
      whose loss is no number, counts as B.

    Raises:
      ValueError: while tracing, if the noise multiplier was never set; for a loss that is not one
        number.
    """
    if not isinstance(mechanism, RecordLosses):
        raise ValueError(f"release_loss answers RecordLosses, got {type(mechanism).__name__}.")
    checks.scalars(bound=mechanism.bound, noise_multiplier=check_noise(mechanism))
    record, inside = record_at(data, place)
    own_record.check(problem.loss, w, data, axes=len(place))
    loss = problem.loss(w, record)
    if jnp.shape(loss) != ():
        raise ValueError(f"The loss of one record must be one number, got shape {loss.shape}.")
    allowed = core.is_left(spent, mechanism.times)
    keys = core.keys_of_release(key, core.Kind.RECORD_LOSS, spent)
    loss = jnp.where(inside, loss, jnp.nan)
    alone = loss[None, None]  # a group of one record
    noisy = _noisy_means(keys.noise, mechanism, alone, (1,), at_least_float32(loss.dtype))
    return core.nan_unless(allowed, noisy[0])


def _clipped(each: jax.Array, bound: jax.Array) -> jax.Array:
    """Losses in [0, B]; one that is not a number counts as B."""
    return jnp.where(jnp.isnan(each), bound, jnp.clip(each, 0.0, bound))


def _noisy_means(key: jax.Array, mechanism: GroupLosses | RecordLosses, each: jax.Array,
                 sizes: tuple[int, ...], dtype: Any) -> jax.Array:
    """(sum_j clip(loss_j, 0, B) + B noise_multiplier Lap) / n of every group.

    Args:
      key: of the noise.
      mechanism: what was promised.
      each: losses, `[p, n_max]`.
      sizes: n_1, ..., n_p; what is beyond is padding.
      dtype: of the result, at least float32.

    Raises:
      ValueError: for complex losses.
    """
    refuse_complex(each, "the loss")

    def means(key: jax.Array, each: jax.Array, bound: jax.Array, z: jax.Array) -> jax.Array:
        each, bound, z = core.widened((each, bound, z))
        n = jnp.asarray(sizes, jnp.float64)
        present = jnp.arange(each.shape[1])[None] < n[:, None]
        clipped = jnp.where(present, _clipped(each, bound), 0.0)
        noisy = noising.add_noise_to_losses(key, clipped, bound, z, mechanism.exact)
        # to float32 always: the last bits of a float64 would tell which sums are possible
        return (noisy / n).astype(jnp.float32).astype(dtype)

    return core.with_key_in_float64(means, key, each, mechanism.bound, check_noise(mechanism))
