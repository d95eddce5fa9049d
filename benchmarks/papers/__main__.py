"""`python -m benchmarks.papers`: what papers print about private minimax, beside ours.

Table 1 of PrivateDiff Minimax, all 16 private cells: five seeds of ours at a true epsilon equal to
the claimed one, and what the published noise and program give. Table 2 of Yang et al. and DP-FERMI
on Adult are not run: their rows are read from the results of `benchmarks.papers.table2` and
`benchmarks.accuracy.fair`.

    python -m benchmarks.papers --json --markdown --plot

Without file names the three are written to papers/results. The JSON file is written after every
seed of every cell, and those that it holds already, from the same settings, are not run again. More
seeds of one cell are added to it by

    python -m benchmarks.papers --json --cell "imbalanced Fashion-MNIST 0.5" --first-seed 100
"""

import os
import time
from typing import Any

import jax

from benchmarks.accuracy.auc import runs as auc_runs
from benchmarks.common import report
from benchmarks.papers import auc as runs
from benchmarks.papers import claims, page, truth

PAPERS = ("privatediff", "yang", "fermi")
ROOT = page.RESULTS.parents[2]
READ = {"yang": page.RESULTS / "table2.json",  # paper -> the results that hold its rows
        "fermi": ROOT / "benchmarks/accuracy/results/fair.json"}
_SAME = ("epochs", "split", "quick")


def parser() -> report.Parser:
    """The arguments."""
    p = report.Parser(__file__, __doc__)
    p.add_argument("--papers", nargs="+", choices=PAPERS, default=PAPERS)
    report.seed_options(p, 5)
    report.cell_option(p)
    p.add_argument("--epochs", type=report.count, default=10,
                   help=f"of the re-runs of PrivateDiff's program, at most {truth.EPOCHS}")
    p.add_argument("--split", choices=("file", "validation"), default="file",
                   help="validation: test on held-out training rows, for choosing settings")
    p.add_argument("--data-dir", help="folder of the data files (or set JAXMINIMAX_DATA)")
    p.add_argument("--quick", action="store_true", help="one seed, epsilon 1, re-runs of one epoch")
    for ending, what in (("json", "write the results to this file after every cell"),
                         ("md", "write the tables to this file"),
                         ("png", "plot AUC and epsilon against the claimed epsilon")):
        name = {"json": "--json", "md": "--markdown", "png": "--plot"}[ending]
        p.add_argument(name, nargs="?", type=report.output(f".{ending}"), help=what,
                       const=str(page.RESULTS / f"published.{ending}"))
    return p


def check(args: Any) -> None:
    """Refuses what no run can do, before any data are read.

    Raises:
        ValueError: for more epochs than the program has, a folder or a results file that is not
            there, or one that holds something else.
    """
    if args.epochs > truth.EPOCHS:
        raise ValueError(f"--epochs {args.epochs}: the program has {truth.EPOCHS}; give at most "
                         "that")
    if args.data_dir is not None and not os.path.isdir(args.data_dir):
        raise ValueError(f"--data-dir {args.data_dir}: no such folder; check the path")
    if "yang" in args.papers and not READ["yang"].exists():
        raise ValueError(f"{READ['yang']} is not there: python -m benchmarks.papers.table2 "
                         "makes it, or leave yang out of --papers")


def cells(args: Any) -> list[claims.Cell]:
    """What is run, in order."""
    if "privatediff" not in args.papers:
        return []
    result = {c.name: c for c in claims.CELLS if not args.quick or c.epsilon == 1.0}
    return [result[name] for name in report.chosen(args, list(result))]


def run(args: Any, cell: claims.Cell, seed: int) -> dict[str, Any]:
    """Our AUC of one cell and seed, which draws the positives of an imbalanced task, too.

    Raises:
        ValueError: if the data cannot be read, or a run diverged.
    """
    s = claims.ours(cell)
    try:
        dataset = runs.images(cell.data, cell.ratio, seed=seed, map_of=s.features,
                              split=args.split, data_dir=args.data_dir)
        train: Any = runs.whitened if isinstance(s, runs.Whitened) else runs.mlp
        return dict(train(s, dataset, cell.epsilon, claims.DELTA, seed, cell.name))
    except (OSError, auc_runs.Refused, auc_runs.Diverged) as error:
        raise ValueError(str(error)) from error


def results(args: Any, done: dict[str, Any]) -> tuple[list[page.Row], list[dict[str, Any]]]:
    """Rows of all papers, and what the re-runs saw; of cells that are finished."""
    rows, details = [], []
    for cell in claims.CELLS:
        result, theirs = done.get(f"ours, {cell.name}"), done.get(f"theirs, {cell.name}")
        if result and result["seeds"] and theirs and theirs["seeds"]:
            seen = theirs["seeds"]["0"]
            rows.append(page.of_privatediff(cell, result, seen))
            details.append({"data": cell.title, "epsilon": cell.epsilon, **seen})
    if "yang" in args.papers:
        rows += page.of_yang(READ["yang"])
    if "fermi" in args.papers:
        rows += page.of_fermi(READ["fermi"])
    return rows, details


def write(args: Any, arguments: dict[str, Any], done: dict[str, Any], complete: bool) -> None:
    """The results so far."""
    if args.json is None:
        return
    rows, details = results(args, done)
    report.save(args, {
        "complete": complete and len(details) == len(claims.CELLS),
        "rows": rows, "reruns": details, "cells": done, "assumed": list(claims.ASSUMED),
        "read": {paper: file.relative_to(ROOT).as_posix() for paper, file in READ.items()
                 if paper in args.papers and file.exists()}}, arguments)


def main(argv: list[str] | None = None) -> int:
    """Runs the table; 0, or 2 after a refusal."""
    p = parser()
    args = p.parse_args(argv)
    if args.quick:
        args.seeds, args.epochs = 1, 1
    arguments = {name: getattr(args, name) for name in ("papers", *_SAME)}
    clock = time.perf_counter()
    try:
        check(args)
        done = report.kept(args.json, "cells", arguments, _SAME) or {}
        for side, seeds in (("ours", report.seeds(args)), ("theirs", range(1))):
            todo = {f"{side}, {cell.name}": cell for cell in cells(args)}
            recipes = {name: claims.recipe(cell) if side == "ours" else repr(cell)
                       for name, cell in todo.items()}
            for name, seed in report.missing(done, recipes, seeds):
                report.say(f"{name}, seed {seed}, {time.perf_counter() - clock:.0f} s so far")
                result = (run(args, todo[name], seed) if side == "ours" else
                          truth.privatediff(todo[name], args.data_dir, args.epochs, args.split))
                own = ("auc", "seconds") if side == "ours" else tuple(result)
                done[name]["seeds"][str(seed)] = {"commit": report.commit(),
                                                  **{k: result.pop(k) for k in own}}
                done[name] |= result
                write(args, arguments, done, False)
                if set(map(str, seeds)) <= set(done[name]["seeds"]):
                    jax.clear_caches()  # the next cell has programs of other shapes
        write(args, arguments, done, True)
        rows, details = results(args, done)
    except (ValueError, OSError) as error:
        p.error(str(error))
    if "fermi" in args.papers and not READ["fermi"].exists():
        report.say("DP-FERMI is left out: python -m benchmarks.accuracy.fair makes its results")
    text = page.markdown(rows, details, done, claims.ASSUMED)
    print(text)
    if args.markdown is not None:
        args.markdown.write_text(text, encoding="utf-8")
    if args.plot is not None:
        page.plot(args.plot, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
