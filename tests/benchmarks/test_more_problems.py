"""The further problems' table: every way at every epsilon, and the words of the table."""

import functools

import numpy as np
import pytest

from benchmarks.accuracy import more_problems


def test_a_row_is_the_mean_and_its_standard_error():
    values = {f"{epsilon:g}": [1.0, 2.0, 3.0] for epsilon in more_problems.EPSILONS}
    words = more_problems.table({"runs": {"turns, adult": {"measure": "AUC",
                                                           "ways": {"at once": values}}}})
    assert words.count("2.0000 ± 0.5774") == len(more_problems.EPSILONS)


@pytest.mark.nightly
def test_ways_of_a_small_table_are_measured(monkeypatch):
    monkeypatch.setattr(more_problems, "ROUNDS", 4)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (400, 2))
    monkeypatch.setattr(more_problems, "_table", lambda *_: (
        x, np.maximum(5 * x[:, 0], 0), np.arange(400) % 2, (0, 5)))
    monkeypatch.setattr(more_problems, "_binary", lambda *_: (
        (x.astype(np.float32), (x[:, 0] > 0).astype(np.float32)),
        (x, (x[:, 0] > 0).astype(float)), 0.5))
    monkeypatch.setattr(more_problems, "DELTA", 1e-4)
    for make in (more_problems.worst_regression, more_problems.error_rates,
                 functools.partial(more_problems.mixture, "error"),
                 more_problems.attacked, more_problems.in_turns):
        for measured in make("randhie", None).ways.values():
            assert np.isfinite(measured(4.0, 0))
