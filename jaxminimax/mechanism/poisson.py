"""Poisson samples: every record independently, at static shape.

Sampling skips from one sampled record to the next, so a draw costs O(capacity) and never touches
the other records. The gap between them, X + 1, is geometric, and the hexadecimal digits of a
geometric variable are independent; so X is drawn digit by digit, each from 160 random bits against
thresholds that the host computes with exact integers. How far that is from independent Bernoulli(q)
is charged as a slightly larger rate, see `gap_law`. (Inversion of one float32 uniform a gap would
leave an error near 1e-7 a record: more than delta.)
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from jaxminimax.base import checks
from jaxminimax.base.materialise import materialise
from jaxminimax.base.random_bits import random_words, word_pairs
from jaxminimax.base.tree import in_any_lane
from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism.costs import NEIGHBOURS, Charge, PrivacyLoss, concrete
from jaxminimax.mechanism.gap_law import DIGIT, charged_law, rows_error, thresholds
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
        fits = special.bdtrc(room, population, self.rate) <= OVERFLOW
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
                else float(special.bdtrc(capacity, population, self.rate)))

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
    """Of the numbers up to and including each, `[c]`; block by block, which takes few programs."""
    width = 32
    count = -(-x.shape[0] // width)
    blocks = jnp.pad(x, (0, count * width - x.shape[0])).reshape(count, width)
    upto = np.tri(width, dtype=bool)
    sums = jnp.sum(jnp.where(upto, blocks[:, None, :], 0), -1, dtype=x.dtype)
    if count > 1:
        last = sums[:, -1]
        sums = sums + (running_sums(last) - last)[:, None]
    return sums.reshape(-1)[: x.shape[0]]


def gaps(key: jax.Array, table: np.ndarray, count: int, population: int) -> jax.Array:
    """min(X, population) for that many gaps X + 1, uint32 `[count]`.

    The first 32 bits of a digit decide, unless they are those of a threshold; only then, a few
    times in a million draws, the other 128 are drawn.
    """
    shape, last = (len(table), count), 1 << DIGIT * (len(table) - 1)

    def gap(digits: Sequence[jax.Array]) -> jax.Array:
        *digits, beyond = digits
        total = functools.reduce(jnp.add, (d << DIGIT * j for j, d in enumerate(digits)),
                                 jnp.zeros(count, jnp.uint32))
        if last < population:  # higher digits are 0, but for that one
            total, beyond = total + beyond * np.uint32(last), jnp.zeros_like(beyond)
        return jnp.where((beyond > 0) | (total > population), jnp.uint32(population), total)

    def rare(_: Sequence[jax.Array]) -> jax.Array:
        def add(k: jax.Array, digits: jax.Array) -> jax.Array:
            less = jnp.zeros(shape, bool)
            for word, t in reversed(list(zip(words, jnp.asarray(table)[:, k].T, strict=True))):
                less = (word < t[:, None]) | ((word == t[:, None]) & less)
            return digits + less

        rows = shape[0]
        x, y = word_pairs(key, (2 * rows, count), part=1, rolled=True)
        words = random_words(key, shape, rolled=True), x[:rows], y[:rows], x[rows:], y[rows:]
        return gap(list(jax.lax.fori_loop(0, table.shape[1], add, jnp.zeros(shape, jnp.uint32))))

    first = materialise(lambda: random_words(key, shape))  # once, not for each digit
    # Each digit is an operand of the branch, and so a program of its own. (A single one is slow:
    # the compiler gives up vectors in it, or draws the words anew for each reader.)
    digits = [functools.reduce(jnp.add, ((word < t).astype(jnp.uint32) for t in row))
              for word, row in zip(first, table[:, :, 0], strict=True)]
    ties = (word == t for word, row in zip(first, table[:, :, 0], strict=True) for t in row)
    return jax.lax.cond(in_any_lane(functools.reduce(jnp.logical_or, ties)), rare, gap, digits)


def poisson_rows(key: jax.Array, rate: float, population: int,
                 capacity: int) -> tuple[jax.Array, jax.Array]:
    """Rows in order, then `population` where there are no more; and whether all fitted."""
    table = thresholds(rate, population)  # [k + 1, 15, 5]
    # one gap more than the capacity: it tells whether a record was left out
    gap = gaps(key, table, capacity + 1, population) + 1
    index, place = running_sums(gap) - 1, jnp.arange(capacity + 1)
    # Sums of uint32 wrap around, but not before one has passed n: once out, a sample stays out.
    count = jnp.min(jnp.where(index < population, capacity + 1, place))
    rows = materialise(lambda: jnp.where((place < count)[:-1], index[:-1].astype(jnp.int32),
                                         population))
    return rows, count <= capacity
