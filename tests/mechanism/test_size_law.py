"""The realised law of samples is charged: by enumeration of samplers of few bits, exactly."""

import functools
import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxminimax as jmm
from jaxminimax import Poisson
from jaxminimax.accounting import curve, renyi
from jaxminimax.accounting.pairs import _Mixtures
from jaxminimax.base.random_bits import word_pairs
from jaxminimax.mechanism import costs, distinct, poisson, size_law
from jaxminimax.mechanism.costs import Charge
from jaxminimax.mechanism.distinct import CROWDED

N = 7
FEW = [(rate, bits) for rate in (1 / 3, 1 / 8, 0.7) for bits in (6, 8, 10, 13, 16)]  # of a size
few = pytest.mark.parametrize(("rate", "bits"), FEW)


@functools.cache
def sets_drawn(rate, bits, most=N):
    """The probability of every set of records that fits, as a sorted tuple."""
    first, table = size_law.limits(rate, N, most, bits)
    above = [2**bits] * (first + 1) + list(table) + [0] * (N + 2 - first - len(table))
    size = [Fraction(above[k] - above[k + 1], 2**bits) for k in range(N + 1)]
    assert sum(size) == 1
    return {rows: size[k] / math.comb(N, k) for k in range(most + 1)
            for rows in itertools.combinations(range(N), k)}


def without(rate, bits, most, i):
    """(S, P[S], P[S + i]) of the sets without i, 0 for a set that does not fit."""
    sets = sets_drawn(rate, bits, most)
    return [(rows, mass, sets.get(tuple(sorted((*rows, i))), Fraction(0)))
            for rows, mass in sets.items() if i not in rows]


# --- Poisson ---


@pytest.mark.parametrize("most", [1, 3, N])
@few
def test_the_hit_rate_given_the_others_is_at_most_the_charged_one(rate, bits, most):
    stated = 0
    for low, high in itertools.combinations_with_replacement(range(most + 1), 2):
        law = size_law.realised(rate, N, most, low, high, bits)
        charged = Fraction(law.rate(rate))
        assert charged >= rate
        stated += rate < charged < 1 and low < high
        for rows, mass, hit in without(rate, bits, most, 2):
            if low <= len(rows) < high:
                assert hit <= charged * (mass + hit)
    assert stated or bits < 16 or most == 1


@pytest.mark.parametrize("most", [1, 3, N])
@few
def test_samples_for_which_it_is_not_are_charged_in_full(rate, bits, most):
    for low, high in itertools.combinations_with_replacement(range(most + 1), 2):
        law = size_law.realised(rate, N, most, low, high, bits)
        rare = sum(mass + hit for rows, mass, hit in without(rate, bits, most, 2)
                   if len(rows) < most and not low <= len(rows) < high)
        assert rare <= law.failure


def test_the_realised_rate_may_exceed_the_described_one():
    """So it has to be charged: the enumeration tells."""
    assert any(hit > Fraction(rate) * (mass + hit) * Fraction(1001, 1000)
               for rate, bits in FEW for _, mass, hit in without(rate, bits, N, 2))


GRID = np.linspace(-30, 30, 6001)


def normal(mean, z=1.0):
    return np.exp(-((GRID - mean) / z) ** 2 / 2) / (z * math.sqrt(2 * math.pi))


def hockey(p, q, a):
    """H_a of two densities on the grid."""
    return float(np.sum(np.maximum(p - a * q, 0)) * (GRID[1] - GRID[0]))


def pair(weights, far=-1):
    """Sum of weights[j] N(j) and of weights[j] N(far j)."""
    return (sum(w * normal(j) for j, w in enumerate(weights)),
            sum(w * normal(far * j) for j, w in enumerate(weights)))


FACTORS = (0.2, 0.8, 1.0, 1.3, 3.0, 20.0)


@pytest.mark.parametrize(("rate", "bits"), [(1 / 3, 16), (1 / 8, 22), (0.7, 17)])
@pytest.mark.parametrize("far", [-1, 0], ids=["replaced", "absent"])
def test_one_release_is_dominated_whatever_the_capacity(rate, bits, far):
    """Record 2 alone contributes, and who else is drawn is counted as known."""
    for most, new, a in itertools.product((1, 2, N), (1, 3, N), FACTORS):
        low, high = int(most == N), most - (most > 2)
        law = size_law.realised(rate, N, most, low, high, bits)
        charged = law.rate(rate)
        assert charged < 1
        total = fits = 0.0
        for rows, mass, hit in without(rate, bits, most, 2):
            if len(rows) > min(most, new):
                continue  # drawn again
            if len(rows) == min(most, new):
                hit = 0  # as are these with record 2
            p, q = pair([float(mass), float(hit)], far)
            total += hockey(p, q, a)
            fits += float(mass + hit)
        p, q = pair([1 - charged, charged], far)
        assert total / fits <= law.failure / fits + hockey(p, q, a) + 1e-9


@pytest.mark.parametrize(("rate", "population"), [
    (rate, population) for rate, population in itertools.product(
        (1e-15, 1e-9, 1e-6, 1e-3, 0.07, 0.5, 0.99, 1 - 2**-20, 1 - 2**-53),
        (2, 1000, 10**6, 2**31 - 2)) if 1e-6 <= rate * population <= 1e6])
def test_the_charge_is_negligible_at_every_rate(rate, population):
    sampling = jmm.Poisson(rate=rate)
    cost = sampling.charge(10**7, 1.0, population)
    charged = cost.losses[0][0].rate
    assert rate <= charged <= min(1.0, rate * (1 + 1e-10))
    assert 0 < cost.failure < 1e-18
    assert cost.law_error == 0
    assert cost.departure() == 0 < cost.departure(people=2) < 1e-29
    law = size_law.charged_law(rate, population, sampling._room(population)[1])
    assert law.failure <= 1.1e-28
    assert cost.failures(people=3) == pytest.approx(3 * cost.failure, rel=1e-3)


@pytest.mark.parametrize(("rate", "population", "most"), [
    (5 / 16, 9, 9), (5 / 16, 9, 4), (3 / 256, 200, 40), (9 / 64, 257, 120), (7 / 8, 40, 40),
    (2**-30, 60, 12), (1 - 2**-20, 30, 30)])
def test_thresholds_are_the_exact_tails_rounded_down(rate, population, most):
    """And what is charged for rounding is at least what it does to the masses."""
    q = Fraction(rate)
    mass = [math.comb(population, k) * q**k * (1 - q)**(population - k)
            for k in range(population + 1)]
    first, table = poisson.thresholds(rate, population, most)
    actual = [int.from_bytes(row.astype(">u4").tobytes()) for row in table]
    for k, t in enumerate(actual, first):
        exact = 2**160 * sum(mass[k + 1:])
        assert 0 <= exact - t < 1 + Fraction(1, 2**60) or t == 2**160 - 1 < exact
    assert first + len(actual) == most + 1 or not actual[-1]
    assert sum(mass[:first]) * 2**160 < 2
    above = [2**160] * (first + 1) + actual + [0] * population
    low, high = size_law.ordinary(rate, population, most)
    law = size_law.charged_law(rate, population, most)
    realised = [Fraction(above[k] - above[k + 1], 2**160) for k in range(most + 1)]
    assert max(abs(realised[k] / mass[k] - 1) for k in range(low, high + 1)) <= law.error < 1e-12
    off = sum(abs(a - b) for a, b in zip(realised, mass, strict=False)) / 2
    assert off <= Fraction(size_law.rows_error(rate, population, most)) < Fraction(1, 10**43)


def test_masses_of_large_populations_are_binomial():
    for rate, population in ((256 / 60_000, 60_000), (1e-3, 10**5)):
        first, mass = size_law.masses(rate, population)
        actual = np.array([x / sum(mass) for x in mass])
        expected = stats.binom.pmf(np.arange(first, first + len(mass)), population, rate)
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-30)


# --- the capacity ---


@pytest.mark.parametrize("present", [0, 1, 2, 3], ids=lambda r: f"{r} of 3 contribute before")
@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_tight_capacity_tells_nothing_about_people(room, present):
    """Three records differ, room is left for that many: larger samples are drawn again.

    `present` of them contribute 1 on one data set, the others -1 on the other, or (3) all are
    replaced by their opposite. It is below the charged pair.
    """
    q, k = 0.35, 3
    fits = []
    for hits in itertools.product((0, 1), repeat=k):
        left = sum(hits[:present])
        right = -left if present == k else -sum(hits[present:])
        if sum(hits) <= room:
            weight = q ** sum(hits) * (1 - q) ** (k - sum(hits))
            fits.append((weight * normal(left), weight * normal(right)))
    share = stats.binom.cdf(room, k, q)
    charged = _Mixtures(present, k if present == k else k - present, q, 1.0)
    for a in (x for x in FACTORS if x >= 1):
        assert hockey(*(sum(x) / share for x in zip(*fits, strict=True)), a) <= charged(
            np.array([math.log(a)]))[0] + 1e-9


@pytest.mark.parametrize("capacity", range(1, 6))
def test_a_tight_capacity_is_no_worse_than_the_charged_pair(capacity):
    """Who else is drawn is not known here: their sum moves what is released."""
    q, n, rng = 0.4, 5, np.random.default_rng(capacity)
    charged = _Mixtures(1, 1, q, 1.0)
    for _ in range(3):
        others = rng.uniform(-1, 1, n)
        p, p2, fits = np.zeros_like(GRID), np.zeros_like(GRID), 0.0
        for drawn in itertools.product((0, 1), repeat=n + 1):
            weight = q ** sum(drawn) * (1 - q) ** (n + 1 - sum(drawn))
            if sum(drawn) > capacity:
                continue
            fits += weight
            rest = float(np.dot(others, drawn[1:]))
            p += weight * normal(rest + drawn[0])
            p2 += weight * normal(rest - drawn[0])
        for a in (x for x in FACTORS if x >= 1):
            assert hockey(p / fits, p2 / fits, a) <= charged(np.array([math.log(a)]))[0] + 1e-9


def test_what_is_rare_is_charged_as_often_as_it_is_given_that_a_sample_fits():
    tight, roomy = (jmm.Poisson(rate=0.5, capacity=c).charge(1, 1.0, 33) for c in (16, 33))
    fits = stats.binom.cdf(16, 33, 0.5)
    law = size_law.charged_law(0.5, 33, 16)
    assert tight.failure >= law.failure / fits + CROWDED / fits
    assert roomy.failure < 1.1 * CROWDED
    assert tight.sample_error >= 1.5 * size_law.rows_error(0.5, 33, 16) / fits


def test_a_tight_capacity_costs_no_epsilon_and_is_told():
    def made(capacity):
        query = jmm.Query(clip=jmm.Saddle(1.0, None), noise_multiplier=jmm.Saddle(2.0, None),
                          sampling=jmm.Poisson(rate=0.01, capacity=capacity), population=10_000)
        return jmm.Repeat(query=query, times=100)

    assert jmm.epsilon(made(110), 1e-5) == pytest.approx(jmm.epsilon(made(None), 1e-5), rel=1e-9)
    less = stats.binom.sf(109, 9_999, 0.01)  # beside which slots without rows are nothing
    stated = f"beyond 110 are drawn again, for which the rate is lower by a part {less:.2g} at most"
    assert stated in made(110).summary()
    with pytest.raises(ValueError, match="capacity must be at least the expected 100 records"):
        jmm.epsilon(made(99), 1e-5)


# --- samples of a fixed size ---


@pytest.mark.parametrize(("population", "batch", "replacement"), [
    (6, 3, False), (1000, 999, False), (60_000, 256, False), (2**30, 1000, False), (7, 1, False),
    (6, 8, True), (10**9, 1000, True), (2**30, 10**5, True)])
def test_fixed_sizes_are_charged_by_a_slightly_larger_rate(population, batch, replacement):
    cost = jmm.FixedSize(batch=batch, replacement=replacement).charge(10**7, 1.0, population)
    ((loss, _),) = cost.losses
    described = Fraction(1 if replacement else batch, population)
    assert Fraction(loss.rate) >= (described * (1 + Fraction(population, 2**96)) if replacement
                                   else described)
    assert loss.rate <= described * (1 + 1e-9)
    assert 0 < cost.failure < 1e-18
    assert cost.departure() == 0
    assert cost.departure(people=2) < (1e-20 if batch == 1 else 1e-29)


def test_draws_with_replacement_of_many_have_an_epsilon():
    query = jmm.Query(clip=jmm.Saddle(1.0, None), noise_multiplier=jmm.Saddle(0.7, None),
                      sampling=jmm.FixedSize(batch=1000, replacement=True), population=10**9)
    # 5.886 is attained by a pair of data sets
    assert 5.88 < jmm.epsilon(jmm.Repeat(query=query, times=10**4), 1e-10) < 7.0


def test_every_row_is_drawn_with_replacement_at_the_charged_rate_or_below():
    """floor(U n / 2^B): of 8 bits, by counting."""
    n, bits = 7, 8
    counts = np.bincount(np.arange(2**bits) * n >> bits, minlength=n)
    assert counts.max() / 2**bits <= (1 + n * 2.0**-bits) / n
    assert counts.max() / 2**bits > 1 / n


# --- the draws ---


@pytest.mark.parametrize(("rate", "population"), [(0.3, 16), (256 / 60_000, 60_000)])
def test_sizes_are_those_of_numbers_of_160_bits(rate, population):
    """The largest number below a threshold counts, the threshold itself does not."""
    most = poisson._slots(rate, population, None, 1e-3)[1]
    first, table = size_law.limits(rate, population, most)

    @jax.jit
    def drawn(words):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(poisson, "word_pairs", lambda key, shape, **how: (
                jnp.append(words, jnp.uint32(0))[::2], jnp.append(words, jnp.uint32(0))[1::2]))
            return poisson.drawn_size(jax.random.key(0), rate, population, most)

    for number in {0, 2**160 - 1, *(t - off for t in table[::max(1, len(table) // 20)]
                                    for off in (0, 1))} - {-1}:
        words = np.array([number >> 32 * i & 0xFFFFFFFF for i in reversed(range(5))], np.uint32)
        assert drawn(words) == first + sum(number < t for t in table)


@pytest.mark.parametrize("population", [3, 1000, 65_536, 10**6 + 3, 2**31 - 1, 1431655766])
def test_every_row_has_as_many_words(population, monkeypatch):
    """The least and the largest word of a row, and those that have none: all else is between."""
    each, rng = 2**32 // population, np.random.default_rng(0)
    rows = np.unique(np.append(rng.integers(0, population, 200), [0, population - 1])).tolist()
    least = [-(-(r * 2**32 + 2**32 % population) // population) for r in rows]
    words = [w + more for w in least for more in (-1, 0, each - 1, each)]
    given = jnp.asarray(np.array(words, np.int64) % 2**32, jnp.uint32)
    actual = []
    monkeypatch.setattr(distinct, "word_pairs", lambda key, shape, **how: (given, given))
    monkeypatch.setattr(distinct, "firsts", lambda *made: actual.extend(made) or made[1])
    room = distinct.Room(len(words), False)
    distinct.rows_of_slots(jax.random.key(0), room, population)
    row, there = (np.asarray(x).reshape(-1, 4) for x in actual)
    assert there[:, 1:3].all()
    np.testing.assert_array_equal(row[:, 1], rows)
    np.testing.assert_array_equal(row[:, 2], rows)
    for beside in (0, 3):  # of another row, or of none
        assert np.all((row[:, beside] != rows) | ~there[:, beside])


def same_hash(count):
    """Rows with one hash in the first round."""
    inverse = pow(0x9E3779B1, -1, 2**32)
    rows = (np.arange(1, 4000, dtype=np.uint64) * np.uint64(inverse)) % np.uint64(2**32)
    return rows[rows < 2**31][:count].astype(np.int32)


@pytest.mark.parametrize("rows", [
    np.zeros(50), np.arange(300), np.random.default_rng(0).integers(0, 40, 300),
    np.random.default_rng(1).integers(0, 2**31 - 1, 700), np.tile(same_hash(150), 2)], ids=len)
def test_new_slots_are_the_first_of_each_row(rows):
    rows = np.asarray(rows, np.int32)
    there = np.random.default_rng(2).random(len(rows)) < 0.9
    expected = [ok and row not in rows[:j][there[:j]]
                for j, (row, ok) in enumerate(zip(rows, there, strict=True))]
    actual = jax.jit(jax.vmap(distinct.firsts))(jnp.stack([rows, rows[::-1]]),
                                                jnp.stack([there, there]))
    np.testing.assert_array_equal(actual[0], expected)


@pytest.mark.parametrize("count", [1, 5, 300, 2100])
def test_the_least_numbers_are_taken(count):
    """Equal first words, and words far from where uniform ones would be, among them."""
    rng = np.random.default_rng(count)
    pick = jax.jit(distinct.lowest_words)
    for trial in range(16):
        words = rng.integers(0, 2**32, count, dtype=np.uint32)
        words = (words, words & np.uint32(0xE0000000), words >> np.uint32(20),
                 ~(words >> np.uint32(9)))[trial % 4]
        among = rng.random(count) < 0.8
        m = int(rng.integers(0, among.sum() + 1))
        held = np.asarray(pick(jax.random.key(trial), words, among, m))
        assert held.sum() == m
        assert not np.any(held & ~among)
        last = np.sort(words[among])[:m][-1:]
        assert np.all(words[held] <= (last if m else 0))
        # all numbers with a lesser word are there, of 128 bits
        assert np.all(held[among & (words < (last if m else 0))])
        np.testing.assert_array_equal(pick(jax.random.key(trial), words, among, count), among)


@pytest.mark.slow
def test_equal_words_are_put_in_order_by_the_last_bits():
    key, count = jax.random.key(5), 40
    (second, fourth), (third, _) = word_pairs(jax.random.fold_in(key, distinct._TIES), (2, count))
    words = np.zeros(count, np.uint32)
    words[::2] = 7
    order = sorted(range(count), key=lambda j: tuple(
        int(x[j]) for x in (words, second, third, fourth)))
    for m in (0, 1, 13, 20, 33, 40):
        held = np.asarray(distinct.lowest_words(key, words, np.ones(count, bool), m))
        assert sorted(order[:m]) == np.flatnonzero(held).tolist()


@pytest.mark.parametrize("bits", [1, 2])
def test_random_slots_are_uniform_where_first_bits_are_equal(bits):
    among, m = jnp.array([True, True, False, True, True]), 2

    def one(key):
        words = word_pairs(key, (5,))[0] & np.uint32((2**bits - 1) << 30)
        return distinct.lowest_words(key, words, among, m)

    actual = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(bits), 12_000)))
    sets, counts = np.unique(actual, axis=0, return_counts=True)
    assert len(sets) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


def test_charges_add_up():
    one = jmm.Poisson(rate=0.1).charge(3, 1.0, 100)
    two = costs.compose(one, costs.Charge(failure=1e-9, law_error=1e-8, sample_error=1e-7))
    assert two.failure == one.failure + 1e-9
    assert two.departure() == 1e-8
    assert two.departure(people=2) == pytest.approx(1.1e-7, rel=1e-12)
    assert two.described() == costs.Charge(losses=one.losses)


# --- releases that cannot hold the record ---

NEAR = np.linspace(-12.0, 12.0, 4801)
WIDE = np.linspace(-12.0, 60.0, 14401)


def density(x, mean, z):
    return np.exp(-(((x - mean) / z) ** 2) / 2) / (z * math.sqrt(2 * math.pi))


def released(how, n, z, people, others, present, x):
    """Densities of a release: the k records are 1 and -1 (or absent), and the others are `others`.

    By enumeration of how many of each are in a sample that fits, in slots with a row each.
    """
    room, most = how._room(n)
    assert room.shuffled
    p = q = 0.0
    weights = {(m, j): stats.binom.pmf(m, n - people, how.rate) * stats.binom.pmf(
        j, people, how.rate) for m in range(most + 1) for j in range(people + 1) if m + j <= most}
    fits = sum(weights.values())
    for (m, j), weight in weights.items():
        p = p + weight / fits * density(x, m * others + j, z)
        q = q + weight / fits * density(x, m * others - present * j, z)
    return p, q


def divergence(p, q, eps, x):
    return float(np.trapezoid(np.maximum(p - math.exp(eps) * q, 0), x))


def charged_delta(how, n, z, eps, relation, people=1, times=1):
    return curve.charge_delta(how.charge(times, z, n), eps, relation, people)


def idle(how, n):
    """P[the other records fill the slots | a sample fits], of slots with a row each."""
    room, most = how._room(n)
    assert room.shuffled
    return ((1 - how.rate) * stats.binom.pmf(most, n - 1, how.rate)
            / stats.binom.cdf(most, n, how.rate))


AGAIN = [(5, 0.3, 0.3), (6, 0.4, 0.5), (6, 0.25, 0.3)]


@pytest.mark.slow
@pytest.mark.parametrize(("n", "rate", "again"), AGAIN)
def test_no_release_of_a_sample_drawn_again_is_less_private_than_charged(n, rate, again):
    """Enumerated: k records, replaced or absent, whatever the others tell of a sample's size."""
    how, z = Poisson(rate=rate, again=again), 0.7
    for people, relation in itertools.product((1, 2), ("replace_one", "add_or_remove_one")):
        cases = [released(how, n, z, people, others, relation == "replace_one", WIDE)
                 for others in (0.0, 1.0, -0.5, 12.0)]
        for eps in (0.0, 0.4, 1.5):
            delta = charged_delta(how, n, z, eps, relation, people)
            for p, q in cases:
                assert divergence(p, q, eps, WIDE) <= delta + 2e-6
                assert divergence(q, p, eps, WIDE) <= delta + 2e-6


@pytest.mark.parametrize(("n", "rate", "again"), AGAIN)
def test_the_charge_is_that_of_a_sample_whose_size_is_told(n, rate, again):
    """It is attained by others so long that their sum tells their number."""
    how, z = Poisson(rate=rate, again=again), 0.7
    for eps in (0.0, 0.4, 1.5):
        p, q = released(how, n, z, 1, 12.0, True, WIDE)
        exact = divergence(p, q, eps, WIDE)
        delta = charged_delta(how, n, z, eps, "replace_one")
        assert exact - 2e-6 <= delta == pytest.approx(exact, rel=1e-4)


def test_several_releases_compose_with_those_that_cannot_hold_the_record():
    n, z, eps, how = 6, 1.0, 0.7, Poisson(rate=0.4, again=0.5)
    p0, p, q = idle(how, n), *(sum(w * density(NEAR[::4], sign * j, z) for j, w in ((0, 0.6), (
        1, 0.4))) for sign in (1, -1))
    two = np.trapezoid(np.trapezoid(np.maximum(
        np.outer(p, p) - math.exp(eps) * np.outer(q, q), 0), NEAR[::4]), NEAR[::4])
    exact = (1 - p0) ** 2 * two + 2 * p0 * (1 - p0) * divergence(p, q, eps, NEAR[::4])
    assert exact <= charged_delta(how, n, z, eps, "replace_one", times=2) + 2e-6
    assert charged_delta(how, n, z, eps, "replace_one", times=2) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_renyi_divergences_of_releases_that_cannot_hold_the_record(relation):
    n, z, how = 6, 1.0, Poisson(rate=0.4, again=0.5)
    p0, order = idle(how, n), float(renyi.ORDERS[48])
    p = 0.6 * density(NEAR, 0, z) + 0.4 * density(NEAR, 1, z)
    q = 0.6 * density(NEAR, 0, z) + 0.4 * density(NEAR, -1, z) if relation == "replace_one" else (
        density(NEAR, 0, z))
    exact = max(math.log(p0 + (1 - p0) * np.trapezoid(a**order * b ** (1 - order), NEAR))
                for a, b in ((p, q), (q, p))) / (order - 1)
    loss = how.charge(1, z, n).losses[0][0]
    cost = Charge(losses=((loss, 1),))
    assert renyi.divergences(cost, relation)[48] == pytest.approx(exact, rel=1e-5)
    assert renyi.loss_divergence(loss, 1, order, relation)[0] == pytest.approx(exact, rel=1e-5)
    assert renyi.loss_divergence(loss._replace(filled=0.0), 1, order, relation)[0] > 1.05 * exact


def test_what_is_charged_as_nothing_is_rounded_down():
    """Also for several records: it is P[the others of all k fill the slots], which is smaller."""
    for n, rate, again in (*AGAIN, (60_000, 16 / 60_000, 0.1), (500, 0.03, 0.4)):
        how = Poisson(rate=rate, again=again)
        loss = how.charge(1, 1.0, n).losses[0][0]
        room, most = how._room(n)
        law = poisson._new_slots(room, n)
        fits = np.minimum(most, np.arange(len(law)))
        for people in (1, 2, 3):
            exact = (1 - rate) ** people * (law @ stats.binom.pmf(fits, n - people, rate)) / (
                law @ stats.binom.cdf(fits, n, rate))
            assert loss.not_read(people) < exact or exact == 0
            if n > 100 * most:  # and hardly less
                assert loss.not_read(people) > (1 - 1e-2) * exact
    assert Poisson(rate=0.2).charge(1, 1.0, 40).losses[0][0].filled == 0
    assert Poisson(rate=1.0, again=0.3).charge(1, 1.0, 40).losses[0][0].filled == 0


@pytest.mark.parametrize("bug", ["p_0 rounded up", "rate r"])
def test_too_much_charged_as_nothing_is_found(monkeypatch, bug):
    n, z, eps, how = 6, 0.7, 0.4, Poisson(rate=0.4, again=0.5)
    p, q = released(how, n, z, 1, 12.0, True, WIDE)
    exact, p0, usual = divergence(p, q, eps, WIDE), idle(how, n), Poisson.charge

    def changed(self, times, z, population):
        cost = usual(self, times, z, population)
        ((loss, count),) = cost.losses
        loss = (loss._replace(filled=1.01 * loss.filled) if bug == "p_0 rounded up" else
                loss._replace(filled=0.0, rate=loss.rate * (1 - p0)))
        return cost._replace(losses=((loss, count),))

    assert charged_delta(how, n, z, eps, "replace_one") >= exact - 2e-6
    monkeypatch.setattr(Poisson, "charge", changed)
    # 50 times what the grid is off by
    assert charged_delta(how, n, z, eps, "replace_one") < exact - 1e-4
