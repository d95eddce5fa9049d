"""A private classifier with private groups: what it charges and refuses, and that it is fair."""

import dataclasses
import pickle
import types

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.accounting import epsilon
from jaxminimax.apps.tables import Number, Schema, fair, fair_defaults, scorer, statistics
from jaxminimax.estimators import PrivateFairClassifier

SCHEMA = Schema({"a": Number(-1, 1), "b": Number(-1, 1)}, "y", "1")


def made(n=1500, seed=0):
    rng = np.random.default_rng(seed)
    group = rng.choice(["few", "many"], n, p=[0.4, 0.6])
    x = rng.uniform(-1, 1, (n, 2))
    x[:, 1] = np.where(group == "many", 0.8, -0.8) + 0.1 * rng.normal(size=n)
    return x, np.where(x[:, 0] + x[:, 1] / 2 + 0.2 * rng.normal(size=n) > 0, "yes", "no"), group


@pytest.mark.parametrize("kind", ["parity", "odds"])
def test_settings_cost_what_was_asked_for_and_every_release_is_in_them(kind):
    chosen = fair_defaults(5000, SCHEMA, 3, epsilon=1.0, delta=1e-6, kind=kind)
    full = epsilon(chosen.mechanism(), delta=1e-6)
    assert 0.999 < full <= 1.0
    shares, moments, run = chosen.mechanism().parts
    assert (shares, dataclasses.replace(moments, place=0)) == (chosen.shares, chosen.plain.moments)
    for k in range(3):
        fewer = tuple(part for j, part in enumerate((shares, moments, run)) if j != k)
        assert epsilon(jmm.Sequence(parts=fewer), delta=1e-6) < full - 1e-4
    less = dataclasses.replace(shares, query=dataclasses.replace(
        shares.query, noise_multiplier=Saddle(shares.query.noise_multiplier.w / 4, None)))
    assert epsilon(jmm.Sequence(parts=(less, moments, run)), delta=1e-6) > 1.01
    assert kind in chosen.explain()
    # the clip norm of a one-hot row minus its mean value
    cells = 6 if kind == "odds" else 3
    assert shares.query.clip.w == pytest.approx((1 - 1 / cells) ** 0.5)


@pytest.mark.parametrize(("how", "message"), [
    (dict(groups=1), "groups"), (dict(weight=0.0), "weight"), (dict(kind="gap"), "kind"),
    (dict(population=1), "population")])
def test_settings_out_of_range_are_refused(how, message):
    with pytest.raises(ValueError, match=message):
        fair_defaults(**{"population": 5000, "schema": SCHEMA, "groups": 2, "epsilon": 1.0,
                         "delta": 1e-6, **how})


def test_what_a_fit_refuses_it_refuses_before_anything_is_released(tmp_path):
    x, y, group = made(300)
    one = PrivateFairClassifier(bounds=(-1, 1), random_state=0)
    with pytest.raises(ValueError, match="groups must be given"):
        one.fit(x, y)
    with pytest.raises(ValueError, match="two at least"):
        one.fit(x, y, groups=np.zeros(300))
    with pytest.raises(ValueError, match="one for every row"):
        one.fit(x, y, groups=group[:5])
    ledger = jmm.accounting.Ledger(tmp_path / "books", epsilon=0.5, delta=1e-5, filter="basic")
    with pytest.raises(ValueError, match="left"):
        clone(one).set_params(ledger=ledger).fit(x, y, groups=group)
    with pytest.raises(NotFittedError):
        clone(one).predict(x)
    assert clone(one.set_params(weight=2.5, kind="odds")).get_params() == one.get_params()


@pytest.mark.parametrize("people", [1, 3])
@pytest.mark.parametrize("bounds", [(-1, 1), None])
def test_a_statement_is_of_all_releases_and_of_all_records_of_a_person(monkeypatch, bounds, people):
    """Nothing is drawn or trained: what the statement says follows from the settings alone."""
    x, y, group = made(300)
    state = types.SimpleNamespace(average=Saddle(np.zeros(3), ()), spent=np.int32(300))
    monkeypatch.setattr(fair, "_trained", lambda *_, **__: (state, np.zeros((300, 3))))
    monkeypatch.setattr(fair, "release_shares", lambda *_, **__: np.full(2, 0.5))
    monkeypatch.setattr(statistics, "release_moments", lambda *_, **__: scorer.Moments(
        np.zeros(2), np.ones(2), 0.5))
    monkeypatch.setattr(statistics, "release_ranges", lambda *_, **__: [Number(-1, 1)] * 2)
    one = PrivateFairClassifier(4.0, 1e-4, bounds=bounds, people=people, random_state=0)
    stated, described = one.fit(x, y, groups=group).statement_, one.scorer_.described
    assert len(described.flattened()) == (3 if bounds else 4)
    assert (stated.spent, stated.people) == (stated.allowed, people)
    assert stated.epsilon == pytest.approx(epsilon(described, 1e-4, people=people), rel=1e-9)
    assert 0.998 * 4 < stated.epsilon <= 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:delta")
@pytest.mark.parametrize("bounds", [(-1, 1), None])
def test_every_fit_is_charged_for_all_that_it_releases_and_so_are_copies(tmp_path, monkeypatch,
                                                                         bounds):
    x, y, group = made(300)
    ledger = jmm.accounting.Ledger(tmp_path / "books", epsilon=2.0, delta=1e-4, filter="basic")
    seen = []

    def stub(run):
        """Instead of training, which releases what is in the settings."""
        assert ledger.remaining().epsilon < 1.2  # paid before
        seen.append(run)
        return types.SimpleNamespace(statement=None, schema=run.schema)

    monkeypatch.setattr("jaxminimax.apps.tables.fair.train_fair", stub)
    one = PrivateFairClassifier(1.0, 1e-6, bounds=bounds, ledger=ledger, random_state=0)
    clone(one).fit(x, y, groups=group)  # as a cross-validation does
    (run,) = seen
    described, groups = run.prepared.mechanism(), run.prepared.groups
    assert len(described.parts) == (3 if bounds else 4)
    assert epsilon(described, delta=1e-6) <= 1.0
    assert not run.schema.charged
    assert np.all(groups.number[:, 0] == (group == "many"))
    assert any("are those that occur" in x for x in groups.assumed)
    with pytest.raises(ValueError, match="left"):
        clone(one).set_params(epsilon=1.5, random_state=1).fit(x, y, groups=group)
    assert len(seen) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:delta")
def test_a_larger_weight_is_fairer_and_both_are_charged():
    x, y, group = made()
    test, truth, other = made(seed=1)
    gaps, errors = [], []
    for weight in (0.01, 20.0):
        model = PrivateFairClassifier(8.0, 1e-5, weight=weight, bounds=(-1.0, 1.0),
                                      group_values=("few", "many"), random_state=0)
        model.fit(x, y, groups=group)
        assert 0.999 * 8 < model.statement_.epsilon <= 8
        assert len(model.statement_.sampling) == 3
        gaps.append(jmm.metrics.parity_violation(model.predict(test), other))
        errors.append(np.mean(model.predict(test) != truth))
    assert gaps[1] < gaps[0] / 2
    assert errors[0] < 0.2
    assert "as private as the rest" in " ".join(model.statement_.assumed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:delta")
def test_persons_with_several_rows_and_released_ranges():
    x, y, group = made(600)
    model = PrivateFairClassifier(8.0, 1e-5, kind="odds", most=2, random_state=0)
    model.fit(x, y, groups=group, owners=np.arange(600) // 3)
    assert "person" in model.statement_.unit
    assert len(model.statement_.sampling) == 4
    assert model.groups_ == ("few", "many")
    assert model.decision_function(x).shape == (600,)


@pytest.fixture
def mixed(monkeypatch):
    """A classifier of given iterates: nothing is drawn or trained, and row i is w_{i + 2}."""
    rounds, rng = np.arange(300) + 2.0, np.random.default_rng(1)
    iterates = np.stack([rounds, *rng.normal(size=(2, 300))], 1)
    state = types.SimpleNamespace(average=Saddle(np.array([5.0, 0.0, 0.0]), ()),
                                  spent=np.int32(300))
    monkeypatch.setattr(fair, "_trained", lambda *_, **__: (state, iterates))
    monkeypatch.setattr(fair, "release_shares", lambda *_, **__: np.full(2, 0.5))
    monkeypatch.setattr(statistics, "release_moments", lambda *_, **__: scorer.Moments(
        np.zeros(2), np.ones(2), 0.5))
    x, y, group = made(300)
    one = PrivateFairClassifier(4.0, 1e-4, bounds=(-1, 1), randomised=True, random_state=0)
    return one.fit(x, y, groups=group), x


def test_a_mixture_is_the_mean_of_its_members_and_draws_one_for_each_row(mixed):
    model, x = mixed
    members = model.scorer_.members
    t = members[:, 0]
    assert (len(t), t[0], t[-1]) == (fair.MEMBERS, 151, 300)  # rounds of the mean, evenly spaced
    assert np.ptp(np.diff(t)) <= 1
    table = dict(zip(model.scorer_.schema.columns, x.T, strict=True))
    scorers = [dataclasses.replace(model.scorer_, weights=w) for w in members]
    np.testing.assert_allclose(model.predict_proba(x), np.mean([
        one.predict_proba(table) for one in scorers], 0), rtol=1e-9, atol=1e-12)
    decisions = np.array([one.decision_function(table) > 0 for one in scorers])
    rate = decisions.mean(0)
    assert np.any((rate > 0) & (rate < 1))
    np.testing.assert_allclose(model.positive_rate(x), rate)
    high = np.mean([one.predict_proba(table)[:, 1] > 0.9 for one in scorers], 0)
    np.testing.assert_allclose(model.positive_rate(x, 0.9), high)
    drawn = np.mean([model.predict(x, random_state=k) == "yes" for k in range(400)], 0)
    assert np.all(np.abs(drawn - rate) < 5 * np.sqrt(rate * (1 - rate) / 400) + 1e-9)
    again = pickle.loads(pickle.dumps(model))
    for copy in (model, again):
        np.testing.assert_array_equal(copy.predict(x, random_state=3),
                                      model.predict(x, random_state=3))
    assert np.any(model.predict(x, random_state=3) != model.predict(x, random_state=4))
    assert clone(model).get_params() == model.get_params()
    assert clone(model).randomised


def test_a_mixture_costs_what_its_mean_costs(mixed, tmp_path):
    model, x = mixed
    plain = clone(model).set_params(randomised=False)
    _, y, group = made(300)
    plain.fit(x, y, groups=group)
    assert plain.scorer_.described == model.scorer_.described
    assert plain.statement_.epsilon == model.statement_.epsilon <= 4
    np.testing.assert_array_equal(plain.decision_function(x), model.decision_function(x))
    np.testing.assert_array_equal(plain.predict(x) == "yes", plain.positive_rate(x) == 1)
    assert set(plain.positive_rate(x)) == {0.0, 1.0}
    np.testing.assert_array_equal(plain.predict_proba(x)[:, 1] > 0.5, plain.predict(x) == "yes")
    model.scorer_.save(tmp_path / "model.json")  # the mean's file, as without a mixture
    loaded = scorer.Scorer.load(tmp_path / "model.json")
    assert loaded.members is None
    np.testing.assert_array_equal(loaded.weights, model.scorer_.weights)


def test_what_a_mixture_refuses(mixed):
    model, x = mixed
    for threshold in (0.0, 1.0):
        with pytest.raises(ValueError, match="threshold"):
            model.predict(x, threshold)
    with pytest.raises(ValueError, match="say randomised=True"):
        model.set_params(randomised=False).predict(x, random_state=0)
    with pytest.raises(ValueError, match="randomised must be True or False"):
        model.set_params(randomised="yes").fit(x, x[:, 0] > 0, groups=x[:, 1] > 0)
    with pytest.raises(NotFittedError):
        PrivateFairClassifier(randomised=True).predict_proba(x)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:delta")
def test_the_weights_are_the_mean_of_the_iterates_that_a_mixture_is_drawn_from(monkeypatch):
    monkeypatch.setattr(fair, "MEMBERS", 150)  # all of them
    x, y, group = made(300)
    model = PrivateFairClassifier(4.0, 1e-4, bounds=(-1, 1), random_state=0, randomised=True)
    done = model.fit(x, y, groups=group).scorer_
    np.testing.assert_allclose(done.members.mean(0), done.weights, rtol=1e-4, atol=1e-5)
    assert np.ptp(done.members[:, 0]) > 1e-3
