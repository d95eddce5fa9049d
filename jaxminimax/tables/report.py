"""One self-contained page about a trained scorer, for the person who signs for it.

With its pictures, and the AUC without privacy that stands in it: for study, never for release.
"""

import dataclasses
import html
import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxminimax.accounting import Profile, profile
from jaxminimax.accounting.profiles import STATED
from jaxminimax.accounting.sections import LARGE_DELTA, OWNERS, USER, membership
from jaxminimax.tables.scorer import Scorer

_STYLE = """
:root { color-scheme: light dark; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem; }
dl { display: grid; gap: .2rem 1.5rem; grid-template-columns: max-content 1fr; }
dt { opacity: .7; } dd { margin: 0; overflow-wrap: anywhere; }
.pictures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); }
figure { margin: 0; } svg { background: #fff; height: auto; width: 100%; }
figcaption { font-size: .9rem; }
pre { font-size: .8rem; overflow-x: auto; } li { margin: .3rem 0; overflow-wrap: anywhere; }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .6rem; } }
"""
_SETTINGS = ("Logistic loss", "Ranges of ")  # sentences of the statement that begin so


def page(scorer: Scorer, data: dict[str, Any]) -> str:
    """The page as HTML, with its pictures inside.

    Args:
      scorer: trained; what it released is drawn.
      data: the record that the command prints, with the AUCs where rows were held out.

    Raises:
      ImportError: without matplotlib.
    """
    stated, law = scorer.statement, None
    if scorer.described is not None:
        law = profile(scorer.described, neighbours=stated.neighbours, people=stated.people)
        stated = dataclasses.replace(stated, answers=law.answers(STATED))
    rows = {"features": ", ".join(map(str, scorer.schema.columns)),
            "released share of positives": f"{scorer.moments.prior:.3f}"}
    if data.get("auc") is not None:
        rows["AUC on rows held out"] = with_error(
            data["auc"], data.get("auc_standard_error")) + ", outside of the guarantee"
    if data.get("auc_reference") is not None:
        rows["the same without privacy"] = (f"{data['auc_reference']:.4f}, a logistic regression "
                                            "on the same features, outside of the guarantee")
    if "epsilon_with_curve" in data:
        rows["with the runs of the curve"] = (f"ε = {data['epsilon_with_curve']:.4g} at δ = "
                                              f"{stated.delta:g}, for all of them together")
    if scorer.group_losses is not None:
        rows["mean losses of the groups, with noise"] = ", ".join(
            f"{name} {loss:.3f}" for name, loss in scorer.group_losses.items())
    large = tuple(x for x in stated.assumed if x.startswith(LARGE_DELTA))
    settings = tuple(x for x in stated.assumed if x.startswith(_SETTINGS))
    return "\n".join((
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        "<title>A private scorer</title><style>", _STYLE, "</style></head><body>",
        "<h1>A private scorer</h1>", f"<p>{html.escape(stated.paragraph())}</p>", _named(rows),
        _listed("To note", (*data.get("notes", ()), *large)), _pictures(scorer, data, law),
        "<h2>The statement</h2>", _named(stated.table()),
        _listed("What the numbers mean", stated.meaning()), _listed("Settings", settings),
        _listed(OWNERS, tuple(x for x in stated.owned() if x.removeprefix(USER) not in settings)),
        _listed("Technical annex", stated.annex()),
        _listed("Enforced by the code", stated.enforced),
        "<h2>The statement as JSON</h2><pre>",
        html.escape(json.dumps(stated.to_json(), indent=1)), "</pre></body></html>"))


def with_error(auc: float, error: float | None) -> str:
    """An AUC and its standard error."""
    return f"{auc:.4f}" + ("" if error is None else f" ± {error:.4f}")


def _named(rows: dict[str, str]) -> str:
    items = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>"
                    for name, text in rows.items())
    return f"<dl>{items}</dl>"


def _listed(title: str, sentences: tuple[str, ...]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{html.escape(x)}</li>" for x in sentences)
    return f"<h2>{title}</h2><ul>{items}</ul>"


def _pictures(scorer: Scorer, data: dict[str, Any], law: Profile | None) -> str:
    """The trade-off curve, delta(epsilon), and AUC against epsilon, and what each says."""
    parts, stated = [], scorer.statement
    if law is not None:
        parts += [(trade_off(law), membership(0.01, law.true_positives(0.01))),
                  (deltas(law, stated.epsilon, stated.delta),
                   "The same noise has a delta for every epsilon.")]
    if data.get("auc") is not None:
        own = {name: data[name] for name in ("epsilon", "auc", "auc_standard_error")}
        points = [own, *data.get("curve", ())]
        further = "" if len(points) == 1 else (
            f" The other {len(points) - 1} were trained for this picture: all of them together "
            f"have epsilon = {data['epsilon_with_curve']:.4g} at delta = {stated.delta:g}.")
        parts.append((auc_curve(points, data.get("auc_reference")),
                      "AUC on the rows held out, and its standard error over them (DeLong); the "
                      "noise of training is not in it. It is computed without privacy: publish it "
                      "only if these rows are public." + further))
    figures = "".join(f"<figure>{svg}<figcaption>{html.escape(text)}</figcaption></figure>"
                      for svg, text in parts)
    return f"<div class='pictures'>{figures}</div>"


# --- pictures, as SVG that stands inside a page ---


_PICTURE = (4.6, 3.4)  # inches: letters stay readable where a page is as narrow as a telephone


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
        figure = Figure(figsize=_PICTURE, layout="constrained")
        draw(figure.add_subplot())
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    return text.replace("<svg", f'<svg role="img" aria-label="{what}"', 1)


def trade_off(curve: Profile) -> str:
    """The largest rate of true positives at every rate of false ones."""
    def draw(axes: Any) -> None:
        rates = np.geomspace(1e-4, 1.0, 81)
        axes.loglog(rates, [curve.true_positives(x) for x in rates], label="at most")
        axes.loglog(rates, rates, "--", color="0.5", label="guessing")
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        axes.legend()

    return _drawn("trade-off curve of membership inference", draw)


def deltas(curve: Profile, epsilon: float, delta: float) -> str:
    """Draws the delta of each epsilon, and the pair that was asked for."""
    def draw(axes: Any) -> None:
        axes.semilogy(*zip(*((e, d) for e, d in zip(curve.epsilons, curve.deltas, strict=True)
                             if d > 0), strict=True))
        axes.semilogy([epsilon], [delta], "o")
        axes.set(xlabel="ε", ylabel="δ, at most")

    return _drawn("delta against epsilon", draw)


def auc_curve(points: Sequence[dict[str, Any]], reference: float | None) -> str:
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


# --- what a table gives without privacy ---


_STRENGTHS = (1.0, 1000.0)  # C: with the usual regularisation, and with nearly none


def aucs(scorer: Scorer, rows: Any, test: Any) -> dict[str, float | None]:
    """AUC on rows held out, private and not; none of it is inside the guarantee.

    The reference is an ordinary logistic regression on the same features, standardised by the
    training rows, the better of two strengths of regularisation: of both on the test rows, so that
    it is no weaker than what a user would get.

    Args:
      scorer: trained on `rows`.
      rows: of the training set.
      test: rows held out.

    Returns:
      `auc`, `auc_standard_error` and `auc_reference`; None where the held-out rows have one label
      only.

    Raises:
      ImportError: without scikit-learn.
    """
    schema = scorer.schema
    held, y = schema.labels(test), schema.labels(rows)
    if len(np.unique(held)) < 2:
        return {"auc": None, "auc_standard_error": None, "auc_reference": None}
    auc, error = area(scorer.decision_function(test), held)
    record: dict[str, float | None] = {"auc": auc, "auc_standard_error": error,
                                       "auc_reference": None}
    if len(np.unique(y)) == 2:
        record["auc_reference"] = regression(schema.features(rows), y, schema.features(test), held)
    return record


def area(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float | None]:
    """AUC, and its standard error over held-out rows; None where a label has one row only.

    The variance is that of DeLong, DeLong and Clarke-Pearson, "Comparing the areas under two or
    more correlated receiver operating characteristic curves", Biometrics 1988: with v_i the share
    of negatives that positive i beats, and u_j the share of positives that beat negative j, ties
    counting half, it is var(v) / positives + var(u) / negatives; without the noise of training.

    Args:
      scores: `[n]`.
      labels: `[n]`, in {0, 1}, with both.
    """
    scores, labels = np.asarray(scores, np.float64), np.asarray(labels) > 0.5
    high, low = np.sort(scores[labels]), np.sort(scores[~labels])

    def beaten(x: np.ndarray, by: np.ndarray) -> np.ndarray:
        return (np.searchsorted(by, x, "left") + np.searchsorted(by, x, "right")) / (2 * len(by))

    wins, losses = beaten(high, low), 1 - beaten(low, high)
    if min(len(wins), len(losses)) < 2:
        return float(wins.mean()), None
    return float(wins.mean()), float(np.sqrt(
        wins.var(ddof=1) / len(wins) + losses.var(ddof=1) / len(losses)))


def regression(x: np.ndarray, y: np.ndarray, z: np.ndarray, held: np.ndarray) -> float:
    """AUC on rows held out of a logistic regression without privacy, the better of two strengths.

    Args:
      x: features of the training rows, `[n, d]`.
      y: their labels, in {0, 1}, with both.
      z: features of the rows held out.
      held: their labels, with both.

    Raises:
      ImportError: without scikit-learn.
    """
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise ImportError("a reference without privacy needs scikit-learn: pip install "
                          "'jaxminimax[sklearn]'") from error
    middle, spread = x.mean(0), np.where(x.std(0) > 0, x.std(0), 1.0)
    fits = (LogisticRegression(C=c, max_iter=1000).fit((x - middle) / spread, y)
            for c in _STRENGTHS)
    return max(area(fit.decision_function((z - middle) / spread), held)[0] for fit in fits)
