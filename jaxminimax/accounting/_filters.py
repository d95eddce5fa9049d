"""Privacy filters: rules by which several runs, each chosen by looking at the others, stay private.

A filter fixes its limits when it is opened. A run is charged when it is reserved, before it reads
data; the sum of all charges must stay within the limits on every path of choices, and then all
outputs together are (epsilon, delta)-private, whoever chose the next run, its noise and its end by
looking at what had been released, and however runs are nested: with its description, problem and
data fixed, what a run will release is drawn by coins of its own, and who sees it bit by bit, with
other runs between, sees no more than who is shown all of it at once.

There is no such filter of full strength for privacy loss distributions: with noise that is chosen
on the way their composition understates. `Plan` uses it, for runs that are all named at opening.

Basic composition and plans are here, Renyi divergences in `_renyi_filter`.

Source: Rogers, Roth, Ullman and Vadhan, "Privacy odometers and filters: pay-as-you-go composition",
NeurIPS 2016.
"""

import abc
import dataclasses
import fractions
import math
from typing import Any, ClassVar

from jaxminimax.accounting._charge import charges
from jaxminimax.accounting._people import dearest
from jaxminimax.mechanism import Description, Sequence

Amounts = dict[str, float]


def total(charged: list[Amounts], names: tuple[str, ...]) -> Amounts:
    """The sums, exact and then rounded up."""
    made = {}
    for name in names:
        each = [one.get(name, 0.0) for one in charged]
        if not all(map(math.isfinite, each)):
            made[name] = math.inf
            continue
        exact = sum(map(fractions.Fraction, each), fractions.Fraction(0))
        value = float(exact)
        made[name] = math.nextafter(value, math.inf) if fractions.Fraction(value) < exact else value
    return made


@dataclasses.dataclass(frozen=True)
class Filter(abc.ABC):
    """What may be spent, and what a run costs.

    Attributes:
      limits: of every amount that is charged, fixed at opening.
      details: further numbers that were fixed at opening.
    """

    kind: ClassVar[str]
    main: ClassVar[str]  # the amount that runs are measured by

    limits: Amounts
    details: dict[str, Any]

    @abc.abstractmethod
    def charge(self, mechanism: Description, name: str, delta: float, neighbours: str,
               people: int = 1) -> Amounts:
        """What a run costs.

        Raises:
          ValueError: for a run that this filter cannot charge.
        """

    def foreign(self, epsilon: float, delta: float) -> Amounts:
        """What releases cost of which no more is known than that they are (epsilon, delta)-private.

        Raises:
          ValueError: if this filter cannot charge them.
        """
        raise ValueError(f"A ledger with filter={self.kind!r} has no room for other statements: "
                         "open one with filter='basic'.")

    def remedy(self, amount: str, left: float) -> str:
        """What to do where too little of an amount is left."""
        if amount == self.main:
            return ("give it more noise or fewer releases; ledger.calibrate(algorithm, hyper, "
                    "share=...) finds the noise for a share of what is left")
        return "give it fewer releases, as more noise does not change this"

    def gives_back(self) -> bool:
        """Whether releases that a run did not make, its end chosen by looking, need not be paid."""
        return False

    @abc.abstractmethod
    def odometer(self, spent: Amounts) -> float:
        """Epsilon of what was charged; see `in_words` for what it means."""

    @abc.abstractmethod
    def statement_that_fits(self, left: Amounts) -> tuple[float, float]:
        """An (epsilon, delta) such that any further statement of it still fits."""

    @abc.abstractmethod
    def in_words(self) -> str:
        """By what theorem runs are added up."""

    @abc.abstractmethod
    def odometer_in_words(self) -> str:
        """What the odometer's number means."""


class Basic(Filter):
    """Sums of (epsilon_i, delta_i), Rogers et al. 2016.

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
        """The filter of (epsilon, delta)."""
        return cls({"epsilon": epsilon, "delta": delta}, {})

    def charge(self, mechanism: Description, name: str, delta: float, neighbours: str,
               people: int = 1) -> Amounts:
        """Its epsilon, by everything that the accountant knows, at a share of delta."""
        return {"epsilon": dearest(mechanism, delta, neighbours, people).epsilon, "delta": delta}

    def foreign(self, epsilon: float, delta: float) -> Amounts:
        """Both."""
        return {"epsilon": epsilon, "delta": delta}

    def remedy(self, amount: str, left: float) -> str:
        """Of delta: a smaller one."""
        if amount != "delta":
            return super().remedy(amount, left)
        return (f"it is delta that is short, not noise. State it at a delta of at most {left:.6g}, "
                "where its epsilon is larger, or open a ledger with a larger delta")

    def odometer(self, spent: Amounts) -> float:
        """The sum of the runs' epsilons."""
        return spent["epsilon"]

    def statement_that_fits(self, left: Amounts) -> tuple[float, float]:
        """What is left of both."""
        return left["epsilon"], left["delta"]

    def in_words(self) -> str:
        """The theorem."""
        return ("Runs are added up by basic composition: their epsilons and their deltas "
                "(Rogers et al. 2016).")

    def odometer_in_words(self) -> str:
        """Of the theorem."""
        return "the sum of the runs' epsilons, which holds wherever one stops, with the same delta"


class Plan(Filter):
    """Runs that are all named at opening, charged by one composition of privacy losses.

    Theorem. The order of the releases, and which of them are made, may be chosen by looking.

    Proof. Let the releases that are left be dominated by pairs (P_i, Q_i), i in R, with losses L_i,
    let y be the loss so far, V_0(y) = (1 - e^(epsilon - y))_+, and (G_i V)(y) = E_P[V(y + L_i)].
    Those operators commute, as L_i are independent. By induction over R, the value V_R of the best
    continuation is the product of G_i, i in R, on V_0: with release i first it is G_i V_(R - i),
    whichever i, because V_(R - i) is convex in e^-y, so a mixture of functions that (P_i, Q_i)
    dominates on. Not to go on is never better: V <= G_i V by Jensen's inequality, V being convex
    and falling in e^-y, and E_P[e^-L] <= 1.
    """

    kind, main = "plan", "runs"

    @classmethod
    def open(cls, epsilon: float, delta: float, neighbours: str, plan: dict[str, Description],
             people: int = 1) -> "Plan":
        """The plan, if all of it together is (epsilon, delta)-private.

        Raises:
          ValueError: if it costs more.
        """
        costs = dearest(Sequence(parts=tuple(plan.values())), delta, neighbours, people).epsilon
        if not costs <= epsilon:
            raise ValueError(f"The plan costs epsilon = {costs:.6g} at delta = {delta:g}, and the "
                             f"ledger has {epsilon:g}: give its runs more noise, calibrate(..., "
                             "alongside=...) finds how much.")
        told = {name: repr(charges(one, neighbours)) for name, one in plan.items()}
        return cls({name: 1.0 for name in plan}, {"epsilon": costs, "charges": told})

    def charge(self, mechanism: Description, name: str, delta: float, neighbours: str,
               people: int = 1) -> Amounts:
        """One of the runs that were named."""
        if name not in self.limits:
            raise ValueError(f"{name!r} is not in the plan, which has {', '.join(self.limits)}: "
                             "name one of these, or open a ledger with filter='renyi'.")
        if self.details["charges"][name] != repr(charges(mechanism, neighbours)):
            raise ValueError(f"What was planned as {name!r} has another cost: reserve the "
                             "description that the ledger was opened with.")
        return {name: 1.0}

    def odometer(self, spent: Amounts) -> float:
        """That of the plan, once anything of it was begun."""
        return self.details["epsilon"] if any(spent.values()) else 0.0

    def statement_that_fits(self, left: Amounts) -> tuple[float, float]:
        """None."""
        return 0.0, 0.0

    def in_words(self) -> str:
        """The theorem."""
        return ("Runs were all named when the ledger was opened, and are charged together by one "
                f"composition of privacy losses: epsilon = {self.details['epsilon']:.4g}. Their "
                "order and their ends may be chosen by looking.")

    def odometer_in_words(self) -> str:
        """Of all of it."""
        return "of the whole plan"
