"""Plans: settings from public numbers that meet their target, and say what they promise."""

import math
import types

import pytest

import jaxminimax as jmm
from jaxminimax.algorithms import ALGORITHMS
from jaxminimax.algorithms.planning import Plan
from tests.algorithms.test_plan_rates import PLANS

TARGET = dict(epsilon=1.0, delta=1e-6)
NUMBERS = dict(dim=4, bound=2.0, diameter=3.0)
SMOOTH = dict(NUMBERS, smooth=1.0)
TASK = jmm.problems.group_means(radius=1.0, record_bound=1.0)
GROUPS = dict(problem=TASK, sizes=(400, 300), dim=4)

CASES = [
    (jmm.sgda, dict(population=60, dim=4, bound=2.0, smooth=1.0)),
    (jmm.sgda, dict(population=8, dim=4, bound=2.0)),
    (jmm.sgda, dict(population=400, passes="one", **NUMBERS)),
    (jmm.gda, dict(population=200, bound=2.0, smooth=1.0, modulus=0.5)),
    (jmm.extragradient, dict(population=400, **SMOOTH)),
    (jmm.extragradient, dict(population=8, passes="many", **SMOOTH)),
    (jmm.extragradient, dict(population=20, passes="full", **SMOOTH)),
    (jmm.optimistic, dict(population=400, **SMOOTH)),
    (jmm.optimistic, dict(population=400, game="strongly_monotone", **SMOOTH)),
    (jmm.optimistic, dict(population=4000, proved=True, **SMOOTH)),
    (jmm.spider, dict(population=8000, dim=4, bound=2.0, smooth=1.0)),
    (jmm.proximal, dict(population=400, **SMOOTH)),
    (jmm.proximal, dict(population=50, passes="many", **SMOOTH)),
    (jmm.recursive, dict(population=4000, **SMOOTH)),
    (jmm.recursive_sgda, dict(population=400, inner=20, **NUMBERS)),
    (jmm.phased_erm, GROUPS),
    (jmm.group_oco, GROUPS),
    (jmm.group_sgd, dict(iterations=20, **GROUPS)),
    (jmm.active_groups, dict(iterations=20, **GROUPS)),
    (jmm.ftrl, dict(population=400, **NUMBERS)),
]
# of other plans the first of their rows on rates
CASES += [(ALGORITHMS[name], row.numbers(row.ns[0])) for name, row in {
    row.name.split(",")[0]: row for row in reversed(PLANS)}.items()
    if ALGORITHMS[name] not in {algorithm for algorithm, _ in CASES}]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "numbers"), CASES, ids=[
    f"{a.__name__.split('.')[-1]}-{n.get('passes', '')}" for a, n in CASES])
def test_a_plan_meets_its_target_and_names_its_theorem(algorithm, numbers):
    made = jmm.plan(algorithm, **TARGET, **numbers)
    assert isinstance(made, Plan)
    assert isinstance(made.hyper, algorithm.Hyper)
    assert 0.99 < jmm.epsilon(algorithm.mechanism(made.hyper), 1e-6) <= 1.0
    assert made.guarantee is None or 0 < made.guarantee < math.inf
    assert not (made.vacuous and made.guarantee is None)
    assert made.why
    assert all(sentence.endswith(".") for sentence in made.why)


def test_every_plan_has_a_case_and_an_algorithm_without_a_plan_is_refused():
    planned = {name for name, module in ALGORITHMS.items() if hasattr(module, "plan")}
    assert planned == {algorithm.__name__.split(".")[-1] for algorithm, _ in CASES}
    with pytest.raises(ValueError, match="balanced_groups has no plan"):
        jmm.plan(jmm.balanced_groups, **TARGET)
    with pytest.raises(TypeError, match="algorithm"):
        jmm.plan(types.ModuleType("mine"), **TARGET)


def test_more_records_make_a_promise():
    """Of one pass and of a stream, whose bounds have all constants."""
    for algorithm, more in ((jmm.sgda, {"passes": "one"}), (jmm.ftrl, {})):
        few, many = (jmm.plan(algorithm, **TARGET, population=n, **NUMBERS, **more)
                     for n in (20, 10**6))
        assert few.vacuous
        assert not many.vacuous
        assert many.guarantee < NUMBERS["bound"] * NUMBERS["diameter"] <= few.guarantee


@pytest.mark.parametrize("algorithm", [jmm.recursive, jmm.recursive_sgda, jmm.ftrl, jmm.sgda])
def test_without_a_target_there_is_no_noise(algorithm):
    more = {jmm.recursive: {"smooth": 1.0}, jmm.sgda: {"passes": "one"}}.get(algorithm, {})
    made = jmm.plan(algorithm, epsilon=None, delta=1e-6, population=400, **NUMBERS, **more)
    assert jmm.epsilon(algorithm.mechanism(made.hyper), 1e-6) == math.inf


@pytest.mark.parametrize(("algorithm", "numbers", "message"), [
    (jmm.proximal, dict(population=9), "missing a required argument: 'dim'"),
    (jmm.proximal, dict(population=9, prox=1.0, **SMOOTH), "unexpected keyword argument 'prox'"),
    (jmm.proximal, dict(population=9, passes="two", **SMOOTH), "passes must be one of one, many"),
    (jmm.sgda, dict(population=9, passes="one", dim=4, bound=2.0), "diameter must be a number"),
    (jmm.sgda, dict(population=9, batch=3, dim=4, bound=2.0), "batch is for passes='one'"),
    (jmm.gda, dict(population=9, bound=2.0, smooth=1.0, modulus=0.0), "modulus must lie in"),
])
def test_numbers_that_are_missing_or_wrong_are_named(algorithm, numbers, message):
    with pytest.raises(ValueError, match=message):
        jmm.plan(algorithm, **TARGET, **numbers)
