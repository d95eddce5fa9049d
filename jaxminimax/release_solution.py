"""A door to groups of records that solves on fresh ones and releases the solution, blurred.

Apart from `release` because it rests on more: on convex losses with true constants, and on a
certificate, see `mechanism.GroupSolution`.
"""

from collections.abc import Callable

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

from jaxminimax import _own_record, blur, group_solvers
from jaxminimax._tree import at_least_float32
from jaxminimax._types import GroupProblem, Tree
from jaxminimax.mechanism import (
    GroupSolution,
    check_noise,
    exact_sensitivity,
    phase_sizes,
    solution_length,
    solution_rounding,
    solution_smooth,
)
from jaxminimax.release_stream import check_rows
from jaxminimax.solvers import in_float64

_CONSTANTS = ("lipschitz", "bound", "diameter", "smooth")  # of a problem, that privacy rests on
_PHASES = 0x67726F75  # what the key of a run is folded with, apart from all else made from it


def release_group_solution(key: jax.Array, mechanism: GroupSolution, spent: jax.Array,
                           problem: GroupProblem, w: Tree, data: Tree) -> Tree:
    """The next phase's noisy solution around w, or NaN once all phases are spent.

        u + N(0, (noise multiplier * solution_length)^2 I),

    u in W within slack * exact_sensitivity of the solution on the phase's records, which are rows
    [t n_t, (t + 1) n_t) of each group after t phases. They are found by a number of steps that is
    proven to be enough; where that number is large for the dimension, Newton steps go first, and it
    is for what they leave uncertified. Solution, noise and sum are float64, and the sum alone is
    rounded to the dtypes of w. Without a certificate NaN: under the assumptions that the statement
    lists that cannot be. NaN for all data where the description does not cover the problem, has too
    few steps, or asks for more than float64 holds.

    Args:
      key: root key of the run, a secret. The noise is a function of it and `spent` alone.
      mechanism: what was promised to the accountant; its steps are set.
      spent: phases already released, int32 `[]`.
      problem: `loss` and `project` are used, and must keep float64; neither may close over traced
        values. Its constants must not exceed the mechanism's.
      w: the centre, public or released before; projected on W first.
      data: leaves `[p, n_max, ...]`, see `problems.by_group`.

    Returns:
      A tree like w in at least float32, not projected. Neither the groups' weights nor anything
      else of the solver.

    Raises:
      ValueError: while tracing, for data of another shape, a problem that the mechanism does not
        cover, a noise multiplier or steps that were never set, or losses of less than float64.
    """
    if not isinstance(mechanism, GroupSolution):
        raise ValueError("release_group_solution answers a GroupSolution, got "
                         f"{type(mechanism).__name__}.")
    if mechanism.steps is None:
        raise ValueError("steps of the inner solver are not set: phased_erm.certified(query) sets "
                         "them.")
    check_noise(mechanism)
    _check_covered(mechanism, problem)
    sizes = mechanism.sizes
    w, data = jax.tree.map(jnp.asarray, (w, data))
    blur.check_size(w, mechanism.parameters)
    check_rows(data, sizes)
    _own_record.check(problem.loss, w, data, 2, sum(sizes))
    key = jax.random.fold_in(jax.random.fold_in(key, _PHASES), spent)
    each = np.array(phase_sizes(mechanism))[:, None]
    # rows beyond a smaller group's share repeat its last one, and do not count
    place = np.arange(each.max())[None]
    rows = spent * each + np.minimum(place, each - 1)
    batch = jax.tree.map(
        lambda x: jax.vmap(lambda a, i: a.at[i].get(mode="clip", indices_are_sorted=True))(
            jnp.asarray(x), rows), data)
    share = (place < each) / each

    @in_float64
    def answer(words: jax.Array, spent: jax.Array, query: GroupSolution, w: Tree,
               batch: Tree) -> Tree:
        query, wide = jax.tree.map(lambda x: x.astype(jnp.float64), (query, w))
        reg_w = query.reg_w * jnp.asarray(2.0 ** np.arange(query.phases))[spent]
        point, unravel = jax.flatten_util.ravel_pytree(wide)

        def project(x: jax.Array) -> jax.Array:
            return jax.flatten_util.ravel_pytree(problem.project(unravel(x)))[0]

        _check_precision(problem, wide)

        def risks(x: jax.Array) -> jax.Array:
            losses = jax.vmap(jax.vmap(problem.loss, (None, 0)), (None, 0))(unravel(x), batch)
            if losses.dtype != jnp.float64:
                raise ValueError("The loss answers in less than float64 at a float64 point: cast "
                                 "the record to the point's dtype, not the reverse.")
            if losses.shape != (len(sizes), place.shape[1]):
                raise ValueError("The loss of one record must be one number, got shape "
                                 f"{losses.shape[2:]}.")
            return jnp.sum(losses * share, 1)

        centre = project(point)
        lost = solution_rounding(query, reg_w, jnp.linalg.norm(centre))
        wanted = query.slack * exact_sensitivity(query, reg_w) - lost
        found = _solve(query, reg_w, risks, project, centre, wanted)
        exact = (found.distance <= wanted) & _within_reach(query, reg_w, problem, lost)
        # the description's multiplier is over all of what replacing a record may do
        blurry = blur.blurred_point(
            jax.random.wrap_key_data(words, impl=implementation), unravel(found.point),
            solution_length(query, reg_w) / 2, 2 * check_noise(query), query.parameters,
            query.exact)
        return jax.tree.map(lambda a, x: jnp.where(exact, a, jnp.nan).astype(
            at_least_float32(x.dtype)), blurry, w)

    implementation = jax.random.key_impl(key)
    found = answer(jax.random.key_data(key), spent, jax.tree.map(jnp.asarray, mechanism),
                   jax.tree.map(jnp.asarray, w), batch)
    return jax.tree.map(lambda a: jnp.where(
        (spent >= 0) & (spent < mechanism.phases), a, jnp.nan), found)


def _solve(query: GroupSolution, reg_w: jax.Array, risks: Callable[[jax.Array], jax.Array],
           project: Callable[[jax.Array], jax.Array], centre: jax.Array,
           wanted: jax.Array) -> group_solvers.Near:
    """A point of W and its certified distance from the phase's solution."""
    assert query.steps is not None
    value = group_solvers.objective(risks, centre, reg_w=reg_w, reg_lam=query.reg_lam)
    if query.smooth is None:
        return group_solvers.subgradient(value, project, centre, modulus=reg_w, steps=query.steps)
    gradient = jax.grad(value)
    numbers = dict(smooth=solution_smooth(query, reg_w), modulus=reg_w)
    if query.steps < 10 * centre.size + 50:  # about what a few Newton steps cost
        w = group_solvers.accelerated(gradient, project, centre, steps=query.steps, **numbers)
        return group_solvers.certify(gradient, project, w, **numbers)
    quick = group_solvers.certify(gradient, project, group_solvers.newton(
        value, project, centre, distance=wanted, **numbers), **numbers)
    done = quick.distance <= wanted
    w = group_solvers.accelerated(gradient, project, centre,
                                  steps=jnp.where(done, 0, query.steps), **numbers)
    sure = group_solvers.certify(gradient, project, w, **numbers)
    return jax.tree.map(lambda a, b: jnp.where(done, a, b), quick, sure)


def _within_reach(query: GroupSolution, reg_w: jax.Array, problem: GroupProblem,
                  lost: jax.Array) -> jax.Array:
    """Whether no certificate can fail, for any data: a function of public numbers alone.

    The host has checked the same, but neither descriptions that were traced nor the problem. It
    aims at half of the distance; numbers may have been rounded since.
    """
    assert query.steps is not None
    distance = query.slack * exact_sensitivity(query, reg_w)
    good = lost <= 0.25 * distance
    for name in _CONSTANTS:
        if getattr(query, name) is not None:  # but for rounding to float32
            good &= getattr(query, name) >= getattr(problem, name) * (1 - 1e-6)
    aim = 0.55 * distance
    if query.smooth is None:
        needed = (2 * (query.lipschitz + reg_w * query.diameter) / (reg_w * aim)) ** 2
    else:
        smooth = solution_smooth(query, reg_w)
        start = query.lipschitz * jnp.minimum(query.diameter, query.lipschitz / reg_w)
        fall = -jnp.log1p(-jnp.sqrt(jnp.minimum(reg_w / smooth, 0.999)))
        needed = (jnp.log(start) - 2 * jnp.log(reg_w * aim) + jnp.log(8 * smooth)) / fall
    return good & (query.steps >= jnp.ceil(needed))


def _check_precision(problem: GroupProblem, w: Tree) -> None:
    """Refuses projections that round a float64 point to less."""
    if any(x.dtype != jnp.float64 for x in jax.tree.leaves(jax.eval_shape(problem.project, w))):
        raise ValueError("problem.project answers in less than float64 at a float64 point: the "
                         "certificate of a solution needs the point's own dtype.")


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
