"""Variational inequalities whose constants are theorems for records of any content.

Each factory sanitises records inside the operator, before they meet the point: numbers are clipped
to stated ranges, vectors and matrices projected to balls, and other values than finite ones
count as 0.
Every record's operator is then monotone, M-bounded and L-Lipschitz on the set, which is what
`Resolvent(assumes="monotone")` takes for granted. (Clipping the operator's output instead would
destroy monotonicity.)

Sets have a projection, a linear minimiser and a diameter.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.custom_derivatives import SymbolicZero

from jaxminimax.base import checks
from jaxminimax.base.tree import at_least_float32
from jaxminimax.base.types import Problem, PyTree, Saddle, saddle_operator

__all__ = ["Bounded", "Set", "affine", "ball", "box", "composed", "product", "sanitise", "simplex",
           "variational_inequality"]

# --- sets ---


class Set(NamedTuple):
    """A compact convex set W, with its projection, linear minimiser and size.

    Attributes:
      project: `u -> u`, the Euclidean projection on W.
      support: `g -> argmin_{u in W} <g, u>`, the linear minimiser.
      diameter: D, the largest distance of two points.
      reach: the largest norm of a point.

    Examples:
        >>> unit = jmm.problems.ball(1.0)
        >>> print(unit.project(jnp.array([3.0, 4.0])).round(3), unit.diameter)
        [0.6 0.8] 2.0
    """

    project: Callable[[PyTree], PyTree]
    support: Callable[[PyTree], PyTree]
    diameter: float
    reach: float


def ball(radius: float) -> Set:
    """The ball ||u|| <= radius around 0, with the Euclidean norm of a whole pytree.

    Examples:
        >>> print(jmm.problems.ball(2.0).project(jnp.array([3.0, 4.0])).round(3))
        [1.2 1.6]
    """
    checks.number("radius", radius, low=0.0)

    def support(g: PyTree) -> jax.Array:
        norm = optax.tree.norm(g)
        scale = jnp.where(norm > 0, -radius / jnp.where(norm > 0, norm, 1), 0)
        return jax.tree.map(lambda x: scale.astype(x.dtype) * x, g)

    return Set(lambda u: optax.projections.projection_l2_ball(u, radius), support, 2 * radius,
               float(radius))


def box(low: np.ndarray, high: np.ndarray) -> Set:
    """The box low <= u <= high, for finite arrays `[d]`.

    Examples:
        >>> unit = jmm.problems.box(np.zeros(2), np.ones(2))
        >>> unit.project(jnp.array([0.5, 7.0])).tolist(), round(unit.diameter, 3)
        ([0.5, 1.0], 1.414)
    """
    low, high = (np.array(x, np.float64) for x in (low, high))
    if low.shape != high.shape or not np.all(low < high) or not np.all(np.isfinite(high - low)):
        raise ValueError(f"low must be below high, arrays of one shape, got {low!r} and {high!r}.")

    def support(g: PyTree) -> jax.Array:
        return jnp.where(g > 0, low.astype(g.dtype), high.astype(g.dtype))

    return Set(lambda u: jnp.clip(u, low.astype(u.dtype), high.astype(u.dtype)), support,
               float(np.linalg.norm(high - low)),
               float(np.linalg.norm(np.maximum(abs(low), abs(high)))))


def simplex() -> Set:
    """The simplex of probability vectors of any length `[d]`.

    Examples:
        >>> jmm.problems.simplex().project(jnp.array([1.0, 1.0])).tolist()
        [0.5, 0.5]
    """
    def support(g: PyTree) -> jax.Array:
        # the first smallest entry, without an argmin: in a float64 part JAX lowers none
        smallest = (g == jnp.min(g)).astype(g.dtype)
        return smallest * (jnp.cumsum(smallest) == 1)

    return Set(optax.projections.projection_simplex, support, math.sqrt(2.0), 1.0)


def product(w: Set, v: Set) -> Set:
    """The product W x V of two sets, as a set of `Saddle` points.

    Examples:
        >>> both = jmm.problems.product(jmm.problems.ball(1.0), jmm.problems.simplex())
        >>> z = both.project(Saddle(jnp.array([2.0, 0.0]), jnp.array([1.0, 1.0])))
        >>> z.w.tolist(), z.v.tolist()
        ([1.0, 0.0], [0.5, 0.5])
    """
    return Set(lambda z: Saddle(w.project(z.w), v.project(z.v)),
               lambda g: Saddle(w.support(g.w), v.support(g.v)),
               math.hypot(w.diameter, v.diameter), math.hypot(w.reach, v.reach))


# --- operators on them ---


class Bounded(NamedTuple):
    """A problem with constants that hold for every record that could occur.

    Attributes:
      problem: a problem whose operator is monotone for every record.
      bound: M, the largest norm of a record's operator, both players together.
      smooth: L, the Lipschitz constant of a record's operator.
      diameter: D, the diameter of the feasible set.
      smooth_l1: the Lipschitz constant from l1 to l-infinity, for entropic steps; None if unknown.

    Examples:
        >>> game = jmm.problems.matrix_game(entry_bound=1.0, shape=(2, 3))
        >>> round(game.bound, 3), round(game.smooth, 3), game.diameter
        (2.236, 2.449, 2.0)
    """

    problem: Problem
    bound: float
    smooth: float
    diameter: float
    smooth_l1: float | None = None


def sanitise(x: jax.Array, radius: float) -> jax.Array:
    """Projects an array x to the ball of that radius (L2 over all entries); 0 if not finite.

    The norm is taken relative to the largest entry, so it does not overflow.

    Examples:
        >>> print(jmm.problems.sanitise(jnp.array([3.0, 4.0]), 1.0).round(3))
        [0.6 0.8]
        >>> jmm.problems.sanitise(jnp.array([jnp.nan, 4.0]), 1.0).tolist()
        [0.0, 0.0]
    """
    x = jnp.where(jnp.all(jnp.isfinite(x)), x, 0)
    largest = jnp.clip(jnp.max(jnp.abs(x)), jnp.finfo(x.dtype).tiny, jnp.finfo(x.dtype).max / 8)
    unit = x / largest
    norm = jnp.sqrt(jnp.sum(jnp.square(unit)))
    inside = largest * norm <= radius
    return jnp.where(inside, x, unit * (radius / jnp.where(norm > 0, norm, 1)))


def squares_in(x: jax.Array, radius: float) -> jax.Array:
    """Computes ||x||^2 / radius^2, which is infinite or NaN if `product_with` counts x as 0."""
    return jnp.sum(jnp.square(x.astype(at_least_float32(x.dtype)) / radius))


def product_with(w: jax.Array, x: jax.Array, radius: float) -> jax.Array:
    """Returns <x', w>, x' the projection of x `[d]` to the ball of that radius, without writing x'.

    x' = factor x, so <x', w> = factor <x, w>. Only the factors of many records are computed, one
    number each, and compilers compute them once for all rounds of a run. x' = 0 if x is not finite,
    or so long that the square of its length in radii is not (1e19 in float32). The derivative by w
    is x', which is finite for every x. The derivative by x is not defined where x counts as 0.
    Arithmetic has 32 bits at least, and the result is rounded to narrower numbers afterwards.
    """
    dtype = jnp.result_type(w, x)
    w, x = (a.astype(at_least_float32(dtype)) for a in (w, x))
    squares = squares_in(x, radius)
    short = jnp.isfinite(squares)
    factor = jnp.where(short, 1 / jnp.sqrt(jnp.maximum(squares, 1)), 0)
    return jnp.where(short, factor * _inner(w, x, short), 0).astype(dtype)


@jax.custom_jvp
def _inner(w: jax.Array, x: jax.Array, short: jax.Array) -> jax.Array:
    """Returns <x, w>, whose derivative by w is x, or 0 if x is not `short`: finite for every x."""
    return x @ w


def _inner_slope(points: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    (w, x, short), (dw, dx, _) = points, tangents
    moved = jnp.zeros((), w.dtype)
    if not isinstance(dw, SymbolicZero):
        # nothing comes back to an x that counts as 0; but 0 times what is not finite is NaN. One
        # choice a record: whatever makes an entry not finite makes its square so, and their sum
        moved += jnp.where(short, x, 0) @ dw
    if not isinstance(dx, SymbolicZero):
        moved += w @ dx
    return x @ w, moved


_inner.defjvp(_inner_slope, symbolic_zeros=True)


def shaped(name: str, x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Checks the shape of one record's array: broadcasting would void the constants."""
    if jnp.shape(x) != shape:
        raise ValueError(f"{name} of one record must have shape {shape}, got {jnp.shape(x)}.")
    return x


def interval(x: jax.Array, low: float, high: float) -> jax.Array:
    """Clips numbers to [low, high], and NaN to 0."""
    return jnp.clip(jnp.nan_to_num(x), low, high)


def variational_inequality(operator: Callable[[PyTree, PyTree], PyTree], domain: Set,
                           furthest: Callable[[PyTree, PyTree], PyTree] | None = None) -> Problem:
    """A variational inequality with an operator of your own, not split into two players.

    The point is `z = Saddle(u, ())`: give the second player no clip norm, `clip=Saddle(M, None)`.

    Args:
      operator: `(u, example) -> F(u; example)`, like u.
      domain: W, the feasible set.
      furthest: `(u, data) -> argmax_{x in W} <F(x), u - x>`, for the gap; None if unknown.

    Examples:
        >>> def operator(u, record):  # a quarter turn, and a record that pulls
        ...     return jnp.stack([u[1], -u[0]]) - record
        >>> problem = jmm.problems.variational_inequality(operator, jmm.problems.ball(1.0))
        >>> z = Saddle(jnp.array([1.0, 0.0]), ())
        >>> problem.operator(z, jnp.zeros(2)).w.tolist()
        [0.0, -1.0]
    """
    def operator_of_w(z: Saddle, x: PyTree) -> Saddle:
        return Saddle(operator(z.w, x), ())

    return Problem(
        operator=operator_of_w,
        project=lambda z: Saddle(domain.project(z.w), ()),
        support=lambda g: Saddle(domain.support(g.w), ()),
        furthest=None if furthest is None else
        lambda z, data: Saddle(furthest(z.w, data), ()),
    )


def mean_of(loss: Callable[..., jax.Array]) -> Callable[[Saddle, PyTree], jax.Array]:
    """The objective of a problem, the mean over all records of `(w, v, record) -> []`."""
    def value(z: Saddle, data: PyTree) -> jax.Array:
        return jnp.mean(jax.vmap(loss, (None, None, 0))(z.w, z.v, data))

    return value


def furthest_affine(matrix: jax.Array, offset: jax.Array, u: jax.Array, domain: Set) -> jax.Array:
    """Computes argmax_{x in W} <A x + q, u - x> by accelerated projected ascent.

    The objective is a concave quadratic, and linear for skew A. The error of 3000 steps is far
    below the precision at which gaps are read.
    """
    curvature = jnp.linalg.norm(matrix + matrix.T, 2)
    step = 1 / jnp.where(curvature > 0, curvature, 1)

    def ascend(x: jax.Array) -> jax.Array:
        return matrix.T @ (u - x) - (matrix @ x + offset)

    def body(_: PyTree, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        x, ahead, t = carry
        new = domain.project(ahead + step * ascend(ahead))
        later = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
        return new, new + (t - 1) / later * (new - x), later

    x, _, _ = jax.lax.fori_loop(0, 3000, body, (u, u, jnp.ones((), u.dtype)))
    flat = curvature <= 1e-12 * jnp.linalg.norm(matrix)
    return jnp.where(flat, domain.support(-ascend(u)), x)


def affine(*, matrix: np.ndarray, offset_bound: float, domain: Set) -> Bounded:
    """The monotone affine operator F(u; q) = A u + q with a public A and a record q.

    Data are offsets q `[n, d]`, projected to ||q|| <= b. M = ||A|| max ||u|| + b, L = ||A||.

    Args:
      matrix: A `[d, d]`, with a positive semidefinite symmetric part.
      offset_bound: b, the largest norm of an offset.
      domain: W, a set of arrays `[d]`.

    Raises:
      ValueError: for a matrix that is not square, or whose operator is not monotone.

    Examples:
        >>> turn = jmm.problems.affine(matrix=np.array([[0.0, 1.0], [-1.0, 0.0]]), offset_bound=0.5,
        ...                            domain=jmm.problems.ball(1.0))
        >>> turn.bound, turn.smooth
        (1.5, 1.0)
    """
    matrix = np.asarray(matrix, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"matrix must be square, got shape {matrix.shape}.")
    checks.number("offset_bound", offset_bound, low=0.0)
    smallest_eigenvalue = float(np.linalg.eigvalsh((matrix + matrix.T) / 2).min())
    size = float(np.linalg.norm(matrix, 2))
    if not smallest_eigenvalue >= -1e-12 * size:
        raise ValueError(f"matrix must have a positive semidefinite symmetric part, got one with "
                         f"eigenvalue {smallest_eigenvalue:g}: the operator would not be monotone.")

    def operator(u: jax.Array, q: jax.Array) -> jax.Array:
        q = shaped("the offset", q, matrix.shape[:1])
        return jnp.asarray(matrix, u.dtype) @ u + sanitise(q.astype(u.dtype), offset_bound)

    def furthest(u: jax.Array, data: PyTree) -> jax.Array:
        q = jnp.mean(jax.vmap(sanitise, (0, None))(data, offset_bound), 0).astype(u.dtype)
        return furthest_affine(jnp.asarray(matrix, u.dtype), q, u, domain)

    return Bounded(variational_inequality(operator, domain, furthest),
                   size * domain.reach + offset_bound, size, domain.diameter)


def composed(losses: Sequence[Callable[[PyTree, PyTree], jax.Array]], *, domain: Saddle,
             loss_bound: float, slope: float, curvature: float,
             conjugate: Callable[[jax.Array], jax.Array] | None = None,
             furthest: Callable[[jax.Array], jax.Array] | None = None) -> Bounded:
    """A convex function of mean losses as a saddle problem, such as their largest one.

        min over w in W of Phi(E phi_1(w; x), ..., E phi_m(w; x))
            = min over w in W, max over v in V, of E sum_j v_j phi_j(w; x) - Phi*(v),

    for convex losses phi_j and Phi(p) = max over v in V of <v, p> - Phi*(v), which is convex, and
    nondecreasing as V has no negative coordinates. Without Phi* and with V the simplex, Phi is the
    largest mean. Phi* reads no data: its gradient is a public term, without clip, noise and charge.

    With R_1 the largest sum of a v in V, |phi_j| <= B, and phi_j G-Lipschitz with an H-Lipschitz
    gradient, a record's operator has M^2 = (R_1 G)^2 + m B^2 and L = (R_1 H + (R_1^2 H^2 + 4 m
    G^2)^(1/2)) / 2. *Proof.* grad_w = J^T v has norm R_1 G at most, and moves by at most R_1 H
    ||dw|| + m^(1/2) G ||dv||; the losses move by at most m^(1/2) G ||dw||. L is the norm of the
    matrix of these three. QED.

    Source: Boob and Guzman, arXiv:2104.02988, section 2.1. Departures: v stands for their A y + b,
    and may not be negative, without which a sum of convex losses need not be convex.

    Args:
      losses: phi_1, ..., phi_m, functions `(w, record) -> []`, convex in w on W for records of any
        content; the code does not check this, nor their constants. `sanitise` records inside.
        Clipped sums are private whatever losses are. Certified solutions, those of `proximal` and
        `recursive`, are private only where this and the constants hold.
      domain: W and V, two `Set`s; V of arrays `[m]`.
      loss_bound: B.
      slope: G.
      curvature: H; 0 for linear losses.
      conjugate: Phi*, `v -> []`, convex; None for 0.
      furthest: `p -> argmax_{v in V} <v, p> - Phi*(v)`, for gaps; None if unknown.

    Raises:
      ValueError: without losses, for a V with negative coordinates, or constants out of range.

    Examples:
        >>> pair = jmm.problems.composed(
        ...     [lambda w, x: jnp.tanh(x) * w[0], lambda w, x: -w[0]],
        ...     domain=Saddle(jmm.problems.ball(1.0), jmm.problems.simplex()), loss_bound=1.0,
        ...     slope=1.0, curvature=0.0)
        >>> round(pair.bound, 3), round(pair.smooth, 3), round(pair.diameter, 3)
        (1.732, 1.414, 2.449)
    """
    count = len(losses)
    if not count:
        raise ValueError("losses must hold one function or more, got none.")
    checks.positive(loss_bound=loss_bound, slope=slope)
    checks.number("curvature", curvature, low=0.0, closed=True)
    minima = np.array([domain.v.support(e)[j] for j, e in enumerate(jnp.eye(count))])
    if not np.all(minima >= 0):
        raise ValueError(f"domain.v must have no negative coordinates, got {minima.min():g}: the "
                         "weighted sum of convex losses would not be convex.")
    total = float(jnp.sum(domain.v.support(-jnp.ones(count))))

    def values(w: PyTree, record: PyTree) -> jax.Array:
        return jnp.stack([phi(w, record) for phi in losses])

    def loss(w: PyTree, v: jax.Array, record: PyTree) -> jax.Array:
        return shaped("the weights of losses", v, (count,)) @ values(w, record)

    def value(z: Saddle, data: PyTree) -> jax.Array:
        return mean_of(loss)(z, data) - (0 if conjugate is None else conjugate(z.v))

    def public(z: Saddle) -> Saddle:
        assert conjugate is not None
        return Saddle(jax.tree.map(jnp.zeros_like, z.w), jax.grad(conjugate)(z.v))

    def best_v(w: PyTree, data: PyTree) -> jax.Array:
        assert furthest is not None
        return furthest(jnp.mean(jax.vmap(values, (None, 0))(w, data), 0))

    joint_domain = product(domain.w, domain.v)
    turned, across = total * curvature, 2 * math.sqrt(count) * slope
    return Bounded(
        Problem(operator=saddle_operator(loss), public=None if conjugate is None else public,
                project=joint_domain.project, support=joint_domain.support, value=value,
                best_response=Saddle(None, None if furthest is None else best_v)),
        math.hypot(total * slope, math.sqrt(count) * loss_bound),
        (turned + math.hypot(turned, across)) / 2, joint_domain.diameter)
