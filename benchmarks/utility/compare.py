"""`python -m benchmarks.compare`: the algorithms beside each other at equal privacy.

DP-SGDA, extragradient and proximal point on a bilinear game (gap on the population) and on AUC
maximisation (ijcnn1, linear scorer), with the same n, epsilon, delta and relation, noise calibrated
to what each really releases; operator evaluations are counted in the program that ran, and seconds
are those of all seeds, without compilation.
"""

import argparse
import dataclasses
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks import auc, evaluations, rate_cases, report
from jaxminimax import FixedSize, Poisson, Resolvent, Saddle

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
    jobs = {"sgda, Theorem 2": (jmm.sgda, hyper)}
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


def _auc(epsilon: float, seeds: int, data_dir: str | None) -> list[Entry]:
    """The settings of `benchmarks.auc` for the first two, see there."""
    given = ["--dataset", "ijcnn1", "--seeds", str(seeds), "--delta", str(rate_cases.DELTA)]
    given += ["--data-dir", data_dir] if data_dir else []
    sets = [auc.load(auc.parser().parse_args(given), seed) for seed in range(seeds)]
    first, found = sets[0], []
    for name in ("sgda", "extragradient"):
        args = auc.parser().parse_args([*given, "--algorithm", name])
        lane = auc.lane(args, epsilon, first)
        found.append((f"{name}, full batch", getattr(jmm, name), lane.hyper, lane.problem))
    hyper, problem = _proximal_auc(len(first.y_train), first.prior, lane.settings, epsilon,
                                   rate_cases.DELTA)
    found.append(("proximal, many passes", jmm.proximal, hyper, problem))
    start = jmm.problems.auc_start(jnp.zeros(first.x_train.shape[1], jnp.float32))

    def score(z: Saddle, seed: int) -> float:
        scores = jnp.asarray(sets[seed].x_test) @ z.w["theta"]
        return jmm.metrics.auc(scores, sets[seed].y_test)

    return [Entry(f"AUC, ijcnn1, n = {len(first.y_train)}", name, algorithm, hyper, problem, start,
                  lambda seed: (jnp.asarray(sets[seed].x_train), jnp.asarray(sets[seed].y_train)),
                  score, "AUC") for name, algorithm, hyper, problem in found]


def row(entry: Entry, epsilon: float, seeds: int) -> dict[str, Any]:
    """Runs an entry with every seed."""
    def program(key: jax.Array, data: Any, problem: jmm.Problem = entry.problem_of) -> Any:
        return jmm.run(key, entry.start, data, entry.hyper, entry.algorithm, problem)[0].average

    clock = time.perf_counter()
    one = jax.jit(program).lower(jax.random.key(0), entry.data(0)).compile()
    compiled, seconds, scores = time.perf_counter() - clock, 0.0, []
    for seed in range(seeds):
        data = entry.data(seed)
        clock = time.perf_counter()
        z = jax.block_until_ready(one(jax.random.fold_in(jax.random.key(9), seed), data))
        seconds += time.perf_counter() - clock
        scores.append(entry.score(z, seed))
    marked = evaluations.marked(entry.problem_of)
    made = entry.algorithm.mechanism(entry.hyper)
    delta = rate_cases.DELTA
    return {
        "problem": entry.problem, "algorithm": entry.name, "measure": entry.measure,
        "epsilon": jmm.epsilon(made, delta), "delta": delta, "target_epsilon": epsilon,
        "value": float(np.mean(scores)), "spread": float(np.std(scores, ddof=1)) if seeds > 1 else
        0.0, "releases": jmm.mechanism.releases(made),
        "evaluations": evaluations.count(lambda k, d: program(k, d, marked), jax.random.key(0),
                                         entry.data(0)),
        "seconds": round(seconds, 3), "compile_seconds": round(compiled, 2), "seeds": seeds,
        "statement": str(jmm.statement(entry.algorithm, entry.hyper, delta=delta)),
    }


def main(argv: list[str] | None = None) -> int:
    """Runs the table."""
    parser = report.Parser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--epsilon", type=report.number(0, 1e6), nargs="+", default=[1.0, 8.0])
    parser.add_argument("--population", type=report.count, default=200, help="of the game")
    parser.add_argument("--seeds", type=report.count, default=20,
                        help="of the game; AUC: 3 at most")
    parser.add_argument("--data-dir", help="folder of the data files (or set JAXMINIMAX_DATA)")
    parser.add_argument("--json", type=report.output(".json"), help="file for the rows")
    args = parser.parse_args(argv)
    rows = []
    try:
        for epsilon in sorted(set(args.epsilon)):
            few = min(3, args.seeds)
            later = _auc(epsilon, few, args.data_dir)  # refuses before anything has run
            for entry, seeds in [*((e, args.seeds) for e in _game(args.population, epsilon)),
                                 *((e, few) for e in later)]:
                rows.append(row(entry, epsilon, seeds))
                report.say(f"{entry.problem}: {entry.name}, epsilon {epsilon:g}, "
                           f"{rows[-1]['measure']} {rows[-1]['value']:.4f}, "
                           f"{rows[-1]['seconds']:.1f} s")
    except auc.Refused as error:
        parser.error(str(error))
    print(report.table(
        ("problem", "algorithm", "epsilon", "measure", "value", "+-", "releases", "evaluations",
         "seconds"),
        [(r["problem"], r["algorithm"], f"{r['epsilon']:.4g}", r["measure"], f"{r['value']:.4f}",
          f"{r['spread']:.4f}", str(r["releases"]), str(r["evaluations"]), f"{r['seconds']:.2f}")
         for r in rows]))
    print(f"\ndelta {rate_cases.DELTA:g}, replace-one. value: mean over the seeds, +-: their "
          "standard deviation;\nevaluations: of one run; seconds: all seeds, without compilation. "
          "AUC is that of held-out rows,\nits settings were chosen on validation splits without "
          "paying for it; the game runs by the theorems.")
    if args.json is not None:
        write(args.json, args, rows)
    return 0


def write(path: pathlib.Path, args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """The JSON file."""
    arguments = {k: str(v) if isinstance(v, pathlib.Path) else v for k, v in vars(args).items()}
    report.write_json(path, {"environment": report.environment(), "arguments": arguments,
                             "rows": rows})


if __name__ == "__main__":
    sys.exit(main())
