"""The door that proximal points leave by: a certified solution on a sample, plus noise.

Apart from `sums` because it rests on more: on an operator with true constants, and on a
certificate, see `mechanism.Resolvent`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxminimax.base import checks
from jaxminimax.base.random_bits import fold_in
from jaxminimax.base.tree import at_least_float32
from jaxminimax.base.types import OwnOperator, Problem, PyTree, Saddle
from jaxminimax.gradients.clipping import ClippedOperator, clipped_sum
from jaxminimax.mechanism import Repeat, Resolvent, batch_size, rows_read
from jaxminimax.mechanism.description import check_noise
from jaxminimax.mechanism.resolvent import modulus, noise_unit, on_part, rounding, split
from jaxminimax.mechanism.sampling import Sample
from jaxminimax.placement import gather_rows
from jaxminimax.placement.sharding import Sharded, arrays, refuse_ahead
from jaxminimax.releases import noising, opening, operator_rng, record_isolation
from jaxminimax.releases.reading import check_parts, part_of, sample_on_mesh, sampled_records
from jaxminimax.releases.watch import watched
from jaxminimax.solvers import Regularised, certify, operator_extrapolation

_NOISE, _SOLVER = 1, 2  # what the noise key of a release is folded with


@watched
def release_resolvent(key: jax.Array, mechanism: Repeat, spent: jax.Array, problem: Problem,
                      z: Saddle, data: PyTree) -> Saddle:
    """A noisy proximal point of the problem's operator around z, or NaN once the budget is spent.

        v + N(0, (noise multiplier * displacement)^2 I),

    v the certified solution in W of G(u) = (1/m) sum_{i in B} F_i(u) + r(u) + prox (u - z), with r
    the public terms. The query's solver may look for it; unless what it finds is certified,
    operator extrapolation takes the number of steps that is proven to be enough, from there or from
    P_W(z). How long that takes is not hidden. Solution, noise and sum are float64 and the sum alone
    is rounded to the dtypes of z, so that no rounding of the solution escapes the noise. NaN also
    if the residual exceeds what the noise pays for: under the assumptions that the statement lists
    it cannot, and without them nothing is promised. The residual itself stays inside.

    On a mesh the sample's rows are spread evenly over the devices, and means over them are added up
    inside the solver, see `placement.gather_rows`: the same certificate, of a point that may differ
    by rounding.

    Args:
      key: as in `release`.
      mechanism: repeats a `Resolvent` whose steps are set.
      spent: as in `release`.
      problem: `operator`, `public` (monotone) and `project` (on a convex W, Euclidean) are used;
        none may close over traced values, and the operator must keep float64.
      z: the centre, public or released before; it may lie outside W.
      data: as in `release`; not sent ahead to a mesh.

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
    operator = problem.operator
    while isinstance(operator, OwnOperator):  # says how sums are computed, and hides nothing
        operator = operator.operator
    if query.assumes == "monotone" and isinstance(operator, ClippedOperator):
        raise ValueError("The operator is clipped, and clipping destroys monotonicity: use "
                         "assumes='lipschitz', or sanitise the records instead of the operator.")
    check_noise(query)
    checks.scalars(bound=query.bound, prox=query.prox, slack=query.slack,
                   noise_multiplier=query.noise_multiplier)
    refuse_ahead(data)
    check_parts(data, mechanism)
    operator_rng.refuse(problem, "A certified solution")
    record_isolation.check(problem.operator, z, data)
    z, data = jax.tree.map(jnp.asarray, z), arrays(data)
    noising.check_size(z, query.parameters)
    allowed = opening.within_budget(spent, mechanism.times * mechanism.parts)
    mesh = data.mesh if isinstance(data, Sharded) else None
    valid: jax.Array | None
    if isinstance(data, Sharded):
        noise, sample, _ = sample_on_mesh(key, mechanism, spent, data)
        batch, valid = _spread(data, sample)
    else:
        noise, sample, batch = sampled_records(key, mechanism, spent, data)
        valid = sample.valid  # None where all count
    part = part_of(mechanism, spent)
    # one number stays static, so that loops have a length that the program knows
    each = jnp.asarray(query.steps)[part] if isinstance(query.steps, tuple) else jnp.int32(0)

    def answer(key: jax.Array, query: Resolvent, part: jax.Array, each: jax.Array, z: Saddle,
               batch: PyTree, valid: jax.Array | None) -> Saddle:
        query, wide = opening.widened((query, z))
        query = on_part(query, part)
        steps = each if isinstance(query.steps, tuple) else query.steps
        opening.check_float64(wide, public=problem.public, project=problem.project)
        v, certain = _proximal_point(fold_in(key, _SOLVER), query, steps, problem, wide,
                                     (batch, valid), mesh)
        certain &= _never_fails(query, steps, wide, problem.project(wide))
        # v + N(0, (z * noise unit)^2 I)
        blurry = noising.add_noise_to_point(fold_in(key, _NOISE), v, noise_unit(query),
                                            check_noise(query), query.parameters, query.exact)
        return opening.nan_if_refused(certain, jax.tree.map(
            lambda a, x: a.astype(at_least_float32(x.dtype)), blurry, z))

    g = opening.with_key_in_float64(answer, noise, query, part, each, z, batch, valid)
    return opening.nan_if_refused(allowed & sample.fits, g)


def _spread(data: Sharded, sample: Sample) -> tuple[PyTree, jax.Array]:
    """The rows of a sample on a mesh, as many in every shard, and which of them count."""
    if sample.rows is None:  # all of them, where they are
        count = jax.tree.leaves(data.rows)[0].shape[0]
        return data.rows, jnp.arange(count) < data.population
    rows = gather_rows.evenly(data, sample.rows)
    valid = jnp.ones(sample.rows.shape, bool) if sample.valid is None else sample.valid
    return rows, jnp.pad(valid, (0, jax.tree.leaves(rows)[0].shape[0] - valid.shape[0]))


def _proximal_point(key: jax.Array, query: Resolvent, steps: Any, problem: Problem, z: Saddle,
                    rows: tuple[PyTree, jax.Array | None],
                    mesh: Mesh | None) -> tuple[Saddle, jax.Array]:
    """The solution around z, float64, and whether it is certified."""
    size, (shift, lipschitz) = batch_size(query), split(query)
    bound = query.bound if query.assumes == "lipschitz" else jnp.inf
    # plainly: a solution is certified for this very operator, and monotone as it stands
    total = clipped_sum(problem.operator, Saddle(bound, bound), strategy="vmap", joint=True)

    def over(u: Saddle, g: Saddle, size: float) -> Saddle:
        if any(x.dtype != jnp.float64 for x in jax.tree.leaves(g)):
            raise ValueError("The operator answers in less than float64 at a float64 point: "
                             "cast the record to the point's dtype, not the reverse.")
        g = jax.tree.map(lambda s, a, c: s / size + shift * (a - c), g, u, z)
        return g if problem.public is None else jax.tree.map(jnp.add, g, problem.public(u))

    def mean(u: Saddle) -> Saddle:
        return over(u, gather_rows.added(lambda u, mine: total(u, *mine), u, rows, mesh), size)

    def component(u: Saddle, i: jax.Array) -> Saddle:
        return over(u, total(u, *gather_rows.one_row(rows, i, mesh)), size / count)

    count = rows_read(query)
    todo = Regularised(mean, component, count, problem.project, z, modulus(query), lipschitz)
    start = problem.project(z)
    lost = rounding(query, opening.norm(z) + opening.norm(start))
    wanted = query.slack * query.bound / size - lost
    if query.solver is not None:
        guess = problem.project(query.solver(key, todo, wanted))
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(guess)]))
        start = jax.tree.map(lambda a, b: jnp.where(finite, a, b), guess, start)
        # a little less than wanted, so that the same certificate computed again cannot fail
        steps = jnp.where(certify(todo, start).residual <= 0.99 * wanted, 0, steps)
    found = certify(todo, operator_extrapolation(todo, start, steps))
    return found.point, found.residual <= wanted


def _never_fails(query: Resolvent, steps: Any, z: Saddle, start: Saddle) -> jax.Array:
    """Whether no certificate can fail, see `opening`; the host's is `certifying_steps`."""
    residual, (_, lipschitz) = query.slack * query.bound / batch_size(query), split(query)

    def needed(residual: Any) -> jax.Array:
        # ln(2 (M / a)^2) / ln(1 + mu / L), with a the distance that a residual follows from
        accuracy = residual / (2 * (1 + math.sqrt(2)) * lipschitz)
        return ((math.log(2.0) + 2 * (jnp.log(query.diameter) - jnp.log(accuracy)))
                / jnp.log1p(modulus(query) / lipschitz))

    lost = rounding(query, opening.norm(z) + opening.norm(start))
    return (modulus(query) > 0) & opening.never_fails(residual, lost, steps, needed)
