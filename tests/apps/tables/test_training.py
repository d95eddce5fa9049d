"""One order for every entry: charged, then released, then closed; and one key for one run.

Releases are stubs that return their start, so nothing is compiled. The entries are `train`, `fit`
of every estimator, and `check`.
"""

import functools

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn import model_selection

import jaxminimax as jmm
from benchmarks.privacy.mutants import tables as mutants
from jaxminimax import __main__ as main
from jaxminimax import estimators
from jaxminimax.apps.tables import (
    Category,
    Charged,
    Number,
    Schema,
    fair,
    linear,
    preparation,
    records,
    train,
    training,
    unfinished,
)
from jaxminimax.releases import sums

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
ENTRIES = (*SCHEMAS, *FITS)
OWNED = {"owners", "ranges", "owners of fit"}
QUICK = {"rows", "ranges", "owners", "auc", "ranges of fit", "owners of fit", "people of fit"}


def rest_slow(names, quick=QUICK):
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


def model_of(name, **how):
    form, _, parameters, _ = FITS[name]
    return form(EPSILON, DELTA, **{"bounds": (-4.0, 90.0), **parameters, **how})


def through(name, ledger=None, seed=7, table=TABLE, **how):
    """The scorer that `train` or `fit` makes."""
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


class StoppedError(Exception):
    """Ends a run on the way."""


class ReleasedError(Exception):
    """In place of the first release."""


def stop(*_, **__):
    raise ReleasedError


@pytest.mark.parametrize("name", ENTRIES)
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


@pytest.mark.parametrize("name", ["rows", "ranges", "auc"])
def test_several_processes_are_refused_before_anything_is_charged_or_released(
        name, tmp_path, monkeypatch):
    monkeypatch.setattr(sums, "compiled_release", stop)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for ledger in (None, ledger_of(name, tmp_path)):
        with pytest.raises(ValueError, match=r"2 processes would each release .* charge a ledger"):
            through(name, ledger)
    assert not ledger.statement().runs


@pytest.mark.parametrize("name", rest_slow(ENTRIES))
def test_a_run_is_charged_for_all_that_it_released_and_closed(name, tmp_path):
    ledger = ledger_of(name, tmp_path)
    with mutants.without_releases():
        scorer = through(name, ledger)
    people = scorer.statement.people
    assert people == ledger.people
    assert jmm.epsilon(scorer.described, DELTA, people=people) == pytest.approx(
        scorer.statement.epsilon, rel=1e-6)
    assert 0.998 * EPSILON < scorer.statement.epsilon <= EPSILON
    (run,) = ledger.statement().runs
    charge = ledger._rule.charge(scorer.described, 1e-3, "replace_one", people)
    if scorer.certificate is None:
        assert run["charge"] == charge
    else:  # of training and certificate, on disjoint rows: the dearer of both
        assert "mean losses" in run["words"]
        assert all(run["charge"][amount] >= x for amount, x in charge.items())
    assert run["closed"] is not None
    for part in (*scorer.statement.parts, *("losses of rows held out",) * bool(scorer.certificate)):
        assert f"{part}: " in run["words"], "each release by what it is"


def check_of(ledger, tmp_path):
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    words = ["check", str(tmp_path / "t.csv"), "--label", "ill", "--positive", "1", "--numeric",
             "age=18:90", "--epsilon", str(EPSILON), "--delta", str(DELTA), "--ledger", str(ledger)]
    assert main.main(words) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", rest_slow(["rows", "auc", "fair", "worst group", "check"]))
def test_a_ledger_that_adds_deltas_charges_that_of_the_run(name, tmp_path, monkeypatch):
    """And no tenth of its own; a delta that is larger than all of it is refused."""
    ledger = ledger_of(name, tmp_path, filter="basic", delta=5e-4)
    with mutants.without_releases():
        if name == "check":
            check_of(tmp_path / "l.json", tmp_path)
        else:
            through(name, ledger)
    (run,) = ledger.statement().runs
    assert run["charge"]["delta"] == DELTA
    assert run["charge"]["epsilon"] == pytest.approx(EPSILON, rel=2e-3)


# --- a run that was stopped goes on ---


def in_a_folder(name, folder, ledger):
    """The scorer of a training with a folder; estimators have none, so theirs is prepared here."""
    if name in SCHEMAS:
        return through(name, ledger, folder=folder)
    schema = Schema({"age": Number(18, 90)}, "ill", "1")
    groups = preparation.PrivateGroups((TABLE.sex == "m").to_numpy().astype(int), ("f", "m"))
    prepared = preparation.prepare(records.encoded(TABLE, schema), schema, fair.fair_defaults,
                                   epsilon=EPSILON, delta=DELTA, names=(), groups=groups)
    return training.carry_out(prepared, KEY, fair.train_fair, ledger=ledger, folder=folder)


_LINE = ("moments", "preconditioner", "line")
STAGES = {"rows": _LINE, "owners": _LINE, "ranges": ("ranges", *_LINE), "minimax": ("moments",),
          "groups": (*_LINE, "losses"), "certificate": (*_LINE, "losses"),
          "number": ("moments", "preconditioner"), "fair": ("moments", "shares")}


@pytest.mark.parametrize(("name", "saved"), [
    pytest.param(name, saved, marks=pytest.mark.slow if (name, saved) in (
        ("rows", True), ("ranges", True), ("number", False), ("fair", True))
        else pytest.mark.nightly)
    for name in STAGES for saved in (True, False)])
def test_a_training_that_was_stopped_after_a_release_makes_none_twice_and_is_charged_once(
        name, saved, tmp_path, monkeypatch):
    """Stopped before a release is saved, it is made again with its own key: the same noise."""
    sound, names = unfinished.Unfinished.once, []

    def trained(folder, stop=None):
        def once(job, stage, make):
            names.append(stage)
            if stage == stop and not saved:
                make()
                raise StoppedError
            result = sound(job, stage, make)
            if stage == stop:
                raise StoppedError
            return result

        with mutants.without_releases() as made, monkeypatch.context() as patched:
            patched.setattr(unfinished.Unfinished, "once", once)
            try:
                return in_a_folder(name, folder, ledger), made
            except StoppedError:
                return None, made
            finally:
                jax.effects_barrier()

    ledger = ledger_of(name, tmp_path)
    full, made = trained(tmp_path / "full")
    (whole,) = ledger.statement().runs
    assert tuple(names) == STAGES[name]
    rounds = {one[:3] for one in made if one.number == 1}
    for stage in STAGES[name]:
        (tmp_path / stage).mkdir()
        ledger = ledger_of(name, tmp_path / stage)
        stopped, before = trained(tmp_path / stage / "run", stage)
        (run,) = ledger.statement().runs
        assert (stopped, run["closed"]) == (None, None)
        scorer, after = trained(tmp_path / stage / "run")
        (run,) = ledger.statement().runs
        assert run["charge"] == whole["charge"]
        assert run["closed"] is not None
        np.testing.assert_array_equal(scorer.weights, full.weights)
        assert scorer.statement == full.statement
        assert {*before, *after} == set(made), "no release with another key, number or setting"
        again = {one for one in before if one in after}
        assert {one for one in again if one[:3] not in rounds} == (
            set() if saved else {[x for x in before if x[:3] not in rounds][-1]})


# --- rows in files, and in shards ---


@pytest.mark.parametrize("name", ["auc", "owners of fit", "weights", "ranges of fit"])
def test_a_fit_of_rows_in_files_trains_on_those_of_rows_in_memory(name, tmp_path, monkeypatch):
    read, how = [], {"class_weight": {0: 1.0, 1: 3.0}} if name == "weights" else {}
    monkeypatch.setattr(linear, "train_linear", lambda run: read.append(run) or 1 / 0)
    for mapped in (records.MAPPED, 0):
        monkeypatch.setattr(records, "MAPPED", mapped)
        with mutants.without_releases(), pytest.raises(ZeroDivisionError):
            through("auc" if name == "weights" else name, **how)
    memory, mapped = read
    assert mapped.prepared.table.store._in_files
    assert not memory.prepared.table.store._in_files
    for one, two in zip((*memory.rows, memory.scaled_out), (*mapped.rows, mapped.scaled_out),
                        strict=True):
        np.testing.assert_array_equal(one, two)
    assert memory.prepared.settings == mapped.prepared.settings
    assert memory.prepared.class_weight == mapped.prepared.class_weight


@pytest.mark.slow
def test_rows_in_files_and_in_shards_give_the_scorer_of_rows_in_memory_bit_for_bit(monkeypatch):
    made = {}
    for mapped in (records.MAPPED, 0):
        monkeypatch.setattr(records, "MAPPED", mapped)
        for shards in (4, 4) if mapped else (4,):
            made[mapped, shards, len(made)] = through("rows", shards=shards).weights
        for name in ("owners of fit", "auc"):
            made.setdefault(name, []).append(through(name).weights)
    first, *others = (x for at, x in made.items() if isinstance(at, tuple))
    for pair in (*((first, x) for x in others), made["owners of fit"], made["auc"]):
        np.testing.assert_array_equal(*pair)
    one = through("rows").weights  # sums of shards are rounded in another order
    np.testing.assert_allclose(first, one, rtol=1e-3, atol=1e-3)


# --- one key for one run ---


@pytest.mark.parametrize("name", rest_slow(FITS, quick={"auc", "owners of fit"}))
def test_a_second_fit_with_one_seed_and_one_ledger_is_refused(name, tmp_path, monkeypatch):
    """Its noise would be equal, and the difference of both releases a record's own move."""
    ledger = ledger_of(name, tmp_path, epsilon=30.0)
    other = TABLE.assign(age=TABLE.age.where(TABLE.index > 0, 20.0))
    with mutants.without_releases() as made:
        through(name, ledger)
        jax.effects_barrier()
        before = len(made)
        for table, how in ((other, {}), (TABLE, {}), (other, {"epsilon": 2.0})):
            with pytest.raises(ValueError, match=r"equal noise.*random_state=None.*a seed of"):
                model = model_of(name, ledger=ledger, random_state=7).set_params(**how)
                model.fit(table[["age", "pay"]].to_numpy(), table[FITS[name][1]], **FITS[name][3])
        jax.effects_barrier()
        assert len(made) == before, "nothing was released"
        assert len(ledger.statement().runs) == 1
        through(name, ledger, seed=8)
        through(name, ledger, seed=None)
        through(name, ledger, seed=None)
    assert len(ledger.statement().runs) == 4


def test_folds_with_one_seed_and_a_ledger_are_refused_and_those_with_their_own_are_charged(
        tmp_path):
    ledger = ledger_of("auc", tmp_path, epsilon=20.0)
    fold = functools.partial(model_selection.cross_val_score, X=X, y=TABLE.ill, cv=3,
                             error_score="raise")
    with mutants.without_releases():
        with pytest.raises(ValueError, match=r"equal noise.*random_state=None"):
            fold(model_of("auc", ledger=ledger, random_state=0))
        assert len(ledger.statement().runs) == 1
        fold(model_of("auc", ledger=ledger))
        assert len(ledger.statement().runs) == 4
        fold(model_of("auc", random_state=0))  # where nothing is added up
        for seed in range(3):
            model_of("auc", ledger=ledger, random_state=seed + 1).fit(X, TABLE.ill)
    assert len(ledger.statement().runs) == 7
    assert all(run["closed"] is not None for run in ledger.statement().runs[1:])


def test_a_second_training_with_one_key_and_one_ledger_is_refused(tmp_path):
    ledger = ledger_of("rows", tmp_path, epsilon=20.0)
    with mutants.without_releases():
        through("rows", ledger)
        for name in ("rows", "groups"):
            with pytest.raises(ValueError, match=r"begun before|used for another run"):
                through(name, ledger)
    assert len(ledger.statement().runs) == 1


# --- one wording of the unit ---


@pytest.mark.parametrize("unit", [None, "one person", "one person, the first 2 rows of whom are "
                                  "read"])
def test_train_and_fit_say_one_unit_and_one_ledger_takes_them(unit, tmp_path):
    ledger = ledger_of("owners", tmp_path, epsilon=20.0, unit=unit)
    stated = set()
    with mutants.without_releases():
        for name, seed in (("owners", 1), ("owners of fit", 2)):
            if unit is None:  # "one record"
                with pytest.raises(ValueError, match="cannot be added"):
                    through(name, ledger, seed)
                continue
            stated.add(through(name, ledger, seed).statement.unit)
    assert stated == (set() if unit is None else {
        "one person, the first 2 rows of whom are read"})
    assert len(ledger.statement().runs) == len(stated) * 2


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["one row", "one record"])
def test_rows_are_records(unit, tmp_path):
    ledger = ledger_of("rows", tmp_path, epsilon=20.0, unit=unit)
    with mutants.without_releases():
        assert through("rows", ledger, 1).statement.unit == "one row"
        assert through("auc", ledger, 2).statement.unit == "one row"
    check_of(tmp_path / "l.json", tmp_path)
    assert len(ledger.statement().runs) == 3
