"""Correlated noise on clipped sums of samples: where it is allowed, and what it is charged.

With the samples that amplify it, `CyclicPoisson`: Poisson samples of parts of the data in turn.

`factorisation` makes the noise of a release from the last p independent draws. A `Correlation` says
how a sampling's releases read a record, and with it whether the noise begins anew.

`Passes`: a record is in every `apart`-th release, which is public. The run is one Gaussian.

`InTurn`: records are cut by their numbers into as many parts as there are releases in a *window*,
releases [m w, (m + 1) w), and release t reads an independent Poisson sample, rate q, of part t mod
w. So each record has one coin in each window. The noise begins anew every p releases, p a divisor
of w: h_t = g_t + sum over 0 <= k <= t mod p of r_k zeta_{t-k}. So C is block diagonal with blocks
of p releases, and no block lies in two windows. The draw is that of `Poisson` among ceil(n / w)
numbers r, of which r w + (t mod w) is a row, and what is not below n is dropped: as if each part
had records that are absent. Absent records keep their numbers. With independent noise T releases
are ceil(T / w) Poisson samples of a part.

**Theorem.** Let k records be replaced, or be absent from one data set or the other, in any parts.
Let ||c|| be the length of C's first column, and z the noise over the clip norm. The view of T
releases, each chosen by looking at those before, is dominated for every hockey-stick divergence by
ceil(T / w) independent copies of the pair that is charged for one Poisson release, rate q, k
records, multiplier z / ||c||. For k > 1 no other mechanism on the same records may be asked between
the releases of a window; for k = 1 any may.

*Lemma.* Let zeta_t be standard normal given the past, V_{i,t} predictable, sum_t |V_{i,t}|^2 <=
K_i^2 on every path, x_i = exp(sum_t <V_{i,t}, zeta_t> - |V_{i,t}|^2 / 2), weights w_i >= 0, and the
indices two sets A and B. For every a > 0, E (sum_A w_i x_i - a sum_B w_i x_i)_+ is at most the same
with x_i = exp(+-K_i G - K_i^2 / 2), + in A, - in B, and one normal G.
*Proof.* Spread each round over unit time of a Brownian motion. Let s_i = K_i^2 + u less what is
used so far, u > 0, and Phi(s, x) = E F(x_i exp(e_i s_i^(1/2) G - s_i / 2)), F the positive part,
e_i = +-1 the side. What is in F grows strictly with G, so Phi is smooth and Phi_ij has the sign
e_i e_j. By Stein's identity dPhi/ds_i = (1/2) sum_j e_i e_j (s_j / s_i)^(1/2) x_i x_j Phi_ij. With
alpha_i = |V_i|^2 and gamma_ij = <V_i, V_j>, the drift of Phi(s, x) is

    (1/2) sum_{i != j} x_i x_j Phi_ij [gamma_ij - e_i e_j (alpha_i (s_j/s_i)^(1/2)
                                                        + alpha_j (s_i/s_j)^(1/2)) / 2] <= 0,

as |gamma_ij| <= (alpha_i alpha_j)^(1/2), at most that mean. Phi grows linearly in x, whose suprema
have all moments, so it is a supermartingale; at the end F <= Phi by Jensen. Let u fall to 0. QED

*Proof of the theorem.* Show the adversary the coins of all other records, too: their law is the
same on both data sets, and independent of the k records' coins and of zeta. C h = C g + zeta is as
much as h. In a window each of the k records has one coin. Given the set S of those that are hit,
what they add to C g is V_S = sum_{l in S} C[:, s_l] (x) d_l, with d_l a function of what was
released before s_l, also inside the window. All else is one function of the history on both data
sets. By Minkowski's inequality the squares of V_S add up to at most (|S| ||c|| / z)^2 on every
path, whatever is chosen. The lemma over all S, on one data set and the other, gives the pair;
smaller |S|, as samples that are drawn again have (`size_law`), are dominated. Windows follow each
other, and a window counts from its first release on. For k = 1 the record's d is fixed when it is
read, so that the whole window may be handed out then, and what others ask meanwhile is computed
from it. QED

With integers v = C (D + y) as in `factorisation`, D the distance from the sum *without* the record.
H = ||c|| ||D||, and K^2 = H^2 + 2 n H + (m + n)^2 bounds |v|^2 inside a block, for one record, but
with probability 2 e^-72. Paths on which this fails on one data set or the other answer from there
on as the world without the records does. That adds 4 e^-72 a window to delta, without e^epsilon.
If several records are hit, a later D follows earlier y. So go from the world of the hit records A
to that of A less its last record, one by one: this step is 0 before its D, which is known then, and
so at most K but with probability 2 e^-72. v_S is a sum of |S| steps. There are 2^k - 1 sets A, on
each data set, and these events come after the coins: 4 (2^k - 1) e^-72 a window, which is
`Charge.set_failure`.

Sources: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta and Xu, "(Amplified) banded matrix
factorization", NeurIPS 2023, arXiv:2306.08153, for one record that is added or removed and a banded
C. Replaced records, several records and integers are this library's.
"""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks, types
from jaxminimax.mechanism import costs, factorisation, grid, poisson, sentences
from jaxminimax.mechanism.costs import NEIGHBOURS, Charge
from jaxminimax.mechanism.sampling import Sample, SampleKeys, Sampling, WorstCase

__all__ = ["CyclicPoisson"]


class Bands(NamedTuple):
    """Releases whose noise is made of several independent draws each.

    Attributes:
      bands: p.
      releases: T.
      parameters: d.
    """

    bands: int
    releases: int
    parameters: int


class Noise(NamedTuple):
    """The size of the independent draws.

    Attributes:
      z: over the clip norm, players combined.
      real: as it is charged; everything but the correlated noise's own rounding is in it.
      smallest: the smallest multiplier of a player.
    """

    z: float
    real: float
    smallest: float


class Correlation(abc.ABC):
    """How a sampling's releases read a record, as far as correlated noise is concerned."""

    @abc.abstractmethod
    def check(self, banded: Bands) -> None:
        """Refuses bands that there is no proof for.

        Raises:
          ValueError: naming the fix.
        """

    @abc.abstractmethod
    def column(self, banded: Bands) -> float:
        """How far a record moves the independent draws, over what it moves a sum."""

    @abc.abstractmethod
    def restart(self, bands: int) -> int | None:
        """After how many releases the noise begins anew; None if it never does."""

    @abc.abstractmethod
    def cost(self, banded: Bands, noise: Noise, sampled: Callable[[float], Charge]) -> Charge:
        """Charges all releases.

        Args:
          banded: the releases.
          noise: on real numbers.
          sampled: the sampling's charge of them with independent noise, by its multiplier.
        """


@dataclasses.dataclass(frozen=True)
class Passes(Correlation):
    """Each record is read exactly every `apart` releases, and everybody may know by which."""

    apart: int

    def check(self, banded: Bands) -> None:
        """Refuses what neither norms nor draws are made for."""
        factorisation.check_bands(*banded)

    def column(self, banded: Bands) -> float:
        """The length of the sum of the columns of C that a record is in."""
        return factorisation.norms(banded.releases, banded.bands, self.apart).column

    def restart(self, bands: int) -> None:
        """The noise never begins anew."""

    def cost(self, banded: Bands, noise: Noise, sampled: Callable[[float], Charge]) -> Charge:
        """Charges one Gaussian; nothing is amplified."""
        ratio = factorisation.charged_correlated(noise.z, noise.real, banded.releases, banded.bands,
                                                 banded.parameters, smallest=noise.smallest,
                                                 apart=self.apart)
        # mu = 2 ||c|| / z; two bounds may fail for each number of releases a run may stop at
        return costs.gaussian(1, ratio / self.column(banded))._replace(
            failure=2 * grid.DITHER_FAILURE * banded.releases)


@dataclasses.dataclass(frozen=True)
class InTurn(Correlation):
    """Each record has one secret coin in each window of `parts` releases; see the module."""

    parts: int

    def check(self, banded: Bands) -> None:
        """Refuses bands whose blocks would lie in two windows."""
        checks.count("bands", banded.bands)
        if self.parts % banded.bands:
            raise ValueError(f"bands must divide the number of parts, {self.parts}, got "
                             f"{banded.bands}: the noise begins anew after so many releases, and a "
                             "record may be read once in between.")
        factorisation.check_bands(banded.bands, banded.bands, banded.parameters)

    def column(self, banded: Bands) -> float:
        """The length of the first column of a block."""
        return factorisation.norms(banded.bands, banded.bands).column

    def restart(self, bands: int) -> int:
        """A block of C has as many releases as bands."""
        return bands

    def mean_prefix(self, banded: Bands) -> float:
        """Root of the mean variance of the noise on all prefix sums; a draw's deviation is 1.

        Noise on the sum of r releases of a block has the variance V_r = S_0^2 + ... + S_(r-1)^2,
        S_k the sum of the first k + 1 coefficients; blocks are independent.
        """
        sums = np.cumsum(factorisation.coefficients(banded.bands)) / 2.0**factorisation.FRACTION
        block = np.concatenate([[0.0], np.cumsum(np.square(sums))])
        full, begun = np.divmod(np.arange(1, banded.releases + 1), banded.bands)
        return float(np.sqrt(np.mean(full * block[-1] + block[begun])))

    def cost(self, banded: Bands, noise: Noise, sampled: Callable[[float], Charge]) -> Charge:
        """Charges a Poisson pair for each window, of the noise over the column's length."""
        ratio = factorisation.charged_correlated(noise.z, noise.real, banded.bands, banded.bands,
                                                 banded.parameters, smallest=noise.smallest,
                                                 absent=True)
        windows = math.ceil(banded.releases / self.parts)
        return sampled(ratio / self.column(banded))._replace(
            set_failure=2 * grid.DITHER_FAILURE * windows)


@types.pytree_dataclass
class CyclicPoisson(Sampling):
    """Release t reads each record of part t mod p with probability q; row i is in part i mod p.

    With `Query(bands=b)`, b a divisor of p, the noise of the releases is correlated, and samples
    still amplify privacy. This helps where Poisson samples of all records need little noise, below
    1.2 clip norms or so: docs/choosing.md compares both by public numbers.

    Attributes:
      rate: q in (0, 1], of a part: for b expected records a release, b p / n.
      parts: p.
      capacity: as of `Poisson`, for a part.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000, bands=4,
        ...                   sampling=jmm.mechanism.CyclicPoisson(rate=0.2, parts=4))
        >>> jmm.mechanism.batch_size(query)
        50.0
        >>> steps = jmm.accounting.calibrate_noise(jmm.Repeat(query=query, times=60), 2.0, 1e-5)
        >>> round(steps.multiplier(), 1)
        3.8
    """

    rate: float = jax.tree.static()
    parts: int = jax.tree.static()
    capacity: int | None = jax.tree.static(default=None)

    ordered = False
    secret = True
    compares_absent = True  # as for `Poisson`
    compared_pairs = 2
    relations = NEIGHBOURS

    @property
    def _part_sampling(self) -> poisson.Poisson:
        return poisson.Poisson(rate=self.rate, capacity=self.capacity)

    def _largest(self, population: int) -> int:
        """Records of the largest part."""
        return -(-population // self.parts)

    def check(self, population: int) -> None:
        """Refuses more parts than records, and what `Poisson` refuses of a part."""
        checks.count("parts", self.parts)
        if self.parts > population:
            raise ValueError(f"parts must be at most population={population}, got {self.parts}.")
        self._part_sampling.check(self._largest(population))

    def batch_size(self, population: int) -> float:
        """The expected size q n / p, of all parts in the mean."""
        return self.rate * population / self.parts

    def rows_read(self, population: int) -> int:
        """Slots of a Poisson sample of the largest part."""
        return self._part_sampling.rows_read(self._largest(population))

    def rows_in_shard(self, population: int, size: int) -> int:
        """The capacity, on one device.

        Raises:
          ValueError: for several shards: how many rows of a part come to lie in one has no proof.
        """
        if size < population:
            raise ValueError(f"{self!r} is for data on one device: give the arrays without a mesh, "
                             "or use Poisson(rate=...).")
        return self._part_sampling.rows_in_shard(self._largest(population), size)

    def draw(self, keys: SampleKeys, release: jax.Array, population: int) -> Sample:
        """A Poisson sample of numbers in the part, as rows."""
        part = release % self.parts
        sample = self._part_sampling.draw(keys, release, self._largest(population))
        assert sample.rows is not None
        assert sample.valid is not None
        rows = sample.rows * self.parts + part
        # a smaller part has one number less: it is in no row
        return sample._replace(rows=jnp.minimum(rows, population - 1),
                               valid=sample.valid & (rows < population))

    def charge(self, times: int, z: float, population: int) -> Charge:
        """Charges a Poisson sample of a part for each window of `parts` releases that is begun."""
        windows = math.ceil(times / self.parts)
        if self.rate == 1:  # the order of the parts is public, so nothing is amplified
            return costs.gaussian(windows, z)
        return self._part_sampling.charge(windows, z, self._largest(population))

    def shortfall(self, population: int) -> float:
        """Returns the shortfall of samples of a part."""
        return self._part_sampling.shortfall(self._largest(population))

    def correlation(self, population: int) -> InTurn:
        """A record has one coin in `parts` releases."""
        return InTurn(self.parts)

    def always(self) -> Sampling:
        """All records of a part."""
        return CyclicPoisson(rate=1.0, parts=self.parts)

    def summary(self, times: int, population: int) -> str:
        """States the parts, the sample of each, and how often a record may be read."""
        less = self._part_sampling.redraw_probability(self._largest(population))
        return (f"cyclic Poisson samples at rate {self.rate:.6g} of a part (expected batch "
                f"{self.batch_size(population):.6g}): row i of {population} is in part i mod "
                f"{self.parts}, release k = 0, 1, ... reads part k mod {self.parts}, so that a "
                f"record may be read in {math.ceil(times / self.parts)} of them (samples that do "
                f"not fit are drawn again, for which the rate is lower by a part {less:.2g} at "
                "most)")

    def assumed(self) -> tuple[str, ...]:
        """The assumptions that row numbers are public, and those of absent records kept."""
        return (sentences.PLACES,
                "A record that is absent leaves its row empty: no other record takes its number, "
                "which decides the part that it is in.")

    def worst_case(self, population: int) -> WorstCase:
        """A record of part 0 with probability q; the others contribute nothing."""
        case = self._part_sampling.worst_case(self._largest(population))
        return case._replace(every=self.parts)
