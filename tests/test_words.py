"""What a person reads is in the field's words: docs/terms.md has them, and these are retired.

The tests read README, CONTRIBUTING, CHANGELOG, `docs/`, the notebooks and the package's source:
docstrings, comments, help texts, messages and names.
"""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SOURCES = sorted(ROOT.glob("jaxminimax/**/*.py"))
READ = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/site/*.py")),
        *sorted(ROOT.glob("notebooks/*.py")), *SOURCES]
# a pattern, and what to write in its place
RETIRED = {
    r"blur\w*": "add noise, noisy",
    r"doors?": "release function",
    r"house": "design, package",
    r"loud(ly)?": "with a warning, large",
    r"in the open": "public",
}
OLD_NAMES = re.compile(r"Defaults\.beside|Schema\.told|def (beside|told)\b|`door`")  # up to 0.1
# names that say that a thing exists, and not what it is
EMPTY = {"made", "found", "there", "said", "told", "beside"}


@pytest.mark.parametrize("word", RETIRED)
def test_a_retired_word_is_in_no_text(word):
    pattern = re.compile(rf"(?<![A-Za-z])(?:{word})(?![A-Za-z])", re.IGNORECASE)
    lines = [f"{path.relative_to(ROOT)}:{number}: {line.strip()}" for path in READ
             for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
             if pattern.search(OLD_NAMES.sub("", line))]
    assert lines == [], f"write instead: {RETIRED[word]}"


def test_names_say_what_a_value_is():
    names = [f"{path.relative_to(ROOT)}:{node.lineno}: {node.id}" for path in SOURCES
             for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
             if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in EMPTY]
    assert names == []


def test_the_page_of_terms_is_short():
    page = (ROOT / "docs/terms.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| \*\*", page, re.MULTILINE)
    assert 0 < len(terms) <= 40
