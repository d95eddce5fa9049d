"""What is compiled quickly for tests, and what as for users."""

import pathlib

import conftest
import jax
import jax.numpy as jnp
import pytest


class Item:
    """A test with one mark."""

    def __init__(self, name, *args):
        self.name, self.args = name, args

    def iter_markers(self, name):
        assert name == "optimised"
        yield pytest.mark.optimised(*self.args).mark


def test_a_mark_holds_for_the_parameters_that_it_names_or_for_all():
    assert conftest.optimised(Item("test_all"))
    assert conftest.optimised(Item("test_some[full-ghost]", "ghost", "vmap"))
    assert not conftest.optimised(Item("test_ghost[full-microbatch]", "ghost", "vmap"))


@pytest.mark.parametrize("name", ["gradients", "ghost", "integer_noise", "joint", "noise",
                                  "release", "release_groups", "sampling"])
def test_the_door_and_what_it_rests_on_are_compiled_as_for_users_too(name):
    text = (pathlib.Path(__file__).parent / f"test_{name}.py").read_text()
    assert "@pytest.mark.optimised" in text


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
