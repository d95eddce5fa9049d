"""`python -m benchmarks.speed.whole_passes`: rounds of algorithms that read all of many records.

A round of group_sgd or active_groups reads all records for the losses and one group's for the
gradient; one of balanced_groups or gda reads all for the gradient. The library's problem is timed
next to the same problem as one would write it, which projects every record's features and
multiplies them afterwards, with gradients of all rows at once and in slices. All are timed in turn,
so that a busy machine is busy for all. Next to the last two stands the least that any such round
takes: the features times a vector, and a vector times the features, without clip, noise or
projection. Temporaries are those of the program, by the compiler, over the bytes of the data.
"""

import dataclasses
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.common import report
from benchmarks.examples import demo_games
from jaxminimax import Saddle

OURS = "this library"
LEAST = "two products by hand"
WAYS = {"projected, all rows at once": "vmap", "projected, in slices": "auto", OURS: "auto"}
ALGORITHMS = ("group_sgd", "active_groups", "balanced_groups", "gda")
_MOST = 1_000_000  # records that the ways without OURS are given, for they take more memory


def _projected_losses() -> Any:
    def loss(w: Any, record: Any) -> jax.Array:
        x, y = record
        return jax.nn.softplus(-jnp.clip(jnp.nan_to_num(y), -1, 1)
                               * (jmm.problems.sanitise(x, 1.0) @ w))

    return jmm.problems.worst_group(loss, jmm.problems.ball(5.0), lipschitz=1.0, bound=6.0)


def _projected_game(like: Any) -> Any:
    def loss(w: Any, v: Any, record: Any) -> jax.Array:
        x, y = jmm.problems.sanitise(record[0], 1.0), jnp.clip(jnp.nan_to_num(record[1]), -1, 1)
        return (w @ (x + v) - y) ** 2 / 2 - (v @ v) / 2

    return like._replace(operator=jmm.saddle_operator(loss))


def problem_of(algorithm: str, way: str) -> Any:
    """Logistic regression for groups, or least squares against a shift, in the way said."""
    if algorithm != "gda":
        made: Any = jmm.problems.group_glm("logistic", feature_bound=1.0, radius=5.0)
        made = made if way == OURS else _projected_losses()
    else:
        made = demo_games.robust_regression(feature_bound=1.0, label_bound=1.0, penalty=1.0,
                                            radius=Saddle(1.0, 0.5)).problem
        made = made if way == OURS else _projected_game(made)
    return made._replace(operator=jmm.types.with_strategy(made.operator, WAYS[way]))


def products(data: Any, iterations: int) -> Any:
    """Rounds of least squares without privacy, `(key, data) -> w`: two products each."""
    def rounds(_: Any, data: Any) -> jax.Array:
        x, y = (leaf.reshape(-1, *leaf.shape[data[1].ndim:]) for leaf in data)  # of all groups
        return jax.lax.fori_loop(0, iterations, lambda _, w: w - (x @ w - y) @ x / len(y),
                                 jnp.zeros(x.shape[1], x.dtype))

    return jax.jit(rounds).lower(jax.random.key(0), data).compile()


def compiled(algorithm: str, way: str, data: Any, sizes: tuple[int, ...], args: Any) -> Any:
    """A run of so many rounds, `(key, data) -> state`."""
    w = jnp.zeros(args.features, jnp.float32)
    query = jmm.GroupGradients(clip=1.0, noise_multiplier=1.0, sizes=sizes)
    start, common = Saddle(w, ()), {"query": query, "step": 0.1, "iterations": args.iterations}
    hyper: Any
    match algorithm:
        case "group_sgd":
            losses = jmm.GroupLosses(bound=6.0, noise_multiplier=1.0, sizes=sizes)
            hyper = jmm.group_sgd.Hyper(losses=losses, weight_step=0.1, **common)
        case "active_groups":
            index = jmm.mechanism.Selection(bound=6.0, noise_multiplier=1.0, sizes=sizes)
            hyper = jmm.active_groups.Hyper(losses=index, **common)
        case "balanced_groups":
            every = dataclasses.replace(query, groups="all")
            hyper = jmm.balanced_groups.Hyper(losses=None, **common | {"query": every})
        case _:
            start = Saddle(w, w)
            mean = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(1.0, 1.0),
                             population=sum(sizes))
            hyper = jmm.gda.Hyper(query=mean, modulus=1.0, offset=3.0,
                                  iterations=args.iterations)
    problem, chosen = problem_of(algorithm, way), getattr(jmm, algorithm)
    return jax.jit(lambda key, data: jmm.run(key, start, data, hyper, chosen, problem)[0]
                   ).lower(jax.random.key(0), data).compile()


def rounds(algorithm: str, count: int, args: Any) -> list[dict[str, Any]]:
    """All ways on so many records."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, args.features), np.float32)
    x /= np.float32(np.sqrt(args.features))
    y = np.sign(rng.standard_normal(count, np.float32))
    data, sizes = jmm.problems.by_group((x, y), np.arange(count) % args.groups)
    data = jax.tree.map(jnp.asarray, (x, y) if algorithm == "gda" else data)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(data))
    runs = {way: compiled(algorithm, way, data, sizes, args) for way in WAYS
            if way == OURS or count <= _MOST}
    if algorithm in ("gda", "balanced_groups"):
        runs[LEAST] = products(data, args.iterations)
    times: dict[str, list[float]] = {way: [] for way in runs}
    for repeat in range(args.repeats + 1):  # the first warms up
        for way, run in runs.items():
            begun = time.process_time()
            jax.block_until_ready(run(jax.random.key(repeat), data))
            times[way].append(time.process_time() - begun)
    return [{"algorithm": algorithm, "rows": count, "way": way,
             "cpu ms per round": 1e3 * statistics.median(times[way][1:]) / args.iterations,
             "temporaries over data": run.memory_analysis().temp_size_in_bytes / size}
            for way, run in runs.items()]


def main(argv: list[str] | None = None) -> int:
    """Runs them in turn."""
    p = report.Parser(__file__, __doc__, "json", compiles=True)
    p.add_argument("--rows", type=report.count, nargs="+",
                   default=[10_000, 100_000, 1_000_000, 10_000_000])
    p.add_argument("--features", type=report.count, default=20)
    p.add_argument("--groups", type=report.count, default=5)
    p.add_argument("--iterations", type=report.count, default=10, help="rounds that are timed")
    p.add_argument("--repeats", type=report.count, default=7)
    args = p.parse_args(argv)
    result = []
    for algorithm in ALGORITHMS:
        for count in args.rows:
            for row in rounds(algorithm, count, args):
                result.append(row)
                print("{algorithm:13s}  {rows:10,d} rows  {way:27s}  {cpu ms per round:8.2f} ms a "
                      "round  temporaries {temporaries over data:5.3f} of the data".format(**row),
                      flush=True)
    report.save(args, {"rows": result})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
