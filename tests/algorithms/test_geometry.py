"""Entropic steps: what they compute, that they stay inside, and that they cost what others cost."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import jaxminimax as jmm
from jaxminimax import Saddle, problems
from jaxminimax.algorithms.descent import ENTROPIC, EUCLIDEAN, moved, release_variance, stepped
from jaxminimax.audit import pairs

ALGORITHMS = (jmm.sgda, jmm.optimistic, jmm.extragradient)
PAYOFF = np.random.default_rng(0).uniform(-1, 1, size=(1, 3, 4))
GAME = problems.matrix_game(entry_bound=1.0, shape=(3, 4))
START = Saddle(np.full(3, 1 / 3), np.full(4, 1 / 4))
KEY = jax.random.key(5)
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS,
                                         ids=["sgda", "optimistic", "extragradient"])


def hyper(algorithm, geometry, z=0.0, rounds=3, step=0.7):
    clip = GAME.bound
    query = jmm.Query(clip=Saddle(clip, clip), joint=True, noise_multiplier=Saddle(z, z),
                      population=1, exact=False)
    return algorithm.Hyper(query=query, step=Saddle(step, 0.5 * step), iterations=rounds,
                           geometry=geometry)


def softmax(x):
    return special.softmax(x, axis=-1)


@pytest.mark.slow
@each_algorithm
def test_it_is_multiplicative_weights_beside_any_other_player(algorithm):
    """In NumPy: the entropic player of w, the projected one of v."""
    made = hyper(algorithm, Saddle("entropy", "euclidean"))
    state = jmm.run(KEY, START, PAYOFF, made, algorithm, GAME.problem)[0]
    a, before = PAYOFF[0], None

    def operator(w, v):
        return a @ v, -(a.T @ w)

    def step(w, v, g):
        ahead = Saddle(w, v - 0.35 * g[1])
        v = np.asarray(GAME.problem.project(Saddle(jnp.asarray(w), jnp.asarray(ahead.v))).v)
        return softmax(np.log(w) - 0.7 * g[0]), v

    w, v = START
    for _ in range(3):
        g = operator(w, v)
        if algorithm is jmm.extragradient:
            g = operator(*step(w, v, g))
        if algorithm is jmm.optimistic:
            g, before = (g if before is None else
                         [2 * x - y for x, y in zip(g, before, strict=True)]), g
        w, v = step(w, v, g)
    np.testing.assert_allclose(state.z.w, w, rtol=1e-6)
    np.testing.assert_allclose(state.z.v, v, rtol=1e-6, atol=1e-7)


@each_algorithm
def test_the_charge_does_not_see_the_geometry(algorithm):
    one, other = (algorithm.mechanism(hyper(algorithm, g, z=30.0)) for g in (EUCLIDEAN, ENTROPIC))
    assert one == other
    assert algorithm.Hyper(query=one.query, step=Saddle(1.0, 1.0),
                           iterations=3).geometry == EUCLIDEAN


def test_a_step_minimises_its_linear_term_and_the_divergence():
    """At the minimiser the gradient, step g + log(x'/x), is constant along a leaf's last axis."""
    rng = np.random.default_rng(1)
    z = Saddle({"mixture": rng.dirichlet(np.ones(5), 3)}, rng.dirichlet(np.ones(4)))
    g = jax.tree.map(lambda x: rng.normal(size=x.shape), z)
    new = stepped(z, g, Saddle(0.3, 2.0), jnp.int32(1), GAME.problem._replace(
        project=lambda z: z), ENTROPIC)
    for x, y, a, step in ((z.w["mixture"], new.w["mixture"], g.w["mixture"], 0.3),
                          (z.v, new.v, g.v, 2.0)):
        np.testing.assert_allclose(np.sum(y, -1), 1, rtol=1e-6)
        gradient = step * a + np.log(np.asarray(y) / x)
        np.testing.assert_allclose(gradient, gradient[..., :1] * np.ones(x.shape[-1]), atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_it_stays_in_the_simplex_and_what_became_nothing_may_come_back(dtype):
    z = Saddle(*(jnp.asarray([1.0, 0.0, 0.0], dtype),) * 2)
    change = Saddle(*(jnp.asarray([-1e4, 200.0, -3e38], dtype),) * 2)
    new = moved(z, change, GAME.problem._replace(project=lambda z: z), ENTROPIC)
    for x in new:
        assert x.dtype == dtype
        np.testing.assert_array_equal(np.asarray(x, np.float32), [0, 1, 0])


@pytest.mark.slow
def test_noise_and_samples_are_within_the_variance_that_steps_are_made_from():
    """E||xi||^2 of the released mean, both norms: equal to V in l2, below it in l-infinity."""
    dims, n, runs = Saddle(30, 50), 40, 4000
    rows = np.random.default_rng(2).normal(size=(n, 80)).astype(np.float32)
    rows *= 2 / np.linalg.norm(rows, axis=1, keepdims=True)
    z = Saddle(jnp.zeros(30), jnp.zeros(50))
    problem = jmm.Problem(operator=lambda z, x: Saddle(x[:30], x[30:]))
    for sampling in (jmm.Full(), jmm.Poisson(rate=0.3)):
        query = jmm.Query(clip=Saddle(2.0, 2.0), joint=True, noise_multiplier=Saddle(0.8, 0.8),
                          population=n, sampling=sampling, exact=False)
        made = jmm.optimistic.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=1)
        program = jax.jit(jax.vmap(lambda key, made=made: jmm.run(
            key, z, rows, made, jmm.optimistic, problem)[0].z))
        moved = program(jax.random.split(KEY, runs))
        error = [np.asarray(x) + rows.mean(0)[part] for x, part in zip(
            moved, (slice(0, 30), slice(30, 80)), strict=True)]
        square = sum((e**2).sum(1) for e in error)
        stderr = square.std() / math.sqrt(runs)
        assert abs(square.mean() - release_variance(query, 80)) < 4 * stderr
        assert release_variance(query, dims) == pytest.approx(release_variance(query, 80))
        largest = np.mean(sum((e**2).max(1) for e in error))
        assert largest < release_variance(query, dims, ENTROPIC)


def test_the_largest_of_d_squared_normals_is_at_most_two_log_two_d():
    """By the union bound, which is 1 up to a; and for few normals by their own law."""
    for d in (1, 2, 3, 10, 100, 1000, 10**6):
        a = stats.norm.isf(1 / (2 * d))
        assert 1 + 2 * d * a * stats.norm.pdf(a) <= 2 * math.log(2 * d)
    t = np.linspace(0, 60, 200_001)
    for d in (1, 2, 10):
        exact = np.trapezoid(1 - stats.chi2.cdf(t, 1) ** d, t)
        assert 1 - 1e-3 < exact < 2 * math.log(2 * d)


@pytest.mark.parametrize(("geometry", "start", "message"), [
    ("entropy", START, "geometry must be a Saddle"),
    (Saddle("entropy", "l1"), START, r"geometry\.v must be one of euclidean, entropy"),
    (ENTROPIC, Saddle(np.zeros(3), START.v), r"z\.w is not inside the simplex"),
    (ENTROPIC, Saddle(START.w, np.array([2.0, -1.0, 0.0, 0.0])), r"z\.v is not inside"),
    (Saddle("euclidean", "entropy"), Saddle(START.w, 1.0), r"a leaf of z\.v is one number"),
])
def test_what_is_no_geometry_or_no_start_is_refused(geometry, start, message):
    with pytest.raises(ValueError, match=message):
        jmm.optimistic.init(start, hyper(jmm.optimistic, geometry))


def test_attacks_look_at_released_operators_through_euclidean_steps():
    made = hyper(jmm.sgda, ENTROPIC)
    assert pairs.straightened(made) == hyper(jmm.sgda, EUCLIDEAN)
