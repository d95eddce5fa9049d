"""Certificates of scorers: rows held out train nothing, and both together cost one epsilon."""

import json

import jax
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import __main__ as main
from jaxminimax.apps.tables import certified, records, training
from jaxminimax.apps.tables.columns import Charged, Number
from jaxminimax.apps.tables.report import results
from jaxminimax.estimators import PrivateWorstGroupClassifier

EPSILON, DELTA = 4.0, 1e-4


def table(n=900, seed=0):
    rng = np.random.default_rng(seed)
    group = rng.choice(["a", "b"], n)
    age = rng.uniform(20, 70, n)
    ill = rng.uniform(size=n) < 1 / (1 + np.exp(-(age - 45) / (5 + 20 * (group == "b"))))
    return {"age": age, "group": group, "ill": ill.astype(int)}


def schema(**how):
    return jmm.tables.Schema({"age": Number(18, 90)}, "ill", "1",
                             **{"groups": "group", "group_values": ("a", "b"), **how})


@pytest.fixture(scope="module")
def made():
    return training.train(table(), schema(), epsilon=EPSILON, delta=DELTA, certify=0.2)


@pytest.mark.slow
def test_a_training_has_a_certificate_at_the_same_epsilon(made):
    found = made.certificate
    assert found.statement.epsilon <= EPSILON
    assert made.statement.epsilon <= EPSILON
    assert 0 < found.bound < 1
    assert found.statement.records == 900
    assert made.statement.records == 900 - sum(
        jmm.problems.hold_out(np.unique(table()["group"], return_inverse=True)[1], 0.2).sizes)
    (text,) = [text for name, text in results(made, {}).items() if name == "certificate"]
    assert "in the worst group" in text
    assert "independent draws" in text
    assert json.loads(json.dumps(found.to_json()))["of"] == "worst_group"


@pytest.mark.slow
def test_it_certifies_the_errors_of_the_scorer(made):
    """Without noise the released numbers are the shares of wrong predictions of the rows apart."""
    rows = table()
    groups = records.Groups(np.unique(rows["group"], return_inverse=True)[1], ("a", "b"))
    of = certified.apart(groups, 0.2, epsilon=EPSILON, delta=DELTA, persons=False)
    of = of._replace(losses=jmm.GroupLosses(bound=1.0, sizes=of.losses.sizes, noise_multiplier=0.0,
                                            noise="gaussian"))
    apart = of.held.rows
    features = schema().features({name: x[apart] for name, x in rows.items()})
    labels = rows["ill"][apart].astype(float)
    labels[::7] = np.nan  # no label: wrong
    again = certified.certified(jmm.noise.secret_key(), made, features, labels, of, unit="one row")
    wrong = (made.decision_function(rows) > 0)[apart] != labels
    expected = [wrong[groups.number[apart] == k].mean() for k in (0, 1)]
    np.testing.assert_allclose(again.certificate.released, expected, rtol=1e-6)


@pytest.mark.slow
def test_rows_apart_train_nothing():
    """Other cells there leave the scorer as it is, ranges that are released included."""
    rows, key = table(), jax.random.key(3)
    groups = np.unique(rows["group"], return_inverse=True)[1]
    of = certified.apart(records.Groups(groups, ("a", "b")), 0.2, epsilon=EPSILON, delta=DELTA,
                         persons=False)
    changed = {name: np.array(x) for name, x in rows.items()}
    apart = of.held.rows
    changed["age"][apart], changed["ill"][apart] = 80.0, 1 - changed["ill"][apart]
    own = jmm.tables.Schema({"age": Charged()}, "ill", "1", groups="group",
                            group_values=("a", "b"))
    one, two = (training.train(x, own, epsilon=EPSILON, delta=DELTA, certify=0.2, key=key)
                for x in (rows, changed))
    assert (one.weights == two.weights).all()
    assert one.certificate.released != two.certificate.released


@pytest.mark.nightly
def test_rows_in_no_group_train_and_are_never_held_out():
    rows, short = table(), schema(group_values=("a",))
    found = training.train(rows, short, epsilon=EPSILON, delta=DELTA, certify=0.2)
    inside = int((rows["group"] == "a").sum())
    assert found.statement.records == 900 - int(0.2 * inside)
    assert found.certificate.statement.records == 900
    assert len(found.certificate.released) == 1


@pytest.mark.slow
def test_a_training_that_goes_on_has_the_same_rows_apart(tmp_path):
    """Or the certificates of two tables would have one noise, and their difference none."""
    rows, folder = table(300), tmp_path / "run"

    def stopped(*_):
        raise KeyboardInterrupt

    def train(rows, **how):
        return training.train(rows, schema(), epsilon=EPSILON, delta=DELTA, folder=str(folder),
                              **{"certify": 0.2, **how})

    with pytest.raises(KeyboardInterrupt):
        train(rows, callback=stopped)
    groups = np.unique(rows["group"], return_inverse=True)[1]
    of = certified.apart(records.Groups(groups, ("a", "b")), 0.2, epsilon=EPSILON, delta=DELTA,
                         persons=False)
    changed = {name: np.array(x) for name, x in rows.items()}
    changed["ill"][of.held.rows[0]] ^= 1
    for how in ({"rows": changed}, {"rows": rows, "certify": None}):
        with pytest.raises(ValueError, match="another"):
            train(**how)
    assert train(rows).certificate.bound < 1


@pytest.mark.nightly
def test_the_estimator_has_one_too(tmp_path):
    rows = table()
    ledger = jmm.accounting.Ledger(tmp_path / "books.json", epsilon=12.0, delta=1e-3,
                                   unit="one row")
    model = PrivateWorstGroupClassifier(EPSILON, DELTA, bounds=(18.0, 90.0), by_label=True,
                                        held_out=0.2, ledger=ledger)
    model.fit(rows["age"][:, None], rows["ill"], groups=rows["group"])
    found = model.certificate_
    assert len(found.released) == 4
    assert found.statement.epsilon <= EPSILON
    assert model.statement_.records + sum(
        part.records() for part in [certified.apart(model._groups(
            rows["group"], None, rows["ill"]), 0.2, epsilon=EPSILON, delta=DELTA,
            persons=False).losses]) == 900
    (entry,) = ledger.statement().runs
    assert "mean losses" in str(entry)  # the certificate was charged with the training
    plain = PrivateWorstGroupClassifier(EPSILON, DELTA, bounds=(18.0, 90.0))
    assert plain.fit(rows["age"][:, None], rows["ill"], groups=rows["group"]).certificate_ is None


@pytest.mark.parametrize(("how", "given", "words"), [
    ({"groups": None, "group_values": ()}, {}, "worst group"),
    ({}, {"people": 2}, "row"), ({}, {"certify": 0.0}, "share"), ({}, {"certify": 0.001}, "side"),
])
def test_what_has_no_certificate_is_refused(how, given, words):
    with pytest.raises(ValueError, match=words):
        training.train(table(60), schema(**how), **{
            "epsilon": EPSILON, "delta": DELTA, "certify": 0.2, **given})


def test_owners_are_refused():
    rows = table(60)
    with pytest.raises(ValueError, match="owners"):
        training.train(rows | {"who": np.arange(60) // 2, "group": np.repeat(["a", "b"], 30)},
                       schema(owner="who", most=2), epsilon=EPSILON, delta=DELTA, certify=0.2)


@pytest.mark.slow
def test_the_command_prints_and_stores_it(tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    columns = table()
    rows.write_text("age,group,ill\n" + "\n".join(
        f"{a},{g},{y}" for a, g, y in zip(*columns.values(), strict=True)))
    toml = tmp_path / "schema.toml"
    toml.write_text('[label]\nname = "ill"\npositive = "1"\n[groups]\nname = "group"\n'
                    'values = ["a", "b"]\n[columns.age]\nrange = [18, 90]\n')
    asked = ["train", str(rows), "--schema", str(toml), "--epsilon", "4", "--delta", "1e-4",
             "--certify", "0.2", "--quiet"]
    main.main([*asked, "--out", str(tmp_path / "model")])
    assert "Certificate: at most" in " ".join(capsys.readouterr().out.split())
    record = json.loads((tmp_path / "model" / "report.json").read_text())
    assert record["certificate"]["bound"] < 1
    assert "certificate" in (tmp_path / "model" / "report.html").read_text()
