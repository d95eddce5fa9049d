"""The benchmark of default plans: equal epsilon, the same noise on fewer records, a fair choice."""

import jax
import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.rates import plan_entries, plans
from benchmarks.rates.base import DELTA
from jaxminimax.algorithms import ALGORITHMS

ENTRIES = {entry.name: entry for entry in plan_entries.entries()}


def test_every_plan_has_ten_alternatives():
    planned = {name for name, module in ALGORITHMS.items() if hasattr(module, "plan")}
    planned -= {"recursive_inner"}  # of an algorithm that is chosen; the others are its plans
    assert {name.split(",")[0] for name in ENTRIES if " over " not in name} == planned
    for name, entry in ENTRIES.items():
        assert len(entry.others) == (1 if " over " in name else 10)


@pytest.mark.parametrize("name", ["gda", "ftrl", "sgda, one pass", "proximal, one pass"])
def test_an_alternative_has_the_epsilon_of_the_plan_and_other_settings(name):
    entry = ENTRIES[name]
    plan, other = entry.plan(1000, 1.0), next(iter(entry.others.values()))(1000, 1.0)
    assert other.hyper != plan.hyper
    for job in (plan, other):
        assert jmm.epsilon(job.algorithm.mechanism(job.hyper), DELTA) == pytest.approx(
            1.0, abs=1e-3)


def test_few_records_have_the_noise_of_many():
    many = ENTRIES["optimistic"].plan(1000, 1.0)
    few = ENTRIES["optimistic"].few(many)
    assert few.hyper.query.population == 1
    assert few.hyper.query.noise_multiplier.w == pytest.approx(
        many.hyper.query.noise_multiplier.w / 1000)
    keys = jax.random.split(jax.random.key(0), 100)
    means = [jax.vmap(lambda key, job=job: job.sample(key)[0].mean(0))(keys)
             for job in (many, few)]
    assert float(means[0].std(0).mean()) == pytest.approx(float(means[1].std(0).mean()), rel=0.15)


def test_the_best_is_chosen_and_measured_by_different_seeds():
    gaps = np.array([[9.0, 9, 2, 2.2], [1, 1, 4, 4.4], [2, 2, 1, 1]])
    found = plans.compared(gaps, ["a", "b"], 2)
    assert (found["best"], found["best_gap"]) == ("a", pytest.approx(4.2))
    assert found["ratio"] == pytest.approx(0.5)
    assert found["ratio_error"] == pytest.approx(0.0, abs=1e-9)
