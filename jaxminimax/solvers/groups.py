"""Solvers of the regularised worst-group problem, with certificates. Nothing here is private.

    min over w in W of max over v in the simplex of
        sum_i v_i L_i(w) - mu_v sum_i v_i ln v_i + (mu_w / 2) ||w - c||^2

for convex risks L_1 ... L_p. The maximum over v has a closed form, which leaves

    P(w) = mu_v ln sum_i exp(L_i(w) / mu_v) + (mu_w / 2) ||w - c||^2,

mu_w-strongly convex, whose minimiser over W is the w of the saddle point. With L-Lipschitz,
beta-smooth risks P is l-smooth, l = beta + L^2 / mu_v + mu_w. Three methods:

    accelerated  projected gradients, with a number of steps after which the certificate cannot fail
    newton       for few dimensions: mostly quick, without a bound; certify its result
    subgradient  for risks that are not smooth: certified by a lower model from its own steps

Points are vectors `[d]`.

Source of the problem: Zhou and Bassily, "Differentially private worst-group risk minimization",
arXiv:2402.19437, Algorithm 4. Departure: none of these methods is the paper's, which alternates
subgradient steps with the best response of the weights, and reaches the accuracy that its own noise
rests on after 10^6 to 10^9 passes over the records.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxminimax.base import checks

Risks = Callable[[jax.Array], jax.Array]
Project = Callable[[jax.Array], jax.Array]


class CertifiedPoint(NamedTuple):
    """A point of W and a bound on its distance from the minimiser of P over W.

    Attributes:
      point: w `[d]`.
      distance: at least ||w - w*||, however the point was computed; `[]`.

    Examples:
        >>> jmm.solvers.groups.CertifiedPoint(point=jnp.zeros(2),
        ...                                   distance=jnp.asarray(0.01)).point.shape
        (2,)
    """

    point: jax.Array
    distance: jax.Array


def objective(risks: Risks, centre: jax.Array, *, reg_w: jax.typing.ArrayLike,
              reg_lam: jax.typing.ArrayLike) -> Callable[[jax.Array], jax.Array]:
    """Returns P less mu_v ln p as a function `[d] -> []`.

    It has the mean in place of the sum, and takes numbers near 1 out, so that rounding with a large
    mu_v does not remove the risks.

    Args:
      risks: `w -> L(w)`, `[p]`.
      centre: c `[d]`.
      reg_w: mu_w.
      reg_lam: mu_v, weight of the entropy.

    Examples:
        >>> def risks(w):
        ...     return jnp.array([jnp.sum(w**2), jnp.sum((w - 1.0) ** 2)])
        >>> value = jmm.solvers.groups.objective(risks, jnp.zeros(1), reg_w=0.1, reg_lam=0.01)
        >>> bool(value(jnp.full(1, 0.5)) < value(jnp.zeros(1)))  # the worst risk is least between
        True
    """
    def value(w: jax.Array) -> jax.Array:
        values = risks(w)
        top = jax.lax.stop_gradient(jnp.max(values))
        worst = top + reg_lam * jnp.log1p(jnp.mean(jnp.expm1((values - top) / reg_lam)))
        return jnp.asarray(worst + reg_w / 2 * jnp.sum(jnp.square(w - centre)))

    return value


def certify(gradient: Callable[[jax.Array], jax.Array], project: Project, w: jax.Array, *,
            smooth: jax.typing.ArrayLike, modulus: jax.typing.ArrayLike) -> CertifiedPoint:
    """Makes one more projected step, and bounds its distance from the minimiser of a smooth P.

        u = P_W(w - grad P(w) / l),   e = grad P(u) - grad P(w) + l (w - u)  in  grad P(u) + N_W(u),

    so ||u - w*|| <= ||e|| / mu by strong convexity. Inside W, e is the gradient at u; on the
    boundary it lacks the part that points outwards.

    Args:
      gradient: `w -> grad P(w)`, `[d]`.
      project: Euclidean projection on W.
      w: the result of a solver, `[d]`.
      smooth: l; any positive number gives a valid certificate.
      modulus: mu, the modulus of strong convexity of P.

    Returns:
      `CertifiedPoint`: u and the bound ||e|| / mu.

    Examples:
        >>> certified = jmm.solvers.groups.certify(lambda w: w - 1.0, lambda w: w, jnp.ones(1),
        ...                                        smooth=1.0, modulus=1.0)
        >>> print(certified.point, certified.distance)
        [1.] 0.0
    """
    g = gradient(w)
    u = project(w - g / smooth)
    e = gradient(u) - g + smooth * (w - u)
    return CertifiedPoint(u, jnp.linalg.norm(e) / modulus)


# --- smooth risks ---


def accelerated_steps(distance: float, *, smooth: float, modulus: float, lipschitz: float,
                      diameter: float) -> int:
    """Counts the steps of `accelerated` from c in W until `certify` bounds at most `distance`.

    The potential E of `accelerated` starts at

        P(c) - P* + (mu / 2) ||c - w*||^2  <=  L ||c - w*||  <=  L min{M, L / mu},

    where the regulariser's part cancels, and falls by 1 - (mu / l)^(1/2) a step. A projected step
    from w to u gains (l / 2) ||w - u||^2 of P and leaves ||e|| <= 2 l ||w - u||, so the certificate
    is at most 2 (2 l E)^(1/2) / mu: E <= (mu distance)^2 / (8 l) is enough.

    Args:
      distance: the wanted bound on ||w - w*||, in units of parameters.
      smooth: l, the smoothness of P.
      modulus: mu, the modulus of strong convexity of P.
      lipschitz: L, the Lipschitz constant of the risks.
      diameter: M, the diameter of W.

    Raises:
      ValueError: for numbers that are not positive.

    Examples:
        >>> jmm.solvers.groups.accelerated_steps(0.01, smooth=2.0, modulus=1.0, lipschitz=1.0,
        ...                                      diameter=2.0)
        10
    """
    checks.positive(distance=distance, smooth=smooth, modulus=modulus, lipschitz=lipschitz,
                    diameter=diameter)
    start = math.log(lipschitz) + math.log(min(diameter, lipschitz / modulus))
    enough = 2 * math.log(modulus * distance) - math.log(8 * smooth)
    fall = -math.log1p(-math.sqrt(min(modulus / smooth, 0.999)))
    return max(1, math.ceil((start - enough) / fall))


def accelerated(gradient: Callable[[jax.Array], jax.Array], project: Project, start: jax.Array, *,
                smooth: jax.typing.ArrayLike, modulus: jax.typing.ArrayLike,
                steps: jax.typing.ArrayLike) -> jax.Array:
    """Makes `steps` accelerated projected gradient steps, with all points in W.

    With q = (mu / l)^(1/2) and w_0 = z_0 the start,

        y = (w + q z) / (1 + q),   z+ = P_W((1 - q) z + q y - (q / mu) grad P(y)),
        w+ = (1 - q) w + q z+.

    E = P(w) - P* + (mu / 2) ||z - w*||^2 falls by 1 - q a step. For z+ minimises

        q <g, u> + (mu / 2) ((1 - q) ||u - z||^2 + q ||u - y||^2)   over W,   g = grad P(y);

    compare it with w* there, bound P(w+) by the quadratic above P at y and P(w), P* by the ones
    below. The remainder is (l / 2) ||w+ - y||^2 - (mu / 2) ((1 - q) ||z+ - z||^2 + q ||z+ - y||^2),
    which is not positive, as w+ - y = q ((1 - q) (z+ - z) + q (z+ - y)) and q^2 = mu / l. It is
    enough that constants hold on W; a method that extrapolates out of W would need more.

    Args:
      gradient: `w -> grad P(w)`, `[d]`.
      project: Euclidean projection on W.
      start: a point of W, `[d]`.
      smooth: l, the smoothness of P on W; at least mu.
      modulus: mu, the modulus of strong convexity of P.
      steps: the number of steps, which may be traced; 0 returns the start.

    Examples:
        >>> w = jmm.solvers.groups.accelerated(lambda w: w - 1.0, lambda w: w, jnp.zeros(1),
        ...                                    smooth=1.0, modulus=1.0, steps=5)
        >>> print(w.round(3))
        [1.]
    """
    q = jnp.sqrt(modulus / smooth)

    def step(_: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        w, z = carry
        y = (w + q * z) / (1 + q)
        z = project((1 - q) * z + q * y - q / modulus * gradient(y))
        return (1 - q) * w + q * z, z

    return jax.lax.fori_loop(0, steps, step, (start, start))[0]


def newton(value: Callable[[jax.Array], jax.Array], project: Project, start: jax.Array, *,
           smooth: jax.typing.ArrayLike, modulus: jax.typing.ArrayLike,
           distance: jax.typing.ArrayLike, steps: int = 30) -> jax.Array:
    """Makes damped Newton steps on W until the gradient certifies `distance`, at most `steps`.

    A step minimises the quadratic model over W, by accelerated steps that read the Hessian only,
    and then takes the best of eight halvings of the way there. No bound is proved: certify the
    result.

    Args:
      value: `w -> P(w)`, `[]`.
      project: Euclidean projection on W.
      start: a point of W, `[d]`.
      smooth: l, the smoothness of P, for the inner steps.
      modulus: mu, the modulus of strong convexity of P.
      distance: the bound on ||w - w*|| at which it stops.
      steps: the largest number of steps.

    Examples:
        >>> w = jmm.solvers.groups.newton(lambda w: jnp.sum((w - 1.0) ** 2) / 2, lambda w: w,
        ...                               jnp.zeros(1), smooth=1.0, modulus=1.0, distance=1e-3)
        >>> print(w.round(3))
        [1.]
    """
    gradient, hessian = jax.grad(value), jax.hessian(value)
    shares = 0.5 ** jnp.arange(8, dtype=start.dtype)

    def far(carry: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        _, count, bound = carry
        return (count < steps) & ~(bound <= distance)

    def step(carry: tuple[jax.Array, jax.Array, jax.Array]
             ) -> tuple[jax.Array, jax.Array, jax.Array]:
        w, count, _ = carry
        g, h = gradient(w), hessian(w)
        steep = jnp.clip(jnp.linalg.norm(h), modulus, smooth)  # at least the largest eigenvalue
        goal = accelerated(lambda u: g + h @ (u - w), project, w, smooth=steep, modulus=modulus,
                           steps=jnp.ceil(20 * jnp.sqrt(steep / modulus)).astype(jnp.int32))
        tries = w[None] + shares[:, None] * (goal - w)[None]
        values = jax.lax.map(value, tries)
        # the longest of those that are best but for rounding
        fine = values <= jnp.min(values) + 1e-14 * jnp.abs(jnp.min(values))
        w = tries[jax.lax.argmax(fine, 0, jnp.int32)]
        return w, count + 1, certify(gradient, project, w, smooth=smooth, modulus=modulus).distance

    return jax.lax.while_loop(far, step, (start, jnp.int32(0), jnp.full((), jnp.inf, start.dtype))
                              )[0]


# --- risks that are not smooth ---


def subgradient_steps(distance: float, *, modulus: float, lipschitz: float, diameter: float) -> int:
    """Counts the steps of `subgradient` from c in W until its certificate is at most `distance`.

    It is ceil((2 G / (mu distance))^2) with G = L + mu M, a bound on P's subgradients on W.

    Args:
      distance: the wanted bound on ||w - w*||, in units of parameters.
      modulus: mu, the modulus of strong convexity of P.
      lipschitz: L, the Lipschitz constant of the risks.
      diameter: M, the diameter of W.

    Raises:
      ValueError: for numbers that are not positive.

    Examples:
        >>> jmm.solvers.groups.subgradient_steps(0.1, modulus=1.0, lipschitz=1.0, diameter=2.0)
        3600
    """
    checks.positive(distance=distance, modulus=modulus, lipschitz=lipschitz, diameter=diameter)
    return math.ceil((2 * (lipschitz + modulus * diameter) / (modulus * distance)) ** 2)


def subgradient(value: Callable[[jax.Array], jax.Array], project: Project, start: jax.Array, *,
                modulus: jax.typing.ArrayLike, steps: int) -> CertifiedPoint:
    """Averages projected subgradient steps, and certifies the average by their lower model.

        w_{s+1} = P_W(w_s - 2 g_s / (mu (s + 1))),      w = sum_s a_s w_s,     a_s ~ s,
        l(u)    = sum_s a_s (P(w_s) + <g_s, u - w_s> + (mu/2) ||u - w_s||^2)  <=  P(u).

    l is a multiple of a squared distance, so its minimum over W is at a projection, and
    ||w - w*|| <= (2 (P(w) - min_W l) / mu)^(1/2). Multiplying the recursion by s and summing,

        P(w) - min_W l <= sum_s a_s P(w_s) - min_W l <= 2 G^2 / (mu (N + 1)).

    Args:
      value: `w -> P(w)`, `[]`, mu-strongly convex.
      project: Euclidean projection on W.
      start: w_1 in W, `[d]`.
      modulus: mu, the modulus of strong convexity of P.
      steps: N, the number of steps.

    Examples:
        >>> average = jmm.solvers.groups.subgradient(
        ...     lambda w: jnp.sum((w - 1.0) ** 2) / 2, lambda w: w, jnp.zeros(1), modulus=1.0,
        ...     steps=50)
        >>> bool(jnp.abs(average.point[0] - 1.0) < 0.1)
        True
    """
    value_and_gradient = jax.value_and_grad(value)
    total = steps * (steps + 1) / 2

    def step(s: jax.Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        w, mean, slope, level = carry
        value_w, g = value_and_gradient(w)
        share, x = s / total, w - start
        mean = mean + share * x
        # l(u) = level + <slope, u - start> + (mu/2) ||u - start||^2
        slope = slope + share * (g - modulus * x)
        level = level + share * (value_w - g @ x + modulus / 2 * (x @ x))
        return project(w - 2 * g / (modulus * (s + 1))), mean, slope, level

    zero = jnp.zeros_like(start)
    _, mean, slope, level = jax.lax.fori_loop(1, steps + 1, step,
                                              (start, zero, zero, jnp.zeros((), start.dtype)))
    lowest = project(start - slope / modulus) - start
    bottom = level + slope @ lowest + modulus / 2 * (lowest @ lowest)
    w = project(start + mean)  # in W already, but for rounding
    gap = jnp.maximum(value(w) - bottom, 0)
    return CertifiedPoint(w, jnp.sqrt(2 * gap / modulus))
