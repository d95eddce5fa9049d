"""Upper bounds on epsilon of a `Charge`: exact Gaussian, PLD, and Renyi divergences as a bracket.

dp-accounting 0.6 reads a noise multiplier in two ways under REPLACE_ONE: its PLD accountant doubles
the sensitivity, its RDP accountant does not. Here the multiplier is always noise over clip norm,
and both the privacy loss distribution and the Renyi bracket are computed from the worst pair.
"""

import functools
import math

import dp_accounting
import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import rdp_privacy_accountant as rdp

from jaxminimax.accounting import _pld, subsampling
from jaxminimax.mechanism import Charge, PrivacyLoss

# Renyi orders: dense where ordinary budgets live, then far out for epsilon near 1e-3.
_ORDERS = np.unique(np.concatenate([np.arange(1.25, 4.0, 0.25), np.arange(4.0, 16.0),
                                    np.round(np.geomspace(16, 4e6, 60))]))
_CELLS = 400_000  # most cells on one side of a discretised privacy loss
_WIDEST = 0.1  # cell


def shift(neighbours: str) -> float:
    """How many clip norms neighbouring sums are apart."""
    return 2.0 if neighbours == "replace_one" else 1.0


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest mu such that N(0, 1) against N(mu, 1) is (epsilon, delta), from the safe side."""
    # the root is found to 1e-12 from either side
    return 1.0 / (float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * (1 + 1e-9) + 2e-12)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Exact epsilon of N(0, 1) against N(mu, 1), from the safe side."""
    if mu == 0:
        return 0.0
    if not math.isfinite(mu):
        return math.inf
    # the root is found to 1e-12 from either side
    return float(dp_accounting.get_epsilon_gaussian(1.0 / mu, delta)) + 2e-12


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
    reach = np.ceil((2 * _ORDERS + 40 * z) / step)  # in steps, on either side
    usable = np.flatnonzero(reach <= 200_000)
    if not usable.size:
        return out
    end = int(reach[usable[-1]])
    x = step * np.arange(-end, end + 1)
    center = -(x**2) / (2 * z * z)

    def mixture(to: float) -> np.ndarray:
        far = -((x - to) ** 2) / (2 * z * z) + math.log(rate)
        return np.logaddexp(center + math.log1p(-rate), far) if rate < 1 else far

    if neighbours == "replace_one":
        pairs = [(mixture(1.0), mixture(-1.0))]
    else:
        pairs = [(mixture(1.0), center), (center, mixture(1.0))]
    scale = math.log(step / (z * math.sqrt(2 * math.pi)))
    for i in usable:
        order, inside = _ORDERS[i], slice(end - int(reach[i]), end + int(reach[i]) + 1)
        logs = []
        for p, q in pairs:
            f = order * p[inside] + (1 - order) * q[inside]
            top = int(np.argmax(f))
            value = f[top] + math.log(np.sum(np.exp(f - f[top]))) + scale
            # rounding of order-weighted exponents, on the safe side
            logs.append(value + 1e-13 * order + 4e-15 * order * abs(p[inside][top]))
        out[i] = max(logs) / (order - 1)
    return np.maximum(out, 0.0)


def _laplace_renyi(z: float) -> np.ndarray:
    """Renyi divergences of Laplace noise of scale z on a sensitivity of 1, at `_ORDERS`."""
    a = _ORDERS
    near = math.log(0.5) + np.log(2 * a / (2 * a - 1)) + (a - 1) / z
    far = np.log((a - 1) / (2 * a - 1)) - a / z
    return np.logaddexp(near, far) / (a - 1)


def rdp_epsilon(charge: Charge, delta: float, neighbours: str) -> float:
    """Epsilon from Renyi divergences: quick, some per cent too large, safe at any T.

    Fixed-size samples are read as Poisson ones, which makes the answer a guess, not a bound.
    """
    total = 0.5 * _ORDERS * shift(neighbours) ** 2 * charge.gaussian
    for loss, times in charge.losses:
        if loss.z == 0:
            return math.inf
        if loss.kind == "laplace":
            total = total + times * _laplace_renyi(loss.z)
        else:
            total = total + times * _renyi(rate_of(loss), loss.z, neighbours)
    usable = np.isfinite(total)
    if not usable.any():
        return math.inf
    epsilon, _ = rdp.compute_epsilon(_ORDERS[usable], total[usable], delta)
    return max(float(epsilon), 0.0)


def rate_of(loss: PrivacyLoss) -> float:
    """Expected share of the records that a release reads."""
    return loss.batch / loss.population if loss.population else loss.rate


def event(charge: Charge) -> dp_accounting.DpEvent:
    """The dp-accounting event of a charge, for the record; multipliers are Python floats.

    Gaussian multipliers are noise over clip norm, which is what that library's PLD accountant means
    by them under REPLACE_ONE (its RDP accountant does not).
    """
    events = []
    if charge.gaussian:
        z = 0.0 if math.isinf(charge.gaussian) else charge.gaussian**-0.5
        events.append(dp_accounting.GaussianDpEvent(float(z)))
    for loss, times in charge.losses:
        one = dp_accounting.GaussianDpEvent(float(loss.z))
        match loss.kind:
            case "poisson":
                one = dp_accounting.PoissonSampledDpEvent(float(loss.rate), one)
            case "fixed":
                one = dp_accounting.SampledWithoutReplacementDpEvent(loss.population, loss.batch,
                                                                     one)
            case "replacement":
                one = dp_accounting.SampledWithReplacementDpEvent(loss.population, loss.batch, one)
            case "laplace":
                one = dp_accounting.LaplaceDpEvent(float(loss.z))
        events.append(dp_accounting.SelfComposedDpEvent(one, int(times)))
    if not events:
        return dp_accounting.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)


def interval(charge: Charge, bracket: float, coarse: float = 1.0) -> float:
    """Grid of the discretised privacy loss: at most one release's loss, bounded in memory.

    A finer grid would save at most about 1 % of noise where epsilon is small. Where a few releases
    lose much it is wider: that costs about T grid^2 / epsilon, here 1e-6 epsilon.
    """
    one = min(rate_of(loss) / loss.z for loss, _ in charge.losses)
    times = sum(times for _, times in charge.losses) + 1
    wide = min(1e-3, 4e-4 * bracket / math.sqrt(times), 0.01 * one)
    return max(coarse * max(min(1e-4, one), wide), min(bracket, 1e4) / _CELLS)


def _one(loss: PrivacyLoss, grid: float, neighbours: str, tail: float) -> _pld.PLD:
    match loss.kind:
        case "poisson":
            return _pld.poisson_gaussian(loss.rate, loss.z, neighbours, grid, tail)
        case "laplace":
            one = privacy_loss_distribution.from_laplace_mechanism(
                loss.z, value_discretization_interval=grid)  # its own mirror image
            return _pld.PLD(one._pmf_remove.to_dense_pmf())
    return subsampling.fixed_size_gaussian(loss.population, loss.batch, loss.z / 2,
                                           loss.kind == "replacement", grid, tail)


@functools.lru_cache(maxsize=32)
def _composed(charge: Charge, grid: float, neighbours: str, tail: float = _pld.TAIL) -> _pld.PLD:
    parts = list(charge.losses)
    if charge.gaussian:
        parts.append((PrivacyLoss("poisson", charge.gaussian**-0.5), 1))
    with np.errstate(over="ignore"):  # in the library's bounds on tails, where it is harmless
        plds = [(_one(loss, grid, neighbours, tail), times) for loss, times in parts]
        return functools.reduce(lambda a, b: a.compose(b), [
            one if times == 1 else one.self_compose(times) for one, times in plds])


def _tail(charge: Charge, delta: float) -> float:
    """What each release may leave beyond its grid: 1e-8 delta in all, a power of 10 to cache by."""
    times = sum(times for _, times in charge.losses) + 1
    return max(_pld.TAIL, 10.0 ** math.floor(math.log10(1e-8 * delta / times)))


def pld_epsilon(charge: Charge, delta: float, neighbours: str, bracket: float,
                coarse: float = 1.0) -> float:
    """Epsilon from the composed privacy loss distribution, rounded pessimistically.

    Args:
      charge: with at least one loss that is not Gaussian, and positive noise.
      delta: less what rounding may be off by.
      neighbours: the relation.
      bracket: about the size of the answer, which limits the grid.
      coarse: factor on the grid; still an upper bound, quicker and looser.

    Returns:
      Infinity where the noise is too small for a grid of bounded memory, however wide its cells.
    """
    cost = charge._replace(overflow=0.0, law_error=0.0, ratio=0.0)  # not part of the loss
    grid, composed = interval(charge, bracket, coarse), None
    while composed is None:
        try:
            composed = _composed(cost, grid, neighbours, _tail(cost, delta))
        except MemoryError:
            grid *= 4
            if grid > _WIDEST:
                return math.inf
    value = _pld.epsilon_for_delta(composed, delta)
    for loss, _ in charge.losses:
        attained = _attained(loss, neighbours, delta)
        if value < attained * (1 - 1e-9) - 1e-12:
            raise ArithmeticError(f"epsilon = {value} is less than an attack on one release "
                                  f"attains: {attained} for {loss}.")
    return value


def _attained(loss: PrivacyLoss, neighbours: str, delta: float) -> float:
    """A lower bound on epsilon of one release, from an explicit pair of neighbours."""
    match loss.kind:
        case "poisson":
            return _pld.attack(loss.rate, loss.z, neighbours, delta)
        case "fixed":  # all other records opposite: two clip norms apart
            return _pld.attack(rate_of(loss), loss.z / 2, "add_or_remove_one", delta)
    return 0.0
