"""Statements of a run, a ledger and a search: their fields, sentences and JSON records.

JSON has no infinity. An epsilon that is infinite, or that is above what is proven, is the string
"no guarantee" in a record; null says that a number does not apply.
"""

import dataclasses
import json
import math
import types
import typing
from typing import Any, Self

from jaxminimax.accounting import answers

NO_GUARANTEE = "no guarantee"


class Stated:
    """Base of all statements: a JSON record, and the two lists that they end with."""

    __dataclass_fields__: typing.ClassVar[dict[str, Any]]
    enforced: tuple[str, ...]
    assumed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain Python values; infinity is "no guarantee", JSON having no word.

        None is for what does not apply, such as the odometer of a run that ended as planned.
        """
        return dict(json.loads(json.dumps(dataclasses.asdict(self)),
                               parse_constant=lambda _: NO_GUARANTEE))

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Self:
        """The statement that `to_json` made `record` of; "no guarantee" becomes infinity again.

        Records of version 0.1.0 and before, with null for infinity, are read too.

        Raises:
          ValueError: for what is no such record.
        """
        if not isinstance(record, dict):
            raise ValueError("A statement's record is a dictionary, as Statement.to_json makes it, "
                             f"got {type(record).__name__}.")
        kinds, needed = typing.get_type_hints(cls), {
            f.name for f in dataclasses.fields(cls)
            if f.default is f.default_factory is dataclasses.MISSING}
        if wrong := sorted(needed - set(record) | set(record) - set(kinds)):
            raise ValueError(f"The record is of no statement of this version: {wrong} missing or "
                             "unknown.")
        return cls(**{name: _read(name, value, kinds[name], record)
                      for name, value in record.items()})

    def lines(self) -> list[str]:
        """The sentences before the two lists."""
        return []

    def __str__(self) -> str:
        first = self.lines()
        return "\n".join([
            *first,
            "Enforced by the code:", *(f"  - {x}" for x in self.enforced),
            "Assumed:", *(f"  - {x}" for x in self.assumed if x not in first)])


def _read(name: str, value: Any, kind: Any, record: dict[str, Any]) -> Any:
    """A field as it was before `to_json`: lists are tuples, and "no guarantee" is infinity.

    Records of version 0.1.0 and before say null for infinity: where a number must be, that is what
    null still means.

    Raises:
      ValueError: if the value is not of the field's type.
    """
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        (kind,) = (one for one in inside if one is not type(None))
        # in an old record, the odometer of a milestone
        infinite = name == "epsilon_if_stopped_by_looking" and record.get("milestone") is not None
        none = value is None and not infinite
        return None if none else _read(name, value, kind, record)
    if kind is Any:
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_read(name, one, inside[0], record) for one in value)
    if origin is dict and isinstance(value, dict):
        return {key: _read(name, one, inside[1], record) for key, one in value.items()}
    if kind is float and value in (None, NO_GUARANTEE):
        return float("inf")
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (int, str) and type(value) is kind:
        return value
    raise ValueError(f"{name} of a statement's record must be {kind}, got {value!r}.")


_QUOTE = ("Quote one of these two, decided before the run; to quote the smaller one afterwards, "
          "say delta = {twice:g}.")
LARGE_DELTA = "Delta is too large"


def relation_in_words(neighbours: str, people: int = 1) -> str:
    """States how neighbouring data sets differ."""
    if people == 1:
        return {"replace_one": "one record is replaced by another",
                "add_or_remove_one": "one record is present or counts as absent"}[neighbours]
    return {"replace_one": f"any {people} records are replaced by others",
            "add_or_remove_one": f"each of any {people} records is present or counts as absent"
            }[neighbours]


def quote_one(delta: float) -> str:
    """How one of two epsilons at the same delta is quoted."""
    return _QUOTE.format(twice=2 * delta)


@dataclasses.dataclass(frozen=True)
class Statement(Stated):
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
      assumed: what the user must see to.
      answers: what `profile` gives besides epsilon, if it was asked for: the largest advantage of
        membership inference, true positives at given rates of false ones, and the mu of the
        closest Gaussian.
      proven_up_to: None unless `epsilon` is infinite although there is noise. Then no epsilon above
        this one can be proven at `delta`, and the run may have a finite one; 0 if none can be
        proven, as samplers and noise may fail with a probability of `delta` or more.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(30.0, 30.0),
        ...                   population=1000)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=20)
        >>> said = jmm.statement(jmm.sgda, hyper, delta=1e-6)
        >>> said.allowed, jmm.accounting.Statement.from_json(said.to_json()) == said
        (20, True)
    """

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

    def lines(self) -> list[str]:
        """The guarantee, what was spent, the releases, and the accountant."""
        relation = relation_in_words(self.neighbours, self.people)
        spent = f"Spent {self.spent} of {self.allowed} releases"
        if self.epsilon_if_stopped_by_looking is not None:
            spent += ("; the epsilon above is of all of them, and holds whatever made the run end. "
                      "For an end chosen by looking at what was released there is also the "
                      f"odometer: epsilon = {_or_unknown(self.epsilon_if_stopped_by_looking)}, of "
                      f"{self.milestone} releases, the next of its milestones, which were fixed "
                      f"before the run. {quote_one(self.delta)} Had this end been "
                      "fixed beforehand, not chosen by looking at what was released: epsilon = "
                      f"{_or_unknown(self.epsilon_spent_if_fixed)}")
        guarantee = (f"({self.epsilon:.4g}, {self.delta:g})-differential privacy for {self.unit}; "
                     f"neighbouring data sets: {relation}.")
        if math.isinf(self.epsilon):
            why = answers.limit_in_words(self.proven_up_to, self.delta)
            guarantee = (f"NO privacy guarantee for {self.unit}: epsilon is infinite."
                         if self.proven_up_to is None else
                         f"Epsilon for {self.unit} is {why}; neighbouring data sets: {relation}.")
        return [
            guarantee,
            *(x for x in self.assumed if x.startswith(LARGE_DELTA)),
            f"{spent}.",
            *self.sampling,
            "Noise / clip norm per player: " + "; ".join(map(_players, self.noise_multiplier))
            + "; both together: "
            + ", ".join(f"{z:.5g}" for z in self.effective_noise_multiplier) + ".",
            *self.realisation,
            f"Accountant: {self.accountant}.",
            *(() if self.answers is None else (_answered(self.answers),)),
        ]


def _answered(answers: dict[str, Any]) -> str:
    rates = ", ".join(f"{true:.4g} at {false}" for false, true in
                      answers["true_positives"].items())
    return (f"Membership inference: advantage at most {answers['advantage']:.4g}; true positives "
            f"at most {rates} false ones.")


def _or_unknown(epsilon: float) -> str:
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "not proven"


def _players(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.5g}".strip() for name, value in values.items())


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
      enforced: what the code guarantees.
      assumed: what the user must see to.

    Examples:
        >>> said = jmm.accounting.Ledger("study.json", epsilon=2.0, delta=1e-6).statement()
        >>> said.epsilon, said.delta, len(said.runs)
        (2.0, 1e-06, 0)
    """

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
    __dataclass_fields__: typing.ClassVar[dict[str, Any]]
    enforced: tuple[str, ...]
    assumed: tuple[str, ...]

    def lines(self) -> list[str]:
        """The guarantee, its filter, what is charged, and the runs."""
        used = ", ".join(f"{name} {self.spent[name]:.4g} of {limit:.4g}"
                         for name, limit in self.limits.items())
        return [
            f"({self.epsilon:.4g}, {self.delta:g})-differential privacy for {self.unit}, of "
            f"everything in this ledger, now and later; neighbouring data sets: "
            f"{relation_in_words(self.neighbours, self.people)}.",
            f"If nothing more is reserved: epsilon = {self.epsilon_if_stopped_by_looking:.4g}, "
            f"{self.odometer}. Quote one of the two, chosen beforehand.",
            self.filter,
            f"Charged: {used}.",
            *map(_line, self.runs),
        ]


def _line(run: dict[str, Any]) -> str:
    count = "" if run["spent"] is None else f", {run['spent']} made"
    state = "open" if run["closed"] is None else "closed"
    charge = ", ".join(f"{name} {x:.4g}" for name, x in run["charge"].items())
    unit = "unit not recorded" if run["unit"] is None else f"for {run['unit']}"
    return f"  {run['name']} ({unit}; {state}{count}; {charge}): {run['words']}"


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
      assumed: what the user must see to.

    Examples:
        >>> fields = jmm.accounting.TuningStatement.__dataclass_fields__
        >>> "epsilon_of_one_run" in fields, "expected_runs" in fields
        (True, True)
    """

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
    __dataclass_fields__: typing.ClassVar[dict[str, Any]]
    enforced: tuple[str, ...]
    assumed: tuple[str, ...]

    def lines(self) -> list[str]:
        """The guarantee, the choice among candidates, one run, and the accountant."""
        guarantee = (f"({self.epsilon:.4g}, {self.delta:g})-differential privacy for {self.unit}; "
                     f"neighbouring data sets: {relation_in_words(self.neighbours)}.")
        if math.isinf(self.epsilon):
            guarantee = (f"NO privacy guarantee is proven for {self.unit}: epsilon is infinite, or "
                         "above every one that can be proven.")
        return [
            guarantee,
            f"That is of the best of several runs, by their released scores, with {self.candidates}"
            " candidate settings, one drawn for each run; of the winner's settings and score too.",
            self.law,
            f"A given candidate, such as the best, is tried with probability "
            f"{self.chance_of_trying:.3g}. One run alone would have epsilon = "
            f"{self.epsilon_of_one_run:.4g}.",
            "One run:", *(f"  - {x}" for x in (*self.sampling, self.score)),
            f"Accountant: {self.accountant}.",
        ]
