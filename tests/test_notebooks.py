"""Notebooks run from top to bottom, quickly, and their two forms are the same."""

import json
import pathlib
import runpy

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

FOLDER = pathlib.Path(__file__).parents[1] / "notebooks"


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda p: p.stem)
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


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda p: p.stem)
def test_the_two_forms_of_a_notebook_agree(path):
    cells = json.loads(path.read_text())["cells"]
    code = ["".join(c["source"]).strip() for c in cells if c["cell_type"] == "code"]
    script = path.with_suffix(".py").read_text()
    assert code
    assert all(block in script for block in code)
    assert all(c.get("execution_count") for c in cells if c["cell_type"] == "code")
