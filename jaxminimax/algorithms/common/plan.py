"""What planning an algorithm from public numbers takes and gives.

    algorithm.plan(target, *, population, ...) -> Plan

in each module that has a theorem. Users call `jaxminimax.plan(algorithm, epsilon=..., delta=...,
population=..., ...)`, which makes the target: a plan may need to know its noise, and the accountant
that sets it stands above the algorithms.

Privacy never rests on a plan: whatever it says, the noise is calibrated to the description that the
run executes. Utility does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Plan(NamedTuple):
    """Settings from a theorem.

    Attributes:
      hyper: the algorithm's `Hyper`, calibrated.
      guarantee: the theorem's bound on its measure with all constants, for this noise; None where
        the theorem is a rate.
      vacuous: whether the theorem promises nothing here: one of its conditions fails, or its bound
        is no better than the trivial one. The run is as private as any other.
      why: sentences: which theorem, what its measure is, the bound beside the trivial one, and
        which departures from it.
      trivial: the bound that every point of the feasible set keeps, L B; None where the theorem is
        a rate.
    """

    hyper: Any
    guarantee: float | None
    vacuous: bool
    why: tuple[str, ...]
    trivial: float | None = None


def beside_trivial(bound: float, trivial: float) -> str:
    """A sentence: what a bound says, vacuous or not."""
    verdict = ("so it says nothing here" if bound >= trivial
               else "so it says something, of the worst problem with these constants")
    return f"The bound is {bound:.3g}; any point at all has one of L B = {trivial:.3g}, {verdict}."


class Target(NamedTuple):
    """The privacy that a plan is for.

    Attributes:
      epsilon: of the target; None for no noise and no privacy.
      delta: of the target.
      noise: `hyper -> hyper`, with noise multipliers calibrated to the target.
      gaussian: `() ->` ratio of noise to sensitivity of one Gaussian release that meets the target;
        0 without privacy.
    """

    epsilon: float | None
    delta: float
    noise: Callable[[Any], Any]
    gaussian: Callable[[], float]
