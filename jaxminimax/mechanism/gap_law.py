"""The law of the gaps between sampled records, as it is drawn, and what it changes of a hit rate.

The number X of records between two sampled ones is geometric: P[X >= x] = r^x, r = 1 - q. Its
hexadecimal digits are independent: with s = r^(16^j),

    P[digit j > d] = (s^(d+1) - s^16) / (1 - s^16),        d = 0, ..., 14.

A sampler compares words of B bits with these thresholds, rounded down, so that a digit's realised
masses are within 2^-B of the true ones P_j. The last threshold is P[X >= 16^k], k digits being
drawn. Digits that are 0 up to a probability of 2^-96 are not drawn: if one is left out, 16^k is
added once where X >= 16^k, and twice or more would be a part of s^2 < 2^-192 (s = r^(16^k)).

**Lengths.** Fix L. With g the true law of a gap, G(y) = r^y = P[X >= y] that of the last one, which
leads past the end, and g~, G~ the realised ones, |g~/g - 1| and |G~/G - 1| are at most

    rho = max{ exp(sum_j 2^-B / P_j[d_j]) - 1,  (k + 1) 2^-B / r^y },     d_j, y the most below L,

for all x, y < L: P_j falls with d; and X >= y holds for the digits from a place on, if the others
are given, so exchanging one digit's law for the other moves P[X >= y] by one threshold's error.

**Theorem.** A sample of a capacity of c records is NaN if it is larger, and two data sets differ in
record i. One release is dominated, for every a of H_a, by that of a Poisson sample of rate q', but
for pi:

    q' = o / (1 + o),   o = q/(1-q) (1 + rho)^2 / (1 - rho),
    pi = (c + 1) (r^L + (k + 1) 2^-B) + (1 + rho)^(c+1) (1 + L q) r^(L-1)          (0 if L > n).

*Proof.* Condition on S, the sample without i. Its law is the same on both data sets. If S has more
than c records, both releases are NaN; if it has c, both are NaN where i is drawn and equal where it
is not. Else let a and b be the numbers of records between i and its neighbours in S. If
a + b + 1 < L,

    odds of i given S = g~(a) g~(b) / g~(a+b+1) <= (1+rho)^2 / (1-rho) g(a) g(b) / g(a+b+1) = o

(G for g where b leads past the end; either way the last ratio is q/(1-q)). A smaller rate q~ is
dominated: (1-q~) N + q~ P = (1-t) N + t [(1-q') N + q' P] with t = q~/q', the same for the other
data set, and H is jointly convex. The remaining S have the same probability on both data sets, and
are charged in full. There the sample S or S + i has a realised gap of at least L, one of at most
c + 1 gaps: the first term. Or all its gaps are shorter, so its probability is at most (1+rho)^(c+1)
times the true one, and a + b >= L - 1, which for true geometric a and b, cut at the ends of the
data, has probability at most r^(L-1) + (L-1) q r^(L-1). QED

So no term grows with e^epsilon, and nothing is charged for the capacity. That holds for adding or
removing a record as well, because an absent record keeps its number: it is drawn or not, and takes
a slot. (With several records of one person `rows_error` is charged instead, in total variation.)
"""

import functools
import math
from typing import NamedTuple

import numpy as np

WORDS = 5  # of 32 bits that decide a digit
BITS = 32 * WORDS
DIGIT = 4  # bits of a digit
FAILURE = 1e-28  # that much of pi, at most, if rounding were exact
_DRAWN = 96  # a digit is drawn if it is not 0 with a probability of 2^-96


@functools.lru_cache(maxsize=64)
def limits(rate: float, population: int, bits: int = BITS,
           digit: int = DIGIT) -> tuple[tuple[int, ...], ...]:
    """floor(2^bits P[digit j > d]) for the digits that are drawn, and last for P[X >= 16^k].

    Args:
      rate: q in (0, 1].
      population: n.
      bits: B.
      digit: bits of a digit, 4 but for tests.
    """
    precision, base = 320 + bits, 2**digit
    one = 1 << precision
    numerator, denominator = float(rate).as_integer_ratio()
    s = ((denominator - numerator) << precision) // denominator  # fixed point
    rows: list[tuple[int, ...]] = []
    for _ in range(max(1, -(-(population - 1).bit_length() // digit))):
        powers = [s]  # s^1 ... s^16
        for _ in range(base - 1):
            powers.append((powers[-1] * s) >> precision)
        row = tuple(((p - powers[-1]) << bits) // (one - powers[-1]) for p in powers[:-1])
        if not row[0] >> max(bits - _DRAWN, 0):
            break
        rows.append(row)
        s = powers[-1]
    return *rows, ((s << bits) >> precision,) + (0,) * (base - 2)


@functools.lru_cache(maxsize=64)
def thresholds(rate: float, population: int) -> np.ndarray:
    """`limits` as words, the highest first, uint32 `[k + 1, 15, WORDS]`."""
    parts = [[[(t >> 32 * i) & 0xFFFFFFFF for i in reversed(range(WORDS))] for t in row]
             for row in limits(rate, population)]
    return np.array(parts, np.uint32)


class Realised(NamedTuple):
    """How a Poisson sampler's realised law is charged.

    Attributes:
      longest: L.
      gap: rho, the relative error of the law of one gap below L.
      long: at most the probability that one gap is L or more, under either law.
      apart: at most the true probability that the neighbours of a record are further apart.
    """

    longest: int
    gap: float
    long: float
    apart: float

    def sample(self, gaps: int) -> float:
        """The relative error of the law of so many gaps."""
        exponent = gaps * math.log1p(self.gap)
        return math.expm1(exponent) if exponent < 1 else math.inf

    def rate(self, rate: float) -> float:
        """q', rounded up; 1, which charges everybody as read, where the law is off by much."""
        if rate == 1 or not self.gap < 0.1:
            return 1.0
        more = math.expm1(2 * math.log1p(self.gap) - math.log1p(-self.gap))
        # o/(1 + o) = q (1 + x) / (1 + q x) <= q + q (1 - q) x
        return min(1.0, (rate + rate * (1 - rate) * more) * (1 + 2.0**-50))

    def failure(self, gaps: int) -> float:
        """pi, for a capacity of one record less."""
        if not self.gap < 0.1:
            return 0.0  # a rate of 1 fails by nothing
        return gaps * self.long + ((1 + self.sample(gaps)) * self.apart if self.apart else 0.0)


def _left(rate: float, length: float) -> float:
    """r^length."""
    return math.exp(length * math.log1p(-rate)) if length else 1.0


def longest_gap(rate: float, population: int, gaps: int) -> int:
    """L: the least for which samples with longer gaps are charged less than `FAILURE`.

    Public: it follows from q, n and the capacity. n + 1, which no gap reaches, if that is less.
    """
    def rare(length: int) -> bool:
        return (gaps * _left(rate, length)
                + (1 + length * rate) * _left(rate, length - 1)) <= FAILURE

    low, high = 1, population + 1  # `rare` falls with the length
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if rare(middle) else (middle + 1, high)
    return high


def _digits_error(rate: float, population: int, longest: int, bits: int, digit: int) -> float:
    """sum_j 2^-B / P_j[d_j] over digits of gaps below L; infinite if one has no probability."""
    k, base = len(limits(rate, population, bits, digit)) - 1, 2**digit
    most = min(longest, population) - 1
    if 2 * base**k <= most:
        return math.inf  # a digit that is not drawn would be needed
    logs = []
    for j in range(k):
        s = base**j * math.log1p(-rate)
        d = min(base - 1, most >> digit * j)
        logs.append(d * s + math.log(math.expm1(s) / math.expm1(base * s)))
    beyond = _left(rate, base**k)  # the last threshold makes a digit as well: 0, but for this
    logs.append(math.log1p(-beyond))
    if base**k <= most:
        logs.append(math.log(beyond) + math.log1p(-beyond) if beyond else -math.inf)
    return _unit(bits) * math.fsum(math.exp(-x) for x in logs) if min(logs) > -700 else math.inf


def _end_error(rate: float, population: int, longest: int, bits: int, digit: int) -> float:
    """(k + 1) 2^-B / r^y of the last gap, y below L."""
    digits = len(limits(rate, population, bits, digit))
    return digits * _unit(bits) / max(_left(rate, min(longest - 1, population)), 1e-300)


def _unit(bits: int) -> float:
    """2^-B, and what fixed-point and floating-point numbers add."""
    return 2.0**-bits * (1 + 1e-6)


def realised(rate: float, population: int, longest: int, bits: int = BITS,
             digit: int = DIGIT) -> Realised:
    """The realised law of gaps below `longest`; see the module's docstring.

    Args:
      rate: q in (0, 1).
      population: n.
      longest: L.
      bits: B.
      digit: as of `limits`.
    """
    given = (rate, population, longest, bits, digit)
    digits = _digits_error(*given)
    gap = max(math.expm1(digits), _end_error(*given)) * (1 + 1e-6) if digits < 1 else math.inf
    if longest > population:
        return Realised(longest, gap, 0.0, 0.0)
    long = _left(rate, longest) + len(limits(rate, population, bits, digit)) * _unit(bits)
    apart = (1 + longest * rate) * _left(rate, longest - 1)
    return Realised(longest, gap, long * (1 + 1e-6), apart * (1 + 1e-6))


@functools.lru_cache(maxsize=256)
def charged_law(rate: float, population: int, gaps: int) -> Realised:
    """How samples of at most `gaps` - 1 records are charged."""
    if rate == 1:  # every word is below or above every threshold
        return Realised(population + 1, 0.0, 0.0, 0.0)
    return realised(rate, population, longest_gap(rate, population, gaps))


def rows_error(rate: float, population: int, capacity: int) -> float:
    """Total variation of a realised sample from the described law."""
    if rate == 1:
        return 0.0
    # every threshold is rounded down by less than 2^-B
    return (capacity + 1) * len(limits(rate, population)) * 2.0**(DIGIT - BITS)
