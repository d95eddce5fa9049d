"""A private linear scorer of a table: how it scores, its file, and `predict`; without JAX."""

import argparse
import collections
import csv
import dataclasses
import io
import json
import math
import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from jaxminimax.apps.tables import files
from jaxminimax.apps.tables.columns import Category, Number
from jaxminimax.apps.tables.notes import Note
from jaxminimax.apps.tables.schema import Schema
from jaxminimax.base import checks, identity, own_files, saved_json

if TYPE_CHECKING:
    from jaxminimax.accounting import Statement
    from jaxminimax.drivers import Certificate
    from jaxminimax.mechanism import Description

MODEL = "model.json"  # of a folder that the command writes


class Moments(NamedTuple):
    """The released means of a table's features and labels; public.

    Attributes:
      mean: of every feature, `[d]`.
      second: of every feature's square, `[d]`.
      prior: share of positive labels; of K classes their shares, `[K]`; of a number in [-1, 1] its
        mean and that of its square.
      labelled: share of rows that have a label; all means are those of such rows. 1 where so few
        have none that it could be noise.
    """

    mean: np.ndarray
    second: np.ndarray
    prior: float | np.ndarray
    labelled: float = 1.0

    @property
    def variance(self) -> np.ndarray:
        """Returns that of every feature, `[d]`: at least 0, whatever the noise."""
        return np.maximum(self.second - self.mean**2, 0.0)

    def to_json(self) -> dict[str, Any]:
        """Returns plain Python values."""
        return {"mean": self.mean.tolist(), "second": self.second.tolist(),
                "prior": np.asarray(self.prior).tolist(), "labelled": self.labelled}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Reads the moments that `to_json` wrote as `record`."""
        prior = record["prior"]
        return cls(np.array(record["mean"], float), np.array(record["second"], float),
                   np.array(prior, float) if isinstance(prior, list) else prior,
                   record.get("labelled", 1.0))


def spread(moments: Moments, floor: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns what is taken off each feature and what it is divided by, both `[d]`.

    With d features the second has a factor sqrt(d), so that rows have a length near 1. Without a
    `floor` it is that factor alone, and nothing is taken off.
    """
    mean, width = moments.mean, math.sqrt(len(moments.mean))
    if floor is None:
        return np.zeros(len(mean)), np.full(len(mean), width)
    return mean, width * np.sqrt(moments.variance + floor)


@dataclasses.dataclass(frozen=True)
class Scorer:
    """A trained scorer: all of it is private output, and may be published.

    Attributes:
      schema: of the table.
      weights: of the scaled features, and last the intercept's, `[d + 1]`; of K classes
        `[d + 1, K]`; of a number in its units.
      moments: what the features are scaled by.
      floor: least variance that a feature is divided by; None: features are not scaled.
      stated: what training cost, `statement.to_json()`.
      described: what was released; None of one that was read from a file.
      group_losses: noisy mean losses of the groups, of a scorer that was trained without them.
      notes: likely mistakes, from public facts and from released numbers.
      certificate: of the worst group's share of wrong predictions, where rows were held out for
        it; no part of a file.
      members: some of the iterates that `weights` are the mean of, `[m, d + 1]`, of a classifier
        that is fair to private groups; None of others. No part of a file.

    Examples:
        >>> from jaxminimax.apps.tables.scorer import Moments
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
    described: "Description | None" = None
    group_losses: dict[str, float] | None = None
    notes: tuple[Note, ...] = ()
    certificate: "Certificate | None" = None
    members: np.ndarray | None = None

    @property
    def statement(self) -> "Statement":
        """The privacy statement of the training."""
        from jaxminimax.accounting import Statement  # loads JAX

        return Statement.from_json(self.stated)

    def decision_function(self, frame: Any) -> np.ndarray:
        """Returns the score of every row of a table.

        With a positive label it is its log-odds, `[n]`; of K classes their logits, `[n, K]`; of a
        number its value before it is clipped to the range, `[n]`.
        """
        cells, (centre, scale) = self.schema.read(frame), spread(self.moments, self.floor)
        total, squares, first = np.float64(0), np.float64(0), 0
        for name, column in self.schema.columns.items():  # one by one: no matrix of all features
            places = slice(first, first := first + column.width)
            x = (column.encode(cells[name]) - centre[places]) / scale[places]
            total, squares = total + x @ self.weights[places], squares + np.sum(x * x, 1)
        return self.weights[-1] + (total.T / np.sqrt(np.maximum(squares, 1.0))).T

    def predict(self, frame: Any) -> np.ndarray:
        """Returns `prediction` for every row of a table, `[n]`."""
        return self.prediction(self.decision_function(frame))

    def prediction(self, scores: np.ndarray) -> np.ndarray:
        """Returns the likeliest label for each score, `[n]`.

        With a positive label it is whether that is the likelier one; of classes it is the value; of
        a number it is the score, clipped to the range.
        """
        target = self.schema.target
        if target is None:
            return scores > 0
        if isinstance(target, Category):
            return np.array(target.values)[np.argmax(scores, 1)]
        return np.clip(scores, target.low, target.high)

    def predict_proba(self, frame: Any) -> np.ndarray:
        """Returns the probabilities of another label and of the positive one, `[n, 2]`.

        Of K classes it returns those of all of them, `[n, K]`.
        """
        shares = self.probability(self.decision_function(frame))
        return shares if shares.ndim == 2 else np.stack([1 - shares, shares], 1)

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """Returns 1 / (1 + e^-s), the probability of the positive label, for each score s.

        Of K classes it returns e^s_k / sum_l e^s_l for logits `[n, K]`.

        Raises:
          ValueError: for a label that is a number.
        """
        if self.schema.kind == "number":
            raise ValueError(f"{self.schema.label} is a number, which has no probability: use "
                             "predict.")
        if self.schema.kind == "classes":
            shares = np.exp(scores - scores.max(1, keepdims=True))
            return shares / shares.sum(1, keepdims=True)
        return (1 + np.tanh(scores / 2)) / 2

    def to_json(self) -> dict[str, Any]:
        """Returns the record of a model file, as the page on serving describes it."""
        centre, scale = spread(self.moments, self.floor)
        kind = self.schema.kind
        *weights, intercepts = self.weights.reshape(len(self.weights), -1).tolist()
        features = [feature | {"centre": a, "scale": b, "weights": w} for feature, a, b, w in zip(
            self.schema.described(), centre.tolist(), scale.tolist(), weights, strict=True)]
        formula = ("x_j = (value_j - centre_j) / scale_j; score = intercept + sum_j weight_j x_j / "
                   "max(1, sqrt(sum_j x_j^2)); ") + {
            "binary": "probability = 1 / (1 + exp(-score))",
            "classes": "probability_k = exp(score_k) / sum_l exp(score_l)",
            "number": "prediction = min(max(score, low), high)"}[kind]
        return {"format": 1, "label": {"kind": kind, **self.schema.declared_label()},
                "formula": formula, "features": features, "intercepts": intercepts,
                "schema": self.schema.to_dict(),
                "released": {**self.moments.to_json(), "floor": self.floor},
                "group_losses": self.group_losses,
                "notes": [note.to_json() for note in self.notes], "statement": self.stated}

    def linear(self) -> tuple[np.ndarray, Any]:
        """Returns coefficients `[d]` in the units of the columns, and the intercept.

        Of K classes it returns `[d, K]`, and an intercept for each.

        For columns c inside their ranges the values are slope_j c_j + offset_j, so with centres and
        scales as in the model's file and b the last weight the score is

            b + (coefficients . c + intercept - b) / max(1, |x|)

        with x_j = (value_j - centre_j) / scale_j. For rows with |x| <= 1 this is coefficients . c +
        intercept. A column with `log` counts by log(1 + c), a value of a category by 0 or 1.
        """
        slope, offset = np.array(list(map(_line, self.schema.described()))).T
        centre, scale = spread(self.moments, self.floor)
        w = self.weights[:-1].T / scale
        return (w * slope).T, self.weights[-1] + w @ (offset - centre)

    def sql(self, table: str | None = None, output: int = 0) -> str:
        """Returns the score as an expression in SQL, for one row of a table.

        It needs SQRT, POWER and, for columns with a logarithm, LN. Columns of numbers must have a
        type of numbers with NULL for missing ones, and columns of categories must be text with the
        declared values. Names are in double quotes, as in the standard.

        Args:
          table: its name, for columns `"table"."column"`; None for `"column"`.
          output: the number of the score, where the label has several.
        """
        record, prefix = self.to_json(), "" if table is None else f"{_quoted(table)}."
        x = [f"({_sql_value(entry, prefix + _quoted(entry['column']))} - {entry['centre']!r}) / "
             f"{entry['scale']!r}" for entry in record["features"]]
        total = " + ".join(f"{entry['weights'][output]!r} * {scaled}" for entry, scaled in zip(
            record["features"], x, strict=True))
        squares = " + ".join(f"POWER({scaled}, 2)" for scaled in x)
        return (f"{record['intercepts'][output]!r} + ({total}) / "
                f"CASE WHEN {squares} > 1 THEN SQRT({squares}) ELSE 1.0 END")

    def save(self, path: Any) -> None:
        """Writes a JSON file."""
        own_files.write(path, json.dumps(self.to_json(), indent=1))

    @classmethod
    def load(cls, path: Any) -> Self:
        """Reads what `save` wrote.

        Args:
          path: of the file, or of a folder that `python -m jaxminimax train --out` wrote.

        Raises:
          ValueError: where there is no file.
          DamagedFileError: for another file, or one that the published schema does not allow.
        """
        path = os.path.join(path, MODEL) if os.path.isdir(path) else path
        if not os.path.isfile(path):
            raise ValueError(f"{path}: there is no saved scorer; train --out FOLDER writes one.")
        with open(path, "rb") as file, saved_json.explained(
                path, "saved scorer", "Restore it, or train again."):
            record = saved_json.parsed(file.read())
            saved_json.check(record, "model")
            return cls._from_record(record)

    @classmethod
    def _from_record(cls, record: Any) -> Self:
        """Makes the scorer of a record."""
        schema = Schema.from_dict(record["schema"])
        several = (schema.target.width,) if isinstance(schema.target, Category) else ()
        described = schema.described()  # refuses ranges that are still to be released
        features, released = record["features"], record["released"]
        weights = [*(feature["weights"] for feature in features), record["intercepts"]]
        weights = weights if several else [w for (w,) in weights]
        if len(described) != len(features) or features != [
                feature | declared for feature, declared in zip(features, described, strict=True)
        ] or record["label"] != {"kind": schema.kind, **schema.declared_label()}:
            raise ValueError("features and label must be those of schema")
        loaded = cls(schema, np.array(weights, float), Moments.from_json(released),
                     released["floor"], record["statement"], group_losses=record["group_losses"],
                     notes=tuple(Note(**note) for note in record["notes"]))
        moments = loaded.moments
        if (loaded.weights.shape != (schema.width + 1, *several) or {
                moments.mean.shape, moments.second.shape} != {(schema.width,)} or np.shape(
                moments.prior) != ((2,) if schema.kind == "number" else several)):
            raise ValueError("weights, mean, second and prior must be as many as schema says")
        return loaded


def _line(feature: dict[str, Any]) -> tuple[float, float]:
    """Returns slope and offset of a feature's value in the unit of its column."""
    if feature["read"] != "number":
        return 1.0, 0.0
    low, high = feature["range"]
    low, high = Number(low, high, log=feature["log"]).ends
    return 2 / (high - low), -(high + low) / (high - low)


def _quoted(name: str, mark: str = '"') -> str:
    return mark + name.replace(mark, 2 * mark) + mark


def _sql_value(feature: dict[str, Any], cell: str) -> str:
    """Returns the value of a feature as an expression of its cell."""
    if feature["read"] == "category":
        mark = "'"
        return f"CASE WHEN TRIM({cell}) = {_quoted(feature['value'], mark)} THEN 1.0 ELSE 0.0 END"
    if feature["read"] == "missing":
        return f"CASE WHEN {cell} IS NULL THEN 1.0 ELSE 0.0 END"
    (low, high), x = map(float, feature["range"]), cell
    ends = f"WHEN {cell} <= {low!r} THEN -1.0 WHEN {cell} >= {high!r} THEN 1.0"
    if feature["log"]:
        low, high, x = math.log1p(low), math.log1p(high), f"LN(1 + {cell})"
    return (f"CASE WHEN {cell} IS NULL THEN 0.0 {ends} "
            f"ELSE 2 * ({x} - {low!r}) / {high - low!r} - 1 END")


# --- `python -m jaxminimax predict` ---


def add(commands: Any) -> None:
    """Adds `predict` to the commands of a parser."""
    text = "scores the rows of a table by a trained scorer"
    command = commands.add_parser("predict", help=text, description=text + (
        ". Counts of missing, unseen and clipped cells show whether the rows are like those that "
        "the schema was written for; those of the training table are private, so they are not "
        "shown for comparison."))
    flag = command.add_argument
    flag("model", help="folder that train wrote, or its model.json")
    flag("table", help="CSV file with a header line, or Parquet file")
    flag("--id", nargs="+", default=[], metavar="COLUMN",
         help="columns that are copied next to the scores")
    flag("--threshold", type=float, default=0.5, metavar="P",
         help="with a positive label the decision is 1 where the probability is at least P "
              "(default: 0.5)")
    flag("--out", metavar="FILE", help="CSV file for the scores; without it they are printed")
    flag("--json", action="store_true", help="print JSON only")


def predict(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Returns what the command prints, with --json and without."""
    checks.number("--threshold", args.threshold, low=0.0, high=1.0, closed=True)
    scorer = Scorer.load(args.model)
    names = _predicted(scorer, scorer.weights[-1:], args.threshold)
    if twins := set(args.id) & set(names):
        raise ValueError(f"--id {' '.join(sorted(twins))}: is a column of the scores, so rename it "
                         "in the table.")
    counts = {name: collections.Counter[str]() for name in scorer.schema.columns}
    columns: dict[str, list[Any]] = {name: [] for name in (*args.id, *names)}
    rows = 0
    for frame in files.pieces(args.table):
        for name in args.id:
            columns[name] += ["" if identity.absent(cell) else str(cell)
                              for cell in scorer.schema.cells(frame, name)]
        cells = scorer.schema.read(frame)
        scores = scorer.decision_function(cells)
        rows += len(scores)
        for name, predicted in _predicted(scorer, scores, args.threshold).items():
            columns[name] += predicted.tolist()
        for name, odd in scorer.schema.odd(cells).items():
            counts[name].update({flaw: int(np.sum(x)) for flaw, x in odd.items()})
    text = _csv(columns)
    record: dict[str, Any] = {"rows": rows, "counts": counts}
    if args.out is None:
        for line in _lines(counts, rows):
            warnings.warn(line, UserWarning, stacklevel=2)
        return record | {"columns": columns}, text.rstrip("\n")
    with open(args.out, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(text)
    return record | {"out": args.out}, "\n".join((f"{rows} scores in {args.out}",
                                                  *_lines(counts, rows)))


def _predicted(scorer: Scorer, scores: np.ndarray, threshold: float) -> dict[str, np.ndarray]:
    """Returns the columns that a model predicts, each `[n]`, by name."""
    target = scorer.schema.target
    if target is None:
        positive = scorer.probability(scores)
        return {"score": scores, "probability": positive,
                "decision": (positive >= threshold).astype(int)}
    if isinstance(target, Category):
        shares = dict(zip(target.values, scorer.probability(scores).T, strict=True))
        return {**{f"probability of {value}": share for value, share in shares.items()},
                "decision": scorer.prediction(scores)}
    return {"prediction": scorer.prediction(scores)}


def _lines(counts: Mapping[str, Mapping[str, int]], rows: int) -> list[str]:
    """Returns a line for each column that has odd cells."""
    odd = {name: ", ".join(f"{count} {flaw}" for flaw, count in column_counts.items() if count)
           for name, column_counts in counts.items()}
    return [f"{name}: {words}, of {rows} cells." for name, words in odd.items() if words]


def _csv(columns: Mapping[str, list[Any]]) -> str:
    """Writes columns as text, numbers with as many digits as can matter."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows(zip(*(
        [f"{x:.{9 if name in ('score', 'prediction') else 6}g}" if isinstance(x, float) else x
         for x in cells]  # 6 digits of probabilities
        for name, cells in columns.items()), strict=True))
    return text.getvalue()
