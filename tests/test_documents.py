"""Documents say what is so: their programs run as pasted, and what they name is there.

A fenced block is run, or says above it why not:

    <!-- not run: needs a file of yours -->

A block of text below `<!-- printed -->` is what the program above it prints, to the letter. A
quotation (`>`) below `<!-- quoted -->` is a part of that, in lines of another length.

A block of Python below `<!-- file: NAME.py -->` is that file, which later blocks import.

Blocks of Python run in one namespace a page, in order; those of README each alone. Of the shell,
`python -m jaxminimax ...` runs here; the two commands that a newcomer tests with run in `.ci/run`.
Blocks of other languages are output or data, and no programs.
"""

import importlib
import json
import pathlib
import re
import runpy
import shlex
import sys
from typing import NamedTuple

import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax.__main__ import main
from jaxminimax.accounting.statement_text import RELATIONS
from jaxminimax.algorithms import ALGORITHMS
from tests.helpers.words import one_line

ROOT = pathlib.Path(__file__).parents[1]
RUN = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")))
PAGES = (*RUN, "CHANGELOG.md", "SECURITY.md")
# whose programs take longest: they run every night
LONG = {f"docs/{name}.md" for name in (
    "accounting", "choosing", "cookbook", "fairness", "for_data_scientists",
    "for_privacy_officers", "for_researchers", "people", "scale", "serving", "several_runs",
    "tables", "training_loops", "tuning", "variational_inequalities", "worst_group",
    "your_own_problem")}
DATA = {"text", "bibtex", "json", "yaml"}  # languages of what is no program
REASON = re.compile(r"<!-- not run: \S.* -->")
PRINTED, QUOTED = "<!-- printed -->", "<!-- quoted -->"
FILE = re.compile(r"<!-- file: (\w+)\.py -->")
ELSEWHERE = {"<!-- tests -->", "<!-- slow tests -->"}  # `.ci/run` runs them
FOLDERS = ("benchmarks", "docs", "jaxminimax", "notebooks", "tests", ".ci", ".github")

every_page = pytest.mark.parametrize("page", PAGES)


class Block(NamedTuple):
    """A fenced block: its language, the line above it, its first line's number, its text."""

    language: str
    above: str
    line: int
    text: str

    @property
    def waived(self):
        return bool(REASON.fullmatch(self.above)) or self.above in ELSEWHERE


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text):
    """The fenced blocks of a page, in order."""
    actual, start, lines = [], None, text.splitlines()
    for k, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = k
        else:
            above = lines[start - 1] if start else ""
            actual.append(Block(lines[start][3:].strip(), above, start + 2,
                                "\n".join(lines[start + 1:k])))
            start = None
    assert start is None, f"the block that begins in line {start} has no end"
    return actual


def prose(text):
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def commands(block):
    """The commands of a shell block, without comments; a line that ends in \\ goes on."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [x for x in (shlex.split(line, comments=True) for line in lines) if x]


def runs_here(command):
    return command[:3] == ["python", "-m", "jaxminimax"]


def unaccounted(block):
    """Whether a block is neither run, nor waived, nor data."""
    if block.waived or block.language in DATA | {"python"}:
        return False
    return block.language != "bash" or not all(map(runs_here, commands(block)))


def execute(block, page, namespace):
    """As pasted; a traceback shows the page's own lines."""
    if block.language == "python":
        code = "\n" * (block.line - 1) + block.text
        exec(compile(code, str(ROOT / page), "exec"), namespace)
    else:
        for command in commands(block):
            assert main(command[3:]) == 0, " ".join(command)


def fresh():
    return {"__name__": "document"}


# --- programs ---


@pytest.mark.parametrize("page", [pytest.param(
    page, marks=pytest.mark.nightly if page in LONG else pytest.mark.slow) for page in RUN])
def test_what_is_printed_as_a_program_runs(page, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    namespace, stated = fresh(), [""]
    for block in blocks(read(page)):
        if block.above == PRINTED:
            assert stated[-1] == block.text + "\n"
        elif file := FILE.fullmatch(block.above):
            (tmp_path / f"{file[1]}.py").write_text(block.text + "\n", encoding="utf-8")
            sys.modules.pop(file[1], None)
            importlib.invalidate_caches()
        elif not block.waived and block.language in ("python", "bash"):
            execute(block, page, fresh() if page == "README.md" else namespace)
            stated.append(capsys.readouterr().out)
    if page == "README.md":
        assert "differential privacy for one record" in "".join(stated)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in RUN if QUOTED in read(page)])
def test_what_is_quoted_is_printed_by_the_block_above_it(page, capsys):
    before, *quotations = read(page).split(QUOTED)
    for quotation in quotations:
        execute(blocks(before)[-1], page, fresh())
        lines = re.match(r"\n((?:>.*\n)+)", quotation)[1]
        assert one_line(re.sub("^> ", "", lines, flags=re.MULTILINE)) in one_line(
            capsys.readouterr().out)
        before += quotation


def test_sentences_of_statements_that_are_stored_are_those_of_today():
    """In outputs of notebooks, which `python -m benchmarks.notebooks` writes, and in quotations."""
    texts = {path.name: "".join(
        "".join(output.get("text", ""))
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        for output in cell.get("outputs", ())) for path in ROOT.glob("notebooks/*.ipynb")}
    texts |= {page: read(page).replace("\n> ", "\n") for page in RUN if QUOTED in read(page)}
    stored = [(name, one_line(relation)) for name, text in texts.items()
              for relation in re.findall(r"\(neighbouring\s+data\s+sets:\s+([^)]*)\)", text)]
    assert len(stored) > 3
    today = list(RELATIONS.values())
    assert [(name, relation) for name, relation in stored if relation not in today] == []


@pytest.mark.parametrize("page", RUN)
def test_every_block_is_run_or_says_why_not(page):
    assert [b for b in blocks(read(page)) if unaccounted(b)] == []


@pytest.mark.parametrize(("text", "kept"), [
    ("```bash\nls\n```", False),
    ("```\nx\n```", False),
    ("```sh\npython -m jaxminimax explain\n```", False),
    ("```bash\npython -m jaxminimax epsilon gda  # cheap\nls\n```", False),
    ("<!-- not run:  -->\n```bash\nls\n```", False),
    ("<!-- not run: slow -->\n\n```bash\nls\n```", False),
    ("<!-- not run: slow -->\n```bash\nls\n```", True),
    ("<!-- tests -->\n```bash\nls\n```", True),
    ("```bash\npython -m jaxminimax epsilon \\\n gda\n```", True),
    ("```text\nout\n```", True),
])
def test_a_block_that_is_neither_is_found(text, kept):
    (block,) = blocks(text)
    assert unaccounted(block) is not kept


@pytest.mark.slow
def test_the_picture_of_the_layers_is_drawn(tmp_path, monkeypatch):
    """From the imports as they are now."""
    picture = tmp_path / "layers.svg"
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.setattr(sys, "argv", ["layers.py", str(picture)])
    made = runpy.run_path(str(ROOT / "docs/layers.py"), run_name="__main__")
    parts, stored = (re.findall(r">(\w+)</text>", path.read_text(encoding="utf-8"))
                     for path in (picture, ROOT / "docs/layers.svg"))
    assert "mechanism" in parts
    assert parts == stored  # the one in the repository is of today's imports
    arrows = {(a, b) for a, into in made["imports"]().items() for b in into}
    assert ("algorithms", "mechanism") in arrows
    assert ("mechanism", "algorithms") not in arrows


@pytest.mark.slow
def test_every_picture_is_drawn_by_its_command(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pictures.py", str(tmp_path)])
    names = runpy.run_path(str(ROOT / "docs/pictures.py"), run_name="__main__")
    files = {path.name for path in (ROOT / "docs/pictures").glob("*.svg")}
    assert {path.name for path in tmp_path.iterdir()} == files
    for file in files:  # those in the repository are of today's results
        drawn, stored = (np.array(re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", (
            folder / file).read_text(encoding="utf-8")), float)
            for folder in (tmp_path, ROOT / "docs/pictures"))
        np.testing.assert_allclose(drawn, stored, atol=1.5, err_msg=file)
    for answer in (*names["QUESTIONS"].values(), names["OTHERWISE"]):
        assert set(re.findall(r"\w+", answer)) & set(ALGORITHMS), answer


# --- what is named ---


@every_page
def test_links_lead_somewhere(page):
    base = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(read(page))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = base / path if path else ROOT / page
        assert file.exists(), target
        # the site has no other files
        assert file.suffix != ".py", f"{target}: name it in `backquotes`"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-")
                              for h in headings}, target


@every_page
def test_files_and_commands_that_are_named_exist(page):
    text = read(page)
    known = "|".join(map(re.escape, FOLDERS))
    for name in re.findall(rf"`((?:{known})/[\w./-]*)`", prose(text)):
        assert (ROOT / name).exists(), name
    programs = {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__"):
                p.read_text() for p in ROOT.glob("benchmarks/**/*.py")}
    sources = "".join(programs.values())
    for module, flags in re.findall(r"python -m (benchmarks(?:\.\w+)+)([^`|\n]*)", text):
        assert "__main__" in programs.get(module, ""), module
        for flag in re.findall(r"(?<=\s)--[a-z][\w-]*", flags):
            assert f'"{flag}"' in sources, f"benchmarks.{module} {flag}"


def test_commands_that_results_name_exist():
    results = sorted(ROOT.glob("benchmarks/**/results/*.json"))
    names = {name for path in results for name in re.findall(
        r"python -m (benchmarks(?:\.\w+)+)", path.read_text(encoding="utf-8"))}
    assert len(names) > 20
    for name in names:
        place = ROOT / name.replace(".", "/")
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), name


def test_every_folder_of_benchmarks_has_its_question():
    folders = {path.parent.name for path in ROOT.glob("benchmarks/*/__init__.py")}
    section = read("CONTRIBUTING.md").partition("\n## Benchmarks\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`benchmarks/(\w+)`", section)) == folders


@every_page
def test_names_of_the_library_are_its_own(page):
    """`jmm.a.b` is there, wherever a page says it."""
    for name in set(re.findall(r"\bjmm((?:\.[A-Za-z_]\w*)+)", read(page))):
        thing = jmm
        for part in name[1:].split("."):
            assert hasattr(thing, part), f"jmm{name}"
            thing = getattr(thing, part)


def test_every_page_is_linked_from_the_first_two():
    for first, prefix in (("README.md", "docs/"), ("docs/index.md", "")):
        linked = set(re.findall(r"\]\(([^)#\s]+)", read(first)))
        missing = {prefix + p.name for p in ROOT.glob("docs/*.md")} - linked - {"index.md"}
        assert missing == set(), first


def test_the_citation_has_the_version():
    assert f"\nversion: {jmm.__version__}\n" in read("CITATION.cff")


def test_the_first_page_is_short():
    assert len(read("README.md").splitlines()) <= 120
