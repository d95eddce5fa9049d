"""Rows that two objects name differently never meet: every door, and every form of an index."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import jaxminimax as jmm
from jaxminimax.apps.tables import NoteWarning, Number, Schema, Scorer, scorer, train
from jaxminimax.base import row_names
from jaxminimax.estimators import (
    PrivateAUCClassifier,
    PrivateClassifier,
    PrivateFairClassifier,
    PrivateRegressor,
    PrivateWorstGroupClassifier,
)
from jaxminimax.releases import sums

N = 12
RNG = np.random.default_rng(0)
INDEXES = {
    "range": pd.RangeIndex(N), "text": pd.Index([f"r{k}" for k in range(N)]),
    "dates": pd.date_range("2000", periods=N), "floats with NaN": pd.Index([np.nan, *range(1, N)]),
    "several levels": pd.MultiIndex.from_product([range(N // 2), list("ab")]),
    "categories": pd.CategoricalIndex([f"r{k}" for k in range(N)]),
    "twice": pd.Index([k // 2 for k in range(N)]),
    "mixed kinds": pd.Index([0, "a", *range(2, N)], dtype=object)}
REFUSED = "name their rows differently.*reset_index.*loc"
every_index = pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
SCHEMA = Schema({"a": Number(-1, 1), "b": Number(-1, 1)}, "l", "1", "who", 4)


def column(index, values=None):
    return pd.Series(np.arange(len(index)) if values is None else values, index=index)


def wrong(index):
    """Indexes that are not this one: another order, another start, fewer, others."""
    yield index[::-1]
    yield index[[1, 0, *range(2, N)][:N]] if index[0] != index[1] else index[::-1]
    yield pd.RangeIndex(5, 5 + N)
    yield index[:-1]
    yield pd.Index([f"q{k}" for k in range(N)])


# --- the rule ---


@every_index
def test_equal_names_meet_and_others_are_refused_with_the_fix(index):
    row_names.check({"X": column(index), "owners": column(index.copy())}, column(index.copy()))
    for other in wrong(index):
        for one in (column(other), column(other).to_frame(), {"a": column(other)}):
            with pytest.raises(ValueError, match=REFUSED):
                row_names.check({"X": column(index), "owners": one})
            with pytest.raises(ValueError, match=REFUSED):
                row_names.check({"X": one, "owners": column(index)})


@every_index
def test_labels_are_read_by_position_unless_they_have_the_same_names_in_another_order(index):
    frame = column(index).to_frame()
    with pytest.raises(ValueError, match="y and X.*" + REFUSED):
        row_names.check({"X": frame}, column(index[::-1]))
    for other in (pd.RangeIndex(50, 50 + N), pd.Index([f"q{k}" for k in range(N)]),
                  pd.MultiIndex.from_product([range(N // 2), list("cd")])):
        row_names.check({"X": frame}, column(other))
    row_names.check({"X": frame.to_numpy()}, column(index[::-1]))


@pytest.mark.parametrize("plain", [
    list, tuple, np.array, pa.array, pl.Series, pd.Index, lambda x: {"a": x}],
    ids=["list", "tuple", "numpy", "pyarrow", "polars", "index itself", "dict"])
def test_what_has_no_names_is_read_by_position(plain):
    rows = plain(list(range(N)))
    row_names.check({"X": column(INDEXES["text"]), "owners": rows}, rows)
    row_names.check({"X": rows, "owners": column(INDEXES["text"])}, rows)
    row_names.check({"X": rows, "owners": rows, "groups": None}, column(INDEXES["text"]))


def test_the_message_has_no_name_of_a_row():
    with pytest.raises(ValueError, match="owners and X") as error:
        row_names.check({"X": column(INDEXES["text"]), "owners": column(INDEXES["text"][::-1])})
    assert "r1" not in str(error.value)


# --- every door, before anything is released ---


@pytest.fixture(autouse=True)
def silent(monkeypatch):
    """Refuses every release."""
    monkeypatch.setattr(sums, "compiled_release", None)


FRAME = pd.DataFrame({"a": RNG.uniform(-1, 1, N), "b": RNG.uniform(-1, 1, N)})
LABEL = column(FRAME.index, np.arange(N) % 2)
WHO = column(FRAME.index, np.arange(N) // 2)
GROUP = column(FRAME.index, np.arange(N) // 2 % 2)
HOW = {"epsilon": 2.0, "delta": 1e-6}
MODELS = {
    "auc": (PrivateAUCClassifier(**HOW), {}), "classes": (PrivateClassifier(**HOW), {}),
    "number": (PrivateRegressor(**HOW, label_range=(0, 1)), {}),
    "worst group": (PrivateWorstGroupClassifier(**HOW), {"groups": GROUP}),
    "fair": (PrivateFairClassifier(**HOW), {"groups": GROUP})}
every_model = pytest.mark.parametrize(("model", "given"), MODELS.values(), ids=MODELS)


def moved(rows):
    return rows.iloc[[1, 0, *range(2, N)]]


@every_model
@pytest.mark.parametrize("form", ["frame", "dictionary", "array"])
def test_a_fit_refuses_rows_of_other_names(model, given, form):
    schema = {"a": Number(-1, 1), "b": Number(-1, 1)}
    X = {"frame": FRAME, "dictionary": dict(FRAME), "array": FRAME.to_numpy()}[form]
    model = model.set_params(schema=None if form == "array" else schema,
                             bounds=(-1, 1) if form == "array" else None)
    cases = [(X, LABEL, given | {"owners": moved(WHO)})]
    if given:
        cases += [(X, LABEL, {"groups": moved(GROUP), "owners": WHO})]
    if form == "array":  # its rows have no names: those of the others must be equal
        cases = [(X, moved(LABEL), given | {"owners": WHO}), *cases[1:]]
    else:
        cases += [(X, moved(LABEL), given)]
    if form == "dictionary":
        cases += [({"a": FRAME.a, "b": moved(FRAME.b)}, LABEL, given)]
    for X, y, rest in cases:
        with pytest.raises(ValueError, match=REFUSED):
            model.fit(X, y, **rest)
    with pytest.raises(ValueError, match=REFUSED):
        model.score({"a": FRAME.a, "b": moved(FRAME.b)} if form == "dictionary" else FRAME,
                    moved(LABEL))
    with pytest.raises(ValueError, match="sample_weight and X.*" + REFUSED):
        model.score(FRAME, LABEL, sample_weight=moved(WHO))


@pytest.mark.parametrize("name", ["a", "b", "l", "who"])
def test_training_and_scoring_refuse_a_dictionary_of_columns_in_several_orders(name):
    columns = {**FRAME, "l": LABEL, "who": WHO, "unread": moved(WHO)}
    columns[name] = moved(columns[name])
    with warnings.catch_warnings(), pytest.raises(ValueError, match="column .*" + REFUSED):
        warnings.simplefilter("ignore", NoteWarning)
        train(columns, SCHEMA, **HOW)
    one = Scorer(SCHEMA, np.ones(3), scorer.Moments(np.zeros(2), np.ones(2), 0.5), None, {})
    for read in (one.decision_function, one.predict, one.predict_proba, SCHEMA.features,
                 SCHEMA.odd):
        if name in "ab":
            with pytest.raises(ValueError, match=REFUSED):
                read(columns)
        else:  # not read
            assert len(read(columns))
    columns = {"a": FRAME.a, "b": FRAME.b.to_numpy()}
    assert np.array_equal(one.decision_function(columns), one.decision_function(FRAME))


def test_groups_and_metrics_refuse_rows_of_other_names():
    for given in ((FRAME.a, moved(GROUP)), ((FRAME.a, moved(FRAME.b)), FRAME.a.to_numpy())):
        with pytest.raises(ValueError, match=REFUSED):
            jmm.problems.by_group(*given)
    assert jmm.problems.by_group((FRAME.a, FRAME.b), GROUP)[1] == (6, 6)
    for measure, given in ((jmm.metrics.auc, (FRAME.a, moved(LABEL))),
                           (jmm.metrics.parity_violation, (LABEL, moved(GROUP))),
                           (jmm.metrics.odds_violation, (LABEL, LABEL, moved(GROUP)))):
        with pytest.raises(ValueError, match=REFUSED):
            measure(*given)
    with pytest.raises(TypeError, match="to_numpy"):
        jmm.problems.by_person(FRAME.a, WHO, 2)
