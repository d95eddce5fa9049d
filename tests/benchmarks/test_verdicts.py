"""Ahead, level, behind: comparisons of means; which seeds and cells a table runs."""

import argparse
import json

import numpy as np
import pytest

from benchmarks.common import report, result_tables, verdicts
from benchmarks.papers import __main__ as published
from benchmarks.papers import claims as published_claims
from benchmarks.papers import page as published_report
from benchmarks.papers.table2 import __main__ as table2


@pytest.mark.parametrize(("difference", "seeds", "said"), [
    (2.77, 5, "level"), (2.79, 5, "ahead"), (-2.79, 5, "behind"), (2.05, 20, "level"),
    (2.15, 20, "ahead"), (1.99, 10_000, "level"), (-2.01, 10_000, "behind"), (9.0, 1, "level"),
    (0.0, 5, "level")])
def test_a_verdict_is_decided_by_the_errors(difference, seeds, said):
    assert verdicts.verdict(0.3 * difference, 0.3, seeds) == said


@pytest.mark.parametrize("seeds", [3, 5, 20])
def test_equal_means_are_level_as_often_as_is_said(seeds):
    runs = np.random.default_rng(seeds).normal(size=(4000, seeds))
    errors = runs.std(1, ddof=1) / seeds**0.5
    apart = [verdicts.verdict(mean, error, seeds) != verdicts.LEVEL
             for mean, error in zip(runs.mean(1), errors, strict=True)]
    assert 0.035 < np.mean(apart) < 0.065  # 95 % are level; two standard errors are 82 % for three


def test_published_cells_are_ahead_by_their_errors():
    stored = json.loads((published_report.RESULTS / "published.json").read_text(encoding="utf-8"))
    actual = {(row["data"], row["epsilon"]): row for row in stored["rows"]
              if row["paper"].startswith("PrivateDiff")}
    assert {published_report.verdict(row) for row in actual.values()} == {"ahead"}
    narrowest = published_claims.CELLS[0]
    assert actual[narrowest.title, narrowest.epsilon]["seeds"] == 20
    first = {"ours": 0.94562, "ours_se": 0.00105, "seeds": 5, "published": 0.9442, "metric": "AUC"}
    assert published_report.verdict(first) == "level"
    line = result_tables.counts(stored).splitlines()[2]
    assert line.endswith("| 16 | 16 | 0 | 0 |")


# --- which part of a table is run ---


def given(*words):
    p = argparse.ArgumentParser()
    report.seed_options(p, 5)
    report.cell_option(p)
    return p.parse_args(words)


def test_seeds_are_a_number_from_the_first_one():
    assert list(report.seeds(given())) == [0, 1, 2, 3, 4]
    assert list(report.seeds(given("--first-seed", "100", "--seeds", "2"))) == [100, 101]


def test_cells_are_chosen_by_their_words():
    names = ["mnist, epsilon 1", "fashion mnist, epsilon 1", "mnist, epsilon 10"]
    assert report.chosen(given(), names) == names
    assert report.chosen(given("--cell", "epsilon 1"), names) == names[:2]
    assert report.chosen(given("--cell", "fashion", "--cell", "mnist 10"), names) == names[1:]
    with pytest.raises(ValueError, match=r"--cell 'adult'.*mnist, epsilon 1; fashion"):
        report.chosen(given("--cell", "adult"), names)


@pytest.mark.nightly
@pytest.mark.parametrize("stops", [1, 3, 4])
def test_a_stopped_table_ends_with_the_file_that_it_would_have_had(stops, tmp_path, monkeypatch):
    calls = []

    def honest(args, cell, seed):
        calls.append((cell.name, seed))
        if len(calls) == stops:
            raise KeyboardInterrupt
        return {"average": [seed / 1000], "seconds": 1.0}, {"iterations": 3}

    monkeypatch.setattr(table2, "honest", honest)
    given = ["--readings", "honest", "--cell", "mnist linear 0.5 1e-06", "--cell", "mnist nseg 0.1",
             "--delta", "1e-6"]
    contents = []
    for name in ("stopped", "whole"):
        file = ["--json", str(tmp_path / f"{name}.json")]
        if name == "stopped":
            with pytest.raises(KeyboardInterrupt):
                table2.main([*given, *file, "--seeds", "2"])
            assert table2.main([*given, *file, "--first-seed", "1", "--seeds", "1"]) == 0
        assert table2.main([*given, *file, "--seeds", "2"]) == 0
        assert table2.main([*given, *file, "--seeds", "2"]) == 0
        contents.append(json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8")))
    stopped, whole = contents
    assert len(calls) == 1 + 2 * 4  # no seed is run twice, but for the one that was stopped
    assert stopped["rows"] == whole["rows"]
    assert {row["seeds"] for row in whole["rows"]} == {2}
    assert stopped["cells"] == whole["cells"]


def test_seeds_are_added_to_a_cell_of_the_same_settings_only():
    runs = {"a": {"recipe": "x", "seeds": {"0": 1, "4": 2}},
            "b": {"recipe": "y", "seeds": {"0": 3}}}
    found = list(report.missing(runs, {"a": "x", "b": "z", "c": None}, [0, 3]))
    assert found == [("a", 3), ("b", 0), ("b", 3), ("c", 0), ("c", 3)]
    assert runs["a"]["seeds"] == {"0": 1, "4": 2}
    assert runs["b"] == {"recipe": "z", "seeds": {}}


def test_cells_of_the_published_record_are_chosen():
    args = published.parser().parse_args(["--cell", "imbalanced Fashion-MNIST 0.5"])
    assert published.cells(args) == [published_claims.CELLS[0]]
