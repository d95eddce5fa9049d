"""`python -m jaxminimax train` and `predict`: from a table and a schema to a private scorer."""

import argparse
import contextlib
import json
import pathlib
import warnings
from typing import Any

import jax

from jaxminimax.accounting import epsilon
from jaxminimax.base import checks, own_files
from jaxminimax.mechanism import Sequence
from jaxminimax.tables import files, options, reference, report
from jaxminimax.tables.schema import Schema
from jaxminimax.tables.scorer import MODEL, Scorer
from jaxminimax.tables.training import train

REPORT, PAGE = "report.json", "report.html"
UNFINISHED = "unfinished"  # folders of runs, by number
_TRAIN = "trains a private scorer of a table"
_PREDICT = "scores the rows of a table by a trained scorer"


def add(commands: Any) -> None:
    """Adds both commands to those of a parser."""
    command = commands.add_parser("train", help=_TRAIN, description=_TRAIN + (
        ". With --test-fraction it also prints the AUC on rows held out, and that of a logistic "
        "regression without privacy on the same features: both are outside of the guarantee. With "
        "--out a command that was stopped goes on where it was, if it is given again."))
    flag = command.add_argument
    flag("table", help="CSV file with a header line, or Parquet file")
    flag("--schema", help="TOML file: label, ranges and categories of the columns, owner, groups")
    options.add(flag)
    flag("--epsilon", type=float, required=True, help="of everything that training releases")
    flag("--delta", type=float, required=True, help="of (epsilon, delta); well below 1/n, "
         "as publishing one record in n at random has delta = 1/n")
    flag("--test-fraction", type=float, metavar="F",
         help="share of the records (persons, if the schema has an owner) held out to test on; "
              "without it all rows train")
    flag("--curve", type=float, nargs="+", default=[], metavar="EPSILON",
         help="train at these too, each a release that adds to the cost, and draw the AUC against "
              "epsilon; needs --test-fraction")
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


def _train(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    folder = None if args.out is None else pathlib.Path(args.out)
    if args.curve and args.test_fraction is None:
        raise ValueError("--curve is of the AUC on rows held out: say --test-fraction too.")
    for one in args.curve:
        checks.number("--curve", one, low=0.0)
    with _held(folder):
        return _trained_in(folder, args)


def _trained_in(folder: pathlib.Path | None, args: argparse.Namespace,
                ) -> tuple[dict[str, Any], str]:
    """What `train` does while no other process writes to the folder."""
    frame = files.read(args.table)
    schema = options.schema(args, list(frame.columns), len(frame))
    test = None
    if args.test_fraction is not None:
        owners = schema.owners(frame)
        test = files.held_out(len(frame), owners, args.test_fraction, args.seed or 0)
    rows = frame if test is None else frame[~test]
    for note in options.doubts(schema, len(rows)):
        warnings.warn(note, UserWarning, stacklevel=2)
    if folder is not None and (folder / MODEL).exists() and not any(
            (folder / UNFINISHED).glob("*/key")):
        warnings.warn(f"{folder} holds a scorer already, which is replaced: what it cost stays "
                      "spent, and this is a further release.", UserWarning, stacklevel=2)
    held = None if test is None else frame[test]
    scorer, said = _trained(args, rows, held, schema, folder)
    if folder is not None:
        scorer.save(folder / MODEL)
        own_files.write(folder / REPORT, json.dumps(said, indent=1))
        own_files.write(folder / PAGE, report.page(scorer, said))
        own_files.remove(folder / UNFINISHED)  # with the keys
    return said, "\n".join(_lines(args, scorer, said, 0 if held is None else len(held)))


def _trained(args: argparse.Namespace, rows: Any, held: Any, schema: Schema,
             folder: pathlib.Path | None) -> tuple[Scorer, dict[str, Any]]:
    """The scorer, those of the curve, and what is said of them."""
    made = []
    for k, target in enumerate((args.epsilon, *args.curve)):
        key = None if args.seed is None else jax.random.key(args.seed, impl="threefry2x32")
        if key is not None and k:
            key = jax.random.fold_in(key, k + 1)
        made.append(train(rows, schema, epsilon=target, delta=args.delta, key=key,
                          progress=not (args.quiet or args.json),
                          folder=None if folder is None else folder / UNFINISHED / str(k)))
    scorer = made[0]
    said: dict[str, Any] = {"auc": None, "auc_standard_error": None, "auc_reference": None}
    if held is not None:
        said = reference.aucs(scorer, rows, held)
    notes = (*scorer.notes, *options.labels(scorer), *options.constant(scorer))
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    said |= {"epsilon": scorer.statement.epsilon, "delta": scorer.statement.delta,
             "seed": args.seed, "group_losses": scorer.group_losses,
             "released_share_of_positives": scorer.moments.prior,
             "schema": scorer.schema.to_dict(), "notes": list(notes),
             "outside_the_guarantee": ["auc", "auc_standard_error", "auc_reference", "curve"],
             "statement": scorer.statement.to_json()}
    if len(made) > 1:
        labels = schema.labels(held)
        said["curve"] = []
        for one in made[1:] if said["auc"] is not None else ():
            auc, error = reference.area(one.decision_function(held), labels)
            said["curve"].append({"epsilon": one.statement.epsilon, "auc": auc,
                                  "auc_standard_error": error})
        said["epsilon_with_curve"] = epsilon(Sequence(parts=tuple(
            one.described for one in made if one.described is not None)), args.delta)
    return scorer, said


def _lines(args: argparse.Namespace, scorer: Scorer, said: dict[str, Any], held: int) -> list[str]:
    """What is printed without --json."""
    lines = [str(scorer.statement)]
    if scorer.group_losses is not None:
        each = ", ".join(f"{name} {loss:.3f}" for name, loss in scorer.group_losses.items())
        lines.append(f"Mean losses of the groups, with noise, released: {each}.")
    lines.append(f"Released share of positive labels: {scorer.moments.prior:.3f}.")
    if held:
        of = "of one label only" if said["auc"] is None else report.with_error(
            said["auc"], said["auc_standard_error"])
        best = ("of one label only" if said["auc_reference"] is None
                else f"{said['auc_reference']:.4f}")
        lines.append(f"{held} rows held out, outside of the guarantee: AUC {of}, and {best} of a "
                     "logistic regression without privacy on the same features.")
    lines += [f"At epsilon = {x['epsilon']:.4g}: AUC "
              f"{report.with_error(x['auc'], x['auc_standard_error'])}."
              for x in said.get("curve", ())]
    if "epsilon_with_curve" in said:
        lines.append(f"With the runs of the curve everything together has epsilon = "
                     f"{said['epsilon_with_curve']:.4g} at delta = {args.delta:g}.")
    if args.seed is not None:
        lines.append("The noise is of a seed: for experiments, not for release.")
    return lines


def _held(folder: pathlib.Path | None) -> contextlib.ExitStack:
    """The folder of the results, for this process alone, before any budget is spent."""
    with contextlib.ExitStack() as held:
        if folder is None:
            return held
        try:
            if not folder.exists():
                own_files.make(folder, 0o755)
            own_files.check_parent(folder)
            held.enter_context(own_files.locked(folder / MODEL))
            held.callback((folder / f"{MODEL}.lock").unlink, missing_ok=True)
            for name in (REPORT, PAGE, UNFINISHED):
                own_files.sweep(folder / name)
        except OSError as error:
            raise ValueError(f"--out {folder} cannot be written: {error}") from error
        if (folder / UNFINISHED).exists():
            own_files.check(folder / UNFINISHED)
        return held.pop_all()


def _predict(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    scores = Scorer.load(args.model).decision_function(files.read(args.table))
    text = "\n".join(["score", *(f"{s:.9g}" for s in scores)])
    if args.out is not None:
        pathlib.Path(args.out).write_text(text + "\n", encoding="utf-8")
        return {"scores": len(scores), "out": args.out}, f"{len(scores)} scores in {args.out}"
    return {"scores": scores.tolist()}, text


# what a command prints with --json and without
SAID = {"train": _train, "predict": _predict}
