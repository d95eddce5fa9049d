"""Upper bounds on epsilon of a `Charge`: exact Gaussian, PLD, and Renyi divergences as a bracket.

dp-accounting 0.6 reads a noise multiplier in two ways under REPLACE_ONE: its PLD accountant doubles
the sensitivity, its RDP accountant does not. Here the multiplier is always noise over clip norm,
and both the privacy loss distribution and the Renyi bracket are computed from the worst pair.
"""

import functools
import math

import dp_accounting
import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant as rdp

from jaxminimax.accounting import _pld
from jaxminimax.accounting._charge import Charge

# Renyi orders: dense where ordinary budgets live, then far out for epsilon near 1e-3.
_ORDERS = np.unique(np.concatenate([np.arange(1.25, 4.0, 0.25), np.arange(4.0, 16.0),
                                    np.round(np.geomspace(16, 4e6, 60))]))
_CELLS = 400_000  # most cells on one side of a discretised privacy loss


def shift(neighbours: str) -> float:
    """How many clip norms neighbouring sums are apart."""
    return 2.0 if neighbours == "replace_one" else 1.0


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest mu such that N(0, 1) against N(mu, 1) is (epsilon, delta), from the safe side."""
    # the root is found to 1e-12 from either side
    return 1.0 / (float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * (1 + 1e-9) + 2e-12)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Exact epsilon of N(0, 1) against N(mu, 1)."""
    if mu == 0:
        return 0.0
    if not math.isfinite(mu):
        return math.inf
    return float(dp_accounting.get_epsilon_gaussian(1.0 / mu, delta))


@functools.lru_cache(maxsize=512)
def _renyi(rate: float, z: float, neighbours: str) -> np.ndarray:
    """Renyi divergences of one Poisson release at `_ORDERS`, infinite where not computed.

    Replace-one: the pair (1 - q) N(0) + q N(+-1), its own mirror image. Add-or-remove-one: that
    mixture against N(0), the larger of both directions. The trapezoid rule converges geometrically
    on these integrands: they are Gaussians of width z times functions that are analytic up to
    pi z^2 away from the real line.
    """
    out = np.full(_ORDERS.shape, np.inf)
    step = min(z / 4, z * z / 4)
    for i, order in enumerate(_ORDERS):
        reach = 2 * order + 40 * z
        if reach / step > 200_000:
            break
        x = np.arange(-reach, reach + step, step)
        center = -(x**2) / (2 * z * z)

        def mixture(to: float, x: np.ndarray = x, center: np.ndarray = center) -> np.ndarray:
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
            top = int(np.argmax(f))
            value = f[top] + math.log(np.sum(np.exp(f - f[top]))) + scale
            # rounding of order-weighted exponents, on the safe side
            logs.append(value + 1e-13 * order + 4e-15 * order * abs(p[top]))
        out[i] = max(logs) / (order - 1)
    return np.maximum(out, 0.0)


def rdp_epsilon(charge: Charge, delta: float, neighbours: str) -> float:
    """Epsilon from Renyi divergences: quick, some per cent too large, safe at any T."""
    total = 0.5 * _ORDERS * shift(neighbours) ** 2 * charge.gaussian
    for (rate, z), times in charge.sampled:
        if z == 0:
            return math.inf
        total = total + times * _renyi(rate, z, neighbours)
    usable = np.isfinite(total)
    if not usable.any():
        return math.inf
    epsilon, _ = rdp.compute_epsilon(_ORDERS[usable], total[usable], delta)
    return max(float(epsilon), 0.0)


def event(charge: Charge) -> dp_accounting.DpEvent:
    """The dp-accounting event of a charge; multipliers are noise over clip norm, Python floats.

    Its meaning under REPLACE_ONE is that of the PLD accountant, which doubles the sensitivity.
    """
    events = []
    if charge.gaussian:
        z = 0.0 if math.isinf(charge.gaussian) else charge.gaussian**-0.5
        events.append(dp_accounting.GaussianDpEvent(float(z)))
    for (rate, z), times in charge.sampled:
        one = dp_accounting.PoissonSampledDpEvent(float(rate),
                                                  dp_accounting.GaussianDpEvent(float(z)))
        events.append(dp_accounting.SelfComposedDpEvent(one, int(times)))
    if not events:
        return dp_accounting.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)


def interval(charge: Charge, bracket: float, coarse: float = 1.0) -> float:
    """Grid of the discretised privacy loss: at most one release's loss, bounded in memory.

    A finer grid would save at most about 1 % of noise where epsilon is small.
    """
    fine = min(min(1e-4, rate / z) for (rate, z), _ in charge.sampled)
    return max(coarse * fine, bracket / _CELLS)


@functools.lru_cache(maxsize=32)
def _composed(charge: Charge, grid: float, neighbours: str) -> _pld.PLD:
    parts = list(charge.sampled)
    if charge.gaussian:
        parts.append(((1.0, charge.gaussian**-0.5), 1))
    with np.errstate(over="ignore"):  # in the library's bounds on tails, where it is harmless
        plds = [_pld.poisson_gaussian(rate, z, neighbours, grid).self_compose(times)
                for (rate, z), times in parts]
        return functools.reduce(lambda a, b: a.compose(b), plds)


def pld_epsilon(charge: Charge, delta: float, neighbours: str, bracket: float,
                coarse: float = 1.0) -> float:
    """Epsilon from the composed privacy loss distribution, rounded pessimistically.

    Args:
      charge: with at least one sampled part and positive noise.
      delta: less what rounding may be off by.
      neighbours: the relation.
      bracket: an upper bound on epsilon, which limits the grid.
      coarse: factor on the grid; still an upper bound, quicker and looser.

    Returns:
      Infinity where the noise is too small for a grid of bounded memory.
    """
    cost = charge._replace(overflow=0.0, law_error=0.0)  # not part of the loss
    try:
        composed = _composed(cost, interval(charge, bracket, coarse), neighbours)
    except MemoryError:
        return math.inf
    value = _pld.epsilon_for_delta(composed, delta)
    for (rate, z), _ in charge.sampled:
        if value < _pld.attack(rate, z, neighbours, delta) * (1 - 1e-9) - 1e-12:
            raise ArithmeticError(f"epsilon = {value} is less than an attack on one release "
                                  f"attains (rate={rate}, noise multiplier={z}).")
    return value
