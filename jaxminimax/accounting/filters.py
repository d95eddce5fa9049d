"""Privacy filters: rules that keep several runs private, each chosen by looking at the others.

A filter fixes its limits when it is opened. A run is charged when it is reserved, before it reads
data. The sum of all charges must stay within the limits on every path of choices, and then all
outputs together are (epsilon, delta)-private. The next run, its noise and its end may be chosen by
any rule that looks at earlier releases, and runs may be nested: with its description, problem and
data fixed, a run draws its releases with randomness of its own, and an observer who sees them one
by one, with other runs between, sees no more than one who is shown all of them at once.

A ledger that was opened without a filter takes one of two for the same (epsilon, delta): it gives
all of the budget to its first run, by the epsilon of that run at delta, or it adds runs up by Renyi
divergences. A rule c of the first run's description chooses, under the lock of the file, before
anything is released. What chose the description has seen no data, so c has the same law on
neighbouring data sets, and with P_c, Q_c the outputs under the choice c

    P(S) = sum_c p(c) P_c(S) <= sum_c p(c) (e^epsilon Q_c(S) + delta) = e^epsilon Q(S) + delta.

A run that is cancelled released nothing, and if it was the only one the next run decides again. The
choice must not wait any longer. "Stop when both filters are exceeded" lets what was released select
the filter: events on the paths that only one or only the other admits may each miss delta, and all
that follows is (epsilon, 2 delta).

There is no such filter for privacy loss distributions: their composition understates the loss if
noise is chosen on the way.

Sources: Rogers, Roth, Ullman and Vadhan, "Privacy odometers and filters: pay-as-you-go
composition", NeurIPS 2016. Of the filter by Renyi divergences: Feldman and Zrnic, "Individual
privacy accounting via a Renyi filter", NeurIPS 2021; Whitehouse, Ramdas, Rogers and Wu, "Fully
adaptive composition in differential privacy", ICML 2023, for failures; Canonne, Kamath and Steinke,
"The discrete Gaussian for differential privacy", NeurIPS 2020, for the conversion.
"""

import abc
import dataclasses
import fractions
import math
from typing import Any, ClassVar

import numpy as np

from jaxminimax.accounting import epsilon_delta, renyi, roots
from jaxminimax.accounting.curve import charges, dearest, together
from jaxminimax.mechanism import Description

Amounts = dict[str, float]


def total(charged: list[Amounts], names: tuple[str, ...]) -> Amounts:
    """Returns the sums of all amounts, added exactly and then rounded up."""
    sums = {}
    for name in names:
        amounts = [charge.get(name, 0.0) for charge in charged]
        if not all(map(math.isfinite, amounts)):
            sums[name] = math.inf
            continue
        # sums of floats would be rounded to nearest, and a limit could be passed
        exact = sum(map(fractions.Fraction, amounts), fractions.Fraction(0))
        value = float(exact)
        sums[name] = math.nextafter(value, math.inf) if fractions.Fraction(value) < exact else value
    return sums


@dataclasses.dataclass(frozen=True)
class Filter(abc.ABC):
    """A privacy filter: the limits of a budget, and what a run is charged against them.

    Attributes:
      limits: of every amount that is charged, fixed at opening.
      details: further numbers that were fixed at opening.
    """

    kind: ClassVar[str]
    main: ClassVar[str]  # the amount that runs are measured by
    # whether releases that a run did not make, its end chosen by looking, need not be paid
    gives_back: ClassVar[bool] = False

    limits: Amounts
    details: dict[str, Any]

    @abc.abstractmethod
    def charge(self, mechanism: Description, delta: float, neighbours: str,
               people: int = 1) -> Amounts:
        """Returns the charge of a run.

        Raises:
          ValueError: for a run that this filter cannot charge.
        """

    @abc.abstractmethod
    def foreign(self, epsilon: float, delta: float) -> Amounts:
        """Returns the charge of releases that a statement calls (epsilon, delta)-private."""

    def remedy(self, amount: str, remaining: float) -> str:
        """Returns advice for a run that needs more of an amount than is left."""
        if amount == self.main:
            return ("add more noise or make fewer releases; ledger.calibrate(algorithm, hyper, "
                    "share=...) finds the noise for a share of what is left")
        return "make fewer releases; more noise does not change this amount"

    @abc.abstractmethod
    def odometer(self, spent: Amounts) -> float:
        """Returns the epsilon of all charges so far; `summary` says what it means."""

    @abc.abstractmethod
    def statement_that_fits(self, remaining: Amounts) -> tuple[float, float]:
        """Returns the (epsilon, delta) of a further statement that certainly fits."""

    @abc.abstractmethod
    def summary(self) -> tuple[str, str]:
        """Returns how runs are added up, and what the odometer's number means."""


class Basic(Filter):
    """Basic composition: sums of (epsilon_i, delta_i), by Rogers et al. 2016.

    Theorem. With epsilon_i, delta_i and mechanism i chosen by looking at the outputs before it, for
    every event S of all outputs, E the sum of epsilon_i on the path and delta at least the sum of
    delta_i on every path, P(S) <= integral over S of e^E dQ + delta.

    Proof. By induction over the number of mechanisms. Let the first one be (e, d)-private, and let
    y be its output; for what follows P_y(S_y) <= min(1, g(y)) + delta - d with g(y) the integral of
    e^(E - e) dQ_y. Then P(S) <= integral of min(1, g) dP + delta - d <= e^e integral of g dQ + d +
    delta - d. With E <= epsilon everywhere that is the filter; with E as it was, the odometer.
    """

    kind, main = "basic", "epsilon"

    @classmethod
    def open(cls, epsilon: float, delta: float) -> "Basic":
        """Returns the filter of (epsilon, delta)."""
        return cls({"epsilon": epsilon, "delta": delta}, {})

    def charge(self, mechanism: Description, delta: float, neighbours: str,
               people: int = 1) -> Amounts:
        """Returns the run's epsilon at a share of delta, by the whole accountant."""
        return {"epsilon": dearest(mechanism, delta, neighbours, people).epsilon, "delta": delta}

    def foreign(self, epsilon: float, delta: float) -> Amounts:
        """Returns the epsilon and the delta of the statement."""
        return {"epsilon": epsilon, "delta": delta}

    def remedy(self, amount: str, remaining: float) -> str:
        """Advises a smaller delta where delta is short."""
        if amount != "delta":
            return super().remedy(amount, remaining)
        return (f"delta is short, and noise does not change that. State it at a delta of at most "
                f"{remaining:.6g}, where its epsilon is larger, or open a ledger with a larger "
                "delta")

    def odometer(self, spent: Amounts) -> float:
        """Returns the sum of the runs' epsilons."""
        return spent["epsilon"]

    def statement_that_fits(self, remaining: Amounts) -> tuple[float, float]:
        """Returns the epsilon and delta that are left."""
        return remaining["epsilon"], remaining["delta"]

    def summary(self) -> tuple[str, str]:
        """Returns the theorem, and what its sum means."""
        return ("Runs are added up by basic composition, the sums of their epsilons and of their "
                "deltas (Rogers et al. 2016).",
                "the sum of the runs' epsilons, which holds for every stopping rule, with the same "
                "delta")


_ASIDE = 0.1  # part of delta that is kept for failures


class Renyi(Filter):
    """Composition of Renyi divergences at one order a, fixed at opening, with failures.

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

    The odometer is that of milestones, as in `epsilon_delta`: limits rho_j = rho / 1.5^j, each with
    a share D_j of D, half of it for rho itself. "Everything that was charged is at most rho_j" is
    decided by the process that makes no release beyond rho_j. Failures are paid once for all. The
    last milestone's epsilon is above that of the filter, which has D where the milestone has D / 2.
    Printing the filter's in its place is not proven with one delta: smaller milestones have the
    other half of D already, so the sum over stops would be 3 D / 2.
    """

    kind, main, gives_back = "renyi", "divergence", True

    @classmethod
    def open(cls, epsilon: float, delta: float, order: float) -> "Renyi":
        """Returns the filter of (epsilon, delta) at an order.

        Raises:
          ValueError: if the order leaves nothing to spend.
        """
        # of epsilon a thousandth is kept for the law of the integer noise
        ratio, aside = 1e-3 * epsilon, _ASIDE * delta
        # delta = e^r (D + f) + (1 + e^epsilon) t: D has what is not kept aside, over e^r
        main = (delta - aside) * math.exp(-ratio)
        # epsilon = rho + conversion(a, D) + r, solved for rho
        rho = (epsilon - ratio - _conversion(order, main)) * (1 - 1e-12)
        if not rho > 0:
            raise ValueError(f"order = {order:g} leaves nothing of epsilon = {epsilon:g} at delta "
                             f"= {delta:g}: state a larger order, or leave it out.")
        # failures have half of what is aside, times e^-r; departures the other half, over 1 +
        # e^epsilon
        highest = _odometers(order, rho, main)[0][1] + ratio  # a little above epsilon
        return cls({"divergence": rho, "failure": 0.5 * aside * math.exp(-ratio),
                    "law": 0.5 * aside * math.exp(-np.logaddexp(0.0, highest)), "ratio": ratio},
                   {"order": order, "delta": main})

    def charge(self, mechanism: Description, delta: float, neighbours: str,
               people: int = 1) -> Amounts:
        """Returns the divergence at the filter's order and the other amounts, at worst."""
        largest, costs = {name: 0.0 for name in self.limits}, charges(mechanism, neighbours)
        if not together(mechanism, costs, people):
            raise ValueError(f"These releases have no Renyi divergence for {people} records of one "
                             "person: open the ledger with filter='basic'.")
        for cost in costs:
            rho, failure = renyi.divergence(cost, self.details["order"], neighbours,
                                            1e-3 * self.limits["failure"], people)
            amounts = {"divergence": rho, "failure": failure + cost.failures(people),
                   "law": people * cost.departure(people), "ratio": people * cost.ratio}
            largest = {name: max(largest[name], amounts[name]) for name in largest}
        return largest

    def foreign(self, epsilon: float, delta: float) -> Amounts:
        """Returns the charge of randomised response with that epsilon and a failure of mass delta.

        Every (epsilon, delta)-private pair is made from that one: Kairouz, Oh and Viswanath, "The
        composition theorem for differential privacy", ICML 2015.
        """
        return {"divergence": renyi.pure(epsilon, self.details["order"]), "failure": delta,
                "law": 0.0, "ratio": 0.0}

    def remedy(self, amount: str, remaining: float) -> str:
        """Advises a smaller delta where failures are short: deltas of statements count as these."""
        if amount != "failure":
            return super().remedy(amount, remaining)
        return (f"delta is short, and noise does not change that. A ledger with filter="
                f"{self.kind!r} keeps {_ASIDE / 2:.0%} of its delta for the deltas of other "
                "statements and for samples that fail. State it at a delta of at most "
                f"{remaining:.6g}, where its epsilon is larger, or open a ledger with "
                "filter='basic', which adds up deltas, and a delta above their sum")

    def odometer(self, spent: Amounts) -> float:
        """Returns the epsilon of the first milestone at or above the divergence spent."""
        if not any(spent.values()):
            return 0.0
        # the smallest epsilon of all milestones that are not below what is charged
        reached = _odometers(self.details["order"], self.limits["divergence"],
                             self.details["delta"])
        value = min(epsilon for limit, epsilon in reached if limit >= spent["divergence"])
        return max(value, 0.0) + self.limits["ratio"]

    def statement_that_fits(self, remaining: Amounts) -> tuple[float, float]:
        """Returns the epsilon of the randomised response that fits, and the delta that is left."""
        def fits(epsilon: float) -> bool:
            return renyi.pure(epsilon, self.details["order"]) <= remaining["divergence"]

        return roots.bisect(fits, 0.0, remaining["divergence"] + 50.0)[0], remaining["failure"]

    def summary(self) -> tuple[str, str]:
        """Returns the theorem with its order, and what the milestones mean."""
        return ("Runs are added up by their Renyi divergences of order "
                f"{self.details['order']:.4g}, which was fixed when the ledger was opened (Feldman "
                "and Zrnic 2021), other statements by their epsilon and delta.",
                "that of the next milestone, fixed when the ledger was opened; all milestones "
                "together have the same delta, and it holds for every stopping rule")


def best_order(epsilon: float, delta: float, neighbours: str,
               typical: Description | None = None, people: int = 1) -> float:
    """Finds the order at which most runs like `typical` fit, or Gaussian ones without sampling.

    Raises:
      ValueError: if no order leaves anything of so small a delta and epsilon.
    """
    best, least = 0.0, math.inf
    # a - 1 from 0.01 to 10^6; a Gaussian run is charged a mu^2 / 2, in proportion to a
    for order in np.geomspace(1e-2, 1e6, 161) + 1.0:
        try:
            opened = Renyi.open(epsilon, delta, float(order))
        except ValueError:
            continue
        cost = order if typical is None else opened.charge(typical, delta, neighbours,
                                                           people)[opened.main]
        share = cost / opened.limits[opened.main]
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
    """Returns the excess of epsilon over rho."""
    # [ln(1 / (a D)) + (a - 1) ln(1 - 1 / a)] / (a - 1)
    return ((-math.log(delta * order) + (order - 1) * math.log1p(-1 / order)) / (order - 1))


def _odometers(order: float, rho: float, delta: float) -> list[tuple[float, float]]:
    """Returns the milestones: divergences, falling, and the epsilon of each without the ratio."""
    # rho_j = rho / 1.5^j, the last share of delta for rho itself
    limits = [rho / 1.5**j for j in range(epsilon_delta.STEPS)]
    delta_shares = reversed(epsilon_delta.shares(epsilon_delta.STEPS, delta))
    return [(limit, limit + _conversion(order, share))
            for limit, share in zip(limits, delta_shares, strict=True)]
