"""What releases cost: Gaussians that add up, subsampled ones, failures; and what is charged for.

Descriptions answer in `Charge`s, which `compose` adds up, and the accountant turns into epsilon.
Conventions, all under one roof because a slip here is a factor of two in epsilon:

* A noise multiplier is the standard deviation of noise (of Laplace noise, its scale) over a length.
  Which one, and how far a replaced record moves what is released, in that length:

      description              length                                      moves by
      Query, GroupGradients    clip norm                                   2   CLIP_NORM
      TreeSums                 clip norm, in each node the record is in    2   CLIP_NORM
      Resolvent                `noise_unit`, half of the sensitivity       2   CLIP_NORM
      Solution                 (1 + 2 slack) sensitivity                   1   SENSITIVITY
      GroupSolution            `solution_length`, the same                 1   SENSITIVITY
      GroupLosses              B / n_i, of its own group's number          1   LOSS_BOUND
      RecordLosses             B                                           1   LOSS_BOUND

  In a `Charge`, Gaussians are over half of the replace-one sensitivity, as over a clip norm, and
  Laplace noise is over the whole of it.
* z_p is the standard deviation of player p's noise over its clip norm. Given the sample, both
  players' sums are one Gaussian vector whose distance between neighbours, in units of the noise,
  is at most 1 / z_eff when a record is added or removed and 2 / z_eff when one is replaced,

      z_eff = (sum_p z_p^-2)^(-1/2).

  They read the same sample, so they are one release inside one sampling. With one joint clip a
  record's vector d has sum_p (||d_p|| / C_p)^2 <= 1, so its length in units of the noise,
  (sum_p (||d_p|| / (C_p z_p))^2)^(1/2), is at most 1 / z_eff with z_eff = min_p z_p.
* Without sampling, T adaptive releases are one Gaussian of parameter mu = (1 or 2) sqrt(T) / z_eff.
* Disjoint batches read a record once a pass, so T counts passes, not releases.
* Parts of the data that a Repeat takes one after the other hold a record once, so T counts the
  releases on one part.
* A group's gradients are charged as if every release read the differing record's group; the groups
  where it may be are alternatives, one for each size that matters.
* Parts on disjoint data are alternatives: the differing record is in one of them, so epsilon is
  the largest over the alternatives, each a `Charge` of its own.
* Sums are integers on a grid, plus integer noise that is the floor of a real Gaussian one. How far
  rounding may move them is part of their distance: `charged` says which real multiplier is no more
  private, and that one enters every curve.
* The integer noise is realised up to a factor of 1 +- r on every probability, outside of a tail.
  N numbers, on both data sets, cost 2 N r of epsilon, and N times the tail of total variation.
* P[a Poisson sample overflows] is added to delta. That is more than needed: given which other
  records were drawn, a sample overflows with the same probability on both data sets, so its NaN
  tells nothing, and where it cannot overflow the pair is the Poisson one.
* A departure tau from the described law of the samples costs (1 + e^epsilon) tau of delta:
  P'(S) <= P(S) + tau and Q'(S) >= Q(S) - tau for the realised P', Q'.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxminimax import noise
from jaxminimax.base import checks
from jaxminimax.base.types import Saddle
from jaxminimax.mechanism._grid import (
    DITHER_FAILURE,
    ETA,
    MOST_BITS,
    PARAMETERS,
    charged_multiplier,
    grid_bits,
)

REPLACE_ONE = "replace_one"
NEIGHBOURS = (REPLACE_ONE, "add_or_remove_one")


class Unit(NamedTuple):
    """What a noise multiplier is a multiple of.

    Attributes:
      law: of the noise, "gaussian" or "laplace".
      moves: how many units a replaced record moves what is released by, at most.
    """

    law: str
    moves: float


CLIP_NORM = Unit("gaussian", 2.0)
SENSITIVITY = Unit("gaussian", 1.0)
LOSS_BOUND = Unit("laplace", 1.0)


class PrivacyLoss(NamedTuple):
    """One kind of release whose privacy loss is not Gaussian.

    Attributes:
      kind: "poisson", "fixed" (without replacement), "replacement" or "laplace".
      z: noise over clip norm, players combined; for "laplace" scale over replace-one sensitivity.
      rate: q of a Poisson sample.
      population: n of a fixed-size sample.
      batch: m of a fixed-size sample.
    """

    kind: str
    z: float
    rate: float = 1.0
    population: int = 0
    batch: int = 0


class Charge(NamedTuple):
    """What a mechanism costs, if the differing record is in one given part of the data.

    Attributes:
      gaussian: sum of T / z_eff^2 over everything that is Gaussian without sampling.
      losses: (loss, T) of the other releases, merged and sorted.
      overflow: total probability that a sample does not fit its capacity, or that rounding to the
        grid moves a sum by more than is charged.
      law_error: total variation tau between the realised samples and noise and the described ones.
      ratio: what the realised noise costs beyond the described one, of epsilon.
    """

    gaussian: float = 0.0
    losses: tuple[tuple[PrivacyLoss, int], ...] = ()
    overflow: float = 0.0
    law_error: float = 0.0
    ratio: float = 0.0


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


def gaussian(times: int, z: float, unit: Unit = CLIP_NORM) -> Charge:
    """`times` releases of everything with real Gaussian noise of that multiplier."""
    z = z * (2 / unit.moves)
    return Charge(gaussian=math.inf if z == 0 else times / z**2)


def laplace(times: int, z: float, unit: Unit = LOSS_BOUND) -> Charge:
    """`times` releases of everything with real Laplace noise of that multiplier."""
    return Charge(losses=((PrivacyLoss("laplace", z / unit.moves), times),))


def combined(multipliers: Iterable[float], joint: bool) -> float:
    """z_eff: one Gaussian as strong as those of all players together.

    (sum_p z_p^-2)^(-1/2), or min_p z_p with one joint clip.
    """
    z = list(multipliers)
    smallest = min(z)
    if smallest == 0 or joint:
        return smallest
    # scaled, so that squares neither overflow nor underflow
    return float(smallest / math.sqrt(sum((smallest / x) ** 2 for x in z)))


def charged(z: float, unit: Unit, parameters: int = PARAMETERS, *, absent: bool = False,
            smallest: float | None = None, slack: Any = None) -> float:
    """The multiplier of a real mechanism that is no more private than what runs.

    For Gaussian noise on sums, trees and solutions see `charged_multiplier`. A solution's float64
    numbers are rounded once more where they are scaled, by less than a part slack / 64 of what
    certificates leave. Losses are rounded one by one, so that a record moves a sum by up to a unit
    more, which is a part z / 2^L of the bound.

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
    if unit.law == "laplace":
        return z / (1 + z * 2.0**-grid_bits(z, PARAMETERS))
    halves = 2 / unit.moves
    eta = ETA
    if slack is not None:
        slack = concrete(slack)
        eta = slack / (64 * (1 + slack))
    return charged_multiplier(halves * z, halves * (z if smallest is None else smallest),
                              parameters, absent=absent, eta=eta) / halves


def realised(exact: bool, *, near: int, normals: int = 0, laplaces: int = 0) -> Charge:
    """What integer noise and rounding to the grid cost beside the real mechanism.

    Args:
      exact: whether the noise is made of integers.
      near: pairs of sums that are bound to be near.
      normals: Gaussian numbers that are added to what a record may move, at most. Others are drawn
        from one law on both data sets, whatever it is.
      laplaces: the same of Laplace numbers.
    """
    failure = near * DITHER_FAILURE
    if not exact:
        return Charge(overflow=failure)
    ratio = normals * noise.normal_ratio(MOST_BITS) + laplaces * noise.LAPLACE_RATIO
    tail = normals * noise.NORMAL_TAIL + laplaces * noise.LAPLACE_TAIL
    return Charge(overflow=failure, law_error=tail, ratio=2 * ratio)


def price(leaf: Any, neighbours: str) -> Charge:
    """What one `Leaf` costs, rounding and the sampler of its noise included."""
    for x in jax.tree.leaves(leaf):
        concrete(x)  # one number each, or what is run is not what is described
    z = leaf.charged(neighbours)
    return leaf.cost(z) if z == 0 else compose(leaf.cost(z), leaf.realised())


def compose(*parts: Charge) -> Charge:
    """The cost of several mechanisms on the same data."""
    losses: dict[PrivacyLoss, int] = {}
    for one in parts:
        for loss, times in one.losses:
            losses[loss] = losses.get(loss, 0) + times
    return Charge(sum(c.gaussian for c in parts), tuple(sorted(losses.items())),
                  sum(c.overflow for c in parts), sum(c.law_error for c in parts),
                  sum(c.ratio for c in parts))


def silent(cost: Charge) -> bool:
    """Whether a release has no noise at all."""
    return math.isinf(cost.gaussian) or any(loss.z == 0 for loss, _ in cost.losses)


def budget_split(w: float) -> Saddle:
    """Ratio of noise multipliers that gives player w the share `w` of the budget, v the rest.

    The budget is the squared Gaussian parameter mu^2 = sum_p (2 / z_p)^2 T, so z_p goes like
    share_p^(-1/2).

    Raises:
      ValueError: unless 0 < w < 1.
    """
    checks.number("w", w, low=0.0, high=1.0)
    return Saddle(w**-0.5, (1.0 - w) ** -0.5)
