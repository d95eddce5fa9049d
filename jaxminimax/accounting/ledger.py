"""A ledger: one privacy budget, in a file, for all releases about the same data."""

import contextlib
import copy
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from jaxminimax.accounting import answers, books, calibration, filters, statements, stating
from jaxminimax.accounting.books import Books, Entry, Remaining
from jaxminimax.accounting.curve import charges
from jaxminimax.base import checks
from jaxminimax.mechanism import Description, composed, releases, with_noise

_NONE: Mapping[str, str] = MappingProxyType({})
_STATED = ("epsilon", "delta", "neighbours", "unit", "sampling", "enforced", "assumed")


class Ledger:
    """A privacy budget for several runs on the same data, each chosen by looking at the others.

        ledger = jmm.accounting.Ledger("study.json", epsilon=2.0, delta=1e-6)
        hyper = ledger.calibrate(jmm.sgda, hyper, share=0.5)  # half of what is left
        done = jmm.fit(..., ledger=ledger, name="first")
        print(ledger.statement())

    A run is charged for all its possible releases before it reads data, in a file that is changed
    under a lock and is on disk before the run begins. Two processes cannot spend the same budget, a
    restart reads the former charges, and a run that crashed stays charged. A run beyond the budget
    is refused.

    The rule that adds runs up is chosen when the ledger is opened; proofs are in
    `accounting.filters`.

    * "renyi": Renyi divergences at one order. The usual choice: k equal runs cost noise of about
      sqrt(k), not k, and the ledger refunds releases that a stopped run did not make. A single run
      costs some per cent more noise than it would without a ledger.
    * "basic": epsilons and deltas of the runs. Any run; other statements at their full strength.

    Args:
      path: the file, which is made if it does not exist.
      epsilon: epsilon of everything together; None to open an existing ledger.
      delta: delta of everything together.
      neighbours: "replace_one" or "add_or_remove_one"; None for "replace_one".
      people: k, the number of records of one person that may differ; None for 1.
      unit: the unit of privacy; None for "one record", or "any 3 records" for three of them. Runs
        and statements of another unit are refused.
      filter: "renyi" or "basic"; None for "renyi".
      order: the order of the Renyi divergences; None for the best one for `typical`.
      typical: a description like the runs to come, for `order`; None for Gaussian noise without
        sampling.

    Raises:
      ValueError: for numbers out of range, settings other than those of the existing ledger, or a
        file that is not a ledger.

    Examples:
        >>> ledger = jmm.accounting.Ledger("study.json", epsilon=2.0, delta=1e-6)
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000)
        >>> hyper = jmm.gda.Hyper(query=query, modulus=1.0, offset=1.0, iterations=20)
        >>> first = ledger.calibrate(jmm.gda, hyper, share=0.5)
        >>> entry = ledger.reserve(jmm.gda, first, name="first look")
        >>> ledger.statement().epsilon
        2.0
    """

    def __init__(self, path: str | os.PathLike[str], *, epsilon: float | None = None,
                 delta: float | None = None, neighbours: str | None = None,
                 people: int | None = None, unit: str | None = None, filter: str | None = None,
                 order: float | None = None, typical: Description | None = None) -> None:
        self._books = Books(path)
        settings: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "neighbours": neighbours,
                                    "people": people, "unit": unit}
        if not self._books.exists():
            content = books.opened(settings, filter or "renyi", order, typical)
            with self._books.locked():
                if not self._books.exists():
                    self._books.write(content)
        content = self._books.read()
        self._rule = books.rule_of(content)
        self.epsilon, self.delta = content["epsilon"], content["delta"]
        self.neighbours, self.people = content["neighbours"], content["people"]
        self.unit, self.filter = content["unit"], self._rule.kind
        settings |= {"filter": filter, "order": order}
        stored = {**content, "filter": self._rule.kind, "order": self._rule.details.get("order")}
        for name, value in settings.items():
            if value is not None and value != stored[name]:
                raise ValueError(f"The ledger at {self._books.path} has {name} = {stored[name]!r}, "
                                 f"not {checks.describe(value)}: state the settings it was opened "
                                 "with, or none.")

    # --- spending ---

    def reserve(self, described: Any, hyper: Any = None, *, name: str | None = None,
                delta: float | None = None, unit: str | None = None,
                run: books.RunMark | None = None, parts: tuple[str, ...] = ()) -> Entry:
        """Counts a run against the budget, or refuses it; call it before the run reads data.

        Args:
          described: a description; with `hyper`, the algorithm.
          hyper: the algorithm's `Hyper`, calibrated.
          name: the name of the run; None for "run 1" and so on.
          delta: with filter="basic", the part of the ledger's delta for this run; None for a tenth
            of it, or the rest.
          unit: the unit of privacy of the run, as in its statement; None for the ledger's, which is
            then the caller's claim. `fit` passes that of its statement.
          run: marks by which a run is recognised if it goes on after a crash; see `fit`.
          parts: what each part of the run releases, for the statement; empty: without names.

        Raises:
          ValueError: if the run exceeds the budget, saying what is left; for a name or a key that
            was used before; for another unit; for a description that is not valid.
        """
        books.check_name(name)
        self.check_same("The run", unit=self.unit if unit is None else unit)
        mechanism = described if hyper is None else described.mechanism(hyper)
        composed.check(mechanism)
        cost = repr(charges(mechanism, self.neighbours))
        answers.warn_of(self.delta, mechanism)
        if run is not None:
            with self._changed() as content:
                if (begun := books.known_run(content, run, cost)) is not None:
                    return Entry(self, begun, mechanism)
        charge = self._rule.charge(mechanism, self._delta(delta), self.neighbours,
                                   self.people)
        entry = {
            "words": mechanism.summary(parts), "charges": cost, "charge": charge,
            "releases": releases(mechanism), "spent": None, "unit": self.unit,
            "enforced": stating.enforced_by(mechanism), "assumed": stating.assumed_by(mechanism),
            "run": None if run is None else {**run._asdict(), "of": None}}
        with self._changed() as content:
            # once more, as another process may have begun it in the meantime
            if (begun := books.known_run(content, run, cost)) is not None:
                return Entry(self, begun, mechanism)
            name = books.add_entry(content, self._rule, name, entry)
        return Entry(self, name, mechanism, fresh=True)

    def add(self, statement: statements.Statement | Any, *, name: str | None = None) -> None:
        """Counts releases that were made without this ledger, by their statement.

        It counts the epsilon of all their releases and their delta, as of any (epsilon,
        delta)-private mechanism. `Statement.from_json` reads a statement back. Another kind of
        statement needs epsilon, delta, neighbours, unit, sampling, enforced and assumed.

        Raises:
          ValueError: if they exceed the budget, or if the statement is for other neighbours,
            another unit or another number of people.
        """
        books.check_name(name)
        if not all(hasattr(statement, what) for what in _STATED):
            raise ValueError(f"{type(statement).__name__} is not a statement of one mechanism, "
                             f"which has {', '.join(_STATED)}. Runs of this ledger are counted "
                             "by reserve(...).")
        self.check_same("The statement", neighbours=statement.neighbours,
                        people=getattr(statement, "people", 1), unit=statement.unit)
        for what, high in (("epsilon", math.inf), ("delta", 1.0)):
            value = getattr(statement, what)
            checks.number(f"{what} of the statement", value, low=0.0, high=high, closed=True,
                          infinite=what == "epsilon")
            checks.scalars(**{what: value})
        epsilon, delta = float(statement.epsilon), float(statement.delta)
        entry = {
            "words": f"({answers.up(epsilon, 6)}, {delta:g})-private by its statement, and counted "
                     "as any such mechanism: " + " ".join(statement.sampling),
            "charges": None, "charge": self._rule.foreign(epsilon, delta), "unit": self.unit,
            "releases": getattr(statement, "allowed", None),
            "spent": getattr(statement, "spent", None),
            "enforced": list(statement.enforced), "assumed": list(statement.assumed),
            "closed": books.now(), "run": None}
        with self._changed() as content:
            books.add_entry(content, self._rule, name, entry)

    def check_same(self, what: str, **stated: Any) -> None:
        """Refuses a run or statement for another unit, relation or number of people.

        Args:
          what: "The run" or "The statement", for the message.
          **stated: its unit, neighbours and people.

        Raises:
          ValueError: naming the setting, and how to state it.
        """
        for name, value in stated.items():
            if value != (own := getattr(self, name)):
                raise ValueError(f"{what} is for {name} = {value!r}, and the ledger for {own!r}: "
                                 f"they cannot be added. If {own!r} is true of these data, state "
                                 f"{name}={own!r}; otherwise open another ledger.")

    def calibrate(self, algorithm: Any, hyper: Any, *, share: float = 1.0,
                  delta: float | None = None) -> Any:
        """Returns `hyper` with the noise at which the whole run takes `share` of what is left.

        The ratio between the players' multipliers is kept, and nothing is reserved.

        Args:
          algorithm: a module such as `sgda`.
          hyper: its `Hyper`.
          share: in (0, 1].
          delta: with filter="basic", the part of the ledger's delta for this run; None for a tenth
            of it, or the rest.

        Raises:
          ValueError: if nothing is left; for losses whose noise is not set.
        """
        checks.number("share", share, low=0.0, high=1.0 + 1e-12)
        aim = share * self._left()[self._rule.main]
        if not aim > 0:
            raise ValueError("The budget of this ledger is spent: open another one.")
        if isinstance(self._rule, filters.Basic):
            return calibration.calibrate(algorithm, hyper, aim, self._delta(delta),
                                         neighbours=self.neighbours, people=self.people)
        losses = getattr(hyper, "losses", None)
        if losses is not None and losses.noise_multiplier is None:
            raise ValueError("The noise of the groups' losses is not set: use dataclasses.replace("
                             "hyper, losses=...) with a noise_multiplier first.")

        def scaled(factor: float) -> Any:
            return dataclasses.replace(hyper, query=with_noise(hyper.query, factor))

        def cost(factor: float) -> float:
            return self._rule.charge(algorithm.mechanism(scaled(factor)), self.delta,
                                     self.neighbours, self.people)[self._rule.main]

        return scaled(calibration.find(cost, aim, tolerance=1e-4, name=self._rule.main))

    # --- reading ---

    def remaining(self) -> Remaining:
        """Returns the budget that is left."""
        left, main = self._left(), self._rule.main
        return Remaining(left[main] / self._rule.limits[main],
                         *self._rule.statement_that_fits(left))

    @property
    def odometer(self) -> float:
        """The epsilon of all runs so far, if no more are reserved; see `statement`."""
        return self._rule.odometer(books.spent_of(self._read(), self._rule))

    def statement(self) -> statements.LedgerStatement:
        """Returns the privacy statement of everything in this ledger."""
        content = self._read()
        return books.statement_of(content, self._rule, books.spent_of(content, self._rule))

    def entry(self, name: str, described: Any, hyper: Any = None) -> Entry:
        """Returns a reservation from the file, after a restart.

        Args:
          name: of the run.
          described: as it was reserved.
          hyper: as it was reserved.

        Raises:
          ValueError: if there is none, or it was of another description.
        """
        mechanism = described if hyper is None else described.mechanism(hyper)
        if self._find(name)["charges"] != repr(charges(mechanism, self.neighbours)):
            raise ValueError(f"{name!r} was reserved for another description: state that one.")
        return Entry(self, name, mechanism)

    # --- the file ---

    def _read(self) -> dict[str, Any]:
        content = self._books.read()
        if books.rule_of(content) != self._rule:
            raise ValueError(f"{self._books.path} is not the ledger that was opened: open it "
                             "again.")
        return content

    def _left(self) -> filters.Amounts:
        spent = books.spent_of(self._read(), self._rule)
        return {name: max(limit - spent[name], 0.0) * (1 - 1e-15)
                for name, limit in self._rule.limits.items()}

    def _delta(self, delta: float | None) -> float:
        if not isinstance(self._rule, filters.Basic):
            if delta is not None:
                raise ValueError(f"Only filter='basic' takes delta={delta!r}; this ledger has one "
                                 "delta for all runs: leave it out.")
            return self.delta
        left = self._left()["delta"]
        delta = min(0.1 * self.delta, left) if delta is None else delta
        if not left > 0:
            raise ValueError(f"The runs have used all of delta = {self.delta:g}: state a smaller "
                             "delta for each run.")
        answers.check_delta(delta)
        return float(delta)

    @contextlib.contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        """Yields the content under the lock, and writes it to disk if it was changed."""
        with self._books.locked():
            content = self._read()
            before = copy.deepcopy(content)
            yield content
            if content != before:
                self._books.write(content)

    def _find(self, name: str) -> dict[str, Any]:
        return books.named(self._read(), name)

    def bind(self, entry: Entry, marks: dict[str, str], kept: Mapping[str, str] = _NONE, *,
             several: bool = False) -> None:
        """Records marks of what a run reads and computes, or compares them with earlier ones.

        Args:
          entry: of the run.
          marks: keyed hashes by what they are of, before its first release.
          kept: further ones, which are written down with them, but not compared yet.
          several: whether another one is allowed, and none is from then on where it is not.

        Raises:
          ValueError: naming what is another one.
        """
        with self._changed() as content:
            run = books.named(content, entry.name)["run"]
            if run["of"] is None:
                run["of"] = {**marks, **kept}
            for name, value in marks.items():
                if run["of"].get(name) == value:
                    continue
                if not several:
                    raise ValueError(f"{entry.name!r} was begun with another {name}, and the same "
                                     "key would reveal the data: start a new run with another key.")
                run["of"][name] = "several"

    def shown(self, entry: Entry, rounds: int) -> int:
        """Records that a run's state after so many rounds may be seen; returns the most so far."""
        with self._changed() as content:
            run = books.named(content, entry.name)["run"]
            if run is None:
                return 0
            if rounds > run.get("shown", 0):
                run["shown"] = rounds
            return int(run.get("shown", 0))

    def _cancel(self, entry: Entry) -> None:
        with self._changed() as content:
            stored = books.named(content, entry.name)
            # another process that goes on with it may have released something by now
            again = stored["run"] is not None and stored["run"].get("again", False)
            if not entry.fresh or again or stored["closed"] is not None:
                raise ValueError(f"{entry.name!r} may have released something: close it instead.")
            content["entries"].remove(stored)

    def _close(self, entry: Entry, spent: int | None) -> None:
        part, charge = None, None
        if spent is not None:
            checks.count("spent", spent, low=0)
            if self._rule.gives_back and spent < releases(entry.mechanism):
                part = entry.mechanism.truncated(spent)
                charge = {name: 0.0 for name in self._rule.limits} if part is None else (
                    self._rule.charge(part, self.delta, self.neighbours, self.people))
        with self._changed() as content:
            stored = books.named(content, entry.name)
            if stored["closed"] is not None:
                before, every = stored["spent"], (None, stored["releases"])
                kept = before in every or not self._rule.gives_back
                if spent == before or (kept and spent in every):
                    return
                raise ValueError(f"{entry.name!r} was closed after {before} releases, and the "
                                 "ledger took the others back: they cannot be made.")
            stored |= {"closed": books.now(), "spent": spent}
            if charge is not None:
                stored["charge"] = {name: min(x, stored["charge"][name])
                                    for name, x in charge.items()}
