"""All plans side by side: no two kinds of gap in one order, and what is missing is named."""

import inspect
import json
import math
import pathlib
import time

import jax.numpy as jnp
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.algorithms import ALGORITHMS
from jaxminimax.drivers.plans import KINDS

NUMBERS = dict(epsilon=1.0, delta=1e-6, population=1000, dim=4, bound=1.0, smooth=1.0,
               diameter=math.sqrt(8), radius=math.sqrt(2))
GROUPS = dict(epsilon=1.0, delta=1e-6, dim=4, sizes=(900, 700))
PROBLEM = jmm.problems.group_glm("logistic", feature_bound=1.0, radius=1.0)
RESULTS = pathlib.Path(__file__).parents[2] / "benchmarks/rates/results/plans.json"


@pytest.fixture(scope="module")
def found():
    return jmm.plans(**NUMBERS, modulus=0.5)


def kind(one):
    return (one.gap, one.on) if one.plan is not None else None


@pytest.mark.slow
def test_bounds_are_sorted_within_one_kind_of_gap(found):
    """Kinds are blocks in one order, numbers rise within each, and what has none comes last."""
    blocks = [k for i, k in enumerate(map(kind, found)) if i == 0 or k != kind(found[i - 1])]
    assert len(blocks) == len(set(blocks))
    ranked = [k for k in blocks if k not in (("", ""), None)]
    assert ranked == sorted(ranked, key=list(KINDS).index)
    assert blocks[len(ranked):] == [("", ""), None]
    assert {("strong", "population"), ("weak", "population"), ("strong", "records")} <= set(ranked)
    for block in ranked:
        bounds = [x.plan.guarantee for x in found if kind(x) == block]
        assert bounds == sorted(bounds)
    costs = [x.gradients for x in found if kind(x) == ("", "")]
    assert costs == sorted(costs)


def test_a_smaller_bound_of_another_kind_does_not_come_first(found):
    """The gap on the records themselves has the smallest number of a strong gap."""
    strong = {on: min(x.plan.guarantee for x in found if kind(x) == ("strong", on))
              for on in ("population", "records")}
    assert strong["records"] < strong["population"]
    assert found[0].on == "population"


def test_each_plan_is_the_algorithms_own_and_meets_the_target(found):
    for one in found:
        if one.plan is None:
            continue
        module = getattr(jmm, one.algorithm)
        takes = inspect.signature(module.plan).parameters
        given = {name: x for name, x in NUMBERS.items() if name in takes}
        if one.algorithm == "gda":
            given["modulus"] = 0.5
        again = jmm.plan(module, epsilon=1.0, delta=1e-6, **given, **one.arguments)
        assert again.guarantee == one.plan.guarantee
        described = module.mechanism(one.plan.hyper)
        assert jmm.epsilon(described, 1e-6) <= 1
        assert one.releases == jmm.mechanism.releases(described)
        assert (one.gap, one.on) == ((again.gap, again.on) if again.guarantee is not None else
                                     ("", ""))


def test_privacy_never_rests_on_a_modulus_of_the_mean(found):
    """proximal and recursive would have less noise with one, which every record must then have."""
    plain = {x.name: x for x in jmm.plans(**NUMBERS)}
    for one in found:
        if one.algorithm in ("proximal", "recursive"):
            assert one.plan.hyper.query.modulus == 0
            assert one.plan.guarantee == plain[one.name].plan.guarantee
    assert plain["gda"].why == "give modulus="


def test_gradients_are_those_that_a_run_computes(found):
    costs = {x.name: (x.releases, x.gradients) for x in found}
    assert costs["extragradient, full"][1] == 1000 * costs["extragradient, full"][0]
    assert costs["gda"] == (100, 100_000)
    assert costs["ftrl"] == (1000, 1000)
    for name in ("sgda, one", "extragradient, one"):
        assert 900 <= costs[name][1] <= 1000
    (certified,) = (x.plan.hyper for x in found if x.name == "recursive")
    parts = certified.query.population * sum(certified.query.steps)
    assert costs["recursive"][1] == parts


def test_missing_numbers_are_named():
    few = {x.name: x for x in jmm.plans(epsilon=1.0, delta=1e-6, population=1000, dim=4, bound=1.0)}
    assert few["gda"].why == "give smooth=, modulus="
    assert few["sgda, one"].why == "give diameter="
    assert few["group_sgd"].why == "give problem=, sizes="
    assert few["recursive"].why == "give diameter=, smooth="
    assert all(x.plan is None and x.releases == 0 for x in few.values())
    assert "gda: give population=, bound=, smooth=, modulus=" in str(
        jmm.plans(epsilon=1.0, delta=1e-6))


def test_public_terms_are_in_every_promise():
    names = {x.algorithm for x in jmm.plans(**NUMBERS, public_bound=1.0, public_smooth=1.0)}
    assert {"sgda", "gda", "recursive", "ftrl"} <= names
    with_terms, without = (
        {x.name: x.plan.guarantee for x in jmm.plans(**NUMBERS, **more) if x.gap}
        for more in ({"public_bound": 1.0, "public_smooth": 1.0}, {}))
    assert all(with_terms[name] >= without[name] for name in with_terms)
    assert all(with_terms[name] > without[name] for name in ("sgda, one", "ftrl", "recursive"))


def test_a_problem_gives_its_constants():
    game = jmm.problems.matrix_game(entry_bound=1.0, shape=(2, 2))
    given = dict(epsilon=1.0, delta=1e-6, population=1000, dim=4)
    one = jmm.plans(problem=game, **given)
    two = jmm.plans(bound=game.bound, smooth=game.smooth, diameter=game.diameter, **given)
    assert [x.name for x in one] == [x.name for x in two]
    assert [x.plan and x.plan.guarantee for x in one] == [x.plan and x.plan.guarantee for x in two]
    public = game._replace(problem=game.problem._replace(public=lambda z: z))
    with pytest.raises(ValueError, match="public_bound"):
        jmm.plans(problem=public, **given)


@pytest.mark.slow
def test_group_problems_have_plans_of_their_own():
    made = {x.algorithm: x for x in jmm.plans(problem=PROBLEM, **GROUPS)}
    assert {name for name, x in made.items() if x.plan is not None} == {
        "group_oco", "group_sgd", "active_groups", "phased_erm"}
    assert made["group_sgd"].gap == "risk"
    assert made["group_oco"].gap == made["phased_erm"].gap == ""  # by default neither has a number
    assert made["phased_erm"].why.startswith("monotone records of any content")


def test_a_table_is_printed(found):
    text = str(found)
    assert repr(found) == text
    blocks = text.split("\nBounds on")
    assert blocks[0].startswith("Bounds on the strong gap on the population:")
    assert "optimistic, proved" not in blocks[0]
    assert "sgda, many" not in blocks[0]
    assert "the weak gap on the population" in blocks[1]
    assert "the strong gap on the records themselves" in blocks[2]
    assert json.loads(json.dumps([x.to_json() for x in found]))[0]["plan"] == found[0].name


@pytest.mark.parametrize(("how", "words"), [
    ({"population": 100, "radios": 1.0}, "radios"), ({"epsilon": 0.0}, "epsilon"),
    ({"epsilon": None}, "epsilon"), ({"delta": 1.0}, "delta")])
def test_numbers_that_no_plan_takes_are_refused(how, words):
    with pytest.raises(ValueError, match=words):
        jmm.plans(**{"epsilon": 1.0, "delta": 1e-6, **how})


def test_a_second_table_takes_less_than_five_seconds(found):
    start = time.process_time()
    jmm.plans(**NUMBERS, modulus=0.5)
    assert time.process_time() - start < 5


def test_every_plan_of_every_algorithm_is_tried():
    for name, module in ALGORITHMS.items():
        assert hasattr(module, "plan") == hasattr(module, "plan_variants"), name
        for variant in getattr(module, "plan_variants", ()):
            takes = inspect.signature(module.plan).parameters
            assert {*variant.arguments, *variant.needs} <= set(takes)
        passes = [x.arguments.get("passes") for x in getattr(module, "plan_variants", ())]
        assert len(passes) == len(set(passes)) or name == "optimistic"


def test_what_was_measured_is_what_the_benchmark_says():
    words = {"one": "one pass", "many": "many passes", "full": "full batches"}
    rows = {x["algorithm"]: x["gap"] for x in json.loads(RESULTS.read_text())["rows"]
            if (x["n"], x["epsilon"]) == (1000, 1.0)}
    checked = 0
    for name, module in ALGORITHMS.items():
        for variant in getattr(module, "plan_variants", ()):
            if "proved" in variant.arguments:
                continue
            entry = ", ".join((name, *(words[x] for x in variant.arguments.values())))
            assert (variant.measured is None) == (entry not in rows), entry
            if variant.measured is not None:
                assert f"{variant.measured:.2g}" == f"{rows[entry]:.2g}", entry
                checked += 1
    assert checked == 15


@pytest.mark.slow
def test_a_point_of_the_first_choice_is_found():
    """The table's first plan runs, and its gap is below its guarantee."""
    game = jmm.problems.bilinear_game(coupling=0.5, radius=Saddle(1.0, 1.0))
    rng = jnp.asarray(0.25 * jnp.ones((1000, 2)), jnp.float32)
    made = jmm.plans(**{**NUMBERS, "bound": 1.0}, public_bound=0.8, public_smooth=0.5)
    one = next(x for x in made if x.algorithm == "sgda" and x.gap == "strong")
    start = Saddle(jnp.zeros(2), jnp.zeros(2))
    state, _ = jmm.run(jmm.noise.secret_key(), start, (rng, rng), one.plan.hyper, jmm.sgda, game)
    assert float(jmm.metrics.strong_gap(game, state.average, (rng, rng))) < one.plan.guarantee
