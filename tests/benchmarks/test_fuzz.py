"""A slice of the fuzzing of the accountant, and that it finds what is planted."""

import dataclasses
import json
import math

import numpy as np
import pytest

import jaxminimax as jmm
from benchmarks.privacy import fuzz, fuzz_cases
from jaxminimax.mechanism import Description
from jaxminimax.mechanism.repeat import OneRelease


@pytest.mark.slow
def test_random_and_hostile_cases_are_answered_soundly_or_refused(tmp_path, capsys):
    path = tmp_path / "fuzz.json"
    assert fuzz.main(["--cases", "40", "--seed", "11", "--json", str(path)]) == 0
    actual = json.loads(path.read_text())
    assert actual["findings"] == []
    assert sum(actual["outcomes"].values()) == actual["cases"] == 40
    assert set(actual["outcomes"]) <= {"answered", "refused", "nothing", "infinite"}
    assert actual["outcomes"]["answered"] > 5
    assert actual["outcomes"]["refused"] > 5
    assert "refused" in capsys.readouterr().out


def test_descriptions_of_all_kinds_are_drawn():
    rng = np.random.default_rng(0)
    seen = set().union(*(fuzz_cases.kinds_in(fuzz_cases.description(rng)) for _ in range(400)))
    assert {*fuzz_cases.LEAVES, "Query", "Resolvent", "GroupGradients", "Sequence", "Parallel",
            "Poisson", "FixedSize", "Disjoint", "Full"} <= seen
    assert all(issubclass(getattr(jmm.mechanism, x), Description | OneRelease)
               for x in fuzz_cases.LEAVES)


MADE = jmm.Sequence(parts=(
    jmm.mechanism.RecordLosses(bound=1.0, noise_multiplier=9.0, times=4),
    jmm.Repeat(times=20, query=jmm.Query(
        clip=jmm.Saddle(1.0, None), noise_multiplier=jmm.Saddle(2.0, None), population=500,
        sampling=jmm.Poisson(rate=0.1)))))
CASE = fuzz.Case(MADE, "epsilon", 1e-6, 1.0, "replace_one", 2, "")


@pytest.mark.parametrize("answer", [0.0, math.nan, math.inf, None, 1, True, 0.3, -1.0])
def test_an_answer_that_is_wrong_is_found(answer):
    assert fuzz.judged(CASE, jmm.epsilon(MADE, 1e-6, people=2)) == "answered"
    assert fuzz.judged(CASE, answer).startswith("FINDING")


@pytest.mark.parametrize("answer", [0.0, math.nan, 1.5, -0.1])
def test_a_delta_that_is_wrong_is_found(answer):
    asked = CASE._replace(question="delta")
    assert fuzz.judged(asked, jmm.delta(MADE, 1.0, people=2)) == "answered"
    assert fuzz.judged(asked, answer).startswith("FINDING")


def test_other_exceptions_and_warnings_are_found(monkeypatch):
    assert fuzz.run(CASE._replace(delta=2.0)) == "refused"
    assert fuzz.run(CASE._replace(hostile="tracer")) == "refused"
    for bad in (lambda one: 1 / 0, lambda one: float(np.float64(1) / 0)):
        monkeypatch.setattr(fuzz, "ask", bad)
        assert fuzz.run(CASE).startswith("FINDING: ")
    monkeypatch.setattr(fuzz, "ask", lambda one: jmm.epsilon(dataclasses.replace(
        MADE.parts[0]), one.delta))  # of a part alone
    assert fuzz.run(CASE).startswith("FINDING: epsilon")
