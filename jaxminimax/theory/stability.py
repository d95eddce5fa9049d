"""Stability of outputs, and what follows from it for their gaps; sources in `theory`."""

import math

from jaxminimax.theory._numbers import nonnegative, positive, short

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
    positive(population=population, modulus=modulus, bound=bound, rounds=rounds)
    nonnegative(offset=offset)
    apart = 2 * bound / population
    if smooth is None:
        return apart / modulus + 4 * bound / modulus * math.sqrt(
            math.log(math.e * rounds) / rounds)
    positive(smooth=smooth)
    distance, total = 0.0, 0.0
    for t in range(1, int(rounds) + 1):
        total += distance
        s = t + offset
        factor = 1 - 2 / s + (smooth / (modulus * s)) ** 2
        distance = math.sqrt(max(factor, 0.0)) * distance + apart / (modulus * s)
    return total / rounds


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
    nonnegative(distance=distance, apart=apart, smooth=smooth)
    positive(step=step, diameter=diameter)
    short(step, smooth)
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
    positive(population=population, dim=dim, bound=bound, diameter=diameter, step=step,
             rounds=rounds)
    nonnegative(smooth=smooth, deviation=deviation)
    short(step, smooth)
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
    positive(population=population, bound=bound, prox=prox, rounds=rounds, batch=batch)
    nonnegative(slack=slack, modulus=modulus)
    mu = prox + modulus
    each = 2 * bound / (population * mu) + 2 * slack * bound / (batch * mu)
    keeps = prox / mu
    if modulus / mu * rounds < 1e-6:  # where the sum below would be a difference of equals
        return each * (rounds + 1) / 2
    return each / (1 - keeps) * (1 - keeps * (1 - keeps**rounds) / (rounds * (1 - keeps)))


# --- from stability to gaps ---


def weak_gap(*, empirical: float, stability: float, bound: float, saddle: bool = True) -> float:
    """Weak gap on the population; [B], Proposition 2, and [K], Theorem 3 (a), in expectation.

    empirical + 2^(1/2) G gamma for saddle points, whose players' gradients are compared at two
    points, and empirical + G gamma for variational inequalities.

    Args:
      empirical: strong gap on the records that were used.
      stability: gamma.
      bound: G, on the norm of a record's operator, players together.
      saddle: whether gaps are of saddle points.
    """
    nonnegative(empirical=empirical, stability=stability)
    positive(bound=bound)
    return empirical + (math.sqrt(2) if saddle else 1.0) * bound * stability


def strong_gap(*, empirical: float, stability: float, bound: float, smooth: float,
               modulus: float) -> float:
    """Strong gap on the population; [K], Theorem 3 (b) to (d), in expectation.

    empirical + 2^(1/2) (1 + l / rho) G gamma: best responses of a rho-strongly concave player are
    (l / rho)-Lipschitz, so the risk of (w, best response to w) generalises too, and that of the
    other player. The printed bounds hold with high probability, at the price of log n and of
    comparing with a multiple of the risk.

    Args:
      empirical: strong gap on the records that were used.
      stability: gamma.
      bound: G, on the norm of a player's gradient.
      smooth: l, the operator's Lipschitz constant.
      modulus: rho, of strong convexity and strong concavity.
    """
    nonnegative(empirical=empirical, stability=stability)
    positive(bound=bound, smooth=smooth, modulus=modulus)
    return empirical + math.sqrt(2) * (1 + smooth / modulus) * bound * stability


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
    positive(population=population, bound_w=bound_w, bound_v=bound_v, smooth=smooth, pl=pl,
             modulus=modulus)
    nonnegative(optimisation=optimisation)
    kappa = smooth / modulus
    away = 2 * math.sqrt(2 * optimisation / pl)
    return (1 + kappa) * bound_w * (away + 2 * (bound_w + kappa * bound_v) / (pl * population))
