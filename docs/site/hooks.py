"""Builds the documentation site from the repository's pages, its notebooks and the docstrings.

Documents link to each other by their places in the repository, where people read them too. The
site has the same pages in places of its own, so every link is translated: `ROUTES` gives the place
of a file of the repository on the site. The contents of `docs/index.md` are the navigation.
Notebooks appear with their stored outputs. The reference lists the public names by group.
"""

import base64
import importlib
import inspect
import itertools
import json
import pathlib
import posixpath
import re
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
# files of the repository outside docs/, and their places on the site
ROUTES = {"README.md": "first_page.md", "CONTRIBUTING.md": "contributing.md",
          "CHANGELOG.md": "changelog.md", "LICENSE": "license.txt", "CITATION.cff": "CITATION.cff"}
ROUTES |= {p.relative_to(ROOT).as_posix(): f"results/{p.name}"
           for p in sorted((ROOT / "benchmarks").glob("*/results/*"), key=lambda p: p.name)}
ROUTES |= {f"notebooks/{p.name}": f"notebooks/{p.stem}.md"
           for p in sorted((ROOT / "notebooks").glob("*.ipynb"))}
ROUTES |= {p.relative_to(ROOT).as_posix(): f"formats/{p.name}"
           for p in sorted((ROOT / "jaxminimax/base/formats").glob("*.json"))}
ORIGINS = {place: name for name, place in ROUTES.items()}
# pages of the reference: names of the top level by group, and modules with names of their own
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
WIDE = (("76.234375em", "68.734375em"), ("76.25em", "68.75em"))  # 1220 and 1100 pixels
IMPORTS = ("Examples assume\n\n```python\nimport jax\nimport jax.numpy as jnp\nimport numpy as np\n"
           "import jaxminimax as jmm\nfrom jaxminimax import Saddle\n```")
LINK = re.compile(r"(?<=\]\()([^()\s]+)(?=\))")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r"(\$\$?)([^$]+)\1")


# --- navigation ---


def contents() -> list[dict[str, list[str]]]:
    """Sections of `docs/index.md` and the pages under them."""
    sections: list[dict[str, list[str]]] = []
    for line in (ROOT / "docs/index.md").read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"\*\*(.+)\*\*", line):
            sections.append({heading[1]: []})
        elif sections and line:
            (pages,) = sections[-1].values()
            new = [target.partition("#")[0] for target in LINK.findall(line)]
            pages += [page for page in new if page.endswith(".md") and page not in pages
                      and not page.startswith("..")]
    return sections


def on_config(config: Any) -> Any:
    """Sets the navigation, and the version in the footer."""
    notebooks = [place for place in ROUTES.values() if place.startswith("notebooks/")]
    results = [place for place in ROUTES.values()
               if place.startswith("results/") and place.endswith(".md")]
    groups = [{"All names": "api/index.md"}, *({title: f"api/{name}.md"}
                                               for name, (title, _) in GROUPS.items())]
    modules = [{title: [f"api/{name}.md" for name in names]} for title, names in MODULES.items()]
    config.nav = [
        {"Home": "index.md"}, *contents(),
        {"Reference": [*groups, "api/algorithms.md", *modules]},
        {"More": [{"README": "first_page.md"}, {"Notebooks": notebooks},
                  {"Tables of results": results}, "contributing.md", "changelog.md"]}]
    config.copyright = f"jaxminimax {importlib.import_module('jaxminimax').__version__}"
    return config


def on_post_build(config: Any) -> None:
    """Shows the side navigation from 1100 pixels on, where the theme begins at 1220."""
    assets = pathlib.Path(config.site_dir) / "assets"
    for path in (*assets.glob("stylesheets/main.*.css"), *assets.glob("javascripts/bundle.*.js")):
        text = path.read_text(encoding="utf-8")
        if WIDE[1][0] not in text:
            raise ValueError(f"{path.name} does not have the width {WIDE[1][0]}: look for the "
                             "theme's new one, and set WIDE in docs/site/hooks.py.")
        for old, new in WIDE:
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")


# --- pages that are not in docs/ ---


def on_files(files: Files, config: Any) -> Files:
    """Adds them, the reference, and the style sheet."""
    for name, place in ROUTES.items():
        if name.endswith(".ipynb"):
            text, pictures = notebook(ROOT / name)
            files.append(File.generated(config, place, content=text))
            for picture, data in pictures.items():
                files.append(File.generated(config, f"notebooks/{picture}", content=data))
        else:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    for name in ("iframe-worker.js", "search-words.js", "site.css"):
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(HERE / name)))
    for place, text in reference().items():
        files.append(File.generated(config, place, content=text))
    return files


def notebook(path: pathlib.Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page, with its stored outputs, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"]).strip()
        parts.append(FORMULA.sub(formula, text) if cell["cell_type"] == "markdown"
                     else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}_{len(pictures)}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![drawn by the cell above]({name})")
            elif printed := "".join(output.get("text", data.get("text/plain", ()))).rstrip():
                parts.append(f"```text\n{printed}\n```")
    return "\n\n".join(parts) + "\n", pictures


def formula(match: re.Match[str]) -> str:
    """A formula as MathML, which browsers draw by themselves."""
    tex = " ".join(match[2].split())
    if match[1] == "$":
        return f"<span>{convert(tex)}</span>"
    return f'\n\n<div class="formula">{convert(tex, display="block")}</div>\n\n'


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
        raise ValueError(f"GROUPS of docs/site/hooks.py has no place for {', '.join(missing)}.")
    modules = jmm.algorithms.ALGORITHMS
    pages["api/algorithms.md"] = "# Algorithms\n\n" + "\n\n".join(
        _entry(f"jaxminimax.algorithms.{name}", f"members: {list(dir(module))}")
        for name, module in modules.items())
    lists.append(_table("Algorithms", "algorithms", "jaxminimax.algorithms", jmm, list(modules)))
    for page in itertools.chain(*MODULES.values()):
        path = f"jaxminimax.{page}"
        module = getattr(jmm, page, None) or importlib.import_module(path)  # `estimators`
        names = [name for name in dir(module) if callable(getattr(module, name))
                 and id(getattr(module, name)) not in listed]
        listed |= {id(getattr(module, name)) for name in names}
        head = _entry(path, "members: false", "show_root_heading: false",
                      "show_root_toc_entry: false")
        pages[f"api/{page}.md"] = "\n\n".join(
            (f"# {path}", head, IMPORTS, *(_entry(f"{path}.{name}") for name in names)))
        lists.append(_table(f"`{path}`", page, path, module, names))
    pages["api/index.md"] = "\n\n".join(("# All names", "The public names by group, with the first "
                                         "sentence of each docstring.", *lists))
    return pages


class PublicNames(griffe.Extension):
    """Names of modules that load them when they are asked for: their source imports none of them."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Leads the names of `jaxminimax.tables` to where they are defined."""
        for name in importlib.import_module("jaxminimax.tables").__all__:
            pkg["tables"].set_member(name, griffe.Alias(
                name, f"jaxminimax.apps.tables.{name}", parent=pkg["tables"]))


def _table(title: str, page: str, path: str, module: Any, names: list[str]) -> str:
    """The names of a group with their first sentences, each a link to its page."""
    rows = [f"| [`{name}`]({page}.md#{path}.{name}) | "
            f"{(inspect.getdoc(getattr(module, name)) or '').partition(chr(10))[0]} |"
            for name in names]
    return "\n".join((f"## {title}\n", "| name | what it is |", "|---|---|", *rows))


def _entry(name: str, *options: str) -> str:
    lines = "".join(f"\n      {option}" for option in options)
    return f"::: {name}" + (f"\n    options:{lines}" if options else "")


# --- links ---


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Translates links from places in the repository to places on the site.

    It also points "edit this page" to the file in the repository, and ranks documents above the
    reference and tables of results in the search.
    """
    place = page.file.src_uri
    origin = ORIGINS.get(place, f"docs/{place}")
    generated = place.startswith("api/")
    page.edit_url = None if generated or not config.repo_url else (
        f"{config.repo_url.rstrip('/')}/{config.edit_uri}{origin}")
    if place.startswith(("results/", "notebooks/", "changelog")):
        page.meta["search"] = {"boost": 0.2}
    else:
        page.meta["search"] = {"boost": 0.5 if generated else 2}
    if place == "index.md":
        page.meta["hide"] = ["toc"]
    if generated or place.startswith("notebooks/"):
        return markdown
    parts = FENCE.split(markdown)  # programs are left as they are
    return "".join(part if k % 2 else LINK.sub(lambda m: translated(m[1], origin, place), part)
                   for k, part in enumerate(parts))


def translated(target: str, origin: str, place: str) -> str:
    """A link of the file `origin` as a link of the page `place`."""
    if re.match(r"[a-z]+:", target) or target.startswith("#"):
        return target
    path, sign, anchor = target.partition("#")
    name = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
    where = ROUTES.get(name, name.removeprefix("docs/") if name.startswith("docs/") else None)
    if where is None:
        raise ValueError(f"{origin} links to {target}, which the site does not have: add it to "
                         "ROUTES in docs/site/hooks.py.")
    return posixpath.relpath(where, posixpath.dirname(place) or ".") + sign + anchor
