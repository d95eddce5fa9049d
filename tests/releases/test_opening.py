"""All releases: when they end, what they refuse, and that no two uses share a key."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.base.random_bits import fold_in
from jaxminimax.mechanism.description import Kind
from jaxminimax.releases import reading, release_keys
from jaxminimax.releases.groups import (
    release_group_gradient,
    release_group_index,
    release_group_losses,
    release_loss,
    release_weighted_gradient,
)
from jaxminimax.releases.held_out import release_held_out_bound
from jaxminimax.releases.solutions import release_group_solution, release_resolvent
from jaxminimax.releases.stream import next_pair, release_leaf
from jaxminimax.releases.sums import noisy_operator, release

KEY, ZERO = jax.random.key(3), jnp.int32(0)
N, SIZES = 8, (4, 6)
ROWS = jnp.linspace(-1.0, 1.0, 2 * N).reshape(N, 2)
GROUPS = jnp.linspace(-1.0, 1.0, 24).reshape(2, 6, 2)
W = jnp.full(2, 0.1)
Z = Saddle(W, ())


def loss(w, x):
    return 0.5 * jnp.square(w @ x)


SINGLE = jmm.Problem(jmm.saddle_operator(lambda w, v, x: loss(w, x)))
BALL = SINGLE._replace(support=jmm.problems.ball(1.0).support)
GROUPED = jmm.problems.worst_group(loss, jmm.problems.ball(1.0), lipschitz=4.0, bound=2.0,
                                   smooth=2.0, convex=True)


class Case(NamedTuple):
    """A release and a description that it answers.

    Attributes:
      opened: the released, of (key, mechanism, spent, data).
      mechanism: allows `limit` releases.
      limit: of releases.
      data: as described.
      refused: what the message says of other rows.
    """

    opened: Callable[[Any, Any, Any, Any], Any]
    mechanism: Any
    limit: int
    data: Any
    refused: str


def release_cases():
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(1.0, None), population=N)
    half = dataclasses.replace(query, population=N // 2)
    in_turn = dataclasses.replace(query, bands=2,
                                  sampling=jmm.mechanism.CyclicPoisson(rate=1.0, parts=4))
    point = jmm.proximal.certified(jmm.mechanism.Resolvent(
        bound=4.0, prox=8.0, lipschitz=4.0, diameter=10.0, population=N, noise_multiplier=1.0,
        assumes="lipschitz"))
    gradients = jmm.GroupGradients(clip=1.0, noise_multiplier=1.0, sizes=SIZES)
    losses = jmm.GroupLosses(bound=1.0, noise_multiplier=1.0, sizes=SIZES, times=3)
    solution = jmm.phased_erm.certified(jmm.mechanism.GroupSolution(
        lipschitz=4.0, bound=2.0, smooth=2.0, diameter=2.0, reg_w=2.0, reg_lam=1.0, slack=0.1,
        noise_multiplier=1.0, sizes=SIZES, phases=2))
    tree = jmm.mechanism.TreeSums(clip=1.0, noise_multiplier=1.0, leaves=3)
    one = jmm.mechanism.RecordLosses(bound=1.0, noise_multiplier=1.0, times=3)
    groups = dict(data=GROUPS, refused=r"2 groups of up to 6 records: use problems\.by_group")
    return {
        "sum": Case(lambda key, m, k, x: release(key, m, k, SINGLE, Z, x).w,
                    jmm.Repeat(query=query, times=3), 3, ROWS, f"population={N}"),
        "sum of a part": Case(lambda key, m, k, x: release(key, m, k, SINGLE, Z, x).w,
                              jmm.Repeat(query=half, times=2, parts=2), 4, ROWS,
                              f"2 parts of {N // 2} records"),
        "sum of parts in turn": Case(lambda key, m, k, x: release(key, m, k, SINGLE, Z, x).w,
                                     jmm.Repeat(query=in_turn, times=5), 5, ROWS,
                                     f"population={N}"),
        "proximal point": Case(lambda key, m, k, x: release_resolvent(key, m, k, SINGLE, Z, x).w,
                               jmm.Repeat(query=point, times=2), 2, ROWS, f"population={N}"),
        "group gradient": Case(
            lambda key, m, k, x: release_group_gradient(key, m, k, GROUPED, W, x, jnp.int32(1)),
            jmm.Repeat(query=gradients, times=3), 3, **groups),
        "all groups' gradient": Case(
            lambda key, m, k, x: release_weighted_gradient(key, m, k, GROUPED, W, x,
                                                      jnp.array([0.9, 0.1])),
            jmm.Repeat(query=dataclasses.replace(gradients, groups="all"), times=3), 3, **groups),
        "group losses": Case(lambda key, m, k, x: release_group_losses(key, m, k, GROUPED, W, x),
                             losses, 3, **groups),
        "Gaussian losses": Case(lambda key, m, k, x: release_group_losses(key, m, k, GROUPED, W, x),
                                dataclasses.replace(losses, noise="gaussian"), 3, **groups),
        "largest loss": Case(lambda key, m, k, x: release_group_index(key, m, k, GROUPED, W, x),
                             dataclasses.replace(losses, only_argmax=True), 3, **groups),
        "selection": Case(lambda key, m, k, x: release_group_index(key, m, k, GROUPED, W, x),
                          jmm.mechanism.Selection(bound=1.0, noise_multiplier=1.0, sizes=SIZES,
                                                  times=3), 3,
                          **groups),
        "solution": Case(lambda key, m, k, x: release_group_solution(key, m, k, GROUPED, W, x),
                         solution, 2, **groups),
        "bound from records held out": Case(
            lambda key, m, k, x: release_held_out_bound(key, m, k, BALL, Z, x, 2.0),
            jmm.mechanism.HeldOutBound(bound=1.0, noise_multiplier=1.0, population=N, times=3), 3,
            ROWS, f"population={N}"),
        "leaf": Case(lambda key, m, k, x: release_leaf(key, m, k, SINGLE, Z, x, (ZERO,)).w,
                     tree, 3, ROWS, "the same for every array"),
        "loss": Case(lambda key, m, k, x: release_loss(key, m, k, GROUPED, W, x, (ZERO, ZERO)),
                     one, 3, GROUPS, "the same for every array"),
    }


RELEASES = release_cases()
every_release = pytest.mark.parametrize("case", RELEASES.values(), ids=RELEASES)


# --- when releases end ---


@every_release
def test_a_release_is_answered_as_often_as_described_and_then_no_more(case):
    opened = jax.jit(lambda k: case.opened(KEY, case.mechanism, k, case.data))
    answers = set()
    for spent in (-1, 0, case.limit - 1, case.limit, 2**31 - 1, -2**31):
        actual = np.asarray(opened(jnp.int32(spent)))
        if 0 <= spent < case.limit:
            assert np.all(actual >= 0 if actual.dtype == np.int32 else np.isfinite(actual))
            np.testing.assert_array_equal(actual, opened(jnp.int32(spent)))
            answers.add(actual.tobytes())
        else:
            assert np.all(actual == -1 if actual.dtype == np.int32 else np.isnan(actual))
    assert len(answers) == 2 or actual.dtype == np.int32  # each has its own noise


@every_release
@pytest.mark.parametrize(("spent", "said"), [
    (jnp.float32(1), "spent must be an integer, got float32"),
    (0.0, "spent must be an integer, got float"),
    (True, "spent must be an integer, got bool"),
    (jnp.zeros(2, jnp.int32), r"spent must be one number, got shape \(2,\)"),
])
def test_what_was_spent_is_one_integer(case, spent, said):
    with pytest.raises(ValueError, match=said):
        jax.eval_shape(lambda x: case.opened(KEY, case.mechanism, spent, x), case.data)


@every_release
def test_noise_that_was_never_set_is_no_noise_of_zero(case):
    def without(mechanism):
        if isinstance(mechanism, jmm.Repeat):
            return dataclasses.replace(mechanism, query=without(mechanism.query))
        return dataclasses.replace(mechanism, noise_multiplier=None)

    with pytest.raises(ValueError, match=r"noise_multiplier is not set: calibrate\("):
        jax.eval_shape(lambda x: case.opened(KEY, without(case.mechanism), ZERO, x), case.data)


@every_release
def test_other_rows_than_described_are_refused(case):
    """Fewer of them, or arrays that disagree."""
    unlike = (case.data, case.data[..., :-1, :])
    fewer = (case.data[..., :-1, :],) * 2
    alone = case in (RELEASES["leaf"], RELEASES["loss"])  # of which no number of rows is described
    for data in (unlike,) if alone else (unlike, fewer):
        with pytest.raises(ValueError, match=f"data has leading axes .*{case.refused}"):
            jax.eval_shape(lambda x: case.opened(KEY, case.mechanism, ZERO, x), data)


def test_a_place_has_a_number_for_each_axis_that_there_is():
    with pytest.raises(ValueError, match="named by 2"):
        reading.record_at(jnp.zeros(5), (ZERO, ZERO))
    with pytest.raises(ValueError, match="groups of up to"):
        next_pair(jnp.zeros(2, jnp.int32), ZERO, SIZES, ROWS)


# --- keys ---


def streams_of(function, *args):
    """What all keys of releases that a function makes are folded with."""
    actual = []

    def noted(key, stream, number):
        actual.append(stream)
        return made(key, stream, number)

    made = release_keys.Keys
    with mock.patch.object(release_keys, "Keys", noted):
        jax.eval_shape(function, *args)
    return actual


@every_release
@pytest.mark.parametrize("place", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_all_keys_of_a_release_are_of_its_place(case, place):
    described = dataclasses.replace(case.mechanism, place=place)
    actual = streams_of(lambda x: case.opened(KEY, described, ZERO, x), case.data)
    assert actual
    assert {stream // 256 for stream in actual} == {place}


def test_what_operators_and_public_terms_draw_is_of_a_place_too():
    problem = jmm.Problem(lambda z, x, key: Saddle(x * jax.random.normal(key, (2,)), ()),
                          random=True, public=lambda z, key: z)
    described = dataclasses.replace(RELEASES["sum"].mechanism, place=3)
    actual = streams_of(lambda x: noisy_operator(KEY, described, ZERO, problem, Z, x), ROWS)
    assert len(actual) == 2
    assert {stream // 256 for stream in actual} == {3}


def test_correlated_noise_is_of_a_place_too():
    both = Saddle(1.0, None)
    banded = jmm.Query(clip=both, noise_multiplier=both, population=N, bands=2,
                       sampling=jmm.Disjoint(batch=2))
    sums = jmm.mechanism.CorrelatedSums(clip=1.0, noise_multiplier=1.0, leaves=3, bands=2)
    for opened, described in ((RELEASES["sum"].opened, jmm.Repeat(query=banded, times=4)),
                              (RELEASES["leaf"].opened, sums)):
        placed = dataclasses.replace(described, place=3)
        actual = streams_of(lambda x, f=opened, m=placed: f(KEY, m, ZERO, x), ROWS)
        assert {stream // 256 for stream in actual} == {3}
        assert len(set(actual)) == 2


def words(keys):
    return [tuple(np.asarray(row).tolist()) for row in np.asarray(jax.random.key_data(keys))]


def nodes(most):
    """The numbers of a tree's nodes, level by level."""
    return [(2 * j - 1) << level for level in range(most.bit_length())
            for j in range(1, (most >> level) + 1)]


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_no_two_uses_of_a_runs_key_have_the_same_key(generator):
    """Kinds, numbers, sample and noise, what these are folded with, and what users make."""
    key = jax.random.key(7, impl=generator)
    numbers = jnp.asarray([*range(130), 2**16, 2**31 - 2, 2**31 - 1], jnp.uint32)
    made = words(jax.random.split(key, 300))
    made += words(jax.vmap(lambda i: jax.random.fold_in(key, i))(
        jnp.asarray([*range(300, 400), 0x6D6763, 0x647261, 2**31 - 1], jnp.uint32)))
    for kind in Kind:
        def pair(k, kind=kind):
            keys = release_keys.Keys(key, kind, k)
            return keys.sample, keys.noise

        sample, noise = jax.vmap(pair)(numbers)
        of_release = jax.vmap(lambda k, kind=kind: fold_in(
            key, k + jnp.uint32(2**31), kind))(numbers)
        made += words(of_release) + words(sample) + words(noise)
        for i in range(4):
            made += words(jax.vmap(lambda k, i=i: fold_in(k, i))(noise))
    assert len(set(made)) == len(made) > 5000


def test_a_release_of_the_first_kind_has_the_keys_that_fold_in_makes():
    """So that saved runs go on as they began."""
    for number, generator in itertools.product((0, 5, 2**31 - 1), ("threefry2x32", "rbg")):
        key = jax.random.key(7, impl=generator)
        own = jax.random.fold_in(key, jnp.uint32(2**31 + number))
        actual = release_keys.Keys(key, Kind.MEAN, jnp.int32(number))
        assert words(jnp.stack([actual.sample, actual.noise])) == words(
            jnp.stack([jax.random.fold_in(own, i) for i in (0, 1)]))


def test_nodes_of_a_tree_have_different_numbers_and_no_more_bits_than_there_are():
    assert len(set(nodes(1000))) == len(nodes(1000)) > 1990
    level = np.arange(31)
    last = (2 * ((2**31 - 1) >> level) - 1) << level
    assert last.max() < 2**32
