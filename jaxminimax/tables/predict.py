"""`python -m jaxminimax predict`: scores of a table's rows, without JAX."""

import argparse
import collections
import csv
import io
import warnings
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
    made: dict[str, list[Any]] = {name: [] for name in (*args.id, *_COLUMNS)}
    for frame in files.pieces(args.table):
        for name in args.id:
            made[name] += ["" if absent(cell) else str(cell)
                           for cell in scorer.schema.cells(frame, name)]
        cells = scorer.schema.read(frame)
        scores = scorer.decision_function(cells)
        positive = scorer.probability(scores)
        made["score"] += scores.tolist()
        made["probability"] += positive.tolist()
        made["decision"] += (positive >= args.threshold).astype(int).tolist()
        for name, odd in scorer.schema.odd(cells).items():
            counts[name].update({what: int(np.sum(x)) for what, x in odd.items()})
    rows = len(made["score"])
    record: dict[str, Any] = {"rows": rows, "counts": counts}
    lines = [f"{name}: {found}, of {rows} cells."
             for name, one in counts.items() if (found := ", ".join(
                 f"{count} {what}" for what, count in one.items() if count))]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(made)
    table.writerows(zip(*(map(_FORMATS.get(name, str), cells) for name, cells in made.items()),
                        strict=True))
    if args.out is not None:
        with open(args.out, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text.getvalue())
        return record | {"out": args.out}, "\n".join((f"{rows} scores in {args.out}", *lines))
    for line in lines:
        warnings.warn(line, UserWarning, stacklevel=2)
    return record | {"columns": made}, text.getvalue().rstrip("\n")
