"""`python -m benchmarks.utility.plans`: each default plan beside ten alternatives of equal epsilon.

    python -m benchmarks.utility.plans [--json FILE] [--markdown FILE] [--seeds N] [--cell WORDS]

An algorithm's `jmm.plan` for n records and epsilon is run on a game or on groups whose gap is known
exactly. So are ten others of the same epsilon and delta: other numbers of rounds, steps, batches
and weights of regularisers, all public, each with its own calibrated noise. Half of the seeds
chooses the best of the ten. The other half measures the plan and that one, in pairs, so that the
choice does not flatter it. The file grows by a cell at a time, and a command that was stopped goes
on with those that it lacks.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.utility.rates import descent, groups, recursive
from benchmarks.utility.rates.base import DELTA, Job

NS = (1_000, 10_000, 100_000)
EPSILONS = (0.5, 1.0, 4.0)
MOST = 4e7  # records read by a run; a plan that reads more is not run
_P = 5  # groups
OPTIONS = {"xla_backend_optimization_level": 1}

Maker = Callable[[int, float], Job]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One algorithm, and what its plan is compared with.

    Attributes:
      name: of the algorithm and the variant of its plan.
      plan: `(n, epsilon) -> Job`, with the default plan.
      others: ten makers of jobs, by what they change.
      copied: whether a run sees the records through means alone, so that a few of them stand for n.
    """

    name: str
    plan: Maker
    others: dict[str, Maker]
    copied: bool = False


def with_hyper(job: Job, epsilon: float, **changed: Any) -> Job:
    """The job with other settings, and the noise that they need for epsilon."""
    hyper = dataclasses.replace(job.hyper, **changed)
    return dataclasses.replace(job, hyper=jmm.calibrate(job.algorithm, hyper, epsilon, DELTA))


def altered(plan: Maker, rounds: float, step: float, batch: float, n: int, epsilon: float) -> Job:
    """The plan with other numbers of rounds, steps and batches, in multiples of its own.

    Disjoint batches stay one pass: their rounds follow from the batch.
    """
    job = plan(n, epsilon)
    hyper: Any = job.hyper
    changed: dict[str, Any] = {name: jax.tree.map(lambda x: step * x, getattr(hyper, name))
                               for name in ("step", "weight_step") if hasattr(hyper, name)}
    if hasattr(hyper, "modulus"):
        changed = {"modulus": hyper.modulus / step}
    if "iterations" in vars(hyper):
        changed["iterations"] = max(2, round(rounds * hyper.iterations))
    sampling = getattr(hyper.query, "sampling", None)
    match sampling:
        case jmm.Poisson(rate=rate):
            sampling = jmm.Poisson(rate=min(1.0, batch * rate))
        case jmm.Disjoint(batch=size):
            size = min(n // 2, max(1, round(batch * size)))
            each = jmm.mechanism.releases(job.algorithm.mechanism(hyper)) // hyper.iterations
            changed["iterations"] = n // size // each
            sampling = jmm.Disjoint(batch=size)
    if sampling is not None:
        changed["query"] = dataclasses.replace(hyper.query, sampling=sampling)
    return with_hyper(job, epsilon, **changed)


def multiples(plan: Maker, *factors: tuple[float, float, float]) -> dict[str, Maker]:
    """Alternatives by factors of rounds, step and batch."""
    return {", ".join(f"{name} x {factor:g}" for name, factor in zip(
        ("rounds", "step", "batch"), one, strict=True) if factor != 1):
        functools.partial(altered, plan, *one) for one in factors}


FULL = ((1, 0.25, 1), (1, 0.5, 1), (1, 2, 1), (1, 4, 1), (0.25, 1, 1), (0.25, 2, 1), (0.25, 4, 1),
        (4, 0.5, 1), (4, 1, 1), (4, 2, 1))
SAMPLED = ((1, 2, 1), (0.25, 1, 1), (0.25, 2, 1), (0.25, 4, 1), (1 / 16, 1, 1), (1 / 16, 4, 1),
           (1 / 16, 16, 1), (1 / 16, 4, 4), (1 / 16, 16, 4), (1 / 16, 4, 16))
ONE_PASS = ((1, 0.25, 1), (1, 0.5, 1), (1, 2, 1), (1, 4, 1), (1, 8, 1), (1, 1, 0.25),
            (1, 0.5, 0.25), (1, 1, 4), (1, 2, 4), (1, 4, 4))
STEPS = tuple((1, 2.0**k, 1) for k in (-4, -3, -2, -1, 1, 2, 3, 4, 5, 6))


def small_game(algorithm: Any, **numbers: Any) -> Maker:
    """The bilinear game on small balls, its solution inside, by the algorithm's plan."""
    def job(n: int, epsilon: float, **more: Any) -> Job:
        known = {**recursive.SMALL_NUMBERS, **numbers, **more}
        plan = jmm.plan(algorithm, population=n, epsilon=epsilon, **{
            name: value for name, value in known.items() if value is not None})
        return Job(algorithm, plan.hyper, recursive.SMALL, recursive.SMALL_START,
                   recursive.small_sample(n), recursive.small_gap)

    return job


def quadratic_game(n: int, epsilon: float) -> Job:
    """The strongly monotone game of `rates`, by the plan of gda."""
    job = descent.gda_job(n, epsilon)
    clip = job.hyper.query.clip.w
    plan = jmm.plan(jmm.gda, population=n, epsilon=epsilon, delta=DELTA, bound=clip * math.sqrt(2),
                    smooth=math.hypot(1.0, 0.5), modulus=1.0)
    return dataclasses.replace(job, hyper=plan.hyper)


def around_a_point(algorithm: Any, n: int, epsilon: float) -> Job:
    """Five groups whose records have one length each, by the algorithm's plan."""
    job = groups.group_job(2, 1.0)
    plan = jmm.plan(algorithm, problem=job.problem, sizes=(n // _P,) * _P, dim=groups.GROUPS_DIM,
                    epsilon=epsilon, delta=DELTA)
    return dataclasses.replace(job, algorithm=algorithm, hyper=plan.hyper)


def phased(n: int, epsilon: float, eta: float = 1.0, phases: float = 1.0) -> Job:
    """Certified phases, with multiples of the plan's step and number of phases."""
    if (eta, phases) == (1.0, 1.0):
        return groups.phased_job(n, epsilon)
    numbers: Any = dict(problem=groups.NEAR, sizes=(n // _P,) * _P, dim=groups.GROUPS_DIM)
    constants = {k: getattr(groups.NEAR, k) for k in ("lipschitz", "bound", "diameter")}
    step = jmm.phased_erm.calibrated_eta(**constants, sizes=numbers["sizes"], dim=numbers["dim"],
                                         slack=0.01, epsilon=epsilon, delta=DELTA)
    plan = jmm.plan(jmm.phased_erm, **numbers, epsilon=epsilon, delta=DELTA, eta=eta * step,
                    phases=max(1, round(phases * math.floor(math.log2(n)))))
    return dataclasses.replace(groups.phased_job(n, epsilon), hyper=plan.hyper)


def changes(plan: Callable[..., Job], settings: Sequence[dict[str, Any]]) -> dict[str, Maker]:
    """Alternatives by other numbers for the plan."""
    return {", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
                      for k, v in one.items()): functools.partial(plan, **one) for one in settings}


def _recursive(name: str, plan: Callable[..., Job]) -> Entry:
    return Entry(name, plan, changes(plan, [
        *({"rounds": t} for t in (1, 2, 3, 4, 5)),
        *({"mode": "manual", "kappa": k} for k in (0.5, 2.0)),
        *({"mode": "manual", "kappa": k, "rounds": t} for k, t in ((0.5, 1), (2.0, 1), (2.0, 3)))]))


def entries() -> list[Entry]:
    """All algorithms that have a plan, with ten alternatives each."""
    sgda, one_pass = small_game(jmm.sgda, dim=5, smooth=1.0, diameter=None), small_game(
        jmm.sgda, passes="one")
    simple: dict[str, tuple[Maker, tuple[tuple[float, float, float], ...], bool]] = {
        "gda": (quadratic_game, FULL, True),
        "sgda, many passes": (sgda, SAMPLED, False),
        "sgda, one pass": (one_pass, ONE_PASS, False),
        "extragradient, one pass": (small_game(jmm.extragradient, smooth=1.0), ONE_PASS, False),
        "extragradient, full batches": (
            small_game(jmm.extragradient, smooth=1.0, passes="full"), FULL, True),
        "optimistic": (small_game(jmm.optimistic, smooth=1.0, game="bilinear",
                                  radius=recursive.SMALL_RADIUS), FULL, True),
        "spider": (small_game(jmm.spider, smooth=1.0, diameter=None), FULL, True),
        "ftrl": (small_game(jmm.ftrl), STEPS, False),
        "group_sgd": (functools.partial(around_a_point, jmm.group_sgd), FULL, True),
        "active_groups": (functools.partial(around_a_point, jmm.active_groups), FULL, True),
        "group_oco": (groups.oco_job, STEPS, False),
    }
    made = [Entry(name, plan, multiples(plan, *factors), copied)
            for name, (plan, factors, copied) in simple.items()]
    phases = [(e, 1.0) for e in (0.25, 0.5, 2.0, 4.0, 8.0)] + [(1.0, p) for p in (0.25, 0.5)] + [
        (4.0, 0.25), (4.0, 0.5), (16.0, 0.25)]
    return [*made, _recursive("recursive", recursive.recursive_job),
            _recursive("recursive_sgda", recursive.descent_job),
            Entry("phased_erm", phased, changes(phased, [dict(eta=e, phases=p)
                                                         for e, p in phases]))]


# --- runs ---


def few(job: Job) -> Job:
    """The same law on two records of each group, or on one: their means are the population's."""
    hyper: Any = job.hyper

    def less(query: Any) -> Any:
        if hasattr(query, "anchor"):
            return dataclasses.replace(query, anchor=less(query.anchor),
                                       difference=less(query.difference))
        grouped = hasattr(query, "sizes")
        rows = 2 if grouped else 1
        share = rows / (min(query.sizes) if grouped else query.population)
        size = {"sizes": (rows,) * _P} if grouped else {"population": rows}
        exact = {"exact": False} if hasattr(query, "exact") else {}
        return dataclasses.replace(query, **size, **exact, noise_multiplier=jax.tree.map(
            lambda z: z * share, query.noise_multiplier))

    changed = {name: less(getattr(hyper, name)) for name in ("query", "losses")
               if hasattr(hyper, name)}
    sample = groups.group_sample(2) if hasattr(hyper, "losses") else (
        lambda key: _QUADRATIC if job.algorithm is jmm.gda else recursive.SMALL_MEAN)
    return dataclasses.replace(job, hyper=dataclasses.replace(hyper, **changed), sample=sample)


_QUADRATIC = descent.MEAN


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
        if entry.copied:
            own = {name: few(job) for name, job in own.items()}
        if reads(plan if not entry.copied else own[""]) > MOST:
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
    """Ratios by algorithm, epsilon and n."""
    cells = {(r["algorithm"], r["epsilon"], r["n"]): r for r in result["rows"]}

    def shown(r: dict[str, Any] | None) -> str:
        return "" if r is None else "-" if "left_out" in r else (
            f"{r['ratio']:.2f} ± {r['ratio_error']:.2f}")

    return report.markdown(
        ["plan", *(f"ε = {e:g}, n = {n:,}" for e in EPSILONS for n in NS)],
        [[name, *(shown(cells.get((name, e, n))) for e in EPSILONS for n in NS)]
         for name in dict.fromkeys(r["algorithm"] for r in result["rows"])])


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
    report.show(args, table({"rows": rows}), "Default plans")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
