"""The comparison of guarantees: gaps by brute force, and a plan's runs below its number."""

import json
import pathlib

import numpy as np
import pytest

from benchmarks.rates import guarantees
from jaxminimax import Saddle


@pytest.mark.parametrize("game", guarantees.GAMES)
def test_gaps_are_the_best_that_both_players_find_on_a_grid(game):
    """And records keep the norm that a plan is told, on both balls."""
    rng = np.random.default_rng(0)
    turn, a, b = (x.mean(0) for x in guarantees.records(game))
    turn, q = turn + game.coupling * np.eye(3), game.curvature
    balls = rng.normal(size=(2, 40_000, 3))
    balls /= np.maximum(1, np.linalg.norm(balls, axis=2, keepdims=True))
    w, v = rng.normal(size=(2, 3)) / 4

    def loss(w, v):
        return (w @ a + np.sum(w @ turn * v, -1) - v @ b
                + q / 2 * (np.sum(w**2, -1) - np.sum(v**2, -1)))

    best = loss(w, balls[1]).max() - loss(balls[0], v).min()
    mean = tuple(x.mean(0, keepdims=True) for x in guarantees.records(game))
    exact = guarantees.gap(game, Saddle(w[None], v[None]), mean)[0]
    assert best <= exact <= best + 0.05 * (1 + game.coupling)
    for kind, x, y in zip(*guarantees.records(game), strict=True):
        steep = np.linalg.norm(kind, 2)
        assert np.hypot(np.linalg.norm(x) + steep, np.linalg.norm(y) + steep) <= (
            game.bound * (1 + 1e-9))


@pytest.mark.slow
def test_runs_of_a_plan_are_compared_with_its_guarantee():
    row = guarantees.measured("extragradient, one pass", guarantees.GAMES[3], True, 300, 3)
    assert (row["gap"], row["on"], row["runs"]) == ("strong", "population", 3)
    assert 0 < row["mean"] <= row["largest"] < row["guarantee"] < row["trivial"]
    assert row["above"] == 0
    header, lines = guarantees.runs_table({"rows": [row]})
    assert len(header) == len(lines[0])


def test_the_order_of_guarantees_is_what_the_documents_say():
    """Special plans have the smallest numbers; of the others `recursive` at 1,000 records alone."""
    file = pathlib.Path(guarantees.__file__).parent / "results" / "guarantees.json"
    strong = {row["plan"]: dict(zip(row["n"], row["guarantee"], strict=True))
              for row in json.loads(file.read_text("utf-8"))["by_n"]
              if (row["gap"], row["on"]) == ("strong", "population")}
    special = {"gda", "optimistic, proved, bilinear"}
    for n in (1000, 10_000, 100_000):
        order = sorted(strong, key=lambda plan: strong[plan][n])
        assert set(order[:2]) == special
        general = [plan for plan in order if plan not in special]
        if n == 1000:
            assert general[0] == "recursive"
        else:
            assert set(general[:2]) == {"proximal, one pass", "extragradient, one pass"}
            assert general[2:4] == ["sgda, one pass", "recursive"]
