"""Samples of a fixed size: uniform subsets, or draws with replacement; replace-one only.

A subset is one of a larger Poisson sample, which is uniform given its size; draws with replacement
are products of 96 random bits. What either departs from its law by, and may fail by, is charged.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special, stats

from jaxminimax.base.materialise import materialise
from jaxminimax.base.random_bits import random_words
from jaxminimax.base.tree import in_any_lane
from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism.costs import REPLACE_ONE, Charge, PrivacyLoss, gaussian
from jaxminimax.mechanism.poisson import Poisson, poisson_rows, rows_error, running_sums
from jaxminimax.mechanism.sampling import (
    OVERFLOW,
    InGroups,
    Sample,
    SampleKeys,
    Sampling,
    WorstCase,
    check_batch,
)
from jaxminimax.mechanism.slots import CROWDED, in_places, misplaced


@pytree_dataclass
class FixedSize(Sampling):
    """Exactly `batch` records take part, uniformly, anew in every release; replace-one only.

    Attributes:
      batch: m.
      replacement: whether a record may be drawn several times, as the papers' listings write it.
        It then costs much more than a Poisson sample of the same expected size.
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

    def failure(self, population: int) -> float:
        """P[a sample without replacement cannot be drawn], for one release."""
        if self._everything(population) or self._one_by_one(population):
            return 0.0
        rate, capacity = wide(self.batch, population)
        few = special.bdtr(self.batch - 1, population, rate) if rate < 1 else 0.0
        return float(few + (special.bdtrc(capacity, population, rate)
                            if capacity < population else 0.0))

    def law_error(self, population: int) -> float:
        """Total variation between the realised batch of one release and the described law."""
        if self._everything(population):
            return 0.0
        if self._one_by_one(population):
            return self.batch * population * 2.0**-96 + CROWDED  # floor(96 bits * n / 2^96)
        rate, capacity = wide(self.batch, population)
        ties = capacity**2 * 2.0**-96  # of the 96-bit keys that choose the subset
        return rows_error(rate, population, capacity) + ties + misplaced(self.batch)

    def charge(self, times: int, z: float, population: int) -> Charge:
        """As a Gaussian mechanism on samples of that size, with or without replacement."""
        if self._everything(population):
            return gaussian(times, z)
        kind = "replacement" if self.replacement else "fixed"
        return Charge(
            losses=((PrivacyLoss(kind, z, population=population, batch=self.batch), times),),
            overflow=times * self.failure(population),
            law_error=times * self.law_error(population))

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

    def worst_case(self, population: int) -> WorstCase:
        """A record against others that contribute the opposite."""
        one, rate = 1 / population, self.batch / population
        if self.replacement:
            times = np.arange(self.batch + 1)
            return WorstCase(times.astype(float), stats.binom.pmf(times, self.batch, one),
                             self.batch, 1 - (1 - one) ** self.batch)
        if self._everything(population):
            return WorstCase(np.ones(1), np.ones(1), self.batch)
        return WorstCase(np.array([0.0, 1.0]), np.array([1 - rate, rate]), self.batch, rate)


@functools.lru_cache(maxsize=64)
def wide(batch: int, population: int) -> tuple[float, int]:
    """Rate and capacity of a Poisson sample that holds `batch` records all but surely."""
    rate = batch / population
    while rate < 1 and special.bdtr(batch - 1, population, rate) > OVERFLOW:
        rate = min(1.0, rate * 1.02 + 1e-3 / population)
    return rate, Poisson(rate=rate).rows_read(population)


def _subset(key: jax.Array, batch: int,
            population: int) -> tuple[jax.Array, jax.Array]:
    """A uniform subset: one of a larger Poisson sample, which is uniform given its size."""
    rate, capacity = wide(batch, population)
    one, two = jax.random.split(key)
    rows, fits = poisson_rows(one, rate, population, capacity)
    inside = rows < population
    # Those with the smallest numbers of 96 bits. The first 32 tell which, unless the first one to
    # be left out has those of the last one to be kept.
    first = jnp.where(inside, random_words(two, (capacity,)), np.uint32(2**32 - 1))
    last, after = jnp.sort(first)[batch - 1: batch + 1]

    def rare() -> jax.Array:
        second, third = random_words(two, (2, capacity), part=1, rolled=True)
        places = jax.lax.sort((~inside, first, second, third, jnp.arange(capacity)), num_keys=4)[-1]
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
