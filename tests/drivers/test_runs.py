"""Drivers: one compilation for many runs, and runs that survive being killed."""

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import textwrap

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.algorithms import planning
from jaxminimax.base import programs
from jaxminimax.drivers import long_runs, many_runs
from tests.helpers.lanes import rest_nightly

N, D = 200, 4
PROBLEM = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
START = Saddle(jnp.zeros(D), jnp.zeros(D))


def dataset():
    k = jax.random.split(jax.random.key(1))
    return tuple(jax.random.normal(x, (N, D)) for x in k)


def hyper(epsilon=1.0, iterations=40, sampling=None):
    """On public batches, quick to compile and to account for, where the sampling is no matter."""
    query = jmm.Query(clip=Saddle(2.0, 1.0), population=N,
                      sampling=sampling or jmm.Disjoint(batch=20))
    out = jmm.sgda.Hyper(query=query, step=Saddle(0.2, 0.2), iterations=iterations)
    return jmm.calibrate(jmm.sgda, out, epsilon, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", rest_nightly([
    jmm.Poisson(rate=0.1), jmm.Full(), jmm.Disjoint(batch=20)], 1))
def test_a_sweep_compiles_once_and_equals_the_single_runs(sampling):
    data = dataset()
    plain = hyper(sampling=jmm.Disjoint(batch=20))
    hypers = [dataclasses.replace(plain, query=dataclasses.replace(
        plain.query, sampling=sampling, noise_multiplier=Saddle(z, z))) for z in (9.0, 2.0, 0.5)]
    keys = jax.random.split(jax.random.key(0), (3, 4))
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def swept(keys, data, hypers):
        return jmm.sweep(keys, START, data, hypers, jmm.sgda, PROBLEM)[0]

    states = swept(keys, data, jmm.stack(hypers))
    swept(jax.random.split(jax.random.key(9), (3, 4)), data, jmm.stack(hypers[::-1]))
    assert states.z.w.shape == (3, 4, D)
    single = jax.jit(jmm.run, static_argnames=("algorithm", "problem"))
    for i in (0, 1, 2):
        for j in (0, 3):
            alone, _ = single(keys[i, j], START, data, hypers[i], jmm.sgda, PROBLEM)
            chex.assert_trees_all_close(jax.tree.map(lambda x, i=i, j=j: x[i, j], states), alone,
                                        rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_keys_shared_between_budgets_are_refused():
    """Their difference would cancel the noise."""
    with pytest.raises(ValueError, match="budgets, seeds"):
        jmm.sweep(jax.random.split(jax.random.key(0), 8), START, dataset(),
                  jmm.stack([hyper(1.0), hyper(2.0)]), jmm.sgda, PROBLEM)


def test_stacking_different_programs_is_refused():
    with pytest.raises(ValueError, match="sampling"):
        jmm.stack([hyper(), hyper(sampling=jmm.Full())])
    with pytest.raises(ValueError, match="Sweep each number of iterations on its own"):
        jmm.stack([hyper(iterations=t) for t in (3, 5)])


ROUNDS = 7


@pytest.fixture(scope="module")
def budgets():
    """Three budgets, and every run of theirs on its own."""
    tail = jmm.averaging.Averaging(skip=0.5)
    hypers = [dataclasses.replace(hyper(e, ROUNDS), averaging=tail) for e in (0.3, 1.0, 3.0)]
    keys, data = jax.random.split(jax.random.key(0), (3, 2)), dataset()
    single = jax.jit(jmm.run, static_argnames=("algorithm", "problem", "observe"))
    alone = [[single(keys[i, j], START, data, hypers[i], jmm.sgda, PROBLEM, path)
              for j in range(2)] for i in range(3)]
    return hypers, keys, data, alone


def path(state):
    return {"w": state.z.w, "spent": state.spent}


sweep = jax.jit(jmm.sweep, static_argnames=("algorithm", "problem", "observe", "at_once"))


@pytest.mark.slow
@pytest.mark.parametrize("at_once", rest_nightly([4, None, 1], 1))
def test_runs_of_a_sweep_are_each_their_own(budgets, at_once):
    """Four at once: budgets share a place, and one place is filled up."""
    hypers, keys, data, alone = budgets
    states, seen = jax.device_get(sweep(keys, START, data, jmm.stack(hypers), jmm.sgda, PROBLEM,
                                        path, at_once=at_once))
    assert seen["w"].shape == (3, 2, ROUNDS, D)
    for i in range(3):
        for j in range(2):
            here = jax.tree.map(lambda x, i=i, j=j: x[i, j], (states, seen))
            chex.assert_trees_all_close(here, tuple(alone[i][j]), rtol=1e-9, atol=1e-12)
            stated = jmm.statement(jmm.sgda, hypers[i], here[0], delta=1e-5)
            assert (stated.spent, stated.allowed) == (ROUNDS, ROUNDS)


@pytest.mark.slow
def test_a_run_of_two_releases_a_round_ends_where_it_should():
    query = dataclasses.replace(hyper().query, noise_multiplier=Saddle(2.0, 2.0))
    hypers = [jmm.extragradient.Hyper(query=query, step=Saddle(step, 0.2), iterations=3)
              for step in (0.1, 0.2)]
    keys = jax.random.split(jax.random.key(0), (2, 1))
    states, _ = sweep(keys, START, dataset(), jmm.stack(hypers), jmm.extragradient, PROBLEM)
    assert states.spent.tolist() == [[6], [6]]
    assert bool(jnp.all(jnp.isfinite(states.z.w)))
    over = jax.jit(jmm.extragradient.update, static_argnames="problem")(
        keys[0, 0], jax.tree.map(lambda x: x[0, 0], states), dataset(), hypers[0], PROBLEM)
    assert bool(jnp.all(jnp.isnan(over.z.w)))  # its releases are spent


@pytest.mark.nightly
def test_fewer_runs_at_once_need_less_memory_and_end_the_same():
    keys = jax.random.split(jax.random.key(0), (2, 8))
    stacked = jmm.stack([hyper(e, 3, jmm.Full()) for e in (1.0, 2.0)])
    made = {k: sweep.lower(keys, START, dataset(), stacked, jmm.sgda, PROBLEM,
                           at_once=k).compile() for k in (None, 3)}
    few, every = (made[k].memory_analysis().temp_size_in_bytes for k in (3, None))
    assert few < 0.4 * every
    one, other = (made[k](keys, START, dataset(), stacked)[0] for k in (3, None))
    chex.assert_trees_all_close(one, other, rtol=1e-9, atol=1e-12)


def test_no_runs_at_once_are_refused():
    keys, hypers = jax.random.split(jax.random.key(0), (2, 1)), [hyper(epsilon=e) for e in (1, 2)]
    with pytest.raises(ValueError, match="at_once"):
        jmm.sweep(keys, START, dataset(), jmm.stack(hypers), jmm.sgda, PROBLEM, at_once=0)


def drawn(algorithm=jmm.sgda, sampling=None):
    return many_runs._draws(algorithm.mechanism(hyper(sampling=sampling)))


def test_runs_that_share_their_rows_go_on_together():
    assert drawn(sampling=jmm.Poisson(rate=0.1))
    assert not drawn(sampling=jmm.Full())
    assert not drawn(sampling=jmm.Disjoint(batch=20))
    sizes = jmm.GroupGradients(clip=1.0, noise_multiplier=1.0, sizes=(3, 4))
    assert not many_runs._draws(jmm.group_sgd.mechanism(jmm.group_sgd.example(sizes, 2)))


# --- programs that are kept ---


class Mine:
    """An algorithm whose functions may be replaced, as those of a module that is loaded again."""

    mechanism, init, update = jmm.sgda.mechanism, jmm.sgda.init, jmm.sgda.update


def once(data, problem, algorithm=Mine, swept=False, **query):
    described = jmm.Query(**{"clip": Saddle(1.0, None), "noise_multiplier": Saddle(0.0, None),
                             "population": len(data), **query})
    settings = jmm.sgda.Hyper(query=described, step=Saddle(1.0, 1.0), iterations=1)
    z, key = Saddle(jnp.zeros(3), jnp.zeros(())), jax.random.key(0)
    if not swept:
        return jmm.run(key, z, data, settings, algorithm, problem).state.z.w
    return jmm.sweep(key[None, None], z, data, jmm.stack([settings]), algorithm,
                     problem).state.z.w[0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("swept", rest_nightly([False, True], 1))
def test_a_kept_program_is_no_stale_promise(monkeypatch, swept):
    rows, others = jnp.ones((8, 3)), 2 * jnp.ones((8, 3))
    problem = jmm.Problem(lambda z, x: Saddle(x + 0 * jnp.sum(others), jnp.zeros(())))
    go = functools.partial(once, swept=swept)
    first = go(rows, problem)
    with monkeypatch.context() as patch:
        patch.setattr(programs, "walk", None)  # nothing is looked into a second time
        np.testing.assert_array_equal(go(rows, problem), first)
    # the same shapes, and one is what the problem closes over
    with pytest.raises(ValueError, match="the data's own arrays"):
        go(others, problem)
    # other numbers of the description, other settings, another problem, another update
    assert np.linalg.norm(go(rows, problem, clip=Saddle(0.1, None))) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="clip"):
        go(rows, problem, clip=Saddle(-1.0, None))
    assert not np.allclose(go(rows, problem, noise_multiplier=Saddle(1.0, None)), first)
    assert np.all(go(rows, jmm.Problem(lambda z, x: Saddle(-x, jnp.zeros(())))) == -first)
    monkeypatch.setattr(Mine, "update", lambda key, state, data, hyper, problem: jmm.sgda.update(
        key, state, data, dataclasses.replace(hyper, query=dataclasses.replace(
            hyper.query, clip=Saddle(2.0, None))), problem))
    with pytest.raises(ValueError, match="other settings"):
        go(rows, problem)
    monkeypatch.setattr(Mine, "update", staticmethod(jmm.sgda.update))
    monkeypatch.setattr(Mine, "mechanism", lambda hyper: jmm.Sequence(
        parts=(jmm.sgda.mechanism(hyper),) * 2))
    with pytest.raises(ValueError, match="never releases"):
        go(rows, problem)


@pytest.mark.slow
def test_a_bar_counts_the_runs_and_changes_nothing(budgets, capsys):
    hypers, keys, data, _ = budgets
    stacked = jmm.stack(hypers)
    plain, shown = (jmm.sweep(keys, START, data, stacked, jmm.sgda, PROBLEM, path, at_once=4,
                              progress=progress) for progress in (False, True))
    chex.assert_trees_all_equal(shown, plain)
    assert "6/6" in capsys.readouterr().err


@pytest.mark.slow
def test_observations_come_back_a_round_each():
    state, trace = jmm.run(jax.random.key(0), START, dataset(), hyper(), jmm.sgda, PROBLEM,
                           observe=lambda s: s.spent)
    np.testing.assert_array_equal(trace, np.arange(1, 41))
    assert int(state.spent) == 40


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 7, 40, 1000])
def test_fit_is_run_in_pieces(every):
    one, _ = jax.jit(jmm.run, static_argnames=("algorithm", "problem"))(
        jax.random.key(3), START, dataset(), hyper(), jmm.sgda, PROBLEM)
    seen = []
    done = jmm.fit(jax.random.key(3), START, dataset(), hyper(), jmm.sgda, PROBLEM, delta=1e-5,
                   every=every, progress=False, callback=lambda s: seen.append(int(s.spent)))
    chex.assert_trees_all_close(done.state, one, rtol=1e-12, atol=1e-12)
    assert seen == sorted({*range(every, 41, every), 40})
    assert done.statement.spent == 40
    assert 0.99 < done.statement.epsilon <= 1.0
    assert bool(jnp.all(START.w == 0))  # the caller's point was not donated away


@pytest.mark.parametrize(("people", "neighbours", "other"), [
    (1, "replace_one", ()), (3, "replace_one", ()), (3, "add_or_remove_one", ()),
    (2, "replace_one", (jmm.Repeat(query=jmm.Query(clip=Saddle(1.0, None), population=N,
                                                   noise_multiplier=Saddle(9.0, None)),
                                   times=3),))])
def test_a_statement_of_fit_is_of_what_was_asked_for(monkeypatch, people, neighbours, other):
    """Of all releases, others next to them, so many records of a person and the relation."""
    monkeypatch.setattr(long_runs, "_piece", lambda rows, state, *rest: state._replace(
        spent=state.spent + rest[3]))  # nothing is computed
    settings = hyper(iterations=4, sampling=jmm.Full())
    done = jmm.fit(jax.random.key(3), START, dataset(), settings, jmm.sgda, PROBLEM, delta=1e-5,
                   people=people, neighbours=neighbours, alongside=other, progress=False)
    everything = jmm.Sequence(parts=(*other, jmm.sgda.mechanism(settings)))
    assert done.statement.epsilon == pytest.approx(jmm.epsilon(
        everything, 1e-5, people=people, neighbours=neighbours), rel=1e-9)
    assert (done.statement.people, done.statement.neighbours) == (people, neighbours)
    assert done.statement.unit == ("one record" if people == 1 else f"any {people} records")


@pytest.mark.slow
def test_a_run_that_stops_is_gone_on_with_bit_for_bit(tmp_path):
    def go(folder, callback=None):
        return jmm.fit(jax.random.key(3), START, dataset(), hyper(), jmm.sgda, PROBLEM, delta=1e-5,
                       every=8, checkpoint=folder, progress=False, callback=callback)

    def crash(state):
        if state.spent == 24:
            raise KeyboardInterrupt

    full = go(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "broken", crash)
    seen = []
    resumed = go(tmp_path / "broken", lambda s: seen.append(int(s.spent)))
    assert seen == [32, 40]  # it went on, and did not start over
    chex.assert_trees_all_equal(resumed.state, full.state)
    again = go(tmp_path / "broken")  # nothing is left to do, and nothing is spent twice
    chex.assert_trees_all_equal(again.state, full.state)
    assert again.statement == full.statement


@pytest.mark.slow
def test_a_schedule_of_optax_is_a_step_and_its_function_alone_is_refused(tmp_path):
    def run(step, **how):
        settings = dataclasses.replace(hyper(iterations=4), step=Saddle(step, 0.1))
        return jmm.fit(jax.random.key(3), START, dataset(), settings, jmm.sgda, PROBLEM, delta=1e-5,
                       progress=False, **how).state.z

    schedule = optax.linear_schedule(0.2, 0.0, 4)
    ours = run(planning.Linear(scale=0.2, rounds=4.0))
    for how in ({}, {"checkpoint": tmp_path / "run"}):
        done = run(planning.FromOptax(schedule=schedule), **how)
        chex.assert_trees_all_close(done, ours, atol=1e-6)
    with pytest.raises(TypeError, match=r"hyper\.step\.w must be a number.*FromOptax"):
        run(schedule)


@pytest.mark.nightly
@pytest.mark.parametrize("switch", [jax.disable_jit, lambda: jax.enable_x64(False),
                                    lambda: jax.numpy_dtype_promotion("strict")],
                         ids=["disable_jit", "x32", "strict promotion"])
def test_a_switch_of_jax_leaves_a_run_as_it_is(switch):
    start, data = jax.tree.map(lambda x: np.asarray(x, np.float32), (START, dataset()))

    def run():
        return jmm.fit(jax.random.key(3), start, data, settings, jmm.sgda, PROBLEM, delta=1e-5,
                       progress=False).state.z

    settings = hyper(iterations=3)
    wanted = run()
    with switch():
        chex.assert_trees_all_close(run(), wanted, atol=1e-6)


@pytest.mark.slow
def test_metrics_of_a_callback_are_those_of_a_run_that_ends_there():
    seen, settings = [], hyper()

    def fit(callback):
        return jmm.fit(jax.random.key(3), START, dataset(), settings, jmm.sgda, PROBLEM, delta=1e-5,
                       every=10, progress=False, callback=callback)

    def log(state, metrics):
        seen.append(metrics)
        return jnp.asarray(metrics.round == 30)  # of JAX, as of a metric of a model

    ended = fit(log)
    assert [(x.round, x.rounds, x.releases) for x in seen] == [(k, 40, k) for k in (10, 20, 30)]
    assert sorted(x.seconds for x in seen) == [x.seconds for x in seen]
    stated = ended.statement
    assert seen[-1].epsilon == min(stated.epsilon, stated.epsilon_if_stopped_by_looking)
    assert all(x.epsilon <= stated.epsilon for x in seen)
    # not how long a release took, which statements assume to be unknown
    assert seen[-1].to_json() == {"round": 30, "rounds": 40, "releases": 30,
                                  "epsilon": seen[-1].epsilon}
    # a second argument with a default is the caller's own
    fit(lambda state, own="own": seen.append(own))
    assert seen[3:] == ["own"] * 4
    with pytest.raises(TypeError, match=r"callback is called with \(state, metrics\)"):
        fit(lambda a, b, c: None)


def test_a_player_without_a_clip_norm_may_have_no_step():
    query = jmm.Query(clip=Saddle(1.0, None), population=N, noise_multiplier=Saddle(1.0, None))
    made = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.0), iterations=2)
    assert jmm.sgda.init(Saddle(jnp.zeros(D), ()), made).z.v == ()
    for wrong in (Saddle(0.0, 0.0), Saddle(0.1, -1.0)):
        with pytest.raises(ValueError, match=r"step\.[wv]"):
            jmm.sgda.init(START, dataclasses.replace(made, step=wrong))


def test_debug_nans_is_refused_by_fit():
    with jax.debug_nans(True), pytest.raises(ValueError, match="jax_debug_nans is on"):
        jmm.fit(jax.random.key(3), START, dataset(), hyper(), jmm.sgda, PROBLEM, delta=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("answer", [True, np.True_])
def test_a_callback_that_returns_true_ends_the_run_with_its_statement(answer, tmp_path):
    ledger = jmm.accounting.Ledger(tmp_path / "ledger.json", epsilon=2.0, delta=1e-5)
    settings = hyper()

    def run(name, callback):
        return jmm.fit(jmm.noise.secret_key(), START, dataset(), settings, jmm.sgda, PROBLEM,
                       delta=1e-6, every=8, progress=False, ledger=ledger, name=name,
                       callback=callback)

    whole = run("whole", lambda state: (False, None, 1)[int(state.spent) // 8 % 3])
    spent = 1 - ledger.remaining().share
    ended = run("ended", lambda state: answer if state.spent == 16 else None)
    assert (int(whole.state.spent), int(ended.state.spent)) == (40, 16)
    assert (ended.statement.spent, ended.statement.allowed) == (16, 40)
    # epsilon holds for any reason to end; the odometer is smaller
    assert ended.statement.epsilon == whole.statement.epsilon
    assert ended.statement.epsilon_if_stopped_by_looking < ended.statement.epsilon
    assert 1 - ledger.remaining().share < 1.6 * spent


SCRIPT = textwrap.dedent("""
    import os, signal, sys
    import jax, jax.numpy as jnp, numpy as np
    import jaxminimax as jmm
    from jaxminimax import Saddle

    kill_at = int(sys.argv[1])
    data = tuple(jax.random.normal(k, (200, 4)) for k in jax.random.split(jax.random.key(1)))
    problem = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
    query = jmm.Query(clip=Saddle(2.0, 1.0), noise_multiplier=Saddle(2.0, 2.0), population=200,
                      sampling=jmm.Poisson(rate=0.1))
    hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.2, 0.2), iterations=40)

    def kill(state):
        if int(state.spent) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    for folder in sys.argv[2:]:
        done = jmm.fit(jax.random.key(3), Saddle(jnp.zeros(4), jnp.zeros(4)), data, hyper, jmm.sgda,
                       problem, delta=1e-5, every=8, checkpoint=folder, progress=False,
                       callback=kill)
        np.savez(folder + ".npz", w=done.state.z.w, v=done.state.average.v, spent=done.state.spent)
""")


@pytest.mark.nightly
def test_a_killed_process_resumes_bit_for_bit_in_float32(tmp_path):
    def go(kill_at, *folders):
        command = [sys.executable, "-c", SCRIPT, str(kill_at)]
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        return subprocess.run(command + [str(tmp_path / x) for x in folders], env=environment,
                              check=False, capture_output=True, text=True)

    assert go(16, "killed").returncode == -signal.SIGKILL
    assert not (tmp_path / "killed.npz").exists()
    done = go(-1, "killed", "whole")  # one goes on, one starts afresh
    assert done.returncode == 0, done.stderr
    one, other = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "killed.npz")
    assert one["w"].dtype == np.float32
    for name in ("w", "v", "spent"):
        np.testing.assert_array_equal(one[name], other[name])
    assert other["spent"] == 40


@pytest.mark.slow
def test_a_folder_of_another_run_is_refused(tmp_path):
    def go(seed=3, epsilon=1.0, algorithm=jmm.sgda):
        return jmm.fit(jax.random.key(seed), START, dataset(), hyper(epsilon), algorithm, PROBLEM,
                       delta=1e-5, checkpoint=tmp_path / "a", every=20, progress=False)

    go()
    with pytest.raises(ValueError, match="another key"):
        go(seed=4)  # other noise for rounds that were released: a budget spent twice
    with pytest.raises(ValueError, match="another mechanism"):
        go(epsilon=2.0)


def test_a_folder_never_holds_the_key(tmp_path):
    key = jax.random.wrap_key_data(jnp.array([0xDEADBEEF, 0xFEEDFACE], jnp.uint32))
    jmm.fit(key, START, dataset(), hyper(), jmm.sgda, PROBLEM, delta=1e-5, every=20,
            checkpoint=tmp_path / "a", progress=False)
    words = [b"\xef\xbe\xad\xde", b"\xde\xad\xbe\xef", b"3735928559", b"4277009102"]
    for path in (tmp_path / "a").rglob("*"):
        if path.is_file():
            assert not any(word in path.read_bytes() for word in words)


def test_a_bad_description_is_refused_before_data_are_touched():
    query = jmm.Query(clip=Saddle(0.0, 1.0), noise_multiplier=Saddle(1.0, 1.0), population=N)
    bad = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=3)
    with pytest.raises(ValueError, match=r"clip\.w"):
        jmm.run(jax.random.key(0), START, None, bad, jmm.sgda, PROBLEM)
    with pytest.raises(ValueError, match=r"clip\.w"):
        jmm.fit(jax.random.key(0), START, None, bad, jmm.sgda, PROBLEM, delta=1e-5)
