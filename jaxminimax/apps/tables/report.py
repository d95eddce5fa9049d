"""One self-contained page about a trained scorer, for the person who signs for it.

With its pictures, and the AUC without privacy that stands in it: for study, never for release.
"""

import html
import json
import math
import pathlib
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxminimax.accounting import Ledger, Profile, Statement, profile
from jaxminimax.accounting.printing import NO_GUARANTEE, membership, rounded_up
from jaxminimax.accounting.statement_text import LARGE_DELTA, USER
from jaxminimax.apps.tables.columns import Category
from jaxminimax.apps.tables.schema import Schema
from jaxminimax.apps.tables.scorer import Scorer


def page(scorer: Scorer, facts: dict[str, Any]) -> str:
    """Makes the page as HTML, with its pictures inside.

    Args:
      scorer: trained; what it released is drawn.
      facts: what the command prints as JSON, with the AUCs where rows were held out.
    """
    stated, profiled = scorer.statement, None
    if scorer.described is not None:
        profiled = profile(scorer.described, neighbours=stated.neighbours, people=stated.people)
    large = tuple(x for x in stated.assumed if x.startswith(LARGE_DELTA))
    settings = tuple(x for x in stated.assumed
                     if x.startswith(("Logistic loss", "Huber loss", "Ranges of ")))
    words = {"title": f"Private model of “{scorer.schema.label}”", "date": facts.get("date") or "",
             "paragraph": stated.paragraph(), "json": json.dumps(stated.to_json(), indent=1)}
    lists = {"notes": ("To note", (*map(str, scorer.notes), *large)),
             "meaning": ("What this guarantees", _plain(stated)),
             "assumptions": ("Assumptions, each with the person who must see to it", tuple(
                 x for x in stated.owned() if x.removeprefix(USER) not in settings)),
             "settings": ("Settings", settings), "annex": ("Technical annex", stated.annex()),
             "enforced": ("Enforced by the code", stated.enforced)}
    template = pathlib.Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    return string.Template(template).substitute(
        {name: html.escape(text) for name, text in words.items()}
        | {name: _listed(*heading_and_items) for name, heading_and_items in lists.items()},
        facts=_named(_facts(scorer, stated, facts)), table=_named(stated.table()),
        pictures=_pictures(scorer.statement, profiled))


def _plain(stated: Statement) -> tuple[str, ...]:
    """Says in plain words what the statement promises, if it promises anything."""
    meaning = stated.meaning()
    if not meaning:
        return (stated.no_guarantee(),)
    return (f"The training protects {stated.unit}: these numbers limit what anybody can learn that "
            "depends on it, from the model and from everything else that the training released.",
            *meaning)


def _facts(scorer: Scorer, stated: Statement, facts: Mapping[str, Any]) -> dict[str, str]:
    """Names what was trained, on what, for what, by whom, and what it cost."""
    names, seed = list(map(str, scorer.schema.columns)), facts.get("seed")
    guarantee = NO_GUARANTEE if math.isinf(stated.epsilon) else (
        f"ε = {rounded_up(stated.epsilon)} at δ = {rounded_up(stated.delta, 6)} for "
        f"{stated.unit}: {stated.relation()}")
    shown = 15  # names of features
    return {"label": _label(scorer.schema),
            "guarantee": guarantee if seed is None else (
                "none, as the noise is of a seed, which others can guess: an experiment. With a "
                f"secret key: {guarantee}"),
            "table": f"{facts.get('table') or 'a table'}, {stated.records} records",
            "purpose": facts.get("purpose") or "not stated: --purpose says what the model is for",
            "run by": facts.get("by") or "not stated: --by says who runs the training",
            "ledger": "none, so other releases of this table are not counted: --ledger counts them",
            "SHA-256 of model.json": facts.get("model_sha256") or "not stated: --out writes it",
            "software": ", ".join(f"{name} {x}" for name, x in facts.get("versions", {}).items()),
            "features": ", ".join(names[:shown]) + (
                f" and {len(names) - shown} more" if len(names) > shown else ""),
            **results(scorer, facts)}


def results(scorer: Scorer, facts: Mapping[str, Any]) -> dict[str, str]:
    """Names what was released of the label and the groups, what is left, and how it predicts."""
    rows = released_words(scorer)
    if scorer.moments.labelled < 1:
        rows["released share of rows with a label"] = f"{scorer.moments.labelled:.3f}"
    if (books := facts.get("ledger")) is not None:
        rows["ledger"] = (
            f"{100 * books['share_left']:.3g} % is left of ε = {books['epsilon']:g} at δ = "
            f"{books['delta']:g} for {books['unit']}; it has {', '.join(books['runs'])}")
    if facts.get("auc") is not None:
        error = facts.get("auc_standard_error")
        rows["AUC"] = (f"{facts['auc']:.4f}{'' if error is None else f' ± {error:.4f}'} on rows "
                       "held out, outside of the guarantee")
    if facts.get("auc_reference") is not None:
        rows["without privacy"] = (f"AUC {facts['auc_reference']:.4f} of a logistic regression on "
                                   "the same features, outside of the guarantee")
    if facts.get("held_out_without_label"):
        rows["rows held out without a label"] = (
            f"{facts['held_out_without_label']}, left out; outside of the guarantee")
    for key, name in (("macro_auc", "macro AUC"), ("log_loss", "log-loss"), ("r2", "R²"),
                      ("mean_absolute_error", "mean absolute error")):
        if facts.get(key) is not None:
            rows[name] = (f"{facts[key]:.4g} on rows held out, and {facts[f'{key}_reference']:.4g} "
                          "without privacy, outside of the guarantee")
    if scorer.group_losses is not None:
        rows["group losses"] = ", ".join(f"{name} {loss:.3f}" for name, loss in
                                         scorer.group_losses.items()) + ": means, with noise"
    if (proved := scorer.certificate) is not None:
        joint = proved.statement
        rows["certificate"] = (
            f"at most {100 * proved.bound:.3g} % of predictions are wrong in the worst group, with "
            f"probability {100 * proved.probability:g} %. {' '.join(proved.conditions)} Its rows "
            "are in no training and lie at places drawn from public coins; with the training it "
            f"has ε = {rounded_up(joint.epsilon)} at δ = {rounded_up(joint.delta, 6)}")
    return rows


def _label(schema: Schema) -> str:
    """Names the label and its values."""
    if isinstance(schema.target, Category):
        return f"{schema.label}, one of {', '.join(schema.target.values)}"
    if schema.target is not None:
        return f"{schema.label}, a number from {schema.target.low:g} to {schema.target.high:g}"
    return f"{schema.label}, positive value {schema.positive}"


def released(scorer: Scorer) -> dict[str, Any]:
    """Returns what was released of the label, for JSON: a share, shares by class, or a mean."""
    target, prior = scorer.schema.target, scorer.moments.prior
    if target is None:  # of rows with a label
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


def _named(rows: dict[str, str]) -> str:
    items = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>"
                    for name, text in rows.items())
    return f"<dl>{items}</dl>"


def _listed(title: str, sentences: tuple[str, ...]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{html.escape(x)}</li>" for x in sentences)
    return f"<h2>{title}</h2><ul>{items}</ul>"


def _pictures(stated: Statement, profiled: Profile | None) -> str:
    """Draws the trade-off curve and delta(epsilon)."""
    pictures = [] if profiled is None else [
        (trade_off(profiled), membership(0.01, stated.true_positives(0.01))
         + " The thin line is guessing."),
        (deltas(profiled, stated.epsilon, stated.delta),
         "The same noise has a δ for every ε. The dot is the pair of the statement.")]
    figures = "".join(f"<figure>{svg}<figcaption>{html.escape(text)}</figcaption></figure>"
                      for svg, text in pictures)
    return f"<div class='pictures'>{figures}</div>"


# --- what the command prints ---


def books_left(ledger: Ledger) -> dict[str, Any]:
    """Returns what a ledger has spent and what remains, as a record."""
    stated = ledger.statement()
    return {"epsilon": stated.epsilon, "delta": stated.delta, "unit": stated.unit,
            "epsilon_so_far": stated.epsilon_if_stopped_by_looking,
            "share_left": ledger.remaining().share,
            "runs": [run["name"] for run in stated.runs]}


def lines(scorer: Scorer, facts: dict[str, Any], count: int) -> list[str]:
    """Returns the lines that are printed without --json; `held`: rows held out."""
    lines = [str(scorer.statement), *(f"{name[0].upper()}{name[1:]}: {text}."
                                      for name, text in results(scorer, facts).items())]
    if count and facts.get("auc", count) is None:
        lines.append(f"The {count} rows held out have one label only, so they have no AUC.")
    if facts["seed"] is not None:
        lines.append("The noise is of a seed: for experiments, not for release.")
    return lines


# --- pictures, as SVG within a page ---


def _ticks(low: float, high: float, log: bool, words: Callable[[float], str],
           ) -> list[tuple[float, str]]:
    """Returns at most five round numbers between two ends, as places on the axis, with words."""
    if log and high - low < 2:
        places = np.log10(np.outer(10.0 ** np.arange(math.floor(low), high), (1, 2, 5)).ravel())
        places = places[(places >= low) & (places <= high)]
    else:
        step: float = max(1, math.ceil((high - low) / 4.9))
        if not log:
            step = 10.0 ** math.floor(math.log10((high - low) / 2))
            step *= next(x for x in (1, 2, 5, 10) if (high - low) / (x * step) < 5)
        places = np.arange(math.ceil(low / step), math.floor(high / step) + 1) * step
    return [(x, words(10**x if log else x)) for x in places.tolist()]


def _percent(x: float) -> str:
    return f"{100 * x:.4g} %"


def _power(x: float) -> str:
    raised = str(round(math.log10(x))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}"


def _number(x: float) -> str:
    return f"{x:.4g}"


class _Axis(NamedTuple):
    """An axis of a picture: its name, whether it is logarithmic, and the words of a tick."""

    name: str
    log: bool
    words: Callable[[float], str] = _number


def _picture(label: str, axes: tuple[_Axis, _Axis],
             curves: Mapping[str, Sequence[Sequence[float]]],
             dot: tuple[float, float]) -> str:
    """Draws curves by name, and a dot."""
    def scaled(points: Any) -> np.ndarray:
        return np.stack([np.log10(x) if axis.log else x for x, axis in zip(
            np.asarray(points, np.float64).T, axes, strict=True)], -1)

    width, height = 300, 190  # of the axes
    margin, top = 62, 30  # on the left and above
    shown = scaled([*(p for points in curves.values() for p in points), dot])
    room = 0.05 * np.ptp(shown, 0) + 0.01
    low, high = shown.min(0) - room, shown.max(0) + room

    def place(point: Any) -> np.ndarray:
        share = (np.asarray(point) - low) / (high - low)
        return share * (width, -height) + (margin, top + height)

    def line(points: Any, style: str) -> str:
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in place(scaled(points)))
        return f"<polyline points='{places}' fill='none' stroke-linecap='round' {style}/>"

    def text(x: float, y: float, words: str, anchor: str = "middle", style: str = "") -> str:
        return (f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' {style}>"
                f"{html.escape(words)}</text>")

    bottom, right = top + height, margin + width
    parts = [f"<path d='M{margin} {top}V{bottom}H{right}' stroke='currentColor' fill='none'/>",
             text(margin + width / 2, bottom + 38, axes[0].name),
             text(margin - 55, top - 16, axes[1].name, "start")]
    for x, words in _ticks(low[0], high[0], axes[0].log, axes[0].words):
        parts.append(text(place((x, low[1]))[0], bottom + 18, words))
    for y, words in _ticks(low[1], high[1], axes[1].log, axes[1].words):
        level = place((low[0], y))[1]
        parts += [text(margin - 5, level + 5, words, "end"),
                  f"<path d='M{margin} {level:.1f}H{right}' stroke='currentColor' opacity='.15'/>"]
    for k, (name, points) in enumerate(curves.items()):
        style = ("stroke='var(--line)' stroke-width='2.5'", "stroke='currentColor' opacity='.6'")[k]
        fill = ("fill='var(--line)'", "opacity='.75'")[k]
        parts += [line(points, style), text(right, bottom - 8 - 20 * k, name, "end", fill)]
    parts.append(line([dot, dot], "stroke='var(--dot)' stroke-width='9'"))
    return (f"<svg role='img' aria-label='{label}' viewBox='0 0 {right + 14} {bottom + 46}' "
            f"font-size='15' fill='currentColor'>{''.join(parts)}</svg>")


def trade_off(curve: Profile) -> str:
    """Draws the largest rate of true positives at every rate of false ones."""
    rates = np.geomspace(1e-4, 1.0, 81).tolist()
    return _picture("trade-off curve of membership inference",
                    (_Axis("false positives of an attack", True, _percent),
                     _Axis("true positives", True, _percent)),
                    {"any attack, at most": [(x, curve.true_positives(x)) for x in rates],
                     "guessing": list(zip(rates, rates, strict=True))},
                    (0.01, curve.true_positives(0.01)))


def deltas(curve: Profile, epsilon: float, delta: float) -> str:
    """Draws the delta of each epsilon, and the pair that was asked for."""
    points = [(e, d) for e, d in zip(curve.epsilons, curve.deltas, strict=True) if d > 0]
    return _picture("delta against epsilon", (_Axis("ε", False), _Axis("δ, at most", True, _power)),
                    {"": points}, (epsilon, delta))
