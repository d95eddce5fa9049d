"""One number from records held out: its sensitivity, its noise, and what it refuses."""

import collections
import dataclasses
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.privacy.attacks import certificate
from jaxminimax import Saddle
from jaxminimax.base.types import OwnOperator
from jaxminimax.gradients.clipping import ClippedOperator
from jaxminimax.mechanism import HeldOutBound, held_out
from jaxminimax.releases import watch
from jaxminimax.releases.held_out import (
    _largest_mean,
    largest_distance,
    release_held_out_bound,
)

KEY = jax.random.key(1)
SET = jmm.problems.product(jmm.problems.ball(1.0), jmm.problems.simplex())


def loss(w, v, x):
    """Bilinear, and not small: <w, A v> + <a, w> + b."""
    return w @ x["a"] @ v + x["b"] @ w + x["c"]


GAME = jmm.Problem(jmm.saddle_operator(loss), project=SET.project, support=SET.support)
H = 6


def records(rng, shape, scale):
    return {"a": scale * rng.normal(size=(*shape, 2, 3)), "b": scale * rng.normal(size=(*shape, 2)),
            "c": scale * rng.normal(size=shape)}


def query(**how):
    return HeldOutBound(**{"bound": 0.7, "population": H, "noise_multiplier": 0.0,
                           **how})


def released(described, z, data, radius, key=KEY, spent=0, problem=GAME):
    return release_held_out_bound(key, described, jnp.int32(spent), problem, z, data, radius)


def reference(z, data, bound, loss_range=None):
    """c(z) in NumPy."""
    w, v = (np.asarray(x, float) for x in z)
    g_w, g_v = data["a"] @ v + data["b"], -np.einsum("iab,a->ib", data["a"], w)
    norm = np.sqrt((g_w**2).sum(1) + (g_v**2).sum(1))
    factor = np.minimum(1, bound / norm)[:, None]
    g_w, g_v = (factor * g_w).mean(0), (factor * g_v).mean(0)
    if loss_range is None:
        return g_w @ w + np.linalg.norm(g_w) + g_v @ v - g_v.min()
    each = np.einsum("a,iab,b->i", w, data["a"], v) + data["b"] @ w + data["c"]
    return np.clip(each, *loss_range).mean() + g_v @ v - g_v.min()


@pytest.mark.parametrize("loss_range", [None, (-0.5, 1.0)])
@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
@pytest.mark.slow
def test_without_noise_it_is_the_largest_mean(loss_range, scale):
    rng = np.random.default_rng(0)
    z = Saddle(np.array([0.3, -0.6]), np.array([0.2, 0.5, 0.3]))
    data = jax.tree.map(lambda x: x.astype(np.float32), records(rng, (H,), scale))
    actual = released(query(loss_range=loss_range), jax.tree.map(jnp.asarray, z), data, 3.0)
    assert float(actual) == pytest.approx(reference(z, data, 0.7, loss_range), rel=2e-6, abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("loss_range", [None, (0.0, 1.0)])
def test_a_replaced_record_moves_it_by_at_most_what_is_charged(loss_range):
    """4,000 pairs: records of all sizes, infinite ones and NaN, at points all over the set."""
    rng, pairs = np.random.default_rng(2), 4000
    z = jax.vmap(SET.project)(Saddle(*(jnp.asarray(2 * rng.normal(size=(pairs, d)), jnp.float32)
                                       for d in (2, 3))))
    data = records(rng, (pairs, H), 10.0 ** rng.uniform(-2, 3))
    other = records(rng, (pairs, H), 1.0)
    size = 10.0 ** rng.uniform(-3, 4, pairs)
    data = jax.tree.map(lambda x: x * size.reshape(-1, *(1,) * (x.ndim - 1)), data)
    replaced = jax.tree.map(lambda x, y: np.concatenate([y[:, :1] * 10.0 ** rng.integers(
        -3, 5), x[:, 1:]], 1), data, other)
    # a tenth in the opposite direction, and some that are no numbers
    replaced = jax.tree.map(lambda x, y: np.where((np.arange(pairs) % 10 == 0).reshape(
        -1, *(1,) * (x.ndim - 1)), np.concatenate([-y[:, :1], y[:, 1:]], 1), x), replaced, data)
    replaced["b"][::37, 0] = np.nan
    replaced["a"][::41, 0] = np.inf
    described = query(loss_range=loss_range)
    each = jax.jit(jax.vmap(lambda z, x, r: released(described, z, x, r)))
    radius = np.full(pairs, SET.diameter, np.float32)
    one, two = (np.asarray(each(z, jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float32), rows), radius)) for rows in (data, replaced))
    assert np.isfinite(one).all()
    assert np.isfinite(two).all()
    moved = np.abs(one.astype(float) - two)
    limit = held_out.length(described, SET.diameter)
    assert moved.max() <= limit
    assert moved.max() > 0.3 * limit  # the pairs are not tame


def test_a_record_of_any_size_releases_a_number():
    """Squares of entries near 1e-154 are lost, one by one, in the norm that a minimiser takes."""
    ball = jmm.problems.product(jmm.problems.ball(1.0), jmm.problems.ball(1.0))
    slopes = np.concatenate([[1.05], np.full(99, 0.95)])
    game = jmm.Problem(jmm.saddle_operator(
        lambda w, v, x: x.astype(w.dtype) ** 8 * (jnp.asarray(slopes, w.dtype) @ w)),
        support=ball.support)
    z = Saddle(jnp.zeros(100), jnp.zeros(100))
    one = jax.jit(jax.vmap(lambda x: released(query(population=2), z, x, 3.0, problem=game)))
    tiny = 10.0 ** np.linspace(-19.3, -19.1, 200)
    assert np.isfinite(one(jnp.stack([0 * tiny, tiny], 1).astype(jnp.float32))).all()


@pytest.mark.slow
@pytest.mark.parametrize("of", ["losses far from 0", "long public terms"])
def test_no_arithmetic_moves_it_by_more_than_is_charged(of):
    """Losses in an interval far from 0, and public terms of any length."""
    rng, h, moved = np.random.default_rng(5), 200, []
    z = Saddle(np.zeros(2, np.float32), np.full(3, 1 / 3, np.float32))
    low, public = (1e12, None) if of == "losses far from 0" else (0.0, lambda z: jax.tree.map(
        lambda x: jnp.full_like(x, 1e14), z))
    described = query(population=h, bound=0.7 if public else 1e-6,
                      loss_range=None if public else (low, low + 1))
    game = GAME._replace(public=public)
    with jax.enable_x64():
        for _ in range(20):
            data = jax.tree.map(jnp.asarray, records(rng, (h,), 1.0))
            other = jax.tree.map(lambda x: x.at[0].multiply(-1), data)
            if public is None:
                data, other = ({**x, "a": 0 * x["a"], "b": 0 * x["b"],
                                "c": low + rng.uniform(size=h)} for x in (data, other))
                data["c"][0], other["c"][0], other["c"][1:] = low, low + 1, data["c"][1:]
            values, fit = zip(*(_largest_mean(
                game, described, jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), z), x,
                jnp.float64(3.0)) for x in (data, other)), strict=True)
            moved.append(abs(float(values[0] - values[1])))
            assert bool(fit[0]) == bool(fit[1]) == (public is None)  # which is public
    assert public or max(moved) <= held_out.length(described, 3.0)


@pytest.mark.slow
def test_the_distance_covers_every_point_of_the_set():
    rng = np.random.default_rng(3)
    for _ in range(20):
        z = SET.project(Saddle(*(jnp.asarray(rng.normal(size=d)) for d in (2, 3))))
        u = jax.vmap(SET.project)(Saddle(*(jnp.asarray(5 * rng.normal(size=(500, d)))
                                           for d in (2, 3))))
        here, there = (jax.tree.map(np.asarray, x) for x in (z, u))
        away = np.sqrt(sum(((a - b) ** 2).sum(1) for a, b in zip(here, there, strict=True)))
        both = largest_distance(GAME, z, math.sqrt(2), SET.diameter)
        assert away.max() <= both <= SET.diameter
        assert away.max() > 0.9 * both
        one = largest_distance(GAME, z, 1.0, SET.diameter, True)
        assert np.linalg.norm(here.v - there.v, axis=1).max() <= one + 1e-6
    assert largest_distance(GAME, z, None, SET.diameter) == SET.diameter
    # far from 0 float32 loses the difference of squares, and the diameter is what is left
    far = jmm.problems.box(np.array([1000.0]), np.array([1001.0]))
    far = jmm.problems.product(far, far)
    z = Saddle(jnp.array([1000.3]), jnp.array([1000.4]))
    assert largest_distance(jmm.Problem(GAME.operator, support=far.support), z, far.reach,
                            far.diameter) >= np.hypot(0.7, 0.6)


@pytest.mark.slow
@pytest.mark.parametrize("of", ["strong_gap", "primal_risk", "worst_group"])
def test_its_noise_is_what_is_charged(of):
    found = certificate.signal(of)
    assert not found.fires
    assert found.value > 0.85 * found.limit  # the pair attains the sensitivity


@pytest.mark.slow
def test_more_numbers_than_allowed_are_nan_and_keys_differ():
    described = query(noise_multiplier=1.0, times=2)
    z = Saddle(jnp.zeros(2), jnp.full(3, 1 / 3))
    data = jax.tree.map(jnp.asarray, records(np.random.default_rng(0), (H,), 1.0))
    y = [float(released(described, z, data, 3.0, spent=k)) for k in (0, 1, 2, -1)]
    assert y[0] != y[1]
    assert np.isfinite(y).tolist() == [True, True, False, False]
    placed = jmm.Sequence(parts=(described, described)).parts[1]
    assert float(released(placed, z, data, 3.0)) != y[0]


@pytest.mark.slow
def test_a_linear_minimiser_outside_of_the_set_releases_nothing():
    z, data = Saddle(jnp.zeros(2), jnp.full(3, 1 / 3)), records(np.random.default_rng(0), (H,), 1.0)
    far = GAME._replace(support=lambda g: jax.tree.map(lambda x: 100 * x + 100, g))
    assert np.isnan(released(query(), z, jax.tree.map(jnp.asarray, data), 3.0, problem=far))


@pytest.mark.parametrize(("problem", "how", "words"), [
    (GAME._replace(support=None), {}, "linear minimiser"),
    (GAME._replace(operator=ClippedOperator(GAME.operator, Saddle(1.0, 1.0))), {}, "clipped"),
    (GAME._replace(random=True), {}, "draws"),
    (GAME._replace(operator=lambda z, x: GAME.operator(z, x)), {"loss_range": (0.0, 1.0)},
     "saddle_operator"),
    (GAME._replace(public=lambda z: z), {"loss_range": (0.0, 1.0)}, "public terms"),
    (GAME, {"population": H + 1}, "leading axes"),
    (GAME, {"population": 10**7}, "leading axes|float64 adds up"),
    (GAME._replace(operator=OwnOperator(ClippedOperator(GAME.operator, Saddle(1.0, 1.0)))), {},
     "clipped"),
    (GAME, {"noise_multiplier": None}, "not set"),
    (GAME._replace(operator=lambda z, x: jax.tree.map(
        lambda a: a.astype(jnp.float32), GAME.operator(z, x))), {}, "float64"),
])
def test_what_has_no_bound_is_refused(problem, how, words):
    z = Saddle(jnp.zeros(2), jnp.full(3, 1 / 3))
    data = jax.tree.map(jnp.asarray, records(np.random.default_rng(0), (H,), 1.0))
    with pytest.raises(ValueError, match=words):
        released(query(**how), z, data, 3.0, problem=problem)


def test_an_operator_that_reads_other_records_is_refused():
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(40, 2)), jnp.float32)
    problem = jmm.Problem(lambda z, x: Saddle(x - rows.mean(0), ()), support=lambda g: g)
    described = query(population=40)
    with pytest.raises(ValueError, match=r"closes over|captures|reads|rows"):
        released(described, Saddle(jnp.zeros(2), ()), rows, 3.0, problem=problem)


def _shifted(z, x):
    return jax.tree.map(lambda a: a + x["c"][0].astype(a.dtype), z)


@pytest.mark.parametrize(("changed", "words"), [
    ({}, None), ({"z": lambda z, x: _shifted(z, x)}, "elsewhere than as its data"),
    ({"radius": lambda r, x: r + x["c"][0]}, "elsewhere than as its data"),
    ({"data": lambda x, _: jax.tree.map(lambda a: a[::-1], x)}, "gets rows that are"),
    ({"problem": lambda p, x: p._replace(public=lambda z: _shifted(z, x))}, "elsewhere than"),
    ({"problem": lambda p, x: p._replace(support=lambda g: _shifted(g, x))}, "elsewhere than"),
])
def test_a_round_reads_held_out_records_through_its_data_alone(changed, words):
    described, z = query(noise_multiplier=1.0), Saddle(jnp.zeros(2), jnp.full(3, 1 / 3))
    data = jax.tree.map(jnp.asarray, records(np.random.default_rng(0), (H,), 1.0))

    def update(key, state, data, hyper, problem):
        given = {"z": z, "radius": 3.0, "data": data, "problem": problem}
        given |= {name: change(given[name], data) for name, change in changed.items()}
        y = release_held_out_bound(key, described, state.spent, given["problem"], given["z"],
                                   given["data"], given["radius"])
        return state._replace(y=y, spent=state.spent + 1)

    state = collections.namedtuple("State", "y spent")(jnp.float32(0), jnp.int32(0))
    algorithm = types.SimpleNamespace(update=update, mechanism=lambda hyper: described)
    hyper = types.SimpleNamespace(iterations=1)
    if words is None:
        y = jax.jit(lambda key, state, data: watch.update(
            algorithm, key, state, data, hyper, GAME).y)(KEY, state, data)
        assert np.isfinite(y)
    else:
        with pytest.raises(ValueError, match=words):
            watch.update(algorithm, KEY, state, data, hyper, GAME)


@pytest.mark.parametrize(("how", "words"), [
    ({"bound": 0.0}, "bound"), ({"bound": math.nan}, "bound"), ({"population": 0}, "population"),
    ({"times": 0}, "times"),
    ({"loss_range": (1.0, 1.0)}, "loss_range"), ({"loss_range": (0.0, math.inf)}, "loss_range"),
    ({"noise_multiplier": -1.0}, "noise_multiplier"),
])
def test_descriptions_out_of_range_are_refused(how, words):
    with pytest.raises(ValueError, match=words):
        query(**how).check()


def test_it_costs_what_one_gaussian_release_does():
    one = query(noise_multiplier=2.0)
    solution = jmm.mechanism.Solution(sensitivity=1.0, noise_multiplier=2.0, because="-")
    assert jmm.epsilon(one, 1e-6) == pytest.approx(jmm.epsilon(solution, 1e-6), rel=1e-4)
    assert jmm.epsilon(one, 1e-6) >= jmm.epsilon(solution, 1e-6)  # rounding is charged
    four = dataclasses.replace(one, times=4, noise_multiplier=4.0)
    assert jmm.epsilon(four, 1e-6) == pytest.approx(jmm.epsilon(one, 1e-6), rel=1e-3)
    with pytest.raises(ValueError, match="replace"):
        jmm.epsilon(one, 1e-6, neighbours="add_or_remove_one")
