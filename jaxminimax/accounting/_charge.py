"""The accountant's questions to a description: what it costs, and what a part of it costs.

Descriptions answer them, see `mechanism.description`; how answers add up, and what they are
relative to, is in `mechanism.costs`.
"""

from jaxminimax import mechanism as described
from jaxminimax.base import checks
from jaxminimax.mechanism import NEIGHBOURS, Charge, Description, Leaf
from jaxminimax.mechanism.description import known


def charges(mechanism: Description, neighbours: str) -> tuple[Charge, ...]:
    """The cost of a mechanism, one charge for each place where the differing record may be.

    Raises:
      ValueError: for a description that is not valid, or a relation it has no guarantee for.
    """
    checks.one_of("neighbours", neighbours, NEIGHBOURS)
    described.check(mechanism)
    return described.charges(mechanism, neighbours)


def spent_part(mechanism: Description, spent: int) -> Description | None:
    """`mechanism` stopped after `spent` releases; None if nothing was released.

    Parts are taken to run one after the other, in their order, or in turn where they say so.
    """
    return known(mechanism).spent_part(spent)


def multiplier(leaf: Leaf) -> float:
    """The one noise multiplier of a description, players combined.

    Raises:
      ValueError: if it was never set.
    """
    return leaf.multiplier()
