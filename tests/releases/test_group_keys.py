"""Losses of groups that draw: one key for a release, a group and a row, in every release."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import GroupGradients, GroupLosses, Repeat, Saddle
from jaxminimax.base.random_bits import threefry, threefry_key
from jaxminimax.mechanism.description import Kind
from jaxminimax.mechanism.sampling import SampleKeys, draw_in_group
from jaxminimax.problems import ball, worst_group
from jaxminimax.releases import release_keys
from jaxminimax.releases.groups import (
    release_group_gradient,
    release_group_index,
    release_group_losses,
    release_loss,
    release_weighted_gradient,
)
from tests.helpers.lanes import rest_nightly

SIZES, D, KEY, SPENT = (5, 9), 3, jax.random.key(4), 2
DATA = jnp.asarray(np.random.default_rng(0).normal(size=(2, 9, D)))
W = jnp.ones(D)
NUMBERS = dict(lipschitz=2.0, bound=1.0)


def noisy(w, x, key):
    """Gradients from far below to far above the clip norm, by the key alone; losses too."""
    return jnp.exp(3 * jax.random.normal(key, ())) * jnp.tanh(x @ w) ** 2


def of(loss, strategy="vmap", **values):
    made = worst_group(loss, ball(9.0), random=True, **{**NUMBERS, **values})
    return made._replace(operator=dataclasses.replace(made.operator, strategy=strategy,
                                                      microbatch=4))


@jax.jit
def words_of(kind):
    """Of every record, `[p, n_max, 2]`, by the definition."""
    base = release_keys.Keys(KEY, kind, SPENT).operators()
    return jnp.stack([jnp.stack(threefry(base, jnp.full(9, i, jnp.uint32), jnp.arange(
        9, dtype=jnp.uint32)), -1) for i in range(2)])


@jax.jit
def values(kind):
    """Every record's gradient `[p, n_max, D]`, clipped at 1, and its loss in [0, 1]."""
    def one(x, words):
        loss, g = jax.value_and_grad(noisy)(W, x, threefry_key(words))
        return g / jnp.maximum(1, jnp.linalg.norm(g)), jnp.clip(loss, 0, 1)

    return jax.vmap(jax.vmap(one))(DATA, words_of(kind))


@functools.partial(jax.jit, static_argnames=("release", "problem"))
def opened(release, mechanism, problem, *more):
    return release(KEY, mechanism, jnp.int32(SPENT), problem, W, DATA, *more)


def gradients(sampling=None, z=0.0, **more):
    return Repeat(query=GroupGradients(clip=1.0, noise_multiplier=z, sizes=SIZES,
                                       sampling=sampling or jmm.Full(), **more), times=4)


def losses(z=0.0, **more):
    return GroupLosses(bound=1.0, sizes=SIZES, noise_multiplier=z, times=4, **more)


def test_every_record_of_every_group_has_a_key_of_its_own():
    data = release_keys.Keys(KEY, 1, SPENT).operators()
    every = release_keys.with_key_data_of_groups(DATA, data)[1]
    np.testing.assert_array_equal(every, words_of(1))
    assert len({tuple(x) for x in np.asarray(every).reshape(-1, 2)}) == 18


@pytest.mark.slow  # three programs
@pytest.mark.parametrize("sampling", rest_nightly([
    jmm.Poisson(rate=0.5), jmm.Full(), jmm.FixedSize(batch=3, replacement=True)], 1), ids=str)
def test_a_groups_gradient_is_the_sum_over_rows_with_their_keys(sampling):
    each, _ = values(Kind.ONE_GROUP)
    made = gradients(sampling)
    own = release_keys.Keys(KEY, Kind.ONE_GROUP, SPENT)
    sample = jax.jit(lambda: draw_in_group(SampleKeys(own.sample, KEY), made.query, jnp.int32(1)))()
    rows = np.arange(9) if sample.rows is None else np.asarray(sample.rows)
    rows = rows if sample.valid is None else rows[np.asarray(sample.valid)]
    expected = np.asarray(each)[1, rows].sum(0) / jmm.mechanism.group_batch_sizes(made.query)[1]
    for strategy in ("vmap", "microbatch", "ghost"):  # norms and sums are of one function
        g = opened(release_group_gradient, made, of(noisy, strategy), jnp.int32(1))
        np.testing.assert_allclose(g, expected, rtol=1e-6)


@pytest.mark.slow  # four programs
def test_the_other_doors_of_groups_have_the_same_keys():
    each, _ = values(Kind.MEAN)
    v = jnp.array([0.7, 0.3])
    g = opened(release_weighted_gradient, gradients(groups="all"), of(noisy), v)
    np.testing.assert_allclose(g, 0.7 * each[0, :5].mean(0) + 0.3 * each[1].mean(0), rtol=1e-6)

    def means(kind):
        return [x[:n].mean() for x, n in zip(values(kind)[1], SIZES, strict=True)]

    actual = opened(release_group_losses, losses(), of(noisy))
    np.testing.assert_allclose(actual, means(Kind.GROUP_LOSSES), rtol=1e-5)
    index = jmm.mechanism.Selection(bound=1.0, sizes=SIZES, noise_multiplier=0.0, times=4)
    assert opened(release_group_index, index, of(noisy)) == np.argmax(means(Kind.SELECTION))
    one = jmm.mechanism.RecordLosses(bound=1.0, noise_multiplier=0.0, times=4)
    place = jnp.int32(1), jnp.int32(6)
    loss = opened(release_loss, one, of(noisy), place)
    np.testing.assert_allclose(loss, values(Kind.RECORD_LOSS)[1][1, 6], rtol=1e-5)


def test_releases_of_every_kind_have_keys_of_their_own():
    words = [np.asarray(release_keys.Keys(KEY, kind, number).operators()) for kind in Kind
             for number in range(3)]
    others = [np.asarray(jax.random.key_data(k)) for kind in Kind for number in range(3)
              for own in (release_keys.Keys(KEY, kind, number),)
              for k in (own.sample, own.noise, own.public())]
    assert len({tuple(x) for x in (*words, *others)}) == len(words) + len(others)


# --- runs ---


def deaf(w, x, key):
    return jnp.sum((w - x) ** 2) / 40


def algorithms():
    query = gradients(z=1.0).query
    for module in (jmm.group_sgd, jmm.active_groups, jmm.balanced_groups):
        yield module, module.example(query, 3, 1.0)
    sums = jmm.mechanism.TreeSums(clip=1.0, leaves=3, noise_multiplier=1.0)
    made = jmm.group_oco.releases(clip=1.0, bound=1.0, iterations=3, sums=sums)
    first, second = made.parts
    yield jmm.group_oco, jmm.group_oco.Hyper(
        query=dataclasses.replace(made, parts=(first, dataclasses.replace(
            second, noise_multiplier=1.0))), step=0.1, weight_step=0.1, sizes=SIZES)


@pytest.mark.nightly  # eight programs
def test_a_loss_that_ignores_its_key_gives_the_same_bits_everywhere():
    plain = worst_group(lambda w, x: deaf(w, x, None), ball(9.0), **NUMBERS)
    for module, hyper in algorithms():
        one, other = (jmm.run(KEY, Saddle(W, ()), DATA, hyper, module, p).state
                      for p in (plain, of(deaf)))
        jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.nightly
def test_a_resumed_run_draws_what_the_first_one_drew(tmp_path):
    module, hyper = next(algorithms())
    full = jmm.run(KEY, Saddle(W, ()), DATA, hyper, module, of(noisy)).state

    def stop(state):
        raise KeyboardInterrupt

    def fit(**how):
        return jmm.fit(KEY, Saddle(W, ()), DATA, hyper, module, of(noisy), delta=1e-3,
                       progress=False, every=2, checkpoint=tmp_path, **how)

    with pytest.raises(KeyboardInterrupt):
        fit(callback=stop)
    jax.tree.map(np.testing.assert_array_equal, full, fit().state)


# --- what is refused ---


def test_who_needs_one_loss_for_a_record_refuses():
    query = jmm.mechanism.GroupSolution(lipschitz=2.0, bound=1.0, diameter=18.0, smooth=1.0,
                                        reg_w=0.5,
                                        reg_lam=0.5, sizes=SIZES, phases=1, noise_multiplier=1.0)
    hyper = jmm.phased_erm.Hyper(query=jmm.phased_erm.certified(query))
    problem = of(deaf, smooth=1.0, convex=True)
    with pytest.raises(ValueError, match=r"solution of groups .*takes no key"):
        jmm.run(KEY, Saddle(W, ()), DATA, hyper, jmm.phased_erm, problem)
    with pytest.raises(ValueError, match=r"risk .*takes no key"):
        jmm.metrics.worst_group_risk(problem, W, DATA, SIZES)
    with pytest.raises(TypeError, match="key"):
        worst_group(lambda w, x: w @ x, ball(1.0), random=True, **NUMBERS)


def test_statistics_of_a_batch_stay_refused():
    noise = jax.random.normal(jax.random.key(1), (2, 9, D))  # as many rows as the data

    def cheating(w, x, key):
        return (x - noise.mean()) @ w

    with pytest.raises(ValueError, match="as many rows"):
        release_group_losses(KEY, losses(), SPENT, of(cheating), W, DATA)
