"""Public names are shown, and explain themselves by an example that runs.

An example is what stands after `>>>` in a docstring. It runs by itself, with the imports of
`NAMES`, which the reference on the documentation site says too.
"""

import ast
import doctest
import importlib
import inspect
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.algorithms import ALGORITHMS

ROOT = pathlib.Path(__file__).parents[1]
FACES = ("problems", "metrics", "mechanism", "audit", "tables", "estimators", "placement",
         "solvers", "solvers.groups", "noise", "averaging", "schedules", "accounting", "types")
NAMES = {"jax": jax, "jnp": jnp, "np": np, "jmm": jmm, "Saddle": Saddle}
# whose examples take longest: they run every night
LONG = {"audit.audit", "audit.signal", "estimators.PrivateClassifier",
        "estimators.PrivateRegressor", "estimators.PrivateWorstGroupClassifier",
        "estimators.PrivateWorstGroupRegressor",
        "metrics.vi_gap", "metrics.worst_group_risk",
        "noise.floored_laplace",
        "problems.multiclass_auc", "problems.release_prior", "problems.release_shares", "sweep",
        "tables.train", "tune"}
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def face(name):
    """A module that users hold names of."""
    held = getattr(jmm, name, None)
    return held if held is not None else importlib.import_module(f"jaxminimax.{name}")


def public():
    """Whatever is to have an example, by its shortest public name."""
    actual = {name: getattr(jmm, name) for name in dir(jmm)} | {
        f"{name}.{x}": getattr(face(name), x) for name in FACES for x in dir(face(name))}
    kept, seen = {}, set()
    for name, value in actual.items():
        is_algorithm = isinstance(value, types.ModuleType) and name in ALGORITHMS
        if (inspect.isclass(value) or inspect.isroutine(value) or is_algorithm) and (
                id(value) not in seen):
            kept[name] = value
            seen.add(id(value))
    return kept


PUBLIC = public()


def examples(text):
    return doctest.DocTestParser().get_examples(inspect.cleandoc(text or ""))


def run(name, text):
    """Fails with the report of the first line that prints something else."""
    test = doctest.DocTest(examples(text), dict(NAMES), name, None, None, None)
    stated = []
    failed = doctest.DocTestRunner(optionflags=LOOSE).run(test, out=stated.append).failed
    assert failed == 0, "".join(stated)


@pytest.mark.parametrize("name", [pytest.param(
    name, marks=pytest.mark.nightly if name in LONG else pytest.mark.slow) for name in PUBLIC])
def test_an_example_runs(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run(name, PUBLIC[name].__doc__)


def test_every_public_name_has_an_example():
    assert [name for name, value in PUBLIC.items() if not examples(value.__doc__)] == []


def test_an_example_that_is_wrong_is_found():
    run("right", ">>> 1 + 1\n2")
    with pytest.raises(AssertionError, match="Expected"):
        run("wrong", ">>> 1 + 1\n3")


def test_no_example_stands_where_it_is_not_run():
    """Those of names that are not public would be."""
    run_here = {inspect.cleandoc(value.__doc__) for value in PUBLIC.values()}
    aside = {"public_names"}
    for path in (ROOT / "jaxminimax").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
                    text := ast.get_docstring(node)) and ">>>" in text:
                assert text in run_here or node.name in aside, f"{path.name}: {node.name}"


def test_the_rule_of_what_is_public_is_an_example_itself():
    run("public_names", importlib.import_module("jaxminimax.base").public_names.__doc__)


@pytest.mark.parametrize("name", ["", *FACES, *(f"algorithms.{name}" for name in ALGORITHMS)])
def test_tab_completion_shows_public_names_only(name):
    held = importlib.import_module(f"jaxminimax.{name}") if name.startswith("alg") else (
        face(name) if name else jmm)
    shown = dir(held)
    assert shown == sorted(set(shown))
    assert not [x for x in shown if x.startswith("_")]
    assert {"jax", "jnp", "np", "Any", "Callable", "math"}.isdisjoint(shown)
    inner = {"base", "releases", "drivers", "gradients", "options", "algorithms"}
    modules = {x for x in shown if isinstance(getattr(held, x), types.ModuleType)}
    assert inner.isdisjoint(modules)
    assert modules <= ({"groups"} if name == "solvers" else set() if name else set(dir(jmm)))
