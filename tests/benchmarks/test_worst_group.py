"""The worst-group benchmark: its groups, splits, rows and tables, and what it refuses."""

import json

import numpy as np
import pytest

from benchmarks.accuracy.worst_group import __main__ as worst_group
from benchmarks.accuracy.worst_group import figures as group_figures
from benchmarks.accuracy.worst_group import methods as group_methods
from benchmarks.accuracy.worst_group import tables as group_tables
from benchmarks.accuracy.worst_group import tasks as group_tasks


def test_groups_are_read_off_columns_and_labels():
    frame = {"race": np.array([0, 4, 1, -1]), "sex": np.array([0, 1, 1, 0]),
             group_tables.LABEL: np.array([0.0, 1.0, 0.0, 1.0])}
    number, names = group_tables.cut("adult", "sex_race", False, frame)
    assert [names[i] for i in number] == ["female white", "male black", "male Asian",
                                          "female black"]  # of no value: the last name
    assert len(names) == 10
    number, names = group_tables.cut("adult", "sex", True, frame)
    assert [names[i] for i in number] == ["female -", "male +", "male -", "female +"]


def test_small_groups_are_merged_or_dropped_and_named():
    number, names = np.repeat(np.arange(4), [9, 2, 30, 4]), tuple("abcd")
    new, kept, stated = group_tables.large_enough(number, names, 6, "merge")
    assert kept == ("a", "c", "others")
    np.testing.assert_array_equal(new, [0, 2, 1, 2])
    assert stated == "Below 6 records, merged: b (2), d (4)."
    new, kept, stated = group_tables.large_enough(number, names, 6, "drop")
    assert kept == ("a", "c")
    np.testing.assert_array_equal(new, [0, -1, 1, -1])
    assert "dropped: b (2), d (4)" in stated
    new, kept, stated = group_tables.large_enough(number, names, 8, "merge")  # too few together
    assert kept == ("a", "c")
    assert "dropped" in stated
    assert group_tables.large_enough(number, names, 1, "merge")[2] == ""
    with pytest.raises(ValueError, match="ask for fewer"):
        group_tables.large_enough(number, names, 100, "drop")


@pytest.fixture(scope="module")
def randhie():
    return group_tasks.load("randhie", "health", by_label=True)


def test_every_split_holds_out_a_fifth_of_every_group(randhie):
    full = np.bincount(randhie.rows.group)
    for seed in range(2):
        train, held = randhie.split(seed)
        np.testing.assert_array_equal(np.bincount(train.group), randhie.sizes)
        np.testing.assert_array_equal(np.bincount(held.group), full // 5)
        assert len(train.y) + len(held.y) == len(randhie.rows.y)
    first, second = (randhie.split(seed)[1].x for seed in (0, 1))
    assert not np.array_equal(first, second)
    assert "poor - (70)" in randhie.left_out
    # groups contain the label
    assert all(len(set(train.y[train.group == i])) == 1 for i in range(len(randhie.names)))


def test_what_the_rule_takes_follows_from_sizes_and_labels(randhie):
    assert group_methods.default_of(randhie, 4.0, 1e-6) == "balanced, then minimax"
    few = group_tasks.load("cattaneo", "race", by_label=True, least=100)
    assert group_methods.default_of(few, 1.0, 1e-6) == "balanced"  # losses would be noise
    without = group_tasks.load("randhie", "health")
    assert group_methods.default_of(without, 1.0, 1e-6) == "average"


def test_no_two_runs_share_noise():
    keys = {bytes(np.asarray(group_methods.jax.random.key_data(group_methods.noise_key(*x))))
            for x in ((a, b, c) for a in group_methods.NAMES for b in (1.0, 4.0)
                      for c in range(3))}
    assert len(keys) == len(group_methods.NAMES) * 6


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worst_group")
    args = ["--case", "cattaneo-label", "--epsilon", "4", "--seeds", "2",
            "--method", "balanced", "group_sgd",
            *(x for name in ("json", "markdown") for x in (
                f"--{name}", str(folder / f"a.{name.replace('markdown', 'md')}"))),
            "--plot", str(folder / "a.png")]
    assert worst_group.main(args) == 0
    first = json.loads((folder / "a.json").read_text())
    assert worst_group.main(args) == 0  # what is there already is kept
    assert worst_group.main([*args, "--redraw"]) == 0
    assert [r.get("seconds") for r in json.loads((folder / "a.json").read_text())["rows"]] == [
        r.get("seconds") for r in first["rows"]]
    assert (folder / "a.png").stat().st_size > 10_000
    assert "bold is" in (folder / "a.md").read_text()
    return first


@pytest.mark.nightly
def test_rows_have_every_group_of_every_method_and_the_references(results):
    rows = results["rows"]
    assert [(r["method"], r["epsilon"]) for r in rows] == [
        ("logistic regression", None), ("balanced logistic regression", None),
        ("balanced", 4.0), ("group_sgd", 4.0)]
    for r in rows:
        assert len(r["groups"]) == 4
        assert r["worst_group_accuracy"] == pytest.approx(np.mean(r["worst_by_seed"]))
        assert r["worst_group_accuracy_se"] == pytest.approx(
            np.std(r["worst_by_seed"], ddof=1) / np.sqrt(2))
        assert r["worst_group_accuracy"] <= min(g["accuracy"] for g in r["groups"].values()) + 1e-9
        assert r["worst_group_accuracy"] < r["average_accuracy"]
    for r in rows[2:]:
        stated = r["statement"]
        assert 0.999 * r["epsilon"] <= stated["epsilon"] <= r["epsilon"]
        assert "public" in " ".join(stated["assumed"])
    table = group_figures.markdown(rows)
    smallest = min(g["n"] for g in rows[0]["groups"].values())
    assert f"cattaneo, race and label (4; {smallest})" in table


@pytest.mark.nightly
def test_made_up_records_are_timed(tmp_path, capsys):
    args = ["--synthetic", "--records", "2000", "--group-count", "10", "--dim", "4",
            "--method", "group_sgd", "--json", str(tmp_path / "t.json")]
    assert worst_group.main(args) == 0
    (row,) = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert (row["records"], row["group_count"], row["dim"]) == (2000, 10, 4)
    read = row["iterations"] * (2000 + 200)
    assert row["records_per_second"] == pytest.approx(read / row["seconds"])
    assert 0 < row["peak_memory_gib"] < 64
    assert "records / s" in capsys.readouterr().out


@pytest.mark.parametrize(("args", "message"), [
    (["--case", "sex"], "invalid choice"),
    (["--redraw"], "needs --json"),
    (["--synthetic", "--records", "5"], "at least one"),
    (["--synthetic", "--plot", "a.png"], "only times"),
    (["--case", "adult", "--data-dir", "/nowhere"], "no such folder"),
])
def test_arguments_that_make_no_sense_are_refused(args, message, capsys):
    with pytest.raises(SystemExit) as stop:
        worst_group.main(args)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_further_run_keeps_the_rows_that_it_does_not_replace():
    def row(case, method, epsilon, seeds):
        return {"case": case, "method": method, "epsilon": epsilon, "seeds": seeds}

    old = [row("adult-label", "average", 4.0, 20), row("randhie-label", "balanced", 1.0, 20),
           row("randhie-label", "average", 1.0, 20)]
    new = [row("randhie-label", "balanced", 1.0, 5)]
    assert worst_group.beside(new, old) == [old[2], new[0], old[0]]  # in the order of the table
