"""The index of the largest of integers with Gumbel noise, of its exact law, from integers."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.random_bits import fold_in, random_words
from jaxminimax.noise._sampler import DIGIT_WORDS, DIGITS, magnitudes

__all__ = ["MOST_INDICES", "chosen"]

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
        kept = magnitudes(words[DIGIT_WORDS:]).astype(jnp.int32) >= below[index]
        first = index[jnp.argmax(kept)]
        return number + 1, jnp.where(jnp.any(kept), first, -1)

    def waits(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
        number, accepted = carry
        return (accepted < 0) & (number < TURNS)

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

