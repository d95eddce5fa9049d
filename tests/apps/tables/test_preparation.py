"""Every number of a `Prepared` follows from what was asked, and nothing that was prepared is lost.

The settings are those of an independent call of the rule, with the records, the people and the
ranges that the test counts itself.
"""

import dataclasses

import jax
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax.apps.tables import (
    Charged,
    Number,
    Schema,
    defaults,
    fair,
    linear,
    preparation,
    records,
    scorer,
    statistics,
    train,
    training,
)
from jaxminimax.apps.tables.preparation import PrivateGroups
from jaxminimax.base import identity
from jaxminimax.releases import release_keys

EPSILON, DELTA, N = 4.0, 1e-4, 600
rng = np.random.default_rng(0)
TABLE = {"a": rng.uniform(-1, 1, N), "b": rng.normal(0, 9, N), "who": np.arange(N) // 3,
         "g": np.array(["p", "q"])[np.arange(N) // 3 % 2]}
TABLE["y"] = (TABLE["a"] > 0).astype(int)
ROWS = Schema({"a": Number(-1, 1)}, "y", "1")
OWNED = dataclasses.replace(ROWS, owner="who", most=2)
CHARGED = dataclasses.replace(ROWS, columns={"a": Number(-1, 1), "b": Charged()})
GROUPED = dataclasses.replace(ROWS, groups="g", group_values=("p", "q"))


def prepared_of(schema, rule_of=defaults, groups=None, **how):
    table = records.encoded(TABLE, schema)
    return preparation.prepare(table, schema, rule_of, **{
        "epsilon": EPSILON, "delta": DELTA, "names": list(TABLE), "rows_per_owner": schema.most,
        "groups": groups if groups is not None else table.public_groups(schema), **how})


@pytest.mark.parametrize("people", [1, 3])
@pytest.mark.parametrize("schema", [ROWS, OWNED, CHARGED], ids=["rows", "owners", "ranges"])
def test_the_settings_are_those_of_the_persons_the_people_and_the_ranges(schema, people):
    if schema is OWNED and people > 1:
        with pytest.raises(ValueError, match="a person is one record"):
            prepared_of(schema, people=people)
        return
    one = prepared_of(schema, people=people)
    n = N // 3 if schema is OWNED else N
    ranges = statistics.ranges_query(n, schema, EPSILON, DELTA, people)
    assert one.population == n
    assert one.ranges == (ranges[0] if ranges else None)
    assert one.settings == defaults(n, schema, epsilon=EPSILON, delta=DELTA, alongside=ranges,
                                    people=people)
    cost = jmm.epsilon(one.mechanism(), DELTA, people=people)
    assert 0.998 * EPSILON < cost <= EPSILON, "with ranges, and for all records of a person"
    assert (identity.NAMES in one.assumed) is (schema is OWNED)
    assert any(words.startswith("Ranges of b were released") for words in one.assumed) is (
        schema is CHARGED)
    assert one.unit == {1: "one row", 3: "one person"}[people] if schema is not OWNED else (
        "one person, the first 2 rows of whom are read")


@pytest.mark.parametrize("schema", [ROWS, OWNED], ids=["rows", "owners"])
def test_a_delta_of_one_in_the_number_of_records_is_refused(schema):
    n = N // 3 if schema is OWNED else N
    with pytest.raises(ValueError, match=f"n = {n} records"):
        prepared_of(schema, delta=1 / n)
    assert prepared_of(schema, delta=1 / n, allow_large_delta=True).settings.delta == 1 / n


def test_public_groups_are_of_persons():
    one = prepared_of(dataclasses.replace(OWNED, groups="g", group_values=("p", "q")))
    assert one.groups.number.tolist() == [0, 1] * (N // 6)
    assert one.settings.losses.sizes == (N // 6, N // 6)
    table = records.encoded(TABLE, OWNED)
    with pytest.raises(ValueError, match="rows of several groups"):
        prepared_of(OWNED, groups=records.Groups(np.arange(len(table.labels)) % 2, ("p", "q")))


def test_private_groups_are_those_of_each_persons_own_rows():
    number = np.arange(N) % 3 % 2  # 0, 1, 0 of each person's rows
    one = prepared_of(OWNED, fair.fair_defaults, PrivateGroups(number, ("p", "q"), ("stated",)))
    assert one.groups.number.tolist() == [[0, 1]] * (N // 3)
    assert one.groups.assumed == ("stated",)
    last = TABLE | {"who": np.append(TABLE["who"][:-1], -1)}  # a person of one row
    table = records.encoded(last, OWNED)
    one = preparation.prepare(
        table, OWNED, fair.fair_defaults, epsilon=EPSILON, delta=DELTA, names=(),
        groups=PrivateGroups(number, ("p", "q")), rows_per_owner=2)
    place = np.flatnonzero(one.row_numbers[:, 0] == N - 1)
    assert one.groups.number[place].tolist() == [[number[-1], -1]], "no other person's group"


def test_rows_are_arranged_as_persons():
    one = prepared_of(OWNED)
    rows, scaled_out = one.arranged_rows()
    assert rows.x.shape == (N // 3, 2, 1)
    np.testing.assert_array_equal(rows.x[:, :, 0], np.float32(TABLE["a"]).reshape(-1, 3)[:, :2])
    np.testing.assert_array_equal(rows.weight, 0.5)
    assert np.shares_memory(rows.x, scaled_out)
    charged = prepared_of(dataclasses.replace(CHARGED, owner="who", most=2)).charged_rows()
    np.testing.assert_array_equal(charged.x[:, :, 0], TABLE["b"].reshape(-1, 3)[:, :2])
    assert prepared_of(ROWS).charged_rows() is None


def test_rows_that_are_held_out_are_in_no_other_part():
    one = prepared_of(GROUPED, certify=0.2)
    assert one.population == len(one.table.labels) == N - len(one.held.labels) > 0
    assert len(one.groups.number) == one.population
    together = np.concatenate([one.table.x[:, 0], one.held.x[:, 0]])
    assert sorted(together.tolist()) == sorted(np.float32(TABLE["a"]).tolist())
    assert one.mechanism() == jmm.mechanism.Parallel(
        parts=(one.settings.mechanism(), one.apart.losses))


def test_held_out_rows_decide_nothing_of_a_scorer(monkeypatch):
    """Of two tables that differ there alone, the releases of a training read equal rows."""
    places, read = prepared_of(GROUPED, certify=0.2).apart.held.rows, []
    monkeypatch.setattr(linear, "train_linear", lambda run: read.append(run) or 1 / 0)
    other = TABLE | {"a": TABLE["a"].copy()}
    other["a"][places] = -1
    for table in (TABLE, other):
        with pytest.raises(ZeroDivisionError):
            train(table, GROUPED, epsilon=EPSILON, delta=DELTA, certify=0.2)
    for one, two in zip(*(run.rows for run in read), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_statement_is_of_the_prepared_unit_people_and_words():
    one = prepared_of(ROWS, people=3, unit="one visit", assumed=("said",))
    keys = release_keys.training_keys(jax.random.key(0, impl="threefry2x32"), False)
    run = linear.Run(one, keys, ROWS, *one.arranged_rows(), lambda _, make: make(), {})
    state = one.settings.algorithm.init(jmm.Saddle(np.zeros(2, np.float32), ()),
                                        one.settings.hyper)
    moments = scorer.Moments(np.zeros(1), np.ones(1), 0.5)
    stated = run.scorer(np.zeros(2), moments, state).statement
    assert (stated.people, stated.unit) == (3, "one visit")
    assert "said" in stated.assumed
    assert one.settings.explain() in stated.assumed


def test_a_table_is_for_one_training(tmp_path):
    """Its rows are scaled in place: equal noise would stand on other numbers."""
    one = prepared_of(ROWS)
    with pytest.raises(ZeroDivisionError):
        training.carry_out(one, None, lambda run: 1 / 0)
    for again in (one, dataclasses.replace(one, people=1)):
        with pytest.raises(ValueError, match="prepare, anew"):
            training.carry_out(again, None, lambda run: 1 / 0, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nothing_that_was_prepared_prints_a_record():
    assert "0." not in repr(prepared_of(OWNED))
    assert len(repr(prepared_of(OWNED))) < 200
