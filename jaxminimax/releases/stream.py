"""Records that are read one at a time and once: gradients in noisy prefix sums.

That no record is read twice is decided here too: `next_pair` hands out the records of a group in
their order, the first of a pair for its gradient and the second for its loss. Noise of one release
is correlated with that of others: over the nodes of a binary tree, or over the bands of a
factorisation, each number of which is drawn anew from the key.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.base.random_bits import random_words
from jaxminimax.base.tree import as_leaves
from jaxminimax.base.types import Problem, PyTree, Saddle
from jaxminimax.mechanism import CorrelatedSums, TreeSums
from jaxminimax.mechanism.description import Kind
from jaxminimax.mechanism.factorisation import FRACTION, TOGETHER, PrefixSums, coefficients
from jaxminimax.noise import floored_normal, gaussian
from jaxminimax.releases import noisy_sums, opening, reading, release_keys
from jaxminimax.releases.watch import watched


def next_pair(turns: jax.Array, group: jax.Array, sizes: tuple[int, ...],
              data: PyTree) -> tuple[opening.Place, opening.Place, jax.Array]:
    """The places of a group's next two records, and whether it has them, bool `[]`.

    Args:
      turns: pairs that each group gave before, int32 `[p]`.
      group: whose, int32 `[]`; public, or decided by what was released.
      sizes: records of each group.
      data: only their shapes are looked at: rows that are no groups would be read more than once.

    Raises:
      ValueError: while tracing, if `data` are not those of the described groups.
    """
    opening.check_groups(data, sizes)
    # each turn takes two records, so none is read twice
    row = 2 * turns[group]
    return (group, row), (group, row + 1), row + 1 < jnp.asarray(sizes, turns.dtype)[group]


@watched
def release_leaf(key: jax.Array, mechanism: PrefixSums, spent: jax.Array, problem: Problem,
                 z: Saddle, data: PyTree, place: opening.Place,
                 present: jax.Array | None = None) -> Saddle:
    """Releases how much the noisy sum of all leaves so far grows by the next one.

    For `CorrelatedSums` it is g_t plus `correlated_noise`. For `TreeSums` it is

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
      problem: `operator`, and `public`, whose operator at z is added to the leaf of a record, after
        the noise: it reads no record, so it is neither clipped nor charged.
      z: the point to query; may depend on earlier releases.
      data: leaves `[n, ...]`, or `[p, n_max, ...]`.
      place: where the record is; no other leaf may read it.
      present: whether there is a record; without one the leaf is zero, and so for a place that is
        not in the data.

    Returns:
      A `Saddle` like z in at least float32, clipped in the norm of both players together, and the
      public term; NaN everywhere once all leaves are spent.

    Raises:
      ValueError: while tracing, if the noise multiplier was never set, for a `spent` that is no
        integer, or for arrays of different lengths.
    """
    opening.check_kind(mechanism, TreeSums | CorrelatedSums, "release_leaf",
                       "TreeSums and CorrelatedSums")
    opened = opening.open_sum(key, mechanism, spent, problem, z, data, place)
    # g_t + N_t - N_{t-1}
    noise = (correlated_noise_of(opened, Kind.INNOVATION) if isinstance(mechanism, CorrelatedSums)
             else lambda like, scale: _noise_step(
                 key, jnp.asarray(spent, jnp.int32) + 1, mechanism, like, scale.w))
    leaf = noisy_sums.noisy_sum(opened, reading.row_at(opened, place, present), 1.0, noise).value
    if problem.public is None:
        return leaf
    exists = reading.is_in(data, place) & (True if present is None else present)
    return jax.tree.map(lambda x, y: x + jnp.where(exists, y, 0).astype(x.dtype), leaf,
                        release_keys.public_term(problem, z, key, mechanism, spent))


# --- a tree's nodes ---


def _node(key: jax.Array, level: jax.Array, index: jax.Array, mechanism: TreeSums, z: Saddle,
          scale: noisy_sums.GridNoise) -> Saddle:
    """Noise of the node over leaves (index - 1) 2^level + 1 ... index 2^level, as in `noisy_sums`.

    Nodes are numbered in order: (2 index - 1) 2^level, an odd number times a power of two, is a
    different one for each.
    """
    number = (2 * index.astype(jnp.uint32) - 1) << level.astype(jnp.uint32)
    keys = release_keys.Keys(key, release_keys.stream(mechanism, Kind.NODE), number)
    return (noisy_sums.integer_noise if mechanism.exact else noisy_sums.float_noise)(
        keys.noise, z, Saddle(scale, scale))


def _noise_step(key: jax.Array, leaf: jax.Array, mechanism: TreeSums, z: Saddle,
                scale: noisy_sums.GridNoise) -> Saddle:
    """The step N_t - N_{t-1} for leaf t = 1, 2, ...: one node comes, those below it go."""
    low = jax.lax.population_count((leaf & -leaf) - 1)  # the lowest bit of t that is set

    def drop(level: jax.Array, total: Saddle) -> Saddle:
        # a bit of t - 1 that t does not have
        gone = _node(key, level, (leaf - 1) >> level, mechanism, z, scale)
        return jax.tree.map(jnp.subtract, total, gone)

    # E of node (low, t >> low), less E of the nodes that go
    return jax.lax.fori_loop(0, low, drop, _node(key, low, leaf >> low, mechanism, z, scale))


# --- combinations of the latest independent numbers ---


def correlated_noise_of(opened: opening.Opened, kind: Kind,
                        restart: int | None = None) -> noisy_sums.Noise:
    """Computes `correlated_noise` of a release, of the bands that it describes."""
    query, stream = opened.query, release_keys.stream(opened.mechanism, kind)
    return lambda like, scale: correlated_noise(opened.keys.run, stream, opened.number, query.bands,
                                                like, scale, query.exact, restart)


def correlated_noise(key: jax.Array, stream: int, spent: jax.Array, bands: int, like: Saddle,
                     scale: Saddle, exact: bool, restart: int | None = None) -> Saddle:
    """Draws the noise of release `spent` = 0, 1, ..., in units of the grid if `exact`.

        X_t = zeta_t + floor((U_t + sum over 0 < k < p of a_k zeta_{t-k}) / 2^17),

    zeta_t the floors of real normals and U_t uniform on {0, ..., 2^17 - 1}; the argument is in
    `mechanism.factorisation`. Both are functions of the key, the stream and the number, so that no
    state holds what later noise is made of. The numbers of `TOGETHER` releases are one draw. Sums
    of products are those of 13 lower and 13 upper bits, with sum |a_k| below 2^17: below 2^31 each
    unless a number is 15 deviations off. A constant makes up for zeta's means of -1/2, but for X's.

    Args:
      key: root key of the run.
      stream: of `Kind.INNOVATION` or `Kind.MEAN_INNOVATION`. A run may release both; made of one
        draw, their difference would have no noise.
      spent: releases made before, int32 `[]`.
      bands: p.
      like: arrays of both players.
      scale: of the independent numbers.
      exact: whether they are integers.
      restart: after how many releases the noise begins anew, of no earlier numbers; None: never.
    """
    spent = jnp.asarray(spent, jnp.int32)
    last = Latest(spent, bands, spent if restart is None else spent % restart)
    return (_integers if exact else _floats)(key, stream, last, like, scale)


class Latest(NamedTuple):
    """The releases whose independent numbers the noise of a release is made of.

    Attributes:
      spent: its number, int32 `[]`.
      bands: p, the most of them.
      before: how many releases before it count, int32 `[]`: fewer than p - 1 at a beginning.
    """

    spent: jax.Array
    bands: int
    before: jax.Array

    @property
    def reach(self) -> jax.Array:
        """How long ago the first of them was."""
        return jnp.clip(self.before, 0, self.bands - 1)

    def over(self, start: PyTree, add: Callable[[PyTree, jax.Array, jax.Array], PyTree]) -> PyTree:
        """Applies `add(total, block, lag)` over all blocks of numbers with one of them.

        `lag` is how long ago each release of a block was, `[releases]`: negative for those to come.
        """
        size = min(TOGETHER, self.bands)
        first = jnp.maximum(self.spent - self.reach, 0) // size

        def add_block(block: jax.Array, total: PyTree) -> PyTree:
            return add(total, block, self.spent - block * size - jnp.arange(size, dtype=jnp.int32))

        return jax.lax.fori_loop(first, self.spent // size + 1, add_block, start)

    def weights(self, lag: jax.Array, table: jax.Array) -> jax.Array:
        """The coefficients of releases; 0 of those that do not count."""
        inside = (lag >= 0) & (lag <= self.reach)
        return jnp.where(inside, table[jnp.clip(lag, 0, self.bands - 1)], 0)


def _integers(key: jax.Array, stream: int, last: Latest, like: Saddle, scale: Saddle) -> Saddle:
    size, rows = sum(x.size for x in jax.tree.leaves(like)), min(TOGETHER, last.bands)
    finest_bits = noisy_sums.finest(scale)
    weights = coefficients(last.bands)
    # a_0 is left out: zeta_t is added outside of the floor
    table = jnp.asarray(weights).at[0].set(0)
    # by how many bits a player's L is below the largest, for every number, [size]
    shift = jnp.concatenate([jnp.full(x.size, finest_bits - s.log2_steps) for s, player in zip(
        scale, like, strict=True) if s is not None for x in jax.tree.leaves(player)])

    # of the lower part of an integer: sums of either part's products have 32 bits
    half_bits = 13

    def add(total: PyTree, block: jax.Array, lag: jax.Array) -> PyTree:
        current, high, low = total
        # zeta of the releases of a block, [releases, size], each number on its own grid
        zeta = floored_normal(release_keys.Keys(key, stream, block).noise,
                              rows * size, finest_bits).reshape(rows, size) >> shift[None]
        a = last.weights(lag, table)[:, None]
        # zeta_t, and sum_k a_k zeta_{t-k} = 2^13 high + low
        return (current + jnp.sum(jnp.where(lag == 0, 1, 0)[:, None] * zeta, 0, dtype=jnp.int32),
                high + jnp.sum(a * (zeta >> half_bits), 0, dtype=jnp.int32),
                low + jnp.sum(a * (zeta & (2**half_bits - 1)), 0, dtype=jnp.int32))

    zero = jnp.zeros(size, jnp.int32)
    current, high, low = last.over((zero, zero, zero), add)
    # the stream draws no samples: the key of one is free for U_t
    uniform = random_words(release_keys.Keys(key, stream, last.spent).sample, (size,))
    uniform = (uniform >> (32 - FRACTION)).astype(jnp.int32)
    # half of the sum of the coefficients in use: the means of zeta are -1/2
    halves = jnp.asarray((weights.cumsum() - weights[0]) >> 1, jnp.int32)
    # at a beginning fewer coefficients are in use
    half = halves[last.reach]
    # floors of floors nest
    mixed = (high + ((low + uniform + half) >> half_bits)) >> (FRACTION - half_bits)
    return as_leaves(current + mixed, like)


def _floats(key: jax.Array, stream: int, last: Latest, like: Saddle, scale: Saddle) -> Saddle:
    rows = min(TOGETHER, last.bands)
    # r_k = a_k / 2^17
    table = jnp.asarray(coefficients(last.bands) * 2.0**-FRACTION, jnp.float32)
    std = Saddle(*(None if s is None else s.stddev for s in scale))
    several = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), like)

    def add(total: Saddle, block: jax.Array, lag: jax.Array) -> Saddle:
        drawn = gaussian(release_keys.Keys(key, stream, block).noise, several, std)
        weights = last.weights(lag, table)
        return jax.tree.map(lambda sum_, x: sum_ + jnp.tensordot(
            weights.astype(x.dtype), x, 1, precision="highest"), total, drawn)

    return last.over(jax.tree.map(jnp.zeros_like, like), add)
