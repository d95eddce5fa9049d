"""Algorithms of other papers, written with the library: their releases, charges and steps."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.examples.methods import bilevel, contests, double_spider, zeroth_order
from jaxminimax import Query, Saddle

N, KEY, DELTA = 40, jax.random.key(0), 1e-3
DATA = jax.random.normal(jax.random.key(1), (N, 3))
QUERY = Query(clip=Saddle(1.0, 1.0), population=N, noise_multiplier=Saddle(1.0, 1.0))
ONE = dataclasses.replace(QUERY, clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None))
WINDOWS = contests._windows(ONE, 1.0, 2)
BOTH = {"x": jnp.zeros(3), "y": jnp.zeros(3)}


def of_pair(w, v, record):
    y = w["y"] if "y" in w else jnp.full(3, w["eta"])
    return jnp.sum((w["x"] + y - record) ** 2) - (jnp.sum((v + record) ** 2) if len(v) else 0.0)


def of_one(w, v, record):
    return jnp.sum((w - record) ** 2)


METHODS = {
    "double spider": (double_spider, double_spider.Hyper(
        query=WINDOWS, threshold=WINDOWS, step=0.1, step_threshold=0.1, length=0.1, iterations=4),
        of_pair, Saddle({"x": jnp.zeros(3), "eta": jnp.zeros(())}, ())),
    "bilevel": (bilevel, bilevel.Hyper(query=QUERY, outer=ONE, step=Saddle(0.1, 0.1),
                                       step_outer=0.1, inner=3, iterations=4), of_pair,
                Saddle(BOTH, jnp.zeros(3))),
    "zeroth order": (zeroth_order, zeroth_order.Hyper(query=ONE, step=0.1, radius=0.01,
                                                      iterations=4), of_one,
                     Saddle(jnp.zeros(3), ()))}


@pytest.mark.nightly
@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_calibrated_charged_and_checked(name):
    algorithm, hyper, loss, start = METHODS[name]
    problem = jmm.Problem(jmm.saddle_operator(loss))
    jmm.check(problem, start, DATA, hyper, algorithm)  # two releases of one number, other settings
    made = jmm.calibrate(algorithm, hyper, epsilon=1.0, delta=DELTA)
    assert 0.998 < jmm.epsilon(algorithm.mechanism(made), DELTA) <= 1
    done = jmm.run(KEY, start, DATA, made, algorithm, problem)
    allowed = jmm.mechanism.releases(algorithm.mechanism(made))
    assert int(done.state.spent) == allowed
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(done.state.z))
    beyond = jax.jit(functools.partial(algorithm.update, hyper=made, problem=problem))(
        KEY, done.state, DATA)
    # of both players' releases one is NaN, so the point is
    assert any(np.isnan(x).any() for x in jax.tree.leaves(beyond.z))
