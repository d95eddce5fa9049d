"""One self-contained page about a trained scorer, for whoever has to sign for it."""

import html
import json
from typing import Any

from jaxminimax.accounting import Profile, profile
from jaxminimax.accounting.statements import LARGE_DELTA
from jaxminimax.tables import pictures
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
# whoever must see to an assumption, and words by which it is known; the first that fits
_WHO = (
    ("Who runs the command", ("key ", "seed")),
    ("Who keeps the account of all releases", ("one run", "adds up", "stop is")),
    ("Who knows the records", ("unit of privacy", "user's claim", "contributes", "first rows",
                               "in which group", "label is public", "labels are public")),
    ("Who checks the program", ("generator", "floating", "operator of a record", "programs")),
    ("Who wrote the schema", ("public",)),
)
_SETTINGS = ("Logistic loss", "Ranges of ")  # sentences of the statement that begin so
_REST = "Who signs for it"


def page(scorer: Scorer, said: dict[str, Any]) -> str:
    """The page as HTML, with its pictures inside.

    Args:
      scorer: trained; what it released is drawn.
      said: the record that the command prints, with the AUCs where rows were held out.

    Raises:
      ImportError: without matplotlib.
    """
    stated = scorer.statement
    rows = {"privacy": f"ε = {stated.epsilon:.4g} at δ = {stated.delta:g}, for {stated.unit}",
            "neighbours": stated.neighbours.replace("_", " "),
            "features": ", ".join(map(str, scorer.schema.columns)),
            "released share of positives": f"{scorer.moments.prior:.3f}"}
    if said.get("auc") is not None:
        rows["AUC on rows held out"] = with_error(
            said["auc"], said.get("auc_standard_error")) + ", outside of the guarantee"
    if said.get("auc_reference") is not None:
        rows["the same without privacy"] = (f"{said['auc_reference']:.4f}, a logistic regression "
                                            "on the same features, outside of the guarantee")
    if "epsilon_with_curve" in said:
        rows["with the runs of the curve"] = (f"ε = {said['epsilon_with_curve']:.4g} at δ = "
                                              f"{stated.delta:g}, for all of them together")
    if scorer.group_losses is not None:
        rows["mean losses of the groups, with noise"] = ", ".join(
            f"{name} {loss:.3f}" for name, loss in scorer.group_losses.items())
    facts = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>"
                    for name, text in rows.items())
    by_whom: dict[str, list[str]] = {}
    large = tuple(x for x in stated.assumed if x.startswith(LARGE_DELTA))
    settings = tuple(x for x in stated.assumed if x.startswith(_SETTINGS))
    for sentence in (x for x in stated.assumed if x not in (*settings, *large)):
        by_whom.setdefault(_who(sentence), []).append(sentence)
    return "\n".join((
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        "<title>A private scorer</title><style>", _STYLE, "</style></head><body>",
        "<h1>A private scorer</h1>", f"<dl>{facts}</dl>",
        _listed("To note", (*said.get("notes", ()), *large)), _pictures(scorer, said),
        _listed("What is released", stated.sampling),
        _listed("Settings", settings), _listed("What the code enforces", stated.enforced),
        "<h2>What is assumed, and who must see to it</h2>",
        *(_listed(who, tuple(by_whom[who]), "h3") for who in (*(w for w, _ in _WHO), _REST)
          if who in by_whom),
        "<h2>The statement</h2><pre>", html.escape(json.dumps(stated.to_json(), indent=1)),
        "</pre></body></html>"))


def with_error(auc: float, error: float | None) -> str:
    """An AUC and its standard error."""
    return f"{auc:.4f}" + ("" if error is None else f" ± {error:.4f}")


def _who(sentence: str) -> str:
    return next((who for who, words in _WHO if any(word in sentence for word in words)), _REST)


def _listed(title: str, sentences: tuple[str, ...], level: str = "h2") -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{html.escape(x)}</li>" for x in sentences)
    return f"<{level}>{title}</{level}><ul>{items}</ul>"


def _pictures(scorer: Scorer, said: dict[str, Any]) -> str:
    """The trade-off curve, delta(epsilon), and AUC against epsilon, and what each says."""
    made, stated = [], scorer.statement
    if scorer.described is not None:
        known: Profile = profile(scorer.described)
        made += [(pictures.trade_off(known),
                  "Whoever knows everything but one record, and says 'it was used' wrongly once in "
                  f"a hundred times, is right at most {100 * known.true_positives(0.01):.2g} times "
                  "in a hundred."),
                 (pictures.deltas(known, stated.epsilon, stated.delta),
                  "The same noise at other epsilons: delta is what each of them leaves "
                  "uncovered.")]
    if said.get("auc") is not None:
        own = {name: said[name] for name in ("epsilon", "auc", "auc_standard_error")}
        points = [own, *said.get("curve", ())]
        further = "" if len(points) == 1 else (
            f" The other {len(points) - 1} were trained for this picture: all of them together "
            f"have epsilon = {said['epsilon_with_curve']:.4g} at delta = {stated.delta:g}.")
        made.append((pictures.areas(points, said.get("auc_reference")),
                     "AUC on the rows held out, and its standard error over them (DeLong); the "
                     "noise of training is not in it. It is computed without privacy: publish it "
                     "only if these rows are public." + further))
    figures = "".join(f"<figure>{svg}<figcaption>{html.escape(text)}</figcaption></figure>"
                      for svg, text in made)
    return f"<div class='pictures'>{figures}</div>"
