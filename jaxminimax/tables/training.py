"""Training of a private linear scorer: from records, and from a table."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxminimax.accounting import Ledger, books, statement
from jaxminimax.base import checks, identity, programs
from jaxminimax.base.types import PyTree, Saddle
from jaxminimax.drivers.long_runs import fit
from jaxminimax.placement import agreement
from jaxminimax.releases import release_keys
from jaxminimax.tables import (
    certified,
    labels,
    notes,
    processes,
    records,
    rule,
    statistics,
    unfinished,
)
from jaxminimax.tables.columns import Number
from jaxminimax.tables.records import MEMORY, Store, in_blocks, scaled
from jaxminimax.tables.schema import Schema, columns_of
from jaxminimax.tables.scorer import Moments, Scorer


def train_records(keys: release_keys.TrainingKeys, rows: records.Records, schema: Schema,
                  chosen: rule.Defaults, *, groups: records.Groups | None = None,
                  unit: str = "one row", assumed: tuple[str, ...] = (),
                  noted: tuple[notes.Note, ...] = (),
                  progress: bool = False, room: np.ndarray | None = None, store: Store = MEMORY,
                  share: processes.Share | None = None, class_weight: Any = None,
                  once: Callable[[str, Callable[[], PyTree]], PyTree] = lambda _, make: make(),
                  **driver: Any) -> Scorer:
    """Trains a private scorer of records, with settings by `defaults`.

    Args:
      keys: of this training alone, see `release_keys.training_keys`.
      rows: of every person.
      schema: what the features are made of.
      chosen: settings; `population` must be the number of persons.
      groups: of the records, of the sizes that `chosen` is for.
      unit: what one record is, for the statement.
      assumed: for the statement.
      noted: notes from before the training, which the scorer keeps.
      progress: whether to show a bar.
      room: where the scaled features go, `[n, rows, d + 1]`, and `rows.x` lie; labels are then
        overwritten, too. None: new memory.
      store: of scores and of what is made of them.
      share: of the records on a mesh, those that `rows` are; None: they are all. Not for groups.
      class_weight: of other labels and of positive ones, public numbers above 0; "balanced" for
        those that the released share of positives makes equal; None for equal ones.
      once: `once(name, make)` is what `make` releases, or has released before; see `Unfinished`.
      **driver: for `fit`, but no ledger.

    Raises:
      ValueError: for a ledger, before anything is released.
    """
    if driver.get("ledger") is not None:
        raise ValueError("ledger=... would be charged for the training alone, and not for the "
                         "means that are released before it: ledger.reserve(defaults(...)"
                         ".mechanism(), name=...) beforehand pays for both, and leave it out here.")
    place: Callable[[PyTree], PyTree] = jax.device_put if share is None else share.place
    by = Moments.from_json(once("moments", lambda: statistics.release_moments(
        keys.moments, chosen.moments, rows.x if room is None else room, rows.y, rows.weight, schema,
        chosen.standardise, place).to_json()))
    floor = chosen.floor if chosen.standardise else None
    kind = labels.of(schema)
    weight, start_by = rows.weight, by
    if class_weight is not None:
        weight, start_by = records.weighted(rows, by, class_weight)
    y = in_blocks(lambda y: kind.target(y, by, chosen.label_floor),
                  rows.y if room is not None else np.empty(rows.y.shape, np.float32), rows.y)
    data: PyTree = (scaled(rows.x, by, floor, room), y, np.asarray(weight, np.float32))
    problem: Any = kind.problem
    start = kind.start(rows.x.shape[-1], start_by)
    if chosen.method == "average":
        own = place(data)  # where the host's memory is the device's, as it lies
    else:
        assert groups is not None
        start = np.zeros_like(start)
        problem, own = records.GROUP_LOGISTIC, groups.arranged(data)
    alongside, hyper, of_rows = chosen.extra(), chosen.hyper, None
    if chosen.matrix is not None:
        described = chosen.matrix

        def conditioned() -> dict[str, Any]:
            second = statistics.release_second_moments(
                keys.second_moments, described, data[0], data[2], place)
            # P is saved, as another machine may have other eigenvectors in the last digits
            return {"matrix": statistics.preconditioner(second, chosen.ridge / kind.growth(by),
                                                        kind.curvature).tolist(),
                    "squares": np.diag(second).tolist()}

        steps = once("preconditioner", conditioned)
        hyper = dataclasses.replace(hyper, preconditioner=Saddle(
            np.array(steps["matrix"], np.float32), None))
        of_rows = statistics.variances(steps["squares"], by, floor, described)
    with programs.briefly(programs.is_brief(own, start, hyper.iterations)):
        done = fit(keys.rounds, Saddle(jax.device_put(start), ()), own, hyper, chosen.algorithm,
                   problem, delta=chosen.delta, alongside=alongside, progress=progress, **driver)
    w = np.asarray(done.state.average.w, np.float64)
    if chosen.line is not None:
        line, scores = chosen.line, store.zeros(*y.shape)
        for part in (slice(None),) if share is None else share.shards(len(y)):
            in_blocks(lambda x: x @ np.float32(w), scores[part], data[0][part])
        shift, tilt = once("line", lambda: labels.release_line(
            keys.calibration, line, scores, data[1], data[2], start_by.prior, store, place))
        w *= tilt
        w[-1] += shift
    released = None
    if chosen.losses is not None:
        assert groups is not None
        losses, by_group = chosen.losses, groups
        released = once("losses", lambda: records.losses_of(
            keys.group_losses, losses, w, data, by_group))
    stated = statement(chosen.algorithm, chosen.hyper, done.state, delta=chosen.delta,
                       alongside=alongside, unit=unit, assumed=(
                           *assumed, *(() if groups is None else groups.assumed),
                           chosen.explain()), people=chosen.people)
    w = kind.finished(w, by, chosen.label_floor)
    mistakes = notes.after(schema, by, statistics.deviation(chosen.moments),
                           features=chosen.standardise, of_rows=of_rows)
    notes.warn(mistakes)
    return Scorer(schema, w, by, floor, stated.to_json(), chosen.mechanism(), released,
                  (*noted, *mistakes))


# --- from a table ---


PUBLIC = ("Ranges, categories and values of the schema are public: they were not read off this "
           "table.")


def train(frame: Any, schema: Schema, *, epsilon: float, delta: float,
          key: jax.Array | None = None, progress: bool = False, method: str | None = None,
          allow_large_delta: bool = False, people: int = 1, folder: Any = None,
          ledger: Ledger | None = None, name: str | None = None, unit: str | None = None,
          mesh: Mesh | None = None, shards: int | None = None, certify: float | None = None,
          **driver: Any) -> Scorer:
    """Trains a private scorer of a table, by `defaults` and without another option.

    Where the schema has groups that contain the label, the largest loss of a group is made small.
    Where its groups do not, the scorer is that of the average record, and `group_losses` has the
    groups' noisy mean losses. Where it has charged columns, a tenth of the budget pays for their
    ranges.

    With `folder`, a run that was stopped goes on from there, when it is called again with the same
    arguments and rows: it ends with the scorer that it would have ended with, and spends nothing
    twice. The folder holds the key of the run, a secret, until it is deleted: with it the noise can
    be subtracted. Called once more after its end, the same run returns the same scorer.

    With `ledger`, everything that training releases is charged before any of it is released, or the
    run is refused. A run that goes on in its folder is charged once. A run that was stopped stays
    charged.

    Args:
      frame: a data frame of pandas, polars or pyarrow, a dictionary of columns, or `files.Frames`.
      schema: what is public about it.
      epsilon: of everything that is released, replace-one; of a row, or of a person where the
        schema has an owner.
      delta: in (0, 1), below 1/n.
      key: root key, a secret; None: that of `folder`, or drawn from the system's entropy.
      progress: whether to show a bar.
      method: "average", of all records; "balanced", every group has the same weight; "minimax",
        balanced at first, then the largest loss of a group is made small. None: as `defaults`.
      allow_large_delta: whether delta may be 1/n or more.
      people: k, if any k rows may be of one person and the table has no column of owners; a ledger
        must have the same number.
      folder: for a run that may be stopped, one for each run; None: nothing is saved.
      ledger: the budget of everything that is released about this table. Its unit must be "one
        record" if rows are records, "any k records" for `people` of them, "one person" if the
        schema has an owner, or `unit`.
      name: of the run in the ledger; None for "run 1" and so on.
      unit: what one record is, for the statement: your claim about the table. None for "one row",
        or for the person whose rows they are.
      mesh: devices, with an axis "data"; None for one device. Where it spans several processes,
        all of them call this with equal arguments, `frame` of the same Parquet file; each reads its
        own rows, and the ledger is that of the first process. See `processes`.
      shards: number of parts that rows are cut into, a multiple of the devices: on any number of
        devices that divides it training ends with the same scorer, bit for bit. Not for owners,
        groups or ranges that are charged.
      certify: share of each group's rows to hold out for a certificate of the worst group's share
        of wrong predictions, `Scorer.certificate`, at no further epsilon; None for none.
      **driver: for `fit`, such as `callback`.

    Raises:
      ValueError: for numbers out of range, a delta at or above 1/n that is not allowed, a table
        without a declared column, a group without rows, a method that is unknown or needs groups, a
        folder of another run, one that another user owns or may write to or that another process
        has, for owners and `people`, a certificate without groups or with owners, or a ledger that
        refuses the run or is for another number of people.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> table = {"age": rng.uniform(18, 90, 400)}
        >>> table["ill"] = (table["age"] + rng.normal(0, 9, 400) > 54).astype(int)
        >>> schema = jmm.tables.Schema({"age": jmm.tables.Number(18, 90)}, "ill", "1")
        >>> scorer = jmm.tables.train(table, schema, epsilon=4.0, delta=1e-4)
        >>> scorer.decision_function(table).shape, scorer.statement.epsilon <= 4
        ((400,), True)
    """
    check_people(people, schema.owner is not None)
    share = None
    if mesh is None or (shards is None and len(agreement.processes(mesh)) == 1):
        driver |= {"mesh": mesh, "shards": shards}
        if ledger is not None and jax.process_count() > 1:
            raise ValueError("Several processes would each charge the run: give the mesh of all of "
                             "them, and the first one charges it.")
    else:
        share, frame = processes.share_of(frame, schema, mesh, shards, folder)
    table = records.encoded(frame, schema, progress, 0 if share is None else share.room)
    index = None if table.owners is None else records.by_person(
        len(table.labels), table.owners, schema.most)
    groups, held = _groups_of(table, schema, index), table
    of = certified.apart(groups, certify, epsilon=epsilon, delta=delta,
                         persons=index is not None or people > 1)
    if of is not None:
        held, table, groups = (table.part(of.held.rows), table.part(of.others),
                               groups.part(of.others))  # type: ignore[union-attr]
    population = share.population if share is not None else len(
        table.labels if index is None else index)
    notes.check_delta(delta, population, allow_large_delta)
    paid = statistics.ranges_query(population, schema, epsilon, delta, people)
    chosen = rule.defaults(population, schema, epsilon=epsilon, delta=delta, method=method,
                           sizes=() if groups is None else groups.sizes, by_label=schema.by_label,
                           alongside=paid, people=people)
    noted = (*notes.before(schema, population, columns_of(frame), owned=people > 1),
             *chosen.notes())
    notes.warn(noted)
    values: PyTree = None
    if table.charged is not None:
        values = records.records(table.charged, table.labels, table.owners, schema.most)
    settings = _settings(chosen, mesh, share)
    if share is not None:
        key = share.agreed(key, schema, frame, f"{settings} for {epsilon!r}, {delta!r}, {method!r}")
    with unfinished.Unfinished(folder, key) as job:
        job.promise((table.x, table.labels, None if index is None else index.astype(np.int32),
                     None if groups is None else groups.number.astype(np.int32),
                     None if values is None else values.x.view(np.uint32),
                     None if of is None else of.read(held)),
                    settings, schema=schema.to_dict(), epsilon=float(epsilon), delta=float(delta),
                    method=method, certify=certify)

        def reserved() -> books.Entry | None:
            if ledger is None:
                return None
            ledger.check_same("The training", people=people)
            return job.reserve(
                ledger, certified.together(chosen.mechanism(), of), name=name,
                unit=in_ledger(ledger, schema, unit, people),
                delta=delta if ledger.filter == "basic" and delta < ledger.delta else None)

        entry = reserved() if share is None else processes.in_first(reserved)
        keys = release_keys.training_keys(job.key, bool(paid))
        saved = [PUBLIC, *([] if schema.owner is None else [identity.NAMES])]
        if paid:
            saved.append(f"Ranges of {', '.join(schema.charged)} were released, for a tenth of the "
                         "budget.")
            ends = job.once("ranges", lambda: [[x.low, x.high] for x in statistics.release_ranges(
                keys.ranges, paid[0], values.x, values.weight)])
            released = statistics.with_ranges(schema, [Number(*one) for one in ends])
            held = held if of is None else records.with_charged(held, schema, released)
            table, schema = records.with_charged(table, schema, released), released
        room = table.x[:, None] if index is None else table.store.zeros(
            *index.shape, schema.width + 1)
        rows = records.records(table.x[:, :-1], table.labels, table.owners, schema.most,
                                 out=room[..., :-1], store=table.store)
        if share is not None:
            rows.weight[share.count:] = 0
        scorer = train_records(
            keys, rows, schema, chosen, groups=groups, unit=unit or unit_of(schema, people),
            assumed=tuple(saved), noted=noted, progress=progress, once=job.once,
            room=room, store=table.store, share=share,
            **job.driver(rows.x.size, chosen.hyper.iterations), **driver)
        if share is not None:  # processors of several kinds may round differently
            agreement.agree(share.mesh, scorer=scorer.weights)
        if of is not None:  # by a key of its own, again the same if the run goes on
            scorer = certified.certified(
                keys.certificate, scorer, held.x[:, :-1], held.labels, of,
                unit=unit or unit_of(schema, people))
        if entry is not None:
            entry.close()
        return scorer


def _groups_of(table: records.Table, schema: Schema, index: Any) -> records.Groups | None:
    """Returns the groups of the records, if the schema has any."""
    if table.groups is None:
        return None
    groups = records.Groups(table.groups, schema.group_values)
    if schema.by_label:
        groups = groups.cut(table.labels)
    return groups if index is None else dataclasses.replace(
        groups, number=records.group_of_persons(groups.number, index))


def check_people(people: int, owned: bool) -> None:
    """Refuses a number of rows of one person that is none, or that owners make superfluous.

    Raises:
      ValueError: naming both.
    """
    checks.count("people", people)
    if people > 1 and owned:
        raise ValueError(f"people={people} is for rows whose owners are not known: where owners "
                         "are given, a person is one record. Leave one of them out.")


def unit_of(schema: Schema, people: int = 1) -> str:
    """Returns what one record is, or whose any `people` are, where the caller does not say."""
    if schema.owner is None:
        return "one row" if people == 1 else "one person"
    return f"one person, the first {schema.most} rows of whom are read"


def in_ledger(ledger: Ledger, schema: Schema, unit: str | None, people: int = 1) -> str:
    """Returns the unit by which a ledger compares a run with its own."""
    same = "one person" if schema.owner is not None else identity.unit_of(people)
    return ledger.unit if unit is None and ledger.unit == same else unit or unit_of(schema, people)


def _settings(chosen: rule.Defaults, mesh: Any, share: processes.Share | None) -> str:
    """Prints all settings that decide what is released, and how it is rounded."""
    settings = re.sub(r" at 0x[0-9a-f]+", "", repr(chosen))  # functions, by their names
    where = dict(mesh.shape) if mesh is not None else "one device"
    return (f"{settings} on {where if share is None else share}, compiled briefly up to "
            f"{programs.BRIEF_NUMBERS} numbers")
