"""`python -m benchmarks.accuracy.auc`: private AUC maximisation on tables and images.

For each epsilon, a scorer is trained on the AUC saddle problem under a real (epsilon, delta)
guarantee, with several seeds, and its AUC is measured on held-out rows. The reference without
privacy is the same algorithm without noise (and, for the linear scorer, without clipping).
"""

import argparse
import math
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

import jaxminimax as jmm
from benchmarks.accuracy.auc import runs
from benchmarks.accuracy.auc.runs import ALGORITHMS, Diverged, Refused
from benchmarks.common import report, settings
from benchmarks.data_sets import csv_files as set_csv
from benchmarks.data_sets import data

_EPSILONS = (0.1, 0.5, 1.0, 5.0, 10.0)
# Data sets whose training rows are the same for every seed, in another order.
_FIXED = ("mnist", "fashion_mnist", "adult")
_ASSUMED = (
    "Keys follow from the seeds so that the table can be repeated; a real run needs a secret key.",
    "The AUC of the held-out rows is computed without privacy.",
)


def parser() -> report.Parser:
    p = report.Parser(__file__, __doc__, "json", "plot")
    p.add_argument("--dataset", choices=data.NAMES, help="default: randhie, which needs no file")
    p.add_argument("--split", choices=("random", "file"), default="random",
                   help="test on a random fifth of the rows, or on the published test file")
    p.add_argument("--data-dir", help="folder of the data files (or set JAXMINIMAX_DATA)")
    p.add_argument("--csv", help="a table of your own, with a header line")
    p.add_argument("--label", help="its label column")
    p.add_argument("--positive", help="the value of the label that counts as positive")
    p.add_argument("--prior", type=report.number(0, 1),
                   help="public guess of the share of positives in it (default: 0.5)")
    p.add_argument("--scorer", choices=("linear", "mlp"), default="linear")
    p.add_argument("--algorithm", choices=ALGORITHMS, default="sgda")
    p.add_argument("--epsilon", type=report.number(0, 1e6), nargs="+", default=_EPSILONS)
    p.add_argument("--delta", type=report.number(0, 1), default=1e-6)
    p.add_argument("--neighbours", choices=("replace_one", "add_or_remove_one"),
                   default="replace_one")
    p.add_argument("--people", type=report.count,
                   help="records of one person, at most: epsilon for any that many of them is "
                        "printed too (default: 5 for randhie, else 1)")
    p.add_argument("--batch", type=_batch,
                   help="expected size of a Poisson batch, or 'full' (default: by data set)")
    p.add_argument("--iterations", type=report.count, help="rounds (default: by data set)")
    report.seed_options(p, 5)
    return p


def _batch(text: str) -> float | str:
    try:
        return text if text == "full" else report.number(0, math.inf)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"got {text!r}; give a positive number, or 'full'") from None


def check(args: Any, p: report.Parser) -> None:
    """Refuses combinations of arguments that make no sense, before any data are read."""
    if args.csv is None:
        for name in ("label", "positive", "prior"):
            if getattr(args, name) is not None:
                p.error(f"--{name} goes with --csv FILE; add that or drop --{name}")
        args.dataset = args.dataset or "randhie"
        if args.dataset == "randhie" and args.split == "file":
            p.error("--split file: randhie has no published test file; use --split random")
    else:
        if args.dataset is not None:
            p.error(f"--dataset {args.dataset} and --csv {args.csv} exclude each other; drop one")
        if args.label is None or args.positive is None:
            p.error(f"--csv {args.csv} needs --label COLUMN and --positive VALUE")
        if not os.path.isfile(args.csv):
            p.error(f"--csv {args.csv}: no such file; check the path")
        if args.split == "file":
            p.error("--split file: a CSV file has no test file; use --split random")
    if args.data_dir is not None and not os.path.isdir(args.data_dir):
        p.error(f"--data-dir {args.data_dir}: no such folder; check the path")
    if args.algorithm != "sgda" and args.scorer == "mlp":
        p.error(f"--algorithm {args.algorithm} needs a loss convex in w, and --scorer mlp is not; "
                "use --scorer linear or --algorithm sgda")
    if args.algorithm == "gda" and args.batch not in (None, "full"):
        p.error(f"--batch {args.batch:g}: gda reads all records in every round; use --batch full")
    args.epsilon = sorted(set(args.epsilon))


def load(args: Any, seed: int) -> data.Dataset:
    try:
        if args.csv is None:
            return data.load(args.dataset, data_dir=args.data_dir, seed=seed, split=args.split)
        return set_csv.from_csv(args.csv, args.label, args.positive, prior=args.prior or 0.5,
                                seed=seed)
    except (ValueError, OSError) as error:
        raise Refused(str(error)) from error


def lane(args: Any, epsilon: float, dataset: data.Dataset) -> runs.Lane:
    """Settings, problem and calibrated hyper-parameters of one epsilon; infinity: no privacy."""
    s = settings.choose("csv" if args.csv else args.dataset, args.scorer, epsilon,
                        prior=dataset.prior, iterations=args.iterations)
    n = len(dataset.y_train)
    rate = s.rate if args.batch is None else None if args.batch == "full" else args.batch / n
    if rate is not None and rate > 1:
        raise Refused(f"--batch {args.batch:g} exceeds the {n} training records; give at most {n}, "
                      "or --batch full")
    return runs.lane(s, args.algorithm, args.scorer, dataset, epsilon, args.delta,
                         args.neighbours, rate)


def splits(args: Any, first: data.Dataset) -> Iterator[tuple[data.Dataset, runs.Tests,
                                                             list[int]]]:
    """Data sets with the seeds to run on them; `first` is that of seed 0."""
    seeds = list(report.seeds(args))
    if args.dataset in _FIXED and args.scorer == "linear":
        yield first, [(first.x_test, first.y_test)], seeds
        return
    for seed in seeds:
        one = first if seed == 0 or args.dataset in _FIXED else load(args, seed)
        yield one, [(one.x_test, one.y_test)], [seed]


def record(args: Any, name: str, one: runs.Lane, auc: list[float], nonprivate: float,
           seconds: float) -> dict[str, Any]:
    """One row of the results, flat; with several records a person, epsilon for a person too."""
    person = {} if args.people == 1 else {
        "people": args.people, "epsilon_person": for_a_person(args, one.hyper)}
    return {
        "dataset": name,
        "algorithm": args.algorithm,
        "scorer": args.scorer,
        "epsilon": one.epsilon,
        "delta": args.delta,
        "auc_mean": statistics.fmean(auc),
        "auc_std": statistics.stdev(auc) if len(auc) > 1 else 0.0,
        "auc_nonprivate": nonprivate,
        "noise_multiplier": jmm.accounting.effective_noise_multiplier(one.hyper.query),
        "seconds": seconds,
        "split": args.split,
        "neighbours": args.neighbours,
        "seeds": args.seeds,
        "iterations": one.hyper.iterations,
        **person,
    }


def for_a_person(args: Any, hyper: Any) -> float | None:
    """Epsilon of a run for any `args.people` records; None where there is no guarantee for them."""
    made = ALGORITHMS[args.algorithm].mechanism(hyper)
    result = jmm.epsilon(made, args.delta, neighbours=args.neighbours, people=args.people)
    return result if math.isfinite(result) else None


def _epsilon(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def table(rows: list[dict[str, Any]]) -> str:
    several = "epsilon_person" in rows[0]
    header = ("algorithm", "scorer", "epsilon", *(("of a person",) if several else ()), "AUC",
              "+-", "non-private", "noise", "seconds")
    return report.table(header, [
        (r["algorithm"], r["scorer"], f"{r['epsilon']:g}",
         *((_epsilon(r["epsilon_person"]),) if several else ()), f"{r['auc_mean']:.4f}",
         f"{report.error(r):.4f}", f"{r['auc_nonprivate']:.4f}", f"{r['noise_multiplier']:.4g}",
         f"{r['seconds']:.2f}") for r in rows])


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark; 0, 1 if a run diverged, or 2 after a refusal."""
    began = time.perf_counter()
    p = parser()
    args = p.parse_args(argv)
    check(args, p)
    try:
        first = load(args, 0)
        args.people = args.people or first.people
        clock = time.perf_counter()
        lanes = [lane(args, epsilon, first) for epsilon in (*args.epsilon, math.inf)]
        calibration = time.perf_counter() - clock
        result = runs.measure(args.algorithm, args.scorer, lanes,
                                  f"{args.algorithm}, {args.scorer}", splits(args, first),
                                  args.seeds)
    except Refused as error:
        p.error(str(error))
    except Diverged as error:
        report.say(f"{p.prog}: {error}")
        return 1

    nonprivate = statistics.fmean(result.auc[-1][0])  # the reference is the last lane
    rows = [record(args, first.name, one, result.auc[i][0], nonprivate, result.seconds[i])
            for i, one in enumerate(lanes[:-1])]
    chosen = settings.ASSUMED_CSV if args.csv else settings.ASSUMED
    assumed = (*first.public, chosen, *_ASSUMED)
    statements = [
        jmm.statement(ALGORITHMS[args.algorithm], one.hyper, result.state[i], delta=args.delta,
                      neighbours=args.neighbours, unit=first.unit, assumed=assumed)
        for i, one in enumerate(lanes[:-1])]

    print(f"{first.name}: {len(first.y_train)} training and {len(first.y_test)} test rows, "
          f"{first.x_train.shape[1]} features; delta {args.delta:g}, {args.neighbours}, "
          f"{args.seeds} seed(s)\n")
    print(table(rows))
    print("\nAUC: mean and standard error over the seeds; noise: effective noise multiplier;\n"
          "seconds: training with all seeds, without compilation.\n"
          + ("" if args.people == 1 else
             f"of a person: epsilon for any {args.people} records, should one person have as many "
             "as that.\n"))
    print(report.paragraphs([str(s) for s in statements]))
    report.save(args, {"rows": rows, "statements": [
        report.stated(s, assumed) for s in statements]})
    if args.plot:
        report.plot_auc(args.plot, rows, f"{first.name}, {args.scorer} scorer, {args.algorithm}, "
                                         f"delta {args.delta:g}")
    print(f"\nCalibration {calibration:.1f} s, compilation {result.compile_seconds:.1f} s, "
          f"everything {time.perf_counter() - began:.1f} s.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
