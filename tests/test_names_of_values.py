"""A value's name says what it holds: assigned names that are function words are counted by folder.

A name counts where it is assigned: by `=`, in a loop, by `with ... as`, in a comprehension, as a
field of a class, as an argument. The counts are compared by equality: whoever mends a name lowers
the number here, and a new one is refused. What is left is public, or waits for a reader.
"""

import ast
import collections
import functools
import pathlib
from collections.abc import Iterator

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "jaxminimax"
# articles, pronouns, numerals, prepositions, adverbs, participles: a sentence needs them, and none
# of them says what a value is
FUNCTION_WORDS = {
    "about", "above", "across", "after", "again", "against", "ahead", "all", "along", "already",
    "also", "among", "and", "another", "any", "are", "around", "as", "asked", "at", "away", "be",
    "been", "before", "began", "begun", "behind", "below", "beside", "between", "beyond", "both",
    "but", "by", "can", "come", "did", "do", "does", "done", "down", "each", "either", "ever",
    "every", "few", "for", "found", "from", "given", "gone", "got", "had", "has", "have", "heard",
    "held", "here", "how", "if", "in", "into", "is", "it", "its", "kept", "known", "later", "least",
    "left", "less", "made", "many", "may", "meant", "more", "most", "much", "near", "needed",
    "never", "no", "none", "not", "now", "of", "off", "on", "once", "one", "only", "onto", "or",
    "other", "others", "out", "over", "own", "part", "put", "rest", "same", "seen", "since", "so",
    "some", "such", "taken", "than", "that", "the", "them", "then", "there", "these", "they",
    "this", "those", "to", "told", "twice", "two", "under", "until", "up", "used", "wanted", "was",
    "what", "when", "where", "whether", "which", "who", "whole", "whom", "whose", "why", "with",
    "within", "without"}
# names that are function words, where it is not 0
COUNTS = {
    "accounting": 71, "algorithms": 30, "apps": 16, "audit": 6, "base": 3, "checkup.py": 5,
    "drivers": 8, "gradients": 55, "mechanism": 85, "noise": 1, "problems": 19, "releases": 30}


def assigned(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of all that is assigned, and of the arguments of functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def function_words(text: str) -> list[tuple[int, str]]:
    """Line and name of the function words that are assigned, `all_` and `_held` among them."""
    return [(line, name) for line, name in assigned(ast.parse(text))
            if name.strip("_") in FUNCTION_WORDS and not name.startswith("__")]


@functools.cache
def in_folders() -> dict[str, list[str]]:
    """The places of function words in each folder, and in each module at the top."""
    places = collections.defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        places[inside.parts[0]] += [
            f"jaxminimax/{inside}:{line}: {name}"
            for line, name in function_words(path.read_text(encoding="utf-8"))]
    return places


@pytest.mark.parametrize("folder", sorted({
    *COUNTS, *(path.name for path in PACKAGE.glob("*.py")),
    *(path.parent.name for path in PACKAGE.glob("*/__init__.py"))}))
def test_no_new_value_is_named_by_a_function_word(folder):
    places = in_folders().get(folder, [])
    assert len(places) == COUNTS.get(folder, 0), "\n".join([
        "name each by what it holds, or lower the count:", *places])


def test_every_way_of_assigning_counts():
    text = """
one = 1
two: int
each, (name, other) = f()
for part in x: pass
with x as held: pass
y = [most for most in x if (few := most)]
def f(how, /, of, *rest, at=lambda by: 0, **kept): pass
class A:
    done: int
size = here + there(before=left)
__all__ = []
"""
    assert [name for _, name in sorted(function_words(text))] == [
        "one", "two", "each", "other", "part", "held", "few", "most", "at", "by", "how", "kept",
        "of", "rest", "done"]
