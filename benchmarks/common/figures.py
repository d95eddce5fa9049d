"""Tables of the documents, written from the committed result files.

    python -m benchmarks.figures [--check]

A table stands between two lines of a page:

    <!-- table NAME of benchmarks/results/FILE.json -->
    ...
    <!-- end -->

and is what the function NAME of `result_tables` makes of that file. Without arguments the tables of
all pages are written anew; `--check` writes nothing, and fails where a page says something else
than its file, or no longer has a table that it had.
"""

import json
import pathlib
import re
import sys

from benchmarks import report
from benchmarks.result_tables import TABLES

ROOT = pathlib.Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_TABLE = re.compile(r"<!-- table (.+?) of (benchmarks/results/\S+\.json) -->\n(.*?)<!-- end -->\n",
                    re.DOTALL)


def rewritten(text: str) -> str:
    """A page with its tables made anew.

    Raises:
      ValueError: for a table that no function here makes, or a file that is not there.
    """
    def made(found: re.Match) -> str:
        name, file, _ = found.groups()
        if name not in TABLES:
            raise ValueError(f"{name!r} is no table: it must be one of {', '.join(TABLES)}.")
        path = ROOT / file
        if not path.exists():
            raise ValueError(f"{file} is not there: run the command that makes it.")
        table = TABLES[name](json.loads(path.read_text(encoding="utf-8")))
        return f"<!-- table {name} of {file} -->\n{table}<!-- end -->\n"

    return _TABLE.sub(made, text)


def main(argv: list[str] | None = None) -> int:
    """Writes the tables, or checks them."""
    p = report.Parser(prog="python -m benchmarks.figures", description=__doc__.splitlines()[0])
    p.add_argument("--check", action="store_true", help="write nothing; fail where a page differs")
    args = p.parse_args(argv)
    stale, seen = [], set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        seen |= {found[0] for found in _TABLE.findall(text)}
        new = rewritten(text)
        if new != text:
            stale.append(page.name)
            if not args.check:
                page.write_text(new, encoding="utf-8")
    if missing := sorted(set(TABLES) - seen):
        report.say(f"no page has the table {', '.join(missing)}")
        return 1
    if args.check and stale:
        report.say(f"other figures than in benchmarks/results: {', '.join(stale)}; "
                   "python -m benchmarks.figures writes them")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
