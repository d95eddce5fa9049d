"""The documentation site: that links are checked, and that nothing in it comes from elsewhere.

`.ci/run` builds it strictly and checks the links of what was built.
"""

import pathlib
import re
import runpy

import pytest

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
