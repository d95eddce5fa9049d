"""The floor of adaptive clip norms on a rare class: how steps are chosen and what is compared."""

import types

import numpy as np
import pytest

from benchmarks.accuracy import adaptive_floor


def test_the_class_that_is_less_often_right_counts():
    x, y = np.array([[1.0], [1.0], [-1.0], [1.0]]), np.array([1, 1, 1, 0])
    assert adaptive_floor.smaller(np.array([1.0]), x, y) == 0.0  # the negative one is wrong
    assert adaptive_floor.smaller(np.array([-1.0]), x, y) == pytest.approx(1 / 3)


def test_steps_are_chosen_by_the_further_splits_alone():
    def run(best, value):
        return {f"{epsilon:g}": {way: [value if k == best else 0.0 for k in range(5)]
                                 for way in adaptive_floor.WAYS}
                for epsilon in adaptive_floor.EPSILONS}

    runs = {"-2": run(1, 0.9), "-1": run(1, 0.8), "0": run(0, 1.0), "1": run(1, 0.4)}
    row, same = adaptive_floor.rows_of(runs, range(2))[:2]
    assert (row["steps"], same["steps"]) == ("own", "one")
    assert same["ways"] == row["ways"]
    assert {way["step"] for way in row["ways"].values()} == {adaptive_floor.STEPS[1]}
    assert row["ways"]["median"]["mean"] == pytest.approx(0.2)  # 0 and 0.4, by step 1
    assert row["floor 0.1 over median"] == {"mean": 0.0, "error": 0.0, "verdict": "level"}
    assert adaptive_floor.rows_of(runs, range(2, 4)) == []
    assert adaptive_floor.table({"rows": [row]}).count("level") == 2


@pytest.mark.nightly
def test_a_split_is_measured_with_every_way_and_step(monkeypatch):
    monkeypatch.setattr(adaptive_floor, "EPSILONS", (4.0,))
    monkeypatch.setattr(adaptive_floor, "ROUNDS", 5)
    rng = np.random.default_rng(0)
    rows = types.SimpleNamespace(x_train=rng.normal(size=(400, 3)), x_test=rng.normal(size=(50, 3)),
                                 y_train=np.arange(400) % 10 == 0, y_test=np.arange(50) % 10 == 0)
    monkeypatch.setattr(adaptive_floor.data, "load", lambda *_, **how: rows)
    found = adaptive_floor.of_split(0, None)["4"]
    assert set(found) == set(adaptive_floor.WAYS)
    assert all(len(x) == 5 and all(0 <= a <= 1 for a in x) for x in found.values())
