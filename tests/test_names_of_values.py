"""A value's name says what it holds: assigned names that are function words are counted by folder.

A name counts where it is assigned: by `=`, in a loop, by `with ... as`, in a comprehension, as a
field of a class, as an argument. The counts of each name are compared by equality: whoever mends
one lowers its number here, and a new one is refused. What is left is public, or waits for a reader.
"""

import ast
import collections
import functools
import pathlib
import textwrap
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
# how often each is assigned, by folder: `python -m tests.test_names_of_values` prints today's
COUNTS = {
    "accounting":
        "above:2 again:2 already:1 also:1 asked:2 away:1 begun:3 below:2 between:5 "
        "beyond:6 both:2 down:1 least:6 left:1 near:8 needed:1 none:4 off:6 once:1 one:2 "
        "out:5 taken:1 to:1 two:2 up:1 what:2 who:1 ",
    "algorithms":
        "ahead:1 along:1 among:4 before:1 done:2 each:1 later:1 least:1 more:1 on:2 out:2 "
        "over:2 part:2 why:9 ",
    "apps":
        "asked:1 held:6 made:1 most:2 of:2 once:1 out:3 ",
    "audit":
        "one:3 two:3 ",
    "base":
        "part:3 ",
    "checkup.py":
        "along:1 begun:1 needed:1 one:1 part:1 ",
    "drivers":
        "every:2 most:2 of:2 on:1 why:1 ",
    "gradients":
        "along:1 below:1 both:1 held:4 here:2 how:4 into:3 more:1 needed:2 one:4 "
        "out:5 own:1 part:19 rest:1 wanted:4 ",
    "mechanism":
        "above:4 again:3 among:2 asked:1 begun:2 below:4 beyond:4 both:2 down:1 each:2 "
        "every:1 held:2 how:1 less:4 most:13 near:2 needed:2 none:3 off:3 others:1 "
        "part:22 rest:2 same:1 twice:1 up:1 who:1 ",
    "noise":
        "below:1 ",
    "problems":
        "above:1 across:1 ahead:1 below:1 each:1 here:2 later:1 most:2 others:1 out:1 "
        "over:3 own:3 two:1 ",
    "releases":
        "away:1 before:1 begun:1 below:2 done:1 each:4 gone:1 more:1 most:1 other:1 "
        "part:10 rest:1 under:1 up:1 used:2 within:1 ",
}


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
def in_folders() -> dict[str, dict[str, list[str]]]:
    """The places of each function word in each folder, and in each module at the top."""
    places = collections.defaultdict(lambda: collections.defaultdict(list))
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        for line, name in function_words(path.read_text(encoding="utf-8")):
            places[inside.parts[0]][name].append(f"jaxminimax/{inside}:{line}: {name}")
    return places


def listed(folder: str) -> dict[str, int]:
    """How often a folder may assign each name."""
    pairs = [entry.split(":") for entry in COUNTS.get(folder, "").split()]
    return {name: int(count) for name, count in pairs}


@pytest.mark.parametrize("folder", sorted({
    *COUNTS, *(path.name for path in PACKAGE.glob("*.py")),
    *(path.parent.name for path in PACKAGE.glob("*/__init__.py"))}))
def test_no_new_value_is_named_by_a_function_word(folder):
    places, allowed = in_folders()[folder], listed(folder)
    surplus = {name: allowed.get(name, 0) for name in places
               if len(places[name]) > allowed.get(name, 0)}
    assert not surplus, "\n".join([
        "name by what it holds what is new among these; " + ", ".join(
            f"{name}: {count} are listed" for name, count in surplus.items()),
        *(place for name in surplus for place in places[name])])
    gone = {name: len(places[name]) for name in allowed if len(places[name]) < allowed[name]}
    assert not gone, f"lower the counts of {folder} to these: {gone}"


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


if __name__ == "__main__":
    for part, names in sorted(in_folders().items()):
        counts = " ".join(f"{name}:{len(names[name])}" for name in sorted(names))
        print(f'    "{part}":', *(f'\n        "{line} "' for line in textwrap.wrap(counts, 80)),
              ",", sep="")
