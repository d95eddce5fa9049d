"""Reference values, laws of the accountant, and tripwires on the library behind it."""

import dataclasses
import math
import subprocess
import sys
import warnings

import dp_accounting as dpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import pld, rdp

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.accounting import curve
from jaxminimax.accounting.printing import rounded_up
from jaxminimax.mechanism.costs import Charge, PrivacyLoss
from tests.helpers.words import one_line

pytestmark = pytest.mark.usefixtures("real_noise")
RO, AR = "replace_one", "add_or_remove_one"


def query(z=Saddle(1.0, None), sampling=None, n=10_000):
    clip = Saddle(*(None if x is None else 1.0 for x in z))
    return jmm.Query(clip=clip, noise_multiplier=z, sampling=sampling or jmm.Full(), population=n)


def poisson(rate, z, times):
    return Charge(losses=((PrivacyLoss("poisson", z, rate), times),))


def repeat(z, times, **kw):
    return jmm.Repeat(query=query(Saddle(z, None), **kw), times=times)


def sgda_hyper(sampling, n, iterations, noise=None, clip=Saddle(1.0, 1.0)):
    q = jmm.Query(clip=clip, noise_multiplier=noise, sampling=sampling, population=n)
    return jmm.sgda.Hyper(query=q, step=Saddle(0.1, 0.1), iterations=iterations)


# ---- reference values ------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "expected"), [(0.1, 11.25), (1.0, 1.3426), (10.0, 0.4938)])
def test_calibrated_poisson_multiplier_matches_the_reference(epsilon, expected):
    hyper = sgda_hyper(jmm.Poisson(rate=64 / 39992), 39992, 9373)
    hyper = jmm.calibrate(jmm.sgda, hyper, epsilon, 1e-6)
    z = jmm.accounting.effective_noise_multiplier(hyper.query)
    assert z == pytest.approx(expected, rel=0.005)
    assert 0.999 * epsilon <= jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-6) <= epsilon


@pytest.mark.parametrize(("n", "times", "epsilon", "delta", "sigma"), [
    (1000, 100, 1.0, 1e-6, 0.119492),
    (1000, 100, 1.0, 1e-5, 0.105518),
    (5000, 300, 0.5, 1e-6, 0.078948),
    (16000, 635, 1.0, 1e-6, 0.018819),
    (1000, 100, 8.0, 1e-6, 0.018468),
])
def test_full_batch_noise_on_the_mean_operator(n, times, epsilon, delta, sigma):
    q = jmm.Query(clip=Saddle(1.0, 1.0), population=n)
    hyper = jmm.gda.Hyper(query=q, modulus=1.0, iterations=times)
    z = jmm.calibrate(jmm.gda, hyper, epsilon, delta).query.noise_multiplier
    assert z.w == z.v
    assert z.w / n == pytest.approx(sigma, abs=5.1e-7)


@pytest.mark.parametrize(("per_player", "one", "both", "both_ar"), [
    (0.8, 4.82202, 11.95244, 10.47205),
    (1.2, 2.49519, 4.26893, 3.15758),
    (3.0, 0.88349, 1.28810, 0.66965),
])
def test_two_players_on_one_sample_are_one_release(per_player, one, both, both_ar):
    how = jmm.Poisson(rate=0.01)
    two = jmm.Repeat(query=query(Saddle(per_player, per_player), how), times=1000)
    alone = repeat(per_player, 1000, sampling=how)
    assert jmm.epsilon(alone, 1e-6) == pytest.approx(one, rel=1.5e-4)
    assert jmm.epsilon(two, 1e-6) == pytest.approx(both, rel=1.5e-4)
    assert jmm.epsilon(two, 1e-6, neighbours=AR) == pytest.approx(both_ar, rel=1.5e-4)


def test_the_iterations_that_fit_a_budget():
    hyper = sgda_hyper(jmm.Poisson(rate=0.01), 10_000, 5, Saddle(1.0, None), Saddle(1.0, None))
    best = jmm.accounting.calibrate_iterations(jmm.sgda, hyper, 1.0, 1e-5, neighbours=AR)
    assert best.iterations == 254  # the Renyi accountant alone would stop at 4
    more = jmm.sgda.mechanism(sgda_hyper(jmm.Poisson(rate=0.01), 10_000, 255, Saddle(1.0, None),
                                         Saddle(1.0, None)))
    assert jmm.epsilon(more, 1e-5, neighbours=AR) > 1.0


def test_full_batch_iterations_have_a_closed_form():
    hyper = sgda_hyper(jmm.Full(), 1000, 1, Saddle(100.0, None), Saddle(1.0, None))
    mu = 1 / dpa.get_sigma_gaussian(1.0, 1e-6)
    best = jmm.accounting.calibrate_iterations(jmm.sgda, hyper, 1.0, 1e-6)
    assert best.iterations == math.floor((mu * 100.0 / 2) ** 2)


# ---- laws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", [RO, AR])
@pytest.mark.parametrize("times", [1, 7, 10**6])
def test_without_sampling_releases_compose_to_one_exact_gaussian(neighbours, times):
    z = 3.0 * math.sqrt(times)
    expected = dpa.get_epsilon_gaussian(3.0 / (2 if neighbours == RO else 1), 1e-5)
    assert jmm.epsilon(repeat(z, times), 1e-5, neighbours=neighbours) == pytest.approx(expected)


def test_replacing_a_record_is_adding_one_at_half_the_noise():
    assert jmm.epsilon(repeat(8.0, 3), 1e-5) == jmm.epsilon(repeat(4.0, 3), 1e-5, neighbours=AR)


def test_players_combine_like_parallel_resistors():
    assert jmm.accounting.effective_noise_multiplier(query(Saddle(3.0,
                                                                  4.0))) == pytest.approx(12 / 5)
    assert jmm.accounting.effective_noise_multiplier(query(Saddle(2.5, None))) == 2.5
    assert jmm.accounting.effective_noise_multiplier(query(Saddle(0.0, 4.0))) == 0.0
    extreme = query(Saddle(1e-200, 1e200)).multiplier()
    assert extreme == pytest.approx(1e-200)


def test_rate_one_is_no_sampling():
    exact = jmm.epsilon(repeat(30.0, 10), 1e-5)
    assert exact * (1 - 1e-12) <= jmm.epsilon(
        repeat(30.0, 10, sampling=jmm.Poisson(rate=1.0)), 1e-5)
    assert jmm.epsilon(repeat(30.0, 10, sampling=jmm.Poisson(rate=1.0)), 1e-5) <= exact * 1.001


def test_epsilon_grows_with_releases_and_rate_and_falls_with_noise_and_delta():
    def at(z=2.0, times=100, rate=0.01, delta=1e-5):
        return jmm.epsilon(repeat(z, times, sampling=jmm.Poisson(rate=rate)), delta)

    assert at(times=101) > at() > at(times=99)
    assert at(rate=0.011) > at() > at(rate=0.009)
    assert at(z=1.9) > at() > at(z=2.1)
    assert at(delta=1e-6) > at() > at(delta=1e-4)


def test_an_uncharged_release_would_be_seen():
    q = query(Saddle(20.0, 20.0))
    assert jmm.epsilon(jmm.Repeat(query=q, times=99), 1e-6) < 0.999 * jmm.epsilon(
        jmm.Repeat(query=q, times=100), 1e-6)


def test_disjoint_batches_cost_passes_not_releases():
    how = jmm.Disjoint(batch=100)
    one_pass = jmm.epsilon(repeat(5.0, 100, sampling=how), 1e-5)
    assert one_pass == jmm.epsilon(repeat(5.0, 1), 1e-5)
    assert jmm.epsilon(repeat(5.0, 1, sampling=how), 1e-5) == one_pass
    assert jmm.epsilon(repeat(5.0, 101, sampling=how), 1e-5) == jmm.epsilon(repeat(5.0, 2), 1e-5)
    with pytest.raises(ValueError, match="replace_one"):
        jmm.epsilon(repeat(5.0, 1, sampling=how), 1e-5, neighbours=AR)


def test_sequences_add_up_and_stop_early():
    count, train = repeat(50.0, 1), repeat(40.0, 100)
    both = jmm.Sequence(parts=(count, train))
    mu = 2 * math.sqrt(1 / 50**2 + 100 / 40**2)
    assert jmm.epsilon(both, 1e-6) == pytest.approx(dpa.get_epsilon_gaussian(1 / mu, 1e-6))
    assert jmm.epsilon(both, 1e-6, spent=0) == 0.0
    assert jmm.epsilon(both, 1e-6, spent=1) == jmm.epsilon(count, 1e-6)
    assert jmm.epsilon(both, 1e-6, spent=21) < jmm.epsilon(both, 1e-6, spent=22)
    assert jmm.epsilon(both, 1e-6, spent=10**6) == jmm.epsilon(both, 1e-6)


def test_mixed_sequences_cost_more_than_their_parts_and_less_than_their_sum():
    sampled, full = repeat(1.5, 200, sampling=jmm.Poisson(rate=0.01)), repeat(20.0, 4)
    a, b = jmm.epsilon(sampled, 1e-5), jmm.epsilon(full, 1e-5)
    assert max(a, b) < jmm.epsilon(jmm.Sequence(parts=(sampled, full)), 1e-5) < a + b


def test_no_noise_is_no_privacy():
    assert jmm.epsilon(repeat(0.0, 1), 1e-5) == math.inf
    assert jmm.epsilon(repeat(0.0, 1, sampling=jmm.Poisson(rate=0.01)), 1e-5) == math.inf


def test_a_capacity_costs_nothing():
    def at(capacity):
        return jmm.epsilon(repeat(2.0, 100, sampling=jmm.Poisson(rate=0.01, capacity=capacity)),
                           1e-5)

    roomy = at(None)
    for capacity in (10_000, 162, 120, 100):
        assert at(capacity) == pytest.approx(roomy, rel=1e-9)


@pytest.mark.parametrize(("times", "mu", "delta"), [(10**5, 2.0, 1e-12), (10**6, 0.5, 1e-12),
                                                    (10**6, 2.0, 1e-10), (100, 3.0, 1e-8)])
def test_rounding_in_long_compositions_never_undercuts_the_exact_value(times, mu, delta):
    cost = poisson(1.0, 2 * math.sqrt(times) / mu, times=times)
    exact = dpa.get_epsilon_gaussian(1 / mu, delta)
    assert exact * (1 - 1e-9) <= curve.charge_epsilon(cost, delta, RO) <= exact * (1 + 3e-4)


# ---- calibration -----------------------------------------------------------------------------


def test_calibration_keeps_the_ratio_between_the_players():
    hyper = sgda_hyper(jmm.Full(), 1000, 50, jmm.mechanism.budget_split(w=0.95))
    z = jmm.calibrate(jmm.sgda, hyper, 1.0, 1e-6).query.noise_multiplier
    assert z.v / z.w == pytest.approx(math.sqrt(0.95 / 0.05))
    share = jmm.accounting.effective_noise_multiplier(query(z)) ** 2 / z.w**2
    assert share == pytest.approx(0.95)


def test_other_releases_are_paid_from_the_same_budget():
    prior = repeat(60.0, 1)
    hyper = sgda_hyper(jmm.Full(), 1000, 50)
    alone = jmm.calibrate(jmm.sgda, hyper, 0.5, 1e-6)
    beside = jmm.calibrate(jmm.sgda, hyper, 0.5, 1e-6, alongside=(prior,))
    assert beside.query.noise_multiplier.w > alone.query.noise_multiplier.w
    full = jmm.Sequence(parts=(prior, jmm.sgda.mechanism(beside)))
    assert 0.4999 < jmm.epsilon(full, 1e-6) <= 0.5
    with pytest.raises(ValueError, match="other releases alone"):
        jmm.calibrate(jmm.sgda, hyper, 0.01, 1e-6, alongside=(prior,))


@pytest.mark.parametrize("neighbours", [RO, AR])
@pytest.mark.parametrize(("epsilon", "delta", "rate", "times"), [
    (0.01, 1e-6, 0.01, 100), (3.0, 1e-9, 0.1, 10), (20.0, 1e-5, 2e-3, 300), (0.3, 1e-4, 0.5, 1),
])
def test_calibration_ends_just_on_the_private_side(neighbours, epsilon, delta, rate, times):
    hyper = sgda_hyper(jmm.Poisson(rate=rate), 20_000, times)
    hyper = jmm.calibrate(jmm.sgda, hyper, epsilon, delta, neighbours=neighbours)
    true = jmm.epsilon(jmm.sgda.mechanism(hyper), delta, neighbours=neighbours)
    assert 0.99 * epsilon < true <= epsilon


def test_a_target_that_little_noise_meets_is_met():
    hyper = sgda_hyper(jmm.Poisson(rate=1.43e-4), 28517, 7)
    hyper = jmm.calibrate(jmm.sgda, hyper, 0.0323, 7e-5, neighbours=AR)
    assert 0.1 < jmm.accounting.effective_noise_multiplier(hyper.query) < 1.0


# ---- refusals --------------------------------------------------------------------------------

BAD = [math.nan, math.inf, -1.0, 0.0, "1", None, True, 1j]


@pytest.mark.parametrize("value", BAD)
def test_a_bad_budget_is_refused_with_its_name(value):
    hyper = sgda_hyper(jmm.Full(), 1000, 10)
    with pytest.raises(ValueError, match="epsilon must"):
        jmm.calibrate(jmm.sgda, hyper, value, 1e-6)
    with pytest.raises(ValueError, match="delta must"):
        jmm.calibrate(jmm.sgda, hyper, 1.0, value)
    with pytest.raises(ValueError, match="delta must"):
        jmm.epsilon(repeat(1.0, 1), value)


@pytest.mark.parametrize("value", [math.nan, -1.0, "1", True, 1j])
def test_bad_noise_is_refused_never_called_private(value):
    for sampling in (jmm.Full(), jmm.Poisson(rate=0.01)):
        with pytest.raises(ValueError, match=r"noise_multiplier\.w must"):
            jmm.epsilon(repeat(value, 1, sampling=sampling), 1e-5)


@pytest.mark.parametrize(("mechanism", "message"), [
    (repeat(1.0, 0), "times"),
    (repeat(1.0, 2.5), "times"),
    (repeat(1.0, True), "times"),
    (repeat(1.0, 1, n=0), "population"),
    (repeat(1.0, 1, n=2**31), "population"),
    (repeat(1.0, 1, sampling=jmm.Poisson(rate=0.0)), "rate"),
    (repeat(1.0, 1, sampling=jmm.Poisson(rate=1.01)), "rate"),
    (repeat(1.0, 1, sampling=jmm.Poisson(rate=math.nan)), "rate"),
    (repeat(1.0, 1, sampling=jmm.Poisson(rate=0.1, capacity=0)), "capacity"),
    (repeat(1.0, 1, sampling=jmm.Disjoint(batch=20_000)), "batch"),
    (repeat(1.0, 1, sampling="poisson"), "sampling"),
    (jmm.Repeat(query=query(Saddle(None, None)), times=1), "nothing would be released"),
    (jmm.Repeat(query=jmm.Query(clip=Saddle(1.0, 1.0), population=10), times=1), "not set"),
    (jmm.Repeat(query=jmm.Query(clip=Saddle(-1.0, None), noise_multiplier=Saddle(1.0, None),
                                population=10), times=1), r"clip\.w"),
    (jmm.Repeat(query=jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(1.0, None),
                                population=10), times=1), "both or with neither"),
    (jmm.Repeat(query=jmm.Query(clip=Saddle(math.inf, None), noise_multiplier=Saddle(1.0, None),
                                population=10), times=1), "no noise can cover"),
    (repeat(1.0, 2**31), "2\\*\\*31"),
    ("sgda", "Repeat, a Sequence"),
])
def test_a_bad_description_is_refused_with_the_fix(mechanism, message):
    with pytest.raises(ValueError, match=message):
        jmm.epsilon(mechanism, 1e-5)


def test_hostile_inputs_are_refused_with_their_names():
    good = repeat(1.0, 1)
    for bad in (np.array([0.5]), jnp.ones(3)):
        with pytest.raises(ValueError, match="delta must be one plain number"):
            jmm.epsilon(good, bad)
        with pytest.raises(ValueError, match="epsilon must be one plain number"):
            jmm.accounting.calibrate_noise(good, bad, 1e-5)
    with pytest.raises(ValueError, match="outside of jit"):
        jax.jit(lambda delta: jmm.epsilon(good, delta))(1e-5)
    for bad in (np.array(["replace_one", "x"]), None, 3):
        with pytest.raises(ValueError, match="neighbours must be one of"):
            jmm.epsilon(good, 1e-5, neighbours=bad)
    for n in (None, object(), 2.5):
        with pytest.raises(ValueError, match="population must be"):
            jmm.epsilon(jmm.Repeat(query=query(n=n), times=1), 1e-5)
    with pytest.raises(ValueError, match="at least one part"):
        jmm.epsilon(jmm.Parallel(parts=()), 1e-5)
    with pytest.raises(ValueError, match="no noise to calibrate"):
        jmm.accounting.calibrate_noise(jmm.Sequence(parts=()), 1.0, 1e-5)
    for z in ("", "1", True):
        with pytest.raises(ValueError, match="must be a number"):
            jmm.accounting.calibrate_noise(jmm.Repeat(query=query(Saddle(z, None)), times=1), 1.0,
                                           1e-5)
    for replacement in ("abc", math.nan):
        with pytest.raises(ValueError, match="replacement must be True or False"):
            jmm.epsilon(repeat(1.0, 1, sampling=jmm.FixedSize(batch=2, replacement=replacement)),
                        1e-5)


def test_accounting_of_several_runs_at_once_is_refused():
    with pytest.raises(ValueError, match="one plain number"):
        jmm.epsilon(repeat(np.array([1.0, 2.0]), 1), 1e-5)


def test_numbers_of_any_type_cost_the_same():
    how = jmm.Poisson(rate=0.01)
    expected = jmm.epsilon(repeat(2.0, 100, sampling=how), 1e-5)
    for z in (2, np.float32(2), np.float64(2), jnp.float32(2), np.array(2.0), np.int64(2)):
        assert jmm.epsilon(repeat(z, 100, sampling=how), 1e-5) == expected
    assert expected > 0.3


def test_spent_must_be_a_count():
    for spent in (-1, 1.5, True, "3"):
        with pytest.raises(ValueError, match="spent"):
            jmm.epsilon(repeat(1.0, 5), 1e-5, spent=spent)


# ---- statement -------------------------------------------------------------------------------


def test_a_statement_tells_what_was_spent():
    hyper = jmm.calibrate(jmm.sgda, sgda_hyper(jmm.Full(), 1000, 50), 1.0, 1e-6)
    state = jmm.sgda.init(Saddle(jnp.zeros(2), jnp.zeros(1)), hyper)._replace(spent=jnp.int32(20))
    said = jmm.statement(jmm.sgda, hyper, state, delta=1e-6, unit="one visit", assumed=("Extra.",))
    milestones = {math.ceil(50 / 1.5**k) for k in range(13)}
    assert said.milestone == min(m for m in milestones if m >= 20)
    assert said.spent == 20
    assert said.allowed == 50
    assert 0.999 < said.epsilon == jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-6) <= 1.0
    fewer = jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-6, spent=20)
    assert said.epsilon_spent_if_fixed == fewer < 0.9 * said.epsilon
    text = one_line(said)
    for words in ("one visit", "Extra.", "replaced", "20 of 50", f"jaxminimax {jmm.__version__}"):
        assert words in text
    # first what holds for any end, then for one chosen by looking, then for one that was fixed
    assert said.epsilon_if_stopped_by_looking == jmm.epsilon(
        jmm.sgda.mechanism(hyper), 1e-6 / 2 / (len(milestones) - 1) * (1 - 1e-15),
        spent=said.milestone)
    assert said.paragraph() in text
    early = rounded_up(said.epsilon_if_stopped_by_looking)
    assert f"looking at the releases also has epsilon = {early}" in said.paragraph()
    assert f"satisfy ({rounded_up(said.epsilon)}, 1e-06)-differential privacy" in said.paragraph()
    assert f"fixed before the run has epsilon = {rounded_up(fewer)}" in said.paragraph()
    condition = "only for an end that was fixed before the run"
    assert any(condition in line for line in said.assumed)
    whole = jmm.statement(jmm.sgda, hyper, delta=1e-6)
    assert whole.epsilon_spent_if_fixed == whole.epsilon == said.epsilon
    assert condition not in one_line(whole)
    record = said.to_json()
    assert record["epsilon"] == said.epsilon
    assert record["clip"] == [{"w": 1.0, "v": 1.0}]


@pytest.mark.nightly
def test_the_stated_epsilon_holds_for_a_rule_that_stops_by_what_it_sees():
    """One record, +1 or -1, read in full in every round, and real runs' released states.

    The rule ends a run as soon as the privacy loss L exceeds the epsilon of what was spent. The
    output of the stopped run is (epsilon, delta)-private only if E (1 - exp(epsilon - L))_+ is at
    most delta.
    """
    delta, rounds, runs = 1e-2, 100, 4000
    query = jmm.Query(clip=Saddle(1.0, None), population=1)
    hyper = jmm.calibrate(jmm.sgda, jmm.sgda.Hyper(
        query=query, step=Saddle(1.0, 1.0), iterations=rounds), 2.0, delta)
    z = hyper.query.noise_multiplier.w
    problem = jmm.Problem(operator=lambda z, x: Saddle(x, None))

    def path(key):
        start, data = Saddle(jnp.float32(0.0), ()), jnp.array([5.0], jnp.float32)
        return jmm.run(key, start, data, hyper, jmm.sgda, problem, lambda state: state.z.w)[1]

    keys = jax.random.split(jax.random.key(1), runs)
    points = np.asarray(jax.jit(lambda keys: jax.lax.map(path, keys))(keys))
    released = -np.diff(points.astype(float), axis=1, prepend=0)
    loss = np.cumsum(2 * released / z**2, 1)  # N(1, z^2) a round, against N(-1, z^2)
    by_spent = np.array([jmm.epsilon(jmm.sgda.mechanism(hyper), delta, spent=t)
                         for t in range(1, rounds + 1)])
    over = loss > by_spent - np.log(0.9)
    end = np.where(over.any(1), over.argmax(1), rounds - 1)
    state = jmm.sgda.init(Saddle(jnp.zeros(()), ()), hyper)
    at_end = {t: jmm.statement(jmm.sgda, hyper, state._replace(spent=jnp.int32(t + 1)), delta=delta)
            for t in np.unique(end)}

    def reached(stated):
        stated = np.array([stated(at_end[t]) for t in end])
        each = np.maximum(1 - np.exp(stated - loss[np.arange(runs), end]), 0)
        return each.mean(), each.std() / runs**0.5

    for stated in (lambda said: said.epsilon,
                   lambda said: said.epsilon_if_stopped_by_looking or said.epsilon):
        holds, error = reached(stated)
        assert holds <= delta + 4 * error
    breaks, error = reached(lambda said: said.epsilon_spent_if_fixed)
    assert breaks > 2 * delta + 4 * error  # what it would be to state that one


@pytest.mark.parametrize(("noise", "words"), [
    (Saddle(-1.0, 1.0), "noise_multiplier.w"), (Saddle(math.nan, 1.0), "noise_multiplier.w"),
    (Saddle("1", 1.0), "must be a number"), (Saddle(True, 1.0), "must be a number"),
    (Saddle(np.array([1.0, 2.0]), 1.0), "one plain number"), (None, "not set"),
])
def test_noise_that_is_no_number_has_no_effective_multiplier(noise, words):
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=noise, population=10)
    with pytest.raises(ValueError, match=words):
        jmm.accounting.effective_noise_multiplier(query)
    with pytest.raises(ValueError, match="of a Query"):
        jmm.accounting.effective_noise_multiplier(noise)


# ---- a delta that promises little --------------------------------------------------------------


def test_a_delta_above_one_in_n_is_warned_of_once_a_call():
    query = jmm.Query(clip=Saddle(1.0, 1.0), population=50, sampling=jmm.Poisson(rate=0.1))
    bare = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=20)
    sizes = jmm.GroupLosses(bound=1.0, sizes=(20, 30), noise_multiplier=9.0)
    with pytest.warns(UserWarning, match="n = 50 records") as seen:
        hyper = jmm.calibrate(jmm.sgda, bare, 1.0, 0.03)
    assert len(seen) == 1
    for call in (lambda: jmm.epsilon(jmm.sgda.mechanism(hyper), 0.03),
                 lambda: jmm.statement(jmm.sgda, hyper, delta=0.03),
                 lambda: jmm.accounting.calibrate_iterations(jmm.sgda, hyper, 1.0, 0.03),
                 lambda: jmm.epsilon(sizes, 0.03),
                 lambda: jmm.accounting.calibrate_noise(sizes, 1.0, 0.03),
                 lambda: jmm.epsilon(jmm.Repeat(query=dataclasses.replace(
                     hyper.query, population=25), times=2, parts=2), 0.03)):
        with pytest.warns(UserWarning, match="n = 50 records") as seen:
            call()
        assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jmm.epsilon(jmm.sgda.mechanism(hyper), 0.019)


# ---- counts of NumPy's ---------------------------------------------------------------------------


def test_counts_of_numpy_are_charged_as_pythons():
    """Products of 32-bit counts would overflow, and a cost with them."""
    big = np.int32(10**9)

    def five(times):
        one = jmm.Repeat(query=query(Saddle(1e6, 1e6)), times=times)
        return jmm.Sequence(parts=(one,) * 5)

    assert jmm.epsilon(five(big), 1e-6) == jmm.epsilon(five(10**9), 1e-6)
    for made in (jmm.Repeat(query=query(), times=big, parts=np.uint8(3)),
                 jmm.mechanism.TreeSums(clip=1.0, leaves=np.int64(7)),
                 jmm.mechanism.RecordLosses(bound=1.0, times=big),
                 jmm.FixedSize(batch=jnp.int32(4)), jmm.Disjoint(batch=np.array(3)),
                 jmm.Poisson(rate=np.float32(0.25), capacity=np.int16(5)),
                 jmm.GroupLosses(bound=1.0, sizes=(np.int32(3), 4), times=np.int32(2)),
                 jmm.mechanism.Selection(bound=1.0, sizes=(np.int32(3), 4), times=np.int32(2)),
                 jmm.mechanism.GroupSolution(lipschitz=1.0, bound=1.0, smooth=None, diameter=1.0,
                                             reg_w=1.0,
                                             reg_lam=1.0, sizes=(np.int64(9),), phases=np.int64(2)),
                 jmm.sgda.Hyper(query=query(), step=Saddle(0.1, 0.1), iterations=np.int64(3))):
        counts = [getattr(made, f.name) for f in dataclasses.fields(made)
                  if f.metadata.get("static")]
        flat = [x for c in counts for x in (c if type(c) is tuple else (c,))]
        assert not any(isinstance(x, np.generic | np.ndarray | jax.Array) for x in flat)
        assert jax.tree.map(lambda x: x, made) == made
    assert type(jmm.Poisson(rate=np.float32(0.25)).rate) is float
    for times in (np.float32(3.0), np.bool_(True), True, 2.0, np.array([3])):
        with pytest.raises(ValueError, match="times"):
            jmm.epsilon(jmm.Repeat(query=query(), times=times), 1e-5)


def test_a_statement_without_noise_says_so():
    stated = jmm.statement(jmm.sgda, sgda_hyper(jmm.Full(), 10, 5, Saddle(0.0, 0.0)), delta=1e-6)
    assert str(stated).startswith("NO privacy guarantee")
    assert stated.to_json()["epsilon"] == "no guarantee"
    assert stated.proven_up_to is None


# ---- tripwires: what dp-accounting 0.6 does, and we rely on or steer around --------------------


def test_tripwire_pld_doubles_the_sensitivity_of_replace_one_and_rdp_does_not():
    def by(accountant, relation, event):
        return accountant(neighboring_relation=relation).compose(event).get_epsilon(1e-6)

    relation, event = dpa.NeighboringRelation, dpa.GaussianDpEvent(4.0)
    add, replace = relation.ADD_OR_REMOVE_ONE, relation.REPLACE_ONE
    assert by(pld.PLDAccountant, add, event) == pytest.approx(1.06070, abs=1e-4)
    assert by(pld.PLDAccountant, replace, event) == pytest.approx(2.25408, abs=1e-4)
    for rel in (add, replace):
        value = by(lambda neighboring_relation: rdp.RdpAccountant(
            neighboring_relation=neighboring_relation), rel, event)
        assert value == pytest.approx(1.14317, abs=1e-4)


def test_tripwire_rdp_drops_players_of_a_sampled_composition_given_as_int_or_float32():
    def at(z):
        inner = dpa.ComposedDpEvent([dpa.GaussianDpEvent(z), dpa.GaussianDpEvent(z)])
        event = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.01, inner), 1000)
        return rdp.RdpAccountant().compose(event).get_epsilon(1e-5)

    assert at(1) < 0.8 * at(1.0)
    assert at(np.float32(1)) < 0.8 * at(1.0)


def test_tripwire_rdp_calls_nan_noise_private():
    accountant = rdp.RdpAccountant().compose(dpa.GaussianDpEvent(math.nan))
    assert accountant.get_epsilon(1e-5) == 0.0


def test_tripwire_pld_has_no_event_for_two_players_on_one_sample():
    inner = dpa.ComposedDpEvent([dpa.GaussianDpEvent(1.0), dpa.GaussianDpEvent(1.0)])
    assert not pld.PLDAccountant().supports(dpa.PoissonSampledDpEvent(0.01, inner))


@pytest.mark.slow
def test_neither_dp_accounting_nor_statistics_are_loaded_by_what_users_ask():
    asked = """
import sys
import jax.numpy as jnp
import jaxminimax as jmm
query = jmm.Query(clip=jmm.Saddle(1.0, 1.0), population=1000, sampling=jmm.Poisson(rate=0.1))
hyper = jmm.sgda.Hyper(query=query, step=jmm.Saddle(0.1, 0.1), iterations=20)
hyper = jmm.calibrate(jmm.sgda, hyper, epsilon=1.0, delta=1e-6)
jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-6)
jmm.delta(jmm.sgda.mechanism(hyper), 1.0)
str(jmm.statement(jmm.sgda, hyper, delta=1e-6))
print(sorted({"dp_accounting", "scipy.stats"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True,
                          text=True)
    assert done.stdout.strip() == "[]"
