"""The names at the top level: few, and what stood there before says where it is now."""

import ast
import importlib
import pathlib
import subprocess
import sys

import pytest

import jaxminimax as jmm
from jaxminimax.algorithms import ALGORITHMS

ROOT = pathlib.Path(__file__).parents[1]


def test_there_are_44_names_at_most_but_for_algorithms_and_each_is_there():
    assert len(set(dir(jmm)) - set(ALGORITHMS)) <= 44
    assert all(hasattr(jmm, name) for name in dir(jmm))


@pytest.mark.parametrize(("name", "module"), sorted(jmm.MOVED.items()))
def test_an_old_name_warns_and_is_the_same_object(name, module):
    assert name not in dir(jmm)
    assert module in dir(jmm)
    with pytest.warns(DeprecationWarning, match=rf"is jaxminimax\.{module}\.{name} since"):
        held = getattr(jmm, name)
    assert held is getattr(getattr(jmm, module), name)
    assert name in dir(getattr(jmm, module))


def test_what_never_was_there_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'Leger'"):
        _ = jmm.Leger


@pytest.mark.slow
def test_the_package_itself_uses_no_old_name():
    """Warnings are errors in tests; this is for what no test runs."""
    for path in [*ROOT.glob("jaxminimax/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert node.value.id != "jmm" or node.attr not in jmm.MOVED, f"{path}: {node.attr}"
            if isinstance(node, ast.ImportFrom) and node.module == "jaxminimax":
                assert not {x.name for x in node.names} & set(jmm.MOVED), path


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
