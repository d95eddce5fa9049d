"""The realised law of samples is charged: by enumeration of samplers of few bits, exactly."""

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

import jaxminimax as jmm
from jaxminimax.base.random_bits import word_pairs
from jaxminimax.mechanism import costs, fixed_size, gap_law, poisson

N = 7
FEW = [(rate, bits) for rate in (1 / 3, 1 / 8, 0.7) for bits in (6, 8, 10, 13, 16)]  # of a digit
few = pytest.mark.parametrize(("rate", "bits"), FEW)
# bits of the digits below 2^k: with and without a H that tells gaps inside of the data apart
CUTS = ((2, 1), (1, 1), (2,), (1,), ())


def drawn_gaps(rate, bits, cut, n=N):
    """P[X = x] and P[X >= x] for x = 0, ..., n, as the sampler's digits make them."""
    law, unit = {0: Fraction(1)}, 1
    for row in gap_law.limits(rate, n, bits, cut):
        above = [2**bits, *row, 0]
        law = {x + d * unit: mass * Fraction(above[d] - above[d + 1], 2**bits)
               for x, mass in law.items() for d in range(len(row) + 1)}
        unit *= len(row) + 1
    assert max(law) < n + 2 ** (sum(cut) + 1)  # so that 32 bits hold every gap of n < 2^31
    at = [sum((m for x, m in law.items() if min(x, n) == y), Fraction(0)) for y in range(n + 1)]
    return at, [sum(at[y:], Fraction(0)) for y in range(n + 1)]


def law_of_sets(at, from_, n=N):
    """The probability of every set of records, as a sorted tuple."""
    out = {}
    for size in range(n + 1):
        for rows in itertools.combinations(range(n), size):
            mass, last = Fraction(1), -1
            for i in rows:
                mass, last = mass * at[i - last - 1], i
            out[rows] = mass * from_[n - 1 - last]
    return out


def longest_run(rows, n=N):
    """The most records between two of a set, or to the end."""
    return max(b - a - 1 for a, b in itertools.pairwise((-1, *rows, n)))


def around(rows, i, n=N):
    """The records between the neighbours of i in a set without it, with it."""
    after, before = [x for x in rows if x > i], [x for x in rows if x < i]
    return min(after, default=n) - max(before, default=-1) - 1


def with_record(rows, i):
    return tuple(sorted((*rows, i)))


@functools.cache
def sets_drawn(rate, bits, cut):
    sets = law_of_sets(*drawn_gaps(rate, bits, cut))
    assert sum(sets.values()) == 1
    return sets


def without(rate, bits, cut, i):
    """(S, P[S], P[S + i]) of the sets without i."""
    sets = sets_drawn(rate, bits, cut)
    return [(rows, mass, sets[with_record(rows, i)]) for rows, mass in sets.items()
            if i not in rows]


# --- Poisson ---


@pytest.mark.parametrize("cut", CUTS, ids=str)
@few
def test_the_hit_rate_given_the_others_is_at_most_the_charged_one(rate, bits, cut):
    told = 0
    for longest in range(1, N + 2):
        law = gap_law.realised(rate, N, longest, bits, cut)
        charged = Fraction(law.rate(rate))
        assert charged >= rate
        told += charged < 1
        for i in range(N):
            for rows, mass, hit in without(rate, bits, cut, i):
                if around(rows, i) < longest:
                    assert hit <= charged * (mass + hit)
    assert told >= {6: 0, 8: 1}.get(bits, 3)


@few
@pytest.mark.parametrize("capacity", [1, 3, N])
def test_samples_for_which_it_is_not_are_charged_in_full(rate, bits, capacity):
    for cut, longest in itertools.product(CUTS, range(1, N + 2)):
        law = gap_law.realised(rate, N, longest, bits, cut)
        if law.rate(rate) == 1:
            continue
        for i in range(N):
            rare = sum(mass + hit for rows, mass, hit in without(rate, bits, cut, i)
                       if len(rows) < capacity and around(rows, i) >= longest)
            assert rare <= law.failure(capacity + 1)


def test_the_gap_past_the_end_has_an_error_of_its_own():
    """Leaving it out is no bound: the enumeration tells."""
    def exceeds(rate, bits, cut, longest, error):
        law = gap_law.Realised(longest, error, 0.0, 0.0)
        return any(hit > Fraction(law.rate(rate)) * (mass + hit) for i in range(N)
                   for rows, mass, hit in without(rate, bits, cut, i)
                   if around(rows, i) < longest)

    found = 0
    for (rate, bits), cut in itertools.product(FEW, CUTS):
        for longest in range(2, N + 2):
            digits = gap_law._digits_error(rate, N, longest, bits, cut)
            end = gap_law._end_error(rate, N, longest, bits, cut)
            if digits < 0.05 and exceeds(rate, bits, cut, longest, math.expm1(digits)):
                assert end > digits
                found += 1
    assert found


GRID = np.linspace(-30, 30, 6001)


def normal(mean, z=1.0):
    return np.exp(-((GRID - mean) / z) ** 2 / 2) / (z * math.sqrt(2 * math.pi))


def hockey(p, q, a, nan=0.0):
    """H_a of two densities on the grid, beside one probability of NaN."""
    step = GRID[1] - GRID[0]
    return float(np.sum(np.maximum(p - a * q, 0)) * step + max(1 - a, 0) * nan)


def pair(weights, far=-1):
    """Sum of weights[j] N(j) and of weights[j] N(far j)."""
    return (sum(w * normal(j) for j, w in enumerate(weights)),
            sum(w * normal(far * j) for j, w in enumerate(weights)))


FACTORS = (0.2, 0.8, 1.0, 1.3, 3.0, 20.0)


@pytest.mark.parametrize(("rate", "bits"), FEW[2::5])
@pytest.mark.parametrize("far", [-1, 0], ids=["replaced", "absent"])
def test_one_release_is_dominated_whatever_the_capacity(rate, bits, far):
    """Record 2 alone contributes, and who else is drawn is counted as known."""
    cut = (1,)
    longest = next(x for x in reversed(range(2, N + 2))
                   if gap_law.realised(rate, N, x, bits, cut).rate(rate) < 1)
    law = gap_law.realised(rate, N, longest, bits, cut)
    charged = law.rate(rate)
    for capacity, a in itertools.product((1, 2, N), FACTORS):
        total = 0.0
        for rows, mass, hit in without(rate, bits, cut, 2):
            if len(rows) < capacity:
                p, q = pair([float(mass), float(hit)], far)
                total += hockey(p, q, a)
            else:  # i outgrows the capacity, or it is outgrown already
                total += max(1 - a, 0.0) * float(mass + hit)
        p, q = pair([1 - charged, charged], far)
        assert total <= law.failure(capacity + 1) + hockey(p, q, a) + 1e-9


@pytest.mark.parametrize(("rate", "population"), [
    (rate, population) for rate, population in itertools.product(
        (1e-15, 1e-9, 1e-6, 1e-3, 0.07, 0.5, 0.99, 1 - 2**-20, 1 - 2**-53),
        (2, 1000, 10**6, 2**31 - 2)) if 1e-6 <= rate * population <= 1e6])
def test_the_charge_is_negligible_at_every_rate(rate, population):
    sampling = jmm.Poisson(rate=rate)
    cost = sampling.charge(10**7, 1.0, population)
    charged = cost.losses[0][0].rate
    assert rate <= charged <= min(1.0, rate * (1 + 1e-10))
    assert 10**7 * gap_law.FAILURE < cost.failure < 1e-18
    assert cost.law_error == 0
    assert cost.departure() == 0 < cost.departure(people=2) < 1e-29
    assert cost.failures(people=3) == 7 * cost.failure


@pytest.mark.parametrize("rate", [2**-13, 3 / 128, 0.5, 31 / 32])  # of short fractions
def test_errors_are_those_of_exact_arithmetic(rate):
    """Of every digit below L and of the last gap, with fractions of 160 bits."""
    n = 3000
    law = gap_law.charged_law(rate, n, 50)
    r, most = 1 - Fraction(rate), min(law.longest, n) - 1
    worst, unit, rows = Fraction(0), 1, gap_law.limits(rate, n)
    for row in rows:
        above, s, last = [2**160, *row, 0], r**unit, row is rows[-1]
        off = [abs(Fraction(above[d] - above[d + 1], 2**160)
                   / (s**d * (1 - s)) * (1 if last else 1 - s ** len(above[1:])) - 1)
               for d in range(min(len(row), most // unit) + 1)
               if not last or d * unit < n]
        worst += max(off)
        unit *= len(row) + 1
    assert worst <= law.gap < 1e-12
    at_most = (1 - Fraction(rate)) ** law.longest
    assert law.longest > n or at_most <= law.long < 1e-28


# --- the capacity ---


@pytest.mark.parametrize("present", [0, 1, 2, 3], ids=lambda r: f"{r} of 3 contribute before")
@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_tight_capacity_tells_nothing_about_people(room, present):
    """Three records differ, room is left for that many: NaN otherwise, on both data sets.

    `present` of them contribute 1 on one data set, the others -1 on the other, or (3) all are
    replaced by their opposite. Without overflow no release is easier to tell apart.
    """
    q, k = 0.35, 3
    p_nan = stats.binom.sf(room, k, q)
    fits, whole = [], []
    for hits in itertools.product((0, 1), repeat=k):
        weight = q ** sum(hits) * (1 - q) ** (k - sum(hits))
        left = sum(hits[:present])
        right = -left if present == k else -sum(hits[present:])
        whole.append((weight * normal(left), weight * normal(right)))
        if sum(hits) <= room:
            fits.append(whole[-1])
    for a in FACTORS:
        cut = hockey(*(sum(x) for x in zip(*fits, strict=True)), a, p_nan)
        free = hockey(*(sum(x) for x in zip(*whole, strict=True)), a)
        assert cut <= free + 1e-9


@pytest.mark.parametrize("capacity", range(1, 6))
def test_a_tight_capacity_is_no_worse_than_the_charged_pair(capacity):
    """Who else is drawn is not known here: their sum moves what is released."""
    q, n, rng = 0.4, 5, np.random.default_rng(capacity)
    for _ in range(3):
        others = rng.uniform(-1, 1, n)
        p, p2, nan = np.zeros_like(GRID), np.zeros_like(GRID), 0.0
        for drawn in itertools.product((0, 1), repeat=n + 1):
            weight = q ** sum(drawn) * (1 - q) ** (n + 1 - sum(drawn))
            if sum(drawn) > capacity:
                nan += weight
                continue
            rest = float(np.dot(others, drawn[1:]))
            p += weight * normal(rest + drawn[0])
            p2 += weight * normal(rest - drawn[0])
        for a in FACTORS:
            assert hockey(p, p2, a, nan) <= hockey(*pair([1 - q, q]), a) + 1e-9


def test_a_tight_capacity_costs_no_epsilon_and_is_told():
    def made(capacity):
        query = jmm.Query(clip=jmm.Saddle(1.0, None), noise_multiplier=jmm.Saddle(2.0, None),
                          sampling=jmm.Poisson(rate=0.01, capacity=capacity), population=10_000)
        return jmm.Repeat(query=query, times=100)

    assert jmm.epsilon(made(110), 1e-5) == pytest.approx(jmm.epsilon(made(None), 1e-5), rel=1e-9)
    one = stats.binom.sf(110, 10_000, 0.01)
    told = f"capacity 110, outgrown in some release with probability {1 - (1 - one) ** 100:.2g}"
    assert told in made(110).in_words()
    with pytest.raises(ValueError, match="capacity must be at least the expected 100 records"):
        jmm.epsilon(made(99), 1e-5)


# --- samples of a fixed size ---


@pytest.mark.parametrize(("n", "m", "capacity", "rate"), [
    (5, 4, 4, 0.8), (6, 5, 5, 0.7), (6, 3, 5, 0.6), (6, 2, 4, 0.4)])
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_a_subset_is_charged_by_what_it_is_sent(n, m, capacity, rate, bits):
    """Every subset with record 0 is sent to those without, exactly, as the proof does."""
    sets = {rows: mass for rows, mass in law_of_sets(*drawn_gaps(rate, bits, (2,), n), n).items()
            if m <= len(rows) <= capacity}
    for longest in range(1, n + 2):
        law = gap_law.realised(rate, n, longest, bits, (2,))
        charged, unsent = fixed_size.sent(m / n, capacity + 1, law)
        if charged == 1:
            continue
        left_over = Fraction(0)
        for big, mass in sets.items():
            chosen = [rows for rows in itertools.combinations(big, m) if 0 in rows]
            for rows in chosen:
                for j in sorted(set(range(n)) - set(rows)):
                    other = big if j in big else with_record(set(big) - {0}, j)
                    hit = mass / math.comb(len(big), m) / (n - m)
                    miss = sets[other] / math.comb(len(big), m) / m
                    if max(longest_run(big, n), longest_run(other, n)) < longest:
                        assert hit <= Fraction(charged) * (hit + miss)
                    else:
                        left_over += hit
        assert left_over <= unsent


def test_what_is_sent_to_rare_samples_may_be_several_times_as_likely_as_they_are():
    """So twice their probability would be too little where a release reads most records."""
    n, m, bits = 5, 4, 16
    sets = {rows: mass for rows, mass in law_of_sets(*drawn_gaps(0.8, bits, (2,), n), n).items()
            if len(rows) == m}
    rare = next(rows for rows in sets if 0 not in rows)
    to_it = sum(sets[with_record(set(rare) - {j}, 0)] for j in rare) / (n - m)
    assert to_it > 3.9 * sets[rare]


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


def reference(rate, population, top):
    """X for words of 32 bits, `[digits, count]`, and which gaps those do not decide: decimals."""
    cut = gap_law.widths(rate, population)
    with decimal.localcontext(prec=80):
        s, x, open_, unit = 1 - decimal.Decimal(rate), 0, False, 1
        for word, width in zip(top, (*cut, None), strict=True):
            some = 2**width - 1 if width else min(15, -(-population // unit))
            low = s ** 2**width if width else 0
            row = np.array([int(2**32 * (s ** (d + 1) - low) / (1 - low)) for d in range(some)])
            digit = (word.astype(np.int64) < row[:, None]).sum(0)
            open_ = open_ | (word == row[:, None]).any(0)
            x, unit, s = x + digit * unit, unit * 2 ** (width or 0), s ** 2 ** (width or 0)
    return np.minimum(x, population), open_ | (digit == 15)


@pytest.mark.parametrize(("rate", "population", "count"), [
    (64 / 50_000, 50_000, 150), (0.3, 20, 21), (1 / 3, 10**5, 300), (1e-6, 2**29, 700),
    (2 / (2**31 - 1), 2**31 - 1, 300), (1 / 6, 6, 40), (0.999, 300, 64)])
def test_ordinary_draws_are_the_digits_of_32_bits(rate, population, count):
    """An independent reference of the law: thresholds in decimals, one word a digit."""
    sample = jax.jit(poisson.poisson_rows, static_argnums=(1, 2, 3))
    digits = len(gap_law.widths(rate, population)) + 1
    for seed in range(3):
        key = jax.random.key(seed)
        pairs = word_pairs(key, (-(-digits // 2), count))
        x, open_ = reference(rate, population, np.stack(pairs, 1).reshape(-1, count)[:digits])
        assert not open_.any()
        index = np.cumsum(x + 1) - 1
        expected = np.where(np.cumsum(index >= population) > 0, population, index)[:-1]
        found, _ = sample(key, rate, population, count - 1)
        np.testing.assert_array_equal(found, expected)


def given_words(patch, words):
    """Makes these the first word of every digit and gap, and the other four, `[5, digits, c]`."""
    first = jnp.asarray(np.pad(words[0], ((0, words.shape[1] % 2), (0, 0))))

    def pairs(key, shape, part=0, rolled=False):
        return ((first[::2], first[1::2]) if part == 0 else
                (jnp.concatenate(words[[1, 3]]), jnp.concatenate(words[[2, 4]])))

    patch.setattr(poisson, "word_pairs", pairs)


@pytest.mark.parametrize("population", [2**31 - 1, 2**30 + 1, 60_000])
def test_gaps_of_every_length_come_out_whole_and_no_longer_than_the_data(population, monkeypatch):
    """Where 15 thresholds do not decide, and where 2^k H comes near to 2^32."""
    for mean in (2, 8.6, 256):
        rate = mean / population
        rows = gap_law.limits(rate, population)
        h = np.arange(len(rows[-1]) + 1)
        words = np.full((5, len(rows), 2 * len(h)), 2**32 - 1, np.uint32)
        words[:, :-1, ::2] = 0  # all other digits are as large as can be, or 0
        for j, above in enumerate((2**160, *rows[-1])):  # the largest number with H = j
            words[:, -1, 2 * j:2 * j + 2] = np.array(
                [above - 1 >> 32 * i & 0xFFFFFFFF for i in reversed(range(5))])[:, None]
        given_words(monkeypatch, words)
        found = np.asarray(poisson.gaps(jax.random.key(0), rate, population, 2 * len(h)))
        unit = 2 ** sum(gap_law.widths(rate, population))
        np.testing.assert_array_equal(found[1::2], np.minimum(h * unit, population))
        np.testing.assert_array_equal(found[::2], np.minimum(h * unit + unit - 1, population))
        assert len(h) > 16 or unit * 15 >= population


def test_charges_add_up():
    one = jmm.Poisson(rate=0.1).charge(3, 1.0, 100)
    two = costs.compose(one, costs.Charge(failure=1e-9, law_error=1e-8, sample_error=1e-7))
    assert two.failure == one.failure + 1e-9
    assert two.departure() == 1e-8
    assert two.departure(people=2) == pytest.approx(1.1e-7, rel=1e-12)
    assert two.described() == costs.Charge(losses=one.losses)
