"""A saved run goes on with what it was of: its rows in their order, its problem, its optimisers."""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tracemalloc
import types
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.drivers import fingerprint
from jaxminimax.releases import release_keys
from tests import golden

N, D = 24, 3
KEY, OWN = jax.random.key(3), b"a secret"
ROWS = tuple(np.random.default_rng(0).normal(size=(2, N, D)))
START = Saddle(jnp.zeros(D), jnp.zeros(D))
FUNCTION = f"another {fingerprint.ROUND}"


def problem(scale=1.0, weight=0.1, radius=2.0, table=(1.0, 2.0, 3.0)):
    """Made anew in every process: nothing but what it computes tells it from another."""
    table = jnp.asarray(table)
    return jmm.Problem(
        operator=jmm.saddle_operator(
            lambda w, v, x: scale * jnp.tanh(w @ (table * x[0])) - v @ x[1]),
        public=lambda z: jax.tree.map(lambda x: weight * x, z),
        project=lambda z: jax.tree.map(lambda x: jnp.clip(x, -radius, radius), z))


def hyper(optimiser=optax.sgd, **changed):
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(2.0, 2.0), population=N,
                      sampling=jmm.Disjoint(batch=N // 2))
    return jmm.sgda.Hyper(**{"query": query, "step": Saddle(0.1, 0.1), "iterations": 4,
                             "optimiser": Saddle(optimiser, optimiser), **changed})


class CrashedError(Exception):
    """Ends a run after its first piece."""


def crash(_):
    raise CrashedError


def begun(folder, data=ROWS, settings=None, task=None, algorithm=jmm.sgda, z=START, **how):
    with pytest.raises(CrashedError):
        jmm.fit(KEY, z, data, settings or hyper(), algorithm, task or problem(), delta=1e-6,
                checkpoint=folder, every=1, progress=False, callback=crash, **how)


def gone_on(folder, data=ROWS, settings=None, task=None, algorithm=jmm.sgda, z=START, **how):
    return jmm.fit(KEY, z, data, settings or hyper(), algorithm, task or problem(), delta=1e-6,
                   checkpoint=folder, every=1, progress=False, **how)


def one_ulp(rows):
    x = rows[0].copy()
    x[7, 1] = np.nextafter(x[7, 1], 9)
    return (x, rows[1])


def swapped(rows, i=3, j=19):
    order = np.arange(N)
    order[[i, j]] = order[[j, i]]
    return tuple(x[order] for x in rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "a"
    begun(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("other", [
    lambda rows: tuple(x[::-1] for x in rows), swapped, one_ulp,
    lambda rows: rows[::-1], lambda rows: (rows[0], np.roll(rows[1], 1, axis=0)),
    lambda rows: tuple(x.astype(np.float32) for x in rows),
    lambda rows: (np.repeat(rows[0][:N // 2], 2, axis=0), rows[1]),
], ids=["reversed", "swapped", "one bit", "leaves exchanged", "one leaf rolled", "float32",
        "repeated"])
def test_other_rows_or_another_order_are_refused(folder, other):
    with pytest.raises(ValueError, match="another data set, or order of its rows"):
        gone_on(folder, other(ROWS))


@pytest.mark.slow
@pytest.mark.parametrize(("change", "words"), [
    (dict(task=problem(scale=1.5)), FUNCTION),
    (dict(task=problem(table=(1.0, 2.0, 3.5))), FUNCTION),  # no equation differs
    (dict(task=problem(weight=0.2)), FUNCTION),
    (dict(task=problem()._replace(public=None)), FUNCTION),
    (dict(task=problem(radius=3.0)), FUNCTION),
    (dict(settings=hyper(step=Saddle(0.1, 0.2))), "another numbers"),
    (dict(settings=hyper(functools.partial(optax.sgd, momentum=0.5, nesterov=True))), FUNCTION),
    (dict(settings=hyper(lambda step: optax.sgd(2 * step))), FUNCTION),
])
def test_another_problem_or_optimiser_is_refused(folder, change, words):
    with pytest.raises(ValueError, match=words):
        gone_on(folder, **change)


@pytest.mark.slow
def test_a_lambda_is_told_from_another_by_what_it_computes(tmp_path):
    def times(factor):
        return lambda step: optax.sgd(factor * step)

    begun(tmp_path / "a", settings=hyper(times(2.0)))
    for other in (times(3.0), lambda step: optax.sgd(2.0 + step)):
        with pytest.raises(ValueError, match=FUNCTION):
            gone_on(tmp_path / "a", settings=hyper(other))
    assert int(gone_on(tmp_path / "a", settings=hyper(times(2.0))).state.spent) == 4


class Steps:
    """A rule that keeps its numbers in itself."""

    def __init__(self, factor):
        self.factor, self.itself = factor, self

    def __call__(self, step):
        return optax.sgd(self.factor * step)

    def made(self, step):
        return self(step)


FACTOR = 2.0


@pytest.mark.slow
def test_a_rule_is_told_from_another_by_its_numbers_wherever_it_keeps_them(monkeypatch):
    def mark(rule):
        return fingerprint.hash_run(KEY, START, ROWS, hyper(rule), jmm.sgda, problem())

    def of_global(step):
        return optax.sgd(FACTOR * step)

    class Slower(Steps):
        half = 0.5

        def __call__(self, step):
            return optax.sgd(self.half * self.factor * step)

    def keyed(x):
        return lambda step: optax.chain(optax.sgd(step), optax.add_noise(
            0.1, 0.5, key=jax.random.key(int(x))))

    for made in (Steps, lambda x: Steps(x).made, lambda x: lambda step: Steps(x)(step), keyed):
        assert mark(made(2.0)) == mark(made(2.0)) != mark(made(3.0))
    slower = mark(Slower(2.0))
    monkeypatch.setattr(Slower, "half", 0.25)
    assert mark(Slower(2.0)) != slower
    before = mark(of_global)
    assert mark(of_global) == before
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert mark(of_global) != before
    assert mark(of_global) == mark(Steps(3.0))  # they compute the same


def marks():
    """The fingerprint of a round, and of each that differs from it in one function or constant."""
    def schedule(factor):
        return hyper(lambda step: optax.sgd(lambda t: factor * step / jnp.sqrt(t + 1.0)))

    def begun(z, settings):
        state = jmm.sgda.init(z, settings)
        return state._replace(z=jax.tree.map(lambda x: x + 1.0, state.z))

    def slower(key, state, *rest):
        new = jmm.sgda.update(key, state, *rest)
        return new._replace(z=jax.tree.map(lambda a, b: (a + b) / 2, new.z, state.z))

    def algorithm(**changed):
        other = types.ModuleType(jmm.sgda.__name__)
        vars(other).update(vars(jmm.sgda), **changed)
        return other

    ulp, sampled = np.nextafter(0.1, 1.0), dataclasses.replace(hyper().query, sampling=jmm.Full())
    adam = [functools.partial(optax.adam, b1=b1) for b1 in (0.0, 0.9)]
    own = jmm.Problem(operator=lambda z, x: Saddle(x[0] - z.w, x[1] + z.v))
    rounds = {
        "plain": {}, "loss": {"task": problem(scale=1.5)}, "operator": {"task": own},
        "array that the loss closes over": {"task": problem(table=(1.0, 2.0, np.nextafter(3, 4)))},
        "public term": {"task": problem(weight=ulp)}, "no public term": {
            "task": problem()._replace(public=None)},
        "projection": {"task": problem(radius=3.0)}, "adam": {"settings": hyper(adam[0])},
        "moment of adam": {"settings": hyper(adam[1])}, "schedule": {"settings": schedule(1.0)},
        "number of a schedule": {"settings": schedule(1.0 + 2.0**-40)},
        "start": {"algorithm": algorithm(init=begun)},
        "algorithm": {"algorithm": algorithm(update=slower)},
        "sampling": {"settings": hyper(query=sampled)},
        "precision of the point": {"z": jax.tree.map(lambda x: x.astype(jnp.float32), START)},
        "shape of the point": {"z": Saddle(jnp.zeros(D), jnp.zeros((D, 1))), "task": jmm.Problem(
            operator=lambda z, x: Saddle(x[0], x[1][:, None]))}}
    return {name: fingerprint.hash_run(KEY, how.get("z", START), ROWS, how.get("settings", hyper()),
                                     how.get("algorithm", jmm.sgda), how.get("task", problem()))
            for name, how in rounds.items()}


@pytest.mark.slow
def test_every_function_of_a_round_counts_and_every_bit_of_their_numbers():
    made = [one[fingerprint.ROUND] for one in marks().values()]
    assert len(set(made)) == len(made)


@pytest.mark.nightly
def test_a_round_has_one_fingerprint_in_all_processes():
    """Wherever its functions lie in memory, and in whichever order a set is."""
    made = [json.loads(subprocess.run(
        [sys.executable, "-c", "import json, jax; jax.config.update('jax_enable_x64', True); "
         "from tests.drivers import test_fingerprint as t; print(json.dumps(t.marks()))"],
        check=True, text=True, stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONHASHSEED": seed}).stdout) for seed in ("1", "2")]
    assert made[0] == made[1] == marks()


def test_the_words_of_a_program_have_neither_addresses_nor_the_order_of_a_set():
    class Shown:
        def __init__(self, text):
            self.text = text

        def __str__(self):
            return self.text

    def words(text, constants=()):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(fingerprint.programs, "constants", lambda _: constants)
            return list(fingerprint._words(Shown(text)))

    one = words("f at 0x7f01 frozenset({'a', 'b'})\n  g")
    assert one == words("f at 0x99ab frozenset({'b', 'a'}) g")
    assert one != words("f at 0x99ab frozenset({'b', 'c'}) g")
    assert one != words("f at 0x7f01 frozenset({'a', 'b'}) g", (np.zeros(1),))


@pytest.mark.slow
def test_the_same_things_made_anew_go_on_wherever_the_rows_are(folder, tmp_path):
    one = fingerprint.hash_run(KEY, START, ROWS, hyper(), jmm.sgda, problem())
    mesh = jax.make_mesh((1,), ("data",))
    other = problem()._replace(operator=jmm.types.with_strategy(problem().operator, "microbatch",
                                                                5))
    for data, task in ((jmm.placement.HostData(ROWS), problem()), (jax.device_put(ROWS), problem()),
                       (jmm.placement.shard(ROWS, mesh), other)):
        assert fingerprint.hash_run(KEY, START, data, hyper(), jmm.sgda, task) == one
    shutil.copytree(folder, tmp_path / "a")
    resumed = gone_on(tmp_path / "a", jax.device_put(ROWS), task=problem())
    chex.assert_trees_all_equal(resumed.state, gone_on(tmp_path / "whole").state)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")  # of certificates
@pytest.mark.parametrize("name", list(golden.CASES))
def test_a_round_of_every_algorithm_has_one_fingerprint_wherever_the_rows_are(name):
    algorithm, settings, task, start, data = golden.CASES[name]
    in_groups, mesh = isinstance(task, jmm.GroupProblem), jax.make_mesh((1,), ("data",))
    placed = [data, jax.device_get(data), jmm.placement.shard(data, mesh, grouped=in_groups)]
    if not in_groups:
        placed.append(jmm.placement.HostData(jax.device_get(data)))
    made = [fingerprint.hash_run(KEY, start, rows, settings, algorithm, task) for rows in placed]
    assert len(made[0]) == 2
    assert all(one == made[0] for one in made)


@pytest.mark.slow
def test_a_record_is_not_read_twice(tmp_path):
    """One pass over two halves; after a crash between them the rows come in reverse order."""
    task = jmm.Problem(operator=lambda z, x: Saddle(x, None))
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(5.0, None), population=N,
                      sampling=jmm.Disjoint(batch=N // 2))
    settings = jmm.sgda.Hyper(query=query, step=Saddle(1.0, 1.0), iterations=2)
    ends = []
    for first in (9.0, -9.0):
        x = np.zeros(N)
        x[0] = first
        run = dict(settings=settings, task=task, z=Saddle(jnp.zeros(()), ()))
        begun(tmp_path / str(first), x, **run)
        with pytest.raises(ValueError, match="order of its rows"):
            gone_on(tmp_path / str(first), x[::-1].copy(), **run)
        ends.append(gone_on(tmp_path / str(first), x, **run).state.z.w)
    assert abs(ends[0] - ends[1]) * (N // 2) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.nightly
def test_problems_of_groups_are_told_apart(tmp_path):
    data, sizes = jmm.problems.by_group((ROWS[0], np.sign(ROWS[1][:, 0])), np.arange(N) % 2)
    settings = jmm.group_sgd.Hyper(
        query=jmm.GroupGradients(clip=1.0, noise_multiplier=1.0, sizes=sizes),
        losses=jmm.GroupLosses(bound=3.0, noise_multiplier=9.0, sizes=sizes),
        step=1.0, weight_step=0.3, iterations=2)

    def task(radius=5.0, **changed):
        return jmm.problems.group_glm("logistic", feature_bound=4.0, radius=radius)._replace(
            **changed)

    run = dict(data=data, settings=settings, algorithm=jmm.group_sgd, z=Saddle(jnp.zeros(D), ()))
    begun(tmp_path / "a", task=task(), **run)
    for other in (task(radius=4.0), task(loss=lambda w, x: jnp.sum(w))):
        with pytest.raises(ValueError, match=FUNCTION):
            gone_on(tmp_path / "a", task=other, **run)
    assert int(gone_on(tmp_path / "a", task=task(), **run).state.spent) == 4


# --- the words themselves ---


def test_a_fingerprint_is_of_the_key_and_long_enough():
    made = fingerprint.hash_run(KEY, START, ROWS, hyper(), jmm.sgda, problem())
    other = fingerprint.hash_run(jax.random.key(4), START, ROWS, hyper(), jmm.sgda, problem())
    assert set(made) == {"data set, or order of its rows", fingerprint.ROUND}
    assert all(len(x) == 32 for x in made.values())  # 128 bits
    assert not set(made.values()) & set(other.values())
    assert made == fingerprint.hash_run(KEY, START, ROWS, hyper(), jmm.sgda, problem())
    assert len(set(made.values())) == len(made)


def test_flags_in_a_file_are_of_the_machine(tmp_path, monkeypatch):
    problem, marks = jmm.Problem(lambda z, x: z), set()
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))
    for flags in ("--xla_a", "--xla_b"):
        (tmp_path / "flags").write_text(flags)
        marks |= set(fingerprint.hash_machine(b"own", problem, None).values())
    assert len(marks) == 2


@pytest.mark.slow
def test_no_fingerprint_without_a_checkpoint(monkeypatch):
    monkeypatch.setattr(fingerprint, "hash_run", crash)
    jmm.fit(KEY, START, ROWS, hyper(), jmm.sgda, problem(), delta=1e-6, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(N,), (N, 1), (N, 3), (N, 5, 7), (N, 0), (0, 3)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, np.bool_, jnp.bfloat16])
def test_where_rows_are_cut_or_lie_changes_nothing(monkeypatch, shape, dtype):
    x = np.random.default_rng(1).normal(size=shape).astype(dtype)
    one = fingerprint.hash_rows(OWN, (x,))
    assert one == fingerprint.hash_rows(OWN, (jnp.asarray(x),))
    assert one == fingerprint.hash_rows(OWN, (np.asfortranarray(x),))
    if dtype is np.float64:
        assert one == fingerprint.hash_rows(OWN, (x.astype(">f8"),))
    monkeypatch.setattr(fingerprint, "_on_host", lambda x: False)
    for rows, sent in ((1, 1), (5, 2**30), (7, 50)):
        monkeypatch.setattr(fingerprint, "_ROWS", rows)
        monkeypatch.setattr(fingerprint, "_SENT", sent)
        assert one == fingerprint.hash_rows(OWN, (x,))
        assert one == fingerprint.hash_rows(OWN, (jnp.asarray(x),))


def test_wide_rows_are_hashed_to_their_ends(monkeypatch):
    monkeypatch.setattr(fingerprint, "_WIDE", 4)
    x = np.arange(N * 11, dtype=np.float32).reshape(N, 11)
    marks = {fingerprint.hash_rows(OWN, x)}
    for row, column in ((0, 0), (5, 3), (5, 4), (5, 8), (N - 1, 10)):
        y = x.copy()
        y[row, column] += 0.5
        marks.add(fingerprint.hash_rows(OWN, y))
    exchanged = x.copy()  # two blocks of one row
    exchanged[5] = np.r_[x[5, 4:8], x[5, :4], x[5, 8:]]
    marks |= {fingerprint.hash_rows(OWN, exchanged), fingerprint.hash_rows(OWN, x.reshape(11, N))}
    assert len(marks) == 8


def test_few_bits_never_agree_by_chance():
    """Signs, labels and small integers: what differs in one high bit, or in few rows."""
    base = np.where(np.arange(N) % 2, 1.0, -1.0).astype(np.float32)
    marks = {fingerprint.hash_rows(OWN, base)}
    pairs = [(i, j) for i in range(N) for j in range(i)]
    for i, j in pairs:
        x = base.copy()
        x[[i, j]] *= -1
        marks.add(fingerprint.hash_rows(OWN, x))
    assert len(marks) == 1 + len(pairs)


def test_a_mapped_file_is_read_once_and_never_held(tmp_path, monkeypatch):
    path = tmp_path / "x.npy"
    made = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(2**15, 256))
    made[77] = 5.0  # 32 MiB, of which next to nothing is on the disk
    read = []
    sums = fingerprint._sums
    monkeypatch.setattr(fingerprint, "_sums", lambda rows, first, *rest: (
        read.append((first, len(rows))), sums(rows, first, *rest))[1])
    data = jmm.placement.HostData(np.load(path, mmap_mode="r"))
    tracemalloc.start()
    mark = fingerprint.hash_rows(OWN, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24
    assert [first for first, _ in read] == list(np.cumsum([0, *(n for _, n in read)])[:-1])
    assert sum(n for _, n in read) == 2**15
    made[2**15 - 1, 255] = 1.0
    made.flush()
    assert mark != fingerprint.hash_rows(OWN, data)


def test_nothing_of_the_rows_is_saved(folder):
    """Neither the key nor a hash that others could compute."""
    raw = b"".join(x.tobytes() for x in ROWS)
    known = {getattr(hashlib, name)(raw).hexdigest()[:32] for name in ("sha256", "md5", "blake2b")}
    known.add(fingerprint.hash_rows(b"", ROWS))
    text = b"".join(p.read_bytes() for p in pathlib.Path(folder).rglob("*") if p.is_file())
    mark = fingerprint.hash_run(KEY, START, ROWS, hyper(), jmm.sgda, problem())
    assert mark["data set, or order of its rows"].encode() in text
    assert not any(x.encode() in text for x in known)


@pytest.mark.slow
def test_a_sampling_of_ones_own_is_told_from_another_by_its_code(tmp_path):
    """Of one name and equal numbers; it would read some records twice in a pass."""
    def from_batch(first):
        @jmm.types.pytree_dataclass
        class Own(jmm.Disjoint):
            def draw(self, keys, release, population):
                return jmm.Disjoint.draw(self, keys, release + first, population)

        query = dataclasses.replace(hyper().query, sampling=Own(batch=4))
        return dataclasses.replace(hyper(), query=query)

    begun(tmp_path / "a", settings=from_batch(0))
    with pytest.raises(ValueError, match=FUNCTION):
        gone_on(tmp_path / "a", settings=from_batch(1))
    assert int(gone_on(tmp_path / "a", settings=from_batch(0)).state.spent) == hyper().iterations


def test_other_draws_from_the_same_key_are_refused(folder, monkeypatch):
    monkeypatch.setattr(release_keys, "SCHEME", release_keys.SCHEME + 1)
    with pytest.raises(ValueError, match="another key scheme"):
        gone_on(folder)


@pytest.mark.slow
def test_an_older_folder_is_refused(tmp_path, monkeypatch):
    """One that does not say which rows it is of."""
    monkeypatch.setattr(fingerprint, "hash_run", lambda *_: {})
    begun(tmp_path / "a")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="another data set"):
        gone_on(tmp_path / "a")


class Earlier(NamedTuple):
    """The state of `optimistic` as it was in earlier versions."""

    z: Saddle
    before: Saddle
    mean: Any
    spent: jax.Array

    @classmethod
    def of(cls, state):
        return cls(state.z, state.memory, state.mean, state.spent)


def earlier_update(key, state, *rest):
    now = jmm.optimistic.State(state.z, state.before, state.mean, state.spent)
    return Earlier.of(jmm.optimistic.update(key, now, *rest))


@pytest.mark.slow
def test_a_state_of_an_earlier_shape_is_refused(tmp_path):
    """Its numbers might be put where they do not belong."""
    settings = jmm.optimistic.Hyper(query=hyper().query, step=Saddle(0.1, 0.1), iterations=4)
    earlier = types.ModuleType(jmm.optimistic.__name__)
    vars(earlier).update(vars(jmm.optimistic), update=earlier_update,
                         init=lambda *how: Earlier.of(jmm.optimistic.init(*how)))
    begun(tmp_path / "a", settings=settings, algorithm=earlier)
    with pytest.raises(ValueError, match="another shape of its state"):
        gone_on(tmp_path / "a", settings=settings, algorithm=jmm.optimistic)
    assert gone_on(tmp_path / "a", settings=settings, algorithm=earlier).state.spent == 4
