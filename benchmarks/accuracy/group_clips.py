"""`python -m benchmarks.accuracy.group_clips`: clip norms of groups that follow their weights.

`balanced_groups` on three tables by random splits: with one clip norm for all groups, balanced or
balanced at first, and with `GroupGradients(clips="by_weight")`. Every way has the moments,
features, charge, rounds, steps and noise multipliers that the rule for tables gives, from public
numbers, and the same split and key. No setting is chosen here, neither by a run nor by a table.
With --json, runs that the file holds are not made again.
"""

import dataclasses
import json
import math
import statistics as numbers
import sys
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.accuracy.worst_group import __main__ as worst_group
from benchmarks.accuracy.worst_group import methods, tasks
from benchmarks.common import report, verdicts
from jaxminimax import Saddle, balanced_groups
from jaxminimax.accounting import calibrate_noise
from jaxminimax.apps.tables import NoteWarning, defaults, records, statistics
from jaxminimax.releases import release_keys

CASES = {"randhie-label": 80, "cattaneo-label": 80, "adult-label": 40}  # and seeds at most
EPSILONS = (0.5, 1.0, 4.0)
RATES = (0.01, 0.03, 0.1, 0.3)  # of Poisson samples whose noise is held against that of all records
ASSUMED = (
    "Keys follow from the seeds so that the table can be repeated; a real run needs a secret key.",
    "The ways of one split share its key and noise, to compare them; the difference of two "
    "such runs would give data away.",
    "Accuracy of held-out rows is computed without privacy.",
    "The settings of the rule for tables were chosen on tables, these among them.")


class Way(NamedTuple):
    """How a model is trained: the rule's method, and the clip norms."""

    method: str
    clips: str = "equal"


WAYS = {
    "balanced": Way("balanced"),
    "balanced, then minimax": Way("minimax"),
    "clips by weight": Way("minimax", "by_weight"),
    "balanced, clips by weight": Way("balanced", "by_weight")}
OURS = "clips by weight"


def load(case: str) -> tasks.Task:
    """A table in groups that contain the label; a fifth of the training rows is held out."""
    one = worst_group.CASES[case]
    task = tasks.load(one.dataset, one.groups, by_label=one.by_label, least=one.least)
    return dataclasses.replace(task, held=None)


def worst(way: Way, task: tasks.Task, seed: int, epsilon: float, delta: float) -> float:
    """The smallest accuracy of a group, of rows that are held out."""
    rows, held = task.split(seed)
    groups, own = task.groups_of(rows), records.records(rows.x, rows.y)
    assert task.table is not None  # made-up groups have none
    schema = task.table.schema
    chosen = defaults(len(rows.y), schema, epsilon=epsilon, delta=delta, sizes=groups.sizes,
                      by_label=True, method=way.method)
    hyper = dataclasses.replace(
        chosen.hyper, query=dataclasses.replace(chosen.hyper.query, clips=way.clips))
    root = jax.random.fold_in(jax.random.key(seed), np.float32(epsilon).view(np.uint32))
    keys = release_keys.training_keys(root, False)
    by = statistics.release_moments(keys.moments, chosen.moments, own.x, own.y, own.weight, schema,
                                    chosen.standardise)
    divisors = chosen.divisors(by)
    data = groups.arranged((records.scaled(own.x, *divisors), own.y.astype(np.float32),
                            np.asarray(own.weight, np.float32)))
    start = Saddle(jnp.zeros(own.x.shape[-1] + 1, jnp.float32), ())
    state = jmm.run(keys.rounds, start, data, hyper, balanced_groups,
                    records.GROUP_LOGISTIC).state
    said = jmm.statement(balanced_groups, hyper, state, delta=delta, alongside=chosen.extra())
    if not said.epsilon <= epsilon:
        raise ValueError(f"{way} has epsilon {said.epsilon}, above {epsilon}")
    w = np.asarray(state.average.w, np.float64)
    accuracy = methods.accuracies(records.scaled(held.x, *divisors) @ w, held, len(task.names))
    return float(accuracy.min())


def noise_of_samples(epsilon: float, delta: float, rounds: int) -> dict[str, float]:
    """The noise of Poisson samples for each record that is read, over that of all records."""
    def multiplier(sampling: Any) -> float:
        query = jmm.Query(clip=Saddle(1.0, None), sampling=sampling, population=10_000)
        described = calibrate_noise(jmm.Repeat(query=query, times=rounds), epsilon, delta)
        return float(described.query.noise_multiplier.w)

    every = multiplier(jmm.Full())
    return {f"{rate:g}": multiplier(jmm.Poisson(rate=rate)) / (rate * every) for rate in RATES}


def mean_of(values: list[float]) -> tuple[float, float | None]:
    """A mean, and its standard error; None of one value."""
    few = len(values) < 2
    return numbers.fmean(values), None if few else numbers.stdev(values) / math.sqrt(len(values))


def compared(values: dict[str, list[float]], first: str, second: str) -> dict[str, Any]:
    """The paired difference of two ways, with its standard error, and the verdict."""
    mean, error = mean_of([a - b for a, b in zip(values[first], values[second], strict=True)])
    return {"gain": mean, "gain_error": error, "verdict": verdicts.verdict(
        mean, math.inf if error is None else error, len(values[first]))}


def rows_of(runs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each cell: means with standard errors, and what is ahead of what."""
    made = []
    for run in runs.values():
        seeds = list(run["seeds"].values())
        values = {way: [one[way] for one in seeds] for way in WAYS}
        made.append({
            **{k: run[k] for k in ("case", "title", "sizes", "epsilon", "default", "samples")},
            "seeds": len(seeds),
            "ways": {way: mean_of(x) for way, x in values.items()},
            "of the rule": compared(values, OURS, run["default"]),
            "of balanced": compared(values, "balanced, clips by weight", "balanced"),
            "of minimax": compared(values, OURS, "balanced, then minimax")})
    return made


def table(result: dict[str, Any]) -> str:
    """Means with standard errors, the rule's choice in bold, and what is gained, as Markdown."""
    def pair(mean: float, error: float | None, form: str) -> str:
        return format(mean, form) + ("" if error is None else f" ± {error:.3f}")

    def gain(one: dict[str, Any]) -> str:
        return pair(one["gain"], one["gain_error"], "+.3f") + f", {one['verdict']}"

    shown = list(WAYS)[:3]
    lines = []
    for row in result["rows"]:
        means = {way: pair(row["ways"][way][0], row["ways"][way][1], ".3f") for way in shown}
        means[row["default"]] = f"**{means[row['default']]}**"
        lines.append([f"{row['title']} ({len(row['sizes'])}; {min(row['sizes'])})",
                      f"{row['epsilon']:g}", *means.values(), gain(row["of the rule"]),
                      gain(row["of minimax"]), gain(row["of balanced"])])
    return report.markdown(["table, groups (number; smallest)", "ε", *shown,
                            "over the rule's choice", "over one clip norm",
                            "balanced throughout, over one clip norm"], lines)


def counted(result: dict[str, Any]) -> dict[str, list[int]]:
    """In how many cells it is ahead, level and behind, for each comparison."""
    rows = result["rows"]
    return {name: [sum(row[name]["verdict"] == word for row in rows) for word in verdicts.WORDS]
            for name in rows[0] if name.startswith("of ")}


def parser() -> report.Parser:
    p = report.Parser(__file__, __doc__, "json")
    p.add_argument("--case", choices=CASES, nargs="+", default=tuple(CASES))
    p.add_argument("--epsilon", type=report.number(0, 1e6), nargs="+", default=EPSILONS)
    p.add_argument("--delta", type=report.number(0, 1), default=1e-6)
    report.seed_options(p, 80, ", a split each; at most 40 of adult-label")
    return p


def main(argv: list[str] | None = None) -> int:
    """Makes the runs that the file lacks; 0, or 2 after a refusal."""
    p = parser()
    args = p.parse_args(argv)
    arguments = {"delta": args.delta}
    cells = {f"{case}, epsilon {epsilon:g}": (case, epsilon) for case in args.case
             for epsilon in args.epsilon}
    loaded: dict[str, tasks.Task] = {}
    try:
        runs: dict[str, Any] = report.kept(args.json, "runs", arguments, list(arguments)) or {}
        for name, seed in report.missing(runs, dict.fromkeys(cells), report.seeds(args)):
            case, epsilon = cells[name]
            if seed >= args.first_seed + CASES[case]:
                continue
            if case not in loaded:
                loaded[case] = load(case)
            task = loaded[case]
            if "case" not in runs[name]:
                runs[name] |= {
                    "case": case, "title": task.title, "sizes": task.sizes, "epsilon": epsilon,
                    "default": methods.default_of(task, epsilon, args.delta),
                    "samples": noise_of_samples(epsilon, args.delta, 200)}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NoteWarning)
                runs[name]["seeds"][str(seed)] = {
                    way: worst(made, task, seed, epsilon, args.delta)
                    for way, made in WAYS.items()}
            report.save(args, {"assumed": ASSUMED, "rows": rows_of(runs), "runs": runs}, arguments)
    except (ValueError, OSError) as error:
        p.error(str(error))
    result = {"assumed": ASSUMED, "rows": rows_of(runs), "runs": runs}
    report.save(args, result, arguments)
    print(table(result))
    print(f"Cells ahead, level, behind: {json.dumps(counted(result))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
