"""Solvers of variational inequalities with a proximal term, and certificates.

    find u* in W with <G(u*) + mu (u* - c), u - u*> >= 0 for all u in W,

for a monotone, l-Lipschitz G. A solution is certified by its residual, so privacy does not rest on
the solver. Any method may compute a point; operator extrapolation, with a number of steps that is
fixed in advance, then finishes. Nothing here is private: residuals, iterates and counts of
evaluations depend on all data that G reads.

Sources: operator extrapolation, Kotsalis, Lan and Li, "Simple and optimal methods for stochastic
variational inequalities, I", arXiv:2011.02987, as used by Boob and Guzman, arXiv:2104.02988,
Appendix B, Algorithm 3. Departures: the proximal term is handled in the projection, so the rate is
1 + mu / l with l of G alone; the bound carries the constant that theirs leaves out, which short
runs exceed without it. Variance reduction, Alacaoglu and Malitsky, "Stochastic variance reduction
for variational inequality methods", COLT 2022, arXiv:2102.08352, Algorithm 1, with the proximal
term.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.base import checks
from jaxminimax.base.types import PyTree

__all__ = ["Certified", "Regularised", "certify", "certifying_steps", "extrapolation_bound",
           "extrapolation_steps", "near_linear", "operator_extrapolation", "variance_reduced"]

Operator = Callable[[PyTree], PyTree]


class Certified(NamedTuple):
    """A point and a residual that bounds its distance from the solution.

    Attributes:
      point: v in W, a pytree.
      residual: ||e|| for an e in H(v) + N_W(v), H(u) = G(u) + mu (u - c). With H m-strongly
        monotone, ||v - u*|| <= ||e|| / m, and <H(v), v - u> <= ||e|| D for all u in W.

    Examples:
        >>> jmm.solvers.Certified(point=jnp.zeros(2), residual=jnp.asarray(0.01)).point.tolist()
        [0.0, 0.0]
    """

    point: PyTree
    residual: jax.Array


class Regularised(NamedTuple):
    """A problem for a solver: a mean of components, a proximal term and a set.

    Attributes:
      mean: G, `u -> g`, the mean over the components.
      component: `(u, i) -> g_i`, i int32 `[]`; None if there are no components.
      size: N, the number of components.
      project: `u -> u`, Euclidean projection on W.
      centre: c, the centre of the proximal term, like u.
      prox: mu > 0, the weight of the proximal term.
      lipschitz: l > 0, the Lipschitz constant of the components, in the mean square at least.

    Examples:
        >>> problem = jmm.solvers.Regularised(mean=lambda u: u - 1.0, component=None, size=1,
        ...                                   project=lambda u: u, centre=jnp.zeros(1), prox=1.0,
        ...                                   lipschitz=1.0)
        >>> problem.mean(jnp.zeros(1)).tolist()
        [-1.0]
    """

    mean: Operator
    component: Callable[[PyTree, jax.Array], PyTree] | None
    size: int
    project: Callable[[PyTree], PyTree]
    centre: PyTree
    prox: jax.typing.ArrayLike
    lipschitz: jax.typing.ArrayLike

    def step(self, u: PyTree, g: PyTree, size: jax.typing.ArrayLike) -> PyTree:
        """Returns the argmin over W of <g, x> + (mu/2) ||x - c||^2 + ||x - u||^2 / (2 size)."""
        new = self.project(jax.tree.map(
            lambda x, c, a: ((x / size + self.prox * c - a) / (1.0 / size + self.prox)).astype(
                x.dtype), u, self.centre, g))
        return jax.tree.map(lambda a, x: a.astype(x.dtype), new, u)


def _log_kappa(lipschitz: float, prox: float) -> float:
    checks.positive(prox=prox, lipschitz=lipschitz)
    return math.log1p(prox / lipschitz)


def extrapolation_bound(steps: int, *, lipschitz: float, prox: float, distance: float) -> float:
    """Bounds ||u - u*|| after `steps` steps from a start at most `distance` away.

    The proven bound is (2 kappa / (2 kappa - 1))^(1/2) kappa^(-steps/2) distance, with
    kappa = 1 + mu / l.

    Args:
      steps: the number of steps of `operator_extrapolation`.
      lipschitz: l, of G without the proximal term.
      prox: mu, the weight of the proximal term.
      distance: a bound on the start's distance from the solution, in units of parameters.

    Examples:
        >>> jmm.solvers.extrapolation_bound(40, lipschitz=1.0, prox=1.0, distance=2.0) < 1e-5
        True
    """
    log_kappa = _log_kappa(lipschitz, prox)
    kappa = math.exp(log_kappa)
    return math.exp(0.5 * (math.log(2 * kappa / (2 * kappa - 1)) - steps * log_kappa)) * distance


def extrapolation_steps(accuracy: float, *, lipschitz: float, prox: float, distance: float) -> int:
    """Counts the steps until ||u - u*|| <= accuracy.

    It is ceil(ln(2 distance^2 / accuracy^2) / ln kappa), with kappa = 1 + mu / l.

    Args:
      accuracy: the wanted bound on the distance from the solution, in units of parameters.
      lipschitz: l, of G without the proximal term, or any larger number.
      prox: mu, the weight of the proximal term.
      distance: a bound on the start's distance from the solution, e.g. the diameter of W.

    Raises:
      ValueError: for numbers out of range.

    Examples:
        >>> jmm.solvers.extrapolation_steps(1e-3, lipschitz=1.0, prox=1.0, distance=2.0)
        23
    """
    log_kappa = _log_kappa(lipschitz, prox)
    checks.positive(accuracy=accuracy, distance=distance)
    ratio = math.log(2.0) + 2 * (math.log(distance) - math.log(accuracy))
    return max(1, math.ceil(ratio / log_kappa))


def certifying_steps(residual: float, *, lipschitz: float, prox: float, distance: float) -> int:
    """Counts the steps until `certify` bounds at most `residual`, in exact arithmetic.

    An iterate within zeta of the solution has a residual of at most 2 l (1 + sqrt 2) zeta.

    Args:
      residual: the wanted residual, in units of the operator.
      lipschitz: l, of G without the proximal term, or any larger number.
      prox: mu, the weight of the proximal term.
      distance: a bound on the start's distance from the solution, in units of parameters.

    Raises:
      ValueError: for numbers out of range.

    Examples:
        >>> jmm.solvers.certifying_steps(1e-3, lipschitz=1.0, prox=1.0, distance=2.0)
        28
    """
    return extrapolation_steps(residual / (2 * (1 + math.sqrt(2)) * lipschitz),
                               lipschitz=lipschitz, prox=prox, distance=distance)


def norm(x: PyTree) -> jax.Array:
    """The Euclidean norm of all numbers of a pytree, `[]`."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(a)) for a in jax.tree.leaves(x)))


def operator_extrapolation(problem: Regularised, start: PyTree, steps: int | jax.Array) -> PyTree:
    """Makes some steps of operator extrapolation, and returns the last iterate.

        u_{t+1} = argmin_W <g_t, u> + (mu/2) ||u - c||^2 + l ||u - u_t||^2,
        g_t = G(u_t) + (G(u_t) - G(u_{t-1})) / kappa,        kappa = 1 + mu / l.

    One new evaluation of G a step; G(u_0) = G(u_1). The error falls like kappa^(-t/2), see
    `extrapolation_bound`: the potential  (l + mu) ||u_t - u*||^2 - <G(u_t) - G(u_{t-1}), u_t - u*>
    + (l/2) ||u_t - u_{t-1}||^2  falls by kappa a step, and is at least (l/2 + mu) ||u_t - u*||^2.

    Args:
      problem: the problem, whose components are not used.
      start: u_1 in W, public or released before. It must not be an iterate of another solve.
      steps: the number of steps; 0 or fewer return the start.

    Examples:
        >>> problem = jmm.solvers.Regularised(mean=lambda u: u - 1.0, component=None, size=1,
        ...                                   project=lambda u: u, centre=jnp.zeros(1), prox=1.0,
        ...                                   lipschitz=1.0)
        >>> print(jmm.solvers.operator_extrapolation(problem, jnp.zeros(1), 30).round(3))
        [0.5]
    """
    weight = 1.0 / (1.0 + problem.prox / problem.lipschitz)

    def step(_: jax.Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        u, previous = carry
        g = problem.mean(u)
        extrapolated = jax.tree.map(lambda a, b: a + (a - b) * weight, g, previous)
        return problem.step(u, extrapolated, 0.5 / problem.lipschitz), g

    def first() -> tuple[PyTree, PyTree]:
        g = problem.mean(start)
        return problem.step(start, g, 0.5 / problem.lipschitz), g

    if isinstance(steps, int):
        return jax.lax.fori_loop(1, steps, step, first())[0] if steps > 0 else start
    shapes = jax.eval_shape(first)[1]
    nothing = start, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    initial = jax.lax.cond(steps > 0, first, lambda: nothing)
    return jax.lax.fori_loop(1, steps, step, initial)[0]


def certify(problem: Regularised, point: PyTree) -> Certified:
    """Makes one more step, and computes its residual.

        v = argmin_W <G(u), x> + (mu/2) ||x - c||^2 + (l/2) ||x - u||^2,
        e = G(v) - G(u) + l (u - v)   in   G(v) + mu (v - c) + N_W(v).

    Release v, not u: the bounds of `Certified` are about v. They take monotonicity as given and do
    not need l to be right.

    Args:
      problem: the problem, whose components are not used.
      point: u, the result of a solver.

    Returns:
      `Certified`: v and ||e||.

    Examples:
        >>> problem = jmm.solvers.Regularised(mean=lambda u: u - 1.0, component=None, size=1,
        ...                                   project=lambda u: u, centre=jnp.zeros(1), prox=1.0,
        ...                                   lipschitz=1.0)
        >>> certified = jmm.solvers.certify(problem, jnp.array([0.5]))  # (u - 1) + u = 0 there
        >>> print(certified.point.round(3), certified.residual.round(3))
        [0.5] 0.0
    """
    g_u = problem.mean(point)
    v = problem.step(point, g_u, 1.0 / problem.lipschitz)
    g_v = problem.mean(v)
    e = jax.tree.map(lambda a, b, u, x: a - b + problem.lipschitz * (u - x), g_v, g_u, point, v)
    return Certified(v, norm(e))


def variance_reduced(key: jax.Array, problem: Regularised, residual: jax.typing.ArrayLike, *,
                     epochs: int = 300) -> tuple[PyTree, jax.Array]:
    """Runs loopless variance-reduced extragradient until a snapshot is certified.

        y = (1 - p) u + p s,                      x = step(y, G(s)),
        u = step(y, G(s) + g_i(x) - g_i(s)),      i uniform,
        with probability p: s = u, and G(s) is computed anew,

    p = 2 / N and step size sqrt(p / 2) / l = 1 / (l sqrt N), for N components. In expectation the
    error falls by 1 - min(m, p/2) / (2 (1 + m)), m = mu / (l sqrt N), a step, and a step costs four
    evaluations of a component and the certificates', so that O((N + sqrt(N) l / mu) ln(1 /
    residual)) evaluations are enough: nearly linear in N where l / mu grows like sqrt(N).

    Args:
      key: a key for the indices, apart from the keys of noise.
      problem: a problem with components, each l-Lipschitz in the mean square.
      residual: the wanted residual, as `certify` computes it.
      epochs: the largest number of snapshots, after which it stops without a certificate.

    Returns:
      The last snapshot, and how many evaluations of a component it took, float `[]`; both depend on
      the data.

    Examples:
        >>> def component(u, i):
        ...     return u - 1.0
        >>> problem = jmm.solvers.Regularised(mean=lambda u: u - 1.0, component=component, size=2,
        ...                                   project=lambda u: u, centre=jnp.zeros(1), prox=1.0,
        ...                                   lipschitz=1.0)
        >>> point, evaluations = jmm.solvers.variance_reduced(jax.random.key(0), problem, 1e-3)
        >>> print(jmm.solvers.certify(problem, point).point.round(2))
        [0.5]
    """
    assert problem.component is not None
    component, n = problem.component, problem.size
    p = min(1.0, 2.0 / n)
    size = math.sqrt(p / 2) / problem.lipschitz

    class State(NamedTuple):
        u: PyTree
        s: PyTree
        g: PyTree
        residual: jax.Array
        cost: jax.Array
        epoch: jax.Array

    def inner(snapshot: tuple[PyTree, PyTree], key: jax.Array, u: PyTree) -> PyTree:
        s, g = snapshot
        i = jax.random.randint(key, (), 0, n, jnp.int32)
        y = jax.tree.map(lambda a, b: (1 - p) * a + p * b, u, s)
        x = problem.step(y, g, size)
        corrected = jax.tree.map(lambda a, b, c: a + b - c, g, component(x, i), component(s, i))
        return problem.step(y, corrected, size)

    def epoch(state: State) -> State:
        mine = jax.random.fold_in(key, state.epoch)
        chance = jax.random.uniform(jax.random.fold_in(mine, 0), (), jnp.float32, 1e-7)
        length = jnp.int32(1)  # geometric, with a tail of 1e-7 cut off
        if p < 1:
            length += jnp.floor(jnp.log(chance) / math.log1p(-p)).astype(jnp.int32)
        u = jax.lax.fori_loop(0, length, lambda k, u: inner(
            (state.s, state.g), jax.random.fold_in(mine, k + 1), u), state.u)
        # a snapshot's certificate begins with the mean operator that the next epoch needs
        g, residual = problem.mean(u), certify(problem, u).residual
        return State(u, u, g, residual, state.cost + 2.0 * length + 2.0 * n, state.epoch + 1)

    start = problem.project(problem.centre)
    begin = State(start, start, problem.mean(start), certify(problem, start).residual,
                  jnp.asarray(2.0 * n), jnp.int32(0))
    end = jax.lax.while_loop(
        lambda state: ~(state.residual <= residual) & (state.epoch < epochs), epoch, begin)
    return end.s, end.cost


def near_linear(key: jax.Array, problem: Regularised, residual: jax.Array) -> PyTree:
    """Runs `variance_reduced` and returns its point, as `Resolvent(solver=)` expects.

    Args:
      key: a key for the indices, apart from the keys of noise.
      problem: a problem with components, each l-Lipschitz in the mean square.
      residual: the wanted residual, as `certify` computes it.

    Examples:
        >>> def component(u, i):
        ...     return u - 1.0
        >>> problem = jmm.solvers.Regularised(mean=lambda u: u - 1.0, component=component, size=2,
        ...                                   project=lambda u: u, centre=jnp.zeros(1), prox=1.0,
        ...                                   lipschitz=1.0)
        >>> point = jmm.solvers.near_linear(jax.random.key(0), problem, 1e-3)
        >>> print(jmm.solvers.certify(problem, point).point.round(2))
        [0.5]
    """
    return variance_reduced(key, problem, residual)[0]


def never_fails(accuracy: jax.typing.ArrayLike, lost: jax.Array, steps: Any,
                steps_for: Callable[[Any], jax.Array]) -> jax.Array:
    """Returns True if no certificate can fail for any data, by public numbers alone.

    The host has checked the same, but not descriptions that were traced. It aims at half of the
    accuracy; numbers may have been rounded since, so a twentieth more counts as half.

    Args:
      accuracy: the residual to certify.
      lost: the largest rounding error of a certificate; at most a quarter of `accuracy`.
      steps: the number of steps of the solver.
      steps_for: `accuracy -> steps` that are proven to reach it.
    """
    return (lost <= 0.25 * accuracy) & (steps >= jnp.ceil(steps_for(0.55 * accuracy)))
