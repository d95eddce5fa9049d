"""Planted bugs of the accountant: what its functions are replaced by, and what finds them."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

import jaxminimax as jmm
from benchmarks.privacy.attacks import group as group_attack
from benchmarks.privacy.mutants.detectors import DELTA, FULL, Finding, query
from jaxminimax import Saddle, mechanism
from jaxminimax.mechanism import (
    GroupLosses,
    Poisson,
    Repeat,
    Selection,
    TreeSums,
    costs,
)
from jaxminimax.mechanism.costs import concrete
from jaxminimax.mechanism.grid import check_noise


def players_apart(one: Any) -> Any:
    def changed(leaf: Any, neighbours: str) -> Any:
        if not isinstance(leaf, Repeat):
            return one(leaf, neighbours)
        w, v = check_noise(leaf.query)
        return costs.compose(*(one(dataclasses.replace(leaf, query=dataclasses.replace(
            leaf.query, noise_multiplier=z)), neighbours)
            for z in (Saddle(w, None), Saddle(None, v))))

    return changed


def dearer_player_alone(_: Any) -> Any:
    def changed(leaf: Any) -> Any:
        return min(concrete(z) for z in check_noise(leaf.query) if z is not None)

    return changed


def counts_free(multiplier: Any) -> Any:
    """The sums alone are charged."""
    return lambda leaf: multiplier(dataclasses.replace(leaf, query=dataclasses.replace(
        leaf.query, adaptive=None)))


def one_release_free(one: Any) -> Any:
    return lambda leaf, neighbours: one(
        dataclasses.replace(leaf, times=max(1, leaf.times - 1)), neighbours)


def whole_passes_only(one: Any) -> Any:
    """A pass that was begun is not charged, unless it is the only one."""
    def changed(leaf: Any, neighbours: str) -> Any:
        batches = leaf.query.population // leaf.query.sampling.batch
        full = max(1, leaf.times // batches) * batches
        return one(dataclasses.replace(leaf, times=min(leaf.times, full)), neighbours)

    return changed


def one_of_each(truncated: Any) -> Any:
    """A round of several releases of a part is counted as one release of each part."""
    return lambda self, spent: truncated(
        dataclasses.replace(self, each=()) if self.each else self, spent)


def index_free(one: Any) -> Any:
    return lambda leaf, neighbours: (costs.Charge() if isinstance(leaf, Selection)
                                     else one(leaf, neighbours))


def laplace_free(one: Any) -> Any:
    return lambda leaf, neighbours: (costs.Charge() if isinstance(leaf, GroupLosses)
                                     else one(leaf, neighbours))


def tree_of(leaves: Callable[[int], int]) -> Callable[[Any], Any]:
    """A tree charged as one of another number of leaves."""
    return lambda one: lambda leaf, neighbours: one(
        dataclasses.replace(leaf, leaves=leaves(leaf.leaves))
        if isinstance(leaf, TreeSums) else leaf, neighbours)


def one_column_entry(norms: Any) -> Any:
    """A record is charged for one of the independent numbers that it moves."""
    return lambda *args: norms(*args)._replace(column=1.0)


def one_pass_alone(norms: Any) -> Any:
    """Columns of several passes are charged as those of one."""
    return lambda releases, bands, apart=None: norms(releases, bands)


def rate_over_groups(one: Any) -> Any:
    """Charges a group's Poisson sample as if each of the groups were drawn equally often."""
    def changed(leaf: Any, neighbours: str) -> Any:
        rare = Poisson(rate=leaf.query.sampling.rate / len(group_attack.SIZES))
        return one(dataclasses.replace(leaf, query=dataclasses.replace(leaf.query, sampling=rare)),
                   neighbours)

    return changed


def in_the_largest_group(one: Any) -> Any:
    """Charges samples of a fixed size as if every group had as many records as the largest."""
    def changed(leaf: Any, neighbours: str) -> Any:
        return one(dataclasses.replace(leaf, query=dataclasses.replace(
            leaf.query, population=max(group_attack.SIZES))), neighbours)

    return changed


def rate_charged(factor: float) -> Callable[[Any], Any]:
    def make(one: Any) -> Any:
        def changed(leaf: Any, neighbours: str) -> Any:
            rare = Poisson(rate=factor * leaf.query.sampling.rate)
            return one(dataclasses.replace(leaf, query=dataclasses.replace(
                leaf.query, sampling=rare)), neighbours)

        return changed

    return make


def spent_twice(bounds: Any) -> Any:
    """Delta is used up twice: once by each of two parts of the bound."""
    return lambda cost, delta, *rest, **how: bounds(cost, min(2 * delta, 0.5), *rest, **how)


# --- the detectors ---


def stopped_rounds(rounds: int = 10, inner: int = 4) -> Finding:
    """The squared Gaussian parameter of such rounds over the charged one, at every stop."""
    z = np.array([1.0] * inner + [10.0])  # of the releases of a round
    parts = tuple(mechanism.Repeat(query=query(mechanism.Full(), 1000, noise_multiplier=Saddle(
        one, one), joint=True), times=times) for one, times in (
            (z[0], inner * rounds), (z[-1], rounds)))
    made = mechanism.Sequence(parts=parts, in_turn=True, each=(inner, 1))
    ends = np.arange(1, rounds + 1) * len(z)
    stopped = [made.truncated(int(k)) for k in ends]
    charged = [part.charges("replace_one")[0].gaussian for part in stopped if part is not None]
    return Finding(float(np.max(np.arange(1, rounds + 1) * np.sum(z**-2.0) / charged)), 1.0)


def _mass(one: Callable[[np.ndarray], np.ndarray], two: Callable[[np.ndarray], np.ndarray],
          epsilon: float) -> float:
    """Hockey-stick divergence of two densities, by a sum on a fine grid."""
    x = np.linspace(-60, 60, 480_001)
    return float(np.sum(np.maximum(one(x) - math.exp(epsilon) * two(x), 0)) * (x[1] - x[0]))


def one_sample(z: float = 0.6) -> Finding:
    """True delta at the claimed epsilon of both players on one Poisson sample, over the claimed."""
    rate = 0.1
    described = query(mechanism.Poisson(rate=rate), 1000, noise_multiplier=Saddle(z, z))
    joint = math.sqrt(2) / z  # distance of both players' releases from 0, noise 1
    return of_a_sample(mechanism.Repeat(query=described, times=1), rate, joint)


def one_group() -> Finding:
    """As `one_sample`, of a group's gradient that is read for sure."""
    rate, z = 0.2, 0.6
    described = mechanism.GroupGradients(clip=1.0, noise_multiplier=z,
                                         sampling=mechanism.Poisson(rate=rate), sizes=(500,) * 2)
    return of_a_sample(mechanism.Repeat(query=described, times=1), rate, 1 / z)


def several_in_a_group(people: int = 2, batch: int = 2, z: float = 1.5) -> Finding:
    """True delta at the claimed epsilon of records of one person, all in the smallest group.

    On one data set they are opposite to all others, on the other data set they are like them.
    """
    described = mechanism.GroupGradients(
        clip=1.0, noise_multiplier=z, sampling=mechanism.FixedSize(batch=batch),
        sizes=group_attack.SIZES)
    claimed = jmm.epsilon(mechanism.Repeat(query=described, times=1), DELTA, people=people)
    hits = stats.hypergeom(min(group_attack.SIZES), people, batch).pmf(np.arange(people + 1))

    def moved(x: np.ndarray) -> np.ndarray:
        return np.asarray(sum(w * stats.norm.pdf(x, 2 * j / z) for j, w in enumerate(hits)))

    return Finding(_mass(moved, stats.norm.pdf, claimed) / DELTA, 1.0 + 1e-6)


def of_a_sample(once: mechanism.Repeat, rate: float, far: float) -> Finding:
    """True delta at the claimed epsilon of a release at distance `far` from 0, over the claimed."""
    claimed = jmm.epsilon(once, DELTA)

    def density(towards: float, x: np.ndarray) -> np.ndarray:
        mixed = (1 - rate) * np.exp(-x**2 / 2) + rate * np.exp(-(x - towards) ** 2 / 2)
        return mixed / math.sqrt(2 * math.pi)

    true = _mass(functools.partial(density, far), functools.partial(density, -far), claimed)
    return Finding(true / DELTA, 1.0 + 1e-6)


def laplace() -> Finding:
    """True delta of one Laplace release at the claimed epsilon, over the claimed delta."""
    z, delta = 0.5, 1e-3
    losses = mechanism.GroupLosses(bound=1.0, sizes=(100,), noise_multiplier=z, times=1)
    gradient = mechanism.Repeat(query=query(FULL, noise_multiplier=Saddle(99.0, 99.0)), times=1)
    claimed = jmm.epsilon(mechanism.Sequence(parts=(gradient, losses)), delta)
    true = max(0.0, 1 - math.exp((claimed - 1 / z) / 2))
    return Finding(true / delta, 1.0)


def selection() -> Finding:
    """True delta of one index at the claimed epsilon, over the claimed delta."""
    z, delta = 0.5, 1e-3
    index = mechanism.Selection(bound=1.0, sizes=(100,), noise_multiplier=z, times=1)
    gradient = mechanism.Repeat(query=query(FULL, noise_multiplier=Saddle(99.0, 99.0)), times=1)
    claimed = jmm.epsilon(mechanism.Sequence(parts=(gradient, index)), delta)
    # a bit of probability p, whose odds a record multiplies by e^t
    p = np.linspace(0.0, 1.0, 10_001)[1:-1]
    moved = 1 / (1 + (1 - p) / p * math.exp(-1 / z))
    true = max(np.max(moved - math.exp(claimed) * p), 0.0)
    return Finding(float(true) / delta, 1.0)
