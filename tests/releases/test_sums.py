"""Clipped sums: what is released tells neighbouring data sets apart by no more than was charged."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from benchmarks.privacy.narrow import Narrow
from jaxminimax import (
    Disjoint,
    FixedSize,
    Full,
    Poisson,
    Problem,
    Query,
    Repeat,
    Saddle,
    gda,
    saddle_operator,
    sgda,
)
from jaxminimax.accounting import effective_noise_multiplier
from jaxminimax.drivers.long_runs import Supply
from jaxminimax.gradients import clipping, summation
from jaxminimax.mechanism import batch_size, overflow_probability
from jaxminimax.placement import HostData
from jaxminimax.releases import noisy_sums
from jaxminimax.releases.reading import sample_of_release
from jaxminimax.releases.sums import release
from jaxminimax.types import with_strategy

SIGMAS = 4.5
N = 8
CLIP, NOISE = Saddle(0.3, 2.0), Saddle(1.5, 0.8)
SAMPLINGS = (Full(), Poisson(rate=0.5), Disjoint(batch=3))
samplings = pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda x: type(x).__name__)


KEYS = 24


def linear(w, v, x):
    """<w, x.w> - <v, x.v>, whose saddle operator is the example itself."""
    return jnp.sum(w * x.w) - jnp.sum(v * x.v)


def scaled(z, x):
    return jax.tree.map(lambda a: a * x.astype(a.dtype), z)


def only_w(z, x):
    return Saddle(x.w, None)


ITSELF = Problem(saddle_operator(linear))
SCALED, ONLY_W = Problem(scaled), Problem(only_w)
THEMSELVES = Problem(lambda z, x: x)  # of the records' type, whatever the point's is


def query(sampling=SAMPLINGS[0], population=N, clip=CLIP, noise=NOISE):
    return Query(clip=clip, noise_multiplier=noise, sampling=sampling, population=population)


def origin(data):
    return jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), data)


def split(seed=0, count=KEYS):
    return jax.random.split(jax.random.key(seed), count)


def same(seed=0, count=KEYS):
    return jnp.broadcast_to(jax.random.key(seed), count)


@functools.partial(jax.jit, static_argnames="problem")
def _opened(keys, spent, q, data, z, times, problem):
    return jax.lax.map(lambda x: release(
        x[0], Repeat(query=q, times=times), x[1], problem, z, data), (keys, spent))


def opened(q, data, keys=None, spent=0, times=10**6, problem=ITSELF, z=None):
    """Releases, one for each key and number of releases already made; at the origin."""
    keys = split() if keys is None else keys
    spent = jnp.asarray(np.broadcast_to(spent, len(keys)), jnp.int32)
    z = origin(data) if z is None else z
    return jax.tree.map(np.asarray, _opened(keys, spent, q, data, z, times, problem))


@pytest.fixture
def bug(monkeypatch):
    """To plant a bug: what was compiled before does not hide it, nor does it survive."""
    _opened.clear_cache()
    yield monkeypatch
    _opened.clear_cache()


@pytest.mark.slow
def test_records_of_float32_are_released_at_a_point_of_float64():
    data = jax.tree.map(lambda a: a.astype(np.float32), records(0))
    point = jax.tree.map(lambda a: np.zeros(a.shape[1:]), data)
    # one key, one noise: only the rounding to the grid may differ
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
                 opened(query(), data), opened(query(), data, problem=THEMSELVES, z=point))


# --- neighbouring data sets ---


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _moves(algorithm, sampling, strategy, keys, data):
    shared = dict(query=query(sampling), iterations=3)
    problem = ITSELF._replace(operator=with_strategy(ITSELF.operator, strategy, 3))
    hyper = (gda.Hyper(modulus=1.0, **shared) if algorithm is gda
             else sgda.Hyper(step=Saddle(1.0, 1.0), **shared))
    state = algorithm.init(origin(data), hyper)
    return jax.lax.map(lambda key: jax.tree.map(
        jnp.negative, algorithm.update(key, state, data, hyper, problem).z), keys)


def charged(q, neighbours="replace_one"):
    """The noise multiplier that is charged: rounding to the grid is part of the distance."""
    return Repeat(query=q, times=1).effective_noise_multiplier(neighbours)


def records(seed):
    rng = np.random.default_rng(seed)
    return Saddle(rng.normal(size=(N, 3)), rng.normal(size=(N, 2)))


def with_record(data, i, value):
    """`data` with record i replaced: by one number, or by the record i of `value`."""
    value = value if isinstance(value, Saddle) else Saddle(value, value)
    return Saddle(*(np.where((np.arange(N) == i)[:, None], y, x)
                    for x, y in zip(data, value, strict=True)))


def distances(moves, sampling, data, other):
    """Between releases with equal keys, in units of the noise: `[keys]`."""
    squares = np.zeros(KEYS)
    for x, y, clip, z in zip(moves(data), moves(other), CLIP, NOISE, strict=True):
        unit = clip * z / batch_size(query(sampling))
        squares += np.sum(((np.asarray(x) - np.asarray(y)) / unit) ** 2, 1)
    return np.sqrt(squares)


# every strategy, every sampling and both algorithms
RELEASES = [*((sgda, SAMPLINGS[0], strategy) for strategy in clipping.STRATEGIES),
         (sgda, SAMPLINGS[1], "vmap"), (sgda, SAMPLINGS[1], "ghost"),
         (sgda, SAMPLINGS[2], "microbatch"), (gda, SAMPLINGS[0], "vmap")]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "sampling", "strategy"), RELEASES, ids=[
    f"{a.__name__.split('.')[-1]}-{type(s).__name__}-{how}" for a, s, how in RELEASES])
@pytest.mark.optimised("sgda-Poisson-vmap", "sgda-Full-ghost")
def test_equal_keys_leave_only_the_sensitivity(algorithm, sampling, strategy):
    """2 / z_eff for a replaced record and 1 / z_eff for an absent one, attained and not passed."""
    def moves(data):
        return _moves(algorithm, sampling, strategy, split(), data)

    bound = 1 / charged(query(sampling), "add_or_remove_one")
    assert bound < 1.002 / effective_noise_multiplier(query(sampling))
    data, i = records(1), 1
    giant = with_record(data, i, 1e6)
    for value in (-1e6, -1e300, 1.0, 1e-3):
        assert distances(moves, sampling, giant, with_record(data, i, value)).max() <= 2 * bound
    absent = [distances(moves, sampling, giant, with_record(data, i, value))
              for value in (np.nan, np.inf, 0.0)]
    assert np.max(absent) <= bound
    assert np.min(np.max(absent, 1)) > 0.998 * bound
    replaced = distances(moves, sampling, giant, with_record(data, i, -1e6))
    assert replaced.max() > 0.998 * 2 * bound
    if isinstance(sampling, Poisson):  # without the record in the sample there is no trace of it
        assert replaced.min() == 0
        assert 0 < (replaced > 0).sum() < KEYS


@samplings
def test_any_two_neighbours_are_within_the_sensitivity(sampling):
    """Random records of random size, at every place."""
    bound = 2 / charged(query(sampling))
    for i in range(N):
        size = 10.0 ** np.random.default_rng(i).uniform(-3, 3)
        data, fresh = records(2 * i), records(2 * i + 1)
        other = with_record(data, i, Saddle(fresh.w * size, fresh.v * size))
        moved = distances(lambda x: _moves(sgda, sampling, "vmap", split(), x),
                          sampling, data, other)
        assert moved.max() <= bound
        read = not isinstance(sampling, Disjoint) or i < sampling.batch
        assert (moved.max() > 0) == read


@pytest.mark.parametrize("replacement", [False, True])
def test_a_record_counts_as_often_as_a_fixed_size_sample_holds_it(replacement):
    sampling = FixedSize(batch=4, replacement=replacement)
    unit = 2 / charged(query(sampling))
    data = records(1)
    times, most = np.zeros(KEYS), 0.0
    for i in range(N):
        moved = distances(lambda x: _moves(sgda, sampling, "vmap", split(), x), sampling,
                          with_record(data, i, 1e6), with_record(data, i, -1e6)) / unit
        np.testing.assert_allclose(moved, np.round(moved), atol=4e-3)
        most = max(most, moved.max())
        times += np.round(moved)
    assert most > 1.9 if replacement else most <= 1
    np.testing.assert_array_equal(times, 4)


def farthest():
    """The distance between the worst neighbours, in units of the bound: nearly 1."""
    q, data = query(), records(1)
    moved = distances(lambda x: opened(q, x), q.sampling, with_record(data, 1, 1e6),
                      with_record(data, 1, -1e6))
    return moved.max() * charged(q) / 2


@pytest.mark.slow
@pytest.mark.optimised
def test_the_sensitivity_is_attained():
    assert 0.999 < farthest() <= 1


@pytest.mark.slow
@pytest.mark.optimised
def test_the_sensitivity_catches_a_lifted_clip(bug):
    weight = summation.clip_weight
    bug.setattr(summation, "clip_weight", lambda r, m: jnp.minimum(2 * weight(r, m), 1))
    assert farthest() > 1.9


# --- the noise ---


BIG = Saddle({"a": jnp.zeros(50_000), "b": jnp.zeros((250, 200))}, jnp.zeros(50_000))


def noise_ratios(q, z=BIG):
    """Standard deviation of every leaf's noise over clip * noise multiplier / batch size: 1."""
    g = opened(q, jnp.zeros(q.population), split(1, 1), problem=SCALED, z=z)
    out = []
    for player, clip, z in zip(g, q.clip, q.noise_multiplier, strict=True):
        for x in jax.tree.leaves(player):
            assert abs(x.mean()) < SIGMAS * x.std() / math.sqrt(x.size)
            out.append(x.std() * batch_size(q) / (clip * z))
    return np.array(out)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Full(), Poisson(rate=0.3), Disjoint(batch=2)], ids=str)
@pytest.mark.optimised("Full")
def test_the_noise_is_clip_times_multiplier_over_the_batch_size(sampling):
    np.testing.assert_allclose(noise_ratios(query(sampling, 5)), 1, rtol=0.015)


@pytest.mark.slow
@pytest.mark.optimised
def test_the_noise_of_float32_players_is_as_large():
    z = jax.tree.map(lambda x: x.astype(jnp.float32), BIG)
    np.testing.assert_allclose(noise_ratios(query(), z), 1, rtol=0.015)


@pytest.mark.slow
@pytest.mark.optimised
def test_the_measured_noise_catches_half_of_it(bug):
    noise = noisy_sums.integer_noise
    bug.setattr(noisy_sums, "integer_noise",
                lambda *args: jax.tree.map(lambda x: x // 2, noise(*args)))
    np.testing.assert_allclose(noise_ratios(query()), 0.5, rtol=0.015)


def test_players_leaves_and_releases_share_no_noise():
    z = Saddle({"a": jnp.zeros(50_000), "b": jnp.zeros(50_000)}, jnp.zeros(50_000))
    q = query(clip=Saddle(1.0, 1.0), noise=Saddle(1.0, 1.0))
    g = opened(q, jnp.zeros(N), same(9, 2), [0, 1], problem=SCALED, z=z)
    noises = [x[k] for x in jax.tree.leaves(g) for k in range(2)]
    for x, y in itertools.combinations(noises, 2):
        for a, b in ((x, y), (x**2, y**2)):
            assert abs(np.corrcoef(a, b)[0, 1]) < SIGMAS / math.sqrt(x.size)


def noise_alone(q, data, count, **how):
    """What releases have over those of the same samples without noise, a row a key."""
    keys = split(11, count)
    quiet = dataclasses.replace(q, noise_multiplier=jax.tree.map(lambda _: 0.0, q.noise_multiplier))
    noisy, plain = (opened(x, data, keys, **how) for x in (q, quiet))
    rows = [np.reshape(a - b, (count, -1)) for a, b in zip(*map(jax.tree.leaves, (noisy, plain)),
                                                           strict=True)]
    return np.concatenate(rows, 1), plain


def test_numbers_without_axes_share_no_noise():
    z = Saddle({"a": jnp.zeros(()), "b": jnp.zeros(()), "c": jnp.zeros(3)}, jnp.zeros(()))
    count = 4000
    noise, _ = noise_alone(query(), jnp.ones(N), count, problem=SCALED, z=z)
    assert noise.shape == (count, 6)
    for x in (noise, abs(noise)):
        apart = np.corrcoef(x.T)[np.triu_indices(6, 1)]
        assert np.all(abs(apart) < SIGMAS / math.sqrt(count))


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Poisson(rate=0.3), FixedSize(batch=3),
                                      FixedSize(batch=3, replacement=True)], ids=str)
def test_noise_knows_nothing_of_the_sample(sampling):
    """Neither do numbers tell which records were drawn, nor those how large the numbers are."""
    count, each = 4000, np.eye(N)
    noise, plain = noise_alone(query(sampling, clip=Saddle(1.0, 1.0)), Saddle(each, each), count)
    there = plain.w * batch_size(query(sampling))
    assert np.all(there.std(0) > 0)
    for x in (noise, abs(noise)):
        both = np.corrcoef(x.T, there.T)[: x.shape[1], x.shape[1]:]
        assert np.all(abs(both) < SIGMAS / math.sqrt(count))


@pytest.mark.slow
@pytest.mark.optimised
def test_noise_is_not_a_thousandth_quieter_than_described():
    size, z = 2**23, Saddle(1.5, None)
    q = dataclasses.replace(query(clip=Saddle(0.7, None), noise=z, population=1), parameters=size)
    g = opened(q, jnp.zeros((1, 1)), split(3, 1), problem=Problem(
        lambda z, x: jax.tree.map(jnp.zeros_like, z)), z=Saddle(jnp.zeros(size, jnp.float32), ()))
    deviation = math.sqrt(np.mean(np.square(g.w[0], dtype=np.float64)))
    assert deviation > 0.7 * 1.5 * (1 - 3.5 / math.sqrt(2 * size))
    assert deviation < 0.7 * 1.5 * 1.01


def test_noise_is_added_to_the_clipped_sum_and_scales_with_its_multiplier():
    data = records(3)
    plain, one, three = (opened(query(noise=Saddle(k * 1.5, k * 0.8)), data) for k in (0, 1, 3))
    clipped = jax.jit(clipping.clipped_sum(ITSELF.operator, CLIP))(origin(data), data)
    for p, a, b, total in zip(plain, one, three, clipped, strict=True):
        np.testing.assert_allclose(b - p, 3 * (a - p), atol=1e-4)  # each rounded to its grid
        np.testing.assert_allclose(p, np.broadcast_to(total / N, p.shape), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "strategies"), [
    (SAMPLINGS[0], clipping.STRATEGIES), (SAMPLINGS[1], ("vmap", "ghost")),
    (SAMPLINGS[2], ("vmap", "microbatch"))], ids=["Full", "Poisson", "Disjoint"])
def test_strategies_release_the_same_number(sampling, strategies):
    one, *others = (_moves(sgda, sampling, s, split(), records(4)) for s in strategies)
    for other in others:
        # blocks are made of other rows, and each is rounded to the grid
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-4),
                     one, other)


# --- the sample ---


def shares(rate, population, count):
    """Releases of identical records whose operator is 1: realised over expected batch size."""
    q = query(Poisson(rate=rate), population, Saddle(10.0, None), Saddle(0.0, None))
    data = Saddle(np.ones(population), np.zeros(population))
    return opened(q, data, split(2, count), problem=ONLY_W).w


@pytest.mark.slow
def test_the_sum_is_divided_by_the_public_batch_size():
    """So its mean is unbiased and the binomial size of the sample shows in its variance."""
    rate, population, count = 0.2, 50, 4000
    share = shares(rate, population, count)
    sizes = share * rate * population
    np.testing.assert_allclose(sizes, np.round(sizes), atol=1e-9)
    variance = (1 - rate) / (rate * population)
    assert abs(share.mean() - 1) < SIGMAS * math.sqrt(variance / count)
    assert abs(share.var() / variance - 1) < SIGMAS * math.sqrt(2.1 / count)


@pytest.mark.slow
def test_the_variance_catches_a_division_by_the_realised_batch_size(bug):
    sums = clipping.ClippedSum.sums

    def by_realised_size(self, z, data, mask, rounding):
        actual, factor = sums(self, z, data, mask, rounding), 10 / jnp.maximum(jnp.sum(mask), 1)
        return actual._replace(floats=jax.tree.map(lambda x: x * factor, actual.floats))

    bug.setattr(clipping.ClippedSum, "sums", by_realised_size)
    assert shares(0.2, 50, 100).var() < 1e-12


@pytest.mark.slow
def test_both_players_read_one_sample_and_every_release_its_own():
    """Members from the sums of records that are unit vectors."""
    population, rate, count = 20, 0.3, 20_000
    q = query(Poisson(rate=rate), population, Saddle(1.0, 1.0), Saddle(0.0, 0.0))
    data = Saddle(np.eye(population), np.eye(population))
    g = opened(q, data, same(3, count), np.arange(count))
    inside = np.round(g.w * rate * population)
    np.testing.assert_array_equal(g.w, g.v)
    np.testing.assert_allclose(inside, g.w * rate * population, atol=1e-4)
    assert np.abs(inside.mean(0) - rate).max() < SIGMAS * math.sqrt(rate * (1 - rate) / count)
    for apart in (1, 2):
        both = np.mean(inside[apart:] * inside[:-apart], 0)
        assert np.abs(both - rate**2).max() < SIGMAS * math.sqrt(rate**2 * (1 - rate**2) / count)


def test_disjoint_releases_read_each_row_once_a_pass():
    q = query(Disjoint(batch=3), N, Saddle(1.0, None), Saddle(0.0, None))
    data = Saddle(np.eye(N), np.zeros(N))
    inside = opened(q, data, same(3, 4), np.arange(4), problem=ONLY_W).w * 3
    first, second = np.arange(N) // 3 == 0, np.arange(N) // 3 == 1  # and rows 6 and 7 never
    np.testing.assert_allclose(inside, [first, second, first, second], rtol=1e-5)


# --- what is not released ---


NO_V = dict(clip=CLIP._replace(v=None), noise=NOISE._replace(v=None))


@pytest.mark.slow
@samplings
def test_beyond_the_allowed_releases_everything_is_nan(sampling):
    for players in ({}, NO_V) if sampling == Full() else ({},):
        spent = np.arange(KEYS)
        g = opened(query(sampling, **players), records(5), spent=spent, times=3)
        for x in g:
            assert np.isfinite(x[spent < 3]).all()
            assert np.isnan(x[spent >= 3]).all()


def test_a_sample_that_does_not_fit_is_nan():
    count, q = 4000, query(Narrow(rate=0.5, most=4), **NO_V)
    nan = np.concatenate([np.isnan(x) for x in opened(q, records(6), split(3, count))], 1)
    np.testing.assert_array_equal(nan.any(1), nan.all(1))
    tail = overflow_probability(q)
    np.testing.assert_allclose(tail, stats.binom.sf(4, N, 0.5), rtol=1e-9)
    assert abs(nan.any(1).mean() - tail) < SIGMAS * math.sqrt(tail * (1 - tail) / count)


FILLED = Query(clip=CLIP, noise_multiplier=NOISE, sampling=Poisson(rate=0.1), population=40)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["vmap", "ghost", "microbatch"])
@pytest.mark.parametrize("noise", [NOISE, Saddle(0.0, 0.0)], ids=["noise", "none"])
def test_the_record_that_empty_slots_read_changes_no_bit(strategy, noise):
    """Whatever it is: it is that of the first slot, which is empty itself as often as others."""
    described = Repeat(query=dataclasses.replace(FILLED, noise_multiplier=noise), times=1)
    problem = Problem(with_strategy(ITSELF.operator, strategy))
    data = Saddle(*jax.random.normal(jax.random.key(5), (2, 40, 3)))
    draw = jax.jit(lambda key: sample_of_release(key, described, jnp.int32(0)))
    go = jax.jit(lambda key, rows: release(key, described, jnp.int32(0), problem, origin(data),
                                           rows))
    compared = 0
    for key in split(3, 12):
        sample = draw(key)
        if sample.valid[0] or not sample.valid.any():
            continue
        for value in (jnp.nan, jnp.inf, 1e30):
            other = jax.tree.map(lambda a, at=sample.rows[0], x=value: a.at[at].set(x), data)
            jax.tree.map(np.testing.assert_array_equal, go(key, data), go(key, other))
            compared += 1
    assert compared >= 9


@pytest.mark.slow
@samplings
def test_a_player_without_a_clip_norm_gets_zeros_and_changes_nothing(sampling):
    """The other player's release is what it would be anyway, even if its own operator is NaN."""
    data = records(7)
    both = opened(query(sampling, noise=Saddle(0.0, 0.0)), data)
    for v in (data.v, np.full_like(data.v, np.nan)):
        g = opened(query(sampling, clip=NO_V["clip"], noise=Saddle(0.0, None)),
                   data._replace(v=v))
        np.testing.assert_array_equal(g.v, 0.0)
        np.testing.assert_allclose(g.w, both.w, rtol=1e-12)


@pytest.mark.parametrize(("clip", "noise"), [
    (CLIP, Saddle(np.nan, np.nan)), (Saddle(np.nan, np.nan), NOISE),
    (Saddle(np.inf, np.inf), NOISE), (CLIP, Saddle(np.inf, np.inf))], ids=str)
def test_undefined_noise_releases_nothing_finite(clip, noise):
    g = opened(query(clip=clip, noise=noise), records(8))
    assert not any(np.isfinite(x).any() for x in g)


def test_a_number_of_releases_between_two_is_refused():
    data = records(8)
    with pytest.raises(ValueError, match="spent must be an integer"):
        release(jax.random.key(0), Repeat(query=query(), times=2), 0.5, ITSELF,
                origin(data), data)


def test_undefined_noise_of_one_player_is_undefined_for_that_player():
    g = opened(query(noise=Saddle(np.nan, 0.8)), records(8))
    assert np.isnan(g.w).all()
    assert np.isfinite(g.v).all()


def test_an_infinite_clip_norm_without_noise_is_the_plain_mean():
    data = records(9)
    g = opened(query(clip=Saddle(np.inf, np.inf), noise=Saddle(0.0, 0.0)), data)
    for x, y in zip(g, data, strict=True):
        np.testing.assert_allclose(x, np.broadcast_to(y.mean(0), x.shape), rtol=1e-9)


@pytest.mark.parametrize("noise", [(0.0, 0.8), (0.8, 0.0), *(
    pytest.param(noise, marks=pytest.mark.slow) for noise in ((0.0, 0.0), (0.8, 0.8)))])
def test_a_player_is_released_without_noise_only_if_its_own_multiplier_is_zero(noise):
    """Known or traced, whatever the other player's is; a traced one decides when it runs."""
    data, plain = records(12), opened(query(noise=Saddle(0.0, 0.0)), records(12))
    traced = opened(query(noise=Saddle(*noise)), data)
    known = jax.jit(lambda keys: jax.vmap(lambda key: release(
        key, Repeat(query=query(noise=Saddle(*noise)), times=1), jnp.int32(0), ITSELF,
        origin(data), data))(keys))(split())
    for multiplier, *answers, silent in zip(noise, known, traced, plain, strict=True):
        for g in answers:
            moved = np.asarray(g - silent)
            if multiplier:
                assert np.all(moved != 0)
                assert np.std(moved) * N > 0.2 * multiplier  # the clip norms are 0.3 and 2
            else:
                np.testing.assert_allclose(moved, 0, atol=1e-12)


@pytest.mark.parametrize("rows", [(N - 1, N - 1), (N + 1, N + 1), (N, N - 1)], ids=str)
def test_another_number_of_rows_than_described_is_refused(rows):
    data = Saddle(*(np.zeros((n, 2)) for n in rows))
    with pytest.raises(ValueError, match=rf"the mechanism was described for population={N}"):
        opened(query(), data)


def test_noise_that_was_never_calibrated_is_refused_with_the_fix():
    data = records(10)
    with pytest.raises(ValueError, match=r"noise_multiplier is not set: calibrate\("):
        opened(query(noise=None), data)


# --- keys ---


@samplings
def test_a_release_is_a_function_of_key_and_number(sampling):
    one, again, following, other = (opened(query(sampling), records(11), split(seed), spent)
                                    for seed, spent in ((1, 4), (1, 4), (1, 5), (2, 4)))
    for a, b, c, d in zip(one, again, following, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.all(a != c)
        assert np.all(a != d)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [sgda, gda], ids=["sgda", "gda"])
def test_a_resumed_run_repeats_the_uninterrupted_one(algorithm):
    """Bit for bit, from the state and the key alone, and it notices the end of its budget."""
    data, key = records(12), jax.random.key(4)
    hyper = (sgda.Hyper(query=query(SAMPLINGS[1]), step=Saddle(0.1, 0.1), iterations=5)
             if algorithm is sgda else gda.Hyper(query=query(), modulus=1.0, iterations=5))
    update = jax.jit(lambda state, data: algorithm.update(key, state, data, hyper, ITSELF))
    states = [algorithm.init(origin(data), hyper)]
    for _ in range(6):
        states.append(update(states[-1], data))
    resumed = jax.tree.map(np.asarray, states[2])  # as if from a file
    for k in (3, 4, 5):
        resumed = update(resumed, data)
        jax.tree.map(np.testing.assert_array_equal, resumed, states[k])
    assert [int(s.spent) for s in states] == list(range(7))
    for k, state in enumerate(states):
        assert all(np.isnan(x).all() if k == 6 else np.isfinite(x).all() for x in state.z)


@pytest.mark.nightly
@pytest.mark.optimised
def test_rows_that_were_sent_ahead_change_no_bit():
    """In float32 and in optimised programs, where an order of sums would show."""
    n = 60
    x = np.random.default_rng(0).normal(size=(2, n, 5)).astype(np.float32)
    query = Query(clip=NO_V["clip"], noise_multiplier=NO_V["noise"], population=n,
                  sampling=Poisson(rate=0.3))
    mechanism, key = Repeat(query=query, times=3), jax.random.key(0)
    z = Saddle(jnp.zeros(5, jnp.float32), jnp.zeros(5, jnp.float32))
    with Supply(key, mechanism, HostData(Saddle(*x)), [3], 0, 3) as supply:
        ((window, _),) = supply.piece(3)
    ask = jax.jit(lambda spent, data: release(key, mechanism, spent, ITSELF, z, data))
    for spent in range(3):
        sent, there = (ask(jnp.int32(spent), data) for data in (window, Saddle(*map(
            jnp.asarray, x))))
        assert sent.w.dtype == jnp.float32
        assert bool(jnp.all(jnp.isfinite(sent.w)))
        for a, b in zip(sent, there, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("bug", [None, "q n"])
def test_the_mean_of_releases_is_that_of_all_records_where_samples_are_drawn_again(
        monkeypatch, bug):
    """Ones without noise, on samples that hold 8 % less records than at the rate: n r divides."""
    n, count = 40, 4000
    how = Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(0.0, None), population=n,
                sampling=Poisson(rate=0.2, again=0.3))
    if bug:
        monkeypatch.setattr(Poisson, "batch_size", lambda self, n: self.rate * n)
    problem = Problem(operator=lambda z, x: Saddle(x, jnp.zeros_like(z.v)))
    z, ones = Saddle(jnp.zeros(1), jnp.zeros(1)), jnp.ones((n, 1))
    g = jax.jit(jax.vmap(lambda key: release(key, Repeat(query=how, times=1), jnp.int32(0),
                                             problem, z, ones).w[0]))(
        jax.random.split(jax.random.key(5), count))
    off = abs(float(jnp.mean(g)) - 1) / (float(jnp.std(g)) / math.sqrt(count))
    assert (off > 2 * SIGMAS) if bug else (off < SIGMAS)
