"""`python -m benchmarks.rates.plans`: each default plan beside ten alternatives of equal epsilon.

    python -m benchmarks.rates.plans [--json FILE] [--markdown FILE] [--seeds N] [--cell WORDS]

An algorithm's `jmm.plan` for n records and epsilon is run on a game or on groups whose gap is known
exactly. So are ten others of the same epsilon and delta: other numbers of rounds, steps, batches
and weights of regularisers, all public, each with its own calibrated noise. Half of the seeds
chooses the best of the ten. The other half measures the plan and that one, in pairs, so that the
choice does not flatter it. The file grows by a cell at a time, and a command that was stopped goes
on with those that it lacks.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.rates import recursive
from benchmarks.rates.base import DELTA, Job
from benchmarks.rates.plan_entries import Entry, entries

NS = (1_000, 10_000, 100_000)
EPSILONS = (0.5, 1.0, 4.0)
MOST = 4e7  # records read by a run; a plan that reads more is not run
OPTIONS = {"xla_backend_optimization_level": 1}


def gaps(jobs: Sequence[Job], keys: jax.Array) -> np.ndarray:
    """The gap of each job with each key: a program for those that differ in numbers alone."""
    result = np.zeros((len(jobs), len(keys)))
    kinds: dict[Any, list[int]] = {}
    for i, job in enumerate(jobs):
        kinds.setdefault(jax.tree.structure(job.hyper), []).append(i)
    for members in kinds.values():
        job = jobs[members[0]]

        def one(hyper: Any, key: jax.Array, job: Job = job) -> jax.Array:
            data_key, own = jax.random.split(key)
            state, _ = jmm.run(own, job.start, job.sample(data_key), hyper, job.algorithm,
                               job.problem)
            return job.gap(state.average)

        # lanes would all take the rare branches of any of them, and the most steps of a solver
        sampled = isinstance(getattr(job.hyper.query, "sampling", None), jmm.Poisson)
        apart = sampled or hasattr(job.hyper.query, "slack")
        over = jax.lax.map if apart else lambda f, x: jax.vmap(f)(x)
        program = jax.jit(lambda hypers, keys, one=one, over=over: over(
            lambda k: over(lambda h: one(h, k), hypers), keys), compiler_options=OPTIONS)
        stacked = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(a, jnp.float32) for a in x]),
                               *(jobs[i].hyper for i in members))
        result[members] = np.asarray(program(stacked, keys)).T
    return result


def reads(job: Job) -> float:
    """Records that a run reads, a record as often as it is read."""
    hyper: Any = job.hyper
    if job.algorithm is jmm.recursive:
        return recursive.solution_cost(hyper)
    if job.algorithm is jmm.phased_erm:
        query = hyper.query
        return (query.steps + 2) * query.phases * sum(jmm.mechanism.phase_sizes(query))
    rounds = jmm.mechanism.releases(job.algorithm.mechanism(hyper))
    if job.algorithm is jmm.proximal:
        rounds *= hyper.query.steps + 2
    if hasattr(hyper.query, "sampling") and not hasattr(hyper.query, "sizes"):
        return rounds * jmm.mechanism.rows_read(hyper.query)
    return rounds


def measured(entry: Entry, n: int, seeds: int) -> list[dict[str, Any]]:
    """The cells of all epsilons, whose runs share programs."""
    rows: list[dict[str, Any]] = []
    known: list[tuple[dict[str, Any], list[str]]] = []
    jobs: list[Job] = []
    for epsilon in EPSILONS:
        row: dict[str, Any] = {"algorithm": entry.name, "n": n, "epsilon": epsilon, "delta": DELTA}
        rows.append(row)
        try:
            plan = entry.plan(n, epsilon)
        except ValueError as error:
            row["left_out"] = str(error)
            continue
        row["statement"] = report.stated(jmm.statement(plan.algorithm, plan.hyper, delta=DELTA))
        own = {"": plan, **{name: make(n, epsilon) for name, make in entry.others.items()}}
        if entry.few is not None:
            own = {name: entry.few(job) for name, job in own.items()}
        if reads(own[""]) > MOST:
            row["left_out"] = f"a run reads {reads(own['']):.2g} records"
            continue
        own = {name: job for name, job in own.items() if reads(job) <= 4 * MOST}
        known.append((row, list(own)))
        jobs += own.values()
    keys = jax.random.split(jax.random.fold_in(jax.random.key(5), n), 2 * seeds)
    found, first = gaps(jobs, keys), 0
    for row, names in known:
        row |= compared(found[first:first + len(names)], names[1:], seeds)
        first += len(names)
    return rows


def compared(found: np.ndarray, others: list[str], seeds: int) -> dict[str, Any]:
    """The plan, in the first row of gaps, over the best of the others, on seeds of their own."""
    best = int(np.argmin(found[1:, :seeds].mean(1)))
    own, its = found[0, seeds:], found[1 + best, seeds:]
    ratio = own.mean() / its.mean()
    spread = np.std(own / own.mean() - its / its.mean(), ddof=1) / math.sqrt(seeds)
    return {"gap": float(own.mean()), "error": float(own.std(ddof=1) / math.sqrt(seeds)),
            "best": others[best], "best_gap": float(its.mean()),
            "tried": dict(zip(others, found[1:].mean(1).tolist(), strict=True)),
            "ratio": float(ratio), "ratio_error": float(ratio * spread), "seeds": seeds}


def table(result: dict[str, Any]) -> str:
    """Ratios to the best of ten alternatives, by algorithm, epsilon and n."""
    return _ratios("plan", [r for r in result["rows"] if " over " not in r["algorithm"]])


def one_read(result: dict[str, Any]) -> str:
    """Ratios of algorithms that read a record once to one that reads all in every round."""
    return _ratios("gaps", [r for r in result["rows"] if " over " in r["algorithm"]])


def _ratios(title: str, rows: list[dict[str, Any]]) -> str:
    cells = {(r["algorithm"], r["epsilon"], r["n"]): r for r in rows}
    columns = [(e, n) for e in EPSILONS for n in NS if any(r["n"] == n for r in rows)]

    def shown(r: dict[str, Any] | None) -> str:
        return "" if r is None else "-" if "left_out" in r else (
            f"{r['ratio']:.2f} ± {r['ratio_error']:.2f}")

    return report.markdown(
        [title, *(f"ε = {e:g}, n = {n:,}" for e, n in columns)],
        [[name, *(shown(cells.get((name, e, n))) for e, n in columns)]
         for name in dict.fromkeys(r["algorithm"] for r in rows)])


def main(argv: list[str] | None = None) -> int:
    """Measures the cells."""
    parser = report.Parser(__file__, __doc__.split("\n\n")[2], "json", "markdown")
    report.cell_option(parser)
    parser.add_argument("--seeds", type=report.count, default=8,
                        help="runs that choose, and runs that measure; default 8")
    args = parser.parse_args(argv)
    if args.seeds < 2:
        parser.error("--seeds must be at least 2, for standard errors")
    chosen = {f"{e.name}, n = {n}": (e, n) for e in entries() for n in NS}
    try:
        names = report.chosen(args, list(chosen))
        rows = report.kept(args.json, "rows", vars(args), ["seeds"]) or []
    except ValueError as error:
        parser.error(str(error))
    done = {(r["algorithm"], r["n"]) for r in rows}
    for name in names:
        entry, n = chosen[name]
        if (entry.name, n) in done:
            continue
        rows += measured(entry, n, args.seeds)
        report.say(name)
        report.save(args, {"rows": rows})
    order = list(dict.fromkeys(entry.name for entry in entries()))
    rows.sort(key=lambda r: (order.index(r["algorithm"]), r["n"], r["epsilon"]))
    report.save(args, {"rows": rows})
    report.show(args, table({"rows": rows}) + "\n" + one_read({"rows": rows}), "Default plans")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
