"""What documents print is what the committed result files hold."""

import pytest

from benchmarks import figures, report


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


def test_the_documents_say_what_the_files_hold():
    assert figures.main(["--check"]) == 0


@pytest.mark.parametrize(("page", "old", "new"), [
    ("reproductions.md", "91.58", "91.85"), ("performance.md", "| small CNN |", "| large CNN |"),
    ("performance.md", "| 0.86 |", "| 0.68 |"), ("performance.md", "| 1.79 |", "| 1.19 |"),
])
def test_another_figure_is_found_and_put_right(copies, capsys, page, old, new):
    right = copies[page].read_text(encoding="utf-8")
    copies[page].write_text(right.replace(old, new), encoding="utf-8")
    assert copies[page].read_text(encoding="utf-8") != right
    assert figures.main(["--check"]) == 1
    assert page in capsys.readouterr().err
    assert figures.main([]) == 0
    assert copies[page].read_text(encoding="utf-8") == right


def test_a_table_that_is_taken_out_is_missed(copies):
    page = copies["performance.md"]
    page.write_text(page.read_text(encoding="utf-8").replace("<!-- table noise of", "<!-- of"),
                    encoding="utf-8")
    assert figures.main(["--check"]) == 1


@pytest.mark.parametrize("marker", ["<!-- table other of benchmarks/results/table2.json -->",
                                    "<!-- table table2 of benchmarks/results/none.json -->"])
def test_a_table_that_nothing_makes_is_refused(marker):
    with pytest.raises(ValueError, match=r"is no table|is not there"):
        figures.rewritten(f"{marker}\n<!-- end -->\n")


def test_a_result_tells_how_it_was_made(monkeypatch):
    monkeypatch.setattr("sys.argv", ["some/folder/tool.py", "--json", "a file.json"])
    monkeypatch.delattr("__main__.__spec__", raising=False)
    made = report.environment()
    assert made["command"] == "tool.py --json 'a file.json'"
    assert made["commit"] is None or len(made["commit"].rstrip("+")) == 40
