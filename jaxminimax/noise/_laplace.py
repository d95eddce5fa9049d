"""floor(2^22 E), E of density e^-|x| / 2, digit by digit."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.random_bits import random_words

BITS = 22
DIGITS = 29  # those from 2^29 on, e^-128 of all numbers have one, are left out
WORDS = 8    # of 32 bits, that a digit is drawn from


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

    Raises:
      ValueError: for keys and sizes as in `random_bits.random_words`.

    Examples:
        >>> draws = jmm.noise.floored_laplace(jax.random.key(0), (3,))
        >>> draws.shape, draws.dtype.name
        ((3,), 'int32')
    """
    size = math.prod(shape)
    drawn = random_words(key, (1 + DIGITS * WORDS, size))
    sign, magnitude = drawn[0], magnitudes(drawn[1:])
    return jax.lax.bitcast_convert_type(
        jnp.where(sign >> 31, ~magnitude, magnitude), jnp.int32).reshape(shape)


def magnitudes(words: jax.Array) -> jax.Array:
    """A = floor(2^22 |E|) below 2^29, digit by digit, of words `[29 * 8, n]`: uint32 `[n]`."""
    digits = words.reshape(DIGITS, WORDS, -1)
    below = jnp.zeros(digits.shape[::2], bool)
    for k in reversed(range(WORDS)):  # the highest word has the last say
        word, threshold = digits[:, k], thresholds()[:, k, None]
        below = (word < threshold) | ((word == threshold) & below)
    place = np.arange(DIGITS, dtype=np.uint32)[:, None]
    return jnp.sum(below.astype(jnp.uint32) << place, 0, dtype=jnp.uint32)


@functools.cache
def thresholds() -> np.ndarray:
    """floor(2^256 P(digit j = 1)) in words, the highest first, uint32 `[29, 8]`.

    In fixed point with 600 bits: the series of e^-t for t = 2^-22, 28 squarings (each doubles what
    is lost relatively, and numbers stay above 2^-93), one division.
    """
    one = 1 << 600
    power, term, n = 0, one, 0
    while term:  # alternating: the sum of the terms left out is below the next
        power, n = power + (-term if n % 2 else term), n + 1
        term = (term >> BITS) // n
    rows = []
    for _ in range(DIGITS):
        whole = (power << 32 * WORDS) // (one + power)
        rows.append([(whole >> 32 * k) & 0xFFFFFFFF for k in reversed(range(WORDS))])
        power = (power * power) >> 600
    return np.array(rows, np.uint32)
