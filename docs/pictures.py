"""Draws the pictures of the documents, in one style, from committed results and the accountant.

    python docs/pictures.py [FOLDER]    # docs/pictures

Each is an SVG file with a background of its own. Its colours follow the light or dark mode of the
reader's system.
"""

import io
import json
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import jaxminimax as jmm
from jaxminimax import Saddle

ROOT = pathlib.Path(__file__).resolve().parents[1]
INK, PAPER, GRID, SOFT = "#24292f", "#fffffe", "#d8dee4", "#eef2f8"
DARK = {INK: "#e6e8ee", PAPER: "#1f222d", GRID: "#444a58", SOFT: "#2d3342"}
COLOURS = ("#3b82c4", "#d9730d", "#2a9d6f", "#a371c9")  # seen on both backgrounds
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "jaxminimax", "font.family": "sans-serif",
         "font.size": 11, "axes.prop_cycle": mpl.cycler(color=COLOURS), "axes.grid": True,
         "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
         "legend.frameon": False, "grid.color": GRID, "lines.linewidth": 2, "lines.markersize": 5,
         "figure.facecolor": PAPER, "axes.facecolor": PAPER, "text.color": INK,
         "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK}


def rows(name: str, part: str = "rows") -> list[dict[str, Any]]:
    """The rows of a benchmark's result file, or those of another part of it."""
    (path,) = (ROOT / "benchmarks").glob(f"*/results/{name}.json")
    result: list[dict[str, Any]] = json.loads(path.read_text())[part]
    return result


def auc(figure: Figure) -> None:
    """AUC on held-out rows against epsilon, with the same model without privacy."""
    axes = figure.add_subplot(xlabel="ε (smaller is more private), δ = 10⁻⁶",
                              ylabel="AUC on held-out rows", xscale="log", ylim=(0.64, 0.96))
    for colour, (table, label) in zip(COLOURS, (
            ("ijcnn1", "ijcnn1, n = 39,992"), ("adult: degree", "Adult, degree, n = 39,074"),
            ("randhie: ten visits", "RAND, ten visits, n = 16,152")), strict=False):
        points = [row for row in rows("tables") if row["table"] == table]
        epsilons, mean, error = zip(*((row["epsilon"], row["auc"], row["gap_error"])
                                      for row in points), strict=True)
        axes.errorbar(epsilons, mean, error, color=colour, marker="o", capsize=3, label=label)
        axes.axhline(points[0]["reference"], color=colour, linestyle="--", linewidth=1.2)
    axes.plot([], [], color=INK, linestyle="--", linewidth=1.2, label="without privacy")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.legend(loc="center", bbox_to_anchor=(0.5, 0.37), fontsize=10)


def attack(figure: Figure) -> None:
    """The largest true positive rate of membership inference at every false positive rate."""
    axes = figure.add_subplot(xlabel="false positive rate of an attack",
                              ylabel="largest true positive rate", xlim=(0, 1), ylim=(0, 1))
    rates = np.concatenate([np.geomspace(1e-4, 0.05, 30), np.linspace(0.06, 1, 60)])
    runs = jmm.Repeat(query=jmm.Query(clip=Saddle(1.0, None), population=20_000), times=200)
    for epsilon in (4.0, 1.0, 0.5):
        profile = jmm.profile(jmm.accounting.calibrate_noise(runs, epsilon, 1e-6))
        axes.plot(rates, [profile.true_positives(rate) for rate in rates],
                  label=f"ε = {epsilon:g}, δ = 10⁻⁶")
    axes.plot([0, 1], [0, 1], color=INK, linestyle="--", linewidth=1.2, label="guessing")
    axes.legend(loc="lower right", fontsize=10)


def gaps(figure: Figure) -> None:
    """The strong gap of four algorithms against the number of records."""
    axes = figure.add_subplot(xlabel="records n", ylabel="strong gap at ε = 1, δ = 10⁻⁶",
                              xscale="log", yscale="log")
    for method, label in (("recursive_sgda", "recursive_sgda"), ("recursive", "recursive"),
                          ("proximal, many passes", "proximal"),
                          ("optimistic, full batch", "optimistic")):
        points = [row for row in rows("gaps") if row["algorithm"] == method]
        axes.errorbar([row["n"] for row in points], [row["strong"] for row in points],
                      [row["error"] for row in points], marker="o", capsize=3, label=label)
    axes.set_xticks([row["n"] for row in points], [str(row["n"]) for row in points])
    axes.minorticks_off()
    axes.legend(fontsize=10)


def convergence(figure: Figure) -> None:
    """The strong gap of four algorithms against the number of releases of a run."""
    axes = figure.add_subplot(xlabel="releases of a run", xscale="log", yscale="log",
                              ylabel="strong gap at ε = 1, δ = 10⁻⁶")
    setting = {"game": "bilinear, balls", "n": 2000, "epsilon": 1.0, "average": "uniform",
               "step": "theory"}
    points = [row for row in (*rows("zoo"), *rows("zoo", "failures"))
              if setting.items() <= row.items()]
    for method, label in (("sgda", "sgda"), ("anchored", "optimistic, pulled to the start"),
                          ("extragradient", "extragradient"), ("optimistic", "optimistic")):
        axes.errorbar(*zip(*((row["releases"], row["gap"], row["se"]) for row in points
                             if row["method"] == method), strict=True),
                      marker="o", capsize=3, label=label)
    counts = sorted({row["releases"] for row in points})
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.set_yticks([0.1, 0.2, 0.4], ["0.1", "0.2", "0.4"])
    axes.minorticks_off()
    axes.legend(fontsize=10)


QUESTIONS = {  # about a problem, and what to take where the answer is yes
    "Do the people in the data\ntrust no server?": "sgda, one pass, batch=1",
    "Is every record read once,\nin a fixed public order?": "ftrl",
    "Are groups public, and\ndoes the worst one count?":
        "balanced_groups\nwith a rate: group_sgd,\nactive_groups; one read:\nphased_erm, group_oco",
    "Must predictions not depend\non a private group?": "sgda on fermi or parity",
    "Do you need a guarantee\non the strong gap?": "recursive, recursive_sgda",
    "Is the loss strongly convex-\nconcave, and n small?": "gda",
    "Is the operator monotone, and\nits Lipschitz constant known?":
        "optimistic\nno clipping: proximal",
    "Is the operator no gradient,\nor does it turn?": "extragradient",
}
OTHERWISE = "sgda with Poisson samples"


def choosing(figure: Figure) -> None:
    """Questions about the problem, the first of which with the answer yes names an algorithm."""
    figure.set_size_inches(4.9, 0.75 * len(QUESTIONS) + 0.7)  # legible on a phone
    axes = figure.subplots()
    arrow = {"arrowstyle": "->", "color": INK, "linewidth": 0.8}
    box = {"boxstyle": "round", "facecolor": PAPER, "edgecolor": INK}
    for k, (question, algorithm) in enumerate(QUESTIONS.items()):
        axes.annotate("", xy=(0, -k - 0.72), xytext=(0, -k - 0.28), arrowprops=arrow)
        axes.annotate("", xy=(1.16, -k), xytext=(0.82, -k), arrowprops=arrow)
        axes.text(0.05, -k - 0.5, "no", va="center", fontsize=9)
        axes.text(0.99, -k + 0.06, "yes", ha="center", va="bottom", fontsize=9)
        axes.text(0, -k, question, ha="center", va="center", fontsize=10, bbox=box)
        axes.text(1.24, -k, algorithm, va="center", fontsize=10, bbox=box | {"facecolor": SOFT})
    axes.text(0, -len(QUESTIONS), OTHERWISE, ha="center", va="center", fontsize=10,
              bbox=box | {"facecolor": SOFT})
    axes.set(xlim=(-0.85, 2.35), ylim=(-len(QUESTIONS) - 0.4, 0.4))
    axes.set_axis_off()


PICTURES = (auc, attack, gaps, convergence, choosing)


def drawn(draw: Callable[[Figure], None]) -> str:
    """The SVG text of a picture, by the function that draws it."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.0, 3.6), layout="constrained")
        draw(figure)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Title": draw.__doc__})
    return dressed(file.getvalue())


def dressed(picture: str) -> str:
    """An SVG text with colours for the dark mode, and without blanks at the ends of lines."""
    dark = "".join(f'[style*="{kind}: {light}"]{{{kind}:{colour} !important}}'
                   for light, colour in DARK.items() for kind in ("fill", "stroke"))
    style = f"<style>@media (prefers-color-scheme: dark){{{dark}}}</style>\n"
    text = re.sub(r"(<svg[^>]*>\n)", lambda match: match[1] + style, picture, count=1)
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs/pictures")
    for picture in PICTURES:
        (folder / f"{picture.__name__}.svg").write_text(drawn(picture), encoding="utf-8")
