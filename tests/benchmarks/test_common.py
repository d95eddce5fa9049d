"""What all benchmarks share: the record of the command that made a result."""

import pathlib

from benchmarks.common import report


def test_a_recorded_command_has_no_path_of_a_machine(monkeypatch):
    here = pathlib.Path(report.__file__).parents[2]
    monkeypatch.setattr("sys.argv", ["x.py", "--json", f"{here}/benchmarks/a.json", "/else/b.json",
                                     "c.json"])
    assert report.command().endswith("--json benchmarks/a.json b.json c.json")
