"""`python -m benchmarks.tables.calibration`: probabilities of private scorers, against labels.

The expected calibration error on held-out rows, in bins of equal counts, and the log-loss: of a
logistic regression without privacy; of 1 / (1 + e^-s) for the scores s of private training before
their calibration; of these scores shrunk for the noise in the weights, which public numbers bound
(1 / sqrt(1 + pi v / 8), v the noise that the rule lets a score gather); and after the release of
intercept and slope that `tables.train` makes. With --json a stopped command goes on.
"""

import dataclasses
import statistics
import warnings
from typing import Any

import jax
import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from benchmarks.common import report
from benchmarks.tables import table_sets
from benchmarks.tables.table_sets import Table
from jaxminimax.apps.tables import (
    defaults,
    files,
    labels,
    linear,
    preparation,
    records,
    rule,
    training,
)
from jaxminimax.apps.tables.records import scaled

EPSILONS = (0.5, 1.0, 4.0)
NAMES = ("fair: an affair", "randhie: a visit", "ijcnn1", "adult: income")
WAYS = ("sigmoid", "shrunk", "calibrated")
BINS = 15
DELTA = 1e-6


def calibration_error(p: np.ndarray, y: np.ndarray) -> float:
    """The mean distance of probabilities and shares of labels, over bins of equal counts."""
    bins = np.array_split(np.argsort(p, kind="stable"), BINS)
    return float(sum(abs(np.sum(p[b] - y[b])) for b in bins) / len(p))


def _scored(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    return {"error": calibration_error(p, y), "loss": float(log_loss(y, p))}


def measure(table: Table, seed: int) -> dict[str, Any]:
    """One split: every way on the rows held out."""
    test = files.held_out(len(table.frame), None, 0.2, seed)
    schema = table.schema
    x, y = schema.features(table.frame[~test]), schema.labels(table.frame[~test])
    z, truth = schema.features(table.frame[test]), schema.labels(table.frame[test])
    scale = StandardScaler().fit(x)
    regression = LogisticRegression(max_iter=1000).fit(scale.transform(x), y)
    result: dict[str, Any] = {
        "reference": _scored(regression.predict_proba(scale.transform(z))[:, 1], truth)}
    rows = records.records(x, y)
    for k, epsilon in enumerate(EPSILONS):
        chosen = defaults(len(y), schema, epsilon=epsilon, delta=DELTA)
        train, last = jax.random.split(jax.random.fold_in(jax.random.key(seed), k))
        prepared = preparation.prepare(records.encoded(table.frame[~test], schema), schema,
                                       rule.defaults, epsilon=epsilon, delta=DELTA, names=())
        scorer = training.carry_out(dataclasses.replace(prepared, settings=dataclasses.replace(
            chosen, line=None)), train, linear.train_linear)
        own, held = (scaled(a, scorer.moments, scorer.floor) for a in (rows.x, z))
        scores = held @ scorer.weights
        spread = rule.GATHERED**2 * np.sum(held**2, 1)
        assert chosen.line is not None
        shift, slope = labels.release_calibration(last, chosen.line, own @ scorer.weights, rows.y,
                                                rows.weight, float(scorer.moments.prior))
        probabilities = {"sigmoid": scores, "shrunk": scores / np.sqrt(1 + np.pi * spread / 8),
                         "calibrated": shift + slope * scores}
        result[f"{epsilon:g}"] = {way: _scored(expit(s), truth) for way, s in probabilities.items()}
    return result


def _mean(numbers: list[float]) -> dict[str, float]:
    return {"mean": statistics.mean(numbers),
            "standard error": statistics.stdev(numbers) / len(numbers)**0.5}


def rows_of(runs: dict[str, Any]) -> list[dict[str, Any]]:
    """Means with standard errors over seeds; log-losses as their excess over the reference's."""
    made = []
    for name, seeds in runs.items():
        all_seeds = list(seeds.values())
        for epsilon in (f"{e:g}" for e in EPSILONS):
            row = {"table": name, "epsilon": float(epsilon), "seeds": len(all_seeds),
                   "reference": _mean([run["reference"]["error"] for run in all_seeds])}
            for way in WAYS:
                row[way] = _mean([run[epsilon][way]["error"] for run in all_seeds])
                row[f"{way} loss"] = _mean([run[epsilon][way]["loss"] - run["reference"]["loss"]
                                            for run in all_seeds])
            made.append(row)
    return made


def table(result: dict[str, Any]) -> str:
    """Calibration errors of every way, and how much log-loss the release saves."""
    def pair(cell: dict[str, float]) -> str:
        return f"{cell['mean']:.4f} ± {cell['standard error']:.4f}"

    return report.markdown(
        ["table", "ε", "no privacy", "scores as trained", "shrunk", "calibrated",
         "log-loss above no privacy, as trained", "calibrated"],
        [[row["table"], f"{row['epsilon']:g}", *(pair(row[k]) for k in ("reference", *WAYS)),
          pair(row["sigmoid loss"]), pair(row["calibrated loss"])] for row in result["rows"]])


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = report.Parser(__file__, __doc__, "json")
    parser.add_argument("--tables", nargs="+", metavar="NAME", default=NAMES,
                        choices=table_sets.TABLES, help="default: " + ", ".join(NAMES))
    report.seed_options(parser, 8)
    args = parser.parse_args(argv)
    arguments = {"tables": list(args.tables)}
    runs = report.kept(args.json, "runs", arguments, ["tables"]) or {}
    for name in args.tables:
        data, own = table_sets.load(name), runs.setdefault(name, {})
        for seed in map(str, report.seeds(args)):
            if seed not in own:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # of a delta above 1/n
                    own[seed] = measure(data, int(seed))
                report.say(f"{name}, seed {seed}: {own[seed]}")
                report.save(args, {"rows": [], "runs": runs}, arguments)
    rows = rows_of(runs)
    report.save(args, {"rows": rows, "runs": runs}, arguments)
    print(table({"rows": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
