"""Clipped sums: three strategies, one number, and a bound that no example escapes."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxminimax import Saddle, clipped_sum, saddle_operator
from jaxminimax.gradients import summation
from jaxminimax.types import with_strategy
from tests.helpers.clipped_examples import (
    DICTS,
    ITSELF,
    MICROBATCH,
    SIZE,
    STRATEGIES,
    assert_equal_sums,
    draw,
    excess,
    flat,
    linear,
    per_row,
    reference,
    rows,
    strategies,
    summed,
)

DTYPES = (jnp.float32, jnp.float64, jnp.bfloat16, jnp.float16)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: x.__name__)
NESTED = Saddle(((2,), [(3, 2), ()], (0, 4)), ())  # tuples, a list, an empty leaf; a scalar player
LARGE = Saddle({"a": (70, 70), "b": ()}, (5000,))


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "shapes", "clip"), [
    *((strategy, shapes, Saddle(0.7, 2.0)) for strategy in STRATEGIES
      for shapes in (DICTS, NESTED)),
    ("vmap", DICTS, Saddle(1.5, None)), ("ghost", DICTS, Saddle(None, 0.1)),
    ("microbatch", LARGE, Saddle(0.7, 2.0))], ids=[
        *(f"{strategy}-{shapes}" for strategy in STRATEGIES for shapes in ("both", "nested")),
        "vmap-no v", "ghost-no w", "microbatch-large"])
@pytest.mark.optimised("both")
def test_every_strategy_is_the_definition(strategy, shapes, clip):
    rng = np.random.default_rng(7)
    x = draw(rng, shapes)
    for mask in (np.ones(SIZE, bool), np.arange(SIZE) == 6, rng.random(SIZE) < 0.5):
        total = summed(strategy, x, clip, mask)
        for player, z in zip(total, x, strict=True):
            assert player is None or jax.tree.structure(player) == jax.tree.structure(z)
        expected = reference([rows(p, SIZE) for p in x], clip, mask)
        assert_equal_sums(flat(total), expected, 1e-12)


def network(w, v, x):
    """A nonlinear loss with integer labels, coupled players and shared weights."""
    features, label = x
    hidden = jnp.tanh(features @ w["in"] + w["bias"])
    logits = hidden @ w["out"]
    return jax.nn.logsumexp(logits) - logits[label] + jnp.sum(v * hidden) - jnp.sum(v**2) / 2


NETWORK = saddle_operator(network)
NETWORK_OF_ONE = jax.jit(NETWORK)


def network_point(rng, dtype=np.float64):
    w = {"in": rng.normal(size=(4, 5)), "bias": rng.normal(size=5), "out": rng.normal(size=(5, 3))}
    return jax.tree.map(lambda a: np.asarray(a, dtype), Saddle(w, rng.normal(size=5)))


# every strategy and every type, not every pair: what a type changes is after the strategies part
PAIRS = pytest.mark.parametrize(("strategy", "dtype"), [
    *((strategy, jnp.float32) for strategy in STRATEGIES), ("vmap", jnp.float64),
    ("ghost", jnp.bfloat16), ("ghost", jnp.float16)], ids=lambda x: getattr(x, "__name__", x))


@pytest.mark.slow
@PAIRS
def test_strategies_agree_on_a_network(strategy, dtype):
    rng = np.random.default_rng(3)
    z = network_point(rng, dtype)
    x = (np.asarray(rng.normal(size=(SIZE, 4)), dtype), rng.integers(0, 3, SIZE))
    clip, mask = Saddle(0.9, 0.4), np.arange(SIZE) != 1
    wide = jax.tree.map(lambda a: a.astype(np.float64), z)
    each = [NETWORK_OF_ONE(wide, (x[0][i].astype(np.float64), x[1][i])) for i in range(SIZE)]
    g = [np.stack([rows(one[p], 1)[0] for one in each]) for p in (0, 1)]
    total = jax.jit(clipped_sum(NETWORK, clip, strategy=strategy, microbatch=MICROBATCH))(
        z, x, mask)
    assert_equal_sums(flat(total), reference(g, clip, mask), 32 * float(jnp.finfo(dtype).eps))
    assert {a.dtype for a in jax.tree.leaves(total)} == {jnp.promote_types(dtype, jnp.float32)}


@pytest.mark.slow
def test_the_operator_descends_for_w_and_ascends_for_v():
    rng = np.random.default_rng(1)
    z, x = network_point(rng), (rng.normal(size=4), np.int32(2))
    g = NETWORK_OF_ONE(z, x)
    by_w, by_v = jax.jit(jax.grad(network, (0, 1)))(*z, x)
    jax.tree.map(np.testing.assert_array_equal, g, Saddle(by_w, -by_v))
    here = network(*z, x)
    along = jax.tree.map(lambda a, b: a - 1e-6 * b, z, g)
    assert network(along.w, z.v, x) < here < network(z.w, along.v, x)


@pytest.mark.slow
@PAIRS
def test_an_empty_batch_is_zeros(strategy, dtype):
    x = draw(np.random.default_rng(0), dtype=dtype)
    none = jax.tree.map(lambda a: a[:0], x)
    for total in (summed(strategy, x, Saddle(1.0, 1.0), np.zeros(SIZE, bool)),
                  summed(strategy, none, Saddle(1.0, 1.0))):
        for a, b in zip(*map(jax.tree.leaves, (total, x)), strict=True):
            assert a.shape == b.shape[1:]
            assert a.dtype == jnp.promote_types(dtype, jnp.float32)
            np.testing.assert_array_equal(a, 0.0)


# --- the bound ---


def alone(x, i):
    """Only example i takes part; the others are as they are, masked."""
    return np.arange(jax.tree.leaves(x)[0].shape[0]) == i


def largest_exponent(dtype):
    """Of powers of ten that the type holds, 30 at most."""
    return min(30.0, math.log10(float(jnp.finfo(dtype).max)) - 0.5)


EXPONENT = st.floats(-30, 30)


@pytest.mark.slow
@strategies
@dtypes
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 2**32 - 1), exponents=st.tuples(*[EXPONENT] * 4),
       clips=st.tuples(EXPONENT, EXPONENT), i=st.integers(0, SIZE - 1))
@example(seed=0, exponents=(30.0, 30.0, 30.0, 30.0), clips=(-30.0, -30.0), i=0)
@example(seed=0, exponents=(-30.0, -30.0, -30.0, -30.0), clips=(-30.0, -30.0), i=3)
@example(seed=0, exponents=(30.0, 30.0, 30.0, 30.0), clips=(30.0, 30.0), i=6)
@pytest.mark.optimised
def test_one_clipped_example_is_never_longer_than_the_clip_norm(
        strategy, dtype, seed, exponents, clips, i):
    """Exactly, in the arithmetic of fractions, whatever the magnitudes."""
    rng = np.random.default_rng(seed)
    leaves, treedef = jax.tree.flatten(draw(rng))
    scale = largest_exponent(dtype) / 30
    x = treedef.unflatten(np.asarray(a / np.abs(a).max() * 10.0 ** (e * scale), dtype)
                          for a, e in zip(leaves, exponents, strict=True))
    clip = Saddle(*(10.0**e for e in clips))
    total = summed(strategy, x, clip, alone(x, i))
    assert np.all(np.isfinite(np.concatenate(flat(total))))
    assert excess(total, clip) <= 0


@pytest.mark.slow
@strategies
@dtypes
@pytest.mark.parametrize(("power", "clip"), [(-0.4, 1e-4), (0.0, 1e-4), (0.5, 1e-4)])
def test_a_long_example_keeps_its_direction_and_attains_the_clip_norm(strategy, dtype, power, clip):
    size = 10.0 ** (power * largest_exponent(dtype))
    clip *= size
    x = jax.tree.map(lambda a: np.asarray(a.astype(np.float64) * size, dtype),
                     draw(np.random.default_rng(5), dtype=dtype))
    clip = Saddle(clip, 10 * clip)
    for i in (0, SIZE - 1):
        total = flat(summed(strategy, x, clip, alone(x, i)))
        for a, p, c in zip(total, x, clip, strict=True):
            g = rows(p, SIZE)[i]
            np.testing.assert_allclose(a / c, g / np.linalg.norm(g), rtol=1e-5)


@pytest.mark.slow
@strategies
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=lambda x: x.__name__)
@pytest.mark.parametrize("size", [1, SIZE])
@pytest.mark.optimised
def test_the_bound_holds_where_squares_overflow_and_is_attained_until_there(strategy, dtype, size):
    """Alone in a slice and of few numbers, an example is one that compilers rewrite most freely."""
    limit = np.sqrt(np.finfo(dtype).max)
    for factor in (0.6, 0.75, 0.95, 1.0, 1.5, 1e3, 1e6):
        x = draw(np.random.default_rng(1), Saddle({"a": (), "b": (1,)}, ()), size, dtype)
        x = jax.tree.map(lambda a, f=factor: np.asarray(np.sign(a) * limit * f, dtype), x)
        total = summed(strategy, x, Saddle(1.0, 1.0), alone(x, size - 1))
        assert excess(total, (1.0, 1.0)) <= 0
        if factor < 0.7:  # the two numbers of w do not overflow together
            assert excess(total, (1.0, 1.0)) > -1e-4
        if factor > 1:  # as long as that, an example is absent
            assert not np.any(np.concatenate(flat(total)))


@pytest.mark.slow
@strategies
@dtypes
@pytest.mark.parametrize("size", [1, SIZE])
@pytest.mark.optimised
def test_the_bound_holds_up_to_the_largest_float(strategy, dtype, size):
    """Where the reciprocal of an entry is subnormal, which compilers round to 0."""
    for factor in (0.02, 0.05, 0.2, 0.3, 0.5, 1.0):
        x = draw(np.random.default_rng(1), size=size)
        x = jax.tree.map(lambda a, f=factor: np.asarray(
            np.sign(a) * f * float(jnp.finfo(dtype).max), dtype), x)
        for clip in (Saddle(1.0, 1.0), Saddle(1e-20, 1e20)):
            assert excess(summed(strategy, x, clip, alone(x, size - 1)), clip) <= 0


@pytest.mark.slow
@strategies
@pytest.mark.parametrize(("count", "dim"), [(4096, 4096), (1024, 32), (4096, 1)])
@pytest.mark.optimised("4096-4096", "1024-32")
def test_one_record_does_not_decide_how_the_others_are_rounded(strategy, count, dim):
    """Small terms after it lie near half a unit of the sum: a running sum loses or doubles them."""
    def loss(w, v, x):
        return w @ jnp.zeros(dim, jnp.float32).at[0].set(x)

    x = np.zeros(count, np.float32)
    half = count // 2
    x[:half], x[half + 1:] = 1, -0.75 * np.spacing(np.float32(0.75 * half))
    y = x.copy()
    x[half], y[half] = 0.5, -0.5
    total = jax.jit(clipped_sum(saddle_operator(loss), Saddle(1.0001, None), strategy=strategy))
    a, b = (float(total(Saddle(jnp.zeros(dim, jnp.float32), ()), d).w[0]) for d in (x, y))
    assert abs(a - b) == pytest.approx(1.0, abs=1e-3)


def test_results_that_are_one_matrix_in_two_orders_are_told_apart():
    def operator(z, x):
        return Saddle((2 * x).ravel(order="F"), (2 * x).ravel())

    x = np.arange(6.0).reshape(1, 2, 3)
    z = Saddle(jnp.zeros(6), jnp.zeros(6))
    total = jax.jit(clipped_sum(operator, Saddle(1e3, 1e3)))(z, x)
    np.testing.assert_allclose(total.w, 2 * x[0].ravel(order="F"))
    np.testing.assert_allclose(total.v, 2 * x[0].ravel())


@pytest.mark.slow
@strategies
@pytest.mark.optimised
def test_pieces_that_cancel_in_one_example_do_not_drown_the_others(strategy):
    """w is used twice, and one example's uses are huge and opposite."""
    def loss(w, v, x):
        return jnp.sum(jnp.sin(w) * x[0] + w * x[1])

    operator, z = saddle_operator(loss), Saddle(jnp.zeros(2, jnp.float32), ())
    x = np.stack([np.ones((50, 2)), np.zeros((50, 2))], 1).astype(np.float32)
    y = x.copy()
    y[0, 0], y[0, 1] = 1e30, -1e30
    a, b = (jax.jit(clipped_sum(operator, Saddle(1.0, None), strategy=strategy))(z, d).w
            for d in (x, y))
    assert np.linalg.norm(a - b) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["vmap", "ghost"])
@pytest.mark.optimised("vmap")
def test_no_number_of_leaves_hides_what_is_small(strategy):
    """One entry of 1 and 199 whose squares are just below half of its last bit.

    A running sum would lose them all: six millionths of the norm, and the margin is four.
    """
    x = np.full(200, np.float32(2.0**-12) * np.float32(0.99999))
    x[0] = 1
    w = [jnp.zeros((), jnp.float32) for _ in x]
    total = clipped_sum(saddle_operator(lambda w, v, x: sum(a * b for a, b in zip(
        w, x, strict=True))), Saddle(1.0, None), strategy=strategy)
    g = jax.jit(total)(Saddle(w, jnp.zeros(())), jnp.asarray(x)[None])
    assert np.linalg.norm(np.array(g.w, np.float64)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.optimised
def test_leaves_of_different_types_are_held_to_the_coarser_ones_rounding(strategy):
    rng = np.random.default_rng(4)
    types = Saddle({"a": np.float32, "b": np.float64}, {"c": {"d": np.float64}, "e": np.float32})
    for _ in range(20):
        x = jax.tree.map(lambda a, t: (1e3 * a).astype(t), draw(rng), types)
        clip = Saddle(0.7, 2.0)
        assert excess(summed(strategy, x, clip, alone(x, 3)), clip) <= 0


def largest_excess(dtype=jnp.float32):
    """Among a hundred examples longer than the clip norm."""
    rng = np.random.default_rng(11)
    f = jax.jit(lambda x: jax.vmap(lambda one: clipped_sum(ITSELF, Saddle(1.0, 1.0))(
        jax.tree.map(jnp.zeros_like, one), jax.tree.map(lambda a: a[None], one)))(x))
    total = f(jax.tree.map(lambda a: a * 200, draw(rng, size=100, dtype=dtype)))
    return max(excess(jax.tree.map(lambda a, i=i: a[i], total), (1.0, 1.0)) for i in range(100))


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["no clipping", "no margin for rounding"])
@pytest.mark.optimised
def test_the_bound_catches(bug, monkeypatch):
    assert largest_excess() <= 0

    def weight(ratio, present):
        return present.astype(ratio.dtype) * (1.0 if bug == "no clipping" else 1.0 / ratio)

    monkeypatch.setattr(summation, "clip_weight", weight)
    assert largest_excess() > 0


@pytest.mark.slow
@strategies
@pytest.mark.optimised
def test_an_example_of_a_million_equal_numbers_is_not_longer_than_the_clip_norm(strategy):
    """Where a running sum of squares would stall."""
    for entry in (1.1, 1.3, 0.7, 1 / 3):
        w = np.zeros((2, 10**6), np.float32)
        w[1] = entry
        total = summed(strategy, Saddle(w, np.zeros(2, np.float32)), Saddle(1.0, None), None, 1)
        assert 1 - 1e-5 < np.linalg.norm(total.w.astype(np.float64)) <= 1.0


@pytest.mark.slow
@strategies
@dtypes
def test_a_short_example_passes_unchanged(strategy, dtype):
    coarse = jnp.finfo(dtype).bits == 16
    for norm in (10.0 ** -largest_exponent(dtype), 1e-3, 0.98 if coarse else 1 - 1e-5):
        x = draw(np.random.default_rng(2))
        scale = Saddle(*(norm / np.linalg.norm(rows(p, SIZE)[4]) for p in x))
        x = Saddle(*(jax.tree.map(lambda a, s=s: np.asarray(a * s, dtype), p)
                     for p, s in zip(x, scale, strict=True)))
        total = summed(strategy, x, Saddle(1.0, 1.0), alone(x, 4))
        for a, b in zip(*map(jax.tree.leaves, (total, x)), strict=True):
            np.testing.assert_array_equal(a, b[4].astype(a.dtype))


@strategies
def test_neighbouring_sums_are_one_or_two_clip_norms_apart(strategy):
    """Removed: at most the clip norm. Replaced: at most twice. Opposite giants attain both."""
    clip = Saddle(0.3, 5.0)
    longest = {"add_or_remove_one": 0.0, "replace_one": 0.0}
    for i in range(SIZE):
        for value in (1.0, 1e3, 1e12):
            x = draw(np.random.default_rng(4))
            factor = np.where(np.arange(SIZE) == i, value, 1.0)
            x = jax.tree.map(lambda a, f=factor: a * per_row(f, a.ndim - 1), x)
            flip = np.where(np.arange(SIZE) == i, -1.0, 1.0)
            opposite = jax.tree.map(lambda a, f=flip: a * per_row(f, a.ndim - 1), x)
            with_it = flat(summed(strategy, x, clip))
            others = {"add_or_remove_one": flat(summed(strategy, x, clip, np.arange(SIZE) != i)),
                      "replace_one": flat(summed(strategy, opposite, clip))}
            for name, other in others.items():
                bound = clipped_sum(ITSELF, clip).sensitivity(name)
                for a, b, c in zip(with_it, other, bound, strict=True):
                    distance = np.linalg.norm(a - b) / c
                    assert distance <= 1 + 1e-13
                    longest[name] = max(longest[name], distance)
    assert min(longest.values()) > 1 - 1e-12


@strategies
@pytest.mark.optimised
def test_rounding_of_long_sums_lets_no_record_move_them_further(strategy):
    """Small terms on a large float32 sum vanish or not as one record decides, where they are added
    one by one: here 2^15 of them, each 3/4 of half the spacing of floats below 2^15."""
    many = 2**15
    spacing = 2.0 ** (15 - 24)
    for slices in (1, 1024):
        w = np.concatenate([np.full(2 * many, 0.5), np.full(many, -0.75 * spacing / slices)])
        x = Saddle(w[:, None].astype(np.float32), np.zeros(3 * many, np.float32))
        other = Saddle(x.w.copy(), x.v)
        other.w[0] = -1.0
        sums = [summed(strategy, y, Saddle(1.0, None), microbatch=32).w.astype(np.float64)
                for y in (x, other)]
        assert abs(sums[0] - sums[1]) < 1.5 + 0.05


def test_sensitivity_is_twice_the_clip_norm_for_replacement_and_once_for_removal():
    f = clipped_sum(ITSELF, Saddle(0.3, None))
    assert f.sensitivity() == f.sensitivity("replace_one") == Saddle(0.6, None)
    assert f.sensitivity("add_or_remove_one") == Saddle(0.3, None)
    with pytest.raises(ValueError, match="replace_one, add_or_remove_one, got 'substitute'"):
        f.sensitivity("substitute")


# --- what is absent, what is infinite ---


@strategies
@pytest.mark.parametrize("player", ["w", "v"])
@pytest.mark.parametrize("absent", [(0,), (3,), (0, 1, 2), (4, 6), tuple(range(7))], ids=str)
def test_a_non_finite_example_counts_as_absent(strategy, player, absent):
    """For both players, wherever it stands, even if there is no other example."""
    for value in (np.nan, np.inf, -np.inf):
        x = draw(np.random.default_rng(8))
        mask = ~np.isin(np.arange(SIZE), absent)
        expected = summed(strategy, x, Saddle(0.5, 0.5), mask)
        jax.tree.leaves(getattr(x, player))[0][~mask, ..., -1] = value
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12),
                     summed(strategy, x, Saddle(0.5, 0.5)), expected)


@strategies
@pytest.mark.optimised
def test_masked_and_non_finite_rows_leave_no_trace_where_a_loss_multiplies_by_zero(strategy):
    """0 * NaN is NaN, in a backward pass too."""
    def loss(w, v, x):
        return jnp.sum(w * x) * 0.0 + jnp.sum(w * jnp.nan_to_num(x)) + jnp.sum(v * x) * 0.0

    f = jax.jit(clipped_sum(saddle_operator(loss), Saddle(1.0, 1.0),
                            strategy=strategy, microbatch=4))
    x, z = np.random.default_rng(9).normal(size=(6, 3)), Saddle(np.ones(3), np.ones(3))
    mask = np.array([False, True, True, False, True, True])
    clean = f(z, x, mask)
    for bad in (np.nan, np.inf):
        x[[0, 3]] = bad
        for some in (mask, np.ones(6, bool), mask | (np.arange(6) == 0)):
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12),
                         f(z, x, some), clean)


@strategies
def test_a_player_without_a_clip_norm_makes_no_example_absent(strategy):
    x = draw(np.random.default_rng(10))
    before = summed(strategy, x, Saddle(0.5, None))
    jax.tree.leaves(x.v)[0][1] = np.nan
    after = summed(strategy, x, Saddle(0.5, None))
    assert before.v is None
    assert after.v is None
    jax.tree.map(np.testing.assert_array_equal, before.w, after.w)


@strategies
def test_an_infinite_clip_norm_gives_the_plain_sum(strategy):
    x = draw(np.random.default_rng(12))
    for a, p in zip(flat(summed(strategy, x, Saddle(np.inf, np.inf))), x, strict=True):
        np.testing.assert_allclose(a, rows(p, SIZE).sum(0), rtol=1e-12, atol=1e-12)


@strategies
@pytest.mark.parametrize("clip", [0.0, np.nan])
def test_a_clip_norm_of_zero_or_nan_lets_nothing_through(strategy, clip):
    x = draw(np.random.default_rng(13))
    for a in flat(summed(strategy, x, Saddle(clip, clip))):
        np.testing.assert_array_equal(a, 0.0)


@strategies
def test_sums_of_bfloat16_are_float32(strategy):
    rng, size, clip = np.random.default_rng(14), 4096, Saddle(3.0, 1.0)
    x = Saddle(rng.normal(size=(size, 17)) + 0.5, rng.normal(size=(size, 3)) + 0.5)
    x = jax.tree.map(lambda a: np.asarray(a, jnp.bfloat16), x)
    total = summed(strategy, x, clip)
    assert {a.dtype for a in jax.tree.leaves(total)} == {np.dtype(np.float32)}
    expected = reference([rows(p, size) for p in x], clip, np.ones(size))
    for a, b in zip(total, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


# --- refusals ---


@pytest.mark.parametrize(("change", "message"), [
    (dict(strategy="two_pass"),
     "strategy must be one of vmap, microbatch, ghost, auto, got 'two_pass'"),
    (dict(microbatch=0), "microbatch must be an integer, at least 1, got 0"),
    (dict(microbatch=2.0), "microbatch must be an integer"),
    (dict(strategy="ghost"), r"give saddle_operator\(loss\), or use 'auto'"),
])
def test_a_senseless_request_is_refused_with_the_fix(change, message):
    with pytest.raises(ValueError, match=message):
        clipped_sum(lambda z, x: z, Saddle(1.0, 1.0), **change)


@pytest.mark.parametrize("examples", [(np.ones((3, 2)), np.ones(4)), (np.ones(3), np.ones(())),
                                      np.ones(()), ()], ids=["3 and 4", "3 and none", "none", "-"])
def test_examples_without_one_leading_axis_are_refused(examples):
    with pytest.raises(ValueError, match="examples must share one leading axis"):
        clipped_sum(ITSELF, Saddle(1.0, 1.0))(Saddle(np.zeros(2), np.zeros(2)), examples)


# --- the operator says how its sums are computed ---


@pytest.mark.slow
@pytest.mark.parametrize("own", [saddle_operator(linear), lambda z, x: Saddle(x.w, x.v)],
                         ids=["of a loss", "of one's own"])
def test_an_operator_brings_its_strategy_and_an_argument_comes_before_it(own):
    x = Saddle(np.ones((7, 2), np.float32), np.ones((7, 3), np.float32))
    z = Saddle(np.zeros(2, np.float32), np.zeros(3, np.float32))
    stated = with_strategy(with_strategy(own, "vmap"), "microbatch", 3)
    total = clipped_sum(stated, Saddle(1.0, 1.0))
    assert total.explain(z, x) == "strategy microbatch"
    assert (total.strategy, total.microbatch) == ("microbatch", 3)
    assert clipped_sum(stated, Saddle(1.0, 1.0), strategy="vmap").strategy == "vmap"
    plain = clipped_sum(own, Saddle(1.0, 1.0))
    assert (plain.strategy, plain.microbatch) == ("auto", 32)
    for a, b in zip(total(z, x), plain(z, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    with pytest.raises(ValueError, match=r"strategy must be one of .*, got 'magic'"):
        clipped_sum(with_strategy(own, "magic"), Saddle(1.0, 1.0))


@pytest.mark.parametrize("strategy", ["vmap", "ghost", "microbatch"])
def test_shares_are_cut_to_at_most_one_clip_norm(strategy):
    records, shares = jnp.eye(5) * 30, jnp.array([9.0, -1.0, jnp.nan, 0.25, 1.0])
    sums = dataclasses.replace(clipped_sum(
        saddle_operator(lambda w, v, x: w @ x), Saddle(2.0, None), strategy=strategy,
        microbatch=2), shared=True)
    total = sums(Saddle(jnp.zeros(5), jnp.zeros(())), (records, shares)).w
    np.testing.assert_allclose(total, [2.0, 0.0, 0.0, 0.5, 2.0], rtol=1e-5)


@pytest.mark.parametrize("strategy", ["vmap", "ghost", "microbatch"])
def test_shares_before_the_clip_make_no_example_longer_than_its_clip_norm(strategy):
    """min(a, C / ||g||) g for finite a >= 0; what is no such number counts as 0."""
    lengths = np.array([30.0, 0.1, 0.1, 30.0, 30.0, 1e-26, 1e18, 1.0, 30.0])
    shares = np.array([9.0, 3.0, 99.0, 0.01, -1.0, 1e26, 1e-18, np.inf, np.nan])
    sums = dataclasses.replace(clipped_sum(
        saddle_operator(lambda w, v, x: w @ x), Saddle(2.0, None), strategy=strategy,
        microbatch=2), shared=True, before_clip=True)
    size = len(shares)
    total = np.asarray(sums(Saddle(jnp.zeros(size), jnp.zeros(())), (
        jnp.asarray(np.diag(lengths), jnp.float32), jnp.asarray(shares, jnp.float32))).w)
    np.testing.assert_allclose(total, [2.0, 0.3, 2.0, 0.3, 0.0, 1.0, 1.0, 0.0, 0.0], rtol=1e-4)
    assert (total <= 2).all()


def test_no_share_before_the_clip_is_so_large_that_a_ratio_vanishes_or_a_weight_overflows():
    """At the ends of float32, and for a narrow leaf next to a wide one."""
    how = summation.Summation(None, Saddle(1e20, None), False, before_clip=True)
    records = Saddle(jnp.asarray([[1e-18, 0.0]], jnp.float32), ())
    weight, _ = how.weights(records, jnp.ones(1, bool), jnp.asarray([3e38], jnp.float32))
    assert float(weight.w[0]) * 1e-18 <= 1e20
    with jax.enable_x64(True):
        wide = Saddle({"a": jnp.zeros((1, 2), jnp.float32), "b": jnp.zeros((1, 2))}, ())
        weight, _ = dataclasses.replace(how, clip=Saddle(1.0, None)).weights(
            wide, jnp.ones(1, bool), jnp.asarray([1e39]))
        assert np.isfinite(np.asarray(weight.w, np.float32)).all()
