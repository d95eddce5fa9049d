"""How much of the charge of `Selection` an adversary attains who chooses all scores, adaptively.

`benchmarks.privacy.lower_bounds` prints the table beside those of other releases.
"""

import itertools
import math
from typing import Any

import numpy as np

import jaxminimax as jmm
from jaxminimax.accounting import pairs


def attained(t: float, times: int, epsilon: float, points: int = 60) -> float:
    """What an adversary attains who chooses the odds of every selection by the earlier indices.

    One index stands against the others, its odds are x against x e^t, and ln of x is chosen so
    that the loss is c or c - t for c a multiple of h = t / points. By backward induction over what
    has been lost, on the same multiples: nothing is rounded, so this is attained.
    """
    h = t / points
    c = h * np.arange(points + 1)
    p = np.expm1(c) / math.expm1(t)
    reach = times * points
    value = np.maximum(-np.expm1(epsilon - h * np.arange(-reach, reach + 1)), 0.0)
    for left in range(reach - points, -1, -points):
        count = 2 * left + 1
        value = np.max([(1 - p[j]) * value[points + j: points + j + count]
                        + p[j] * value[j: j + count] for j in range(points + 1)], 0)
    return float(value[0])


def table(moves: tuple[float, ...] = (0.1, 0.5, 2.0, 6.0),
          counts: tuple[int, ...] = (1, 2, 3, 10, 40)) -> list[dict[str, Any]]:
    """Indices of the largest score, chosen adaptively: attained against claimed epsilon.

    At epsilon = 0 the attained delta against that of the block's profile.
    """
    rows = []
    for t, times, share in itertools.product(moves, counts, (0.0, 0.2, 0.5)):
        z = 1 / t
        index = jmm.mechanism.Selection(bound=1.0, sizes=(10,), noise_multiplier=z, times=times)
        # rounding is charged, and not attained
        t = 1 / index.effective_noise_multiplier("replace_one")
        epsilon = share * t * times
        delta = attained(t, times, epsilon)
        block = float(pairs.block(t, times).profile(np.array([epsilon]))[0])
        bound = jmm.epsilon(index, delta) if 1e-300 < delta < 1 and epsilon else epsilon
        rows.append({"steps": times, "sampler": "selection", "noise_multiplier": z,
                     "epsilon": epsilon, "attained_delta": delta, "block_delta": block,
                     "claimed": bound,
                     "attained_over_claimed": epsilon / bound if epsilon else delta / block})
    return rows
