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
from collections.abc import Callable
from typing import Self

import jax
import jax.numpy as jnp

from jaxminimax.base import arguments, checks, tree
from jaxminimax.base.types import (
    OwnOperator,
    Problem,
    PyTree,
    Saddle,
    pytree_dataclass,
    with_strategy,
)
from jaxminimax.mechanism import composed, description, grid, sampling, sentences
from jaxminimax.mechanism.costs import Charge, concrete
from jaxminimax.mechanism.query import Query
from jaxminimax.mechanism.repeat import OneRelease, Repeat, sampled_words
from jaxminimax.releases.sums import release
from jaxminimax.releases.watch import watched, watched_pair

CLIPPED = ("Each record's difference of operators at two released points is divided by the "
           "stated constant times their distance and clipped to norm 1, both players together, "
           "before it is summed. The sum is multiplied by the same public number.")


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
                     parameters=self.parameters)

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
            (CLIPPED,), unit="differences",
            clips={"differences at distance 1": concrete(self.lipschitz)})


@pytree_dataclass
class Windows(description.Answered):
    """`rounds` releases in windows of `length`: an anchor, then differences.

    Attributes:
      anchor: of the operator itself, both players.
      difference: of the operator at a round's point and the point of the round before.
      length: q, releases of a window; 1: anchors only.
      rounds: R, of all windows; an algorithm replaces it by its iterations.
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
            grid.check_grid(one.parameters, one.exact)
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


# --- the releases ---


@dataclasses.dataclass(frozen=True)
class _Quotient:
    """The quotient (g(z; x) - g(before; x)) / length of one record; one key for both points."""

    operator: Callable[..., Saddle]
    before: Saddle
    length: jax.Array

    def __call__(self, z: Saddle, example: PyTree, *key: jax.Array) -> Saddle:
        now, before = (_wide(self.operator(point, example, *key)) for point in (z, self.before))
        return jax.tree.map(lambda a, b: (a - b) / self.length.astype(a.dtype), now, before)


def _wide(z: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x.astype(tree.at_least_float32(x.dtype)), z)


def distance(z: Saddle, before: Saddle) -> jax.Array:
    """The distance ||z - before|| of both players, `[]`; not finite where one is not."""
    moves = jax.tree.leaves(jax.tree.map(jnp.subtract, _wide(z), _wide(before)))
    # ||d|| = s (sum_k (d_k / s)^2)^(1/2),  s near max_k |d_k|
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(x), initial=0.0) for x in moves]))
    scale = jnp.where(largest > 0, tree.unit(largest), 1.0)  # squares neither over- nor underflow
    return scale * jnp.sqrt(sum(jnp.sum(jnp.square(x / scale.astype(x.dtype))) for x in moves))


@watched
def release_difference(key: jax.Array, mechanism: Repeat, spent: jax.Array, problem: Problem,
                       z: Saddle, before: Saddle, data: PyTree) -> Saddle:
    """A noisy mean of the differences of the problem's operator at z and at `before`.

        l (sum_{i in B} clip((g(z; x_i) - g(before; x_i)) / l, 1) + N(0, z_2^2 I)) / m,

    l = L ||z - before||, the clip joint for both players, B one sample for both points.

    Args:
      key: as in `release`; no other release of the run has the same key and `spent`.
      mechanism: what was promised to the accountant, a `Repeat` of a `Difference`.
      spent: as in `release`.
      problem: as in `release`; "ghost", which looks inside a loss, is read as "microbatch".
      z: a released point.
      before: another one, like z.
      data: as in `release`.

    Returns:
      As `release`; 0 for equal points, NaN for a distance that is not finite.

    Raises:
      ValueError: as `release`.
      TypeError: for another mechanism.
    """
    if not isinstance(mechanism, Repeat) or not isinstance(mechanism.query, Difference):
        raise TypeError("release_difference answers a Repeat of a Difference, got "
                        f"{checks.describe(mechanism)}.")
    query = mechanism.query
    query.check_own()
    checks.scalars(lipschitz=query.lipschitz)
    for name, one, other in zip(Saddle._fields, z, before, strict=True):
        arguments.same_shapes(other, one, f"before.{name}", f"z.{name}")
        arguments.floats(one, f"z.{name}")
    z, before = jax.tree.map(jnp.asarray, (z, before))
    # l = L ||z - before|| of released points, so public given the past
    length = query.lipschitz * distance(z, before)
    strategy = getattr(problem.operator, "strategy", "auto")
    quotient = OwnOperator(_Quotient(problem.operator, before, length))
    problem = problem._replace(operator=with_strategy(
        quotient, "microbatch" if strategy == "ghost" else strategy,
        getattr(problem.operator, "microbatch", quotient.microbatch)))
    # (sum_{i in B} clip(quotient_i, 1) + N(0, z_2^2 I)) / m
    g = release(key, dataclasses.replace(mechanism, query=query.quotient), spent, problem, z, data)
    # times l is postprocessing; an l that is not finite gives NaN whatever the data
    length = jnp.where(jnp.isfinite(length), length, jnp.nan)
    return jax.tree.map(lambda x: x * length.astype(x.dtype), g)


@watched_pair
def release_in_window(key: jax.Array, mechanism: Windows, spent: jax.Array, problem: Problem,
                      z: Saddle, before: Saddle, data: PyTree) -> tuple[Saddle, jax.Array]:
    """The release of a round: `release` at z if it opens a window, else `release_difference`.

    Which one is decided by the number of the release, as it is charged.

    Args:
      key: root key of the run, a secret; as in `release`.
      mechanism: what was promised to the accountant.
      spent: number of releases already made, int32 `[]`.
      problem: as in `release_difference`.
      z: the point of this round.
      before: that of the round before, which no anchor reads.
      data: as in `release`.

    Returns:
      What is released, a `Saddle` like z in at least float32, and whether it is an anchor.

    Raises:
      ValueError: as `release`.
      TypeError: for another mechanism.
    """
    if not isinstance(mechanism, Windows):
        raise TypeError("release_in_window answers Windows, algorithm.mechanism(hyper), got "
                        f"{checks.describe(mechanism)}.")
    mechanism.check_own()
    # one stream of keys, numbered by rounds: of each number one of the two is released
    anchors, differences = (Repeat(query=query, times=mechanism.rounds, place=mechanism.place)
                            for query in (mechanism.anchor, mechanism.difference))
    opens = jnp.asarray(spent) % mechanism.length == 0

    def anchor() -> Saddle:
        return release(key, anchors, spent, problem, z, data)

    def difference() -> Saddle:
        return release_difference(key, differences, spent, problem, z, before, data)

    if mechanism.length == 1:
        return anchor(), opens
    return jax.lax.cond(opens, anchor, difference), opens
