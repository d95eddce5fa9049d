"""Three people's way from nothing to what they came for, by the commands that they would type."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.__main__ import main

DOCS = pathlib.Path(__file__).parents[1] / "docs"
RUN = ["sgda", "--noise-multiplier", "1.6", "--n", "20000", "--batch-size", "200", "--rounds",
       "200"]
SCHEMA = """
[label]
name = "ill"
positive = "yes"
[columns.age]
range = [18, 90]
"""


def said(capsys, *command):
    """What a command prints as JSON."""
    assert main([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# --- data scientist: a table, a report, scores ---


@pytest.mark.slow
def test_from_a_table_to_a_report_and_scores(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age = rng.uniform(18, 90, 500)
    ill = np.where(age + rng.normal(0, 10, 500) > 54, "yes", "no")
    pd.DataFrame({"age": age, "ill": ill})[:400].to_csv("old.csv", index=False)
    pd.DataFrame({"age": age})[400:].to_csv("new.csv", index=False)
    pathlib.Path("s.toml").write_text(SCHEMA)
    actual = said(capsys, "train", "old.csv", "--schema", "s.toml", "--epsilon", "2", "--delta",
                  "1e-4", "--out", "model")
    assert actual["epsilon"] <= 2
    page = pathlib.Path("model/report.html").read_text()
    assert f"{actual['epsilon']:.4g}" in page
    assert not re.search(r'(?:src|href)="https?:', page), "one file, and nothing from elsewhere"
    assert main(["predict", "model", "new.csv", "--out", "scores.csv"]) == 0
    scores = pd.read_csv("scores.csv").score
    assert roc_auc_score(ill[400:], scores) > 0.8


def test_it_takes_five_commands_or_fewer():
    text = (DOCS / "for_data_scientists.md").read_text()
    block = re.search(r"Five commands.*?```bash\n(.*?)```", text, re.DOTALL)[1]
    lines = block.replace("\\\n", " ").splitlines()
    commands = [line for line in lines if line and not line.startswith("#")]
    assert len(commands) <= 5
    assert any("pip install" in line for line in commands)
    assert any("jaxminimax train" in line and "--out" in line for line in commands)


# --- researcher: a game, a run, a statement, a bound from below ---


def _loss(w, v, record):
    return jnp.sum((w - record) ** 2) / 2 + w @ v - v @ v / 2


@pytest.mark.slow
def test_from_a_game_to_a_statement_and_an_attack():
    problem = jmm.Problem(operator=jmm.saddle_operator(_loss))
    start, n = Saddle(jnp.zeros(1), jnp.zeros(1)), 20
    query = jmm.Query(clip=Saddle(1.0, 1.0), population=n)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=2)
    hyper = jmm.calibrate(jmm.sgda, hyper, epsilon=1.0, delta=0.01)
    data = jnp.zeros((n, 1)).at[0].set(9.0)
    state, _ = jmm.run(jax.random.key(0), start, data, hyper, jmm.sgda, problem)
    statement = jmm.statement(jmm.sgda, hyper, state, delta=0.01)
    assert 0.99 < statement.epsilon <= 1
    assert statement.spent == statement.allowed == 2
    actual = jmm.audit.audit(jax.random.key(1), jmm.sgda, hyper, 0.01, runs=1000, problem=problem,
                             z=start, pair=(data, data.at[0].set(-9.0)))
    assert actual.epsilon_claimed == statement.epsilon
    assert not actual.violated


# --- privacy officer: five questions about a run ---


def test_another_delta(capsys):
    one = said(capsys, "epsilon", *RUN, "--delta", "1e-6")
    other = said(capsys, "epsilon", *RUN, "--delta", "1e-9")
    assert one["epsilon"] < other["epsilon"]


def test_a_person_with_five_rows(capsys):
    one = said(capsys, "epsilon", *RUN, "--delta", "1e-6")
    five = said(capsys, "epsilon", *RUN, "--delta", "1e-6", "--people", "5")
    assert 5 * one["epsilon"] < five["epsilon"] < 50 * one["epsilon"]


def test_two_runs_together(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(60.0, None), population=500)
    run = jmm.Repeat(query=query, times=50)
    ledger = jmm.accounting.Ledger("study.json", epsilon=2.0, delta=1e-6)
    ledger.reserve(run, name="first")
    ledger.reserve(run, name="second")
    actual = said(capsys, "ledger", "study.json")
    one = jmm.epsilon(run, 1e-6)
    assert one < actual["epsilon_if_stopped_by_looking"] < actual["epsilon"] == 2.0
    assert [x["name"] for x in actual["runs"]] == ["first", "second"]


def test_a_run_that_was_stopped(capsys):
    actual = said(capsys, "epsilon", *RUN, "--delta", "1e-6", "--spent", "80")
    assert (actual["epsilon_spent_if_fixed"] < actual["epsilon_if_stopped_by_looking"]
            < actual["epsilon"])


@pytest.mark.slow
def test_what_an_attack_attains_at_most(capsys):
    answers = said(capsys, "explain", *RUN, "--delta", "1e-6")["attack_bounds"]
    assert 0.01 < answers["true_positives"]["0.01"] < 1
    assert 0 < answers["advantage"] < 1


def test_a_scorer_of_a_table_is_asked_the_same_without_its_data():
    schema = jmm.tables.Schema({"age": jmm.tables.Number(18, 90)}, "ill", "yes")
    trained = jmm.tables.defaults(20_000, schema, epsilon=1.0, delta=1e-6).mechanism()
    assert jmm.epsilon(trained, 1e-6) <= 1 < jmm.epsilon(trained, 1e-9)
    assert jmm.epsilon(trained, 1e-6, people=5) > 5


# --- data scientist: one budget for several models, a report, scores without the library ---


KILLED = """
import os, signal, sys
from jaxminimax import accounting, __main__

reserve = accounting.Ledger.reserve
accounting.Ledger.reserve = lambda *given, **how: (
    reserve(*given, **how), os.kill(os.getpid(), signal.SIGKILL))
__main__.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_from_a_ledger_to_a_report_and_scores_by_numpy(tmp_path, monkeypatch, capsys):
    """Killed when it has been charged, it goes on, and is charged neither twice nor not at all."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age = rng.uniform(18, 90, 400)
    table = pd.DataFrame({"age": age, "ill": np.where(age > 54, "yes", "no")})
    table.to_csv("t.csv", index=False)
    pathlib.Path("s.toml").write_text(SCHEMA)
    assert said(capsys, "ledger", "study.json", "--epsilon", "2.2", "--delta", "1e-4")["runs"] == []
    command = ["train", "t.csv", "--schema", "s.toml", "--epsilon", "2", "--delta", "1e-5", "--out",
               "model", "--ledger", "study.json", "--name", "first model", "--purpose", "triage"]
    environment = os.environ | {"PYTHONPATH": str(DOCS.parent), "JAX_ENABLE_X64": "1"}
    done = subprocess.run([sys.executable, "-c", KILLED, *command], check=False, env=environment)
    assert done.returncode == -signal.SIGKILL
    begun = {path.name for path in pathlib.Path("model").rglob("*") if path.is_file()}
    assert begun == {"key", "lock", "promise.json", "model.json.lock"}, "nothing was released"
    (killed,) = said(capsys, "ledger", "study.json")["runs"]
    assert killed["closed"] is None
    record = said(capsys, *command)
    (once,) = said(capsys, "ledger", "study.json")["runs"]
    assert once["charge"] == killed["charge"]
    assert once["closed"] is not None
    assert record["ledger"]["runs"] == ["first model"]
    assert 0 < record["ledger"]["share_left"] < 0.5
    # a second model is refused before it releases anything, and leaves the first one as it was
    before = {path: path.read_bytes() for path in pathlib.Path("model").iterdir()}
    assert main([*command[:-4], "--name", "second model"]) == 2
    assert "are left" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in pathlib.Path("model").iterdir()} == before
    assert len(said(capsys, "ledger", "study.json")["runs"]) == 1
    page = pathlib.Path("model/report.html").read_text(encoding="utf-8")
    first, _ = page.split("<h2>The statement</h2>")
    for text in ("“ill”", record["date"], "positive value yes", "for one row", "t.csv, 400 records",
                 "triage", "not stated", "first model", f"jaxminimax {jmm.__version__}"):
        assert text in first, text
    program = re.search(r"numpy_scorer.py -->\n```python\n(.*?)```",
                        (DOCS / "serving.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    exec(program, names := {})
    scores = names["scores"](json.loads(pathlib.Path("model/model.json").read_text()),
                             {"age": age})
    np.testing.assert_allclose(scores[:, 0], jmm.tables.Scorer.load("model").decision_function(
        table), atol=1e-6)
