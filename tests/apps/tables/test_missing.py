"""What a missing, unknown, unreadable or infinite cell means, by its role, in every container."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.apps.tables import (
    Category,
    Number,
    Schema,
    check,
    columns,
    command,
    files,
    labels,
    notes,
    records,
    report,
    statistics,
)
from jaxminimax.apps.tables.scorer import Moments, Scorer
from jaxminimax.base import identity
from jaxminimax.estimators import (
    PrivateAUCClassifier,
    PrivateClassifier,
    PrivateFairClassifier,
    PrivateRegressor,
    PrivateWorstGroupClassifier,
)
from jaxminimax.releases import sums

NAN = math.nan
# a value, another one, missing, a word for missing, neither text nor number of the schema, infinite
TEXT = ["1", "0", None, "NA", "x", "inf"]
NUMBERS = [1.0, 0.0, None, NAN, 7.5, math.inf]
ONE, FEATURE = Category(("0", "1")), {"f": Number(0, 1)}


def masked(cells):
    kind = object if isinstance(cells[0], str) else float
    return np.ma.masked_array(np.array([0.5 if x is None else x for x in cells], kind),
                              [x is None for x in cells])


def others(cells):
    return {"f": [0.5] * len(cells), "l": ["1"] * len(cells)}


def frame_of(cells):
    return pd.DataFrame({"c": cells, **others(cells)})


CONTAINERS = {
    "pandas": frame_of,
    "pandas, of objects": lambda cells: frame_of(np.array(cells, object)),
    "pandas, of categories": lambda cells: frame_of(pd.Categorical(cells)),
    "pandas, of nullable types": lambda cells: frame_of(pd.array(
        cells, "string" if isinstance(cells[0], str) else "Float64")),
    "polars": lambda cells: pl.DataFrame({"c": cells, **others(cells)}),
    "pyarrow": lambda cells: pa.table({"c": cells, **others(cells)}),
    "pyarrow, in a dictionary": lambda cells: pa.table({
        "c": pa.array(cells).dictionary_encode(), **others(cells)}),
    "lists": lambda cells: {"c": cells, **others(cells)},
    "arrays": lambda cells: {"c": np.array(cells, object), **others(cells)},
    "masked arrays": lambda cells: {"c": masked(cells), **others(cells)},
    "CSV": "t.csv", "CSV, in pieces": "t.csv", "Parquet": "t.parquet",
    "Parquet, in pieces": "t.parquet"}


def table_of(container, cells, schema, folder):
    make = CONTAINERS[container]
    if callable(make):
        return make(cells)
    path = folder / make
    if make.endswith("csv"):
        frame_of(cells).to_csv(path, index=False)
    else:
        parquet.write_table(pa.table({"c": cells, **others(cells)}), path)
    if container.endswith("pieces"):
        return files.Frames(path, schema.numeric, schema.names)
    return files.read(path, schema.numeric)


def two(cells):
    """0 and 1 in two places; zeros for None."""
    return [[1.0 * (x == 0), 1.0 * (x == 1)] for x in cells]


# role -> schema, what is read of it, and of text and of numbers; docs/tables.md has this table
ROLES = {
    "number": (Schema({"c": Number(0, 1, missing=True)}, "l", "1"), lambda t: t.x[:, :2],
               [[1, 0], [-1, 0], [0, 1], [0, 1], [0, 1], [1, 0]],
               [[1, 0], [-1, 0], [0, 1], [0, 1], [1, 0], [1, 0]]),
    "category": (Schema({"c": ONE}, "l", "1"), lambda t: t.x[:, :2],
                 two([1, 0, None, None, None, None]), two([1, 0, None, None, None, None])),
    "label of two values": (Schema(FEATURE, "c", "1"), lambda t: t.labels,
                            [1, 0, NAN, NAN, 0, 0], [1, 0, NAN, NAN, 0, 0]),
    "label of classes": (Schema(FEATURE, "c", target=Category(("0", "1", "2"))),
                         lambda t: t.labels[:, :2], two([1, 0, None, None, None, None]),
                         two([1, 0, None, None, None, None])),
    "label that is a number": (Schema(FEATURE, "c", target=Number(0, 1)), lambda t: t.labels,
                               [1, -1, NAN, NAN, NAN, 1], [1, -1, NAN, NAN, 1, 1]),
    "group": (Schema(FEATURE, "l", "1", groups="c", group_values=("0", "1")), lambda t: t.groups,
              [1, 0, 2, 2, 2, 2], [1, 0, 2, 2, 2, 2])}
WEIGHTS = {"label of two values": ([1, 1, 0, 0, 1, 1], [1, 1, 0, 0, 1, 1]),
           "label of classes": ([1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]),
           "label that is a number": ([1, 1, 0, 0, 0, 1], [1, 1, 0, 0, 1, 1])}
every_container = pytest.mark.parametrize("container", CONTAINERS)


@every_container
@pytest.mark.parametrize("role", ROLES)
def test_a_cell_means_the_same_in_every_container(role, container, tmp_path):
    schema, read, *expected = ROLES[role]
    for k, cells in enumerate((TEXT, NUMBERS)):
        table = records.encoded(table_of(container, cells, schema, tmp_path), schema)
        np.testing.assert_array_equal(read(table), expected[k])
        rows = records.records(table.x, table.labels)
        if role in WEIGHTS:
            assert rows.weight[:, 0].tolist() == WEIGHTS[role][k]
        assert np.all(np.isfinite(rows.y))


@every_container
@pytest.mark.parametrize("cells", [["a", None], [1.0, NAN], [7, None], ["a", ""], [1.5, 2.0]])
def test_an_owner_that_is_missing_or_could_be_two_is_refused(cells, container, tmp_path):
    if "nullable" in container and cells[0] == 7:
        cells = pd.array(cells, "Int64")
    schema = Schema(FEATURE, "l", "1", owner="c")
    if container == "masked arrays" and cells[0] == 7:
        cells = [7.0, None]
    table = records.encoded(table_of(container, cells, schema, tmp_path), schema)
    if cells[0] == 1.5 and "CSV" in container:  # text, as any other
        assert identity.persons(table.owners)[0] == ["1.5", "2.0"]
        return
    with pytest.raises(ValueError, match=r"row [01] of owners.*(no owner|type float)"):
        records.by_person(len(table.labels), table.owners, 1)


@pytest.mark.parametrize("mark", [*columns.NO_LABEL, None, NAN, pd.NA, pd.NaT, " "])
def test_words_for_missing_are_no_label_unless_they_are_the_positive_value(mark):
    schema = Schema(FEATURE, "y", "yes")
    for cells in (["yes", mark, "no"], np.array(["yes", mark, "no"], object)):
        np.testing.assert_array_equal(schema.labels({"y": cells}), [1, NAN, 0])
    if isinstance(mark, str) and mark.strip():
        own = Schema(FEATURE, "y", mark)
        np.testing.assert_array_equal(own.labels({"y": ["yes", mark, "", "no"]}), [0, 1, NAN, 0])
    for value in ("None", "-", "none", "0", "false", "inf"):
        assert schema.labels({"y": [value]}).tolist() == [0]


# --- what a row without a label adds to a release ---


BINARY = Schema({"a": Number(-1, 1, missing=True), "c": Category(("u", "v"))}, "y", "1")
KINDS = {"two values": BINARY,
         "classes": dataclasses.replace(BINARY, positive=None, target=Category("pqrs")),
         "number": dataclasses.replace(BINARY, positive=None, target=Number(0, 9))}
every_kind = pytest.mark.parametrize("schema", KINDS.values(), ids=KINDS)
VALUES = {"two values": ["0", "1", ""], "classes": [*"pqrs", "?"], "number": [0, 2, 9, 99, NAN]}


def persons(schema, n=60, seed=0, most=3):
    """Records of up to three rows, some without labels, some at the ends of all ranges."""
    rng = np.random.default_rng(seed)
    rows = 2 * n
    (kind,) = (name for name, one in KINDS.items() if one == schema)
    table = {"a": rng.choice([-1.0, 0.2, 1.0, NAN], rows), "c": rng.choice([*"uvw"], rows),
             "y": np.array(rng.choice(VALUES[kind], rows), object)}
    owners = np.concatenate([np.arange(n), rng.integers(0, n, n)])
    return records.records(schema.features(table), schema.labels(table),
                           records.by_person(rows, owners, most))


def moments_of(rows, schema, features=True, noise=0.0, key=0):
    described = statistics.one_release(
        len(rows.x), statistics.psi_length(schema, features), noise)
    return statistics.release_moments(jax.random.key(key), described, *rows, schema, features)


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("features", [True, False])
def test_without_noise_means_are_those_of_rows_with_a_label(schema, features):
    rows = persons(schema)
    by, weight = moments_of(rows, schema, features), rows.weight / rows.weight.sum()
    assert by.labelled == pytest.approx(rows.weight.sum() / len(rows.x), rel=1e-5)
    assert 0.3 < by.labelled < 0.95
    mean = np.einsum("nr,nr...->...", weight, rows.y)
    if schema.kind == "number":
        mean = np.array([mean, np.einsum("nr,nr->", weight, rows.y**2)])
    np.testing.assert_allclose(by.prior, mean, rtol=1e-4)
    if features:
        np.testing.assert_allclose(by.mean, np.einsum("nr,nrd->d", weight, rows.x), atol=1e-5)
        np.testing.assert_allclose(by.second, np.einsum("nr,nrd->d", weight, rows.x**2), atol=1e-5)


@every_kind
@pytest.mark.parametrize("features", [True, False])
def test_no_record_is_longer_than_its_clip_norm_and_one_without_labels_has_a_half(schema, features):
    """So charge and noise are those of a table with all labels; the bound is attained with one."""
    rows, bound = persons(schema, 400), statistics.psi_length(schema, features)
    shift, squared = statistics._layout(schema)
    psi = statistics._psi(labels.label_of(schema), tuple(shift.tolist()) if features else None,
                          tuple(np.flatnonzero(squared).tolist()),
                          statistics.label_weight(schema, features))
    vectors = jax.vmap(lambda record: psi.operator(Saddle(jnp.zeros(1), ()), record).w)(
        tuple(map(jnp.asarray, rows)))
    length = np.linalg.norm(vectors, axis=1)
    assert 0.9 * bound < length.max() <= bound * (1 + 1e-6)
    none = rows.weight.sum(1) == 0
    assert none.any()
    np.testing.assert_allclose(length[none], 0.5)


@every_kind
def test_a_label_that_goes_missing_moves_no_release_further_than_is_charged(schema):
    """Before any release of a training, by the raw sums with equal noise."""
    old, features = persons(schema), True
    bound = statistics.psi_length(schema, features)
    described, answers = statistics.one_release(len(old.x), bound, 3.0), []
    for weight in (old.weight, np.where(np.arange(len(old.x))[:, None] == 0, 0, old.weight)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sums, "compiled_release",
                          lambda *given, real=sums.compiled_release: (
                              answers.append(real(*given)), answers[-1])[1])
            by = statistics.release_moments(jax.random.key(0), described, old.x, old.y,
                                            weight.astype(np.float32), schema)
    first, second = (np.asarray(answer.w, np.float64) for answer in answers)
    assert 0.2 < np.linalg.norm(first - second) * len(old.x) / bound <= 2
    assert np.all(np.isfinite(np.hstack(by)))


@pytest.mark.slow
def test_a_share_near_one_is_one_as_its_noise_would_reach_all_means():
    rows = persons(BINARY, 300)
    rows = rows._replace(weight=(rows.x[..., :1].sum(-1) != 9) / np.float32(3))  # all rows
    shares = [moments_of(rows, BINARY, noise=2.0, key=k).labelled for k in range(40)]
    assert sum(share == 1 for share in shares) >= 38
    assert moments_of(rows._replace(weight=0 * rows.weight), BINARY).labelled == 0.05


def test_a_missing_label_is_in_no_group_that_labels_cut():
    groups = records.Groups(np.array([0, 0, 1, 1, 2]), ("p", "q"))
    assert groups.cut(np.array([0, NAN, 1, NAN, 1])).number.tolist() == [0, 4, 3, 4, 4]


def test_check_counts_missing_labels():
    table = {"a": [0.0] * 5, "c": ["u"] * 5, "y": ["1", "", "NA", "no", None]}
    x, _ = check._flaws(BINARY, table)
    assert check._places(BINARY)["y"] == ("positive", "missing")
    assert x[:, -2:].tolist() == [[1, 0], [0, 1], [0, 1], [0, 0], [0, 1]]
    for schema in KINDS.values():
        assert "missing" in check._places(schema)["y"]


@pytest.mark.parametrize(("labelled", "noted"), [(1.0, False), (0.96, False), (0.7, True)])
def test_a_share_without_labels_is_noted(labelled, noted):
    by = Moments(np.array([0.0, 0.1, 0.5, 0.5]), np.array([0.4, 0.1, 0.5, 0.5]), 0.5, labelled)
    mistakes = [str(note) for note in notes.after(BINARY, by, 0.01, features=True)
                if "no label" in str(note)]
    assert bool(mistakes) == noted
    if noted:
        assert "at least 24% of the rows have no label" in mistakes[0]


def test_the_statement_says_the_rule():
    chosen = jmm.tables.defaults(5000, BINARY, epsilon=1.0, delta=1e-6)
    assert "a row without a label has weight 0" in chosen.explain()
    assert Moments.from_json(json.loads(json.dumps(
        Moments(np.zeros(1), np.ones(1), 0.5, 0.7).to_json()))).labelled == 0.7


# --- rows held out ---


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_metrics_leave_rows_without_a_label_out_and_say_how_many(kind):
    schema, rng = KINDS[kind], np.random.default_rng(0)
    a = rng.uniform(-1, 1, 400)
    y = {"two values": np.where(a > 0, "1", "0"), "classes": np.array([*"pqrs"])[
        np.digitize(a, [-0.5, 0, 0.5])], "number": 4 + 4 * a}[kind].astype(object)
    y = np.where(rng.uniform(size=400) < 0.1, y[::-1], y)
    table = pd.DataFrame({"a": a, "c": rng.choice([*"uv"], 400), "y": y})
    gone = table.assign(y=np.where(np.arange(400) % 3 == 0, None, table.y))
    outputs = np.ones((5, 4)) * [[1, 2, 3, 4]] if kind == "classes" else np.ones(5)
    prior = {"two values": 0.5, "classes": np.full(4, 0.25), "number": np.array([0.0, 0.3])}[kind]
    one = Scorer(schema, outputs, Moments(np.zeros(4), np.ones(4), prior, 2 / 3), None, {})
    actual = command.held_out(one, gone[:200], gone[200:])
    known = gone[gone.y.notna()]
    expected = command.held_out(one, known.loc[:199], known.loc[200:])
    assert actual == expected | {"held_out_without_label": 67}
    assert expected["held_out_without_label"] == 0
    assert None not in actual.values()
    words = report.results(one, actual)
    assert words["rows held out without a label"] == "67, left out; outside of the guarantee"
    assert words["released share of rows with a label"] == "0.667"
    assert "rows held out without a label" not in report.results(one, expected)


# --- estimators, which take no missing label ---


MODELS = [PrivateAUCClassifier(), PrivateClassifier(), PrivateFairClassifier(),
          PrivateRegressor(label_range=(0, 1)), PrivateWorstGroupClassifier()]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("plain", [list, pd.Series, pl.Series, pa.array, lambda y: np.array(
    y, object), lambda y: pa.array(y).dictionary_encode()],
    ids=["list", "pandas", "polars", "pyarrow", "objects", "dictionary"])
@pytest.mark.parametrize("cells", [[1, 0, None, 1], [1.0, 0.0, NAN, 1.0], ["1", "0", None, "1"]],
                         ids=["integers", "floats", "text"])
def test_a_fit_refuses_a_missing_label(model, plain, cells, monkeypatch):
    monkeypatch.setattr(sums, "compiled_release", None)
    given = {"groups": [0, 1, 0, 1]} if hasattr(model, "groups") else {}
    for schema, X in ((None, np.zeros((4, 1))), ({"a": Number(0, 1)}, {"a": [0.0] * 4})):
        with pytest.raises(ValueError, match="y has rows without a label"):
            model.set_params(schema=schema).fit(X, plain(cells), **given)
        if plain is list:  # NumPy would make text of it
            with pytest.raises(ValueError, match="y has rows without a label"):
                model.fit(X, ["1", "0", NAN, "1"], **given)


@pytest.mark.parametrize("missing", [None, NAN, pd.NA, pd.NaT, ""], ids=repr)
def test_a_missing_group_is_no_group(missing):
    groups = np.array(["p", missing, "q", "p"], object)
    worst = PrivateWorstGroupClassifier()._groups(groups, None, np.zeros(4))
    assert (worst.names, worst.number.tolist()) == (("p", "q"), [0, 2, 1, 0])
    model = PrivateFairClassifier()
    assert model._groups(groups, None, np.zeros(4)).number.tolist() == [0, -1, 1, 0]
    assert model.groups_ == ("p", "q")


def test_the_page_has_the_table_that_is_tested():
    page = (files.pathlib.Path(__file__).parents[3] / "docs" / "tables.md").read_text()
    table = page[page.index("| role |"):].split("\n\n")[0]
    for role in (*ROLES, "owner", "label of rows held out"):
        assert f"| {role} |" in table
    for mark in columns.NO_LABEL[1:]:
        assert f"`{mark}`" in page
