"""Which records a release reads, at static shape: full, Poisson, disjoint passes.

Poisson sampling skips from one sampled record to the next, so a draw costs O(capacity) and never
touches the other records. The gap between them, X + 1, is geometric: P[X >= x] = r^x, r = 1 - q.
The hexadecimal digits of a geometric variable are independent: with s = r^(16^j),

    P[digit j > d] = (s^(d+1) - s^16) / (1 - s^16),        d = 0, ..., 14;

so X is drawn digit by digit, each from 96 random bits against thresholds that the host computes
with exact integers. The realised law differs from independent Bernoulli(q) by at most `law_error`
in total variation, near 1e-25, which the accountant charges. (Inversion of one float32 uniform a
gap would leave an error near 1e-7 a record: more than delta.)
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.mechanism import Disjoint, Poisson, Query, rows_read


class Sample(NamedTuple):
    """A batch of fixed shape.

    Attributes:
      rows: rows to read, int32 `[c]`, sorted; None for all rows in their order.
      valid: which of them take part, bool `[c]`; None for all.
      fits: whether the sample fitted the capacity, bool `[]`.
    """

    rows: jax.Array | None
    valid: jax.Array | None
    fits: jax.Array | bool


@functools.lru_cache(maxsize=64)
def _thresholds(rate: float, population: int) -> np.ndarray:
    """96-bit thresholds of P[digit j > d], as words, uint32 `[digits + 1, 15, 3]`.

    The last row holds P[X >= 16^digits] in its first place: a gap beyond every record. Digits that
    are 0 up to a probability of 2^-96 are left out.
    """
    bits = 320
    one = 1 << bits
    numerator, denominator = float(rate).as_integer_ratio()
    s = ((denominator - numerator) << bits) // denominator  # fixed point, `bits` after the point
    rows = []
    for _ in range(max(1, -(-(population - 1).bit_length() // 4))):
        powers = [s]  # s^1 ... s^16
        for _ in range(15):
            powers.append((powers[-1] * s) >> bits)
        rows.append([((p - powers[-1]) << 96) // (one - powers[-1]) for p in powers[:-1]])
        s = powers[-1]
    rows = [row for row in rows if row[0] > 0] + [[s >> (bits - 96)] + [0] * 14]
    words = [[(t >> 64, (t >> 32) & 0xFFFFFFFF, t & 0xFFFFFFFF) for t in row] for row in rows]
    return np.array(words, np.uint32)


def law_error(query: Query) -> float:
    """Total variation between the realised batch of one release and the described law."""
    if not isinstance(query.sampling, Poisson) or query.sampling.rate == 1:
        return 0.0
    # every threshold is rounded down by less than 2^-96
    rows = len(_thresholds(query.sampling.rate, query.population))
    return (rows_read(query) + 1) * rows * 15 * 2.0**-96


def _poisson(key: jax.Array, rate: float, population: int, capacity: int) -> Sample:
    table = _thresholds(rate, population)  # [k + 1, 15, 3]
    digits = len(table) - 1
    high, middle, low = table.transpose(2, 1, 0)[..., None]  # each [15, k + 1, 1]
    # one gap more than the capacity: it tells whether a record was left out
    a, b, c = jax.random.bits(key, (3, 1, digits + 1, capacity + 1), jnp.uint32)
    below = (a < high) | ((a == high) & ((b < middle) | ((b == middle) & (c < low))))
    digit = jnp.sum(below, 0, dtype=jnp.int32)  # [k + 1, c + 1]
    place = jnp.asarray(16 ** np.arange(digits, dtype=np.int64)[:, None], jnp.int32)
    gap = 1 + jnp.sum(digit[:digits] * place, 0, dtype=jnp.int32)
    out = (digit[digits] > 0) | (gap > population) | (gap < 1)
    index = jnp.cumsum(jnp.where(out, population + 1, gap), dtype=jnp.int32) - 1
    # The sum may wrap around, but only after it has passed n: once out, a sample stays out.
    inside = jax.lax.cummin(((index >= 0) & (index < population)).astype(jnp.int32)) > 0
    index, valid = index[:-1], inside[:-1]
    return Sample(jnp.where(valid, index, population - 1), valid, ~inside[-1])


def draw(key: jax.Array, query: Query, release: jax.Array) -> Sample:
    """The sample of release number `release`.

    Args:
      key: used up by this draw.
      query: description of the sampling.
      release: number of releases made before this one, int32 `[]`.
    """
    match query.sampling:
        case Poisson(rate=rate):
            return _poisson(key, rate, query.population, rows_read(query))
        case Disjoint(batch=batch):
            first = (release % (query.population // batch)) * batch
            return Sample(first + jnp.arange(batch, dtype=jnp.int32), None, True)
    return Sample(None, None, True)
