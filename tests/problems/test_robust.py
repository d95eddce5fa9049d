"""Penalised weights of records, bounded losses of groups, attacked records: closed forms."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import jaxminimax as jmm
from jaxminimax import Saddle, problems

N, PENALTY, CAP = 200, 0.3, 2.0
BASE = problems.group_glm("logistic", feature_bound=1.0, radius=3.0)


@pytest.fixture(scope="module")
def rows():
    """Labels that a linear scorer gets right for most records, and wrong for a fifth."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.sign(x[:, 0] + 0.2 * rng.normal(size=N)) * np.where(rng.random(N) < 0.2, -1, 1)
    return jnp.asarray(x), jnp.asarray(y)


def risk(losses, penalty, cap):
    """The penalised worst reweighting: the weights at the multiplier for which their mean is 1."""
    def weights(eta):
        return np.clip(1 + (losses - eta) / penalty, 0, cap)

    eta = optimize.brentq(lambda eta: weights(eta).mean() - 1, losses.min() - 1, losses.max() + 1)
    q = weights(eta)
    return np.mean(q * losses) - penalty / 2 * np.mean((q - 1) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize(("penalty", "cap"), [(PENALTY, CAP), (2.0, math.inf), (1e-4, 10.0)])
def test_the_dual_is_the_worst_reweighting(rows, penalty, cap):
    x, y = map(np.asarray, rows)
    theta = jnp.array([1.0, -0.5, 0.3])
    losses = np.log1p(np.exp(-y * (x @ np.asarray(theta))))
    tail = problems.dro(BASE, penalty=penalty, cap=cap).problem
    value = jax.jit(lambda eta: tail.value(Saddle({"theta": theta, "eta": eta}, ()), rows))
    least = optimize.minimize_scalar(value, bounds=(0, BASE.bound), method="bounded",
                                     options={"xatol": 1e-10}).fun
    assert least == pytest.approx(risk(losses, penalty, cap), abs=1e-7)
    if penalty == 2.0:  # no weight is 0, so the penalty is a variance
        assert least == pytest.approx(losses.mean() + losses.var() / 4)
    if cap == 10.0:
        cvar = float(problems.reweighted_risk(jnp.asarray(losses), divergence="cvar", level=0.1))
        assert cvar - penalty * 4.5 - 1e-9 <= least <= cvar + 1e-9


@pytest.mark.slow
def test_a_plan_without_noise_reaches_the_optimum_of_numpy(rows):
    x, y = map(np.asarray, rows)

    def primal(theta):
        return risk(np.log1p(np.exp(-y * (x @ theta))), PENALTY, CAP)

    best = optimize.minimize(primal, np.zeros(3), method="Nelder-Mead",
                             options={"xatol": 1e-6, "fatol": 1e-9}).fun
    tail = problems.dro(BASE, penalty=PENALTY, cap=CAP)
    planned = jmm.plan(jmm.optimistic, population=N, dim=4, bound=tail.bound, smooth=tail.smooth,
                       diameter=tail.diameter, iterations=1000, epsilon=None, delta=1e-3)
    start = problems.reweighted_start(jnp.zeros(3), "cvar")
    state, _ = jax.jit(jmm.run, static_argnums=(4, 5))(
        jax.random.key(0), start, rows, planned.hyper, jmm.optimistic, tail.problem)
    assert best <= primal(np.asarray(state.average.w["theta"])) <= best + 0.002
    assert best + 0.01 < primal(np.zeros(3))


@pytest.mark.parametrize(("base", "numbers", "message"), [
    (problems.group_glm("hinge", feature_bound=1.0, radius=1.0), {"penalty": 1.0}, "smooth"),
    (problems.group_glm("sigmoid", feature_bound=1.0, radius=1.0), {"penalty": 1.0}, "convex"),
    (BASE, {"penalty": 0.0}, "penalty"), (BASE, {"penalty": 1.0, "cap": 1.0}, "cap"),
])
def test_a_bad_base_or_number_is_refused(base, numbers, message):
    with pytest.raises(ValueError, match=message):
        problems.dro(base, **numbers)


# --- bounded losses of groups ---


def test_the_multipliers_of_bounded_groups_attain_the_penalty():
    rng = np.random.default_rng(0)
    g, x, y = rng.integers(0, 4, 60), rng.normal(size=(60, 2)), rng.normal(size=60)
    w = np.array([0.3, -0.2])
    each = (x @ w - y) ** 2 / 2
    shares = np.array([np.mean(g == i) for i in range(4)])
    inside = shares[:3] / shares[:3].sum()  # a quarter of the records is in none of three groups
    means = np.array([each[g == i].sum() / inside[i] / 60 for i in range(3)])
    level = float(np.sort(means)[1:].mean())
    problem = problems.bounded_group_loss(problems.squared_loss, shares=inside, level=level,
                                          weight=3.0, radius=9.0)
    data = jnp.asarray(g), (jnp.asarray(x), jnp.asarray(y))
    v = jax.jit(problem.best_response.v)(jnp.asarray(w), data)
    np.testing.assert_array_equal(v > 0, means > level + 1e-6)
    value = jax.jit(problem.value)(Saddle(jnp.asarray(w), v), data)
    assert value == pytest.approx(each.mean() + 3 * np.maximum(means - level, 0).sum(), rel=1e-6)
    z = Saddle(jnp.asarray(w), jnp.array([0.5, 2.0, 0.0]))
    mean, slope = jax.jit(lambda z: (jmm.metrics.mean_operator(problem, z, data),
                                     jax.grad(problem.value)(z, data)))(z)
    np.testing.assert_allclose(mean.w, slope.w, rtol=1e-6)
    np.testing.assert_allclose(mean.v, -slope.v, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_a_point_between_two_groups_moves_until_the_rarer_one_has_its_bound():
    """Labels are 0 and, of a fifth, 1: the mean is 1/5, and (1 - w)^2 / 2 <= 0.18 wants w = 0.4."""
    g = jnp.asarray(np.arange(50) % 5 == 0, jnp.int32)
    data = g, (jnp.ones((50, 1)), jnp.asarray(g, jnp.float64))
    problem = problems.bounded_group_loss(
        problems.squared_loss, shares=np.array([0.8, 0.2]), level=0.18, weight=20.0, radius=2.0)
    query = jmm.Query(clip=Saddle(1e6, 1e6), noise_multiplier=Saddle(0.0, 0.0), population=50)
    for level_counts, wanted in ((True, 0.4), (False, 0.2)):
        one = problem if level_counts else problem._replace(project=lambda z: Saddle(z.w, 0 * z.v))
        hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.05, 0.5), iterations=4000,
                               averaging=jmm.averaging.TAIL)
        state, _ = jax.jit(jmm.run, static_argnums=(4, 5))(
            jax.random.key(0), Saddle(jnp.zeros(1), jnp.zeros(2)), data, hyper, jmm.sgda, one)
        assert float(state.average.w[0]) == pytest.approx(wanted, abs=0.01)


@pytest.mark.parametrize(("how", "words"), [
    (dict(shares=[0.5, 0.6]), "shares"), (dict(level=0.0), "level"), (dict(weight=-1.0), "weight"),
    (dict(radius=0.0), "radius")])
def test_wrong_bounds_of_groups_are_refused(how, words):
    with pytest.raises(ValueError, match=words):
        problems.bounded_group_loss(problems.squared_loss, **{
            **dict(shares=[0.5, 0.5], level=1.0, weight=1.0, radius=1.0), **how})


# --- attacked records ---


def margin_loss(w, record):
    return jax.nn.softplus(-record[1] * (record[0] @ w))


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "dual", "steps"), [("l2", 2, 1), ("linf", 1, 1), ("l2", 2, 10),
                                                     ("linf", 1, 10)])
def test_an_attack_on_a_linear_score_is_the_worst_shift(rows, norm, dual, steps):
    """The worst loss within r is ln(1 + exp(-(y <w, x> - r |w|_dual))), and so is its gradient."""
    x, y = map(np.asarray, rows)
    w, r = np.array([1.0, -0.5, 0.3]), 0.3
    attack = problems.gradient_attack(margin_loss, radius=r, norm=norm, steps=steps)
    problem = problems.adversarial(margin_loss, attack)
    size = np.linalg.norm(w, dual)
    margins = y * (x @ w) - r * size
    z = Saddle(jnp.asarray(w), ())
    value, mean = jax.jit(lambda z: (problem.value(z, rows),
                                     jmm.metrics.mean_operator(problem, z, rows).w))(z)
    assert value == pytest.approx(np.mean(np.logaddexp(0, -margins)), rel=1e-6)
    steepest = w / size if norm == "l2" else np.sign(w)
    wanted = np.mean((-y[:, None] * x + r * steepest) / (1 + np.exp(margins))[:, None], 0)
    np.testing.assert_allclose(mean, wanted, rtol=1e-6, atol=1e-9)
    moved = jax.jit(jax.vmap(attack, (None, 0)))(z.w, rows)[0] - x
    assert np.linalg.norm(moved, {"l2": 2, "linf": np.inf}[norm], axis=1).max() <= r + 1e-6


def test_no_derivative_comes_back_from_an_attack():
    problem = problems.adversarial(lambda w, record: w * record[0] + record[1],
                                   lambda w, record: (record[0] * w, record[1] * w**2))
    g = problem.operator(Saddle(jnp.array(3.0), ()), (jnp.array(2.0), jnp.array(5.0)))
    assert float(g.w) == 6.0  # of w (2 * 3) + 5 * 9, with both factors held


def test_constants_stay_where_they_hold():
    attack = problems.gradient_attack(BASE, radius=0.2, norm="l2")
    one = problems.adversarial(BASE, attack)
    assert (one.lipschitz, one.bound, one.smooth, one.convex) == (
        BASE.lipschitz, BASE.bound, None, False)
    assert one.project is BASE.project


@pytest.mark.slow
def test_an_attacked_convex_loss_need_not_be_convex():
    """An attack by gradients cannot leave the flat part of a hinge, and jumps at its end."""
    base = problems.group_glm("hinge", feature_bound=1.0, radius=4.0)
    problem = problems.adversarial(base, problems.gradient_attack(base, radius=0.25))
    low, middle, high = jax.vmap(lambda w: problem.loss(w[None], (jnp.full(1, 0.5), jnp.ones(()))))(
        jnp.array([1.1, 1.9, 2.7]))
    assert middle > (low + high) / 2 + 0.1
    assert base.convex
    assert not problem.convex


@pytest.mark.slow
def test_a_private_run_of_an_attacked_loss_is_checked_charged_and_lowers_the_worst_loss(rows):
    problem = problems.adversarial(margin_loss, problems.gradient_attack(
        margin_loss, radius=0.1, norm="l2"))
    hyper = jmm.calibrate(jmm.sgda, jmm.sgda.Hyper(
        query=jmm.Query(clip=Saddle(1.1, None), population=N), step=Saddle(1.0, 1.0),
        iterations=30), epsilon=8.0, delta=1e-4)
    start = Saddle(jnp.full(3, 1e-3), ())
    assert not jmm.check(problem, start, rows, hyper, measure=False).warnings
    state, _ = jmm.run(jax.random.key(0), start, rows, hyper, jmm.sgda, problem)
    plain = jmm.statement(jmm.sgda, hyper, state, delta=1e-4)
    assert plain.epsilon == pytest.approx(jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-4))
    value = jax.jit(problem.value)
    assert value(state.average, rows) < value(start, rows) - 0.03


@pytest.mark.parametrize(("make", "error", "words"), [
    (lambda: problems.gradient_attack(margin_loss, radius=0.0), ValueError, "radius"),
    (lambda: problems.gradient_attack(margin_loss, radius=1.0, norm="l1"), ValueError, "norm"),
    (lambda: problems.gradient_attack(margin_loss, radius=1.0, steps=0), ValueError, "steps"),
    (lambda: problems.gradient_attack(margin_loss, radius=1.0)(
        jnp.ones(3), (jnp.ones(3, jnp.int32), 1.0)), ValueError, "got int32: convert"),
    (lambda: problems.adversarial(margin_loss, lambda record: record), TypeError, "attack is"),
    (lambda: problems.adversarial(lambda w: w, lambda w, record: record), TypeError, "loss is"),
    (lambda: problems.adversarial(problems.worst_group(
        lambda w, record, key: w @ record, problems.ball(1.0), lipschitz=1.0, bound=1.0,
        random=True), lambda w, record: record), ValueError, "must not draw")])
def test_a_wrong_attack_is_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()
