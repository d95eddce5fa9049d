"""Messy tables: what is said, and when, before anything is released."""

import datetime
import gzip
import json

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

import jaxminimax as jmm
from benchmarks.privacy.mutants import tables as mutants
from jaxminimax import __main__ as main
from jaxminimax.apps.tables import (
    Category,
    Number,
    Schema,
    StoppedOnNotesError,
    files,
    train,
    unfinished,
)
from jaxminimax.apps.tables.columns import as_written

N = 400
_RNG = np.random.default_rng(0)
AGE = _RNG.uniform(18, 90, N).round(1)
ILL = (AGE > 54).astype(int)
SCHEMA = Schema({"age": Number(18, 90), "sex": Category(("f", "m"))}, "ill", "1")
SEX = np.array(["f", "m"])[np.arange(N) % 2]


def table(**changed):
    return pd.DataFrame({"age": AGE, "sex": SEX, "ill": ILL}).assign(**changed)


# --- types of columns that hold no numbers ---


DAYS = [datetime.date(2000, 1, 1) + datetime.timedelta(k) for k in range(N)]
TYPES = {
    "date": (pa.array(DAYS), "dates or times: give years or days"),
    "timestamp": (pa.array(pd.to_datetime(pd.Series(DAYS))), "dates or times"),
    "duration": (pa.array([datetime.timedelta(k) for k in range(N)]), "dates or times"),
    "list": (pa.array([[1.0, 2.0]] * N), "nested: give each of its numbers a column"),
    "record": (pa.array([{"a": 1}] * N), "nested"),
    "bytes": (pa.array([b"1"] * N), "no numbers")}


@pytest.mark.parametrize("form", ["file", "frame of polars", "pyarrow", "check"])
@pytest.mark.parametrize("kind", TYPES)
def test_a_column_that_is_no_number_by_its_type_is_refused_before_a_release(kind, form, tmp_path,
                                                                            capsys):
    cells, words = TYPES[kind]
    arrow = pa.table({"age": cells, "sex": pa.array(SEX), "ill": pa.array(ILL)})
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(arrow, path)
    if form == "check":
        assert main.main(["check", str(path), "--label", "ill", "--positive", "1", "--numeric",
                          "age=18:90"]) == 2
        assert words in capsys.readouterr().err
        return
    frame = arrow
    if form == "file":
        frame = None
        with pytest.raises(ValueError, match=words):
            files.read(path, ("age",))
    elif form == "frame of polars":
        frame = pytest.importorskip("polars").from_arrow(arrow)
    with mutants.without_releases() as made, pytest.raises(ValueError, match=words) as raised:
        train(files.Frames(path, SCHEMA.numeric, SCHEMA.names) if frame is None else frame, SCHEMA,
              epsilon=1.0, delta=1e-4)
    assert "'age' is declared as a number" in str(raised.value)
    assert "2000" not in str(raised.value)
    assert not made


@pytest.mark.parametrize("cells", [
    pd.to_datetime(pd.Series(DAYS)), pd.to_timedelta(np.arange(N), unit="D"),
    pd.Series(pd.period_range("2000", periods=N, freq="D")),
    np.arange(N).astype("datetime64[D]"), np.arange(N) * 1j])
def test_a_frame_of_pandas_likewise(cells):
    with pytest.raises(ValueError, match="'age' is declared as a number, and its type"):
        SCHEMA.features(table(age=cells) if hasattr(cells, "index") else
                        {"age": cells, "sex": SEX, "ill": ILL})


@pytest.mark.parametrize("cells", [
    pd.Series(AGE).astype("category"), pd.Series(AGE).astype("Float64"), pd.Series(AGE).astype(str),
    pd.Series(AGE, dtype=object), AGE.tolist(), pd.Series(pd.Categorical(AGE.astype(str)))])
def test_numbers_of_other_types_are_read(cells):
    np.testing.assert_allclose(SCHEMA.features(table(age=cells)), SCHEMA.features(table()))


# --- names that are written differently ---


@pytest.mark.parametrize("name", ["Age", " age", "AGE", "a_g_e", "age "])
def test_a_name_that_is_only_written_differently_is_named(name):
    with pytest.raises(ValueError, match=f"no column 'age'; it has '{name}', which is writt"):
        SCHEMA.features(table().rename(columns={"age": name}))


# --- files ---


@pytest.mark.parametrize(("content", "words"), [
    (gzip.compress(b"age,ill\n1,0\n", mtime=0), "compressed: decompress it"),
    ("age,ill\n1,0\n".encode("utf-16"), "UTF-16: save it as UTF-8"),
    ("age,ill\n1,0\n".encode("utf-16-le"), "UTF-16"), (b"PK\x03\x04rest", "zip archive or an Exc"),
    (b"PAR1rest", "name it FILE.parquet"), (b"%PDF-1.4", "PDF"), (b"<html><table>", "HTML"),
    (b'[{"age": 1}]', "JSON"), (b'{"age": 1}\n', "JSON"), (b"SQLite format 3\0", "SQLite"),
    (b"ARROW1\0\0", "save it as Parquet"), (b"\x89HDF\r\n", "save it as Parquet")])
def test_a_file_of_another_kind_is_named_with_what_to_do(content, words, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    for read in (files.read, lambda path: next(files.pieces(path)),
                 lambda path: files.Frames(path, (), ())):
        with pytest.raises(ValueError, match=words) as raised:
            read(path)
        assert "age" not in str(raised.value)


# --- the operator's look ---


LOOKS = {
    "1,5": "with a decimal comma", "-0,25": "with a decimal comma",
    "1,234.5": "with thousands separators", "12 345": "with thousands separators",
    "1.234.567,8": "with thousands separators", "€ 12": "with a currency", "5$": "with a currency",
    "70 kg": "with a unit or a percent sign", "12%": "with a unit or a percent sign",
    "1.5cm": "with a unit or a percent sign", "2020-01-31": "dates or times",
    "31/1/2020": "dates or times", "31.01.20": "dates or times", "12:30": "dates or times",
    "[1, 2]": "lists or records", "{'a': 1}": "lists or records", "tall": "other text"}


@pytest.mark.parametrize("cell", LOOKS)
def test_cells_that_are_no_numbers_are_counted_by_how_they_are_written(cell):
    cells = [cell, "1", "", None, "95"]
    assert as_written(Number(0, 90), cells) == {"missing": 3, "clipped": 1, LOOKS[cell]: 1}


def test_values_in_another_case_are_counted():
    assert as_written(Category(("f", "m")), ["F", " f", "x", "M ", None]) == {
        "missing": 1, "unseen": 3, "in another case": 2}


def test_a_look_is_marked_and_holds_no_cell_and_no_epsilon(tmp_path, capsys):
    path = tmp_path / "t.csv"
    table(age=["1,2345 secret"] * N).to_csv(path, index=False)
    words = ["check", str(path), "--label", "ill", "--positive", "1", "--numeric", "age=18:90",
             "--categorical", "sex=f|m", "--look"]
    assert main.main(words) == 0
    said = capsys.readouterr().out
    assert "NOT FOR PUBLICATION" in said
    assert f"age: {N} missing, {N} with a unit or a percent sign." in said
    assert "sex: as declared." in said
    assert "secret" not in said
    assert "public facts" not in said
    assert main.main([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["NOT FOR PUBLICATION"]["sex"] == {}
    assert record["statement"] is None
    assert main.main([*words, "--epsilon", "1", "--delta", "1e-5"]) == 2
    assert "leave one out" in capsys.readouterr().err


def test_without_a_look_no_cell_is_read(tmp_path, capsys):
    said = set()
    for cells in (AGE, ["70 kg"] * N):
        table(age=cells).to_csv(tmp_path / "t.csv", index=False)
        assert main.main(["check", str(tmp_path / "t.csv"), "--label", "ill", "--positive", "1",
                          "--numeric", "age=18:90"]) == 0
        said.add(capsys.readouterr().out)
    assert len(said) == 1


# --- a training that ends after its moments ---


@pytest.mark.slow
@pytest.mark.parametrize("way", ["train", "command"])
def test_an_empty_column_ends_a_training_after_a_tenth(way, tmp_path, capsys, monkeypatch):
    # such a column is missed for one key in twenty
    keys = iter(jax.random.split(jax.random.key(1, impl="threefry2x32"), 9))
    monkeypatch.setattr(unfinished, "secret_key", lambda: next(keys))
    rows = pd.concat([table()] * 20, ignore_index=True)
    rows["height"] = "1,75 m"
    schema = Schema({**SCHEMA.columns, "height": Number(1, 2)}, "ill", "1")
    ledger = jmm.accounting.Ledger(tmp_path / "l.json", epsilon=3.0, delta=1e-5, filter="renyi")
    how = {"epsilon": 2.0, "delta": 1e-6, "stop_on_notes": True}
    if way == "train":
        with pytest.raises(StoppedOnNotesError, match=r"height.*no|height.*middle") as raised:
            train(rows, schema, ledger=ledger, folder=tmp_path / "run", **how)
        said = str(raised.value)
        assert not (tmp_path / "run").exists()
    else:
        rows.to_csv(tmp_path / "t.csv", index=False)
        assert main.main([
            "train", str(tmp_path / "t.csv"), "--label", "ill", "--positive", "1", "--numeric",
            "age=18:90", "height=1:2", "--epsilon", "2", "--delta", "1e-6", "--ledger",
            str(tmp_path / "l.json"), "--out", str(tmp_path / "out"), "--stop-on-notes"]) == 2
        said = capsys.readouterr().err
        assert not (tmp_path / "out/model.json").exists()
    cost = float(said.split("epsilon = ")[1].split(" ")[0])
    assert 0.3 < cost < 0.75, "of a tenth of the squared parameter"
    assert "1,75" not in said
    (run,) = ledger.statement().runs
    assert run["closed"] is not None
    assert run["spent"] == 1
    with mutants.without_releases():
        whole = train(rows, schema, **how | {"stop_on_notes": False})
    asked = ledger._rule.charge(whole.described, 1e-6, "replace_one")
    assert 0.05 < run["charge"]["divergence"] / asked["divergence"] < 0.11
    with mutants.without_releases():  # whose moments are zeros: notes, which do not end it
        train(rows, SCHEMA, ledger=ledger, **how | {"stop_on_notes": False, "epsilon": 1.5})
    assert len(ledger.statement().runs) == 2


@pytest.mark.slow
def test_a_right_schema_is_not_stopped():
    rows = pd.concat([table()] * 10, ignore_index=True)
    one, two = (train(rows, SCHEMA, epsilon=2.0, delta=1e-6, stop_on_notes=stop,
                      key=jax.random.key(0)) for stop in (True, False))
    np.testing.assert_array_equal(one.weights, two.weights)


# --- options ---


@pytest.mark.parametrize("words", [
    ["train", "t.csv", "--eps", "1", "--delta", "1e-6"],
    ["train", "t.csv", "--epsilon", "1", "--delta", "1e-6", "--ran", "charged"],
    ["train", "t.csv", "--epsilon", "1", "--delta", "1e-6", "--pe", "3"],
    ["check", "t.csv", "--loo"], ["predict", "model.json", "t.csv", "--thresh", "0.1"],
    ["epsilon", "sgda", "--noise", "1"], ["ledger", "l.json", "--eps", "1"],
    ["plan", "gda", "--eps", "1", "--delta", "1e-6"]])
def test_abbreviations_of_options_are_refused(words, capsys):
    with pytest.raises(SystemExit):
        main.main(words)
    said = capsys.readouterr().err
    assert "unrecognized arguments" in said or "required" in said
