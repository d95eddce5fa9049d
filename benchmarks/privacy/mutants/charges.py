"""Planted bugs of the accountant: what its functions are replaced by; see `plants`."""

import dataclasses
from collections.abc import Callable
from typing import Any

from benchmarks.privacy.attacks import group as group_attack
from jaxminimax import Saddle
from jaxminimax.mechanism import (
    Difference,
    GroupLosses,
    Poisson,
    Repeat,
    Selection,
    Sequence,
    TreeSums,
    costs,
)
from jaxminimax.mechanism.costs import concrete
from jaxminimax.mechanism.limits import check_noise


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


def differences_free(one: Any) -> Any:
    return lambda leaf, neighbours: (
        costs.Charge() if isinstance(getattr(leaf, "query", None), Difference)
        else one(leaf, neighbours))


def in_turn(_: Any) -> Any:
    """As many differences as anchors in what was spent, while there are anchors left."""
    def changed(windows: Any, spent: int) -> Any:
        return Sequence(parts=windows.flattened(), in_turn=True).truncated(spent)

    return changed


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
