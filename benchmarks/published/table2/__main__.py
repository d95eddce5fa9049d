"""`python -m benchmarks.published.table2`: Table 2 of the DP-SGDA paper, printed and honest.

Two readings of every cell, beside the published figure: "printed", the paper's own protocol with
its own noise, and the epsilon that this noise really has; "honest", calibrated noise under
replace-one at the stated (epsilon, delta). Rows of the method "front end" put a fixed public map of
the record before the scorer: another model, compared with the published MLP.
"""

import dataclasses
import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax

import jaxminimax as jmm
from benchmarks.auc import runs as auc_runs
from benchmarks.common import report, settings
from benchmarks.data_sets import data
from benchmarks.published.table2 import claims, protocol
from benchmarks.published.table2 import settings as table2_settings

READINGS = ("honest", "printed")
METHODS = (*table2_settings.METHODS, "front end")
_ASSUMED = (
    settings.ASSUMED,
    "Validation rows of ijcnn1 overlap with the rows that are scored for other seeds, and for the "
    "MLPs of the images a few last choices were made by the test file.",
    "Keys follow from the seeds so that the table can be repeated; a real run needs a secret key.",
    "The AUC of the held-out rows is computed without privacy.",
)


@dataclasses.dataclass(frozen=True)
class Job:
    """What is run together: one reading of one column."""

    reading: str
    dataset: str
    method: str

    @property
    def name(self) -> str:
        """For progress and for the results file."""
        return f"{self.reading}, {self.dataset}, {self.method}"


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
                   help="write the results to this file after every column; columns that it holds "
                        "already, from the same arguments and settings, are not run again")
    return p


def jobs(args: Any) -> list[Job]:
    result = [Job(r, d, m) for r, d, m in itertools.product(args.readings, args.datasets,
                                                            args.methods)
              if r == "honest" or m != "front end"]
    if args.quick:
        left_out = {("printed", "nseg")} | {
            (x, m) for x in ("mnist", "fashion_mnist") for m in ("printed", "front end")}
        result = [j for j in result if not left_out & {
            (j.reading, j.method), (j.dataset, j.reading), (j.dataset, j.method)}]
    names = report.chosen(args, [j.name for j in result])
    return [j for j in result if j.name in names]


def _load(args: Any, name: str, features: str | None, seed: int, split: str) -> data.Dataset:
    try:
        return data.load(name, data_dir=args.data_dir, seed=seed, split=split, features=features)
    except (ValueError, OSError) as error:
        raise auc_runs.Refused(str(error)) from error


def sets(args: Any, name: str, features: str | None, together: bool) -> Iterator[tuple[Any, ...]]:
    """Training data, test sets and seeds; ijcnn1 is split anew for every seed."""
    fixed, first = name != "ijcnn1", None
    for seed in [0] if fixed and together else report.seeds(args):
        if first is None or not fixed:
            first = _load(args, name, features, seed, args.split)
        tests = [(first.x_test, first.y_test)]
        if name == "ijcnn1" and args.split == "random":
            file = _load(args, name, features, seed, "file")
            if features == "published scaling":  # by the same extremes
                file = dataclasses.replace(file, x_train=first.x_train)
            tests.append((file.x_test, file.y_test))
        yield first, tests, list(report.seeds(args)) if fixed and together else [seed]


def _summary(aucs: list[list[float]]) -> dict[str, Any]:
    """Mean and spread in per cent, `[test][seed]`; the second test is the leak-free file."""
    one = [100 * x for x in aucs[0]]
    out = {"auc_mean": statistics.fmean(one),
           "auc_std": statistics.stdev(one) if len(one) > 1 else 0.0}
    if len(aucs) > 1:
        out["auc_test_file"] = 100 * statistics.fmean(aucs[1])
    return out


def honest(args: Any, job: Job) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows and statements of one column with calibrated noise."""
    algorithm = "extragradient" if job.method == "nseg" else "sgda"
    cells = [*itertools.product(args.epsilon, args.delta), (math.inf, min(args.delta))]
    bundles: dict[tuple[Any, ...], list[Any]] = {}
    for epsilon, delta in cells:
        scorer, s = table2_settings.choose(job.dataset, job.method, epsilon)
        bundles.setdefault((scorer, s.features, s.gain), []).append((epsilon, delta, s))
    rows, statements = [], []
    for (scorer, features, _), members in bundles.items():
        together = scorer == "linear"
        first = _load(args, job.dataset, features, 0, args.split)
        lanes = [auc_runs.lane(s, algorithm, scorer, first, epsilon, delta, rate=s.rate)
                 for epsilon, delta, s in members]
        result = auc_runs.measure(algorithm, scorer, lanes, job.name,
                                  sets(args, job.dataset, features, together), args.seeds)
        for i, lane in enumerate(lanes):
            # A private run's average is fixed beforehand as its answer; no best of two there.
            rows.append({
                "reading": job.reading, "dataset": job.dataset, "method": job.method,
                "epsilon": lane.epsilon, "delta": lane.delta, **_summary(result.auc[i]),
                "point": "average", "scorer": scorer, "features": features or "default",
                "noise_multiplier": jmm.accounting.effective_noise_multiplier(lane.hyper.query),
                "iterations": lane.hyper.iterations, "seeds": args.seeds,
                "seconds": result.seconds[i]})
            if lane.epsilon < math.inf:
                statements.append(dict(jmm.statement(
                    auc_runs.ALGORITHMS[algorithm], lane.hyper, result.state[i], delta=lane.delta,
                    unit=first.unit, assumed=(*first.public, *_ASSUMED)).to_json(),
                    job=job.name))
    return rows, statements


def printed(args: Any, job: Job) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of one column by the paper's own protocol."""
    features = protocol.FEATURES[job.dataset]
    row = protocol.TABLE4[job.method, job.dataset]
    if args.quick:
        row = dataclasses.replace(row, epochs=min(row.epochs, 15))
    cells = list(itertools.product(args.epsilon, args.delta))
    clock, runs, n = time.perf_counter(), [], 0
    for dataset, tests, (seed,) in sets(args, job.dataset, features, False):
        runs.append(protocol.train(job.method, dataset, tests, cells, seed, row))
        n = len(dataset.y_train)
        report.say(f"  seed {seed}: {time.perf_counter() - clock:.0f} s")
    seconds = (time.perf_counter() - clock) / (len(cells) + 1)
    rounds = row.private_epochs * n // protocol.BATCH
    rows = []
    for i, (epsilon, delta) in enumerate([*cells, (math.inf, min(args.delta))]):
        scores = [r["original"] if epsilon == math.inf else r["cells"][i] for r in runs]
        points = [[[s[kind][t] for s in scores] for t in range(len(scores[0][kind]))]
                  for kind in (0, 1)]
        # which of the two is printed is not said: the reading that favours the paper
        best = max((0, 1), key=lambda kind: statistics.fmean(points[kind][0]))
        result = {
            "reading": job.reading, "dataset": job.dataset, "method": job.method,
            "epsilon": epsilon, "delta": delta, **_summary(points[best]),
            "point": ("last", "average")[best], "scorer": job.method, "features": features,
            "iterations": (row.epochs if epsilon == math.inf else row.private_epochs)
            * n // protocol.BATCH,
            "seeds": args.seeds, "seconds": seconds,
            "clip_w": statistics.fmean(r["clip"].w for r in runs),
            "clip_v": statistics.fmean(r["clip"].v for r in runs)}
        if epsilon < math.inf:
            mechanism = protocol.described(job.method, n, rounds, epsilon, delta)
            result["noise_multiplier"] = jmm.accounting.effective_noise_multiplier(mechanism.query)
            result["true_epsilon_attained"] = protocol.attained(mechanism, delta)
            bound = jmm.epsilon(mechanism, delta)
            result["true_epsilon_bound"] = bound if math.isfinite(bound) else None
        rows.append(result)
    return rows, []


def _recipe(job: Job) -> str:
    """What the column is made with: a kept one is run again where this has changed."""
    if job.reading == "printed":
        return repr(protocol.TABLE4[job.method, job.dataset])
    return repr(table2_settings.column(job.dataset, job.method))


_SAME = ("epsilon", "delta", "seeds", "first_seed", "split", "quick")


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(x, float) and math.isinf(x) else x for k, x in row.items()}


def main(argv: list[str] | None = None) -> int:
    """Runs the table; 0, 1 if a run diverged, or 2 after a refusal."""
    p = parser()
    args = p.parse_args(argv)
    if args.quick:
        args.epsilon, args.delta, args.seeds = (0.1, 1.0, 10.0), (1e-6,), 1
    args.epsilon, args.delta = sorted(set(args.epsilon)), sorted(set(args.delta))
    if args.data_dir is not None and not os.path.isdir(args.data_dir):
        p.error(f"--data-dir {args.data_dir}: no such folder; check the path")
    arguments = {k: str(v) if hasattr(v, "suffix") else v for k, v in vars(args).items()
                 if k != "data_dir"}
    todo, clock = jobs(args), time.perf_counter()
    if not todo:
        p.error("nothing to run: a front end has no printed reading; add another method or reading")
    if min(args.delta) < 1e-10:
        p.error(f"--delta {min(args.delta):g}: what a pair attains is not computed below 1e-10")
    try:
        done = report.kept(args.json, "jobs", arguments, _SAME) or {}
        for number, job in enumerate(todo, 1):
            if done.get(job.name, {}).get("recipe") != _recipe(job):
                began = time.perf_counter()
                report.say(f"[{number}/{len(todo)}] {job.name}, "
                           f"{time.perf_counter() - clock:.0f} s so far")
                rows, statements = (honest if job.reading == "honest" else printed)(args, job)
                for row in rows:
                    row["published"] = table2_settings.published(
                        job.dataset, "mlp" if job.method == "front end" else job.method,
                        row["epsilon"], row["delta"])
                done[job.name] = {"recipe": _recipe(job), "seconds": time.perf_counter() - began,
                                  "rows": [_finite(row) for row in rows],
                                  "statements": statements}
                jax.clear_caches()  # programs of other shapes: hundreds of MiB
            _write(args, arguments, done)
    except (auc_runs.Refused, ValueError) as error:
        p.error(str(error))
    except auc_runs.Diverged as error:
        report.say(f"{p.prog}: {error}")
        return 1
    done = {job.name: done[job.name] for job in todo}
    rows = [row for one in done.values() for row in one["rows"]]
    report.say(f"{sum(one['seconds'] for one in done.values()):.0f} s in all columns")
    text = claims.markdown(rows, _ASSUMED)
    print(text)
    if args.markdown is not None:
        args.markdown.write_text(text + "\n", encoding="utf-8")
    if args.plot is not None:
        claims.plot(args.plot, rows)
    return 0


def _write(args: Any, arguments: dict[str, Any], done: dict[str, Any]) -> None:
    rows = [row for one in done.values() for row in one["rows"]]
    report.save(args, {"jobs": done, "claims": claims.claims(rows)}, arguments)


if __name__ == "__main__":
    sys.exit(main())
