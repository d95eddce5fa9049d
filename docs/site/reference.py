"""Pages of the reference: the public names by group, and the source of each.

An algorithm has a page of its own. A name is followed by a link to its line in the source, which
the site shows itself.
"""

import functools
import html
import importlib
import inspect
import itertools
import pathlib
import posixpath
import re
from typing import Any

import griffe
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

ROOT = pathlib.Path(__file__).resolve().parents[2]
# names of the top level by group, and modules with names of their own
GROUPS = {
    "problem": ("Write a problem", "Problem GroupProblem Saddle saddle_operator clipped_sum"),
    "run": ("Describe a run", "Query AdaptiveClip Poisson FixedSize Full Disjoint GroupGradients "
                              "GroupLosses Repeat Sequence Parallel"),
    "privacy": ("Calibrate and account", "plan plans calibrate epsilon delta profile "
                                         "statement certify"),
    "train": ("Train", "run fit sweep tune stack check release round private_gradient"),
}
MODULES = {
    "Data and problems": ("problems", "tables", "estimators", "placement"),
    "Privacy": ("accounting", "mechanism", "audit", "noise"),
    "Optimisation": ("averaging", "schedules", "solvers", "metrics", "types"),
}
IMPORTS = ("Examples assume\n\n```python\nimport jax\nimport jax.numpy as jnp\nimport numpy as np\n"
           "import jaxminimax as jmm\nfrom jaxminimax import Saddle\n```")
HEADING = re.compile(r'(<h[1-6] id="(jaxminimax[\w.]*)" class="doc doc-heading">.*?)'
                     r'(<a [^>]*class="headerlink")', re.DOTALL)
SOURCES: dict[str, set[int]] = {}  # files that pages link to, and the lines
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{name}</title>
<link rel="stylesheet" href="{up}assets/source.css">
</head>
<body>
<p><a href="{up}api/index.html">jaxminimax, all names</a> / {name}</p>
<pre>{lines}</pre>
</body>
</html>
"""


class PublicNames(griffe.Extension):
    """Names of a module that loads them when they are asked for: its source imports none."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Leads the names of `jaxminimax.tables` to where they are defined."""
        for name in importlib.import_module("jaxminimax.tables").__all__:
            pkg["tables"].set_member(name, griffe.Alias(
                name, f"jaxminimax.apps.tables.{name}", parent=pkg["tables"]))


# --- pages ---


def algorithms() -> list[str]:
    """Names of the algorithms; the first is the one to start with."""
    return sorted(importlib.import_module("jaxminimax").algorithms.ALGORITHMS,
                  key=lambda name: (name != "sgda", name))


def navigation() -> list[Any]:
    """The reference as groups of pages."""
    modules = [{title: [{f"`{name}`": f"api/{name}.md"} for name in names]}
               for title, names in MODULES.items()]
    return [{"All names": "api/index.md"},
            {"Top level": [{title: f"api/{page}.md"} for page, (title, _) in GROUPS.items()]},
            {"Algorithms": [{name: f"api/algorithms/{name}.md"} for name in algorithms()]},
            *modules]


def reference() -> dict[str, str]:
    """Pages of the reference: an overview, and a heading for every public name."""
    jmm = importlib.import_module("jaxminimax")
    pages, lists = {}, []
    for page, (title, words) in GROUPS.items():
        names = words.split()
        pages[f"api/{page}.md"] = "\n\n".join(
            (f"# {title}", IMPORTS, *(_entry(f"jaxminimax.{name}") for name in names)))
        lists.append(_table(title, page, "jaxminimax", jmm, names))
    listed = {id(getattr(jmm, name)) for _, words in GROUPS.values() for name in words.split()}
    missing = [name for name in dir(jmm) if callable(getattr(jmm, name))
               and id(getattr(jmm, name)) not in listed]
    if missing:
        raise ValueError("GROUPS of docs/site/reference.py has no place for "
                         f"{', '.join(missing)}.")
    for name in algorithms():
        path = f"jaxminimax.algorithms.{name}"
        members = list(dir(jmm.algorithms.ALGORITHMS[name]))
        pages[f"api/algorithms/{name}.md"] = "\n\n".join(
            (f"# {name}", _use(name),
             _entry(path, f"members: {members}", "show_root_heading: false")))
    lists.append(_table("Algorithms", "algorithms/{}", "jaxminimax.algorithms", jmm, algorithms()))
    for page in itertools.chain(*MODULES.values()):
        path = f"jaxminimax.{page}"
        module = getattr(jmm, page, None) or importlib.import_module(path)  # `estimators`
        names = [name for name in dir(module) if callable(getattr(module, name))
                 and id(getattr(module, name)) not in listed]
        listed |= {id(getattr(module, name)) for name in names}
        home = f"jaxminimax.apps.{page}" if page in ("tables", "estimators") else path
        head = _entry(home, "members: false", "show_root_heading: false",
                      "show_root_toc_entry: false")
        pages[f"api/{page}.md"] = "\n\n".join(
            (f"# {path}", head, IMPORTS, *(_entry(f"{path}.{name}") for name in names)))
        lists.append(_table(f"`{path}`", page, path, module, names))
    pages["api/index.md"] = "\n\n".join(("# All names", "The public names by group, with the first "
                                         "sentence of each docstring.", *lists))
    return pages


def _use(algorithm: str) -> str:
    """What the page on choosing says of an algorithm: when to take it, and what it needs."""
    text = (ROOT / "docs/choosing.md").read_text(encoding="utf-8")
    plain = re.compile(r"\[([^\]]*)\]\([^)]*\)")  # links of that page lead nowhere from here
    lines = text.partition("## Which when\n")[2].partition("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")]
             for line in lines if line.startswith("| ")]
    uses = [plain.sub(r"\1", f"* {case}: it needs {needs}")
            for case, take, needs in cells[1:] if f"`{algorithm}`" in take.partition(" over ")[0]]
    module = importlib.import_module(f"jaxminimax.algorithms.{algorithm}")
    file = pathlib.Path(module.__file__ or "").resolve().relative_to(ROOT).as_posix()
    SOURCES.setdefault(file, set())
    source = f"../../source/{file.removesuffix('.py')}.html"
    link = ("[Choosing an algorithm](../../choosing.md) compares it with the others. Its "
            f'<a href="{source}">source</a> is one file.')
    return "\n\n".join((*(["**Take it for**", "\n".join(uses)] if uses else ()), link))



def _table(title: str, page: str, path: str, module: Any, names: list[str]) -> str:
    """The names of a group with their first sentences, each a link to its page."""
    rows = [f"| [`{name}`]({page.format(name)}.md#{path}.{name}) | "
            f"{(inspect.getdoc(getattr(module, name)) or '').partition(chr(10))[0]} |"
            for name in names]
    return "\n".join((f"## {title}\n", "| name | what it is |", "|---|---|", *rows))


def _entry(name: str, *options: str) -> str:
    lines = "".join(f"\n      {option}" for option in options)
    return f"::: {name}" + (f"\n    options:{lines}" if options else "")


# --- sources ---


@functools.cache
def place_of(path: str) -> tuple[str, int] | None:
    """The file of a public name and its line in it; None for what has none, as a field."""
    parts = path.split(".")
    value: Any = importlib.import_module("jaxminimax")
    try:
        for k, part in enumerate(parts[1:], 2):
            value = (getattr(value, part) if hasattr(value, part)
                     else importlib.import_module(".".join(parts[:k])))
        value = inspect.unwrap(value.fget if isinstance(value, property) else value)
        file, (_, line) = inspect.getsourcefile(value), inspect.getsourcelines(value)
    except (ImportError, OSError, TypeError):
        return None
    return (None if file is None
            else (pathlib.Path(file).resolve().relative_to(ROOT).as_posix(), max(line, 1)))


def with_sources(page: str, place: str) -> str:
    """A page of the reference, as HTML, with a link to the source after each name."""
    def linked(match: re.Match[str]) -> str:
        found = place_of(match[2])
        if found is None:
            return match[0]
        file, line = found
        SOURCES.setdefault(file, set()).add(line)
        target = posixpath.relpath(f"source/{file.removesuffix('.py')}.html",
                                   posixpath.dirname(place))
        return f'{match[1]}<a class="source" href="{target}#line-{line}">source</a>{match[3]}'

    return HEADING.sub(linked, page)


def write_sources(site: pathlib.Path) -> None:
    """Writes the files that pages link to, with a place at each line that is linked to."""
    style = HtmlFormatter(nowrap=True, style="default")
    for name, wanted in SOURCES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        lines = highlight(text, PythonLexer(stripnl=False), style).splitlines()
        for line in wanted:
            lines[line - 1] = f'<span class="linked" id="line-{line}">{lines[line - 1]}</span>'
        path = site / "source" / f"{name.removesuffix('.py')}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGE.format(name=html.escape(name), lines="\n".join(lines),
                                    up="../" * (name.count("/") + 1)), encoding="utf-8")
    dark = HtmlFormatter(style="github-dark").get_style_defs("pre")
    (site / "assets/source.css").write_text(
        "body { margin: 1rem; background: #fff; color: #24292f; font-family: sans-serif; }\n"
        "pre { overflow-x: auto; font-size: .8rem; line-height: 1.45; }\n"
        ".linked:target { outline: 2px solid #d9730d; outline-offset: 2px; }\n"
        f"{HtmlFormatter(style='default').get_style_defs('pre')}\n"
        "@media (prefers-color-scheme: dark) {\n"
        "body { background: #1f222d; color: #e6e8ee; }\na { color: #8ab4f8; }\n"
        f"{dark}\n}}\n", encoding="utf-8")
