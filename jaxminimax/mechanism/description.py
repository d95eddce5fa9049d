"""What a description of a mechanism is: the questions that every one of them answers.

`Description` is of everything that can be charged, `Leaf` of one mechanism that is not put together
from others, `OneRelease` of what a `Repeat` repeats. A class that leaves a question out cannot be
constructed, and what is none of them is refused wherever it is met: no function asks which one it
is, so none can take a new one for another.

Make them frozen `pytree_dataclass`es. A new leaf is one file here and one function of the door.
"""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, Self

import jax

from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism.costs import REPLACE_ONE, Charge, concrete
from jaxminimax.mechanism.sampling import Sampling
from jaxminimax.mechanism.sentences import imperfections

if TYPE_CHECKING:
    from jaxminimax.mechanism.composed import Repeat


class Description(abc.ABC):
    """What a run, or a part of it, does to the data.

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
    def spent_part(self, spent: int) -> "Description | None":
        """What is charged if it stopped after `spent` releases; None if nothing was released."""

    @abc.abstractmethod
    def with_noise(self, scale: float) -> Self:
        """Noise multipliers (1 each if not set) times `scale`, as Python floats."""

    @abc.abstractmethod
    def charges(self, neighbours: str) -> tuple[Charge, ...]:
        """The cost, one charge for each place where the differing record may be.

        Raises:
          ValueError: for a relation that there is no guarantee for.
        """

    def together(self) -> bool:
        """Whether its charges may be read for k records that differ, wherever these are.

        That is for a proof: the pairs of a `Charge`, taken for k records, dominate the releases. It
        fails where k records may be in places that cost separately. False unless a class says
        otherwise: then a lemma on groups is charged, which holds for everything.
        """
        return False

    @abc.abstractmethod
    def flattened(self) -> "tuple[Leaf, ...]":
        """The leaves that it is put together from, in order."""

    def answered(self) -> "tuple[Answered, ...]":
        """The descriptions in it that releases are made for, each with its own place, in order."""
        return self.flattened()

    def placed(self, taken: set[tuple[str, int]]) -> "Description":
        """The same at places that are not in `taken`, to which they are added; see `Answered`."""
        return self

    @abc.abstractmethod
    def records(self) -> int:
        """How many records it is for; 0 where it does not say."""

    @abc.abstractmethod
    def in_words(self) -> str:
        """What is released, for statements: one sentence a leaf."""

    @abc.abstractmethod
    def guarantees(self) -> tuple[str, ...]:
        """Sentences for statements: what the code does that the charge rests on."""

    @abc.abstractmethod
    def assumptions(self) -> tuple[str, ...]:
        """Sentences for statements: what the charge rests on that the user must see to."""

    @abc.abstractmethod
    def is_exact(self) -> bool:
        """Whether the noise is made of integers and added without rounding."""


Mechanism = Description


@pytree_dataclass
class Answered(Description):
    """A description that releases are made for.

    Attributes:
      place: its number among the descriptions of one kind in a run, see `draws`. 0 unless a
        `Sequence` or a `Parallel` sets it. The place is part of the keys of its releases, so that
        no two descriptions share noise or samples.
    """

    place: int = jax.tree.static(default=0, repr=False)

    @property
    @abc.abstractmethod
    def draws(self) -> str:
        """A name for the `opening.Kind` of keys that its releases draw from.

        Descriptions with one name differ by `place`. Subclasses share their class's keys, so they
        share its name.
        """

    def placed(self, taken: set[tuple[str, int]]) -> Self:
        """At its own place, or the next one that is free."""
        place = self.place
        while (self.draws, place) in taken:
            place += 1
        taken.add((self.draws, place))
        return self if place == self.place else dataclasses.replace(self, place=place)


class Leaf(Answered):
    """A mechanism that is not put together from others; it has one noise multiplier.

    What it is asked beyond a `Description` is charged by `costs.price` and printed by statements.

    Examples:
        >>> isinstance(jmm.mechanism.TreeSums(clip=1.0, leaves=8), jmm.mechanism.Leaf)
        True
    """

    @abc.abstractmethod
    def multiplier(self) -> float:
        """The noise multiplier, players combined.

        Raises:
          ValueError: if it was never set.
        """

    @abc.abstractmethod
    def charged(self, neighbours: str) -> float:
        """The multiplier of a real mechanism that is no more private; by `costs.charged`."""

    @abc.abstractmethod
    def cost(self, z: float) -> Charge:
        """What it costs with noise on real numbers, of that multiplier."""

    @abc.abstractmethod
    def realised(self) -> Charge:
        """What integer noise and rounding cost beside that; by `costs.realised`."""

    @property
    @abc.abstractmethod
    def unit(self) -> str:
        """What the multiplier is a multiple of, for statements; "" for a clip norm and the like."""

    @abc.abstractmethod
    def clips(self) -> dict[str, float]:
        """Clip norms to print, by player."""

    def alternatives(self) -> "tuple[Leaf, ...]":
        """What a calibration may make of it: the cheapest, by `deviation`; itself."""
        return (self,)

    def deviation(self) -> float:
        """Standard deviation of the noise, for whoever chooses among `alternatives`."""
        return self.multiplier()

    def noise_multipliers(self) -> dict[str, float]:
        """Noise multipliers to print, by player or by what they are multiples of."""
        return {self.unit: self.multiplier()}

    def realisation(self, neighbours: str) -> str:
        """How noise and sums are made, and what that costs beside real numbers, for statements."""
        z, counted, cost = self.multiplier(), self.charged(neighbours), self.realised()
        if z == 0:
            return "No noise is added."
        rounded = (f"rounding to the grid and inside blocks is charged, a multiplier of {z:.6g} as "
                   f"{counted:.6g} ({100 * (counted / z - 1):.2g} %)")
        if not self.is_exact():
            return f"Noise of floating-point numbers on sums on a grid; {rounded}."
        return f"Integer noise, added exactly; {rounded}; {imperfections(cost)}."

    def flattened(self) -> "tuple[Leaf, ...]":
        """Itself."""
        return (self,)


class OneRelease(abc.ABC):
    """What each release of a `Repeat` answers, on a sample of its own.

    Attributes:
      sampling: which records it reads.
      parameters: d, at least the numbers that a release has; public.
      exact: whether the noise is made of integers.
      noise_multiplier: None if it was never set.
    """

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


def known(mechanism: Any) -> Description:
    """`mechanism`, if it is a description.

    Raises:
      ValueError: for everything else.
    """
    if not isinstance(mechanism, Description):
        raise ValueError("A mechanism is a Repeat, a Sequence or another description of "
                         f"jaxminimax.mechanism, got {type(mechanism).__name__}; pass "
                         "algorithm.mechanism(hyper).")
    return mechanism


def check(mechanism: Any) -> None:
    """Refuses a description that no run or charge should start from.

    Raises:
      ValueError: naming the value and the fix.
    """
    known(mechanism).check()


def charges(mechanism: Any, neighbours: str) -> tuple[Charge, ...]:
    """The cost of a valid description, each charge once."""
    return tuple(dict.fromkeys(known(mechanism).charges(neighbours)))


def releases(mechanism: Any) -> int:
    """Number of releases that the mechanism allows.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=100)
        >>> jmm.mechanism.releases(jmm.Repeat(query=query, times=20))
        20
    """
    return known(mechanism).releases()


def leaves(mechanism: Any) -> list[Leaf]:
    """The mechanisms that `Sequence` and `Parallel` are built from, in order.

    Examples:
        >>> tree = jmm.mechanism.TreeSums(clip=1.0, leaves=8)
        >>> losses = jmm.mechanism.RecordLosses(bound=1.0, times=8)
        >>> parts = jmm.mechanism.leaves(jmm.Sequence(parts=(tree, losses)))
        >>> [type(part).__name__ for part in parts]
        ['TreeSums', 'RecordLosses']
    """
    return list(known(mechanism).flattened())


def is_exact(mechanism: Any) -> bool:
    """Whether a mechanism's noise is made of integers and added without rounding.

    Examples:
        >>> jmm.mechanism.is_exact(jmm.mechanism.TreeSums(clip=1.0, leaves=8))
        True
    """
    return known(mechanism).is_exact()


def check_noise(query: Any) -> Any:
    """The noise multipliers of `query`: a `Saddle` of a `Query`, one number of the others.

    Raises:
      ValueError: if they were never set.
    """
    if query.noise_multiplier is None:
        raise ValueError("noise_multiplier is not set: calibrate(algorithm, hyper, epsilon=..., "
                         "delta=...) sets it; 0.0 (for two players Saddle(0.0, 0.0)) runs without "
                         "privacy.")
    return query.noise_multiplier


def with_noise(query: Any, scale: float) -> Any:
    """`query` with its noise multipliers (1 each if not set) times `scale`, as Python floats.

    Raises:
      ValueError: for what is neither a description nor a release of one.

    Examples:
        >>> tree = jmm.mechanism.TreeSums(clip=1.0, noise_multiplier=4.0, leaves=8)
        >>> jmm.mechanism.with_noise(tree, 2.0).noise_multiplier
        8.0
    """
    return (query if isinstance(query, OneRelease) else known(query)).with_noise(scale)


def own_multiplier(leaf: Any) -> float:
    """The one number that is the noise multiplier of a leaf.

    Raises:
      ValueError: if it was never set.
    """
    if leaf.noise_multiplier is None:
        raise ValueError(f"noise_multiplier of {type(leaf).__name__} is not set: calibrate_noise("
                         "mechanism, epsilon=..., delta=...) sets it.")
    return concrete(leaf.noise_multiplier)


def scaled(described: Any, scale: float) -> Any:
    """`described.with_noise(scale)` of a description whose noise multiplier is one number."""
    z = described.noise_multiplier
    return dataclasses.replace(described,
                               noise_multiplier=scale * (1.0 if z is None else concrete(z)))


def replace_one_only(neighbours: str) -> None:
    """Refuses other relations, for descriptions that have a guarantee for that one only.

    Raises:
      ValueError: naming the fix.
    """
    if neighbours != REPLACE_ONE:
        raise ValueError("add_or_remove_one is offered for releases on Full() and Poisson(...) "
                         "samples of the whole data only: use neighbours='replace_one'.")
