"""What the noise of DP Double-Spider's published programs gives."""

import math

import pytest

from benchmarks.papers import robust, truth


def test_the_private_stage_costs_more_than_it_claims():
    parts, anchor = robust.spider_parts(1.0)
    (eta, rate, times), (x, whole, _), *between = parts
    assert (times, whole, [p[2] for p in between]) == (17, 1.0, [83, 83])
    assert eta / rate == pytest.approx(x) == pytest.approx(anchor * robust.N)
    low, high = truth.bracket(parts, robust.N, robust.DELTA)
    assert 5.0 < low <= high < 5.5
    # the mean is clipped and no record: one record of any size moves it from one end to the other
    assert truth.once(anchor, 1.0, robust.DELTA) == pytest.approx(2 / anchor**2, rel=0.01)


def test_a_claim_of_a_tenth_reads_all_records_at_its_anchors():
    parts, _ = robust.spider_parts(0.1)
    assert [rate * robust.N for _, rate, _ in parts] == pytest.approx(
        [robust.N, robust.N, 267, 1283])
    assert math.isclose(robust.DELTA, 1.42e-5, rel_tol=0.01)
