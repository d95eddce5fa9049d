"""Sums on a grid: exact additions, what rounding may move, and that the charge covers it."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.privacy.mutants import subtle as mutant_subtle
from jaxminimax import Saddle
from jaxminimax.accounting import curve
from jaxminimax.gradients import integer_sums
from jaxminimax.gradients.clipping import STRATEGIES, clipped_sum
from jaxminimax.gradients.integer_sums import Grid, Words
from jaxminimax.gradients.summation import Rounding
from jaxminimax.mechanism import grid
from jaxminimax.mechanism.grid import BLOCK, charged_multiplier, grid_bits
from jaxminimax.releases import noisy_sums


def whole(words):
    """The integers, in Python's."""
    high, low = (None if x is None else np.asarray(x, object) for x in words)
    return low if high is None else high * 2**20 + low


def leaf(size, wide, scale=1.0, dither=0):
    return integer_sums.Leaf(jnp.float32(scale), jnp.full(size, dither, jnp.uint8), wide)


# --- integers ---


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("count", [1, 3, 1023, 1025, 5000])
def test_blocks_add_up_exactly(count, wide):
    most = 2**30 if wide else 2**30 // count
    x = np.random.default_rng(count).integers(-most, most, (count, 3)).astype(np.int32)
    actual = jax.jit(integer_sums._added, static_argnums=1)(x, wide)
    np.testing.assert_array_equal(whole(actual), np.sum(x.astype(object), 0))
    if wide:  # of one form
        assert 0 <= np.min(actual.low) <= np.max(actual.low) < 2**20
    twice, minus = jax.jit(lambda a: (integer_sums.plus(a, a), integer_sums.minus(a)))(actual)
    np.testing.assert_array_equal(whole(twice), 2 * whole(actual))
    np.testing.assert_array_equal(whole(minus), -whole(actual))


def test_what_is_read_depends_on_the_integer_alone():
    """Two words of one integer, or of one that was added up otherwise, are one number."""
    rng = np.random.default_rng(0)
    high, low, noise = rng.integers(-2**12, 2**12, (3, 1000)).astype(np.int32)
    low = np.abs(low) + 2**20 - 2000
    one = integer_sums.as_float(Words(high, low), noise, jnp.float32)
    other = integer_sums.as_float(Words(high - 1, low + 2**20), noise, jnp.float32)
    np.testing.assert_array_equal(one, other)
    exact = high.astype(float) * 2**20 + low + noise + 0.5
    np.testing.assert_allclose(one, exact, rtol=2e-7, atol=0.1)


# --- rounding ---


ROUNDED = jax.jit(integer_sums.rounded)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_is_up_where_the_fraction_exceeds_the_dither(dtype):
    """Over all 256 of them the mean is the number but for 1/512, and it never falls by more."""
    x = np.concatenate([np.random.default_rng(0).normal(size=300) * 50, [0.0, 7.0, -7.0, 1e-12,
                                                                         -1e-12, 2.0**30, -1e35]])
    x = x.astype(dtype)
    every = np.stack([ROUNDED(x, dtype(1), np.full(len(x), u, np.uint8)) for u in range(256)])
    clamped = np.clip(x.astype(float), -2.0**30, 2.0**30)
    expected = np.ceil(clamped - (np.arange(256)[:, None] + 0.5) / 256)
    off = np.abs(clamped) < 1e-6  # the fraction of a tiny negative number rounds to 1
    np.testing.assert_array_equal(every[:, ~off], expected[:, ~off])
    assert np.abs(every.mean(0) - clamped).max() <= 1 / 512 + 1e-7
    np.testing.assert_array_equal(every[:, x == 0], 0)


def test_no_two_releases_round_with_the_same_numbers():
    assert not mutant_subtle.rounded_alike().fires


@pytest.mark.parametrize(("d", "distance"), [(1, 3.0), (20, 50.0), (3000, 40.0), (30_000, 346.5)])
def test_rounding_adds_no_more_to_a_distance_than_is_said(d, distance):
    """Differences that are equal in all coordinates are the worst for rounding to the nearest."""
    rng = np.random.default_rng(d)
    limit = distance + grid._rounding(distance, d)
    for trial in range(40):
        step = np.ones(d) if trial % 2 else rng.normal(size=d)
        step *= distance / np.linalg.norm(step)
        a = rng.normal(size=d) * 100
        u = rng.integers(0, 256, d).astype(np.uint8)
        moved = [np.asarray(ROUNDED(x, np.float64(1), u), float) for x in (a, a + step)]
        assert np.linalg.norm(moved[1] - moved[0]) <= limit


def test_rounding_to_the_nearest_would_add_more():
    """So the test above can fail: all coordinates move by a bit more than 2, from below a half."""
    d, step = 30_000, 2 + 1e-6
    moved = np.round(np.full(d, 0.5 - 1e-7) + step) - np.round(np.full(d, 0.5 - 1e-7))
    distance = step * math.sqrt(d)
    assert np.linalg.norm(moved) > 1.2 * (distance + grid._rounding(distance, d))


def test_the_error_of_a_block_is_below_its_bound():
    """float32 sums along several trees against float64 ones, of aligned rows: the largest found."""
    worst = 0.0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        x = np.abs(rng.normal(size=(BLOCK, 4))) if seed % 2 else rng.uniform(0.5, 1, (BLOCK, 1))
        x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
        exact = x.astype(np.float64).sum(0)
        running = np.zeros(x.shape[1], np.float32)
        for row in x:
            running += row
        for total in (running, np.einsum("ij->j", x), np.asarray(jnp.sum(jnp.asarray(x), 0))):
            worst = max(worst, np.linalg.norm(total - exact))
    assert 1e-6 < worst < grid.ETA


# --- the charge ---


def test_the_host_and_a_program_choose_the_same_grid():
    z = np.concatenate([np.exp(np.random.default_rng(0).uniform(-20, 20, 500)),
                        2.0 ** np.arange(-30, 30), np.nextafter(2.0 ** np.arange(-20, 20), 0)])
    for d in (1, 2**20, 2**24, 2**24 + 1, 2**30):
        traced = jax.vmap(lambda z, d=d: jnp.asarray(grid_bits(z, d)))(jnp.asarray(z))
        np.testing.assert_array_equal(traced, [grid_bits(x, d) for x in z])
        assert set(np.asarray(traced)) <= set(range(23))


@pytest.mark.parametrize("z", [0.3, 0.5, 1.0, 3.7, 30.0])
def test_multipliers_move_by_less_than_three_parts_in_a_thousand(z):
    for d in (1, 22, 2**20):
        assert 0.998 * z < charged_multiplier(z, z, d, absent=False) < z
        assert 0.997 * z < charged_multiplier(z, z, d, absent=True) < z
    assert 0.997 * z < charged_multiplier(z, z, 10**7, absent=True) < z


@pytest.mark.parametrize("sampling", [jmm.Full(), jmm.Poisson(rate=0.3)], ids=str)
@pytest.mark.parametrize(("w", "v"), [(0.3, None), (1.0, 5.0), (40.0, 2.0)])
def test_rounding_is_charged_by_its_formula(sampling, w, v):
    """In 50 digits: half of a thousandth is what it costs, and no inequality would miss it."""
    query = jmm.Query(clip=Saddle(1.0, None if v is None else 2.0), noise_multiplier=Saddle(w, v),
                      sampling=sampling, population=10, parameters=10**5)
    z = w if v is None else 1 / math.hypot(1 / w, 1 / v)
    exact = mutant_subtle.charge_in_50_digits(z, w if v is None else min(w, v), 10**5,
                                              absent=sampling != jmm.Full())
    actual = jmm.Repeat(query=query, times=3).effective_noise_multiplier("replace_one")
    assert actual == pytest.approx(float(exact), rel=1e-12)
    assert not mutant_subtle.rounding_charged().fires


@pytest.mark.parametrize("d", [1, 2**20, 2**30])
@pytest.mark.parametrize("absent", [False, True])
def test_louder_noise_is_not_charged_as_less(d, absent):
    """From 2^22 units a deviation on the grid grows coarser, and rounding counts for more."""
    charged = [charged_multiplier(z, z, d, absent=absent) for z in 2.0 ** np.arange(-13, 50, 0.25)]
    assert np.all(np.diff(charged) > 0)


@pytest.mark.parametrize("parameters", [0, -3, 1e6, True, None, 2**31])
def test_a_number_of_parameters_that_is_no_count_is_refused(parameters):
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=10,
                      parameters=parameters)
    with pytest.raises(ValueError, match="parameters must be"):
        jmm.epsilon(jmm.Repeat(query=query, times=1), 1e-5)


def test_where_sums_without_the_record_are_compared_with_the_charge_is_the_larger():
    for z in (0.5, 2.0):
        assert charged_multiplier(z, z, 100, absent=True) < charged_multiplier(
            z, z, 100, absent=False)


def test_each_player_has_a_grid_and_the_coarsest_is_charged():
    both = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(1.0, 5.0), population=10)
    charged = jmm.Repeat(query=both, times=1).effective_noise_multiplier("replace_one")
    assert charged == charged_multiplier(both.multiplier(), 1.0, both.parameters, absent=False)


def test_failures_of_the_dither_are_counted_once_a_pair_of_sums():
    """A Poisson sample's sum without a record is compared with two others, it and what replaces it.

    So is a slot of a sample of fixed size, with its substitute and with what replaces the record;
    of a sample with replacement every copy is replaced after the other.
    """
    def failures(sampling):
        query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None),
                          sampling=sampling, population=100)
        actual = jmm.Repeat(query=query, times=7).sampler_cost().failure
        return actual / grid.DITHER_FAILURE

    assert failures(jmm.Full()) == pytest.approx(7)
    assert failures(jmm.FixedSize(batch=5)) == pytest.approx(14)
    assert failures(jmm.Poisson(rate=0.1)) == pytest.approx(14)
    assert failures(jmm.FixedSize(batch=5, replacement=True)) == pytest.approx(35)


def test_calibration_does_not_take_the_answer_of_a_finer_grid():
    """Two descriptions may cost the same at factors 1 and 2, and not where the answer is."""
    def repeat(clip, *z):
        query = jmm.Query(clip=clip, noise_multiplier=Saddle(*z), population=1000)
        return jmm.Repeat(query=query, times=1)

    one = functools.partial(repeat, Saddle(1.0, None))
    two = repeat(Saddle(1.0, 1.0), 1.2, 1.8090680674665818)  # as noisy, finer at 1.8
    assert curve.charges(one(1.0, None), "replace_one") == curve.charges(two, "replace_one")
    target = jmm.epsilon(one(1.8, None), 1e-5)
    for mechanism in (two, one(1.0, None)):
        assert jmm.epsilon(jmm.accounting.calibrate_noise(mechanism, target, 1e-5), 1e-5) <= target


# --- what one record moves ---


def directions(n, d, how):
    """Rows of norm far above the clip norm, all of one direction; the first may be another."""
    x = np.ones((n, d), np.float32) * 100
    x[0] *= how
    return x


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _moved(strategy, microbatch, wide, x, clip, dither):
    total = clipped_sum(jmm.saddle_operator(lambda w, v, r: jnp.sum(w * r)), Saddle(clip, None),
                        strategy=strategy, microbatch=microbatch)
    unit = clip * 2.0**-18
    grid = Grid(Saddle(1 / unit, None), Saddle(dither, None), wide)
    z = Saddle(jnp.zeros(x.shape[1], jnp.float32), jnp.zeros((), jnp.float32))
    return total.sums(z, x, None, Rounding(grid, jnp.array(False), jnp.array(True))).integers.w


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("n", "clip"), [(100, 1.0), (5000, 1.1), (2**18, 1.1)])
def test_one_of_many_aligned_records_moves_the_sum_by_what_is_charged(strategy, n, clip):
    """A float32 sum of 2^18 of them moves by 2.02 clip norms, one of 2^22 by 2.7."""
    clip, dither = np.float32(clip), jnp.full(2, 77, jnp.uint8)
    one, other = (whole(_moved(strategy, 512, n > 4096, directions(n, 2, how), clip, dither))
                  for how in (1, -1))
    moved = np.linalg.norm((one - other).astype(float)) / 2**18
    limit = 2 * (1 + grid.ETA) + grid._rounding(2.0**19, 2) / 2**18
    assert 1.999 < moved <= limit


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_integers_are_the_sum(strategy):
    n, rng = 700, np.random.default_rng(3)
    x = rng.normal(size=(n, 3)).astype(np.float32) * 0.2
    for wide in (False, True):
        actual = whole(_moved(strategy, 100, wide, x, np.float32(1.0), jnp.full(3, 128, jnp.uint8)))
        plain = (x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))).sum(0)
        np.testing.assert_allclose(actual.astype(float) / 2**18, plain, atol=1e-3)


@pytest.mark.parametrize("exact", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("parameters", [1, 2**26 + 1, 2**30 + 1])
def test_no_sum_wraps_around_or_is_clamped_on_a_finer_grid(parameters, exact):
    """Where it does, one record more in 4,096 aligned ones makes the sum jump, and noise does not.

    (Integer noise wraps with the sum; noise in floating point is added to what has wrapped.)
    """
    n = 4096
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=n,
                      parameters=parameters, exact=exact)
    problem = jmm.Problem(lambda z, x: Saddle(x + 0 * z.w, None))
    z = Saddle(jnp.zeros(1), jnp.zeros(()))
    actual = jax.jit(lambda z, rows: jmm.release(
        jax.random.key(0), jmm.Repeat(query=query, times=1), jnp.int32(0), problem, z, rows))(
            z, jnp.ones((n, 1)))
    assert float(actual.w[0]) * n == pytest.approx(n, abs=12)


@pytest.mark.slow
def test_lookups_of_one_row_by_many_records_do_not_wrap_around():
    """1,024 records of 2^22 units each, the most on any grid, are more than a word holds."""
    n = 5000
    z = Saddle(jnp.zeros((8, 1)), jnp.zeros(()))
    total = clipped_sum(jmm.saddle_operator(lambda w, v, r: 7 * w[r][0]), Saddle(1.0, None),
                        strategy="ghost")
    assert "looked up" in total.explain(z, jnp.zeros(n, jnp.int32))
    grid = Grid(Saddle(jnp.float32(2.0**22), None),
                Saddle(jnp.zeros((8, 1), jnp.uint8), None), True)
    actual = total.sums(z, jnp.full(n, 3), None, Rounding(
        grid, jnp.array(False), jnp.array(True))).integers.w
    assert 0 <= np.min(actual.low) <= np.max(actual.low) < 2**20
    expected = np.zeros((8, 1))
    expected[3] = n * 2.0**22
    np.testing.assert_allclose(whole(actual).astype(float), expected, rtol=1e-5)


def test_a_release_of_more_numbers_than_are_paid_for_is_refused():
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=3,
                      parameters=4)
    z, data = Saddle(jnp.zeros(5), jnp.zeros(())), jnp.ones((3, 5))
    problem = jmm.Problem(lambda z, x: Saddle(x, None))
    with pytest.raises(ValueError, match=r"5 numbers.*parameters=5"):
        jmm.release(jax.random.key(0), jmm.Repeat(query=query, times=1), jnp.int32(0), problem, z,
                    data)


@pytest.mark.parametrize("place", ["point", "operator"])
def test_complex_numbers_are_refused(place):
    """Their squares cancel in a norm, and their imaginary parts would have no noise."""
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=3)
    z = Saddle(jnp.zeros(2, jnp.complex64 if place == "point" else jnp.float32), jnp.zeros(()))
    problem = jmm.Problem(lambda z, x: Saddle(x * (1j if place == "operator" else 1), None))
    with pytest.raises(ValueError, match=r"complex64.*real and the imaginary"):
        jmm.release(jax.random.key(0), jmm.Repeat(query=query, times=1), jnp.int32(0), problem, z,
                    jnp.ones((3, 2), jnp.float32))


@pytest.mark.parametrize("z", 2.0 ** np.arange(-13, 6) * 1.3)
def test_the_noise_is_as_many_units_as_its_law_says(z):
    """2^L units are sigma, to the last bit: the margin for rounding has no room for an error."""
    scale = jax.jit(lambda z: noisy_sums.scales(Saddle(1.7, None), Saddle(z, None), 100).w)(z)
    assert np.float64(scale.step) * 2.0 ** int(scale.log2_steps) == np.float64(scale.stddev)
    margin = float(scale.stddev) * np.float64(1 / scale.step) / 2.0 ** int(scale.log2_steps)
    assert margin <= 1 + 2.0**-24


def test_players_have_their_own_deviation_and_unit():
    scale = noisy_sums.scales(Saddle(2.0, 0.5), Saddle(1.0, 40.0), 100)
    for s, clip, z in zip(scale, (2.0, 0.5), (1.0, 40.0), strict=True):
        assert float(s.stddev) == pytest.approx(clip * z, rel=1e-6)
        assert float(s.step) * 2.0 ** int(s.log2_steps) == pytest.approx(float(s.stddev), rel=1e-6)
        assert clip / float(s.step) <= 2.0**18 * (1 + 1e-6)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 465, 1024])
def test_thresholds_of_a_block_are_those_of_a_draw_of_that_size(size):
    block = jax.jit(integer_sums.dither_block, static_argnames="block")
    for seed in range(3):
        key = jax.random.key(seed)
        np.testing.assert_array_equal(block(key, jnp.int32(size), block=1024)[:size],
                                      integer_sums.dither(key, jnp.zeros(size)))
