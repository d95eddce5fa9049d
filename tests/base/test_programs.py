"""Programs of tables: how they are compiled, and that a run stays with its own.

And that no process which was changed decides what a later, unchanged one releases.
"""

import contextlib
import functools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import jaxminimax as jmm
from jaxminimax import Saddle, tables
from jaxminimax.apps.tables import labels, statistics, unfinished
from jaxminimax.base import programs
from jaxminimax.drivers import long_runs, saved_runs
from jaxminimax.releases import noisy_sums
from tests.helpers.lanes import rest_nightly


def test_shapes_and_rounds_alone_decide():
    shape, point = (1000, 1, 20), np.zeros(20)
    zeros, ones = np.zeros(shape), jnp.ones(shape)
    for rounds in (1, 13_421, 13_422):
        decided = {programs.is_brief(x, point, rounds)
                   for x in (zeros, ones, jax.ShapeDtypeStruct(shape, np.float32))}
        assert decided == {20_000 * rounds <= programs.BRIEF_NUMBERS[1]}
    assert programs.is_brief(zeros, np.zeros(1_000_000))
    assert not programs.is_brief(zeros, np.zeros(2_000_000))  # wide numbers of a record


def test_a_program_is_compiled_briefly_where_that_is_wanted_and_it_is_one_of_its_own(monkeypatch):
    options = []

    def spy(function, compiler_options=None):
        def call(x):
            options.append(compiler_options)
            return function(x)

        return call

    monkeypatch.setattr(programs.jax, "jit", spy)
    double = programs.Compiled(lambda x: 2 * x)
    monkeypatch.undo()
    monkeypatch.setattr(programs, "_options", lambda: programs.BRIEF)
    monkeypatch.setattr(programs.jax, "jit", spy)
    double(1)
    with programs.briefly(True):
        double(1)
        jax.make_jaxpr(double)(1)
        with programs.briefly(False):
            double(1)
    double(1)
    assert options == [None, programs.BRIEF, None, None, None]


def test_a_callback_of_a_table_compiles_its_own_programs_as_usual(monkeypatch):
    wanted = []
    monkeypatch.setattr(long_runs, "_piece", lambda rows, state, *_: state._replace(
        spent=state.spent + 1))
    game = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
    query = jmm.Query(clip=Saddle(3.0, 3.0), noise_multiplier=Saddle(5.0, 5.0), population=9)
    with programs.briefly(True):
        jmm.fit(jax.random.key(0), Saddle(np.zeros(2), np.zeros(2)), (np.ones((9, 2)),) * 2,
                jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=2), jmm.sgda, game,
                delta=1e-3, progress=False,
                callback=lambda _: wanted.append(programs._WANTED.get()))
        assert programs._WANTED.get() is True
    assert wanted == [False, False]


def test_both_programs_compute_the_same():
    running = programs.Compiled(jnp.cumsum)
    for brief in (False, True):
        with programs.briefly(brief):
            np.testing.assert_array_equal(running(np.arange(4)), [0, 1, 3, 6])


@pytest.mark.parametrize("before", [False, True])
def test_a_run_that_goes_on_is_compiled_as_it_began(before, tmp_path):
    query = jmm.Query(clip=Saddle(3.0, 3.0), noise_multiplier=Saddle(5.0, 5.0), population=100)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=2)

    def folder(brief):
        with programs.briefly(brief):
            return saved_runs.Folder(tmp_path, saved_runs.promise_of(
                None, jmm.sgda.mechanism(hyper), hyper, jmm.sgda))

    with folder(before) as saved:
        saved.save(1, {"z": np.ones(2)})
    with folder(before) as saved:
        np.testing.assert_array_equal(saved.latest({"z": np.zeros(2)})["z"], np.ones(2))
    with folder(not before) as saved, pytest.raises(ValueError, match="another compiler's effort"):
        saved.latest({"z": np.zeros(2)})


# --- what a changed process leaves ---


def little_noise(clip, noise_multiplier):
    return jnp.asarray(clip * noise_multiplier * 1e-6)


# a number of a module, one of a label, a function, a lambda, a partial one, functions of JAX in
# the place of the library's and of JAX's own
CHANGES = {
    "a number of the noise": (noisy_sums, "ROUNDING_MARGIN", 1e-6),
    "a number of a label": (labels, "BEND", 0.01),
    "a function": (noisy_sums, "std", little_noise),
    "a lambda": (noisy_sums, "std", lambda clip, noise_multiplier: jnp.asarray(clip * 1e-6)),
    "a partial function": (noisy_sums, "std", functools.partial(
        lambda factor, clip, noise_multiplier: jnp.asarray(factor * clip), 1e-6)),
    "a function of JAX for one of the library": (noisy_sums, "std", jnp.minimum),
    "a function of JAX": (jnp, "floor", jnp.ceil)}

QUICKLY = ("a number of the noise", "a lambda", "a function of JAX for one of the library",
           "a function of JAX")  # of which a name that is made of files knows nothing


@contextlib.contextmanager
def changed(name):
    """The library as a session changed it; as it is without a name."""
    module, attribute, value = CHANGES[name] if name else (noisy_sums, "std", noisy_sums.std)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, attribute, value)
        yield


def train(name=""):
    """What a training of a number, by the bent loss, releases."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 400)
    schema = tables.Schema({"a": tables.Number(-1, 1)}, "l", target=tables.Number(-2, 2))
    with changed(name):
        scorer = tables.train({"a": x, "l": x + 0.3 * rng.normal(size=400)}, schema, epsilon=1.0,
                              delta=1e-4, key=jax.random.key(3, impl="threefry2x32"))
    return [scorer.weights.tolist(), scorer.moments.mean.tolist(), scorer.statement.epsilon]


def means(name=""):
    """The released means of a table with two columns; their program is compiled anew."""
    rows, ones = np.random.default_rng(0).uniform(-1, 1, (40, 2)), np.ones((40, 1))
    schema = tables.Schema(dict.fromkeys("ab", tables.Number(-1, 1)), "y", "1")
    jax.clear_caches()
    with changed(name):
        return statistics.release_moments(
            jax.random.key(7, impl="threefry2x32"), statistics.one_release(40, 2.0, 1),
            rows[:, None, :], ones, ones, schema).mean.tolist()


@contextlib.contextmanager
def stored_in(folder):
    """Has JAX keep programs in a folder."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in zip(names, (str(folder), 0.0), strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.mark.nightly
def test_no_program_of_a_changed_library_is_found_by_the_unchanged_one(tmp_path):
    plain = means()
    with stored_in(tmp_path):
        others = {name: means(name) for name in QUICKLY}
        assert list(tmp_path.iterdir())
        assert plain not in others.values()
        assert means() == plain


@pytest.mark.slow
@pytest.mark.parametrize("name", rest_nightly(
    [x for x in CHANGES if x != "a number of a label"], 2))
def test_what_a_changed_library_began_the_unchanged_one_does_not_go_on_with(name, tmp_path):
    """It would state the noise that the earlier releases lack; a label changes no release."""
    def promise():
        jax.clear_caches()
        key = jax.random.key(3, impl="threefry2x32")
        with unfinished.Unfinished(tmp_path / "run", key) as job:
            job.promise((np.zeros(3),), "settings")

    with changed(name):
        promise()
        promise()
    with pytest.raises(ValueError, match="another program of a release"):
        promise()


@pytest.mark.nightly
def test_no_changed_process_changes_what_a_later_one_releases(tmp_path):
    def process(name, folder):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", "import json, sys; from tests.base import "
             "test_programs; print(json.dumps(test_programs.train(sys.argv[1])))", name],
            check=True, text=True, stdout=subprocess.PIPE, env=os.environ | {
                "JAX_ENABLE_COMPILATION_CACHE": str(bool(folder)),
                "JAX_COMPILATION_CACHE_DIR": str(folder),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"})
        return json.loads(done.stdout)

    plain = process("", "")
    for name in CHANGES:
        assert process(name, tmp_path) != plain, name
    assert list(tmp_path.iterdir())
    # whichever change stored a program under the plain one's name would be seen here
    assert process("", tmp_path) == plain


def test_the_sizes_of_a_scan_are_those_of_its_parts():
    def function(a, b, carry, x):
        return jax.lax.scan(lambda c, x: ((c[0] + a * x, c[1] + b), x), (carry, carry), x)

    traced = jax.make_jaxpr(function)(1.0, 2.0, 0.0, jnp.ones(3))
    (scan,) = (e for e in traced.jaxpr.eqns if e.primitive.name == "scan")
    assert programs.scan_sizes(scan.params) == (2, 2)
    with pytest.raises(ValueError, match="carries of a scan in another way"):
        programs.scan_sizes({"length": 3, "jaxpr": scan.params["jaxpr"]})
