"""Tables and the figure of `variance`."""

import pathlib
from typing import Any

import numpy as np

from benchmarks.common import report

Table = tuple[list[str], list[list[str]]]


def slope(rows: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Minus the slope of log norm in log n, and its 95% interval."""
    x, rng = np.log([row["n"] for row in rows]), np.random.default_rng(0)
    each = [np.array(row["runs"]) for row in rows]
    draws = [-np.polyfit(x, np.log([rng.choice(a, len(a)).mean() for a in each]), 1)[0]
             for _ in range(1000)]
    centre = -np.polyfit(x, np.log([a.mean() for a in each]), 1)[0]
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(centre), float(low), float(high)


def games(rows: list[dict[str, Any]]) -> Table:
    """A line for each game and method: its norm for every n, at least three, and slopes."""
    lines = []
    for name, method in dict.fromkeys((row["game"], row["algorithm"]) for row in rows):
        own = sorted((r for r in rows if (r["game"], r["algorithm"]) == (name, method)),
                     key=lambda r: r["n"])
        slopes = slope(own), slope(own[-3:])
        lines.append([name, f"`{method}`", *(f"{r['norm']:.4f} ± {r['error']:.4f}" for r in own),
                      *(f"{centre:.2f} ({low:.2f} to {high:.2f})" for centre, low, high in slopes)])
    return ["game", "method", *(f"n = {n:,}" for n in sorted({r["n"] for r in rows})),
            "slope", "of the last three n"], lines


def ablation(scores: list[dict[str, Any]]) -> Table:
    """A line for each method and L, a column for each step."""
    result: dict[tuple[str, str], dict[float, str]] = {}
    for row in scores:
        clip = "" if row["lipschitz"] is None else f"{row['lipschitz']:g}"
        result.setdefault((f"`{row['algorithm']}`", clip), {})[row["step"]] = (
            f"{row['auc']:.4f} ± {row['error']:.4f}")
    steps = sorted({row["step"] for row in scores})
    return ["method", "L", *(f"step {x:g}" for x in steps)], [
        [*line, *(own.get(x, "") for x in steps)] for line, own in result.items()]


def page(rows: list[dict[str, Any]], scores: list[dict[str, Any]]) -> str:
    """The tables as Markdown, each with what its cells are."""
    parts = ["# Private variance reduction\n"]
    if rows:
        parts.append(
            "A cell has the mean norm of the primal function's gradient over the last half of a "
            f"run, ± its standard error over {len(rows[0]['runs'])} runs. Every run has epsilon 1, "
            "and its settings are the best in hindsight, which epsilon does not cover. A slope is "
            "that of -log norm in log n, with its 95 % interval in brackets.\n\n"
            + report.markdown(*games(rows)))
    if scores:
        parts.append(
            "A cell has the AUC of an MLP on held-out rows of ijcnn1 at epsilon 1, ± its standard "
            f"error over {scores[0]['seeds']} seeds. A run has 100 rounds of Poisson samples. L "
            "bounds the change of a record's operator over the distance of two points.\n\n"
            + report.markdown(*ablation(scores)))
    return "\n".join(parts)


def plot(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    """Norms of gradients against n."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    names = list(dict.fromkeys(row["game"] for row in rows))
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for method in ("sgda", "spider"):
            own = [r for r in rows if (r["game"], r["algorithm"]) == (name, method)]
            axes.errorbar(*([r[x] for r in own] for x in ("n", "norm", "error")), marker="o",
                          markersize=4, capsize=3, label=method)
        axes.set(xscale="log", yscale="log", title=name, xlabel="n, records",
                 ylabel="norm of the gradient")
        axes.grid(alpha=0.3, which="both")
        axes.legend()
    figure.savefig(path, dpi=150)
