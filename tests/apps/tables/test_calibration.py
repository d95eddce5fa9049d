"""Calibration: one release of bounded numbers, charged, that makes scores log-odds."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
import scipy
from scipy.special import expit
from sklearn.metrics import log_loss

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.apps.tables import Category, Number, Schema, defaults, labels, statistics, train

SCHEMA = Schema({"a": Number(-1, 1), "b": Number(-1, 1)}, "y", "1")


def described(n, deviation):
    """A release of the mean over n records with noise of this standard deviation."""
    clip = labels.CALIBRATION_CLIP
    return statistics.one_release(n, clip, deviation * n / clip)


def lines(described, scores, y, keys, prior=0.5):
    one = np.ones((len(y), 1), np.float32)
    return np.array([labels.release_calibration(jax.random.key(k), described, scores[:, None],
                                              y[:, None], one, prior) for k in range(keys)])


def test_no_record_is_longer_than_the_clip_norm():
    grid = itertools.product(np.linspace(0, 1, 41), np.linspace(-1, 1, 21), (0.0, 1.0))
    psi = [np.asarray(labels._psi(Saddle(np.zeros(5), ()), (
        np.array([p]), np.array([t]), np.array([y]), np.ones(1))).w) for p, t, y in grid]
    longest = max(map(np.linalg.norm, psi))
    assert longest == pytest.approx(labels.CALIBRATION_CLIP, rel=1e-6)


def test_intercepts_have_the_noise_that_is_described():
    """Of undecided scores the intercept is the noise of one number over 1/4 and the ridge."""
    deviation, y = 0.01, np.arange(200) % 2
    shifts = lines(described(200, deviation), np.zeros(200), y, 300)[:, 0]
    shrunk = 1 + (4 * deviation / 0.25) ** 2
    assert np.std(shifts) == pytest.approx(deviation / (0.25 + 3 * deviation) / shrunk, rel=0.2)


def test_a_shift_that_is_noise_is_shrunk_to_nearly_nothing():
    """At noise of 1 the mean of p (1 - p), at most 1/4, says nothing: a seventeenth is left."""
    shifts = lines(described(200, 1.0), np.zeros(200), np.arange(200) % 2, 200)[:, 0]
    # Newton's step is noise of 1 over 3 at least, before it
    assert np.abs(shifts).max() < 5 / 3 / 17


def test_no_record_of_classes_is_longer_than_the_clip_norm():
    """The most is a certain score of another class, whose cut scores are the ends of [-1, 1]."""
    rng = np.random.default_rng(0)
    p, t = rng.dirichlet([0.2] * 3, 5000), rng.uniform(-1, 1, (5000, 3))
    p[0], t[0] = (1, 0, 0), (1, -1, 0)
    y = np.eye(3)[rng.integers(3, size=5000)]
    y[:2] = (0, 1, 0), (0, 0, 0)
    psi = np.asarray(jax.vmap(lambda *record: labels._psi_of_several(Saddle(np.zeros(2), ()), (
        *(x[None] for x in record), np.ones(1))).w)(p, t, y))
    assert np.linalg.norm(psi, axis=1).max() == pytest.approx(
        labels.CALIBRATION_CLIP_OF_CLASSES, rel=1e-6)
    assert not psi[1].any()


def test_slopes_of_classes_have_the_noise_that_is_described():
    """Of undecided scores, whose gradient is 0, and with the variance 2/3 of t = (1, -1, 0)."""
    n, deviation = 300, 0.01
    prior = scipy.special.softmax([-2.0, 2.0, 0.0])
    clip = labels.CALIBRATION_CLIP_OF_CLASSES
    made = statistics.one_release(n, clip, deviation * n / clip)
    y, one = np.eye(3)[np.arange(n) % 3][:, None], np.ones((n, 1), np.float32)
    slopes = [labels.release_calibration(jax.random.key(k), made, np.zeros((n, 1, 3)), y, one,
                                       prior)[1] for k in range(300)]
    assert np.std(slopes) == pytest.approx(deviation / (2 / 3 + 3 * deviation) / 2, rel=0.2)


@pytest.mark.parametrize("slope", [1.0, 1.6, 0.7])
def test_probabilities_of_classes_come_near_to_the_shares_of_labels(slope):
    rng = np.random.default_rng(0)
    prior = np.array([0.2, 0.5, 0.3])
    truth = rng.normal(0, 1.5, (20_000, 3)) + np.log(prior)
    y = np.argmax(truth + rng.gumbel(size=truth.shape), 1)
    scores = np.log(prior) + (truth - np.log(prior)) / slope
    shift, tilt = labels.release_calibration(
        jax.random.key(0), statistics.one_release(20_000, labels.CALIBRATION_CLIP_OF_CLASSES, 1.0),
        scores[:, None], np.eye(3)[y][:, None], np.ones((20_000, 1), np.float32), prior)
    best, old, new = (log_loss(y, scipy.special.softmax(s, 1))
                      for s in (truth, scores, shift + tilt * scores))
    assert new - best <= 0.2 * (old - best) + 1e-4


@pytest.mark.parametrize(("shift", "slope"), [(0.0, 1.0), (0.5, 1.4), (-0.5, 0.7)])
def test_probabilities_come_near_to_the_shares_of_labels(shift, slope):
    rng = np.random.default_rng(0)
    truth = rng.normal(0, 1.5, 20_000)
    y = (rng.uniform(size=20_000) < expit(truth)).astype(int)
    scores = (truth - shift) / slope
    (a, b), = lines(described(20_000, 1e-4), scores, y, 1)
    assert (a, b) == (pytest.approx(shift, abs=0.15), pytest.approx(slope, rel=0.15))
    best, old, new = (log_loss(y, expit(s)) for s in (truth, scores, a + b * scores))
    assert new - best <= 0.2 * (old - best) + 1e-4


def test_noise_alone_leaves_scores_ordered_and_near():
    scores = np.linspace(-2, 2, 100)
    found = lines(described(100, 1.0), scores, scores > 0, 50)
    assert np.all(found[:, 1] > 0)
    assert np.abs(found).max() < 4


def test_it_is_charged():
    chosen = defaults(600, SCHEMA, epsilon=2.0, delta=1e-5)
    without = dataclasses.replace(chosen, line=None)
    assert jmm.epsilon(without.mechanism(), 1e-5) < jmm.epsilon(chosen.mechanism(), 1e-5) <= 2.0
    assert chosen.line.query.clip.w == labels.CALIBRATION_CLIP


@pytest.mark.slow
def test_what_is_released_is_what_is_charged(monkeypatch):
    rng = np.random.default_rng(0)
    table = {"a": rng.uniform(-1, 1, 600), "b": rng.uniform(-1, 1, 600)}
    table["y"] = (table["a"] + rng.normal(0, 0.3, 600) > 0).astype(int)
    chosen = defaults(600, SCHEMA, epsilon=2.0, delta=1e-5)
    seen, release_calibration = [], labels.release_calibration

    def kept(key, described, *rest):
        seen.append((described, *rest, release_calibration(key, described, *rest)))
        return seen[-1][-1]

    monkeypatch.setattr(labels, "release_calibration", kept)
    scorer = train(table, SCHEMA, epsilon=2.0, delta=1e-5, key=jax.random.key(0))
    (line, scores, _, _, prior, *_, (shift, slope)), = seen
    assert line == chosen.line
    assert len(scorer.statement.sampling) == 4
    np.testing.assert_allclose(scorer.decision_function(table), shift + slope * scores[:, 0],
                               atol=1e-4)
    assert prior == scorer.moments.prior


def test_groups_and_numbers_have_none():
    assert defaults(600, SCHEMA, epsilon=1.0, delta=1e-6, sizes=(300, 300),
                    by_label=True).line is None
    wide = dataclasses.replace(SCHEMA, positive=None, target=Number(0, 1))
    assert defaults(600, wide, epsilon=1.0, delta=1e-6).line is None
    classes = dataclasses.replace(SCHEMA, positive=None, target=Category("uvw"))
    assert defaults(600, classes, epsilon=1.0, delta=1e-6).line.query.clip.w == (
        labels.CALIBRATION_CLIP_OF_CLASSES)
