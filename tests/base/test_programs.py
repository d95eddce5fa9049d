"""Programs of tables: how they are compiled, and stored, and that a run stays with its own."""

import dataclasses
import functools
import importlib.util
import os
import pathlib
import pickle
import stat
import struct
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle, tables
from jaxminimax.base import programs
from jaxminimax.drivers import long_runs, saved_runs
from jaxminimax.releases import noisy_sums, sums
from jaxminimax.tables import statistics


def test_shapes_and_rounds_alone_decide():
    shape, point = (1000, 1, 20), np.zeros(20)
    zeros, ones = np.zeros(shape), jnp.ones(shape)
    for rounds in (1, 1677, 1678):
        decided = {programs.is_brief(x, point, rounds)
                   for x in (zeros, ones, jax.ShapeDtypeStruct(shape, np.float32))}
        assert decided == {20_000 * rounds <= programs.BRIEF_NUMBERS}
    assert not programs.is_brief(zeros, np.zeros(40_000))  # wide numbers of a record


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
    monkeypatch.setattr(long_runs, "_advance", lambda state, *_: state._replace(
        spent=state.spent + 1))
    game = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
    query = jmm.Query(clip=Saddle(3.0, 3.0), noise_multiplier=Saddle(5.0, 5.0), population=9)
    with programs.briefly(True):
        jmm.fit(jax.random.key(0), Saddle(np.zeros(2), np.zeros(2)), (np.ones((9, 2)),) * 2,
                jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=2), jmm.sgda, game,
                delta=1e-3, progress=False,
                callback=lambda _: wanted.append(programs._WANTED.get()))
        assert programs._WANTED.get() is True
    assert wanted == [None, None]


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


# --- programs on disk ---


def released(rows):
    """The means of a table with two columns, released, whose program is that of equal shapes."""
    columns = dict.fromkeys("ab", tables.Number(-1, 1))
    schema, described = tables.Schema(columns, "y", "1"), statistics.one_release(len(rows), 2.0, 1)
    key = jax.random.key(7, impl="threefry2x32")
    return statistics.release_moments(key, described, rows[:, None, :], np.ones((len(rows), 1)),
                                      np.ones((len(rows), 1)), schema).mean.tolist()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder, still to be made, in which JAX keeps programs, and no program in memory."""
    monkeypatch.setattr(programs, "_LOADED", time.time_ns() + 10**9)  # nobody edits the library
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "programs"))
    monkeypatch.setattr(sums._compiled, "_stored", {})
    yield tmp_path / "programs" / "tables"
    jax.config.update("jax_compilation_cache_dir", before)


def test_a_stored_program_releases_what_the_compiled_one_does_and_holds_no_data(
        folder, monkeypatch):
    rng = np.random.default_rng(0)
    one, other = rng.uniform(-1, 1, (2, 40, 2))
    jax.config.update("jax_enable_compilation_cache", False)  # as where nothing is stored
    expected = released(one)
    assert not folder.exists()
    jax.config.update("jax_enable_compilation_cache", True)
    assert released(one) == expected
    (path,) = folder.iterdir()
    assert [stat.S_IMODE(x.stat().st_mode) for x in (folder, path)] == [0o700, 0o600]
    content = path.read_bytes()
    assert not any(x.astype(kind).tobytes() in content
                   for x in (*one, *one.T[:, :4]) for kind in (np.float32, np.float64))

    # another process: nothing in memory, and nothing is compiled
    with monkeypatch.context() as patched:
        patched.setattr(sums._compiled, "_stored", {})
        patched.setattr(sums._compiled, "_compiled", None)
        assert released(one) == expected
        assert released(other) != expected
    # a damaged program, another content, and a program that others may write count for none
    another, count = pickle.dumps(([], {})), 8  # key, clip norm, noise, number, point and data
    for damage in (lambda: path.write_bytes(content[:999]), lambda: path.write_bytes(another),
                   lambda: path.chmod(0o660), path.unlink):
        assert programs._loaded(path, count) is not None
        damage()
        assert programs._loaded(path, count) is None
        path.write_bytes(content)
        path.chmod(0o600)


def test_nothing_is_stored_where_others_read_or_write(folder):
    x = [np.zeros(2)]
    assert programs._path(x, [None]).parent == folder
    for place, mode in ((folder, 0o755), (folder.parent, 0o777)):
        before = stat.S_IMODE(place.stat().st_mode)
        place.chmod(mode)
        programs._folder.cache_clear()
        assert programs._path(x, [None]) is None
        place.chmod(before)
    programs._folder.cache_clear()


def test_a_program_has_another_name_for_all_that_tracing_reads(folder, monkeypatch):
    problem = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
    query = jmm.Query(clip=Saddle(3.0, 3.0), noise_multiplier=Saddle(5.0, 5.0), population=100)
    x, tree = np.zeros(2, np.float32), jax.tree.structure
    names = [programs._path(*one) for one in (
        ([x], [problem, tree(query)]), ([x, x], [problem, tree(query)]),
        ([x[:1]], [problem, tree(query)]), ([x.astype(np.int32)], [problem, tree(query)]),
        ([0.0], [problem, tree(query)]), ([np.float32(0)], [problem, tree(query)]),
        ([x], [problem, tree(dataclasses.replace(query, population=101))]),
        ([x], [problem, tree(dataclasses.replace(query, sampling=jmm.Poisson(rate=0.1)))]),
        ([x], [jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 3.0)),
               tree(query)]),
        ([x], [problem.operator, tree(query)]), ([x], [0.5]), ([x], [np.float64(0.5)]))]
    with jax.default_matmul_precision("float32"):
        names.append(programs._path([x], [problem, tree(query)]))
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_min_max=false")
    programs._versions.cache_clear()
    names.append(programs._path([x], [problem, tree(query)]))
    monkeypatch.setenv("XLA_FLAGS", str(folder.parent / "flags"))
    for flags in ("--xla_a", "--xla_b"):  # in a file of the same name
        (folder.parent / "flags").write_text(flags)
        programs._versions.cache_clear()
        names.append(programs._path([x], [problem, tree(query)]))
    assert None not in names
    assert len(set(names)) == len(names)
    programs._versions.cache_clear()


@pytest.mark.parametrize("unnamed", [
    lambda w, v, record: w, np.zeros(3), jnp.zeros(3), functools.partial(np.add, np.ones(2)),
    functools.partial(jnp.add, jnp.ones(2)), np.sin, {1, 2}, object(),
    np.random.default_rng(0).normal, functools.wraps(jmm.sgda.update)(lambda *args: args)])
def test_what_may_hold_data_or_is_not_of_the_library_has_no_name(folder, unnamed):
    assert programs._path([], [unnamed]) is None
    assert programs._path([], [(unnamed,)]) is None


def test_a_program_has_the_name_of_the_source_that_was_loaded_or_none(folder, monkeypatch):
    source = folder.parent / "jaxminimax" / "base" / "programs.py"
    monkeypatch.setattr(programs, "__file__", str(source))

    def named():
        programs._versions.cache_clear()
        return programs._path([], [None])

    assert named() is None  # a program in one file, without sources next to it
    source.parent.mkdir(parents=True)
    names = []
    for text in ("1.0", "2.0"):  # of one size and time
        source.write_text(text)
        os.utime(source, (1, 1))
        monkeypatch.setattr(programs, "_LOADED", time.time_ns() + 10**9)
        names.append(named())
    assert len({None, *names}) == 3
    monkeypatch.setattr(programs, "_LOADED", source.stat().st_ctime_ns - 1)
    assert named() is None  # upgraded while this process runs the former version
    monkeypatch.setattr(programs, "_LOADED", time.time_ns() + 10**9)
    cached = pathlib.Path(importlib.util.cache_from_source(source))
    cached.parent.mkdir(parents=True, exist_ok=True)
    # seconds; Python compares the source's alone, and its size, unless by a hash
    for kind, second, written, known in ((0, 1, 2, True), (0, 1, 0, False), (0, 2, 0, True),
                                         (1, 2, 0, False)):
        cached.write_bytes(bytes(4) + struct.pack("<III", kind, second, 3))
        os.utime(cached, (written, written))
        assert (named() is not None) is known
    programs._versions.cache_clear()


def noiseless(key, size, bits):
    return jnp.zeros(size, jnp.int32)


@pytest.mark.parametrize("other", [
    noiseless, functools.partial(noiseless), jax.jit(noiseless), mock.Mock(),
    functools.wraps(noisy_sums.floored_normal)(noiseless)])
def test_nothing_is_stored_while_a_function_of_the_library_is_replaced(
        other, tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_LOADED", time.time_ns() + 10**9)
    monkeypatch.setattr(programs.serialize_executable, "serialize", lambda one: (one, None, None))
    with monkeypatch.context() as patched:
        patched.setattr(noisy_sums, "floored_normal", other)
        programs._store(tmp_path / ("0" * 64), None)
    with monkeypatch.context() as patched:
        patched.setattr(noisy_sums.GridNoise, "step", property(noiseless))
        programs._store(tmp_path / ("1" * 64), None)
    with monkeypatch.context() as patched:
        patched.setattr(programs, "_LOADED", 0)  # upgraded since the program was named
        programs._store(tmp_path / ("2" * 64), None)
    assert not list(tmp_path.iterdir())
    programs._store(tmp_path / ("3" * 64), None)
    assert [one.name for one in tmp_path.iterdir()] == ["3" * 64]


def test_only_stored_programs_are_removed(folder, monkeypatch):
    monkeypatch.setattr(programs, "_MOST", 1)
    monkeypatch.setattr(programs.serialize_executable, "serialize", lambda one: (one, None, None))
    folder.mkdir(0o700, parents=True)
    for name, written in (("patients.csv", 1), ("0" * 64, 2)):
        (folder / name).touch()
        os.utime(folder / name, (written, written))
    programs._store(folder / ("1" * 64), None)
    assert {one.name for one in folder.iterdir()} == {"patients.csv", "1" * 64}
