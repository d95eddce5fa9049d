"""Private classifiers as one would write them down learn, and their noise is accounted for."""

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from benchmarks.tables import plain_privacy


def rows(n=500):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (n, 3))
    return x, (x[:, 0] + rng.normal(0, 0.5, n) > 0).astype(float)


@pytest.mark.parametrize("name", plain_privacy.METHODS)
def test_each_learns_without_much_noise(name):
    x, y = rows()
    w = plain_privacy.METHODS[name](np.random.default_rng(1), x, y, 80.0, 1e-6)
    assert roc_auc_score(y, x @ w[:-1]) > 0.85
    assert np.linalg.norm(plain_privacy.with_constant(x)[:, :-1], axis=1).max() <= 1


def test_objective_perturbation_ends_where_the_noise_is_minus_the_gradient():
    x, y = rows()
    x = plain_privacy.with_constant(x)
    b = np.random.default_rng(2).normal(0, 20, x.shape[1])
    w = plain_privacy._least(x, y, 2.0, b)
    gradient = (1 / (1 + np.exp(-x @ w)) - y) @ x + 2.0 * w
    assert np.allclose(gradient, -b, atol=1e-3)


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_densities_of_neighbours_differ_by_more_than_epsilon_only_with_probability_delta(epsilon):
    """For the worst records: rows of full length, opposite in one coordinate, of other labels."""
    delta, reg = 1e-2, 1.0
    s = plain_privacy.deviation(epsilon, delta, reg)
    rng = np.random.default_rng(3)
    b = rng.normal(0, s, (200_000, 2))
    apart = np.array([math.sqrt(2), 0.0])
    # gradients of residual 1 towards b and -1 away from it: the most that Gamma may be
    shift = np.where(b @ apart > 0, 1.0, 0.0)[:, None] * 2 * apart
    ratio = (2 * np.sum(b * shift, 1) + np.sum(shift**2, 1)) / (2 * s * s) + math.log1p(0.5 / reg)
    assert np.mean(ratio > epsilon) <= delta
