"""What the results of Table 2 say: the paper's claims checked, tables in Markdown, a plot."""

import collections
import itertools
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import jaxminimax
from benchmarks.common import report, verdicts
from benchmarks.papers.table2 import protocol, settings

Row = dict[str, Any]
Cells = dict[tuple[Any, ...], dict[str, Any]]  # by reading, data, method, epsilon, delta
_NAMES = {"nseg": "NSEG linear", "linear": "DP-SGDA linear", "mlp": "DP-SGDA MLP",
          "front end": "front end"}
_FLOATS = "floating-point"  # of rows from before releases were exact
_WITHIN = 0.5  # points that "Original" may stay below the published figure


def _columns(rows: list[Row]) -> dict[tuple[str, str, str], list[Row]]:
    result = collections.defaultdict(list)
    for row in rows:
        result[row["reading"], row["dataset"], row["method"]].append(row)
    return result


def _error(row: Row) -> float:
    """Standard error of a mean over seeds, at least that of a fixed test set's last digit."""
    return max(row["auc_std"] / math.sqrt(row["seeds"]), 0.02)


def _rising(rows: list[Row], by: str, other: str) -> tuple[list[str], int]:
    """Pairs of cells where the AUC falls by more than three standard errors; how many pairs."""
    falls, pairs = [], 0
    groups = collections.defaultdict(list)
    for row in rows:
        if row["epsilon"] is not None:
            groups[row[other]].append(row)
    for fixed, group in groups.items():
        group.sort(key=lambda row: row[by])
        for a, b in itertools.combinations(group, 2):
            pairs += 1
            error, seeds = math.hypot(_error(a), _error(b)), min(a["seeds"], b["seeds"])
            if verdicts.verdict(b["auc_mean"] - a["auc_mean"], error, seeds, 3.0) == "behind":
                falls.append(f"{other} {fixed:g}: {by} {a[by]:g} to {b[by]:g}, "
                             f"{a['auc_mean']:.2f} to {b['auc_mean']:.2f}")
    return falls, pairs


def claims(rows: list[Row]) -> list[dict[str, Any]]:
    """Each claim with whether it holds and where it does not."""
    out = []

    def claim(text: str, exceptions: list[str], checked: int) -> None:
        if checked:
            out.append({"claim": text, "holds": not exceptions, "checked": checked,
                        "exceptions": exceptions})

    for reading in ("honest", "printed"):
        columns = {k: v for k, v in _columns(rows).items() if k[0] == reading}
        if not columns:
            continue
        for by, other in (("epsilon", "delta"), ("delta", "epsilon")):
            result = {k: _rising(column, by, other) for k, column in columns.items()}
            claim(f"{reading}: AUC does not fall as {by} grows (three standard errors)",
                  [f"{d}, {_NAMES[m]}: {x}" for (_, d, m), (falls, _) in result.items()
                   for x in falls],
                  sum(pairs for _, pairs in result.values()))
    best: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row["epsilon"] is None and row["method"] != "front end":
            place = row["dataset"], row["method"]
            if place not in best or row["auc_mean"] > best[place]["auc_mean"]:
                best[place] = row
    claim(f"without privacy, AUC within {_WITHIN} points of the published one or above",
          [f"{d}, {_NAMES[m]}: {row['auc_mean']:.2f}, published {row['published']:.2f}"
           for (d, m), row in best.items() if row["auc_mean"] < row["published"] - _WITHIN],
          len(best))
    cells = [row for row in rows if row["reading"] == "honest" and row["epsilon"] is not None
             and row["published"] is not None]
    claim("honest AUC at or above the published figure",
          [f"{row['dataset']}, {_NAMES[row['method']]}, epsilon {row['epsilon']:g}, delta "
           f"{row['delta']:g}: {row['auc_mean']:.2f} +- {report.error(row):.2f}, published "
           f"{row['published']:.2f}, {row['auc_mean'] - row['published']:+.2f}. "
           f"{_reason(row, rows)}".rstrip()
           for row in cells if row["auc_mean"] < row["published"]], len(cells))
    stated = [row for row in rows if row["reading"] == "printed" and row["epsilon"] is not None]
    if stated:
        claim("Remark 1's noise: true epsilon (attained by a pair) at or below the claimed one",
              [f"{row['dataset']}, {_NAMES[row['method']]}, epsilon {row['epsilon']:g}, delta "
               f"{row['delta']:g}: {row['true_epsilon_attained']:.3g}"
               for row in stated if row["true_epsilon_attained"] > row["epsilon"]], len(stated))
    return out


def _reason(row: Row, rows: list[Row]) -> str:
    """What else the rows show about a cell that stays below."""
    if verdicts.verdict(row["auc_mean"] - row["published"], _error(row), row["seeds"]) == "level":
        return "Level by the errors."
    result = []
    same = [r for r in rows if r["reading"] == "honest" and r["dataset"] == row["dataset"]
            and r["method"] != row["method"]]
    free = [r for r in rows if r["reading"] == "honest" and r["epsilon"] is None
            and (r["dataset"], r["method"]) == (row["dataset"], row["method"])]
    if free and free[0]["auc_mean"] >= row["published"]:
        result.append(f"It is the noise: without it {free[0]['auc_mean']:.2f}.")
    for r in same:
        if (r["epsilon"], r["delta"]) == (row["epsilon"], row["delta"]):
            if row["method"] == "mlp" and r["method"] == "linear" and (
                    r["auc_mean"] > row["auc_mean"]):
                result.append(f"A linear scorer does better: {r['auc_mean']:.2f}.")
            if r["method"] == "front end" and r["auc_mean"] >= row["published"]:
                result.append(f"A fixed front end reaches it: {r['auc_mean']:.2f}.")
    return " ".join(result)


def markdown(rows: list[Row], assumed: Sequence[str] = ()) -> str:
    """One table a data set and delta, the printed protocol beside, and the claims."""
    lines = ["AUC in per cent, mean ± standard error over seeds; neighbours differ in one "
             "replaced record. *published*: the paper's figure. *honest*: calibrated noise at the "
             "ε of the column. *printed*: the paper's settings, with the noise of its Remark 1 "
             "(the paper computed the noise with a library, and does not say for which event; "
             "ε > 1 is outside the remark). Its true ε is attained by an explicit pair of data "
             "sets if the gradient bounds, the class prior and the scaling of columns were "
             "public, which they are not. Its AUC is that of the better of the last and the "
             "averaged point, chosen on the test rows. *front end*: a fixed public map before the "
             "scorer, compared with the published MLP.", "", _runs(rows), "",
             "Assumed by *honest*, besides what every privacy statement lists:", "",
             *(f"* {x}" for x in assumed), ""]
    cells: Cells = {(r["reading"], r["dataset"], r["method"], r["epsilon"], r["delta"]): r
                    for r in rows}
    deltas = sorted({r["delta"] for r in rows})
    for dataset in dict.fromkeys(r["dataset"] for r in rows):
        for delta in deltas:
            lines += [f"### {dataset}, δ = {delta:g}", "",
                      "| model | reading | " + " | ".join(
                          f"ε = {e:g}" for e in _epsilons(rows)) + " | no noise |",
                      "|---" * (3 + len(_epsilons(rows))) + "|"]
            for method in dict.fromkeys(r["method"] for r in rows):
                lines += _lines(cells, dataset, method, delta, _epsilons(rows), min(deltas))
            lines.append("")
    lines += [*_true_epsilons(rows, deltas), "", "### Claims", ""]
    for claim in claims(rows):
        said = "holds" if claim["holds"] else "does NOT hold"
        lines.append(f"* {claim['claim']}: **{said}** ({claim['checked']} checked"
                     + (f", {len(claim['exceptions'])} exceptions)" if claim["exceptions"]
                        else ")"))
        lines += [f"  * {x}" for x in claim["exceptions"]]
    return "\n".join(lines)


def _runs(rows: list[Row]) -> str:
    """How many seeds the cells have, and which have noise of floating-point numbers."""
    texts = []
    for noise, what in ((None, "Honest cells with noise of integers, added exactly"),
                        (_FLOATS, "Cells with †, made before releases were exact, with "
                                  "floating-point noise of the same law")):
        cells = [row for row in rows if row.get("noise") == noise and row["epsilon"] is not None
                 and (noise or row["reading"] == "honest")]
        if cells:
            counts = collections.Counter(row["seeds"] for row in cells)
            texts.append(f"{what}: " + ", ".join(
                f"{n} of {seeds} seeds" for seeds, n in sorted(counts.items(), reverse=True)) + ".")
    return " ".join(texts)


def _true_epsilons(rows: list[Row], deltas: Sequence[float]) -> list[str]:
    """What Remark 1's noise really gives in every cell of the table, trained here or not."""
    heads = [f"ε = {e:g}" for e in settings.EPSILONS]
    lines = ["### The ε that a pair of data sets has under Remark 1's noise", "",
             "| data | model | δ | " + " | ".join(heads) + " |", "|---" * (3 + len(heads)) + "|"]
    for dataset, method, delta in itertools.product(
            dict.fromkeys(r["dataset"] for r in rows),
            [m for m in settings.METHODS if any(r["method"] == m for r in rows)], deltas):
        n = protocol.RECORDS[dataset]
        rounds = protocol.TABLE4[method, dataset].private_epochs * n // protocol.BATCH
        clip = jaxminimax.Saddle(1.0, 1.0)  # any: sigma is in proportion
        result = [protocol.attained(protocol.described(
            method, n, rounds, e, delta, clip), delta) for e in settings.EPSILONS]
        lines.append(f"| {dataset} | {_NAMES[method]} | {delta:g} | "
                     + " | ".join(f"{x:.3g}" for x in result) + " |")
    return lines


def _epsilons(rows: list[Row]) -> list[float]:
    return sorted({r["epsilon"] for r in rows if r["epsilon"] is not None})


def _lines(cells: Cells, dataset: str, method: str, delta: float, epsilons: list[float],
           reference: float) -> list[str]:
    def cell(reading: str, epsilon: float | None, what: str) -> str:
        row = cells.get((reading, dataset, method, epsilon,
                         reference if epsilon is None else delta))
        if row is None:
            return ""
        if what == "published":
            return "" if row["published"] is None else f"{row['published']:.2f}"
        if what == "true":
            return "" if epsilon is None else f"{row['true_epsilon_attained']:.3g}"
        file = f" (file {row['auc_test_file']:.2f})" if "auc_test_file" in row else ""
        mark = " †" if row.get("noise") == _FLOATS else ""
        return f"{row['auc_mean']:.2f} ± {report.error(row):.2f}{file}{mark}"

    result = []
    for reading, what, label in (("honest", "published", "published"), ("honest", "auc", "honest"),
                                 ("printed", "auc", "printed"),
                                 ("printed", "true", "printed: true ε")):
        texts = [cell(reading, e, what) for e in (*epsilons, None)]
        if any(texts):
            result.append(f"| {_NAMES[method]} | {label} | " + " | ".join(texts) + " |")
    return result


def plot(path: pathlib.Path, rows: list[Row]) -> None:
    """AUC against epsilon: honest with its spread, the published figure, the printed protocol."""
    from matplotlib.figure import Figure

    delta = min(r["delta"] for r in rows)
    names = list(dict.fromkeys(r["dataset"] for r in rows))
    methods = list(dict.fromkeys(r["method"] for r in rows))
    figure = Figure(figsize=(3.2 * len(methods), 2.6 * len(names)), layout="constrained")
    grid = figure.subplots(len(names), len(methods), squeeze=False, sharex=True)
    for line, name in zip(grid, names, strict=True):
        for axes, method in zip(line, methods, strict=True):
            _panel(axes, [r for r in rows if (r["dataset"], r["method"]) == (name, method)
                          and r["epsilon"] is not None and r["delta"] == delta])
            axes.set_title(f"{name}, {_NAMES[method]}", fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("claimed epsilon")
    for line in grid:
        line[0].set_ylabel("AUC [per cent]")
    handles, labels = grid[0][1 if len(methods) > 1 else 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    figure.suptitle(f"delta = {delta:g}, replace-one, mean and standard error", fontsize=10)
    figure.savefig(path, dpi=110)


def _panel(axes: Any, rows: list[Row]) -> None:
    axes.set_xscale("log")
    axes.grid(alpha=0.3)
    styles = {"honest": ("o-", "honest noise"),
              "printed": ("s--", "printed settings, Remark 1's noise")}
    for reading, (style, label) in styles.items():
        mine = sorted((r for r in rows if r["reading"] == reading), key=lambda r: r["epsilon"])
        if mine:
            axes.errorbar([r["epsilon"] for r in mine], [r["auc_mean"] for r in mine],
                          [report.error(r) for r in mine], fmt=style, capsize=3, markersize=4,
                          label=label)
    known = sorted((r["epsilon"], r["published"]) for r in rows
                   if r["reading"] == "honest" and r["published"] is not None)
    if known:
        axes.plot(*zip(*known, strict=True), "k:", label="published")
