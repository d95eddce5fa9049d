"""What a description of a mechanism is: the questions that every one of them answers.

`Description` is of everything that can be charged, `Leaf` of one mechanism that is not put together
from others, `OneRelease` of what a `Repeat` repeats. A class that leaves a question out cannot be
constructed, and what is none of them is refused wherever it is met: no function asks which one it
is, so none can take a new one for another.

Make them frozen `pytree_dataclass`es. A new leaf is one file here and one function of the door.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism import costs
from jaxminimax.mechanism.costs import REPLACE_ONE, Charge, concrete
from jaxminimax.mechanism.sentences import imperfections

__all__ = ["Description", "Leaf", "is_exact", "leaves", "releases"]


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


MOST_STEPS = 10**7  # of an inner solver


def check_grid(exact: Any, parameters: Any = 1) -> None:
    """Refuses what no grid of a release can follow from."""
    if not isinstance(exact, bool):
        raise ValueError(f"exact must be True or False, got {exact!r}.")
    checks.count("parameters", parameters)
    if parameters >= 2**31 - 32:
        raise ValueError(f"parameters must be below 2**31 - 32, got {parameters}: a release draws "
                         "its noise in one go.")


def check_times(name: str, times: int) -> None:
    """Refuses a number of releases that a counter of 32 bits does not hold."""
    checks.count(name, times)
    if times >= 2**31:
        raise ValueError(f"{name} must be below 2**31, got {times}: the counter of releases has 32 "
                         "bits.")


def check_multiplier(name: str, z: Any) -> None:
    """Refuses a noise multiplier out of range; None, not set yet, passes."""
    if z is None:
        return
    checks.number(name, z, low=0.0, high=1e15, closed=True)
    if is_plain(z, lambda x: 0 < x < 1e-4):
        raise ValueError(f"{name} must be 0 (no privacy) or at least 1e-4, got {z!r}.")


def check_sizes(sizes: Any) -> None:
    """Refuses sizes of groups that are no tuple of counts."""
    if not isinstance(sizes, tuple) or not sizes:
        raise ValueError("sizes must be a tuple of every group's number of records, got "
                         f"{sizes!r}: problems.by_group returns it.")
    for n in sizes:
        checks.count("sizes", n)
        if n >= 2**31:
            raise ValueError(f"sizes must be below 2**31, got {n}: indices are 32-bit.")


def check_bound(name: str, bound: Any) -> None:
    """Refuses a clip norm, or a bound on losses, that float32 programs would lose."""
    checks.number(name, bound, low=1e-28, high=1e28, closed=True)


def is_plain(x: Any, true: Callable[[float], bool]) -> bool:
    """Whether that holds of a number; not of tracers, nor of arrays of several."""
    return not isinstance(x, jax.core.Tracer) and np.ndim(x) == 0 and true(float(x))


def are_plain(*numbers: Any) -> bool:
    """Whether all are single numbers that are known."""
    return not any(isinstance(x, jax.core.Tracer) or np.ndim(x) for x in numbers)


class Once(Leaf):
    """What mechanisms share that a record takes part in once, however long they run."""

    def spent_part(self, spent: int) -> Self | None:
        """All of it: a record's whole cost may be in the first release."""
        return self if spent else None

    def with_noise(self, scale: float) -> Self:
        """The one multiplier."""
        return scaled(self, scale)

    def charges(self, neighbours: str) -> tuple[Charge, ...]:
        """One, for a record that is replaced."""
        replace_one_only(neighbours)
        return (costs.price(self, neighbours),)

    def multiplier(self) -> float:
        """The one multiplier."""
        return own_multiplier(self)

    def together(self) -> bool:
        """Yes: a chain of k records is as far as one noise that is moved k times.

        The whole stream has one record's trade-off of one Gaussian, or of one Laplace number. The
        trade-off of k such steps is that of the same noise moved k times as far, as thresholds are
        the best tests of all distances; it bounds k records, wherever they are.
        """
        return True

    def clips(self) -> dict[str, float]:
        """None."""
        return {}
