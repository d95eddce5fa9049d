"""`benchmarks.accuracy.libauc_values`: the library's side against pairs, and the results."""

import json
import pathlib

import jax
import numpy as np
import pytest

from benchmarks.accuracy import libauc_values

RESULT = pathlib.Path(libauc_values.__file__).with_name("results") / "libauc_values.json"


def test_the_problems_have_the_values_of_libauc():
    runs = json.loads(RESULT.read_text(encoding="utf-8"))["runs"]
    assert len(runs) >= 5
    for run in runs:
        for name in set(libauc_values.LOSSES) - {"AUC, version 2"}:
            assert run["ours"][name] == pytest.approx(run["theirs"][name], abs=1e-6)


@pytest.mark.slow
def test_the_two_way_value_is_that_of_the_hard_pairs_and_is_in_the_results():
    x, y, theta = libauc_values.records(0)
    with jax.enable_x64(True):
        made = libauc_values.ours(x, y, theta)
    s = x @ theta[:, 0]
    plus, minus = np.sort(s[y == 0])[:20], np.sort(s[y != 0])[-36:]
    assert made["two-way AUC"] == pytest.approx(np.mean((1 - plus[:, None] + minus) ** 2))
    kept = json.loads(RESULT.read_text(encoding="utf-8"))["runs"][0]
    assert kept["seed"] == 0
    assert made == pytest.approx(kept["ours"], abs=1e-9)


def test_without_the_other_python_nothing_runs(monkeypatch, capsys):
    monkeypatch.delenv(libauc_values.VARIABLE, raising=False)
    with pytest.raises(SystemExit) as stop:
        libauc_values.main([])
    assert stop.value.code == 2
    assert libauc_values.VARIABLE in capsys.readouterr().err
