"""Descriptions of mechanisms, and all that follows from the facts of one.

`Description` is of everything that can be charged, `Leaf` of one mechanism that is not put together
from others. A leaf says what it is in two records: `facts`, the numbers that its charge and its
releases follow from, and `words`, its sentences in statements. A class that leaves one out cannot
be constructed, and what is no description is refused wherever it is met: no function asks which one
it is, so none can take a new one for another.

Make them frozen `pytree_dataclass`es. A new leaf is one file: `docs/adding_a_mechanism.md`.
"""

import abc
import dataclasses
import enum
import itertools
import math
from typing import Any, NamedTuple, Self

import jax

from jaxminimax.base.types import Saddle, pytree_dataclass
from jaxminimax.mechanism import costs, grid, sentences
from jaxminimax.mechanism.costs import REPLACE_ONE, Charge, Unit, concrete

__all__ = ["Description", "Leaf"]

MOST_STEPS = 10**7  # of an inner solver


class Facts(NamedTuple):
    """The numbers of a leaf that its charge and its releases follow from.

    Fields of a description may be traced; these are then, too.

    Attributes:
      unit: the law of its noise, and how many units a replaced record moves a release by, m.
      releases: T, how many are allowed.
      reads: R, of these (of a tree: of its nodes), how many one record moves.
      numbers: N, of noise, in all releases, that a record may move; at most. They cost N times a
        number's tail in total variation, and 2 N times its relative error r of epsilon.
      near: pairs of sums that must be near for the charge to hold; each fails to be with
        probability `grid.DITHER_FAILURE`, and `near` times that is charged as a failure.
      length: l = (L2 distance that a record moves all releases together) / (m units sqrt(R)). The
        charge is that of R releases with the multiplier z / l, mu = m l sqrt(R) / z for Gaussian
        noise.
      repeats: whether T is the field `times` and each release costs the same, so that t < T of them
        are charged as `times` = t. If not, one release is charged as all T.
      records: n, how many it is for; 0 where it does not say.
      noise: the noise multiplier, or one a player, (z_w, z_v); None where it is not set.
      parameters: d, an upper bound on the numbers of one release.
      exact: whether the noise is made of integers and added without rounding, so that N numbers are
        charged. False: floating-point noise. None: the caller adds it, and nothing is charged.
      rounded: the unit that rounding is counted in, where it is not `unit`.
      slack: (certified distance of a solution from the exact one) / (its sensitivity).
      absent: whether rounding is charged as under add-or-remove-one in either relation: the sum
        with a record is compared with the sum that the record takes no part in.
      atomic: whether its charge for several records is of many releases at once, so that no other
        mechanism may be asked between them.
      clip: clip norms of a sum, (C_w, C_v), None for one that is not released; None for releases
        that are no clipped sums.
      joint: whether both players have one clip: z_eff = min_p z_p, else (sum_p z_p^-2)^(-1/2).
      counts: k, how many counts of records within the clip norms a sum has with it, if any.
      share: s, the part of mu^2 that these counts have: z = z_P (1 - s)^(1/2) for all numbers of a
        sum, z_P for the players alone, as 1 / z_P^2 is the part 1 - s of 1 / z^2.
      sizes: of groups that the records are in, data `[p, n_max, ...]`; empty for one set of rows.
      how: how noise is made and what is rounded, for statements.
    """

    unit: Unit
    releases: int
    reads: int
    numbers: int
    near: int
    length: float = 1.0
    repeats: bool = False
    records: int = 0
    noise: Any = None
    parameters: int = grid.PARAMETERS
    exact: bool | None = False
    rounded: Unit | None = None
    slack: Any = None
    absent: bool = False
    atomic: bool = False
    clip: Saddle | None = None
    joint: bool = False
    counts: int | None = None
    share: Any = 0.0
    sizes: tuple[int, ...] = ()
    how: tuple[str, str] = ("Integer noise, added exactly",
                            "rounding to the grid and inside blocks")


class Description(abc.ABC):
    """Description of a run, or of a part of it.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(9.0, 9.0),
        ...                   population=100)
        >>> steps = jmm.Repeat(query=query, times=20)
        >>> isinstance(steps, jmm.mechanism.Description), steps.releases()
        (True, 20)
    """

    @abc.abstractmethod
    def check(self) -> None:
        """Refuses what no run or charge should start from.

        Raises:
          ValueError: naming the value and the fix.
        """

    @abc.abstractmethod
    def releases(self) -> int:
        """Number of releases that are allowed."""

    @abc.abstractmethod
    def truncated(self, spent: int) -> "Description | None":
        """The description of it stopped after `spent` releases; None if nothing was released."""

    @abc.abstractmethod
    def with_noise(self, scale: float) -> Self:
        """Scales the noise multipliers (1 each if not set) by `scale`, as Python floats."""

    @abc.abstractmethod
    def charges(self, neighbours: str) -> tuple[Charge, ...]:
        """The cost, one charge for each place where the differing record may be.

        Raises:
          ValueError: for a relation that there is no guarantee for.
        """

    @abc.abstractmethod
    def flattened(self) -> "tuple[Leaf, ...]":
        """The leaves that it is put together from, in order."""

    @abc.abstractmethod
    def records(self) -> int:
        """The number of records that it is for; 0 if it does not state that."""

    def supports_group_privacy(self) -> bool:
        """Returns whether its charges may be read for k records that differ, wherever these are.

        That is for a proof: the pairs of a `Charge`, taken for k records, dominate the releases. It
        fails where k records may be in places that cost separately. False unless a class says
        otherwise: then a lemma on groups is charged, which holds for everything.
        """
        return False

    def answered(self) -> "tuple[Answered, ...]":
        """The descriptions in it that releases are made for, each with its own place, in order."""
        return self.flattened()

    def placed(self, occupied: set[tuple[int, int]]) -> "Description":
        """The same at places that are not `occupied`, to which they are added; see `Answered`."""
        return self

    def summary(self, parts: tuple[str, ...] = ()) -> str:
        """Sentences on the releases, for statements: one a leaf, equal ones in a row once.

        Args:
          parts: what each leaf releases, such as "gradients"; empty: they have no names.

        Raises:
          ValueError: for another number of names than there are leaves.
        """
        texts = [leaf.words().summary for leaf in self.flattened()]
        if len(parts) not in (0, len(texts)):
            raise ValueError(f"parts must name each of {len(texts)} leaves, got {parts!r}.")
        texts = [f"{name}: {text}" for name, text in zip(parts, texts, strict=False)] or texts
        runs = ((text, len(list(equal))) for text, equal in itertools.groupby(texts))
        return " ".join(text if times == 1 else f"{times} times: {text}" for text, times in runs)

    def enforced(self) -> tuple[str, ...]:
        """Sentences for statements: what the code does that the charge rests on, each once."""
        return sentences.in_order(x for leaf in self.flattened() for x in leaf.words().enforced)

    def assumed(self) -> tuple[str, ...]:
        """Sentences for statements: what the charge rests on that the user must see to."""
        return tuple(dict.fromkeys(x for leaf in self.flattened() for x in leaf.words().assumed))

    def is_exact(self) -> bool:
        """Returns whether the noise is made of integers and added without rounding."""
        return all(leaf.facts().exact for leaf in self.flattened())


class Kind(enum.IntEnum):
    """The kind of a description's keys; see `Answered.kind`.

    A class of one's own takes a number from 64 to 255.
    """

    MEAN = 0  # clipped sums, and proximal points: a run repeats the one or the other
    ONE_GROUP = 1
    GROUP_LOSSES = 2
    GROUP_SOLUTION = 3
    LEAF = 4  # the rounding of a tree's leaf
    NODE = 5  # the noise of a tree's node
    RECORD_LOSS = 6
    SELECTION = 7
    # what correlated noise is made of, blocks of numbers, and how it is rounded:
    INNOVATION = 8  # that of leaves
    MEAN_INNOVATION = 9  # that of clipped sums
    SOLUTION = 10  # noise that the caller adds
    HELD_OUT = 11


@pytree_dataclass
class Answered(Description):
    """A description that releases are made for.

    Attributes:
      place: its number among the descriptions of one `kind` in a run. 0 unless a
        `Sequence` or a `Parallel` sets it. The place is part of the keys of its releases, so that
        no two descriptions share noise or samples.
    """

    place: int = jax.tree.static(default=0, repr=False)

    @property
    @abc.abstractmethod
    def kind(self) -> int:
        """The number of the kind of keys that its releases draw from, a `Kind` or 64 to 255.

        Places are counted for each kind, so two classes of one kind never share a key.
        """

    def placed(self, occupied: set[tuple[int, int]]) -> Self:
        """Places it at its own place, or at the next free one."""
        place = self.place
        while (self.kind, place) in occupied:
            place += 1
        occupied.add((self.kind, place))
        return self if place == self.place else dataclasses.replace(self, place=place)


class Leaf(Answered):
    """A mechanism that is not put together from others: all else follows from `facts` and `words`.

    Examples:
        >>> isinstance(jmm.mechanism.TreeSums(clip=1.0, leaves=8), jmm.mechanism.Leaf)
        True
    """

    @abc.abstractmethod
    def facts(self) -> Facts:
        """The numbers that the charge and the releases follow from."""

    @abc.abstractmethod
    def words(self) -> sentences.Words:
        """Sentences of statements on it; for concrete numbers, as they are on the host."""

    def flattened(self) -> "tuple[Leaf, ...]":
        """Returns the leaf itself."""
        return (self,)

    def releases(self) -> int:
        """The number that its facts give."""
        return self.facts().releases

    def records(self) -> int:
        """The number that its facts give."""
        return self.facts().records

    def truncated(self, spent: int) -> Self | None:
        """Describes fewer releases, if each costs the same.

        If not, all of it: a record's whole cost may be in the first release.
        """
        if spent and self.facts().repeats:
            times = self.times  # type: ignore[attr-defined]
            return dataclasses.replace(self, times=min(spent, times))  # type: ignore[call-arg]
        return self if spent else None

    def with_noise(self, scale: float) -> Self:
        """Scales the one noise multiplier."""
        return scaled(self, scale)

    def charges(self, neighbours: str) -> tuple[Charge, ...]:
        """Returns one charge, for a record that is replaced, wherever it moves most."""
        costs.replace_one_only(neighbours)
        return (costs.price(self, neighbours),)

    def multiplier(self) -> float:
        """The noise multiplier, players combined, with the counts of a sum.

        Raises:
          ValueError: if it was never set.
        """
        facts = self.facts()
        z = costs.combined(map(concrete, jax.tree.leaves(grid.check_set(facts.noise))), facts.joint)
        # 1 / z_eff^2 = 1 / z_P^2 + k / z_b^2, and the counts have the share of it
        return z * math.sqrt(1 - concrete(facts.share)) if facts.counts else z

    def effective_noise_multiplier(self, neighbours: str) -> float:
        """The multiplier of a real mechanism that is no more private, rounding included."""
        facts, z = self.facts(), self.multiplier()
        if facts.exact is None:
            return z
        # each player has a grid of its own, and the coarsest counts as if it were everybody's
        smallest = min(map(concrete, jax.tree.leaves(facts.noise)))
        return costs.charged(z, facts.rounded or facts.unit, facts.parameters, smallest=smallest,
                             slack=facts.slack, absent=facts.absent or neighbours != REPLACE_ONE)

    def cost(self, z: float) -> Charge:
        """The cost with noise on real numbers, of that multiplier."""
        facts = self.facts()
        # moved `length` times as far, noise is as good as a multiplier that is so much smaller
        return costs.noise_charge(facts.unit, facts.reads, z / facts.length)

    def sampler_cost(self) -> Charge:
        """The extra cost of integer noise and rounding."""
        facts = self.facts()
        if facts.exact is None:
            return Charge()
        # only the numbers that a record may move count: others have one law on both data sets
        kind = "normals" if facts.unit.law == "gaussian" else "laplaces"
        return costs.sampler_cost(facts.exact, near=facts.near, **{kind: facts.numbers})

    def sampler_summary(self, neighbours: str) -> str:
        """Describes noise and sums, and their cost against real numbers, for statements."""
        facts = self.facts()
        if facts.exact is None:
            return "The function that releases the solution adds the noise."
        z = self.multiplier()
        if z == 0:
            return "No noise is added."
        counted, (integers, rounding) = self.effective_noise_multiplier(neighbours), facts.how
        rounded = (f"{rounding} is charged, a multiplier of {z:.6g} as {counted:.6g} "
                   f"({100 * (counted / z - 1):.2g} %)")
        if not facts.exact:
            return f"Noise of floating-point numbers on sums on a grid; {rounded}."
        return f"{integers}; {rounded}; {sentences.imperfections(self.sampler_cost())}."

    @property
    def unit(self) -> str:
        """The unit of the multiplier, for statements; "" for a clip norm and the like."""
        return self.words().unit

    def noise_multipliers(self) -> dict[str, float]:
        """Noise multipliers to print, by player or by what they are multiples of."""
        facts = self.facts()
        if not isinstance(facts.noise, Saddle):
            return {self.unit: self.multiplier()}
        counts = {} if facts.counts is None else {"counts": concrete(costs.count_multiplier(
            facts.noise, facts.joint, facts.counts, facts.share))}
        return by_player(facts.noise) | counts

    def clips(self) -> dict[str, float]:
        """Clip norms to print, by player."""
        return self.words().clips

    def alternatives(self) -> "tuple[Leaf, ...]":
        """The forms that a calibration chooses from, the cheapest by `deviation`: itself."""
        return (self,)

    def deviation(self) -> float:
        """Standard deviation of the noise, by which `alternatives` are chosen among."""
        return self.multiplier()


class Once(Leaf):
    """Base of mechanisms that a record takes part in once, however long they run."""

    def supports_group_privacy(self) -> bool:
        """Yes: a chain of k records is as far as one noise that is moved k times.

        The whole stream has one record's trade-off of one Gaussian, or of one Laplace number. The
        trade-off of k such steps is that of the same noise moved k times as far, as thresholds are
        the best tests of all distances; it bounds k records, wherever they are.
        """
        return True


def by_player(numbers: Saddle) -> dict[str, float]:
    """The numbers of the players that are released, by their names."""
    return {name: concrete(x) for name, x in numbers._asdict().items() if x is not None}


def scaled(described: Any, scale: float) -> Any:
    """Scales the noise of a description whose noise multiplier is one number."""
    z = described.noise_multiplier
    return dataclasses.replace(described,
                               noise_multiplier=scale * (1.0 if z is None else concrete(z)))
