"""Planted bugs of the one order of a table's training: prepared, charged, released, closed.

No release is computed, so nothing is compiled: what is prepared, charged and noted is watched.
"""

import contextlib
import dataclasses
import functools
import pathlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

import jaxminimax as jmm
from benchmarks.privacy.mutants import tables
from benchmarks.privacy.mutants.detectors import KEY, Finding
from jaxminimax.accounting.ledger import Entry, Ledger
from jaxminimax.apps.tables import (
    Charged,
    Number,
    Schema,
    certified,
    linear,
    notes,
    preparation,
    records,
    statistics,
    train,
    training,
)
from jaxminimax.apps.tables.unfinished import Unfinished
from jaxminimax.base import identity
from jaxminimax.estimators import PrivateAUCClassifier
from jaxminimax.releases import sums

AIMS: dict[str, tuple[Any, str]] = {
    "charge": (preparation, "charge"),
    "fingerprint of the rows": (preparation.Prepared, "everything_read"),
    "training of an estimator": (training, "carry_out"),
    "end of a run": (Entry, "close"),
    "people of a ledger": (Ledger, "check_same"),
    "settings": (training, "defaults"),
    "description of ranges": (statistics, "ranges_query"),
    "statement": (linear, "statement"),
    "private groups of persons": (preparation.PrivateGroups, "for_persons"),
    "rows as records": (preparation.Prepared, "arranged_rows"),
    "delta against 1/n": (notes, "check_delta"),
    "words on names": (identity, "NAMES"),
    "entry of a run": (Unfinished, "reserve"),
    "charge of a certificate": (certified, "together"),
    "rows that are apart": (certified, "apart"),
    "claim of a table": (records.Store, "claim"),
}
EPSILON, DELTA, N, PEOPLE = 4.0, 1e-4, 300, 3
_X = np.random.default_rng(0).uniform(-1, 1, N)
TABLE = {"a": _X, "y": (_X > 0).astype(int), "who": np.arange(N) // 3,
         "g": np.array(["p", "q"])[np.arange(N) // 3 % 2]}
ROWS = Schema({"a": Number(-1, 1)}, "y", "1")
OWNED = dataclasses.replace(ROWS, owner="who", most=2)
CHARGED = dataclasses.replace(ROWS, columns={"a": Charged()})
GROUPED = dataclasses.replace(ROWS, groups="g", group_values=("p", "q"))
_HOW: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA}


# --- bugs ---


def at_the_end(charge: Any) -> Any:
    """The ledger is charged when the run is closed."""
    class Late:
        def __init__(self, *given: Any, **how: Any) -> None:
            self.close = lambda: charge(*given, **how).close()

    return Late


def ranges_before(everything_read: Any) -> Any:
    """Ranges are released while rows are marked, and the ledger is charged after it."""
    def changed(self: preparation.Prepared, charged: Any) -> Any:
        if charged is not None and self.ranges is not None:
            statistics.release_ranges(KEY, self.ranges, charged.x, charged.weight)
        return everything_read(self, charged)

    return changed


def without(**lost: Any) -> Callable[[Any], Any]:
    """An argument is lost on its way."""
    return lambda function: lambda *given, **how: function(*given, **how | lost)


def of_one_person(ranges_query: Any) -> Any:
    """Ranges are described for one record of a person."""
    return lambda *given: ranges_query(*given[:4])


def of_rows(settings: Any) -> Any:
    """The population of the settings is the number of rows, three of a person."""
    return lambda population, *rest, **how: settings(PEOPLE * population, *rest, **how)


def of_the_last_row(for_persons: Any) -> Any:
    """Where a person has no row, the group is that of the last row of the table."""
    return lambda self, row_numbers: dataclasses.replace(self, number=self.number[row_numbers])


def each_row(arranged_rows: Any) -> Any:
    """Owners are dropped."""
    return lambda self: arranged_rows(dataclasses.replace(
        self, table=self.table._replace(owners=None), row_numbers=None))


def unmarked(reserve: Any) -> Any:
    """The entry has no mark of the run's key."""
    return lambda self, ledger, described, **how: ledger.reserve(described, **how)


def with_all_rows(apart: Any) -> Any:
    """Rows that are held out train, too."""
    class Apart(certified.Apart):
        @property
        def others(self) -> np.ndarray:
            return np.arange(len(self.held.labels))

    return lambda *given, **how: Apart(*apart(*given, **how))


# --- detectors ---


def prepared_of(schema: Schema, groups: Any = None, **how: Any) -> preparation.Prepared:
    """What is prepared of the table, whose rule is the one of `train`."""
    table = records.encoded(TABLE, schema)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return preparation.prepare(
            table, schema, vars(training)["defaults"], names=(), rows_per_owner=schema.most,
            groups=table.public_groups(schema) if groups is None else groups, **_HOW | how)


@contextlib.contextmanager
def ledger_for(**how: Any) -> Iterator[Ledger]:
    """A ledger of more than a training asks for."""
    with tempfile.TemporaryDirectory() as folder:
        yield Ledger(pathlib.Path(folder, "l.json"), epsilon=20.0, delta=1e-3, **how)


def _fitted(ledger: Any = None, **how: Any) -> Any:
    model = PrivateAUCClassifier(bounds=(-1.0, 1.0), ledger=ledger, random_state=0, **_HOW | how)
    return model.fit(TABLE["a"][:, None], TABLE["y"])


def released_before_an_entry(estimator: bool = False) -> Finding:
    """Releases of a training that are made while its ledger has no entry."""
    early = []
    with tables.without_releases(), ledger_for() as ledger:
        noted = sums.compiled_release

        def release(*given: Any) -> Any:
            early.append(not ledger.statement().runs)
            return noted(*given)

        with mock.patch.object(sums, "compiled_release", release):
            if estimator:
                _fitted(ledger)
            else:
                train(TABLE, CHARGED, ledger=ledger, **_HOW)
    return Finding(float(sum(early)), 0.0)


def open_runs() -> Finding:
    """Runs of a ledger that were finished and are open."""
    with tables.without_releases(), ledger_for() as ledger:
        train(TABLE, ROWS, ledger=ledger, **_HOW)
        _fitted(ledger)
        return Finding(float(sum(run["closed"] is None for run in ledger.statement().runs)), 0.0)


def accepted(*trainings: Callable[[Any], Any], rightly: int = 0, people: int = 1) -> Finding:
    """Trainings that a ledger must refuse, and does not."""
    granted = -rightly
    with tables.without_releases(), ledger_for(people=people) as ledger:
        for one in trainings:
            with contextlib.suppress(ValueError):
                one(ledger)
                granted += 1
    return Finding(float(granted), 0.0)


def of_other_people() -> Finding:
    """Trainings for other people than the ledger's that are accepted."""
    return accepted(lambda ledger: train(TABLE, ROWS, ledger=ledger, people=PEOPLE, **_HOW),
                    people=2)


def with_one_key(estimator: bool = False) -> Finding:
    """Second trainings with one key and one ledger that are accepted."""
    def first(ledger: Any) -> None:
        _fitted(ledger) if estimator else train(TABLE, ROWS, ledger=ledger, key=KEY, **_HOW)

    def second(ledger: Any) -> None:
        if estimator:
            _fitted(ledger, epsilon=2.0)
        else:
            train(TABLE, GROUPED, ledger=ledger, key=KEY, **_HOW)

    return accepted(first, second, rightly=1)


def cost(people: int = PEOPLE) -> Finding:
    """Epsilon of ranges and all that the settings describe; 4 is asked for."""
    one = prepared_of(CHARGED, people=people)
    described = {repr(x): x for x in (one.ranges, *one.settings.mechanism().answered())}
    return Finding(jmm.epsilon(jmm.Sequence(parts=tuple(described.values())), DELTA,
                               people=people), EPSILON)


def noise_of_ranges() -> Finding:
    """What the noise of ranges lacks to be k times that for one row, if k rows are of a person."""
    one, several = (prepared_of(CHARGED, people=people).ranges for people in (1, PEOPLE))
    assert one is not None
    assert several is not None
    ratio = several.query.noise_multiplier.w / one.query.noise_multiplier.w
    return Finding(PEOPLE / ratio, 1.001)


def people_that_are_not_stated() -> Finding:
    """How far the number of people in a statement is from what was asked."""
    with tables.without_releases():
        stated = train(TABLE, ROWS, people=PEOPLE, **_HOW).statement
    return Finding(float(abs(stated.people - PEOPLE)), 0.0)


def population() -> Finding:
    """Records that noise is averaged over, over the persons."""
    one = prepared_of(OWNED)
    return Finding(one.settings.scaling.moments.query.population / (N // 3), 1.0)


def groups_without_a_row() -> Finding:
    """Places of a person that have a group and no row."""
    groups = preparation.PrivateGroups(np.arange(N) % 2, ("p", "q"))
    row_numbers = np.array([[0, 1], [2, -1]])
    return Finding(float(np.sum((groups.for_persons(row_numbers).number >= 0) & (row_numbers < 0))),
                   0.0)


def records_of_a_person() -> Finding:
    """Records that the rows of one person are in."""
    rows, _ = prepared_of(OWNED).arranged_rows()
    return Finding(len(rows.x) / (N // 3), 1.0)


def large_deltas() -> Finding:
    """Trainings with delta = 1/n that are accepted."""
    with contextlib.suppress(ValueError):
        prepared_of(ROWS, delta=1 / N)
        return Finding(1.0, 0.0)
    return Finding(0.0, 0.0)


def unstated_names() -> Finding:
    """Trainings of owners whose statement does not say that their names are public."""
    stated = any("names of the persons" in words for words in prepared_of(OWNED).assumed)
    return Finding(float(not stated), 0.0)


def delta_that_is_charged() -> Finding:
    """What a ledger that adds deltas charges, over the delta of the run."""
    with tables.without_releases(), ledger_for(filter="basic") as ledger:
        train(TABLE, ROWS, ledger=ledger, **_HOW | {"delta": 5e-4})
        (run,) = ledger.statement().runs
    return Finding(abs(run["charge"]["delta"] / 5e-4 - 1), 0.0)


def uncharged_certificate() -> Finding:
    """Releases of rows that are held out and not in what is charged."""
    one = prepared_of(GROUPED, certify=0.2)
    assert one.apart is not None
    return Finding(float(repr(one.apart.losses) not in repr(one.mechanism())), 0.0)


def rows_on_both_sides() -> Finding:
    """Rows that train and are held out."""
    one = prepared_of(GROUPED, certify=0.2)
    return Finding(float(len(one.table.labels) + len(one.held.labels) - N), 0.0)


def second_trainings_of_a_table() -> Finding:
    """Further trainings of one prepared table, whose rows were changed, that are accepted."""
    one = prepared_of(ROWS)
    begun: list[Any] = []
    trained: Any = begun.append
    for _ in range(2):
        with contextlib.suppress(ValueError):
            training.carry_out(one, KEY, trained)
    return Finding(float(len(begun) - 1), 0.0)


# name, what it breaks, what is replaced and by what, detector, and what its number is
_EARLY, _ACCEPTED = "releases before the ledger has an entry", "trainings that are accepted"
BUGS: tuple[tuple[str, str, str, Callable[[Any], Any], Callable[[], Finding], str], ...] = (
    ("ledger of a table charged at the end", "charged before released", "charge", at_the_end,
     released_before_an_entry, _EARLY),
    ("ranges released before the charge", "charged before released", "fingerprint of the rows",
     ranges_before, released_before_an_entry, _EARLY),
    ("ledger of an estimator lost", "charged before released", "training of an estimator",
     without(ledger=None), functools.partial(released_before_an_entry, True), _EARLY),
    ("run of a table never closed", "ledger: what is finished", "end of a run",
     lambda _: lambda *given, **how: None, open_runs, "finished runs that are open"),
    ("people of a run not those of its ledger", "ledger: one relation", "people of a ledger",
     lambda _: lambda *given, **how: None, of_other_people, _ACCEPTED),
    ("people lost in the settings", "accountant: rows of a person", "settings", without(people=1),
     cost, "epsilon of all releases"),
    ("ranges not paid from epsilon", "accountant: all that is released", "settings",
     without(alongside=()), cost, "epsilon of all releases"),
    ("people lost in the ranges", "standard deviation", "description of ranges", of_one_person,
     noise_of_ranges, "noise that is due over the noise of ranges"),
    ("people lost in the statement", "statement", "statement", without(people=1),
     people_that_are_not_stated, "people, stated less asked"),
    ("rows counted as persons", "standard deviation", "settings", of_rows, population,
     "population over persons"),
    ("group of another person", "sensitivity: one record each", "private groups of persons",
     of_the_last_row, groups_without_a_row, "groups of no row"),
    ("owners dropped when rows are arranged", "sensitivity: one record each", "rows as records",
     each_row, records_of_a_person, "records a person"),
    ("delta not compared with 1/n", "what delta means", "delta against 1/n",
     lambda _: lambda *given: None, large_deltas, _ACCEPTED),
    ("names of owners not stated", "statement", "words on names", lambda _: "", unstated_names,
     "statements without it"),
    ("run of a table without a mark", "one key for one run", "entry of a run", unmarked,
     with_one_key, _ACCEPTED),
    ("fit without a mark", "one key for one run", "entry of a run", unmarked,
     functools.partial(with_one_key, True), _ACCEPTED),
    ("delta of a run lost", "ledger: added deltas", "entry of a run", without(delta=None),
     delta_that_is_charged, "delta charged over the run's, less 1"),
    ("certificate of a table not charged", "accountant: all that is released",
     "charge of a certificate", lambda _: lambda described, of: described, uncharged_certificate,
     "releases that are not charged"),
    ("held-out rows train", "disjoint rows", "rows that are apart", with_all_rows,
     rows_on_both_sides, "rows on both sides"),
    ("table trained twice", "one key for one run", "claim of a table", lambda _: lambda self: None,
     second_trainings_of_a_table, _ACCEPTED),
)
