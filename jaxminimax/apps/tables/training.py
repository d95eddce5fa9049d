"""Training of a private scorer of a table: `carry_out` has the order of charge and releases."""

import functools
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
from jax.sharding import Mesh

from jaxminimax.accounting import Ledger, epsilon
from jaxminimax.apps.tables import certified, linear, notes, preparation, records, statistics
from jaxminimax.apps.tables.columns import Number
from jaxminimax.apps.tables.preparation import Prepared
from jaxminimax.apps.tables.rule import defaults
from jaxminimax.apps.tables.schema import Schema, columns_of
from jaxminimax.apps.tables.scorer import Scorer
from jaxminimax.apps.tables.unfinished import Unfinished
from jaxminimax.base import checks, own_files, programs
from jaxminimax.mechanism import Sequence
from jaxminimax.releases import release_keys


def carry_out(prepared: Prepared, key: jax.Array | None, trained: Callable[[linear.Run], Scorer], *,
              ledger: Ledger | None = None, name: str | None = None, folder: Any = None,
              asked: dict[str, Any] | None = None, stop_on_notes: bool = False,
              **driver: Any) -> Scorer:
    """Charges everything, releases everything, and closes the run, in this order.

    Args:
      prepared: by `prepare`, for this training alone.
      key: root key, a secret, for this training alone; None: that of `folder`, or a new one.
      trained: `linear.train_linear` or `fair.train_fair`.
      ledger: of the data; None for none.
      name: of the run in the ledger.
      folder: for a run that may be stopped; None: nothing is saved.
      asked: arguments of the user by name, as JSON holds them; `folder` keeps them, and a training
        that goes on there must have the same.
      stop_on_notes: whether notes on released moments end it.
      **driver: for `fit`, such as `mesh`, `callback` and `progress`, which is False.

    Raises:
      ValueError: for one of several processes, a table that a training had before, a folder as
        `Unfinished`, or a ledger that refuses the run.
    """
    if jax.process_count() > 1:
        raise ValueError(f"{jax.process_count()} processes would each release the table and charge "
                         "a ledger: train in a program without jax.distributed.initialize(...), "
                         "whose own devices may be a mesh.")
    prepared.table.store.claim()
    charged = prepared.charged_rows()
    with Unfinished(folder, key) as job:
        job.promise(prepared.everything_read(charged),
                    _settings_in_words(prepared, **driver),
                    schema=prepared.schema.to_dict(), **(asked or {}))
        entry = preparation.charge(
            job, ledger, prepared.mechanism(), unit=prepared.claimed_unit,
            rows_per_owner=prepared.rows_per_owner, people=prepared.people,
            delta=prepared.settings.scaling.delta, name=name, parts=prepared.parts())
        keys = release_keys.training_keys(job.key, prepared.ranges is not None)
        schema = _with_ranges(prepared, charged, keys, job)
        rows, scaled_out = prepared.arranged_rows()
        driver = {"progress": False, **driver, **job.driver(
            rows.x.size, prepared.settings.hyper.iterations)}
        try:
            scorer = trained(linear.Run(prepared, keys, schema, rows, scaled_out, job.once, driver,
                                        stop_on_notes))
        except notes.StoppedOnNotesError as error:
            raise _stopped(prepared, entry, folder, error) from None
        if prepared.apart is not None:  # by a key of its own, again the same if the run goes on
            scorer = certified.certified(
                keys.certificate, scorer, prepared.held.x[:, :-1], prepared.held.labels,
                prepared.apart, unit=prepared.unit)
        if entry is not None:
            entry.close()
        return scorer


def _stopped(prepared: Prepared, entry: Any, folder: Any, error: Exception) -> Exception:
    """Closes a run that ended after its moments, and returns what to say of it."""
    scaling = prepared.settings.scaling
    released = (*scaling.alongside, scaling.moments)
    if entry is not None:  # a ledger takes back what was not released, where its rule can
        entry.close(None if prepared.apart is not None else SimpleNamespace(spent=len(released)))
    if folder is not None:
        own_files.remove(folder)
    cost = epsilon(Sequence(parts=released), scaling.delta, people=prepared.people)
    return type(error)(f"{error} So training ended after its moments, which have epsilon = "
                       f"{cost:.3g} at delta = {scaling.delta:g} and stay spent.")


def _with_ranges(prepared: Prepared, charged: records.Records | None,
                 keys: release_keys.TrainingKeys, job: Unfinished) -> Schema:
    """Releases ranges, encodes the cells of their columns, and returns the schema with them."""
    schema, described = prepared.schema, prepared.ranges
    if described is None or charged is None:
        return schema
    ends = job.once("ranges", lambda: [[x.low, x.high] for x in statistics.release_ranges(
        keys.ranges, described, charged.x, charged.weight)])
    released = statistics.with_ranges(schema, [Number(*range_ends) for range_ends in ends])
    for table in (prepared.table, *(() if prepared.apart is None else (prepared.held,))):
        records.encode_charged(table, schema, released)
    return released


def _settings_in_words(prepared: Prepared, mesh: Mesh | None = None, shards: int | None = None,
                       **_: Any) -> str:
    """Prints all settings that decide what is released, and how it is rounded."""
    settings = re.sub(r" at 0x[0-9a-f]+", "", repr(prepared.settings))  # functions, by their names
    place = "one device" if mesh is None else str(dict(mesh.shape))
    place += "" if shards is None else f" in {shards} shards"
    return f"{settings} on {place}, compiled briefly up to {programs.BRIEF_NUMBERS} numbers"


# --- from a table ---


def train(frame: Any, schema: Schema, *, epsilon: float, delta: float,
          key: jax.Array | None = None, progress: bool = False, method: str | None = None,
          allow_large_delta: bool = False, people: int = 1, folder: Any = None,
          ledger: Ledger | None = None, name: str | None = None, unit: str | None = None,
          mesh: Mesh | None = None, certify: float | None = None, stop_on_notes: bool = False,
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
      mesh: devices of this process, with an axis "data"; None for one device.
      certify: share of each group's rows to hold out for a certificate of the worst group's share
        of wrong predictions, `Scorer.certificate`, at no further epsilon; None for none.
      stop_on_notes: whether a note on released moments, such as on a column without a number, ends
        the training before the rest is released, for a tenth of the budget.
      **driver: for `fit`, such as `callback` and `shards`.

    Raises:
      ValueError: for numbers out of range, a delta at or above 1/n that is not allowed, a table
        without a declared column, a group without rows, a method that is unknown or needs groups, a
        folder of another run, one that another user owns or may write to or that another process
        has, for owners and `people`, a certificate without groups or with owners, or a ledger that
        refuses the run or is for another number of people.
      StoppedOnNotesError: with `stop_on_notes`, where there is a note on released moments.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> table = {"age": rng.uniform(18, 90, 400)}
        >>> table["ill"] = (table["age"] + rng.normal(0, 9, 400) > 54).astype(int)
        >>> schema = jmm.tables.Schema({"age": jmm.tables.Number(18, 90)}, "ill", "1")
        >>> scorer = jmm.tables.train(table, schema, epsilon=4.0, delta=1e-4)
        >>> scorer.decision_function(table).shape, scorer.statement.epsilon <= 4
        ((400,), True)
    """
    checks.kinds(preparation.ARGUMENTS, locals())
    preparation.check_people(people, schema.owner is not None)
    table = records.encoded(frame, schema, progress)
    prepared = preparation.prepare(
        table, schema, functools.partial(defaults, method=method), epsilon=epsilon, delta=delta,
        names=columns_of(frame), groups=table.public_groups(schema), rows_per_owner=schema.most,
        people=people, unit=unit, allow_large_delta=allow_large_delta, certify=certify,
        assumed=(preparation.PUBLIC,))
    return carry_out(prepared, key, linear.train_linear, ledger=ledger, name=name, folder=folder,
                     stop_on_notes=stop_on_notes, progress=progress, mesh=mesh, asked={
                         "epsilon": float(epsilon), "delta": float(delta), "method": method,
                         "certify": certify}, **driver)
