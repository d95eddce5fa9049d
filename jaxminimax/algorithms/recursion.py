"""The number of rounds of recursive regularisation, and the weight of its first regulariser.

**Theorem.** Let records be independent, their operators monotone and of norm at most L on a set of
diameter B, of which no point is further than R from the start. Public terms are monotone, with an
operator of norm at most P, and L_all = L + P. Let D_t^2 be at least E ||z_t - z*_t||^2, z_t the
output of round t and z*_t the solution of its problem on the population. With mu = 4 lambda (2^T -
1), q = B - (B - R) / (2^T - 1), kappa_t = 1 - 2^-t and

    S = 4 lambda (R + sum_{t < T} 2^t (1 + kappa_t^2 / (1 + 2 kappa_t))^(1/2) D_t),

the strong gap is, for any lambda > 0 and T >= 1, at most

    sqrt(2) L_all D_T  +  (S q - S^2 / mu  if 2 S <= mu q,  else  mu q^2 / 4).

With mu_t = 4 lambda (2^t - 1), m = floor(n / T) records a round, z the noise multiplier, rho the
slack of certificates, p the part by which samples are drawn less often than their rate says, and K
the iterates of a round of descent-ascent,

    D_t^2 = (L / mu_t)^2 ((1 / sqrt(m) + 2 rho / m)^2 + (1 + 2 rho)^2 d z^2 / m^2)     (`recursive`)
    D_t   = E_t + e_t,    E_t = (L / mu_t) (1 / sqrt(m) + p),
    A_1   = min{R, L_all / mu_1},    A_t = D_{t-1} + E_t,
    e_t^2 = ((K + ln K) H^2 / mu_t^2 + 2 A_t^2) / (K (K + 1))      (`recursive_sgda`)
    e_t^2 = (S_t (A_t^2 / a_t + a_t) + mu_t B^2 / K if composite) / mu_t     (its paper's steps)

where H^2 = 4 L_all^2 + d sigma^2 + V, V the sampling variance of a release, a_t the step's D_t and
S_t^2 = (L_t^2 + d sigma^2 + V) / K with L_t as in `recursive_sgda`, of L_all. A plan takes the
lambda of the smallest bound and, by default, the largest T whose bound is at most 1.2 times the
smallest: rounds cost less in gaps than in bounds. More records never raise the smallest bound. T =
1, one regularised solution with noise, has it up to n of about 10^5, is level with T = 5 at 2.5
10^5, and 17 % worse than T = 6 at 10^6 (`recursive`, epsilon 1, d 10, R = B).

*Proof.* Let G be the mean operator, H_t = G + mu_t (. - c_t), and nu_t = 4 lambda 2^t, so H_{t+1} =
H_t + nu_t (. - z_t). (a) Let u solve round t's problem on its part, with the mean operator G_S. The
two inequalities that define u and z*_t, added, and G_S monotone give mu_t ||u - z*_t|| <=
||G_S(z*_t) - G(z*_t)||, whose square has a mean of at most L^2 / m: z*_t does not depend on part t.
Adding noise and projecting add at most its second moment, which proves the first D_t. (b) With a =
z*_t - z_t, b = z*_{t+1} - z_t and delta = a - b the inequalities of z*_t and z*_{t+1} give mu_t
||delta||^2 <= nu_t <b, delta>, that is kappa_t ||delta||^2 <= <b, delta>. As a = b + delta, so (1 +
2 kappa_t) ||delta||^2 + ||b||^2 <= ||a||^2, and by Cauchy and Schwarz kappa_t ||delta|| + ||b|| <=
(1 + kappa_t^2 / (1 + 2 kappa_t))^(1/2) ||a||. Let s_t = sum_{k < t} 2^k ||z*_t - z_k||, so s_1 =
||z*_1 - z_0|| <= R. Passing to z*_{t+1} moves each of its terms by ||delta|| and adds 2^t ||b||:
s_{t+1} <= s_t + (2^t - 1) ||delta|| + 2^t ||b||, of which (2^t - 1) = 2^t kappa_t. So 4 lambda E
s_T <= S. (c) Let c = sum_{k < T} 2^k z_k / (2^T - 1), and s = ||z*_T - c||, so mu E s <= S. The
inequality of z*_T gives sup_u <G(z*_T), z*_T - u> <= mu sup_u <z*_T - c, u - z*_T> <= mu (s q -
s^2), since ||u - c|| <= q: z_0 has the weight 1 / (2^T - 1) in c and is at most R from u, and the
other z_k lie in the set. That is concave in s, so by Jensen its mean is at most its value at E s,
which grows up to q / 2; and gaps are sqrt(2) L_all-Lipschitz. (d) Samples that are drawn again
until they fit have the mean (1 - p) G_S, which moves u by p L / mu_t at most. Decaying steps are
z_{k+1} = argmin <g_k, z> + (mu/2) ||z - c||^2 + (mu k / 2) ||z - z_k||^2, with g_k = G_S(z_k) +
noise. Strong convexity of the objective, monotonicity of G_S and <G_S(u) + mu (u - c), z_k - u> >=
0 give, for a_k = E ||z_k - u||^2,

    (k + 2) a_{k+1} <= k a_k + E ||g_k + mu (u - c)||^2 / (mu^2 k),

and mu ||u - c|| <= L_all, from the same inequality at z = c. So E ||g_k + mu (u - c)||^2 <= H^2,
and the sum of k + 1 times this is K (K + 1) a_K <= 2 a_1 + (K + ln K) H^2 / mu^2. Constant steps
are Lemma 20's, for a fixed comparator. QED.

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
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import scipy

from jaxminimax.algorithms import bounds, planning
from jaxminimax.base import checks
from jaxminimax.base.types import HyperT
from jaxminimax.mechanism import Full, Poisson


class Schedule(NamedTuple):
    """The parameters that the theorem prescribes.

    Attributes:
      rounds: T, the number of rounds.
      population: m, the number of records of a round.
      base: lambda, the first regularisation.
      why: sentences.
    """

    rounds: int
    population: int
    base: float
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
      multiplier: z, the noise multiplier: of `recursive`, or of one release of descent-ascent on
        all records of a part.
      slack: rho, the slack of certificates; None for descent-ascent.
      inner: K, the iterates of a round of descent-ascent; None for `iterates`.
      sampling: the sampling of a round of descent-ascent; None for `drawn`.
      decaying: whether the steps of descent-ascent decay; see `recursive_sgda`.
      composite: whether constant steps handle the quadratic in the projection.
      excess: deviation of descent-ascent's calibrated noise divided by that of full batches.
      public_bound: P, the largest norm of the public terms' operator.
      radius: R, the largest distance of a point of the set from the start; None for B.
      solver_error: (m, mu_t, A_t) -> e_t of another solver of rounds on all of their records; None
        for descent-ascent.
      parts: whether the target's neighbouring relation has a guarantee for T > 1.
    """

    dim: int
    bound: float
    diameter: float
    epsilon: float | None
    delta: float
    multiplier: float
    slack: float | None = None
    inner: int | None = None
    sampling: Any = None
    decaying: bool = True
    composite: bool = False
    excess: float = 1.0
    public_bound: float = 0.0
    radius: float | None = None
    solver_error: Callable[[int, float, float], float] | None = None
    parts: bool = True

    @property
    def total_bound(self) -> float:
        """L_all = L + P."""
        return self.bound + self.public_bound

    @property
    def far(self) -> float:
        """R."""
        return bounds.reaches(self.diameter, self.radius)[0]

    def iterates(self, m: int) -> int:
        """K for m records a round: min{m, 4 m^2 / (d z^2)}, beyond which steps limit no error.

        That is no less than Theorem 21's min{m / 8, m^2 epsilon^2 / (32 d ln(1/delta))}.
        """
        if self.inner is not None:
            return self.inner
        noise = self.dim * self.multiplier**2 / 4
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
        noise = self.dim * (self.bound * self.multiplier * self.excess / m) ** 2 * (k - 1)
        drawn = self.drawn(m)
        spread = drawn.spread(m)
        # without fresh samples, as of disjoint ones, that of one sample
        return noise + (1.0 if spread is None else spread) * self.bound**2 / drawn.batch_size(m)

    def distances(self, base: float, m: int, rounds: int) -> list[float]:
        """D_1, ..., D_T of the theorem, for lambda = `base` and m records a round."""
        distances: list[float] = []
        unsampled = self.slack is not None or self.solver_error is not None
        shortfall = 0.0 if unsampled else self.drawn(m).shortfall(m)
        for t in range(1, rounds + 1):
            mu = 4 * base * (2.0**t - 1)
            sampled = self.bound / mu * (1 / math.sqrt(m) + shortfall)
            if self.slack is not None:
                noise = (1 + 2 * self.slack) * self.bound * self.multiplier / (mu * m)
                certified = sampled + 2 * self.slack * self.bound / (mu * m)
                distances.append(math.hypot(certified, noise * math.sqrt(self.dim)))
            else:
                start = (distances[-1] + sampled if distances else
                         min(self.far, self.total_bound / mu))
                distances.append(sampled + (
                    self._error(base, m, t, mu, start) if self.solver_error is None
                    else self.solver_error(m, mu, start)))
        return distances

    def starts(self, base: float, m: int, rounds: int) -> list[tuple[float, float]]:
        """mu_t and A_t of every round, on all of its records."""
        weights = [4 * base * (2.0**t - 1) for t in range(1, rounds + 1)]
        distances = self.distances(base, m, rounds)
        return [(mu, before + self.bound / (mu * math.sqrt(m)) if k else min(
            self.far, self.total_bound / mu)) for k, (mu, before) in enumerate(zip(
                weights, [0.0, *distances[:-1]], strict=True))]

    def _error(self, base: float, m: int, t: int, mu: float, start: float) -> float:
        """e_t, for a round whose start is so far from its solution."""
        k, variance = self.iterates(m), self._variance(m)
        if self.decaying:
            second = 4 * self.total_bound**2 + variance  # H^2
            return math.sqrt(((k + math.log(k)) * second / mu**2 + 2 * start**2) / (k * (k + 1)))
        hint = float(step_distance(self.bound, base, self.diameter, m, t))
        steep = self.total_bound + (0.0 if self.composite else mu * self.diameter)
        excess = math.sqrt((steep**2 + variance) / k) * (start**2 / hint + hint)
        return math.sqrt(excess / mu + (self.diameter**2 / k if self.composite else 0.0))

    def terms(self, base: float, m: int, rounds: int) -> tuple[float, float, float, float]:
        """D_T, S, mu and q of the theorem."""
        distances = self.distances(base, m, rounds)
        kappas = [1 - 2.0**-t for t in range(1, rounds)]  # kappa_t
        moved = sum(2.0**t * math.sqrt(1 + k**2 / (1 + 2 * k)) * d
                    for t, (k, d) in enumerate(zip(kappas, distances[:-1], strict=True), 1))
        mu, pull = 4 * base * (2.0**rounds - 1), 4 * base * (self.far + moved)  # S
        diameter = self.diameter - (self.diameter - self.far) / (2.0**rounds - 1)
        return distances[-1], pull, mu, diameter

    def gap(self, base: float, m: int, rounds: int) -> float:
        """The theorem's bound."""
        last, pull, mu, reach = self.terms(base, m, rounds)
        bias = pull * (reach - pull / mu) if 2 * pull <= mu * reach else mu * reach**2 / 4
        return math.sqrt(2) * self.total_bound * last + bias

    def base(self, mode: str, kappa: float, m: int, rounds: int) -> float:
        """The regularisation lambda for so many rounds of m records."""
        unit = self.bound / self.diameter
        if mode != "paper":  # the bound has one minimum in ln lambda
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


def guaranteed(hyper: HyperT, public: Public, chosen: Schedule) -> planning.Plan[HyperT]:
    """Returns the plan of a schedule, with the bound for the noise that `public` says."""
    return planning.guaranteed(hyper, public.gap(chosen.base, chosen.population, chosen.rounds),
                               public.total_bound * public.diameter, *chosen.why)


def step_distance(bound: Any, base: Any, diameter: Any, m: Any, t: Any) -> Any:
    """The distance D_t of start and solution that the paper's steps of round t are made for."""
    return jnp.minimum(diameter, (2 + 2.19 * bound / (
        base * diameter * jnp.sqrt(1.0 * m))) * diameter / 2.0**t)


def schedule(public: Public, population: int, *, mode: str = "tight", kappa: float = 1.0,
             rounds: int | str = "near_optimal") -> Schedule:
    """Sets the rounds, their records and lambda.

    Args:
      public: the public numbers that it may depend on.
      population: n, the number of records.
      mode: "tight", the lambda of the smallest bound; "manual", kappa times that; or "paper".
      kappa: the factor of "manual".
      rounds: "near_optimal", the largest T whose bound is at most 1.2 times the smallest one;
        "bound_optimal", the T of the smallest bound; "largest" T with 2^T lambda B <= L, as in the
        paper, where with "tight" 2 S <= mu q too, beyond which only the last round counts; or a
        number.

    Raises:
      ValueError: for numbers out of range.
    """
    checks.one_of("mode", mode, ("tight", "paper", "manual"))
    population = int(population)  # NumPy's would overflow
    bound, diameter = public.bound, public.diameter

    @functools.cache
    def base(count: int) -> float:
        return public.base(mode, kappa, population // count, count)

    def gap(count: int) -> float:
        return public.gap(base(count), population // count, count)

    def useful(count: int) -> bool:  # whether the rounds before the last one lower the bound
        _, pull, mu, reach = public.terms(base(count), population // count, count)
        return 2 * pull <= mu * reach

    possible = range(1, max(1, int(math.log2(population)) if public.parts else 1) + 1)
    if isinstance(rounds, str):
        checks.one_of("rounds", rounds, ("near_optimal", "bound_optimal", "largest"))
        match rounds:
            case "near_optimal":
                bound_of = {t: gap(t) for t in possible}
                # The bound of T = 2 tends to 2^(1/4) = 1.19 times that of T = 1, and its gap is
                # about half. With 4 n records the smallest bound falls by 2^(-1/2), so that the
                # plan's falls.
                count = max(t for t in possible if bound_of[t] <= 1.2 * min(bound_of.values()))
            case "bound_optimal":
                count = min(possible, key=gap)
            case _:
                count = max((t for t in possible if 2**t * base(t) * diameter <= bound
                             and (mode != "tight" or useful(t))), default=1)
    else:
        checks.count("rounds", rounds)
        checks.number("rounds", rounds, low=1, high=population, closed=True)
        count = int(rounds)
    why = ["The strong gap, for independent records, by the theorem of "
           "jaxminimax/algorithms/recursion.py on the algorithm of Bassily, Guzman and Menart "
           "(2023)."]
    if public.slack is None:
        why.append("It is for losses of which nothing is clipped: L bounds the norm of every "
                   "record's operator.")
    if mode != "tight":
        why.append(f"lambda is that of mode={mode!r}, not the one of the smallest bound.")
    return Schedule(count, population // count, base(count), tuple(why))
