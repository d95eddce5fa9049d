"""Releases on a part of the data: its rows, its numbers, and what is refused."""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Problem, Query, Repeat, Saddle
from jaxminimax.releases.parts import on_part, placed

QUERY = Query(clip=Saddle(100.0, None), noise_multiplier=Saddle(0.5, None), population=6)
ALONE = Repeat(query=QUERY, times=4)
PROBLEM = Problem(operator=lambda z, x: Saddle(x, ()))
DATA, Z, KEY = 10.0 ** jnp.repeat(jnp.arange(3), 6), Saddle(jnp.zeros(()), ()), jax.random.key(0)


@functools.partial(jax.jit, static_argnames="parts")
def released(mechanism, spent, part=None, parts=3):
    """The number of a release, of all data or on a part of them."""
    with contextlib.nullcontext() if part is None else on_part(part, parts):
        return jmm.release(KEY, mechanism, spent, PROBLEM, Z, DATA).w


def test_a_release_on_a_part_is_that_of_all_parts_with_its_own_number():
    whole = dataclasses.replace(ALONE, parts=3)
    for part in range(3):
        for spent in range(4):
            assert released(ALONE, jnp.int32(spent), jnp.int32(part)) == released(
                whole, jnp.int32(4 * part + spent))


def test_numbers_and_parts_beyond_the_last_one_release_nothing():
    for part, spent in ((0, 4), (0, -1), (1, 7), (3, 0)):
        assert np.isnan(released(ALONE, jnp.int32(spent), jnp.int32(part)))


@pytest.mark.parametrize(("part", "spent"), [(2**30, 0), (-(2**30), 1)])
def test_parts_whose_numbers_overflow_release_nothing(part, spent):
    """By 32 bits they would be releases 0 and 1 of part 0."""
    with on_part(jnp.int32(part), 3):
        mechanism, number = placed(ALONE, jnp.int32(spent))
    assert (mechanism.parts, int(number)) == (3, -1)


@pytest.mark.parametrize(("spent", "message"), [
    (np.int64(2**32), "integer of 32 bits"), (jnp.bool_(True), "must be an integer")])
def test_numbers_that_begin_anew_are_refused_on_a_part(spent, message):
    with on_part(jnp.int32(0), 3), pytest.raises(ValueError, match=message):
        jmm.release(KEY, ALONE, spent, PROBLEM, Z, DATA)


def test_another_description_is_refused_on_a_part():
    with on_part(jnp.int32(0), 3), pytest.raises(ValueError, match="Only a Repeat of the whole"):
        released(dataclasses.replace(ALONE, parts=3), jnp.int32(0))
