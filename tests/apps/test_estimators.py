"""Estimators keep scikit-learn's conventions, and every fit is charged."""

from unittest import mock

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import estimator_checks_generator

import jaxminimax as jmm
from jaxminimax.apps.tables import Category, Number, Schema
from jaxminimax.apps.tables.scorer import spread
from jaxminimax.base import identity
from jaxminimax.estimators import (
    PrivateAUCClassifier,
    PrivateClassifier,
    PrivateFairClassifier,
    PrivateRegressor,
    PrivateWorstGroupClassifier,
    PrivateWorstGroupRegressor,
)
from tests.helpers.lanes import rest_nightly

pytestmark = pytest.mark.slow
# of the checks that fit, those that run with every change; every night all of them
OFTEN = ("check_array_api_input", "check_classifiers_train")


def made(n=600, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    return x, np.where(x[:, 0] + rng.normal(0, 0.3, n) > 0, "yes", "no")


@pytest.fixture(scope="module")
def fitted():
    x, y = made()
    return PrivateAUCClassifier(epsilon=2.0, bounds=(-1.0, 1.0), random_state=0).fit(x, y)


# of noise that a thousandth of epsilon = 50 leaves little of, so that what is checked is the form
HOW = dict(epsilon=50.0, delta=1e-3, random_state=0)


def checks(form):
    """An estimator's checks, with what names them."""
    return [pytest.param(e, c, id=f"{type(e).__name__}-{name}",
                         marks=() if name in OFTEN else pytest.mark.nightly)
            for e, c in estimator_checks_generator(form)
            for name in [getattr(c, "func", c).__name__]
            # asks for names of unseen columns, which may be a record; `test_messages` has its rest
            if name != "check_dataframe_column_names_consistency"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), checks(PrivateAUCClassifier(**HOW)))
def test_conventions(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # what the check of array_api asks for
    check(estimator)


@pytest.mark.nightly  # all estimators have one base
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), [
    *checks(PrivateClassifier(**HOW)), *checks(PrivateRegressor(label_range=(-5, 5), **HOW)),
    *checks(PrivateWorstGroupClassifier(groups=0, **HOW)),
    *checks(PrivateWorstGroupRegressor(groups=0, label_range=(-5, 5), **HOW)),
    *checks(PrivateFairClassifier(groups=0, group_values=(0, 1), **HOW))])
def test_conventions_of_the_other_estimators(estimator, check, monkeypatch):
    test_conventions(estimator, check, monkeypatch)


def test_a_fit_is_private_and_useful(fitted):
    x, y = made(seed=1)
    assert 0.9999 * 2 < fitted.statement_.epsilon <= 2
    assert list(fitted.classes_) == ["no", "yes"]
    assert fitted.score(x, y) > 0.9
    assert np.mean(fitted.predict(x) == y) > 0.8
    assert fitted.n_features_in_ == 2


def test_probabilities_and_decisions_follow_from_the_scores(fitted):
    x, _ = made(seed=1)
    both = fitted.predict_proba(x)
    np.testing.assert_allclose(both.sum(1), 1)
    np.testing.assert_allclose(both[:, 1], 1 / (1 + np.exp(-fitted.decision_function(x))))
    for threshold in (0.2, 0.9):
        assert np.all((fitted.predict(x, threshold) == "yes") == (both[:, 1] > threshold))
    with pytest.raises(ValueError, match="threshold"):
        fitted.predict(x, threshold=1.0)
    assert fitted.epsilon_spent_ == fitted.statement_.epsilon


def test_coefficients_are_in_units_of_the_columns_and_rows_are_cut_to_length_one():
    x, y = made()
    wide = 30 * x + 50
    one = PrivateAUCClassifier(epsilon=2.0, bounds=(20.0, 80.0), random_state=0).fit(wide, y)
    centre, scale = spread(one.scorer_.moments, one.scorer_.floor)
    length = np.linalg.norm((x - centre) / scale, axis=1)
    middle = one.scorer_.weights[-1]
    line = wide @ one.coef_[0] + one.intercept_
    assert 0 < np.mean(length < 1) < 1
    np.testing.assert_allclose(one.decision_function(wide),
                               middle + (line - middle) / np.maximum(length, 1))


def test_a_schema_has_a_coefficient_for_each_feature():
    x, y = made()
    schema = {"a": Number(0, 2, log=True, missing=True), "b": Category(("u", "v"))}
    table = {"a": 1 + x[:, 0], "b": np.where(x[:, 1] > 0, "u", "v")}
    one = PrivateAUCClassifier(epsilon=2.0, schema=schema, random_state=0).fit(table, y)
    assert one.coef_.shape == (1, len(one.scorer_.schema.described())) == (1, 4)
    assert list(one.feature_names_in_) == ["a", "b"]


def test_a_weight_of_a_row_is_refused_with_the_reason():
    x, y = made(200)
    with pytest.raises(TypeError, match="bounds what one record adds"):
        PrivateAUCClassifier(bounds=(-1, 1)).fit(x, y, sample_weight=np.ones(200))
    with pytest.raises(TypeError, match="no argument weights"):
        PrivateAUCClassifier(bounds=(-1, 1)).fit(x, y, weights=np.ones(200))


def test_weights_of_classes_are_public_and_cost_nothing():
    x, _ = made(1500)
    y = (x[:, 0] > 0.7).astype(int)
    models = [PrivateAUCClassifier(epsilon=4.0, bounds=(-1.0, 1.0), random_state=0, class_weight=w)
              .fit(x, y) for w in (None, "balanced", {0: 20.0})]
    plain, balanced, negative = (np.mean(one.predict(x)) for one in models)
    assert negative < plain < balanced
    assert len({one.statement_.epsilon for one in models}) == 1
    assert ["weights of the classes" in str(one.statement_) for one in models] == [
        False, False, True]
    for bad in ({2: 1.0}, {1: -1.0}, "x", [1.0, 2.0]):
        with pytest.raises(ValueError, match="class_weight must"):
            PrivateAUCClassifier(bounds=(-1, 1), class_weight=bad).fit(x, y)


def test_a_schema_with_an_owner_makes_records_of_persons():
    x, y = made(400)
    table = {"a": x[:, 0], "who": np.arange(400) // 2}
    schema = Schema({"a": Number(-1, 1)}, "label", "yes", owner="who", most=2)
    one = PrivateAUCClassifier(epsilon=4.0, schema=schema, random_state=0).fit(table, y)
    assert "one person" in one.statement_.unit
    for more in ({"owners": table["who"]}, {}):
        with pytest.raises(ValueError, match="owns the rows"):
            clone(one).set_params(most=1 if more else 3).fit(table, y, **more)


def test_a_regressor_of_the_worst_group_has_the_smallest_bound_on_the_groups_losses():
    """Slopes 5 and -3: squares of (w - 5)^2 / 3 + 1 and (w + 3)^2 / 3 + 1 are equal at w = 1."""
    rng = np.random.default_rng(0)
    x, group = rng.uniform(-1, 1, (6000, 2)), np.where(rng.random(6000) < 0.15, "rare", "usual")
    y = 20 + np.where(group == "rare", 5 * x[:, 0], -3 * x[:, 0]) + rng.normal(size=6000)
    how = dict(epsilon=4.0, delta=1e-5, label_range=(15, 25), bounds=(-1.0, 1.0), random_state=0)
    fair, plain = PrivateWorstGroupRegressor(**how), PrivateRegressor(**how)
    losses = [[np.mean((model.predict(x) - y)[group == g] ** 2) for g in ("rare", "usual")]
              for model in (fair.fit(x, y, groups=group), plain.fit(x, y))]
    assert max(losses[0]) < 16 / 3 + 1 + 0.5
    assert max(losses[1]) > 12
    assert 0.9999 * 4 < fair.statement_.epsilon <= 4
    assert "Who is in which group is public" in str(fair.statement_)
    assert "every record's label is public" not in str(fair.statement_)
    for groups, words in ((None, "groups must be given"), (["rare"] * 6000, "two at least")):
        with pytest.raises(ValueError, match=words):
            clone(fair).fit(x, y, groups=groups)


def test_a_classifier_of_equal_error_rates_lowers_their_difference():
    """Each group has a feature of its own, so that a plain scorer is right in the larger group."""
    rng = np.random.default_rng(0)
    x, group = rng.uniform(-1, 1, (6000, 2)), np.where(rng.random(6000) < 0.25, "b", "a")
    y = np.where(group == "b", x[:, 1], x[:, 0]) + 0.1 * rng.normal(size=6000) > 0
    gaps = []
    for weight in (0.01, 40.0):
        model = PrivateFairClassifier(epsilon=8.0, delta=1e-5, kind="error_rate", weight=weight,
                                      bounds=(-1.0, 1.0), group_values=("a", "b"), random_state=0)
        wrong = model.fit(x, y, groups=group).predict(x) != y
        gaps.append(abs(wrong[group == "a"].mean() - wrong[group == "b"].mean()))
    assert gaps[1] < gaps[0] - 0.05  # four times the error of a rate of 1,500 rows
    assert "error_rate" in str(model.statement_)
    with pytest.raises(ValueError, match="kind"):
        PrivateFairClassifier(kind="errors", bounds=(-1, 1)).fit(x, y, groups=group)


@pytest.mark.parametrize("column", rest_nightly(["group", 2], 1))
def test_groups_may_be_a_column(column):
    x, y = made(200)
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "group": np.arange(200) % 2})
    one = PrivateWorstGroupClassifier(epsilon=4.0, bounds=(-1, 1), groups=column, random_state=0)
    assert set(one.fit(frame, y).group_losses_) == {"0", "1"}
    with pytest.raises(ValueError, match="a column of X, got 'other'"):
        clone(one).set_params(groups="other").fit(frame, y)


def test_groups_of_a_schema_are_used_or_refused():
    x, y = made(200)
    table = {"a": x[:, 0], "group": np.arange(200) % 3}
    schema = Schema({"a": Number(-1, 1)}, "label", "yes", groups="group", group_values=("0", "1"),
                    by_label=True)
    for form in (PrivateAUCClassifier, PrivateClassifier):
        with pytest.raises(ValueError, match="does not use groups"):
            form(schema=schema).fit(table, y)
    with pytest.raises(ValueError, match="does not use groups"):
        PrivateAUCClassifier(bounds=(-1, 1)).fit(x, y, groups=table["group"])
    worst = PrivateWorstGroupClassifier(epsilon=4.0, schema=schema)
    groups = worst._groups(None, table, y == "yes")
    assert groups.names == ("0, negative", "0, positive", "1, negative", "1, positive")
    assert np.array_equal(groups.number == 4, table["group"] == 2), "in none of those declared"


def test_a_clone_has_the_parameters_and_nothing_else(fitted):
    other = clone(fitted)
    assert other.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        other.predict(made()[0])


def test_ranges_that_nobody_told_are_paid_for(fitted):
    x, y = made()
    one = PrivateAUCClassifier(epsilon=2.0, random_state=0).fit(100 * x + 50, y)
    assert one.statement_.epsilon <= 2
    assert len(one.statement_.sampling) == len(fitted.statement_.sampling) + 1
    assert one.score(100 * x + 50, y) > 0.8


def test_a_ledger_refuses_the_fit_too_many(tmp_path):
    x, y = made(200)
    ledger = jmm.accounting.Ledger(tmp_path / "books", epsilon=3.0, delta=1e-5, filter="basic")
    one = PrivateAUCClassifier(epsilon=1.0, delta=1e-6, bounds=(-1, 1), ledger=ledger)
    left = [ledger.remaining().epsilon]
    for _ in range(2):
        clone(one).fit(x, y)
        left.append(ledger.remaining().epsilon)
    assert left[0] > left[1] > left[2]
    with pytest.raises(ValueError, match="left"):
        for _ in range(4):
            clone(one).fit(x, y)


def test_one_fit_may_have_all_of_a_ledger_and_its_clone_is_refused_before_it_reads(
        tmp_path, monkeypatch):
    """An estimator with the budget of a ledger fits; with less, clones share, as they are few."""
    x, y = made(200)
    monkeypatch.setattr(PrivateAUCClassifier, "_trained", lambda self, run: mock.Mock())
    ledger = jmm.accounting.Ledger(tmp_path / "all", epsilon=3.0, delta=1e-5)
    model = PrivateAUCClassifier(epsilon=3.0, delta=1e-5, bounds=(-1, 1), ledger=ledger)
    assert clone(model).fit(x, y).scorer_
    assert ledger.remaining().share == 0
    monkeypatch.setattr(PrivateAUCClassifier, "_trained", lambda self, run: 1 / 0)
    for again in (model, clone(model).set_params(epsilon=0.1)):
        with pytest.raises(ValueError, match="its first run, 'run 1', has all of it"):
            again.fit(x, y)
    monkeypatch.undo()
    monkeypatch.setattr(PrivateAUCClassifier, "_trained", lambda self, run: mock.Mock())
    shared = jmm.accounting.Ledger(tmp_path / "shared", epsilon=3.0, delta=1e-5)
    for _ in range(2):
        clone(model).set_params(epsilon=1.0, delta=1e-6, ledger=shared).fit(x, y)
    assert shared.filter == "renyi"
    assert len(shared.statement().runs) == 2


def test_a_ledger_of_persons_refuses_rows(tmp_path, monkeypatch):
    x, y = made(200)
    monkeypatch.setattr(PrivateAUCClassifier, "_trained", lambda self, run: mock.Mock(
        statement=run.prepared.unit, assumed=run.prepared.assumed))
    ledgers = {unit: jmm.accounting.Ledger(tmp_path / str(k), epsilon=9.0, delta=1e-5, unit=unit)
               for k, unit in enumerate(("one person", "one record", "one visit"))}
    for unit, claim, how in (("one person", None, {"owners": range(200)}),
                             ("one record", None, {}), ("one visit", "one visit", {}),
                             ("one person", "one person", {})):
        model = PrivateAUCClassifier(bounds=(-1, 1), ledger=ledgers[unit], unit=claim)
        assert model.fit(x, y, **how).statement_.startswith(claim or "one ")
        for other in set(ledgers) - {unit}:
            with pytest.raises(ValueError, match="cannot be added"):
                model.set_params(ledger=ledgers[other]).fit(x, y, **how)
    seeded, secret, owned = (PrivateAUCClassifier(bounds=(-1, 1), random_state=seed).fit(
        x, y, owners=owners).scorer_.assumed for seed, owners in (
            (0, None), (None, None), (None, range(200))))
    assert seeded[:-1] == owned[:-1] == secret
    assert "random_state" in seeded[-1]
    assert owned[-1] == identity.NAMES


def test_columns_by_name_and_groups():
    x, y = made()
    table = {"a": x[:, 0], "b": np.where(x[:, 1] > 0, "u", "v")}
    schema = {"a": Number(-1, 1), "b": Category(("u", "v"))}
    groups = np.where(np.arange(600) < 60, "few", "many")
    one = PrivateWorstGroupClassifier(epsilon=4.0, schema=schema, random_state=0)
    with pytest.raises(ValueError, match="groups must be given"):
        one.fit(table, y)
    one.fit(table, y, groups=groups)
    assert np.mean(one.predict(table) == y) > 0.7
    assert "groups' sizes" in " ".join(one.statement_.assumed)
    assert set(one.group_losses_) == {"few", "many"}
    assert one.statement_.epsilon <= 4
    cut = clone(one).set_params(by_label=True).fit(table, y, groups=groups)
    right = cut.predict(table) == y
    assert min(right[(groups == g) & (y == c)].mean() for g in ("few", "many")
               for c in ("yes", "no")) > 0.6
    assert "label is public" in " ".join(cut.statement_.assumed)
    assert cut.group_losses_ is None
    assert cut.statement_.epsilon <= 4


@pytest.mark.parametrize("y", [np.zeros(200), np.arange(200) % 3, np.linspace(0, 1, 200)])
def test_other_labels_are_refused(y):
    with pytest.raises(ValueError, match=r"class|binary|label type"):
        PrivateAUCClassifier(bounds=(-1, 1)).fit(made(200)[0], y)


def test_several_classes_have_a_row_each():
    x, _ = made()
    y = np.array(["c", "a", "b"])[np.digitize(x[:, 0], [-0.4, 0.4])]
    one = PrivateClassifier(epsilon=4.0, bounds=(-1, 1), random_state=0).fit(x, y)
    assert list(one.classes_) == ["a", "b", "c"]
    assert (one.coef_.shape, one.intercept_.shape) == ((3, 2), (3,))
    shares = one.predict_proba(x)
    assert np.array_equal(one.predict(x), one.classes_[shares.argmax(1)])
    np.testing.assert_allclose(shares.sum(1), 1)
    assert one.score(x, y) > 0.75
    assert one.statement_.epsilon <= 4
    with pytest.raises(ValueError, match="predict_proba"):
        one.predict(x, threshold=0.4)


def test_two_classes_have_the_binary_model(fitted):
    x, y = made()
    one = PrivateClassifier(epsilon=2.0, bounds=(-1.0, 1.0), random_state=0).fit(x, y)
    assert np.array_equal(one.coef_, fitted.coef_)
    assert np.array_equal(one.predict_proba(x), fitted.predict_proba(x))


def test_a_number_is_predicted_within_its_public_range():
    x, _ = made()
    y = 20 + 5 * x[:, 0]
    how = dict(epsilon=4.0, bounds=(-1, 1), random_state=0)
    one = PrivateRegressor(label_range=(10, 30), **how).fit(x, y)
    assert one.score(x, y) > 0.9
    assert one.statement_.epsilon <= 4
    assert one.coef_.shape == (2,)
    assert abs(one.intercept_ - 20) < 1
    narrow = PrivateRegressor(label_range=(19, 21), **how).fit(x, y).predict(x)
    assert narrow.min() >= 19
    assert narrow.max() <= 21
    with pytest.raises(ValueError, match="codebook"):
        PrivateRegressor(**how).fit(x, y)
    with pytest.raises(ValueError, match="low < high"):
        PrivateRegressor(label_range=(3, 3), **how).fit(x, y)


def test_refusals_of_labels_print_no_cell():
    x, _ = made()
    model = PrivateRegressor(label_range=(0, 1), bounds=(-1, 1))
    for rows, y in ((x, ["Mr 417"] * len(x)), (x, np.full(len(x), 417j)), (x + 417j, x[:, 0])):
        with pytest.raises(ValueError, match=r"must be real|no number") as refusal:
            model.fit(rows, y)
        assert "417" not in str(refusal.value)


@pytest.mark.parametrize("form", [
    PrivateAUCClassifier, PrivateWorstGroupClassifier, PrivateFairClassifier])
def test_the_noise_is_for_all_rows_of_a_person_whose_owners_are_not_known(form, tmp_path):
    x, y = made(300)
    more = {} if form is PrivateAUCClassifier else {"groups": np.arange(300) % 2}
    model = form(epsilon=4.0, delta=1e-4, people=2, random_state=0).fit(x, y, **more)
    described = model.scorer_.described
    assert model.statement_.people == 2
    assert 3.9 < jmm.epsilon(described, 1e-4, people=2) <= 4.0
    assert model.epsilon_spent_ == pytest.approx(jmm.epsilon(described, 1e-4, people=2), rel=1e-6)
    assert jmm.epsilon(described, 1e-4) < 2.5
    with pytest.raises(ValueError, match="a person is one record"):
        model.fit(x, y, owners=np.arange(300), **more)
    ledger = jmm.accounting.Ledger(tmp_path / "books", epsilon=9.0, delta=1e-3)
    left = ledger.remaining()
    with pytest.raises(ValueError, match="people = 2, and the ledger for 1"):
        form(epsilon=4.0, delta=1e-4, people=2, ledger=ledger).fit(x, y, **more)
    assert ledger.remaining() == left
