"""Proximal point: what it releases, what its privacy rests on, and what it refuses."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import (
    Disjoint,
    FixedSize,
    Full,
    Poisson,
    Problem,
    Repeat,
    Saddle,
    mechanism,
    metrics,
    problems,
    proximal,
)
from jaxminimax.base.types import OwnOperator
from jaxminimax.gradients.clipping import ClippedOperator
from jaxminimax.mechanism import Resolvent
from jaxminimax.releases.sums import release
from jaxminimax.types import with_strategy
from tests.helpers.lanes import rest_nightly

RUN = jax.jit(jmm.run, static_argnames=("algorithm", "problem", "observe"))
DISC = problems.ball(1.0)
M = 2.0


def query(sampling=Full(), population=6, assumes="monotone", **numbers):
    return Resolvent(**{"bound": M, "prox": 3.0, "lipschitz": 1.0, "noise_multiplier": 0.0,
                        "diameter": 2.0, "sampling": sampling, "population": population,
                        "assumes": assumes, **numbers})


def hyper_of(q, rounds=1, diameter=None):
    q = q if diameter is None else dataclasses.replace(q, diameter=diameter)
    return proximal.Hyper(query=proximal.certified(q), iterations=rounds)


@functools.partial(jax.jit, static_argnames="problem")
def one_round(key, z, data, hyper, problem):
    return proximal.update(key, proximal.init(z, hyper), data, hyper, problem)


def moved(q, data, problem, start, seed=0, **change):
    """The release of one round, as one array."""
    state = one_round(jax.random.key(seed), start, data, hyper_of(q, **change), problem)
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(state.z)])


ROTATION = problems.variational_inequality(
    lambda u, x: jnp.array([[0.0, 1.0], [-1.0, 0.0]]) @ u + x, DISC)
AT = Saddle(jnp.array([0.6, 0.0]), ())


# --- the points ---


@pytest.mark.slow
def test_the_exact_proximal_point_of_a_rotation():
    q = query(population=1, bound=5.0, prox=1.0, slack=1e-6)
    np.testing.assert_allclose(moved(q, jnp.zeros((1, 2)), ROTATION, AT), [0.3, 0.3], atol=1e-6)


@pytest.mark.slow
def test_without_noise_the_gap_falls_at_the_proven_rate_where_descent_ascent_circles():
    """Resolvents of a skew operator contract; Theorem 5 with sigma = 0 bounds the average's gap."""
    bounded = problems.affine(matrix=np.array([[0.0, 1.0], [-1.0, 0.0]]), offset_bound=1.0,
                              domain=DISC)
    data, smooth, size = jnp.array([[0.3, -0.2]]), 1.0, bounded.bound
    for rounds in (10, 100):
        q = query(population=1, bound=size, prox=1.0, slack=1e-6)
        state, path = RUN(jax.random.key(0), AT, data, hyper_of(q, rounds), proximal,
                          bounded.problem, lambda state: state.z.w)
        gap = float(metrics.vi_gap(bounded.problem, state.average, data))
        rate = (1.5 * 4 + (4 * size**2 + 3 * smooth**2 * 4) * rounds / q.prox**2) / rounds
        assert gap <= rate
        assert gap < 3 / rounds
        distance = np.linalg.norm(np.asarray(path[:10]) - np.array([-0.2, -0.3]), axis=1)
        np.testing.assert_allclose(distance[1:] / distance[:-1], 0.5**0.5, rtol=1e-3)


@pytest.mark.slow
def test_only_the_average_is_projected_and_it_is_the_average_of_what_was_released():
    q = query(noise_multiplier=40.0)
    data = jnp.zeros((6, 2))
    state, z = RUN(jax.random.key(0), AT, data, hyper_of(q, 20), proximal, ROTATION,
                   lambda state: state.z.w)
    assert np.linalg.norm(z, axis=1).max() > 1
    np.testing.assert_allclose(state.average.w, DISC.project(jnp.mean(z, 0)), rtol=1e-9)
    assert int(state.spent) == 20


@pytest.mark.slow
def test_public_terms_enter_the_solution_and_not_the_sensitivity():
    problem = Problem(operator=lambda z, x: Saddle(x, ()), public=lambda z: z)
    q = query(population=1, lipschitz=1.0, bound=2.0, prox=3.0, slack=1e-6)
    # x + u + 3 (u - z) = 0
    np.testing.assert_allclose(moved(q, jnp.ones((1, 2)), problem, AT, diameter=9.0),
                               (3 * AT.w - 1) / 4, atol=1e-6)


@pytest.mark.nightly
def test_two_players_of_float32_are_solved_in_float64():
    bounded = problems.bounded_bilinear(coupling=1.0, offset=0.5, radius=Saddle(1.0, 1.0))
    rng = np.random.default_rng(0)
    data = tuple(jnp.asarray(0.2 * rng.normal(size=s), jnp.float32)
                 for s in ((30, 2, 3), (30, 2), (30, 3)))
    q = query(population=30, bound=bounded.bound, prox=100.0, slack=1e-9)
    start = Saddle(jnp.zeros(2, jnp.float32), jnp.zeros(3, jnp.float32))
    state = one_round(jax.random.key(0), start, data, hyper_of(q, diameter=bounded.diameter),
                      bounded.problem)
    assert {x.dtype for x in jax.tree.leaves(state.z)} == {np.dtype("float32")}
    assert np.all(np.isfinite(state.z.w))  # certified to 1e-9 M / 30, far below float32

    with jax.enable_x64(False):  # as users run it, and as sweeps do
        hyper = hyper_of(q, diameter=bounded.diameter)
        state = one_round(jax.random.key(0), start, data, hyper, bounded.problem)
        keys = jax.random.split(jax.random.key(0), (2, 3))
        many = jax.vmap(jax.vmap(
            lambda key: one_round(key, start, data, hyper, bounded.problem)))(keys)
    assert np.all(np.isfinite(state.z.w))
    assert many.z.w.shape == (2, 3, 2)
    np.testing.assert_allclose(many.z.w[1, 2], state.z.w, atol=1e-6)


# --- sensitivity and noise ---

CONSTANT = Problem(operator=lambda z, x: Saddle(x.w, x.v))
ORIGIN = Saddle(jnp.zeros(2), jnp.zeros(1))


def constants(n, first, rest=0.0):
    """Constant operators along (3, 0, 4) / 5 of length M times the given multiples."""
    size = np.full((n, 1), rest)
    size[0] = first
    return Saddle(jnp.asarray(M * size * np.array([0.6, 0.0])), jnp.asarray(M * size * 0.8))


def limit(q):
    return 2 * mechanism.resolvent.noise_unit(q)


SAMPLINGS = {"full": (Full(), 6), "disjoint": (Disjoint(batch=3), 6),
             "fixed": (FixedSize(batch=2), 6), "poisson": (Poisson(rate=0.4), 6)}


@pytest.mark.slow
@pytest.mark.parametrize(("assumes", "name"), rest_nightly([
    ("monotone", "full"), ("lipschitz", "poisson"), ("monotone", "disjoint"),
    ("monotone", "fixed"), ("monotone", "poisson")], 2))
def test_opposite_constant_operators_attain_the_sensitivity_but_for_the_slack(name, assumes):
    sampling, n = SAMPLINGS[name]
    q = query(sampling, n, assumes, lipschitz=0.0)
    apart = np.array([np.linalg.norm(
        moved(q, constants(n, 1.0), CONSTANT, ORIGIN, seed, diameter=9.0)
        - moved(q, constants(n, -1.0), CONSTANT, ORIGIN, seed, diameter=9.0))
        for seed in range(12)])
    exact = 2 * M / (mechanism.batch_size(q) * 3.0)
    assert apart.max() == pytest.approx(exact, rel=1e-6)
    assert exact <= limit(q) <= 1.02 * (1 + 1e-6) * exact
    assert apart.max() <= limit(q)


PULLED = CONSTANT._replace(public=lambda z: jax.tree.map(lambda x: 2.0 * x, z))  # mu_0 = 2


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SAMPLINGS))
def test_opposite_operators_attain_the_sensitivity_of_a_strongly_monotone_problem(name):
    """It is 2 M / (m (lambda + mu_0)); half of it, or that of a modulus made up, is exceeded."""
    sampling, n = SAMPLINGS[name]
    q = query(sampling, n, lipschitz=2.0, modulus=2.0)
    apart = max(np.linalg.norm(
        moved(q, constants(n, 1.0), PULLED, ORIGIN, seed, diameter=9.0)
        - moved(q, constants(n, -1.0), PULLED, ORIGIN, seed, diameter=9.0)) for seed in range(8))
    exact = 2 * M / (mechanism.batch_size(q) * 5.0)
    assert apart == pytest.approx(exact, rel=1e-6)
    assert exact <= limit(q) <= 1.02 * (1 + 1e-6) * exact
    assert limit(query(sampling, n)) == pytest.approx(limit(q) * 5 / 3)
    assert limit(dataclasses.replace(q, lipschitz=7.0, modulus=7.0)) < apart
    assert limit(q) / 2 < apart


@pytest.mark.slow
def test_a_poisson_sample_is_only_as_strongly_monotone_as_the_public_terms():
    """Records u + q: a sample of one has a tenth of the modulus that all would have on average."""
    sampling, n = Poisson(rate=0.5), 20
    problem = Problem(operator=lambda z, x: Saddle(x[0] * z.w + x[1], ()))
    slopes = jnp.ones(n).at[1:].set(0.0)  # all others are flat: monotone, and no more
    q = query(sampling, n, prox=0.1, lipschitz=1.0, modulus=0.0)
    start = Saddle(jnp.zeros(()), ())
    data, other = ((slopes, jnp.zeros(n).at[0].set(s * M)) for s in (1.0, -1.0))
    apart = max(abs(moved(q, data, problem, start, s, diameter=40.0)
                    - moved(q, other, problem, start, s, diameter=40.0))[0] for s in range(8))
    assert apart <= limit(q)
    assert apart > limit(dataclasses.replace(q, modulus=1.0))  # what every record's would promise
    full = "Every record's operator, with the public terms, is"
    for chosen, stated in ((sampling, "The public terms alone are 1-strongly monotone"),
                           (FixedSize(batch=4), full)):
        hyper = hyper_of(query(chosen, n, modulus=1.0, noise_multiplier=9.0))
        assert any(stated in x for x in jmm.statement(proximal, hyper, delta=1e-5).assumed)


@pytest.mark.slow
def test_a_modulus_changes_the_solver_and_not_the_solution():
    data = jnp.asarray(np.random.default_rng(2).normal(size=(6, 2)))
    problem = ROTATION._replace(public=lambda z: z)
    one, two = (moved(query(lipschitz=2.0, slack=1e-7, modulus=mu), data, problem, AT)
                for mu in (0.0, 1.0))
    np.testing.assert_allclose(one, two, atol=1e-6)
    assert hyper_of(query(lipschitz=2.0, modulus=1.0)).query.steps < (
        hyper_of(query(lipschitz=2.0)).query.steps)


def test_a_modulus_is_charged_as_it_is_noised():
    """The same target, a noise smaller by lambda / (lambda + mu_0)."""
    for algorithm, more in ((proximal, {}), (jmm.recursive, {"rounds": 1})):
        plain, strong = (jmm.plan(algorithm, epsilon=1.0, delta=1e-6, population=200, dim=2,
                                  bound=M, smooth=1.0, diameter=2.0, modulus=mu, **more).hyper.query
                         for mu in (0.0, 1.0))
        assert strong.noise_multiplier == plain.noise_multiplier
        assert mechanism.resolvent.noise_unit(strong) * (strong.prox + 1.0) == pytest.approx(
            mechanism.resolvent.noise_unit(plain) * plain.prox)


@pytest.mark.slow
def test_the_sensitivity_catches_a_lifted_clip():
    """Operators beyond the bound: clipped in Lipschitz mode, and not where they are assumed."""
    far = Saddle(*(100 * x for x in constants(6, 1.0))), Saddle(*(-x for x in constants(6, 100.0)))
    for assumes, holds in (("lipschitz", True), ("monotone", False)):
        q = query(assumes=assumes, lipschitz=0.0, slack=1e-3)
        a, b = (moved(q, data, CONSTANT, ORIGIN, diameter=1e3) for data in far)
        assert (np.linalg.norm(a - b) <= limit(q)) == holds


@pytest.mark.slow
def test_random_monotone_records_never_exceed_the_sensitivity():
    rng = np.random.default_rng(5)
    matrix = 0.4 * np.eye(3) + np.array([[0, 1.0, 0], [-1, 0, 2], [0, -2, 0]])
    bounded = problems.affine(matrix=matrix, offset_bound=2.0, domain=DISC)
    start = Saddle(jnp.zeros(3), ())
    shares = []
    for prox in (0.3, 3.0):
        q = query(bound=bounded.bound, lipschitz=bounded.smooth, prox=prox, slack=0.01)
        for _ in range(15):
            data = jnp.asarray(3 * rng.normal(size=(6, 3)))
            other = data.at[0].set(jnp.asarray(3 * rng.normal(size=3)))
            a, b = (moved(q, x, bounded.problem, start) for x in (data, other))
            shares.append(np.linalg.norm(a - b) / limit(q))
    assert 0.05 < max(shares) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_the_noise_is_the_displacement_times_the_multiplier(factor):
    """And half of it would be seen."""
    q = query(noise_multiplier=factor * 7.0, lipschitz=0.0)
    zeros = Saddle(jnp.zeros(20_000), jnp.zeros(10_000))
    data = Saddle(jnp.zeros((6, 1)), jnp.zeros((6, 1)))
    problem = Problem(operator=lambda z, x: jax.tree.map(jnp.zeros_like, z))
    state = one_round(jax.random.key(1), zeros, data, hyper_of(q, diameter=1.0), problem)
    expected = 7.0 * mechanism.resolvent.noise_unit(q)
    for x in state.z:
        assert (abs(np.std(x) / expected - 1) < 0.03) == (factor == 1.0)
    both = np.asarray(state.z.w[:10_000]), np.asarray(state.z.v)
    assert abs(np.corrcoef(*both)[0, 1]) < 0.05


STEPPED = Problem(operator=lambda z, x: Saddle(x[0] * z.w + x[1], ()),
                  project=lambda z: Saddle(jnp.clip(z.w, -10.0, 10.0), ()))


@pytest.mark.slow
def test_a_large_poisson_batch_is_as_steep_as_it_is_large():
    """Records u -> -u, clipped: a batch above its expected size is steeper, and its prox weaker.

    At prox = 1.1 L some batches moved eleven times as far as 2 M / (m (prox - L)) allows.
    """
    n, sampling = 200, Poisson(rate=0.2, capacity=60)
    size = mechanism.batch_size(query(sampling, n))
    numbers = dict(assumes="lipschitz", bound=1.0, lipschitz=1.0, diameter=20.0)
    with pytest.raises(ValueError, match=r"prox must exceed 1\.5,"):
        proximal.certified(query(sampling, n, **numbers, prox=1.4))
    q = query(sampling, n, **numbers, prox=1.6)
    assert mechanism.resolvent.modulus(q) == pytest.approx(1.6 - 60 / size)
    slopes = np.full(n, -1.0)
    slopes[0] = 0.0
    data, other = ((jnp.asarray(slopes), jnp.asarray(np.eye(n)[0] * s)) for s in (1.0, -1.0))
    start = Saddle(jnp.zeros(()), ())
    apart = [abs(moved(q, data, STEPPED, start, s) - moved(q, other, STEPPED, start, s))[0]
             for s in range(40)]
    shares = np.array(apart) / limit(q)
    assert shares.max() <= 1
    assert shares.max() > 0.15


@pytest.mark.slow
def test_the_steps_certify_the_largest_poisson_batch():
    n, sampling = 40, Poisson(rate=0.1)
    q = query(sampling, n, bound=10.0, prox=0.05, lipschitz=1.0, diameter=20.0)
    data = (jnp.ones(n), jnp.ones(n))
    values = [moved(q, data, STEPPED, Saddle(jnp.ones(()), ()), s) for s in range(40)]
    assert np.all(np.isfinite(values))


@pytest.mark.slow
def test_no_rounding_of_the_solution_escapes_the_noise():
    """Noise far below a float32's last place: what is released is the rounded sum, not more."""
    start = Saddle(jnp.full(300, 1000.0, jnp.float32), ())
    problem = Problem(operator=lambda z, x: Saddle(x * z.w / z.w, ()))
    q = query(population=1, bound=40.0, prox=1e6, lipschitz=0.0, noise_multiplier=0.3)
    point = 1000.0 - 1.0 / 1e6
    released = moved(q, jnp.ones(1), problem, start)
    std = mechanism.resolvent.noise_unit(q) * 0.3
    assert std < np.spacing(np.float32(1000.0))
    grid = np.spacing(np.float32(999.9))
    below, above = np.floor(point / grid) * grid, np.ceil(point / grid) * grid
    assert set(np.unique(released)) <= {below, above, above + grid, below - grid}
    assert len(np.unique(released)) > 1  # the noise decides the rounding


def test_fewer_steps_than_proven_are_not_charged():
    q = dataclasses.replace(hyper_of(query()).query, steps=3, noise_multiplier=5.0)
    with pytest.raises(ValueError, match="steps must be at least"):
        jmm.epsilon(Repeat(query=q, times=1), 1e-5)
    unset = dataclasses.replace(q, steps=None)
    with pytest.raises(ValueError, match=r"proximal\.certified"):
        proximal.update(jax.random.key(0), proximal.init(AT, hyper_of(query())), jnp.zeros((6, 2)),
                        proximal.Hyper(query=unset, iterations=1), ROTATION)


def test_an_operator_of_lower_precision_is_refused():
    problem = ROTATION._replace(operator=lambda z, x: Saddle(z.w.astype(jnp.float32), ()))
    with pytest.raises(ValueError, match="less than float64"):
        moved(query(), jnp.zeros((6, 2)), problem, AT)


@pytest.mark.slow
def test_releases_beyond_the_allowed_number_are_nan():
    q = query()
    hyper = hyper_of(q, 2)
    state = proximal.init(AT, hyper)
    update = jax.jit(lambda state: proximal.update(
        jax.random.key(0), state, jnp.zeros((6, 2)), hyper, ROTATION))
    for allowed in (True, True, False):
        state = update(state)
        assert bool(jnp.all(jnp.isfinite(state.z.w))) == allowed


# --- what it refuses ---


@pytest.mark.slow
def test_what_is_not_certified_is_not_released():
    data = jnp.asarray(np.random.default_rng(0).normal(size=(6, 2)))
    good = hyper_of(query(slack=1e-6))
    few = dataclasses.replace(good.query, steps=2)
    wrong = proximal.certified(query(slack=1e-6, lipschitz=1e-6, prox=0.01))
    for q, finite in ((good.query, True), (few, False), (wrong, False)):
        hyper = dataclasses.replace(good, query=q)
        state = jax.jit(lambda data, hyper=hyper: proximal.update(
            jax.random.key(0), proximal.init(AT, good), data, hyper, ROTATION))(data)
        assert bool(jnp.all(jnp.isfinite(state.z.w))) == finite
    with pytest.raises(ValueError, match="steps must be at least"):
        proximal.init(AT, dataclasses.replace(good, query=few))


@pytest.mark.slow
def test_clipping_a_rotation_breaks_its_monotonicity():
    clipped = ClippedOperator(lambda z, x: Saddle(jnp.array([z.w[1], -z.w[0]]), ()), 1.0)
    one, two = (Saddle(jnp.array(u), ()) for u in ([4.0, 0.0], [0.0, 2.0]))
    gap = clipped(one, jnp.zeros(())).w - clipped(two, jnp.zeros(())).w
    assert float(gap @ (one.w - two.w)) == pytest.approx(-2.0, rel=1e-5)


@pytest.mark.slow
def test_a_clipped_operator_is_refused_where_monotonicity_is_assumed():
    problem = ROTATION._replace(operator=ClippedOperator(ROTATION.operator, M))
    hyper = hyper_of(query())
    for operator in (problem.operator, with_strategy(problem.operator, "vmap"),
                     OwnOperator(OwnOperator(problem.operator))):
        task = problem._replace(operator=operator)
        with pytest.raises(ValueError, match="clipping destroys monotonicity"):
            proximal.update(jax.random.key(0), proximal.init(AT, hyper), jnp.zeros((6, 2)), hyper,
                            task)
    hyper = hyper_of(query(assumes="lipschitz"))
    state = jax.jit(lambda data: proximal.update(
        jax.random.key(0), proximal.init(AT, hyper), data, hyper, problem))(jnp.zeros((6, 2)))
    assert bool(jnp.all(jnp.isfinite(state.z.w)))


STEEP = np.diag([100.0, 1.0])
DIRECTION = np.array([-0.99507, 0.09918])


def steep(z, x):
    """999 records of a steep quadratic, x = 0, and one constant operator along x."""
    g = jnp.where(jnp.any(x != 0), x, jnp.asarray(STEEP) @ z.w)
    return Saddle(g, ())


def steep_pair(n):
    return (jnp.zeros((n, 2)).at[0].set(s * DIRECTION) for s in (1.0, -1.0))


@pytest.mark.slow
def test_clipped_operators_move_far_more_than_the_published_sensitivity():
    """Both points solve their regularised problem; they are 3.74 times 2 M / (lambda B) apart."""
    size, prox, center = 1000, 0.5, np.array([2.000953, 0.329251])
    clipped = ClippedOperator(steep, 1.0)
    solutions = np.array([[0.014192, 0.137031], [0.011731, 0.122293]])
    for point, data in zip(solutions, steep_pair(size), strict=True):
        def g(u, data=data):
            each = jax.vmap(clipped, (None, 0))(Saddle(u, ()), data).w
            return jnp.mean(each, 0) + prox * (u - center)

        newton = jnp.asarray(point)
        step = jax.jit(lambda u, g=g: jnp.linalg.solve(jax.jacobian(g)(u), g(u)))
        for _ in range(5):
            newton = newton - step(newton)
        assert float(jnp.linalg.norm(g(newton))) < 1e-12
        np.testing.assert_allclose(newton, point, atol=2e-6)
    apart = np.linalg.norm(solutions[0] - solutions[1])
    assert apart / (4 / (prox * size)) == pytest.approx(1.87, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("prox", [101.0, 300.0])
def test_the_sensitivity_of_lipschitz_mode_holds_for_the_same_records(prox):
    problem = problems.variational_inequality(lambda u, x: u, problems.ball(50.0))._replace(
        operator=steep)
    q = query(population=50, assumes="lipschitz", bound=1.0, lipschitz=100.0, prox=prox, slack=0.01)
    for center in ([2.000953, 0.329251], [0.1, 0.3], [-4.0, 5.0]):
        start = Saddle(jnp.array(center), ())
        a, b = (moved(q, data, problem, start, diameter=100.0) for data in steep_pair(50))
        assert np.all(np.isfinite(a))
        assert np.linalg.norm(a - b) <= limit(q)


@pytest.mark.parametrize(("change", "message"), [
    (dict(assumes="lipschitz", prox=1.0), "prox must exceed 1,"),
    (dict(assumes="hope"), "assumes must be one of"), (dict(slack=0.0), "slack must lie in"),
    (dict(assumes="lipschitz", modulus=0.5), "modulus=0.5 goes with assumes='monotone'"),
    (dict(modulus=1.5), "modulus must be at most lipschitz=1.0, got 1.5"),
    (dict(modulus=-1.0), "modulus must lie in"), (dict(bound=0.0), "bound must lie in"),
    (dict(prox=math.nan), "prox must lie in"),
    (dict(lipschitz=-1.0), "lipschitz must lie in"), (dict(sampling=3), "sampling must be"),
    (dict(noise_multiplier=-1.0), "noise_multiplier must lie in")])
def test_a_bad_description_is_refused_with_the_fix(change, message):
    with pytest.raises(ValueError, match=message):
        jmm.epsilon(Repeat(query=query(**change), times=1), 1e-5)


def test_a_door_opens_for_its_own_descriptions_only():
    q = query()
    with pytest.raises(ValueError, match="release answers a Query, got Resolvent"):
        release(jax.random.key(0), Repeat(query=q, times=1), jnp.int32(0), ROTATION, AT,
                jnp.zeros((6, 2)))
    with pytest.raises(ValueError, match="leading axes"):
        moved(q, jnp.zeros((5, 2)), ROTATION, AT)
    with pytest.raises(ValueError, match="not set"):
        moved(query(noise_multiplier=None), jnp.zeros((6, 2)), ROTATION, AT)


# --- accounting ---


@pytest.mark.usefixtures("real_noise")
def test_one_pass_is_one_gaussian_and_its_noise_the_worked_example():
    q = query(Disjoint(batch=10), 1000, bound=1.0, prox=10.729830, lipschitz=1.0,
              noise_multiplier=None)
    hyper = jmm.calibrate(proximal, hyper_of(q, 100), 1.0, 1e-5)
    assert limit(hyper.query) == pytest.approx(0.01882602, rel=1e-6)
    assert mechanism.resolvent.noise_unit(hyper.query) * hyper.query.noise_multiplier == (
        pytest.approx(0.07023295, rel=1e-6))
    assert hyper.query.steps == 9  # 37 with the proximal term inside the operator


def one_pass_bound(n, d, big, apart, reach, batch, step, deviation, slack=0.01):
    """The bound of `single_pass` for noise of a deviation; without the error of its average."""
    rounds, noise = n // batch, d * (deviation / step) ** 2
    spread = noise + ((1 + (1 + slack) * step * apart) * big) ** 2 / batch
    return (reach**2 / (2 * step * rounds) + step * spread / 2
            + reach / math.sqrt(2) * math.sqrt(spread / rounds)
            + (1 + slack) * step * apart * reach * big / batch + slack * big * reach / batch)


@pytest.mark.parametrize(("epsilon", "apart"), [(0.5, 2.0), (4.0, 0.5)])
def test_one_pass_has_the_batch_and_the_weight_of_the_smallest_bound(epsilon, apart):
    numbers = dict(population=20_000, dim=10, bound=1.0, smooth=1.0, diameter=2.0,
                   smooth_difference=apart if apart < 2 else None)
    plan = jmm.plan(proximal, **numbers, epsilon=epsilon, delta=1e-5)
    found, prox = plan.hyper.query, plan.hyper.query.prox

    def bound(batch, step):  # for the noise that a calibrated query has
        q = proximal.certified(dataclasses.replace(
            found, prox=1 / step, sampling=Disjoint(batch=batch), steps=None))
        hyper = jmm.calibrate(proximal, hyper_of(q, 20_000 // batch), epsilon, 1e-5)
        sigma = mechanism.resolvent.noise_unit(q) * hyper.query.noise_multiplier
        return one_pass_bound(20_000, 10, 1.0, apart, 2.0, batch, step, sigma) + (
            sigma * math.sqrt(2 * 10 / hyper.iterations))

    batch = found.sampling.batch
    assert plan.hyper.iterations == 20_000 // batch
    assert bound(batch, 1 / prox) == pytest.approx(plan.guarantee, rel=1e-3)
    for other, step in ((batch // 2, 1), (2 * batch, 1), (batch, 0.5), (batch, 2)):
        assert bound(other, step / prox) > plan.guarantee


@pytest.mark.parametrize("batch", [1, 4, 25])
@pytest.mark.parametrize("step", [0.05, 0.4])
@pytest.mark.parametrize("deviation", [0.0, 0.3])
@pytest.mark.parametrize("apart", [0, 1])
def test_the_bound_of_one_pass_holds(batch, step, deviation, apart):
    """F(u; x) = a u + b on [-1, 1], a = 1 or any of 0 and 1, b = -1 or 1: solved in closed form."""
    rng, runs, rounds = np.random.default_rng(0), 400, 400 // batch
    z, points = np.ones(runs), np.zeros((rounds, runs))
    for t in range(rounds):
        slope = rng.integers(1 - apart, 2, (batch, runs)).mean(0)
        shift = rng.choice([-1.0, 1.0], (batch, runs)).mean(0)
        points[t] = np.clip((z / step - shift) / (slope + 1 / step), -1, 1)
        z = points[t] + deviation * rng.normal(size=runs)
    operator = points * (1 - apart / 2)  # on the population
    worst = np.maximum(-operator.mean(0), operator.mean(0)) + (operator * points).mean(0)
    bound = one_pass_bound(400, 1, 2.0, apart, 2.0, batch, step, deviation, slack=0.0)
    assert worst.mean() <= bound


def test_the_difference_of_records_is_for_one_pass_and_at_most_twice_the_constant():
    numbers = dict(population=400, dim=3, bound=1.0, smooth=1.0, diameter=2.0, epsilon=1.0,
                   delta=1e-6)
    with pytest.raises(ValueError, match="smooth_difference is for passes='one'"):
        jmm.plan(proximal, passes="many", smooth_difference=1.0, **numbers)
    with pytest.raises(ValueError, match=r"smooth_difference must lie in \[0, 2\]"):
        jmm.plan(proximal, smooth_difference=2.5, **numbers)


def test_the_schedule_of_many_passes():
    made = proximal.multi_pass(population=900, dim=10, bound=1.0, smooth=1.0, diameter=2.0,
                               epsilon=1.0, delta=1e-5)
    assert (made.batch, made.iterations, made.prox) == (30, 900, pytest.approx(30.0))


@pytest.mark.slow
@pytest.mark.parametrize(("n", "batch", "epsilon", "replacement", "expected", "rel"), [
    (100, 10, 0.5, False, 7.4462, 2e-3), (100, 10, 1.0, False, 4.1318, 2e-3),
    (100, 10, 4.0, False, 1.4785, 2e-3), (900, 30, 1.0, False, 4.1225, 2e-3),
    (900, 30, 8.0, False, 0.9949, 4e-3)])
def test_subsets_need_the_noise_of_the_reference_table(n, batch, epsilon, replacement, expected,
                                                       rel):
    """For n + 1 releases, as the paper's loop makes."""
    q = query(FixedSize(batch=batch, replacement=replacement), n, noise_multiplier=None)
    hyper = jmm.calibrate(proximal, hyper_of(q, n + 1), epsilon, 1e-5)
    assert hyper.query.noise_multiplier / 2 == pytest.approx(expected, rel=rel)


@pytest.mark.slow
def test_removing_a_record_is_covered_for_poisson_and_refused_for_subsets():
    zero, one = constants(6, 0.0), constants(6, 1.0)
    q = query(Poisson(rate=0.4), lipschitz=0.0)
    apart = max(np.linalg.norm(moved(q, zero, CONSTANT, ORIGIN, s, diameter=9.0)
                               - moved(q, one, CONSTANT, ORIGIN, s, diameter=9.0))
                for s in range(24))  # in some of which the record is sampled
    assert 0.95 * mechanism.resolvent.noise_unit(q) < apart <= mechanism.resolvent.noise_unit(q)
    noisy = dataclasses.replace(q, noise_multiplier=5.0)
    assert jmm.epsilon(Repeat(query=noisy, times=3), 1e-5, neighbours="add_or_remove_one") < (
        jmm.epsilon(Repeat(query=noisy, times=3), 1e-5))
    with pytest.raises(ValueError, match="add_or_remove_one is offered"):
        jmm.epsilon(Repeat(query=query(FixedSize(batch=2), noise_multiplier=5.0), times=3), 1e-5,
                    neighbours="add_or_remove_one")


def test_the_statement_names_what_the_noise_rests_on():
    for assumes, stated, clipped in (("monotone", "is monotone on the feasible set", False),
                                     ("lipschitz", "with the public terms, is 1-Lipschitz", True)):
        hyper = hyper_of(query(assumes=assumes, noise_multiplier=9.0), 4)
        made = jmm.statement(proximal, hyper, delta=1e-5)
        assert any(stated in x for x in made.assumed)
        assert any("is clipped" in x for x in made.enforced) == clipped
        assert any("certificate" in x for x in made.enforced)
        assert made.effective_noise_multiplier == (9.0,)
