"""The law of a Poisson sample's size, as it is drawn, and what it changes of a hit rate.

A Poisson sample of n records at rate q is a uniform subset of M of them, M ~ Binomial(n, q). The
subset is uniform without any error (`distinct`); M is drawn by inversion of B = 160 random bits W:

    M = #{k: W < t_k},     t_k = floor(2^B P[M > k]),     k = 0, ..., c,

with thresholds from exact integers. So the realised mass p~(k) of a size is within 2^-B of p(k), or
2^(1-B) for the least one, which takes the negligible ones below it as well. A set S of records is
drawn with probability P~[S] = p~(|S|) / C(n, |S|). What is not in S is not read.

**Theorem.** A sample of more than c records, or of more than the |T| rows that `distinct` has for
it, is not used: T and M are drawn again, independently, until the sample fits, which any does with
probability Z. T is drawn without looking at the data or at M. Two data sets differ in record i. For
0 <= a <= b <= min(c, n), one release is dominated, for every hockey-stick divergence, by that of
a Poisson sample of rate q', but for pi / Z:

    q' = o / (1 + o),     o = q/(1-q) (1 + rho) / (1 - rho),     rho = max |p~(k)/p(k) - 1|,

over a <= k <= b, and pi = P~[M < a] + P~[M <= a] + P~[M >= b] + P~[M > b], the first two not if
a = 0, the last two not if b = min(c, n).

*Proof.* What is used has the law of one attempt given that it fits: those before are independent
of it, and nothing depends on them. Condition on T and on S, the sample without i, m = |S|. Their
law is the same on both data sets. If m = min(c, |T|), i is not drawn, for the sample would not fit,
and the releases are equal. Else both S and S + i fit, with probabilities of P~ times one factor; if
a <= m < b,

    odds of i given S = p~(m+1)/p~(m) C(n, m)/C(n, m+1)
                     <= (1+rho)/(1-rho) p(m+1)/p(m) C(n, m)/C(n, m+1) = o,

since the odds are q/(1-q) under the true law. A smaller rate r is dominated: (1-r) N + r P =
(1-t) N + t [(1-q') N + q' P] with t = r/q', the same for the other data set, and hockey-stick
divergences are jointly convex. The remaining S have the same probability on both data sets and are
charged in full: those of m records, with i or without, have at most (p~(m) + p~(m+1)) / Z. QED

So no term grows with e^epsilon, and nothing is charged for the capacity. That holds for adding or
removing a record as well, because an absent record keeps its number: it is drawn or not, and takes
a slot. (Cutting a large sample down to c would be another law: many samples would have c records,
so that given c - 1 others a record would be drawn with much more than q.)

**Releases that cannot hold the record.** The others fill the slots, m = J = min(c, |T|), with one
probability p_0 on both data sets, whatever is released before, and the releases are then equal. So
by joint convexity over that event, with F the profile of the pair of rate q',

    H_a <= (1 - p_0) F(a) + p_0 (1 - a)_+,     a > 0,

which is the profile of one pair, so it composes as one. It falls with p_0, as F(a) >= (1 - a)_+: a
p_0 that is rounded down is right. Rate r = q' (1 - p_0) is not: where others' records tell m, a
release of rate q' or 0 is less private than one of rate r, for F is convex in the rate. Of k
records p_0 is the probability that the n - k others fill the slots, which is smaller. As in every
charge of samples, nobody may learn the size of the whole sample, by a clock either.

**Several records of one person.** Given T and S, now the sample without any of k records, the
described law draws each of the k independently, given that there are at most J = min(c, |T|) - m of
them. These can be drawn as a subset of a set H of independent coins at rate q, chosen by further
coins that are the same on both data sets (the condition is on a falling set: Harris' inequality and
Strassen's theorem). The pair that is charged for k records bounds every assignment of displacements
of length at most |H| to sets H (`accounting.pairs`), so these as well. The realised law is within
1.5 `rows_error` / Z of the described one, in total variation, which is charged: given a set A, of
probability Z by P, P~ and P differ by |P~(x) - P(x)| / Z + P~(x) |1/P~(A) - 1/Z| at x at most; over
x in A that adds up to three times their total variation, over Z, and half of it counts.

**Masses** of this law, of binomial and of hypergeometric ones are computed from the likeliest one
outwards, by the ratios of neighbours, in integers that are rounded down. Ratios are at most 1, so
each of N masses is off by less than N. Masses that are not listed round to 0, and add up to less
than N^2: the last one listed is below N, as the masses are log-concave it is followed by ratios of
at most r with r^N <= N / 2^bits, and r / (1 - r) <= N / ln(2^bits / N).
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

WORDS = 5  # of 32 bits that decide a size
BITS = 32 * WORDS
_MASS = 288  # bits of the likeliest mass of a `Law`


class Law(NamedTuple):
    """Bounds on P[k] for k = first, first + 1, ....

    Attributes:
      first: the least k that is not negligible.
      upper: an upper bound on each P[k], by k from `first` on.
      none: a lower bound on P[0].
      rest: an upper bound on the total probability of all k that are not listed.
    """

    first: int
    upper: tuple[float, ...]
    none: float
    rest: float


def outwards(middle: int, last: int, ratio: Callable[[int], tuple[int, int]],
             bits: int) -> tuple[int, tuple[int, ...]]:
    """Returns the least k that is not negligible, and the masses from it on, up to one factor.

    Args:
      middle: the likeliest k.
      last: the largest.
      ratio: P[k + 1] / P[k] as numerator and denominator.
      bits: the mass of `middle` is 2^bits.
    """
    down, up = [], [1 << bits]
    while up[-1] and middle + len(up) <= last:
        grows, shrinks = ratio(middle + len(up) - 1)
        up.append(up[-1] * grows // shrinks)
    mass, k = up[0], middle
    while mass and k:
        grows, shrinks = ratio(k - 1)
        mass = mass * shrinks // grows
        down.append(mass)
        k -= 1
    return k, (*reversed(down), *up)


def binomial_masses(trials: int, hit: int, outcomes: int, bits: int) -> tuple[int, tuple[int, ...]]:
    """Returns `outwards` for the number of hits in trials of probability hit / outcomes < 1."""
    miss = outcomes - hit
    return outwards(min(trials, (trials + 1) * hit // outcomes), trials,
                    lambda k: ((trials - k) * hit, (k + 1) * miss), bits)


@functools.lru_cache(maxsize=256)
def binomial(trials: int, hit: int, outcomes: int) -> Law:
    """Bounds the law of the number of hits in trials, each with probability hit / outcomes."""
    if hit >= outcomes:
        return Law(trials, (1.0,), 0.0 if trials else 1.0, 0.0)
    return _enclosed(*binomial_masses(trials, hit, outcomes, _MASS), trials)


@functools.lru_cache(maxsize=256)
def hypergeometric(population: int, marked: int, draws: int) -> Law:
    """Bounds the law of the marked records in a subset of `draws`; marked + draws <= n."""
    unmarked = population - marked - draws
    largest = min(marked, draws)
    masses = outwards(min(largest, (draws + 1) * (marked + 1) // (population + 2)), largest,
                      lambda k: ((marked - k) * (draws - k), (k + 1) * (unmarked + k + 1)), _MASS)
    return _enclosed(*masses, largest)


def _enclosed(first: int, masses: tuple[int, ...], last: int) -> Law:
    off, total = len(masses), sum(masses)
    all_listed = first == 0 and len(masses) == last + 1
    none = masses[0] / (total + 2 * off**2) if first == 0 else 0.0

    def above(mass: int) -> float:
        return math.nextafter(mass / total, math.inf)

    return Law(first, tuple(above(mass + off) for mass in masses), math.nextafter(none, 0.0),
               0.0 if all_listed else above(off**2))


@functools.lru_cache(maxsize=64)
def masses(rate: float, population: int, bits: int = BITS) -> tuple[int, tuple[int, ...]]:
    """The least size that is not negligible, and the masses from there on, up to one factor.

    None of N masses is off by N or more, and those left out add up to less than N^2. So for
    N < 2^32 probabilities are off by less than 2^-63 of 2^-bits.

    Args:
      rate: q in (0, 1).
      population: n.
      bits: B.
    """
    # 128 bits beyond those of the thresholds
    return binomial_masses(population, *float(rate).as_integer_ratio(), bits + 128)


@functools.lru_cache(maxsize=64)
def limits(rate: float, population: int, capacity: int,
           bits: int = BITS) -> tuple[int, tuple[int, ...]]:
    """A size that samples have at least, and t_k from there on to k = `capacity`.

    Args:
      rate: q in (0, 1).
      population: n.
      capacity: c.
      bits: B.
    """
    first, mass = masses(rate, population, bits)
    total = beyond = sum(mass)
    table = []
    for k, x in enumerate(mass, first):
        beyond -= x
        if k <= capacity:
            # t_k = floor(2^B P[M > k]), at most 2^B - 1 to fit in B bits
            table.append(min((beyond << bits) // total, (1 << bits) - 1))
    # below, all are those of a size that is exceeded all but surely
    skipped = sum(t == (1 << bits) - 1 for t in table[:-1])
    return first + skipped, tuple(table[skipped:])


@functools.lru_cache(maxsize=64)
def thresholds(rate: float, population: int, capacity: int) -> tuple[int, np.ndarray]:
    """`limits` as words, the highest first, uint32 `[sizes, WORDS]`."""
    first, table = limits(rate, population, capacity)
    return first, np.array([[(t >> 32 * i) & 0xFFFFFFFF for i in reversed(range(WORDS))]
                            for t in table], np.uint32)


class Realised(NamedTuple):
    """The charge of a Poisson sampler's realised law.

    Attributes:
      error: rho, the relative error of the masses of ordinary sizes.
      failure: pi, of the others.
    """

    error: float
    failure: float

    def rate(self, rate: float) -> float:
        """The rate q', rounded up; 1, which charges everybody as read, if the law is far off."""
        if rate == 1 or not self.error < 0.1:
            return 1.0
        # x = (1 + rho) / (1 - rho) - 1, by which the odds of being drawn grow
        odds_growth = math.expm1(math.log1p(self.error) - math.log1p(-self.error))
        # o/(1 + o) = q (1 + x) / (1 + q x) <= q + q (1 - q) x
        return min(1.0, (rate + rate * (1 - rate) * odds_growth) * (1 + 2.0**-50))


def ordinary(rate: float, population: int, capacity: int) -> tuple[int, int]:
    """The ends a and b, the least wide for which the others are charged at most 1e-28."""
    first, mass = masses(rate, population)
    total, low, high = sum(mass), 0, min(capacity, population)
    failure = 1e-28  # pi, at most, if rounding were exact
    allowed = int(total * failure) // 4  # four tails share it
    below = above = 0
    # a: the largest k with P[M <= k] of at most a quarter of it
    for k, x in enumerate(mass, first):
        below += x
        if below > allowed:
            break
        low = k
    # b: the least k with P[M >= k] of at most a quarter of it
    for k, x in zip(reversed(range(first, first + len(mass))), reversed(mass), strict=True):
        above += x
        if above > allowed:
            break
        high = min(high, k)
    return min(low, high), high


def realised(rate: float, population: int, capacity: int, low: int, high: int,
             bits: int = BITS) -> Realised:
    """Charges sizes that are ordinary from `low` to `high`; see the module's docstring.

    Args:
      rate: q in (0, 1).
      population: n.
      capacity: c.
      low: a.
      high: b.
      bits: B.
    """
    first, mass = masses(rate, population, bits)
    start, table = limits(rate, population, capacity, bits)
    total = sum(mass)

    def true(k: int) -> int:
        return mass[k - first] if 0 <= k - first < len(mass) else 0

    def above(k: int) -> int:
        """The numbers 2^B P~[M > k], k <= capacity."""
        if k < start:
            return 1 << bits
        return table[k - start] if k - start < len(table) else 0

    # falling outwards, the masses are least at the ends
    smallest = min(true(low), true(high))
    # no mass is off by more than 2^(1-B) of all of them; the error is relative to the least one
    error = 2.0 ** (1 - bits) * (1 + 1e-6) * (total / smallest) if smallest else math.inf
    outside = 0
    # pi = P~[M < a] + P~[M <= a] + P~[M >= b] + P~[M > b], times 2^B
    if low > 0:
        outside += 2 * (1 << bits) - above(low - 1) - above(low)
    if high < min(capacity, population):
        outside += above(high - 1) + above(high)
    return Realised(error * (1 + 1e-6), outside / (1 << bits) * (1 + 1e-6))


@functools.lru_cache(maxsize=256)
def charged_law(rate: float, population: int, capacity: int) -> Realised:
    """Charges samples of at most `most` records."""
    if rate == 1:
        return Realised(0.0, 0.0)  # everybody is read
    return realised(rate, population, capacity, *ordinary(rate, population, capacity))


def rows_error(rate: float, population: int, capacity: int) -> float:
    """Total variation of a realised sample from the described law, until it is too large."""
    if rate == 1:
        return 0.0
    # every threshold is rounded down by less than 2^-B, and those below the first are at least that
    return (len(limits(rate, population, capacity)[1]) + 2) * 2.0**-BITS
