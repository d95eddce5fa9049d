"""The door to records that are read one at a time and once: gradients in noisy prefix sums.

That no record is read twice is decided here too: `next_pair` hands out the records of a group in
their order, the first of a pair for its gradient and the second for its loss.
"""

import jax
import jax.numpy as jnp

from jaxminimax.base import checks
from jaxminimax.base.types import Problem, PyTree, Saddle
from jaxminimax.gradients.clipping import clipped_sum
from jaxminimax.mechanism import CorrelatedSums, TreeSums
from jaxminimax.mechanism.description import check_noise
from jaxminimax.mechanism.factorisation import PrefixSums
from jaxminimax.placement.sharding import Sharded, check_key
from jaxminimax.releases import noising, opening, operator_rng, record_isolation
from jaxminimax.releases.reading import Place, check_groups, record_at
from jaxminimax.releases.watch import watched


def next_pair(turns: jax.Array, group: jax.Array, sizes: tuple[int, ...],
              data: PyTree) -> tuple[Place, Place, jax.Array]:
    """The places of a group's next two records, and whether it has them, bool `[]`.

    Args:
      turns: pairs that each group gave before, int32 `[p]`.
      group: whose, int32 `[]`; public, or decided by what was released.
      sizes: records of each group.
      data: only their shapes are looked at: rows that are no groups would be read more than once.

    Raises:
      ValueError: while tracing, if `data` are not those of the described groups.
    """
    check_groups(data, sizes)
    row = 2 * turns[group]
    return (group, row), (group, row + 1), row + 1 < jnp.asarray(sizes, turns.dtype)[group]


def _node(key: jax.Array, level: jax.Array, index: jax.Array, mechanism: TreeSums, z: Saddle,
          scale: noising.GridNoise) -> Saddle:
    """Noise of the node over leaves (index - 1) 2^level + 1 ... index 2^level, as in `noising`.

    Nodes are numbered in order: (2 index - 1) 2^level, an odd number times a power of two, is a
    different one for each.
    """
    number = (2 * index.astype(jnp.uint32) - 1) << level.astype(jnp.uint32)
    keys = opening.keys_of_release(key, opening.stream(opening.Kind.NODE, mechanism), number)
    return (noising.integer_noise if mechanism.exact else noising.float_noise)(
        keys.noise, z, Saddle(scale, scale))


def _noise_step(key: jax.Array, leaf: jax.Array, mechanism: TreeSums, z: Saddle,
                scale: noising.GridNoise) -> Saddle:
    """N_t - N_{t-1} for leaf t = 1, 2, ...: one node comes, those below it go."""
    low = jax.lax.population_count((leaf & -leaf) - 1)  # the lowest bit of t that is set

    def drop(level: jax.Array, total: Saddle) -> Saddle:
        gone = _node(key, level, (leaf - 1) >> level, mechanism, z, scale)
        return jax.tree.map(jnp.subtract, total, gone)

    return jax.lax.fori_loop(0, low, drop, _node(key, low, leaf >> low, mechanism, z, scale))


@watched
def release_leaf(key: jax.Array, mechanism: PrefixSums, spent: jax.Array, problem: Problem,
                 z: Saddle, data: PyTree, place: Place,
                 present: jax.Array | None = None) -> Saddle:
    """How much the noisy sum of all leaves so far grows by the next one.

    For `CorrelatedSums` it is g_t plus `noising.correlated_noise`. For `TreeSums` it is

        g_t + N_t - N_{t-1},   g_t = clip(g(z; x), C),   N_t = sum of E_{l, t >> l} over bits l of t

    with t = spent + 1 and one N(0, (C noise_multiplier)^2 I) E_{l, j} for each node (l, j) of a
    binary tree, the one over leaves (j - 1) 2^l + 1 ... j 2^l. Adding up what was returned gives
    S_t + N_t, S_t = g_1 + ... + g_t.

    That is a function of the tree mechanism's noisy nodes alone: the nodes (l, t >> l) at the bits
    l of t are disjoint and cover 1 ... t, so S_t + N_t is the sum of theirs, each of which is its
    leaves' sum plus its own noise, and what is returned is the difference of two such sums. Each
    node's noise is drawn once, from the key and the node; from t - 1 to t the node at the lowest
    bit of t comes and those at the bits below it, all of them set in t - 1, go, which is two on
    average. No exact sum is kept anywhere.

    Args:
      key: root key of the run, a secret. Noise is a function of it and the node alone.
      mechanism: what was promised to the accountant.
      spent: leaves already released, int32 `[]`.
      problem: only `problem.operator` is used.
      z: the point to query; may depend on earlier releases.
      data: leaves `[n, ...]`, or `[p, n_max, ...]`.
      place: where the record is; no other leaf may read it.
      present: whether there is a record; without one the leaf is zero, and so for a place that is
        not in the data.

    Returns:
      A `Saddle` like z in at least float32, clipped in the norm of both players together; NaN
      everywhere once all leaves are spent.

    Raises:
      ValueError: while tracing, if the noise multiplier was never set, for a `spent` that is no
        integer, or for arrays of different lengths.
    """
    if not isinstance(mechanism, TreeSums | CorrelatedSums):
        raise ValueError("release_leaf answers TreeSums and CorrelatedSums, got "
                         f"{type(mechanism).__name__}.")
    noise_multiplier = check_noise(mechanism)
    checks.scalars(clip=mechanism.clip, noise_multiplier=noise_multiplier)
    if isinstance(data, Sharded):
        check_key(key)
    record, inside = record_at(data, place)
    record_isolation.check_operator(problem, z, data, axes=len(place))
    z = jax.tree.map(jnp.asarray, z)
    noising.check_size(z, mechanism.parameters)
    mask = inside if present is None else inside & present
    clip = Saddle(mechanism.clip, mechanism.clip)
    scale = noising.scales(clip, Saddle(noise_multiplier, noise_multiplier), mechanism.parameters)
    allowed = opening.within_budget(spent, mechanism.leaves)
    own = opening.stream(opening.Kind.LEAF, mechanism)
    keys = opening.keys_of_release(key, own, spent)
    rounding = noising.rounding(keys.noise, scale, z, 1, mechanism.parameters)
    examples = jax.tree.map(lambda x: x[None], record)
    if problem.random:
        *group, row = place
        words = opening.operator_key_data(key, own, spent)
        examples = operator_rng.with_key_data(examples, jnp.asarray(row)[None], words, *group)
    total = clipped_sum(operator_rng.operator_of(problem), clip, joint=True).sums(
        z, examples, mask[None], rounding)
    # g_t + N_t - N_{t-1}
    if isinstance(mechanism, CorrelatedSums):
        stream = opening.stream(opening.Kind.INNOVATION, mechanism)
        noise = noising.correlated_noise(key, stream, spent, mechanism.bands, total.floats, scale,
                                         mechanism.exact)
    else:
        leaf = jnp.asarray(spent, jnp.int32) + 1
        noise = _noise_step(key, leaf, mechanism, total.floats, scale.w)
    return opening.nan_if_refused(allowed, noising.added(total, noise, scale, mechanism.exact, 1.0))
