"""`python -m benchmarks.accuracy.tune`: what a search over settings is worth, when it is paid for.

AUC maximisation on the RAND table (linear scorer, full batches), with one target of privacy for
everything: settings that were guessed, settings that a private search found, and the settings that
are best on the test rows, which nobody can know. Clip norm and step are searched over.
"""

import argparse
import itertools
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.accuracy.auc import runs as auc_runs
from benchmarks.common import report
from benchmarks.data_sets import data
from jaxminimax import Saddle

_CLIPS, _STEPS = (1.0, 4.0, 16.0, 64.0), (0.01, 0.2, 4.0)
_GUESSES = ((1.0, 0.01), (4.0, 0.2), (64.0, 4.0))
_ITERATIONS, _RADIUS, _PRIOR = 60, 10.0, 0.7
_KEY = jax.random.key(41)  # fixed, so that the table can be repeated; a real search needs a secret


def settings(clip: float, step: float, n: int) -> jmm.sgda.Hyper:
    """One candidate, without noise yet."""
    query = jmm.Query(clip=Saddle(clip, None), population=n, parameters=64)
    return jmm.sgda.Hyper(query=query, step=Saddle(step, 0.2), iterations=_ITERATIONS,
                          averaging=jmm.averaging.Averaging(skip=0.5))


def balanced(z: Saddle, record: Any) -> jax.Array:
    """Whether a record is on its side of the mean of both classes' scores, classes balanced."""
    x, y = record
    middle = (z.w["a"] + z.w["b"]) / 2
    right = (jmm.problems.linear_scorer(z.w["theta"], x) > middle) == (y > 0.5)
    return right * jnp.where(y > 0.5, 0.5 / _PRIOR, 0.5 / (1 - _PRIOR))


_RANGE = (0.0, 0.5 / (1 - _PRIOR))


def auc(z: Saddle, dataset: data.Dataset) -> float:
    """Of the test rows, not private."""
    scores = np.asarray(dataset.x_test) @ np.asarray(z.w["theta"])
    return float(jmm.metrics.auc(scores, dataset.y_test))


def every(made: list[Any], dataset: data.Dataset, seed: int) -> list[float]:
    """The AUC of every candidate, each with all of the budget."""
    rows = jnp.asarray(dataset.x_train), jnp.asarray(dataset.y_train)
    keys = jax.random.split(jax.random.fold_in(_KEY, 2 * seed), (len(made), 1))
    states, _ = _SWEEP(keys, _start(dataset), rows, jmm.stack(made), algorithm=jmm.sgda,
                       problem=_problem(), at_once=1)
    points = jax.tree.map(lambda x: np.asarray(x)[:, 0], states.average)
    return [auc(jax.tree.map(lambda x, i=i: x[i], points), dataset) for i in range(len(made))]


_SWEEP = jax.jit(jmm.sweep, static_argnames=("algorithm", "problem", "at_once"))


def _problem() -> jmm.Problem:
    return auc_runs.problem("linear", _PRIOR, _RADIUS, "best_response")


def _start(dataset: data.Dataset) -> Saddle:
    return jmm.problems.auc_start(jnp.zeros(dataset.x_train.shape[1], jnp.float32))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All seeds."""
    guessed, tuned, winners, scores, said = [], [], [], [], None
    for seed in report.seeds(args):
        dataset = data.load("randhie", seed=seed)
        n = len(dataset.y_train)
        candidates = [settings(*x, n) for x in itertools.product(_CLIPS, _STEPS)]
        one = jmm.calibrate(jmm.sgda, candidates[0], args.epsilon, args.delta)
        noise = one.query.noise_multiplier
        assert noise is not None  # calibrated
        made = [jmm.mechanism.with_noise(h.query, float(noise.w)) for h in candidates]
        alone = [jmm.sgda.Hyper(query=q, step=h.step, iterations=h.iterations,
                                averaging=h.averaging) for q, h in zip(made, candidates,
                                                                       strict=True)]
        guessed.append(every(alone, dataset, seed))
        result = jmm.tune(
            jax.random.fold_in(_KEY, 2 * seed + 1), _start(dataset),
            (jnp.asarray(dataset.x_train), jnp.asarray(dataset.y_train)), candidates, jmm.sgda,
            _problem(), score=balanced, score_range=_RANGE, epsilon=args.epsilon,
            delta=args.delta, expected=args.expected, unit=dataset.unit)
        tuned.append(auc(result.state.average, dataset))
        scores.append(float(result.score))
        winners.append((float(result.hyper.query.clip.w), float(result.hyper.step.w)))
        said = result.statement
        report.say(f"seed {seed}: tuned {tuned[-1]:.4f} by clip norm and step {winners[-1]}, best "
                   f"of all {max(guessed[-1]):.4f}")
    assert said is not None
    places = list(itertools.product(_CLIPS, _STEPS))
    mean = np.mean(guessed, 0)
    best = int(np.argmax(mean))
    lines = [(f"guessed: clip {c:g}, step {s:g}", [g[places.index((c, s))] for g in guessed])
             for c, s in _GUESSES]
    lines += [("a candidate at random", [statistics.fmean(g) for g in guessed]),
              ("tuned, everything paid for", tuned),
              (f"best on test rows: clip {places[best][0]:g}, step {places[best][1]:g}",
               [g[best] for g in guessed])]
    rows = [{"settings": name, "epsilon": args.epsilon, "delta": args.delta, "seeds": args.seeds,
             "auc_mean": statistics.fmean(x), "auc_least": min(x),
             "auc_std": statistics.stdev(x) if len(x) > 1 else 0.0} for name, x in lines]
    assert noise is not None
    ratio = said.noise_multiplier[0][0]["w"] / float(noise.w)
    return {"rows": rows, "winners": winners, "scores": scores, "noise_ratio": ratio,
            "statement": said}


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = report.Parser(__file__, __doc__, "json")
    parser.add_argument("--epsilon", type=report.number(0, 1e6), default=1.0)
    parser.add_argument("--delta", type=report.number(0, 1), default=1e-6)
    parser.add_argument("--expected", type=report.number(1, 1e4), default=10.0,
                        help="mean number of runs of a search")
    report.seed_options(parser, 10)
    args = parser.parse_args(argv)
    began = time.perf_counter()
    result = measure(args)
    print(report.table(("settings", "AUC", "+-", "least"), [
        (r["settings"], f"{r['auc_mean']:.4f}", f"{report.error(r):.4f}", f"{r['auc_least']:.4f}")
        for r in result["rows"]]))
    print(f"\nEvery line at epsilon {args.epsilon:g}, delta {args.delta:g}; {args.seeds} seed(s). "
          f"Noise of a tuned run over that of a single one: {result['noise_ratio']:.3f}.\n\n"
          f"{result['statement']}\n\n{time.perf_counter() - began:.0f} s.")
    report.save(args, result | {"statement": report.stated(result["statement"])})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
