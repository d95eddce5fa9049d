"""Builds the documentation site from the repository's pages, its notebooks and the docstrings.

Documents link to each other by their places in the repository, where people read them too. The
site has the same pages in places of its own, so every link is translated: `ROUTES` gives the place
of a file of the repository on the site. The contents of `docs/index.md` are the navigation.
Notebooks appear with their stored outputs. `gallery.py` draws the pictures and shapes the pages of
results, and `reference.py` makes the reference.
"""

import base64
import importlib
import json
import pathlib
import posixpath
import re
from typing import Any

import gallery
import reference
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
# files of the repository outside docs/, and their places on the site
ROUTES = {"README.md": "first_page.md", "CONTRIBUTING.md": "contributing.md",
          "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md",
          "LICENSE": "license.txt", "CITATION.cff": "CITATION.cff"}
ROUTES |= {p.relative_to(ROOT).as_posix(): f"results/{p.name}"
           for p in sorted((ROOT / "benchmarks").glob("**/results/*"), key=lambda p: p.name)}
ROUTES |= {f"notebooks/{p.name}": f"notebooks/{p.stem}.md"
           for p in sorted((ROOT / "notebooks").glob("*.ipynb"))}
ROUTES |= {p.relative_to(ROOT).as_posix(): f"formats/{p.name}"
           for p in sorted((ROOT / "jaxminimax/base/formats").glob("*.json"))}
ORIGINS = {place: name for name, place in ROUTES.items()}
# folders of benchmarks whose results have another name in the navigation
NAMES = {"papers": "Published tables", "rates": "Rates and guarantees"}
WIDE = (("76.234375em", "68.734375em"), ("76.25em", "68.75em"))  # 1220 and 1100 pixels
LINK = re.compile(r"(?<=\]\()([^()\s]+)(?=\))")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r"(\$\$?)([^$]+)\1")


# --- navigation ---


def contents() -> dict[str, list[str]]:
    """Groups of `docs/index.md` and the pages of each."""
    groups: dict[str, list[str]] = {}
    pages: list[str] = []
    for line in (ROOT / "docs/index.md").read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"\*\*(.+)\*\*", line):
            pages = groups.setdefault(heading[1], [])
        elif groups:
            new = [target.partition("#")[0] for target in LINK.findall(line)]
            pages += [page for page in new if page.endswith(".md") and page not in pages
                      and not page.startswith("..")]
    return groups


def on_config(config: Any) -> Any:
    """Sets the navigation, and the version in the footer.

    A group of it is a tab, whose pages stand at the side: fewer than 25 of them on every page.
    """
    notebooks = [place for place in ROUTES.values() if place.startswith("notebooks/")]
    results: dict[str, list[str]] = {}  # pages by the folder of their benchmarks
    for origin, place in ROUTES.items():
        if place.startswith("results/") and place.endswith(".md"):
            folder = origin.split("/")[1]
            results.setdefault(NAMES.get(folder, folder.capitalize()), []).append(place)
    more: dict[str, list[Any]] = {  # of pages outside docs/, after those of a group
        "Start": [{"README": "first_page.md"}, {"Notebooks": notebooks}],
        "Extend": [place for place in ("contributing.md", "security.md", "changelog.md")
                   if place in ORIGINS],
        "Results": [{"Gallery": "gallery.md"}, *({name: pages} for name, pages in results.items())]}
    config.nav = [{"Home": "index.md"},
                  *({name: [*pages, *more.get(name, ())]} for name, pages in contents().items()),
                  {"Reference": reference.navigation()}]
    narrow(config.nav)
    version = importlib.import_module("jaxminimax").__version__
    config.copyright = f"jaxminimax {version}"
    return config


def narrow(groups: list[dict[str, Any]]) -> None:
    """Refuses a group of the navigation that shows 25 entries or more at once."""
    for name, pages in ((name, pages) for group in groups for name, pages in group.items()
                        if isinstance(pages, list)):
        inner = [len(inside) for page in pages if isinstance(page, dict)
                 for inside in page.values() if isinstance(inside, list)]
        if (shown := len(pages) + max(inner, default=0)) >= 25:
            raise ValueError(f"{name} shows {shown} entries at the side of a page: make two groups "
                             "of it in docs/index.md.")


def on_post_build(config: Any) -> None:
    """Writes sources, and shows the side navigation from 1100 pixels, where the theme has 1220."""
    reference.write_sources(pathlib.Path(config.site_dir))
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
    for name in gallery.PICTURES:
        files.append(File.generated(config, f"results/{name}.svg", content=gallery.drawn(name)))
    pages = reference.reference() | {"gallery.md": gallery.gallery_page(ROUTES)}
    for place, text in pages.items():
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


# --- links ---


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Translates links from places in the repository to places on the site.

    It also points "edit this page" to the file in the repository, and ranks documents above the
    reference and tables of results in the search.
    """
    place = page.file.src_uri
    origin = ORIGINS.get(place, f"docs/{place}")
    generated = place.startswith(("api/", "gallery"))
    page.edit_url = None if generated or not config.repo_url else (
        f"{config.repo_url.rstrip('/')}/{config.edit_uri}{origin}")
    if place.startswith(("results/", "notebooks/", "changelog")):
        page.meta["search"] = {"boost": 0.2}
    else:
        page.meta["search"] = {"boost": 0.5 if generated else 2}
    if place == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    if generated or place.startswith("notebooks/"):
        return markdown
    parts = FENCE.split(markdown)  # programs are left as they are
    text = "".join(part if k % 2 else LINK.sub(lambda m: translated(m[1], origin, place), part)
                   for k, part in enumerate(parts))
    if place.startswith("results/"):
        text = gallery.result_page(text, place)
    elif place in ("performance.md", "reproductions.md"):
        text = gallery.TABLE.sub(gallery.folded, text)
    text = gallery.MARKER.sub(lambda match: gallery.shown(match[1], place), text)
    return text.replace("<!-- version -->", version_line(config))


def version_line(config: Any) -> str:
    """The version, and where the repository is, if the site knows."""
    version = importlib.import_module("jaxminimax").__version__
    code = [f"[Repository]({config.repo_url})"] if config.repo_url else []
    return " · ".join((f"Version {version}", *code, "[Changes](changelog.md)",
                       "[Gallery](gallery.md)", "[Reference](api/index.md)"))


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Adds links to the source to the names of the reference."""
    place = page.file.src_uri
    return reference.with_sources(content, place) if place.startswith("api/") else content


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
