"""From a description to what it costs: Gaussians that add up, subsampled ones, failures.

Conventions, all under one roof because a slip here is a factor of two in epsilon:

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
  rounding may move them is part of their distance: `mechanism.charged_multiplier` says which real
  multiplier is no more private, and that one enters every curve.
* The integer noise is realised up to a factor of 1 +- r on every probability, outside of a tail.
  N numbers, on both data sets, cost 2 N r of epsilon, and N times the tail of total variation.
* P[a Poisson sample overflows] is added to delta. That is more than needed: given which other
  records were drawn, a sample overflows with the same probability on both data sets, so its NaN
  tells nothing, and where it cannot overflow the pair is the Poisson one.
* A departure tau from the described law of the samples costs (1 + e^epsilon) tau of delta:
  P'(S) <= P(S) + tau and Q'(S) >= Q(S) - tau for the realised P', Q'.
"""

import bisect
import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import jax

from jaxminimax import _check, _valid, integer_noise, sampling
from jaxminimax import mechanism as words
from jaxminimax.mechanism import (
    Disjoint,
    FixedSize,
    GroupGradients,
    GroupLosses,
    GroupSolution,
    Leaf,
    Mechanism,
    Parallel,
    Poisson,
    Query,
    RecordLosses,
    Repeat,
    Resolvent,
    Sequence,
    Solution,
    Tree,
)

NEIGHBOURS = ("replace_one", "add_or_remove_one")


class Loss(NamedTuple):
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
    losses: tuple[tuple[Loss, int], ...] = ()
    overflow: float = 0.0
    law_error: float = 0.0
    ratio: float = 0.0


def effective_noise_multiplier(query: Query | Resolvent | GroupGradients) -> float:
    """z_eff: one Gaussian as strong as both players' together.

    (sum_p z_p^-2)^(-1/2), or min_p z_p with one joint clip.
    """
    if not isinstance(query, Query):  # one vector, and one multiplier
        return words.concrete(words.check_noise(query))
    z = [words.concrete(x) for x in words.check_noise(query) if x is not None]
    smallest = min(z)
    if smallest == 0 or query.joint:
        return smallest
    # scaled, so that squares neither overflow nor underflow
    return float(smallest / math.sqrt(sum((smallest / x) ** 2 for x in z)))


def multiplier(leaf: Leaf) -> float:
    """The one noise multiplier of a description, players combined.

    Raises:
      ValueError: if it was never set.
    """
    if isinstance(leaf, Repeat):
        return effective_noise_multiplier(leaf.query)
    if leaf.noise_multiplier is None:
        raise ValueError(f"noise_multiplier of {type(leaf).__name__} is not set: calibrate_noise("
                         "mechanism, epsilon=..., delta=...) sets it.")
    return words.concrete(leaf.noise_multiplier)


def charged(leaf: Leaf, neighbours: str) -> float:
    """The multiplier of a real mechanism that is no more private than what runs.

    For Gaussian noise on sums, trees and solutions see `mechanism.charged_multiplier`. A solution's
    float64 numbers are rounded once more where they are scaled, by less than a part slack / 64 of
    what certificates leave. Losses are rounded one by one, so that a record moves a sum by up to a
    unit more, which is a part z / 2^L of the bound.
    """
    z = multiplier(leaf)
    if z == 0 or isinstance(leaf, Solution):  # whose user adds the noise
        return z
    if isinstance(leaf, GroupLosses | RecordLosses):
        return z / (1 + z * 2.0**-words.grid_bits(z, words.PARAMETERS))
    absent = neighbours != "replace_one"
    if isinstance(leaf, Tree):
        return words.charged_multiplier(z, z, leaf.parameters, absent=absent)
    if isinstance(leaf, GroupSolution):  # z is over the replace-one sensitivity, not half of it
        return words.charged_multiplier(2 * z, 2 * z, leaf.parameters, absent=absent,
                                        eta=_scaling(leaf.slack)) / 2
    query = leaf.query
    absent |= isinstance(query.sampling, Poisson)
    if isinstance(query, Resolvent):
        return words.charged_multiplier(z, z, query.parameters, absent=absent,
                                        eta=_scaling(query.slack))
    smallest = min(map(words.concrete, jax.tree.leaves(query.noise_multiplier)))
    return words.charged_multiplier(z, smallest, query.parameters, absent=absent)


def _scaling(slack: Any) -> float:
    slack = words.concrete(slack)
    return slack / (64 * (1 + slack))


def _numbers(leaf: Leaf) -> tuple[int, int]:
    """Gaussian and Laplace numbers that are added to what a record may move, at most.

    Others are drawn from one law on both data sets, whatever it is.
    """
    match leaf:
        case GroupLosses(times=times):
            return 0, times
        case RecordLosses():
            return 0, 1
        case Tree(leaves=leaves, parameters=d):
            return leaves.bit_length() * d, 0
        case GroupSolution(parameters=d):
            return d, 0
        case Solution():
            return 0, 0
    return leaf.times * leaf.query.parameters, 0


def realised(leaf: Leaf) -> Charge:
    """What integer noise and rounding to the grid cost beside the real mechanism."""
    if isinstance(leaf, Solution):
        return Charge()
    rounded = 0  # pairs of sums that are bound to be near
    if isinstance(leaf, Repeat):
        match leaf.query.sampling:
            case FixedSize(batch=batch, replacement=True):  # one copy after the other is replaced
                pairs = batch
            case Poisson():  # without the record, with it, and with the one in its place
                pairs = 2
            case _:
                pairs = 1
        rounded = leaf.times * pairs
    elif isinstance(leaf, Tree | GroupSolution):
        rounded = 1
    failure = rounded * words.DITHER_FAILURE
    if not words.is_exact(leaf):
        return Charge(overflow=failure)
    normal, laplace = _numbers(leaf)
    ratio = (normal * integer_noise.normal_ratio(words.MOST_BITS)
             + laplace * integer_noise.LAPLACE_RATIO)
    tail = normal * integer_noise.NORMAL_TAIL + laplace * integer_noise.LAPLACE_TAIL
    return Charge(overflow=failure, law_error=tail, ratio=2 * ratio)


def first(mechanism: Mechanism, spent: int) -> Mechanism | None:
    """`mechanism` stopped after `spent` releases; None if nothing was released.

    Parts are taken to run one after the other, in their order, or in turn where they say so.
    """
    match mechanism:
        case Repeat() | GroupLosses():  # parts of a Repeat: the first one has spent the most
            times = min(spent, mechanism.times)
            return dataclasses.replace(mechanism, times=times) if times else None
        case Tree() | Solution() | GroupSolution() | RecordLosses():
            # a tree's first node already involves its whole noise; of the others a record is in one
            return mechanism if spent else None
        case Sequence(parts=turns, in_turn=True) | Parallel(parts=turns, in_turn=True):
            counts = [words.releases(part) for part in turns]  # a round that was begun counts
            rounds = bisect.bisect_left(range(max(counts) + 1), spent,
                                        key=lambda r: sum(min(r, count) for count in counts))
            begun = tuple(x for x in (first(part, rounds) for part in turns) if x is not None)
            return dataclasses.replace(mechanism, parts=begun) if begun else None
    parts = []
    for part in mechanism.parts:
        done = first(part, spent)
        spent -= 0 if done is None else min(spent, words.releases(done))
        parts += [] if done is None else [done]
    return dataclasses.replace(mechanism, parts=tuple(parts)) if parts else None


def charges(mechanism: Mechanism, neighbours: str) -> tuple[Charge, ...]:
    """The cost of a mechanism, one charge for each place where the differing record may be.

    Raises:
      ValueError: for a description that is not valid, or a relation it has no guarantee for.
    """
    _check.one_of("neighbours", neighbours, NEIGHBOURS)
    _valid.check(mechanism)
    return tuple(dict.fromkeys(_alternatives(mechanism, neighbours)))


def _alternatives(mechanism: Mechanism, neighbours: str) -> list[Charge]:
    if isinstance(mechanism, Parallel):
        return [c for part in mechanism.parts for c in _alternatives(part, neighbours)]
    if isinstance(mechanism, Sequence):
        rows = [_alternatives(part, neighbours) for part in mechanism.parts]
        if math.prod(map(len, rows)) > 1000:
            raise ValueError("A Sequence of Parallel mechanisms has more than 1000 combinations of "
                             "parts: put the Sequences inside one Parallel.")
        return [together(*choice) for choice in itertools.product(*rows)]
    if neighbours != "replace_one" and not (
            isinstance(mechanism, Repeat) and mechanism.parts == 1
            and isinstance(mechanism.query, Query | Resolvent)
            and isinstance(mechanism.query.sampling, words.Full | Poisson)):
        raise ValueError("add_or_remove_one is offered for releases on Full() and Poisson(...) "
                         "samples of the whole data only: use neighbours='replace_one'.")
    if isinstance(mechanism, Repeat) and isinstance(mechanism.query, GroupGradients):
        group = mechanism.query
        sizes = set(group.sizes) if isinstance(group.sampling, FixedSize) else {max(group.sizes)}
        return [_one(dataclasses.replace(mechanism, query=words.in_group(group, n)), neighbours)
                for n in sorted(sizes)]
    return [_one(mechanism, neighbours)]


def _one(leaf: Leaf, neighbours: str) -> Charge:
    for x in jax.tree.leaves(leaf):
        words.concrete(x)  # one number each, or what is run is not what is described
    z = charged(leaf, neighbours)
    return _real(leaf, z) if z == 0 else together(_real(leaf, z), realised(leaf))


def _real(leaf: Leaf, z: float) -> Charge:
    """The cost of a mechanism with real noise of that multiplier."""
    if isinstance(leaf, GroupLosses):
        return Charge(losses=((Loss("laplace", z), leaf.times),))
    if isinstance(leaf, Tree):  # Q leaves: a record is in this many nodes
        return _gaussian(leaf.leaves.bit_length(), z)
    if isinstance(leaf, RecordLosses):  # a record is in one release
        return Charge(losses=((Loss("laplace", z), 1),))
    if isinstance(leaf, Solution | GroupSolution):
        # z is over the replace-one sensitivity, not half of it; a record is in one phase
        return _gaussian(1, 2 * z)
    query, times = leaf.query, leaf.times
    assert not isinstance(query, GroupGradients)  # charged by group
    n = query.population
    match query.sampling:
        case Poisson(rate=rate):
            return Charge(losses=((Loss("poisson", z, float(rate)), times),),
                          overflow=times * words.overflow_probability(query),
                          law_error=times * sampling.law_error(query))
        case FixedSize(batch=batch, replacement=replacement):
            if batch == n and not replacement:
                return _gaussian(times, z)
            kind = "replacement" if replacement else "fixed"
            return Charge(losses=((Loss(kind, z, population=n, batch=batch), times),),
                          overflow=times * sampling.failure(query),
                          law_error=times * sampling.law_error(query))
        case Disjoint(batch=batch):
            return _gaussian(math.ceil(times / (n // batch)), z)
    return _gaussian(times, z)


def _gaussian(times: int, z: float) -> Charge:
    return Charge(gaussian=math.inf if z == 0 else times / z**2)


def together(*parts: Charge) -> Charge:
    """The cost of several mechanisms on the same data."""
    losses: dict[Loss, int] = {}
    for one in parts:
        for loss, times in one.losses:
            losses[loss] = losses.get(loss, 0) + times
    return Charge(sum(c.gaussian for c in parts), tuple(sorted(losses.items())),
                  sum(c.overflow for c in parts), sum(c.law_error for c in parts),
                  sum(c.ratio for c in parts))


def silent(cost: Charge) -> bool:
    """Whether a release has no noise at all."""
    return math.isinf(cost.gaussian) or any(loss.z == 0 for loss, _ in cost.losses)
