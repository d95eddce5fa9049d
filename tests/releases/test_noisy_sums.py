"""Sums with noise: what the compiled program of a round is made of."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.base import programs
from jaxminimax.drivers import runs
from jaxminimax.gradients import summation
from jaxminimax.releases import noisy_sums, sums

N, BATCH = 20_000, 256


def linear(w, x):
    return x @ w["k"]


def mlp(w, x):
    return jax.nn.relu(x @ w["W"] + w["b"]) @ w["k"]


def cnn(w, x):
    image = x.reshape(1, 8, 8, 1)
    for name in ("K", "L"):
        image = jax.nn.relu(jax.lax.conv_general_dilated(
            image, w[name], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return image.reshape(-1) @ w["k"]


MODELS = {
    linear: (22, {"k": (22,)}),
    mlp: (30, {"W": (30, 200), "b": (200,), "k": (200,)}),
    cnn: (64, {"K": (3, 3, 1, 8), "L": (3, 3, 8, 16), "k": (256,)}),
}


@pytest.mark.nightly
@pytest.mark.optimised
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@pytest.mark.parametrize(("sampling", "most"), [
    (jmm.Poisson(rate=BATCH / N), 3), (jmm.FixedSize(batch=BATCH, replacement=True), 2)],
    ids=["Poisson", "replacement"])
def test_a_round_has_two_conditionals_and_one_for_rare_samples(model, sampling, most):
    """Numbers in doubt, sums that need care and samples that are drawn again have one each.

    Each may be a trip to the host on an accelerator.
    """
    features, shapes = MODELS[model]
    start = jmm.problems.auc_start({k: jnp.zeros(shape) for k, shape in shapes.items()})
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(1.0, 1.0), population=N,
                      sampling=sampling)
    settings = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=10)
    data = (jnp.zeros((N, features)), jnp.zeros(N))
    problem = jmm.problems.auc(model, prior=0.3, radius=Saddle(2.0, 2.0))
    program = runs._compiled.lower(jax.random.key(0), start, data, settings, jmm.sgda,
                                   problem, runs.nothing).compile()
    lines = {}  # of each computation, by its name
    for part in re.split(r"\n\n+", program.as_text()):
        lines[re.match(r"(?:ENTRY )?%?([\w.\-]*)", part).group(1)] = part
    rounds = max((lines[name] for name in re.findall(r" while\(.* body=%?([\w.\-]+)",
                                                     program.as_text())), key=len)
    assert rounds.count("= ") > 20
    assert len(re.findall(r" conditional\(", rounds)) <= most


# --- random numbers that are drawn before a release, by one program of many ---

ROWS = Saddle(np.cos(np.arange(80.0)).reshape(40, 2).astype(np.float32),
              np.sin(np.arange(120.0)).reshape(40, 3).astype(np.float32))
START = Saddle({"a": jnp.zeros(()), "b": jnp.zeros(2)}, jnp.zeros(3))
MEANS = jmm.Problem(lambda z, x: Saddle({"a": x.w[0], "b": x.w}, x.v))


def described(noise=(2.0, 0.5), **further):
    query = jmm.Query(clip=Saddle(1.0, 0.7), noise_multiplier=Saddle(*noise), population=40,
                      **further)
    return jmm.Repeat(query=query, times=3)


def drawn_for(key=0, mechanism=None, number=0, point=START):
    with programs.briefly(True):
        return noisy_sums.drawn_before(jax.random.key(key), mechanism or described(), number, point)


@jax.jit
def with_draws(key, mechanism, spent, drawn):
    return sums.release_and_clip(key, mechanism, spent, MEANS, START, ROWS, None, drawn)[0]


@pytest.mark.parametrize("noise", [(2.0, 0.5), (0.0, 3.0), pytest.param(
    (0.0, 0.0), marks=pytest.mark.slow)])
def test_a_release_is_the_same_whether_its_noise_is_drawn_before_it_or_in_it(noise):
    mechanism = described(noise)
    for seed, number in ((0, 0), (1, 2)):
        args = jax.random.key(seed), mechanism, jnp.int32(number)
        jax.tree.map(np.testing.assert_array_equal,
                     with_draws(*args, drawn_for(seed, mechanism, number)), with_draws(*args, None))


def test_a_release_takes_no_noise_that_was_drawn_for_another_one():
    """Of another key, number, place, size or multiplier: it is NaN, whatever the data."""
    args = jax.random.key(0), described(), jnp.int32(0)
    assert np.all([np.isfinite(x).all() for x in jax.tree.leaves(with_draws(*args, drawn_for()))])
    placed = jmm.Sequence(parts=(described(), described())).parts[1]
    more = START._replace(v=jnp.zeros(4))
    for other in (drawn_for(key=1), drawn_for(number=1), drawn_for(mechanism=placed),
                  drawn_for(point=more), drawn_for(mechanism=described((20.0, 0.5)))):
        assert all(np.isnan(x).all() for x in jax.tree.leaves(with_draws(*args, other)))


def test_noise_that_is_drawn_before_a_table_s_release_is_as_large_as_described(monkeypatch):
    """As is measured over keys; half of it is found."""
    def measured():
        keys = jax.random.split(jax.random.key(7), 60)
        with programs.briefly(True):
            answers = [sums.compiled_release(key, described((2.0, 2.0)), MEANS, START, ROWS)
                       for key in keys]
        rows = np.array([np.concatenate([np.ravel(x) / c for x, c in zip(
            (x.w["a"], x.w["b"], x.v), (1.0, 1.0, 0.7), strict=True)]) for x in answers])
        return rows.std(0, ddof=1) * 40 / 2.0

    limit = 4 / np.sqrt(2 * 60 * 6)  # standard errors of the root mean square
    assert abs(np.sqrt(np.mean(measured() ** 2)) - 1) < limit
    draw = noisy_sums._draw
    monkeypatch.setattr(noisy_sums, "_draw", lambda *args: (
        lambda drawn: drawn._replace(noise=drawn.noise // 2))(draw(*args)))
    assert abs(np.sqrt(np.mean(measured() ** 2)) - 0.5) < limit


@pytest.mark.parametrize("mechanism", [described(exact=False), described(
    sampling=jmm.Disjoint(batch=4), bands=2)], ids=["floats", "bands"])
def test_other_noise_is_drawn_by_the_release_itself(mechanism):
    """With independent integers in its place, of the same name, it is NaN, whatever the data."""
    assert drawn_for(mechanism=mechanism) is None
    answer = with_draws(jax.random.key(0), mechanism, jnp.int32(0), drawn_for())
    assert all(np.isnan(x).all() for x in jax.tree.leaves(answer))


@pytest.mark.slow
def test_settings_that_are_traced_or_no_number_are_left_to_the_release():
    key = jax.random.key(0)

    def released(key, mechanism):
        return sums.compiled_release(key, mechanism, MEANS, START, ROWS)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
                 released(key, described()), jax.jit(released)(key, described()))
    with pytest.raises(ValueError, match=r"noise_multiplier.w must be one number, got shape"):
        released(key, described((np.array([2.0, 1.0]), 0.5)))
    with pytest.raises(TypeError, match="key must be a typed key of JAX"):
        released(jax.random.key_data(key), described())


def test_what_a_block_does_not_hold_is_drawn_by_the_release_itself():
    assert drawn_for(point=START._replace(v=jnp.zeros(noisy_sums.DRAWN - 2))) is None
    assert drawn_for(point=START._replace(v=jnp.zeros(noisy_sums.DRAWN - 3))) is not None
    with programs.briefly(True):
        assert noisy_sums.drawn_before(jax.random.key(0, impl="rbg"), described(), 0, START) is None
    assert noisy_sums.drawn_before(jax.random.key(0), described(), 0, START) is None  # not briefly


# --- many small leaves, which are summed as one array ---

@pytest.mark.parametrize(("exact", "bands"), [
    (True, 1), *(pytest.param(*case, marks=pytest.mark.slow)
                 for case in ((True, 3), (False, 1), (False, 3)))])
def test_many_small_leaves_are_released_as_they_are_one_by_one(monkeypatch, exact, bands):
    """To the last bit, where all examples are within the clip norm: noise has its numbers, too."""
    z = Saddle({"a": [jnp.zeros((2, 2), jnp.float32), jnp.zeros((), jnp.float32)] * 5},
               jnp.zeros(3, jnp.float32))
    problem = jmm.Problem(jmm.types.with_strategy(
        lambda z, x: jax.tree.map(lambda a: a + x.astype(a.dtype), z), "microbatch", 4))
    query = jmm.Query(clip=Saddle(20.0, 30.0), noise_multiplier=Saddle(0.3, 0.1), population=10,
                      exact=exact, bands=bands, sampling=jmm.Disjoint(batch=5))
    data = jnp.linspace(-1.0, 1.0, 10)

    def released():
        mechanism = jmm.mechanism.Repeat(query=query, times=4)
        return jax.jit(lambda spent: jmm.release(jax.random.key(4), mechanism, spent, problem, z,
                                                 data))(jnp.int32(2))

    together = released()
    assert jax.tree.structure(together) == jax.tree.structure(z)
    monkeypatch.setattr(summation, "_is_split", lambda *_: False)
    apart = released()
    jax.tree.map(np.testing.assert_array_equal, together, apart)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(together))
