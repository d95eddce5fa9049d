"""Composition of very many releases: the exponentially tilted Fourier series.

A transform on a lattice (`tilt`) needs cells that are narrow for the sum of all losses. Where
releases are so many that it would be long, its rounding errors exceed what its cells gain, and this
series takes its place. It needs no lattice: cells are wide where losses are large. With K and q of
`tilt`, Q the law of the sum S of all losses tilted by t > 0, and K(t) summed over all releases,

    delta(eps) = P[some loss is infinite] + e^(K(t) - t eps) E_Q[g(S - eps)],
    g(y) = e^(-t y) (1 - e^-y) for y > 0, else 0.

g is at most its periodic sum G(y) = sum_n g(y + n L), which is continuous and has absolutely
summable coefficients:

    E_Q[g(S - eps)] <= E_Q[G(S - eps)] = sum_j c_j e^(-i w_j eps) phi(w_j),
    c_j = 1 / (L (t + i w_j) (1 + t + i w_j)),    w_j = 2 pi j / L,

phi the characteristic function of Q, a product of powers of those of single releases. The sum over
j is cut off without a rule about phi: one Gaussian release of parameter mu is composed with all
others, which makes |phi(w)| <= e^(-mu^2 w^2 / 2). It only adds to delta: its loss Y has E e^-Y = 1,
and (1 - c x)_+ is convex in x, so that E (1 - e^(eps - s - Y))_+ >= (1 - e^(eps - s))_+ for every
sum s, and of any positive measure. Less smoothing, with more beyond the last wave, suits laws with
atoms: of three bounds from the same waves, one of them without any, the least counts. Everything
returned is an upper bound:

* masses: as in `tilt`.
* phi: `_characteristic` says how far phi(w) - 1 of one release is off, by e. A power is off by
  |a^T - b^T| <= T |a - b| max(|a|, |b|)^(T-1), and by 16 u (1 + T |ln a|) |a|^T for how it is
  computed. Factors a_i off by d_i make products off by at most prod (|a_i| + d_i) - prod |a_i|;
  the 16 u of each factor hold the rounding of its product with the others, too.
* the series: what is left out beyond J is at most 2 sum_{j > J} |c_j| e^(-mu^2 w_j^2 / 2), and as
  |c_j| <= 1 / (L w_j^2) that is at most e^(-mu^2 w_J^2 / 2) / (pi w_J), also for mu = 0.
* what is not finite: where an error overflows the bound is 1. Of T releases with n losses each, q
  that underflow hold T n e^-745 at most, with no relative bound. As g <= 1, that is far below the
  part 1e-9 by which what is beyond J is rounded up.
* the tilt: relative errors of q_i and K, at most r a release, make a factor e^(r T).
* aliasing only adds, as g >= 0. Little is added if L is wide: `_period`.

What is added for looseness, in ln delta: t (1 + t) mu^2 / 2 by the Gaussian release, and by a cell
of width h, which splits a loss onto its two ends and adds at most h^2 / 6 on average to its
variance, about T t (1 + t) h^2 / 12 (`_cells`).
"""

import math
from collections.abc import Sequence

import numpy as np

from jaxminimax.accounting import roots
from jaxminimax.accounting.pairs import Pair
from jaxminimax.accounting.tilt import UNIT, Masses, atoms, least_loss, masses, moments, rounding


def tilt_to(parts: Sequence[Masses], eps: float) -> float:
    """Returns about the t > 0 with the least K(t) - t eps - ln t - ln(1 + t).

    That is the size of the series' first term, and so of its errors, in delta. The tilted mean is
    then 1 / t + 1 / (1 + t) above eps: within about a deviation of Q, where g is largest.
    """
    def short(log_t: float) -> float:
        t = math.exp(log_t)
        return eps + 1 / t + 1 / (1 + t) - moments(parts, t)[1]

    low, high = roots.bracket(lambda log_t: short(log_t) > 0, 0.0, 2.0, lowest=-27.0, highest=27.0)
    return math.exp(roots.zero(short, low, high, xtol=1e-3))


def _cells(pair: Pair, top: float, times: int, t: float, looseness: float) -> Masses:
    """Returns masses in cells that cost about a part c, `looseness`, of epsilon at the tilt t.

    All cells of all releases cost T sum_i q_i t (1 + t) h_i^2 / 12 of ln delta. With

        h^2 = 12 c l / (1 + t)

    at the loss l that is c t times the tilted mean of all losses, c of epsilon. Where t l is small
    a part h / l = (12 c)^(1/2) is enough, which adds c / 2 to the variance.
    """
    lowest = least_loss(pair, top)
    ratio, turn = math.sqrt(12 * looseness), min(max(1 / (1 + t), lowest), top)
    # h = ratio l up to 1 / (1 + t); beyond, equal steps of l^(1/2)
    inner = math.log(turn / lowest)
    outer = 2 * (math.sqrt(top) - math.sqrt(turn)) * math.sqrt(1 + t)
    ratio = max(ratio, (inner + outer) / 2**14)  # cells on either side, at most
    losses = np.concatenate([[0.0], np.geomspace(lowest, turn, 2 + math.ceil(inner / ratio)),
                             np.linspace(math.sqrt(turn), math.sqrt(top),
                                         2 + math.ceil(outer / ratio))[1:] ** 2])
    return masses(pair, np.unique(losses), times)


class Series:
    """All releases, composed and tilted at t > 0; it bounds delta at every eps.

    Attributes:
      losses: ends of the period, between which the bound is close.
      spread: the deviation of the tilted sum.
      h: mu, of the largest Gaussian release that is composed with the others.
    """

    @np.errstate(over="ignore", under="ignore", invalid="ignore")  # `bound` sees what overflows
    def __init__(self, releases: Sequence[tuple[Pair, int]], tops: Sequence[float], t: float,
                 eps: float, log_delta: float, looseness: float) -> None:
        parts = [_cells(pair, top, times, t, looseness)
                 for (pair, times), top in zip(releases, tops, strict=True)]
        most_waves = 2**17
        self.t = t
        k, _, variance = moments(parts, t)
        # t (1 + t) mu^2 / 2 = c t max(eps, 1 / t), as ln delta falls by about t for each eps
        mu = math.sqrt(2 * looseness * max(eps, 1 / t) / (1 + t))
        # how much less of Q is above eps than there is in all, in the exponent, and e^-16 of that
        excess = k - t * eps - log_delta
        tail = max(25.0, excess + 16)
        self.losses = low, high = _period(parts, t, k, max(math.sqrt(variance), mu), tail)
        step = 2 * math.pi / (high - low)
        # w mu at the last wave, beyond which there is about e^-14 of delta
        last_wave = math.sqrt(2 * max(excess + 14 - math.log(20 / mu), 5.0))
        self.h = mu = max(mu, last_wave / (step * most_waves))
        count = math.ceil(last_wave / (mu * step)) + 1
        self.spread = math.sqrt(variance + mu**2)
        self.waves = w = step * np.arange(count)
        phi, size, reach = np.ones(count, complex), np.ones(count), np.ones(count)
        for release in parts:
            power, error = _power(release, t, step, count)
            phi, size, reach = phi * power, size * np.abs(power), reach * (np.abs(power) + error)
        # the same waves serve less smoothing, with more beyond them
        mus = mu * np.array([[1.0], [0.5], [0.0]])
        smooth = np.exp(-0.5 * (mus * w) ** 2)
        # under P the loss of a Gaussian release is N(mu^2 / 2, mu^2); tilted, N(mu^2 (t + 1/2), ..)
        phi = phi * smooth * np.exp(1j * mus**2 * (t + 0.5) * w)
        size = size * smooth
        reach = reach * smooth * (1 + 16 * UNIT * (1 + (mus * w) ** 2 + mus**2 * (t + 1) * w))
        # c_j, those of j < 0 being conjugate to those of j > 0
        coefficients = np.where(w > 0, 2.0, 1.0) * step / (2 * math.pi) / (
            (t + 1j * w) * (1 + t + 1j * w))
        self.terms = coefficients * phi
        sizes = np.abs(coefficients) * reach
        last = float(w[-1])
        self.beyond = np.exp(-0.5 * (mus[:, 0] * last) ** 2) / (math.pi * last)
        self.error = (np.sum(np.abs(coefficients) * (reach - size + 8 * UNIT * reach), 1)
                      + 16 * UNIT * math.log2(count + 1) * sizes.sum(1))
        self.turned = 8 * UNIT * np.sum(w * sizes, 1)  # by the rounding of w_j eps, a unit each
        # ln of what a Gaussian release multiplies by
        self.smoothed = t * (1 + t) * mus[:, 0] ** 2 / 2
        self.atom = atoms(parts)
        self.k, self.slack = k, rounding(parts, t) + 8 * UNIT * abs(k)

    @np.errstate(over="ignore", under="ignore", invalid="ignore")
    def bound(self, eps: float) -> tuple[float, float]:
        """Returns an upper bound on delta at eps, and its part for rounding and what is beyond."""
        terms = self.terms * np.exp(-1j * (self.waves * eps))
        errors = (self.error + self.turned * eps) * (1 + 1e-9)
        errors = errors + self.beyond * (1 + 1e-9)
        values = np.maximum(np.sum(terms.real, 1), 0.0) + errors
        if not np.all(np.isfinite(values)):
            return 1.0, 1.0
        i = int(np.argmin(np.log(values) + self.smoothed))
        log = (self.k - self.t * eps + self.slack + 8 * UNIT * self.t * eps
               + float(self.smoothed[i]) * (1 + 8 * UNIT) + math.log(values[i]))
        return min(1.0, math.exp(min(log, 0.0)) + self.atom), float(errors[i] / values[i])

    def delta(self, eps: float) -> float:
        """Returns an upper bound on delta at eps."""
        return self.bound(eps)[0]


@np.errstate(all="ignore")
def _power(release: Masses, t: float, step: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns phi^T of T releases at w_j = j step, and how far it may be off."""
    x, e = _characteristic(release, t, step, count)
    # ln(1 + x): where x is small, |1 + x|^2 - 1 = 2 Re x + |x|^2 keeps its relative accuracy
    small = np.abs(x) < 0.5
    inner = np.where(small, x, 0.0)
    log = np.where(small, 0.5 * np.log1p(inner.real * (2 + inner.real) + inner.imag**2)
                   + 1j * np.arctan2(inner.imag, 1 + inner.real), np.log(1 + x))
    power = np.where(x == -1, 0.0, np.exp(release.times * log))
    # T max(|a|, |b|)^(T-1): both are at most min(|a|, 1) + e, as no true one exceeds 1
    slope = release.times * np.exp((release.times - 1) * np.log(
        np.minimum(np.exp(log.real), 1.0) + e))
    turned = 16 * UNIT * (1 + release.times * np.where(x == -1, 0.0, np.abs(log)))
    return power, e * slope + turned * np.abs(power)


def _characteristic(release: Masses, t: float, step: float, count: int,
                    ) -> tuple[np.ndarray, np.ndarray]:
    """Returns x_j = phi(w_j) - 1 of one tilted release at w_j = j step, and how far it is off.

    For j = r + B s, a = e^(i w_r l) - 1 and b = e^(i w_(B s) l) - 1, the mean of e^(i w l) - 1 is

        E[a b] + E[a] + E[b],

    a product of matrices with 2 B rows, which holds no difference of numbers near 1: its error is
    relative to w l, and stays small after a power of T. In units of u w_j E|l|,

    * arguments, sines and their products: |a| is off by 12 u w_r |l| at most, and b alike, as they
      are 2 i sin(x / 2) e^(i x / 2) with x off by 3 u |x|. As |a|, |b| <= 2, in all by 40;
    * sums of n terms, m = 64 at a time, and q, off by a few u each: by 2 (m + n / m + 32) times
      E|a b| + E|a| + E|b| <= 2 E|a| + 2 E|b| <= 2 w_j E|l|.
    """
    a = release.log_mass + t * release.loss
    q = np.exp(a - a.max())
    q /= q.sum()
    block, chunk = math.ceil(math.sqrt(count)), 64  # losses whose waves are added at a time
    # 2^15 multiplications of a product: for 2^16, or one row, threads wake and cost more
    tile = max(2, 2**15 // (chunk * block))
    rows = step * np.arange(block)
    columns = step * block * np.arange(-(-count // (block * tile)) * tile).reshape(-1, tile)
    x = np.zeros((*columns.shape, block), complex)
    for i in range(0, len(q), chunk):
        loss, mass = release.loss[i:i + chunk], q[i:i + chunk]
        a, b = (_turned(w[..., None] * loss) for w in (rows, columns))
        b *= mass
        x += b @ a.T + b.sum(-1)[..., None] + (a * mass).sum(-1)
    size = float(np.sum(q * abs(release.loss)))
    unit_error = UNIT * (40 + 4 * (chunk + len(q) / chunk + 32)) * size
    return x.ravel()[:count], unit_error * step * np.arange(count)


def _turned(x: np.ndarray) -> np.ndarray:
    """Returns e^(i x) - 1 = 2 i sin(x / 2) e^(i x / 2), with relative accuracy."""
    half = x / 2
    sine = np.sin(half)
    return 2 * sine * (1j * np.cos(half) - sine)


def _period(parts: Sequence[Masses], t: float, k: float, spread: float,
            tail: float) -> tuple[float, float]:
    """Returns ends between which the tilted sum lies but for e^-tail, by Chernoff's bound.

    The period is longer than that by tail / t, in which e^(-t y) falls by e^-tail: a sum at the low
    end is then not near the high one of the next period.
    """
    # by s = t Q becomes P again, which has few losses far below 0
    tilts = np.append(np.geomspace(0.3, 60.0, 12) / spread, (t / 2, t))
    # ln Q[S > end] <= K(t + s) - K(t) - s end, solved for the end; below with -s
    high = min((moments(parts, t + s)[0] - k + tail) / s for s in tilts)
    low = max((k - moments(parts, t - s)[0] - tail) / s for s in tilts)
    return low, high + tail / t
