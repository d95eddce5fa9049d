"""Records that are read once: gradients by a tree, single losses; and one certified solution."""

import math
from typing import Self

import jax

from jaxminimax.base import checks
from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism import costs, sentences
from jaxminimax.mechanism._checks import check_bound, check_grid, check_multiplier, check_times
from jaxminimax.mechanism._grid import PARAMETERS
from jaxminimax.mechanism.costs import CLIP_NORM, LOSS_BOUND, SENSITIVITY, Charge, concrete
from jaxminimax.mechanism.description import Leaf, own_multiplier, replace_one_only, scaled


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


class LeafSums(Once):
    """What mechanisms share that release all prefix sums of one pass of clipped vectors.

    Attributes:
      leaves: Q, the number of leaves.
      exact: as in `Query`.
    """

    leaves: int
    exact: bool

    draws = "leaf"
    unit = ""

    def releases(self) -> int:
        """One a leaf; the first one may already involve all of the noise."""
        return self.leaves

    def records(self) -> int:
        """It does not say."""
        return 0

    def guarantees(self) -> tuple[str, ...]:
        """That leaves are clipped."""
        return (sentences.CLIPPED,)

    def assumptions(self) -> tuple[str, ...]:
        """That a record's leaf is public."""
        return (sentences.PLACES,)

    def is_exact(self) -> bool:
        """Told."""
        return self.exact


@pytree_dataclass
class TreeSums(LeafSums):
    """All prefix sums of one pass of clipped vectors, by a binary tree of Gaussian sums (DP-FTRL).

    A record is in one leaf, hence in ceil(log2(leaves + 1)) nodes; replacing it moves each of them
    by at most twice the clip norm. (The published guarantee replaces it by zero: half of that.)

    Attributes:
      clip: bound on the L2 norm of a leaf's per-record vector.
      noise_multiplier: standard deviation of a node's noise over the clip norm.
      leaves: Q, the number of leaves.
      parameters: as in `Query`.
      exact: as in `Query`.

    Examples:
        >>> tree = jmm.mechanism.TreeSums(clip=1.0, noise_multiplier=20.0, leaves=1000)
        >>> round(jmm.epsilon(tree, 1e-6), 2)  # a record is in ten of the tree's nodes
        1.37
    """

    clip: float | jax.Array
    noise_multiplier: float | jax.Array | None = None
    leaves: int = jax.tree.static()
    parameters: int = jax.tree.static(default=PARAMETERS)
    exact: bool = jax.tree.static(default=True)

    def check(self) -> None:
        """The leaves, the clip norm and the noise."""
        check_grid(self.exact, self.parameters)
        check_times("leaves", self.leaves)
        check_bound("clip", self.clip)
        check_multiplier("noise_multiplier", self.noise_multiplier)

    def charged(self, neighbours: str) -> float:
        """That of a sum."""
        return costs.charged(self.multiplier(), CLIP_NORM, self.parameters,
                             absent=neighbours != costs.REPLACE_ONE)

    def cost(self, z: float) -> Charge:
        """Of the nodes that a record is in."""
        return costs.gaussian(self.leaves.bit_length(), z, CLIP_NORM)

    def realised(self) -> Charge:
        """A record is rounded once, in its leaf, and noised in each of its nodes."""
        return costs.realised(self.exact, near=1,
                              normals=self.leaves.bit_length() * self.parameters)

    def moves(self) -> float:
        """How far a record moves the nodes, over twice the clip norm."""
        return math.sqrt(self.leaves.bit_length())

    def spread(self) -> float:
        """Largest deviation of a prefix sum's noise, over that of the multiplier."""
        return math.sqrt(self.leaves.bit_length())

    def in_words(self) -> str:
        """How many leaves and nodes."""
        return (f"All prefix sums over {self.leaves} leaves by a binary tree of Gaussian sums; "
                f"a record is in {self.leaves.bit_length()} of its nodes.")


@pytree_dataclass
class RecordLosses(Once):
    """`times` releases of one record's loss each plus Laplace noise, no record more than once.

    Which record is next may depend on what was released. A replaced record is in one release and
    moves it by at most B, so the whole stream costs as much as one release.

    Attributes:
      bound: B, losses are clipped to [0, B].
      noise_multiplier: Laplace scale over B [dimensionless].
      times: number of releases.
      exact: as in `Query`.

    Examples:
        >>> losses = jmm.mechanism.RecordLosses(bound=1.0, noise_multiplier=2.0, times=100)
        >>> round(jmm.epsilon(losses, 1e-6), 2)  # a record is in one of the releases
        0.5
    """

    bound: float | jax.Array
    noise_multiplier: float | jax.Array | None = None
    times: int = jax.tree.static()
    exact: bool = jax.tree.static(default=True)

    draws = "record loss"
    unit = "Laplace scale / B"

    def check(self) -> None:
        """The number of releases, the bound and the noise."""
        check_grid(self.exact)
        check_times("times (the number of releases)", self.times)
        check_bound("bound", self.bound)
        check_multiplier("noise_multiplier", self.noise_multiplier)

    def releases(self) -> int:
        """Told."""
        return self.times

    def records(self) -> int:
        """It does not say."""
        return 0

    def charged(self, neighbours: str) -> float:
        """A loss is rounded."""
        return costs.charged(self.multiplier(), LOSS_BOUND)

    def cost(self, z: float) -> Charge:
        """A record is in one release."""
        return costs.laplace(1, z, LOSS_BOUND)

    def realised(self) -> Charge:
        """A record moves one number."""
        return costs.realised(self.exact, near=0, laplaces=1)

    def in_words(self) -> str:
        """How many, in which range."""
        return (f"{self.times} release(s) of one record's loss in [0, {concrete(self.bound):g}] "
                "with Laplace noise, each record in at most one of them.")

    def guarantees(self) -> tuple[str, ...]:
        """That a record is read once, and its loss clipped."""
        return (sentences.ONCE,)

    def assumptions(self) -> tuple[str, ...]:
        """That groups and a record's place in its group are public."""
        return (sentences.PUBLIC_GROUPS, sentences.PLACES)

    def is_exact(self) -> bool:
        """Told."""
        return self.exact


@pytree_dataclass
class Solution(Once):
    """One release of a solver's certified solution plus Gaussian noise (output perturbation).

    Attributes:
      sensitivity: replace-one bound on how far the exact solution moves.
      slack: rho, certified distance of what is released from the exact solution over the
        sensitivity; the noise covers (1 + 2 rho) times the sensitivity.
      noise_multiplier: standard deviation over (1 + 2 rho) * sensitivity.
      because: the assumptions that the sensitivity rests on; printed in the statement.

    Examples:
        >>> query = jmm.mechanism.Solution(sensitivity=0.01, noise_multiplier=5.0,
        ...                                because="strong convexity")
        >>> round(jmm.epsilon(query, 1e-6), 2)
        0.83
    """

    sensitivity: float | jax.Array
    slack: float | jax.Array = 0.0
    noise_multiplier: float | jax.Array | None = None
    because: str = jax.tree.static()

    draws = "solution"
    unit = ""

    def check(self) -> None:
        """The sensitivity, what is left of it uncertified, and its assumptions."""
        checks.number("sensitivity", self.sensitivity, low=0.0)
        checks.number("slack", self.slack, low=0.0, high=1e6, closed=True)
        check_multiplier("noise_multiplier", self.noise_multiplier)
        if not self.because:
            raise ValueError("because must name the assumptions that the sensitivity rests on.")

    def releases(self) -> int:
        """One."""
        return 1

    def records(self) -> int:
        """It does not say."""
        return 0

    def charged(self, neighbours: str) -> float:
        """The multiplier itself: its user adds the noise."""
        return self.multiplier()

    def cost(self, z: float) -> Charge:
        """Of one Gaussian."""
        return costs.gaussian(1, z, SENSITIVITY)

    def realised(self) -> Charge:
        """Nothing: its user adds the noise."""
        return Charge()

    def realisation(self, neighbours: str) -> str:
        """Its user adds the noise."""
        return "Noise is added by whoever releases the solution."

    def in_words(self) -> str:
        """The sensitivity, and what is left of it uncertified."""
        return ("1 release of a certified solution with Gaussian noise, for a sensitivity of "
                f"{concrete(self.sensitivity):.6g} and a slack of {concrete(self.slack):g}.")

    def guarantees(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def assumptions(self) -> tuple[str, ...]:
        """What its user says."""
        return (self.because,)

    def is_exact(self) -> bool:
        """No: its user adds the noise."""
        return False
