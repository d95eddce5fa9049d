"""The worst-group benchmark: its groups, its rows, and what it refuses."""

import json

import numpy as np
import pytest

from benchmarks import group_tasks, worst_group


def test_groups_are_read_off_indicators_and_labels():
    centre = 14 / 123
    x = np.full((4, 123), -centre, np.float32)
    for row, (race, sex) in enumerate([(0, 0), (4, 1), (1, 1), (0, 0)]):
        x[row, [66 + race, 71 + sex]] += 1
    y = np.array([0.0, 1.0, 0.0, 1.0])
    number, names = group_tasks.cut("adult", "sex_race", False, x, y)
    assert [names[i] for i in number] == ["female white", "male black", "male Asian",
                                          "female white"]
    assert len(names) == 10
    number, names = group_tasks.cut("adult", "sex", True, x, y)
    assert [names[i] for i in number] == ["female -", "male +", "male -", "female +"]
    # no indicator is on: the last name
    assert set(group_tasks.cut("randhie", "health", False, np.zeros((2, 31)), y[:2])[0]) == {3}


def test_small_groups_are_merged_or_dropped_and_named():
    number, names = np.repeat(np.arange(4), [9, 2, 30, 4]), tuple("abcd")
    new, kept, said = group_tasks.large_enough(number, names, 6, "merge")
    assert kept == ("a", "c", "others")
    np.testing.assert_array_equal(new, [0, 2, 1, 2])
    assert said == "Below 6 training records, merged: b (2), d (4)."
    new, kept, said = group_tasks.large_enough(number, names, 6, "drop")
    assert kept == ("a", "c")
    np.testing.assert_array_equal(new, [0, -1, 1, -1])
    assert "dropped: b (2), d (4)" in said
    new, kept, said = group_tasks.large_enough(number, names, 8, "merge")  # still too few together
    assert kept == ("a", "c")
    assert "dropped" in said
    assert group_tasks.large_enough(number, names, 1, "merge")[2] == ""
    with pytest.raises(ValueError, match="--min-rows"):
        group_tasks.large_enough(number, names, 100, "drop")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worst_group")
    args = ["--epsilon", "1", "50", "--iterations", "3", "--seeds", "2", "--min-rows", "200",
            "--algorithm", "group_sgd",
            "--json", str(folder / "a.json"), "--plot", str(folder / "a.png")]
    assert worst_group.main(args) == 0
    assert (folder / "a.png").stat().st_size > 10_000
    return json.loads((folder / "a.json").read_text())


@pytest.mark.slow
def test_rows_have_every_group_of_every_method_and_the_references(results):
    rows = results["rows"]
    names = [(r["algorithm"], r["epsilon"]) for r in rows]
    methods = ["group_sgd", "average_risk"]
    assert names == [(m, e) for e in (1.0, 50.0) for m in methods] + [
        ("average_risk", None), ("minimax", None)]
    for r in rows:
        assert set(r["groups"]) == {"good", "fair", "poor", "excellent"}
        assert sum(g["n"] for g in r["groups"].values()) == 16152
        accuracy = {name: g["accuracy"] for name, g in r["groups"].items()}
        assert r["worst_group"] == min(accuracy, key=accuracy.get)
        assert r["worst_group_accuracy"] <= min(accuracy.values()) + 1e-6
        assert r["worst_group_accuracy"] < r["average_accuracy"] <= max(accuracy.values())
        assert r["worst_group_risk"] >= max(g["risk"] for g in r["groups"].values()) - 1e-6
        assert (r["delta"] is None) == (r["epsilon"] is None)


@pytest.mark.slow
def test_every_private_row_has_a_statement_of_its_epsilon(results):
    targets = [r["epsilon"] for r in results["rows"] if r["epsilon"]]
    for statement, target in zip(results["statements"], targets, strict=True):
        # beyond 80 or so delta cannot pay for the tail of the noise that is left out
        least = 0.999 if target < 50 else 0.8
        assert least * target <= statement["epsilon"] <= target
    assert all("public" in " ".join(s["assumed"]) for s in results["statements"])


@pytest.mark.slow
def test_made_up_records_are_timed(tmp_path, capsys):
    args = ["--synthetic", "--records", "2000", "--group-count", "10", "--dim", "4",
            "--algorithm", "group_sgd", "--json", str(tmp_path / "t.json")]
    assert worst_group.main(args) == 0
    (row,) = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert (row["records"], row["group_count"], row["dim"]) == (2000, 10, 4)
    read = row["iterations"] * (2000 + 200)
    assert row["records_per_second"] == pytest.approx(read / row["seconds"])
    assert 0 < row["peak_memory_gib"] < 64
    assert "records / s" in capsys.readouterr().out


@pytest.mark.parametrize(("args", "message"), [
    (["--groups", "sex"], "randhie has health"),
    (["--synthetic", "--records", "5"], "at least one"),
    (["--synthetic", "--plot", "a.png"], "only times"),
    (["--loss", "hinge", "--algorithm", "phased_erm"], "--loss logistic or squared"),
    (["--min-rows", "99999"], "lower --min-rows"),
    (["--data-dir", "/nowhere"], "no such folder"),
])
def test_arguments_that_make_no_sense_are_refused(args, message, capsys):
    with pytest.raises(SystemExit) as stop:
        worst_group.main(args)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
