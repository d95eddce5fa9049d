"""The door that certified solutions on fresh records of all groups leave by, with noise.

Apart from `sums` because it rests on more: on convex losses with true constants, and on a
certificate, see `mechanism.GroupSolution`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.tree import at_least_float32
from jaxminimax.base.types import GroupProblem, PyTree
from jaxminimax.mechanism import GroupSolution, phase_sizes
from jaxminimax.mechanism.description import check_noise
from jaxminimax.mechanism.solutions import (
    exact_sensitivity,
    solution_length,
    solution_rounding,
    solution_smooth,
)
from jaxminimax.placement import gather_rows
from jaxminimax.placement.sharding import Sharded, arrays, check_key
from jaxminimax.releases import noising, opening, operator_rng, record_isolation
from jaxminimax.releases.reading import check_groups
from jaxminimax.releases.watch import watched
from jaxminimax.solvers import groups

_CONSTANTS = ("lipschitz", "bound", "diameter", "smooth")  # of a problem, that privacy rests on


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
    the solver, see `placement.gather_rows`: the same certificate, of a point that may differ by
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
    if not isinstance(mechanism, GroupSolution):
        raise ValueError("release_group_solution answers a GroupSolution, got "
                         f"{type(mechanism).__name__}.")
    if mechanism.steps is None:
        raise ValueError("steps of the inner solver are not set: phased_erm.certified(query) sets "
                         "them.")
    operator_rng.refuse(problem, "A certified solution of groups")
    checks.scalars(noise_multiplier=check_noise(mechanism), slack=mechanism.slack,
                   reg_w=mechanism.reg_w, reg_lam=mechanism.reg_lam,
                   **{name: getattr(mechanism, name) for name in _CONSTANTS})
    _check_covered(mechanism, problem)
    sizes = mechanism.sizes
    w, data = jax.tree.map(jnp.asarray, w), arrays(data)
    noising.check_size(w, mechanism.parameters)
    check_groups(data, sizes)
    record_isolation.check(problem.loss, w, data, 2, sum(sizes))
    allowed = opening.within_budget(spent, mechanism.phases)
    stream = opening.stream(opening.Kind.GROUP_SOLUTION, mechanism)
    keys = opening.keys_of_release(key, stream, spent)
    each = np.array(phase_sizes(mechanism))[:, None]
    # rows beyond a smaller group's share repeat its last one, and do not count
    place = np.arange(each.max())[None]
    rows = spent * each + np.minimum(place, each - 1)
    share = (place < each) / each
    mesh = data.mesh if isinstance(data, Sharded) else None
    if isinstance(data, Sharded):
        check_key(key)
        batch = gather_rows.evenly(data, rows)
        room = jax.tree.leaves(batch)[0].shape[1] - share.shape[1]
        share = np.pad(share, ((0, 0), (0, room)))
    else:
        batch = jax.tree.map(
            lambda x: jax.vmap(lambda a, i: a.at[i].get(mode="clip", indices_are_sorted=True))(
                x, rows), data)

    def answer(key: jax.Array, spent: jax.Array, query: GroupSolution, w: PyTree,
               batch: PyTree) -> PyTree:
        query, wide = opening.widened((query, w))
        reg_w = query.reg_w * jnp.asarray(2.0 ** np.arange(query.phases))[spent]
        point, unravel = jax.flatten_util.ravel_pytree(wide)

        def project(x: jax.Array) -> jax.Array:
            return jax.flatten_util.ravel_pytree(problem.project(unravel(x)))[0]

        opening.check_float64(wide, project=problem.project)

        def parts(x: jax.Array, mine: tuple[PyTree, jax.Array]) -> jax.Array:
            batch, share = mine
            losses = jax.vmap(jax.vmap(problem.loss, (None, 0)), (None, 0))(unravel(x), batch)
            if losses.dtype != jnp.float64:
                raise ValueError("The loss answers in less than float64 at a float64 point: cast "
                                 "the record to the point's dtype, not the reverse.")
            if losses.ndim != 2:
                raise ValueError("The loss of one record must be one number, got shape "
                                 f"{losses.shape[2:]}.")
            return jnp.sum(losses * share, 1)

        def risks(x: jax.Array) -> jax.Array:
            return gather_rows.added(parts, x, (batch, jnp.asarray(share)), mesh, grouped=True)

        centre = project(point)
        lost = solution_rounding(query, reg_w, jnp.linalg.norm(centre))
        wanted = query.slack * exact_sensitivity(query, reg_w) - lost
        found = _solve(query, reg_w, risks, project, centre, wanted)
        certain = (found.distance <= wanted) & _never_fails(query, reg_w, problem, lost)
        # u + noise; the description's multiplier is over all of what replacing a record may do
        blurry = noising.add_noise_to_point(
            key, unravel(found.point), solution_length(query, reg_w) / 2, 2 * check_noise(query),
            query.parameters, query.exact)
        return opening.nan_if_refused(certain, jax.tree.map(
            lambda a, x: a.astype(at_least_float32(x.dtype)), blurry, w))

    found = opening.with_key_in_float64(answer, keys.noise, spent, mechanism, w, batch)
    return opening.nan_if_refused(allowed, found)


def _solve(query: GroupSolution, reg_w: jax.Array, risks: Callable[[jax.Array], jax.Array],
           project: Callable[[jax.Array], jax.Array], centre: jax.Array,
           wanted: jax.Array) -> groups.CertifiedPoint:
    """A point of W and its certified distance from the phase's solution."""
    assert query.steps is not None
    value = groups.objective(risks, centre, reg_w=reg_w, reg_lam=query.reg_lam)
    if query.smooth is None:
        return groups.subgradient(value, project, centre, modulus=reg_w, steps=query.steps)
    gradient = jax.grad(value)
    numbers = dict(smooth=solution_smooth(query, reg_w), modulus=reg_w)
    if query.steps < 10 * centre.size + 50:  # about what a few Newton steps cost
        w = groups.accelerated(gradient, project, centre, steps=query.steps, **numbers)
        return groups.certify(gradient, project, w, **numbers)
    quick = groups.certify(gradient, project, groups.newton(
        value, project, centre, distance=wanted, **numbers), **numbers)
    done = quick.distance <= wanted
    w = groups.accelerated(gradient, project, centre,
                           steps=jnp.where(done, 0, query.steps), **numbers)
    sure = groups.certify(gradient, project, w, **numbers)
    return jax.tree.map(lambda a, b: jnp.where(done, a, b), quick, sure)


def _never_fails(query: GroupSolution, reg_w: jax.Array, problem: GroupProblem,
                 lost: jax.Array) -> jax.Array:
    """Whether no certificate can fail, see `opening.never_fails`, nor the problem be uncovered."""
    def needed(distance: Any) -> jax.Array:
        if query.smooth is None:
            # (2 (L + mu M) / (mu a))^2 subgradient steps
            return (2 * (query.lipschitz + reg_w * query.diameter) / (reg_w * distance)) ** 2
        smooth = solution_smooth(query, reg_w)
        start = query.lipschitz * jnp.minimum(query.diameter, query.lipschitz / reg_w)
        fall = -jnp.log1p(-jnp.sqrt(jnp.minimum(reg_w / smooth, 0.999)))
        # accelerated steps: ln(8 l start / (mu a)^2) / -ln(1 - (mu / l)^(1/2))
        return (jnp.log(start) - 2 * jnp.log(reg_w * distance) + jnp.log(8 * smooth)) / fall

    good = opening.never_fails(query.slack * exact_sensitivity(query, reg_w), lost, query.steps,
                            needed)
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
