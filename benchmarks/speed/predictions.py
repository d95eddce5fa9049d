"""The rows of `benchmarks.speed.roofline` as tables of a page."""

from typing import Any

from benchmarks.common import report
from benchmarks.speed.throughput.report import TITLES

_ON = "H200, float32"


def _digits(x: float) -> str:
    """Three of them."""
    return f"{float(f'{x:.3g}'):,g}"


def _span(one: dict[str, Any], unit: float) -> str:
    """Both bounds, or one if no digit that is shown differs."""
    return " to ".join(dict.fromkeys(_digits(one[end] * unit) for end in ("low", "high")))


def _ordered(result: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(result["rows"], key=lambda r: ([*TITLES].index(r["workload"]), r["batch"]))


def table(result: dict[str, Any]) -> str:
    """Predicted milliseconds of a step on an H200, and what binds."""
    lines = []
    for r in _ordered(result):
        steps, private = r["predicted"][_ON], r["work"]["private"]
        products = private.get("products", 0) + private["exact products"]
        lines.append([
            TITLES[r["workload"]], f"{r['batch']:,}", _digits(products / 1e9),
            f"{private['kernels']:,}",
            *(f"{_span(steps[name], 1e3)} ({steps[name]['binds']})"
              for name in ("private", "with memory", "in slices", "not private")),
            f"{steps['private']['low'] / steps['not private']['low']:.1f}"])
    return report.markdown(
        ["model", "batch", "products, GFLOP", "kernels", "private, ms", "in 64 GiB, ms",
         "slices of 1,024, ms", "not private, ms", "private over not"], lines)


def checked(result: dict[str, Any]) -> str:
    """Predicted and measured microseconds on the device at hand."""
    lines = []
    for r in _ordered(result):
        if r["measured"]:
            steps = r["predicted"]["this"]
            lines.append([TITLES[r["workload"]], f"{r['batch']:,}"] + [
                f"{_span(steps[name], 1e6)}; {_digits(1e6 * r['measured'][name])}"
                for name in ("private", "in slices", "not private")])
    return report.markdown(["model", "batch", "private, µs", "slices of 1,024, µs",
                            "not private, µs"], lines)
