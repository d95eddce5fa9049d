"""Tables from the command line: what must be stated, what is charged, and runs that go on."""

import decimal
import hashlib
import itertools
import json
import math
import pathlib
import stat

import jax
import numpy as np
import pandas as pd
import polars as pl
import pyarrow
import pytest
from sklearn.metrics import roc_auc_score

import jaxminimax as jmm
from jaxminimax import __main__ as main
from jaxminimax.accounting.statement_text import RELATIONS
from jaxminimax.apps import commands
from jaxminimax.apps.tables import (
    Category,
    Charged,
    Number,
    Schema,
    columns,
    command,
    defaults,
    files,
    labels,
    preparation,
    report,
    rule,
    scorer,
    statistics,
    train,
    training,
    unfinished,
)
from jaxminimax.estimators import PrivateAUCClassifier
from jaxminimax.releases import sums

SCHEMA = Schema({"a": Charged(), "b": Number(0, 1), "c": Category(("u", "v"))}, "y", 1)


def made(n=400, seed=0):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"a": rng.normal(40, 10, n), "b": rng.uniform(0, 1, n),
                          "c": rng.choice(["u", "v"], n)})
    table["y"] = (rng.uniform(size=n) < 1 / (1 + np.exp(-(table.a - 40) / 5))).astype(int)
    return table


# --- files ---


@pytest.mark.parametrize("text", [
    "a,b,y\n1,u,yes\n2,v,no\n", "\ufeffa;b;y\r\n1;u;yes\r\n2;v;no\r\n",
    "a\tb\ty\n1\tu\tyes\n2\tv\tno",
    '\n"a", "b", y\n1, "u", yes\n2, v, no\n', "a|b|y\r1|u|yes\r2|v|no\r"])
def test_separators_marks_and_line_ends_are_read_off_the_header(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8", newline="")
    frame = files.read(path)
    assert frame.to_dict("list") == {"a": ["1", "2"], "b": ["u", "v"], "y": ["yes", "no"]}


def test_quoted_names_and_cells_may_hold_separators(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('"a;b";"c\nd"\n"1;2";"x,y"\n', encoding="utf-8")
    assert files.read(path).to_dict("list") == {"a;b": ["1;2"], "c\nd": ["x,y"]}


@pytest.mark.parametrize(("text", "message"), [
    ("a,a,y\n1,2,3\n", "several columns have one name, columns 1, 2"), ("", "no header line"),
    ("a,y\n1,2\n1,2,3\n", "line 3"), ("a,y\n1,2\n1\r,2\n", "line 3 has a carriage return"),
    ("a,y\r1,2\r1\n,2\r", "line 1 has a carriage return")])
def test_a_file_that_is_no_table_is_refused(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        files.read(path)


def test_bytes_that_are_no_text_spoil_their_cell_alone(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n\xe9,1\nu,2\n")
    assert files.read(path).to_dict("list") == {"a": ["\udce9", "u"], "b": ["1", "2"]}


CELLS = ("1.5", "1e400", "-0", " 7", "00012", "9007199254740993", "0.1", "1e", "True", "false", "?",
         "", "NaN", "-inf", "1_0", "0x1F", "3.0000000000000004", "\u0663", "text", '"2,5"', "TRUE")


@pytest.mark.slow
def test_a_cell_of_a_file_is_the_same_number_in_any_company(tmp_path):
    """So that no person's cell changes how another's is read: alone, in pairs, as text."""
    path, kind = tmp_path / "t.csv", Number(-20, 20, missing=True)
    for cells in itertools.product(CELLS, repeat=2):
        path.write_text("who,x\n" + "".join(f"a,{cell}\n" for cell in cells), encoding="utf-8")
        text = files.read(path)["x"]
        actual = columns.as_numbers(files.read(path, ["x"])["x"])
        assert np.array_equal(actual, columns.as_numbers(text), equal_nan=True)
        alone = [columns.as_numbers([cell.strip('"')])[0] for cell in cells]
        assert np.array_equal(actual, alone, equal_nan=True)
        assert np.all(np.abs(kind.encode(actual)) <= 1)


@pytest.mark.parametrize("line", ["", "   ", ",", "1", "1,2,3"])
def test_lines_without_all_cells_read_alike_as_numbers_and_as_text(tmp_path, line):
    (tmp_path / "t.csv").write_text(f"\nx,y\n0,1\n{line}\n1,1\n", encoding="utf-8")
    if line.count(",") > 1:
        with pytest.raises(ValueError, match=r"one cell more|saw 3"):
            files.read(tmp_path / "t.csv", ["x"])
        return
    frame, text = files.read(tmp_path / "t.csv", ["x"]), files.read(tmp_path / "t.csv")
    actual = columns.as_numbers(frame["x"])
    assert np.array_equal(actual, columns.as_numbers(text["x"]), equal_nan=True)
    assert frame["y"].tolist() == text["y"].tolist()


def test_parquet_and_polars_are_the_same_table(tmp_path):
    table = made(30)
    table.to_parquet(tmp_path / "t.parquet")
    schema = Schema({"a": Number(0, 80), "c": Category(("u", "v"))}, "y", 1)
    for other in (files.read(tmp_path / "t.parquet"), pl.DataFrame(table.to_dict("list")),
                  pyarrow.table(table.to_dict("list"))):
        assert np.array_equal(schema.features(other), schema.features(table))
        assert np.array_equal(schema.labels(other), schema.labels(table))


def test_estimators_take_polars_frames():
    frame = pl.DataFrame(made(30).drop(columns="y").to_dict("list"))
    y = np.arange(30) % 2
    kinds = {"a": Number(0, 80), "b": Number(0, 1)}
    table, _ = PrivateAUCClassifier(schema=kinds)._table(frame, y)
    assert np.array_equal(Schema(kinds, "y", 1).features(table)[:, 1],
                          Schema(kinds, "y", 1).features(made(30))[:, 1])
    numbers, _ = PrivateAUCClassifier(bounds=(0, 1))._table(frame.select("a", "b"), y)
    assert np.allclose(numbers["a"], frame["a"].to_numpy())


@pytest.mark.parametrize("read", [columns.as_numbers, columns.as_words])
def test_a_cell_reads_alike_in_any_company(read):
    cells = [1, True, 1.0, "1", "1.0", " 1 ", b"1", decimal.Decimal("1.50"), 1.5, "1.50", None,
             "TRUE", "true", False, 0, float("nan"), "", np.float32(1.5), [1], pd.NaT]
    company = np.empty(len(cells), object)
    company[:] = cells
    full = read(company)
    for cell, one in zip(cells, full, strict=True):
        alone = np.empty(1, object)
        alone[0] = cell
        assert read(alone)[0] == one or (one != one and read(alone)[0] != read(alone)[0])


def test_two_columns_of_one_name_and_of_two_lengths_are_refused():
    schema = Schema({"a": Number(0, 80), "b": Number(0, 1)}, "y", 1)
    twice = pd.concat([made(5), made(5)[["a"]]], axis=1)
    with pytest.raises(ValueError, match="2 columns 'a'"):
        schema.features(twice)
    with pytest.raises(ValueError, match="one length"):
        schema.features({"a": [1, 2], "b": [1], "y": [0, 1]})


# --- settings in words ---


def test_settings_are_said_in_words():
    stated = defaults(5000, SCHEMA, epsilon=1.0, delta=1e-6).explain()
    for word in ("Features", "Sampler", "batch", "Clip norm", "Noise", "Rounds", "Optimiser",
                 "momentum", "Averaging"):
        assert word in stated


def test_a_delta_near_one_over_n_is_told_at_smaller_ones():
    n = 5092
    chosen = defaults(n, SCHEMA, epsilon=1.0, delta=n**-1.1)
    actual = rule.other_deltas(chosen.mechanism(), n, chosen.delta)
    assert list(actual.values()) == [jmm.epsilon(chosen.mechanism(), x) for x in (1e-6, n**-2.0)]
    assert 1 < actual["1e-06"] < list(actual.values())[1]
    assert "near 1/n" in chosen.notes()[-1].text
    assert not any("near 1/n" in x.text for x in defaults(n, SCHEMA, epsilon=1, delta=1e-6).notes())


# --- standard errors ---


def test_areas_and_their_errors_have_their_law():
    rng = np.random.default_rng(0)
    actual = []
    for _ in range(400):
        y = np.arange(90) < 30
        scores = np.round(rng.normal(y * 0.8, 1.0), 1)  # with ties
        actual.append(command.area(scores, y))
    auc, error = np.array(actual, float).T
    assert auc[-1] == pytest.approx(roc_auc_score(y, scores))
    assert np.mean(error**2) == pytest.approx(np.var(auc), rel=0.15)
    assert command.area([0.0, 1.0], [0, 1]) == (1.0, None)


# --- charged ranges, and runs that go on ---


def test_charged_ranges_are_paid_from_the_same_epsilon():
    paid = statistics.ranges_query(4000, SCHEMA, 1.0, 1e-6)
    chosen = defaults(4000, SCHEMA, epsilon=1.0, delta=1e-6, alongside=paid)
    assert len(paid) == 1
    assert paid[0] in chosen.mechanism().parts
    assert 0.9999 < jmm.epsilon(chosen.mechanism(), 1e-6) <= 1
    assert statistics.ranges_query(4000, SCHEMA.without_charged(), 1.0, 1e-6) == ()
    with pytest.raises(ValueError, match="declare"):
        statistics.ranges_query(10**8, SCHEMA, 1.0, 1e-6)
    with pytest.raises(ValueError, match="released by train"):
        SCHEMA.features(made(5))


@pytest.mark.parametrize(("words", "message"), [
    (("--name", "first"), "--ledger FILE"),
    (("--ledger", "nowhere.json"), "no ledger at"),
    (("--people", "0"), "people must be an integer"),
    (("--people", "2", "--owner", "y2"), "a person is one record")])
def test_what_a_ledger_cannot_count_is_refused(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    made(40).to_csv("t.csv", index=False)
    assert main.main(["train", "t.csv", "--label", "y", "--positive", "1", "--numeric", "b=0:1",
                      "--epsilon", "1", "--delta", "1e-3", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("unit", "owner", "claim", "refused"), [
    ("one record", None, None, False), ("one person", "who", None, False),
    ("one record", "who", None, True), ("one person", None, None, True),
    ("one visit", None, None, True), ("one visit", None, "one visit", False)])
def test_a_ledger_takes_runs_of_its_own_unit(tmp_path, unit, owner, claim, refused):
    schema = Schema({"b": Number(0, 1)}, "y", 1, owner, 1 if owner is None else 5)
    ledger = jmm.accounting.Ledger(tmp_path / "l.json", epsilon=3.0, delta=1e-3, unit=unit)

    class Job:
        @staticmethod
        def reserve(ledger, described, *, unit, **_):
            ledger.check_same("The run", unit=unit)

    def charge():
        preparation.charge(Job, ledger, None, unit=claim, people=1, delta=1e-3,
                           rows_per_owner=None if owner is None else schema.most)

    if refused:
        with pytest.raises(ValueError, match="they cannot be added"):
            charge()
    else:
        charge()


@pytest.mark.slow
def test_the_noise_of_a_table_is_for_all_rows_of_a_person(tmp_path, capsys):
    """By every part of the run, ranges too; and a ledger is for the same number of rows."""
    made().to_csv(tmp_path / "t.csv", index=False)
    books = str(tmp_path / "l.json")
    how = ["--epsilon", "2", "--delta", "1e-5"]
    for other in ([], ["--people", "3"]):
        pathlib.Path(books).unlink(missing_ok=True)
        assert main.main(["ledger", books, "--epsilon", "3", "--delta", "1e-4", *other]) == 0
        capsys.readouterr()
        status = main.main([
            "train", str(tmp_path / "t.csv"), "--label", "y", "--positive", "1", "--numeric", "a",
            "b=0:1", "--ranges", "charged", *how, "--people", "3", "--ledger", books, "--json"])
        out, err = capsys.readouterr()
        assert status == (0 if other else 2), err
        assert other or "people = 3, and the ledger for 1" in err
    stated = json.loads(out)["statement"]
    assert (stated["people"], stated["unit"]) == (3, "one person")
    (run,) = jmm.accounting.Ledger(books).statement().runs
    schema = Schema({"a": Charged(), "b": Number(0, 1)}, "y", 1)
    paid = statistics.ranges_query(400, schema, 2.0, 1e-5, 3)
    chosen = defaults(400, schema, epsilon=2.0, delta=1e-5, alongside=paid, people=3)
    assert 1.99 < jmm.epsilon(chosen.mechanism(), 1e-5, people=3) <= 2
    assert stated["epsilon"] == pytest.approx(jmm.epsilon(chosen.mechanism(), 1e-5, people=3))
    assert run["charge"] == jmm.accounting.Ledger(books)._rule.charge(
        chosen.mechanism(), 1e-4, "replace_one", 3)


@pytest.mark.slow
def test_a_training_is_charged_for_all_that_it_releases_and_once_with_its_folder(tmp_path):
    table, schema = made(), SCHEMA.without(("c",))
    ledger = jmm.accounting.Ledger(tmp_path / "l.json", epsilon=3.0, delta=1e-3)
    how = {"epsilon": 1.0, "delta": 1e-5, "ledger": ledger, "name": "first"}
    scorers = [train(table, schema, folder=tmp_path / "run", **how) for _ in range(2)]
    assert np.array_equal(*(one.weights for one in scorers))
    (run,) = ledger.statement().runs
    assert run["closed"] is not None
    assert run["charge"] == ledger._rule.charge(scorers[0].described, 1e-3, "replace_one")
    assert len(scorers[0].described.parts) >= 3, "ranges, moments and rounds"
    with pytest.raises(ValueError, match="is in the ledger already"):
        train(table, schema, **how)
    with pytest.raises(ValueError, match="key was used for another run"):
        train(made(seed=1), schema, key=unfinished.Unfinished(tmp_path / "run").key, **how)


class StoppedError(Exception):
    """Ends a run on the way."""


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_and_releases_nothing_twice(tmp_path, monkeypatch):
    table, folder = made(), tmp_path / "run"
    monkeypatch.setattr(unfinished, "LONG", 0)
    target = {"epsilon": 2.0, "delta": 1e-6}

    def stop(state):
        if int(state.spent) >= 10:
            raise StoppedError

    with pytest.raises(StoppedError):
        train(table, SCHEMA, folder=folder, callback=stop, **target)
    assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
    with unfinished.Unfinished(folder) as job:
        key = job.key

    sound, seen, later = sums.compiled_release, [], []

    def again(key, described, *rest):
        """Calibration comes after the rounds, and was not released yet."""
        assert described.query.clip.w == labels.CALIBRATION_CLIP, "released twice"
        later.append(described)
        return sound(key, described, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(sums, "compiled_release", again)
        one = train(table, SCHEMA, folder=folder, callback=lambda s: seen.append(int(s.spent)),
                    **target)
    assert seen[0] > 10
    assert len(later) == 1
    full = train(table, SCHEMA, key=key, **target)
    assert np.array_equal(one.weights, full.weights)
    assert one.schema == full.schema
    assert not one.schema.charged
    assert one.statement == full.statement
    assert 0.9999 * 2 < one.statement.epsilon <= 2
    assert len(one.statement.sampling) == 5
    for other, message in ((made(seed=1), "table"), (table[::-1], "table")):
        with pytest.raises(ValueError, match=f"another {message}"):
            train(other, SCHEMA, folder=folder, **target)
    with pytest.raises(ValueError, match="another epsilon"):
        train(table, SCHEMA, folder=folder, epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="another seed or key"):
        train(table, SCHEMA, folder=folder, key=jax.random.key(0), **target)
    with monkeypatch.context() as patched:  # a later version that chooses other settings
        patched.setattr(rule, "SHARE", 0.2)
        with pytest.raises(ValueError, match="another setting"):
            train(table, SCHEMA, folder=folder, **target)
    for place in ({"mesh": jax.make_mesh((1,), ("data",))}, {"shards": 2}):  # rounds otherwise
        with pytest.raises(ValueError, match="another setting"):
            train(table, SCHEMA, folder=folder, **place, **target)


@pytest.mark.slow
def test_the_command_goes_on_with_its_own_key_and_forgets_it(tmp_path, monkeypatch, capsys):
    made().to_csv(tmp_path / "t.csv", index=False)
    given = ["train", str(tmp_path / "t.csv"), "--label", "y", "--positive", "1", "--numeric",
             "a=0:80", "b=0:1", "--epsilon", "2", "--delta", "1e-6", "--test-fraction", "0.25",
             "--out", str(tmp_path / "m"), "--json"]
    killed = []

    def kill(self, path):
        killed.append(self)
        raise StoppedError

    with monkeypatch.context() as patched:
        patched.setattr(scorer.Scorer, "save", kill)
        with pytest.raises(StoppedError):
            main.main(given)
    assert (tmp_path / "m" / "unfinished" / "0" / "key").exists()
    assert main.main(given) == 0
    stated = json.loads(capsys.readouterr().out)
    one = scorer.Scorer.load(tmp_path / "m" / "model.json")
    assert np.array_equal(one.weights, killed[0].weights)
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [
        "model.json", "report.html", "report.json"]
    assert stated["epsilon"] <= 2
    assert 0 < stated["auc_standard_error"] < 0.1
    page = (tmp_path / "m" / "report.html").read_text(encoding="utf-8")
    for part in ("Assumptions, each with the person", "Settings", "<li>Operator: The key is secret",
                 "trust model", "<dt>signature",
                 hashlib.sha256((tmp_path / "m" / "model.json").read_bytes()).hexdigest(),
                 "not stated: --by says"):
        assert part in page
    # one set of bounds on attacks, those of the noise, and each release by what it is
    said = jmm.accounting.Statement.from_json(stated["statement"])
    assert said == one.statement
    assert said.attack_bounds is not None
    for text in (page, str(one.statement).replace("\n    ", " ")):
        assert all(x in text for x in said.meaning())
        assert all(f"{part}{'</dt>' if text is page else ' '}" in text for part in said.parts)
    assert said.parts[-1] == "gradients"
    assert len(set(said.parts)) == len(said.parts) > 2


def test_a_delta_that_is_too_large_is_noted_on_the_page():
    query = jmm.Query(clip=jmm.Saddle(1.0, 1.0), noise_multiplier=jmm.Saddle(9.0, 9.0),
                      population=100)
    hyper = jmm.sgda.Hyper(query=query, step=jmm.Saddle(0.1, 0.1), iterations=1)
    by = scorer.Moments(np.zeros(4), np.zeros(4), 0.5)
    for delta, noted in ((0.02, 1), (1e-6, 0)):
        stated = jmm.statement(jmm.sgda, hyper, delta=delta)
        page = report.page(scorer.Scorer(SCHEMA, np.zeros(5), by, None,
                                         stated.to_json()), {})
        head, _ = page.split("<h2>The statement</h2>")
        assert head.count("Delta is too large") == noted
        assert page.count("Delta is too large") == 2 * noted  # in the statement's record, too
        assert f"for one record: {RELATIONS['replace_one']}" in head
    assert "of a seed" not in head
    assert "none, as the noise is of a seed, which others can guess" in report.page(
        scorer.Scorer(SCHEMA, np.zeros(5), by, None, stated.to_json()), {"seed": 7})


def test_noise_in_an_empty_cell_stretches_no_range():
    described = statistics.one_release(2000, math.sqrt(3), 10.0)
    deviation = described.query.clip.w * 10 / 2000
    drawn = np.random.default_rng(0).normal(0, deviation, (200, 3 * statistics.CELLS))
    assert np.mean((drawn > statistics.least_share(described)).any(1)) < 0.05


# --- rows held out ---


def trained(folder, frame, *words):
    """The bytes of the model that the command makes of a table, with a seed."""
    folder.mkdir()
    frame.to_csv(folder / "t.csv", index=False)
    args = commands.parser_of("").parse_args([
        "train", str(folder / "t.csv"), "--label", "y", "--positive", "1", "--numeric", "a=0:80",
        "b=0:1", "--epsilon", "2", "--delta", "1e-4", "--test-fraction", "0.25", "--seed", "3",
        "--out", str(folder / "m"), *words])
    command.train(args)
    return (folder / "m" / "model.json").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("owner", [None, pytest.param("who", marks=pytest.mark.slow)])
def test_a_model_is_the_same_to_the_bit_whatever_the_rows_held_out_are(tmp_path, monkeypatch,
                                                                       owner):
    """Of rows and of persons; and another one for each row that trains."""
    monkeypatch.setattr(command, "held_out", lambda *_: {"auc": None})  # without scikit-learn
    frame = made(60)[["a", "b", "y"]]
    frame["who"] = np.arange(60) // 3 if owner else np.arange(60)
    words = ("--owner", "who", "--most", "2") if owner else ()
    held = files.held_out(60, frame.who if owner else None, 0.25, 3)
    assert held.sum() == 15
    other, hostile = (frame.assign(**made(60, seed)[["a", "b", "y"]]) for seed in (1, 2))
    hostile["a"], hostile["b"] = math.inf, math.nan
    cells = np.tile(held[:, None], frame.shape[1])
    one, *others = (trained(tmp_path / str(k), frame.mask(cells, rows), *words)
                    for k, rows in enumerate((frame, other, hostile)))
    assert others == [one, one]
    first = int(np.flatnonzero(~held)[0])
    frame.loc[first, "a"] = 80 - frame.loc[first, "a"]
    assert trained(tmp_path / "trains", frame, *words) != one


LABELLED = {"two values": {}, "classes": {"target": Category(("0", "1", "2"))},
            "a number": {"target": Number(0, 1)}}


@pytest.mark.parametrize("label", LABELLED)
def test_every_figure_of_rows_held_out_is_marked_as_outside_of_the_guarantee(label, monkeypatch):
    """In the record, and in each line of the report that has one."""
    schema = Schema({"b": Number(0, 1)}, "y", **LABELLED[label] or {"positive": 1})
    query = jmm.Query(clip=jmm.Saddle(1.0, 1.0), noise_multiplier=jmm.Saddle(9.0, 9.0),
                      population=100)
    hyper = jmm.sgda.Hyper(query=query, step=jmm.Saddle(0.1, 0.1), iterations=1)
    width = (2, 3) if label == "classes" else (2,)
    prior = 0.5 if label == "two values" else np.full(3, 1 / 3)
    one = scorer.Scorer(schema, np.ones(width), scorer.Moments(np.zeros(1), np.ones(1), prior),
                        None, jmm.statement(jmm.sgda, hyper, delta=1e-6).to_json(),
                        jmm.sgda.mechanism(hyper))
    monkeypatch.setattr(training, "train", lambda *_, **__: one)
    rows, held = made(80), made(40, 1)
    (_, without), (_, record) = (command._trained(commands.parser_of("").parse_args([
        "train", "t.csv", "--label", "y", "--epsilon", "1", "--delta", "1e-6"]), rows,
        other, schema, None) for other in (None, held))
    figures = {name for name in record if record[name] is not None and (
        name not in without or record[name] != without[name])} - {"outside_the_guarantee"}
    assert len(figures) >= 3
    assert figures <= set(record["outside_the_guarantee"])
    shown = [text for name, text in report.results(one, record).items() if any(
        f"{record[figure]:.4f}" in text or f"{record[figure]:.4g}" in text for figure in figures
        if isinstance(record[figure], float))]
    assert shown
    assert all("outside of the guarantee" in text for text in shown)


@pytest.mark.parametrize("people", [1, 3])
def test_a_page_is_for_all_rows_of_a_person(monkeypatch, people):
    schema = Schema({"b": Number(0, 1)}, "y", 1)
    query = jmm.Query(clip=jmm.Saddle(1.0, None), noise_multiplier=jmm.Saddle(9.0, None),
                      population=100)
    hyper = jmm.sgda.Hyper(query=query, step=jmm.Saddle(0.1, 0.1), iterations=1)
    described = jmm.sgda.mechanism(hyper)
    stated = jmm.statement(jmm.sgda, hyper, delta=1e-6, people=people)
    one = scorer.Scorer(schema, np.ones(2), scorer.Moments(np.zeros(1), np.ones(1), 0.5), None,
                        stated.to_json(), described)
    monkeypatch.setattr(training, "train", lambda *_, **__: one)
    monkeypatch.setattr(command, "held_out", lambda *_: {"auc": None})
    args = commands.parser_of("").parse_args([
        "train", "t.csv", "--label", "y", "--epsilon", "1", "--delta", "1e-6", "--people",
        str(people)])
    _, record = command._trained(args, made(80), made(40, 1), schema, None)
    law = jmm.accounting.profile(described, people=people)
    with monkeypatch.context() as patched:
        patched.setattr(report, "profile", lambda *_, **__: law)
        same = report.page(one, record)
    assert report.page(one, record) == same


# --- keys of trainings in a ledger ---


@pytest.mark.parametrize("other", [
    {"rows": np.ones((4, 2))}, {"settings": "b"}, {"epsilon": 2.0}, *(
        pytest.param(other, marks=pytest.mark.slow) for other in (
            {"rows": np.arange(8.0)[::-1].reshape(4, 2)}, {"method": "balanced"},
            {"columns": ["a"]}))])
def test_a_key_is_for_one_training_whatever_part_of_its_promise_is_another(tmp_path, other):
    books = jmm.accounting.Ledger(tmp_path / "l", epsilon=3.0, delta=1e-3)
    described = statistics.one_release(2000, 1.0, 10.0)

    def begun(folder, rows=np.arange(8.0).reshape(4, 2), settings="a", **given):
        given = {"epsilon": 1.0, "method": None} | given
        with unfinished.Unfinished(tmp_path / folder, jax.random.key(7)) as job:
            job.promise(rows, settings, **given)
            return job.reserve(books, described)

    assert begun("first").fresh
    assert not begun("first").fresh
    assert not begun("of the same promise").fresh
    with pytest.raises(ValueError, match="key was used for another run"):
        begun("another", **other)
    assert not (tmp_path / "another").exists()
    assert len(books.statement().runs) == 1


def swapped(column, one, other):
    column = np.array(column)
    column[[one, other]] = column[[other, one]]
    return column


@pytest.mark.slow
@pytest.mark.parametrize(("name", "change"), [
    ("a", lambda x: x + np.eye(80)[5]), ("a", lambda x: swapped(x, 5, 6)),
    ("b", lambda x: x + 1e-3 * np.eye(80)[5]), ("y", lambda x: np.abs(x - np.eye(80)[5])),
    ("g", lambda x: swapped(swapped(x, 0, 4), 1, 5)), ("who", lambda x: swapped(x, 1, 3)),
    (None, lambda x: x)])
@pytest.mark.parametrize(("owner", "kind"), [
    (None, Charged()), ("who", Charged()), (None, Number(0, 20)), ("who", Number(0, 20))])
def test_a_training_goes_on_with_its_own_rows_alone(tmp_path, monkeypatch, owner, kind, name,
                                                    change):
    """Whatever cell is another one: charged, declared, of the label, the group or the owner."""
    table = {"a": np.linspace(1, 9, 80), "b": np.linspace(0, 1, 80), "y": np.arange(80) % 2,
             "g": np.arange(80) // 4 % 2, "who": np.arange(80) // 2}
    schema = Schema({"a": kind, "b": Number(0, 2)}, "y", 1, owner=owner,
                    most=2 if owner else 1, groups="g", group_values=("0", "1"))
    asked = []

    def stop(key, *_):
        asked.append(np.asarray(jax.random.key_data(key)).tolist())
        raise StoppedError

    for first in ("release_ranges", "release_moments"):
        monkeypatch.setattr(statistics, first, stop)
    how = {"epsilon": 2.0, "delta": 1e-4, "folder": tmp_path / "run"}
    with pytest.raises(StoppedError):
        train(table, schema, **how)
    if name is None or (name == "who" and not owner):  # nothing that it reads
        with pytest.raises(StoppedError):
            train(table | {"other": np.ones(80)}, schema, **how)
        assert asked[0] == asked[1]
    else:
        with pytest.raises(ValueError, match="another table"):
            train(table | {name: change(table[name])}, schema, **how)
