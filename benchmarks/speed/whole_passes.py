"""`python -m benchmarks.whole_passes`: rounds of group_sgd over all of many records.

A round reads every record for the losses and one group's for the gradient. The gradient is summed
with all rows of the group at once, and as "auto" does it, in slices that fit the cache where there
are many; in turn, so that a busy machine is busy for both. Temporaries are those of the program, by
the compiler, over the bytes of the data.
"""

import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks import report
from jaxminimax import Saddle

WAYS = {"all rows at once": "vmap", "auto": "auto"}


def parser() -> report.Parser:
    p = report.Parser(prog="python -m benchmarks.whole_passes", description=__doc__)
    p.add_argument("--rows", type=report.count, nargs="+", default=[10_000, 100_000, 1_000_000])
    p.add_argument("--features", type=report.count, default=20)
    p.add_argument("--groups", type=report.count, default=5)
    p.add_argument("--iterations", type=report.count, default=10, help="rounds that are timed")
    p.add_argument("--repeats", type=report.count, default=7)
    p.add_argument("--json", type=report.output(".json"))
    return p


def compiled(strategy: str, data: Any, sizes: tuple[int, ...], features: int,
             iterations: int) -> Any:
    """A run whose gradients are summed as said, `(key, data) -> state`."""
    problem = jmm.problems.group_glm("logistic", feature_bound=1.0, radius=5.0)
    problem = problem._replace(operator=jmm.with_strategy(problem.operator, strategy))
    hyper = jmm.group_sgd.Hyper(
        query=jmm.GroupGradients(clip=1.0, noise_multiplier=1.0, sizes=sizes),
        losses=jmm.GroupLosses(bound=6.0, noise_multiplier=1.0, sizes=sizes),
        step=0.1, weight_step=0.1, iterations=iterations)
    start = Saddle(jnp.zeros(features, jnp.float32), ())
    return jax.jit(lambda key, data: jmm.run(key, start, data, hyper, jmm.group_sgd, problem)[0]
                   ).lower(jax.random.key(0), data).compile()


def rounds(count: int, args: Any) -> list[dict[str, Any]]:
    """Both ways on so many records."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, args.features), np.float32) / np.sqrt(args.features)
    y = np.sign(rng.standard_normal(count)).astype(np.float32)
    data, sizes = jmm.problems.by_group((x, y), np.arange(count) % args.groups)
    data = jax.tree.map(jnp.asarray, data)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(data))
    runs = {way: compiled(how, data, sizes, args.features, args.iterations)
            for way, how in WAYS.items()}
    times: dict[str, list[float]] = {way: [] for way in runs}
    for repeat in range(args.repeats + 1):  # the first warms up
        for way, run in runs.items():
            begun = time.process_time()
            jax.block_until_ready(run(jax.random.key(repeat), data))
            times[way].append(time.process_time() - begun)
    taken = {way: run.memory_analysis().temp_size_in_bytes for way, run in runs.items()}
    return [{"rows": count, "gradient": way,
             "cpu ms per round": 1e3 * statistics.median(times[way][1:]) / args.iterations,
             "time over all at once": statistics.median(
                 a / b for a, b in zip(times[way][1:], times["all rows at once"][1:], strict=True)),
             "temporaries over data": taken[way] / size} for way in runs]


def main(argv: list[str] | None = None) -> int:
    """Runs the pairs."""
    args = parser().parse_args(argv)
    found = []
    for count in args.rows:
        for row in rounds(count, args):
            found.append(row)
            print("{rows:9,d} rows  {gradient:16s}  {cpu ms per round:8.2f} ms a round  "
                  "{time over all at once:5.2f} of all at once  temporaries "
                  "{temporaries over data:5.2f} of the data".format(**row), flush=True)
    if args.json is not None:
        report.write_json(args.json, {
            "environment": report.environment(), "device": jax.devices()[0].device_kind,
            "arguments": {k: v for k, v in vars(args).items() if k != "json"}, "rows": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
