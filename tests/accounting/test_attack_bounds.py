"""Delta at every epsilon, what membership inference attains at most, and k records of a person.

Held against the exact curve of one fixed pair: delta(eps) of T independent releases is the contour
integral of phi(s)^T e^(-s eps) / (s (s + 1)), phi(s) the mean of e^(s loss), by quadrature: no
grid of losses and no formula of the accountant.
"""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from scipy import integrate, optimize, special, stats

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.accounting import curve, renyi
from jaxminimax.accounting import gaussian as closed_form
from jaxminimax.accounting.printing import rounded_up
from jaxminimax.mechanism.costs import Charge, PrivacyLoss

MAIN = (64 / 39992, 1.34254, 9373)  # rate, noise, releases
real = pytest.mark.usefixtures("real_noise")


def repeat(sampling, times, z, n=39992, parts=1):
    query = jmm.Query(clip=Saddle(1.0, None), sampling=sampling, population=n,
                      noise_multiplier=Saddle(z, None))
    return jmm.Repeat(query=query, times=times, parts=parts)


def poisson(rate=MAIN[0], z=MAIN[1], times=MAIN[2], n=39992):
    return repeat(jmm.Poisson(rate=rate), times, z, n)


def gaussian(mu):
    return jmm.mechanism.Solution(sensitivity=1.0, noise_multiplier=1 / mu, because="a test")


def exact_delta(epsilon, rate, z, times, people=1):
    """Of the pair that k records, all on one line, attain."""
    j = np.arange(people + 1)
    weights = stats.binom.pmf(j, people, rate)

    def over(x):  # ln of the mixture over N(0, z^2)
        y = (2 * np.outer(x, j) - j**2) / (2 * z * z)
        return np.log1p(np.sum(weights * np.expm1(y), axis=1))

    x = np.linspace(-16 * z - people, 16 * z + 40 * people, 4001)
    p = over(x) - x * x / (2 * z * z) + math.log((x[1] - x[0]) / (z * math.sqrt(2 * math.pi)))
    loss = over(x) - over(-x)

    def log_phi(s):  # with relative accuracy of phi - 1
        y = np.multiply.outer(loss, s)
        q = p.reshape(-1, *[1] * (y.ndim - 1))
        near = np.exp(q) * np.expm1(np.where(abs(y) < 1, y, 0))
        with np.errstate(over="ignore"):  # at tilts that are too large by far
            return np.log1p(np.where(abs(y) < 1, near, np.exp(q + y) - np.exp(q)).sum(0))

    def height(t):
        return min(float(times * log_phi(t) - t * epsilon - math.log(t * (t + 1))), 1e9)

    t = optimize.minimize_scalar(height, bounds=(0.05, 40), method="bounded").x
    w = np.linspace(0, 40 / math.sqrt(times * 4 * (rate / z * people)**2), 801)
    s = t + 1j * w
    f = np.exp(times * log_phi(s) - s * epsilon) / (s * (s + 1))
    return float(np.trapezoid(f.real, w)) / math.pi


# --- the curve ---


@pytest.mark.slow
@real
def test_the_main_run_is_close_to_its_exact_curve_and_never_below():
    at = (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
    actual = jmm.profile(poisson(), epsilons=at)
    exact = [exact_delta(e, *MAIN) for e in at]
    assert exact[4] == pytest.approx(1e-6, rel=0.01)  # calibrated to that
    for mine, true in zip(actual.deltas[1:], exact, strict=True):
        assert true <= mine <= true * (1.005 if true > 1e-7 else 1.02)
    assert actual.epsilons == (0.0, *at)
    assert actual.delta(1.0) == pytest.approx(jmm.delta(poisson(), 1.0), rel=1e-9)
    # total variation, as the limit of small epsilons
    assert exact_delta(1e-3, *MAIN) <= actual.advantage <= exact_delta(1e-3, *MAIN) + 1e-3


@pytest.mark.parametrize("mu", [1e-4, 0.05, 1.0, 6.0])
def test_gaussians_have_their_closed_forms(mu):
    made = jmm.profile(gaussian(mu))
    assert made.advantage == pytest.approx(special.erf(mu / math.sqrt(8)), rel=1e-8)
    assert made.advantage >= 2 * special.ndtr(mu / 2) - 1
    e = 1.5 * mu
    assert jmm.delta(gaussian(mu), e) == pytest.approx(
        special.ndtr(mu / 2 - 1.5) - math.exp(e) * special.ndtr(-mu / 2 - 1.5), rel=1e-6)
    assert mu * (1 - 1e-9) <= made.mu <= mu * (1 + 1e-7)
    assert made.zcdp == (pytest.approx(mu**2 / 2, rel=1e-12), math.inf)
    orders, divergences = map(np.asarray, made.renyi)
    np.testing.assert_allclose(divergences, orders * mu**2 / 2, rtol=1e-9)
    assert made.apart_from == 0


@pytest.mark.parametrize("mu", [0.05, 1.0, 3.0])
def test_no_likelihood_ratio_test_of_gaussians_beats_the_bound_and_it_is_close(mu):
    made = jmm.profile(gaussian(mu))
    for rate in (1e-6, 1e-4, 0.01, 0.1, 0.5, 0.9):
        power = special.ndtr(special.ndtri(rate) + mu)
        assert power <= made.true_positives(rate) <= power * 1.02
    assert made.true_positives(0.0) < 1e-8
    assert made.true_positives(1.0) == 1.0


def test_small_rates_of_false_positives_are_not_lost():
    """Who guesses is right as often as wrong, and an advantage of 1e-18 is more than none."""
    made = jmm.accounting.Profile("replace_one", 1, (0.0, 1.0), (1e-18, 1e-18),
                                  (((1e-18, 1e-18), (1e-18, 1e-18)),), None, None, 0.0)
    for rate in (1e-30, 1e-18, 1e-9, 1e-3):
        assert made.true_positives(rate) >= rate + 1e-18 * (1 - 1e-9)
        assert made.true_positives(rate) <= (rate + 1e-18) * (1 + 1e-9)
    # far apart, between printed epsilons
    wide = dataclasses.replace(made, epsilons=(0.0, 2000.0))
    assert wide.delta(1990.0) == 1e-18


@pytest.mark.slow
@real
def test_each_way_round_has_its_own_two_curves():
    """The mixture against one Gaussian, both ways, by their exact likelihood-ratio tests."""
    q, z, rate = 0.3, 0.7, 0.5
    made = jmm.profile(poisson(q, z, 1, 1000), neighbours="add_or_remove_one",
                       epsilons=np.linspace(0, 2, 60))

    def mixed(t):
        return (1 - q) * special.ndtr(-t / z) + q * special.ndtr((1 - t) / z)

    removed = mixed(-z * special.ndtri(rate))
    t = optimize.brentq(lambda t: 1 - mixed(t) - rate, -10, 10)
    added = special.ndtr(t / z)
    assert added > removed
    assert added <= made.true_positives(rate) <= added * 1.001
    (forward, backward), = made.curves
    alone = min(min(d + math.exp(e) * rate, 1 - math.exp(-e) * (1 - d - rate))
                for way in (forward, backward) for e, d in zip(made.epsilons, way, strict=True))
    assert alone < 0.97 * added  # one curve twice would be no bound
    assert max(forward[0], backward[0]) == made.advantage


def test_epsilon_and_delta_are_inverse_and_nothing_released_costs_nothing():
    for made in (poisson(), repeat(jmm.Full(), 10, 20.0),
                 jmm.GroupLosses(bound=1.0, sizes=(9,), noise_multiplier=30.0, times=20)):
        e = jmm.epsilon(made, 1e-7)
        assert 0.99e-7 < jmm.delta(made, e) <= 1.1e-7
    assert jmm.delta(poisson(), 0.0, spent=0) == 0.0
    assert jmm.profile(poisson(), spent=0, epsilons=(1.0,)).deltas == (0.0, 0.0)
    assert jmm.delta(poisson(), 0.3, spent=100) < jmm.delta(poisson(), 0.3) / 10
    silent = jmm.profile(repeat(jmm.Full(), 1, 0.0))
    assert silent.advantage == silent.true_positives(1e-3) == 1.0
    assert silent.to_json()["closest_gaussian"]["mu"] == "no guarantee"


def test_between_printed_epsilons_the_curve_is_below_its_chord():
    made = jmm.profile(poisson(), epsilons=(0.4, 0.8))
    for e in (0.1, 0.5, 0.7):
        assert jmm.delta(poisson(), e) <= made.delta(e)
    assert made.delta(5.0) == made.deltas[-1]
    with pytest.raises(ValueError, match="epsilon must lie"):
        made.delta(-1.0)


@pytest.mark.parametrize(("how", "match"), [
    (dict(epsilon=-1.0), "epsilon must lie"), (dict(epsilon=math.nan), "epsilon must lie"),
    (dict(epsilon="1"), "epsilon must be a number"), (dict(people=0), "people must be"),
    (dict(people=1.5), "people must be"), (dict(people=50_000), "at most the number of records"),
    (dict(neighbours="other"), "neighbours must be"), (dict(spent=-1), "spent must be")])
def test_what_is_out_of_range_is_refused(how, match):
    with pytest.raises(ValueError, match=match):
        jmm.delta(poisson(), **{"epsilon": 1.0, **how})


# --- Renyi divergences ---


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "z", "k", "order"), [
    (0.01, 0.7, 2, 6.0), (0.3, 0.6, 1, 20.0), (0.2, 3.0, 4, 1.01), (1.0, 2.0, 3, 5.0)])
def test_renyi_divergences_of_mixtures_are_their_integrals(rate, z, k, order):
    at = int(np.searchsorted(renyi.ORDERS, order))
    order = renyi.ORDERS[at]
    j = np.arange(k + 1)
    w = stats.binom.pmf(j, k, rate)

    def logs(x):
        with np.errstate(divide="ignore"):
            return special.logsumexp(np.log(w) - (x - j) ** 2 / (2 * z * z))

    def integrand(x):
        return math.exp(order * logs(x) + (1 - order) * logs(-x)) / (z * math.sqrt(2 * math.pi))

    ends = np.linspace(-15 * z, 2 * order * k + 15 * z, 40)
    total = sum(integrate.quad(integrand, *pair, epsabs=0, epsrel=1e-12)[0]
                for pair in itertools.pairwise(ends))
    cost = Charge(losses=((PrivacyLoss("poisson", z, rate), 7),))
    actual = renyi.divergences(cost, "replace_one", k)[at]
    assert actual == pytest.approx(7 * math.log(total) / (order - 1), rel=1e-6)


def test_concentrated_privacy_comes_with_its_orders():
    made = jmm.profile(poisson(), epsilons=())
    rho, up_to = made.zcdp
    orders, divergences = map(np.asarray, made.renyi)
    inside = orders <= up_to
    assert np.all(divergences[inside] <= rho * orders[inside])
    assert 20 < up_to < 24
    beyond = int(np.argmax(orders > 1.2 * up_to))
    assert divergences[beyond] > 50 * rho * orders[beyond]
    assert 0 < made.apart_from < 1e-15
    # Gaussians with realised noise, at all orders
    full = jmm.profile(repeat(jmm.Full(), 50, 40.0), epsilons=())
    assert full.zcdp.up_to == math.inf
    assert 1 <= full.zcdp.rho / (2 * 50 / 40**2) < 1.003
    laplace = jmm.mechanism.RecordLosses(bound=1.0, noise_multiplier=3.0, times=4)
    orders, divergences = map(np.asarray, jmm.profile(laplace, epsilons=()).renyi)
    assert np.all(divergences <= 1 / 3 + 1e-9)
    assert divergences[-1] > 0.99 / 3


@pytest.mark.parametrize("made", [
    repeat(jmm.FixedSize(batch=100), 50, 3.0),
    jmm.Sequence(parts=(poisson(), repeat(jmm.FixedSize(batch=100, replacement=True), 5, 3.0)))])
def test_what_has_no_exact_pair_has_no_renyi_divergences(made):
    actual = jmm.profile(made, epsilons=(1.0,))
    assert actual.zcdp is actual.renyi is None
    assert actual.to_json()["zcdp"] is None
    assert "Renyi divergences: none" in str(actual)


# --- k records of a person ---


@pytest.mark.slow
@real
@pytest.mark.parametrize("people", [1, 2, 3, 5])
def test_a_statement_for_several_records_is_close_to_the_exact_pair_and_not_below(people):
    rate, z, times, delta = 64 / 16152, 2.0689, 3785, 1e-6
    query = poisson(rate, z, times, 16152).query
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=times)
    stated = jmm.statement(jmm.sgda, hyper, delta=delta, people=people)
    assert stated.people == people
    assert stated.epsilon == jmm.epsilon(jmm.sgda.mechanism(hyper), delta, people=people)
    assert exact_delta(stated.epsilon, rate, z, times, people) <= delta
    assert exact_delta(0.995 * stated.epsilon, rate, z, times, people) > delta


def test_gaussians_are_k_times_as_far_wherever_the_records_are():
    """In parts of the data, in several of them, in a tree."""
    one = dataclasses.replace(gaussian(0.2))
    for made in (one, jmm.Parallel(parts=(one, gaussian(0.1))),
                 jmm.Sequence(parts=(jmm.Parallel(parts=(one, gaussian(0.1))),))):
        assert jmm.epsilon(made, 1e-6, people=3) == pytest.approx(
            jmm.epsilon(gaussian(0.6), 1e-6), rel=1e-9)
        assert jmm.profile(made, people=3, epsilons=(1.0,)).mu == pytest.approx(0.6, rel=1e-6)


@pytest.mark.parametrize("made", [
    jmm.Parallel(parts=(poisson(0.01, 2.0, 50, 5000), poisson(0.02, 2.0, 20, 5000))),
    repeat(jmm.Poisson(rate=0.01), 50, 2.0, 5000, parts=2)])
def test_where_records_may_be_apart_the_lemma_on_groups_is_charged(made):
    k, delta = 2, 1e-6
    assert not made.supports_group_privacy()
    actual = curve.dearest(made, delta, "replace_one", k)
    assert actual.lemma
    e = actual.epsilon / k
    assert jmm.delta(made, e) * (1 + math.exp(e)) <= delta * (1 + 1e-3)
    assert actual.epsilon > 2 * jmm.epsilon(made, delta)
    assert jmm.delta(made, actual.epsilon, people=k) <= delta * (1 + 1e-3)
    if isinstance(made, jmm.Parallel):  # a record in each part, both in one part
        assert actual.epsilon >= jmm.epsilon(jmm.Sequence(parts=made.parts), delta)
        assert actual.epsilon >= max(jmm.epsilon(x, delta, people=k) for x in made.parts)


def test_where_a_proof_covers_them_it_is_charged_and_is_no_dearer():
    alike = jmm.GroupGradients(clip=1.0, noise_multiplier=4.0, sampling=jmm.FixedSize(batch=50),
                               sizes=(900, 900))
    for made in (poisson(0.01, 2.0, 50, 5000), jmm.Repeat(times=30, query=alike),
                 jmm.GroupLosses(bound=1.0, sizes=(9, 8), noise_multiplier=30.0, times=20)):
        assert made.supports_group_privacy()
        actual = curve.dearest(made, 1e-6, "replace_one", 3)
        apart = jmm.Parallel(parts=(made, made))
        assert not actual.lemma
        assert jmm.epsilon(made, 1e-6) < actual.epsilon <= jmm.epsilon(apart, 1e-6, people=3)


def test_a_new_description_says_nothing_of_several_records_and_gets_the_lemma():
    assert not jmm.mechanism.Description.supports_group_privacy(poisson())
    assert not jmm.mechanism.repeat.OneRelease.supports_group_privacy(poisson().query, poisson())


# --- words, JSON and pictures ---


@pytest.mark.slow
def test_what_is_written_is_read_back(tmp_path):
    for made in (jmm.profile(gaussian(0.5)), jmm.profile(poisson(), people=2, epsilons=(1.0,)),
                 jmm.profile(poisson(0.01, 2.0, 5, 5000), neighbours="add_or_remove_one",
                             epsilons=(1.0,), people=2)):
        written = json.dumps(made.to_json(), allow_nan=False)
        assert jmm.accounting.Profile.from_json(json.loads(written)) == made
    path = tmp_path / "profile.png"
    made.plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    words = str(made)
    assert "except any 2." in words
    assert f"{rounded_up(made.advantage)}" in words
    assert "holds for no other epsilon" in words


def test_statements_say_whose_claim_the_unit_is_and_answer_on_request():
    query = repeat(jmm.Full(), 1, 30.0, 500).query
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=10)

    def said(**how):
        return jmm.statement(jmm.sgda, hyper, delta=1e-6, **how)

    assert said().unit == "one record"
    assert said().attack_bounds is None
    one = said(unit="one visit")
    assert any("'one visit'. The code does not check" in x for x in one.assumed)
    five = said(unit="one patient", people=5, attack_bounds=True)
    assert "any 5 records are replaced by others" in str(five)
    assert any("more than 5 records" in x and "does not check" in x for x in five.assumed)
    assert five.epsilon > 5 * one.epsilon
    assert list(five.attack_bounds["true_positives"]) == ["0.001", "0.01", "0.1"]
    assert five.attack_bounds["closest_gaussian"]["mu"] == pytest.approx(5 * 2 * math.sqrt(10) / 30,
                                                                   rel=2e-3)
    assert f"advantage at most {rounded_up(five.attack_bounds['advantage'])}" in str(five)
    assert json.loads(json.dumps(five.to_json(), allow_nan=False))["people"] == 5
    apart = said(people=2, alongside=(jmm.Parallel(parts=(
        poisson(0.01, 2.0, 5, 500), poisson(0.02, 2.0, 2, 500))),))
    assert "group privacy lemma for 2 records" in apart.accountant


def test_the_closest_gaussian_is_not_below_and_infinite_where_there_is_none():
    for mu in (1e-3, 0.3, 4.0):
        for e in (0.0, 0.1 * mu, 3 * mu):
            delta = float(closed_form.delta(mu, np.array(e)))
            assert mu <= closed_form.closest_mu(e, delta) <= mu * (1 + 1e-6)
    assert closed_form.closest_mu(1.0, 0.0) == 0.0
    assert closed_form.closest_mu(1.0, 1.0) == math.inf
