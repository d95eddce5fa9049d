"""Integers of known law: floor(2^bits G), floor(2^22 E), an index; and how far they are from it."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks, programs, random_bits, tree
from jaxminimax.base.random_bits import fold_in, random_words
from jaxminimax.noise import _tables

__all__ = ["CHOICE_RATIO", "LAPLACE_RATIO", "LAPLACE_TAIL", "NORMAL_TAIL",
           "choice_tail", "chosen", "floored_laplace", "floored_normal", "normal_ratio"]

NORMAL_TAIL = 2.0**-166    # above P(|G| >= 15) = 2^-166.54
LAPLACE_RATIO = 2.0**-162  # see floored_laplace
LAPLACE_TAIL = 2.0**-184   # above P(|E| >= 128) = e^-128 = 2^-184.66
CHOICE_RATIO = 2.0**-160   # see chosen


def choice_tail(indices: int) -> float:
    """Bound on the total variation that `CHOICE_RATIO` leaves of `chosen`.

    Args:
      indices: the number p of indices that one is drawn from.

    Returns:
      tau = (p + 1) 2^-184, see `chosen`.

    Examples:
        >>> jmm.noise.choice_tail(10) < 1e-20
        True
    """
    return (indices + 1) * 2.0**-184


def normal_ratio(bits: int) -> float:
    """Bound on |ln(P'/P)|, P' the realised and P the ideal probability of a normal integer.

        normal_ratio(L) = 2^-85 (2^L + 16),

    for every integer x with -15 <= x 2^-L < 15. All others together have less than `NORMAL_TAIL`,
    under either law. For N numbers, drawn one after the other and added to integers that may depend
    on those before, this gives for every event, with rho = N normal_ratio, tau = N NORMAL_TAIL,

        P' <= e^rho P + tau  and  P <= e^rho P' + tau,

    and (epsilon, delta) of the ideal mechanism becomes
    (epsilon + 2 rho, e^rho delta + (1 + e^(epsilon + rho)) tau) of the realised one.

    Proof. The first two stages return a number only if it is floor(2^L q(U)) whatever the bits of U
    are that they have not read; q(u) is the inverse of u = P(|G| > x). The last one returns
    floor(2^L y), and |y - q(U)| < e = 2^-86 as long as q(U) <= 15 + e, which holds for no U below
    2^-167 = octave 166's left end. In units of 2^-92 = e / 64, y loses

        28 for the coefficients, rounded down, and 27 for the products, likewise (each of these is
           multiplied by powers of t <= 1 only),
        0.2 for the terms left out (0.129: the largest remainder of all cells, see the tables),
        2 for t, which has 96 bits, and 85 of them known at worst, in octave 166, whose cells have
           dq/dt < 0.0083,
        1 for bits of U after the 255th: q' = 1 / (2 phi(q)) <= 1 / (q u) by Mills' ratio:

    58.2 < 64. (U below 2^-167 gives y > 15, too: if its octave has no table, that of the last.) So
    {A = j}, A the magnitude, gains or loses at its two ends only. With f the density of |G|,
    w = 2^-L, a = j w, a + w <= 15 and c = a + w / 2 < 15,

        |P' - P| <= e f(a - e) + e f(a + w - e) <= 2 e f(a) (1 + 2^-81),
        P >= f(a) int_0^w e^(-c s) ds = f(a) (1 - e^(-c w)) / c >= f(a) / (c + 1 / w),

    hence |P' / P - 1| <= 2 e (2^L + 15) (1 + 2^-81); for the logarithm, 16 instead of 15 is ample.
    The sign is a bit of its own.

    Args:
      bits: L, the binary digits of a standard deviation.

    Returns:
      The bound for one number; n of them have n times it.

    Raises:
      ValueError: unless `bits` is an integer in [0, 22].

    Examples:
        >>> jmm.noise.normal_ratio(18) < 1e-19
        True
    """
    checks.count("bits", bits, low=0)
    checks.number("bits", bits, low=0, high=_tables.BITS, closed=True)
    return 2.0**-85 * (2.0**bits + 16)


DOUBT = np.int32(-2**31)  # no number is that small
# Fit and roundings of the first stage, in units of 2^-22, besides what the bits that are not drawn
# yet may move; the tests bound it cell by cell.
FIRST_ERROR = np.float32(2.0**-8)
_LANES = 32
_MANY = 2**14  # from which on some are in doubt in most draws


def floored_normal(key: jax.Array, size: int, bits: jax.typing.ArrayLike) -> jax.Array:
    """Independent integers floor(2^bits G), G ~ N(0, 1).

    See the package for the law and what is proved of it.

    Args:
      key: a typed key of threefry2x32 or rbg, used up by this draw.
      size: how many, below 2^31 - 32.
      bits: L of a standard deviation 2^L, a whole number in [0, 22]; may be traced, and may differ
        from lane to lane. The same key gives floors of the same real numbers, so that those for
        fewer bits are those for more, shifted.

    Returns:
      int32 `[size]`.

    Raises:
      ValueError: for a size or `bits` out of range, for keys as in `random_bits.random_words`.

    Examples:
        >>> draws = jmm.noise.floored_normal(jax.random.key(0), 4, 18)
        >>> draws.shape, draws.dtype.name
        ((4,), 'int32')
    """
    checks.count("size", size, low=0)
    checks.number("bits", bits, low=0, high=_tables.BITS, closed=True)
    checks.scalars(bits=bits)
    if jnp.result_type(bits).kind not in "iu":
        raise ValueError(f"bits must be whole, got {bits!r}.")
    if size >= 2**31 - _LANES:
        raise ValueError(f"{size} numbers are asked for, a key has less than 2^31: split it.")
    if size == 0:
        return jnp.zeros(0, jnp.int32)
    # (a shift out of range would be whatever the machine makes of it)
    shift = jnp.clip(_tables.BITS - jnp.asarray(bits, jnp.int32), 0, _tables.BITS)
    padded = -(-size // _LANES) * _LANES
    x = tree.materialise(lambda: first(random_words(key, (padded,)), shift))
    # 64 numbers are so seldom in doubt that no quicker stage is worth its compilation; and a
    # table's programs run too seldom for what is quicker, and takes longer to compile
    return _settled(key, x, shift, _MANY if programs.effort() else 64)[:size]


def normal_block(key: jax.Array, size: jax.Array, bits: jax.Array, block: int) -> jax.Array:
    """The numbers of `floored_normal(key, size, bits)` and, from there on, others, int32 `[block]`.

    `size` and `bits` are traced and in range, the key is one of threefry, `block` is a multiple of
    32 and at least `size`; numbers from `size` on are for nobody.
    """
    shift = _tables.BITS - bits
    padded = -(-size // _LANES) * _LANES
    x = tree.materialise(lambda: first(random_bits.words_at(key, padded, jnp.arange(block)), shift))
    return _settled(key, x, shift, _MANY, padded)


def first(word: jax.Array, shift: jax.Array) -> jax.Array:
    """The numbers of these words, int32 `[n]`; `DOUBT` where 31 bits, or float32, do not tell."""
    lower, upper, small = enclosed(word)
    doubt = ((lower ^ upper) >> shift != 0) | small
    return jnp.where(doubt, DOUBT, _signed(lower >> shift, word))


def enclosed(word: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Integers between which floor(2^22 |G|) lies, and whether they do not hold, of words `[n]`.

    The upper bit is the sign. The others, m, leave u = (m + V) / 2^31, V unknown in (0, 1), in one
    of 256 cells an octave. There 2^22 q(u) = base + c0 + c1 v + c2 v^2 up to half of |c1| (as much
    as V can move it) and `FIRST_ERROR`. Nothing holds below m = 2^18.
    """
    m = jax.lax.bitcast_convert_type(word & np.uint32(2**31 - 1), jnp.int32)
    # 24 bits of m, which float32 holds: a rounded m could be in the next cell
    bits = jax.lax.bitcast_convert_type((m & np.int32(-128)).astype(jnp.float32), jnp.int32)
    cells = _tables.FIRST.cells.bit_length() - 1
    cell = (bits >> (23 - cells)) - ((127 + 31 - _tables.FIRST.octaves) << cells)
    start = jax.lax.bitcast_convert_type(bits & np.int32(-1 << (23 - cells)), jnp.float32)
    v = (m - start.astype(jnp.int32)).astype(jnp.float32)
    row = jnp.maximum(cell, 0)
    base, c0, c1, c2 = (jnp.asarray(x).at[row].get(mode="promise_in_bounds")
                        for x in (_tables.tables().base, *_tables.tables().slopes))
    y = (c2 * v + c1) * v + c0
    error = FIRST_ERROR - np.float32(0.5) * c1
    # y - error > 0, so conversion rounds down
    return base + (y - error).astype(jnp.int32), base + (y + error).astype(jnp.int32), cell < 0


def _signed(magnitude: jax.Array, word: jax.Array) -> jax.Array:
    """Adds the sign: floor(-y) is -floor(y) - 1, the complement, unless y is whole."""
    return magnitude ^ (jax.lax.bitcast_convert_type(word, jnp.int32) >> 31)


def _capacity(size: int) -> int:
    """The number that are settled at once: the mean in doubt at 18 bits, and 8 deviations."""
    mean = 1e-3 * size
    return min(size, math.ceil(mean + 8 * math.sqrt(mean) + 2))


# traced once for all programs with so many numbers
@functools.partial(jax.jit, static_argnames="max_one_by_one")
def _settled(key: jax.Array, x: jax.Array, shift: jax.Array, max_one_by_one: int,
             drawn: jax.Array | None = None) -> jax.Array:
    """Replaces what is in doubt in `x`, int32 `[32 k]`: `max_one_by_one` or fewer one by one.

    Of the words of `drawn` numbers, or of as many as `x` has.
    """
    size = x.shape[0]
    count: Any = size if drawn is None else drawn
    fine = _tables.fine_key(key)
    capacity = _capacity(size)

    def settle_first(x: jax.Array) -> jax.Array:
        """Settles the first number that is still in doubt, in integers."""
        place = jax.lax.argmax(x == DOUBT, 0, jnp.int32)
        # 8 words of 32 bits: u has 255 of them after the sign
        words = _tables.words_of(key, fine, count, place[None], 4)
        value = _signed(_tables.last(words[:8, 0]) >> shift, words[0, 0])
        return jax.lax.dynamic_update_slice(x, value[None], [place])

    def one_by_one(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: jnp.any(x == DOUBT), settle_first, x)

    if size <= max_one_by_one:
        return jax.lax.cond(tree.in_any_lane(x == DOUBT), one_by_one, lambda x: x, x)

    lane = np.arange(_LANES, dtype=np.uint32)[:, None]
    flags = jnp.sum((x.reshape(_LANES, -1) == DOUBT).astype(jnp.uint32) << lane, 0,
                    dtype=jnp.uint32)
    total = jnp.sum(jax.lax.population_count(flags).astype(jnp.int32), dtype=jnp.int32)

    def all_of_them(x: jax.Array) -> jax.Array:
        def settle_block(k: jax.Array,
                         carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            """Settles that many of those in doubt, in float64, and returns whether one still is."""
            x, in_doubt = carry
            rank = k * capacity + jnp.arange(capacity, dtype=jnp.int32)
            live = rank < total
            place = tree.materialise(lambda: jnp.where(live, _tables.places(flags, rank), 0))
            word, second, third = _tables.words_of(key, fine, count, place, 1, rolled=size < _MANY)
            value, doubtful = _tables.middle(word, second, third, shift)
            value = jnp.where(doubtful, DOUBT, _signed(value, word))
            x = x.at[jnp.where(live, place, size)].set(value, mode="drop")
            return x, in_doubt | jnp.any(doubtful & live)

        x, in_doubt = jax.lax.fori_loop(0, -(-total // capacity), settle_block,
                                        (x, jnp.zeros((), bool)))
        return jax.lax.cond(tree.in_any_lane(in_doubt), one_by_one, lambda x: x, x)

    return jax.lax.cond(tree.in_any_lane(total > 0), all_of_them, lambda x: x, x)


DIGITS = 29  # those from 2^29 on, e^-128 of all numbers have one, are left out
DIGIT_WORDS = 8  # of 32 bits, that a digit is drawn from


def floored_laplace(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Independent integers floor(2^22 E), E with the density e^-|x| / 2, int32 of that shape.

    The magnitude A = floor(2^22 |E|) is geometric, P(A >= a) = e^(-a / 2^22), so that its binary
    digits are independent: with t_j = 2^(j - 22), P(digit j = 1) = 1 / (1 + e^(t_j)). Each of the
    lower 29 is drawn by 256 random bits against that probability, rounded down to 256 bits. One
    more bit is the sign: A, or its complement -A - 1. (For a handful of numbers: 233 words each.)

    The probability of every x with |x| < 2^29 is the ideal one up to a factor within
    exp(+-LAPLACE_RATIO): a digit's two probabilities are off by factors of at most
    1 +- 2^-256 (1 + e^(t_j)), the largest of which is below 2^-163.6, the sum over j below 2^-163;
    that numbers from 2^29 on are left out multiplies the rest by 1 / (1 - e^-128). Their
    probability is below LAPLACE_TAIL.

    Args:
      key: a typed key of threefry2x32 or rbg, used up by this draw.
      shape: of the result.

    Returns:
      int32 of that shape.

    Raises:
      ValueError: for keys and sizes as in `random_bits.random_words`.

    Examples:
        >>> draws = jmm.noise.floored_laplace(jax.random.key(0), (3,))
        >>> draws.shape, draws.dtype.name
        ((3,), 'int32')
    """
    size = math.prod(shape)
    drawn = random_words(key, (1 + DIGITS * DIGIT_WORDS, size))
    sign, magnitude = drawn[0], magnitudes(drawn[1:])
    return jax.lax.bitcast_convert_type(
        jnp.where(sign >> 31, ~magnitude, magnitude), jnp.int32).reshape(shape)


def magnitudes(words: jax.Array) -> jax.Array:
    """The magnitudes floor(2^22 |E|) < 2^29, by digits, of words `[29 * 8, n]`: uint32 `[n]`."""
    digits = words.reshape(DIGITS, DIGIT_WORDS, -1)
    is_less = jnp.zeros(digits.shape[::2], bool)
    for k in reversed(range(DIGIT_WORDS)):  # the highest word has the last say
        word, threshold = digits[:, k], thresholds()[:, k, None]
        is_less = (word < threshold) | ((word == threshold) & is_less)
    place = np.arange(DIGITS, dtype=np.uint32)[:, None]
    return jnp.sum(is_less.astype(jnp.uint32) << place, 0, dtype=jnp.uint32)


@functools.cache
def thresholds() -> np.ndarray:
    """The numbers floor(2^256 P(digit j = 1)) in words, the highest first, uint32 `[29, 8]`.

    In fixed point with 600 bits: the series of e^-t for t = 2^-22, 28 squarings (each doubles what
    is lost relatively, and numbers stay above 2^-93), one division.
    """
    unit = 1 << 600
    power, term, n = 0, unit, 0
    while term:  # alternating: the sum of the terms left out is below the next
        power, n = power + (-term if n % 2 else term), n + 1
        term = (term >> _tables.BITS) // n
    rows = []
    for _ in range(DIGITS):
        quotient = (power << 32 * DIGIT_WORDS) // (unit + power)
        rows.append([(quotient >> 32 * k) & 0xFFFFFFFF for k in reversed(range(DIGIT_WORDS))])
        power = (power * power) >> 600
    return np.array(rows, np.uint32)


# --- the index of the largest of integers with Gumbel noise ---

MOST_INDICES = 2**16 - 1
TURNS = 64


def chosen(key: jax.Array, below: jax.Array) -> jax.Array:
    """An index of the law of argmax_i (S_i + 2^22 G_i), S integers, G independent Gumbel numbers.

    That law is the softmax of S / 2^22, for -ln E has the law of G if E is exponential, and of
    exponential clocks with rates e^(S_i / 2^22) the i-th rings first with a probability
    proportional to its rate. No G is drawn, so none can be infinite or rounded: the clocks' rings
    are those of p clocks of the largest rate, in order, each kept with probability e^(-d / 2^22),
    d = max S - S_i. A ring is of a clock drawn uniformly, and it is kept if a geometric integer,
    P(A >= a) = e^(-a / 2^22), of `floored_laplace` is at least d. The first one that is kept is the
    answer: of 2 p rings at a time, in at most 64 turns.

    Hence the answer has the law of the argmax, P, up to a factor and a tail: of the realised law,
    P', every set S of indices has

        P'(S) <= e^rho P(S) + tau   and   P(S) <= e^rho P'(S) + tau,
        rho = CHOICE_RATIO = 2^-160,   tau = choice_tail(p) = (p + 1) 2^-184.

    Proof. A clock is drawn as floor(U p / 2^256), U of 256 bits, by long multiplication: its
    probability is 1 / p up to a part p 2^-256 < 2^-240. With r = LAPLACE_RATIO = 2^-162, a ring at
    distance d is kept with probability a' <= e^r a and a' >= e^-r (a - e^-128), a = e^(-d / 2^22),
    since numbers from 2^29 on do not come up; at d = 0 it is kept for sure. So the sum of a' over
    the p clocks, which is at least 1, is that of a up to a factor within e^(+-r) (1 - p e^-128),
    and p e^-128 < 2^-168. One index given that there is an answer: a' over that sum, hence
    P'(i) <= e^(2 r + 2^-167) P(i), and P(i) <= e^(2 r + 2^-167) (P'(i) + e^-128). No ring of 128 p
    is kept with probability at most (1 - (1 - 2^-240) / p)^(128 p) < e^-127.9 < 2^-184; the answer
    is -1 then. Adding up over S, tau is (p + 1) times e^-127.9.

    Args:
      key: a typed key of threefry2x32 or rbg, used up by this draw.
      below: d, int32 `[p]`, the distances from the largest S, which is there: none is negative, one
        is 0. What is 2^29 or more is never drawn.

    Returns:
      int32 `[]`. How many turns it takes depends on `below`, as it does on the key.

    Raises:
      ValueError: for more than 65,535 indices, or keys as in `random_bits.random_words`.

    Examples:
        >>> below = jnp.array([0, 40 * 2**22], jnp.int32)  # how far each score is below the best
        >>> int(jmm.noise.chosen(jax.random.key(0), below))
        0
    """
    p = below.shape[0]
    if p > MOST_INDICES:
        raise ValueError(f"One of at most {MOST_INDICES} indices is drawn, got {p}.")
    rings = 2 * p

    def turn(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        number, _ = carry
        words = random_words(fold_in(key, number), (DIGIT_WORDS + DIGITS * DIGIT_WORDS, rings))
        index = uniform_index(words[:DIGIT_WORDS], p)
        accepted_rings = magnitudes(words[DIGIT_WORDS:]).astype(jnp.int32) >= below[index]
        first = index[jnp.argmax(accepted_rings)]
        return number + 1, jnp.where(jnp.any(accepted_rings), first, -1)

    def waits(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
        number, index = carry
        return (index < 0) & (number < TURNS)

    return jax.lax.while_loop(waits, turn, (jnp.int32(0), jnp.int32(-1)))[1]


def uniform_index(words: jax.Array, p: int) -> jax.Array:
    """Computes floor(U p / 2^256), int32 `[n]`, of words U, uint32 `[8, n]`, the lowest first.

    By digits of 16 bits from the lowest up: digit times p plus a carry below p fits 32 bits.
    """
    carry = jnp.zeros(words.shape[1:], jnp.uint32)
    for word in words:
        for digit in (word & np.uint32(0xFFFF), word >> 16):
            carry = (digit * np.uint32(p) + carry) >> 16
    return carry.astype(jnp.int32)
