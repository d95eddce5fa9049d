"""Numbers of the normal sampler that 31 bits did not settle: 95 bits in float64, then 255."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.random_bits import random_words, rolled_threefry, word_pairs
from jaxminimax.base.tree import in_float64
from jaxminimax.noise._tables import (
    BITS,
    FRACTION,
    LAST_CELLS,
    LAST_DEGREE,
    LAST_OCTAVES,
    LIMBS,
    MIDDLE_CELLS,
    MIDDLE_DEGREE,
    tables,
)

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
             parts: int) -> jax.Array:
    """The words of these numbers, `random_words(key, (size,))[place]` and then 2 parts more each.

    The further ones are those of the counters (place + 2^31, 0), (place + 2^31, 1), ..., which no
    other draw of the key has but part 1 of its words. They do not depend on what else is in doubt.

    Args:
      key: as in `random_words`.
      fine: of `fine_key`.
      size: even.
      place: int32 `[n]`.
      parts: up to 4.

    Returns:
      uint32 `[1 + 2 parts, n]`.
    """
    half = size // 2
    upper = place >= half
    part = np.arange(-1, parts)[:, None]
    count = jnp.where(part < 0, jnp.where(upper, place - half, place)[None], place[None])
    count = count.astype(jnp.uint32) + np.where(part < 0, 0, 2**31).astype(np.uint32)
    other = jnp.broadcast_to(np.maximum(part, 0).astype(np.uint32), count.shape)
    x, y = rolled_threefry(fine, count, other)
    if str(jax.random.key_impl(key)) == "threefry2x32":
        word = jnp.where(upper, y[0], x[0])
    else:
        word = random_words(key, (size,), rolled=True)[place]
    return jnp.concatenate([word[None], jnp.stack([x[1:], y[1:]], 1).reshape(2 * parts, -1)])


def middle(word: jax.Array, second: jax.Array, third: jax.Array,
           shift: jax.Array) -> tuple[jax.Array, jax.Array]:
    """floor(2^22 |G|) >> shift, and whether that is in doubt, from three words each, `[n]`.

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
    """floor(2^22 q(u)) of one number, int32 `[]`, in integers; `words` uint32 `[8]`.

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
    """floor(x y / 2^96) + more, in digits of 16 bits, `[6]` each."""
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
