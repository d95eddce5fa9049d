"""Variational inequalities: monotone for every record, bounded as stated, gaps as defined."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.examples import demo_games
from benchmarks.examples.average_precision import average_precision
from jaxminimax import Saddle, metrics, problems
from jaxminimax.problems import _vi

RADIUS = Saddle(0.8, 1.3)
SKEW = np.array([[0.0, 1.0, -0.5], [-1.0, 0.0, 2.0], [0.5, -2.0, 0.0]])


def records(seed, *shapes, count=8):
    """Records of every size, some not finite."""
    rng = np.random.default_rng(seed)
    scale = np.array([0.1, 1.0, 1.0, 10.0, 1e6, 1e30, np.inf, np.nan])[:count]
    made = tuple(jnp.asarray(rng.normal(size=(count, *s)) * scale.reshape(-1, *[1] * len(s)))
                 for s in shapes)
    return made if len(shapes) > 1 else made[0]


def split(z):
    return Saddle(z[:3], z[3:])


def whole(z):
    return Saddle(z, ())


BOUNDED = {
    "affine": (problems.affine(matrix=0.5 * np.eye(3) + SKEW, offset_bound=2.0,
                               domain=problems.ball(1.5)), [(3,)], 3, whole),
    "cournot": (problems.cournot(cost=np.array([1.0, 2.0, 0.5]), slope=np.array([0.1, 0.0, 1.0]),
                                 capacity=np.array([3.0, 4.0, 2.0]), price=10.0, sensitivity=1.5),
                [(), ()], 3, whole),
    "matrix game": (problems.matrix_game(entry_bound=2.0, shape=(3, 4)), [(3, 4)], 7, split),
    "bilinear": (problems.bounded_bilinear(coupling=1.2, offset=0.7, radius=RADIUS),
                 [(3, 4), (3,), (4,)], 7, split),
    "dro": (problems.dro(problems.group_glm("squared", feature_bound=1.0, radius=1.0), penalty=0.3,
                         cap=4.0),
            [(3,), ()], 4, lambda z: Saddle({"eta": z[0], "theta": z[1:]}, ())),
    "average precision": (average_precision(prior=0.3, feature_bound=0.5, radius=0.5,
                                                     anchors=2, multiplier=0.5),
                          [(3,), ()], 7,
                          lambda z: Saddle({"theta": z[:3], "threshold": z[3:5]}, z[5:])),
    "composed": (problems.composed(  # bounds for |w| <= 1, |x| <= 1 and |(1, y)| <= 1
        [lambda w, r: jnp.sum((w - problems.sanitise(r[0], 1.0)) ** 2) / 2,
         lambda w, r: jnp.sum(w * problems.sanitise(r[1], 1.0))],
        domain=Saddle(problems.ball(1.0), problems.box(np.zeros(2), np.array([0.5, 2.0]))),
        loss_bound=2.0, slope=2.0, curvature=1.0, conjugate=lambda v: jnp.sum(v**2)),
                 [(3,), (3,)], 5, split),
    "robust regression": (demo_games.robust_regression(
        feature_bound=1.0, label_bound=2.0, radius=RADIUS, penalty=0.8), [(3,), ()], 6, split),
}
every_problem = pytest.mark.parametrize("name", list(BOUNDED))


def flat(z):
    return jnp.concatenate([x.ravel() for x in jax.tree.leaves(z)])


def points(name, count=300):
    """Random feasible points, many of them on the boundary."""
    bounded, _, dim, shape = BOUNDED[name]
    rng = np.random.default_rng(3)
    draws = rng.normal(size=(count, dim)) * 10 ** rng.uniform(-1, 1, (count, 1))
    projected = jax.jit(jax.vmap(lambda z: flat(bounded.problem.project(shape(z)))))
    return np.asarray(projected(draws))


@pytest.mark.slow
@every_problem
def test_every_record_is_monotone_bounded_and_lipschitz(name):
    bounded, shapes, _, shape = BOUNDED[name]
    data = records(1, *shapes)
    us = points(name)
    g = jax.jit(jax.vmap(jax.vmap(lambda u, x: flat(bounded.problem.operator(shape(u), x)),
                                  (0, None)), (None, 0)))(us, data)
    assert np.all(np.isfinite(g))
    length = np.linalg.norm(g, axis=-1)
    assert length.max() <= bounded.bound * (1 + 1e-12)
    assert length.max() > 0.3 * bounded.bound  # a bound that means something
    apart = np.linalg.norm(us[:150] - us[150:], axis=-1) > 0
    gap, step = (g[:, :150] - g[:, 150:])[:, apart], (us[:150] - us[150:])[None, apart]
    away = np.linalg.norm(step, axis=-1)
    assert np.min(np.sum(gap * step, -1) / away**2) >= -1e-9
    assert np.max(np.linalg.norm(gap, axis=-1) / away) <= bounded.smooth * (1 + 1e-9)
    spread = np.linalg.norm(us[:, None] - us[None], axis=-1).max()
    assert 0.5 * bounded.diameter < spread <= bounded.diameter * (1 + 1e-12)


@pytest.mark.parametrize("radius", [1e-3, 1.0, 1e6])
def test_a_sanitised_record_is_the_projection(radius):
    rng = np.random.default_rng(0)
    for size in (0.0, 1e-300, 1e-3, 1.0, 1e9, 1e300):
        x = rng.normal(size=(4, 3)) * size
        y = np.asarray(problems.sanitise(jnp.asarray(x), radius))
        norm = np.linalg.norm(x / max(size, 1e-300)) * size
        np.testing.assert_allclose(y, x if norm <= radius else x / norm * radius, rtol=1e-12)
    for bad in (np.nan, np.inf, -np.inf):
        assert not np.any(problems.sanitise(jnp.array([1.0, bad]), radius))


HOSTILE = [np.nan, np.inf, -np.inf, 1e30, -1e38]


@pytest.mark.slow
@pytest.mark.parametrize("radius", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_product_is_that_with_the_projection(radius, dtype):
    """And so is its derivative by the other vector, whatever the record contains."""
    rng = np.random.default_rng(0)
    size = 10.0 ** rng.uniform(-6, 12, (200, 1))
    x = jnp.asarray(rng.normal(size=(200, 3)) * size, dtype)
    x = jnp.concatenate([x, jnp.zeros((1, 3), dtype)])
    w = jnp.asarray(rng.normal(size=3), dtype)

    def both(of):
        return jax.jit(jax.vmap(jax.value_and_grad(of), (None, 0)))(w, x)

    actual = both(lambda w, x: _vi.product_with(w, x, radius))
    expected = both(lambda w, x: problems.sanitise(x, radius) @ w)
    tolerance = 8 * jnp.finfo(dtype).eps
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * radius)
    assert np.linalg.norm(actual[1], axis=1).max() <= radius * (1 + tolerance)
    # by the record too, beside the ball's surface
    of_x = [jax.jit(jax.grad(of, 1))(w, x[0]) for of in (
        lambda w, x: _vi.product_with(w, x, radius), lambda w, x: problems.sanitise(x, radius) @ w)]
    np.testing.assert_allclose(*of_x, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16], ids=lambda x: x.__name__)
def test_a_product_with_a_long_record_of_few_bits_is_bounded(dtype):
    x, w = jnp.full(20_000, 3e4, dtype), jnp.full(20_000, 0.9, dtype)
    value, slope = jax.jit(jax.value_and_grad(_vi.product_with))(w, x, 0.3)
    np.testing.assert_allclose(value, 0.3 * 0.9 * 20_000**0.5, rtol=0.02)
    assert np.linalg.norm(np.asarray(slope, np.float64)) <= 0.3 * 1.02


@pytest.mark.parametrize("bad", HOSTILE)
def test_a_hostile_record_counts_as_zero_and_moves_no_other(bad):
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(40, 5)), jnp.float32)
    w = jnp.asarray(rng.normal(size=5), jnp.float32)
    each = jax.jit(jax.vmap(jax.value_and_grad(lambda w, x: _vi.product_with(w, x, 1.0)),
                            (None, 0)))
    plain, hostile = each(w, x), each(w, x.at[7, 2].set(bad))
    for a, b in zip(plain, hostile, strict=True):
        np.testing.assert_array_equal(np.delete(a, 7, 0), np.delete(b, 7, 0))
        assert not np.any(b[7])


# --- sets ---


LOW, HIGH = np.array([-1.0, 0.0, 2.0]), np.array([1.0, 3.0, 5.0])


@pytest.mark.parametrize("domain", [problems.ball(0.7), problems.simplex(),
                                    problems.box(LOW, HIGH)])
def test_a_set_projects_and_minimises(domain):
    """<u - P(u), x - P(u)> <= 0 and <g, support(g)> <= <g, x> for all x of the set."""
    rng = np.random.default_rng(1)
    project, support = jax.jit(domain.project), jax.jit(domain.support)
    inside = np.stack([project(4 * rng.normal(size=3)) for _ in range(60)])
    for _ in range(20):
        u = 4 * rng.normal(size=3)
        p = np.asarray(project(u))
        assert np.max((inside - p) @ (u - p)) <= 1e-9
        best = np.asarray(support(u))
        assert np.min(inside @ u) >= best @ u - 1e-9
        np.testing.assert_allclose(project(best), best, atol=1e-12)
    assert np.linalg.norm(inside, axis=1).max() <= domain.reach + 1e-12


# --- gaps ---


vi_gap, vi_gap_bound = (jax.jit(metric, static_argnums=0)
                        for metric in (metrics.vi_gap, metrics.vi_gap_bound))


def vi_gap_by_search(bounded, u, data, shape, name):
    """A lower bound on the gap: the largest <F(x), u - x> among random feasible x."""
    def value(x):
        f = metrics.mean_operator(bounded.problem, shape(x), data)
        return flat(f) @ (flat(u) - x)

    return float(jnp.max(jax.jit(jax.vmap(value))(points(name, 4000))))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["affine", "cournot"])
def test_the_gap_is_the_largest_over_the_set(name):
    bounded, shapes, dim, shape = BOUNDED[name]
    data = records(2, *shapes, count=5)
    rng = np.random.default_rng(0)
    for _ in range(3):
        u = bounded.problem.project(shape(jnp.asarray(rng.normal(size=dim))))
        gap = float(vi_gap(bounded.problem, u, data))
        actual = vi_gap_by_search(bounded, u, data, shape, name)
        assert actual <= gap + 1e-9
        assert actual > 0.8 * gap - 1e-9
        assert gap <= float(vi_gap_bound(bounded.problem, u, data)) + 1e-9


@pytest.mark.slow
def test_the_gap_of_a_strongly_monotone_operator_has_a_closed_form():
    """mu |d|^2 - mu |P(c + d) - c - d|^2 with d = (mu e - S e) / (2 mu), e = u - c, c interior."""
    mu, c = 0.5, np.array([0.2, -0.1, 0.3])
    bounded = problems.affine(matrix=mu * np.eye(3) + SKEW, offset_bound=9.0,
                              domain=problems.ball(1.0))
    data = jnp.asarray(-(mu * np.eye(3) + SKEW) @ c)[None]
    rng = np.random.default_rng(0)
    for size in (0.1, 1.0, 5.0):
        u = problems.ball(1.0).project(jnp.asarray(size * rng.normal(size=3)))
        e = u - c
        d = (mu * e - SKEW @ e) / (2 * mu)
        off = problems.ball(1.0).project(c + d) - c - d
        exact = mu * (d @ d) - mu * (off @ off)
        np.testing.assert_allclose(vi_gap(bounded.problem, Saddle(u, ()), data), exact,
                                   rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["matrix game", "bilinear"])
def test_both_gaps_of_a_bilinear_game_are_the_strong_gap(name):
    bounded, shapes, dim, shape = BOUNDED[name]
    data = records(4, *shapes, count=5)
    z = bounded.problem.project(shape(jnp.asarray(np.random.default_rng(1).normal(size=dim))))
    strong = jax.jit(metrics.strong_gap, static_argnums=0)(bounded.problem, z, data)
    assert float(strong) > 0.1
    np.testing.assert_allclose(vi_gap_bound(bounded.problem, z, data), strong, rtol=1e-9)


@pytest.mark.slow
def test_best_responses_of_robust_regression_are_best():
    bounded, shapes, dim, shape = BOUNDED["robust regression"]
    data = records(4, *shapes, count=5)
    rng, value = np.random.default_rng(1), bounded.problem.value
    for _ in range(3):
        z = bounded.problem.project(shape(jnp.asarray(rng.normal(size=dim))))
        best = bounded.problem.best_response
        w, v = best.w(z.v, data), best.v(z.w, data)
        assert np.linalg.norm(w) <= RADIUS.w * (1 + 1e-9)
        assert np.linalg.norm(v) <= RADIUS.v * (1 + 1e-9)
        others = jax.vmap(shape)(points("robust regression", 300))
        by_w = jax.jit(jax.vmap(value, (Saddle(0, None), None)))(Saddle(others.w, z.v), data)
        by_v = jax.jit(jax.vmap(value, (Saddle(None, 0), None)))(Saddle(z.w, others.v), data)
        assert value(Saddle(w, z.v), data) <= jnp.min(by_w) + 1e-9
        assert value(Saddle(z.w, v), data) >= jnp.max(by_v) - 1e-9


@pytest.mark.slow
def test_gap_and_residual_vanish_at_the_cournot_equilibrium_and_nowhere_else():
    bounded = BOUNDED["cournot"][0]
    data = (jnp.array([4.0, 6.0]), jnp.array([1.0, 1.4]))
    z = bounded.problem.saddle_point(data)
    np.testing.assert_allclose(bounded.problem.project(z).w, z.w, rtol=1e-12)
    assert float(metrics.natural_residual(bounded.problem, z, data)) < 1e-9
    assert abs(float(metrics.vi_gap(bounded.problem, z, data))) < 1e-9
    off = Saddle(z.w + 0.1, ())
    assert float(metrics.natural_residual(bounded.problem, off, data)) > 0.01
    assert float(metrics.vi_gap(bounded.problem, off, data)) > 0.001


def squared_mean(limit=5.0):
    """The minimum over w of (E |w - x|^2 / 2)^2 / 2: the saddle point is (mean, variance / 2)."""
    return problems.composed(
        [lambda w, x: jnp.sum((w - problems.sanitise(x, 1.0)) ** 2) / 2],
        domain=Saddle(problems.ball(1.0), problems.box(np.zeros(1), np.array([limit]))),
        loss_bound=2.0, slope=2.0, curvature=1.0, conjugate=lambda v: jnp.sum(v**2) / 2,
        furthest=lambda p: jnp.clip(p, 0.0, limit))


@pytest.mark.slow
def test_a_composed_problem_is_the_function_of_mean_losses():
    problem = squared_mean().problem
    x = jnp.asarray(np.random.default_rng(5).uniform(-0.5, 0.5, (40, 3)))
    for w in (jnp.zeros(3), jnp.array([0.3, -0.2, 0.5])):
        best = Saddle(w, problem.best_response.v(w, x))
        risk = jnp.mean(jnp.sum((w[None] - x) ** 2, 1)) / 2
        assert float(problem.value(best, x)) == pytest.approx(float(risk**2 / 2))
        other = problem.value(best._replace(v=best.v + 0.1), x)
        assert float(other) == pytest.approx(float(risk**2 / 2 - 0.005))


@pytest.mark.slow
def test_runs_on_a_composed_problem_reach_its_closed_form():
    """It rests on the public term: without Phi* v would go to its limit."""
    bounded = squared_mean()
    x = jnp.asarray(np.random.default_rng(5).uniform(-0.5, 0.5, (40, 3)))
    query = jmm.Query(clip=Saddle(bounded.bound, bounded.bound), joint=True, population=40,
                      noise_multiplier=Saddle(0.0, 0.0))
    hyper = jmm.extragradient.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=1500)
    z = jmm.run(jax.random.key(0), Saddle(jnp.ones(3) / 2, jnp.ones(1)), x, hyper,
                jmm.extragradient, bounded.problem)[0].z
    star = Saddle(x.mean(0), jnp.mean(jnp.sum((x - x.mean(0)[None]) ** 2, 1))[None] / 2)
    np.testing.assert_allclose(flat(z), flat(star), atol=0.02)


@pytest.mark.slow
def test_rock_paper_scissors_has_the_uniform_solution():
    bounded = problems.matrix_game(entry_bound=1.0, shape=(3, 3))
    data = jnp.array([[[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]]])
    third = Saddle(jnp.full(3, 1 / 3), jnp.full(3, 1 / 3))
    assert abs(float(metrics.strong_gap(bounded.problem, third, data))) < 1e-12
    assert float(metrics.natural_residual(bounded.problem, third, data)) < 1e-12


@pytest.mark.slow
def test_the_weak_gap_averages_over_samples_before_it_takes_the_worst_point():
    bounded = BOUNDED["affine"][0]
    data = records(2, (3,), count=5)
    zs = Saddle(jax.vmap(problems.ball(1.5).project)(
        jnp.asarray(np.random.default_rng(0).normal(size=(50, 3)))), ())
    strong = jax.vmap(lambda w: vi_gap(bounded.problem, Saddle(w, ()), data))(zs.w)
    weak = jax.jit(metrics.weak_vi_gap, static_argnums=0)(bounded.problem, zs, data)
    assert float(weak) < float(jnp.mean(strong))


# --- refusals ---


@pytest.mark.slow
@pytest.mark.parametrize(("name", "record"), [
    ("affine", jnp.ones(1)), ("affine", jnp.ones(())), ("cournot", (jnp.ones(()), jnp.ones(3))),
    ("matrix game", jnp.ones((5, 5))),
    ("bilinear", (jnp.ones((3, 4)), jnp.ones(1), jnp.ones(4))),
    ("robust regression", (jnp.ones(3), jnp.ones(3)))])
def test_a_record_of_another_shape_is_refused(name, record):
    """Broadcast, it would have another norm than the bound says."""
    bounded, _, dim, shape = BOUNDED[name]
    with pytest.raises(ValueError, match="must have shape"):
        bounded.problem.operator(shape(jnp.ones(dim)), record)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: problems.affine(matrix=-np.eye(2), offset_bound=1.0, domain=problems.ball(1.0)),
     "positive semidefinite"),
    (lambda: problems.affine(matrix=np.ones((2, 3)), offset_bound=1.0, domain=problems.ball(1.0)),
     "square"),
    (lambda: problems.composed([lambda w, x: w], loss_bound=1.0, slope=1.0, curvature=0.0, domain=(
        Saddle(problems.ball(1.0), problems.box(np.array([-0.1]), np.ones(1))))), "no negative"),
    (lambda: problems.composed([], loss_bound=1.0, slope=1.0, curvature=0.0, domain=Saddle(
        problems.ball(1.0), problems.simplex())), "losses must hold one"),
    (lambda: problems.ball(0.0), "radius must lie in"),
    (lambda: problems.box(np.ones(2), np.zeros(2)), "low must be below high"),
    (lambda: problems.cournot(cost=np.ones(2), slope=np.ones(3), capacity=np.ones(2), price=1.0,
                              sensitivity=1.0), "shapes"),
    (lambda: demo_games.robust_regression(feature_bound=1.0, label_bound=1.0, penalty=3.0,
                                          radius=Saddle(2.0, 1.0)), "penalty must be at least"),
    (lambda: metrics.vi_gap(jmm.problems.bilinear_game(coupling=1.0, radius=RADIUS),
                            None, None), "no maximiser"),
    (lambda: metrics.vi_gap_bound(jmm.problems.bilinear_game(coupling=1.0, radius=RADIUS),
                                  None, None), "no linear minimiser")])
def test_what_is_not_defined_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
