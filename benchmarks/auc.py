"""`python -m benchmarks.auc`: private AUC maximisation on tables and images.

For each epsilon, a scorer is trained on the AUC saddle problem under a real (epsilon, delta)
guarantee, with several seeds, and its AUC is measured on held-out rows. The reference without
privacy is the same algorithm without noise (and, for the linear scorer, without clipping).
"""

import argparse
import collections
import dataclasses
import functools
import math
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import jaxminimax as jmm
from benchmarks import data, report, settings
from jaxminimax import Saddle

_EPSILONS = (0.1, 0.5, 1.0, 5.0, 10.0)
_SCORERS = {"linear": jmm.problems.linear_scorer, "mlp": jmm.problems.mlp_scorer}
_ALGORITHMS = {"sgda": jmm.sgda, "gda": jmm.gda, "extragradient": jmm.extragradient}
# Data sets whose training rows are the same for every seed, in another order.
_FIXED = ("mnist", "fashion_mnist", "adult")
_SLICE = {"linear": 256, "mlp": 32}  # rows whose gradients are in memory together
# optimisers are hashed by identity, so there is one object each
_OPTIMISER = {0.0: optax.sgd, 0.9: functools.partial(optax.sgd, momentum=0.9)}
_ASSUMED = (
    "Keys follow from the seeds so that the table can be repeated; a real run needs a secret key.",
    "The AUC of the held-out rows is computed without privacy.",
)


class Refused(Exception):
    """Bad input that only the data reveal."""


class Diverged(Exception):
    """A run ended in scores that are not finite."""


@dataclasses.dataclass(frozen=True)
class Lane:
    """One row of the table, or the reference (epsilon infinite), before it is run."""

    epsilon: float
    hyper: Any
    problem: jmm.Problem
    settings: settings.Settings


def parser() -> report.Parser:
    p = report.Parser(prog="python -m benchmarks.auc", description=__doc__)
    p.add_argument("--dataset", choices=data.NAMES, help="default: randhie, which needs no file")
    p.add_argument("--split", choices=("random", "file"), default="random",
                   help="test on a random fifth of the rows, or on the published test file")
    p.add_argument("--data-dir", help="folder of the data files (or set JAXMINIMAX_DATA)")
    p.add_argument("--csv", help="a table of your own, with a header line")
    p.add_argument("--label", help="its label column")
    p.add_argument("--positive", help="the value of the label that counts as positive")
    p.add_argument("--prior", type=report.number(0, 1),
                   help="public guess of the share of positives in it (default: 0.5)")
    p.add_argument("--scorer", choices=_SCORERS, default="linear")
    p.add_argument("--algorithm", choices=_ALGORITHMS, default="sgda")
    p.add_argument("--epsilon", type=report.number(0, 1e6), nargs="+", default=_EPSILONS)
    p.add_argument("--delta", type=report.number(0, 1), default=1e-6)
    p.add_argument("--neighbours", choices=("replace_one", "add_or_remove_one"),
                   default="replace_one")
    p.add_argument("--batch", type=_batch,
                   help="expected size of a Poisson batch, or 'full' (default: by data set)")
    p.add_argument("--iterations", type=report.count, help="rounds (default: by data set)")
    p.add_argument("--seeds", type=report.count, default=5, help="number of seeds: 0, 1, ...")
    p.add_argument("--json", type=report.output(".json"), help="write the results to this file")
    p.add_argument("--plot", type=report.output(".png"), help="plot AUC against epsilon")
    return p


def _batch(text: str) -> float | str:
    try:
        return text if text == "full" else report.number(0, math.inf)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"got {text!r}; give a positive number, or 'full'") from None


def check(args: Any, p: report.Parser) -> None:
    """Refuses combinations of arguments that make no sense, before any data are read."""
    if args.csv is None:
        for name in ("label", "positive", "prior"):
            if getattr(args, name) is not None:
                p.error(f"--{name} goes with --csv FILE; add that or drop --{name}")
        args.dataset = args.dataset or "randhie"
        if args.dataset == "randhie" and args.split == "file":
            p.error("--split file: randhie has no published test file; use --split random")
    else:
        if args.dataset is not None:
            p.error(f"--dataset {args.dataset} and --csv {args.csv} exclude each other; drop one")
        if args.label is None or args.positive is None:
            p.error(f"--csv {args.csv} needs --label COLUMN and --positive VALUE")
        if not os.path.isfile(args.csv):
            p.error(f"--csv {args.csv}: no such file; check the path")
        if args.split == "file":
            p.error("--split file: a CSV file has no test file; use --split random")
    if args.data_dir is not None and not os.path.isdir(args.data_dir):
        p.error(f"--data-dir {args.data_dir}: no such folder; check the path")
    if args.algorithm != "sgda" and args.scorer == "mlp":
        p.error(f"--algorithm {args.algorithm} needs a loss convex in w, and --scorer mlp is not; "
                "use --scorer linear or --algorithm sgda")
    if args.algorithm == "gda" and args.batch not in (None, "full"):
        p.error(f"--batch {args.batch:g}: gda reads all records in every round; use --batch full")
    args.epsilon = sorted(set(args.epsilon))


def load(args: Any, seed: int) -> data.Dataset:
    try:
        if args.csv is None:
            return data.load(args.dataset, data_dir=args.data_dir, seed=seed, split=args.split)
        return data.from_csv(args.csv, args.label, args.positive, prior=args.prior or 0.5,
                             seed=seed)
    except (ValueError, OSError) as error:
        raise Refused(str(error)) from error


@functools.cache  # one object a problem: it is hashed by identity
def _problem(scorer: str, prior: float, radius: float, dual: str) -> jmm.Problem:
    return jmm.problems.auc(_SCORERS[scorer], prior=prior, radius=Saddle(radius, radius), dual=dual)


def lane(args: Any, epsilon: float, dataset: data.Dataset) -> Lane:
    """Settings, problem and calibrated hyper-parameters of one epsilon; infinity: no privacy."""
    s = settings.choose("csv" if args.csv else args.dataset, args.scorer, epsilon,
                        prior=dataset.prior, iterations=args.iterations)
    n = len(dataset.y_train)
    own = s.share is not None  # whether v moves by a gradient of its own
    clip = Saddle(s.clip, s.clip_v if own else None)
    noise = jmm.budget_split(w=s.share) if own else None
    if epsilon == math.inf:
        noise = Saddle(0.0, 0.0 if own else None)
    rate = s.rate if args.batch is None else None if args.batch == "full" else args.batch / n
    if rate is not None and rate > 1:
        raise Refused(f"--batch {args.batch:g} exceeds the {n} training records; give at most {n}, "
                      "or --batch full")
    query = jmm.Query(clip=clip, noise_multiplier=noise, population=n,
                      sampling=jmm.Full() if rate is None else jmm.Poisson(rate=rate))
    common = dict(query=query, iterations=s.iterations, averaging=jmm.Averaging(skip=s.skip),
                  strategy="microbatch", microbatch=_SLICE[args.scorer])
    if args.algorithm == "gda":
        offset = s.iterations / 2  # so the steps fall to a third of the first one
        hyper = jmm.gda.Hyper(**common, modulus=1 / ((s.first_step or s.step) * offset),
                              offset=offset)
    elif args.algorithm == "extragradient":
        # half the rounds, of two releases each, with steps twice as long
        hyper = jmm.extragradient.Hyper(**{**common, "iterations": -(-s.iterations // 2)},
                                        step=Saddle(*(2 * x / (1 - s.momentum)
                                                      for x in (s.step, s.step_v))))
    else:
        hyper = jmm.sgda.Hyper(**common, step=Saddle(s.step, s.step_v),
                               optimiser=Saddle(_OPTIMISER[s.momentum], optax.sgd))
    if epsilon < math.inf:
        try:
            hyper = jmm.calibrate(_ALGORITHMS[args.algorithm], hyper, epsilon, args.delta,
                                  neighbours=args.neighbours)
        except ValueError as error:
            raise Refused(f"--epsilon {epsilon:g}, --delta {args.delta:g}: {error}") from error
    problem = _problem(args.scorer, dataset.prior, s.radius, "ascent" if own else "best_response")
    return Lane(epsilon, hyper, problem, s)


def start(args: Any, s: settings.Settings, dim: int, seed: int) -> Saddle:
    """The initial point: zero for the linear scorer, random weights for the MLP."""
    if args.scorer == "linear":
        return jmm.problems.auc_start(jnp.zeros(dim, jnp.float32))
    theta = jmm.problems.mlp_init(jax.random.key(seed), dim, s.hidden, scale=s.scale)
    theta["W1"] = theta["W1"] / s.norm
    return jmm.problems.auc_start(jax.tree.map(lambda x: x.astype(jnp.float32), theta))


def key(seed: int, epsilon: float) -> jax.Array:
    """A key for every run: the difference of two runs with the same noise would give data away."""
    return jax.random.fold_in(jax.random.key(seed), np.float32(epsilon).view(np.uint32))


def groups(lanes: list[Lane]) -> list[list[int]]:
    """Lanes that one compiled program can run together, by number."""
    found = collections.defaultdict(list)
    for i, one in enumerate(lanes):
        s = one.settings
        found[jax.tree.structure(one.hyper), one.problem, s.hidden, s.norm, s.scale].append(i)
    return list(found.values())


def splits(args: Any, first: data.Dataset) -> Iterator[tuple[data.Dataset, list[int]]]:
    """Data sets with the seeds to run on them; `first` is that of seed 0."""
    seeds = list(range(args.seeds))
    if args.dataset in _FIXED and args.scorer == "linear":
        yield first, seeds
        return
    for seed in seeds:
        yield (first if seed == 0 or args.dataset in _FIXED else load(args, seed)), [seed]


@dataclasses.dataclass
class Result:
    """What `measure` finds, by lane: AUC of every seed, run seconds, the first seed's state."""

    auc: list[list[float]]
    seconds: list[float]
    state: list[Any]
    compile_seconds: float = 0.0


def measure(args: Any, lanes: list[Lane], first: data.Dataset) -> Result:
    """Runs every lane with every seed.

    Raises:
        Diverged: if the scores of a run are not finite.
    """
    algorithm, dim = _ALGORITHMS[args.algorithm], first.x_train.shape[1]
    sweep = jax.jit(jmm.sweep, static_argnames=("algorithm", "problem", "observe"))
    score = jax.jit(lambda theta, x: jax.vmap(_SCORERS[args.scorer], (None, 0))(theta, x))
    plan, programs = groups(lanes), {}
    result = Result([[] for _ in lanes], [0.0] * len(lanes), [None] * len(lanes))
    bar = tqdm(total=len(plan) * args.seeds, unit="run", desc="training", file=sys.stderr,
               disable=None, leave=False)
    for dataset, seeds in splits(args, first):
        rows = (jnp.asarray(dataset.x_train), jnp.asarray(dataset.y_train))
        test = jnp.asarray(dataset.x_test)
        for number, members in enumerate(plan):
            one = lanes[members[0]]
            keys = jnp.stack([jnp.stack([key(seed, lanes[i].epsilon) for seed in seeds])
                              for i in members])
            inputs = (keys, start(args, one.settings, dim, seeds[0]), rows,
                      jmm.stack([lanes[i].hyper for i in members]))
            clock = time.perf_counter()
            if number not in programs:
                programs[number] = sweep.lower(*inputs, algorithm=algorithm,
                                               problem=one.problem).compile()
                result.compile_seconds += time.perf_counter() - clock
                clock = time.perf_counter()
            states, _ = jax.block_until_ready(programs[number](*inputs))
            seconds = (time.perf_counter() - clock) / len(members)
            for place, i in enumerate(members):
                result.seconds[i] += seconds
                for j, seed in enumerate(seeds):
                    state = jax.tree.map(lambda x, p=place, j=j: x[p, j], states)
                    scores = score(state.average.w["theta"], test)
                    if not np.isfinite(scores).all():
                        raise Diverged(f"epsilon {lanes[i].epsilon:g}, seed {seed}: the scores are "
                                       "not finite, the run diverged; try fewer --iterations or "
                                       "a larger --batch")
                    result.auc[i].append(jmm.metrics.auc(scores, dataset.y_test))
                    result.state[i] = result.state[i] or state
            bar.update(len(seeds))
    bar.close()
    return result


def record(args: Any, name: str, one: Lane, auc: list[float], nonprivate: float,
           seconds: float) -> dict[str, Any]:
    """One row of the results, flat."""
    return {
        "dataset": name,
        "algorithm": args.algorithm,
        "scorer": args.scorer,
        "epsilon": one.epsilon,
        "delta": args.delta,
        "auc_mean": statistics.fmean(auc),
        "auc_std": statistics.stdev(auc) if len(auc) > 1 else 0.0,
        "auc_nonprivate": nonprivate,
        "noise_multiplier": jmm.effective_noise_multiplier(one.hyper.query),
        "seconds": seconds,
        "split": args.split,
        "neighbours": args.neighbours,
        "seeds": args.seeds,
        "iterations": one.hyper.iterations,
    }


def table(rows: list[dict[str, Any]]) -> str:
    header = ("algorithm", "scorer", "epsilon", "AUC", "+-", "non-private", "noise", "seconds")
    return report.table(header, [
        (r["algorithm"], r["scorer"], f"{r['epsilon']:g}", f"{r['auc_mean']:.4f}",
         f"{r['auc_std']:.4f}", f"{r['auc_nonprivate']:.4f}", f"{r['noise_multiplier']:.4g}",
         f"{r['seconds']:.2f}") for r in rows])


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark; 0, 1 if a run diverged, or 2 after a refusal."""
    began = time.perf_counter()
    p = parser()
    args = p.parse_args(argv)
    check(args, p)
    try:
        first = load(args, 0)
        clock = time.perf_counter()
        lanes = [lane(args, epsilon, first) for epsilon in (*args.epsilon, math.inf)]
        calibration = time.perf_counter() - clock
        result = measure(args, lanes, first)
    except Refused as error:
        p.error(str(error))
    except Diverged as error:
        report.say(f"{p.prog}: {error}")
        return 1

    nonprivate = statistics.fmean(result.auc[-1])  # the reference is the last lane
    rows = [record(args, first.name, one, result.auc[i], nonprivate, result.seconds[i])
            for i, one in enumerate(lanes[:-1])]
    chosen = settings.ASSUMED_CSV if args.csv else settings.ASSUMED
    statements = [
        jmm.statement(_ALGORITHMS[args.algorithm], one.hyper, result.state[i], delta=args.delta,
                      neighbours=args.neighbours, unit=first.unit,
                      assumed=(*first.public, chosen, *_ASSUMED))
        for i, one in enumerate(lanes[:-1])]

    print(f"{first.name}: {len(first.y_train)} training and {len(first.y_test)} test rows, "
          f"{first.x_train.shape[1]} features; delta {args.delta:g}, {args.neighbours}, "
          f"{args.seeds} seed(s)\n")
    print(table(rows))
    print("\nAUC: mean and standard deviation over the seeds; noise: effective noise multiplier;\n"
          "seconds: training with all seeds, without compilation.\n")
    print(report.paragraphs([str(s) for s in statements]))
    if args.json:
        arguments = {k: str(v) if isinstance(v, pathlib.Path) else v for k, v in vars(args).items()}
        report.write_json(args.json, {
            "environment": report.environment(), "arguments": arguments, "rows": rows,
            "statements": [s.to_json() for s in statements]})
    if args.plot:
        report.plot_auc(args.plot, rows, f"{first.name}, {args.scorer} scorer, {args.algorithm}, "
                                         f"delta {args.delta:g}")
    print(f"\nCalibration {calibration:.1f} s, compilation {result.compile_seconds:.1f} s, "
          f"everything {time.perf_counter() - began:.1f} s.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
