"""What is compiled quickly for tests, and what as for users."""

import pathlib

import conftest
import jax
import jax.numpy as jnp
import pytest


def test_the_door_and_what_it_rests_on_are_compiled_as_for_users():
    door = {"test_gradients", "test_release", "test_release_groups", "test_joint", "test_noise",
            "test_sampling"}
    assert door <= conftest.OPTIMISED
    here = {p.stem for p in pathlib.Path(__file__).parent.glob("test_*.py")}
    assert here >= conftest.OPTIMISED


def test_options_are_changed_while_that_is_wanted_and_those_of_a_program_stay():
    effort = conftest.Effort()
    options = effort.options(lambda env_options_overrides: env_options_overrides)
    own = {"xla_backend_optimization_level": 3}
    assert (options(), options(env_options_overrides=own)) == ({}, own)
    effort.quick = True
    assert options() == conftest.QUICK
    assert options(env_options_overrides=own) == conftest.QUICK | own


@pytest.mark.slow
def test_nothing_runs_that_was_compiled_the_other_way():
    traces = []
    effort = conftest.Effort()
    program = jax.jit(lambda x: traces.append("once") or x + 1)
    for quick in (False, False, True, True, False):
        effort.set(quick)
        program(jnp.zeros(2))
    assert traces == ["once"] * 3
