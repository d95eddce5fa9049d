"""Players that take turns in `sgda`: steps, noise, clip norms and charge of every release."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import jaxminimax as jmm
from jaxminimax import Query, Saddle
from tests.helpers.lanes import rest_nightly

N, KEY, DELTA = 40, jax.random.key(0), 1e-5
DATA = jax.random.normal(jax.random.key(1), (N, 3))
START = Saddle(jnp.zeros(3), jnp.ones(3))
run = jax.jit(jmm.run, static_argnames=("algorithm", "problem"))


def of_saddle(w, v, record):
    return w @ (v - record) + w @ w - v @ v


PROBLEM = jmm.Problem(jmm.saddle_operator(of_saddle))
# a critic w of the records, and a generator v that reads none
CRITIC = jmm.Problem(jmm.saddle_operator(lambda w, v, record: w @ record + w @ w),
                     public=lambda z: Saddle(-z.v, z.w))


def settings(turns, clip=Saddle(1e3, 1e3), noise=0.0, **more):
    query = Query(clip=clip, population=N, noise_multiplier=Saddle(
        *(None if c is None else noise for c in clip)))
    return jmm.sgda.Hyper(query=query, turns=turns, **{
        "step": Saddle(0.1, 0.2), "iterations": 3, **more})


@pytest.mark.slow
def test_players_move_one_after_the_other():
    mean, w, v, ws = np.asarray(DATA, np.float64).mean(0), np.zeros(3), np.ones(3), []
    state = run(KEY, START, DATA, settings(Saddle(2, 3)), jmm.sgda, PROBLEM).state
    for _ in range(3):
        ws.append(w)
        for _ in range(3):
            v = v + 0.2 * (w - 2 * v)
        for _ in range(2):
            w = w - 0.1 * (v - mean + 2 * w)
    np.testing.assert_allclose(state.z.v, v, rtol=1e-6)
    np.testing.assert_allclose(state.z.w, w, rtol=1e-6)
    np.testing.assert_allclose(state.average.w, np.mean(ws, 0), rtol=1e-6)
    assert int(state.spent) == 15


@pytest.mark.parametrize("optimiser", [optax.sgd, *rest_nightly([optax.adam], 0)])
def test_a_player_without_a_clip_norm_moves_with_the_last_of_several_steps(optimiser):
    hyper = settings(Saddle(4, 1), Saddle(1e3, None), optimiser=Saddle(optimiser, optimiser))
    state = run(KEY, START, DATA, hyper, jmm.sgda, CRITIC).state
    assert int(state.spent) == 12
    one = [optimiser(0.1), optimiser(0.2)]
    mean, w, v = jnp.asarray(DATA).mean(0), START.w, START.v
    of_w, of_v = one[0].init(w), one[1].init(v)
    for _ in range(3):
        for k in range(4):
            slope = w  # the public one of v, before w moves
            change, of_w = one[0].update(mean + 2 * w - v, of_w)
            w = w + change
            if k == 3:
                change, of_v = one[1].update(slope, of_v)
                v = v + change
    np.testing.assert_allclose(state.z.w, w, rtol=1e-5)
    np.testing.assert_allclose(state.z.v, v, rtol=1e-5)


def mu_of(noise, releases):
    """Of replacing a record: 2 C over z C, for each release."""
    return 2 / noise * math.sqrt(releases)


def gaussian_delta(epsilon, mu):
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
        -mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("turns", "clip", "releases"), [
    (Saddle(1, 5), Saddle(1.0, 2.0), 18), (Saddle(5, 1), Saddle(1.0, None), 15),
    (Saddle(1, 1), Saddle(1.0, 1.0), 6)])
def test_every_step_is_charged(turns, clip, releases):
    hyper = settings(turns, clip, 20.0)
    described = jmm.sgda.mechanism(hyper)
    assert jmm.mechanism.releases(described) == releases
    epsilon = jmm.epsilon(described, DELTA)
    assert gaussian_delta(epsilon, mu_of(20.0, releases)) == pytest.approx(DELTA, rel=0.02)
    # with one of the critic's steps charged it would be far smaller
    assert gaussian_delta(epsilon, mu_of(20.0, 6)) < 0.5 * DELTA or releases == 6


def zero(w, v, record):
    return 0 * (w @ v)


@pytest.mark.parametrize(("turns", "clip"), [
    (Saddle(2, 4), Saddle(1.0, 3.0)),
    pytest.param(Saddle(4, 1), Saddle(2.0, None), marks=pytest.mark.slow)])
def test_every_step_has_noise_of_its_own_and_of_the_size_that_is_charged(turns, clip):
    """Steps of 1 add noises up: k independent ones of C z / n have the variance k (C z / n)^2."""
    noise, problem = 5.0, jmm.Problem(jmm.saddle_operator(zero))
    hyper = settings(turns, clip, noise, iterations=1, step=Saddle(1.0, 1.0))
    start = Saddle(jnp.zeros(1200), jnp.zeros(1200))
    moved = run(KEY, start, DATA, hyper, jmm.sgda, problem).state.z
    for x, k, c in zip(moved, turns, clip, strict=True):
        x = np.asarray(x)
        if c is None:
            assert not x.any()
            continue
        wanted = k * (c * noise / N) ** 2
        error = wanted * math.sqrt(2 / x.size)
        assert abs(np.mean(x**2) - wanted) < 4 * error
    if clip.v is not None:  # and those of both players are not one
        both = np.corrcoef(*moved)[0, 1]
        assert abs(both) < 4 / math.sqrt(1200)


def test_a_record_moves_every_step_by_its_clip_norm_at_most():
    problem = jmm.Problem(jmm.saddle_operator(lambda w, v, record: w @ record - v @ record))
    hyper = settings(Saddle(2, 3), Saddle(1.0, 2.0), iterations=1, step=Saddle(1.0, 1.0))
    far = DATA.at[0].set(1e6)
    ends = [run(KEY, START, rows.at[1:].set(0.0), hyper, jmm.sgda, problem).state.z
            for rows in (far, -far)]
    for a, b, k, c in zip(*ends, hyper.turns, hyper.query.clip, strict=True):
        assert float(jnp.linalg.norm(a - b)) == pytest.approx(2 * c * k / N, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("turns", "clip", "problem"), [
    (Saddle(1, 3), Saddle(1.0, 2.0), PROBLEM), (Saddle(3, 1), Saddle(1.0, None), CRITIC)])
def test_turns_are_checked_calibrated_stated_and_end_with_the_budget(turns, clip, problem):
    hyper = dataclasses.replace(settings(turns, clip), query=Query(
        clip=clip, population=N, sampling=jmm.Poisson(rate=0.5)))
    hyper = jmm.calibrate(jmm.sgda, hyper, epsilon=1.0, delta=DELTA)
    assert 0.998 < jmm.epsilon(jmm.sgda.mechanism(hyper), DELTA) <= 1
    assert jmm.check(problem, START, DATA, hyper, measure=False).privacy["noise is set"]
    done = jmm.fit(KEY, START, DATA, hyper, jmm.sgda, problem, delta=DELTA)
    assert done.statement.epsilon <= 1
    assert int(done.state.spent) == jmm.mechanism.releases(jmm.sgda.mechanism(hyper))
    beyond = jax.jit(functools.partial(jmm.sgda.update, hyper=hyper, problem=problem))(
        KEY, done.state, DATA)
    assert np.isnan(beyond.z.w).all()


@pytest.mark.parametrize(("change", "error", "words"), [
    (dict(turns=3), TypeError, "turns must be a Saddle"),
    (dict(turns=Saddle(0, 1)), ValueError, r"turns\.w must"),
    (dict(turns=Saddle(1, 2.5)), ValueError, r"turns\.v must"),
    (dict(turns=Saddle(1, 2), clip=Saddle(1.0, None)), ValueError, r"turns\.v must be 1"),
    (dict(turns=Saddle(1, 2), joint=True), ValueError, "leave joint, adaptive and bands out"),
    (dict(turns=Saddle(1, 2), bands=2), ValueError, "leave joint, adaptive and bands out"),
    (dict(turns=Saddle(1, 2), adaptive=jmm.AdaptiveClip()), ValueError, "leave joint")])
def test_wrong_turns_are_refused_before_rows_are_read(change, error, words):
    turns, clip = change.pop("turns"), change.pop("clip", Saddle(1.0, 1.0))
    hyper = settings(turns, clip, 5.0)
    hyper = dataclasses.replace(hyper, query=dataclasses.replace(hyper.query, **change))
    with pytest.raises(error, match=words):
        jmm.run(KEY, START, DATA, hyper, jmm.sgda, PROBLEM)
    with pytest.raises(error, match=words):
        jmm.calibrate(jmm.sgda, hyper, epsilon=1.0, delta=DELTA)
