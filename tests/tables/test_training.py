"""One order for every door: charged, then released, then closed; and one key for one run.

Releases are stubs that return their start, so nothing is compiled. The doors are `train`, `fit` of
every estimator, and `check`.
"""

import jax
import numpy as np
import pandas as pd
import pytest

import jaxminimax as jmm
from jaxminimax import estimators
from jaxminimax.releases import sums
from jaxminimax.tables import Category, Charged, Number, Schema, train

KEY = jax.random.key(7, impl="threefry2x32")
EPSILON, DELTA = 4.0, 1e-4
rng = np.random.default_rng(0)
N = 400
TABLE = pd.DataFrame({
    "age": rng.uniform(18, 90, N), "pay": rng.normal(0, 1, N), "job": rng.choice(["a", "b"], N),
    "who": np.arange(N) // 2, "sex": np.array(["f", "m"])[np.arange(N) // 2 % 2]})
TABLE["ill"] = (TABLE.age > 54).astype(int)
TABLE["kind"] = np.array(["u", "v", "w"])[np.arange(N) % 3]
COLUMNS = {"age": Number(18, 90), "job": Category(("a", "b"))}
GROUPS = {"groups": "sex", "group_values": ("f", "m")}
X = TABLE[["age", "pay"]].to_numpy()

SCHEMAS = {
    "rows": (Schema(COLUMNS, "ill", "1"), {}),
    "people": (Schema(COLUMNS, "ill", "1"), {"people": 2}),
    "owners": (Schema(COLUMNS, "ill", "1", "who", 2), {}),
    "ranges": (Schema({"pay": Charged()}, "ill", "1", "who", 2), {}),
    "groups": (Schema(COLUMNS, "ill", "1", **GROUPS), {}),
    "minimax": (Schema(COLUMNS, "ill", "1", **GROUPS, by_label=True), {}),
    "certificate": (Schema(COLUMNS, "ill", "1", **GROUPS), {"certify": 0.2}),
    "number": (Schema(COLUMNS, "pay", target=Number(-4, 4)), {})}
FITS = {
    "auc": (estimators.PrivateAUCClassifier, "ill", {}, {}),
    "ranges of fit": (estimators.PrivateAUCClassifier, "ill", {"bounds": None}, {}),
    "owners of fit": (estimators.PrivateAUCClassifier, "ill", {"most": 2}, {"owners": TABLE.who}),
    "people of fit": (estimators.PrivateAUCClassifier, "ill", {"people": 2}, {}),
    "classes": (estimators.PrivateClassifier, "kind", {}, {}),
    "regressor": (estimators.PrivateRegressor, "pay", {"label_range": (-4, 4)}, {}),
    "worst group": (estimators.PrivateWorstGroupClassifier, "ill", {"held_out": 0.2},
                    {"groups": TABLE.sex}),
    "fair": (estimators.PrivateFairClassifier, "ill", {}, {"groups": TABLE.sex})}
DOORS = (*SCHEMAS, *FITS)
OWNED = {"owners", "ranges", "owners of fit"}


def model_of(name, **how):
    form, _, parameters, _ = FITS[name]
    return form(EPSILON, DELTA, **{"bounds": (-4.0, 90.0), **parameters, **how})


def through(name, ledger=None, seed=7, table=TABLE, **how):
    """What a door makes."""
    if name in SCHEMAS:
        schema, given = SCHEMAS[name]
        return train(table, schema, ledger=ledger, epsilon=EPSILON, delta=DELTA, **given, **how,
                     key=None if seed is None else jax.random.key(seed, impl="threefry2x32"))
    _, label, _, given = FITS[name]
    model = model_of(name, ledger=ledger, random_state=seed, **how)
    return model.fit(table[["age", "pay"]].to_numpy(), table[label], **given).scorer_


def ledger_of(name, path, **how):
    return jmm.accounting.Ledger(path / "l.json", **{
        "epsilon": 9.0, "delta": 1e-3, "people": 2 if "people" in name else 1,
        "unit": "one person" if name in OWNED else None, **how})


class ReleasedError(Exception):
    """In place of the first release."""


def stop(*_, **__):
    raise ReleasedError


@pytest.mark.parametrize("name", DOORS)
def test_a_refusing_ledger_has_no_entry_and_no_release_and_a_granting_one_has_it_before(
        name, tmp_path, monkeypatch):
    monkeypatch.setattr(sums, "compiled_release", stop)
    (tmp_path / "small").mkdir()
    small = ledger_of(name, tmp_path / "small", epsilon=0.1)
    with pytest.raises(ValueError, match="are left"):
        through(name, small)
    assert not small.statement().runs
    ledger = ledger_of(name, tmp_path)
    with pytest.raises(ReleasedError):
        through(name, ledger)
    (run,) = ledger.statement().runs
    assert run["closed"] is None, "it may have released something"


@pytest.mark.parametrize("other", [1, 3])
def test_a_ledger_of_another_number_of_people_is_refused(other, tmp_path, monkeypatch):
    monkeypatch.setattr(sums, "compiled_release", stop)
    ledger = ledger_of("people", tmp_path, people=other)
    for name in ("people", "people of fit"):
        with pytest.raises(ValueError, match="people = 2, and the ledger for"):
            through(name, ledger)
