"""What statements say in words and in JSON: releases, limits of proofs, versions, and delta."""

import dataclasses
import json
import math
import re

import dp_accounting
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.accounting import profiles, stating
from jaxminimax.accounting.answers import limits
from jaxminimax.mechanism import releases

DELTA = 1e-6


def steps(z=30.0, times=20, sampling=None):
    query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(z, z), population=1000,
                      sampling=sampling or jmm.Full(), parameters=100)
    return jmm.Repeat(query=query, times=times)


def stated(made, delta=DELTA, spent=None, **more):
    """The statement of a description, with its releases as those of a run."""
    hyper = jmm.sgda.Hyper(query=made.query, step=Saddle(0.1, 0.1), iterations=made.times)
    state = None
    if spent is not None:
        state = jmm.sgda.init(Saddle(0.0, 0.0), hyper)._replace(spent=spent)
    return jmm.statement(jmm.sgda, hyper, state, delta=delta, **more)


def noisy(delta=DELTA, spent=None):
    """A run whose epsilon is finite, and above every one that is proven."""
    limit = limits(steps(1.0, 2), delta).epsilon
    mu = math.sqrt(3 * limit)  # epsilon is above mu^2 / 2
    made = steps(2 * math.sqrt(2) * math.sqrt(2) / mu, 2)
    attained = dp_accounting.get_epsilon_gaussian(1 / mu, delta)
    assert limit < attained < math.inf
    return stated(made, delta, spent), limit


# --- limits ---


def test_an_epsilon_above_what_is_proven_is_not_called_infinite():
    said, limit = noisy()
    assert said.epsilon == math.inf
    assert said.proven_up_to == pytest.approx(limit)
    first = str(said).split("\n")[0]
    assert first.startswith(f"Epsilon for one record is above what is proven, {limit:.4g} at most")
    assert not re.search("infinite|inf,", str(noisy(spent=1)[0]))
    assert stated(steps()).proven_up_to is None


def test_a_delta_that_samplers_may_fail_by_is_named():
    made = steps(1e6, 100, jmm.Poisson(rate=0.01))
    least = limits(made, DELTA).delta
    said = stated(made, least / 2)
    assert (said.epsilon, said.proven_up_to) == (math.inf, 0)
    assert f"not proven at delta = {least / 2:g}" in str(said).split("\n")[0]
    assert "choose a larger delta" in str(said)
    assert stated(made, 2 * least).epsilon < 1
    hyper = jmm.sgda.Hyper(query=made.query, step=Saddle(0.1, 0.1), iterations=1)
    with pytest.raises(ValueError, match=r"too small.*Choose a larger delta"):
        jmm.accounting.calibrate_iterations(jmm.sgda, hyper, 1.0, least / 1000)


# --- JSON ---


@pytest.mark.parametrize("spent", [None, 1])
def test_json_tells_no_guarantee_from_what_does_not_apply(spent):
    said, limit = noisy(spent=spent)
    record = json.loads(json.dumps(said.to_json(), allow_nan=False))
    assert record["epsilon"] == "no guarantee"
    assert record["epsilon_if_stopped_by_looking"] == (None if spent is None else "no guarantee")
    assert record["proven_up_to"] == pytest.approx(limit)
    assert jmm.accounting.Statement.from_json(record) == said
    usual = stated(steps()).to_json()
    assert usual["epsilon_if_stopped_by_looking"] is usual["milestone"] is None
    assert usual["proven_up_to"] is None
    assert usual["epsilon"] < 10


@pytest.mark.parametrize("spent", [None, 1])
def test_records_of_before_are_read_and_their_null_is_no_guarantee(spent, tmp_path):
    said, _ = noisy(spent=spent)
    record = {name: None if value == "no guarantee" else value
              for name, value in said.to_json().items() if name != "proven_up_to"}
    assert record["epsilon"] is None
    read = jmm.accounting.Statement.from_json(record)
    assert read == dataclasses.replace(said, proven_up_to=None)
    assert str(read).startswith("NO privacy guarantee")
    ledger = jmm.accounting.Ledger(tmp_path / "ledger.json", epsilon=1e5, delta=0.1, filter="basic")
    for one in (said, read):
        with pytest.raises(ValueError, match="costs inf of epsilon"):
            ledger.add(one)
    assert json.loads(json.dumps(ledger.statement().to_json(), allow_nan=False))["runs"] == []


# --- what is released ---


def listed(said):
    """Releases that the sentences name."""
    return sum(int(re.match(r"(\d+) release", sentence)[1]) for sentence in said.sampling)


@pytest.mark.parametrize("beside", [(), (steps(50.0, 1),), (steps(50.0, 3), steps(60.0, 4))])
@pytest.mark.parametrize("spent", [0, 7, 20, None])
def test_the_releases_that_are_counted_are_those_that_are_listed(beside, spent):
    said = stated(steps(), spent=spent, alongside=beside)
    more = sum(map(releases, beside))
    assert said.allowed == listed(said) == 20 + more
    assert said.spent == (20 if spent is None else spent) + more
    assert f"Spent {said.spent} of {said.allowed} releases" in str(said)
    assert said.milestone is None or said.spent <= said.milestone <= said.allowed


def test_the_accountant_is_named_with_its_version():
    own = f"jaxminimax {jmm.__version__}"
    gaussian, sampled = stated(steps()), stated(steps(sampling=jmm.Poisson(rate=0.1)))
    assert own in gaussian.accountant
    assert own in sampled.accountant


# --- delta ---


def test_quoting_the_smaller_of_two_numbers_afterwards_doubles_delta():
    said = stated(steps(), spent=7)
    for text in (str(said).split("\n")[1], " ".join(said.assumed)):
        assert "to quote the smaller one afterwards, say delta = 2e-06" in text


@pytest.mark.parametrize("delta", [0.01, 0.3])
def test_a_delta_that_is_too_large_is_named_below_the_guarantee(delta):
    said = stated(steps(), delta)
    _, second, *rest = str(said).split("\n")
    assert second.startswith(f"Delta is too large, {delta:g}")
    assert second in said.assumed
    assert not any(second in line for line in rest)
    assert "too large" not in str(stated(steps(), 1e-4))


def in_plain_words(said, made):
    return " ".join(stating.in_plain_words(said, profiles.briefly(
        made, said.delta, neighbours=said.neighbours, people=1)).split())


def test_plain_words_on_delta_are_the_definition():
    """P(S) <= e^epsilon Q(S) + delta; that the loss exceeds epsilon has another probability."""
    made = steps()
    said = stated(made)
    words = in_plain_words(said, made)
    assert (f"is at most e^epsilon = {math.exp(said.epsilon):.4g} times what it would have been in "
            f"the other world, plus {said.delta:g}.") in words
    assert "part of all cases" not in words


def test_plain_words_say_what_was_made_of_what_was_allowed():
    made = steps()
    assert "7 of 20 allowed releases were made" in in_plain_words(stated(made, spent=7), made)
    assert "What is released. 20 releases, such as" in in_plain_words(stated(made), made)
    said, limit = noisy()
    assert f"Epsilon is above what is proven, {limit:.4g} at most" in in_plain_words(said, made)


def test_answers_leave_the_closest_gaussian_to_json():
    said = stated(steps(), answers=True)
    assert "Membership inference" in str(said)
    assert "Gaussian up to" not in str(said)
    assert said.to_json()["answers"]["closest_gaussian"]["mu"] > 0


def test_imperfections_of_noise_are_counted_in_words():
    (sentence,) = stated(steps()).realisation
    cost = steps().sampler_cost()
    assert cost.ratio > 0 < cost.law_error
    assert f"{cost.ratio:.2g} of epsilon, and {cost.law_error:.2g} (1 + e^epsilon)" in sentence
