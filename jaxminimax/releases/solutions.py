"""Certified solutions plus noise: proximal points on a sample, and solutions on fresh groups.

Apart from `sums` because they rest on more: on operators or convex losses with true constants, and
on a certificate, see `mechanism.Resolvent` and `mechanism.GroupSolution`.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxminimax.base import checks, tree
from jaxminimax.base.random_bits import fold_in, with_key_in_float64
from jaxminimax.base.types import GroupProblem, OwnOperator, Problem, PyTree, Saddle
from jaxminimax.gradients.clipping import ClippedOperator, clipped_sum
from jaxminimax.mechanism import GroupSolution, Repeat, Resolvent, batch_size, rows_read, solutions
from jaxminimax.mechanism.grid import check_noise
from jaxminimax.mechanism.resolvent import modulus, noise_unit, on_part, rounding, split
from jaxminimax.mechanism.sampling import Sample
from jaxminimax.placement import sent_rows, sharding
from jaxminimax.releases import noisy_sums, opening, reading, record_isolation, release_keys
from jaxminimax.releases.watch import watched
from jaxminimax.solvers import Regularised, certify, groups, operator_extrapolation, saddle

_CONSTANTS = ("lipschitz", "bound", "diameter", "smooth")  # of a problem, that privacy rests on


# --- proximal points ---


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
    inside the solver, see `placement.sent_rows`: the same certificate, of a point that may differ
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
    query: Resolvent = mechanism.query
    opening.check_kind(query, Resolvent, "release_resolvent", "a Resolvent")
    if query.steps is None:
        raise ValueError("steps of the inner solver are not set: proximal.certified(query) sets "
                         "them.")
    operator = problem.operator
    while isinstance(operator, OwnOperator):  # says how sums are computed, and hides nothing
        operator = operator.operator
    if query.assumes == "monotone" and isinstance(operator, ClippedOperator):
        raise ValueError("The operator is clipped, and clipping destroys monotonicity: use "
                         "assumes='lipschitz', or sanitise the records instead of the operator.")
    checks.scalars(bound=query.bound, prox=query.prox, slack=query.slack,
                   noise_multiplier=check_noise(query))
    opening.check_layout(data, mechanism)
    release_keys.refuse(problem, "A certified solution")
    record_isolation.check(problem.operator, z, data)
    opened = opening.open_release(key, mechanism, spent, z, data)
    opening.check_size(opened.point, query.parameters)
    mesh = opened.data.mesh if isinstance(opened.data, sharding.Sharded) else None
    valid: jax.Array | None
    if isinstance(opened.data, sharding.Sharded):
        sample = reading.sample_on_mesh(opened)
        batch, valid = _spread(opened.data, sample)
    else:
        sample, batch = reading.sampled_records(opened)
        valid = sample.valid  # None where all count
    part = reading.part_of(mechanism, spent)
    # one number stays static, so that loops have a length that the program knows
    part_steps = jnp.asarray(query.steps)[part] if isinstance(query.steps, tuple) else jnp.int32(0)

    def answer(key: jax.Array, query: Resolvent, part: jax.Array, part_steps: jax.Array, z: Saddle,
               batch: PyTree, valid: jax.Array | None) -> Saddle:
        query, wide = tree.widened((query, z))
        query = on_part(query, part)
        steps = part_steps if isinstance(query.steps, tuple) else query.steps
        _check_float64(wide, public=problem.public, project=problem.project)
        # the solver's draws and the noise have keys of their own
        v, certain = _proximal_point(fold_in(key, 2), query, steps, problem, wide,
                                     (batch, valid), mesh)
        # of public and released numbers: NaN for all data where a certificate could fail
        certain &= _resolvent_never_fails(query, steps, wide, problem.project(wide))
        # v + N(0, (z * noise unit)^2 I)
        return _noisy(fold_in(key, 1), v, certain, noise_unit(query), check_noise(query), query, z)

    g = with_key_in_float64(answer, opened.keys.noise, query, part, part_steps, opened.point, batch,
                            valid)
    return opening.nan_if_refused(opened.answered & sample.fits, g)


def _spread(data: sharding.Sharded, sample: Sample) -> tuple[PyTree, jax.Array]:
    """The rows of a sample on a mesh, as many in every shard, and which of them count."""
    if sample.rows is None:  # all of them, where they are
        count = jax.tree.leaves(data.rows)[0].shape[0]
        # rows from n on are padding
        return data.rows, jnp.arange(count) < data.population
    rows = sent_rows.evenly(data, sample.rows)
    valid = jnp.ones(sample.rows.shape, bool) if sample.valid is None else sample.valid
    # `evenly` repeats the last row to fill the shards; repeated rows do not count
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
        # s / m + a (u - z), with a of `split`; `Regularised` has the other mu (u - z)
        g = jax.tree.map(lambda s, a, c: s / size + shift * (a - c), g, u, z)
        return g if problem.public is None else jax.tree.map(jnp.add, g, problem.public(u))

    def mean(u: Saddle) -> Saddle:
        return over(u, sent_rows.added(lambda u, mine: total(u, *mine), u, rows, mesh), size)

    def component(u: Saddle, i: jax.Array) -> Saddle:
        # (count / m) F_i + ..., whose mean over the rows i is `mean`
        return over(u, total(u, *sent_rows.one_row(rows, i, mesh)), size / count)

    count = rows_read(query)
    todo = Regularised(mean, component, count, problem.project, z, modulus(query), lipschitz)
    start = problem.project(z)
    lost = rounding(query, saddle.norm(z) + saddle.norm(start))
    # the residual that the noise pays for, rho M / m, less what rounding may hide
    allowed_residual = query.slack * query.bound / size - lost
    if query.solver is not None:
        guess = problem.project(query.solver(key, todo, allowed_residual))
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(guess)]))
        start = jax.tree.map(lambda a, b: jnp.where(finite, a, b), guess, start)
        # a little less than wanted, so that the same certificate computed again cannot fail
        steps = jnp.where(certify(todo, start).residual <= 0.99 * allowed_residual, 0, steps)
    solution = certify(todo, operator_extrapolation(todo, start, steps))
    return solution.point, solution.residual <= allowed_residual


def _resolvent_never_fails(query: Resolvent, steps: Any, z: Saddle, start: Saddle) -> jax.Array:
    """True if no certificate can fail, see `never_fails`; the host's is `certifying_steps`."""
    residual, (_, lipschitz) = query.slack * query.bound / batch_size(query), split(query)

    def needed(residual: Any) -> jax.Array:
        # ln(2 (M / a)^2) / ln(1 + mu / L), with a the distance that a residual follows from
        accuracy = residual / (2 * (1 + math.sqrt(2)) * lipschitz)
        return ((math.log(2.0) + 2 * (jnp.log(query.diameter) - jnp.log(accuracy)))
                / jnp.log1p(modulus(query) / lipschitz))

    lost = rounding(query, saddle.norm(z) + saddle.norm(start))
    return (modulus(query) > 0) & saddle.never_fails(residual, lost, steps, needed)


# --- solutions on fresh records of all groups ---


def _phase_records(mechanism: GroupSolution, spent: jax.Array,
                   data: PyTree) -> tuple[PyTree, np.ndarray]:
    """The records of a phase, leaves `[p, max n_t, ...]`, and their weights `[p, max n_t]`."""
    # n_t of each group, [p, 1]
    share_sizes = np.array(solutions.phase_sizes(mechanism))[:, None]
    # rows beyond a smaller group's share repeat its last one, and do not count
    slot = np.arange(share_sizes.max())[None]
    # row t n_t + j of group i, [p, max n_t]
    rows = spent * share_sizes + np.minimum(slot, share_sizes - 1)
    # a record weighs 1 / n_t, a repeated one 0
    share = (slot < share_sizes) / share_sizes
    if isinstance(data, sharding.Sharded):
        batch = sent_rows.evenly(data, rows)
        padding = jax.tree.leaves(batch)[0].shape[1] - share.shape[1]
        return batch, np.pad(share, ((0, 0), (0, padding)))
    # [p, max n_t, ...]
    return jax.tree.map(
        lambda x: jax.vmap(lambda a, i: a.at[i].get(mode="clip", indices_are_sorted=True))(
            x, rows), data), share


@watched
def release_group_solution(key: jax.Array, mechanism: GroupSolution, spent: jax.Array,
                           problem: GroupProblem, w: PyTree, data: PyTree) -> PyTree:
    """The next phase's noisy solution around w, or NaN once all phases are spent.

        u + N(0, (noise multiplier * solution_length)^2 I),

    u in W within slack * exact_sensitivity of the solution on the phase's records, which are rows
    [t n_t, (t + 1) n_t) of each group after t phases. They are found by a number of steps that is
    proven to be enough; where that number is large for the dimension, Newton steps go first, and it
    is for what they leave uncertified. Solution, noise and sum are float64, and the sum alone is
    rounded to the dtypes of w. Without a certificate NaN: under the assumptions that the statement
    lists that cannot be. NaN for all data where the description does not cover the problem, has too
    few steps, or asks for more than float64 holds.

    On a mesh a phase's records are spread evenly over the devices, and risks are added up inside
    the solver, see `placement.sent_rows`: the same certificate, of a point that may differ by
    rounding.

    Args:
      key: root key of the run, a secret. The noise is a function of it and `spent` alone.
      mechanism: what was promised to the accountant; its steps are set.
      spent: phases already released, int32 `[]`.
      problem: `loss` and `project` are used, and must keep float64; neither may close over traced
        values. Its constants must not exceed the mechanism's.
      w: the centre, public or released before; projected on W first.
      data: leaves `[p, n_max, ...]`, see `problems.by_group`; or spread over a mesh.

    Returns:
      A tree like w in at least float32, not projected. Neither the groups' weights nor anything
      else of the solver.

    Raises:
      ValueError: while tracing, for data of another shape, a problem that the mechanism does not
        cover, a noise multiplier or steps that were never set, numbers of the description that are
        arrays, or losses of less than float64.
    """
    opening.check_kind(mechanism, GroupSolution, "release_group_solution", "a GroupSolution")
    if mechanism.steps is None:
        raise ValueError("steps of the inner solver are not set: phased_erm.certified(query) sets "
                         "them.")
    release_keys.refuse(problem, "A certified solution of groups")
    checks.scalars(noise_multiplier=check_noise(mechanism), slack=mechanism.slack,
                   reg_w=mechanism.reg_w, reg_lam=mechanism.reg_lam,
                   **{name: getattr(mechanism, name) for name in _CONSTANTS})
    _check_covered(mechanism, problem)
    sizes = mechanism.sizes
    opening.check_layout(data, mechanism)
    # of its gradient, with the rules of derivatives that a loss may have of its own
    record_isolation.check(jax.grad(problem.loss), w, data, 2, sizes)
    opened = opening.open_release(key, mechanism, spent, w, data)
    opening.check_size(opened.point, mechanism.parameters)
    data = opened.data
    mesh = data.mesh if isinstance(data, sharding.Sharded) else None
    batch, share = _phase_records(mechanism, spent, data)

    def answer(key: jax.Array, spent: jax.Array, query: GroupSolution, w: PyTree,
               batch: PyTree) -> PyTree:
        query, wide = tree.widened((query, w))
        # mu of phase t is 2^t times that of phase 0
        reg_w = query.reg_w * jnp.asarray(2.0 ** np.arange(query.phases))[spent]
        point, unravel = jax.flatten_util.ravel_pytree(wide)

        def project(x: jax.Array) -> jax.Array:
            return jax.flatten_util.ravel_pytree(problem.project(unravel(x)))[0]

        _check_float64(wide, project=problem.project)

        def parts(x: jax.Array, mine: tuple[PyTree, jax.Array]) -> jax.Array:
            batch, share = mine
            # [p, max n_t], of the rows on this device
            losses = jax.vmap(jax.vmap(problem.loss, (None, 0)), (None, 0))(unravel(x), batch)
            if losses.dtype != jnp.float64:
                raise ValueError("The loss answers in less than float64 at a float64 point: cast "
                                 "the record to the point's dtype, not the reverse.")
            if losses.ndim != 2:
                raise ValueError("The loss of one record must be one number, got shape "
                                 f"{losses.shape[2:]}.")
            # (1 / n_t) sum_j loss_ij, [p]
            return jnp.sum(losses * share, 1)

        def risks(x: jax.Array) -> jax.Array:
            return sent_rows.added(parts, x, (batch, jnp.asarray(share)), mesh, grouped=True)

        centre = project(point)
        lost = solutions.solution_rounding(query, reg_w, jnp.linalg.norm(centre))
        # the distance that the noise pays for, less what rounding may hide
        allowed = query.slack * solutions.exact_sensitivity(query, reg_w) - lost
        solution = _solve(query, reg_w, risks, project, centre, allowed)
        certain = (solution.distance <= allowed) & _solution_never_fails(
            query, reg_w, problem, lost)
        # u + noise; the description's multiplier is over all of what replacing a record may do
        return _noisy(key, unravel(solution.point), certain,
                      solutions.solution_length(query, reg_w) / 2, 2 * check_noise(query), query, w)

    noisy = with_key_in_float64(answer, opened.keys.noise, spent, mechanism, opened.point, batch)
    return opening.nan_if_refused(opened.answered, noisy)


def _solve(query: GroupSolution, reg_w: jax.Array, risks: Callable[[jax.Array], jax.Array],
           project: Callable[[jax.Array], jax.Array], centre: jax.Array,
           allowed: jax.Array) -> groups.CertifiedPoint:
    """A point of W and its certified distance from the phase's solution."""
    assert query.steps is not None
    value = groups.objective(risks, centre, reg_w=reg_w, reg_lam=query.reg_lam)
    if query.smooth is None:
        return groups.subgradient(value, project, centre, modulus=reg_w, steps=query.steps)
    gradient = jax.grad(value)
    numbers = dict(smooth=solutions.solution_smooth(query, reg_w), modulus=reg_w)
    if query.steps < 10 * centre.size + 50:  # about what a few Newton steps cost
        w = groups.accelerated(gradient, project, centre, steps=query.steps, **numbers)
        return groups.certify(gradient, project, w, **numbers)
    quick = groups.certify(gradient, project, groups.newton(
        value, project, centre, distance=allowed, **numbers), **numbers)
    done = quick.distance <= allowed
    w = groups.accelerated(gradient, project, centre,
                           steps=jnp.where(done, 0, query.steps), **numbers)
    sure = groups.certify(gradient, project, w, **numbers)
    return jax.tree.map(lambda a, b: jnp.where(done, a, b), quick, sure)


def _solution_never_fails(query: GroupSolution, reg_w: jax.Array, problem: GroupProblem,
                          lost: jax.Array) -> jax.Array:
    """Returns whether no certificate can fail, see `never_fails`, nor the problem be uncovered."""
    def needed(distance: Any) -> jax.Array:
        if query.smooth is None:
            # (2 (L + mu M) / (mu a))^2 subgradient steps
            return (2 * (query.lipschitz + reg_w * query.diameter) / (reg_w * distance)) ** 2
        smooth = solutions.solution_smooth(query, reg_w)
        # the centre's value is at most L min{M, L / mu} above the smallest one
        start = query.lipschitz * jnp.minimum(query.diameter, query.lipschitz / reg_w)
        fall = -jnp.log1p(-jnp.sqrt(jnp.minimum(reg_w / smooth, 0.999)))
        # accelerated steps: ln(8 l start / (mu a)^2) / -ln(1 - (mu / l)^(1/2))
        return (jnp.log(start) - 2 * jnp.log(reg_w * distance) + jnp.log(8 * smooth)) / fall

    good = saddle.never_fails(query.slack * solutions.exact_sensitivity(query, reg_w), lost,
                              query.steps, needed)
    for name in _CONSTANTS:
        if getattr(query, name) is not None:  # but for rounding to float32
            good &= getattr(query, name) >= getattr(problem, name) * (1 - 1e-6)
    return good


def _check_covered(query: GroupSolution, problem: GroupProblem) -> None:
    """Refuses a problem whose constants the mechanism's do not cover."""
    if not problem.convex:
        raise ValueError("The problem's loss is not known to be convex, which the sensitivity of a "
                         "solution rests on: give worst_group(..., convex=True) if it is.")
    if query.smooth is not None and problem.smooth is None:
        raise ValueError(f"smooth={query.smooth!r}, but the problem's loss is not known to be "
                         "smooth: use smooth=None.")
    for name in _CONSTANTS:
        promised, true = getattr(query, name), getattr(problem, name)
        if promised is None or isinstance(promised, jax.core.Tracer) or np.ndim(promised):
            continue
        if float(promised) < true * (1 - 1e-6):  # but for rounding to float32
            raise ValueError(f"{name} must be at least the problem's {true!r}, got {promised!r}.")


# --- certificates ---


def _noisy(key: jax.Array, point: PyTree, certain: jax.Array, length: jax.Array, z: jax.Array,
           query: Resolvent | GroupSolution, like: PyTree) -> PyTree:
    """A float64 point plus noise, in at least float32; NaN without a certificate."""
    noisy = noisy_sums.add_noise_to_point(key, point, length, z, query.parameters)
    return opening.nan_if_refused(certain, jax.tree.map(
        lambda a, x: a.astype(tree.at_least_float32(x.dtype)), noisy, like))


def _check_float64(point: PyTree, **functions: Callable[[PyTree], PyTree] | None) -> None:
    """Refuses functions of a problem that round a float64 point to less.

    Raises:
      ValueError: naming the function.
    """
    for name, function in functions.items():
        if function is not None and any(
                x.dtype != jnp.float64 for x in jax.tree.leaves(jax.eval_shape(function, point))):
            raise ValueError(f"problem.{name} answers in less than float64 at a float64 point: the "
                             "certificate of a solution needs the point's own dtype.")
