"""`python -m jaxminimax train`: from a table and a schema to a private scorer.

Options that stand for a schema are read without a look at a cell: names of columns, and the number
of rows, are public.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import pathlib
import platform
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from jaxminimax.accounting import Ledger, epsilon
from jaxminimax.base import VERSION, checks, own_files
from jaxminimax.mechanism import Sequence
from jaxminimax.tables import files, notes, processes, report, scores, statistics, training
from jaxminimax.tables.columns import Category, Charged, Column, Number, listed
from jaxminimax.tables.schema import Schema
from jaxminimax.tables.scorer import MODEL, Scorer

# --- options that stand for a schema, and what is missing ---


def add_schema(flag: Any) -> None:
    """Adds the options that stand for a schema to a command."""
    flag("--schema", help="TOML file: label, ranges and categories of the columns, owner, groups")
    flag("--columns", nargs="+", metavar="NAME", help="declared columns to use (default: all)")
    flag("--drop", nargs="+", default=[], metavar="NAME", help="declared columns not to use")
    flag("--label", metavar="NAME", help="the label's column, in place of --schema")
    flag("--positive", metavar="VALUE", help="its positive value; every other one is negative")
    flag("--numeric", nargs="+", default=[], metavar="NAME[=LOW:HIGH]",
         help="columns of numbers, with a public range; those without one need --ranges charged")
    flag("--categorical", nargs="+", default=[], metavar="NAME=A|B",
         help="columns of text, with their public values")
    flag("--ranges", choices=("charged",),
         help="have the ranges that are not declared released by noisy histograms, for a tenth of "
              "the budget")
    flag("--owner", metavar="NAME", help="column that says whose row it is: records are persons")
    flag("--most", type=int, default=5, metavar="K", help="rows of one owner that are read "
         "(default: 5)")
    flag("--people", type=int, default=1, metavar="K",
         help="rows that one person has, at most, in a table without a column of owners: the "
              "guarantee is for any K of them (default: 1)")


def schema_of(args: argparse.Namespace, public: Callable[[], tuple[list[str], int]]) -> Schema:
    """Reads the schema from its file, or from the options.

    Args:
      args: of the command.
      public: returns the names of the table's columns, and how many rows there are; called for a
        message only.

    Raises:
      ValueError: for options that contradict each other, or naming what must be declared.
    """
    inline = [f"--{name}" for name in ("label", "positive", "numeric", "categorical", "owner")
              if getattr(args, name)]
    if args.schema is not None:
        if inline:
            raise ValueError(f"{' '.join(inline)} and --schema exclude each other: say it in the "
                             "file.")
        schema = Schema.from_toml(args.schema)
    elif args.label is None or args.positive is None or not (args.numeric or args.categorical):
        raise ValueError(needed(args, *public()))
    else:
        columns = dict([*map(_numeric, args.numeric), *map(_categorical, args.categorical)])
        schema = Schema(columns, args.label, args.positive, args.owner,
                        1 if args.owner is None else args.most)
    if args.columns is not None:
        unknown = [name for name in args.columns if name not in schema.columns]
        if unknown:
            raise ValueError(f"--columns {' '.join(unknown)}: not declared; there are "
                             f"{', '.join(schema.columns)}.")
        schema = schema.without(tuple(n for n in schema.columns if n not in args.columns))
    schema = schema.without(tuple(args.drop)) if args.drop else schema
    if schema.charged and args.schema is None and args.ranges is None:
        raise ValueError(f"no range is declared of {', '.join(schema.charged)}: say NAME=LOW:HIGH "
                         f"from a codebook, or --ranges charged. {_price(args, public()[1])}")
    return schema


def _numeric(word: str) -> tuple[str, Column]:
    name, separator, ends = word.partition("=")
    if not separator:
        return name, Charged()
    try:
        low, high = map(float, ends.split(":"))
    except ValueError:
        raise ValueError(f"--numeric {word}: must be NAME, or NAME=LOW:HIGH with two "
                         "numbers.") from None
    return name, Number(low, high)


def _categorical(word: str) -> tuple[str, Column]:
    name, separator, values = word.partition("=")
    if not separator or not values:
        raise ValueError(f"--categorical {word}: must be NAME=A|B, with the values of a codebook: "
                         "values read off the table would reveal its rows.")
    return name, Category(tuple(values.split("|")))


def needed(args: argparse.Namespace, names: list[str], rows: int) -> str:
    """Explains which options a table needs that declares nothing."""
    named = {word.partition("=")[0] for word in (*args.numeric, *args.categorical)} | {args.label}
    left = [name for name in names if name not in named]
    doubts = {name: why for name in left if (why := notes.doubt(name)) is not None}
    kept = [name for name in left if name not in doubts]
    lines = ["needs --schema FILE, or as options, what is public about the table:"]
    if args.label is None or args.positive is None:
        lines.append("  --label NAME --positive VALUE: which column is predicted, and the value "
                     "that counts.")
    lines += [
        f"  of each column that is to be read, of {listed(kept)}: --numeric NAME=LOW:HIGH, or "
        "--categorical 'NAME=A|B'. A column that is not declared is not read.",
        *(f"  {why}" for why in doubts.values()),
        "  --ranges charged: for --numeric NAME whose range nobody knows. " + _price(args, rows),
        "In a TOML file: [label] name, positive; [columns.NAME] range = [low, high], range = "
        "\"charged\" or categories = [...]."]
    return "\n".join(lines)


def _price(args: argparse.Namespace, rows: int) -> str:
    """States the price of charged ranges."""
    one = Schema({"x": Charged()}, "y", "1")
    try:
        (described,) = statistics.ranges_query(rows, one, args.epsilon, args.delta)
        alone, least = epsilon(described, args.delta), statistics.least_share(described)
    except ValueError:  # of an epsilon or a delta that is refused later, with its reason
        return "They cost a tenth of the budget."
    return (f"That takes a tenth of the budget (by itself epsilon = {alone:.3g} at delta = "
            f"{args.delta:g}), and shows what at least {least:.2g} of the {rows} "
            f"records share, times the square root of the number of such columns.")


# --- the commands ---


REPORT, PAGE = "report.json", "report.html"
UNFINISHED = "unfinished"  # folders of runs, by number
_TRAIN = "trains a private scorer of a table"


def add(commands: Any) -> None:
    """Adds `train` to the commands of a parser."""
    command = commands.add_parser("train", help=_TRAIN, description=_TRAIN + (
        ". With --test-fraction it also prints the AUC on rows held out, and that of a logistic "
        "regression without privacy on the same features: both are outside of the guarantee. With "
        "--out a command that was stopped goes on where it was, if it is given again."))
    flag = command.add_argument
    flag("table", help="CSV file with a header line, or Parquet file")
    add_schema(flag)
    flag("--epsilon", type=float, required=True, help="of everything that training releases")
    flag("--delta", type=float, required=True, help="of (epsilon, delta); well below 1/n, "
         "as publishing one record in n at random has delta = 1/n")
    flag("--allow-large-delta", action="store_true", help="allow a delta of 1/n or more")
    flag("--test-fraction", type=float, metavar="F",
         help="share of the records (persons, if the schema has an owner) held out to test on; "
              "without it all rows train")
    flag("--curve", type=float, nargs="+", default=[], metavar="EPSILON",
         help="train at these too, each a release that adds to the cost, and draw the AUC against "
              "epsilon; needs --test-fraction")
    flag("--seed", type=int, help="of the split and of the noise, for experiments: anyone who has "
                                  "it can remove the noise. Default: the system's entropy")
    flag("--ledger", metavar="FILE",
         help="ledger that is charged for all of it before anything is released, and that refuses "
              "what its budget does not cover; `jaxminimax ledger FILE --epsilon E --delta D` "
              "opens one")
    flag("--name", help="of this training in the ledger (default: run 1 and so on)")
    flag("--unit", help="what one record is, for the statement and the ledger (default: one row, "
                        "or one person)")
    flag("--purpose", help="what the model is for, printed in the report")
    flag("--by", help="who runs the training, printed in the report")
    flag("--out", metavar="FOLDER", help="where model.json, report.json and report.html go")
    flag("--json", action="store_true", help="print JSON only")
    flag("--quiet", action="store_true", help="no progress bar")
    flag("--processes", type=int, metavar="P",
         help="train by P processes, which all run this command on one Parquet file; each holds "
              "its own rows, and the first one writes")
    flag("--process", type=int, metavar="I",
         help="number of this process, from 0; Slurm and Open MPI say it")
    flag("--coordinator", metavar="HOST:PORT",
         help="a free port of the first process's host; Slurm and Open MPI say it")


def train(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Returns what the command prints, with --json and without; writes the files of --out."""
    folder = None if args.out is None else pathlib.Path(args.out)
    if args.curve and args.test_fraction is None:
        raise ValueError("--curve is of the AUC on rows held out: say --test-fraction too.")
    for one in args.curve:
        checks.number("--curve", one, low=0.0)
    if args.curve and args.ledger is not None:
        raise ValueError("--curve trains further models, and --ledger charges one: leave one of "
                         "them out.")
    if args.name is not None and args.ledger is None:
        raise ValueError(f"--name {args.name} is that of a run in a ledger: say --ledger FILE too.")
    mesh = _mesh(args)
    with processes.in_first(lambda: _held(folder)) or contextlib.nullcontext():
        return _trained_in(folder, args, mesh)


def _mesh(args: argparse.Namespace) -> Mesh | None:
    """Joins the other processes, if there are any."""
    if args.processes is None:
        if args.process is not None or args.coordinator is not None:
            raise ValueError("--process and --coordinator are for several processes: say "
                             "--processes P too.")
        return None
    if args.test_fraction is not None:
        raise ValueError("--processes train on all rows: leave --test-fraction out.")
    return processes.begin(args.processes, args.process, args.coordinator)


def _trained_in(folder: pathlib.Path | None, args: argparse.Namespace,
                mesh: Mesh | None) -> tuple[dict[str, Any], str]:
    """Trains, while no other process writes to the folder."""
    schema = schema_of(args, lambda: _public(files.read(args.table)))
    rows, held = files.Frames(args.table, schema.numeric, schema.names), None
    if args.columns is not None or args.drop:  # the other columns are left out on purpose
        rows.columns = [name for name in rows.columns if name in schema.names]
    if args.test_fraction is not None:
        frame = files.read(args.table, schema.numeric)[rows.columns]
        owners = schema.owners(frame)
        test = files.held_out(len(frame), owners, args.test_fraction, args.seed or 0)
        rows, held = frame[~test], frame[test]
    if args.curve and schema.target is not None:
        raise ValueError("--curve draws the AUC of a label with a positive value: leave it out, or "
                         "train at each epsilon by itself.")
    if folder is not None and (folder / MODEL).exists() and not any(
            (folder / UNFINISHED).glob("*/key")):
        warnings.warn(f"{folder} holds a scorer already, which is replaced: what it cost stays "
                      "spent, and this is a further release.", UserWarning, stacklevel=2)
    scorer, record = _trained(args, rows, held, schema, folder, mesh)
    if not processes.is_first():
        return {"process": jax.process_index()}, (
            f"Process {jax.process_index()}: the scorer is that of the first one, bit for bit.")
    if folder is not None:
        scorer.save(folder / MODEL)
        own_files.write(folder / REPORT, json.dumps(record, indent=1))
        own_files.write(folder / PAGE, report.page(scorer, record))
        if mesh is None:
            own_files.remove(folder / UNFINISHED)  # with the keys
    return record, "\n".join(_lines(args, scorer, record, 0 if held is None else len(held)))


def _public(frame: Any) -> tuple[list[str], int]:
    """Returns what is public about a table without a schema: names, and the number of rows."""
    return list(frame.columns), len(frame)


def _trained(args: argparse.Namespace, rows: Any, held: Any, schema: Schema,
             folder: pathlib.Path | None, mesh: Mesh | None) -> tuple[Scorer, dict[str, Any]]:
    """Returns the scorer, the scorers of the curve, and their record."""
    ledger = processes.in_first(lambda: None if args.ledger is None else Ledger(args.ledger))
    scorers, kept = [], None if folder is None or mesh is not None else folder / UNFINISHED
    for k, target in enumerate((args.epsilon, *args.curve)):
        key = None if args.seed is None else jax.random.key(args.seed, impl="threefry2x32")
        if key is not None and k:
            key = jax.random.fold_in(key, k + 1)
        scorers.append(training.train(
            rows, schema, epsilon=target, delta=args.delta, key=key, ledger=ledger, name=args.name,
            progress=sys.stderr.isatty() and not (args.quiet or args.json), unit=args.unit,
            people=args.people, allow_large_delta=args.allow_large_delta, mesh=mesh,
            folder=None if kept is None else kept / str(k),
            shards=None if mesh is None else processes.shards_of(mesh)))
    scorer = scorers[0]
    record: dict[str, Any] = {"auc": None, "auc_standard_error": None, "auc_reference": None}
    if held is not None:
        record = scores.held_out(scorer, rows, held)
    measured = list(record)
    record |= {"epsilon": scorer.statement.epsilon, "delta": scorer.statement.delta,
               "table": pathlib.Path(args.table).name, "purpose": args.purpose, "by": args.by,
               "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
               "versions": {"jaxminimax": VERSION, "Python": platform.python_version(), **{
                   name: importlib.metadata.version(name) for name in ("jax", "numpy")}},
               "ledger": None if ledger is None else _books(ledger), "seed": args.seed,
               "group_losses": scorer.group_losses,
               **report.released(scorer),
               "schema": scorer.schema.to_dict(),
               "notes": [note.to_json() for note in scorer.notes],
               "outside_the_guarantee": [*measured, "curve"],
               "statement": scorer.statement.to_json()}
    if len(scorers) > 1:
        labels = schema.labels(held)
        record["curve"] = []
        for one in scorers[1:] if record["auc"] is not None else ():
            auc, error = scores.area(one.decision_function(held), labels)
            record["curve"].append({"epsilon": one.statement.epsilon, "auc": auc,
                                    "auc_standard_error": error})
        record["epsilon_with_curve"] = epsilon(Sequence(parts=tuple(
            one.described for one in scorers if one.described is not None)), args.delta,
            people=args.people)
    return scorer, record


def _books(ledger: Ledger) -> dict[str, Any]:
    """Returns what a ledger has spent and what remains, as a record."""
    stated = ledger.statement()
    return {"epsilon": stated.epsilon, "delta": stated.delta, "unit": stated.unit,
            "epsilon_so_far": stated.epsilon_if_stopped_by_looking,
            "share_left": ledger.remaining().share,
            "runs": [one["name"] for one in stated.runs]}


def _lines(args: argparse.Namespace, scorer: Scorer, out: dict[str, Any], held: int) -> list[str]:
    """Returns the lines that are printed without --json."""
    lines = [str(scorer.statement)]
    if scorer.group_losses is not None:
        each = ", ".join(f"{name} {loss:.3f}" for name, loss in scorer.group_losses.items())
        lines.append(f"Mean losses of the groups, with noise, released: {each}.")
    lines += [f"{what[0].upper()}{what[1:]}: {number}." for what, number in
              report.released_words(scorer).items()]
    if held and scorer.schema.target is not None:
        each = ", ".join(f"{name} {out[key]:.4g} (without privacy {out[f'{key}_reference']:.4g})"
                         for key, name in report.SCORES.items() if out.get(key) is not None)
        lines.append(f"{held} rows held out, outside of the guarantee: {each}.")
    elif held:
        of = "of one label only" if out["auc"] is None else report.with_error(
            out["auc"], out["auc_standard_error"])
        best = ("of one label only" if out["auc_reference"] is None
                else f"{out['auc_reference']:.4f}")
        lines.append(f"{held} rows held out, outside of the guarantee: AUC {of}, and {best} of a "
                     "logistic regression without privacy on the same features.")
    lines += [f"At epsilon = {x['epsilon']:.4g}: AUC "
              f"{report.with_error(x['auc'], x['auc_standard_error'])}."
              for x in out.get("curve", ())]
    if "epsilon_with_curve" in out:
        lines.append(f"With the runs of the curve everything together has epsilon = "
                     f"{out['epsilon_with_curve']:.4g} at delta = {args.delta:g}.")
    if out["ledger"] is not None:
        lines.append(f"Ledger: {100 * out['ledger']['share_left']:.3g} % of its budget is left, "
                     f"epsilon = {out['ledger']['epsilon']:g} at delta = "
                     f"{out['ledger']['delta']:g} for {', '.join(out['ledger']['runs'])}.")
    if args.seed is not None:
        lines.append("The noise is of a seed: for experiments, not for release.")
    return lines


def _held(folder: pathlib.Path | None) -> contextlib.ExitStack:
    """Locks the folder of the results for this process, before any budget is spent."""
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
        held.callback(_drop_empty, folder / UNFINISHED)
        return held.pop_all()


def _drop_empty(folder: pathlib.Path) -> None:
    """Removes the folder of runs if it holds none, as after a refusal."""
    with contextlib.suppress(OSError):
        folder.rmdir()
