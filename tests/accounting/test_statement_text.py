"""What statements say in words and in JSON: releases, limits of proofs, versions, and delta."""

import dataclasses
import json
import math
import re

import dp_accounting
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.accounting.epsilon_delta import limits
from jaxminimax.accounting.printing import membership, rounded_up
from jaxminimax.mechanism import releases
from tests.helpers.words import one_line

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
    assert said.paragraph().startswith(
        f"Epsilon for one record is above what is proven, {limit:.4g} at most")
    assert not re.search("infinite|inf[, ]", one_line(noisy(spent=1)[0]))
    assert stated(steps()).proven_up_to is None


def test_a_delta_that_samplers_may_fail_by_is_named():
    made = steps(1e6, 100, jmm.Poisson(rate=0.01))
    least = limits(made, DELTA).delta
    said = stated(made, least / 2)
    assert (said.epsilon, said.proven_up_to) == (math.inf, 0)
    assert f"not proven at delta = {least / 2:g}" in said.paragraph()
    assert "choose a larger delta" in said.paragraph()
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
def test_no_guarantee_is_read_as_infinity_and_null_in_its_place_is_refused(spent, tmp_path):
    said, _ = noisy(spent=spent)
    record = said.to_json()
    ledger = jmm.accounting.Ledger(tmp_path / "ledger.json", epsilon=1e5, delta=0.1, filter="basic")
    with pytest.raises(ValueError, match="needs inf of epsilon"):
        ledger.add(jmm.accounting.Statement.from_json(record))
    assert json.loads(json.dumps(ledger.statement().to_json(), allow_nan=False))["runs"] == []
    for name in ("epsilon", "epsilon_spent_if_fixed", "delta"):
        with pytest.raises(ValueError, match=f"{name} of a statement's record must be .*None"):
            jmm.accounting.Statement.from_json(record | {name: None})


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
    assert said.table()["releases made"] == f"{said.spent} of {said.allowed} allowed"
    assert said.milestone is None or said.spent <= said.milestone <= said.allowed


def test_the_accountant_is_named_with_its_version():
    own = f"jaxminimax {jmm.__version__}"
    gaussian, sampled = stated(steps()), stated(steps(sampling=jmm.Poisson(rate=0.1)))
    assert own in gaussian.accountant
    assert own in sampled.accountant


# --- delta ---


def test_quoting_the_smaller_of_two_numbers_afterwards_doubles_delta():
    said = stated(steps(), spent=7)
    for text in (said.paragraph(), " ".join(said.assumed)):
        assert "to quote the smaller one afterwards, say delta = 2e-06" in text


@pytest.mark.parametrize("delta", [0.01, 0.3])
def test_a_delta_that_is_too_large_is_named_below_the_guarantee(delta):
    said = stated(steps(), delta)
    warning = f"{said.paragraph()} Delta is too large, {delta:g}"
    assert warning in one_line(said)
    assert one_line(said).count("too large") == 1
    assert "too large" not in one_line(stated(steps(), 1e-4))


# --- sections ---


def test_the_paragraph_has_all_that_is_quoted():
    made = stated(steps(), unit="one visit")
    text = made.paragraph()
    for part in (f"({rounded_up(made.epsilon)}, 1e-06)-differential privacy for one visit",
                 "one record is replaced by another", "knows every other record",
                 "all 20 releases", made.accountant):
        assert part in text
    assert one_line(made).startswith(text)


def test_the_table_compares_delta_with_the_number_of_records():
    table = stated(steps(), 1e-6).table()
    assert table["delta"] == "1e-06, which is 0.001 times 1/n, for n = 1000 records"
    assert table["releases made"] == "20 of 20 allowed"
    assert {"trust model", "tuning", "released", "sampling", "clip norm"} <= set(table)


def test_every_assumption_has_an_owner():
    made = stated(steps(), spent=7, assumed=("Extra.",))
    assert all(x.startswith(("User: ", "Operator: ")) for x in made.owned())
    assert "User: Extra." in made.owned()
    assert {x for x in made.assumed if not x.startswith(("User: ", "Operator: "))} == {"Extra."}


@pytest.mark.parametrize("epsilon", [0.01, 0.7, 3.0, 10.0])
@pytest.mark.parametrize("delta", [1e-9, 0.05])
def test_what_epsilon_and_delta_alone_say_of_attacks_is_attained(epsilon, delta):
    """By randomised response with a failure: P = (1 - d) (e^eps, 1) / (1 + e^eps) and d of its own.

    An attack says "member" where only P can be, then where P is likelier, then everywhere.
    """
    said = dataclasses.replace(stated(steps()), epsilon=epsilon, delta=delta)
    high = (1 - delta) / (1 + math.exp(-epsilon))
    points = [(0.0, delta), (1 - delta - high, delta + high), (1 - delta, 1.0)]
    for rate in (0.0, 0.001, 0.01, 0.3, 0.9):
        attained = max(np.interp(rate, *zip(*points, strict=True)), 0.0)
        assert said.true_positives(rate) == pytest.approx(attained, rel=1e-9, abs=1e-15)
    assert said.advantage() == pytest.approx(2 * (high + delta) - 1, rel=1e-9)


def test_bounds_of_the_whole_profile_are_quoted_if_they_were_computed():
    made = stated(steps(), attack_bounds=True)
    assert made.advantage() == made.attack_bounds["advantage"] < stated(steps()).advantage()
    sharp, coarse = made.true_positives(0.01), stated(steps()).true_positives(0.01)
    assert sharp == made.attack_bounds["true_positives"]["0.01"] < coarse
    assert membership(0.01, sharp) in made.paragraph()


@pytest.mark.parametrize(("share", "words"), [
    (0.0180, "1.8 %"), (0.01801, "1.9 %"), (0.5, "50 %"), (0.53561, "53.6 %"), (1.0, "100 %"),
    (0.001234, "0.13 %"), (0.0, "0 %")])
def test_shares_of_members_are_rounded_up(share, words):
    assert membership(0.01, share) == (
        f"At 1 % false positives, a membership attack finds at most {words} of members.")


@pytest.mark.parametrize(("value", "digits", "words"), [
    (0.746949799, 4, "0.747"), (1 - 1e-13, 4, "1"), (1.0000001, 4, "1.001"), (9.9991, 4, "10"),
    (2.00000049, 6, "2.00001"), (1e-6, 6, "1e-06"), (0.0, 4, "0"), (math.inf, 4, "not proven")])
def test_no_number_is_printed_below_itself(value, digits, words):
    assert rounded_up(value, digits) == words


def test_conclusions_are_bounded_by_the_definition():
    """P(S) <= e^epsilon Q(S) + delta; that the loss exceeds epsilon has another probability."""
    made = stated(steps())
    assert (f"is at most e^epsilon = {rounded_up(math.exp(made.epsilon))} times what it is on "
            f"neighbouring data, plus delta = {made.delta:g}.") in made.meaning()[0]
    assert noisy()[0].meaning() == ()


def test_answers_leave_the_closest_gaussian_to_json():
    said = stated(steps(), attack_bounds=True)
    assert "Membership inference" in str(said)
    assert "Gaussian up to" not in one_line(said)
    assert said.to_json()["attack_bounds"]["closest_gaussian"]["mu"] > 0


def test_imperfections_of_noise_are_counted_in_words():
    (sentence,) = stated(steps()).realisation
    cost = steps().sampler_cost()
    assert cost.ratio > 0 < cost.law_error
    assert f"{cost.ratio:.2g} of epsilon, and {cost.law_error:.2g} (1 + e^epsilon)" in sentence
