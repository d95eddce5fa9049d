"""`python -m benchmarks.tables.notes`: how often released moments show a mistake in a table.

Each case spoils one column of a table, or none. Records are drawn anew for each seed, their moments
are released as `jaxminimax.tables.train` does, and `tables.notes.after` reads them. At each
epsilon "noted" counts the seeds with a note on the spoilt column, "others" those with a note on
another one. With --json the cases that the file holds are not made again, so that a stopped command
goes on.
"""

import functools
import math
from typing import Any

import jax
import numpy as np
import pandas as pd

from benchmarks.common import report
from benchmarks.tables import table_sets
from jaxminimax.apps.tables import (
    Category,
    Defaults,
    Number,
    Schema,
    defaults,
    notes,
    statistics,
)
from jaxminimax.apps.tables.records import scaled

TABLES = ("synthetic", "adult: income", "fair: an affair", "randhie: a visit")
_ROWS = 50_000  # of the synthetic table
_FIRST = 2 * 10**6  # seed; the rule was found with smaller ones


@functools.cache
def synthetic() -> tuple[pd.DataFrame, Schema]:
    """Makes a table of adult's shape: six numbers and eight categories, the same for all."""
    rng = np.random.default_rng(0)
    sizes = {"work": 9, "school": 16, "family": 7, "job": 15, "role": 6, "origin": 5, "sex": 2,
             "country": 42}
    frame = pd.DataFrame({name: [f"v{k}" for k in rng.choice(size, _ROWS, p=_shares(rng, size))]
                          for name, size in sizes.items()})
    frame["age"] = np.clip(rng.normal(39, 13, _ROWS), 17, 90).round()
    frame["weight"] = rng.uniform(0, 1, _ROWS)
    frame["years"] = np.clip(rng.normal(10, 2.5, _ROWS), 1, 16).round()
    frame["gain"] = np.where(rng.uniform(size=_ROWS) < 0.08, rng.lognormal(8.5, 1, _ROWS), 0)
    frame["loss"] = np.where(rng.uniform(size=_ROWS) < 0.05, rng.lognormal(7.5, 0.3, _ROWS), 0)
    frame["hours"] = np.where(rng.uniform(size=_ROWS) < 0.45, 40,
                              np.clip(rng.normal(41, 16, _ROWS), 1, 99)).round()
    frame["income"] = np.where(rng.uniform(size=_ROWS) < 0.24, "high", "low")
    kinds: dict[str, Any] = {name: Category(tuple(f"v{k}" for k in range(size)))
                             for name, size in sizes.items()}
    kinds |= {"age": Number(17, 90), "weight": Number(0, 1), "years": Number(1, 16),
              "gain": Number(0, 99_999, log=True), "loss": Number(0, 5000, log=True),
              "hours": Number(1, 99)}
    return frame, Schema(kinds, "income", "high")


def _shares(rng: np.random.Generator, size: int) -> np.ndarray:
    weights = rng.exponential(size=size)
    return weights / weights.sum()


def spoilt(frame: pd.DataFrame, schema: Schema) -> dict[str, tuple[str | None, pd.DataFrame]]:
    """Returns the cases by name: the spoilt column, None for right data, and the table."""
    cases: dict[str, tuple[str | None, pd.DataFrame]] = {"right data": (None, frame)}

    def add(what: str, name: str, cells: Any) -> None:
        cases[what] = name, frame.assign(**{name: cells})

    for name, kind in schema.columns.items():
        cells = frame[name]
        if isinstance(kind, Category):
            add(f"{name}: other text", name, cells.astype(str).str.swapcase() + "'")
            add(f"{name}: coded", name, pd.factorize(cells)[0] + 100)
        elif isinstance(kind, Number) and not kind.log:
            width, numbers = kind.high - kind.low, cells.astype(float)
            add(f"{name}: text", name, "n" + cells.astype(str))
            add(f"{name}: missing", name, np.nan)
            add(f"{name}: a constant", name, kind.low + 0.7 * width)
            add(f"{name}: a twelfth of its unit", name,
                kind.high + 12 * (numbers - numbers.min() + 1))
            add(f"{name}: a range ten times too wide", name,
                kind.low + (numbers - kind.low) / 10)
    add(f"{schema.label}: positive never occurs", schema.label, "another value")
    return cases


def measure(x: np.ndarray, y: np.ndarray, chosen: Defaults, schema: Schema, column: str | None,
            seeds: range) -> dict[str, Any]:
    """Counts the seeds with a note on `column`, and those with a note on another one."""
    records = chosen.population
    noted = others = 0
    for seed in seeds:
        rows = np.random.default_rng([seed, 1]).choice(len(y), records, replace=False)
        first, second = jax.random.split(jax.random.key(seed))
        x_rows, weight = x[rows][:, None], np.ones((records, 1), np.float32)
        by = statistics.release_moments(first, chosen.moments, x_rows, y[rows][:, None], weight,
                                        schema, chosen.standardise)
        of_rows = None
        if chosen.matrix is not None:
            divisors = chosen.divisors(by)
            squares = np.diag(statistics.release_second_moments(
                second, chosen.matrix, scaled(x_rows, *divisors), weight))
            of_rows = statistics.variances(squares, *divisors, chosen.matrix)
        mistakes = {note.column for note in notes.after(
            schema, by, statistics.deviation(chosen.moments), features=chosen.standardise,
            of_rows=of_rows, label_deviation=chosen.label_deviation)}
        noted += column in mistakes
        others += bool(mistakes - {column})
    return {"noted": noted, "others": others, "seeds": len(seeds)}


def kind_of(case: str) -> str:
    """Returns the mistake of a case, without the column."""
    return case.partition(": ")[2] or case


def tables(result: dict[str, Any]) -> str:
    """Words the results as a Markdown table, cases of one kind together."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, cases in result["tables"].items():
        for case, counts in cases["cases"].items():
            rows.setdefault((name, kind_of(case)), []).append(counts)
    budgets = [f"{x:g}" for x in result["arguments"]["epsilon"]]
    lines = []
    for (name, kind), counts in rows.items():
        table, right = result["tables"][name], kind == "right data"
        line = [name, f"{table['records']:,}", f"{table['width']}", kind,
                "" if right else f"{len(counts)}"]
        for at in ([x[budget] for x in counts] for budget in budgets):
            total = sum(x["seeds"] for x in at)
            line += ["", ""] if right else [
                f"{sum(x['noted'] for x in at)} of {total}",
                f"{min(x['noted'] / x['seeds'] for x in at):.2f}"]
            line.append(f"{sum(x['others'] for x in at)} of {total}")
        lines.append(line)
    return report.markdown(("table", "n", "d", "mistake", "columns", *(
        f"{what}, ε = {budget}" for budget in budgets for what in (
            "noted", "fewest in a column", "a note on another column"))), lines)


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = report.Parser(__file__, __doc__, "json", "markdown")
    parser.add_argument("--tables", nargs="+", default=TABLES, metavar="NAME",
                        help=f"default: {', '.join(TABLES)}")
    parser.add_argument("--epsilon", type=report.number(0, math.inf), nargs="+", default=(1.0, 4.0))
    parser.add_argument("--delta", type=report.number(0, 1), default=1e-6)
    parser.add_argument("--records", type=int, default=7000, help="most records of a table")
    parser.add_argument("--seeds", type=int, default=40, help="of each case")
    parser.add_argument("--right", type=int, default=1000, help="seeds of right data")
    args = parser.parse_args(argv)
    arguments = {"epsilon": list(args.epsilon), "delta": args.delta, "records": args.records,
                 "seeds": args.seeds, "right": args.right}
    done: dict[str, Any] = report.kept(args.json, "tables", arguments, list(arguments)) or {}
    for name in args.tables:
        if name == "synthetic":
            frame, schema = synthetic()
        else:
            table = table_sets.load(name)
            frame, schema = table.frame, table.schema
        records = min(args.records, round(0.9 * len(frame)))
        cases = done.get(name, {"cases": {}})["cases"]
        chosen = [defaults(records, schema, epsilon=epsilon, delta=args.delta)
                  for epsilon in args.epsilon]
        done[name] = {"records": records, "width": schema.width, "cases": cases}
        for k, (case, (column, spoilt_frame)) in enumerate(spoilt(frame, schema).items()):
            if case in cases:
                continue
            start = _FIRST + k * 10_000
            seeds = range(start, start + (args.right if column is None else args.seeds))
            x, y = schema.features(spoilt_frame), schema.labels(spoilt_frame)
            cases[case] = counts = {f"{epsilon:g}": measure(x, y, one, schema, column, seeds)
                                    for epsilon, one in zip(args.epsilon, chosen, strict=True)}
            report.say(f"{name}, {case}: {counts}")
            report.save(args, {"tables": done}, arguments)
    report.show(args, tables({"tables": done, "arguments": arguments}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
