"""What is in `algorithms/` is known wherever algorithms are chosen, and in the documents."""

import inspect
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.accuracy.auc import runs as auc_runs
from benchmarks.privacy import audit as benchmark
from jaxminimax import Saddle, algorithms
from jaxminimax.algorithms import ALGORITHMS, described_by
from jaxminimax.mechanism import composed
from tests import golden
from tests.helpers.lanes import rest_nightly

ROOT = pathlib.Path(__file__).parents[2]
# no algorithms of their own
SHARED = {"bounds", "descent", "planning", "recursion"}
FILES = {path.stem for path in (ROOT / "jaxminimax" / "algorithms").glob("*.py")} - {
    "__init__", *SHARED}
every_algorithm = pytest.mark.parametrize("name", sorted(FILES))
# with every change sums, groups, streams, solutions and phases: where runs of all go, every night
SEVERAL = ["extragradient", "ftrl", "group_sgd", "proximal", "recursive_inner", "sgda"]
several_algorithms = pytest.mark.parametrize(
    "name", rest_nightly([*SEVERAL, *sorted(FILES - set(SEVERAL))], len(SEVERAL)))


def test_every_file_is_registered():
    assert FILES == set(ALGORITHMS) == set(algorithms.__all__)
    assert all(getattr(jmm, name) is module for name, module in ALGORITHMS.items())


@every_algorithm
def test_it_has_what_an_algorithm_has(name):
    module = ALGORITHMS[name]
    assert inspect.isclass(module.Hyper)
    assert {"z", "average", "spent"} <= set(dir(module.State))
    for function in ("mechanism", "init", "update", "example"):
        assert callable(getattr(module, function))
    assert list(inspect.signature(module.example).parameters)[:2] == ["query", "iterations"]
    assert "Source:" in module.__doc__
    assert described_by(module).__module__.startswith("jaxminimax.mechanism")


@every_algorithm
def test_it_shows_what_its_users_need_and_no_step_of_a_theorem(name):
    """Names that other modules of the folder need alone are not of the interface."""
    module = ALGORITHMS[name]
    shown = set(dir(module))
    assert shown >= {"Hyper", "State", "example", "init", "mechanism", "update"}
    assert len(shown) <= 11
    assert all((getattr(module, x).__doc__ or "").strip() for x in shown - {"plan_variants"})


@every_algorithm
def test_an_attack_or_a_case_of_the_audit_is_for_it(name):
    module = ALGORITHMS[name]
    streams = [attack.algorithm for attack in benchmark.STREAMS()]
    cases = name in benchmark.modules() and [
        case for case in benchmark.CASES if benchmark.hyper_of(module, case) is not None]
    assert bool(cases) != (module in streams)


@every_algorithm
def test_the_example_runs_what_it_describes(name):
    """As many releases as rounds, or whole multiples."""
    module = ALGORITHMS[name]
    if name in benchmark.modules():
        hyper = benchmark.hyper_of(module, benchmark.Case(jmm.Full(), 3))
    else:
        hyper = next(x.hyper for x in benchmark.STREAMS() if x.algorithm is module)
    rounds = hyper.iterations
    assert jmm.mechanism.releases(module.mechanism(hyper)) % rounds == 0


@every_algorithm
def test_the_documents_have_a_row_for_it(name):
    page = (ROOT / "docs/choosing.md").read_text()
    assert len(re.findall(rf"^\|.*`{name}`", page, re.MULTILINE)) >= 2


def test_the_auc_benchmark_runs_what_releases_clipped_sums_of_all_records():
    assert {"sgda", "gda", "extragradient", "optimistic"} <= set(auc_runs.ALGORITHMS)
    assert "recursive_sgda" not in auc_runs.ALGORITHMS


# --- no optional part of a problem is ignored ---

# of every algorithm the first case of its name: (algorithm, hyper, problem, start, data)
RUNS = {name: next(case for label, case in golden.CASES.items() if label.split("/")[0] == name)
        for name in FILES}
OF_GROUPS = {name for name, case in RUNS.items() if isinstance(case[2], jmm.GroupProblem)}
SOLVED = {"proximal", "recursive", "phased_erm"}  # refuse problems that draw


def quiet_run(name, problem, seed=0):
    algorithm, hyper, _, start, data = RUNS[name]
    return start, jmm.run(jax.random.key(seed), start, data, composed.with_noise_of_all(hyper, 0.0),
                          algorithm, problem)[0].z


def still(z, record):
    return jax.tree.map(jnp.zeros_like, z)


def to_one(z):
    return jax.tree.map(lambda x: x - 1, z)


def box(z):
    return jax.tree.map(lambda x: jnp.clip(x, -0.12, 0.12), z)


def pushed(z, record):
    return jax.tree.map(lambda x: -jnp.ones_like(x), z)


def drawn(z, record, key):
    return jax.tree.map(lambda x: 0 * x + jax.random.normal(key, dtype=x.dtype), z)


def never(z, data):
    raise AssertionError("only metrics read the value")


@pytest.mark.slow
@several_algorithms
def test_public_terms_alone_decide_where_a_run_goes(name):
    """Records say nothing; a strongly monotone public term pulls every coordinate to 1."""
    if name in OF_GROUPS:
        with pytest.raises(TypeError, match="must be a GroupProblem"):
            quiet_run(name, jmm.Problem(still, public=to_one))
        return
    start, end = quiet_run(name, jmm.Problem(still, public=to_one, value=never))
    before, after = (sum(float(jnp.sum((x - 1) ** 2)) for x in jax.tree.leaves(z))
                     for z in (start, end))
    # the average of one phase, in which recursion over another algorithm begins
    assert after < (0.9 if name == "recursive_inner" else 0.6) * before
    assert jax.tree.leaves(quiet_run(name, jmm.Problem(still))[1])[0] == pytest.approx(
        jax.tree.leaves(start)[0])


@pytest.mark.slow
@several_algorithms
def test_the_conjugate_of_a_composed_problem_decides_where_weights_go(name):
    """Losses say nothing, and Phi* is least beyond one end of V or the other."""
    def end(least):
        problem = jmm.problems.composed(
            [lambda w, record: 0 * jnp.sum(w)] * 2, loss_bound=1.0, slope=1.0, curvature=0.0,
            domain=Saddle(jmm.problems.ball(1.0),
                          jmm.problems.box(np.zeros(2), np.full(2, 0.08))),
            conjugate=lambda v: jnp.sum((v - least) ** 2) / 2)
        return quiet_run(name, problem.problem._replace(value=never))[1].v

    if name in OF_GROUPS:
        with pytest.raises(TypeError, match="must be a GroupProblem"):
            end(1.0)
        return
    high, low = end(1.0), end(-1.0)
    assert float(jnp.min(high - low)) > 0.01
    assert float(jnp.max(high)) <= 0.08 + 1e-6


@pytest.mark.slow
@several_algorithms
def test_the_projection_alone_decides_where_a_run_ends(name):
    problem = (RUNS[name][2]._replace(project=box) if name in OF_GROUPS
               else jmm.Problem(pushed, project=box, value=never))
    end = quiet_run(name, problem)[1].w
    assert 0.11 < max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(end)) <= 0.12 + 1e-6


@pytest.mark.slow
@several_algorithms
def test_draws_alone_decide_where_a_run_goes_or_are_refused(name):
    problem = (golden.RANDOM_WORST if name in OF_GROUPS
               else jmm.Problem(drawn, project=box, random=True))
    if name in SOLVED:
        with pytest.raises(ValueError, match="random=True"):
            quiet_run(name, problem)
        return
    one, other = (quiet_run(name, problem, seed)[1].w for seed in (0, 1))
    assert float(jnp.max(jnp.abs(one - other))) > 1e-3


@pytest.mark.slow
def test_a_public_term_that_draws_has_its_own_key_in_a_stream():
    def of(seed):
        problem = jmm.Problem(lambda z, record, key: still(z, record), random=True,
                              public=lambda z, key: drawn(z, None, key))
        return quiet_run("ftrl", problem, seed)[1].w

    assert jnp.array_equal(of(0), of(0))
    assert not jnp.array_equal(of(0), of(1))


def test_a_leaf_without_a_record_has_no_public_term():
    """Rounds beyond the last record are none of those that the bound of `ftrl` counts."""
    algorithm, hyper, _, start, data = RUNS["ftrl"]
    short = jax.tree.map(lambda x: x[:2], data)  # and four leaves
    problem = jmm.Problem(still, public=to_one)
    path = jmm.run(jax.random.key(0), start, short, composed.with_noise_of_all(hyper, 0.0),
                   algorithm, problem, lambda state: state.z.w)[1]
    assert not jnp.array_equal(path[0], path[1])
    assert jnp.array_equal(path[1], path[2])
    assert jnp.array_equal(path[2], path[3])
