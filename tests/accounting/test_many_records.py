"""k records of one person: what may fail is charged for the records that are in a sample."""

import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

import jaxminimax as jmm
from jaxminimax import Saddle
from jaxminimax.accounting import curve, gaussian
from jaxminimax.accounting import pairs as dominating
from jaxminimax.mechanism import costs
from jaxminimax.mechanism.costs import PrivacyLoss
from jaxminimax.mechanism.grid import DITHER_FAILURE

RO = "replace_one"


def repeat(sampling, n, z, times=5):
    query = jmm.Query(clip=Saddle(1.0, None), noise_multiplier=Saddle(z, None), sampling=sampling,
                      population=n)
    return jmm.Repeat(query=query, times=times)


# ---- failures of the dither --------------------------------------------------------------------


@pytest.mark.parametrize(("people", "rate"), [(2, 0.25), (5, 0.5), (60, 1e-3), (300, 0.01),
                                              (150, 0.875)])
def test_a_set_of_records_may_be_bad_if_it_is_in_the_sample(people, rate):
    q, d = Fraction(rate), Fraction(DITHER_FAILURE)
    exact = sum(math.comb(people, j) * q**j * (1 - q) ** (people - j)
                * min(1, 2 * d * (2**j - 1)) for j in range(people + 1))
    actual = Fraction(costs._bad_sets(people, rate))
    assert exact <= actual <= exact * (1 + Fraction(1, 10**12))
    assert actual <= 2 * d * ((1 + q) ** people - 1) * (1 + Fraction(1, 10**12))


def divergence(p, q, eps, z):
    """H of mixtures of N(x, z^2), given as lists of (weight, x), by a fine grid."""
    x = np.linspace(-30 * z - 20, 30 * z + 20, 4001)
    p, q = (sum(w * stats.norm.pdf(x, at, z) for w, at in law) for law in (p, q))
    return np.maximum(p - math.exp(eps) * q, 0).sum() * (x[1] - x[0])


def drawn_steps(rng, subsets, dither):
    """Displacements of all sets on one data set, and which steps are too long, for each dither."""
    bad = {a: rng.random() < 0.7 and int(rng.integers(dither)) for a in subsets if a}
    for u in range(dither):
        at, long = {(): 0.0}, set()
        for a in subsets:
            if a:
                too_long = bad[a] is not False and bad[a] == u
                step = rng.choice([-9.0, 9.0]) if too_long else rng.choice([-1, 1, rng.random()])
                at[a] = at[a[:-1]] + step
                long |= {a} if too_long else set()
        yield at, long


@pytest.mark.slow
@pytest.mark.parametrize("people", [2, 3])
def test_what_is_charged_for_bad_sets_covers_every_choice_of_bad_steps(people, monkeypatch):
    """Public dither of 12 values; a step of a set is too long for one of them, or for none."""
    dither, rng = 12, np.random.default_rng(people)
    monkeypatch.setattr(costs.grid, "DITHER_FAILURE", 1 / dither)
    subsets = [a for j in range(people + 1) for a in itertools.combinations(range(people), j)]
    closest, uncovered = math.inf, 0
    for _ in range(60):
        q, z, eps = rng.choice([0.1, 0.4]), rng.choice([0.7, 2.0]), rng.choice([0.0, 0.3, 2.0])
        fits = rng.integers(1, people + 1)  # more records than that are drawn again
        law = {a: q ** len(a) * (1 - q) ** (people - len(a)) for a in subsets if len(a) <= fits}
        full = sum(law.values())
        attained = 0.0
        for one, two in zip(drawn_steps(rng, subsets, dither), drawn_steps(rng, subsets, dither),
                            strict=True):
            p, other = ([(w / full, at[a]) for a, w in law.items()] for at in (one[0], two[0]))
            attained += divergence(p, other, eps, z) / dither
        ((pair,), _), = dominating.KINDS["poisson"](PrivacyLoss("poisson", z, q), 1, RO, people)
        pairs = float(pair.right(np.array([eps]))[0])
        charged = costs._bad_sets.__wrapped__(people, q)
        assert attained <= pairs + charged + 1e-9
        closest, uncovered = min(closest, pairs + charged - attained), uncovered + (
            attained > pairs + 1e-6)
    assert closest < 0.1
    assert uncovered > 5  # bad sets do show, and the pair alone does not cover them


@pytest.mark.slow
@pytest.mark.parametrize("z", [2.0, 50.0])
def test_failures_of_sets_that_are_not_in_a_sample_cost_nothing(z):
    """At k = 68 and above epsilon was infinite, or that of the lemma on groups."""
    made = repeat(jmm.Poisson(rate=0.01), 1000, z)
    (cost,) = made.charges(RO)
    for k in (68, 100):
        actual = curve.dearest(made, 1e-6, RO, k)
        described = curve.charge_epsilon(cost.described(), 1e-6, RO, k)
        assert described <= actual.epsilon <= described * (1 + 1e-6)
        assert not actual.lemma
    assert cost.failures(68) < 1e-22
    assert cost.failures(1) == cost.failure


# ---- the smaller of two bounds -----------------------------------------------------------------

RUNS = {
    "poisson": repeat(jmm.Poisson(rate=0.05), 1000, 20.0),
    "small": repeat(jmm.FixedSize(batch=2), 20, 20.0),
    "half": repeat(jmm.FixedSize(batch=15), 20, 20.0),
    "replacement": repeat(jmm.FixedSize(batch=4, replacement=True), 20, 20.0),
    "full": repeat(jmm.Full(), 20, 80.0),
    "sizes": jmm.Repeat(times=5, query=jmm.GroupGradients(
        clip=1.0, noise_multiplier=20.0, sampling=jmm.FixedSize(batch=4), sizes=(20, 33, 70))),
}


@pytest.mark.slow
@pytest.mark.parametrize("made", list(RUNS.values()), ids=list(RUNS))
def test_epsilon_grows_with_the_records_of_a_person(made):
    actual = [jmm.epsilon(made, 1e-6, people=k) for k in (1, 2, 5, 6, 18, 20)]
    assert all(a <= b * (1 + 1e-4) for a, b in itertools.pairwise(actual))
    assert actual[-1] < math.inf


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "k"), [("small", 19), ("half", 6)])
def test_the_lemma_counts_where_it_is_the_smaller(kind, k):
    made, delta = RUNS[kind], 1e-6
    actual = curve.dearest(made, delta, RO, k)
    (cost,) = made.charges(RO)
    assert actual.lemma
    assert actual.epsilon < 0.9 * curve.charge_epsilon(cost, delta, RO, k)
    e = actual.epsilon / k
    assert jmm.delta(made, e) * curve.factor(e, k) <= delta * (1 + 1e-3)
    assert jmm.delta(made, actual.epsilon, people=k) <= delta * (1 + 1e-3)
    answer = jmm.accounting.calibrate_noise(made, 1.0, delta, people=k)
    assert 0.998 < jmm.epsilon(answer, delta, people=k) <= 1


@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 1e-4, 0.3, 5.0])
def test_the_factor_of_the_lemma_is_a_geometric_sum(epsilon):
    for k in (1, 2, 7, 100):
        exact = mp.fsum(mp.exp(j * mp.mpf(epsilon)) for j in range(k))
        assert exact <= curve.factor(epsilon, k) <= exact * (1 + mp.mpf(10) ** -11)
    assert curve.factor(1e-9, 2**31 - 1) == pytest.approx(1e9 * math.expm1(2.147483647), rel=1e-8)


def test_the_first_bound_counts_where_it_is_the_smaller():
    for kind in ("poisson", "full", "sizes"):
        assert not curve.dearest(RUNS[kind], 1e-6, RO, 5).lemma


def test_failures_are_the_largest_of_any_place():
    """Not all of the records need be where epsilon is largest."""
    near, far = (jmm.Repeat(times=times, query=jmm.Query(
        clip=Saddle(1.0, None), noise_multiplier=Saddle(z, None), population=100,
        parameters=parameters)) for times, z, parameters in ((1, 5.0, 10), (50, 50.0, 10**6)))
    full = jmm.Parallel(parts=(near, far))
    charged = curve.anywhere(full.charges(RO))
    worst = jmm.Parallel(parts=(far,)).charges(RO)[0]
    assert charged[0].gaussian == near.charges(RO)[0].gaussian > worst.gaussian
    assert all(cost.law_error == worst.law_error and cost.failure == worst.failure
               for cost in charged)


# ---- groups of several sizes -------------------------------------------------------------------


def hits(n, k, m):
    return [Fraction(math.comb(k, j) * math.comb(n - k, m - j), math.comb(n, m))
            if m - j <= n - k else Fraction(0) for j in range(min(k, m) + 1)]


def test_hits_are_stochastically_most_of_all_records_in_the_smallest_group():
    for n in range(2, 9):
        for k, m in itertools.product(range(1, n + 1), repeat=2):
            least = hits(n, k, m)
            for more, fewer in itertools.product(range(4), range(k + 1)):
                other = hits(n + more, fewer, m)
                for j in range(1, min(k, m) + 1):
                    assert sum(other[j:]) <= sum(least[j:])


@pytest.mark.parametrize("replacement", [False, True])
def test_a_larger_group_is_dominated_by_the_smallest(replacement):
    """Its profile, and explicit releases of all hits: others 0, and each record one way."""
    eps, x = np.array([0.0, 0.2, 1.0]), np.linspace(-20, 20, 20_001)
    for n, k, m, z in itertools.product((5, 7), (2, 3), (1, 2), (0.5, 1.5)):
        least = gaussian.Profile(n, m, z, replacement, k)(eps)
        for more, fewer in itertools.product((0, 1, 6), range(1, k + 1)):
            other = gaussian.Profile(n + more, m, z, replacement, fewer)(eps)
            assert np.all(other <= least * (1 + 1e-9))
            law = (stats.binom(m, fewer / (n + more)).pmf(range(m + 1)) if replacement
                   else np.array(hits(n + more, fewer, m), float))
            for near, far in ((0.5, -0.5), (1.0, 0.0)):  # one slot moves by 1
                p, q = (sum(w * stats.norm.pdf(x, j * at, z) for j, w in enumerate(law))
                        for at in (near, far))
                attained = [np.maximum(p - math.exp(e) * q, 0).sum() * (x[1] - x[0]) for e in eps]
                assert np.all(attained <= least + 1e-6)


def test_groups_of_several_sizes_cost_what_the_smallest_does():
    def run(sizes, sampling):
        return jmm.Repeat(times=5, query=jmm.GroupGradients(
            clip=1.0, noise_multiplier=2.0, sampling=sampling, sizes=sizes))

    for sampling in (jmm.FixedSize(batch=10), jmm.FixedSize(batch=10, replacement=True)):
        alike, apart = run((500, 500), sampling), run((500, 800), sampling)
        assert apart.supports_group_privacy()
        for k in (1, 5, 20):
            one, other = (jmm.epsilon(made, 1e-6, people=k) for made in (alike, apart))
            assert one == pytest.approx(other, rel=1e-6)
        assert other < 18  # at k = 20
    full = run((10, 30), jmm.FixedSize(batch=10))  # all of the smaller group
    assert jmm.epsilon(full, 1e-6, people=3) == pytest.approx(
        jmm.epsilon(run((10,), jmm.Full()), 1e-6, people=3), rel=1e-6)


def test_sums_of_powers_do_not_overflow_before_they_are_infinite():
    for k in (2, 3, 7):
        for epsilon in (0.0, 1e-9, 0.3, 40.0, 689.0 / (k - 1)):
            exact = sum(mp.exp(j * mp.mpf(epsilon)) for j in range(k))
            assert exact <= curve.factor(epsilon, k) < exact * (1 + mp.mpf(1e-10))
    assert curve.factor(700.0, 2) == math.inf


def test_what_may_fail_in_any_part_is_charged_wherever_the_records_are():
    """One record in a cheap part of many releases, another in the dear part of few."""
    cheap, dear = (repeat(jmm.Full(), 1000, z, times) for z, times in ((5e4, 10**6), (8.0, 1)))
    both = jmm.Parallel(parts=(cheap, dear))
    # the rounding of the many releases takes nine tenths of delta
    delta = cheap.charges(RO)[0].failures(2) / 0.9
    alone = jmm.epsilon(dear, delta / 10, people=2)
    assert jmm.epsilon(cheap, delta, people=2) < 0.9 * alone
    assert alone * (1 - 1e-6) <= jmm.epsilon(both, delta, people=2) < 1.05 * alone
