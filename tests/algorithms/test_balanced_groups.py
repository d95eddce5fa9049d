"""Gradients of all groups in one release: what leaves, how noisy it is, what a record can change.

And the algorithm that is made of them: its rounds, its charge, and what a run that stops has spent.
"""

import dataclasses
import functools
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import GroupGradients, GroupLosses, Poisson, Query, Repeat, Saddle, balanced_groups
from jaxminimax.gradients import summation
from jaxminimax.mechanism import leaves
from jaxminimax.problems import ball, worst_group
from jaxminimax.releases import groups as release_module
from jaxminimax.releases import reading
from jaxminimax.releases.groups import release_group_gradient, release_weighted_gradient

SIZES, CLIP, Z = (3, 7, 5), 0.5, 1.5
LINEAR = worst_group(lambda w, x: w @ x, ball(10.0), lipschitz=1.0, bound=1.0)
W = jnp.array([1.0, -0.5])
# from balanced to one group alone, and weights that do not add up to 1
WEIGHTS = ((1 / 3, 1 / 3, 1 / 3), (0.98, 0.01, 0.01), (0.0, 0.0, 1.0), (0.1, 0.7, 0.2),
           (2.0, 0.0, 9.0))
every_clip = pytest.mark.parametrize("clips", ["equal", "by_weight"])
every_weight = pytest.mark.parametrize("v", WEIGHTS, ids=str)


def described(z=Z, sizes=SIZES, times=4, **more):
    return Repeat(query=GroupGradients(clip=CLIP, noise_multiplier=z, sizes=sizes, groups="all",
                                       **more), times=times)


def records(padding=0.0, seed=0):
    """Three groups; what is beyond a group's size must never be read."""
    x = np.random.default_rng(seed).normal(size=(3, 7, 2))
    for i, n in enumerate(SIZES):
        x[i, n:] = padding
    return jnp.asarray(x)


@jax.jit
def _opened(keys, spent, mechanism, data, v):
    one = functools.partial(release_weighted_gradient, mechanism=mechanism, problem=LINEAR, w=W,
                            data=data, v=v)
    return jax.lax.map(lambda key: one(key, spent=spent), keys)


def opened(data, v, z=Z, count=1, spent=0, opened=_opened, clips="equal"):
    keys = jax.random.split(jax.random.key(1), count)
    return np.asarray(opened(keys, jnp.int32(spent), described(jnp.float64(z), clips=clips), data,
                             jnp.asarray(v)))


def clipped(x):
    return x * min(1.0, CLIP / np.linalg.norm(x))


def heaviest(v, clips="equal"):
    """The largest weight of a record; of balanced groups where clip norms follow the weights."""
    if clips == "by_weight":
        return 1 / (len(SIZES) * min(SIZES))
    return max(a / n for a, n in zip(v, SIZES, strict=True))


# --- what is released ---


@every_weight
@pytest.mark.parametrize("padding", [0.0, 1e6, np.nan])
def test_without_noise_it_is_the_weighted_sum_of_clipped_gradients(v, padding):
    x = np.asarray(records())
    expected = sum(a / n * sum(map(clipped, own[:n]))
                   for a, n, own in zip(v, SIZES, x, strict=True))
    actual = opened(records(padding), v, z=0.0)[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


@every_weight
@pytest.mark.parametrize("padding", [0.0, np.nan])
def test_a_group_of_k_times_the_weight_has_a_kth_of_the_clip_norm(v, padding):
    """Without noise: sum_i v_i / n_i sum_j clip(grad, C / a_i), with a_i = p min n v_i / n_i."""
    least = len(SIZES) * min(SIZES)
    expected = sum(sum(clipped(least * a / n * x) for x in own[:n]) / least for a, n, own in zip(
        v, SIZES, np.asarray(records()), strict=True) if a)
    actual = opened(records(padding), v, z=0.0, clips="by_weight")[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


def apart(v, key_of=_opened, clips="equal"):
    """How far one replaced record moves a release of the same noise, the most over all groups."""
    most = 0.0
    for i in range(3):
        for far in (1e4, 1e-3, np.nan):
            pair = [records().at[i, 1].set(jnp.array([sign * far, 0.0])) for sign in (1, -1)]
            one, two = (opened(x, v, opened=key_of, clips=clips)[0] for x in pair)
            most = max(most, np.linalg.norm(one - two))
    return most


@every_clip
@every_weight
def test_one_replaced_record_moves_it_by_what_is_charged_and_no_more(v, clips):
    """D_t by brute force: 2 C max_i v_i / n_i, which the heaviest group attains, or 2 C s."""
    assert apart(v, clips=clips) == pytest.approx(2 * CLIP * heaviest(v, clips), rel=1e-4)


def deviation(v, key_of=_opened, count=4000, clips="equal"):
    noise = (opened(records(), v, count=count, opened=key_of, clips=clips)
             - opened(records(), v, z=0.0, opened=key_of, clips=clips)[0])
    assert abs(noise.mean(0)).max() < 4.5 * noise.std() / math.sqrt(count)
    return noise.std()


@pytest.mark.slow
@every_clip
@every_weight
def test_its_noise_is_that_of_this_rounds_weights(v, clips):
    near = 4.5 / math.sqrt(2 * 2 * 4000)
    seen = deviation(v, clips=clips)
    assert seen == pytest.approx(CLIP * Z * heaviest(v, clips), rel=near)
    # in units of half of what a record moves it by: what the accountant reads
    assert seen / (apart(v, clips=clips) / 2) == pytest.approx(Z, rel=2 * near)


def noise_of_balanced_weights(noisy_sum):
    """The noise stays that of balanced weights while they move."""
    def wrong(opened, rows, size):
        quiet = dataclasses.replace(opened, noise_multiplier=Saddle(0.0, None))
        exact, noisy = (noisy_sum(x, rows, size) for x in (quiet, opened))
        # r_i = v_i / (n_i s), and v adds up to 1
        s = 1 / rows.added(lambda z, x, *_: jnp.sum(x.read(0, x.count)[1]), None)[0]
        w = exact.value.w + (noisy.value.w - exact.value.w) / (s * len(SIZES) * min(SIZES))
        return noisy._replace(value=Saddle(w, ()))

    return wrong


def halved(noisy_sum):
    """Half of the noise."""
    def wrong(opened, *rest):
        z = Saddle(opened.noise_multiplier.w / 2, None)
        return noisy_sum(dataclasses.replace(opened, noise_multiplier=z), *rest)

    return wrong


def lifted(weight):
    """No clip."""
    return lambda ratio, present: jnp.where(present, 1.0, 0.0).astype(ratio.dtype)


def traced_anew(*args):
    return _opened.__wrapped__(*args)


def factor_after_the_clip(weights):
    """A weight multiplies a gradient that was clipped before."""
    def wrong(self, g, mask, share):
        alone, finite = weights(self, g, mask, None)
        return self.players(lambda _, s: s * share.astype(s.dtype), alone), finite

    return wrong


@pytest.mark.slow
@pytest.mark.parametrize(("where", "name", "make", "clips"), [
    (release_module, "noisy_sum", noise_of_balanced_weights, "equal"),
    (release_module, "noisy_sum", halved, "equal"), (summation, "clip_weight", lifted, "equal"),
    (release_module, "noisy_sum", halved, "by_weight"),
    (summation, "clip_weight", lifted, "by_weight"),
    (summation.Summation, "weights", factor_after_the_clip, "by_weight")], ids=[
        "balanced noise", "noise halved", "clip lifted", "noise halved, clips by weight",
        "clip lifted, clips by weight", "factor after the clip"])
def test_a_planted_bug_is_seen(where, name, make, clips):
    """By the deviation of the noise over half of what a record moves."""
    with mock.patch.object(where, name, make(getattr(where, name))):
        program = jax.jit(lambda *args: traced_anew(*args))
        v = (0.98, 0.01, 0.01)
        attained = deviation(v, program, 1000, clips) / (apart(v, program, clips) / 2)
    assert attained < 0.8 * Z


@pytest.mark.slow
def test_shares_that_are_wrong_cost_accuracy_and_no_privacy():
    """A share is cut to [0, 1] by the sum, whatever it is."""
    sound = release_module.shares
    with mock.patch.object(release_module, "shares", lambda v, sizes: (sound(v, sizes)[0],
                                                             9 * sound(v, sizes)[1] - 1)):
        program = jax.jit(lambda *args: traced_anew(*args))
        for v in WEIGHTS[:2]:
            assert apart(v, program) <= 2 * CLIP * heaviest(v) * (1 + 1e-4)


def test_it_is_shut_when_spent_and_for_what_it_does_not_answer():
    data, key, v = records(), jax.random.key(0), jnp.ones(3) / 3
    assert np.all(np.isnan(opened(data, WEIGHTS[0], spent=4)))
    assert np.all(np.isnan(opened(data, WEIGHTS[0], spent=-1)))
    one = dataclasses.replace(described(), query=GroupGradients(clip=CLIP, noise_multiplier=Z,
                                                                sizes=SIZES))
    with pytest.raises(ValueError, match="groups='all'"):
        release_weighted_gradient(key, one, jnp.int32(0), LINEAR, W, data, v)
    with pytest.raises(ValueError, match="groups='one'"):
        release_group_gradient(key, described(), jnp.int32(0), LINEAR, W, data, jnp.int32(0))
    with pytest.raises(ValueError, match="one weight for each of 3 groups"):
        release_weighted_gradient(key, described(), jnp.int32(0), LINEAR, W, data, v[:2])
    with pytest.raises(ValueError, match=r"one weight for each.*int"):
        release_weighted_gradient(key, described(), jnp.int32(0), LINEAR, W, data, jnp.arange(3))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 5, 9, 15])
def test_records_are_read_in_their_order_without_padding(size):
    """Slices that lie in one group, and slices that reach into the next ones."""
    x = records(np.nan)
    part = reading.read_groups({"x": x}, SIZES, lambda rows, group, row: (
        rows, jnp.broadcast_to(group, row.shape), row))
    flat = np.concatenate([own[:n] for own, n in zip(x, SIZES, strict=True)])
    for start in range(part.count - size + 1):
        rows, group, row = jax.jit(part.read, static_argnums=1)(start, size)
        np.testing.assert_array_equal(rows["x"], flat[start: start + size])
        np.testing.assert_array_equal(rows["x"], x[group, row])


@pytest.mark.slow
def test_neither_the_program_nor_its_memory_grows_with_the_data():
    problem = jmm.problems.group_glm("logistic", feature_bound=1.0, radius=1.0)
    texts = []
    for sizes in ((2_000,) * 5, (5_000, 3_000, 2_000), (500_000, 300_000, 200_000)):
        shape = len(sizes), max(sizes)
        data = tuple(jax.ShapeDtypeStruct(x, jnp.float32) for x in ((*shape, 22), shape))
        program = jax.jit(lambda key, data, sizes=sizes: release_weighted_gradient(
            key, described(sizes=sizes), jnp.int32(0), problem, jnp.zeros(22, jnp.float32), data,
            jnp.ones(len(sizes)))).lower(jax.random.key(0), data)
        texts.append(len(program.as_text()))
        temporaries = program.compile().memory_analysis().temp_size_in_bytes
        assert temporaries < 0.3 * sum(x.size * x.dtype.itemsize for x in data)
    assert max(texts) - min(texts) < 0.01 * min(texts)


# --- what is charged ---


def test_it_is_charged_as_a_sum_over_all_records():
    z, times = 40.0, 30
    made = described(z, times=times)
    full = Repeat(query=Query(clip=Saddle(CLIP, None), noise_multiplier=Saddle(z, None),
                              population=sum(SIZES)), times=times)
    assert jmm.epsilon(made, 1e-6) == jmm.epsilon(full, 1e-6)
    assert jmm.epsilon(made, 1e-6, 7) == jmm.epsilon(full, 1e-6, 7)
    with pytest.raises(ValueError, match="replace_one"):
        jmm.epsilon(made, 1e-6, neighbours="add_or_remove_one")
    with pytest.raises(ValueError, match=r"sampling must be Full\(\)"):
        jmm.mechanism.composed.check(described(sampling=Poisson(rate=0.5)))
    with pytest.raises(ValueError, match="groups must be"):
        jmm.mechanism.composed.check(
            Repeat(query=dataclasses.replace(made.query, groups="both"), times=1))
    assert "noise follows the largest weight" in made.summary()
    for change, message in ((dict(clips="by_weight", groups="one"), "set groups='all'"),
                            (dict(clips="longest"), "clips must be")):
        with pytest.raises(ValueError, match=message):
            jmm.mechanism.composed.check(
                Repeat(query=dataclasses.replace(made.query, **change), times=1))
    by_weight = described(z, times=times, clips="by_weight")
    assert jmm.epsilon(by_weight, 1e-6) == jmm.epsilon(full, 1e-6)
    assert "clip norm falls as its weight grows" in by_weight.summary()


def hyper(iterations=10, z=0.0, **more):
    settings = {"step": 0.5, "weight_step": 2.0, "balanced": 0.3} | more
    return balanced_groups.Hyper(
        query=described(z).query, iterations=iterations, **{"losses": GroupLosses(
            bound=1.0, sizes=SIZES, noise_multiplier=z, noise="gaussian")} | settings)


@pytest.mark.parametrize("spent", range(1, 18))
def test_a_run_that_stops_has_spent_what_it_released(spent):
    """Three rounds with one release each, then gradient and losses in turn."""
    made = balanced_groups.mechanism(hyper(z=9.0))
    assert jmm.mechanism.releases(made) == 17
    counts = [0, 0]
    for leaf in leaves(made.truncated(spent)):
        counts[isinstance(leaf, GroupLosses)] += leaf.times
    rounds = spent if spent <= 3 else 3 + -(-(spent - 3) // 2)  # a round that was begun counts
    assert counts == [rounds, max(rounds - 3, 0)]


@pytest.mark.parametrize(("change", "message"), [
    (dict(query=GroupGradients(clip=1.0, sizes=SIZES)), "must be 'all'"),
    (dict(losses=GroupLosses(bound=1.0, sizes=(3, 7, 6))), "same groups"),
    (dict(losses=GroupLosses(bound=1.0, sizes=SIZES, only_argmax=True)), "need all losses"),
    (dict(balanced=1.0), "balanced must"), (dict(cap=0.5), "cap must"),
])
def test_settings_that_do_not_go_together_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        made = dataclasses.replace(hyper(), **change)
        balanced_groups.mechanism(made)
        balanced_groups.init(Saddle(W, ()), made)


# --- rounds ---


@pytest.mark.slow
def test_without_noise_a_run_is_its_formula():
    made = hyper(averaging=jmm.averaging.TAIL, cap=1.3)
    data, x = records(), np.asarray(records())
    end, seen = jmm.run(jax.random.key(0), Saddle(W, ()), data, made, balanced_groups, LINEAR,
                        lambda state: (state.z, state.spent))
    w, v, points = np.asarray(W), np.full(3, 1 / 3), []
    most = 1.3 * np.array(SIZES) / (3 * min(SIZES))
    for t in range(1, 11):
        g = sum(a / n * sum(map(clipped, own[:n]))
                for a, n, own in zip(v, SIZES, x, strict=True))
        y = np.array([np.clip(own[:n] @ w, 0, 1).mean() for n, own in zip(SIZES, x, strict=True)])
        if t > 3:
            v = v * np.exp(2.0 * y)
            v = np.minimum(v / v.sum(), most)
        w = w - 0.5 * g
        points.append((w, v))
        np.testing.assert_allclose(seen[0].w[t - 1], w, rtol=1e-6)
        np.testing.assert_allclose(np.exp(seen[0].v[t - 1]), v, rtol=1e-6)
        assert seen[1][t - 1] == t + max(t - 3, 0)
    kept = [p for t, p in enumerate(points, 2) if t > 5.5]  # of T + 1 points
    np.testing.assert_allclose(end.average.w, np.mean([p[0] for p in kept], 0), rtol=1e-6)
    assert end.rounds == 10
    assert v.max() == pytest.approx(most[0])  # the cap binds


@pytest.mark.slow
def test_without_noise_a_run_with_clip_norms_by_weight_is_its_formula():
    made = hyper(cap=1.3)
    made = dataclasses.replace(made, query=dataclasses.replace(made.query, clips="by_weight"))
    x, n, least = np.asarray(records()), np.array(SIZES), 3 * min(SIZES)
    end, _ = jmm.run(jax.random.key(0), Saddle(W, ()), records(), made, balanced_groups, LINEAR)
    w, v = np.asarray(W), np.full(3, 1 / 3)
    for t in range(1, 11):
        g = sum(clipped(least * v[i] / n[i] * z) for i in range(3) for z in x[i, :n[i]]) / least
        y = np.array([np.clip(x[i, :n[i]] @ w, 0, 1).mean() for i in range(3)])
        if t > 3:
            v = v * np.exp(2.0 * y) / (v @ np.exp(2.0 * y))
        w = w - 0.5 * g
    np.testing.assert_allclose(end.z.w, w, rtol=1e-6)
    np.testing.assert_allclose(np.exp(end.z.v), v, rtol=1e-6)
    assert (v * 3 * min(SIZES) / n).max() > 1.3  # no cap


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_equal_clips_and_clips_by_weight_agree_where_nothing_is_long(noise):
    """Balanced weights: the same sum, and the same noise."""
    short, ends = 1e-3 * records(), []
    for clips in ("equal", "by_weight"):
        made = hyper(losses=None, z=noise)
        made = dataclasses.replace(made, query=dataclasses.replace(made.query, clips=clips))
        ends.append(jmm.run(jax.random.key(0), Saddle(W, ()), short, made, balanced_groups,
                            LINEAR).state.z.w)
    np.testing.assert_allclose(*ends, rtol=1e-5)


@pytest.mark.slow
def test_without_losses_weights_stay_balanced_and_nothing_is_paid_for_them():
    made = hyper(losses=None, z=9.0)
    assert balanced_groups.mechanism(made) == Repeat(query=made.query, times=10)
    end, _ = jmm.run(jax.random.key(0), Saddle(W, ()), records(), made, balanced_groups, LINEAR)
    np.testing.assert_allclose(end.average.v, 1 / 3)
    assert end.spent == 10
    assert np.all(np.isnan(end.losses))


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path):
    """Rounds do not all make as many releases."""
    made, data = hyper(z=5.0), records()
    how = dict(delta=1e-3, progress=False, checkpoint=tmp_path, every=1)
    start, key = Saddle(W, ()), jax.random.key(3)

    def stop(state):
        if state.rounds == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jmm.fit(key, start, data, made, balanced_groups, LINEAR, callback=stop, **how)
    again = jmm.fit(key, start, data, made, balanced_groups, LINEAR, **how)
    full, _ = jmm.run(key, start, data, made, balanced_groups, LINEAR)
    np.testing.assert_array_equal(again.state.average.w, full.average.w)
    assert (again.state.rounds, again.state.spent) == (10, 17)
    assert again.statement.spent == again.statement.allowed == 17
