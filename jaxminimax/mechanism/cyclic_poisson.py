"""Poisson samples of parts of the data in turn, which amplify correlated noise, too.

Record i, by its row number, is in part i mod p. Release t reads a Poisson sample of part t mod p,
so a record may be read in every p-th release only, by an independent coin of rate q each time. With
independent noise T releases are ceil(T / p) releases of Poisson samples of a part. With correlated
noise that begins anew every `Query.bands` releases they are, too, of noise over the length of a
column: `correlated` has the theorem and its proof.

The draw is that of `Poisson` among ceil(n / p) numbers r, of which r p + (t mod p) is a row, and
what is not below n is dropped: as if each part had records that are absent. Absent records keep
their numbers.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax.base import checks
from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism import correlated, costs, sentences
from jaxminimax.mechanism.costs import NEIGHBOURS, Charge
from jaxminimax.mechanism.poisson import Poisson
from jaxminimax.mechanism.sampling import InGroups, Sample, SampleKeys, Sampling, WorstCase

__all__ = ["CyclicPoisson"]

_ABSENT = ("A record that is absent leaves its row empty: no other record takes its number, which "
           "decides the part that it is in.")


@pytree_dataclass
class CyclicPoisson(Sampling):
    """Release t reads each record of part t mod p with probability q; row i is in part i mod p.

    With `Query(bands=b)`, b a divisor of p, the noise of the releases is correlated, and samples
    still amplify privacy. This helps where Poisson samples of all records need little noise, below
    1.2 clip norms or so; `jmm.accounting.calibrate_parts` decides by public numbers.

    Attributes:
      rate: q in (0, 1], of a part: for b expected records a release, b p / n.
      parts: p.
      capacity: as of `Poisson`, for a part.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000, bands=4,
        ...                   sampling=jmm.mechanism.CyclicPoisson(rate=0.2, parts=4))
        >>> jmm.mechanism.batch_size(query)
        50.0
        >>> steps = jmm.accounting.calibrate_noise(jmm.Repeat(query=query, times=60), 2.0, 1e-5)
        >>> round(steps.multiplier(), 1)
        3.8
    """

    rate: float = jax.tree.static()
    parts: int = jax.tree.static()
    capacity: int | None = jax.tree.static(default=None)

    ordered = False
    secret = True
    compares_absent = True  # as for `Poisson`
    compared_pairs = 2
    relations = NEIGHBOURS

    @property
    def _of_part(self) -> Poisson:
        return Poisson(rate=self.rate, capacity=self.capacity)

    def _largest(self, population: int) -> int:
        """Records of the largest part."""
        return -(-population // self.parts)

    def check(self, population: int) -> None:
        """Refuses more parts than records, and what `Poisson` refuses of a part."""
        checks.count("parts", self.parts)
        if self.parts > population:
            raise ValueError(f"parts must be at most population={population}, got {self.parts}.")
        self._of_part.check(self._largest(population))

    def batch_size(self, population: int) -> float:
        """The expected size q n / p, of all parts in the mean."""
        return self.rate * population / self.parts

    def rows_read(self, population: int) -> int:
        """Slots of a Poisson sample of the largest part."""
        return self._of_part.rows_read(self._largest(population))

    def rows_in_shard(self, population: int, size: int) -> int:
        """The capacity, on one device.

        Raises:
          ValueError: for several shards: how many rows of a part come to lie in one has no proof.
        """
        if size < population:
            raise ValueError(f"{self!r} is for data on one device: give the arrays without a mesh, "
                             "or use Poisson(rate=...).")
        return self._of_part.rows_in_shard(self._largest(population), size)

    def draw(self, keys: SampleKeys, release: jax.Array, population: int) -> Sample:
        """A Poisson sample of numbers in the part, as rows."""
        part = release % self.parts
        sample = self._of_part.draw(keys, release, self._largest(population))
        assert sample.rows is not None
        assert sample.valid is not None
        rows = sample.rows * self.parts + part
        # a smaller part has one number less: it is in no row
        return sample._replace(rows=jnp.minimum(rows, population - 1),
                               valid=sample.valid & (rows < population))

    def charge(self, times: int, z: float, population: int) -> Charge:
        """Charges a Poisson sample of a part for each window of `parts` releases that is begun."""
        windows = math.ceil(times / self.parts)
        if self.rate == 1:  # the order of the parts is public, so nothing is amplified
            return costs.gaussian(windows, z)
        return self._of_part.charge(windows, z, self._largest(population))

    def correlation(self, population: int) -> correlated.InTurn:
        """A record has one coin in `parts` releases."""
        return correlated.InTurn(self.parts)

    def always(self) -> Sampling:
        """All records of a part."""
        return CyclicPoisson(rate=1.0, parts=self.parts)

    def summary(self, times: int, population: int) -> str:
        """States the parts, the sample of each, and how often a record may be read."""
        less = self._of_part.drawn_less(self._largest(population))
        return (f"cyclic Poisson samples at rate {self.rate:.6g} of a part (expected batch "
                f"{self.batch_size(population):.6g}): row i of {population} is in part i mod "
                f"{self.parts}, release k = 0, 1, ... reads part k mod {self.parts}, so that a "
                f"record may be read in {math.ceil(times / self.parts)} of them (samples that do "
                f"not fit are drawn again, for which the rate is lower by a part {less:.2g} at "
                "most)")

    def assumed(self) -> tuple[str, ...]:
        """The assumptions that row numbers are public, and those of absent records kept."""
        return (sentences.PLACES, _ABSENT)

    def in_groups(self) -> InGroups:
        """Refuses to sample groups."""
        raise ValueError("sampling of a group must be Full(), Poisson(...) or FixedSize(...): "
                         "which group is read next is not known in advance, so its parts do not "
                         "take turns.")

    def worst_case(self, population: int) -> WorstCase:
        """A record of part 0 with probability q; the others contribute nothing."""
        case = self._of_part.worst_case(self._largest(population))
        return case._replace(every=self.parts)


def in_turn(query: Any, parts: int) -> Any:
    """Returns a query of Poisson samples as one of p parts in turn and p bands, of the same batch.

    Returns None for a query of other samples, with bands, a capacity or clip norms that change.
    """
    sampling = getattr(query, "sampling", None)
    if (not isinstance(sampling, Poisson) or sampling.capacity is not None
            or getattr(query, "bands", None) != 1 or query.adaptive is not None):
        return None
    return dataclasses.replace(query, bands=parts, sampling=CyclicPoisson(
        rate=min(1.0, sampling.rate * parts), parts=parts))
