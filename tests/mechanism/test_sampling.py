"""Samples follow the described law: in distribution, in every digit, and where they are cut."""

import dataclasses
import functools
import itertools
import math
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxminimax as jmm
from jaxminimax import Disjoint, FixedSize, Full, Poisson, Query, Repeat, Saddle
from jaxminimax.mechanism import (
    CyclicPoisson,
    batch_size,
    distinct,
    fixed_size,
    overflow_probability,
    poisson,
    rows_read,
    sampling,
)
from jaxminimax.mechanism import distinct as slots
from jaxminimax.mechanism.sampling import SampleKeys
from jaxminimax.placement import shard_sums

SIGMAS = 4.5
# (q, n): all, half, tiny expected size, one record, not a power of 16, more than one digit
CASES = [(1.0, 7), (0.5, 33), (0.01, 30), (0.3, 1), (0.07, 100), (0.013, 700)]
cases = pytest.mark.parametrize(("rate", "population"), CASES)


def query(rate, population, capacity=None):
    return Query(clip=Saddle(1.0, 1.0), sampling=Poisson(rate=rate, capacity=capacity),
                 population=population)


def draw(key, q, release):
    return sampling.draw(SampleKeys(key, key), q, release)


@jax.jit
def _samples(keys, q):
    return jax.lax.map(lambda key: draw(key, q, jnp.int32(0)), keys)


def samples(q, count, seed=0):
    """`count` samples, as numpy arrays with a leading axis."""
    return jax.tree.map(np.asarray, _samples(jax.random.split(jax.random.key(seed), count), q))


@pytest.fixture
def bug(monkeypatch):
    """To plant a bug: what was compiled before does not hide it, nor does it survive."""
    _samples.clear_cache()
    yield monkeypatch
    _samples.clear_cache()


def members(sample, population):
    """Which records each sample holds, bool `[samples, n]`."""
    out = np.zeros((len(sample.rows), population), bool)
    row, column = np.nonzero(sample.valid)
    out[row, sample.rows[row, column]] = True
    return out


@functools.cache
def drawn(rate, population, count=20_000):
    sample = samples(query(rate, population), count)
    assert sample.fits.all()
    return sample, members(sample, population)


def sigmas(hits, trials, p):
    """How many standard deviations binomial counts lie from their mean."""
    return np.abs(np.asarray(hits) - trials * p) / max(math.sqrt(trials * p * (1 - p)), 1e-9)


def chi_square_p(observed, expected):
    """p-value of counts, cells below 5 expected ones put together."""
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    small = expected < 5
    if small.any():
        observed = np.append(observed[~small], observed[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
        if expected[-1] < 5:  # still too few: join the last whole cell
            observed = np.append(observed[:-2], observed[-2:].sum())
            expected = np.append(expected[:-2], expected[-2:].sum())
    if len(observed) == 1:
        return float(observed[0] == round(expected[0]))
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


# --- every sampling: what is drawn, and what is charged for it ---

RECORDS, RELEASES, RUNS, SHARD = 20, 10, 400, 5
# one for each name on the command line
EVERY = {name: choice.make(choice.batch and choice.batch(4), RECORDS)
         for name, choice in sampling.choices().items()}


def below(of):
    """The classes of the library below one that can be made."""
    ours = {x for x in of.__subclasses__() if x.__module__.startswith("jaxminimax.")}
    return {x for x in ours if not x.__abstractmethods__}.union(*map(below, ours))


def test_every_sampling_has_a_name_on_the_command_line_or_a_test_file_of_its_own():
    named = {type(how) for how in EVERY.values()}
    assert named <= below(sampling.Sampling)
    for one in below(sampling.Sampling) - named:
        # CyclicPoisson has test_cyclic_poisson.py
        words = re.sub("(?<!^)(?=[A-Z])", "_", one.__name__).lower()
        assert pathlib.Path(__file__).with_name(f"test_{words}.py").exists(), (
            f"{one.__name__} needs `choices`, or its laws and its charge in test_{words}.py")


def test_every_sampling_has_a_row_on_the_page_that_compares_them():
    page = pathlib.Path(__file__).parents[2] / "docs/choosing.md"
    rows = re.findall(r"^\| `jmm\.(?:mechanism\.)?(\w+)\(", page.read_text(), re.MULTILINE)
    assert set(rows) >= {x.__name__ for x in below(sampling.Sampling)}


def of_every(name, **values):
    return Query(clip=Saddle(1.0, None), sampling=EVERY[name], population=RECORDS, **values)


@functools.cache
def reads(name):
    """How often each record is in each sample, `[runs, releases, n]`, and whether rows ascend."""
    def one(run, key, release):
        sample = sampling.draw(SampleKeys(key, run), of_every(name), release)
        rows = jnp.arange(RECORDS) if sample.rows is None else sample.rows
        present = sample.fits & (jnp.ones(len(rows), bool) if sample.valid is None
                                 else sample.valid)
        return (jnp.zeros(RECORDS, jnp.int32).at[rows].add(present),
                jnp.all(rows[1:] > rows[:-1]))

    keys = jax.random.split(jax.random.key(7), (RUNS, RELEASES + 1))
    runs = jax.vmap(jax.vmap(one, (None, 0, 0)), (0, 0, None))
    return tuple(map(np.asarray, jax.jit(runs)(keys[:, 0], keys[:, 1:], jnp.arange(RELEASES))))


def check_reads(how, inside):
    """Samples have the described mean size, and hold record 0 as often as its worst case says."""
    sizes, mean = inside.sum(2), how.batch_size(RECORDS)
    # a Poisson sample that does not fit is drawn again, one in a thousand at most
    assert abs(sizes.mean() - mean) <= 1e-3 * mean + SIGMAS * sizes.std() / math.sqrt(sizes.size)
    case = how.worst_case(RECORDS)
    if case is not None:
        own = inside[:, :: case.every, 0]
        assert not np.delete(inside[..., 0], np.s_[:: case.every], 1).any()
        for times, share in zip(case.times, case.probability, strict=True):
            assert sigmas((own == times).sum(), own.size, share) < SIGMAS
        assert sigmas((own > 0).sum(), own.size, case.read) < SIGMAS


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_every_sampling_draws_what_its_class_says(name):
    how, (inside, ascending) = EVERY[name], reads(name)
    check_reads(how, inside)
    assert ascending.all() or not how.ordered
    assert np.any(inside[0] != inside[1]) or not how.secret  # of two keys
    shards = inside.reshape(RUNS, RELEASES, -1, SHARD).sum(3)
    assert shards.max() <= how.rows_in_shard(RECORDS, SHARD)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, how in EVERY.items() if how.secret])
def test_a_record_that_is_in_too_many_samples_is_seen(name):
    """One sample in twenty holds it whatever is drawn."""
    inside = np.array(reads(name)[0])
    inside[::20, ..., 0] = np.maximum(inside[::20, ..., 0], 1)
    with pytest.raises(AssertionError):
        check_reads(EVERY[name], inside)


def attained(case, z, epsilon, own, reads):
    """Delta of the worst pair after so many reads, by the masses of cells; `own` of the other."""
    edges = np.concatenate([[-math.inf], np.linspace(-60, 60, 1201), [math.inf]])
    rest = -1.0 if case.slots else 0.0
    one, two = (sum(p * np.diff(stats.norm.cdf(edges, x * k + rest * (case.slots - k), z))
                    for k, p in zip(case.times, case.probability, strict=True)) for x in (1.0, own))
    for _ in range(reads - 1):
        one, two = np.multiply.outer(one, one).ravel(), np.multiply.outer(two, two).ravel()
    return max(np.maximum(p - math.exp(epsilon) * q, 0).sum() for p, q in ((one, two), (two, one)))


@pytest.mark.parametrize(("name", "relation", "reads"), [
    pytest.param(name, relation, reads, marks=[pytest.mark.slow] * (reads > 1))
    for name, how in EVERY.items() for relation in how.relations for reads in (1, 2)
    if how.worst_case(RECORDS)])  # others say that no pair is proved to be the worst
def test_the_charge_of_every_sampling_is_attained_up_to_a_tenth(name, relation, reads):
    """And is not exceeded: half the charge, or a release that is not charged, would be."""
    case, z, epsilon = EVERY[name].worst_case(RECORDS), 1.5, 0.5
    made = Repeat(query=of_every(name, noise_multiplier=Saddle(z, None), parameters=1),
                  times=1 + (reads - 1) * case.every)
    claimed = jmm.delta(made, epsilon, neighbours=relation)
    actual = attained(case, z, epsilon, -1.0 if relation == "replace_one" else 0.0, reads)
    assert 0.9 * claimed < actual <= claimed


# --- Poisson: the law ---


@pytest.mark.slow
@cases
def test_a_sample_holds_distinct_records(rate, population):
    sample, inside = drawn(rate, population)
    assert sample.rows.min() >= 0
    assert sample.rows.max() < population
    np.testing.assert_array_equal(sample.valid.sum(1), inside.sum(1))


# --- places ---


@functools.partial(jax.jit, static_argnums=1)
def _places(keys, count):
    return jax.lax.map(lambda key: slots.places(key, count), keys)


def test_places_are_a_uniform_permutation():
    actual = np.asarray(_places(jax.random.split(jax.random.key(0), 48_000), 4))
    _, counts = np.unique(actual, axis=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 160, 161, 700])
def test_places_are_all_of_them_and_every_slot_is_as_likely(count):
    actual = np.asarray(_places(jax.random.split(jax.random.key(1), 4000), count))
    np.testing.assert_array_equal(np.sort(actual, 1), np.tile(np.arange(count), (4000, 1)))
    for record in {0, count // 2, count - 1}:
        seen = np.bincount(np.argmax(actual == record, 1) * 8 // count, minlength=8)
        expected = np.bincount(np.arange(count) * 8 // count, minlength=8) * 4000 / count
        assert chi_square_p(seen, expected) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 161])
def test_equal_first_words_are_told_apart_by_further_ones(count, bug):
    """Of 32 bits, all but three are taken away, so that many numbers tie at first."""
    full = slots.word_pairs

    def few(key, shape, part=0, **how):
        first, second = full(key, shape, part, **how)
        return (first, second) if part else (first & 7, second & np.uint32(7 << 29))

    bug.setattr(slots, "word_pairs", few)
    _places.clear_cache()
    actual = np.asarray(_places(jax.random.split(jax.random.key(2), 3000), count))
    _places.clear_cache()
    np.testing.assert_array_equal(np.sort(actual, 1), np.tile(np.arange(count), (3000, 1)))
    seen = np.bincount(np.argmax(actual == 0, 1) * 3 // count, minlength=3)
    expected = np.bincount(np.arange(count) * 3 // count, minlength=3) * 3000 / count
    assert chi_square_p(seen, expected) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 161])
def test_places_are_the_same_alone_and_beside_others_whose_numbers_tie(count, bug):
    """Rows are drawn ahead for many releases at once, and count if each draws them again alone."""
    full, bits = slots.word_pairs, {3: 3, 161: 7}[count]

    def few(key, shape, part=0, **how):
        first, second = full(key, shape, part, **how)
        return (first, second) if part else (first >> 32 - bits << 32 - bits, second & 0xFF000000)

    bug.setattr(slots, "word_pairs", few)
    _places.clear_cache()
    keys = jax.random.split(jax.random.key(3), 20)
    together = jax.jit(jax.vmap(lambda key: slots.places(key, count)))(keys)
    np.testing.assert_array_equal(together, _places(keys, count))
    _places.clear_cache()
    first, second = (np.asarray(x) for x in jax.vmap(lambda key: few(key, (count,)))(keys))
    words = first if count == 3 else first.astype(np.uint64) << np.uint64(32) | second
    tied = [len(np.unique(row)) < count for row in words]
    assert 0 < sum(tied) < len(tied)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("sampling_", [Poisson(rate=0.4), FixedSize(batch=3)], ids=str)
def test_the_slots_of_the_others_tell_nothing_about_a_record(sampling_, whole, bug):
    """Given which others are there, their slots have one law, whether record 0 is or is not.

    Rows in order would put record 5 into a later slot where record 0 is in the sample.
    """
    if not whole:  # slots, some with equal rows
        room = distinct.Room(40, False)
        bug.setattr(poisson, "_slots", lambda rate, n, capacity, again: (room, n))
        bug.setattr(distinct, "room_for", lambda size, n: room)
    q = Query(clip=Saddle(1.0, 1.0), sampling=sampling_, population=6)
    sample = samples(q, 40_000)
    valid = np.ones_like(sample.rows, bool) if sample.valid is None else sample.valid
    inside = [np.any(valid & (sample.rows == r), 1) for r in range(6)]
    slot = np.argmax(valid & (sample.rows == 5), 1)
    width = sample.rows.shape[1]
    counts = [np.bincount(slot[inside[5] & (inside[0] == there)], minlength=width)
              for there in (True, False)]
    assert min(c.sum() for c in counts) > 2000
    assert stats.chi2_contingency(counts).pvalue > 1e-3


@pytest.mark.slow
@cases
def test_every_record_is_drawn_with_probability_rate(rate, population):
    _, inside = drawn(rate, population)
    off = sigmas(inside.sum(0), len(inside), rate)
    assert off.max() < SIGMAS
    assert max(off[[0, population // 2, -1]]) < 4


@pytest.mark.slow
@cases
def test_the_size_of_a_sample_is_binomial(rate, population):
    sample, inside = drawn(rate, population)
    sizes = inside.sum(1)
    np.testing.assert_array_equal(sizes, sample.valid.sum(1))
    mean, variance = population * rate, population * rate * (1 - rate)
    fourth = 3 * variance**2 + variance * (1 - 6 * rate * (1 - rate))
    trials = len(sizes)
    assert abs(sizes.mean() - mean) <= SIGMAS * math.sqrt(variance / trials)
    assert abs(np.mean((sizes - mean) ** 2) - variance) <= SIGMAS * math.sqrt(
        (fourth - variance**2) / trials)
    expected = trials * stats.binom.pmf(np.arange(population + 1), population, rate)
    assert chi_square_p(np.bincount(sizes, minlength=population + 1), expected) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "population", "apart"), [
    (rate, population, apart) for rate, population in CASES
    for apart in (1, 2, 15, 16, 17, population - 1) if 0 < apart < population])
def test_records_are_drawn_independently_of_their_neighbours_and_of_far_ones(
        rate, population, apart):
    _, inside = drawn(rate, population)
    trials, pairs = len(inside), population - apart
    both = (inside[:, :pairs] & inside[:, apart:]).sum(0)
    assert stats.binom.sf(both - 1, trials, rate**2).min() > stats.norm.sf(SIGMAS) / len(both)
    # all pairs at this distance together; pairs that share a record are correlated
    spread = math.sqrt(1 + 2 * rate / (1 + rate))
    assert sigmas(both.sum(), trials * pairs, rate**2) < SIGMAS * spread


def subset_p(q, count, fits=True):
    """p-value of the sets of a small population against the product law, given that they fit."""
    n, rate = q.population, q.sampling.rate
    sample = samples(q, count)
    code = members(sample, n)[sample.fits] @ (1 << np.arange(n))
    sizes = np.array([bin(s).count("1") for s in range(2**n)])
    law = np.where(sizes <= rows_read(q), rate**sizes * (1 - rate) ** (n - sizes), 0.0)
    observed = np.bincount(code, minlength=2**n)
    assert observed[law == 0].sum() == 0
    return chi_square_p(observed[law > 0], (len(code) * law / law.sum())[law > 0])


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "population"), [(0.3, 6), (0.7, 5), (0.05, 4)])
@pytest.mark.optimised("0.3-6")
def test_sets_of_records_follow_the_product_law(rate, population):
    assert subset_p(query(rate, population), 40_000) > 1e-3


def test_samples_that_fit_follow_the_product_law_given_their_size():
    """Given that a sample fits, it is the described one."""
    assert subset_p(query(0.4, 6, capacity=3), 40_000) > 1e-3


@pytest.mark.slow
def test_rows_that_are_drawn_several_times_count_once(bug):
    """Forty slots have rows of six."""
    bug.setattr(poisson, "_slots", lambda rate, n, capacity, again: (distinct.Room(40, False), n))
    assert subset_p(query(0.3, 6), 40_000) > 1e-3


@pytest.mark.nightly
@pytest.mark.optimised
def test_the_product_law_catches_another_rate_and_a_choice_of_rows(bug):
    thresholds = poisson.thresholds
    bug.setattr(poisson, "thresholds", lambda q, n, most: thresholds(1.05 * q, n, most))
    assert subset_p(query(0.3, 6), 40_000) < 1e-6
    bug.setattr(poisson, "thresholds", thresholds)
    _samples.clear_cache()
    slot = jnp.arange(6, dtype=jnp.int32)  # the first ones
    bug.setattr(poisson, "rows_of_slots", lambda key, room, n: (
        slot, slot >= 0, slot.astype(jnp.uint32) << 22))
    assert subset_p(query(0.3, 6), 40_000) < 1e-6


@pytest.mark.slow
def test_different_keys_draw_independently_and_equal_keys_equally():
    q, count = query(0.3, 40), 5000
    one, again, two = (members(samples(q, count, seed), 40) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert sigmas((one & two).sum(0), count, 0.3**2).max() < SIGMAS
    assert sigmas((one[1:] & one[:-1]).sum(0), count - 1, 0.3**2).max() < SIGMAS


@pytest.mark.slow
def test_a_large_population_is_sampled_evenly():
    """Indices near 2^29: no wraparound, no coarse grid."""
    population, mean, trials = 2**29, 20.0, 8000
    q = query(mean / population, population)
    sample = samples(q, trials)
    assert sample.fits.all()
    in_order = np.sort(np.where(sample.valid, sample.rows.astype(np.int64), population), 1)
    assert np.all(np.diff(in_order, axis=1)[in_order[:, 1:] < population] > 0)
    sizes = sample.valid.sum(1)
    expected = trials * stats.binom.pmf(np.arange(80), population, mean / population)
    assert chi_square_p(np.bincount(sizes, minlength=80), expected) > 1e-3
    index = sample.rows[sample.valid]
    assert index.min() >= 0
    assert stats.kstest((index + 0.5) / population, "uniform").pvalue > 1e-3
    for digit in range(7):  # every digit of a position is even
        counts = np.bincount(index // 16**digit % 16, minlength=16)
        assert chi_square_p(counts, np.full(16, len(index) / 16)) > 1e-4


# --- numbers of rows have 32 bits ---


@pytest.mark.parametrize("chosen", [
    Full(), Poisson(rate=1e-6), CyclicPoisson(rate=1e-6, parts=2), Disjoint(batch=20),
    FixedSize(batch=1), FixedSize(batch=20), FixedSize(batch=20, replacement=True)])
def test_more_records_than_a_row_number_counts_are_refused(chosen):
    """By whatever sees the population first: the accountant, a plan of noise, a release."""
    def described(population):
        return Repeat(query=Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(9.0, 9.0),
                                  sampling=chosen, population=population), times=2)

    described(2**30 - 1).check()
    problem, start = jmm.Problem(lambda z, x: Saddle(x, x)), Saddle(jnp.zeros(()), jnp.zeros(()))
    for population in (2**30, 2**33):
        made, rows = described(population), jax.ShapeDtypeStruct((population,), jnp.float32)
        hyper = jmm.sgda.Hyper(query=made.query, step=Saddle(0.1, 0.1), iterations=2)
        for call in (made.check, lambda m=made: jmm.epsilon(m, 1e-12),
                     lambda h=hyper: jmm.calibrate(jmm.sgda, h, epsilon=1.0, delta=1e-12),
                     lambda m=made, rows=rows: jax.eval_shape(lambda x: jmm.release(
                         jax.random.key(0), m, jnp.int32(0), problem, start, x), rows)):
            with pytest.raises(ValueError, match=rf"population must be below 2\*\*30, got "
                               rf"{population}.*Use fewer"):
                call()


# --- Poisson: capacity ---


CUT = [(0.5, 33, 16), (0.07, 100, 10), (0.9, 4, 3), (0.02, 50, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "population", "capacity"), CUT)
def test_a_size_is_binomial_given_that_it_is_not_above_the_capacity(rate, population, capacity):
    trials = 40_000
    sample = samples(query(rate, population, capacity), trials)
    assert sample.fits.all()
    assert sample.rows.shape == (trials, capacity)
    expected = stats.binom.pmf(np.arange(capacity + 1), population, rate)
    assert chi_square_p(np.bincount(sample.valid.sum(1), minlength=capacity + 1),
                        trials * expected / expected.sum()) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [False, True])
def test_a_sample_that_does_not_fit_is_drawn_again_from_another_key(lanes):
    """And all others are what they are where more would fit."""
    rate, n, room, most = 0.3, 40, distinct.Room(20, False), 13
    drawn = {m: jax.jit(jax.vmap(one) if lanes else lambda keys, one=one: jax.lax.map(one, keys))
             for m in (most, 20)
             for one in [lambda key, m=m: poisson.poisson_rows(key, rate, n, room, m)]}
    keys = jax.random.split(jax.random.key(4), 200)
    rows, held = drawn[most](keys)
    more, every = drawn[20](keys)
    large = np.asarray(every.sum(1) > most)
    assert 20 < large.sum() < 150
    for actual, expected in ((rows, more), (held, every)):
        np.testing.assert_array_equal(actual[~large], expected[~large])
    again = jax.vmap(lambda key: poisson.fold_in(key, poisson._AGAIN))(keys)
    for actual, expected in zip((rows, held), drawn[most](again), strict=True):
        np.testing.assert_array_equal(actual[large], expected[large])


def _by_sorting(key, words, among, m):
    """The m slots of `among` with the least numbers of 128 bits."""
    (second, fourth), (third, _) = distinct.word_pairs(
        distinct.fold_in(key, distinct._TIES), (2, len(words)))
    order = jnp.lexsort((fourth, third, second, words, ~among))
    return jnp.zeros(len(words), bool).at[order].set(jnp.arange(len(words)) < m)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize(("rate", "n", "room", "most"), [
    (0.3, 40, distinct.Room(20, False), 13), (0.3, 40, distinct.Room(14, False), 14),
    (0.3, 12, distinct.Room(4, True), 4)], ids=str)
def test_equal_first_bits_are_settled_by_all(rate, n, room, most, lanes, bug):
    """Of words with few bits most draws need more; each is that of numbers of 128 bits."""
    words, tables = distinct.word_pairs, poisson.thresholds

    def few(key, shape, *how, **more):
        x, y = words(key, shape, *how, **more)
        return x, y & np.uint32(0xF8000000) if len(shape) == 1 else y

    def coarse(*of):
        first, table = tables(*of)
        return first, np.concatenate([table[:, :1] & np.uint32(0xFFC00000), table[:, 1:]], 1)

    bug.setattr(distinct, "word_pairs", few)
    bug.setattr(poisson, "thresholds", coarse)
    bug.setattr(poisson, "word_pairs", lambda key, shape, **how: (
        words(key, shape)[0] & np.uint32(0xFFC00000), words(key, shape)[1]))
    keys = jax.random.split(jax.random.key(7), 40)

    @jax.jit
    def attempt(key):
        rows, new, last = distinct.rows_of_slots(key, room, n)
        size = poisson.drawn_size(key, rate, n, most)
        return (poisson.fold_in(key, poisson._AGAIN), rows, size, jnp.sum(new),
                _by_sorting(key, last, new, size))

    one = jax.jit(lambda key: poisson.poisson_rows(key, rate, n, room, most))
    actual = jax.jit(jax.vmap(one))(keys) if lanes else [
        np.stack(x) for x in zip(*map(one, keys), strict=True)]
    again = 0
    for key, rows, held in zip(keys, *map(np.asarray, actual), strict=True):
        while True:
            key, *drawn = attempt(key)
            expected, size, new, which = map(np.asarray, drawn)
            if size <= min(most, new):
                break
            again += 1
        np.testing.assert_array_equal(held, which)
        assert held.sum() == size == len(np.unique(rows[held]))
        np.testing.assert_array_equal(rows[held], expected[which])
    assert again


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "population", "capacity"), CUT)
def test_a_record_is_drawn_as_often_as_is_said(rate, population, capacity):
    q, trials = query(rate, population, capacity), 20_000
    fits = stats.binom.cdf(capacity, population, rate)
    hit = stats.binom.cdf(capacity - 1, population - 1, rate) / fits
    inside = members(samples(q, trials), population).sum()
    less = q.sampling.drawn_less(population)
    assert (1 - less) * rate <= inside / (trials * population) <= rate
    assert abs(inside / (trials * population) / (rate * hit) - 1) < 0.02
    assert less == pytest.approx(stats.binom.sf(capacity - 1, population - 1, rate))
    assert f"lower by a part {less:.2g} at most" in q.sampling.summary(1, population)
    assert overflow_probability(q) == 0


def too_few(q, slots):
    """P[a record, and those drawn of the others, are more than the new slots], by their law."""
    n, new = q.population, np.ones(1)
    for _ in range(slots):
        k = np.arange(len(new))
        hit = new * (1 - k / n) * (1 - 2**32 % n / 2**32)
        new = np.append(new - hit, 0.0) + np.append(0.0, hit)
    return float(new @ stats.binom.sf(np.arange(-1, slots), n - 1, q.sampling.rate))


@pytest.mark.parametrize(("rate", "population"), [*CASES, (1e-3, 60_000), (256 / 60_000, 60_000),
                                                  (1e-6, 10**6), (0.1, 10**4), (1e-8, 2**31 - 1)])
def test_slots_are_hardly_more_than_hold_all_but_a_thousandth_of_samples(rate, population):
    q = query(rate, population)
    slots, sampling_ = rows_read(q), q.sampling
    law = (lambda slots: stats.binom.sf(slots - 1, population - 1, rate)
           ) if sampling_._room(population)[0].shuffled else functools.partial(too_few, q)
    assert 0.99 * law(slots) <= sampling_.drawn_less(population) <= 1e-3
    assert slots >= rate * population
    fewer = int(slots * 0.97) - 1
    assert fewer < max(1, rate * population) or law(fewer) > 1e-3


@pytest.mark.parametrize(("batch", "blocks"), [(64, None), (256, None), (1024, 9), (4096, 35)])
def test_slots_fill_whole_blocks_of_a_sum_where_few_more_do(batch, blocks, bug):
    """Samples are the same but for those that more slots hold: the law is that of the slots."""
    n = 60_000
    q = query(batch / n, n)
    slots, again = rows_read(q), q.sampling.drawn_less(n)
    bug.setattr(poisson, "BLOCK", 1)
    poisson._slots.cache_clear()
    poisson._seldom.cache_clear()
    fewest = rows_read(q)
    assert fewest <= slots <= 1.05 * fewest
    assert again <= q.sampling.drawn_less(n)
    assert slots == (fewest if blocks is None else 128 * blocks)
    poisson._slots.cache_clear()
    poisson._seldom.cache_clear()


AGAIN = dataclasses.replace(query(0.2, 40), sampling=Poisson(rate=0.2, again=0.3))


@pytest.mark.parametrize(("again", "slots", "less"), [
    (1e-3, 31, 0.0003), (0.05, 24, 0.0147), (0.1, 22, 0.0329), (0.3, 19, 0.0861)])
def test_another_draw_more_often_saves_slots_at_the_same_charge(again, slots, less):
    how, usual = (Poisson(rate=16 / 60_000, again=x) for x in (again, 1e-3))
    assert how.rows_read(60_000) == slots
    assert how.not_drawn(60_000) == pytest.approx(less, rel=5e-3, abs=1e-5)
    assert 0.5 * again < how.drawn_less(60_000) <= again
    (ours, _), (rates, _) = (x.charge(100, 1.0, 60_000).losses[0] for x in (how, usual))
    assert ours.rate == pytest.approx(rates.rate, rel=1e-12) == pytest.approx(16 / 60_000)


@pytest.mark.parametrize("again", [0.1, 0.5])
def test_no_release_is_scaled_up_by_a_bound_on_how_seldom_records_are_drawn(again, monkeypatch):
    """Of many slots p_0 is bounded, from above: n r would be too small a divisor."""
    n, how = 20_000, Poisson(rate=0.21, again=again)
    bounded = how.not_drawn(n)
    monkeypatch.setattr(poisson, "_MOST_ENUMERATED", 10_000)
    exact = how.not_drawn(n)
    assert exact < 0.1 * bounded
    monkeypatch.undo()
    mean = 0.21 * n * (1 - exact) / how.batch_size(n)  # of a release, over that of all records
    assert 1 - how.shortfall(n) <= mean <= 1 + 1e-9


def test_a_pass_holds_the_rows_of_a_shard_before_samples_are_drawn_again():
    """What is charged is P[more] before a sample fits, divided by the chance that it does."""
    wide, usual = (dataclasses.replace(query(0.02, 50_000), sampling=Poisson(rate=0.02, again=x))
                   for x in (0.5, 1e-3))
    assert batch_size(wide) < 0.99 * batch_size(usual)
    size = 50_000 // 8
    assert shard_sums.pass_rows(wide, size, 8) == shard_sums.pass_rows(usual, size, 8)


def test_a_sampling_that_states_no_mean_has_slots_for_each_row_of_a_shard():
    """Rows of unequal rates may crowd into one shard, whatever their mean is."""
    class Unstated(Poisson):
        mean_drawn = sampling.Sampling.mean_drawn

    n, shards = 20_000, 8
    equal = query(0.06, n)
    unstated = dataclasses.replace(equal, sampling=Unstated(rate=0.06))
    slots = unstated.sampling.rows_in_shard(n, n // shards)
    assert shard_sums.pass_rows(unstated, n // shards, shards) == slots
    assert shard_sums.pass_rows(equal, n // shards, shards) < slots


@pytest.mark.slow
def test_records_of_samples_that_are_drawn_again_are_seldomer_and_the_mean_is_right():
    count, n, how = 40_000, 40, AGAIN.sampling
    inside = members(samples(AGAIN, count), n)
    drawn = 0.2 * (1 - how.not_drawn(n))
    assert sigmas(inside.sum(0), count, drawn).max() < SIGMAS
    # a release of ones without noise: each is their mean in expectation, where that of q n is not
    sizes = inside.sum(1)
    deviation = sizes.std() / math.sqrt(count)
    assert abs(sizes.mean() - how.batch_size(n)) < SIGMAS * deviation
    assert abs(sizes.mean() - 0.2 * n) > 2 * SIGMAS * deviation
    assert subset_p(dataclasses.replace(query(0.4, 6), sampling=Poisson(rate=0.4, again=0.5)),
                    40_000) > 1e-3


@pytest.mark.parametrize(("how", "message"), [
    (dict(again=0.0), "again must lie in"), (dict(again=0.6), "again must lie in"),
    (dict(again=math.nan), "again must lie in"),
    (dict(again=0.1, capacity=20), "give one of them")])
def test_another_draw_that_is_none_or_said_twice_is_refused(how, message):
    with pytest.raises(ValueError, match=message):
        Poisson(rate=0.2, **how).check(40)


def test_samples_of_a_group_are_drawn_again_as_seldom_as_usual():
    with pytest.raises(ValueError, match=r"again = 0\.1 is not for samples"):
        Poisson(rate=0.2, again=0.1).in_groups()


@pytest.mark.parametrize(("rate", "population", "capacity"), [
    (0.9999999, 3, 2), (0.9999999, 1000, 999), (1 - 2**-53, 2, 1)])
def test_a_capacity_that_hardly_any_sample_fits_is_refused(rate, population, capacity):
    with pytest.raises(ValueError, match=f"capacity={capacity} is too little"):
        query(rate, population, capacity).sampling.check(population)
    query(0.6, 3, 1).sampling.check(3)


@pytest.mark.parametrize(("capacity", "read"), [(1, 1), (12, 12), (100, 100), (101, 100)])
def test_a_given_capacity_is_what_is_read(capacity, read):
    assert rows_read(query(0.07, 100, capacity)) == read


# --- fixed sizes ---


def fixed(population, batch, replacement=False):
    return Query(clip=Saddle(1.0, 1.0), population=population,
                 sampling=FixedSize(batch=batch, replacement=replacement))


def rows_drawn(q, count, seed=0):
    sample = samples(q, count, seed)
    assert sample.valid is None
    assert sample.fits.all()
    assert sample.rows.shape == (count, q.sampling.batch)
    assert sample.rows.min() >= 0
    assert sample.rows.max() < q.population
    return np.sort(sample.rows, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("population", "batch", "slots"), [
    (6, 3, 0), (5, 1, 0), (7, 6, 0), (6, 3, 60)])
@pytest.mark.optimised("6-3-0")
def test_every_subset_of_the_fixed_size_is_equally_likely(population, batch, slots, bug):
    if slots:  # some with equal rows
        bug.setattr(distinct, "room_for", lambda size, n: distinct.Room(slots, False))
    rows = rows_drawn(fixed(population, batch), 40_000)
    subsets = list(itertools.combinations(range(population), batch))
    code = (1 << rows).sum(1)
    observed = np.bincount(code, minlength=2**population)
    observed = observed[[sum(1 << i for i in s) for s in subsets]]
    assert observed.sum() == len(rows)  # of distinct records
    assert chi_square_p(observed, np.full(len(subsets), len(rows) / len(subsets))) > 1e-3


def test_subsets_of_a_larger_population_are_even_in_records_and_in_pairs():
    population, batch, count = 700, 9, 8000
    rows = rows_drawn(fixed(population, batch), count)
    assert (np.diff(rows, axis=1) > 0).all()
    inside = np.zeros((count, population), bool)
    np.put_along_axis(inside, rows, True, 1)
    assert sigmas(inside.sum(0), count, batch / population).max() < SIGMAS
    pair = batch * (batch - 1) / (population * (population - 1))
    for apart in (1, 16, 699):
        both = inside[:, apart:] & inside[:, :-apart]
        assert sigmas(both.sum(0), count, pair).max() < 2 * SIGMAS  # a skewed law: few are expected
        assert sigmas(both.sum(), count * both.shape[1], pair) < SIGMAS


def test_a_fixed_size_of_everything_is_the_full_batch():
    assert draw(jax.random.key(0), fixed(9, 9), jnp.int32(3))[:3] == (None, None, True)


@pytest.mark.parametrize(("population", "batch"), [(4, 3), (2, 5), (1, 3), (3, 1)])
def test_draws_with_replacement_are_independent_and_even(population, batch):
    rows = rows_drawn(fixed(population, batch, True), 40_000)
    counts = np.stack([(rows == i).sum(1) for i in range(population)], 1)
    cells = [c for c in itertools.product(range(batch + 1), repeat=population) if sum(c) == batch]
    law = stats.multinomial.pmf(cells, batch, np.full(population, 1 / population))
    observed = np.array([(counts == c).all(1).sum() for c in cells])
    assert chi_square_p(observed, len(rows) * law) > 1e-3


@pytest.mark.parametrize("population", [1, 2, 3, 65_535, 65_536, 65_537, 10**6 + 3, 2**30 - 1])
def test_draws_with_replacement_are_products_of_96_bits_rounded_down(population, monkeypatch):
    words = np.random.default_rng(0).integers(0, 2**32, (3, 200), np.uint32)
    words[:, :4] = [[0, 2**32 - 1, 2**31, 1], [0, 2**32 - 1, 0, 0], [0, 2**32 - 1, 0, 0]]
    monkeypatch.setattr(fixed_size.random_bits, "random_words",
                        lambda key, shape: jnp.asarray(words))
    sample = draw(jax.random.key(0), fixed(population, 200, True), jnp.int32(0))
    numbers = [a | b << 32 | c << 64 for a, b, c in words.T.tolist()]
    np.testing.assert_array_equal(sample.rows, [u * population >> 96 for u in numbers])


@pytest.mark.parametrize(("population", "batch", "replacement"), [
    (6, 3, False), (700, 9, False), (60_000, 256, False), (2**29, 64, False), (9, 9, False),
    (6, 8, True), (2**29, 512, True)])
def test_fixed_sizes_fail_negligibly(population, batch, replacement):
    q = fixed(population, batch, replacement)
    assert 0 <= overflow_probability(q) <= 2.1e-17
    assert rows_read(q) == batch


# --- the other samplings ---


@pytest.mark.parametrize(("population", "batch"), [(12, 4), (13, 4), (5, 5), (7, 1), (9, 5)])
def test_disjoint_passes_read_each_row_once_a_pass_and_leftover_rows_never(population, batch):
    q = Query(clip=Saddle(1.0, 1.0), sampling=Disjoint(batch=batch), population=population)
    releases = population // batch
    for lap in range(3):
        read = []
        for release in range(lap * releases, (lap + 1) * releases):
            sample = draw(jax.random.key(release), q, jnp.int32(release))
            assert sample.rows.shape == (batch,)
            assert sample.valid is None
            assert sample.fits is True
            read += np.asarray(sample.rows).tolist()
        assert read == list(range(releases * batch))
    assert (rows_read(q), overflow_probability(q)) == (batch, 0.0)
    cost = Repeat(query=q, times=3).cost(1.0)
    assert (cost.failure, cost.departure(people=2)) == (0.0, 0.0)


def test_a_full_batch_is_all_rows_in_their_order():
    q = Query(clip=Saddle(1.0, 1.0), sampling=Full(), population=9)
    assert draw(jax.random.key(0), q, jnp.int32(3))[:3] == (None, None, True)
    assert (rows_read(q), overflow_probability(q)) == (9, 0.0)
