"""The release of rows' second moments, and the preconditioner that is made of it."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxminimax as jmm
from jaxminimax import Problem, Saddle
from jaxminimax.apps.tables import (
    Category,
    Charged,
    Number,
    Schema,
    defaults,
    labels,
    linear,
    statistics,
    train,
    unfinished,
)
from jaxminimax.apps.tables.records import scaled
from jaxminimax.apps.tables.scorer import Moments
from jaxminimax.problems import _auc
from jaxminimax.releases import sums

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


@pytest.mark.slow
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
        assert gathered == pytest.approx(0.7 * chosen.cut**2)


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


# --- distances ---


COLUMNS = {"a": Number(-1, 1), "b": Number(0, 1, missing=True), "c": Category(("u", "v", "w")),
           "d": Category(("yes",))}
LABELS = {"two": ("y", 1, None), "several": ("y", None, Category(("0", "1", "2"))),
          "number": ("y", None, Number(-1, 1))}


def schema_of(kind, columns=COLUMNS):
    label, positive, target = LABELS[kind]
    return Schema(columns, label, positive, target=target)


def corners(schema, seed=0, n=4000):
    """Cells at the ends of ranges and of every value, half of them missing or of no value."""
    rng = np.random.default_rng(seed)
    numbers = [-1.0, 0.0, 1.0, np.nan]
    cells = {"a": rng.choice(numbers, n), "b": rng.choice(numbers, n),
             "c": rng.choice(["u", "v", "w", "?"], n), "d": rng.choice(["yes", "no"], n),
             "y": rng.choice([-1, 1], n) if schema.kind == "number" else rng.choice(
                 ["0", "1", "2"] if schema.kind == "classes" else [0, 1], n)}
    x = schema.features(cells)
    return x, np.asarray(schema.labels(cells), np.float32)


@pytest.mark.parametrize("features", [True, False])
@pytest.mark.parametrize("kind", LABELS)
def test_no_two_persons_are_farther_apart_than_the_charged_distance_and_some_are_so_far(
        kind, features):
    """By brute force over weighted means of up to two rows, of weights that add up to 0 to 1."""
    schema = schema_of(kind)
    x, y = corners(schema)
    shift, squared = statistics._layout(schema)
    factor = statistics.label_weight(schema, features)
    psi = statistics._psi(labels.label_of(schema), tuple(shift) if features else None,
                          tuple(np.flatnonzero(squared).tolist()), factor).operator
    rng = np.random.default_rng(1)
    share = rng.uniform(0, 1, (len(x), 1))
    total = rng.choice([0.0, 0.5, 1.0, 1.0], (len(x), 1))
    weight = np.concatenate([share, 1 - share], 1) * total
    weight[: len(x) // 2] = [1.0, 0.0]
    other = rng.permutation(len(x))
    rows = np.stack([x, x[other]], 1), np.stack([y, y[other]], 1), weight
    z = Saddle(np.zeros(1), ())
    vectors = np.asarray(jax.vmap(lambda *record: psi(z, record).w)(
        *(jnp.asarray(part, jnp.float32) for part in rows)), np.float64)
    square = np.sum(vectors**2, 1)
    apart = np.sqrt(np.maximum(square[:, None] + square - 2 * vectors @ vectors.T, 0).max())
    bound = statistics.psi_apart(schema, features).distance
    assert max(apart, math.sqrt(square.max())) <= bound * (1 + 1e-5)
    assert apart > 0.999 * bound
    assert math.sqrt(square.max()) <= statistics.psi_length(schema, features) * (1 + 1e-5)


@pytest.mark.parametrize("name", ["moments", "label alone", "second moments", "ranges", "shares"])
def test_products_behind_a_distance_are_exact_on_every_device(name):
    """A matrix unit of reduced precision would move records apart by more than is charged."""
    weight, x = jnp.ones(2), jnp.zeros((2, 3))
    label, layout = labels.TwoValues(), (0.0, 0.5, 0.0) if name == "moments" else None
    problem, numbers, record = {
        "second moments": (statistics._SECOND, 4, (x, weight)),
        "ranges": (Problem(statistics._shares), (1, statistics.CELLS),
                   (jnp.zeros((2, 1), int), weight)),
        "shares": (Problem(_auc._shifted), 3, (jnp.zeros(2, int), weight)),
    }.get(name, (statistics._psi(label, layout, (0, 2) if layout else (), 1.5), 7,
                 (x, jnp.zeros(2), weight)))
    program = jax.jit(jax.vmap(problem.operator, (None, 0))).lower(
        Saddle(jnp.zeros(numbers), ()), jax.tree.map(lambda a: jnp.stack([a, a]), record))
    made = [line for line in program.as_text().splitlines() if "dot_general" in line]
    assert made
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in made)


@pytest.mark.parametrize("release", ["second moments", "ranges"])
def test_two_persons_attain_the_distance_that_is_charged(release):
    """Rows at right angles, and other cells in every column; the noise of one key cancels."""
    key, one = jax.random.key(0), np.ones((N, 1), np.float32)
    if release == "ranges":
        schema = Schema({"a": Charged(), "b": Charged()}, "y", 1)
        (described,) = statistics.ranges_query(N, schema, 20.0, 1e-3)
        data, start = np.zeros((N, 1, 2)), np.zeros((2, statistics.CELLS))
        other = data.copy()
        other[0] = 5e5
        made = [sums.compiled_release(
            key, described, Problem(statistics._shares), Saddle(start, ()),
            (statistics.cells(cells), one)).w for cells in (data, other)]
    else:
        described = statistics.shared_release(N, 1.0, 0.5, 20.0, 1e-3,
                                              apart=statistics.SECOND_APART)
        data = np.zeros((N, 1, D + 1), np.float32)
        data[0, 0, 0] = 1
        other = np.roll(data, 1, axis=2)
        made = [statistics.release_second_moments(key, described, x, one) for x in (data, other)]
    moved = N * np.linalg.norm(np.asarray(made[1], np.float64) - made[0])
    distance = described.query.distance.w
    assert distance < 2 * described.query.clip.w
    assert moved == pytest.approx(distance, rel=1e-3)
    # mu = D / (noise of the sum), from the noise alone
    noise = described.query.noise_multiplier.w * described.query.clip.w
    assert jmm.audit.signals.charged_signal(described) == pytest.approx(distance / noise, rel=1e-3)


def test_the_label_has_a_tenth_of_the_distance_and_its_mean_the_noise_over_its_weight():
    schema = schema_of("number", {f"x{k}": Number(-1, 1) for k in range(90)})
    factor = statistics.label_weight(schema)
    assert factor == pytest.approx(3)
    assert statistics.label_weight(schema, False) == 1
    n, few = 50, 300
    described = statistics.one_release(n, statistics.psi_length(schema), 0.5,
                                       statistics.psi_apart(schema))
    x, one = np.zeros((n, 1, 90)), np.ones((n, 1))
    means = np.array([statistics.release_moments(
        jax.random.key(k), described, x, np.zeros((n, 1)), one, schema).prior[0]
        for k in range(few)])
    expected = statistics.label_deviation(described, schema)
    assert expected == pytest.approx(statistics.deviation(described) / 3)
    assert np.std(means) == pytest.approx(expected, rel=5 / math.sqrt(2 * few))
    assert np.mean(means) == pytest.approx(0, abs=5 * expected / math.sqrt(few))
