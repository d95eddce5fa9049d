"""What runs leave on disk: sweeps that were killed go on, and are neither repeated nor charged."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap

import chex
import jax
import jax.numpy as jnp
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.drivers import many_runs, runs, saved_runs
from jaxminimax.mechanism.composed import charges

GAME = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
START = Saddle(jnp.zeros(4), jnp.zeros(4))
DATA = tuple(jax.random.normal(k, (200, 4)) for k in jax.random.split(jax.random.key(1)))
QUERY = jmm.Query(clip=Saddle(2.0, 1.0), noise_multiplier=Saddle(3.0, 3.0), population=200,
                  sampling=jmm.Disjoint(batch=20))
HYPER = jmm.sgda.Hyper(query=QUERY, step=Saddle(0.2, 0.2), iterations=10)
HYPERS = jmm.stack([dataclasses.replace(HYPER, step=Saddle(0.1 * k, 0.2)) for k in (1, 2, 3, 4)])
KEYS = jax.random.split(jax.random.key(3), (4, 2))
# the noise begins anew every four releases
IN_TURN = dataclasses.replace(HYPER, query=dataclasses.replace(
    QUERY, bands=4, sampling=jmm.mechanism.CyclicPoisson(rate=0.02, parts=4)))


def swept(**how):
    how = {"keys": KEYS, "hypers": HYPERS, "data": DATA, "at_once": 2} | how
    keys, hypers, data = (how.pop(name) for name in ("keys", "hypers", "data"))
    return jmm.sweep(keys, START, data, hypers, jmm.sgda, GAME, **how)


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_and_another_is_refused(tmp_path, monkeypatch):
    folder, save = tmp_path / "runs", saved_runs.Folder.save
    ledger = jmm.accounting.Ledger(tmp_path / "study.json", epsilon=60.0, delta=1e-5)
    how = {"checkpoint": folder, "ledger": ledger, "name": "all"}

    def broken(folder, step, state):
        if step == 2:
            raise KeyboardInterrupt
        save(folder, step, state)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(saved_runs.Folder, "save", broken)
        swept(**how)
    charged, computed, call = ledger.odometer, [], runs.call_kept
    monkeypatch.setattr(runs, "call_kept", lambda *x: computed.append(int(x[-1])) or call(*x))
    resumed = swept(**how)
    assert computed == [2, 3]  # the two shares that were saved are read back
    monkeypatch.undo()
    chex.assert_trees_all_equal(resumed, swept())
    assert ledger.odometer == charged
    (entry,) = json.loads((tmp_path / "study.json").read_text())["entries"]
    every_run = jmm.Sequence(parts=(jmm.sgda.mechanism(HYPER),) * 8)
    assert entry["charges"] == repr(charges(every_run, "replace_one"))
    others = {
        "key mark": {"keys": jax.random.split(jax.random.key(4), (4, 2))},
        "numbers": {"hypers": dataclasses.replace(HYPERS, step=Saddle(*HYPERS.step[::-1]))},
        "data set": {"data": (DATA[0].at[0, 0].add(1.0), DATA[1])},
        "at_once": {"at_once": 4},
        "operator, .*, start or observe": {"observe": lambda state: state.z.w}}
    for name, other in others.items():
        with pytest.raises(ValueError, match=f"another {name}"):
            swept(checkpoint=folder, **other)


def test_a_sweep_is_charged_for_every_setting_and_seed_before_any_run(tmp_path, monkeypatch):
    ledger, shown = jmm.accounting.Ledger(tmp_path / "l", epsilon=60.0, delta=1e-5), []
    monkeypatch.setattr(many_runs, "_saved", lambda *_, **__: shown.append(
        len(ledger.statement().runs)) or ((), ()))
    swept(ledger=ledger)
    assert shown == [1]
    (run,) = json.loads((tmp_path / "l").read_text())["entries"]
    every_run = jmm.Sequence(parts=(jmm.sgda.mechanism(HYPER),) * 8)
    assert run["charges"] == repr(charges(every_run, "replace_one"))


# --- what recognises a run ---

PROMISE = saved_runs.promise_of(jax.random.key(3), jmm.sgda.mechanism(HYPER), HYPER, jmm.sgda)


def booked(ledger, key=3, promise=PROMISE, saved=True, times=10):
    described = jmm.sgda.mechanism(dataclasses.replace(HYPER, iterations=times))
    return saved_runs.Booking(ledger, jax.random.key(key), described, promise, None, saved,
                              delta=1e-6)


@pytest.fixture
def ledger(tmp_path):
    return jmm.accounting.Ledger(tmp_path / "books", epsilon=60.0, delta=1e-5)


def test_another_key_has_another_mark():
    marks = [saved_runs.promise_of(jax.random.key(k), jmm.sgda.mechanism(HYPER), HYPER, jmm.sgda)[
        "key mark"] for k in range(40)]
    assert len(set(marks)) >= 39  # of 16 bits each


@pytest.mark.parametrize("name", PROMISE)
def test_a_folder_of_another_promise_is_refused_whatever_part_is_another(tmp_path, name):
    state = {"spent": jnp.int32(2)}
    with saved_runs.Folder(tmp_path / "run", PROMISE) as folder:
        folder.save(1, state)
    for other in (PROMISE | {name: "another"}, {k: x for k, x in PROMISE.items() if k != name} | {
            name: None}):
        with saved_runs.Folder(tmp_path / "run", other) as folder, pytest.raises(
                ValueError, match=f"another {name}"):
            folder.latest(state)
    with saved_runs.Folder(tmp_path / "run", PROMISE) as folder:
        assert folder.latest(state)["spent"] == 2


@pytest.mark.parametrize("name", PROMISE)
def test_a_key_is_for_one_promise_whatever_part_of_it_is_another(ledger, name):
    with booked(ledger):
        pass
    left = ledger.remaining()
    with pytest.raises(ValueError, match="key was used for another run"):
        booked(ledger, promise=PROMISE | {name: "another"})
    with pytest.raises(ValueError, match="key was used for another run"):
        booked(ledger, times=9)
    with booked(ledger):  # it goes on
        pass
    assert ledger.remaining() == left
    with booked(ledger, key=4):
        assert ledger.remaining().share < left.share


@pytest.mark.parametrize(("before", "now"), [(True, False), (False, True), (False, False)])
def test_a_run_goes_on_only_if_it_was_saved_and_is(ledger, before, now):
    with booked(ledger, saved=before):
        pass
    with pytest.raises(ValueError, match="cannot continue without a checkpoint"):
        booked(ledger, saved=now)


@pytest.mark.parametrize(("done", "error", "charged"), [
    (None, ValueError, 0), (None, TypeError, 0), (None, ZeroDivisionError, 1),
    (2, ValueError, 1), (2, TypeError, 1), (2, ZeroDivisionError, 1)])
def test_a_run_that_fails_is_free_only_before_a_state_was_seen(ledger, done, error, charged):
    with pytest.raises(error), booked(ledger) as booking:
        if done is not None:
            booking.begin(done)
        raise error
    assert len(ledger.statement().runs) == charged


def test_another_machine_repeats_nothing_that_was_shown(ledger, monkeypatch):
    """It may go on from the last state that was shown, and from no earlier one."""
    def placed(done):
        with booked(ledger) as booking:
            booking.bind(START, {"rows": "of the run"}, GAME)
            booking.bind_place(done, GAME, None)

    with booked(ledger) as booking:
        booking.bind(START, {"rows": "of the run"}, GAME)
        booking.begin(4)
    placed(0)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=true")
    for done in (0, 3):
        with pytest.raises(ValueError, match="another device, mesh"):
            placed(done)
    placed(4)
    monkeypatch.undo()
    placed(4)
    with pytest.raises(ValueError, match="another device, mesh"):
        placed(0)  # elsewhere, other numbers may have been shown


@pytest.mark.parametrize("place", [(0, 0), (2, 0), (3, 1)])
def test_a_key_that_two_runs_of_a_sweep_share_is_refused_wherever_it_is(place):
    """Of one setting, or of two."""
    with pytest.raises(ValueError, match=r"keys \(0, \d\) and .* are equal"):
        swept(keys=KEYS.at[place].set(KEYS[0, 1]))


def test_a_sweep_that_cannot_save_or_charge_is_refused(tmp_path):
    with pytest.raises(ValueError, match="give ledger="):
        swept(name="all")
    with pytest.raises(ValueError, match="inside jit"):
        jax.jit(lambda data: swept(data=data, checkpoint=tmp_path / "runs"))(DATA)


@pytest.mark.nightly
def test_correlated_noise_goes_on_in_the_midst_of_its_parts(tmp_path):
    """Releases 5 to 9 begin within the second block of four."""
    def go(folder, callback=None):
        return jmm.fit(KEYS[1, 0], START, DATA, IN_TURN, jmm.sgda, GAME, delta=1e-5, every=5,
                       checkpoint=tmp_path / folder, progress=False, callback=callback).state

    def crash(state):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go("broken", crash)
    resumed = go("broken")
    chex.assert_trees_all_equal(resumed, go("whole"))


SCRIPT = textwrap.dedent("""
    import os, signal, sys
    import jax, jax.numpy as jnp, numpy as np
    import jaxminimax as jmm
    from jaxminimax import Saddle
    from jaxminimax.drivers import saved_runs

    folder, settings, seeds, kill_at = sys.argv[1], *map(int, sys.argv[2:])
    data = tuple(jax.random.normal(k, (200, 4)) for k in jax.random.split(jax.random.key(1)))
    game = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
    query = jmm.Query(clip=Saddle(2.0, 1.0), noise_multiplier=Saddle(9.0, 9.0), population=200,
                      **({"bands": 4, "sampling": jmm.mechanism.CyclicPoisson(rate=0.02, parts=4)}
                         if seeds > 2 else {"sampling": jmm.Disjoint(batch=20)}))
    hypers = jmm.stack([jmm.sgda.Hyper(query=query, step=Saddle(0.1 + 0.01 * k, 0.2),
                                       iterations=10) for k in range(settings)])
    keys = jax.random.split(jax.random.key(3), (settings, seeds))
    how = keys, Saddle(jnp.zeros(4), jnp.zeros(4)), data, hypers, jmm.sgda, game
    save = saved_runs.Folder.save

    def kill(self, step, state):
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        save(self, step, state)
        print("saved", step, flush=True)

    saved_runs.Folder.save = kill
    ledger = jmm.accounting.Ledger(folder + ".json", epsilon=30.0, delta=1e-5)
    done = jmm.sweep(*how, lambda state: state.z, at_once=seeds, checkpoint=folder, ledger=ledger,
                     name="all")
    whole = jmm.sweep(*how, lambda state: state.z, at_once=seeds)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), done, whole)
    print("same" if all(jax.tree.leaves(same)) and len(jax.tree.leaves(same)) > 4 else "differs")
    print("charged", ledger.odometer)
    if seeds > 2:
        alone = jmm.run(keys[1, 0], *how[1:3], jax.tree.map(lambda x: x[1], hypers), *how[4:])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1, 0], b, rtol=1e-5, atol=1e-6),
                     done.state, alone.state)
""")


@pytest.mark.nightly
@pytest.mark.parametrize(("settings", "seeds", "kill_at"), [(4, 2, 2), (20, 5, 7)])
def test_a_killed_sweep_loses_one_share_and_spends_nothing_twice(tmp_path, settings, seeds,
                                                                 kill_at):
    def go(at):
        command = [sys.executable, "-c", SCRIPT, tmp_path / "runs", settings, seeds, at]
        return subprocess.run(list(map(str, command)), env=os.environ | {"JAX_PLATFORMS": "cpu"},
                              check=False, capture_output=True, text=True)

    killed = go(kill_at)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout.count("saved") == kill_at
    ledger = jmm.accounting.Ledger(tmp_path / "runs.json")
    charged = ledger.odometer
    (entry,) = json.loads((tmp_path / "runs.json").read_text())["entries"]
    assert entry["releases"] == settings * seeds * 10
    done = go(-1)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("saved") == settings - kill_at
    assert done.stdout.splitlines()[-2:] == ["same", f"charged {charged}"]
