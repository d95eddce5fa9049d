"""Constants of the normal sampler, and its two stages that are seldom needed.

q(u) is the inverse of u = P(|G| > x), G ~ N(0, 1). A cell is [r - w, r]; an octave, u in
[2^-(o+1), 2^-o), has 8, 16 or 256 of them, of one width w. In t = (r - u) / w,

    q(r - w t) = sum_k a_k t^k,        0 <= t <= 1,   a_k >= 0,

for with derivatives in direction -u, q' = sqrt(pi / 2) exp(q^2 / 2) > 0 and q'' = q q'^2, so that
q^(n) = P_n(q) q'^n with P_1 = 1, P_{n+1} = P_n' + n q P_n: coefficients that are not negative, and
q >= 0. Hence what remains when the sum is cut is not negative either and grows with t: at most
q(r - w) minus the sum of the coefficients, one number a cell.

    python -m benchmarks.privacy.normal_tables

writes the file anew. The tests remake it and bound what it misses.

They are for numbers that 31 bits did not settle: 95 bits in float64, then 255 in fixed point.
"""

import functools
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import random_bits, tree

BITS = 22                  # of the finest grid, 2^-22
LIMBS = 6                  # of 16 bits each
FRACTION = 92              # bits after the point, of 16 LIMBS = 96

FILE = pathlib.Path(__file__).parent / "tables.npz"


class Stage(NamedTuple):
    """The table of one stage.

    Attributes:
      octaves: rows are left to the next stage below 2^-octaves.
      cells: of an octave.
      degree: of the polynomial in a cell.
    """

    octaves: int
    cells: int
    degree: int


# in float32, in float64 and in fixed point
FIRST, MIDDLE, LAST = Stage(13, 256, 2), Stage(31, 16, 11), Stage(168, 8, 27)


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


def fine_key(key: jax.Array) -> jax.Array:
    """The key of further words, uint32 `[2]`: the key itself, or one of threefry drawn from it.

    (Only threefry gives a word without all those before it. Part 1 of the key is used up.)
    """
    if str(jax.random.key_impl(key)) == "threefry2x32":
        return jax.random.key_data(key)
    return jnp.concatenate(random_bits.word_pairs(key, (1,), part=1))


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
    pair = np.arange(-1, parts)[:, None]
    count = jnp.where(pair < 0, jnp.where(upper, place - half, place)[None], place[None])
    count = count.astype(jnp.uint32) + np.where(pair < 0, 0, 2**31).astype(np.uint32)
    second = jnp.broadcast_to(np.maximum(pair, 0).astype(np.uint32), count.shape)
    x, y = (random_bits.rolled_threefry if rolled else random_bits.threefry)(fine, count, second)
    if str(jax.random.key_impl(key)) == "threefry2x32":
        word = jnp.where(upper, y[0], x[0])
    else:
        word = random_bits.random_words(key, (size,), rolled=True)[place]
    return jnp.concatenate([word[None], jnp.stack([x[1:], y[1:]], 1).reshape(2 * parts, -1)])


def middle(word: jax.Array, second: jax.Array, third: jax.Array,
           shift: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes floor(2^22 |G|) >> shift, and whether it is in doubt, from three words each, `[n]`.

    The sum of Taylor's series in float64, from the right end of one of 16 cells an octave. (m is
    zero once in 2^31 times, and in doubt then.)
    """
    return _middle(word, second, third, jnp.broadcast_to(shift, word.shape))


@tree.in_float64
def _middle(word: jax.Array, second: jax.Array, third: jax.Array,
            shift: jax.Array) -> tuple[jax.Array, jax.Array]:
    m = word & np.uint32(2**31 - 1)
    zeros = jnp.clip(jax.lax.clz(m), 1, 31)  # a shift of 0 or 32 does not come up
    complement = np.uint32(32) - zeros
    lead = (m << zeros) | (second >> complement)
    low = (second << zeros) | (third >> complement)
    cells = MIDDLE.cells.bit_length() - 1
    bits = 31 - cells  # of `lead` that are left for the place in the cell
    row = (zeros - 1).astype(jnp.int32) * MIDDLE.cells + (
        (lead >> bits) & np.uint32(MIDDLE.cells - 1)).astype(jnp.int32)
    # t = 1 - v, by complements: exact up to the conversion
    t = ((~lead & np.uint32(2**bits - 1)).astype(jnp.float64)
         + ((~low).astype(jnp.float64) + 0.5) * 2.0**-32) * 2.0**-bits
    a = jnp.asarray(tables().middle, jnp.float64)[row].T

    def step(k: jax.Array, y: jax.Array) -> jax.Array:
        return y * t + a[MIDDLE.degree - 1 - k]

    y = jax.lax.fori_loop(0, MIDDLE.degree, step, a[MIDDLE.degree])
    # What float64 loses, in units of 2^-22; a number this near to where a floor jumps is passed on.
    # All terms of Horner's sum are positive, the k-th meets 3 k + 2 <= 35 roundings (t counted k
    # times), and the sum is below 2^24.65: less than 2^-23.2. The interval's ends are rounded by
    # 2^-28; the terms left out (2^-53.99 of q) and the bits of u that are not read are below 2^-31.
    error = 2.0**-22
    lower, upper = (jnp.floor(y + e).astype(jnp.int32) >> shift for e in (-error, error))
    return lower, (lower != upper) | (m == 0)


@jax.jit  # traced once for all programs
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
    octave = jnp.clip(32 * skip + zeros.astype(jnp.int32) - 1, 0, LAST.octaves - 1)
    cell = (lead[0] >> 28).astype(jnp.int32) & (LAST.cells - 1)
    t = ~((lead[:3] << 4) | (lead[1:4] >> 28))  # 1 - v, the highest of 96 bits first
    t = jnp.stack([t & 0xFFFF, t >> 16], 1)[::-1].reshape(LIMBS)
    a = jnp.asarray(tables().last)[octave * LAST.cells + cell].astype(jnp.uint32)

    def step(k: jax.Array, y: jax.Array) -> jax.Array:
        return _product(y, t, a[LAST.degree - 1 - k])

    y = jax.lax.fori_loop(0, LAST.degree, step, a[LAST.degree])
    top = (y[LIMBS - 1] << 16) | y[LIMBS - 2]
    return (top >> (FRACTION - 16 * (LIMBS - 2) - BITS)).astype(jnp.int32)


def _product(x: jax.Array, y: jax.Array, addend: jax.Array) -> jax.Array:
    """Computes floor(x y / 2^96) + more, in digits of 16 bits, `[6]` each."""
    products = x[:, None] * y[None, :]
    partial = jnp.pad(products & 0xFFFF, ((0, 0), (0, LIMBS + 1))) + jnp.pad(
        products >> 16, ((0, 0), (1, LIMBS)))
    # rows of 13 read as rows of 12: row i moves i to the right, and columns add up
    rows = partial.reshape(-1)[: 2 * LIMBS * LIMBS].reshape(LIMBS, 2 * LIMBS)
    columns = jnp.sum(rows, 0, dtype=jnp.uint32) + jnp.pad(addend, (LIMBS, 0))

    def carry(_: jax.Array, digits: jax.Array) -> jax.Array:
        return (digits & 0xFFFF) + jnp.pad(digits[:-1] >> 16, (1, 0))

    # each turn is done with one digit more at least
    return jax.lax.fori_loop(0, 2 * LIMBS, carry, columns)[LIMBS:]


# --- where the numbers in doubt are ---

def places(flags: jax.Array, rank: jax.Array) -> jax.Array:
    """The places of the set bits with these ranks, int32 `[c]`; anything for ranks beyond the last.

    Bit i of word j, of n, is place i n + j; ranks count by words, then by bits.

    Args:
      flags: uint32 `[n]`.
      rank: int32 `[c]`.
    """
    count = jax.lax.population_count(flags).astype(jnp.int32)
    upto = _running_sums(count)
    word = jnp.searchsorted(upto, rank, side="right").astype(jnp.int32)
    word = jnp.minimum(word, flags.shape[0] - 1)
    return _bit(flags[word], rank - (upto - count)[word]) * flags.shape[0] + word


def _bit(word: jax.Array, rank: jax.Array) -> jax.Array:
    """Number of the set bit of that rank: whether it is in the upper half, and so on."""
    bit = jnp.zeros_like(rank)
    for step in (16, 8, 4, 2, 1):
        lower_bits = jax.lax.population_count(word & ((1 << step) - 1)).astype(jnp.int32)
        upper = rank >= lower_bits
        rank = jnp.where(upper, rank - lower_bits, rank)
        word = jnp.where(upper, word >> step, word)
        bit = jnp.where(upper, bit + step, bit)
    return bit


def _running_sums(x: jax.Array) -> jax.Array:
    """Running sums, each number included, `[n]`; block by block, which takes few programs."""
    n, length = x.shape[0], 32
    blocks = jnp.pad(x, (0, -n % length)).reshape(-1, length)
    upto = np.tri(length, dtype=bool)
    sums = jnp.sum(jnp.where(upto[None], blocks[:, None, :], 0), -1, dtype=x.dtype)
    if len(blocks) > 1:
        offsets = _running_sums(sums[:, -1]) - sums[:, -1]
        sums = sums + offsets[:, None]
    return sums.reshape(-1)[:n]
