"""`check` prints public facts without a budget, and with one a release that is charged."""

import json
import math

import jax
import numpy as np
import pandas as pd
import pytest

import jaxminimax as jmm
from jaxminimax import __main__ as main
from jaxminimax.accounting import Ledger
from jaxminimax.apps import commands
from jaxminimax.apps.tables import Category, Charged, Number, Schema, check, records

SCHEMA = """
[label]
name = "ill"
positive = "yes"
[columns.age]
range = [18, 90]
[columns.job]
categories = ["desk", "field"]
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(SCHEMA)
    pd.DataFrame({"id": range(200), "age": [17, 30, 95, None] * 50,
                  "job": ["desk", "pilot", "", "Desk"] * 50,
                  "ill": ["yes", "no"] * 100}).to_csv("t.csv", index=False)


def printed(capsys, *words, status=0):
    assert main.main(["check", "t.csv", "--schema", "s.toml", *words]) == status
    return capsys.readouterr()


def test_without_a_budget_nothing_depends_on_a_cell(here, capsys, monkeypatch):
    monkeypatch.setattr(check, "release", None)
    first = printed(capsys)
    assert "200 records (one row), 3 features" in first.out
    assert "age: a number in [18, 90], and cells outside are clipped; missing cells" in first.out
    assert "Nothing was released" in first.out
    pd.DataFrame({"id": range(200), "age": "x", "job": "field", "ill": "no"}).to_csv(
        "t.csv", index=False)
    assert printed(capsys) == first


@pytest.mark.slow
def test_with_a_budget_counts_are_released_with_a_statement(here, capsys):
    record = json.loads(printed(capsys, "--epsilon", "8", "--delta", "1e-3", "--json").out)
    assert 7.99 < record["statement"]["epsilon"] <= 8
    assert record["statement"]["allowed"] == 1
    deviation, counts = record["standard_deviation"], record["counts"]
    assert {name: set(one) for name, one in counts.items()} == {
        "age": {"missing", "clipped"}, "job": {"missing", "unseen"}, "ill": {"positive", "missing"}}
    for count, right in ((counts["age"]["clipped"], 100), (counts["age"]["missing"], 50),
                         (counts["job"]["unseen"], 100), (counts["ill"]["positive"], 100)):
        assert 0 < abs(count - right) < 6 * deviation < 25


@pytest.mark.parametrize(("words", "message"), [
    (("--epsilon", "1"), "go together"), (("--ledger", "l.json"), "--epsilon and --delta too"),
    (("--name", "x"), "--ledger FILE"), (("--epsilon", "1", "--delta", "0.01"), "1/n")])
def test_half_a_budget_is_refused(here, capsys, words, message):
    assert message in printed(capsys, *words, status=2).err


def test_a_ledger_is_charged_before_the_release_or_refuses_it(here, capsys, monkeypatch):
    ledger = Ledger("l.json", epsilon=1.0, delta=1e-3)
    words = ("--epsilon", "0.5", "--delta", "1e-5", "--ledger", "l.json", "--name")
    printed(capsys, *words, "first")
    (run,) = ledger.statement().runs
    described = check.counts_query(200, 5, 0.5, 1e-5)
    assert run["charge"] == ledger._rule.charge(described, 1e-3, "replace_one")
    monkeypatch.setattr(check, "release", None)
    assert "are left" in printed(capsys, "--epsilon", "3", *words[2:], "second", status=2).err
    assert len(ledger.statement().runs) == 1


# --- the release ---


def many(n=50, columns=80):
    draw = np.random.default_rng(0)
    schema = Schema({f"x{k}": Number(0, 1) if k % 2 else Category(("0",)) for k in range(columns)},
                    "y", 1, "who", 2)
    cells = {name: draw.choice([-1.0, 0.0, np.nan], n) for name in schema.columns}
    table = cells | {"y": draw.integers(0, 2, n), "who": np.arange(n) // 2}
    return table, records.records(*check._flaws(schema, table), records.by_person(
        n, schema.owners(table), 2))


def test_no_record_is_longer_than_the_clip_norm_and_counts_are_those_of_persons():
    _, rows = many()
    places = rows.x.shape[-1]
    lengths = np.linalg.norm(rows.x - 0.5, axis=-1)
    clip = float(check.counts_query(25, places, 1.0, 1e-4).query.clip.w)
    np.testing.assert_allclose(lengths, clip, rtol=1e-6)
    assert clip == math.sqrt(places) / 2
    silent = jmm.Repeat(query=jmm.Query(clip=jmm.Saddle(clip, None), population=25,
                                        noise_multiplier=jmm.Saddle(0.0, None)), times=1)
    counts = check.release_counts(jax.random.key(0), silent, rows)
    np.testing.assert_allclose(counts, rows.x.mean(1).sum(0), atol=1e-3)


def test_the_noise_is_what_is_charged():
    """One release of 161 counts: their deviation is known to six per cent."""
    _, rows = many()
    described = check.counts_query(25, rows.x.shape[-1], 1.0, 1e-4)
    assert 0.999 < jmm.epsilon(described, 1e-4) <= 1
    counts = check.release_counts(jax.random.key(1), described, rows)
    query = described.query
    assert np.std(counts - rows.x.mean(1).sum(0)) == pytest.approx(
        float(query.clip.w * query.noise_multiplier.w), rel=0.25)


@pytest.mark.parametrize("people", [1, 3])
def test_counts_are_stated_for_all_rows_of_a_person(here, capsys, monkeypatch, people):
    asked = []
    monkeypatch.setattr(check, "release_counts", lambda _, described, rows: (
        asked.append(described), np.zeros(rows.x.shape[-1]))[1])
    stated = json.loads(printed(capsys, "--epsilon", "2", "--delta", "1e-4", "--people",
                                str(people), "--json").out)["statement"]
    assert (stated["people"], stated["allowed"]) == (people, 1)
    attained = jmm.epsilon(asked[0], 1e-4, people=people)
    assert stated["epsilon"] == pytest.approx(attained, rel=1e-9)
    assert 0.998 * 2 < attained <= 2


# --- what must be stated ---


def arguments(*given):
    return commands.parser_of("").parse_args(
        ["check", "t.csv", "--epsilon", "1", "--delta", "1e-6", *given])


def test_options_stand_for_a_schema():
    args = arguments("--label", "y", "--positive", "1", "--numeric", "a", "b=0:1", "--categorical",
                "c=u|v", "--ranges", "charged", "--owner", "who", "--most", "3")
    table = pd.DataFrame(0, range(400), ["a", "b", "c", "y", "who"])
    columns = {"a": Charged(), "b": Number(0, 1), "c": Category(("u", "v"))}
    schema = check.schema_of(args, lambda: table)
    assert schema == Schema(columns, "y", 1, "who", 3) == Schema.from_dict(schema.to_dict())


@pytest.mark.parametrize(("given", "message"), [
    ((), r"(?s)--label NAME.*of 4 columns \(none declared.*epsilon = 0\.\d+"),
    (("--label", "y"), r"(?s)of age, job.*userId: by its name it says whose row.*epsilon = 0\.\d+"),
    (("--label", "y", "--positive", "1", "--numeric", "age"), r"no range.*--ranges charged"),
    (("--label", "y", "--positive", "1", "--numeric", "age=1-2"), "two numbers"),
    (("--label", "y", "--positive", "1", "--categorical", "job"), "codebook"),
    (("--schema", "s.toml", "--label", "y"), "exclude each other"),
])
def test_what_is_missing_is_said(given, message):
    with pytest.raises(ValueError, match=message):
        check.schema_of(arguments(*given), lambda: pd.DataFrame(
            0, range(1000), ["userId", "age", "job", "y"]))
