"""One clip for both players: what it bounds, what it costs, and that neither can be lost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Full, Poisson, Query, Repeat, Saddle, audit, sgda
from jaxminimax.gradients import summation
from jaxminimax.gradients.clipping import STRATEGIES, clipped_sum
from jaxminimax.releases.sums import release
from tests.helpers.words import one_line

N, DELTA = 6, 1e-2
CLIP, NOISE = Saddle(0.5, 2.0), Saddle(1.5, 3.0)
ITSELF = jmm.Problem(jmm.saddle_operator(
    lambda w, v, x: jnp.sum(w * x.w) - jnp.sum(v * x.v)))
START = Saddle(jnp.zeros(3), jnp.zeros(2))


def query(joint=True, noise=NOISE, sampling=Full(), clip=CLIP):
    return Query(clip=clip, noise_multiplier=noise, sampling=sampling, population=N, joint=joint)


def examples(seed, size=1.0):
    rng = np.random.default_rng(seed)
    scale = size * 10 ** rng.uniform(-1, 1, (N, 1))
    return Saddle(scale * rng.normal(size=(N, 3)), scale * rng.normal(size=(N, 2)))


def lengths(x):
    """Norm of each pair in units of the clip norms."""
    return np.sqrt(sum((np.linalg.norm(np.asarray(a, np.float64), axis=-1) / c) ** 2
                       for a, c in zip(x, CLIP, strict=True)))


@functools.partial(jax.jit, static_argnames="strategy")
def summed(x, strategy="vmap"):
    return clipped_sum(ITSELF.operator, CLIP, strategy=strategy, microbatch=4, joint=True)(
        START, x)


@jax.jit
def released(q, x):
    return release(jax.random.key(0), Repeat(query=q, times=1), jnp.int32(0), ITSELF, START, x)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_sum_is_the_definition(strategy, size):
    x = examples(1, size)
    scale = np.minimum(1.0, 1 / lengths(x))[:, None]
    for a, b in zip(summed(x, strategy), x, strict=True):
        np.testing.assert_allclose(a, (scale * b).sum(0), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-20, 1.0, 1e18, 1e30, 1e38])
@pytest.mark.parametrize("lone", [None, 0, 1])
@pytest.mark.optimised
def test_no_example_is_longer_than_one_in_float32(size, lone):
    z = jax.tree.map(lambda a: a.astype(jnp.float32), START)
    clip_one = jax.jit(lambda x: clipped_sum(ITSELF.operator, CLIP, joint=True)(z, x))
    for seed in range(20):
        x = jax.tree.map(lambda a: a[:1], examples(seed))
        x = jax.tree.map(lambda a: (a / np.abs(a).max() * size).astype(np.float32), x)
        x = Saddle(*(a * np.float32(lone in (None, p)) for p, a in enumerate(x)))
        total = clip_one(x)
        assert lengths(total) <= 1
        if 1.0 < size < 1e19:  # long examples attain the bound, in their own direction
            assert lengths(total) > 1 - 1e-4
            for a, b in zip(total, x, strict=True):
                b = b[0].astype(np.float64) / lengths(x)[0]
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)


def distances(q, pairs=60):
    """Of equal-key releases on neighbours, in units of the noise."""
    out = []
    for seed in range(pairs):
        x, other = examples(seed, 10.0), examples(seed + 1000, 10.0)
        spiked = x if seed % 2 else Saddle(x.w, 0 * x.v)  # all of it on one player, too
        y = Saddle(*(np.concatenate([-b[:1] if seed % 3 else o[:1], a[1:]])
                     for a, b, o in zip(x, spiked, other, strict=True)))
        x = Saddle(*(np.concatenate([b[:1], a[1:]]) for a, b in zip(x, spiked, strict=True)))
        a, b = (released(q, d) for d in (x, y))
        out.append(np.sqrt(sum((float(jnp.linalg.norm(p - r)) * N / (c * z)) ** 2
                               for p, r, c, z in zip(a, b, CLIP, NOISE, strict=True))))
    return np.array(out)


@pytest.mark.optimised
def test_neighbours_are_as_far_apart_as_is_charged_and_no_farther():
    limit = 2 / jmm.Repeat(query=query(), times=1).effective_noise_multiplier("replace_one")
    assert 2 / min(NOISE) < limit < 1.001 * 2 / min(NOISE)
    far = distances(query())
    assert far.max() <= limit
    assert far.max() > 0.99 * limit


def test_two_clips_are_farther_apart_than_one_joint_clip_pays_for():
    ratio = jmm.accounting.effective_noise_multiplier(query())
    assert distances(query(joint=False)).max() > 1.1 * 2 / ratio


@pytest.fixture
def lifted(monkeypatch):
    monkeypatch.setattr(summation, "joint_ratio", lambda ratio: ratio)
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.usefixtures("lifted")
@pytest.mark.optimised
def test_a_lifted_joint_clip_is_seen():
    assert distances(query()).max() > 1.1 * 2 / jmm.accounting.effective_noise_multiplier(query())


def test_equal_noise_costs_half_the_variance_of_two_clips():
    z = Saddle(2.0, 2.0)
    assert jmm.accounting.effective_noise_multiplier(query(noise=z)) == 2.0
    assert jmm.accounting.effective_noise_multiplier(query(False, z)) == pytest.approx(2**0.5)
    assert jmm.accounting.effective_noise_multiplier(query(noise=Saddle(0.0, 1.0))) == 0.0
    one = Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(2.0, None), population=N)
    for sampling in (Full(), Poisson(rate=0.25)):
        full = Repeat(query=query(noise=z, sampling=sampling), times=7)
        alone = Repeat(query=Query(**{**vars(one), "sampling": sampling}), times=7)
        assert jmm.epsilon(full, 1e-5) == jmm.epsilon(alone, 1e-5)


def test_the_run_is_calibrated_and_stated_as_joint():
    hyper = sgda.Hyper(query=query(noise=None), iterations=5, step=Saddle(0.5, 0.25))
    hyper = jmm.calibrate(sgda, hyper, 1.0, 1e-5)
    apart = sgda.Hyper(query=query(False, None), iterations=5, step=Saddle(0.5, 0.25))
    apart = jmm.calibrate(sgda, apart, 1.0, 1e-5)
    assert apart.query.noise_multiplier.w / hyper.query.noise_multiplier.w == (
        pytest.approx(2**0.5, rel=1e-9))
    assert "one clip for both players together" in one_line(jmm.statement(sgda, hyper, delta=1e-5))
    assert "one clip for both" not in one_line(jmm.statement(sgda, apart, delta=1e-5))


@pytest.mark.slow
@pytest.mark.parametrize("noise", [Saddle(1.0, 1.0), Saddle(1.0, 3.0)], ids=str)
def test_the_audit_sees_most_of_it_and_no_more(noise):
    hyper = sgda.Hyper(query=query(noise=noise), iterations=3, step=Saddle(0.5, 0.25))
    hyper = jmm.calibrate(sgda, hyper, 2.0, DELTA)
    actual = audit.audit(jax.random.key(1), sgda, hyper, DELTA, runs=20_000)
    assert 0.6 * actual.epsilon_claimed < actual.epsilon_lower <= actual.epsilon_claimed


@pytest.mark.parametrize("clip", [Saddle(1.0, None), Saddle(None, 1.0)])
def test_a_joint_clip_of_one_player_is_refused(clip):
    with pytest.raises(ValueError, match="joint=True needs a clip norm for both"):
        jmm.epsilon(Repeat(query=query(noise=None, clip=clip), times=1), 1e-5)
    with pytest.raises(ValueError, match="joint=True needs a clip norm for both"):
        clipped_sum(ITSELF.operator, clip, joint=True)
