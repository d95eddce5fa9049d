"""Problems that measurements and tests use: a kinked game, robust regression, an exact solution."""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.types import Problem, PyTree, Saddle, saddle_operator
from jaxminimax.problems import _vi

MOST_GROUPS = 12  # whose active sets are enumerated


def kinked_game() -> Problem:
    """A non-smooth game of two numbers, with a sharp saddle point.

        f(w, v; (a, b)) = |w - a| + w v - |v - b|,        |w|, |v| <= 1,  a, b in {-1, 0, 1}.

    Data are pairs of arrays `[n]`. The operator's norm is at most 2 sqrt(2), and so is the
    diameter. Inner maxima of concave piecewise linear functions are at -1, 0 or 1. For a and b in
    {-1, 0, 1} with probabilities (s, 1 - 2 s, s) the saddle point is (0, 0), and with p = 1 - 2 s
    the strong gap is p |w| + (|w| - p)_+ + p |v| + (|v| - p)_+. Its kinks rule output perturbation
    out.
    """
    ends = (-1.0, 0.0, 1.0)

    def loss(w: jax.Array, v: jax.Array, x: PyTree) -> jax.Array:
        a, b = x
        return jnp.abs(w - a) + w * v - jnp.abs(v - b)

    value = _vi.mean_of(loss)

    def best(player: str) -> Callable[[jax.Array, PyTree], jax.Array]:
        def respond(other: jax.Array, data: PyTree) -> jax.Array:
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


def robust_regression(*, feature_bound: float, label_bound: float, radius: Saddle,
                      penalty: float) -> _vi.Bounded:
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
    """
    checks.number("feature_bound", feature_bound, low=0.0)
    checks.number("label_bound", label_bound, low=0.0)
    checks.number("penalty", penalty, low=0.0)
    if penalty < radius.w**2:
        raise ValueError(f"penalty must be at least radius.w**2 = {radius.w**2:g}, got {penalty!r}:"
                         " otherwise the problem is not concave in the shift.")

    def clean(x: jax.Array, y: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, ...]:
        x = x.astype(dtype)
        x = jnp.where(jnp.isfinite(_vi.squares_in(x, feature_bound)), x, 0)  # as in the loss
        return (_vi.sanitise(x, feature_bound),
                _vi.interval(y.astype(dtype), -label_bound, label_bound))

    def all_of(data: PyTree, dtype: jnp.dtype) -> tuple[jax.Array, ...]:
        return jax.vmap(lambda x, y: clean(x, y, dtype))(*data)

    def loss(w: jax.Array, v: jax.Array, record: PyTree) -> jax.Array:
        x, y = _vi.shaped("x", record[0], w.shape), _vi.shaped("y", record[1], ())
        y = _vi.interval(y.astype(w.dtype), -label_bound, label_bound)
        along = _vi.product_with(w, x.astype(w.dtype), feature_bound) + w @ v
        return (along - y) ** 2 / 2 - penalty / 2 * (v @ v)

    def best_v(w: jax.Array, data: PyTree) -> jax.Array:
        x, y = all_of(data, w.dtype)
        # along w: (<w, x> - y) w + w <w, v> = rho v, then to the ball, on which it is concave
        residual = jnp.mean(x @ w - y)
        return _vi.ball(radius.v).project(residual * w / (penalty - w @ w + 1e-300))

    def best_w(v: jax.Array, data: PyTree) -> jax.Array:
        x, y = all_of(data, v.dtype)
        x = x + v[None]
        values, basis = jnp.linalg.eigh(x.T @ x / len(y))
        target = basis.T @ (x.T @ y / len(y))

        def norm(shift: jax.Array) -> jax.Array:
            return jnp.linalg.norm(target / (values + shift))

        # ||w|| = R_w fixes the multiplier, if the ball binds
        def halve(_: PyTree, span: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = span
            middle = (low + high) / 2
            return jnp.where(norm(middle) > radius.w, middle, low), jnp.where(
                norm(middle) > radius.w, high, middle)

        top = jnp.linalg.norm(target) / radius.w + 1e-12
        _, high = jax.lax.fori_loop(0, 100, halve, (jnp.full_like(top, 1e-12), top))
        return basis @ (target / (values + high))

    domain = _vi.product(_vi.ball(radius.w), _vi.ball(radius.v))
    span = feature_bound + radius.v
    most = radius.w * span + label_bound
    problem = Problem(operator=saddle_operator(loss), project=domain.project,
                      support=domain.support, value=_vi.mean_of(loss),
                      best_response=Saddle(best_w, best_v))
    bound = ((most * span) ** 2 + (most * radius.w + penalty * radius.v) ** 2) ** 0.5
    smooth = max(span**2, penalty) + span * radius.w + most
    return _vi.Bounded(problem, bound, smooth, domain.diameter)


def group_means_optimum(means: np.ndarray, spreads: np.ndarray
                        ) -> tuple[np.ndarray, np.ndarray, float]:
    """The exact solution of min_w max_i ||w - m_i||^2 / 2 + c_i, on the host in float64.

    w = sum_i v_i m_i for weights v whose support is one of the sets of groups that attain the
    maximum together; all supports are tried. Of the population or of a sample, by its moments: m_i
    a group's mean, c_i half its total variance.

    Args:
      means: m `[p, d]`, p at most 12.
      spreads: c `[p]`.

    Returns:
      w `[d]`, the weights v `[p]`, and the smallest worst-group risk.

    Raises:
      ValueError: for other shapes or more groups.
    """
    means, spreads = np.asarray(means, np.float64), np.asarray(spreads, np.float64)
    if means.ndim != 2 or spreads.shape != means.shape[:1] or len(means) > MOST_GROUPS:
        raise ValueError(f"means must be [p, d] and spreads [p] with p <= {MOST_GROUPS}, got "
                         f"{means.shape} and {spreads.shape}.")
    p = len(means)
    gram = means @ means.T
    target = np.diag(gram) / 2 + spreads
    best: tuple[float, np.ndarray, np.ndarray] | None = None
    for size in range(1, p + 1):
        for support in map(list, itertools.combinations(range(p), size)):
            # the maximum over the weights: gram v + multiplier = target, sum v = 1
            system = np.ones((size + 1, size + 1))
            system[:size, :size], system[size, size] = gram[np.ix_(support, support)], 0.0
            v = np.zeros(p)
            v[support] = np.linalg.lstsq(system, np.append(target[support], 1.0), rcond=None)[0][
                :size]
            # weights below 0 solve another problem; the value below would still be attained by w
            if v.min() < -1e-9:
                continue
            w = v @ means
            value = float(np.max(np.sum((w - means) ** 2, 1) / 2 + spreads))
            if best is None or value < best[0]:
                best = value, w, v
    assert best is not None  # one group alone is always there
    value, w, v = best
    return w, v, value
