"""Tables: rows are encoded one by one, settings are of public numbers, all of it is charged."""

import json
import math
import re
import subprocess
import sys

import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import jaxminimax as jmm
from jaxminimax import __main__ as main
from jaxminimax.apps.tables import (
    Category,
    Number,
    Schema,
    defaults,
    linear,
    scorer,
    statistics,
    train,
)
from jaxminimax.apps.tables import files as files_of_tables
from jaxminimax.apps.tables.records import Groups, by_person, group_of_persons, records, scaled
from jaxminimax.estimators import PrivateAUCClassifier, PrivateRegressor
from jaxminimax.releases import sums

COLUMNS = {"age": Number(18, 90), "gain": Number(0, 1e5, log=True, missing=True),
           "work": Category(("state", "private", 3))}
SCHEMA = Schema(COLUMNS, "y", ">50K")


def frame(n=60, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "age": rng.uniform(0, 120, n), "gain": rng.exponential(1000, n),
        "work": rng.choice(["state", "private", "3.0", "?"], n),
        "y": rng.choice([">50K", "<=50K"], n), "who": rng.integers(0, n // 3, n)})


def made(n=2000, seed=0):
    """Labels that follow a line in two of three columns."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"a": rng.normal(40, 10, n), "b": rng.uniform(0, 1, n),
                          "c": rng.choice(["u", "v"], n)})
    odds = (table.a - 40) / 5 + 3 * (table.b - 0.5)
    table["y"] = (rng.uniform(size=n) < 1 / (1 + np.exp(-odds))).astype(int)
    return table, Schema({"a": Number(0, 80), "b": Number(0, 1), "c": Category(("u", "v"))}, "y", 1)


# --- encoding ---


@pytest.mark.parametrize("cell", ["text", None, np.nan, 1e300, -np.inf, "", "91"])
@pytest.mark.parametrize("column", ["age", "gain", "work"])
def test_a_cell_changes_its_own_row_and_no_other(column, cell):
    table = frame().astype(object)
    before = SCHEMA.features(table)
    table.loc[7, column] = cell
    after = SCHEMA.features(table)
    assert np.array_equal(np.delete(before, 7, 0), np.delete(after, 7, 0))
    assert np.all(np.isfinite(after))
    assert np.all(np.abs(after) <= 1)


def test_ranges_are_linear_clip_and_mark_what_is_missing():
    x = Number(-1, 3).encode(np.array([-1.0, 1, 3, 9, np.nan]))[:, 0]
    assert np.array_equal(x, [-1, 0, 1, 1, 0])
    x = Number(0, math.e**2 - 1, log=True, missing=True).encode(["0", math.e - 1, "n/a"])
    assert np.allclose(x, [[-1, 0], [0, 0], [0, 1]], atol=1e-7)


def test_values_are_the_same_in_text_and_numbers():
    kind = Category((1, "2.0", "x"))
    assert kind.values == ("1", "2", "x")
    for cells in ([1, 2, 7], [1.0, 2.0, 7.0], ["1", " 2 ", "7"], ["1.0", "2.0", None]):
        assert np.array_equal(kind.encode(cells), [[1, 0, 0], [0, 1, 0], [0, 0, 0]])
    assert np.array_equal(Category((0, 1)).encode([True, False]), [[0, 1], [1, 0]])


@pytest.mark.parametrize("cell", [None, math.nan, math.inf, -math.inf, 10**5000, -10**400, pd.NA,
                                  pd.NaT, "", "nan", "1e999", b"x"], ids=lambda x: type(x).__name__)
def test_no_cell_is_refused_as_that_would_tell_of_it(cell):
    for column in COLUMNS.values():
        made = column.encode(np.array([cell, "1"], object))
        assert np.all(np.abs(made) <= 1)
    y = SCHEMA.labels({"y": np.array([cell, ">50K"], object)})
    assert set(np.nan_to_num(y, nan=0.5)) <= {0, 0.5, 1}
    assert all(np.all(np.isfinite(x)) for x in records(np.zeros((2, 1), np.float32), y))


def test_frames_dictionaries_and_arrays_give_the_same_features():
    table = frame()
    full = SCHEMA.features(table)
    for other in (table.astype(object), {k: table[k].to_list() for k in table},
                  {k: table[k].to_numpy() for k in table}, table.astype(str)):
        assert np.array_equal(SCHEMA.features(other), full)


@pytest.mark.parametrize(("record", "message"), [
    ({"columns": {"a": {"range": [0, 1]}}}, "label is missing"),
    ({"label": {"name": "y", "positive": 1}}, "columns is missing"),
    ({"label": {"name": "y", "positive": 1}, "columns": {"a": {}}}, r"columns.a.*range"),
    ({"label": {"name": "y", "positive": 1}, "columns": {"a": {"range": [1, 1]}}}, "low < high"),
    ({"label": {"name": "y", "positive": 1}, "columns": {"a": {"range": [0, math.inf]}}},
     r"columns.a.range\[1\] must be"),
    ({"label": {"name": "y", "positive": 1}, "columns": {"a": {"range": [0, np.ones(1)]}}},
     r"columns.a.range\[1\] must be"),
    ({"label": {"name": "y", "positive": 1}, "columns": {"a": {"range": [-1, 1], "log": True}}},
     "log"),
    ({"label": {"name": "y", "positive": 1}, "columns": {"a": {"categories": ["u", "u"]}}},
     "different"),
    ({"label": {"name": "y", "positive": 1}, "columns": {"a": {"ranges": [0, 1]}}},
     r"columns\.a\.range is missing"),
    ({"label": {"name": "y", "positive": 1}, "columns": {"y": {"range": [0, 1]}}}, "feature"),
    ({"label": {"name": "y"}, "columns": {"a": {"range": [0, 1]}}}, "positive"),
    ({"label": {"name": "y", "positive": 1}, "columns": {"a": {"range": [0, 1]}},
      "groups": {"name": "g"}}, "values"),
])
def test_a_schema_that_is_wrong_is_refused(record, message):
    with pytest.raises(ValueError, match=message):
        Schema.from_dict(record)


WIDE = [(-9e307, 9e307), (-1.7e308, 1.7e308), (0, 10**400), (-1e151, 0.0), (0.0, 5e-324),
        (1e149, 1e149 * (1 - 1e-16)), (-math.inf, 0), (0, math.nan), (-10**400, 10**400)]


@pytest.mark.parametrize("ends", WIDE, ids=lambda ends: f"{str(ends[0])[:9]}")
def test_a_range_that_no_cell_could_be_placed_in_is_refused_at_every_door(ends):
    """With an infinite width every record would count as absent, after epsilon is spent."""
    low, high = ends
    x = np.zeros((4, 1))
    for door in (
            lambda: Number(low, high), lambda: Number(low, high, missing=True),
            lambda: Schema({"a": Number(0, 1)}, "y", target=Number(low, high)),
            lambda: Schema.from_dict({"label": {"name": "y", "positive": "1"},
                                      "columns": {"a": {"range": [low, high]}}}),
            lambda: Schema.from_dict({"label": {"name": "y", "range": [low, high]},
                                      "columns": {"a": {"range": [0, 1]}}}),
            lambda: PrivateAUCClassifier(bounds=(low, high)).fit(x, [0, 1, 0, 1]),
            lambda: PrivateRegressor(bounds=(0, 1), label_range=(low, high)).fit(x, [0, 1, 0, 1])):
        with pytest.raises(ValueError, match=r"range(\[.\])? must"):
            door()


@given(st.floats(-1e150, 1e150), st.floats(0, 300), st.booleans(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_every_range_that_is_taken_places_its_ends_and_its_middle(low, decades, log, narrow):
    """-1, 0 and 1, with finite coefficients, in float64 as in the float32 of the features."""
    low = abs(low) if log else low
    high = low + 10.0 ** (decades - 150)
    kind = np.float32 if narrow else float
    with np.errstate(over="ignore"):
        low, high = kind(low), kind(high)
    ends = [math.log1p(e) if log else float(e) for e in (low, high)]
    if not (max(map(abs, (float(low), float(high)))) <= 1e150 and ends[1] - ends[0] >= 1e-150):
        with pytest.raises(ValueError, match="range must"):
            Number(low, high, log=log)
        return
    column = Number(low, high, log=log)
    assert type(column.low) is type(column.high) is float
    schema = Schema({"a": column}, "y", "1")
    cells = [column.low, column.high, math.nan, -math.inf, math.inf]
    assert schema.features({"a": cells})[:, 0].tolist() == [-1.0, 1.0, 0.0, -1.0, 1.0]
    inside = schema.features({"a": np.linspace(0, 1, 9) * (high - low) + low})
    assert np.isfinite(inside).all()
    assert (np.diff(inside[:, 0]) >= 0).all()
    one = scorer.Scorer(schema, np.array([1.0, 0.5]), scorer.Moments(
        np.zeros(1), np.ones(1), 0.5), None, {})
    assert np.isfinite(np.append(*one.linear())).all()


def test_a_schema_is_its_record():
    full = Schema(COLUMNS, "y", "1", "who", 5, "g", ("u", "v"), True)
    assert Schema.from_dict(full.to_dict()) == full


# --- persons ---


def test_a_person_is_one_record_of_at_most_so_many_rows():
    table = frame()
    index = by_person(len(table), table.who, 2)
    assert len(index) == table.who.nunique()
    for rows in index:
        kept = rows[rows >= 0]
        owner = table.who[kept[0]]
        assert np.array_equal(kept, np.flatnonzero(table.who == owner)[:2])
    rows = records(SCHEMA.features(table), SCHEMA.labels(table), index)
    assert np.allclose(rows.weight.sum(1), 1)
    assert not np.any(rows.x[rows.weight == 0]), "another person's row"
    assert not np.any(rows.y[rows.weight == 0])
    assert np.any(rows.weight == 0)


# --- what is released ---


@pytest.mark.slow
def test_no_row_is_longer_than_what_moments_are_clipped_to():
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.choice([-1.0, 1.0], (300, 2)), rng.uniform(-1, 1, (300, 2))])
    table = pd.DataFrame({"age": 54 + 36 * x[:, 0], "gain": np.where(
        rng.uniform(size=600) < 0.3, np.nan, np.expm1((x[:, 1] + 1) / 2 * math.log1p(1e5))),
        "work": rng.choice(["state", "private", "3", "?"], 600),
        "y": rng.choice([">50K", "no"], 600)})
    rows = records(SCHEMA.features(table), SCHEMA.labels(table))
    lengths = np.sum(rows.x[:, 0, :2] ** 2 + (rows.x[:, 0, :2] ** 2 - 1) ** 2, 1) + (
        rows.x[:, 0, 2] - 0.5) ** 2 + np.sum((rows.x[:, 0, 3:] - 1 / 3) ** 2, 1) + 0.25
    assert lengths.max() <= statistics.psi_length(SCHEMA) ** 2 + 1e-5
    longest = np.argsort(lengths)[-20:]
    bound = statistics.psi_length(SCHEMA) ** 2
    assert lengths[longest].min() > 0.99 * bound, "the bound is attained"
    for part in (np.arange(600), longest):
        silent = statistics.one_release(len(part), statistics.psi_length(SCHEMA), 0.0)
        actual = statistics.release_moments(jax.random.key(0), silent, *(a[part] for a in rows),
                                            SCHEMA)
        assert np.allclose(actual.mean, rows.x[part, 0].mean(0), atol=2e-6), "the clip binds"
        assert np.allclose(actual.second, (rows.x[part, 0] ** 2).mean(0), atol=2e-6)


def test_everything_is_charged_and_nothing_twice():
    for n, epsilon in ((300, 0.5), (5000, 1.0), (40_000, 4.0)):
        chosen = defaults(n, SCHEMA, epsilon=epsilon, delta=1e-6)
        cost = jmm.epsilon(chosen.mechanism(), 1e-6)
        assert 0.9999 * epsilon < cost <= epsilon
        part = jmm.epsilon(chosen.moments, 1e-6)
        assert 0 < part < cost, "the moments are part of it"


def test_too_few_records_release_their_prior_alone():
    assert not defaults(30, SCHEMA, epsilon=0.3, delta=1e-6).standardise
    assert defaults(30_000, SCHEMA, epsilon=0.3, delta=1e-6).standardise
    assert "has noise of length" in defaults(30, SCHEMA, epsilon=0.3, delta=1e-6).explain()


def test_rows_are_no_longer_than_the_square_root_of_two():
    by = scorer.Moments(np.array([0.3, -2.0]), np.array([0.1, 5.0]), 0.5)
    x = scaled(np.random.default_rng(0).uniform(-1, 1, (500, 2)) * 9, by, 0.0025)
    assert np.linalg.norm(x, axis=1).max() <= math.sqrt(2) * (1 + 1e-6)


def test_groups_with_labels_are_balanced_first_and_others_are_looked_at_afterwards():
    sizes = (9000, 600, 400)
    how = dict(epsilon=1.0, delta=1e-6, sizes=sizes)
    chosen = defaults(10_000, SCHEMA, by_label=True, **how)
    assert chosen.method == "minimax"
    assert chosen.hyper.query.groups == "all"
    assert 0.9999 < jmm.epsilon(chosen.mechanism(), 1e-6) <= 1
    few = defaults(1000, SCHEMA, epsilon=1.0, delta=1e-6, sizes=(900, 60, 40), by_label=True)
    assert few.method == "balanced", "their losses would be noise"
    other = defaults(10_000, SCHEMA, **how)
    assert other.method == "average"
    assert other.losses.sizes == sizes
    assert 0.9999 < jmm.epsilon(other.mechanism(), 1e-6) <= 1
    # the noise of all groups at once against that of the average, by the weight of a record
    alone = defaults(10_000, SCHEMA, epsilon=1.0, delta=1e-6, preconditioned=False)
    assert alone.losses is None
    balanced = defaults(10_000, SCHEMA, method="balanced", **how)
    assert math.isclose(balanced.time / alone.time, 3 * 400 / 10_000, rel_tol=1e-9)
    with pytest.raises(ValueError, match="needs groups"):
        defaults(10_000, SCHEMA, epsilon=1.0, delta=1e-6, method="minimax")


@pytest.mark.parametrize("new", ["!", "050x", "zzz"])
def test_putting_one_person_for_another_changes_one_person_of_the_training_set(new):
    """Whatever the name of the new one: the order of the names says nothing."""
    names = np.array([f"{k:03d}" for k in range(100)], object)
    before = files_of_tables.held_out(200, np.repeat(names, 2), 0.3, 0)
    for place in range(0, 100, 9):
        other = names.copy()
        other[place] = new
        after = files_of_tables.held_out(200, np.repeat(other, 2), 0.3, 0)
        assert before.sum() == after.sum() == 60
        assert np.all(after[::2] == after[1::2])
        left = set(names[~before[::2]]) - set(other[~after[::2]])
        assert len(left) <= 1


def test_groups_are_of_persons():
    index = np.array([[0, 1], [2, -1]])
    assert np.array_equal(group_of_persons(np.array([1, 1, 0]), index), [1, 0])
    with pytest.raises(ValueError, match="rows of several groups"):
        group_of_persons(np.array([1, 0, 0]), index)
    made = Groups(np.array([0, 1, 2, 1]), ("a", "b")).cut(np.array([0, 1, 1, 0]))
    assert made.names == ("a, negative", "a, positive", "b, negative", "b, positive")
    assert np.array_equal(made.number, [0, 3, 4, 2])
    with pytest.raises(ValueError, match="'a, positive' has no row"):
        _ = made.sizes


@pytest.mark.slow
def test_ranges_hold_most_of_what_is_there():
    rng = np.random.default_rng(0)
    values = np.stack([rng.normal(50, 5, 5000), rng.exponential(1e4, 5000), np.zeros(5000)], -1)
    described = statistics.one_release(5000, math.sqrt(3), 5.0)
    actual = statistics.release_ranges(jax.random.key(0), described, values[:, None],
                                       np.ones((5000, 1)))
    for column, one in zip(values.T, actual, strict=True):
        assert np.mean((column >= one.low) & (column <= one.high)) > 0.95
    assert actual[0].low > 20
    assert actual[0].high < 90
    assert statistics.cells(np.array([np.nan, -np.inf, np.inf])).tolist() == [
        statistics.CELLS - 1, 0, statistics.CELLS - 2]


# --- the whole ---


@pytest.mark.slow
def test_a_scorer_is_saved_and_loaded(tmp_path):
    table, schema = made(400)
    one = train(table, schema, epsilon=2.0, delta=1e-6, key=jax.random.key(0))
    one.save(tmp_path / "model.json")
    for path in (tmp_path / "model.json", tmp_path, str(tmp_path)):  # the file, or its folder
        again = scorer.Scorer.load(path)
        assert np.array_equal(again.decision_function(table), one.decision_function(table))
        assert again.statement.to_json() == one.statement.to_json()
    stated = one.statement  # means, second moments of rows, the calibration, and all steps
    assert stated.allowed == sum(int(x.split(" release")[0]) for x in stated.sampling)
    assert len(stated.sampling) == 4
    (tmp_path / "other").write_text("{}")
    for path in ("other", "none"):
        with pytest.raises(ValueError, match="no saved scorer"):
            scorer.Scorer.load(tmp_path / path)


WITHOUT_JAX = """
import sys


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jax", "jaxlib", "optax", "scipy", "dp_accounting",
                                  "pandas"):
            raise ImportError(name)


sys.meta_path.insert(0, Refuse())
import jaxminimax
from jaxminimax import __main__

one = jaxminimax.tables.Scorer.load(sys.argv[2])
assert one.stated["epsilon"] == 1.0
raise SystemExit(__main__.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("floor", [None, 0.01])
def test_a_scorer_scores_without_jax_to_the_byte(tmp_path, floor):
    columns = COLUMNS | {"size": Number(-1e-3, 1e6, missing=True)}
    schema = Schema(columns, "y", ">50K", owner="who", most=3, groups="work", group_values=("a",))
    rng = np.random.default_rng(2)
    by = scorer.Moments(*rng.uniform(-0.5, 1, (2, schema.width)), 0.3)
    scorer.Scorer(schema, rng.normal(size=schema.width + 1), by, floor,
                  {"epsilon": 1.0}).save(tmp_path / "model.json")
    table = frame(40).astype(object).assign(size=rng.normal(0, 1e6, 40))
    for row, cell in enumerate(("", "text", "1e999", "-inf", " 7 ", "True", "?", "1_0")):
        table.iloc[row, row % 3] = cell
    table.to_csv(tmp_path / "t.csv", index=False)
    words = ["predict", str(tmp_path), str(tmp_path / "t.csv"), "--out", str(tmp_path / "scores")]
    subprocess.run([sys.executable, "-c", WITHOUT_JAX, *words], check=True, capture_output=True)
    table = files_of_tables.read(tmp_path / "t.csv")
    scores = scorer.Scorer.load(tmp_path).decision_function(table)
    lines = (tmp_path / "scores").read_text().splitlines()
    assert lines[0] == "score,probability,decision"
    assert [line.split(",")[0] for line in lines[1:]] == [f"{score:.9g}" for score in scores]


class StoppedError(Exception):
    """Ends a call before the training."""


@pytest.mark.slow
def test_ranges_means_and_training_have_keys_of_their_own(monkeypatch):
    used = []

    def stop(key, *_, **__):
        used.append(key)
        raise StoppedError

    release = sums.compiled_release
    monkeypatch.setattr(sums, "compiled_release", lambda key, *given: (
        used.append(key), release(key, *given))[1])
    monkeypatch.setattr(linear, "fit", stop)
    rng = np.random.default_rng(0)
    root = jax.random.key(7)
    monkeypatch.setattr(PrivateAUCClassifier, "_key", lambda self: root)
    with pytest.raises(StoppedError):
        PrivateAUCClassifier().fit(np.where(np.eye(50, 2), np.inf, rng.normal(size=(50, 2))),
                                   np.arange(50) % 2)
    words = {tuple(jax.random.key_data(key).tolist()) for key in (root, *used)}
    assert len(used) == 3
    assert len(words) == 4


@pytest.mark.slow
def test_persons_are_what_the_statement_is_for():
    table, schema = made(400)
    table["who"] = np.arange(400) // 2
    schema = Schema(schema.columns, "y", 1, "who", 2)
    one = train(table, schema, epsilon=2.0, delta=1e-6, key=jax.random.key(0))
    assert "one person" in one.statement.unit
    assert "all 200 records" in " ".join(one.statement.sampling)


@pytest.mark.nightly
def test_the_default_is_near_a_regression_without_privacy():
    gaps = []
    for seed in range(3):
        table, schema = made(8000, seed)
        test, rows = table[:2000], table[2000:]
        one = train(rows, schema, epsilon=1.0, delta=1e-6, key=jax.random.key(seed))
        best = LogisticRegression().fit(schema.features(rows), schema.labels(rows))
        gaps.append(roc_auc_score(test.y, best.decision_function(schema.features(test)))
                    - roc_auc_score(test.y, one.decision_function(test)))
    assert np.mean(gaps) < 0.01, gaps


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    table, schema = made(600)
    table.to_csv(folder / "t.csv", index=False)
    columns = "".join(f"[columns.{name}]\n" + (
        f"range = {one['range']}\n" if "range" in one else f"categories = {one['categories']}\n")
        for name, one in schema.to_dict()["columns"].items())
    (folder / "s.toml").write_text(f"[label]\nname = 'y'\npositive = 1\n{columns}")
    return folder


@pytest.mark.slow
def test_train_and_predict_from_the_command_line(files, capsys):
    table, model = str(files / "t.csv"), str(files / "m")
    assert main.main(["train", table, "--schema", str(files / "s.toml"), "--epsilon", "2",
                      "--delta", "1e-6", "--test-fraction", "0.25", "--seed", "0", "--out", model,
                      "--json"]) == 0
    stated = json.loads(capsys.readouterr().out)
    assert {"auc", "auc_reference", "epsilon", "delta", "statement"} <= set(stated)
    assert 0.9999 * 2 < stated["epsilon"] <= 2
    assert stated["auc"] > 0.7
    assert main.main(["predict", model, table, "--out", str(files / "scores.csv")]) == 0
    page = (files / "m" / "report.html").read_text()
    assert page.count("<svg") == 1
    assert "http" not in re.sub(r'xmlns[^=]*="[^"]*"|http://www.w3.org\S*', "", page), "one file"
    scores = pd.read_csv(files / "scores.csv").score
    assert roc_auc_score(pd.read_csv(table).y, scores) > 0.7


@pytest.mark.parametrize(("words", "message"), [
    (["--schema", "none.toml"], "none.toml"),
    ([], "needs --schema"),
    (["--schema", "S", "--test-fraction", "1.5"], "test fraction"),
    (["--schema", "S", "--delta", "1"], "delta"),
    (["--schema", "S", "--epsilon", "-1"], "epsilon"),
])
def test_the_command_refuses_with_the_reason(files, capsys, words, message):
    words = [str(files / "s.toml") if w == "S" else w for w in words]
    assert main.main(["train", str(files / "t.csv"), "--epsilon", "1", "--delta", "1e-6",
                      *words]) == 2
    assert message in capsys.readouterr().err
