"""Sums in slices and of many leaves, and operators of many records that meet no other record."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxminimax import Saddle, clipped_sum, saddle_operator
from jaxminimax.base import programs, tree
from jaxminimax.gradients import integer_sums, summation
from jaxminimax.types import with_strategy
from tests.helpers.clipped_examples import (
    ITSELF,
    MICROBATCH,
    SIZE,
    STRATEGIES,
    assert_equal_sums,
    draw,
    excess,
    flat,
    is_shape,
    reference,
    rows,
    strategies,
    summed,
)


@pytest.mark.parametrize("microbatch", [1, 7, 100])
def test_slices_of_any_size_add_up_to_the_definition(microbatch):
    x = draw(np.random.default_rng(7))
    clip, mask = Saddle(0.7, 2.0), np.arange(SIZE) != 2
    total = summed("microbatch", x, clip, mask, microbatch)
    assert_equal_sums(flat(total), reference([rows(p, SIZE) for p in x], clip, mask), 1e-12)


# --- records that meet no other record ---


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=lambda x: x.__name__)
@pytest.mark.parametrize(("strategy", "groups"), [(s, 1) for s in STRATEGIES] + [("ghost", 2)])
def test_an_example_that_is_not_finite_takes_no_other_convolution_along(strategy, groups, dtype):
    def loss(w, v, x):
        h = jax.lax.conv_general_dilated(x[None], w, (1, 1), "VALID", feature_group_count=groups)
        return jnp.sum(jnp.tanh(h))

    w = jnp.cos(jnp.arange(36 * 2.0 / groups)).reshape(4, 2 // groups, 3, 3).astype(dtype)
    x = jnp.sin(jnp.arange(5 * 2 * 36.0)).reshape(5, 2, 6, 6).astype(dtype)
    total = jax.jit(clipped_sum(saddle_operator(loss), Saddle(1.0, None), strategy=strategy))
    z = Saddle(w, jnp.zeros((), dtype))
    for hostile in (jnp.nan, jnp.inf):
        others = total(z, x, jnp.arange(5) > 0).w
        np.testing.assert_array_equal(total(z, x.at[0, 0, 0, 0].set(hostile)).w, others)
        assert jnp.linalg.norm(others) > 0.05  # which is lost with them


def convolve(w, v, x):
    return jnp.sum(jnp.tanh(jax.lax.conv_general_dilated(x[None], w, (1, 1), "SAME")))


@strategies
def test_no_convolution_meets_two_examples(strategy):
    """What is of another group may be multiplied by 0; a record's range of floats is its own."""
    total = clipped_sum(saddle_operator(convolve), Saddle(1.0, None), strategy=strategy)
    z, x = Saddle(jnp.ones((4, 20, 3, 3)), jnp.zeros(())), jnp.ones((6, 20, 6, 6))
    actual = [(one.params["feature_group_count"], one.params["batch_group_count"])
              for one in programs.equations(jax.make_jaxpr(total)(z, x))
              if one.primitive.name == "conv_general_dilated"]
    assert actual
    assert set(actual) == {(1, 1)}


@strategies
def test_a_record_of_one_run_reaches_no_other_run(strategy):
    """Runs that are mapped over have kernels of their own, and records that differ."""
    rng = np.random.default_rng(5)
    x = jnp.asarray(rng.normal(size=(2, 5, 2, 6, 6)))
    w = jnp.asarray(rng.normal(size=(2, 4, 2, 3, 3)))
    total = jax.jit(jax.vmap(lambda w, x: clipped_sum(
        saddle_operator(convolve), Saddle(1.0, None), strategy=strategy)(
            Saddle(w, jnp.zeros(())), x).w))
    plain = total(w, x)
    for bad in (jnp.nan, 1e308):
        np.testing.assert_array_equal(total(w, x.at[0, 3].set(bad))[1], plain[1])


@strategies
def test_numbers_of_a_run_that_an_operator_closes_over_are_mapped_like_others(strategy):
    x = jnp.asarray(np.random.default_rng(6).normal(size=(5, 2, 6, 6)))
    z = Saddle(jnp.ones((4, 2, 3, 3)), jnp.zeros(()))

    def one(factor):
        operator = saddle_operator(lambda w, v, x: factor * convolve(w, v, x))
        return clipped_sum(operator, Saddle(0.1, None), strategy=strategy)(z, x).w

    actual = jax.jit(jax.vmap(jax.vmap(one)))(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    np.testing.assert_allclose(actual[1, 0], jax.jit(one)(3.0), rtol=1e-12)


@pytest.mark.slow
@strategies
def test_a_loop_that_ends_for_all_together_is_run_for_each_record_alone(strategy):
    """The incomplete beta integral of a record that converges late goes on for the others."""
    row, w = [1.53, 1.447e-4, 0.728], jnp.zeros((), jnp.float32)
    operator = saddle_operator(lambda w, v, x: 3000.0 * w * jax.scipy.special.betainc(*x))
    total = jax.jit(clipped_sum(operator, Saddle(1.0, None), strategy=strategy))
    x = jnp.asarray([row] * 1000, jnp.float32)
    one, other = (total(Saddle(w, w), x.at[0].set(jnp.array(first, jnp.float32))).w
                  for first in ([1.0, 1.0, 0.1], [1e6, 1e6, 0.5]))
    assert 10 < abs(other) < 999  # records that are not clipped
    assert abs(one - other) <= 2


# --- players of many small leaves ---

# scalars, an empty leaf and a matrix of another order, in nine leaves or more a player
MANY = Saddle({"a": [(2,), (), (3, 2), (1, 1, 2), (0, 4)], "b": ((), (), (4,), (2,), (5,))},
              [(), (2, 2), (3,), (), (1,), (2,), (2,), (), ()])


def on_grid(strategy, x, clip, mask):
    """Sums of `ClippedSum.sums` in the shapes of the point: in floating point and on a grid."""
    z = jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), x)
    drawn = integer_sums.dither(jax.random.key(3), z)
    grid = integer_sums.Grid(Saddle(jnp.float32(2.0**18), jnp.float32(2.0**16)), drawn, wide=False)
    total = clipped_sum(ITSELF, clip, strategy=strategy, microbatch=MICROBATCH)
    rounding = summation.Rounding(grid, jnp.array(True), jnp.array(True))
    sums = jax.jit(lambda x: total.sums(z, x, mask, rounding))(x)
    low = jax.tree.map(lambda a: a.low, sums.integers, is_leaf=integer_sums.is_words)
    return [Saddle(*map(tree.arranged, a, z)) for a in (sums.floats, low)], sums, drawn


@pytest.mark.parametrize("strategy", ["vmap", pytest.param("microbatch", marks=pytest.mark.slow)])
def test_many_small_leaves_are_summed_as_one_array_of_the_same_numbers(strategy):
    """By the definition, each number with the dither that it has along all leaves."""
    rng = np.random.default_rng(8)
    x = draw(rng, MANY, dtype=np.float32)
    x.w["b"][0][2] = np.nan
    mask, clip = np.arange(SIZE) != 4, Saddle(0.7, 2.0)
    (floats, low), sums, drawn = on_grid(strategy, x, clip, mask)
    assert [a.shape for a in sums.floats] == [(24,), (16,)]
    assert_equal_sums(flat(floats), reference([rows(a, SIZE) for a in x], clip, mask), 1e-5)
    if strategy == "vmap":  # one block: ceil(s / g - U)
        for s, a, u, scale in zip(*map(flat, (floats, low, drawn)), (2.0**18, 2.0**16),
                                  strict=True):
            # the sum is known to a few of its last bits
            for side in (1 - 1e-6, 1 + 1e-6):
                near = np.ceil(s * scale * side - (u + 0.5) / 256)
                assert np.abs(a - near).max() <= 1
            assert np.mean(a == np.ceil(s * scale - (u + 0.5) / 256)) > 0.9


@pytest.mark.parametrize("strategy", ["vmap", pytest.param("microbatch", marks=pytest.mark.slow)])
def test_many_small_leaves_have_the_integers_that_they_have_one_by_one(monkeypatch, strategy):
    """Of examples within their clip norms, whose weights no last place of a norm decides."""
    x = draw(np.random.default_rng(9), MANY, dtype=np.float32)
    x = jax.tree.map(lambda a: a / np.float32(1e3), x)
    mask = np.arange(SIZE) != 1
    (_, together), sums, _ = on_grid(strategy, x, Saddle(50.0, 50.0), mask)
    monkeypatch.setattr(summation, "_is_split", lambda *_: False)
    (_, apart), other, _ = on_grid(strategy, x, Saddle(50.0, 50.0), mask)
    assert len(jax.tree.leaves(other.floats)) > len(jax.tree.leaves(sums.floats)) == 2
    jax.tree.map(np.testing.assert_array_equal, together, apart)


def test_one_norm_of_many_leaves_clips_them():
    """The last leaf alone is long; and of 5,000 small squares beside a large one none is lost."""
    x = jax.tree.map(lambda s: np.zeros((1, *s), np.float32), MANY, is_leaf=is_shape)
    x.w["b"][4][:] = 7.0
    assert excess(summed("vmap", x, Saddle(1.0, 1.0)), Saddle(1.0, 1.0)) <= 0
    small = np.full((1, 500), np.float32(2.0**-12) * np.float32(0.99999))
    w = [small.copy() for _ in range(10)]
    w[0][0, 0] = 1
    total = summed("vmap", Saddle(w, np.zeros((1, 1), np.float32)), Saddle(1.0, 1.0))
    assert 0.99 <= np.linalg.norm(flat(total)[0]) <= 1


@pytest.mark.parametrize("what", ["few", "types", "narrow", "large", "integers", "no clip"])
def test_other_players_keep_their_leaves(monkeypatch, what):
    """Few or large ones, of several types or one narrower than that of sums: the same program."""
    small = [jnp.zeros(2, jnp.float32) for _ in range(9)]
    w = {"few": small[:7], "types": [*small, jnp.zeros(2, jnp.float64)], "no clip": small,
         "narrow": [jnp.zeros(2, jnp.bfloat16)] * 9, "integers": [*small, jnp.zeros(2, jnp.int32)],
         "large": [jnp.zeros(2**12, jnp.float32) for _ in range(9)]}[what]
    z = Saddle(w, jnp.zeros(()))
    total = clipped_sum(lambda z, x: jax.tree.map(lambda a: a * x.astype(a.dtype), z),
                        Saddle(None, 1.0) if what == "no clip" else Saddle(1.0, 1.0),
                        strategy="vmap")

    def program():
        return str(jax.make_jaxpr(lambda z, x: total.sums(z, x).floats)(z, jnp.ones(3)))

    actual = program()
    monkeypatch.setattr(summation, "_is_split", lambda *_: False)
    assert actual == program()


# --- slices in which no example counts ---

BENT = saddle_operator(lambda w, v, x: jnp.tanh(x @ w["a"]) @ w["b"] * jnp.exp(v))
POINT = Saddle({"a": np.cos(np.arange(15.0)).reshape(3, 5), "b": np.ones(5)}, np.zeros(()))


@functools.cache
def slices_summed(size, skip, whole=True, wanted=(True, True)):
    """Sums in floating point and on a grid, if wanted, and counts, of slices of that size."""
    del whole  # of a bug: not what was compiled before it
    total = dataclasses.replace(clipped_sum(BENT, Saddle(0.5, 0.1), strategy="microbatch",
                                            microbatch=size, skip_empty=skip), counted=True)
    grid = integer_sums.Grid(Saddle(jnp.float64(2.0**19), jnp.float64(2.0**21)),
                             integer_sums.dither(jax.random.key(1), POINT), wide=False)
    return jax.jit(lambda z, x, mask: total.sums(z, x, mask, summation.Rounding(
        grid, *map(jnp.array, wanted))))


def hostile(seed):
    """Examples, some of them far too long or none, and a mask that leaves many of them out."""
    rng = np.random.default_rng(seed)
    x, mask = rng.normal(size=(23, 3)), rng.random(23) < 0.3
    x[rng.integers(0, 23, 6), 1] = [np.nan, np.inf, -np.inf, 1e30, 0.0, 1e-30]
    return x, mask


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 5])
def test_slices_that_are_left_out_change_no_bit(size):
    for seed in range(6):
        x, mask = hostile(seed)
        for some in (mask, np.zeros(23, bool), ~mask):
            jax.tree.map(np.testing.assert_array_equal, *(
                slices_summed(size, skip)(POINT, x, some) for skip in (True, False)))


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["finite", "hostile"])
def test_slices_that_are_left_out_change_no_bit_without_noise(kept):
    """Then the sum on the grid is not wanted, and the one in floating point is the answer."""
    x, mask = hostile(3)
    if kept == "finite":
        x = np.where(np.abs(x) < 10, x, 1.0)
    jax.tree.map(np.testing.assert_array_equal, *(
        slices_summed(2, skip, wanted=(True, False))(POINT, x, mask) for skip in (True, False)))


@pytest.mark.parametrize("strategy", ["vmap", pytest.param("ghost", marks=pytest.mark.slow)])
def test_of_finite_examples_only_the_sum_that_is_wanted_is_made(strategy):
    """And every sum that is wanted is the same, whichever else is, in each lane of a vmap."""
    x, mask = hostile(4)
    finite = np.where(np.abs(x) < 10, x, 1.0)
    total = clipped_sum(BENT, Saddle(0.5, 0.1), strategy=strategy)
    grid = integer_sums.Grid(Saddle(jnp.float64(2.0**19), jnp.float64(2.0**21)),
                             integer_sums.dither(jax.random.key(1), POINT), wide=False)

    def sums(x, floats, integers):
        return total.sums(POINT, x, mask, summation.Rounding(grid, floats, integers))

    one, lanes = jax.jit(sums), jax.jit(jax.vmap(sums, (None, 0, 0)))
    yes, no = np.array(True), np.array(False)
    for examples in (finite, x):
        both = one(examples, yes, yes)
        plain, whole = one(examples, yes, no), one(examples, no, yes)
        for a, b in ((plain.floats, both.floats), (jax.tree.map(lambda a: a[1], lanes(
                examples, np.array([False, True]), np.array([True, False])).floats), both.floats)):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14),
                         a, b)
        jax.tree.map(np.testing.assert_array_equal, whole.integers, both.integers)
        assert all(np.any(a) for a in jax.tree.leaves((plain.floats, whole.integers)))
        if examples is finite:
            assert not any(np.any(a) for a in jax.tree.leaves((plain.integers, whole.floats)))


@pytest.mark.parametrize("rule", ["all", pytest.param("the first", marks=pytest.mark.slow)])
def test_slices_that_are_left_out_too_often_are_found(monkeypatch, rule):
    wrong = jnp.all if rule == "all" else (lambda counted: counted[0])
    monkeypatch.setattr(summation, "has_rows", wrong)
    x, mask = hostile(0)
    assert not np.array_equal(slices_summed(2, True, rule)(POINT, x, mask).floats.v,
                              slices_summed(2, False)(POINT, x, mask).floats.v)


def test_a_mask_alone_says_which_slices_are_left_out():
    """Whatever the examples, the branch on a slice is that of its mask."""
    x, _ = hostile(1)
    total = clipped_sum(BENT, Saddle(0.5, 0.1), strategy="microbatch", microbatch=1,
                        skip_empty=True)
    count = []

    def each(z, x):
        jax.debug.callback(lambda: count.append(1))
        return BENT(z, x)

    seen = jax.jit(dataclasses.replace(total, operator=each))
    for examples, kept in ((x, 0), (x, 4), (x, 23), (np.full_like(x, np.nan), 9)):
        count.clear()
        jax.block_until_ready(seen(POINT, examples, np.arange(23) < kept))
        jax.effects_barrier()
        assert len(count) == kept


def test_an_operator_says_if_slices_are_left_out():
    own = with_strategy(BENT, "microbatch", 1, skip_empty=True)
    assert clipped_sum(own, Saddle(1.0, 1.0)).skip_empty
    assert not clipped_sum(own, Saddle(1.0, 1.0), skip_empty=False).skip_empty
    assert not clipped_sum(BENT, Saddle(1.0, 1.0)).skip_empty  # unless asked for
    x, _ = hostile(0)
    assert "time tells a sample's size" in clipped_sum(own, Saddle(1.0, 1.0)).explain(POINT, x)
    with pytest.raises(ValueError, match="skip_empty must be True or False, got"):
        clipped_sum(BENT, Saddle(1.0, 1.0), skip_empty=1)


@pytest.mark.parametrize(("point", "value", "sums"), [
    ([0.0] * 9, [1.0] * 9, [3.0] * 9),  # numbers of Python
    ({k: 0.0 for k in "abcdefghi"}, [1.0] * 9, [3.0] * 9),
    ([np.zeros(2)] * 9, np.ones(18), np.full(18, 3.0)),
    (np.zeros(18), [np.ones(2)] * 9, [np.full(2, 3.0)] * 9)])
def test_a_sum_has_the_structure_of_the_operators_value(point, value, sums):
    total = clipped_sum(lambda z, x: Saddle(value, x), Saddle(100.0, 100.0), strategy="vmap")
    answer = total(Saddle(point, jnp.zeros(())), jnp.ones(3)).w
    assert jax.tree.structure(answer) == jax.tree.structure(sums)
    jax.tree.map(np.testing.assert_array_equal, answer, sums)
