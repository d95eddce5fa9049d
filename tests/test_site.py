"""The documentation site: that links are checked, and that nothing in it comes from elsewhere.

`.ci/run` builds it strictly and checks the links of what was built.
"""

import pathlib
import re
import runpy
import sys

import pytest

from tests.helpers.lanes import rest_nightly

SITE = pathlib.Path(__file__).parents[1] / "docs" / "site"
WRONG = runpy.run_path(str(SITE / "check_links.py"))["wrong"]
PAGE = '<html><body><h1 id="top">x</h1>{}</body></html>'


@pytest.mark.parametrize(("inside", "message"), [
    ('<a href="b.html#top">x</a><a href="#top">x</a><img src="b.html">', None),
    ('<a href="https://example.org/x">x</a><a href="mailto:a@example.org">x</a>', None),
    ('<a href="c.html">x</a>', "not there"),
    ('<img src="c.png">', "not there"),
    ('<a href="b.html#bottom">x</a>', "no place"),
    ('<a href="#bottom">x</a>', "no place"),
    ('<a href="/b.html">x</a>', "/b.html"),
    ('<script src="https://example.org/x.js"></script>', "from elsewhere"),
    ('<link rel="stylesheet" href="//example.org/x.css">', "from elsewhere"),
])
def test_a_link_that_leads_nowhere_is_found(tmp_path, inside, message):
    (tmp_path / "a.html").write_text(PAGE.format(inside))
    (tmp_path / "b.html").write_text(PAGE.format(""))
    actual = WRONG(tmp_path)
    assert len(actual) == (message is not None)
    assert message is None or message in actual[0]


@pytest.mark.parametrize("path", sorted(p.name for p in SITE.iterdir() if p.is_file()))
def test_the_site_is_made_and_read_without_a_network(path):
    """Every warning of the build is an error, and no source names an address to load from."""
    text = (SITE / path).read_text(encoding="utf-8")
    assert not re.search(r"https?://|\bcdn\b|unpkg", text)
    if path == "mkdocs.yml":
        assert "font: false" in text
        assert "- offline" in text
        assert text.count(": warn\n") == 6


# --- pictures and pages of results ---

sys.path.insert(0, str(SITE))  # as its hooks import each other
GALLERY = runpy.run_path(str(SITE / "gallery.py"))
ROOT = SITE.parents[1]
RESULTS = sorted(ROOT.glob("benchmarks/**/results/*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("name", rest_nightly(list(GALLERY["PICTURES"]), 2))
def test_a_picture_is_drawn_from_a_file_of_results(name):
    text = GALLERY["drawn"](name)
    assert text.rstrip().endswith("</svg>")
    assert "prefers-color-scheme: dark" in text
    assert text.count("<path") > 10


def test_a_picture_that_can_be_drawn_is_not_stored():
    stored = {path.stem for path in ROOT.glob("benchmarks/**/results/*")
              if path.suffix in (".png", ".svg", ".pdf")}
    assert stored == set(GALLERY["STORED"])


def test_documents_show_pictures_that_are_drawn():
    markers = [name for path in ROOT.glob("docs/*.md")
               for name in re.findall(r"<!-- picture:(.*?)-->", path.read_text(encoding="utf-8"))]
    assert len(markers) > 10
    assert {name.strip() for name in markers} <= set(GALLERY["PICTURES"])
    for picture in GALLERY["PICTURES"].values():
        assert (ROOT / "docs" / picture.page).exists() or picture.page in {
            path.stem for path in RESULTS}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_page_of_results_begins_with_its_title_and_a_sentence_and_folds_tables(path):
    text = path.read_text(encoding="utf-8")
    page = GALLERY["result_page"](text, f"results/{path.name}")
    title, top = page.split("\n\n")[:2]
    assert title.startswith("# ")
    assert top.startswith(("[![", "*"))
    outside = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
    assert all(len(table.splitlines()) < GALLERY["FOLDED"] + 2
               for table in re.findall(r"(?:^\|.*\n?)+", outside, re.MULTILINE))
    rows = re.findall(r"^\|.*$", text, re.MULTILINE)
    assert re.findall(r"^\|.*$", page, re.MULTILINE) == rows  # none is lost
