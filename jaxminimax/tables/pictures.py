"""Pictures of a report, as SVG that stands inside a page."""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxminimax.accounting import Profile

_SIZE = (4.6, 3.4)  # inches: letters stay readable where a page is as narrow as a telephone


def _drawn(what: str, draw: Callable[[Any], None]) -> str:
    """One picture.

    Raises:
      ImportError: without matplotlib.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("a report needs matplotlib: pip install 'jaxminimax[sklearn]'") from error
    with mpl.rc_context({"svg.fonttype": "none", "font.size": 11, "font.family": "sans-serif"}):
        figure = Figure(figsize=_SIZE, layout="constrained")
        draw(figure.add_subplot())
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    return text.replace("<svg", f'<svg role="img" aria-label="{what}"', 1)


def trade_off(known: Profile) -> str:
    """The largest rate of true positives at every rate of false ones."""
    def draw(axes: Any) -> None:
        rates = np.geomspace(1e-4, 1.0, 81)
        axes.loglog(rates, [known.true_positives(x) for x in rates], label="at most")
        axes.loglog(rates, rates, "--", color="0.5", label="guessing")
        axes.set(xlabel="wrongly accused", ylabel="rightly found")
        axes.legend()

    return _drawn("trade-off curve of membership inference", draw)


def deltas(known: Profile, epsilon: float, delta: float) -> str:
    """What each epsilon leaves uncovered, and the pair that was asked for."""
    def draw(axes: Any) -> None:
        axes.semilogy(*zip(*((e, d) for e, d in zip(known.epsilons, known.deltas, strict=True)
                             if d > 0), strict=True))
        axes.semilogy([epsilon], [delta], "o")
        axes.set(xlabel="ε", ylabel="δ, at most")

    return _drawn("delta against epsilon", draw)


def areas(points: Sequence[dict[str, Any]], reference: float | None) -> str:
    """AUC against epsilon with standard errors; not private.

    Args:
      points: records of `epsilon`, `auc` and `auc_standard_error`.
      reference: AUC without privacy.
    """
    def draw(axes: Any) -> None:
        points_ = sorted(points, key=lambda x: x["epsilon"])
        axes.errorbar([p["epsilon"] for p in points_], [p["auc"] for p in points_],
                      [p["auc_standard_error"] or 0.0 for p in points_], fmt="o-", capsize=4,
                      label="private")
        if reference is not None:
            axes.axhline(reference, linestyle="--", color="0.5", label="without privacy")
        axes.set(xlabel="ε", ylabel="AUC on rows held out", xscale="log")
        axes.set_xticks([p["epsilon"] for p in points_],
                        [f"{p['epsilon']:.3g}" for p in points_])
        axes.minorticks_off()
        axes.margins(x=0.2, y=0.2)
        axes.legend()

    return _drawn("AUC against epsilon", draw)
