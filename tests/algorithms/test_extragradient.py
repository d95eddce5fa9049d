"""Extragradient: the rounds of the paper, 2T releases, schedules, and the saddle without noise."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import (
    Disjoint,
    FixedSize,
    Full,
    Poisson,
    Problem,
    Query,
    Repeat,
    Saddle,
    extragradient,
    problems,
    sgda,
)
from jaxminimax.accounting.gaussian import epsilon as gaussian_epsilon
from jaxminimax.algorithms import planning

RUN = jax.jit(jmm.run, static_argnames=("algorithm", "problem", "observe"))
ZERO = Saddle(0.0, 0.0)
SAMPLINGS = (Full(), Poisson(rate=0.5), FixedSize(batch=3), Disjoint(batch=2))


def hyper_of(query, step=0.3, rounds=5):
    return extragradient.Hyper(query=query, step=Saddle(step, step), iterations=rounds)


def game():
    """A bilinear game on balls with its saddle inside: A v = -b, A^T w = c."""
    rng = np.random.default_rng(0)
    u, _, vt = np.linalg.svd(rng.normal(size=(3, 3)))
    a = u @ np.diag([1.0, 0.75, 0.5]) @ vt
    w, v = (x / np.linalg.norm(x) / 2 for x in rng.normal(size=(2, 3)))
    bounded = problems.bounded_bilinear(coupling=2.0, offset=2.0, radius=Saddle(1.0, 1.0))
    data = tuple(jnp.asarray(x)[None] for x in (a, -a @ v, a.T @ w))
    return bounded.problem, data, Saddle(jnp.asarray(w), jnp.asarray(v))


START = Saddle(jnp.zeros(3), jnp.zeros(3))


# --- without noise ---


@pytest.mark.slow
def test_a_round_on_the_disc_is_the_one_worked_out_by_hand():
    problem = problems.variational_inequality(
        lambda u, x: jnp.array([u[1], -u[0]]), problems.ball(1.0))
    query = Query(clip=Saddle(5.0, None), noise_multiplier=Saddle(0.0, None), population=4)
    hyper = hyper_of(query, 0.5, 1)
    state = extragradient.init(Saddle(jnp.array([0.6, 0.0]), ()), hyper)
    state = jax.jit(lambda state: extragradient.update(
        jax.random.key(0), state, jnp.zeros(4), hyper, problem))(state)
    np.testing.assert_allclose(state.ahead.w, [0.6, 0.3], rtol=1e-12)
    np.testing.assert_allclose(state.z.w, [0.45, 0.3], rtol=1e-12)
    np.testing.assert_array_equal(state.average.w, state.ahead.w)
    assert int(state.spent) == 2


@pytest.mark.slow
def test_the_output_is_the_mean_of_the_points_ahead_weighted_by_the_step():
    problem, data, _ = game()
    query = Query(clip=Saddle(9.0, 9.0), noise_multiplier=ZERO, population=1)
    step = jmm.schedules.Decay(scale=0.5, power=0.5)
    hyper = extragradient.Hyper(query=query, step=Saddle(step, step), iterations=6)
    state, ahead = RUN(jax.random.key(0), START, data, hyper, extragradient, problem,
                       lambda state: state.ahead)
    weight = 0.5 / np.sqrt(np.arange(1, 7))
    expected = (weight[:, None] * np.asarray(ahead.w)).sum(0) / weight.sum()
    np.testing.assert_allclose(state.average.w, expected, rtol=1e-12)


@pytest.mark.slow
def test_public_terms_are_taken_at_both_points():
    problem = Problem(operator=lambda z, x: jax.tree.map(jnp.zeros_like, z), public=lambda z: z)
    query = Query(clip=Saddle(1.0, 1.0), noise_multiplier=ZERO, population=1)
    hyper = hyper_of(query, 0.3, 1)
    state = extragradient.init(Saddle(jnp.ones(2), jnp.ones(1)), hyper)
    state = jax.jit(lambda state: extragradient.update(
        jax.random.key(0), state, jnp.zeros(1), hyper, problem))(state)
    np.testing.assert_allclose(state.ahead.w, 1 - 0.3, rtol=1e-12)
    np.testing.assert_allclose(state.z.w, 1 - 0.3 * 0.7, rtol=1e-12)


def gaps(algorithm, rounds, step, average=True):
    problem, data, _ = game()
    query = Query(clip=Saddle(9.0, 9.0), noise_multiplier=ZERO, population=1)
    hyper = algorithm.Hyper(query=query, step=Saddle(step, step), iterations=rounds)
    state, _ = RUN(jax.random.key(0), START, data, hyper, algorithm, problem)
    z = state.average if average else state.z
    return float(jax.jit(lambda z: jmm.metrics.strong_gap(problem, z, data))(z))


@pytest.mark.nightly
def test_without_noise_the_gap_falls_at_the_proven_rate():
    """D^2 / (step T), with D^2 / 2 = 4 the squared distance of the farthest points of W."""
    step = 1 / (math.sqrt(3) * 1.0)
    actual = np.array([gaps(extragradient, t, step) for t in (10, 1000)])
    rounds = np.array([10, 1000])
    assert np.all(actual <= 8 / (step * rounds))
    assert actual[-1] < 2e-3


@pytest.mark.nightly
def test_without_noise_the_last_point_converges_where_descent_ascent_circles():
    problem, data, saddle = game()
    assert gaps(extragradient, 400, 0.5, average=False) < 1e-5
    start_gap = float(jmm.metrics.strong_gap(problem, START, data))
    assert gaps(sgda, 400, 0.5, average=False) > start_gap
    assert float(jmm.metrics.strong_gap(problem, saddle, data)) < 1e-12


# --- releases ---


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda x: type(x).__name__)
def test_both_releases_of_every_round_are_charged(sampling):
    query = Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(3.0, 3.0), sampling=sampling,
                  population=40)
    made = extragradient.mechanism(hyper_of(query, rounds=7))
    assert made == Repeat(query=query, times=14)
    assert jmm.epsilon(made, 1e-5, spent=6) == jmm.epsilon(Repeat(query=query, times=6), 1e-5)


@functools.cache
def answers(sampling, rounds=3, n=12):
    """What was released in one run: the operator reads records, and no noise hides them."""
    problem = Problem(operator=lambda z, x: Saddle(x, ()))
    query = Query(clip=Saddle(9.0, None), noise_multiplier=Saddle(0.0, None), sampling=sampling,
                  population=n)
    hyper = hyper_of(query, 1.0, rounds)

    def observe(state):
        return state.ahead.w, state.z.w

    _, (ahead, z) = RUN(jax.random.key(3), Saddle(jnp.zeros(n), ()), jnp.eye(n), hyper,
                        extragradient, problem, observe)
    before = np.concatenate([np.zeros((1, n)), z[:-1]])
    size = jmm.mechanism.batch_size(query)
    return np.round(np.stack([before - ahead, before - z], 1) * size).reshape(2 * rounds, n)


@pytest.mark.slow
def test_one_pass_reads_every_record_at_most_once():
    read = answers(Disjoint(batch=2))
    np.testing.assert_array_equal(read.sum(0), 1)
    np.testing.assert_array_equal(read.sum(1), 2)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Poisson(rate=0.5), FixedSize(batch=1)], ids=str)
def test_the_two_releases_of_a_round_have_samples_of_their_own(sampling):
    read = answers(sampling, rounds=20)
    equal = np.mean([np.array_equal(*pair) for pair in read.reshape(20, 2, -1)])
    assert equal < 0.4
    if isinstance(sampling, FixedSize):
        np.testing.assert_array_equal(read.sum(1), sampling.batch)


@pytest.mark.slow
def test_the_two_releases_of_a_round_have_noise_of_their_own():
    problem = Problem(operator=lambda z, x: Saddle(0 * z.w, ()))
    query = Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=1)
    hyper = hyper_of(query, 1.0, 1)
    state = extragradient.init(Saddle(jnp.zeros(20_000), ()), hyper)
    state = jax.jit(extragradient.update, static_argnames="problem")(
        jax.random.key(0), state, jnp.zeros(1), hyper, problem)
    one, two = np.asarray(state.ahead.w), np.asarray(state.z.w)
    assert abs(one.std() - 1) < 0.03
    assert abs(two.std() - 1) < 0.03
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.04


@pytest.mark.usefixtures("real_noise")
def test_a_whole_pass_is_one_gaussian_and_a_full_batch_run_is_two_a_round():
    z = 7.461263269632886  # 2 z_1 at (1, 1e-5)
    clip, noise = Saddle(1.0, None), Saddle(z, None)
    one = Query(clip=clip, noise_multiplier=noise, sampling=Disjoint(batch=11), population=1000)
    assert jmm.epsilon(extragradient.mechanism(hyper_of(one, rounds=45)), 1e-5) == (
        pytest.approx(1.0, rel=1e-6))
    for rounds, expected in ((10 // 2, None), (10, 16.6839), (100, 52.7591), (1000, 166.8389)):
        full = Query(clip=clip, population=1000)
        hyper = jmm.calibrate(extragradient, hyper_of(full, rounds=rounds), 1.0, 1e-5)
        made = hyper.query.noise_multiplier.w / 2
        assert made == pytest.approx(expected or math.sqrt(10) * 3.7306316, rel=1e-5)
        assert gaussian_epsilon(math.sqrt(2 * rounds) / made, 1e-5) == pytest.approx(1, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "epsilon", "delta", "expected"), [
    (30, 0.5, 1e-5, 10.3324), (30, 1.0, 1e-5, 5.6638), (30, 4.0, 1e-5, 1.9186),
    (30, 1.0, 1e-6, 6.3629), (100, 1.0, 1e-5, 5.6730), (100, 2.0, 1e-5, 3.2181)])
def test_sampled_extragradient_needs_the_noise_of_the_reference_table(n, epsilon, delta, expected):
    query = Query(clip=Saddle(1.0, None), sampling=FixedSize(batch=1), population=n)
    hyper = jmm.calibrate(extragradient, hyper_of(query, rounds=n * n), epsilon, delta)
    assert hyper.query.noise_multiplier.w / 2 == pytest.approx(expected, rel=2e-3)


# --- schedules ---

NUMBERS = dict(population=1000, dim=10, bound=1.0, smooth=1.0, diameter=2.0)
TARGET = dict(epsilon=1.0, delta=1e-5)


def scheduled(make, epsilon=1.0, **numbers):
    """A schedule, of a target or of the noise multiplier of one release that meets it."""
    target = dict(TARGET, epsilon=epsilon)
    if make is not extragradient.sampled:
        target = dict(multiplier=2 * planning.gaussian_multiplier(**target))
    return make(**{**NUMBERS, **numbers}, **target)


def test_single_records_are_theorem_4s():
    with pytest.raises(ValueError, match="at most 32767 for n"):
        scheduled(extragradient.sampled, population=32_768)
    many = scheduled(extragradient.sampled, population=100)
    assert (many.batch, many.iterations) == (1, 10_000)
    assert many.step == pytest.approx(9.319812e-4, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_one_pass_has_the_batch_of_the_smallest_bound(epsilon):
    made = scheduled(extragradient.single_pass, population=20_000, epsilon=epsilon)
    assert made.iterations == 20_000 // (2 * made.batch)

    def bound(batch, step):  # for the noise that a calibrated query has
        query = Query(clip=Saddle(1.0, 1.0), joint=True, sampling=Disjoint(batch=batch),
                      population=20_000)
        rounds = 20_000 // (2 * batch)
        z = jmm.calibrate(extragradient, hyper_of(query, rounds=rounds), epsilon,
                          1e-5).query.noise_multiplier.w
        variance = 1 / batch + 10 * (z / batch) ** 2
        return (4 / (2 * step * rounds) + 1.25 * step * variance
                + math.sqrt(2) * math.sqrt(variance / rounds))

    assert bound(made.batch, made.step) == pytest.approx(made.gap_bound, rel=1e-3)
    for batch, step in ((made.batch // 2, made.step), (2 * made.batch, made.step),
                        (made.batch, made.step / 2)):
        assert bound(batch, step) > made.gap_bound


def test_full_batches_take_few_rounds_of_one_total_length():
    """The path is as long as the noise or the sample allows, and no round stretches it."""
    few = scheduled(extragradient.full_batch, epsilon=0.5)
    many = scheduled(extragradient.full_batch, population=4000)
    for made, longest in ((few, math.sqrt(1000)), (many, math.sqrt(4000))):
        length = made.iterations * made.step
        assert length <= longest
        assert made.iterations == math.ceil(length**2)
    assert many.iterations * many.step == pytest.approx(math.sqrt(4000))
    assert few.iterations * few.step < math.sqrt(1000)


@pytest.mark.parametrize("make", [extragradient.single_pass, extragradient.sampled,
                                  extragradient.full_batch])
@pytest.mark.parametrize("change", [{}, dict(population=1), dict(population=2, epsilon=1e-3),
                                    dict(smooth=1e4), dict(smooth=1e-4, population=3),
                                    dict(epsilon=100.0, dim=1)], ids=str)
def test_schedules_can_be_run(make, change):
    """Whole numbers, one round at least, a step within its cap, no more records than exist."""
    numbers = {**NUMBERS, **change}
    made = scheduled(make, **change)
    assert isinstance(made.batch, int)
    assert isinstance(made.iterations, int)
    assert made.iterations >= 1
    assert 1 <= made.batch <= numbers["population"]
    assert 0 < made.step <= 1 / (math.sqrt(3) * numbers["smooth"]) * (1 + 1e-12)


@pytest.mark.parametrize(("change", "message"), [
    (dict(epsilon=0.0), "epsilon must lie in"), (dict(delta=1.0), "delta must lie in"),
    (dict(dim=0), "dim must be an integer"), (dict(bound=math.nan), "bound must lie in")])
def test_a_plan_of_bad_numbers_is_refused(change, message):
    for algorithm, ways in ((extragradient, ("one", "many", "full")),
                            (jmm.proximal, ("one", "many"))):
        for passes in ways:
            with pytest.raises(ValueError, match=message):
                jmm.plan(algorithm, passes=passes, **{**NUMBERS, **TARGET, **change})
