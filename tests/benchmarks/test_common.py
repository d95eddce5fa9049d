"""What all benchmarks share: the record of the command that made a result."""

import pathlib

from benchmarks.common import report


def test_a_recorded_command_has_no_path_of_a_machine(monkeypatch):
    here = pathlib.Path(report.__file__).parents[2]
    monkeypatch.setattr("sys.argv", ["x.py", "--json", f"{here}/benchmarks/a.json", "/else/b.json",
                                     "c.json"])
    assert report.command().endswith("--json benchmarks/a.json b.json c.json")


def test_cells_of_one_commit_and_the_same_seeds_share_a_line():
    def cell(**seeds):
        return {"seeds": {name[1:]: {"commit": made} for name, made in seeds.items()}}

    text = report.runs({"a": cell(s0="1234567+", s1="1234567+"),
                        "b": cell(s0="1234567", s1="1234567"),
                        "c": cell(s2="1234567", s7=None)})
    assert text.splitlines()[2:] == ["| 1234567 | 0 to 1 | a; b |", "| 1234567 | 2 to 2 | c |",
                                     "| none | 7 to 7 | c |"]
