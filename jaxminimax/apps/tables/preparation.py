"""The preparation of a training: all that decides its releases, from public numbers.

`prepare` makes one frozen `Prepared` for `train` and for all estimators. It holds what decides a
release, and no key, ledger or folder, which decide where and when: `training.carry_out` has them.
`charge` is the one way to charge a ledger for what a table releases.
"""

import dataclasses
import numbers
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np

from jaxminimax.accounting.ledger import Entry, Ledger
from jaxminimax.apps.tables import certified, notes, records, rule, statistics
from jaxminimax.apps.tables.schema import Schema
from jaxminimax.apps.tables.unfinished import Unfinished
from jaxminimax.base import checks, identity
from jaxminimax.base.types import PyTree
from jaxminimax.mechanism import Description, Repeat, leaves

if TYPE_CHECKING:
    from jaxminimax.apps.tables.fair import FairDefaults

    Settings: TypeAlias = rule.Defaults | FairDefaults

PUBLIC = ("Ranges, categories and values of the schema are public: they were not read off this "
          "table.")


# arguments of `train` and parameters of the estimators
ARGUMENTS: dict[str, tuple[Any, str]] = {
    "schema": (Schema, "a Schema; Schema.from_dict(...) makes one of a dictionary"),
    "key": (jax.Array | None, "a key of JAX such as noise.secret_key(), or None"),
    "ledger": (Ledger | None, "a Ledger, such as Ledger('ledger.json'), or None"),
    "folder": (str | os.PathLike | None, "a path, or None"),
    "mesh": (jax.sharding.Mesh | None, "a jax.sharding.Mesh with an axis 'data', or None"),
    **dict.fromkeys(("unit", "name"), (str | None, "text or None")),
    **dict.fromkeys(("progress", "allow_large_delta", "by_label", "stop_on_notes"), checks.TRUTH),
    **dict.fromkeys(("certify", "held_out"), (numbers.Real | None, "a share in (0, 1), or None"))}


@dataclasses.dataclass(frozen=True, eq=False)
class PrivateGroups:
    """The group of every row, as private as the row.

    Attributes:
      number: `[rows]`, or of persons `[n, rows]`, from 0; -1 for a row that is in none.
      names: of the groups, which are public.
      assumed: for the statement.
    """

    number: np.ndarray
    names: tuple[str, ...]
    assumed: tuple[str, ...] = ()

    @property
    def public_numbers(self) -> dict[str, Any]:
        """Returns the argument of `fair.fair_defaults`."""
        return {"groups": len(self.names)}

    def for_persons(self, row_numbers: np.ndarray | None) -> "PrivateGroups":
        """Returns the groups of the rows of every person, `[n, rows]`; None: each has one row."""
        if row_numbers is None:
            return dataclasses.replace(self, number=self.number[:, None])
        # where a person has no further row, no other person's group may stand
        return dataclasses.replace(self, number=np.where(
            row_numbers >= 0, self.number[row_numbers], -1))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Prepared:
    """All that decides the releases of a training; made by `prepare` alone.

    It is frozen, and its rows are not: a training scales them in place, so that a table of any size
    lies in memory once. So one is for one training, see `Store.claim`.

    Attributes:
      table: the rows that train.
      schema: of them, with the columns whose ranges are to be released.
      rows_per_owner: how many rows of a person are read; None where a record is a row.
      row_numbers: the rows of each person, see `records.by_person`; None where a record is a row.
      population: n, records; public.
      groups: of records, public or private; None for none.
      ranges: describes the release of ranges; None where all are declared.
      settings: by the rule, for all of epsilon that `ranges` leaves.
      people: k, how many records of one person may differ.
      claimed_unit: what one record is, as the user says; None: as `unit_of` does.
      assumed: sentences for the statement.
      notes: likely mistakes, from public facts.
      class_weight: see `records.weighted`; None for equal ones.
      apart: what is held out for a certificate; None for none.
      held: the rows that are held out; without a certificate not read.
    """

    table: records.Table
    schema: Schema
    rows_per_owner: int | None
    row_numbers: np.ndarray | None
    population: int
    groups: Any
    ranges: Repeat | None
    settings: "Settings"
    people: int
    claimed_unit: str | None
    assumed: tuple[str, ...]
    notes: tuple[notes.Note, ...]
    class_weight: Any
    apart: certified.Apart | None
    held: records.Table

    @property
    def unit(self) -> str:
        """The unit of the statement: what one record is."""
        return self.claimed_unit or unit_of(self.rows_per_owner, self.people)

    def mechanism(self) -> Description:
        """Describes all releases together, of training and certificate."""
        return certified.together(self.settings.mechanism(), self.apart)

    def parts(self) -> tuple[str, ...]:
        """Returns what each part of `mechanism` releases."""
        apart = () if self.apart is None else (("losses of rows held out", self.apart.losses),)
        return names_of((*self.settings.named(), *apart))

    def charged_rows(self) -> records.Records | None:
        """Arranges the cells of columns whose ranges are to be released; None without them."""
        if self.table.charged is None:
            return None
        return records.records(self.table.charged, self.table.labels, self.row_numbers)

    def arranged_rows(self) -> tuple[records.Records, np.ndarray]:
        """Arranges rows as records, and returns where their scaled features go.

        Both lie in one array, `[n, rows, d + 1]`.
        """
        table = self.table
        scaled_out = table.x[:, None] if self.row_numbers is None else table.store.zeros(
            *self.row_numbers.shape, table.x.shape[1])
        return records.records(table.x[:, :-1], table.labels, self.row_numbers,
                               out=scaled_out[..., :-1], store=table.store), scaled_out

    def everything_read(self, charged: records.Records | None) -> PyTree:
        """Returns all arrays that decide a release, of 32 bits, for a promise."""
        return (self.table.x, self.table.labels, *(
            None if x is None else x.astype(np.int32) for x in (
                self.row_numbers, None if self.groups is None else self.groups.number)),
            None if charged is None else charged.x.view(np.uint32),
            None if self.apart is None else self.apart.read(self.held))


def prepare(table: records.Table, schema: Schema, rule_of: Callable[..., "Settings"], *,
            epsilon: float, delta: float, names: Any, groups: Any = None, rows_per_owner: int = 1,
            people: int = 1, unit: str | None = None, allow_large_delta: bool = False,
            assumed: tuple[str, ...] = (), class_weight: Any = None,
            certify: float | None = None) -> Prepared:
    """Chooses all that decides a release, and warns of likely mistakes; nothing is released.

    Args:
      table: by `records.encoded`.
      schema: of it.
      rule_of: `rule.defaults`, or `fair.fair_defaults` for private groups.
      epsilon: of everything that is released, replace-one.
      delta: in (0, 1), below 1/n.
      names: of the columns that the table came with, for notes.
      groups: of every row, `records.Groups` or `PrivateGroups`; None for none.
      rows_per_owner: rows of a person that are read, where the table has owners.
      people: k, if any k rows may be of one person and owners are not known.
      unit: what one record is; None: as `unit_of` says.
      allow_large_delta: whether delta may be 1/n or more.
      assumed: sentences for the statement; those on owners and on released ranges are added.
      class_weight: see `records.weighted`.
      certify: share of each group's rows to hold out for a certificate; None for none.

    Raises:
      ValueError: for owners and `people`, groups that are not of persons or have no row, a delta at
        or above 1/n, numbers out of range, or what has no certificate.
    """
    checks.scalars(epsilon=epsilon, delta=delta)
    checks.number("epsilon", epsilon, low=0.0)
    checks.number("delta", delta, low=0.0, high=1.0)
    owned = table.owners is not None
    check_people(people, owned)
    row_numbers = records.by_person(len(table.labels), table.owners, rows_per_owner)
    groups = None if groups is None else groups.for_persons(row_numbers)
    apart = certified.apart(groups, certify, epsilon=epsilon, delta=delta,
                            persons=owned or people > 1)
    held = table
    if apart is not None:
        held, table = table.part(apart.held.rows), table.part(apart.others)
        groups = groups.part(apart.others)
    population = len(table.labels if row_numbers is None else row_numbers)
    notes.check_delta(delta, population, allow_large_delta)
    ranges = statistics.ranges_query(population, schema, epsilon, delta, people)
    settings = rule_of(population, schema, epsilon=epsilon, delta=delta, alongside=ranges,
                       people=people, **({} if groups is None else groups.public_numbers))
    noted = (*notes.before(schema, population, names, owned=owned or people > 1),
             *settings.notes())
    notes.warn(noted)
    assumed = (*assumed, *((identity.NAMES,) if owned else ()), *(
        f"Ranges of {', '.join(schema.charged)} were released, for a tenth of the budget."
        for _ in ranges))
    return Prepared(table, schema, rows_per_owner if owned else None, row_numbers, population,
                    groups, ranges[0] if ranges else None, settings, people, unit, assumed, noted,
                    class_weight, apart, held)


# --- what one record is, and the ledger ---


def names_of(named: tuple[tuple[str, Description], ...]) -> tuple[str, ...]:
    """Returns what each leaf releases, of descriptions after what they release."""
    return tuple(name for name, description in named for _ in leaves(description))


def check_people(people: int, owned: bool) -> None:
    """Refuses a number of rows of one person that is none, or that owners make superfluous.

    Raises:
      ValueError: naming both.
    """
    checks.count("people", people)
    if people > 1 and owned:
        raise ValueError(f"people={people} is for rows whose owners are not known: where owners "
                         "are given, a person is one record. Leave one of them out.")


def unit_of(rows_per_owner: int | None, people: int = 1) -> str:
    """Returns what one record is, or whose any `people` are, where the user does not say.

    Args:
      rows_per_owner: rows of a person that are read; None where a record is a row.
      people: k, how many records of one person may differ.
    """
    if rows_per_owner is not None:
        return f"one person, the first {rows_per_owner} rows of whom are read"
    return "one row" if people == 1 else "one person"


def charge(job: Unfinished, ledger: Ledger | None, described: Description, *, unit: str | None,
           rows_per_owner: int | None, people: int, delta: float,
           name: str | None = None, parts: tuple[str, ...] = ()) -> Entry | None:
    """Charges a ledger for everything that a run will release; None without a ledger.

    Args:
      job: of the run, whose key may be used once in a ledger.
      ledger: of the data.
      described: all that is released.
      unit: as the user claims; None for the ledger's own wording, if that says the same in
        general: "one person" of owners, "one record" of rows, "any k records" of `people`.
      rows_per_owner: see `unit_of`.
      people: k, how many records of one person may differ; the ledger must have the same number.
      delta: of the run, which a ledger that adds deltas is charged.
      name: of the run in the ledger; None for "run 1" and so on.
      parts: what each part of it releases; empty: without names.

    Raises:
      ValueError: if the ledger refuses it.
    """
    if ledger is None:
        return None
    ledger.check_same("The run", people=people)
    if unit is None and ledger.unit == identity.unit_of(people, rows_per_owner):
        unit = ledger.unit
    return job.reserve(
        ledger, described, name=name, parts=parts, unit=unit or unit_of(rows_per_owner, people),
        delta=delta if ledger.filter == "basic" and delta < ledger.delta else None)
