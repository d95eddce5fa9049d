"""Two Gaussians of unit variance, and samples of a fixed size with Gaussian noise.

**Two Gaussians** mu apart: delta, epsilon and mu, exact but for rounding.

With s = epsilon / mu - mu / 2, t = epsilon / mu + mu / 2 and a = e^epsilon,

    H_a(N(mu, 1) || N(0, 1)) = Phi(-s) - a Phi(-t),

the analytic Gaussian mechanism of Balle and Wang (ICML 2018, theorem 8). As a phi(t) = phi(s), both
terms have the factor phi(s), and with the Mills ratio M = Phi(-.) / phi

    H = phi(s) (M(s) - M(t)),      a Phi(-t) = phi(s) M(t),

which keeps relative accuracy far out in the tail, and has no large exponents that cancel.

Rounding, u = 2^-53: epsilon / mu is off by a part u, which is as if epsilon were, and H falls by a
part of at most a Phi(-t) / H for each unit of epsilon; the rounding of s makes a part s^2 u of
phi(s); ratios, exponentials and the difference are off by a few u of each of its terms. So with

    error = 4 u ((4 + s^2) H + (8 + epsilon) a Phi(-t)),   s > 0,

H lies within `error` of what is computed. For s <= 0 the first term is Phi(-s) itself, which moves
by |s| phi(s) u < u / 4, and s^2 goes with the second. What is returned is on the private side by
that error, and no more. Both are tested against 70 digits for mu from 1e-18 to 1e9: a smaller
positive mu counts as 1e-18, and a larger one as no noise. Below 1e-306 numbers lose digits: there a
divergence counts as 1e-306, and an epsilon as infinite.

**Samples of a fixed size**, with and without replacement, for a record that is replaced.

A release is f(batch) + N(0, sigma^2 I). The map f may depend on everything released before
and moves by at most D (L2) when one slot of the batch is replaced, hence by at most k D for k of
them. Neighbouring data sets differ in one of n records, n public. With z = sigma / D and

    delta_k(g) = H_g(N(k / z, 1) || N(0, 1)),      H_a(P || Q) = integral of (P - a Q)_+,

every ordered pair of neighbours satisfies for a >= 1

    without replacement   H_a <= q delta_1(1 + (a - 1) / q),   q = m / n;
    with replacement      H_a <= min { sum_{k >= 1} w_k delta_k(g_k) :
                                       g_k >= a, sum_{k >= 1} w_k g_k = a - w_0 },
                          w_k = P[Binomial(m, 1/n) = k],

and for a < 1 the reflection H_a <= 1 - a + a h(1 / a), h the bound above.

Why. Without replacement: draw m of the other n - 1 records, then with probability q swap a uniform
member for the record in question; this is the uniform subset. Condition on the others and use
convexity of H in its second argument, then jointly. With replacement: draw a substitute for every
slot and independent hits of probability 1/n; condition on the substitutes; the common part
(a - 1) w_0 of Q may be shared among the multiplicities in any way, and the best way is the minimum
above, g_k = max(a, exp(mu_k x - mu_k^2 / 2)) with mu_k = k / z for one x ("water-filling"). Both
functions, glued with their reflections, are convex with the right kink at 1, so each is the profile
of one dominating pair, and its T-fold convolution bounds T adaptive releases, also with releases
that use other coins. Nothing here may be used for two queries on one and the same minibatch.

The bound without replacement is attained for every a; the one with replacement at a = 1 and nearly
so where m is far below n. Self-composing the library's add and remove pairs instead is no bound: an
adaptive choice of the other records beats it.

Sources: Balle, Barthe and Gaboardi, "Privacy amplification by subsampling: tight analyses via
couplings and divergences", NeurIPS 2018; Zhu, Dong and Wang, "Optimal accounting of differential
privacy via characteristic function", AISTATS 2022; Lebeda, Regehr, Kamath and Steinke, "Avoiding
pitfalls for privacy accounting of subsampled mechanisms under composition", arXiv:2405.20769. The
minimum over g is sharper than the single threshold of the first.
"""

import math

import numpy as np
import scipy

from jaxminimax.accounting import roots
from jaxminimax.mechanism import size_law

_LEAST = 1e-306
_SMALLEST, _LARGEST = 1e-18, 1e9  # of mu
_TABLE = 2000  # places at which the water level is solved from afar; between them from nearby


def _mills(x: np.ndarray | float) -> np.ndarray:
    # M(x) = Phi(-x) / phi(x) = (pi / 2)^(1/2) erfcx(x / 2^(1/2))
    return math.sqrt(math.pi / 2) * scipy.special.erfcx(x / math.sqrt(2))


def _divergence(mu: float, epsilon: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """H at e^epsilon as computed, and a bound on its error."""
    mu = max(mu, _SMALLEST)
    s, t = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    square, near = s * s, s <= 0
    with np.errstate(under="ignore"):
        density = np.exp(-square / 2) / math.sqrt(2 * math.pi)
        # phi(s) M(t) = a Phi(-t)
        second = density * _mills(t)
        # Phi(-s) - a Phi(-t) for s <= 0, else phi(s) (M(s) - M(t))
        value = np.where(near, scipy.special.ndtr(-s) - second,
                         density * (_mills(np.maximum(s, 0.0)) - _mills(t)))
        # 4 u ((4 + s^2) H + (8 + epsilon) a Phi(-t)); s^2 goes with the second for s <= 0
        moved = np.where(near, (12 + epsilon + square) * second, (8 + epsilon) * second)
        error = 2.0**-51 * (np.where(near, 5.0, 4 + square) * np.maximum(value, 0.0) + moved)
    return value, error


def delta(mu: float, epsilon: np.ndarray | float) -> np.ndarray:
    """H at e^epsilon, rounded up.

    Args:
      mu: at least 0; infinity without noise.
      epsilon: at least 0, any shape.
    """
    epsilon = np.asarray(epsilon, np.float64)
    if mu == 0:
        return np.zeros_like(epsilon)
    if mu > _LARGEST:
        return np.ones_like(epsilon)
    value, error = _divergence(mu, epsilon)
    # the upper end of what is computed: delta is charged, so it is rounded up
    return np.clip(value + error, _LEAST, 1.0)


def epsilon(mu: float, delta: float) -> float:
    """Returns the smallest epsilon whose divergence is at most delta, rounded up."""
    if mu == 0:
        return 0.0
    if mu > _LARGEST or delta <= _LEAST:
        return math.inf
    mu = max(mu, _SMALLEST)

    def exceeds(candidate: float) -> bool:
        value, error = _divergence(mu, candidate)
        return bool(value + error > delta)

    if not exceeds(0.0):
        return 0.0
    # s = 39 at the upper end, beyond which a Gaussian has less than the least delta; of two
    # neighbours, the one that does not exceed delta
    return roots.bisect(exceeds, 0.0, mu * (39.0 + mu / 2))[1]


def closest_mu(epsilon: float, divergence: float) -> float:
    """Returns the smallest mu whose divergence at e^epsilon is at least that, rounded up.

    Args:
      epsilon: at least 0.
      divergence: in [0, 1]; close to 1 it needs an infinite mu.
    """
    def short(mu: float) -> bool:
        value, error = _divergence(mu, epsilon)
        # the lower end counts, so that mu is rounded up: H grows with mu
        return bool(value - error < divergence)

    if divergence <= 0:
        return 0.0
    high = roots.grown(short, 1.0, 2.0, 1e6)
    return math.inf if high > 1e6 else roots.bisect(short, 0.0, high)[1]


# --- samples of a fixed size ---


def multiplicities(population: int, batch: int, replacement: bool, people: int = 1,
                   rate: float | None = None, tail: float = 1e-30,
                   ) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Returns the law of the slots that k records take: j and P[j] for j >= 1, P[0], the rest.

    All are rounded so that the bound is one: P[0] down, the others up. For what is feasible with
    more mass on j >= 1 and less to share is feasible with the true masses, and costs no less.
    `rate` is of a sampler, `PrivacyLoss.rate`; None: as described, m / n or, a draw, 1 / n. Without
    replacement it is for one record.
    """
    if not replacement and people > 1:
        law = size_law.hypergeometric(population, people, batch)
    else:
        rate_of_one = (1 if replacement else batch) / population if rate is None else rate
        # k of them: Binomial(m, k p) slots with replacement; without, one slot with probability p
        hit, both = float(rate_of_one).as_integer_ratio()
        law = size_law.binomial(batch if replacement else 1, people * hit, both)
    start = max(1 - law.first, 0)  # P[0] is apart
    w = np.array(law.upper[start:])
    # multiplicities 1, 2, ... and, if the law begins later, from there
    j = np.arange(len(w), dtype=float) + max(law.first, 1)
    # at least the probability of all beyond each, and of those not listed
    beyond = (np.append(np.cumsum(w[:0:-1])[::-1], 0.0) + law.rest) * (1 + len(w) * 2.0**-50)
    # the first multiplicity beyond which the mass is next to nothing
    last = int(np.argmax(beyond <= tail)) + 1
    return j[:last], w[:last], law.none, float(beyond[last - 1])


class Profile:
    """The bound on H at e^eps, eps >= 0, for k records of one person; see the module's docstring.

    Args:
      population: n.
      batch: m, at most n without replacement.
      z: noise over the replace-one sensitivity of one slot: sigma / (2 C) for clipped sums.
      replacement: which sampler.
      people: k, at most n - m without replacement; else all k count as hit.
      rate: as in `multiplicities`.

    Raises:
      ValueError: for numbers that describe no such sampler.
    """

    def __init__(self, population: int, batch: int, z: float, replacement: bool, people: int = 1,
                 rate: float | None = None) -> None:
        if not (population >= 1 and batch >= 1 and (replacement or batch <= population)):
            raise ValueError(f"no sample of {batch} of {population} records"
                             f"{'' if replacement else ' without replacement'} exists.")
        if not (z > 0 and math.isfinite(z)):
            raise ValueError(f"z must lie in (0, inf), got {z!r}.")
        # all k are hit, as often as they can be: the worst multiplicity for sure
        if people > population or (not replacement and people > 1 and batch > population - people):
            hit = min(people, population) if not replacement else batch
            law = np.array([float(hit)]), np.ones(1), 0.0, 0.0  # all of them hit
        else:
            law = multiplicities(population, batch, replacement, people, rate)
        j, self.w, self.none, self.left_out = law
        self.mu = j / z
        # places of the table as parts of the largest epsilon, close to 0 as well
        self.at = np.concatenate([[0.0], np.geomspace(1e-12, 1.0, _TABLE)])
        self.table: dict[float, np.ndarray] = {}

    def __call__(self, eps: np.ndarray) -> np.ndarray:
        """Returns the profile at every eps, rounding included."""
        eps = np.asarray(eps, np.float64)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            low = self._water_level(eps)
            # sum_k w_k delta_k(g_k), ln g_k = max(eps, mu_k x - mu_k^2 / 2); the rest in full
            value = np.full_like(eps, self.left_out)
            for p, m in zip(self.w, self.mu, strict=True):
                value += p * delta(m, np.maximum(m * low - m * m / 2, eps))
        return np.minimum(1.0, value * (1 + 32 * 2.0**-53))  # rounding

    def _mass(self, eps: np.ndarray) -> np.ndarray:
        """Returns the mass that the multiplicities share, over e^eps."""
        # sum_k w_k (g_k - a) = a - w_0 - a (1 - w_0) = (a - 1) w_0
        return -np.expm1(-eps) * self.none

    def _spent_mass(self, x: np.ndarray, eps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mass that they use at level x, over e^eps, and its derivative."""
        total, slope = np.zeros_like(x), np.zeros_like(x)
        for p, m in zip(self.w, self.mu, strict=True):
            # w_k (g_k - a) / a
            spent = p * np.maximum(np.expm1(np.minimum(m * x - m * m / 2 - eps, 700.0)), 0.0)
            total += spent
            slope += m * (spent + p * (spent > 0))
        return total, slope

    def _level(self, eps: np.ndarray, share: np.ndarray) -> np.ndarray:
        """Returns the level at which the first multiplicity alone uses that share."""
        x = np.full_like(eps, np.inf)
        for p, m in zip(self.w, self.mu, strict=True):
            # w_k (e^(mu_k x - mu_k^2 / 2 - eps) - 1) = share, solved for x
            x = np.minimum(x, (eps + m * m / 2 + np.log1p(share / p)) / m)
        return x

    def _newton(self, x: np.ndarray, eps: np.ndarray, mass: np.ndarray, steps: int) -> np.ndarray:
        for _ in range(steps):
            total, slope = self._spent_mass(x, eps)
            # x - F(x) / F'(x): F is convex, so steps from above stay above the root
            step = (total - mass) / np.maximum(slope, 1e-300)
            x = np.where(slope > 0, x - step, x)
            if np.all(np.abs(step) * self.mu[0] <= 1e-13):
                break
        return x

    def _water_level(self, eps: np.ndarray) -> np.ndarray:
        """Finds the x at which the multiplicities use up the mass, from below.

        What they use is convex and grows with x, so Newton's steps from above stay above the root.
        One multiplicity with all of the mass bounds x from above, all with equal shares from below.
        Any x that does not overspend makes a bound.
        """
        mass = self._mass(eps)
        if len(eps) <= 2 * _TABLE:
            x = self._newton(self._level(eps, mass), eps, mass, 60)
        else:
            top = max(float(eps[-1]), 1e-300)
            if top not in self.table:
                tabulated = self.at * top
                mass_there = self._mass(tabulated)
                self.table[top] = self._newton(self._level(tabulated, mass_there), tabulated,
                                               mass_there, 60)
            x = self._newton(np.interp(eps, self.at * top, self.table[top]), eps, mass, 4)
        # a lower level has smaller g_k, and so a larger bound
        x = x - 1e-12 * np.maximum(np.abs(x), 1 / self.mu[0])
        spent, _ = self._spent_mass(x, eps)
        return np.where(spent <= mass, x, self._level(eps, mass / len(self.w)))
