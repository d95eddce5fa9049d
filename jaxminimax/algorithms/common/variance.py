"""How far a released mean operator is from the mean operator: what step sizes are made from."""

import math

from jaxminimax.algorithms.common.steps import ENTROPIC, EUCLIDEAN
from jaxminimax.base.types import Saddle
from jaxminimax.mechanism import Query, batch_size
from jaxminimax.mechanism.costs import concrete
from jaxminimax.mechanism.description import check_noise


def of_release(query: Query, dim: int | Saddle, geometry: Saddle = EUCLIDEAN) -> float:
    """V: a bound on E||xi||^2, xi the released mean operator less the mean of all clipped ones.

    Noise of deviation sigma = z C / m on each of d coordinates, and the sample's own error, in l2
    at most (1 - q) C^2 / (q n) for Poisson samples and C^2 / m for those of a fixed size:

        V = d_w sigma_w^2 + d_v sigma_v^2 + sample                            Euclidean,
        V = 2 sigma_w^2 ln(2 d_w) + 2 sigma_v^2 ln(2 d_v) + 2 sample ...      entropic,

    where the noise counts twice too if there is a sample: the l-infinity norm has no Pythagoras.
    (E max_j x_j^2 <= 2 ln(2 d) for d standard normals: with a such that 2 d Phi(-a) = 1 it is at
    most 1 + a phi(a) / Phi(-a), by the union bound.) The rounding of a sum to its grid is not
    counted: it is below the noise by many bits.

    Args:
      query: calibrated, of full batches or of samples drawn anew in every release.
      dim: d of both players together, for one noise; or of each, a `Saddle`.
      geometry: whose norm it is, the same for both players.

    Raises:
      ValueError: for disjoint batches, whose errors are not independent of the past; for different
        noise or entropic steps without the dimension of each player.
    """
    m = batch_size(query)
    sigmas = Saddle(*(0.0 if c is None else concrete(c) * concrete(z) / m for c, z in zip(
        query.clip, check_noise(query), strict=True)))
    if not isinstance(dim, Saddle):
        if geometry != EUCLIDEAN or (sigmas.w != sigmas.v and None not in query.clip):
            raise ValueError(f"dim must be a Saddle, the dimension of each player, got {dim!r}.")
        dim = Saddle(dim, 0) if query.clip.w is not None else Saddle(0, dim)
    clips = [concrete(c) ** 2 for c in query.clip if c is not None]
    square = max(clips) if query.joint else sum(clips)
    spread = query.sampling.spread()
    if spread is None:
        raise ValueError("sampling must be Full, Poisson or FixedSize, drawn anew in every "
                         f"release, got {query.sampling!r}.")
    sample = spread * square / m
    if geometry == ENTROPIC:
        noise = sum(2 * s**2 * math.log(2 * d) for s, d in zip(sigmas, dim, strict=True) if d)
        return noise if sample == 0 else 2 * (noise + sample)
    return sum(d * s**2 for s, d in zip(sigmas, dim, strict=True)) + sample
