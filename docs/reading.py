"""Words in a sentence and Flesch-Kincaid grades of pages and statements.

    python docs/reading.py [PAGE ...]

Without pages: README, the landing page, the readers' pages, guarantees and three statements.

Programs, tables, headings and links are left out, and an item of a list is a sentence. A number
or a piece of code counts as one short word, so that their points end no sentence.
"""

import contextlib
import io
import pathlib
import re
import sys

import textstat

from jaxminimax.__main__ import main

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = ("README.md", *(f"docs/{name}.md" for name in (
    "index", "for_data_scientists", "for_privacy_officers", "for_researchers", "quickstart",
    "guarantees")))
RUN = "--n 20000 --noise-multiplier 1.6 --delta 1e-6"
STATEMENTS = {
    "sgda": f"{RUN} --batch-size 200 --rounds 200",
    "gda": f"{RUN} --rounds 50",
    "extragradient": f"{RUN} --batch-size 200 --rounds 100 --people 3",
}
LEFT_OUT = re.compile(r"^```.*?^```$|^\|.*?$|^#.*?$|<!--.*?-->|^---$", re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """The sentences of a page."""
    text = LEFT_OUT.sub("", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    items = re.split(r"(?:^|\n)\s*(?:[-*]|\d+\.)\s+|\n\s*\n", text.replace("**", ""))
    lines = [" ".join(item.split()).rstrip(":;,") for item in items]
    lines = [re.sub(r"`[^`]*`|\S*\d\S*?(?=[,.:;]?\s|$)", "it", line) for line in lines if line]
    return "\n".join(line if line.endswith((".", "?", "!")) else f"{line}." for line in lines)


def scores(text: str) -> tuple[float, float]:
    """Mean words in a sentence, and the Flesch-Kincaid grade."""
    return textstat.avg_sentence_length(text), textstat.flesch_kincaid_grade(text)


def statement(name: str) -> str:
    """What `jaxminimax explain` prints of a run of an algorithm."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(["explain", name, *STATEMENTS[name].split()])
    return out.getvalue()


if __name__ == "__main__":
    pages = sys.argv[1:]
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages or PAGES}
    texts |= {f"statement of {name}": statement(name) for name in STATEMENTS if not pages}
    print("| text | words in a sentence | grade |\n|---|--:|--:|")
    for name, text in texts.items():
        print("| {} | {:.1f} | {:.1f} |".format(name, *scores(prose(text))))
