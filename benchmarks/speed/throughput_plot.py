"""The results as a figure: time a step over the peers, and how cost grows."""

import pathlib
from typing import Any

from benchmarks.throughput_cases import WORKLOADS


def plot(path: pathlib.Path, record: dict[str, Any]) -> None:
    """Examples per second against batch for each workload, then the curves of growth."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    rows = record["rows"]
    workloads = [w for w in WORKLOADS if any(r["workload"] == w for r in rows)]
    grows = [over for over in ("rows", "width", "iterations")
             if any(r["over"] == over for r in record["growth"])]
    panels = len(workloads) + len(grows)
    across = min(4, panels)
    down = -(-panels // across)
    figure = Figure(figsize=(2.6 * across, 2.3 * down + 1.5), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for empty in axes[panels:]:
        empty.set_axis_off()
    peers = list(dict.fromkeys(r["peer"] for r in rows))
    for ax, workload in zip(axes, workloads, strict=False):
        for k, peer in enumerate(peers):
            line = sorted((r["batch"], r["examples_per_second"], r["fastest_seconds"],
                           r["slowest_seconds"]) for r in rows
                          if (r["workload"], r["peer"]) == (workload, peer))
            if line:
                batch, rate, low, high = zip(*line, strict=True)
                errors = [[max(0, r - b / s) for b, r, s in zip(batch, rate, high, strict=True)],
                          [max(0, b / s - r) for b, r, s in zip(batch, rate, low, strict=True)]]
                ax.errorbar(batch, rate, errors, marker="os^vD"[k % 5], ms=3, capsize=2,
                            lw=2.5 if peer == "ours" else 0.9,
                            color="k" if peer == "ours" else f"C{k % 10}",
                            ls=("-", "--", ":")[k % 3], label=peer)
        batches = sorted({r["batch"] for r in rows})
        ax.set(xscale="log", yscale="log", title=workload, xlabel="batch [rows]",
               ylabel="examples a second")
        ax.set_xticks(batches, map(str, batches))
        ax.minorticks_off()
        ax.grid(alpha=0.3)
    for ax, over in zip(axes[len(workloads):], grows, strict=False):
        curves = [r for r in record["growth"] if r["over"] == over]
        for what in dict.fromkeys(r["what"] for r in curves):
            line = [(r["number"], r["seconds"], r["compile_seconds"]) for r in curves
                    if r["what"] == what]
            number, seconds, built = zip(*line, strict=True)
            (drawn,) = ax.plot(number, [1e6 * s for s in seconds], marker="o", ms=3, label=what)
            if over == "iterations":
                ax.plot(number, [1e6 * s for s in built], ls=":", color=drawn.get_color(),
                        label="compilation")
        unit = {"rows": "resident rows", "width": "hidden units", "iterations": "rounds"}[over]
        ax.set(xscale="log", yscale="log", title=f"growth with {over}", xlabel=unit,
               ylabel="time [us]")
        ax.legend(fontsize=5)
        ax.grid(alpha=0.3)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncol=4, fontsize=6)
    made = record["environment"]
    cores = f"{record['cores']} core(s)" if record["cores"] else "all cores"
    figure.suptitle(
        f"DP-SGDA steps, clip norms (4, 1), noise multipliers 1 (no epsilon is claimed);\n"
        f"{made['processor']}, {cores}, JAX {made['jax']}; medians, bars from fastest to slowest",
        fontsize=9)
    figure.savefig(path, dpi=90)
