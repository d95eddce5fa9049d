"""Gaps that theorems bound with all constants, and orders that nobody beats; see `theory`."""

import math

from jaxminimax.base import checks
from jaxminimax.theory._numbers import nonnegative, positive, short

# --- gaps ---


def gda_empirical_gap(*, modulus: float, bound_w: float, bound_v: float, dim_w: int, dim_v: int,
                      radius_w: float, radius_v: float, deviation: float, rounds: int,
                      offset: float = 0.0) -> float:
    """Expected strong gap of `gda`'s average on its own records; in place of [K], Lemma 2.

        (R_w d_w^(1/2) + R_v d_v^(1/2)) sigma / T^(1/2)
        + (G_w^2 + G_v^2 + (d_w + d_v) sigma^2) ln(e T) / (2 rho T) + 2 rho phi (R_w^2 + R_v^2) / T

    Every round has noise of its own here, where the printed proof takes one vector for all. With
    calibrated noise sigma grows like T^(1/2), and no term in it grows with T but for the logarithm.

    Args:
      modulus: rho.
      bound_w: G_w, on the norm of a record's gradient in w.
      bound_v: G_v, in v.
      dim_w: d_w, coordinates of w.
      dim_v: d_v, of v.
      radius_w: R_w, of the ball that w lies in.
      radius_v: R_v.
      deviation: sigma, of the noise on one coordinate of a mean gradient.
      rounds: T.
      offset: phi, of the steps 1 / (rho (t + phi)).
    """
    positive(modulus=modulus, bound_w=bound_w, bound_v=bound_v, radius_w=radius_w,
             radius_v=radius_v, rounds=rounds)
    checks.count("dim_w", dim_w)
    checks.count("dim_v", dim_v)
    nonnegative(deviation=deviation, offset=offset)
    linear = (radius_w * math.sqrt(dim_w) + radius_v * math.sqrt(dim_v)) * deviation
    square = bound_w**2 + bound_v**2 + (dim_w + dim_v) * deviation**2
    return (linear / math.sqrt(rounds)
            + square * math.log(math.e * rounds) / (2 * modulus * rounds)
            + 2 * modulus * offset * (radius_w**2 + radius_v**2) / rounds)


def extragradient_gap(*, dim: int, bound: float, diameter: float, step: float, rounds: int,
                      deviation: float, smooth: float | None = None) -> float:
    """Strong gap of one pass of `extragradient`; [B], Theorem 2: of saddle points and inequalities.

    (D^2 + 7 T gamma^2 (M^2 + d sigma^2)) / (T gamma), for gamma <= 1 / (3^(1/2) L) and fresh
    batches in every answer. M^2 / 2 is printed, without the variance of a batch's records, which
    M^2 covers.

    Args:
      dim: d, of both players together.
      bound: M, on the norm of a record's operator, players together.
      diameter: D.
      step: gamma.
      rounds: T.
      deviation: sigma, of the noise on one coordinate of a mean operator.
      smooth: L, to check the step by; None: it is not checked.

    Raises:
      ValueError: for numbers out of range, or a step that the bound is not for.
    """
    positive(dim=dim, bound=bound, diameter=diameter, step=step, rounds=rounds)
    nonnegative(deviation=deviation)
    if smooth is not None:
        short(step, smooth, 1 / math.sqrt(3))
    second = bound**2 + dim * deviation**2
    return (diameter**2 + 7 * rounds * step**2 * second) / (rounds * step)


def proximal_gap(*, dim: int, bound: float, smooth: float, diameter: float, prox: float,
                 rounds: int, deviation: float, inexact: float = 0.0) -> float:
    """Strong gap of one pass of `proximal` with constant weights; [B], Theorem 5.

        nu + 3 lambda D^2 / (2 T) + (4 M^2 + 3 L^2 D^2) / lambda + 3 lambda d sigma^2
        + M sigma (d / T)^(1/2).

    The printed 5/2 in front of lambda d sigma^2 is 3 by its proof.

    Args:
      dim: d, of both players together.
      bound: M.
      smooth: L.
      diameter: D.
      prox: lambda.
      rounds: T.
      deviation: sigma, of the noise on one coordinate of a solution.
      inexact: nu, of the inner solutions: at most their residual times D.
    """
    positive(dim=dim, bound=bound, diameter=diameter, prox=prox, rounds=rounds)
    nonnegative(smooth=smooth, deviation=deviation, inexact=inexact)
    return (inexact + 1.5 * prox * diameter**2 / rounds
            + (4 * bound**2 + 3 * smooth**2 * diameter**2) / prox
            + 3 * prox * dim * deviation**2 + bound * deviation * math.sqrt(dim / rounds))


# --- what nobody beats ---


def lower_bound(*, population: int, dim: int, bound: float, diameter: float,
                epsilon: float | None) -> float:
    """Order of the gap that no private algorithm beats on all problems; [B], Prop. 11, Theorem 8.

    M D (n^(-1/2) + min{1, d^(1/2) / (epsilon n)}), up to a constant that is not known (and, for the
    weak gap of variational inequalities, logarithms): for the strong and the weak gap of convex-
    concave problems and monotone inequalities on a set that holds a ball of diameter D. One problem
    may be easier.

    Args:
      population: n.
      dim: d, of both players together.
      bound: M, on the norm of a record's operator, players together.
      diameter: D.
      epsilon: None without privacy.
    """
    positive(population=population, dim=dim, bound=bound, diameter=diameter)
    privacy = 0.0
    if epsilon is not None:
        positive(epsilon=epsilon)
        privacy = min(1.0, math.sqrt(dim) / (epsilon * population))
    return bound * diameter * (population**-0.5 + privacy)


def group_lower_bound(*, population: int, groups: int, dim: int, lipschitz: float, diameter: float,
                      epsilon: float | None) -> float:
    """Order of the excess worst-group risk that nobody beats; [Z], Appendix D.

    `lower_bound` of one group's K / p records: L D (p d^(1/2) / (K epsilon) + (p / K)^(1/2)), by
    a reduction in which all groups but one are easy.

    Args:
      population: K, records of all groups.
      groups: p.
      dim: d, of w.
      lipschitz: L, of the loss.
      diameter: D, of the set of w.
      epsilon: None without privacy.
    """
    positive(population=population, groups=groups)
    return lower_bound(population=max(1, population // groups), dim=dim, bound=lipschitz,
                       diameter=diameter, epsilon=epsilon)
