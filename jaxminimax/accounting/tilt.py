"""Composition of releases with relative accuracy: the exponentially tilted Fourier transform.

One release has the masses p_i of P at the losses i h, and p_inf at infinity. With

    K(t) = ln sum_i p_i e^(t i h),      q_i = p_i e^(t i h - K(t)),

q is a probability, Q its convolution over all releases, and with K(t) summed over them, t >= 0,

    delta(eps) = P[some loss is infinite]
                 + e^(K(t) - t eps) sum_{s = k h > eps} e^(-t (s - eps)) (1 - e^-(s - eps)) Q(k).

Every term is positive. If the tilted mean K'(t) is near eps, the sum sees the bulk of Q, and an
absolute error of the transform, a multiple of the unit u, becomes a relative error of delta: there
is no least delta. Everything returned is an upper bound:

* masses: `masses` connects the dots of an upper bound on the profile, and clips at 0. A measure
  with more than 1 in all is one too: the atom of a composition is at most
  M sum T p_inf, M the product of (1 v total mass)^T.
* transform: the coefficients f_j are off by e_j, ||e||_2 <= 7 u log2(N) sqrt(N) ||q||_2 (Higham,
  "Accuracy and stability of numerical algorithms", theorem 24.2; assumed of the library's
  transform, and tested against a direct one). A power is off by |a^T - b^T| <= T |a - b|
  max(|a|, |b|)^(T-1), and by 8 u T (1 + |ln a|) |a|^T for how it is computed. With g_j the factor
  of e_j, Cauchy and Schwarz bound what a cell is off by, sum_j |e_j| g_j / N, and Parseval the
  2-norm over cells, (sum_j |e_j|^2 g_j^2 / N)^(1/2); the inverse transform adds 7 u log2(N) times
  the norm of its result to both. The sum over cells is off by the smaller of what either allows.
* the tilt: relative errors of q_i and K, at most r a release, make a factor e^(r T).
* aliasing: a transform of length N convolves modulo N. What lands in a lower cell than its own is
  beyond the window's end, and has at most min_t e^(K(t) - t end) of mass: added. What lands in a
  higher cell only adds.

Splitting a loss onto two cells adds at most h^2 / 6 on average to its variance, so that ln delta
grows by about T t (1 + t) h^2 / 12 (`cell`); a rule for looseness only, as every output is a bound
whatever h is. The masses of a coarser, geometric grid serve for guesses, and for Chernoff's bound

    delta(eps) <= P[infinite] + e^(K(t) - t eps) t^t / (1 + t)^(1 + t)

where no transform of bounded length is fine enough.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from jaxminimax.accounting import roots
from jaxminimax.accounting.pairs import Pair

UNIT = 2.0**-53
MOST_TIMES = 10**9  # releases; beyond, rounding of powers
_LOOSENESS = 1e-4  # of epsilon, by the width of cells


class Masses(NamedTuple):
    """One release's privacy loss, repeated.

    Attributes:
      log_mass: ln of P's masses, all finite.
      loss: where they are.
      atom: P's mass at infinity.
      times: T.
    """

    log_mass: np.ndarray
    loss: np.ndarray
    atom: float
    times: int


def _both(pair: Pair, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    right = pair.right(losses)
    return right, right if pair.left is pair.right else pair.left(losses)


def _reach(pair: Pair, tail: float) -> float:
    """Finds a loss beyond which both profiles are at most `tail`; beyond 1e7 it is infinite."""
    losses = np.geomspace(1e-12, 1e7, 39)
    for _ in range(3):
        near = np.flatnonzero(np.maximum(*_both(pair, losses)) > tail)
        last = int(near[-1]) if len(near) else 0
        if last + 1 == len(losses):
            return float(losses[-1])
        beyond = float(losses[last + 1])
        losses = np.geomspace(losses[last], beyond, 24)
    return beyond


def masses(pair: Pair, losses: np.ndarray, times: int) -> Masses:
    """Connects the dots of a pair's profiles at losses 0 = at[0] < at[1] < ...; relative accuracy.

    Losses below 0 are those of the reversed pair, mirrored, e^-l each: never differences of numbers
    near 1. Both halves share F_0. What is left over is at 0.
    """
    # profiles fall: a bound at a smaller eps holds at all larger ones
    forward, backward = (np.minimum.accumulate(np.minimum(profile, 1.0))
                         for profile in _both(pair, losses))
    if not (np.all(np.isfinite(forward)) and np.all(np.isfinite(backward))):
        raise ArithmeticError("a divergence is not finite")
    # F_0 = H_1 is the total variation, in either direction; the larger bound holds for both
    forward[0] = backward[0] = max(forward[0], backward[0])
    p, first = _half(forward, losses)
    mirrored, first_mirrored = (p, first) if pair.left is pair.right else _half(backward, losses)
    with np.errstate(under="ignore"):
        # where ln(Q / P) = l, P has e^-l of Q's mass
        mirrored = mirrored * np.exp(-losses[1:])
    # P has F_0 + s_1 above 0, infinity included, and the reversed pair's s_1 below
    zero = max(1.0 - forward[0] - first - first_mirrored, 0.0)
    mass = np.concatenate([mirrored[::-1], [zero], p])
    loss = np.concatenate([-losses[:0:-1], [0.0], losses[1:]])
    positive = mass > 0
    return Masses(np.log(mass[positive]), loss[positive], float(forward[-1]), times)


def _half(profile: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns P's masses at at[1:] for a profile joined by chords, and the first slope.

    With falls s_i = (F_{i-1} - F_i) / (a_i - a_{i-1}), Q has s_i - s_{i+1} at at_i and P a_i times
    that. Rounding of F may make chords that are not convex. The largest convex function below them
    is above the convex function that they bound, and its slopes are the isotonic regression of
    theirs. Beyond loss 30, where a_i may overflow, negative masses are clipped instead.
    """
    widths = np.diff(losses)
    # s_i = (F_{i-1} - F_i) / (a_i - a_{i-1}), times a_{i-1}
    fall = -np.diff(profile) / np.expm1(np.minimum(widths, 600.0))  # a_{i-1} s_i
    next_fall = np.append(fall[1:], 0.0)
    # a_i (s_i - s_{i+1}), where a_i s_i = fall_i + fall_i expm1(width_i)
    p = np.maximum((fall - next_fall) + fall * np.expm1(np.minimum(widths, 600.0)), 0.0)
    near = int(np.searchsorted(losses, 30.0))
    a = np.exp(losses[:near])
    s = fall[: near] / a if near < len(losses) else fall / a[:-1]
    if np.any(s[1:] > s[:-1]):
        # weights a_i - a_{i-1}: the regression keeps the total fall of F
        weights = a * np.expm1(widths[:len(s)]) if near < len(losses) else a[:-1] * np.expm1(widths)
        s = scipy.optimize.isotonic_regression(s, weights=weights, increasing=False).x
    # P = a_i (s_i - s_{i+1}) of the convex function
    p[: len(s) - 1] = np.exp(losses[1: len(s)]) * (s[:-1] - s[1:])
    if len(s) == len(p):
        p[-1] = math.exp(losses[-1]) * s[-1]
    return p, float(s[0])


def least_loss(pair: Pair, top: float) -> float:
    """Returns the least positive loss of a grid up to `top`."""
    # H falls no faster than at slope 1 near 0, so that nothing happens below a part of it
    return min(1e-3 * float(pair.right(np.zeros(1))[0]), 1e-2 * top)


def stretched(pair: Pair, tail: float, times: int) -> Masses:
    """Returns masses on a geometric grid."""
    top = _reach(pair, tail)
    losses = np.append(0.0, np.geomspace(least_loss(pair, top), top, 1200))
    return masses(pair, losses, times)


def uniform(pair: Pair, top: float, times: int, h: float) -> Masses:
    """Returns masses on multiples of h, up to `top`."""
    count = max(2, math.ceil(top / h))
    return masses(pair, np.arange(count + 1) * h, times)


def moments(parts: Sequence[Masses], t: float) -> tuple[float, float, float]:
    """Returns K, K' and K'' of all releases at t."""
    k = mean = variance = 0.0
    for release in parts:
        a = release.log_mass + t * release.loss
        top = float(a.max())
        g = np.exp(a - top)
        total = float(g.sum())
        # K' and K'' are mean and variance of the loss under q
        release_mean = float(np.sum(g * release.loss)) / total
        # ln of a sum of exponentials, the largest taken out; times T, as K adds up
        k += release.times * (top + math.log(total))
        mean += release.times * release_mean
        variance += release.times * float(np.sum(g * (release.loss - release_mean) ** 2)) / total
    return k, mean, variance


def atoms(parts: Sequence[Masses]) -> float:
    """Returns an upper bound on P[some loss is infinite]."""
    total, excess = 0.0, 0.0
    for release in parts:
        # M = product of (1 v total mass)^T, masses rounded up; the bound is M sum T p_inf
        mass = float(np.exp(release.log_mass).sum()) * (1 + 1e-14) + release.atom
        excess += release.times * math.log(max(1.0, mass))
        total += release.times * release.atom
    return min(1.0, total * math.exp(min(excess, 700.0)))


def most_paid(t: float) -> float:
    """Returns ln sup_y e^(-t y) (1 - e^-y)."""
    # at e^-y = t / (1 + t) it is t^t / (1 + t)^(1 + t)
    return t * math.log(t) - (1 + t) * math.log1p(t) if t > 0 else 0.0


def tilt_to(parts: Sequence[Masses], mean: float) -> float:
    """Returns the t >= 0 at which the tilted mean is `mean`; 0 if it is larger already."""
    if moments(parts, 0.0)[1] >= mean:
        return 0.0
    high = roots.grown(lambda t: moments(parts, t)[1] < mean, 1.0, 4.0, 1e12)
    if high > 1e12:
        return high
    low = 0.0
    t = high / 2
    for _ in range(60):
        _, tilted_mean, slope = moments(parts, t)
        low, high = (t, high) if tilted_mean < mean else (low, t)
        if high - low <= 1e-6 * high or abs(tilted_mean - mean) <= 1e-9 * abs(mean):
            break
        # Newton's step, as K'' is the slope of K'; else the middle of the bracket
        t = t - (tilted_mean - mean) / slope if slope > 0 else t
        if not low < t < high:
            t = (low + high) / 2
    return t


def normal_delta(k: float, spread: float, t: float, gap: float) -> float:
    """Guesses ln delta as if the tilted sum were normal, of mean eps + gap; k is K - t eps."""
    def side(s: float) -> float:  # ln E[e^(-s Y); Y > 0]
        x = s * spread - gap / spread
        # e^(s^2 v / 2 - s gap) Phi(gap / spread - s spread)
        return 0.5 * (s * spread) ** 2 - s * gap + float(scipy.special.log_ndtr(-x))

    # E[e^(-t Y) (1 - e^-Y); Y > 0] = e^one - e^two
    paid, unpaid = side(t), side(1 + t)
    return k + paid + math.log(-math.expm1(min(unpaid - paid, -1e-12)))


def cell(eps: float, t: float, spread: float, times: int) -> float:
    """Returns the width of cells that costs about 1e-4 of epsilon, or of a tiny epsilon's delta."""
    t = max(t, 1 / spread)
    # T (1 + t) h^2 / 12 = 1e-4 max(eps, 1 / t), as ln delta falls by about t for each eps
    return math.sqrt(12 * _LOOSENESS * max(eps, 1 / t) / ((1 + t) * times))


def chernoff(parts: Sequence[Masses], eps: float, t: float | None = None) -> float:
    """Returns Chernoff's bound on delta plus the atom at infinity; it holds for any t."""
    t = tilt_to(parts, eps) if t is None else t
    k, _, _ = moments(parts, t)
    # relative errors of K, of t eps and of their difference
    off = rounding(parts, t) + 8 * UNIT * (abs(k) + t * abs(eps))
    return min(1.0, atoms(parts) + math.exp(min(0.0, k - t * eps + most_paid(t) + off)))


def rounding(parts: Sequence[Masses], t: float) -> float:
    """Bounds the error of ln of a composed, tilted mass that is due to q and K."""
    off = 0.0
    for release in parts:
        size = np.abs(release.log_mass) + t * np.abs(release.loss)
        off += release.times * 8 * UNIT * (2 + float(size.max()) + math.log2(len(size) + 1))
    return off


class Composed:
    """All releases, composed and tilted at t; it bounds delta at every eps near the tilted mean."""

    def __init__(self, parts: Sequence[Masses], guess: Sequence[Masses], h: float, t: float,
                 eps: float, log_delta: float) -> None:
        self.t, self.h = t, h
        self.k, mean, variance = moments(parts, t)
        self.spread = max(math.sqrt(variance), h)
        # a window in which the tilted sum lies, but for 1e-7 of delta above it
        end = _end(guess, t, max(mean, eps), self.spread, log_delta + math.log(1e-7))
        low = _start(guess, t, min(mean, eps), self.spread)
        self.low = math.floor(low / h)
        self.size = scipy.fft.next_fast_len(math.ceil((end - low) / h) + 8, real=True)
        if self.size > 2**22:  # 32 MB, and as much for each array of the transform
            raise MemoryError(f"{self.size} cells")
        losses = (self.low + np.arange(self.size)) * h
        last = float(losses[-1])
        # K(s) - s end bounds ln of the mass beyond the window, for every s >= 0
        self.right = min(moments(parts, s)[0] - s * last + rounding(parts, s)
                         for s in (t, _tail_tilt(guess, last)))
        tilted, self.most, self.norm = self._transformed(parts)
        self.mass = np.maximum(tilted, 0.0)
        self.losses = losses
        self.atom = atoms(parts)
        self.slack = rounding(parts, t) + 8 * UNIT * (abs(self.k) + t * abs(losses).max())

    def _transformed(self, parts: Sequence[Masses]) -> tuple[np.ndarray, float, float]:
        """Returns Q on the window's cells, a bound on each error, and one on their 2-norm."""
        n, first = self.size, 0
        unit_error = 7 * UNIT * math.log2(n)
        two = np.full(n // 2 + 1, 2.0)  # coefficients that have a conjugate
        two[0] = 1.0
        if n % 2 == 0:
            two[-1] = 1.0
        product = np.ones(n // 2 + 1, complex)
        sizes, steep, lengths = [], [], []
        for release in parts:
            a = release.log_mass + self.t * release.loss
            g = np.exp(a - a.max())
            g /= g.sum()
            cells = np.rint(release.loss / self.h).astype(np.int64)
            centre = int(np.rint(np.sum(g * cells)))  # or phases turn, and cost T u pi of accuracy
            first += release.times * centre
            # cells below the centre wrap around, as the transform is cyclic
            q = np.bincount((cells - centre) % n, g, n)
            f = scipy.fft.rfft(q)
            # ||e||_2 <= 7 u log2(N) N^(1/2) ||q||_2
            length = unit_error * _norm(q)
            e = math.sqrt(n) * length
            with np.errstate(divide="ignore", under="ignore", invalid="ignore"):
                log = np.log(f)
                power = np.where(f == 0, 0.0, np.exp(release.times * log))
                # T max(|a|, |b|)^(T-1): both are at most min(|f|, 1) + e, as no true one exceeds 1
                slope = release.times * np.exp((release.times - 1) * np.log(
                    np.minimum(np.abs(f), 1.0) + e))
                turned = 8 * UNIT * release.times * (1 + np.where(f == 0, 0.0, np.abs(log)))
            # the transform of a convolution is the product of the transforms' powers
            product = product * power
            power = np.abs(power)
            sizes.append((power, turned * power, e * slope))
            steep.append(slope)
            lengths.append(length)
        cell_error = norm_error = 0.0
        for i, (slope, length) in enumerate(zip(steep, lengths, strict=True)):
            other_factors = np.ones(n // 2 + 1)
            for j, (power, turned, moved) in enumerate(sizes):
                if j != i:
                    other_factors = other_factors * (power + turned + moved + 4 * UNIT * power)
            turned = (sizes[i][1] + 4 * UNIT * sizes[i][0]) * other_factors
            moved = slope * other_factors
            # Cauchy and Schwarz: sum_j |e_j| g_j / N <= ||e|| ||g|| / N, ||e|| = N^(1/2) length
            cell_error += (length * math.sqrt(float(np.sum(two * moved**2)) / n)
                     + float(np.sum(two * turned)) / n)
            norm_error += (length * float(moved.max())
                           + math.sqrt(float(np.sum(two * turned**2)) / n))
        out = scipy.fft.irfft(product, n)
        back = unit_error * _norm(out)
        return (np.roll(out, -((self.low - first) % n)), (cell_error + back) * (1 + 1e-9),
                (norm_error + back) * (1 + 1e-9))

    def delta(self, eps: float) -> float:
        """Returns an upper bound on delta at eps; 1 below the window."""
        if eps < self.losses[0]:
            return 1.0
        first = int(np.searchsorted(self.losses, eps, side="right"))
        y = self.losses[first:] - eps
        off = 4 * UNIT * float(np.abs(self.losses[[0, -1]]).max())  # rounding of y
        nearest = float(y[0]) if len(y) else 0.0  # taken out, or everything may underflow to 0
        with np.errstate(under="ignore"):
            # e^(-t y) (1 - e^-y) at y = s - eps, which is rounded up in 1 - e^-y
            weight = np.exp(-self.t * (y - nearest)) * -np.expm1(-(y + off))
        # e^(K - t eps), with the part of e^(-t y) that was taken out
        scale = self.k - self.t * (eps + nearest) + self.slack
        # the transform's error: sup norm times sum of weights, or 2-norm times 2-norm
        value = (float(np.sum(weight * self.mass[first:]))
                 + min(self.most * float(weight.sum()), self.norm * _norm(weight))
                 ) * (1 + 1e-12)
        beyond = math.exp(min(0.0, self.right))
        if value > 0 and scale + math.log(value) > 0:
            return 1.0
        return min(1.0, (math.exp(scale + math.log(value)) if value > 0 else 0.0)
                   + beyond + self.atom)

    def slope(self, eps: float) -> float:
        """Returns about -d ln delta / d eps."""
        step = 1e-3 * max(min(self.spread, 1 / max(self.t, 1e-300)), 1e-9 * eps, 1e-300)
        here_delta, next_delta = self.delta(eps), self.delta(eps + step)
        return math.log(here_delta / next_delta) / step if 0 < next_delta < here_delta else 0.0


def _norm(x: np.ndarray) -> float:
    return math.sqrt(float(np.sum(x * x)))


def _tail_tilt(guess: Sequence[Masses], end: float) -> float:
    # the s at which K(s) - s end is least, about: its derivative K'(s) - end is 0
    return min(tilt_to(guess, end), 1e9)


def _end(guess: Sequence[Masses], t: float, mean: float, spread: float, log_mass: float) -> float:
    """Returns a loss that is exceeded with a probability of at most e^enough, about."""
    width = 10 * spread
    for _ in range(60):
        end = mean + width
        s = _tail_tilt(guess, end)
        if moments(guess, s)[0] - s * end <= log_mass:
            return end
        width *= 1.3
    return mean + width


def _start(guess: Sequence[Masses], t: float, mean: float, spread: float) -> float:
    """Returns a loss that the tilted law is below with a probability of at most 1e-12, about."""
    k = moments(guess, t)[0]
    width = 10 * spread
    for _ in range(60):
        low = mean - width
        best = min(moments(guess, t - s)[0] - k + s * low
                   for s in (5 / spread, 1 / spread, 20 / spread, 28 / width))
        if best <= math.log(1e-12):
            break
        width *= 1.3
    return mean - width
