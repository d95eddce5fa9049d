"""What is proven has limits, and every calibration says where they are or meets its target."""

import dataclasses
import math

import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.accounting import calibration, curve
from jaxminimax.accounting import tuning as searches
from jaxminimax.accounting.epsilon_delta import limits
from jaxminimax.drivers import tuning


def repeat(sampling, times):
    query = jmm.Query(clip=Saddle(1.0, None), sampling=sampling, population=100_000,
                      parameters=1000)
    return jmm.Repeat(query=query, times=times)


KINDS = {
    "full": repeat(jmm.Full(), 10),
    "disjoint": repeat(jmm.Disjoint(batch=100), 1000),
    "correlated": jmm.Repeat(query=dataclasses.replace(
        repeat(jmm.Disjoint(batch=100), 1).query, bands=4), times=1000),
    "tree": jmm.mechanism.TreeSums(clip=1.0, leaves=1000),
    "sums": jmm.mechanism.CorrelatedSums(clip=1.0, leaves=100, bands=4),
    "groups": jmm.Repeat(query=jmm.GroupGradients(clip=1.0, sizes=(500, 800)), times=10),
    "poisson": repeat(jmm.Poisson(rate=1e-3), 10),
    "fixed": repeat(jmm.FixedSize(batch=50), 10),
    "replacement": repeat(jmm.FixedSize(batch=50, replacement=True), 10),
    "resolvent": jmm.Repeat(query=jmm.mechanism.Resolvent(
        bound=1.0, prox=2.0, lipschitz=0.0, diameter=1.0, population=1000, assumes="monotone",
        sampling=jmm.Full()), times=5),
}
every_kind = pytest.mark.parametrize("made", list(KINDS.values()), ids=list(KINDS))


@every_kind
def test_a_target_above_what_is_proven_is_refused_with_the_limit(made):
    limit = limits(made.with_noise(1.0), 1e-6)
    assert 60 < limit.epsilon < 100
    for target in (1.001 * limit.epsilon, 100.0, 1e5):
        with pytest.raises(ValueError, match=rf"epsilon = {target:g} is above what is proven.*"
                                             rf"{limit.epsilon:.4g}.*smaller epsilon"):
            jmm.accounting.calibrate_noise(made, target, 1e-6)
    with pytest.raises(ValueError, match=rf"delta = 1e-50 is too small.*{limit.delta:.3g}"):
        jmm.accounting.calibrate_noise(made, 1.0, 1e-50)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "correlated", "tree"])
def test_between_what_noise_reaches_and_the_limit_a_target_is_refused(kind):
    """Just below the limit delta is spent on the error of the noise, whatever the noise is."""
    made = KINDS[kind]
    target = 0.9999 * limits(made.with_noise(1.0), 1e-6).epsilon
    with pytest.raises(ValueError, match=r"cannot be met closely.*smaller epsilon"):
        jmm.accounting.calibrate_noise(made, target, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 50.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_target_within_reach_is_met_to_a_fifth_of_a_percent(kind, epsilon):
    answer = jmm.accounting.calibrate_noise(KINDS[kind], epsilon, 1e-6)
    assert 0.998 < jmm.epsilon(answer, 1e-6) / epsilon <= 1


def test_every_search_ends_with_the_check_of_its_target():
    def jump(scale):
        return math.inf if scale < 3 else 10 / scale

    for guess in (None, jump):
        with pytest.raises(ValueError, match=r"epsilon = 5 cannot be met.* 3.33.*smaller"):
            calibration.find(jump, 5.0, guess)
        assert 3.3 * (1 - 2e-3) < jump(calibration.find(jump, 3.3, guess)) <= 3.3


@pytest.mark.parametrize("people", [1, 3])
@pytest.mark.parametrize("kind", ["full", "poisson", "fixed"])
def test_limits_are_where_delta_has_nothing_left_for_any_noise(kind, people):
    quiet = KINDS[kind].with_noise(1e9)
    actual = limits(quiet, 1e-6, people=people)
    cost = quiet.charges("replace_one")[0]
    for epsilon, holds in ((actual.epsilon * (1 - 1e-9), True), (actual.epsilon, False)):
        assert (curve.charge_delta(cost, epsilon, "replace_one", people) < 1e-6 * (1 - 1e-12)
                ) == holds
    # (noise that costs nothing reaches both)
    assert jmm.epsilon(quiet, 1.01 * actual.delta, people=people) < 1
    with pytest.warns(UserWarning, match=r"not proven at delta = .*choose a larger delta"):
        assert jmm.epsilon(quiet, actual.delta, people=people) == math.inf


def test_an_epsilon_above_its_limit_is_told_with_the_limit_and_one_without_noise_is_not():
    loud = KINDS["poisson"].with_noise(1e-2)
    limit = limits(loud, 1e-6).epsilon
    with pytest.warns(UserWarning, match=f"above what is proven, {limit:.4g} at most"):
        assert jmm.epsilon(loud, 1e-6) == math.inf
    assert jmm.epsilon(KINDS["poisson"].with_noise(0.0), 1e-6) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True])
def test_a_search_among_candidates_meets_its_target_or_refuses_it(apart):
    def searched(epsilon):
        target = searches.Target(epsilon, 1e-6, jmm.mechanism.Repetitions(), "replace_one")
        hyper = jmm.sgda.Hyper(query=repeat(jmm.Full(), 1).query, step=Saddle(0.1, 0.1),
                               iterations=10)
        made, score = searches.calibrate_search(
            jmm.sgda, [hyper], tuning.score_mechanism((0.0, 1.0), 100_000), target, apart=apart,
            share=0.2)
        run = searches.one_run(jmm.sgda, made[0], score, apart)
        return searches.epsilon_of_best(target.cost(run), 1e-6, jmm.mechanism.Repetitions(),
                                       "replace_one")

    assert 0.998 * 30 < searched(30.0) <= 30 * (1 + 1e-9)
    with pytest.raises(ValueError, match=r"cannot be met closely|No noise makes the search"):
        searched(150.0)
