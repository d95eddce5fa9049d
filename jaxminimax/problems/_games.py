"""Games with closed-form best responses, on which algorithms and metrics are tested.

The games of the second half are monotone, bounded and Lipschitz for records of any content: they
sanitise records inside the operator, as in `_vi`.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxminimax.base import checks
from jaxminimax.base.types import Problem, PyTree, Saddle, saddle_operator
from jaxminimax.problems import _vi

__all__ = ["bilinear_game", "bounded_bilinear", "cournot", "matrix_game", "quadratic_game"]

# --- games of records that fit ---


def _ball(x: jax.Array, radius: float) -> jax.Array:
    return optax.projections.projection_l2_ball(x, radius)


def _balls(radius: Saddle) -> Callable[[Saddle], Saddle]:
    return lambda z: Saddle(_ball(z.w, radius.w), _ball(z.v, radius.v))


def _means(data: PyTree) -> tuple[jax.Array, jax.Array]:
    a, b = data
    return jnp.mean(a, 0), jnp.mean(b, 0)


def quadratic_game(*, modulus: float, coupling: float, radius: Saddle) -> Problem:
    """The isotropic quadratic-bilinear game on balls.

        f(w, v; (a, b)) = (mu/2) ||w - a||^2 + c <w, v> - (mu/2) ||v - b||^2,
        ||w|| <= R_w, ||v|| <= R_v.

    Data are pairs (a, b) of arrays `[n, d]`. With means A and B, the saddle point without
    constraints is w* = (mu^2 A - c mu B) / (mu^2 + c^2), v* = (mu^2 B + c mu A) / (mu^2 + c^2).
    Where
    both best responses are interior the strong gap is
    (mu^2 + c^2) / (2 mu) (||w - w*||^2 + ||v - v*||^2). Records with ||a||, ||b|| <= r have
    operators of norm at most mu (R_w + r) + c R_v and mu (R_v + r) + c R_w.

    Args:
      modulus: mu > 0, of strong convexity and concavity.
      coupling: c.
      radius: R_w and R_v, positive.

    Raises:
      ValueError: for a modulus or a radius that is not positive.

    Examples:
        >>> game = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
        >>> data = (jnp.ones((4, 1)), jnp.zeros((4, 1)))
        >>> z = game.saddle_point(data)
        >>> print(z.w.round(3), z.v.round(3))
        [0.8] [0.4]
    """
    mu, c = modulus, coupling
    checks.number("modulus", mu, low=0.0)
    for name, r in radius._asdict().items():
        checks.number(f"radius.{name}", r, low=0.0, infinite=True)

    def loss(w: jax.Array, v: jax.Array, x: PyTree) -> jax.Array:
        a, b = x
        return (mu / 2) * jnp.sum((w - a) ** 2) + c * w @ v - (mu / 2) * jnp.sum((v - b) ** 2)

    def best_w(v: jax.Array, data: PyTree) -> jax.Array:
        return _ball(_means(data)[0] - (c / mu) * v, radius.w)

    def best_v(w: jax.Array, data: PyTree) -> jax.Array:
        return _ball(_means(data)[1] + (c / mu) * w, radius.v)

    def saddle_point(data: PyTree) -> Saddle:
        a, b = _means(data)
        scale = mu**2 + c**2
        return Saddle((mu**2 * a - c * mu * b) / scale, (mu**2 * b + c * mu * a) / scale)

    return Problem(operator=saddle_operator(loss), project=_balls(radius), value=_vi.mean_of(loss),
                   best_response=Saddle(best_w, best_v), saddle_point=saddle_point)


def bilinear_game(*, coupling: float, radius: Saddle) -> Problem:
    """A bilinear game on balls, convex-concave and nothing more.

        f(w, v; (a, b)) = <a, w> + c <w, v> - <b, v>,      ||w|| <= R_w, ||v|| <= R_v.

    Data are pairs (a, b) of arrays `[n, d]`. With means A and B the best responses are
    w^(v) = -R_w (A + c v) / ||A + c v|| and v^(w) = R_v (c w - B) / ||c w - B||, and the strong
    gap of (w, v) is <A, w> + R_v ||c w - B|| + R_w ||A + c v|| + <B, v>. For c = 0 it is the hard
    instance behind the lower bounds.

    Args:
      coupling: c.
      radius: R_w and R_v, finite.

    Raises:
      ValueError: for a radius that is not positive.

    Examples:
        >>> game = jmm.problems.bilinear_game(coupling=1.0, radius=Saddle(1.0, 1.0))
        >>> data = (jnp.zeros((5, 2)), jnp.zeros((5, 2)))
        >>> float(jmm.metrics.strong_gap(game, Saddle(jnp.zeros(2), jnp.zeros(2)), data))
        0.0
    """
    checks.positive(**{"radius.w": radius.w, "radius.v": radius.v})

    def loss(w: jax.Array, v: jax.Array, x: PyTree) -> jax.Array:
        a, b = x
        return a @ w + coupling * w @ v - b @ v

    def towards(x: jax.Array, r: jax.Array) -> jax.Array:
        norm = jnp.linalg.norm(x)
        return jnp.where(norm > 0, r * x / jnp.where(norm > 0, norm, 1), 0)

    def best_w(v: jax.Array, data: PyTree) -> jax.Array:
        return towards(-(_means(data)[0] + coupling * v), radius.w)

    def best_v(w: jax.Array, data: PyTree) -> jax.Array:
        return towards(coupling * w - _means(data)[1], radius.v)

    return Problem(operator=saddle_operator(loss), project=_balls(radius), value=_vi.mean_of(loss),
                   best_response=Saddle(best_w, best_v))


# --- games of records of any content ---


def cournot(*, cost: np.ndarray, slope: np.ndarray, capacity: np.ndarray, price: float,
            sensitivity: float) -> _vi.Bounded:
    """Cournot competition of k firms over the demand of n consumers, whose records are private.

        F_j(q; (alpha, beta)) = c_j + s_j q_j - alpha + beta (q_1 + ... + q_k + q_j),
        0 <= q_j <= capacity_j:

    firm j's marginal cost less its marginal revenue at the consumer's inverse demand
    alpha - beta Q. Data are pairs (alpha, beta) `[n]`, clipped to [0, price] and [0, sensitivity].
    The Jacobian diag(s) + beta (I + 1 1^T) is positive semidefinite, so every record's operator is
    monotone, L = max s + sensitivity (k + 1), and M bounds each coordinate at its two ends.

    Args:
      cost: c `[k]`, the marginal cost at quantity 0, at least 0.
      slope: s `[k]`, the slope of the marginal cost, at least 0.
      capacity: the largest quantity of each firm, `[k]`, positive.
      price: the upper end of alpha's range; larger values are clipped.
      sensitivity: the upper end of beta's range; larger values are clipped.

    Raises:
      ValueError: for arrays of different shapes or numbers out of range.

    Examples:
        >>> firms = np.ones(2)
        >>> game = jmm.problems.cournot(cost=0.2 * firms, slope=firms, capacity=firms, price=2.0,
        ...                             sensitivity=1.0)
        >>> game.problem.project(Saddle(jnp.array([-1.0, 3.0]), ())).w.tolist()
        [0.0, 1.0]
    """
    cost, slope, capacity = (np.asarray(x, np.float64) for x in (cost, slope, capacity))
    if not cost.shape == slope.shape == capacity.shape or cost.ndim != 1:
        raise ValueError(f"cost, slope and capacity must be [k], got shapes {cost.shape}, "
                         f"{slope.shape}, {capacity.shape}.")
    checks.number("cost", cost, low=0.0, closed=True)
    checks.number("slope", slope, low=0.0, closed=True)
    checks.positive(price=price, sensitivity=sensitivity)
    domain = _vi.box(np.zeros_like(capacity), capacity)
    k = len(cost)

    def clean(x: PyTree, dtype: jnp.dtype) -> tuple[jax.Array, ...]:
        alpha, beta = (a.astype(dtype) for a in x)
        return _vi.interval(alpha, 0.0, price), _vi.interval(beta, 0.0, sensitivity)

    def operator(q: jax.Array, x: PyTree) -> jax.Array:
        alpha, beta = (_vi.shaped(name, a, ()) for name, a in
                       zip(("alpha", "beta"), x, strict=True))
        alpha, beta = clean((alpha, beta), q.dtype)
        c, s = (jnp.asarray(a, q.dtype) for a in (cost, slope))
        return c + s * q - alpha + beta * (jnp.sum(q) + q)

    def furthest(q: jax.Array, data: PyTree) -> jax.Array:
        alpha, beta = (jnp.mean(x) for x in clean(data, q.dtype))
        matrix = jnp.diag(jnp.asarray(slope, q.dtype)) + beta * (
            jnp.eye(k, dtype=q.dtype) + jnp.ones((k, k), q.dtype))
        return _vi.furthest_affine(matrix, jnp.asarray(cost, q.dtype) - alpha, q, domain)

    def equilibrium(data: PyTree) -> Saddle:
        """The equilibrium if no capacity binds."""
        alpha, beta = (jnp.mean(x) for x in clean(data, data[0].dtype))
        share = 1 / (slope + beta)
        total = jnp.sum(share * (alpha - cost)) / (1 + beta * jnp.sum(share))
        return Saddle(share * (alpha - cost - beta * total), ())

    high = cost + slope * capacity + sensitivity * (capacity.sum() + capacity)
    low = cost - price
    problem = _vi.variational_inequality(operator, domain, furthest)._replace(
        saddle_point=equilibrium)
    return _vi.Bounded(problem, float(np.linalg.norm(np.maximum(np.abs(low), np.abs(high)))),
                       float(slope.max() + sensitivity * (k + 1)), domain.diameter)


def matrix_game(*, entry_bound: float, shape: tuple[int, int]) -> _vi.Bounded:
    """The matrix game of mixed strategies: min over w, max over v, of w^T A v on two simplices.

    Data are payoff matrices A `[n, k, l]`, entries clipped to [-b, b]. M = b sqrt(k + l),
    L = b sqrt(k l), from l1 to l-infinity b; bilinear, so every record's operator is monotone.

    Args:
      entry_bound: b, the largest magnitude of a payoff.
      shape: (k, l), the numbers of strategies of the players.

    Raises:
      ValueError: for a bound or a number of strategies that is not positive.

    Examples:
        >>> game = jmm.problems.matrix_game(entry_bound=1.0, shape=(2, 2))
        >>> payoffs = jnp.tile(jnp.array([[1.0, -1.0], [-1.0, 1.0]]), (4, 1, 1))  # four records
        >>> mixed = jnp.full(2, 0.5)
        >>> float(jmm.metrics.strong_gap(game.problem, Saddle(mixed, mixed), payoffs))
        0.0
    """
    checks.number("entry_bound", entry_bound, low=0.0)
    for name, size in zip("kl", shape, strict=True):
        checks.count(f"shape ({name})", size)

    def loss(w: jax.Array, v: jax.Array, a: jax.Array) -> jax.Array:
        a = _vi.shaped("the payoff matrix", a, shape).astype(w.dtype)
        return w @ _vi.interval(a, -entry_bound, entry_bound) @ v

    def mean(data: PyTree) -> PyTree:
        return jnp.mean(_vi.interval(data, -entry_bound, entry_bound), 0)

    mixed = _vi.simplex()
    domain = _vi.product(mixed, mixed)
    problem = Problem(
        operator=saddle_operator(loss), project=domain.project, support=domain.support,
        value=lambda z, data: z.w @ mean(data).astype(z.w.dtype) @ z.v,
        best_response=Saddle(lambda v, data: mixed.support(mean(data).astype(v.dtype) @ v),
                             lambda w, data: mixed.support(-(w @ mean(data).astype(w.dtype)))))
    k, size = shape
    return _vi.Bounded(problem, entry_bound * math.sqrt(k + size),
                       entry_bound * math.sqrt(k * size), domain.diameter, entry_bound)


def bounded_bilinear(*, coupling: float, offset: float, radius: Saddle | None = None,
                     sets: Saddle | None = None) -> _vi.Bounded:
    """Bilinear games with records of any content, on balls, boxes, simplices or any other sets.

        f(w, v; (A, b, c)) = w^T A v + <b, w> - <c, v>,     w in W, v in V.

    Data are triples A `[n, p, q]`, b `[n, p]`, c `[n, q]`, projected to ||A||_F <= a and
    ||b||, ||c|| <= r: L = a, in l2 and from l1 to l-infinity; M^2 = (a R_v + r)^2 + (a R_w + r)^2,
    R the largest norm in a set. Best responses are the sets' linear minimisers.

    Args:
      coupling: a, the largest Frobenius norm of A.
      offset: r, the largest norm of b and c.
      radius: R_w and R_v, radii of balls around 0.
      sets: W and V, in place of `radius`.

    Raises:
      ValueError: for numbers out of range, or unless exactly one of radius and sets is given.

    Examples:
        >>> game = jmm.problems.bounded_bilinear(coupling=1.0, offset=1.0, radius=Saddle(1.0, 1.0))
        >>> round(game.bound, 3), game.smooth, round(game.diameter, 3)
        (2.828, 1.0, 2.828)
    """
    if (radius is None) == (sets is None):
        raise ValueError("give radius=Saddle(R_w, R_v) for balls or sets=Saddle(W, V), and not "
                         "both.")
    if sets is None:
        assert radius is not None
        sets = Saddle(_vi.ball(radius.w), _vi.ball(radius.v))
    checks.positive(coupling=coupling, offset=offset)

    def clean(x: PyTree, dtype: jnp.dtype) -> tuple[jax.Array, ...]:
        a, b, c = (y.astype(dtype) for y in x)
        return _vi.sanitise(a, coupling), _vi.sanitise(b, offset), _vi.sanitise(c, offset)

    def loss(w: jax.Array, v: jax.Array, x: PyTree) -> jax.Array:
        a, b, c = clean(x, w.dtype)
        for name, y, shape in (("A", a, w.shape + v.shape), ("b", b, w.shape), ("c", c, v.shape)):
            _vi.shaped(name, y, shape)
        return w @ a @ v + b @ w - c @ v

    def mean(data: PyTree, dtype: jnp.dtype) -> PyTree:
        each = jax.vmap(lambda x: clean(x, dtype))(data)
        return jax.tree.map(lambda x: jnp.mean(x, 0), each)

    def value(z: Saddle, data: PyTree) -> jax.Array:
        a, b, c = mean(data, z.w.dtype)
        return z.w @ a @ z.v + b @ z.w - c @ z.v

    def best_w(v: jax.Array, data: PyTree) -> jax.Array:
        a, b, _ = mean(data, v.dtype)
        return sets.w.support(a @ v + b)

    def best_v(w: jax.Array, data: PyTree) -> jax.Array:
        a, _, c = mean(data, w.dtype)
        return sets.v.support(c - w @ a)

    domain = _vi.product(sets.w, sets.v)
    problem = Problem(operator=saddle_operator(loss), project=domain.project,
                      support=domain.support, value=value, best_response=Saddle(best_w, best_v))
    bound = math.hypot(coupling * sets.v.reach + offset, coupling * sets.w.reach + offset)
    return _vi.Bounded(problem, bound, coupling, domain.diameter, coupling)
