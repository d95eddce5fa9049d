"""Releases whose noise is correlated by a matrix factorisation, so that it cancels in their sums.

Let S be the matrix of prefix sums, Q by Q, and S = B C with lower triangular Toeplitz factors.
Released is how the noisy prefix sums S g + B zeta grow, zeta independent of deviation sigma:

    h_t = g_t + (R zeta)_t,     R = C^-1,     (R zeta)_t = sum over 0 <= k < p of r_k zeta_{t-k}.

The square root S = C C has for r the series of (1 - x)^(1/2). Here its first p bands are kept, so
that the noise of a release is made of the p latest zeta, each a function of the key and its number.
No state holds past noise: a reader of states could subtract it.

The charge. C h = C g + zeta is as much as h. A record enters leaf s alone; given equal releases so
far, replacing it moves (C g)_t by c_{t-s} d with ||d|| <= 2 clip, d fixed when leaf s is read, and
every other leaf is the same function of what was released. So on each path the squared shifts add
up to at most K^2 = (2 clip ||c||)^2; one further coordinate fills them up to K^2. Then the
log-likelihood ratio is a constant plus V = sum <shift_t, zeta_t>, whose every term is normal given
the past, and from the last term on E exp(i l V + l^2 sigma^2 K^2 / 2) = 1: V is normal. That is one
Gaussian mechanism of mu = 2 ||c|| / z, z = sigma / clip, for leaves chosen by looking. If a record
enters every b-th leaf, ||c|| becomes the length of the sum of their columns: as 1 / c(x) is
1 - sum |r_k| x^k, no c_k is negative, so a common direction, and the first leaf as the record's
first, are the worst.

With integers. Sums are integers I_t on a grid, zeta_t = floor(2^L G_t) with normal G_t, and
r_k = a_k / 2^17 with integers a_k. For U_t uniform on {0, ..., 2^17 - 1}, fresh for every number,

    X_t = zeta_t + f_t,     f_t = floor((U_t + sum over 0 < k < p of a_k zeta_{t-k}) / 2^17),

is computed without rounding, and I_t + X_t is released, with U. X determines zeta, one after the
other. So given the data and what was released before, f_t is known, and the release is
floor((I_t + f_t) + 2^L G_t): the floor of a real Gaussian mechanism on integers. For equal releases
on neighbours, let v_t be by how much zeta_t differs, D_t = I_t - I'_t. Then

    v_t = D_t - (sum over k > 0 of r_k v_{t-k}) + y_t,     that is     v = C (D + y),

and y_t, what the floors add, takes two adjacent values of mean 0 in every number, independently,
given the past. So E exp<F, y> <= exp(||F||^2 / 8) for a fixed matrix F; mixed over normal F this
bounds E exp(l ||C y||^2) by what it is for normal y of variance 1/4, and with probability at least
1 - e^-u, by Laurent and Massart's inequality,

    ||C y|| <= m + n,    m = (d sum_t ||C[:, t]||^2)^(1/2) / 2,    n = (2 u)^(1/2) (sum_k c_k) / 2,

d the numbers of a release: no eigenvalue of C C^T is above (sum_k c_k)^2. If the record enters one
leaf, D is fixed before the y_t that matter, and 2 <C D, C y> <= 2 n ||C D|| but with probability
e^-u. Hence, with H = ||c|| ||D||,

    ||v||^2 <= H^2 + 2 n H + (m + n)^2;     if it enters several,  ||v|| <= H + m + n.

Both are charged with u = 72, once for each number of releases after which the run may be stopped by
looking, as some filters charge no more than was released. A path where that would be exceeded
counts as a failure: let the second data set answer like the first from there on, which changes no
other path. If k records differ, v is the sum of the shifts of a chain of k replacements; as the y_t
of each have mean 0 given the past, whichever data set answered, v is at most k times as long, and
failures are k times as likely.

Sources: Denisov, McMahan, Rush, Smith and Thakurta, "Improved differential privacy for SGD via
optimal private linear operators on adaptive streams", NeurIPS 2022, for adaptive leaves;
Fichtenberger, Henzinger and Upadhyay, "Constant matters", ICML 2023, for the square root;
Kalinin, McKenna, Upadhyay and Lampert, "Back to square roots", arXiv:2505.12128, for bands of its
inverse. The argument with integers is this library's.
"""

import functools
import math
from typing import NamedTuple

import jax
import numpy as np
import scipy

from jaxminimax.base import checks
from jaxminimax.base.types import Saddle, pytree_dataclass
from jaxminimax.mechanism import costs, grid, sentences
from jaxminimax.mechanism.description import Facts, Kind, Once
from jaxminimax.mechanism.sentences import Words

__all__ = ["CorrelatedSums", "TreeSums", "planned_bands", "sums_for"]

FRACTION = 17  # bits after the point of a coefficient
TOGETHER = 32  # releases whose independent numbers are one draw
MOST_BANDS = 2**16  # sums of so many products have 32 bits


@functools.lru_cache(maxsize=64)
def coefficients(bands: int) -> np.ndarray:
    """Returns a_k = 2^17 r_k, k < p, int32; all but the first are in (-2^17, 0].

    The first k + 1 of them add up to the nearest integer to 2^17 binom(2k, k) / 4^k, so all sums of
    them are as near to the series' as integers can be.
    """
    k = np.arange(1, bands)
    # the series of (1 - x)^(1/2) is that of (1 - x)^(-1/2), whose terms these are, differenced
    sums = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    rounded = np.diff(np.round(2.0**FRACTION * sums), prepend=0.0).astype(np.int32)
    rounded.setflags(write=False)
    return rounded


class Norms(NamedTuple):
    """Numbers of a factorisation that the charge is made of, rounded up.

    Attributes:
      column: length of the sum of the columns of C that one record is in.
      trace: sum of the squared lengths of all columns.
      total: sum of c_k, above the norm of C.
      prefix: deviation of the noise on the last, and noisiest, prefix sum; zeta's is 1.
      mean_prefix: root of the mean variance of all prefix sums' noise.
    """

    column: float
    trace: float
    total: float
    prefix: float
    mean_prefix: float


@functools.lru_cache(maxsize=256)
def norms(releases: int, bands: int, apart: int | None = None) -> Norms:
    """The norms of that many releases; a record is in one, or in every `apart`-th.

    All terms of the recursion for c are positive, and p of them and their products are rounded in
    each of at most Q steps of it.
    """
    a = coefficients(min(bands, releases)) / 2.0**FRACTION  # exact
    # c = 1 / r as power series: the recursion of a filter that one impulse is sent through
    column = scipy.signal.lfilter([1.0], a, np.eye(1, releases)[0])
    spacing = min(apart or releases, releases)
    # column t - every, t - 2 every, ... of the one at t
    padded = np.pad(column, (0, -releases % spacing)).reshape(-1, spacing)
    summed = np.cumsum(padded, 0).ravel()[:releases]
    # all terms are positive, so roundings are relative: p + 2 in each of Q steps, and 64 more
    above = 1 + 2.0**-51 * (releases * (bands + 2) + 64)
    sums = np.cumsum(a)
    # the noise of prefix sum t is zeta times the partial sums of r; their squares add up
    squares = np.square(np.concatenate([sums, np.full(releases - len(sums), sums[-1])]))
    variances = np.cumsum(squares)
    # column k of C has Q - k entries c_0, c_1, ...: sum of squares (Q - k) c_k^2 in all
    return Norms(*(float(x) * above for x in (
        np.sqrt(np.sum(np.square(summed))),
        np.sum(np.arange(releases, 0, -1) * np.square(column)), np.sum(column),
        np.sqrt(variances[-1]), np.sqrt(np.mean(variances)))))


def charged_correlated(z: float, real: float, releases: int, bands: int, parameters: int, *,
                       smallest: float | None = None, apart: int | None = None,
                       absent: bool = False) -> float:
    """The multiplier of real correlated noise that is no more private than integer noise of `z`.

    Args:
      z: noise over clip norm, players combined.
      real: `costs.charged` of it, which a release's own rounding is in.
      releases: Q.
      bands: p.
      parameters: d.
      smallest: the smallest multiplier of a player; None: z.
      apart: each record is read exactly every `apart` releases; None for once.
      absent: whether sums without the record are compared with.
    """
    if z == 0 or bands == 1:
        return real
    factor_norms = norms(releases, bands, apart)
    # lengths below are in units of the grid, of which noise has 2^L a deviation
    unit = 2.0 ** grid.grid_bits(z if smallest is None else smallest, parameters)
    moved = factor_norms.column * (1 if absent else 2) * unit / real  # H
    deviation = factor_norms.total * math.sqrt(2 * 72) / 2  # n; e^-72 is half of DITHER_FAILURE
    spread = math.sqrt(parameters * factor_norms.trace) / 2 + deviation  # m + n
    if apart is None or apart >= releases:
        # ||v||^2 <= H^2 + 2 n H + (m + n)^2, for a record of one leaf
        length = math.sqrt(moved * (moved + 2 * deviation) + spread**2)
    else:
        # ||v|| <= H + m + n, for a record of several leaves
        length = moved + spread
    # of the multiplier a part H / ||v|| is left, rounded down
    return real * (moved / length) * (1 - 1e-15)


def check_bands(bands: int, releases: int, parameters: int) -> None:
    """Refuses what neither norms nor draws are made for."""
    checks.count("bands", bands)
    if bands > MOST_BANDS:
        raise ValueError(f"bands must be at most {MOST_BANDS}, got {bands}: a release draws as "
                         "many numbers for each of its own.")
    most_leaves = 2**20  # so that norms take a second
    if releases > most_leaves:
        raise ValueError(f"Correlated noise is for at most {most_leaves} releases, got "
                         f"{releases}: use TreeSums, or independent noise.")
    if parameters * TOGETHER >= 2**31 - 32:
        raise ValueError(f"parameters must be below 2**26 - 1 for correlated noise, got "
                         f"{parameters}: {TOGETHER} releases draw in one go.")


def planned_bands(releases: int, apart: int | None = None, parameters: int = 1) -> int:
    """Plans bands by public numbers: a power of two up to 512, within a twentieth of the best.

    The measure is the root of the mean variance of prefix sums at equal privacy; a release draws
    about 2^15 numbers at most.

    Args:
      releases: Q, the number of releases.
      apart: each record is read exactly every `apart` releases: n // b for disjoint batches of b
        records; None if each is read once.
      parameters: the numbers of a release.

    Examples:
        >>> jmm.mechanism.planned_bands(1000) > 1
        True
    """
    # a release draws at most 2^15 numbers, which take a quarter of a millisecond
    largest = min(512, releases, max(1, 2**15 // parameters))
    errors = {}
    for bands in (2**k for k in range(largest.bit_length())):
        factor_norms = norms(releases, bands, apart)
        errors[bands] = factor_norms.column * factor_norms.mean_prefix
    best = min(errors.values())
    return next(bands for bands, error in errors.items() if error <= 1.05 * best)


@pytree_dataclass
class TreeSums(Once):
    """All prefix sums of one pass of clipped vectors, by a binary tree of Gaussian sums (DP-FTRL).

    A record is in one leaf, hence in ceil(log2(leaves + 1)) nodes; replacing it moves each of them
    by at most twice the clip norm. (The published guarantee replaces it by zero: half of that.)

    Attributes:
      clip: bound on the L2 norm of a leaf's per-record vector.
      noise_multiplier: standard deviation of a node's noise over the clip norm.
      leaves: Q, the number of leaves.
      parameters: the largest number of numbers that a release has; public.
      exact: whether the noise is added as integers, without rounding, or in floating point.

    Examples:
        >>> tree = jmm.mechanism.TreeSums(clip=1.0, noise_multiplier=20.0, leaves=1000)
        >>> round(jmm.epsilon(tree, 1e-6), 2)  # a record is in ten of the tree's nodes
        1.37
    """

    clip: float | jax.Array
    noise_multiplier: float | jax.Array | None = None
    leaves: int = jax.tree.static()
    parameters: int = jax.tree.static(default=grid.PARAMETERS)
    exact: bool = jax.tree.static(default=True)

    kind = Kind.LEAF

    def check(self) -> None:
        """The leaves, the clip norm and the noise."""
        grid.check_grid(self.parameters, self.exact)
        grid.check_times("leaves", self.leaves)
        grid.check_bound("clip", self.clip)
        grid.check_multiplier("noise_multiplier", self.noise_multiplier)

    def moves(self) -> float:
        """The distance that a record moves the nodes, over twice the clip norm."""
        # ceil(log2(Q + 1)) nodes move by 2 clip each, and squares add up
        return math.sqrt(self.leaves.bit_length())

    spread = moves  # largest deviation of a prefix sum's noise, over that of the multiplier

    def facts(self) -> Facts:
        """A record is rounded once, in its leaf, and noised in each of its nodes."""
        nodes = self.leaves.bit_length()
        return Facts(costs.CLIP_NORM, self.leaves, nodes, numbers=nodes * self.parameters, near=1,
                     noise=self.noise_multiplier, parameters=self.parameters, exact=self.exact,
                     clip=Saddle(self.clip, self.clip), joint=True)

    def words(self) -> Words:
        """States the number of leaves and nodes."""
        return Words(f"All prefix sums over {self.leaves} leaves by a binary tree of Gaussian "
                     f"sums; a record is in {self.leaves.bit_length()} of its nodes.",
                     (sentences.CLIPPED,), (sentences.PLACES,))


@pytree_dataclass
class CorrelatedSums(Once):
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
      parameters: the largest number of numbers that a release has; public.
      exact: whether the noise is added as integers, without rounding, or in floating point.

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
    parameters: int = jax.tree.static(default=grid.PARAMETERS)
    exact: bool = jax.tree.static(default=True)

    kind = Kind.LEAF

    def check(self) -> None:
        """The leaves, the bands, the clip norm and the noise."""
        grid.check_grid(self.parameters, self.exact)
        checks.count("leaves", self.leaves)
        check_bands(self.bands, self.leaves, self.parameters)
        grid.check_bound("clip", self.clip)
        grid.check_multiplier("noise_multiplier", self.noise_multiplier)

    def effective_noise_multiplier(self, neighbours: str) -> float:
        """The multiplier of a sum, less what rounding the noise's combinations may move."""
        return charged_correlated(self.multiplier(), super().effective_noise_multiplier(neighbours),
                                  self.leaves, self.bands, self.parameters)

    def moves(self) -> float:
        """The distance ||c|| that a record moves the independent noise, in twice the clip norm."""
        return norms(self.leaves, self.bands).column

    def spread(self) -> float:
        """Largest deviation of a prefix sum's noise, over that of the multiplier."""
        return norms(self.leaves, self.bands).prefix

    def facts(self) -> Facts:
        """A record is rounded once, combinations in two bounds; it moves all later numbers."""
        return Facts(costs.CLIP_NORM, self.leaves, 1, numbers=self.leaves * self.parameters, near=3,
                     length=self.moves(), noise=self.noise_multiplier, parameters=self.parameters,
                     exact=self.exact, clip=Saddle(self.clip, self.clip), joint=True)

    def words(self) -> Words:
        """States the number of leaves and bands, and how far a record moves the noise."""
        return Words(f"All prefix sums over {self.leaves} leaves with correlated noise, by "
                     f"{min(self.bands, self.leaves)} band(s) of the inverse square root; a record "
                     f"moves what the noise is made of by {self.moves():.6g} times its leaf.",
                     (sentences.CLIPPED, sentences.REGENERATED), (sentences.PLACES,))


PrefixSums = TreeSums | CorrelatedSums


def sums_for(clip: float | jax.Array, leaves: int, parameters: int | None = None) -> PrefixSums:
    """Noisy prefix sums with the least noise at equal privacy, by public numbers.

    Those of `planned_bands`, or a tree where that is better, as it is beyond some 10^5 leaves.

    Args:
      clip: of a leaf.
      leaves: Q.
      parameters: the largest number of numbers that a release has: rounding is charged for as
        many, and larger releases are refused. None for 2^20.

    Examples:
        >>> type(jmm.mechanism.sums_for(1.0, leaves=1000)).__name__
        'CorrelatedSums'
    """
    most_parameters = grid.PARAMETERS if parameters is None else parameters
    tree = TreeSums(clip=clip, leaves=leaves, parameters=most_parameters)
    # for as many leaves a tree is better than the bands that are planned
    if leaves >= 2**18:
        return tree
    banded = CorrelatedSums(clip=clip, leaves=leaves, parameters=most_parameters,
                            bands=planned_bands(leaves, None, parameters or 1))
    factor_norms = norms(leaves, banded.bands)
    # of a tree's sums, the mean over t = 1, ..., Q of the number of bits that are set in t
    bits = float(np.mean(np.bitwise_count(np.arange(1, leaves + 1))))
    if factor_norms.column * factor_norms.mean_prefix >= tree.moves() * math.sqrt(bits):
        return tree
    return banded
