"""Groups of records: gradients of one of them at a time or of all at once, and losses of all."""

import dataclasses
import math
from typing import Self

import jax

from jaxminimax.base import checks
from jaxminimax.base.types import Saddle, pytree_dataclass
from jaxminimax.mechanism import costs, sentences
from jaxminimax.mechanism._checks import (
    check_bound,
    check_grid,
    check_multiplier,
    check_sizes,
    check_times,
)
from jaxminimax.mechanism._grid import PARAMETERS
from jaxminimax.mechanism.composed import Repeat
from jaxminimax.mechanism.costs import CLIP_NORM, LOSS_BOUND, SENSITIVITY, Charge, concrete
from jaxminimax.mechanism.description import (
    Leaf,
    OneRelease,
    check_noise,
    own_multiplier,
    replace_one_only,
    scaled,
)
from jaxminimax.mechanism.passes import Full
from jaxminimax.mechanism.query import Query, check_relation, check_sampling, compares_absent
from jaxminimax.mechanism.sampling import Sampling, known_sampling


@pytree_dataclass
class GroupGradients(OneRelease):
    """Release the clipped sum of per-record gradients over a sample of one of p groups, or of all.

    The group may be chosen by looking at everything released before, so it is charged as if every
    release read the differing record's group: neither p nor the groups' weights amplify anything.
    The sum is divided by the public n_i, q n_i or m.

    With `groups="all"` a release has the records of all groups, each with the weight of its group,

        sum_i v_i / n_i sum_j clip(grad_ij, C) + N(0, (D / mu)^2 I),    D = 2 C max_i v_i / n_i,

    mu = 2 / noise_multiplier, for weights v >= 0 that may follow from everything released before.
    It is charged mu, as a `Query` on all records is. For let all that was released before be given.
    Then v and s = max_i v_i / n_i are fixed, and the release is s times

        sum_i r_i sum_j clip(grad_ij, C) + N(0, (C noise_multiplier)^2 I),    r_i = v_i / (n_i s).

    Neighbouring data sets differ in what one record of one group contains. Groups and their sizes
    are public, so every r_i is the same for both, r_i <= 1, and the sum moves by r_i times the
    difference of two vectors of length C at most, which is 2 C at most: a Gaussian mechanism of
    parameter 2 / noise_multiplier, whatever v is. To multiply by s, which does not depend on the
    record, makes it neither more nor less private. Of s alone the noise is a function; it is the
    s of this round's v, not that of another one. (How the door makes a sum of which that holds in
    integers: `door.groups`.)

    Attributes:
      clip: C, bound on the L2 norm of one record's gradient [gradient units].
      noise_multiplier: standard deviation of the noise on the clipped sum / clip [dimensionless].
        Set by `calibrate`; None: not calibrated yet.
      sampling: inside the group: `Full()`, `Poisson(rate=...)` or `FixedSize(batch=...)`. A Poisson
        sample's capacity is one for all groups; by default the largest group's. Of all groups:
        `Full()`.
      sizes: n_1, ..., n_p, records of each group; public.
      parameters: as in `Query`.
      exact: as in `Query`.
      groups: "one", named at each release, or "all", weighted at each release.

    Examples:
        >>> query = jmm.GroupGradients(clip=1.0, sizes=(500, 200), noise_multiplier=20.0)
        >>> round(jmm.epsilon(jmm.Repeat(query=query, times=10), 1e-6), 2)
        1.37
    """

    clip: float | jax.Array
    noise_multiplier: float | jax.Array | None = None
    sampling: Sampling = Full()
    sizes: tuple[int, ...] = jax.tree.static()
    parameters: int = jax.tree.static(default=PARAMETERS)
    exact: bool = jax.tree.static(default=True)
    groups: str = jax.tree.static(default="one")

    def check(self, repeat: Repeat) -> None:
        """The groups, and the sampling, clip norm and noise of the smallest and the largest."""
        if repeat.parts > 1:
            raise ValueError(f"parts must be 1 for gradients of groups, got {repeat.parts}.")
        check_sizes(self.sizes)
        checks.one_of("groups", self.groups, ("one", "all"))
        if self.groups == "all" and not isinstance(self.sampling, Full):
            raise ValueError(f"groups='all' reads all records: sampling must be Full(), got "
                             f"{self.sampling!r}.")
        for n in (min(self.populations()), max(self.populations())):
            one = in_group(self, n)
            check_sampling(one.sampling, one.population)
            one.check_own()

    def charges(self, repeat: Repeat, neighbours: str) -> tuple[Charge, ...]:
        """One for each group where the record may be, of those that cost differently."""
        replace_one_only(neighbours)
        check_relation(self.sampling, neighbours)
        queries = {(one := in_group(self, n)).population: one for n in self.populations()}
        return tuple(dict.fromkeys(
            costs.price(dataclasses.replace(repeat, query=one), neighbours)
            for one in queries.values()))

    def populations(self) -> tuple[int, ...]:
        """How many records a release may read: of each size of a group, or all of them."""
        return (sum(self.sizes),) if self.groups == "all" else tuple(sorted(set(self.sizes)))

    def together(self, repeat: Repeat) -> bool:
        """Where all groups cost the same: a release then reads at most k of the k records.

        Those in other groups are not read, so they move nothing: a displacement of 0, which the
        pairs for k records cover. Of all groups at once, each moves the sum by 2 C r_i at most.
        Groups of which samples have other laws are places that cost separately.
        """
        return len(self.charges(repeat, costs.REPLACE_ONE)) == 1

    def multiplier(self) -> float:
        """One vector, and one multiplier."""
        return concrete(check_noise(self))

    def charged(self, neighbours: str) -> float:
        """That of a sum."""
        return costs.charged(self.multiplier(), CLIP_NORM, self.parameters,
                             absent=compares_absent(self, neighbours))

    def cost(self, times: int, z: float) -> Charge:
        """Refuses: it depends on the group, see `charges`."""
        raise ValueError("Gradients of groups are charged group by group.")

    def with_noise(self, scale: float) -> Self:
        """The one multiplier."""
        return scaled(self, scale)

    def sampled_by(self, sampling: Sampling) -> Self:
        """Nothing else follows from the sampling."""
        return dataclasses.replace(self, sampling=sampling)

    def records(self) -> int:
        """Of all groups."""
        return sum(self.sizes)

    def in_words(self, repeat: Repeat) -> str:
        """How many gradients, of which groups, on which samples."""
        if self.groups == "all":
            return (f"{repeat.times} release(s) of the gradients of all groups at once, "
                    f"{sentences.groups(self.sizes)}: the sum of each over all of its records, "
                    "with a weight that was released before; noise follows the largest weight of "
                    "a record.")
        return (f"{repeat.times} release(s) of the gradients of one group each, chosen from "
                "earlier releases and charged as if always the same one, "
                f"{sentences.groups(self.sizes)}: {self.sampling.in_groups().in_words}.")

    def guarantees(self) -> tuple[str, ...]:
        """That gradients are clipped."""
        return (sentences.CLIPPED,)

    def assumptions(self) -> tuple[str, ...]:
        """That groups are public."""
        return (sentences.PUBLIC_GROUPS,)

    def noise_multipliers(self) -> dict[str, float]:
        """The one multiplier."""
        return {"": self.multiplier()}

    def clips(self) -> dict[str, float]:
        """The one clip norm."""
        return {"": concrete(self.clip)}


def in_group(query: GroupGradients, size: int) -> Query:
    """What a release does to the data of a group of `size` records, as if it were all the data.

    With `groups="all"` and the size of all groups together, what it does to all records.

    The population is what the sampling draws a group's sample among: of Poisson samples the largest
    group, of the others the group itself.
    """
    z = query.noise_multiplier
    n = known_sampling(query.sampling).in_groups().population(size, max(query.sizes))
    return Query(clip=Saddle(query.clip, None), sampling=query.sampling, population=n,
                 noise_multiplier=None if z is None else Saddle(z, None),
                 parameters=query.parameters, exact=query.exact)


def group_batch_sizes(query: GroupGradients) -> tuple[float, ...]:
    """The public number that each group's sum is divided by: n_i, q n_i or m.

    Examples:
        >>> query = jmm.GroupGradients(clip=1.0, sizes=(500, 200), sampling=jmm.Poisson(rate=0.1))
        >>> jmm.mechanism.group_batch_sizes(query)
        (50.0, 20.0)
    """
    return tuple(map(known_sampling(query.sampling).batch_size, query.sizes))


@pytree_dataclass
class GroupLosses(Leaf):
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
        check_times("times (the number of releases)", self.times)
        check_sizes(self.sizes)
        check_bound("bound", self.bound)
        check_multiplier("noise_multiplier", self.noise_multiplier)
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

    def releases(self) -> int:
        """Told."""
        return self.times

    def spent_part(self, spent: int) -> "GroupLosses | None":
        """Fewer of them."""
        times = min(spent, self.times)
        return dataclasses.replace(self, times=times) if times else None

    def with_noise(self, scale: float) -> Self:
        """The one multiplier."""
        return scaled(self, scale)

    def charges(self, neighbours: str) -> tuple[Charge, ...]:
        """Groups of all sizes cost the same."""
        replace_one_only(neighbours)
        return (costs.price(self, neighbours),)

    def together(self) -> bool:
        """Yes: given what was released before, k records move a release as one does k times.

        For Laplace noise of one record's movement the trade-off of k steps is that of one number
        moved k times as far, for its thresholds are the best tests of all of them; records of
        several groups move several numbers, which is a chain of such steps too.
        """
        return True

    def records(self) -> int:
        """Of all groups."""
        return sum(self.sizes)

    def multiplier(self) -> float:
        """The one multiplier."""
        return own_multiplier(self)

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

    def assumptions(self) -> tuple[str, ...]:
        """That groups are public."""
        return (sentences.PUBLIC_GROUPS,)

    def clips(self) -> dict[str, float]:
        """None: the range is said in words."""
        return {}

    def is_exact(self) -> bool:
        """Told."""
        return self.exact
