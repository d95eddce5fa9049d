"""Statistics that see holes and grids in noise, such as floating-point samplers leave.

Whoever knows all records but one subtracts either candidate's sum from what was released. Under the
right candidate the rest is the sampler's own number, whatever it cannot be is never seen there;
under the wrong one it is shifted. So every property of a sampler's numbers that a shift destroys
tells the two apart, however little of the noise's law it is.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.audit._rounds import Rounds
from jaxminimax.base.types import Saddle
from jaxminimax.mechanism import Query, batch_size
from jaxminimax.mechanism.costs import concrete
from jaxminimax.mechanism.description import check_noise
from jaxminimax.noise.floats import ROUNDING_MARGIN

_NEAR = 2000  # steps of a grid from 0 that are looked at


def coarse(noise: np.ndarray, bits: int) -> dict[str, np.ndarray]:
    """Statistics of released numbers less a candidate's sum, over the noise's scale.

    Args:
      noise: `[runs, d]`, float64.
      bits: digits of the type that they were drawn in, 24 or 53.

    Returns:
      Each `[runs]`: the share of small pairs (i, i + d / 2) whose 1 - exp(-r^2 / 2) is a multiple
      of 2^-bits, and whether all are; of numbers that are multiples of 2^-k; of numbers with no
      more than 8 or 11 digits; how many are equal but for a sign; the smallest and the largest.
    """
    runs, d = noise.shape
    half = (d + 1) // 2
    found: dict[str, np.ndarray] = {}
    one, two = noise[:, : d - half], noise[:, half:]
    for digits in (bits - 1, bits, bits + 1):
        steps = -np.expm1(-(one**2 + two**2) / 2) * 2.0**digits
        near = steps < (_NEAR if bits == 24 else 2.0**digits * 0.05**2 / 2)
        hit = near & (np.abs(steps - np.round(steps)) < 0.03)
        count = near.sum(1)
        found[f"radii on 2^-{digits}"] = hit.sum(1) / np.maximum(count, 1)
        found[f"all radii on 2^-{digits}"] = 1.0 * ((count > 0) & (hit.sum(1) == count))
    for k in range(4, 17, 2):
        steps = noise * 2.0**k
        found[f"multiples of 2^-{k}"] = (np.abs(steps - np.round(steps)) < 2.0 ** (k - 21)).mean(1)
    fraction, _ = np.frexp(noise)
    for digits in (8, 11):
        steps = fraction * 2.0**digits
        found[f"{digits} digits"] = (np.abs(steps - np.round(steps)) < 2.0 ** (digits - 19)).mean(1)
    size = np.sort(np.abs(noise), 1)
    gaps = np.diff(size, axis=1)
    found["equal"] = (gaps <= 2.0**-20 * size[:, 1:]).mean(1) if d > 1 else np.zeros(runs)
    found["smallest"], found["largest"] = size[:, 0], size[:, -1]
    return found


def scale(hyper: Any, z: Saddle) -> np.ndarray | None:
    """The described standard deviation of the noise in a release's numbers, `[k]`.

    Returns:
      NaN for a player without a clip norm. None if the mechanism is not a `Query`, has no noise, or
      reads a secret sample, whose sum nobody knows.
    """
    query = getattr(hyper, "query", None)
    if not isinstance(query, Query) or query.sampling.secret:
        return None
    unit = np.concatenate([
        np.full(sum(jnp.size(x) for x in jax.tree.leaves(point)), math.nan if clip is None else
                concrete(clip) * concrete(noise) / batch_size(query))
        for point, clip, noise in zip(z, query.clip, check_noise(query), strict=True)])
    return None if np.any(unit == 0) else unit


def coarse_scores(found: list[Rounds], unit: np.ndarray | float,
                  bits: int) -> list[dict[str, np.ndarray]]:
    """`coarse` of the first round's releases on each data set, less the first data set's sum.

    Args:
      found: what runs on each data set released.
      unit: the described standard deviation of their noise, `[k]` or one for all; NaN where there
        is none.
      bits: as in `coarse`.
    """
    unit = np.broadcast_to(unit, found[0].noisy.shape[-1:])
    known = np.isfinite(unit)
    louder = unit[known] * ROUNDING_MARGIN
    return [coarse(np.nan_to_num(seen.noisy[:, 0, i] - seen.quiet[:, 0, 0])[:, known] / louder,
                   bits) for i, seen in enumerate(found)]
