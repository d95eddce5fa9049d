"""Releases of groups: what is released, how noisy it is, and what one record can change."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxminimax as jmm
from benchmarks.privacy.narrow import Narrow
from jaxminimax import FixedSize, Full, GroupGradients, GroupLosses, Poisson, Repeat
from jaxminimax.mechanism import overflow_probability
from jaxminimax.mechanism.groups import in_group
from jaxminimax.problems import ball, worst_group
from jaxminimax.releases.groups import (
    release_group_gradient,
    release_group_losses,
    release_weighted_gradient,
)
from tests.helpers.lanes import rest_nightly

SIGMAS = 4.5
KEY = jax.random.key(0)
SIZES = (3, 7, 5)
CLIP, BOUND, Z = 0.5, 2.0, 1.5
LINEAR = worst_group(lambda w, x: w @ x, ball(10.0), lipschitz=1.0, bound=1.0)
W = jnp.array([1.0, -0.5])
SAMPLINGS = (Full(), Poisson(rate=0.4), FixedSize(batch=2), FixedSize(batch=2, replacement=True))
samplings = pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
groups = pytest.mark.parametrize("group", range(3))


def records(padding=0.0, seed=0, dim=2):
    """Three groups; what is beyond a group's size must never be read."""
    x = np.random.default_rng(seed).normal(size=(3, 7, dim))
    for i, n in enumerate(SIZES):
        x[i, n:] = padding
    return jnp.asarray(x)


def gradients(z=0.0, sampling=SAMPLINGS[0], clip=CLIP, sizes=SIZES, times=5):
    return Repeat(query=GroupGradients(clip=clip, noise_multiplier=z, sampling=sampling,
                                       sizes=sizes), times=times)


def losses(z=0.0, times=5, **more):
    return GroupLosses(bound=BOUND, sizes=SIZES, noise_multiplier=z, times=times, **more)


@functools.partial(jax.jit, static_argnames="problem")
def _opened(keys, spent, mechanism, w, data, group, problem):
    if isinstance(mechanism, Repeat):
        one = functools.partial(release_group_gradient, mechanism=mechanism, problem=problem, w=w,
                                data=data, group=group)
    else:
        one = functools.partial(release_group_losses, mechanism=mechanism, problem=problem, w=w,
                                data=data)
    return jax.lax.map(lambda x: one(x[0], spent=x[1]), (keys, spent))


def opened(mechanism, data, group=0, count=1, spent=0, w=W, seed=0, problem=LINEAR):
    keys = jax.random.split(jax.random.key(seed), count)
    number = jnp.full(count, spent, jnp.int32)
    return np.asarray(_opened(keys, number, mechanism, w, data, jnp.int32(group), problem))


def clipped(x):
    return x * min(1.0, CLIP / np.linalg.norm(x))


# --- what is released ---


@groups
@pytest.mark.parametrize("padding", [0.0, 1e6, np.nan])
def test_without_noise_it_is_the_clipped_mean_of_the_groups_own_records(group, padding):
    data = records(padding)
    n = SIZES[group]
    g = opened(gradients(), data, group)[0]
    expected = sum(map(clipped, np.asarray(data)[group, :n])) / n
    np.testing.assert_allclose(g, expected, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_groups_rows_are_read_where_they_lie_each_once(rows):
    """In slices: a coordinate a row, and a length a group; padding and other groups are hostile."""
    own = 1 + 0.25 * jnp.arange(3.0)
    data = own[:, None, None] * jnp.eye(7)[None]
    in_slices = LINEAR._replace(operator=jmm.types.with_strategy(LINEAR.operator, "microbatch",
                                                                 rows))
    for group, n in enumerate(SIZES):
        hostile = jnp.full_like(data, jnp.nan).at[group, :n].set(data[group, :n])
        g = opened(gradients(clip=2.0), hostile, group, w=jnp.ones(7), problem=in_slices)[0]
        np.testing.assert_allclose(g * n, own[group] * (np.arange(7) < n), rtol=1e-6)


@pytest.mark.parametrize("padding", [0.0, 1e6, np.nan])
def test_without_noise_losses_are_clipped_means_of_every_group(padding):
    data = records(padding).at[1, 0, 0].set(50.0).at[2, 0, 0].set(np.nan).at[0, 1, 0].set(-9.0)
    y = opened(losses(), data)[0]
    for i, n in enumerate(SIZES):
        each = np.nan_to_num(np.asarray(data)[i, :n] @ np.asarray(W), nan=BOUND)
        assert y[i] == pytest.approx(np.clip(each, 0, BOUND).mean(), rel=1e-7)
    index = opened(losses(only_argmax=True), data)[0]
    assert index == np.argmax(y)
    assert index.dtype == np.int32


@pytest.mark.slow
@samplings
@groups
def test_samples_are_the_described_ones_of_the_group_and_of_nothing_else(sampling, group):
    """One coordinate a record: the sums tell how often each was drawn."""
    count, n = 2000, SIZES[group]
    data = jnp.broadcast_to(jnp.eye(7), (3, 7, 7))
    w = jnp.ones(7)
    mechanism = gradients(sampling=sampling, clip=2.0)
    g = opened(mechanism, data, group, count, w=w)
    size = {Full: n, Poisson: 0.4 * n}.get(type(sampling), 2)
    drawn = np.round(g * size, 9)
    assert np.all(drawn == np.round(drawn))
    assert np.all(drawn[:, n:] == 0)
    drawn = drawn[:, :n]
    mean, many = drawn.mean(0), drawn.sum(1)
    match sampling:
        case Full():
            assert np.all(drawn == 1)
            return
        case Poisson(rate=q):
            rate, spread = q, q * (1 - q)
            assert drawn.max() == 1
            assert stats.chisquare(np.bincount(many.astype(int), minlength=n + 1),
                                   count * stats.binom.pmf(range(n + 1), n, q)).pvalue > 1e-4
        case FixedSize(replacement=again):
            rate = 2 / n
            spread = 2 / n * (1 - 1 / n) if again else rate * (1 - rate)
            assert np.all(many == 2)
            assert drawn.max() == (2 if again else 1)
    assert np.all(abs(mean - rate) < SIGMAS * np.sqrt(spread / count))


@pytest.mark.slow
def test_a_sample_of_a_whole_group_has_all_of_it():
    g = opened(gradients(sampling=FixedSize(batch=3)), records(np.nan), 0)
    np.testing.assert_allclose(g, opened(gradients(), records(), 0), rtol=1e-12)


def test_a_sample_that_does_not_fit_is_no_release():
    mechanism = gradients(sampling=Narrow(rate=0.4, most=2))
    data = jnp.ones((3, 7, 2))
    charged = overflow_probability(in_group(mechanism.query, 7))
    assert charged == pytest.approx(stats.binom.sf(2, 7, 0.4))
    # of the largest group's rows, whichever group is read
    for group in range(3):
        lost = np.isnan(opened(mechanism, data, group, 2000)).all(1)
        assert abs(lost.mean() - charged) < SIGMAS * np.sqrt(charged / 2000)


@pytest.mark.slow
def test_a_record_moves_no_other_ones_loss():
    """A loss with a step of its own by a kernel is a convolution of many groups, if mapped."""
    def step(w, record):
        def loss(w):
            image, target = record
            return jnp.mean((jax.lax.conv(image[None, None], w[None, None], (1, 1), "SAME")[0, 0]
                             - target) ** 2)
        return 0.05 * loss(w - 0.1 * jax.grad(loss)(w))

    n, rng = 50, np.random.default_rng(0)
    data = jnp.asarray(rng.normal(size=(2, 2, n, 8, 8)))
    problem = worst_group(step, ball(1.0), lipschitz=1.0, bound=1.0)
    mechanism = GroupLosses(bound=1.0, sizes=(n, n), noise_multiplier=0.0)

    def means(data):
        return release_group_losses(jax.random.key(0), mechanism, jnp.int32(0), problem,
                                    jnp.full((3, 3), 0.1), tuple(data))

    one, other = means(data), means(data.at[0, 0, 0].set(jnp.nan))
    assert abs(one[0] - other[0]) <= 1 / n + 1e-6
    assert one[1] == other[1]


# --- noise ---


@pytest.mark.slow
@pytest.mark.parametrize(("group", "sampling"), rest_nightly([
    *((0, sampling) for sampling in SAMPLINGS), (1, SAMPLINGS[0]), (2, SAMPLINGS[0]),
    *itertools.product((1, 2), SAMPLINGS[1:])], len(SAMPLINGS) + 2), ids=str)
@pytest.mark.optimised("0-Full", "0-Poisson")
def test_gradients_noise_has_the_described_deviation(sampling, group):
    data = jnp.zeros((3, 7, 7))
    g = opened(gradients(Z, sampling), data, group, 2000, w=jnp.ones(7))
    n = SIZES[group]
    size = {Full: n, Poisson: 0.4 * n}.get(type(sampling), 2)
    assert stats.kstest(g.ravel() * size / (CLIP * Z), "norm").pvalue > 1e-4


@pytest.mark.slow
@pytest.mark.optimised
def test_losses_noise_is_laplace_with_each_groups_own_scale_and_each_its_own():
    data = jnp.zeros((3, 7, 2))
    y = opened(losses(Z), data, count=20_000)
    for i, n in enumerate(SIZES):
        assert stats.kstest(y[:, i] * n / (BOUND * Z), "laplace").pvalue > 1e-4
    for i, j in itertools.combinations(range(3), 2):
        for f in (np.array, np.abs):
            assert abs(np.corrcoef(f(y[:, i]), f(y[:, j]))[0, 1]) * np.sqrt(len(y)) < SIGMAS


def test_the_released_index_is_that_of_the_noisy_losses():
    data = records()
    y = opened(losses(20.0), data, count=500)
    index = opened(losses(20.0, only_argmax=True), data, count=500)
    np.testing.assert_array_equal(index, np.argmax(y, 1))
    assert set(index) == {0, 1, 2}


def test_no_noise_is_used_twice():
    """By rounds, groups and releases."""
    data = jnp.zeros((3, 7, 1))
    count, one = 4000, jnp.ones(1)
    units = [opened(gradients(1.0, clip=1.0, times=9), data, 0, count, k, one)[:, 0]
             for k in range(3)]
    units += list(opened(losses(1.0), data, 0, count, 0, one).T)
    units += list(opened(losses(1.0), data, 0, count, 1, one).T)
    for x, y in itertools.combinations(units, 2):
        for f in (np.array, np.abs):
            assert abs(np.corrcoef(f(x), f(y))[0, 1]) * np.sqrt(count) < SIGMAS
    again = opened(gradients(1.0, clip=1.0, times=9), data, 0, count, 1, one)[:, 0]
    np.testing.assert_array_equal(again, units[1])


# --- what one record can change ---


@pytest.mark.slow
@pytest.mark.parametrize("other", [-1e3, 0.0, np.nan, np.inf])
@pytest.mark.optimised("-1000")
def test_a_replaced_record_moves_its_group_by_at_most_what_is_charged(other):
    n = SIZES[1]
    one = records().at[1, 4].set(jnp.array([1e3, 0.0]))
    two = records().at[1, 4].set(jnp.array([other, 0.0]))
    for group in range(3):
        a, b = (opened(gradients(Z), x, group)[0] for x in (one, two))
        moved = np.linalg.norm(a - b)
        z = Repeat(query=gradients(Z).query, times=1).effective_noise_multiplier("replace_one")
        assert moved <= 2 * CLIP / n * Z / z < 2.002 * CLIP / n
        assert (moved > 0.4 * CLIP / n) == (group == 1)
    a, b = (opened(losses(Z), x)[0] for x in (one, two))
    np.testing.assert_array_equal(a[[0, 2]], b[[0, 2]])
    assert abs(a[1] - b[1]) <= BOUND / n + 1e-6  # numbers of float32
    if other < 0:
        assert abs(a[1] - b[1]) == pytest.approx(BOUND / n, rel=1e-4)  # to its grid


@pytest.mark.slow
@pytest.mark.optimised
def test_many_float32_losses_add_up_to_within_one_records_share():
    """Added in float32, 2^20 losses would move by many times what one record may change."""
    n = 2**20
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (1, n, 1)).astype(np.float32)
    mechanism = GroupLosses(bound=1.0, sizes=(n,), noise_multiplier=0.0, times=1)
    with jax.enable_x64(False):
        y = opened(mechanism, jnp.asarray(x), w=jnp.ones(1, jnp.float32))
    assert y.dtype == np.float32
    assert y[0, 0] == np.float32(x.astype(np.float64).mean())


# --- the end of the budget, and refusals ---


@pytest.mark.parametrize("spent", [5, 6])
def test_beyond_the_budget_there_is_nothing(spent):
    data = records()
    assert np.isfinite(opened(gradients(Z), data, spent=4)).all()
    assert np.isfinite(opened(losses(Z), data, spent=4)).all()
    assert np.isnan(opened(gradients(Z), data, spent=spent)).all()
    assert np.isnan(opened(losses(Z), data, spent=spent)).all()
    assert opened(losses(Z, only_argmax=True), data, spent=spent)[0] == -1


@pytest.mark.parametrize("group", [-1, 3])
def test_of_a_group_that_does_not_exist_there_is_nothing(group):
    assert np.isnan(opened(gradients(Z), records(), group)).all()


@pytest.mark.parametrize("data", [jnp.zeros((3, 8, 2)), jnp.zeros((2, 7, 2)), jnp.zeros((21, 2)),
                                  (jnp.zeros((3, 7, 2)), jnp.zeros((3, 6)))], ids=range(4))
def test_other_data_than_described_are_refused(data):
    for mechanism in (gradients(), losses()):
        with pytest.raises(ValueError, match=r"3 groups of up to 7 records.*by_group"):
            opened(mechanism, data)


def test_noise_that_was_never_set_is_refused():
    for mechanism in (gradients(None), losses(None)):
        with pytest.raises(ValueError, match="calibrate"):
            opened(mechanism, records())


def test_another_mechanism_is_refused():
    query = in_group(gradients(1.0).query, 3)
    with pytest.raises(ValueError, match="answers GroupGradients, got Query"):
        opened(dataclasses.replace(gradients(1.0), query=query), records())


# --- shapes ---


@pytest.mark.parametrize(("change", "message"), [
    (dict(bound=jnp.array([[1.0], [100.0]])), "bound must be one number"),
    (dict(noise_multiplier=jnp.ones(2)), "noise_multiplier must be one number")])
def test_losses_with_bounds_of_several_sizes_are_refused(change, message):
    """The clip would be a group's own and the noise every group's: differences came out exact."""
    losses = jmm.GroupLosses(**{"bound": 1.0, "noise_multiplier": 20.0, "sizes": (5, 5),
                                "times": 1, **change})
    problem = jmm.problems.group_means(radius=1.0, record_bound=1.0)
    with pytest.raises(ValueError, match=message):
        release_group_losses(jax.random.key(0), losses, jnp.int32(0), problem, jnp.zeros(2),
                             jnp.zeros((2, 5, 2)))
    with pytest.raises(ValueError, match="Accounting needs one plain number"):
        jmm.epsilon(losses, 1e-6)


def test_a_loss_of_several_numbers_is_refused():
    losses = jmm.GroupLosses(bound=1.0, noise_multiplier=20.0, sizes=(5,) * 5, times=1)
    problem = jmm.problems.group_means(radius=1.0, record_bound=1.0)._replace(
        loss=lambda w, z: jnp.sum((w - z) ** 2)[None])
    with pytest.raises(ValueError, match="must be one number, got shape"):
        release_group_losses(jax.random.key(0), losses, jnp.int32(0), problem, jnp.zeros(2),
                             jnp.zeros((5, 5, 2)))


@pytest.mark.parametrize(("group", "clip", "message"), [
    (jnp.zeros(1, jnp.int32), 1.0, "group must be one number"),
    (jnp.float32(0), 1.0, "group must be an integer"),
    (jnp.int32(0), jnp.ones(5), "clip must be one number")])
def test_one_group_and_one_clip_norm_are_asked_for(group, clip, message):
    """A list of one group took the whole group for one record."""
    query = jmm.GroupGradients(clip=clip, noise_multiplier=1.0, sizes=(5, 5))
    problem = jmm.problems.group_means(radius=1.0, record_bound=1.0)
    with pytest.raises(ValueError, match=message):
        release_group_gradient(jax.random.key(0), jmm.Repeat(query=query, times=1), jnp.int32(0),
                               problem, jnp.zeros(2), jnp.zeros((2, 5, 2)), group)


# --- what is refused ---


@pytest.mark.parametrize(("change", "named"), [
    ({"parts": 2}, "got 2"), ({"query": {"sampling": Poisson(rate=0.01)}}, "Poisson")])
def test_groups_are_read_as_they_are(change, named):
    """`times` releases are charged, so no more are answered, and all groups are all records."""
    described = gradients(1.0)
    described = dataclasses.replace(
        described, parts=change.get("parts", 1), query=dataclasses.replace(
            described.query, groups="all", **change.get("query", {})))
    with pytest.raises(ValueError, match=named):
        release_weighted_gradient(KEY, described, jnp.int32(0), LINEAR, W, records(),
                                  jnp.ones(3) / 3)
    one = dataclasses.replace(gradients(1.0), parts=2)
    with pytest.raises(ValueError, match="parts must be 1 for gradients of groups, got 2"):
        release_group_gradient(KEY, one, jnp.int32(0), LINEAR, W, records(), jnp.int32(0))
