"""Labels of several classes and numbers: bounds of what one record adds, charges, and routes."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import jaxminimax as jmm
from benchmarks.privacy.mutants import tables as planted
from jaxminimax import Saddle
from jaxminimax import __main__ as main
from jaxminimax.apps.tables import (
    Category,
    Number,
    Schema,
    Scorer,
    command,
    defaults,
    labels,
    scorer,
    statistics,
    train,
)
from jaxminimax.apps.tables.records import records
from jaxminimax.mechanism import Sequence

COLUMNS = {"a": Number(0, 80), "b": Number(0, 1), "c": Category(("u", "v"))}
CLASSES = Schema(COLUMNS, "y", target=Category(("low", "middle", "high")))
AMOUNT = Schema(COLUMNS, "z", target=Number(0, 100))
both = pytest.mark.parametrize("schema", [CLASSES, AMOUNT], ids=["classes", "number"])


def made(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"a": rng.normal(40, 10, n), "b": rng.uniform(0, 1, n),
                          "c": rng.choice(["u", "v"], n)})
    line = (table.a - 40) / 10 + 2 * (table.b - 0.5) + rng.normal(0, 0.3, n)
    return table.assign(y=np.array(["low", "middle", "high"])[np.digitize(line, [-0.5, 0.5])],
                        z=40 + 10 * line)


@pytest.fixture(scope="module")
def trained():
    return {schema.label: train(made(), schema, epsilon=2.0, delta=1e-6, key=jax.random.key(0))
            for schema in (CLASSES, AMOUNT)}


# --- schemas ---


@both
def test_a_schema_is_its_record(schema):
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


@pytest.mark.parametrize(("label", "message"), [
    ({"values": ["a", "b"]}, "three at least"), ({"values": ["a", "b", "b"]}, "different"),
    ({"range": [1, 1]}, "low < high"), ({"range": "charged"}, "range must be of type array"),
    ({}, "positive is missing"), ({"positive": 1, "range": [0, 1]}, "none of name, positive"),
])
def test_a_label_of_no_kind_is_refused(label, message):
    with pytest.raises(ValueError, match=message):
        Schema.from_dict({"label": {"name": "y", **label}, "columns": {"a": {"range": [0, 1]}}})


def test_classes_and_numbers_have_no_groups():
    with pytest.raises(ValueError, match="positive value"):
        Schema(COLUMNS, "y", groups="g", group_values=("1", "2"), target=CLASSES.target)


def test_a_row_without_a_label_teaches_nothing():
    """It counts as a record, and its gradient is 0 wherever the model is."""
    assert CLASSES.labels({"y": ["high", "?", None]}).tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    y = AMOUNT.labels({"z": [100, 1e9, "text", None]})
    assert np.array_equal(y, [1, 1, math.nan, math.nan], equal_nan=True)
    for schema, cell in ((CLASSES, "?"), (AMOUNT, "?")):
        kind = labels.label_of(schema)
        y = schema.labels({schema.label: [cell]})
        x, y, weight = (a[0] for a in records(np.ones((1, 4), np.float32), y))
        w = np.random.default_rng(0).normal(size=kind.start(3, prior(kind)).shape)
        assert not np.any(kind.problem.operator(Saddle(w, ()), (x, y, weight)).w)


# --- what one record adds ---


def prior(kind):
    return scorer.Moments(np.zeros(3), np.ones(3), kind.prior(np.zeros(kind.numbers)))


def extreme(schema, n=600):
    """Rows of features at the ends of their ranges, and labels at theirs or between."""
    rng = np.random.default_rng(1)
    table = {"a": rng.choice([0, 40, 80], n), "b": rng.choice([0, 1], n),
             "c": rng.choice(["u", "v", "w"], n), "y": rng.choice(["low", "high", "?"], n),
             "z": rng.choice([0, 50, 71, 100, math.nan], n)}
    return records(schema.features(table), schema.labels(table))


@pytest.mark.slow
@both
def test_no_row_is_longer_than_what_moments_are_clipped_to(schema):
    """So the clip never binds, and a release without noise is the mean; the bound is attained."""
    rows, bound = extreme(schema), statistics.psi_length(schema)
    described = statistics.one_release(len(rows.x), bound, 0.0)
    actual = statistics.release_moments(jax.random.key(0), described, *rows, schema)
    weight = rows.weight / rows.weight.sum()  # means are those of rows with a label
    assert np.allclose(actual.mean[:2], np.einsum("nr,nrd->d", weight, rows.x)[:2], atol=2e-6)
    kind = labels.label_of(schema)
    longest = max(float(np.sum(np.concatenate(kind.psi(jnp.asarray(y)), 1)**2))
                  for y in rows.y)
    assert 0.99 * kind.length < longest <= kind.length * (1 + 1e-6)


@both
def test_a_gradient_is_no_longer_than_its_bound(schema):
    """Of numbers the clip norm; of classes 2, and the clip norm where the model is undecided."""
    rng, kind = np.random.default_rng(0), labels.label_of(schema)
    x = rng.normal(size=(500, 4)).astype(np.float32)
    x *= math.sqrt(2) / np.linalg.norm(x, axis=1, keepdims=True)
    y = np.eye(3, dtype=np.float32)[rng.integers(3, size=500)] if schema is CLASSES else (
        rng.normal(size=500).astype(np.float32) * 9)

    def lengths(size):
        w = (size * rng.normal(size=kind.start(3, prior(kind)).shape)).astype(np.float32)
        g = jax.vmap(kind.problem.operator, (None, 0))(
            Saddle(w, ()), (x[:, None], y[:, None], np.ones((500, 1), np.float32))).w
        return np.linalg.norm(np.asarray(g).reshape(500, -1), axis=1)

    bound = 2.0 if schema is CLASSES else kind.clip
    for size in (0.0, 1.0, 100.0):
        assert lengths(size).max() <= bound * (1 + 1e-5)
    assert lengths(100.0).max() > 0.99 * bound, "the bound is attained"
    if schema is CLASSES:
        assert np.allclose(lengths(0.0), kind.clip, rtol=1e-5)


@both
def test_the_time_of_steps_grows_with_near_shares_and_never_beyond_what_rounds_are_for(schema):
    kind = labels.label_of(schema)
    at = prior(kind)
    assert kind.growth(at) <= kind.largest_growth
    if schema is CLASSES:
        ten = labels.Several(10)
        assert ten.growth(at._replace(prior=np.full(10, 0.1))) == pytest.approx(ten.largest_growth)
        assert ten.growth(at._replace(prior=np.eye(10)[0])) == 1


def test_rare_values_get_more_time_up_to_twice_and_equal_ones_none():
    rare, moments = labels.TwoValues(2.0), scorer.Moments(np.zeros(1), np.ones(1), 0.5)
    growth = [rare.growth(moments._replace(prior=q)) for q in (0.5, 0.8, 0.2, 0.02)]
    assert growth == pytest.approx([1, 1.25, 1.25, 2])
    assert labels.TwoValues().growth(moments._replace(prior=0.02)) == 1


@pytest.mark.parametrize("knee", [1.0, 2.5])
def test_the_knee_is_that_of_the_residual_in_released_deviations_of_the_label(knee):
    """A gradient is that of Huber's loss with the knee h, over h; finished weights have units."""
    kind = labels.Amount(0.0, 10.0, knee)
    rng = np.random.default_rng(0)
    moments = scorer.Moments(np.zeros(3), np.ones(3), np.array([0.1, 0.05]))
    deviation = math.sqrt(0.05 - 0.01 + 0.0005)
    x, y, w = rng.normal(size=(50, 1, 4)), rng.uniform(-1, 1, (50, 1)), rng.normal(size=4)
    u = kind.target(y, moments, 0.0005)
    actual = jax.vmap(kind.problem.operator, (None, 0))(Saddle(w, ()), (x, u, np.ones((50, 1)))).w
    residual = knee * (x[:, 0] @ w) - (y[:, 0] - 0.1) / deviation
    expected = np.clip(residual, -knee, knee)[:, None] * x[:, 0] / knee
    assert np.allclose(actual, expected, atol=1e-5)
    assert np.abs(residual).max() > knee, "some are linear"
    done = kind.finished(w.copy(), moments, 0.0005)
    shifted = x[:, 0].copy()
    shifted[:, -1] = 1
    assert np.allclose(shifted @ done, 5 + 5 * (0.1 + deviation * knee * (shifted @ w)), atol=1e-4)


def test_two_logits_would_follow_the_model_of_two_values():
    """The difference of two columns has twice the gradient of the logistic model."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(5, 1, 4)), rng.normal(size=4)
    y, weight = np.array([0.0, 1, 1, 0, 1]), np.ones(1)
    for row, label in zip(x, y, strict=True):
        one = labels.TwoValues.problem.operator(Saddle(w, ()), (row, label[None], weight)).w
        pair = np.array([[1 - label, label]])
        two = labels.Several.problem.operator(
            Saddle(np.stack([-w / 2, w / 2], 1), ()), (row, pair, weight)).w
        assert np.allclose(two[:, 1] - two[:, 0], 2 * one, atol=1e-6)
    assert math.isclose(labels.Several(2).clip, math.sqrt(2) * labels.TwoValues.clip)


@both
def test_everything_is_charged_and_nothing_twice(schema):
    for n, epsilon in ((300, 0.5), (5000, 1.0)):
        chosen = defaults(n, schema, epsilon=epsilon, delta=1e-6)
        cost = jmm.epsilon(chosen.mechanism(), 1e-6)
        assert 0.9999 * epsilon < cost <= epsilon
        assert 0 < jmm.epsilon(chosen.moments, 1e-6) < cost


@both
def test_the_releases_that_training_makes_are_those_that_are_charged(schema):
    """Of moments, of rows' second moments, of gradients, and of classes the calibration."""
    first, second, gradients, *last = planted.descriptions(made(60), schema)
    chosen = defaults(60, schema, epsilon=20.0, delta=1e-3)
    assert [first, second, *last] == [*chosen.extra()]
    assert gradients == chosen.algorithm.mechanism(chosen.hyper)
    assert gradients.query.clip.w == labels.label_of(schema).clip
    assert len(last) == (schema is CLASSES)
    assert jmm.epsilon(Sequence(parts=(first, second, gradients, *last)), 1e-3) <= 20


# --- routes ---


@pytest.mark.slow
@both
def test_a_model_is_useful_saved_and_loaded(trained, schema, tmp_path):
    one, test = trained[schema.label], made(1000, seed=1)
    got = command.measured(schema, test, one.decision_function(test))
    best = command.measured(schema, test, command.reference(schema, made(), test))
    name = "macro_auc" if schema is CLASSES else "r2"
    assert best[name] - 0.1 < got[name] <= best[name] + 0.01
    one.save(tmp_path / "model.json")
    again = Scorer.load(tmp_path)
    assert np.array_equal(again.predict(test), one.predict(test))
    assert np.array_equal(again.decision_function(test), one.decision_function(test))
    if schema is CLASSES:
        assert np.mean(one.predict(test) == test.y) > 0.6
    else:
        assert np.abs(one.predict({"a": [1e9], "b": [0.5], "c": ["u"]})).max() <= 100


def test_scores_are_those_of_scikit_learn():
    """Where the reference is its own model, on rows that all have a label."""
    table, test = made(400), made(300, seed=1)
    got = command.measured(CLASSES, test, command.reference(CLASSES, table, test))
    x, z = CLASSES.features(table), CLASSES.features(test)
    middle, spread = x.mean(0), x.std(0)
    fit = LogisticRegression(max_iter=1000).fit((x - middle) / spread, table.y)
    from sklearn.metrics import log_loss, roc_auc_score
    shares = fit.predict_proba((z - middle) / spread)
    assert math.isclose(got["log_loss"], log_loss(test.y, shares), rel_tol=1e-4)
    assert math.isclose(got["macro_auc"], roc_auc_score(test.y, shares, multi_class="ovr"),
                        rel_tol=1e-6)


@pytest.mark.nightly
@both
def test_the_command_trains_and_predicts(schema, tmp_path, capsys):
    made(600).to_csv(tmp_path / "t.csv", index=False)
    label = {"y": "values = ['low', 'middle', 'high']", "z": "range = [0, 100]"}[schema.label]
    (tmp_path / "s.toml").write_text(
        f"[label]\nname = '{schema.label}'\n{label}\n[columns.a]\nrange = [0, 80]\n"
        "[columns.b]\nrange = [0, 1]\n")
    words = ["train", str(tmp_path / "t.csv"), "--schema", str(tmp_path / "s.toml"), "--epsilon",
             "2", "--delta", "1e-6", "--test-fraction", "0.25", "--seed", "0", "--json"]
    assert main.main([*words, "--out", str(tmp_path / "m")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["epsilon"] <= 2
    name = "macro_auc" if schema is CLASSES else "r2"
    assert record[name] > 0.6
    assert {name, f"{name}_reference"} <= set(record["outside_the_guarantee"])
    assert {"y": "released_shares", "z": "released_mean"}[schema.label] in record
    page = (tmp_path / "m" / "report.html").read_text()
    assert ("macro AUC" if schema is CLASSES else "R²") in page
    assert main.main(["predict", str(tmp_path / "m"), str(tmp_path / "t.csv"), "--out",
                      str(tmp_path / "out.csv")]) == 0
    cells = pd.read_csv(tmp_path / "out.csv")
    assert len(cells) == 600
    if schema is CLASSES:
        shares = cells[[f"probability of {value}" for value in schema.target.values]]
        assert np.allclose(shares.sum(axis=1), 1, atol=1e-5)
        assert (shares.idxmax(axis=1) == "probability of " + cells.decision).all()
    else:
        assert cells.prediction.between(0, 100).all()


# --- settings that follow the data's size ---


def settings(n, epsilon, width, schema=AMOUNT):
    columns = {f"x{k}": Number(0, 1) for k in range(width)}
    return defaults(n, Schema(columns, "y", schema.positive, target=schema.target),
                    epsilon=epsilon, delta=1e-6)


@pytest.mark.slow
def test_cut_and_knee_grow_with_records_and_epsilon_and_shrink_with_columns():
    plain = settings(20_000, 1.0, 30)
    more = settings(60_000, 1.0, 30), settings(20_000, 3.0, 30), settings(20_000, 1.0, 10)
    for other in more:
        assert 1 <= plain.cut < other.cut <= 3
        assert 1 <= plain.label.knee < other.label.knee <= 4
    few, many = settings(1000, 0.5, 10), settings(10**6, 4.0, 4)
    assert (few.cut, few.label.knee) == (1, 1)
    assert (many.cut, many.label.knee) == (3, 4)
    assert settings(20_000, 1.0, 30, CLASSES).cut == 1
    # noise of the label's mean is the least variance, or a public one
    assert few.label_floor == few.label_deviation
    assert many.label_floor == 0.0005


def test_rounds_suffice_for_rare_values_at_any_released_share():
    schema = Schema({f"x{k}": Number(0, 1) for k in range(100)}, "y", "1")
    chosen = defaults(40_000, schema, epsilon=4.0, delta=1e-6)
    assert chosen.label.largest_growth == 2
    query = chosen.matrix.query
    least = statistics.least_ridge(100, 40_000, query.noise_multiplier.w, chosen.label.curvature)
    assert chosen.ridge / chosen.label.largest_growth >= least
