"""Groups of records: gradients of one of them at a time, or of all at once."""

import dataclasses
from typing import Self

import jax

from jaxminimax.base import checks
from jaxminimax.base.types import Saddle, pytree_dataclass
from jaxminimax.mechanism import costs, sentences
from jaxminimax.mechanism._checks import check_sizes
from jaxminimax.mechanism._grid import PARAMETERS
from jaxminimax.mechanism.composed import Repeat
from jaxminimax.mechanism.costs import CLIP_NORM, Charge, concrete
from jaxminimax.mechanism.description import (
    OneRelease,
    check_noise,
    replace_one_only,
    scaled,
)
from jaxminimax.mechanism.fixed_size import FixedSize
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
    integers: `releases.groups`.)

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
        """True for samples of a fixed size, and where all places have one cost.

        A release reads at most k of the k records; those in other groups move nothing, a
        displacement of 0, which the pairs for k records cover. Of all groups at once, each moves
        the sum by 2 C r_i at most.

        Samples of m in groups of several sizes: j <= k records in a group of n_i take
        Hypergeometric(n_i, j, m) slots, or Binomial(m, j / n_i) with replacement. Both laws are
        stochastically at most that of k records in the smallest group: hit by hit, the chance of
        another one, (j - h) / (n_i - s) after s slots and h hits, grows with j and falls with n_i.
        So the hits may be drawn as a part of J ones of that law, chosen by further coins, and the
        release then moves by at most J slots: all that the bound of `accounting.subsampling` asks
        of J hits. With all hit for sure in the smallest group, nothing is more. So each release,
        whichever group it reads, is dominated by one on the smallest group with all k in it. That
        is one of the places, and the largest epsilon of these is charged.
        """
        return (isinstance(self.sampling, FixedSize)
                or len(self.charges(repeat, costs.REPLACE_ONE)) == 1)

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
