"""Data on the host: the same run, and rows that are not the release's make NaN.

That no bit depends on where the data are is tested with optimised programs, in `test_release`.
"""

import dataclasses
import mmap
import threading
import tracemalloc
import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.privacy.narrow import Narrow
from jaxminimax import Saddle
from jaxminimax.drivers import fingerprint
from jaxminimax.drivers.long_runs import Supply
from jaxminimax.placement.host_data import Window
from jaxminimax.placement.sharding import arrays
from jaxminimax.releases import release_keys
from jaxminimax.releases.reading import sample_of_release
from tests.helpers.lanes import rest_nightly

N, D = 200, 3
PROBLEM = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
START = Saddle(jnp.zeros(D), jnp.zeros(D))
KEY = jax.random.key(3)
ROWS = tuple(np.random.default_rng(0).normal(size=(2, N, D)))


def hyper(sampling=None, population=N, algorithm=jmm.sgda, iterations=10):
    query = jmm.Query(clip=Saddle(2.0, 1.0), noise_multiplier=Saddle(2.0, 2.0),
                      population=population, sampling=sampling or jmm.Poisson(rate=0.1))
    return algorithm.Hyper(query=query, step=Saddle(0.2, 0.2), iterations=iterations)


def fitted(data, hyper, algorithm=jmm.sgda, **how):
    return jmm.fit(KEY, START, data, hyper, algorithm, PROBLEM,
                   **{"delta": 1e-5, "every": 4, "progress": False, **how})


def close(found, wanted):
    """But for the order of sums."""
    chex.assert_trees_all_close(found, wanted, rtol=1e-12, atol=1e-14)


def mapped(folder):
    """The rows in files, which are not loaded."""
    for i, x in enumerate(ROWS):
        np.save(folder / f"{i}.npy", x)
    return tuple(np.load(folder / f"{i}.npy", mmap_mode="r") for i in range(2))


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "algorithm", "rounds"), rest_nightly([
    (jmm.Poisson(rate=0.1), jmm.sgda, 3),  # the last share of a piece is a short one
    (jmm.FixedSize(batch=20, replacement=True), jmm.sgda, None),
    (jmm.Disjoint(batch=15), jmm.extragradient, 1),
], 1))
def test_where_the_data_are_changes_nothing(sampling, algorithm, rounds, tmp_path):
    h = hyper(sampling, algorithm=algorithm)
    resident = fitted(tuple(map(jnp.asarray, ROWS)), h, algorithm)
    assert bool(jnp.all(jnp.isfinite(resident.state.z.w)))
    seen = []
    sent = fitted(jmm.placement.HostData(mapped(tmp_path), rounds=rounds), h, algorithm,
                  callback=lambda state: seen.append(int(state.spent)))
    close(sent.state, resident.state)
    assert sent.statement == resident.statement
    a_round = 2 if algorithm is jmm.extragradient else 1
    assert seen == [4 * a_round, 8 * a_round, 10 * a_round]


@pytest.mark.slow
def test_parts_are_read_where_they_are():
    """Two parts of 100 records: rows are counted in all of the data."""
    mechanism = jmm.Repeat(query=hyper(population=N // 2).query, times=2, parts=2)
    with Supply(KEY, mechanism, jmm.placement.HostData(ROWS), [4], 0, 4) as supply:
        ((window, count),) = supply.piece(4)
    assert count == 4
    both = jax.jit(lambda data, spent: jmm.release(KEY, mechanism, spent, PROBLEM, START, data))
    for spent in range(4):
        assert np.all(np.asarray(window.numbers[spent]) // 100 == spent // 2)
        close(both(window, jnp.int32(spent)),
              both(tuple(map(jnp.asarray, ROWS)), jnp.int32(spent)))


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoint_wherever_its_data_are(tmp_path):
    def crash(state):
        if state.spent == 8:
            raise KeyboardInterrupt

    h = hyper()
    full = fitted(jmm.placement.HostData(ROWS, rounds=3), h, checkpoint=tmp_path / "whole")
    for name, then in (("a", jmm.placement.HostData(ROWS, rounds=3)),
                       ("b", tuple(map(jnp.asarray, ROWS)))):
        with pytest.raises(KeyboardInterrupt):
            fitted(jmm.placement.HostData(ROWS, rounds=3), h, checkpoint=tmp_path / name,
                   callback=crash)
        resumed = fitted(then, h, checkpoint=tmp_path / name)
        (chex.assert_trees_all_equal if name == "a" else close)(resumed.state, full.state)
    again = fitted(jmm.placement.HostData(ROWS), h,
                   checkpoint=tmp_path / "whole")  # nothing is left to do
    chex.assert_trees_all_equal(again.state, full.state)
    assert not any(t.name.startswith("rows ahead") for t in threading.enumerate())


# --- what was sent counts only if it is what is read ---


@pytest.fixture(scope="module")
def window():
    """Rows of releases 4, ..., 7 of ten."""
    with Supply(KEY, jmm.sgda.mechanism(hyper()), jmm.placement.HostData(ROWS), [4], 4,
                10) as supply:
        ((actual, count),) = supply.piece(4)
    assert count == 4
    return actual


@jax.jit
def released(key, spent, data):
    return jmm.release(key, jmm.sgda.mechanism(hyper()), spent, PROBLEM, START, data).w


@pytest.mark.slow
def test_the_rows_sent_are_the_sample_of_each_release(window):
    drawn = jax.jit(lambda spent: sample_of_release(KEY, jmm.sgda.mechanism(hyper()), spent))
    for place in range(4):
        sample = drawn(jnp.int32(4 + place))
        np.testing.assert_array_equal(window.numbers[place], sample.rows)
        for sent, x in zip(window.rows, ROWS, strict=True):
            np.testing.assert_array_equal(sent[place], x[np.asarray(sample.rows)])
        direct = released(KEY, jnp.int32(4 + place), tuple(map(jnp.asarray, ROWS)))
        close(released(KEY, jnp.int32(4 + place), window), direct)


@pytest.mark.slow
@pytest.mark.parametrize("spent", [0, 3, 8, 9, 10, -1])
def test_a_release_outside_the_window_is_nan(window, spent):
    assert bool(jnp.all(jnp.isnan(released(KEY, jnp.int32(spent), window))))


@pytest.mark.slow
def test_rows_of_another_key_or_release_are_nan(window):
    at = jnp.int32(5)
    assert bool(jnp.all(jnp.isfinite(released(KEY, at, window))))
    assert bool(jnp.all(jnp.isnan(released(jax.random.key(4), at, window))))
    shifted = dataclasses.replace(window, first=window.first + 1)
    assert bool(jnp.all(jnp.isnan(released(KEY, at, shifted))))
    counts = int(jnp.argmax(window.valid[1]))
    for one in (window.numbers.at[1, counts].add(1), window.numbers.at[1, counts].add(-1)):
        one = dataclasses.replace(window, numbers=one)
        assert bool(jnp.all(jnp.isnan(released(KEY, at, one))))  # a single row is another one
    for name in ("valid", "fits"):
        one = getattr(window, name).at[1].set(~getattr(window, name)[1])
        assert bool(jnp.all(jnp.isnan(released(KEY, at, dataclasses.replace(
            window, **{name: one})))))


@pytest.mark.slow
def test_a_record_that_no_device_can_hold_is_not_told_by_a_warning():
    """It would say in which runs the record was sampled."""
    rows = tuple(x.copy() for x in ROWS)
    rows[0][:] = 1e300
    made = jmm.sgda.mechanism(hyper(iterations=2))
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        with Supply(KEY, made, jmm.placement.HostData(rows), [2], 0, 2) as supply:
            ((window, _),) = supply.piece(2)
        jax.block_until_ready(window)
        fingerprint.hash_rows(b"key", jmm.placement.HostData(rows))
        arrays(rows)


@pytest.mark.slow
def test_a_sample_that_does_not_fit_is_nan_wherever_its_rows_are():
    count = 12
    made = jmm.sgda.mechanism(hyper(Narrow(rate=0.1, most=20), iterations=count))
    with Supply(KEY, made, jmm.placement.HostData(ROWS, rounds=count), [count], 0, count) as supply:
        ((window, sent),) = supply.piece(count)
    assert sent == count
    one = jax.jit(lambda data, spent: jmm.release(KEY, made, spent, PROBLEM, START, data).w)
    ahead, resident = (np.stack([one(data, jnp.int32(spent)) for spent in range(count)])
                       for data in (window, tuple(map(jnp.asarray, ROWS))))
    np.testing.assert_array_equal(np.isnan(ahead), np.isnan(resident))
    assert 0 < np.isnan(resident).all(1).sum() < count


@pytest.mark.slow
def test_a_window_has_the_rows_that_count_and_no_others(window):
    """What it reads is what was sent, and fits if nothing of it is another one."""
    stream, at = release_keys.stream(jmm.sgda.mechanism(hyper())), jnp.int32(5)
    read = jax.jit(lambda window, of, at: window.read(
        at, release_keys.Keys(KEY, stream, of).ahead()))
    sample, places, rows = read(window, at, at)
    assert 0 < np.sum(sample.valid) < sample.valid.size
    np.testing.assert_array_equal(sample.rows, window.numbers[1])
    np.testing.assert_array_equal(sample.valid, window.valid[1])
    for sent, x in zip(rows, ROWS, strict=True):
        np.testing.assert_array_equal(sent[places], x[np.asarray(sample.rows)])
    first = int(np.argmax(sample.valid))
    others = [dataclasses.replace(window, first=window.first + 1), *(
        dataclasses.replace(window, **{name: getattr(window, name).at[place].set(value)})
        for name, place, value in (
            ("numbers", (1, first), window.numbers[1, first] + 1),
            ("valid", (1, first), False), ("fits", 1, False), ("marks", (1, 0), 0)))]
    assert sample.fits
    assert not any(read(one, at, at)[0].fits for one in others)
    assert not read(window, at, at + 1)[0].fits
    assert not read(window, at + 3, at + 3)[0].fits  # beyond the last one that was sent


@pytest.mark.slow
def test_nothing_is_sent_beyond_the_budget(window):
    """A share that would reach beyond the last release repeats its rows, to no avail."""
    with Supply(KEY, jmm.sgda.mechanism(hyper()), jmm.placement.HostData(ROWS, rounds=4), [2, 4], 4,
                10) as supply:
        shares = [share for rounds in (2, 4) for share in supply.piece(rounds)]
    assert [count for _, count in shares] == [2, 4]
    last = dataclasses.replace(shares[-1][0], first=jnp.int32(10))
    assert bool(jnp.all(jnp.isnan(released(KEY, jnp.int32(10), last))))


def test_rows_sent_for_another_description_are_refused(window):
    for other, match in ((hyper(population=N + 1), "population"),
                         (hyper(jmm.FixedSize(batch=20)), "another description"),
                         (hyper(jmm.Poisson(rate=0.2)), "another description"),
                         (hyper(jmm.Full()), "another description")):
        with pytest.raises(ValueError, match=match):
            jax.eval_shape(lambda w, h=other: jmm.release(KEY, jmm.sgda.mechanism(h), jnp.int32(4),
                                                          PROBLEM, START, w), window)


# --- the pump ---


def test_one_share_is_gathered_while_another_is_used(monkeypatch):
    """And no more than one: the device holds what it works on and what comes next."""
    begun = []
    take = jmm.placement.HostData.take
    monkeypatch.setattr(jmm.placement.HostData, "take",
                        lambda self, numbers: begun.append(numbers.shape) or take(self, numbers))
    mechanism = jmm.sgda.mechanism(hyper())
    with Supply(KEY, mechanism, jmm.placement.HostData(ROWS, rounds=2), [4, 4, 2], 0, 10) as supply:
        for used, _ in enumerate((s for n in (4, 4, 2) for s in supply.piece(n)), 1):
            assert used <= len(begun) + 1
            assert len(begun) <= used + 1
    assert len(begun) == 5
    assert {shape[0] for shape in begun} == {2}


def test_a_failure_to_read_reaches_the_caller(monkeypatch):
    def broken(self, numbers):
        raise OSError("the disk is gone")

    monkeypatch.setattr(jmm.placement.HostData, "take", broken)
    with pytest.raises(OSError, match="disk"):
        fitted(jmm.placement.HostData(ROWS), hyper())


@pytest.mark.parametrize(("dtype", "order"), [("<f4", "C"), (">f4", "C"), ("<f4", "F")])
def test_a_mapped_file_is_never_loaded(tmp_path, dtype, order):
    shape = (2**16, 256)  # 64 MiB, of which nothing is on the disk
    path = tmp_path / "x.npy"
    np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape,
                              fortran_order=order == "F")[77] = 5.0
    data = jmm.placement.HostData(np.load(path, mmap_mode="r"))
    tracemalloc.start()
    actual = data.take(np.array([[77, 3], [2**16 - 1, 77]]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    assert actual.shape == (2, 2, 256)
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual.sum(-1), [[1280, 0], [0, 1280]])


def test_files_are_not_read_around_rows_at_random_places(tmp_path):
    """The system is asked before a run of secret samples, and taken back after it."""
    class Advised(mmap.mmap):
        calls: list = []  # noqa: RUF012

        def madvise(self, advice):
            self.calls.append(advice)

    rows = np.memmap(tmp_path / "x", np.float32, "w+", shape=(N, 2))
    with open(tmp_path / "x", "r+b") as file:
        view = np.frombuffer(Advised(file.fileno(), 0), np.float32).reshape(N, 2)
    for sampling, stated in ((jmm.Disjoint(batch=15), []),
                             (jmm.Poisson(rate=0.1), [mmap.MADV_RANDOM, mmap.MADV_NORMAL])):
        with Supply(KEY, jmm.sgda.mechanism(hyper(sampling)),
                    jmm.placement.HostData((view[:], rows)), [2],
                    0, 10) as supply:
            assert sum(count for _, count in supply.piece(2)) == 2
        assert Advised.calls == stated


def test_rows_are_not_printed(window):
    assert "rows" not in repr(jmm.placement.HostData(ROWS))
    assert not {"rows", "numbers"} & set(repr(window).replace("=", " ").replace("(", " ").split())


# --- what is refused ---


@pytest.mark.parametrize(("h", "algorithm", "match"), [
    (hyper(jmm.Full()), jmm.sgda, "every record"),
    (hyper(jmm.FixedSize(batch=N)), jmm.sgda, "every record"),
    (hyper(population=N + 1), jmm.sgda, "201"),
])
def test_runs_that_gain_nothing_or_do_not_fit_are_refused(h, algorithm, match):
    with pytest.raises(ValueError, match=match):
        fitted(jmm.placement.HostData(ROWS), h, algorithm)


def test_algorithms_that_choose_their_records_are_refused():
    group = jmm.Parallel(parts=(jmm.mechanism.TreeSums(clip=1.0, noise_multiplier=1.0, leaves=4),))
    gradients = jmm.Repeat(query=jmm.GroupGradients(clip=1.0, noise_multiplier=1.0, sizes=(9, 9),
                                                    sampling=jmm.Full()), times=3)
    for mechanism in (group, gradients):
        with pytest.raises(ValueError, match="repeat one query"):
            Supply(KEY, mechanism, jmm.placement.HostData(ROWS), [3], 0, 3)


def test_host_data_are_for_fit_alone():
    run = jax.jit(jmm.run, static_argnames=("algorithm", "problem"))
    for go in (run, jmm.run):
        with pytest.raises(ValueError, match="only fit"):
            go(KEY, START, jmm.placement.HostData(ROWS), hyper(), jmm.sgda, PROBLEM)


@pytest.mark.parametrize("how", ["mesh", "shards", "both"])
def test_host_data_are_for_one_device(how, tmp_path):
    """Rows on the host and rows on a mesh are two ways to have more; nothing is charged."""
    settings = {"mesh": jax.make_mesh((1,), ("data",)), "shards": 2}
    settings = settings if how == "both" else {how: settings[how]}
    ledger = jmm.accounting.Ledger(tmp_path / "ledger.json", epsilon=10.0, delta=1e-4)
    with pytest.raises(ValueError, match=r"HostData are for one device.*the arrays themselves"):
        fitted(jmm.placement.HostData(ROWS), hyper(), ledger=ledger, **settings)
    assert not ledger.statement().runs
    with pytest.raises(ValueError, match="HostData stay on the host"):
        jmm.placement.shard(jmm.placement.HostData(ROWS), jax.make_mesh((1,), ("data",)))


class Many:
    """More records than a row number of 32 bits counts, of which none is asked for."""

    def __len__(self):
        return 2**31

    def __getitem__(self, number):
        raise AssertionError("a record was read")


@pytest.mark.parametrize("rows", [Many(), np.broadcast_to(np.float32(1), (2**31, 2)),
                                  (np.zeros(3), Many())])
def test_more_records_than_a_row_number_counts_are_refused_unread(rows):
    with pytest.raises(ValueError, match=r"fewer than 2\*\*31 records, got 2147483648.*fewer"):
        jmm.placement.HostData(rows)


@pytest.mark.parametrize("rows", [
    [1.0, 2.0], jnp.zeros((4, 2)), (np.zeros((4, 2)), np.zeros(5)), np.zeros(()), (),
    np.array(["a", None], object),
])
def test_other_things_than_arrays_are_refused(rows):
    with pytest.raises(ValueError, match="HostData"):
        jmm.placement.HostData(rows)


def test_a_share_has_at_least_one_round():
    with pytest.raises(ValueError, match="rounds"):
        jmm.placement.HostData(ROWS, rounds=0)
    assert isinstance(jmm.placement.HostData(ROWS, rounds=1), jmm.placement.HostData)
    assert Window.__name__ not in dir(jmm)
