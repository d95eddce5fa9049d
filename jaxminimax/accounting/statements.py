"""Privacy statements of a run, a ledger and a search: their fields, and their own text."""

import dataclasses
import math
from typing import Any

from jaxminimax.accounting import answers, sections

_TUNING = "not counted: settings must be public; a search over settings has a statement of its own"


@dataclasses.dataclass(frozen=True)
class Statement(sections.Stated):
    """A privacy statement; `str` for words, `to_json` for a flat record.

    Attributes:
      epsilon: of everything the mechanism allows. It holds for a run that ends earlier too, by
        whatever rule: what was released is a part of what would have been.
      epsilon_if_stopped_by_looking: of a run that ended earlier, by a rule that looked at what was
        released: the epsilon of the next milestone, with one share of delta; all milestones, fixed
        by `accounting.answers` before the run, share one delta. None if the run did not end
        earlier.
      milestone: the number of releases that `epsilon_if_stopped_by_looking` covers, with those of
        `alongside`; None if the run did not end earlier.
      epsilon_spent_if_fixed: of what was spent, provided that this number of releases was fixed
        before the first one. A rule that looks at what was released can stop where the privacy
        loss is large, and then this number does not hold.
      delta: the delta of each of them.
      neighbours: "replace_one" or "add_or_remove_one".
      unit: what one record is, or with several `people`, what they are the records of.
      people: k, how many records differ: any k of them.
      sampling: in words, one sentence a part.
      spent: releases made, with those of `alongside`.
      allowed: releases allowed, with those of `alongside`.
      noise_multiplier: per part and player, noise on the clipped sum over clip norm.
      clip: per part and player.
      effective_noise_multiplier: per part, players combined.
      charged_noise_multiplier: per part, the multiplier of a mechanism with real-valued sums and
        noise that is no more private than what runs: rounding is part of the distance.
      realisation: per part, what the grid, sums of blocks and the sampler of the noise cost.
      accountant: bound, library and version, of `epsilon`.
      event: the dp-accounting event that `epsilon` is of; multipliers are noise over clip norm.
      enforced: what the code guarantees.
      assumed: what the user and the operator must see to; each sentence begins with its owner,
        the user where it names none.
      answers: what `profile` gives besides epsilon, if it was asked for: the largest advantage of
        membership inference, true positives at given rates of false ones, and the mu of the
        closest Gaussian.
      records: n, the number of records; 0 in records of older versions.
      proven_up_to: None unless `epsilon` is infinite although there is noise. Then no epsilon above
        this one can be proven at `delta`, and the run may have a finite one; 0 if none can be
        proven, as samplers and noise may fail with a probability of `delta` or more.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(30.0, 30.0),
        ...                   population=1000)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=20)
        >>> stated = jmm.statement(jmm.sgda, hyper, delta=1e-6)
        >>> stated.allowed, jmm.accounting.Statement.from_json(stated.to_json()) == stated
        (20, True)
    """

    subject = "The releases of this run satisfy"

    epsilon: float
    epsilon_if_stopped_by_looking: float | None
    milestone: int | None
    epsilon_spent_if_fixed: float
    delta: float
    neighbours: str
    unit: str
    sampling: tuple[str, ...]
    spent: int
    allowed: int
    noise_multiplier: tuple[dict[str, float], ...]
    clip: tuple[dict[str, float], ...]
    effective_noise_multiplier: tuple[float, ...]
    charged_noise_multiplier: tuple[float, ...]
    realisation: tuple[str, ...]
    accountant: str
    event: str
    enforced: tuple[str, ...]
    assumed: tuple[str, ...]
    people: int = 1
    answers: dict[str, Any] | None = None
    proven_up_to: float | None = None
    records: int = 0

    def no_guarantee(self) -> str:
        """Says that there is no guarantee, or up to which epsilon one could be proven."""
        if self.proven_up_to is None:
            return f"NO privacy guarantee for {self.unit}: epsilon is infinite."
        return (f"Epsilon for {self.unit} is "
                f"{answers.limit_in_words(self.proven_up_to, self.delta)} (neighbouring data "
                f"sets: {self.relation()}).")

    def scope(self) -> str:
        """States the number of releases, the epsilons of a run that ended early, and the method."""
        if self.epsilon_if_stopped_by_looking is None:
            covered = f"The guarantee covers all {self.allowed} releases that the run may make."
        else:
            covered = (
                f"The guarantee covers all {self.allowed} releases that the run was allowed, so "
                f"it holds whatever ended the run after {self.spent} of them. An end chosen by "
                "looking at the releases also has epsilon = "
                f"{_or_unknown(self.epsilon_if_stopped_by_looking)}, for {self.milestone} "
                "releases, a milestone that was fixed before the run. "
                f"{sections.quote_one(self.delta)} An end that was fixed before the run has "
                f"epsilon = {_or_unknown(self.epsilon_spent_if_fixed)}.")
        return f"{covered} Method: {self.accountant}."

    def rows(self) -> dict[str, str]:
        """Names what was released, sampling, clip norms, noise, releases made and tuning."""
        noise = (_players(values) + f" (all players together {together:.5g})" * (len(values) > 1)
                 for values, together in zip(self.noise_multiplier, self.effective_noise_multiplier,
                                             strict=True))
        return {
            "released": "every state of the run; results computed from the releases are covered",
            "sampling": " ".join(self.sampling),
            "clip norm": "; ".join(x for x in map(_players, self.clip) if x) or "none",
            "noise multiplier": "; ".join(noise),
            "releases made": f"{self.spent} of {self.allowed} allowed",
            "tuning": _TUNING,
        }

    def annex(self) -> tuple[str, ...]:
        """States how the noise is made and what that costs, and bounds on membership attacks."""
        if self.answers is None:
            return self.realisation
        rates = ", ".join(f"{true:.4g} at {false}" for false, true in
                          self.answers["true_positives"].items())
        return (*self.realisation,
                f"Membership inference: advantage at most {self.answers['advantage']:.4g}; true "
                f"positive rate at most {rates} false positive rate.")


def _or_unknown(epsilon: float) -> str:
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "not proven"


def _players(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.5g}".strip() for name, value in values.items())


@dataclasses.dataclass(frozen=True)
class LedgerStatement(sections.Stated):
    """The statement of all runs of a ledger; `str` for words, `to_json` for a flat record.

    Attributes:
      epsilon: of everything that is in the ledger and that it will ever let in.
      epsilon_if_stopped_by_looking: the odometer's, of what is charged now, if nothing more is
        reserved; holds whatever made one stop.
      delta: of each of them; one of the two is to be quoted, chosen beforehand, as the smaller one
        counts both deltas.
      neighbours: "replace_one" or "add_or_remove_one".
      people: k, how many records of one person may differ.
      unit: what one record is.
      filter: by what theorem runs are added up, in words.
      odometer: what the odometer's number means, in words.
      limits: of every amount that is charged.
      spent: of every amount.
      runs: a record each, with name, unit, words, charge, releases, spent, opened and closed; unit
        is None for a run of a ledger that did not record it.
      enforced: what the code guarantees.
      assumed: what the user and the operator must see to; each sentence begins with its owner,
        the user where it names none.

    Examples:
        >>> stated = jmm.accounting.Ledger("study.json", epsilon=2.0, delta=1e-6).statement()
        >>> stated.epsilon, stated.delta, len(stated.runs)
        (2.0, 1e-06, 0)
    """

    subject = "All releases in this ledger, now and later, together satisfy"

    epsilon: float
    epsilon_if_stopped_by_looking: float
    delta: float
    neighbours: str
    people: int
    unit: str
    filter: str
    odometer: str
    limits: dict[str, float]
    spent: dict[str, float]
    runs: tuple[dict[str, Any], ...]
    enforced: tuple[str, ...]
    assumed: tuple[str, ...]

    def scope(self) -> str:
        """Returns the odometer, and how runs are added up."""
        return (f"If nothing more is reserved, epsilon = {self.epsilon_if_stopped_by_looking:.4g}, "
                f"{self.odometer}. Quote one of the two, chosen beforehand. {self.filter}")

    def rows(self) -> dict[str, str]:
        """Names the budget that is used, and the runs."""
        shares = {name: 100 * self.spent[name] / limit for name, limit in self.limits.items()}
        used = ", ".join(f"{share:.3g} % of {name}" for name, share in shares.items()
                         if share > 0.01)
        return {"budget used": used or "less than 0.01 %",
                "tuning": "counted if all runs of the search are in this ledger",
                **{f"run {run['name']!r}": _run_in_words(run) for run in self.runs}}

    def annex(self) -> tuple[str, ...]:
        """Returns the amounts that each run is counted with."""
        used = ", ".join(f"{name} {self.spent[name]:.4g} of {limit:.4g}"
                         for name, limit in self.limits.items())
        each = (f"{run['name']!r} uses "
                + ", ".join(f"{name} {x:.4g}" for name, x in run["charge"].items()) + "."
                for run in self.runs)
        return (f"Budget used: {used}.", *each)


def _run_in_words(run: dict[str, Any]) -> str:
    count = "" if run["spent"] is None else f", {run['spent']} made"
    state = "open" if run["closed"] is None else "closed"
    unit = "unit not recorded" if run["unit"] is None else f"for {run['unit']}"
    return f"({unit}; {state}{count}) {run['words']}"


@dataclasses.dataclass(frozen=True)
class TuningStatement(sections.Stated):
    """The privacy statement of a search; `str` for words, `to_json` for a flat record.

    Attributes:
      epsilon: of the search: of the winner, its candidate and its score together.
      delta: of the search.
      neighbours: "replace_one" or "add_or_remove_one".
      unit: what one record is.
      candidates: how many there are.
      expected_runs: mean of the number of runs.
      most_runs: the largest number of runs.
      eta: of the law of the number of runs.
      gamma: of the law of the number of runs.
      chance_of_one_run: probability that there is no second run.
      chance_of_trying: probability that one given candidate, such as the best, is tried at all.
      epsilon_of_one_run: at the same delta, were it published by itself, without a choice.
      padded: whether as many runs as there could be are always made.
      sampling: what one run releases, in words; candidates that differ one after the other.
      score: what is released of a run's score, in words.
      noise_multiplier: of every candidate, by part and player, and of its score.
      law: of the number of runs, in words.
      accountant: bound, library and version.
      enforced: what the code guarantees.
      assumed: what the user and the operator must see to; each sentence begins with its owner.
      records: n, the number of records; 0 in records of older versions.

    Examples:
        >>> fields = jmm.accounting.TuningStatement.__dataclass_fields__
        >>> "epsilon_of_one_run" in fields, "expected_runs" in fields
        (True, True)
    """

    subject = "This search satisfies"

    epsilon: float
    delta: float
    neighbours: str
    unit: str
    candidates: int
    expected_runs: float
    most_runs: int
    eta: float
    gamma: float
    chance_of_one_run: float
    chance_of_trying: float
    epsilon_of_one_run: float
    padded: bool
    sampling: tuple[str, ...]
    score: str
    noise_multiplier: tuple[tuple[dict[str, float], ...], ...]
    law: str
    accountant: str
    enforced: tuple[str, ...]
    assumed: tuple[str, ...]
    records: int = 0

    def scope(self) -> str:
        """Returns the choice that epsilon covers, and the method."""
        return ("The guarantee covers the best of several runs by their released scores, with "
                f"its settings and its score; each run draws one of {self.candidates} candidate "
                f"settings. Method: {self.accountant}.")

    def rows(self) -> dict[str, str]:
        """Names what one run releases, its noise and its score, and the tuning."""
        noise = " or ".join(dict.fromkeys(
            f"{', '.join(map(_players, training))}; score {_players(score)}"
            for *training, score in self.noise_multiplier))
        return {
            "released": "the state, the settings and the score of the best run",
            "sampling": " ".join(self.sampling),
            "score": self.score,
            "noise multiplier": noise,
            "tuning": f"counted: the choice among {self.candidates} candidates; a given candidate, "
                      f"such as the best, is tried with probability {self.chance_of_trying:.3g}",
            "one run alone": f"epsilon = {self.epsilon_of_one_run:.4g}",
        }

    def annex(self) -> tuple[str, ...]:
        """Returns the law of the number of runs."""
        return (self.law,)
