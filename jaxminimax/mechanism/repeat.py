"""One release on a sample of the data, and that release repeated: a `Leaf` with a sampling.

`OneRelease` is of what a `Repeat` repeats: a class says what it releases (`check`, `words`, and
where it differs from a clipped sum, `facts`); the charge of its repetition follows.
"""

import abc
import dataclasses
from typing import Any, Self

import jax

from jaxminimax.base import checks, types
from jaxminimax.mechanism import correlated, costs, description, fixed_size, grid, sentences
from jaxminimax.mechanism.description import Facts, Kind, Leaf
from jaxminimax.mechanism.sampling import Sampling, check_population, known_sampling

__all__ = ["Repeat", "batch_size", "rows_read"]


@types.pytree_dataclass
class OneRelease(abc.ABC):
    """The query of each release of a `Repeat`, on a sample of its own.

    Attributes:
      sampling: which records it reads.
      parameters: d, at least the numbers that a release has; public.
      noise_multiplier: None if it was never set.
      sum_of_sample: whether a release is a function of the clipped sum of its sample, which the
        proofs for absent records and for parts of the data are for.
      exact: whether the noise is made of integers; a `Query` may say that it is not.
      bands: of the noise; above 1 it is correlated, see `factorisation`.
    """

    noise_multiplier: Any = None
    sampling: Sampling = fixed_size.Full()
    parameters: int = jax.tree.static(default=grid.PARAMETERS)

    sum_of_sample = False
    exact = True
    bands = 1

    def check(self, repeat: "Repeat") -> None:
        """Refuses what no run or charge should start from; `repeat` is the one that it is in."""
        n = self.records()
        checks.count("population", n)
        rows = repeat.parts * n
        if repeat.parts > 1 and rows >= 2**31:
            raise ValueError(f"parts * population must be below 2**31, got {rows}: indices are "
                             "32-bit.")
        check_sampling(self.sampling, n)
        repeat.check_own()

    @abc.abstractmethod
    def words(self, repeat: "Repeat") -> sentences.Words:
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
            absent=sampling.compares_absent, atomic=self.restart() is not None)

    def correlation(self, parts: int = 1) -> correlated.Correlation | None:
        """How the noise of its releases is correlated; None for independent noise.

        Args:
          parts: of the data, that a `Repeat` takes in turn.

        Raises:
          ValueError: for bands where it is not known beforehand which releases may read a record.
        """
        checks.count("bands", self.bands)
        if self.bands == 1:
            return None
        correlation = known_sampling(self.sampling).correlation(self.records())
        if parts > 1 or correlation is None:
            raise ValueError(f"bands={self.bands}, correlated noise, needs Disjoint batches or "
                             f"CyclicPoisson samples of the whole data, got {self.sampling!r} and "
                             f"{parts} part(s): leave bands out.")
        return correlation

    def restart(self) -> int | None:
        """After how many releases the noise begins anew; None if it never does."""
        correlation = self.correlation()
        return None if correlation is None else correlation.restart(self.bands)

    def records(self) -> int:
        """The number of records of one part of the data."""
        return self.population  # type: ignore[attr-defined]

    def places(self) -> "tuple[OneRelease, ...]":
        """The releases that are charged, one for each place where the differing record may be.

        Parts of the data all cost the same, so that is this release alone.
        """
        return (self,)

    def supports_group_privacy(self, repeat: "Repeat") -> bool:
        """The answer of a `Description`, for records in one part of the data; for a proof."""
        return False

    def multiplier(self) -> float:
        """The noise multiplier of one release, players combined."""
        return Repeat(query=self, times=1).multiplier()

    def noise_multipliers(self) -> dict[str, float]:
        """Noise multipliers to print, by player."""
        return Repeat(query=self, times=1).noise_multipliers()

    def with_noise(self, scale: float) -> Self:
        """Scales the noise multipliers (1 each if not set) by `scale`, as Python floats."""
        self.check_own()
        return description.scaled(self, scale)

    def sampled_by(self, sampling: Sampling) -> Self:
        """The same on other samples; what follows from the sampling is left to be set."""
        return dataclasses.replace(self, sampling=sampling)


@types.pytree_dataclass
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
        grid.check_grid(self._query.parameters, self.query.exact)
        checks.count("parts", self.parts)
        grid.check_times("times (the number of releases)", self.times)
        grid.check_times("times (the number of releases)", self.times * self.parts)
        self.query.check(self)
        for z in jax.tree.leaves(self.query.noise_multiplier):
            grid.check_multiplier("noise_multiplier", z)

    def check_own(self) -> None:
        """Refuses numbers that no release should start from, and noise that has no proof."""
        self.query.check_own()
        correlation = self.query.correlation(self.parts)
        if correlation is not None:
            correlation.check(correlated.Bands(self.query.bands, self.times, self.query.parameters))

    def facts(self) -> Facts:
        """Returns the facts of all releases."""
        return self._query.facts(self)

    def words(self) -> sentences.Words:
        """Returns the words of the release, with the assumptions of its sampling and parts."""
        words = self._query.words(self)
        order = (sentences.PLACES,) * (self.parts > 1)
        return words._replace(assumed=(*words.assumed, *self.query.sampling.assumed(), *order))

    def with_noise(self, scale: float) -> Self:
        """The release with other noise."""
        return dataclasses.replace(self, query=self._query.with_noise(scale))

    def charges(self, neighbours: str) -> tuple[costs.Charge, ...]:
        """One charge for each place where the record may be, if costs differ.

        Raises:
          ValueError: for a relation that the sampling has no proof for, or on parts of the data.
        """
        query, parts = self._query, self.parts
        if parts > 1 and not query.sum_of_sample:
            raise ValueError(f"{type(query).__name__} is released on the data as a whole: "
                             f"parts must be 1, got {parts}.")
        # parts of the data, and most samplings, have a proof for replaced records alone
        offered = known_sampling(query.sampling).relations
        if parts > 1 or not query.sum_of_sample or neighbours not in offered:
            costs.replace_one_only(neighbours)
        if neighbours != costs.REPLACE_ONE and self.facts().unit != costs.CLIP_NORM:
            raise ValueError("distance is what a replaced record moves a sum by, and not one that "
                             "comes or goes: use neighbours='replace_one', or leave distance out.")
        if neighbours not in offered:
            raise ValueError(f"{query.sampling!r} has no guarantee for neighbours={neighbours!r}, "
                             f"only for {', '.join(offered)}.")
        return tuple(dict.fromkeys(
            costs.price(dataclasses.replace(self, query=group_query), neighbours)
            for group_query in query.places()))

    def supports_group_privacy(self) -> bool:
        """The release's answer; records may be in several parts of the data."""
        return self.parts == 1 and self._query.supports_group_privacy(self)

    def cost(self, z: float) -> costs.Charge:
        """`times` releases on one part of the data, by the sampling unless noise is correlated."""
        # a record is in one part of the data: releases on the others do not read it
        query, unit = self._query, self.facts().unit
        if unit != costs.CLIP_NORM:  # a distance, which is for Full() and independent noise alone
            return costs.gaussian(self.times, z, unit)

        def sampled(z: float) -> costs.Charge:
            return query.sampling.charge(self.times, z, self.query.population)

        correlation = query.correlation()
        if correlation is None or z == 0:
            return sampled(z)
        # the coarsest player's grid is counted for both
        smallest = min(map(costs.concrete, jax.tree.leaves(query.noise_multiplier)))
        return correlation.cost(correlated.Bands(query.bands, self.times, query.parameters),
                                correlated.Noise(self.multiplier(), z, smallest), sampled)


# --- what releases on a sample of the data share ---


def check_sampling(sampling: Sampling, population: int) -> None:
    """Refuses what is no sampling of so many records."""
    checks.count("population", population)
    check_population(population)
    known_sampling(sampling).check(population)


def sampled_words(repeat: Repeat, outputs: str = "") -> str:
    """States how many releases, of what, on samples of which kind."""
    query, times = repeat.query, f"{repeat.times} release(s)"
    if repeat.parts > 1:
        times += f" on each of {repeat.parts} disjoint parts of the data:"
    return f"{times}{outputs} on {query.sampling.summary(repeat.times, query.population)}"


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
