"""A model's file is what its page says: the page's programs score as the library does."""

import itertools
import json
import math
import pathlib
import re
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from jaxminimax.apps.tables import Category, Note, Number, Schema, Scorer
from jaxminimax.apps.tables.records import scaled
from jaxminimax.apps.tables.scorer import Moments
from jaxminimax.base.saved_json import FORMATS

DOCS = pathlib.Path(__file__).parents[3] / "docs"
SCHEMA = Schema({"age": Number(18, 90), "gain": Number(0, 1e5, log=True, missing=True),
                 "size": Number(-1e-3, 1e6, missing=True),
                 "work": Category(("state", "private", 3, 1))},
                "y", ">50K", owner="who", most=3, groups="work", group_values=("state",))
NUMBERS = ("", "text", None, -math.inf, 1e300, 0.0, 17.0, 18.0, 55.5, 91.0, 1e5, 99.0)
WORDS = ("state", " private ", "3.0", "3", "?", "", None, "TRUE", "+3.0", "State")


# labels that have no positive value, each with its outputs and what training releases of it
OTHERS = {Category(("low", "middle", "high")): ((3,), np.array([0.2, 0.3, 0.5])),
          Number(0, 120): ((), np.array([0.1, 0.4]))}


def scorers(kinds=("binary", "classes", "number")):
    """Scorers with features as they are, and scaled, with weights far from one."""
    rng = np.random.default_rng(2)
    labels = [(SCHEMA, ((), 0.3)), *(
        (Schema(SCHEMA.columns, "y", target=target), shape) for target, shape in OTHERS.items())]
    for floor, (schema, (outputs, prior)) in itertools.product((None, 0.0025), labels):
        by = Moments(rng.uniform(-0.5, 0.5, SCHEMA.width),
                             rng.uniform(0.3, 1.0, SCHEMA.width), prior)
        weights = 20 * rng.normal(size=(SCHEMA.width + 1, *outputs))
        if schema.kind in kinds:
            yield Scorer(schema, weights, by, floor, {"epsilon": 1.0},
                         group_losses={"state": 0.3} if schema is SCHEMA else None,
                         notes=(Note("age", "it is constant", "drop it"),))


def rows(n=300):
    rng = np.random.default_rng(1)
    odd = {name: [NUMBERS[k] for k in rng.integers(0, len(NUMBERS), n)]
           for name in ("age", "gain", "size")}
    return odd | {"work": [WORDS[k] for k in rng.integers(0, len(WORDS), n)]}


PROGRAM = """
import json, sys


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {refused}:
            raise ImportError(name)


sys.meta_path.insert(0, Refuse())
sys.path.insert(0, {folder!r})
model, columns = json.load(open({folder!r} + "/model.json")), json.load(sys.stdin)
"""
PLAIN = """
import plain_scorer
rows = [dict(zip(columns, cells)) for cells in zip(*columns.values())]
print(json.dumps([plain_scorer.score(model, row) for row in rows]))
"""
NUMPY = """
import numpy_scorer, plain_scorer
columns = {name: [(plain_scorer.text if name == "work" else plain_scorer.number)(cell)
                  for cell in cells] for name, cells in columns.items()}
print(json.dumps(numpy_scorer.scores(model, columns).tolist()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("program", "refused"), [
    (PLAIN, ("jax", "jaxminimax", "numpy")), (NUMPY, ("jax", "jaxminimax", "pandas"))],
    ids=["plain", "numpy"])
def test_programs_of_the_page_score_as_the_library_does(tmp_path, program, refused):
    """With missing, unseen and out-of-range cells, where the library cannot be imported."""
    page = (DOCS / "serving.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"<!-- file: (\w+\.py) -->\n```python\n(.*?)```", page, re.DOTALL):
        assert sum(bool(line.strip()) for line in text.splitlines()) <= 30
        (tmp_path / name).write_text(text, encoding="utf-8")
    for scorer in scorers():
        scorer.save(tmp_path / "model.json")
        code = PROGRAM.format(refused=refused, folder=str(tmp_path)) + program
        out = subprocess.run([sys.executable, "-c", code], input=json.dumps(rows()), check=True,
                             capture_output=True, text=True)
        scores = scorer.decision_function(rows()).reshape(300, -1)
        assert np.ptp(scores) > 1
        np.testing.assert_allclose(json.loads(out.stdout), scores, rtol=0, atol=1e-6)


@pytest.mark.parametrize("table", [None, 'the "old" table'])
def test_the_expression_in_sql_scores_as_the_library_does(table):
    columns = {"age": Number(18, 90), 'a "gain"': Number(0, 1e5, log=True, missing=True),
               "work": Category(("state", "o'neil", "3"))}
    schema, draw = Schema(columns, "y", "1"), np.random.default_rng(0)
    by = Moments(*draw.uniform(0.2, 0.5, (2, schema.width)), 0.3)
    cells = {"age": (17.0, 18.0, 50.5, 91.0, None), 'a "gain"': (-1.0, 0.0, 3e3, 1e6, None),
             "work": ("state", " o'neil ", "3", "State", "", None)}
    rows = {name: [each[k] for k in draw.integers(0, len(each), 200)]
            for name, each in cells.items()}
    base = sqlite3.connect(":memory:")
    name = '"t"' if table is None else '"the ""old"" table"'
    base.execute(f'CREATE TABLE {name} (age REAL, "a ""gain""" REAL, work TEXT)')
    base.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", zip(*rows.values(), strict=True))
    for floor in (None, 0.0025):
        scorer = Scorer(schema, 5 * draw.normal(size=schema.width + 1), by, floor, {})
        scores = base.execute(f"SELECT {scorer.sql(table)} FROM {name}").fetchall()
        np.testing.assert_allclose([x for x, in scores], scorer.decision_function(rows), atol=1e-9)


def test_a_model_is_as_its_published_schema_says():
    import jsonschema

    check = jsonschema.Draft202012Validator(json.loads((FORMATS / "model.schema.json").read_text()))
    for scorer in scorers():
        record = json.loads(json.dumps(scorer.to_json()))
        check.validate(record)
        assert len({one["name"] for one in record["features"]}) == SCHEMA.width
        for broken in ({"format": 2}, {"features": []}, {"intercepts": ["0"]}, {"more": 1}):
            assert not check.is_valid(record | broken)


@pytest.mark.parametrize("record", [[], {}, {"format": 2}, {"format": 1, "label": {"kind": "x"}},
                                    {"format": 1, "label": {"kind": "binary"}}])
def test_a_file_that_is_no_model_is_refused(tmp_path, record):
    (tmp_path / "model.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="is no saved scorer"):
        Scorer.load(tmp_path)


def test_scores_are_those_of_the_features_that_were_trained_on():
    """`scaled` in float32 for training, and one column after the other in float64 for scoring."""
    for scorer in scorers():
        trained = scaled(SCHEMA.features(rows()), scorer.moments, scorer.floor)
        np.testing.assert_allclose(scorer.decision_function(rows()), trained @ scorer.weights,
                                   atol=1e-4)
