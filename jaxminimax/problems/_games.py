"""Games with closed-form best responses: what algorithms and metrics are tested against."""

import jax
import jax.numpy as jnp
import optax

from jaxminimax.base import checks
from jaxminimax.base.types import Problem, PyTree, Saddle, saddle_operator


def _ball(x: jax.Array, radius: float) -> jax.Array:
    return optax.projections.projection_l2_ball(x, radius)


def _balls(radius: Saddle):
    return lambda z: Saddle(_ball(z.w, radius.w), _ball(z.v, radius.v))


def _means(data: PyTree) -> tuple[jax.Array, jax.Array]:
    a, b = data
    return jnp.mean(a, 0), jnp.mean(b, 0)


def quadratic_game(*, modulus: float, coupling: float, radius: Saddle) -> Problem:
    """The isotropic quadratic-bilinear game on balls.

        f(w, v; (a, b)) = (mu/2) ||w - a||^2 + c <w, v> - (mu/2) ||v - b||^2,
        ||w|| <= R_w, ||v|| <= R_v.

    Data are pairs (a, b) of arrays `[n, d]`. With means A and B, the saddle point of the whole
    space is w* = (mu^2 A - c mu B) / (mu^2 + c^2), v* = (mu^2 B + c mu A) / (mu^2 + c^2), and where
    both best responses are interior the strong gap is
    (mu^2 + c^2) / (2 mu) (||w - w*||^2 + ||v - v*||^2). Records with ||a||, ||b|| <= r have
    operators of norm at most mu (R_w + r) + c R_v and mu (R_v + r) + c R_w.

    Args:
      modulus: mu > 0, of strong convexity and concavity.
      coupling: c.
      radius: R_w and R_v.

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

    def loss(w, v, x):
        a, b = x
        return (mu / 2) * jnp.sum((w - a) ** 2) + c * w @ v - (mu / 2) * jnp.sum((v - b) ** 2)

    def best_w(v, data):
        return _ball(_means(data)[0] - (c / mu) * v, radius.w)

    def best_v(w, data):
        return _ball(_means(data)[1] + (c / mu) * w, radius.v)

    def saddle_point(data):
        a, b = _means(data)
        scale = mu**2 + c**2
        return Saddle((mu**2 * a - c * mu * b) / scale, (mu**2 * b + c * mu * a) / scale)

    return Problem(
        operator=saddle_operator(loss),
        project=_balls(radius),
        value=_mean_of(loss),
        best_response=Saddle(best_w, best_v),
        saddle_point=saddle_point,
    )


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
    for name, r in radius._asdict().items():
        checks.number(f"radius.{name}", r, low=0.0)

    def loss(w, v, x):
        a, b = x
        return a @ w + coupling * w @ v - b @ v

    def towards(x, r):
        norm = jnp.linalg.norm(x)
        return jnp.where(norm > 0, r * x / jnp.where(norm > 0, norm, 1), 0)

    def best_w(v, data):
        return towards(-(_means(data)[0] + coupling * v), radius.w)

    def best_v(w, data):
        return towards(coupling * w - _means(data)[1], radius.v)

    return Problem(
        operator=saddle_operator(loss),
        project=_balls(radius),
        value=_mean_of(loss),
        best_response=Saddle(best_w, best_v),
    )


def kinked_game() -> Problem:
    """A non-smooth game of two numbers, with a sharp saddle point.

        f(w, v; (a, b)) = |w - a| + w v - |v - b|,        |w|, |v| <= 1,  a, b in {-1, 0, 1}.

    Data are pairs of arrays `[n]`. The operator's norm is at most 2 sqrt(2), and so is the
    diameter. Inner maxima of concave piecewise linear functions are at -1, 0 or 1. For a and b in
    {-1, 0, 1} with probabilities (s, 1 - 2 s, s) the saddle point is (0, 0), and with p = 1 - 2 s
    the strong gap is p |w| + (|w| - p)_+ + p |v| + (|v| - p)_+. Its kinks rule output perturbation
    out.

    Examples:
        >>> game = jmm.problems.kinked_game()
        >>> data = (jnp.array([-1.0, 0.0, 1.0]), jnp.array([-1.0, 0.0, 1.0]))
        >>> float(jmm.metrics.strong_gap(game, Saddle(jnp.zeros(()), jnp.zeros(())), data))
        0.0
    """
    ends = (-1.0, 0.0, 1.0)

    def loss(w, v, x):
        a, b = x
        return jnp.abs(w - a) + w * v - jnp.abs(v - b)

    value = _mean_of(loss)

    def best(player):
        def respond(other, data):
            values = jnp.stack([value(Saddle(jnp.full_like(other, e), other) if player == "w" else
                                      Saddle(other, jnp.full_like(other, e)), data) for e in ends])
            chosen = jnp.argmin(values) if player == "w" else jnp.argmax(values)
            return jnp.asarray(ends, other.dtype)[chosen]

        return respond

    return Problem(
        operator=saddle_operator(loss),
        project=lambda z: Saddle(jnp.clip(z.w, -1.0, 1.0), jnp.clip(z.v, -1.0, 1.0)),
        value=value,
        best_response=Saddle(best("w"), best("v")),
    )


def _mean_of(loss):
    def value(z, data):
        return jnp.mean(jax.vmap(loss, (None, None, 0))(z.w, z.v, data))

    return value
