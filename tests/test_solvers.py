"""Operator extrapolation keeps its proven bound, and certificates bound the true distance."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxminimax import problems, solvers

DIM = 6
BOX = problems.box(-np.ones(DIM), 2 * np.ones(DIM))
SETS = {"ball": problems.ball(1.5), "box": BOX, "simplex": problems.simplex()}
sets = pytest.mark.parametrize("name", list(SETS))


def norm(x):
    return float(jnp.linalg.norm(x))


def instance(rng, domain):
    """A strongly monotone affine operator on a set, with a solution that is known exactly.

    u is a random point of the set, often on its boundary, and q = -A u - N with N normal to it.
    """
    mu = 10 ** rng.uniform(-2, 0.5)
    half = rng.normal(size=(DIM, DIM)) * rng.choice([0.0, 0.3])
    turn = rng.normal(size=(DIM, DIM)) * 10 ** rng.uniform(-1, 0.5)
    matrix = mu * np.eye(DIM) + half @ half.T + turn - turn.T
    outside = rng.normal(size=DIM) * rng.choice([0.1, 3.0])
    solution = np.asarray(domain.project(jnp.asarray(outside)))
    normal = rng.choice([0.0, 1.0, 10.0]) * (outside - solution)
    start = np.asarray(domain.project(jnp.asarray(3 * rng.normal(size=DIM))))
    offset, lipschitz = -matrix @ solution - normal, float(np.linalg.norm(matrix, 2))
    return matrix, offset, start, solution, lipschitz, mu


@functools.cache
def instances(name, count=100):
    rng = np.random.default_rng(len(name))
    rows = [instance(rng, SETS[name]) for _ in range(count)]
    return tuple(jnp.asarray(np.stack(x)) for x in zip(*rows, strict=True))


@functools.cache
def solved(name, steps):
    """Distances of u and of v, and residuals, over the instances."""
    domain = SETS[name]

    def one(matrix, q, start, solution, lipschitz, mu):
        def operator(u):
            return matrix @ u + q

        u = solvers.operator_extrapolation(operator, domain.project, start, lipschitz=lipschitz,
                                           modulus=mu, steps=steps)
        found = solvers.certify(operator, domain.project, u, lipschitz=lipschitz)
        v = found.point
        least = operator(v) @ (v - domain.support(operator(v)))
        return (jnp.linalg.norm(u - solution), jnp.linalg.norm(v - solution), found.residual,
                jnp.linalg.norm(start - solution), least)

    return [np.asarray(x) for x in jax.jit(jax.vmap(one))(*instances(name))]


@sets
@pytest.mark.parametrize("steps", [1, 3, 10, 40])
def test_the_error_never_exceeds_the_proven_bound(name, steps):
    distance, _, _, start, _ = solved(name, steps)
    *_, lipschitz, mu = instances(name)
    bound = np.array([solvers.extrapolation_bound(steps, lipschitz=float(a), modulus=float(b),
                                                  distance=float(d))
                      for a, b, d in zip(lipschitz, mu, start, strict=True)])
    assert np.all(distance <= bound + 1e-12)
    assert np.max(distance / np.maximum(bound, 1e-12)) > 0.1


@sets
@pytest.mark.parametrize("steps", [1, 10, 300])
def test_certificates_bound_the_distance_and_the_gap(name, steps):
    _, distance, residual, _, gap = solved(name, steps)
    mu = np.asarray(instances(name)[-1])
    assert np.all(distance <= residual / mu + 1e-12)
    assert np.all(gap <= residual * SETS[name].diameter + 1e-12)
    tight = (distance * mu / np.maximum(residual, 1e-300))[residual > 1e-9]
    assert not len(tight) or tight.max() > 0.1


@sets
def test_the_count_of_steps_brings_the_residual_below_its_target(name):
    domain = SETS[name]
    solve = jax.jit(solvers.operator_extrapolation, static_argnums=(0, 1),
                    static_argnames="steps")
    for matrix, q, start, solution, lipschitz, mu in list(zip(*instances(name), strict=True))[:12]:
        lipschitz, mu = float(lipschitz), float(mu)
        if lipschitz / mu > 100:
            continue
        steps = solvers.certifying_steps(1e-3, lipschitz=lipschitz, modulus=mu,
                                         distance=domain.diameter)

        def operator(u, matrix=matrix, q=q):
            return matrix @ u + q

        u = solve(operator, domain.project, start, lipschitz=lipschitz, modulus=mu, steps=steps)
        found = solvers.certify(operator, domain.project, u, lipschitz=lipschitz)
        assert float(found.residual) <= 1e-3
        assert norm(found.point - solution) <= 1e-3 / mu


def test_the_bound_without_its_constant_would_be_exceeded():
    """kappa^(-T/2) alone, as printed: some short run is farther away than that."""
    ratios = []
    for name in SETS:
        distance, _, _, start, _ = solved(name, 1)
        *_, lipschitz, mu = instances(name)
        allowed = start * (1 + np.asarray(mu / lipschitz)) ** -0.5
        ratios += list(distance[start > 0] / allowed[start > 0])
    assert max(ratios) > 1


@pytest.mark.parametrize(("modulus", "lipschitz", "steps"), [
    (1.0, 2.0, 51), (10.0, 11.0, 32)])
def test_the_count_is_the_one_of_the_rotation_on_the_disc(modulus, lipschitz, steps):
    """D = 2 and an accuracy of 1e-4."""
    made = solvers.extrapolation_steps(1e-4, lipschitz=lipschitz, modulus=modulus, distance=2.0)
    assert made == steps
    after = [solvers.extrapolation_bound(t, lipschitz=lipschitz, modulus=modulus, distance=2.0)
             for t in (steps, steps - 3)]
    assert after[0] <= 1e-4 < after[1] * 1.5


def test_the_first_steps_of_the_rotation_are_those_worked_out_by_hand():
    center = jnp.array([0.6, 0.0])

    def operator(u):
        return jnp.array([u[1], -u[0]]) + u - center

    def after(steps):
        return solvers.operator_extrapolation(operator, problems.ball(1.0).project, center,
                                              lipschitz=2.0, modulus=1.0, steps=steps)

    np.testing.assert_allclose(after(1), [0.6, 0.15], rtol=1e-12)
    np.testing.assert_allclose(after(2), [0.5375, 0.2375], rtol=1e-12)
    np.testing.assert_allclose(after(200), [0.3, 0.3], rtol=1e-12)


def test_a_step_costs_one_evaluation():
    calls = []

    def operator(u):
        jax.debug.callback(lambda: calls.append(1))
        return u

    for steps in (1, 2, 7):
        calls.clear()
        solvers.operator_extrapolation(operator, lambda u: u, jnp.ones(2), lipschitz=1.0,
                                       modulus=1.0, steps=steps)
        jax.effects_barrier()
        assert len(calls) == steps


def test_a_certificate_needs_no_right_lipschitz_constant():
    domain = SETS["ball"]
    for row in list(zip(*instances("ball"), strict=True))[:20]:
        matrix, q, start, solution, lipschitz, mu = row
        for wrong in (0.01, 100.0):
            found = solvers.certify(lambda u, a=matrix, b=q: a @ u + b, domain.project, start,
                                    lipschitz=wrong * lipschitz)
            assert norm(found.point - solution) <= float(found.residual / mu) + 1e-12


@pytest.mark.parametrize(("change", "message"), [
    (dict(modulus=0.0), "modulus must lie in"), (dict(modulus=3.0), "at most lipschitz"),
    (dict(lipschitz=math.inf), "lipschitz must lie in"), (dict(accuracy=0.0), "accuracy must"),
    (dict(distance=math.inf), "distance must lie in")])
def test_a_count_that_is_not_defined_is_refused(change, message):
    good = dict(accuracy=1e-3, lipschitz=2.0, modulus=1.0, distance=2.0)
    with pytest.raises(ValueError, match=message):
        solvers.extrapolation_steps(**{**good, **change})
