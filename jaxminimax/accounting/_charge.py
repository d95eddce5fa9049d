"""The accountant's questions to a description: what it costs, and what a part of it costs.

Descriptions answer them, see `mechanism.description`; how answers add up, and what they are
relative to, is in `mechanism.costs`.
"""

from typing import Any

from jaxminimax import mechanism as described
from jaxminimax.base import arguments, checks
from jaxminimax.mechanism import NEIGHBOURS, Description, Leaf
from jaxminimax.mechanism.costs import Charge
from jaxminimax.mechanism.description import known


def charges(mechanism: Description, neighbours: str) -> tuple[Charge, ...]:
    """The cost of a mechanism, one charge for each place where the differing record may be.

    Raises:
      ValueError: for a description that is not valid, or a relation it has no guarantee for.
    """
    checks.one_of("neighbours", neighbours, NEIGHBOURS)
    described.description.check(mechanism)
    return described.description.charges(mechanism, neighbours)


def of_run(algorithm: Any, hyper: Any) -> Description:
    """What a whole run of an algorithm does to the data.

    Raises:
      TypeError: for what is no algorithm, or settings that are not its own.
      ValueError: for a description that is none.
    """
    arguments.algorithm(algorithm)
    arguments.settings(hyper, algorithm)
    return known(algorithm.mechanism(hyper))


def beside(mechanisms: Any) -> tuple[Description, ...]:
    """Other mechanisms on the same data, as a tuple.

    Raises:
      TypeError: for what is no tuple or list.
      ValueError: for what is no description in it.
    """
    if not isinstance(mechanisms, tuple | list):
        raise TypeError("alongside must be a tuple of mechanisms, got "
                        f"{checks.told(mechanisms)}: one alone is (mechanism,).")
    return tuple(map(known, mechanisms))


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
