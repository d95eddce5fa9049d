"""`python -m jaxminimax train` and `predict`: from a table and a schema to a private scorer."""

import argparse
import json
import pathlib
from typing import Any

import jax

from jaxminimax.tables import files, reference, report
from jaxminimax.tables.schema import Schema
from jaxminimax.tables.scorer import Scorer, train

MODEL = "model.json"
_TRAIN = "trains a private scorer of a table"
_PREDICT = "scores the rows of a table by a trained scorer"


def add(commands: Any) -> None:
    """Adds both commands to those of a parser."""
    command = commands.add_parser("train", help=_TRAIN, description=_TRAIN + (
        ". With --test-fraction it also prints the AUC on rows held out, and that of a logistic "
        "regression without privacy on the same features: both are outside of the guarantee."))
    flag = command.add_argument
    flag("table", help="CSV file with a header line, or Parquet file")
    flag("--schema", help="TOML file: label, ranges and categories of the columns, owner, groups")
    flag("--epsilon", type=float, required=True, help="of everything that training releases")
    flag("--delta", type=float, required=True, help="chance that epsilon does not cover; below 1/n")
    flag("--test-fraction", type=float, metavar="F",
         help="share of the records (persons, if the schema has an owner) held out to test on; "
              "without it all rows train")
    flag("--seed", type=int, help="of the split and of the noise, for experiments: whoever knows "
                                  "it can subtract the noise. Default: the system's entropy")
    flag("--columns", nargs="+", metavar="NAME", help="declared columns to use (default: all)")
    flag("--drop", nargs="+", default=[], metavar="NAME", help="declared columns not to use")
    flag("--out", metavar="FOLDER", help="where model.json, report.json and report.html go")
    flag("--json", action="store_true", help="print JSON only")
    flag("--quiet", action="store_true", help="no progress bar")
    command = commands.add_parser("predict", help=_PREDICT, description=_PREDICT)
    flag = command.add_argument
    flag("model", help="folder that train wrote, or its model.json")
    flag("table", help="CSV file with a header line, or Parquet file")
    flag("--out", metavar="FILE", help="CSV file for the scores; without it they are printed")
    flag("--json", action="store_true", help="print JSON only")


def _schema(args: argparse.Namespace, frame: Any) -> Schema:
    if args.schema is None:
        names = ", ".join(map(str, frame.columns))
        raise ValueError(
            f"needs --schema FILE: what is public about the columns {names}. In TOML: [label] "
            "name, positive; [columns.NAME] range = [low, high] or categories = [...]. A column "
            "that is not declared is not read.")
    schema = Schema.from_toml(args.schema)
    if args.columns is not None:
        unknown = [name for name in args.columns if name not in schema.columns]
        if unknown:
            raise ValueError(f"--columns {' '.join(unknown)}: not declared in {args.schema}; there "
                             f"are {', '.join(schema.columns)}.")
        schema = schema.without(tuple(n for n in schema.columns if n not in args.columns))
    return schema.without(tuple(args.drop)) if args.drop else schema


def _train(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    if args.out is not None:  # before any budget is spent
        _folder(pathlib.Path(args.out))
    frame = files.read(args.table)
    schema = _schema(args, frame)
    test = None
    if args.test_fraction is not None:
        owners = None if schema.owner is None else schema.cells(frame, schema.owner)
        test = files.held_out(len(frame), owners, args.test_fraction, args.seed or 0)
    rows = frame if test is None else frame[~test]
    scorer = train(rows, schema, epsilon=args.epsilon, delta=args.delta,
                   key=None if args.seed is None else jax.random.key(args.seed),
                   progress=not (args.quiet or args.json))
    said: dict[str, Any] = {"auc": None, "auc_reference": None}
    if test is not None:
        said = reference.aucs(scorer, rows, frame[test])
    said |= {"epsilon": scorer.statement.epsilon, "delta": scorer.statement.delta,
             "seed": args.seed, "outside_the_guarantee": ["auc", "auc_reference"],
             "statement": scorer.statement.to_json()}
    if args.out is not None:
        folder = pathlib.Path(args.out)
        scorer.save(folder / MODEL)
        (folder / "report.json").write_text(json.dumps(said, indent=1), encoding="utf-8")
        (folder / "report.html").write_text(report.page(scorer, said), encoding="utf-8")
    lines = [str(scorer.statement)]
    if test is not None:
        lines.append(f"{int(test.sum())} rows held out, outside of the guarantee: AUC "
                     f"{_digits(said['auc'])}, and {_digits(said['auc_reference'])} of a logistic "
                     "regression without privacy on the same features.")
    if args.seed is not None:
        lines.append("The noise is of a seed: for experiments, not for release.")
    return said, "\n".join(lines)


def _digits(auc: float | None) -> str:
    return "of one label only" if auc is None else f"{auc:.4f}"


def _folder(folder: pathlib.Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MODEL).touch()
    except OSError as error:
        raise ValueError(f"--out {folder} cannot be written: {error}") from error


def _predict(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    path = pathlib.Path(args.model)
    path = path / MODEL if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"{args.model}: no {MODEL}; train --out FOLDER writes one.")
    scores = Scorer.load(path).decision_function(files.read(args.table))
    text = "\n".join(["score", *(f"{s:.9g}" for s in scores)])
    if args.out is not None:
        pathlib.Path(args.out).write_text(text + "\n", encoding="utf-8")
        return {"scores": len(scores), "out": args.out}, f"{len(scores)} scores in {args.out}"
    return {"scores": scores.tolist()}, text


# what a command prints with --json and without
SAID = {"train": _train, "predict": _predict}
