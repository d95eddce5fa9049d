"""Privacy loss distributions of Poisson-sampled Gaussians, built in one vectorised pass.

The library's own constructor inverts the privacy loss point by point; here the hockey-stick
divergences of the worst pair are evaluated on the whole grid from closed forms and connected by
chords, and the library's convolutions and tails do the rest.

In units of the clip norm, with noise z and rate q, the pairs are

    replace-one            P = (1-q) N(0, z^2) + q N(1, z^2)   against   Q = (1-q) N(0) + q N(-1),
    add-or-remove-one      P                                   against   N(0, z^2), both ways;

each dominates one release for any dimension and any adaptive choice, so T-fold convolution bounds T
releases (Zhu, Dong and Wang, "Optimal accounting of differential privacy via characteristic
function", 2022; the replace-one pair also because a Gaussian mixture's divergence is largest when
the two displacements are opposite).
"""

import math
from typing import TypeAlias

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from scipy import special

PLD: TypeAlias = privacy_loss_distribution.PrivacyLossDistribution
TAIL = 1e-22  # divergence beyond the grid, charged as mass at infinity; the least there is
LARGEST_LOSS = 600.0  # of one release; exponentials stay finite
MAX_CELLS = 4_000_000


def _opposite(epsilon: np.ndarray, rate: float, z: float) -> np.ndarray:
    """H of P against Q at e^epsilon, epsilon >= 0: P/Q grows with x and crosses e^epsilon at t."""
    # c u^2 - (1-q)(e^epsilon - 1) u - c e^epsilon = 0 for u = e^(x / z^2), c = q e^(-1 / (2 z^2));
    # ln u = epsilon / 2 + arsinh(e^y), with e^y = (1-q) sinh(epsilon / 2) / c, which may overflow
    with np.errstate(divide="ignore"):
        y = np.log((1 - rate) * np.sinh(epsilon / 2)) - math.log(rate) + 0.5 / z**2
    arsinh = np.where(y > 20, y + math.log(2), np.arcsinh(np.exp(np.minimum(y, 20))))
    return _difference((epsilon / 2 + arsinh) * z**2, epsilon, rate, z, -1.0)


def _removed(epsilon: np.ndarray, rate: float, z: float) -> np.ndarray:
    """H of P against N(0, z^2) at e^epsilon, epsilon >= 0."""
    # e^epsilon - (1 - q) = q e^((2x - 1) / (2 z^2))
    t = z**2 * np.log1p(np.expm1(epsilon) / rate) + 0.5
    return _difference(t, epsilon, rate, z, 0.0)


def _difference(t: np.ndarray, epsilon: np.ndarray, rate: float, z: float,
                far: float) -> np.ndarray:
    """P[X > t] - e^epsilon Q[X > t], with Q displaced to `far`; the common part cancels first."""
    same = -(1 - rate) * np.expm1(epsilon) * special.ndtr(-t / z)
    other = rate * np.exp(epsilon + special.log_ndtr((far - t) / z))
    value = same + rate * special.ndtr((1 - t) / z) - other
    return np.maximum(value, 0.0)


def _reflected(epsilon: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """H of Q against P at e^-epsilon from H of P against Q at e^epsilon."""
    return -np.expm1(-epsilon) + np.exp(-epsilon) * delta


def _added(epsilon: np.ndarray, rate: float, z: float) -> np.ndarray:
    """H of N(0, z^2) against P at e^epsilon, epsilon >= 0; 0 from -ln(1 - q) on."""
    if rate == 1:  # a Gaussian against its shift: both directions are the same
        return _removed(epsilon, rate, z)
    # e^-epsilon - (1 - q), by the form that cancels less
    gap = np.where(epsilon < 0.7, rate + np.expm1(-epsilon), np.exp(-epsilon) - (1 - rate))
    inside = gap > 0
    gap = np.where(inside, gap, 1.0)
    t = z**2 * np.log(gap / rate) + 0.5  # N(0) / P > e^epsilon below t
    low = special.ndtr(t / z)
    mixed = (1 - rate) * low + rate * special.ndtr((t - 1) / z)
    return np.where(inside, np.maximum(low - np.exp(epsilon) * mixed, 0.0), 0.0)


def connect_the_dots(deltas: np.ndarray, grid: float) -> pld_pmf.DensePLDPmf:
    """Pessimistic Connect-the-Dots from divergences at -k grid, ..., k grid.

    Equal to the library's create_pmf_pessimistic_connect_dots_fixed_gap, without its dictionaries,
    and dense at any size: of a sparse one the library computes size^T before it composes.
    """
    deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    if not np.all(np.isfinite(deltas)):
        raise ArithmeticError("a divergence is not finite")
    fall = -np.diff(deltas) / math.expm1(grid)
    probs = np.append(1 - deltas[0], fall * math.exp(grid)) - np.append(fall, 0.0)
    return pld_pmf.DensePLDPmf(grid, -(len(deltas) // 2), np.maximum(probs, 0.0),
                               float(deltas[-1]), True)


def _pmf(right: np.ndarray, left: np.ndarray, grid: float) -> pld_pmf.PLDPmf:
    """From divergences at 0, grid, 2 grid, ... of a pair and of its reverse."""
    epsilon = np.arange(len(right)) * grid
    return connect_the_dots(
        np.concatenate([_reflected(epsilon[:0:-1], left[:0:-1]), right]), grid)


def epsilon_for_delta(loss: PLD, delta: float) -> float:
    """Smallest epsilon >= 0 at which both directions have divergence at most delta.

    With A and B the masses of P and Q at losses above epsilon, the divergence is A - e^epsilon B;
    A and B are steps, so the root inside a cell is closed. (The library's own search walks the
    cells in Python, which is most of the time of a calibration.)
    """
    pmfs = [loss._pmf_remove, loss._pmf_add]
    return max(_smallest(pmf.to_dense_pmf(), delta) for pmf in pmfs)


def _smallest(pmf: pld_pmf.DensePLDPmf, delta: float) -> float:
    if not pmf._infinity_mass <= delta:
        return math.inf
    first = max(0, 1 - pmf._lower_loss)  # losses above 0
    probs = np.asarray(pmf._probs[first:], np.float64)
    losses = (np.arange(len(probs)) + first + pmf._lower_loss) * pmf._discretization
    above = np.append(np.cumsum(probs[::-1])[::-1], 0.0) + pmf._infinity_mass  # A from cell i on
    below = np.append(np.cumsum((probs * np.exp(-losses))[::-1])[::-1], 0.0)  # B
    if above[0] - below[0] <= delta:
        return 0.0
    with np.errstate(divide="ignore"):  # log 0: no mass of Q is left
        paid = np.exp(losses + np.log(np.maximum(below[1:], 0.0)))
    # true of the last cell: infinity's mass is all that is left there
    cell = int(np.argmax(above[1:] - paid <= delta))
    if below[cell] <= 0:
        return math.inf
    epsilon = math.log(above[cell] - delta) - math.log(below[cell])  # the ratio may overflow
    if not 0 <= epsilon <= losses[cell] * (1 + 1e-9) + 1e-12:
        raise ArithmeticError(f"a privacy loss distribution gave epsilon = {epsilon}")
    return epsilon


def attack(rate: float, z: float, neighbours: str, delta: float) -> float:
    """A lower bound on epsilon of one release: guess the pair from whether x exceeds a threshold.

    No upper bound may fall below it: it shares no formula with the profiles above.
    """
    far = -1.0 if neighbours == "replace_one" else 0.0
    t = np.linspace(-1 - 4 * z, 1 + 8 * z, 200)
    p = (1 - rate) * special.ndtr(-t / z) + rate * special.ndtr((1 - t) / z)
    q = special.log_ndtr((far - t) / z)
    if neighbours == "replace_one" and rate < 1:
        q = np.logaddexp(math.log1p(-rate) + special.log_ndtr(-t / z), math.log(rate) + q)
    sure = p > delta
    return float(np.max(np.log(p[sure] - delta) - q[sure], initial=0.0))


def poisson_gaussian(rate: float, z: float, neighbours: str, grid: float,
                     tail: float = TAIL) -> PLD:
    """The privacy loss distribution of one release.

    Args:
      rate: q in (0, 1].
      z: noise over clip norm, positive.
      neighbours: the relation.
      grid: width of a cell.
      tail: divergence beyond the grid, charged as mass at infinity.

    Raises:
      MemoryError: if the noise is so small that the grid would need more than `MAX_CELLS` cells.
    """
    profile = _opposite if neighbours == "replace_one" else _removed
    top = 16 * grid
    while top <= LARGEST_LOSS and profile(np.array([top]), rate, z)[0] > tail:
        top *= 1.3
    if top > LARGEST_LOSS:
        raise MemoryError(f"noise multiplier {z:g} has losses beyond {LARGEST_LOSS:g}")
    if top / grid > MAX_CELLS:
        raise MemoryError(f"noise multiplier {z:g} is too small for cells of width {grid:g}")
    epsilon = np.arange(int(np.ceil(top / grid)) + 1) * grid
    out = profile(epsilon, rate, z)
    if neighbours == "replace_one":
        return PLD(_pmf(out, out, grid))
    back = _added(epsilon, rate, z)
    return PLD(_pmf(out, back, grid), _pmf(back, out, grid))
