"""The file of a ledger: one writer at a time, and on disk before a run begins.

A process that changes it holds an exclusive lock on PATH.lock in the same folder: see `own_files`.
The file holds no key and no row of the data.

`opened` writes the first content, `add_entry` adds a run if there is room for its charge, and an
`Entry` is what a run holds of it until it ends.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import math
import os
from typing import Any, NamedTuple, Self

from jaxminimax.accounting import answers, statements, stating
from jaxminimax.accounting.filters import Amounts, Basic, Filter, Renyi, best_order, total
from jaxminimax.base import checks, identity, own_files, saved_json
from jaxminimax.mechanism import NEIGHBOURS, Description, costs

WHAT, VERSION = "jaxminimax ledger", 1


class Books:
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
            limits, entries = content["filter"]["limits"], content["entries"]
            if len({entry["name"] for entry in entries}) < len(entries) or any(
                    entry["charge"].keys() - limits for entry in entries):
                raise ValueError("entries must have different names, and charges filter.limits")
            for name, spent in spent_of(content, rule_of(content)).items():
                if spent > limits[name]:
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
        content = {**content, "what": WHAT, "version": VERSION}
        content["checksum"] = _checksum(content)
        saved_json.check(saved_json.plain(content), "ledger")  # or it could not be read again
        own_files.write(self.path, json.dumps(content, indent=1, allow_nan=False))


def _checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


KINDS: dict[str, type[Filter]] = {kind.kind: kind for kind in (Renyi, Basic)}


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


def opened(settings: dict[str, Any], kind: str, order: float | None,
           typical: Description | None) -> dict[str, Any]:
    """Returns the content of a new ledger."""
    epsilon, delta = settings["epsilon"], settings["delta"]
    if epsilon is None or delta is None:
        raise ValueError("There is no ledger at this path: state epsilon and delta to open one.")
    answers.check_epsilon(epsilon)
    answers.check_delta(delta)
    epsilon, delta = float(epsilon), float(delta)
    neighbours = settings["neighbours"] or "replace_one"
    checks.one_of("neighbours", neighbours, NEIGHBOURS)
    checks.one_of("filter", kind, tuple(KINDS))
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
            "unit": settings["unit"] or identity.unit_of(people), "opened": now(),
            "filter": {"kind": kind, "limits": rule.limits, "details": rule.details}, "entries": []}


def now() -> str:
    """Returns the time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def rule_of(content: dict[str, Any]) -> Filter:
    """Returns the filter of a ledger.

    Raises:
      ValueError: for a kind that is not known.
    """
    kept = content["filter"]
    checks.one_of("the filter of this ledger", kept["kind"], tuple(KINDS))
    return KINDS[kept["kind"]](kept["limits"], kept["details"])


def named(content: dict[str, Any], name: str) -> dict[str, Any]:
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


def spent_of(content: dict[str, Any], rule: Filter) -> Amounts:
    """Returns the sums of all charges."""
    return total([entry["charge"] for entry in content["entries"]], tuple(rule.limits))


def add_entry(content: dict[str, Any], rule: Filter, name: str | None,
              entry: dict[str, Any]) -> str:
    """Adds an entry to `content` if its charge is within the limits; returns its name.

    Raises:
      ValueError: if there is none, saying what is left; for a name that was used before.
    """
    used = {one["name"] for one in content["entries"]}
    if name is None:
        name = next(f"run {k}" for k in range(1, len(used) + 2) if f"run {k}" not in used)
    if name in used:
        raise ValueError(f"{name!r} is in the ledger already: use another name for this run.")
    before = spent_of(content, rule)
    content["entries"].append({"name": name, "opened": now(), "closed": None, **entry})
    for amount, then in spent_of(content, rule).items():
        limit = rule.limits[amount]
        if not (then <= limit and math.isfinite(then)):
            left = max(limit - before[amount], 0.0)
            raise ValueError(
                f"{name!r} needs {entry['charge'].get(amount, 0.0):.6g} of {amount}, and "
                f"{left:.6g} of {limit:.6g} are left: {rule.remedy(amount, left)}.")
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
        before = entry["run"]
        if run is None or before is None or before["key"] != run.key:
            continue
        name = entry["name"]
        if before["run"] != run.run or entry["charges"] != charges:
            raise UsedKeyError(f"The key was used for another run, {name!r}. Two runs with equal "
                               "noise reveal the data: use secret_key() for each run.")
        if not (run.resumable and before["resumable"]):
            raise UsedKeyError(f"{name!r} was begun before, and cannot continue without a "
                               "checkpoint: start a new run with another key and another name.")
        if entry["spent"] is not None and entry["spent"] < entry["releases"]:
            raise ValueError(f"{name!r} was closed after {entry['spent']} releases, and the ledger "
                             "took the others back: start a new run with another key.")
        before["again"] = True
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

        With filter="renyi", releases that were not made by then are given back.

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
        if kind is None and self.ledger._find(self.name)["closed"] is None:
            self.close()


_ENFORCED = (
    "The ledger counts a run before the run reads data, and refuses a run that exceeds the "
    "budget. A run that crashed stays counted.",)
_ASSUMED = (
    "Operator: This ledger holds everything that is released about these data, each run with the "
    "description that it was run with. Every run has a key of its own. Nobody put back an older "
    "copy of the file.",
    "User: The problem, the data and the settings of a run are fixed when it is reserved. Which "
    "run comes next, its settings and its end may be chosen by looking at anything that was "
    "released.",
    "User: A run that was closed with a state made no release after that state.",
    "User: The number of records, the preprocessing and the projections are public. Initial points "
    "and hyper-parameters are public, or computed from releases that this ledger counts.",
    *stating.ASSUMED[1:-1])


def statement_of(content: dict[str, Any], rule: Filter, spent: dict[str, float],
                 ) -> statements.LedgerStatement:
    """Returns the statement of a ledger's content, by its filter and the sums of its charges."""
    entries, (theorem, odometer) = content["entries"], rule.summary()
    shown = ("name", "unit", "words", "charge", "releases", "spent", "opened", "closed")
    same = ("epsilon", "delta", "neighbours", "people", "unit")
    return statements.LedgerStatement(
        **{name: content[name] for name in same}, filter=theorem, odometer=odometer,
        epsilon_if_stopped_by_looking=rule.odometer(spent), limits=dict(rule.limits), spent=spent,
        runs=tuple({name: entry.get(name) for name in shown} for entry in entries),
        enforced=tuple(dict.fromkeys((*_ENFORCED, *(x for e in entries for x in e["enforced"])))),
        assumed=tuple(dict.fromkeys((
            *stating.claims(content["unit"], content["people"]), *_ASSUMED, stating.ENDS,
            *(x for e in entries for x in e["assumed"] if x not in stating.ASSUMED)))))
