"""What a first call costs: what an import loads, and how large a program is."""

import json
import os
import stat
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import jaxminimax as jmm
from benchmarks.common import report
from jaxminimax import Saddle
from jaxminimax.base import own_files

HEAVY = {"dp_accounting", "scipy.stats", "scipy.special", "scipy.signal", "scipy.optimize",
         "jax.extend", "sklearn", "pandas", "matplotlib", "orbax", "tqdm", "pyarrow"}
SESSION = """
import contextlib, io, json, runpy, sys
import jaxminimax
light, shown, imported = sorted(sys.modules), dir(jaxminimax), sorted(sys.modules)
sys.argv = ["jaxminimax", "--help"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    runpy.run_module("jaxminimax", run_name="__main__")
helped = sorted(sys.modules)
jaxminimax.epsilon(jaxminimax.GroupLosses(sizes=(10, 10), bound=1.0, noise_multiplier=2.0), 1e-3)
print(json.dumps([light, imported, shown, helped, sorted(sys.modules)]))
"""


@pytest.mark.slow
def test_what_the_accountant_and_the_tables_need_is_loaded_when_it_is_asked_for():
    done = subprocess.run([sys.executable, "-c", SESSION], check=True, capture_output=True,
                          text=True)
    light, imported, shown, helped, asked = map(set, json.loads(done.stdout))
    assert not {"jax", "numpy"} & light
    assert {"jax", "numpy"} <= imported
    assert not HEAVY & imported
    assert not HEAVY & helped
    assert {"scipy.special"} <= asked  # the list tells what was loaded
    assert {"calibrate", "epsilon", "statement", "accounting", "audit", "tables", "sgda"} <= shown


def program(n, d, rounds, sampling):
    """The instructions of a whole run, before they are compiled."""
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(2.0, 2.0), population=n,
                      sampling=sampling)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=rounds)
    problem = jmm.problems.auc(jmm.problems.linear_scorer, prior=0.5, radius=Saddle(2.0, 2.0))
    data = jax.ShapeDtypeStruct((n, d), jnp.float32), jax.ShapeDtypeStruct((n,), jnp.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    start = jmm.problems.auc_start(jnp.zeros(d))
    made = jax.jit(lambda key, data: jmm.run(key, start, data, hyper, jmm.sgda, problem).state)
    return made.lower(key, data).as_text().count(" = ")


@pytest.mark.slow
def test_a_program_is_of_one_size_whatever_the_data_and_the_rounds():
    sampling = jmm.Poisson(rate=1 / 100, capacity=100)  # slots of both are one block of a sum
    few = program(4000, 24, 8, sampling)
    assert few == program(8000, 60, 5000, sampling) > 100


# --- programs on disk ---


@pytest.fixture
def kept(monkeypatch):
    """JAX's settings of programs on disk are reset after a test, which starts without any."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    compilation_cache.reset_cache()
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def stored(folder):
    """All that the programs in a folder consist of."""
    from jax._src.compilation_cache import decompress_executable

    return b"".join(decompress_executable(x.read_bytes()) for x in folder.glob("*-cache"))


@pytest.mark.nightly
def test_programs_on_disk_hold_neither_data_nor_keys(kept, tmp_path):
    n, d = 40, 16
    x, y = np.random.default_rng(5).standard_normal((2, n, d), np.float32)
    key = jax.random.wrap_key_data(np.array([0x1B2C3D4E, 0x5A6B7C8D], np.uint32))
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(2.0, 2.0), population=n)
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=2)
    z = Saddle(*jnp.zeros((2, d), jnp.float32))
    leak = jnp.asarray(y[0])

    def programs(problem, folder):
        """What compiling and running leaves in a folder that held nothing."""
        jax.clear_caches()
        jax.config.update("jax_compilation_cache_dir", str(tmp_path / folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        compilation_cache.reset_cache()
        jmm.run(key, z, (jnp.asarray(x), jnp.asarray(y)), hyper, jmm.sgda, problem)
        actual = stored(tmp_path / folder)
        assert len(actual) > 10_000
        return actual

    def loss(w, v, record):
        return jnp.sum((w - v) * (record[0] + record[1]))

    def leaking(w, v, record):
        return loss(w, v, record) + jnp.sum(w * leak)

    actual = programs(jmm.Problem(jmm.saddle_operator(loss)), "as it should be")
    secrets = [*x, *y, *x.T[:, :4], *y.T[:, :4], *jax.random.key_data(key)]
    assert not any(np.ascontiguousarray(one).tobytes() in actual for one in secrets)
    # a program that closes over a row is found out
    assert y[0].tobytes() in programs(jmm.Problem(jmm.saddle_operator(leaking)), "leaking")


@pytest.mark.nightly
def test_programs_of_a_table_hold_neither_its_rows_nor_the_key(kept, tmp_path):
    rng = np.random.default_rng(6)
    key = jax.random.wrap_key_data(np.array([0x2C3D4E5F, 0x6B7C8D9E], np.uint32))
    table = {name: rng.uniform(-1, 1, 200) for name in "abcd"} | {
        "group": rng.choice(["u", "v"], 200), "ill": rng.integers(2, size=200)}
    schema = jmm.tables.Schema({name: jmm.tables.Charged() if name == "d" else
                                jmm.tables.Number(-1, 1) for name in "abcd"}, "ill", "1",
                               groups="group", group_values=("u", "v"))
    jax.clear_caches()
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    compilation_cache.reset_cache()
    jmm.tables.train(table, schema, epsilon=8.0, delta=1e-3, key=key)
    actual, x = stored(tmp_path), schema.without(("d",)).features(table)
    # of ranges, means, second moments, training and scale
    assert len(list(tmp_path.glob("jit_*-cache"))) >= 5
    secrets = [*x, *x.T[:, :4], schema.labels(table)[:24], *jax.random.key_data(key), *(
        jax.random.key_data(one) for one in jax.random.split(key))]
    assert len(actual) > 10_000
    assert not any(np.ascontiguousarray(one).tobytes() in actual for one in secrets)


def foreign(lstat, name):
    """`os.lstat`, as if files of that name were another user's."""
    def changed(path, *args, **kwargs):
        actual = lstat(path, *args, **kwargs)
        values = list(actual)
        if os.path.basename(path) == name:
            values[stat.ST_UID] += 1
        return os.stat_result(values)

    return changed


def test_programs_are_kept_where_nobody_else_reads_or_writes(kept, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.setattr(report, "_is_command", lambda: True)
    report.Parser(report.__file__, None, compiles=True).parse_args([])
    assert jax.config.jax_compilation_cache_dir is None  # what times a compiler loads nothing
    report.Parser(report.__file__, None).parse_args([])
    folder = tmp_path / "own" / "jaxminimax" / "programs"
    assert jax.config.jax_compilation_cache_dir == str(folder)
    for one in (folder, folder.parent):
        assert stat.S_IMODE(one.stat().st_mode) == 0o700
    for one in (folder, folder.parent, folder.parent.parent):  # others could write, or rename it
        before = one.stat().st_mode
        one.chmod(0o777)
        assert own_files.keep_programs() is None
        one.chmod(before)
    (folder / "made by another").touch()
    with monkeypatch.context() as patched:
        patched.setattr(os, "lstat", foreign(os.lstat, "made by another"))
        assert own_files.keep_programs() is None
    assert own_files.keep_programs() == folder

    (tmp_path / "linked" / "jaxminimax").mkdir(parents=True)
    (tmp_path / "linked" / "jaxminimax" / "programs").symlink_to(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "linked"))
    assert own_files.keep_programs() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    assert own_files.keep_programs() is None


def test_an_import_and_a_call_keep_no_programs(kept):
    report.Parser(report.__file__, None).parse_args([])  # here pytest is the command
    assert jax.config.jax_compilation_cache_dir is None
