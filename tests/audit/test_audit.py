"""The audit: its bound is one, it sees most of what is claimed, and it refutes nothing sound."""

import dataclasses
import json
import math
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxminimax as jmm
from benchmarks.privacy import audit as benchmark
from benchmarks.privacy.attacks import group as group_attack
from benchmarks.privacy.attacks import stream as stream_attack
from benchmarks.privacy.attacks import wide as wide_attack
from benchmarks.privacy.mutants import aims as mutant_aims
from benchmarks.privacy.mutants import plants as mutant_plants
from jaxminimax import Disjoint, FixedSize, Full, Poisson, Saddle, audit, gda, sgda
from jaxminimax.accounting.gaussian import epsilon as gaussian_epsilon
from jaxminimax.mechanism.composed import with_noise_of_all
from jaxminimax.mechanism.sampling import choices
from jaxminimax.noise.floats import ROUNDING_MARGIN
from jaxminimax.releases import data_flow
from jaxminimax.releases.watch import update_and_releases
from tests.helpers.lanes import rest_nightly

DELTA = 1e-2
CLIP = Saddle(0.5, 2.0)
RO, AR = "replace_one", "add_or_remove_one"


def hyper_of(algorithm, sampling, rounds, epsilon, neighbours=RO, clip=CLIP):
    query = jmm.Query(clip=clip, sampling=sampling, population=20)
    own = {"modulus": 1.0} if algorithm is gda else {"step": Saddle(0.5, 0.25)}
    hyper = algorithm.Hyper(query=query, iterations=rounds, **own)
    return jmm.calibrate(algorithm, hyper, epsilon, DELTA, neighbours=neighbours)


def noisy(sampling, rounds, z=1.5):
    """Not calibrated, which takes seconds for some samplings."""
    query = jmm.Query(clip=CLIP, noise_multiplier=Saddle(z, z), sampling=sampling, population=20)
    return sgda.Hyper(query=query, iterations=rounds, step=Saddle(0.5, 0.25))


# --- the bound ---


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "error"), [(1, 0.1), (20, 0.01), (200, 0.00025)])
def test_clopper_pearson_bounds_err_no_more_often_than_stated(trials, error):
    """Coverage summed over the binomial law, on a grid of probabilities: no simulation."""
    hits = np.arange(trials + 1)
    low, high = audit.signals.clopper_pearson(hits, trials, error)
    for p in np.concatenate([[0.0, 1e-9, 1.0], np.linspace(0.001, 0.999, 400), low + 1e-12, high]):
        law = stats.binom.pmf(hits, trials, min(p, 1.0))
        assert law[low > p].sum() <= error * (1 + 1e-6)
        assert law[high < p].sum() <= error * (1 + 1e-6)


def test_clopper_pearson_agrees_with_scipy():
    for hits in (0, 1, 37, 99, 100):
        low, high = audit.signals.clopper_pearson(hits, 100, 0.005)
        exact = stats.binomtest(hits, 100).proportion_ci(0.99, "exact")
        np.testing.assert_allclose((low, high), (exact.low, exact.high), rtol=1e-9,
                                   atol=1e-11)


def lower_bounds(mu, delta, confidence, repetitions, runs=2000):
    rng = np.random.default_rng(7)
    for _ in range(repetitions):
        one, two = rng.normal(mu, size=runs), rng.normal(size=runs)
        yield audit.lower_bound({"x": one}, {"x": two}, delta, confidence)[0]


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_no_bound_of_a_gaussian_pair_is_above_its_epsilon(mu):
    exact = gaussian_epsilon(mu, DELTA)
    values = np.array(list(lower_bounds(mu, DELTA, 0.999, 200)))
    assert values.max() <= exact
    assert values.mean() > 0.2 * exact


@pytest.mark.slow
def test_a_bound_at_low_confidence_errs_no_more_often_than_it_may():
    """Close enough to the truth that it would show: at 1/2 some bounds are wrong, under a half."""
    exact = gaussian_epsilon(1.0, DELTA)
    wrong = np.mean(np.array(list(lower_bounds(1.0, DELTA, 0.5, 200))) > exact)
    assert 0 < wrong < 0.5


def test_equal_distributions_have_no_epsilon():
    for value in lower_bounds(0.0, 1e-3, 0.999, 50):
        assert value == 0


def test_the_bound_finds_the_order_and_the_statistic_that_tell():
    rng = np.random.default_rng(1)
    far, near = rng.normal(3.0, size=4000), rng.normal(size=4000)
    noise = rng.normal(size=(2, 4000))
    for one, two in ((far, near), (near, far)):
        value, name, hits, trials = audit.lower_bound(
            {"noise": noise[0], "x": one}, {"noise": noise[1], "x": two}, DELTA)
        assert (name, trials) == ("x", 2000)
        assert value > 3
        assert hits[0] != hits[1]


def test_failures_that_tell_are_seen():
    """Whichever data set they are likelier on."""
    rng = np.random.default_rng(3)
    often, seldom = (rng.uniform(size=4000) < p for p in (0.5, 0.01))
    for one, two in ((often, seldom), (seldom, often)):
        assert audit.lower_bound({"x": one * 1.0}, {"x": two * 1.0}, DELTA)[0] > 2


def test_the_runs_that_choose_do_not_enter_the_bound():
    """Statistics that separate in the first half only are worth nothing."""
    rng = np.random.default_rng(2)
    one, two = rng.normal(size=(2, 4000))
    one[:2000] += 10
    assert audit.lower_bound({"x": one}, {"x": two}, DELTA)[0] == 0


# --- the pair and the statistic ---

# those of the command line whose worst pair is known
SAMPLINGS = {name: how for name, choice in choices().items()
             if (how := choice.make(choice.batch and choice.batch(5), 20)).worst_case(20)}


@pytest.mark.slow
@pytest.mark.parametrize("sampling", rest_nightly([SAMPLINGS[name] for name in (
    "poisson", "disjoint", "with_replacement")], 1), ids=str)
def test_the_likelihood_ratio_is_the_one_of_what_was_released(sampling):
    """E_Q[P/Q] = E_P[Q/P] = 1: so the releases have the laws that the accountant charges."""
    runs, rounds = 20_000, 2
    hyper = noisy(sampling, rounds, 6.0)
    data = audit.pairs.worst_pair(hyper.query, RO)
    both = audit.released.releases(jax.random.key(3), sgda, hyper, data, runs)
    assert both.shape == (2, runs, rounds, 2, 1)
    one, two = (audit.released.likelihood_ratio(x, hyper.query, RO) for x in both)
    for ratio in (np.exp(two), np.exp(-one)):
        assert abs(ratio.mean() - 1) < 4.5 * ratio.std() / math.sqrt(runs)
        assert ratio.std() > 0.1


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=str)
def test_the_worst_pair_differs_in_one_record_that_is_read(sampling):
    query = jmm.Query(clip=CLIP, sampling=sampling, population=20)
    for neighbours in (RO, AR):
        data = audit.pairs.worst_pair(query, neighbours)
        for x in data:
            differs = np.flatnonzero((np.asarray(x[0]) != np.asarray(x[1])).any(1))
            assert len(differs) == 1
            assert differs[0] < getattr(sampling, "batch", 20)
            assert x.dtype == jnp.float32
            assert np.isnan(x[1, differs[0]]).all() == (neighbours == AR)


@pytest.mark.slow
def test_a_player_without_a_clip_norm_takes_no_part():
    hyper = hyper_of(gda, Full(), 2, 4.0, clip=Saddle(None, 2.0))
    actual = audit.audit(jax.random.key(1), gda, hyper, DELTA, runs=20_000)
    assert 0.5 * actual.epsilon_claimed < actual.epsilon_lower <= actual.epsilon_claimed


# --- whole audits ---


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "sampling", "rounds", "epsilon"), [
    (sgda, Poisson(rate=0.25), 1, 4.0),
], ids=lambda x: getattr(x, "__name__", str(x)))
def test_most_of_the_claim_is_attained_and_no_more(algorithm, sampling, rounds, epsilon):
    hyper = hyper_of(algorithm, sampling, rounds, epsilon)
    actual = audit.audit(jax.random.key(20240), algorithm, hyper, DELTA, runs=60_000)
    assert 0.99 * epsilon < actual.epsilon_claimed <= epsilon
    assert not actual.violated
    assert (actual.runs, actual.trials) == (60_000, 30_000)
    assert actual.signal.attained > 0.95 * actual.signal.charged
    assert actual.epsilon_lower >= 0.6 * actual.epsilon_claimed


@pytest.mark.slow
def test_a_round_of_two_releases_that_is_charged_as_one_is_refuted(monkeypatch):
    module = jmm.extragradient
    hyper = benchmark.hyper_of(module, benchmark.Case(Full(), 1))
    hyper = jmm.calibrate(module, hyper, 4.0, DELTA)
    z = jax.tree.map(lambda x: 2**-0.5 * x, hyper.query.noise_multiplier)
    hyper = dataclasses.replace(hyper, query=dataclasses.replace(hyper.query, noise_multiplier=z))
    monkeypatch.setattr(audit, "epsilon", lambda *_, **__: 4.0)
    actual = audit.audit(jax.random.key(7), module, hyper, DELTA, runs=60_000)
    assert actual.epsilon_lower > 4.0


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "rounds", "neighbours"), [
    (FixedSize(batch=5, replacement=True), 1, RO),
    pytest.param(Poisson(rate=0.25, capacity=11), 3, AR, marks=pytest.mark.nightly),
], ids=str)
def test_what_composes_stays_below_its_claim(sampling, rounds, neighbours):
    actual = audit.audit(jax.random.key(5), sgda, noisy(sampling, rounds), DELTA, runs=20_000,
                         neighbours=neighbours)
    assert 0.4 * actual.epsilon_claimed <= actual.epsilon_lower <= actual.epsilon_claimed
    assert math.isfinite(actual.epsilon_claimed)
    assert not actual.signal.violated
    assert actual.signal.attained > 0.95 * actual.signal.charged


@pytest.mark.slow
def test_a_claim_that_is_too_small_is_refuted(monkeypatch):
    monkeypatch.setattr(audit, "epsilon", lambda *_, **__: 1.0)
    hyper = hyper_of(gda, Full(), 1, 4.0)
    assert audit.audit(jax.random.key(1), gda, hyper, DELTA, runs=20_000).violated


# --- the signal ---

KEY = jax.random.key(23)


def test_the_distance_of_gaussians_is_in_its_bounds_as_often_as_stated():
    rng = np.random.default_rng(5)
    mix, move = rng.normal(size=(4, 4)), rng.normal(size=4)
    true = math.sqrt(move @ np.linalg.solve(mix @ mix.T, move))
    actual = np.array([audit.signals.gaussian_signal(rng.normal(size=(300, 4)) @ mix.T, move, 0.9)
                       for _ in range(1000)])
    middle, low, high = actual.T
    for wrong in (low > true, high < true):
        assert abs(wrong.mean() - 0.1) < 4.5 * math.sqrt(0.09 / 1000)
    assert abs(np.median(middle) / true - 1) < 0.01


def test_the_distance_over_a_laplace_scale_is_in_its_bounds():
    rng = np.random.default_rng(6)
    actual = np.array([audit.signals.laplace_signal(rng.laplace(scale=2.0, size=(400, 1)),
                                                    np.array([3.0]), 0.9) for _ in range(1000)])
    middle, low, high = actual.T
    assert np.mean(low > 1.5) < 0.1 + 0.05  # the median is estimated too
    assert np.mean(high < 1.5) < 0.1 + 0.05
    assert abs(np.median(middle) / 1.5 - 1) < 0.02


def test_a_number_without_noise_is_an_infinite_signal_and_one_that_tells_nothing_is_none():
    noise = np.random.default_rng(7).normal(size=(500, 2))
    silent = noise * [1.0, 0.0]
    assert audit.signals.gaussian_signal(silent, np.array([1.0, 1.0]), 0.99)[1] == math.inf
    plain = audit.signals.gaussian_signal(noise[:, :1], np.array([1.0]), 0.99)
    actual = audit.signals.gaussian_signal(silent, np.array([1.0, 0.0]), 0.99)
    np.testing.assert_allclose(actual, plain, rtol=1e-9)
    with pytest.raises(ValueError, match="runs must be at least"):
        audit.signals.gaussian_signal(noise[:15], np.array([1.0, 1.0]), 0.99)


def test_noise_that_numbers_have_in_common_is_seen_and_no_other():
    rng = np.random.default_rng(8)
    shared = audit.released.shared_noise
    for _ in range(20):
        noise, there = rng.normal(size=(1000, 12)), rng.uniform(size=(1000, 3)) < 0.2
        assert shared(noise, there, 0.999) == 0
    assert shared(np.column_stack([noise, noise[:, 3]]), there, 0.999) > 0.99
    assert shared(np.column_stack([noise, 0.9 * rng.normal(size=1000) + 0.45 * noise[:, 0]]), there,
                  0.999) > 0.2
    sizes = abs(noise[:, 0]) * rng.choice([-1, 1], 1000)  # its sign is its own
    assert shared(np.column_stack([noise, sizes]), there, 0.999) > 0.9
    assert shared(noise, np.column_stack([there, noise[:, 5] > 1]), 0.999) > 0.3


def with_noise(described, z):
    if isinstance(described, jmm.Query):
        z = Saddle(z, 1.2 * z)
    if isinstance(described, jmm.Parallel):
        return dataclasses.replace(described, parts=tuple(with_noise(x, z)
                                                          for x in described.parts))
    return dataclasses.replace(described, noise_multiplier=z)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "sampling", "rounds"), rest_nightly([
    ("proximal", Poisson(rate=0.25), 2), ("sgda", FixedSize(batch=5), 2),
    ("extragradient", FixedSize(batch=5, replacement=True), 2),
    ("extragradient", Disjoint(batch=6), 4), ("recursive", Full(), 3)], 2), ids=str)
def test_a_fifth_less_than_a_record_costs_is_seen(name, sampling, rounds):
    """What is measured is what is charged; `benchmarks.privacy.mutants` has bugs of every kind."""
    module = benchmark.modules()[name]
    hyper = benchmark.hyper_of(module, benchmark.Case(sampling, rounds))
    hyper = dataclasses.replace(hyper, query=with_noise(hyper.query, 1.5))
    actual = audit.signal(KEY, module, hyper, *reversed(benchmark.at(module, hyper)),
                          audit.pairs.PLAIN, observe=audit.pairs.all_releases)
    assert not actual.violated
    assert actual.low <= actual.attained <= actual.high
    assert actual.attained > 0.95 * actual.charged
    quieter = dataclasses.replace(hyper, query=with_noise(hyper.query, 1.5 / 0.8))
    less = audit.signals.charged_signal(module.mechanism(quieter))
    assert less == pytest.approx(0.8 * actual.charged, rel=1e-3)
    assert dataclasses.replace(actual, charged=less).violated
    assert dataclasses.replace(actual, read=1.1 * actual.read_charged).violated
    assert dataclasses.replace(actual, shared=0.01).violated


@pytest.mark.nightly
def test_the_noise_of_a_round_that_ends_with_an_average_is_that_of_its_release():
    """The point moves to the mean of the round, which holds the noise of the earlier releases."""
    module, rounds = jmm.recursive_sgda, benchmark.Case(Disjoint(batch=6), 7)
    hyper = jmm.calibrate(module, benchmark.hyper_of(module, rounds), 1.0, DELTA)

    def found():
        return audit.signal(KEY, module, hyper, *reversed(benchmark.at(module, hyper)),
                            audit.pairs.PLAIN, observe=audit.pairs.all_releases)

    sound = found()
    assert (sound.violated, sound.shared) == (False, 0.0)
    assert sound.attained > 0.95 * sound.charged
    with mutant_aims.replace("integer noise", mutant_plants.quieter(0.9))():
        assert found().low > sound.charged
    with mutant_aims.replace("release", mutant_plants.same_key_in_two_rounds)():
        assert found().shared > 0.5


# --- what is released ---


def released_by(module, hyper, problem, data, z):
    state, seen = update_and_releases(module, KEY, module.init(z, hyper), data, hyper, problem)
    return state, [release.value for release in seen]


@pytest.mark.slow
def test_what_is_seen_of_a_round_is_what_it_released():
    hyper = noisy(Full(), 2)
    data = jax.tree.map(lambda x: x[0], audit.pairs.worst_pair(hyper.query, RO))
    z = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), data)
    arguments = (KEY, sgda.mechanism(hyper), jnp.int32(0), audit.pairs.PLAIN, z, data)
    state, values = released_by(sgda, hyper, audit.pairs.PLAIN, data, z)
    jax.tree.map(np.testing.assert_array_equal, values, [jmm.release(*arguments)])
    assert len(values) == 1
    np.testing.assert_allclose(state.z.w, -0.5 * values[0].w, rtol=1e-6)


@pytest.mark.slow
def test_of_releases_that_call_others_the_outer_one_is_seen():
    """All groups' gradient is a release of a weighted sum, times a public number."""
    hyper = benchmark.hyper_of(jmm.balanced_groups, benchmark.Case(Full(), 1))
    hyper = dataclasses.replace(hyper, query=with_noise(hyper.query, 1.5), losses=None)
    data = jax.tree.map(lambda x: x[0], group_attack.worst_pair(Full()))
    state, values = released_by(jmm.balanced_groups, hyper, group_attack.PROBLEM, data,
                                Saddle(jnp.zeros(2), ()))
    assert len(values) == 1
    np.testing.assert_allclose(state.z.w, -values[0], rtol=1e-6)


@pytest.mark.slow
def test_a_release_in_a_branch_is_refused_and_its_place_in_the_state_is_not():
    hyper = benchmark.hyper_of(jmm.balanced_groups, benchmark.Case(Full(), 2))
    hyper = dataclasses.replace(hyper, query=with_noise(hyper.query, 1.5), balanced=0.5,
                                losses=with_noise(hyper.losses, 1.0))
    how = (KEY, jmm.balanced_groups, hyper, Saddle(jnp.zeros(2), ()),
           group_attack.worst_pair(Full()), group_attack.PROBLEM)
    with pytest.raises(ValueError, match=r"in a branch or a loop.*observe="):
        audit.pairs.rounds(*how, audit.pairs.all_releases, 4)
    assert audit.pairs.rounds(*how, lambda state, _: state.losses, 4).noise.shape == (4, 2, 2)


@pytest.mark.slow
def test_data_that_reach_a_state_without_a_release_are_seen_by_the_bound():
    def update(key, state, data, hyper, problem):
        new = sgda.update(key, state, data, hyper, problem)
        return new._replace(z=new.z._replace(v=new.z.v + 0.1 * data[0][0, 0]))

    hyper, mine = own(z=8.0)
    leaky = types.SimpleNamespace(init=sgda.init, mechanism=sgda.mechanism, update=update)
    with pytest.raises(ValueError, match="past a release"):
        audit.audit(KEY, leaky, hyper, DELTA, runs=2000, **mine)
    with mock.patch.object(data_flow, "check"):  # the attack sees it without that look
        actual = audit.audit(KEY, leaky, hyper, DELTA, runs=2000, **mine)
    assert not actual.signal.violated  # what was released is as described
    assert actual.epsilon_lower > actual.epsilon_claimed


def test_an_update_without_a_release_has_no_noise_to_look_at():
    hyper, mine = own()
    still = types.SimpleNamespace(init=sgda.init, mechanism=sgda.mechanism,
                                  update=lambda key, state, data, hyper, problem: state)
    with pytest.raises(ValueError, match="called no release function"):
        audit.audit(KEY, still, hyper, DELTA, runs=100, **mine)


# --- a pair of one's own ---


def own(n=12, dim=3, sampling=Full(), z=1.0, **values):
    rng = np.random.default_rng(9)
    x = rng.normal(size=(n, dim))
    data = (x, np.sign(x @ np.ones(dim)))
    neighbour = (np.concatenate([-30 * x[:1], x[1:]]), data[1])
    query = jmm.Query(clip=Saddle(1.0, 0.5), noise_multiplier=Saddle(z, z), sampling=sampling,
                      population=n)
    hyper = sgda.Hyper(query=query, iterations=2, step=Saddle(0.5, 0.5), **values)
    point = Saddle({"w": jnp.zeros(dim), "b": jnp.zeros(())}, jnp.zeros(()))
    return hyper, dict(problem=OWN, z=point, pair=(data, neighbour))


def logistic(w, v, record):
    x, y = record
    score = y * (x @ w["w"] + w["b"])
    return jnp.logaddexp(0.0, -score) + v * score - v**2


OWN = jmm.Problem(jmm.saddle_operator(logistic),
                  project=lambda z: jax.tree.map(lambda x: jnp.clip(x, -0.1, 0.1), z))


@pytest.mark.slow
@pytest.mark.parametrize("sampling", rest_nightly([Poisson(rate=0.5), Full()], 1), ids=str)
def test_a_problem_and_a_pair_of_ones_own_are_attacked(sampling):
    hyper, mine = own(sampling=sampling)
    actual = audit.audit(KEY, sgda, hyper, DELTA, runs=6000, **mine)
    assert actual.pair == "own"
    assert not actual.violated
    assert actual.epsilon_lower > 0.2 * actual.epsilon_claimed
    assert actual.signal.attained > 0.6 * actual.signal.charged
    if sampling == Full():
        with mutant_aims.replace("integer noise", mutant_plants.quieter(0.5))():
            assert audit.audit(KEY, sgda, hyper, DELTA, runs=6000, **mine).violated


@pytest.mark.nightly
def test_extragradient_trees_and_groups_are_attacked_with_ones_own_pair_too():
    hyper, mine = own()
    more = jmm.extragradient.Hyper(query=hyper.query, iterations=2, step=hyper.step)
    actual = audit.audit(KEY, jmm.extragradient, more, DELTA, runs=2000, **mine)
    assert not actual.violated
    assert actual.signal.charged == pytest.approx(2 * math.sqrt(2) * math.hypot(1, 1), rel=2e-3)
    attack = stream_attack.tree(3)
    pair = tuple(np.asarray(attack.data[i]) for i in range(2))
    start = Saddle(jnp.zeros(1, jnp.float32), ())
    hyper = dataclasses.replace(attack.hyper, query=with_noise(attack.hyper.query, 1.0))
    actual = audit.audit(KEY, jmm.ftrl, hyper, DELTA, runs=2000, problem=stream_attack.GRADIENTS,
                         z=start, pair=pair)
    assert not actual.violated
    assert actual.signal.attained > 0.9 * actual.signal.charged
    attack = stream_attack.one_pass("gradient", 2)
    pair = tuple(jax.tree.map(lambda x, i=i: np.asarray(x[i]), attack.data) for i in range(2))
    hyper = dataclasses.replace(attack.hyper, query=with_noise(attack.hyper.query, 1.0))
    actual = audit.audit(KEY, jmm.group_oco, hyper, DELTA, runs=2000,
                         problem=stream_attack.READ_ONCE, z=start, pair=pair)
    assert not actual.violated
    assert actual.signal is None
    assert actual.epsilon_lower > 0


def test_pairs_that_make_no_sense_are_refused():
    hyper, mine = own()
    (x, y), _ = mine["pair"]
    for changes, message in (
            ({"problem": None}, "problem is None"), ({"z": None}, "z is None"),
            ({"pair": ((x, y), (x, y))}, "differs in 0 records"),
            ({"pair": ((x, y), (-x, y))}, "differs in 12 records"),
            ({"pair": ((x, y), (x[1:], y[1:]))}, "equal shapes"),
            ({"pair": ((x, y), {"x": x})}, "equal shapes"),
            ({"pair": (x, y, x)}, r"\(data, neighbour\)"), ({"pair": "worst"}, "problem and z")):
        with pytest.raises(ValueError, match=message):
            audit.audit(KEY, sgda, hyper, DELTA, **{**mine, **changes})
    with pytest.raises(ValueError, match="give problem"):
        audit.audit(KEY, jmm.ftrl, stream_attack.tree().hyper, DELTA)


# --- any path ---


def test_noise_that_leaves_of_a_path_share_is_seen_whatever_the_path_is_made_of():
    """Sums of two numbers that one draw hides tell nothing alone, and everything together."""
    rng = np.random.default_rng(10)
    noise = rng.normal(size=(2, 4000, 3))
    for path in (lambda x: {"a": x, "b": (x[:, 0], x[..., None])},
                 lambda x: Saddle(x, np.repeat(x[..., None], 200, 2))):
        one, two = (path(x) for x in noise)
        one = jax.tree.map(np.array, one)
        first = jax.tree.leaves(one)[0]
        first += 0.1  # a tenth of the noise, in one leaf alone
        scores = audit.linear(one, two, 2000)
        value = audit.lower_bound(*({"linear": x} for x in scores), DELTA)[0]
        assert value > 5
        assert audit.lower_bound({"x": first[:, 0]}, {"x": noise[1][:, 0]}, DELTA)[0] < 1


def test_a_statistic_fitted_to_chance_is_not_preferred():
    """Of many numbers without a difference, and one that tells: the one is chosen."""
    rng = np.random.default_rng(12)
    noise, telling = rng.normal(size=(2, 400, 2, 3000)), rng.normal(size=(2, 400))
    telling[0] += 4.0
    one, two = ({"linear": x, "x": y} for x, y in zip(audit.linear(*noise, 200), telling,
                                                      strict=True))
    value, name, _, _ = audit.lower_bound(one, two, DELTA)
    assert (name, value > 1) == ("x", True)


@pytest.mark.slow
def test_one_noise_for_all_losses_of_a_stream_is_refuted():
    attack = stream_attack.one_pass("loss")
    hyper = jmm.calibrate(attack.algorithm, attack.hyper, 1.0, DELTA)
    with mutant_aims.replace("single loss", mutant_plants.loss_of_round_0)():
        actual = stream_attack.audit(KEY, attack, hyper, DELTA, runs=5000)
    assert actual.epsilon_lower > 1.0
    assert actual.signal.shared > 0.5


# --- many numbers, many records ---


@pytest.mark.slow
def test_a_grid_of_small_radii_is_seen_by_whoever_knows_the_sum():
    """Radii from floats near 1, which are multiples of 2^-24, against radii of any size."""
    rng = np.random.default_rng(11)

    def noise(u):
        radius, angle = np.sqrt(-2 * np.log(u)), rng.uniform(0, 2 * np.pi, u.shape)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], 1)

    fine = rng.uniform(size=(100, 20_000))
    rough = noise(np.clip(np.round(fine * 2**24), 1, 2**24 - 1) / 2**24)
    for shown, grid in ((rough, True), (rough + 0.001, False), (noise(fine), False)):
        actual = wide_attack.coarse(shown, 24)
        assert (actual["radii on 2^-24"].mean() > 0.8) == grid
        assert (actual["all radii on 2^-24"].mean() > 0.8) == grid
        assert actual["multiples of 2^-8"].mean() < 0.01
    assert wide_attack.coarse(np.round(rough * 256) / 256, 24)["multiples of 2^-8"].min() == 1
    half = rough.astype(np.float16).astype(float)
    assert wide_attack.coarse(half, 24)["11 digits"].min() > 0.9
    assert wide_attack.coarse(rough, 24)["11 digits"].max() < 0.1
    both = np.concatenate([rough[:, :500], -rough[:, :500]], 1)
    assert wide_attack.coarse(both, 24)["equal"].min() > 0.45


def test_grids_are_looked_for_in_units_of_the_noise_as_it_is():
    """A float64 generator's radii are multiples of 2^-53 only if all its margin is divided by."""
    rng, d, unit = np.random.default_rng(0), 1000, 0.7
    fine = rng.uniform(size=(50, d // 2)) * 2.0 ** rng.uniform(-20, 0, (50, d // 2))
    angle = rng.uniform(0, 2 * np.pi, fine.shape)
    sums = rng.normal(size=(2, d)) * 2.0**-30
    for u, grid in ((np.ceil(fine * 2.0**53) * 2.0**-53, True), (fine, False)):
        radius = np.sqrt(-2 * np.log1p(-u))
        noise = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], 1)
        quiet = np.broadcast_to(sums, (50, 1, 2, d))
        noisy = quiet + unit * ROUNDING_MARGIN * noise[:, None, None]
        seen = audit.pairs.Rounds(noisy, quiet, ((d,),))
        one, two = wide_attack.coarse_scores([seen] * 2, unit, 53)
        assert (one["radii on 2^-53"].mean() > 0.9) == grid
        assert two["radii on 2^-53"].mean() < 0.3  # on the other data set


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "dtype"), rest_nightly([
    (1, jnp.float32), (5000, jnp.float32), (500, jnp.float64)], 2), ids=str)
def test_no_grid_in_the_noise_tells_neighbours_apart(dim, dtype):
    actual = wide_attack.grids(KEY, dim, dtype)
    assert actual.epsilon_lower <= actual.epsilon_claimed
    assert not actual.signal.violated
    assert actual.signal.high > 0.85 * actual.signal.charged  # records of length 0.9, few runs


@pytest.mark.slow
@pytest.mark.parametrize("power", [10, 18])
def test_one_record_of_many_moves_the_sum_by_no_more_than_is_charged(power):
    actual = wide_attack.moved(2**power, 1.1)
    assert 1.999 < actual.value <= actual.limit < 2.02


@pytest.mark.parametrize(("values", "message"), [
    ({"runs": 3}, "runs"), ({"pair": "best"}, "pair"), ({"confidence": 1.0}, "confidence"),
    ({"neighbours": "swap"}, "neighbours"), ({"delta": 0.0}, "delta"),
])
def test_audits_that_make_no_sense_are_refused(values, message):
    hyper = hyper_of(gda, Full(), 1, 1.0)
    with pytest.raises(ValueError, match=message):
        audit.audit(jax.random.key(0), gda, hyper, **{"delta": DELTA, **values})


# --- the benchmark ---


WIDE = [{"attack": "rounding", "case": "8 records", "measured": 1.5, "limit": 2.0,
         "violated": False, "note": "none"}]


@pytest.fixture
def few(monkeypatch):
    cases = tuple(c for c in benchmark.CASES if c.rounds == 1)
    monkeypatch.setattr(benchmark, "CASES", cases[:1])
    monkeypatch.setattr(benchmark, "EPSILONS", (1.0,))
    every = benchmark.modules()
    some = {name: every[name] for name in ("gda", "group_sgd")}
    monkeypatch.setattr(benchmark, "modules", lambda: some)
    monkeypatch.setattr(wide_attack, "everything", lambda quick: WIDE)
    monkeypatch.setattr(benchmark, "STREAMS", lambda: benchmark.stream_attack.attacks()[1:2])
    return monkeypatch


@pytest.mark.nightly
@pytest.mark.parametrize("number", [1, 3, 5])
def test_what_repeats_no_query_is_attacked_and_half_the_noise_is_caught(number):
    attack = stream_attack.attacks()[number]
    hyper = jmm.calibrate(attack.algorithm, attack.hyper, 4.0, DELTA)

    def attained(factor):
        run = dataclasses.replace(hyper, query=hyper.query.with_noise(factor))
        actual = stream_attack.audit(jax.random.key(7), attack, run, DELTA, runs=5000)
        assert not actual.violated  # what is claimed of less noise is more
        return actual.epsilon_lower

    assert 0.45 * 4.0 <= attained(1.0) <= 4.0 < attained(0.5)


@pytest.mark.slow
def test_every_case_of_the_benchmark_can_be_run():
    cases = [(module, case, hyper) for module in benchmark.modules().values()
             for case in benchmark.CASES
             if (hyper := benchmark.hyper_of(module, case)) is not None]
    assert len(cases) > 80
    for module, case, hyper in cases:
        made = module.mechanism(with_noise_of_all(hyper, 9.0))
        for neighbours in benchmark.relations(module, case, hyper):
            assert 0 < jmm.epsilon(made, DELTA, neighbours=neighbours) < math.inf


def test_the_benchmark_has_every_algorithm_and_every_sampling():
    assert {"sgda", "gda", "extragradient", "proximal", "group_sgd",
            "active_groups"} <= set(benchmark.modules())
    assert [attack.algorithm for attack in benchmark.STREAMS()] == [
        jmm.phased_erm, jmm.ftrl, jmm.group_oco, jmm.group_oco, jmm.phased_erm, jmm.ftrl]
    offered = {type(how) for how in SAMPLINGS.values()}
    assert {type(c.sampling) for c in benchmark.CASES} == offered
    assert {type(c.sampling) for c in benchmark.CASES if c.quick} == offered


def test_an_algorithm_that_no_attack_knows_is_named(monkeypatch):
    monkeypatch.setattr(benchmark, "STREAMS", lambda: benchmark.stream_attack.attacks()[1:2])
    with pytest.raises(LookupError, match=r"group_oco.*phased_erm"):
        benchmark.modules()


@pytest.mark.nightly
def test_the_quick_benchmark_passes_on_sound_code(monkeypatch, capsys):
    """One algorithm of `--quick --only claims`, with fewer runs; every night runs all of them."""
    sgda_alone = {"sgda": benchmark.modules()["sgda"]}
    monkeypatch.setattr(benchmark, "modules", lambda: sgda_alone)
    monkeypatch.setattr(benchmark, "STREAMS", lambda: [])
    assert benchmark.main(["--quick", "--only", "claims", "--runs", "5000"]) == 0
    cases = [case for case in benchmark.CASES if case.quick and case.clips == "equal"]
    assert capsys.readouterr().out.count("replace_one") == len(cases)


@pytest.mark.nightly
def test_the_benchmark_writes_rows_and_statements(few, tmp_path, capsys):
    table = tmp_path / "audit.md"
    assert benchmark.main(["--runs", "2000", "--json", str(tmp_path / "audit.json"),
                           "--markdown", str(table)]) == 0
    assert table.read_text().count("| replace_one |") == 3
    record = json.loads((tmp_path / "audit.json").read_text())
    assert set(record) == {"environment", "arguments", "seconds", "rows", "statements", "wide"}
    assert record["wide"] == WIDE
    assert len(record["rows"]) == len(record["statements"]) == 3
    for row, statement in zip(record["rows"], record["statements"], strict=True):
        assert {"algorithm", "mechanism", "epsilon_claimed", "epsilon_lower", "runs", "delta",
                "neighbours", "seconds"} <= set(row)
        assert row["epsilon_lower"] <= row["epsilon_claimed"] == statement["epsilon"]
    assert "full batch, 1 round " in capsys.readouterr().out


def test_a_violation_is_loud(few, capsys, monkeypatch):
    row = {"algorithm": "gda", "mechanism": "full batch", "neighbours": RO, "pair": "worst",
           "epsilon_claimed": 1.0, "epsilon_lower": 2.0, "share": 2.0, "runs": 9, "violated": True,
           "signal": None}
    monkeypatch.setattr(benchmark, "everything", lambda *_: ([row], [{}]))
    assert benchmark.main(["--quick"]) == 1
    assert "VIOLATED: gda" in capsys.readouterr().err
    monkeypatch.setattr(benchmark, "everything", lambda *_: ([], []))
    monkeypatch.setattr(wide_attack, "everything", lambda quick: [WIDE[0] | {"violated": True}])
    assert benchmark.main(["--quick"]) == 1
    assert "VIOLATED: rounding" in capsys.readouterr().err
    assert benchmark.main(["--quick", "--only", "claims"]) == 0


@pytest.mark.parametrize("runs", ["0", "x", "999"])
def test_too_few_runs_are_refused_in_one_line(runs, capsys):
    with pytest.raises(SystemExit) as stop:
        benchmark.main(["--runs", runs])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
