"""Clipped sums of both players' operators over one shared sample.

Clip norms that follow a released quantile of the norms of records' operators.

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
  of the sums. The largest a for which the integer stays below 2^30 makes noise larger than
  described, for multipliers of 1 or more by a part of at most 1 / a: near 2^-17 for 4096 rows and
  2^-9 for a million.

Source: Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning with Adaptive
Clipping", NeurIPS 2021, arXiv:1905.03871, Algorithm 1. Departures: gradients of records; a count
for each player; the counts' noise follows from a share of the budget instead of m / 20 records;
m is the public batch size; clip norms stay within 2^-20 and 2^20 of the first ones.
"""

import dataclasses
import math
from typing import Any, Self

import jax
import jax.numpy as jnp

from jaxminimax.base import checks
from jaxminimax.base.types import Saddle, pytree_dataclass
from jaxminimax.mechanism import correlated, costs, description, grid, sentences
from jaxminimax.mechanism.fixed_size import Full
from jaxminimax.mechanism.repeat import OneRelease, Repeat, sampled_words

__all__ = ["AdaptiveClip", "Query"]


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
      floor: the least that a clip norm becomes, over its first value, in [0, 1]. Where most records
        have small gradients, a quantile clips the others' to nothing, and a floor stops that (Zhao,
        Rehn, Heikkila, Tajeddine and Honkela, arXiv:2506.01396). It is public and costs nothing.

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
    floor: float = 0.0

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
        checks.number("adaptive.floor", self.floor, low=0.0, high=1.0, closed=True)
        w, v = self.quantile
        if query.joint and all(grid.is_plain(x, lambda _: True) for x in (w, v)) and w != v:
            raise ValueError("adaptive.quantile must be the same for both players of a joint clip, "
                             f"which has one count, got {self.quantile!r}.")
        if not query.exact or query.bands != 1:
            raise ValueError("adaptive clip norms need exact=True and bands=1: counts have integer "
                             "noise, and noise in units of changing clip norms does not cancel.")

    def counts(self, query: Any) -> int:
        """The number of counts: one for each clip norm, or for both together."""
        return 1 if query.joint else sum(clip is not None for clip in query.clip)


def count_grid(z: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
    """The units a of a record, and L, int32 `[]`, for a multiplier and the most rows of a sum.

    `a` is 0 where no integer noise is large enough: for multipliers above 2^22.
    """
    # a <= 2^most, and a count of all rows in these units has 30 bits
    unit_bits = min(18, 30 - int(rows).bit_length())
    # 2^L / z_b in (2^(most - 1), 2^most], but at least 1
    bits = jnp.clip(jnp.frexp(z)[1].astype(jnp.int32) - 1 + max(unit_bits, 1), 0, grid.MOST_BITS)
    # a <= 2^L / z_b, rounded down: a record moves a count by less, at the same noise. The margin
    # covers the roundings of z_b in float32.
    margin = 1 + 2.0**-20
    units = jnp.floor((1 << bits).astype(jnp.float32) / (jnp.where(z == 0, 1.0, z) * margin))
    units = jnp.clip(units, 0, 2.0**unit_bits).astype(jnp.int32)
    return jnp.where(z == 0, 1, units), bits


@pytree_dataclass
class Query(OneRelease):
    """Releases both players' clipped sums of per-record operators over one shared sample.

    Attributes:
      clip: per player, bound on the L2 norm of one record's operator [gradient units]. None for
        a player whose operator reads no data: it is neither computed, nor made noisy, nor charged.
      noise_multiplier: per player, standard deviation of the noise on the clipped sum / clip
        [dimensionless]; None where the clip is. Set by `calibrate`, which keeps the ratio between
        the players. None before calibration: `release` then refuses.
      sampling: `Full()`, `Poisson(rate=...)`, `CyclicPoisson(rate=..., parts=...)`,
        `FixedSize(batch=...)` or `Disjoint(batch=...)`.
      population: n, the number of records; public.
      joint: one clip for both players: a record's operator g is scaled so that
        sum_p (||g_p|| / C_p)^2 <= 1, instead of ||g_p|| <= C_p for each p. It costs as much as the
        player with the smaller noise multiplier alone, and keeps the operator's direction.
      parameters: d, at least the numbers that a release has, both players together; public. The
        sum is rounded to a grid, which costs a little that grows with d; a release of more numbers
        is refused.
      exact: whether the noise is an integer multiple of the grid, added without rounding. If not,
        it is a floating-point number: quicker for large models, and open to attacks on its last
        bits.
      bands: p. Above 1 the noise of the releases is correlated, so that most of it cancels in their
        sum: each one's is a combination of the latest p independent draws, of which
        `noise_multiplier` is the size; see `factorisation`. For `Disjoint` batches of whole data,
        in the same order in every pass, of which `planned_bands(times, n // batch)` is a good
        number; and for `CyclicPoisson` samples, where it divides the number of parts.
      adaptive: how clip norms follow a quantile of the records' norms, from `clip` on; for `sgda`.
        None for fixed clip norms.
      distance: per player, D, a proven bound on how far apart two records' clipped operators lie,
        and on the length of each, in [C, 2 C] [gradient units]. None for 2 C, which needs no proof.
        The clip norm C stays what a record may add, and the noise C times the multiplier; what is
        charged is mu = (D / C) / z a release. For one player, `Full()`, replaced records,
        independent noise and a fixed clip norm. k replaced records move a sum by k D at most.
      because: why the distance holds, a sentence for the statement: it is a fact of the operator,
        which a description cannot see.

    Examples:
        >>> query = jmm.Query(clip=Saddle(5.0, 1.0), noise_multiplier=Saddle(20.0, 20.0),
        ...                   sampling=jmm.Poisson(rate=0.01), population=20_000)
        >>> jmm.epsilon(jmm.Repeat(query=query, times=100), 1e-6) < 1
        True
    """

    clip: Saddle
    noise_multiplier: Saddle | None = None
    population: int = jax.tree.static()
    joint: bool = jax.tree.static(default=False)
    exact: bool = jax.tree.static(default=True)
    bands: int = jax.tree.static(default=1)
    adaptive: AdaptiveClip | None = None
    distance: Saddle | None = None
    because: str = jax.tree.static(default="")

    sum_of_sample = True

    def check_own(self) -> None:
        """Refuses clip norms and noise that no release should start from."""
        for name in ("clip", "noise_multiplier"):
            value = getattr(self, name)
            if not (isinstance(value, Saddle) or (name == "noise_multiplier" and value is None)):
                raise ValueError(f"{name} must be a Saddle, one number for each player, got "
                                 f"{value!r}.")
        if self.clip.w is None and self.clip.v is None:
            raise ValueError("clip is None for both players: nothing would be released.")
        if not isinstance(self.joint, bool):
            raise ValueError(f"joint must be True or False, got {self.joint!r}.")
        if self.joint and None in self.clip:
            raise ValueError(f"joint=True needs a clip norm for both players, got {self.clip!r}: "
                             "leave joint out where one player reads no data.")
        for name, clip in self.clip._asdict().items():
            if clip is not None:
                checks.number(f"clip.{name}", clip, low=1e-28, high=1e28, closed=True,
                              infinite=True)
        if self.adaptive is not None:
            if not isinstance(self.adaptive, AdaptiveClip):
                raise ValueError("adaptive must be an AdaptiveClip(quantile=..., rate=..., "
                                 f"share=...) or None, got {self.adaptive!r}.")
            self.adaptive.check(self)
        self._check_distance()
        if self.noise_multiplier is None:
            return
        for name, clip in self.clip._asdict().items():
            z = getattr(self.noise_multiplier, name)
            if (z is None) != (clip is None):
                raise ValueError(f"clip.{name} is {clip!r} but noise_multiplier.{name} is {z!r}: "
                                 "a player is released with both or with neither.")
            if z is not None:
                grid.check_multiplier(f"noise_multiplier.{name}", z)
                if grid.is_plain(z, lambda x: x > 0) and grid.is_plain(clip, math.isinf):
                    raise ValueError(f"clip.{name} is infinite, so no noise can cover it: give a "
                                     f"finite clip norm, or noise_multiplier.{name}=0.0.")

    def _check_distance(self) -> None:
        """Refuses a distance that cannot be, has no reason, or is of a release without a proof."""
        if self.distance is None:
            if self.because:
                raise ValueError(f"because={self.because!r} is the reason of a distance: give it, "
                                 "or leave because out.")
            return
        if not isinstance(self.distance, Saddle) or [x is None for x in self.distance] != [
                x is None for x in self.clip] or None not in self.clip:
            raise ValueError("distance must be a Saddle with one number, for the one player that "
                             f"has a clip norm, got {self.distance!r} for clip={self.clip!r}.")
        for name, clip in self.clip._asdict().items():
            if clip is not None:
                distance = getattr(self.distance, name)
                checks.number(f"distance.{name}", distance, low=0.0)
                if grid.is_plain(clip, lambda _: True) and not clip <= distance <= 2 * clip:
                    raise ValueError(f"distance.{name} must be in [C, 2 C] of clip.{name} = C = "
                                     f"{clip!r}, got {distance!r}: a record without an operator "
                                     "adds 0, and two of length C are at most 2 C apart.")
        if not isinstance(self.sampling, Full) or self.adaptive or self.bands != 1:
            raise ValueError("distance has a proof for Full() alone, with a fixed clip norm and "
                             f"bands=1, got {self.sampling!r}, adaptive={self.adaptive!r} and "
                             f"bands={self.bands}: leave it out.")
        if not isinstance(self.because, str) or not self.because:
            raise ValueError("because must say why the distance holds, in a sentence for the "
                             f"statement, got {self.because!r}.")

    def facts(self, repeat: Repeat) -> description.Facts:
        """States the facts of the clipped sums of both players."""
        facts = super().facts(repeat)._replace(clip=self.clip, joint=self.joint)
        if self.distance is not None:
            if repeat.parts > 1:
                raise ValueError(f"distance is for the data as a whole, got {repeat.parts} parts: "
                                 "leave it out.")
            (moves,) = (d / c for d, c in zip(self.distance, self.clip, strict=True)
                        if c is not None)
            return facts._replace(unit=costs.Unit("gaussian", moves))
        if self.adaptive is None:
            return facts
        return facts._replace(counts=self.adaptive.counts(self), share=self.adaptive.share)

    def supports_group_privacy(self, repeat: Repeat) -> bool:
        """Yes: j records of a sample move both players' sums by at most j times what one does.

        The pairs for k records rest on that alone, whatever else is in the sample.
        """
        return True

    def with_noise(self, scale: float) -> Self:
        """Scales every player's noise."""
        self.check_own()
        ratio = self.noise_multiplier
        if ratio is None:
            ratio = Saddle(*(None if c is None else 1.0 for c in self.clip))
        scaled = jax.tree.map(lambda x: float(x) * scale, ratio)
        return dataclasses.replace(self, noise_multiplier=scaled)

    def words(self, repeat: Repeat) -> sentences.Words:
        """States the number of sums, their samples, and the clip norms of operators."""
        clip = ", one clip for both players together" if self.joint else ""
        correlation, restart = self.correlation(), self.restart()
        if correlation is not None:
            moves = correlation.column(correlated.Bands(self.bands, repeat.times, self.parameters))
            anew = "" if restart is None else f", which begins anew every {restart} releases"
            clip += (f", with correlated noise by {self.bands} bands of the inverse square root"
                     f"{anew}; a record moves what the noise is made of by {moves:.6g} times "
                     "itself")
        if self.adaptive is not None:
            clip += (f", each with {self.adaptive.counts(self)} noisy count(s) of the records "
                     "within the clip norms, which start at the stated ones and follow the counts")
        assumed: tuple[str, ...] = ()
        if self.distance is not None:
            (distance,) = description.by_player(self.distance).values()
            clip += f", of which two are at most {distance:.6g} apart"
            assumed = (f"Clipped operators of two records are at most {distance:.6g} apart, and "
                       f"none is longer: {self.because}",)
        enforced = (sentences.CLIPPED, *(sentences.FOLLOWED,) * (self.adaptive is not None),
                    *(sentences.REGENERATED,) * (self.bands > 1))
        # without a distance nothing is assumed: whatever a record contains, what it adds is clipped
        return sentences.Words(f"{sampled_words(repeat)}{clip}.", enforced, assumed,
                               clips=description.by_player(self.clip))
