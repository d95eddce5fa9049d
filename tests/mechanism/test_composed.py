"""Several descriptions in one run: keys of their own, and no release that is not described."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.drivers.runs import whole_run
from jaxminimax.mechanism import composed
from jaxminimax.mechanism.description import Kind
from jaxminimax.releases import release_keys
from tests.helpers.lanes import rest_nightly

N, KEY = 40, jax.random.key(5)
QUERY = jmm.Query(clip=Saddle(1.0, None), population=N, noise_multiplier=Saddle(4.0, None))
AHEAD = dataclasses.replace(QUERY, clip=Saddle(2.0, None), noise_multiplier=Saddle(3.0, None))
START, DATA = Saddle(jnp.zeros(2), ()), jnp.ones((N, 2))
MOVING = jmm.Problem(lambda z, x: Saddle(x * jnp.cos(z.w), ()))
STILL = jmm.Problem(lambda z, x: Saddle(jnp.zeros_like(z.w), ()))


def repeat(query=QUERY, times=4):
    return jmm.Repeat(query=query, times=times)


def places(described):
    return [leaf.place for leaf in described.flattened()]


# --- places ---


def test_every_part_has_a_place_of_its_own_among_those_of_its_kind():
    one = repeat()
    tree = jmm.mechanism.TreeSums(clip=1.0, leaves=4)
    losses = jmm.mechanism.RecordLosses(bound=1.0, times=4)
    for several in (jmm.Sequence, jmm.Parallel):
        assert places(several(parts=(one, one, repeat(AHEAD)))) == [0, 1, 2]
        assert places(several(parts=(one, tree, losses))) == [0, 0, 0]
        assert places(several(parts=(tree, one, tree))) == [0, 0, 1]
    assert one.place == 0


def test_nested_parts_are_numbered_over_the_whole():
    inner = jmm.Parallel(parts=(repeat(), repeat()))
    outer = jmm.Sequence(parts=(repeat(), inner, jmm.mechanism.TreeSums(clip=1.0, leaves=4), inner))
    assert places(outer) == [0, 1, 2, 0, 3, 4]
    assert places(inner) == [0, 1]
    assert places(jmm.Sequence(parts=(jmm.Sequence(parts=(outer,)), repeat()))) == [
        0, 1, 2, 0, 3, 4, 5]


def test_prefix_sums_have_places_among_those_of_their_kind():
    sums = (jmm.mechanism.TreeSums(clip=1.0, leaves=4),
            jmm.mechanism.CorrelatedSums(clip=1.0, leaves=4, bands=2))
    assert places(jmm.Sequence(parts=sums)) == [0, 1]  # both round a leaf by one kind of key


def test_places_stay():
    nested = jmm.Sequence(parts=(repeat(times=1), jmm.Sequence(parts=(repeat(), repeat(AHEAD)))))
    assert places(nested) == [0, 1, 2]
    inner = nested.parts[1]
    for same in (jax.jit(lambda x: x)(nested), jax.tree.map(lambda x: 2 * x, nested),
                 nested.with_noise(3.0), dataclasses.replace(nested, in_turn=True)):
        assert places(same) == [0, 1, 2]
    for same in (jax.jit(lambda x: x)(inner), jax.tree.map(lambda x: x, inner),
                 inner.with_noise(2.0), inner.truncated(6), inner.parts[0].truncated(1)):
        assert places(same) == [1, 2][:len(places(same))]


def test_the_place_costs_and_prints_nothing():
    first, second = jmm.Sequence(parts=(repeat(), repeat())).parts
    assert second.place == 1
    assert repr(first) == repr(second)
    assert first.charges("replace_one") == second.charges("replace_one")


@pytest.mark.parametrize("place", [-1, 2**24])
def test_a_place_that_would_be_another_one_is_refused(place):
    with pytest.raises(ValueError, match="place must be in"):
        jmm.release(KEY, dataclasses.replace(repeat(), place=place), 0, STILL, START, DATA)


# --- keys ---


def test_streams_of_all_kinds_and_places_differ():

    found = [release_keys.stream(dataclasses.replace(repeat(), place=place), kind)
             for kind in Kind for place in (0, 1, 2, 255, 256, 2**24 - 1)]
    assert len(set(found)) == len(found)
    assert max(found) < 2**32
    assert found[0] == 0
    for kind in Kind:  # as before there were places
        assert release_keys.stream(repeat(), kind) == int(kind)


@pytest.mark.parametrize("several", [
    jmm.Sequence, pytest.param(jmm.Parallel, marks=pytest.mark.slow)])
def test_the_difference_of_two_parts_has_the_noise_of_both(several):
    parts = several(parts=(repeat(), repeat(AHEAD))).parts

    @jax.jit
    def both(key):
        return jnp.stack([jmm.release(key, part, jnp.int32(2), STILL, START, DATA).w
                          for part in parts])

    runs = 2000
    actual = np.asarray(jax.lax.map(both, jax.random.split(KEY, runs)), np.float64) * N
    difference = (actual[:, 0] - actual[:, 1]).ravel()
    variance = 4.0**2 + (2 * 3.0)**2
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], difference.size)
    assert low <= np.sum(difference**2) / variance <= high


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [jmm.Poisson(rate=0.5), jmm.FixedSize(batch=10)])
def test_two_parts_read_samples_of_their_own(sampling):
    from jaxminimax.releases.reading import sample_of_release

    query = dataclasses.replace(QUERY, sampling=sampling, population=1000)
    first, second = jmm.Sequence(parts=(repeat(query), repeat(query))).parts
    drawn = jax.jit(lambda: [sample_of_release(KEY, part, jnp.int32(0)).rows
                             for part in (first, second, repeat(query))])
    rows = [np.asarray(x) for x in drawn()]
    assert not np.array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[0], rows[2])


@pytest.mark.slow
def test_rows_sent_ahead_for_another_part_are_not_released():
    from jaxminimax.placement.host_data import Window
    from jaxminimax.releases.reading import described, samples_ahead

    query = dataclasses.replace(QUERY, sampling=jmm.FixedSize(batch=10))
    first, second = jmm.Sequence(parts=(repeat(query), repeat(query))).parts
    numbers, valid, fits, marks = jax.jit(
        lambda: samples_ahead(KEY, first, jnp.arange(1)))()
    window = Window(rows=DATA[numbers], numbers=numbers, valid=valid, fits=fits,
                    marks=marks, first=jnp.int32(0), population=N, described=described(first))
    for part, answered in ((first, True), (second, False)):
        g = jax.jit(lambda window, part=part: jmm.release(
            KEY, part, jnp.int32(0), MOVING, START, window))(window).w
        assert bool(jnp.all(jnp.isfinite(g))) == answered


# --- rounds ---


class Two:
    """Two releases a round, a description for each."""

    @jmm.types.pytree_dataclass
    class Hyper:
        query: Any
        ahead: Any
        iterations: int = jax.tree.static()

    class State(NamedTuple):
        z: Saddle
        average: Saddle
        spent: jax.Array

    @staticmethod
    def mechanism(hyper):
        return jmm.Sequence(parts=(repeat(hyper.ahead, hyper.iterations),
                                   repeat(hyper.query, hyper.iterations)), in_turn=True)

    @staticmethod
    def init(z, hyper):
        return Two.State(z, z, jnp.int32(0))

    @classmethod
    def update(cls, key, state, data, hyper, problem):
        z = cls.point(key, state.spent // 2, cls.mechanism(hyper), hyper,
                      functools.partial(jmm.release, problem=problem, data=data), state.z)
        return Two.State(z, z, state.spent + 2)

    @staticmethod
    def point(key, t, described, hyper, release, z):
        first, second = described.parts
        there = Saddle(z.w - release(key, first, t, z=z).w, ())
        return Saddle(z.w - release(key, second, t, z=there).w, ())


HYPER = Two.Hyper(query=QUERY, ahead=AHEAD, iterations=2)


def with_point(point):
    return type("Planted", (Two,), {"point": staticmethod(point)})


def one_part_twice(key, t, described, hyper, release, z):
    first, second = described.parts
    there = Saddle(z.w - release(key, first, t, z=z).w, ())
    release(key, second, t, z=there)
    return Saddle(z.w - release(key, first, t, z=there).w, ())


def one_part_alone(key, t, described, hyper, release, z):
    there = Saddle(z.w - release(key, described.parts[0], t, z=z).w, ())
    return Saddle(z.w - release(key, described.parts[0], t + 0, z=there).w, ())


def with_second(change):
    def point(key, t, described, hyper, release, z):
        second = described.parts[1]
        return Two.point(key, t, mock.Mock(parts=(described.parts[0], change(second))), hyper,
                         release, z)

    return point


def of_query(**values):
    return with_second(lambda part: dataclasses.replace(
        part, query=dataclasses.replace(part.query, **values)))


REFUSED = {
    "one part twice with one number": (one_part_twice, "one noise"),
    "one part for both": (one_part_alone, "never releases"),
    "no part of it": (with_second(lambda part: dataclasses.replace(part, place=7)), "place 7"),
    "another clip norm": (of_query(clip=Saddle(5.0, None)), "other settings"),
    "another noise": (of_query(noise_multiplier=Saddle(0.1, None)), "other settings"),
    "the noise of the other": (of_query(noise_multiplier=AHEAD.noise_multiplier),
                               "other settings"),
    "another sampling": (of_query(sampling=jmm.Poisson(rate=0.5)), "other settings"),
    "more releases": (with_second(lambda part: dataclasses.replace(part, times=99)),
                      "other settings"),
    "a part of another class": (with_second(lambda part: jmm.mechanism.TreeSums(clip=1.0,
                                                                                leaves=4)),
                                "release answers"),
}


def by_run(algorithm, hyper=HYPER):
    return jmm.run(KEY, START, DATA, hyper, algorithm, MOVING).state


def by_sweep(algorithm, hyper=HYPER):
    hypers = jmm.stack([hyper, hyper])
    return jmm.sweep(jax.random.split(KEY, (2, 1)), START, DATA, hypers, algorithm, MOVING).state


def by_sweep_in_turn(algorithm, hyper=HYPER):
    hypers = jmm.stack([hyper, hyper])
    return jmm.sweep(jax.random.split(KEY, (2, 1)), START, DATA, hypers, algorithm, MOVING,
                     at_once=1).state


def by_fit(algorithm, hyper=HYPER):
    return jmm.fit(KEY, START, DATA, hyper, algorithm, MOVING, delta=1e-3, progress=False).state


def by_check(algorithm, hyper=HYPER):
    return jmm.check(MOVING, START, DATA, hyper, algorithm)


def by_audit(algorithm, hyper=HYPER):
    return jmm.audit.audit(KEY, algorithm, hyper, 1e-2, runs=20, problem=MOVING, z=START,
                           pair=(DATA, DATA.at[0].set(0.0)))


DRIVERS = (by_run, by_sweep, by_sweep_in_turn, by_fit, by_check, by_audit)


@pytest.mark.parametrize("name", REFUSED)
def test_a_round_with_other_releases_than_described_is_refused(name):
    point, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=message):
        by_run(with_point(point))


@pytest.mark.slow
@pytest.mark.parametrize("driver", rest_nightly(DRIVERS, 3))
def test_every_driver_looks(driver):
    driver(with_point(Two.point))
    with pytest.raises(ValueError, match="other settings"):
        driver(with_point(REFUSED["another clip norm"][0]))


@pytest.mark.parametrize("hide_time", [False, True])
def test_a_search_looks(hide_time):
    class Alone(Two):  # runs of different lengths repeat one query
        @staticmethod
        def mechanism(hyper):
            return repeat(hyper.query, hyper.iterations)

        @classmethod
        def update(cls, key, state, data, hyper, problem):
            described = cls.changed(cls.mechanism(hyper))
            g = jmm.release(key, described, state.spent, problem, state.z, data)
            return Two.State(g, g, state.spent + 1)

        changed = staticmethod(lambda described: described)

    def search(algorithm):
        return jax.eval_shape(lambda number: whole_run(
            KEY, START, DATA, HYPER, algorithm, MOVING, (2, 3), number, hide_time), jnp.int32(0))

    search(Alone)
    longer = type("Longer", (Alone,), {"changed": staticmethod(
        lambda described: dataclasses.replace(described, times=99))})
    with pytest.raises(ValueError, match="other settings"):
        search(longer)


@pytest.mark.slow
def test_the_round_is_the_one_that_update_makes_by_itself():
    state = jax.jit(lambda state: Two.update(KEY, Two.update(
        KEY, state, DATA, HYPER, MOVING), DATA, HYPER, MOVING))(Two.init(START, HYPER))
    np.testing.assert_array_equal(by_run(Two).z.w, state.z.w)


@pytest.mark.slow
def test_numbers_that_mechanism_computes_are_no_reason_to_refuse():
    class Doubled(Two):
        @staticmethod
        def mechanism(hyper):
            twice = jax.tree.map(lambda z: 2 * z, hyper.query.noise_multiplier)
            return Two.mechanism(dataclasses.replace(hyper, query=dataclasses.replace(
                hyper.query, noise_multiplier=twice)))

    assert np.isfinite(by_run(Doubled).z.w).all()


@pytest.mark.slow
def test_a_release_inside_a_program_of_ones_own_is_not_refused_the_second_time():
    inner = jax.jit(Two.update.__func__, static_argnums=(0, 5))

    class Jitted(Two):
        @staticmethod
        def update(key, state, data, hyper, problem):
            return inner(Two, key, state, data, hyper, problem)

    first = by_run(Jitted)
    again = jmm.run(KEY, START, DATA, HYPER, Jitted, MOVING, observe=lambda state: state.spent)
    np.testing.assert_array_equal(first.z.w, again.state.z.w)


@pytest.mark.slow
@pytest.mark.parametrize("number", [
    pytest.param(lambda spent, k: spent + 0, id="in one round"),
    pytest.param(lambda spent, k: jnp.int32(k), id="in two rounds")])
def test_equal_numbers_that_are_computed_apart_are_refused(number):
    def point(key, t, described, hyper, release, z):
        for k in range(2):
            z = Saddle(z.w - release(key, described, number(2 * t, k), z=z).w, ())
        return z

    class Once(with_point(point)):
        @staticmethod
        def mechanism(hyper):
            return repeat(hyper.query, 2 * hyper.iterations)

    for driver in (by_run, by_check):
        with pytest.raises(ValueError, match="so with one noise"):
            driver(Once)


@pytest.mark.slow
def test_check_lets_branches_release_one_number():
    def point(key, t, described, hyper, release, z):
        first, second = described.parts
        there = Saddle(z.w - release(key, first, t, z=z).w, ())
        return jax.lax.cond(t < 1, lambda: Saddle(z.w - release(key, second, t, z=there).w, ()),
                            lambda: there)

    by_check(with_point(point))


# --- saved runs ---


@pytest.mark.slow
def test_a_saved_run_of_two_parts_from_before_places_is_not_gone_on_from(tmp_path):
    from jaxminimax.releases import data_flow, watch

    fit = functools.partial(jmm.fit, KEY, START, DATA, delta=1e-3, progress=False)
    before = mock.patch.object(composed._Several, "_parts_placed", lambda self, _: self.parts)
    seen = mock.patch.object(watch, "_check", return_value=None)
    flow = mock.patch.object(data_flow, "check", return_value=None)
    with before, seen, flow:
        fit(HYPER, Two, MOVING, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="another place of a part"):
        fit(HYPER, Two, MOVING, checkpoint=tmp_path)


def test_a_saved_run_of_one_kind_has_nothing_new_in_it():
    from jaxminimax.drivers.saved_runs import promise_of

    step = jmm.sgda.Hyper(query=QUERY, step=Saddle(0.1, 0.1), iterations=2)
    assert "place of a part" not in promise_of(KEY, jmm.sgda.mechanism(step), step, jmm.sgda)
    assert promise_of(KEY, Two.mechanism(HYPER), HYPER, Two)["place of a part"] == [0, 1]


# --- calibration ---


def unset(query):
    return dataclasses.replace(query, noise_multiplier=None)


@pytest.mark.parametrize("ratio", [None, 3.0])
def test_all_descriptions_are_calibrated_together(ratio):
    ahead = unset(AHEAD) if ratio is None else dataclasses.replace(
        AHEAD, noise_multiplier=Saddle(ratio, None))
    hyper = Two.Hyper(query=unset(QUERY), ahead=ahead, iterations=5)
    made = jmm.calibrate(Two, hyper, epsilon=1.0, delta=1e-3)
    one, other = (x.noise_multiplier.w for x in (made.query, made.ahead))
    assert other == pytest.approx(one * (ratio or 1.0), rel=1e-12)
    assert 0.998 < jmm.epsilon(Two.mechanism(made), 1e-3) <= 1


def test_descriptions_in_a_tuple_are_calibrated_together():
    class Listed(Two):
        @jmm.types.pytree_dataclass
        class Hyper:
            query: Any
            iterations: int = jax.tree.static()

        @staticmethod
        def mechanism(hyper):
            return jmm.Sequence(parts=tuple(repeat(q, hyper.iterations) for q in hyper.query))

    hyper = Listed.Hyper(query=(unset(QUERY), unset(AHEAD)), iterations=5)
    made = jmm.calibrate(Listed, hyper, epsilon=1.0, delta=1e-3)
    assert 0.998 < jmm.epsilon(Listed.mechanism(made), 1e-3) <= 1
    assert len({q.noise_multiplier.w for q in made.query}) == 1


def test_a_description_that_nothing_charges_is_refused_by_name():
    class Blind(Two):
        @staticmethod
        def mechanism(hyper):
            return repeat(hyper.query, hyper.iterations)

    with pytest.raises(ValueError, match=r"hyper\.ahead is not charged"):
        jmm.calibrate(Blind, HYPER, epsilon=1.0, delta=1e-3)


def test_settings_without_a_description_are_refused():
    class Hidden(Two):
        @jmm.types.pytree_dataclass
        class Hyper:
            iterations: int = jax.tree.static()

        @staticmethod
        def mechanism(hyper):
            return repeat(QUERY, hyper.iterations)

    with pytest.raises(ValueError, match="holds no description"):
        jmm.calibrate(Hidden, Hidden.Hyper(iterations=2), epsilon=1.0, delta=1e-3)


# --- audits ---


def audited(algorithm):
    return jmm.audit.audit(KEY, algorithm, HYPER, 1e-2, runs=300, problem=MOVING, z=START,
                           pair=(DATA, DATA.at[0].set(0.0)))


@pytest.mark.slow
def test_an_audit_sees_noise_that_two_releases_share():
    from jaxminimax.releases import release_keys

    sound = audited(with_point(Two.point))
    assert sound.shared == 0
    assert not sound.violated
    with mock.patch.object(release_keys, "stream",
                           lambda described, further=None: int(described.kind)):
        found = audited(with_point(Two.point))
    assert found.shared > 0.9
    assert found.violated


# --- numbers that were no numbers ---


@pytest.mark.parametrize("number", [np.int64(2**32), np.uint64(2**32), np.int64(2**32 + 1),
                                    2**32, 2**31, -(2**31) - 1, np.array(2**32)])
def test_a_number_of_releases_that_32_bits_do_not_hold_is_refused(number):
    with pytest.raises(ValueError, match="32 bits"):
        jmm.release(KEY, repeat(times=1), number, STILL, START, DATA)


@pytest.mark.slow
@pytest.mark.parametrize("number", [np.int64(1), np.uint8(1), -1, np.int64(2**31 - 1)])
def test_a_number_of_releases_that_is_not_left_is_nan(number):
    assert np.isnan(jmm.release(KEY, repeat(times=1), number, STILL, START, DATA).w).all()


def test_a_release_of_no_records_is_refused():
    none = dataclasses.replace(QUERY, population=0)
    with pytest.raises(ValueError, match="population must be an integer, at least 1"):
        jmm.release(KEY, repeat(none), 0, STILL, START, DATA[:0])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["vmap", "microbatch", "ghost", "auto"])
@pytest.mark.parametrize("n", rest_nightly([20, 300], 1))
def test_a_leaf_without_numbers_is_released(n, strategy):
    def loss(w, v, x):
        return jnp.sum(x @ w["a"]) + jnp.sum(w["none"])

    z = Saddle({"a": jnp.ones((3, 2)), "none": jnp.zeros((0, 3))}, ())
    problem = jmm.Problem(jmm.types.with_strategy(jmm.saddle_operator(loss), strategy))
    described = repeat(dataclasses.replace(QUERY, population=n))
    g = jax.jit(lambda z, x: jmm.release(KEY, described, 0, problem, z, x))(z, jnp.ones((n, 4, 3)))
    assert g.w["none"].shape == (0, 3)
    assert np.isfinite(g.w["a"]).all()


# --- what rounds may hide ---


def test_subclasses_of_a_description_do_not_share_its_place():
    class Tagged(jmm.GroupLosses):
        pass

    both = jmm.Sequence(parts=tuple(kind(bound=1.0, noise_multiplier=1.0, sizes=(2, 2))
                                    for kind in (jmm.GroupLosses, Tagged)))
    assert [part.place for part in both.parts] == [0, 1]


def test_a_run_inside_a_round_is_looked_at():
    def point(key, t, described, hyper, release, z):
        inner = jmm.sgda.Hyper(query=hyper.query, step=Saddle(0.1, 0.1), iterations=5)
        there = Two.point(key, t, described, hyper, release, z)
        data = release.keywords["data"]
        return jmm.run(key, there, data, inner, jmm.sgda, MOVING).state.z

    for driver in (by_run, by_fit, by_check):
        with pytest.raises(ValueError, match="update releases a Repeat"):
            driver(with_point(point))


def one_of_many(key, t, described, hyper, release, z):
    first, second = described.parts
    release(key, first, t, z=z)
    at = jax.vmap(lambda w: release(key, second, t, z=Saddle(w, ())).w)(
        jnp.stack([z.w, z.w + 1.0]))
    return Saddle(at.sum(0), ())


@pytest.mark.slow
def test_a_vmap_over_points_is_refused():
    for driver in (by_run, by_check):
        with pytest.raises(ValueError, match="so with one noise"):
            driver(with_point(one_of_many))


@pytest.mark.slow
def test_check_compares_noise_that_mechanism_computes():
    class Computed(Two):
        scale = 10.0

        @classmethod
        def described(cls, hyper, scale):
            louder = dataclasses.replace(hyper.ahead, noise_multiplier=Saddle(
                jnp.float32(hyper.ahead.noise_multiplier.w) * scale, None))
            return Two.mechanism(dataclasses.replace(hyper, ahead=louder))

        mechanism = classmethod(lambda cls, hyper: cls.described(hyper, 10.0))

        @classmethod
        def update(cls, key, state, data, hyper, problem):
            z = cls.point(key, state.spent // 2, cls.described(hyper, cls.scale), hyper,
                          functools.partial(jmm.release, problem=problem, data=data), state.z)
            return Two.State(z, z, state.spent + 2)

    by_check(Computed)
    with pytest.raises(ValueError, match="other settings"):
        by_check(type("Quieter", (Computed,), {"scale": 1.0}))


@pytest.mark.slow
def test_descriptions_may_be_arguments_of_an_inner_program():
    def point(key, t, described, hyper, release, z):
        inner = jax.jit(lambda t, parts, w: Two.point(
            key, t, mock.Mock(parts=parts), hyper, release, Saddle(w, ())).w)
        return Saddle(inner(t, described.parts, z.w), ())

    by_run(with_point(point))
    by_check(with_point(point))


@pytest.mark.slow
def test_check_leaves_nothing_in_programs_of_ones_own():
    inner = jax.jit(lambda key, t, z, data: Two.point(
        key, t, Two.mechanism(HYPER), HYPER, functools.partial(
            jmm.release, problem=MOVING, data=data), z))
    algorithm = with_point(lambda key, t, described, hyper, release, z: inner(
        key, t, z, release.keywords["data"]))
    by_check(algorithm)
    assert "callback" not in str(jax.make_jaxpr(inner)(KEY, jnp.int32(0), START, DATA))


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int16])
def test_a_number_that_begins_anew_before_the_last_release_is_refused(dtype):
    described = repeat(HYPER.query, 40_000)
    with pytest.raises(ValueError, match="begins anew before 40000 releases"):
        jmm.release(KEY, described, jnp.array(3, dtype), MOVING, START, DATA)


# --- several releases of a part in a round ---


class Climbing(Two):
    """Three releases of the first part in a round, in a loop, and one of the second."""

    changed = staticmethod(lambda part: part)
    each = (3, 1)

    @classmethod
    def mechanism(cls, hyper):
        return jmm.Sequence(parts=(repeat(hyper.ahead, 3 * hyper.iterations),
                                   repeat(hyper.query, hyper.iterations)),
                            in_turn=True, each=cls.each)

    @classmethod
    def update(cls, key, state, data, hyper, problem):
        first, second = cls.mechanism(hyper).parts
        t, release = state.spent // 4, functools.partial(jmm.release, problem=problem, data=data)
        z = jax.lax.fori_loop(0, 3, lambda j, z: Saddle(
            z.w - release(key, cls.changed(first), 3 * t + j, z=z).w, ()), state.z)
        z = Saddle(z.w - release(key, second, t, z=z).w, ())
        return Two.State(z, z, state.spent + 4)


def climbing(**plan):
    return type("Planted", (Climbing,), plan)


def with_query(**values):
    return staticmethod(lambda part: dataclasses.replace(
        part, query=dataclasses.replace(part.query, **values)))


def test_a_stopped_run_is_charged_for_every_release_that_it_made():
    whole = Climbing.mechanism(HYPER)
    made = [0, 0]
    for spent, part in enumerate((0, 0, 0, 1) * 2, 1):
        made[part] += 1
        charged = {one.place: one.releases() for one in whole.truncated(spent).answered()}
        assert all(charged.get(place, 0) >= number for place, number in enumerate(made))
        if part == 1:  # the end of a round
            assert [charged[0], charged[1]] == made
            assert whole.truncated(spent).truncated(1).releases() == 4
    assert whole.truncated(8).charges("replace_one") == whole.charges("replace_one")


@pytest.mark.slow
def test_a_part_may_be_released_several_times_in_a_loop():
    by_check(Climbing)

    def step(state, _):
        state = Climbing.update(KEY, state, DATA, HYPER, MOVING)
        return state, jnp.isfinite(state.z.w).all()

    _, finite = jax.jit(lambda: jax.lax.scan(step, Climbing.init(START, HYPER), length=3))()
    assert finite.tolist() == [True, True, False]  # the last round is not charged


@pytest.mark.parametrize(("planted", "message"), [
    (climbing(each=()), "charged for"),
    (climbing(changed=with_query(noise_multiplier=Saddle(1.5, None))), "other settings"),
    (climbing(changed=with_query(clip=Saddle(4.0, None))), "other settings")],
    ids=["none stated", "half of the noise", "twice the clip norm"])
def test_check_refuses_a_loop_of_releases_that_are_not_charged(planted, message):
    with pytest.raises(ValueError, match=message):
        by_check(planted)


@pytest.mark.parametrize("how", [{"each": (3, 1)}, {"each": (3,), "in_turn": True},
                                 {"each": (0, 1), "in_turn": True}])
def test_releases_of_a_round_are_stated_for_every_part(how):
    with pytest.raises(ValueError, match="each must be"):
        jmm.Sequence(parts=(repeat(), repeat(AHEAD)), **how).check()


# --- several records of a person ---


def test_records_of_a_person_in_several_sampled_parts_have_no_pair_and_are_charged_by_the_lemma():
    """In one part they are charged together; in two nothing is proved but for any mechanism."""
    drawn = repeat(dataclasses.replace(QUERY, sampling=jmm.Poisson(rate=0.5)))
    alone, both = (jmm.Parallel(parts=(drawn,) * k) for k in (1, 2))
    delta = 1e-5
    assert jmm.epsilon(alone, delta) == jmm.epsilon(both, delta)
    one, two = (jmm.epsilon(x, delta, people=2) for x in (alone, both))
    assert one == jmm.epsilon(drawn, delta, people=2) < two
    # delta of one record at half of epsilon, times 1 + e^(epsilon / 2), bounds that of two
    assert delta / 2 < jmm.delta(drawn, two / 2) * (1 + math.exp(two / 2)) <= delta
