"""`python -m benchmarks.accuracy.worst_group`: one private model for several groups.

For each epsilon, linear models are trained under a real (epsilon, delta) guarantee, with several
seeds, and measured on held-out records of every group: by the rule for tables, for the average
record, with balanced groups, and balanced and then minimax; and by the algorithms for the worst
group. References are logistic regressions without privacy, on the average record and on balanced
groups. Without options it trains on the tables that come with statsmodels.
"""

import json
import math
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from benchmarks.accuracy.worst_group import figures, tasks
from benchmarks.accuracy.worst_group import methods as group_methods
from benchmarks.accuracy.worst_group.methods import METHODS, NAMES, TABLES
from benchmarks.accuracy.worst_group.tasks import Task
from benchmarks.common import report

_ASSUMED = (
    "Keys follow from the seeds so that the table can be repeated; a real run needs a secret key.",
    "The theorems' settings were chosen on Adult without paying for it, those of the rule on "
    "several tables, Adult and randhie among them.",
    "Accuracy of the held-out records is computed without privacy.",
    "Rows without an epsilon are trained without privacy on the same records; no statement covers "
    "them.",
)
_SYNTHETIC = {"records": 10**6, "group_count": 100, "dim": 20}


class Case(NamedTuple):
    """A table in groups.

    Attributes:
      dataset: its name.
      groups: attributes.
      by_label: whether groups are cut by the label.
      least: records that a group must have.
      most: seeds that are worth their time.
    """

    dataset: str
    groups: str
    by_label: bool
    least: int
    most: int = 20


CASES = {
    "randhie-label": Case("randhie", "health", True, 150),
    "cattaneo-label": Case("cattaneo", "race", True, 100),
    "randhie": Case("randhie", "health", False, 150),
    "adult-label": Case("adult", "sex", True, 500, 10),
    "adult": Case("adult", "sex_race", False, 500, 5),
    "ijcnn1": Case("ijcnn1", "phase", False, 500, 5),
}
_EMBEDDED = ("randhie-label", "cattaneo-label", "randhie")


def parser() -> report.Parser:
    p = report.Parser(__file__, __doc__, "markdown", "plot")
    p.add_argument("--case", choices=CASES, nargs="+", default=_EMBEDDED,
                   help="tables in groups, with the label or without; those of adult and ijcnn1 "
                        "need files (default: those that come with statsmodels)")
    p.add_argument("--data-dir", help="folder of the data files (or set JAXMINIMAX_DATA)")
    p.add_argument("--method", choices=NAMES, nargs="+", default=NAMES)
    p.add_argument("--epsilon", type=report.number(0, 1e6), nargs="+", default=(1.0, 4.0))
    p.add_argument("--delta", type=report.number(0, 1), default=1e-6)
    report.seed_options(p, 20, "; at most 10 of adult-label, and 5 of adult and ijcnn1")
    report.cell_option(p)
    p.add_argument("--quick", action="store_true",
                   help="two seeds of the rule's methods on randhie at epsilon 1")
    p.add_argument("--synthetic", action="store_true",
                   help="time the algorithms on a million made-up records in a hundred groups")
    for name, value in _SYNTHETIC.items():
        p.add_argument(f"--{name.replace('_', '-')}", type=report.count, default=value,
                       help="with --synthetic")
    p.add_argument("--json", type=report.output(".json"), help="write the results to this file; "
                   "rows that are in it already, of the same settings, are kept")
    p.add_argument("--redraw", action="store_true",
                   help="train nothing: tables and figure of the rows that --json has")
    return p


def check(args: Any, p: report.Parser) -> None:
    """Refuses combinations of arguments that make no sense, before any data are read."""
    if args.data_dir is not None and not os.path.isdir(args.data_dir):
        p.error(f"--data-dir {args.data_dir}: no such folder; check the path")
    if args.records < args.group_count:
        p.error(f"--records {args.records}: give at least one for each of {args.group_count} "
                "groups")
    if args.synthetic and (args.plot or args.markdown):
        p.error("--plot and --markdown: --synthetic only times; drop one of them")
    if args.redraw and not (args.json and args.json.exists()):
        p.error("--redraw needs --json FILE, with the rows to draw")
    if args.quick:
        args.case, args.epsilon, args.seeds = ("randhie-label",), (1.0,), 2
        args.method = TABLES
    args.epsilon = sorted(set(args.epsilon))


def row(case: str, task: Task, name: str, epsilon: float | None, delta: float | None,
        accuracy: np.ndarray, more: dict[str, Any]) -> dict[str, Any]:
    """One line of the results: means over the seeds of held-out records, and standard errors.

    Args:
      case: its name in `CASES`.
      task: the groups.
      name: of the method.
      epsilon: None without privacy.
      delta: None without privacy.
      accuracy: `[seeds, p]`.
      more: entries of the line.
    """
    worst, seeds = accuracy.min(1), len(accuracy)
    counts = np.bincount(task.split(0)[1].group)
    return {
        "case": case, "dataset": task.name, "groups_by": task.groups, "method": name,
        "epsilon": epsilon, "delta": delta, "seeds": seeds,
        "default": epsilon is not None and delta is not None and (
            name == group_methods.default_of(task, epsilon, delta)),
        "worst_group": task.names[int(accuracy.mean(0).argmin())],
        "worst_group_accuracy": float(worst.mean()),
        "worst_group_accuracy_se": (float(worst.std(ddof=1) / math.sqrt(seeds)) if seeds > 1
                                    else None),
        "average_accuracy": float((accuracy @ counts / counts.sum()).mean()),
        "worst_by_seed": worst.tolist(),
        "groups": {group: {"accuracy": float(a), "n": int(n)} for group, a, n in zip(
            task.names, accuracy.mean(0), task.sizes, strict=True)},
        **more}


def trained(case: str, task: Task, name: str, epsilon: float, delta: float,
            seeds: range) -> dict[str, Any]:
    """One method at one epsilon, with every seed."""
    result, clock = [], time.perf_counter()
    for seed in seeds:
        rows, held = task.split(seed)
        made = group_methods.train(name, task, rows, epsilon, delta,
                                   group_methods.noise_key(name, epsilon, seed),
                                   (*task.public, *_ASSUMED))
        result.append(group_methods.accuracies(made.scores(held.x), held, len(task.names)))
    return row(case, task, name, epsilon, delta, np.array(result), {
        "iterations": made.rounds, "seconds": time.perf_counter() - clock,
        "first_seed": seeds[0],
        "statement": report.stated(made.statement, (*task.public, *_ASSUMED))})


def references(case: str, task: Task, seeds: range) -> list[dict[str, Any]]:
    """Logistic regressions without privacy."""
    made = []
    for name, balanced in (("logistic regression", False), ("balanced logistic regression", True)):
        result = []
        for seed in seeds if task.held is None else seeds[:1]:
            rows, held = task.split(seed)
            scores = group_methods.reference(task, rows, balanced)(held.x)
            result.append(group_methods.accuracies(scores, held, len(task.names)))
        made.append(row(case, task, name, None, None, np.array(result), {}))
    return made


def compared(args: Any, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of all cases; those that are known already are kept. Written as they come.

    Raises:
      ValueError: for data that cannot be loaded, or a run that diverged.
    """
    rows: list[dict[str, Any]] = []
    kept = {(r["case"], r["method"], r["epsilon"], r["delta"], r["seeds"],
             r.get("first_seed", 0)): r for r in known}
    every = {f"{case}, epsilon {epsilon:g}, {name}": (case, epsilon, name) for case in args.case
             for epsilon in args.epsilon for name in args.method}
    plan = [every[name] for name in report.chosen(args, list(every))]
    task, last = None, None
    for case, epsilon, name in tqdm(plan, desc="training", file=sys.stderr, disable=None,
                                    leave=False):
        seeds = report.seeds(args)[:CASES[case].most]
        if case != last:
            one = CASES[case]
            task = tasks.load(one.dataset, one.groups, by_label=one.by_label,
                                    least=one.least, data_dir=args.data_dir)
            rows += references(case, task, report.seeds(args))
            last = case
        assert task is not None
        result = kept.get((case, name, epsilon, args.delta, len(seeds), seeds[0]))
        rows.append(result or trained(case, task, name, epsilon, args.delta, seeds))
        if not result:
            report.save(args, {"rows": beside(rows, known)})
    return rows


def beside(rows: list[dict[str, Any]], known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`rows`, and those of earlier runs that they do not replace."""
    def what(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["case"], row["method"], row["epsilon"]

    def place(row: dict[str, Any]) -> tuple[Any, ...]:  # of the table, in any order they came
        methods = ("logistic regression", "balanced logistic regression", *NAMES)
        return list(CASES).index(row["case"]), row["epsilon"] or 0, methods.index(row["method"])

    mine = set(map(what, rows))
    return sorted(rows + [row for row in known if what(row) not in mine], key=place)


def timed(args: Any) -> list[dict[str, Any]]:
    """How fast each algorithm is on made-up records, each in a process of its own."""
    names = [name for name in args.method if name in METHODS]
    if len(names) == 1:
        return [_timed(args, names[0])]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            target = pathlib.Path(folder) / f"{name}.json"
            sizes = (f"--{x.replace('_', '-')}={getattr(args, x)}" for x in _SYNTHETIC)
            subprocess.run([sys.executable, "-m", "benchmarks.accuracy.worst_group",
                            "--synthetic", *sizes,
                            "--method", name, "--json", str(target)], check=True,
                           stdout=subprocess.DEVNULL)
            rows += json.loads(target.read_text(encoding="utf-8"))["rows"]
    return rows


def _timed(args: Any, name: str) -> dict[str, Any]:
    task = tasks.synthetic(args.records, args.group_count, args.dim)
    rows, _ = task.split(0)
    seconds = []
    for seed in range(2):  # the first one compiles
        clock = time.perf_counter()
        hyper, state = group_methods.run(name, task, rows, 1.0, 1e-6, jax.random.key(seed))
        seconds.append(time.perf_counter() - clock)
    count = METHODS[name].read
    n = len(rows.y)
    read = (hyper.iterations * (n + max(task.sizes)) if count is None else count(hyper, state))
    return {
        "method": name, "records": n, "group_count": len(task.sizes), "dim": task.dim,
        "iterations": hyper.iterations, "seconds": seconds[1],
        "records_per_second": read / seconds[1],
        "compile_seconds": max(seconds[0] - seconds[1], 0.0),
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark; 0, 1 if a run diverged, or 2 after a refusal."""
    p = parser()
    args = p.parse_args(argv)
    check(args, p)
    if args.synthetic:
        rows = timed(args)
        print(figures.timing_table(rows))
        report.save(args, {"rows": rows})
        return 0
    known = []
    if args.json and args.json.exists():
        known = json.loads(args.json.read_text(encoding="utf-8"))["rows"]
    try:
        rows = known if args.redraw else beside(compared(args, known), known)
    except (ValueError, OSError) as error:
        p.error(str(error))
    print(figures.table(rows))
    print("\nAccuracy is of held-out records, means over the seeds; +- is the standard error of "
          "the mean.\n* is what the rule takes for these groups.")
    if not args.redraw:
        report.save(args, {"rows": rows})
    if args.markdown:
        args.markdown.write_text(figures.page(rows), encoding="utf-8")
    if args.plot:
        figures.plot(args.plot, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
