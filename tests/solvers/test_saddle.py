"""Operator extrapolation keeps its proven bound, and certificates bound the true distance."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxminimax import problems, solvers
from jaxminimax.solvers import saddle

DIM = 6
BOX = problems.box(-np.ones(DIM), 2 * np.ones(DIM))
SETS = {"ball": problems.ball(1.5), "box": BOX, "simplex": problems.simplex()}
sets = pytest.mark.parametrize("name", list(SETS))


def norm(x):
    return float(jnp.linalg.norm(x))


def instance(rng, domain):
    """A monotone affine operator, a proximal term and a set, with a solution known exactly.

    u is a random point of the set, often on its boundary, and q = -(A + mu) u + mu c - N with N
    normal to it.
    """
    mu = 10 ** rng.uniform(-2, 0.5)
    half = rng.normal(size=(DIM, DIM)) * rng.choice([0.0, 0.3])
    turn = rng.normal(size=(DIM, DIM)) * 10 ** rng.uniform(-1, 0.5)
    matrix = half @ half.T + turn - turn.T
    centre = rng.normal(size=DIM)
    outside = rng.normal(size=DIM) * rng.choice([0.1, 3.0])
    solution = np.asarray(domain.project(jnp.asarray(outside)))
    normal = rng.choice([0.0, 1.0, 10.0]) * (outside - solution)
    start = np.asarray(domain.project(jnp.asarray(3 * rng.normal(size=DIM))))
    offset = mu * (centre - solution) - matrix @ solution - normal
    return matrix, offset, start, solution, centre, float(np.linalg.norm(matrix, 2)), mu


def regularised(matrix, q, centre, lipschitz, mu, domain):
    return solvers.Regularised(lambda u: matrix @ u + q, None, 0, domain.project, centre, mu,
                               lipschitz)


@functools.cache
def instances(name, count=100):
    rng = np.random.default_rng(len(name))
    rows = [instance(rng, SETS[name]) for _ in range(count)]
    return tuple(jnp.asarray(np.stack(x)) for x in zip(*rows, strict=True))


@functools.cache
def solved(name, steps):
    """Distances of u and of v, and residuals, over the instances."""
    domain = SETS[name]

    def one(matrix, q, start, solution, centre, lipschitz, mu):
        problem = regularised(matrix, q, centre, lipschitz, mu, domain)
        u = solvers.operator_extrapolation(problem, start, steps)
        actual = solvers.certify(problem, u)
        v = actual.point
        g = problem.mean(v) + mu * (v - centre)
        least = g @ (v - domain.support(g))
        return (jnp.linalg.norm(u - solution), jnp.linalg.norm(v - solution), actual.residual,
                jnp.linalg.norm(start - solution), least)

    return [np.asarray(x) for x in jax.jit(jax.vmap(one))(*instances(name))]


def proven(steps, ratio, start):
    """The bound on the distance after so many steps, of mu / l and the first distance."""
    kappa = 1 + ratio
    return np.sqrt(2 * kappa / (2 * kappa - 1)) * kappa ** (-steps / 2) * start


@pytest.mark.slow
@sets
@pytest.mark.parametrize("steps", [1, 3, 10, 40])
def test_the_error_never_exceeds_the_proven_bound(name, steps):
    distance, _, _, start, _ = solved(name, steps)
    *_, lipschitz, mu = instances(name)
    bound = proven(steps, np.asarray(mu / lipschitz), start)
    assert np.all(distance <= bound + 1e-12)
    assert np.max(distance / np.maximum(bound, 1e-12)) > 0.1


@pytest.mark.slow
@sets
@pytest.mark.parametrize("steps", [1, 10, 300])
def test_certificates_bound_the_distance_and_the_gap(name, steps):
    _, distance, residual, _, gap = solved(name, steps)
    mu = np.asarray(instances(name)[-1])
    assert np.all(distance <= residual / mu + 1e-12)
    assert np.all(gap <= residual * SETS[name].diameter + 1e-12)
    tight = (distance * mu / np.maximum(residual, 1e-300))[residual > 1e-9]
    assert not len(tight) or tight.max() > 0.1


@pytest.mark.slow
@sets
def test_the_count_of_steps_brings_the_residual_below_its_target(name):
    domain = SETS[name]
    @jax.jit
    def solve(matrix, q, start, centre, lipschitz, mu, steps):
        problem = regularised(matrix, q, centre, lipschitz, mu, domain)
        return solvers.certify(problem, solvers.operator_extrapolation(problem, start, steps))

    for row in list(zip(*instances(name), strict=True))[:40]:
        matrix, q, start, solution, centre, lipschitz, mu = row
        steps = solvers.certifying_steps(1e-3, lipschitz=float(lipschitz), prox=float(mu),
                                         distance=domain.diameter)
        actual = solve(matrix, q, start, centre, lipschitz, mu, steps)
        assert float(actual.residual) <= 1e-3
        assert norm(actual.point - solution) <= 1e-3 / mu


@pytest.mark.slow
def test_the_bound_without_its_constant_would_be_exceeded():
    """kappa^(-T/2) alone, as printed: some short run is farther away than that."""
    ratios = []
    for name in SETS:
        distance, _, _, start, _ = solved(name, 1)
        *_, lipschitz, mu = instances(name)
        allowed = start * (1 + np.asarray(mu / lipschitz)) ** -0.5
        ratios += list(distance[start > 0] / allowed[start > 0])
    assert max(ratios) > 1


@pytest.mark.parametrize(("prox", "lipschitz", "steps"), [(1.0, 2.0, 51), (10.0, 11.0, 32)])
def test_the_count_is_the_worked_example_and_its_bound_is_nearly_reached(prox, lipschitz, steps):
    """D = 2 and an accuracy of 1e-4."""
    made = saddle.extrapolation_steps(1e-4, lipschitz=lipschitz, prox=prox, distance=2.0)
    assert made == steps
    after = [proven(t, prox / lipschitz, 2.0) for t in (steps, steps - 3)]
    assert after[0] <= 1e-4 < after[1] * 1.5


@pytest.mark.parametrize(("smooth", "diameter", "n", "bound", "prox", "published"), [
    (1.0, math.sqrt(2), 512, 1.69705627, 0.654, 49),
    (1.0, math.sqrt(2), 13107, 1.69705627, 0.13, 252), (10.0, 2.0, 10_000, 1.0, 1.0, 384)])
def test_a_hundredth_of_the_sensitivity_takes_the_published_steps_or_a_few_less(
        smooth, diameter, n, bound, prox, published):
    """The published count bounds the residual by 6 l zeta instead of 2 (1 + sqrt 2) l zeta."""
    steps = solvers.certifying_steps(0.01 * 2 * bound / n, lipschitz=smooth, prox=prox,
                                     distance=diameter)
    less = 2 * math.log(6 / (2 + 2 * math.sqrt(2))) / math.log1p(prox / smooth)
    assert published - less - 1 <= steps <= published


@pytest.mark.slow
def test_the_first_steps_of_the_rotation_are_those_worked_out_by_hand():
    """u - c + (u_2, -u_1) = 0 from c; the steps are those of l = 1, mu = 1."""
    center = jnp.array([0.6, 0.0])
    problem = solvers.Regularised(lambda u: jnp.array([u[1], -u[0]]), None, 0,
                                  problems.ball(1.0).project, center, 1.0, 1.0)

    def after(steps):
        return solvers.operator_extrapolation(problem, center, steps)

    # (2 u + c - g) / 3 with g = G(u) + (G(u) - G(before)) / 2
    np.testing.assert_allclose(after(0), [0.6, 0.0], rtol=1e-12)
    np.testing.assert_allclose(after(1), [0.6, 0.2], rtol=1e-12)
    np.testing.assert_allclose(after(2), [0.5, 1 / 3], rtol=1e-12)
    np.testing.assert_allclose(after(200), [0.3, 0.3], rtol=1e-12)
    traced = jax.jit(after)
    for steps in (0, 1, 7):
        np.testing.assert_allclose(traced(steps), after(steps), rtol=1e-12)


def test_a_step_costs_one_evaluation():
    calls = []

    def operator(u):
        jax.debug.callback(lambda: calls.append(1))
        return u

    for steps in (1, 2, 7):
        calls.clear()
        solvers.operator_extrapolation(
            solvers.Regularised(operator, None, 0, lambda u: u, jnp.zeros(2), 1.0, 1.0),
            jnp.ones(2), steps)
        jax.effects_barrier()
        assert len(calls) == steps


@pytest.mark.slow
def test_a_certificate_needs_no_right_lipschitz_constant():
    domain = SETS["ball"]
    for row in list(zip(*instances("ball"), strict=True))[:20]:
        matrix, q, start, solution, centre, lipschitz, mu = row
        for wrong in (0.01, 100.0):
            actual = solvers.certify(
                regularised(matrix, q, centre, wrong * lipschitz, mu, domain), start)
            assert norm(actual.point - solution) <= float(actual.residual / mu) + 1e-12


# --- variance reduction ---


def skew_sum(rng, n, domain, spread=1.0):
    """Skew components with offsets: g_i(u) = A_i u + q_i, their largest norm, and the mean."""
    turn = rng.normal(size=(n, DIM, DIM)) * spread
    matrices, q = turn - turn.transpose(0, 2, 1), rng.normal(size=(n, DIM))
    size = float(np.linalg.norm(matrices, 2, axis=(1, 2)).max())
    return jnp.asarray(matrices), jnp.asarray(q), size


def finite_sum(matrices, q, lipschitz, mu, domain, centre):
    def component(u, i):
        return matrices[i] @ u + q[i]

    return solvers.Regularised(lambda u: jnp.mean(matrices, 0) @ u + jnp.mean(q, 0), component,
                               len(q), domain.project, centre, mu, lipschitz)


@pytest.mark.slow
@sets
def test_variance_reduction_ends_at_a_certified_point(name):
    domain, rng = SETS[name], np.random.default_rng(3)
    matrices, q, size = skew_sum(rng, 30, domain)
    problem = finite_sum(matrices, q, size, 0.3, domain, jnp.full(DIM, 0.1))
    point, cost = jax.jit(lambda key: saddle.variance_reduced(key, problem, 1e-6))(
        jax.random.key(1))
    exact, actual = jax.jit(lambda point: (
        solvers.operator_extrapolation(problem, domain.project(jnp.zeros(DIM)), 4000),
        solvers.certify(problem, point)))(point)
    assert float(actual.residual) <= 1e-6
    assert norm(actual.point - exact) <= 1e-6 / 0.3 + 1e-9
    assert 60 < float(cost) < 1e5
    few, cost = jax.jit(lambda key: saddle.variance_reduced(key, problem, 0.0, epochs=3))(
        jax.random.key(1))
    assert float(cost) < 2000  # it stops, certified or not
    assert np.all(np.isfinite(few))


@pytest.mark.slow
def test_variance_reduction_contracts_as_fast_as_proven():
    """E Phi falls by 1 - min(m, p/2) / (2 (1 + m)) a step; a tenth of slack for 40 seeds."""
    domain, rng, n, mu = SETS["ball"], np.random.default_rng(4), 50, 0.5
    matrices, q, size = skew_sum(rng, n, domain, 0.3)
    problem = finite_sum(matrices, q, size, mu, domain, jnp.zeros(DIM))
    exact = solvers.operator_extrapolation(problem, jnp.zeros(DIM), 3000)
    solve = jax.jit(jax.vmap(lambda key: saddle.variance_reduced(key, problem, 0.0, epochs=24)))
    points, cost = solve(jax.random.split(jax.random.key(0), 40))
    steps = (np.mean(cost) - 2 * n * 25) / 2
    p, m = 2 / n, mu / (size * math.sqrt(n))
    fall = (1 - 0.5 * min(m, p / 2) / (1 + m)) ** steps
    squared = np.mean(np.sum(np.square(np.asarray(points) - np.asarray(exact)), 1))
    assert squared <= 1.1 * 2 * fall * norm(exact) ** 2


@pytest.mark.nightly
def test_evaluations_of_the_variance_reduced_solver_grow_nearly_linearly():
    """Components of norm 1, mu = 4 / sqrt(N), so a condition number that grows like sqrt(N)."""
    domain, rng = problems.ball(1.0), np.random.default_rng(5)
    costs, sizes = [], (256, 1024, 4096, 16384)
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    for n in sizes:
        signs = rng.choice([-1.0, 1.0], size=n) + 0.5
        matrices = jnp.asarray(signs[:, None, None] * turn)
        q = jnp.asarray(rng.normal(size=(n, 2)) + 0.3)
        mu = 4 / math.sqrt(n)
        problem = finite_sum(matrices, q, 1.5, mu, domain, jnp.zeros(2))
        solve = jax.jit(lambda key, p=problem, mu=mu: saddle.variance_reduced(
            key, p, 1e-4 * mu)[1])
        costs.append(np.mean([float(solve(jax.random.key(s))) for s in range(5)]))
    slope = np.polyfit(np.log(sizes), np.log(costs), 1)[0]
    assert 0.9 <= slope <= 1.1, (slope, costs)


@pytest.mark.parametrize(("change", "message"), [
    (dict(prox=0.0), "prox must lie in"),
    (dict(lipschitz=math.inf), "lipschitz must lie in"), (dict(accuracy=0.0), "accuracy must"),
    (dict(distance=math.inf), "distance must lie in")])
def test_a_count_that_is_not_defined_is_refused(change, message):
    good = dict(accuracy=1e-3, lipschitz=2.0, prox=1.0, distance=2.0)
    with pytest.raises(ValueError, match=message):
        saddle.extrapolation_steps(**{**good, **change})
