"""Differences of the operator at two released points, and windows of them behind an anchor.

A `Difference` releases, over one sample B read at both points z and z',

    sum_{i in B} clip(g(z; x_i) - g(z'; x_i), l) + N(0, (l z_2)^2 I),      l = L ||z - z'||,

the clip joint for both players and ||.|| the norm of both together. `Windows` puts them behind
anchors, ordinary clipped sums: of each `length` releases the first is an anchor.

**Privacy.** z and z' are functions of what was released before, so l is a public number when the
release starts: conditionally on the past, a replaced record moves the sum by at most 2 l, and the
noise over l is z_2, whatever l is. That is a `Query` with clip norm 1 on the quotients
(g(z; x_i) - g(z'; x_i)) / l, times the public number l afterwards, and so it is made and charged
(`quotient`): clipping, sampling, the grid and the integers of the noise are those of a `Query`,
adaptive composition covers that g depends on the past, and the product is post-processing.

* Nothing rests on L. A small one clips more, and biases the sum; a large one adds noise.
* The clip comes after the division. Whatever the quotient of a record is (a difference that lost
  all digits, or one over a subnormal l that overflows) it counts with norm 1 at most, or as absent
  if it is not finite; its value matters for utility alone.
* l = 0 (equal points): the answer is 0, whatever the data. l not finite: it is NaN, whatever they
  are.
* One sample, drawn once, and one key of a record for both points where the operator draws.

Of the first s releases of `Windows` ceil(s / length) are anchors, for every s, by the number of the
release. So what a stopped run is charged is what it made.

Source: Fang, Li, Lin and Zhang, "SPIDER", NeurIPS 2018, arXiv:1807.01695, for estimates by
differences; Arora, Bassily, Gonzalez, Guzman, Menart and Ullah, "Faster rates of convergence to
stationary points in differentially private optimization", ICML 2023, arXiv:2206.00846, for noise by
the movement. Departures: clipping replaces a Lipschitz constant of each record, and both players
are one vector.
"""

import dataclasses
from typing import Self

import jax

from jaxminimax.base import checks
from jaxminimax.base.types import Saddle, pytree_dataclass
from jaxminimax.mechanism import composed, description, grid, sampling, sentences
from jaxminimax.mechanism.costs import Charge, concrete
from jaxminimax.mechanism.query import Query
from jaxminimax.mechanism.repeat import OneRelease, Repeat, sampled_words

__all__ = ["Difference", "Windows"]


@pytree_dataclass
class Difference(OneRelease):
    """Releases the clipped sum of differences of both players' operators at two released points.

    Attributes:
      lipschitz: L, of a record's operator, both players together [gradient units / parameter
        units]: a record's difference is clipped at L times the points' distance.
      noise_multiplier: standard deviation of the noise on the sum over that clip, one number for
        both players [dimensionless].
      sampling: full batches, or samples drawn anew in every release.
      population: n, the number of records; public.
      parameters: the largest number of numbers that a release has; public.
      exact: whether the noise is added as integers, without rounding, or in floating point.

    Examples:
        >>> one = jmm.mechanism.Difference(lipschitz=2.0, noise_multiplier=30.0, population=1000)
        >>> as_query = jmm.Repeat(query=one.quotient, times=50)
        >>> jmm.epsilon(jmm.Repeat(query=one, times=50), 1e-6) == jmm.epsilon(as_query, 1e-6)
        True
    """

    sum_of_sample = True
    lipschitz: float | jax.Array
    population: int = jax.tree.static()

    @property
    def quotient(self) -> Query:
        """The released quotient: differences over L times the distance, clipped at 1."""
        # the joint clip at norm 1 of (g(z) - g(z')) / l; times l it is post-processing. Noise over
        # l = L ||z - z'|| is z_2 whatever l is: no charge depends on the points
        z = self.noise_multiplier
        return Query(clip=Saddle(1.0, 1.0), noise_multiplier=None if z is None else Saddle(z, z),
                     sampling=self.sampling, population=self.population, joint=True,
                     parameters=self.parameters, exact=self.exact)

    def check_own(self) -> None:
        """Refuses numbers that no release should start from, and samples that are not drawn."""
        grid.check_bound("lipschitz", self.lipschitz)
        grid.check_multiplier("noise_multiplier", self.noise_multiplier)
        if sampling.known_sampling(self.sampling).spread(self.population) is None:
            raise ValueError("differences need samples that are drawn anew in every release, got "
                             f"{self.sampling!r}: use Full(), Poisson(...) or FixedSize(...).")

    def supports_group_privacy(self, repeat: Repeat) -> bool:
        """The answer for quotients."""
        return True

    def words(self, repeat: Repeat) -> sentences.Words:
        """States the number of releases and their clip norm; L is a matter of utility."""
        return sentences.Words(
            sampled_words(repeat, " of differences of operators at two released points, clipped "
                          f"at {concrete(self.lipschitz):.6g} times the points' distance, one clip "
                          "for both players together,") + ".",
            (sentences.DIFFERENCES,), unit="differences",
            clips={"differences at distance 1": concrete(self.lipschitz)})


@pytree_dataclass
class Windows(description.Answered):
    """`rounds` releases in windows of `length`: an anchor, then differences.

    Attributes:
      anchor: of the operator itself, both players.
      difference: of the operator at a round's point and the point of the round before.
      length: q, releases of a window; 1: anchors only.
      rounds: R, of all windows; an algorithm replaces it by its iterations.

    Examples:
        >>> anchor = jmm.Query(clip=Saddle(1.0, 1.0), population=1000)
        >>> difference = jmm.mechanism.Difference(lipschitz=1.0, population=1000)
        >>> made = jmm.mechanism.Windows(anchor=anchor, difference=difference, length=5, rounds=12)
        >>> [leaf.releases() for leaf in made.flattened()]
        [3, 9]
        >>> [leaf.releases() for leaf in made.truncated(7).flattened()]
        [2, 5]
    """

    anchor: Query
    difference: Difference
    length: int = jax.tree.static()
    rounds: int = jax.tree.static(default=1)

    kind = description.Kind.MEAN

    @property
    def population(self) -> int:
        """The population n, of both kinds of releases."""
        return self.anchor.population

    def check(self) -> None:
        """Checks both kinds of releases, and that they are of the same records."""
        self.check_own()
        grid.check_times("rounds (the number of releases)", self.rounds)
        for leaf in self.flattened():
            leaf.check()

    def check_own(self) -> None:
        """Refuses numbers that no release should start from."""
        if not isinstance(self.anchor, Query) or not isinstance(self.difference, Difference):
            raise ValueError("Windows are of an anchor, a Query, and a difference, a Difference, "
                             f"got {checks.describe(self.anchor)} and "
                             f"{checks.describe(self.difference)}.")
        checks.count("length", self.length)
        self.anchor.check_own()
        self.difference.check_own()
        for one in (self.anchor, self.difference):
            grid.check_grid(one.exact, one.parameters)
        if None in self.anchor.clip:
            raise ValueError("An anchor needs a clip norm for both players, got "
                             f"{self.anchor.clip!r}: differences are of both.")
        if self.anchor.population != self.difference.population:
            raise ValueError(f"anchor has population={self.anchor.population}, but difference has "
                             f"{self.difference.population}: they read the same records.")
        if self.anchor.adaptive is not None:
            raise ValueError("An anchor's clip norms stay: adaptive ones are for jmm.sgda. Leave "
                             "Query.adaptive out.")
        drawn = sampling.known_sampling(self.anchor.sampling)
        if self.anchor.bands != 1 or drawn.spread(self.anchor.population) is None:
            raise ValueError("anchors need independent noise and samples that are drawn anew, got "
                             f"bands={self.anchor.bands} and {self.anchor.sampling!r}: leave bands "
                             "out, and use Full(), Poisson(...) or FixedSize(...).")

    def releases(self) -> int:
        """The number of releases, one a round."""
        return self.rounds

    def truncated(self, spent: int) -> "Windows | None":
        """Windows of so many rounds: the last one may be cut short, its anchor is not."""
        # of the first s releases ceil(s / length) are anchors, for every s
        rounds = min(spent, self.rounds)
        return dataclasses.replace(self, rounds=rounds) if rounds else None

    def with_noise(self, scale: float) -> Self:
        """Scales the noise of both kinds, in their ratio."""
        return dataclasses.replace(self, anchor=self.anchor.with_noise(scale),
                                   difference=self.difference.with_noise(scale))

    def charges(self, neighbours: str) -> tuple[Charge, ...]:
        """Charges all anchors and all differences, on the same data."""
        return composed.Sequence(parts=self.flattened()).charges(neighbours)

    def supports_group_privacy(self) -> bool:
        """The answer that holds for both."""
        return all(leaf.supports_group_privacy() for leaf in self.flattened())

    def flattened(self) -> tuple[description.Leaf, ...]:
        """The anchors, and the differences if there are any."""
        anchors = -(-self.rounds // self.length)  # rounded up: a window begins with its anchor
        kinds = (self.anchor, anchors), (self.difference, self.rounds - anchors)
        return tuple(Repeat(query=query, times=times, place=self.place)
                     for query, times in kinds if times)

    def answered(self) -> tuple[description.Answered, ...]:
        """Returns itself: a release is an anchor or a difference by its number."""
        return (self,)

    def records(self) -> int:
        """The number of records; both parts read the same data."""
        return self.population

