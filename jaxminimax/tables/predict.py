"""`python -m jaxminimax predict`: scores of a table's rows, without JAX."""

import argparse
import collections
import csv
import io
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.identity import absent
from jaxminimax.tables import files
from jaxminimax.tables.columns import Category
from jaxminimax.tables.scorer import Scorer

_WHAT = "scores the rows of a table by a trained scorer"
_DIGITS = {"score": 9, "prediction": 9}  # of numbers; 6 of probabilities


def add(commands: Any) -> None:
    """Adds `predict` to the commands of a parser."""
    command = commands.add_parser("predict", help=_WHAT, description=_WHAT + (
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
    if taken := set(args.id) & set(names):
        raise ValueError(f"--id {' '.join(sorted(taken))}: is a column of the scores, so rename it "
                         "in the table.")
    counts = {name: collections.Counter[str]() for name in scorer.schema.columns}
    columns: dict[str, list[Any]] = {name: [] for name in (*args.id, *names)}
    rows = 0
    for frame in files.pieces(args.table):
        for name in args.id:
            columns[name] += ["" if absent(cell) else str(cell)
                           for cell in scorer.schema.cells(frame, name)]
        cells = scorer.schema.read(frame)
        scores = scorer.decision_function(cells)
        rows += len(scores)
        for name, predicted in _predicted(scorer, scores, args.threshold).items():
            columns[name] += predicted.tolist()
        for name, odd in scorer.schema.odd(cells).items():
            counts[name].update({what: int(np.sum(x)) for what, x in odd.items()})
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
    odd = {name: ", ".join(f"{count} {what}" for what, count in one.items() if count)
           for name, one in counts.items()}
    return [f"{name}: {words}, of {rows} cells." for name, words in odd.items() if words]


def _csv(columns: Mapping[str, list[Any]]) -> str:
    """Writes columns as text, numbers with as many digits as can matter."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows(zip(*(
        [f"{x:.{_DIGITS.get(name, 6)}g}" if isinstance(x, float) else x for x in cells]
        for name, cells in columns.items()), strict=True))
    return text.getvalue()
