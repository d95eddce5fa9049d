"""The figure of `benchmarks.accuracy.zoo`, and the lines of theory in it."""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

import jaxminimax as jmm
from benchmarks.accuracy.zoo import games as zoo_games
from benchmarks.accuracy.zoo.games import DELTA, EPSILONS

_METHODS = {("sgda", "euclidean"): ("sgda", "C0"), ("sgda", "entropy"): ("sgda, entropic", "C9"),
            ("optimistic", "euclidean"): ("optimistic", "C1"),
            ("optimistic", "entropy"): ("optimistic, entropic", "C3"),
            ("extragradient", "euclidean"): ("extragradient", "C2"),
            ("extragradient", "entropy"): ("extragradient, entropic", "C8")}


def lower_bound(n: int, clip: float, epsilon: float, delta: float = DELTA) -> float:
    """What no (epsilon, delta)-private algorithm undercuts on all bilinear games on unit balls.

    Of n records, k hold (C/2^(1/2)) (e, e), the operator of <a, w> - <c, v>, and the others 0; in
    the other data set the k are the negatives. With m = k C / (2^(1/2) n) the strong gaps of one
    output on both sum to 4 m, so the larger of both expected gaps is at least 2 m (1 - TV), TV the
    total variation that k-fold group privacy allows:

        TV = (e^(k eps) - 1 + 2 delta_k) / (e^(k eps) + 1),
        delta_k = delta (e^(k eps) - 1) / (e^eps - 1).

    Args:
      n: records.
      clip: C, bound on a record's operator, both players together.
      epsilon: of the guarantee.
      delta: of the guarantee.
    """
    best = 0.0
    for k in range(1, max(2, math.ceil(20 / epsilon))):
        grown = math.expm1(k * epsilon)
        apart = min(1.0, (grown + 2 * delta * grown / math.expm1(epsilon)) / (grown + 2))
        best = max(best, math.sqrt(2) * min(k, n) * clip / n * (1 - apart))
    return best


def bounds() -> list[dict[str, Any]]:
    """The theorem's bound and the lower bound for the bilinear game on balls."""
    game, made = zoo_games.bilinear(), []
    for epsilon in EPSILONS:
        for releases in (10, 30, 100, 300, 1000, 3000):
            plan = jmm.plan(jmm.optimistic, epsilon=epsilon, delta=DELTA, population=game.n,
                            dim=game.d, bound=game.clip, smooth=game.smooth,
                            diameter=2 * math.sqrt(2), radius=game.radius, proved=True,
                            iterations=releases)
            made.append({"game": game.name, "epsilon": epsilon, "releases": releases,
                         "theorem": plan.guarantee,
                         "lower": lower_bound(game.n, game.clip, epsilon)})
    return made


def best(rows: Sequence[dict[str, Any]], most: int) -> dict[tuple[str, float, int], Any]:
    """The method with the smallest gap in at most so many releases, and the second best gap.

    Steps from theory and equal weights, for every game, epsilon and n.
    """
    cells: dict[tuple[str, float, int], dict[tuple[str, str], float]] = {}
    for r in rows:
        if r["step"] == "theory" and r["average"] == "uniform" and r["releases"] <= most:
            result = cells.setdefault((r["game"], r["epsilon"], r["n"]), {})
            name = (r["method"], r["geometry"])
            result[name] = min(result.get(name, math.inf), r["gap"])
    chosen = {}
    for key, result in cells.items():
        order = sorted(result, key=lambda name: result[name])
        chosen[key] = (order[0], result[order[0]], result[order[1]])
    return chosen


def plot(path: pathlib.Path, result: dict[str, Any]) -> None:
    """Gaps against releases with the lines of theory, and who is best over game, epsilon and n."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    figure = Figure(figsize=(15, 5), layout="constrained")
    left, *maps = figure.subplots(1, 3, width_ratios=(1.1, 1, 1))
    for (method, geometry), (name, colour) in _METHODS.items():
        for step, style in (("theory", "-"), ("oracle", ":")):
            mine = sorted((r for r in result["rows"] if r["game"] == "bilinear, balls"
                           and (r["method"], r["geometry"]) == (method, geometry)
                           and r["epsilon"] == 1.0 and r["n"] == 2000 and r["step"] == step
                           and r["average"] == "uniform"), key=lambda r: r["releases"])
            if mine:
                left.errorbar([r["releases"] for r in mine], [r["gap"] for r in mine],
                              [r["se"] for r in mine], linestyle=style, marker="o", markersize=3,
                              color=colour, label=f"{name}, {step} step")
    lines = [b for b in result["bounds"] if b["epsilon"] == 1.0]
    for key, style, label in (("theorem", "k--", "theorem, its own step"),
                              ("lower", "k-.", "lower bound, any method")):
        left.plot([b["releases"] for b in lines], [b[key] for b in lines], style, label=label)
    left.set(xscale="log", yscale="log", xlabel="releases", ylabel="strong gap",
             title="bilinear game, n = 2000, d = 20, ε = 1")
    left.grid(alpha=0.3, which="both")
    left.legend(fontsize=7, loc="center", bbox_to_anchor=(0.5, 0.3))
    for axes, most in zip(maps, (300, 3000), strict=True):
        cells = best(result["rows"], most)
        games = list(dict.fromkeys(g for g, _, _ in cells))
        epsilons = sorted({e for _, e, _ in cells})
        for (game, epsilon, n), (name, first, second) in cells.items():
            ns = sorted(m for g, e, m in cells if (g, e) == (game, epsilon))
            x, y = epsilons.index(epsilon) * (len(ns) + 0.3) + ns.index(n), games.index(game)
            axes.add_patch(Rectangle((x, y), 1, 1, facecolor=_METHODS[name][1], alpha=0.6))
            axes.text(x + 0.5, y + 0.5, f"{first:.2g}\n/{second / first:.1f}", fontsize=6,
                      ha="center", va="center")  # the gap, and how much larger the second is
        width = len({n for g, _, n in cells if g == games[0]})
        axes.set(xlim=(0, len(epsilons) * (width + 0.3)), ylim=(len(games), 0),
                 title=f"best by theory's step, up to {most} releases")
        axes.set_xticks([i * (width + 0.3) + width / 2 for i in range(len(epsilons))],
                        [f"ε = {e:g}\nn/4, n, 4n" for e in epsilons])
        axes.set_yticks([i + 0.5 for i in range(len(games))],
                        [g.replace(", ", ",\n") for g in games], fontsize=8)
        used = {name for name, _, _ in cells.values()}
        axes.legend(handles=[Patch(color=c, alpha=0.6, label=label)
                             for key, (label, c) in _METHODS.items() if key in used],
                    fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2)
    figure.savefig(path, dpi=130)
