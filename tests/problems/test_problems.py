"""Problems and metrics against closed forms."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.examples.average_precision import average_precision, average_precision_start
from jaxminimax import Saddle

strong_gap, weak_gap, primal_risk = (jax.jit(metric, static_argnums=0) for metric in (
    jmm.metrics.strong_gap, jmm.metrics.weak_gap, jmm.metrics.primal_risk))


def pairs(n=60, d=3, seed=0):
    k = jax.random.split(jax.random.key(seed))
    return tuple(0.3 * jax.random.normal(x, (n, d)) for x in k)


@pytest.mark.slow
@pytest.mark.parametrize("coupling", [0.0, 0.7, -2.0])
def test_the_quadratic_games_gap_is_the_squared_distance_to_its_saddle(coupling):
    mu, data = 1.5, pairs()
    game = jmm.problems.quadratic_game(modulus=mu, coupling=coupling, radius=Saddle(1e3, 1e3))
    star = game.saddle_point(data)
    z = Saddle(jnp.array([1.0, -2.0, 0.5]), jnp.array([0.3, 0.1, -1.0]))
    factor = (mu**2 + coupling**2) / (2 * mu)
    distance = jnp.sum((z.w - star.w) ** 2), jnp.sum((z.v - star.v) ** 2)
    gap = strong_gap(game, z, data)
    assert gap == pytest.approx(float(factor * sum(distance)), rel=1e-9)
    assert strong_gap(game, star, data) == pytest.approx(0.0, abs=1e-12)
    excess = primal_risk(game, z.w, data) - primal_risk(game, star.w, data)
    assert excess == pytest.approx(float(factor * distance[0]), rel=1e-9)
    g = jax.jit(jax.vmap(game.operator, (None, 0)))(star, data)
    np.testing.assert_allclose(jnp.mean(g.w, 0), 0, atol=1e-12)
    np.testing.assert_allclose(jnp.mean(g.v, 0), 0, atol=1e-12)


@pytest.mark.slow
def test_weak_gap_puts_the_expectation_inside():
    """For the quadratic game: factor * |E z - z*|^2 + (mu/2)(tr Cov w + tr Cov v)."""
    mu, c, data = 1.5, 0.7, pairs()
    game = jmm.problems.quadratic_game(modulus=mu, coupling=c, radius=Saddle(1e3, 1e3))
    k = jax.random.split(jax.random.key(2))
    zs = Saddle(1 + jax.random.normal(k[0], (500, 3)), jax.random.normal(k[1], (500, 3)))
    star = game.saddle_point(data)
    bias = sum(jnp.sum((jnp.mean(x, 0) - s) ** 2) for x, s in zip(zs, star, strict=True))
    spread = sum(jnp.sum(jnp.var(x, 0)) for x in zs)
    expected = (mu**2 + c**2) / (2 * mu) * bias + mu / 2 * spread
    weak = weak_gap(game, zs, data)
    assert weak == pytest.approx(float(expected), rel=1e-9)
    strong = jnp.mean(jax.vmap(lambda z: strong_gap(game, z, data))(zs))
    assert strong > weak


@pytest.mark.slow
@pytest.mark.parametrize("radius", [Saddle(1.0, 1.0), Saddle(0.5, 2.0)])
def test_the_bilinear_games_gap_has_its_closed_form(radius):
    data, c = pairs(), 0.8
    game = jmm.problems.bilinear_game(coupling=c, radius=radius)
    z = game.project(Saddle(jnp.array([1.0, -2.0, 0.5]), jnp.array([0.3, 0.1, -0.2])))
    a, b = (jnp.mean(x, 0) for x in data)
    norm = jnp.linalg.norm
    expected = (a @ z.w + radius.v * norm(c * z.w - b) + radius.w * norm(a + c * z.v) + b @ z.v)
    assert strong_gap(game, z, data) == pytest.approx(float(expected), rel=1e-9)
    still = Saddle(jnp.zeros(3), jnp.zeros(3))
    flat = jmm.problems.bilinear_game(coupling=c, radius=radius)
    assert strong_gap(flat, still, jax.tree.map(jnp.zeros_like, data)) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("make", [
    lambda r: jmm.problems.quadratic_game(modulus=1.5, coupling=0.8, radius=r),
    lambda r: jmm.problems.bilinear_game(coupling=0.8, radius=r),
])
def test_no_feasible_point_beats_the_best_responses(make):
    data, radius = pairs(), Saddle(0.4, 0.6)
    game = make(radius)
    k = jax.random.split(jax.random.key(4), 3)
    z = game.project(Saddle(jax.random.normal(k[0], (3,)), jax.random.normal(k[1], (3,))))
    w, v = game.best_response.w(z.v, data), game.best_response.v(z.w, data)
    best, values = (game.value(Saddle(w, z.v), data), game.value(Saddle(z.w, v), data)), []
    others = jax.jit(jax.vmap(game.project))(Saddle(*2 * jax.random.normal(k[2], (2, 200, 3))))
    for of, player in ((lambda w: Saddle(w, z.v), others.w), (lambda v: Saddle(z.w, v), others.v)):
        values.append(jax.jit(jax.vmap(lambda x, of=of: game.value(of(x), data)))(player))
    assert values[0].min() >= best[0] - 1e-12
    assert values[1].max() <= best[1] + 1e-12


def auc_data(n=80, seed=0):
    k = jax.random.split(jax.random.key(seed))
    x = jax.random.normal(k[0], (n, 3))
    return x, (x[:, 0] + 0.5 * jax.random.normal(k[1], (n,)) > 0.3).astype(x.dtype)


@pytest.mark.slow
def test_the_auc_value_at_the_best_responses_is_the_pairwise_squared_loss():
    x, y = auc_data()
    p = float(jnp.mean(y))
    problem = jmm.problems.auc(jmm.problems.linear_scorer, prior=p, radius=Saddle(1e3, 1e3))
    theta = jnp.array([0.4, -0.1, 0.2])
    s = np.asarray(x @ theta)
    plus, minus = s[np.asarray(y) == 1], s[np.asarray(y) == 0]
    expected = np.mean((1 - plus[:, None] + minus[None]) ** 2) - 1
    w = {"theta": theta, "a": jnp.float64(plus.mean()), "b": jnp.float64(minus.mean())}
    assert primal_risk(problem, w, (x, y)) == pytest.approx(float(expected), rel=1e-9)
    v = jax.jit(problem.best_response.v)(w, (x, y))
    assert v == pytest.approx(minus.mean() - plus.mean())
    gradient = jax.jit(jax.grad(lambda w: problem.value(Saddle(w, v), (x, y))))(w)
    assert abs(gradient["a"]) + abs(gradient["b"]) < 1e-12  # a and b were best responses too


@pytest.mark.slow
def test_the_auc_operator_and_public_term_are_the_gradient_of_the_value():
    x, y = auc_data()
    problem = jmm.problems.auc(jmm.problems.mlp_scorer, prior=0.3, radius=Saddle(1e3, 1e3))
    theta = jmm.problems.mlp_init(jax.random.key(1), 3, 5)
    z = Saddle({"theta": theta, "a": jnp.float64(0.2), "b": jnp.float64(-0.1)}, jnp.float64(0.4))

    @jax.jit
    def both(z):
        g = jax.tree.map(lambda a: jnp.mean(a, 0), jax.vmap(problem.operator, (None, 0))(z, (x, y)))
        return jax.tree.map(jnp.add, g, problem.public(z)), jax.grad(problem.value)(z, (x, y))

    g, full = both(z)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), g.w, full.w)
    assert g.v == pytest.approx(float(-full.v))


def test_the_auc_ball_holds_theta_a_and_b_together():
    problem = jmm.problems.auc(jmm.problems.linear_scorer, prior=0.5, radius=Saddle(1.0, 0.5))
    z = problem.project(Saddle({"theta": jnp.array([3.0, 0.0]), "a": jnp.float64(0.0),
                                "b": jnp.float64(4.0)}, jnp.float64(-3.0)))
    assert z.w["b"] == pytest.approx(0.8)
    assert z.v == -0.5
    best = jmm.problems.auc(jmm.problems.linear_scorer, prior=0.5, radius=Saddle(10.0, 10.0),
                            dual="best_response")
    z = best.project(Saddle({"theta": jnp.zeros(2), "a": jnp.float64(0.25), "b": jnp.float64(-1.0)},
                            jnp.float64(7.0)))
    assert z.v == -1.25


def prior_mechanism(n, z=20.0):
    query = jmm.Query(clip=Saddle(0.5, None), noise_multiplier=Saddle(z, None), population=n)
    return jmm.Repeat(query=query, times=1)


@pytest.mark.slow
def test_the_released_prior_is_unbiased_with_the_described_noise():
    n, z = 4000, 20.0
    y = (jnp.arange(n) < 1000).astype(jnp.float32)
    keys = jax.random.split(jax.random.key(8), 4000)
    answers = np.asarray(jax.jit(jax.vmap(
        lambda k: jmm.problems.release_prior(k, prior_mechanism(n, z), y)))(keys))
    std = 0.5 * z / n
    assert abs(answers.mean() - 0.25) < 4 * std / math.sqrt(4000)
    assert answers.std() == pytest.approx(std, rel=0.05)


@pytest.mark.slow
def test_replacing_a_record_moves_the_released_prior_by_one_count():
    n = 100
    y = (jnp.arange(n) < 40).astype(jnp.float64)
    same = jax.random.key(3)
    released = jax.jit(lambda y: jmm.problems.release_prior(same, prior_mechanism(n), y))
    a, b = released(y), released(y.at[0].set(0.0))
    assert abs(float(a - b)) <= 1 / n + 1e-15
    assert abs(float(a - b)) == pytest.approx(1 / n, rel=1e-5)
    with pytest.raises(ValueError, match="clip"):
        wide = jmm.Repeat(query=jmm.Query(clip=Saddle(1.0, None), population=n,
                                          noise_multiplier=Saddle(1.0, None)), times=1)
        jmm.problems.release_prior(same, wide, y)


@pytest.mark.slow
def test_the_score_of_a_search_is_bounded_and_rises_with_the_auc():
    prior, rng = 0.2, np.random.default_rng(0)
    y = rng.uniform(size=4000) < prior
    x = rng.normal(size=(4000, 2)) * np.where(y, 0.5, 1.0)[:, None] + 1.5 * y[:, None] * [1, 0]
    score = jmm.problems.auc_score(jmm.problems.linear_scorer, prior=prior)

    def at(angle, a=None, b=None):
        theta = np.array([np.cos(angle), np.sin(angle)])
        s = x @ theta
        return Saddle({"theta": theta, "a": s[y].mean() if a is None else a,
                       "b": s[~y].mean() if b is None else b}, 0.0), s

    angles = np.linspace(0, np.pi / 2, 7)
    scores = jax.jit(jax.vmap(score, (None, 0)))
    actual = [float(np.mean(scores(at(angle)[0], (x, y)))) for angle in angles]
    aucs = [jmm.metrics.auc(at(angle)[1], y) for angle in angles]
    assert np.all(np.diff(actual) < 0)
    assert np.all(np.diff(aucs) < 0)
    sum_of_weights = 2 * min(prior, 1 - prior)  # all on the right side
    assert 0.9 * sum_of_weights < actual[0] < sum_of_weights
    large = jnp.array([[1e30, 0], [-1e30, 0], [np.inf, 0]])
    for z in (at(0.0)[0], at(0.0, a=-1.0, b=1.0)[0], at(0.0, a=1e30, b=-1e30)[0]):
        each = np.array([score(z, (row, label)) for row in large for label in (0, 1)])
        assert np.all((each >= 0) & (each <= 1))
    with pytest.raises(ValueError, match="prior"):
        jmm.problems.auc_score(jmm.problems.linear_scorer, prior=1.0)


def test_auc_is_the_share_of_pairs_in_order_and_refuses_a_diverged_run():
    assert jmm.metrics.auc(jnp.array([0.1, 0.9, 0.4, 0.35]), np.array([0, 1, 1, 0])) == 1.0
    assert jmm.metrics.auc(jnp.array([0.1, 0.2, 0.4, 0.35]), np.array([0, 1, 1, 0])) == 0.75
    with pytest.raises(ValueError, match="not finite"):
        jmm.metrics.auc(jnp.array([0.1, jnp.nan]), np.array([0, 1]))


@pytest.mark.slow
def test_metrics_without_what_they_need_say_what_to_give():
    bare = jmm.Problem(operator=lambda z, x: z)
    z = Saddle(jnp.zeros(2), jnp.zeros(2))
    with pytest.raises(ValueError, match="value"):
        jmm.metrics.strong_gap(bare, z, None)
    x, y = auc_data()
    problem = jmm.problems.auc(jmm.problems.linear_scorer, prior=0.5, radius=Saddle(1.0, 1.0))
    with pytest.raises(ValueError, match="best response of w"):
        jmm.metrics.strong_gap(problem, jmm.problems.auc_start(jnp.zeros(3)), (x, y))


def test_metrics_say_first_that_they_read_the_data():
    for name in ("strong_gap", "weak_gap", "primal_risk", "auc"):
        assert getattr(jmm.metrics, name).__doc__.startswith("Reads the data; not private.")


@pytest.mark.parametrize("bad", [0.0, 1.0, math.nan, -0.5, None])
def test_a_bad_prior_is_refused(bad):
    with pytest.raises(ValueError, match="prior"):
        jmm.problems.auc(jmm.problems.linear_scorer, prior=bad, radius=Saddle(1.0, 1.0))


# --- problems whose every release is a sum over records ---

LINEAR, WIDE = jmm.problems.linear_scorer, Saddle(9.0, 9.0)
PARTIAL: dict = dict(prior=0.3, max_fpr=0.4, min_tpr=0.5)
SUMS = {
    "dro": (jmm.problems.dro(jmm.problems.group_glm("logistic", feature_bound=2.0, radius=3.0),
                             penalty=0.2, cap=5.0).problem,
            lambda: jmm.problems.reweighted_start(jnp.ones(3), "cvar", eta=0.4)),
    "hand_till": (jmm.problems.multiclass_auc(LINEAR, shares=[0.7, 0.3], form="hand_till",
                                              radius=WIDE),
                  lambda: jmm.problems.multiclass_auc_start(jnp.ones((3, 2)), classes=2,
                                                            form="hand_till")),
    "partial": (jmm.problems.partial_auc(LINEAR, penalty=0.5, radius=WIDE, **PARTIAL),
                lambda: jmm.problems.partial_auc_start(jnp.ones(3), min_tpr=0.5)),
    "average precision": (average_precision(
        prior=0.3, feature_bound=2.0, radius=3.0, anchors=2).problem,
        lambda: average_precision_start(jnp.ones(3), anchors=2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SUMS)
def test_ghost_sums_are_those_of_single_records_and_the_check_is_clean(name):
    problem, start = SUMS[name]
    (x, y), z = auc_data(12), start()
    data = x, y.astype(jnp.int32) if name == "hand_till" else y
    alone = not jax.tree.leaves(z.v)  # w is the only player
    clip = Saddle(2.0, None if alone else 0.5)
    ghost = jmm.types.with_strategy(problem.operator, "ghost")
    actual = jax.jit(jmm.clipped_sum(ghost, clip))(z, data)
    each = jax.jit(jax.vmap(problem.operator, (None, 0)))(z, data)
    for total, rows, bound in zip(actual, each, clip, strict=True):
        if bound is None:
            continue
        rows = np.concatenate([np.reshape(a, (12, -1)) for a in jax.tree.leaves(rows)], 1)
        factor = bound / np.maximum(bound, np.linalg.norm(rows, axis=1, keepdims=True))
        assert np.any(factor < 1)
        np.testing.assert_allclose(np.concatenate([np.ravel(a) for a in jax.tree.leaves(total)]),
                                   np.sum(factor * rows, 0), rtol=1e-6, atol=1e-9)
    query = jmm.Query(clip=clip, population=12,
                      noise_multiplier=Saddle(1.0, None if alone else 1.0))
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=2)
    assert jmm.check(problem, z, data, hyper, delta=1e-3, measure=False).warnings == ()
