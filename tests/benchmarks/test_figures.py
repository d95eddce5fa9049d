"""What documents print is what the committed result files hold."""

import pathlib

import pytest

from benchmarks import figures
from benchmarks.common import report


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """The pages, in a folder where they may be changed."""
    pages = []
    for page in figures.PAGES:
        copy = tmp_path / page.name
        copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
        pages.append(copy)
    monkeypatch.setattr(figures, "PAGES", tuple(pages))
    return {page.name: page for page in pages}


@pytest.mark.slow
def test_the_documents_say_what_the_files_hold():
    assert figures.main(["--check"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("page", "old", "new"), [
    ("reproductions.md", "(90.11)", "(91.1)"), ("performance.md", "| small CNN |", "| large CNN |"),
    ("performance.md", "| 0.86 |", "| 0.68 |"),
    ("performance.md", "| on the host |", "| on a host |"),
])
def test_another_figure_is_found_and_put_right(copies, capsys, page, old, new):
    right = copies[page].read_text(encoding="utf-8")
    copies[page].write_text(right.replace(old, new), encoding="utf-8")
    assert copies[page].read_text(encoding="utf-8") != right
    assert figures.main(["--check"]) == 1
    assert page in capsys.readouterr().err
    assert figures.main([]) == 0
    assert copies[page].read_text(encoding="utf-8") == right


@pytest.mark.slow
def test_a_table_that_is_taken_out_is_missed(copies):
    page = copies["performance.md"]
    page.write_text(page.read_text(encoding="utf-8").replace("<!-- table noise of", "<!-- of"),
                    encoding="utf-8")
    assert figures.main(["--check"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("page", "old", "new"), [
    ("reproductions.md", ".4 to .7", ".9 to .9"),
    ("reproductions.md", "97.53 to 98.77", "97.53 to 99.77"),
    ("reproductions.md", ".09 to .15", ".01 to .02"),
    ("worst_group.md", ".012 and .025", ".112 and .125"),
    ("worst_group.md", "| 10 | 2.65 |", "| 10 | 1.65 |"),
    ("choosing.md", "(0.1040 to 0.0514", "(0.1040 to 0.0154"),
    ("choosing.md", "By theory's step the", "At ε = 8 the gap is .031. By theory's step the"),
    ("tuning.md", "1.45\n", "1.05\n"),
    ("several_runs.md", "0.933", "0.393"),
    ("guarantees.md", "0.06 % to 0.2 %", "0.06 % to 0.1 %"),
    ("README.md", "## Where next", "It is 1.8 times as fast as Opacus.\n\n## Where next"),
    ("07_accounting.py", "probability 0.999 p", "probability 0.9999 p"),
])
def test_a_sentence_with_another_figure_is_found(copies, capsys, page, old, new):
    text = copies[page].read_text(encoding="utf-8")
    assert old in text
    copies[page].write_text(text.replace(old, new), encoding="utf-8")
    assert figures.main(["--check"]) == 1
    assert page in capsys.readouterr().err


@pytest.mark.parametrize("text", [
    "of `0.5`\n", "A gap of .5.\n",
    "A gap of\n0.5 (n = 3)\n", "| a | 0.50 |\n", "```text\n0.5\n```\n",
    "<!-- figure search_noise of benchmarks/accuracy/results/tune.json --> 1.45\n\nand .5\n",
    "* <!-- figure search_noise of benchmarks/accuracy/results/tune.json --> 1.45\n* .5\n",
])
def test_a_number_without_marker_is_found(text):
    new, wrong = figures.checked(pathlib.Path("page.md"), text, {})
    assert new == text
    assert len(wrong) == 1
    assert "neither marked nor listed" in wrong[0]


def test_programs_and_their_outputs_are_not_looked_at():
    text = ("```python\nprint(0.5)\n```\n\n<!-- printed -->\n```text\n0.5\n```\n\n"
            "By `share=0.5`, [see](a/v0.5.md), arXiv:2306.08153, version 0.1.0; a constant of\n"
            "0.75.\n")
    page = pathlib.Path("page.md")
    assert figures.checked(page, text, {"constant of 0.75": "theorem"}) == (text, [])
    assert len(figures.checked(page, text, {"constant of 0.75": ""})[1]) == 1
    assert len(figures.checked(page, text, {"constant of 0.85": "theorem"})[1]) == 2


def test_a_constant_that_no_page_says_is_found(copies, tmp_path, monkeypatch, capsys):
    listed = tmp_path / "constants.toml"
    listed.write_text(figures.CONSTANTS.read_text(encoding="utf-8")
                      + '\n["none.md"]\n"of 0.5" = "theorem"\n', encoding="utf-8")
    monkeypatch.setattr(figures, "CONSTANTS", listed)
    assert figures.main(["--check"]) == 1
    assert "none.md" in capsys.readouterr().err


@pytest.mark.parametrize("text", [
    "<!-- table other of benchmarks/papers/results/table2.json -->\n<!-- end -->\n",
    "<!-- table table2 of benchmarks/speed/results/none.json -->\n<!-- end -->\n",
    "<!-- figure other of benchmarks/accuracy/results/tune.json --> 1.45\n",
    "<!-- figure search_noise of benchmarks/accuracy/results/tune.json --> none\n",
    "<!-- figure search_noise of benchmarks/accuracy/results/tune.json --> 1.45 and 1.61\n",
])
def test_a_marker_that_nothing_makes_is_refused(text):
    with pytest.raises(ValueError, match=r"is no |is not there|is of 1 numbers"):
        figures.checked(pathlib.Path("page.md"), text, {})


def test_a_result_tells_how_it_was_made(monkeypatch):
    monkeypatch.setattr("sys.argv", ["some/folder/tool.py", "--json", "a file.json"])
    monkeypatch.delattr("__main__.__spec__", raising=False)
    made = report.environment()
    assert made["command"] == "tool.py --json 'a file.json'"
    assert made["commit"] is None or len(made["commit"].rstrip("+")) == 40
