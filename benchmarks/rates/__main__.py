"""`python -m benchmarks.rates`: how fast the gap falls with the number of records.

    python -m benchmarks.rates [--json FILE] [--markdown FILE] [--plot FILE]
        [--quick] [--resume]

For an algorithm and its standard problems, the gap of the private output against n, with calibrated
noise, the theorem's own schedule and fresh data for every run; the slope in log-log coordinates
with a bootstrap interval over the runs, beside the theorem's rate; and the operator evaluations,
counted in the program that ran. The JSON file grows by a case at a time, and `--resume` keeps the
cases that it has.
"""

import json
import pathlib
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import jaxminimax as jmm
from benchmarks.common import evaluations, report
from benchmarks.rates.cases import CASES, DELTA, Case, Job, solution_cost

SEEDS, QUICK = 48, 40  # at least forty runs a point
OPTIONS = {"xla_backend_optimization_level": 1}  # these loops run no slower, and compile sooner
_RESAMPLES = 2000


def measured(case: Case, job: Job, n: int, seeds: int, first: int = 0) -> np.ndarray:
    """The gap of every run, or for a weak gap of every group of runs that share their coins."""
    coins = case.coins if case.measure == "weak" else seeds
    sets = -(-seeds // coins)
    key = jax.random.fold_in(jax.random.key(7 + first), n)
    data_key, run_key = jax.random.split(key)
    keys = jax.random.split(run_key, coins)

    def output(key: jax.Array, data_key: jax.Array) -> Any:
        data = job.sample(data_key)
        state, _ = jmm.run(key, job.start, data, job.hyper, job.algorithm, job.problem)
        return state.average

    if case.measure != "weak":
        # one after the other: lanes would all take the rare branches of any of them
        z = jax.jit(lambda *keys: jax.lax.map(lambda k: output(*k), keys),
                    compiler_options=OPTIONS)(keys, jax.random.split(data_key, coins))
        return np.asarray(jax.vmap(job.gap)(z))
    data_keys = jax.random.split(data_key, (coins, sets))
    z = jax.jit(lambda pairs: jax.lax.map(lambda pair: jax.lax.map(
        lambda data_key: output(pair[0], data_key), pair[1]), pairs), compiler_options=OPTIONS)(
            (keys, data_keys))
    # affine in the output, so the mean over data sets goes inside; the one over coins does not
    return np.asarray(jax.vmap(job.gap)(jax.tree.map(lambda x: jnp.mean(x, 1), z)))


def counted(job: Job) -> int:
    """Operator evaluations of one run."""
    if job.algorithm is jmm.recursive:  # loops of another length on every part
        return solution_cost(job.hyper)
    solves = job.algorithm is jmm.phased_erm
    problem = (evaluations.marked_loss if solves else evaluations.marked)(job.problem)

    def program(key: jax.Array, data: Any) -> Any:
        return jmm.run(key, job.start, data, job.hyper, job.algorithm, problem)[0]

    return evaluations.count(program, jax.random.key(0), job.sample(jax.random.key(1)))


def slope(ns: list[int], gaps: list[np.ndarray]) -> tuple[float, float, float]:
    """Slope of log mean gap against log n, and the ends of a 95 % bootstrap interval over runs."""
    x = np.log(ns)
    x = (x - x.mean()) / np.sum((x - x.mean()) ** 2)

    def of(means: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(means, 1e-300)) @ x

    rng = np.random.default_rng(0)
    drawn = np.stack([g[rng.integers(len(g), size=(_RESAMPLES, len(g)))].mean(1) for g in gaps], 1)
    low, high = np.quantile(of(drawn), [0.025, 0.975])
    return float(of(np.array([g.mean() for g in gaps]))), float(low), float(high)


def run(case: Case, seeds: int, quick: bool,
        first: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of a case, and its points."""
    ns = case.quick if quick else case.ns
    points, gaps = [], []
    for n in tqdm(ns, desc=case.name, unit="n", file=sys.stderr, disable=None, leave=False):
        job = case.build(n)
        start = time.perf_counter()
        gaps.append(measured(case, job, n, seeds, first))
        seconds = time.perf_counter() - start
        if not np.all(np.isfinite(gaps[-1])):
            raise FloatingPointError(f"{case.name}: a run with n = {n} did not release a number")
        points.append({
            "algorithm": case.algorithm, "problem": case.problem, "measure": case.measure,
            "variant": case.variant, "epsilon": case.epsilon, "n": n,
            "gap": float(gaps[-1].mean()),
            "error": float(gaps[-1].std(ddof=1) / len(gaps[-1]) ** 0.5),
            "rate": case.rate(n), "lower_order": case.lower(n), "private": case.private(n),
            "evaluations": counted(job),
            "evaluations_theory": case.cost(n), "seconds": round(seconds, 2)})
    kept = max(3, -(-len(ns) // 2) + 1)  # the plateau of small n left out
    result, low, high = slope(ns[-kept:], gaps[-kept:])
    here, _, _ = slope(ns[-kept:], [np.array([case.rate(n)]) for n in ns[-kept:]])
    growth, _, _ = slope(ns[-kept:], [np.array([p["evaluations"]], float) for p in points[-kept:]])
    return {
        "algorithm": case.algorithm, "problem": case.problem, "measure": case.measure,
        "variant": case.variant, "epsilon": case.epsilon, "slope": result, "slope_low": low,
        "slope_high": high, "theory": case.theory, "theory_here": here,
        "evaluations": points[-1]["evaluations"], "evaluations_slope": growth,
        "n": ns[-kept:], "seeds": seeds, "note": case.note, "settings": case.settings,
        "statement": report.stated(jmm.statement(job.algorithm, job.hyper, delta=DELTA)),
    }, points


def plot(path: pathlib.Path, rows: list[dict[str, Any]], points: list[dict[str, Any]]) -> None:
    """A panel a case: gap against n, and the shapes of the theorem's rate and the lower bound."""
    from matplotlib.figure import Figure

    across = min(4, len(rows))
    down = -(-len(rows) // across)
    figure = Figure(figsize=(2.9 * across, 2.3 * down + 0.4), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(rows):]:
        axes.axis("off")
    for axes, row in zip(grid.flat, rows, strict=False):
        mine = [p for p in points if all(p[k] == row[k] for k in _KEYS)]
        n, gap, rate, lower = (np.array([p[k] for p in mine])
                               for k in ("n", "gap", "rate", "lower_order"))
        axes.errorbar(n, gap, [2 * p["error"] for p in mine], marker="o", markersize=3, capsize=2)
        axes.plot(n, rate * gap[-1] / rate[-1], "k--", linewidth=1)
        axes.plot(n, lower * gap[-1] / lower[-1], ":", color="C3", linewidth=1.5)
        mask = np.array([p["private"] for p in mine])
        axes.plot(n[mask], gap[mask], "o", markersize=8, fillstyle="none", color="C0")
        axes.set(xscale="log", yscale="log")
        axes.set_title(f"{row['algorithm']}, {row['variant']}, ε = {row['epsilon']:g}\n"
                       f"{row['measure']} gap, slope {row['slope']:.2f} "
                       f"[{row['slope_low']:.2f}, {row['slope_high']:.2f}]", fontsize=7)
        shown = n if len(n) < 5 else n[::2]
        axes.set_xticks(shown, [f"{x:,}" for x in shown])
        axes.minorticks_off()
        low, high = min(gap.min(), (rate * gap[-1] / rate[-1]).min()), gap.max()
        ticks = [t for e in range(-6, 3) for t in (10.0**e, 3 * 10.0**e)
                 if 0.7 * low < t < 1.4 * high]
        axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
        axes.tick_params(labelsize=6)
        axes.grid(alpha=0.3)
    figure.supxlabel("n, records (of one group for group_sgd and active_groups)", fontsize=8)
    figure.supylabel("gap on the population", fontsize=8)
    figure.suptitle("Bars: two standard errors. Dashed: the theorem's rate, dotted red: the order "
                    "of the lower bound, both through the last point.\nCircled: the rate's privacy "
                    f"term is the larger one. Replace-one, δ = {DELTA:g}", fontsize=8)
    figure.savefig(path, dpi=150)


_KEYS = ("algorithm", "problem", "variant", "epsilon")


def kept(path: pathlib.Path, seeds: int, quick: bool,
         first: int) -> tuple[list[Any], list[Any]]:
    """Rows and points of a file that were made by the same settings."""
    if not path.exists():
        return [], []
    made = json.loads(path.read_text(encoding="utf-8"))
    earlier = {"first_seed": 0, **made["arguments"]}
    if (earlier["quick"], earlier["first_seed"]) != (quick, first) or any(
            r["seeds"] != seeds for r in made["rows"]):
        raise ValueError(f"{path} was made by other settings: leave out --resume, or take its own.")
    return made["rows"], made["points"]


def table(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and lines, for the terminal and for Markdown."""
    return (("algorithm", "variant", "settings", "problem", "measure", "epsilon", "slope", "95 %",
             "theory", "here", "evaluations", "growth"),
            [(r["algorithm"], r["variant"], r["settings"], r["problem"], r["measure"],
              f"{r['epsilon']:g}", f"{r['slope']:.2f}",
              f"[{r['slope_low']:.2f}, {r['slope_high']:.2f}]", f"{r['theory']:.2f}",
              f"{r['theory_here']:.2f}", f"{r['evaluations']}", f"{r['evaluations_slope']:.2f}")
             for r in rows])


def main(argv: list[str] | None = None) -> int:
    """Measures the cases of one algorithm or of all."""
    parser = report.Parser(__file__, __doc__.split("\n\n")[2], "json", "markdown", "plot")
    known = sorted({case.algorithm for case in CASES})
    parser.add_argument("--algorithm", choices=known, action="append",
                        help="default: all; may be given several times")
    parser.add_argument("--quick", action="store_true", help="smaller n, under three minutes")
    report.seed_options(parser, None, f", runs of each point, default {SEEDS}")
    report.cell_option(parser)
    parser.add_argument("--resume", action="store_true", help="keep the cases of the JSON file")
    args = parser.parse_args(argv)
    seeds = args.seeds or (QUICK if args.quick else SEEDS)
    if args.resume and args.json is None:
        parser.error("--resume goes with --json, the file to go on with")
    start = time.perf_counter()
    rows: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    try:
        wanted = report.chosen(args, [case.name for case in CASES])
        old_rows, old_points = (kept(args.json, seeds, args.quick, args.first_seed)
                                if args.resume else ([], []))
    except ValueError as error:
        parser.error(str(error))
    for case in CASES:
        if case.name not in wanted or (args.algorithm and case.algorithm not in args.algorithm):
            continue
        name = tuple(getattr(case, k) for k in _KEYS)
        row = next((r for r in old_rows if tuple(r[k] for k in _KEYS) == name), None)
        if row is None:
            row, its_points = run(case, seeds, args.quick, args.first_seed)
            report.say(f"{case.name}: slope {row['slope']:.2f}, "
                       f"{time.perf_counter() - start:.0f} s so far")
        else:
            its_points = [p for p in old_points if tuple(p[k] for k in _KEYS) == name]
        rows.append(row)
        points += its_points
        report.save(args, {"rows": rows, "points": points})
    header, lines = table(rows)
    said = [f"{seeds} runs a point, delta {DELTA:g}, replace-one; slopes over the larger half.",
            "theory: exponent of the theorem's slower term; here: slope of the theorem's whole "
            "rate over the same n; evaluations: of one run at the largest n; growth: their slope "
            "in n.",
            *(f"{r['algorithm']}, {r['variant']}, epsilon {r['epsilon']:g}: {r['note']}"
              for r in rows if r["note"])]
    print(report.table(header, lines), *said, f"{time.perf_counter() - start:.0f} s.", sep="\n")
    if args.markdown is not None:
        args.markdown.write_text("# Rates\n\n" + report.markdown(header, lines) + "\n"
                                 + "\n".join(f"* {x}" for x in said) + "\n", encoding="utf-8")
    if args.plot is not None:
        plot(args.plot, rows, points)
    return 0


if __name__ == "__main__":
    sys.exit(main())
