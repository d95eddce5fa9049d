"""Renyi divergences of charges: exact ones for profiles, and upper bounds for filters.

**Exact divergences for profiles.** In units of the clip norm, with noise z and B(k, q) the law of
how many of k records of one person are in a Poisson sample, one release has the pair

    P = sum_j B(k, q)(j) N(j, z^2)   against   Q = sum_j B(k, q)(j) N(-j, z^2)

for records that are replaced; for r records that are added while k - r are removed the laws are
B(r, q) and B(k - r, q), and the largest divergence over r = 0, ..., k counts. Each dominates one
release for any dimension and any adaptive choice, at every order of its hockey-stick divergence,
and so in Renyi divergence, which is an integral of those with positive weights; Renyi divergences
of adaptive releases add up. Gaussian releases and Laplace ones have closed forms.

Fixed-size samples have none: their curve is a bound joined from two parts, without an exact pair.
A Renyi divergence leaves out the failures of samplers and noise, because it is infinite as soon as
an event has positive probability on one side and none on the other. The probability of failures is
printed with it, as in the approximate concentrated privacy of the first source.

The integrand P^a Q^(1-a) is a mixture of Gaussians whose centres lie between 0 and (2 a - 1) k, so
the quadrature reaches from -20 z to (2 a - 1) k + 20 z. What is added up is

    Q (e^(a l) - 1 - a (e^l - 1)) >= 0,       l = ln(P / Q),

whose integral is that of P^a Q^(1-a) less 1, so that small divergences keep relative accuracy. The
logarithms are analytic up to pi z^2 away from the real line (the roots of the mixtures, polynomials
in e^(x / z^2), are real and negative: binomial ones are, and a factor e^(-c j^2) on coefficients
keeps that), where the trapezoid rule converges geometrically; an order at which twice the step
gives another number is left out.

Sources: Bun and Steinke, "Concentrated differential privacy: simplifications, extensions, and lower
bounds", TCC 2016; Bun, Dwork, Rothblum and Steinke, "Composable and versatile privacy via truncated
CDP", STOC 2018; Mironov, Talwar and Zhang, "Renyi differential privacy of the sampled Gaussian
mechanism", 2019.

**Upper bounds for filters**, of one release at one order.

For a privacy loss and an order a > 1 the answer is (rho, failure): for neighbouring P, Q in either
direction there are parts of them, P minus at most `failure` and Q minus at most `failure` of mass,
with integral of P^a Q^(1 - a) at most e^((a - 1) rho).

* Gaussian noise, unsampled, mu the distance in units of the noise: rho = a mu^2 / 2, exact.
* Laplace noise of scale z: rho = ln[ a / (2a - 1) e^((a - 1) / z) + (a - 1) / (2a - 1) e^(-a / z) ]
  / (a - 1), exact.
* Poisson samples: the pair (1 - q) N(0) + q N(+-1) for a replaced record, its own mirror image; for
  one present or absent that mixture against N(0), in both directions. They dominate every pair of
  neighbours, given everything released before, and a Renyi divergence is a positive mixture of
  hockey-stick divergences, so theirs is the larger.
* The index of a largest score, one of the family in `pairs`, whose losses are c with
  probability 1 - p_c and c - t, chosen anew in every release by looking at those before: rho is the
  largest of the family's, for the best c at one order does not depend on the past. With u = e^c and
  g = (1 - e^(-(a - 1) t)) / (e^t - 1), E_Q (P / Q)^a = u^(a - 1) (1 + g - g u), largest at
  u = (a - 1) (1 + g) / (a g), where it is u^(a - 1) (1 + g) / a. That is inside of (1, e^t), at
  whose ends it is 1. Exact; at most a t^2 / 8 (Cesar and Rogers), and at most t.
* All else, also k records of one person on Poisson samples: from the profiles F(x) >= H_{e^x}(P ||
  Q) and G(x) >= H_{e^x}(Q || P), x >= 0, of the pairs in `pairs` that dominate,

      integral of P^a Q^(1 - a) = 1 + a (a - 1) integral over x >= 0 of
                                  e^((a - 1) x) F(x) + e^(-a x) G(x) dx,

  F convex in e^x, so that chords are above it. Losses beyond the last x, of mass F there, are
  `failure`: the dominating pair has them as an atom at infinity. Of a pair for each direction the
  largest counts.

The Poisson integral is by the trapezoid rule. On the line x + i d the Gaussian grows by e^(d^2 /
2 z^2), and the mixture that is in the denominator shrinks by cos(d / 2 z^2) at most, while that in
the numerator does not grow: |s + t e^(i u)| >= (s + t) cos(u / 2). For d <= pi z^2 / 2 both factors
together are at most e^(d^2 A / 2), A = 1 / z^2 + (a - 1) / (3.5 z^4), and the rule with step h is
off by at most a part 2 e^(d^2 A / 2) / (e^(2 pi d / h) - 1). The step makes that 2 e^-40.

The integrand's logarithm falls by at least s / z^2 at a distance s outside of [-2a, 2a], so 14 z
more leave out less than rounding does.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import scipy

from jaxminimax.accounting import curve, pairs, roots
from jaxminimax.mechanism.costs import Charge, PrivacyLoss

# a - 1 grows by an eighth: what lies between two orders is then known to 0.4 %
ORDERS = 1 + np.geomspace(0.005, 1024.0, 105)


class Concentrated(NamedTuple):
    """The bound D_a <= rho a for all 1 < a <= `up_to`: (rho, omega)-truncated concentrated privacy.

    Attributes:
      rho: zCDP's if `up_to` is infinite.
      up_to: the largest order that it is shown for.
    """

    rho: float
    up_to: float


def divergences(cost: Charge, neighbours: str, people: int = 1) -> np.ndarray | None:
    """Returns D_a of all releases at `ORDERS`, infinite where it was not computed.

    What samplers and noise may fail by is left out; `Charge.ratio` is in it.

    Args:
      cost: of one alternative.
      neighbours: the relation.
      people: k records that differ.

    Returns:
      None where some release has no exact pair.
    """
    # Gaussian releases: D_a = a mu^2 / 2
    total = 0.5 * ORDERS * (people * curve.shift(neighbours)) ** 2 * cost.gaussian
    for loss, times in cost.losses:
        divergence = _release_divergences(loss, neighbours, people)
        if divergence is None:
            return None
        total = total + times * divergence
    # probabilities within e^(+- ratio / 2) on either side
    # D_a grows by at most (r / 2) (a + (a - 1)) / (a - 1)
    return total + (2 * ORDERS - 1) / (ORDERS - 1) * people * cost.ratio / 2


def _release_divergences(loss: PrivacyLoss, neighbours: str, people: int) -> np.ndarray | None:
    if loss.z == 0:
        return np.full(ORDERS.shape, np.inf)
    match loss.kind:
        case "laplace" if neighbours == "replace_one":
            # k people move the number k times as far
            return np.array([_laplace_at(loss.z / people, a) for a in ORDERS])
        case "poisson":
            replaced = neighbours == "replace_one"
            pairs = [(people, people)] if replaced else [(r, people - r) for r in range(people + 1)]
            one = np.max([_mixtures(loss.rate, loss.z, *pair) for pair in pairs], axis=0)
            return _rarely(loss.not_read(people), one, ORDERS)
    return None


def _rarely(not_read: float, rho: Any, order: Any) -> Any:
    """Returns D_a of a release that is the same on both data sets so often, else of D_a = rho."""
    if not not_read:
        return rho
    # E_Q (P / Q)^a = p + (1 - p) e^((a - 1) rho) = e^((a - 1) rho) (1 - p (1 - e^-((a - 1) rho)))
    x = (order - 1) * rho
    return (x + np.log1p(not_read * np.expm1(-x))) / (order - 1) * (1 + 1e-12)


@functools.lru_cache(maxsize=256)
def _mixtures(rate: float, z: float, up: int, down: int) -> np.ndarray:
    """Computes D_a of the mixture with `up` records against that with `down` opposite ones."""
    out = np.full(ORDERS.shape, np.inf)
    # the logarithms are analytic up to pi z^2 away from the real line
    step = min(z, z * z) / 8
    for i, order in enumerate(ORDERS):
        # the centres of P^a Q^(1 - a) lie between 0 and (2 a - 1) k
        far = (2 * order - 1) * max(up, down)
        if (far + 40 * z) / step > 300_000:  # points of a quadrature
            break
        # and 20 deviations beyond, where less is left than rounding
        x = np.arange(-20 * z, far + 20 * z + 2 * step, step)
        p, q = _over_centre(x, rate, z, up), _over_centre(-x, rate, z, down)
        # ln of Q (e^(a l) - 1 - a (e^l - 1)), l = ln(P / Q) = p - q
        base = -(x**2) / (2 * z * z) - math.log(z * math.sqrt(2 * math.pi)) + q
        logs = base + _log_excess(p - q, order)
        fine, coarse = (scipy.special.logsumexp(f) + math.log(h)
                        for f, h in ((logs, step), (logs[::2], 2 * step)))
        # D_a = ln(1 + integral) / (a - 1)
        fine_divergence, coarse_divergence = (np.logaddexp(0.0, f) / (order - 1)
                                              for f in (fine, coarse))
        # a divergence is kept if two steps agree on it
        if abs(fine_divergence - coarse_divergence) <= 1e-7 * fine_divergence + 1e-300:
            out[i] = fine_divergence * (1 + 1e-9) + 1e-15 * order
    return out


def _over_centre(x: np.ndarray, rate: float, z: float, records: int) -> np.ndarray:
    """Returns ln of sum_j B(records, rate)(j) N(j, z^2) / N(0, z^2), accurate near 0."""
    j = np.arange(1, records + 1)
    weights = scipy.stats.binom.pmf(j, records, rate)
    j, weights = j[weights > 0], weights[weights > 0]
    if not len(j):
        return np.zeros_like(x)
    # ln N(j) / N(0) at x
    y = (2 * np.outer(x, j) - j**2) / (2 * z * z)
    # w_0, the weight of N(0): no record is sampled
    none = (1 - rate) ** records
    large = scipy.special.logsumexp(np.column_stack([np.zeros_like(x), y]), axis=1,
                                    b=np.append(none, weights)) if none > 0 else (
        scipy.special.logsumexp(y, axis=1, b=weights))
    # ln(1 + sum_j w_j (e^y_j - 1)), where all y_j are small
    small = np.log1p(np.maximum(np.sum(weights * np.expm1(np.minimum(y, 1.0)), axis=1), -1.0)
                     ) if none > 0 else large
    return np.where(y.max(axis=1) < 1.0, small, large)


def _log_excess(loss: np.ndarray, order: float) -> np.ndarray:
    """Returns ln of e^(a l) - 1 - a (e^l - 1), which is at least 0."""
    al = order * loss
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # about a (a - 1) l^2 / 2 near 0, where differences from 1 would lose it
        near = np.log(np.maximum(np.expm1(al) - order * np.expm1(loss), 0.0))
        # l large and positive: 1 - a e^((1-a) l) + (a - 1) e^(-a l) of e^(a l) is left
        remainder = np.log1p(np.minimum((order - 1) * np.exp(-al) - order * np.exp(loss - al), 0.0))
    return np.where(al > 30, al + np.where(al > 30, remainder, 0.0), near)


def concentrated(cost: Charge, neighbours: str, people: int = 1) -> Concentrated | None:
    """Returns the rho of concentrated privacy, and the orders that it holds for.

    Gaussians alone have D_a = c a, and with the ratio r of the realised noise at most c a +
    r (2 a - 1) / (2 (a - 1)); as D_a grows with a, that is at most (c + (2 r c)^(1/2) + r) a at all
    orders (split at a - 1 = (r / (2 c))^(1/2)). Of other charges, (a - 1) D_a is convex in a and so
    below its chords, whence D_a / a is at most the larger of both ends times 1 + (a_2 - a_1)^2 / (4
    a_1 (a_1 - 1)) between two orders; below the first D_a <= D_{a_1}.

    Returns:
      None without exact pairs, or where not even order 2 was computed.
    """
    if not cost.losses:
        # c = mu^2 / 2, D_a = c a
        r, c = people * cost.ratio, 0.5 * (people * curve.shift(neighbours)) ** 2 * cost.gaussian
        return Concentrated(c + math.sqrt(2 * r * c) + r, math.inf) if math.isfinite(c) else None
    divergence_at = divergences(cost, neighbours, people)
    if divergence_at is None:
        return None
    ratio, a = divergence_at / ORDERS, ORDERS
    # by how much a chord of (a - 1) D_a may exceed it, over a: 1 + (da)^2 / (4 a (a - 1))
    between = 1 + np.diff(a) ** 2 / (4 * a[:-1] * (a[:-1] - 1))
    # below the first order D_a / a <= D_{a_1}, as a > 1 and D_a grows with a
    upto = np.maximum.accumulate(
        np.append(divergence_at[0], np.maximum(ratio[1:], ratio[:-1]) * between))
    two = upto[np.searchsorted(a, 2.0)]
    if not math.isfinite(two):
        return None
    # D_a / a may exceed its value at order 2 by a twentieth within the printed orders
    last = int(np.flatnonzero(upto <= 1.05 * two)[-1])
    return Concentrated(float(upto[last]), float(a[last]))


def divergence(charge: Charge, order: float, neighbours: str, allowance: float,
               people: int = 1) -> tuple[float, float]:
    """Returns (rho, failure) of a charge, without the failures of its sampler.

    Releases add up, also if each is chosen by looking at those before it: `filters.Renyi`.

    Args:
      charge: what is released.
      order: a > 1.
      neighbours: the relation.
      allowance: what failures may be in all; where they save divergence, they are up to that.
      people: k, how many records of one person may differ.

    Returns:
      Infinity where the noise is too small to compute one.

    Raises:
      ValueError: for a loss that there is no divergence for.
    """
    # a mu^2 / 2
    rho = 0.5 * order * (people * curve.shift(neighbours)) ** 2 * charge.gaussian
    failure = 0.0
    for loss, times in charge.losses:
        # a power of 10, to cache by
        tail = 10.0 ** math.floor(math.log10(max(allowance / times, 1e-22)))
        bound, fails = loss_divergence(loss, times, float(order), neighbours, tail, people)
        rho, failure = rho + bound, failure + fails
    return rho * (1 + 1e-12), failure * (1 + 1e-12)


@functools.lru_cache(maxsize=4096)
def loss_divergence(loss: PrivacyLoss, times: int, order: float, neighbours: str,
                    tail: float = 1e-18, people: int = 1) -> tuple[float, float]:
    """Returns (rho, failure) of `times` releases, with failures of about `tail` each at most."""
    if loss.z == 0:
        return math.inf, 0.0
    if loss.kind == "poisson" and people == 1:
        one = _poisson_at(loss.rate, loss.z, order, neighbours)
        return times * float(_rarely(loss.not_read(1), one, order)), 0.0
    if loss.kind == "laplace":
        return times * _laplace_at(loss.z / people, order), 0.0
    if loss.kind == "selection":
        # t = k / z, rounded up: k people move scores by k moves in all
        return times * _selection_at(people / loss.z * (1 + 1e-15), order), 0.0
    if loss.kind not in pairs.KINDS:
        raise ValueError(f"There is no Renyi divergence for a release of kind {loss.kind!r} here: "
                         "open the ledger with filter='basic'.")
    rho = failure = 0.0
    for directions, count in pairs.KINDS[loss.kind](loss, times, neighbours, people):
        both = [_pair_divergence(pair, order, tail) for pair in directions]
        # divergences of adaptive releases add up, and the larger of both directions bounds either
        rho += count * max(bound for bound, _ in both)
        failure += count * max(fails for _, fails in both)
    return rho, failure


def pure(epsilon: float, order: float) -> float:
    """Returns the largest rho of what is (epsilon, 0)-private: that of randomised response."""
    if not math.isfinite(epsilon):
        return math.inf
    mass = float(np.logaddexp(0, epsilon))
    # (e^(a eps) + e^((1 - a) eps)) / (1 + e^eps)
    near, far = order * epsilon - mass, (1 - order) * epsilon - mass
    return (max(float(np.logaddexp(near, far)), 0.0) + 1e-15) / (order - 1) * (1 + 1e-12)


def _laplace_at(z: float, order: float) -> float:
    # a / (2 a - 1) e^((a - 1) / z) + (a - 1) / (2 a - 1) e^(-a / z)
    near = math.log(order / (2 * order - 1)) + (order - 1) / z
    far = math.log((order - 1) / (2 * order - 1)) - order / z
    # the sum is 1 + O(1 / z^2), of terms that are rounded
    return (max(float(np.logaddexp(near, far)), 0.0) + 1e-15) / (order - 1) * (1 + 1e-14)


def _selection_at(t: float, order: float) -> float:
    # a t^2 / 8 by Cesar and Rogers, and t, the largest loss
    simple = min(order * t * t / 8, t) * (1 + 1e-14)
    if t > 700:  # e^t may overflow
        return simple
    g = -math.expm1(-(order - 1) * t) / math.expm1(t)
    # rho = ln(u^(a - 1) (1 + g) / a) / (a - 1) at the best u
    u = (order - 1) * (1 + g) / (order * g)
    exact = math.log(u) + (math.log1p(g) - math.log(order)) / (order - 1)
    # logarithms of numbers near u, 1 + g and a, each of which a few roundings move
    return min(simple, exact + 1e-14 * (1 + t + (1 + math.log(order)) / (order - 1)))


def _poisson_at(rate: float, z: float, order: float, neighbours: str) -> float:
    # A = 1 / z^2 + (a - 1) / (3.5 z^4)
    curved = 1 / z**2 + (order - 1) / (3.5 * z**4)
    # d, in which the integrand is analytic and grows by at most e^(d^2 A / 2)
    height = min(0.5 * math.pi * z * z, 9 / math.sqrt(curved))
    # 2 pi d / h = 40 + d^2 A / 2, so that the rule is off by a part 2 e^-40
    step = 2 * math.pi * height / (40 + 0.5 * height**2 * curved)
    # the integrand has nothing beyond 14 deviations outside of [-2 a, 2 a]
    points = math.ceil((2 * order + 14 * z) / step)
    if not points <= 4_000_000:
        return math.inf
    x = step * np.arange(-points, points + 1)
    # ln of N(0), and below of (1 - q) N(0) + q N(to), less that of the factor of both
    center = -(x**2) / (2 * z * z)

    def mixture(to: float) -> np.ndarray:
        far = -((x - to) ** 2) / (2 * z * z) + math.log(rate)
        return np.logaddexp(center + math.log1p(-rate), far) if rate < 1 else far

    # a replaced record has a pair that is its own mirror image, another one both orders
    if neighbours == "replace_one":
        pairs = [(mixture(1.0), mixture(-1.0))]
    else:
        pairs = [(mixture(1.0), center), (center, mixture(1.0))]
    scale = math.log(step / (z * math.sqrt(2 * math.pi)))
    logs = []
    for p, q in pairs:
        # ln of P^a Q^(1 - a)
        f = order * p + (1 - order) * q
        top = float(f.max())
        counts = f > top - 60
        # rounding of the largest exponents that count; added, so that rho is rounded up
        off = 2e-15 * (1 + order * float(np.max(np.abs(p[counts]) + np.abs(q[counts]))))
        logs.append(top + math.log(float(np.sum(np.exp(f - top)))) + scale + off)
    return max(*logs, 0.0) / (order - 1)


def _pair_divergence(pair: pairs.Pair, order: float, tail: float) -> tuple[float, float]:
    forward, backward = (_tabulated(profile, order, tail) for profile in pair)
    if forward is None or backward is None:
        return math.inf, 0.0
    (x, above), (y, below) = forward, backward
    # of P the losses beyond the last x are left out, an atom of mass F there
    failure, beyond = float(above[-1]), float(below[-1])
    # beyond the last y, the integral of e^(-a x) G(x) is at most G(y) e^(-a y) / a
    total = _log_sum(np.concatenate([
        _chords(x, above - failure, order - 1), _chords(y, below, -order),
        [math.log(beyond / order) - order * y[-1] if beyond > 0 else -math.inf]]))
    # ln(1 + a (a - 1) integral) / (a - 1)
    value = float(np.logaddexp(0.0, total + math.log(order * (order - 1)) + 1e-9))
    return value / (order - 1), failure


def _tabulated(profile: pairs.Profile, order: float,
               tail: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Tabulates a profile at losses from 0 to where it is at most `tail`; None if too far."""
    top = roots.grown(lambda loss: float(profile(np.array([loss]))[0]) > tail, 1e-5, 1.25, 1000.0)
    if top > 1000:
        return None
    # cells from 1e-6 of the range on, near 0, to what the order wants at the other end
    places = np.linspace(0.0, 10.0, math.ceil(min(4000 + 1000 * top * order, 20_000)) + 1)
    # sinh is linear near 0 and geometric far from it
    x = top * np.sinh(places) / math.sinh(10.0)
    # a profile falls: a bound at a smaller loss holds at a larger one
    return x, np.minimum.accumulate(profile(x)) * (1 + 1e-12)


def _log_sum(logs: np.ndarray) -> float:
    top = float(np.max(logs))
    return top + math.log(float(np.sum(np.exp(logs - top))))


def _chords(x: np.ndarray, h: np.ndarray, rate: float) -> np.ndarray:
    """Bounds ln of the integrals of e^(rate x) h(x) over cells; h falls and is convex in e^x."""
    width = np.diff(x)
    # the integral of e^(rate x) over a cell, over its value at the left end
    weight = np.expm1(rate * width) / rate
    # with u = e^(x - x_i): h_i + (h_i+1 - h_i) (u - 1) / expm1(width), times u^(rate - 1) du
    weighted_rise = np.expm1((rate + 1) * width) / (rate + 1) - weight
    share = weighted_rise / np.expm1(width) * np.maximum(1 - 1e-6 - 1e-15 / width, 0.0)
    with np.errstate(divide="ignore"):
        return rate * x[:-1] + np.log(h[:-1] * (weight - share) + h[1:] * share)
