"""Average precision: the surrogate against its formula, its metric, and its bound."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import average_precision_score

import jaxminimax as jmm
from benchmarks.examples.average_precision import average_precision, average_precision_start
from jaxminimax import Saddle

RNG = np.random.default_rng(0)
Y = (np.arange(200) % 5 == 0).astype(float)
X = RNG.normal(size=(200, 3)) + 1.5 * Y[:, None] * np.array([1, 0.5, 0])
X /= np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True) / 3)
DATA = jnp.asarray(X), jnp.asarray(Y)


def terms(theta, threshold):
    """Mean log-losses of missed positives and wrong negatives at each threshold, `[m]` twice."""
    above = X @ theta - threshold[:, None]
    losses = [np.logaddexp(0, sign * above) / np.log(2) for sign in (-1, 1)]
    return losses[0][:, Y == 1].mean(1), losses[1][:, Y == 0].mean(1)


def test_the_value_has_its_formula_and_the_best_multipliers_are_the_violated_ones():
    made = average_precision(prior=0.2, feature_bound=3.0, radius=2.0, anchors=4)
    theta, threshold, v = np.array([1.0, 0.5, 0.1]), np.array([0.2, 0.5, -1.0, 2.0]), np.array(
        [0.1, 2.0, 0.0, 1.5])
    missed, wrong = terms(theta, threshold)
    alpha = 0.2 + 0.8 * np.array([1, 3, 5, 7]) / 8
    violated = missed + alpha / (1 - alpha) * 4 * wrong - 1
    w = jax.tree.map(jnp.asarray, {"theta": theta, "threshold": threshold})
    value, best = jax.jit(lambda w, v: (made.problem.value(Saddle(w, v), DATA),
                                        made.problem.best_response.v(w, DATA)))(w, jnp.asarray(v))
    assert value == pytest.approx(np.mean(missed + v * violated))
    np.testing.assert_array_equal(best, np.where(violated > 0, 2.0, 0.0))


@pytest.mark.nightly
def test_a_plan_without_noise_raises_average_precision_and_keeps_its_promise():
    made = average_precision(prior=0.2, feature_bound=3.0, radius=4.0, anchors=20,
                                      multiplier=5.0)
    start = average_precision_start(jnp.zeros(3), anchors=20)
    planned = jmm.plan(jmm.optimistic, population=200, dim=43, bound=made.bound,
                       smooth=made.smooth, diameter=made.diameter, iterations=2000, epsilon=None,
                       delta=1e-3)
    state, _ = jax.jit(jmm.run, static_argnums=(4, 5))(
        jax.random.key(0), start, DATA, planned.hyper, jmm.optimistic, made.problem)
    w = jax.tree.map(np.asarray, state.average.w)
    area = average_precision_score(Y, X @ w["theta"])
    alone = max(average_precision_score(Y, x) for x in X.T)
    assert area > alone
    worst = float(jax.jit(lambda w: jmm.metrics.primal_risk(made.problem, w, DATA))(w))
    assert worst >= (1 - area) / 0.8 - 1 / 20


@pytest.mark.parametrize("bad", [{"prior": 1.0}, {"anchors": 0}, {"radius": 0.0},
                                 {"multiplier": -1.0}, {"feature_bound": np.nan}])
def test_bad_numbers_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        average_precision(**({"prior": 0.2, "feature_bound": 1.0, "radius": 1.0} | bad))
