"""Samples follow the described law: in distribution, in every digit, and where they overflow."""

import decimal
import functools
import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxminimax import Disjoint, FixedSize, Full, Poisson, Query, Saddle
from jaxminimax.mechanism import (
    SampleKeys,
    fixed_size,
    overflow_probability,
    poisson,
    rows_read,
    sampling,
    slots,
)
from jaxminimax.mechanism.gap_law import rows_error

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


@pytest.mark.slow
def test_places_are_a_uniform_permutation():
    found = np.asarray(_places(jax.random.split(jax.random.key(0), 48_000), 4))
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 160, 161, 700])
def test_places_are_all_of_them_and_every_slot_is_as_likely(count):
    found = np.asarray(_places(jax.random.split(jax.random.key(1), 4000), count))
    np.testing.assert_array_equal(np.sort(found, 1), np.tile(np.arange(count), (4000, 1)))
    for record in {0, count // 2, count - 1}:
        seen = np.bincount(np.argmax(found == record, 1) * 8 // count, minlength=8)
        expected = np.bincount(np.arange(count) * 8 // count, minlength=8) * 4000 / count
        assert chi_square_p(seen, expected) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 161])
def test_equal_first_words_are_told_apart_by_further_ones(count, bug):
    """Of 32 bits, all but three are taken away, so that many numbers tie at first."""
    whole = slots.word_pairs

    def few(key, shape, part=0, **how):
        first, second = whole(key, shape, part, **how)
        return (first, second) if part else (first & 7, second & np.uint32(7 << 29))

    bug.setattr(slots, "word_pairs", few)
    _places.clear_cache()
    found = np.asarray(_places(jax.random.split(jax.random.key(2), 3000), count))
    _places.clear_cache()
    np.testing.assert_array_equal(np.sort(found, 1), np.tile(np.arange(count), (3000, 1)))
    seen = np.bincount(np.argmax(found == 0, 1) * 3 // count, minlength=3)
    expected = np.bincount(np.arange(count) * 3 // count, minlength=3) * 3000 / count
    assert chi_square_p(seen, expected) > 1e-4


@pytest.mark.parametrize("count", [3, 161])
def test_places_are_the_same_alone_and_beside_others_whose_numbers_tie(count, bug):
    """Rows are drawn ahead for many releases at once, and count if each draws them again alone."""
    whole, bits = slots.word_pairs, {3: 3, 161: 7}[count]

    def few(key, shape, part=0, **how):
        first, second = whole(key, shape, part, **how)
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
@pytest.mark.parametrize("sampling_", [Poisson(rate=0.4), FixedSize(batch=3)], ids=str)
def test_the_slots_of_the_others_tell_nothing_about_a_record(sampling_):
    """Given which others are there, their slots have one law, whether record 0 is or is not.

    Rows in order would put record 5 into a later slot where record 0 is in the sample.
    """
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


@pytest.mark.slow
def test_samples_that_fit_follow_the_product_law_given_their_size():
    """Overflow leaves nothing out silently: given that a sample fits, it is the described one."""
    assert subset_p(query(0.4, 6, capacity=3), 40_000) > 1e-3


@pytest.mark.slow
@pytest.mark.optimised
def test_the_product_law_catches_another_rate_and_a_dependence_on_neighbours(bug):
    thresholds = poisson.thresholds
    bug.setattr(poisson, "thresholds", lambda q, n: thresholds(1.05 * q, n))
    assert subset_p(query(0.3, 6), 40_000) < 1e-6
    bug.setattr(poisson, "thresholds", thresholds)
    _samples.clear_cache()
    words = poisson.word_pairs  # one gap again and again
    bug.setattr(poisson, "word_pairs", lambda key, shape, **how: tuple(
        jnp.broadcast_to(x, shape) for x in words(key, (*shape[:-1], 1), **how)))
    bug.setattr(slots, "places", lambda key, count: jnp.arange(count))
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


# --- Poisson: the digits ---


BITS = 160


def realised(table):
    """The table's probabilities as fractions, `[digits][most]`."""
    return [[Fraction(int.from_bytes(row.astype(">u4").tobytes()), 2**BITS) for row in rows]
            for rows in table]


@pytest.mark.parametrize(("rate", "population"), [
    (0.3, 9), (0.01, 200), (1 / 7, 257), (0.9, 40), (1e-9, 2**30 - 1), (20 / 2**29, 2**29),
    (1e-4, 10**6), (256 / 60_000, 60_000)])
def test_thresholds_are_the_exact_digits_rounded_down(rate, population):
    *digits, last = realised(poisson.thresholds(rate, population))
    with decimal.localcontext(prec=150):
        s, unit = 1 - decimal.Decimal(rate), 1

        def check(exact, value):
            off = exact * 2**BITS - int(value * 2**BITS)
            assert 0 <= off < 1 + decimal.Decimal("1e-9")

        for row, width in zip(digits, poisson.widths(rate, population), strict=True):
            low, some = s ** 2**width, 2**width - 1
            for d, value in enumerate(row[:some]):
                check((s ** (d + 1) - low) / (1 - low), value)
            assert not any(row[some:])
            s, unit = low, unit * 2**width
        inside = -(-population // unit)  # beyond, a gap has passed the data
        for h, value in enumerate(last[:inside]):
            check(s ** (h + 1), value)
        assert not any(last[inside:])
        assert inside <= len(last) or s ** (len(last) + 1) * 2**BITS < 1
        assert unit >= population or s**15 * 4096 <= decimal.Decimal("1.0001e-4")
        assert unit == 1 or 4096 * s ** decimal.Decimal("7.5") > decimal.Decimal("0.9999e-4")


def gap_law(rate, population):
    """The realised P[X = x], x = 0, 1, ..., as fractions."""
    law = [Fraction(1)]
    cut = (*poisson.widths(rate, population), None)
    for row, width in zip(realised(poisson.thresholds(rate, population)), cut, strict=True):
        above = [Fraction(1), *row[:2**width - 1 if width else None], Fraction(0)]
        mass = [x - y for x, y in itertools.pairwise(above)]
        law = [m * x for m in mass for x in law]  # the higher digit counts for more
    return law


@pytest.mark.parametrize(("rate", "population"), [(0.01, 200), (0.25, 16), (0.3, 20)])
def test_digits_reproduce_the_geometric_law(rate, population):
    q = Fraction(rate)
    for x, mass in enumerate(gap_law(rate, population)[:population]):
        assert abs(mass - q * (1 - q) ** x) < Fraction(1, 2**150)


@pytest.mark.parametrize(("rate", "population"), [(0.3, 5), (0.011, 6), (0.8, 4), (1.0, 3)])
def test_the_error_of_samples_bounds_their_total_variation(rate, population):
    capacity = rows_read(query(rate, population))
    gap = gap_law(rate, population)
    rate_ = Fraction(rate)
    total = Fraction(0)
    for inside in itertools.product((0, 1), repeat=population):
        described = math.prod((rate_ if x else 1 - rate_ for x in inside), start=Fraction(1))
        mass, last = Fraction(1), -1
        for i, x in enumerate(inside):
            if x:
                mass *= gap[i - last - 1] if i - last - 1 < len(gap) else 0
                last = i
        mass *= 1 - sum(gap[: population - 1 - last])  # the next gap leads past the end
        total += abs(mass - described) / 2
    assert total <= Fraction(rows_error(rate, population, capacity))
    assert rows_error(rate, population, capacity) < 1e-43


def patch_words(patch, given):
    """The first word of every gap's digits, and the other four words, or one for all."""
    given = np.asarray(given, np.uint32)

    def pairs(key, shape, part=0, rolled=False):
        if not given.ndim:
            return (jnp.full(shape, given),) * 2
        if part == 0:
            first = jnp.asarray(np.pad(given[0], ((0, given.shape[1] % 2), (0, 0))))
            return first[::2], first[1::2]
        return jnp.concatenate(given[[1, 3]]), jnp.concatenate(given[[2, 4]])

    patch.setattr(poisson, "word_pairs", pairs)


def draw_from_words(monkeypatch, q, words):
    """A draw whose random words are given, all of them or one for all; slots are in order."""
    with monkeypatch.context() as patch:
        patch.setattr(slots, "places", lambda key, count: jnp.arange(count))
        if isinstance(q.sampling, Poisson):
            patch_words(patch, words)
        else:
            patch.setattr(fixed_size, "random_words",
                          lambda key, shape, **_: jnp.asarray(words.reshape(shape)))
        return jax.tree.map(np.asarray, draw(jax.random.key(0), q, jnp.int32(0)))


def digits_of(q, x):
    """X in the digits that are drawn, the lowest first."""
    out = []
    for width in poisson.widths(q.sampling.rate, q.population):
        out.append(x % 2**width)
        x >>= width
    return [*out, x]


def words_with_gaps(q, x, past=0):
    """Words for which every gap is X = x: the ends of the digits' intervals, + `past`."""
    table = poisson.thresholds(q.sampling.rate, q.population)
    out = np.zeros((5, len(table), rows_read(q) + 1), np.uint32)
    for j, digit in enumerate(digits_of(q, x)):
        end = int.from_bytes(table[j, digit - 1].astype(">u4").tobytes()) if digit else 2**BITS
        number = min(end - 1 + past, 2**BITS - 1)
        out[:, j] = np.frombuffer(number.to_bytes(20), ">u4")[:, None]
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "population", "x"), [
    (0.3, 16, 5), (0.01, 4000, 0x2A7), (0.01, 4000, 0x0F0), (1e-8, 2**29, 0x1234567)])
@pytest.mark.optimised("1e-08")
def test_digits_compare_all_bits(rate, population, x, monkeypatch):
    """The largest number below a threshold counts, the threshold itself does not."""
    q = query(rate, population, capacity=1)
    below = draw_from_words(monkeypatch, q, words_with_gaps(q, x))
    assert (below.rows[0], below.valid[0]) == (x, True)
    at = draw_from_words(monkeypatch, q, words_with_gaps(q, x, past=1))
    units = np.cumprod([1, *(2**w for w in poisson.widths(rate, population))])
    fewer = sum(max(d - 1, 0) * int(unit) for d, unit in zip(digits_of(q, x), units, strict=True))
    assert (at.rows[0], at.valid[0]) == (fewer, True)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "population"), [
    (0.3, 16), (0.01, 4000), (1.6e-5, 10**7), (1e-9, 2**30 - 1), (0.999, 300)])
@pytest.mark.optimised("0.01-4000", "1e-09")
def test_gaps_are_those_of_numbers_of_160_bits(rate, population, monkeypatch):
    """Words at and beside the thresholds, and small ones, with any further bits."""
    rng, table = np.random.default_rng(0), poisson.thresholds(rate, population)
    near = table[:, :15, 0].ravel()[:, None].astype(np.int64) + np.arange(-1, 2)
    pool = np.concatenate([near.ravel() % 2**32, np.arange(20), rng.integers(0, 2**32, 50)])
    count = 4000
    words = rng.choice(pool, (5, len(table), count)).astype(np.uint32)
    words[0, :, :100] = rng.integers(0, 2**32, (len(table), 100))  # nothing to look up
    for some in (slice(0, 100), slice(0, count)):
        given = words[..., some]
        patch_words(monkeypatch, given)
        found = poisson.gaps(jax.random.key(0), rate, population, given.shape[2])
        def whole(words):  # [5, ...] as numbers
            return functools.reduce(lambda high, low: high << 32 | low, words.astype(object))

        limits = whole(table.transpose(2, 0, 1))[..., None]
        digits = (whole(given)[:, None] < limits).sum(1)
        units = np.cumprod([1, *(2**w for w in poisson.widths(rate, population))])
        gaps = sum((int(u) * d.astype(object) for u, d in zip(units, digits, strict=True)), 0)
        expected = np.minimum(gaps, population)
        np.testing.assert_array_equal(found, expected.astype(np.uint32))


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "population"), [*CASES, (20 / 2**29, 2**29), (1e-9, 2**30 - 1)])
@pytest.mark.optimised("0.5-33")
def test_extreme_words_give_the_empty_and_the_densest_sample(rate, population, monkeypatch):
    q = query(rate, population)
    capacity = rows_read(q)
    densest = draw_from_words(monkeypatch, q, 2**32 - 1)
    np.testing.assert_array_equal(densest.rows, np.arange(capacity))
    assert densest.valid.all()
    assert densest.fits == (capacity == population)
    if rate < 1:
        empty = draw_from_words(monkeypatch, q, 0)
        assert not empty.valid.any()
        assert empty.fits


@pytest.mark.slow
def test_a_sample_that_passed_the_end_stays_out_even_where_sums_wrap_around(monkeypatch):
    population = 2**29
    q = query(20 / population, population, capacity=64)
    for x in (population // 2 - 1, population // 2 + 1, population - 1, population - 2):
        sample = draw_from_words(monkeypatch, q, words_with_gaps(q, x))  # every gap alike
        index = (x + 1) * np.arange(1, 65) - 1
        np.testing.assert_array_equal(sample.valid, index < population)
        np.testing.assert_array_equal(sample.rows[sample.valid], index[index < population])
        assert sample.fits


# --- Poisson: capacity ---


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "population", "capacity"), [
    (0.5, 33, 16), (0.07, 100, 10), (0.9, 4, 3), (0.02, 50, 1)])
def test_a_sample_overflows_when_it_is_larger_than_its_capacity(rate, population, capacity):
    trials = 40_000
    q = query(rate, population, capacity)
    sample = samples(q, trials)
    tail = stats.binom.sf(capacity, population, rate)
    assert sigmas((~sample.fits).sum(), trials, tail) < SIGMAS
    assert sample.rows.shape == (trials, capacity)
    assert sample.valid[~sample.fits].all()  # it overflows when full, and only then
    sizes = sample.valid[sample.fits].sum(1)
    expected = stats.binom.pmf(np.arange(capacity + 1), population, rate)
    assert chi_square_p(np.bincount(sizes, minlength=capacity + 1),
                        len(sizes) * expected / expected.sum()) > 1e-3


@pytest.mark.parametrize(("rate", "population"), [*CASES, (1e-3, 60_000), (256 / 60_000, 60_000),
                                                  (1e-6, 10**6), (0.1, 10**7), (1e-8, 2**29)])
def test_the_capacity_is_the_smallest_that_overflows_with_probability_1e_17(rate, population):
    q = query(rate, population)
    capacity = rows_read(q)
    assert stats.binom.sf(capacity, population, rate) <= 1e-17 * (1 + 1e-9)
    assert capacity >= rate * population
    if capacity > max(1, int(rate * population)):
        assert stats.binom.sf(capacity - 1, population, rate) > 1e-17 * (1 - 1e-9)
    np.testing.assert_allclose(overflow_probability(q),
                               stats.binom.sf(capacity, population, rate), rtol=1e-6, atol=1e-300)


@pytest.mark.slow
@pytest.mark.parametrize(("capacity", "read"), [(1, 1), (12, 12), (100, 100), (101, 100)])
def test_a_given_capacity_overflows_with_the_binomial_tail(capacity, read):
    q = query(0.07, 100, capacity)
    assert rows_read(q) == read
    np.testing.assert_allclose(overflow_probability(q), stats.binom.sf(read, 100, 0.07), rtol=1e-9)


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
@pytest.mark.parametrize(("population", "batch"), [(6, 3), (5, 1), (7, 6)])
@pytest.mark.optimised("6-3")
def test_every_subset_of_the_fixed_size_is_equally_likely(population, batch):
    rows = rows_drawn(fixed(population, batch), 40_000)
    subsets = list(itertools.combinations(range(population), batch))
    code = (1 << rows).sum(1)
    observed = np.bincount(code, minlength=2**population)
    observed = observed[[sum(1 << i for i in s) for s in subsets]]
    assert observed.sum() == len(rows)  # of distinct records
    assert chi_square_p(observed, np.full(len(subsets), len(rows) / len(subsets))) > 1e-3


@pytest.mark.slow
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
    assert draw(jax.random.key(0), fixed(9, 9), jnp.int32(3)) == (None, None, True)


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
    sample = draw_from_words(monkeypatch, fixed(population, 200, True), words)
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
    assert (q.cost(3, 1.0).failure, q.cost(3, 1.0).departure(people=2)) == (0.0, 0.0)


def test_a_full_batch_is_all_rows_in_their_order():
    q = Query(clip=Saddle(1.0, 1.0), sampling=Full(), population=9)
    assert draw(jax.random.key(0), q, jnp.int32(3)) == (None, None, True)
    assert (rows_read(q), overflow_probability(q)) == (9, 0.0)
