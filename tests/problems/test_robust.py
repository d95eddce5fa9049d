"""Penalised weights of records: the dual against the weights themselves, and a private run."""

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
