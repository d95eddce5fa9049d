"""What the parts of `mesh_worker` share: devices, data, settings, comparisons.

To be imported before JAX is: it sets the number of devices from the command line.
"""

# ruff: noqa: E402  (JAX is imported when its flags are set)

import contextlib
import functools
import gc
import os
import pathlib
import sys
import warnings
from unittest import mock

ALONE = sys.argv[1] in ("devices", "further", "planted")
PROCESSES = 1 if ALONE else int(sys.argv[5])
os.environ["JAX_PLATFORMS"] = "cpu"
DEVICES = 8 if ALONE else 4 // PROCESSES
# compiled quickly, but with all of XLA's rewriting: operations of a program are counted
os.environ["XLA_FLAGS"] = (f"--xla_force_host_platform_device_count={DEVICES} "
                           "--xla_backend_optimization_level=0 "
                           "--xla_cpu_parallel_codegen_split_count=1 "
                           "--xla_cpu_use_fusion_emitters=false")
sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import jax
import jax.numpy as jnp
import numpy as np

import jaxminimax as jmm
from benchmarks.privacy.narrow import Narrow
from jaxminimax import Saddle
from jaxminimax.drivers import long_runs
from jaxminimax.gradients.unmoved import UnmovedWarning
from jaxminimax.placement import shard_sums

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
warnings.simplefilter("ignore", UnmovedWarning)  # as in `pyproject.toml`
gc.freeze()  # as in `conftest`
gc.set_threshold(20_000, 20, 20)
if not ALONE:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[4]}", PROCESSES, int(sys.argv[3]))

N, D, ROUNDS, DELTA = 203, 4, 6, 1e-5  # 203 is no multiple of 2
KEY = jax.random.key(3)
START = Saddle(jnp.ones(D), jnp.full(D, 0.5))
GAME = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
# a disjoint batch leaves most shards without a record
SAMPLINGS = {
    "full": jmm.Full(),
    "poisson": jmm.Poisson(rate=0.1),
    "fixed": jmm.FixedSize(batch=40),
    "narrow": Narrow(rate=0.1, most=22),
    "replacement": jmm.FixedSize(batch=40, replacement=True),
    "disjoint": jmm.Disjoint(batch=30),
}


def dataset():
    """Records far above the clip norms, tiny and not finite, in different shards."""
    a, b = (np.array(3 * jax.random.normal(k, (N, D))) for k in jax.random.split(
        jax.random.key(1)))
    a[17], b[101], a[60:63], b[180] = np.nan, np.inf, 1e9, 1e-9
    return a, b


def query(sampling, noise=1.0, **values):
    return jmm.Query(**{"clip": Saddle(2.0, 1.0), "noise_multiplier": Saddle(noise, noise),
                        "sampling": sampling, "population": N, **values})


def hyper(sampling, noise=1.0, **values):
    return jmm.sgda.Hyper(query=query(sampling, noise), step=Saddle(0.2, 0.2), iterations=ROUNDS,
                          **values)


def fitted(settings, data, mesh=None, key=KEY, z=START, algorithm=jmm.sgda, problem=GAME, **how):
    return jmm.fit(key, z, data, settings, algorithm, problem, delta=DELTA, mesh=mesh,
                   **{"every": ROUNDS, "progress": False, **how})


def apart(one, other):
    """The largest difference of two trees; where one is NaN, the other must be."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    gaps = [0.0 if np.array_equal(a, b, equal_nan=True) else float(np.nanmax(np.abs(a - b)))
            if np.array_equal(np.isnan(a), np.isnan(b)) else np.inf
            for a, b in (map(np.asarray, pair) for pair in pairs)]
    return max(gaps)


def meshed(count):
    return jax.make_mesh((count,), ("data",), devices=jax.devices()[:count])


def bits_of(state):
    """Every bit of a state."""
    return b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(state)).hex()


def refusal(what):
    """The first words of the ValueError that `what()` raises."""
    try:
        what()
    except ValueError as error:
        return str(error)
    return "no refusal"


@functools.partial(jax.jit, static_argnames="problem")
def answers(settings, data, problem=GAME, z=START):
    """What is released of the data, four times."""
    mechanism = jmm.mechanism.Repeat(query=settings, times=3)  # so the last one is refused
    return jax.lax.map(lambda k: jmm.release(KEY, mechanism, k, problem, z, data), jnp.arange(4))


def stop(at):
    def callback(state):
        if state.spent == at:
            raise KeyboardInterrupt

    return callback


def forget():
    """So that what is patched is traced again."""
    answers.clear_cache()
    long_runs._advance._usual.clear_cache()


@contextlib.contextmanager
def rows_at_once(count):
    forget()
    with mock.patch.object(shard_sums, "pass_rows", return_value=count):
        yield
    forget()
