"""A ledger: one privacy budget, in a file, for all releases about the same data.

Its file has one writer at a time, and is on disk before a run begins. A process that changes it
holds an exclusive lock on PATH.lock in the same folder: see `own_files`. It holds no key and no row
of the data.
"""

import contextlib
import copy
import dataclasses
import datetime
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

from jaxminimax.accounting import calibration, epsilon_delta, statement_of_run
from jaxminimax.accounting.curve import charges, dearest
from jaxminimax.accounting.filters import Amounts, Basic, Filter, Renyi, best_order, total
from jaxminimax.accounting.printing import rounded_up
from jaxminimax.accounting.statement_text import LedgerStatement, Statement
from jaxminimax.base import checks, identity, own_files, saved_json
from jaxminimax.mechanism import (
    NEIGHBOURS,
    Description,
    composed,
    costs,
    releases,
    with_noise,
)


class LedgerFile:
    """Reads and writes the file of a ledger, under a lock."""

    def __init__(self, path: str | os.PathLike[str], wait: float = 60.0) -> None:
        # a rename would replace a link, and leave two ledgers
        self.path = os.path.realpath(path)
        self._wait = wait

    def exists(self) -> bool:
        """Returns True if there is a file."""
        return os.path.exists(self.path)

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which no other process changes the file.

        Raises:
          ValueError: if there is no such folder, or others hold the lock for a minute.
        """
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise ValueError(f"The ledger's folder {folder} does not exist: create it first.")
        return own_files.locked(self.path, self._wait)

    def read(self) -> dict[str, Any]:
        """Returns the content of the file.

        Raises:
          ValueError: for a file that is not there.
          DamagedFileError: for one that is no ledger, or is damaged.
        """
        try:
            with open(self.path, "rb") as file:
                text = file.read()
        except FileNotFoundError:
            raise ValueError(f"There is no ledger at {self.path}: Ledger(path, epsilon=..., "
                             "delta=...) opens one.") from None
        with saved_json.explained(self.path, "whole ledger of this version", (
                "The budget spent is unknown, so restore it; or use the version that wrote it.")):
            content: dict[str, Any] = saved_json.parsed(text)
            saved_json.check(content, "ledger")
            if content.pop("checksum") != _checksum(content):
                raise ValueError("it was changed by another program, or is damaged")
            rule, entries = filter_in_force(content), content["entries"]
            if len({entry["name"] for entry in entries}) < len(entries) or any(
                    entry["charge"].keys() - rule.limits for entry in entries):
                raise ValueError("entries must have different names, and charges filter.limits")
            if content.get("single_run") and len(entries) != 1:
                raise ValueError("single_run is true, so entries must be one run")
            for name, spent in total_charge(content, rule).items():
                if spent > rule.limits[name]:
                    raise ValueError(f"the sum of charges is above filter.limits.{name}")
        return content

    def write(self, content: dict[str, Any]) -> None:
        """Replaces the content, under the lock; returns when it is on disk.

        Raises:
          ValueError: if the file has other names, which would keep the old content.
        """
        if self.exists() and os.stat(self.path).st_nlink > 1:
            raise ValueError(f"{self.path} has several names (hard links), and the others would "
                             "keep the old content: remove them.")
        content = {**content, "what": "jaxminimax ledger", "version": 1}
        content["checksum"] = _checksum(content)
        saved_json.check(saved_json.plain(content), "ledger")  # or it could not be read again
        own_files.write(self.path, json.dumps(content, indent=1, allow_nan=False))


def _checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


FILTERS: dict[str, type[Filter]] = {kind.kind: kind for kind in (Renyi, Basic)}


class RunMark(NamedTuple):
    """The marks by which `fit` recognises a run that it continues after a crash.

    Attributes:
      key: a mark of the run's key, that only its owner can make.
      run: a mark of that key and of everything that decides what is released, but the data.
      resumable: whether what was released before a crash is repeated, bit for bit.
    """

    key: str
    run: str
    resumable: bool


def new_content(settings: dict[str, Any], kind: str, order: float | None,
                typical: Description | None) -> dict[str, Any]:
    """Returns the content of a new ledger."""
    epsilon, delta = settings["epsilon"], settings["delta"]
    if epsilon is None or delta is None:
        raise ValueError("There is no ledger at this path: state epsilon and delta to open one.")
    epsilon_delta.check_epsilon(epsilon)
    epsilon_delta.check_delta(delta)
    epsilon, delta = float(epsilon), float(delta)
    neighbours = settings["neighbours"] or "replace_one"
    checks.one_of("neighbours", neighbours, NEIGHBOURS)
    checks.one_of("filter", kind, tuple(FILTERS))
    people = 1 if settings["people"] is None else settings["people"]
    checks.count("people", people)
    if kind != "renyi" and (order is not None or typical is not None):
        raise ValueError("Only filter='renyi' takes order and typical: leave them out.")
    rule: Filter
    if kind == "renyi":
        if order is None:
            order = best_order(epsilon, delta, neighbours, typical, people)
        checks.number("order", order, low=1.0)
        rule = Renyi.open(epsilon, delta, float(order))
    else:
        rule = Basic.open(epsilon, delta)
    return {"epsilon": epsilon, "delta": delta, "neighbours": neighbours, "people": int(people),
            "unit": settings["unit"] or identity.unit_of(people), "opened": utc_time(),
            "filter": {"kind": kind, "limits": rule.limits, "details": rule.details}, "entries": []}


def utc_time() -> str:
    """Returns the time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def stored_filter(content: dict[str, Any]) -> Filter:
    """Returns the filter of a ledger.

    Raises:
      ValueError: for a kind that is not known.
    """
    stored = content["filter"]
    checks.one_of("the filter of this ledger", stored["kind"], tuple(FILTERS))
    return FILTERS[stored["kind"]](stored["limits"], stored["details"])


def filter_in_force(content: dict[str, Any]) -> Filter:
    """Returns the filter of a ledger, or that of the single run which has all of its budget."""
    if content.get("single_run"):
        return Basic.open(content["epsilon"], content["delta"])
    return stored_filter(content)


def first_run_decides(content: dict[str, Any]) -> bool:
    """Returns True if a next run may have the whole budget: nothing was released before it."""
    return "single_run" in content and not content["entries"]


def check_shared(content: dict[str, Any]) -> None:
    """Refuses anything further where a single run has the whole budget.

    Raises:
      ValueError: naming that run, and how several share a budget.
    """
    if content.get("single_run"):
        name = content["entries"][0]["name"]
        raise ValueError(
            f"The budget of this ledger is spent: its first run, {name!r}, has all of it. Where "
            "several runs are to share a budget, open the ledger with filter='renyi', or give the "
            "first one less, by ledger.calibrate(algorithm, hyper, share=...) with a share below "
            "1.")


def run_entry(content: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the entry of a run.

    Raises:
      ValueError: if there is none.
    """
    entries: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in content["entries"]}
    if name not in entries:
        raise ValueError(f"{name!r} is not in the ledger.")
    return entries[name]


def check_name(name: Any) -> None:
    """Refuses a name that is not a string.

    Raises:
      ValueError: naming it.
    """
    if name is not None and not isinstance(name, str):
        raise ValueError(f"name must be a string, got {checks.describe(name)}.")


def total_charge(content: dict[str, Any], rule: Filter) -> Amounts:
    """Returns the sums of all charges."""
    return total([entry["charge"] for entry in content["entries"]], tuple(rule.limits))


def remaining_amounts(content: dict[str, Any], rule: Filter) -> Amounts:
    """Returns what is left of each limit, rounded down."""
    spent = total_charge(content, rule)
    return {name: max(limit - spent[name], 0.0) * (1 - 1e-15)
            for name, limit in rule.limits.items()}


def add_entry(content: dict[str, Any], name: str | None, entry: dict[str, Any],
              single: bool = False) -> str:
    """Adds an entry to `content` if its charge is within the limits; returns its name.

    Args:
      content: of the ledger, under its lock.
      name: of the run; None for "run 1" and so on.
      entry: with its charge where runs share.
      single: whether it may have the whole budget, if it is the first one.

    Raises:
      ValueError: if the charge is not, saying what is left; for a name that was used before.
    """
    check_shared(content)
    if single and first_run_decides(content):
        content["single_run"] = True
        entry["charge"] = dict(filter_in_force(content).limits)
    rule = filter_in_force(content)
    names = {entry["name"] for entry in content["entries"]}
    if name is None:
        name = next(f"run {k}" for k in range(1, len(names) + 2) if f"run {k}" not in names)
    if name in names:
        raise ValueError(f"{name!r} is in the ledger already: use another name for this run.")
    spent = total_charge(content, rule)
    content["entries"].append({"name": name, "opened": utc_time(), "closed": None, **entry})
    for amount, needed in total_charge(content, rule).items():
        limit = rule.limits[amount]
        if not (needed <= limit and math.isfinite(needed)):
            remaining = max(limit - spent[amount], 0.0)
            raise ValueError(
                f"{name!r} needs {entry['charge'].get(amount, 0.0):.6g} of {amount}, and "
                f"{remaining:.6g} of {limit:.6g} are left: {rule.remedy(amount, remaining)}.")
    return name


class UsedKeyError(ValueError):
    """A run has the key of another run in the ledger, so that its noise would be equal."""


def known_run(content: dict[str, Any], run: RunMark | None, charges: str) -> str | None:
    """Returns the name of a run that was begun before and may continue; None for a new one.

    Afterwards the run cannot be cancelled.

    Raises:
      UsedKeyError: for a key of another run, or of one that cannot go on.
      ValueError: for a run that was closed before its end.
    """
    for entry in content["entries"]:
        begun = entry["run"]
        if run is None or begun is None or begun["key"] != run.key:
            continue
        name = entry["name"]
        if begun["run"] != run.run or entry["charges"] != charges:
            raise UsedKeyError(f"The key was used for another run, {name!r}. Two runs with equal "
                               "noise reveal the data: use secret_key() for each run.")
        if not (run.resumable and begun["resumable"]):
            raise UsedKeyError(f"{name!r} was begun before, and cannot continue without a "
                               "checkpoint: start a new run with another key and another name.")
        if entry["spent"] is not None and entry["spent"] < entry["releases"]:
            raise ValueError(f"{name!r} was closed after {entry['spent']} releases, and the ledger "
                             "took the others back: start a new run with another key.")
        begun["again"] = True
        return str(name)
    return None


class Remaining(NamedTuple):
    """The budget that a ledger has left.

    Attributes:
      share: part of what it was opened with.
      epsilon: with `delta`, of a further statement that certainly fits.
      delta: see `epsilon`.
    """

    share: float
    epsilon: float
    delta: float


@dataclasses.dataclass(frozen=True)
class Entry:
    """A run's reservation in a ledger; as a context it closes unless an exception ends it.

    Attributes:
      ledger: that it is in.
      name: of the run.
      mechanism: its description.
      fresh: whether this reservation was made now, not found in the file.
    """

    ledger: Any  # a `Ledger`
    name: str
    mechanism: Description
    fresh: bool = False

    def close(self, state: Any = None) -> None:
        """Records that the run has ended.

        Where runs share by "renyi", releases that were not made by then are given back.

        Args:
          state: the last state of the run, which counts the releases made; None if all of them
            were made, or may have been.

        Raises:
          ValueError: if it was closed before, with another number of releases.
        """
        spent = None if state is None else int(costs.concrete(state.spent))
        self.ledger._close(self, spent)

    def cancel(self) -> None:
        """Takes the reservation back: the run made no release, and will make none.

        Raises:
          ValueError: for one that was found in the file, or is closed: it may have released.
        """
        self.ledger._cancel(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None and run_entry(self.ledger._read(), self.name)["closed"] is None:
            self.close()


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

    The rule that adds runs up is fixed before the first release; proofs are in
    `accounting.filters`.

    * "renyi": Renyi divergences at one order. For runs that share the budget: k equal runs cost
      noise of about sqrt(k), not k, and the ledger refunds releases that a stopped run did not
      make. A single run costs some per cent more noise than it would without a ledger.
    * "basic": epsilons and deltas of the runs. Any run; other statements at their full strength.
    * None, without `order` and `typical`: the first run decides, by its description. If it fits by
      "renyi", that is the rule. If only its own epsilon at the ledger's delta fits, and is at least
      three quarters of the budget, it has all of the budget, and everything further is refused.
      `calibrate(..., share=1.0)` before the first run gives it the noise of a run alone; releases
      that it does not make are not refunded.

    Args:
      path: the file, which is made if it does not exist.
      epsilon: epsilon of everything together; None to open an existing ledger.
      delta: delta of everything together.
      neighbours: "replace_one" or "add_or_remove_one"; None for "replace_one".
      people: k, the number of records of one person that may differ; None for 1.
      unit: the unit of privacy; None for "one record", or "any 3 records" for three of them. Runs
        and statements of another unit are refused.
      filter: "renyi" or "basic"; None: see above.
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
        self._file = LedgerFile(path)
        settings: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "neighbours": neighbours,
                                    "people": people, "unit": unit}
        if not self._file.exists():
            content = new_content(settings, filter or "renyi", order, typical)
            if filter is None and order is None and typical is None:
                content["single_run"] = False
            with self._file.locked():
                if not self._file.exists():
                    self._file.write(content)
        content = self._file.read()
        self._rule = stored_filter(content)
        self.epsilon, self.delta = content["epsilon"], content["delta"]
        self.neighbours, self.people = content["neighbours"], content["people"]
        self.unit = content["unit"]
        settings |= {"filter": filter, "order": order}
        stated = (None, None) if "single_run" in content else (
            self._rule.kind, self._rule.details.get("order"))
        stored = {**content, "filter": stated[0], "order": stated[1]}
        for name, value in settings.items():
            if value is not None and value != stored[name]:
                raise ValueError(f"The ledger at {self._file.path} has {name} = {stored[name]!r}, "
                                 f"not {checks.describe(value)}: state the settings it was opened "
                                 "with, or none.")

    @property
    def filter(self) -> str:
        """The rule in force: "renyi", or "basic", also where a single run has all of the budget."""
        return filter_in_force(self._read()).kind

    # --- spending ---

    def reserve(self, described: Any, hyper: Any = None, *, name: str | None = None,
                delta: float | None = None, unit: str | None = None,
                run: RunMark | None = None, parts: tuple[str, ...] = ()) -> Entry:
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
          ValueError: if the run exceeds the budget, saying what is left; after a first run that has
            all of it; for a name or a key that was used before; for another unit; for a description
            that is not valid.
        """
        check_name(name)
        self.check_same("The run", unit=self.unit if unit is None else unit)
        mechanism = described if hyper is None else described.mechanism(hyper)
        composed.check(mechanism)
        cost = repr(charges(mechanism, self.neighbours))
        epsilon_delta.warn_about_delta(self.delta, mechanism)
        if run is not None:
            with self._changed() as content:
                if (begun := known_run(content, run, cost)) is not None:
                    return Entry(self, begun, mechanism)
        charge, single = self._charge(mechanism, delta)
        entry = {
            "words": mechanism.summary(parts), "charges": cost, "charge": charge,
            "releases": releases(mechanism), "spent": None, "unit": self.unit,
            "enforced": statement_of_run.enforced_by(mechanism),
            "assumed": statement_of_run.assumed_by(mechanism),
            "run": None if run is None else {**run._asdict(), "of": None}}
        with self._changed() as content:
            # once more, as another process may have begun it in the meantime
            if (begun := known_run(content, run, cost)) is not None:
                return Entry(self, begun, mechanism)
            name = add_entry(content, name, entry, single)
        return Entry(self, name, mechanism, fresh=True)

    def _charge(self, mechanism: Description, delta: float | None) -> tuple[Amounts, bool]:
        """Returns a run's charge where runs share, and whether it may have the whole budget.

        It may, as the first run of a ledger that was opened without a filter, if only its own
        epsilon is within the budget. A small run that has a large divergence for its epsilon is
        refused, because it would take much more than it needs.
        """
        content = self._read()
        check_shared(content)
        refused, delta = None, self._delta(delta)
        try:
            charge = self._rule.charge(mechanism, delta, self.neighbours, self.people)
        except ValueError as error:  # it has no divergence
            refused, charge = error, dict.fromkeys(self._rule.limits, math.inf)
        exceeds = any(amount > self._rule.limits[name] for name, amount in charge.items())
        single = exceeds and first_run_decides(content) and 0.75 * self.epsilon <= dearest(
            mechanism, self.delta, self.neighbours, self.people).epsilon <= self.epsilon
        if refused is not None and not single:
            raise refused
        return charge, single

    def add(self, statement: Statement | Any, *, name: str | None = None) -> None:
        """Counts releases that were made without this ledger, by their statement.

        It counts the epsilon of all their releases and their delta, as of any (epsilon,
        delta)-private mechanism. `Statement.from_json` reads a statement back. Another kind of
        statement needs epsilon, delta, neighbours, unit, sampling, enforced and assumed.

        Raises:
          ValueError: if they exceed the budget, or if the statement is for other neighbours,
            another unit or another number of people.
        """
        check_name(name)
        stated = ("epsilon", "delta", "neighbours", "unit", "sampling", "enforced", "assumed")
        if not all(hasattr(statement, field) for field in stated):
            raise ValueError(f"{type(statement).__name__} is not a statement of one mechanism, "
                             f"which has {', '.join(stated)}. Runs of this ledger are counted "
                             "by reserve(...).")
        self.check_same("The statement", neighbours=statement.neighbours,
                        people=getattr(statement, "people", 1), unit=statement.unit)
        for field, high in (("epsilon", math.inf), ("delta", 1.0)):
            value = getattr(statement, field)
            checks.number(f"{field} of the statement", value, low=0.0, high=high, closed=True,
                          infinite=field == "epsilon")
            checks.scalars(**{field: value})
        epsilon, delta = float(statement.epsilon), float(statement.delta)
        entry = {
            "words": f"({rounded_up(epsilon, 6)}, {delta:g})-private by its statement, and "
                     "counted as any such mechanism: " + " ".join(statement.sampling),
            "charges": None, "charge": self._rule.foreign(epsilon, delta), "unit": self.unit,
            "releases": getattr(statement, "allowed", None),
            "spent": getattr(statement, "spent", None),
            "enforced": list(statement.enforced), "assumed": list(statement.assumed),
            "closed": utc_time(), "run": None}
        with self._changed() as content:
            add_entry(content, name, entry)

    def check_same(self, what: str, **stated: Any) -> None:
        """Refuses a run or statement for another unit, relation or number of people.

        Args:
          what: "The run" or "The statement", for the message.
          **stated: its unit, neighbours and people.

        Raises:
          ValueError: naming the setting, and how to state it.
        """
        for name, value in stated.items():
            if value != (fixed := getattr(self, name)):
                raise ValueError(f"{what} is for {name} = {value!r}, and the ledger for {fixed!r}: "
                                 f"they cannot be added. If {fixed!r} is true of these data, state "
                                 f"{name}={fixed!r}; otherwise open another ledger.")

    def calibrate(self, algorithm: Any, hyper: Any, *, share: float = 1.0,
                  delta: float | None = None) -> Any:
        """Returns `hyper` with the noise at which the whole run takes `share` of what is left.

        The ratio between the players' multipliers is kept, and nothing is reserved. If the first
        run decides on the filter, a share of 1 asks for all: the noise is that of
        `calibrate(algorithm, hyper, ledger.epsilon, ledger.delta)`, and no other run fits then.

        Args:
          algorithm: a module such as `sgda`.
          hyper: its `Hyper`.
          share: in (0, 1]; below 1 for a run that others follow, or that is refunded if it stops.
          delta: with filter="basic", the part of the ledger's delta for this run; None for a tenth
            of it, or the rest.

        Raises:
          ValueError: if nothing is left; where runs share by "renyi", for losses whose noise is not
            set.
        """
        checks.number("share", share, low=0.0, high=1.0 + 1e-12)
        content = self._read()
        check_shared(content)
        if share >= 1 and first_run_decides(content):
            return calibration.calibrate(algorithm, hyper, self.epsilon, self.delta,
                                         neighbours=self.neighbours, people=self.people)
        aim = share * remaining_amounts(content, self._rule)[self._rule.main]
        if not aim > 0:
            raise ValueError("The budget of this ledger is spent: open another one.")
        if isinstance(self._rule, Basic):
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
        rule = filter_in_force(content := self._read())
        amounts = remaining_amounts(content, rule)
        return Remaining(amounts[rule.main] / rule.limits[rule.main],
                         *rule.statement_that_fits(amounts))

    @property
    def odometer(self) -> float:
        """The epsilon of all runs so far, if no more are reserved; see `statement`.

        With filter="renyi" it may be above `self.epsilon` when nearly all is reserved. Then quote
        `self.epsilon`, decided before the runs: it holds with all of delta, and the milestones hold
        with delta together, so the smaller of the two afterwards is proven with both deltas only.
        """
        rule = filter_in_force(content := self._read())
        return rule.odometer(total_charge(content, rule))

    def statement(self) -> LedgerStatement:
        """Returns the privacy statement of everything in this ledger."""
        content = self._read()
        rule, entries = filter_in_force(content), content["entries"]
        spent, (theorem, odometer) = total_charge(content, rule), rule.summary()
        stated = ("name", "unit", "words", "charge", "releases", "spent", "opened", "closed")
        settings = ("epsilon", "delta", "neighbours", "people", "unit")
        decided = () if "single_run" not in content else (
            "The first run decides, by its description and before it reads data, whether it has "
            "all of the budget or runs share it.",)
        enforced = [
            "The ledger counts a run before the run reads data, and refuses a run that exceeds the "
            "budget. A run that crashed stays counted.",
            *decided, *(x for entry in entries for x in entry["enforced"])]
        assumed = [
            *statement_of_run.claims(self.unit, self.people),
            "Operator: This ledger holds everything that is released about these data, each run "
            "with the description that it was run with. Every run has a key of its own. Nobody put "
            "back an older copy of the file.",
            "User: The problem, the data and the settings of a run are fixed when it is reserved. "
            "Which run comes next, its settings and its end may be chosen by looking at anything "
            "that was released.",
            "User: A run that was closed with a state made no release after that state.",
            "User: The number of records, the preprocessing and the projections are public. "
            "Initial points and hyper-parameters are public, or computed from releases that this "
            "ledger counts.",
            *statement_of_run.ASSUMED[1:-1], statement_of_run.ENDS,
            *(x for entry in entries for x in entry["assumed"]
              if x not in statement_of_run.ASSUMED)]
        return LedgerStatement(
            **{name: content[name] for name in settings}, filter=theorem, odometer=odometer,
            epsilon_if_stopped_by_looking=rule.odometer(spent), spent=spent,
            limits=dict(rule.limits),
            runs=tuple({name: entry.get(name) for name in stated} for entry in entries),
            enforced=tuple(dict.fromkeys(enforced)), assumed=tuple(dict.fromkeys(assumed)))

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
        if run_entry(self._read(), name)["charges"] != repr(charges(mechanism, self.neighbours)):
            raise ValueError(f"{name!r} was reserved for another description: state that one.")
        return Entry(self, name, mechanism)

    # --- the file ---

    def _read(self) -> dict[str, Any]:
        content = self._file.read()
        if stored_filter(content) != self._rule:
            raise ValueError(f"{self._file.path} is not the ledger that was opened: open it "
                             "again.")
        return content

    def _delta(self, delta: float | None) -> float:
        if not isinstance(self._rule, Basic):
            if delta is not None:
                raise ValueError(f"Only filter='basic' takes delta={delta!r}; this ledger has one "
                                 "delta for all runs: leave it out.")
            return self.delta
        remaining = remaining_amounts(self._read(), self._rule)["delta"]
        delta = min(0.1 * self.delta, remaining) if delta is None else delta
        if not remaining > 0:
            raise ValueError(f"The runs have used all of delta = {self.delta:g}: state a smaller "
                             "delta for each run.")
        epsilon_delta.check_delta(delta)
        return float(delta)

    @contextlib.contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        """Yields the content under the lock, and writes it to disk if it was changed."""
        with self._file.locked():
            content = self._read()
            unchanged = copy.deepcopy(content)
            yield content
            if content != unchanged:
                self._file.write(content)

    def bind(self, entry: Entry, marks: dict[str, str], unchecked: Mapping[str, str] | None = None,
             *, several: bool = False) -> None:
        """Records marks of what a run reads and computes, or compares them with earlier ones.

        Args:
          entry: of the run.
          marks: keyed hashes by what they are of, before its first release.
          unchecked: further ones, which are written down with them, but not compared yet; None
            for no such marks.
          several: whether another one is allowed, and none is from then on where it is not.

        Raises:
          ValueError: naming what is another one.
        """
        with self._changed() as content:
            run = run_entry(content, entry.name)["run"]
            if run["of"] is None:
                run["of"] = {**marks, **(unchecked or {})}
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
            run = run_entry(content, entry.name)["run"]
            if run is None:
                return 0
            if rounds > run.get("shown", 0):
                run["shown"] = rounds
            return int(run.get("shown", 0))

    def _cancel(self, entry: Entry) -> None:
        with self._changed() as content:
            stored = run_entry(content, entry.name)
            # another process that goes on with it may have released something by now
            again = stored["run"] is not None and stored["run"].get("again", False)
            if not entry.fresh or again or stored["closed"] is not None:
                raise ValueError(f"{entry.name!r} may have released something: close it instead.")
            content["entries"].remove(stored)
            if "single_run" in content:  # nothing was released, so that the next run decides
                content["single_run"] = False

    def _close(self, entry: Entry, spent: int | None) -> None:
        charge, gives_back = None, filter_in_force(self._read()).gives_back
        if spent is not None:
            checks.count("spent", spent, low=0)
            if gives_back and spent < releases(entry.mechanism):
                shortened = entry.mechanism.truncated(spent)
                charge = dict.fromkeys(self._rule.limits, 0.0) if shortened is None else (
                    self._rule.charge(shortened, self.delta, self.neighbours, self.people))
        with self._changed() as content:
            stored = run_entry(content, entry.name)
            if stored["closed"] is not None:
                earlier, whole_run = stored["spent"], (None, stored["releases"])
                refunded = earlier not in whole_run and gives_back
                if spent == earlier or (not refunded and spent in whole_run):
                    return
                raise ValueError(f"{entry.name!r} was closed after {earlier} releases, and the "
                                 "ledger took the others back: they cannot be made.")
            stored |= {"closed": utc_time(), "spent": spent}
            if charge is not None:
                stored["charge"] = {name: min(x, stored["charge"][name])
                                    for name, x in charge.items()}
