"""The names at the top level: few, and each is there."""

import importlib
import pathlib
import subprocess
import sys

import pytest

import jaxminimax as jmm
from jaxminimax.algorithms import ALGORITHMS

ROOT = pathlib.Path(__file__).parents[1]


def test_there_are_45_names_at_most_but_for_algorithms_and_each_is_there():
    assert len(set(dir(jmm)) - set(ALGORITHMS)) <= 45
    assert all(hasattr(jmm, name) for name in dir(jmm))


def test_what_never_was_there_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'Leger'"):
        _ = jmm.Leger


@pytest.mark.slow
def test_importing_it_loads_nothing_that_is_optional():
    """In a fresh process, that no other test has imported for."""
    optional = ("matplotlib", "orbax", "sklearn", "pandas", "pyarrow", "tqdm")
    code = f"import sys, jaxminimax; print([x for x in {optional} if x in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         cwd=ROOT)
    assert out.stdout.strip() == "[]"


def test_the_version_is_written_once():
    written = importlib.import_module("jaxminimax.base").VERSION
    assert jmm.__version__ == written
    assert f"\nversion: {written}\n" in (ROOT / "CITATION.cff").read_text()
    assert 'attr = "jaxminimax.base.VERSION"' in (ROOT / "pyproject.toml").read_text()
