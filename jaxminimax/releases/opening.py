"""What every door to the data shares: keys, the end of the budget, solutions in float64.

A release checks its description (`mechanism.check_noise`, `checks.scalars`), the rows (`reading`)
and that a record's program reads that record only (`record_isolation`), asks here whether it is
within the budget and for its keys, reads records by `reading`, adds noise by `noising`, and is NaN
once the budget is spent.
"""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base import checks
from jaxminimax.base.random_bits import fold_in
from jaxminimax.base.tree import in_float64
from jaxminimax.base.types import PyTree
from jaxminimax.mechanism.description import Answered

_FIRST = 2**31  # the number that release 0 is folded into a run's key with
# The number of this way to derive keys and to draw from them: a run that was saved under another
# one would repeat rounds with other noise.
SCHEME = 5
_SAMPLE, _NOISE, _OPERATORS, _PUBLIC, _AHEAD = range(5)  # what the key of a release is folded with


# --- keys ---


class Kind(enum.IntEnum):
    """What a release's key is for; descriptions of one kind are told apart by their places."""

    MEAN = 0  # clipped sums, and proximal points: a run repeats the one or the other
    GROUP_GRADIENT = 1
    GROUP_LOSSES = 2
    GROUP_SOLUTION = 3
    LEAF = 4  # the rounding of a tree's leaf
    NODE = 5  # the noise of a tree's node
    RECORD_LOSS = 6
    SELECTION = 7
    # what correlated noise is made of, blocks of numbers, and how it is rounded:
    INNOVATION = 8  # that of leaves
    MEAN_INNOVATION = 9  # that of clipped sums


_KINDS = 2**8  # more than there are


def stream(kind: Kind, mechanism: Answered) -> int:
    """The number of the stream of keys that a description's releases use.

        kind + 256 place

    with the description's place among those of its kind in a run, see `mechanism.Answered`. Two
    parts of a `Sequence` or a `Parallel` never share a stream, so neither noise nor samples.

    Raises:
      ValueError: for a place out of range.
    """
    if not 0 <= mechanism.place < 2**32 // _KINDS:
        raise ValueError(f"place must be in [0, {2**32 // _KINDS}), got {mechanism.place}: leave "
                         "it to Sequence and Parallel, which set it.")
    return int(kind) + _KINDS * mechanism.place


class Keys(NamedTuple):
    """Of one release, each for one use.

    Attributes:
      sample: for the records that it reads.
      noise: for what is added to them, and for how they are rounded.
    """

    sample: jax.Array
    noise: jax.Array


def keys_of_release(key: jax.Array, stream: int, number: jax.typing.ArrayLike) -> Keys:
    """The keys of release `number` of a stream, functions of these and the run's key alone.

        release's key = threefry_key(stream, 2^31 + number),
        sample's and noise's = threefry_release's key(0, 0) and (0, 1).

    (`operator_key_data`, `public_key` and `words_ahead` are made of its (0, 2), (0, 3) and (0, 4).)

    No two uses share a key. With a key held fixed, threefry is a permutation of its counters of
    twice 32 bits, so that different streams or numbers always have different keys. For i < 2^31,
    `jax.random.fold_in(key, i)` and `jax.random.split(key)[i]` of the run's key differ from them
    too: they are threefry of (0, i), and (0, 2^31 + number) with number < 2^31 is none of these.
    Keys that descend from different keys are as unlikely to agree as any two of random bits.

    Args:
      key: of the run.
      stream: of the release, see `stream`.
      number: of the release or the node, an integer: below 2^31 - 1 for `Kind.MEAN`
        (`SampleKeys.of_pass` has that one), below 2^32 for others.
    """
    own = _of_release(key, stream, number)
    return Keys(fold_in(own, _SAMPLE), fold_in(own, _NOISE))


def operator_key_data(key: jax.Array, stream: int, number: jax.typing.ArrayLike) -> jax.Array:
    """What the operators of a release draw from, uint32 `[2]`; see `releases.operator_rng`."""
    return jax.random.key_data(fold_in(_of_release(key, stream, number), _OPERATORS))[:2]


def public_key(key: jax.Array, stream: int, number: jax.typing.ArrayLike) -> jax.Array:
    """What the public term beside a release draws from."""
    return key_of(jax.random.key_data(fold_in(_of_release(key, stream, number), _PUBLIC))[:2])


def words_ahead(key: jax.Array, stream: int, number: jax.typing.ArrayLike) -> jax.Array:
    """What a sample that is drawn ahead is marked with, uint32 `[2]`; see `host_data.mark`."""
    return jax.random.key_data(fold_in(_of_release(key, stream, number), _AHEAD))[:2]


def key_of(words: jax.Array) -> jax.Array:
    """The key that a user's function draws from, of threefry whatever the run's generator.

    Under a vmap, rbg would give every record numbers that depend on its place.
    """
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def _of_release(key: jax.Array, stream: int, number: jax.typing.ArrayLike) -> jax.Array:
    counter = jnp.uint32(_FIRST) + jnp.asarray(number).astype(jnp.uint32)
    return fold_in(key, counter, stream)


# --- the end of the budget ---


def within_budget(spent: jax.typing.ArrayLike, limit: int) -> jax.Array:
    """Whether 0 <= spent < limit, for the number of releases that were made before this one.

    Raises:
      ValueError: for a number that is not one integer, has more than 32 bits, or is of a type that
        does not reach the limit: rounded, cut short or begun anew, it would repeat keys.
    """
    checks.scalars(spent=spent)
    if not jnp.issubdtype(jnp.result_type(spent), jnp.integer):
        raise ValueError(f"spent must be an integer, got {jnp.result_type(spent)}.")
    # a search among runs of several lengths traces the limit, and counts in int32
    if isinstance(limit, int) and jnp.iinfo(jnp.result_type(spent)).max < limit:
        raise ValueError(f"spent is of type {jnp.result_type(spent)}, which begins anew before "
                         f"{limit} releases: give an int32.")
    if not isinstance(spent, jax.Array) and abs(int(np.asarray(spent))) >= 2**31:
        raise ValueError(f"spent must be an integer of 32 bits, got {spent}: it is the number of "
                         "releases that were made before.")
    spent = jnp.asarray(spent)
    return (spent >= 0) & (spent < limit)


def nan_if_refused(allowed: jax.Array, released: PyTree) -> PyTree:
    """What is released, or NaN everywhere."""
    return jax.tree.map(lambda a: jnp.where(allowed, a, jnp.nan), released)


# --- float64 ---


def with_key_in_float64(function: Callable[..., PyTree], key: jax.Array, *args: PyTree) -> PyTree:
    """`function(key, *args)` as by `in_float64`: there, a key passes as its words."""
    generator = jax.random.key_impl(key)

    @in_float64
    def wide(words: jax.Array, *args: PyTree) -> PyTree:
        return function(jax.random.wrap_key_data(words, impl=generator), *args)

    return wide(jax.random.key_data(key), *jax.tree.map(jnp.asarray, args))


def widened(numbers: PyTree) -> PyTree:
    """Numbers in float64; to be called with 64-bit types."""
    return jax.tree.map(lambda x: x.astype(jnp.float64), numbers)


def check_float64(point: PyTree, **functions: Callable[[PyTree], PyTree] | None) -> None:
    """Refuses functions of a problem that round a float64 point to less.

    Raises:
      ValueError: naming the function.
    """
    for name, function in functions.items():
        if function is not None and any(
                x.dtype != jnp.float64 for x in jax.tree.leaves(jax.eval_shape(function, point))):
            raise ValueError(f"problem.{name} answers in less than float64 at a float64 point: the "
                             "certificate of a solution needs the point's own dtype.")


def never_fails(accuracy: jax.typing.ArrayLike, lost: jax.Array, steps: Any,
                needed: Callable[[Any], jax.Array]) -> jax.Array:
    """Whether no certificate can fail, for any data: a function of public numbers alone.

    The host has checked the same, but not descriptions that were traced. It aims at half of the
    accuracy; numbers may have been rounded since, so a twentieth more counts as half.

    Args:
      accuracy: what is to be certified.
      lost: what rounding may hide from a certificate; at most a quarter of `accuracy`.
      steps: of the solver.
      needed: steps that are proven to reach an accuracy.
    """
    return (lost <= 0.25 * accuracy) & (steps >= jnp.ceil(needed(0.55 * accuracy)))


def norm(z: PyTree) -> jax.Array:
    """The Euclidean norm of all numbers together."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(z)))
