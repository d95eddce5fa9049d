"""One budget for several runs: filters against who chooses and stops, books against crashes."""

import contextlib
import dataclasses
import fractions
import hashlib
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import get_sigma_gaussian
from scipy import integrate, stats
from scipy.signal import fftconvolve

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.__main__ import main
from jaxminimax.accounting import epsilon_delta, renyi
from jaxminimax.accounting import pairs as dominating
from jaxminimax.accounting.curve import charges, named_epsilon
from jaxminimax.accounting.filters import Basic, Renyi, best_order, total
from jaxminimax.accounting.ledger import LedgerFile, RunMark
from jaxminimax.accounting.printing import rounded_up
from jaxminimax.mechanism import leaves
from jaxminimax.mechanism.costs import Charge, PrivacyLoss
from tests.helpers.words import one_line

RO, AR = "replace_one", "add_or_remove_one"
ROOT = pathlib.Path(__file__).parents[2]


def steps(z, times=10, sampling=None, n=1000):
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(z, None), population=n,
                      sampling=sampling or jmm.Full())
    return jmm.Repeat(query=query, times=times)


def settings(iterations=20, z=None, n=1000, **query):
    noise = None if z is None else Saddle(z, z)
    return jmm.sgda.Hyper(step=Saddle(0.1, 0.1), iterations=iterations, query=jmm.Query(
        clip=Saddle(1.0, 1.0), noise_multiplier=noise, population=n, **query))


def state(hyper, spent):
    return jmm.sgda.init(Saddle(jnp.zeros(2), jnp.zeros(1)), hyper)._replace(
        spent=jnp.int32(spent))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.json"


# ---- divergences at one order ----------------------------------------------------------------


@pytest.mark.parametrize(("rate", "z", "order"), [
    (0.1, 1.0, 3.5), (0.01, 0.8, 22.0), (0.5, 3.0, 10.0), (0.002, 6.0, 60.0)])
def test_poisson_divergences_match_quadrature(rate, z, order):
    def mixture(to):
        return lambda x: np.logaddexp(math.log1p(-rate) + stats.norm.logpdf(x, 0, z),
                                      math.log(rate) + stats.norm.logpdf(x, to, z))

    alone = mixture(0.0)
    pairs = {RO: [(mixture(1.0), mixture(-1.0))],
             AR: [(mixture(1.0), alone), (alone, mixture(1.0))]}
    for neighbours, both in pairs.items():
        x = np.linspace(-2 * order - 14 * z, 2 * order + 14 * z, 400_001)
        exact = max(math.log(integrate.simpson(np.exp(order * p(x) + (1 - order) * q(x)), x=x))
                    for p, q in both) / (order - 1)
        made, failure = renyi.loss_divergence(PrivacyLoss("poisson", z, rate), 1, order,
                                               neighbours)
        assert exact * (1 - 1e-9) <= made <= exact * (1 + 1e-5)
        assert failure == 0


def test_laplace_and_pure_divergences_match_their_integrals():
    x = np.linspace(-60.0, 61.0, 2_000_001)
    z, order = 1.5, 4.0
    p, q = stats.laplace.logpdf(x, 1, z), stats.laplace.logpdf(x, 0, z)
    exact = math.log(integrate.simpson(np.exp(order * p + (1 - order) * q), x=x)) / (order - 1)
    made, _ = renyi.loss_divergence(PrivacyLoss("laplace", z), 1, order, RO)
    assert made == pytest.approx(exact, rel=1e-6)
    assert made <= renyi.pure(1 / z, order)
    for epsilon in (1e-8, 0.3, 40.0, 2000.0):
        assert 0 < renyi.pure(epsilon, 7.0) <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["fixed", "replacement"])
def test_divergences_of_fixed_sizes_are_above_an_attack(kind):
    """All other records opposite: the record is drawn, or it is not."""
    n, m, z, order = 1000, 50, 8.0, 4.0
    rate = m / n if kind == "fixed" else 1 / n
    loss = PrivacyLoss(kind, z, rate, n, m)
    made, failure = renyi.loss_divergence(loss, 1, order, RO)
    attack, _ = renyi.loss_divergence(PrivacyLoss("poisson", z / 2, m / n), 1, order, AR)
    assert 0 < failure <= 1e-18
    assert attack < made < 1.5 * attack
    less, more = renyi.loss_divergence(loss, 1, order, RO, 1e-9)
    assert less < (1 + 1e-6) * made
    assert more <= 1e-9


@pytest.mark.parametrize("neighbours", [RO, AR])
def test_divergences_from_profiles_are_just_above_the_integral(neighbours):
    loss, order = PrivacyLoss("poisson", 2.0, 0.05), 5.0
    exact, _ = renyi.loss_divergence(loss, 1, order, neighbours)
    pairs = dominating.KINDS["poisson"](loss, 1, neighbours, 1)[0][0]
    made = max(renyi._pair_divergence(pair, order, 1e-22)[0] for pair in pairs)
    assert exact * (1 - 1e-6) < made < 1.001 * exact


def test_several_records_of_a_person_cost_at_least_as_much():
    for loss in (PrivacyLoss("poisson", 3.0, 0.05), PrivacyLoss("laplace", 3.0),
                 PrivacyLoss("fixed", 6.0, 0.05, 1000, 50)):
        one, two, three = (renyi.loss_divergence(loss, 7, 4.0, RO, 1e-18, k)[0]
                           for k in (1, 2, 3))
        assert 2 * one < two
        assert 1.3 * two < three


def test_an_unknown_loss_and_too_little_noise_are_refused():
    with pytest.raises(ValueError, match="filter='basic'"):
        renyi.loss_divergence(PrivacyLoss("new", 1.0), 1, 3.0, RO)
    for z in (0.0, 1e-9):
        loss = PrivacyLoss("poisson", z, 0.1)
        assert renyi.loss_divergence(loss, 1, 3.0, RO)[0] == math.inf


# ---- filters ---------------------------------------------------------------------------------


def filled(rule, offered):
    """The mechanisms that a filter lets in, of those offered."""
    taken, spent = [], []
    for mechanism in offered:
        charge = rule.charge(mechanism, rule.limits.get("delta", 1.0) / 20, RO)
        then = total([*spent, charge], tuple(rule.limits))
        if all(then[name] <= limit for name, limit in rule.limits.items()):
            taken.append(mechanism)
            spent.append(charge)
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("make", [
    lambda e, d: Renyi.open(e, d, best_order(e, d, RO)), lambda e, d: Renyi.open(e, d, 6.0),
    lambda e, d: Basic.open(e, d)])
@pytest.mark.parametrize(("epsilon", "delta"), [(2.0, 1e-5), (8.0, 1e-8)])
def test_what_a_filter_lets_in_costs_no_more_by_exact_composition(make, epsilon, delta):
    drawn = np.random.default_rng(0).uniform(3, 60, 80)
    kept = filled(make(epsilon, delta), [steps(float(z), 1) for z in drawn])
    assert len(kept) > 3
    assert jmm.epsilon(jmm.Sequence(parts=tuple(kept)), delta) <= epsilon
    few = [steps(z, 200, jmm.Poisson(rate=0.02)) for z in (1.5, 2.0, 3.0, 6.0)]
    few += [steps(z, 50, jmm.FixedSize(batch=20)) for z in (4.0, 8.0)]
    few += [jmm.GroupLosses(bound=1.0, sizes=(200,), noise_multiplier=30.0, times=20)]
    kept = filled(make(epsilon, delta), few)
    assert kept
    assert jmm.epsilon(jmm.Sequence(parts=tuple(kept)), delta) <= epsilon


def test_a_filter_is_not_far_above_exact_composition():
    rule = Renyi.open(1.0, 1e-6, best_order(1.0, 1e-6, RO))
    one = rule.charge(steps(10.0, 1), 1.0, RO)["divergence"]
    exact = 1 / get_sigma_gaussian(1.0, 1e-6)
    assert 0.9 < math.sqrt(rule.limits["divergence"] / one) * (2 / 10) / exact < 1


def test_the_order_is_the_best_for_a_typical_run():
    typical = steps(1.0, 1000, jmm.Poisson(rate=0.01))
    orders = [best_order(4.0, 1e-6, RO, x) for x in (None, typical)]
    share = [rule.charge(typical, 1.0, RO)["divergence"] / rule.limits["divergence"]
             for rule in (Renyi.open(4.0, 1e-6, order) for order in orders)]
    assert share[1] < share[0]


# ---- the best adversary, by dynamic programming ----------------------------------------------

Y = np.arange(-6.0, 10.0, 0.005)  # privacy losses


def later(value, mu):
    """The mean of a function of the loss after a release of N(0, 1) against N(mu, 1)."""
    cells = np.arange(-int(9 * mu / 0.005) - 2, int(9 * mu / 0.005) + 3)
    edges = (np.append(cells, cells[-1] + 1) - 0.5) * 0.005
    weights = np.diff(stats.norm.cdf(edges, mu * mu / 2, mu))
    padded = np.pad(value, (-cells[0], cells[-1]), mode="edge")
    return fftconvolve(padded, weights[::-1], mode="valid")


def paid(epsilon):
    """What a stop is worth: its sum over outcomes is P - e^epsilon Q of the best event."""
    return np.maximum(1 - np.exp(np.minimum(epsilon - Y, 0)), 0)


def best(printed, releases, choices):
    """What the best adversary attains who chooses releases and stops by looking.

    It is delta, if `printed[s]` is the epsilon stated after a charge of s units; a choice is (units
    that it is charged, mu).
    """
    values = [paid(epsilon) for epsilon in printed]
    for s in reversed(range(releases + 1)):
        for units, mu in choices:
            if s + units <= releases:
                values[s] = np.maximum(values[s], later(values[s + units], mu))
    return float(np.interp(0.0, Y, values[0]))


@pytest.mark.parametrize("kind", ["renyi", "basic"])
def test_the_best_adversary_who_chooses_and_stops_stays_below_the_claim(kind):
    epsilon, delta, units = 1.0, 1e-2, 24
    if kind == "renyi":
        rule = Renyi.open(epsilon, delta, best_order(epsilon, delta, RO))
        one = 2 * rule.limits["divergence"] / rule.details["order"] / units  # of mu^2
        choices = [(k, math.sqrt(k * one)) for k in (1, 3, 12)]
    else:
        choices = [(k, 1 / get_sigma_gaussian(k * epsilon / units, delta / units))
                   for k in (1, 3, 12)]
    attained = best([epsilon] * (units + 1), units, choices)
    assert attained <= delta
    assert attained > 0.2 * delta or kind == "basic"


def test_the_ledgers_odometer_holds_for_the_best_adversary():
    epsilon, delta, units = 1.5, 1e-2, 60
    rule = Renyi.open(epsilon, delta, best_order(epsilon, delta, RO))
    one = 2 * rule.limits["divergence"] / rule.details["order"] / units
    printed = [rule.odometer({"divergence": k / units * rule.limits["divergence"]})
               for k in range(units + 1)]
    assert printed == sorted(printed)
    assert printed[0] == 0
    assert epsilon < printed[-1] < 1.3 * epsilon
    assert best(printed, units, [(k, math.sqrt(k * one)) for k in (1, 4, 16)]) <= delta


def test_the_odometer_of_a_statement_holds_for_the_best_stop():
    """Gaussian releases; what the statement prints for an end that was fixed does not hold."""
    rounds, delta = 40, 1e-2
    hyper = jmm.calibrate(jmm.sgda, settings(rounds), 2.0, delta)
    mechanism = jmm.sgda.mechanism(hyper)
    mu = 2 * math.sqrt(charges(mechanism, RO)[0].gaussian / rounds)
    statements = [jmm.statement(jmm.sgda, hyper, state(hyper, t), delta=delta)
                  for t in range(rounds)]
    last = epsilon_delta.odometer(mechanism.truncated, rounds, rounds, delta, RO)[0]
    looking = [stated.epsilon_if_stopped_by_looking for stated in statements] + [last]
    fixed = [stated.epsilon_spent_if_fixed for stated in statements] + [statements[0].epsilon]
    release = [(1, mu)]
    assert 0.3 * delta < best(looking, rounds, release) <= delta
    assert best(fixed, rounds, release) > 2 * delta
    everything = best([statements[0].epsilon] * (rounds + 1), rounds, release)
    assert 0.99 * delta < everything <= 1.001 * delta
    smaller = [min(statements[0].epsilon, epsilon) for epsilon in looking]
    assert 1.05 * delta < best(smaller, rounds, release) <= 2 * delta


def test_small_orders_and_small_budgets_are_refused():
    with pytest.raises(ValueError, match="larger order"):
        Renyi.open(0.5, 1e-6, 2.0)
    assert all(rule.limits["divergence"] > 0 for rule in (
        Renyi.open(e, d, best_order(e, d, RO)) for e in (1e-3, 1.0, 40.0) for d in (1e-3, 1e-14)))


def test_sums_are_rounded_up():
    for k in (1, 3, 7):
        assert total([{"a": 0.1}] * k, ("a",))["a"] >= 0.1 * k * (1 - 1e-15)
    assert total([{"a": 1.0}, {"a": 1e-30}], ("a",))["a"] > 1.0
    assert total([{"a": 1.0}, {"a": math.inf}], ("a",))["a"] == math.inf


# ---- milestones ------------------------------------------------------------------------------


@pytest.mark.parametrize("allowed", [1, 2, 3, 50, 9373, 10**9])
def test_milestones_share_one_delta_and_end_at_all_releases(allowed):
    made = epsilon_delta.milestones(allowed, 1e-6)
    ends, deltas = zip(*made, strict=True)
    assert math.fsum(deltas) <= 1e-6
    assert min(deltas) > 0
    assert list(ends) == sorted(set(ends))
    assert ends[-1] == allowed
    assert len(ends) <= 13


def test_an_unfinished_run_is_told_in_this_order():
    hyper = jmm.calibrate(jmm.sgda, settings(50), 1.0, 1e-6)
    seen = []
    for spent in range(51):
        stated = jmm.statement(jmm.sgda, hyper, state(hyper, spent), delta=1e-6)
        if spent == 50:
            assert stated.epsilon_if_stopped_by_looking is stated.milestone is None
            continue
        seen.append(stated.epsilon_if_stopped_by_looking)
        assert stated.milestone >= spent
        assert seen[-1] >= stated.epsilon_spent_if_fixed
        text = stated.paragraph()
        places = [text.index(words) for words in (
            f"({rounded_up(stated.epsilon)}, 1e-06)-differential privacy", "chosen by looking",
            "An end that was fixed before the run")]
        assert places == sorted(places)
        assert "randomness that is independent of the data" in " ".join(stated.assumed)
    assert seen == sorted(seen)
    assert seen[0] == 0
    assert seen[1] < 0.5 < stated.epsilon < seen[-1] < 1.1


def test_alongside_is_charged_before_the_first_release():
    hyper = settings(9, 30.0)
    beside = (steps(20.0),)
    none = jmm.statement(jmm.sgda, hyper, state(hyper, 0), delta=1e-6, alongside=beside)
    assert none.milestone == 1 + beside[0].times
    assert (none.spent, none.allowed) == (beside[0].times, 9 + beside[0].times)
    assert none.epsilon_if_stopped_by_looking > none.epsilon_spent_if_fixed > 0


# ---- statements as JSON ----------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "spent"), [(20.0, 20), (20.0, 5), (20.0, 0), (0.0, 20),
                                              (0.0, 5)])
def test_from_json_is_the_inverse_of_to_json(noise, spent):
    hyper = settings(20, noise)
    stated = jmm.statement(jmm.sgda, hyper, state(hyper, spent), delta=1e-6, unit="a visit")
    record = json.loads(json.dumps(stated.to_json()))
    assert jmm.accounting.Statement.from_json(record) == stated
    for wrong in ({}, [], record | {"more": 1}, record | {"subject": "x"}, record | {"spent": 1.5},
                  record | {"epsilon": "1"}, record | {"sampling": "x"}, record | {"assumed": [3]},
                  *({k: v for k, v in record.items() if k != name}
                    for name in record)):
        with pytest.raises(ValueError, match="record"):
            jmm.accounting.Statement.from_json(wrong)


# ---- the ledger ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["renyi", "basic"])
def test_budget_is_handed_out_refused_and_found_again(path, kind):
    ledger = jmm.accounting.Ledger(path, epsilon=2.0, delta=1e-6, unit="a visit", filter=kind)
    assert ledger.odometer == 0
    assert ledger.remaining().share == pytest.approx(1.0)
    first = ledger.calibrate(jmm.sgda, settings(), share=0.5)
    with ledger.reserve(jmm.sgda, first, name="first") as entry:
        assert entry.name == "first"
    assert ledger.remaining().share == pytest.approx(0.5, abs=2e-3)
    again = jmm.accounting.Ledger(path)
    assert again.remaining() == ledger.remaining()
    rest = again.calibrate(jmm.sgda, settings(7))
    again.reserve(jmm.sgda.mechanism(rest))
    before = path.read_text()
    with pytest.raises(ValueError, match=r"(epsilon|divergence), and \S+ of \S+ are left.*calibra"):
        ledger.reserve(jmm.sgda, first, name="more")
    assert path.read_text() == before
    stated = ledger.statement()
    assert [run["name"] for run in stated.runs] == ["first", "run 1"]
    assert json.loads(json.dumps(stated.to_json()))["epsilon"] == 2.0
    assert stated.paragraph().startswith("All releases in this ledger, now and later, together "
                                         "satisfy (2, 1e-06)-differential privacy for a visit")
    # what is reserved so far is never said to cost more than everything together
    reserved = stated.epsilon_if_stopped_by_looking
    assert ("quote this one" in stated.paragraph()) == (reserved >= 2) == (kind == "renyi")
    assert (f"epsilon = {rounded_up(reserved)}" in stated.paragraph()) == (reserved < 2)
    assert reserved == ledger.odometer > 1.5
    joint = jmm.Sequence(parts=(jmm.sgda.mechanism(first), jmm.sgda.mechanism(rest)))
    assert jmm.epsilon(joint, 1e-6) <= 2.0


def test_runs_say_what_their_parts_release(path):
    """Equal ones of one name once; another number of names is refused before it is charged."""
    ledger = jmm.accounting.Ledger(path, epsilon=2.0, delta=1e-6)
    described = jmm.Sequence(parts=(steps(400.0, 1), steps(400.0, 1), steps(400.0, 1)))
    ledger.reserve(described, parts=("means", "means", "gradients"))
    (run,) = ledger.statement().runs
    one = steps(400.0, 1).summary()
    assert run["words"] == f"2 times: means: {one} gradients: {one}"
    with pytest.raises(ValueError, match="parts must name each of 3 leaves"):
        ledger.reserve(described, parts=("means",))
    assert len(ledger.statement().runs) == 1


def test_what_was_not_released_is_given_back_where_that_is_proved(path):
    ledger = jmm.accounting.Ledger(path, epsilon=2.0, delta=1e-6)
    hyper = ledger.calibrate(jmm.sgda, settings(20), share=0.8)
    entry = ledger.reserve(jmm.sgda, hyper, name="a")
    full = ledger.odometer
    entry = jmm.accounting.Ledger(path).entry("a", jmm.sgda, hyper)  # after a restart
    entry.close(state(hyper, 5))
    assert ledger.remaining().share == pytest.approx(1 - 0.8 / 4, abs=1e-3)
    assert ledger.odometer < full
    entry.close(state(hyper, 5))
    for other in (state(hyper, 6), state(hyper, 0), state(hyper, 20), None):
        with pytest.raises(ValueError, match="cannot be made"):
            entry.close(other)
    none = ledger.reserve(jmm.sgda, hyper, name="b")
    none.close(state(hyper, 0))
    assert ledger.remaining().share == pytest.approx(1 - 0.8 / 4, abs=1e-3)
    other = jmm.accounting.Ledger(path.with_name("basic"), epsilon=2.0, delta=1e-6, filter="basic")
    other.reserve(jmm.sgda, settings(20, 200.0), name="a").close(state(hyper, 5))
    kept = other.remaining().share
    other.reserve(jmm.sgda, settings(20, 200.0), name="b")
    assert other.remaining().share == pytest.approx(1 - 2 * (1 - kept))


def test_losses_of_groups_have_their_noise_before_the_rest_is_calibrated(path):
    groups = jmm.GroupGradients(clip=1.0, noise_multiplier=None, sampling=jmm.Full(),
                                sizes=(500, 800))
    hyper = jmm.group_sgd.example(groups, 10, laplace=None)
    alone = jmm.accounting.Ledger(path.with_name("one"), epsilon=2.0, delta=1e-6)
    assert alone.calibrate(jmm.group_sgd, hyper) == jmm.calibrate(jmm.group_sgd, hyper, 2.0, 1e-6)
    ledger = jmm.accounting.Ledger(path, epsilon=2.0, delta=1e-6, filter="renyi")
    with pytest.raises(ValueError, match="losses is not set"):
        ledger.calibrate(jmm.group_sgd, hyper)
    losses = dataclasses.replace(hyper.losses, noise_multiplier=40.0)
    made = ledger.calibrate(jmm.group_sgd, dataclasses.replace(hyper, losses=losses))
    ledger.reserve(jmm.group_sgd, made)
    assert ledger.remaining().share < 1e-3
    assert jmm.epsilon(jmm.group_sgd.mechanism(made), 1e-6) <= 2.0


def test_an_exception_leaves_a_reservation_charged(path):
    ledger = jmm.accounting.Ledger(path, epsilon=2.0, delta=1e-6)
    with pytest.raises(KeyError), ledger.reserve(jmm.sgda, settings(20, 50.0), name="a"):
        raise KeyError
    assert ledger.statement().runs[0]["closed"] is None
    assert ledger.remaining().share < 1
    with pytest.raises(ValueError, match="may have released"):
        ledger.entry("a", jmm.sgda, settings(20, 50.0)).cancel()


def test_the_page_says_what_each_release_is(tmp_path):
    ledger = jmm.accounting.Ledger(tmp_path / "books", epsilon=2.0, delta=1e-6)
    both = jmm.Sequence(parts=(steps(90.0), steps(90.0)))
    ledger.reserve(both, name="a", parts=("means", "gradients"))
    (run,) = ledger.statement().runs
    (summary,) = {leaf.words().summary for leaf in leaves(both)}
    assert run["words"] == f"means: {summary} gradients: {summary}"
    assert "means: " in one_line(ledger.statement())
    with pytest.raises(ValueError, match="parts must name each of 2"):
        ledger.reserve(both, name="b", parts=("means",))


def test_the_filters_epsilon_is_below_its_last_milestone_with_half_of_delta(tmp_path):
    """So the odometer may be above the statement, and the page then says which one to quote."""
    ledger = jmm.accounting.Ledger(tmp_path / "books", epsilon=2.0, delta=1e-6, filter="renyi")
    ledger.reserve(jmm.sgda, ledger.calibrate(jmm.sgda, settings()), name="a")
    said = ledger.statement()
    assert said.epsilon < ledger.odometer == said.epsilon_if_stopped_by_looking
    assert "no smaller epsilon is proven" in said.scope()



@pytest.mark.parametrize("kind", ["renyi", "basic"])
def test_statements_from_elsewhere_are_charged_by_what_they_say(path, kind):
    hyper = jmm.calibrate(jmm.sgda, settings(), 0.2, 1e-9)
    stated = jmm.statement(jmm.sgda, hyper, delta=1e-9)
    ledger = jmm.accounting.Ledger(path, epsilon=2.0, delta=1e-6, filter=kind)
    ledger.add(jmm.accounting.Statement.from_json(stated.to_json()), name="theirs")
    spent = ledger.statement().spent
    if kind == "basic":
        assert spent == {"epsilon": stated.epsilon, "delta": 1e-9}
    else:
        assert spent["failure"] == 1e-9
        assert spent["divergence"] > jmm.accounting.Ledger(path)._rule.charge(
            jmm.sgda.mechanism(hyper), 1e-6, RO)["divergence"] / 10
    assert "by its statement" in one_line(ledger.statement())
    other = ("epsilon", "delta", "neighbours", "unit", "sampling", "enforced", "assumed")
    ledger.add(types.SimpleNamespace(**{name: getattr(stated, name) for name in other}))
    left = ledger.remaining()
    ledger.add(dataclasses.replace(stated, epsilon=left.epsilon * (1 - 1e-9),
                                   delta=left.delta * (1 - 1e-9)), name="all that fits")
    with pytest.raises(ValueError, match="left"):
        ledger.add(stated, name="more")
    for changed in ({"unit": "a visit"}, {"neighbours": AR}):
        with pytest.raises(ValueError, match="cannot be added"):
            ledger.add(dataclasses.replace(stated, **changed))
    with pytest.raises(ValueError, match="left"):
        ledger.add(dataclasses.replace(stated, epsilon=math.inf), name="none")
    for changed in ({"epsilon": -1.0}, {"delta": -1e-7}, {"epsilon": math.nan}):
        with pytest.raises(ValueError, match="must lie in"):
            ledger.add(dataclasses.replace(stated, **changed))


def test_a_delta_that_is_short_is_told_apart_from_noise(path):
    stated = jmm.statement(jmm.sgda, jmm.calibrate(jmm.sgda, settings(), 0.2, 1e-6), delta=1e-6)
    ledger = jmm.accounting.Ledger(path, epsilon=3.0, delta=1e-6)
    with pytest.raises(ValueError, match="delta is short") as refused:
        ledger.add(stated)
    words = str(refused.value)
    assert "more noise" not in words
    assert "5% of its delta" in words
    assert "filter='basic'" in words
    most = float(words.partition("a delta of at most ")[2].split(",")[0])
    ledger.add(dataclasses.replace(stated, delta=0.99 * most))  # as it says
    basic = jmm.accounting.Ledger(path.with_name("basic"), epsilon=3.0, delta=1.5e-6,
                                  filter="basic")
    basic.add(stated)
    with pytest.raises(ValueError, match="delta of at most 5e-07"):
        basic.add(stated)
    with pytest.raises(ValueError, match="add more noise"):
        ledger.reserve(steps(0.5))


def test_names_and_numbers_of_other_types_are_refused(path):
    stated = jmm.statement(jmm.sgda, jmm.calibrate(jmm.sgda, settings(), 0.2, 1e-9), delta=1e-9)
    ledger = jmm.accounting.Ledger(path, epsilon=3.0, delta=1e-6)
    for name in (fractions.Fraction(1, 2), 3, b"a", ["a"]):
        with pytest.raises(ValueError, match="name must be a string"):
            ledger.reserve(steps(60.0), name=name)
        with pytest.raises(ValueError, match="name must be a string"):
            ledger.add(stated, name=name)
    for wrong in ("0.1", None, True, np.ones(2)):
        for what in ("epsilon", "delta"):
            with pytest.raises(ValueError, match=f"{what}.* must be"):
                ledger.add(dataclasses.replace(stated, **{what: wrong}))
    ledger.add(dataclasses.replace(stated, epsilon=np.float32(0.5)), name="a NumPy number")
    assert len(jmm.accounting.Ledger(path).statement().runs) == 1


@pytest.mark.parametrize("kind", ["renyi", "basic"])
def test_a_ledger_for_several_records_of_a_person(path, kind):
    run = steps(5.0, 30, jmm.Poisson(rate=0.01))
    ledger = jmm.accounting.Ledger(path, epsilon=40.0, delta=1e-6, people=3, filter=kind)
    ledger.reserve(run, name="a")
    single = jmm.accounting.Ledger(path.with_name("one"), epsilon=40.0, delta=1e-6, filter=kind)
    single.reserve(run, name="a")
    if kind == "renyi":
        charged = [x.statement().spent["divergence"] for x in (single, ledger)]
        assert charged[1] > 2 * charged[0] > 0
    else:
        assert jmm.accounting.Ledger(path).odometer > 2 * single.odometer > 0
    assert ledger.odometer >= jmm.epsilon(run, 1e-6, people=3)
    assert "privacy for any 3 records" in ledger.statement().paragraph()
    hyper = ledger.calibrate(jmm.sgda, settings(5), share=0.5)
    charged = jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-6, people=3)
    assert charged > 1.3 * jmm.epsilon(jmm.sgda.mechanism(hyper), 1e-6)
    ledger.reserve(jmm.sgda, hyper, name="half")
    split = jmm.Parallel(parts=(run, run))
    if kind == "renyi":
        with pytest.raises(ValueError, match="filter='basic'"):
            ledger.reserve(split, name="b")


@pytest.mark.parametrize(("given", "words"), [
    ({"epsilon": 3.0}, "epsilon"), ({"delta": 1e-7}, "delta"), ({"unit": "x"}, "unit"),
    ({"neighbours": AR}, "neighbours"), ({"filter": "basic"}, "filter"), ({"order": 3.0}, "order"),
    ({"people": 2}, "people")])
def test_other_settings_are_refused(path, given, words):
    jmm.accounting.Ledger(path, epsilon=2.0, delta=1e-6, order=10.0)
    with pytest.raises(ValueError, match=words):
        jmm.accounting.Ledger(path, **given)


@pytest.mark.parametrize(("given", "words"), [
    ({}, "epsilon and delta"), ({"epsilon": 1.0}, "epsilon and delta"),
    ({"epsilon": -1.0, "delta": 1e-6}, "epsilon"), ({"epsilon": 1.0, "delta": 2.0}, "delta"),
    ({"epsilon": 1.0, "delta": 1e-6, "filter": "pld"}, "filter"),
    ({"epsilon": 1.0, "delta": 1e-6, "filter": "plan"}, "filter"),
    ({"epsilon": 1.0, "delta": 1e-6, "filter": "basic", "order": 3.0}, "order"),
    ({"epsilon": 1.0, "delta": 1e-6, "order": 0.5}, "order"),
    ({"epsilon": 1.0, "delta": 1e-6, "people": 0}, "people"),
    ({"epsilon": 1.0, "delta": 1e-6, "neighbours": "both"}, "neighbours")])
def test_a_bad_ledger_is_refused_and_leaves_no_file(path, given, words):
    with pytest.raises(ValueError, match=words):
        jmm.accounting.Ledger(path, **given)
    assert not path.exists()


def test_a_bad_run_is_refused(path):
    ledger = jmm.accounting.Ledger(path, epsilon=2.0, delta=1e-6)
    ledger.reserve(steps(100.0), name="a")
    for described, words in ((steps(100.0), "another name"), (steps(0.0), "left"), (3, "mechanism"),
                             (steps(1e-3), "left")):
        with pytest.raises(ValueError, match=words):
            ledger.reserve(described, name="a" if words == "another name" else "b")
    with pytest.raises(ValueError, match="filter='basic'"):
        ledger.reserve(steps(100.0), delta=1e-7)
    with pytest.raises(ValueError, match="not in the ledger"):
        ledger.entry("z", steps(100.0))
    with pytest.raises(ValueError, match="another description"):
        ledger.entry("a", steps(90.0))


# ---- a first run that has all of the budget ---------------------------------------------------

ALL_SPENT = r"is spent: its first run, 'a', has all of it.*filter='renyi'.*share below 1"


def whole(path, **how):
    """A ledger without a stated filter, and settings that ask for all of it."""
    ledger = jmm.accounting.Ledger(path, epsilon=2.0, delta=1e-6, **how)
    return ledger, ledger.calibrate(jmm.sgda, settings(n=ledger.people * 1000))


@pytest.mark.parametrize(("epsilon", "query"), [
    (0.5, {}), (8.0, {}), (0.5, {"n": 1000, "sampling": jmm.Poisson(rate=0.05)}),
    (8.0, {"n": 40_000, "sampling": jmm.Poisson(rate=0.002)})])
def test_one_run_with_all_of_the_budget_has_the_noise_of_a_run_alone(path, epsilon, query):
    hyper = settings(100, **query)
    ledger = jmm.accounting.Ledger(path, epsilon=epsilon, delta=1e-6)
    made = ledger.calibrate(jmm.sgda, hyper)
    assert made == jmm.calibrate(jmm.sgda, hyper, epsilon, 1e-6)
    shared = jmm.accounting.Ledger(path.with_name("shared"), epsilon=epsilon, delta=1e-6,
                                   filter="renyi")
    noise = [x.query.noise_multiplier.w for x in (made, shared.calibrate(jmm.sgda, hyper))]
    assert noise[1] > 1.03 * noise[0]
    with pytest.raises(ValueError, match="divergence, and"):
        shared.reserve(jmm.sgda, made)
    with ledger.reserve(jmm.sgda, made, name="a"):
        assert ledger.filter == "basic"
    assert jmm.epsilon(jmm.sgda.mechanism(made), 1e-6) <= ledger.odometer == epsilon
    for again in (ledger, jmm.accounting.Ledger(path)):
        assert again.remaining() == (0.0, 0.0, 0.0)
        assert again.statement().spent == again.statement().limits == {
            "epsilon": epsilon, "delta": 1e-6}
    assert f"({rounded_up(epsilon)}, 1e-06)-diff" in ledger.statement().paragraph()
    assert "whether it has all of the budget" in " ".join(ledger.statement().enforced)


def test_everything_after_a_run_with_all_of_the_budget_is_refused(path):
    """Also what would cost nothing; whether by the object that reserved it or by another one."""
    ledger, hyper = whole(path)
    other = jmm.accounting.Ledger(path)
    nothing = jmm.statement(jmm.sgda, jmm.calibrate(jmm.sgda, settings(), 0.05, 1e-9), delta=1e-9)
    entry = ledger.reserve(jmm.sgda, hyper, name="a")
    before = path.read_text()
    for one in (ledger, other, jmm.accounting.Ledger(path)):
        for use in (lambda one=one: one.reserve(steps(1e4), name="b"),
                    lambda one=one: one.reserve(steps(1e4), name="b", delta=1e-9),
                    lambda one=one: one.reserve(jmm.sgda, hyper, name="b"),
                    lambda one=one: one.add(nothing, name="b"),
                    lambda one=one: one.add(dataclasses.replace(nothing, epsilon=0.0, delta=0.0)),
                    lambda one=one: one.calibrate(jmm.sgda, hyper),
                    lambda one=one: one.calibrate(jmm.sgda, hyper, share=0.1)):
            with pytest.raises(ValueError, match=ALL_SPENT):
                use()
    assert path.read_text() == before
    entry.close(state(hyper, 5))  # what it did not release is not given back: its end was chosen
    with pytest.raises(ValueError, match=ALL_SPENT):
        ledger.reserve(steps(1e4))
    assert ledger.remaining().share == 0


def books(path):
    """What a ledger's file says, but for times, its checksum and the mark of its opening."""
    content = json.loads(path.read_text())
    for part in (content, *content["entries"]):
        for name in ("opened", "closed", "checksum", "single_run"):
            part.pop(name, None)
    return content


@pytest.mark.parametrize("first", [0.2, 0.5, 0.999])
def test_runs_that_share_are_those_of_a_stated_filter(path, first):
    paths, noise = (path, path.with_name("stated")), []
    for one, how in zip(paths, ({}, {"filter": "renyi"}), strict=True):
        ledger = jmm.accounting.Ledger(one, epsilon=2.0, delta=1e-6, **how)
        for share in (first, 0.5, 1.0):
            hyper = ledger.calibrate(jmm.sgda, settings(), share=share)
            entry = ledger.reserve(jmm.sgda, hyper)
            noise.append(hyper.query.noise_multiplier.w)
        entry.close(state(hyper, 4))
        ledger.reserve(steps(1e3))
        assert ledger.filter == "renyi"
    assert noise[:3] == noise[3:]
    assert books(paths[0]) == books(paths[1])


def test_the_first_run_decides_by_its_description_alone(path):
    """By its divergence; if that is too large, by its own epsilon; if that is small, it must not.

    What the rule is does not depend on names, units, keys or the number of tries.
    """
    limit = Renyi.open(2.0, 1e-6, best_order(2.0, 1e-6, RO)).limits["divergence"]
    sampled = jmm.Poisson(rate=0.01)
    seen = set()
    for k, run in enumerate((*(steps(z) for z in np.geomspace(10.0, 18.0, 9)), steps(
            0.9, 10, sampled), steps(0.7, 10, sampled))):
        ledger = jmm.accounting.Ledger(path.with_name(str(k)), epsilon=2.0, delta=1e-6)
        fits = ledger._rule.charge(run, 1e-6, RO)["divergence"] <= limit
        alone = jmm.epsilon(run, 1e-6)
        expected = "renyi" if fits else "basic" if 1.5 <= alone <= 2.0 else "none"
        seen.add((expected, bool(alone <= 2.0)))
        for again in range(2):
            if expected == "none":
                with pytest.raises(ValueError, match=r"divergence, and .* are left"):
                    ledger.reserve(run)
                assert ledger.statement().runs == ()
                continue
            entry = ledger.reserve(run, name=f"a{again}")
            assert ledger.filter == expected
            entry.cancel()
    assert seen == {("renyi", True), ("basic", True), ("none", True), ("none", False)}


def test_a_run_without_a_divergence_may_have_all_of_the_budget(path):
    half = steps(1.0, 30, jmm.Poisson(rate=0.01))
    run = jmm.accounting.calibrate_noise(jmm.Parallel(parts=(half, half)), 2.0, 1e-6, people=3)
    ledger = jmm.accounting.Ledger(path, epsilon=2.0, delta=1e-6, people=3)
    small = jmm.accounting.calibrate_noise(run, 1.0, 1e-6, people=3)
    with pytest.raises(ValueError, match="filter='basic'"):
        ledger.reserve(small)
    ledger.reserve(run, name="a")
    with pytest.raises(ValueError, match=ALL_SPENT):
        ledger.reserve(steps(1e4))


def test_the_next_run_decides_only_if_nothing_was_released_before(path):
    ledger, hyper = whole(path)
    ledger.reserve(jmm.sgda, hyper, name="a").cancel()
    half = ledger.calibrate(jmm.sgda, settings(), share=0.5)
    first = ledger.reserve(jmm.sgda, half, name="half")
    for other in (ledger, jmm.accounting.Ledger(path)):
        with pytest.raises(ValueError, match=r"divergence, and .* are left"):
            other.reserve(jmm.sgda, hyper, name="late")
    second = ledger.reserve(steps(1e3), name="second")
    first.cancel()
    assert ledger.filter == "renyi"
    second.close()
    with pytest.raises(ValueError, match=r"divergence, and .* are left"):
        ledger.reserve(jmm.sgda, hyper, name="late")
    counted, hyper = whole(path.with_name("counted"))
    counted.add(jmm.statement(jmm.sgda, jmm.calibrate(jmm.sgda, settings(), 0.05, 1e-9),
                              delta=1e-9))
    with pytest.raises(ValueError, match=r"divergence, and .* are left"):
        counted.reserve(jmm.sgda, hyper)


@pytest.mark.parametrize("how", [{"filter": "renyi"}, {"filter": "basic"}, {"order": 12.0},
                                 {"typical": steps(60.0)}])
def test_who_states_a_filter_has_it(path, how):
    """When the ledger is opened; later on the file says that none was stated."""
    ledger = jmm.accounting.Ledger(path, epsilon=2.0, delta=1e-6, **how)
    assert "single_run" not in json.loads(path.read_text())
    assert ledger.filter == how.get("filter", "renyi")
    if ledger.filter == "renyi":
        with pytest.raises(ValueError, match=r"divergence, and .* are left"):
            ledger.reserve(jmm.sgda, jmm.calibrate(jmm.sgda, settings(), 2.0, 1e-6))
    half = ledger.calibrate(jmm.sgda, settings(), share=0.5)
    ledger.reserve(jmm.sgda, half)
    ledger.reserve(jmm.sgda, ledger.calibrate(jmm.sgda, settings()))
    assert ledger.filter == how.get("filter", "renyi")
    jmm.accounting.Ledger(path, **{k: v for k, v in how.items() if k != "typical"})
    open_one, hyper = whole(path.with_name("open"))
    if "typical" not in how:
        for _ in range(2):  # before and after the first run has decided
            with pytest.raises(ValueError, match="= None, not"):
                jmm.accounting.Ledger(path.with_name("open"), **how)
            if not open_one.statement().runs:
                open_one.reserve(jmm.sgda, hyper)


# as it was written when the rule of runs that share was the only default
BEFORE = {
    "epsilon": 1.0, "delta": 1e-06, "neighbours": "replace_one", "people": 1, "unit": "one record",
    "opened": "2026-01-02T12:00:00+00:00", "filter": {"kind": "renyi", "limits": {
        "divergence": 0.5616354636252848, "failure": 4.995002499166875e-08,
        "law": 1.3144884594541547e-08, "ratio": 0.001},
        "details": {"order": 23.3872113856834, "delta": 8.991004498500375e-07}},
    "entries": [], "what": "jaxminimax ledger", "version": 1}


def test_a_file_without_the_mark_is_read_and_charged_as_before(path):
    """It shares its budget, though no run is in it yet."""
    text = json.dumps(BEFORE, sort_keys=True)
    path.write_text(json.dumps({**BEFORE, "checksum": hashlib.sha256(text.encode()).hexdigest()}))
    ledger = jmm.accounting.Ledger(path, filter="renyi")
    assert (ledger.filter, ledger.odometer) == ("renyi", 0.0)
    alone = jmm.calibrate(jmm.sgda, settings(), 1.0, 1e-6)
    with pytest.raises(ValueError, match=r"divergence, and .* are left"):
        ledger.reserve(jmm.sgda, alone)
    made = ledger.calibrate(jmm.sgda, settings())
    assert made.query.noise_multiplier.w > 1.05 * alone.query.noise_multiplier.w
    entry = ledger.reserve(jmm.sgda, made, name="a")
    assert ledger.remaining().share < 1e-3
    entry.close(state(made, 5))
    assert ledger.remaining().share == pytest.approx(0.75, abs=1e-3)
    assert json.loads(path.read_text()).keys() == {*BEFORE, "checksum"}


@pytest.mark.parametrize("spoil", [
    lambda content: content["entries"].clear(),
    lambda content: content["entries"].append(content["entries"][0] | {"name": "b", "charge": {}}),
    lambda content: content.update(single_run=False), lambda content: content.pop("single_run"),
    lambda content: content["entries"][0].update(charge={"divergence": 0.1}),
    lambda content: content.update(single_run=None)])
def test_a_file_that_says_two_things_of_its_single_run_is_damaged(path, spoil):
    ledger, hyper = whole(path)
    ledger.reserve(jmm.sgda, hyper)
    content = json.loads(path.read_text())
    content.pop("checksum")
    spoil(content)
    text = json.dumps(content, sort_keys=True)
    path.write_text(json.dumps({**content, "checksum": hashlib.sha256(text.encode()).hexdigest()}))
    for use in (lambda: jmm.accounting.Ledger(path), ledger.remaining,
                lambda: ledger.reserve(steps(1e4))):
        with pytest.raises(ValueError, match="no whole ledger"):
            use()


@pytest.mark.parametrize(("mine", "theirs", "words"), [
    (1.0, 0.5, "divergence, and .* are left"), (1.0, 1.0, ALL_SPENT), (0.5, 1.0, ALL_SPENT)])
def test_a_run_that_was_counted_in_the_meantime_was_the_first(
        path, monkeypatch, mine, theirs, words):
    """Who comes first is decided under the lock, not when the charge is computed."""
    ledger = jmm.accounting.Ledger(path, epsilon=2.0, delta=1e-6)
    own, other = (ledger.calibrate(jmm.sgda, settings(), share=share) for share in (mine, theirs))
    charge = jmm.accounting.Ledger._charge

    def interrupted(self, *run):
        computed = charge(self, *run)
        monkeypatch.undo()
        jmm.accounting.Ledger(path).reserve(jmm.sgda, other, name="a")
        return computed

    monkeypatch.setattr(jmm.accounting.Ledger, "_charge", interrupted)
    with pytest.raises(ValueError, match=words):
        ledger.reserve(jmm.sgda, own, name="b")
    assert [run["name"] for run in ledger.statement().runs] == ["a"]


def test_threads_that_ask_for_all_or_half_at_once_share_one_budget(path):
    """All ledgers are opened, and all noise is chosen, before anybody reserves."""
    barrier, granted, refused = threading.Barrier(4), [], []

    def take(k):
        ledger, hyper = whole(path)
        if k % 2:
            hyper = ledger.calibrate(jmm.sgda, settings(), share=0.5)
        barrier.wait()
        try:
            ledger.reserve(jmm.sgda, hyper, name=f"a{k}")
            granted.append(k)
        except ValueError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=take, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) + len(refused) == 4
    stated = jmm.accounting.Ledger(path).statement()
    assert {run["name"] for run in stated.runs} == {f"a{k}" for k in granted}
    assert len(granted) == 1 or {k % 2 for k in granted} == {1}
    assert all("has all of it" in words or "are left" in words for words in refused)
    assert all(stated.spent[name] <= limit for name, limit in stated.limits.items())


# ---- the file --------------------------------------------------------------------------------

CHILD = """
import os, signal, sys, time
import jaxminimax as jmm
from jaxminimax import Saddle
path, name, then = sys.argv[1:]
query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(60.0, None), population=1000)
run = jmm.Repeat(query=query, times=10)
ledger = jmm.accounting.Ledger(path)
if then == "race":
    open(path + name, "w").close()
    while not os.path.exists(path + "go"):
        time.sleep(0.005)
    try:
        ledger.reserve(run, name=name)
    except ValueError as refused:
        sys.exit(3 if "left" in str(refused) else 4)
else:
    ledger.reserve(run, name=name)
    with ledger._file.locked():
        open(path + ".half", "w").write("{")
        os.kill(os.getpid(), signal.SIGKILL)
"""


OPENING = """
import os, sys, time
import jaxminimax as jmm
from jaxminimax import Saddle
path, share = sys.argv[1:]
query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000)
hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=20)

def meet(place):
    open(path + share + place, "w").close()
    while not os.path.exists(path + place):
        time.sleep(0.005)

meet("open")
ledger = jmm.accounting.Ledger(path, epsilon=2.0, delta=1e-6)
hyper = ledger.calibrate(jmm.sgda, hyper, share=float(share))
meet("reserve")
try:
    ledger.reserve(jmm.sgda, hyper, name=share)
except ValueError as refused:
    sys.exit(3 if "are left" in str(refused) or "has all of it" in str(refused) else 4)
"""


@pytest.mark.slow
def test_processes_that_open_a_ledger_at_once_agree_on_who_has_the_budget(path):
    shares = ("1.0", "0.9")
    both = [subprocess.Popen([sys.executable, "-c", OPENING, str(path), share], cwd=ROOT)
            for share in shares]
    for place in ("open", "reserve"):
        while not all(pathlib.Path(f"{path}{share}{place}").exists() for share in shares):
            assert all(process.poll() is None for process in both)
        pathlib.Path(f"{path}{place}").touch()
    ends = [process.wait(120) for process in both]
    assert sorted(ends) == [0, 3]
    ledger = jmm.accounting.Ledger(path)
    first = shares[ends.index(0)]
    assert [run["name"] for run in ledger.statement().runs] == [first]
    assert ledger.filter == ("basic" if first == "1.0" else "renyi")


def child(path, name, then):
    return subprocess.Popen([sys.executable, "-c", CHILD, str(path), name, then], cwd=ROOT)


@pytest.mark.slow
def test_processes_cannot_spend_the_same_budget_and_a_crash_keeps_its_charge(path):
    rule = jmm.accounting.Ledger(path, epsilon=1.0, delta=1e-6)._rule
    one = rule.charge(steps(60.0, 10), 1.0, RO)["divergence"]
    rest = steps(60.0, int(10 * (rule.limits["divergence"] / one - 2.5)))
    jmm.accounting.Ledger(path).reserve(rest, name="rest")  # room for two more
    both = [child(path, name, "race") for name in ("b", "c")]
    assert child(path, "crashed", "die").wait(120) == -signal.SIGKILL
    runs = jmm.accounting.Ledger(path).statement().runs
    assert [run["name"] for run in runs] == ["rest", "crashed"]
    assert runs[1]["closed"] is None
    while not all(pathlib.Path(f"{path}{name}").exists() for name in ("b", "c")):
        assert all(process.poll() is None for process in both)
    pathlib.Path(f"{path}go").touch()
    assert sorted(process.wait(120) for process in both) == [0, 3]
    assert len(jmm.accounting.Ledger(path).statement().runs) == 3


def test_threads_cannot_spend_the_same_budget(path):
    ledger = jmm.accounting.Ledger(path, epsilon=1.0, delta=1e-6)
    one = ledger._rule.charge(steps(60.0), 1.0, RO)["divergence"]
    room = math.floor(ledger._rule.limits["divergence"] / one)
    granted = []

    def take(k):
        for i in range(room):
            try:
                jmm.accounting.Ledger(path).reserve(steps(60.0), name=f"{k}.{i}")
            except ValueError:
                return
            granted.append(k)

    threads = [threading.Thread(target=take, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == room == len(ledger.statement().runs)


def test_a_crash_while_writing_leaves_the_old_content(path, monkeypatch):
    ledger = jmm.accounting.Ledger(path, epsilon=1.0, delta=1e-6)
    before = path.read_text()

    def fails(*_):
        raise OSError("no space")

    for name in ("replace", "fsync"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, fails)
            with pytest.raises(OSError, match="no space"):
                ledger.reserve(steps(60.0), name="a")
        assert path.read_text() == before
    assert sorted(p.name for p in path.parent.iterdir()) == ["study.json", "study.json.lock"]
    ledger.reserve(steps(60.0), name="a")


@pytest.mark.parametrize(("spoil", "words"), [
    (lambda text: text[:-20], "no whole ledger"), (lambda text: "", "no whole ledger"),
    (lambda text: "[1]", "no whole ledger.*object"),
    (lambda text: '{"what": "else"}', "version is missing"),
    (lambda text: text.replace('"what": "jaxminimax', '"what": "'), "what must be 'jaxminimax"),
    (lambda text: text.replace('"version": 1', '"version": 9'), "version must be 1"),
    (lambda text: text.replace('"epsilon": 1.0', '"epsilon": 2.0'), "damaged")])
def test_a_file_that_is_no_whole_ledger_is_refused(path, spoil, words):
    ledger = jmm.accounting.Ledger(path, epsilon=1.0, delta=1e-6)
    spoiled = spoil(path.read_text())
    path.write_text(spoiled)
    for use in (lambda: jmm.accounting.Ledger(path), ledger.remaining,
                lambda: ledger.reserve(steps(60.0))):
        with pytest.raises(ValueError, match=words):
            use()
    assert path.read_text() == spoiled


def test_a_ledger_has_one_name(path):
    jmm.accounting.Ledger(path, epsilon=1.0, delta=1e-6)
    link = path.with_name("link")
    link.symlink_to(path)
    jmm.accounting.Ledger(link).reserve(steps(60.0), name="a")
    assert link.is_symlink()
    assert len(jmm.accounting.Ledger(path).statement().runs) == 1
    os.link(path, path.with_name("hard"))
    with pytest.raises(ValueError, match="several names"):
        jmm.accounting.Ledger(path).reserve(steps(60.0), name="b")


def test_a_lock_that_is_held_and_a_folder_that_is_missing_are_told(path, tmp_path):
    ledger = jmm.accounting.Ledger(path, epsilon=1.0, delta=1e-6)
    ledger._file._wait = 0.05
    with (LedgerFile(path).locked(), pytest.raises(ValueError, match="locked by another")):
        ledger.reserve(steps(60.0))
    with pytest.raises(ValueError, match="create it first"):
        jmm.accounting.Ledger(tmp_path / "none" / "a", epsilon=1.0, delta=1e-6)
    path.unlink()
    with pytest.raises(ValueError, match="no ledger at"):
        ledger.remaining()
    jmm.accounting.Ledger(path, epsilon=2.0, delta=1e-6)
    with pytest.raises(ValueError, match="not the ledger that was opened"):
        ledger.remaining()


# ---- fit -------------------------------------------------------------------------------------

N = 12
ROWS = tuple(np.random.default_rng(0).normal(size=(2, N, 2)))
PROBLEM = jmm.Problem(operator=jmm.saddle_operator(lambda w, v, x: jnp.sum(w * x[0] - v * x[1])))


class StoppedError(Exception):
    """Ends a run after its first piece."""


def stop(_):
    raise StoppedError


def train(ledger, key=0, data=ROWS, z=0.0, n=N, problem=PROBLEM, **how):
    hyper = settings(4, 300.0, n)
    start = Saddle(jnp.full(2, z), jnp.full(2, z))
    return jmm.fit(jax.random.key(key), start, data, hyper, jmm.sgda, problem, delta=1e-6, every=2,
                   progress=False, ledger=ledger, **how)


@pytest.mark.slow
def test_a_run_that_goes_on_is_charged_once_and_no_other_for_free(path, tmp_path):
    ledger = jmm.accounting.Ledger(path, epsilon=1.0, delta=1e-6)
    folder = tmp_path / "run"
    with pytest.raises(StoppedError):
        train(ledger, checkpoint=folder, callback=stop, name="a")
    left = ledger.remaining()
    assert left.share < 1
    (run,) = ledger.statement().runs
    assert run["closed"] is None
    other = (ROWS[0] + 1, ROWS[1])
    for changed, words in (({"data": other}, "data set"), ({"z": 1.0}, "initial point")):
        with pytest.raises(ValueError, match=f"another {words}"):
            train(ledger, checkpoint=tmp_path / "other", **changed)
    with pytest.raises(ValueError, match="without a checkpoint"):
        train(ledger)
    done = train(ledger, checkpoint=folder)
    again = train(ledger, checkpoint=tmp_path / "anew")  # the same numbers: nothing new is released
    np.testing.assert_array_equal(done.state.z.w, again.state.z.w)
    assert ledger.remaining() == left
    (run,) = ledger.statement().runs
    assert run["closed"] is not None
    train(ledger, key=1)
    assert ledger.remaining().share < left.share
    with pytest.raises(ValueError, match="without a checkpoint"):
        train(ledger, key=1, checkpoint=tmp_path / "late")


@pytest.mark.slow
def test_a_run_goes_on_elsewhere_only_from_a_saved_state(path, tmp_path):
    ledger = jmm.accounting.Ledger(path, epsilon=1.0, delta=1e-6)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    with pytest.raises(StoppedError):
        train(ledger, checkpoint=tmp_path / "run", callback=stop)
    with pytest.raises(ValueError, match="another device, mesh"):
        train(ledger, checkpoint=tmp_path / "lost", mesh=mesh)
    train(ledger, checkpoint=tmp_path / "run", mesh=mesh)
    with pytest.raises(ValueError, match="another device, mesh"):
        train(ledger, checkpoint=tmp_path / "lost")  # it would repeat what the mesh has shown
    assert len(ledger.statement().runs) == 1


@pytest.mark.slow
def test_a_run_that_lost_its_last_state_goes_on_only_where_it_was(path, tmp_path):
    ledger = jmm.accounting.Ledger(path, epsilon=1.0, delta=1e-6)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    seen = []
    train(ledger, checkpoint=tmp_path / "run", callback=seen.append)
    shutil.rmtree(tmp_path / "run" / "4")
    with pytest.raises(ValueError, match="another device, mesh"):
        train(ledger, checkpoint=tmp_path / "run", mesh=mesh)
    slices = PROBLEM._replace(operator=jmm.types.with_strategy(PROBLEM.operator, "microbatch", 5))
    with pytest.raises(ValueError, match="strategy"):
        train(ledger, checkpoint=tmp_path / "run", problem=slices)
    again = train(ledger, checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(again.state.z.w, seen[-1].z.w)
    assert len(ledger.statement().runs) == 1


def test_a_run_that_never_began_is_not_charged(path):
    ledger = jmm.accounting.Ledger(path, epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="neighbours"):
        train(ledger, neighbours=AR)
    with pytest.raises(ValueError, match="people"):
        train(ledger, people=2)
    with pytest.raises(ValueError, match="ledger"):
        train(None, name="a")
    with pytest.raises(ValueError, match=r"(?i)rows|records|population"):
        train(ledger, n=N + 1)
    assert ledger.statement().runs == ()


@pytest.mark.slow
def test_runs_of_another_unit_are_refused(path):
    """A ledger of persons would print persons' privacy for what protects single rows."""
    owners = np.arange(N) % 4
    persons = jmm.problems.by_person(ROWS, owners, most=3)
    each = jmm.problems.per_person(PROBLEM)
    of_persons = jmm.accounting.Ledger(path, epsilon=1.0, delta=1e-6, unit="one person")
    stated = train(of_persons, data=persons, n=4, problem=each, name="persons").statement
    assert stated.unit == "one person"
    assert "names of the persons, and so their number, are public" in " ".join(stated.assumed)
    with pytest.raises(ValueError, match="unit = 'one record', and the ledger for 'one person'"):
        train(of_persons, key=1)
    with pytest.raises(ValueError, match="unit='one person'"):
        of_persons.reserve(steps(60.0), unit="one record")
    train(of_persons, key=1, unit="one person", name="rows of one each")
    of_persons.reserve(steps(60.0), unit="one person", name="reserved")
    runs = of_persons.statement().runs
    assert [(run["name"], run["unit"]) for run in runs] == [
        (name, "one person") for name in ("persons", "rows of one each", "reserved")]
    assert str(of_persons.statement()).count("for one person; ") == 3
    of_rows = jmm.accounting.Ledger(path.with_name("rows"), epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="unit = 'one person'"):
        train(of_rows, data=persons, n=4, problem=each)
    train(of_rows)
    assert [run["unit"] for run in of_rows.statement().runs] == ["one record"]


def test_a_run_that_another_process_goes_on_with_is_not_cancelled(path):
    ledger = jmm.accounting.Ledger(path, epsilon=1.0, delta=1e-6)
    marks = RunMark(key="k", run="r", resumable=True)
    first = ledger.reserve(steps(60.0), run=marks)
    left = ledger.remaining()
    second = jmm.accounting.Ledger(path).reserve(steps(60.0), run=marks)
    assert (first.fresh, second.fresh) == (True, False)
    with pytest.raises(ValueError, match="may have released"):
        first.cancel()
    assert ledger.remaining() == left
    second.close()
    ledger.reserve(steps(60.0), run=marks._replace(key="l")).cancel()
    assert ledger.remaining() == left


class Untouched:
    """Data that may not be read."""

    def __getattr__(self, name):
        if name in ("record", "rows"):  # whether it is a reader of persons
            raise AttributeError(name)
        raise AssertionError("data were read")


def test_a_refused_run_reads_no_data(path):
    ledger = jmm.accounting.Ledger(path, epsilon=0.01, delta=1e-6)
    with pytest.raises(ValueError, match="are left"):
        train(ledger, data=Untouched())


def just_enough(path):
    """A ledger whose budget is that of `train` by its own epsilon, and not by its divergence."""
    alone = jmm.epsilon(jmm.sgda.mechanism(settings(4, 300.0, N)), 1e-6)
    return jmm.accounting.Ledger(path, epsilon=1.01 * alone, delta=1e-6)


def decided_before_data(path):
    """What is on disk when a run that has all of the budget begins to read data."""
    with pytest.raises(AssertionError, match="data were read"):
        train(just_enough(path), data=Untouched(), name="a")
    return json.loads(path.read_text())


def test_who_has_the_budget_is_on_disk_before_data_are_read(path):
    decided = decided_before_data(path)
    assert decided["single_run"] is True
    assert [run["name"] for run in decided["entries"]] == ["a"]
    with pytest.raises(ValueError, match=ALL_SPENT):
        train(jmm.accounting.Ledger(path), key=1, data=Untouched(), name="b")


@pytest.mark.slow
def test_neither_data_nor_what_becomes_of_a_run_decide_who_has_the_budget(path):
    decided = decided_before_data(path)
    for k, (data, end) in enumerate((((0 * ROWS[0], 0 * ROWS[1]), None), (ROWS, stop),
                                     ((1e9 * ROWS[0], -1e9 * ROWS[1]), None))):
        one = just_enough(path.with_name(f"{k}"))
        with pytest.raises(StoppedError) if end else contextlib.nullcontext():
            train(one, data=data, name="a", callback=end)
        content = json.loads(path.with_name(f"{k}").read_text())
        assert content["single_run"] is True
        assert content["filter"] == decided["filter"]
        assert content["entries"][0]["charge"] == decided["entries"][0]["charge"]
        with pytest.raises(ValueError, match=ALL_SPENT):
            train(one, key=1, data=Untouched(), name="b")


@pytest.mark.slow
def test_a_run_that_has_all_of_the_budget_goes_on_and_is_charged_once(path, tmp_path):
    ledger = just_enough(path)
    with pytest.raises(ValueError, match="people"):  # which is refused, and decides nothing
        train(ledger, people=2)
    assert not json.loads(path.read_text())["single_run"]
    with pytest.raises(StoppedError):
        train(ledger, checkpoint=tmp_path / "run", callback=stop, name="a")
    again = jmm.accounting.Ledger(path)
    for one in (ledger, again):
        with pytest.raises(ValueError, match="without a checkpoint"):
            train(one)
        with pytest.raises(ValueError, match=ALL_SPENT):
            train(one, key=1, checkpoint=tmp_path / "more")
        with pytest.raises(ValueError, match="another data set"):
            train(one, checkpoint=tmp_path / "other", data=(ROWS[0] + 1, ROWS[1]))
    done = train(again, checkpoint=tmp_path / "run")
    assert done.state.spent == done.statement.allowed
    (run,) = again.statement().runs
    assert run["closed"] is not None
    assert again.remaining().share == 0 < again.odometer == again.epsilon


# ---- command line ----------------------------------------------------------------------------


def test_the_command_line_opens_a_ledger_with_a_stated_filter(path, capsys):
    how = ["ledger", str(path), "--epsilon", "1", "--delta", "1e-6"]
    assert main([*how, "--filter", "basic"]) == 0
    assert "basic composition" in one_line(capsys.readouterr().out)
    assert main(how) == main([*how, "--filter", "basic"]) == 0
    assert main([*how, "--filter", "renyi"]) == 2
    assert "has filter = 'basic', not 'renyi'" in capsys.readouterr().err


def test_the_command_line_prints_the_statement(path, capsys):
    assert main(["ledger", str(path)]) == 2
    assert "no ledger" in capsys.readouterr().err
    ledger = jmm.accounting.Ledger(path, epsilon=1.0, delta=1e-6)
    ledger.reserve(steps(60.0), name="a")
    assert main(["ledger", str(path)]) == 0
    assert capsys.readouterr().out.strip() == str(ledger.statement())
    assert main(["ledger", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ledger.statement().to_json()


def test_charges_have_no_field_that_a_filter_leaves_out():
    """A new kind of cost must be summed by the filter too."""
    assert set(Charge._fields) == {"gaussian", "losses", "failure", "law_error", "ratio",
                                   "sample_error", "set_failure"}
    assert named_epsilon(Charge(), 1e-6, RO)[0] == 0


def test_a_ledgers_own_statement_is_no_run_of_another(tmp_path):
    one = jmm.accounting.Ledger(tmp_path / "one", epsilon=1.0, delta=1e-6)
    two = jmm.accounting.Ledger(tmp_path / "two", epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="not a statement of one mechanism"):
        two.add(one.statement())
