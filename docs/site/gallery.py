"""Pictures of results, drawn when the site is built, and the pages of results around them.

`result_pictures.py` lists them. A document shows one by the comment `<!-- picture: NAME -->`. A
page of results begins with its pictures and a sentence for each, and long tables are folded.
"""

import functools
import importlib
import json
import pathlib
import posixpath
import re
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from result_pictures import PICTURES, SENTENCES, STORED, TITLES

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]  # the benchmarks, and how the documents draw
pictures = importlib.import_module("pictures")

FOLDED = 12  # rows of a table from which on it is folded
TABLE = re.compile(r"(?:^\|.*\n?)+", re.MULTILINE)
MARKER = re.compile(r"^<!-- picture: (\w+) -->$", re.MULTILINE)


# --- drawing ---


def file_of(name: str) -> pathlib.Path:
    """A file of a `results/` folder."""
    (path,) = (ROOT / "benchmarks").glob(f"**/results/{name}")
    return path


def content(name: str) -> Any:
    """A JSON file of results, or what the rows of a page's first table say in each column."""
    text = file_of(name).read_text(encoding="utf-8")
    if name.endswith(".json"):
        return json.loads(text)
    match = TABLE.search(text)
    if match is None:
        raise ValueError(f"{name} has no table to draw.")
    head, _, *lines = ([cell.strip() for cell in line.strip().strip("|").split("|")]
                       for line in match[0].splitlines())
    return [dict(zip(head, line, strict=False)) for line in lines]


@functools.cache
def drawn(name: str) -> str:
    """The SVG text of a picture."""
    picture = PICTURES[name]
    arguments = picture.arguments(content(picture.result or f"{name}.json"))
    style = {key: value for key, value in pictures.STYLE.items() if not key.startswith((
        "axes.grid", "axes.prop", "axes.spines", "lines", "font.size", "legend"))}
    with tempfile.TemporaryDirectory() as folder, mpl.rc_context(style):
        path = pathlib.Path(folder) / "picture.svg"
        if isinstance(picture.draw, str):
            module, _, function = picture.draw.partition(":")
            getattr(importlib.import_module(module), function)(path, *arguments)
        else:
            figure = Figure(layout="constrained")
            picture.draw(figure, *arguments)
            figure.savefig(path)
        return str(pictures.dressed(path.read_text(encoding="utf-8")))


def shown(name: str, place: str) -> str:
    """A picture on the page `place`: it leads to itself, where it fills the screen."""
    file = posixpath.relpath(f"results/{name}.svg", posixpath.dirname(place) or ".")
    words = PICTURES[name].sentence.replace("`", "")
    return f"[![{words}]({file})]({file})"


# --- pages ---


def result_page(markdown: str, place: str) -> str:
    """A page of results: its title, its pictures with a sentence each, and folded tables."""
    stem = posixpath.basename(place).removesuffix(".md")
    title, _, rest = (markdown.partition("\n") if markdown.startswith("# ")
                      else (f"# {TITLES[stem]}", "", markdown))
    own = [name for name, picture in PICTURES.items() if picture.page == stem]
    top = [f"{shown(name, place)}\n\n*{PICTURES[name].sentence}*" for name in own]
    return "\n\n".join((title, *(top or [f"*{SENTENCES[stem]}*"]), TABLE.sub(folded, rest)))


def folded(match: re.Match[str]) -> str:
    """A table, folded if it is long."""
    count = len(match[0].splitlines()) - 2
    if count < FOLDED:
        return match[0]
    head = match[0].partition("\n")[0].strip().strip("|").split("|")
    columns = ", ".join(cell.strip() for cell in head if cell.strip())
    return (f'\n<details markdown="1">\n<summary>Table of {count} rows: {columns}</summary>\n\n'
            f"{match[0]}\n</details>\n")


def gallery_page(routes: Mapping[str, str]) -> str:
    """All pictures as cards, each with a link to the page that explains it."""
    cards = []
    for name, picture in PICTURES.items():
        page = picture.page if picture.page.endswith(".md") else f"results/{picture.page}.md"
        cards.append(f"-   {shown(name, 'gallery.md')}\n\n    **[{picture.title}]({page})**\n\n"
                     f"    {picture.sentence}\n")
    for name, (title, sentence) in STORED.items():
        file = routes[file_of(f"{name}.png").relative_to(ROOT).as_posix()]
        cards.append(f"-   [![{sentence}]({file})]({file})\n\n    **[{title}](examples.md)**\n\n"
                     f"    {sentence}\n")
    return ("# Gallery\n\nPictures are drawn from files of results when this site is built; the "
            "last six come from trained models. A picture leads to itself in full size, and its "
            "title to the page that explains it.\n\n"
            '<div class="grid cards gallery" markdown>\n\n' + "\n".join(cards) + "\n</div>\n")
