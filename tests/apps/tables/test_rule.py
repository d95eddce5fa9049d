"""The length that rows of two values are cut to follows from public and from released numbers."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax.apps.tables import (
    Category,
    Number,
    Schema,
    defaults,
    fair_defaults,
    records,
)
from jaxminimax.apps.tables.scorer import Moments
from tests.helpers.lanes import rest_nightly

DELTA = 1e-6


def schema(width: int, **kind: Any) -> Schema:
    kind = kind or {"positive": "1"}
    return Schema({f"x{k}": Number(0, 1) for k in range(width)}, "y", **kind)


def cut(n: int, width: int, epsilon: float) -> float:
    return defaults(n, schema(width), epsilon=epsilon, delta=DELTA).cut


@pytest.mark.slow
def test_the_cut_of_two_values_follows_the_budget():
    """It rises with n and epsilon and falls in d, from 1 at small budgets to 2 at large ones."""
    sizes, widths, budgets = (1000, 8000, 10**6), (2, 4, 10, 40), (0.5, 1.0, 4.0)
    at = {x: cut(*x) for x in itertools.product(sizes, widths, budgets)}
    assert min(at.values()) == 1.0
    assert max(at.values()) == 2.0
    assert any(1 < x < 2 for x in at.values())
    for (n, d, e), there in at.items():
        assert all(at[m, d, e] >= there for m in sizes if m > n)
        assert all(at[n, d, b] >= there for b in budgets if b > e)
        assert all(at[n, w, e] <= there for w in widths if w > d)
    assert {cut(n, d, e) for n, d, e in [(1000, 4, 0.5), (5000, 10, 1.0), (20_000, 100, 4.0)]} == {
        1.0}


def test_a_longer_cut_has_its_square_of_the_time():
    """Rows divided by L have weights L times as long, and gradients an L-th: the same flow."""
    longer = defaults(10**6, schema(4), epsilon=0.5, delta=DELTA)
    twice = defaults(2 * 10**6, schema(4), epsilon=0.5, delta=DELTA)
    assert longer.cut == twice.cut == 2.0
    first = defaults(4000, schema(4), epsilon=0.5, delta=DELTA)
    assert first.cut == 1.0
    clips = [x.hyper.query.clip.w for x in (first, longer)]
    for one in (first, longer):  # tau = 0.7 n mu' L^2 / (2 C)
        flow = 0.7 * one.strength * 2 * one.cut**2 / (2 * one.hyper.query.clip.w)
        assert one.time == pytest.approx(flow, rel=1e-6)
    assert clips[0] < clips[1]


@pytest.mark.parametrize("kind", [{"target": Number(0, 1)}, {"target": Category(("a", "b", "c"))}])
def test_rows_of_other_labels_have_no_typical_length(kind):
    assert not defaults(10**6, schema(4, **kind), epsilon=4.0, delta=DELTA).cut_by_length


def test_private_groups_and_groups_of_labels_are_cut_at_one():
    plain = fair_defaults(10**6, schema(4), 2, epsilon=4.0, delta=DELTA).plain
    grouped = defaults(10**6, schema(4), epsilon=4.0, delta=DELTA, sizes=(5 * 10**5,) * 2,
                       by_label=True)
    too_few = defaults(50, schema(4), epsilon=0.5, delta=DELTA)
    for one in (plain, grouped, too_few):
        assert one.cut == 1.0
    assert not plain.cut_by_length
    assert not grouped.cut_by_length


def moments(variance: np.ndarray) -> Moments:
    mean = np.linspace(-0.5, 0.5, len(variance))
    return Moments(mean, mean**2 + variance, 0.5)


def test_the_typical_length_is_that_of_rows_before_the_cut():
    """Of normal features it is the root of the mean squared length, and 1 without a floor."""
    rng = np.random.default_rng(0)
    variance, floor = rng.uniform(0.5, 2.0, 7), 0.7
    made = moments(variance)
    x = made.mean + rng.normal(size=(200_000, 7)) * np.sqrt(variance)
    rows = (x - made.mean) / np.sqrt(7 * (variance + floor))
    squares = np.sum(rows**2, 1)
    error = 4 * squares.std() / np.sqrt(len(squares))
    assert abs(records.typical_length(made, floor) ** 2 - squares.mean()) < error
    assert records.typical_length(made, 0.0) == pytest.approx(1.0)
    assert records.typical_length(moments(np.zeros(7)), floor) == 0.6
    assert records.typical_length(moments(-variance), floor) == 0.6
    lengths = [records.typical_length(made, f) for f in (0.0, 0.1, 0.5, 1.0, 1e9)]
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [{"positive": "1"}, {"target": Number(-1e150, 1e150)},
                                  {"target": Category(("a", "b", "c"))}])
@pytest.mark.parametrize("epsilon", rest_nightly([0.01, 20.0], 1))
@pytest.mark.parametrize("width", rest_nightly([500, 1], 1))
@pytest.mark.parametrize("n", [20, 10**7])
def test_at_the_ends_of_all_numbers_the_budget_is_spent_and_rows_stay_short(
        n, width, epsilon, kind):
    """Every distance is in [C, 2 C], and rows have length 1 whatever the released moments are."""
    delta = min(1e-3, 1 / n)
    chosen = defaults(n, schema(width, **kind), epsilon=epsilon, delta=delta / 10)
    assert 0.99 * epsilon < jmm.epsilon(chosen.mechanism(), delta / 10) <= epsilon
    assert chosen.floor > 0
    for _, described in chosen.named():
        query = described.query
        if query.distance is not None:
            assert query.clip.w <= query.distance.w <= 2 * query.clip.w
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-1, 1, (50, width)), np.ones((1, width)), -np.ones((1, width))])
    for size in (0.0, 1e-9, 3.0, 1e9):  # negative variances among them, as noise makes them
        made = Moments(size * rng.normal(size=width), size * rng.normal(size=width), 0.5)
        out = records.scaled(x, *chosen.divisors(made))[:, :-1].astype(float)
        assert np.linalg.norm(out, axis=1).max() <= 1 + 1e-6


@pytest.mark.parametrize("by_length", [True, False])
def test_rows_are_divided_by_the_cut_and_no_longer_than_one(by_length):
    """Whatever the moments say, the bound on a record's gradient is that of cut rows."""
    rng = np.random.default_rng(1)
    settings = dataclasses.replace(defaults(10**5, schema(3), epsilon=4.0, delta=DELTA),
                                   cut_by_length=by_length, floor=0.3)
    made = moments(np.array([0.1, 0.4, 1.0]))
    x = rng.normal(size=(500, 3)).astype(np.float32) * 3
    length = settings.cut * (records.typical_length(made, 0.3) if by_length else 1.0)
    expected = (x - made.mean) / np.sqrt([0.4, 0.7, 1.3]) / (length * np.sqrt(3))
    expected /= np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1.0)
    out = records.scaled(x, *settings.divisors(made))
    np.testing.assert_allclose(out[:, :-1], expected, rtol=1e-4, atol=1e-5)
    assert np.linalg.norm(out, axis=1).max() <= np.sqrt(2) * (1 + 1e-6)
