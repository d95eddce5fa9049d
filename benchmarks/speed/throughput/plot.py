"""The results as figures: rates against batch, ratios, growth; a line is labelled at its end."""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

from benchmarks.speed.throughput.cases import WORKLOADS
from benchmarks.speed.throughput.report import ALGORITHMS, OURS, PEERS, TITLES

# of families of peers: the first word of their names
_COLORS = {"ours": "black", "specialised": "tab:green", "plain": "tab:blue", "optax": "tab:cyan",
           "NumPy": "tab:brown", "not": "0.55", "jax_privacy": "tab:orange",
           "jax_privacy,": "tab:orange", "Opacus": "tab:purple", "PyTorch": "tab:red",
           "torch.func": "tab:pink"}
_DASHES = ("-", "--", ":")
_WIDE, _HIGH, _GAP = 4.1, 4.0, 0.047  # inches of a panel; a label's height over that of the panel
_ACROSS = 3


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Heights in [0, 1], in the order of the wanted ones, near them and `gap` apart."""
    order = sorted(range(len(wanted)), key=lambda k: wanted[k])
    gap = min(gap, 1 / max(1, len(order) - 1))
    blocks: list[tuple[float, int]] = []  # lowest height of labels that touch, and their number
    for k in order:
        low, many = wanted[k], 1
        while blocks and blocks[-1][0] + blocks[-1][1] * gap > low:
            below, count = blocks.pop()
            low = (below * count + (low - count * gap) * many) / (count + many)
            many += count
        blocks.append((low, many))
    heights = [low + i * gap for low, many in blocks for i in range(many)]
    last = len(heights) - 1
    heights = [max(h, i * gap) for i, h in enumerate(heights)]
    heights = [min(h, 1 - (last - i) * gap) for i, h in enumerate(heights)]
    return [heights[order.index(k)] for k in range(len(order))]


def _labelled(ax: Any, lines: list[tuple[str, Any, float, float]]) -> None:
    """Names right of the panel, each joined to the end (x, y) of its line; axes are logarithmic."""
    (x0, x1), (y0, y1) = (map(math.log, limits) for limits in (ax.get_xlim(), ax.get_ylim()))
    ends = [((math.log(x) - x0) / (x1 - x0), (math.log(y) - y0) / (y1 - y0))
            for _, _, x, y in lines]
    for (name, color, _, _), end, height in zip(
            lines, ends, spread([y for _, y in ends], _GAP), strict=True):
        ax.plot([end[0], 1.0, 1.03], [end[1], height, height], transform=ax.transAxes, lw=0.5,
                color=color, alpha=0.45, clip_on=False)
        ax.text(1.04, height, name, color=color, fontsize=7, va="center",
                transform=ax.transAxes, weight="bold" if name == OURS else "normal")


def _figure(panels: int, title: str) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    across = min(_ACROSS, panels)
    down = -(-panels // across)
    figure = Figure(figsize=(_WIDE * across + 1.3, _HIGH * down + 0.9))
    axes = list(figure.subplots(down, across, squeeze=False).ravel())
    height = figure.get_figheight()
    figure.subplots_adjust(left=0.6 / figure.get_figwidth(), top=1 - 0.95 / height,
                           right=1 - 1.75 / figure.get_figwidth(), bottom=0.45 / height,
                           wspace=0.85, hspace=0.27)
    for empty in axes[panels:]:
        empty.set_axis_off()
    figure.suptitle(title, fontsize=10, y=1 - 0.12 / height, va="top")
    return figure, axes


def _style(peer: str) -> dict[str, Any]:
    family = peer.split()[0].rstrip(",")
    like = [p for p in PEERS if p.split()[0].rstrip(",") == family]
    number = like.index(peer)
    return {"color": _COLORS[family], "ls": _DASHES[number % 3], "marker": "os^"[number % 3],
            "lw": 2.6 if peer == OURS else 1.0, "ms": 3.5}


def _panels(record: dict[str, Any], what: str, low: str, high: str, title: str, ylabel: str,
            ticks: Any, without: Sequence[str] = (), line_at: float | None = None) -> Any:
    """One panel a workload, bars from `low` to `high` of a row; shaded below a line, if any."""
    import matplotlib.ticker

    rows = [r for r in record["rows"] if r["peer"] not in (*ALGORITHMS, *without)]
    workloads = [w for w in WORKLOADS if any(r["workload"] == w for r in rows)]
    batches = sorted({r["batch"] for r in rows})
    figure, axes = _figure(max(1, len(workloads)), title)
    for ax, workload in zip(axes, workloads, strict=False):
        ends = []
        for peer in PEERS:
            line = sorted((r["batch"], r[what], r[low], r[high]) for r in rows
                          if (r["workload"], r["peer"]) == (workload, peer))
            if line:
                batch, value, least, most = zip(*line, strict=True)
                errors = [[max(0, v - x) for v, x in zip(value, least, strict=True)],
                          [max(0, x - v) for v, x in zip(value, most, strict=True)]]
                ax.errorbar(batch, value, errors, capsize=1.5, elinewidth=0.7, **_style(peer))
                ends.append((peer, _style(peer)["color"], batch[-1], value[-1]))
        ax.set(xscale="log", yscale="log", xlabel="batch [rows]",
               xlim=(min(batches) / 1.25, max(batches) * 1.25))
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel(ylabel)
        low_y, high_y = ax.get_ylim()
        if line_at is not None:
            low_y, high_y = min(low_y, line_at / 1.5), max(high_y, line_at * 1.5)
            ax.axhline(line_at, color="black", lw=1.6)
            ax.axhspan(low_y, line_at, color="tab:red", alpha=0.08)
        ax.set_ylim(low_y, high_y)
        if high_y / low_y < 300:
            ax.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(ticks)
        ax.set_title(TITLES.get(workload, workload), fontsize=9.5)
        ax.set_xticks(batches, [f"{b:,}" for b in batches])
        ax.minorticks_off()
        ax.tick_params(labelsize=7.5)
        ax.grid(alpha=0.3)
        _labelled(ax, ends)
    return figure


def _where(record: dict[str, Any]) -> str:
    made, cores = record["environment"], record["arguments"]["cores"]
    on = "all cores" if not cores else "1 core" if cores == 1 else f"{cores} cores"
    return f"{made['processor']}, {on}, JAX {made['jax']}"


def plot(path: pathlib.Path, record: dict[str, Any]) -> None:
    """Examples per second against batch."""
    from matplotlib.ticker import EngFormatter

    rows = [{**r, "least": r["batch"] / r["slowest_seconds"],
             "most": r["batch"] / r["fastest_seconds"]} for r in record["rows"]]
    _panels({**record, "rows": rows}, "examples_per_second", "least", "most",
            "Examples a second of DP-SGDA steps, up is faster (clip norms 4 and 1, noise "
            f"multipliers 1; no epsilon is claimed)\n{_where(record)}; medians, bars from slowest "
            "to fastest round", "examples a second", EngFormatter(sep="")).savefig(path, dpi=100)


def ratios(path: pathlib.Path, record: dict[str, Any]) -> None:
    """The library's rate over the peers'."""
    _panels(record, "ratio", "ratio_low", "ratio_high",
            "How many times as fast as each peer the library is: below the line at 1, shaded, the "
            f"peer is faster\n{_where(record)}; medians of ratios within rounds, bars are "
            "quartiles", "library over peer, steps a second", "{x:g}", (OURS,), 1.0
            ).savefig(path, dpi=100)


def growth(path: pathlib.Path, record: dict[str, Any]) -> None:
    """Time against resident rows, width and rounds."""
    grows = [over for over in ("rows", "width", "iterations")
             if any(r["over"] == over for r in record["growth"])]
    figure, axes = _figure(max(1, len(grows)), f"How time grows\n{_where(record)}")
    for ax, over in zip(axes, grows, strict=False):
        curves = [r for r in record["growth"] if r["over"] == over]
        ends = []
        for k, what in enumerate(dict.fromkeys(r["what"] for r in curves)):
            line = sorted((r["number"], 1e6 * r["seconds"], 1e6 * r["compile_seconds"])
                          for r in curves if r["what"] == what)
            number, took, built = zip(*line, strict=True)
            ax.plot(number, took, marker="o", ms=3.5, color=f"C{k}")
            ends.append((what.removeprefix("a "), f"C{k}", number[-1], took[-1]))
            if over == "iterations":
                ax.plot(number, built, ls=":", color="0.5")
                ends.append(("compilation", "0.5", number[-1], built[-1]))
        unit = {"rows": "resident rows", "width": "hidden units", "iterations": "rounds"}[over]
        ax.set(xscale="log", yscale="log", xlabel=unit)
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel("time [us]")
        ax.set_title(f"with {unit}", fontsize=9.5)
        ax.tick_params(labelsize=7.5)
        ax.grid(alpha=0.3)
        _labelled(ax, ends)
    figure.savefig(path, dpi=100)
