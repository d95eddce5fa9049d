"""Games whose operators are monotone, bounded and Lipschitz, whatever the records contain.

Records are sanitised inside the operator, as `_vi` says.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.types import Problem, Saddle, saddle_operator
from jaxminimax.problems._sets import ball, box, product, simplex
from jaxminimax.problems._vi import (
    Bounded,
    furthest_affine,
    interval,
    sanitise,
    shaped,
    variational_inequality,
)


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

    Examples:
        >>> firms = np.ones(2)
        >>> made = jmm.problems.cournot(cost=0.2 * firms, slope=firms, capacity=firms, price=2.0,
        ...                             sensitivity=1.0)
        >>> made.problem.project(Saddle(jnp.array([-1.0, 3.0]), ())).w.tolist()
        [0.0, 1.0]
    """
    cost, slope, capacity = (np.asarray(x, np.float64) for x in (cost, slope, capacity))
    if not cost.shape == slope.shape == capacity.shape or cost.ndim != 1:
        raise ValueError(f"cost, slope and capacity must be [k], got shapes {cost.shape}, "
                         f"{slope.shape}, {capacity.shape}.")
    checks.number("cost", cost, low=0.0, closed=True)
    checks.number("slope", slope, low=0.0, closed=True)
    checks.number("price", price, low=0.0)
    checks.number("sensitivity", sensitivity, low=0.0)
    domain = box(np.zeros_like(capacity), capacity)
    k = len(cost)

    def clean(x, dtype):
        alpha, beta = (a.astype(dtype) for a in x)
        return interval(alpha, 0.0, price), interval(beta, 0.0, sensitivity)

    def operator(q, x):
        alpha, beta = (shaped(name, a, ()) for name, a in zip(("alpha", "beta"), x, strict=True))
        alpha, beta = clean((alpha, beta), q.dtype)
        c, s = (jnp.asarray(a, q.dtype) for a in (cost, slope))
        return c + s * q - alpha + beta * (jnp.sum(q) + q)

    def furthest(q, data):
        alpha, beta = (jnp.mean(x) for x in clean(data, q.dtype))
        matrix = jnp.diag(jnp.asarray(slope, q.dtype)) + beta * (
            jnp.eye(k, dtype=q.dtype) + jnp.ones((k, k), q.dtype))
        return furthest_affine(matrix, jnp.asarray(cost, q.dtype) - alpha, q, domain)

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

    Examples:
        >>> made = jmm.problems.matrix_game(entry_bound=1.0, shape=(2, 2))
        >>> payoffs = jnp.tile(jnp.array([[1.0, -1.0], [-1.0, 1.0]]), (4, 1, 1))  # four records
        >>> mixed = jnp.full(2, 0.5)
        >>> float(jmm.metrics.strong_gap(made.problem, Saddle(mixed, mixed), payoffs))
        0.0
    """
    checks.number("entry_bound", entry_bound, low=0.0)
    for name, size in zip("kl", shape, strict=True):
        checks.count(f"shape ({name})", size)

    def loss(w, v, a):
        a = shaped("the payoff matrix", a, shape).astype(w.dtype)
        return w @ interval(a, -entry_bound, entry_bound) @ v

    def mean(data):
        return jnp.mean(interval(data, -entry_bound, entry_bound), 0)

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

    Examples:
        >>> made = jmm.problems.bounded_bilinear(coupling=1.0, offset=1.0, radius=Saddle(1.0, 1.0))
        >>> round(made.bound, 3), made.smooth, round(made.diameter, 3)
        (2.828, 1.0, 2.828)
    """
    if (radius is None) == (sets is None):
        raise ValueError("give radius=Saddle(R_w, R_v) for balls or sets=Saddle(W, V), and not "
                         "both.")
    if sets is None:
        assert radius is not None
        sets = Saddle(ball(radius.w), ball(radius.v))
    checks.number("coupling", coupling, low=0.0)
    checks.number("offset", offset, low=0.0)

    def clean(x, dtype):
        a, b, c = (y.astype(dtype) for y in x)
        return sanitise(a, coupling), sanitise(b, offset), sanitise(c, offset)

    def loss(w, v, x):
        a, b, c = clean(x, w.dtype)
        for name, y, shape in (("A", a, w.shape + v.shape), ("b", b, w.shape), ("c", c, v.shape)):
            shaped(name, y, shape)
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
