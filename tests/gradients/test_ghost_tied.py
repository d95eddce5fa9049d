"""A table that is looked up and multiplied with: two kinds of pieces, one norm, one bound."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxminimax import Saddle, clipped_sum, saddle_operator
from jaxminimax.gradients.ghost import factors, planning
from jaxminimax.gradients.integer_sums import Grid
from jaxminimax.gradients.summation import Rounding
from jaxminimax.mechanism.grid import BLOCK

TABLE, WIDTH, ROWS, LOOKUPS = 60, 8, 2, 3


class Record(NamedTuple):
    """The gradient is M + R, M = sum_t x_t d_t^T, R = sum_s e_(r_s) c_s^T: whatever is wanted."""

    x: np.ndarray
    d: np.ndarray
    ids: np.ndarray
    c: np.ndarray


def chosen(w, v, r):
    return jnp.sum((r.x @ w) * r.d) + jnp.sum(w[r.ids] * r.c) + 0.0 * v


def records(rng, count=6, dtype=np.float64):
    return Record(*(rng.normal(size=(count, *s)).astype(dtype) for s in (
        (ROWS, TABLE), (ROWS, WIDTH))), rng.integers(0, TABLE, (count, LOOKUPS)),
        rng.normal(size=(count, LOOKUPS, WIDTH)).astype(dtype))


def gradients(r):
    """M + R of each record, float64 `[b, n, o]`."""
    g = np.einsum("btn,bto->bno", r.x.astype(np.float64), r.d.astype(np.float64))
    for row, ids, c in zip(g, r.ids, r.c, strict=True):
        np.add.at(row, ids, c)
    return g


@functools.partial(jax.jit, static_argnums=0)
def summed(strategy, clip, r, mask):
    z = Saddle(jnp.zeros((TABLE, WIDTH), r.x.dtype), jnp.zeros((), r.x.dtype))
    return clipped_sum(saddle_operator(chosen), Saddle(clip, None), strategy=strategy)(
        z, r, mask).w


def only(count, i):
    return np.arange(count) == i


def length(x):
    scale = np.abs(x).max()
    return scale * np.linalg.norm(np.asarray(x, np.float64) / scale) if scale else 0.0


def test_what_is_kept_is_said():
    z = Saddle(jnp.zeros((TABLE, WIDTH)), jnp.zeros(()))
    one = jax.tree.map(lambda a: a[0], records(np.random.default_rng(0)))
    plan = planning.plan(chosen, z, one, Saddle(True, False))
    actual = plan.treatments[0]
    held = sum(a.size for a in jax.tree.leaves(jax.eval_shape(plan.example_gradients, z, one)))
    assert held == actual.numbers - 2 * (ROWS + LOOKUPS) ** 2  # and the Gram products
    assert str(actual) == "Gram products of 2 rows and of 3 that are looked up"
    kept = ROWS * (TABLE + WIDTH) + LOOKUPS * (1 + WIDTH) + 2 * (ROWS + LOOKUPS) ** 2
    assert (actual.kind, actual.numbers, actual.bytes) == ("tied", kept, 8 * kept)

    def often(w, v, r):
        return chosen(w, v, r) + jnp.sum(jnp.tanh(r.c @ w.T))

    actual = planning.plan(often, z, one, Saddle(True, False)).treatments[0]
    assert (actual.kind, actual.numbers) == ("matrix", TABLE * WIDTH)

    def cut(w, v, r):
        return jnp.sum((r.x[:, :7] @ w[:7]) * r.d) + jnp.sum(w[r.ids] * r.c)

    actual = planning.plan(cut, z, one, Saddle(True, False)).treatments[0]
    assert str(actual) == "per-example gradient, by way of a function of it"


@pytest.mark.slow
@pytest.mark.optimised
def test_sums_are_those_of_whole_gradients():
    """M and R orthogonal, opposite, equal, at any size, equal rows, rows that are not there."""
    rng = np.random.default_rng(1)
    for trial in range(20):
        r, mask = records(rng), rng.random(6) < 0.8
        size = 10.0 ** rng.uniform(-30, 30, (2, 6))
        r = r._replace(d=r.d * size[0][:, None, None],
                       c=r.c * size[trial % 2][:, None, None])
        r.ids[0], r.ids[1] = 7, [3, TABLE + 9, 3]
        r.x[2], r.x[3] = np.eye(TABLE)[r.ids[2, :2]], np.eye(TABLE)[[5, 5]]
        r.c[2, :2], r.ids[3] = r.d[2] * (1 if trial % 3 else -0.5), [5, 6, 5]
        r.c[4, 0] = np.nan if trial % 4 == 0 else 1.0
        for clip in (1.0, 1e-20, 1e20):
            a, b = (summed(how, clip, r, mask) for how in ("ghost", "vmap"))
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * clip)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
def test_no_record_is_longer_than_the_clip_norm(dtype):
    """Of magnitudes from subnormal to the largest, each piece its own; some products cancel R."""
    rng = np.random.default_rng(2)
    top, attained = np.log10(np.finfo(dtype).max), 0
    for trial in range(120):
        r = records(rng, 1)
        e = [rng.uniform(-top - 6, top, (1, n if trial % 2 else 1, 1))
             for n in (ROWS, ROWS, LOOKUPS)]
        if trial % 3:  # products of the size of the lookups
            e[1] = np.mean(e[2]) - e[0] + rng.uniform(-2, 2)
        with np.errstate(over="ignore", under="ignore"):
            x, d, c = (np.asarray(a * 10.0**b, dtype) for a, b in zip(
                (r.x, r.d, r.c), e, strict=True))
            if trial % 5 == 0:  # M + R all but cancels
                x = np.zeros_like(x)
                x[0, 0, r.ids[0, 0]], c[0, 0] = 1, -d[0, 0] * dtype(1 + 10.0 ** -(trial % 8))
                d[0, 1:], c[0, 1:] = 0, 0
        clip = 10 ** rng.uniform(-20, 20)
        total = np.asarray(summed("ghost", clip, Record(x, d, r.ids, c), np.ones(1, bool)))
        assert np.all(np.isfinite(total))
        assert length(total) <= clip * (1 + 1e-12)
        attained += length(total) > 0.9 * clip
    assert attained > 10


@pytest.mark.slow
@pytest.mark.optimised
def test_a_record_that_cancels_among_many_moves_their_sum_by_its_clip_norm():
    """Lookups that products cancel are long in each sum: in what it rounds, and on the grid."""
    rng, count = np.random.default_rng(3), 2048
    r = records(rng, count, np.float32)
    r = r._replace(ids=np.full_like(r.ids, 7), d=np.abs(r.d), c=np.abs(r.c))
    for rest in (1.0, 0.3, 1e-3, 0.0):
        r.x[0], r.d[0, 1], r.c[0] = 0, 0, 0
        r.x[0, 0, 7], r.c[0, 0] = 1, -r.d[0, 0] * np.float32(1 - rest)
        r.d[0, 0] *= 1e6
        r.c[0, 0] *= 1e6
        masks = np.ones(count, bool), np.arange(count) > 0
        a, b = (np.asarray(summed("ghost", 0.7, r, m), np.float64) for m in masks)
        assert length(a - b) <= 0.7 * (1 + 1e-3)
        r.d[0, 0] /= 1e6


@pytest.mark.slow
def test_records_that_are_not_finite_leave_no_trace():
    rng = np.random.default_rng(4)
    r, mask = records(rng), np.arange(6) != 2
    clean = summed("ghost", 0.7, r, mask)
    for name in ("x", "d", "c"):
        for value in (np.nan, np.inf, -np.inf):
            bad = getattr(r, name).copy()
            bad[2, -1, -1] = value
            for some in (mask, np.ones(6, bool)):
                actual = summed("ghost", 0.7, r._replace(**{name: bad}), some)
                np.testing.assert_allclose(actual, clean, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("dropped", ["cross terms", "lookups"])
def test_a_norm_without_some_pieces_is_seen(dropped, monkeypatch):
    r = records(np.random.default_rng(5), 1)
    r.x[0], r.ids[0], r.c[0] = np.eye(TABLE)[[7, 7]], 7, 1.0
    r.d[0] = 1.0
    assert length(summed("ghost", 1.0, r, only(1, 0))) <= 1 + 1e-12

    def wrong(x, rows, d, least):
        if dropped == "lookups":
            return factors.norms(x, d[:, :ROWS])
        apart = factors.norms(x, d[:, :ROWS]), jnp.sqrt(jnp.sum(jnp.square(d[:, ROWS:]), (1, 2)))
        return jnp.hypot(*apart)

    summed.clear_cache()
    monkeypatch.setattr(factors, "union_norms", wrong)
    assert length(summed("ghost", 1.0, r, only(1, 0))) > 1.3
    summed.clear_cache()


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 700])
def test_sums_on_the_grid_are_those_in_floating_point(count):
    """Rounded once a block, both kinds of pieces together."""
    draw = np.random.default_rng(6)
    r = records(draw, count, np.float32)
    z = Saddle(jnp.zeros((TABLE, WIDTH), jnp.float32), jnp.zeros((), jnp.float32))
    scale = Saddle(jnp.float32(2.0**14), jnp.float32(1.0))
    grid = Grid(scale, jax.tree.map(lambda a: jnp.asarray(draw.integers(
        0, 256, a.shape), jnp.uint8), z), False)
    how = clipped_sum(saddle_operator(chosen), Saddle(1.0, 1.0), strategy="ghost")
    actual = jax.jit(lambda z, r: how.sums(z, r, None, Rounding(
        grid, jnp.array(True), jnp.array(True))))(z, r)
    g = gradients(r)
    exact = (g / np.maximum(1, np.linalg.norm(g, axis=(1, 2), keepdims=True))).sum(0)
    np.testing.assert_allclose(actual.floats.w, exact, rtol=0, atol=1e-4)
    off = np.asarray(actual.integers.w.low, np.float64) - 2.0**14 * exact
    assert np.max(np.abs(off)) <= 1.05 * -(-count // BLOCK) + 2.0**14 * 1e-5 * count


def test_lookups_of_a_block_add_up_to_the_same_bits_in_any_order():
    """Of sizes so different that plain sums in float64 depend on the order."""
    rng = np.random.default_rng(7)
    x, d = np.zeros((BLOCK, 1, 4), np.float32), np.ones((BLOCK, 1, 3), np.float32)
    rows = rng.integers(0, 4, (BLOCK, 2))
    c = (rng.normal(size=(BLOCK, 2, 3)) * 10.0 ** rng.uniform(-9, 0, (BLOCK, 2, 3))).astype(
        np.float32)

    def low_bits(total, scale):
        return ((total * scale * 2.0**20) % 2.0**20).astype(jnp.int32)

    @jax.jit
    def block(rows, c):
        return factors.outer_blocks(x, d, low_bits, (jnp.float32(2.0**17),), jnp.add, BLOCK,
                                     rows, c)

    actual = block(rows, c)
    assert len(np.unique(actual)) > 6
    for _ in range(5):
        order = rng.permutation(BLOCK)
        np.testing.assert_array_equal(block(rows[order], c[order]), actual)
