"""What a first call costs: what an import loads, and how large a program is."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp

import jaxminimax as jmm
from jaxminimax import Saddle

HEAVY = {"dp_accounting", "scipy.stats", "scipy.special", "scipy.signal", "scipy.optimize",
         "jax.extend", "sklearn", "pandas", "matplotlib", "orbax", "tqdm", "pyarrow"}
SESSION = """
import contextlib, io, json, runpy, sys
import jaxminimax
imported, shown = sorted(sys.modules), dir(jaxminimax)
sys.argv = ["jaxminimax", "--help"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    runpy.run_module("jaxminimax", run_name="__main__")
helped = sorted(sys.modules)
jaxminimax.epsilon(jaxminimax.GroupLosses(sizes=(10, 10), bound=1.0, noise_multiplier=2.0), 1e-3)
print(json.dumps([imported, shown, helped, sorted(sys.modules)]))
"""


def test_what_the_accountant_and_the_tables_need_is_loaded_when_it_is_asked_for():
    done = subprocess.run([sys.executable, "-c", SESSION], check=True, capture_output=True,
                          text=True)
    imported, shown, helped, asked = map(set, json.loads(done.stdout))
    assert not HEAVY & imported
    assert not HEAVY & helped
    assert {"scipy.special"} <= asked  # the list tells what was loaded
    assert {"calibrate", "epsilon", "statement", "Ledger", "audit", "tables", "sgda"} <= shown


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


def test_a_program_is_of_one_size_whatever_the_data_and_the_rounds():
    sampling = jmm.Poisson(rate=1 / 50, capacity=100)
    few = program(2000, 24, 8, sampling)
    assert few == program(4000, 60, 5000, sampling) > 100
