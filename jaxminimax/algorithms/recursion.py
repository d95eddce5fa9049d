"""The number of rounds of recursive regularisation, and the weight of its first regulariser.

Recursive regularisation on n records needs lambda large enough for stability and 2^T <= L / (B
lambda) for the last round, B the diameter. With m = floor(n / T) records a round, r the Gaussian's
ratio of noise to sensitivity and rho the slack of certificates, the induction behind the theorem
goes through for

    lambda = (L / B) (9.5 / m + 8 ((1 + 2 rho)^2 d r^2 + rho^2) / m^2)^(1/2)           (`recursive`)

and for descent-ascent with the smallest lambda at which 8 e + 8 phi + gamma <= 1
(`recursive_sgda`),

    c = lambda B sqrt(m) / L,  phi = 1 / c^2,  gamma = sqrt(2) / c^2,

e B^2 / 4^t bounding the squared distance of a round's output from the solution on its part. With
V the sampling variance of one release and K iterates a round,

    e = (1 + ln K / K) H^2 / (4 (lambda B)^2 (K + 1)) + 2 s^2 / (K (K + 1)),
    H^2 = 4 L^2 + d sigma^2 + V,   s = 2 + (1 + 2^(1/4)) / c              (decaying steps),
    e = s alpha / (lambda B),   alpha^2 = ((5 L)^2 + d sigma^2 + V) / K   (the paper's steps);

then the strong gap is at most (sqrt(2) 2^(-T) L / (lambda B) + 12 T) lambda B^2, for any T. The
published constants, 48 in place of about 3, leave no round to do below n = 160,000 ("paper").

The bound is about saddle points of convex-concave losses. Both algorithms solve monotone
variational inequalities too, for which this theorem promises nothing.

The first e is proved as follows. Decaying steps are z_{k+1} = argmin <g_k, z> + (mu/2) ||z - c||^2
+ (mu k / 2) ||z - z_k||^2, with g_k = G(z_k) + noise and z* the solution. Strong convexity of the
objective, monotonicity of G and <G(z*) + mu (z* - c), z_k - z*> >= 0 give, for a_k = E ||z_k -
z*||^2,

    (k + 2) a_{k+1} <= k a_k + E ||g_k + mu (z* - c)||^2 / (mu^2 k),

and mu ||z* - c|| <= L, from the same inequality at z = c. So E ||g_k + mu (z* - c)||^2 <= H^2, and
the sum of k + 1 times this is K (K + 1) a_K <= 2 a_1 + (K + ln K) H^2 / mu^2, where mu >= 4 lambda
(2^t - 1) and a_1 <= (s B / 2^t)^2. Where the paper's steps need K above 100,000 for a second
round, these need K of the order of m: nothing is asked of 5 L.

Source: Bassily, Guzman and Menart, COLT 2023, arXiv:2302.12909, Theorems 5, 12, 18 and 21, with the
constants of its induction worked out anew (its coefficient of G is 1/2 where 1 is needed, of E and
F 6 where 8 is); the decaying steps and their bound are this library's.
"""

import dataclasses
import math
from typing import Any, NamedTuple

from jaxminimax.algorithms import planning
from jaxminimax.base import checks
from jaxminimax.mechanism import Disjoint, FixedSize, Full, Poisson

MODES = ("tight", "paper", "manual")


class Schedule(NamedTuple):
    """The parameters that the theorem prescribes.

    Attributes:
      rounds: T, the number of rounds.
      population: m, the number of records of a round.
      base: lambda, the first regularisation.
      gap_bound: the theorem's bound on the strong gap.
      vacuous: whether 2^T > L / (B lambda), or the bound is above the trivial L B.
      why: sentences.
    """

    rounds: int
    population: int
    base: float
    gap_bound: float
    vacuous: bool
    why: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Public:
    """The public numbers that a plan may depend on.

    Attributes:
      dim: d, the number of coordinates of both players together.
      bound: L, the largest norm of a record's operator.
      diameter: B, the diameter of W x V.
      epsilon: epsilon of the privacy target; None without privacy.
      delta: delta of the privacy target.
      ratio: r, the Gaussian's ratio of noise to sensitivity.
      slack: rho, the slack of certificates; None for descent-ascent.
      inner: K, the iterates of a round of descent-ascent; None for `iterates`.
      sampling: the sampling of a round of descent-ascent; None for `drawn`.
      decaying: whether the steps of descent-ascent decay; see `recursive_sgda`.
      excess: deviation of descent-ascent's calibrated noise divided by that of full batches.
    """

    dim: int
    bound: float
    diameter: float
    epsilon: float | None
    delta: float
    ratio: float
    slack: float | None = None
    inner: int | None = None
    sampling: Any = None
    decaying: bool = True
    excess: float = 1.0

    def __post_init__(self) -> None:
        """Refuses numbers out of range."""
        planning.check_numbers(dim=self.dim, bound=self.bound, diameter=self.diameter,
                               delta=self.delta)
        if self.slack is not None:
            planning.check_numbers(slack=self.slack)
        if self.inner is not None:
            checks.count("inner", self.inner, low=2)

    def iterates(self, m: int) -> int:
        """K for m records a round: min{m, m^2 / (d r^2)}, beyond which steps limit no error.

        That is no less than Theorem 21's min{m / 8, m^2 epsilon^2 / (32 d ln(1/delta))}.
        """
        if self.inner is not None:
            return self.inner
        noise = self.dim * self.ratio**2
        return max(2, m if noise <= m else math.ceil(m**2 / noise))

    def drawn(self, m: int) -> Any:
        """The sampling of a round of m records: Theorem 21's batch m sqrt(epsilon / (4 K))."""
        if self.sampling is not None:
            return self.sampling
        epsilon = 1.0 if self.epsilon is None else self.epsilon
        batch = max(1, round(m * math.sqrt(epsilon / (4 * self.iterates(m)))))
        return Poisson(rate=batch / m) if batch < m else Full()

    def tight(self, m: int) -> float:
        """The smallest lambda at which the induction goes through."""
        return self._of_solutions(m) if self.slack is not None else self._of_descent(m)

    def _of_solutions(self, m: int) -> float:
        assert self.slack is not None
        noise = (1 + 2 * self.slack) ** 2 * self.dim * self.ratio**2 + self.slack**2
        return self.bound / self.diameter * math.sqrt(9.5 / m + 8 * noise / m**2)

    def _variance(self, m: int) -> float:
        """The variance d sigma^2 + V of one release on a part of m records."""
        k = self.iterates(m)
        noise = self.dim * (2 * self.bound * self.ratio * self.excess / m) ** 2 * (k - 1)
        match self.drawn(m):
            case Poisson(rate=rate):
                return noise + self.bound**2 * (1 - rate) / (rate * m)
            case FixedSize(batch=batch) | Disjoint(batch=batch):
                return noise + self.bound**2 / batch
        return noise

    def _accuracy(self, m: int) -> float:
        """The accuracy alpha of K iterates of the paper's steps on 5 L-Lipschitz losses."""
        return math.sqrt(((5 * self.bound) ** 2 + self._variance(m)) / self.iterates(m))

    def _error(self, base: float, m: int) -> float:
        """The bound e on a round's squared distance from its solution, divided by B^2 / 4^t."""
        reach, k = base * self.diameter, self.iterates(m)
        start = 2 + (1 + 2**0.25) * self.bound / (reach * math.sqrt(m))
        if not self.decaying:
            return start * self._accuracy(m) / reach
        second = 4 * self.bound**2 + self._variance(m)  # H^2
        return ((1 + math.log(k) / k) * second / (4 * reach**2 * (k + 1))
                + 2 * start**2 / (k * (k + 1)))

    def _of_descent(self, m: int) -> float:
        def fits(base: float) -> bool:
            c = base * self.diameter * math.sqrt(m) / self.bound
            return 8 * self._error(base, m) + (8 + math.sqrt(2)) / c**2 <= 1

        low, high = 1e-9 * self.bound / self.diameter, 1e9 * self.bound / self.diameter
        for _ in range(200):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if fits(middle) else (middle, high)
        return high

    def base(self, mode: str, kappa: float, m: int) -> float:
        """The regularisation lambda for m records a round."""
        match mode:
            case "tight":
                return self.tight(m)
            case "manual" if self.slack is not None:
                return kappa * self._of_solutions(m)
            case "manual":
                return kappa * (self.bound / self.diameter * math.sqrt(
                    1 / m + 4 * self.dim * self.ratio**2 / m**2))
        if self.slack is not None:
            spread = 0.0 if self.epsilon is None else planning.privacy_term(
                self.dim, self.epsilon, self.delta / 2) / m
            return 48 / self.diameter * self.bound * (1 / math.sqrt(m) + spread)
        return 48 / self.diameter * (self._accuracy(m) + self.bound / math.sqrt(m))


def schedule(public: Public, population: int, *, mode: str = "tight", kappa: float = 1.0,
             rounds: int | str = "bound_optimal") -> Schedule:
    """Sets the rounds, their records and lambda.

    Args:
      public: the public numbers that it may depend on.
      population: n, the number of records.
      mode: "tight", "paper", or "manual", lambda = kappa times the tight one (for descent-ascent:
        times (L / B) (1/m + 4 d r^2 / m^2)^(1/2)).
      kappa: the factor of "manual".
      rounds: "bound_optimal", the T of the smallest bound; "largest" T with 2^T lambda B <= L, as
        in the paper; or a number.

    Raises:
      ValueError: for numbers out of range.
    """
    checks.one_of("mode", mode, MODES)
    planning.check_numbers(population=population, kappa=kappa)
    population = int(population)  # NumPy's would overflow
    bound, diameter = public.bound, public.diameter

    def base(count: int) -> float:
        return public.base(mode, kappa, population // count)

    def gap(count: int) -> float:
        ends = math.sqrt(2) * 2.0**-count * bound / (base(count) * diameter)
        return (ends + 12 * count) * base(count) * diameter**2

    possible = range(1, max(1, int(math.log2(population))) + 1)
    feasible = [t for t in possible if 2**t * base(t) * diameter <= bound]
    if isinstance(rounds, str):
        checks.one_of("rounds", rounds, ("bound_optimal", "largest"))
        count = max(feasible, default=1) if rounds == "largest" else min(possible, key=gap)
    else:
        checks.count("rounds", rounds)
        checks.number("rounds", rounds, low=1, high=population, closed=True)
        count = int(rounds)
    why = ["The strong gap, for saddle points, by Theorems 5, 12, 18 and 21 of Bassily, Guzman and "
           "Menart (2023), with the constants of their induction worked out anew.",
           planning.with_trivial(gap(count), bound * diameter)]
    if public.slack is None:
        why.append("It is for losses of which nothing is clipped: L bounds the norm of every "
                   "record's operator, public terms included.")
    if mode != "tight":
        why.append(f"lambda is that of mode={mode!r}, not the smallest that the induction allows.")
    if count not in feasible:
        why.append(f"A condition of the theorem does not hold: 2^T = 2^{count} is above "
                   f"L / (B lambda) = {bound / (diameter * base(count)):.3g}.")
    return Schedule(count, population // count, base(count), gap(count),
                    count not in feasible or gap(count) >= bound * diameter, tuple(why))
