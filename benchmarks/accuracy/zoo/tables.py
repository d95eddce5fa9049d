"""Tables of documents from the results of `benchmarks.accuracy.zoo`."""

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.common import report

_METHODS = ("sgda", "optimistic", "extragradient")


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    digits = 4 if row["gap"] >= 0.005 else 5
    return f"{row['gap']:.{digits}f} ± {row['se']:.{digits}f}"


def _least(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    return min(rows, key=lambda r: r["gap"], default=None)


def games(result: dict[str, Any]) -> str:
    """Equal weights at the step from theory, and the least gap of all steps and releases."""
    rows = [r for r in result["rows"] if r["average"] == "uniform"]
    own = {r["game"]: r["n"] for r in rows if r["step"] == "oracle"}
    shown = (("sgda", 300), ("sgda", 3000), ("optimistic", 100), ("optimistic", 300),
             ("extragradient", 300))
    header = ["game", "n", "ε", *(f"{m}, {t}" for m, t in shown),
              *(f"oracle {m}" for m in _METHODS)]
    lines = []
    for game, geometry in dict.fromkeys((r["game"], r["geometry"]) for r in rows):
        for epsilon in sorted({r["epsilon"] for r in rows}):
            mine = [r for r in rows if (r["game"], r["geometry"], r["epsilon"], r["n"]) == (
                game, geometry, epsilon, own[game])]
            theory = {(r["method"], r["releases"]): r for r in mine if r["step"] == "theory"}
            name = game + ", entropic" * (geometry == "entropy")
            lines.append([name, f"{own[game]:,}", f"{epsilon:g}",
                          *(_cell(theory.get(key)) for key in shown),
                          *(_cell(_least([r for r in mine if r["method"] == m]))
                            for m in _METHODS)])
    return report.markdown(header, lines)


def averages(result: dict[str, Any]) -> str:
    """What is left of a game's gap at the best step and number of releases, by the average."""
    names = ("uniform", "t", "tail", "moving", "last")
    rows = [r for r in (*result["rows"], *result["failures"]) if r["epsilon"] == 1.0
            and r["step"] == "oracle" and 100 <= r["releases"] <= 1000]
    lines = []
    for game in dict.fromkeys(r["game"] for r in result["failures"]):
        for method, schedule in dict.fromkeys((r["method"], r["schedule"])
                                              for r in result["failures"]):
            mine = [r for r in rows if (r["game"], r["method"], r["schedule"], r["geometry"]) == (
                game, method, schedule, "euclidean")]
            lines.append([game, method + ", falling" * (schedule == "linear"), *(
                _cell(_least([r for r in mine if r["average"] == name])) for name in names)])
    return report.markdown(["game", "steps", "equal weights", "weights t", "second half",
                      "moving average", "last iterate"], lines)


def large(result: dict[str, Any]) -> str:
    """Both geometries on simplices, by step: theory's, and the best multiple of it."""
    rows = [r for r in (*result["large"], *result["rows"])
            if r["game"].startswith("matrix") and r["method"] == "optimistic"
            and r["epsilon"] == 1.0 and r["average"] == "uniform" and r["releases"] in (100, 300)]
    own = {r["game"]: r["n"] for r in rows if r["step"] == "oracle"}
    lines = []
    for game, releases in sorted({(r["game"], r["releases"]) for r in rows}):
        found = {(r["geometry"], r["step"]): r for r in rows
                 if (r["game"], r["releases"], r["n"]) == (game, releases, own[game])}
        cells = []
        for geometry in ("euclidean", "entropy"):
            best = found[geometry, "oracle"]
            cells += [_cell(found[geometry, "theory"]), f"{_cell(best)} ({best['multiple']:g})"]
        lines.append([game, f"{own[game]:,}", str(releases), *cells])
    return report.markdown(
        ["game", "n", "releases", "Euclidean, theory", "Euclidean, oracle (multiple)",
         "entropic, theory", "entropic, oracle (multiple)"], lines)


def plans(result: dict[str, Any]) -> str:
    """What plans of 300 releases give at epsilon = 1; last, the geometric mean of all rows."""
    rows = result["plans"]
    kinds = sorted({(r["plan"], r["kappa"]) for r in rows})
    lines = []
    for game, geometry in dict.fromkeys((r["game"], r["geometry"]) for r in rows):
        found = {(r["plan"], r["kappa"]): r for r in rows
                 if (r["game"], r["geometry"], r["epsilon"]) == (game, geometry, 1.0)}
        lines.append([game + ", entropic" * (geometry == "entropy"),
                      *(_cell(found.get(kind)) for kind in kinds)])
    means = ["all games, ε = 0.3, 1, 8"]
    for plan, kappa in kinds:
        gaps = [r["gap"] for r in rows if (r["plan"], r["kappa"]) == (plan, kappa)]
        mean = math.exp(sum(map(math.log, gaps)) / len(gaps))
        means.append(f"{mean:.4f}" if plan != "strongly_monotone" else "")
    return report.markdown(["game", *(f"{plan}, κ = {kappa:g}" for plan, kappa in kinds)],
                     [*lines, means])


def phases(result: dict[str, Any]) -> str:
    """Noisy solutions beside noisy steps, by n and epsilon."""
    rows = result["phases"]
    methods = list(dict.fromkeys(r["method"] for r in rows))
    cells: dict[tuple[int, float], dict[str, dict[str, Any]]] = {}
    for r in rows:
        cells.setdefault((r["n"], r["epsilon"]), {})[r["method"]] = r
    names = {"solution": "one noisy solution", "phases": "phases, oracle"}
    return report.markdown(["n", "ε", *(names.get(m, m) for m in methods)],
                     [[f"{n:,}", f"{e:g}", *(f"{line[m]['gap']:.2g} ± {line[m]['se']:.1g}"
                                             for m in methods)]
                      for (n, e), line in cells.items()])
