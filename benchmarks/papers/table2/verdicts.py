"""What the rows of Figures 1 and 2 say: the paper's claims with their standard errors, a plot."""

import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.common import verdicts

Row = dict[str, Any]


def error(row: Row) -> float:
    """Standard error of a mean over seeds, at least 0.02 points."""
    return max(row["auc_std"] / math.sqrt(row["seeds"]), 0.02) if row["seeds"] > 1 else math.inf


def compared(one: Row, other: Row) -> str:
    """The verdict on the AUC of one beside that of the other."""
    return verdicts.verdict(one["auc_mean"] - other["auc_mean"],
                            math.hypot(error(one), error(other)), min(one["seeds"], other["seeds"]))


def claims(rows: list[Row]) -> list[dict[str, Any]]:
    """The paper's claims about the figures, each with the cells where it fails or is not decided.

    A claim holds if it does so in every cell that was checked, and by `verdicts`.
    """
    out: list[dict[str, Any]] = []

    def claim(text: str, checked: int, exceptions: list[str],
              undecided: Sequence[str] = ()) -> None:
        if checked:
            out.append({"claim": text, "holds": not exceptions and not undecided,
                        "checked": checked, "exceptions": exceptions,
                        "undecided": list(undecided)})

    noisy = [r for r in rows if r["part"] == "noise"]
    for text, theirs, ours in (
            ("sigma of NSEG above that of DP-SGDA for w, with the least noise in all",
             "sigma_nseg", "sigma_w_sgda"),
            ("the same with one constant for both players, as the paper has it",
             "sigma_nseg", "sigma_w_sgda_equal"),
            ("sigma of one release from both gradients above that of DP-SGDA for w, with the least "
             "noise in all", "sigma_one_release", "sigma_w_sgda")):
        claim(text, len(noisy),
              [f"{r['dataset']}, epsilon {r['epsilon']:g}, delta {r['delta']:g}: "
               f"{r[theirs] / r[ours]:.4f} times it" for r in noisy if r[theirs] <= r[ours]])

    def compare(text: str, part: str, by: str, epsilon: float | None,
                pick: Callable[[list[Row]], tuple[Row, Row]]) -> None:
        wrong: list[str] = []
        open_: list[str] = []
        checked = 0
        for name, scorer in dict.fromkeys((r["dataset"], r["scorer_of"]) for r in rows
                                          if r["part"] == part and r["epsilon"] == epsilon):
            line = sorted((r for r in rows if (r["part"], r["dataset"], r["scorer_of"],
                                               r["epsilon"]) == (part, name, scorer, epsilon)),
                          key=lambda r: r[by])
            if len(line) < 2:
                continue
            more, less = pick(line)
            result = compared(more, less)
            said = (f"{name}, {scorer}: {more['auc_mean']:.2f} ± {error(more):.2f} at "
                    f"{more[by]} against {less['auc_mean']:.2f} ± {error(less):.2f} at {less[by]}")
            checked += 1
            {verdicts.BEHIND: wrong, verdicts.LEVEL: open_}.get(result, []).append(said)
        claim(text, checked, wrong, open_)

    compare("without privacy, AUC rises from the narrowest to the widest layer", "hidden",
            "hidden", None, lambda line: (line[-1], line[0]))
    compare("at epsilon 1, AUC falls from the narrowest to the widest layer", "hidden", "hidden",
            1.0, lambda line: (line[0], line[-1]))
    compare("at epsilon 0.1, AUC falls from the second narrowest to the widest layer", "hidden",
            "hidden", 0.1, lambda line: (line[min(1, len(line) - 2)], line[-1]))
    compare("small batches hurt: AUC is lower with the smallest than with the middle size",
            "batch", "batch", 1.0, lambda line: (line[len(line) // 2], line[0]))
    return out


def verdict(one: dict[str, Any]) -> str:
    """Of a claim, in a word or two."""
    return ("holds" if one["holds"] else "does NOT hold" if one["exceptions"]
            else "is not decided")


def plot(path: pathlib.Path, rows: list[Row]) -> None:
    """Panels: noise by delta, AUC by width, AUC by batch; bars are standard errors."""
    from matplotlib.figure import Figure

    panels: list[tuple[str, str, float | None]] = [
        ("noise", "epsilon", d) for d in sorted({r["delta"] for r in rows if r["part"] == "noise"})]
    panels += [(p, p, None) for p in ("hidden", "batch") if any(r["part"] == p for r in rows)]
    columns = min(3, len(panels))
    figure = Figure(figsize=(4.4 * columns, 3.6 * -(-len(panels) // columns)), layout="constrained")
    names = list(dict.fromkeys(r["dataset"] for r in rows))
    words = {"hidden": "hidden units", "batch": "expected batch"}
    noises = {"sigma_nseg": ("-", "NSEG"), "sigma_w_sgda": ("--", "DP-SGDA, least noise in all"),
              "sigma_w_sgda_equal": (":", "DP-SGDA, equal constants")}
    for k, (part, by, delta) in enumerate(panels):
        axes = figure.add_subplot(-(-len(panels) // columns), columns, k + 1, xscale="log",
                                  xlabel=words.get(by, by))
        axes.grid(alpha=0.3)
        for name, colour in zip(names, ("C0", "C1", "C2"), strict=False):
            mine = [r for r in rows if r["part"] == part and r["dataset"] == name
                    and (delta is None or r["delta"] == delta)]
            if part == "noise":
                axes.set(yscale="log", ylabel="sigma of w on the mean gradient",
                         title=f"delta = {delta:g}")
                for what, (style, said) in noises.items():
                    axes.plot([r["epsilon"] for r in mine], [r[what] for r in mine], style,
                              color=colour, label=f"{name}, {said}")
                continue
            for kind, style in (((None, "mlp"), ":"), ((1.0, "mlp"), "-"), ((0.1, "mlp"), "--"),
                                ((1.0, "linear"), "-.")):
                line = sorted((r for r in mine if (r["epsilon"], r["scorer_of"]) == kind),
                              key=lambda r: r[by])
                if line:
                    noise = "no noise" if kind[0] is None else f"epsilon {kind[0]:g}"
                    axes.errorbar([r[by] for r in line], [r["auc_mean"] for r in line],
                                  [min(error(r), 50) for r in line], linestyle=style, capsize=3,
                                  color=colour, label=f"{name}, {kind[1]}, {noise}")
            axes.set(ylabel="AUC [per cent]", title="delta = 1e-06, replace-one")
        axes.legend(fontsize=6)
    figure.savefig(path, dpi=110)
