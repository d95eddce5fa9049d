"""Stability measured exactly, beside what the theorems bound.

    python -m benchmarks.rates.stability [--json FILE] [--markdown FILE] [--plot FILE] [--quick]

Two runs with one key on neighbouring data sets share their samples and their noise, so the distance
of their outputs is the algorithm's argument stability on that pair, and no estimate of it. One
record is put on the other side of its law's mean, as far away as the law allows. Beside it stand
the bounds of `benchmarks.papers.bounds`; and for two algorithms the difference of the risk on
the population and on the records that were used, which stability bounds.
"""

import math
import pathlib
import textwrap
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.papers import bounds
from benchmarks.rates import cases as rate_cases
from benchmarks.rates import descent as rate_descent
from jaxminimax import Full, Saddle, metrics
from jaxminimax.algorithms import planning

RUNS = 24
OPTIONS = {"xla_backend_optimization_level": 0}  # most of it takes longer to compile than to run
_SMOOTH = math.hypot(1.0, 0.5)  # of the quadratic game, modulus 1 and coupling 1/2
_CLIP = 4.0


class Case(NamedTuple):
    """One line of the plot.

    Attributes:
      name: algorithm and variant.
      quantity: "stability" or "generalisation".
      build: `n -> Job`.
      mirrored: the record that takes the first one's place, `row -> row`.
      bound: `(n, job, measured) ->` the theorem's, `measured` what else a run says.
      ns: numbers of records.
      epsilon: of every run.
    """

    name: str
    quantity: str
    build: Callable[[int], Any]
    mirrored: Callable[[Any], Any]
    bound: Callable[[int, Any, float], float]
    ns: tuple[int, ...]
    epsilon: float


def _pair(x: Any) -> Any:
    return jax.tree.map(lambda a, m: 2 * m[0] - a, x, rate_descent.MEAN)


def _vector(x: Any) -> Any:
    return 2 * rate_cases.POPULATION[0] - x


def _deviation(hyper: Any) -> float:
    """Of the noise on one coordinate of the mean operator."""
    query = hyper.query
    return float(query.clip.w * query.noise_multiplier.w / jmm.mechanism.batch_size(query))


def _gda(n: int, job: Any, _: float, smooth: float | None = _SMOOTH) -> float:
    return bounds.gda_stability(population=n, modulus=1.0, bound=math.hypot(_CLIP, _CLIP),
                                rounds=job.hyper.iterations, smooth=smooth)


def _extragradient(n: int, job: Any, _: float) -> float:
    known = {k: rate_cases.NUMBERS[k] for k in ("dim", "bound", "smooth", "diameter")}
    return bounds.extragradient_stability(
        population=n, step=float(job.hyper.step.w), rounds=job.hyper.iterations,
        deviation=_deviation(job.hyper), **known)


def _proximal(n: int, job: Any, _: float) -> float:
    query = job.hyper.query
    return bounds.proximal_stability(population=n, bound=query.bound, prox=query.prox,
                                     rounds=job.hyper.iterations, batch=query.sampling.batch,
                                     slack=query.slack)


def _gda_gap(n: int, job: Any, measured: float) -> float:
    """Strong gap on the population minus that on the records."""
    return bounds.strong_gap(empirical=0.0, stability=_gda(n, job, measured), bound=_CLIP,
                             smooth=_SMOOTH, modulus=1.0)


def _primal(n: int, job: Any, measured: float) -> float:
    """Primal risk on the population minus that on the records, from the excess on the records."""
    return bounds.pl_generalisation(population=n, optimisation=max(measured, 0.0), bound_w=_CLIP,
                                    bound_v=_CLIP, smooth=_SMOOTH, pl=1.0, modulus=1.0)


def _full(n: int) -> Any:
    """n^(3/2) rounds on all records, with the step that balances optimisation and stability."""
    numbers = rate_cases.NUMBERS
    rounds = math.ceil(n**1.5)
    length = min(numbers["diameter"] / numbers["bound"], 1 / numbers["smooth"]) * min(
        math.sqrt(n), n / planning.privacy_term(numbers["dim"], 8.0, numbers["delta"]))
    step = min(length / rounds, 1 / (math.sqrt(3) * numbers["smooth"]))
    hyper = jmm.extragradient.Hyper(query=rate_cases.query(n, Full()),
                                    step=Saddle(step, step), iterations=rounds)
    hyper = jmm.calibrate(jmm.extragradient, hyper, 8.0, numbers["delta"])
    return rate_cases.Job(jmm.extragradient, hyper, rate_cases.GAME, rate_cases.START,
                          rate_cases.game_sample(n), rate_cases.game_gap)


CASES = (
    Case("gda, T = n^(2/3)", "stability", lambda n: rate_descent.gda_job(n, 1.0), _pair, _gda,
         (250, 1000, 4000), 1.0),
    Case("extragradient, full batches", "stability", _full, _vector, _extragradient,
         (25, 50, 100), 8.0),
    Case("extragradient, many passes", "stability",
         lambda n: rate_cases.extragradient_job(n, 8.0, True), _vector, _extragradient,
         (16, 32, 64), 8.0),
    Case("proximal, many passes", "stability", lambda n: rate_cases.proximal_job(n, 8.0, True),
         _vector, _proximal, (100, 400, 1600), 8.0),
    Case("gda, T = n^(2/3)", "generalisation", lambda n: rate_descent.gda_job(n, 1.0), _pair,
         _gda_gap, (250, 1000, 4000), 1.0),
    Case("sgda, Theorem 5", "generalisation", lambda n: rate_descent.pl_job(n, 8.0), _pair,
         _primal, (250, 1000, 4000), 8.0),
)


def distances(case: Case, job: Any, n: int, runs: int) -> np.ndarray:
    """||z(S) - z(S')|| of every run, its key the same on both data sets."""
    def one(keys: tuple[jax.Array, jax.Array]) -> jax.Array:
        data = job.sample(keys[1])
        row = case.mirrored(jax.tree.map(lambda x: x[0], data))
        other = jax.tree.map(lambda x, y: x.at[0].set(y), data, row)
        both = jax.tree.map(lambda *x: jnp.stack(x), data, other)
        z = jax.lax.map(lambda x: jmm.run(keys[0], job.start, x, job.hyper, job.algorithm,
                                          job.problem)[0].average, both)
        return jnp.sqrt(sum(jnp.sum((x[0] - x[1]) ** 2) for x in jax.tree.leaves(z)))

    return np.asarray(_mapped(one, n, runs))


def generalised(case: Case, job: Any, n: int, runs: int) -> tuple[np.ndarray, float]:
    """Risk on the population minus that on the records, and the excess on the records."""
    strong = job.algorithm is jmm.gda

    def one(keys: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        data = job.sample(keys[1])
        z = jmm.run(keys[0], job.start, data, job.hyper, job.algorithm, job.problem)[0].average
        if strong:
            ours = metrics.strong_gap(job.problem, z, data)
            return metrics.strong_gap(job.problem, z, rate_descent.MEAN) - ours, ours
        # what the spread of the records adds to the loss is the same in every w, in expectation
        means = jax.tree.map(lambda x: jnp.mean(x, 0, keepdims=True), data)
        risk = metrics.primal_risk(job.problem, z.w, means)
        best = metrics.primal_risk(job.problem, job.problem.saddle_point(means).w, means)
        return metrics.primal_risk(job.problem, z.w, rate_descent.MEAN) - risk, risk - best

    apart, excess = _mapped(one, n, runs)
    return np.asarray(apart), float(np.mean(excess))


def _mapped(one: Callable[[Any], Any], n: int, runs: int) -> Any:
    keys = jax.random.split(jax.random.fold_in(jax.random.key(3), n), (2, runs))
    return jax.jit(lambda *k: jax.lax.map(one, k), compiler_options=OPTIONS)(*keys)


def row(case: Case, n: int, runs: int) -> dict[str, Any]:
    """What was measured, and the bound."""
    job, start, known = case.build(n), time.perf_counter(), 0.0
    if case.quantity == "stability":
        result = distances(case, job, n, runs)
    else:
        result, known = generalised(case, job, n, runs)
    made = {
        "algorithm": case.name, "quantity": case.quantity, "epsilon": case.epsilon,
        "delta": rate_cases.DELTA, "n": n, "rounds": job.hyper.iterations,
        "mean": float(result.mean()), "error": float(result.std(ddof=1) / runs**0.5),
        "largest": float(result.max()), "bound": case.bound(n, job, known), "runs": runs,
        "seconds": round(time.perf_counter() - start, 2),
        "statement": report.stated(jmm.statement(job.algorithm, job.hyper,
                                                 delta=rate_cases.DELTA))}
    if case.bound is _gda:
        made["bound_not_smooth"] = _gda(n, job, 0.0, None)
    return made


def plot(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    """A panel a case: measured, and the bound."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys((r["algorithm"], r["quantity"]) for r in rows))
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    for axes, name in zip(figure.subplots(2, 3).flat, names, strict=False):
        mine = [r for r in rows if (r["algorithm"], r["quantity"]) == name]
        n = [r["n"] for r in mine]
        axes.errorbar(n, [max(r["mean"], 1e-9) for r in mine], [2 * r["error"] for r in mine],
                      marker="o", markersize=4, capsize=3, label="measured")
        axes.plot(n, [r["bound"] for r in mine], "k--", label="bound")
        if "bound_not_smooth" in mine[0]:
            axes.plot(n, [r["bound_not_smooth"] for r in mine], "k:", label="without smoothness")
        axes.set(xscale="log", yscale="log")
        axes.set_title(f"{name[0]}, ε = {mine[0]['epsilon']:g}: {name[1]}", fontsize=8)
        axes.set_xticks(n, [f"{x:,}" for x in n])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.supxlabel("n, records", fontsize=9)
    figure.suptitle("Distance of two runs with one key on neighbouring data, and risk on the "
                    "population minus that on the records; bars: two standard errors", fontsize=9)
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> int:
    """Measures all cases."""
    parser = report.Parser(__file__, __doc__.split("\n\n")[2], "json", "markdown", "plot")
    parser.add_argument("--quick", action="store_true", help="the two smaller n, eight runs")
    parser.add_argument("--runs", type=report.count, help=f"pairs of runs a point, default {RUNS}")
    args = parser.parse_args(argv)
    runs = args.runs or (8 if args.quick else RUNS)
    if runs < 2:
        parser.error(f"--runs must be at least 2, got {runs}: a standard error needs two")
    rows = []
    for case in CASES:
        for n in case.ns[:2] if args.quick else case.ns:
            rows.append(row(case, n, runs))
            report.say(f"{case.name}, {case.quantity}, n = {n}: {rows[-1]['mean']:.4g}, bound "
                       f"{rows[-1]['bound']:.4g}")
    header = ("algorithm", "quantity", "epsilon", "n", "rounds", "mean", "+-", "largest", "bound")
    lines = [(r["algorithm"], r["quantity"], f"{r['epsilon']:g}", str(r["n"]), str(r["rounds"]),
              *(f"{r[k]:.2g}" for k in ("mean", "error", "largest", "bound"))) for r in rows]
    caption = (
        "Stability is the distance of the outputs of two runs with one key on neighbouring data, "
        f"over {runs} pairs of runs. Generalisation is the risk on the population minus that on "
        f"the records, over {runs} runs. Every run has its epsilon at delta {rate_cases.DELTA:g} "
        "for the replacement of one record. The column \"+-\" has the standard error of the mean, "
        "and \"bound\" has the number that the theorem gives.")
    print(report.table(header, lines), textwrap.fill(caption, 100), sep="\n\n")
    report.save(args, {"rows": rows})
    if args.markdown is not None:
        args.markdown.write_text("# Stability and generalisation\n\n" + report.markdown(
            header, lines) + f"\n{caption}\n", encoding="utf-8")
    if args.plot is not None:
        plot(args.plot, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
