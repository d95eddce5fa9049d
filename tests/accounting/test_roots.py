"""Brackets, bisection and zeros, and on which side of its root each caller ends."""

import dataclasses
import math

import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.accounting import (
    calibration,
    composition,
    curve,
    epsilon_delta,
    filters,
    gaussian,
    renyi,
    roots,
    tuning,
)
from jaxminimax.mechanism.costs import Charge, PrivacyLoss

DELTA = 1e-6


def run(z=5.0, rate=0.02, iterations=30):
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(z, z), population=1000,
                      sampling=jmm.Poisson(rate=rate))
    return jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=iterations)


@pytest.mark.parametrize("at", [-7.5, -3.0, 0.0, 0.1, 2.0, 9.99])
@pytest.mark.parametrize("start", [-10.0, -3.0, 0.0, 4.5, 10.0])
def test_a_bracket_has_the_change_between_its_ends(at, start):
    asked = []

    def holds(x):
        asked.append(x)
        return x <= at

    low, high = roots.bracket(holds, start, 0.01, lowest=-10.0, highest=10.0)
    assert -10 <= low <= at < high <= 10
    assert high - low <= 2 * abs(start - at) + 0.01
    assert len(asked) < 16
    assert all(-10 <= x <= 10 for x in asked)


def test_a_range_without_a_change_ends_at_the_end_that_it_is_beyond():
    assert roots.bracket(lambda _: True, 0.0, 1.0, lowest=-5.0, highest=7.0) == (7.0, 7.0)
    assert roots.bracket(lambda _: False, 0.0, 1.0, lowest=-5.0, highest=7.0) == (-5.0, -5.0)


@pytest.mark.parametrize(("at", "highest", "end"), [(5.0, 100.0, 8.0), (0.5, 100.0, 1.0),
                                                    (1e9, 100.0, 128.0)])
def test_an_end_grows_until_it_is_long_enough_or_too_far(at, highest, end):
    assert roots.grown(lambda x: x < at, 1.0, 2.0, highest) == end


@pytest.mark.parametrize("at", [1, 2, 3, 50, 2**30 - 1, 2**45])
def test_whole_numbers_end_as_neighbours(at):
    ends = roots.bracket(lambda n: n <= at, 3, 2, lowest=1, highest=2**62)
    low, high = roots.bisect(lambda n: n <= at, *ends)
    assert (low, high) == (at, at + 1)
    assert type(low) is type(high) is int


@pytest.mark.parametrize("at", [0.0, 1e-300, 0.1, 1.0, 12345.678])
def test_floats_end_as_neighbours(at):
    low, high = roots.bisect(lambda x: x <= at, 0.0, 2e4)
    assert low <= at < high
    assert high <= np.nextafter(low, math.inf) * (1 + 2.0**-52)
    low, high = roots.bisect(lambda x: x <= at, 0.0, 2e4, width=0.25)
    assert low <= at < high <= low + 0.25


def test_a_zero_is_within_its_tolerance_or_the_nearest_end():
    def falling(x):
        return 2.0 - x**3

    root = 2 ** (1 / 3)
    assert roots.zero(falling, 0.0, 9.0) == pytest.approx(root, abs=4e-12)
    assert roots.zero(falling, 0.0, 9.0, xtol=1e-2) == pytest.approx(root, abs=2e-2)
    assert roots.zero(falling, 2.0, 9.0) == 2.0
    assert roots.zero(falling, 0.0, 1.0) == 1.0


# --- the side of every caller ---


@pytest.mark.parametrize("mu", [1e-9, 0.03, 1.0, 30.0])
@pytest.mark.parametrize("delta", [1e-200, 1e-6, 0.3])
def test_gaussian_epsilon_and_mu_are_rounded_up(mu, delta):
    """The error of H counts against both."""
    epsilon = gaussian.epsilon(mu, delta)
    assert gaussian.delta(mu, epsilon) <= delta
    if epsilon:
        assert gaussian.delta(mu, epsilon * (1 - 1e-5)) > delta
    closest = gaussian.closest_mu(mu, delta)
    value, error = gaussian._divergence(closest, mu)
    assert value - error >= delta
    value, error = gaussian._divergence(closest * (1 - 1e-5), mu)
    assert value - error < delta


def test_iterations_are_the_last_private_number():
    hyper = run()
    for target in (0.5, 1.5):
        best = jmm.accounting.calibrate_iterations(jmm.sgda, hyper, target, DELTA)
        more = dataclasses.replace(best, iterations=best.iterations + 1)
        assert jmm.epsilon(jmm.sgda.mechanism(best), DELTA) <= target
        assert jmm.epsilon(jmm.sgda.mechanism(more), DELTA) > target


@pytest.mark.parametrize("off", [0.3, 0.999, 1.0, 1.001, 3.0])
def test_the_composed_epsilon_needs_no_more_than_what_is_paid(off):
    """Wherever the search begins, also where what is paid falls with epsilon."""
    def paid(eps):
        return 1e-6 - 1e-9 * math.expm1(min(eps, 6.0))

    cost = Charge(losses=((PrivacyLoss("poisson", 1.0, 0.02), 200),))
    (releases,) = curve._directions(cost, "replace_one", 1)
    guess = composition._Guess(releases, 1e-6)
    t, eps = guess.aim(1e-6)
    composed = guess.composed(t, eps, math.log(1e-6))
    found = composition._root(composed, paid, off * eps)
    assert composed.delta(found) <= paid(found)
    near = found - 1e-5 * found
    assert composed.delta(near) > paid(near)


def test_what_is_affordable_leaves_nearly_all_of_delta():
    def paid(eps):
        return 1e-6 - 1e-10 * math.exp(min(eps, 500.0))

    most = composition._affordable(paid)
    assert paid(most) >= 0.99 * paid(0.0) > paid(most + 1e-3)
    assert composition._affordable(lambda _: 1e-6) == math.inf


@pytest.mark.parametrize("target", [0.2, 3.0])
def test_calibrated_noise_is_on_the_private_side(target):
    for value in (lambda scale: 5 / scale, lambda scale: 1 + (scale < 7.25)):
        scale = calibration.find(value, target) if value(1) == 5 else calibration._secant(
            value, 1.0, 100.0, 1.5, 1e-9)
        assert value(scale) <= max(target, 1.5)
    hyper = jmm.calibrate(jmm.sgda, run(), target, DELTA)
    assert 0.998 * target < jmm.epsilon(jmm.sgda.mechanism(hyper), DELTA) <= target


@pytest.mark.parametrize("profile", [
    lambda e: gaussian.delta(0.5, e), lambda e: gaussian.delta(3.0, e),
    lambda e: (gaussian.delta(3.0, e) + gaussian.delta(12.0, e)) / 2,
    lambda e: max(0.0, -math.expm1((e - 1) / 2))], ids=["small", "large", "two", "Laplace"])
@pytest.mark.parametrize("factor", [0.1, 2.0, 50.0])
def test_the_price_of_a_choice_meets_its_condition(profile, factor):
    """Also where the guess, which takes the profile for a Gaussian's, ends below the root."""
    e1 = tuning.condition(profile, factor)
    assert profile(e1) <= factor * math.expm1(e1)
    near = e1 * (1 - 1e-2)
    assert profile(near) > factor * math.expm1(near)


def test_a_statement_that_fits_a_ledger_fits():
    order, left = 8.0, 0.7
    renyi_filter = filters.Renyi.__new__(filters.Renyi)
    object.__setattr__(renyi_filter, "details", {"order": order})
    epsilon, _ = renyi_filter.statement_that_fits({"divergence": left, "failure": 1e-8})
    assert renyi.pure(epsilon, order) <= left < renyi.pure(epsilon * (1 + 1e-9), order)


def test_no_epsilon_is_proven_at_a_limit_for_several_records():
    """By the group lemma: what is proven is below it."""
    mechanism = jmm.sgda.mechanism(run())
    costs = curve.charges(mechanism, "replace_one")
    largest = epsilon_delta._largest(costs, DELTA, 4)

    def proven(e):
        return all(e < epsilon_delta._ceiling(cost, DELTA / curve.factor(e, 4)) for cost in costs)

    assert not proven(largest)
    assert proven(largest * (1 - 1e-9))
