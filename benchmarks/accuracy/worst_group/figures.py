"""Tables and the figure of `benchmarks.accuracy.worst_group`, from its rows."""

import pathlib
from collections.abc import Sequence
from typing import Any

from benchmarks.common import report


def cell(row: dict[str, Any]) -> str:
    """A mean with its standard error."""
    error = row["worst_group_accuracy_se"]
    mean = f"{row['worst_group_accuracy']:.3f}"
    return mean if error is None else f"{mean} ± {error:.3f}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for every row, for the terminal."""
    return report.table(
        ("groups", "method", "epsilon", "worst accuracy", "average", "seeds", "seconds",
         "worst group"),
        [(f"{r['dataset']}, {r['groups_by']}", r["method"] + " *" * r["default"],
          "none" if r["epsilon"] is None else f"{r['epsilon']:g}", cell(r),
          f"{r['average_accuracy']:.4f}", str(r["seeds"]), f"{r.get('seconds', 0):.1f}",
          r["worst_group"]) for r in rows])


def markdown(rows: Sequence[dict[str, Any]], label: bool | None = None) -> str:
    """Worst-group accuracy: a line for every table and epsilon, a column for every method.

    Args:
      rows: of the result file.
      label: whether only groups with labels, or only others, are shown; None: all.
    """
    if label is not None:
        rows = [r for r in rows if r["groups_by"].endswith("label") == label]
    methods = list(dict.fromkeys(r["method"] for r in rows if r["epsilon"] is not None))
    cells: dict[tuple[str, float], dict[str, str]] = {}
    for r in rows:
        if r["epsilon"] is None:
            continue
        name = f"{r['dataset']}, {r['groups_by']} ({len(r['groups'])}; " \
               f"{min(g['n'] for g in r['groups'].values())})"
        said = f"**{cell(r)}**" if r["default"] else cell(r)
        cells.setdefault((name, r["epsilon"]), {})[r["method"]] = said
    return report.markdown(
        ["table, groups (number; smallest)", "ε", *methods],
        [[name, f"{epsilon:g}", *(found.get(m, "") for m in methods)]
         for (name, epsilon), found in cells.items()])


def references(rows: Sequence[dict[str, Any]]) -> str:
    """Worst-group accuracy without privacy."""
    known: dict[str, dict[str, str]] = {}
    for r in rows:
        if r["epsilon"] is None:
            known.setdefault(f"{r['dataset']}, {r['groups_by']}", {})[r["method"]] = cell(r)
    methods = list(dict.fromkeys(m for result in known.values() for m in result))
    return report.markdown(
        ["without privacy", *methods],
        [[name, *(result.get(m, "") for m in methods)] for name, result in known.items()])


def page(rows: Sequence[dict[str, Any]]) -> str:
    """The tables as a page."""
    private = next(r for r in rows if r["epsilon"] is not None)
    seeds = sorted({r["seeds"] for r in rows if r["epsilon"] is not None}, reverse=True)
    return "\n".join((
        "# The worst group",
        "",
        "Accuracy on held-out records of the group where it is lowest, mean over seeds (noise, "
        "and split if there is no published test file) ± standard error of the mean; bold is "
        f"the choice of the rule. Replace-one, δ = {private['delta']:g}; the JSON file has the "
        "privacy statement of every row; seeds: " + " or ".join(map(str, seeds)) + ".",
        "",
        markdown(rows),
        references(rows)))


def plot(path: pathlib.Path, rows: Sequence[dict[str, Any]]) -> None:
    """The worst group's accuracy of every method with its standard error, a panel for a table."""
    from matplotlib.figure import Figure

    cases = list(dict.fromkeys((r["dataset"], r["groups_by"]) for r in rows))
    methods = list(dict.fromkeys(r["method"] for r in rows if r["epsilon"] is not None))
    figure = Figure(figsize=(2.6 * len(cases) + 2, 0.3 * len(methods) + 1.6), layout="constrained")
    panels = figure.subplots(1, len(cases), squeeze=False, sharey=True)[0]
    for axes, case in zip(panels, cases, strict=True):
        own = [r for r in rows if (r["dataset"], r["groups_by"]) == case]
        for k, epsilon in enumerate(sorted({r["epsilon"] for r in own} - {None})):
            shown = [r for r in own if r["epsilon"] == epsilon]
            axes.errorbar([r["worst_group_accuracy"] for r in shown],
                          [methods.index(r["method"]) + 0.15 * k for r in shown],
                          xerr=[r["worst_group_accuracy_se"] or 0 for r in shown], fmt="o",
                          markersize=3.5, capsize=3, color=f"C{k}", label=f"ε = {epsilon:g}")
        for r, style in zip((r for r in own if r["epsilon"] is None), (":", "--"), strict=False):
            axes.axvline(r["worst_group_accuracy"], linestyle=style, color="0.5", linewidth=1,
                         label=r["method"])
        axes.set_title(", ".join(case), fontsize=8)
        axes.set_yticks(range(len(methods)), methods, fontsize=8)
        axes.set_xlabel("worst group's accuracy", fontsize=8)
        axes.grid(alpha=0.3)
    panels[0].invert_yaxis()
    handles = dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), fontsize=7, loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=150)


def timing_table(rows: Sequence[dict[str, Any]]) -> str:
    """What `--synthetic` prints."""
    return report.table(
        ("method", "records", "groups", "rounds", "seconds", "compilation", "records / s",
         "peak GiB"),
        [(r["method"], str(r["records"]), str(r["group_count"]), str(r["iterations"]),
          f"{r['seconds']:.1f}", f"{r['compile_seconds']:.1f}", f"{r['records_per_second']:.3g}",
          f"{r['peak_memory_gib']:.2f}") for r in rows])
