"""The rows of `benchmarks.speed.throughput` as tables of a page."""

from typing import Any

from benchmarks.common import report
from benchmarks.speed.throughput.report import TITLES

_BATCHES = (64, 256, 1024, 4096)
_PEERS = {  # of every workload, those of the page, and as it calls them
    "specialised scan": "a scan specialised by hand",
    "specialised scan, resident norms": "the same with resident norms",
    "PyTorch by hand, compiled": "compiled PyTorch by hand",
    "PyTorch by hand, resident norms": "the same with resident norms",
    "NumPy by hand, resident norms": "NumPy by hand, resident norms",
    "plain vmap, scan": "plain vmap in a scan", "plain vmap, loop": "plain vmap in a loop",
    "jax_privacy": "jax_privacy", "jax_privacy microbatched": "jax_privacy in microbatches",
    "Opacus hooks": "Opacus, hooks", "Opacus ghost": "Opacus, ghost clipping",
}


def _number(x: float) -> str:
    return f"{x:.0f}" if x >= 20 else f"{x:.1f}" if x >= 2 else f"{x:.2f}"


def ratios(result: dict[str, Any]) -> str:
    """Library over peer, in steps a second, with quartiles."""
    rows = {(r["workload"], r["peer"], r["batch"]): r for r in result["rows"]}

    def cell(workload: str, peer: str, batch: int) -> str:
        r = rows.get((workload, peer, batch))
        return "not run" if r is None else (
            f"{_number(r['ratio'])} ({_number(r['ratio_low'])} to {_number(r['ratio_high'])})")

    lines = []
    for workload, title in TITLES.items():
        peers = [p for p in _PEERS if any((workload, p, b) in rows for b in _BATCHES)]
        lines += [[title if peer == peers[0] else "", _PEERS[peer],
                   *(cell(workload, peer, b) for b in _BATCHES)] for peer in peers]
    return report.markdown(["workload", "peer", *(f"batch {b:,}" for b in _BATCHES)], lines)


def sampling(result: dict[str, Any]) -> str:
    """Time of a step with Poisson samples over that with rows drawn with replacement."""
    rows = {(r["workload"], r["batch"]): r["ratio"] for r in result["rows"]
            if r["peer"] == "ours, Poisson"}
    return report.markdown(["workload", *(f"batch {b:,}" for b in _BATCHES)], [
        [title, *(f"{rows[w, b]:.2f}" if (w, b) in rows else "not run" for b in _BATCHES)]
        for w, title in TITLES.items() if any((w, b) in rows for b in _BATCHES)])


def poisson_peers(result: dict[str, Any]) -> str:
    """Library over the fastest way of a peer, in Poisson samples; Opacus has one size."""
    rates: dict[tuple[str, int], dict[str, float]] = {}
    for r in result["rows"]:
        rates.setdefault((r["workload"], r["batch"]), {})[r["peer"]] = r["steps_per_second"]

    def cell(workload: str, peer: str, batch: int) -> str:
        at = rates.get((workload, batch), {})
        fastest = max((rate for name, rate in at.items() if name.startswith(peer)), default=None)
        return "not run" if fastest is None else ", ".join(
            _number(at[ours] / fastest) for ours in ("ours, Poisson", "ours, Poisson again"))

    batches = (16, *_BATCHES)
    return report.markdown(["workload", "peer", *(f"batch {b:,}" for b in batches)], [
        [title if peer != "Opacus" else "", peer.partition(",")[0],
         *(cell(w, peer, b) for b in batches)]
        for w, title in TITLES.items() if any(at[0] == w for at in rates)
        for peer in ("jax_privacy, Poisson", "Opacus")])
