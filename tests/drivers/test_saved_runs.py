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
from jaxminimax.drivers import runs, saved_runs
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
