"""Losses of groups: all groups' noisy means, and what they share with the index of the largest."""

import dataclasses
import math
from typing import Any, Self

import jax

from jaxminimax.base import checks
from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism import costs, sentences
from jaxminimax.mechanism._checks import (
    check_bound,
    check_grid,
    check_multiplier,
    check_sizes,
    check_times,
)
from jaxminimax.mechanism.costs import LOSS_BOUND, SENSITIVITY, Charge, concrete
from jaxminimax.mechanism.description import Leaf, own_multiplier, replace_one_only, scaled


class LossesOfGroups(Leaf):
    """What mechanisms share whose every release reads all groups' losses: `times` of equal cost.

    Attributes:
      bound: B, losses lie in [0, B].
      sizes: n_1, ..., n_p, records of each group; public, as is which group a record is in.
      noise_multiplier: None if it was never set.
      times: number of releases.
    """

    bound: Any
    sizes: tuple[int, ...]
    noise_multiplier: Any
    times: int

    def check_losses(self) -> None:
        """The groups, the bound and the noise.

        Raises:
          ValueError: naming the value.
        """
        check_times("times (the number of releases)", self.times)
        check_sizes(self.sizes)
        check_bound("bound", self.bound)
        check_multiplier("noise_multiplier", self.noise_multiplier)

    def releases(self) -> int:
        """Told."""
        return self.times

    def spent_part(self, spent: int) -> Self | None:
        """Fewer of them."""
        made: Any = self
        times = min(spent, self.times)
        return dataclasses.replace(made, times=times) if times else None

    def with_noise(self, scale: float) -> Self:
        """The one multiplier."""
        return scaled(self, scale)

    def charges(self, neighbours: str) -> tuple[Charge, ...]:
        """One, for a record that is replaced, of the group where it moves most."""
        replace_one_only(neighbours)
        return (costs.price(self, neighbours),)

    def records(self) -> int:
        """Of all groups."""
        return sum(self.sizes)

    def multiplier(self) -> float:
        """The one multiplier."""
        return own_multiplier(self)

    def assumptions(self) -> tuple[str, ...]:
        """That groups are public."""
        return (sentences.PUBLIC_GROUPS,)

    def clips(self) -> dict[str, float]:
        """None: the range is said in words."""
        return {}


@pytree_dataclass
class GroupLosses(LossesOfGroups):
    """`times` releases of p groups' mean losses over all their records, plus noise.

    A replaced record belongs to one group, so one coordinate moves, by at most B / n_i, and its
    noise has scale noise_multiplier * B / n_i: unequal groups cost what equal ones do. With
    `only_argmax` the noisy values stay inside and the index of the largest is released, which costs
    the same; `Selection` costs less, but has one scale for all groups. No minibatch may be read:
    amplification would have to cover this release and the gradient's together.

    Attributes:
      bound: B, losses lie in [0, B].
      sizes: n_1, ..., n_p, records of each group; public.
      noise_multiplier: Laplace scale, or standard deviation of Gaussian noise, over B / n_i
        [dimensionless].
      times: number of releases. Algorithms set it to their own number of rounds.
      only_argmax: whether only the index of the largest noisy loss is released.
      exact: as in `Query`.
      noise: "laplace" or "gaussian". None: `calibrate` chooses the one of smaller deviation, which
        is Gaussian but for a few releases; Laplace where the noise multiplier is given.

    Examples:
        >>> losses = jmm.GroupLosses(bound=1.0, sizes=(500, 200), noise_multiplier=30.0, times=10)
        >>> jmm.epsilon(losses, 1e-6) < 1
        True
    """

    bound: float | jax.Array
    sizes: tuple[int, ...] = jax.tree.static()
    noise_multiplier: float | jax.Array | None = None
    times: int = jax.tree.static(default=1)
    only_argmax: bool = jax.tree.static(default=False)
    exact: bool = jax.tree.static(default=True)
    noise: str | None = jax.tree.static(default=None)

    draws = "group losses"
    @property
    def gaussian(self) -> bool:
        """Whether the noise is Gaussian."""
        return self.noise == "gaussian"

    @property
    def unit(self) -> str:
        """Of whichever noise."""
        return f"{'Gaussian deviation' if self.gaussian else 'Laplace scale'} / (B / n_i)"

    def check(self) -> None:
        """The groups, the bound and the noise."""
        check_grid(self.exact)
        self.check_losses()
        if self.noise is not None:
            checks.one_of("noise", self.noise, ("laplace", "gaussian"))

    def alternatives(self) -> "tuple[GroupLosses, ...]":
        """Both noises, until one is chosen or the multiplier is given."""
        if self.noise is not None or self.noise_multiplier is not None:
            return (self,)
        return tuple(dataclasses.replace(self, noise=x) for x in ("gaussian", "laplace"))

    def deviation(self) -> float:
        """The standard deviation of the noise, over B / n_i."""
        return self.multiplier() * (1.0 if self.gaussian else math.sqrt(2))

    def together(self) -> bool:
        """Yes: given what was released before, k records move a release as one does k times.

        For Laplace noise of one record's movement the trade-off of k steps is that of one number
        moved k times as far, for its thresholds are the best tests of all of them; records of
        several groups move several numbers, which is a chain of such steps too.
        """
        return True

    def charged(self, neighbours: str) -> float:
        """Losses are rounded one by one, whatever the noise."""
        return costs.charged(self.multiplier(), LOSS_BOUND)

    def cost(self, z: float) -> Charge:
        """Of one group's numbers."""
        if self.gaussian:
            return costs.gaussian(self.times, z, SENSITIVITY)
        return costs.laplace(self.times, z, LOSS_BOUND)

    def realised(self) -> Charge:
        """A record moves one number of a release."""
        if self.gaussian:
            return costs.realised(self.exact, near=0, normals=self.times)
        return costs.realised(self.exact, near=0, laplaces=self.times)

    def in_words(self) -> str:
        """How many, and of which groups."""
        what = "the index of the largest of" if self.only_argmax else "all of"
        law = "Gaussian" if self.gaussian else "Laplace"
        return (f"{self.times} release(s) of {what} the groups' mean losses in [0, "
                f"{concrete(self.bound):g}] with {law} noise, {sentences.groups(self.sizes)}.")

    def guarantees(self) -> tuple[str, ...]:
        """That losses are clipped."""
        return (sentences.LOSSES,)

    def is_exact(self) -> bool:
        """Told."""
        return self.exact
