"""A private linear scorer of a table: how it scores, is saved and loaded; in NumPy, without JAX."""

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from jaxminimax.base import own_files
from jaxminimax.tables.notes import Note
from jaxminimax.tables.scaling import Moments, scaled
from jaxminimax.tables.schema import Schema

if TYPE_CHECKING:
    from jaxminimax.accounting import Statement
    from jaxminimax.mechanism.description import Mechanism

FORMAT = 1
MODEL = "model.json"  # of a folder that the command writes


@dataclasses.dataclass(frozen=True)
class Scorer:
    """A trained scorer: all of it is private output, and may be published.

    Attributes:
      schema: of the table.
      weights: of the scaled features, and last the intercept's, `[d + 1]`.
      moments: what the features are scaled by.
      floor: least variance that a feature is divided by; None: features are not scaled.
      stated: what training cost, `statement.to_json()`.
      described: what was released; None of one that was read from a file.
      group_losses: noisy mean losses of the groups, of a scorer that was trained without them.
      notes: likely mistakes, from public facts and from released numbers.

    Examples:
        >>> from jaxminimax.tables.scaling import Moments
        >>> schema = jmm.tables.Schema({"age": jmm.tables.Number(18, 90)}, "ill", "1")
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(9.0, 9.0),
        ...                   population=100)
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=1)
        >>> statement = jmm.statement(jmm.sgda, hyper, delta=1e-6)
        >>> scorer = jmm.tables.Scorer(schema, np.array([2.0, 0.5]),
        ...                            Moments(np.zeros(1), np.ones(1), 0.5), None,
        ...                            statement.to_json())
        >>> scorer.decision_function({"age": [18, 54, 90]}).tolist()
        [-1.5, 0.5, 2.5]
    """

    schema: Schema
    weights: np.ndarray
    moments: Moments
    floor: float | None
    stated: dict[str, Any]
    described: "Mechanism | None" = None
    group_losses: dict[str, float] | None = None
    notes: tuple[Note, ...] = ()

    @property
    def statement(self) -> "Statement":
        """The privacy statement of the training."""
        from jaxminimax.accounting import Statement  # loads JAX

        return Statement.from_json(self.stated)

    def decision_function(self, frame: Any) -> np.ndarray:
        """Returns the log-odds of the positive label, `[n]`, for every row of a table."""
        rows = scaled(self.schema.features(frame), self.moments, self.floor)
        return rows.astype(np.float64) @ self.weights

    def save(self, path: Any) -> None:
        """Writes a JSON file."""
        record = {"format": FORMAT, "schema": self.schema.to_dict(),
                  "weights": self.weights.tolist(), **self.moments.to_json(),
                  "floor": self.floor, "statement": self.stated,
                  "group_losses": self.group_losses,
                  "notes": [note.to_json() for note in self.notes]}
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
                   record["statement"], group_losses=record.get("group_losses"),
                   notes=tuple(Note(**note) for note in record.get("notes", ())))
