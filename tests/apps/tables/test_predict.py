"""Scores by the command: ids, probabilities, decisions, and counts of odd cells."""

import json
import random

import numpy as np
import pandas as pd
import pytest

from jaxminimax import __main__ as main
from jaxminimax.apps.tables import Category, Number, Schema, Scorer, files, scorer

SCHEMA = Schema({"age": Number(18, 90), "job": Category(("desk", "field"))}, "ill", "1")
TABLE = "who,age,job\n01,30,desk\n2,,pilot\n\"a,b\",95,\n2,x,Desk\n"


@pytest.fixture
def model(tmp_path):
    """A model and a table, in a folder of their own."""
    by = scorer.Moments(np.array([0.1, 0.3, 0.4]), np.array([0.3, 0.3, 0.4]), 0.5)
    Scorer(SCHEMA, np.array([3.0, -1.0, 1.0, 0.2]), by, 0.0025, {}).save(tmp_path / "model.json")
    (tmp_path / "t.csv").write_text(TABLE)
    return tmp_path


def test_a_row_gets_its_ids_score_probability_and_decision(model, capsys):
    scores = Scorer.load(model).decision_function(files.read(model / "t.csv"))
    for threshold in (0.5, 0.9):
        assert main.main(["predict", str(model), str(model / "t.csv"), "--id", "who", "age",
                          "--threshold", str(threshold), "--out", str(model / "s.csv")]) == 0
        actual = pd.read_csv(model / "s.csv", dtype={"who": str, "age": str}, keep_default_na=False)
        assert list(actual) == ["who", "age", "score", "probability", "decision"]
        assert actual.who.tolist() == ["01", "2", "a,b", "2"]
        assert actual.age.tolist() == ["30", "", "95", "x"]
        assert np.allclose(actual.score, scores, rtol=1e-8)
        assert np.allclose(actual.probability, 1 / (1 + np.exp(-scores)), rtol=1e-5)
        assert actual.decision.tolist() == (actual.probability >= threshold).astype(int).tolist()
        assert 0 < actual.decision.sum() < 4
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "age: 2 missing, 1 clipped, of 4 cells.", "job: 1 missing, 2 unseen, of 4 cells."]


def test_all_of_it_is_in_the_record_too(model, capsys):
    command = ["predict", str(model), str(model / "t.csv"), "--id", "who"]
    assert main.main([*command, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["rows"] == 4
    assert record["counts"] == {"age": {"missing": 2, "clipped": 1},
                                "job": {"missing": 1, "unseen": 2}}
    assert record["columns"]["who"] == ["01", "2", "a,b", "2"]
    assert np.allclose(record["columns"]["probability"], Scorer.load(model).predict_proba(
        files.read(model / "t.csv"))[:, 1])
    assert main.main(command) == 0  # the scores alone on standard output
    printed = capsys.readouterr()
    assert printed.out.startswith("who,score,probability,decision\n01,")
    assert "2 missing, 1 clipped" in printed.err


def test_a_parquet_file_is_scored_alike(model):
    frame = pd.DataFrame({"who": [1, 2], "age": [30.0, None], "job": ["desk", None]})
    frame.to_parquet(model / "t.parquet")
    frame.to_csv(model / "t.csv", index=False)
    for name in ("t.csv", "t.parquet"):
        assert main.main(["predict", str(model), str(model / name), "--id", "who", "--out",
                          str(model / f"{name}.out")]) == 0
    assert (model / "t.csv.out").read_text() == (model / "t.parquet.out").read_text()


@pytest.mark.parametrize(("words", "message"), [
    (("--id", "nobody"), "no column 'nobody'"), (("--id", "score"), "rename it"),
    (("--threshold", "1.5"), "--threshold must lie")])
def test_what_cannot_be_done_is_refused_and_nothing_is_written(model, capsys, words, message):
    out = model / "s.csv"
    assert main.main(["predict", str(model), str(model / "t.csv"), "--out", str(out), *words]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_pieces_are_the_table_that_pandas_reads(tmp_path):
    """The same cells, or both refuse: quotes, blank lines, short and long ones, line ends."""
    path, refused = tmp_path / "t.csv", 0
    for seed in range(300):
        draw = random.Random(seed)
        parts = ("a", "1", ",", '"', " ", "\n", '""', "\r\n", "\u00e9", "\x00", "x,y\n")
        text = "".join(draw.choice(parts) for _ in range(draw.randint(0, 25)))
        path.write_text(f"p{draw.choice((',', ', ', ';'))}q\n{text}", encoding="utf-8", newline="")
        try:
            full = files.read(path).to_dict("list")
        except ValueError:
            refused += 1
            with pytest.raises(ValueError, match="cannot be read as a table"):
                list(files.pieces(path, 3))
            continue
        pieces = list(files.pieces(path, 3))
        assert full == {name: [cell for one in pieces for cell in one[name]]
                        for name in full}
    assert 50 < refused < 250


def test_an_empty_table_has_no_scores(model, capsys):
    (model / "t.csv").write_text("age,job\n")
    assert main.main(["predict", str(model), str(model / "t.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 0
