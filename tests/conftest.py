"""float64 for closed forms; tests of float32 name it. Silent broadcasts are errors.

Most of the suite's time is XLA compiling small programs that run once. What most tests ask of
them no optimisation may change, so they are compiled without LLVM's optimisations and with the
older, faster generator of code for fusions; XLA's own rewriting of programs stays on. Files in
`OPTIMISED` are compiled as for users: they hold clipping, noise and samples against everything
that a compiler may do to them, or run longer than they compile.
"""

import functools

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

OPTIMISED = {"test_ghost", "test_gradients", "test_integer_noise", "test_joint",
             "test_noise", "test_rates", "test_release", "test_release_groups", "test_sampling"}
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


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
            more = QUICK if self.quick else {}
            return sound(*args, env_options_overrides=more | (env_options_overrides or {}),
                         **kwargs)

        return changed


EFFORT = Effort()


def pytest_configure(config):
    """Where a JAX has no such function, everything is compiled as for users."""
    from jax._src import compiler

    tiny = jax.jit(lambda x: x + 1).lower(1.0)
    for name, value in list(QUICK.items()):
        try:
            tiny.compile(compiler_options={name: value})
        except jax.errors.JaxRuntimeError:  # newer compilers have no older generator
            del QUICK[name]
    if hasattr(compiler, "get_compile_options"):
        compiler.get_compile_options = EFFORT.options(compiler.get_compile_options)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Around the fixtures of a file too, which its first test makes."""
    EFFORT.set(quick=item.path.stem not in OPTIMISED)
    return (yield)


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(20240)


@pytest.fixture
def real_noise(monkeypatch):
    """The accountant as for sums and noise that are real numbers: their cost has closed forms."""
    from jaxminimax.mechanism import costs

    monkeypatch.setattr(costs, "charged", lambda z, *_, **__: z)
    monkeypatch.setattr(costs, "realised", lambda *_, **__: costs.Charge())
