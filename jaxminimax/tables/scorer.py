"""A private linear scorer of a table: how it scores, is saved and loaded; in NumPy, without JAX."""

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from jaxminimax.base import own_files
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
      notes: what to think of before relying on it; not saved.

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
    notes: tuple[str, ...] = ()

    @property
    def statement(self) -> "Statement":
        """The privacy statement of the training."""
        from jaxminimax.accounting import Statement  # loads JAX

        return Statement.from_json(self.stated)

    def decision_function(self, frame: Any) -> np.ndarray:
        """Returns the log-odds of the positive label, `[n]`, for every row of a table."""
        rows = scaled(self.schema.features(frame), self.moments, self.floor)
        return rows.astype(np.float64) @ self.weights

    def predict_proba(self, frame: Any) -> np.ndarray:
        """Returns the probabilities of another label and of the positive one, `[n, 2]`.

        The second is 1 / (1 + e^-score). Where training gave classes or groups of unequal sizes
        equal weights, it is the probability among records with these weights.
        """
        positive = 1 / (1 + np.exp(-self.decision_function(frame)))
        return np.stack([1 - positive, positive], 1)

    def linear(self) -> tuple[np.ndarray, float]:
        """Returns coefficients `[d]` in the units of the columns, and the intercept.

        A row's features are x_j = slope_j c_j + offset_j for the values c_j in their ranges, see
        `Schema.lines`; u_j = (x_j - mean_j) / (deviation_j sqrt(d)); and the score is
        b + w . u / max(1, |u|), b the last weight. So for |u| <= 1 it is coefficients . c +
        intercept, and for a longer row its difference from b is divided by |u|.
        """
        slope, offset = self.schema.lines()
        mean, deviation = self.moments.scale(self.floor)
        w = self.weights[:-1] / (deviation * np.sqrt(len(mean)))
        return w * slope, float(self.weights[-1] + w @ (offset - mean))

    def save(self, path: Any) -> None:
        """Writes a JSON file."""
        record = {"format": FORMAT, "schema": self.schema.to_dict(),
                  "weights": self.weights.tolist(), **self.moments.to_json(),
                  "floor": self.floor, "statement": self.stated,
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
                   record["statement"], group_losses=record.get("group_losses"))
