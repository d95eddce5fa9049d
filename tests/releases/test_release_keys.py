"""Operators that draw: one key for a row and a release, on every way, and none of it charged."""

import ast
import collections
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.examples import demo_gan
from jaxminimax import Saddle
from jaxminimax.base.random_bits import threefry_key
from jaxminimax.gradients.clipping import clipped_sum
from jaxminimax.mechanism.description import Kind
from jaxminimax.releases import release_keys
from jaxminimax.releases.reading import sample_of_release
from jaxminimax.releases.solutions import release_resolvent
from jaxminimax.releases.stream import release_leaf

ROOT = pathlib.Path(release_keys.__file__).parents[1]
N, D, KEY = 40, 3, jax.random.key(5)
DATA = (jax.random.normal(jax.random.key(0), (N, D)), jnp.arange(N) % 2)
START = Saddle(jnp.ones(D), jnp.full(D, 0.5))
STRATEGIES = ("vmap", "microbatch", "ghost")


def query(sampling=None, noise=1.0, clip=Saddle(2.0, 1.0), **values):
    return jmm.Query(clip=clip, noise_multiplier=Saddle(noise, noise), population=N,
                     sampling=sampling or jmm.Full(), **values)


def hyper(rounds=3, **values):
    return jmm.sgda.Hyper(query=query(**values), step=Saddle(0.1, 0.1), iterations=rounds)


def signs(w, v, record, key):
    """A loss whose gradients are signs over 8, so that sums of them are exact in any order."""
    drawn = jax.random.rademacher(key, (2 * D,), w.dtype) / 8
    return w @ drawn[:D] + v @ drawn[D:] + 0 * jnp.sum(record[0])


def noisy_operator(w, v, record, key):
    """Norms between 0 and far above the clip norm, by the key alone; two matrix products."""
    size = jnp.exp(6 * jax.random.normal(key, ()))
    hidden = jnp.tanh(record[0] @ w["a"]) @ w["b"]
    return size * hidden @ v


def of(loss, strategy="vmap", **values):
    return jmm.Problem(jmm.saddle_operator(loss, strategy, 7), random=True, **values)


def words(rows=np.arange(N), release=0, key=KEY, group=0):
    base = release_keys.Keys(key, Kind.MEAN, release).operators()
    return release_keys.with_key_data((), jnp.asarray(rows), base, group)[1]


# --- keys ---


def test_every_row_of_every_release_and_group_has_a_key_of_its_own():
    every = [words(release=k, group=i) for k in range(3) for i in range(2)]
    actual = {tuple(x) for x in np.concatenate(every)}
    others = [jax.random.key_data(k) for r in range(3)
              for own in (release_keys.Keys(KEY, Kind.MEAN, r),)
              for k in (own.sample, own.noise, own.public())]
    assert len(actual) == 6 * N
    assert not actual & {tuple(np.asarray(x)) for x in others}


def test_a_key_belongs_to_the_row_and_not_to_its_place():
    np.testing.assert_array_equal(words([7, 3]), words()[np.array([7, 3])])


def test_words_are_the_keys_that_folding_gives():
    base = threefry_key(release_keys.Keys(KEY, Kind.MEAN, 0).operators())
    np.testing.assert_array_equal(words([9])[0], jax.random.key_data(jax.random.fold_in(base, 9)))


@pytest.mark.parametrize("charged", [False, True])
def test_keys_of_a_training_are_folds_that_all_differ(charged):
    """Those of runs that were saved: another derivation would release with other noise."""
    def fold(*numbers):
        key = KEY
        for number in numbers:
            key = jax.random.fold_in(key, number)
        return key

    keys, b = release_keys.training_keys(KEY, charged), (0,) * charged
    expected = {"ranges": fold(1) if charged else None, "moments": fold(*b, 0),
                "rounds": fold(*b, 1), "group_losses": fold(*b, 0, 1),
                "second_moments": fold(*b, 0, 2), "calibration": fold(*b, 0, 3),
                "group_shares": fold(*b, 0, 4), "certificate": fold(*b, 0, 5)}
    assert list(expected) == list(keys._fields)
    data = {name: None if key is None else tuple(np.asarray(jax.random.key_data(key)).tolist())
            for name, key in expected.items()}
    assert data == {name: None if key is None else tuple(np.asarray(
        jax.random.key_data(key)).tolist()) for name, key in keys._asdict().items()}
    assert len(set(data.values())) == len(data)
    # a key under m is below 2^31 - 1, from where releases, passes and marks of m begin
    further = [release_keys.root_of_training(KEY, k) for k in range(4)]
    roots = {tuple(np.asarray(jax.random.key_data(x)).tolist()) for x in further}
    assert len(roots) == 4
    assert not roots & set(data.values())


def test_equal_keys_of_a_training_are_refused(monkeypatch):
    monkeypatch.setattr(release_keys, "fold_in_on_host", lambda key, number: key)
    with pytest.raises(ValueError, match="Two releases of a training"):
        release_keys.training_keys(KEY, True)


def test_keys_of_a_search_all_differ():
    keys = [release_keys.run_count_key(KEY), *(
        key for number in (1, 2, 3) for key in release_keys.search_keys(KEY, number))]
    assert len({tuple(np.asarray(jax.random.key_data(x)).tolist()) for x in keys}) == len(keys)


def test_each_key_of_a_training_is_read_in_one_place():
    """But that of the rounds, by the two trainings, one of which a training is."""
    sources = [ast.parse(path.read_text()) for folder in ("apps/tables", "apps/estimators")
               for path in sorted((ROOT / folder).glob("*.py"))]
    read = collections.Counter(
        node.attr for source in sources for node in ast.walk(source)
        if isinstance(node, ast.Attribute) and node.attr in release_keys.TrainingKeys._fields
        and "keys" in (getattr(node.value, "id", ""), getattr(node.value, "attr", "")))
    assert read == dict.fromkeys(release_keys.TrainingKeys._fields, 1) | {"rounds": 2}


# --- releases ---


@pytest.mark.slow
def test_an_operator_that_ignores_its_key_releases_the_same_bits():
    game = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
    deaf = game._replace(operator=lambda z, x, key: game.operator(z, x), random=True)
    data = (DATA[0], DATA[0] ** 2)
    one, other = (jmm.run(KEY, START, data, hyper(), jmm.sgda, p).state for p in (game, deaf))
    jax.tree.map(np.testing.assert_array_equal, one, other)


def released(mechanism, problem, number=1, data=DATA):
    """One release, of a program of its own."""
    return jax.jit(lambda data: jmm.release(KEY, mechanism, number, problem, START, data))(data)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [
    jmm.Full(), jmm.Poisson(rate=0.4),
    jmm.Disjoint(batch=8),
    jmm.FixedSize(batch=10, replacement=True)], ids=lambda s: type(s).__name__)
def test_a_release_is_the_sum_over_rows_with_their_keys(sampling):
    """Against the definition, row by row, without noise."""
    mechanism = jmm.mechanism.Repeat(query=query(sampling, 0.0), times=2)
    g = released(mechanism, of(signs))
    sample = jax.jit(lambda: sample_of_release(KEY, mechanism, jnp.int32(1)))()
    rows = np.arange(N) if sample.rows is None else np.asarray(sample.rows)
    if sample.valid is not None:
        rows = rows[np.asarray(sample.valid)]
    each = [jax.random.rademacher(jax.random.wrap_key_data(k), (2 * D,), float) / 8
            for k in words(rows, 1)]
    np.testing.assert_allclose(np.concatenate([g.w, -g.v]), np.sum(each, 0)
                               / jmm.mechanism.batch_size(mechanism.query), rtol=1e-12)


@pytest.mark.slow
def test_the_same_bits_under_every_strategy():
    mechanism = jmm.mechanism.Repeat(query=query(jmm.FixedSize(batch=10)), times=2)
    actual = [released(mechanism, of(signs, strategy)) for strategy in STRATEGIES]
    for other in actual[1:]:
        jax.tree.map(np.testing.assert_array_equal, actual[0], other)


@pytest.mark.slow
def test_the_norm_of_an_operator_that_draws_its_norm_is_clipped_in_every_strategy():
    """Two keys for one record, for its norm and for its sum, would show: sizes differ by e^6."""
    z = Saddle({"a": jnp.ones((D, 8)) / 3, "b": jnp.ones((8, D))}, jnp.ones(D))
    pairs, clip = (DATA, words()), Saddle(2.0, 1.0)
    sums = []
    for strategy in STRATEGIES:
        total = clipped_sum(release_keys.operator_of(of(noisy_operator, strategy)), clip)
        one = jax.jit(lambda x, total=total: jax.lax.map(
            lambda i: total(z, jax.tree.map(lambda a: a[i][None], x)), jnp.arange(N)))(pairs)
        for bound, g in zip(clip, one, strict=True):
            size = np.sqrt(sum(np.square(x).reshape(N, -1).sum(1) for x in jax.tree.leaves(g)))
            assert (size <= bound).all()
        sums.append(jax.jit(total)(z, pairs))
    for other in sums[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), sums[0], other)
    # and some are clipped, some are not
    sizes = np.exp(6 * np.array([jax.random.normal(jax.random.wrap_key_data(k)) for k in words()]))
    assert sizes.min() < 0.01 < 100 < sizes.max()


@pytest.mark.slow
def test_a_replaced_record_changes_its_own_operator_and_no_other():
    other = jax.tree.map(lambda x: x.at[4].set(x[4] + 1), DATA)
    problem = jmm.Problem(lambda z, x, key: Saddle(x[0] * jax.random.normal(key), 0 * z.v),
                          random=True)
    silent = jmm.Query(clip=Saddle(1e6, None), noise_multiplier=Saddle(0.0, None), population=N)
    mechanism = jmm.mechanism.Repeat(query=silent, times=1)
    a, b = (released(mechanism, problem, 0, data).w for data in (DATA, other))
    moved = np.ones(D) * jax.random.normal(jax.random.wrap_key_data(words([4])[0])) / N
    np.testing.assert_allclose(b - a, moved, rtol=1e-9)


# --- runs ---


@pytest.mark.slow  # it compiles the run five times
def test_runs_from_the_host_and_resumed_ones_draw_the_same(tmp_path):
    settings = hyper(4, sampling=jmm.FixedSize(batch=8))
    full = jmm.run(KEY, START, DATA, settings, jmm.sgda, of(signs)).state

    def fit(data, **how):
        return jmm.fit(KEY, START, data, settings, jmm.sgda, of(signs), delta=1e-3,
                       progress=False, **how)

    def stop(state):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(DATA, every=2, checkpoint=tmp_path, callback=stop)
    resumed = fit(DATA, every=2, checkpoint=tmp_path).state
    sent = fit(jmm.placement.HostData(jax.tree.map(np.asarray, DATA)), every=4).state
    for other in (resumed, sent):
        jax.tree.map(np.testing.assert_array_equal, full, other)


@pytest.mark.slow
def test_a_stream_draws_for_the_record_that_it_reads():
    sums = jmm.mechanism.TreeSums(clip=2.0, leaves=4, noise_multiplier=0.0)
    base = release_keys.Keys(KEY, Kind.LEAF, 1).operators()
    for place in ((5,), (2, 3)):  # of all records, and of a group
        data = DATA if len(place) == 1 else jax.tree.map(
            lambda x: x.reshape(4, 10, *x.shape[1:]), DATA)
        g = release_leaf(KEY, sums, 1, of(signs), START, data, tuple(map(jnp.int32, place)))
        key = release_keys.with_key_data((), jnp.array(place[-1:]), base, *place[:-1])[1][0]
        drawn = jax.random.rademacher(jax.random.wrap_key_data(key), (2 * D,), float) / 8
        np.testing.assert_allclose(np.concatenate([g.w, -g.v]), drawn, rtol=1e-12)


@pytest.mark.slow
def test_a_public_term_has_a_key_of_its_own_in_every_round():
    problem = of(signs, public=lambda z, key: Saddle(jax.random.normal(key, (D,)), 0 * z.v))
    still = of(signs, public=lambda z, key: Saddle(0 * z.w, 0 * z.v))
    moves = []
    for p in (problem, still):
        points = jmm.run(KEY, START, DATA, hyper(), jmm.sgda, p, lambda state: state.z.w)[1]
        moves.append(np.diff(np.concatenate([START.w[None], points]), axis=0))
    for release, gap in enumerate((moves[1] - moves[0]) / 0.1):
        key = release_keys.Keys(KEY, Kind.MEAN, release).public()
        np.testing.assert_allclose(gap, jax.random.normal(key, (D,)), rtol=1e-6)


# --- what is refused ---


def test_who_needs_one_operator_for_a_record_refuses():
    with pytest.raises(ValueError, match="takes no key"):
        jmm.metrics.mean_operator(of(signs), START, DATA)
    point = jmm.proximal.certified(jmm.mechanism.Resolvent(
        bound=1.0, prox=1.0, lipschitz=1.0, diameter=2.0, population=N, assumes="monotone",
        noise_multiplier=1.0))
    with pytest.raises(ValueError, match="takes no key"):
        release_resolvent(KEY, jmm.Repeat(query=point, times=1), 0, of(signs), START, DATA)


def test_statistics_of_a_batch_stay_refused():
    noise = jax.random.normal(jax.random.key(1), (N, D))  # as many rows as the data

    def operator(z, record, key):
        return Saddle(record[0] + noise.mean(0), 0 * z.v)

    mechanism = jmm.mechanism.Repeat(query=query(), times=1)
    with pytest.raises(ValueError, match="as many rows"):
        jmm.release(KEY, mechanism, 0, jmm.Problem(operator, random=True), START, DATA)


# --- generators with fresh latent points ---


@pytest.mark.slow
def test_a_gan_with_fresh_points_draws_others_in_every_round():
    problem = demo_gan.wgan(lambda w, x: w @ x, lambda v, xi: v + xi,
                            demo_gan.FreshLatents(6, D), limit=2.0, norm="ball")
    assert problem.random
    v = jnp.full(D, 0.3)
    public, point = jax.jit(problem.public), Saddle(jnp.ones(D), v)
    one, other = (public(point, jax.random.key(k)) for k in range(2))
    # points come with their mirrors, so their mean is 0: the operator is linear, and equal
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), one, other)
    np.testing.assert_allclose(one.w, -v, atol=1e-12)
    bent = demo_gan.wgan(lambda w, x: jnp.tanh(w @ x), lambda v, xi: v + xi,
                         demo_gan.FreshLatents(6, D))
    public = jax.jit(bent.public)
    one, other = (public(point, jax.random.key(k)) for k in range(2))
    assert np.abs(one.w - other.w).max() > 1e-3
    only = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=N)
    settings = jmm.sgda.Hyper(query=only, step=Saddle(0.1, 0.1), iterations=3)
    done = jmm.run(KEY, START, DATA[0], settings, jmm.sgda, bent)
    assert np.isfinite(done.state.z.v).all()
    with pytest.raises(ValueError, match="even"):
        demo_gan.FreshLatents(5, 2)
