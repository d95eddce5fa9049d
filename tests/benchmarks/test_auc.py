"""The AUC benchmark on the embedded table and on small CSV files; no data folder needed."""

import functools
import json
import math
import re

import numpy as np
import pytest

from benchmarks.accuracy.auc import __main__ as auc
from benchmarks.accuracy.auc import runs as auc_runs
from benchmarks.common import report, settings

ROW = ["dataset", "algorithm", "scorer", "epsilon", "delta", "auc_mean", "auc_std",
       "auc_nonprivate", "noise_multiplier", "seconds"]


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch):
    monkeypatch.delenv("JAXMINIMAX_DATA", raising=False)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A CSV file with a numeric, a constant, a text and a label column; one in five is positive."""
    rng = np.random.default_rng(0)
    y = rng.random(600) < 0.2
    path = tmp_path_factory.mktemp("csv") / "patients.csv"
    rows = [f"{x:.3f},7,{'north' if x > 0 else 'south'},{'ill' if label else 'well'}"
            for x, label in zip(2 * y + rng.normal(size=600), y, strict=True)]
    path.write_text("\n".join(["marker,same,place,state", *rows]) + "\n")
    return path


def run(tmp_path, *argv):
    """The JSON that a run writes."""
    path = tmp_path / "out.json"
    assert auc.main([*map(str, argv), "--json", str(path)]) == 0

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def csv(path):
    return ["--csv", path, "--label", "state", "--positive", "ill", "--delta", 1e-3]


def check_schema(out, rows):
    assert set(out) == {"environment", "arguments", "rows", "statements"}
    assert {"python", "jax", "jaxlib", "numpy", "optax", "dp-accounting", "jaxminimax", "device",
            "platform", "cpu_count"} <= set(out["environment"])
    assert len(out["rows"]) == len(out["statements"]) == rows
    for row, statement in zip(out["rows"], out["statements"], strict=True):
        assert list(row)[:len(ROW)] == ROW
        assert all(isinstance(x, str | int | float) or (name == "epsilon_person" and x is None)
                   for name, x in row.items())
        assert 0 <= row["auc_mean"] <= 1
        assert row["auc_std"] >= 0
        assert row["seconds"] > 0
        assert 0 < statement["epsilon"] <= row["epsilon"] * (1 + 1e-9)
        assert statement["epsilon_spent_if_fixed"] == statement["epsilon"]
        assert statement["delta"] == row["delta"]
        assert statement["spent"] == row["iterations"]
        assert statement["effective_noise_multiplier"] == [row["noise_multiplier"]]


@pytest.fixture(scope="module")
def randhie(tmp_path_factory):
    folder = tmp_path_factory.mktemp("randhie")
    plot = folder / "auc.png"
    out = run(folder, "--epsilon", 10, 0.1, 1, "--seeds", 3, "--plot", plot)
    return out, plot


@pytest.mark.nightly
def test_randhie_record(randhie):
    out, _ = randhie
    check_schema(out, rows=3)
    assert [row["epsilon"] for row in out["rows"]] == [0.1, 1, 10]
    noise = [row["noise_multiplier"] for row in out["rows"]]
    assert noise == sorted(noise, reverse=True)
    assert {(row["dataset"], row["algorithm"], row["scorer"]) for row in out["rows"]} == {
        ("randhie", "sgda", "linear")}
    assert out["arguments"]["delta"] == 1e-6
    assert out["arguments"]["neighbours"] == "replace_one"
    for statement in out["statements"]:
        assert "person-year" in statement["unit"]
        assert any("prior 0.7" in x for x in statement["assumed"])
        assert settings.ASSUMED in statement["assumed"]


@pytest.mark.nightly
def test_randhie_auc(randhie):
    low, middle, high = (row["auc_mean"] for row in randhie[0]["rows"])
    reference = randhie[0]["rows"][0]["auc_nonprivate"]
    assert middle > 0.65  # 0.678 measured
    assert high > low - 0.01
    assert 0.66 < reference < 0.72
    assert max(low, middle, high) < reference + 0.02


@pytest.mark.nightly
def test_plot(randhie):
    content = randhie[1].read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 5000


@pytest.mark.slow
def test_printed_report(capsys, tmp_path):
    run(tmp_path, "--epsilon", 1, 2, "--seeds", 1, "--iterations", 3)
    text = capsys.readouterr().out
    assert "randhie: 16152 training and 4038 test rows" in text
    assert text.count("differential privacy for one person-year") == 2
    assert text.count("Enforced by the code:") == 1  # what statements share is printed once
    assert "compilation" in text.splitlines()[-1]


@pytest.mark.nightly
def test_gda(tmp_path):
    out = run(tmp_path, "--algorithm", "gda", "--epsilon", 1, "--seeds", 1)
    check_schema(out, rows=1)
    assert out["rows"][0]["algorithm"] == "gda"
    assert out["rows"][0]["auc_mean"] > 0.63


@pytest.mark.nightly
def test_two_players_share_the_budget(tmp_path, monkeypatch):
    ascent = settings.Settings(clip=8, step=0.1, iterations=10, share=0.9)
    monkeypatch.setitem(settings._TABLE, ("randhie", "linear"), ((math.inf, ascent),))
    out = run(tmp_path, "--epsilon", 1, "--seeds", 1)
    check_schema(out, rows=1)
    assert set(out["statements"][0]["noise_multiplier"][0]) == {"w", "v"}
    again = run(tmp_path, "--epsilon", 1, "--seeds", 1)
    assert again["rows"][0]["auc_mean"] == out["rows"][0]["auc_mean"]


@pytest.mark.nightly
def test_csv(table, tmp_path):
    out = run(tmp_path, *csv(table), "--prior", 0.2, "--epsilon", 20, "--seeds", 2)
    check_schema(out, rows=1)
    assert out["rows"][0]["dataset"] == "patients"
    assert out["rows"][0]["auc_mean"] > 0.75  # 0.92 is the best that any scorer can do
    assert settings.ASSUMED_CSV in out["statements"][0]["assumed"]


@pytest.mark.nightly
def test_mlp(table, tmp_path):
    out = run(tmp_path, *csv(table), "--prior", 0.2, "--epsilon", 20, "--seeds", 2,
              "--scorer", "mlp", "--iterations", 100)
    check_schema(out, rows=1)
    assert "Poisson samples at rate 0.04 of 480" in out["statements"][0]["sampling"][0]
    assert out["rows"][0]["auc_mean"] > 0.6


@pytest.mark.nightly
def test_batches(table, tmp_path):
    out = run(tmp_path, *csv(table), "--batch", 48, "--epsilon", 5, "--seeds", 1,
              "--iterations", 5, "--neighbours", "add_or_remove_one")
    check_schema(out, rows=1)
    assert "rate 0.1 of 480" in out["statements"][0]["sampling"][0]
    assert out["statements"][0]["neighbours"] == "add_or_remove_one"


def test_full_batches(table, tmp_path):
    args = auc.parser().parse_args([*map(str, csv(table)), "--scorer", "mlp", "--batch", "full"])
    one = auc.lane(args, 1.0, auc.load(args, 0))
    assert one.hyper.query.sampling == auc.jmm.Full()


@pytest.mark.parametrize(("argv", "message"), [
    ("--dataset cifar", r"'cifar'.*choose from"),
    ("--epsilon 0", r"--epsilon: got '0'; give a number between 0 and 1e\+06"),
    ("--epsilon 1 nan", r"--epsilon: got 'nan'; give a number"),
    ("--epsilon one", r"got 'one'; give a number"),
    ("--delta 1", r"--delta: got '1'; give a number between 0 and 1"),
    ("--delta -0.1", r"--delta: got '-0.1'"),
    ("--neighbours both", r"'both'.*replace_one"),
    ("--batch 0", r"--batch: got '0'; give a positive number, or 'full'"),
    ("--batch many", r"got 'many'; give a positive number, or 'full'"),
    ("--batch 20000", r"--batch 20000 exceeds the 16152 training records; give at most 16152"),
    ("--iterations 0", r"--iterations: got '0'; give an integer, at least 1"),
    ("--iterations 1.5", r"got '1.5'; give an integer"),
    ("--seeds -1", r"--seeds: got '-1'; give an integer, at least 1"),
    ("--split file", r"randhie has no published test file; use --split random"),
    ("--dataset ijcnn1 --data-dir /nowhere/at/all", r"/nowhere/at/all: no such folder"),
    ("--data-dir /nowhere/at/all", r"/nowhere/at/all: no such folder"),
    ("--json /nowhere/at/all/x.json", r"cannot write '/nowhere/at/all/x.json'; create the folder"),
    ("--json results.txt", r"got 'results.txt'; give a file name that ends in .json"),
    ("--plot plot.jpg", r"got 'plot.jpg'; give a file name that ends in .png"),
    ("--algorithm gda --scorer mlp", r"--scorer mlp is not; use --scorer linear"),
    ("--algorithm gda --batch 64", r"--batch 64: gda reads all records.*use --batch full"),
    ("--label y", r"--label goes with --csv FILE"),
    ("--prior 0.3", r"--prior goes with --csv FILE"),
    ("--csv /no/file.csv --label y --positive 1", r"/no/file.csv: no such file"),
    ("--csv TABLE", r"needs --label COLUMN and --positive VALUE"),
    ("--csv TABLE --label y", r"needs --label COLUMN and --positive VALUE"),
    ("--csv TABLE --label y --positive 1", r"no column 'y'.*marker, same, place, state"),
    ("--csv TABLE --label state --positive 1", r"no row has state == '1'; values found: 'well'"),
    ("--csv TABLE --label state --positive ill --prior 1", r"--prior: got '1'; give a number"),
    ("--csv TABLE --label state --positive ill --dataset adult", r"exclude each other; drop one"),
    ("--csv TABLE --label state --positive ill --split file", r"use --split random"),
    ("--csv TABLE --label state --positive ill --batch 481", r"the 480 training records"),
])
def test_bad_input(argv, message, table, capsys):
    with pytest.raises(SystemExit) as stop:
        auc.main(argv.replace("TABLE", str(table)).split())
    assert stop.value.code == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert error.endswith("\n")
    assert re.search(message, error)


def test_bad_arguments_read_no_data(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("data were read")

    monkeypatch.setattr(auc.data, "load", fail)
    with pytest.raises(SystemExit):
        auc.main(["--epsilon", "-1"])


@pytest.mark.slow
def test_diverged_runs_are_reported(monkeypatch, capsys):
    monkeypatch.setattr(auc.jmm.metrics, "auc", lambda *_: pytest.fail("NaN was scored"))
    monkeypatch.setitem(auc_runs.SCORERS, "linear", lambda theta, x: x @ theta * np.nan)
    monkeypatch.setattr(auc_runs, "problem", functools.cache(auc_runs.problem.__wrapped__))
    assert auc.main(["--epsilon", "1", "--seeds", "1", "--iterations", "2"]) == 1
    out, error = capsys.readouterr()
    assert "epsilon 1, seed 0: the scores are not finite" in error
    assert "AUC" not in out


def test_json_refuses_nan(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        report.write_json(tmp_path / "x.json", {"auc": math.nan})


def test_paragraphs():
    assert report.paragraphs(["a\nx\ny", "b\nx\ny"]) == "a\n\nb\n\nx\ny"
    assert report.paragraphs(["a\nx"]) == "a\nx"


def test_table():
    text = report.table(("name", "n"), [("a", "1"), ("long name", "10")])
    assert text.splitlines() == ["name        n", "---------  --", "a           1",
                                 "long name  10"]


def test_settings_cover_every_data_set():
    for name in (*auc.data.NAMES, "csv"):
        for scorer in ("linear", "mlp"):
            for epsilon in (1e-3, 1.0, 1e5, math.inf):
                actual = settings.choose(name, scorer, epsilon)
                assert actual.iterations >= 1
                assert actual.step > 0
                assert 0 <= actual.skip < 1
                assert 0 <= actual.momentum < 1
            assert settings.choose(name, scorer, 1.0).clip < math.inf


def test_settings_of_the_user():
    base = settings.choose("ijcnn1", "linear", 1.0)
    assert settings.choose("ijcnn1", "linear", 1.0, iterations=1).step == base.step
    longer = settings.choose("ijcnn1", "linear", 1.0, iterations=4 * base.iterations)
    assert longer.step == pytest.approx(base.step * 4**-0.8)
    rare = settings.choose("csv", "linear", 1.0, prior=0.1)
    assert rare.clip == pytest.approx(5 * settings.choose("csv", "linear", 1.0).clip)
