"""Groups of records: gradients of one or of all, noisy losses, the index of the largest loss."""

import dataclasses
import math
from typing import Any

import jax

from jaxminimax import noise
from jaxminimax.base import checks
from jaxminimax.base.types import Saddle, pytree_dataclass
from jaxminimax.mechanism import costs, fixed_size, grid, sentences
from jaxminimax.mechanism.costs import LOSS_BOUND, SCORE, SENSITIVITY, Charge, concrete
from jaxminimax.mechanism.description import Facts, Kind, Leaf, Once
from jaxminimax.mechanism.query import Query
from jaxminimax.mechanism.repeat import OneRelease, Repeat, check_sampling
from jaxminimax.mechanism.sampling import known_sampling
from jaxminimax.mechanism.sentences import Words
from jaxminimax.noise._sampler import MOST_INDICES

__all__ = ["GroupGradients", "GroupLosses", "RecordLosses", "Selection", "group_batch_sizes"]


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

    Neighbouring data sets differ in the content of one record of one group. Groups and their sizes
    are public, so every r_i is the same for both, r_i <= 1, and the sum moves by r_i times the
    difference of two vectors of length C at most, which is 2 C at most: a Gaussian mechanism of
    parameter 2 / noise_multiplier, for any v. To multiply by s, which does not depend on the
    record, makes it neither more nor less private. Of s alone the noise is a function; it is the
    s of this round's v, not that of another one. (How a release makes a sum of which that holds in
    integers: `releases.groups`.)

    With `clips="by_weight"` a weight shortens its group's clip norm instead of adding noise:

        sum_i v_i / n_i sum_j clip(grad_ij, C / a_i) + N(0, (C noise_multiplier s)^2 I),

    s = 1 / (p min_i n_i), a_i = v_i / (n_i s). That is s times the sum of all clip(a_i grad_ij, C),
    with noise of deviation C noise_multiplier on it. Given what was released before, all a_i are
    fixed, and the same for neighbouring data sets; each of these vectors is no longer than C for
    any a_i, so a replaced record moves their sum by 2 C at most: a Gaussian mechanism of parameter
    2 / noise_multiplier again, whatever v is (a_i above 2^88 counts as that). s is public. Noise is
    that of balanced weights in every round, and records of all groups have the same bound. This is
    the mean, over samples, of a step that reads group i at a rate in proportion to a_i and clips at
    C / a_i (Cairney-Leeming, Sanyal and Lampert, arXiv:2602.10820, of which the abstract was read).

    Attributes:
      clip: C, bound on the L2 norm of one record's gradient [gradient units].
      noise_multiplier: standard deviation of the noise on the clipped sum / clip [dimensionless].
        Set by `calibrate`; None before.
      sampling: inside the group: `Full()`, `Poisson(rate=...)` or `FixedSize(batch=...)`. A Poisson
        sample's capacity is one for all groups; by default the largest group's. Of all groups:
        `Full()`.
      sizes: n_1, ..., n_p, records of each group; public.
      parameters: the largest number of numbers that a release has; public.
      groups: "one", named at each release, or "all", weighted at each release.
      clips: of all groups, "equal": C for every record; or "by_weight": C / a_i in group i, which
        is C in the smallest one of balanced groups.

    Examples:
        >>> query = jmm.GroupGradients(clip=1.0, sizes=(500, 200), noise_multiplier=20.0)
        >>> round(jmm.epsilon(jmm.Repeat(query=query, times=10), 1e-6), 2)
        1.37
    """

    clip: float | jax.Array
    sizes: tuple[int, ...] = jax.tree.static()
    groups: str = jax.tree.static(default="one")
    clips: str = jax.tree.static(default="equal")

    def check(self, repeat: Repeat) -> None:
        """The groups, and the sampling, clip norm and noise of the smallest and the largest."""
        if repeat.parts > 1:
            raise ValueError(f"parts must be 1 for gradients of groups, got {repeat.parts}.")
        grid.check_sizes(self.sizes)
        checks.one_of("groups", self.groups, ("one", "all"))
        checks.one_of("clips", self.clips, ("equal", "by_weight"))
        if self.clips == "by_weight" and self.groups == "one":
            raise ValueError("clips='by_weight' is for weights of all groups: set groups='all', or "
                             "clips='equal'.")
        if self.groups == "all" and not isinstance(self.sampling, fixed_size.Full):
            raise ValueError(f"groups='all' reads all records: sampling must be Full(), got "
                             f"{self.sampling!r}.")
        places = self.places()
        for query in (places[0], places[-1]):
            check_sampling(query.sampling, query.population)
            query.check_own()

    def facts(self, repeat: Repeat) -> Facts:
        """States the facts of clipped sums over the records of groups."""
        return super().facts(repeat)._replace(clip=Saddle(self.clip, None), sizes=self.sizes)

    def places(self) -> "tuple[Query, ...]":
        """Describes releases on one group each, one for each size that samples are drawn from."""
        sizes = (sum(self.sizes),) if self.groups == "all" else sorted(set(self.sizes))
        # groups of one size cost the same; a record may be in any
        return tuple({(query := in_group(self, n)).population: query for n in sizes}.values())

    def supports_group_privacy(self, repeat: Repeat) -> bool:
        """True for samples of a fixed size, and where all places have one cost.

        A release reads at most k of the k records; those in other groups move nothing, a
        displacement of 0, which the pairs for k records cover. Of all groups at once, each moves
        the sum by 2 C r_i at most.

        Samples of m in groups of several sizes: j <= k records in a group of n_i take
        Hypergeometric(n_i, j, m) slots, or Binomial(m, j / n_i) with replacement. Both laws are
        stochastically at most that of k records in the smallest group: hit by hit, the chance of
        another one, (j - h) / (n_i - s) after s slots and h hits, grows with j and falls with n_i.
        So the hits may be drawn as a part of J ones of that law, chosen by further coins, and the
        release then moves by at most J slots: all that the bound of `accounting.gaussian` asks
        of J hits. With all hit for sure in the smallest group, nothing is more. So each release,
        whichever group it reads, is dominated by one on the smallest group with all k in it. That
        is one of the places, and the largest epsilon of these is charged.
        """
        return (isinstance(self.sampling, fixed_size.FixedSize)
                or len(repeat.charges(costs.REPLACE_ONE)) == 1)

    def records(self) -> int:
        """The number of records of all groups."""
        return sum(self.sizes)

    def words(self, repeat: Repeat) -> Words:
        """States how many gradients are released, of which groups, on which samples."""
        groups = sentences.groups(self.sizes)
        if self.groups == "all":
            noise = ("noise follows the largest weight of a record" if self.clips == "equal" else
                     "a group's clip norm falls as its weight grows, and noise stays")
            text = (f"{repeat.times} release(s) of the gradients of all groups at once, {groups}: "
                    "the sum of each over all of its records, with a weight that was released "
                    f"before; {noise}.")
        else:
            text = (f"{repeat.times} release(s) of the gradients of one group each, chosen from "
                    f"earlier releases and charged as if always the same one, {groups}: "
                    f"{self.sampling.in_groups().summary}.")
        return Words(text, (sentences.CLIPPED,), (sentences.PUBLIC_GROUPS,),
                     clips={"": concrete(self.clip)})


def in_group(query: GroupGradients, size: int) -> Query:
    """Describes a release on a group of `size` records, as if it were all the data.

    With `groups="all"` and the size of all groups together, what it does to all records.

    The population is what the sampling draws a group's sample among: of Poisson samples the largest
    group, of the others the group itself.
    """
    z = query.noise_multiplier
    n = known_sampling(query.sampling).in_groups().population(size, max(query.sizes))
    return Query(clip=Saddle(query.clip, None), sampling=query.sampling, population=n,
                 noise_multiplier=None if z is None else Saddle(z, None),
                 parameters=query.parameters)


def group_batch_sizes(query: GroupGradients) -> tuple[float, ...]:
    """The public number that each group's sum is divided by: n_i, q n_i or m.

    Examples:
        >>> query = jmm.GroupGradients(clip=1.0, sizes=(500, 200), sampling=jmm.Poisson(rate=0.1))
        >>> jmm.mechanism.group_batch_sizes(query)
        (50.0, 20.0)
    """
    return tuple(map(known_sampling(query.sampling).batch_size, query.sizes))


def _check_losses(losses: Any) -> None:
    """Refuses groups, a bound or noise that no release of losses should start from."""
    grid.check_times("times (the number of releases)", losses.times)
    if hasattr(losses, "sizes"):
        grid.check_sizes(losses.sizes)
    grid.check_bound("bound", losses.bound)
    grid.check_multiplier("noise_multiplier", losses.noise_multiplier)


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
    noise: str | None = jax.tree.static(default=None)

    kind = Kind.GROUP_LOSSES

    @property
    def gaussian(self) -> bool:
        """Returns whether the noise is Gaussian."""
        return self.noise == "gaussian"

    def check(self) -> None:
        """The groups, the bound and the noise."""
        _check_losses(self)
        if self.noise is not None:
            checks.one_of("noise", self.noise, ("laplace", "gaussian"))

    def alternatives(self) -> "tuple[GroupLosses, ...]":
        """Returns both noises, until one is chosen or the multiplier is given."""
        if self.noise is not None or self.noise_multiplier is not None:
            return (self,)
        return tuple(dataclasses.replace(self, noise=x) for x in ("gaussian", "laplace"))

    def deviation(self) -> float:
        """The standard deviation of the noise, over B / n_i."""
        # of scale 1, Laplace noise has variance 2
        return self.multiplier() * (1.0 if self.gaussian else math.sqrt(2))

    def supports_group_privacy(self) -> bool:
        """Yes: given what was released before, k records move a release as one does k times.

        For Laplace noise of one record's movement the trade-off of k steps is that of one number
        moved k times as far, for its thresholds are the best tests of all of them; records of
        several groups move several numbers, which is a chain of such steps too.
        """
        return True

    def facts(self) -> Facts:
        """A record moves one number of a release; losses are rounded one by one in any noise."""
        # losses are in [0, B], so one mean moves by B / n_i, the unit, and not by twice as much
        return Facts(SENSITIVITY if self.gaussian else LOSS_BOUND, self.times, self.times,
                     numbers=self.times, near=0, repeats=True, records=sum(self.sizes),
                     noise=self.noise_multiplier, exact=True, rounded=LOSS_BOUND,
                     sizes=self.sizes)

    def words(self) -> Words:
        """States how many losses are released, and of which groups."""
        outputs = "the index of the largest of" if self.only_argmax else "all of"
        law = "Gaussian" if self.gaussian else "Laplace"
        return Words(
            f"{self.times} release(s) of {outputs} the groups' mean losses in [0, "
            f"{concrete(self.bound):g}] with {law} noise, {sentences.groups(self.sizes)}.",
            (sentences.LOSSES,), (sentences.PUBLIC_GROUPS,),
            unit=f"{'Gaussian deviation' if self.gaussian else 'Laplace scale'} / (B / n_i)")


@pytree_dataclass
class Selection(Leaf):
    """`times` releases of argmax_i (mean_i + b G_i), G_i Gumbel numbers: the exponential mechanism.

    The index has the law softmax(mean / b), whose privacy does not depend on the number of groups.
    One scale, b = noise_multiplier B / min(sizes), is for all groups. A replaced record of group i
    moves mean_i alone, by at most B / n_i, and so the smallest group decides what it costs: t = 1 /
    noise_multiplier, and less in the others, whose noise is larger than they need. Where sizes
    differ by much, `GroupLosses(only_argmax=True)` has noise for each group's own size.

    (Scales that follow each group's size, b_i = B noise_multiplier / n_i, would not be private in
    this sense: given the best of the other scores, the bit "is it i" is 1 with probability
    1 - e^-l or 1 - e^(-l e^t), and the loss of a 0, l (e^t - 1), has no bound where the others have
    hardly any noise. So there is no such option. The noisy losses stay inside: the winner's would
    be another mechanism.)

    No minibatch may be read, as of `GroupLosses`.

    Attributes:
      bound: B, losses lie in [0, B].
      sizes: n_1, ..., n_p, records of each group; public, as is which group a record is in.
      noise_multiplier: b over B / min(sizes) [dimensionless].
      times: number of releases. Algorithms set it to their own number of rounds.

    Examples:
        >>> one = jmm.mechanism.Selection(bound=1.0, sizes=(500, 200), noise_multiplier=20.0,
        ...                               times=10)
        >>> jmm.epsilon(one, 1e-6) < 1
        True
    """

    bound: float | jax.Array
    sizes: tuple[int, ...] = jax.tree.static()
    noise_multiplier: float | jax.Array | None = None
    times: int = jax.tree.static(default=1)

    kind = Kind.SELECTION
    only_argmax = True  # as of `GroupLosses`

    def check(self) -> None:
        """The groups, the bound and the noise."""
        _check_losses(self)
        if len(self.sizes) > MOST_INDICES:
            raise ValueError(f"sizes must have at most {MOST_INDICES} groups, got "
                             f"{len(self.sizes)}.")

    def supports_group_privacy(self) -> bool:
        """Yes: k records move scores by k moves in all, wherever they are.

        The loss of an index is how far its score moved, less one number for all: it stays in an
        interval as long as the largest move up and down together, at most k t. Masses pushed to the
        ends of the interval, the mean of e^-loss kept, only raise the mean of what is convex in
        e^-loss, as the curves are; and then it is one of the bits that are charged, at k t.
        """
        return True

    def sampler_cost(self) -> Charge:
        """An index of nearly the softmax's law, see `noise.chosen`."""
        # the factor counts on both data sets; the tail is the answer -1 after all turns
        return Charge(law_error=self.times * noise.choice_tail(len(self.sizes)),
                      ratio=2 * self.times * noise.CHOICE_RATIO)

    def facts(self) -> Facts:
        """A record moves one score, an integer."""
        # a score moves by B / n_i, at most the unit B / min(sizes)
        return Facts(SCORE, self.times, self.times, numbers=0, near=0, repeats=True,
                     records=sum(self.sizes), noise=self.noise_multiplier, sizes=self.sizes,
                     how=("An index of the law of the largest score, drawn from integers",
                          "rounding of scores"), exact=True)

    def words(self) -> Words:
        """States how many, of which groups, and what one scale for unequal groups means."""
        text = (f"{self.times} release(s) of the index of the largest of the groups' mean losses "
                f"in [0, {concrete(self.bound):g}] with Gumbel noise, "
                f"{sentences.groups(self.sizes)}.")
        if max(self.sizes) > 2 * min(self.sizes):
            text += (" The noise is of one scale, which the smallest group decides: "
                     "GroupLosses(only_argmax=True) has noise for each group's own size.")
        return Words(text, (sentences.LOSSES, sentences.INDEX), (sentences.PUBLIC_GROUPS,),
                     unit="Gumbel scale / (B / n of the smallest group)")


@pytree_dataclass
class RecordLosses(Once):
    """`times` releases of one record's loss each plus Laplace noise, no record more than once.

    The choice of the next record may depend on releases. A replaced record is in one release and
    moves it by at most B, so the whole stream costs as much as one release.

    Attributes:
      bound: B, losses are clipped to [0, B].
      noise_multiplier: Laplace scale over B [dimensionless].
      times: number of releases.

    Examples:
        >>> losses = jmm.mechanism.RecordLosses(bound=1.0, noise_multiplier=2.0, times=100)
        >>> round(jmm.epsilon(losses, 1e-6), 2)  # a record is in one of the releases
        0.5
    """

    bound: float | jax.Array
    noise_multiplier: float | jax.Array | None = None
    times: int = jax.tree.static()

    kind = Kind.RECORD_LOSS

    def check(self) -> None:
        """The number of releases, the bound and the noise."""
        _check_losses(self)

    def facts(self) -> Facts:
        """A record is in one release, and moves one number."""
        # whichever release reads it, the others have one law on both data sets
        return Facts(LOSS_BOUND, self.times, 1, numbers=1, near=0, noise=self.noise_multiplier,
                     exact=True)

    def words(self) -> Words:
        """States how many losses are released, in which range."""
        return Words(f"{self.times} release(s) of one record's loss in [0, "
                     f"{concrete(self.bound):g}] with Laplace noise, each record in at most one of "
                     "them.", (sentences.ONCE,), (sentences.PUBLIC_GROUPS, sentences.PLACES),
                     unit="Laplace scale / B")

