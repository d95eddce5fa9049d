"""A private linear scorer: what it is trained by, and how it scores, is saved and loaded."""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.accounting import Statement, statement
from jaxminimax.base import own_files
from jaxminimax.base.types import Problem, PyTree, Saddle
from jaxminimax.drivers.long_runs import fit
from jaxminimax.mechanism.description import Mechanism
from jaxminimax.tables import groups as grouping
from jaxminimax.tables import moments
from jaxminimax.tables.groups import Groups
from jaxminimax.tables.moments import Moments
from jaxminimax.tables.records import Records, scaled
from jaxminimax.tables.rule import Defaults
from jaxminimax.tables.schema import Schema

FORMAT = 1
MODEL = "model.json"  # of a folder that the command writes


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
      group_losses: noisy mean losses of the groups, of a scorer that was trained without them.
      notes: what to think of before relying on it; not saved.

    Examples:
        >>> from jaxminimax.tables.moments import Moments
        >>> schema = jmm.tables.Schema({"age": jmm.tables.Number(18, 90)}, "ill", "1")
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(9.0, 9.0),
        ...                   population=100)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=1)
        >>> said = jmm.statement(jmm.sgda, hyper, delta=1e-6)
        >>> scorer = jmm.tables.Scorer(schema, np.array([2.0, 0.5]),
        ...                            Moments(np.zeros(1), np.ones(1), 0.5), None, said)
        >>> scorer.decision_function({"age": [18, 54, 90]}).tolist()
        [-1.5, 0.5, 2.5]
    """

    schema: Schema
    weights: np.ndarray
    moments: Moments
    floor: float | None
    statement: Statement
    described: Mechanism | None = None
    group_losses: dict[str, float] | None = None
    notes: tuple[str, ...] = ()

    def decision_function(self, frame: Any) -> np.ndarray:
        """Log-odds of the positive label, `[n]`, for every row of a table."""
        rows = scaled(self.schema.features(frame), self.moments, self.floor)
        return rows.astype(np.float64) @ self.weights

    def save(self, path: Any) -> None:
        """Writes a JSON file."""
        record = {"format": FORMAT, "schema": self.schema.to_dict(),
                  "weights": self.weights.tolist(), **self.moments.to_json(),
                  "floor": self.floor, "statement": self.statement.to_json(),
                  "group_losses": self.group_losses}
        own_files.write(path, json.dumps(record, indent=1))

    @classmethod
    def load(cls, path: Any) -> Self:
        """Reads what `save` wrote.

        Args:
          path: of the file, or of a folder that `python -m jaxminimax train --out` wrote.

        Raises:
          ValueError: for another file, or none.
        """
        path = os.path.join(path, MODEL) if os.path.isdir(path) else path
        if not os.path.isfile(path):
            raise ValueError(f"{path}: there is no saved scorer; train --out FOLDER writes one.")
        with open(path, encoding="utf-8") as file:
            try:
                record = json.load(file)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path} is no saved scorer: {error}.") from None
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"{path} is no saved scorer of format {FORMAT}.")
        return cls(Schema.from_dict(record["schema"]), np.array(record["weights"]),
                   Moments.from_json(record), record["floor"],
                   Statement.from_json(record["statement"]),
                   group_losses=record.get("group_losses"))


def refuse_ledger(driver: Mapping[str, Any]) -> None:
    """Refuses a ledger among the arguments for `fit`.

    Raises:
      ValueError: if there is one.
    """
    if driver.get("ledger") is not None:
        raise ValueError("ledger=... would be charged for the training alone, and not for the "
                         "means that are released before it: ledger.reserve(defaults(...)"
                         ".mechanism(), name=...) beforehand pays for both, and leave it out here.")


def train_records(key: jax.Array, rows: Records, schema: Schema, chosen: Defaults, *,
                  groups: Groups | None = None, unit: str = "one row",
                  assumed: tuple[str, ...] = (), progress: bool = False,
                  once: Callable[[str, Callable[[], PyTree]], PyTree] = lambda _, make: make(),
                  **driver: Any) -> Scorer:
    """A private scorer of records, with settings by `defaults`.

    Args:
      key: root key, a secret, for this call only.
      rows: of every person.
      schema: what the features are made of.
      chosen: settings; `population` must be the number of persons.
      groups: of the records, of the sizes that `chosen` is for.
      unit: what one record is, for the statement.
      assumed: for the statement.
      progress: whether to show a bar.
      once: `once(name, make)` is what `make` releases, or has released before; see `Unfinished`.
      **driver: for `fit`, but no ledger.

    Raises:
      ValueError: for a ledger, before anything is released.
    """
    refuse_ledger(driver)
    first, second = jax.random.split(key)
    by = Moments.from_json(once("moments", lambda: moments.released(
        first, chosen.moments, rows.x, rows.y, rows.weight,
        schema if chosen.standardise else None).to_json()))
    floor = chosen.floor if chosen.standardise else None
    data: PyTree = (scaled(rows.x, by, floor), rows.y, rows.weight.astype(np.float32))
    start = np.zeros(rows.x.shape[-1] + 1, np.float32)
    problem: Any = LOGISTIC
    own = data
    if chosen.method == "average":
        start[-1] = np.log(by.prior / (1 - by.prior))
    else:
        assert groups is not None
        problem, own = grouping.LOGISTIC, groups.arranged(data)
    beside = chosen.beside()
    done = fit(second, Saddle(jnp.asarray(start), ()), own, chosen.hyper, chosen.algorithm,
               problem, delta=chosen.delta, alongside=beside, progress=progress, **driver)
    w = np.asarray(done.state.average.w, np.float64)
    found = None
    if chosen.losses is not None:
        assert groups is not None
        losses, by_group = chosen.losses, groups
        found = once("losses", lambda: grouping.losses_of(
            jax.random.fold_in(first, 1), losses, w, data, by_group))
    said = statement(chosen.algorithm, chosen.hyper, done.state, delta=chosen.delta,
                     alongside=beside, unit=unit, assumed=(
                         *assumed, *(() if groups is None else groups.assumed), chosen.explain()))
    return Scorer(schema, w, by, floor, said, chosen.mechanism(), found, chosen.notes())
