"""Runs planned from public numbers: how many rounds, how much regularisation, how much noise.

Privacy never rests on a plan: whatever it says, the noise is calibrated to the description that the
run executes. Utility does.

Recursive regularisation on n records wants lambda large enough for stability and 2^T <= L / (B
lambda) for the last round, B the diameter. With m = floor(n / T) records a round, r the Gaussian's
ratio of noise to sensitivity and rho the slack of certificates, the induction behind the theorem
goes through for

    lambda = (L / B) (9.5 / m + 8 ((1 + 2 rho)^2 d r^2 + rho^2) / m^2)^(1/2)        ("tight_output")

and for descent-ascent with the smallest lambda at which 8 e + 8 phi + gamma <= 1
("tight_sgda"),

    c = lambda B sqrt(m) / L,  phi = 1 / c^2,  gamma = sqrt(2) / c^2,
    e = (2 + (1 + 2^(1/4)) / c) alpha / (lambda B),   alpha^2 = ((5 L)^2 + d sigma^2 + V) / K;

then the strong gap is at most (sqrt(2) 2^(-T) L / (lambda B) + 12 T) lambda B^2, for any T. The
published constants, 48 in place of about 3, leave no round to do below n = 160,000 ("paper").

Source: Bassily, Guzman and Menart, COLT 2023, arXiv:2302.12909, Theorems 5, 12, 18 and 21, with the
constants of its induction worked out anew (its coefficient of G is 1/2 where 1 is needed, of E and
F 6 where 8 is).
"""

import dataclasses
import math
from typing import Any, NamedTuple

from jaxminimax import _check
from jaxminimax._types import Saddle
from jaxminimax.accounting import calibrate, calibrate_noise
from jaxminimax.algorithms import recursive as smooth_rounds
from jaxminimax.algorithms import recursive_sgda, sgda
from jaxminimax.mechanism import Disjoint, FixedSize, Full, Poisson, Query, Resolvent, Solution

FULL = Full()
MODES = ("tight_output", "tight_sgda", "paper", "manual")


class Plan(NamedTuple):
    """A planned run.

    Attributes:
      algorithm: the module to run, `recursive` or `recursive_sgda`.
      hyper: its `Hyper`, calibrated.
      rounds: T.
      population: m, records of a round.
      base: lambda; None for one pass.
      gap_bound: the theorem's bound on the strong gap; a rate, rarely below the trivial L B.
      guarantee_vacuous: whether the theorem promises nothing: recursive regularisation cannot have
        these rounds, 2^T > L / (B lambda); one pass has a bound above L B. The run is as private as
        any other.
    """

    algorithm: Any
    hyper: Any
    rounds: int
    population: int
    base: float | None
    gap_bound: float
    guarantee_vacuous: bool


@dataclasses.dataclass(frozen=True)
class _Public:
    """The numbers that a plan may depend on, and r."""

    dim: int
    bound: float
    diameter: float
    epsilon: float | None
    delta: float
    ratio: float
    slack: float
    inner: int | None
    sampling: Any

    def iterates(self, m: int) -> int:
        """K for m records a round."""
        return max(2, min(m, 1000) if self.inner is None else self.inner)

    def privacy(self, log: float) -> float:
        """sqrt(d ln(.)) / epsilon, 0 without privacy."""
        return 0.0 if self.epsilon is None else math.sqrt(self.dim * log) / self.epsilon


def gaussian_ratio(epsilon: float, delta: float) -> float:
    """r: standard deviation over sensitivity of the Gaussian mechanism, exactly calibrated."""
    made = calibrate_noise(Solution(sensitivity=1.0, because="-"), epsilon, delta)
    return float(made.noise_multiplier)  # type: ignore[union-attr, arg-type]


def _base_output(p: _Public, m: int) -> float:
    noise = (1 + 2 * p.slack) ** 2 * p.dim * p.ratio**2 + p.slack**2
    return p.bound / p.diameter * math.sqrt(9.5 / m + 8 * noise / m**2)


def _accuracy(p: _Public, m: int) -> float:
    """alpha, relative accuracy of K iterates of descent-ascent on 5 L-Lipschitz losses."""
    k = p.iterates(m)
    variance = p.dim * (2 * p.bound / m) ** 2 * p.ratio**2 * (k - 1)
    if isinstance(p.sampling, Poisson):
        variance += p.bound**2 * (1 - p.sampling.rate) / (p.sampling.rate * m)
    return math.sqrt(((5 * p.bound) ** 2 + variance) / k)


def _base_sgda(p: _Public, m: int) -> float:
    def fits(base: float) -> bool:
        c = base * p.diameter * math.sqrt(m) / p.bound
        e = (2 + (1 + 2**0.25) / c) * _accuracy(p, m) / (base * p.diameter)
        return 8 * e + (8 + math.sqrt(2)) / c**2 <= 1

    low, high = 1e-9 * p.bound / p.diameter, 1e9 * p.bound / p.diameter
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _base(p: _Public, mode: str, output: bool, m: int) -> float:
    match mode:
        case "tight_output":
            return _base_output(p, m)
        case "tight_sgda":
            return _base_sgda(p, m)
        case "manual":  # multiplied by kappa
            return _base_output(p, m) if output else (
                p.bound / p.diameter * math.sqrt(1 / m + 4 * p.dim * p.ratio**2 / m**2))
    if output:
        spread = p.privacy(math.log(2 / p.delta)) / m
        return 48 / p.diameter * p.bound * (1 / math.sqrt(m) + spread)
    return 48 / p.diameter * (_accuracy(p, m) + p.bound / math.sqrt(m))


def published_rounds(*, population: int, dim: int, epsilon: float | None, delta: float) -> float:
    """T = log2(L / (B lambda)) of Theorem 12 on n' = n / log2 n records, not rounded.

    Below 1 the published algorithm has no round to do.

    Args:
      population: n.
      dim: d, of both players together.
      epsilon: of the privacy target; None without privacy.
      delta: of the privacy target.
    """
    m = population / math.log2(population)
    privacy = 0.0 if epsilon is None else math.sqrt(dim * math.log(2 / delta)) / epsilon
    return -math.log2(48 * (1 / math.sqrt(m) + privacy / m))


def recursive(*, population: int, dim: int, bound: float, diameter: float, smooth: float | None,
              epsilon: float | None, delta: float, mode: str | None = None, kappa: float = 1.0,
              rounds: int | str = "largest", slack: float = 0.01, inner: int | None = None,
              sampling: Full | Poisson | FixedSize | Disjoint = FULL, composite: bool = False,
              solver: Any = None) -> Plan:
    """Recursive regularisation, planned and calibrated.

    With `smooth` the rounds release certified solutions (`recursive`), whose privacy rests on the
    constants given here: every record's operator must be monotone, bounded and Lipschitz with them,
    whatever the record contains. Without, they are noisy descent-ascent (`recursive_sgda`), which
    clips and rests on nothing.

    Args:
      population: n.
      dim: d, coordinates of both players together.
      bound: L, on the norm of a record's operator, players together.
      diameter: B, of W x V.
      smooth: Lipschitz constant of a record's operator; None for non-smooth losses.
      epsilon: of the privacy target; None for no noise and no privacy.
      delta: of the privacy target.
      mode: "tight_output", "tight_sgda", "paper", or "manual", lambda = kappa times the tight one
        (for descent-ascent: times (L / B) (1/m + 4 d r^2 / m^2)^(1/2)). None: the tight one.
      kappa: for "manual".
      rounds: "largest" T with 2^T lambda B <= L, "bound_optimal", or a number.
      slack: rho, of certificates, relative to half of the sensitivity.
      inner: K, iterates a round of descent-ascent; None: min(m, 1000).
      sampling: of a round of descent-ascent.
      composite: of descent-ascent, see `recursive_sgda`.
      solver: of certified solutions, see `mechanism.Resolvent`; `solvers.near_linear` pays where
        the condition number is large.

    Raises:
      ValueError: for numbers out of range.
    """
    output = smooth is not None
    mode = mode or ("tight_output" if output else "tight_sgda")
    _check.one_of("mode", mode, MODES)
    if mode.startswith("tight") and mode != ("tight_output" if output else "tight_sgda"):
        raise ValueError(f"mode={mode!r} plans the other solver: leave mode out, or "
                         f"{'set smooth=None' if output else 'give smooth'}.")
    if output and (sampling != FULL or composite or inner is not None):
        raise ValueError("sampling, composite and inner are for descent-ascent: leave them out, or "
                         "set smooth=None.")
    if not output and solver is not None:
        raise ValueError("solver is for certified solutions: leave it out, or give smooth.")
    _check.count("population", population)
    _check.count("dim", dim)
    population, dim = int(population), int(dim)  # NumPy's would overflow
    for name, value in dict(bound=bound, diameter=diameter, kappa=kappa, slack=slack).items():
        _check.number(name, value, low=0.0)
    _check.number("delta", delta, low=0.0, high=1.0)
    if inner is not None:
        _check.count("inner", inner, low=2)
    ratio = 0.0 if epsilon is None else gaussian_ratio(epsilon, delta)
    public = _Public(dim, bound, diameter, epsilon, delta, ratio, slack, inner, sampling)

    def base(count: int) -> float:
        return (kappa if mode == "manual" else 1.0) * _base(public, mode, output,
                                                            population // count)

    def gap(count: int) -> float:
        ends = math.sqrt(2) * 2.0**-count * bound / (base(count) * diameter)
        return (ends + 12 * count) * base(count) * diameter**2

    possible = range(1, max(1, int(math.log2(population))) + 1)
    feasible = [t for t in possible if 2**t * base(t) * diameter <= bound]
    if isinstance(rounds, str):
        _check.one_of("rounds", rounds, ("largest", "bound_optimal"))
        count = max(feasible, default=1) if rounds == "largest" else min(possible, key=gap)
    else:
        _check.count("rounds", rounds)
        _check.number("rounds", rounds, low=1, high=population, closed=True)
        count = int(rounds)
    m = population // count
    make = _solutions if output else _descent
    algorithm, hyper = make(public, base(count), count, m, smooth, composite, solver)
    if epsilon is None:
        zero = 0.0 if output else Saddle(0.0, 0.0)
        hyper = dataclasses.replace(
            hyper, query=dataclasses.replace(hyper.query, noise_multiplier=zero))
    else:
        hyper = calibrate(algorithm, hyper, epsilon, delta)
    return Plan(algorithm, hyper, count, m, base(count), gap(count), count not in feasible)


def _solutions(p: _Public, base: float, count: int, m: int, smooth: float | None, composite: bool,
               solver: Any) -> tuple[Any, Any]:
    query = Resolvent(bound=p.bound, prox=4 * base, lipschitz=float(smooth or 0.0), doubling=True,
                      diameter=p.diameter, slack=p.slack, population=m, assumes="monotone",
                      solver=solver)
    query = smooth_rounds.certified(query, count)
    return smooth_rounds, smooth_rounds.Hyper(query=query, iterations=count)


def _descent(p: _Public, base: float, count: int, m: int, smooth: float | None, composite: bool,
             solver: Any) -> tuple[Any, Any]:
    query = Query(clip=Saddle(p.bound, p.bound), joint=True, sampling=p.sampling, population=m)
    return recursive_sgda, recursive_sgda.Hyper(
        query=query, base=base, diameter=p.diameter, rounds=count, inner=p.iterates(m),
        composite=composite)


def one_pass(*, population: int, dim: int, bound: float, diameter: float, epsilon: float | None,
             delta: float, batch: int | None = 1) -> Plan:
    """Noisy descent-ascent that reads every record once: the baseline of Appendix A.2.

        z_{t+1} = P(z_t - step (mean over batch t of clip(g(z_t; x_i), L) + N(0, sigma^2 I))),
        sigma = 2 L r / b,   step = B / sqrt(T (L^2 + d sigma^2)),   T = n / b,

    output the mean of z_0 ... z_{T-1}; strong gap at most 2 B ((L^2 + d sigma^2) / T)^(1/2). With
    batches of one record each release is private for whoever owns the record, without a trusted
    server (local privacy); larger ones want a server and have less noise.

    Departures: the published noise, L sqrt(ln(1/delta)) / epsilon, forgets that replacing a record
    moves its operator by 2 L (at epsilon = 1 it gives 2.4), and the published step divides by
    epsilon where it should multiply.

    Args:
      population: n.
      dim: d, coordinates of both players together.
      bound: L, the joint clip.
      diameter: B, of W x V.
      epsilon: of the privacy target; None for no noise and no privacy.
      delta: of the privacy target.
      batch: b; None for the best, 2 r sqrt(d).

    Raises:
      ValueError: for numbers out of range.
    """
    _check.count("population", population)
    _check.count("dim", dim)
    _check.number("bound", bound, low=0.0)
    _check.number("diameter", diameter, low=0.0)
    ratio = 0.0 if epsilon is None else gaussian_ratio(epsilon, delta)
    if batch is None:
        batch = min(population, max(1, round(2 * ratio * math.sqrt(dim))))
    query = Query(clip=Saddle(bound, bound), joint=True, population=population,
                  noise_multiplier=Saddle(1.0, 1.0), sampling=Disjoint(batch=batch))
    _check.count("batch", batch)
    rounds = max(1, population // batch)
    second = bound**2 * (1 + dim * (2 * ratio / batch) ** 2)
    step = diameter / math.sqrt(rounds * second)
    hyper = sgda.Hyper(query=query, step=Saddle(step, step), iterations=rounds)
    if epsilon is None:
        hyper = dataclasses.replace(hyper, query=dataclasses.replace(
            query, noise_multiplier=Saddle(0.0, 0.0)))
    else:
        hyper = calibrate(sgda, hyper, epsilon, delta)
    gap = 2 * diameter * math.sqrt(second / rounds)
    return Plan(sgda, hyper, rounds, batch, None, gap, gap >= bound * diameter)
