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
from jaxminimax.tables.scorer import Scorer

_WHAT = "scores the rows of a table by a trained scorer"
_COLUMNS = ("score", "probability", "decision")
_FORMATS = {"score": "{:.9g}".format, "probability": "{:.6g}".format}


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
         help="the decision is 1 where the probability is at least P (default: 0.5)")
    flag("--out", metavar="FILE", help="CSV file for the scores; without it they are printed")
    flag("--json", action="store_true", help="print JSON only")


def predict(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Returns what the command prints, with --json and without."""
    checks.number("--threshold", args.threshold, low=0.0, high=1.0, closed=True)
    if taken := set(args.id) & set(_COLUMNS):
        raise ValueError(f"--id {' '.join(sorted(taken))}: is a column of the scores, so rename it "
                         "in the table.")
    scorer = Scorer.load(args.model)
    counts = {name: collections.Counter[str]() for name in scorer.schema.columns}
    columns: dict[str, list[Any]] = {name: [] for name in (*args.id, *_COLUMNS)}
    for frame in files.pieces(args.table):
        for name in args.id:
            columns[name] += ["" if absent(cell) else str(cell)
                           for cell in scorer.schema.cells(frame, name)]
        cells = scorer.schema.read(frame)
        scores = scorer.decision_function(cells)
        positive = scorer.probability(scores)
        columns["score"] += scores.tolist()
        columns["probability"] += positive.tolist()
        columns["decision"] += (positive >= args.threshold).astype(int).tolist()
        for name, odd in scorer.schema.odd(cells).items():
            counts[name].update({what: int(np.sum(x)) for what, x in odd.items()})
    rows, text = len(columns["score"]), _csv(columns)
    record: dict[str, Any] = {"rows": rows, "counts": counts}
    if args.out is None:
        for line in _lines(counts, rows):
            warnings.warn(line, UserWarning, stacklevel=2)
        return record | {"columns": columns}, text.rstrip("\n")
    with open(args.out, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(text)
    return record | {"out": args.out}, "\n".join((f"{rows} scores in {args.out}",
                                                  *_lines(counts, rows)))


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
    lines.writerows(zip(*(map(_FORMATS.get(name, str), cells) for name, cells in columns.items()),
                        strict=True))
    return text.getvalue()
