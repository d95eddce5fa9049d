"""One self-contained page about a trained scorer, for the person who signs for it.

With its picture, and the AUC without privacy that stands in it: for study, never for release.
"""

import html
import itertools
import json
import math
import pathlib
import string
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxminimax.accounting import Ledger, Profile, Statement, profile
from jaxminimax.accounting.printing import NO_GUARANTEE, membership, rounded_up
from jaxminimax.accounting.statement_text import LARGE_DELTA, USER
from jaxminimax.apps.tables.columns import Category
from jaxminimax.apps.tables.schema import Schema
from jaxminimax.apps.tables.scorer import Scorer


def page(scorer: Scorer, facts: dict[str, Any]) -> str:
    """Makes the page as HTML, with its picture inside.

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
        picture=_picture(scorer.statement, profiled))


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
    return {"released_mean": float(target.decode(np.asarray(prior)[0]))}


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


def _picture(stated: Statement, profiled: Profile | None) -> str:
    """Draws the trade-off curve with its caption, where there is one."""
    if profiled is None:
        return ""
    rate = 0.01  # of false positives, at which the picture has a dot
    caption = membership(rate, stated.true_positives(rate)) + " The thin line is guessing."
    return (f"<figure>{trade_off(profiled, rate)}<figcaption>{html.escape(caption)}</figcaption>"
            "</figure>")


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


# --- the picture, as SVG within the page ---


def trade_off(curve: Profile, marked: float) -> str:
    """Draws the largest rate of true positives at every rate of false ones, with a dot at one."""
    side, margin, top = 240, 62, 30  # of the axes, and on the left and above
    decades = 4  # of both axes, down from a rate of 1

    def place(x: float, y: float) -> tuple[float, float]:
        horizontal, vertical = (1 + math.log10(rate) / decades for rate in (x, y))
        return margin + side * horizontal, top + side * (1 - vertical)

    def line(points: Iterable[tuple[float, float]], style: str) -> str:
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in itertools.starmap(place, points))
        return f"<polyline points='{places}' fill='none' stroke-linecap='round' {style}/>"

    def text(x: float, y: float, words: str, style: str) -> str:
        return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{words}</text>"

    low, bottom, right = 10.0**-decades, top + side, margin + side
    dot = (marked, curve.true_positives(marked))
    parts = [
        f"<path d='M{margin} {top}V{bottom}H{right}' stroke='currentColor' fill='none'/>",
        text(margin + side / 2, bottom + 38, "false positives of an attack",
             "text-anchor='middle'"),
        text(margin - 55, top - 16, "true positives", ""),
        line([(x, curve.true_positives(x)) for x in np.geomspace(low, 1.0, 81).tolist()],
             "stroke='var(--line)' stroke-width='2.5'"),
        text(right, bottom - 8, "any attack, at most", "text-anchor='end' fill='var(--line)'"),
        line([(low, low), (1.0, 1.0)], "stroke='currentColor' opacity='.6'"),
        text(right, bottom - 28, "guessing", "text-anchor='end' opacity='.75'"),
        line([dot, dot], "stroke='var(--dot)' stroke-width='9'")]
    for rate in np.geomspace(low, 1.0, decades + 1).tolist():
        (x, _), (_, y), words = place(rate, low), place(low, rate), f"{100 * rate:.4g} %"
        parts += [text(x, bottom + 18, words, "text-anchor='middle'"),
                  text(margin - 5, y + 5, words, "text-anchor='end'"),
                  f"<path d='M{margin} {y:.1f}H{right}' stroke='currentColor' opacity='.15'/>"]
    return ("<svg role='img' aria-label='trade-off curve of membership inference' viewBox='0 0 "
            f"{right + 30} {bottom + 46}' font-size='15' fill='currentColor'>{''.join(parts)}"
            "</svg>")
