"""`python -m benchmarks.papers.table2`: Table 2 of the DP-SGDA paper, printed and honest.

Two readings of every cell, beside the published figure: "printed", the paper's own protocol with
its own noise, and the epsilon that this noise really has; "honest", calibrated noise under
replace-one at the stated (epsilon, delta). Rows of the method "front end" put a fixed public map of
the record before the scorer: another model, compared with the published MLP.
"""

import argparse
import dataclasses
import functools
import itertools
import math
import os
import statistics
import time
from typing import Any

import jax

import jaxminimax as jmm
from benchmarks.accuracy.auc import runs as auc_runs
from benchmarks.common import report, settings
from benchmarks.data_sets import data
from benchmarks.papers.table2 import claims, protocol
from benchmarks.papers.table2 import settings as table2_settings
from jaxminimax import Saddle

READINGS = ("honest", "printed")
METHODS = (*table2_settings.METHODS, "front end")
_SAME = ("split", "quick")
_ASSUMED = (
    settings.ASSUMED,
    "Validation rows of ijcnn1 overlap with the rows that are scored for other seeds, and for the "
    "MLPs of the images a few last choices were made by the test file.",
    "Keys follow from the seeds so that the table can be repeated; a real run needs a secret key.",
    "The AUC of the held-out rows is computed without privacy.",
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One reading of one figure of the table; epsilon infinite: without noise."""

    reading: str
    dataset: str
    method: str
    epsilon: float
    delta: float

    @property
    def column(self) -> str:
        """The label of its runs, which goes into their keys."""
        return f"{self.reading}, {self.dataset}, {self.method}"

    @property
    def name(self) -> str:
        """For progress and for the results file."""
        noise = (f"epsilon {self.epsilon:g}, delta {self.delta:g}" if self.epsilon < math.inf
                 else "no noise")
        return f"{self.column}, {noise}"


def parser() -> report.Parser:
    p = report.Parser(__file__, __doc__, "markdown", "plot")
    p.add_argument("--datasets", nargs="+", choices=table2_settings.DATASETS,
                   default=table2_settings.DATASETS)
    p.add_argument("--readings", nargs="+", choices=READINGS, default=READINGS)
    p.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    p.add_argument("--epsilon", type=report.number(0, 1e6), nargs="+",
                   default=table2_settings.EPSILONS)
    p.add_argument("--delta", type=report.number(0, 1), nargs="+", default=table2_settings.DELTAS)
    report.seed_options(p, 5)
    report.cell_option(p)
    p.add_argument("--split", choices=("random", "validation"), default="random",
                   help="validation: test on held-out training rows, for choosing settings")
    p.add_argument("--data-dir", help="folder of the data files (or set JAXMINIMAX_DATA)")
    p.add_argument("--quick", action="store_true",
                   help="epsilon 0.1, 1 and 10, delta 1e-6, one seed, the printed reading and the "
                        "front end of ijcnn1 alone")
    p.add_argument("--json", type=report.output(".json"),
                   help="write the results to this file after every seed of every cell; those that "
                        "it holds already, from the same settings, are not run again")
    return p


def cells(args: Any) -> list[Cell]:
    """What is run, in order."""
    budgets = [*itertools.product(args.epsilon, args.delta), (math.inf, min(args.delta))]
    result = [Cell(r, d, m, *budget) for r, d, m, budget in itertools.product(
        args.readings, args.datasets, args.methods, budgets) if r == "honest" or m != "front end"]
    if args.quick:
        left_out = {("printed", "nseg")} | {
            (x, m) for x in ("mnist", "fashion_mnist") for m in ("printed", "front end")}
        result = [c for c in result if not left_out & {
            (c.reading, c.method), (c.dataset, c.reading), (c.dataset, c.method)}]
    names = report.chosen(args, [c.name for c in result])
    return [c for c in result if c.name in names]


@functools.lru_cache(maxsize=2)
def _load(data_dir: str | None, name: str, features: str | None, seed: int,
          split: str) -> data.Dataset:
    try:
        return data.load(name, data_dir=data_dir, seed=seed, split=split, features=features)
    except (ValueError, OSError) as error:
        raise auc_runs.Refused(str(error)) from error


def rows_of(args: Any, name: str, features: str | None,
            seed: int) -> tuple[data.Dataset, auc_runs.Tests]:
    """Training data and test sets; ijcnn1 is split anew for every seed."""
    own = seed if name == "ijcnn1" else 0
    first = _load(args.data_dir, name, features, own, args.split)
    tests = [(first.x_test, first.y_test)]
    if name == "ijcnn1" and args.split == "random":
        file = _load(args.data_dir, name, features, own, "file")
        if features == "published scaling":  # by the same extremes
            file = dataclasses.replace(file, x_train=first.x_train)
        tests.append((file.x_test, file.y_test))
    return first, tests


def honest(args: Any, cell: Cell, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """AUCs of one seed with calibrated noise, and what is the same for all seeds."""
    algorithm = "extragradient" if cell.method == "nseg" else "sgda"
    scorer, s = table2_settings.choose(cell.dataset, cell.method, cell.epsilon)
    dataset, tests = rows_of(args, cell.dataset, s.features, seed)
    lane = auc_runs.lane(s, algorithm, scorer, dataset, cell.epsilon, cell.delta, rate=s.rate)
    result = auc_runs.measure(algorithm, scorer, [lane], cell.column, [(dataset, tests, [seed])], 1)
    facts = {"scorer": scorer, "features": s.features or "default",
             "noise_multiplier": jmm.accounting.effective_noise_multiplier(lane.hyper.query),
             "iterations": lane.hyper.iterations}
    if cell.epsilon < math.inf:
        facts["statement"] = report.stated(jmm.statement(
            auc_runs.ALGORITHMS[algorithm], lane.hyper, result.state[0], delta=cell.delta,
            unit=dataset.unit), (*dataset.public, *_ASSUMED))
    # A private run's average is fixed beforehand as its answer; no best of two there.
    return {"average": [float(x) for x, in result.auc[0]], "seconds": result.seconds[0]}, facts


@functools.cache
def _without_noise(data_dir: str | None, split: str, dataset: str, method: str, seed: int,
                   like: protocol.Printed) -> tuple[Any, ...]:
    """AUCs of the last and the average point without noise, and the clip norms that it shows."""
    args = argparse.Namespace(data_dir=data_dir, split=split)
    rows, tests = rows_of(args, dataset, protocol.FEATURES[dataset], seed)
    state = protocol.trained(method, rows, seed, like, Saddle(1.0, 1.0))
    return (*protocol.scores(method, state, tests),
            protocol.clip_norms(method, rows, seed, like, state))


def printed(args: Any, cell: Cell, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """AUCs of one seed by the paper's own protocol, and what is the same for all seeds."""
    features, like = protocol.FEATURES[cell.dataset], protocol.TABLE4[cell.method, cell.dataset]
    if args.quick:
        like = dataclasses.replace(like, epochs=min(like.epochs, 15))
    clock = time.perf_counter()
    last, average, clip = _without_noise(args.data_dir, args.split, cell.dataset, cell.method, seed,
                                         like)
    rows, tests = rows_of(args, cell.dataset, features, seed)
    epochs = like.epochs if cell.epsilon == math.inf else like.private_epochs
    rounds = epochs * len(rows.y_train) // protocol.BATCH
    facts = {"scorer": cell.method, "features": features, "iterations": rounds}
    if cell.epsilon < math.inf:
        state = protocol.trained(cell.method, rows, seed, like, clip, cell.epsilon, cell.delta)
        last, average = protocol.scores(cell.method, state, tests)
        mechanism = protocol.described(cell.method, len(rows.y_train), rounds, cell.epsilon,
                                       cell.delta)
        bound = jmm.epsilon(mechanism, cell.delta)
        facts |= {"noise_multiplier": jmm.accounting.effective_noise_multiplier(mechanism.query),
                  "true_epsilon_attained": protocol.attained(mechanism, cell.delta),
                  "true_epsilon_bound": bound if math.isfinite(bound) else None}
    return {"last": last, "average": average, "clip": list(clip),
            "seconds": time.perf_counter() - clock}, facts


def row(cell: Cell, result: dict[str, Any]) -> dict[str, Any]:
    """Mean and spread over seeds in per cent; the second test is the leak-free file.

    Which of two points the paper prints it does not say: the one that favours it, over all seeds.
    """
    seeds = list(result["seeds"].values())
    means = {point: statistics.fmean(one[point][0] for one in seeds)
             for point in ("average", "last") if point in seeds[0]}
    point = max(means, key=means.__getitem__)
    first = [100 * one[point][0] for one in seeds]
    made = {**dataclasses.asdict(cell), "auc_mean": statistics.fmean(first),
            "auc_std": statistics.stdev(first) if len(first) > 1 else 0.0, "point": point,
            **{k: x for k, x in result.items()
               if k not in ("recipe", "cell", "row", "seeds", "statement")},
            "seeds": len(seeds), "seconds": sum(one["seconds"] for one in seeds),
            "published": table2_settings.published(
                cell.dataset, "mlp" if cell.method == "front end" else cell.method, cell.epsilon,
                cell.delta)}
    if len(seeds[0][point]) > 1:
        made["auc_test_file"] = 100 * statistics.fmean(one[point][1] for one in seeds)
    if "clip" in seeds[0]:
        made |= {f"clip_{player}": statistics.fmean(one["clip"][k] for one in seeds)
                 for k, player in enumerate("wv")}
    return _finite(made)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {k: None if x == math.inf else x for k, x in values.items()}


def _recipe(cell: Cell) -> str:
    """What a cell is made with: a kept one is run again where this has changed."""
    if cell.reading == "printed":
        return repr(protocol.TABLE4[cell.method, cell.dataset])
    return repr(table2_settings.choose(cell.dataset, cell.method, cell.epsilon))


def main(argv: list[str] | None = None) -> int:
    """Runs the table; 0, 1 if a run diverged, or 2 after a refusal."""
    p = parser()
    args = p.parse_args(argv)
    if args.quick:
        args.epsilon, args.delta, args.seeds = (0.1, 1.0, 10.0), (1e-6,), 1
    args.epsilon, args.delta = sorted(set(args.epsilon)), sorted(set(args.delta))
    if args.data_dir is not None and not os.path.isdir(args.data_dir):
        p.error(f"--data-dir {args.data_dir}: no such folder; check the path")
    arguments = {k: getattr(args, k) for k in _SAME}
    if min(args.delta) < 1e-10:
        p.error(f"--delta {min(args.delta):g}: what a pair attains is not computed below 1e-10")
    clock = time.perf_counter()
    try:
        todo = {cell.name: cell for cell in cells(args)}
        if not todo:
            p.error("nothing to run: a front end has no printed reading; add another method or "
                    "reading")
        done = report.kept(args.json, "cells", arguments, _SAME) or {}
        column = None
        for name, seed in report.missing(done, {n: _recipe(c) for n, c in todo.items()},
                                         report.seeds(args)):
            cell = todo[name]
            if column not in (None, cell.column):
                jax.clear_caches()  # programs of other shapes: hundreds of MiB
            column = cell.column
            report.say(f"{name}, seed {seed}, {time.perf_counter() - clock:.0f} s so far")
            result, facts = (honest if cell.reading == "honest" else printed)(args, cell, seed)
            done[name] |= {"cell": _finite(dataclasses.asdict(cell)), **facts}
            done[name]["seeds"][str(seed)] = {"commit": report.commit(), **result}
            rows = rows_measured(done)
            report.save(args, {"rows": rows, "claims": claims.claims(rows), "cells": done},
                        arguments)
    except (auc_runs.Refused, ValueError) as error:
        p.error(str(error))
    except auc_runs.Diverged as error:
        report.say(f"{p.prog}: {error}")
        return 1
    rows = rows_measured(done)
    text = [claims.markdown(rows, _ASSUMED), "", "### Seeds and commits", "", report.runs(done)]
    report.show(args, "\n".join(text), "Table 2")
    if args.plot is not None:
        claims.plot(args.plot, rows)
    return 0


def rows_measured(done: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of all cells that were measured, column by column.

    Where the file has no seeds, it has the "row" of a run before releases were exact.
    """
    rows = [row(Cell(**{**one["cell"], "epsilon": one["cell"]["epsilon"] or math.inf}), one)
            if one["seeds"] else one["row"] for one in done.values()
            if one["seeds"] or "row" in one]
    return sorted(rows, key=lambda r: (
        READINGS.index(r["reading"]), table2_settings.DATASETS.index(r["dataset"]),
        METHODS.index(r["method"]), r["epsilon"] or math.inf, r["delta"]))


if __name__ == "__main__":
    raise SystemExit(main())
