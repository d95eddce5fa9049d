"""Samples of a fixed size: uniform subsets, or draws with replacement; replace-one only.

A subset is one of a larger Poisson sample, which is uniform given its size; draws with replacement
are products of 96 random bits. Both are charged as they are drawn, by a slightly larger rate:

**With replacement** every draw is record i with probability p_i <= p = (1 + n 2^-96) / n,
independently. The bound of `accounting.subsampling` draws a substitute for every slot from the law
without i, and hits; it uses only that k hits move a release by at most k slots. Keeping a hit with
probability p_i / p makes them fewer, so it holds with hits of probability p. A single draw is the
same without replacement, by the argument on smaller rates in `gap_law`.

**Without replacement** let M be the Poisson sample, of the rate and capacity of `wide`, and A the
m members with the smallest keys: uniform given M, unless keys are equal, which is a failure of
coins alone. The size of M is counted as known; outside of m, ..., c it makes the release NaN, with
one probability on both data sets. Send each (M, A) with i in A to every j outside of A, a part
1 / (n - m) to each: A' = A - i + j, and M' = M if j is in M, else M - i + j, which has the same
size. Each (M', A') without i is sent m parts, one for each j in A'. As drawn, P~(M) = P(M) (1 +-
rho'), rho' = (1 + rho)^(c+1) - 1, if M has no gap of L or more (`gap_law`), and P(M) = P(M'). So
where neither has one, the share of (M', A') that stands beside what it is sent is at least

    (1 - q)/q (1 - rho')/(1 + rho')   times that,      q = m/n,

and on each of these pairs, which differ by one slot, `subsampling`'s bound holds with the rate

    q' = q / (q + (1 - q) (1 - rho') / (1 + rho')).

The other (M', A') are the same on both data sets. What is sent from or to samples with long gaps is
charged in full. Their probability is P <= (c + 1) (r^L + d 2^-B) under either law, d digits, and
those with short gaps that send there have at most (1 + rho') q/(1-q) P. (For m/n > 1/2 that exceeds
P.)
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jaxminimax.base.materialise import materialise
from jaxminimax.base.random_bits import random_words, word_pairs
from jaxminimax.base.tree import in_any_lane
from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism.costs import REPLACE_ONE, Charge, PrivacyLoss, gaussian
from jaxminimax.mechanism.gap_law import Realised, charged_law, rows_error
from jaxminimax.mechanism.poisson import Poisson, poisson_rows, running_sums
from jaxminimax.mechanism.sampling import (
    OVERFLOW,
    InGroups,
    Sample,
    SampleKeys,
    Sampling,
    WorstCase,
    check_batch,
)
from jaxminimax.mechanism.slots import CROWDED, in_places, tied


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

    ordered = False
    secret = True
    compares_absent = False
    relations = (REPLACE_ONE,)

    @property
    def compared_pairs(self) -> int:
        """One; with replacement one copy after the other is replaced."""
        return self.batch if self.replacement else 1

    def _everything(self, population: int) -> bool:
        return self.batch == population and not self.replacement

    def _one_by_one(self, population: int) -> bool:
        """Whether rows are drawn independently: with replacement, or a single one."""
        return self.replacement or self.batch == 1 < population

    def check(self, population: int) -> None:
        """Refuses a batch that the data have not."""
        if not isinstance(self.replacement, bool):
            raise ValueError(f"replacement must be True or False, got {self.replacement!r}.")
        check_batch(self.batch, math.inf if self.replacement else population)

    def batch_size(self, population: int) -> float:
        """The number of records, m."""
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
        rows, fits = _subset(keys.release, self.batch, population)
        return Sample(in_places(keys.release, rows, population)[0], None, fits)

    def overflow(self, population: int) -> float:
        """P[a sample without replacement cannot be drawn], for one release."""
        if self._everything(population) or self._one_by_one(population):
            return 0.0
        rate, capacity = wide(self.batch, population)
        few = scipy.special.bdtr(self.batch - 1, population, rate) if rate < 1 else 0.0
        return float(few + (scipy.special.bdtrc(capacity, population, rate)
                            if capacity < population else 0.0))

    def charge(self, times: int, z: float, population: int) -> Charge:
        """As a Gaussian mechanism on samples of that size, of the realised rate."""
        if self._everything(population):
            return gaussian(times, z)
        realised = _one_draw if self._one_by_one(population) else _one_subset
        rate, failure, error = realised(self.batch, int(population))
        loss = PrivacyLoss("replacement" if self.replacement else "fixed", z, rate,
                           population=population, batch=self.batch)
        return Charge(losses=((loss, times),), failure=times * failure,
                      sample_error=0.0 if self.replacement else times * error)

    def in_words(self, times: int, population: int) -> str:
        """With or without replacement."""
        return f"samples of exactly {self.batch} of {population} records, {self._how()}"

    def _how(self) -> str:
        return f"{'with' if self.replacement else 'without'} replacement"

    def assumptions(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def in_groups(self) -> InGroups:
        """Drawn among the group's own rows, and charged as from the group where it costs most."""
        def of_size(n: int) -> Any:
            def one(keys: SampleKeys) -> Sample:
                # no sampling of a group depends on the number of the release
                sample = self.draw(keys, jnp.int32(0), n)
                rows = jnp.arange(n, dtype=jnp.int32) if sample.rows is None else sample.rows
                return Sample(rows, None, jnp.asarray(sample.fits))

            return one

        def draw(keys: SampleKeys, sizes: tuple[int, ...], group: jax.Array) -> Sample:
            distinct = sorted(set(sizes))  # the law of a sample is computed on the host
            number = jnp.asarray([distinct.index(n) for n in sizes])[group]
            return jax.lax.switch(number, [of_size(n) for n in distinct], keys)

        return InGroups(f"samples of exactly {self.batch} of its records, {self._how()}",
                        lambda size, largest: size, draw)

    def spread(self) -> float | None:
        """Of draws that are independent from release to release."""
        return 1.0

    def worst_case(self, population: int) -> WorstCase:
        """A record against others that contribute the opposite."""
        one, rate = 1 / population, self.batch / population
        if self.replacement:
            times = np.arange(self.batch + 1)
            return WorstCase(times.astype(float), scipy.stats.binom.pmf(times, self.batch, one),
                             self.batch, 1 - (1 - one) ** self.batch)
        if self._everything(population):
            return WorstCase(np.ones(1), np.ones(1), self.batch)
        return WorstCase(np.array([0.0, 1.0]), np.array([1 - rate, rate]), self.batch, rate)


@functools.lru_cache(maxsize=64)
def wide(batch: int, population: int) -> tuple[float, int]:
    """Rate and capacity of a Poisson sample that holds `batch` records all but surely."""
    rate = batch / population
    while rate < 1 and scipy.special.bdtr(batch - 1, population, rate) > OVERFLOW:
        rate = min(1.0, rate * 1.02 + 1e-3 / population)
    return rate, Poisson(rate=rate).rows_read(population)


def _crowded(reads: float, error: float = 0.0) -> float:
    """P[a record and the one in its slot meet a full shard], or any of several records' do.

    That happens if the others of the sample fill the shard of either. They have the same law
    whether or not the record is among them; `reads` is how often a release reads it.
    """
    return 4 * max(1.0, reads) * (1 + error) * CROWDED


def _one_draw(batch: int, population: int) -> tuple[float, float, float]:
    """Rate, failure and total variation of a release on rows that are drawn independently."""
    rate = (1 + population * 2.0**-96) / population * (1 + 2.0**-50)
    return min(1.0, rate), _crowded(batch * rate), batch * population * 2.0**-96


@functools.lru_cache(maxsize=256)
def _one_subset(batch: int, population: int) -> tuple[float, float, float]:
    """Rate, failure and total variation of a release on a subset; see the module's docstring."""
    rate, capacity = wide(batch, population)
    law, q = charged_law(rate, population, capacity + 1), batch / population
    raised, unsent = sent(q, capacity + 1, law)
    failure = unsent + tied(capacity) + tied(batch) + _crowded(q, law.sample(capacity + 1))
    return raised, failure, rows_error(rate, population, capacity)


def sent(q: float, gaps: int, law: Realised) -> tuple[float, float]:
    """The rate q', and the probability of what is sent from or to samples with long gaps."""
    error = law.sample(gaps)
    if not error < 0.5:
        return 1.0, math.inf
    rate = q / (q + (1 - q) * (1 - error) / (1 + error)) * (1 + 2.0**-50)
    return min(1.0, rate), (1 + max(1.0, q / (1 - q))) * (1 + error) * gaps * law.long


def _subset(key: jax.Array, batch: int,
            population: int) -> tuple[jax.Array, jax.Array]:
    """A uniform subset: one of a larger Poisson sample, which is uniform given its size."""
    rate, capacity = wide(batch, population)
    one, two = jax.random.split(key)
    rows, fits = poisson_rows(one, rate, population, capacity)
    inside = rows < population
    # Those with the smallest numbers of 128 bits. The first 32 tell which, unless the first one to
    # be left out has those of the last one to be kept.
    first = jnp.where(inside, random_words(two, (capacity,)), np.uint32(2**32 - 1))
    last, after = jnp.sort(first)[batch - 1: batch + 1]

    def rare() -> jax.Array:
        (second, fourth), (third, _) = word_pairs(two, (2, capacity), part=1, rolled=True)
        places = jax.lax.sort((~inside, first, second, third, fourth, jnp.arange(capacity)),
                              num_keys=5)[-1]
        return jnp.zeros(capacity, bool).at[places[:batch]].set(True)

    kept = jax.lax.cond(in_any_lane(last == after), rare, lambda: first <= last)
    number = jnp.where(kept, running_sums(kept.astype(jnp.int32)) - 1, batch)
    rows = jnp.zeros(batch, jnp.int32).at[number].set(rows, mode="drop")
    return rows, fits & (jnp.sum(inside) >= batch)


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
        for word in random_words(key, (3, batch)):  # the lowest first
            carry = _scaled(word, population, carry)
        return carry.astype(jnp.int32)

    return Sample(materialise(rows), None, True)
