"""Clip norms that follow released losses: what a record moves, the noise, the charge, the rounds.

And the command that compares them with `balanced_groups`.
"""

import dataclasses
import functools
import json
import math
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.examples.methods import adaptive_clips, group_clips
from jaxminimax import GroupGradients, GroupLosses, Saddle, balanced_groups
from jaxminimax.gradients import summation
from jaxminimax.problems import ball, worst_group
from jaxminimax.releases import groups as releases

SIZES, CLIP, Z, BOUND, DELTA = (3, 7, 5), 0.5, 1.5, 2.0, 1e-3
LINEAR = worst_group(lambda w, x: w @ x, ball(1e6), lipschitz=1.0, bound=BOUND)
PAIRED = adaptive_clips.of_groups(LINEAR)
START = Saddle(jnp.array([1.0, -0.5]), ())
# balanced for these sizes, from there to one group alone
WEIGHTS = ((1 / 3, 1 / 3, 1 / 3), (0.98, 0.01, 0.01), (0.0, 0.0, 1.0), (0.1, 0.7, 0.2))
every_weight = pytest.mark.parametrize("v", WEIGHTS, ids=str)
UNIT = CLIP / (len(SIZES) * min(SIZES))  # what the clip norm is in a gradient


def hyper_of(z=Z, losses=None, **more):
    query = GroupGradients(clip=CLIP, noise_multiplier=z, sizes=SIZES, groups="all")
    return adaptive_clips.Hyper(**{"query": query, "losses": losses, "step": 1.0,
                                   "weight_step": 0.7, "iterations": 4, "balanced": 0.0, **more})


def losses_of(z):
    return GroupLosses(bound=BOUND, sizes=SIZES, noise_multiplier=z, noise="gaussian")


def records(padding=0.0):
    """Three groups; what is beyond a group's size must never be read."""
    x = np.random.default_rng(0).normal(size=(3, 7, 2))
    for i, n in enumerate(SIZES):
        x[i, n:] = padding
    return jnp.asarray(x)


def _moves(keys, z, data, v):
    def moved(key):
        hyper = hyper_of(z)
        state = adaptive_clips.init(START, hyper)
        state = state._replace(z=Saddle(state.z.w, jnp.log(v)))
        new = adaptive_clips.update(key, state, adaptive_clips.with_groups(data), hyper, PAIRED)
        return state.z.w - new.z.w

    return jax.lax.map(moved, keys)


_compiled = jax.jit(_moves)


def stepped(data, v, z=Z, count=1, moves=_compiled):
    """What `count` first rounds of step 1 subtract from w, at weights v."""
    keys = jax.random.split(jax.random.key(1), count)
    return np.asarray(moves(keys, jnp.float32(z), data, jnp.asarray(v)))


def clipped(x, norm=CLIP):
    return x * min(1.0, norm / np.linalg.norm(x))


@pytest.mark.slow
@every_weight
@pytest.mark.parametrize("padding", [0.0, np.nan])
def test_a_group_of_k_times_the_weight_has_a_kth_of_the_clip_norm(v, padding):
    """Without noise: sum_i v_i / n_i sum_j clip(grad, C_i), with C_i = C n_i / (p n_min v_i)."""
    expected = np.zeros(2)
    for share, n, own in zip(v, SIZES, np.asarray(records()), strict=True):
        if share:
            norm = CLIP * n / (len(SIZES) * min(SIZES) * share)
            expected += share / n * sum(clipped(x, norm) for x in own[:n])
    np.testing.assert_allclose(stepped(records(padding), v, z=0.0)[0], expected, rtol=1e-6)


def apart(v, moves=_compiled):
    """How far one replaced record moves a step of the same noise, the most over all groups."""
    most = 0.0
    for i in range(3):
        for far in (1e4, 1e-2, np.nan):
            one, two = (stepped(records().at[i, 1].set(jnp.array([sign * far, 0.0])), v,
                                moves=moves)[0] for sign in (1, -1))
            most = max(most, np.linalg.norm(one - two))
    return most


def deviation(v, moves=_compiled, count=4000):
    noise = (stepped(records(), v, count=count, moves=moves)
             - stepped(records(), v, z=0.0, moves=moves)[0])
    assert abs(noise.mean(0)).max() < 4.5 * noise.std() / math.sqrt(count)
    return noise.std()


NEAR = 4.5 / math.sqrt(2 * 2 * 4000)


@pytest.mark.slow
@every_weight
def test_no_weight_changes_what_a_record_moves_or_the_noise(v):
    assert apart(v) == pytest.approx(2 * UNIT, rel=1e-4)
    assert deviation(v) == pytest.approx(UNIT * Z, rel=NEAR)


def halved(noisy_sum):
    """Half of the noise."""
    def wrong(opened, *rest):
        z = Saddle(opened.noise_multiplier.w / 2, None)
        return noisy_sum(dataclasses.replace(opened, noise_multiplier=z), *rest)

    return wrong


def lifted(_):
    """No clip."""
    return lambda ratio, present: jnp.where(present, 1.0, 0.0).astype(ratio.dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "name", "make"), [
    (releases, "noisy_sum", halved), (summation, "clip_weight", lifted)],
    ids=["noise halved", "clip lifted"])
def test_a_planted_bug_is_seen(where, name, make):
    """By the deviation of the noise over half of what a record moves."""
    v = WEIGHTS[1]
    with mock.patch.object(where, name, make(getattr(where, name))):
        anew = jax.jit(lambda *args: _moves(*args))  # a program of its own
        seen = deviation(v, anew) / (apart(v, anew) / 2)
    assert seen < 0.9 * Z


# --- the algorithm ---


def reference(data, hyper):
    """The rounds without noise, in NumPy."""
    w, v, points = np.array(START.w, np.float64), np.full(3, 1 / 3), []
    x, first = np.asarray(data, np.float64), balanced_groups.rounds_balanced(hyper)
    for t in range(hyper.iterations):
        points.append(w)
        a = len(SIZES) * min(SIZES) * v / np.array(SIZES)
        g = sum(clipped(a[i] * z) for i, n in enumerate(SIZES) for z in x[i, :n])
        y = np.array([np.clip(x[i, :n] @ w, 0, BOUND).mean() for i, n in enumerate(SIZES)])
        w = w - hyper.step * g / (len(SIZES) * min(SIZES))
        if t >= first:
            v = v * np.exp(hyper.weight_step * y)
            v /= v.sum()
    return w, v, np.mean([*points, w], axis=0)


@pytest.mark.slow
def test_rounds_without_noise_are_those_of_the_docstring():
    hyper = hyper_of(0.0, losses=losses_of(0.0), balanced=0.3, step=0.3)
    state = jmm.run(jax.random.key(0), START, adaptive_clips.with_groups(records()), hyper,
                    adaptive_clips, PAIRED).state
    w, v, mean = reference(records(), hyper)
    np.testing.assert_allclose(state.z.w, w, rtol=1e-5)
    np.testing.assert_allclose(np.exp(state.z.v), v, rtol=1e-5)
    np.testing.assert_allclose(state.average.w, mean, rtol=1e-5)


@pytest.mark.slow
def test_the_charge_is_that_of_balanced_groups_and_ends():
    hyper = hyper_of(None, losses=losses_of(None))
    hyper = jmm.calibrate(adaptive_clips, hyper, epsilon=1.0, delta=DELTA)
    described = adaptive_clips.mechanism(hyper)
    assert 0.99 < jmm.epsilon(described, DELTA) <= 1
    assert described == balanced_groups.mechanism(hyper)
    data = adaptive_clips.with_groups(records())
    jmm.check(PAIRED, START, data, hyper, adaptive_clips)
    state = jmm.run(jax.random.key(0), START, data, hyper, adaptive_clips, PAIRED).state
    assert int(state.spent) == jmm.mechanism.releases(described) == 8
    assert np.isfinite(np.concatenate([state.z.w, state.z.v, state.losses])).all()
    beyond = jax.jit(functools.partial(adaptive_clips.update, hyper=hyper, problem=PAIRED))(
        jax.random.key(0), state, data)
    assert np.isnan(np.concatenate([beyond.z.w, beyond.z.v, beyond.losses])).all()


def _gradients_alone(hyper):
    return jmm.Repeat(query=hyper.query, times=hyper.iterations)


def _fewer_losses(hyper):
    gradients, losses = adaptive_clips.mechanism(hyper).parts
    return jmm.Sequence(parts=(gradients, dataclasses.replace(losses, times=1)), in_turn=True)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [_gradients_alone, _fewer_losses])
def test_losses_that_are_not_charged_are_refused(wrong):
    liar = types.ModuleType("liar")
    vars(liar).update({k: getattr(adaptive_clips, k) for k in ("Hyper", "State", "init", "update")},
                      mechanism=wrong)
    hyper = hyper_of(losses=losses_of(1.0))
    with pytest.raises(ValueError, match="release"):
        jmm.check(PAIRED, START, adaptive_clips.with_groups(records()), hyper, liar)


@pytest.mark.slow
def test_weights_that_read_losses_without_a_release_are_refused():
    def update(key, state, data, hyper, problem):
        new = adaptive_clips.update(key, state, data, hyper, problem)
        seen = jnp.mean(jax.vmap(jax.vmap(lambda x: problem.loss(new.z.w, x)))(data), 1)
        return new._replace(z=Saddle(new.z.w, new.z.v + seen))

    liar = types.ModuleType("liar")
    vars(liar).update({k: getattr(adaptive_clips, k) for k in (
        "Hyper", "State", "init", "mechanism")}, update=update)
    with pytest.raises(ValueError, match="release"):
        jmm.run(jax.random.key(0), START, adaptive_clips.with_groups(records()),
                hyper_of(losses=losses_of(1.0)), liar, PAIRED)


# --- the comparison ---


def test_a_cell_compares_ways_by_the_paired_difference():
    values = {"a": [0.5, 0.7, 0.6], "b": [0.4, 0.61, 0.5]}
    assert group_clips.compared(values, "a", "b")["verdict"] == "ahead"
    assert group_clips.compared(values, "b", "a")["verdict"] == "behind"
    wide = group_clips.compared({"a": [0.5, 0.9, 0.1], "b": [0.4, 0.6, 0.5]}, "a", "b")
    assert wide["verdict"] == "level"
    assert wide["gain_error"] == pytest.approx(np.std([0.1, 0.3, -0.4], ddof=1) / 3**0.5)
    assert group_clips.compared({"a": [0.9], "b": [0.1]}, "a", "b")["verdict"] == "level"


@pytest.mark.slow
def test_samples_need_hardly_less_noise_for_a_record_that_is_read():
    for epsilon in (0.5, 4.0):
        ratios = list(group_clips.noise_of_samples(epsilon, 1e-6, 200).values())
        assert min(ratios) > 1 - 2e-3
        assert ratios[0] > ratios[-1]


@pytest.mark.nightly
def test_the_command_goes_on_where_it_stopped(tmp_path):
    file = tmp_path / "group_clips.json"
    one = ["--case", "cattaneo-label", "--epsilon", "4", "--json", str(file), "--seeds"]
    assert group_clips.main([*one, "1"]) == 0
    first = json.loads(file.read_text())["runs"]
    assert group_clips.main([*one, "2"]) == 0
    result = json.loads(file.read_text())
    (name,), (row,) = first, result["rows"]
    assert result["runs"][name]["seeds"]["0"] == first[name]["seeds"]["0"]
    assert row["seeds"] == 2
    assert set(row["ways"]) == set(group_clips.WAYS)
    assert all(0 < mean < 1 for mean, _ in row["ways"].values())
