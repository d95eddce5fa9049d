"""One self-contained page about a trained scorer, for the person who signs for it.

With its pictures, and the AUC without privacy that stands in it: for study, never for release.
"""

import dataclasses
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxminimax.accounting import Profile, profile
from jaxminimax.accounting.profiles import STATED
from jaxminimax.accounting.sections import LARGE_DELTA, OWNERS, USER, membership
from jaxminimax.tables.columns import Category
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
SCORES = {"macro_auc": "macro AUC", "log_loss": "log-loss", "r2": "R²",
          "mean_absolute_error": "mean absolute error"}
# sentences of the statement that begin so
_SETTINGS = ("Logistic loss", "Huber loss", "Ranges of ")


def page(scorer: Scorer, data: dict[str, Any]) -> str:
    """Makes the page as HTML, with its pictures inside.

    Args:
      scorer: trained; what it released is drawn.
      data: the record that the command prints, with the AUCs where rows were held out.
    """
    stated, law = scorer.statement, None
    if scorer.described is not None:
        law = profile(scorer.described, neighbours=stated.neighbours, people=stated.people)
        stated = dataclasses.replace(stated, answers=law.answers(STATED))
    rows = {"features": ", ".join(map(str, scorer.schema.columns)),
            **released_words(scorer)}
    if data.get("auc") is not None:
        rows["AUC on rows held out"] = with_error(
            data["auc"], data.get("auc_standard_error")) + ", outside of the guarantee"
    if data.get("auc_reference") is not None:
        rows["the same without privacy"] = (f"{data['auc_reference']:.4f}, a logistic regression "
                                            "on the same features, outside of the guarantee")
    for key, name in SCORES.items():
        if data.get(key) is not None:
            rows[f"{name} on rows held out"] = (
                f"{data[key]:.4g}, and {data[f'{key}_reference']:.4g} without privacy, outside of "
                "the guarantee")
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


def released(scorer: Scorer) -> dict[str, Any]:
    """Returns what was released of the label, for JSON: a share, shares by class, or a mean."""
    target, prior = scorer.schema.target, scorer.moments.prior
    if target is None:
        return {"released_share_of_positives": prior}
    if isinstance(target, Category):
        return {"released_shares": dict(zip(target.values, np.asarray(prior).tolist(),
                                            strict=True))}
    middle = (1 + np.asarray(prior)[0]) / 2
    return {"released_mean": float(target.low + (target.high - target.low) * middle)}


def released_words(scorer: Scorer) -> dict[str, str]:
    """Returns the same for reading, by what it is."""
    (number,) = released(scorer).values()
    if scorer.schema.kind == "binary":
        return {"released share of positives": f"{number:.3f}"}
    if scorer.schema.kind == "number":
        return {f"released mean of {scorer.schema.label}": f"{number:.4g}"}
    return {f"released shares of {scorer.schema.label}": ", ".join(
        f"{value} {share:.3f}" for value, share in number.items())}


def with_error(auc: float, error: float | None) -> str:
    """Prints an AUC and its standard error."""
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
    """Draws the trade-off curve, delta(epsilon), and AUC against epsilon, each with its caption."""
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


# --- pictures, as SVG within a page ---


def _picture(what: str, names: tuple[str, str], log: tuple[bool, bool],
             curves: Mapping[str, Sequence[Sequence[float]]],
             dots: Sequence[tuple[float, float, float]] = ()) -> str:
    """Draws curves by name, and dots: x, y and standard error; `log`: the logarithmic axes."""
    def scaled(points: Any) -> np.ndarray:
        return np.stack([np.log10(x) if one else x for x, one in zip(
            np.asarray(points, np.float64).T, log, strict=True)], -1)

    shown = scaled([*(p for points in curves.values() for p in points),
                    *((x, y + side * error) for x, y, error in dots for side in (-1, 1))])
    room = 0.08 * np.ptp(shown, 0) + 0.01
    low, high = shown.min(0) - room, shown.max(0) + room

    def at(points: Any) -> np.ndarray:
        return (scaled(points) - low) / (high - low) * (370, -285) + (75, 295)

    def line(points: Any, style: str) -> str:
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in at(points))
        return f"<polyline points='{places}' fill='none' stroke-linecap='round' {style}/>"

    def text(x: float, y: float, words: str, style: str = "text-anchor='middle'") -> str:
        return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{html.escape(words)}</text>"

    parts = ["<path d='M75 10V295H445' stroke='#777' fill='none'/>",
             text(260, 334, names[0]), text(-150, 14, names[1],
                                            "text-anchor='middle' transform='rotate(-90)'")]
    for share in np.linspace(0.1, 0.9, 5):
        ticks = [float(f"{10**tick:.1g}" if one else f"{tick:.2g}") for tick, one in zip(
            low + share * (high - low), log, strict=True)]
        ((x, y),) = at([ticks])
        parts += [text(x, 313, f"{ticks[0]:g}"),
                  text(70, y + 4, f"{ticks[1]:g}", "text-anchor='end'")]
    for k, (name, points) in enumerate(curves.items()):
        colour = ("#1f77b4", "#777")[k]
        parts += [line(points, f"stroke='{colour}' stroke-width='{2 - k}'"),
                  text(440, 285 - 18 * k, name, f"fill='{colour}' text-anchor='end'")]
    for x, y, error in dots:
        parts += [line([(x, y - error), (x, y + error)], "stroke='#d62728'"),
                  line([(x, y), (x, y)], "stroke='#d62728' stroke-width='8'")]
    return (f"<svg role='img' aria-label='{what}' viewBox='0 0 460 340' font-size='13'>"
            f"{''.join(parts)}</svg>")


def trade_off(curve: Profile) -> str:
    """Draws the largest rate of true positives at every rate of false ones."""
    rates = np.geomspace(1e-4, 1.0, 81).tolist()
    return _picture("trade-off curve of membership inference",
                    ("false positive rate", "true positive rate"), (True, True),
                    {"at most": [(x, curve.true_positives(x)) for x in rates],
                     "guessing": list(zip(rates, rates, strict=True))})


def deltas(curve: Profile, epsilon: float, delta: float) -> str:
    """Draws the delta of each epsilon, and the pair that was asked for."""
    points = [(e, d) for e, d in zip(curve.epsilons, curve.deltas, strict=True) if d > 0]
    return _picture("delta against epsilon", ("ε", "δ, at most"), (False, True), {"": points},
                    [(epsilon, delta, 0.0)])


def auc_curve(points: Sequence[dict[str, Any]], reference: float | None) -> str:
    """Draws AUC against epsilon with standard errors; not private.

    Args:
      points: records of `epsilon`, `auc` and `auc_standard_error`.
      reference: AUC without privacy.
    """
    bars = [(p["epsilon"], p["auc"], p["auc_standard_error"] or 0.0)
            for p in sorted(points, key=lambda p: p["epsilon"])]
    curves = {"private": [bar[:2] for bar in bars]}
    if reference is not None:
        curves["without privacy"] = [(bars[0][0] / 2, reference), (bars[-1][0] * 2, reference)]
    return _picture("AUC against epsilon", ("ε", "AUC on rows held out"), (True, False), curves,
                    bars)


# --- what a table gives without privacy ---


_STRENGTHS = (1.0, 1000.0)  # C: with the usual regularisation, and with nearly none


def aucs(scorer: Scorer, rows: Any, test: Any) -> dict[str, float | None]:
    """Measures AUC on rows held out, with privacy and without; the guarantee covers neither.

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
    """Returns AUC, and its standard error over held-out rows; None if a label has one row only.

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
    """Returns the AUC of a logistic regression without privacy, the better of two strengths.

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
