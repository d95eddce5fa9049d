"""The benchmark of fair training: its features and groups, its rows beside the published ones."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.accuracy.fair import __main__ as fair
from benchmarks.accuracy.fair import methods as fair_methods
from benchmarks.accuracy.fair import tasks as fair_tasks


def people(n=400, seed=0):
    rng = np.random.default_rng(seed)
    table = {name: rng.choice(values, n) for name, values in fair_tasks.VALUES.items()}
    table |= {"age": rng.integers(17, 90, n), "schooling": rng.integers(1, 17, n),
              "hours": rng.integers(1, 99, n), "gain": np.where(rng.random(n) < 0.1, 8000, 0),
              "loss": np.zeros(n, int), "country": rng.choice(["United-States", "Peru"], n),
              "sex": rng.choice(["Female", "Male"], n)}
    rich = table["age"] + 10 * (table["sex"] == "Male") > 60
    return pd.DataFrame(table | {"income": np.where(rich, ">50K.", "<=50K")})


def test_a_row_becomes_features_by_itself_and_its_sex_is_none_of_them():
    table = people()
    x = fair_tasks.features(table)
    assert np.all(np.linalg.norm(x, axis=1) < 3)
    np.testing.assert_array_equal(fair_tasks.features(table.iloc[7:9]), x[7:9])
    other = table.assign(sex=table["sex"].map({"Male": "Female", "Female": "Male"}))
    np.testing.assert_array_equal(fair_tasks.features(other), x)
    assert np.all(fair_tasks.groups(other, "sex") == 1 - fair_tasks.groups(table, "sex"))
    names = np.array(fair_tasks.GROUPS["sex_race"])[fair_tasks.groups(table, "sex_race")]
    assert all(name.split()[0] == sex.lower() for name, sex in zip(names, table["sex"],
                                                                   strict=True))
    assert set(np.char.find(names.astype(str), "black") > 0) == {True, False}


def row(method, kind, epsilon, weight, error, violation):
    numbers = {"error": error, "parity": violation, "odds": violation}
    return {"method": method, "kind": kind, "groups": "sex", "epsilon": epsilon, "delta": 1e-9,
            "weight": weight, "seeds": 5, **numbers, **{f"{k}_se": 0.001 for k in numbers}}


def test_a_published_point_stands_beside_the_smallest_error_at_no_more_violation(tmp_path):
    made = [row("fermi", "parity", 0.5, 1.0, 0.150, 0.199), row("parity", "parity", 0.5, 5.0,
                                                               0.160, 0.08)]
    lines = fair.against(made, quick=True)
    own = {(x["epsilon"], x["metric"]): x for x in lines}
    assert own[None, "error at parity violation 0.198"]["ours"] == 0.160
    assert own[0.5, "error at parity violation 0.0287"]["ours"] is None
    assert own[1.0, "error at parity violation 0.1417"]["ours"] is None
    assert {"paper", "data", "model", "delta", "published", "ours_se", "seeds",
            "true_epsilon_low", "true_epsilon_high"} <= set(lines[0])
    assert "0.1600 ± 0.0010" in fair.markdown(made, lines)
    fair.plot(tmp_path / "a.png", made)
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_shares_and_run_are_paid_together():
    ask, hyper = fair_methods.described("fermi", "odds", 2, 1000, 10, 1.0, 1e-6)
    parts = fair.jmm.Sequence(parts=(ask, fair.jmm.sgda.mechanism(hyper)))
    assert 0.9999 < fair.jmm.epsilon(parts, delta=1e-6) <= 1
    assert fair.jmm.epsilon(fair.jmm.sgda.mechanism(hyper), delta=1e-6) < 0.9999


@pytest.mark.nightly
def test_runs_are_kept_and_not_made_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fair_tasks, "frame", lambda data_dir: people())
    jobs = (fair.Job("parity", "odds", "sex", (2.0,), (4.0,)),
            fair.Job("group_sgd", "parity", "sex", (None,), (4.0,)))
    monkeypatch.setattr(fair, "QUICK", jobs)
    args = ["--quick", "--json", str(tmp_path / "a.json"), "--kept", str(tmp_path / "a.jsonl")]
    assert fair.main(args) == 0
    monkeypatch.setattr(fair, "one_run", None)
    assert fair.main(args) == 0
    made = json.loads((tmp_path / "a.json").read_text())
    assert [r["seeds"] for r in made["rows"]] == [2, 2]
    assert all(0.999 * 4 < s["epsilon"] <= 4 for s in made["statements"])
    assert "group_sgd" in capsys.readouterr().out


def test_a_folder_without_the_files_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        fair.main(["--quick", "--data-dir", str(tmp_path)])
    assert stop.value.code == 2
    assert "adult.data is missing" in capsys.readouterr().err
