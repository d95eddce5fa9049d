"""Differences of operators behind anchors: what a record can move, the charge, slopes."""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.examples.methods import spider
from benchmarks.examples.methods.windows import (
    Difference,
    Windows,
    distance,
    release_difference,
    release_in_window,
)
from benchmarks.rates.variance import __main__ as variance
from benchmarks.rates.variance import auc as variance_auc
from benchmarks.rates.variance import tables as variance_tables
from jaxminimax import Saddle, sgda
from jaxminimax.mechanism.description import Kind
from jaxminimax.releases import release_keys
from jaxminimax.releases.reading import sample_of_release
from tests.helpers.lanes import rest_nightly
from tests.helpers.words import one_line

N, D, KEY = 12, 3, jax.random.key(5)
ROWS = tuple(np.random.default_rng(3).normal(size=(2, N, D)))
START = Saddle(np.full(D, 0.8), np.full(D, -0.5))
AHEAD = Saddle(np.full(D, 0.7), np.array([-0.4, -0.5, -0.2]))
BENT = jmm.saddle_operator(lambda w, v, x: jnp.sum(jnp.sin(w) * v * x[0] + w * x[1] - v**2 / 2))
PROBLEM = jmm.Problem(BENT)


def difference(z=0.0, lipschitz=2.0, **values):
    return Difference(**{"lipschitz": lipschitz, "noise_multiplier": z,
                                       "population": N,
                                       **values})


def windows(z=(0.0, 0.0), length=3, rounds=1, sampling=jmm.Full(), population=N, **values):
    anchor = jmm.Query(clip=Saddle(50.0, 50.0), noise_multiplier=Saddle(z[0], z[0]),
                       population=population, sampling=sampling, joint=True)
    return Windows(anchor=anchor, length=length, rounds=rounds, difference=difference(
        z[1], population=population, sampling=sampling, **values))


def hyper(rounds=7, **values):
    return spider.Hyper(query=windows(**values), step=Saddle(0.2, 0.1), iterations=rounds)


RELEASE = jax.jit(release_difference, static_argnames="problem")


def released(described, data=ROWS, z=AHEAD, before=START, problem=PROBLEM, spent=0):
    made = jmm.Repeat(query=described, times=4)
    return RELEASE(KEY, made, spent, problem, z, before, data)


def flat(z):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(z)])


# --- what is released ---


@pytest.mark.nightly
@pytest.mark.parametrize("sampling", [jmm.Full(), jmm.Poisson(rate=0.5)], ids=["full", "poisson"])
def test_it_is_the_sum_of_clipped_differences_over_one_sample(sampling):
    for lipschitz in (0.5, 2.0):  # clipped or nearly not
        described = difference(lipschitz=lipschitz, sampling=sampling)
        sample = sample_of_release(KEY, jmm.Repeat(query=described.quotient, times=4),
                                   jnp.int32(0))
        rows = np.arange(N) if sample.rows is None else np.asarray(sample.rows)[
            np.asarray(sample.valid)]
        length = lipschitz * np.linalg.norm(flat(AHEAD) - flat(START))
        total = 0.0
        for i in rows:
            x = tuple(a[i] for a in ROWS)
            move = flat(BENT(AHEAD, x)) - flat(BENT(START, x))
            total += move * min(1.0, length / np.linalg.norm(move))
        actual = flat(released(described))
        np.testing.assert_allclose(actual, total / jmm.mechanism.batch_size(described.quotient),
                                   rtol=1e-9)


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", rest_nightly(["ghost", "vmap"], 1))
def test_without_noise_estimates_are_the_operator_and_runs_those_of_descent_ascent(strategy):
    problem = PROBLEM._replace(operator=jmm.types.with_strategy(BENT, strategy, 5),
                               public=lambda z: Saddle(0.3 * z.w, 0.1 * z.v + 0.2))
    made = hyper(lipschitz=1e3)
    plain = sgda.Hyper(query=made.query.anchor, step=made.step, iterations=7)
    one, other = (jmm.run(KEY, START, ROWS, h, a, problem)[0]
                  for h, a in ((made, spider), (plain, sgda)))
    chex.assert_trees_all_close(one.z, other.z, rtol=1e-11)
    chex.assert_trees_all_close(one.average, other.average, rtol=1e-11)
    mean = jax.tree.map(lambda x: x.mean(0), jax.vmap(BENT, (None, 0))(one.before, ROWS))
    chex.assert_trees_all_close(one.estimate, mean, rtol=1e-11)


def test_a_record_moves_it_by_twice_the_clip_and_the_noise_is_of_the_same_length():
    """Fails for a lifted clip, for halved noise, and for a length that depends on the data."""
    big, wide = 10.0 ** np.arange(-20, 20, 4), 400
    z = Saddle(np.linspace(0, 1, wide), np.zeros(2))
    before = Saddle(z.w + 0.25, z.v)
    problem = jmm.Problem(lambda z, x: Saddle(x * z.w, 0 * z.v))
    length = 2.0 * 0.25 * math.sqrt(wide)
    noise = []
    for size in (*big, np.inf, np.nan):
        pair = np.zeros((2, N, 1))
        pair[:, 0] = [[size], [-size]]
        noisy = [released(difference(3.0), x, z, before, problem) for x in pair]
        still = [released(difference(0.0), x, z, before, problem) for x in pair]
        for answers in (noisy, still):
            moved = np.linalg.norm(flat(answers[0]) - flat(answers[1]))
            assert moved <= 2 * length / N * (1 + 1e-3)
            assert moved > 1.99 * length / N or size < 10 or not np.isfinite(size)
        noise += [flat(a) - flat(b) for a, b in zip(noisy, still, strict=True)]
    for other in noise[1:]:
        np.testing.assert_allclose(other, noise[0], atol=1e-3 * 3.0 * length / N)
    assert np.std(noise[0]) == pytest.approx(3.0 * length / N, rel=4 / math.sqrt(2 * wide))


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_points_that_are_equal_close_or_not_finite(dtype):
    problem = jmm.Problem(lambda z, x: Saddle(x[0] / z.w, x[1] * z.v))
    rows = tuple(x.astype(dtype) for x in ROWS)
    wild = tuple(x * np.where(np.arange(N) % 3, 1e30, np.nan)[:, None].astype(dtype) for x in rows)
    zero = Saddle(np.zeros(D, dtype), np.zeros(D, dtype))
    for z in (START, zero):
        z = jax.tree.map(lambda x: np.asarray(x, dtype), z)
        for data in (rows, wild):
            assert np.all(flat(released(difference(3.0), data, z, z, problem)) == 0)
    tiny = float(np.finfo(dtype).tiny)
    for step in (tiny / 8, tiny, 1e-30, 1e-3):
        near = Saddle(zero.w, np.full(D, step, dtype))
        for data in (rows, wild):
            actual = flat(released(difference(0.0), data, near, zero, problem))
            assert np.linalg.norm(actual / step) <= 2.0 * math.sqrt(D) * (1 + 1e-5)
    for far in (np.inf, -np.inf, np.nan):
        away = zero._replace(w=np.array([0, far, 1], dtype))
        for data in (rows, wild):
            for points in ((away, zero), (zero, away), (away, away)):
                assert not np.isfinite(flat(released(difference(3.0), data, *points, problem))
                                       ).any()
    huge = zero._replace(w=np.full(D, np.finfo(dtype).max / 4, dtype))
    assert np.isfinite(distance(jax.tree.map(jnp.asarray, huge), zero))


@pytest.mark.nightly
def test_both_points_share_the_key_of_a_record():
    def drawing(z, x, key):
        g = BENT(z, x)
        return Saddle(g.w + 8.0 * jax.random.rademacher(key, (D,), float), g.v)

    random = jmm.Problem(drawing, random=True)
    for sampling in (jmm.Full(), jmm.FixedSize(batch=5)):
        described = difference(0.5, sampling=sampling)
        chex.assert_trees_all_close(released(described, problem=random), released(described),
                                    rtol=1e-9, atol=1e-9)
    words = release_keys.with_key_data((), jnp.arange(N), release_keys.Keys(
        KEY, Kind.MEAN, 0).operators())[1]
    assert len(np.unique(np.asarray(words), axis=0)) == N


# --- windows, and what they are charged ---


@pytest.mark.slow
def test_the_door_opens_a_window_by_the_number_of_the_release_and_ends_with_the_budget():
    made = windows((1.0, 2.0), rounds=7)
    released_at = jax.jit(lambda k: release_in_window(KEY, made, k, PROBLEM, AHEAD, START, ROWS))
    for k in range(9):
        g, opens = released_at(jnp.int32(k))
        assert bool(opens) == (k % 3 == 0)
        assert np.isfinite(flat(g)).all() == (k < 7)
        if k == 1:
            chex.assert_trees_all_close(g, released(made.difference, spent=1), rtol=1e-12)
        if k == 3:
            alone = jax.jit(lambda rows: jmm.release(
                KEY, jmm.Repeat(query=made.anchor, times=7), 3, PROBLEM, AHEAD, rows))(ROWS)
            chex.assert_trees_all_close(g, alone, rtol=1e-12)


@pytest.mark.parametrize(("length", "in_turn"), [(10, 0.778), (5, 0.719)])
def test_every_stop_is_charged_what_was_released(length, in_turn):
    """Full batch: mu^2 is the sum of 4 / z^2; taking turns would charge less at the tenth."""
    rounds, share = 100, 0.05
    opens = np.arange(rounds) % length == 0
    z = np.sqrt(np.where(opens, opens.sum() / share, (~opens).sum() / (1 - share)))
    made = windows((z[0], z[1]), length, rounds, population=1000)
    window = (jmm.Repeat(query=made.anchor, times=1),
              jmm.Repeat(query=made.difference, times=length - 1))
    each = jmm.Sequence(parts=window * (rounds // length))
    for stop in range(1, rounds + 1):
        part = made.truncated(stop)
        true, charged = np.sum(z[:stop] ** -2.0), part.charges("replace_one")[0]
        assert true <= charged.gaussian <= 1.002 * true
        other = each.truncated(stop).charges("replace_one")[0]
        assert other.gaussian == pytest.approx(charged.gaussian, rel=1e-12)
        assert part.releases() == stop
    turns = jmm.Sequence(parts=made.flattened(), in_turn=True).truncated(10)
    short = turns.charges("replace_one")[0].gaussian / np.sum(z[:10] ** -2.0)
    assert short == pytest.approx(in_turn, abs=2e-3)


@pytest.mark.parametrize("sampling", [jmm.Poisson(rate=0.1), jmm.FixedSize(batch=100)],
                         ids=["poisson", "fixed"])
def test_it_is_charged_as_queries_of_its_two_multipliers(sampling):
    made = windows((9.0, 4.0), 4, 10, sampling, population=1000)
    query = dataclasses.replace(made.anchor, noise_multiplier=Saddle(4.0, 4.0))
    both = jmm.Sequence(parts=(jmm.Repeat(query=made.anchor, times=3),
                               jmm.Repeat(query=query, times=7)))
    assert jmm.epsilon(made, 1e-6) == jmm.epsilon(both, 1e-6)
    assert jmm.epsilon(made, 1e-6, people=2) == jmm.epsilon(both, 1e-6, people=2)
    assert jmm.epsilon(windows((9.0, 1.0), 1, 3, sampling, population=1000), 1e-6) == (
        jmm.epsilon(both.parts[0], 1e-6))
    hyper = spider.Hyper(query=made, step=Saddle(1.0, 1.0), iterations=10)
    said = one_line(jmm.statement(spider, hyper, delta=1e-6))
    for words in ("3 release(s) on", "7 release(s) of differences of operators at two released "
                  "points, clipped at 2 times the points' distance", "differences 4"):
        assert said.count(words) == 1


@pytest.mark.parametrize(("change", "message"), [
    (dict(length=0), "length must be an integer, at least 1"),
    (dict(anchor=jmm.Query(clip=Saddle(1.0, None), population=N)), "clip norm for both players"),
    (dict(anchor=windows(population=N + 1).anchor), "they read the same records"),
    (dict(anchor=windows(sampling=jmm.Disjoint(batch=3)).anchor), "drawn anew"),
    (dict(anchor=dataclasses.replace(windows().anchor, adaptive=jmm.AdaptiveClip())),
     "clip norms stay"),
    (dict(difference=difference(sampling=jmm.Disjoint(batch=3))), "drawn anew"),
    (dict(difference=difference(lipschitz=0.0)), "lipschitz must lie in"),
    (dict(difference=difference(z=1e-5)), "at least 1e-4"),
    (dict(difference=windows().anchor), "a Query, and a difference, a Difference"),
])
def test_windows_that_are_none_are_refused_before_data_are_read(change, message):
    made = dataclasses.replace(hyper(z=(1.0, 1.0)).query, **change)
    own = spider.Hyper(query=made, step=Saddle(0.1, 0.1), iterations=4)
    for call in (lambda: jmm.epsilon(spider.mechanism(own), 1e-6),
                 lambda: spider.init(START, own),
                 lambda: release_in_window(KEY, made, 0, PROBLEM, AHEAD, START, None)):
        with pytest.raises(ValueError, match=message):
            call()


def test_other_descriptions_and_points_are_refused():
    once = jmm.Repeat(query=difference(1.0), times=1)
    with pytest.raises(ValueError, match="release answers a Query, got Difference"):
        jmm.release(KEY, once, 0, PROBLEM, START, ROWS)
    with pytest.raises(TypeError, match="answers a Repeat of a Difference"):
        release_difference(KEY, jmm.Repeat(query=windows().anchor, times=1), 0, PROBLEM, AHEAD,
                           START, ROWS)
    with pytest.raises(TypeError, match=r"before\.w"):
        release_difference(KEY, once, 0, PROBLEM, AHEAD, START._replace(w=np.zeros(1)), ROWS)
    for described, message in ((difference(1.0, lipschitz=jnp.ones(2)), "must be one number"),
                               (difference(None), "noise_multiplier is not set")):
        with pytest.raises(ValueError, match=message):
            released(described)


@pytest.mark.nightly
def test_it_goes_through_every_driver():
    made = hyper(6, z=(1.0, 2.0))
    full = jmm.run(KEY, START, ROWS, made, spider, PROBLEM)[0]
    keys = jax.random.split(KEY, (2, 1)).at[0, 0].set(KEY)
    states = jmm.sweep(keys, START, ROWS, jmm.stack([made, hyper(6, z=(2.0, 2.0))]), spider,
                       PROBLEM, progress=False)[0]
    chex.assert_trees_all_close(jax.tree.map(lambda x: x[0, 0], states), full, rtol=1e-12)
    how = dict(delta=1e-6, progress=False, every=2)
    done = jmm.fit(KEY, START, ROWS, made, spider, PROBLEM, **how)
    chex.assert_trees_all_close(done.state, full, rtol=1e-12)
    meshed = jmm.fit(KEY, START, ROWS, made, spider, PROBLEM, **how,
                     mesh=jax.make_mesh((1,), ("data",)))
    chex.assert_trees_all_close(meshed.state, full, rtol=1e-10)
    with pytest.raises(ValueError, match=r"HostData|host"):
        jmm.fit(KEY, START, jmm.placement.HostData(ROWS), made, spider, PROBLEM, **how)


# --- the benchmark ---


def test_slopes_are_those_of_power_laws_and_intervals_hold_them():
    rng = np.random.default_rng(0)
    rows = [dict(n=n, runs=list(n**-0.75 * rng.lognormal(0, 0.1, 20)), game="g", algorithm="a",
                 norm=1.0, error=0.1) for n in (500, 2000, 8000, 32_000)]
    centre, low, high = variance_tables.slope(rows)
    assert low < 0.75 < high
    assert high - low < 0.1
    assert f"{centre:.2f}" in variance_tables.games(rows)[1][0][-2]


@pytest.mark.nightly
def test_two_records_stand_for_all_of_them():
    """Without noise the same run, and noise of the same deviation."""
    made = variance_auc.windows(100, 400, 3.0, 2.0, 10, 0.5)
    short = variance.on_two_records(made, 400)
    for one, other in ((made.anchor, short.anchor), (made.difference.quotient,
                                                     short.difference.quotient)):
        each = [jax.tree.leaves(x.noise_multiplier)[0] / jmm.mechanism.batch_size(x)
                for x in (one, other)]
        assert each[0] == pytest.approx(float(each[1]), rel=1e-6)
    problem, gradient, start, bound, lipschitz = variance.game("sines")
    many = jnp.tile(variance.SHARES, 200)
    ends = [jmm.run(KEY, start, rows, spider.Hyper(query=windows(
        population=len(rows), lipschitz=lipschitz), step=Saddle(0.2, 0.5), iterations=5),
        spider, problem)[0].z for rows in (many, variance.SHARES)]
    chex.assert_trees_all_close(*ends, rtol=1e-5)
    phi = lambda w: jnp.sum((jnp.arange(1, 51) ** -1.0 * jnp.sin(w)) ** 2) / 2  # noqa: E731
    np.testing.assert_allclose(gradient(start.w), jax.grad(phi)(start.w), rtol=1e-5)
    assert bound > 0
