"""`python -m benchmarks.accuracy.adaptive`: fixed clip norms, and those that follow a quantile.

Two kinds of settings, each with the clip norm that it was made with and with one ten times as
large, as if nobody had known: the default rule for tables (`benchmarks.tables.scorers`), and the
column "ijcnn1, MLP" of `benchmarks.papers.table2`, whose clip norm was chosen on validation splits
that are not paid for. Steps, rounds and epsilon stay what they were; the counts' share of the
budget is the default. With --json, runs that the file holds are not made again.
"""

import argparse
import dataclasses
import itertools
import json
import warnings
from typing import Any

import jax
import numpy as np
from sklearn.metrics import roc_auc_score

import jaxminimax as jmm
from benchmarks.accuracy.auc import runs as auc_runs
from benchmarks.common import report, result_tables
from benchmarks.data_sets import data
from benchmarks.papers.table2 import settings as table2_settings
from benchmarks.tables import table_sets
from jaxminimax import Saddle
from jaxminimax.apps.tables import files, rule
from jaxminimax.apps.tables.linear import train_linear
from jaxminimax.apps.tables.preparation import prepare
from jaxminimax.apps.tables.records import encoded
from jaxminimax.apps.tables.training import carry_out

TABLES = ("fair: an affair", "randhie: ten visits", "randhie: fair or poor health")
COLUMN = "ijcnn1, MLP"
EPSILONS = {"tables": (1.0, 4.0), COLUMN: (1.0, 5.0)}
WAYS: dict[str, tuple[float, float | None]] = {  # first clip norm over the given one, quantile
    f"{first}{name}": (factor, quantile)
    for first, factor in (("", 1.0), ("tenfold, ", 10.0))
    for name, quantile in (("stays", None), ("0.5", 0.5), ("0.9", 0.9))}
_DELTA = 1e-6
ASSUMED = (
    "Keys follow from the seeds so that the table can be repeated; a real run needs a secret key.",
    "AUC of held-out rows is computed without privacy.",
    "Steps and rounds were found with the given clip norm, and are not chosen anew.",
)


def described(hyper: Any, way: str) -> Any:
    """The settings with other clip norms; not calibrated."""
    factor, quantile = WAYS[way]
    adaptive = None if quantile is None else jmm.AdaptiveClip(quantile=Saddle(quantile, quantile))
    clip = jax.tree.map(lambda c: factor * c, hyper.query.clip)
    return dataclasses.replace(hyper, query=dataclasses.replace(
        hyper.query, clip=clip, adaptive=adaptive))


def of_table(name: str, seed: int) -> dict[str, dict[str, float]]:
    """AUC of one split of a table, by epsilon and way."""
    loaded = table_sets.load(name)
    test = files.held_out(len(loaded.frame), None, 0.2, seed)
    rows, held = loaded.frame[~test], loaded.frame[test]
    schema, answer = loaded.schema, loaded.schema.labels(held)
    result: dict[str, dict[str, float]] = {}
    for k, epsilon in enumerate(EPSILONS["tables"]):
        for j, way in enumerate(WAYS):
            prepared = prepare(encoded(rows, schema), schema, rule.defaults, epsilon=epsilon,
                               delta=_DELTA, names=())
            chosen: Any = prepared.settings
            hyper = jmm.calibrate(chosen.algorithm, described(chosen.hyper, way), epsilon, _DELTA,
                                  alongside=chosen.extra())
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), k), j)
            scorer = carry_out(dataclasses.replace(prepared, settings=dataclasses.replace(
                chosen, hyper=hyper)), key, train_linear)
            result.setdefault(f"{epsilon:g}", {})[way] = float(
                roc_auc_score(answer, scorer.decision_function(held)))
    return result


def of_column(args: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """AUC of the held-out rows of ijcnn1, by seed, epsilon and way."""
    def load(seed: int) -> data.Dataset:
        return data.load("ijcnn1", data_dir=args.data_dir, seed=seed, split="random")

    found: dict[str, dict[str, dict[str, float]]] = {}
    first = load(0)
    seeds = range(args.first_seed, args.first_seed + args.column_seeds)
    for way in WAYS:
        lanes = []
        for epsilon in EPSILONS[COLUMN]:
            scorer, s = table2_settings.choose("ijcnn1", "mlp", epsilon)
            lane = auc_runs.lane(s, "sgda", scorer, first, epsilon, _DELTA, rate=s.rate)
            hyper = jmm.calibrate(jmm.sgda, described(lane.hyper, way), epsilon, _DELTA)
            lanes.append(dataclasses.replace(lane, hyper=hyper))
        given = ((x, [(x.x_test, x.y_test)], [seed]) for seed, x in zip(seeds, map(load, seeds),
                                                                        strict=True))
        result = auc_runs.measure("sgda", scorer, lanes, f"adaptive, {way}", given, len(seeds))
        for lane, auc in zip(lanes, result.auc, strict=True):
            for seed, one in zip(seeds, auc[0], strict=True):
                found.setdefault(str(seed), {}).setdefault(f"{lane.epsilon:g}", {})[way] = one
    return found


def rows_of(runs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds, and gains of clip norms that follow, with their standard errors."""
    made = []
    for name, seeds in runs.items():
        for epsilon in next(iter(seeds.values())):
            auc = {way: np.array([run[epsilon][way] for run in seeds.values()]) for way in WAYS}
            row: dict[str, Any] = {"data": name, "epsilon": float(epsilon), "seeds": len(seeds),
                                   **{way: float(x.mean()) for way, x in auc.items()}}
            for first, quantile in itertools.product(("", "tenfold, "), ("0.5", "0.9")):
                way = f"{first}{quantile}"
                gain = auc[way] - auc[f"{first}stays"]
                row[f"{way} gain"] = float(gain.mean())
                row[f"{way} gain_error"] = (float(gain.std(ddof=1) / len(gain)**0.5)
                                            if len(gain) > 1 else None)
            made.append(row)
    return made


def result_of(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All runs, and how they were made."""
    return {"environment": report.environment(), "delta": _DELTA, "rows": rows_of(
        {k: v for k, v in runs.items() if v}), "assumed": ASSUMED, "runs": runs}


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = report.Parser(__file__, __doc__, "json", "markdown")
    parser.add_argument("--data", nargs="+", choices=(*TABLES, COLUMN), default=(*TABLES, COLUMN))
    report.seed_options(parser, 5, ", of a table")
    parser.add_argument("--column-seeds", type=report.count, default=3, help=f"of {COLUMN}")
    parser.add_argument("--data-dir", help="folder of the data files (or set JAXMINIMAX_DATA)")
    parser.add_argument("--quick", action="store_true", help="one seed of the first table")
    args = parser.parse_args(argv)
    runs: dict[str, dict[str, Any]] = {}
    if args.json is not None and args.json.is_file():
        runs = json.loads(args.json.read_text(encoding="utf-8"))["runs"]
    for name in TABLES[:1] if args.quick else args.data:
        own = runs.setdefault(name, {})
        seeds = 1 if args.quick else args.column_seeds if name == COLUMN else args.seeds
        for seed in (str(args.first_seed + k) for k in range(seeds)):
            if seed in own:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of a delta above 1/n
                if name != COLUMN:
                    own[seed] = of_table(name, int(seed))
                elif seed not in own:
                    own |= of_column(args)  # of all seeds
            report.say(f"{name}: {rows_of({name: own})}")
            if args.json is not None:
                report.write_json(args.json, result_of(runs))
    words = result_tables.adaptive_clip(result_of(runs)) + "".join(
        f"\n* {x}" for x in ASSUMED) + "\n"
    report.show(args, words)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
