"""The algorithms against ten lines of NumPy, known saddle points, and exact expected errors."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle

N, D = 40, 3


@pytest.fixture
def game():
    k = jax.random.split(jax.random.key(1))
    data = (jax.random.normal(k[0], (N, D)), jax.random.normal(k[1], (N, D)))
    problem = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 1.5))
    return problem, data


def silent(n=N, sampling=None):
    return jmm.Query(clip=Saddle(math.inf, math.inf), noise_multiplier=Saddle(0.0, 0.0),
                     sampling=sampling or jmm.Full(), population=n)


def ball(x, r):
    return x * min(1.0, r / np.linalg.norm(x))


run = jax.jit(jmm.run, static_argnames=("algorithm", "problem", "observe"))


# ---- equal to the textbook --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["vmap", "microbatch"])
def test_silent_gda_is_projected_gradient_descent_ascent(game, strategy):
    problem, data = game
    hyper = jmm.gda.Hyper(query=silent(), modulus=1.0, offset=0.5, iterations=30)
    problem = problem._replace(operator=jmm.types.with_strategy(problem.operator, strategy, 7))
    state, _ = run(jax.random.key(0), Saddle(jnp.zeros(D), jnp.zeros(D)), data, hyper, jmm.gda,
                   problem)
    a, b = (np.asarray(x).mean(0) for x in data)
    w, v, ws, vs = np.zeros(D), np.zeros(D), [], []
    for t in range(1, 31):
        ws.append(w)
        vs.append(v)
        gw, gv = (w - a) + 0.5 * v, -0.5 * w + (v - b)
        w, v = ball(w - gw / (t + 0.5), 2.0), ball(v - gv / (t + 0.5), 1.5)
    np.testing.assert_allclose(state.z.w, w, rtol=0, atol=1e-10)
    np.testing.assert_allclose(state.z.v, v, rtol=0, atol=1e-10)
    np.testing.assert_allclose(state.average.w, np.mean(ws, 0), rtol=0, atol=1e-10)
    np.testing.assert_allclose(state.average.v, np.mean(vs, 0), rtol=0, atol=1e-10)
    assert int(state.spent) == 30


@pytest.mark.slow
@pytest.mark.parametrize("averaging", [jmm.averaging.UNIFORM, jmm.averaging.TAIL,
                                       jmm.averaging.WEIGHTED])
def test_silent_sgda_on_disjoint_batches_is_minibatch_descent_ascent(game, averaging):
    problem, data = game
    hyper = jmm.sgda.Hyper(query=silent(sampling=jmm.Disjoint(batch=9)), step=Saddle(0.1, 0.3),
                           iterations=10, averaging=averaging)
    state, _ = run(jax.random.key(0), Saddle(jnp.ones(D), jnp.zeros(D)), data, hyper, jmm.sgda,
                   problem)
    w, v, zs = np.ones(D), np.zeros(D), []
    for t in range(10):
        rows = slice((t % 4) * 9, (t % 4) * 9 + 9)
        a, b = (np.asarray(x)[rows].mean(0) for x in data)
        zs.append(np.stack([w, v]))
        gw, gv = (w - a) + 0.5 * v, 0.5 * w - (v - b)
        w, v = ball(w - 0.1 * gw, 2.0), ball(v + 0.3 * gv, 1.5)
    weights = {0: np.ones(10), 1: np.arange(10) >= 5, 2: np.arange(1, 11)}[
        [jmm.averaging.UNIFORM, jmm.averaging.TAIL, jmm.averaging.WEIGHTED].index(averaging)]
    mean = np.einsum("t,tpd->pd", weights / weights.sum(), np.stack(zs))
    np.testing.assert_allclose(state.z.w, w, rtol=0, atol=1e-10)
    np.testing.assert_allclose(state.average.w, mean[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(state.average.v, mean[1], rtol=0, atol=1e-10)


@pytest.mark.slow
def test_the_trace_of_the_auc_spec():
    x = jnp.array([[1.0, 0.0], [0.5, 1.0], [-1.0, 0.5], [0.0, -1.0]])
    y = jnp.array([1.0, 0.0, 0.0, 0.0])
    problem = jmm.problems.auc(jmm.problems.linear_scorer, prior=0.25, radius=Saddle(1.0, 1.0))
    hyper = jmm.sgda.Hyper(query=silent(4), step=Saddle(0.1, 0.2), iterations=3)
    state, trace = run(jax.random.key(0), jmm.problems.auc_start(jnp.zeros(2)), (x, y), hyper,
                       jmm.sgda, problem, observe=lambda s: s.z)
    expected = [(0.233333, -0.033333, 0.0, 0.0, 0.0), (0.400556, -0.061667, 0.046667, -0.008889,
                -0.111111), (0.504102, -0.082343, 0.117444, -0.022519, -0.257704)]
    for t, row in enumerate(expected):
        w, v = trace.w, trace.v
        got = (*w["theta"][t], w["a"][t], w["b"][t], v[t])
        np.testing.assert_allclose(got, row, atol=6e-7)
    m = state.average
    np.testing.assert_allclose((*m.w["theta"], m.w["a"], m.w["b"], m.v),
                               (0.211296, -0.031667, 0.015556, -0.002963, -0.037037), atol=6e-7)
    g = jax.jit(jax.vmap(problem.operator, (None, 0)))(jmm.problems.auc_start(jnp.zeros(2)), (x, y))
    norms = np.sqrt(np.sum(np.square(g.w["theta"]), 1) + g.w["a"] ** 2 + g.w["b"] ** 2)
    np.testing.assert_allclose(norms, (8, 2.981424, 2.981424, 2.666667), atol=1e-6)


@pytest.mark.slow
def test_sgda_with_decaying_steps_is_gda(game):
    problem, data = game
    z = Saddle(jnp.zeros(D), jnp.zeros(D))
    step = jmm.schedules.Decay(scale=0.5, offset=2.0)
    one = jmm.sgda.Hyper(query=silent(), step=Saddle(step, step), iterations=20)
    other = jmm.gda.Hyper(query=silent(), modulus=2.0, offset=2.0, iterations=20)
    a, _ = run(jax.random.key(0), z, data, one, jmm.sgda, problem)
    b, _ = run(jax.random.key(0), z, data, other, jmm.gda, problem)
    chex.assert_trees_all_close(a.average, b.average, atol=1e-12)


@pytest.mark.slow
def test_any_optax_optimiser_for_either_player(game):
    problem, data = game
    hyper = jmm.sgda.Hyper(query=silent(), step=Saddle(0.1, 0.03), iterations=800,
                           optimiser=Saddle(optax.sgd, functools.partial(optax.adam, b1=0.0)))
    problem = problem._replace(project=lambda z: z)
    state, _ = run(jax.random.key(0), Saddle(jnp.ones(D), jnp.ones(D)), data, hyper, jmm.sgda,
                   problem)
    chex.assert_trees_all_close(state.z, problem.saddle_point(data), atol=0.05)


@pytest.mark.slow
def test_a_variational_inequality_needs_its_operator_only():
    """A rotation plus a data term: monotone, and the gradient of nothing."""
    data = jax.random.normal(jax.random.key(3), (50, 2))
    turn = jnp.array([[1.0, 2.0], [-2.0, 1.0]])
    vi = jmm.Problem(operator=lambda z, x: Saddle(turn @ z.w - x, None))
    query = jmm.Query(clip=Saddle(math.inf, None), noise_multiplier=Saddle(0.0, None),
                      population=50)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=300)
    state, _ = run(jax.random.key(0), Saddle(jnp.ones(2), ()), data, hyper, jmm.sgda, vi)
    np.testing.assert_allclose(state.z.w, np.linalg.solve(turn, data.mean(0)), atol=1e-8)


def test_public_terms_are_neither_clipped_nor_noised():
    """A clip norm of 1 cannot hold back a public force of 100."""
    problem = jmm.Problem(operator=lambda z, x: Saddle(0 * x, 0 * x),
                          public=lambda z: Saddle(z.w - 100.0, z.v + 100.0))
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(0.0, 0.0), population=3)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=1)
    state, _ = run(jax.random.key(0), Saddle(jnp.zeros(()), jnp.zeros(())), jnp.zeros(3), hyper,
                   jmm.sgda, problem)
    assert (float(state.z.w), float(state.z.v)) == (100.0, -100.0)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "dtype"), [
    (jmm.sgda, jnp.bfloat16), (jmm.sgda, jnp.float32), (jmm.gda, jnp.float32),
    (jmm.gda, jnp.float64)])
def test_the_dtype_of_the_parameters_is_kept_whatever_the_hypers_are(game, dtype, algorithm):
    problem, data = game
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(1.0, 1.0), population=N)
    if algorithm is jmm.gda:
        hyper = jmm.gda.Hyper(query=query, modulus=1.0, iterations=3)
    else:
        hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=3)
    hyper = jax.tree.map(jnp.float64, hyper)
    z = Saddle(jnp.zeros(D, dtype), jnp.zeros(D, dtype))
    data = jax.tree.map(lambda x: x.astype(dtype), data)
    state, _ = run(jax.random.key(0), z, data, hyper, algorithm, problem)
    assert {x.dtype for x in jax.tree.leaves((state.z, state.average))} == {jnp.dtype(dtype)}
    assert bool(jnp.all(jnp.isfinite(state.z.w.astype(jnp.float32))))


# ---- exact error under noise --------------------------------------------------------------------


@pytest.mark.nightly
def test_gda_meets_the_exact_expected_gap_of_the_uncoupled_game():
    """E gap = (mu/2)(|A|^2 + |B|^2)/T^2 + (p sigma^2/(mu T^2)) sum_s (sum_{t>=s} 1/t)^2."""
    p, mu, rounds, sigma, n, runs = 6, 1.5, 40, 0.7, 5, 20_000
    k = jax.random.split(jax.random.key(7), 3)
    data = (jax.random.normal(k[0], (n, p)), jax.random.normal(k[1], (n, p)))
    problem = jmm.problems.quadratic_game(modulus=mu, coupling=0.0, radius=Saddle(1e3, 1e3))
    # a clip norm above every gradient, so that noise on the mean is clip * z / n = sigma
    clip = 1e3
    query = jmm.Query(clip=Saddle(clip, clip), population=n,
                      noise_multiplier=Saddle(sigma * n / clip, sigma * n / clip))
    hyper = jmm.gda.Hyper(query=query, modulus=mu, iterations=rounds)
    zero = Saddle(jnp.zeros(p), jnp.zeros(p))

    def gap(key):
        state, _ = jmm.run(key, zero, data, hyper, jmm.gda, problem)
        return jmm.metrics.strong_gap(problem, state.average, data)

    gaps = np.asarray(jax.jit(lambda keys: jax.lax.map(gap, keys))(jax.random.split(k[2], runs)))
    a, b = (np.asarray(x).mean(0) for x in data)
    tails = [sum(1 / t for t in range(s, rounds)) for s in range(1, rounds)]
    exact = (mu / 2) * (a @ a + b @ b) / rounds**2
    exact += p * sigma**2 / (mu * rounds**2) * sum(x * x for x in tails)
    error = gaps.std() / math.sqrt(runs)
    assert abs(gaps.mean() - exact) < 4 * error
    # the same comparison sees half the noise on one player, or a neighbouring average window
    assert abs(gaps.mean() - exact * (1 + 0.25) / 2) > 50 * error
    assert 4 * error < 0.015 * exact


def test_theorem_steps():
    step = jmm.sgda.theorem2_step(population=100, dim=4, smooth=2.0, epsilon=1.0, delta=1e-6)
    assert step.w == step.v == pytest.approx(1 / (2 * max(10, math.sqrt(4 * math.log(1e6)))))
    rough = jmm.sgda.theorem2_step(population=100, dim=40, epsilon=0.5, delta=1e-6)
    assert rough.w == pytest.approx(1 / (100 * math.sqrt(40 * math.log(1e6)) / 0.5))
    both = jmm.sgda.theorem3_step(pl=0.5, smooth=2.0, modulus=1.0)
    kappa, primal = 2.0, 2.0 + 4.0
    assert float(both.w(jnp.int32(1))) == pytest.approx(1 / primal)
    assert float(both.w(jnp.int32(1000))) == pytest.approx(2 / (0.5 * 1000))
    ratio = max(8 * kappa**2 * math.sqrt(primal / 0.5), 4 * math.sqrt(2) * kappa**2)
    assert float(both.v(jnp.int32(1))) == pytest.approx(0.5)
    assert float(both.v(jnp.int32(10**9))) == pytest.approx(2 * ratio / (0.5 * 1e6))


@pytest.mark.slow
def test_theorem3_steps_reach_the_saddle_at_least_as_fast_as_proved():
    """mu, rho, c = 1, 1, 0.5; gradient noise 1: the proved rate is t^(-2/3), t^(-1) is seen."""
    mu, rho, c, d, n = 1.0, 1.0, 0.5, 4, 1
    smooth = float(np.linalg.norm([[mu, c], [c, -rho]], 2))
    problem = jmm.problems.quadratic_game(modulus=mu, coupling=c, radius=Saddle(1e6, 1e6))
    data = (jnp.ones((n, d)), -jnp.ones((n, d)))
    query = jmm.Query(clip=Saddle(1e4, 1e4), noise_multiplier=Saddle(1e-4, 1e-4), population=n)
    hyper = jmm.sgda.Hyper(query=query, iterations=5000,
                           step=jmm.sgda.theorem3_step(pl=mu, smooth=smooth, modulus=rho))
    star = problem.saddle_point(data)

    def excess(key):
        _, w = jmm.run(key, Saddle(jnp.zeros(d), jnp.zeros(d)), data, hyper, jmm.sgda, problem,
                       observe=lambda s: s.z.w)
        return jnp.sum((w - star.w[None]) ** 2, 1)[jnp.array([311, 1249, 4999])]

    keys = jax.random.split(jax.random.key(5), 100)
    means = np.asarray(jax.jit(lambda keys: jax.lax.map(excess, keys))(keys)).mean(0)
    risk = (mu + c * c / rho) / 2 * means
    slope = np.polyfit(np.log([312, 1250, 5000]), np.log(risk), 1)[0]
    assert slope < -2 / 3
    np.testing.assert_allclose(risk, (0.0108, 0.00253, 0.00056), rtol=0.35)


# ---- refusals -----------------------------------------------------------------------------------


def test_bad_settings_are_refused_with_their_name(game):
    problem, data = game
    z = Saddle(jnp.zeros(D), jnp.zeros(D))

    def start(**kw):
        settings = {"query": silent(), "step": Saddle(0.1, 0.1), "iterations": 3} | kw
        jmm.run(jax.random.key(0), z, data, jmm.sgda.Hyper(**settings), jmm.sgda, problem)

    for settings, message in [
        ({"step": Saddle(-0.1, 0.1)}, r"step\.w"),
        ({"step": Saddle(0.1, math.nan)}, r"step\.v"),
        ({"step": Saddle(0.1, jmm.schedules.Decay(scale=0.0))}, r"step\.v\.scale"),
        ({"iterations": 0}, "times"),
        ({"averaging": jmm.averaging.Averaging(skip=1.0)}, r"averaging\.skip"),
        ({"query": jmm.Query(clip=Saddle(1.0, 1.0), population=N)}, "calibrate"),
        ({"query": silent(N + 1)}, f"population={N + 1}"),
    ]:
        with pytest.raises(ValueError, match=message):
            start(**settings)
    problem = problem._replace(operator=jmm.types.with_strategy(problem.operator, "magic"))
    with pytest.raises(ValueError, match="strategy must be one of"):
        start()
    with pytest.raises(ValueError, match="Full"):
        hyper = jmm.gda.Hyper(query=silent(sampling=jmm.Poisson(rate=0.1)), modulus=1.0,
                              iterations=3)
        jmm.run(jax.random.key(0), z, data, hyper, jmm.gda, problem)
    with pytest.raises(ValueError, match="modulus"):
        hyper = jmm.gda.Hyper(query=silent(), modulus=0.0, iterations=3)
        jmm.run(jax.random.key(0), z, data, hyper, jmm.gda, problem)


def test_safe_offset_keeps_the_first_step_below_two_rho_over_l_squared():
    assert jmm.gda.safe_offset(1.0, 1.0) == 0.0
    for lipschitz in (2.0, 10.0):
        first = 1 / (1 + jmm.gda.safe_offset(lipschitz, 1.0))
        assert first == pytest.approx(2 / lipschitz**2)
