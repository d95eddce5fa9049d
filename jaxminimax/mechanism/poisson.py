"""Poisson samples: every record independently, at static shape.

A sample's size is drawn, and that many distinct rows in random slots (`distinct`): a uniform subset
of binomial size. So a draw costs O(capacity) and never touches the other records. The subset is
uniform exactly; how far the size, of 160 random bits, is from binomial is charged as a slightly
larger rate, see `size_law`. (One float32 uniform would leave an error near 1e-7: more than delta.)

A sample that does not fit its slots is drawn again, until one fits. So slots need not be many more
than the expected records: what is charged is the same (`size_law`), no release is lost, and every
record is drawn with a probability between q (1 - s) and q, where s is the probability that the
slots do not hold a sample with it. Unless a capacity is given, s is at most `again`.

With p_0 the probability that the other records fill the slots, given that a sample fits, a record
is drawn with probability r = q (1 - p_0), and a sample has n r records on average. Where `again` is
above 1/1000 sums are divided by n r, so that the mean of a release is that of all records. In more
than 4,096 slots p_0 is bounded only, and sums are divided by q n: a bound would scale them up.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxminimax.base import checks, types
from jaxminimax.base.random_bits import fold_in, word_pairs
from jaxminimax.mechanism import distinct, size_law
from jaxminimax.mechanism.costs import NEIGHBOURS, Charge, PrivacyLoss, concrete
from jaxminimax.mechanism.distinct import CROWDED, Room, lowest_words, rows_of_slots, tied
from jaxminimax.mechanism.grid import BLOCK
from jaxminimax.mechanism.sampling import Choice, InGroups, Sample, SampleKeys, Sampling, WorstCase
from jaxminimax.mechanism.size_law import WORDS, charged_law, rows_error, thresholds

__all__ = ["Poisson"]

_SIZE, _AGAIN = 0x73697A65, 0x6761696E  # what a sample's key is folded with
_MOST_ENUMERATED = 4096  # slots whose law is computed one by one, in 50 ms
_SELDOM = 1e-3  # s, unless stated: so little that sums are divided by q n


@types.pytree_dataclass
class Poisson(Sampling):
    """Every record takes part independently with probability `rate`, anew in every release.

    All fields are static: the thresholds of the sampler are computed from `rate` with exact integer
    arithmetic on the host, `capacity` is a shape, and `again` decides one.

    Attributes:
      rate: q in (0, 1].
      capacity: most records that a release can hold, at least the expected number. Larger samples
        are drawn again, which costs no privacy (`size_law`), but records are drawn less often than
        at that rate: by a part s, which statements say. None: a little more than the expected
        number, so that s is at most `again`.
      again: s, in (0, 1/2], where no capacity is given. More of it saves slots, which cost as much
        time as records, in small samples of large models: for 16 expected records 31 slots are 22
        at 0.1. Records are drawn less often than at `rate` by a part p_0 of about s / 3
        (`filled_probability`), and as much of the releases is charged as nothing (`size_law`). A
        rate that is as much larger makes up for it, at its charge.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000,
        ...                   sampling=jmm.Poisson(rate=0.05))
        >>> jmm.mechanism.batch_size(query)  # that a sum is divided by, whatever the sample's size
        50.0
    """

    rate: float = jax.tree.static()
    capacity: int | None = jax.tree.static(default=None)
    again: float = jax.tree.static(default=_SELDOM)

    choices = {  # noqa: RUF012
        "poisson": Choice(lambda batch, records: Poisson(rate=batch / records), batch=float)}
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
        checks.scalars(again=self.again)
        checks.number("again", self.again, low=0.0, high=math.nextafter(0.5, 1.0))
        if self.capacity is not None:
            checks.count("capacity", self.capacity)
            if self.again != _SELDOM:
                raise ValueError(f"capacity={self.capacity} sets the slots, and again={self.again} "
                                 "does too: give one of them.")
            if self.capacity < math.floor(self.rate * population):
                raise ValueError(
                    f"capacity must be at least the expected {self.rate * population:.6g} records "
                    f"of a sample, got {self.capacity}: about every second sample, or more, would "
                    "be drawn again. Leave it None, or give room for a few standard deviations.")
            # draws would take long, and hardly follow the rate
            if self.redraw_probability(population) > 0.9:
                raise ValueError(
                    f"capacity={self.capacity} is too little for samples at rate {self.rate!r} of "
                    f"{population} records: more than nine in ten would be drawn again. Leave it "
                    "None, or give room for a few standard deviations.")

    def batch_size(self, population: int) -> float:
        """The expected size n r, where `again` is above 1/1000; or about that, q n."""
        return self._chance(population) * population

    def _chance(self, population: int) -> float:
        """The probability r that a record is drawn, or q."""
        if not self._divides_by_mean(population):
            return self.rate
        return self.rate * (1 - self.filled_probability(population))

    def _divides_by_mean(self, population: int) -> bool:
        """Says if sums are divided by n r: where p_0 is more than little, and not just bounded."""
        return self.again > _SELDOM and _is_enumerated(self._room(population)[0])

    def mean_drawn(self, population: int) -> float:
        """Returns q n: `charge` divides by the chance of a fit what is of samples before it."""
        return self.rate * population

    def _room(self, population: int) -> tuple[Room, int]:
        """The slots, and the most records of a sample."""
        return _slots(float(self.rate), int(population), self.capacity, float(self.again))

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
                                    *self._room(population)), True)

    def redraw_probability(self, population: int) -> float:
        """The part s: a sample with a given record does not fit, and so is drawn again, that often.

        Every record is drawn with a probability between q (1 - s) and q.
        """
        return _redraws(float(self.rate), int(population), self.capacity, float(self.again))

    def seldom_again(self, population: int) -> "Poisson":
        """Samples of as many records in the mean, of which one in 1,000 is drawn again."""
        return Poisson(rate=self.rate * (1 - self.filled_probability(population)))

    def shortfall(self, population: int) -> float:
        """The part p_0 by which the mean of a release falls short, 0 where it is divided by n r."""
        return 0.0 if self._divides_by_mean(population) else self.filled_probability(population)

    def filled_probability(self, population: int) -> float:
        """p_0 = P[the others fill the slots, and the record is not drawn], given that all fit.

        It is (1 - q) E b(c) / E C(c), b the probabilities of the others' number, C the distribution
        function of a sample's size, c the slots with a row of their own: P[a record is drawn | all
        fit] is q (1 - that). Of more than 4,096 slots the law of c is bounded: slots without a row
        of their own are no more than a Poisson variable, and b falls from its mode on.
        """
        rate, (room, most), law = float(self.rate), self._room(population), scipy.stats.binom
        if rate == 1:
            return 0.0
        if _is_enumerated(room):
            return _filled(rate, population, room, most)
        lost, chance = _lost(distinct.lost(room.slots, population), room.slots)
        fits = np.minimum(most, room.slots - lost)
        # nothing of the tail beyond the listed slots is larger than b at its mode
        mode = min(population - 1, math.floor(population * rate))
        alone = law.pmf(np.maximum(fits, mode), population - 1, rate)
        rest = max(1 - float(np.sum(chance)), 0.0) * law.pmf(mode, population - 1, rate)
        return float((1 - rate) * (chance @ alone + rest)
                     / (chance @ law.cdf(fits, population, rate)))

    def charge(self, times: int, z: float, population: int) -> Charge:
        """Charges a Poisson-subsampled Gaussian mechanism of the realised rate.

        Where sums are divided by n r, a release whose slots the other records fill costs nothing
        (`size_law`).
        """
        room, most = self._room(population)
        law = charged_law(float(self.rate), int(population), most)
        # samples whose shard takes a second pass, without the record, are charged in full, and so
        # are orders of a shard's slots that their numbers do not determine
        crowded = (1 + law.error) * CROWDED
        # given that a sample fits, what is rare is so many times as likely at most
        # Z >= 1 - s; for k records 1.5 rows_error / Z is charged, see `size_law`
        often = times / max(1 - self.redraw_probability(population), 1e-300)
        # below p_0 of the realised law: its masses are within 2^-159, sums of floats within 1e-10
        filled = (max(0.0, (1 - 1e-9) * self.filled_probability(population) - 1e-40)
                  if self._divides_by_mean(population) else 0.0)
        loss = PrivacyLoss("poisson", z, law.rate(float(self.rate)), *(
            (int(population), most, filled) if filled else ()))
        return Charge(losses=((loss, times),),
                      failure=often * (law.failure + crowded + room.failure(population)
                                       + tied(room.slots)),
                      sample_error=1.5 * often * rows_error(float(self.rate), int(population),
                                                            most))

    def summary(self, times: int, population: int) -> str:
        """States the expected size, the capacity, and how much less often records are drawn."""
        less, most = self.redraw_probability(population), self._room(population)[1]
        return (f"Poisson samples at rate {self.rate:.6g} of {population} records (expected batch "
                f"{self.batch_size(population):.6g}; samples beyond {most} are "
                f"drawn again, for which the rate is lower by a part {less:.2g} at most)")

    def assumed(self) -> tuple[str, ...]:
        """Returns no assumption."""
        return ()

    def in_groups(self) -> InGroups:
        """Draws among as many rows as the largest group has.

        Rows beyond the group are dropped, which leaves a Poisson sample of the group: population
        and capacity are the largest group's for all.

        Raises:
          ValueError: for another `again` than the default, as a group's sums are divided by q n.
        """
        if self.again != _SELDOM:
            raise ValueError(f"again = {self.again} is not for samples of a group: leave it at "
                             f"{_SELDOM}.")

        def one(keys: SampleKeys, sizes: tuple[int, ...], group: jax.Array) -> Sample:
            size = jnp.asarray(sizes, jnp.int32)[group]
            sample = self.draw(keys, jnp.int32(0), max(sizes))
            assert sample.rows is not None
            assert sample.valid is not None
            return sample._replace(valid=(sample.rows < size) & sample.valid)

        return InGroups(f"Poisson samples of it at rate {self.rate:.6g}",
                        lambda size, largest: largest, one)

    def spread(self, population: int) -> float | None:
        """The spread 1 - q of independent draws; more where they are drawn again and q is large.

        Let K be the size of a sample, given that it fits. For records x_i with sum S its sum has
        the variance a ||S||^2 + b sum ||x_i||^2 with b = E[K (n - K)] / (n (n - 1)), and a <= 0,
        as K varies less than without the limit c. K (n - K) binom(n, K) = n (n - 1) binom(n - 2, K
        - 1), so b is q (1 - q) P[Bin(n - 2, q) < c] / P[Bin(n, q) <= c]. That quotient is above 1
        for c > (1 - q) (n - 1) only, which is beyond samples that may take a row twice.
        """
        # n q (1 - q) C^2 / m^2 = (1 - q) (q n / m) C^2 / m
        rate, law = concrete(self.rate), scipy.stats.binom
        most = self._room(population)[1]
        alone = (1 - rate) * (rate * population / self.batch_size(population))
        if most >= population or most <= (1 - rate) * (population - 1):
            return alone
        return float(alone * law.cdf(most - 1, population - 2, rate)
                     / law.cdf(most, population, rate))

    def worst_case(self, population: int) -> WorstCase:
        """A record with probability q, or r; the others contribute nothing."""
        if self.rate == 1:
            return WorstCase(np.ones(1), np.ones(1))
        drawn = self._chance(population)
        return WorstCase(np.array([0.0, 1.0]), np.array([1 - drawn, drawn]), read=drawn)


@functools.lru_cache(maxsize=256)
def _slots(rate: float, population: int, capacity: int | None,
           again: float) -> tuple[Room, int]:
    """The slots, and the most records of a sample."""
    if rate == 1:
        return Room(population, True), population
    if capacity is not None:
        most = min(capacity, population)
        return distinct.room_for(most, population), most
    mean = rate * population
    sizes = np.arange(1, int(mean + 20 * math.sqrt(mean)) + 40)
    # P[Binomial(n - 1, q) >= size]: the others leave a record no room
    seldom = scipy.special.bdtrc(sizes - 1, population - 1, rate) <= again
    most = min(population, int(sizes[np.argmax(seldom)]))
    room = distinct.room(most, population, lambda slots: _short(
        rate, population, slots, distinct.lost(slots, population), slots), again)
    # sums add the rows beyond the last whole block apart, which costs more than a few further slots
    full_blocks = -(-room.slots // BLOCK) * BLOCK
    if not room.shuffled and full_blocks <= 1.05 * room.slots and full_blocks < population:
        room = Room(full_blocks, False)
    return room, room.slots


@functools.lru_cache(maxsize=256)
def _redraws(rate: float, population: int, capacity: int | None, again: float) -> float:
    """The probability that a sample with a given record does not fit, at least any sample's."""
    # with the record among them: one more than the others must fit
    room, most = _slots(rate, population, capacity, again)
    mean = 0.0 if room.shuffled else distinct.lost(room.slots, population)
    return _short(rate, population, most, mean, room.slots)


def _short(rate: float, population: int, most: int, mean: float, slots: int) -> float:
    """The probability that a record and those drawn of the others do not fit.

    Args:
      rate: q.
      population: n.
      most: records of a sample.
      mean: slots without a row are as many as a Poisson variable of that mean, at most.
      slots: how many there are.
    """
    if rate == 1 or (mean == 0 and most >= population):
        return 0.0
    if mean > slots:
        return 1.0
    lost, chance = _lost(mean, slots)
    fits = np.minimum(most, slots - lost)
    # P[Binomial(n - 1, q) >= fits]: with the record among them they do not fit
    beyond = np.where(fits >= population, 0.0, scipy.special.bdtrc(
        np.minimum(fits, population - 1) - 1, population - 1, rate))
    # what is beyond the listed l counts in full
    return float(min(1.0, np.sum(chance * np.where(fits > 0, beyond, 1.0))
                     + scipy.special.pdtrc(lost[-1], mean)))


def _lost(mean: float, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of slots without a row, and the masses e^-mean mean^l / l! of their Poisson law."""
    lost = np.arange(min(slots, int(mean + 20 * math.sqrt(mean)) + 40) + 1)
    return lost, (np.exp(lost * math.log(mean) - mean - scipy.special.gammaln(lost + 1)) if mean
                  else (lost == 0).astype(float))


def _is_enumerated(room: Room) -> bool:
    """Says if the law of the slots with a row of their own is computed exactly."""
    return room.shuffled or room.slots <= _MOST_ENUMERATED


@functools.lru_cache(maxsize=64)
def _new_slots(room: Room, population: int) -> np.ndarray:
    """The law of the number of slots with a row of their own, `[slots + 1]`."""
    if room.shuffled:
        return np.eye(room.slots + 1)[room.slots]
    law, numbers = np.eye(room.slots + 1)[0], np.arange(room.slots + 1)
    # a slot has a row with probability 1 - (2^32 mod n) / 2^32, and it is new as often as of n
    new = (1 - 2**32 % population / 2**32) * (1 - numbers / population)
    for _ in range(room.slots):
        law = law * (1 - new) + np.append(0.0, (law * new)[:-1])
    return law


@functools.lru_cache(maxsize=64)
def _filled(rate: float, population: int, room: Room, most: int) -> float:
    """p_0, from the integers that sizes are drawn by."""
    first, masses = size_law.masses(rate, population)
    total, law = sum(masses), np.zeros(most + 1)
    for k, mass in enumerate(masses[:max(most + 1 - first, 0)], first):
        law[k] = mass / total
    chance, fits = _new_slots(room, population), np.minimum(most, np.arange(room.slots + 1))
    # P[the others are k, and the record is not drawn] = P[a sample has k] (1 - k / n)
    alone = law * (1 - np.arange(most + 1) / population)
    return float(chance @ alone[fits] / (chance @ np.cumsum(law)[fits]))


def drawn_size(key: jax.Array, rate: float, population: int, most: int) -> jax.Array:
    """Draws the size M, or `most` + 1 if that is less, int32 `[]`."""
    first, table = thresholds(rate, population, most)
    x, y = word_pairs(fold_in(key, _SIZE), ((WORDS + 1) // 2,))
    words = jnp.stack([x, y], 1).reshape(-1)[:WORDS]
    less = jnp.zeros(len(table), bool)
    # W < t as numbers of 160 bits: a higher word decides, the lower ones where it is equal
    for word, t in reversed(list(zip(words, jnp.asarray(table).T, strict=True))):
        less = (word < t) | ((word == t) & less)
    return first + jnp.sum(less, dtype=jnp.int32)


def poisson_rows(key: jax.Array, rate: float, population: int, room: Room,
                 most: int) -> tuple[jax.Array, jax.Array]:
    """Rows of slots, int32 `[c]`, and which of them are the sample, bool `[c]`.

    The first sample that fits, of those that `key` and the keys made from it draw.
    """
    def attempt(carry: Any) -> Any:
        key = carry[0]
        rows, new, words = rows_of_slots(key, room, population)
        size = drawn_size(key, rate, population, most)
        held = lowest_words(key, words, new, size)
        return fold_in(key, _AGAIN), rows, held, _fits(size, new, most)

    slots = room.slots
    _, rows, held, _ = jax.lax.while_loop(lambda carry: ~carry[3], attempt, (
        key, jnp.zeros(slots, jnp.int32), jnp.zeros(slots, bool), jnp.array(False)))
    # few records are read: an empty slot reads the row of slot 0. Whether that is in the sample or
    # not, an empty slot has weight 0 in every sum, so it changes no number
    return jnp.where(held, rows, rows[0]), held


def _fits(size: jax.Array, new: jax.Array, most: int) -> jax.Array:
    """Returns whether there are slots for a sample of that size, bool `[]`."""
    return size <= jnp.minimum(most, jnp.sum(new, dtype=jnp.int32))
