"""Clipped sums of both players' operators over one shared sample."""

import dataclasses
import math
from typing import Self

import jax

from jaxminimax.base import checks
from jaxminimax.base.types import Saddle, pytree_dataclass
from jaxminimax.mechanism import costs, sentences
from jaxminimax.mechanism._checks import check_multiplier, is_plain
from jaxminimax.mechanism._grid import PARAMETERS
from jaxminimax.mechanism.adaptive import AdaptiveClip, count_multiplier
from jaxminimax.mechanism.composed import Repeat
from jaxminimax.mechanism.costs import CLIP_NORM, REPLACE_ONE, Charge, concrete
from jaxminimax.mechanism.description import OneRelease, check_noise, replace_one_only
from jaxminimax.mechanism.factorisation import check_bands, cost_of_passes, norms
from jaxminimax.mechanism.passes import Full
from jaxminimax.mechanism.row_numbers import NARROW
from jaxminimax.mechanism.sampling import Sampling, known_sampling


@pytree_dataclass
class Query(OneRelease):
    """Release both players' clipped sums of per-record operators over one shared sample.

    Attributes:
      clip: per player, bound on the L2 norm of one record's operator [gradient units]. None for
        a player whose operator reads no data: it is neither computed, nor noised, nor charged.
      noise_multiplier: per player, standard deviation of the noise on the clipped sum / clip
        [dimensionless]; None where the clip is. Set by `calibrate`, which keeps the ratio between
        the players. None altogether: not calibrated yet, and `release` refuses.
      sampling: `Full()`, `Poisson(rate=...)`, `FixedSize(batch=...)` or `Disjoint(batch=...)`.
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
        `noise_multiplier` is the size; see `factorisation`. For `Disjoint` batches of whole data
        only, in the same order in every pass; `planned_bands(times, n // batch)` is a good number.
      adaptive: how clip norms follow a quantile of the records' norms, from `clip` on; for `sgda`.
        None: they stay.

    Examples:
        >>> query = jmm.Query(clip=Saddle(5.0, 1.0), noise_multiplier=Saddle(20.0, 20.0),
        ...                   sampling=jmm.Poisson(rate=0.01), population=20_000)
        >>> jmm.epsilon(jmm.Repeat(query=query, times=100), 1e-6) < 1
        True
    """

    clip: Saddle
    noise_multiplier: Saddle | None = None
    sampling: Sampling = Full()
    population: int = jax.tree.static()
    joint: bool = jax.tree.static(default=False)
    parameters: int = jax.tree.static(default=PARAMETERS)
    exact: bool = jax.tree.static(default=True)
    bands: int = jax.tree.static(default=1)
    adaptive: AdaptiveClip | None = None

    def check(self, repeat: Repeat) -> None:
        """The sampling, clip norms and noise."""
        check_sampled(self, repeat)
        self.check_own()
        check_correlated(repeat)

    def check_own(self) -> None:
        """Refuses clip norms and noise that no release should start from."""
        for name in ("clip", "noise_multiplier"):
            given = getattr(self, name)
            if not (isinstance(given, Saddle) or (name == "noise_multiplier" and given is None)):
                raise ValueError(f"{name} must be a Saddle, one number for each player, got "
                                 f"{given!r}.")
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
            _known_adaptive(self.adaptive).check(self)
        if self.noise_multiplier is None:
            return
        for name, clip in self.clip._asdict().items():
            z = getattr(self.noise_multiplier, name)
            if (z is None) != (clip is None):
                raise ValueError(f"clip.{name} is {clip!r} but noise_multiplier.{name} is {z!r}: "
                                 "a player is released with both or with neither.")
            if z is not None:
                check_multiplier(f"noise_multiplier.{name}", z)
                if is_plain(z, lambda x: x > 0) and is_plain(clip, math.isinf):
                    raise ValueError(f"clip.{name} is infinite, so no noise can cover it: give a "
                                     f"finite clip norm, or noise_multiplier.{name}=0.0.")

    def charges(self, repeat: Repeat, neighbours: str) -> tuple[Charge, ...]:
        """One place for the differing record: the sample, of which both players' sums are one."""
        return sampled_charges(repeat, neighbours)

    def together(self, repeat: Repeat) -> bool:
        """Yes: j records of a sample move both players' sums by at most j times what one does.

        The pairs for k records rest on that alone, whatever else is in the sample.
        """
        return True

    def multiplier(self) -> float:
        """z_eff: one Gaussian as strong as both players' together, with their counts."""
        players = costs.combined((concrete(x) for x in check_noise(self) if x is not None),
                                 self.joint)
        if self.adaptive is None:
            return players
        return players * math.sqrt(1 - concrete(self.adaptive.share))

    def charged(self, neighbours: str) -> float:
        """Each player has a grid of its own, and the coarsest counts as if it were everybody's."""
        smallest = min(map(concrete, jax.tree.leaves(check_noise(self))))
        return costs.charged(self.multiplier(), CLIP_NORM, self.parameters, smallest=smallest,
                             absent=compares_absent(self, neighbours))

    def cost(self, times: int, z: float) -> Charge:
        """Told by the sampling, unless noise is correlated."""
        if self.bands == 1 or z == 0:
            return self.sampling.charge(times, z, self.population)
        smallest = min(map(concrete, jax.tree.leaves(check_noise(self))))
        return cost_of_passes(self.multiplier(), z, smallest, times, self.bands, self.parameters,
                              self.sampling.apart(self.population))

    def with_noise(self, scale: float) -> Self:
        """Every player's noise."""
        self.check_own()
        ratio = self.noise_multiplier
        if ratio is None:
            ratio = Saddle(*(None if c is None else 1.0 for c in self.clip))
        scaled = jax.tree.map(lambda x: float(x) * scale, ratio)
        return dataclasses.replace(self, noise_multiplier=scaled)

    def sampled_by(self, sampling: Sampling) -> Self:
        """Nothing else follows from the sampling."""
        return dataclasses.replace(self, sampling=sampling)

    def records(self) -> int:
        """The population."""
        return self.population

    def in_words(self, repeat: Repeat) -> str:
        """How many sums, over which samples."""
        clip = ", one clip for both players together" if self.joint else ""
        if self.bands > 1:
            moves = norms(repeat.times, self.bands, self.sampling.apart(self.population)).column
            clip += (f", with correlated noise by {self.bands} bands of the inverse square root; a "
                     f"record moves what the noise is made of by {moves:.6g} times itself")
        if self.adaptive is not None:
            clip += (f", each with {self.adaptive.counts(self)} noisy count(s) of the records "
                     "within the clip norms, which start at the stated ones and follow the counts")
        return f"{sampled_words(repeat)}{clip}."

    def guarantees(self) -> tuple[str, ...]:
        """That operators are clipped, by what, and correlated noise is drawn anew."""
        return (sentences.CLIPPED, *(sentences.FOLLOWED,) * (self.adaptive is not None),
                *(sentences.REGENERATED,) * (self.bands > 1))

    def assumptions(self) -> tuple[str, ...]:
        """Nothing: whatever a record contains, what it adds is clipped."""
        return ()

    def noise_multipliers(self) -> dict[str, float]:
        """By player, and of the counts."""
        found = _by_player(check_noise(self))
        if self.adaptive is not None:
            found["counts"] = concrete(count_multiplier(self))
        return found

    def clips(self) -> dict[str, float]:
        """By player."""
        return _by_player(self.clip)


def _known_adaptive(adaptive: AdaptiveClip) -> AdaptiveClip:
    if not isinstance(adaptive, AdaptiveClip):
        raise ValueError("adaptive must be an AdaptiveClip(quantile=..., rate=..., share=...) or "
                         f"None, got {adaptive!r}.")
    return adaptive


def _by_player(numbers: Saddle) -> dict[str, float]:
    return {name: concrete(x) for name, x in numbers._asdict().items() if x is not None}


# --- what every release on a sample of one data set shares ---


def check_sampled(query: OneRelease, repeat: Repeat) -> None:
    """Refuses a population, or samples of it, that indices of 32 bits do not reach."""
    n = query.population  # type: ignore[attr-defined]
    checks.count("population", n)
    rows = repeat.parts * n
    if repeat.parts > 1 and rows >= 2**31:
        raise ValueError(f"parts * population must be below 2**31, got {rows}: indices are "
                         "32-bit.")
    check_sampling(query.sampling, n, wide=isinstance(query, Query) and repeat.parts == 1)


def check_correlated(repeat: Repeat) -> None:
    """Refuses correlated noise where it is not known beforehand which releases read a record.

    Raises:
      ValueError: naming the fix.
    """
    query = repeat.query
    checks.count("bands", query.bands)
    if query.bands == 1:
        return
    if repeat.parts > 1 or known_sampling(query.sampling).apart(query.population) == 0:
        raise ValueError(f"bands={query.bands}, correlated noise, needs Disjoint batches of the "
                         f"whole data, got {query.sampling!r} and {repeat.parts} part(s): leave "
                         "bands out.")
    check_bands(query.bands, repeat.times, query.parameters)


def check_sampling(sampling: Sampling, population: int, wide: bool = False) -> None:
    """Refuses what is no sampling of so many records; `wide`: of 2^30 or more at all."""
    checks.count("population", population)
    most = known_sampling(sampling).most_records if wide else NARROW
    if population >= most:
        raise ValueError(
            f"population must be below 2**{most.bit_length() - 1}, got {population}: indices are "
            f"32-bit, for {sampling!r}. Of more records, sgda and others that release a Query take "
            "FixedSize(batch=..., replacement=True) or Disjoint(batch=...), with HostData.")
    known_sampling(sampling).check(population)


def sampled_charges(repeat: Repeat, neighbours: str) -> tuple[Charge, ...]:
    """The one charge of releases on samples, under a relation that the sampling has proofs for."""
    if repeat.parts > 1 or neighbours not in known_sampling(repeat.query.sampling).relations:
        replace_one_only(neighbours)
    check_relation(repeat.query.sampling, neighbours)
    return (costs.price(repeat, neighbours),)


def check_relation(sampling: Sampling, neighbours: str) -> None:
    """Refuses a relation that a sampling has no proof for, whichever it is.

    Raises:
      ValueError: naming those that it has.
    """
    offered = known_sampling(sampling).relations
    if neighbours not in offered:
        raise ValueError(f"{sampling!r} has no guarantee for neighbours={neighbours!r}, only for "
                         f"{', '.join(offered)}.")


def compares_absent(query: OneRelease, neighbours: str) -> bool:
    """Whether curves compare with the sum that a record takes no part in."""
    return neighbours != REPLACE_ONE or known_sampling(query.sampling).compares_absent


def sampled_words(repeat: Repeat, of: str = "") -> str:
    """So many releases, of what, on samples of such a kind."""
    query, times = repeat.query, f"{repeat.times} release(s)"
    if repeat.parts > 1:
        times += f" on each of {repeat.parts} disjoint parts of the data:"
    return f"{times}{of} on {query.sampling.in_words(repeat.times, query.population)}"


def batch_size(query: OneRelease) -> float:
    """The public number that a sum is divided by: n, q n or b; never the realised batch size.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000,
        ...                   sampling=jmm.Poisson(rate=0.05))
        >>> jmm.mechanism.batch_size(query)
        50.0
    """
    return known_sampling(query.sampling).batch_size(query.population)  # type: ignore[attr-defined]


def rows_read(query: OneRelease) -> int:
    """Rows of the fixed-shape batch that a release works on.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000,
        ...                   sampling=jmm.Poisson(rate=0.05))
        >>> jmm.mechanism.rows_read(query) > 50  # room for samples larger than expected
        True
    """
    return known_sampling(query.sampling).rows_read(query.population)  # type: ignore[attr-defined]
