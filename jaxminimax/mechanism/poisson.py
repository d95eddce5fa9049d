"""Poisson samples: every record independently, at static shape.

Sampling skips from one sampled record to the next, so a draw costs O(capacity) and never touches
the other records. The gap between them, X + 1, is geometric, and the digits of a geometric variable
are independent; so X is drawn digit by digit, each from 160 random bits against thresholds that the
host computes with exact integers. How far that is from independent Bernoulli(q)
is charged as a slightly larger rate, see `gap_law`. (Inversion of one float32 uniform a gap would
leave an error near 1e-7 a record: more than delta.)
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxminimax.base import checks
from jaxminimax.base.materialise import materialise
from jaxminimax.base.random_bits import word_pairs
from jaxminimax.base.tree import in_any_lane
from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism.costs import NEIGHBOURS, Charge, PrivacyLoss, concrete
from jaxminimax.mechanism.gap_law import FAST, charged_law, rows_error, thresholds, widths
from jaxminimax.mechanism.sampling import (
    OVERFLOW,
    InGroups,
    Sample,
    SampleKeys,
    Sampling,
    WorstCase,
)
from jaxminimax.mechanism.slots import CROWDED, in_places, tied


@pytree_dataclass
class Poisson(Sampling):
    """Every record takes part independently with probability `rate`, anew in every release.

    Both fields are static: the thresholds of the sampler are computed from `rate` with exact
    integer arithmetic on the host, and `capacity` is a shape.

    Attributes:
      rate: q in (0, 1].
      capacity: most records that a release can hold, at least the expected number. A larger
        sample makes the release NaN, which costs no privacy (`gap_law`) but the release. None: the
        smallest capacity that overflows with probability at most 1e-17.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000,
        ...                   sampling=jmm.Poisson(rate=0.05))
        >>> jmm.mechanism.batch_size(query)  # that a sum is divided by, whatever the sample's size
        50.0
    """

    rate: float = jax.tree.static()
    capacity: int | None = jax.tree.static(default=None)

    ordered = False
    secret = True
    compares_absent = True  # the worst pair of a replaced record is with and without it
    compared_pairs = 2  # without the record, with it, and with the one in its place
    relations = NEIGHBOURS

    def check(self, population: int) -> None:
        """Refuses a rate outside of (0, 1], samples that are empty or too large all but surely."""
        checks.scalars(rate=self.rate)
        checks.number("rate", self.rate, low=0.0, high=math.nextafter(1.0, 2.0))
        checks.number("rate * population", self.rate * population, low=1e-6)
        if self.capacity is not None:
            checks.count("capacity", self.capacity)
            if self.capacity < math.floor(self.rate * population):
                raise ValueError(
                    f"capacity must be at least the expected {self.rate * population:.6g} records "
                    f"of a sample, got {self.capacity}: about every second release, or more, would "
                    "be NaN. Leave it None, or give room for a few standard deviations.")

    def batch_size(self, population: int) -> float:
        """The expected size, q n."""
        return self.rate * population

    def rows_read(self, population: int) -> int:
        """The capacity."""
        if self.capacity is not None:
            return min(population, self.capacity)
        mean = self.rate * population
        room = np.arange(int(mean), int(mean + 20 * math.sqrt(mean)) + 40)
        fits = scipy.special.bdtrc(room, population, self.rate) <= OVERFLOW
        return min(population, int(room[np.argmax(fits)]))

    def rows_in_shard(self, population: int, size: int) -> int:
        """The capacity, or all of the shard."""
        return min(self.rows_read(population), size)

    def draw(self, keys: SampleKeys, release: jax.Array, population: int) -> Sample:
        """Rows in random slots; those beyond the sample's size do not take part."""
        rows, fits = poisson_rows(keys.release, self.rate, population, self.rows_read(population))
        return Sample(*in_places(keys.release, rows, population), fits)

    def overflow(self, population: int) -> float:
        """P[a sample does not fit], for one release."""
        capacity = self.rows_read(population)
        return (0.0 if capacity >= population
                else float(scipy.special.bdtrc(capacity, population, self.rate)))

    def charge(self, times: int, z: float, population: int) -> Charge:
        """As a Poisson-subsampled Gaussian mechanism of the realised rate."""
        capacity = self.rows_read(population)
        law = charged_law(float(self.rate), int(population), capacity + 1)
        # samples whose shard takes a second pass, without the record, are charged in full
        crowded = (1 + law.sample(capacity + 1)) * CROWDED
        return Charge(losses=((PrivacyLoss("poisson", z, law.rate(float(self.rate))), times),),
                      failure=times * (law.failure(capacity + 1) + crowded + tied(capacity)),
                      sample_error=times * rows_error(float(self.rate), int(population), capacity))

    def in_words(self, times: int, population: int) -> str:
        """With the expected size, the capacity, and how often it is too small."""
        lost = -math.expm1(times * math.log1p(-min(self.overflow(population), 1 - 2.0**-53)))
        return (f"Poisson samples at rate {self.rate:.6g} of {population} records (expected batch "
                f"{self.rate * population:.6g}, capacity {self.rows_read(population)}, outgrown in "
                f"some release with probability {lost:.2g})")

    def assumptions(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def in_groups(self) -> InGroups:
        """Drawn among as many rows as the largest group has.

        Rows beyond the group are dropped, which leaves a Poisson sample of the group: population,
        capacity and overflow are the largest group's for all.
        """
        def one(keys: SampleKeys, sizes: tuple[int, ...], group: jax.Array) -> Sample:
            size = jnp.asarray(sizes, jnp.int32)[group]
            sample = self.draw(keys, jnp.int32(0), max(sizes))
            assert sample.rows is not None
            assert sample.valid is not None
            return sample._replace(valid=(sample.rows < size) & sample.valid)

        return InGroups(f"Poisson samples of it at rate {self.rate:.6g}",
                        lambda size, largest: largest, one)

    def spread(self) -> float | None:
        """Of draws that are independent from release to release."""
        return 1 - concrete(self.rate)

    def worst_case(self, population: int) -> WorstCase:
        """A record with probability q; the others contribute nothing."""
        if self.rate == 1:
            return WorstCase(np.ones(1), np.ones(1))
        return WorstCase(np.array([0.0, 1.0]), np.array([1 - self.rate, self.rate]),
                         read=self.rate)


def running_sums(x: jax.Array) -> jax.Array:
    """Of the numbers up to and including each, `[c]`."""
    return jax.lax.associative_scan(jnp.add, x)


def _digit(word: jax.Array, row: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """How many of the thresholds are above a word, and whether it is equal to one of them.

    By halving. A word that is equal to one meets it: the first threshold that is not above the word
    is among those that it was compared with.

    Args:
      word: uint32 `[...]`.
      row: uint32 `[2^w - 1]`, falling.
    """
    left = [jnp.uint32(t) for t in row]
    digit, tie = jnp.zeros_like(word), jnp.zeros(word.shape, bool)
    while left:
        half = len(left) // 2
        more, tie = word < left[half], tie | (word == left[half])
        digit = digit | jnp.where(more, np.uint32(half + 1), np.uint32(0))
        left = [jnp.where(more, above, below)
                for above, below in zip(left[half + 1:], left[:half], strict=True)]
    return digit, tie


def gaps(key: jax.Array, rate: float, population: int, count: int) -> jax.Array:
    """min(X, population) for that many gaps X + 1, uint32 `[count]`.

    The first 32 bits of a digit and the first thresholds of H decide (see `gap_law`), unless the
    bits are those of a threshold or all of these are exceeded: about one draw in 10^4. Then the
    other 128 bits are drawn, and all of them are compared with all thresholds.
    """
    table, cut = thresholds(rate, population), widths(rate, population)
    digits, shifts = len(table), np.cumsum((0, *cut)).astype(np.uint32)
    last = int(np.count_nonzero(np.any(table[-1], 1)))  # thresholds of H
    shape = (digits + 1) // 2, count  # two words a counter, for neighbouring digits

    def fast() -> jax.Array:
        """The gaps; from 2^31 on, if they are not decided."""
        x, y = word_pairs(key, shape)
        total, open_ = jnp.zeros(count, jnp.uint32), jnp.zeros(count, bool)
        for j, width in enumerate((*cut, min(last, FAST).bit_length())):
            digit, tie = _digit((x, y)[j % 2][j // 2], table[j, :2**width - 1, 0])
            total, open_ = total + (digit << shifts[j]), open_ | tie
        if last > FAST:
            open_ |= digit == FAST
        total = jnp.minimum(total, np.uint32(population))
        return total | jnp.where(open_, np.uint32(2**31), np.uint32(0))

    def rare() -> jax.Array:
        def add(k: jax.Array, found: jax.Array) -> jax.Array:
            less = jnp.zeros((digits, count), bool)
            for word, t in reversed(list(zip(words, jnp.asarray(table)[:, k].T, strict=True))):
                less = (word < t[:, None]) | ((word == t[:, None]) & less)
            return found + less

        x, y = word_pairs(key, shape, rolled=True)
        top = jnp.stack([x, y], 1).reshape(-1, count)[:digits]
        x, y = word_pairs(key, (2 * digits, count), part=1, rolled=True)
        words = top, x[:digits], y[:digits], x[digits:], y[digits:]
        found = jax.lax.fori_loop(0, table.shape[1], add, jnp.zeros(top.shape, jnp.uint32))
        return jnp.minimum(jnp.sum(found << shifts[:, None], 0, dtype=jnp.uint32),
                           np.uint32(population))

    gap = materialise(fast)  # once, not for each of its readers
    return jax.lax.cond(in_any_lane(gap >= np.uint32(2**31)), rare, lambda: gap)


def poisson_rows(key: jax.Array, rate: float, population: int,
                 capacity: int) -> tuple[jax.Array, jax.Array]:
    """Rows in order, then `population` where there are no more; and whether all fitted."""
    # one gap more than the capacity: it tells whether a record was left out
    gap = gaps(key, rate, population, capacity + 1) + 1
    index, place = running_sums(gap) - 1, jnp.arange(capacity + 1)
    # Sums of uint32 wrap around, but not before one has passed n: once out, a sample stays out.
    count = jnp.min(jnp.where(index < population, capacity + 1, place))
    rows = materialise(lambda: jnp.where((place < count)[:-1], index[:-1].astype(jnp.int32),
                                         population))
    return rows, count <= capacity
