"""The Fourier series of very many releases: exact values, its errors, and where it is used."""

import math

import mpmath
import numpy as np
import pytest
from scipy import special

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.accounting import composition, curve, gaussian, pairs, series, tilt
from jaxminimax.mechanism.costs import Charge, PrivacyLoss
from tests.helpers import convolved
from tests.helpers.lanes import rest_nightly

RO, AR = "replace_one", "add_or_remove_one"


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(30):
        yield


def poisson(rate, z, times):
    return Charge(losses=((PrivacyLoss("poisson", z, rate), times),))


def directions(rate, z, times, neighbours=AR):
    return curve._directions(poisson(rate, z, times), neighbours, 1)


def gaussians(mu, times):
    """Releases of the joint parameter mu, as if sampled at rate 1."""
    return directions(1.0, 2 * math.sqrt(times) / mu, times, RO)[0]


def of_masses(monkeypatch, part, t, eps, log_delta, looseness):
    """A series of given masses."""
    monkeypatch.setattr(series, "_cells", lambda *_: part)
    return series.Series([(None, part.times)], [0.0], t, eps, log_delta, looseness)


def sampled_delta(eps, t, q, z, times, missed):
    """Delta of Poisson samples, a record added: a contour integral at Re s = t, without losses.

    With 1 + a = P / Q, M(s) - 1 is the mean under Q of (1 + a)^(s + 1) - 1 - (s + 1) a, as that of
    a is 0. Sums over x and over the contour converge faster than any power of their steps. Samples
    are left out, smoothly, about where P has `missed` of mass beyond in all.
    """
    last = 1 - z * special.ndtri(missed / times / q)
    x = np.arange(-12 * z, last + 2, z / 200)
    a = q * np.expm1((2 * x - 1) / (2 * z * z))
    weight = np.exp(-0.5 * (x / z) ** 2) / math.sqrt(2 * math.pi) / 200
    weight *= special.ndtr((last - x) / 0.2)
    terms = []
    while not terms or abs(terms[-1]) > 1e-17 * abs(terms[0]):
        s = t + 0.25j * len(terms)
        m = weight @ (np.expm1((1 + s) * np.log1p(a)) - (1 + s) * a)
        # ln(1 + m), m being small
        k = complex(np.log1p(m.real * (2 + m.real) + m.imag**2) / 2,
                    math.atan2(m.imag, 1 + m.real))
        terms.append(np.exp(times * k - s * eps) / (s * (s + 1)))
    return 0.25 / math.pi * (terms[0].real / 2 + np.sum(terms[1:]).real)


# ---- exact values ------------------------------------------------------------------------------


@pytest.mark.slow
def test_millions_of_samples_against_a_contour_integral():
    q, z, times, eps = 2.202060126625587e-5, 0.7880984539663854, 4819945, 1.00675025539756
    exact, elsewhere = (sampled_delta(eps, t, q, z, times, 1e-20) for t in (11.0, 14.0))
    assert exact == pytest.approx(elsewhere, rel=1e-6)  # wherever the contour is
    value = composition.deltas_at(directions(q, z, times)[1], np.array([eps]))[0]
    assert exact * (1 - 1e-6) <= value <= 1.002 * exact


@pytest.mark.slow
@pytest.mark.parametrize("t", [0.3, 0.7, 6.0])
def test_the_series_equals_direct_convolution_of_positive_numbers(t, monkeypatch):
    h, times = 0.01, 16
    pair = pairs._poisson(PrivacyLoss("poisson", 0.9, 0.05), times, AR, 1)[0][0][1]
    top = float(tilt.stretched(pair, 1e-14, times).loss.max())
    part = tilt.uniform(pair, top, times, h)
    power, losses = convolved.sixteen(part, h)
    mean = tilt.moments([part], t)[1]
    made = of_masses(monkeypatch, part, t, max(mean, 0.0), math.log(1e-9), 1e-7)
    for near in (max(mean - 0.3, 0.1), mean + 0.05, mean + 0.5):
        eps = h * (math.floor(near / h) + 0.5)  # far from the lattice, for the smoothing
        above = losses > eps
        direct = (-math.expm1(times * math.log1p(-part.atom))  # no difference of numbers near 1
                  + power[above] @ -np.expm1(eps - losses[above]))
        assert direct * (1 - 1e-12) <= made.delta(eps) <= direct * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("log_delta", [0.0, math.log(1e-10), -140.0])
def test_at_any_epsilon_and_for_any_guess_a_series_is_an_upper_bound(log_delta):
    """Also below and beyond its period, far from its tilt, and with too few waves."""
    guess = composition._Guess(gaussians(2.0, 10**4), 1e-10)
    for tilted_for in (0.0, 2.0, 13.0):
        made = guess.series(tilted_for, log_delta, 1e-4)
        for at in np.linspace(0.0, 2 * made.losses[1], 40):
            assert made.delta(float(at)) >= float(gaussian.delta(2.0, at)) * (1 - 1e-12)


# ---- errors ------------------------------------------------------------------------------------


def test_characteristic_functions_are_as_accurate_as_they_say():
    rng = np.random.default_rng(0)
    for times, scale in ((10**7, 1e-4), (1, 3.0)):
        loss = scale * rng.standard_normal(300)
        release = tilt.Masses(np.log(rng.random(300)), loss, 0.0, times)
        x, off = series._characteristic(release, 0.4, 0.7, 50)
        q = [mpmath.e ** (mpmath.mpf(float(m)) + mpmath.mpf("0.4") * mpmath.mpf(float(at)))
             for m, at in zip(release.log_mass, loss, strict=True)]
        for j in (0, 1, 7, 23, 49):
            exact = mpmath.fsum(p * mpmath.expm1(mpmath.mpc(0, mpmath.mpf(0.7) * j * float(at)))
                                for p, at in zip(q, loss, strict=True)) / mpmath.fsum(q)
            assert abs(mpmath.mpc(x[j]) - exact) <= off[j] <= 1e-11 * scale * (1 + j)


def test_planted_errors_of_the_series_stay_within_what_is_added(monkeypatch):
    """Coefficients off by all that they may be, in the worst phase: still an upper bound."""
    guess = composition._Guess(gaussians(2.0, 10**4), 1e-10)
    _, eps = guess.aim(1e-10)
    exact = float(gaussian.delta(2.0, eps))
    real, far = series._power, []
    for sign in (0.0, 1.0, -1.0):
        def off(release, t, step, count, sign=sign):
            power, error = real(release, t, step, count)
            waves = step * np.arange(count)
            # the worst phase of each term, when it is multiplied by c_j e^(-i w eps)
            turned = np.exp(-1j * waves * eps) / ((t + 1j * waves) * (1 + t + 1j * waves))
            # as if computing were as far off as is allowed, ten thousand times over
            error = 1e4 * error
            return power + sign * error * np.conj(turned) / np.abs(turned), error

        monkeypatch.setattr(series, "_power", off)
        far.append(guess.series(eps, math.log(1e-10), 1e-5).delta(eps))
    assert min(far) >= exact
    assert far[2] < far[0] < far[1] <= exact * 1.2


def test_the_smallest_smoothing_is_the_best_for_a_law_with_an_atom(monkeypatch):
    # losses of 0 and 2 only: delta(0) is the mean of 1 - e^-2 on the second, squared for two
    p = 1e-4
    part = tilt.Masses(np.log([1 - p, p]), np.array([0.0, 2.0]), 0.0, 2)
    t = series.tilt_to([part], 0.0)
    made = of_masses(monkeypatch, part, t, 0.0, math.log(p), 1e-7)
    exact = -2 * p * (1 - p) * math.expm1(-2) - p * p * math.expm1(-4)
    assert exact <= made.delta(0.0) <= 1.2 * exact
    bounds = []
    for i in range(3):  # each smoothing alone
        kept = np.where(np.arange(3) == i, made.beyond, 1.0)
        alone = of_masses(monkeypatch, part, t, 0.0, math.log(p), 1e-7)
        alone.beyond = kept
        bounds.append(alone.delta(0.0))
    assert min(bounds) == made.delta(0.0) >= exact
    assert bounds[2] < bounds[0]


def test_errors_that_overflow_leave_no_bound_but_1(monkeypatch):
    guess = composition._Guess(gaussians(2.0, 10**4), 1e-10)
    real = series._power
    for planted in (np.inf, np.nan):
        monkeypatch.setattr(series, "_power", lambda *args, e=planted: (
            real(*args)[0], np.full(args[3], e)))
        assert guess.series(6.0, math.log(1e-10), 1e-4).bound(6.0) == (1.0, 1.0)
    monkeypatch.setattr(series, "_power", lambda *args: (
        np.full(args[3], complex(np.nan)), np.zeros(args[3])))
    assert guess.series(6.0, math.log(1e-10), 1e-4).delta(6.0) == 1.0
    monkeypatch.undo()
    # errors grow as (1 + e)^T
    far = tilt.Masses(np.log([0.5, 0.5]), np.array([-1e7, 1e7]), 0.0, 10**9)
    assert of_masses(monkeypatch, far, 1.0, 1.0, -20.0, 1e-3).delta(1.0) == 1.0


def test_a_tilt_makes_the_first_term_least():
    guess = composition._Guess(directions(0.01, 0.8, 500)[0], 1e-6)
    for eps in (0.0, 0.3, 2.0):
        def term(t, eps=eps):
            return tilt.moments(guess.parts, t)[0] - t * eps - math.log(t * (1 + t))

        t = series.tilt_to(guess.parts, eps)
        assert term(t) < min(term(0.9 * t), term(1.1 * t))
    # no sum of losses is as large
    assert series.tilt_to(guess.parts, 1e9) < 1e12


# ---- where it is used --------------------------------------------------------------------------


def test_a_series_is_used_where_a_lattice_is_long_and_nowhere_else(monkeypatch):
    made = []
    real = composition._Guess.series
    monkeypatch.setattr(composition._Guess, "series",
                        lambda *args: made.append(args) or real(*args))
    curve.named_epsilon.cache_clear()
    for cost in (poisson(1e-3, 1.0, 10**4), poisson(0.1, 5.0, 10**3), poisson(1e-5, 0.6, 10**4)):
        curve.named_epsilon(cost, 1e-6, RO, rough=True)
        assert curve.charge_epsilon(cost, 1e-6, RO) > 0
        curve.both_ways(cost, np.array([0.3, 1.0]), AR)
    assert not made
    assert curve.charge_epsilon(poisson(1e-4, 5.0, 10**7), 1e-6, RO) > 0
    assert made


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "z", "times", "delta"), rest_nightly([
    (1e-6, 0.6, 10**6, 1e-15), (1e-5, 0.55, 10**6, 1e-6), (1e-6, 0.43, 10**7, 1e-6)], 1))
def test_a_series_is_no_looser_than_the_lattice(rate, z, times, delta, monkeypatch):
    """Other cells, sums and errors: each is a bound, so that both are close."""
    cost = poisson(rate, z, times)
    value = composition.epsilon_at(curve._directions(cost, RO, 1), lambda _: delta).value
    monkeypatch.setattr(composition._Guess, "long", lambda *_: False)
    lattice = composition.epsilon_at(curve._directions(cost, RO, 1), lambda _: delta).value
    assert 0.8 * lattice < value <= lattice


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "z", "times", "delta"), [
    (1e-6, 0.6, 10**6, 1e-15), (1e-5, 0.55, 10**6, 1e-6), (1e-5, 1.0, 10**7, 1e-12)])
def test_rare_hits_have_one_bound_at_several_tilts_and_periods(rate, z, times, delta):
    epsilon = composition.epsilon_at(directions(rate, z, times, RO), lambda _: delta).value
    (releases,) = directions(rate, z, times, RO)
    guess = composition._Guess(releases, delta)
    # tilted for another epsilon: other cells, periods, frequencies and smoothing
    deltas = [guess.series(share * epsilon, math.log(delta)).delta(epsilon)
              for share in (0.97, 1.0, 1.1)]
    assert 0.995 * delta <= min(deltas) <= 1.001 * delta
    assert max(deltas) <= 1.02 * min(deltas)
    # what one hit shows, whatever the other releases do
    assert float(releases[0][0].right(np.array([epsilon]))[0]) <= delta


@pytest.mark.slow
def test_bounds_at_several_epsilons_fall_and_are_those_of_each_alone():
    for releases in (*directions(1e-6, 0.5, 10**6, RO), *directions(1e-4, 3.0, 10**7)):
        epsilons = np.array([0, 1, 2, 0.3, 0.05, 0.31])
        values = composition.deltas_at(releases, epsilons)
        order = np.argsort(epsilons)
        assert np.all(np.diff(values[order]) <= 0)
        for eps, value in zip(epsilons, values, strict=True):
            assert value <= 1.01 * composition.deltas_at(releases, np.array([eps]))[0] + 1e-250
        # whole numbers are no other than the same floats
        whole = composition.deltas_at(releases, np.array([0, 1, 2]))
        assert np.array_equal(whole, composition.deltas_at(releases, np.array([0.0, 1.0, 2.0])))
        assert 1 > whole[0] > whole[1] >= 0


def test_profiles_hold_no_bound_of_a_series_below_its_period(monkeypatch):
    asked, made = [], []
    bound, init = series.Series.bound, series.Series.__init__
    monkeypatch.setattr(series.Series, "__init__", lambda self, *args: (
        made.append(self), init(self, *args))[1])
    monkeypatch.setattr(series.Series, "bound", lambda self, eps: (
        asked.append(eps - self.losses[0]), bound(self, eps))[1])
    epsilons = np.linspace(0.05, 6.0, 40)
    values = composition.deltas_at(gaussians(1.0, 10**7), epsilons)
    exact = gaussian.delta(1.0, epsilons)
    assert np.all(exact * (1 - 1e-9) <= values)
    assert np.all(values <= exact * 1.002)
    assert 0 < len(made) < 10 < len(asked)
    assert min(asked) >= 0


@pytest.mark.slow
def test_rounding_of_a_series_spoils_no_bound_at_a_smaller_epsilon():
    """At the largest epsilon nearly all of the bound is rounding."""
    (releases,) = directions(1e-4, 1.0, 10**5, RO)
    alone = composition.deltas_at(releases, np.array([1.0]))[0]
    assert composition.deltas_at(releases, np.array([1.0, 4.0]))[0] <= 1.01 * alone


@pytest.mark.slow
def test_hard_settings_obey_the_laws_of_an_accountant():
    rate, z, times, delta = 1e-6, 0.43, 10**7, 1e-6
    epsilon = curve.charge_epsilon(poisson(rate, z, times), delta, RO)
    assert curve.charge_epsilon(poisson(rate, 1.02 * z, times), delta, RO) < epsilon
    assert curve.charge_epsilon(poisson(rate, z, 2 * times), delta, RO) > epsilon
    assert curve.charge_epsilon(poisson(1.1 * rate, z, times), delta, RO) > epsilon
    assert curve.charge_epsilon(poisson(rate, z, times), delta / 2, RO) > epsilon
    # guesses are close, so that a calibration takes few steps
    rough, _ = curve.named_epsilon(poisson(rate, z, times), delta, RO, rough=True)
    assert rough == pytest.approx(epsilon, rel=2e-3)
    # delta at epsilon says the same
    bound = curve.charge_delta(poisson(rate, z, times), epsilon, RO)
    assert bound == pytest.approx(delta, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "times", "epsilon"), [
    (1e-5, 10**6, 0.5), (1e-6, 10**6, 1.0), (1e-6, 10**7, 8.0), (1e-5, 10**7, 1.0)])
def test_calibrated_noise_meets_its_target_at_hard_settings(rate, times, epsilon, monkeypatch):
    values = []
    real = composition.epsilon_at
    monkeypatch.setattr(composition, "epsilon_at", lambda *args: values.append(
        real(*args)) or values[-1])
    query = jmm.Query(clip=Saddle(1.0, None), sampling=jmm.Poisson(rate=rate), population=10**7,
                      parameters=1000)
    answer = jmm.accounting.calibrate_noise(jmm.Repeat(query=query, times=times), epsilon, 1e-6)
    assert len(values) <= 8
    assert 0.999 * epsilon < jmm.epsilon(answer, 1e-6) <= epsilon


def test_an_epsilon_may_be_infinite():
    largest, infinite = composition.deltas_at(gaussians(1.0, 10**7), np.array([1e9, np.inf]))
    assert 0 <= infinite <= largest < 1e-200


@pytest.mark.slow
@pytest.mark.parametrize(("cost", "neighbours"), [
    (poisson(1e-6, 0.6, 10**7), RO), (poisson(1e-4, 2.0, 10**7), AR)])
def test_epsilon_is_close_where_delta_is_nearly_that_at_0_and_0_beyond(cost, neighbours):
    at_0 = curve.charge_delta(cost, 0.0, neighbours)
    for part in (0.9, 0.97):
        epsilon = curve.charge_epsilon(cost, part * at_0, neighbours)
        delta = curve.charge_delta(cost, epsilon, neighbours)
        assert 0.99 * part * at_0 <= delta <= 1.01 * part * at_0
    assert curve.charge_epsilon(cost, 1.02 * at_0, neighbours) == 0.0
    assert curve.named_epsilon(cost, 1.02 * at_0, neighbours, rough=True)[0] <= 1e-6
