"""Every release is noted with its key and number, and no two of all that a process makes share one.

Trainings of tables are compared twice: with releases that return their start, so that nothing is
compiled, and with those that they make.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.privacy.mutants import tables as mutants
from jaxminimax import Saddle
from jaxminimax.apps.tables import check, records, unfinished
from jaxminimax.releases import made_releases, release_keys

N, D = 12, 2
KEY = jax.random.wrap_key_data(np.array([0x2C3D4E5F, 0x6B7C8D9E], np.uint32), impl="threefry2x32")
ROWS = (np.linspace(-1, 1, N * D).reshape(N, D), np.ones((N, D)))
START = Saddle(jnp.zeros(D), jnp.zeros(D))
GAME = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
QUERY = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(3.0, 2.0), population=N)
HYPER = jmm.sgda.Hyper(query=QUERY, step=Saddle(0.1, 0.1), iterations=3)
RUN = functools.partial(jmm.run, KEY, START, ROWS, HYPER, jmm.sgda, GAME)
FIT = functools.partial(jmm.fit, KEY, START, ROWS, HYPER, jmm.sgda, GAME, delta=1e-3,
                        progress=False)


@made_releases.noted
def release(key, mechanism, spent, z):
    """As a release function is called; it compiles nothing."""
    return z


def one(key=KEY, number=0, place=0, z=START):
    return release(key, jmm.Repeat(query=QUERY, times=9, place=place), jnp.int32(number), z)


def words(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


# --- what is noted ---


def test_a_release_is_noted_with_its_key_stream_number_and_settings():
    with made_releases.collected() as made:
        one()
        jax.jit(one)(jax.random.fold_in(KEY, 1), 2)
        one(number=9)  # beyond the description: it releases NaN
        one(number=-1)
    one()  # after the context
    made_releases.check_apart(made)
    settings = (3.0, 2.0)  # noise multipliers, among the description's numbers
    assert [x[:4] for x in made] == [(words(KEY), 0, 0, 0),
                                     (words(jax.random.fold_in(KEY, 1)), 0, 0, 2)]
    assert all(set(settings) <= set(x.settings) for x in made)


def test_a_program_that_was_traced_before_is_traced_again_and_notes_to_its_own_list():
    program = jax.jit(lambda: one().w)
    program()
    for _ in range(2):
        with made_releases.collected() as made:
            program()
        jax.effects_barrier()
        assert len(made) == 1
    program()
    jax.effects_barrier()
    assert len(made) == 1
    assert "callback" not in str(jax.make_jaxpr(lambda: one().w)())


TWICE = {
    "two calls": lambda: (one(), one(z=Saddle(START.w + 1, START.v))),
    "one in a program": lambda: (one(number=3), jax.jit(one)(number=3)),
    "a vmap over points": lambda: jax.vmap(lambda w: one(z=Saddle(w, START.v)).w)(
        jnp.stack([START.w, START.w + 1])),
    "a loop": lambda: jax.lax.map(lambda w: one(z=Saddle(w, START.v)).w, jnp.zeros((2, D))),
    "two runs": lambda: (RUN(), RUN()),
    "a run and a sweep": lambda: (RUN(), jmm.sweep(
        KEY[None, None], START, ROWS, jmm.stack([HYPER]), jmm.sgda, GAME))}


@pytest.mark.parametrize("twice", [
    pytest.param(x, id=name, marks=[pytest.mark.slow] * (name not in ("two calls", "a loop")))
    for name, x in TWICE.items()])
def test_two_releases_of_one_key_and_number_are_refused_wherever_they_are_made(twice):
    with made_releases.collected() as made:
        twice()
    with pytest.raises(ValueError, match=r"two releases number \d of one description") as refused:
        made_releases.check_apart(made)
    assert not any(str(word) in str(refused.value) for word in words(KEY))


def test_another_key_place_or_number_is_another_release():
    with made_releases.collected() as made:
        for how in ({}, {"number": 1}, {"place": 1}, {"key": jax.random.key(9)}):
            one(**how)
    made_releases.check_apart(made)
    assert len(made) == 4


# --- all that a process makes ---


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (
        name not in ("ranges", "losses", "number", "estimator, bounds")))
    for name in mutants.trainings()])
def test_no_two_releases_of_a_training_share_a_key(name):
    with mutants.without_releases() as made:
        mutants.trainings()[name]()
    made_releases.check_apart(made)
    # moments, two rounds, and what else there is
    assert len({x.key for x in made}) >= (2 if name == "balanced" else 3)
    assert len(made) >= 3


@pytest.mark.nightly
@pytest.mark.parametrize("name", list(mutants.trainings()))
def test_no_two_releases_that_a_training_makes_share_a_key(name):
    with made_releases.collected() as made:
        mutants.trainings()[name]()
    made_releases.check_apart(made)
    assert len({x.key for x in made}) >= (2 if name == "balanced" else 3)


def closeness(w, record):
    return -jnp.square(w[0] - record[0][0])


@pytest.mark.slow
def test_a_search_a_sweep_a_run_and_counts_share_no_key():
    several = jax.random.split(jax.random.key(1), (2, 2))
    rows = records.records(np.zeros((N, 1)), np.zeros(N))
    described = check.counts_query(N, rows.x.shape[-1], 4.0, 1e-3)
    with made_releases.collected() as made:
        RUN()
        jmm.sweep(several, START, ROWS, jmm.stack([HYPER, HYPER]), jmm.sgda, GAME)
        jmm.tune(jax.random.key(2, impl="threefry2x32"), START, ROWS, [HYPER, HYPER], jmm.sgda,
                 GAME, score=closeness, score_range=(-1.0, 0.0), epsilon=2.0, delta=1e-3,
                 point=lambda state: state.z.w)
        for _ in range(2):
            check.release_counts(jmm.noise.secret_key(), described, rows)
    made_releases.check_apart(made)
    roots = {x.key for x in made}
    assert {words(KEY), *map(words, several.ravel())} <= roots
    assert len(made) >= 3 + 12 + 4 + 2
    assert len(roots) >= 1 + 4 + 2 + 2


class StoppedError(Exception):
    """Ends a run."""


def stop(_):
    raise StoppedError


@pytest.mark.slow
def test_a_run_that_goes_on_makes_no_release_again(tmp_path):
    with made_releases.collected() as made:
        with pytest.raises(StoppedError):
            FIT(checkpoint=tmp_path, every=1, callback=stop)
        FIT(checkpoint=tmp_path, every=1)
    made_releases.check_apart(made)
    assert [x.number for x in made] == [0, 1, 2]


@pytest.mark.slow
def test_a_training_that_goes_on_repeats_its_rounds_alone(tmp_path):
    train = functools.partial(mutants.trainings()["ranges"], folder=tmp_path / "run")
    with made_releases.collected() as first, pytest.raises(StoppedError):
        train(callback=stop)
    with made_releases.collected() as second:
        train()
    made_releases.check_apart(first)
    made_releases.check_apart(second)
    with unfinished.Unfinished(tmp_path / "run") as job:
        keys = release_keys.training_keys(job.key, True)
    # with the same settings, from the point that was saved: the same numbers once more
    again = {x for x in second if x[:4] in {y[:4] for y in first}}
    assert again <= set(first)
    assert {x.key for x in again} == {words(keys.rounds)}
    released = [{x.key for x in part} for part in (first, second)]
    assert released[0] == {*map(words, keys[:3]), words(keys.second_moments)}
    assert released[1] == {words(keys.rounds), words(keys.calibration)}
