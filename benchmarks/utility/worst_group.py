"""`python -m benchmarks.worst_group`: one private model for several groups.

For each epsilon, linear models are trained to have a small loss on their worst group, under a real
(epsilon, delta) guarantee, with several seeds, and measured on held-out records of every group.
References: private training on the average record at the same epsilon, and both kinds of training
without noise.
"""

import dataclasses
import functools
import json
import math
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import jaxminimax as jmm
from benchmarks import group_tasks, report
from benchmarks.group_tasks import Task
from jaxminimax import GroupGradients, GroupLosses, Query, Saddle, Selection

_EPSILONS = (0.5, 1.0, 2.0, 4.0)
_ASSUMED = (
    "Keys follow from the seeds so that the table can be repeated; a real run needs a secret key.",
    "Settings were chosen on Adult without paying for it.",
    "Accuracy and risk of the held-out records are computed without privacy.",
    "Rows without an epsilon are trained without privacy on the same records; no statement covers "
    "them.",
)
_SYNTHETIC = {"records": 10**6, "group_count": 100, "dim": 20}


class Method(NamedTuple):
    """A way to train.

    Attributes:
      algorithm: the module.
      hyper: `(task, epsilon, delta) -> Hyper`, calibrated; without noise for infinity.
      weights: `state -> [p]`, which groups it attends to, to plot; None: to none in particular.
      average: whether it trains on the average record, without groups.
      problem: `task ->` the problem that it trains on; None: the task's.
      read: `(hyper, state) ->` how often it evaluates a record's loss or gradient; None: every
        round reads all records for the losses, and one group's for the gradient.
    """

    algorithm: Any
    hyper: Callable[[Task, float, float], Any]
    weights: Callable[[Any], jax.Array] | None = None
    average: bool = False
    problem: Callable[[Task], jmm.GroupProblem] | None = None
    read: Callable[[Any, Any], int] | None = None


def _group_hyper(algorithm: Any, task: Task, epsilon: float, delta: float) -> Any:
    s, active = task.settings, algorithm is jmm.active_groups
    none = 0.0 if epsilon == math.inf else None
    # without noise, clips that never bind, and more and longer steps
    clip, bound = (s.feature_bound, task.problem.bound) if none == 0.0 else (s.clip, s.loss_bound)
    query = GroupGradients(clip=clip, noise_multiplier=none, sizes=task.sizes)
    losses: Any = (Selection if active else GroupLosses)(
        bound=bound, noise_multiplier=none, sizes=task.sizes)
    own = {} if active else {"weight_step": s.weight_step if none is None else 0.1}
    hyper = algorithm.Hyper(query=query, losses=losses, step=0.5, averaging=jmm.TAIL,
                            iterations=s.iterations * (1 if none is None else 4), **own)
    if none == 0.0:
        return hyper
    hyper = jmm.calibrate(algorithm, hyper, epsilon, delta, share=s.share)
    step = jmm.group_sgd.gradient_step(hyper.query, s.iterations, dim=task.dim,
                                       diameter=task.problem.diameter)
    return dataclasses.replace(hyper, step=s.reach * step)


def _average_hyper(task: Task, epsilon: float, delta: float) -> jmm.sgda.Hyper:
    # twice the clip norm of the groups: what was best for this method on Adult at epsilon = 1
    s, n, free = task.settings, len(task.flat[1]), epsilon == math.inf
    query = Query(clip=Saddle(s.feature_bound if free else 2 * s.clip, None), population=n,
                  noise_multiplier=Saddle(0.0, None) if free else None)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(2.0, 2.0), averaging=jmm.TAIL,
                           iterations=s.iterations * (4 if free else 1))
    return hyper if epsilon == math.inf else jmm.calibrate(jmm.sgda, hyper, epsilon, delta)


def _solved_problem(task: Task) -> jmm.GroupProblem:
    bound, radius = task.settings.solved
    return jmm.problems.group_glm(task.loss, feature_bound=bound, radius=radius)


def _solved_hyper(task: Task, epsilon: float, delta: float) -> jmm.phased_erm.Hyper:
    problem, s = _solved_problem(task), task.settings
    eta = jmm.phased_erm.calibrated_eta(
        sizes=task.sizes, dim=task.dim, lipschitz=problem.lipschitz, bound=problem.bound,
        diameter=problem.diameter, epsilon=epsilon, delta=delta)
    made: jmm.phased_erm.Hyper = jmm.plan(
        jmm.phased_erm, problem=problem, sizes=task.sizes, dim=task.dim, epsilon=epsilon,
        delta=delta, eta=s.farther * eta, phases=s.phases).hyper
    return made


def _solved_read(hyper: jmm.phased_erm.Hyper, _: Any) -> int:
    query = hyper.query
    return (query.steps + 2) * query.phases * sum(jmm.mechanism.phase_sizes(query))


def _online_problem(task: Task) -> jmm.GroupProblem:
    return jmm.problems.group_glm(task.loss, feature_bound=task.settings.feature_bound,
                                  radius=task.settings.online[0])


def _online_hyper(task: Task, epsilon: float, delta: float) -> jmm.group_oco.Hyper:
    _, clip, bound = task.settings.online
    clipped = _online_problem(task)._replace(lipschitz=clip, bound=bound)
    made: jmm.group_oco.Hyper = jmm.plan(
        jmm.group_oco, problem=clipped, sizes=task.sizes, dim=task.dim, epsilon=epsilon,
        delta=delta, iterations=task.settings.rounds).hyper
    return made


METHODS = {
    "group_sgd": Method(jmm.group_sgd, functools.partial(_group_hyper, jmm.group_sgd),
                        lambda state: jnp.exp(state.z.v)),
    "active_groups": Method(jmm.active_groups, functools.partial(_group_hyper, jmm.active_groups),
                            lambda state: state.average.v),
    "phased_erm": Method(jmm.phased_erm, _solved_hyper, problem=_solved_problem,
                         read=_solved_read),
    "group_oco": Method(jmm.group_oco, _online_hyper, lambda state: jnp.exp(state.z.v),
                        problem=_online_problem, read=lambda _, state: int(state.spent)),
}
SOLVED = {"phased_erm": ("logistic", "squared")}  # losses that are convex and smooth
AVERAGE = Method(jmm.sgda, _average_hyper, average=True)
MINIMAX = METHODS["group_sgd"]  # without noise


def parser() -> report.Parser:
    p = report.Parser(prog="python -m benchmarks.worst_group", description=__doc__)
    p.add_argument("--dataset", choices=group_tasks.GROUPS, default="randhie")
    p.add_argument("--groups", help="what makes the groups: adult sex_race, sex or race; randhie "
                                    "health; ijcnn1 phase (default: the first)")
    p.add_argument("--by-label", action="store_true", help="cut every group by the label too")
    p.add_argument("--min-rows", type=report.count, default=500,
                   help="training records that a group must have")
    p.add_argument("--small", choices=group_tasks.SMALL, default="merge",
                   help="what becomes of smaller groups")
    p.add_argument("--loss", choices=jmm.problems.GLM_LOSSES, default="logistic")
    p.add_argument("--data-dir", help="folder of the data files (or set JAXMINIMAX_DATA)")
    p.add_argument("--algorithm", choices=METHODS, nargs="+",
                   help="default: all that the loss allows")
    p.add_argument("--epsilon", type=report.number(0, 1e6), nargs="+", default=_EPSILONS)
    p.add_argument("--delta", type=report.number(0, 1), default=1e-6)
    p.add_argument("--iterations", type=report.count, help="rounds")
    p.add_argument("--seeds", type=report.count, default=3, help="number of seeds: 0, 1, ...")
    p.add_argument("--synthetic", action="store_true",
                   help="time the algorithms on a million made-up records in a hundred groups")
    for name, value in _SYNTHETIC.items():
        p.add_argument(f"--{name.replace('_', '-')}", type=report.count, default=value,
                       help="with --synthetic")
    p.add_argument("--json", type=report.output(".json"), help="write the results to this file")
    p.add_argument("--plot", type=report.output(".png"), help="plot accuracy and group weights")
    return p


def check(args: Any, p: report.Parser) -> None:
    """Refuses combinations of arguments that make no sense, before any data are read."""
    known = group_tasks.GROUPS[args.dataset]
    args.groups = args.groups or known[0]
    if args.groups not in known:
        p.error(f"--groups {args.groups}: {args.dataset} has {', '.join(known)}")
    if args.data_dir is not None and not os.path.isdir(args.data_dir):
        p.error(f"--data-dir {args.data_dir}: no such folder; check the path")
    if args.records < args.group_count:
        p.error(f"--records {args.records}: give at least one for each of {args.group_count} "
                "groups")
    if args.synthetic and args.plot:
        p.error("--plot: --synthetic only times; drop one of them")
    allowed = [name for name in METHODS if args.loss in SOLVED.get(name, (args.loss,))]
    args.algorithm = args.algorithm or allowed
    for name in set(args.algorithm) - set(allowed):
        p.error(f"--algorithm {name}: it needs a loss that is convex and smooth: --loss "
                + " or ".join(SOLVED[name]))
    args.epsilon = sorted(set(args.epsilon))


@dataclasses.dataclass
class Trained:
    """All seeds of one method at one epsilon.

    Attributes:
      models: `[seeds, d]`.
      weights: of the first seed's groups, `[rounds, p]`, or None.
      state: the first seed's.
      hyper: what was run.
      seconds: for all seeds, without compilation.
      compiling: seconds.
    """

    models: jax.Array
    weights: np.ndarray | None
    state: Any
    hyper: Any
    seconds: float
    compiling: float


_PROGRAMS: dict[Any, Any] = {}


@functools.partial(jax.jit, static_argnames=("algorithm", "problem", "observe"))
def _runs(keys: jax.Array, z: Saddle, rows: Any, hyper: Any, algorithm: Any, problem: Any,
          observe: Any) -> Any:
    # one after the other: lanes would all take the rare branches of any of them
    return jax.lax.map(
        lambda key: jmm.run(key, z, rows, hyper, algorithm, problem, observe), keys)


@functools.cache  # one object a problem: it is hashed by identity
def _ungrouped(problem: jmm.GroupProblem) -> jmm.Problem:
    return jmm.Problem(operator=problem.operator,
                       project=lambda z: Saddle(problem.project(z.w), z.v))


def _nothing(_: Any) -> tuple[()]:
    return ()


def train(task: Task, method: Method, epsilon: float, delta: float, seeds: int) -> Trained:
    """Trains with every seed; the program of a method is compiled once."""
    described = method.hyper(task, epsilon, delta)
    rows = jax.tree.map(jnp.asarray, task.flat if method.average else task.train)
    problem = _ungrouped(task.problem) if method.average else task.problem
    if method.problem is not None:
        problem = method.problem(task)
    # a key for every run: the difference of two runs with the same noise would give data away
    named = zlib.crc32(f"{method.algorithm.__name__} {method.average}".encode())
    root = jax.random.fold_in(jax.random.key(named), np.float32(epsilon).view(np.uint32))
    keys = jax.vmap(lambda seed: jax.random.fold_in(root, seed))(jnp.arange(seeds))
    start = Saddle(jnp.zeros(task.dim, jnp.float32), ())
    how = dict(algorithm=method.algorithm, problem=problem, observe=method.weights or _nothing)
    hyper = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), described)
    inputs = (keys, start, rows, hyper)
    name = (id(task), method.algorithm, seeds, jax.tree.structure(hyper))
    clock = time.perf_counter()
    if name not in _PROGRAMS:
        _PROGRAMS[name] = _runs.lower(*inputs, **how).compile()
    compiling = time.perf_counter() - clock
    clock = time.perf_counter()
    states, seen = jax.block_until_ready(_PROGRAMS[name](*inputs))
    seconds = time.perf_counter() - clock
    weights = None if method.weights is None else np.asarray(seen[0])
    return Trained(states.average.w, weights, jax.tree.map(lambda x: x[0], states),
                   described, seconds, compiling)


@functools.partial(jax.jit, static_argnames=("problem", "sizes"))
def _measured(models: jax.Array, test: Any, problem: Any, sizes: tuple[int, ...]) -> Any:
    return jax.vmap(lambda w: (jmm.metrics.group_risks(problem, w, test, sizes),
                               jmm.metrics.group_accuracies(w, test, sizes)))(models)


def row(task: Task, name: str, epsilon: float, delta: float, found: Trained) -> dict[str, Any]:
    """One line of the results: held-out records, means over the seeds.

    Raises:
      ValueError: for a run that diverged.
    """
    if not bool(jnp.all(jnp.isfinite(found.models))):
        raise ValueError(f"{name} at epsilon {epsilon:g} diverged, or its sample did not fit")
    test = jax.tree.map(jnp.asarray, task.test)
    risk, accuracy = map(np.asarray, _measured(found.models, test, task.problem, task.test_sizes))
    n = np.array(task.test_sizes)
    worst = accuracy.min(1)
    private = epsilon < math.inf
    return {
        "dataset": task.name,
        "groups_by": task.groups,
        "algorithm": name,
        "epsilon": epsilon if private else None,
        "delta": delta if private else None,
        "worst_group": task.names[int(accuracy.mean(0).argmin())],
        "worst_group_accuracy": float(worst.mean()),
        "worst_group_accuracy_std": float(worst.std(ddof=1)) if len(worst) > 1 else 0.0,
        "average_accuracy": float((accuracy @ n / n.sum()).mean()),
        "worst_group_risk": float(risk.max(1).mean()),
        "seconds": found.seconds,
        "iterations": found.hyper.iterations,
        "seeds": len(worst),
        "groups": {group: {"risk": float(r), "accuracy": float(a), "n": int(size)}
                   for group, r, a, size in zip(task.names, risk.mean(0), accuracy.mean(0),
                                                task.sizes, strict=True)},
    }


def table(rows: list[dict[str, Any]]) -> str:
    header = ("algorithm", "epsilon", "worst accuracy", "+-", "average", "worst risk", "seconds",
              "worst group")
    return report.table(header, [
        (r["algorithm"], "none" if r["epsilon"] is None else f"{r['epsilon']:g}",
         f"{r['worst_group_accuracy']:.4f}", f"{r['worst_group_accuracy_std']:.4f}",
         f"{r['average_accuracy']:.4f}", f"{r['worst_group_risk']:.4f}", f"{r['seconds']:.1f}",
         r["worst_group"]) for r in rows])


def plot(path: pathlib.Path, rows: list[dict[str, Any]], weights: dict[str, np.ndarray],
         task: Task) -> None:
    """Accuracy against epsilon, a line an algorithm, and the groups' weights over the rounds."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 + 4 * len(weights), 4), layout="constrained")
    axes = figure.subplots(1, 1 + len(weights), squeeze=False)[0]
    names = dict.fromkeys(r["algorithm"] for r in rows)
    for color, name in zip((f"C{i}" for i in range(len(names))), names, strict=True):
        own = [r for r in rows if r["algorithm"] == name]
        private = sorted((r for r in own if r["epsilon"] is not None), key=lambda r: r["epsilon"])
        for value, style in (("worst_group_accuracy", "-"), ("average_accuracy", ":")):
            axes[0].plot([r["epsilon"] for r in private], [r[value] for r in private], style,
                         marker="o", color=color,
                         label=f"{name}, {value.split('_')[0]}" if private else None)
            for r in own:
                if r["epsilon"] is None and value == "worst_group_accuracy":
                    axes[0].axhline(r[value], color=color, linestyle="--",
                                    label=f"{name}, worst, without privacy")
    axes[0].set(xscale="log", xlabel="epsilon", ylabel="accuracy on held-out records",
                title=f"{task.name}, groups by {task.groups}")
    axes[0].legend(fontsize="x-small")
    for ax, (name, path_of) in zip(axes[1:], weights.items(), strict=True):
        for i in range(path_of.shape[1]):
            ax.plot(path_of[:, i], label=task.names[i])
        ax.set(xlabel="round", ylabel="weight of a group", ylim=(0, 1), title=name)
    if weights and len(task.names) <= 10:
        axes[1].legend(fontsize="x-small")
    for ax in axes:
        ax.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def compared(args: Any, task: Task) -> tuple[list[dict[str, Any]], list[Any], dict[str, Any]]:
    """Rows, privacy statements, and by algorithm its weights at one epsilon, near 1."""
    plan: list[tuple[str, Method, float]] = []
    for epsilon in args.epsilon:
        plan += [(name, METHODS[name], epsilon) for name in args.algorithm]
        plan += [("average_risk", AVERAGE, epsilon)]
    plan += [("average_risk", AVERAGE, math.inf), ("minimax", MINIMAX, math.inf)]
    shown = min(args.epsilon, key=lambda epsilon: abs(math.log(epsilon)))
    rows, statements, weights = [], [], {}
    for name, method, epsilon in tqdm(plan, desc="training", file=sys.stderr, disable=None,
                                      leave=False):
        found = train(task, method, epsilon, args.delta, args.seeds if epsilon < math.inf else 1)
        rows.append(row(task, name, epsilon, args.delta, found))
        if epsilon < math.inf:
            statements.append(jmm.statement(
                method.algorithm, found.hyper, found.state, delta=args.delta, unit=task.unit,
                assumed=(*task.public, *_ASSUMED)))
        if epsilon == shown and found.weights is not None:
            weights[f"{name}, epsilon {epsilon:g}"] = found.weights
    return rows, statements, weights


def timed(args: Any) -> list[dict[str, Any]]:
    """How fast each algorithm is on made-up records, each in a process of its own."""
    if len(args.algorithm) == 1:
        return [_timed(args)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.algorithm:
            target = pathlib.Path(folder) / f"{name}.json"
            sizes = (f"--{x.replace('_', '-')}={getattr(args, x)}" for x in _SYNTHETIC)
            subprocess.run([sys.executable, "-m", "benchmarks.worst_group", "--synthetic", *sizes,
                            "--algorithm", name, "--json", str(target)], check=True,
                           stdout=subprocess.DEVNULL)
            rows += json.loads(target.read_text(encoding="utf-8"))["rows"]
    return rows


def _timed(args: Any) -> dict[str, Any]:
    task = group_tasks.synthetic(args.records, args.group_count, args.dim)
    (name,) = args.algorithm
    found = train(task, METHODS[name], 1.0, 1e-6, 1)
    line = row(task, name, 1.0, 1e-6, found)
    count = METHODS[name].read
    read = (found.hyper.iterations * (sum(task.sizes) + max(task.sizes)) if count is None
            else count(found.hyper, found.state))
    return {
        **{key: line[key] for key in ("dataset", "algorithm", "epsilon", "delta", "iterations",
                                      "worst_group_accuracy", "average_accuracy", "seconds")},
        "records": sum(task.sizes), "group_count": len(task.sizes), "dim": task.dim,
        "records_per_second": read / found.seconds, "compile_seconds": found.compiling,
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def _timing_table(rows: list[dict[str, Any]]) -> str:
    return report.table(
        ("algorithm", "records", "groups", "rounds", "seconds", "compilation", "records / s",
         "peak GiB"),
        [(r["algorithm"], str(r["records"]), str(r["group_count"]), str(r["iterations"]),
          f"{r['seconds']:.1f}", f"{r['compile_seconds']:.1f}", f"{r['records_per_second']:.3g}",
          f"{r['peak_memory_gib']:.2f}") for r in rows])


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark; 0, 1 if a run diverged, or 2 after a refusal."""
    p = parser()
    args = p.parse_args(argv)
    check(args, p)
    arguments = {k: str(v) if isinstance(v, pathlib.Path) else v for k, v in vars(args).items()}
    record = {"environment": report.environment(), "arguments": arguments}
    if args.synthetic:
        record["rows"] = timed(args)
        print(_timing_table(record["rows"]))
        if args.json:
            report.write_json(args.json, record)
        return 0
    try:
        task = group_tasks.load(args.dataset, args.groups, by_label=args.by_label,
                                least=args.min_rows, small=args.small, loss=args.loss,
                                data_dir=args.data_dir)
    except (ValueError, OSError) as error:
        p.error(str(error))
    if args.iterations:
        task = dataclasses.replace(task, settings=task.settings._replace(
            iterations=args.iterations))
    print(f"{task.name}, groups by {task.groups}: "
          + ", ".join(f"{a} ({n})" for a, n in zip(task.names, task.sizes, strict=True))
          + f". {task.left_out}\n")
    try:
        rows, statements, weights = compared(args, task)
    except ValueError as error:
        report.say(f"{p.prog}: {error}")
        return 1
    print(table(rows))
    print("\nAccuracy and risk are of held-out records, means over the seeds; seconds: training "
          "with all\nseeds, without compilation.\n")
    print(report.paragraphs([str(s) for s in statements]))
    if args.json:
        report.write_json(args.json, {**record, "left_out": task.left_out, "rows": rows,
                                      "statements": [s.to_json() for s in statements]})
    if args.plot:
        plot(args.plot, rows, weights, task)
    return 0


if __name__ == "__main__":
    sys.exit(main())
