"""Notes: from public facts before a release, from released moments after it, by every route."""

import csv
import dataclasses
import html
import math
import statistics as normal
import warnings

import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxminimax import __main__ as main
from jaxminimax.apps.tables import (
    Category,
    Charged,
    NoteWarning,
    Number,
    Schema,
    Scorer,
    defaults,
    files,
    notes,
    records,
    scorer,
    statistics,
    train,
)
from jaxminimax.estimators import PrivateAUCClassifier

SCHEMA = Schema({"age": Number(17, 90), "gain": Number(0, 1e5, log=True), "sex": Category("fm"),
                 "job": Category(tuple(map(str, range(20))))}, "y", "yes")
N = 7000
CHOSEN = defaults(N, SCHEMA, epsilon=1.0, delta=1e-6)


def made(n=N, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "age": rng.normal(40, 12, n), "gain": np.where(rng.uniform(size=n) < 0.1, 5000, 0),
        "sex": rng.choice(list("fm"), n), "job": rng.integers(0, 20, n),
        "y": rng.choice(["yes", "no"], n, p=[0.2, 0.8])})


SPOILT = {"age": (lambda x: 12 * x, "upper end.*months"), "gain": (lambda x: "none", "middle"),
          "sex": (lambda x: x.str.upper(), "case and codes"),
          "job": (lambda x: x + 100, "none, have a declared value"),
          "y": (lambda x: x.str.title(), "positive value 'yes'")}


def columns(noted):
    return [note.column for note in noted]


def released(table, key, schema=SCHEMA):
    by = statistics.release_moments(
        key, CHOSEN.moments, schema.features(table)[:, None], schema.labels(table)[:, None],
        np.ones((N, 1), np.float32), schema)
    return notes.after(schema, by, statistics.deviation(CHOSEN.moments), features=True)


# --- before a release ---


@pytest.mark.parametrize(("name", "noted"), [
    ("id", True), ("customer_id", True), ("userId", True), ("Unnamed: 0", True), ("e-mail", True),
    ("birthdate", True), ("age", False), ("paid", False), ("monkey", False), ("valid", False)])
def test_names_of_identifiers_and_dates_are_noted(name, noted):
    assert (notes.doubt(name) is not None) == noted


def test_public_facts_are_noted_without_a_cell():
    assert columns(notes.before(SCHEMA, 500)) == ["job"]
    assert not notes.before(SCHEMA, N, ["age", "sex", "y"])
    (note,) = notes.before(SCHEMA, N, ["age", "height", "y", 7])
    assert "undeclared columns: height, 7" in str(note)


PERSONS = ["patient_id", "user", "email", "account", "userId", "CustomerNo", "client number", "id",
           "e-mail", "phone_number", "Patient ID", "accountno", "last_name", "Name",
           "subject", "uuid"]
FACTS = ["age", "users", "paid", "account_balance", "patient_age", "country_name", "monkey",
         "email_opens", "Unnamed: 0", "index", "visit_date", "number_of_customers", "usage", ""]


@pytest.mark.parametrize("name", [*PERSONS, *FACTS])
def test_a_column_that_looks_like_a_person_is_noted_first_declared_or_not(name):
    """With the fix; not where owners are known, and a column that holds a fact never."""
    wide = dataclasses.replace(SCHEMA, columns={**SCHEMA.columns, name: Number(1, N)})
    for schema, names in ((wide, ()), (wide, [name]), (SCHEMA, ["height", name])):
        first = notes.before(schema, N, [*names, "y"])[:1]
        if name in PERSONS:
            assert columns(first) == [name]
            for part in ("epsilon protects one row", f'[owner] name = "{name}"', "--people"):
                assert part in str(first[0])
        assert ("whose row it is" in "".join(map(str, first))) == (name in PERSONS)
        for known in (notes.before(schema, N, names, owned=True), notes.before(
                dataclasses.replace(schema, owner="who", most=3), N, names)):
            assert "whose row" not in "".join(map(str, known))
    assert "undeclared columns: height." in str(notes.before(SCHEMA, N, ["height", name, "y"])[
        -1]) or name in FACTS


def test_declared_values_and_ranges_say_whether_a_column_can_name_persons():
    """Nearly unique text is known by declared values alone: no cell is read for it."""
    def noted(kind, name="code"):
        return [note.column for note in notes.before(Schema({name: kind}, "y", 1), 100)
                if "whose row it is" in str(note)]

    assert noted(Category(tuple(map(str, range(51))))) == ["code"]
    assert not noted(Category(tuple(map(str, range(50)))))
    assert not noted(Category(("yes", "no")), "account")
    assert not noted(Number(0, 1), "client")
    assert noted(Number(1, 50), "client") == noted(Charged(), "client") == ["client"]


@pytest.mark.parametrize("delta", [1 / 300, 0.01])
def test_a_delta_of_one_over_n_is_refused_unless_allowed(delta):
    table = made(300)
    with pytest.raises(ValueError, match=r"not below 1/n = 0\.00333.*--allow-large-delta"):
        train(table, SCHEMA, epsilon=1.0, delta=delta)
    with pytest.raises(ValueError, match="allow_large_delta=True"):
        PrivateAUCClassifier(delta=delta, bounds=(0, 1)).fit(np.eye(300, 2), np.arange(300) % 2)
    notes.check_delta(delta, 300, True)
    notes.check_delta(0.003, 300, False)


# --- after it ---


def test_right_data_have_no_note():
    mistakes = [released(made(seed=k), jax.random.key(k)) for k in range(20)]
    assert not any(mistakes)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_column_is_noted_with_its_fix(name):
    change, text = SPOILT[name]
    table = made()
    table = table.assign(**{name: change(table[name])})
    mistakes = [released(table, jax.random.key(k)) for k in range(60)]
    assert np.mean([name in columns(one) for one in mistakes]) >= 0.9
    assert not any(set(columns(one)) - {name} for one in mistakes)
    note = next(one[0] for one in mistakes if one)
    with pytest.warns(NoteWarning, match=text):
        notes.warn([note])


def test_thresholds_follow_the_noise():
    """A number at its bound is below the threshold with the stated chance, a wrong one above it."""
    law = normal.NormalDist()
    schema = Schema({"a": Category(("u", "v"))}, "y", 1)
    for noise in (0.001, 0.02, 0.1):
        sure = -law.inv_cdf(0.01 / 3)
        spread = noise * math.sqrt(2)
        threshold = max(0.5 - sure * spread, 1.4 * spread)
        for share, noted in ((threshold - 1e-6, True), (threshold + 1e-6, False)):
            by = scorer.Moments(np.array([share, 0.0]), np.zeros(2), 0.5)
            mistakes = columns(notes.after(schema, by, noise, features=True))
            assert ("a" in mistakes) == noted
    assert not notes.after(schema, by._replace(mean=np.zeros(2)), 0.5, features=True), "too noisy"
    assert not notes.after(schema, by._replace(mean=np.zeros(2)), 0.01, features=False)


@pytest.mark.parametrize(("by_rows", "noise", "noted"), [
    (0.002, 0.002, True), (0.03, 0.002, False), (0.03, 1.0, True)])
def test_the_less_noisy_variance_decides_on_a_narrow_column(by_rows, noise, noted):
    schema = Schema({"a": Number(0, 1)}, "y", 1)
    by = scorer.Moments(np.zeros(1), np.array([0.01]), 0.5)
    mistakes = notes.after(schema, by, 0.02, features=True,
                           of_rows=(np.array([by_rows]), np.array([noise])))
    assert bool(mistakes) == noted


@pytest.mark.parametrize(("prior", "noted"), [(0.02, True), (0.3, False), (0.98, True)])
def test_a_rare_label_is_noted(prior, noted):
    by = scorer.Moments(np.zeros(0), np.zeros(0), prior)
    assert bool(notes.after(SCHEMA, by, 0.005, features=False)) == noted


# --- by every route ---


@pytest.mark.nightly
def test_the_same_notes_by_every_route(tmp_path, capsys):
    table = made(2000).assign(sex="?", extra=1)[["age", "sex", "y", "extra"]]
    kinds = {"age": {"range": [17, 90]}, "sex": {"categories": ["f", "m"]}}
    schema = Schema.from_dict({"columns": kinds, "label": {"name": "y", "positive": "yes"}})
    how = {"epsilon": 4.0, "delta": 1e-6}
    with pytest.warns(NoteWarning, match="declared value"):
        one = train(table, schema, key=jax.random.key(0), **how)
    assert [note.column for note in one.notes] == [None, "sex"]
    one.save(tmp_path / "model.json")
    assert Scorer.load(tmp_path).notes == one.notes
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", NoteWarning)
        fitted = PrivateAUCClassifier(schema=schema.columns, random_state=0, **how).fit(
            table.drop(columns="y"), table.y)
    assert fitted.notes_ == one.notes
    assert {str(w.message) for w in warned if w.category is NoteWarning} == set(map(str, one.notes))
    table.to_csv(tmp_path / "t.csv", index=False)
    assert main.main(["train", str(tmp_path / "t.csv"), "--label", "y", "--positive", "yes",
                      "--numeric", "age=17:90", "--categorical", "sex=f|m", "--epsilon", "4",
                      "--delta", "1e-6", "--out", str(tmp_path / "m"), "--seed", "0"]) == 0
    printed = capsys.readouterr().err
    page = (tmp_path / "m" / "report.html").read_text()
    record = (tmp_path / "m" / "report.json").read_text()
    assert Scorer.load(tmp_path / "m").notes == one.notes
    for note in one.notes:
        assert str(note) in printed
        assert html.escape(str(note)) in page
        assert note.fix in record


# --- bad input ---

SCORER = Scorer(Schema({"a": Number(0, 1)}, "y", "1"), np.zeros(2),
                scorer.Moments(np.zeros(1), np.ones(1), 0.5), None, {})
SECRET = "Alice"
NO_TABLES = {
    "records": [{"a": SECRET, "y": 1}] * 4, "rows": [[SECRET, 1]] * 4, "text": SECRET,
    "array": np.array([[SECRET, "1"]] * 4), "column": pd.Series([SECRET] * 4), "none": None,
    "scalars": {"a": SECRET, "y": 1},
    "no header": pd.DataFrame([[SECRET, "34"]] * 4, columns=[SECRET, "34"])}


@pytest.mark.parametrize("name", NO_TABLES)
def test_what_is_no_table_is_refused_without_printing_a_cell(name):
    table, y = NO_TABLES[name], [0, 1, 0, 1]
    for read in (lambda: train(table, SCORER.schema, epsilon=1.0, delta=1e-6),
                 lambda: SCORER.decision_function(table),
                 lambda: PrivateAUCClassifier(schema=SCORER.schema.columns).fit(table, y),
                 lambda: PrivateAUCClassifier(bounds=(0, 1)).fit(table, y)):
        with pytest.raises((ValueError, TypeError)) as refused:
            read()
        assert SECRET not in str(refused.value)


CELL = st.text(st.sampled_from("a1 ,;|\t\n\"'\ufeff\x00é"), max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=4), st.sampled_from([",", ";", "\t"]))
def test_no_cell_changes_how_many_records_there_are(tmp_path_factory, rows, separator):
    path = tmp_path_factory.mktemp("t") / "t.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=separator, quoting=csv.QUOTE_ALL)
        writer.writerows([("a", "b"), *rows])
    frame = files.read(path)
    assert len(frame) == len(rows)
    assert frame.to_numpy().tolist() == [list(row) for row in rows]


@pytest.mark.slow
def test_the_note_on_persons_comes_first_by_every_route(tmp_path, capsys):
    """By the command, also where the column is dropped; by `check`, the page and estimators."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.uniform(17, 90, 400).round(),
                          "patient_id": np.arange(400) // 4, "height": 1,
                          "y": rng.choice(["yes", "no"], 400)})
    schema = Schema({"age": Number(17, 90)}, "y", "yes")
    how = {"epsilon": 4.0, "delta": 1e-4}
    with pytest.warns(NoteWarning, match="patient_id: by its name it says whose row it is"):
        one = train(table, schema, **how)
    assert columns(one.notes)[:2] == ["patient_id", None]
    assert "patient_id" not in str(one.notes[1])
    for stated in ({"people": 4}, {}):
        owned = schema if stated else dataclasses.replace(schema, owner="patient_id", most=4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoteWarning)
            assert "whose row" not in str(train(table, owned, **how, **stated).notes)
    for X, settled, first in (
            (table[["age", "patient_id"]], {"bounds": (0, 400)}, True),
            (table, {"schema": schema.columns}, True),
            (table[["age", "patient_id"]].to_numpy(), {"bounds": (0, 400)}, False),
            (table, {"schema": schema.columns, "people": 4}, False)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoteWarning)
            fitted = PrivateAUCClassifier(**how, **settled).fit(X, table.y)
        assert (columns(fitted.notes_)[:1] == ["patient_id"]) == first
    table.to_csv(tmp_path / "t.csv", index=False)
    words = [str(tmp_path / "t.csv"), "--label", "y", "--positive", "yes", "--numeric", "age=17:90"]
    assert main.main(["check", *words]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("patient_id: by its name")
    assert main.main(["train", *words, "--epsilon", "4", "--delta", "1e-4", "--out",
                      str(tmp_path / "m")]) == 0
    assert "whose row it is" in capsys.readouterr().err
    page = (tmp_path / "m" / "report.html").read_text()
    assert 0 < page.index("patient_id: by its name") < page.index("What this guarantees")


# --- notes by harm ---

# variances whose root is a twentieth, or a fortieth, of the width of [-1, 1]
USEFUL, USEFUL_FROM_0 = (2 / 20) ** 2, (2 / 40) ** 2


@pytest.mark.parametrize(("kind", "mean", "useful"), [
    (Number(10, 20), 0.4, USEFUL), (Number(-5, 5), 0.0, USEFUL),
    (Number(0, 9), 0.4, USEFUL), (Number(0, 9), -0.5, USEFUL_FROM_0),
    (Number(0, 9, log=True), 0.4, USEFUL_FROM_0)])
@pytest.mark.parametrize("kept", [1.0, 0.5])
def test_a_constant_is_noted_where_the_noise_would_show_a_useful_column(kind, mean, useful, kept):
    """The threshold and the bound, by the normal law alone, with and without second moments."""
    law, schema = normal.NormalDist(), Schema({"a": kind}, "y", 1)
    sure = -law.inv_cdf(0.01 / 3)
    largest = kept * useful / (1.4 + sure)  # noise of a variance at which a note is due

    def noted(variance, noise):
        s, of_rows = noise / math.sqrt(1 + 4 * mean**2), None
        if kept < 1:  # those of rows, with a thirtieth of the noise, decide
            s, of_rows = 30 * s, (np.array([variance]), np.array([noise]))
        by = scorer.Moments(np.array([mean]), np.array([mean**2 + variance]), 0.5)
        return columns(notes.after(schema, by, s, features=True, of_rows=of_rows)) == ["a"]

    for noise in (0.9 * largest, 0.1 * largest):
        threshold = max(kept * (2 / 50) ** 2 - sure * noise, 1.4 * noise)
        assert noted(0.95 * threshold, noise)
        assert not noted(1.05 * threshold, noise)
        assert law.cdf((threshold - kept * useful) / noise) <= 0.01 / 3
    assert not noted(0.0, 1.1 * largest)


@pytest.mark.slow
def test_a_column_of_the_right_schema_has_no_note_and_a_constant_one():
    """Standard scores, logarithms of incomes, counts and temperatures; by moments and rows."""
    n, kinds = 20_000, {
        "score": Number(-6, 6), "income": Number(0, 1e6, log=True), "visits": Number(0, 50),
        "temperature": Number(30, 45), "constant": Number(0, 1)}
    schema = Schema(kinds, "y", "1")
    chosen = defaults(n, schema, epsilon=2.0, delta=1e-6)
    found = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        table = pd.DataFrame({
            "score": rng.normal(size=n), "income": np.exp(rng.normal(10.6, 0.35, n)),
            "visits": rng.poisson(2.0, n), "temperature": rng.normal(37, 0.5, n),
            "constant": 0.7, "y": rng.integers(0, 2, n)})
        x, weight = schema.features(table)[:, None], np.ones((n, 1), np.float32)
        first, second = jax.random.split(jax.random.key(seed))
        by = statistics.release_moments(first, chosen.moments, x, schema.labels(table)[:, None],
                                        weight, schema)
        squares = np.diag(statistics.release_second_moments(
            second, chosen.matrix, records.scaled(x, *chosen.divisors(by)), weight))
        found += columns(notes.after(
            schema, by, statistics.deviation(chosen.moments), features=True, of_rows=(
                statistics.variances(squares, *chosen.divisors(by), chosen.matrix))))
    assert set(found) == {"constant"}
    assert len(found) >= 8


def plain_table(n, seed):
    """Columns of the usual kinds, whose ranges are those of a codebook."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({
        "age": rng.uniform(18, 90, n), "income": np.exp(rng.normal(10.6, 0.7, n)).clip(0, 5e5),
        "visits": rng.poisson(2.0, n), "score": rng.normal(60, 15, n).clip(0, 100),
        "gain": np.where(rng.uniform(size=n) < 0.08, rng.exponential(8000, n), 0),
        "sex": rng.choice(["f", "m"], n)})
    table["y"] = (table.age + rng.normal(0, 15, n) > 54).astype(int)
    return table


RIGHT = {"age": Number(18, 90), "income": Number(0, 5e5, log=True), "visits": Number(0, 50),
         "score": Number(0, 100), "gain": Number(0, 99999), "sex": Category(("f", "m"))}
WRONG_UNITS = {"nothing": {}, "years above 30": {"age": Number(0, 30)},
               "months": {"age": Number(216, 1080)}, "shares": {"score": Number(0, 1)},
               "thousands": {"income": Number(0, 500, log=True)}}


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("unit", WRONG_UNITS)
def test_a_wrong_unit_is_noted_in_nine_of_ten_trainings_and_a_right_schema_in_none(unit, epsilon):
    n, wrong = 5000, WRONG_UNITS[unit]
    schema = Schema({**RIGHT, **wrong}, "y", "1")
    moments = defaults(n, schema, epsilon=epsilon, delta=1e-6).moments
    found = []
    for seed in range(20):
        table = plain_table(n, seed)
        by = statistics.release_moments(
            jax.random.key(seed), moments, schema.features(table)[:, None],
            schema.labels(table)[:, None], np.ones((n, 1), np.float32), schema)
        found.append(set(columns(notes.after(schema, by, statistics.deviation(moments),
                                             features=True))))
    assert sum(one == set(wrong) for one in found) >= (18 if wrong else 20), found
