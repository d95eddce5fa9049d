"""`python -m benchmarks.crossover`: when correlated noise is better than Poisson samples.

DP-SGDA on a bilinear game, with batches of one expected size: Poisson samples with independent
noise, disjoint batches with independent noise, and disjoint batches with correlated noise, whose
bands are the planned ones. Strong gap on the population of the average iterate, for the step of a
grid that is best for each of them; choosing it is not paid for.
"""

import argparse
import dataclasses
import sys
import time
from typing import Any

import jax
import numpy as np

import jaxminimax as jmm
from benchmarks import rate_cases, report
from jaxminimax import Disjoint, Poisson, Saddle

_STEPS = tuple(float(x) for x in np.geomspace(3e-3, 1.0, 7))


def queries(n: int, batch: int, passes: int) -> dict[str, jmm.Query]:
    """The three kinds of releases, by name."""
    times = passes * n // batch
    disjoint = rate_cases.query(n, Disjoint(batch=batch))
    bands = jmm.planned_bands(times, n // batch, rate_cases.DIM)
    return {"Poisson": rate_cases.query(n, Poisson(rate=batch / n)), "disjoint": disjoint,
            f"disjoint, {bands} bands": dataclasses.replace(disjoint, bands=bands)}


@jax.jit
def _gaps(keys: jax.Array, data: jax.Array, hypers: Any) -> jax.Array:
    """Gaps `[steps, seeds]`."""
    def one(key: jax.Array, hyper: Any) -> jax.Array:
        return rate_cases.game_gap(jmm.run(key, rate_cases.START, data, hyper, jmm.sgda,
                                           rate_cases.GAME)[0].average)

    return jax.lax.map(lambda both: jax.lax.map(lambda key: one(key, both[1]), both[0]),
                       (keys, hypers))


def rows(n: int, batch: int, passes: tuple[int, ...], epsilons: tuple[float, ...],
         seeds: int) -> list[dict[str, Any]]:
    """One row for each number of passes, epsilon and kind."""
    made = []
    data = jax.jit(rate_cases.game_sample(n))(jax.random.key(0))
    for number in passes:
        times = number * n // batch
        for name, query in queries(n, batch, number).items():
            for epsilon in epsilons:
                hyper = jmm.sgda.Hyper(query=query, iterations=times, step=Saddle(1.0, 1.0))
                hyper = jmm.calibrate(jmm.sgda, hyper, epsilon, rate_cases.DELTA)
                steps = jmm.stack([dataclasses.replace(hyper, step=Saddle(x, x)) for x in _STEPS])
                keys = jax.random.split(jax.random.key(len(made)), (len(_STEPS), seeds))
                gaps = np.asarray(_gaps(keys, data, steps))
                best = int(np.argmin(gaps.mean(1)))
                made.append({
                    "passes": number, "epsilon": epsilon, "kind": name,
                    "gap": float(gaps[best].mean()),
                    "error": float(gaps[best].std(ddof=1) / seeds**0.5), "step": _STEPS[best],
                    "noise_multiplier": jmm.effective_noise_multiplier(hyper.query)})
    return made


def main(argv: list[str] | None = None) -> int:
    """Runs the table."""
    parser = report.Parser(prog="python -m benchmarks.crossover", description=__doc__,
                           formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--population", type=report.count, default=4000)
    parser.add_argument("--batch", type=report.count, default=100)
    parser.add_argument("--passes", type=report.count, nargs="+", default=[1, 8])
    parser.add_argument("--epsilon", type=report.number(0, 1e6), nargs="+",
                        default=[0.3, 1.0, 8.0, 32.0])
    parser.add_argument("--seeds", type=report.count, default=16)
    parser.add_argument("--json", type=report.output(".json"), help="file for the rows")
    args = parser.parse_args(argv)
    clock = time.perf_counter()
    found = rows(args.population, args.batch, tuple(args.passes), tuple(args.epsilon),
                 max(2, args.seeds))
    print(report.table(tuple(found[0]), [[f"{x:.4g}" if isinstance(x, float) else str(x)
                                          for x in row.values()] for row in found]))
    print(f"\ndelta {rate_cases.DELTA:g}, replace-one; gap: mean over seeds of the best of "
          f"{len(_STEPS)} steps, error: of\nthat mean. {time.perf_counter() - clock:.0f} s.")
    if args.json is not None:
        report.write_json(args.json, {"environment": report.environment(), "rows": found,
                                      "arguments": {k: str(v) for k, v in vars(args).items()}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
