"""Privacy statements of a run and of a ledger: their fields, their text and their JSON records.

The text of a statement has five sections: a paragraph to quote, a table, what the numbers mean, the
assumptions with the owner of each, and a technical annex.

JSON has no infinity. An epsilon that is infinite, or that is above what is proven, is the string
"no guarantee" in a record; null says that a number does not apply.
"""

import abc
import dataclasses
import json
import math
import textwrap
import types
import typing
from typing import Any, Self

from jaxminimax.accounting.printing import (
    NO_GUARANTEE,
    limit_in_words,
    membership,
    percent,
    players,
    quote_one,
    rounded_up,
)

LARGE_DELTA = "Delta is too large"
USER = "User: "  # the owner of an assumption is its first word
# how neighbouring data sets differ in one record
RELATIONS = {"replace_one": "one record is replaced by another",
             "add_or_remove_one": "one record is present or counts as absent"}


class Stated(abc.ABC):
    """Base of all statements: the sections of their text, and a JSON record."""

    __dataclass_fields__: typing.ClassVar[dict[str, Any]]
    subject: typing.ClassVar[str]  # with its verb: what satisfies differential privacy
    epsilon: float
    delta: float
    neighbours: str
    unit: str
    enforced: tuple[str, ...]
    assumed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns a dictionary of plain Python values; infinity is "no guarantee".

        None is for what does not apply, such as the odometer of a run that ended as planned.
        """
        return dict(json.loads(json.dumps(dataclasses.asdict(self)),
                               parse_constant=lambda _: NO_GUARANTEE))

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Self:
        """Returns the statement that `to_json` made `record` of.

        Raises:
          ValueError: for what is no such record.
        """
        if not isinstance(record, dict):
            raise ValueError("A statement's record must be a dictionary from Statement.to_json, "
                             f"got {type(record).__name__}.")
        kinds = typing.get_type_hints(cls)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        added = {name for name, field in fields.items() if field.default != dataclasses.MISSING}
        if wrong := sorted((fields.keys() ^ set(record)) - added):  # earlier records lack these
            raise ValueError(f"The record does not fit the statements of this version: {wrong} are "
                             "missing or unknown.")
        return cls(**{name: _read(name, value, kinds[name]) for name, value in record.items()})

    @abc.abstractmethod
    def scope(self) -> str:
        """Returns sentences on the releases that the claim covers, and on the method."""

    @abc.abstractmethod
    def rows(self) -> dict[str, str]:
        """Returns the rows of the table that only this kind of statement has."""

    @abc.abstractmethod
    def annex(self) -> tuple[str, ...]:
        """Returns the technical details, one sentence each."""

    def no_guarantee(self) -> str:
        """Returns the sentence that stands in place of the guarantee if epsilon is infinite."""
        return (f"NO privacy guarantee is proven for {self.unit}: epsilon is infinite, or above "
                "every one that can be proven.")

    def paragraph(self) -> str:
        """Returns the guarantee as one paragraph: who is protected, against whom, how much, how."""
        if math.isinf(self.epsilon):
            return f"{self.no_guarantee()} {self.scope()}"
        return (f"{self.subject} ({rounded_up(self.epsilon)}, {rounded_up(self.delta, 6)})-"
                f"differential privacy for {self.unit} (neighbouring data sets: {self.relation()}"
                "). The guarantee holds against anyone who sees all releases and knows every other "
                "record. "
                f"{membership(0.01, self.true_positives(0.01))} {self.scope()}")

    def relation(self) -> str:
        """States how neighbouring data sets differ."""
        people = getattr(self, "people", 1)
        if people == 1:
            return RELATIONS[self.neighbours]
        return (f"any {people} records are replaced by others"
                if self.neighbours == "replace_one" else
                f"each of any {people} records is present or counts as absent")

    def table(self) -> dict[str, str]:
        """Returns the numbers and settings that the guarantee consists of, by name."""
        delta = f"{rounded_up(self.delta, 6)}"
        if records := getattr(self, "records", 0):
            delta += f", which is {self.delta * records:.2g} times 1/n, for n = {records} records"
        return {"unit of privacy": self.unit, "neighbouring data sets": self.relation(),
                "epsilon": (rounded_up(self.epsilon) if math.isfinite(self.epsilon)
                            else NO_GUARANTEE),
                "delta": delta, "trust model": (
                    "trusted curator: the operator holds the records and the key, and the program "
                    "adds the noise; readers of the releases hold neither"), **self.rows()}

    def meaning(self) -> tuple[str, ...]:
        """Returns sentences on what epsilon and delta say about an attacker."""
        if math.isinf(self.epsilon):
            return ()
        factor = math.exp(min(self.epsilon, 700.0))
        right = percent(50 * (1 + self.advantage()))
        return (
            "The probability of any conclusion from the releases is at most e^epsilon = "
            f"{rounded_up(factor)} times what it is on neighbouring data, plus delta = "
            f"{rounded_up(self.delta, 6)}.",
            "An attacker who knows every other record, and guesses between two equally likely "
            f"neighbouring data sets, is right in at most {right} % of cases. Guessing is right in "
            "50 %.",
            membership(0.001, self.true_positives(0.001)),
            *(() if getattr(self, "attack_bounds", None) else (
                "These bounds on attacks follow from epsilon and delta alone; the noise that was "
                "added may allow less.",)),
            "The guarantee does not hide what the data show about people in general.")

    def advantage(self) -> float:
        """Returns the most by which true positives exceed false ones in any membership attack."""
        if stated := getattr(self, "attack_bounds", None):
            return float(stated["advantage"])
        # (e^epsilon - 1 + 2 delta) / (e^epsilon + 1), what (epsilon, delta) alone prove
        failed = 2 * self.delta / (1 + math.exp(min(self.epsilon, 700.0)))
        return min(1.0, math.tanh(self.epsilon / 2) + failed)

    def true_positives(self, rate: float) -> float:
        """Returns the largest true positive rate of an attack at a false positive rate."""
        stated = (getattr(self, "attack_bounds", None) or {}).get("true_positives", {})
        if f"{rate:g}" in stated:
            return float(stated[f"{rate:g}"])
        # P(S) <= e^epsilon Q(S) + delta, of the event and of its complement with P and Q exchanged
        shrunk = math.exp(-self.epsilon) * (1 - self.delta - rate)
        return min(math.exp(min(self.epsilon, 700.0)) * rate + self.delta, 1 - shrunk, 1.0)

    def owned(self) -> tuple[str, ...]:
        """Returns the assumptions, each with its owner: the user, unless it names the operator."""
        return tuple(x if x.startswith((USER, "Operator: ")) else USER + x
                     for x in self.assumed if not x.startswith(LARGE_DELTA))

    def __str__(self) -> str:
        def item(text: str) -> str:
            return _wrapped(f"  - {text}", 4)

        large = tuple(x for x in self.assumed if x.startswith(LARGE_DELTA))
        table, meaning = self.table(), self.meaning()
        width = max(map(len, table)) + 2
        return "\n".join([
            _wrapped(self.paragraph()), *map(_wrapped, large), "",
            *(_wrapped(f"{name:{width}}{text}", width) for name, text in table.items()), "",
            *(("What the numbers mean:", *map(item, meaning), "") if meaning else ()),
            _wrapped("Assumptions and their owners (user: writes the problem, chooses the "
                     "settings, knows the records; operator: runs the program, keeps the key, the "
                     "logs and the outputs):"), *map(item, self.owned()), "",
            "Technical annex:", *map(item, self.annex()),
            "Enforced by the code:", *map(item, self.enforced)])


def _wrapped(text: str, indent: int = 0) -> str:
    return textwrap.fill(text, 100, subsequent_indent=" " * indent, break_on_hyphens=False)


def _read(name: str, value: Any, kind: Any) -> Any:
    """Returns a field as before `to_json`; a `ValueError` if the value is not of its type."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        (kind,) = (item for item in inside if item is not type(None))
        return None if value is None else _read(name, value, kind)
    if kind is Any:
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_read(name, item, inside[0]) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: _read(name, item, inside[1]) for key, item in value.items()}
    if kind is float and (value == NO_GUARANTEE or type(value) in (int, float)):
        return float("inf" if value == NO_GUARANTEE else value)
    if kind in (int, str) and type(value) is kind:
        return value
    raise ValueError(f"{name} of a statement's record must be {kind}, got {value!r}.")


@dataclasses.dataclass(frozen=True)
class Statement(Stated):
    """A privacy statement; `str` for words, `to_json` for a flat record.

    Attributes:
      epsilon: of everything the mechanism allows. It holds for a run that ends earlier too, by
        whatever rule: what was released is a part of what would have been.
      epsilon_if_stopped_by_looking: of a run that ended earlier, by a rule that looked at what was
        released: the epsilon of the next milestone; all milestones, fixed before the run as in
        `accounting.epsilon_delta`, share one delta. None if the run did not end earlier.
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
      charged_noise_multiplier: per part, that of a mechanism with real-valued sums and noise that
        is no more private than what runs: rounding is part of the distance.
      realisation: per part, what the grid, sums of blocks and the sampler of the noise cost.
      accountant: bound, library and version, of `epsilon`.
      enforced: what the code guarantees.
      assumed: what user and operator must see to; each sentence begins with its owner, or it is
        the user's.
      attack_bounds: what `profile` gives besides epsilon, if asked for: the largest advantage of
        attacks, true positives at given rates of false ones, and the mu of the closest Gaussian.
      records: n, the number of records.
      proven_up_to: None unless `epsilon` is infinite although there is noise. Then no epsilon above
        this one can be proven at `delta`, and the run may have a finite one; 0 if none can be
        proven, as samplers and noise may fail with a probability of `delta` or more.
      parts: per part, what it releases, such as "gradients"; empty if they have no names.

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
    enforced: tuple[str, ...]
    assumed: tuple[str, ...]
    people: int
    attack_bounds: dict[str, Any] | None
    proven_up_to: float | None
    records: int
    parts: tuple[str, ...] = ()

    def no_guarantee(self) -> str:
        """Says that there is no guarantee, or up to which epsilon one could be proven."""
        if self.proven_up_to is None:
            return f"NO privacy guarantee for {self.unit}: epsilon is infinite."
        return (f"Epsilon for {self.unit} is "
                f"{limit_in_words(self.proven_up_to, self.delta)} (neighbouring data "
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
                f"{rounded_up(self.epsilon_if_stopped_by_looking)}, for {self.milestone} "
                "releases, a milestone that was fixed before the run. "
                f"{quote_one(self.delta)} An end that was fixed before the run has "
                f"epsilon = {rounded_up(self.epsilon_spent_if_fixed)}.")
        return f"{covered} Method: {self.accountant}."

    def rows(self) -> dict[str, str]:
        """Names what was released, sampling, clip norms, noise, releases made and tuning."""
        noise = [players(values) + f" (all players together {together:.5g})" * (len(values) > 1)
                 for values, together in zip(self.noise_multiplier, self.effective_noise_multiplier,
                                             strict=True)]
        rows = {"sampling": " ".join(self.sampling),
                "clip norm": "; ".join(x for x in map(players, self.clip) if x) or "none",
                "noise multiplier": "; ".join(noise)}
        if self.parts:  # a row for each, with its own numbers
            clips = (f"Clip norm of a record: {players(norm)}. " if norm else ""
                     for norm in self.clip)
            rows = {name: f"{sampled} {clip}Noise multiplier: {multiplier}."
                    for name, sampled, clip, multiplier in zip(
                        self.parts, self.sampling, clips, noise, strict=True)}
        return {
            "released": "every state of the run; results computed from the releases are covered",
            **rows, "releases made": f"{self.spent} of {self.allowed} allowed", "tuning": "not "
            "counted: settings must be public; a search over settings has a statement of its own"}

    def annex(self) -> tuple[str, ...]:
        """States how the noise is made and what that costs, and bounds on membership attacks."""
        if (law := self.attack_bounds) is None:
            return self.realisation
        rates = ", ".join(f"{rounded_up(hit)} at {rate}"
                          for rate, hit in law["true_positives"].items())
        return (*self.realisation, "Membership inference: advantage at most "
                f"{rounded_up(law['advantage'])}; true positive rate at most {rates} false "
                "positive rate.")


@dataclasses.dataclass(frozen=True)
class TuningStatement(Stated):
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
      records: n, the number of records.

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
    records: int

    def scope(self) -> str:
        """Returns the choice that epsilon covers, and the method."""
        return ("The guarantee covers the best of several runs by their released scores, with "
                f"its settings and its score; each run draws one of {self.candidates} candidate "
                f"settings. Method: {self.accountant}.")

    def rows(self) -> dict[str, str]:
        """Names what one run releases, its noise and its score, and the tuning."""
        noise = " or ".join(dict.fromkeys(
            f"{', '.join(map(players, training))}; score {players(score)}"
            for *training, score in self.noise_multiplier))
        return {
            "released": "the state, the settings and the score of the best run",
            "sampling": " ".join(self.sampling), "score": self.score, "noise multiplier": noise,
            "tuning": f"counted: the choice among {self.candidates} candidates; a given candidate, "
                      f"such as the best, is tried with probability {self.chance_of_trying:.3g}",
            "one run alone": f"epsilon = {rounded_up(self.epsilon_of_one_run)}"}

    def annex(self) -> tuple[str, ...]:
        """Returns the law of the number of runs."""
        return (self.law,)


@dataclasses.dataclass(frozen=True)
class LedgerStatement(Stated):
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
      enforced: as of `Statement`, and so is `assumed`.
      assumed: see `enforced`.

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
        if self.epsilon_if_stopped_by_looking >= self.epsilon:
            return ("So much is reserved that no smaller epsilon is proven if nothing more is: "
                    f"quote this one. {self.filter}")
        return ("If nothing more is reserved, epsilon = "
                f"{rounded_up(self.epsilon_if_stopped_by_looking)}, {self.odometer}. "
                f"Quote one of the two, chosen beforehand. {self.filter}")

    def rows(self) -> dict[str, str]:
        """Names the budget that is used, and the runs."""
        shares = {name: 100 * self.spent[name] / limit for name, limit in self.limits.items()}
        budget_used = ", ".join(f"{share:.3g} % of {name}" for name, share in shares.items()
                         if share > 0.01)
        rows = {"budget used": budget_used or "less than 0.01 %",
                "tuning": "counted if all runs of the search are in this ledger"}
        for run in self.runs:
            unit = "unit not recorded" if run["unit"] is None else f"for {run['unit']}"
            state = "open" if run["closed"] is None else "closed"
            count = "" if run["spent"] is None else f", {run['spent']} made"
            rows[f"run {run['name']!r}"] = f"({unit}; {state}{count}) {run['words']}"
        return rows

    def annex(self) -> tuple[str, ...]:
        """Returns the amounts that each run is counted with."""
        budget_used = ", ".join(f"{name} {self.spent[name]:.4g} of {limit:.4g}"
                         for name, limit in self.limits.items())
        by_run = (f"{run['name']!r} uses "
                + ", ".join(f"{name} {x:.4g}" for name, x in run["charge"].items()) + "."
                for run in self.runs)
        return (f"Budget used: {budget_used}.", *by_run)
