"""Poisson samples: every record independently, at static shape.

A sample's size is drawn, and that many distinct rows in random slots (`distinct`): a uniform subset
of binomial size. So a draw costs O(capacity) and never touches the other records. The subset is
uniform exactly; how far the size, of 160 random bits, is from binomial is charged as a slightly
larger rate, see `size_law`. (One float32 uniform would leave an error near 1e-7: more than delta.)
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxminimax.base import checks
from jaxminimax.base.random_bits import fold_in, word_pairs
from jaxminimax.base.tree import in_any_lane
from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism.costs import NEIGHBOURS, Charge, PrivacyLoss, concrete
from jaxminimax.mechanism.distinct import (
    Room,
    exactly_some,
    lost,
    room,
    room_for,
    rows_of_slots,
    some,
)
from jaxminimax.mechanism.sampling import (
    OVERFLOW,
    InGroups,
    Sample,
    SampleKeys,
    Sampling,
    WorstCase,
)
from jaxminimax.mechanism.size_law import WORDS, charged_law, rows_error, thresholds
from jaxminimax.mechanism.slots import CROWDED

_SIZE = 0x73697A65  # what a sample's key is folded with for its size


@pytree_dataclass
class Poisson(Sampling):
    """Every record takes part independently with probability `rate`, anew in every release.

    Both fields are static: the thresholds of the sampler are computed from `rate` with exact
    integer arithmetic on the host, and `capacity` is a shape.

    Attributes:
      rate: q in (0, 1].
      capacity: most records that a release can hold, at least the expected number. A larger
        sample makes the release NaN, which costs no privacy (`size_law`) but the release. None:
        the smallest capacity that overflows with probability at most 1e-17.

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

    def _room(self, population: int) -> tuple[Room, int]:
        """The slots, and the most records of a sample."""
        return _slots(float(self.rate), int(population), self.capacity)

    def rows_read(self, population: int) -> int:
        """Slots: the capacity, and spare ones for rows that are drawn twice."""
        return self._room(population)[0].slots

    def rows_in_shard(self, population: int, size: int) -> int:
        """The capacity, or all of the shard."""
        return min(self._room(population)[1], size)

    def draw(self, keys: SampleKeys, release: jax.Array, population: int) -> Sample:
        """Rows in random slots; those that are not in the sample do not take part."""
        if self.rate == 1:
            return Sample(jnp.arange(population, dtype=jnp.int32), jnp.ones(population, bool), True)
        return Sample(*poisson_rows(keys.release, float(self.rate), population,
                                    *self._room(population)))

    def overflow(self, population: int) -> float:
        """P[a sample does not fit], for one release."""
        room, most = self._room(population)
        return _short(float(self.rate), population, most, 0.0 if room.whole
                      else lost(room.slots, population), room.slots)

    def charge(self, times: int, z: float, population: int) -> Charge:
        """As a Poisson-subsampled Gaussian mechanism of the realised rate."""
        room, most = self._room(population)
        law = charged_law(float(self.rate), int(population), most)
        # samples whose shard takes a second pass, without the record, are charged in full
        crowded = (1 + law.error) * CROWDED
        return Charge(losses=((PrivacyLoss("poisson", z, law.rate(float(self.rate))), times),),
                      failure=times * (law.failure + crowded + room.failure(population)),
                      sample_error=times * rows_error(float(self.rate), int(population), most))

    def in_words(self, times: int, population: int) -> str:
        """With the expected size, the capacity, and how often it is too small."""
        lost = -math.expm1(times * math.log1p(-min(self.overflow(population), 1 - 2.0**-53)))
        return (f"Poisson samples at rate {self.rate:.6g} of {population} records (expected batch "
                f"{self.rate * population:.6g}, capacity {self._room(population)[1]}, outgrown in "
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


@functools.lru_cache(maxsize=256)
def _slots(rate: float, population: int, capacity: int | None) -> tuple[Room, int]:
    """The slots, and the most records of a sample."""
    if rate == 1:
        return Room(population, True), population
    if capacity is not None:
        most = min(capacity, population)
        return room_for(most, population), most
    mean = rate * population
    sizes = np.arange(int(mean), int(mean + 20 * math.sqrt(mean)) + 40)
    fits = scipy.special.bdtrc(sizes, population, rate) <= OVERFLOW
    most = min(population, int(sizes[np.argmax(fits)]))
    found = room(most, population, lambda slots: _short(
        rate, population, slots, lost(slots, population), slots))
    return found, found.slots


def _short(rate: float, population: int, most: int, mean: float, slots: int) -> float:
    """P[a sample is larger than `most`, or than slots but for a Poisson variable of that mean]."""
    if mean == 0:
        return 0.0 if most >= population else float(scipy.special.bdtrc(most, population, rate))
    if mean > slots:
        return 1.0
    lost = np.arange(min(slots, int(mean + 20 * math.sqrt(mean)) + 40) + 1)
    chance = np.exp(lost * math.log(mean) - mean - scipy.special.gammaln(lost + 1))
    fits = np.minimum(most, slots - lost)
    return float(min(1.0, np.sum(chance * scipy.special.bdtrc(fits, population, rate))
                     + scipy.special.pdtrc(lost[-1], mean)))


def drawn_size(key: jax.Array, rate: float, population: int,
               most: int) -> tuple[jax.Array, jax.Array, Callable[[], jax.Array]]:
    """M, or `most` + 1 if that is less, int32 `[]`.

    The first 32 bits tell, unless they are those of a threshold: about one draw in 10^7.

    Returns:
      M by the first bits, whether they do not tell, and what tells by all bits.
    """
    first, table = thresholds(rate, population, most)
    x, y = word_pairs(fold_in(key, _SIZE), ((WORDS + 1) // 2,))
    words = jnp.stack([x, y], 1).reshape(-1)[:WORDS]

    def exactly() -> jax.Array:
        less = jnp.zeros(len(table), bool)
        for word, t in reversed(list(zip(words, jnp.asarray(table).T, strict=True))):
            less = (word < t) | ((word == t) & less)
        return first + jnp.sum(less, dtype=jnp.int32)

    top = jnp.asarray(table[:, 0])
    return (first + jnp.sum(words[0] < top, dtype=jnp.int32), jnp.any(words[0] == top), exactly)


def poisson_rows(key: jax.Array, rate: float, population: int, room: Room,
                 most: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rows of slots, int32 `[c]`, which of them are the sample, bool `[c]`, and whether it fits."""
    rows, new, words = rows_of_slots(key, room, population)
    size, open_, exact_size = drawn_size(key, rate, population, most)
    held, tie = some(words, new, size)

    def rare() -> tuple[jax.Array, jax.Array]:
        size = exact_size()
        return size, exactly_some(key, words, new, size)

    size, held = jax.lax.cond(in_any_lane(open_ | tie), rare, lambda: (size, held))
    # no record is read but the sample's: what is not in it could change no number, but need not try
    rows = jnp.where(held, rows, rows[jnp.argmax(held)])
    return rows, held, size <= jnp.minimum(most, jnp.sum(new, dtype=jnp.int32))
