"""The noise is Gaussian, far into its tails, and no number of it is used twice."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.base import random_bits
from jaxminimax.noise import floats

SIZE = 10**6
SIGMAS = 4.5
dtypes = pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=lambda x: x.__name__)
normal = jax.jit(floats.standard_normal, static_argnums=(1, 2))


@pytest.fixture(params=[jnp.float32, jnp.float64], ids=lambda x: x.__name__, scope="module")
def sample(request):
    x = normal(jax.random.key(7), (SIZE,), request.param)
    assert x.dtype == request.param
    return np.asarray(x, np.float64)


def correlation(x, y):
    """In units of its standard deviation for independent numbers."""
    x, y = np.ravel(x), np.ravel(y)
    return abs(np.corrcoef(x, y)[0, 1]) * math.sqrt(len(x))


# --- the law ---


@pytest.mark.slow
@pytest.mark.optimised
def test_noise_is_standard_normal(sample):
    assert np.isfinite(sample).all()
    assert stats.kstest(sample, "norm").pvalue > 1e-3
    half = SIZE // 2  # the cosines and the sines of the transform, each alone
    assert stats.kstest(sample[:half], "norm").pvalue > 1e-3
    assert stats.kstest(sample[half:], "norm").pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.optimised
def test_its_moments_are_those_of_the_normal_law(sample):
    for power, mean, second in ((1, 0, 1), (2, 1, 3), (3, 0, 15), (4, 3, 105), (6, 15, 10395)):
        spread = math.sqrt((second - mean**2) / SIZE)
        assert abs(np.mean(sample**power) - mean) < SIGMAS * spread


@pytest.mark.parametrize("far", [2.0, 3.0, 4.0, 4.5])
@pytest.mark.optimised
def test_its_tails_hold_what_the_normal_law_says(sample, far):
    tail = stats.norm.sf(far)
    for hits in ((sample > far).sum(), (sample < -far).sum()):
        assert abs(hits - SIZE * tail) < SIGMAS * math.sqrt(SIZE * tail)


@pytest.mark.optimised
def test_cosines_and_sines_are_independent(sample):
    """They share a radius and an angle: their squares and signs must not know of each other."""
    x, y = sample[: SIZE // 2], sample[SIZE // 2:]
    for f, g in itertools.product((np.array, np.square, np.sign, np.abs), repeat=2):
        assert correlation(f(x), g(y)) < SIGMAS
    # the law of the angle and the radius: uniform, and exponential in the square
    assert stats.kstest(np.arctan2(y, x) / (2 * np.pi) + 0.5, "uniform").pvalue > 1e-3
    assert stats.kstest((x**2 + y**2) / 2, "expon").pvalue > 1e-3


@pytest.mark.optimised
def test_neighbouring_numbers_are_independent(sample):
    for apart in (1, 2, 3, 17):
        x, y = sample[:-apart], sample[apart:]
        assert correlation(x, y) < SIGMAS
        assert correlation(x**2, y**2) < SIGMAS


# --- the extremes ---


def from_words(monkeypatch, words, dtype):
    """Noise made of the given words, four for two numbers (three are read for float32)."""
    words = np.asarray(words, np.uint32).reshape(-1, 4).T
    with monkeypatch.context() as patch:
        patch.setattr(floats, "word_pairs",
                      lambda key, shape, part=0: jnp.asarray(words[2 * part:][:2]))
        patch.setattr(floats, "random_words", lambda key, shape, part: jnp.asarray(words[2 * part]))
        shape = (2, words.shape[1])
        return np.asarray(floats.standard_normal(jax.random.key(0), shape, dtype), np.float64)


@dtypes
@pytest.mark.optimised
def test_no_word_gives_a_number_that_is_not_finite(dtype, monkeypatch):
    ends = [0, 1, 2**31 - 1, 2**31, 2**32 - 129, 2**32 - 2, 2**32 - 1]
    x = from_words(monkeypatch, list(itertools.product(ends, repeat=4)), dtype)
    assert np.isfinite(x).all()


@dtypes
@pytest.mark.optimised
def test_the_smallest_words_reach_beyond_nine_standard_deviations(dtype, monkeypatch):
    x = from_words(monkeypatch, [(0, 0, 0, 0), (0, 0, 2**30, 0), (0, 0, 2**31, 0)], dtype)
    assert x[0, 0] > 9.4
    assert x[1, 1] > 9.4
    assert x[0, 2] < -9.4


@dtypes
@pytest.mark.optimised
def test_the_radius_follows_its_law_to_the_last_of_64_bits(dtype, monkeypatch):
    """P[radius > r] = exp(-r^2 / 2): the numbers 2^k / 2^64 give r = sqrt(2 (64 - k) log 2)."""
    k = np.arange(64)
    words = [(2**i >> 32, 2**i & 0xFFFFFFFF, 0, 0) for i in range(64)]
    x, y = from_words(monkeypatch, words, dtype)
    radius = np.sqrt(2 * np.log(2) * (64 - k))
    assert np.all(np.abs(x / radius - 1) < 1e-6 + 2.0**-k / (64 - k))
    assert np.all(np.abs(y) < 1e-8)
    assert dtype == jnp.float64 or y.all()


@dtypes
@pytest.mark.optimised
def test_small_radii_follow_their_law_to_the_last_of_64_bits(dtype, monkeypatch):
    """P[radius < r] = 1 - exp(-r^2 / 2): of 1 - u = (2^k - 1/2) / 2^64, r = sqrt(2^(k - 63))."""
    k = np.arange(64)
    last = [2**64 - 2**int(i) for i in k]
    x, y = from_words(monkeypatch, [(n >> 32, n & 0xFFFFFFFF, 0, 0) for n in last], dtype)
    v = (2.0**k - 0.5) * 2.0**-64
    np.testing.assert_allclose(x, np.sqrt(-2 * np.log1p(-v)), rtol=1e-6 if dtype == jnp.float32
                               else 1e-13)
    assert np.all(np.diff(x) > 0)
    assert np.all(np.abs(y) < 1e-8)


@dtypes
@pytest.mark.optimised
def test_radii_on_both_sides_of_the_middle_of_their_law_are_in_order(dtype, monkeypatch):
    """Around u = 1/2, where one formula takes over from the other, and over all of (0, 1)."""
    near = [2**63 + apart * 2**40 for apart in range(-64, 65)]
    n = np.array(near + [i * 2**54 for i in range(1, 1024)], object)
    x, _ = from_words(monkeypatch, [(int(i) >> 32, int(i) & 0xFFFFFFFF, 0, 0) for i in n], dtype)
    u = np.array([(int(i) + 0.5) / 2**64 for i in n])
    np.testing.assert_allclose(x, np.sqrt(-2 * np.log(u)),
                               rtol=1e-6 if dtype == jnp.float32 else 1e-12)


@pytest.mark.slow
@dtypes
@pytest.mark.optimised
def test_small_radii_are_drawn_as_often_as_the_law_says(dtype):
    """Of 4e6 radii, those below .03, of which there are 1,800."""
    size = 2 * 10**6
    x = np.concatenate([np.asarray(normal(jax.random.key(k), (2 * size,), dtype), np.float64)
                        for k in (21, 22)]).reshape(2, 2, size)
    square = np.sum(x**2, 1).ravel() / 2
    most = 0.03**2 / 2
    small = square[square < most]
    due = 2 * size * -np.expm1(-most)
    assert abs(len(small) - due) < SIGMAS * np.sqrt(due)
    assert stats.kstest(-np.expm1(-small) / -np.expm1(-most), "uniform").pvalue > 1e-3
    # between the multiples of 2^-24, which a float32 near 1 would be, u is uniform, too
    within = np.mod(-np.expm1(-small[small < 2.0**-14]) * 2**24, 1)
    assert stats.kstest(within, "uniform").pvalue > 1e-3


# --- words ---


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 3])
def test_threefry_is_the_one_of_jax(seed):
    key = jax.random.key(seed)
    count = np.random.default_rng(seed).integers(0, 2**32, (2, 500), np.uint32)
    count[:, :2] = [[0, 2**32 - 1]] * 2
    actual = random_bits.threefry(jax.random.key_data(key), *jnp.asarray(count))
    reference = threefry_2x32(jax.random.key_data(key), jnp.asarray(count.ravel()))
    np.testing.assert_array_equal(jnp.concatenate(actual), reference)


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("number", [0, 1, 2**31 + 5, 2**32 - 1])
def test_children_are_those_of_fold_in(generator, number):
    key = jax.random.key(3, impl=generator)
    expected = jax.random.key_data(jax.random.fold_in(key, jnp.uint32(number))).tolist()
    for child in (random_bits.fold_in(key, jnp.uint32(number)),
                  random_bits.fold_in_on_host(key, number),
                  jax.jit(random_bits.fold_in_on_host, static_argnums=1)(key, number)):
        assert child.dtype == key.dtype
        assert jax.random.key_data(child).tolist() == expected


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_no_word_of_a_key_comes_up_twice(generator):
    """Of 200,000 pairs of words, none by chance: in either part, and in none of the children."""
    key = jax.random.key(5, impl=generator)
    made = [np.stack(random_bits.word_pairs(k, (50_000,), part), 1)
            for k in (key, random_bits.fold_in(key, 70_000)) for part in (0, 1)]
    assert len(np.unique(np.concatenate(made), axis=0)) == 200_000
    flat = random_bits.random_words(key, (7, 9))
    np.testing.assert_array_equal(flat.ravel(),
                                  jnp.concatenate(random_bits.word_pairs(key, (32,)))[:63])


@pytest.mark.slow
@pytest.mark.parametrize("size", [4096, 4097, 4126, 5001])
def test_many_words_are_those_of_few(size):
    """The words of a row that is not full are left out, and no other one moves."""
    key = jax.random.key(size)
    for part in (0, 1):
        np.testing.assert_array_equal(
            random_bits.random_words(key, (size,), part),
            np.concatenate(random_bits.word_pairs(key, (-(-size // 2),), part))[:size])


# --- zero for a deviation of zero ---


@pytest.mark.slow
@pytest.mark.parametrize("std", [0.0, 1e-30, 1.0, np.nan, np.inf, -1.0])
@pytest.mark.optimised
def test_noise_is_zero_for_a_deviation_of_zero_alone(std):
    tree = {"a": jnp.zeros(5), "b": jnp.zeros(3)}
    one = jax.jit(lambda s: floats.gaussian(jax.random.key(2), tree, {"a": s, "b": 0.0}))
    draw = np.asarray(normal(jax.random.key(2), (8,), jnp.float64))[:5]
    for actual in (one(std), jax.tree.map(lambda x: x[1], jax.vmap(one)(jnp.array([0.0, std])))):
        np.testing.assert_allclose(actual["a"], std * draw if std else 0.0, rtol=1e-12)
        np.testing.assert_array_equal(actual["b"], 0.0)


# --- shapes, leaves and keys ---


@pytest.mark.slow
@dtypes
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (7,), (3, 5), (2, 3, 4)], ids=str)
def test_any_shape_is_filled_with_different_numbers(shape, dtype):
    x = np.asarray(normal(jax.random.key(1), shape, dtype))
    assert x.shape == shape
    assert x.dtype == dtype
    assert np.isfinite(x).all()
    assert len(np.unique(x)) == x.size


LEAF = jnp.zeros(100_000, jnp.float32)


def test_leaves_share_no_noise():
    tree = {"a": LEAF, "b": (LEAF.reshape(100, -1), LEAF), "c": LEAF.astype(jnp.bfloat16)}
    made = floats.gaussian(jax.random.key(2), tree, 1.0)
    for x, y in itertools.combinations(map(np.ravel, jax.tree.leaves(made)), 2):
        for shift in (0, 1, len(x) // 2):  # nor one half the other's
            assert correlation(x, np.roll(y, shift)) < SIGMAS
        assert not np.isin(x, y).mean() > 0.1  # float32 numbers collide now and then


def test_leaves_without_axes_share_no_noise():
    tree = {"a": jnp.zeros(()), "b": jnp.zeros(()), "c": jnp.zeros(2, jnp.float32)}
    keys = jax.random.split(jax.random.key(5), 4000)
    made = jax.jit(jax.vmap(lambda key: floats.gaussian(key, tree, 1.0)))(keys)
    columns = np.concatenate([np.asarray(x, np.float64).reshape(4000, -1)
                              for x in jax.tree.leaves(made)], 1).T
    for x, y in itertools.combinations(columns, 2):
        assert correlation(x, y) < SIGMAS
        assert correlation(abs(x), abs(y)) < SIGMAS


def test_equal_keys_give_equal_noise_and_others_independent_noise():
    one, again, other = (np.asarray(normal(jax.random.key(k), (SIZE,), jnp.float32))
                         for k in (3, 3, 4))
    np.testing.assert_array_equal(one, again)
    assert correlation(one, other) < SIGMAS
    assert correlation(one**2, other**2) < SIGMAS


def test_secret_keys_differ_in_all_their_64_bits():
    keys = [floats.secret_key() for _ in range(64)]
    words = np.array([jax.random.key_data(k) for k in keys], np.uint32)
    assert words.shape == (64, 2)
    assert len({tuple(w) for w in words.tolist()}) == 64
    assert np.bitwise_or.reduce(words).tolist() == [2**32 - 1] * 2  # fails once in 10^17 times
    assert np.bitwise_and.reduce(words).tolist() == [0] * 2
    jax.random.fold_in(keys[0], 1)  # a typed key, ready for use


@pytest.mark.slow
def test_keys_of_the_device_make_noise_of_the_same_law_and_no_checkpoint(tmp_path):
    key = floats.secret_key("rbg")
    assert jax.random.key_data(key).shape == (4,)
    x = np.asarray(floats.standard_normal(jax.random.key(3, impl="rbg"), (SIZE,), jnp.float32))
    assert stats.kstest(x, "norm").pvalue > 1e-3
    problem = jmm.Problem(operator=lambda z, x: Saddle(z.w - x, None))
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=4)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=2)
    z, data = Saddle(jnp.zeros(()), ()), jnp.ones(4)
    done = jmm.fit(key, z, data, hyper, jmm.sgda, problem, delta=1e-5, progress=False)
    assert np.isfinite(done.state.z.w)
    with pytest.raises(ValueError, match="checkpoint needs a key of threefry2x32, got rbg"):
        jmm.fit(key, z, data, hyper, jmm.sgda, problem, delta=1e-5, checkpoint=tmp_path)
    keys = jax.random.split(key, (1, 3))  # of all lanes, and not of the first one
    states, _ = jmm.sweep(keys, z, data, jmm.stack([hyper]), jmm.sgda, problem)
    alone = [jmm.run(k, z, data, hyper, jmm.sgda, problem)[0].z.w for k in keys[0]]
    np.testing.assert_allclose(states.z.w[0], alone, rtol=1e-12)
    with pytest.raises(ValueError, match="unsafe_rbg"):
        floats.gaussian(jax.random.key(0, impl="unsafe_rbg"), z, 1.0)
    with pytest.raises(ValueError, match="One key is used up at a time"):
        floats.gaussian(keys[0], z, 1.0)
    with pytest.raises(ValueError, match="generator"):
        floats.secret_key("philox")


def test_a_tree_keeps_its_structure_and_is_at_least_float32():
    tree = {"a": jnp.ones(3, jnp.bfloat16), "b": [jnp.ones((), jnp.float64), jnp.ones((0, 2))],
            "c": jnp.ones((2, 2), jnp.float32)}
    made = floats.gaussian(jax.random.key(5), tree, 2.0)
    assert jax.tree.structure(made) == jax.tree.structure(tree)
    for x, y in zip(*map(jax.tree.leaves, (made, tree)), strict=True):
        assert x.shape == y.shape
        assert x.dtype == jnp.promote_types(y.dtype, jnp.float32)
    assert floats.gaussian(jax.random.key(5), (), 1.0) == ()


@pytest.mark.parametrize("std", [0.0, 1e-3, 2.5, 1e6])
def test_the_standard_deviation_is_a_factor(std):
    unit = floats.gaussian(jax.random.key(6), LEAF, 1.0)
    made = floats.gaussian(jax.random.key(6), LEAF, std)
    np.testing.assert_allclose(made, std * np.asarray(unit), rtol=1e-6)


def test_an_undefined_standard_deviation_gives_undefined_noise():
    assert np.isnan(floats.gaussian(jax.random.key(6), LEAF, jnp.nan)).all()
