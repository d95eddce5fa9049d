"""Mechanisms put together from others: one release repeated, a sequence, and parts in parallel."""

import bisect
import dataclasses
import itertools
import math
from typing import Any, Self

import jax

from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism.costs import Charge, compose
from jaxminimax.mechanism.description import Answered, Description, Leaf
from jaxminimax.mechanism.repeat import OneRelease, Repeat

__all__ = ["Parallel", "Sequence", "is_exact", "leaves", "releases", "with_noise"]


def as_description(mechanism: Any) -> Description:
    """Returns `mechanism` if it is a description.

    Raises:
      ValueError: for everything else.
    """
    if not isinstance(mechanism, Description):
        raise ValueError("A mechanism is a Repeat, a Sequence or another description of "
                         f"jaxminimax.mechanism, got {type(mechanism).__name__}; pass "
                         "algorithm.mechanism(hyper).")
    return mechanism


class _Several(Description):
    """Base of `Sequence` and `Parallel`."""

    parts: tuple[Any, ...]
    in_turn: bool
    alone = 0
    each: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.parts, tuple):  # else `check` refuses it
            object.__setattr__(self, "parts", self._parts_placed(set()))

    def _parts_placed(self, occupied: set[tuple[int, int]]) -> tuple[Any, ...]:
        return tuple(part.placed(occupied) if isinstance(part, Description) else part
                     for part in self.parts)

    def placed(self, occupied: set[tuple[int, int]]) -> Self:
        """The same, with a free place for every part."""
        return dataclasses.replace(  # type: ignore[type-var]
            self, parts=self._parts_placed(occupied))

    def answered(self) -> tuple[Answered, ...]:
        """Returns the `Answered` releases of every part."""
        return tuple(answer for part in self._listed for answer in part.answered())

    def check(self) -> None:
        """Checks every part."""
        for part in self._listed:
            part.check()

    @property
    def _listed(self) -> tuple[Description, ...]:
        if not isinstance(self.parts, tuple):
            raise ValueError(f"parts must be a tuple of mechanisms, got {self.parts!r}.")
        return tuple(map(as_description, self.parts))

    def releases(self) -> int:
        """The sum of the releases of all parts."""
        return sum(part.releases() for part in self._listed)

    def truncated(self, spent: int) -> Description | None:
        """Parts are taken to run one after the other, in their order, or in turn."""
        if self.in_turn:
            counts = [part.releases() for part in self._listed]
            releases_a_round = self.each or (1,) * len(counts)

            def split(rounds: int) -> list[int]:
                # part 0 is in every round; the others from round `alone` on
                return [min(max(rounds - self.alone * (i > 0), 0) * number, count)
                        for i, (number, count) in enumerate(zip(
                            releases_a_round, counts, strict=True))]

            # a round that was begun counts: the fewest rounds that made so many releases
            rounds = bisect.bisect_left(range(self.alone + max(counts) + 1), spent,
                                        key=lambda r: sum(split(r)))
            truncated = [part.truncated(n)
                         for part, n in zip(self._listed, split(rounds), strict=True)]
        else:
            truncated = []
            for part in self._listed:
                truncated.append(part.truncated(spent))
                spent -= 0 if truncated[-1] is None else min(spent, truncated[-1].releases())
        begun = tuple(part for part in truncated if part is not None)
        shortened = {"each": tuple(k for k, part in zip(self.each, truncated, strict=True)
                              if part is not None)} if self.each else {}
        return dataclasses.replace(  # type: ignore[type-var]
            self, parts=begun, **shortened) if begun else None

    def with_noise(self, scale: float) -> Self:
        """Scales the noise of every part."""
        parts = tuple(part.with_noise(scale) for part in self._listed)
        return dataclasses.replace(self, parts=parts)  # type: ignore[type-var]

    def flattened(self) -> tuple[Leaf, ...]:
        """Returns the leaves of every part."""
        return tuple(leaf for part in self._listed for leaf in part.flattened())


@pytree_dataclass
class Sequence(_Several):
    """Mechanisms on the same data, each free to look at the earlier answers.

    Attributes:
      parts: the mechanisms.
      in_turn: whether they take turns, one release of each in a round, instead of running one after
        the other; decides what a run that stopped early has spent.
      alone: rounds before the turns begin, in which only the first part makes its release.
      each: how many releases of every part a round makes, of parts that take turns; () for one.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(30.0, 30.0),
        ...                   population=1000)
        >>> one = jmm.Repeat(query=query, times=10)
        >>> both = jmm.epsilon(jmm.Sequence(parts=(one, one)), 1e-6)
        >>> jmm.epsilon(one, 1e-6) < both < 2 * jmm.epsilon(one, 1e-6)
        True
    """

    parts: tuple[Any, ...]
    in_turn: bool = jax.tree.static(default=False)
    alone: int = jax.tree.static(default=0, repr=False)
    each: tuple[int, ...] = jax.tree.static(default=(), repr=False)

    def check(self) -> None:
        """Checks every part, and the numbers of rounds and of releases in a round."""
        super().check()
        if self.each and not (self.in_turn and isinstance(self.each, tuple)
                              and len(self.each) == len(self.parts)
                              and all(isinstance(k, int) and k > 0 for k in self.each)):
            raise ValueError("each must be the releases of every part in a round, at least 1, of "
                             f"parts with in_turn=True, got {self.each!r} for {len(self.parts)} "
                             f"part(s) with in_turn={self.in_turn}.")
        if not isinstance(self.alone, int) or self.alone < 0:
            raise ValueError(f"alone must be a number of rounds, at least 0, got {self.alone!r}.")

    def charges(self, neighbours: str) -> tuple[Charge, ...]:
        """The sum, for every choice of places where the differing record may be."""
        # a part has a charge for each place of the record; in a sequence every choice may be met
        rows = [part.charges(neighbours) for part in self._listed]
        if math.prod(map(len, rows)) > 1000:
            raise ValueError("A Sequence of Parallel mechanisms has more than 1000 combinations of "
                             "parts: put the Sequences inside one Parallel.")
        return tuple(compose(*choice) for choice in itertools.product(*rows))

    def supports_group_privacy(self) -> bool:
        """True if all parts support it: pairs of releases on the same data compose.

        Those of many releases at once only if no other mechanism can come between.
        """
        leaves = self.flattened()
        return (all(part.supports_group_privacy() for part in self._listed)
                and (len(leaves) == 1 or not any(leaf.facts().atomic for leaf in leaves)))

    def records(self) -> int:
        """All parts read the same data."""
        return max((part.records() for part in self._listed), default=0)


@pytree_dataclass
class Parallel(_Several):
    """Mechanisms on disjoint data sets, fixed in advance; each may look at the earlier answers.

    A record is in one of them, so the largest cost counts, never the sum; and each part is charged
    in full.

    Attributes:
      parts: the mechanisms.
      in_turn: whether a round makes one release of every part, so that they end together; if not,
        they run one after the other.

    Examples:
        >>> half = jmm.Query(clip=Saddle(1.0, 1.0), noise_multiplier=Saddle(20.0, 20.0),
        ...                  population=500)
        >>> one = jmm.Repeat(query=half, times=10)
        >>> jmm.epsilon(jmm.Parallel(parts=(one, one)), 1e-6) == jmm.epsilon(one, 1e-6)
        True
    """

    parts: tuple[Any, ...]
    in_turn: bool = jax.tree.static(default=False)

    def check(self) -> None:
        """Checks every part, of which there is one at least."""
        if not self._listed:
            raise ValueError("A Parallel needs at least one part, got none.")
        super().check()

    def charges(self, neighbours: str) -> tuple[Charge, ...]:
        """Returns the charges of every part, as alternatives."""
        return tuple(c for part in self._listed for c in part.charges(neighbours))

    def supports_group_privacy(self) -> bool:
        """False for several parts: one person's records may be in more than one."""
        return len(self._listed) == 1 and self._listed[0].supports_group_privacy()

    def records(self) -> int:
        """Every part reads data of its own."""
        return sum(part.records() for part in self._listed)


def disjoint_parts(described: Any) -> tuple[Any, ...]:
    """The parts of a `Parallel`, which reach a target each by themselves; () of all else."""
    return described._listed if isinstance(described, Parallel) else ()


def parts_of_data(described: Any) -> int:
    """The number of parts of the data that a `Repeat` takes in turn; 1 for all else."""
    return described.parts if isinstance(described, Repeat) else 1


# --- what is asked of whatever is given as a description ---


def check(mechanism: Any) -> None:
    """Refuses a description that no run or charge should start from.

    Raises:
      ValueError: naming the value and the fix.
    """
    as_description(mechanism).check()


def charges(mechanism: Any, neighbours: str) -> tuple[Charge, ...]:
    """The cost of a valid description, each charge once."""
    return tuple(dict.fromkeys(as_description(mechanism).charges(neighbours)))


def releases(mechanism: Any) -> int:
    """Number of releases that the mechanism allows.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=100)
        >>> jmm.mechanism.releases(jmm.Repeat(query=query, times=20))
        20
    """
    return as_description(mechanism).releases()


def leaves(mechanism: Any) -> list[Leaf]:
    """The mechanisms that `Sequence` and `Parallel` are built from, in order.

    Examples:
        >>> tree = jmm.mechanism.TreeSums(clip=1.0, leaves=8)
        >>> losses = jmm.mechanism.RecordLosses(bound=1.0, times=8)
        >>> parts = jmm.mechanism.leaves(jmm.Sequence(parts=(tree, losses)))
        >>> [type(part).__name__ for part in parts]
        ['TreeSums', 'RecordLosses']
    """
    return list(as_description(mechanism).flattened())


def is_exact(mechanism: Any) -> bool:
    """Returns whether a mechanism's noise is made of integers and added without rounding.

    Examples:
        >>> jmm.mechanism.is_exact(jmm.mechanism.TreeSums(clip=1.0, leaves=8))
        True
    """
    return as_description(mechanism).is_exact()


def with_noise(query: Any, scale: float) -> Any:
    """Scales the noise multipliers of `query` (1 each if not set), as Python floats.

    Raises:
      ValueError: for what is neither a description nor a release of one.

    Examples:
        >>> tree = jmm.mechanism.TreeSums(clip=1.0, noise_multiplier=4.0, leaves=8)
        >>> jmm.mechanism.with_noise(tree, 2.0).noise_multiplier
        8.0
    """
    return (query if isinstance(query, OneRelease) else as_description(query)).with_noise(scale)


def _describes(x: Any) -> bool:
    return isinstance(x, Description | OneRelease)


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path).lstrip(".")


def descriptions(hyper: Any) -> dict[str, Any]:
    """The descriptions and single releases in a `Hyper`, by their paths in it."""
    pairs = jax.tree_util.tree_leaves_with_path(hyper, is_leaf=_describes)
    return {_name(path): x for path, x in pairs if _describes(x)}


def with_noise_of_all(hyper: Any, scale: float, **scales: float) -> Any:
    """Scales the noise multipliers of all descriptions of `hyper` (1 where not set).

    Args:
      hyper: an algorithm's.
      scale: factor.
      scales: another factor for the description of that name.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, x: with_noise(x, scales.get(_name(path), scale)) if _describes(x) else x,
        hyper, is_leaf=_describes)


def check_charged(algorithm: Any, hyper: Any) -> None:
    """Refuses settings with a description that the algorithm's mechanism does not have.

    Raises:
      ValueError: naming a description whose noise does not change the noise that is charged.
    """
    def charged(**scales: float) -> list[float]:
        mechanism = algorithm.mechanism(with_noise_of_all(hyper, 1.0, **scales))
        return [leaf.multiplier() for leaf in mechanism.flattened()]

    names, plain = descriptions(hyper), charged()
    if not names:
        raise ValueError(f"{type(hyper).__qualname__} holds no description whose noise could be "
                         "set: give it a Query, or another of jaxminimax.mechanism, as a field "
                         "that is not static.")
    for name in names:
        # twice the noise of one description must change the multiplier of some leaf
        if 0 not in plain and charged(**{name: 2.0}) == plain:
            raise ValueError(f"hyper.{name} is not charged: its noise changes nothing in "
                             "algorithm.mechanism(hyper). Put it into mechanism, or leave it out "
                             "of hyper.")
