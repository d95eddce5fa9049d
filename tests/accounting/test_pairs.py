"""Every profile against the theorem that it is from, in 60 digits, over the range it accepts."""

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxminimax.accounting import gaussian
from jaxminimax.accounting import pairs as dominating
from jaxminimax.mechanism import size_law
from jaxminimax.mechanism.costs import PrivacyLoss

DIGITS = 60
exactly = settings(max_examples=40, deadline=None, derandomize=True, database=None)
epsilons = st.floats(-5, 2).map(lambda x: 10.0**x) | st.just(0.0)
noises = st.floats(-0.7, 2).map(lambda x: 10.0**x)


def tail(x):
    """P[N(0, 1) > x]."""
    return mp.erfc(x / mp.sqrt(2)) / 2


def normal(mu, log_g):
    """H_g of N(mu, 1) against N(0, 1), g = e^log_g."""
    return tail(log_g / mu - mu / 2) - mp.exp(log_g) * tail(log_g / mu + mu / 2)


def root(rises, low, high):
    """Where a rising function reaches 0."""
    for _ in range(130):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) <= 0 else (low, middle)
    return low


def binomial(n, rate):
    return [math.comb(n, j) * rate**j * (1 - rate) ** (n - j) for j in range(n + 1)]


def exactly_mixed(p, q, z, eps):
    """H_{e^eps} of sum_j p_j N(j, z^2) against sum_j q_j N(-j, z^2), at the best threshold."""
    p, q = ([mp.mpf(w.numerator) / w.denominator for w in law] for law in (p, q))
    z, a = mp.mpf(z), mp.exp(mp.mpf(eps))

    def loss(x):
        up = mp.fsum(w * mp.exp((2 * j * x - j * j) / (2 * z * z)) for j, w in enumerate(p))
        down = mp.fsum(w * mp.exp((-2 * j * x - j * j) / (2 * z * z)) for j, w in enumerate(q))
        return mp.log(up / down) - eps

    far = 60 * z + (eps + 60) * z * z
    if loss(far) <= 0:
        return mp.mpf(0)
    t = root(loss, -far, far)
    return (mp.fsum(w * tail((t - j) / z) for j, w in enumerate(p))
            - a * mp.fsum(w * tail((t + j) / z) for j, w in enumerate(q)))


def water_filled(law, z, eps):
    """The bound of `gaussian`, from exact weights P[0], P[1], ..."""
    a = mp.exp(mp.mpf(eps))
    none = mp.mpf(law[0].numerator) / law[0].denominator
    some = [(mp.mpf(w.numerator) / w.denominator, j / mp.mpf(z))
            for j, w in enumerate(law) if j and w]
    goal = a * mp.fsum(w for w, _ in some) + (a - 1) * none

    def uses(x):
        return mp.fsum(w * max(a, mp.exp(mu * x - mu * mu / 2)) for w, mu in some) - goal

    x = root(uses, mp.mpf(-100), mp.mpf(10_000) * (1 + z))
    return mp.fsum(w * normal(mu, max(mp.mpf(eps), mu * x - mu * mu / 2)) for w, mu in some)


def holds(value, exact, digits=1e-6):
    """At least the exact value, and not much more, unless both are nothing."""
    assert value >= exact
    assert value <= exact * (1 + digits) + mp.mpf(10) ** -13


def of_kind(loss, eps, people=1, neighbours="replace_one"):
    """The profiles of one release, one for each direction."""
    ((pairs, times),) = dominating.KINDS[loss.kind](loss, 1, neighbours, people)
    assert times == 1
    return [mp.mpf(float(pair.right(np.array([eps]))[0])) for pair in pairs]


@pytest.mark.slow
@exactly
@given(st.floats(-9, 0), noises, epsilons, st.integers(1, 4), st.booleans())
def test_poisson(log_rate, z, eps, people, replaced):
    with mp.workdps(DIGITS):
        rate = Fraction(10.0**log_rate) if log_rate else Fraction(1)
        ways = [(people, people)] if replaced else [(r, people - r) for r in range(people + 1)]
        actual = of_kind(PrivacyLoss("poisson", z, float(rate)), eps, people,
                         "replace_one" if replaced else "add_or_remove_one")
        for value, (r, s) in zip(actual, ways, strict=True):
            holds(value, exactly_mixed(binomial(r, rate), binomial(s, rate), z, eps))


def test_poisson_samples_of_nearly_all_records_have_no_floor_beyond_the_table():
    """One record absent: losses end at -ln(1 - q), far beyond what a normal law reaches."""
    loss = PrivacyLoss("poisson", 18.0, 0.999)
    for eps in (2.04, 2.1, 3.0, 6.0):
        actual = of_kind(loss, eps, 1, "add_or_remove_one")[0]
        with mp.workdps(DIGITS):
            exact = exactly_mixed([Fraction(1)], binomial(1, Fraction(0.999)), 18.0, eps)
        assert exact <= actual < 1e-290


@exactly
@given(st.integers(0, 30), st.floats(0, 1), st.integers(1, 60), st.integers(1, 4), noises, epsilons)
def test_a_fixed_size_without_replacement(log_n, part, most, people, z, eps):
    n = 2**log_n + 8 * people
    m = max(1, min(int(part * (n - people)), most))
    law = [Fraction(math.comb(people, j) * math.comb(n - people, m - j), math.comb(n, m))
           if j <= m else Fraction(0) for j in range(people + 1)]
    with mp.workdps(DIGITS):
        loss = PrivacyLoss("fixed", z, m / n * (1 + 2.0**-50), n, m)
        exact = (water_filled(law, z / 2, eps) if people > 1
                 else exactly_mixed([1 - law[1], law[1]], [Fraction(1)], z / 2, eps))
        holds(of_kind(loss, eps, people)[0], exact)


@exactly
@given(st.integers(0, 30), st.integers(1, 12), st.integers(1, 4), noises, epsilons)
def test_a_fixed_size_with_replacement(log_n, m, people, z, eps):
    n = 2**log_n + people
    law = binomial(m, people * Fraction(1 / n))
    with mp.workdps(DIGITS):
        value, = of_kind(PrivacyLoss("replacement", z, 1 / n, n, m), eps, people)
        holds(value, water_filled(law, z / 2, eps))


@exactly
@given(noises, epsilons, st.integers(1, 5))
def test_laplace_and_one_selection(z, eps, people):
    with mp.workdps(DIGITS):
        most = people / mp.mpf(z)
        below = max(most - mp.mpf(eps), mp.mpf(0)) / 2
        holds(of_kind(PrivacyLoss("laplace", z), eps, people)[0], -mp.expm1(-below))
        exact = mp.expm1(-below) ** 2 / -mp.expm1(-most)
        value, = of_kind(PrivacyLoss("selection", z), eps, people)
        assert value >= exact
        assert value <= exact + 0.02  # chords between the points of its grid


# of epsilon: some units in its last place, and what the rounding of delta moves it by
CLOSE, AWAY = mp.mpf(2) ** -47, mp.mpf(10) ** -12


@settings(exactly, max_examples=300)
@given(st.floats(-18, 9), st.floats(-299, -0.01))
def test_one_gaussian_and_its_epsilon(log_mu, log_delta):
    mu, delta = 10.0**log_mu, 10.0**log_delta
    with mp.workdps(80):
        epsilon = gaussian.epsilon(mu, delta)
        attained = normal(mp.mpf(mu), mp.mpf(epsilon))
        assert attained <= mp.mpf(delta)
        assert mp.mpf(float(gaussian.delta(mu, epsilon))) >= attained
        assert epsilon <= AWAY or not 1e-7 < mu < 2e4 or normal(
            mp.mpf(mu), mp.mpf(epsilon) * (1 - CLOSE) - AWAY) > mp.mpf(delta)


@pytest.mark.parametrize("mu", [1e-18, *10.0 ** np.arange(-15, -6, 3),
                                *10.0 ** np.arange(-6, 4.5, 0.75), 1e6, 1e9])
def test_a_gaussian_is_never_below_the_truth_and_hardly_above(mu):
    """The margin covers what 70 digits say, is three times that, and tiny unless mu is."""
    near = mu * mu / 2 + mu * np.array([-5.0, -1.0, 0.0, 1.0, 3.0, 10.0, 20.0, 36.0])
    with mp.workdps(70):
        for epsilon in (0.0, *np.geomspace(1e-8, 1e4, 13), *near[near > 0]):
            exact = normal(mp.mpf(mu), mp.mpf(epsilon))
            if exact < mp.mpf(10) ** -300:
                continue
            value, error = map(float, gaussian._divergence(mu, epsilon))
            assert abs(value - exact) <= error / 3
            above = gaussian.delta(mu, epsilon) / exact - 1
            assert 0 <= above <= 2e-12 + 4e-14 * mu + 3e-13 / mu


def test_a_gaussian_at_the_ends():
    assert gaussian.epsilon(0.0, 1e-6) == 0 == gaussian.epsilon(1e-9, 1e-6)
    assert gaussian.epsilon(math.inf, 1e-6) == math.inf == gaussian.epsilon(1.0, 1e-310)
    assert list(gaussian.delta(0.0, [0.0, 1.0])) == [0, 0]
    for mu in (1.001e9, 1e16, 1e40, 1e150, math.inf):  # beyond what is tested: as without noise
        assert list(gaussian.delta(mu, [0.0, 1e9])) == [1, 1]
        assert gaussian.epsilon(mu, 0.5) == math.inf
    for mu in (5e-324, 1e-300, 1e-30):  # no more than the smallest one that is tested
        assert list(gaussian.delta(mu, [0, 1e-17])) == list(gaussian.delta(1e-18, [0, 1e-17]))
        assert gaussian.epsilon(mu, 1e-100) == gaussian.epsilon(1e-18, 1e-100) > 0
    assert 0 < gaussian.delta(1.0, 1e5) < 1e-300  # what underflows counts as more than nothing


@settings(exactly, max_examples=200)
@given(st.integers(2, 2**30), st.integers(1, 60), st.integers(1, 400))
def test_weights_enclose_the_rationals_to_the_last_place(n, marked, draws):
    marked, draws = min(marked, n // 2), min(draws, n // 2)
    rate = Fraction(draws, n)
    for law, true in (
            (size_law.hypergeometric(n, marked, draws),
             lambda k: Fraction(math.comb(marked, k) * math.comb(n - marked, draws - k),
                                math.comb(n, draws))),
            (size_law.binomial(marked, *rate.as_integer_ratio()),
             lambda k: math.comb(marked, k) * rate**k * (1 - rate) ** (marked - k))):
        most = min(marked, draws)
        for k, upper in enumerate(law.upper[:12], law.first):
            assert true(k) <= Fraction(upper) <= true(k) * (1 + Fraction(1, 2**51)) + Fraction(
                1, 10**80)
        assert law.none <= true(0) <= law.none * (1 + Fraction(1, 2**51)) + Fraction(1, 10**80)
        end = law.first + len(law.upper)
        listed = sum(true(k) for k in range(law.first, min(end, most + 1)))
        assert 1 - listed <= law.rest or end > most


def test_weights_of_the_largest_populations_add_up():
    for n, m, people in ((10**8, 1000, 2), (2**30 - 1, 2**29, 7), (10**9, 10**6, 40)):
        j, w, none, left_out = gaussian.multiplicities(n, m, False, people)
        assert w.sum() + none + left_out == pytest.approx(1, abs=1e-14)
        assert np.all(np.diff(j) == 1)
