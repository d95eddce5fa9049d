"""Calibration answers over the whole range of targets, on the private side and near the target."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf

import jaxminimax as jmm
from benchmarks import calibration
from jaxminimax import Saddle
from jaxminimax.accounting import _calibrate, _curves, _epsilon, _pld, subsampling
from jaxminimax.mechanism import Charge, PrivacyLoss

pytestmark = pytest.mark.usefixtures("real_noise")
EPSILONS, DELTAS, TIMES = (1e-3, 0.1, 1.0, 20.0), (1e-4, 1e-10), (1, 1000, 10**6)


def repeat(sampling, times, n=100_000, z=None):
    query = jmm.Query(clip=Saddle(1.0, None), sampling=sampling, population=n,
                      noise_multiplier=None if z is None else Saddle(z, None))
    return jmm.Repeat(query=query, times=times)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_without_sampling_the_target_is_met_to_twelve_digits(epsilon, delta, times):
    answer = jmm.calibrate_noise(repeat(jmm.Full(), times), epsilon, delta)
    assert 1 - 1e-11 < jmm.epsilon(answer, delta) / epsilon <= 1


@pytest.mark.slow
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_with_sampling_the_target_is_met_to_a_thousandth(epsilon, delta, times):
    answer = jmm.calibrate_noise(repeat(jmm.Poisson(rate=1e-3), times), epsilon, delta)
    # A million uniforms of finite precision depart from the Poisson law by some 1e-19, which costs
    # e^epsilon times that in delta: above epsilon = 19 more than 1e-10 can pay, whatever the noise.
    least = 0.95 if (epsilon, delta, times) == (20.0, 1e-10, 10**6) else 0.999
    assert least < jmm.epsilon(answer, delta) / epsilon <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("n", "batch", "times"), [(256, 16, 64), (5, 5, 3), (2, 40, 2)])
@pytest.mark.parametrize("epsilon", [0.1, 8.0])
def test_draws_with_replacement_are_calibrated(n, batch, times, epsilon):
    how = jmm.FixedSize(batch=batch, replacement=True)
    answer = jmm.calibrate_noise(repeat(how, times, n=n), epsilon, 1e-6)
    assert 0.999 < jmm.epsilon(answer, 1e-6) / epsilon <= 1


def test_a_target_out_of_reach_is_refused_with_a_reason():
    how = jmm.Poisson(rate=1e-3, capacity=120)  # outgrown once in 50 samples
    with pytest.raises(ValueError, match="capacity"):
        jmm.calibrate_noise(repeat(how, 1000), 1.0, 1e-6)


@pytest.mark.parametrize("start", [1e-3, 0.3, 1.0, 40.0, 1e6])
@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_the_bracket_holds_the_root_and_the_search_ends_on_its_private_side(start, power):
    def value(scale):
        return (7.0 / scale) ** power

    low, high = _calibrate._bracket(value, 1.0, start, 1.002)
    assert low < high
    assert value(high) <= 1 < value(low)
    root = _calibrate._secant(value, low, high, 1.0, 2e-4)
    assert 7.0 <= root <= 7.0 * (1 + 2e-4 * max(1, 1 / power))


def test_an_infinite_value_is_left_behind():
    def value(scale):
        return math.inf if scale < 3 else 10 / scale

    low, high = _calibrate._bracket(value, 1.0, 0.01, 1.1)
    assert value(high) <= 1 < value(low)
    assert _calibrate._secant(value, low, high, 1.0, 1e-4) == pytest.approx(10, rel=1e-3)


# ---- what makes it quick ---------------------------------------------------------------------


def test_distributions_equal_the_librarys():
    grid, cells = 1e-2, 400
    epsilon = np.arange(cells + 1) * grid
    right = subsampling.profile(epsilon, 50, 5, 1.0, True)
    left = -np.expm1(-epsilon) + np.exp(-epsilon) * right
    deltas = np.concatenate([left[:0:-1], right])
    theirs = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, -cells, cells, deltas)
    ours = _pld.connect_the_dots(deltas, grid)
    theirs = theirs.to_dense_pmf()
    assert ours._lower_loss == theirs._lower_loss
    assert ours._infinity_mass == theirs._infinity_mass
    np.testing.assert_allclose(ours._probs, theirs._probs, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("n", "m", "z"), [(1000, 50, 1.0), (20, 4, 1.5), (6, 6, 0.35),
                                           (2, 128, 5.0), (60_000, 64, 0.11), (1, 3, 2.0)])
def test_the_water_level_spends_the_mass_and_never_more(n, m, z):
    k, w, none, _ = subsampling.multiplicities(n, m, True)
    epsilon = np.concatenate([np.arange(0, 3, 1e-2), np.linspace(3, 60, 300)])
    mu, mass = k / z, -np.expm1(-epsilon) * none
    x = subsampling._water_level(epsilon, mu, w, mass)

    def used(x):
        terms = [p * np.maximum(np.expm1(m * x - m * m / 2 - epsilon), 0.0)
                 for p, m in zip(w, mu, strict=True)]
        return np.sum(terms, axis=0)

    assert np.all(used(x) <= mass * (1 + 1e-12))
    spent = mass > 1e-9
    assert np.all(used(x + 1e-9 / mu[0])[spent] >= mass[spent] * (1 - 1e-12))


def test_tails_left_out_are_charged():
    for replacement in (False, True):
        for tail in (1e-6, 1e-10):
            pmf = subsampling.fixed_size_gaussian(100, 10, 2.0, replacement, 1e-3,
                                                  tail)._pmf_remove
            assert 0 < pmf._infinity_mass <= 1.01 * 2 * tail
    values = [subsampling.fixed_size_gaussian(100, 10, 2.0, True, 1e-3, tail).get_epsilon_for_delta(
        1e-5) for tail in (1e-6, 1e-9, 1e-22)]
    assert values[0] >= values[1] >= values[2] > 0.99 * values[0]
    *_, left_out = subsampling.multiplicities(100, 10, True, 1e-6)
    assert 1e-19 < left_out <= 1e-6


@pytest.mark.slow
def test_less_noise_gets_wider_cells_before_it_gets_infinity():
    values = []
    for z in (2.0, 1.0, 0.7, 0.5):
        cost = Charge(losses=((PrivacyLoss("replacement", z, population=256, batch=16), 64),))
        values.append(_epsilon.upper_bounds(cost, 1e-5, "replace_one")["pld"])
    assert all(a < b < math.inf for a, b in itertools.pairwise(values))
    assert values == pytest.approx([4.8729, 30.156, 71.39, 154.7], rel=5e-3)


@pytest.mark.slow
def test_a_wider_grid_for_few_releases_costs_a_millionth():
    loss = PrivacyLoss("replacement", 2.1604, population=256, batch=16)
    cost = Charge(losses=((loss, 64),))
    assert _curves.interval(cost, 5.0) > 2e-4
    fine = _curves._composed(cost, 1e-4, "replace_one")
    exact = _pld.epsilon_for_delta(fine, 1e-5)
    value = _curves.pld_epsilon(cost, 1e-5, "replace_one", 5.0)
    assert exact <= value <= exact * (1 + 5e-6)


# ---- the benchmark ---------------------------------------------------------------------------


def test_the_benchmark_times_cold_and_remembered_answers(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "sampled", lambda quick: iter(()))
    path = tmp_path / "calibration.json"
    assert calibration.main(["--quick", "--json", str(path)]) == 0
    assert "again s" in capsys.readouterr().out
    rows = json.loads(path.read_text())["rows"]
    assert {tuple(row) for row in rows} == {("mechanism", "epsilon", "delta", "releases",
                                            "noise_multiplier", "seconds", "cold")}
    assert sum(row["cold"] for row in rows) == len(rows) / 2
    tree = next(row for row in rows if row["mechanism"] == "tree")
    assert tree["noise_multiplier"] / 2 == pytest.approx(15.23230, abs=1e-5)


@pytest.mark.parametrize("mu", [1.0, 8.0, 12.0])
def test_both_directions_of_a_gaussian_are_the_same(mu):
    """Also beyond epsilon = 37, where 1 - (1 - e^-epsilon) has no digit left."""
    made = _pld.poisson_gaussian(1.0, 1 / mu, "add_or_remove_one", 1e-3, 1e-18)
    for delta in (1e-4, 1e-8):
        one, two = (_pld._smallest(pmf, delta) for pmf in (made._pmf_remove, made._pmf_add))
        assert one == pytest.approx(two, rel=1e-6)
        assert one == pytest.approx(_curves.gaussian_epsilon(mu, delta), rel=1e-3)


def test_answers_are_not_shared_between_numbers_that_print_alike():
    query = jmm.Query(clip=Saddle(1.0, None), population=100)

    def calibrated(z):
        noisy = dataclasses.replace(query, noise_multiplier=Saddle(z, None))
        other = jmm.Repeat(query=noisy, times=1)
        made = jmm.calibrate_noise(jmm.Repeat(query=query, times=3), 1.0, 1e-6, alongside=(other,))
        return jmm.epsilon(jmm.Sequence(parts=(other, made)), 1e-6)

    with np.printoptions(precision=0):
        for z in (11.4, 10.6, 11.4):
            assert calibrated(np.array(z)) <= 1.0
