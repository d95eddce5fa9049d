"""Runs take NumPy's arrays for what they are, and only arithmetic that the guarantee covers."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.algorithms import ALGORITHMS
from jaxminimax.base import checks

N, D = 24, 2
KEY = jax.random.key(5)
ROWS = tuple(np.random.default_rng(0).normal(size=(2, N, D)))
LABELS = np.sign(ROWS[1][:, 0])
PAIR = Saddle(np.full(D, 0.1), np.full(D, 0.2))
GAME = jmm.problems.quadratic_game(modulus=1.0, coupling=0.5, radius=Saddle(2.0, 2.0))
WALK = jmm.Problem(operator=jmm.saddle_operator(lambda w, v, x: jnp.tanh(w @ x[0] + v @ x[1])))
STEPS = Saddle(0.2, 0.2)


def query(population=N, sampling=jmm.Disjoint(batch=6)):
    return jmm.Query(clip=Saddle(2.0, 1.0), noise_multiplier=Saddle(2.0, 2.0),
                     population=population, sampling=sampling)


def resolvent(**values):
    return jmm.mechanism.Resolvent(**{"bound": 1.0, "prox": 3.0, "lipschitz": 2.0, "diameter": 6.0,
                                      "noise_multiplier": 1.0, "population": N,
                                      "assumes": "lipschitz",
                                      **values})


def groups():
    """The records by group, the model, and a loss with known constants."""
    data, sizes = jmm.problems.by_group((ROWS[0], LABELS), np.arange(N) % 3)
    task = jmm.problems.group_glm("logistic", feature_bound=4.0, radius=2.0)
    return data, sizes, task


def cases():
    """Every algorithm: its hyper, its problem, where it starts and what it reads."""
    data, sizes, task = groups()
    model = Saddle(np.full(D, 0.1), ())
    gradients = jmm.GroupGradients(clip=1.0, noise_multiplier=1.0, sizes=sizes)

    def losses(**how):
        return jmm.GroupLosses(bound=2.0, noise_multiplier=3.0, sizes=sizes, **how)

    grouped = dict(query=gradients, step=0.5, iterations=2)
    oco = jmm.Parallel(parts=(jmm.mechanism.TreeSums(clip=1.0, noise_multiplier=1.0, leaves=3),
                              jmm.mechanism.RecordLosses(bound=2.0, noise_multiplier=1.0, times=3)),
                       in_turn=True)
    solution = jmm.phased_erm.certified(jmm.mechanism.GroupSolution(
        lipschitz=task.lipschitz, bound=task.bound, smooth=task.smooth, diameter=task.diameter,
        reg_w=1.0, reg_lam=1.0, slack=0.1, noise_multiplier=1.0, sizes=sizes, phases=2))
    growing = jmm.recursive.certified(resolvent(
        population=N // 2, doubling=True, assumes="monotone", sampling=jmm.Full()), 2)
    return {
        "sgda": (jmm.sgda.Hyper(query=query(sampling=jmm.Poisson(rate=0.3)), step=STEPS,
                                iterations=3), GAME, PAIR, ROWS),
        "gda": (jmm.gda.Hyper(query=query(sampling=jmm.Full()), modulus=1.0, iterations=3), GAME,
                PAIR, ROWS),
        "extragradient": (jmm.extragradient.Hyper(query=query(), step=STEPS, iterations=2), GAME,
                          PAIR, ROWS),
        "optimistic": (jmm.optimistic.Hyper(query=query(), step=STEPS, iterations=3), GAME, PAIR,
                       ROWS),
        "proximal": (jmm.proximal.Hyper(query=jmm.proximal.certified(resolvent()), iterations=2),
                     GAME, PAIR, ROWS),
        "recursive": (jmm.recursive.Hyper(query=growing, iterations=2), GAME, PAIR, ROWS),
        "recursive_sgda": (jmm.recursive_sgda.Hyper(
            query=query(N // 2), base=0.1, diameter=4.0, rounds=2, inner=2), GAME, PAIR, ROWS),
        "ftrl": (jmm.ftrl.Hyper(step=0.1, query=jmm.mechanism.TreeSums(clip=1.0,
                                                                       noise_multiplier=1.0,
                                                                       leaves=3)),
                 WALK, PAIR, ROWS),
        "group_sgd": (jmm.group_sgd.Hyper(**grouped, losses=losses(), weight_step=0.3), task,
                      model, data),
        "balanced_groups": (jmm.balanced_groups.Hyper(
            query=dataclasses.replace(gradients, groups="all"), losses=losses(), step=0.5,
            iterations=2, balanced=0.0), task, model, data),
        "active_groups": (jmm.active_groups.Hyper(**grouped, losses=jmm.mechanism.Selection(
            bound=2.0, noise_multiplier=3.0, sizes=sizes)), task, model, data),
        "group_oco": (jmm.group_oco.Hyper(query=oco, step=0.1, weight_step=0.1, sizes=sizes), task,
                      model, data),
        "phased_erm": (jmm.phased_erm.Hyper(query=solution), task, model, data),
    }


NAMES = tuple(ALGORITHMS)


def case(name):
    """That of its name, or the example of an algorithm that takes a `Query`."""
    return cases().get(name) or (ALGORITHMS[name].example(query(), 3), GAME, PAIR, ROWS)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.slow if name == "group_oco" else pytest.mark.nightly)
    for name in NAMES])
def test_a_run_takes_numpys_arrays_for_jaxs(name):
    """Bit for bit, by the plain driver, which traces what it is given."""
    hyper, problem, z, data = case(name)
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves((z, data)))
    algorithm = getattr(jmm, name)
    mine, theirs = (jmm.run(KEY, *both, hyper, algorithm, problem)[0]
                    for both in ((z, data), jax.tree.map(jnp.asarray, (z, data))))
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(mine.average))
    chex.assert_trees_all_equal(mine, theirs)


@pytest.mark.slow
def test_the_other_drivers_take_them_too():
    hyper, problem, z, data = cases()["sgda"]
    on_device = jax.tree.map(jnp.asarray, (z, data))
    keys, hypers = jax.random.split(KEY, (2, 1)), jmm.stack([hyper, hyper])
    for at_once in (None, 1):
        shapes = [jax.eval_shape(lambda both=both, k=at_once: jmm.sweep(
            keys, *both, hypers, jmm.sgda, problem, at_once=k)[0]) for both in (
                (z, data), on_device)]
        chex.assert_trees_all_equal_shapes_and_dtypes(*shapes)
    states = [jmm.fit(KEY, *both, hyper, jmm.sgda, problem, delta=1e-6, progress=False).state
              for both in ((z, data), on_device)]
    chex.assert_trees_all_equal(*states)


# --- equal keys ---


@pytest.mark.slow
def test_equal_keys_of_a_sweep_are_refused_by_their_places():
    hyper, problem, z, data = cases()["sgda"]
    stacked = jmm.stack([hyper, hyper])
    keys = jax.random.split(KEY, (2, 3)).at[1, 2].set(jax.random.split(KEY, (2, 3))[0, 1])
    for at_once in (None, 2):
        with pytest.raises(ValueError, match=r"keys \(0, 1\) and \(1, 2\) are equal"):
            jmm.sweep(keys, z, data, stacked, jmm.sgda, problem, at_once=at_once)
    closed = jax.jit(lambda: jmm.sweep(keys, z, data, stacked, jmm.sgda, problem)[0])
    with pytest.raises(ValueError, match="are equal"):
        closed.lower()
    with pytest.raises(ValueError, match="are equal"):
        jmm.sweep(jnp.stack([KEY, KEY])[:, None], z, data, stacked, jmm.sgda, problem)
    # unknown under jit: the caller's to see to, as documented
    jax.jit(lambda keys: jmm.sweep(keys, z, data, stacked, jmm.sgda, problem)[0]).lower(keys)


# --- arithmetic ---


def entries():
    """Every way into a run, and a release by itself."""
    hyper, problem, z, data = cases()["sgda"]
    z, data = jax.tree.map(jnp.asarray, (z, data))
    keys, state = jax.random.split(KEY, (1, 1)), jmm.sgda.init(z, hyper)
    return (lambda: jmm.run(KEY, z, data, hyper, jmm.sgda, problem),
            lambda: jmm.sweep(keys, z, data, jmm.stack([hyper]), jmm.sgda, problem),
            lambda: jmm.fit(KEY, z, data, hyper, jmm.sgda, problem, delta=1e-6, progress=False),
            lambda: jmm.sgda.update(KEY, state, data, hyper, problem),
            lambda: jax.jit(lambda s: jmm.sgda.update(KEY, s, data, hyper, problem)).lower(state))


@pytest.mark.parametrize("name", ["debug_nans", "debug_infs"])
def test_records_do_not_decide_whether_a_run_ends(name):
    calls = entries()
    for call in calls:
        with getattr(jax, name)(True), pytest.raises(ValueError, match=f"jax_{name} is on"):
            call()
    checks.exact_arithmetic()


@pytest.mark.parametrize("flag", [
    "--xla_cpu_enable_fast_math=true", "--xla_cpu_enable_fast_math", "--xla_cpu_enable_fast_math=1",
    "--xla_cpu_enable_fast_min_max=true", "--xla_gpu_enable_fast_min_max=True",
])
def test_fast_mathematics_is_refused(monkeypatch, tmp_path, flag):
    calls = entries()
    (tmp_path / "flags").write_text(f"--xla_foo=2\n{flag}\n")
    for given in (flag, f"--xla_foo=2 {flag} --xla_bar", str(tmp_path / "flags")):
        monkeypatch.setenv("XLA_FLAGS", given)
        for call in calls:
            with pytest.raises(ValueError, match="XLA_FLAGS has --xla"):
                call()


@pytest.mark.parametrize("given", [
    "", "--xla_cpu_enable_fast_math=false", "--xla_force_host_platform_device_count=8", "/nowhere",
    "--xla_cpu_enable_fast_math=true --xla_cpu_enable_fast_math=false",  # the last one counts
])
def test_other_flags_are_not(monkeypatch, given):
    monkeypatch.setenv("XLA_FLAGS", given)
    checks.exact_arithmetic()
