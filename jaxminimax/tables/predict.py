"""`python -m jaxminimax predict`: scores of a table's rows, without JAX."""

import argparse
import pathlib
from typing import Any

from jaxminimax.tables import files
from jaxminimax.tables.scorer import Scorer

_WHAT = "scores the rows of a table by a trained scorer"


def add(commands: Any) -> None:
    """Adds `predict` to the commands of a parser."""
    command = commands.add_parser("predict", help=_WHAT, description=_WHAT)
    flag = command.add_argument
    flag("model", help="folder that train wrote, or its model.json")
    flag("table", help="CSV file with a header line, or Parquet file")
    flag("--out", metavar="FILE", help="CSV file for the scores; without it they are printed")
    flag("--json", action="store_true", help="print JSON only")


def predict(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Returns what the command prints, with --json and without."""
    scorer = Scorer.load(args.model)
    frame = files.read(args.table, scorer.schema.numeric)
    name, scores = ("score", scorer.decision_function(frame)) if scorer.schema.target is None else (
        "prediction", scorer.predict(frame))
    text = "\n".join([name, *(s if isinstance(s, str) else f"{s:.9g}" for s in scores.tolist())])
    if args.out is not None:
        pathlib.Path(args.out).write_text(text + "\n", encoding="utf-8")
        return {"scores": len(scores), "out": args.out}, f"{len(scores)} scores in {args.out}"
    return {"scores": scores.tolist()}, text
