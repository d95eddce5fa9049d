"""One self-contained page about a trained scorer, for whoever has to sign for it."""

import html
import json
import pathlib
import re
import tempfile
from typing import Any

from jaxminimax.accounting import Profile, profile
from jaxminimax.tables.scorer import Scorer

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 46rem; padding: 1rem; }
dl { display: grid; gap: .2rem 1.5rem; grid-template-columns: max-content 1fr; }
dt { opacity: .7; } dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; background: #fff; } svg { height: auto; width: 100%; }
pre { overflow-x: auto; } li { margin: .3rem 0; }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .6rem; } }
"""


def page(scorer: Scorer, said: dict[str, Any]) -> str:
    """The page as HTML, with its picture inside.

    Args:
      scorer: trained; what it released is drawn.
      said: the record that the command prints, with the AUCs where rows were held out.

    Raises:
      ImportError: without matplotlib.
    """
    stated = scorer.statement
    rows = {"privacy": f"ε = {stated.epsilon:.4g} at δ = {stated.delta:g}, for {stated.unit}",
            "neighbours": stated.neighbours.replace("_", " "),
            "features": ", ".join(map(str, scorer.schema.columns))}
    if said.get("auc") is not None:
        rows["AUC on rows held out"] = f"{said['auc']:.4f}"
    if said.get("auc_reference") is not None:
        rows["the same without privacy"] = (f"{said['auc_reference']:.4f}, a logistic regression "
                                            "on the same features, outside of the guarantee")
    facts = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>"
                    for name, text in rows.items())
    drawn = "" if scorer.described is None else (
        _drawn(profile(scorer.described)))
    return "\n".join((
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        "<title>A private scorer</title><style>", _STYLE, "</style></head><body>",
        "<h1>A private scorer</h1>", f"<dl>{facts}</dl>", drawn,
        _listed("What is released", stated.sampling),
        _listed("What the code enforces", stated.enforced),
        _listed("What rests on you", stated.assumed),
        "<h2>The statement</h2><pre>", html.escape(json.dumps(stated.to_json(), indent=1)),
        "</pre></body></html>"))


def _listed(title: str, sentences: tuple[str, ...]) -> str:
    items = "".join(f"<li>{html.escape(x)}</li>" for x in sentences)
    return f"<h2>{title}</h2><ul>{items}</ul>"


def _drawn(known: Profile) -> str:
    """The trade-off curve and delta(epsilon) as SVG, and what a point of it means."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "profile.svg"
        known.plot(path)
        text = path.read_text(encoding="utf-8")
    text = re.sub(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>", "", text, flags=re.S)
    meaning = html.escape(
        "Whoever knows everything but one record, and says 'it was used' wrongly once in a hundred "
        f"times, is right at most {100 * known.true_positives(0.01):.2g} times in a hundred.")
    return f"<figure>{text}</figure><p>{meaning}</p>"
