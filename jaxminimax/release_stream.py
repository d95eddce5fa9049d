"""The door to records that are read one at a time and once: gradients by a tree, single losses.

That no record is read twice is decided here too: `next_pair` hands out the records of a group in
their order, the first of a pair for its gradient and the second for its loss.
"""

import jax
import jax.numpy as jnp

from jaxminimax import _check, _own_record, blur
from jaxminimax._tree import at_least_float32, refuse_complex
from jaxminimax._types import GroupProblem, Problem, Saddle, Tree
from jaxminimax.gradients import clipped_sum
from jaxminimax.mechanism import RecordLosses
from jaxminimax.mechanism import Tree as TreeSum
from jaxminimax.sharding import refuse
from jaxminimax.solvers import in_float64

_NODES, _LOSSES = 0x74726565, 0x6C6F7373  # what a run's key is folded with, apart from all else
_LEAVES = 64  # and that of the nodes, apart from their levels

Place = tuple[jax.Array, ...]


def check_rows(data: Tree, sizes: tuple[int, ...]) -> None:
    """Refuses data that are not laid out in groups of these sizes.

    Raises:
      ValueError: naming the axes and the fix.
    """
    refuse(data)
    axes = {jnp.shape(x)[:2] for x in jax.tree.leaves(data)}
    if axes != {(len(sizes), max(sizes))}:
        raise ValueError(f"data has leading axes {axes}, but the mechanism was described for "
                         f"{len(sizes)} groups of up to {max(sizes)} records: use "
                         "problems.by_group.")


def next_pair(turns: jax.Array, group: jax.Array, sizes: tuple[int, ...],
              data: Tree) -> tuple[Place, Place, jax.Array]:
    """The places of a group's next two records, and whether it has them, bool `[]`.

    Args:
      turns: pairs that each group gave before, int32 `[p]`.
      group: whose, int32 `[]`; public, or decided by what was released.
      sizes: records of each group.
      data: only their shapes are looked at: rows that are no groups would be read more than once.

    Raises:
      ValueError: while tracing, if `data` are not those of the described groups.
    """
    check_rows(data, sizes)
    row = 2 * turns[group]
    return (group, row), (group, row + 1), row + 1 < jnp.asarray(sizes, turns.dtype)[group]


def _record(data: Tree, place: Place) -> tuple[Tree, jax.Array]:
    """The record at a place, and whether there is one: an index that is too large finds none."""
    refuse(data)
    inside = jnp.array(True)
    for axis, index in enumerate(place):
        (length,) = {jnp.shape(x)[axis] for x in jax.tree.leaves(data)}
        inside &= (index >= 0) & (index < length)
    return jax.tree.map(lambda x: jnp.asarray(x).at[place].get(mode="clip"), data), inside


def _node(key: jax.Array, level: jax.Array, index: jax.Array, mechanism: TreeSum, z: Saddle,
          scale: blur.Scale) -> Saddle:
    """Noise of the node over leaves (index - 1) 2^level + 1 ... index 2^level, as in `blur`."""
    key = jax.random.fold_in(jax.random.fold_in(key, level), index)
    return (blur.integer_noise if mechanism.exact else blur.float_noise)(
        key, z, Saddle(scale, scale))


def _noise_step(key: jax.Array, leaf: jax.Array, mechanism: TreeSum, z: Saddle,
                scale: blur.Scale) -> Saddle:
    """N_t - N_{t-1} for leaf t = 1, 2, ...: one node comes, those below it go."""
    low = jax.lax.population_count((leaf & -leaf) - 1)  # the lowest bit of t that is set

    def drop(level: jax.Array, total: Saddle) -> Saddle:
        gone = _node(key, level, (leaf - 1) >> level, mechanism, z, scale)
        return jax.tree.map(jnp.subtract, total, gone)

    return jax.lax.fori_loop(0, low, drop, _node(key, low, leaf >> low, mechanism, z, scale))


def release_leaf(key: jax.Array, mechanism: TreeSum, spent: jax.Array, problem: Problem, z: Saddle,
                 data: Tree, place: Place, present: jax.Array | None = None) -> Saddle:
    """How much the noisy sum of all leaves so far grows by the next one.

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
      ValueError: while tracing, if the noise multiplier was never set.
    """
    if not isinstance(mechanism, TreeSum):
        raise ValueError(f"release_leaf answers a Tree, got {type(mechanism).__name__}.")
    _check.scalars(clip=mechanism.clip, noise_multiplier=_set(mechanism))
    _own_record.check(problem.operator, z, data, axes=len(place))
    z = jax.tree.map(jnp.asarray, z)
    blur.check_size(z, mechanism.parameters)
    record, inside = _record(data, place)
    mask = inside if present is None else inside & present
    clip = Saddle(mechanism.clip, mechanism.clip)
    scale = blur.scales(clip, Saddle(_set(mechanism), _set(mechanism)), mechanism.parameters)
    key, leaf = jax.random.fold_in(key, _NODES), jnp.asarray(spent, jnp.int32) + 1
    rounding = blur.rounding(jax.random.fold_in(jax.random.fold_in(key, _LEAVES), leaf), scale, z,
                             1, mechanism.parameters)
    total = clipped_sum(problem.operator, clip, joint=True).sums(
        z, jax.tree.map(lambda x: x[None], record), mask[None], rounding)
    noise = _noise_step(key, leaf, mechanism, total.floats, scale.w)
    g = blur.added(total, noise, scale, mechanism.exact, 1.0)
    allowed = (spent >= 0) & (spent < mechanism.leaves)
    return jax.tree.map(lambda a: jnp.where(allowed, a, jnp.nan), g)


def release_loss(key: jax.Array, mechanism: RecordLosses, spent: jax.Array, problem: GroupProblem,
                 w: Tree, data: Tree, place: Place) -> jax.Array:
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
    noise_multiplier = _set(mechanism)
    _check.scalars(bound=mechanism.bound, noise_multiplier=noise_multiplier)
    _own_record.check(problem.loss, w, data, axes=len(place))
    record, inside = _record(data, place)
    loss = problem.loss(w, record)
    if jnp.shape(loss) != ():
        raise ValueError(f"The loss of one record must be one number, got shape {loss.shape}.")
    refuse_complex(loss, "the loss")
    dtype = at_least_float32(loss.dtype)
    known = inside & ~jnp.isnan(loss)
    key = jax.random.fold_in(jax.random.fold_in(key, _LOSSES), spent)
    implementation = jax.random.key_impl(key)

    @in_float64
    def blurred(words: jax.Array, loss: jax.Array, known: jax.Array, bound: jax.Array,
                z: jax.Array) -> jax.Array:
        loss, bound, z = (x.astype(jnp.float64) for x in (loss, bound, z))
        loss = jnp.where(known, jnp.clip(loss, 0, bound), bound)
        noisy = blur.blurred_losses(jax.random.wrap_key_data(words, impl=implementation),
                                    loss[None], bound, z, mechanism.exact)
        return noisy.astype(jnp.float32).astype(dtype)

    noisy = blurred(jax.random.key_data(key), loss, known, jnp.asarray(mechanism.bound),
                    jnp.asarray(noise_multiplier))
    return jnp.where((spent >= 0) & (spent < mechanism.times), noisy, jnp.nan)


def _set(mechanism: TreeSum | RecordLosses) -> jax.typing.ArrayLike:
    if mechanism.noise_multiplier is None:
        raise ValueError(f"noise_multiplier of {type(mechanism).__name__} is not set: calibrate("
                         "algorithm, hyper, epsilon=..., delta=...) sets it; 0.0 runs without "
                         "privacy.")
    return mechanism.noise_multiplier
