"""A private linear scorer of a table: how it scores, is saved and loaded; in NumPy, without JAX."""

import dataclasses
import json
import math
import os
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from jaxminimax.base import own_files
from jaxminimax.tables.scaling import Moments, spread
from jaxminimax.tables.schema import Schema

if TYPE_CHECKING:
    from jaxminimax.accounting import Statement
    from jaxminimax.mechanism.description import Mechanism

FORMAT = 2
MODEL = "model.json"  # of a folder that the command writes
FORMULA = ("x_j = (value_j - centre_j) / scale_j; "
           "score = intercept + sum_j weight_j x_j / max(1, sqrt(sum_j x_j^2)); "
           "probability = 1 / (1 + exp(-score))")


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
        cells, (centre, scale) = self.schema.read(frame), spread(self.moments, self.floor)
        total, squares, first = np.float64(0), np.float64(0), 0
        for name, column in self.schema.columns.items():  # one by one: no matrix of all features
            own = slice(first, first := first + column.width)
            x = (column.encode(cells[name]) - centre[own]) / scale[own]
            total, squares = total + x @ self.weights[own], squares + np.sum(x * x, 1)
        return self.weights[-1] + total / np.sqrt(np.maximum(squares, 1.0))

    def predict_proba(self, frame: Any) -> np.ndarray:
        """Returns the probabilities of another label and of the positive one, `[n, 2]`."""
        positive = self.probability(self.decision_function(frame))
        return np.stack([1 - positive, positive], 1)

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """Returns 1 / (1 + e^-s), the probability of the positive label, for each score s."""
        return (1 + np.tanh(scores / 2)) / 2

    def to_json(self) -> dict[str, Any]:
        """Returns the record of a model file, as the page on serving describes it."""
        centre, scale = spread(self.moments, self.floor)
        features = [one | {"centre": a, "scale": b, "weights": [w]} for one, a, b, w in zip(
            self.schema.described(), centre.tolist(), scale.tolist(), self.weights[:-1].tolist(),
            strict=True)]
        return {"format": FORMAT,
                "label": {"kind": "binary", "name": self.schema.label,
                          "positive": self.schema.positive},
                "formula": FORMULA, "features": features,
                "intercepts": self.weights[-1:].tolist(), "schema": self.schema.to_dict(),
                "released": {**self.moments.to_json(), "floor": self.floor},
                "group_losses": self.group_losses, "statement": self.stated}

    def linear(self) -> tuple[np.ndarray, float]:
        """Returns coefficients `[d]` in the units of the columns, and the intercept.

        For columns c inside their ranges the values are slope_j c_j + offset_j, so with centres and
        scales as in the model's file and b the last weight the score is

            b + (coefficients . c + intercept - b) / max(1, |x|)

        with x_j = (value_j - centre_j) / scale_j. For rows with |x| <= 1 this is coefficients . c +
        intercept. A column with `log` counts by log(1 + c), a value of a category by 0 or 1.
        """
        slope, offset = np.array(list(map(_line, self.schema.described()))).T
        centre, scale = spread(self.moments, self.floor)
        w = self.weights[:-1] / scale
        return w * slope, float(self.weights[-1] + w @ (offset - centre))

    def save(self, path: Any) -> None:
        """Writes a JSON file."""
        own_files.write(path, json.dumps(self.to_json(), indent=1))

    @classmethod
    def load(cls, path: Any) -> Self:
        """Reads what `save` wrote, in this version or in the one before.

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
                return cls._of(json.load(file))
            except json.JSONDecodeError as error:
                raise ValueError(f"{path} is no saved scorer: {error}.") from None
            except (KeyError, TypeError) as error:
                raise ValueError(f"{path} is no saved scorer of format {FORMAT} or 1: {error}"
                                 ".") from None

    @classmethod
    def _of(cls, record: Any) -> Self:
        """Makes the scorer of a record, of format 1 if it says so."""
        if record["format"] == 1:  # had the scaling's numbers at the top, and weights without names
            released, weights = record, record["weights"]
        elif record["format"] == FORMAT and record["label"]["kind"] == "binary":
            released = record["released"]
            weights = [*(x for one in record["features"] for x in one["weights"]),
                       *record["intercepts"]]
        else:
            raise KeyError("format")
        return cls(Schema.from_dict(record["schema"]), np.array(weights),
                   Moments.from_json(released), released["floor"], record["statement"],
                   group_losses=record.get("group_losses"))


def _line(feature: dict[str, Any]) -> tuple[float, float]:
    """Returns slope and offset of a feature's value in the unit of its column."""
    if feature["read"] != "number":
        return 1.0, 0.0
    low, high = (math.log1p(x) if feature["log"] else float(x) for x in feature["range"])
    return 2 / (high - low), -(high + low) / (high - low)
