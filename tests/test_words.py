"""What a person reads is in the field's words: docs/terms.md has them, and these are retired.

The tests read README, CONTRIBUTING, CHANGELOG, SECURITY, `docs/`, the notebooks and the package's
source: docstrings, comments, help texts, messages and names.
"""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SOURCES = sorted(ROOT.glob("jaxminimax/**/*.py"))
READ = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
        *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/site/*.py")),
        *sorted(ROOT.glob("notebooks/*.py")), *SOURCES]
# a pattern, and what to write in its place
RETIRED = {
    r"blur\w*": "add noise, noisy",
    r"doors?": "release function",
    r"house": "design, package",
    r"loud(er|ly)?": "with a warning, larger",
    r"in the open": "public",
    r"told": "declared, shown",
    r"said": "printed, stated, set",
    r"whoever": "anyone who, the function that",
    r"beside": "with, next to",
}
# names that say that a thing exists, and not what it is
EMPTY = {"made", "found", "known", "whole", "given", "there", "said", "told", "beside"}
# first words of a docstring that does not say what the thing is or does
FIRST = {"Of", "As", "That", "Those", "What", "Whether", "Told"}


@pytest.mark.parametrize("word", RETIRED)
def test_a_retired_word_is_in_no_text(word):
    pattern = re.compile(rf"(?<![A-Za-z])(?:{word})(?![A-Za-z])", re.IGNORECASE)
    lines = [f"{path.relative_to(ROOT)}:{number}: {line.strip()}" for path in READ
             for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
             if pattern.search(line.replace("`door`", ""))]
    assert lines == [], f"write instead: {RETIRED[word]}"


def test_names_say_what_a_value_is():
    names = [f"{path.relative_to(ROOT)}:{node.lineno}: {node.id}" for path in SOURCES
             for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
             if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in EMPTY]
    assert names == []


def test_a_docstring_begins_with_what_the_thing_is_or_does():
    lines = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                if first.partition(" ")[0].rstrip(".,:") in FIRST:
                    lines.append(f"{path.relative_to(ROOT)}: {first}")
    assert lines == []


def test_the_page_of_terms_is_short():
    page = (ROOT / "docs/terms.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| \*\*", page, re.MULTILINE)
    assert 0 < len(terms) <= 40
