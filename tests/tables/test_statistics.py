"""The release of rows' second moments, and the preconditioner that is made of it."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.releases import sums
from jaxminimax.tables import (
    Category,
    Number,
    Schema,
    defaults,
    linear,
    statistics,
    train,
    unfinished,
)
from jaxminimax.tables.records import scaled
from jaxminimax.tables.scorer import Moments

N, D, HALF = 40, 3, 0.125
SCHEMA = Schema({"a": Number(-1, 1), "b": Number(-1, 1), "c": Category(("u", "v"))}, "y", 1)


def persons(length=1.0, seed=0):
    """Two rows each, at most so long, with a constant 1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 2, D))
    x *= length / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1)
    return np.concatenate([x, np.ones((N, 2, 1))], -1).astype(np.float32), np.full(
        (N, 2), 0.5, np.float32)


def released(x, weight, noise_multiplier=0.0, seed=0):
    described = statistics.one_release(N, 1.0, noise_multiplier)
    return statistics.release_second_moments(jax.random.key(seed), described, x, weight)


def test_without_noise_it_is_the_mean_over_persons_and_the_preconditioner_its_inverse():
    x, weight = persons()
    second = released(x, weight)
    u = x[..., :-1].astype(np.float64)
    assert np.allclose(second, np.einsum("nr,nri,nrj->ij", weight, u, u) / N, atol=1e-6)
    full = np.eye(D + 1)
    full[:-1, :-1] = second
    actual = statistics.preconditioner(second, 0.3, HALF)
    assert np.allclose(actual @ (HALF * full + 0.3 * np.eye(D + 1)), np.eye(D + 1),
                       atol=1e-5)


def test_a_matrix_that_noise_made_negative_gives_steps_of_at_most_one_over_the_ridge():
    steps = np.linalg.eigvalsh(statistics.preconditioner(-5 * np.eye(D), 0.2, HALF))
    assert steps.min() > 0
    assert steps.max() == pytest.approx(5.0)


def test_the_diagonal_gives_the_variances_of_features_that_are_centred():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (N, 1, D)) * [0.05, 0.1, 0.9]
    by = Moments(x.mean((0, 1)), np.square(x).mean((0, 1)), 0.5)
    second = released(scaled(x, by, 0.5), np.ones((N, 1), np.float32))
    described = statistics.one_release(N, 1.0, 3.0)
    actual, noise = statistics.variances(np.diag(second), by, 0.5, described)
    assert np.allclose(actual, x.var((0, 1)), atol=1e-6)
    assert np.allclose(noise, 3 / N * D * (x.var((0, 1)) + 0.5))


@pytest.mark.parametrize("length", [1.0, 50.0])
def test_replacing_a_person_moves_it_by_at_most_what_is_charged(length):
    """Rows that are too long are clipped as any others; half of the distance is reached."""
    x, weight = persons(length)
    other, first = x.copy(), np.zeros(D + 1, np.float32)
    x[0], other[0] = first, first
    x[0, :, 0], other[0, :, 1] = length, length
    moved = np.linalg.norm(released(x, weight) - released(other, weight)) * N
    assert math.sqrt(2) * 0.99 < moved <= 2


def test_the_noise_is_that_of_the_description():
    x, weight = persons()
    noise = np.array([released(x, weight, 5.0, seed) - released(x, weight) for seed in range(300)])
    off = noise[:, *np.triu_indices(D, 1)]
    spread = 4.5 / math.sqrt(2 * off.size)
    assert off.std() * N / 5 == pytest.approx(1 / math.sqrt(2), rel=spread)
    diagonal = noise[:, range(D), range(D)]
    assert diagonal.std() * N / 5 == pytest.approx(1.0, rel=spread)


def test_it_is_charged_and_rounds_are_few_at_equal_time():
    for n, epsilon in ((3000, 1.0), (10**6, 1.0), (10**8, 8.0)):
        chosen = defaults(n, SCHEMA, epsilon=epsilon, delta=1e-9)
        assert chosen.hyper.iterations == 20
        queries = [part.query for part in chosen.mechanism().parts]
        assert queries[1] == chosen.matrix.query
        assert 0.9999 < jmm.epsilon(chosen.mechanism(), 1e-9) / epsilon <= 1
        without = jmm.Sequence(parts=(chosen.moments, chosen.mechanism().parts[-1]))
        assert jmm.epsilon(without, 1e-9) < 0.999 * epsilon
        assert chosen.ridge >= statistics.least_ridge(
            SCHEMA.width, n, chosen.matrix.query.noise_multiplier.w, chosen.label.curvature)
        assert "second moments of rows" in chosen.explain()
        # noise that a flat direction gathers: T steps that add up to tau
        gathered = chosen.time * 2 * chosen.hyper.query.clip.w * math.sqrt(SCHEMA.width) / (
            chosen.strength * math.sqrt(SCHEMA.width) ** 2)
        assert gathered == pytest.approx(0.7)


def test_the_clip_norm_grows_with_the_data_until_nothing_is_clipped():
    clips = [defaults(n, SCHEMA, epsilon=1.0, delta=1e-9).hyper.query.clip.w
             for n in (3000, 10_000, 10**5, 10**7)]
    assert clips == sorted(clips)
    assert clips[0] == math.sqrt(0.5)
    assert clips[-1] == pytest.approx(math.sqrt(2))  # sigma - y below 1, and a row's length


def test_few_data_and_groups_keep_the_plain_flow():
    assert defaults(60, SCHEMA, epsilon=0.5, delta=1e-6).matrix is None
    wide = Schema({f"x{k}": Number(0, 1) for k in range(200)}, "y", 1)
    assert defaults(9000, wide, epsilon=0.5, delta=1e-6).matrix is None
    assert defaults(90_000, wide, epsilon=0.5, delta=1e-6).matrix is not None
    grouped = defaults(9000, SCHEMA, epsilon=1.0, delta=1e-6, sizes=(6000, 3000), by_label=True)
    assert grouped.matrix is None
    plain = defaults(10**6, SCHEMA, epsilon=1.0, delta=1e-9, preconditioned=False)
    assert plain.matrix is None
    assert plain.hyper.iterations == 1000


def test_steps_are_multiplied_by_the_matrix_after_clip_and_noise():
    matrix = np.array([[2.0, 1.0], [0.5, -3.0]], np.float32)
    query = jmm.Query(clip=Saddle(0.1, None), population=8, noise_multiplier=Saddle(1.0, None))
    plain = jmm.sgda.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=2)
    problem = jmm.Problem(lambda z, x: Saddle(x, None))
    start, data = Saddle(jnp.zeros(2), ()), jnp.ones((8, 2))
    moves = [jmm.run(jax.random.key(0), start, data, hyper, jmm.sgda, problem).state.z.w
             for hyper in (plain, dataclasses.replace(
                 plain, preconditioner=Saddle(matrix, None)))]
    assert np.allclose(moves[1], matrix @ moves[0], atol=1e-6)


class StoppedError(Exception):
    """Ends a run on the way."""


@pytest.mark.slow
def test_a_stopped_run_never_releases_it_twice_and_the_whole_costs_what_is_stated(
        tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.uniform(-1, 1, 900), "b": rng.uniform(-1, 1, 900),
                          "c": rng.choice(["u", "v"], 900), "y": rng.integers(2, size=900)})
    how = {"epsilon": 4.0, "delta": 1e-6, "key": jax.random.key(5), "folder": tmp_path / "run"}
    seen, keys = [], []

    def recorded(function):
        return lambda key, *given: (keys.append(key), function(key, *given))[1]

    def stop(key, start, data, hyper, *_, **kept):
        keys.append(key)
        seen.append((hyper, kept["alongside"]))
        raise StoppedError

    monkeypatch.setattr(unfinished, "LONG", 0)
    with monkeypatch.context() as patched:
        patched.setattr(linear, "fit", stop)
        patched.setattr(sums, "compiled_release", recorded(sums.compiled_release))
        with pytest.raises(StoppedError):
            train(table, SCHEMA, **how)
        assert len({tuple(jax.random.key_data(key).tolist()) for key in (how["key"], *keys)}) == 4
        patched.setattr(sums, "compiled_release", None)  # refuses a call
        with pytest.raises(StoppedError):
            train(table, SCHEMA, **how)
    (first, alongside), (second, _) = seen
    assert np.array_equal(first.preconditioner.w, second.preconditioner.w)
    assert len(alongside) == 3
    one = train(table, SCHEMA, **how)
    assert len(one.statement.sampling) == 4
    assert 0.9999 * 4 < one.statement.epsilon <= 4
