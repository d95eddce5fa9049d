"""The privacy filter by Renyi divergences at one order, for runs that are chosen by looking.

Sources: Feldman and Zrnic, "Individual privacy accounting via a Renyi filter", NeurIPS 2021;
Whitehouse, Ramdas, Rogers and Wu, "Fully adaptive composition in differential privacy", ICML 2023,
for failures; Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy", NeurIPS
2020, for the conversion.
"""

import math

import numpy as np

from jaxminimax.accounting import _fixed_order
from jaxminimax.accounting._charge import charges
from jaxminimax.accounting._filters import Amounts, Filter
from jaxminimax.accounting._odometer import STEPS, shares
from jaxminimax.accounting._people import together
from jaxminimax.mechanism import Description

_RATIO = 1e-3  # part of epsilon that is kept for the law of the integer noise
_ASIDE = 0.1  # part of delta that is kept for failures


class Renyi(Filter):
    """Sums of Renyi divergences at one order a, fixed at opening, with failures.

    Theorem. Let every release i, chosen by looking at those before it, be a mechanism of which,
    given the past, all but a failure of mass f_i on either data set has integral of P_i^a
    Q_i^(1 - a) at most e^((a - 1) rho_i), realised up to a total variation of t_i and factors of
    e^(r_i / 2) on both data sets. If on every path the sums of rho_i, f_i, t_i, r_i are at most
    rho, f, t, r, all outputs together are (epsilon, delta)-private with

        epsilon = rho + [ln(1 / (a D)) + (a - 1) ln(1 - 1 / a)] / (a - 1) + r,
        delta   = e^r (D + f) + (1 + e^epsilon) t                                for every D > 0.

    Proof. Without failures, with likelihood ratios L_i: given the past E_Q[L_i^a e^(-(a - 1)
    rho_i)] <= 1, so E_Q[prod L_i^a e^(-(a - 1) sum rho_i)] <= 1, and the sum is at most rho: E_Q[
    L^a] <= e^((a - 1) rho). With failures the same holds for the parts of P and Q on which nothing
    failed, whose masses only shrink, and what is missing of P has the mass E_P[sum f_i] <= f. Then
    (x - e^c)_+ <= x^a e^(-(a - 1) c) (1 - 1 / a)^(a - 1) / a for all x > 0, at c = epsilon - r,
    gives delta. Factors multiply along paths; coupled release by release, the realised run departs
    from this one with probability at most t on each data set.

    A release that is not made has rho_i = 0, and whether it is made may depend on the past: what a
    stopped run did not release is given back. A number of releases is charged as its part of the
    run, along the path of every single record.

    The odometer is that of milestones, as in `_odometer`: limits rho_j = rho / 1.5^j, each with a
    share D_j of D, half of it for rho itself. "Everything that was charged is at most rho_j" is
    decided by the process that makes no release beyond rho_j. Failures are paid once for all.
    """

    kind, main = "renyi", "divergence"

    @classmethod
    def open(cls, epsilon: float, delta: float, order: float) -> "Renyi":
        """The filter of (epsilon, delta) at an order.

        Raises:
          ValueError: if the order leaves nothing to spend.
        """
        ratio, aside = _RATIO * epsilon, _ASIDE * delta
        main = (delta - aside) * math.exp(-ratio)
        rho = (epsilon - ratio - _conversion(order, main)) * (1 - 1e-12)
        if not rho > 0:
            raise ValueError(f"order = {order:g} leaves nothing of epsilon = {epsilon:g} at delta "
                             f"= {delta:g}: take a larger order, or none to have one chosen.")
        most = _odometers(order, rho, main)[0][1] + ratio  # a little above epsilon
        return cls({"divergence": rho, "failure": 0.5 * aside * math.exp(-ratio),
                    "law": 0.5 * aside * math.exp(-np.logaddexp(0.0, most)), "ratio": ratio},
                   {"order": order, "delta": main})

    def charge(self, mechanism: Description, name: str, delta: float, neighbours: str,
               people: int = 1) -> Amounts:
        """The divergence at the filter's order, and what is beside it, at its dearest place."""
        made, costs = {name: 0.0 for name in self.limits}, charges(mechanism, neighbours)
        if not together(mechanism, costs, people):
            raise ValueError(f"There is no Renyi divergence of these releases for {people} records "
                             "of one person: open the ledger with filter='basic'.")
        for cost in costs:
            rho, failure = _fixed_order.divergence(cost, self.details["order"], neighbours,
                                                   1e-3 * self.limits["failure"], people)
            one = {"divergence": rho, "failure": failure + cost.failures(people),
                   "law": people * cost.departure(people), "ratio": people * cost.ratio}
            made = {name: max(made[name], one[name]) for name in made}
        return made

    def foreign(self, epsilon: float, delta: float) -> Amounts:
        """Randomised response of that epsilon beside a failure of mass delta.

        Every (epsilon, delta)-private pair is made from that one: Kairouz, Oh and Viswanath, "The
        composition theorem for differential privacy", ICML 2015.
        """
        return {"divergence": _fixed_order.pure(epsilon, self.details["order"]), "failure": delta,
                "law": 0.0, "ratio": 0.0}

    def remedy(self, amount: str, left: float) -> str:
        """For failures, as which the delta of a statement is charged: a smaller delta."""
        if amount != "failure":
            return super().remedy(amount, left)
        return (f"it is delta that is short, not noise. A ledger with filter={self.kind!r} keeps "
                f"{_ASIDE / 2:.0%} of its delta for the deltas of other statements and for samples "
                f"that fail. State it at a delta of at most {left:.6g}, where its epsilon is "
                "larger, or open a ledger with filter='basic', which adds up deltas, and a delta "
                "above their sum")

    def gives_back(self) -> bool:
        """See the theorem."""
        return True

    def odometer(self, spent: Amounts) -> float:
        """Epsilon of the first milestone at or above what was charged."""
        if not any(spent.values()):
            return 0.0
        reached = _odometers(self.details["order"], self.limits["divergence"],
                             self.details["delta"])
        value = min(epsilon for limit, epsilon in reached if limit >= spent["divergence"])
        return max(value, 0.0) + self.limits["ratio"]

    def statement_that_fits(self, left: Amounts) -> tuple[float, float]:
        """By bisection on randomised response."""
        low, high = 0.0, left["divergence"] + 50.0
        for _ in range(200):
            middle = 0.5 * (low + high)
            fits = _fixed_order.pure(middle, self.details["order"]) <= left["divergence"]
            low, high = (middle, high) if fits else (low, middle)
        return low, left["failure"]

    def in_words(self) -> str:
        """The theorem, and its order."""
        return ("Runs are added up by their Renyi divergences of order "
                f"{self.details['order']:.4g}, which was fixed when the ledger was opened (Feldman "
                "and Zrnic 2021), other statements by the epsilon and delta they say.")

    def odometer_in_words(self) -> str:
        """Of the milestones."""
        return ("of the next of its milestones, which were fixed when the ledger was opened; for "
                "all of them together, the same delta; holds wherever one stops")


def best_order(epsilon: float, delta: float, neighbours: str,
               typical: Description | None = None, people: int = 1) -> float:
    """The order at which most runs like `typical` fit, or Gaussian ones without sampling.

    Raises:
      ValueError: if no order leaves anything of so small a delta and epsilon.
    """
    best, least = 0.0, math.inf
    for order in np.geomspace(1e-2, 1e6, 161) + 1.0:
        try:
            one = Renyi.open(epsilon, delta, float(order))
        except ValueError:
            continue
        cost = order if typical is None else one.charge(typical, "", delta, neighbours,
                                                        people)[one.main]
        share = cost / one.limits[one.main]
        if share < least:
            best, least = float(order), share
        elif share > 4 * least:  # far beyond the best one
            break
    if not best:
        raise ValueError(f"No Renyi order leaves anything of epsilon = {epsilon:g} at delta = "
                         f"{delta:g}" + (" for the typical run" if typical is not None else "")
                         + ": use filter='basic'.")
    return best


def _conversion(order: float, delta: float) -> float:
    """What epsilon is above rho."""
    return ((-math.log(delta * order) + (order - 1) * math.log1p(-1 / order)) / (order - 1))


def _odometers(order: float, rho: float, delta: float) -> list[tuple[float, float]]:
    """Limits, falling, and epsilon of each, without the ratio."""
    limits = [rho / 1.5**j for j in range(STEPS)]
    return [(limit, limit + _conversion(order, share))
            for limit, share in zip(limits, reversed(shares(STEPS, delta)), strict=True)]
