"""`python -m benchmarks.accuracy.compare`: the algorithms beside each other at equal privacy.

DP-SGDA, optimistic steps, extragradient and proximal point on a bilinear game (gap on the
population) and on AUC maximisation (ijcnn1, linear scorer), with the same n, epsilon, delta and
relation, noise calibrated to what each really releases; operator evaluations are counted in the
program that ran. At the end one pass of DP-SGDA with Poisson samples, disjoint batches, and noise
that is correlated (`compare_noise`); `--only noise --result FILE` measures these anew, and keeps
the other rows of a file.
"""

import argparse
import dataclasses
import json
import pathlib
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.accuracy import compare_noise
from benchmarks.accuracy.auc import __main__ as auc
from benchmarks.accuracy.auc.runs import Refused
from benchmarks.common import evaluations, report
from benchmarks.rates import __main__ as rates
from benchmarks.rates import cases as rate_cases
from jaxminimax import FixedSize, Poisson, Saddle
from jaxminimax.mechanism import Resolvent

_RADIUS = 2.5  # of a record's features, for the proximal point's constants


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line of the table.

    Attributes:
      problem: in words.
      name: of the algorithm and its variant.
      algorithm: the module.
      hyper: calibrated.
      problem_of: what it runs on.
      start: initial point.
      data: `seed -> data`, of n records.
      score: `(z, seed) ->` gap or AUC.
      measure: what `score` is.
    """

    problem: str
    name: str
    algorithm: Any
    hyper: Any
    problem_of: jmm.Problem
    start: Saddle
    data: Callable[[int], Any]
    score: Callable[[Saddle, int], float]
    measure: str


def _game(n: int, epsilon: float) -> list[Entry]:
    """The bilinear game of `benchmarks.rates`, every algorithm by its theorem."""
    batch = max(1, round(n**0.5))
    step = jmm.sgda.theorem2_step(population=n, dim=rate_cases.DIM, smooth=1.0, epsilon=epsilon,
                                  delta=rate_cases.DELTA)
    hyper = jmm.sgda.Hyper(query=rate_cases.query(n, Poisson(rate=batch / n)), step=step,
                           iterations=n)
    hyper = jmm.calibrate(jmm.sgda, hyper, epsilon, rate_cases.DELTA)
    jobs: dict[str, tuple[Any, Any]] = {"sgda, Theorem 2": (jmm.sgda, hyper)}
    plan = jmm.plan(jmm.optimistic, population=n, epsilon=epsilon, game="bilinear", iterations=300,
                    radius=rate_cases.NUMBERS["diameter"] / 2, **rate_cases.NUMBERS)
    jobs["optimistic, full batch"] = (jmm.optimistic, plan.hyper)
    for name, make in (("extragradient", rate_cases.extragradient_job),
                       ("proximal", rate_cases.proximal_job)):
        for many in (False, True):
            job = make(n, epsilon, many)
            jobs[f"{name}, {'many passes' if many else 'one pass'}"] = (job.algorithm, job.hyper)
    sample = jax.jit(rate_cases.game_sample(n))
    return [Entry(f"bilinear game, n = {n}", name, algorithm, hyper, rate_cases.GAME,
                  rate_cases.START, lambda seed: sample(jax.random.key(1000 + seed)),
                  lambda z, seed: float(rate_cases.game_gap(z)), "strong gap")
            for name, (algorithm, hyper) in jobs.items()]


def bounded_scorer(theta: jax.Array, x: jax.Array) -> jax.Array:
    """The linear scorer on features projected to a ball, so that constants hold."""
    return jmm.problems.linear_scorer(theta, jmm.problems.sanitise(x.astype(theta.dtype), _RADIUS))


def _proximal_auc(n: int, prior: float, settings: Any, epsilon: float,
                  delta: float) -> tuple[Any, jmm.Problem]:
    """Lipschitz mode: the quadratic pieces of one record have Hessians of this norm at most."""
    rarer = min(prior, 1 - prior)
    smooth = (2 * (_RADIUS**2 + 1) + 2 * _RADIUS) / rarer + 2  # the last for the public -v^2
    radius = 2.0
    problem = jmm.problems.auc(bounded_scorer, prior=prior, radius=Saddle(radius, radius))
    query = Resolvent(bound=settings.clip, prox=2 * smooth, lipschitz=smooth,
                      diameter=2 * 2**0.5 * radius, sampling=FixedSize(batch=200), population=n,
                      assumes="lipschitz")
    hyper = jmm.proximal.Hyper(query=jmm.proximal.certified(query), iterations=4000)
    return jmm.calibrate(jmm.proximal, hyper, epsilon, delta), problem


def _auc(epsilon: float, seeds: Sequence[int], data_dir: str | None) -> list[Entry]:
    """The settings of `benchmarks.accuracy.auc` for all but the proximal point, see there."""
    given = ["--dataset", "ijcnn1", "--delta", str(rate_cases.DELTA)]
    given += ["--data-dir", data_dir] if data_dir else []
    sets = {seed: auc.load(auc.parser().parse_args(given), seed) for seed in seeds}
    first, result = sets[seeds[0]], []
    for name in ("sgda", "optimistic", "extragradient"):
        args = auc.parser().parse_args([*given, "--algorithm", name])
        lane = auc.lane(args, epsilon, first)
        result.append((f"{name}, full batch", getattr(jmm, name), lane.hyper, lane.problem))
    hyper, problem = _proximal_auc(len(first.y_train), first.prior, lane.settings, epsilon,
                                   rate_cases.DELTA)
    result.append(("proximal, many passes", jmm.proximal, hyper, problem))
    start = jmm.problems.auc_start(jnp.zeros(first.x_train.shape[1], jnp.float32))

    def score(z: Saddle, seed: int) -> float:
        scores = jnp.asarray(sets[seed].x_test) @ z.w["theta"]
        return jmm.metrics.auc(scores, sets[seed].y_test)

    return [Entry(f"AUC, ijcnn1, n = {len(first.y_train)}", name, algorithm, hyper, problem, start,
                  lambda seed: (jnp.asarray(sets[seed].x_train), jnp.asarray(sets[seed].y_train)),
                  score, "AUC") for name, algorithm, hyper, problem in result]


def row(entry: Entry, epsilon: float, seeds: Sequence[int]) -> dict[str, Any]:
    """Runs an entry with every seed."""
    def program(key: jax.Array, data: Any, problem: jmm.Problem = entry.problem_of) -> Any:
        return jmm.run(key, entry.start, data, entry.hyper, entry.algorithm, problem)[0].average

    one, scores = jax.jit(program, compiler_options=rates.OPTIONS), []
    for seed in seeds:
        z = one(jax.random.fold_in(jax.random.key(9), seed), entry.data(seed))
        scores.append(entry.score(z, seed))
    marked = evaluations.marked(entry.problem_of)
    made = entry.algorithm.mechanism(entry.hyper)
    delta = rate_cases.DELTA
    return {
        "problem": entry.problem, "algorithm": entry.name, "measure": entry.measure,
        "epsilon": jmm.epsilon(made, delta), "delta": delta, "target_epsilon": epsilon,
        "value": float(np.mean(scores)),
        "error": float(np.std(scores, ddof=1) / len(seeds)**0.5) if len(seeds) > 1 else 0.0,
        "releases": jmm.mechanism.releases(made),
        "evaluations": evaluations.count(lambda k, d: program(k, d, marked), jax.random.key(0),
                                         entry.data(seeds[0])),
        "seeds": len(seeds),
        "statement": report.stated(jmm.statement(entry.algorithm, entry.hyper, delta=delta)),
    }


def main(argv: list[str] | None = None) -> int:
    """Runs the table."""
    parser = report.Parser(__file__, __doc__, "json", "markdown", "plot")
    parser.add_argument("--epsilon", type=report.number(0, 1e6), nargs="+", default=[1.0, 8.0])
    parser.add_argument("--population", type=report.count, default=200, help="of the game")
    report.seed_options(parser, 20, ", of the game; AUC: 3 at most")
    parser.add_argument("--data-dir", help="folder of the data files (or set JAXMINIMAX_DATA)")
    parser.add_argument("--only", choices=("noise",), help="measure this part of --result anew")
    parser.add_argument("--result", type=pathlib.Path, help="file of the other rows")
    args = parser.parse_args(argv)
    if (args.only is None) != (args.result is None):
        parser.error("--only noise and --result FILE go together")
    rows, old = [], None
    if args.only:
        old = json.loads(args.result.read_text(encoding="utf-8"))
        rows = [r for r in old["rows"] if "one pass, " not in r["algorithm"]]
    try:
        for epsilon in () if args.only else sorted(set(args.epsilon)):
            every = report.seeds(args)
            few = every[:3]
            later = _auc(epsilon, few, args.data_dir)  # refuses before anything has run
            for entry, seeds in [*((e, every) for e in _game(args.population, epsilon)),
                                 *((e, few) for e in later)]:
                rows.append(row(entry, epsilon, seeds))
                report.say(f"{entry.problem}: {entry.name}, epsilon {epsilon:g}, "
                           f"{rows[-1]['measure']} {rows[-1]['value']:.4f}")
        rows += compare_noise.rows(sorted(set(args.epsilon)), args.data_dir)
    except Refused as error:
        parser.error(str(error))
    header = ("problem", "algorithm", "epsilon", "measure", "value", "+-", "releases",
              "evaluations")
    lines = [(r["problem"], r["algorithm"], f"{r['epsilon']:.4g}", r["measure"],
              f"{r['value']:.4f}", f"{r['error']:.4f}", str(r["releases"]), str(r["evaluations"]))
             for r in rows]
    caption = (
        f"Epsilon holds at delta {rate_cases.DELTA:g} for the replacement of one record. The "
        "column \"value\" has the mean over the seeds, and \"+-\" has its standard error. Releases "
        "and evaluations of the operator are those of one run. AUC is measured on held-out rows. "
        "Its settings were chosen on validation splits, and epsilon does not cover that choice. "
        "Rows with \"oracle\" have the best of five steps by the AUC itself. On the game every "
        "algorithm has the settings of its theorem.")
    print(report.table(header, lines), textwrap.fill(caption, 100), sep="\n\n")
    if args.json is not None:
        write(args.json, args, rows, old)
    if args.markdown is not None:
        args.markdown.write_text("# The algorithms at equal privacy\n\n" + report.markdown(
            header, lines) + f"\n{caption}\n", encoding="utf-8")
    if args.plot is not None:
        plot(args.plot, rows)
    return 0


def plot(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    """Value against evaluations, a panel a problem and epsilon."""
    from matplotlib.figure import Figure

    panels = sorted({(r["problem"], r["target_epsilon"]) for r in rows})
    figure = Figure(figsize=(3.4 * len(panels), 3.6), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for i, r in enumerate(x for x in rows if (x["problem"], x["target_epsilon"]) == panel):
            axes.errorbar(r["evaluations"], r["value"], 2 * r["error"], marker="o", capsize=3,
                          color=f"C{i}", label=r["algorithm"], linestyle="none")
        axes.set(xscale="log", xlabel="operator evaluations", ylabel=r["measure"])
        axes.set_title(f"{panel[0]}\nε = {panel[1]:g}; bars: two standard errors", fontsize=8)
        axes.legend(fontsize=6)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def write(path: pathlib.Path, args: argparse.Namespace, rows: list[dict[str, Any]],
          old: dict[str, Any] | None = None) -> None:
    """The JSON file; of `old`, what made the rows that are kept."""
    made = {"environment": report.environment(), "arguments": report.arguments_of(args)}
    report.write_json(path, {**(made if old is None else {**old, "noise": made}), "rows": rows})


if __name__ == "__main__":
    raise SystemExit(main())
