"""Optimistic descent-ascent: its recursion, its stability, and what a round costs."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle, optimistic, sgda

N, D = 12, 2
KEY = jax.random.key(11)
ROWS = tuple(np.random.default_rng(3).normal(size=(2, N, D)))
START = Saddle(np.full(D, 0.8), np.full(D, -0.5))
BILINEAR = jmm.problems.bilinear_game(coupling=1.0, radius=Saddle(50.0, 50.0))
CENTRED = tuple(x - x.mean(0) for x in ROWS)  # the saddle point is 0
RUN = jax.jit(jmm.run, static_argnames=("algorithm", "problem", "observe"))


def query(z=0.0, sampling=jmm.Full()):
    clip = 100.0 if z == 0.0 else 1.0
    return jmm.Query(clip=Saddle(clip, clip), noise_multiplier=Saddle(z, z), population=N,
                     sampling=sampling)


def hyper(z=0.0, rounds=40, step=0.3, sampling=jmm.Full()):
    return optimistic.Hyper(query=query(z, sampling), step=Saddle(step, 0.5 * step),
                            iterations=rounds)


def reference(task, rounds, step):
    """The recursion on the full operator, in NumPy; NumPy's arrays are the players, stacked."""
    z, before, path = np.stack(START), None, []
    for _ in range(rounds):
        path.append(z)
        one = jax.vmap(task.operator, (None, 0))(Saddle(*z), ROWS)
        g = np.stack([np.asarray(x).mean(0) for x in one]) + np.stack(task.public(Saddle(*z)))
        before = g if before is None else before
        z = z - np.array([[step], [0.5 * step]]) * (2 * g - before)
        z = np.stack(task.project(Saddle(*z)))
        before = g
    return z, np.mean(path, 0)


@pytest.mark.slow
def test_without_noise_it_is_the_recursion_with_public_terms_extrapolated_too():
    game = jmm.problems.quadratic_game(modulus=0.2, coupling=0.9, radius=Saddle(0.9, 0.7))
    task = game._replace(public=lambda z: Saddle(0.3 * z.w, 0.1 * z.v + 0.2))
    for rounds in (2, 25):
        state = RUN(KEY, START, ROWS, hyper(rounds=rounds), optimistic, task)[0]
        last, average = reference(task, rounds, 0.3)
        np.testing.assert_allclose(np.stack(state.z), last, rtol=1e-12)
        np.testing.assert_allclose(np.stack(state.average), average, rtol=1e-12)


@pytest.mark.slow
def test_its_last_iterate_finds_the_saddle_that_descent_ascent_spirals_away_from():
    def last(algorithm, made):
        state = RUN(KEY, START, CENTRED, made, algorithm, BILINEAR)[0]
        return float(jnp.linalg.norm(jnp.concatenate(state.z)))

    started = float(np.linalg.norm(np.concatenate(START)))
    rounds = 300
    plain = sgda.Hyper(query=query(), step=Saddle(0.3, 0.15), iterations=rounds)
    assert last(optimistic, hyper(rounds=rounds)) < 1e-3 * started
    assert last(sgda, plain) > 10 * started


@pytest.mark.slow
def test_a_round_is_one_release_charged_as_one_of_sgda():
    made = hyper(4.0, rounds=6, sampling=jmm.Poisson(rate=0.5))
    plain = sgda.Hyper(query=made.query, step=made.step, iterations=6)
    assert optimistic.mechanism(made) == sgda.mechanism(plain)
    state = optimistic.init(START, made)
    step = jax.jit(lambda state: optimistic.update(KEY, state, ROWS, made, BILINEAR))
    for k in range(1, 8):
        state = step(state)
        assert int(state.spent) == k
        assert bool(jnp.all(jnp.isfinite(state.z.w))) == (k <= 6)


@pytest.mark.slow
def test_its_first_step_is_that_of_sgda():
    made = hyper(1.0, rounds=3)
    plain = sgda.Hyper(query=made.query, step=made.step, iterations=3)
    one, other = (x.update(KEY, x.init(START, h), ROWS, h, BILINEAR)
                  for x, h in ((optimistic, made), (sgda, plain)))
    chex.assert_trees_all_close(one.z, other.z, rtol=1e-14)


@functools.cache
def alone(z):
    return RUN(KEY, START, ROWS, hyper(z, rounds=5), optimistic, BILINEAR)[0]


@pytest.mark.slow
def test_it_goes_through_every_driver():
    stacked = jmm.stack([hyper(1.0, rounds=5), hyper(2.0, rounds=5)])
    keys = jax.random.split(KEY, (2, 1)).at[0, 0].set(KEY)
    states = jmm.sweep(keys, START, ROWS, stacked, optimistic, BILINEAR, progress=False)[0]
    chex.assert_trees_all_close(jax.tree.map(lambda x: x[0, 0], states), alone(1.0), rtol=1e-12)
    done = jmm.fit(KEY, START, ROWS, hyper(1.0, rounds=5), optimistic, BILINEAR, delta=1e-6,
                   progress=False, every=2)
    chex.assert_trees_all_close(done.state, alone(1.0), rtol=1e-12)
    assert done.statement.epsilon == jmm.epsilon(optimistic.mechanism(hyper(1.0, rounds=5)), 1e-6)


@pytest.mark.parametrize("step", [Saddle(0.0, 0.1), Saddle(0.1, float("nan"))])
def test_a_step_that_is_none_is_refused(step):
    with pytest.raises(ValueError, match=r"step\.[wv] must lie in"):
        optimistic.init(START, optimistic.Hyper(query=query(), step=step, iterations=3))
