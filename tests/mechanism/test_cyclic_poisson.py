"""Poisson samples of parts in turn: their law, their charge, and what they refuse."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.mechanism.correlated import Bands, InTurn
from jaxminimax.mechanism.factorisation import norms
from jaxminimax.releases import reading

RO, AR = "replace_one", "add_or_remove_one"
N, PARTS, RATE = 13, 4, 0.4  # parts of 4, 3, 3 and 3 records


def described(n=N, times=40, bands=1, z=2.0, **sampling):
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(z, None), population=n,
                      bands=bands, parameters=20, sampling=jmm.mechanism.CyclicPoisson(
                          **{"rate": RATE, "parts": PARTS, **sampling}))
    return jmm.Repeat(query=query, times=times)


@pytest.fixture(scope="module")
def inside():
    """Which records the samples of 8 releases hold, for 4,000 keys, `[keys, releases, n]`."""
    @jax.jit
    @jax.vmap
    def members(key):
        def one(spent):
            sample = reading.sample_of_release(key, described(), spent)
            return (jnp.zeros(N, jnp.int32).at[sample.rows].add(sample.valid),
                    jnp.max(sample.rows))

        return jax.vmap(one)(jnp.arange(8))

    times, most = members(jax.random.split(jax.random.key(0), 4000))
    assert most.max() < N  # no gather reads beyond the data
    assert times.max() == 1
    return np.asarray(times) > 0


def test_a_release_reads_its_own_part_alone(inside):
    part = np.arange(N) % PARTS
    for release in range(8):
        assert not inside[:, release, part != release % PARTS].any()


def test_a_record_is_read_at_the_rate_of_a_part_by_independent_coins(inside):
    own = np.arange(8)[:, None] % PARTS == np.arange(N) % PARTS
    hits = inside[:, own]  # both coins of each record
    error = math.sqrt(RATE * (1 - RATE) / len(hits))
    assert np.abs(hits.mean(0) - RATE).max() < 5 * error
    products = np.corrcoef(hits.T)[~np.eye(hits.shape[1], dtype=bool)]
    assert np.abs(products).max() < 5 / math.sqrt(len(hits))


def test_a_rate_of_1_reads_a_part_and_no_more():
    for spent in range(5):
        sample = reading.sample_of_release(jax.random.key(0), described(rate=1.0),
                                           jnp.int32(spent))
        rows = np.sort(np.asarray(sample.rows)[np.asarray(sample.valid)])
        np.testing.assert_array_equal(rows, np.arange(spent % PARTS, N, PARTS))


@pytest.mark.parametrize("times", [1, 3, 4, 5, 40])
def test_it_is_charged_as_samples_of_the_largest_part_once_a_window(times):
    part = dataclasses.replace(described(times=math.ceil(times / PARTS)).query,
                               sampling=jmm.Poisson(rate=RATE), population=4)
    cyclic, poisson = (q.sampling.charge(t, 2.0, q.population) for q, t in (
        (described().query, times), (part, math.ceil(times / PARTS))))
    assert cyclic == poisson
    # a stopped run pays for the window that it was in
    stopped = described().truncated(times)
    assert jmm.epsilon(stopped, 1e-6) == jmm.epsilon(described(times=times), 1e-6)


@pytest.mark.slow
def test_one_part_is_poisson_sampling():
    one, plain = described(parts=1), described()
    plain = dataclasses.replace(plain, query=plain.query.sampled_by(jmm.Poisson(rate=RATE)))
    for neighbours in (RO, AR):
        assert jmm.epsilon(one, 1e-6, neighbours=neighbours) == jmm.epsilon(
            plain, 1e-6, neighbours=neighbours)
    key = jax.random.key(1)
    for mine, theirs in zip(*(reading.sample_of_release(key, x, jnp.int32(3))[:2]
                              for x in (one, plain)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_sums_are_divided_by_the_mean_batch_of_all_parts():
    assert jmm.mechanism.batch_size(described().query) == RATE * N / PARTS


def test_the_statement_names_parts_windows_and_the_numbers_of_absent_records():
    hyper = jmm.sgda.Hyper(query=described(bands=2).query, step=Saddle(0.1, 0.1), iterations=41)
    stated = " ".join(str(jmm.statement(jmm.sgda, hyper, delta=1e-6)).split())
    for words in ("row i of 13 is in part i mod 4", "release k = 0, 1, ... reads part k mod 4",
                  "read in 11 of them", "2 bands", "begins anew every 2 releases",
                  "A record's row does not depend on what any record contains",
                  "no other record takes its number", "No state holds noise"):
        assert words in stated


@pytest.mark.parametrize(("change", "match"), [
    ({"parts": 14}, "parts must be at most population=13"),
    ({"parts": 0}, "parts"), ({"parts": 2.0}, "parts"),
    ({"rate": 1.5}, "rate"), ({"rate": 0.0}, "rate"),
    ({"bands": 3}, "bands must divide the number of parts, 4, got 3"),
    ({"bands": 8}, "bands must divide the number of parts, 4, got 8"),
    ({"bands": 0}, "bands")])
def test_numbers_out_of_range_are_refused_before_a_charge(change, match):
    with pytest.raises(ValueError, match=match):
        jmm.epsilon(described(**change), 1e-6)


@pytest.mark.parametrize("bands", [3, 8])
def test_a_release_refuses_bands_that_no_window_holds(bands):
    lines = jmm.Problem(lambda z, x: Saddle(x, ()))
    with pytest.raises(ValueError, match="bands must divide"):
        jmm.release(jax.random.key(0), described(bands=bands), jnp.int32(0), lines,
                    Saddle(jnp.zeros(2), ()), jnp.zeros((N, 2)))


def test_what_has_no_proof_is_refused():
    query = described(bands=2).query
    with pytest.raises(ValueError, match="2 part"):
        jmm.epsilon(jmm.Repeat(query=query, times=4, parts=2), 1e-6)
    with pytest.raises(ValueError, match="bands=1"):
        jmm.epsilon(jmm.Repeat(query=dataclasses.replace(query, adaptive=jmm.AdaptiveClip()),
                               times=4), 1e-6)
    groups = jmm.GroupGradients(clip=1.0, noise_multiplier=1.0, sizes=(20, 30),
                                sampling=query.sampling)
    with pytest.raises(ValueError, match="sampling of a group"):
        jmm.epsilon(jmm.Repeat(query=groups, times=4), 1e-6)
    with pytest.raises(ValueError, match="data on one device"):
        query.sampling.rows_in_shard(N, 7)
    assert query.sampling.rows_in_shard(N, N) <= N


# n, T, batch, p, delta, relation, records of a person, z at column norm 1, least and most epsilon:
# by privacy loss distributions of another program, rounded down and up, where it sums to T / p
REFERENCE = [
    (20000, 800, 200, 1, 1e-6, RO, 1, 2.3956, 0.99884, 1.00086),
    (20000, 800, 200, 2, 1e-6, RO, 1, 3.3812, 0.99891, 1.00093),
    (20000, 800, 200, 8, 1e-6, RO, 1, 6.7576, 0.99897, 1.00099),
    (20000, 800, 200, 8, 1e-6, RO, 1, 1.0986, 7.99224, 8.00824),
    (20000, 800, 200, 32, 1e-6, RO, 1, 13.5130, 0.99899, 1.00101),
    (20000, 500, 40, 8, 1e-6, RO, 1, 1.2117, 0.99904, 1.00106),
    (20000, 500, 40, 32, 1e-6, RO, 1, 0.6455, 7.99219, 8.00831),
    (20000, 800, 200, 2, 1e-6, AR, 1, 1.9204, 0.99893, 1.00094),
    (20000, 800, 200, 8, 1e-6, AR, 1, 0.8988, 7.99261, 8.00861),
    (20000, 800, 200, 32, 1e-6, AR, 1, 7.0467, 0.99898, 1.00100),
    (20000, 803, 200, 8, 1e-6, RO, 1, 6.7913, 0.99897, 1.00099),
    (39992, 800, 250, 16, 1e-6, RO, 1, 1.7104, 3.99599, 4.00399),
    (1000000, 2000, 1000, 64, 1e-8, RO, 1, 0.8142, 7.99152, 8.00760),
    (1000, 60, 50, 4, 1e-5, RO, 1, 3.0907, 1.99797, 2.00197),
    (20000, 800, 200, 8, 1e-6, RO, 2, 13.5154, 0.99897, 1.00099),
    (20000, 800, 200, 8, 1e-6, RO, 2, 2.0796, 7.99196, 8.00796),
    (20000, 800, 200, 8, 1e-6, AR, 2, 2.2005, 3.99582, 4.00382),
]


@pytest.mark.parametrize("case", [
    REFERENCE[-4], *(pytest.param(case, marks=pytest.mark.slow) for case in REFERENCE[:-4]),
    *(pytest.param(case, marks=pytest.mark.slow) for case in REFERENCE[-3:])], ids=str)
def test_epsilon_is_that_of_a_program_of_its_own(case, real_noise):
    """With noise and sums of real numbers; the innovations' multiplier is z times the column."""
    n, times, batch, p, delta, relation, people, z, low, high = case
    steps = described(n, times, p, z * norms(p, p).column, rate=batch * p / n, parts=p)
    actual = jmm.epsilon(steps, delta, neighbours=relation, people=people)
    assert low * (1 - 2e-4) <= actual <= high * (1 + 2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("bands", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_an_audit_measures_the_charged_signal_and_no_more(bands):
    steps = described(bands=bands, parts=2, rate=0.25)
    hyper = jmm.sgda.Hyper(query=steps.query, step=Saddle(0.5, 0.5), iterations=4)
    found = jmm.audit.audit(jax.random.key(1), jmm.sgda, hyper, delta=1e-2, runs=8000)
    assert 0 < found.epsilon_lower < found.epsilon_claimed
    assert not found.signal.violated
    assert found.signal.attained > 0.93 * found.signal.charged
    assert found.signal.read > 0.9 * 0.25


@pytest.mark.parametrize(("parts", "noise"), [(1, 6.86), (32, 4.00)])
def test_one_pass_of_small_batches_at_a_large_epsilon_has_less_noise_in_parts(parts, noise):
    """On prefix sums, as much as the program of the reference numbers found."""
    query = jmm.Query(clip=Saddle(1.0, 1.0), joint=True, population=20_000, parameters=20,
                      bands=parts, sampling=jmm.mechanism.CyclicPoisson(rate=0.002 * parts,
                                                                        parts=parts))
    made = jmm.accounting.calibrate_noise(jmm.Repeat(query=query, times=500), 8.0, 1e-6)
    assert 0.998 * 8 < jmm.epsilon(made, 1e-6) <= 8.0
    prefix = InTurn(parts).mean_prefix(Bands(parts, 500, 20))
    assert made.multiplier() * prefix == pytest.approx(noise, rel=0.005)
