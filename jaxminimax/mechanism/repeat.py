"""One release on a sample of the data, and that release repeated.

`OneRelease` is of what a `Repeat` repeats: a class says what it releases (`check`, `words`, and
where it differs from a clipped sum, `facts` and `cost`); that of its repetition follows.
"""

import abc
import dataclasses
from typing import Any, Self

import jax

from jaxminimax.base import checks
from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism import costs, description, limits, sentences
from jaxminimax.mechanism.costs import Charge, concrete
from jaxminimax.mechanism.description import Facts, Kind, Leaf
from jaxminimax.mechanism.sampling import NARROW, Sampling, known_sampling
from jaxminimax.mechanism.sentences import Words

__all__ = ["Repeat", "batch_size", "rows_read"]


class OneRelease(abc.ABC):
    """The query of each release of a `Repeat`, on a sample of its own.

    Attributes:
      sampling: which records it reads.
      parameters: d, at least the numbers that a release has; public.
      exact: whether the noise is made of integers.
      noise_multiplier: None if it was never set.
      wide: whether its release takes numbers of rows beyond 32 bits.
      sum_of_sample: whether a release is a function of the clipped sum of its sample, which the
        proofs for absent records and for parts of the data are for.
    """

    wide = False
    sum_of_sample = False
    sampling: Sampling
    parameters: int
    exact: bool
    noise_multiplier: Any

    @abc.abstractmethod
    def check(self, repeat: "Repeat") -> None:
        """Refuses what no run or charge should start from; `repeat` is the one that it is in."""

    @abc.abstractmethod
    def words(self, repeat: "Repeat") -> Words:
        """Sentences of statements on `repeat`, with the assumptions of its sampling."""

    def check_own(self) -> None:  # noqa: B027  # there need be none
        """Refuses numbers that no release should start from, in any `Repeat`."""

    def facts(self, repeat: "Repeat") -> Facts:
        """Returns the facts of `repeat`: noise on every number, and every sum rounded."""
        times, sampling = repeat.times, known_sampling(self.sampling)
        # a record is in one part of the data, so `times` releases read it, not times * parts
        return Facts(
            costs.CLIP_NORM, times * repeat.parts, times, numbers=times * self.parameters,
            near=times * sampling.compared_pairs, repeats=True,
            records=repeat.parts * self.records(), noise=self.noise_multiplier,
            parameters=self.parameters, exact=self.exact, slack=getattr(self, "slack", None),
            absent=sampling.compares_absent)

    def records(self) -> int:
        """The number of records of one part of the data."""
        return self.population  # type: ignore[attr-defined]

    def charges(self, repeat: "Repeat", neighbours: str) -> tuple[Charge, ...]:
        """Charges one place for the differing record, the sample; parts all cost the same.

        Raises:
          ValueError: for a relation that the sampling has no proof for, or on parts of the data.
        """
        if repeat.parts > 1 and not self.sum_of_sample:
            raise ValueError(f"{type(self).__name__} is released on the data as a whole: "
                             f"parts must be 1, got {repeat.parts}.")
        # parts of the data, and most samplings, have a proof for replaced records alone
        proven = known_sampling(self.sampling).relations if self.sum_of_sample else ()
        if repeat.parts > 1 or neighbours not in proven:
            limits.replace_one_only(neighbours)
        check_relation(self.sampling, neighbours)
        return (costs.price(repeat, neighbours),)

    def supports_group_privacy(self, repeat: "Repeat") -> bool:
        """The answer of a `Description`, for records in one part of the data; for a proof."""
        return False

    def multiplier(self) -> float:
        """The noise multiplier, players combined.

        Raises:
          ValueError: if it is not set, or out of range.
        """
        z = concrete(limits.check_noise(self))
        limits.check_multiplier("noise_multiplier", z)
        return z

    def effective_noise_multiplier(self, neighbours: str) -> float:
        """The multiplier of a real mechanism that is no more private, rounding included."""
        return Repeat(query=self, times=1).effective_noise_multiplier(neighbours)

    def noise_multipliers(self) -> dict[str, float]:
        """Noise multipliers to print, by player."""
        return {"": self.multiplier()}

    def cost(self, times: int, z: float) -> Charge:
        """The cost of `times` releases with noise on real numbers, of that multiplier."""
        return self.sampling.charge(times, z, self.records())

    def with_noise(self, scale: float) -> Self:
        """Scales the noise multipliers (1 each if not set) by `scale`, as Python floats."""
        self.check_own()
        return description.scaled(self, scale)

    def sampled_by(self, sampling: Sampling) -> Self:
        """The same on other samples; what follows from the sampling is left to be set."""
        return dataclasses.replace(self, sampling=sampling)  # type: ignore[type-var]


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
    def kind(self) -> int:
        """One group's gradients have keys of their own; sums and proximal points share theirs."""
        return Kind.ONE_GROUP if getattr(self.query, "groups", None) == "one" else Kind.MEAN

    @property
    def _query(self) -> OneRelease:
        if not isinstance(self.query, OneRelease):
            raise ValueError("What a Repeat repeats is a Query, a Resolvent, GroupGradients or "
                             "another OneRelease of jaxminimax.mechanism, got "
                             f"{type(self.query).__name__}.")
        return self.query

    def check(self) -> None:
        """Checks counts and the grid, and calls the release's own check."""
        limits.check_grid(self._query.exact, self.query.parameters)
        checks.count("parts", self.parts)
        limits.check_times("times (the number of releases)", self.times)
        limits.check_times("times (the number of releases)", self.times * self.parts)
        self.query.check(self)

    def facts(self) -> Facts:
        """Returns the facts of all releases."""
        return self._query.facts(self)

    def words(self) -> Words:
        """Returns the words of the release, with the assumptions of its sampling and parts."""
        words = self._query.words(self)
        order = (sentences.PLACES,) * (self.parts > 1)
        return words._replace(assumed=(*words.assumed, *self.query.sampling.assumed(), *order))

    def releases(self) -> int:
        """The number of releases on all parts of the data."""
        return self.times * self.parts

    def with_noise(self, scale: float) -> Self:
        """The release with other noise."""
        return dataclasses.replace(self, query=self._query.with_noise(scale))

    def charges(self, neighbours: str) -> tuple[Charge, ...]:
        """Parts of the data are alternatives that all cost the same."""
        return self._query.charges(self, neighbours)

    def supports_group_privacy(self) -> bool:
        """The release's answer; records may be in several parts of the data."""
        return self.parts == 1 and self._query.supports_group_privacy(self)

    def multiplier(self) -> float:
        """The multiplier of one release."""
        return self._query.multiplier()

    def noise_multipliers(self) -> dict[str, float]:
        """Returns the multipliers of one release."""
        return self._query.noise_multipliers()

    def cost(self, z: float) -> Charge:
        """`times` releases on one part of the data."""
        # a record is in one part of the data: releases on the others do not read it
        return self._query.cost(self.times, z)


# --- what releases on a sample of the data share ---


def check_sampled(query: OneRelease, repeat: Repeat) -> None:
    """Refuses a population, or samples of it, that indices of 32 bits do not reach."""
    n = query.population  # type: ignore[attr-defined]
    checks.count("population", n)
    rows = repeat.parts * n
    if repeat.parts > 1 and rows >= 2**31:
        raise ValueError(f"parts * population must be below 2**31, got {rows}: indices are "
                         "32-bit.")
    check_sampling(query.sampling, n, wide=query.wide and repeat.parts == 1)


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


def check_relation(sampling: Sampling, neighbours: str) -> None:
    """Refuses a relation that a sampling has no proof for, whichever it is.

    Raises:
      ValueError: naming those that it has.
    """
    offered = known_sampling(sampling).relations
    if neighbours not in offered:
        raise ValueError(f"{sampling!r} has no guarantee for neighbours={neighbours!r}, only for "
                         f"{', '.join(offered)}.")


def sampled_words(repeat: Repeat, of: str = "") -> str:
    """States how many releases, of what, on samples of which kind."""
    query, times = repeat.query, f"{repeat.times} release(s)"
    if repeat.parts > 1:
        times += f" on each of {repeat.parts} disjoint parts of the data:"
    return f"{times}{of} on {query.sampling.summary(repeat.times, query.population)}"


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
