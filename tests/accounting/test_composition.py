"""Composition with relative accuracy: exact values, direct convolution, attacks, several people."""

import itertools
import math

import dp_accounting as dpa
import mpmath
import numpy as np
import pytest
from dp_accounting import pld
from scipy import fft, special, stats

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.accounting import (
    calibration,
    composition,
    curve,
    gaussian,
    pairs,
    tilt,
)
from jaxminimax.mechanism.costs import Charge, PrivacyLoss
from tests.helpers import convolved

RO, AR = "replace_one", "add_or_remove_one"


def poisson(rate, z, times):
    return Charge(losses=((PrivacyLoss("poisson", z, rate), times),))


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(40):
        yield


def fixed(n, m, z, times, kind="fixed"):
    rate = m / n if kind == "fixed" else 1 / n
    return Charge(losses=((PrivacyLoss(kind, z, rate, n, m), times),))


def gaussians(mu, times):
    """As if sampled, at rate 1."""
    return poisson(1.0, 2 / mu, times)


# ---- exact values ------------------------------------------------------------------------------
# Of Gaussians from the closed form in 50 digits; of the others by a contour integral of the moment
# generating function, without a grid of losses.


@pytest.mark.slow
@pytest.mark.parametrize(("cost", "delta", "neighbours", "exact"), [
    (gaussians(1e-3, 10**6), 1e-12, RO, 7.238494),
    (gaussians(1e-3, 10**6), 1e-30, RO, 11.743883),
    (gaussians(0.01, 10**6), 1e-10, RO, 112.84033),
    (gaussians(1e-6, 10**6), 1e-6, RO, 0.00271822),
    (fixed(10**5, 500, 30.0, 10**6), 1e-10, RO, 2.07603),
    (fixed(10**5, 500, 30.0, 10**6), 1e-12, RO, 2.31726),
    (fixed(10**5, 500, 30.0, 1000), 1e-12, RO, 0.0659568),
    (poisson(1e-3, 0.8, 10**5), 1e-10, RO, 6.21765),
    (poisson(1e-3, 0.8, 10**5), 1e-10, AR, 4.06917),
    (poisson(1e-3, 0.8626, 10**6), 1e-10, RO, 19.9949),
    (poisson(1e-3, 4874.3, 10**6), 1e-6, RO, 9.9972e-4),
    (poisson(1e-6, 1.0, 10**6), 1e-6, RO, 0.0063902),
    (poisson(1e-6, 1.0, 10**6), 1e-6, AR, 0.0036819),
    (poisson(1e-3, 30.0, 100), 1e-12, RO, 0.00375469),
    (poisson(1e-3, 30.0, 100), 1e-12, AR, 0.00185609),
])
def test_epsilon_is_never_below_an_exact_value_and_within_a_few_ten_thousandths(
        cost, delta, neighbours, exact):
    value = curve.charge_epsilon(cost, delta, neighbours)
    assert exact * (1 - 1e-5) <= value <= exact * (1 + 6e-4)
    assert curve.charge_delta(cost, value, neighbours) == pytest.approx(delta, rel=2e-3)


@pytest.mark.parametrize("delta", [1e-3, 1e-12, 1e-30, 1e-50])
@pytest.mark.parametrize("mu", [0.05, 1.0, 8.0])
def test_gaussians_at_any_delta(mu, delta):
    exact = dpa.get_epsilon_gaussian(1 / mu, delta)
    value = curve.charge_epsilon(gaussians(mu / 10, 100), delta, RO)
    assert exact * (1 - 1e-9) <= value <= exact * (1 + 3e-4) + 1e-6


def laplace_product(eps, t, times):
    """H of Laplace numbers moved by t of their scale each, in 20 digits."""
    if times == 1:
        return max(mpmath.mpf(0), 1 - mpmath.e ** ((mpmath.mpf(eps) - t) / 2)) if eps > -t else (
            1 - mpmath.e ** mpmath.mpf(eps))
    ends = sorted({-t, t, *(c for c in (eps - (times - 1) * t, eps + (times - 1) * t)
                            if -t < c < t)})
    inside = mpmath.quad(lambda y: mpmath.e ** ((y - t) / 2) / 4
                         * laplace_product(eps - y, t, times - 1), ends)
    return (laplace_product(eps - t, t, times - 1) / 2 + inside
            + mpmath.e ** (-t) / 2 * laplace_product(eps + t, t, times - 1))


def test_two_laplace_numbers():
    cost = Charge(losses=((PrivacyLoss("laplace", 2.0), 2),))
    for eps in (0.0, 0.3, 0.8):
        exact = float(laplace_product(eps, 0.5, 2))
        assert exact <= curve.charge_delta(cost, eps, RO) * (1 + 1e-9) <= exact * 1.001
    assert curve.charge_epsilon(cost, 1e-15, RO) == pytest.approx(1.0, rel=1e-3)


# ---- the identity, and its errors --------------------------------------------------------------


@pytest.mark.parametrize("t", [0.0, 0.7, 6.0])
def test_the_transform_equals_direct_convolution_of_positive_numbers(t):
    h, times = 0.01, 16
    pair = pairs._poisson(PrivacyLoss("poisson", 0.9, 0.05), times, AR, 1)[0][0][1]
    guess = tilt.stretched(pair, 1e-14, times)
    part = tilt.uniform(pair, float(np.abs(guess.loss).max()), times, h)
    power, losses = convolved.sixteen(part, h)
    mean = tilt.moments([guess], t)[1]
    made = tilt.Composed([part], [guess], h, t, mean, math.log(1e-9))
    for eps in (max(mean - 0.3, 0.1), mean + 0.05, mean + 0.5):
        above = losses > eps
        direct = (-math.expm1(times * math.log1p(-part.atom))  # no difference of numbers near 1
                  + power[above] @ -np.expm1(eps - losses[above]))
        assert made.delta(eps) == pytest.approx(direct, rel=1e-9 if t else 1e-5, abs=0)
        assert made.delta(eps) >= direct * (1 - 1e-12)


def test_the_transform_of_the_library_is_as_accurate_as_assumed():
    rng = np.random.default_rng(0)
    for n in (64, 60, 45):
        q = rng.random(n) ** 8
        q /= q.sum()
        f = fft.rfft(q)
        off = []
        for j in range(len(f)):
            exact = mpmath.fsum(mpmath.mpf(float(x)) * mpmath.expjpi(mpmath.mpf(-2 * j * k) / n)
                                for k, x in enumerate(q))
            off.append(abs(mpmath.mpc(f[j]) - exact))
        allowed = 7 * tilt.UNIT * math.log2(n) * math.sqrt(n) * np.linalg.norm(q)
        assert float(mpmath.norm(off)) <= allowed
        back = fft.irfft(f, n)
        assert np.linalg.norm(back - q) <= 2 * 7 * tilt.UNIT * math.log2(n) * np.linalg.norm(q)


def test_planted_errors_of_the_transform_stay_within_what_is_added(monkeypatch):
    """Coefficients off by all that is assumed, in the worst phase: still an upper bound."""
    cost, h = gaussians(0.02, 10**4), 5e-4
    (releases,) = curve._directions(cost, RO, 1)
    guess = composition._Guess(releases, 1e-10)
    parts = [tilt.uniform(pair, top, times, h) for (pair, times), top in
             zip(releases, guess.tops, strict=True)]
    t = guess.tilt_for(1e-10)
    eps = guess.near(t)[1]
    honest = tilt.Composed(parts, guess.parts, h, t, eps, math.log(1e-10)).delta(eps)
    rfft = fft.rfft

    def off(q):
        f = rfft(q)
        size = 7 * tilt.UNIT * math.log2(len(q)) * np.linalg.norm(q)
        return f - size * f / np.abs(f)  # each of them towards 0

    monkeypatch.setattr(tilt.scipy.fft, "rfft", off)
    bad = tilt.Composed(parts, guess.parts, h, t, eps, math.log(1e-10)).delta(eps)
    exact = float(gaussian.delta(2.0, eps))
    assert min(honest, bad) >= exact
    assert honest <= exact * 1.02


def test_what_wraps_around_is_charged_and_below_the_window_nothing_is_claimed():
    (releases,) = curve._directions(gaussians(0.02, 10**4), RO, 1)
    guess = composition._Guess(releases, 1e-10)
    t = guess.tilt_for(1e-10)
    eps = guess.near(t)[1]
    made = guess.composed(t, eps, math.log(1e-10))
    assert made.delta(float(made.losses[0]) - made.h) == 1.0
    for at in np.linspace(max(0.0, made.losses[0]), made.losses[-1], 20):
        exact = float(gaussian.delta(2.0, at))
        assert made.delta(float(at)) >= exact * (1 - 1e-9)


def test_chernoffs_bound_is_one_and_serves_beyond_the_longest_compositions():
    for cost, exact in ((gaussians(1e-3, 10**6), 7.238494), (poisson(1e-3, 0.8, 10**5), 6.21765)):
        (releases,) = curve._directions(cost, RO, 1)
        delta = 1e-12 if cost.losses[0][0].rate == 1 else 1e-10
        guess = composition._Guess(releases, delta)
        value = composition._chernoff_epsilon(guess, delta, lambda _, d=delta: d)
        assert exact <= value <= 1.06 * exact
    value, name = curve.named_epsilon(gaussians(1e-5, 2 * 10**9), 1e-10, RO)
    exact = dpa.get_epsilon_gaussian(1 / (1e-5 * math.sqrt(2e9)), 1e-10)
    assert name == "chernoff"
    assert exact <= value <= 1.06 * exact


def test_the_bound_shrinks_with_the_cells(monkeypatch):
    values = []
    monkeypatch.setattr(composition, "_FEW_CELLS", 1)
    for looseness in (1e-2, 1e-3, 1e-4):
        monkeypatch.setattr(tilt, "_LOOSENESS", looseness)
        curve.named_epsilon.cache_clear()
        values.append(curve.charge_epsilon(poisson(0.01, 1.0, 1000), 1e-6, RO))
    curve.named_epsilon.cache_clear()
    assert values[0] > values[1] > values[2] > 0.98 * values[0]


# ---- profiles of one release -------------------------------------------------------------------


def exact_mixtures(eps, w, v, z):
    """H of sum_j w_j N(j) against sum_j v_j N(-j) in 40 digits."""
    z, eps = mpmath.mpf(z), mpmath.mpf(eps)
    w, v = ([mpmath.mpf(x) for x in law] for law in (w, v))

    def loss(x):
        one = sum(p * mpmath.e ** ((2 * j * x - j * j) / (2 * z * z)) for j, p in enumerate(w))
        two = sum(p * mpmath.e ** ((-2 * j * x - j * j) / (2 * z * z)) for j, p in enumerate(v))
        return mpmath.log(one / two) - eps

    low, high = -60 * z - len(v), 60 * z + len(w)
    if loss(high) <= 0:
        return mpmath.mpf(0)
    for _ in range(150):
        middle = (low + high) / 2
        low, high = (middle, high) if loss(middle) < 0 else (low, middle)
    return (sum(p * mpmath.ncdf((j - low) / z) for j, p in enumerate(w))
            - mpmath.e**eps * sum(p * mpmath.ncdf((-j - low) / z) for j, p in enumerate(v)))


@pytest.mark.slow
@pytest.mark.parametrize(("r", "s"), [(1, 1), (1, 0), (0, 1), (2, 1), (0, 3)])
@pytest.mark.parametrize(("rate", "z"), [(0.01, 0.3), (0.3, 2.0), (1e-4, 1.0), (1e-3, 400.0)])
def test_profiles_of_mixtures_are_exact_from_above(r, s, rate, z):
    made = pairs._Mixtures(r, s, rate, z)
    w, v = ([math.comb(n, j) * mpmath.mpf(rate)**j * (1 - mpmath.mpf(rate)) ** (n - j)
             for j in range(n + 1)] for n in (r, s))
    scale = float(made(np.zeros(1))[0])
    eps = np.concatenate([[0.0], scale * np.geomspace(0.1, 30, 6), [0.5, 3.0]])
    for e, value in zip(eps, made(eps), strict=True):
        exact = exact_mixtures(e, w, v, z)
        assert value >= exact
        if exact > 1e-40:
            assert value <= exact * (1 + 1e-9 * (1 + z)) + 1e-30


@pytest.mark.parametrize(("r", "s", "rate", "z", "eps"), [
    (1, 0, 1.0062507358403696e-9, 292.6067618954449, (0.0, 9.527613459196086e-12)),
    (1, 0, 1e-9, 3e3, (0.0,)), (3, 0, 3.3716272299392594e-7, 242.0, (0.0, 1e-8)),
    # losses that end at -2 ln(1 - q), where a loss tells next to nothing of x
    (0, 2, 1.980652413335672e-4, 0.06073490400640594, (0.00039616971768777367,)),
    (0, 1, 0.5, 0.1, tuple(math.log(2) - 10.0**-k for k in range(3, 16)))])
def test_profiles_of_rare_hits_and_of_the_largest_losses_are_from_above(r, s, rate, z, eps):
    made = pairs._Mixtures(r, s, rate, z)
    w, v = ([math.comb(n, j) * mpmath.mpf(rate)**j * (1 - mpmath.mpf(rate)) ** (n - j)
             for j in range(n + 1)] for n in (r, s))
    for e, value in zip(eps, made(np.array(eps)), strict=True):
        exact = exact_mixtures(e, w, v, z)
        assert exact <= value <= exact * 1.01 + 1e-13


@pytest.mark.slow
def test_delta_at_an_epsilon_is_as_close_as_epsilon_at_a_delta():
    """Of releases that hit seldom and cost much then: no normal law tells where to look."""
    cost, target = poisson(1.4e-6, 0.6, 6179), 9.6e-14
    epsilon = curve.charge_epsilon(cost, target, AR, 3)
    # one hit, at least: of the single release that says so
    alone = 6179 * float(pairs._Mixtures(3, 0, 1.4e-6, 0.6)(np.array([epsilon]))[0])
    assert 0.9 * target <= 0.99 * alone <= curve.charge_delta(cost, epsilon, AR, 3) <= 1.1 * target


@pytest.mark.parametrize("mu", [1e-6, 1e-2, 1.0, 10.0])
def test_profiles_of_gaussians_are_exact_from_above(mu):
    eps = np.array([0.0, 0.1 * mu, 3 * mu, mu + mu * mu, 10 * mu])
    for e, value in zip(eps, gaussian.delta(mu, eps), strict=True):
        half, far = mpmath.mpf(mu) / 2, mpmath.mpf(e) / mu
        exact = mpmath.ncdf(half - far) - mpmath.e ** mpmath.mpf(e) * mpmath.ncdf(-half - far)
        assert exact <= value <= exact * (1 + 1e-10 / mu + 1e-10)


def test_masses_are_a_law_whose_divergences_are_the_profile_on_the_grid():
    pair = pairs._poisson(PrivacyLoss("poisson", 1.0, 0.2), 1, AR, 1)[0][0][0]
    at = np.arange(400) * 0.005
    made = tilt.masses(pair, at, 1)
    p = np.exp(made.log_mass)
    assert p.sum() + made.atom == pytest.approx(1.0, abs=1e-12)
    for eps, profile in ((at[3], pair.right), (at[20], pair.right)):
        above = made.loss > eps + 1e-9
        value = p[above] @ -np.expm1(eps - made.loss[above]) + made.atom
        assert value == pytest.approx(float(profile(np.array([eps]))[0]), rel=1e-9)
    q = p * np.exp(-made.loss)  # the other law
    for eps in at[[2, 30]]:
        below = made.loss < -eps - 1e-9
        value = q[below] @ -np.expm1(eps + made.loss[below]) + (1 - q.sum())
        assert value == pytest.approx(float(pair.left(np.array([eps]))[0]), rel=1e-6, abs=1e-12)


# ---- laws --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_epsilon_and_delta_grow_and_fall_as_they_must():
    def both(rate=0.01, z=1.5, times=500, delta=1e-8, eps=1.0, people=1):
        cost = poisson(rate, z, times)
        return (curve.charge_epsilon(cost, delta, AR, people),
                curve.charge_delta(cost, eps, AR, people))

    here = both()
    for louder in (both(z=1.51), both(rate=0.0099), both(times=496)):
        assert all(a < b for a, b in zip(louder, here, strict=True))
    for more in (both(people=2), both(people=3)):
        assert all(a > b for a, b in zip(more, here, strict=True))
    assert both(delta=1e-9)[0] > here[0]
    assert both(eps=1.1)[1] < here[1]


def test_failures_are_added_and_departures_grow_with_epsilon():
    cost = poisson(0.01, 1.5, 500)
    plain = curve.charge_delta(cost, 1.0, RO)
    assert curve.charge_delta(cost._replace(failure=1e-9), 1.0, RO) == pytest.approx(plain + 1e-9)
    tau = curve.charge_delta(cost._replace(law_error=1e-9), 1.0, RO)
    assert tau == pytest.approx(plain + (1 + math.e) * 1e-9)
    assert curve.charge_epsilon(cost._replace(failure=1e-5), 1e-5, RO) == math.inf
    assert curve.charge_epsilon(cost._replace(law_error=1e-9), 1e-8, RO) > curve.charge_epsilon(
        cost, 1e-8, RO)
    assert curve.charge_epsilon(cost._replace(ratio=0.01), 1e-8, RO) == pytest.approx(
        curve.charge_epsilon(cost, 1e-8, RO) + 0.01, rel=1e-3)


def test_parts_compose_to_what_they_are_together():
    one = curve.charge_epsilon(Charge(gaussian=0.25), 1e-8, RO)
    split = Charge(gaussian=0.09, losses=((PrivacyLoss("poisson", 10.0, 1.0), 9),
                                          (PrivacyLoss("poisson", 20.0, 1.0), 28)))
    assert one <= curve.charge_epsilon(split, 1e-8, RO) <= one * (1 + 3e-4)


def attack(rate, z, neighbours, delta):
    """A lower bound on epsilon of one release, from whether x exceeds a threshold."""
    far = -1.0 if neighbours == RO else 0.0
    t = np.linspace(-1 - 4 * z, 1 + 8 * z, 200)
    p = (1 - rate) * special.ndtr(-t / z) + rate * special.ndtr((1 - t) / z)
    q = special.log_ndtr((far - t) / z)
    if neighbours == RO and rate < 1:
        q = np.logaddexp(math.log1p(-rate) + special.log_ndtr(-t / z), math.log(rate) + q)
    sure = p > delta
    return float(np.max(np.log(p[sure] - delta) - q[sure], initial=0.0))


@pytest.mark.slow
def test_no_bound_falls_below_an_attack_on_one_release():
    rng = np.random.default_rng(0)
    for i in range(24):
        rate, z = 10 ** rng.uniform(-5, 0), 10 ** rng.uniform(-2.5, 2)
        delta, neighbours = 10 ** rng.uniform(-9, -3), (RO, AR)[i % 2]
        times = int(10 ** rng.uniform(0, 2))
        value = curve.charge_epsilon(poisson(rate, z, times), delta, neighbours)
        assert value >= attack(rate, z, neighbours, delta) * (1 - 1e-9), (rate, z, delta)
    for neighbours in (RO, AR):  # and it comes near where one release leaks much
        value = curve.charge_epsilon(poisson(0.2, 0.25, 1), 1e-6, neighbours)
        assert attack(0.2, 0.25, neighbours, 1e-6) > 0.9 * value


@pytest.mark.slow
@pytest.mark.parametrize("neighbours", [RO, AR])
@pytest.mark.parametrize(("rate", "z", "times", "delta"), [
    (0.01, 1.0, 300, 1e-5), (0.2, 5.0, 100, 1e-6), (64 / 39992, 1.34, 9373, 1e-6)])
def test_the_reference_library_agrees(neighbours, rate, z, times, delta):
    relation = dpa.NeighboringRelation[neighbours.upper()]
    ours = curve.charge_epsilon(poisson(rate, z, times), delta, neighbours)
    for pessimistic in (False, True):
        theirs = pld.privacy_loss_distribution.from_gaussian_mechanism(
            z, sampling_prob=rate, pessimistic_estimate=pessimistic,
            neighboring_relation=relation).self_compose(times).get_epsilon_for_delta(delta)
        if pessimistic:
            assert ours <= theirs * (1 + 1.5e-4)
        else:
            assert ours >= theirs * (1 - 1e-9)


@pytest.mark.slow
def test_nothing_is_infinite_that_need_not_be():
    for cost, delta, attained in ((poisson(0.1, 0.1, 1), 1e-8, 98.9),
                                  (fixed(1000, 50, 0.5, 200), 1e-6, 150.0),
                                  (fixed(10**4, 100, 0.3, 1, "replacement"), 1e-6, 80.0)):
        assert attained < curve.charge_epsilon(cost, delta, RO) < 3 * attained
    for cost in (poisson(1e-6, 0.01, 5), fixed(10**9, 1000, 1e-3, 1)):  # drawn less than delta
        assert curve.charge_epsilon(cost, 1e-5, RO) == 0.0


# ---- several people ----------------------------------------------------------------------------


def test_the_noise_and_the_epsilon_of_several_records():
    rate, n, m = 64 / 16152, 16152, 64
    for people, z in ((1, 2.0689), (2, 4.1209), (5, 10.3002), (10, 20.601)):
        assert curve.charge_epsilon(poisson(rate, z, 3785), 1e-6, RO, people) == pytest.approx(
            1.0, rel=5e-4)
    for people, eps in ((2, 2.1213), (3, 3.3191), (5, 5.9123)):
        value = curve.charge_epsilon(poisson(rate, 2.0689, 3785), 1e-6, RO, people)
        assert value == pytest.approx(eps, rel=5e-4)
    for people, without, replaced in ((2, 4.929, 4.933), (5, 11.104, 11.114)):
        for z, kind in ((without, "fixed"), (replaced, "replacement")):
            value = curve.charge_epsilon(fixed(n, m, z, 3785, kind), 1e-6, RO, people)
            assert value == pytest.approx(1.0, rel=2e-3)


def divergence_in_the_plane(weights, at_p, at_q, a, z, step=0.02):
    x = np.arange(-4.5 * z - 3, 4.5 * z + 3, step * z)
    X, Y = np.meshgrid(x, x)

    def density(at):
        return sum(w * np.exp(-((X - v[0]) ** 2 + (Y - v[1]) ** 2) / (2 * z * z))
                   for w, v in zip(weights, at, strict=True)) / (2 * math.pi * z * z)

    return float(np.maximum(density(at_p) - a * density(at_q), 0).sum() * (step * z) ** 2)


def test_no_displacements_of_several_records_exceed_the_pair():
    rng = np.random.default_rng(1)
    for _ in range(12):
        people, rate, z = int(rng.integers(2, 4)), rng.uniform(0.05, 0.6), rng.uniform(0.6, 1.5)
        sets = list(itertools.product([0, 1], repeat=people))
        weights = [math.prod(rate if x else 1 - rate for x in s) for s in sets]

        def moved(angles, sets=sets):
            each = np.stack([np.cos(angles), np.sin(angles)], 1)
            return [np.asarray(s) @ each for s in sets]

        same = rng.uniform(0, 2 * math.pi)
        near = rng.random() < 0.5  # close to the worst case
        one = same + (0.2 if near else 3.0) * rng.normal(size=people)
        two = same + math.pi + (0.2 if near else 3.0) * rng.normal(size=people)
        eps = rng.uniform(0, 1.5)
        actual = divergence_in_the_plane(weights, moved(one), moved(two), math.exp(eps), z)
        assert actual <= float(pairs._Mixtures(people, people, rate, z)(np.array([eps]))[0]) + 2e-6


def test_one_of_several_pairs_of_absent_records_is_never_the_only_one_that_is_charged():
    cost = poisson(0.3, 0.7, 3)
    full = curve.charge_epsilon(cost, 1e-5, AR, 2)
    each = [composition.epsilon_at([direction], lambda _: 1e-5).value
            for direction in curve._directions(cost, AR, 2)]
    assert len(each) == 3
    assert full == pytest.approx(max(each), rel=1e-6)


@pytest.mark.parametrize("replacement", [False, True])
def test_several_records_in_samples_of_a_fixed_size(replacement):
    """All other records opposite: an explicit pair, at n = 6, m = 2, by enumeration."""
    n, m, people, z = 6, 2, 2, 1.0
    law = stats.binom(m, people / n) if replacement else stats.hypergeom(n, people, m)
    x = np.linspace(-12, 14, 40001)
    hits = [float(law.pmf(j)) for j in range(m + 1)]
    p = sum(w * stats.norm.pdf(x, j, z) for j, w in enumerate(hits))
    q = stats.norm.pdf(x, 0, z)
    for eps in (0.0, 0.5, 1.5):
        attained = np.maximum(p - math.exp(eps) * q, 0).sum() * (x[1] - x[0])
        value = float(gaussian.Profile(n, m, z, replacement, people)(np.array([eps]))[0])
        assert attained <= value * (1 + 1e-6)
        assert attained > 0.3 * value
    one = gaussian.Profile(n, m, z, replacement)(np.array([0.0, 0.5]))
    assert np.all(one < gaussian.Profile(n, m, z, replacement, people)(np.array([0.0, 0.5])))


def test_laplace_numbers_of_several_people_are_worst_as_one():
    for eps in (0.0, 0.1, 0.4, 0.9):
        together = pairs._laplace(PrivacyLoss("laplace", 2.0), 1, RO, 2)[0][0][0].right(
            np.array([eps]))[0]
        assert float(laplace_product(eps, 0.5, 2)) <= together


def test_people_of_whole_descriptions():
    def run(sampling, z=20.0):
        query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(z, None),
                          sampling=sampling, population=1000)
        return jmm.Repeat(query=query, times=50)

    full = run(jmm.Full())
    assert jmm.epsilon(full, 1e-6, people=3) == pytest.approx(
        dpa.get_epsilon_gaussian(20 / (6 * math.sqrt(50)), 1e-6), rel=2e-3)
    part, other = run(jmm.Poisson(rate=0.05)), run(jmm.Poisson(rate=0.05), 21.0)
    apart = jmm.Parallel(parts=(part, other))  # records of one person may be in both: a lemma
    alone = jmm.epsilon(part, 1e-6, people=2)
    assert jmm.epsilon(part, 1e-6) < alone <= jmm.epsilon(apart, 1e-6, people=2)
    made = jmm.accounting.calibrate_noise(part, 1.0, 1e-6, people=2)
    assert 0.998 < jmm.epsilon(made, 1e-6, people=2) <= 1.0
    for people in (0, 1.5, True, "2"):
        with pytest.raises(ValueError, match="people"):
            jmm.epsilon(part, 1e-6, people=people)


# ---- searches ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_target_that_no_noise_meets_is_refused_with_what_can_be_reached():
    def stuck(scale):
        return 1.0 + 1 / scale

    with pytest.raises(ValueError, match="stays at 1"):
        calibration.find(stuck, 0.5, stuck)

    def jump(scale):
        return math.inf if scale < 3 else 10 / scale

    with pytest.raises(ValueError, match="cannot be met closely"):
        calibration.find(jump, 5.0, jump)
    with pytest.raises(ValueError, match="almost no noise"):
        jmm.accounting.calibrate_noise(jmm.Repeat(query=jmm.Query(
            clip=Saddle(1.0, None), sampling=jmm.Poisson(rate=1e-6), population=10**6), times=5),
            1.0, 9e-6)
    assert calibration.find(lambda s: 10 / s, 2.0, lambda s: 11 / s) == pytest.approx(5.0, rel=3e-4)
