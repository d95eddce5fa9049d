"""Constants of the normal sampler, and its two stages that are seldom needed.

q(u) is the inverse of u = P(|G| > x), G ~ N(0, 1). A cell is [r - w, r]; an octave, u in
[2^-(o+1), 2^-o), has 8, 16 or 256 of them, of one width w. In t = (r - u) / w,

    q(r - w t) = sum_k a_k t^k,        0 <= t <= 1,   a_k >= 0,

for with derivatives in direction -u, q' = sqrt(pi / 2) exp(q^2 / 2) > 0 and q'' = q q'^2, so that
q^(n) = P_n(q) q'^n with P_1 = 1, P_{n+1} = P_n' + n q P_n: coefficients that are not negative, and
q >= 0. Hence what remains when the sum is cut is not negative either and grows with t: at most
q(r - w) minus the sum of the coefficients, one number a cell. The coefficients follow from y = q',
y' = q y^2, power series in t.

    python -m jaxminimax.noise._tables

writes the file anew (with mpmath, in ten seconds). The tests remake it and bound what it misses.

They are for numbers that 31 bits did not settle: 95 bits in float64, then 255 in fixed point.
"""

import functools
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.random_bits import random_words, rolled_threefry, threefry, word_pairs
from jaxminimax.base.tree import in_float64

BITS = 22                  # of the finest grid, 2^-22
FIRST_CELLS = 256          # an octave, in float32
FIRST_OCTAVES = 13         # words below 2^(31 - 13) are left to the next stage
MIDDLE_CELLS = 16          # in float64
MIDDLE_OCTAVES = 31
MIDDLE_DEGREE = 11
LAST_CELLS = 8             # in fixed point
LAST_OCTAVES = 168
LAST_DEGREE = 27
LIMBS = 6                  # of 16 bits each
FRACTION = 92              # bits after the point, of 16 LIMBS = 96
_PRECISION = 360

FILE = pathlib.Path(__file__).parent / "tables.npz"


class Tables(NamedTuple):
    """The tables of `FILE`; rows are cells, by octave from u = 1 down, then by u upwards.

    Attributes:
      base: int32 `[13 * 256]`, by m upwards, where u = m / 2^31.
      slopes: float32 `[3, 13 * 256]`: 2^22 q is near base + c0 + c1 v + c2 v^2 at
        u = (start + v + 1/2) / 2^31.
      middle: float64 `[31 * 16, 12]`, 2^22 a_k.
      last: uint16 `[168 * 8, 28, 6]`, floor(2^92 a_k), the lowest limb first.
    """

    base: np.ndarray
    slopes: np.ndarray
    middle: np.ndarray
    last: np.ndarray


@functools.cache
def tables() -> Tables:
    """Loads the constants from `FILE`."""
    with np.load(FILE) as file:
        return Tables(*(file[name] for name in Tables._fields))


def quantile(u: Any, near: Any) -> Any:
    """Computes q(u) in mpmath's precision, by Newton's method from a number near it."""
    import mpmath as mp

    x = near
    for _ in range(60):
        step = (mp.erfc(x / mp.sqrt(2)) - u) / (2 * mp.npdf(x))
        x += step
        if abs(step) < mp.mpf(2) ** (-mp.mp.prec // 2):
            # quadratic convergence, once more
            return x + (mp.erfc(x / mp.sqrt(2)) - u) / (2 * mp.npdf(x))
    raise ArithmeticError(f"Newton's method for q({u}) from {near} does not settle.")


def coefficients(q: Any, width: Any, degree: int) -> list[Any]:
    """The a_0, ..., a_degree of the cell of that width whose right end has this q (mpmath)."""
    import mpmath as mp

    slope = [width / (2 * mp.npdf(q))]
    a, squares = [q, slope[0]], []
    for n in range(degree - 1):
        squares.append(sum(slope[i] * slope[n - i] for i in range(n + 1)))
        slope.append(sum(a[i] * squares[n - i] for i in range(n + 1)) / (n + 1))
        a.append(slope[-1] / (n + 2))
    return a


def cells(octave: int, count: int, degree: int, q: Any) -> tuple[list[list[Any]], list[Any], Any]:
    """Coefficients and remainders of an octave's cells, by u upwards, and q at its left end.

    Args:
      octave: u in [2^-(octave + 1), 2^-octave).
      count: cells in it.
      degree: of the last coefficient.
      q: q(2^-octave).
    """
    import mpmath as mp

    left = mp.mpf(2) ** -(octave + 1)
    width = left / count
    rows, remainders = [], []
    for cell in reversed(range(count)):
        rows.append(coefficients(q, width, degree))
        total = mp.fsum(rows[-1])
        q = quantile(left + cell * width, total)
        remainders.append(q - total)
    return rows[::-1], remainders[::-1], q


def limbs(a: Any) -> list[int]:
    """Writes floor(2^92 a) in digits of 16 bits, the lowest first."""
    import mpmath as mp

    number = int(mp.floor(a * mp.mpf(2) ** FRACTION))
    return [(number >> 16 * j) & 0xFFFF for j in range(LIMBS)]


def _octaves(octaves: int, count: int, degree: int) -> list[list[Any]]:
    import mpmath as mp

    rows, q = [], mp.mpf(0)
    for octave in range(octaves):
        more, _, q = cells(octave, count, degree, q)
        rows += more
    return rows


def first(middle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fits `base` and `slopes`: quadratics through three Chebyshev points of every cell.

    Whole numbers are taken out so that what is left is above 3, and stays so when a doubt is
    subtracted: conversion to an integer is then the floor. (A fit: it is bounded by the tests.)
    """
    ratio = FIRST_CELLS // MIDDLE_CELLS
    index = np.arange(FIRST_OCTAVES * FIRST_CELLS)
    octave, cell = FIRST_OCTAVES - 1 - index // FIRST_CELLS, index % FIRST_CELLS
    width = 2.0 ** (30 - octave) / FIRST_CELLS  # in words
    a = middle[octave * MIDDLE_CELLS + cell // ratio].T  # [12, cells]

    def value(v: np.ndarray) -> np.ndarray:
        """The value of 2^22 q at v words from the cell's start."""
        t = 1 - (cell % ratio + v / width) / ratio
        return np.polynomial.polynomial.polyval(t, a, tensor=False)

    end = np.floor(value(width)) - 4
    x = [(0.5 + 0.5 * np.cos(np.pi * (k + 0.5) / 3)) * width for k in range(3)]
    y = [value(v) - end for v in x]
    one = (y[1] - y[0]) / (x[1] - x[0])
    two = ((y[2] - y[1]) / (x[2] - x[1]) - one) / (x[2] - x[0])
    slope = one - two * (x[0] + x[1])
    slope, two = np.float32(slope + two), np.float32(two)  # in v + 1/2 from here on
    # what the quadratic with rounded slopes misses is halved by its level
    at = np.linspace(0.5, width - 0.5, 65)
    missed = np.array([value(v) - end - (v - 0.5) * (slope.astype(float) + two * (v - 0.5))
                       for v in at])
    level = np.float32((missed.min(0) + missed.max(0)) / 2)
    return end.astype(np.int32), np.stack([level, slope, two])


def make() -> Tables:
    """Computes the constants anew."""
    import mpmath as mp

    with mp.workprec(_PRECISION):
        middle = np.array([[float(mp.ldexp(a, BITS)) for a in row]
                           for row in _octaves(MIDDLE_OCTAVES, MIDDLE_CELLS, MIDDLE_DEGREE)])
        last = np.array([[limbs(a) for a in row]
                         for row in _octaves(LAST_OCTAVES, LAST_CELLS, LAST_DEGREE)], np.uint16)
    return Tables(*first(middle), middle, last)




WORDS = 8  # of 32 bits: u has 255 of them after the sign
# What float64 loses, in units of 2^-22; a number this near to where a floor jumps is passed on.
# All terms of Horner's sum are positive, the k-th meets 3 k + 2 <= 35 roundings (t counted k
# times), and the sum is below 2^24.65: less than 2^-23.2. The interval's ends are rounded by 2^-28;
# the terms left out (2^-53.99 of q) and the bits of u that are not read are below 2^-31.
MIDDLE_ERROR = 2.0**-22


def fine_key(key: jax.Array) -> jax.Array:
    """The key of further words, uint32 `[2]`: the key itself, or one of threefry drawn from it.

    (Only threefry gives a word without all those before it. Part 1 of the key is used up.)
    """
    if str(jax.random.key_impl(key)) == "threefry2x32":
        return jax.random.key_data(key)
    return jnp.concatenate(word_pairs(key, (1,), part=1))


def words_of(key: jax.Array, fine: jax.Array, size: int, place: jax.Array,
             parts: int, rolled: bool = True) -> jax.Array:
    """The words of these numbers, `random_words(key, (size,))[place]` and then 2 parts more each.

    The further ones are those of the counters (place + 2^31, 0), (place + 2^31, 1), ..., which no
    other draw of the key has but part 1 of its words. They do not depend on what else is in doubt.

    Args:
      key: as in `random_words`.
      fine: of `fine_key`.
      size: even.
      place: int32 `[n]`.
      parts: up to 4.
      rolled: for branches that are seldom taken, see `random_words`.

    Returns:
      uint32 `[1 + 2 parts, n]`.
    """
    half = size // 2
    upper = place >= half
    part = np.arange(-1, parts)[:, None]
    count = jnp.where(part < 0, jnp.where(upper, place - half, place)[None], place[None])
    count = count.astype(jnp.uint32) + np.where(part < 0, 0, 2**31).astype(np.uint32)
    other = jnp.broadcast_to(np.maximum(part, 0).astype(np.uint32), count.shape)
    x, y = (rolled_threefry if rolled else threefry)(fine, count, other)
    if str(jax.random.key_impl(key)) == "threefry2x32":
        word = jnp.where(upper, y[0], x[0])
    else:
        word = random_words(key, (size,), rolled=True)[place]
    return jnp.concatenate([word[None], jnp.stack([x[1:], y[1:]], 1).reshape(2 * parts, -1)])


def middle(word: jax.Array, second: jax.Array, third: jax.Array,
           shift: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes floor(2^22 |G|) >> shift, and whether it is in doubt, from three words each, `[n]`.

    The sum of Taylor's series in float64, from the right end of one of 16 cells an octave. (m is
    zero once in 2^31 times, and in doubt then.)
    """
    return _middle(word, second, third, jnp.broadcast_to(shift, word.shape))


@in_float64
def _middle(word: jax.Array, second: jax.Array, third: jax.Array,
            shift: jax.Array) -> tuple[jax.Array, jax.Array]:
    m = word & np.uint32(2**31 - 1)
    zeros = jnp.clip(jax.lax.clz(m), 1, 31)  # a shift of 0 or 32 does not come up
    rest = np.uint32(32) - zeros
    lead = (m << zeros) | (second >> rest)
    low = (second << zeros) | (third >> rest)
    cells = MIDDLE_CELLS.bit_length() - 1
    bits = 31 - cells  # of `lead` that are left for the place in the cell
    row = (zeros - 1).astype(jnp.int32) * MIDDLE_CELLS + (
        (lead >> bits) & np.uint32(MIDDLE_CELLS - 1)).astype(jnp.int32)
    # t = 1 - v, by complements: exact up to the conversion
    t = ((~lead & np.uint32(2**bits - 1)).astype(jnp.float64)
         + ((~low).astype(jnp.float64) + 0.5) * 2.0**-32) * 2.0**-bits
    a = jnp.asarray(tables().middle, jnp.float64)[row].T

    def step(k: jax.Array, y: jax.Array) -> jax.Array:
        return y * t + a[MIDDLE_DEGREE - 1 - k]

    y = jax.lax.fori_loop(0, MIDDLE_DEGREE, step, a[MIDDLE_DEGREE])
    below, above = (jnp.floor(y + e).astype(jnp.int32) >> shift
                    for e in (-MIDDLE_ERROR, MIDDLE_ERROR))
    return below, (below != above) | (m == 0)


def last(words: jax.Array) -> jax.Array:
    """Computes floor(2^22 q(u)) of one number, int32 `[]`, in integers; `words` uint32 `[8]`.

    u = (m 2^224 + the other words + 1/2) / 2^255, m the lower 31 bits of the first word. Its
    leading zeros say which octave, 3 bits which of its 8 cells, and the next 96 the place in it;
    Horner's rule in fixed point, 92 bits after the point, every product and coefficient rounded
    down.
    """
    u = jnp.concatenate([words[:1] & np.uint32(2**31 - 1), words[1:], jnp.zeros(6, jnp.uint32)])
    skip = jax.lax.argmax(u != 0, 0, jnp.int32)  # all zero: 2^-255, whatever comes
    u = jax.lax.dynamic_slice(u, [jnp.minimum(skip, 8)], [6])
    zeros = jax.lax.clz(u[0]) & 31
    lead = (u[:5] << zeros) | ((u[1:] >> 1) >> (31 - zeros))
    octave = jnp.clip(32 * skip + zeros.astype(jnp.int32) - 1, 0, LAST_OCTAVES - 1)
    cell = (lead[0] >> 28).astype(jnp.int32) & (LAST_CELLS - 1)
    t = ~((lead[:3] << 4) | (lead[1:4] >> 28))  # 1 - v, the highest of 96 bits first
    t = jnp.stack([t & 0xFFFF, t >> 16], 1)[::-1].reshape(LIMBS)
    a = jnp.asarray(tables().last)[octave * LAST_CELLS + cell].astype(jnp.uint32)

    def step(k: jax.Array, y: jax.Array) -> jax.Array:
        return _product(y, t, a[LAST_DEGREE - 1 - k])

    y = jax.lax.fori_loop(0, LAST_DEGREE, step, a[LAST_DEGREE])
    top = (y[LIMBS - 1] << 16) | y[LIMBS - 2]
    return (top >> (FRACTION - 16 * (LIMBS - 2) - BITS)).astype(jnp.int32)


def _product(x: jax.Array, y: jax.Array, more: jax.Array) -> jax.Array:
    """Computes floor(x y / 2^96) + more, in digits of 16 bits, `[6]` each."""
    products = x[:, None] * y[None, :]
    both = jnp.pad(products & 0xFFFF, ((0, 0), (0, LIMBS + 1))) + jnp.pad(
        products >> 16, ((0, 0), (1, LIMBS)))
    # rows of 13 read as rows of 12: row i moves i to the right, and columns add up
    rows = both.reshape(-1)[: 2 * LIMBS * LIMBS].reshape(LIMBS, 2 * LIMBS)
    columns = jnp.sum(rows, 0, dtype=jnp.uint32) + jnp.pad(more, (LIMBS, 0))

    def carry(_: jax.Array, digits: jax.Array) -> jax.Array:
        return (digits & 0xFFFF) + jnp.pad(digits[:-1] >> 16, (1, 0))

    # each turn is done with one digit more at least
    return jax.lax.fori_loop(0, 2 * LIMBS, carry, columns)[LIMBS:]


if __name__ == "__main__":
    np.savez_compressed(FILE, **make()._asdict())
