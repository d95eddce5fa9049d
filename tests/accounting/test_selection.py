"""The index of the largest noisy loss: its law, what one record changes, and what that costs."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from mpmath import mpf
from scipy import special, stats

import jaxminimax as jmm
from benchmarks.privacy import selection_bounds
from jaxminimax import GroupLosses, active_groups, noise, problems
from jaxminimax.accounting import pairs as blocks
from jaxminimax.accounting import renyi
from jaxminimax.audit import index_signal
from jaxminimax.mechanism import Selection
from jaxminimax.mechanism.costs import PrivacyLoss
from jaxminimax.noise import _sampler
from jaxminimax.noise._sampler import MOST_INDICES
from jaxminimax.releases import groups as released
from jaxminimax.releases.groups import release_group_gradient
from tests.helpers.words import one_line

LINEAR = problems.worst_group(lambda w, x: w @ x, problems.ball(10.0), lipschitz=1.0, bound=1.0)
BOUND, SIZES = 2.0, (3, 7, 5)
W = jnp.ones(1, jnp.float32)


# --- the index that is drawn ---


@functools.partial(jax.jit, static_argnames="count")
def drawn(key, below, count):
    return jax.lax.map(lambda k: noise.chosen(k, below), jax.random.split(key, count))


def fits(index, law):
    """A chi-squared test, cells of less than five merged."""
    count = np.bincount(index, minlength=len(law))
    rare = law * len(index) < 5
    seen, known = np.append(count[~rare], count[rare].sum()), np.append(law[~rare], law[rare].sum())
    if known[-1] * len(index) < 1e-6:
        assert seen[-1] == 0
        seen, known = seen[:-1], known[:-1]
    if len(known) == 1:
        return True
    return stats.chisquare(seen, known / known.sum() * len(index)).pvalue > 1e-4


@pytest.mark.parametrize("scores", [
    (0.0, -0.5, -1.0, -0.7), (0.0, 0.0, 0.0, -3.0), (-200.0, 0.0, -0.1, -500.0), (0.0,)])
def test_indices_have_the_law_of_the_softmax(scores):
    below = jnp.asarray(np.round(np.minimum(-np.array(scores), 250) * 2**22), jnp.int32)
    index = np.asarray(drawn(jax.random.key(1), below, 4000))
    assert fits(index, special.softmax(np.array(scores)))


def test_lanes_draw_what_they_would_alone():
    keys = jax.random.split(jax.random.key(2), 40)
    below = jnp.asarray([[0, 2**22, 2**23], [2**24, 0, 1]], jnp.int32)
    both = jax.jit(jax.vmap(jax.vmap(noise.chosen, (0, None)), (None, 0)))(keys, below)
    alone = jax.jit(lambda one: jax.lax.map(lambda k: noise.chosen(k, one), keys))
    for row, one in zip(np.asarray(both), below, strict=True):
        np.testing.assert_array_equal(row, alone(one))


def test_a_uniform_index_is_exact_long_multiplication():
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, (8, 50), dtype=np.uint32)
    words[:, 0], words[:, 1] = 0, 2**32 - 1
    for p in (1, 2, 7, 1000, MOST_INDICES):
        actual = np.asarray(_sampler.uniform_index(jnp.asarray(words), p))
        for column, index in zip(words.T, actual, strict=True):
            u = sum(int(word) << 32 * k for k, word in enumerate(column))
            assert index == u * p >> 256
    with pytest.raises(ValueError, match="at most 65535"):
        noise.chosen(jax.random.key(0), jnp.zeros(2**16, jnp.int32))


def test_what_is_far_below_never_comes_up_and_no_draw_is_lost():
    below = jnp.asarray([2**30, 2**29, 0, 2**31 - 1] + [2**29] * 60, jnp.int32)
    assert set(np.asarray(drawn(jax.random.key(3), below, 100))) == {2}


def test_the_proof_of_the_drawn_law_adds_up():
    """The clocks' rings of `chosen`, with the constants that it states."""
    from mpmath import mp

    with mp.workprec(400):
        for p in (1, 2, 100, MOST_INDICES):
            r = mpf(noise.LAPLACE_RATIO)
            lost = mp.exp(2 * r) / (1 - p * mp.exp(-128)) * (1 + p * mpf(2) ** -256) ** 2
            assert mp.log(lost) < mpf(noise.CHOICE_RATIO)
            kept = (1 - p * mpf(2) ** -256) / p
            silent = (1 - kept) ** (2 * p * _sampler.TURNS) if p > 1 else mpf(0)
            tail = mp.exp(2 * r + mpf(2) ** -100) * (p * mp.exp(-128) + silent)
            assert tail < noise.choice_tail(p)


# --- releases ---


def selection(z=1.0, times=4, sizes=SIZES):
    return Selection(bound=BOUND, sizes=sizes, noise_multiplier=z, times=times)


def rows(means, sizes=SIZES):
    """Groups of equal losses, padding that must not be read."""
    x = np.full((len(sizes), max(sizes), 1), np.nan)
    for i, (mean, n) in enumerate(zip(means, sizes, strict=True)):
        x[i, :n] = mean
    return jnp.asarray(x, jnp.float32)


@functools.partial(jax.jit, static_argnames="count")
def _opened(mechanism, data, count, spent, key):
    return jax.lax.map(lambda k: released.release_group_index(k, mechanism, spent, LINEAR, W, data),
                       jax.random.split(key, count))


def opened(mechanism, data, count=3, spent=0, seed=0):
    return _opened(mechanism, data, count, jnp.int32(spent), jax.random.key(seed))


@pytest.mark.parametrize("wide", [False, True])
def test_the_index_has_the_law_of_means_over_the_smallest_groups_scale(wide):
    means, z = np.array([0.4, 1.0, 0.7]), 0.8
    with jax.enable_x64(wide):
        index = np.asarray(opened(selection(z), rows(means), 4000))
    assert index.dtype == np.int32
    assert fits(index, special.softmax(means / (z * BOUND / min(SIZES))))


def test_without_noise_it_is_the_index_of_the_largest_mean_of_clipped_losses():
    assert opened(selection(0.0), rows((0.4, 1.9, 0.7)))[0] == 1
    assert opened(selection(0.0), rows((0.4, -5.0, np.nan)))[0] == 2  # counts as the bound
    assert opened(selection(0.0), rows((9.0, 1.9, 99.0)))[0] == 0  # the first of equal ones


def test_beyond_the_budget_it_is_no_group_and_its_gradient_is_nothing():
    data = rows((0.4, 1.0, 0.7))
    gradients = jmm.Repeat(query=jmm.GroupGradients(clip=1.0, noise_multiplier=1.0, sizes=SIZES),
                           times=4)
    stepped = jax.jit(lambda index: release_group_gradient(
        jax.random.key(0), gradients, jnp.int32(0), LINEAR, W, data, index))
    for spent in (-1, 4, 5, 2**31 - 1):
        index = opened(selection(), data, 3, jnp.int32(spent))
        assert np.all(np.asarray(index) == -1)
    assert np.all(np.isnan(stepped(index[0])))
    assert np.all(np.isfinite(stepped(jnp.int32(1))))


@pytest.mark.parametrize("z", [math.nan, -1.0])
def test_noise_that_is_no_number_draws_nothing(z):
    assert opened(selection(jnp.float32(z)), rows((0.4, 1.0, 0.7)))[0] == -1


def test_runs_beyond_their_rounds_hold_nothing():
    data = rows((0.4, 1.0, 0.7))
    hyper = active_groups.Hyper(query=jmm.GroupGradients(clip=1.0, noise_multiplier=1.0,
                                                         sizes=SIZES),
                                losses=selection(), step=0.1, iterations=2)
    state = active_groups.init(jmm.Saddle(W, ()), hyper)._replace(spent=jnp.int32(4))
    over = jax.jit(lambda state: active_groups.update(jax.random.key(0), state, data, hyper,
                                                      LINEAR))(state)
    assert np.all(np.isnan(over.z.w))
    assert np.all(over.z.v == 0)


SCORES = jax.jit(released._scores, static_argnums=0)


@pytest.mark.parametrize("n", [1, 5, 400])
@pytest.mark.parametrize("z", [1e-4, 0.3, 40.0, 2e4])
def test_no_record_moves_a_score_by_more_than_is_charged(n, z):
    """From the scores themselves, for losses of any size, records at both ends of the range."""
    rng = np.random.default_rng(n)
    sizes = (n, 3 * n + 1)
    described = selection(z, sizes=sizes)
    most = 2**22 / described.effective_noise_multiplier("replace_one")
    each = rng.uniform(-1, 3, (2, max(sizes))).astype(np.float32)

    def scores(each):
        with jax.enable_x64(True):
            below, _ = SCORES(sizes, jnp.asarray(each, jnp.float64), jnp.float64(BOUND),
                              jnp.float64(np.float32(z)))
        return np.asarray(below, np.int64)

    for group, (low, high) in itertools.product((0, 1), ((0.0, BOUND), (-1e30, 1e30),
                                                         (0.3, np.nan), (0.1, 0.7))):
        actual = []
        for x in (low, high):
            other = each.copy()
            other[group, 0] = x
            actual.append(scores(other))
        if max(map(np.max, actual)) < 2**30:  # where nothing is cut
            moved = np.diff(actual[0]) - np.diff(actual[1])
            assert abs(int(moved[0])) <= most * sizes[0] / sizes[group] + 1


def test_scales_by_group_are_refused():
    described = selection(jnp.array([1.0, 2.0, 1.5]))
    with pytest.raises(ValueError, match="one plain number"):
        jmm.epsilon(described, 1e-6)
    with pytest.raises(ValueError, match="noise_multiplier must be one number"):
        opened(described, rows((0.4, 1.0, 0.7)))
    with pytest.raises(ValueError, match="noise_multiplier"):
        jmm.epsilon(dataclasses.replace(described, noise_multiplier=(1.0, 2.0, 3.0)), 1e-6)
    with pytest.raises(ValueError, match="answers a Selection"):
        opened(GroupLosses(bound=BOUND, sizes=SIZES, noise_multiplier=1.0), rows((0.4, 1.0, 0.7)))
    with pytest.raises(ValueError, match="at most 65535 groups"):
        jmm.epsilon(selection(sizes=(5,) * 2**16), 1e-6)
    with pytest.raises(ValueError, match="replace_one"):
        jmm.epsilon(selection(), 1e-6, neighbours="add_or_remove_one")


# --- what it costs ---


def exact_one(t, epsilon):
    """The largest divergence of a bit whose odds change by e^t, over its probability."""
    p = np.concatenate([np.geomspace(1e-12, 0.5, 4000), 1 - np.geomspace(0.5, 1e-12, 4000)])
    moved = p * np.exp(t) / (1 - p + p * np.exp(t))
    a = math.exp(epsilon)
    both = [np.maximum(x - a * y, 0) + np.maximum((1 - x) - a * (1 - y), 0)
            for x, y in ((p, moved), (moved, p))]
    return float(np.max(both))


@pytest.mark.parametrize("t", [0.01, 0.5, 2.0, 30.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_one_release_is_the_worst_bit(t, share):
    claimed = float(blocks.one_selection(t, np.array([share * t]))[0])
    assert exact_one(t, share * t) == pytest.approx(claimed, rel=1e-4)
    assert exact_one(t, share * t) <= claimed * (1 + 1e-9)
    assert float(blocks.block(t, 1).profile(np.array([share * t]))[0]) >= claimed * (1 - 1e-12)


def test_blocks_hold_the_reference_values():
    """t = 1/2 at epsilon = 0: a closed form, then dynamic programmes without a grid."""
    for times, exact in ((1, 0.124353), (2, 0.155080), (3, 0.185568)):
        value = float(blocks.block(0.5, times).values[0])
        assert exact - 1e-6 <= value <= exact * (1 + 2e-3)


def test_a_softmax_that_is_attacked_stays_below():
    rng = np.random.default_rng(0)
    for _ in range(300):
        p, t = int(rng.integers(2, 7)), float(rng.choice([0.05, 0.5, 2.0, 5.0]))
        s = rng.normal(size=p) * rng.choice([0.3, 2.0, 8.0])
        moves = np.zeros(p)
        moves[: rng.integers(1, p + 1)] = 1.0  # several people move several scores, by t in all
        moves *= rng.dirichlet(np.ones(p)) * rng.choice([-1.0, 1.0], p)
        moved = s + t * rng.permutation(moves) / np.abs(moves).sum()
        one, two = special.softmax(s), special.softmax(moved)
        for epsilon in (0.0, 0.2 * t, 0.8 * t):
            attained = np.maximum(one - math.exp(epsilon) * two, 0.0).sum()
            claimed = float(blocks.one_selection(t, np.array([epsilon]))[0])
            assert attained <= claimed * (1 + 1e-9) + 1e-15


def test_adaptive_choices_stay_below_the_block_and_come_near():
    for row in selection_bounds.table((0.1, 1.0, 4.0), (2, 5, 20)):
        assert row["attained_over_claimed"] <= 1 + 1e-9, row
        # values are within a few thousandths; epsilon by the grid of the whole accountant
        assert row["attained_delta"] >= 0.9 * row["block_delta"], row
        assert row["attained_delta"] <= row["block_delta"], row


def test_any_order_among_other_releases_stays_below_the_composed_bound():
    """The coins' step after the block's bounds every order of selections and coins.

    By the recursion itself, on a lattice that no step leaves; a coin of randomised response moves
    the loss by two of its cells.
    """
    t, m, times = 0.6, 12, 4
    h, coin = t / m, 2
    c = h * np.arange(m + 1)
    p = np.expm1(c) / np.expm1(t)
    y = h * np.arange(-80, 81)

    def selected(v):
        padded = np.concatenate([np.full(m, v[0]), v, np.full(m, v[-1])])
        n = len(v)
        return np.max([(1 - p[j]) * padded[m + j: m + j + n] + p[j] * padded[j: j + n]
                       for j in range(m + 1)], 0)

    def coined(v):
        padded = np.concatenate([np.full(coin, v[0]), v, np.full(coin, v[-1])])
        up = 1 / (1 + math.exp(-coin * h))
        return up * padded[2 * coin:] + (1 - up) * padded[:len(v)]

    inside = slice(80 - 20, 81 + 20)  # what the ends of the lattice do not reach
    start = -np.expm1(-np.maximum(y, 0.0))
    bound = functools.reduce(lambda v, _: selected(v), range(times), start)
    bound = functools.reduce(lambda v, _: coined(v), range(2), bound)
    for places in itertools.combinations(range(times + 2), 2):
        v = start
        for step in range(times + 2):
            v = coined(v) if step in places else selected(v)
        assert np.all(v[inside] <= bound[inside] * (1 + 1e-12)), places
    # the block's pair, composed with the coins as the accountant does it, is above all of them
    block = blocks.block(t, times)

    def profile(z):  # V at z, of the pair of the block
        back = -np.expm1(-np.maximum(z, 0)) + np.exp(-np.maximum(z, 0)) * block.profile(
            np.maximum(z, 0))
        return np.where(z < 0, block.profile(np.maximum(-z, 0)), back)

    up = 1 / (1 + math.exp(-coin * h))
    composed = sum(math.comb(2, k) * up**k * (1 - up)**(2 - k)
                   * profile(y + (2 * k - 2) * coin * h) for k in range(3))
    assert np.all(bound[inside] <= composed[inside] * (1 + 1e-9))


def test_the_profile_bounds_its_own_points_from_above():
    """Chords in e^epsilon: at the points the values, convex in between, 0 from the end on."""
    block = blocks.block(0.3, 12)
    at = block.cell * np.arange(len(block.values))
    assert np.all(block.profile(at) >= block.values)
    np.testing.assert_allclose(block.profile(at), block.values, rtol=1e-9, atol=1e-300)
    coarse = blocks.block(0.3, 12)._replace(cell=2 * block.cell, values=block.values[::2])
    assert np.all(coarse.profile(at) >= block.values * (1 - 1e-12))
    assert np.all(np.diff(block.values) <= 0)
    assert block.profile(np.array([block.largest, 99.0])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("t", "times"), [(0.01, 3000), (0.5, 97), (3.0, 1), (200.0, 40),
                                          (0.2, 96)])
def test_blocks_have_all_releases(t, times):
    each, many, left = blocks.split(t, times)
    assert each * many + left == times
    assert 0 <= left < each
    composed = blocks.KINDS["selection"](PrivacyLoss("selection", z=max(1 / t, 1.0)),
                                         min(times, 97), "replace_one", 1)
    assert sum(pair.right.__self__.times * count for (pair,), count in composed) == min(times, 97)


DEVIATIONS = {10: (2.659, 4.225), 30: (2.71, 4.225), 300: (2.730, 4.225)}


@pytest.mark.slow
@pytest.mark.parametrize("times", sorted(DEVIATIONS))
def test_noise_of_the_worst_group_is_what_it_should_be(times):
    """Deviations over B / n and sqrt(T) at (1, 1e-6): limits 2.709 and, zCDP's, 2.906."""
    sizes = (2 * 10**6,) * 3
    made = jmm.accounting.calibrate_noise(Selection(bound=1.0, sizes=sizes, times=times), 1.0, 1e-7)
    at_most = jmm.epsilon(made, 1e-7)
    assert 0.995 < at_most <= 1.0
    made = dataclasses.replace(made, noise_multiplier=None, sizes=(9 * 10**5,))
    made = jmm.accounting.calibrate_noise(made, 1.0, 1e-6)
    deviation = made.noise_multiplier * math.pi / math.sqrt(6 * times)
    assert DEVIATIONS[times][0] * 0.99 < deviation < DEVIATIONS[times][0] * 1.005
    losses = jmm.accounting.calibrate_noise(GroupLosses(bound=1.0, sizes=(9 * 10**5,),
                                                        times=times), 1.0, 1e-6)
    assert losses.noise == "gaussian"
    assert losses.deviation() / math.sqrt(times) == pytest.approx(DEVIATIONS[times][1], rel=1e-3)


def test_less_noise_than_any_checks_and_no_less_than_the_limit():
    for times in (20, 60):
        z = 3.0 * math.sqrt(times)
        cost = jmm.epsilon(selection(z, times), 1e-6)
        mu = math.sqrt(times) / z  # Gaussian of variance t^2 / 4 a release, and of zCDP's t^2 / 8
        limit = jmm.epsilon(jmm.mechanism.TreeSums(clip=1.0, leaves=1, noise_multiplier=4 / mu),
                            1e-6)
        laplace = jmm.epsilon(GroupLosses(bound=1.0, sizes=(5,), noise_multiplier=z, times=times,
                                          noise="laplace"), 1e-6)
        rho = times / z**2 / 8
        assert limit * 0.97 < cost < laplace / 1.5
        assert cost < rho + 2 * math.sqrt(rho * math.log(1e6))


def test_charges_add_up_with_gaussians_and_with_the_other_noise():
    gradients = jmm.Repeat(query=jmm.GroupGradients(clip=1.0, noise_multiplier=60.0, sizes=SIZES),
                           times=40)
    index = selection(40.0, 40)
    values = GroupLosses(bound=1.0, sizes=SIZES, times=40, noise="gaussian", noise_multiplier=40.0)
    alone = jmm.epsilon(gradients, 1e-6)
    both = jmm.epsilon(jmm.Sequence(parts=(gradients, index)), 1e-6)
    assert max(alone, jmm.epsilon(index, 1e-6)) < both < alone + jmm.epsilon(index, 5e-7)
    # Gaussian losses are one more Gaussian: mu^2 adds up
    mu = math.sqrt(40 * (2 / 60) ** 2 + 40 / 40**2)
    full = jmm.epsilon(jmm.Sequence(parts=(gradients, values)), 1e-6)
    exact = jmm.epsilon(jmm.mechanism.TreeSums(clip=1.0, leaves=1, noise_multiplier=2 / mu), 1e-6)
    assert full == pytest.approx(exact, rel=5e-3)
    assert full > exact * (1 - 1e-3)


def test_several_records_move_a_score_as_far_as_one_with_less_noise():
    for people in (2, 5):
        several = jmm.epsilon(selection(30.0, 20), 1e-6, people=people)
        one = jmm.epsilon(selection(30.0 / people, 20), 1e-6)
        assert several == pytest.approx(one, rel=1e-3)
        assert several >= one * (1 - 1e-4)


def test_noise_that_follows_the_smallest_group_costs_the_same_for_all():
    costs = {jmm.epsilon(selection(5.0, 3, sizes), 1e-6) for sizes in ((4,), (4, 900), (4, 4, 5))}
    assert len(costs) == 1


# --- Gaussian noise on all losses ---


@functools.partial(jax.jit, static_argnames="count")
def valued(mechanism, data, count):
    return jax.lax.map(lambda k: released.release_group_losses(k, mechanism, 0, LINEAR, W, data),
                       jax.random.split(jax.random.key(5), count))


def test_gaussian_losses_have_gaussian_noise_of_each_groups_own_size():
    means = np.array([0.4, 1.0, 0.7])
    mechanism = GroupLosses(bound=BOUND, sizes=SIZES, noise_multiplier=1.5, noise="gaussian")
    y = np.asarray(valued(mechanism, rows(means), 2000))
    unit = (y - means) * np.array(SIZES) / (BOUND * 1.5)
    assert stats.kstest(unit.ravel(), "norm").pvalue > 1e-4
    assert np.all(abs(np.corrcoef(unit.T) - np.eye(3)) * math.sqrt(2000) < 4.5)


def test_calibration_chooses_the_noise_and_keeps_what_is_given():
    few, many = (GroupLosses(bound=1.0, sizes=(10**5,), times=times) for times in (1, 50))
    assert jmm.accounting.calibrate_noise(few, 1.0, 1e-6).noise == "laplace"
    assert jmm.accounting.calibrate_noise(many, 1.0, 1e-6).noise == "gaussian"
    stated = dataclasses.replace(many, noise="laplace")
    assert jmm.accounting.calibrate_noise(stated, 1.0, 1e-6).noise == "laplace"
    given = dataclasses.replace(many, noise_multiplier=3.0)
    assert jmm.accounting.calibrate_noise(given, 1.0, 1e-6).noise is None  # as it was: Laplace
    hyper = jmm.group_sgd.Hyper(query=jmm.GroupGradients(clip=1.0, sizes=(10**5,)),
                                losses=dataclasses.replace(many, times=1), step=1.0,
                                weight_step=1.0, iterations=50)
    made = jmm.calibrate(jmm.group_sgd, hyper, 1.0, 1e-6)
    assert (made.losses.noise, made.losses.times) == ("gaussian", 1)
    assert 0.99 < jmm.epsilon(jmm.group_sgd.mechanism(made), 1e-6) <= 1.0
    with pytest.raises(ValueError, match="noise must be one of laplace, gaussian"):
        jmm.epsilon(dataclasses.replace(given, noise="gumbel"), 1e-6)


# --- in words ---


def test_statements_say_what_one_scale_means():
    def said(sizes, losses=None):
        hyper = active_groups.Hyper(
            query=jmm.GroupGradients(clip=1.0, noise_multiplier=9.0, sizes=sizes),
            losses=losses or selection(9.0, sizes=sizes), step=1.0, iterations=3)
        return one_line(jmm.statement(active_groups, hyper, delta=1e-6))

    equal, unequal = said((10, 20)), said((10, 21))
    assert "which the smallest group decides" in unequal
    assert "which the smallest group decides" not in equal
    for text in (equal, unequal):
        for part in ("index of the largest of the groups' mean losses in [0, 2] with Gumbel noise",
                     "Beyond the allowed number of releases the index is -1", "The group of every",
                     "Gumbel scale / (B / n of the smallest group) 9", "drawn from integers"):
            assert part in text, part
    gaussian = said((10, 21), GroupLosses(bound=1.0, sizes=(10, 21), noise_multiplier=9.0,
                                          only_argmax=True, noise="gaussian"))
    assert "Gaussian noise" in gaussian
    assert "Gaussian deviation / (B / n_i) 9" in gaussian


# --- what an attack sees ---


@pytest.mark.parametrize("loudness", [1.0, 0.5])
def test_the_signal_of_an_index_is_how_far_its_odds_move(loudness):
    rng = np.random.default_rng(4)
    one, two = (rng.choice(3, 20_000, p=special.softmax(np.array([x, 0.2, -0.4]) / loudness))
                for x in (-0.4, 0.6))
    signal = index_signal(one, two, selection(1.0, times=9))
    assert signal.attained == pytest.approx(1 / loudness, rel=0.15)
    assert signal.low < signal.attained < signal.high
    assert signal.charged == pytest.approx(1.0, rel=1e-4)
    assert signal.violated == (loudness < 1)


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "seen"), [(None, False), (0.5, True)])
def test_an_attack_on_the_door_sees_halved_noise_and_nothing_else(bug, seen, monkeypatch):
    if bug is not None:
        draw = released.chosen
        monkeypatch.setattr(released, "chosen", lambda key, below: draw(
            key, (below / bug).astype(jnp.int32)))
    sizes, n, z = (4, 40), 20_000, 1.0
    jax.clear_caches()
    actual = []
    for record in (0.0, BOUND):
        data = rows((0.9 * BOUND, 0.5 * BOUND), sizes).at[0, 0].set(record)
        actual.append(opened(selection(z, sizes=sizes), data, n, seed=len(actual)))
    signal = index_signal(*actual, selection(z, sizes=sizes))
    jax.clear_caches()
    assert signal.violated == seen
    assert signal.attained == pytest.approx(1.0 / (bug or 1.0), rel=0.2)


@pytest.mark.parametrize("order", [1.01, 1.5, 3.0, 20.0, 300.0])
@pytest.mark.parametrize("t", [1e-4, 0.02, 0.3, 1.0, 12.0, 600.0])
def test_the_filter_charges_the_largest_divergence_of_the_family_at_its_order(t, order):
    """Over every loss c at which the index can be seen; releases add up, chosen as they may be."""
    with mpmath.workdps(40):
        a, far = mpf(order), mpf(t)

        def log_mean(c):
            p = mpmath.expm1(c) / mpmath.expm1(far)
            return mpmath.log((1 - p) * mpmath.exp((a - 1) * c)
                              + p * mpmath.exp((a - 1) * (c - far))) / (a - 1)

        low, high = mpf(0), far  # one maximum
        for _ in range(120):
            one, two = low + (high - low) / 3, high - (high - low) / 3
            low, high = (one, high) if log_mean(one) < log_mean(two) else (low, two)
        exact = log_mean(low)
    for times, people in ((1, 1), (50, 1), (50, 4)):
        actual, failure = renyi.loss_divergence(
            PrivacyLoss("selection", people / t), times, order, "replace_one", people=people)
        assert failure == 0
        assert times * exact <= actual <= times * exact * (1 + 1e-6) + 1e-12
