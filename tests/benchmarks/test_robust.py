"""Double-Spider's task: what the published noise gives, the map of an image, and the data."""

import math

import numpy as np
import pytest

from benchmarks.data_sets import cifar10
from benchmarks.published import robust, truth


def test_the_private_stage_costs_more_than_it_claims():
    parts, anchor = robust.spider_parts(1.0)
    (eta, rate, times), (x, whole, _), *between = parts
    assert (times, whole, [p[2] for p in between]) == (17, 1.0, [83, 83])
    assert eta / rate == pytest.approx(x) == pytest.approx(anchor * robust.N)
    low, high = truth.bracket(parts, robust.N, robust.DELTA)
    assert 5.0 < low <= high < 5.5
    # the mean is clipped and no record: one record of any size moves it from one end to the other
    mu = 2 / anchor
    assert truth.once(anchor, 1.0, robust.DELTA) == pytest.approx(mu**2 / 2, rel=0.01)


def test_the_parts_of_small_claims_use_all_records():
    sizes = [rate * robust.N for _, rate, _ in robust.spider_parts(0.1)[0]]
    assert sizes == pytest.approx([robust.N, robust.N, 267, 1283])
    assert math.isclose(robust.DELTA, 1.42e-5, rel_tol=0.01)


def test_an_image_becomes_a_row_of_norm_one_by_itself():
    images = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3)).astype(np.uint8)
    rows = robust.mapped(images)
    assert rows.shape == (6, 336)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(6), abs=1e-5)
    np.testing.assert_allclose(robust.mapped(images[2:3])[0], rows[2], atol=1e-6)


def test_missing_images_are_refused(tmp_path):
    with pytest.raises(ValueError, match="git clone"):
        cifar10.load("test", tmp_path)
