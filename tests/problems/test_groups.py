"""Groups: the layout of their records, losses with constants, exact solutions, metrics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import jaxminimax as jmm
from benchmarks.examples import demo_games
from jaxminimax.problems import _groups, by_group, group_glm, group_means

# --- layout ---


def test_records_are_laid_out_by_group_in_their_order():
    labels = np.array([2, 0, 2, 1, 0, 2])
    data, sizes = by_group({"x": np.arange(12.0).reshape(6, 2), "y": np.arange(6)}, labels)
    assert sizes == (2, 1, 3)
    np.testing.assert_array_equal(data["y"], [[1, 4, 0], [3, 0, 0], [0, 2, 5]])
    np.testing.assert_array_equal(data["x"][2], [[0, 1], [4, 5], [10, 11]])
    assert data["x"].shape == (3, 3, 2)


@pytest.mark.parametrize(("labels", "message"), [
    (np.array([0, 2, 0]), "Group 1"),
    (np.array([0.0, 1.0, 0.0]), "group numbers"),
    (np.array([0, 1]), "2 labels"),
    (np.array([-1, 0, 1]), "group numbers"),
    (np.zeros((3, 1), int), "group numbers"),
])
def test_labels_that_are_no_groups_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        by_group(np.zeros((3, 2)), labels)


# --- losses ---


@pytest.mark.slow
@pytest.mark.parametrize("name", _groups.GLM_LOSSES)
def test_the_constants_of_a_loss_hold_whatever_a_record_contains_and_are_reached(name):
    r, radius, label = 0.7, 3.0, 1.5
    problem = group_glm(name, feature_bound=r, radius=radius, label_bound=label, steepness=2.0)
    k = jax.random.split(jax.random.key(0), 3)
    w = jax.jit(jax.vmap(problem.project))(3 * jax.random.normal(k[0], (400, 3)))
    x, y = 2 * jax.random.normal(k[1], (400, 3)), 2 * jax.random.normal(k[2], (400,))
    odd = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 1e300, 0.0])
    x = x.at[:5, 1].set(odd)
    y = y.at[3:8].set(odd)
    # the extreme margins: x along w, y against and with it
    w = w.at[-2:].set(jnp.array([radius, 0, 0]))
    x = x.at[-2:].set(jnp.array([9.0, 0, 0]))
    y = y.at[-2:].set(jnp.array([-9.0, 9.0]))
    value, slope = jax.jit(jax.vmap(jax.value_and_grad(problem.loss)))(w, (x, y))
    norms = jnp.linalg.norm(slope, axis=1)
    assert jnp.all(value >= 0)
    assert jnp.max(value) == pytest.approx(problem.bound)
    assert jnp.all(norms <= problem.lipschitz * (1 + 1e-12))
    assert jnp.max(norms) >= (0.8 if name == "sigmoid" else 0.999) * problem.lipschitz
    if problem.smooth is not None:
        curves = jax.jit(jax.vmap(jax.hessian(problem.loss)))(w, (x, y))
        curve = np.linalg.norm(curves, 2, axis=(1, 2))
        assert 0.5 * problem.smooth <= jnp.max(curve) <= problem.smooth * (1 + 1e-12)


def test_the_operator_is_the_gradient_of_the_loss_of_any_tree():
    problem = jmm.problems.worst_group(
        lambda w, record: jnp.sum((w["a"] - record["x"]) ** 2) + w["b"] ** 2,
        jmm.problems.ball(2.0), lipschitz=8.0, bound=20.0)
    w, record = {"a": jnp.array([1.0, -1.0]), "b": jnp.array(0.5)}, {"x": jnp.array([0.5, 0.0])}
    g = problem.operator(jmm.Saddle(w, ()), record)
    np.testing.assert_allclose(g.w["a"], [1.0, -2.0])
    np.testing.assert_allclose(g.w["b"], 1.0)
    assert hash(problem) == hash(problem)
    assert problem.diameter == 4.0
    with pytest.raises(ValueError, match="bound"):
        jmm.problems.worst_group(problem.loss, jmm.problems.ball(1.0), lipschitz=1.0, bound=0.0)


def test_a_record_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="shape"):
        group_glm("hinge", feature_bound=1.0, radius=1.0).loss(jnp.zeros(2), (jnp.zeros(3), 1.0))


# --- exact solutions ---


def worst(w, means, spreads):
    return np.max(np.sum((w - means) ** 2, 1) / 2 + spreads)


def test_groups_around_a_centre_have_it_as_their_solution():
    p, d, far = 5, 7, 0.4
    u = np.eye(p, d) - np.append(np.full(p, 1 / p), np.zeros(d - p))
    u /= np.linalg.norm(u[0])
    centre = np.linspace(-0.2, 0.3, d)
    w, v, value = demo_games.group_means_optimum(centre + far * u, np.full(p, 0.1))
    np.testing.assert_allclose(w, centre, atol=1e-12)
    np.testing.assert_allclose(v, 1 / p, atol=1e-12)
    assert value == pytest.approx(far**2 / 2 + 0.1)


@pytest.mark.parametrize(("spreads", "share"), [((0.1, 0.1), 0.5), ((0.3, 0.1), 0.25),
                                                ((0.1, 2.0), 1.0)])
def test_of_two_groups_the_wider_one_pulls_harder(spreads, share):
    """S = clip(1/2 + (V_2 - V_1) / (2 D^2), 0, 1) of the way to the second, V = 2 c."""
    means = np.array([[0.0, 0.0], [0.0, np.sqrt(0.8)]])
    w, v, _ = demo_games.group_means_optimum(means, np.array(spreads))
    np.testing.assert_allclose(v, [1 - share, share], atol=1e-9)
    np.testing.assert_allclose(w, share * means[1], atol=1e-9)


@pytest.mark.parametrize("p", [3, 8])  # 8 groups in 3 dimensions: more than can be active
def test_the_solution_agrees_with_a_general_solver(p):
    rng = np.random.default_rng(p)
    means, spreads = rng.normal(size=(p, 3)), rng.uniform(0, 1, p)
    w, v, value = demo_games.group_means_optimum(means, spreads)
    actual = optimize.minimize(
        lambda x: x[3], np.append(means.mean(0), 10.0), method="SLSQP", tol=1e-14, constraints={
            "type": "ineq",
            "fun": lambda x: x[3] - np.sum((x[:3] - means) ** 2, 1) / 2 - spreads})
    assert value == pytest.approx(actual.fun, abs=1e-7)
    assert value == pytest.approx(worst(w, means, spreads))
    # the weighted risk of the weights is smallest at w and as large
    assert v @ (np.sum((w - means) ** 2, 1) / 2 + spreads) == pytest.approx(value)


# --- metrics ---


@pytest.mark.slow
def test_risks_are_means_over_a_groups_own_records():
    rng = np.random.default_rng(0)
    labels = np.array([0, 1, 1, 2, 2, 2, 2])
    x, y = rng.normal(size=(7, 2)), rng.choice([-1.0, 1.0], 7)
    w = jnp.array([0.6, -0.2])
    problem = group_glm("logistic", feature_bound=10.0, radius=1.0)
    data, sizes = by_group((x, y), labels)
    margins = y * (x @ np.asarray(w))
    loss = np.log1p(np.exp(-margins))
    risks = [loss[labels == i].mean() for i in range(3)]
    np.testing.assert_allclose(jmm.metrics.group_risks(problem, w, data, sizes), risks)
    assert jmm.metrics.worst_group_risk(problem, w, data, sizes) == pytest.approx(max(risks))


@pytest.mark.slow
def test_the_mean_problem_measures_what_its_optimum_solves():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(40, 3)) * 0.3
    data, sizes = by_group(z, np.arange(40) % 4)
    moments = [(data[i].mean(0), data[i].var(0).sum() / 2) for i in range(4)]
    w, _, value = demo_games.group_means_optimum(*map(np.array, zip(*moments, strict=True)))
    problem = group_means(radius=1.0, record_bound=5.0)
    assert jmm.metrics.worst_group_risk(problem, jnp.asarray(w), data, sizes) == (
        pytest.approx(value))
