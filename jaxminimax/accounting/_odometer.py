"""The milestone odometer: what a run has cost that was stopped by looking at what it released.

Milestones T_1 < ... < T_r = T, the number of releases allowed, and shares delta_1 + ... + delta_r =
delta are fixed before the run, by a public rule: T_j = ceil(T / 1.5^k) for k = 0, ..., 12, half of
delta for T itself and the rest in equal shares. Let the run stop at any time tau that is a function
of what was released until then and of coins that know nothing of the data, and let J be the first
milestone at or beyond tau. The odometer prints epsilon_J = epsilon(T_J, delta_J), and for
neighbouring data with laws P and Q of the stopped transcript, and every event S,

    P(S) <= sum_j e^(epsilon_j) Q(S, J = j) + delta.

Proof. "S, and J = j" is decided by the first T_j releases and the coins, and those are (epsilon_j,
delta_j)-private: P(S, J = j) <= e^(epsilon_j) Q(S, J = j) + delta_j. Sum over j.

So one delta in all pays for every number that might have been printed. A stop that is decided on
anything else, such as a private validation loss or a crash that depends on the data, is not
covered. Quoting the smaller of this number and the epsilon of all releases counts both deltas.

Odometers: Rogers, Roth, Ullman and Vadhan, "Privacy odometers and filters: pay-as-you-go
composition", NeurIPS 2016.
"""

from collections.abc import Callable

from jaxminimax.accounting._people import dearest
from jaxminimax.mechanism import Description
from jaxminimax.mechanism.description import leaves

STEPS = 13  # milestones, T included


def shares(count: int, delta: float) -> list[float]:
    """Half of `delta` for the last of `count` milestones, the rest in equal shares; in order."""
    if count == 1:
        return [delta]
    return [0.5 * delta / (count - 1) * (1 - 1e-15)] * (count - 1) + [0.5 * delta]


def milestones(allowed: int, delta: float) -> tuple[tuple[int, float], ...]:
    """Numbers of releases, rising to `allowed`, and the share of `delta` of each."""
    ends = sorted({-(-allowed * 2**k // 3**k) for k in range(STEPS)})
    return tuple(zip(ends, shares(len(ends), delta), strict=True))


def odometer(part_at: Callable[[int], Description], allowed: int, spent: int, delta: float,
             neighbours: str, people: int = 1) -> tuple[float, int]:
    """The odometer's epsilon of a run stopped after `spent` releases, and the milestone it is of.

    Args:
      part_at: what is charged for a number of releases; for 0, what was released beside the run.
      allowed: releases allowed, at least 1.
      spent: releases made, at most `allowed`.
      delta: of all milestones together.
      neighbours: as in `epsilon`.
      people: as in `epsilon`.
    """
    if spent == 0 and not leaves(part_at(0)):
        return 0.0, 0  # nothing was released, and coins alone decided it
    end, share = next(x for x in milestones(allowed, delta) if x[0] >= spent)
    return dearest(part_at(end), share, neighbours, people).epsilon, end
