"""Which gap you buy: strong, weak and empirical gaps of private outputs, and what separates them.

    python -m benchmarks.rates.gaps [--json FILE] [--markdown FILE] [--plot FILE] [--quick]

Three tables. (1) An algorithm whose weak gap is 0 and whose strong gap is as large as can be: weak
gaps certify no output. (2) Stability against accuracy: what a Delta-stable solution must lose, and
an instance that loses no more. (3) The algorithms at equal (epsilon, delta) and n on a bilinear
game on balls: gaps and operator evaluations, over n; the plot shows who wins where.

Sources: Bassily, Guzman and Menart, COLT 2023, arXiv:2302.12909, Proposition 13 and Theorem 15.
"""

import json
import math
import pathlib
import textwrap
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.rates import __main__ as rates
from benchmarks.rates import cases as rate_cases
from benchmarks.rates import recursive as rate_recursive
from jaxminimax import Poisson, Problem, Saddle, metrics, saddle_operator

NUMBERS = {**rate_cases.SMALL_NUMBERS, "delta": 1e-6}
COINS = 8  # groups of runs with the same coins, for weak gaps


# --- (1) a weak gap of 0 and a strong gap of 2 ---

PRODUCT = Problem(
    operator=saddle_operator(lambda w, v, x: w * v),
    value=lambda z, data: z.w * z.v,
    best_response=Saddle(lambda v, data: -jnp.sign(v), lambda w, data: jnp.sign(w)),
)


def halves(records: int, sets: int) -> dict[str, Any]:
    """The game f = w v on [-1, 1]^2; output: the majorities of both halves of n = 2 mod 4 signs.

    The output is always a corner, with a gap of 2; its mean over samples is the saddle point.
    """
    x = np.random.default_rng(0).choice([-1, 1], size=(sets, records))
    w, v = (np.sign(half.sum(1)) for half in np.split(x, 2, axis=1))
    zs = Saddle(jnp.asarray(w, jnp.float32), jnp.asarray(v, jnp.float32))
    strong = jax.vmap(lambda z: metrics.strong_gap(PRODUCT, z, None))(zs)
    return {"records": records, "sets": sets, "strong": float(jnp.mean(strong)),
            "weak": float(metrics.weak_gap(PRODUCT, zs, None)),
            "variance": float(np.var(w) + np.var(v))}


# --- (2) stability against accuracy ---


def stability(lipschitz: float, radius: float, records: int, hard: int) -> dict[str, Any]:
    """Regularised risk minimisation of f = <w, x>, ||w|| <= B, made Delta-stable.

    `hard` coordinates carry one record +-L e_j each, the others none. With mu = 2 L / (Delta n) the
    minimiser of the mean + (mu/2) ||w||^2 moves by Delta when a sign flips, and loses
    B^2 L / (2 Delta n) of empirical risk, for Delta = B / sqrt(hard): exactly the lower bound of
    any Delta-stable algorithm.
    """
    delta = radius / math.sqrt(hard)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], size=hard)
    mean = lipschitz * signs / records
    mu = 2 * lipschitz / (delta * records)
    w = -mean / mu
    flipped = mean.copy()
    flipped[0] *= -1
    shift = float(np.linalg.norm(-flipped / mu - w))
    excess = float(w @ mean + radius * np.linalg.norm(mean))
    return {"delta": delta, "shift": shift, "excess": excess,
            "bound": radius**2 * lipschitz / (2 * delta * records)}


# --- (3) the algorithms on a bilinear game on balls ---


def _query(n: int, sampling: Any) -> jmm.Query:
    return jmm.Query(clip=Saddle(NUMBERS["bound"], NUMBERS["bound"]), sampling=sampling,
                     population=n, joint=True)


def _planned(algorithm: Any, n: int, epsilon: float, **how: Any) -> Any:
    plan = jmm.plan(algorithm, population=n, epsilon=epsilon, **NUMBERS, **how)
    return algorithm, plan.hyper


def _sgda(n: int, epsilon: float) -> Any:
    batch = max(1, round(math.sqrt(n)))
    step = jmm.sgda.theorem2_step(population=n, dim=NUMBERS["dim"], smooth=1.0, epsilon=epsilon,
                                  delta=NUMBERS["delta"])
    hyper = jmm.sgda.Hyper(query=_query(n, Poisson(rate=batch / n)), step=step, iterations=n)
    return jmm.sgda, jmm.calibrate(jmm.sgda, hyper, epsilon, NUMBERS["delta"])


def _extragradient(n: int, epsilon: float) -> Any:
    return _planned(jmm.extragradient, n, epsilon, smooth=1.0, passes="one")


def _proximal(n: int, epsilon: float) -> Any:
    return _planned(jmm.proximal, n, epsilon, smooth=1.0, passes="many")


def _one_pass(n: int, epsilon: float) -> Any:
    return _planned(jmm.sgda, n, epsilon, passes="one")


def _optimistic(n: int, epsilon: float) -> Any:
    """Full batches; the game is bilinear, and the start in the middle of both balls."""
    return _planned(jmm.optimistic, n, epsilon, smooth=1.0, game="bilinear",
                    radius=rate_recursive.SMALL_RADIUS)


def _recursive(n: int, epsilon: float) -> Any:
    return _planned(jmm.recursive, n, epsilon, smooth=1.0)


def _descent(n: int, epsilon: float) -> Any:
    return _planned(jmm.recursive_sgda, n, epsilon)


METHODS: dict[str, Callable[[int, float], Any]] = {
    "recursive": _recursive,
    "recursive_sgda": _descent,
    "extragradient, one pass": _extragradient,
    "proximal, many passes": _proximal,
    "sgda, Theorem 2": _sgda,
    "sgda, one pass": _one_pass,
    "optimistic, full batch": _optimistic,
}


def measured(name: str, n: int, epsilon: float, sets: int) -> dict[str, Any]:
    """Gaps of COINS times `sets` runs of one method."""
    algorithm, hyper = METHODS[name](n, epsilon)
    job = rate_cases.Job(algorithm, hyper, rate_cases.SMALL, rate_cases.SMALL_START,
                         rate_cases.small_sample(n), rate_cases.small_gap)

    def one(keys: tuple[jax.Array, jax.Array]) -> tuple[Saddle, jax.Array]:
        data = job.sample(keys[1])
        z = jmm.run(keys[0], job.start, data, hyper, algorithm, job.problem)[0].average
        return z, metrics.strong_gap(job.problem, z, data)

    coins = jnp.repeat(jax.random.split(jax.random.key(n), COINS), sets)
    draws = jax.random.split(jax.random.key(n + 1), COINS * sets)
    rows = jmm.mechanism.rows_read(hyper.query)  # what a round works on should fit into the cache
    together = max(1, min(COINS * sets, 2**17 // rows, 2**23 // n))
    # most of these programs take longer to compile than to run
    z, empirical = jax.jit(lambda *k: jax.lax.map(one, k, batch_size=together),
                           compiler_options={"xla_backend_optimization_level": 0})(coins, draws)
    strong = np.asarray(jax.vmap(job.gap)(z))
    grouped = jax.tree.map(lambda x: x.reshape(COINS, sets, *x.shape[1:]), z)
    weak = jax.vmap(lambda zs: metrics.weak_gap(job.problem, zs, rate_cases.SMALL_MEAN))(grouped)
    made = algorithm.mechanism(hyper)
    return {
        "algorithm": name, "n": n, "epsilon": jmm.epsilon(made, NUMBERS["delta"]),
        "delta": NUMBERS["delta"], "strong": float(strong.mean()),
        "error": float(strong.std(ddof=1) / math.sqrt(len(strong))),
        "weak": float(jnp.mean(weak)), "empirical": float(jnp.mean(empirical)),
        "evaluations": rates.counted(job), "runs": len(strong),
        "statement": report.stated(jmm.statement(algorithm, hyper, delta=NUMBERS["delta"])),
    }


def crossings(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every method, the smallest n from which recursive regularisation stays below it."""
    ours = {r["n"]: r["strong"] for r in rows if r["algorithm"] == "recursive"}
    result = []
    for name in METHODS:
        wins = sorted((r["n"], ours[r["n"]] < r["strong"]) for r in rows if r["algorithm"] == name)
        lost = [n for n, win in wins if not win]
        later = [n for n, win in wins if win and n > max(lost, default=0)]
        if name != "recursive":
            result.append({"algorithm": name, "recursive_wins_from": min(later, default=None)})
    return result


def plot(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    """Strong gaps against n, and against operator evaluations."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for i, name in enumerate(METHODS):
        mine = sorted((r for r in rows if r["algorithm"] == name), key=lambda r: r["n"])
        gap, error = ([r[k] for r in mine] for k in ("strong", "error"))
        for one, key in zip(axes, ("n", "evaluations"), strict=True):
            one.errorbar([r[key] for r in mine], gap, error, marker="o", markersize=4, capsize=3,
                         color=f"C{i}", label=name)
        axes[0].plot([r["n"] for r in mine], [r["weak"] for r in mine], ":", color=f"C{i}")
    axes[0].plot([], [], "k:", label="weak gap")
    ns = sorted({r["n"] for r in rows})
    order = np.array([rate_recursive.lower(n, rows[0]["epsilon"]) for n in ns])
    lowest = min(r["strong"] for r in rows if r["n"] == ns[-1])
    axes[0].plot(ns, order * lowest / order[-1], "k--", linewidth=1,
                 label="order of the lower bound,\nthrough the lowest point")
    axes[0].axhline(float(rate_cases.small_gap(rate_cases.SMALL_START)), color="grey", linewidth=1,
                    label="untrained")
    for one, label in zip(axes, ("n, records", "operator evaluations"), strict=True):
        one.set(xscale="log", yscale="log", xlabel=label)
        one.grid(alpha=0.3, which="both")
    axes[0].set(ylabel="strong gap on the population")
    axes[0].set_xticks(ns[::2], [f"{n:,}" for n in ns[::2]])
    axes[0].minorticks_off()
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="outside lower center",
                  ncols=4)
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> int:
    """Prints the three tables."""
    parser = report.Parser(__file__, __doc__, "json", "markdown", "plot")
    parser.add_argument("--epsilon", type=report.number(0, 1e6), default=1.0)
    parser.add_argument("--n", type=report.count, nargs="+", help="records of table 3")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller n")
    parser.add_argument("--sets", type=report.count, help="data sets a coin, default 5")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the JSON file")
    args = parser.parse_args(argv)
    ns = args.n or [2**p for p in ((8, 9, 10) if args.quick else range(8, 17))]
    sets = args.sets or (3 if args.quick else 5)
    if args.resume and args.json is None:
        parser.error("--resume goes with --json, the file to go on with")
    kept = []
    if args.resume and args.json.exists():
        kept = json.loads(args.json.read_text(encoding="utf-8"))["rows"]
    if any(r["runs"] != COINS * sets or abs(r["epsilon"] / args.epsilon - 1) > 0.01 for r in kept):
        parser.error(f"{args.json} was made by other settings; leave out --resume, or take its own")
    zero = [halves(10, sets) for sets in (100, 10_000, 200_000)]
    print(report.table(("samples", "strong gap", "weak gap", "output variance"),
                       [(str(r["sets"]), f"{r['strong']:.4f}", f"{r['weak']:.4f}",
                         f"{r['variance']:.3f}") for r in zero]))
    print("(1) f = w v; majorities of two halves of 10 signs. The weak gap is 0 but for the number "
          "of samples;\n    every single output has a gap of 2.\n")
    trade = [stability(2.0, 3.0, 50, hard) for hard in (1, 4, 16, 64)]
    print(report.table(("Delta", "replace-one shift", "excess risk", "lower bound"),
                       [tuple(f"{r[k]:.4f}" for k in ("delta", "shift", "excess", "bound"))
                        for r in trade]))
    print("(2) more stability (smaller Delta) costs accuracy, exactly B^2 L / (2 Delta n) here.\n")
    rows = []
    for n in sorted(set(ns)):
        for name in METHODS:
            old = [r for r in kept if (r["algorithm"], r["n"]) == (name, n)]
            rows.append(old[0] if old else measured(name, n, args.epsilon, sets))
            report.say(f"n = {n}: {name}, strong gap {rows[-1]['strong']:.4f}")
            report.save(args, {"weak_gaps": zero, "stability": trade, "rows": rows})
    header = ("algorithm", "n", "strong", "+-", "weak", "empirical", "evaluations")
    lines = [(r["algorithm"], str(r["n"]), f"{r['strong']:.4f}", f"{r['error']:.4f}",
              f"{r['weak']:.4f}", f"{r['empirical']:.4f}", str(r["evaluations"])) for r in rows]
    print(report.table(header, lines))
    result = crossings(rows)
    caption = (
        f"Every run has epsilon {args.epsilon:g} at delta {NUMBERS['delta']:g} for the replacement "
        f"of one record. Gaps are means over {COINS * sets} runs, and \"+-\" is the standard error "
        "of the strong gap. The untrained start has a gap of "
        f"{float(rate_cases.small_gap(rate_cases.SMALL_START)):.3f}. A weak gap is estimated from "
        f"{sets} data sets, which makes it too large by about (variance / {sets})^(1/2).")
    print(textwrap.fill(f"(3) {caption}", 100, subsequent_indent="    "))
    for r in result:
        at = r["recursive_wins_from"]
        print(f"    recursive has the smaller strong gap than {r['algorithm']} "
              + (f"from n = {at} on." if at else "at none of these n."))
    report.save(args, {"weak_gaps": zero, "stability": trade, "rows": rows,
                       "crossings": result})
    if args.markdown is not None:
        args.markdown.write_text("# Gaps on a bilinear game on balls\n\n" + report.markdown(
            header, lines) + f"\n{caption}\n", encoding="utf-8")
    if args.plot is not None:
        plot(args.plot, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
