"""Noisy means of a problem's operator: sample, clip each record, add noise.

The standard deviation of the noise is one product, clip * noise multiplier, of the numbers that the
accountant reads.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import arguments, checks, programs, tree
from jaxminimax.base.types import Problem, PyTree, Saddle
from jaxminimax.mechanism import Query, Repeat, batch_size, costs, description, grid, rows_read
from jaxminimax.mechanism.query import count_grid
from jaxminimax.noise import floored_normal
from jaxminimax.placement import sharding
from jaxminimax.releases import noisy_sums, opening, reading, release_keys, stream
from jaxminimax.releases.watch import watched, watched_pair


@watched
def release(key: jax.Array, mechanism: Repeat, spent: jax.Array, problem: Problem, z: Saddle,
            data: PyTree) -> Saddle:
    """A noisy mean of the problem's operator at z, or NaN once the budget is spent.

    For each player p with a clip norm,

        g_p = (sum_{i in B} clip(g_p(z; x_i), C_p) + N(0, (C_p z_p)^2 I)) / m,

    with B the sample that the mechanism describes, one for both players, and m the public batch
    size: n, q n or b, never the realised one. A joint clip scales both players' g by one factor.

    Args:
      key: root key of the run, a secret. Sample and noise are functions of it, of `spent` and of
        the mechanism's place alone, so a resumed run repeats exactly what it had released. For the
        same reason, never release at two different points with the same three.
      mechanism: what was promised to the accountant; for a `Sequence` or a `Parallel`, one of its
        `parts`, unchanged, since no other part has its place.
      spent: number of releases of this mechanism already made, int32 `[]`.
      problem: only `problem.operator` is used, which also says how its clipped sum is computed
        (`saddle_operator`, `with_strategy`), and whether it draws.
      z: the point to query.
      data: leaves `[n, ...]`, n = `mechanism.query.population`, or the same rows on the devices of
        a mesh, `sharding.shard`; with several parts, at least as many rows as they have together.

    Returns:
      A `Saddle` like z in at least float32; zeros for a player without a clip norm; NaN everywhere
      if all allowed releases were made before, or if a sample does not fit.

    Raises:
      ValueError: while tracing, if a leaf of `data` does not have n rows, if the noise
        multipliers were never set, for a `spent` that is no integer, or for data on a mesh with a
        key that is not threefry's.
      TypeError: for arguments of another kind, see `base.arguments`.

    Examples:
        >>> game = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
        >>> data = (jnp.ones((100, 2)), jnp.zeros((100, 2)))
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(5.0, 5.0),
        ...                   population=100)
        >>> z = Saddle(jnp.zeros(2), jnp.zeros(2))
        >>> once = jmm.Repeat(query=query, times=1)
        >>> g = jmm.release(jmm.noise.secret_key(), once, jnp.asarray(0), game, z, data)
        >>> g.w.shape, bool(jnp.all(jnp.isfinite(g.w)))
        ((2,), True)
    """
    query = mechanism.query if isinstance(mechanism, Repeat) else None
    if isinstance(query, Query) and query.adaptive is not None:
        raise ValueError("adaptive clip norms change from round to round, which sgda keeps in its "
                         "state: leave Query.adaptive out, or take jmm.sgda.")
    return release_and_clip(key, mechanism, spent, problem, z, data)[0]


def _with_draws(key: jax.Array, mechanism: Repeat, spent: jax.Array, problem: Problem, z: Saddle,
                data: PyTree, drawn: noisy_sums.Drawn | None = None) -> Saddle:
    return release_and_clip(key, mechanism, spent, problem, z, data, None, drawn)[0]


_compiled = programs.Compiled(_with_draws, static_argnames=("problem",))


def compiled_release(key: jax.Array, mechanism: Repeat, problem: Problem, z: Saddle,
                     data: PyTree) -> Saddle:
    """Makes the first `release` of a table by one of the library's problems, as its own program.

    Args:
      key: as in `release`.
      mechanism: as in `release`.
      problem: of the library, the same object for equal operators, so that it is compiled once.
      z: as in `release`.
      data: as in `release`.
    """
    arguments.key(key)
    with programs.briefly(programs.is_brief(data, z)):
        # waits, as what holds the rows is written to afterwards, and a device may read it in place
        drawn = None if isinstance(data, sharding.Sharded) else noisy_sums.drawn_before(
            key, mechanism, 0, z)
        return jax.block_until_ready(_compiled(key, mechanism, np.int32(0), problem, z, data,
                                               drawn))


@watched_pair
def release_and_clip(key: jax.Array, mechanism: Repeat, spent: jax.Array, problem: Problem,
                     z: Saddle, data: PyTree, clip: Saddle | None = None,
                     drawn: noisy_sums.Drawn | None = None) -> tuple[Saddle, Saddle | None]:
    """A `release`, and where clip norms follow a quantile, one with these and the next ones.

    Args:
      key: as in `release`.
      mechanism: as in `release`.
      spent: as in `release`.
      problem: as in `release`.
      z: as in `release`.
      data: as in `release`.
      clip: of a `Query` with `adaptive`: `query.clip` first, then what the release before returned.
        Noise and charge are in units of it, so that it sets nothing apart. None without.
      drawn: the random numbers of this release, where they were drawn before it.

    Returns:
      As `release`; and of a `Query` with `adaptive` the next clip norms, per player float32 `[]`,
      None for one without a clip norm. NaN, whatever the data, for a clip norm that cannot have
      followed `query.clip`.

    Raises:
      ValueError: as `release`; for clip norms that are not those of the description's players.
    """
    if not isinstance(mechanism, Repeat):
        raise TypeError("release answers a Repeat of a Query, algorithm.mechanism(hyper), got "
                        f"{checks.describe(mechanism)}.")
    query = mechanism.query
    if not isinstance(query, Query):
        raise ValueError(f"release answers a Query, got {type(query).__name__}: use the algorithm "
                         "that this mechanism belongs to.")
    arguments.key(key)
    arguments.problem(problem)
    arguments.players("z", z, "the parameters of both players")
    arguments.records(data)
    mechanism.check_own()
    # noise is in units of the clip norm, so one from a state is checked
    if query.adaptive is not None:
        clip = check_clip(query, clip)
        mechanism = dataclasses.replace(mechanism, query=dataclasses.replace(query, clip=clip))
    for name, norm in query.clip._asdict().items():
        if norm is not None:
            arguments.floats(getattr(z, name), f"z.{name}")
    opened = opening.open_sum(key, mechanism, spent, problem, z, data)
    noise = None if query.bands == 1 else stream.correlated_noise_of(
        opened, description.Kind.MEAN_INNOVATION, query.restart())
    noisy = noisy_sums.noisy_sum(opened, reading.population_rows(opened), batch_size(query), noise,
                                 drawn)
    if noisy.num_unclipped is None or clip is None:
        return noisy.value, None
    following = next_clip(opened.keys.counts(), query, clip, noisy.num_unclipped)
    return noisy.value, opening.nan_if_refused(noisy.answered, following)


# --- the operator of the whole objective ---


def noisy_operator(key: jax.Array, mechanism: Repeat, spent: jax.Array, problem: Problem,
                   z: Saddle, data: PyTree) -> Saddle:
    """A release at z plus the public terms there, in the dtypes of z.

        g = release(z) + (grad_w r, -grad_v r)(z).

    The terms r that read no data are added after the noise: neither clipped nor noised nor charged.

    Args:
      key: root key of the run, a secret; as in `release`.
      mechanism: what was promised to the accountant.
      spent: number of releases already made, int32 `[]`.
      problem: `operator` and `public` are used.
      z: the point to query.
      data: as in `release`.

    Returns:
      A `Saddle` like z; NaN everywhere once all allowed releases were made.

    Raises:
      ValueError: as `release`.
    """
    g = release(key, mechanism, spent, problem, z, data)
    return _with_public(g, key, mechanism, spent, problem, z)


def noisy_operator_and_clip(key: jax.Array, mechanism: Repeat, spent: jax.Array, problem: Problem,
                            z: Saddle, data: PyTree, clip: Saddle | None,
                            ) -> tuple[Saddle, Saddle | None]:
    """Releases `noisy_operator`, and the next clip norms; used as `release_and_clip`."""
    g, following = release_and_clip(key, mechanism, spent, problem, z, data, clip)
    return _with_public(g, key, mechanism, spent, problem, z), following


def _with_public(g: Saddle, key: jax.Array, mechanism: Repeat, spent: jax.Array,
                 problem: Problem, z: Saddle) -> Saddle:
    if problem.public is not None:
        g = tree.add(g, release_keys.public_term(problem, z, key, mechanism, spent))
    return tree.cast_like(g, z)


# --- clip norms that follow a quantile ---
#
# `mechanism.adaptive` has the law and the proof; a count is an integer of the release's own sample.


def check_clip(query: Query, clip: Saddle | None) -> Saddle:
    """Clip norms of a state, float32 `[]`; NaN for one that no release can have led to.

    Of a tiny norm the noise would vanish where the sum does not.

    Raises:
      ValueError: for clip norms that are not those of the description's players.
    """
    adaptive: Any = query.adaptive
    if not isinstance(clip, Saddle) or [c is None for c in clip] != [c is None for c in query.clip]:
        raise ValueError(f"clip must be like query.clip, {query.clip!r}, got {clip!r}: start from "
                         "algorithm.init(z, hyper) with the same hyper.")
    checks.scalars(**{"adaptive.rate": adaptive.rate, "adaptive.share": adaptive.share,
                      "adaptive.floor": adaptive.floor})

    def in_range(norm: jax.Array, start: jax.Array) -> jax.Array:
        low, high = _range(start, adaptive.floor)
        norm = jnp.asarray(norm, jnp.float32)
        return jnp.where((norm >= low) & (norm <= high), norm, jnp.nan)

    return jax.tree.map(in_range, clip, query.clip)


def _range(start: jax.typing.ArrayLike,
           floor: jax.typing.ArrayLike) -> tuple[jax.Array, jax.Array]:
    """The smallest and the largest norm that may follow the first one."""
    start = jnp.asarray(start, jnp.float32)
    reach = 2.0**20  # of a clip norm, from the first one
    return start * jnp.maximum(jnp.asarray(floor, jnp.float32), 1 / reach), start * reach


def next_clip(key: jax.Array, query: Query, clip: Saddle, num_unclipped: Saddle) -> Saddle:
    """The clip norms after a release.

    Args:
      key: of the noise on the counts.
      query: the description.
      clip: norms of this release.
      num_unclipped: per player, records within the norm less longer ones, int32 `[]`; not released.

    Returns:
      Per player, float32 `[]`: C exp(-rate (b - quantile)), b the noisy part of the records within.
    """
    adaptive: Any = query.adaptive
    z = costs.count_multiplier(grid.check_noise(query), query.joint, adaptive.counts(query),
                               adaptive.share)
    # u units for a record, and L of X = floor(2^L G), with 2^L >= z_b u
    units, bits = count_grid(z, rows_read(query))
    number = adaptive.counts(query)
    drawn = floored_normal(key, number, bits)

    def moved_norm(start: jax.Array, norm: jax.Array, quantile: jax.Array, count: jax.Array,
            noise: jax.Array) -> jax.Array:
        # (u I + X + 1/2) / u: the noise X is a floor, 1/2 below its number on average
        shifted = (units * count + noise).astype(jnp.float32) + 0.5
        noisy = jnp.where(z == 0, count.astype(jnp.float32), shifted / units)
        # b = 1/2 + (sum_i s_i / 2 + noise) / m
        part = 0.5 + noisy / (2 * batch_size(query))
        # C exp(-rate (b - quantile)), kept within 2^-20 and 2^20 of the first norm
        moved = norm * jnp.exp(-adaptive.rate * (part - quantile))
        new = jnp.clip(moved, *_range(start, adaptive.floor))
        # u = 0: no integer noise is large enough for this multiplier
        return jnp.where(units > 0, new, jnp.nan).astype(jnp.float32)

    players = [k for k, norm in enumerate(query.clip) if norm is not None]
    following: list[jax.Array | None] = [None, None]
    for place, k in enumerate(players):
        count_place = 0 if query.joint else place  # one count for both
        following[k] = moved_norm(query.clip[k], clip[k], adaptive.quantile[players[count_place]],
                           num_unclipped[players[count_place]], drawn[count_place])
    return Saddle(*following)


# --- differences of the operator at two released points ---
