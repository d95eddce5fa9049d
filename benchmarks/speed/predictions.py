"""The rows of `benchmarks.speed.roofline` as tables of a page."""

from typing import Any

from benchmarks.common import report
from benchmarks.speed.throughput.report import TITLES

_ON = "H200, float32"


def _span(one: dict[str, Any], unit: float) -> str:
    """Both bounds, or one if no digit that is shown differs."""
    return " to ".join(dict.fromkeys(f"{one[end] * unit:.3g}" for end in ("low", "high")))


def _ordered(result: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(result["rows"], key=lambda r: ([*TITLES].index(r["workload"]), r["batch"]))


def table(result: dict[str, Any]) -> str:
    """Predicted milliseconds of a step on an H200, and what binds."""
    lines = []
    for r in _ordered(result):
        steps, private = r["predicted"][_ON], r["work"]["private"]
        products = private.get("products", 0) + private["exact products"]
        lines.append([
            TITLES[r["workload"]], f"{r['batch']:,}", f"{products / 1e9:.3g}",
            f"{private['fused bytes'] / 1e9:.3g}", f"{private['kernels']:,}",
            f"{_span(steps['private'], 1e3)} ({steps['private']['binds']})",
            f"{_span(steps['in slices'], 1e3)} ({steps['in slices']['binds']})",
            f"{_span(steps['not private'], 1e3)} ({steps['not private']['binds']})",
            f"{steps['private']['low'] / steps['not private']['low']:.1f}"])
    return report.markdown(
        ["model", "batch", "products, GFLOP", "moved, GB", "kernels", "private, ms",
         "slices of 1,024, ms", "not private, ms", "private over not"], lines)


def checked(result: dict[str, Any]) -> str:
    """Predicted and measured microseconds on the device at hand."""
    lines = []
    for r in _ordered(result):
        if r["measured"]:
            steps = r["predicted"]["this"]
            lines.append([TITLES[r["workload"]], f"{r['batch']:,}"] + [
                f"{_span(steps[name], 1e6)}; {1e6 * r['measured'][name]:.3g}"
                for name in ("private", "in slices", "not private")])
    return report.markdown(["model", "batch", "private, µs", "slices of 1,024, µs",
                            "not private, µs"], lines)
