"""Privacy loss distributions of fixed-size samples, with and without replacement, replace-one.

Setting. A release is f(batch) + N(0, sigma^2 I). The map f may depend on everything released before
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
of one dominating pair, and its T-fold convolution bounds T adaptive releases, also beside releases
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
from scipy import special, stats

from jaxminimax.accounting._pld import LARGEST_LOSS, MAX_CELLS, PLD, TAIL, connect_the_dots

_MULTIPLICITY_TAIL = 1e-19  # probability of multiplicities left out, charged in full
_MOST_WORK = 6_000_000  # cells times multiplicities, about two seconds


def _log_delta(mu: float, log_g: np.ndarray) -> np.ndarray:
    """Ln H_g(N(mu, 1) || N(0, 1)) for g = exp(log_g) >= 1."""
    a = special.log_ndtr(mu / 2 - log_g / mu)
    b = log_g + special.log_ndtr(-mu / 2 - log_g / mu)
    return a + np.log(-np.expm1(np.minimum(b - a, -1e-300)))


def multiplicities(population: int, batch: int, replacement: bool, tail: float = _MULTIPLICITY_TAIL,
                   ) -> tuple[np.ndarray, np.ndarray, float, float]:
    """How often a record is drawn: k and P[k] for k >= 1, P[0], and at most `tail` left out."""
    if not replacement:
        rate = batch / population
        return np.array([1.0]), np.array([rate]), 1.0 - rate, 0.0
    k = np.arange(1, batch + 1)
    law = stats.binom(batch, 1.0 / population)
    w, beyond = law.pmf(k), law.sf(k)
    last = int(np.argmax(beyond <= tail)) + 1  # sf falls, and is 0 at the last k
    none, left_out = float(law.pmf(0)), float(beyond[last - 1])
    k, w = k[:last].astype(float), w[:last]
    k, w = k[w > 0], w[w > 0]
    if not abs(w.sum() + none + left_out - 1) < 1e-9:
        raise ArithmeticError("the law of multiplicities does not add up")
    return k, w, none, left_out


def _water_level(epsilon: np.ndarray, mu: np.ndarray, w: np.ndarray,
                 mass: np.ndarray) -> np.ndarray:
    """The x at which the multiplicities use up the mass, from below: never more than it.

    What they use is convex and grows with x, so Newton's steps from above stay above the root. One
    multiplicity with all of the mass bounds x from above, all with equal shares from below.
    """
    def used(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total, slope = np.zeros_like(x), np.zeros_like(x)
        for p, m in zip(w, mu, strict=True):
            more = p * np.maximum(np.expm1(m * x - m * m / 2 - epsilon), 0.0)
            total += more
            slope += m * (more + p * (more > 0))
        return total, slope

    def level(share: np.ndarray) -> np.ndarray:
        x = np.full_like(epsilon, np.inf)
        for p, m in zip(w, mu, strict=True):
            x = np.minimum(x, (epsilon + m * m / 2 + np.log1p(share / p)) / m)
        return x

    x = level(mass)
    for _ in range(60):
        total, slope = used(x)
        step = (total - mass) / np.maximum(slope, 1e-300)
        x = np.where(total > mass, x - step, x)
        if np.all(step * mu[0] <= 1e-11):
            break
    x = x - 1e-11 / mu[0]
    return np.where(used(x)[0] <= mass, x, level(mass / len(w)))


def profile(epsilon: np.ndarray, population: int, batch: int, z: float, replacement: bool,
            tail: float = _MULTIPLICITY_TAIL) -> np.ndarray:
    """The bound on H at e^epsilon, epsilon >= 0; see the module's docstring.

    Args:
      epsilon: any shape.
      population: n.
      batch: m, at most n without replacement.
      z: noise over the replace-one sensitivity of one slot.
      replacement: which sampler.
      tail: probability of multiplicities that may be left out and is charged in full.
    """
    k, w, none, left_out = multiplicities(population, batch, replacement, tail)
    epsilon, mu = np.asarray(epsilon, np.float64), k / z
    mass = -np.expm1(-epsilon) * none  # what is shared among the multiplicities, over e^epsilon
    low = _water_level(epsilon, mu, w, mass)
    # `low` never overspends the mass, so rounding leaves a bound
    value = np.full_like(epsilon, left_out)
    for p, m in zip(w, mu, strict=True):
        value += p * np.exp(_log_delta(m, np.maximum(m * low - m * m / 2, epsilon)))
    return np.minimum(1.0, value)


def fixed_size_gaussian(population: int, batch: int, z: float, replacement: bool, grid: float,
                        tail: float = TAIL) -> PLD:
    """The privacy loss distribution of one release on a fixed-size sample, replace-one.

    Args:
      population: n.
      batch: m.
      z: noise over the replace-one sensitivity of one slot: sigma / (2 C) for clipped sums.
      replacement: whether records may be drawn several times.
      grid: width of a cell.
      tail: divergence beyond the grid, charged as mass at infinity.

    Raises:
      ValueError: for numbers that describe no such sampler.
      MemoryError: if the noise is so small that the grid would need too many cells.
    """
    if not (population >= 1 and batch >= 1 and (replacement or batch <= population)):
        raise ValueError(f"no sample of {batch} of {population} records"
                         f"{'' if replacement else ' without replacement'} exists.")
    if not (z > 0 and math.isfinite(z)):
        raise ValueError(f"z must lie in (0, inf), got {z!r}.")
    rare = max(tail, _MULTIPLICITY_TAIL)
    k, _, _, left_out = multiplicities(population, batch, replacement, rare)
    top = max(0.01, 16 * grid)
    while top <= LARGEST_LOSS and (profile(np.array([top]), population, batch, z, replacement,
                                           rare)[0] > 1.01 * (tail + left_out)):
        top *= 1.25
    if top > LARGEST_LOSS or top / grid > MAX_CELLS or top / grid * len(k) > _MOST_WORK:
        raise MemoryError(f"noise multiplier {z:g} is too small for cells of width {grid:g}")
    cells = math.ceil(top / grid)
    epsilon = np.arange(cells + 1) * grid
    right = np.minimum.accumulate(profile(epsilon, population, batch, z, replacement, rare))
    back = epsilon[:0:-1]
    left = -np.expm1(-back) + np.exp(-back) * right[:0:-1]
    return PLD(connect_the_dots(np.concatenate([left, right]), grid))
