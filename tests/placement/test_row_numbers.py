"""Rows whose numbers have 64 bits: the host alone counts them."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.base.random_bits import random_words
from jaxminimax.drivers.long_runs import Supply
from jaxminimax.mechanism import sampling
from jaxminimax.placement import host_data

N = 2**33 + 12_345
KEY = jax.random.key(5)
PROBLEM = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
START = Saddle(jnp.zeros(2), jnp.zeros(2))
DRAWN = jmm.FixedSize(batch=1000, replacement=True)


class Numbers:
    """Record i is i, in two words: of row i and of its label."""

    def __len__(self):
        return N

    def __getitem__(self, number):
        x = np.array([number >> 31, number & (2**31 - 1)], np.int32)
        return x, np.zeros(2, np.float32)


class Rows(Numbers):
    """What an operator can read."""

    def __getitem__(self, number):
        x = np.array([number % 7 - 3, number % 5 - 2], np.float32)
        return x, x[::-1].copy()


def repeated(sampling, times, population=N):
    query = jmm.Query(clip=Saddle(2.0, 1.0), noise_multiplier=Saddle(2.0, 2.0),
                      population=population, sampling=sampling)
    return jmm.Repeat(query=query, times=times)


def sent(sampling, times):
    with Supply(KEY, repeated(sampling, times), jmm.placement.HostData(Numbers()), [times], 0,
                times) as supply:
        ((window, count),) = supply.piece(times)
    assert count == times
    return window


def numbers(window):
    return host_data.joined(np.asarray(window.numbers), np.asarray(window.high))


@pytest.mark.parametrize("n", [2**30, 2**31 - 1, 2**33, N, 2**62 - 1])
def test_a_draw_is_the_exact_product_of_96_bits(n):
    words = np.array(random_words(KEY, (3, 60)))
    words[:, :3] = np.array([[0, 2**32 - 1, 2**32 - 1], [0, 2**32 - 1, 0],
                             [0, 2**32 - 1, 2**31]], np.uint32)
    low, high = jax.jit(sampling.wide_scaled, static_argnums=1)(jnp.asarray(words), n)
    exact = [sum(int(w) << 32 * k for k, w in enumerate(column)) * n >> 96 for column in words.T]
    assert host_data.joined(np.asarray(low), np.asarray(high)).tolist() == exact
    assert max(exact) < n


def test_the_rows_sent_are_uniform_over_all_and_each_is_its_number():
    window = sent(DRAWN, 20)
    actual = numbers(window).ravel()
    np.testing.assert_array_equal(window.rows[0][..., 0], window.high)
    np.testing.assert_array_equal(window.rows[0][..., 1], window.numbers)
    assert 0 <= actual.min() < N // 1000
    assert N - N // 1000 < actual.max() < N
    for cell in (actual * 64 // N, actual % 64):
        assert stats.chisquare(np.bincount(cell, minlength=64)).pvalue > 1e-4
    assert len(np.unique(actual)) >= actual.size - 2  # 0.02 pairs are expected


@pytest.mark.parametrize(("batch", "first"), [(3_000, 0), (2**20, N // 2**20 - 2)])
def test_consecutive_rows_are_read_in_order_and_from_the_first_again(batch, first):
    each = N // batch
    draw = jax.jit(lambda k: jmm.Disjoint(batch=batch).draw(None, k, N))
    for release in (first, first + 1, first + each):
        sample = draw(jnp.int32(release))
        actual = host_data.joined(np.asarray(sample.rows), np.asarray(sample.high))
        start = release % each * batch
        np.testing.assert_array_equal(actual, np.arange(start, start + batch))


@pytest.mark.slow
def test_a_release_of_rows_with_another_high_word_is_nan():
    made = repeated(jmm.FixedSize(batch=30, replacement=True), 2)
    with Supply(KEY, made, jmm.placement.HostData(Rows()), [2], 0, 2) as supply:
        ((window, _),) = supply.piece(2)
    release = jax.jit(lambda window: jmm.release(KEY, made, jnp.int32(1), PROBLEM, START, window).w)
    assert bool(jnp.all(jnp.isfinite(release(window))))
    other = dataclasses.replace(window, high=window.high.at[1, 3].add(1))
    assert bool(jnp.all(jnp.isnan(release(other))))


def test_a_run_is_charged_for_all_of_its_records():
    """One draw of n records: Balle, Barthe and Gaboardi's profile, in closed form."""
    n, z = N, 0.25  # the one release is on a sum that moves by two clip norms
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(z, None), population=n,
                      sampling=jmm.FixedSize(batch=1, replacement=True))
    actual = jmm.delta(jmm.Repeat(query=query, times=1), 0.1)
    shift = 2 / z
    g = 1 + math.expm1(0.1) * n
    exact = (stats.norm.cdf(shift / 2 - math.log(g) / shift)
             - g * stats.norm.cdf(-shift / 2 - math.log(g) / shift)) / n
    assert exact <= actual <= 1.1 * exact
    fewer = dataclasses.replace(query, population=2**29)
    assert actual < jmm.delta(jmm.Repeat(query=fewer, times=1), 0.1) / 10


@pytest.mark.slow
def test_a_run_over_more_rows_than_32_bits_count():
    query = repeated(jmm.FixedSize(batch=20, replacement=True), 1).query
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.2, 0.2), iterations=4)
    done = jmm.fit(KEY, START, jmm.placement.HostData(Rows(), rounds=2), hyper, jmm.sgda, PROBLEM,
                   delta=1e-12, every=2, progress=False)
    assert bool(jnp.all(jnp.isfinite(done.state.z.w)))
    assert str(N) in str(done.statement)


@pytest.mark.parametrize("sampling", [jmm.Poisson(rate=1e-6), jmm.FixedSize(batch=20), jmm.Full()])
def test_samplings_that_do_not_count_so_far_are_refused(sampling):
    with pytest.raises(ValueError, match=r"population must be below 2\*\*30"):
        jmm.epsilon(repeated(sampling, 1), 1e-6)


def test_beyond_62_bits_all_are_refused():
    with pytest.raises(ValueError, match=r"population must be below 2\*\*62"):
        jmm.epsilon(repeated(DRAWN, 1, 2**62), 1e-6)


def test_rows_on_a_device_or_a_mesh_or_of_a_drawing_operator_are_refused():
    made = repeated(DRAWN, 1)
    many = jax.ShapeDtypeStruct((N, 2), jnp.float32)
    with pytest.raises(ValueError, match="give HostData, for fit"):
        jax.eval_shape(lambda *x: jmm.release(KEY, made, jnp.int32(0), PROBLEM, START, x), many,
                       many)
    hyper = jmm.sgda.Hyper(query=made.query, step=Saddle(0.2, 0.2), iterations=1)
    mesh = jax.make_mesh((1,), ("data",))
    drawing = PROBLEM._replace(random=True, operator=lambda z, x, key: PROBLEM.operator(z, x))
    with pytest.raises(ValueError, match="an operator that draws nothing"):
        jmm.fit(KEY, START, jmm.placement.HostData(Rows()), hyper, jmm.sgda, drawing, delta=1e-9,
                progress=False)
    with pytest.raises(ValueError, match=r"2\*\*3[01]"):
        jmm.fit(KEY, START, jmm.placement.HostData(Rows()), hyper, jmm.sgda, PROBLEM, delta=1e-9,
                mesh=mesh,
                progress=False)
