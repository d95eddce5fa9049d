"""The one door to the data: sample, clip per example, add or solve, blur, normalise.

Nothing else in the library's algorithms touches `data`. The standard deviation of the noise is one
product, clip * noise multiplier, of the numbers that the accountant reads.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax import _check, _own_record, blur
from jaxminimax._tree import at_least_float32
from jaxminimax._types import Problem, Saddle, Tree
from jaxminimax._words import child
from jaxminimax.gradients import ClippedOperator, clipped_sum
from jaxminimax.host_data import Window
from jaxminimax.mechanism import (
    Disjoint,
    Query,
    Repeat,
    Resolvent,
    batch_size,
    check_noise,
    displacement,
    modulus,
    on_part,
    rounding,
    rows_read,
    split,
)
from jaxminimax.sampling import Sample, draw
from jaxminimax.shard_sums import sum_over_shards
from jaxminimax.sharding import Sharded, arrays, check_key, refuse
from jaxminimax.solvers import Regularised, certify, in_float64, operator_extrapolation

# The run's key is folded with the number of the release, from here on: that keeps apart from
# whatever else is made from it (split(key)[i] and fold_in(key, i), for i below this).
_RELEASES = 2**31
_NOISE, _SOLVER = 1, 2  # what the key of a solution is folded with
_PLACES = 2  # and that of a sum, for the slots of a shard's rows; 0 and 1 are `blur`'s


def chosen(key: jax.Array, mechanism: Repeat, spent: jax.Array) -> tuple[jax.Array, Sample]:
    """A key for the noise of a release, and its sample, with rows counted in all of the data.

    A function of the run's key and of `spent` alone: whoever has them, on whatever device, finds
    the same sample.
    """
    assert isinstance(mechanism.query, Query | Resolvent)
    if not jnp.issubdtype(jnp.result_type(spent), jnp.integer):
        raise ValueError(f"spent must be an integer, got {jnp.result_type(spent)}.")
    number = jnp.uint32(_RELEASES) + jnp.asarray(spent).astype(jnp.uint32)
    key = child(key, number)
    sample = draw(child(key, 0), mechanism.query, spent % mechanism.times)
    if mechanism.parts > 1 and sample.rows is not None:
        first = _part(mechanism, spent) * mechanism.query.population
        sample = sample._replace(rows=sample.rows + first)
    return child(key, 1), sample


def _check_rows(mechanism: Repeat, data: Tree) -> None:
    """Refuses data of another size than described."""
    query, parts = mechanism.query, mechanism.parts
    assert isinstance(query, Query | Resolvent)
    rows = ({(data.population,)} if isinstance(data, Window | Sharded)
            else {jnp.shape(x)[:1] for x in jax.tree.leaves(data)})
    if parts == 1 and rows != {(query.population,)}:
        raise ValueError(f"data has leading axes {rows}, but the mechanism was described for "
                         f"population={query.population}.")
    if len(rows) != 1 or min(rows) < (parts * query.population,):
        raise ValueError(f"data has leading axes {rows}, but the mechanism was described for "
                         f"{parts} parts of {query.population} records.")


def _sampled(key: jax.Array, mechanism: Repeat, spent: jax.Array,
             data: Tree) -> tuple[jax.Array, Sample, Tree]:
    """A key for the noise of a release, its sample, and the rows of the sample."""
    query = mechanism.query
    assert isinstance(query, Query | Resolvent)
    _check_rows(mechanism, data)
    key, sample = chosen(key, mechanism, spent)
    places = sample.rows
    if isinstance(data, Window):  # what was sent ahead counts only if it is what is read now
        if places is None:
            raise ValueError(f"{query.sampling!r} reads every record, not rows sent ahead.")
        data, places, same = data.read(spent, places)
        sample = sample._replace(fits=sample.fits & same)
    if places is not None:
        ordered = isinstance(query.sampling, Disjoint)
        data = jax.tree.map(lambda x: x.at[places].get(
            mode="promise_in_bounds", indices_are_sorted=ordered), data)
    elif mechanism.parts > 1:
        first = _part(mechanism, spent) * query.population
        data = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, first, query.population), data)
    return key, sample, data


def _left(mechanism: Repeat, spent: jax.Array) -> jax.Array:
    return (spent >= 0) & (spent < mechanism.times * mechanism.parts)


def _part(mechanism: Repeat, spent: jax.Array) -> jax.Array:
    """The part of the data that a release reads; the nearest one for releases that are refused."""
    return jnp.clip(spent // mechanism.times, 0, mechanism.parts - 1)


def release(key: jax.Array, mechanism: Repeat, spent: jax.Array, problem: Problem, z: Saddle,
            data: Tree, *, strategy: str = "auto", microbatch: int = 32) -> Saddle:
    """A noisy mean of the problem's operator at z, or NaN once the budget is spent.

    For each player p with a clip norm,

        g_p = (sum_{i in B} clip(g_p(z; x_i), C_p) + N(0, (C_p z_p)^2 I)) / m,

    with B the sample that the mechanism describes, one for both players, and m the public batch
    size: n, q n or b, never the realised one. A joint clip scales both players' g by one factor.

    Args:
      key: root key of the run, a secret. Sample and noise are functions of it and `spent`
        alone, so a resumed run repeats exactly what it had released. For the same reason, never
        release at two different points with the same key and `spent`.
      mechanism: what was promised to the accountant.
      spent: number of releases already made, int32 `[]`.
      problem: only `problem.operator` is used.
      z: the point to query.
      data: leaves `[n, ...]`, n = `mechanism.query.population`, or the same rows on the devices of
        a mesh, `sharding.shard`; with several parts, at least as many rows as they have together.
      strategy: how the clipped sum is computed, see `clipped_sum`; never what it is.
      microbatch: see `clipped_sum`.

    Returns:
      A `Saddle` like z in at least float32; zeros for a player without a clip norm; NaN everywhere
      if all allowed releases were made before, or if a Poisson sample outgrew its capacity.

    Raises:
      ValueError: while tracing, if a leaf of `data` does not have n rows, if the noise
        multipliers were never set, or for data on a mesh with a key that is not threefry's.
    """
    query = mechanism.query
    if not isinstance(query, Query):
        raise ValueError(f"release answers a Query, got {type(query).__name__}: use the algorithm "
                         "that this mechanism belongs to.")
    noise_multiplier = check_noise(query)
    for name, *numbers in zip(Saddle._fields, query.clip, noise_multiplier, strict=True):
        _check.scalars(**dict(zip((f"clip.{name}", f"noise_multiplier.{name}"), numbers,
                                  strict=True)))
    _own_record.check(problem.operator, z, data)
    clipped = clipped_sum(problem.operator, query.clip, strategy=strategy, microbatch=microbatch,
                          joint=query.joint)
    z, data = jax.tree.map(jnp.asarray, z), arrays(data)
    released = Saddle(*(None if c is None else x for c, x in zip(query.clip, z, strict=True)))
    blur.check_size(released, query.parameters)
    scale = blur.scales(query.clip, noise_multiplier, query.parameters)
    if isinstance(data, Sharded):
        check_key(key)
        _check_rows(mechanism, data)
        key, sample = chosen(key, mechanism, spent)
        rows = sample.rows
        if rows is None and mechanism.parts > 1:
            rows = (_part(mechanism, spent) * query.population
                    + jnp.arange(query.population, dtype=jnp.int32))
        rounding = blur.rounding(key, scale, released, rows_read(query), query.parameters)
        total = sum_over_shards(clipped.sums, z, data, query, rows, sample.valid, rounding,
                                child(key, _PLACES))
    else:
        key, sample, data = _sampled(key, mechanism, spent, data)
        rounding = blur.rounding(key, scale, released, rows_read(query), query.parameters)
        total = clipped.sums(z, data, sample.valid, rounding)
    allowed = sample.fits & _left(mechanism, spent)

    g = blur.blurred(key, total, scale, batch_size(query), query.exact)
    g = Saddle(*(jax.tree.map(jnp.zeros_like, x) if clip is None else a
                 for clip, x, a in zip(query.clip, z, g, strict=True)))
    return jax.tree.map(lambda a: jnp.where(allowed, a, jnp.nan), g)


def release_resolvent(key: jax.Array, mechanism: Repeat, spent: jax.Array, problem: Problem,
                      z: Saddle, data: Tree) -> Saddle:
    """A noisy proximal point of the problem's operator around z, or NaN once the budget is spent.

        v + N(0, (noise multiplier * displacement)^2 I),

    v the certified solution in W of G(u) = (1/m) sum_{i in B} F_i(u) + r(u) + prox (u - z), with r
    the public terms. The query's solver may look for it; unless what it finds is certified,
    operator extrapolation takes the number of steps that is proven to be enough, from there or from
    P_W(z). How long that takes is not hidden. Solution, noise and sum are float64 and the sum alone
    is rounded to the dtypes of z, so that no rounding of the solution escapes the noise. NaN also
    if the residual exceeds what the noise pays for: under the assumptions that the statement lists
    it cannot, and without them nothing is promised. The residual itself stays inside.

    Args:
      key: as in `release`.
      mechanism: repeats a `Resolvent` whose steps are set.
      spent: as in `release`.
      problem: `operator`, `public` (monotone) and `project` (on a convex W, Euclidean) are used;
        none may close over traced values, and the operator must keep float64.
      z: the centre, public or released before; it may lie outside W.
      data: as in `release`.

    Returns:
      A `Saddle` like z in at least float32, not projected.

    Raises:
      ValueError: as `release`; for a clipped operator that is assumed to be monotone; for an
        operator that answers in less than float64.
    """
    query = mechanism.query
    if not isinstance(query, Resolvent):
        raise ValueError(f"release_resolvent answers a Resolvent, got {type(query).__name__}.")
    if query.steps is None:
        raise ValueError("steps of the inner solver are not set: proximal.certified(query) sets "
                         "them.")
    if query.assumes == "monotone" and isinstance(problem.operator, ClippedOperator):
        raise ValueError("The operator is clipped, and clipping destroys monotonicity: use "
                         "assumes='lipschitz', or sanitise the records instead of the operator.")
    check_noise(query)
    _check.scalars(bound=query.bound, prox=query.prox, slack=query.slack,
                   noise_multiplier=query.noise_multiplier)
    refuse(data)
    _own_record.check(problem.operator, z, data)
    z, data = jax.tree.map(jnp.asarray, z), arrays(data)
    blur.check_size(z, query.parameters)
    key, sample, batch = _sampled(key, mechanism, spent, data)
    allowed = sample.fits & _left(mechanism, spent)
    part = _part(mechanism, spent)
    # one number stays static, so that loops have a length that the program knows
    each = jnp.asarray(query.steps)[part] if isinstance(query.steps, tuple) else jnp.int32(0)

    @in_float64
    def answer(words: jax.Array, query: Resolvent, part: jax.Array, each: jax.Array, z: Saddle,
               batch: Tree, valid: jax.Array | None) -> Saddle:
        query, wide = jax.tree.map(lambda x: x.astype(jnp.float64), (query, z))
        query = on_part(query, part)
        key = jax.random.wrap_key_data(words, impl=implementation)
        steps = each if isinstance(query.steps, tuple) else query.steps
        _check_precision(problem, wide)
        v, exact = _proximal_point(jax.random.fold_in(key, _SOLVER), query, steps, problem, wide,
                                   batch, valid)
        exact &= _within_reach(query, steps, wide, problem.project(wide))
        blurry = blur.blurred_point(jax.random.fold_in(key, _NOISE), v, displacement(query),
                                    check_noise(query), query.parameters, query.exact)
        return jax.tree.map(lambda a, x: jnp.where(exact, a, jnp.nan).astype(
            at_least_float32(x.dtype)), blurry, z)

    implementation = jax.random.key_impl(key)
    g = answer(jax.random.key_data(key), jax.tree.map(jnp.asarray, query), part, each, z, batch,
               sample.valid)
    return jax.tree.map(lambda a: jnp.where(allowed, a, jnp.nan), g)


def _proximal_point(key: jax.Array, query: Resolvent, steps: Any, problem: Problem, z: Saddle,
                    batch: Tree, valid: jax.Array | None) -> tuple[Saddle, jax.Array]:
    """The solution around z, float64, and whether it is certified."""
    size, (shift, lipschitz) = batch_size(query), split(query)
    bound = query.bound if query.assumes == "lipschitz" else jnp.inf
    # plainly: a solution is certified for this very operator, and monotone as it stands
    total = clipped_sum(problem.operator, Saddle(bound, bound), strategy="vmap", joint=True)

    def over(u: Saddle, rows: tuple[Tree, jax.Array | None], size: float) -> Saddle:
        g = total(u, *rows)
        if any(x.dtype != jnp.float64 for x in jax.tree.leaves(g)):
            raise ValueError("The operator answers in less than float64 at a float64 point: "
                             "cast the record to the point's dtype, not the reverse.")
        g = jax.tree.map(lambda s, a, c: s / size + shift * (a - c), g, u, z)
        return g if problem.public is None else jax.tree.map(jnp.add, g, problem.public(u))

    def mean(u: Saddle) -> Saddle:
        return over(u, (batch, valid), size)

    def component(u: Saddle, i: jax.Array) -> Saddle:
        one = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i, 1), (batch, valid))
        return over(u, one, size / count)

    count = rows_read(query)
    todo = Regularised(mean, component, count, problem.project, z, modulus(query), lipschitz)
    start = problem.project(z)
    wanted = query.slack * query.bound / size - rounding(query, _norm(z) + _norm(start))
    if query.solver is not None:
        guess = problem.project(query.solver(key, todo, wanted))
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(guess)]))
        start = jax.tree.map(lambda a, b: jnp.where(finite, a, b), guess, start)
        # a little less than wanted, so that the same certificate computed again cannot fail
        steps = jnp.where(certify(todo, start).residual <= 0.99 * wanted, 0, steps)
    found = certify(todo, operator_extrapolation(todo, start, steps))
    return found.point, found.residual <= wanted


def _norm(z: Saddle) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(z)))


def _within_reach(query: Resolvent, steps: Any, z: Saddle, start: Saddle) -> jax.Array:
    """Whether no certificate can fail, for any data: a function of public numbers alone.

    The host has checked the same by `solvers.certifying_steps`, but not descriptions that were
    traced. It aims at half of the residual; numbers may have been rounded since.
    """
    residual, (_, lipschitz) = query.slack * query.bound / batch_size(query), split(query)
    accuracy = 0.55 * residual / (2 * (1 + math.sqrt(2)) * lipschitz)
    needed = jnp.ceil((math.log(2.0) + 2 * (jnp.log(query.diameter) - jnp.log(accuracy)))
                      / jnp.log1p(modulus(query) / lipschitz))
    precise = rounding(query, _norm(z) + _norm(start)) <= 0.25 * residual
    return (modulus(query) > 0) & precise & (steps >= needed)


def _check_precision(problem: Problem, z: Saddle) -> None:
    """Refuses public terms and projections that round a float64 point to less."""
    for name in ("public", "project"):
        function = getattr(problem, name)
        if function is not None and any(
                x.dtype != jnp.float64 for x in jax.tree.leaves(jax.eval_shape(function, z))):
            raise ValueError(f"problem.{name} answers in less than float64 at a float64 point: the "
                             "certificate of a solution needs the point's own dtype.")
