"""Samplings: which records a release reads, and the charge of it.

A sampling is one class in one file: its sampler, the sampler's total-variation error, its privacy
cost, and its description in statements. `Sampling` is an abstract class: a subclass that lacks a
method cannot be instantiated, and every entry point refuses other objects. The library's
samplings are in `fixed_size`, `poisson` and `correlated`.
"""

import abc
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.random_bits import fold_in
from jaxminimax.mechanism.costs import Charge

if TYPE_CHECKING:
    from jaxminimax.mechanism.correlated import Correlation

__all__ = ["Sampling", "overflow_probability"]


class Sample(NamedTuple):
    """The rows of a sample, a batch of fixed shape.

    Attributes:
      rows: rows to read, int32 `[c]`, in increasing order if the sampling is `ordered`; None for
        all.
      valid: True for rows that take part, bool `[c]`; None for all.
      fits: whether the sample fits its slots, bool `[]`; if not, the release is NaN.
    """

    rows: jax.Array | None
    valid: jax.Array | None
    fits: jax.Array | bool


class SampleKeys(NamedTuple):
    """The randomness that a draw may use.

    Attributes:
      release: of this release alone, used up by its draw.
      run: of the whole run, to be used through `pass_key` only.
      part: which part of the data is read, of a `Repeat` with several; 0 where there is one.
    """

    release: jax.Array
    run: jax.Array
    part: jax.typing.ArrayLike = 0

    def pass_key(self, number: jax.typing.ArrayLike) -> jax.Array:
        """A key that all releases of one pass over a part of the data share.

        It is fold_in(fold_in(fold_in(run, 2^32 - 1), part), number), apart from every key of a
        release. Those are made from fold_in(run, 2^31 + k), k the releases made before. Fewer than
        2^31 are allowed (`check`), so k <= 2^31 - 2 and 2^31 + k <= 2^32 - 2. And fold_in of one
        key never gives one key for two numbers: it is Threefry, under that key, of the block that
        holds the number, and Threefry under a fixed key is a permutation of blocks. So the key that
        passes are made from is none of those that releases are made from, and what is made from
        different keys is as independent as the generator's words are. The same holds against
        whatever else a run's key is folded with: numbers below 2^31. By the same argument two
        parts, and two passes over a part, never have one key.

        Args:
          number: of the pass, 0, 1, ...; below 2^32.
        """
        passes = np.uint32(2**32 - 1)  # the number of no release
        return fold_in(fold_in(fold_in(self.run, passes), self.part), number)


class InGroups(NamedTuple):
    """The sampling of one of several groups of records.

    Attributes:
      summary: of statements, for "gradients of one group each: ...".
      population: `(size, largest) -> int`, among how many rows the sample of a group of that size
        is drawn, and charged; rows beyond the group are dropped.
      draw: `(keys, sizes, group) -> Sample` of one group, int32 `[]`.
    """

    summary: str
    population: Callable[[int, int], int]
    draw: Callable[[SampleKeys, tuple[int, ...], jax.Array], Sample]


class WorstCase(NamedTuple):
    """The pair of data sets that is hardest to distinguish, and its reads, for audits.

    Audits replace record 0.

    Attributes:
      times: how often a sample may hold the record that differs, float64 `[k]`.
      probability: of each, `[k]`.
      slots: records of a sample of fixed size, which the others fill; 0 where there is no such
        size, and the others contribute nothing.
      read: P[a sample holds the record], where the charge rests on that; 1 where it does not.
      every: of the releases, every how many-th reads record 0.
    """

    times: np.ndarray
    probability: np.ndarray
    slots: int = 0
    read: float = 1.0
    every: int = 1


class Choice(NamedTuple):
    """A choice of `--sampling` on the command line: a sampling from a batch size.

    Attributes:
      make: `(batch, records) -> Sampling`.
      batch: int, or float where it is the expected number; None where the sampling has none.
    """

    make: Callable[[Any, int], "Sampling"]
    batch: type | None = int


class Sampling(abc.ABC):
    """Base of sampling schemes, which choose a release's records; define every abstract method.

    Make it a frozen `pytree_dataclass` whose fields are static: shapes and thresholds follow from
    them.

    Examples:
        >>> sampling = jmm.Poisson(rate=0.05)
        >>> isinstance(sampling, jmm.mechanism.Sampling), sampling.secret
        (True, True)
    """

    choices: ClassVar[dict[str, Choice]] = {}  # names on the command line, if it has any

    @property
    @abc.abstractmethod
    def ordered(self) -> bool:
        """Returns whether rows of a sample come in increasing order; gathers rely on it."""

    @property
    @abc.abstractmethod
    def secret(self) -> bool:
        """Returns whether the charge rests on it that nobody knows which records a release reads.

        They are then drawn anew in every release; sums on a mesh hide them in random slots, and
        `charge` includes what that may fail by (`distinct.tied`, `distinct.CROWDED`). If not, the
        charge holds with the rows known to everybody, whether or not they are.
        """

    @property
    @abc.abstractmethod
    def compares_absent(self) -> bool:
        """True if curves compare with the sum that a record takes no part in, if one is replaced.

        It decides how rounding is charged (`costs.charged`).
        """

    @property
    @abc.abstractmethod
    def compared_pairs(self) -> int:
        """Pairs of sums of a release that must be near for a proof of its charge to hold."""

    @property
    @abc.abstractmethod
    def relations(self) -> tuple[str, ...]:
        """The relations of `costs.NEIGHBOURS` that the charge is proved for."""

    @abc.abstractmethod
    def check(self, population: int) -> None:
        """Refuses numbers out of range.

        Raises:
          ValueError: naming the value and the fix.
        """

    @abc.abstractmethod
    def batch_size(self, population: int) -> float:
        """The public number that a sum is divided by; never the realised batch size."""

    def mean_drawn(self, population: int) -> float:
        """The mean number of rows of an attempt, where every row is drawn equally often.

        A shard on a mesh has slots for so many times its share of the rows, and a margin that the
        charge of a secret sample counts as failing with probability `distinct.CROWDED`. The
        default promises nothing: each shard then has slots for all of `rows_in_shard`.
        """
        return math.inf

    @abc.abstractmethod
    def rows_read(self, population: int) -> int:
        """Rows of the fixed-shape batch that a release works on."""

    @abc.abstractmethod
    def rows_in_shard(self, population: int, size: int) -> int:
        """The most rows of a sample that may lie in one shard of `size` consecutive rows."""

    @abc.abstractmethod
    def draw(self, keys: SampleKeys, release: jax.Array, population: int) -> Sample:
        """The sample of release number `release`, int32 `[]`, counted on a part of the data."""

    @abc.abstractmethod
    def charge(self, times: int, z: float, population: int) -> Charge:
        """Charges `times` releases with Gaussian noise on sums that are real numbers.

        It includes the passes over the data, and how far the sampler departs from the described
        law: in its rates, in `failure`, or in total variation as `law_error`. `sample_error` is a
        departure that matters only where several records of a person differ.

        Args:
          times: releases.
          z: noise multiplier over a clip norm, players combined, as it is charged.
          population: n.
        """

    def correlation(self, population: int) -> "Correlation | None":
        """How releases read a record, as far as correlated noise is concerned.

        None, where there is no proof for any: the noise of releases is then independent.
        """
        return None

    def always(self) -> "Sampling | None":
        """The same, where a sample holds each record that it may hold; None: all records."""
        return None

    def overflow(self, population: int) -> float:
        """P[a sample does not fit its capacity, or cannot be drawn], for one release, which is NaN.

        A matter of utility: 0, every release fits, unless a class says otherwise. That it costs no
        privacy is part of the proof of `charge`.
        """
        return 0.0

    @abc.abstractmethod
    def summary(self, times: int, population: int) -> str:
        """Describes it for statements: "5 release(s) on ..."."""

    @abc.abstractmethod
    def assumed(self) -> tuple[str, ...]:
        """Sentences for statements: what the charge rests on that the code cannot see to."""

    def in_groups(self) -> InGroups:
        """Returns the sampling of one of several groups.

        Raises:
          ValueError: unless a class says how.
        """
        raise ValueError("sampling of a group must be Full(), Poisson(...) or FixedSize(...), got "
                         f"{self!r}: which group is read next is not known in advance, so groups "
                         "have no passes and no parts in turn.")

    def shortfall(self, population: int) -> float:
        """The part by which the mean of a release falls short of that of all records.

        A matter of utility: 0, unless samples are drawn again until they fit.
        """
        return 0.0

    def spread(self, population: int) -> float | None:
        """Bounds the variance of a sample's mean around its own expectation, over C^2 / m.

        C bounds a record, m is the batch size; it is for utility alone. None if samples are not
        drawn anew in every release, so that their errors do not average out.
        """
        return None

    @abc.abstractmethod
    def worst_case(self, population: int) -> WorstCase | None:
        """The case that audits attack; None where no pair is proven to be the worst."""


def choices() -> dict[str, Choice]:
    """The choices of `--sampling`: the names that the subclasses of `Sampling` have for it."""
    def below(sampling_class: Any) -> dict[str, Choice]:
        by_name = dict(sampling_class.__dict__.get("choices", {}))
        for subclass in sampling_class.__subclasses__():
            by_name |= below(subclass)
        return by_name

    return dict(sorted(below(Sampling).items()))


def known_sampling(sampling: Any) -> Sampling:
    """Returns `sampling` if it is one.

    Raises:
      ValueError: for everything else.
    """
    if not isinstance(sampling, Sampling):
        raise ValueError("sampling must be Full(), Poisson(rate=...), FixedSize(batch=...), "
                         "Disjoint(batch=...) or another jaxminimax.mechanism.Sampling, got "
                         f"{sampling!r}.")
    return sampling


def draw(keys: SampleKeys, query: Any, release: jax.Array) -> Sample:
    """The sample of release number `release`, counted on a part of the data, of a description.

    Raises:
      ValueError: while tracing, for another number of rows than described, which integers of sums,
        slots of shards and the charge rest on.
    """
    sampling = known_sampling(query.sampling)
    sample = sampling.draw(keys, release, query.population)
    slots = query.population if sample.rows is None else sample.rows.shape[0]
    if slots != sampling.rows_read(query.population):
        raise ValueError(f"{sampling!r} drew {slots} rows, and rows_read says "
                         f"{sampling.rows_read(query.population)}: make them agree.")
    return sample


def draw_in_group(keys: SampleKeys, query: Any, group: jax.Array) -> Sample:
    """The sample of a group, with rows for all of it, or for the largest sample of any group."""
    return known_sampling(query.sampling).in_groups().draw(keys, query.sizes, group)


def overflow_probability(query: Any) -> float:
    """P[a sample does not fit its capacity, or cannot be drawn], for one release, which is NaN.

    Examples:
        >>> query = jmm.Query(clip=Saddle(1.0, 1.0), population=1000,
        ...                   sampling=jmm.FixedSize(batch=50))
        >>> jmm.mechanism.overflow_probability(query) < 1e-6
        True
    """
    return known_sampling(query.sampling).overflow(query.population)


def check_population(population: int) -> None:
    """Refuses more records than 32-bit numbers of rows are for.

    Raises:
      ValueError: naming the value and the fix.
    """
    if population >= 2**30:  # so that numbers of two rows add up within int32
        raise ValueError(
            f"population must be below 2**30, got {population}: row numbers have 32 bits. Use "
            "fewer of the records, chosen by a rule that does not depend on what they contain.")


def check_batch(batch: int, population: float) -> None:
    """Refuses a batch size that is no count, or is above the population.

    Raises:
      ValueError: naming the value and the fix.
    """
    checks.count("batch", batch)
    if batch >= 2**31:
        raise ValueError(f"batch must be below 2**31, got {batch}: indices are 32-bit.")
    if batch > population:
        raise ValueError(f"batch must be at most population={population}, got {batch}.")
