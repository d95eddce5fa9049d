"""Samplings that draw nothing: all records in every release, and disjoint batches in order."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism import row_numbers, sentences
from jaxminimax.mechanism.costs import NEIGHBOURS, REPLACE_ONE, Charge, gaussian
from jaxminimax.mechanism.sampling import (
    InGroups,
    Sample,
    SampleKeys,
    Sampling,
    WorstCase,
    check_batch,
)


@pytree_dataclass
class Full(Sampling):
    """Every record takes part in every release.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000, sampling=jmm.Full())
        >>> jmm.mechanism.batch_size(query)
        1000.0
    """

    ordered = True
    secret = False
    compares_absent = False
    compared_pairs = 1
    relations = NEIGHBOURS

    def check(self, population: int) -> None:
        """Nothing to refuse."""

    def batch_size(self, population: int) -> float:
        """The population, n."""
        return float(population)

    def rows_read(self, population: int) -> int:
        """The population, n."""
        return population

    def rows_in_shard(self, population: int, size: int) -> int:
        """All of the shard."""
        return min(population, size)

    def draw(self, keys: SampleKeys, release: jax.Array, population: int) -> Sample:
        """All records."""
        return Sample(None, None, True)

    def charge(self, times: int, z: float, population: int) -> Charge:
        """A Gaussian mechanism, `times` times."""
        return gaussian(times, z)

    def overflow(self, population: int) -> float:
        """Every release fits."""
        return 0.0

    def in_words(self, times: int, population: int) -> str:
        """All of them."""
        return f"all {population} records, without sampling"

    def assumptions(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def in_groups(self) -> InGroups:
        """All records of the group, among as many rows as the largest has."""
        def one(keys: SampleKeys, sizes: tuple[int, ...], group: jax.Array) -> Sample:
            size = jnp.asarray(sizes, jnp.int32)[group]
            return Sample(None, jnp.arange(max(sizes)) < size, True)

        return InGroups("all of its records", lambda size, largest: size, one)

    def spread(self) -> float | None:
        """Of draws that are independent from release to release."""
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

    ordered = True
    secret = False
    compares_absent = False
    compared_pairs = 1
    relations = (REPLACE_ONE,)

    @property
    def most_records(self) -> int:
        """2^62: nothing is drawn."""
        return row_numbers.WIDE

    def check(self, population: int) -> None:
        """Refuses a batch that the data have not."""
        check_batch(self.batch, population)

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
        each = population // self.batch
        if population >= row_numbers.NARROW:
            number = release % each if each < 2**31 else release  # which is below 2^31
            low, high = row_numbers.consecutive(number, self.batch)
            return Sample(low, None, True, high)
        first = (release % each) * self.batch
        return Sample(first + jnp.arange(self.batch, dtype=jnp.int32), None, True)

    def passes(self, times: int, population: int) -> int:
        """Passes over the data that `times` releases begin."""
        return math.ceil(times / (population // self.batch))

    def apart(self, population: int) -> int:
        """A pass: rows have the same order in all of them."""
        return population // self.batch

    def charge(self, times: int, z: float, population: int) -> Charge:
        """A record is read once a pass."""
        return gaussian(self.passes(times, population), z)

    def overflow(self, population: int) -> float:
        """Every release fits."""
        return 0.0

    def in_words(self, times: int, population: int) -> str:
        """With the number of passes."""
        return (f"disjoint batches of {self.batch} of {population} records, "
                f"{self.passes(times, population)} pass(es)")

    def assumptions(self) -> tuple[str, ...]:
        """That the order of the rows is public."""
        return (sentences.PLACES,)

    def in_groups(self) -> InGroups:
        """Refuses."""
        raise ValueError("sampling of a group must be Full(), Poisson(...) or FixedSize(...): "
                         "which group is read next is not known in advance, so there are no "
                         "passes.")

    def worst_case(self, population: int) -> WorstCase:
        """A record, once in every pass; record 0 in its first release."""
        return WorstCase(np.ones(1), np.ones(1), every=population // self.batch)
