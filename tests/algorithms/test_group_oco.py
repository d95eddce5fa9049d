"""One pass over groups: a tree of noisy sums, bandit weights, and records that are read once."""

import dataclasses
import math

import dp_accounting as dpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.examples import demo_games
from jaxminimax import Parallel, Problem, Saddle, ftrl, group_oco, problems
from jaxminimax.mechanism import RecordLosses, TreeSums
from jaxminimax.releases.groups import release_loss
from jaxminimax.releases.stream import next_pair, release_leaf

RUN = jax.jit(jmm.run, static_argnames=("algorithm", "problem", "observe"))
LINES = Problem(operator=lambda z, x: Saddle(x, ()), project=lambda z: z)
POINTS = problems.group_means(radius=1.0, record_bound=1.0)
UPDATE = jax.jit(group_oco.update, static_argnames="problem")
LEAF = jax.jit(release_leaf, static_argnums=3)


def nodes(t):
    """The nodes (level, index) whose noise is in the sum of the first t leaves."""
    return {(level, t >> level) for level in range(t.bit_length()) if t >> level & 1}


def incidence(leaves):
    """Which of all nodes, columns, are in which prefix sum, rows."""
    known = sorted(set().union(*(nodes(t) for t in range(1, leaves + 1))))
    return np.array([[node in nodes(t) for node in known] for t in range(1, leaves + 1)], float)


# --- the tree ---


@pytest.fixture(scope="module")
def sums():
    """Noisy prefix sums of nothing, over 3000 keys, `[keys, leaves]`."""
    leaves = 9
    tree = TreeSums(clip=2.0, noise_multiplier=1.5, leaves=leaves)
    z, data = Saddle(jnp.zeros(1), ()), jnp.zeros((leaves, 1))

    def total(key):
        more = jax.lax.map(lambda t: release_leaf(key, tree, t, LINES, z, data, (t,)).w[0],
                           jnp.arange(leaves, dtype=jnp.int32))
        return jnp.cumsum(more)

    keys = jax.random.split(jax.random.key(0), 3000)
    return np.asarray(jax.jit(lambda keys: jax.lax.map(total, keys))(keys))


@pytest.mark.slow
def test_the_noise_of_prefix_sums_is_that_of_a_binary_tree(sums):
    """Variances and correlations: a node redrawn, or used for another one too, changes them."""
    m = incidence(9)
    expected = (2.0 * 1.5) ** 2 * m @ m.T
    actual = np.cov(sums.T)
    error = 5 * np.sqrt((expected**2 + np.outer(np.diag(expected), np.diag(expected))) / 3000)
    assert np.all(abs(actual - expected) < error)
    assert np.all(np.diag(abs(actual / 4 - expected) > error))  # half the noise would be seen


def test_wrong_trees_would_be_told_from_it():
    m = incidence(9)
    right = m @ m.T
    redrawn = np.diag(np.diag(right))  # each sum's noise drawn anew
    by_level = np.array([[t >> k & 1 for k in range(4)] for t in range(1, 10)], float)
    for wrong in (redrawn, by_level @ by_level.T):  # one vector a level, for all its nodes
        assert np.any(abs(wrong - right) > 5 * np.sqrt(
            (right**2 + np.outer(np.diag(right), np.diag(right))) / 3000))


@pytest.mark.usefixtures("real_noise")
@pytest.mark.parametrize("leaves", [1, 6, 7, 8, 21])
def test_a_record_costs_as_many_gaussians_as_the_accountant_charges(leaves):
    """The prefix sums as one Gaussian vector: the worst leaf's squared distance over 4 C^2/sigma^2.

    All prefix sums from the leaf's own on move by up to 2 C along one direction.
    """
    m = incidence(leaves)
    inverse = np.linalg.pinv(m @ m.T)
    costs = [h @ inverse @ h for h in np.triu(np.ones((leaves, leaves)))]
    assert max(costs) == pytest.approx(leaves.bit_length())
    z = 7.0
    charged = jmm.epsilon(TreeSums(clip=3.0, noise_multiplier=z, leaves=leaves), 1e-6)
    assert charged == pytest.approx(
        dpa.get_epsilon_gaussian(z / (2 * math.sqrt(max(costs))), 1e-6), rel=1e-6)


@pytest.mark.usefixtures("real_noise")
@pytest.mark.parametrize(("leaves", "expected"), [(1000, 13.35961), (1023, 13.35961),
                                                  (1024, 14.01167), (4096, 15.23230)])
def test_the_noise_of_a_node_is_the_reference_value(leaves, expected):
    """Over twice the clip norm, at epsilon = 1 and delta = 1e-6."""
    made = jmm.accounting.calibrate_noise(TreeSums(clip=3.0, leaves=leaves), 1.0, 1e-6)
    assert made.noise_multiplier / 2 == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_one_record_moves_one_leaf_by_at_most_twice_the_clip_norm():
    tree = TreeSums(clip=0.7, noise_multiplier=3.0, leaves=4)
    one, two = (jnp.zeros((4, 2)).at[2].set(s * jnp.array([3e4, -4e4])) for s in (1.0, -1.0))
    z = Saddle(jnp.zeros(2), ())
    for t in range(4):
        a, b = (LEAF(jax.random.key(1), tree, jnp.int32(t), LINES, z, data, (jnp.int32(t),)).w
                for data in (one, two))
        moved = float(jnp.linalg.norm(a - b))
        assert moved == pytest.approx(1.4 if t == 2 else 0.0, rel=1e-4)


@pytest.mark.slow
def test_leaves_beyond_the_tree_are_nan_and_those_without_a_record_hold_noise_alone():
    tree = TreeSums(clip=1.0, noise_multiplier=1.0, leaves=3)
    z, data = Saddle(jnp.zeros(2), ()), jnp.ones((2, 2))
    quiet = dataclasses.replace(tree, noise_multiplier=0.0)

    def leaf(tree, t, row, **more):
        return np.asarray(LEAF(jax.random.key(1), tree, jnp.int32(t), LINES, z, data,
                               (jnp.int32(row),), **more).w)

    assert np.all(np.isnan(leaf(tree, 3, 0)))
    assert np.all(leaf(quiet, 1, 1) != 0)
    assert np.all(leaf(quiet, 1, 1, present=jnp.array(False)) == 0)
    for row in (2, -1):  # never the nearest record a second time
        assert np.all(leaf(quiet, 1, row) == 0)
        assert np.all(leaf(tree, 1, row) != 0)
    with pytest.raises(ValueError, match="not set"):
        leaf(TreeSums(clip=1.0, leaves=3), 0, 0)
    with pytest.raises(ValueError, match="answers TreeSums"):
        leaf(RecordLosses(bound=1.0, times=3), 0, 0)


# --- follow the regularised leader ---


@pytest.mark.slow
def test_without_noise_it_is_lazy_projected_descent():
    ball = problems.ball(0.5)
    problem = Problem(operator=lambda z, x: Saddle(z.w - x, ()),
                      project=lambda z: Saddle(ball.project(z.w), z.v))
    data = np.random.default_rng(0).normal(size=(20, 3))
    hyper = ftrl.Hyper(query=TreeSums(clip=1.0, noise_multiplier=0.0, leaves=20), step=0.2)
    start = np.array([0.1, 0.0, 0.2])
    state, points = RUN(jax.random.key(0), Saddle(jnp.asarray(start), ()), jnp.asarray(data), hyper,
                        ftrl, problem, lambda state: state.z.w)
    w, total, path, seen = start, np.zeros(3), [], []
    for x in data:
        g = w - x
        seen.append(w)
        total = total + g * min(1, 1 / np.linalg.norm(g))
        w = start - 0.2 * total
        w = w * min(1, 0.5 / np.linalg.norm(w))
        path.append(w)
    np.testing.assert_allclose(points, path, atol=1e-9)
    np.testing.assert_allclose(state.average.w, np.mean(seen, 0), atol=1e-9)
    assert int(state.spent) == 20


@pytest.mark.slow
def test_the_average_regret_on_lines_is_within_its_bound_and_grows_with_the_noise():
    leaves, dim = 64, 3
    ball = problems.ball(1.0)
    problem = Problem(operator=lambda z, x: Saddle(x, ()),
                      project=lambda z: Saddle(ball.project(z.w), z.v))
    x = np.random.default_rng(1).normal(size=(leaves, dim)) + 0.5
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    query = TreeSums(clip=1.0, noise_multiplier=4.0, leaves=leaves)
    hyper = ftrl.Hyper(query=query, step=ftrl.theorem_step(query, dim=dim, diameter=2.0))
    start = Saddle(jnp.zeros(dim), ())

    def regret(key):
        path = jmm.run(key, start, jnp.asarray(x), hyper, ftrl, problem, lambda s: s.z.w)[1]
        played = jnp.concatenate([start.w[None], path[:-1]])
        return jnp.mean(jnp.sum(played * x, 1)) + jnp.linalg.norm(jnp.mean(jnp.asarray(x), 0))

    actual = np.asarray(jax.jit(lambda k: jax.lax.map(regret, k))(
        jax.random.split(jax.random.key(2), 200)))
    bound = ftrl.regret_bound(query, dim=dim, diameter=2.0)
    assert 0.1 * bound < actual.mean() < bound
    quiet = dataclasses.replace(query, noise_multiplier=0.0)
    assert ftrl.regret_bound(quiet, dim=dim, diameter=2.0) == pytest.approx(2 / math.sqrt(leaves))
    with pytest.raises(ValueError, match="step must lie in"):
        ftrl.init(start, dataclasses.replace(hyper, step=0.0))


def test_a_plan_takes_up_to_twice_the_step_of_the_smallest_bound_and_says_what_it_costs():
    numbers = dict(population=400, dim=4, bound=1.0, diameter=2.0, delta=1e-6)
    for epsilon, longer, cost in ((1.0, 2.0, 1.25), (None, 1.0, 1.0)):
        plan = jmm.plan(ftrl, epsilon=epsilon, **numbers)
        query = plan.hyper.query
        assert plan.hyper.step == pytest.approx(
            longer * ftrl.theorem_step(query, dim=4, diameter=2.0))
        # and one fresh record a round, with rho_D = 2 / 2^(1/2)
        assert plan.guarantee == pytest.approx(
            cost * ftrl.regret_bound(query, dim=4, diameter=2.0) + math.sqrt(2) / math.sqrt(400))
        assert (plan.gap, plan.on) == ("strong", "population")


# --- records ---


def quiet(sizes, rounds, step=0.3, weight_step=0.05):
    query = group_oco.releases(clip=2.0, bound=2.0, iterations=rounds)
    parts = tuple(dataclasses.replace(part, noise_multiplier=0.0) for part in query.parts)
    return group_oco.Hyper(query=dataclasses.replace(query, parts=parts), step=step,
                           weight_step=weight_step, sizes=sizes)


def everything(state):
    return state


@pytest.mark.slow
def test_without_noise_it_is_the_algorithm_of_the_paper():
    sizes, rounds = (30, 24, 20), 20
    hyper = quiet(sizes, rounds)
    data = np.random.default_rng(2).normal(size=(3, 30, 2)) / 2
    state, path = RUN(jax.random.key(4), Saddle(jnp.zeros(2), ()), jnp.asarray(data), hyper,
                      group_oco, POINTS, everything)
    turns = np.concatenate([np.zeros((1, 3), int), np.asarray(path.turns)])
    drawn = np.argmax(np.diff(turns, axis=0), 1)
    w, total, log, used = np.zeros(2), np.zeros(2), np.full(3, -math.log(3)), np.zeros(3, int)
    points, weights = [], []
    assert len(set(drawn)) == 3
    for t, i in enumerate(drawn):
        points.append(w)
        weights.append(np.exp(log))
        first, second = data[i, 2 * used[i]], data[i, 2 * used[i] + 1]
        used[i] += 1
        first, second = (x * min(1, 1 / np.linalg.norm(x)) for x in (first, second))
        loss = np.sum((w - second) ** 2) / 2
        log[i] -= 0.05 * (2.0 - loss) / np.exp(log[i])  # U = B without noise
        log = log - np.log(np.sum(np.exp(log)))
        g = w - first
        total = total + g * min(1, 2 / np.linalg.norm(g))
        w = -0.3 * total
        w = w * min(1, 1 / np.linalg.norm(w))
        np.testing.assert_allclose(path.online.z.w[t], w, atol=1e-9)
        np.testing.assert_allclose(path.log_weights[t], log, atol=1e-9)
    np.testing.assert_allclose(state.average.w, np.mean(points, 0), atol=1e-9)
    np.testing.assert_allclose(state.average.v, np.mean(weights, 0), atol=1e-9)
    assert int(state.spent) == 2 * rounds
    assert not state.over


@pytest.mark.slow
def test_a_record_is_read_once_and_in_the_role_that_its_place_fixes():
    """The first of a pair moves the point first, the second the weights; nothing moves before."""
    sizes, rounds = (7, 6), 4
    hyper = quiet(sizes, rounds)
    data = np.random.default_rng(3).normal(size=(2, 7, 2)) / 4
    places = [(i, j) for i in range(2) for j in range(7)]
    others = np.stack([data] * (len(places) + 1))
    for k, place in enumerate(places):
        others[(k + 1, *place)] += 0.3
    path = jax.device_get(jax.jit(lambda x: jax.lax.map(lambda x: jmm.run(
        jax.random.key(6), Saddle(jnp.zeros(2), ()), x, hyper, group_oco, POINTS, everything)[1],
        x))(jnp.asarray(others)))
    turns = np.concatenate([np.zeros((1, 2), int), path.turns[0]])
    drawn = np.argmax(np.diff(turns, axis=0), 1)
    assert set(drawn) == {0, 1}
    for k, (i, j) in enumerate(places):
        when = np.flatnonzero((drawn == i) & (turns[:-1, i] == j // 2))
        read = int(when[0]) if len(when) and j // 2 * 2 + 1 < sizes[i] else rounds
        point = np.all(path.online.z.w[k + 1] == path.online.z.w[0], axis=1)
        weights = np.all(path.log_weights[k + 1] == path.log_weights[0], axis=1)
        assert point[:read].all()
        assert weights[:read].all()
        if read < rounds:  # in its own round it has one effect, that of its role
            assert (point[read], weights[read]) == ((False, True) if j % 2 == 0 else (True, False))


def test_pairs_are_handed_out_in_order_until_a_group_has_none():
    turns = jnp.array([0, 2, 3], jnp.int32)
    sizes = (1, 6, 7)
    data = jnp.zeros((3, 7, 2))
    given = [next_pair(turns, jnp.int32(i), sizes, data) for i in range(3)]
    assert [tuple(map(int, first)) for first, _, _ in given] == [(0, 0), (1, 4), (2, 6)]
    assert [tuple(map(int, second)) for _, second, _ in given] == [(0, 1), (1, 5), (2, 7)]
    assert [bool(there) for _, _, there in given] == [False, True, False]


def test_rows_that_are_no_groups_are_refused():
    """Taken for groups, a person's features would be read as many records."""
    with pytest.raises(ValueError, match=r"use problems\.by_group"):
        next_pair(jnp.zeros(2, jnp.int32), jnp.int32(0), (20, 20), jnp.zeros((50, 20)))


def test_a_loss_of_several_numbers_is_refused_where_one_gets_noise():
    problem = problems.group_means(radius=1.0, record_bound=1.0)._replace(loss=lambda w, z: w - z)
    with pytest.raises(ValueError, match="must be one number"):
        release_loss(jax.random.key(0), jmm.mechanism.RecordLosses(bound=1.0, noise_multiplier=1.0,
                                                                   times=3),
                     jnp.int32(0), problem, jnp.zeros(2), jnp.zeros((2, 5, 2)), (0, 1))


@pytest.mark.slow
def test_a_group_without_records_ends_the_run():
    hyper = quiet((4, 5), 30)
    data = jnp.asarray(np.random.default_rng(5).normal(size=(2, 5, 2)) / 4)
    state, path = RUN(jax.random.key(1), Saddle(jnp.zeros(2), ()), data, hyper, group_oco, POINTS,
                      everything)
    end = int(np.argmax(path.over))
    assert bool(state.over)
    assert 2 <= end <= 4
    assert int(state.spent) == 2 * end == 2 * int(jnp.sum(state.turns))
    for x in jax.tree.leaves(path._replace(over=None)):
        assert np.all(np.asarray(x[end - 1:]) == np.asarray(x[end - 1]))


@pytest.mark.slow
def test_rounds_beyond_the_allowed_number_are_nan():
    hyper = quiet((20, 20), 2)
    state = group_oco.init(Saddle(jnp.zeros(2), ()), hyper)
    for allowed in (True, True, False):
        state = UPDATE(jax.random.key(0), state, jnp.zeros((2, 20, 2)), hyper, problem=POINTS)
        assert bool(jnp.all(jnp.isfinite(state.online.z.w))) == allowed
        assert bool(jnp.all(jnp.isfinite(state.log_weights))) == allowed


@pytest.mark.slow
def test_float32_stays_float32_and_runs_map():
    with jax.enable_x64(False):
        hyper = jmm.plan(group_oco, problem=POINTS, sizes=(12, 12), dim=2, epsilon=4.0,
                         delta=1e-5).hyper
        keys = jax.random.split(jax.random.key(0), (1, 2))
        state, _ = jax.jit(jmm.sweep, static_argnames=("algorithm", "problem"))(
            keys, Saddle(jnp.zeros(2, jnp.float32), ()), jnp.ones((2, 12, 2)) / 2,
            jmm.stack([hyper]), group_oco, POINTS)
    assert {x.dtype for x in jax.tree.leaves(state.average)} == {np.dtype("float32")}
    assert state.average.v.shape == (1, 2, 2)
    np.testing.assert_allclose(jnp.sum(state.average.v, -1), 1.0, rtol=1e-5)


@pytest.mark.nightly
def test_the_weights_find_the_group_that_matters_and_the_excess_its_bound():
    """Two groups; at the optimum the wider one weighs 0.946. The paper's steps, epsilon = 10."""
    rounds, dim = 4000, 2
    means, widths = np.array([[-0.25, 0.0], [0.25, 0.0]]), np.sqrt([0.05, 0.273])
    best, v, risk = demo_games.group_means_optimum(means, widths**2 / 2)
    assert v[1] == pytest.approx(0.946, abs=1e-9)
    made = jmm.plan(group_oco, problem=POINTS, sizes=(2 * rounds,) * 2, dim=dim, epsilon=10.0,
                    delta=1e-6, iterations=rounds)
    hyper = made.hyper

    def excess(key):
        x = jax.random.normal(jax.random.fold_in(key, 1), (2, 2 * rounds, dim))
        x = x / jnp.linalg.norm(x, axis=2, keepdims=True) * jnp.asarray(widths)[:, None, None]
        state, _ = jmm.run(key, Saddle(jnp.array([-0.5, 0.0]), ()),
                           x + jnp.asarray(means)[:, None], hyper, group_oco, POINTS)
        w = state.average.w
        there = jnp.sum((w[None] - jnp.asarray(means)) ** 2, 1) / 2 + jnp.asarray(widths) ** 2 / 2
        return jnp.max(there) - risk, state.average.v[1]

    actual, weight = jax.jit(lambda k: jax.lax.map(excess, k))(
        jax.random.split(jax.random.key(3), 4))
    start = 0.75**2 / 2 + 0.273 / 2 - risk
    assert float(jnp.mean(actual)) < min(made.guarantee, 0.4 * start)
    assert float(jnp.mean(weight)) > 0.6
    assert np.linalg.norm(best - [0.223, 0.0]) < 1e-3


@pytest.mark.slow
def test_an_estimate_never_raises_the_weight_of_the_group_that_was_drawn():
    """Noisy losses are clipped at U: unclipped, about every second one here would be above it."""
    query = group_oco.releases(clip=2.0, bound=2.0, iterations=40)
    losses = dataclasses.replace(query.parts[1], noise_multiplier=50.0)
    sums = dataclasses.replace(query.parts[0], noise_multiplier=1.0)
    hyper = group_oco.Hyper(query=dataclasses.replace(query, parts=(sums, losses)), step=0.01,
                            weight_step=1e-4, sizes=(80, 80))
    path = jmm.run(jax.random.key(0), Saddle(jnp.zeros(2), ()), jnp.zeros((2, 80, 2)), hyper,
                   group_oco, POINTS, lambda state: (state.log_weights, state.turns))[1]
    logs, turns = map(np.asarray, path)
    moved = np.diff(logs[:, 0] - logs[:, 1], prepend=0.0)
    first = np.diff(turns[:, 0], prepend=0) == 1
    away = np.where(first, -moved, moved)
    assert np.all(away >= -1e-9)
    assert 0.2 < np.mean(np.abs(away) < 1e-9) < 0.8


# --- noise and accounting ---


def noisy_losses(z, factor=1.0, keys=20_000):
    losses = RecordLosses(bound=3.0, noise_multiplier=z * factor, times=5)
    problem = problems.worst_group(lambda w, x: x * w, problems.ball(1.0), lipschitz=1.0, bound=3.0)

    def one(key):
        return release_loss(key, losses, jnp.int32(1), problem, jnp.ones(()),
                            jnp.full((1, 2), 2.5), (jnp.int32(0), jnp.int32(1)))

    return losses, np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys))(
        jax.random.split(jax.random.key(0), keys)))


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_loss_has_the_noise_that_is_charged(factor):
    """And half of it would be seen."""
    _, actual = noisy_losses(0.8, factor)
    spread = np.mean(abs(actual - 2.5)) / (3.0 * 0.8)
    assert (abs(spread - 1) < 0.05) == (factor == 1.0)
    assert abs(np.median(actual) - 2.5) < 0.15


@pytest.mark.slow
def test_rounds_share_no_noise_of_losses_or_gradients():
    """The part of what a run shows that is not there without noise, round by round."""
    rounds, keys = 4, 4000
    n = 2 * rounds
    problem = jmm.GroupProblem(
        loss=lambda w, x: x * w[0] ** 0, operator=lambda z, x: jax.tree.map(jnp.zeros_like, z),
        project=lambda w: w, diameter=1.0, lipschitz=1.0, bound=1.0)

    def shown(noise):
        query = group_oco.releases(clip=1.0, bound=1.0, iterations=rounds)
        query = dataclasses.replace(query, parts=tuple(
            dataclasses.replace(part, noise_multiplier=noise) for part in query.parts))
        # steps so small that the draws of the groups do not depend on what was released
        hyper = group_oco.Hyper(query=query, step=1.0, weight_step=1e-9, sizes=(n, n))

        def one(key):
            return jmm.run(key, Saddle(jnp.zeros(1), ()), jnp.full((2, n), 0.5), hyper, group_oco,
                           problem, lambda state: (state.log_weights[0] - state.log_weights[1],
                                                   state.turns[0], state.online.memory[1].w[0]))[1]

        return jax.jit(lambda keys: jax.lax.map(one, keys))(
            jax.random.split(jax.random.key(2), keys))

    (gap, turns, total), (quiet, same, _) = shown(1.0), shown(0.0)
    np.testing.assert_array_equal(turns, same)
    first = np.diff(turns, axis=1, prepend=0) == 1
    losses = np.diff(gap - quiet, axis=1, prepend=0.0) * np.where(first, 1.0, -1.0)
    assert np.all(losses.std(0) > 0)
    # the first, second and fourth sum are nodes of their own
    noise = np.concatenate([losses, np.asarray(total)[:, [0, 1, 3]]], 1)
    actual = np.corrcoef(noise.T)[np.triu_indices(noise.shape[1], 1)]
    assert np.all(abs(actual) < 4.5 / math.sqrt(keys))


@pytest.mark.slow
def test_losses_are_clipped_and_spent():
    losses = RecordLosses(bound=3.0, noise_multiplier=0.0, times=2)
    problem = problems.worst_group(lambda w, x: x * w, problems.ball(1.0), lipschitz=1.0, bound=3.0)
    data = jnp.array([[-5.0, 9e9, jnp.nan, 2.0]])

    def loss(row, spent=0):
        return float(release_loss(jax.random.key(0), losses, jnp.int32(spent), problem,
                                  jnp.ones(()), data, (jnp.int32(0), jnp.int32(row))))

    assert [loss(row) for row in range(5)] == [0.0, 3.0, 3.0, 2.0, 3.0]
    assert math.isnan(loss(3, spent=2))
    with pytest.raises(ValueError, match="not set"):
        release_loss(jax.random.key(0), RecordLosses(bound=1.0, times=1), jnp.int32(0), problem,
                     jnp.ones(()), data, (jnp.int32(0), jnp.int32(0)))


def calibrated(epsilon=2.0):
    return jmm.plan(group_oco, problem=POINTS, sizes=(300, 200), dim=4, epsilon=epsilon,
                    delta=1e-6).hyper


def test_a_tighter_range_of_losses_costs_the_same_and_makes_steps_longer():
    numbers = dict(problem=POINTS, sizes=(300, 200), dim=4, epsilon=2.0, delta=1e-6)
    wide, tight = (jmm.plan(group_oco, loss_bound=x, **numbers).hyper for x in (None, 0.75))
    assert [h.query.parts[1].bound for h in (wide, tight)] == [POINTS.bound, 0.75]
    charges = [jmm.epsilon(group_oco.mechanism(h), 1e-6) for h in (wide, tight)]
    assert charges[1] == pytest.approx(charges[0], rel=1e-3)
    assert tight.weight_step == pytest.approx(wide.weight_step * POINTS.bound / 0.75, rel=1e-3)
    with pytest.raises(ValueError, match="loss_bound must lie in"):
        jmm.plan(group_oco, loss_bound=0.0, **numbers)


@pytest.mark.usefixtures("real_noise")
def test_both_roles_are_calibrated_to_the_whole_target():
    hyper = calibrated()
    tree, losses = hyper.query.parts
    assert (tree.leaves, losses.times) == (250, 250)
    z = dpa.get_sigma_gaussian(2.0, 1e-6)
    assert tree.noise_multiplier == pytest.approx(2 * tree.moves() * z, rel=1e-9)
    assert losses.noise_multiplier == pytest.approx(1 / 2.0, rel=1e-3)
    for part in (tree, losses, hyper.query):
        assert 0.999 * 2.0 < jmm.epsilon(part, 1e-6) <= 2.0
    # and the plan's steps were for that noise
    assert hyper.step == pytest.approx(ftrl.planned_step(tree, dim=4, diameter=2.0), rel=1e-6)
    assert hyper.weight_step == pytest.approx(group_oco.weight_step(losses, 2), rel=1e-3)


@pytest.mark.parametrize("part", [0, 1])
def test_half_the_noise_of_either_role_is_charged_from_the_first_round_on(part):
    hyper = calibrated()
    parts = list(hyper.query.parts)
    parts[part] = dataclasses.replace(parts[part],
                                      noise_multiplier=parts[part].noise_multiplier / 2)
    less = dataclasses.replace(hyper.query, parts=tuple(parts))
    assert jmm.epsilon(less, 1e-6) > 3.5
    assert jmm.epsilon(less, 1e-6, spent=2) == jmm.epsilon(less, 1e-6)
    assert jmm.epsilon(less, 1e-6, spent=0) == 0.0
    # run one after the other, the second part costs nothing until it begins
    one_by_one = dataclasses.replace(less, in_turn=False)
    assert (jmm.epsilon(one_by_one, 1e-6, spent=2) > 3.5) == (part == 0)


def test_a_stream_of_losses_costs_one_of_them_and_what_shares_its_data_adds_up():
    losses = RecordLosses(bound=3.0, noise_multiplier=2.0, times=1000)
    assert jmm.epsilon(losses, 1e-9) == pytest.approx(0.5, rel=2e-3)
    assert jmm.epsilon(losses, 1e-9, spent=1) == jmm.epsilon(losses, 1e-9)
    twice = jmm.Sequence(parts=(losses, losses))
    assert jmm.epsilon(twice, 1e-9) == pytest.approx(1.0, rel=2e-3)
    with pytest.raises(ValueError, match="replace_one"):
        jmm.epsilon(losses, 1e-9, neighbours="add_or_remove_one")
    with pytest.raises(ValueError, match="bound must lie in"):
        jmm.epsilon(dataclasses.replace(losses, bound=0.0), 1e-9)


def test_beside_other_releases_both_roles_leave_room_for_them():
    other = TreeSums(clip=1.0, noise_multiplier=30.0, leaves=1)
    hyper = group_oco.example(TreeSums(clip=1.0, leaves=25), 25)
    hyper = jmm.calibrate(group_oco, hyper, 2.0, 1e-6, alongside=(other,))
    for part in hyper.query.parts:
        both = jmm.epsilon(jmm.Sequence(parts=(other, part)), 1e-6)
        assert 0.99 * 2.0 < both <= 2.0
        assert jmm.epsilon(part, 1e-6) < 2.0


def test_the_statement_names_both_roles():
    hyper = calibrated()
    made = jmm.statement(group_oco, hyper, delta=1e-6)
    assert len(made.sampling) == 2
    assert "250 leaves with correlated noise" in made.sampling[0]
    assert "each record in at most one" in made.sampling[1]
    assert any("read once" in x for x in made.enforced)
    assert any("A record's row does not depend on what" in x for x in made.assumed)
    assert isinstance(group_oco.mechanism(hyper), Parallel)
