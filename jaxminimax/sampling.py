"""Which records a release reads, at static shape: full, Poisson, fixed size, disjoint passes.

Poisson sampling skips from one sampled record to the next, so a draw costs O(capacity) and never
touches the other records. The gap between them, X + 1, is geometric: P[X >= x] = r^x, r = 1 - q.
The hexadecimal digits of a geometric variable are independent: with s = r^(16^j),

    P[digit j > d] = (s^(d+1) - s^16) / (1 - s^16),        d = 0, ..., 14;

so X is drawn digit by digit, each from 96 random bits against thresholds that the host computes
with exact integers. The realised law differs from independent Bernoulli(q) by at most `law_error`
in total variation, near 1e-25, which the accountant charges. (Inversion of one float32 uniform a
gap would leave an error near 1e-7 a record: more than delta.)

Which slot of the batch a record of a Poisson or fixed-size sample is read into is drawn uniformly,
too (`places`). What is computed for a record may depend on its slot in the last bits, and sums are
made of blocks of slots; in order of their row numbers, one record would decide in which slots all
later ones are. As it is, the slots of the others have the same law whether a record takes part,
does not, or is replaced, so for a comparison they may be taken to be the same slots.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from jaxminimax._held import written
from jaxminimax._tree import in_any_lane
from jaxminimax._types import Saddle
from jaxminimax._words import child, pairs, words
from jaxminimax.mechanism import (
    OVERFLOW,
    Disjoint,
    FixedSize,
    Poisson,
    Query,
    Resolvent,
    rows_read,
)
from jaxminimax.solvers import in_float64

# P[a shard's part of a sample takes a second pass], per release, on any mesh
CROWDED = 1e-27
_COUNTED = 160  # slots that are ordered by counting, as quick as a sort's first steps
_PLACES = 0x706C6163  # what a sample's key is folded with for its slots


class Sample(NamedTuple):
    """A batch of fixed shape.

    Attributes:
      rows: rows to read, int32 `[c]`, in places that are drawn, but for disjoint batches, which are
        in order; None for all.
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
    parts = [[(t >> 64, (t >> 32) & 0xFFFFFFFF, t & 0xFFFFFFFF) for t in row] for row in rows]
    return np.array(parts, np.uint32)


def _is_one_by_one(query: Query | Resolvent) -> bool:
    """Whether rows are drawn independently: with replacement, or a single one."""
    return isinstance(query.sampling, FixedSize) and (
        query.sampling.replacement or query.sampling.batch == 1 < query.population)


def law_error(query: Query | Resolvent) -> float:
    """Total variation between the realised batch of one release and the described law."""
    n = query.population
    match query.sampling:
        case Poisson(rate=rate) if rate < 1:
            # every threshold is rounded down by less than 2^-96
            return ((rows_read(query) + 1) * len(_thresholds(rate, n)) * 15 * 2.0**-96
                    + _misplaced(rows_read(query)))
        case Poisson():
            return _misplaced(rows_read(query))
        case FixedSize(batch=batch) if _is_one_by_one(query):
            return batch * n * 2.0**-96 + CROWDED  # floor(96 bits * n / 2^96)
        case FixedSize(batch=batch) if batch < n:
            rate, capacity = _wide(batch, n)
            ties = capacity**2 * 2.0**-96  # of the 96-bit keys that choose the subset
            return ((capacity + 1) * len(_thresholds(rate, n)) * 15 * 2.0**-96 + ties
                    + _misplaced(batch))
    return 0.0


def _misplaced(count: int) -> float:
    """Total variation between a release's slots and uniform ones that others do not move.

    Two of the numbers of 128 bits that order them may be equal; and on a mesh a shard's part of the
    sample may not fit into one pass.
    """
    return count**2 * 2.0**-129 + CROWDED


@functools.lru_cache(maxsize=64)
def _wide(batch: int, population: int) -> tuple[float, int]:
    """Rate and capacity of a Poisson sample that holds `batch` records all but surely."""
    rate = batch / population
    while rate < 1 and special.bdtr(batch - 1, population, rate) > OVERFLOW:
        rate = min(1.0, rate * 1.02 + 1e-3 / population)
    wide = Query(clip=Saddle(1.0, None), sampling=Poisson(rate=rate), population=population)
    return rate, rows_read(wide)


def failure(query: Query | Resolvent) -> float:
    """P[a fixed-size sample without replacement cannot be drawn], for one release."""
    if not isinstance(query.sampling, FixedSize) or _is_one_by_one(query):
        return 0.0
    batch, n = query.sampling.batch, query.population
    if batch == n:
        return 0.0
    rate, capacity = _wide(batch, n)
    few = special.bdtr(batch - 1, n, rate) if rate < 1 else 0.0
    return float(few + (special.bdtrc(capacity, n, rate) if capacity < n else 0.0))


def _fixed_size(key: jax.Array, batch: int,
                population: int) -> tuple[jax.Array, jax.Array]:
    """A uniform subset: one of a larger Poisson sample, which is uniform given its size."""
    rate, capacity = _wide(batch, population)
    one, two = jax.random.split(key)
    rows, fits = _poisson(one, rate, population, capacity)
    inside = rows < population
    # Those with the smallest numbers of 96 bits. The first 32 tell which, unless the first one to
    # be left out has those of the last one to be kept.
    first = jnp.where(inside, words(two, (capacity,)), np.uint32(2**32 - 1))
    last, after = jnp.sort(first)[batch - 1: batch + 1]

    def rare() -> jax.Array:
        second, third = words(two, (2, capacity), part=1, rolled=True)
        places = jax.lax.sort((~inside, first, second, third, jnp.arange(capacity)), num_keys=4)[-1]
        return jnp.zeros(capacity, bool).at[places[:batch]].set(True)

    kept = jax.lax.cond(in_any_lane(last == after), rare, lambda: first <= last)
    number = jnp.where(kept, _running_sums(kept.astype(jnp.int32)) - 1, batch)
    rows = jnp.zeros(batch, jnp.int32).at[number].set(rows, mode="drop")
    return rows, fits & (jnp.sum(inside) >= batch)


def places(key: jax.Array, count: int) -> jax.Array:
    """A uniformly random permutation, int32 `[count]`: the order of as many numbers of 128 bits.

    The first bits decide, unless two numbers have the same.
    """
    first = written(lambda: words(key, (count,)))  # or they are drawn for each comparison

    def rare() -> jax.Array:
        second, third = pairs(key, (count,), part=1, rolled=True)
        fourth = words(child(key, 1), (count,), rolled=True)
        return jax.lax.sort((first, second, third, fourth, jnp.arange(count, dtype=jnp.int32)),
                            num_keys=4)[-1]

    @in_float64
    def sort(first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
        # one array is sorted several times as fast as several: numbers carry their places
        low = (1 << (count - 1).bit_length()) - 1
        both = (first.astype(jnp.uint64) << 32) | (second & np.uint32(~low & 0xFFFFFFFF))
        both = jnp.sort(both | jnp.arange(count, dtype=jnp.uint64))
        same = (both[1:] >> low.bit_length()) == (both[:-1] >> low.bit_length())
        return (both & low).astype(jnp.int32), jnp.any(same)

    if count <= _COUNTED:
        order = written(lambda: jnp.sum(first[:, None] < first[None, :], 0, dtype=jnp.int32))
        ties = jnp.sum(order) < count * (count - 1) // 2
    else:
        order, ties = sort(first, pairs(key, (count,), part=1)[0])
    return jax.lax.cond(in_any_lane(ties), rare, lambda: order)


def _in_places(key: jax.Array, rows: jax.Array, population: int) -> tuple[jax.Array, jax.Array]:
    """Rows in random places, and which of them are there; those from `population` on are not."""
    order = places(key, rows.shape[0])
    rows = written(lambda: rows[order])
    return jnp.minimum(rows, population - 1), rows < population


def _scaled(word: jax.Array, n: int, carry: jax.Array) -> jax.Array:
    """floor((word n + carry) / 2^32) for carry < n < 2^31, in digits of 16 bits."""
    low, high = word & 0xFFFF, word >> 16
    n0, n1 = jnp.uint32(n & 0xFFFF), jnp.uint32(n >> 16)
    bottom = low * n0
    start = bottom + carry  # may wrap around
    middle = high * n0 + (start >> 16) + ((start < bottom).astype(jnp.uint32) << 16)
    last = low * n1 + (middle & 0xFFFF)
    return high * n1 + (middle >> 16) + (last >> 16)


def _with_replacement(key: jax.Array, batch: int, population: int) -> Sample:
    """floor(U n / 2^96) for U of 96 random bits."""
    def rows() -> jax.Array:
        carry = jnp.zeros(batch, jnp.uint32)
        for word in words(key, (3, batch)):  # the lowest first
            carry = _scaled(word, population, carry)
        return carry.astype(jnp.int32)

    return Sample(written(rows), None, True)


def _running_sums(x: jax.Array) -> jax.Array:
    """Of the numbers up to and including each, `[c]`; block by block, which takes few programs."""
    width = 32
    count = -(-x.shape[0] // width)
    blocks = jnp.pad(x, (0, count * width - x.shape[0])).reshape(count, width)
    upto = np.tri(width, dtype=bool)
    sums = jnp.sum(jnp.where(upto, blocks[:, None, :], 0), -1, dtype=x.dtype)
    if count > 1:
        last = sums[:, -1]
        sums = sums + (_running_sums(last) - last)[:, None]
    return sums.reshape(-1)[: x.shape[0]]


def _gaps(key: jax.Array, table: np.ndarray, count: int, population: int) -> jax.Array:
    """min(X, population) for that many gaps X + 1, uint32 `[count]`.

    The first 32 bits of a digit decide, unless they are those of a threshold; only then, a few
    times in a million draws, the other 64 are drawn.
    """
    shape = (len(table), count)

    def gap(digits: Sequence[jax.Array]) -> jax.Array:
        *digits, beyond = digits
        total = functools.reduce(jnp.add, (d << 4 * j for j, d in enumerate(digits)),
                                 jnp.zeros(count, jnp.uint32))
        return jnp.where((beyond > 0) | (total > population), jnp.uint32(population), total)

    def rare(_: Sequence[jax.Array]) -> jax.Array:
        def add(k: jax.Array, digits: jax.Array) -> jax.Array:
            high, middle, low = jnp.asarray(table)[:, k].T[..., None]  # each [digits + 1, 1]
            return digits + ((a < high) | ((a == high) & (
                (b < middle) | ((b == middle) & (c < low)))))

        a, (b, c) = words(key, shape, rolled=True), pairs(key, shape, part=1, rolled=True)
        return gap(list(jax.lax.fori_loop(0, table.shape[1], add, jnp.zeros(shape, jnp.uint32))))

    first = words(key, shape)
    # Each digit is an operand of the branch, and so a program of its own. (A single one is slow:
    # the compiler gives up vectors in it, or draws the words anew for each reader.)
    digits = [functools.reduce(jnp.add, ((word < t).astype(jnp.uint32) for t in row))
              for word, row in zip(first, table[:, :, 0], strict=True)]
    ties = (word == t for word, row in zip(first, table[:, :, 0], strict=True) for t in row)
    return jax.lax.cond(in_any_lane(functools.reduce(jnp.logical_or, ties)), rare, gap, digits)


def _poisson(key: jax.Array, rate: float, population: int,
             capacity: int) -> tuple[jax.Array, jax.Array]:
    """Rows in order, then `population` where there are no more; and whether all fitted."""
    table = _thresholds(rate, population)  # [k + 1, 15, 3]
    # one gap more than the capacity: it tells whether a record was left out
    gap = _gaps(key, table, capacity + 1, population) + 1
    index, place = _running_sums(gap) - 1, jnp.arange(capacity + 1)
    # Sums of uint32 wrap around, but not before one has passed n: once out, a sample stays out.
    count = jnp.min(jnp.where(index < population, capacity + 1, place))
    rows = written(lambda: jnp.where((place < count)[:-1], index[:-1].astype(jnp.int32),
                                     population))
    return rows, count <= capacity


def draw(key: jax.Array, query: Query | Resolvent, release: jax.Array) -> Sample:
    """The sample of release number `release`.

    Args:
      key: used up by this draw.
      query: description of the sampling.
      release: number of releases made before this one, int32 `[]`.
    """
    match query.sampling:
        case Poisson(rate=rate):
            rows, fits = _poisson(key, rate, query.population, rows_read(query))
            return Sample(*_in_places(child(key, _PLACES), rows, query.population), fits)
        case FixedSize(batch=batch) if batch == query.population and not (
                query.sampling.replacement):
            return Sample(None, None, True)
        case FixedSize(batch=batch) if _is_one_by_one(query):  # every slot for itself
            return _with_replacement(key, batch, query.population)
        case FixedSize(batch=batch):
            rows, fits = _fixed_size(key, batch, query.population)
            return Sample(_in_places(child(key, _PLACES), rows, query.population)[0], None, fits)
        case Disjoint(batch=batch):
            first = (release % (query.population // batch)) * batch
            return Sample(first + jnp.arange(batch, dtype=jnp.int32), None, True)
    return Sample(None, None, True)
