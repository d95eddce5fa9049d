"""Prefix sums of records that are read once, with correlated noise; see `factorisation`."""

import math

import jax

from jaxminimax.base import checks
from jaxminimax.base.types import pytree_dataclass
from jaxminimax.mechanism import costs, factorisation, sentences
from jaxminimax.mechanism._checks import check_bound, check_grid, check_multiplier
from jaxminimax.mechanism._grid import PARAMETERS
from jaxminimax.mechanism.costs import CLIP_NORM, Charge
from jaxminimax.mechanism.factorisation import check_bands, norms, planned_bands
from jaxminimax.mechanism.stream import LeafSums, TreeSums

_LONG = 2**18  # leaves; for as many a tree is better than the bands that are planned


@pytree_dataclass
class CorrelatedSums(LeafSums):
    """All prefix sums of one pass of clipped vectors, by bands of the inverse square root.

    The noise of a leaf is a combination of `bands` independent Gaussian vectors, of which the next
    leaf shares all but one, so that most of it cancels in the sum. At equal privacy a prefix sum is
    about 2.2 times less noisy than a binary tree's (`docs/accounting.md` has a table); a leaf draws
    `bands` vectors, where a tree draws two.

    Attributes:
      clip: bound on the L2 norm of a leaf's per-record vector.
      noise_multiplier: standard deviation of an independent vector's noise over the clip norm.
      leaves: Q, the number of leaves; a shorter run is a prefix, and costs as much.
      bands: p; a tenth of the leaves is enough, and all of them are the square root itself.
      parameters: as in `Query`.
      exact: as in `Query`.

    Examples:
        >>> sums = jmm.mechanism.CorrelatedSums(clip=1.0, leaves=1000, bands=64)
        >>> sums = jmm.accounting.calibrate_noise(sums, epsilon=1.0, delta=1e-6)
        >>> 0.998 < jmm.epsilon(sums, 1e-6) <= 1
        True
    """

    clip: float | jax.Array
    noise_multiplier: float | jax.Array | None = None
    leaves: int = jax.tree.static()
    bands: int = jax.tree.static(default=128)
    parameters: int = jax.tree.static(default=PARAMETERS)
    exact: bool = jax.tree.static(default=True)

    def check(self) -> None:
        """The leaves, the bands, the clip norm and the noise."""
        check_grid(self.exact, self.parameters)
        checks.count("leaves", self.leaves)
        check_bands(self.bands, self.leaves, self.parameters)
        check_bound("clip", self.clip)
        check_multiplier("noise_multiplier", self.noise_multiplier)

    def charged(self, neighbours: str) -> float:
        """That of a sum, and what rounding the noise's combinations may move."""
        z = self.multiplier()
        return factorisation.charged_correlated(z, costs.charged(z, CLIP_NORM, self.parameters),
                                                self.leaves, self.bands, self.parameters)

    def cost(self, z: float) -> Charge:
        """One Gaussian, of the column's length."""
        return costs.gaussian(1, z / self.moves(), CLIP_NORM)

    def realised(self) -> Charge:
        """A record is rounded once, combinations in two bounds; it moves all later numbers."""
        return costs.realised(self.exact, near=3, normals=self.leaves * self.parameters)

    def moves(self) -> float:
        """How far a record moves the independent noise, over twice the clip norm: ||c||."""
        return norms(self.leaves, self.bands).column

    def spread(self) -> float:
        """Largest deviation of a prefix sum's noise, over that of the multiplier."""
        return norms(self.leaves, self.bands).prefix

    def in_words(self) -> str:
        """How many leaves and bands, and how far a record moves the noise."""
        return (f"All prefix sums over {self.leaves} leaves with correlated noise, by "
                f"{min(self.bands, self.leaves)} band(s) of the inverse square root; a record "
                f"moves what the noise is made of by {self.moves():.6g} times its leaf.")

    def guarantees(self) -> tuple[str, ...]:
        """That leaves are clipped, and noise is drawn anew."""
        return (sentences.CLIPPED, sentences.REGENERATED)


PrefixSums = TreeSums | CorrelatedSums


def sums_for(clip: float | jax.Array, leaves: int, parameters: int = 1) -> PrefixSums:
    """Noisy prefix sums with the least noise at equal privacy, by public numbers.

    Those of `planned_bands`, or a tree where that is better, as it is beyond some 10^5 leaves.

    Args:
      clip: of a leaf.
      leaves: Q.
      parameters: numbers of a release.

    Examples:
        >>> type(jmm.mechanism.sums_for(1.0, leaves=1000)).__name__
        'CorrelatedSums'
    """
    tree = TreeSums(clip=clip, leaves=leaves)
    if leaves >= _LONG:
        return tree
    made = CorrelatedSums(clip=clip, leaves=leaves,
                          bands=planned_bands(leaves, None, parameters))
    known = norms(leaves, made.bands)
    # of a tree's sums, the mean over t of the number of bits of t
    if known.column * known.mean_prefix >= tree.moves() * math.sqrt(_mean_bits(leaves)):
        return tree
    return made


def _mean_bits(leaves: int) -> float:
    """The mean number of bits that are set in 1, ..., Q."""
    total = 0
    for bit in range(leaves.bit_length()):
        whole, rest = divmod(leaves + 1, 2 ** (bit + 1))
        total += whole * 2**bit + max(0, rest - 2**bit)
    return total / leaves
