"""The door that one group's noisy mean gradients leave by.

As in `sums`, sample and noise follow from the description that the accountant reads, and from the
key and the number of the release alone.
"""

import jax
import jax.numpy as jnp

from jaxminimax.base import checks
from jaxminimax.base.types import GroupProblem, PyTree, Saddle
from jaxminimax.door import core, noising, own_record
from jaxminimax.door.samples import check_groups, sampled_of_group
from jaxminimax.gradients.clipping import clipped_sum
from jaxminimax.mechanism import GroupGradients, Repeat, check_noise, group_batch_sizes


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
      problem: only `problem.operator` is used.
      w: the point.
      data: leaves `[p, n_max, ...]`, see `problems.by_group`.
      group: i, int32 `[]`; public or a function of earlier releases.

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
    checks.scalars(clip=query.clip, noise_multiplier=z, group=group)
    if not jnp.issubdtype(jnp.result_type(group), jnp.integer):
        raise ValueError(f"group must be an integer, got {jnp.result_type(group)}.")
    w, data = jax.tree.map(jnp.asarray, (w, data))
    check_groups(data, query.sizes)
    own_record.check(problem.operator, Saddle(w, ()), data, 2, sum(query.sizes))
    noising.check_size(w, query.parameters)
    p = len(query.sizes)
    allowed = core.is_left(spent, mechanism.times) & (group >= 0) & (group < p)
    group = jnp.clip(group, 0, p - 1)
    keys = core.keys_of_release(key, core.Kind.GROUP_GRADIENT, spent)
    sample, records = sampled_of_group(keys, key, query, group, data)
    scale = noising.scales(Saddle(query.clip, None), Saddle(z, None), query.parameters)
    rows = jax.tree.leaves(records)[0].shape[0]
    rounding = noising.rounding(keys.noise, scale, Saddle(w, None), rows, query.parameters)
    total = clipped_sum(problem.operator, Saddle(query.clip, None)).sums(
        Saddle(w, ()), records, sample.valid, rounding)
    # (I + X) g / m_i
    size = jnp.asarray(group_batch_sizes(query))[group]
    g = noising.add_noise_and_normalise(keys.noise, total, scale, size, query.exact).w
    return core.nan_unless(allowed & sample.fits, g)
