"""Renyi divergences of the pairs that a charge is made of, and what of concentration they prove.

With a record of k people, everything in units of the clip norm, noise z and B(k, q) the number of
their records in a Poisson sample, one release has the pair

    P = sum_j B(k, q)(j) N(j, z^2)   against   Q = sum_j B(k, q)(j) N(-j, z^2)

for records that are replaced; for r records that are added while k - r are removed the laws are
B(r, q) and B(k - r, q), and the largest divergence over r = 0, ..., k counts. Each dominates one
release for any dimension and any adaptive choice, at every order of its hockey-stick divergence,
and so in Renyi divergence, which is an integral of those with positive weights; Renyi divergences
of adaptive releases add up. Gaussian releases and Laplace ones have closed forms.

Fixed-size samples have no entry: their curve is a bound glued together, of which no exact pair is
known. What a sampler or the noise may fail by is not in a Renyi divergence at all, which is
infinite as soon as there is an event of positive probability on one side and none on the other; it
is printed beside it, as in the approximate concentrated privacy of the first source.

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
"""

import functools
import math
from typing import NamedTuple

import numpy as np
import scipy

from jaxminimax.mechanism.costs import Charge, PrivacyLoss

# a - 1 grows by an eighth: what lies between two orders is then known to 0.4 %
ORDERS = 1 + np.geomspace(0.005, 1024.0, 105)
_MOST_POINTS = 300_000  # of a quadrature
_AGREE = 1e-7  # of a divergence at two steps, relative
_NEARLY = 1.05  # by how much D_a / a may exceed its value at order 2 within the printed orders


class Concentrated(NamedTuple):
    """D_a <= rho a for all 1 < a <= `up_to`: (rho, omega)-truncated concentrated privacy.

    Attributes:
      rho: zCDP's if `up_to` is infinite.
      up_to: the largest order that it is shown for.
    """

    rho: float
    up_to: float


def divergences(cost: Charge, neighbours: str, people: int = 1) -> np.ndarray | None:
    """D_a of all releases at `ORDERS`, infinite where it was not computed.

    What samplers and noise may fail by is left out; `Charge.ratio` is in it.

    Args:
      cost: of one alternative.
      neighbours: the relation.
      people: k records that differ.

    Returns:
      None where some release has no exact pair.
    """
    shift = 2.0 if neighbours == "replace_one" else 1.0
    total = 0.5 * ORDERS * (people * shift) ** 2 * cost.gaussian
    for loss, times in cost.losses:
        one = _one(loss, neighbours, people)
        if one is None:
            return None
        total = total + times * one
    # probabilities within e^(+- ratio / 2) on either side
    return total + (2 * ORDERS - 1) / (ORDERS - 1) * people * cost.ratio / 2


def _one(loss: PrivacyLoss, neighbours: str, people: int) -> np.ndarray | None:
    if loss.z == 0:
        return np.full(ORDERS.shape, np.inf)
    match loss.kind:
        case "laplace" if neighbours == "replace_one":
            return _laplace(loss.z / people)
        case "poisson":
            replaced = neighbours == "replace_one"
            pairs = [(people, people)] if replaced else [
                (r, people - r) for r in range(people + 1)]
            return np.max([_mixtures(loss.rate, loss.z, *pair) for pair in pairs], axis=0)
    return None


def _laplace(z: float) -> np.ndarray:
    """Of Laplace noise of scale z on a sensitivity of 1, in closed form."""
    a = ORDERS
    near = math.log(0.5) + np.log(2 * a / (2 * a - 1)) + (a - 1) / z
    far = np.log((a - 1) / (2 * a - 1)) - a / z
    # near order 1 the logarithm of a number near 1 is known to one rounding only
    return np.logaddexp(near, far) / (a - 1) + 4e-16 / (a - 1)


@functools.lru_cache(maxsize=256)
def _mixtures(rate: float, z: float, up: int, down: int) -> np.ndarray:
    """D_a of the mixture with `up` records at their best against that with `down` at theirs."""
    out = np.full(ORDERS.shape, np.inf)
    step = min(z, z * z) / 8
    for i, order in enumerate(ORDERS):
        far = (2 * order - 1) * max(up, down)
        if (far + 40 * z) / step > _MOST_POINTS:
            break
        x = np.arange(-20 * z, far + 20 * z + 2 * step, step)
        p, q = _over_centre(x, rate, z, up), _over_centre(-x, rate, z, down)
        base = -(x**2) / (2 * z * z) - math.log(z * math.sqrt(2 * math.pi)) + q
        logs = base + _log_excess(p - q, order)
        fine, coarse = (scipy.special.logsumexp(f) + math.log(h)
                        for f, h in ((logs, step), (logs[::2], 2 * step)))
        one, two = (np.logaddexp(0.0, f) / (order - 1) for f in (fine, coarse))
        if abs(one - two) <= _AGREE * one + 1e-300:
            out[i] = one * (1 + 1e-9) + 1e-15 * order
    return out


def _over_centre(x: np.ndarray, rate: float, z: float, records: int) -> np.ndarray:
    """Ln of sum_j B(records, rate)(j) N(j, z^2) over N(0, z^2), with relative accuracy near 0."""
    j = np.arange(1, records + 1)
    weights = scipy.stats.binom.pmf(j, records, rate)
    j, weights = j[weights > 0], weights[weights > 0]
    if not len(j):
        return np.zeros_like(x)
    y = (2 * np.outer(x, j) - j**2) / (2 * z * z)
    none = (1 - rate) ** records
    large = scipy.special.logsumexp(np.column_stack([np.zeros_like(x), y]), axis=1,
                              b=np.append(none, weights)) if none > 0 else (
        scipy.special.logsumexp(y, axis=1, b=weights))
    small = np.log1p(np.maximum(np.sum(weights * np.expm1(np.minimum(y, 1.0)), axis=1), -1.0)
                     ) if none > 0 else large
    return np.where(y.max(axis=1) < 1.0, small, large)


def _log_excess(loss: np.ndarray, order: float) -> np.ndarray:
    """Ln of e^(a l) - 1 - a (e^l - 1), which is at least 0."""
    al = order * loss
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        near = np.log(np.maximum(np.expm1(al) - order * np.expm1(loss), 0.0))
        # l large and positive: 1 - a e^((1-a) l) + (a - 1) e^(-a l) of e^(a l) is left
        rest = np.log1p(np.minimum((order - 1) * np.exp(-al) - order * np.exp(loss - al), 0.0))
    return np.where(al > 30, al + np.where(al > 30, rest, 0.0), near)


def concentrated(cost: Charge, neighbours: str, people: int = 1) -> Concentrated | None:
    """The rho of concentrated privacy, and the orders that it holds for.

    Gaussians alone have D_a = c a, and with the ratio r of the realised noise at most c a +
    r (2 a - 1) / (2 (a - 1)); as D_a grows with a, that is at most (c + (2 r c)^(1/2) + r) a at all
    orders (split at a - 1 = (r / (2 c))^(1/2)). Of other charges, (a - 1) D_a is convex in a and so
    below its chords, whence D_a / a is at most the larger of both ends times 1 + (a_2 - a_1)^2 / (4
    a_1 (a_1 - 1)) between two orders; below the first D_a <= D_{a_1}.

    Returns:
      None without exact pairs, or where not even order 2 was computed.
    """
    if not cost.losses:
        shift, r = 2.0 if neighbours == "replace_one" else 1.0, people * cost.ratio
        c = 0.5 * (people * shift) ** 2 * cost.gaussian
        return Concentrated(c + math.sqrt(2 * r * c) + r, math.inf) if math.isfinite(c) else None
    found = divergences(cost, neighbours, people)
    if found is None:
        return None
    ratio, a = found / ORDERS, ORDERS
    between = 1 + np.diff(a) ** 2 / (4 * a[:-1] * (a[:-1] - 1))
    upto = np.maximum.accumulate(
        np.append(found[0], np.maximum(ratio[1:], ratio[:-1]) * between))
    two = upto[np.searchsorted(a, 2.0)]
    if not math.isfinite(two):
        return None
    last = int(np.flatnonzero(upto <= _NEARLY * two)[-1])
    return Concentrated(float(upto[last]), float(a[last]))
