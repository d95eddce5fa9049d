"""Noisy losses: every group's mean, the largest one's index, or one record's.

Losses are clipped to [0, B] and added, and noise is added to the sum, all in integers
(`noisy_sums.add_noise_to_losses`); or the index is drawn from integers (`noise.chosen`).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.random_bits import with_key_in_float64
from jaxminimax.base.tree import at_least_float32, float_dtype, in_float64, refuse_complex, widened
from jaxminimax.base.types import GroupProblem, PyTree
from jaxminimax.gradients import summation
from jaxminimax.mechanism import GroupLosses, RecordLosses, Selection
from jaxminimax.mechanism.grid import MOST_BITS
from jaxminimax.mechanism.limits import check_noise
from jaxminimax.noise import chosen
from jaxminimax.noise.floats import ROUNDING_MARGIN
from jaxminimax.placement.shard_sums import each_record
from jaxminimax.placement.sharding import Sharded
from jaxminimax.releases import noisy_sums, opening, reading, release_keys
from jaxminimax.releases.opening import Opened, Place
from jaxminimax.releases.watch import watched

_LOSS_BITS = 20  # of a loss in a sum that scores are made of; 2^31 of them are below 2^52


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
    if not isinstance(mechanism, GroupLosses):
        raise ValueError(f"release_group_losses answers GroupLosses, got "
                         f"{type(mechanism).__name__}.")
    opened = opening.open_losses(key, mechanism, spent, problem, w, data)
    each = _losses(opened, problem)
    noisy = _noisy_means(opened, each, mechanism.sizes, float_dtype(opened.point))
    if mechanism.only_argmax:
        return jnp.where(opened.answered, jnp.argmax(noisy), -1).astype(jnp.int32)
    return opening.nan_if_refused(opened.answered, noisy)


@watched
def release_group_index(key: jax.Array, mechanism: Selection | GroupLosses, spent: jax.Array,
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
    if not isinstance(mechanism, Selection):
        raise ValueError("release_group_index answers a Selection, or GroupLosses("
                         f"only_argmax=True), got {type(mechanism).__name__}.")
    opened = opening.open_losses(key, mechanism, spent, problem, w, data)
    each, z = _losses(opened, problem), check_noise(mechanism)
    # `chosen` depends on the scores by max S - S_i alone
    below, argmax = in_float64(functools.partial(_scores, mechanism.sizes))(
        *jax.tree.map(jnp.asarray, (each, mechanism.bound, z)))
    # without noise the index is what it is
    index = jnp.where(argmax >= 0, argmax, chosen(opened.keys.noise, below))
    answered = opened.answered & (jnp.asarray(z) >= 0)  # not NaN, which no comparison is true of
    return jnp.where(answered, index, -1).astype(jnp.int32)


@watched
def release_loss(key: jax.Array, mechanism: RecordLosses, spent: jax.Array, problem: GroupProblem,
                 w: PyTree, data: PyTree, place: Place) -> jax.Array:
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
    if not isinstance(mechanism, RecordLosses):
        raise ValueError(f"release_loss answers RecordLosses, got {type(mechanism).__name__}.")
    opened = opening.open_losses(key, mechanism, spent, problem, w, data, place)
    record, exists = reading.record_of(opened, place)
    loss = release_keys.loss_of(problem)(opened.point, record)
    if jnp.shape(loss) != ():
        raise ValueError(f"The loss of one record must be one number, got shape {loss.shape}.")
    # without a record NaN, which counts as B, and not the loss of the nearest one
    alone = jnp.where(exists, loss, jnp.nan)[None, None]  # a group of one record
    noisy = _noisy_means(opened, alone, (1,), at_least_float32(loss.dtype))
    return opening.nan_if_refused(opened.answered, noisy[0])


def _losses(opened: Opened, problem: GroupProblem) -> jax.Array:
    """Every record's loss, `[p, n_max]`; on a mesh `[p, D m]`.

    Raises:
      ValueError: for a loss of one record that is not one number.
    """
    w, data, key_data = opened.point, opened.data, opened.operator_key_data
    loss = release_keys.loss_of(problem)
    if isinstance(data, Sharded):
        each = each_record(loss, w, data, release_keys.with_key_data_in_groups, key_data)
    else:
        # [p, n_max]; the losses of padding are computed too, and masked by `_present`
        each = summation.each_of_groups(
            loss, w, release_keys.with_key_data_of_groups(data, key_data))
    if each.ndim != 2:
        raise ValueError(f"The loss of one record must be one number, got shape {each.shape[2:]}.")
    refuse_complex(each, "the loss")
    return each


def _present(each: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    """Returns True for rows that are records, and not padding."""
    # row j of group i is a record if j < n_i: [1, n_max] and [p, 1]
    return jnp.arange(each.shape[1])[None] < np.array(sizes)[:, None]


def _scores(sizes: tuple[int, ...], each: jax.Array, bound: jax.Array,
            z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns how far each group's score is below the largest, int32 `[p]`, and the argmax or -1.

    The argmax is -1 with noise. Call it with 64-bit types.
    """
    each, bound, z = widened((each, bound, z))
    # clip(loss, 0, B) / B; padding adds 0
    losses = jnp.where(_present(each, sizes), _clipped_parts(each, bound), 0.0)
    integers = jnp.round(losses * 2.0**_LOSS_BITS)  # exact, and so are their sums
    noiseless = z == 0
    share = min(sizes) / np.array(sizes, np.float64)  # c_i is this over z in units of the grid
    unit = 2.0 ** (MOST_BITS - _LOSS_BITS) / (jnp.where(noiseless, 1.0, z) * ROUNDING_MARGIN)
    # the integer next to c_i I_i
    score = jnp.round(jnp.sum(integers, -1) * (share * unit))
    # capped for int32: `chosen` takes no group that is 2^29 or more below
    below = jnp.minimum(jnp.max(score) - score, 2.0**30).astype(jnp.int32)
    means = jnp.sum(losses, -1) / np.array(sizes, np.float64)
    largest = jnp.where(means == jnp.max(means), np.arange(len(sizes), dtype=np.int32), len(sizes))
    return below, jnp.where(noiseless, jnp.min(largest), -1)


def _clipped_parts(each: jax.Array, bound: jax.Array) -> jax.Array:
    """Losses over B, in [0, 1] whatever B is; one that is not a number counts as 1."""
    part = each / bound
    # part < 1 is false for NaN as well
    return jnp.where(part < 1, jnp.maximum(part, 0.0), 1.0)


def _clipped(each: jax.Array, bound: jax.Array) -> jax.Array:
    """Losses in [0, B]; one that is not a number counts as B."""
    return jnp.where(jnp.isnan(each), bound, jnp.clip(each, 0.0, bound))


def _noisy_means(opened: Opened, each: jax.Array, sizes: tuple[int, ...],
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
    refuse_complex(each, "the loss")
    mechanism = opened.mechanism

    def means(key: jax.Array, each: jax.Array, bound: jax.Array, z: jax.Array) -> jax.Array:
        each, bound, z = widened((each, bound, z))
        n = jnp.asarray(sizes, jnp.float64)
        clipped = jnp.where(_present(each, sizes), _clipped(each, bound), 0.0)
        gaussian = isinstance(mechanism, GroupLosses) and mechanism.gaussian
        noisy = noisy_sums.add_noise_to_losses(key, clipped, bound, z, mechanism.exact, gaussian)
        # to float32 always: the last bits of a float64 would tell which sums are possible
        return (noisy / n).astype(jnp.float32).astype(dtype)

    return with_key_in_float64(means, opened.keys.noise, each, mechanism.bound,
                               check_noise(mechanism))
