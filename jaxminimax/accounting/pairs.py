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

Samples of a fixed size are in `gaussian`. Laplace noise on a number that k people move k times
as far has losses within k / z. One number that all of them move is the worst case: for two that are
moved by t' <= t of their scale, and c = eps - t >= -t', eps >= 0,

    H = 1 - e^((c - t') / 2) (1 + (t' - c) / 4)   <=   1 - e^((c - t') / 2),

the latter that of one number moved by t + t'; for c < -t' the factor is 1 + t' / 2.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy

from jaxminimax.accounting import gaussian, selection
from jaxminimax.mechanism.costs import PrivacyLoss

Profile: TypeAlias = Callable[[np.ndarray], np.ndarray]
ROUNDING = 32 * 2.0**-53  # of a term, for each unit of the logarithms that it is made from
_TABLE = 4001  # places at which a privacy loss is tabulated before Newton's steps
_REACH = 37.0  # standard deviations
_NOTHING = 1e-298  # more than a normal law has beyond 37 deviations


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
        x = np.linspace(-_REACH * z - s, _REACH * z + r, _TABLE)
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
        out = [self._some(part) for part in np.array_split(eps, len(eps) // 65536 + 1)]
        return np.concatenate(out)

    def _some(self, eps: np.ndarray) -> np.ndarray:
        far = eps > self.loss[-1]  # beyond the reach
        asked, eps = eps, np.minimum(eps, self.loss[-1])
        y = np.interp(eps, self.loss, self.at)
        step = self.at[1] - self.at[0]
        for _ in range(8):
            loss, slope = self._loss(y)
            y = y - np.clip((loss - eps) / np.maximum(slope, 1e-300), -step, step)
            if np.max(np.abs(loss - eps)) < 1e-9:  # Newton's steps square it
                break
        loss, slope = self._loss(y)
        t, z = y * self.z**2, self.z
        hits = max(self.r, self.s)
        none = sum(-x for x in self.none if x > -math.inf)
        # what a hit's exponent is made from, as often as there are hits, given x
        residual = np.abs(loss - eps) + ROUNDING * (
            1 + np.abs(eps) + none + slope * (self.rare + np.abs(y) + hits / (2 * z**2)))
        with np.errstate(under="ignore", over="ignore", invalid="ignore", divide="ignore"):
            away = 2 * residual / slope
            near = away * hits <= 1
            # the root is at t - z^2 dy or beyond; where dy > 1 / max(r, s), all of P counts
            least = np.where(near, t - z**2 * away, -np.inf)
            most = np.where(near, 0.4 * z * away, np.inf)  # densities are below 0.4 / z
            beyond = scipy.special.log_ndtr(-t / z)
            value, size = self._unhit(eps, beyond)
            # P's mass between t and the root: at most all beyond `least`, and density times width
            between = np.exp(self.none[0]) * np.minimum(scipy.special.ndtr(-least / z), most)
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
                            scipy.special.ndtr((j - least) / z), most)
        # at least H: rounding of the terms, and how far t may be from the root, are added
        value = np.maximum(value, 0.0) + ROUNDING * size + np.expm1(residual) * between
        # beyond the reach a normal law has next to nothing; where nearby losses do not show that,
        # as losses near the edge are all alike, the profile is at most what it is at the reach
        beyond_reach = far & (asked - eps > residual)
        value = np.maximum(np.where(beyond_reach, _NOTHING, value), _NOTHING)
        return np.where(asked > self.edge * (1 + 1e-14), 0.0, value)

    def _unhit(self, eps: np.ndarray, beyond: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (w_0 - e^eps v_0) P[N(0) > t], which cancels, and its size for rounding."""
        p, q = self.none
        if not (math.isfinite(p) and math.isfinite(q)):
            # w_0 = 0 or v_0 = 0: nothing cancels
            one, two = np.exp(p + beyond), np.exp(q + eps + beyond)
            return one - two, (one + two) * (1 + eps - beyond)
        # w_0 - e^eps v_0 = w_0 (1 - e^gap), by expm1 where both are close
        gap = eps + (q - p)
        value = np.where(gap > 30, np.exp(p + beyond) - np.exp(eps + q + beyond),
                         -np.expm1(np.minimum(gap, 30.0)) * np.exp(p + beyond))
        return value, (np.abs(value) * (1 + eps - 2 * beyond)
                       + np.exp(p + beyond) * (eps + abs(q) + abs(p)))


# Dominating pairs of some releases and how often each is repeated. One pair where it is its own
# mirror image, or holds for either direction; else k + 1, r = 0, ..., k people being absent from
# the other data set.
Charged: TypeAlias = list[tuple[tuple[Pair, ...], int]]


def _poisson(loss: PrivacyLoss, times: int, neighbours: str, people: int) -> Charged:
    if neighbours == "replace_one":
        return [(symmetric(_Mixtures(people, people, loss.rate, loss.z)), times)]
    # the reverse of mixture r is mixture k - r, mirrored
    mixtures = [_Mixtures(r, people - r, loss.rate, loss.z) for r in range(people + 1)]
    return [(tuple(map(Pair, mixtures, reversed(mixtures))), times)]


def _fixed(loss: PrivacyLoss, times: int, neighbours: str, people: int) -> Charged:
    if people == 1:
        # H_a((1 - q) N(0) + q N(1) || N(0)) = q delta_1(1 + (a - 1) / q); z / 2 is over 2 C
        return [(symmetric(_Mixtures(1, 0, loss.rate, loss.z / 2)), times)]
    return _replacement(loss, times, neighbours, people)


def _replacement(loss: PrivacyLoss, times: int, neighbours: str, people: int) -> Charged:
    profile = gaussian.Profile(loss.population, loss.batch, loss.z / 2,
                               loss.kind == "replacement", people, loss.rate)
    return [(symmetric(profile), times)]


def _laplace(loss: PrivacyLoss, times: int, neighbours: str, people: int) -> Charged:
    # H = 1 - e^((eps - t) / 2) up to t = k / z, which is rounded up
    most = people / loss.z * (1 + 1e-15)
    return [(symmetric(lambda eps: np.where(
        eps < most, -np.expm1(np.minimum(eps - most, 0.0) / 2) * (1 + ROUNDING), 0.0)), times)]


def _selection_blocks(loss: PrivacyLoss, times: int, neighbours: str, people: int) -> Charged:
    # k people move scores by k moves in all, and a loss stays in an interval of that length
    move = people / loss.z * (1 + 1e-15)
    return [(symmetric(block.profile), many)
            for block, many in selection.blocks(move, times)]


# What is composed for `times` releases of a kind, for k records of one person.
KINDS: dict[str, Callable[[PrivacyLoss, int, str, int], Charged]] = {
    "poisson": _poisson,
    "fixed": _fixed,
    "replacement": _replacement,
    "laplace": _laplace,
    "selection": _selection_blocks,
}
