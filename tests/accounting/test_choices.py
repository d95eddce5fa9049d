"""The choice between samples of all records and of parts in turn, by public numbers."""

import dataclasses

import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.accounting import calibrate_parts
from jaxminimax.mechanism.correlated import Bands, InTurn


def settings(rate, iterations, **query):
    return jmm.sgda.Hyper(step=Saddle(0.1, 0.1), iterations=iterations, query=jmm.Query(
        clip=Saddle(1.0, 1.0), joint=True, population=20_000, parameters=20,
        **{"sampling": jmm.Poisson(rate=rate), **query}))


def on_prefix_sums(hyper):
    query, rounds = hyper.query, hyper.iterations
    return query.multiplier() * InTurn(query.bands).mean_prefix(Bands(query.bands, rounds, 20))


@pytest.mark.parametrize(("rate", "rounds", "epsilon"), [
    (0.01, 800, 1.0), pytest.param(0.002, 500, 1.0, marks=pytest.mark.slow)])
def test_samples_of_all_records_are_kept_unless_a_twentieth_is_gained(rate, rounds, epsilon):
    """Much noise, and little noise of which 8 parts would leave .963."""
    hyper = settings(rate, rounds)
    assert calibrate_parts(jmm.sgda, hyper, epsilon, 1e-6) == jmm.calibrate(
        jmm.sgda, hyper, epsilon, 1e-6)


def test_one_pass_of_small_batches_at_a_large_epsilon_takes_parts_in_turn():
    """As much as the program of the reference numbers found for 32 parts: 4.00 of 6.86."""
    hyper = settings(0.002, 500)
    plain, made = jmm.calibrate(jmm.sgda, hyper, 8.0, 1e-6), calibrate_parts(
        jmm.sgda, hyper, 8.0, 1e-6)
    assert 0.998 * 8 < jmm.epsilon(jmm.sgda.mechanism(made), 1e-6) <= 8.0
    assert on_prefix_sums(plain) == pytest.approx(6.86, rel=0.005)
    assert on_prefix_sums(made) < 4.0
    assert made.query.sampling.parts == made.query.bands > 1
    assert jmm.mechanism.batch_size(made.query) == pytest.approx(40.0)
    own = dataclasses.replace(plain.query, bands=32, noise_multiplier=None,
                              sampling=jmm.mechanism.CyclicPoisson(rate=0.064, parts=32))
    of_32 = jmm.calibrate(jmm.sgda, dataclasses.replace(hyper, query=own), 8.0, 1e-6)
    assert on_prefix_sums(of_32) == pytest.approx(4.00, rel=0.005)


@pytest.mark.parametrize("query", [
    {"sampling": jmm.Full()}, {"sampling": jmm.Poisson(rate=0.01, capacity=400)},
    {"sampling": jmm.Poisson(rate=0.01, again=0.1)},
    {"sampling": jmm.Disjoint(batch=200), "bands": 4}, {"adaptive": jmm.AdaptiveClip()}])
def test_other_samples_and_noise_are_refused(query):
    with pytest.raises(ValueError, match="calibrate_parts takes a Query of Poisson"):
        calibrate_parts(jmm.sgda, settings(0.01, 10, **query), 1.0, 1e-6)


def test_two_releases_a_round_are_refused():
    query = settings(0.01, 10).query
    hyper = jmm.extragradient.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=10)
    with pytest.raises(ValueError, match="one release a round"):
        calibrate_parts(jmm.extragradient, hyper, 1.0, 1e-6)
