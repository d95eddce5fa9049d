"""What the documentation site is made of: pages of the repository, notebooks, and the reference.

Documents link to each other by their places in the repository, where they are read too. The site
has the same pages in places of its own, so every link is translated: `ROUTES` says where a file of
the repository is on the site. The contents of `docs/index.md` are the navigation; notebooks are
shown with the outputs that are stored in them; the reference lists the public names, as `dir` does.
"""

import base64
import importlib
import json
import pathlib
import posixpath
import re
from typing import Any

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
ORIGINS = {place: name for name, place in ROUTES.items()}
# modules that users hold names of, in the order of the reference
FACES = ("accounting", "problems", "metrics", "mechanism", "averaging", "schedules", "audit",
         "tables", "estimators", "placement", "solvers", "noise", "types")
LINK = re.compile(r"(?<=\]\()([^()\s]+)(?=\))")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r"(\$\$?)([^$]+)\1")


# --- navigation ---


def contents() -> list[dict[str, list[str]]]:
    """Sections of `docs/index.md` and the pages under them."""
    sections: list[dict[str, list[str]]] = []
    for line in (ROOT / "docs/index.md").read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"\*\*(.+)\*\*", line):
            sections.append({found[1]: []})
        elif sections and line:
            (pages,) = sections[-1].values()
            new = [target.partition("#")[0] for target in LINK.findall(line)]
            pages += [page for page in new if page.endswith(".md") and page not in pages
                      and not page.startswith("..")]
    return sections


def on_config(config: Any) -> Any:
    """The navigation is that of the first page of the documents."""
    notebooks = [place for place in ROUTES.values() if place.startswith("notebooks/")]
    results = [place for place in ROUTES.values()
               if place.startswith("results/") and place.endswith(".md")]
    config.nav = [
        {"Contents": "index.md"}, {"First page": "first_page.md"}, *contents(),
        {"Notebooks": notebooks}, {"Tables of results": results},
        {"Reference": ["api/index.md", "api/algorithms.md", *(f"api/{f}.md" for f in FACES)]},
        {"The project": ["contributing.md", "changelog.md"]}]
    return config


# --- pages that are not in docs/ ---


def on_files(files: Files, config: Any) -> Files:
    """Adds them, the reference, and what pages need to look like something."""
    for name, place in ROUTES.items():
        if name.endswith(".ipynb"):
            text, pictures = notebook(ROOT / name)
            files.append(File.generated(config, place, content=text))
            for picture, data in pictures.items():
                files.append(File.generated(config, f"notebooks/{picture}", content=data))
        else:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    for name in ("iframe-worker.js", "site.css"):
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
            elif said := "".join(output.get("text", data.get("text/plain", ()))).rstrip():
                parts.append(f"```text\n{said}\n```")
    return "\n\n".join(parts) + "\n", pictures


def formula(found: re.Match[str]) -> str:
    """A formula as MathML, which browsers draw by themselves."""
    tex = " ".join(found[2].split())
    if found[1] == "$":
        return f"<span>{convert(tex)}</span>"
    return f'\n\n<div class="formula">{convert(tex, display="block")}</div>\n\n'


def reference() -> dict[str, str]:
    """Pages of the reference: a heading for every public name."""
    jmm = importlib.import_module("jaxminimax")
    shown = {"jaxminimax": jmm} | {f"jaxminimax.{face}": getattr(jmm, face, None) or (
        importlib.import_module(f"jaxminimax.{face}")) for face in FACES}
    pages, known = {}, set()
    for module, held in shown.items():
        names = [name for name in dir(held) if callable(getattr(held, name))
                 and id(getattr(held, name)) not in known]
        known |= {id(getattr(held, name)) for name in names}
        place = "index" if module == "jaxminimax" else module.removeprefix("jaxminimax.")
        pages[f"api/{place}.md"] = _listed(module, names)
    modules = jmm.algorithms.ALGORITHMS
    pages["api/algorithms.md"] = "# Algorithms\n\n" + "\n\n".join(
        _entry(f"jaxminimax.algorithms.{name}", f"members: {list(dir(held))}")
        for name, held in modules.items())
    return pages


def _listed(module: str, names: list[str]) -> str:
    head = ("Examples assume\n\n```python\nimport jax\nimport jax.numpy as jnp\n"
            "import numpy as np\nimport jaxminimax as jmm\nfrom jaxminimax import Saddle\n```\n")
    return "\n\n".join((f"# {module}", _entry(
        module, "members: false", "show_root_heading: false", "show_root_toc_entry: false"),
                        head, *(_entry(f"{module}.{name}") for name in names)))


def _entry(name: str, *options: str) -> str:
    lines = "".join(f"\n      {option}" for option in options)
    return f"::: {name}" + (f"\n    options:{lines}" if options else "")


# --- links ---


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Translates links from places in the repository to places on the site."""
    place = page.file.src_uri
    if place.startswith(("api/", "notebooks/")):
        return markdown
    origin = ORIGINS.get(place, f"docs/{place}")
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
