"""Figures of the documents, held against the committed result files.

    python -m benchmarks.figures [--check]

A table stands between two lines of a page,

    <!-- table NAME of benchmarks/FOLDER/results/FILE.json -->
    ...
    <!-- end -->

and is what the function NAME of `result_tables` makes of that file. In a sentence the marker

    <!-- figure NAME of benchmarks/FOLDER/results/FILE.json -->

stands before its numbers, as many as the function NAME of `result_figures` gives, up to the next
marker, item or empty line. Every other number with a decimal point is listed in `constants.toml`,
by its page and with its neighbours, together with what it is. Fenced programs, what stands below
`<!-- printed -->`, which the tests compare with their outputs, and inline code are not looked at.

Without arguments tables and figures are written anew; `--check` writes nothing, and fails where a
page says something else than its file, or has a number that is neither marked nor listed.
"""

import functools
import json
import pathlib
import re
import tomllib
from typing import Any

from benchmarks.common import report
from benchmarks.common.result_figures import FIGURES
from benchmarks.common.result_tables import TABLES

ROOT = pathlib.Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")),
         *sorted((ROOT / "notebooks").glob("*.py")))
CONSTANTS = pathlib.Path(__file__).with_name("common") / "constants.toml"
_FILE = r"(benchmarks/\w+/results/\S+\.json) -->"
_TABLE = re.compile(rf"<!-- table (.+?) of {_FILE}\n(.*?)<!-- end -->\n", re.DOTALL)
_FIGURE = re.compile(rf"<!-- figure (.+?) of {_FILE}")
_END = re.compile(r"\n\s*(\n|[*-] |\d+\. |\|)|<!--|\Z")  # of a marker's numbers
_NUMBER = re.compile(r"(?<![\w.])\d*\.\d+(?:e-?\d+)?(?!\d|\.\d)")  # and no version, 0.1.0
_PROGRAM = re.compile(r"^(?:<!-- printed -->\n```text|```(?:python|bash|json|yaml|bibtex))\n"
                      r".*?^```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*[A-Za-z_][^`\n]*`|\]\([^)\s]*\)|arXiv:\S+")
_NO_COMMENT = re.compile(r"^(?!# ).*$", re.MULTILINE)  # in a notebook


@functools.cache
def _made(kind: str, name: str, file: str) -> Any:
    """What the function of a marker makes of its file."""
    makers: dict[str, Any] = TABLES if kind == "table" else FIGURES
    if name not in makers:
        raise ValueError(f"{name!r} is no {kind}: it must be one of {', '.join(makers)}.")
    path = ROOT / file
    if not path.exists():
        raise ValueError(f"{file} is not there: run the command that makes it.")
    return makers[name](json.loads(path.read_text(encoding="utf-8")))


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """`text` with spaces where the pattern is, so that places stay what they are."""
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _sentences(page: pathlib.Path, text: str) -> str:
    """What is left of a page when tables, programs and code are blank."""
    for pattern in (_TABLE, _PROGRAM, _CODE) if page.suffix == ".md" else (_NO_COMMENT, _CODE):
        text = _blank(pattern, text)
    return text


def _like(value: float, shown: str) -> str:
    """A number with the digits that are shown."""
    made = f"{value:.{len(shown.partition('.')[2])}f}"
    return made.removeprefix("0") if shown.startswith(".") else made


def _figures(text: str, sentences: str) -> tuple[str, str]:
    """The page with its marked figures made anew, and `sentences` without them.

    Raises:
      ValueError: for a marker of nothing, or with other than as many numbers as it is for.
    """
    rest = sentences
    for marker in reversed(list(_FIGURE.finditer(sentences))):  # from the end: places stay
        name, file = marker.groups()
        values = _made("figure", name, file)
        stop = _END.search(sentences, marker.end())
        end = len(sentences) if stop is None else stop.start()
        result = list(_NUMBER.finditer(sentences, marker.end(), end))
        if len(result) != len(values):
            raise ValueError(f"{name!r} is of {len(values)} numbers, and {len(result)} follow it.")
        for place, value in reversed(list(zip(result, values, strict=True))):
            text = text[:place.start()] + _like(value, place[0]) + text[place.end():]
        rest = rest[:marker.start()] + re.sub(r"[^\n]", " ", rest[marker.start():end]) + rest[end:]
    return text, rest


def checked(page: pathlib.Path, text: str, constants: dict[str, str]) -> tuple[str, list[str]]:
    """A page with its tables and figures made anew, and what is wrong with the rest of it.

    Args:
      page: its path.
      text: what it says.
      constants: words with a number that is not measured, and what it is.

    Raises:
      ValueError: for a marker of nothing, or with other than as many numbers as it is for.
    """
    wrong, sentences = [], _sentences(page, text)
    for words, reason in constants.items():
        pattern = re.compile(r"\s+".join(map(re.escape, words.split())))
        if not (reason and _NUMBER.search(words) and pattern.search(sentences)):
            wrong.append(f"{page.name} does not say {words!r}, which constants.toml lists")
        sentences = _blank(pattern, sentences)
    text, rest = _figures(text, sentences)
    wrong += [f"{page.name}, line {rest.count(chr(10), 0, found.start()) + 1}: {found[0]} is "
              "neither marked nor listed in constants.toml" for found in _NUMBER.finditer(rest)]

    def made(found: re.Match[str]) -> str:
        name, file, _ = found.groups()
        return f"<!-- table {name} of {file} -->\n{_made('table', name, file)}<!-- end -->\n"

    return _TABLE.sub(made, text), wrong


def main(argv: list[str] | None = None) -> int:
    """Writes the figures, or checks them."""
    p = report.Parser(__file__, __doc__.splitlines()[0])
    p.add_argument("--check", action="store_true", help="write nothing; fail where a page differs")
    args = p.parse_args(argv)
    listed = tomllib.loads(CONSTANTS.read_text(encoding="utf-8"))
    wrong = [f"constants.toml lists {name}, which is no page"
             for name in sorted(set(listed) - {page.name for page in PAGES})]
    tables, figures = set(TABLES), set(FIGURES)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        tables -= {found[0] for found in _TABLE.findall(text)}
        figures -= {found[0] for found in _FIGURE.findall(text)}
        try:
            new, more = checked(page, text, listed.get(page.name, {}))
        except ValueError as error:
            new, more = text, [f"{page.name}: {error}"]
        wrong += more
        if new != text and args.check:
            wrong.append(f"other figures than in the result files: {page.name}; "
                         "python -m benchmarks.figures writes them")
        elif new != text:
            page.write_text(new, encoding="utf-8")
    wrong += [f"no page has the {kind} {name}" for kind, left in (("table", tables),
                                                                  ("figure", figures))
              for name in sorted(left)]
    for line in wrong:
        report.say(line)
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
