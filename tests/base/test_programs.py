"""Programs that are compiled briefly: which ones they are, and that a run stays with its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.base import programs
from jaxminimax.drivers import saved_runs


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
