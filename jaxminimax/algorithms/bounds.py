"""Bounds of theorems as numbers, from which plans take their guarantees and best steps.

Functions are of public numbers and read no data. Two constants stay apart everywhere: L bounds
the norm of a record's operator G_x (the clip norm), and P that of the operator r of the public
terms, `Problem.public`; L_all = L + P. Sampling errors, noise and the exchange of records see G_x
alone, because r cancels in them. L_all stands in second moments of steps, and where a gap is
compared at two points:

    sup_u <F(z), z - u>  is L_all-Lipschitz in z for a fixed F(z), and saddle gaps are
    2^(1/2) L_all-Lipschitz; any point at all has a gap of at most L_all D.                    (G)

**Lemma (J).** A set of diameter D lies in a ball of radius D / 2^(1/2) (Jung), and in one of radius
R, the largest distance of a point from the start. Let rho_D = min{R, D / 2^(1/2)}, and c the centre
of that ball. Let y_t be martingale differences in l2 with E||y_t||^2 <= V_t, z_t fixed before y_t,
and a_t numbers. Then  E sup_u sum_t a_t <y_t, u - z_t>  <=  rho_D (sum a_t^2 V_t)^(1/2).
*Proof.* u - z_t = (u - c) + (c - z_t). The second part has mean 0, and the first is at most rho_D
||sum a_t y_t||, where E||.|| <= (E||.||^2)^(1/2) and squares of differences add up. QED. (In
l-infinity they do not, unless the sum is Gaussian.)

**Theorem (A).** Let z_{t+1} = P(z_t - eta g_t), E[g_t | past] = F(z_t) for a monotone F, E||g_t||^2
<= G^2, and V bound E||g_t - F(z_t)||^2. The mean of z_1, ..., z_T has an expected strong gap of at
most

    R^2 / (2 eta T)  +  (eta / 2) G^2  +  rho_D (V / T)^(1/2).

*Proof.* The projections give sum <g_t, z_t - u> <= R^2 / (2 eta) + (eta / 2) sum ||g_t||^2 for
every u of the set, (J) bounds sum <g_t - F(z_t), u - z_t>, and F is monotone. QED. Extragradient
and optimistic steps have the same bound with another G^2, see there.

Sources: [K] Kang, Liu, Li and Wang, arXiv:2204.04858; [B] Boob and Guzman, arXiv:2104.02988; [Y]
Yang, Hu, Lei, Varshney, Lyu and Ying, UAI 2022; [Z] Zhou and Bassily, ICML 2024. The functions say
where a formula differs from the printed one.
"""

import math

import numpy as np

from jaxminimax.algorithms.planning import check_numbers
from jaxminimax.base import checks


def reaches(diameter: float, radius: float | None = None) -> tuple[float, float]:
    """Returns R and rho_D of Lemma (J).

    Args:
      diameter: D, the diameter of the set.
      radius: R, the largest distance of a point of the set from the start; None for D.

    Raises:
      ValueError: for a radius that is not positive, or above the diameter.
    """
    if radius is None:
        return diameter, diameter / math.sqrt(2)
    checks.number("radius", radius, low=1e-300, high=diameter * (1 + 1e-9), closed=True)
    return radius, min(radius, diameter / math.sqrt(2))


# --- averages of steps along noisy operators ---


def average_gap(*, step: float, rounds: int, second: float, variance: float, diameter: float,
                radius: float | None = None) -> float:
    """The bound of Theorem (A), see the module: R^2 / (2 eta T) + eta G^2 / 2 + rho_D (V/T)^(1/2).

    Args:
      step: eta.
      rounds: T.
      second: G^2, the second moment of a step's operator.
      variance: V, of the part that has mean 0.
      diameter: D.
      radius: R; None for D.
    """
    distance, ball = reaches(diameter, radius)
    return (distance**2 / (2 * step * rounds) + step * second / 2
            + ball * math.sqrt(variance / rounds))


def best_step(*, rounds: int, second: float, diameter: float, radius: float | None = None) -> float:
    """The step R / (T G^2)^(1/2) of the smallest bound of Theorem (A)."""
    return reaches(diameter, radius)[0] / math.sqrt(rounds * second)


def fresh_variance(*, bound: float, batch: float, dim: int, multiplier: float,
                   spread: float = 1.0) -> float:
    """V = spread L^2 / B + d (z L / B)^2 of the noisy mean of B fresh records, or of a sample.

    Args:
      bound: L.
      batch: B.
      dim: d, of both players together.
      multiplier: z, the noise multiplier.
      spread: of the sampling, see `Sampling.spread`; 1 for fresh records.
    """
    return spread * bound**2 / batch + dim * (multiplier * bound / batch) ** 2


def with_redraws(gap: float, shortfall: float, *, bound: float, diameter: float,
                 public_bound: float = 0.0) -> float:
    """The bound `gap` for Poisson samples, which are drawn again until they fit their slots.

    A record is drawn with probability q (1 - p_0), so that E[g | past] = (1 - p_0) F_S + r, p_0 the
    sampling's `shortfall`. Without public terms this is (1 - p_0) times
    the mean operator, and so are the gaps that a bound is on; with them it differs from the mean
    operator by p_0 F_S, of norm p_0 L at most. The second moment of a sample's size only falls, and
    so do bounds on that of a release; its variance is that of `Sampling.spread`.

    Args:
      gap: for samples that always fit.
      shortfall: p_0.
      bound: L.
      diameter: D.
      public_bound: P; 0 for no public terms.
    """
    return gap / (1 - shortfall) if public_bound == 0 else gap + shortfall * bound * diameter


def bilinear_sampling(*, population: int, start: float, slope: float, diameter: float,
                      radius: float) -> float:
    """E sup_z (gap on the population - gap on the records) of a bilinear game, in place of [B].

        D (L_0 + L_1 R) n^(-1/2)

    for losses a w + w A v - b v of the records, with ||G_x(z_1)|| <= L_0 and ||A||_F <= L_1, and
    any public terms. *Proof.* Public terms cancel. For bilinear f, f(w, v_u) - f(w_u, v) is <G(z),
    z - u>, so the gaps differ by at most sup_u <Delta(z), z - u>, Delta the error of the records'
    mean operator. Delta(z) - Delta(z_1) = (dA (v - v_1), -dA^T (w - w_1)) is at most ||dA||_F R, E
    ||dA||_F <= L_1 n^(-1/2) and E||Delta(z_1)|| <= L_0 n^(-1/2), whatever z is. QED.

    Args:
      population: n.
      start: L_0, on the norm of a record's operator at the start.
      slope: L_1, on the Frobenius norm of a record's matrix A.
      diameter: D.
      radius: R.
    """
    return diameter * (start + slope * radius) / math.sqrt(population)


# --- stability ---


def contraction_stability(steps: np.ndarray, weights: np.ndarray, *, modulus: float, smooth: float,
                          apart: float) -> float:
    """Distance of two weighted averages of descent-ascent, on operators that differ by `apart`.

    d_{t+1} = (1 - 2 eta_t rho + (eta_t l)^2)^(1/2) d_t + eta_t apart, averaged: F is rho-strongly
    monotone and l-Lipschitz on its own, and noise cancels between two runs with one key.

    Args:
      steps: eta_1, ..., eta_T.
      weights: of z_1, ..., z_T in the average.
      modulus: rho.
      smooth: l.
      apart: 2 L / n for a replaced record.
    """
    factors = np.sqrt(np.maximum(1 - 2 * steps * modulus + (steps * smooth) ** 2, 0.0))
    distance, total = 0.0, 0.0
    for factor, step, weight in zip(factors, steps, weights, strict=True):
        total += weight * distance
        distance = factor * distance + step * apart
    return float(total / np.sum(weights))


def descent_stability(*, population: int, bound: float, step: float, rounds: int, batch: float,
                      spread: float, smooth: float | None = None,
                      public_bound: float = 0.0) -> float:
    """E ||average(S) - average(S')|| of `sgda` on Poisson samples; in place of [Y], Lemma 6.

    With x = eta l (1 + (1 - q) / m)^(1/2), q the rate and m = q n,

        (2 eta L / n) mean_{t < T} ((1 + x^2)^(t/2) - 1) / ((1 + x^2)^(1/2) - 1),    if smooth, and
        (4/3) eta L_all (1 + (1 - q) / m)^(1/2) T^(1/2)  +  eta L T / n    if not,

    for records whose operators are monotone, each of them, as a sample is any set of them.
    *Proof.* Couple samples and noise, d_t the distance of the two runs, d_1 = 0. Without the
    replaced record the operator of a step is monotone, and (|B| / m) l_records + l_public-
    Lipschitz, whose mean square is at most l^2 (1 + (1 - q) / m), so E d'^2 <= (1 + x^2) d_t^2.
    The record is drawn with probability q at most and adds 2 eta L / m: E d_{t+1} <= (1 +
    x^2)^(1/2) E d_t + 2 eta L / n. Not smooth, the operators g and g' of the two runs keep <z - z',
    g - g'> >= -(2 L / m) d_t, which is 0 unless the record is drawn, and ||g - g'|| <= 2 (|B| L / m
    + P). So e_t^2 = E d_t^2 obeys e_{t+1}^2 <= (e_t + 2 eta L / n)^2 + 4 eta^2 L_all^2 (1 + (1 - q)
    / m), hence e_{t+1} <= 2 eta L_all (..)^(1/2) t^(1/2) + 2 eta L t / n by induction, and the mean
    of t^(1/2) over t < T is at most (2/3) T^(1/2). QED. Lemma 6 takes second moments throughout,
    which makes it 10 to 20 times as large.

    Args:
      population: n.
      bound: L.
      step: eta.
      rounds: T.
      batch: m.
      spread: 1 - q.
      smooth: l, of a record's operator and the public terms together; None: not known.
      public_bound: P, where `smooth` is not known.
    """
    wider = 1 + spread / batch
    if smooth is None:
        return (4 / 3 * step * (bound + public_bound) * math.sqrt(wider * rounds)
                + step * bound * rounds / population)
    rate = math.log1p((step * smooth) ** 2 * wider) / 2
    if rate * rounds > 300:
        return math.inf
    grown = float(np.mean(np.expm1(rate * np.arange(rounds)))) / math.expm1(rate)
    return 2 * step * bound / population * grown


def weak_gap(*, empirical: float, stability: float, bound: float, saddle: bool = True) -> float:
    """Weak gap on the population; [B], Proposition 2, and [K], Theorem 3 (a), in expectation.

    empirical + 2^(1/2) L gamma for saddle points, whose players' gradients are compared at two
    points, and empirical + L gamma for variational inequalities. gamma is for a fixed draw of
    samples and noise, and so is the weak gap: its mean over these bounds the usual one.

    Args:
      empirical: strong gap on the records that were used.
      stability: gamma.
      bound: L, of a record's operator: public terms cancel.
      saddle: whether gaps are of saddle points.
    """
    check_numbers(bound=bound)
    return empirical + (math.sqrt(2) if saddle else 1.0) * bound * stability


def strong_gap(*, empirical: float, stability: float, bound: float, smooth: float,
               modulus: float) -> float:
    """Strong gap on the population; [K], Theorem 3 (b) to (d), in expectation.

    empirical + 2^(1/2) (1 + l / rho) L gamma: best responses of a rho-strongly concave player are
    (l / rho)-Lipschitz, so the risk of (w, best response to w) generalises too, and that of the
    other player. The printed bounds hold with high probability, at the price of log n and of
    comparing with a multiple of the risk.

    Args:
      empirical: strong gap on the records that were used.
      stability: gamma.
      bound: L, of a record's operator: public terms cancel.
      smooth: l, the operator's Lipschitz constant, public terms included.
      modulus: rho, of strong convexity and strong concavity.
    """
    check_numbers(bound=bound, smooth=smooth, modulus=modulus)
    return empirical + math.sqrt(2) * (1 + smooth / modulus) * bound * stability


# --- strongly monotone games, full batches: `gda` ---


class WeightedDescent:
    """`gda` with steps eta_t = 2 / (rho (t + phi + 1)), phi >= (l / rho)^2 - 2, and weights t.

    With A = T (T + 1) / 2, S = d sigma^2 and c_t = t / (rho (t + phi + 1)),

        empirical strong gap  <=  (rho phi T D^2 / 4 + (L_all^2 + S) sum c_t
                                   + rho_D (S sum t^2)^(1/2)) / A,

    of order 2 (L_all^2 + S) / (rho T): no logarithm, where steps 1 / (rho t) and equal weights have
    ln T. *Proof.* Strong convexity and concavity of the mean loss give <F(z_t), z_t - u> >= f(w_t,
    v_u) - f(w_u, v_t) + (rho / 2) d_t, d_t = ||z_t - u||^2, and a step <g_t, z_t - u> <= (d_t -
    d_{t+1}) / (2 eta_t) + eta_t ||g_t||^2 / 2. Times t and summed, d_t has the factor (rho / 4) (t
    (t + phi + 1) - 2 t - (t - 1) (t + phi)) = rho phi / 4, and t eta_t / 2 = c_t. Noise meets (J)
    with a_t = t. QED. Stability is `contraction_stability`, and `strong_gap` leads from there to
    the population.

    Attributes:
      steps: eta_t.
      weights: t.
    """

    def __init__(self, *, rounds: int, dim: int, bound: float, public_bound: float, smooth: float,
                 modulus: float, diameter: float, deviation: float, offset: float,
                 radius: float | None = None) -> None:
        """Keeps the numbers: sigma is `deviation`, of the noise on a coordinate of a mean."""
        self.weights = np.arange(1.0, rounds + 1)
        self.steps = 2 / (modulus * (self.weights + offset + 1))
        self.bound, self.smooth, self.modulus, self.noise = bound, smooth, modulus, deviation
        self._total, self._dim = bound + public_bound, dim
        self._kept = modulus * offset * rounds * diameter**2 / 4
        self._ball = reaches(diameter, radius)[1]
        self._all = rounds * (rounds + 1) / 2
        self._shares = self.weights * self.steps / 2  # c_t

    def empirical(self) -> float:
        """The expected strong gap on the records themselves."""
        noise = self._dim * self.noise**2
        return (self._kept + (self._total**2 + noise) * float(np.sum(self._shares))
                + self._ball * math.sqrt(noise * float(np.sum(self.weights**2)))) / self._all

    def expected(self, population: int) -> float:
        """The expected strong gap on the population."""
        gamma = contraction_stability(self.steps, self.weights, modulus=self.modulus,
                                      smooth=self.smooth, apart=2 * self.bound / population)
        return strong_gap(empirical=self.empirical(), stability=gamma, bound=self.bound,
                          smooth=self.smooth, modulus=self.modulus)

    def likely(self, population: int, failure: float) -> float:
        """The strong gap on the population with probability 1 - `failure`, in place of [K].

        With x = ln(5 / failure), the gap on the records is at most the sum of empirical()'s terms
        with

            S sum c_t          + 2 L_all sigma (2 x sum c_t^2)^(1/2)
                               + sigma^2 (2 (d x sum c_t^2)^(1/2) + 2 x max c_t)       added, and
            rho_D sigma (sum t^2)^(1/2) (d^(1/2) + 2 (2 x)^(1/2))       for the last one,

        and that on the population at most 2^(1/2) L_all ((2 gap / rho)^(1/2) + (L / rho) (1 + (2
        x)^(1/2)) n^(-1/2)). *Proof.* Five events of probability failure / 5. ||g_t||^2 is at most
        L_all^2 + 2 <F(z_t), y_t> + ||y_t||^2, y_t Gaussian: the weighted sum of the second terms is
        a martingale with Gaussian differences, that of the third a weighted chi-square (Laurent and
        Massart). sup_u sum t <y_t, u - z_t> is at most rho_D ||sum t y_t||, a Gaussian's norm, plus
        the martingale sum t <y_t, c - z_t>. Strong monotonicity turns the gap on the records into
        ||z - z_S||^2 <= 2 gap / rho, z_S their saddle point. And rho ||z_S - z*|| <= ||F_S(z*) -
        F(z*)|| by the inequalities of both: it has a mean of at most L n^(-1/2) and moves by 2 L /
        n with a record (McDiarmid). Gaps are 2^(1/2) L_all-Lipschitz by (G), and that of z* is 0.
        QED. The sampling term of [K] is 66, 8.7 and 1.1 where this one is 0.62, 0.19 and 0.062 (n =
        10^3, 10^4, 10^5), of a trivial 4.8.
        """
        x, noise, c = math.log(5 / failure), self.noise, self._shares
        square = float(np.sum(c**2))
        more = (2 * self._total * noise * math.sqrt(2 * x * square) + noise**2 * (
            2 * math.sqrt(self._dim * x * square) + 2 * x * float(np.max(c))))
        along = self._ball * noise * math.sqrt(8 * x * float(np.sum(self.weights**2)))
        gap = self.empirical() + (more + along) / self._all
        sampled = self.bound / self.modulus * (1 + math.sqrt(2 * x)) / math.sqrt(population)
        return math.sqrt(2) * self._total * (math.sqrt(2 * gap / self.modulus) + sampled)


# --- weights of groups ---


def bandit_regret(*, groups: int, rounds: int, bound: float, scale: float, room: float,
                  step: float) -> float:
    """The largest, over groups i, expected regret of `group_oco`'s weights against i; for [Z].

    With U = B + b u and estimates l_t = max{U - y_t, 0} / v_t of the drawn group's noisy loss y_t,

        ln p / (eta T) + (eta / 2) p (U^2 + 2 b^2) + (b / 2) e^(-u).

    *Proof.* e^(-x) <= 1 - x + x^2 / 2 for x >= 0 gives sum <v_t, l_t> - l_{t,i} <= ln p / eta +
    (eta / 2) sum v_t l_t^2 for a fixed i. The conditional mean of an estimate is E max{U - y, 0},
    at least U - L_i and at most (b / 2) e^(-u) above it, and that of v_t l_t^2 sums to p (U^2 + 2
    b^2) at most. QED. [Z] bounds the regret against the best group in hindsight by that against a
    fixed one, which bandit estimates do not allow, so the maximum stands outside of the expectation
    here.

    Args:
      groups: p.
      rounds: T.
      bound: B, losses lie in [0, B] unclipped.
      scale: b, of the Laplace noise.
      room: u.
      step: eta.
    """
    if groups == 1:
        return 0.0  # its weight stays 1
    log_groups = math.log(groups)
    top = bound + scale * room
    return (log_groups / (step * rounds) + step / 2 * groups * (top**2 + 2 * scale**2)
            + scale / 2 * math.exp(-room))


def weights_regret(*, groups: int, rounds: int, bound: float, scale: float, gaussian: bool,
                   step: float) -> float:
    """E of the weights' regret against the worst group in `group_sgd`; for [Z], Theorem 10.

    With psi(x) the logarithm of E e^(x noise), s^2 x^2 / 2 for Gaussian and -ln(1 - b^2 x^2) for
    Laplace noise,

        ln p / (eta T) + eta B^2 / 8 + psi(eta) / eta + min over x of (ln p + T psi(x)) / (x T).

    *Proof.* max_i sum y_{t,i} <= ln p / eta + sum (1/eta) ln sum_i v_{t,i} e^(eta y_{t,i}), for y_t
    = L(w_t) + noise. By Jensen the mean of a term, given the past, is at most <v_t, L(w_t)> + eta
    B^2 / 8 + psi(eta) / eta (Hoeffding), and E max_i sum (-noise_{t,i}) is at most the last term.
    QED. For Gaussian noise that is s (2 ln p / T)^(1/2). Infinite for Laplace noise with eta b >=
    1.

    Args:
      groups: p.
      rounds: T.
      bound: B.
      scale: s or b, of the smallest group's noisy mean loss.
      gaussian: whether noise is Gaussian.
      step: eta.
    """
    log_groups = math.log(groups)

    def psi(x: float) -> float:
        if gaussian:
            return (scale * x) ** 2 / 2
        return -math.log1p(-((scale * x) ** 2)) if scale * x < 1 else math.inf

    noise = 0.0
    if log_groups and scale:
        x = (math.sqrt(2 * log_groups / rounds) if gaussian else min(
            math.sqrt(log_groups / rounds), 0.9)) / scale
        noise = (log_groups + rounds * psi(x)) / (x * rounds)
    return log_groups / (step * rounds) + step * bound**2 / 8 + psi(step) / step + noise


def selection_regret(*, groups: int, scale: float) -> float:
    """E of max_i L_i less the loss of the chosen group in `active_groups`; for [Z], Theorem 14.

    b ln p with Gumbel noise of scale b: the chosen group's L + noise is largest, so the difference
    is at most the chosen noise less that of the truly worst group, whose mean is at most E max
    noise - E noise = b ln p.
    """
    return scale * math.log(groups)
