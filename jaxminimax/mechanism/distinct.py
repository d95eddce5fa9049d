"""Distinct rows in random slots, and random ones of them: what samples are made of.

A slot is given a row r = floor(x n / 2^32) by 32 random bits x, unless the rest x n mod 2^32 is
below 2^32 mod n. The rows of the other slots are uniform, exactly: every row has floor(2^32 / n)
numbers x. A slot is *new* if it has a row that no earlier one has. Let T be the new slots. Which
slots are new depends only on which slots have equal rows; given that, all distinct rows are equally
likely. So given T the rows in it are a uniformly random arrangement of |T| of n.

A sample of m of them is held by m slots of T, all choices equally likely. Then given m and T a
sample is a uniform subset of the n rows, in uniformly random slots of T.

**Slots.** What is computed for a record may depend on its slot in the last bits, and sums are made
of blocks of slots; if rows were in order, or in the first m slots, one record would decide in which
slots others are. Here, m + 1 slots of T less a random one of them are m random slots of T: the
slots of the others have the same law whether a record takes part, does not, or is replaced. So for
a comparison they may be taken to be the same slots. (For the same reason all samples take one pass:
with a shorter one for samples of an ordinary size, one record would decide which pass the others
take. `poisson` draws a sample again that is too large.)

Source of the rows: Lemire, "Fast random integer generation in an interval", TOMACS 2019.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxminimax.base.random_bits import fold_in, word_pairs
from jaxminimax.base.tree import in_any_lane, in_float64, materialise

_PLACES, _TIES = 0x706C6163, 0x74696573  # what a sample's key is folded with
# P[the rest of a sample leaves no room in the pass of a record's shard], per release, on any mesh
CROWDED = 1e-27


class Room(NamedTuple):
    """Slots for samples of some size.

    Attributes:
      slots: how many.
      shuffled: whether all rows are put in a random order, and the first of them are taken: where
        there are so few that this costs less than drawing some of them twice. Then T is all slots.
    """

    slots: int
    shuffled: bool

    def failure(self, population: int) -> float:
        """A bound on the probability that numbers which put slots or rows in order are equal."""
        return tied(self.slots) + (tied(population) if self.shuffled else 0.0)


def lost(slots: int, population: int) -> float:
    """The mean lambda of a Poisson variable that the slots which are not new do not exceed.

    Slot j is new with probability (1 - (2^32 mod n) / 2^32) (1 - j/n) at least, whatever was drawn
    before, and a Poisson variable of mean -log(1 - p) is positive with probability p.
    """
    part = slots / population
    if part >= 1:
        return math.inf
    # -log(1 - x) <= x + x^2 / (2 (1 - x))
    # summed over j < slots with x = j / n; rounding up, 1 - x >= 1 - part
    twice = slots * part / 2 * (1 + part / (3 * (1 - part)))
    # and a slot is without a row with probability (2^32 mod n) / 2^32
    return twice - slots * math.log1p(-(2**32 % population) / 2**32)


def room(rows: int, population: int, short: Callable[[int], float],
         seldom: float = 1e-17) -> Room:
    """The fewest slots that are short of new ones with probability `seldom` at most.

    Args:
      rows: rows of a sample, and the slots where all rows are put in order.
      population: n.
      short: P[so many slots do not do], falling.
      seldom: what it may be, in every release. Of fixed sizes it is a matter of utility.
    """
    low = high = rows
    dense = 3  # below that many rows a slot all rows are put in order
    while dense * high <= population and short(high) > seldom:
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if short(middle) <= seldom else (middle + 1, high)
    return Room(low, False) if dense * low <= population else Room(rows, True)


@functools.lru_cache(maxsize=256)
def room_for(size: int, population: int) -> Room:
    """Slots of which so many are new, all but surely."""
    # P[Poisson(lambda) > slots - size]: fewer than `size` slots are new
    return room(size, population, lambda slots: float(
        scipy.special.pdtrc(slots - size, lost(slots, population))))


def scaled(word: jax.Array, n: int, carry: jax.Array) -> jax.Array:
    """Computes floor((word n + carry) / 2^32) for carry < n < 2^31, in digits of 16 bits."""
    # word n = high n1 2^32 + (high n0 + low n1) 2^16 + low n0
    low, high = word & 0xFFFF, word >> 16
    n0, n1 = jnp.uint32(n & 0xFFFF), jnp.uint32(n >> 16)
    bottom = low * n0
    start = bottom + carry  # may wrap around
    middle = high * n0 + (start >> 16) + ((start < bottom).astype(jnp.uint32) << 16)
    last = low * n1 + (middle & 0xFFFF)
    return high * n1 + (middle >> 16) + (last >> 16)


def rows_of_slots(key: jax.Array, room: Room,
                  population: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The rows of c slots, which of them are new, and 32 further random bits for each.

    Args:
      key: that of the sample.
      room: c.
      population: n.

    Returns:
      int32 `[c]`, below n, of those that are new; bool `[c]`; uint32 `[c]`.
    """
    count = room.slots
    x, y = materialise(lambda: word_pairs(key, (count,)))
    if room.shuffled:
        rows = places(fold_in(key, _PLACES), population)[:count]
        return rows, jnp.ones(count, bool), x
    rows = scaled(x, population, jnp.uint32(0)).astype(jnp.int32)
    # x n mod 2^32 >= 2^32 mod n leaves floor(2^32 / n) numbers x for every row
    present = x * np.uint32(population) >= np.uint32(2**32 % population)
    return rows, firsts(rows, present), y


def firsts(rows: jax.Array, present: jax.Array) -> jax.Array:
    """Returns which slots have a row that no earlier slot has, bool `[c]`.

    A table holds the first of the slots with each hash. A slot that has the same row as that first
    one is settled; the others are looked up again with another hash, all with one row together.

    Args:
      rows: int32 `[c]`, not negative.
      present: bool `[c]`, which slots have a row.
    """
    count = rows.shape[0]
    bits = min(max(10, (8 * count - 1).bit_length()), 31)
    # short numbers are cleared sooner
    slot = jnp.arange(count, dtype=jnp.int16 if count < 2**15 else jnp.int32)
    none = slot.dtype.type(count)
    # -1, -2, ... for slots without a row: each differs from all others
    rows = jnp.where(present, rows, ~jnp.arange(count, dtype=jnp.int32))

    def look_up(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        number, first = carry
        factor = number * np.uint32(0x3C6EF372) + np.uint32(0x9E3779B1)
        place = (rows.astype(jnp.uint32) * factor >> np.uint32(32 - bits)).astype(jnp.int32)
        table = jnp.full(1 << bits, none).at[place].min(
            jnp.where(first < 0, slot, none), mode="promise_in_bounds")
        lowest = table.at[place].get(mode="promise_in_bounds")
        index = jnp.minimum(lowest.astype(jnp.int32), count - 1)
        equal = rows.at[index].get(mode="promise_in_bounds") == rows
        return number + 1, jnp.where((first < 0) & equal, lowest, first)

    # the first slot with the same row, -1 until it is settled; every pass settles at least one slot
    first = jax.lax.while_loop(lambda carry: jnp.any(carry[1] < 0), look_up,
                               (jnp.uint32(0), jnp.full(count, slot.dtype.type(-1))))[1]
    return (first == slot) & present


def lowest_words(key: jax.Array, words: jax.Array, among: jax.Array, m: jax.Array) -> jax.Array:
    """Returns the m slots of `among` with the least numbers of 128 bits, bool `[c]`.

    A histogram of the first 32 bits, narrow around the m-th number's likely place, shows which bin
    the m-th number is in. A bin with more numbers than are wanted is divided again. Where the first
    32 bits are equal, the last 96 bits decide.

    Args:
      key: of the sample; the last 96 bits, which are seldom needed, are made from it.
      words: the first 32 bits, uint32 `[c]`.
      among: bool `[c]`.
      m: int32 `[]`; all of `among` are returned if these are fewer.
    """
    count = words.shape[0]
    half = 3 if count <= 128 else 5  # what is quickest
    side, bits = 2**half, 2 * half - 1  # side^2 bins, of which 2^bits in a row divide a bin
    total = jnp.sum(among, dtype=jnp.int32)
    m = jnp.minimum(m, total)
    # the m-th of c uniform numbers has a standard deviation of c^(-1/2) / 2 at most: the first
    # 2^(bits + 1) bins, each 2^first wide, reach 4 of these to either side of m / c
    first = min(32 - bits, max(0, math.ceil(33 - bits - math.log2(count) / 2)))
    reach = 2.0**(bits + first)
    centre = (m / jnp.maximum(total, 1)).astype(jnp.float32) * 2.0**32
    low = jnp.clip(centre - reach, 0, max(0.0, 2.0**32 - 2 * reach)).astype(jnp.uint32)

    def bins(low: jax.Array, width: jax.Array) -> jax.Array:
        """0 below `low`, 1, 2, ... from there, each 2^width wide, and the last one for the rest."""
        place = jnp.minimum((words - low) >> width, side**2 - 2).astype(jnp.int32)
        return jnp.where(words < low, 0, place + 1)

    def divide(carry: Any) -> Any:
        _, low, width, place, _ = carry
        # the m-th number may be outside of the first bins: then all numbers are divided
        inside = (place > 0) & (place < side**2 - 1)
        low = jnp.where(inside, low + ((place - 1).astype(jnp.uint32) << width), 0)
        width = jnp.where(inside, jnp.where(width > bits, width - bits, 0), np.uint32(32 - bits))
        counts = jnp.zeros(side**2, jnp.int32).at[bins(low, width)].add(
            among.astype(jnp.int32), mode="promise_in_bounds").reshape(side, side)
        row, rank = _among(jnp.sum(counts, 1, dtype=jnp.int32), m)
        column, rank = _among(counts[row], rank)
        return counts[row, column] == rank, low, width, side * row + column, rank

    separated, low, width, place, rank = jax.lax.while_loop(
        lambda carry: ~carry[0] & (carry[2] > 0), divide,
        (jnp.array(False), low, jnp.uint32(first + bits), jnp.int32(1), m))
    bin_of = bins(low, width)
    below, tied = among & (bin_of < place + separated), among & (bin_of == place)

    def settle(separated: jax.Array, key: jax.Array, below: jax.Array, tied: jax.Array,
               rank: jax.Array) -> jax.Array:
        return jax.lax.cond(
            separated, lambda: below, lambda: below | _by_last_bits(key, tied, rank))

    # of a vmap, only the lanes with equal numbers
    settled: jax.Array = jax.custom_batching.sequential_vmap(settle)(
        separated, key, below, tied, rank)
    return settled


def _by_last_bits(key: jax.Array, among: jax.Array, m: jax.Array) -> jax.Array:
    """Returns the m slots of `among` with the least numbers of 96 further bits."""
    count = among.shape[0]
    (second, fourth), (third, _) = word_pairs(fold_in(key, _TIES), (2, count))
    numbers = jnp.stack([fourth, third, second, (~among).astype(jnp.uint32)])

    def sort(i: jax.Array, order: jax.Array) -> jax.Array:
        # stable: numbers with an equal word stay in the order of their lower words
        return jax.lax.sort((numbers[i][order], order), num_keys=1)[1]

    order = jax.lax.fori_loop(0, 4, sort, jnp.arange(count, dtype=jnp.int32))
    return jnp.zeros(count, bool).at[order].set(jnp.arange(count) < m)


def _among(counts: jax.Array, rank: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the part that holds the one of this rank, counted from 1, and its rank there."""
    # how many are in each part and those before it
    upto = jnp.sum(jnp.where(np.tri(counts.shape[0], dtype=bool).T, counts[:, None], 0), 0,
                   dtype=jnp.int32)
    part = jnp.minimum(jnp.sum(upto < rank, dtype=jnp.int32), counts.shape[0] - 1)
    return part, rank - (upto[part] - counts[part])


def arrangement(key: jax.Array, size: int, population: int) -> tuple[jax.Array, jax.Array | bool]:
    """Draws distinct rows, all arrangements as likely, int32 `[m]`; and whether there are m."""
    room = room_for(size, population)
    rows, new, _ = rows_of_slots(key, room, population)
    if room.shuffled:
        return rows, True
    rank = jax.lax.associative_scan(jnp.add, new.astype(jnp.int32))  # running sums
    place = jnp.where(new, rank - 1, size)
    return jnp.zeros(size, jnp.int32).at[place].set(rows, mode="drop"), rank[-1] >= size


def tied(count: int) -> float:
    """A bound on the probability that two of that many numbers of 128 bits are equal.

    No record has a part in these coins. If all numbers differ, the order that they give is uniform,
    and independent of everything else.
    """
    # count^2 / 2 pairs at most, each equal with probability 2^-128
    return count**2 * 2.0**-129


def places(key: jax.Array, count: int) -> jax.Array:
    """A uniformly random permutation, int32 `[count]`: the order of as many numbers of 128 bits.

    The first bits decide, unless two numbers have the same.
    """
    counted = 160  # slots that are ordered by counting, as quick as a sort's first steps
    # not for each comparison, nor number by number in a program of 64 bits
    first, second = materialise(lambda: word_pairs(key, (count,)))

    def rare() -> jax.Array:
        third, fourth = word_pairs(key, (count,), part=1, rolled=True)
        order = jax.lax.sort((first, second, third, fourth, jnp.arange(count, dtype=jnp.int32)),
                             num_keys=4)[-1]
        # counting tells each number's place, sorting which number is at a place: one of both for
        # all, for in a vmap the ties of one lane send the others here too
        return order if count > counted else jnp.argsort(order).astype(jnp.int32)

    @in_float64
    def sort(first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
        # one array is sorted several times as fast as several: numbers carry their places
        low = (1 << (count - 1).bit_length()) - 1
        both = (first.astype(jnp.uint64) << 32) | (second & np.uint32(~low & 0xFFFFFFFF))
        both = jnp.sort(both | jnp.arange(count, dtype=jnp.uint64))
        same = (both[1:] >> low.bit_length()) == (both[:-1] >> low.bit_length())
        return (both & low).astype(jnp.int32), jnp.any(same)

    if count <= counted:
        order = materialise(lambda: jnp.sum(first[:, None] < first[None, :], 0, dtype=jnp.int32))
        # places 0, ..., c - 1 add up to c (c - 1) / 2; equal numbers share the lower one
        ties = jnp.sum(order) < count * (count - 1) // 2
    else:
        order, ties = sort(first, second)
    return jax.lax.cond(in_any_lane(ties), rare, lambda: order)
