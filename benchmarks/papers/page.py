"""Rows, Markdown and plot of the published record beside ours."""

import collections
import json
import math
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.common import report, verdicts
from benchmarks.papers import claims, truth

Row = dict[str, Any]
FIELDS = ("paper", "data", "model", "epsilon", "delta", "metric", "published", "ours", "ours_se",
          "seeds", "true_epsilon_low", "true_epsilon_high")
RESULTS = pathlib.Path(__file__).parent / "results"
_PRIVATEDIFF = "PrivateDiff Minimax (AAAI 2025), Table 1"
_YANG = "Yang et al. (2022), Table 2"
_FERMI = "DP-FERMI (ICLR 2023), Adult"
_METHODS = {"nseg": "NSEG linear", "linear": "DP-SGDA linear", "mlp": "DP-SGDA MLP",
            "front end": "DP-SGDA MLP; ours: after a fixed public map"}


def row(**values: Any) -> Row:
    """One row, with the fields in order.

    Raises:
        ValueError: for other fields than `FIELDS`.
    """
    if set(values) != set(FIELDS):
        wrong = sorted(set(values) ^ set(FIELDS))
        raise ValueError(f"a row has the fields {', '.join(FIELDS)}; these differ: {wrong}")
    return {k: values[k] for k in FIELDS}


def of_privatediff(cell: claims.Cell, found: dict[str, Any], theirs: dict[str, Any]) -> Row:
    """A cell of Table 1: our AUCs, and what a re-run says about the claimed epsilon."""
    aucs = [one["auc"] for one in found["seeds"].values()]
    error = statistics.stdev(aucs) / math.sqrt(len(aucs)) if len(aucs) > 1 else None
    return row(
        paper=_PRIVATEDIFF, data=cell.title,
        model=f"MLP of 256 units; ours: {claims.model(claims.ours(cell))}", epsilon=cell.epsilon,
        delta=claims.DELTA, metric="AUC", published=cell.published, ours=statistics.fmean(aucs),
        ours_se=error, seeds=len(aucs), true_epsilon_low=theirs["low"],
        true_epsilon_high=theirs["high"])


def of_yang(file: pathlib.Path) -> list[Row]:
    """Rows at delta = 1e-6 of the stored results of `benchmarks.papers.table2`.

    The true epsilon is that of the noise of Remark 1, as that command found it: attained by a pair,
    and the accountant's bound where it has one.
    """
    stored = json.loads(file.read_text(encoding="utf-8"))
    seen = {(r["dataset"], r["method"], r["epsilon"]): r for r in stored["rows"]
            if r["reading"] == "printed" and r["delta"] == 1e-6}
    rows = []
    for r in stored["rows"]:
        if r["reading"] != "honest" or r["delta"] != 1e-6 or r["epsilon"] is None:
            continue
        other = "mlp" if r["method"] == "front end" else r["method"]
        true = seen.get((r["dataset"], other, r["epsilon"]), {})
        rows.append(row(
            paper=_YANG, data=claims.NAMES[r["dataset"]], model=_METHODS[r["method"]],
            epsilon=r["epsilon"], delta=r["delta"], metric="AUC", published=r["published"] / 100,
            ours=r["auc_mean"] / 100, ours_se=r["auc_std"] / 100 / math.sqrt(r["seeds"]),
            seeds=r["seeds"], true_epsilon_low=true.get("true_epsilon_attained"),
            true_epsilon_high=true.get("true_epsilon_bound")))
    return rows


def of_fermi(file: pathlib.Path) -> list[Row]:
    """Rows of the stored results of `benchmarks.accuracy.fair` that have a published figure.

    Published points without privacy stand beside ours at an epsilon that is said in "model".
    """
    if not file.exists():
        return []
    stored = json.loads(file.read_text(encoding="utf-8"))
    rows: list[Row] = []
    known: dict[Any, Any] = {}
    for r in stored.get("published", stored["rows"]):
        if r.get("published") is None:
            continue
        claimed, low, high, model = r.get("epsilon"), None, None, r.get("model", "linear")
        if claimed is None:
            model += "; theirs without privacy"
        else:
            low, high = known.setdefault(claimed, truth.fermi(float(claimed)))
        rows.append(row(
            paper=_FERMI, data=r.get("data", "adult"), model=model,
            epsilon=r["ours_epsilon"] if claimed is None else claimed, delta=r["delta"],
            metric=r["metric"], published=r["published"], ours=r["ours"], ours_se=r.get("ours_se"),
            seeds=r["seeds"], true_epsilon_low=low, true_epsilon_high=high))
    return rows


def verdict(r: Row) -> str:
    """Ahead of, level with or behind the published figure, by the errors; behind if not reached."""
    if r["ours"] is None:
        return verdicts.BEHIND
    less = any(word in r["metric"] for word in ("error", "violation"))  # is better
    difference = r["published"] - r["ours"] if less else r["ours"] - r["published"]
    return verdicts.verdict(difference, r["ours_se"] or 0.0, r["seeds"])


def _span(r: Row) -> str:
    low, high = r["true_epsilon_low"], r["true_epsilon_high"]
    if low is None:
        return ""
    return f"{low:.3g} " + ("or more" if high is None else f"to {high:.3g}")


def _ours(r: Row) -> str:
    if r["ours"] is None:
        return "not reached"
    error = "" if r["ours_se"] is None else f" ± {r['ours_se']:.4f}"
    value = f"{r['ours']:.4f}{error}"
    return f"**{value}**" if verdict(r) == verdicts.AHEAD else value


def tables(rows: Sequence[Row]) -> str:
    """One table a paper; figures of ours that are ahead in bold."""
    lines: list[str] = []
    papers = collections.defaultdict(list)
    for r in rows:
        papers[r["paper"]].append(r)
    for paper, mine in papers.items():
        result = collections.Counter(map(verdict, mine))
        lines += [f"## {paper}", "", f"Of {len(mine)} cells ours is " + ", ".join(
                      f"{word} in {result[word]}" for word in verdicts.WORDS) + ".", "",
                  "| data | model | claimed ε | true ε of the claim | δ | metric | published | "
                  "ours at the claimed ε | seeds |", "| --- " * 9 + "|"]
        for r in mine:
            lines.append(f"| {r['data']} | {r['model']} | {r['epsilon']:g} | {_span(r)} | "
                         f"{r['delta']:.2g} | {r['metric']} | {r['published']:.4f} | {_ours(r)} | "
                         f"{r['seeds']} |")
        open_ = [f"{verdict(r)}: {r['data']}, {r['model']}, ε = {r['epsilon']:g}, {r['metric']}: "
                 + ("not reached" if r["ours"] is None else f"{r['ours'] - r['published']:+.4f}")
                 for r in mine if verdict(r) != verdicts.AHEAD]
        lines += ["", *(["Not ahead:", "", *(f"* {x}" for x in open_), ""] if open_ else [])]
    return "\n".join(lines).rstrip() + "\n"


def markdown(rows: Sequence[Row], details: Sequence[dict[str, Any]], cells: dict[str, Any],
             assumed: Sequence[str]) -> str:
    """The page: what is compared, tables, the re-runs, the seeds, what is assumed."""
    lines = ["# The published record at a true ε", "",
             "*Published*: as printed, at the claimed ε. *Ours*: mean ± standard error over seeds, "
             "at a true ε equal to the claimed one, replace-one neighbours; bold if ahead. A "
             "cell is ahead or behind if the difference exceeds two standard errors and, for "
             "few seeds, the 95 % quantile of Student's t (2.78 of them for five seeds), and "
             "level otherwise. *True ε of the claim*: the ε that an explicit pair of data sets "
             "attains against the published noise, and an upper bound. For PrivateDiff it is that "
             "of its noise with a clip norm that would have changed no record seen, although its "
             "program does not clip records. For DP-FERMI it is that of its program.", "",
             tables(rows)]
    if details:
        lines += ["## Re-runs of PrivateDiff's program", "",
                  "The table runs its update on its data, from its initial weights. It has the "
                  "largest norm of one record's gradient, which the program assumes to be 1, the "
                  "best test AUC of these epochs, and the ε of the first release alone, for a "
                  "record of any size, without changes to the program.", "",
                  "| data | claimed ε | epochs | largest gradient | best AUC | ε of one release |",
                  "| --- " * 6 + "|"]
        lines += [f"| {d['data']} | {d['epsilon']:g} | {d['epochs']} | {d['gradient']:.1f} | "
                  f"{d['best_auc']:.4f} | {d['one_release_any_size']:.4g} |" for d in details]
        lines += ["", "## Seeds and commits of PrivateDiff's Table 1", "",
                  "\"theirs\" is a re-run of the program.", "", report.runs(cells)]
    return "\n".join([*lines, "## Assumed", "", *(f"* {x}" for x in assumed), ""])


def plot(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Left: AUC against the claimed epsilon, theirs and ours. Right: the true epsilon of theirs."""
    from matplotlib.figure import Figure

    mine = [r for r in rows if r["paper"] == _PRIVATEDIFF]
    figure = Figure(figsize=(10, 4), layout="constrained")
    left = figure.add_subplot(1, 2, 1, xscale="log", xlabel="claimed epsilon",
                              ylabel="AUC on the test rows", title="PrivateDiff's Table 1 and ours")
    right = figure.add_subplot(1, 2, 2, xscale="log", yscale="log", xlabel="claimed epsilon",
                               ylabel="epsilon of the published noise", title="what a claim is")
    for colour, name in zip(("C0", "C1", "C2", "C3"), dict.fromkeys(r["data"] for r in mine),
                            strict=False):
        line = [r for r in mine if r["data"] == name]
        x = [r["epsilon"] for r in line]
        left.plot(x, [r["published"] for r in line], "--", color=colour, marker="x")
        left.errorbar(x, [r["ours"] for r in line], [r["ours_se"] or 0 for r in line],
                      color=colour, marker="o", capsize=3, label=name)
        right.plot(x, [r["true_epsilon_high"] for r in line], color=colour, marker="o", label=name)
    true = [r for r in rows if r["paper"] == _YANG and r["model"] == "DP-SGDA MLP"]
    for style, name in zip((":", "-.", "--"), dict.fromkeys(r["data"] for r in true), strict=False):
        line = [r for r in true if r["data"] == name]
        right.plot([r["epsilon"] for r in line], [r["true_epsilon_low"] for r in line], style,
                   color="0.4", label=f"Yang et al., {name}")
    ends = [0.1, 10]
    right.plot(ends, ends, color="k", linewidth=0.8, label="as claimed")
    left.plot([], [], "k--", marker="x", label="published")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def programs(result: dict[str, Any]) -> str:
    """What the noise of published programs gives, by reading."""
    def bracket(low: float | None, high: float | None) -> str:
        if low is None and high is None:
            return "none"
        if low is None or high is None:
            return f"at least {low:.3g}" if high is None else f"at most {high:.3g}"
        return f"{low:.3g} to {high:.3g}"

    return report.markdown(["method", "claimed ε", "reading", "neighbours", "ε"], [
        [line["method"], f"{line['epsilon_claimed']:g}", line["reading"], line["neighbours"],
         bracket(line["low"], line["high"])] for line in result["noise"]])
