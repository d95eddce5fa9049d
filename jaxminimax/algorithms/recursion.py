"""The number of rounds of recursive regularisation, and the weight of its first regulariser.

**Theorem.** Let records be independent, their operators monotone and of norm at most L on a set of
diameter B, and D_t^2 at least E ||z_t - z*_t||^2, z_t the output of round t and z*_t the solution
of its problem on the population. Then for any lambda > 0 and T >= 1 the strong gap is at most

    sqrt(2) L D_T + 4 lambda B (B + sum_{t < T} 2^t (1 + (2^t - 1) / (2^(t+1) - 1)) D_t).

With mu_t = 4 lambda (2^t - 1), m = floor(n / T) records a round, r the Gaussian's ratio of noise to
sensitivity, rho the slack of certificates and K the iterates of a round of descent-ascent,

    D_t^2 = (L / mu_t)^2 ((1 / sqrt(m) + 2 rho / m)^2 + 4 (1 + 2 rho)^2 d r^2 / m^2)   (`recursive`)
    D_t   = L / (mu_t sqrt(m)) + e_t,    A_1 = B,   A_t = D_{t-1} + L / (mu_t sqrt(m)),
    e_t^2 = ((K + ln K) H^2 / mu_t^2 + 2 A_t^2) / (K (K + 1))      (`recursive_sgda`)
    e_t^2 = (S (A_t^2 / a_t + a_t) + mu_t B^2 / K if composite) / mu_t       (its paper's steps)

where H^2 = 4 L^2 + d sigma^2 + V, V the sampling variance of a release, a_t the step's D_t and
S^2 = (L_t^2 + d sigma^2 + V) / K with L_t as in `recursive_sgda`. A plan takes the lambda and, by
default, the T of the smallest bound. More records never raise it.

*Proof.* Let G be the mean operator, H_t = G + mu_t (. - c_t), and nu_t = 4 lambda 2^t, so H_{t+1} =
H_t + nu_t (. - z_t). (a) Let u solve round t's problem on its part, with the mean operator G_S. The
two inequalities that define u and z*_t, added, and G_S monotone give mu_t ||u - z*_t|| <=
||G_S(z*_t) - G(z*_t)||, whose square has a mean of at most L^2 / m: z*_t does not depend on part t.
Adding noise and projecting add at most its second moment, which proves the first D_t. (b) With a =
z*_t - z_t, b = z*_{t+1} - z_t and delta = a - b the inequalities of z*_t and z*_{t+1} give mu_t
||delta||^2 <= nu_t <b, delta>. So ||b|| <= ||a||, and ||delta|| <= ||a|| nu_t / (mu_t + nu_t) =
||a|| 2^t / (2^(t+1) - 1). Hence ||z*_T - z_k|| is at most D_k + sum_{k < t < T} 2^t / (2^(t+1) - 1)
D_t, with D_0 = B. (c) The gap of z*_T is at most sup_u
<G(z*_T), z*_T - u> <= mu_T <z*_T - c_T, u - z*_T> <= 4 lambda B sum_{k < T} 2^k ||z*_T - z_k||, and
gaps are sqrt(2) L-Lipschitz. (d) Decaying steps are z_{k+1} = argmin <g_k, z> + (mu/2) ||z - c||^2
+ (mu k / 2) ||z - z_k||^2, with g_k = G_S(z_k) + noise. Strong convexity of the objective,
monotonicity of G_S and <G_S(u) + mu (u - c), z_k - u> >= 0 give, for a_k = E ||z_k - u||^2,

    (k + 2) a_{k+1} <= k a_k + E ||g_k + mu (u - c)||^2 / (mu^2 k),

and mu ||u - c|| <= L, from the same inequality at z = c. So E ||g_k + mu (u - c)||^2 <= H^2, and
the sum of k + 1 times this is K (K + 1) a_K <= 2 a_1 + (K + ln K) H^2 / mu^2. Constant steps are
Lemma 20's, for a fixed comparator. QED.

Steps (a) to (c) ask for no gradient, so the bound holds for the gap sup_u <G(u), z - u> of a
monotone variational inequality, too.

Source: the recursion is that of Bassily, Guzman and Menart, COLT 2023, arXiv:2302.12909, with its
Theorems 5, 12, 18 and 21; the theorem above replaces their induction, whose constants, 48 / B as
published, leave no round to do below n = 160,000 (mode "paper"). Theirs asks for 2^T <= L /
(B lambda); rounds "largest" keep to that.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import scipy

from jaxminimax.algorithms import planning
from jaxminimax.base import checks
from jaxminimax.mechanism import Full, Poisson

MODES = ("tight", "paper", "manual")


class Schedule(NamedTuple):
    """The parameters that the theorem prescribes.

    Attributes:
      rounds: T, the number of rounds.
      population: m, the number of records of a round.
      base: lambda, the first regularisation.
      gap_bound: the theorem's bound on the strong gap.
      vacuous: whether the bound is above the trivial L B.
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
      composite: whether constant steps handle the quadratic in the projection.
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
    composite: bool = False
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

    def _variance(self, m: int) -> float:
        """The variance d sigma^2 + V of one release on a part of m records."""
        k = self.iterates(m)
        noise = self.dim * (2 * self.bound * self.ratio * self.excess / m) ** 2 * (k - 1)
        drawn = self.drawn(m)
        spread = drawn.spread()
        # without fresh samples, as of disjoint ones, that of one sample
        return noise + (1.0 if spread is None else spread) * self.bound**2 / drawn.batch_size(m)

    def distances(self, base: float, m: int, rounds: int) -> list[float]:
        """D_1, ..., D_T of the theorem, for lambda = `base` and m records a round."""
        far: list[float] = []
        for t in range(1, rounds + 1):
            mu = 4 * base * (2.0**t - 1)
            sampled = self.bound / (mu * math.sqrt(m))
            if self.slack is not None:
                noise = 2 * (1 + 2 * self.slack) * self.bound * self.ratio / (mu * m)
                certified = sampled + 2 * self.slack * self.bound / (mu * m)
                far.append(math.hypot(certified, noise * math.sqrt(self.dim)))
            else:
                start = far[-1] + sampled if far else self.diameter
                far.append(sampled + self._error(base, m, t, mu, start))
        return far

    def _error(self, base: float, m: int, t: int, mu: float, start: float) -> float:
        """e_t, for a round whose start is so far from its solution."""
        k, variance = self.iterates(m), self._variance(m)
        if self.decaying:
            second = 4 * self.bound**2 + variance  # H^2
            return math.sqrt(((k + math.log(k)) * second / mu**2 + 2 * start**2) / (k * (k + 1)))
        hint = float(step_distance(self.bound, base, self.diameter, m, t))
        steep = self.bound + (0.0 if self.composite else mu * self.diameter)
        excess = math.sqrt((steep**2 + variance) / k) * (start**2 / hint + hint)
        return math.sqrt(excess / mu + (self.diameter**2 / k if self.composite else 0.0))

    def gap(self, base: float, m: int, rounds: int) -> float:
        """The theorem's bound."""
        far = self.distances(base, m, rounds)
        moved = sum(2.0**t * (1 + (2.0**t - 1) / (2.0 ** (t + 1) - 1)) * d
                    for t, d in enumerate(far[:-1], 1))
        return math.sqrt(2) * self.bound * far[-1] + 4 * base * self.diameter * (
            self.diameter + moved)

    def base(self, mode: str, kappa: float, m: int, rounds: int) -> float:
        """The regularisation lambda for so many rounds of m records."""
        unit = self.bound / self.diameter
        if mode != "paper":  # the bound is convex in ln lambda
            best = scipy.optimize.minimize_scalar(
                lambda x: self.gap(unit * math.exp(x), m, rounds), bounds=(-20, 20),
                method="bounded", options={"xatol": 1e-7})
            return (kappa if mode == "manual" else 1.0) * unit * math.exp(best.x)
        if self.slack is None:  # the accuracy of K steps on 5 L-Lipschitz losses
            alpha = math.sqrt(((5 * self.bound) ** 2 + self._variance(m)) / self.iterates(m))
        else:
            alpha = 0.0 if self.epsilon is None else self.bound * planning.privacy_term(
                self.dim, self.epsilon, self.delta / 2) / m
        return 48 / self.diameter * (alpha + self.bound / math.sqrt(m))


def step_distance(bound: Any, base: Any, diameter: Any, m: Any, t: Any) -> Any:
    """The distance D_t of start and solution that the paper's steps of round t are made for."""
    return jnp.minimum(diameter, (2 + 2.19 * bound / (
        base * diameter * jnp.sqrt(1.0 * m))) * diameter / 2.0**t)


def schedule(public: Public, population: int, *, mode: str = "tight", kappa: float = 1.0,
             rounds: int | str = "bound_optimal") -> Schedule:
    """Sets the rounds, their records and lambda.

    Args:
      public: the public numbers that it may depend on.
      population: n, the number of records.
      mode: "tight", the lambda of the smallest bound; "manual", kappa times that; or "paper".
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

    @functools.cache
    def base(count: int) -> float:
        return public.base(mode, kappa, population // count, count)

    def gap(count: int) -> float:
        return public.gap(base(count), population // count, count)

    possible = range(1, max(1, int(math.log2(population))) + 1)
    if isinstance(rounds, str):
        checks.one_of("rounds", rounds, ("bound_optimal", "largest"))
        feasible = [t for t in possible if 2**t * base(t) * diameter <= bound]
        count = max(feasible, default=1) if rounds == "largest" else min(possible, key=gap)
    else:
        checks.count("rounds", rounds)
        checks.number("rounds", rounds, low=1, high=population, closed=True)
        count = int(rounds)
    why = ["The strong gap, for independent records, by the theorem of "
           "jaxminimax/algorithms/recursion.py on the algorithm of Bassily, Guzman and Menart "
           "(2023).", planning.with_trivial(gap(count), bound * diameter)]
    if public.slack is None:
        why.append("It is for losses of which nothing is clipped: L bounds the norm of every "
                   "record's operator, public terms included.")
    if mode != "tight":
        why.append(f"lambda is that of mode={mode!r}, not the one of the smallest bound.")
    return Schedule(count, population // count, base(count), gap(count),
                    gap(count) >= bound * diameter, tuple(why))
