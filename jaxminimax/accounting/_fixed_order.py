"""Renyi divergences of one release at one order, as upper bounds, for filters.

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
* The index of a largest score, one of the family of `_selection`, whose losses are c with
  probability 1 - p_c and c - t, chosen anew in every release by looking at those before: rho is the
  largest of the family's, for the best c at one order does not depend on the past. With u = e^c and
  g = (1 - e^(-(a - 1) t)) / (e^t - 1), E_Q (P / Q)^a = u^(a - 1) (1 + g - g u), largest at
  u = (a - 1) (1 + g) / (a g), where it is u^(a - 1) (1 + g) / a. That is inside of (1, e^t), at
  whose ends it is 1. Exact; at most a t^2 / 8 (Cesar and Rogers), and at most t.
* All else, also k records of one person on Poisson samples: from the profiles F(x) >= H_{e^x}(P ||
  Q) and G(x) >= H_{e^x}(Q || P), x >= 0, of the pairs in `_pairs` that dominate,

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

import numpy as np

from jaxminimax.accounting import _curves, _pairs
from jaxminimax.mechanism.costs import Charge, PrivacyLoss

_POINTS = 4_000_000  # of a quadrature, at most
_ROUNDING = 2e-15  # relative, of exponents


def divergence(charge: Charge, order: float, neighbours: str, allowance: float,
               people: int = 1) -> tuple[float, float]:
    """(rho, failure) of everything that a charge counts but its sampler's failures.

    Releases add up, also if each is chosen by looking at those before it: `_renyi_filter.Renyi`.

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
    rho = 0.5 * order * (people * _curves.shift(neighbours)) ** 2 * charge.gaussian
    failure = 0.0
    for loss, times in charge.losses:
        # a power of 10, to cache by
        tail = 10.0 ** math.floor(math.log10(max(allowance / times, 1e-22)))
        one, fails = of_losses(loss, times, float(order), neighbours, tail, people)
        rho, failure = rho + one, failure + fails
    return rho * (1 + 1e-12), failure * (1 + 1e-12)


@functools.lru_cache(maxsize=4096)
def of_losses(loss: PrivacyLoss, times: int, order: float, neighbours: str, tail: float = 1e-18,
              people: int = 1) -> tuple[float, float]:
    """(rho, failure) of that many releases, failure about `tail` each at most; see `divergence`."""
    if loss.z == 0:
        return math.inf, 0.0
    if loss.kind == "poisson" and people == 1:
        return times * _poisson(loss.rate, loss.z, order, neighbours), 0.0
    if loss.kind == "laplace":
        return times * _laplace(loss.z / people, order), 0.0
    if loss.kind == "selection":
        return times * _selection(people / loss.z * (1 + 1e-15), order), 0.0
    if loss.kind not in _pairs.KINDS:
        raise ValueError(f"There is no Renyi divergence for a release of kind {loss.kind!r} here: "
                         "open the ledger with filter='basic'.")
    rho = failure = 0.0
    for pairs, count in _pairs.KINDS[loss.kind](loss, times, neighbours, people):
        found = [_of_pair(pair, order, tail) for pair in pairs]
        rho += count * max(one for one, _ in found)
        failure += count * max(fails for _, fails in found)
    return rho, failure


def pure(epsilon: float, order: float) -> float:
    """The largest rho of what is (epsilon, 0)-private: that of randomised response."""
    if not math.isfinite(epsilon):
        return math.inf
    mass = float(np.logaddexp(0, epsilon))
    near, far = order * epsilon - mass, (1 - order) * epsilon - mass
    return (max(float(np.logaddexp(near, far)), 0.0) + 1e-15) / (order - 1) * (1 + 1e-12)


def _laplace(z: float, order: float) -> float:
    near = math.log(order / (2 * order - 1)) + (order - 1) / z
    far = math.log((order - 1) / (2 * order - 1)) - order / z
    # the sum is 1 + O(1 / z^2), of terms that are rounded
    return (max(float(np.logaddexp(near, far)), 0.0) + 1e-15) / (order - 1) * (1 + 1e-14)


def _selection(t: float, order: float) -> float:
    simple = min(order * t * t / 8, t) * (1 + 1e-14)
    if t > 700:
        return simple
    g = -math.expm1(-(order - 1) * t) / math.expm1(t)
    u = (order - 1) * (1 + g) / (order * g)
    exact = math.log(u) + (math.log1p(g) - math.log(order)) / (order - 1)
    # logarithms of numbers near u, 1 + g and a, each of which a few roundings move
    return min(simple, exact + 1e-14 * (1 + t + (1 + math.log(order)) / (order - 1)))


def _poisson(rate: float, z: float, order: float, neighbours: str) -> float:
    curved = 1 / z**2 + (order - 1) / (3.5 * z**4)
    height = min(0.5 * math.pi * z * z, 9 / math.sqrt(curved))
    step = 2 * math.pi * height / (40 + 0.5 * height**2 * curved)
    points = math.ceil((2 * order + 14 * z) / step)
    if not points <= _POINTS:
        return math.inf
    x = step * np.arange(-points, points + 1)
    center = -(x**2) / (2 * z * z)

    def mixture(to: float) -> np.ndarray:
        far = -((x - to) ** 2) / (2 * z * z) + math.log(rate)
        return np.logaddexp(center + math.log1p(-rate), far) if rate < 1 else far

    if neighbours == "replace_one":
        pairs = [(mixture(1.0), mixture(-1.0))]
    else:
        pairs = [(mixture(1.0), center), (center, mixture(1.0))]
    scale = math.log(step / (z * math.sqrt(2 * math.pi)))
    logs = []
    for p, q in pairs:
        f = order * p + (1 - order) * q
        top = float(f.max())
        counts = f > top - 60
        off = _ROUNDING * (1 + order * float(np.max(np.abs(p[counts]) + np.abs(q[counts]))))
        logs.append(top + math.log(float(np.sum(np.exp(f - top)))) + scale + off)
    return max(*logs, 0.0) / (order - 1)


def _of_pair(pair: _pairs.Pair, order: float, tail: float) -> tuple[float, float]:
    right, left = (_tabulated(profile, order, tail) for profile in pair)
    if right is None or left is None:
        return math.inf, 0.0
    (x, above), (y, below) = right, left
    failure, rest = float(above[-1]), float(below[-1])
    total = _log_sum(np.concatenate([
        _chords(x, above - failure, order - 1), _chords(y, below, -order),
        [math.log(rest / order) - order * y[-1] if rest > 0 else -math.inf]]))
    value = float(np.logaddexp(0.0, total + math.log(order * (order - 1)) + 1e-9))
    return value / (order - 1), failure


def _tabulated(profile: _pairs.Profile, order: float,
               tail: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Losses from 0 to where a profile is at most `tail`, and its values; None if too far."""
    top = 1e-5
    while float(profile(np.array([top]))[0]) > tail:
        top *= 1.25
        if top > 1000:
            return None
    # cells from 1e-6 of the range on, near 0, to what the order wants at the other end
    places = np.linspace(0.0, 10.0, math.ceil(min(4000 + 1000 * top * order, 20_000)) + 1)
    x = top * np.sinh(places) / math.sinh(10.0)
    return x, np.minimum.accumulate(profile(x)) * (1 + 1e-12)


def _log_sum(logs: np.ndarray) -> float:
    top = float(np.max(logs))
    return top + math.log(float(np.sum(np.exp(logs - top))))


def _chords(x: np.ndarray, h: np.ndarray, rate: float) -> np.ndarray:
    """Ln of at least the integrals of e^(rate x) h(x) over the cells, h convex in e^x, falling."""
    width = np.diff(x)
    one = np.expm1(rate * width) / rate
    # with u = e^(x - x_i): h_i + (h_i+1 - h_i) (u - 1) / expm1(width), times u^(rate - 1) du
    more = np.expm1((rate + 1) * width) / (rate + 1) - one
    share = more / np.expm1(width) * np.maximum(1 - 1e-6 - 1e-15 / width, 0.0)
    with np.errstate(divide="ignore"):
        return rate * x[:-1] + np.log(h[:-1] * (one - share) + h[1:] * share)
