"""The privacy profile of a mechanism: bounds on attacks beyond one (epsilon, delta).

With P and Q the laws of everything that is released on two neighbouring data sets, and

    delta(e) = sup over neighbours of H_{e^e}(P || Q),     H_a(P || Q) = integral of (P - a Q)_+,

every number is an upper bound for an attacker who distinguishes P from Q, and knows all records but
those that differ:

* The advantage, true less false positive rate, is at most delta(0).
* An attack of true positive rate b and false positive rate a satisfies, for every e >= 0, with the
  divergences of P against Q and of Q against P,

      b <= min( delta_PQ(e) + e^e a,  1 - e^-e (1 - delta_QP(e) - a) ),

  by the definition of the first for the event "the attack says P", and of the second for its
  complement. Each e of a finite set gives a bound, so the smallest of finitely many is one. Either
  data set may be P: the larger of both directions is printed, each with its own two curves.
* mu is the largest, over the printed epsilons, of the mu for which Gaussians mu apart have that
  delta. The curve is below theirs at these epsilons; that is no Gaussian differential privacy,
  which would be a statement on all epsilons, and which a release that may fail does not have.
* Renyi divergences and zCDP's rho come from exact pairs alone (`renyi`), with the orders that they
  hold for, and apart from failures whose probability is printed with them.

Between printed epsilons delta is below its chord in e^e, being convex there.

Source for the second: Dong, Roth and Su, "Gaussian differential privacy", JRSS B 2022, Proposition
6; the two curves of a pair that is not its own mirror image are kept apart here.
"""

import dataclasses
import json
import math
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import scipy

from jaxminimax.accounting import curve, gaussian, renyi
from jaxminimax.accounting.epsilon_delta import released
from jaxminimax.accounting.printing import NO_GUARANTEE, rounded_up
from jaxminimax.base import checks
from jaxminimax.mechanism import Description, costs

RATES = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1)  # of false positives
STATED_RATES = (1e-3, 0.01, 0.1)  # of them in statements


@dataclasses.dataclass(frozen=True)
class Profile:
    """Upper bounds on attacks that distinguish neighbouring data sets; `str` prints them.

    Attributes:
      neighbours: the relation.
      people: how many records of one unit differ.
      epsilons: increasing, from 0.
      deltas: of them, the largest over everything that the adversary may choose.
      curves: (delta_PQ, delta_QP) of every pair that dominates the mechanism; one pair for each
        place where the records may be.
      zcdp: rho and the largest order that it holds for; None without an exact pair.
      renyi: orders and divergences; None without an exact pair.
      apart_from: probability of the failures that `zcdp` and `renyi` leave out.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(40.0, None),
        ...                   population=100)
        >>> curve = jmm.profile(jmm.Repeat(query=query, times=20))
        >>> round(curve.mu, 3), curve.true_positives(0.01) < 0.02
        (0.224, True)
    """

    neighbours: str
    people: int
    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    curves: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]
    zcdp: renyi.Concentrated | None
    renyi: tuple[tuple[float, ...], tuple[float, ...]] | None
    apart_from: float

    def delta(self, epsilon: float) -> float:
        """Returns an upper bound on delta at any epsilon; `jmm.delta` computes a sharper one."""
        checks.number("epsilon", epsilon, low=0.0, closed=True)
        epsilons = np.asarray(self.epsilons)
        upper = int(np.searchsorted(epsilons, epsilon))
        # delta falls with epsilon, so the last value holds beyond the last epsilon
        if upper == len(epsilons) or epsilons[upper] == epsilon:
            return self.deltas[min(upper, len(epsilons) - 1)]
        lower = upper - 1
        # (e^epsilon - e^left) / (e^right - e^left), which may be large each
        share = (math.exp(epsilon - epsilons[upper]) * math.expm1(epsilons[lower] - epsilon)
                 / math.expm1(epsilons[lower] - epsilons[upper]))
        return self.deltas[lower] + share * (self.deltas[upper] - self.deltas[lower])

    @property
    def advantage(self) -> float:
        """The largest advantage of membership inference: true less false positive rate."""
        return self.deltas[0]

    def true_positives(self, rate: float) -> float:
        """Returns the largest true positive rate at a false positive rate."""
        checks.number("rate", rate, low=0.0, high=1.0, closed=True)
        epsilons = np.asarray(self.epsilons)
        # either data set may be P, and the differing records may be at any place
        return max(_power(epsilons, np.asarray(forward), np.asarray(backward), rate)
                   for pair in self.curves for forward, backward in (pair, pair[::-1]))

    @property
    def mu(self) -> float:
        """The mu of the closest Gaussian from above on the printed epsilons, and on no others."""
        # delta of Gaussians grows with mu: those of the largest mu are above every point
        return max(map(gaussian.closest_mu, self.epsilons, self.deltas))

    def attack_bounds(self, rates: Iterable[float] = RATES) -> dict[str, Any]:
        """Returns the numbers that statements print."""
        mu = self.mu if math.isfinite(self.mu) else NO_GUARANTEE
        return {"advantage": self.advantage,
                "true_positives": {f"{rate:g}": self.true_positives(rate) for rate in rates},
                "closest_gaussian": {"mu": mu, "epsilon_up_to": self.epsilons[-1]}}

    def to_json(self) -> dict[str, Any]:
        """Returns plain Python values: an infinite mu is "no guarantee", all orders are None."""
        zcdp = self.zcdp and {"rho": self.zcdp.rho, "up_to_order": (
            self.zcdp.up_to if math.isfinite(self.zcdp.up_to) else None)}
        return dict(json.loads(json.dumps({
            "neighbours": self.neighbours, "people": self.people, **self.attack_bounds(),
            "epsilon": self.epsilons, "delta": self.deltas, "curves": self.curves, "zcdp": zcdp,
            "renyi": self.renyi and dict(zip(("order", "divergence"), self.renyi, strict=True)),
            "apart_from": self.apart_from}, allow_nan=False)))

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Self:
        """Returns the profile that `to_json` made a record of."""
        zcdp, renyi_of = record["zcdp"], record["renyi"]
        return cls(
            record["neighbours"], record["people"], tuple(record["epsilon"]),
            tuple(record["delta"]),
            tuple((tuple(forward), tuple(backward)) for forward, backward in record["curves"]),
            zcdp and renyi.Concentrated(zcdp["rho"], zcdp["up_to_order"] or math.inf),
            renyi_of and (tuple(renyi_of["order"]), tuple(renyi_of["divergence"])),
            record["apart_from"])

    def __str__(self) -> str:
        who = "one" if self.people == 1 else f"any {self.people}"
        lines = [
            "Bounds on membership attacks that see all releases and know every record except "
            f"{who}.",
            f"Advantage, true less false positive rate: at most {rounded_up(self.advantage)} (0 is "
            "guessing, 1 is certainty).",
            "False positive rate, and true positive rate at most:",
            *(f"  {rate:<8g} {rounded_up(self.true_positives(rate))}" for rate in RATES),
            "epsilon, and delta at most:",
            *(f"  {e:<8.4g} {rounded_up(self.delta(e))}" for e in dict.fromkeys(
                np.linspace(self.epsilons[0], self.epsilons[-1], 9).tolist())),
            f"Closest Gaussian from above at epsilons in [0, {self.epsilons[-1]:.4g}]: mu = "
            f"{self.mu:.5g}; it holds for no other epsilon."]
        if self.zcdp is None:
            return "\n".join([*lines, "Renyi divergences: none, as some releases have no exact "
                                      "dominating pair."])
        orders = ("all orders" if math.isinf(self.zcdp.up_to)
                  else f"orders up to {self.zcdp.up_to:.4g}, not beyond")
        apart = (f", apart from failures of probability {self.apart_from:.2g}"
                 if self.apart_from else "")
        return "\n".join([*lines, f"Concentrated privacy: rho = {self.zcdp.rho:.5g} for "
                                  f"{orders}{apart}."])

    def plot(self, path: Any) -> None:
        """Draws the trade-off curve and delta(epsilon) into a file.

        Raises:
          ValueError: without matplotlib.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ValueError("Plots need matplotlib: python -m pip install matplotlib.") from error
        figure = Figure(figsize=(9, 4), layout="constrained")
        tests, deltas = figure.subplots(1, 2)
        rates = np.geomspace(1e-6, 1.0, 121)
        tests.loglog(rates, [self.true_positives(x) for x in rates], label="at most")
        tests.loglog(rates, rates, "--", color="0.6", label="guessing")
        tests.set(xlabel="false positive rate", ylabel="true positive rate",
                 title="membership inference")
        tests.legend()
        points = [(e, d) for e, d in zip(self.epsilons, self.deltas, strict=True) if d > 0]
        if points:
            deltas.semilogy(*zip(*points, strict=True))
        deltas.set(xlabel="epsilon", ylabel="delta, at most", title="(epsilon, delta)")
        figure.savefig(path)


def _power(epsilons: np.ndarray, forward: np.ndarray, backward: np.ndarray, rate: float) -> float:
    with np.errstate(over="ignore"):
        # b <= delta_PQ(e) + e^e a
        upper = forward + (np.exp(epsilons) * rate if rate > 0 else 0.0)
    # a sum of positive numbers: a difference from 1 would lose small rates
    # b <= 1 - e^-e (1 - delta_QP(e) - a)
    lower = -np.expm1(-epsilons) + np.exp(-epsilons) * np.minimum(backward + rate, 1.0)
    # every e gives a bound, so the smallest of them is one
    return min(1.0, float(min(upper.min(), lower.min())) * (1 + 1e-14))


def profile(mechanism: Description, spent: int | None = None, *, neighbours: str = "replace_one",
            people: int = 1, epsilons: Iterable[float] | None = None) -> Profile:
    """Computes the privacy profile of a mechanism at all epsilons of a range.

    Args:
      mechanism: `algorithm.mechanism(hyper)`, or a `Sequence` of several.
      spent: a number of releases fixed before the first one; None for all that are allowed.
      neighbours: "replace_one" or "add_or_remove_one".
      people: k, if any k records of one person may differ instead of one.
      epsilons: where to evaluate, besides 0; None for a range up to where delta is 1e-12, or as far
        as is known.

    Raises:
      ValueError: for numbers that are not finite, out of range or of the wrong type.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(40.0, None),
        ...                   population=100)
        >>> curve = jmm.profile(jmm.Repeat(query=query, times=20))
        >>> round(curve.advantage, 3)  # of membership inference, at most
        0.089
    """
    released_part, people = released(mechanism, spent, neighbours, people), int(people)
    if epsilons is None:
        at_epsilons = _range(released_part, neighbours, people)
    else:
        asked_for = list(epsilons)
        for epsilon in asked_for:
            checks.number("epsilons", epsilon, low=0.0, high=1e6, closed=True)
            costs.concrete(epsilon)
        at_epsilons = np.unique([0.0, *map(float, asked_for)])
    # a bound at a smaller epsilon holds at a larger one
    pairs = tuple(tuple(tuple(map(float, np.minimum.accumulate(direction))) for direction in pair)
                  for pair in curve.curves(released_part, at_epsilons, neighbours, people))
    charged = curve.charges(released_part, neighbours)
    exact = curve.together(released_part, charged, people)
    zcdp, renyi = _largest_renyi(charged, neighbours, people) if exact else (None, None)
    return Profile(
        neighbours, people, tuple(map(float, at_epsilons)),
        tuple(map(float, np.max(pairs, axis=(0, 1)))), pairs,  # type: ignore[arg-type]
        zcdp, renyi,
        # failures are in no Renyi divergence
        max(cost.failures(people) + people * cost.departure(people) for cost in charged))


def short_profile(mechanism: Description, delta: float, *, neighbours: str, people: int) -> Profile:
    """Computes a profile at few epsilons, up to that of `delta`, for statements."""
    top = _reaches(mechanism, delta, neighbours, people) or 1.0
    epsilons = [*np.linspace(0.0, top, 5), *_best_for(STATED_RATES, mechanism, neighbours, people)]
    return profile(mechanism, neighbours=neighbours, people=people, epsilons=epsilons)


def _range(mechanism: Description, neighbours: str, people: int) -> np.ndarray:
    """Returns epsilons from 0 to where delta is small, and those that the printed rates need."""
    # at the first of these deltas whose epsilon is known, the printed range ends
    reached = (_reaches(mechanism, least, neighbours, people)
               for least in (1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.5))
    top = max(next((epsilon for epsilon in reached if epsilon is not None), 1.0), 1e-6)
    near = [epsilon for epsilon in _best_for(RATES, mechanism, neighbours, people) if epsilon < top]
    return np.unique([*np.linspace(0.0, top, 33), *near])


def _best_for(rates: Iterable[float], mechanism: Description, neighbours: str,
              people: int) -> list[float]:
    """Returns epsilons at which a Gaussian of the same advantage has its best tests, and more."""
    advantage = float(np.max(curve.curves(mechanism, np.zeros(1), neighbours, people)))
    # advantage = 2 Phi(mu / 2) - 1, by which mu is infinite at 1
    mu = min(gaussian.closest_mu(0.0, min(advantage, 0.999)), 10.0)
    # the loss at the threshold of the best test between Gaussians mu apart
    best = [abs(mu * float(scipy.special.ndtri(1 - rate)) - mu**2 / 2) for rate in rates]
    return [share * e for e in best for share in (0.9, 1.0, 1.1) if e > 0]


def _reaches(mechanism: Description, least: float, neighbours: str, people: int) -> float | None:
    """Returns the epsilon of a delta if it is below 700, else None."""
    try:
        reached = curve.dearest(mechanism, least, neighbours, people).epsilon
    except ValueError:  # failures alone exceed that delta
        return None
    return reached if reached < 700 else None


def _largest_renyi(charged: tuple[costs.Charge, ...], neighbours: str,
              people: int) -> tuple[Any, Any]:
    """Combines the alternatives: the largest rho, and the orders that all of them have."""
    rhos = [renyi.concentrated(cost, neighbours, people) for cost in charged]
    divergences = [renyi.divergences(cost, neighbours, people) for cost in charged]
    if any(bound is None for bound in (*rhos, *divergences)):
        return None, None
    # a Renyi divergence is a supremum over places, order by order
    largest = np.max(np.asarray(divergences, np.float64), axis=0)
    finite = np.isfinite(largest)
    # D_a <= rho a of each alternative holds with the largest rho, up to the smallest last order
    return (renyi.Concentrated(max(bound.rho for bound in rhos if bound is not None),
                               min(bound.up_to for bound in rhos if bound is not None)),
            (tuple(map(float, renyi.ORDERS[finite])), tuple(map(float, largest[finite]))))
