"""Samples whose size is fixed: all records, disjoint batches in order, subsets, and draws.

`Full` and `Disjoint` draw nothing. A `FixedSize` subset is distinct rows, all as likely; draws with
replacement are products of 96 random bits, and are charged as they are drawn, by a slightly larger
rate:

**With replacement** every draw is record i with probability p_i <= p = (1 + n 2^-96) / n,
independently. The bound of `accounting.gaussian` draws a substitute for every slot from the law
without i, and hits; it uses only that k hits move a release by at most k slots. Keeping a hit with
probability p_i / p makes them fewer, so it holds with hits of probability p. A single draw is the
same without replacement, by the argument on smaller rates in `size_law`.

**Without replacement** all subsets are as likely, exactly (`distinct`), if they are drawn at all: a
release is NaN if too few rows are distinct, which no data have a part in, and a failure if numbers
of 128 bits are equal, which put few rows in order.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxminimax.base import random_bits, tree
from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism import correlated, costs, sampling, sentences
from jaxminimax.mechanism.distinct import CROWDED, arrangement, lost, room_for, scaled, tied
from jaxminimax.mechanism.sampling import Sample, SampleKeys, Sampling, WorstCase

__all__ = ["Disjoint", "FixedSize", "Full"]


@pytree_dataclass
class Full(Sampling):
    """Every record takes part in every release.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000, sampling=jmm.Full())
        >>> jmm.mechanism.batch_size(query)
        1000.0
    """

    choices = {"full": sampling.Choice(lambda batch, records: Full(), batch=None)}  # noqa: RUF012
    ordered = True
    secret = False
    compares_absent = False
    compared_pairs = 1
    relations = costs.NEIGHBOURS

    def check(self, population: int) -> None:
        """Accepts every population."""

    def batch_size(self, population: int) -> float:
        """The population, n."""
        return float(population)

    def rows_read(self, population: int) -> int:
        """The population, n."""
        return population

    def rows_in_shard(self, population: int, size: int) -> int:
        """All rows of the shard."""
        return min(population, size)

    def draw(self, keys: SampleKeys, release: jax.Array, population: int) -> Sample:
        """Returns all records, without a draw."""
        return Sample(None, None, True)

    def charge(self, times: int, z: float, population: int) -> costs.Charge:
        """Charges a Gaussian mechanism, `times` times."""
        return costs.gaussian(times, z)

    def summary(self, times: int, population: int) -> str:
        """States that all records are read."""
        return f"all {population} records, without sampling"

    def assumed(self) -> tuple[str, ...]:
        """Returns no assumption."""
        return ()

    def in_groups(self) -> sampling.InGroups:
        """All records of the group, among as many rows as the largest has."""
        def group_sample(keys: SampleKeys, sizes: tuple[int, ...], group: jax.Array) -> Sample:
            size = jnp.asarray(sizes, jnp.int32)[group]
            return Sample(None, jnp.arange(max(sizes)) < size, True)

        return sampling.InGroups("all of its records", lambda size, largest: size, group_sample)

    def spread(self, population: int) -> float | None:
        """The spread of draws that are independent from release to release."""
        return 0.0

    def worst_case(self, population: int) -> WorstCase:
        """A record, once in every release."""
        return WorstCase(np.ones(1), np.ones(1))


@pytree_dataclass
class Disjoint(Sampling):
    """Release k reads rows [k b, (k + 1) b), then the next b, and starts over after a pass.

    Rows beyond the last whole batch are never read. The order of the rows must be public: shuffle
    the data once with a permutation that does not depend on it.

    Attributes:
      batch: b, records in a release.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000,
        ...                   sampling=jmm.Disjoint(batch=50))
        >>> jmm.mechanism.rows_read(query)  # of 20 batches in a pass
        50
    """

    batch: int = jax.tree.static()

    choices = {  # noqa: RUF012
        "disjoint": sampling.Choice(lambda batch, records: Disjoint(batch=batch))}
    ordered = True
    secret = False
    compares_absent = False
    compared_pairs = 1
    relations = (costs.REPLACE_ONE,)

    def check(self, population: int) -> None:
        """Refuses a batch that the data have not."""
        sampling.check_batch(self.batch, population)

    def batch_size(self, population: int) -> float:
        """The number of records, b."""
        return float(self.batch)

    def rows_read(self, population: int) -> int:
        """The number of records, b."""
        return self.batch

    def rows_in_shard(self, population: int, size: int) -> int:
        """The batch, side by side, or all of the shard."""
        return min(self.batch, size)

    def draw(self, keys: SampleKeys, release: jax.Array, population: int) -> Sample:
        """The next batch; nothing is random."""
        first = (release % (population // self.batch)) * self.batch
        return Sample(first + jnp.arange(self.batch, dtype=jnp.int32), None, True)

    def passes(self, times: int, population: int) -> int:
        """Passes over the data that `times` releases begin."""
        return math.ceil(times / (population // self.batch))

    def correlation(self, population: int) -> correlated.Passes:
        """A record is read once a pass: rows have the same order in all of them."""
        return correlated.Passes(population // self.batch)

    def charge(self, times: int, z: float, population: int) -> costs.Charge:
        """A record is read once a pass."""
        # the order of the rows is public, so nothing is amplified
        return costs.gaussian(self.passes(times, population), z)

    def summary(self, times: int, population: int) -> str:
        """States the batch, the population and the number of passes."""
        return (f"disjoint batches of {self.batch} of {population} records, "
                f"{self.passes(times, population)} pass(es)")

    def assumed(self) -> tuple[str, ...]:
        """The assumption that the order of the rows is public."""
        return (sentences.PLACES,)

    def worst_case(self, population: int) -> WorstCase:
        """A record, once in every pass; record 0 in its first release."""
        return WorstCase(np.ones(1), np.ones(1), every=population // self.batch)


@pytree_dataclass
class FixedSize(Sampling):
    """Exactly `batch` records take part, uniformly, anew in every release; replace-one only.

    Attributes:
      batch: m.
      replacement: whether a record may be drawn several times, as the papers' listings write it.
        It then costs much more than a Poisson sample of the same expected size.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000,
        ...                   sampling=jmm.FixedSize(batch=50))
        >>> jmm.mechanism.batch_size(query)
        50.0
    """

    batch: int = jax.tree.static()
    replacement: bool = jax.tree.static(default=False)

    choices = {  # noqa: RUF012
        "fixed": sampling.Choice(lambda batch, records: FixedSize(batch=batch)),
        "with_replacement": sampling.Choice(lambda batch, records: FixedSize(batch=batch,
                                                                             replacement=True))}
    ordered = False
    secret = True
    compares_absent = False
    relations = (costs.REPLACE_ONE,)

    @property
    def compared_pairs(self) -> int:
        """The pairs of a hit slot: against the other data set, and against the substitute.

        With replacement one copy after the other is replaced, of m at most and 2 m / n on average.
        """
        return self.batch if self.replacement else 2

    def _everything(self, population: int) -> bool:
        return self.batch == population and not self.replacement

    def _one_by_one(self, population: int) -> bool:
        """Returns whether rows are drawn independently: with replacement, or a single one."""
        return self.replacement or self.batch == 1 < population

    def check(self, population: int) -> None:
        """Refuses a batch that the data have not."""
        if not isinstance(self.replacement, bool):
            raise ValueError(f"replacement must be True or False, got {self.replacement!r}.")
        sampling.check_batch(self.batch, math.inf if self.replacement else population)

    def batch_size(self, population: int) -> float:
        """The number of records, m."""
        return float(self.batch)

    def mean_drawn(self, population: int) -> float:
        """The number of records, m: every row is drawn equally often."""
        return float(self.batch)

    def rows_read(self, population: int) -> int:
        """The number of records, m."""
        return self.batch

    def rows_in_shard(self, population: int, size: int) -> int:
        """The whole sample; without replacement, no more than the shard has."""
        return self.batch if self.replacement else min(self.batch, size)

    def draw(self, keys: SampleKeys, release: jax.Array, population: int) -> Sample:
        """Rows in random slots."""
        if self._everything(population):
            return Sample(None, None, True)
        if self._one_by_one(population):  # every slot for itself
            return _with_replacement(keys.release, self.batch, population)
        rows, fits = arrangement(keys.release, self.batch, population)
        return Sample(rows, None, fits)

    def overflow(self, population: int) -> float:
        """The probability that a sample without replacement cannot be drawn, for one release."""
        if self._everything(population) or self._one_by_one(population):
            return 0.0
        room = room_for(self.batch, population)
        # P[Poisson(lambda) > slots - m], a bound on P[fewer than m slots are new]
        return 0.0 if room.shuffled else float(scipy.special.pdtrc(
            room.slots - self.batch, lost(room.slots, population)))

    def charge(self, times: int, z: float, population: int) -> costs.Charge:
        """Charges a Gaussian mechanism on samples of that size, of the realised rate."""
        if self._everything(population):
            return costs.gaussian(times, z)
        realised = _one_draw if self._one_by_one(population) else _one_subset
        rate, failure, error = realised(self.batch, int(population))
        loss = costs.PrivacyLoss("replacement" if self.replacement else "fixed", z, rate,
                                 population=population, batch=self.batch)
        # with replacement the rate covers k records too, so no total variation is charged
        return costs.Charge(losses=((loss, times),), failure=times * failure,
                            sample_error=0.0 if self.replacement else times * error)

    def summary(self, times: int, population: int) -> str:
        """States the batch, the population, and whether rows are replaced."""
        return f"samples of exactly {self.batch} of {population} records, {self._how()}"

    def _how(self) -> str:
        return f"{'with' if self.replacement else 'without'} replacement"

    def assumed(self) -> tuple[str, ...]:
        """Returns no assumption."""
        return ()

    def in_groups(self) -> sampling.InGroups:
        """Draws among the group's own rows, and charges as for the group where it costs most."""
        def in_population(n: int) -> Any:
            def drawn(keys: SampleKeys) -> Sample:
                # no sampling of a group depends on the number of the release
                sample = self.draw(keys, jnp.int32(0), n)
                rows = jnp.arange(n, dtype=jnp.int32) if sample.rows is None else sample.rows
                return Sample(rows, None, jnp.asarray(sample.fits))

            return drawn

        def draw(keys: SampleKeys, sizes: tuple[int, ...], group: jax.Array) -> Sample:
            distinct = sorted(set(sizes))  # the law of a sample is computed on the host
            number = jnp.asarray([distinct.index(n) for n in sizes])[group]
            return jax.lax.switch(number, [in_population(n) for n in distinct], keys)

        return sampling.InGroups(f"samples of exactly {self.batch} of its records, {self._how()}",
                                 lambda size, largest: size, draw)

    def spread(self, population: int) -> float | None:
        """The spread of draws that are independent from release to release."""
        return 1.0

    def worst_case(self, population: int) -> WorstCase:
        """A record against others that contribute the opposite."""
        each_rate, rate = 1 / population, self.batch / population
        if self.replacement:
            # a record is drawn Binomial(m, 1/n) times
            times = np.arange(self.batch + 1)
            # it is drawn at all with probability 1 - (1 - 1/n)^m
            chances = scipy.stats.binom.pmf(times, self.batch, each_rate)
            return WorstCase(times.astype(float), chances,
                             self.batch, 1 - (1 - each_rate) ** self.batch)
        if self._everything(population):
            return WorstCase(np.ones(1), np.ones(1), self.batch)
        return WorstCase(np.array([0.0, 1.0]), np.array([1 - rate, rate]), self.batch, rate)


def _crowded(reads: float) -> float:
    """P[a record and the one in its slot meet a full shard], or any of several records' do.

    That happens if the others of the sample fill the shard of either. They have the same law
    whether or not the record is among them; `reads` is how often a release reads it.
    """
    return 4 * max(1.0, reads) * CROWDED


def _one_draw(batch: int, population: int) -> tuple[float, float, float]:
    """Rate, failure and total variation of a release on rows that are drawn independently."""
    # no row has more than 2^96 / n + 1 of the 2^96 numbers
    rate = (1 + population * 2.0**-96) / population * (1 + 2.0**-50)
    # on a mesh its slots are put in order, by numbers that may be equal
    # each draw is within n 2^-96 of uniform in total variation
    return min(1.0, rate), _crowded(batch * rate) + tied(batch), batch * population * 2.0**-96


def _one_subset(batch: int, population: int) -> tuple[float, float, float]:
    """Rate, failure and total variation of a release on a uniform subset."""
    rate = batch / population * (1 + 2.0**-50)  # m/n, and its rounding in float64
    room = room_for(batch, population)
    return min(1.0, rate), _crowded(rate) + room.failure(population), 0.0


def _with_replacement(key: jax.Array, batch: int, population: int) -> Sample:
    """Draws rows floor(U n / 2^96), for U of 96 random bits."""
    def rows() -> jax.Array:
        # nested floors: c <- floor((word n + c) / 2^32) ends at floor(U n / 2^96)
        carry = jnp.zeros(batch, jnp.uint32)
        for word in random_bits.random_words(key, (3, batch)):  # the lowest first
            carry = scaled(word, population, carry)
        return carry.astype(jnp.int32)

    return Sample(tree.materialise(rows), None, True)
