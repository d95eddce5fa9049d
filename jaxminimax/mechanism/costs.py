"""Charges of releases: Gaussians that add up, subsampled ones, and failures.

Descriptions answer in `Charge`s, which `compose` adds up, and the accountant turns into epsilon.
Conventions, all under one roof because a slip here is a factor of two in epsilon:

* A noise multiplier is the standard deviation of noise (of Laplace noise, its scale) over a length.
  Which one, and how far a replaced record moves what is released, in that length:

      description              length                                      moves by
      Query, GroupGradients    clip norm                                   2   CLIP_NORM
      Query(distance)          clip norm                                   D / C, in [1, 2]
      Query(adaptive), counts  1/2                                         2   CLIP_NORM
      TreeSums                 clip norm, in each node the record is in    2   CLIP_NORM
      CorrelatedSums           clip norm, times the column's length        2   CLIP_NORM
      Resolvent                `noise_unit`, half of the sensitivity       2   CLIP_NORM
      Solution                 (1 + 2 slack) sensitivity                   1   SENSITIVITY
      GroupSolution            `solution_length`, the same                 1   SENSITIVITY
      GroupLosses              B / n_i, of its own group's number          1   LOSS_BOUND,
        the same with noise="gaussian"                                     1   SENSITIVITY
      Selection                B / min n_i, of every group's score         1   SCORE
      RecordLosses             B                                           1   LOSS_BOUND

  In a `Charge`, Gaussians are over half of the replace-one sensitivity, as over a clip norm, and
  Laplace and Gumbel noise are over the whole of it.
* z_p is the standard deviation of player p's noise over its clip norm. Given the sample, both
  players' sums are one Gaussian vector whose distance between neighbours, in units of the noise,
  is at most 1 / z_eff when a record is added or removed and 2 / z_eff when one is replaced,

      z_eff = (sum_p z_p^-2)^(-1/2).

  They read the same sample, so they are one release inside one sampling. With one joint clip a
  record's vector d has sum_p (||d_p|| / C_p)^2 <= 1, so its length in units of the noise,
  (sum_p (||d_p|| / (C_p z_p))^2)^(1/2), is at most 1 / z_eff with z_eff = min_p z_p. Counts that
  clip norms follow are coordinates of the same vector, see `query`.
* Without sampling, T adaptive releases are one Gaussian of parameter mu = (1 or 2) sqrt(T) / z_eff.
* Disjoint batches read a record once a pass, so T counts passes, not releases.
* Parts of the data that a Repeat takes one after the other hold a record once, so T counts the
  releases on one part.
* A group's gradients are charged as if every release read the differing record's group; the groups
  where it may be are alternatives, one for each size that matters. Those of all groups at once are
  charged as a Query on all records: in units of the clip norm times the largest weight of a record,
  which the noise is a multiple of, a record has its own weight over the largest one, at most 1.
* Parts on disjoint data are alternatives: the differing record is in one of them, so epsilon is
  the largest over the alternatives, each a `Charge` of its own.
* Sums are integers on a grid, plus integer noise that is the floor of a real Gaussian one. How far
  rounding may move them is part of their distance: `charged` says which real multiplier is no more
  private, and that one enters every curve.
* The integer noise is realised up to a factor of 1 +- r on every probability, outside of a tail.
  N numbers, on both data sets, cost 2 N r of epsilon, and N times the tail of total variation.
* Samples are charged as they are drawn, not as they are described: their rates are a little larger
  (`size_law`, `fixed_size`), and any other departure is a failure.
* A failure is an event of coins that has the same probability on both data sets, whatever the
  record contains. That is added to delta as it stands, without a factor e^epsilon.
* That a Poisson sample does not fit its capacity and is drawn again, or that one of fixed size
  cannot be drawn and is NaN, costs nothing: it has one probability on both data sets, and the law
  of what is released otherwise is no easier to tell apart (`size_law`, `fixed_size`).
* A departure tau from a described law costs (1 + e^epsilon) tau of delta: P'(S) <= P(S) + tau and
  Q'(S) >= Q(S) - tau for the realised P', Q'. That is charged of the noise; of samples only where
  several records of a person are compared, for which the rates are not proven.
"""

import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax import noise
from jaxminimax.base import checks, types
from jaxminimax.mechanism import grid, size_law

__all__ = ["NEIGHBOURS", "budget_split"]

REPLACE_ONE = "replace_one"
NEIGHBOURS = (REPLACE_ONE, "add_or_remove_one")



class Unit(NamedTuple):
    """The unit of a noise multiplier.

    Attributes:
      law: of the noise, "gaussian", "laplace" or "gumbel".
      moves: how many units a replaced record moves what is released by, at most.
    """

    law: str
    moves: float


CLIP_NORM = Unit("gaussian", 2.0)
SENSITIVITY = Unit("gaussian", 1.0)
LOSS_BOUND = Unit("laplace", 1.0)
SCORE = Unit("gumbel", 1.0)


class PrivacyLoss(NamedTuple):
    """One kind of release whose privacy loss is not Gaussian.

    Attributes:
      kind: "poisson", "fixed" (without replacement), "replacement", "laplace" or "selection".
      z: noise over clip norm, players combined; for "laplace" and "selection" scale over
        replace-one sensitivity.
      rate: at most the probability that a sample holds the record, given the rest of it; with
        replacement, that one draw is the record. As realised: a little above q, m/n or 1/n.
      population: n of a fixed-size sample, and of a Poisson one with `filled`.
      batch: m of a fixed-size sample, the most records of a Poisson one with `filled`.
      filled: a lower bound on the probability that the other records fill a Poisson sample's slots:
        it cannot hold the record, and the release is the same on both data sets (`size_law`).
    """

    kind: str
    z: float
    rate: float = 1.0
    population: int = 0
    batch: int = 0
    filled: float = 0.0

    def not_read(self, people: int) -> float:
        """A lower bound on the probability that a sample can hold none of k = `people` records."""
        others = max(self.population - people + 1, 1)
        # prod_i (n - J - i) / (n - i) >= (1 - c / (n - k + 1))^(k - 1), i < k, J <= c
        return self.filled * max(1 - self.batch / others, 0.0) ** (people - 1) * (1 - 2.0**-40)


class Charge(NamedTuple):
    """The charge of a mechanism, if the differing record is in one part of the data.

    Attributes:
      gaussian: sum of T / z_eff^2 over everything that is Gaussian without sampling.
      losses: (loss, T) of the other releases, merged and sorted.
      failure: total probability of what has one probability on both data sets and is charged in
        full: that rounding to the grid moves a sum by more than is charged, or that a sample is
        one of those for which the rates do not hold. For k records see `failures`.
      law_error: total variation tau between the realised noise and the described one.
      ratio: what the realised noise costs beyond the described one, of epsilon.
      sample_error: total variation between the realised samples and the described ones.
      set_failure: total probability of failures that each set of records that differ may have, once
        for each that is not empty: 2^k - 1 times for k (`correlated`).
    """

    gaussian: float = 0.0
    losses: tuple[tuple[PrivacyLoss, int], ...] = ()
    failure: float = 0.0
    law_error: float = 0.0
    ratio: float = 0.0
    sample_error: float = 0.0
    set_failure: float = 0.0

    def described(self) -> "Charge":
        """The charge if samples never failed and noise followed its law."""
        return Charge(self.gaussian, self.losses)

    def departure(self, people: int = 1) -> float:
        """Tau, which costs (1 + e^epsilon) tau of delta, if that many records differ."""
        return self.law_error if people == 1 else self.law_error + self.sample_error

    def failures(self, people: int = 1) -> float:
        """The term added to delta, if k = `people` records differ.

        k times `failure`, for k events of one record each, or k steps of a chain of sums. Where k
        records are compared on Poisson samples, add for each release

            sum_j P[Binomial(k, q) = j] min{1, 2 (2^j - 1) d},       d = DITHER_FAILURE,      (1)

        at most 2 d ((1 + q)^k - 1): sums are compared of those records only that are in the sample.

        *Proof of (1).* Fix the sample of the other records, its slots and everything released
        before; and for every set A that fits, slots of its records: those of A less its last
        record, and a random free slot for the last. So a sample has random free slots, which is the
        sampler's law, and one record more changes no other's slot. S is the set of those of
        the k records that are in the sample; it has one law on both data sets: independent coins of
        rate q, given a falling family of sets (`size_law`: subsets of what fits do fit). I_S is
        what is put on the grid of the others and S. The pair for k records needs displacements from
        I_0 of length |S| D at most, D what one record is charged to move a sum by. Let U be the
        dither. The *step* of a set A that is not empty is the difference of the sums of A and of A
        less its last record; it is longer than D with probability d at most, over U, on either data
        set. Call S *bad*, given U, if the step of some A in S is too long on one data set or the
        other. U is independent of S, a set of j records has 2^j - 1 subsets that are not empty, and
        |S| is stochastically at most Binomial(k, q), so S is bad with probability (1) at most. That
        is an event of S and U, the same one for both data sets. It is charged in full; let S not be
        bad. All of I_S - I_0 is a sum of |S| steps of subsets of S, so it has length |S| D at most,
        on both data sets. A subset of a set that is not bad is not bad: given U, S has the law of
        the coins given a falling family. By Harris' inequality and Strassen's theorem, S is then a
        subset f(H, V) of a set H of independent coins of rate q, V a coin independent of H. Given U
        and V the releases are mixtures over H, displaced by |f(H, V)| D at most, which is |H| D at
        most: the pair for k records dominates them, see `accounting.pairs`, and divergences are
        jointly convex over U and V. QED

        Samples of a fixed size need no more than a chain: their bound compares the sum of one set
        of hit slots with that of the same slots on the other data set, and with their substitutes
        (`accounting.gaussian`), in as many steps each as there are hits, k at most. So does a
        rate of 1. On a mesh that set and its counterpart have the same rows in the same shards; its
        substitutes are others of the n - k records, which may lie in fewer shards, so that a shard
        is full more often than it is for one record. That matters only by P[no hit]; without
        replacement everything is charged 1,000 times for it. By Bernstein's inequality for the
        rows of a shard, once was enough in every case that was tried.
        """
        total = people * self.failure  # a union bound over k events, or k steps of a chain
        if people > 1:
            if any(loss.kind == "fixed" for loss, _ in self.losses):
                total *= 1000.0
            # (1) for every Poisson release; at rate 1 the chain of k steps is enough
            total += sum(times * _bad_sets(people, loss.rate) for loss, times in self.losses
                         if loss.kind == "poisson" and loss.rate < 1)
        return total + self.set_failure * (2.0 ** min(people, 1000) - 1)


@functools.lru_cache(maxsize=256)
def _bad_sets(people: int, rate: float) -> float:
    """The term (1) of `Charge.failures`."""
    law = size_law.binomial(people, *float(rate).as_integer_ratio())
    failures = (min(1.0, 2 * grid.DITHER_FAILURE * (2.0 ** min(j, 1000) - 1))
            for j in range(law.first, law.first + len(law.upper)))
    # sum_j P[j] min{1, 2 (2^j - 1) d}, masses rounded up, those not listed in full
    return (math.fsum(p * bad for p, bad in zip(law.upper, failures, strict=True))
            + law.rest) * (1 + 2.0**-50)


def concrete(x: Any) -> float:
    """A number out of a description as a Python float.

    Raises:
      ValueError: for a tracer or an array of several numbers: accounting runs on the host, on one
        description at a time.
    """
    if isinstance(x, jax.core.Tracer) or np.ndim(x) != 0:
        raise ValueError(f"Accounting needs one plain number, got {x!r}: call it outside jit and "
                         "vmap, on one description at a time.")
    return float(x)


def replace_one_only(neighbours: str) -> None:
    """Refuses other relations, for descriptions that have a guarantee for that one only.

    Raises:
      ValueError: naming the fix.
    """
    if neighbours != REPLACE_ONE:
        raise ValueError("add_or_remove_one is offered for releases on Full() and Poisson(...) "
                         "samples of the whole data only: use neighbours='replace_one'.")


def gaussian(times: int, z: float, unit: Unit = CLIP_NORM) -> Charge:
    """`times` releases of everything with real Gaussian noise of that multiplier."""
    z = z * (2 / unit.moves)  # over half of the sensitivity, as over a clip norm
    # parameters add up in squares, mu^2 = sum of T (2 / z)^2; z = 0 has no noise at all
    return Charge(gaussian=math.inf if z == 0 else times / z**2)


def noise_charge(unit: Unit, times: int, z: float) -> Charge:
    """`times` releases of everything with real noise of that law and multiplier, over that unit."""
    if unit.law == "gaussian":
        return gaussian(times, z, unit)
    kind = {"laplace": "laplace", "gumbel": "selection"}[unit.law]
    # scale over the replace-one sensitivity
    return Charge(losses=((PrivacyLoss(kind, z / unit.moves), times),))


def combined(multipliers: Iterable[float], joint: bool) -> float:
    """Returns z_eff: one Gaussian as strong as those of all players together.

    (sum_p z_p^-2)^(-1/2), or min_p z_p with one joint clip.
    """
    z = list(multipliers)
    smallest = min(z)
    # a joint clip has sum_p (||d_p|| / C_p)^2 <= 1: the smallest multiplier decides
    if smallest == 0 or joint:
        return smallest
    # scaled, so that squares neither overflow nor underflow
    return float(smallest / math.sqrt(sum((smallest / x) ** 2 for x in z)))


def count_multiplier(players: types.Saddle, joint: bool, counts: int, share: Any) -> jax.Array:
    """The multiplier z_b of noisy counts, float32 `[]`; 0 if a player has no noise; see `query`.

    Args:
      players: noise multipliers, None for a player that is not released.
      joint: whether both players have one clip.
      counts: k.
      share: the counts' part of the budget.
    """
    # z_P, in the floats that the release draws with
    z = [jnp.asarray(x, jnp.float32) for x in players if x is not None]
    smallest = combined_z = jnp.min(jnp.stack(z))
    if not joint:  # scaled, so that squares neither overflow nor underflow
        combined_z = smallest / jnp.sqrt(sum(jnp.square(smallest / jnp.maximum(x, smallest))
                                             for x in z))
    share = jnp.asarray(share, jnp.float32)
    # z_b = z_P (k (1 - share) / share)^(1/2)
    return jnp.where(smallest == 0, 0.0, combined_z * jnp.sqrt(counts * (1 - share) / share))


def charged(z: float, unit: Unit, parameters: int = grid.PARAMETERS, *, absent: bool = False,
            smallest: float | None = None, slack: Any = None) -> float:
    """The multiplier of a real mechanism that is no more private than what runs.

    For Gaussian noise on sums, trees and solutions see `charged_multiplier`. A solution's float64
    numbers are rounded once more where they are scaled, by less than a part slack / 64 of what
    certificates leave. Losses are rounded one by one, so that a record moves a sum by up to a unit
    more, which is a part z / 2^L of the bound; the same holds of Gaussian noise on them. A score is
    an integer in units of 2^-22 of the scale: rounding adds one of these to what a record moves it
    by, and the float64 product that is rounded a part n 2^-51, below 2^-18 for n below 2^33.

    Args:
      z: noise multiplier, players combined; 0 stays 0.
      unit: what it is a multiple of.
      parameters: d, an upper bound on the numbers of a release.
      absent: whether sums without the record are compared with.
      smallest: the smallest multiplier of a player; None: z.
      slack: of a certified solution; None for sums.
    """
    if z == 0:
        return z
    if unit.law == "gumbel":
        # a score moves by 2^22 / z units, the rounding of the product, and one unit more
        return z / (1 + 2.0**-18 + z * 2.0**-grid.MOST_BITS)
    if unit.law == "laplace":
        # a loss moves by 2^L / z units, and by one more as it is rounded
        return z / (1 + z * 2.0**-grid.grid_bits(z, grid.PARAMETERS))
    halves = 2 / unit.moves  # the grid's argument is over half of the sensitivity
    eta = halves * grid.ETA  # what floating-point sums inside a block lose of a clip norm
    if slack is not None:
        slack = concrete(slack)
        # rounding is a part slack / 64 of the sensitivity, and the length has 1 + slack of these
        eta = slack / (64 * (1 + slack))
    return grid.charged_multiplier(halves * z, halves * (z if smallest is None else smallest),
                                   parameters, absent=absent, eta=eta) / halves


def sampler_cost(exact: bool, *, near: int, normals: int = 0, laplaces: int = 0) -> Charge:
    """The cost of integer noise and rounding to the grid, besides the real mechanism.

    Args:
      exact: whether the noise is made of integers.
      near: pairs of sums that are bound to be near.
      normals: Gaussian numbers that are added to what a record may move, at most. Others are drawn
        from one law on both data sets, whatever it is.
      laplaces: the same of Laplace numbers.
    """
    # each pair is farther apart than it is charged with that probability, at most
    failure = near * grid.DITHER_FAILURE
    if not exact:
        return Charge(failure=failure)
    # each number is off by a factor, on both data sets, and has a tail outside of which that holds
    ratio = normals * noise.normal_ratio(grid.MOST_BITS) + laplaces * noise.LAPLACE_RATIO
    tail = normals * noise.NORMAL_TAIL + laplaces * noise.LAPLACE_TAIL
    return Charge(failure=failure, law_error=tail, ratio=2 * ratio)


def price(leaf: Any, neighbours: str) -> Charge:
    """The charge of one `Leaf`, rounding and the sampler of its noise included."""
    for x in jax.tree.leaves(leaf):
        concrete(x)  # one number each, or what is run is not what is described
    # a law without noise has no sampler that could err
    z = leaf.effective_noise_multiplier(neighbours)
    return leaf.cost(z) if z == 0 else compose(leaf.cost(z), leaf.sampler_cost())


def compose(*parts: Charge) -> Charge:
    """The cost of several mechanisms on the same data."""
    losses: dict[PrivacyLoss, int] = {}
    for charge in parts:
        for loss, times in charge.losses:
            losses[loss] = losses.get(loss, 0) + times
    # mu^2, failures, departures and ratios of adaptive releases add up
    return Charge(sum(c.gaussian for c in parts), tuple(sorted(losses.items())),
                  sum(c.failure for c in parts), sum(c.law_error for c in parts),
                  sum(c.ratio for c in parts), sum(c.sample_error for c in parts),
                  sum(c.set_failure for c in parts))


def silent(cost: Charge) -> bool:
    """Returns whether a release has no noise at all."""
    return math.isinf(cost.gaussian) or any(loss.z == 0 for loss, _ in cost.losses)


def budget_split(w: float) -> types.Saddle:
    """Ratio of noise multipliers that gives player w the share `w` of the budget, v the rest.

    The budget is the squared Gaussian parameter mu^2 = sum_p (2 / z_p)^2 T, so z_p goes like
    share_p^(-1/2).

    Raises:
      ValueError: unless 0 < w < 1.

    Examples:
        >>> ratio = jmm.mechanism.budget_split(w=0.8)
        >>> round(ratio.v / ratio.w, 3)  # v has a quarter of w's budget, and so twice its noise
        2.0
    """
    checks.number("w", w, low=0.0, high=1.0)
    return types.Saddle(w**-0.5, (1.0 - w) ** -0.5)
