"""A private linear scorer of a table: train, score, save, load."""

import dataclasses
import json
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.accounting import Statement, statement
from jaxminimax.algorithms import sgda
from jaxminimax.base.types import Problem, PyTree, Saddle
from jaxminimax.drivers.long_runs import fit
from jaxminimax.mechanism import Mechanism
from jaxminimax.noise import secret_key
from jaxminimax.tables import moments
from jaxminimax.tables.moments import Moments
from jaxminimax.tables.records import Records, balanced, by_person, records, scaled
from jaxminimax.tables.rule import Defaults, defaults
from jaxminimax.tables.schema import Schema

FORMAT = 1


def _gradient(z: Saddle, record: tuple[jax.Array, jax.Array, jax.Array]) -> Saddle:
    """Of the mean logistic loss over a person's rows: sum_k weight_k (sigma(x_k w) - y_k) x_k."""
    x, y, weight = record
    return Saddle((weight * (jax.nn.sigmoid(x @ z.w) - y)) @ x, None)


LOGISTIC = Problem(operator=_gradient)


@dataclasses.dataclass(frozen=True)
class Scorer:
    """A trained scorer: all of it is private output, and may be published.

    Attributes:
      schema: of the table.
      weights: of the scaled features, and last the intercept's, `[d + 1]`.
      moments: what the features are scaled by.
      floor: least variance that a feature is divided by; None: features are not scaled.
      statement: what training cost.
      described: what was released; None of one that was read from a file.
    """

    schema: Schema
    weights: np.ndarray
    moments: Moments
    floor: float | None
    statement: Statement
    described: Mechanism | None = None

    def decision_function(self, frame: Any) -> np.ndarray:
        """Log-odds of the positive label, `[n]`, for every row of a table."""
        rows = scaled(self.schema.features(frame), self.moments, self.floor)
        return rows.astype(np.float64) @ self.weights

    def save(self, path: Any) -> None:
        """Writes a JSON file."""
        record = {"format": FORMAT, "schema": self.schema.to_dict(),
                  "weights": self.weights.tolist(), "mean": self.moments.mean.tolist(),
                  "second": self.moments.second.tolist(), "prior": self.moments.prior,
                  "floor": self.floor, "statement": self.statement.to_json()}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)

    @classmethod
    def load(cls, path: Any) -> Self:
        """Reads what `save` wrote.

        Raises:
          ValueError: for another file.
        """
        with open(path, encoding="utf-8") as file:
            try:
                record = json.load(file)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path} is no saved scorer: {error}.") from None
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"{path} is no saved scorer of format {FORMAT}.")
        return cls(Schema.from_dict(record["schema"]), np.array(record["weights"]),
                   Moments(np.array(record["mean"]), np.array(record["second"]), record["prior"]),
                   record["floor"], Statement.from_json(record["statement"]))


def train_records(key: jax.Array, rows: Records, schema: Schema, chosen: Defaults, *,
                  importance: np.ndarray | None = None, unit: str = "one row",
                  assumed: tuple[str, ...] = (), progress: bool = False,
                  **driver: Any) -> Scorer:
    """A private scorer of records, with settings by `defaults`.

    Args:
      key: root key, a secret, for this call only.
      rows: of every person.
      schema: what the features are made of.
      chosen: settings; `population` must be the number of persons.
      importance: of every row, `[n, rows]`, at most what `chosen.hyper`'s clip norm is for; None:
        all 1.
      unit: what one record is, for the statement.
      assumed: for the statement.
      progress: whether to show a bar.
      **driver: for `fit`, but no ledger.

    Raises:
      ValueError: for a ledger, before anything is released.
    """
    if driver.get("ledger") is not None:
        raise ValueError("ledger=... would be charged for the training alone, and not for the "
                         "means that are released before it: ledger.reserve(defaults(...)"
                         ".mechanism(), name=...) beforehand pays for both, and leave it out here.")
    first, second = jax.random.split(key)
    by = moments.released(first, chosen.moments, rows.x, rows.y, rows.weight,
                          schema if chosen.standardise else None)
    floor = chosen.floor if chosen.standardise else None
    weight = rows.weight if importance is None else rows.weight * importance
    data: PyTree = (scaled(rows.x, by, floor), rows.y, weight.astype(np.float32))
    start = np.zeros(rows.x.shape[-1] + 1, np.float32)
    start[-1] = np.log(by.prior / (1 - by.prior)) if importance is None else 0.0
    beside = (*chosen.alongside, chosen.moments)
    done = fit(second, Saddle(jnp.asarray(start), ()), data, chosen.hyper, sgda, LOGISTIC,
               delta=chosen.delta, alongside=beside, progress=progress, **driver)
    said = statement(sgda, chosen.hyper, done.state, delta=chosen.delta, alongside=beside,
                     unit=unit, assumed=(*assumed, chosen.explain()))
    return Scorer(schema, np.asarray(done.state.average.w, np.float64), by, floor, said,
                  chosen.mechanism())


def train(frame: Any, schema: Schema, *, epsilon: float, delta: float,
          key: jax.Array | None = None, progress: bool = False, **driver: Any) -> Scorer:
    """A private scorer of a table, by `defaults` and without another option.

    Where the schema has groups, every group has the same weight in the loss.

    Args:
      frame: a data frame, or a dictionary of columns.
      schema: what is public about it.
      epsilon: of everything that is released, replace-one; of a row, or of a person where the
        schema has an owner.
      delta: in (0, 1).
      key: root key, a secret; None: drawn from the system's entropy.
      progress: whether to show a bar.
      **driver: for `fit`, such as `checkpoint`, but no ledger.

    Raises:
      ValueError: for numbers out of range, a table without a declared column, or a ledger.
    """
    owners = None if schema.owner is None else schema.cells(frame, schema.owner)
    rows = records(schema.features(frame), schema.labels(frame), owners, schema.most)
    sizes: tuple[int, ...] = ()
    importance = None
    if schema.groups is not None:
        group = schema.group_of(frame)
        sizes = tuple(int(n) for n in np.bincount(group, minlength=len(schema.group_values) + 1))
        if 0 in sizes[:-1]:
            empty = schema.group_values[sizes.index(0)]
            raise ValueError(f"group {empty!r} has no row in the table: take it out of [groups].")
        sizes = sizes[:-1]
        importance = balanced(group, sizes)[by_person(len(group), owners, schema.most)]
    chosen = defaults(len(rows.y), schema, epsilon=epsilon, delta=delta, sizes=sizes)
    unit = "one row" if schema.owner is None else (
        f"one person, the first {schema.most} rows of whom are read")
    known = ["Ranges, categories and values of the schema are public: they were not read off this "
             "table."]
    if sizes:
        known.append("Who is in which group is public, and so are the groups' sizes.")
    return train_records(secret_key() if key is None else key, rows, schema, chosen,
                         importance=importance, unit=unit, assumed=tuple(known), progress=progress,
                         **driver)
