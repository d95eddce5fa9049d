"""A release on samples of one data set, repeated."""

import abc
import dataclasses
from typing import Any, Self

import jax

from jaxminimax.base import checks
from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism import costs, sentences
from jaxminimax.mechanism.costs import REPLACE_ONE, Charge
from jaxminimax.mechanism.description import Leaf, check_grid, check_times, replace_one_only
from jaxminimax.mechanism.factorisation import check_bands
from jaxminimax.mechanism.sampling import NARROW, Sampling, known_sampling

__all__ = ["Repeat", "batch_size", "rows_read"]


class OneRelease(abc.ABC):
    """What each release of a `Repeat` answers, on a sample of its own.

    Attributes:
      sampling: which records it reads.
      parameters: d, at least the numbers that a release has; public.
      exact: whether the noise is made of integers.
      noise_multiplier: None if it was never set.
      wide: whether its release takes numbers of rows beyond 32 bits.
    """

    wide = False
    sampling: Sampling
    parameters: int
    exact: bool
    noise_multiplier: Any

    @abc.abstractmethod
    def check(self, repeat: "Repeat") -> None:
        """Refuses what no run or charge should start from; `repeat` is the one that it is in."""

    def check_own(self) -> None:  # noqa: B027  # there need be none
        """Refuses numbers that no release should start from, whatever repeats it."""

    @abc.abstractmethod
    def charges(self, repeat: "Repeat", neighbours: str) -> tuple[Charge, ...]:
        """The cost of `repeat`, by `costs.price`; one charge for each alternative."""

    def together(self, repeat: "Repeat") -> bool:
        """As of a `Description`; `repeat` has one part."""
        return False

    @abc.abstractmethod
    def multiplier(self) -> float:
        """The noise multiplier, players combined: z_eff."""

    @abc.abstractmethod
    def charged(self, neighbours: str) -> float:
        """The multiplier of a real mechanism that is no more private; by `costs.charged`."""

    @abc.abstractmethod
    def cost(self, times: int, z: float) -> Charge:
        """What `times` releases cost with noise on real numbers, of that multiplier."""

    @abc.abstractmethod
    def with_noise(self, scale: float) -> Self:
        """Noise multipliers (1 each if not set) times `scale`, as Python floats."""

    @abc.abstractmethod
    def sampled_by(self, sampling: Sampling) -> Self:
        """The same on other samples; what follows from the sampling is left to be set."""

    @abc.abstractmethod
    def records(self) -> int:
        """How many records one part of the data has."""

    @abc.abstractmethod
    def in_words(self, repeat: "Repeat") -> str:
        """What `repeat` releases, in one sentence."""

    @abc.abstractmethod
    def guarantees(self) -> tuple[str, ...]:
        """As of a `Description`."""

    @abc.abstractmethod
    def assumptions(self) -> tuple[str, ...]:
        """As of a `Description`; what the sampling assumes is added."""

    @abc.abstractmethod
    def noise_multipliers(self) -> dict[str, float]:
        """As of a `Leaf`."""

    @abc.abstractmethod
    def clips(self) -> dict[str, float]:
        """As of a `Leaf`."""



@pytree_dataclass
class Repeat(Leaf):
    """`times` adaptive uses of `query`, each on a fresh sample with fresh noise.

    With several parts, `times` uses on each of them, one part after the other: part p is rows
    [p m, (p + 1) m) of the data, m = `query.population`, and rows beyond the last part are never
    read. The order of the rows must be public. A record is in one part, so what is charged is
    `times` uses, however many parts there are.

    Attributes:
      query: what is released, and from how many records.
      times: uses on a part.
      parts: of the data.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(30.0, 30.0),
        ...                   population=1000)
        >>> round(jmm.epsilon(jmm.Repeat(query=query, times=50), 1e-6), 2)
        3.1
    """

    query: Any  # a `OneRelease`
    times: int = jax.tree.static()
    parts: int = jax.tree.static(default=1)

    @property
    def draws(self) -> str:
        """One group's gradients have keys of their own; sums and proximal points share theirs."""
        return "one group" if getattr(self.query, "groups", None) == "one" else "mean"

    @property
    def _query(self) -> OneRelease:
        if not isinstance(self.query, OneRelease):
            raise ValueError("What a Repeat repeats is a Query, a Resolvent, GroupGradients or "
                             "another OneRelease of jaxminimax.mechanism, got "
                             f"{type(self.query).__name__}.")
        return self.query

    def check(self) -> None:
        """Counts, the grid, and what the release itself checks."""
        check_grid(self._query.exact, self.query.parameters)
        checks.count("parts", self.parts)
        check_times("times (the number of releases)", self.times)
        check_times("times (the number of releases)", self.times * self.parts)
        self.query.check(self)

    def releases(self) -> int:
        """On all parts of the data."""
        return self.times * self.parts

    def spent_part(self, spent: int) -> "Repeat | None":
        """Of several parts, the first one has spent the most."""
        times = min(spent, self.times)
        return dataclasses.replace(self, times=times) if times else None

    def with_noise(self, scale: float) -> Self:
        """The release with other noise."""
        return dataclasses.replace(self, query=self._query.with_noise(scale))

    def charges(self, neighbours: str) -> tuple[Charge, ...]:
        """Parts of the data are alternatives that all cost the same."""
        return self._query.charges(self, neighbours)

    def together(self) -> bool:
        """As the release; records may be in several parts of the data."""
        return self.parts == 1 and self._query.together(self)

    def records(self) -> int:
        """Of all parts."""
        return self.parts * self._query.records()

    def multiplier(self) -> float:
        """That of one release."""
        return self._query.multiplier()

    def charged(self, neighbours: str) -> float:
        """That of one release."""
        return self._query.charged(neighbours)

    def cost(self, z: float) -> Charge:
        """`times` releases on one part of the data."""
        return self._query.cost(self.times, z)

    def realised(self) -> Charge:
        """Every number of every release is noised, and every sum rounded."""
        query = self._query
        return costs.realised(query.exact, near=self.times * query.sampling.compared_pairs,
                              normals=self.times * query.parameters)

    unit = ""

    def clips(self) -> dict[str, float]:
        """Those of one release."""
        return self._query.clips()

    def noise_multipliers(self) -> dict[str, float]:
        """Those of one release."""
        return self._query.noise_multipliers()

    def in_words(self) -> str:
        """Told by the release."""
        return self._query.in_words(self)

    def guarantees(self) -> tuple[str, ...]:
        """Told by the release."""
        return self._query.guarantees()

    def assumptions(self) -> tuple[str, ...]:
        """What the release and its sampling assume; parts of the data need an order."""
        query = self._query
        return (*query.assumptions(), *query.sampling.assumptions(),
                *((sentences.PLACES,) if self.parts > 1 else ()))

    def is_exact(self) -> bool:
        """Told by the release."""
        return self._query.exact



def check_sampled(query: OneRelease, repeat: Repeat) -> None:
    """Refuses a population, or samples of it, that indices of 32 bits do not reach."""
    n = query.population  # type: ignore[attr-defined]
    checks.count("population", n)
    rows = repeat.parts * n
    if repeat.parts > 1 and rows >= 2**31:
        raise ValueError(f"parts * population must be below 2**31, got {rows}: indices are "
                         "32-bit.")
    check_sampling(query.sampling, n, wide=query.wide and repeat.parts == 1)



def check_correlated(repeat: Repeat) -> None:
    """Refuses correlated noise where it is not known beforehand which releases read a record.

    Raises:
      ValueError: naming the fix.
    """
    query = repeat.query
    checks.count("bands", query.bands)
    if query.bands == 1:
        return
    if repeat.parts > 1 or known_sampling(query.sampling).apart(query.population) == 0:
        raise ValueError(f"bands={query.bands}, correlated noise, needs Disjoint batches of the "
                         f"whole data, got {query.sampling!r} and {repeat.parts} part(s): leave "
                         "bands out.")
    check_bands(query.bands, repeat.times, query.parameters)



def check_sampling(sampling: Sampling, population: int, wide: bool = False) -> None:
    """Refuses what is no sampling of so many records; `wide`: of 2^30 or more at all."""
    checks.count("population", population)
    most = known_sampling(sampling).most_records if wide else NARROW
    if population >= most:
        raise ValueError(
            f"population must be below 2**{most.bit_length() - 1}, got {population}: indices are "
            f"32-bit, for {sampling!r}. Of more records, sgda and others that release a Query take "
            "FixedSize(batch=..., replacement=True) or Disjoint(batch=...), with HostData.")
    known_sampling(sampling).check(population)



def sampled_charges(repeat: Repeat, neighbours: str) -> tuple[Charge, ...]:
    """The one charge of releases on samples, under a relation that the sampling has proofs for."""
    if repeat.parts > 1 or neighbours not in known_sampling(repeat.query.sampling).relations:
        replace_one_only(neighbours)
    check_relation(repeat.query.sampling, neighbours)
    return (costs.price(repeat, neighbours),)



def check_relation(sampling: Sampling, neighbours: str) -> None:
    """Refuses a relation that a sampling has no proof for, whichever it is.

    Raises:
      ValueError: naming those that it has.
    """
    offered = known_sampling(sampling).relations
    if neighbours not in offered:
        raise ValueError(f"{sampling!r} has no guarantee for neighbours={neighbours!r}, only for "
                         f"{', '.join(offered)}.")



def compares_absent(query: OneRelease, neighbours: str) -> bool:
    """Whether curves compare with the sum that a record takes no part in."""
    return neighbours != REPLACE_ONE or known_sampling(query.sampling).compares_absent



def sampled_words(repeat: Repeat, of: str = "") -> str:
    """So many releases, of what, on samples of such a kind."""
    query, times = repeat.query, f"{repeat.times} release(s)"
    if repeat.parts > 1:
        times += f" on each of {repeat.parts} disjoint parts of the data:"
    return f"{times}{of} on {query.sampling.in_words(repeat.times, query.population)}"



def batch_size(query: OneRelease) -> float:
    """The public number that a sum is divided by: n, q n or b; never the realised batch size.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000,
        ...                   sampling=jmm.Poisson(rate=0.05))
        >>> jmm.mechanism.batch_size(query)
        50.0
    """
    return known_sampling(query.sampling).batch_size(query.population)  # type: ignore[attr-defined]



def rows_read(query: OneRelease) -> int:
    """Rows of the fixed-shape batch that a release works on.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000,
        ...                   sampling=jmm.Poisson(rate=0.05))
        >>> jmm.mechanism.rows_read(query) > 50  # room for samples larger than expected
        True
    """
    return known_sampling(query.sampling).rows_read(query.population)  # type: ignore[attr-defined]
