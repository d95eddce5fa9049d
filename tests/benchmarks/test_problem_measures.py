"""The measures of `benchmarks.accuracy.problems` against pairs and scikit-learn; its table."""

import itertools

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import roc_auc_score

from benchmarks.accuracy import problems

RNG = np.random.default_rng(0)


def test_hand_till_and_macro_are_those_of_scikit_learn():
    y = RNG.integers(0, 4, 80)
    scores = softmax(RNG.normal(size=(80, 4)) + np.eye(4)[y], axis=1)
    for name, kind in (("Hand and Till", "ovo"), ("one-versus-rest AUC", "ovr")):
        assert problems.measure(name, scores, y, 4) == pytest.approx(
            roc_auc_score(y, scores, multi_class=kind))


def test_the_two_way_measure_is_the_share_of_the_hard_pairs():
    y = np.repeat([0, 1], 50)
    scores = RNG.normal(size=100) + y
    plus, minus = np.sort(scores[50:])[:25], np.sort(scores[:50])[-15:]
    expected = np.mean([a > b for a, b in itertools.product(plus, minus)])
    assert problems.measure("two-way AUC", scores, y, 2) == pytest.approx(expected)


def test_the_table_compares_with_the_better_one_and_knows_losses():
    def values(x):
        return {"values": {f"{e:g}": [x - 0.01, x + 0.01] for e in problems.EPSILONS}}

    runs = {"a, b, logistic regression": {"CVaR": values(0.5), "one-way AUC": values(0.7)},
            "a, b, AUC": {"one-way AUC": values(0.75)}, "a, b, CVaR": {"CVaR": values(0.3)},
            "a, b, one-way AUC": {"one-way AUC": values(0.72)}}
    lines = problems.ahead({"runs": runs}).splitlines()[2:]
    assert [line.split(" | ")[5] for line in lines] == ["+0.2000 ± 0.0141", "-0.0300 ± 0.0141"]
    assert len(problems.table({"runs": runs}).splitlines()) == 2 + 2 * len(problems.EPSILONS)
