"""Records by number from any object: the same rows, asked for once, and no other refusals than due.

What the libraries give whose data sets these stand for: Hugging Face a list of dicts by
`__getitems__`, ArrayRecord a list of bytes by `__getitems__`, Grain one record by `__getitem__`.
"""

import jax
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.base.identity import People, rows_each
from jaxminimax.drivers import fingerprint
from jaxminimax.drivers.long_runs import Supply

N, D = 60, 3
A, B = np.random.default_rng(0).normal(size=(2, N, D))
PROBLEM = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
KEY = jax.random.key(3)


class One:
    """One record for a number; counts what it is asked for, and fails on demand."""

    def __init__(self, *columns):
        self.columns, self.asked, self.broken = columns, [], None

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, number):
        self.asked.append(number)
        if self.broken is not None:
            return self.broken(number)
        found = tuple(x[number] for x in self.columns)
        return found if len(found) > 1 else found[0]


class Many(One):
    """Records for a list of numbers."""

    def __getitem__(self, number):
        raise AssertionError("one by one")

    def __getitems__(self, numbers):
        assert type(numbers) is list
        assert all(type(number) is int for number in numbers)
        self.calls = getattr(self, "calls", 0) + 1
        return [One.__getitem__(self, number) for number in numbers]


def settings(iterations=6, population=N):
    query = jmm.Query(clip=Saddle(2.0, 1.0), noise_multiplier=Saddle(2.0, 2.0),
                      population=population, sampling=jmm.Poisson(rate=0.2))
    return jmm.sgda.Hyper(query=query, step=Saddle(0.2, 0.2), iterations=iterations)


def fitted(data, **how):
    start = Saddle(np.zeros(D), np.zeros(D))
    return jmm.fit(KEY, start, data, settings(), jmm.sgda, PROBLEM,
                   **{"delta": 1e-5, "every": 2, "progress": False, **how})


@pytest.mark.slow
@pytest.mark.parametrize("kind", [One, Many])
def test_the_rows_of_a_share_are_those_of_arrays_each_asked_for_once(kind):
    """By leaf and by record, beside an array."""
    sources = kind(A, B), kind(A)
    by_record, by_leaf = jmm.placement.HostData(sources[0]), jmm.placement.HostData((sources[1], B))
    windows = []
    for data in (jmm.placement.HostData((A, B)), by_record, by_leaf):
        for source in sources:
            source.asked, source.calls = [], 0
        with Supply(KEY, jmm.sgda.mechanism(settings()), data, [6], 0, 6) as supply:
            windows += [share for share, _ in supply.piece(6)]
        for source in sources:
            assert source.asked == sorted(set(source.asked))
            assert getattr(source, "calls", 0) <= 1
    for other in windows[1:]:
        assert jax.tree.structure(other.rows) == jax.tree.structure(windows[0].rows)
        for x, y in zip(jax.tree.leaves(other), jax.tree.leaves(windows[0]), strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


@pytest.mark.slow
def test_a_reader_that_fails_stops_the_run_and_the_run_goes_on_as_if_it_had_not(tmp_path):
    """Before the release whose rows it was asked for; what it raises is no refusal."""
    full = fitted(jmm.placement.HostData((A, B)))
    books = jmm.accounting.Ledger(epsilon=50.0, delta=1e-3, path=tmp_path / "books.json")
    states, source = [], Many(A, B)

    def fail(state):
        states.append(state)
        source.broken = lambda number: (A[number], B[number, :-1])  # as if a row were cut off

    how = dict(checkpoint=tmp_path / "saved", ledger=books, name="run")
    with pytest.raises(RuntimeError, match="stays charged") as stated:
        fitted(jmm.placement.HostData(source, rounds=1), callback=fail, **how)
    assert len(states) <= 2  # a share was ahead
    assert "shapes" in str(stated.value.__cause__)
    spent = books.epsilon
    assert spent > 0
    source.broken = None
    resumed = fitted(jmm.placement.HostData(source), **how)
    for x, y in zip(jax.tree.leaves(resumed.state), jax.tree.leaves(full.state), strict=True):
        np.testing.assert_array_equal(x, y)
    assert books.epsilon == spent


def test_a_failure_on_a_record_before_the_first_round_leaves_the_run_charged(tmp_path):
    """A ValueError of the library's own refusals would give the charge back."""
    def raising(number):
        raise ValueError(f"the label of record {number} is unknown")

    books = jmm.accounting.Ledger(epsilon=50.0, delta=1e-3, path=tmp_path / "books.json")
    source = Many(A, B)
    data = jmm.placement.HostData(source)
    source.broken = raising
    with pytest.raises(RuntimeError, match="stays charged") as stated:
        fitted(data, ledger=books, name="run")
    assert not any(char.isdigit() for char in str(stated.value))
    assert books.epsilon > 0


def test_the_fingerprint_is_that_of_the_arrays_and_reads_each_record_once():
    own, source = b"secret", Many(A, B)
    data = jmm.placement.HostData(source)
    source.asked = []
    mark = fingerprint.hash_rows(own, data)
    assert source.asked == list(range(N))
    assert mark == fingerprint.hash_rows(own, (A, B)) == fingerprint.hash_rows(
        own, jmm.placement.HostData((One(A), B)))
    changed = B.copy()
    changed[N - 1, 2] += 1
    others = ((A, changed), (A[::-1], B), (A[:-1], B[:-1]), (A, B.astype(np.float32)), (B, A))
    assert len({mark, *(fingerprint.hash_rows(own, jmm.placement.HostData(One(*x)))
                        for x in others)}) == 6


@pytest.mark.slow
def test_what_looks_at_data_by_their_shapes_knows_readers():
    y = (A[:, 0] > 0).astype(np.float64)
    y[7] = 5.0
    problem = jmm.problems.auc(jmm.problems.linear_scorer, prior=0.5, radius=Saddle(9.0, 9.0))
    for data in (jmm.placement.HostData(One(A, y)), jmm.placement.HostData((One(A), y)),
                 jmm.placement.HostData((A, y))):
        report = jmm.check(problem, jmm.problems.auc_start(np.zeros(D)), data, settings(),
                           measure=False)
        assert report.records["number"] == N


def test_persons_may_come_one_by_one():
    """What a statement says of them is read off a record."""
    y, there = np.zeros((N, 2)), np.ones((N, 2), bool)
    y[3, 0], y[5, 1], there[5, 1] = 5.0, 5.0, False  # the second is no row of theirs
    source = One(A)
    source.broken = lambda number: People((np.stack([A[number]] * 2), y[number]), there[number])
    data = jmm.placement.HostData(source)
    assert rows_each(data) == 2
    rows = data.take(np.arange(N))
    assert rows.present.tolist() == there.tolist()
    np.testing.assert_array_equal(rows.rows[1], y)


class Stream(One):
    def __next__(self):
        return None


class Shuffled(One):
    def __getitem__(self, number):
        self.turn = getattr(self, "turn", 0) + 1
        return A[(number + self.turn) % N]


class Short(Many):
    def __getitems__(self, numbers):
        return super().__getitems__(numbers)[1:]


class Frame(One):
    iloc = None


def decoded(make):
    source = One(A)
    source.broken = make
    return source


@pytest.mark.parametrize(("source", "match"), [
    (iter(A), "by number"), (Stream(A), "by number"), (frozenset({1.0}), "by number"),
    (Shuffled(A), "two ways"), (Short(A), "one for each number"), (Frame(A), "to_numpy"),
    (One(A[:0]), "at least one record"), ("text", "readers"),
    (decoded(lambda number: b"1"), "decode bytes"),
    (decoded(lambda number: [1.0, 2.0]), "np.asarray"),
    (decoded(lambda number: np.array("a")), "no number"),
    (decoded(lambda number: np.zeros(number + 1)), "other shapes"),
    ((One(A), B[:-1]), "one leading axis"),
])
def test_what_has_no_records_by_number_is_refused(source, match):
    with pytest.raises(ValueError, match=match):
        jmm.placement.HostData(source)
