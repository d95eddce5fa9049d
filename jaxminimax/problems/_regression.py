"""Generalised linear operators and robust regression, with records of any content."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxminimax.base import checks
from jaxminimax.base.types import Problem, Saddle, saddle_operator
from jaxminimax.problems._sets import ball, product
from jaxminimax.problems._vi import (
    Bounded,
    interval,
    product_with,
    sanitise,
    shaped,
    squares_in,
    variational_inequality,
)


def bounded_glm(response: Callable[[jax.Array, jax.Array], jax.Array], *, slope: float,
                curvature: float, feature_bound: float, label_bound: float,
                radius: float) -> Bounded:
    """The operator F(w; (x, y)) = s(<x, w>, y) x of a generalised linear model, ||w|| <= R.

    Data are pairs (x, y), x `[n, d]` projected to ||x|| <= B, y `[n]` clipped to [-Y, Y]. s is
    clipped to [-G, G], which in one dimension keeps it nondecreasing: M = G B and L = H B^2. For
    the gradient of a convex loss s is its derivative; `jnp.tanh(t - y)`, say, is robust regression
    with a smooth absolute value.

    Args:
      response: s(t, y), nondecreasing in t for every y in [-Y, Y]: that is yours to see to.
      slope: G.
      curvature: H, bound on the derivative of s in t for those y; yours as well.
      feature_bound: B.
      label_bound: Y.
      radius: R.

    Examples:
        >>> made = jmm.problems.bounded_glm(lambda t, y: jnp.tanh(t - y), slope=1.0, curvature=1.0,
        ...                                 feature_bound=2.0, label_bound=1.0, radius=3.0)
        >>> made.bound, made.smooth, made.diameter
        (2.0, 4.0, 6.0)
    """
    for name, value in dict(slope=slope, curvature=curvature, feature_bound=feature_bound,
                            label_bound=label_bound).items():
        checks.number(name, value, low=0.0)

    def operator(w, record):
        x, y = record
        x = sanitise(shaped("x", x, w.shape).astype(w.dtype), feature_bound)
        y = interval(shaped("y", y, ()).astype(w.dtype), -label_bound, label_bound)
        return interval(response(x @ w, y), -slope, slope) * x

    domain = ball(radius)
    return Bounded(variational_inequality(operator, domain), slope * feature_bound,
                   curvature * feature_bound**2, domain.diameter)


def robust_regression(*, feature_bound: float, label_bound: float, radius: Saddle,
                      penalty: float) -> Bounded:
    """Least squares against the worst common shift v of the features, a saddle problem.

        f(w, v; (x, y)) = (<w, x + v> - y)^2 / 2 - (rho / 2) ||v||^2,   ||w|| <= R_w, ||v|| <= R_v.

    Data are pairs (x, y), x `[n, d]` projected to ||x|| <= B (0 if not finite, or longer than
    1e19 B in float32), y `[n]` clipped to [-Y, Y]. The square is convex in v too, so it takes
    rho >= R_w^2 for f to be concave in v. With S = B + R_v and r = R_w S + Y:
    M^2 = (r S)^2 + (r R_w + rho R_v)^2, L <= max{S^2, rho} + S R_w + r.

    Args:
      feature_bound: B.
      label_bound: Y.
      radius: R_w and R_v.
      penalty: rho.

    Raises:
      ValueError: for a penalty below R_w^2, or numbers that are not positive.

    Examples:
        >>> made = jmm.problems.robust_regression(feature_bound=1.0, label_bound=1.0,
        ...                                       radius=Saddle(1.0, 0.5), penalty=1.0)
        >>> made.bound > 0, made.smooth > 0, round(made.diameter, 3)
        (True, True, 2.236)
    """
    checks.number("feature_bound", feature_bound, low=0.0)
    checks.number("label_bound", label_bound, low=0.0)
    checks.number("penalty", penalty, low=0.0)
    if penalty < radius.w**2:
        raise ValueError(f"penalty must be at least radius.w**2 = {radius.w**2:g}, got {penalty!r}:"
                         " otherwise the problem is not concave in the shift.")

    def clean(x, y, dtype):
        x = x.astype(dtype)
        x = jnp.where(jnp.isfinite(squares_in(x, feature_bound)), x, 0)  # as in the loss
        return (sanitise(x, feature_bound),
                interval(y.astype(dtype), -label_bound, label_bound))

    def all_of(data, dtype):
        return jax.vmap(lambda x, y: clean(x, y, dtype))(*data)

    def loss(w, v, record):
        x, y = shaped("x", record[0], w.shape), shaped("y", record[1], ())
        y = interval(y.astype(w.dtype), -label_bound, label_bound)
        along = product_with(w, x.astype(w.dtype), feature_bound) + w @ v
        return (along - y) ** 2 / 2 - penalty / 2 * (v @ v)

    def value(z, data):
        return jnp.mean(jax.vmap(loss, (None, None, 0))(z.w, z.v, data))

    def best_v(w, data):
        x, y = all_of(data, w.dtype)
        # along w: (<w, x> - y) w + w <w, v> = rho v, then to the ball, on which it is concave
        residual = jnp.mean(x @ w - y)
        return ball(radius.v).project(residual * w / (penalty - w @ w + 1e-300))

    def best_w(v, data):
        x, y = all_of(data, v.dtype)
        x = x + v[None]
        values, basis = jnp.linalg.eigh(x.T @ x / len(y))
        target = basis.T @ (x.T @ y / len(y))

        def norm(shift):
            return jnp.linalg.norm(target / (values + shift))

        def halve(_, span):  # ||w|| = R_w fixes the multiplier, if the ball binds
            low, high = span
            middle = (low + high) / 2
            return jnp.where(norm(middle) > radius.w, middle, low), jnp.where(
                norm(middle) > radius.w, high, middle)

        top = jnp.linalg.norm(target) / radius.w + 1e-12
        _, high = jax.lax.fori_loop(0, 100, halve, (jnp.full_like(top, 1e-12), top))
        return basis @ (target / (values + high))

    domain = product(ball(radius.w), ball(radius.v))
    span = feature_bound + radius.v
    most = radius.w * span + label_bound
    problem = Problem(operator=saddle_operator(loss), project=domain.project,
                      support=domain.support, value=value, best_response=Saddle(best_w, best_v))
    bound = ((most * span) ** 2 + (most * radius.w + penalty * radius.v) ** 2) ** 0.5
    return Bounded(problem, bound, max(span**2, penalty) + span * radius.w + most, domain.diameter)
