"""Clip norms that follow a released quantile of the norms of records' operators.

A release of `Query(adaptive=AdaptiveClip(...))` has a part more: with a clip norm C_p, the player's
sum over the sample B and a noisy count,

    sum_{i in B} clip(g_p(z; x_i), C_p) + N(0, (C_p z_p)^2 I),
    sum_{i in B} s_pi / 2               + N(0, (z_b / 2)^2),

    s_pi = 1 if ||g_p(z; x_i)|| <= C_p, -1 if it is longer, 0 if the record counts as absent.

The next clip norm is C_p exp(-rate (b_p - quantile_p)), with m the public batch size and
b_p = 1/2 + (that noisy count) / m. With a joint clip there is one count, of the records that no
factor shortens, and both clip norms are scaled alike.

Why that is charged as one release of a `Query` with another multiplier:

* The first clip norms are public and the others are functions of earlier releases. Given these, a
  release is that of a `Query` with public clip norms. Its noise is C_p z_p, its grid C_p z_p / 2^L
  with L a function of z_p: what the accountant reads, z_p and d, does not depend on C_p.
* A record adds at most 1/2 to a count, whatever it contains, and nothing if it is absent. One put
  for another moves a count by 2 units of 1/2 at most, one that comes or goes by 1: a count is a
  clipped sum of clip norm 1/2, and z_b is its noise multiplier.
* Sums and counts read one sample. Given it, they are one Gaussian vector, of
  1 / z_eff^2 = 1 / z_P^2 + k / z_b^2, with z_P the players' multiplier and k the number of counts.
  Samples and composition enter by z_eff alone. `share` is the counts' part of the budget mu^2,

      z_b = z_P (k (1 - share) / share)^(1/2),      z_eff = z_P (1 - share)^(1/2),

  so that no multiplier of a count could be out of step with those of the sums.
* A count is exact. With an integer a <= 2^L / z_b and X = floor(2^L G), what is released is a
  function of a sum_i s_pi + X, an integer that a record moves by at most 2 a <= 2 * 2^L / z_b, and
  the floor of a real Gaussian of deviation 2^L: nothing is rounded. So the distance that
  `charged_multiplier` starts from has the counts' part in it, and what rounding adds to it is that
  of the sums. The largest a for which the integer stays below 2^30 makes noise louder than
  described, for multipliers of 1 or more by a part of at most 1 / a: near 2^-17 for 4096 rows and
  2^-9 for a million.

Source: Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning with Adaptive
Clipping", NeurIPS 2021, arXiv:1905.03871, Algorithm 1. Departures: gradients of records; a count
for each player; the counts' noise follows from a share of the budget instead of m / 20 records;
m is the public batch size; clip norms stay within 2^-20 and 2^20 of the first ones.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax.base import checks
from jaxminimax.base.types import Saddle, pytree_dataclass
from jaxminimax.mechanism._checks import is_plain
from jaxminimax.mechanism._grid import MOST_BITS

REACH = 2.0**20  # of a clip norm, from the first one
_UNITS = 18  # at most 2^18 units of the noise's grid for a record
_SUM = 30  # bits of a count in these units
_MARGIN = 1 + 2.0**-20  # roundings of z_b in float32


@pytree_dataclass
class AdaptiveClip:
    """Clip norms of a `Query` that follow a quantile of the records' norms; for `sgda`.

    Noisy counts of the records within the clip norms are a part of every release, and charged with
    it. All clip norms are in `State.clip`, and may be published.

    Attributes:
      quantile: per player, the part of the records that is to be within the clip norm, in (0, 1).
        Equal ones for a joint clip.
      rate: by how much the logarithm of a clip norm moves at most, about, in one round.
      share: the counts' part of the budget mu^2, in (0, 1/2]. The noise on the sums is
        (1 - share)^(-1/2) times what it would be: 0.5 % more for a share of 0.01.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), sampling=jmm.Poisson(rate=0.1),
        ...                   population=2000, adaptive=jmm.AdaptiveClip())
        >>> hyper = jmm.sgda.Hyper(query=query, step=Saddle(0.1, 0.1), iterations=10)
        >>> hyper = jmm.calibrate(jmm.sgda, hyper, epsilon=1.0, delta=1e-6)
        >>> list(hyper.query.noise_multipliers())
        ['w', 'v', 'counts']
    """

    quantile: Saddle = Saddle(0.5, 0.5)
    rate: float = 0.2
    share: float = 0.01

    def check(self, query: Any) -> None:
        """Refuses numbers out of range, and what cannot have clip norms that move.

        Raises:
          ValueError: naming the value and the fix.
        """
        if not isinstance(self.quantile, Saddle):
            raise ValueError("adaptive.quantile must be a Saddle, one number for each player, got "
                             f"{self.quantile!r}.")
        for name, clip in query.clip._asdict().items():
            if clip is not None:
                checks.number(f"adaptive.quantile.{name}", getattr(self.quantile, name), low=0.0,
                              high=1.0)
                checks.number(f"clip.{name}, the first one of adaptive clip norms,", clip,
                              low=1e-20, high=1e20)  # what it may become is in [1e-28, 1e28]
        checks.number("adaptive.rate", self.rate, low=0.0, high=10.0)
        checks.number("adaptive.share", self.share, low=1e-9, high=0.5, closed=True)
        w, v = self.quantile
        if query.joint and all(is_plain(x, lambda _: True) for x in (w, v)) and w != v:
            raise ValueError("adaptive.quantile must be the same for both players of a joint clip, "
                             f"which has one count, got {self.quantile!r}.")
        if not query.exact or query.bands != 1:
            raise ValueError("adaptive clip norms need exact=True and bands=1: counts have integer "
                             "noise, and noise in units of changing clip norms does not cancel.")

    def counts(self, query: Any) -> int:
        """K: one for each clip norm, or for both together."""
        return 1 if query.joint else sum(clip is not None for clip in query.clip)


def count_multiplier(query: Any) -> jax.Array:
    """z_b, float32 `[]`; 0 where a player has no noise."""
    z = [jnp.asarray(x, jnp.float32) for x in query.noise_multiplier if x is not None]
    smallest = jnp.min(jnp.stack(z))
    players = smallest
    if not query.joint:  # scaled, so that squares neither overflow nor underflow
        players = smallest / jnp.sqrt(sum(jnp.square(smallest / jnp.maximum(x, smallest))
                                          for x in z))
    share = jnp.asarray(query.adaptive.share, jnp.float32)
    counts = query.adaptive.counts(query)
    return jnp.where(smallest == 0, 0.0, players * jnp.sqrt(counts * (1 - share) / share))


def count_grid(z: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
    """The units a of a record, and L, int32 `[]`, for a multiplier and the most rows of a sum.

    `a` is 0 where no integer noise is loud enough: for multipliers above 2^22.
    """
    most = min(_UNITS, _SUM - int(rows).bit_length())  # a <= 2^most
    # 2^L / z_b in (2^(most - 1), 2^most], but at least 1
    bits = jnp.clip(jnp.frexp(z)[1].astype(jnp.int32) - 1 + max(most, 1), 0, MOST_BITS)
    units = jnp.floor((1 << bits).astype(jnp.float32) / (jnp.where(z == 0, 1.0, z) * _MARGIN))
    units = jnp.clip(units, 0, 2.0**most).astype(jnp.int32)
    return jnp.where(z == 0, 1, units), bits


__all__ = ["AdaptiveClip"]
