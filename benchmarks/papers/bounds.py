"""What theorems promise, as numbers: stability, gaps, and what no private algorithm beats.

    gda_stability(population=n, modulus=rho, bound=G, rounds=T) -> bound on ||z(S) - z(S')||

An algorithm is gamma-stable if replacing a record of its data S moves its output by at most gamma,
the run's key being the same: neighbours share their samples and their noise. What is stable
generalises: its gap on the population is its gap on S and little more. Functions are of public
numbers, read no data and set nothing; `benchmarks.rates.stability` measures beside them. They are
upper bounds for every problem with these constants, and often far from what one problem shows.

Sources: [K] Kang, Liu, Li and Wang, "Stability and generalization of differentially private minimax
problems", arXiv:2204.04858; [B] Boob and Guzman, arXiv:2104.02988; [Y] Yang, Hu, Lei, Varshney, Lyu
and Ying, "Differentially private SGDA for minimax problems", UAI 2022; [Z] Zhou and Bassily,
"Differentially private worst-group risk minimization", ICML 2024; [R] Bassily, Guzman and Menart,
arXiv:2302.12909. Where a formula here differs from the printed one, its function says how.

The formulas that plans take their guarantees from are those of `jaxminimax.algorithms.bounds`,
which this module hands on. What stands here alone completes a paper and sets nothing.
"""

import math

import numpy as np
import scipy

from jaxminimax.algorithms.bounds import (
    WeightedDescent,
    average_gap,
    bandit_regret,
    bilinear_sampling,
    contraction_stability,
    descent_stability,
    selection_regret,
    strong_gap,
    weak_gap,
    weights_regret,
)
from jaxminimax.algorithms.planning import check_numbers as check_positive
from jaxminimax.base import checks

__all__ = ["WeightedDescent", "average_gap", "bandit_regret", "bilinear_sampling",
           "contraction_stability", "descent_stability", "extragradient_expansion",
           "extragradient_gap", "extragradient_noise", "extragradient_stability",
           "extragradient_weak_gap", "gda_empirical_gap", "gda_stability", "group_lower_bound",
           "low_variance_gap", "lower_bound", "maximum_generalisation", "pl_empirical_gap",
           "pl_excess_risk", "pl_generalisation",
           "proximal_failure", "proximal_gap", "proximal_stability", "selection_regret",
           "strong_gap", "two_point_lower_bound", "weak_gap", "weights_regret"]


def check_nonnegative(**numbers: float) -> None:
    """Refuses what is below 0."""
    for name, value in numbers.items():
        checks.number(name, value, low=0.0, closed=True)


def _short(step: float, smooth: float, most: float = 1.0) -> None:
    """Refuses steps above most / smooth, which a bound is not for."""
    if step * smooth > most * (1 + 1e-9):
        raise ValueError(f"step must be at most {most / smooth:.6g} for smooth={smooth!r}, got "
                         f"{step!r}: the bound is for such steps alone.")


# --- stability ---


def gda_stability(*, population: int, modulus: float, bound: float, rounds: int,
                  smooth: float | None = None, offset: float = 0.0) -> float:
    """Stability of `gda`'s average, full batches and steps 1 / (rho (t + phi)); [K], Theorem 2.

        2 G / (n rho)  +  (4 G / rho) (ln(e T) / T)^(1/2)

    in the norm of both players together. With d_t the distance of two runs, strong monotonicity and
    operators that are within 2 G / n of each other give  d_{t+1}^2 <= (1 - 2/t) d_t^2 + (4 G / (n
    rho t)) d_t + (2 G / (rho t))^2,  so that T d_{T+1}^2 <= T (2 G / (n rho))^2 + 4 G^2 ln(e T) /
    rho^2. Two runs with one key have the same noise, which cancels: the printed terms in its
    deviation are left out, of which one rests on one noise vector for all rounds. The rate in n at
    T = n^(2/3) is n^(-1/3), not the n^(-1/2) of Remark 4.

    With `smooth` the operators' difference shrinks with d_t, and the bound is the recursion
    d_{t+1} = (1 - 2/s + (l / (rho s))^2)^(1/2) d_t + 2 G / (n rho s), s = t + phi, averaged: of
    order 2 G / (n rho) whatever T is.

    Args:
      population: n.
      modulus: rho, of strong convexity and strong concavity.
      bound: G, on the norm of a record's operator, players together.
      rounds: T.
      smooth: l, the operator's Lipschitz constant; None: not known.
      offset: phi; with `smooth`, at least l^2 / (2 rho^2) - 1 (`gda.safe_offset`).

    Raises:
      ValueError: for numbers out of range.
    """
    check_positive(population=population, modulus=modulus, bound=bound, rounds=rounds)
    check_nonnegative(offset=offset)
    apart = 2 * bound / population
    if smooth is None:
        return apart / modulus + 4 * bound / modulus * math.sqrt(
            math.log(math.e * rounds) / rounds)
    check_positive(smooth=smooth)
    steps = 1 / (modulus * (np.arange(1.0, rounds + 1) + offset))
    return contraction_stability(steps, np.ones(rounds), modulus=modulus, smooth=smooth,
                                 apart=apart)


def extragradient_expansion(*, distance: float, step: float, smooth: float, diameter: float,
                            apart: float = 0.0) -> float:
    """How far one extragradient round takes two points apart; [B], Lemma 1 (4.6).

    ||u' - v'|| <= ||u - v|| + (2 a + 2 L D) L gamma^2, from Proposition 6: s steps of u -> P(. -
    gamma F(u)) are within 2 D (gamma L)^s of being nonexpansive.

    Args:
      distance: ||u - v||.
      step: gamma < 1 / L.
      smooth: L.
      diameter: D.
      apart: a, on the norm of the difference of the operators of the round's two halves.
    """
    check_nonnegative(distance=distance, apart=apart, smooth=smooth)
    check_positive(step=step, diameter=diameter)
    _short(step, smooth)
    return distance + (2 * apart + 2 * smooth * diameter) * smooth * step**2


def extragradient_stability(*, population: int, dim: int, bound: float, smooth: float,
                            diameter: float, step: float, rounds: int, deviation: float) -> float:
    """Expected stability of `extragradient` with a constant step; [B], Theorem 3.

        (4 M + 2 L D + 4 d^(1/2) sigma) L T gamma^2 + (2 M L / n) T gamma^2 + (2 M / n) T gamma
        + (2 M / n + 2 L D) gamma,

    for full batches and for single records drawn with replacement. The last bracket prints 2 M L /
    n where Lemma 2 has 2 M / n. Here noise does not cancel: a round's two answers have their own.

    Args:
      population: n.
      dim: d, of both players together.
      bound: M, on the norm of a record's operator, players together.
      smooth: L.
      diameter: D.
      step: gamma <= 1 / L.
      rounds: T.
      deviation: sigma, of the noise on one coordinate of the mean operator.
    """
    check_positive(population=population, dim=dim, bound=bound, diameter=diameter, step=step,
             rounds=rounds)
    check_nonnegative(smooth=smooth, deviation=deviation)
    _short(step, smooth)
    n, m, long = population, bound, rounds * step
    turned = 4 * m + 2 * smooth * diameter + 4 * math.sqrt(dim) * deviation + 2 * m / n
    return (turned * smooth * long * step + 2 * m / n * long
            + (2 * m / n + 2 * smooth * diameter) * step)


def proximal_stability(*, population: int, bound: float, prox: float, rounds: int, batch: int,
                       slack: float = 0.01, modulus: float = 0.0) -> float:
    """Expected stability of `proximal` on uniform subsets or one pass; [B], Theorem 6.

    The mean over k = 1 ... T of sum_{j <= k} (lambda / mu)^(k-j) s, where mu = lambda + mu_0 and
    s = 2 M / (n mu) + 2 rho M / (B mu): a round's solution moves by 2 M / (B mu) with probability B
    / n, by its certificates' slack always, and keeps of what its centre moved the share lambda /
    mu. The printed proof loses a factor of two on the way to the first term; nonexpansive
    resolvents give it back.

    Args:
      population: n.
      bound: M, on the norm of a record's operator.
      prox: lambda.
      rounds: T.
      batch: B, records of a round.
      slack: rho, of certificates.
      modulus: mu_0, of strong monotonicity of the operator itself.
    """
    check_positive(population=population, bound=bound, prox=prox, rounds=rounds, batch=batch)
    check_nonnegative(slack=slack, modulus=modulus)
    mu = prox + modulus
    each = 2 * bound / (population * mu) + 2 * slack * bound / (batch * mu)
    keeps = prox / mu
    if modulus / mu * rounds < 1e-6:  # where the sum below would be a difference of equals
        return each * (rounds + 1) / 2
    return each / (1 - keeps) * (1 - keeps * (1 - keeps**rounds) / (rounds * (1 - keeps)))


def proximal_failure(*, population: int, rounds: int, batch: int) -> float:
    """With what probability some record is in more than 2 K B / n rounds of `proximal`; [B], Th. 6.

    n e^(-K B / (3 n)), by Chernoff and a union over records: with the other probability the
    stability of one run is that of 2 K B / n rounds that read the record.

    Args:
      population: n.
      rounds: K.
      batch: B, records of a round.
    """
    check_positive(population=population, rounds=rounds, batch=batch)
    return min(1.0, population * math.exp(-rounds * batch / (3 * population)))


# --- from stability to gaps ---


def low_variance_gap(*, weak: float, bound: float, deviation: float) -> float:
    """Strong gap from a weak one and the output's variance; [R], Proposition 14.

    weak + 2^(1/2) L_all tau, tau^2 = E Var(output | coins), with the weak gap for given coins of
    sampling and noise, its mean over these: f = w v with w = 1 or -1 by a coin, v = 0 has the usual
    weak gap 0, the strong gap 1, and no variance given the coin. Printed is L tau: both players
    have a slope of L. Stability gives tau <= (n / 2)^(1/2) gamma (Efron and Stein), which says
    nothing at the stability D n^(-1/2) of the best weak gaps. It says something for `gda` where no
    smoothness is known, in n^2 rounds: 1.20 and 0.40 at n = 10^3 and 10^4, for modulus 1/2, L = 1,
    d = 10, epsilon = 1 and two unit balls, where any point has 2.83.

    Args:
      weak: mean over the coins of the weak gap given them; stability bounds that one.
      bound: L_all.
      deviation: tau.
    """
    check_nonnegative(weak=weak, deviation=deviation)
    check_positive(bound=bound)
    return weak + math.sqrt(2) * bound * deviation


def maximum_generalisation(*, population: int, bound_v: float, modulus: float) -> float:
    """E max_v F_S(w, v) - max_v F(w, v) for a fixed w; [Y], Theorem 4, second line.

    G_v^2 / (2 rho n), an eighth of what is printed. *Proof.* With v* the maximiser of F, F_S(v) <=
    F_S(v*) + <grad F_S(v*) - grad F(v*), v - v*> - (rho / 2) ||v - v*||^2, at most F_S(v*) +
    ||..||^2 / (2 rho), whose mean is G_v^2 / n at most. QED. It is attained.

    Args:
      population: n.
      bound_v: G_v, on the norm of a record's gradient in v.
      modulus: rho, of strong concavity of every F_S in v.
    """
    check_positive(population=population, bound_v=bound_v, modulus=modulus)
    return bound_v**2 / (2 * modulus * population)


def pl_generalisation(*, population: int, optimisation: float, bound_w: float, bound_v: float,
                      smooth: float, pl: float, modulus: float) -> float:
    """R(w) - R_S(w) in expectation, of the primal risk R(w) = max_v F(w, v); [Y], Theorem 4.

        (1 + kappa) G_w (2 (2 e / mu)^(1/2) + 2 (G_w + kappa G_v) / (mu n)),     kappa = L / rho.

    Printed: (1 + kappa) G_w ((e / (2 mu))^(1/2) + (G_w^2 / (4 mu^2) + G_v^2 / (rho mu))^(1/2) / n).
    A function with the PL constant mu grows like (mu / 2) ||w - w*||^2, a quarter of what is used
    there, and both data sets have an output away from their minimiser. The second term is that of
    minimisers: at the other one's, the gradient is at most 2 (G_w + kappa G_v) / n.

    Args:
      population: n.
      optimisation: e, of R_S(w) - min R_S in expectation.
      bound_w: G_w, on the norm of a record's gradient in w.
      bound_v: G_v, in v.
      smooth: L, of gradients.
      pl: mu, the Polyak-Lojasiewicz constant in w.
      modulus: rho, of strong concavity in v.
    """
    check_positive(population=population, bound_w=bound_w, bound_v=bound_v, smooth=smooth, pl=pl,
             modulus=modulus)
    check_nonnegative(optimisation=optimisation)
    kappa = smooth / modulus
    away = 2 * math.sqrt(2 * optimisation / pl)
    return (1 + kappa) * bound_w * (away + 2 * (bound_w + kappa * bound_v) / (pl * population))


# --- Polyak-Lojasiewicz in w, strongly concave in v ---


def pl_empirical_gap(steps_w: np.ndarray, steps_v: np.ndarray, *, smooth: float, pl: float,
                     modulus: float, variance_w: float, variance_v: float, start: float,
                     diameter_v: float) -> float:
    """E R_S(w_{T+1}) - min R_S of the last iterate, R_S = max_v F_S(., v); for [Y], Theorem 3.

    With kappa = L / rho and H = L + L^2 / rho, a_1 = start and b_1 = D_v^2, it is a_{T+1} of

        a' = (1 - mu s) a + (s / 2) L^2 b + (H / 2) s^2 V_w
        b'^(1/2) = ((1 - rho r)^2 b + r^2 V_v)^(1/2)
                   + kappa s ((L b^(1/2) + (2 H a)^(1/2))^2 + V_w)^(1/2)

    for steps s <= 1 / H of w and r <= 1 / L of v: Lemma 11, derived anew. *Proof.* a_t bounds E R_S
    - min R_S, and b_t the mean square of v_t - u_t, u_t the best response to w_t. R_S is H-smooth
    with grad R_S(w) = grad_w F_S(w, u), u is kappa-Lipschitz in w, and R_S has the PL constant mu,
    as min over w of F_S(w, u_t) is at most min R_S. A step of w has, by smoothness and s <= 1 / H,
    E R_S' <= R_S - (s / 2) ||grad R_S||^2 + (s / 2) ||grad R_S - grad_w F_S||^2 + (H / 2) s^2 V_w,
    which is the first line. For the second, u_t = P(u_t + r grad_v F_S(w_t, u_t)), and a projection
    moves no two points apart. A noiseless step of a rho-strongly concave L-smooth function takes
    two points together by 1 - rho r, so that E ||v_{t+1} - u_t||^2 <= (1 - rho r)^2 b + r^2 V_v.
    The best response moves by at most kappa s ||g_w||, of mean square s^2 kappa^2 (E ||grad_w
    F_S||^2 + V_w), and ||grad_w F_S|| <= ||grad R_S|| + L ||v_t - u_t|| with ||grad R_S||^2 <= 2 H
    (R_S - min R_S). Minkowski twice. Both lines grow in a and b. QED.

    Departures: Lemma 10 takes ||grad_v F_S||^2 <= 2 L (max F_S - F_S), which fails where the best
    response lies on the boundary of V; (1 - rho r)^2 stands for 1 - rho r; Minkowski replaces
    Young's inequality, whose best weight it is. Nothing need be assumed of the ratio of the steps,
    but the number explodes while s exceeds r / c of `sgda.theorem3_step`: a cap of 1 / (L c) on s
    keeps that ratio from the first round.

    w must not be projected. If gradients are bounded or clipped, the number bounds the mean over
    those runs in which no record was clipped until then, times their probability: multiply a and b
    by the indicator of this, which never grows.

    Args:
      steps_w: s_1, ..., s_T.
      steps_v: r_1, ..., r_T.
      smooth: L, of the operator of F_S.
      pl: mu, of F_S(., v) for every v.
      modulus: rho, of strong concavity in v.
      variance_w: V_w, of a release around grad_w F_S: d_w sigma_w^2 for full batches.
      variance_v: V_v.
      start: on R_S(w_1) - min R_S; ||grad R_S(w_1)||^2 / (2 mu) always is.
      diameter_v: D_v, on the distance of v_1 from its best response.

    Raises:
      ValueError: for numbers out of range, or steps that the bound is not for.
    """
    check_positive(smooth=smooth, pl=pl, modulus=modulus)
    check_nonnegative(variance_w=variance_w, variance_v=variance_v, start=start,
                      diameter_v=diameter_v)
    curved = smooth + smooth**2 / modulus
    _short(float(np.max(steps_w)), curved)
    _short(float(np.max(steps_v)), smooth)
    a, away = start, diameter_v  # away is the root of b
    for s, r in zip(steps_w, steps_v, strict=True):
        slope = math.sqrt((smooth * away + math.sqrt(2 * curved * a)) ** 2 + variance_w)
        a, away = ((1 - pl * s) * a + s / 2 * (smooth * away) ** 2 + curved / 2 * s**2 * variance_w,
                   math.hypot((1 - modulus * r) * away, r * math.sqrt(variance_v))
                   + smooth / modulus * s * slope)
        if a + away > 1e100:
            return math.inf
    return float(a)


def pl_excess_risk(*, population: int, optimisation: float, bound_w: float, bound_v: float,
                   smooth: float, pl: float, modulus: float) -> float:
    """E R(w) - min R on the population, R = max_v F(., v); [Y], Theorem 5, as a number.

    `pl_empirical_gap`, `pl_generalisation` and `maximum_generalisation` at the minimiser of R. No
    plan prints it, because no problem meets all that it assumes. *Proof.* Theorem 3 needs the PL
    inequality on all of R^d, Theorem 4 gradients of norm G_w there. Then F - min F <= G_w^2 / (2
    mu) everywhere, while along gradient ascent F - min F grows at least like e^(2 mu t). So F(., v)
    is constant. QED. Read it as the number of runs that stay where gradients are bounded.

    Args:
      population: n.
      optimisation: e, from `pl_empirical_gap`.
      bound_w: G_w, where runs and minimisers are.
      bound_v: G_v.
      smooth: L.
      pl: mu.
      modulus: rho.
    """
    return (optimisation + maximum_generalisation(population=population, bound_v=bound_v,
                                                  modulus=modulus)
            + pl_generalisation(population=population, optimisation=optimisation, bound_w=bound_w,
                                bound_v=bound_v, smooth=smooth, pl=pl, modulus=modulus))


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
    check_positive(modulus=modulus, bound_w=bound_w, bound_v=bound_v, radius_w=radius_w,
             radius_v=radius_v, rounds=rounds)
    checks.count("dim_w", dim_w)
    checks.count("dim_v", dim_v)
    check_nonnegative(deviation=deviation, offset=offset)
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
    check_positive(dim=dim, bound=bound, diameter=diameter, step=step, rounds=rounds)
    check_nonnegative(deviation=deviation)
    if smooth is not None:
        _short(step, smooth, 1 / math.sqrt(3))
    second = bound**2 + dim * deviation**2
    return (diameter**2 + 7 * rounds * step**2 * second) / (rounds * step)


def extragradient_noise(*, dim: int, deviation: float, rounds: int, failure: float) -> float:
    """What the noise of T rounds adds up to with probability 1 - theta; [B], (4.11).

    2 T d^(1/2) sigma + 2 sigma (T ln(1 / theta))^(1/2): the sum of norms is (2 T)^(1/2) sigma-
    Lipschitz in the noise. The printed deviation lacks T^(1/2).

    Args:
      dim: d.
      deviation: sigma, on one coordinate.
      rounds: T.
      failure: theta.
    """
    check_positive(dim=dim, rounds=rounds)
    check_nonnegative(deviation=deviation)
    checks.number("failure", failure, low=0.0, high=1.0)
    return (2 * rounds * math.sqrt(dim) * deviation
            + 2 * deviation * math.sqrt(rounds * math.log(1 / failure)))


def extragradient_weak_gap(*, population: int, dim: int, bound: float, smooth: float,
                           diameter: float, step: float, rounds: int, deviation: float) -> float:
    """Weak gap of `extragradient` on single draws, T = n^2; [B], Theorem 4, as a number.

    `extragradient_gap`, of draws with replacement from the records, and `extragradient_stability`.
    `sgda` with many passes has a smaller number wherever both apply.

    Args:
      population: n.
      dim: d, of both players together.
      bound: M.
      smooth: L.
      diameter: D.
      step: gamma.
      rounds: T.
      deviation: sigma, of the noise on one coordinate of a release.
    """
    return weak_gap(
        empirical=extragradient_gap(dim=dim, bound=bound, diameter=diameter, step=step,
                                    rounds=rounds, deviation=deviation, smooth=smooth),
        stability=extragradient_stability(population=population, dim=dim, bound=bound,
                                          smooth=smooth, diameter=diameter, step=step,
                                          rounds=rounds, deviation=deviation), bound=bound)


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
    check_positive(dim=dim, bound=bound, diameter=diameter, prox=prox, rounds=rounds)
    check_nonnegative(smooth=smooth, deviation=deviation, inexact=inexact)
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
    check_positive(population=population, dim=dim, bound=bound, diameter=diameter)
    privacy = 0.0
    if epsilon is not None:
        check_positive(epsilon=epsilon)
        privacy = min(1.0, math.sqrt(dim) / (epsilon * population))
    return bound * diameter * (population**-0.5 + privacy)


def two_point_lower_bound(*, population: int, bound: float, diameter: float, tilt: float,
                          epsilon: float | None, delta: float = 0.0) -> float:
    """A gap that no private algorithm beats on both of two populations, with its constant.

    Records are the constant operators M or -M on an interval of length D, M with probability (1 +
    tau) / 2 in one population and (1 - tau) / 2 in the other. For every (epsilon, delta)-private
    algorithm, of neighbours by replacing a record, the mean of its two expected strong gaps is at
    least

        (tau M D / 2) (1 - V),    V <= min{TV(Bin(n, (1 + tau) / 2), Bin(n, (1 - tau) / 2)),
                                           E min{1, tv(K)}},    K ~ Bin(n, tau),

    tv(k) = (e^(k epsilon) - 1 + 2 delta_k) / (e^(k epsilon) + 1) and delta_k = delta (e^(k epsilon)
    - 1) / (e^epsilon - 1). *Proof.* The gap of u in the populations is tau M (D / 2 +- u), whose
    sum is tau M D. So the mean of the two expected gaps is tau M D / 2 less half of tau M (E_- u -
    E_+ u), at most tau M D V / 2 for V the total variation of the two outputs. The number of
    positive records is sufficient, hence the first term. For the other, a coupling of the data sets
    replaces each record with probability tau, and outputs of data sets that differ in k records
    are (k epsilon, delta_k)-close, hence within tv(k) in total variation. QED. Best over tau, it is
    of order M D n^(-1/2), and of order M D / (epsilon n) where that is larger: d = 1 in [B],
    Proposition 11, whose constants are not printed.

    Args:
      population: n.
      bound: M.
      diameter: D.
      tilt: tau in (0, 1].
      epsilon: None without privacy.
      delta: of the privacy.
    """
    check_positive(population=population, bound=bound, diameter=diameter, tilt=tilt)
    checks.number("tilt", tilt, low=0.0, high=1.0, closed=True)
    check_nonnegative(delta=delta)
    k = np.arange(population + 1)
    law = scipy.stats.binom.pmf
    apart = float(np.sum(np.abs(law(k, population, (1 + tilt) / 2)
                                - law(k, population, (1 - tilt) / 2)))) / 2
    if epsilon is not None:
        check_positive(epsilon=epsilon)
        grown = np.expm1(np.minimum(k * epsilon, 700.0))
        close = np.minimum(1.0, (grown + 2 * delta * grown / math.expm1(epsilon)) / (grown + 2))
        apart = min(apart, float(law(k, population, tilt) @ close))
    return tilt * bound * diameter / 2 * max(0.0, 1 - apart)


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
    check_positive(population=population, groups=groups)
    return lower_bound(population=max(1, population // groups), dim=dim, bound=lipschitz,
                       diameter=diameter, epsilon=epsilon)
