"""`python -m benchmarks.papers.table2.tuned`: Table 2 with settings paid for, or guessed.

One (epsilon, delta) for everything, three ways to come by settings:

    not paid for  the settings of `papers.table2`, chosen on validation rows for nothing
    paid for      a private search (`jmm.tune`) over three candidates by a rule from public
                  numbers, with the score of every run released and charged
    nobody tuned  `jaxminimax.tables.defaults`: a logistic scorer whose settings follow from
                  public numbers

Linear scorers on the same features and rows, seeds in common. The rule, the number of runs and the
score were chosen on validation splits of ijcnn1, and which candidates go with the rule on one of
Fashion-MNIST too, which is not paid for.
"""

import argparse
import dataclasses
import functools
import itertools
import math
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.accuracy.auc import runs as auc_runs
from benchmarks.common import report
from benchmarks.common.settings import Settings
from benchmarks.data_sets import data
from benchmarks.papers.table2 import settings as table2_settings
from jaxminimax import Saddle

DATASETS = ("ijcnn1", "fashion_mnist")
WAYS = ("not paid for", "paid for", "nobody tuned")
_EXPECTED = 4.0  # runs of a search
# The rule: a time tau, rounds times step, in which a flat direction gathers noise of _GATHERED a
# coordinate, or less where _LONGEST is reached first.
_ROUNDS, _GATHERED, _LONGEST = 250, 0.05, 25.0
_FACTORS = (0.5, 1.0, 2.0)  # of the clip norm, at equal gathered noise: the step is divided by them


def _key(dataset: str, way: str, epsilon: float, seed: int) -> jax.Array:
    """Another one for every run; fixed, so that the table can be repeated."""
    return auc_runs.key(seed, f"tuned, {dataset}, {way}", epsilon)


def _load(args: argparse.Namespace, name: str, seed: int) -> data.Dataset:
    _, s = table2_settings.choose(name, "linear", 1.0)
    result = data.load(name, data_dir=args.data_dir, seed=seed, features=s.features)
    if not args.quick:
        return result
    return dataclasses.replace(result, x_train=result.x_train[:4000], y_train=result.y_train[:4000])


def _auc(theta: Any, dataset: data.Dataset) -> float:
    """Of the test rows in per cent, not private."""
    return 100 * float(jmm.metrics.auc(np.asarray(dataset.x_test) @ np.asarray(theta),
                                       dataset.y_test))


def _rows(dataset: data.Dataset) -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(dataset.x_train), jnp.asarray(dataset.y_train)


def not_paid_for(args: argparse.Namespace, dataset: data.Dataset, epsilon: float,
                 seed: int) -> tuple[float, Any, dict[str, Any]]:
    """The settings of Table 2."""
    scorer, s = table2_settings.choose(dataset.name, "linear", epsilon)
    one = auc_runs.lane(s, "sgda", scorer, dataset, epsilon, args.delta, rate=s.rate)
    state = jmm.run(_key(dataset.name, WAYS[0], epsilon, seed), _start(dataset), _rows(dataset),
                    one.hyper, jmm.sgda, one.problem).state
    said = jmm.statement(jmm.sgda, one.hyper, state, delta=args.delta, unit=dataset.unit)
    return _auc(state.average.w["theta"], dataset), said, _told(s)


def candidates(n: int, prior: float, epsilon: float, delta: float) -> list[Settings]:
    """Clip norms C around 2 / (share of the rarer class), and times that go with them; all public.

    Such a record of norm 1 has a gradient of that length at the start. Steps s that add up to a
    time tau gather noise tau C z / n in a direction without curvature, z the noise multiplier of
    one release of everything at (epsilon, delta), however many they are; s C is also how far one of
    them gets where gradients are clipped. So it is the same for all candidates.
    """
    clip = 2 / min(prior, 1 - prior)
    once = jmm.Repeat(query=jmm.Query(clip=Saddle(clip, None), population=n), times=1)
    noise = jmm.accounting.calibrate_noise(once, epsilon, delta).query.noise_multiplier.w
    step = min(_LONGEST, _GATHERED * n / (noise * clip)) / _ROUNDS
    return [Settings(clip=k * clip, step=step / k, iterations=_ROUNDS, skip=0.5)
            for k in _FACTORS]  # v = b - a, which reads no data


@functools.cache  # programs are kept by its identity
def _score(prior: float) -> Any:
    return jmm.problems.auc_score(jmm.problems.linear_scorer, prior=prior)


def paid_for(args: argparse.Namespace, dataset: data.Dataset, epsilon: float,
             seed: int) -> tuple[float, Any, dict[str, Any]]:
    """A search over the candidates."""
    tried = candidates(len(dataset.y_train), dataset.prior, epsilon, args.delta)
    lanes = [auc_runs.lane(s, "sgda", "linear", dataset, 1.0, args.delta) for s in tried]
    result = jmm.tune(_key(dataset.name, WAYS[1], epsilon, seed), _start(dataset), _rows(dataset),
                      [one.hyper for one in lanes], jmm.sgda, lanes[0].problem,
                      score=_score(dataset.prior), score_range=(0.0, 1.0),
                      epsilon=epsilon, delta=args.delta, expected=_EXPECTED, unit=dataset.unit)
    return (_auc(result.state.average.w["theta"], dataset), result.statement,
            _told(tried[int(result.candidate)]))


def nobody_tuned(args: argparse.Namespace, dataset: data.Dataset, epsilon: float,
                 seed: int) -> tuple[float, Any, dict[str, Any]]:
    """The default of the estimators, given the range of every column."""
    from jaxminimax.estimators import PrivateAUCClassifier

    low, high = _RANGES[dataset.name]
    state = int(jax.random.bits(_key(dataset.name, WAYS[2], epsilon, seed)) >> 1)
    model = PrivateAUCClassifier(epsilon=epsilon, delta=args.delta, bounds=(low, high),
                                 random_state=state)
    model.fit(np.asarray(dataset.x_train, np.float64), dataset.y_train)
    scores = model.decision_function(np.asarray(dataset.x_test, np.float64))
    return 100 * float(jmm.metrics.auc(scores, dataset.y_test)), model.statement_, {}


_RANGES = {"ijcnn1": (-1.0, 1.0), "fashion_mnist": (-1.0, 1.0)}
_HOW = dict(zip(WAYS, (not_paid_for, paid_for, nobody_tuned), strict=True))


def _start(dataset: data.Dataset) -> Saddle:
    return jmm.problems.auc_start(jnp.zeros(dataset.x_train.shape[1], jnp.float32))


def _told(s: Settings) -> dict[str, Any]:
    return {"clip": s.clip, "step": s.step, "iterations": s.iterations}


def measure(args: argparse.Namespace, keep: dict[str, Any]) -> list[dict[str, Any]]:
    """All cells; those in `keep` are not run again."""
    rows = []
    cells = {f"{name}, {epsilon:g}, {way}": (name, epsilon, way)
             for name, epsilon, way in itertools.product(args.datasets, args.epsilon, WAYS)}
    for label in report.chosen(args, list(cells)):
        name, epsilon, way = cells[label]
        if label not in keep:
            began, scores, chosen, said = time.perf_counter(), [], [], None
            for seed in report.seeds(args):
                score, said, settings = _HOW[way](args, _load(args, name, seed), epsilon, seed)
                scores.append(score)
                chosen.append(settings)
            error = (statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1
                     else 0.0)
            assert said is not None
            keep[label] = {
                "data": name, "epsilon": epsilon, "delta": args.delta, "settings": way,
                "auc": statistics.fmean(scores), "auc_se": error, "seeds": args.seeds,
                "aucs": scores, "chosen": chosen, "statement": report.stated(said),
                "published": table2_settings.published(name, "linear", epsilon, args.delta),
                "seconds": time.perf_counter() - began}
            report.say(f"{label}: {keep[label]['auc']:.2f} +- {error:.2f}")
            write(args, keep)
        rows.append(keep[label])
    return rows


def write(args: argparse.Namespace, cells: dict[str, Any]) -> None:
    """The results file, after every cell."""
    report.save(args, {"rows": list(cells.values())})


def kept(args: argparse.Namespace) -> dict[str, Any]:
    """Cells of an earlier run of the same arguments."""
    same = ("seeds", "first_seed", "delta", "quick")
    rows = report.kept(args.json, "rows", report.arguments_of(args), same) or []
    return {f"{r['data']}, {r['epsilon']:g}, {r['settings']}": r for r in rows}


def table(rows: list[dict[str, Any]]) -> str:
    """One line a budget, one column a way."""
    cells = {(r["data"], r["epsilon"], r["settings"]): r for r in rows}
    lines = []
    for name, epsilon in dict.fromkeys((d, e) for d, e, _ in cells):
        here = [cells[name, epsilon, way] for way in WAYS if (name, epsilon, way) in cells]
        lines.append((name, f"{epsilon:g}", *(f"{r['auc']:.2f} +- {r['auc_se']:.2f}"
                                              for r in here),
                      "" if here[0]["published"] is None else f"{here[0]['published']:.2f}"))
    return report.table(("data", "epsilon", *WAYS, "published"), lines)


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = report.Parser(__file__, __doc__)
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    parser.add_argument("--epsilon", type=report.number(0, 1e6), nargs="+",
                        default=[0.5, 1.0, 5.0, 10.0])
    parser.add_argument("--delta", type=report.number(0, 1), default=1e-6)
    report.seed_options(parser, 5)
    report.cell_option(parser)
    parser.add_argument("--data-dir", help="folder of the data files (or set JAXMINIMAX_DATA)")
    parser.add_argument("--quick", action="store_true",
                        help="ijcnn1 alone, 4,000 of its rows, epsilon 1 and one seed")
    parser.add_argument("--json", type=report.output(".json"), help="file for the rows; cells that "
                        "it holds already, from the same arguments, are not run again")
    args = parser.parse_args(argv)
    if args.quick:
        args.datasets, args.epsilon, args.seeds = ["ijcnn1"], [1.0], 1
    try:
        rows = measure(args, kept(args))
    except (auc_runs.Refused, ValueError, OSError) as error:
        parser.error(str(error))
    print(table(rows))
    print("\nAUC of the test rows in per cent, means and standard errors over seeds. Everything of "
          f"a cell is paid for at its epsilon and delta {args.delta:g}, but for the choice of the "
          "settings that were not paid for.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
