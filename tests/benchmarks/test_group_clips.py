"""The comparison of clip norms that follow weights with one clip norm of all groups."""

import json

import numpy as np
import pytest

from benchmarks.accuracy import group_clips


def test_a_cell_compares_ways_by_the_paired_difference():
    values = {"a": [0.5, 0.7, 0.6], "b": [0.4, 0.61, 0.5]}
    assert group_clips.compared(values, "a", "b")["verdict"] == "ahead"
    assert group_clips.compared(values, "b", "a")["verdict"] == "behind"
    wide = group_clips.compared({"a": [0.5, 0.9, 0.1], "b": [0.4, 0.6, 0.5]}, "a", "b")
    assert wide["verdict"] == "level"
    assert wide["gain_error"] == pytest.approx(np.std([0.1, 0.3, -0.4], ddof=1) / 3**0.5)
    assert group_clips.compared({"a": [0.9], "b": [0.1]}, "a", "b")["verdict"] == "level"


@pytest.mark.slow
def test_samples_need_hardly_less_noise_for_a_record_that_is_read():
    for epsilon in (0.5, 4.0):
        ratios = list(group_clips.noise_of_samples(epsilon, 1e-6, 200).values())
        assert min(ratios) > 1 - 2e-3
        assert ratios[0] > ratios[-1]


@pytest.mark.nightly
def test_the_command_goes_on_where_it_stopped(tmp_path):
    file = tmp_path / "group_clips.json"
    one = ["--case", "cattaneo-label", "--epsilon", "4", "--json", str(file), "--seeds"]
    assert group_clips.main([*one, "1"]) == 0
    first = json.loads(file.read_text())["runs"]
    assert group_clips.main([*one, "2"]) == 0
    result = json.loads(file.read_text())
    (name,), (row,) = first, result["rows"]
    assert result["runs"][name]["seeds"]["0"] == first[name]["seeds"]["0"]
    assert row["seeds"] == 2
    assert set(row["ways"]) == set(group_clips.WAYS)
    assert all(0 < mean < 1 for mean, _ in row["ways"].values())
    assert sum(group_clips.counted(result)["of minimax"]) == 1
    assert group_clips.table(result).count("**") == 2
