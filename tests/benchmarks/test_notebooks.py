"""Notebooks run from top to bottom, quickly, and their two forms are the same."""

import json
import pathlib
import runpy

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

from benchmarks import notebooks

FOLDER = pathlib.Path(__file__).parents[2] / "notebooks"


PATHS = sorted(FOLDER.glob("*.py"))


@pytest.mark.nightly
@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_a_notebook_runs(path, monkeypatch):
    """With fewer sizes or runs, where that is what it takes to be quick."""
    monkeypatch.setenv("JAXMINIMAX_QUICK", "1")
    monkeypatch.setattr(plt, "show", lambda: None)
    mpl.use("Agg")
    try:
        made = runpy.run_path(str(path))
    finally:
        plt.close("all")
    if path.stem.startswith("01"):
        assert -2.4 < made["slope"] < -1.6


class Cells(list):
    """What the command needs of a notebook."""

    cells = ()


@pytest.mark.parametrize("quick", [False, True])
def test_the_command_writes_what_ran_and_says_what_did_not(quick, monkeypatch, capsys):
    class Failed(Exception):
        pass

    written = []

    class Client:
        exceptions = type("exceptions", (), {"CellExecutionError": Failed})

        def __init__(self, notebook, **_):
            self.notebook = notebook

        def execute(self):
            if self.notebook == ["07_accounting"]:
                raise Failed("AssertionError: no")

    Client.NotebookClient = Client
    known = {"jupytext": type("J", (), {"read": staticmethod(lambda p: Cells([p.stem]))}),
             "nbclient": Client, "ipykernel": None,
             "nbformat": type("F", (), {"write": staticmethod(
                 lambda n, p: written.append(p.name))})}
    monkeypatch.setattr(notebooks.importlib, "import_module", known.__getitem__)
    monkeypatch.setenv("JAXMINIMAX_QUICK", "")
    more = ["--quick"] if quick else []
    assert notebooks.main(["01_first_private_saddle", *more]) == 0
    assert notebooks.main(["01_first_private_saddle", "07_accounting", *more]) == 1
    assert written == [] if quick else ["01_first_private_saddle.ipynb"] * 2
    assert "failed: 07_accounting" in capsys.readouterr().err


def test_the_command_names_what_it_lacks(monkeypatch, capsys):
    def absent(name):
        raise ImportError(name=name)

    monkeypatch.setattr(notebooks.importlib, "import_module", absent)
    for given, stated in ((["09"], "the notebooks are 01_first"), ([], "pip install 'jaxminimax[")):
        with pytest.raises(SystemExit):
            notebooks.main(given)
        assert stated in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda p: p.stem)
def test_the_two_forms_of_a_notebook_agree(path):
    cells = json.loads(path.read_text())["cells"]
    code = ["".join(c["source"]).strip() for c in cells if c["cell_type"] == "code"]
    script = path.with_suffix(".py").read_text()
    assert code
    assert all(block in script for block in code)
    assert all(c.get("execution_count") for c in cells if c["cell_type"] == "code")
