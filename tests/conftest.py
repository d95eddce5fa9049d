"""float64 for closed forms; tests of float32 name it. Silent broadcasts are errors.

Most of the suite's time is XLA compiling small programs that run once. What most tests ask of
them no optimisation may change, so they are compiled without LLVM's optimisations and with the
older, faster generator of code for fusions, in one piece, and without XLA's costliest rewriting
that leaves all arithmetic as it is; the rest of XLA's rewriting of programs stays on. Tests marked
`optimised` are compiled as for users, which takes three times as long: they hold clipping, noise
and samples against everything that a compiler may do to them, or run longer than they compile.
`optimised("a", "b")` marks the parameters with an `a` or a `b` in their name alone. Processes that
tests start are compiled quickly.

With `JAXMINIMAX_TEST_PROGRAMS=FOLDER` programs are kept for the next session, which loads them. For
one session that costs more than it gives: few programs are in two tests, and to write all of them
takes a twentieth of the time. Processes that tests start know nothing of the folder: they would
find files that are half written.
"""

import contextlib
import ctypes
import functools
import gc
import importlib
import os
import pathlib

import jax
import pytest

from jaxminimax.base import programs

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

QUICK = {
    "xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_disable_hlo_passes": "simplify-while-loops,while-loop-invariant-code-motion,"
                              "constant_folding,reshape-mover,simplify-conditional"}
# of tests marked `optimised`: as the library compiles brief programs, if that is asked for
OTHERWISE = programs.BRIEF if os.environ.get("JAXMINIMAX_TEST_EFFORT") == "brief" else {}
HERE = pathlib.Path(__file__).parent
# started first, and by one worker: processes of their own, which all tests of the file wait for
FIRST = ("placement/test_sharding",)
# tests of benchmarks are slow ones, but for lower bounds, fuzzed charges, planted bugs, and the
# charge of a release that stands in an example
HELD = {f"benchmarks/test_{name}" for name in (
    "fuzz", "lower_bounds", "mutants", "spider", "table_attack")}
# sums, norms, samples and noise: what the arithmetic of another device could break
DEVICE = ("base/test_arguments", "gradients/test_clipping", "gradients/test_ghost",
          "gradients/test_integer_sums", "gradients/test_summation", "mechanism/test_sampling",
          "noise/test_floats", "noise/test_sampler", "releases/test_groups", "releases/test_sums")


def place(path) -> str:
    """A file below this folder, without its ending."""
    return path.relative_to(HERE).with_suffix("").as_posix()


def all_slow(path) -> bool:
    """Whether all tests of a file are slow, of whatever name."""
    return place(path).startswith("benchmarks/test_") and place(path) not in HELD


def optimised(item) -> bool:
    """Whether a test is compiled as for users."""
    name = item.name.partition("[")[2]
    return any(not mark.args or any(part in name for part in mark.args)
               for mark in item.iter_markers("optimised"))


def quick_flags() -> str:
    """`QUICK` as XLA reads it from the environment."""
    return " ".join(f"--{name}={str(value).lower()}" for name, value in QUICK.items())


class Effort:
    """How programs are compiled from now on."""

    quick = False

    def set(self, quick: bool) -> None:
        if quick != self.quick:
            jax.clear_caches()  # nothing runs that was compiled the other way
        self.quick = quick

    def options(self, sound):
        """`sound`, which makes the options of a compilation, and `QUICK` while that is wanted."""
        @functools.wraps(sound)
        def changed(*args, env_options_overrides=None, **kwargs):
            more = QUICK if self.quick else OTHERWISE
            return sound(*args, env_options_overrides=more | (env_options_overrides or {}),
                         **kwargs)

        return changed


class Memory:
    """Programs are forgotten when this process holds much memory: all of a lane would take 8 GB."""

    limit = 4.0 * 2**30

    @staticmethod
    def held() -> float:
        """Bytes in memory; 0 where the system does not say."""
        try:
            pages = pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        except OSError:
            return 0.0
        return float(int(pages) * os.sysconf("SC_PAGE_SIZE"))

    def keep_small(self) -> None:
        if self.held() > self.limit:
            jax.clear_caches()
            with contextlib.suppress(AttributeError, OSError):  # of other C libraries
                ctypes.CDLL(None).malloc_trim(0)
            self.limit = max(self.limit, self.held() + 2.0**30)


EFFORT = Effort()
MEMORY = Memory()


def put_whole(folder, key, program):
    """JAX's own `put`, but that a program appears in one piece: the other worker may be reading."""
    path = folder.path / f"{key}-cache"
    if not path.exists():
        part = path.with_name(f"{os.getpid()}.part")
        part.write_bytes(program)
        part.replace(path)


def pytest_configure(config):
    """Where a JAX has no such functions, everything is compiled, and as for users."""
    from jax._src import compiler, lru_cache

    # tests replace functions of the library: their programs reach no folder of the developer's
    jax.config.update("jax_compilation_cache_dir", None)
    folder = os.environ.get("JAXMINIMAX_TEST_PROGRAMS")
    if folder and getattr(lru_cache, "_CACHE_SUFFIX", None) == "-cache":
        lru_cache.LRUCache.put = put_whole
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)

    tiny = jax.jit(lambda x: x + 1).lower(1.0)
    for name, value in list(QUICK.items()):
        try:
            tiny.compile(compiler_options={name: value})
        except jax.errors.JaxRuntimeError:  # newer compilers have no older generator
            del QUICK[name]
    if hasattr(compiler, "get_compile_options"):
        compiler.get_compile_options = EFFORT.options(compiler.get_compile_options)
    EFFORT.quick = True  # for what modules of tests compute when they are imported


def pytest_ignore_collect(collection_path, config):
    """Files of slow tests alone are not imported for the quick ones."""
    return True if all_slow(collection_path) and "not slow" in config.option.markexpr else None


def pytest_collection(session):
    """The second of two workers imports the files from the last one on: each compiles half of them.

    What one has compiled the other loads. The first lane on a new machine starts earlier by that.
    """
    if (os.environ.get("PYTEST_XDIST_WORKER") == "gw1"
            and session.config.args_source is pytest.Config.ArgsSource.TESTPATHS):
        for path in sorted(HERE.rglob("test_*.py"), reverse=True):
            if pytest_ignore_collect(path, session.config):
                continue
            with contextlib.suppress(Exception):  # which the collection reports
                importlib.import_module(".".join(path.relative_to(HERE.parent).with_suffix(
                    "").parts))


def pytest_collection_modifyitems(items):
    """Tests that are compiled as for users come last: what was compiled is forgotten once."""
    for item in items:
        if place(item.path) in DEVICE:
            item.add_marker("gpu")
        if all_slow(item.path):
            item.add_marker("slow")
    items.sort(key=lambda item: (optimised(item), place(item.path) not in FIRST))


def pytest_collection_finish():
    """Garbage is looked for less often, and not among what was imported: an eighth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Around the fixtures of a file too, which its first test makes."""
    EFFORT.set(quick=not optimised(item))
    MEMORY.keep_small()
    return (yield)


@pytest.fixture(scope="session", autouse=True)
def quick_children():
    """Processes that tests start compile quickly too; this process has read its flags already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", quick_flags())
        yield


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(20240)


@pytest.fixture
def real_noise(monkeypatch):
    """The accountant as for sums and noise that are real numbers: their cost has closed forms."""
    from jaxminimax.mechanism import costs, factorisation

    monkeypatch.setattr(costs, "charged", lambda z, *_, **__: z)
    monkeypatch.setattr(factorisation, "charged_correlated", lambda _, real, *__, **___: real)
    monkeypatch.setattr(costs, "sampler_cost", lambda *_, **__: costs.Charge())
