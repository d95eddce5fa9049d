"""Dominating pairs of one release, for k records of one person, by kind of privacy loss.

A pair is given by its hockey-stick profiles F(eps) = H_{e^eps}(P || Q) and, of the reverse,
H_{e^eps}(Q || P), for eps >= 0, H_a(P || Q) = integral of (P - a Q)_+. Products of dominating pairs
dominate adaptive composition (Zhu, Dong and Wang, "Optimal accounting of differential privacy via
characteristic function", AISTATS 2022). Every profile here is an upper bound, rounding included: to
a value computed as a difference of terms a multiple of the rounding of each term is added.

In units of the clip norm, N(m) = N(m, z^2), and with B(n) = Binomial(n, q),

    poisson, replace-one:         P = sum_j B(k)(j) N(j)   against   Q = sum_j B(k)(j) N(-j),
    poisson, add-or-remove-one:   P = sum_j B(r)(j) N(j)   against   Q = sum_j B(s)(j) N(-j),

the latter for every r + s = k: r of the people are absent from one data set, s from the other, and
one r holds for the whole run, so that each is a direction of its own. Why: condition on the other
records. P and Q become mixtures over the sets S of records that are hit, displaced by v_S and v'_S
of norm at most |S|. By Kahane's inequality E (A - a B)_+ of sums A, B of exponentials of Gaussians
grows with the covariances inside A and inside B and falls with those across, for every a > 0;
<v_S, v_R> <= |S| |R| and <v_S, v'_R> >= -|S| |R| hold with equality if all displacements are along
one line, the two data sets' in opposite directions. Any dimension and any adaptive choice is
covered, and it is attained. Only |v_S| <= |S| is used, so a solution may take the place of a sum.

Where a sample's slots may be filled by other records, with probability p of that or more for any k
records, and then holds none of them, the profile at eps >= 0 is 1 - p times that (`size_law`).

Samples of a fixed size are in `gaussian`. Laplace noise on a number that k people move k times
as far has losses within k / z. One number that all of them move is the worst case: for two that are
moved by t' <= t of their scale, and c = eps - t >= -t', eps >= 0,

    H = 1 - e^((c - t') / 2) (1 + (t' - c) / 4)   <=   1 - e^((c - t') / 2),

the latter that of one number moved by t + t'; for c < -t' the factor is 1 + t' / 2.

**Index of the largest score** (`Selection`), one release. The index i has probability softmax(s)_i.
A record of group i moves s_i alone, by at most t, so all indices but i keep their ratios, and the
release is as private as the bit "is it i": one with odds x against one with odds x e^t or x e^-t, x
chosen with the other scores. Its loss is c with probability 1 - p_c and c - t with probability

    p_c = (e^c - 1) / (e^t - 1),      0 <= c <= t,

under P, for some c; both signs of the move, and P and Q exchanged, give the same family, c going to
t - c. The largest divergence of one release is, by calculus over c,

    sup_c H_a = (1 - e^((epsilon - t) / 2))^2 / (1 - e^-t),     a = e^epsilon,  |epsilon| <= t.

**k adaptive releases of it.** c may depend on what was released before, so the largest divergence
is V_k(-epsilon),

    V_0(y) = (1 - e^-y)_+,     V_{j+1}(y) = sup_c (1 - p_c) V_j(y + c) + p_c V_j(y + c - t).    (1)

The step A is a supremum of means: monotone, sublinear, and it commutes with shifts of y. So if G is
the step of a release with one pair, a mean of shifts, A G V <= G A V (the supremum of a mean is at
most the mean of suprema), and k steps A of V_0, then the steps of all else, bound every order of
the releases. As epsilon -> V_k(-epsilon) is convex in e^epsilon, at least 1 - e^epsilon and tends
to 1 at -inf, it is the profile of one pair; A^k is at most a mean over the pair's losses on every
V that is a mixture of shifted V_0, as it is sublinear. So this pair, composed as often as there are
blocks, bounds everything that they release, among other releases or not. It is its own mirror
image, as the family is: V_k(y) = 1 - e^-y + e^-y V_k(-y).

Families A_1, A_2, ... of several scales need not commute, and need no order either. Let G_i(m) be
the mean over the losses of the pair whose profile is that of A_i^m, so that G_i(m) V_0 = A_i^m V_0;
means commute. After m_i steps of each the bound is G_1(m_1) G_2(m_2) ... V_0, by induction: with G
the product of the others, one more step of A_i makes it A_i G A_i^m_i V_0 <= G A_i^(m_i + 1) V_0.

Between points of a grid. c is taken on multiples of h = t / M, and y too, so that every shift stays
on the grid. For c = c_j + r in between, with V and W the values at y + c and y + c - t at both ends
of the interval, dV, dW and dp their growth,

    value(c) <= max(value_j, value_{j+1}) + dp (dV - dW)_+ / 4 + (e^h - 1) max(dV, dW) / 4.

Proof. V and W are convex in e^-y, hence below their chords, of weight mu = (1 - e^-r) / (1 - e^-h);
p_c is on its chord in e^c, of weight kappa = (e^r - 1) / (e^h - 1). As mu / kappa = e^(h - r) >= 1
and e^(h-r) - 1 = (1 - kappa) (e^h - 1) e^-r, 0 <= mu - kappa <= kappa (1 - kappa) (e^h - 1). With
kappa in the place of mu the value changes by at most (e^h - 1) max(dV, dW) / 4, and becomes a
quadratic in kappa that exceeds its chord by kappa (1 - kappa) dp (dV - dW).

dV and dW count as 0 where rounding makes them negative. All operations are of positive numbers, so
every value keeps its relative accuracy; `_ROUNDED` in each step is a thousand times what is lost.

Source: the family is that of Dong, Durfee and Rogers, "Optimal differential privacy composition for
exponential mechanisms", ICML 2020. The blocks, and what is between the points of the grid, are this
library's. Checks, not used here: t^2 / 8 zero-concentrated differential privacy (Cesar and Rogers,
"Bounding, concentrating, and truncating", ALT 2021), and the limit of many releases, a Gaussian of
parameter mu^2 = k t^2 / 4.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy

from jaxminimax.accounting import gaussian
from jaxminimax.mechanism.costs import PrivacyLoss

Profile: TypeAlias = Callable[[np.ndarray], np.ndarray]
ROUNDING = 32 * 2.0**-53  # of a term, for each unit of the logarithms that it is made from
_ROUNDED = 1 + 1e-12


class Pair(NamedTuple):
    """A dominating pair by its profiles at eps >= 0, which take and return arrays of any length.

    Attributes:
      right: H of P against Q, at least; falls with eps.
      left: H of Q against P, at least.
    """

    right: Profile
    left: Profile


def symmetric(profile: Profile) -> tuple[Pair, ...]:
    """Returns the pair that is its own mirror image."""
    return (Pair(profile, profile),)


class _Mixtures:
    """P = sum_j w_j N(j) against Q = sum_j v_j N(-j), w = Binomial(r, q), v = Binomial(s, q).

    The privacy loss grows with x, so H at e^eps is P - e^eps Q of a half line x > t: of the best
    one, so a bound needs t to be nearly the root of loss(t) = eps. Between t and the root the
    integrand is at most P's density times e^|loss(t) - eps| - 1, added for all beyond where
    the root may be: in y = x / z^2 the slope of the loss, the mean number of hits given x under P
    and under Q together, falls by at most e^(-max(r, s) dy), for a variance is at most max(r, s)
    times the mean. So the root is within 2 |loss(t) - eps| / slope, if that is 1 / max(r, s) at
    most; else all of P counts.
    """

    def __init__(self, r: int, s: int, rate: float, z: float) -> None:
        self.z, self.rate, self.r, self.s = z, rate, r, s
        self.none = [n * math.log1p(-rate) if n and rate < 1 else (-math.inf if n else 0.0)
                     for n in (r, s)]  # ln w_0, ln v_0
        # ln w_j = ln C(n, j) + j ln q + (n - j) ln(1 - q); at q = 1 all of it is at j = n
        self.w, self.v = (
            np.array([none] + [math.log(math.comb(n, j)) + j * math.log(rate)
                               + ((n - j) * math.log1p(-rate) if j < n else 0.0)
                               for j in range(1, n + 1)])
            if rate < 1 else np.append(np.full(n, -math.inf), 0.0)
            for none, n in zip(self.none, (r, s), strict=True))
        # the largest |ln w_j|, |ln v_j|: each is off by a few u of its size
        self.rare = max(-x for x in (*self.w, *self.v) if x > -math.inf)
        self.edge = math.inf if r else -self.none[1]  # losses end there
        # losses up to 37 standard deviations are tabulated, and refined by Newton's steps
        x = np.linspace(-37.0 * z - s, 37.0 * z + r, 4001)
        self.at = x / z**2
        self.loss = self._loss(self.at)[0]

    def _loss(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the loss at x = z^2 y, and its derivative in y."""
        out, slope = np.zeros_like(y), np.zeros_like(y)
        for sign, logs in ((1, self.w), (-1, self.v)):
            j = np.arange(len(logs))[:, None]
            # ln of w_j N(j) / N(0) at x = z^2 y:  ln w_j + j y - j^2 / (2 z^2); of Q with -y
            a = logs[:, None] + sign * j * y - 0.5 * (j / self.z) ** 2
            top = a.max(0)
            e = np.exp(a - top)
            total = e.sum(0)
            out += sign * (top + np.log(total))
            # d loss / dy = E_P[j | x] + E_Q[j | x], the mean number of hits given x
            slope += (j * e).sum(0) / total
        return out, slope

    def __call__(self, eps: np.ndarray) -> np.ndarray:
        """Returns the profile at every eps."""
        out = [self._some(piece) for piece in np.array_split(eps, len(eps) // 65536 + 1)]
        return np.concatenate(out)

    def _some(self, eps: np.ndarray) -> np.ndarray:
        far = eps > self.loss[-1]  # beyond the reach
        asked, eps = eps, np.minimum(eps, self.loss[-1])
        # the loss grows with y, so the table is inverted by reading it backwards
        y = np.interp(eps, self.loss, self.at)
        # the root is in the cell of the table that y is in, so no step is longer
        step = self.at[1] - self.at[0]
        for _ in range(8):
            loss, slope = self._loss(y)
            y = y - np.clip((loss - eps) / np.maximum(slope, 1e-300), -step, step)
            if np.max(np.abs(loss - eps)) < 1e-9:  # Newton's steps square it
                break
        loss, slope = self._loss(y)
        t, z = y * self.z**2, self.z
        # in y the logarithm of the slope changes by at most as much as there may be hits
        hits = max(self.r, self.s)
        none = sum(-x for x in self.none if x > -math.inf)
        # what a hit's exponent is made from, as often as there are hits, given x
        residual = np.abs(loss - eps) + ROUNDING * (
            1 + np.abs(eps) + none + slope * (self.rare + np.abs(y) + hits / (2 * z**2)))
        with np.errstate(under="ignore", over="ignore", invalid="ignore", divide="ignore"):
            away = 2 * residual / slope
            near = away * hits <= 1
            # the root is at t - z^2 dy or beyond; where dy > 1 / max(r, s), all of P counts
            nearest = np.where(near, t - z**2 * away, -np.inf)
            densest = np.where(near, 0.4 * z * away, np.inf)  # densities are below 0.4 / z
            beyond = scipy.special.log_ndtr(-t / z)
            value, size = self._unhit(eps, beyond)
            # P's mass between t and the root: at most all beyond `least`, and density times width
            between = np.exp(self.none[0]) * np.minimum(scipy.special.ndtr(-nearest / z), densest)
            for sign, logs in ((1, self.w), (-1, self.v)):
                for j in range(1, len(logs)):
                    if logs[j] == -math.inf:
                        continue
                    # + w_j P[N(j) > t]  or  - e^eps v_j P[N(-j) > t]
                    arg = (sign * j - t) / z
                    term = np.exp(logs[j] + (0 if sign == 1 else eps) + scipy.special.log_ndtr(arg))
                    value = value + sign * term
                    # a rounding of arg moves ln Phi(arg) by about arg^2 u at most
                    size = size + term * (1 + arg * arg + eps - logs[j])
                    if sign == 1:
                        between = between + math.exp(logs[j]) * np.minimum(
                            scipy.special.ndtr((j - nearest) / z), densest)
        # at least H: rounding of the terms, and how far t may be from the root, are added
        value = np.maximum(value, 0.0) + ROUNDING * size + np.expm1(residual) * between
        # beyond the reach a normal law has next to nothing; where nearby losses do not show that,
        # as losses near the edge are all alike, the profile is at most what it is at the reach
        beyond_reach = far & (asked - eps > residual)
        nothing = 1e-298  # more than a normal law has beyond 37 deviations
        value = np.maximum(np.where(beyond_reach, nothing, value), nothing)
        return np.where(asked > self.edge * (1 + 1e-14), 0.0, value)

    def _unhit(self, eps: np.ndarray, beyond: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (w_0 - e^eps v_0) P[N(0) > t], which cancels, and its size for rounding."""
        p, q = self.none
        if not (math.isfinite(p) and math.isfinite(q)):
            # w_0 = 0 or v_0 = 0: nothing cancels
            first, second = np.exp(p + beyond), np.exp(q + eps + beyond)
            return first - second, (first + second) * (1 + eps - beyond)
        # w_0 - e^eps v_0 = w_0 (1 - e^gap), by expm1 where both are close
        gap = eps + (q - p)
        value = np.where(gap > 30, np.exp(p + beyond) - np.exp(eps + q + beyond),
                         -np.expm1(np.minimum(gap, 30.0)) * np.exp(p + beyond))
        return value, (np.abs(value) * (1 + eps - 2 * beyond)
                       + np.exp(p + beyond) * (eps + abs(q) + abs(p)))


# --- selections ---


class Block(NamedTuple):
    """The profile of several releases.

    Attributes:
      times: k.
      cell: h.
      values: at least H at e^epsilon for epsilon = 0, h, 2 h, ..., k t; the last one is 0.
    """

    times: int
    cell: float
    values: np.ndarray

    @property
    def largest(self) -> float:
        """The largest loss, k t: H is 0 from there on."""
        return self.cell * (len(self.values) - 1)

    def profile(self, epsilon: np.ndarray) -> np.ndarray:
        """Bounds H at e^epsilon, epsilon >= 0, by chords in e^epsilon.

        The same for both orders of the pair; for epsilon < 0 see its mirror image above.
        """
        epsilon = np.asarray(epsilon, np.float64)
        last = len(self.values) - 1
        # the cell [i h, (i + 1) h] that epsilon is in
        i = np.clip(np.floor(epsilon / self.cell).astype(np.int64), 0, last - 1)
        inside = np.minimum(epsilon, self.largest) - i * self.cell
        # (e^epsilon - e^(i h)) / (e^((i + 1) h) - e^(i h))
        weight = np.clip(np.expm1(inside) / math.expm1(self.cell), 0.0, 1.0)
        between = (1 - weight) * self.values[i] + weight * self.values[i + 1]
        # the rounding of the weight, besides that of the values
        between = np.minimum(between * _ROUNDED + 1e-12 * self.values[i], 1.0)
        return np.where(epsilon >= self.largest, 0.0, between)


def one_selection(t: float, epsilon: np.ndarray) -> np.ndarray:
    """Returns the largest divergence of one release, in closed form; 0 <= epsilon, 0 from t on."""
    # (1 - e^((epsilon - t) / 2))^2 / (1 - e^-t)
    unspent = -np.expm1(np.minimum((np.asarray(epsilon, np.float64) - t) / 2, 0.0))
    return unspent**2 / -math.expm1(-t)


def _points(t: float) -> int:
    """Returns M, the number of cells of the grid in [0, t]."""
    # cells of 1 / 16 at most, as long as that takes no more than 2,000
    return min(max(24, math.ceil(16 * t)), 2000)


def split(t: float, times: int) -> tuple[int, int, int]:
    """Returns the releases of a block, the number of blocks, and the releases left over.

    The blocks are as equal as their number allows, and short enough for the work that is allowed.
    """
    # step k of a block takes k M cells times M points, so a block of k takes k^2 M^2 / 2
    work = 2.5e7
    longest = max(1, min(96, int(math.sqrt(2 * work) / _points(t))))
    blocks = -(-times // longest)
    length = -(-times // blocks)
    return length, times // length, times % length


@functools.lru_cache(maxsize=64)
def _blocks(t: float, lengths: tuple[int, ...]) -> tuple[Block, ...]:
    if not (t > 0 and math.isfinite(t)):
        raise ValueError(f"t must lie in (0, inf), got {t!r}.")
    m = _points(t)
    t *= _ROUNDED  # or multiples of h could fall short of k t
    h = t / m
    c = h * np.arange(m + 1)
    # p_c = (e^c - 1) / (e^t - 1), without overflow
    p = np.exp(c - t) * -np.expm1(-c) / -math.expm1(-t)  # 0, ..., 1
    # 1 - p_c = (1 - e^(c - t)) / (1 - e^-t), where a difference from 1 would cancel
    complement = -np.expm1(c - t) / -math.expm1(-t)
    dp, steep = np.diff(p), min(math.expm1(h), 1e300) / 4
    cells = h * np.arange(m + 1)
    values = one_selection(t, cells) * _ROUNDED
    block_of = {1: Block(1, h, values)}
    for k in range(2, max(lengths) + 1):
        last = k * m
        # V at y = t, ..., h by reflection, then at 0, -h, ..., then nothing
        above = (-np.expm1(-cells) + np.exp(-cells) * values[: m + 1])[:0:-1]
        v = np.concatenate([above, values, np.zeros(2 * m)])
        unmoved = [v[m - j: m - j + last + 1] for j in range(m + 1)]  # y + c_j
        shifted = [v[2 * m - j: 2 * m - j + last + 1] for j in range(m + 1)]  # y + c_j - t
        # (1 - p_c) V(y + c) + p_c V(y + c - t) at c_0, ..., c_M, see (1)
        value_at = [complement[j] * unmoved[j] + p[j] * shifted[j] for j in range(m + 1)]
        best = np.zeros(last + 1)
        for j in range(m):
            dv, dw = unmoved[j + 1] - unmoved[j], shifted[j + 1] - shifted[j]
            # dp (dV - dW)_+ / 4 + (e^h - 1) max(dV, dW) / 4
            grown = np.maximum(np.maximum(dv, dw), 0.0)
            slack = dp[j] / 4 * np.maximum(dv - dw, 0.0) + steep * grown
            # value(c) between c_j and c_{j+1}, see above
            best = np.maximum(best, np.maximum(value_at[j], value_at[j + 1]) + slack)
        values = np.clip(best * _ROUNDED, 1e-290, 1.0)  # so that no divergence underflows
        values[-1] = 0.0  # no loss exceeds k t
        block_of[k] = Block(k, h, values)
    return tuple(block_of[k] for k in lengths)


def block(t: float, times: int) -> Block:
    """Returns the profile of `times` releases of one block, an upper bound.

    Args:
      t: how far a record (or, for several, all of them together) moves one score, in units of the
        scale of the Gumbel noise.
      times: k; memory and time are for some hundreds at most, see `split`.
    """
    return _blocks(float(t), (times,))[0]


# --- all kinds ---

# Dominating pairs of some releases and how often each is repeated. One pair where it is its own
# mirror image, or holds for either direction; else k + 1, r = 0, ..., k people being absent from
# the other data set.
Charged: TypeAlias = list[tuple[tuple[Pair, ...], int]]


def _poisson(loss: PrivacyLoss, times: int, neighbours: str, people: int) -> Charged:
    # 1 - p: H of a mean of pairs is at most the mean, and 0 where P = Q and eps >= 0
    read = (1 - loss.not_read(people)) * (1 + 2.0**-50)

    def mixture(r: int, s: int) -> Profile:
        profile = _Mixtures(r, s, loss.rate, loss.z)
        # nothing of a sample that cannot hold the records, at losses of 0 and more
        return (lambda eps: read * profile(eps)) if loss.filled else profile

    if neighbours == "replace_one":
        return [(symmetric(mixture(people, people)), times)]
    # the reverse of mixture r is mixture k - r, mirrored
    mixtures = [mixture(r, people - r) for r in range(people + 1)]
    return [(tuple(map(Pair, mixtures, reversed(mixtures))), times)]


def _fixed(loss: PrivacyLoss, times: int, neighbours: str, people: int) -> Charged:
    if people == 1:
        # H_a((1 - q) N(0) + q N(1) || N(0)) = q delta_1(1 + (a - 1) / q); z / 2 is over 2 C
        return [(symmetric(_Mixtures(1, 0, loss.rate, loss.z / 2)), times)]
    return _replacement(loss, times, neighbours, people)


def _replacement(loss: PrivacyLoss, times: int, neighbours: str, people: int) -> Charged:
    # noise over the sensitivity of a slot, 2 C
    profile = gaussian.Profile(loss.population, loss.batch, loss.z / 2,
                               loss.kind == "replacement", people, loss.rate)
    return [(symmetric(profile), times)]


def _laplace(loss: PrivacyLoss, times: int, neighbours: str, people: int) -> Charged:
    # H = 1 - e^((eps - t) / 2) up to t = k / z, which is rounded up
    reach = people / loss.z * (1 + 1e-15)
    return [(symmetric(lambda eps: np.where(
        eps < reach, -np.expm1(np.minimum(eps - reach, 0.0) / 2) * (1 + ROUNDING), 0.0)), times)]


def _selection_blocks(loss: PrivacyLoss, times: int, neighbours: str, people: int) -> Charged:
    # k people move scores by k moves in all, and a loss stays in an interval of that length
    # the k moves add up to at most k / z, rounded up
    move = people / loss.z * (1 + 1e-15)
    length, blocks, leftover = split(move, times)
    counts = {length: blocks} | ({leftover: 1} if leftover else {})
    return [(symmetric(selections.profile), counts[selections.times])
            for selections in _blocks(float(move), tuple(counts))]


# What is composed for `times` releases of a kind, for k records of one person.
KINDS: dict[str, Callable[[PrivacyLoss, int, str, int], Charged]] = {
    "poisson": _poisson, "fixed": _fixed, "replacement": _replacement, "laplace": _laplace,
    "selection": _selection_blocks}
