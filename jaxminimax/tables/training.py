"""From a table and its public schema to a private scorer: `train`."""

import dataclasses
import re
from typing import Any

import jax
import numpy as np

from jaxminimax.base.types import PyTree
from jaxminimax.tables import ranges
from jaxminimax.tables.columns import Number, as_numbers
from jaxminimax.tables.groups import Groups
from jaxminimax.tables.records import by_person, group_of_persons, records
from jaxminimax.tables.rule import Defaults, defaults
from jaxminimax.tables.schema import Schema
from jaxminimax.tables.scorer import Scorer, refuse_ledger, train_records
from jaxminimax.tables.unfinished import Unfinished

_PUBLIC = ("Ranges, categories and values of the schema are public: they were not read off this "
           "table.")


def train(frame: Any, schema: Schema, *, epsilon: float, delta: float,
          key: jax.Array | None = None, progress: bool = False, method: str | None = None,
          folder: Any = None, **driver: Any) -> Scorer:
    """A private scorer of a table, by `defaults` and without another option.

    Where the schema has groups that contain the label, the largest loss of a group is made small.
    Where its groups do not, the scorer is that of the average record, and `group_losses` has the
    groups' noisy mean losses. Where it has charged columns, a tenth of the budget pays for their
    ranges.

    With `folder`, a run that was stopped goes on from there, when it is called again with the same
    arguments and rows: it ends with the scorer that it would have ended with, and spends nothing
    twice. The folder holds the key of the run, a secret, until it is deleted: with it the noise can
    be subtracted. Called once more after its end, the same run returns the same scorer.

    Args:
      frame: a data frame of pandas, polars or pyarrow, or a dictionary of columns.
      schema: what is public about it.
      epsilon: of everything that is released, replace-one; of a row, or of a person where the
        schema has an owner.
      delta: in (0, 1).
      key: root key, a secret; None: that of `folder`, or drawn from the system's entropy.
      progress: whether to show a bar.
      method: as in `defaults`.
      folder: for a run that may be stopped, one for each run; None: nothing is saved.
      **driver: for `fit`, such as `callback`, but no ledger.

    Raises:
      ValueError: for numbers out of range, a table without a declared column, a group without rows,
        a folder of another run, one that another user owns or may write to or that another process
        has, or a ledger.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> table = {"age": rng.uniform(18, 90, 400)}
        >>> table["ill"] = (table["age"] + rng.normal(0, 9, 400) > 54).astype(int)
        >>> schema = jmm.tables.Schema({"age": jmm.tables.Number(18, 90)}, "ill", "1")
        >>> scorer = jmm.tables.train(table, schema, epsilon=4.0, delta=1e-4)
        >>> scorer.decision_function(table).shape, scorer.statement.epsilon <= 4
        ((400,), True)
    """
    refuse_ledger(driver)
    owners = schema.owners(frame)
    labels = schema.labels(frame)
    index = by_person(len(labels), owners, schema.most)
    groups = None
    if schema.groups is not None:
        groups = Groups(schema.group_of(frame), schema.group_values)
        if schema.by_label:
            groups = groups.cut(labels)
        groups = dataclasses.replace(groups, number=group_of_persons(groups.number, index))
    paid = ranges.paid(len(index), schema, epsilon, delta)
    chosen = defaults(len(index), schema, epsilon=epsilon, delta=delta, method=method,
                      sizes=() if groups is None else groups.sizes, by_label=schema.by_label,
                      alongside=paid)
    told = schema.told()
    features = None if told is None else told.features(frame)
    values: PyTree = None
    if paid:
        cells = [as_numbers(schema.cells(frame, name)) for name in schema.charged]
        values = records(np.stack(cells, -1), labels, owners, schema.most)
    with Unfinished(folder, key) as job:
        job.promise((features, labels, index.astype(np.int32),
                     None if groups is None else groups.number.astype(np.int32),
                     None if values is None else values.x.view(np.uint32)),
                    _settings(chosen, driver.get("mesh")),
                    schema=schema.to_dict(), epsilon=float(epsilon), delta=float(delta),
                    method=method)
        root, known = job.key, [_PUBLIC]
        if paid:
            known.append(f"Ranges of {', '.join(schema.charged)} were released, for a tenth of the "
                         "budget.")
            root = jax.random.fold_in(job.key, 0)
            found = job.once("ranges", lambda: [[one.low, one.high] for one in ranges.released(
                jax.random.fold_in(job.key, 1), paid[0], values.x, values.weight)])
            schema = ranges.within(schema, [Number(*one) for one in found])
            features = schema.features(frame)
        assert features is not None
        rows = records(features, labels, owners, schema.most)
        unit = "one row" if schema.owner is None else (
            f"one person, the first {schema.most} rows of whom are read")
        return train_records(root, rows, schema, chosen, groups=groups, unit=unit,
                             assumed=tuple(known), progress=progress, once=job.once,
                             **job.driver(rows.x.size, chosen.hyper.iterations), **driver)


def _settings(chosen: Defaults, mesh: Any) -> str:
    """All that decides what is released, but the rows, and how it is rounded."""
    told = re.sub(r" at 0x[0-9a-f]+", "", repr(chosen))  # functions, by their names
    return f"{told} on {'one device' if mesh is None else dict(mesh.shape)}"
