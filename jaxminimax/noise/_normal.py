"""floor(2^bits G), G ~ N(0, 1): float32 where its rounding does not matter, then more bits."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.random_bits import random_words
from jaxminimax.base.tree import in_any_lane, materialise
from jaxminimax.noise._further import WORDS, fine_key, last, middle, words_of
from jaxminimax.noise._places import places
from jaxminimax.noise._tables import BITS, FIRST_CELLS, FIRST_OCTAVES, tables

DOUBT = np.int32(-2**31)  # no number is that small
# Fit and roundings of the first stage, in units of 2^-22, beside what the bits that are not drawn
# yet may move; the tests bound it cell by cell.
FIRST_ERROR = np.float32(2.0**-8)
_LANES = 32
_FEW = 64  # numbers: so seldom in doubt that no quicker stage is worth its compilation


def floored_normal(key: jax.Array, size: int, bits: jax.typing.ArrayLike,
                   wanted: jax.typing.ArrayLike = True) -> jax.Array:
    """Independent integers floor(2^bits G), G ~ N(0, 1).

    See the package for the law and what is proved of it.

    Args:
      key: a typed key of threefry2x32 or rbg, used up by this draw.
      size: how many, below 2^31 - 32.
      bits: of a standard deviation, a whole number in [0, 22]; may be traced, and may differ from
        lane to lane. The same key gives floors of the same real numbers, so that those for fewer
        bits are those for more, shifted.
      wanted: bool `[]`; zeros, and nothing is drawn, if no lane wants noise.

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
    checks.number("bits", bits, low=0, high=BITS, closed=True)
    checks.scalars(bits=bits, wanted=wanted)
    if jnp.result_type(bits).kind not in "iu":
        raise ValueError(f"bits must be whole, got {bits!r}.")
    if size >= 2**31 - _LANES:
        raise ValueError(f"{size} numbers are asked for, a key has less than 2^31: split it.")
    if size == 0:
        return jnp.zeros(0, jnp.int32)
    # (a shift out of range would be whatever the machine makes of it)
    shift = jnp.clip(BITS - jnp.asarray(bits, jnp.int32), 0, BITS)
    padded = -(-size // _LANES) * _LANES
    x = materialise(lambda: first(random_words(key, (padded,)), shift), wanted)
    return _settled(key, x, shift)[:size]


def first(word: jax.Array, shift: jax.Array) -> jax.Array:
    """The numbers of these words, int32 `[n]`; `DOUBT` where 31 bits, or float32, do not tell."""
    below, above, small = enclosed(word)
    doubt = ((below ^ above) >> shift != 0) | small
    return jnp.where(doubt, DOUBT, _signed(below >> shift, word))


def enclosed(word: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Integers between which floor(2^22 |G|) lies, and whether they do not hold, of words `[n]`.

    The upper bit is the sign. The others, m, leave u = (m + V) / 2^31, V unknown in (0, 1), in one
    of 256 cells an octave. There 2^22 q(u) = base + c0 + c1 v + c2 v^2 up to half of |c1| (as much
    as V can move it) and `FIRST_ERROR`. Nothing holds below m = 2^18.
    """
    m = jax.lax.bitcast_convert_type(word & np.uint32(2**31 - 1), jnp.int32)
    # 24 bits of m, which float32 holds: a rounded m could be in the next cell
    bits = jax.lax.bitcast_convert_type((m & np.int32(-128)).astype(jnp.float32), jnp.int32)
    cells = FIRST_CELLS.bit_length() - 1
    cell = (bits >> (23 - cells)) - ((127 + 31 - FIRST_OCTAVES) << cells)
    start = jax.lax.bitcast_convert_type(bits & np.int32(-1 << (23 - cells)), jnp.float32)
    v = (m - start.astype(jnp.int32)).astype(jnp.float32)
    at = jnp.maximum(cell, 0)
    base, c0, c1, c2 = (jnp.asarray(x).at[at].get(mode="promise_in_bounds")
                        for x in (tables().base, *tables().slopes))
    y = (c2 * v + c1) * v + c0
    error = FIRST_ERROR - np.float32(0.5) * c1
    # y - error > 0, so conversion rounds down
    return base + (y - error).astype(jnp.int32), base + (y + error).astype(jnp.int32), cell < 0


def _signed(magnitude: jax.Array, word: jax.Array) -> jax.Array:
    """floor(-y) is -floor(y) - 1, the complement, unless y is whole."""
    return magnitude ^ (jax.lax.bitcast_convert_type(word, jnp.int32) >> 31)


def _capacity(size: int) -> int:
    """Numbers that are settled at once: the mean of those in doubt at 18 bits and 8 deviations."""
    mean = 1e-3 * size
    return min(size, math.ceil(mean + 8 * math.sqrt(mean) + 2))


@jax.jit  # traced once for all programs with so many numbers
def _settled(key: jax.Array, x: jax.Array, shift: jax.Array) -> jax.Array:
    """`x`, int32 `[32 k]`, with what is in doubt replaced."""
    size = x.shape[0]
    fine = fine_key(key)
    capacity = _capacity(size)

    def one_by_one(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: jnp.any(x == DOUBT), one, x)

    def all_of_them(x: jax.Array) -> jax.Array:
        lane = np.arange(_LANES, dtype=np.uint32)[:, None]
        flags = materialise(lambda: jnp.sum(
            (x.reshape(_LANES, -1) == DOUBT).astype(jnp.uint32) << lane,
                                        0, dtype=jnp.uint32))
        total = jnp.sum(jax.lax.population_count(flags).astype(jnp.int32), dtype=jnp.int32)

        def some(k: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            """That many of those in doubt, in float64; and whether one still is."""
            x, left = carry
            rank = k * capacity + jnp.arange(capacity, dtype=jnp.int32)
            live = rank < total
            place = materialise(lambda: jnp.where(live, places(flags, rank), 0))
            word, second, third = words_of(key, fine, size, place, 1)
            found, again = middle(word, second, third, shift)
            found = jnp.where(again, DOUBT, _signed(found, word))
            x = x.at[jnp.where(live, place, size)].set(found, mode="drop")
            return x, left | jnp.any(again & live)

        x, left = jax.lax.fori_loop(0, -(-total // capacity), some, (x, jnp.zeros((), bool)))
        return jax.lax.cond(in_any_lane(left), one_by_one, lambda x: x, x)

    def one(x: jax.Array) -> jax.Array:
        """The first that is still in doubt, in integers."""
        place = jax.lax.argmax(x == DOUBT, 0, jnp.int32)
        word = words_of(key, fine, size, place[None], WORDS // 2)[:WORDS, 0]
        found = _signed(last(word) >> shift, word[0])
        return jax.lax.dynamic_update_slice(x, found[None], [place])

    return jax.lax.cond(in_any_lane(x == DOUBT), one_by_one if size <= _FEW else all_of_them,
                        lambda x: x, x)
