"""The law of the gaps between sampled records, as it is drawn, and what it changes of a hit rate.

The number X of records between two sampled ones is geometric: P[X >= x] = r^x, r = 1 - q. Write
X = L + 2^k H with 0 <= L < 2^k, and s = r^(2^k). Then

    P[X = l + 2^k h] = (1 - r) r^l s^h = [(1 - r) r^l / (1 - s)] [(1 - s) s^h],

so that L and H are independent, H geometric and L a geometric variable cut at 2^k. By the same
identity the digits of L are independent, of whatever widths: for a digit of w bits that begins at
bit p, and t = r^(2^p),

    P[digit > d] = (t^(d+1) - t^(2^w)) / (1 - t^(2^w)),  d <= 2^w - 2;     P[H > h] = s^(h+1).

A sampler compares words of B bits with these thresholds, rounded down, so that a digit's realised
masses are within 2^-B of the true ones P_j. Those of H end where they are 0 when rounded down, and
at h = ceil(n / 2^k): X >= n whatever else is drawn, and 2^k H + L stays below 2^32 for n < 2^31.
`widths` chooses k so that the first 15 thresholds of H are nearly always enough.

**Lengths.** Fix L. With g the true law of a gap, G(y) = r^y = P[X >= y] that of the last one, which
leads past the end, and g~, G~ the realised ones, |g~/g - 1| and |G~/G - 1| are at most

    rho = max{ exp(sum_j 2^-B / P_j[d_j]) - 1,  m 2^-B / r^y },     d_j, y the most below L,

for all x, y < L and the m digits, H among them: P_j falls with d; and X >= y holds for the digits
from a place on, if the others are given, so exchanging one digit's law for the other moves
P[X >= y] by one threshold's error.

**Theorem.** A sample of a capacity of c records is NaN if it is larger, and two data sets differ in
record i. One release is dominated, for every a of H_a, by that of a Poisson sample of rate q', but
for pi:

    q' = o / (1 + o),   o = q/(1-q) (1 + rho)^2 / (1 - rho),
    pi = (c + 1) (r^L + m 2^-B) + (1 + rho)^(c+1) (1 + L q) r^(L-1)          (0 if L > n).

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
DIGIT = 4  # bits of a digit, at most
FAST = 2**DIGIT - 1  # thresholds of a digit that are always compared
FAILURE = 1e-28  # that much of pi, at most, if rounding were exact
_SELDOM = 40_960_000  # one over P[H >= FAST], at least: 4096 gaps need more in one of 10^4 draws


def _powers(rate: float, bits: int) -> tuple[int, int]:
    """R = 1 - q in fixed point, and how many bits of that are fractions."""
    precision = 320 + bits
    numerator, denominator = float(rate).as_integer_ratio()
    return ((denominator - numerator) << precision) // denominator, precision


@functools.lru_cache(maxsize=64)
def widths(rate: float, population: int) -> tuple[int, ...]:
    """The bits of each digit of L, the lowest first; their sum is k.

    The least k for which 2^k >= n, so that H tells no more than whether a gap leads past the end,
    or P[H >= FAST] = r^(FAST 2^k) is small.
    """
    r, precision = _powers(rate, BITS)
    k = 0
    while 1 << k < population:
        power = r
        for _ in range(FAST - 1):
            power = (power * r) >> precision
        if power * _SELDOM <= 1 << precision:
            break
        k, r = k + 1, (r * r) >> precision
    whole, left = divmod(k, DIGIT)
    return (DIGIT,) * whole + (left,) * (left > 0)


@functools.lru_cache(maxsize=64)
def limits(rate: float, population: int, bits: int = BITS,
           cut: tuple[int, ...] | None = None) -> tuple[tuple[int, ...], ...]:
    """floor(2^bits P[digit > d]) for the digits of L, the lowest first, and last for H.

    Args:
      rate: q in (0, 1].
      population: n.
      bits: B.
      cut: bits of the digits; None: `widths`.
    """
    cut = widths(rate, population) if cut is None else cut
    s, precision = _powers(rate, bits)
    one = 1 << precision
    rows: list[tuple[int, ...]] = []
    for width in cut:
        powers = [s]  # s^1 ... s^(2^w)
        for _ in range(2**width - 1):
            powers.append((powers[-1] * s) >> precision)
        rows.append(tuple(((p - powers[-1]) << bits) // (one - powers[-1]) for p in powers[:-1]))
        s = powers[-1]
    last: list[int] = []
    power = s
    while len(last) < -(-population >> sum(cut)) and power << bits >> precision:
        last.append(power << bits >> precision)
        power = (power * s) >> precision
    return *rows, tuple(last or [0])


@functools.lru_cache(maxsize=64)
def thresholds(rate: float, population: int) -> np.ndarray:
    """`limits` as words, the highest first, uint32 `[digits, most of a digit, WORDS]`, then 0."""
    rows = limits(rate, population)
    most = max(FAST, *map(len, rows))
    parts = [[[(t >> 32 * i) & 0xFFFFFFFF for i in reversed(range(WORDS))]
              for t in row + (0,) * (most - len(row))] for row in rows]
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


def _digits_error(rate: float, population: int, longest: int, bits: int,
                  cut: tuple[int, ...] | None) -> float:
    """sum_j 2^-B / P_j[d_j] over digits of gaps below L; infinite if one has no probability."""
    most, logs, place = min(longest, population) - 1, [], 0
    for width in widths(rate, population) if cut is None else cut:
        s = 2**place * math.log1p(-rate)
        d = min(2**width - 1, most >> place)
        logs.append(d * s + math.log(math.expm1(s) / math.expm1(2**width * s)))
        place += width
    s = 2**place * math.log1p(-rate)
    logs.append((most >> place) * s + math.log(-math.expm1(s)))
    return _unit(bits) * math.fsum(math.exp(-x) for x in logs) if min(logs) > -700 else math.inf


def _end_error(rate: float, population: int, longest: int, bits: int,
               cut: tuple[int, ...] | None) -> float:
    """The error m 2^-B / r^y of the last gap, y below L."""
    digits = len(limits(rate, population, bits, cut))
    return digits * _unit(bits) / max(_left(rate, min(longest - 1, population)), 1e-300)


def _unit(bits: int) -> float:
    """2^-B, and what fixed-point and floating-point numbers add."""
    return 2.0**-bits * (1 + 1e-6)


def realised(rate: float, population: int, longest: int, bits: int = BITS,
             cut: tuple[int, ...] | None = None) -> Realised:
    """The realised law of gaps below `longest`; see the module's docstring.

    Args:
      rate: q in (0, 1).
      population: n.
      longest: L.
      bits: B.
      cut: as of `limits`.
    """
    given = (rate, population, longest, bits, cut)
    digits = _digits_error(*given)
    gap = max(math.expm1(digits), _end_error(*given)) * (1 + 1e-6) if digits < 1 else math.inf
    if longest > population:
        return Realised(longest, gap, 0.0, 0.0)
    long = _left(rate, longest) + len(limits(rate, population, bits, cut)) * _unit(bits)
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
    # every threshold is rounded down by less than 2^-B, and the first of H that is left out to 0
    each = sum(map(len, limits(rate, population))) + 1
    return (capacity + 1) * each * 2.0**-BITS
