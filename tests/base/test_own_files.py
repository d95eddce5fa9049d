"""Folders of runs, ledgers and programs: nobody else writes there, and a crash leaves a state."""

import itertools
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time

import jax
import numpy as np
import pandas as pd
import pytest

import jaxminimax as jmm
from jaxminimax import __main__ as main
from jaxminimax.apps.tables import Number, Schema, Scorer, train, unfinished
from jaxminimax.apps.tables.unfinished import Unfinished
from jaxminimax.base import own_files
from tests.helpers.lanes import rest_nightly

ROOT = pathlib.Path(__file__).parents[2]
SCHEMA = Schema({"a": Number(0, 80), "b": Number(0, 1)}, "y", 1)
TARGET = {"epsilon": 2.0, "delta": 1e-4}


def table(n=60, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": rng.normal(40, 10, n), "b": rng.uniform(0, 1, n)})
    frame["y"] = (rng.uniform(size=n) < 1 / (1 + np.exp(-(frame.a - 40) / 5))).astype(int)
    return frame


def words(job):
    return np.asarray(jax.random.key_data(job.key)).tolist()


MOMENTS = {"mean": [1.0], "second": [1.0], "prior": 0.5}


def begun(folder):
    """A folder that a run was stopped in after its first release, and the key of it."""
    with Unfinished(folder) as job:
        job.promise(np.zeros(3), "settings")
        job.once("moments", lambda: MOMENTS)
        return words(job)


def of_another_user(monkeypatch, name):
    """Whatever has that name is from now on another user's."""
    status, lstat, fstat = os.stat, os.lstat, os.fstat

    def changed(found, path):
        values = list(found)
        values[stat.ST_UID] += os.path.basename(os.fspath(path)) == name
        return os.stat_result(values)

    monkeypatch.setattr(os, "stat", lambda path, **how: status(path, **how) if isinstance(
        path, int) else changed(status(path, **how), path))
    monkeypatch.setattr(os, "lstat", lambda path, **how: changed(lstat(path, **how), path))
    monkeypatch.setattr(os, "fstat", lambda handle: changed(
        fstat(handle), os.readlink(f"/proc/self/fd/{handle}")))


# --- who may write ---


def test_folders_are_made_for_this_user_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        begun(tmp_path / "a" / "b" / "run")
    finally:
        os.umask(before)
    made = [tmp_path / x for x in ("a", "a/b", "a/b/run")]
    assert [stat.S_IMODE(x.stat().st_mode) for x in made] == [0o700] * 3
    modes = {x.name: stat.S_IMODE(x.stat().st_mode) for x in made[-1].iterdir()}
    assert {modes[x] for x in ("key", "promise.json", "moments")} == {0o600}


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o720])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path, mode):
    planted = tmp_path / "run"
    planted.mkdir()
    (planted / "key").write_text(json.dumps(["threefry2x32", 123, 456]))
    planted.chmod(mode)
    with pytest.raises(ValueError, match=f"mode {mode:o}.*chmod -R go-w"):
        train(table(), SCHEMA, folder=planted, **TARGET)
    with pytest.raises(ValueError, match=f"mode {mode:o}"):
        own_files.make(planted)
    assert sorted(x.name for x in planted.iterdir()) == ["key"]


def test_a_key_that_lies_there_is_not_taken_for_the_runs_own(tmp_path):
    planted = tmp_path / "run"
    planted.mkdir(0o700)
    (planted / "key").write_text(json.dumps(["threefry2x32", 123, 456]))
    with pytest.raises(ValueError, match=r"holds a key.*delete that folder"):
        train(table(), SCHEMA, folder=planted, **TARGET)
    shutil.rmtree(planted)
    begun(planted)
    (planted / "key").chmod(0o622)
    with pytest.raises(ValueError, match=r"run/key can be written by other users \(mode 622\)"):
        Unfinished(planted)
    for mode in (0o640, 0o604):
        (planted / "key").chmod(mode)
        with pytest.raises(ValueError, match=rf"run/key can be read .* {mode:o}\).*chmod go-"):
            Unfinished(planted)
    (planted / "key").chmod(0o600)
    (planted / "key").rename(tmp_path / "elsewhere")
    (planted / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="run/key is a link") as refused:
        Unfinished(planted)
    assert "chmod" not in str(refused.value)
    (tmp_path / "link").symlink_to(planted)
    with pytest.raises(ValueError, match="link is a link"):
        Unfinished(tmp_path / "link")


@pytest.mark.parametrize("name", ["run", "key", "promise.json", "moments", "lock"])
def test_what_another_user_owns_is_refused(tmp_path, monkeypatch, name):
    begun(tmp_path / "run")
    of_another_user(monkeypatch, name)
    with pytest.raises(ValueError, match=f"{name} belongs to another user, number") as refused:
        Unfinished(tmp_path / "run")
    assert "chmod" not in str(refused.value)
    if name != "run":  # put there after the folder was looked at
        with pytest.raises(ValueError, match="belongs to another user"):
            own_files.read(tmp_path / "run" / name)


@pytest.mark.parametrize("back", [False, True])
def test_nothing_is_released_with_a_key_in_a_folder_that_was_replaced(tmp_path, back):
    """Whether it is still so, or its own folder is in its place again once the key was written."""
    run, own, other = (tmp_path / name for name in ("run", "own", "other"))
    other.mkdir()
    with Unfinished(run) as job:
        run.rename(own)
        other.rename(run)
        write = job._write

        def swaps(name, *args, **how):
            write(name, *args, **how)
            if back and name == "key":
                run.rename(other)
                own.rename(run)

        job._write = swaps
        with pytest.raises(ValueError, match="run was replaced by another folder before"):
            job.promise(np.zeros(3), "settings")


def test_a_parent_in_which_others_could_replace_a_folder_is_refused(tmp_path, capsys):
    table().to_csv(tmp_path / "t.csv", index=False)
    for mode, safe in ((0o777, False), (0o1777, True), (0o703, False), (0o755, True)):
        parent = tmp_path / f"{mode:o}"
        parent.mkdir()
        parent.chmod(mode)
        if safe:
            begun(parent / "a" / "b" / "run")
            continue
        for make in (lambda x: begun(x / "run"), lambda x: begun(x / "a" / "run")):
            with pytest.raises(ValueError, match=rf"can be .*\(mode {mode:o}\).*chmod o-w"):
                make(parent)
        assert main.main([*command(tmp_path / "m")[:-2], str(parent)]) == 2
        assert f"(mode {mode:o})" in capsys.readouterr().err
        assert not list(parent.iterdir())


def test_a_parent_of_another_user_is_refused(tmp_path, monkeypatch, capsys):
    table().to_csv(tmp_path / "t.csv", index=False)
    parent = tmp_path / "theirs"
    parent.mkdir()
    of_another_user(monkeypatch, "theirs")
    for make in (lambda: begun(parent / "run"), lambda: begun(parent / "a" / "run")):
        with pytest.raises(ValueError, match="theirs belongs to another user, number"):
            make()
    assert main.main(command(tmp_path / "theirs")) == 2
    assert "theirs belongs to another user" in capsys.readouterr().err
    assert not list(parent.iterdir())


def test_numbers_without_a_key_are_not_taken_for_the_runs_own(tmp_path, monkeypatch):
    for name in ("moments", "rounds"):
        folder = tmp_path / name
        folder.mkdir(0o700)
        (folder / name).mkdir() if name == "rounds" else (folder / name).write_text("[9.0]")
        with Unfinished(folder) as job, pytest.raises(ValueError, match=f"holds {name}, but no"):
            job.once(name, lambda: [1.0]) if name == "moments" else job.driver(1e12, 10)


@pytest.fixture
def run_with_states():
    """A short run, by its folder."""
    game = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=jmm.Saddle(2.0, 2.0))
    query = jmm.Query(clip=jmm.Saddle(3.0, 3.0), population=20,
                      noise_multiplier=jmm.Saddle(20.0, 20.0))
    hyper = jmm.sgda.Hyper(query=query, step=jmm.Saddle(0.1, 0.1), iterations=2)
    rows = np.zeros((2, 20, 2), np.float32)
    return lambda folder: jmm.fit(
        jax.random.key(0), jmm.Saddle(np.zeros(2), np.zeros(2)), tuple(rows), hyper, jmm.sgda, game,
        delta=1e-3, progress=False, checkpoint=folder)


def test_saved_states_of_other_users_are_refused(tmp_path, run_with_states):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ValueError, match="can be written by other users"):
        run_with_states(tmp_path / "open")


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0, 0o002, 0o027])
def test_saved_states_are_for_their_owner_to_write_whatever_the_umask(
        tmp_path, run_with_states, umask):
    (tmp_path / "states").mkdir(0o755)
    before = os.umask(umask)
    try:
        first, again = run_with_states(tmp_path / "states"), run_with_states(tmp_path / "states")
    finally:
        after = os.umask(before)
    assert after == umask
    assert jax.tree.all(jax.tree.map(np.array_equal, first.state, again.state))
    made = list((tmp_path / "states").rglob("*"))
    assert len(made) > 3
    assert not any(x.stat().st_mode & 0o022 for x in made)


# --- one process at a time, and crashes ---


def test_one_process_has_a_lock_and_the_other_says_which(tmp_path):
    for what in (tmp_path, tmp_path / "ledger.json"):
        with own_files.locked(what):
            with pytest.raises(ValueError, match=f"another process, number {os.getpid()}"):
                own_files.locked(what).__enter__()
            begin = time.monotonic()
            with pytest.raises(ValueError, match="locked"):
                own_files.locked(what, 0.2).__enter__()
            assert time.monotonic() - begin > 0.2
        with own_files.locked(what):
            pass
    begun(tmp_path / "run")
    with Unfinished(tmp_path / "run"), pytest.raises(ValueError, match="locked by another"):
        Unfinished(tmp_path / "run")


def test_a_lock_that_its_last_holder_removed_is_not_held(tmp_path, monkeypatch):
    """Who waited for it would hold a file without a name, and another process the next one."""
    lock, removed = own_files._lock, []

    def removes(handle):
        if not removed:
            os.remove(tmp_path / "lock")
            removed.append(True)
        return lock(handle)

    monkeypatch.setattr(own_files, "_lock", removes)
    with own_files.locked(tmp_path), pytest.raises(ValueError, match="locked by another"):
        own_files.locked(tmp_path).__enter__()
    assert removed


def test_a_command_refuses_a_folder_of_runs_that_others_may_write_to(tmp_path, capsys):
    table().to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "m" / "unfinished").mkdir(parents=True)
    (tmp_path / "m" / "unfinished").chmod(0o777)
    assert main.main(command(tmp_path / "m")) == 2
    assert "unfinished can be written by other users (mode 777)" in capsys.readouterr().err
    assert [x.name for x in (tmp_path / "m").iterdir()] == ["unfinished"]
    with own_files.locked(tmp_path / "m" / "model.json"):
        assert main.main(command(tmp_path / "m")) == 2
    assert f"locked by another process, number {os.getpid()}" in capsys.readouterr().err


def test_what_ended_processes_left_is_removed(tmp_path):
    left = tmp_path / "study.json.123-0a1b2c3d4e5f6071"
    left.write_text("{")
    mine = tmp_path / "study.json.txt"
    mine.write_text("mine")
    jmm.accounting.Ledger(tmp_path / "study.json", epsilon=1.0, delta=1e-6)
    assert not left.exists()
    assert mine.exists()
    run = tmp_path / "run"
    key = begun(run)
    for name in ("key", "promise.json", "moments"):
        (run / f"{name}.7-{0:016}").write_text("half")
    (run / "exp.2-20241123").mkdir()
    (run / f"exp.2-{0:016}").write_text("a user's own")
    with Unfinished(run) as job:
        assert words(job) == key
        job.once("moments", lambda: [2.0])
    assert sorted(x.name for x in run.iterdir()) == [
        f"exp.2-{0:016}", "exp.2-20241123", "key", "lock", "moments", "promise.json"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), rest_nightly([
    ("key", ""), ("key", '["threefry2x32", 1, 4294967296]'), ("key", "\xff"),
    ("promise.json", "{"), ("moments", "[1."),
    ("moments", '{"mean": [NaN], "second": [1], "prior": 0.5}'),
    ("key", "[]"), ("key", "{}"), ("key", '["threefry2x32", 1]'),
    ("key", '["threefry2x32", 1.5, 2]'), ("key", '["threefry2x32", [1, 2], [3, 4]]'),
    ("key", '["of no kind", 1, 2]'), ("promise.json", "[]"), ("moments", "[1]"),
    ("moments", "[" * 10**5)], 6))
def test_a_damaged_file_is_refused_and_the_lock_is_free(tmp_path, name, text):
    begun(tmp_path / "run")
    good = (tmp_path / "run" / name).read_bytes()
    (tmp_path / "run" / name).write_bytes(text.encode("latin-1"))
    for _ in range(2):  # the first error is still there when the second one is raised
        with pytest.raises(ValueError, match=f"run/{name} is no whole .*delete") as refused:
            begun(tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(good)
    begun(tmp_path / "run")
    assert refused.traceback


def test_a_full_disk_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.json"
    own_files.write(path, "before")
    with pytest.raises(FileExistsError):
        own_files.write(path, "another", new=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="large"):
            own_files.write(path, "x" * 200)
        with pytest.raises(OSError, match="large"):
            own_files.write(tmp_path / "b.json", "x" * 200, new=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "before"
    assert [x.name for x in tmp_path.iterdir()] == ["a.json"]


def command(folder):
    return ["train", str(folder.parent / "t.csv"), "--label", "y", "--positive", "1", "--numeric",
            "a=0:80", "b=0:1", "--epsilon", "2", "--delta", "1e-4", "--out", str(folder), "--json"]


OPERATIONS = ("open", "link", "replace", "rename", "remove", "unlink", "rmdir", "mkdir", "fsync",
              "ftruncate", "write")


def watch(monkeypatch, folder, before):
    """Calls `before()` ahead of everything that is done to the files of a folder."""
    def watched(name, sound):
        def changed(first, *args, **how):
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else first
            dir_fd = how.get("dir_fd")  # of `shutil.rmtree`
            if isinstance(dir_fd, int):
                path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
            if str(path).startswith(str(folder)):
                before()
            return sound(first, *args, **how)

        monkeypatch.setattr(os, name, changed)

    for name in OPERATIONS:
        watched(name, getattr(os, name))


RESULTS = ["model.json", "report.html", "report.json"]


def stored(folder):
    """All numbers of a command; the drawings of the page have random names within."""
    return {x: (folder / x).read_bytes() for x in RESULTS if x.endswith(".json")}


@pytest.mark.nightly
def test_a_command_killed_anywhere_ends_with_the_same_numbers(tmp_path, monkeypatch, capsys):
    """The files are copied ahead of every call: what kill -9 would leave there.

    Calls that changed nothing leave what the one before left: one copy of it is continued.
    """
    table().to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setattr(unfinished, "LONG", 0)
    monkeypatch.setattr(unfinished, "_SAVES", 2)
    folder, left = tmp_path / "m", []

    def copy():
        with monkeypatch.context() as still:
            for name, sound in full.items():
                still.setattr(os, name, sound)
            files = {x: x.is_file() and x.read_bytes() for x in folder.rglob("*")}
            if folder.exists() and (not left or files != left[-1]):
                shutil.copytree(folder, tmp_path / f"killed {len(left)}")
                left.append(files)

    full = {name: getattr(os, name) for name in OPERATIONS}
    with monkeypatch.context() as patched:
        watch(patched, folder, copy)
        assert main.main(command(folder)) == 0
    once = stored(folder)
    assert sorted(x.name for x in folder.iterdir()) == RESULTS
    assert len(left) >= 20
    ends = []
    for k in range(len(left)):
        killed = tmp_path / f"killed {k}"
        for name in once:  # the former state, none, or the next one
            assert not (killed / name).exists() or (killed / name).read_bytes() == once[name]
        going_on = any((killed / "unfinished").glob("*/key"))
        complete = (killed / "model.json").exists() and not going_on
        assert not complete or set(RESULTS) <= {x.name for x in killed.iterdir()}
        if not going_on:  # nothing was released, or the run has ended
            assert complete or not any((killed / "unfinished").glob("*/m*"))
        else:
            assert main.main(command(killed)) == 0
            assert stored(killed) == once
            assert sorted(x.name for x in killed.iterdir()) == RESULTS
        ends.append((going_on, complete))
    assert ends == sorted(ends, key=lambda x: (x[1], x[0]))  # before, on the way, after
    assert sum(going_on for going_on, _ in ends) >= 10
    capsys.readouterr()


def trained_with(key, where):
    """The weights of a run that was not stopped."""
    frame = pd.read_csv(where / "t.csv", dtype=str)
    key = jax.random.wrap_key_data(np.array(key[1:], np.uint32), impl=key[0])
    return train(frame, SCHEMA, key=key, **TARGET).weights.tolist()


KILLED = """
import os, signal, sys
from jaxminimax import __main__
from jaxminimax.apps.tables import scorer

save = scorer.Scorer.save
scorer.Scorer.save = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
__main__.main(sys.argv[1:])
"""


@pytest.mark.nightly
def test_the_locks_of_a_killed_process_are_free(tmp_path, capsys):
    table().to_csv(tmp_path / "t.csv", index=False)
    folder = tmp_path / "m"
    done = subprocess.run([sys.executable, "-c", KILLED, *command(folder)], cwd=ROOT, check=False,
                          env=os.environ | {"JAX_ENABLE_X64": "1"})
    assert done.returncode == -signal.SIGKILL
    key = (folder / "unfinished" / "0" / "key").read_text()
    assert not (folder / "model.json").exists()
    assert main.main(command(folder)) == 0
    weights = Scorer.load(folder).weights.tolist()
    assert weights == trained_with(json.loads(key), tmp_path)
    assert sorted(x.name for x in folder.iterdir()) == RESULTS
    capsys.readouterr()


@pytest.mark.slow
@pytest.mark.parametrize("full", rest_nightly(
    ["key", "moments", "model.json", "promise.json", "report.html"], 3))
def test_a_full_disk_on_the_way_releases_nothing_twice(tmp_path, capsys, monkeypatch, full):
    table().to_csv(tmp_path / "t.csv", index=False)
    folder = tmp_path / "m"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with monkeypatch.context() as patched:  # JAX's own files are no part of it
        write = own_files.write

        def limited(path, *args, **how):
            if path.name == full:
                resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
            try:
                return write(path, *args, **how)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        patched.setattr(own_files, "write", limited)
        assert main.main(command(folder)) == 2
    assert "File too large" in capsys.readouterr().err
    assert not list(folder.rglob(full))
    keys = [json.loads(x.read_text()) for x in (folder / "unfinished").glob("*/key")]
    assert len(keys) == (full not in ("promise.json", "key"))
    assert main.main(command(folder)) == 0
    assert sorted(x.name for x in folder.iterdir()) == RESULTS
    weights = Scorer.load(folder).weights.tolist()
    if keys:
        assert weights == trained_with(keys[0], tmp_path)
    capsys.readouterr()


PAIRS = 12
RACER = """
import json, sys, time
import jax, numpy as np
from jaxminimax.apps.tables.unfinished import Unfinished

for line in sys.stdin:
    folder, at = json.loads(line)
    time.sleep(max(0.0, at - time.time()))
    try:
        with Unfinished(folder) as job:
            job.promise(np.zeros(3, np.float32), "settings")
            made = job.once("losses", lambda: {"a": np.random.default_rng().uniform()})
            time.sleep(0.6)
            said = [np.asarray(jax.random.key_data(job.key)).tolist(), made]
    except ValueError as error:
        said = str(error)
    print(json.dumps(said), flush=True)
"""


@pytest.mark.slow
def test_two_processes_that_begin_together_make_one_key_and_one_release(tmp_path):
    several = [subprocess.Popen([sys.executable, "-c", RACER], cwd=ROOT, text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    both, named = itertools.cycle(itertools.permutations(range(4), 2)), 0
    try:
        for warm, one in enumerate(several):  # keys and hashes are compiled
            one.stdin.write(json.dumps([str(tmp_path / f"warm {warm}"), 0.0]) + "\n")
            one.stdin.flush()
            assert len(json.loads(one.stdout.readline())) == 2
        for k in range(PAIRS):
            folder, begin = tmp_path / str(k), time.time() + 0.1
            here = [several[i] for i in next(both)]
            for one, gap in zip(here, (0.0, 0.2 * k / (PAIRS - 1)), strict=True):
                one.stdin.write(json.dumps([str(folder), begin + gap]) + "\n")
                one.stdin.flush()
            actual = [json.loads(one.stdout.readline()) for one in here]
            (refused,) = [x for x in actual if isinstance(x, str)]
            ((key, made),) = [x for x in actual if not isinstance(x, str)]
            holder = here[actual.index([key, made])].pid
            # its number is written just after the lock is taken
            assert re.search(f"locked by another process(, number {holder})?:", refused)
            named += str(holder) in refused
            assert json.loads((folder / "key").read_text())[1:] == key
            assert json.loads((folder / "losses").read_text()) == made
        assert named > PAIRS / 2
    finally:
        for one in several:
            one.kill()
            one.communicate()
