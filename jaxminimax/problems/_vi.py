"""Variational inequalities whose constants are theorems, whatever the records contain.

Each factory sanitises records inside the operator, before they touch the point: numbers are clipped
to stated ranges, vectors and matrices projected to balls, and what is not finite counts as zero.
Every record's operator is then monotone, M-bounded and L-Lipschitz on the set, which is what
`Resolvent(assumes="monotone")` takes for granted. (Clipping the operator's output instead would
destroy monotonicity.)
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax import _check
from jaxminimax._types import Problem, Saddle, Tree, saddle_operator
from jaxminimax.problems._sets import Set, ball, box, product, simplex


class Bounded(NamedTuple):
    """A problem with constants that hold for every record that could occur.

    Attributes:
      problem: its operator is monotone for every record.
      bound: M, on the norm of a record's operator, both players together.
      smooth: L, Lipschitz constant of a record's operator.
      diameter: D, of the set.
    """

    problem: Problem
    bound: float
    smooth: float
    diameter: float


def sanitise(x: jax.Array, radius: float) -> jax.Array:
    """The projection of an array to the ball of that radius (L2 over all entries); 0 if not finite.

    The norm is taken relative to the largest entry, so it does not overflow.
    """
    x = jnp.where(jnp.all(jnp.isfinite(x)), x, 0)
    largest = jnp.clip(jnp.max(jnp.abs(x)), jnp.finfo(x.dtype).tiny, jnp.finfo(x.dtype).max / 8)
    unit = x / largest
    norm = jnp.sqrt(jnp.sum(jnp.square(unit)))
    inside = largest * norm <= radius
    return jnp.where(inside, x, unit * (radius / jnp.where(norm > 0, norm, 1)))


def _shaped(name: str, x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """One record's array, refused while tracing if broadcasting would void the constants."""
    if jnp.shape(x) != shape:
        raise ValueError(f"{name} of one record must have shape {shape}, got {jnp.shape(x)}.")
    return x


def _interval(x: jax.Array, low: float, high: float) -> jax.Array:
    return jnp.clip(jnp.nan_to_num(x), low, high)


def variational_inequality(operator: Callable[[Tree, Tree], Tree], domain: Set,
                           furthest: Callable[[Tree, Tree], Tree] | None = None) -> Problem:
    """A variational inequality with an operator of your own, not split into two players.

    The point is `z = Saddle(u, ())`: give the second player no clip norm, `clip=Saddle(M, None)`.

    Args:
      operator: `(u, example) -> F(u; example)`, like u.
      domain: W.
      furthest: `(u, data) -> argmax_{x in W} <F(x), u - x>`, for the gap, where it is known.
    """
    def of_both(z, x):
        return Saddle(operator(z.w, x), ())

    return Problem(
        operator=of_both,
        project=lambda z: Saddle(domain.project(z.w), ()),
        support=lambda g: Saddle(domain.support(g.w), ()),
        furthest=None if furthest is None else
        lambda z, data: Saddle(furthest(z.w, data), ()),
    )


def _furthest_affine(matrix: jax.Array, offset: jax.Array, u: jax.Array, domain: Set) -> jax.Array:
    """argmax_{x in W} <A x + q, u - x>, a concave quadratic, by accelerated projected ascent.

    3000 steps: far below what gaps are read to. For skew A the objective is linear.
    """
    curvature = jnp.linalg.norm(matrix + matrix.T, 2)
    step = 1 / jnp.where(curvature > 0, curvature, 1)

    def ascend(x):
        return matrix.T @ (u - x) - (matrix @ x + offset)

    def body(_, carry):
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
      offset_bound: b.
      domain: W, of arrays `[d]`.

    Raises:
      ValueError: for a matrix that is not square, or whose operator is not monotone.
    """
    matrix = np.asarray(matrix, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"matrix must be square, got shape {matrix.shape}.")
    _check.number("offset_bound", offset_bound, low=0.0)
    least = float(np.linalg.eigvalsh((matrix + matrix.T) / 2).min())
    size = float(np.linalg.norm(matrix, 2))
    if not least >= -1e-12 * size:
        raise ValueError(f"matrix must have a positive semidefinite symmetric part, got one with "
                         f"eigenvalue {least:g}: the operator would not be monotone.")

    def operator(u, q):
        q = _shaped("the offset", q, matrix.shape[:1])
        return jnp.asarray(matrix, u.dtype) @ u + sanitise(q.astype(u.dtype), offset_bound)

    def furthest(u, data):
        q = jnp.mean(jax.vmap(sanitise, (0, None))(data, offset_bound), 0).astype(u.dtype)
        return _furthest_affine(jnp.asarray(matrix, u.dtype), q, u, domain)

    return Bounded(variational_inequality(operator, domain, furthest),
                   size * domain.reach + offset_bound, size, domain.diameter)


def cournot(*, cost: np.ndarray, slope: np.ndarray, capacity: np.ndarray, price: float,
            sensitivity: float) -> Bounded:
    """Cournot competition of k firms over the demand of n consumers, whose records are private.

        F_j(q; (alpha, beta)) = c_j + s_j q_j - alpha + beta (q_1 + ... + q_k + q_j),
        0 <= q_j <= capacity_j:

    firm j's marginal cost less its marginal revenue at the consumer's inverse demand
    alpha - beta Q. Data are pairs (alpha, beta) `[n]`, clipped to [0, price] and [0, sensitivity].
    The Jacobian diag(s) + beta (I + 1 1^T) is positive semidefinite, so every record's operator is
    monotone, L = max s + sensitivity (k + 1), and M bounds each coordinate at its two ends.

    Args:
      cost: c `[k]`, at least 0.
      slope: s `[k]`, at least 0, of rising marginal costs.
      capacity: `[k]`, positive.
      price: largest alpha that is taken at its word.
      sensitivity: largest beta that is taken at its word.

    Raises:
      ValueError: for arrays of different shapes or numbers out of range.
    """
    cost, slope, capacity = (np.asarray(x, np.float64) for x in (cost, slope, capacity))
    if not cost.shape == slope.shape == capacity.shape or cost.ndim != 1:
        raise ValueError(f"cost, slope and capacity must be [k], got shapes {cost.shape}, "
                         f"{slope.shape}, {capacity.shape}.")
    _check.number("cost", cost, low=0.0, closed=True)
    _check.number("slope", slope, low=0.0, closed=True)
    _check.number("price", price, low=0.0)
    _check.number("sensitivity", sensitivity, low=0.0)
    domain = box(np.zeros_like(capacity), capacity)
    k = len(cost)

    def clean(x, dtype):
        alpha, beta = (a.astype(dtype) for a in x)
        return _interval(alpha, 0.0, price), _interval(beta, 0.0, sensitivity)

    def operator(q, x):
        alpha, beta = (_shaped(name, a, ()) for name, a in zip(("alpha", "beta"), x, strict=True))
        alpha, beta = clean((alpha, beta), q.dtype)
        c, s = (jnp.asarray(a, q.dtype) for a in (cost, slope))
        return c + s * q - alpha + beta * (jnp.sum(q) + q)

    def furthest(q, data):
        alpha, beta = (jnp.mean(x) for x in clean(data, q.dtype))
        matrix = jnp.diag(jnp.asarray(slope, q.dtype)) + beta * (
            jnp.eye(k, dtype=q.dtype) + jnp.ones((k, k), q.dtype))
        return _furthest_affine(matrix, jnp.asarray(cost, q.dtype) - alpha, q, domain)

    def equilibrium(data):
        """Where no capacity binds."""
        alpha, beta = (jnp.mean(x) for x in clean(data, data[0].dtype))
        share = 1 / (slope + beta)
        total = jnp.sum(share * (alpha - cost)) / (1 + beta * jnp.sum(share))
        return Saddle(share * (alpha - cost - beta * total), ())

    high = cost + slope * capacity + sensitivity * (capacity.sum() + capacity)
    low = cost - price
    problem = variational_inequality(operator, domain, furthest)._replace(saddle_point=equilibrium)
    return Bounded(problem, float(np.linalg.norm(np.maximum(np.abs(low), np.abs(high)))),
                   float(slope.max() + sensitivity * (k + 1)), domain.diameter)


def matrix_game(*, entry_bound: float, shape: tuple[int, int]) -> Bounded:
    """The matrix game of mixed strategies: min over w, max over v, of w^T A v on two simplices.

    Data are payoff matrices A `[n, k, l]`, entries clipped to [-b, b]. M = b sqrt(k + l),
    L = b sqrt(k l); bilinear, so every record's operator is monotone.

    Args:
      entry_bound: b.
      shape: (k, l).
    """
    _check.number("entry_bound", entry_bound, low=0.0)
    for name, size in zip("kl", shape, strict=True):
        _check.count(f"shape ({name})", size)

    def loss(w, v, a):
        a = _shaped("the payoff matrix", a, shape).astype(w.dtype)
        return w @ _interval(a, -entry_bound, entry_bound) @ v

    def mean(data):
        return jnp.mean(_interval(data, -entry_bound, entry_bound), 0)

    domain = product(simplex(), simplex())
    problem = Problem(
        operator=saddle_operator(loss), project=domain.project, support=domain.support,
        value=lambda z, data: z.w @ mean(data).astype(z.w.dtype) @ z.v,
        best_response=Saddle(lambda v, data: simplex().support(mean(data).astype(v.dtype) @ v),
                             lambda w, data: simplex().support(-(w @ mean(data).astype(w.dtype)))))
    k, size = shape
    return Bounded(problem, entry_bound * math.sqrt(k + size), entry_bound * math.sqrt(k * size),
                   domain.diameter)


def bounded_bilinear(*, coupling: float, offset: float, radius: Saddle | None = None,
                     sets: Saddle | None = None) -> Bounded:
    """Bilinear games with records of any content, on balls, boxes, simplices or any other sets.

        f(w, v; (A, b, c)) = w^T A v + <b, w> - <c, v>,     w in W, v in V.

    Data are triples A `[n, p, q]`, b `[n, p]`, c `[n, q]`, projected to ||A||_F <= a and
    ||b||, ||c|| <= r: L = a, M^2 = (a R_v + r)^2 + (a R_w + r)^2, R the largest norm in a set. Best
    responses are the sets' linear minimisers.

    Args:
      coupling: a.
      offset: r.
      radius: R_w and R_v, of balls around 0.
      sets: W and V instead.

    Raises:
      ValueError: for numbers out of range; unless one of radius and sets is given.
    """
    if (radius is None) == (sets is None):
        raise ValueError("give radius=Saddle(R_w, R_v) for balls or sets=Saddle(W, V), and not "
                         "both.")
    if sets is None:
        assert radius is not None
        sets = Saddle(ball(radius.w), ball(radius.v))
    _check.number("coupling", coupling, low=0.0)
    _check.number("offset", offset, low=0.0)

    def clean(x, dtype):
        a, b, c = (y.astype(dtype) for y in x)
        return sanitise(a, coupling), sanitise(b, offset), sanitise(c, offset)

    def loss(w, v, x):
        a, b, c = clean(x, w.dtype)
        for name, y, shape in (("A", a, w.shape + v.shape), ("b", b, w.shape), ("c", c, v.shape)):
            _shaped(name, y, shape)
        return w @ a @ v + b @ w - c @ v

    def mean(data, dtype):
        each = jax.vmap(lambda x: clean(x, dtype))(data)
        return jax.tree.map(lambda x: jnp.mean(x, 0), each)

    def value(z, data):
        a, b, c = mean(data, z.w.dtype)
        return z.w @ a @ z.v + b @ z.w - c @ z.v

    def best_w(v, data):
        a, b, _ = mean(data, v.dtype)
        return sets.w.support(a @ v + b)

    def best_v(w, data):
        a, _, c = mean(data, w.dtype)
        return sets.v.support(c - w @ a)

    domain = product(sets.w, sets.v)
    problem = Problem(operator=saddle_operator(loss), project=domain.project,
                      support=domain.support, value=value, best_response=Saddle(best_w, best_v))
    bound = math.hypot(coupling * sets.v.reach + offset, coupling * sets.w.reach + offset)
    return Bounded(problem, bound, coupling, domain.diameter)
