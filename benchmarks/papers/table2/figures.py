"""`python -m benchmarks.papers.table2.figures`: the paper's Figures 1 and 2, with honest noise.

noise: sigma of NSEG and of DP-SGDA against epsilon. hidden: AUC against the width of the MLP, with
privacy and without. batch: AUC of the linear scorer and of an MLP of 256 units, the paper's width,
against the size of a batch, in a fixed number of epochs.

Theorem 1 with Remark 1 has one constant for both players' noise, which is half of the budget for
each. The least noise in all, g_w sigma_w + g_v sigma_v weighed by dimension, needs another split.
Both are drawn.
"""

import dataclasses
import functools
import itertools
import json
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import jax

import jaxminimax as jmm
from benchmarks.accuracy.auc import runs as auc_runs
from benchmarks.common import report, settings
from benchmarks.data_sets import data
from benchmarks.papers.table2 import protocol, verdicts
from benchmarks.papers.table2 import settings as table2_settings
from jaxminimax import Saddle

PARTS = ("noise", "hidden", "batch")
_BATCH, _EPOCHS = 64, 15  # of the paper's linear runs
# Largest gradient norms of w and v seen in a linear run without noise, for the objective here. They
# are functions of private data that nobody paid for, and only set the scale of the figure.
_LARGEST = {"ijcnn1": (68.0, 32.0), "mnist": (406.0, 9.0), "fashion_mnist": (360.0, 6.0)}
_DIM = {"ijcnn1": 24, "mnist": 786, "fashion_mnist": 786}  # of w; v is one number
_WIDTHS = (8, 32, 128, 512)
_WIDTH = 256  # of the MLPs whose batches differ
_BATCHES = (64, 256, 1024, 4096, 16384)
_PASSES = 12
_DELTA = 1e-6
_ASSUMED = (
    "Every AUC with an epsilon is of one run with calibrated noise at that epsilon and delta, "
    "replace-one; many runs on the same data add up.",
    "Settings, the scale of the gradients in the noise panel, and the better of two steps for "
    "each batch size were chosen on the same data without paying for it.",
    "AUCs of held-out rows are computed without privacy; diverged runs count as 50.",
)


@functools.cache
def _multiplier(n: int, releases: int, epsilon: float, delta: float) -> float:
    """Noise over clip norm of one player alone."""
    query = jmm.Query(clip=Saddle(1.0, None), population=n,
                      sampling=jmm.Poisson(rate=_BATCH / n))
    result = jmm.accounting.calibrate_noise(jmm.mechanism.Repeat(query=query, times=releases),
                                            epsilon, delta)
    return jmm.accounting.effective_noise_multiplier(result.query)


def noise(args: Any) -> list[dict[str, Any]]:
    """Sigma on the mean of a batch, per player, at equal batch size, rounds, epsilon and delta.

    "equal" is the paper's split, one constant for both players; the other has least noise in all.
    """
    rows = []
    for name, delta, epsilon in itertools.product(args.datasets, args.delta, args.epsilon):
        n, (g_w, g_v) = protocol.RECORDS[name], _LARGEST[name]
        rounds = _EPOCHS * n // _BATCH
        share = g_w / (g_w + g_v * _DIM[name] ** -0.5)  # of player w: least noise in all
        once, twice = (_multiplier(n, k * rounds, epsilon, delta) for k in (1, 2))
        rows.append({
            "part": "noise", "dataset": name, "epsilon": epsilon, "delta": delta,
            "sigma_w_sgda": once * g_w / math.sqrt(share) / _BATCH,
            "sigma_v_sgda": once * g_v / math.sqrt(1 - share) / _BATCH,
            "sigma_w_sgda_equal": once * g_w / math.sqrt(0.5) / _BATCH,
            "sigma_v_sgda_equal": once * g_v / math.sqrt(0.5) / _BATCH,
            # one sigma for both players, and two releases in every round
            "sigma_nseg": twice * math.hypot(g_w, g_v) / _BATCH,
            "sigma_one_release": once * math.hypot(g_w, g_v) / _BATCH})
    return rows


@dataclasses.dataclass(frozen=True)
class Cell:
    """One point of a curve.

    Attributes:
        part: "hidden" or "batch".
        dataset: Name.
        method: "linear" or "mlp".
        epsilon: Infinite: without privacy.
        size: Hidden units, or expected batch.
    """

    part: str
    dataset: str
    method: str
    epsilon: float
    size: int

    @property
    def name(self) -> str:
        """For progress and for the results file."""
        what = {"hidden": "hidden units", "batch": "in a batch"}[self.part]
        return f"{self.dataset}, {self.method}, epsilon {self.epsilon:g}, {self.size} {what}"


def tried(cell: Cell, quick: bool) -> list[tuple[str, settings.Settings, float | None]]:
    """Scorer, settings and sampling rate of a cell; where there are two, validation decides."""
    scorer, s = table2_settings.choose(cell.dataset, cell.method, cell.epsilon)
    if cell.part == "hidden":
        if quick:
            s = dataclasses.replace(s, iterations=min(s.iterations, 100))
        return [(scorer, dataclasses.replace(s, hidden=cell.size), s.rate)]
    n = protocol.RECORDS[cell.dataset]
    rounds = max(1, _PASSES * n // cell.size)
    step = s.step * min(3.0, s.iterations / rounds)
    return [(scorer, dataclasses.replace(s, hidden=_WIDTH, iterations=rounds, step=step * k),
             cell.size / n) for k in (1.0, 3.0)]


def _auc(args: Any, cell: Cell, scorer: str, s: settings.Settings, rate: float | None,
         split: str, seeds: Sequence[int]) -> tuple[list[float], dict[str, Any] | None]:
    """AUC in per cent by seed, and the statement of a private run; diverged runs have 50."""
    def sets() -> Iterator[tuple[Any, ...]]:
        fixed = None
        for seed in seeds:
            if fixed is None or cell.dataset == "ijcnn1":
                fixed = data.load(cell.dataset, data_dir=args.data_dir, seed=seed, split=split,
                                  features=s.features)
            yield fixed, [(fixed.x_test, fixed.y_test)], [seed]

    first = next(iter(sets()))[0]
    lane = auc_runs.lane(s, "sgda", scorer, first, cell.epsilon, _DELTA, rate=rate)
    try:
        result = auc_runs.measure("sgda", scorer, [lane], f"figures, {rate}, {s}", sets(),
                                  len(seeds))
    except auc_runs.Diverged:
        return [50.0] * len(seeds), None  # no better than a coin, and reported as that
    if cell.epsilon == math.inf:
        return [100 * x for x in result.auc[0][0]], None
    said = jmm.statement(jmm.sgda, lane.hyper, result.state[0], delta=_DELTA, unit=first.unit)
    return ([100 * x for x in result.auc[0][0]],
            report.stated(said, (*first.public, *_ASSUMED)))


def measured(args: Any, cell: Cell) -> dict[str, Any]:
    """The row of a cell, and its statement; which step is better one validation seed decides."""
    choices = tried(cell, args.quick)
    if len(choices) > 1:
        result = [statistics.fmean(_auc(args, cell, *c, "validation", [0])[0]) for c in choices]
        choices = [choices[result.index(max(result))]]
    (scorer, s, rate), = choices
    aucs, said = _auc(args, cell, scorer, s, rate, "random", report.seeds(args))
    row = {"part": cell.part, "dataset": cell.dataset, "scorer_of": cell.method, "scorer": scorer,
           "epsilon": None if cell.epsilon == math.inf else cell.epsilon, "delta": _DELTA,
           cell.part: cell.size, "iterations": s.iterations, "step": s.step,
           "auc_mean": statistics.fmean(aucs),
           "auc_std": statistics.stdev(aucs) if len(aucs) > 1 else 0.0, "seeds": len(aucs)}
    return {"row": row, "statement": said}


def cells(args: Any) -> list[Cell]:
    """All points of the curves that are asked for, in order."""
    result = []
    names = args.datasets[:1] if args.quick else args.datasets
    widths, batches = ((8, 128), (256, 4096)) if args.quick else (_WIDTHS, _BATCHES)
    for name in names:
        if "hidden" in args.parts:
            result += [Cell("hidden", name, "mlp", e, w) for e in (math.inf, 1.0, 0.1)
                       for w in widths]
        if "batch" in args.parts:
            result += [Cell("batch", name, m, 1.0, b) for m in ("linear", "mlp") for b in batches]
    return result


def parser() -> report.Parser:
    """The arguments."""
    p = report.Parser(__file__, __doc__, "plot")
    p.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    p.add_argument("--datasets", nargs="+", choices=table2_settings.DATASETS,
                   default=table2_settings.DATASETS)
    report.seed_options(p, 3)
    report.cell_option(p)
    p.add_argument("--data-dir", help="folder of the data files (or set JAXMINIMAX_DATA)")
    p.add_argument("--quick", action="store_true",
                   help="fewer epsilons, widths and batches, one seed, ijcnn1 alone for the AUCs")
    p.add_argument("--json", type=report.output(".json"),
                   help="write the results to this file after every point; points that it holds "
                        "already, from the same settings, are not run again")
    return p


def main(argv: list[str] | None = None) -> int:
    """Measures, checks the claims, writes; 0, or 2 after a refusal."""
    p = parser()
    args = p.parse_args(argv)
    if args.data_dir is not None and not os.path.isdir(args.data_dir):
        p.error(f"--data-dir {args.data_dir}: no such folder; check the path")
    args.epsilon, args.delta = table2_settings.EPSILONS, sorted(table2_settings.DELTAS)
    if args.quick:
        args.epsilon, args.delta, args.seeds = (0.1, 1.0, 10.0), [_DELTA], 1
    arguments = json.loads(json.dumps({
        k: v for k, v in vars(args).items() if k not in ("data_dir", "json", "plot")}))
    try:
        done = report.kept(args.json, "cells", arguments, ("seeds", "first_seed", "quick")) or {}
        rows = noise(args) if "noise" in args.parts else []
        todo = cells(args)
        wanted = report.chosen(args, [cell.name for cell in todo])
        for number, cell in enumerate(todo, 1):
            if cell.name not in {*wanted, *done}:
                continue
            recipe = repr(tried(cell, args.quick))
            if cell.name in wanted and done.get(cell.name, {}).get("recipe") != recipe:
                report.say(f"[{number}/{len(todo)}] {cell.name}")
                done[cell.name] = {"recipe": recipe, **measured(args, cell)}
                jax.clear_caches()
                _write(args, arguments, rows, done)
            rows.append(done[cell.name]["row"])
        _write(args, arguments, rows, done)
    except (ValueError, OSError, auc_runs.Refused) as error:
        p.error(str(error))
    for one in verdicts.claims(rows):
        print(f"{verdicts.verdict(one)}: {one['claim']} ({one['checked']} checked)")
        for word in ("exceptions", "undecided"):
            print("".join(f"    {word}: {x}\n" for x in one[word]), end="")
    print("\n" + "\n".join(_ASSUMED))
    if args.plot is not None:
        verdicts.plot(args.plot, rows)
    return 0


def _write(args: Any, arguments: dict[str, Any], rows: list[dict[str, Any]],
           done: dict[str, Any]) -> None:
    report.save(args, {"rows": rows, "claims": verdicts.claims(rows), "assumed": list(_ASSUMED),
                       "cells": done}, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
