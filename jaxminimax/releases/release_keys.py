"""The keys of a release, each for one use, of operators that draw, of a training and of a search.

All of them are derived from the run's key here. Samplers, noise and operators take theirs from
`Opened.keys`.

Operators that draw: latent points, dropout, augmentations, random starts.

The operator of a problem with `random=True` is `(z, record, key) -> g`, its public term
`(z, key) -> g`, and the loss of a `GroupProblem` `(w, record, key) -> []`. A record's key is

    threefry_{key of the release's operators}(group, row),      group = 0 where there are none,

a function of the run's key, of the release and of the row's number in the data: not of the row's
place in a sample, a slice, a shard or what was sent ahead. So a record's value is the same in every
pass over it (norm and sum are of one function), under every strategy, on every mesh, and after a
run was resumed. The words of the key travel as a part of the record.

Why that costs nothing. Let rho be all keys of operators of a run. Their law does not depend on the
data, and they are independent of samples and of noise: no two uses share a key (see
`Keys`). Given rho the run is the described mechanism with the operators g_rho(.; record
of row i): each is clipped whatever rho is, and a record that is replaced keeps its row, so that
neighbours have the same operators but for that record's. Hence for each rho the two outputs are
(epsilon, delta)-close, and so are their mixtures over rho: the divergence
sup_S P(S) - e^epsilon Q(S) is jointly convex, D(E P_rho, E Q_rho) <= E D(P_rho, Q_rho)
<= delta. It would hold if rho were published, too. It would not if a key of an operator served
noise or samples as well, or if two passes over a record had different keys: the norm would then be
of another function than the sum.

Nothing of this is about means over all records. Gradients of groups, weighted or of a drawn one,
are clipped record by record whatever rho is, and so are losses, to [0, B]: those that are released,
those that an index is drawn from (a pass over all records moves one score by what one record's
clipped loss moves), and single ones. A record that is replaced keeps its group and its row, both
public, hence its key. Refused are proximal points and solutions: they clip nothing, so that rho
would have to be such that every operator has the constants which the sensitivity rests on, and a
certificate is of the operators that are minimised, not of their mean over rho.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.random_bits import fold_in, fold_in_on_host, threefry, threefry_key
from jaxminimax.base.types import GroupProblem, OwnOperator, Problem, PyTree, Saddle, SaddleOperator
from jaxminimax.gradients.clipping import ClippedOperator
from jaxminimax.mechanism.description import Answered, Kind
from jaxminimax.releases import parts, release_operation

# The number of this way to derive keys and to draw from them: a run that was saved under another
# one would repeat rounds with other noise.
SCHEME = 5
ADDED, DITHER = 0, 1  # what the noise key of a sum is folded with; `Keys` has 2 and 3 as well


def stream(mechanism: Answered, further: Kind | None = None) -> int:
    """The number of the stream of keys that a description's releases use.

        kind + 256 place

    with the description's kind, and its place among those of its kind in a run, see
    `mechanism.Answered`. Two parts of a `Sequence` or a `Parallel` never share a stream, so neither
    noise nor samples. A description whose noise has keys of a `further` kind uses them at the same
    place.

    Raises:
      ValueError: for a kind or a place out of range.
    """
    kind, kinds = mechanism.kind, 2**8
    # second keys of descriptions that have other kinds
    second = (Kind.NODE, Kind.INNOVATION, Kind.MEAN_INNOVATION)
    if not (isinstance(kind, int) and 0 <= kind < kinds and kind not in second):
        raise ValueError(f"kind of {type(mechanism).__name__} must be that of a class of the "
                         f"library, or a number from 64 to {kinds - 1}, got {mechanism.kind!r}.")
    if not 0 <= mechanism.place < 2**32 // kinds:
        raise ValueError(f"place must be in [0, {2**32 // kinds}), got {mechanism.place}: leave "
                         "it to Sequence and Parallel, which set it.")
    return int(kind if further is None else further) + kinds * mechanism.place


class Keys:
    """The keys of release `number` of a stream, functions of these and the run's key alone.

        release's key = threefry_key(stream, 2^31 + number),
        that of use u = threefry_release's key(0, u),

    u = 0 for its sample, 1 for its noise, 2 for its operators, 3 for its public term and 4 for the
    mark of a sample drawn ahead.

    No two uses share a key. With a key held fixed, threefry is a permutation of its counters of
    twice 32 bits, so that different streams or numbers always have different keys. For i < 2^31,
    `jax.random.fold_in(key, i)` and `jax.random.split(key)[i]` of the run's key differ from them
    too: they are threefry of (0, i), and (0, 2^31 + number) with number < 2^31 is none of these.
    Keys that descend from different keys are as unlikely to agree as any two of random bits.

    Attributes:
      run: the run's key; for what several releases share, such as the order of a pass.
      sample: for the records that the release reads.
      noise: for what is added to them, and for how they are rounded; sums use `added`, `dither`,
        `slots` and `counts`, which are made of it.
    """

    def __init__(self, run: jax.Array, stream: int, number: jax.typing.ArrayLike) -> None:
        """Derives the keys.

        Args:
          run: the run's key.
          stream: of the release, see `stream`.
          number: of the release or the node, an integer: below 2^31 - 1 for `Kind.MEAN`
            (`SampleKeys.pass_key` has that one), below 2^32 for others.
        """
        # (stream, 2^31 + number mod 2^32): a different counter for each stream and number
        counter = jnp.uint32(2**31) + jnp.asarray(number).astype(jnp.uint32)
        self.run, self._own = run, fold_in(run, counter, stream)
        self.sample, self.noise = (fold_in(self._own, use) for use in (0, 1))  # see above

    def operators(self) -> jax.Array:
        """Key data that the operators draw from, uint32 `[2]`, of every record; see above."""
        return self._data(2)

    def public(self) -> jax.Array:
        """The key of the public term that is added to a release."""
        return threefry_key(self._data(3))

    def ahead(self) -> jax.Array:
        """The words that mark a sample drawn ahead, uint32 `[2]`; see `host_data.mark`."""
        # by words that serve nothing else, since marks are sent along with the rows
        return self._data(4)

    def _data(self, use: int) -> jax.Array:
        # two words, which are a key of threefry; one of rbg has four
        return jax.random.key_data(fold_in(self._own, use))[:2]

    def added(self) -> jax.Array:
        """The key of the independent noise on a sum."""
        return fold_in(self.noise, ADDED)

    def dither(self) -> jax.Array:
        """The key of the public thresholds that a sum is rounded by."""
        return fold_in(self.noise, DITHER)

    def slots(self) -> jax.Array:
        """The key of the slots that a shard's rows are put in."""
        return fold_in(self.noise, 2)

    def counts(self) -> jax.Array:
        """The key of the noise on counts of records within the clip norms."""
        return fold_in(self.noise, 3)


def is_threefry(key: jax.Array) -> bool:
    """Returns whether a key is one of threefry, whose words do not depend on how many are drawn."""
    return str(jax.random.key_impl(key)) == "threefry2x32"


def name_of_draws(key: jax.Array, *numbers: jax.typing.ArrayLike) -> jax.Array:
    """The run's key and stream, number, size and L of a release: all that its noise follows from.

    uint32 `[6]`, of a key of threefry.
    """
    return jnp.stack([*jax.random.key_data(key), *(jnp.asarray(x).astype(jnp.uint32)
                                                   for x in numbers)])


# --- keys of what makes several releases with keys of their own ---


class TrainingKeys(NamedTuple):
    """The keys of a table's training; each is of one release, or of the run that it is named for.

    With f = `fold_in`, b = f(root, 0) where ranges are charged and b = root where not, m = f(b, 0):

        ranges f(root, 1), moments m, rounds f(b, 1), group losses f(m, 1), second moments f(m, 2),
        calibration f(m, 3), shares of groups f(m, 4), certificate f(m, 5).

    No two releases draw a word from one key and counter. f(k, i) is the permutation threefry_k at
    (0, i), so f(k, i) != f(k, j) for i != j. Releases of key k use f(k; stream, 2^31 + number) and
    what descends from it (`Keys`), passes of an order f(k, 2^32 - 1) and marks of a run
    f(k, 2^31 - 1). The numbers above are at most 5, so that all counters under one key differ, and
    m may be the key of the moments and the parent of five others. Keys under different parents are
    equal only where threefry under two keys has one output, 2^-64 a pair of random bits:
    `training_keys` compares all and refuses. (Of a key of rbg, f folds each half.)

    A further training of the same root, of a curve, has `root_of_training`. So a new release is a
    new field here, and its number is one that was never used under m.
    """

    ranges: Any  # None where no ranges are charged
    moments: jax.Array
    rounds: jax.Array
    group_losses: jax.Array
    second_moments: jax.Array
    calibration: jax.Array
    group_shares: jax.Array
    certificate: jax.Array


def training_keys(root: jax.Array, charged: bool) -> TrainingKeys:
    """Derives the keys of a training.

    Args:
      root: a secret key, for this training only.
      charged: whether it releases ranges.

    Raises:
      ValueError: for a root of which two of them are equal.
    """
    ranges, base = (fold_in_on_host(root, 1), fold_in_on_host(root, 0)) if charged else (None, root)
    moments = fold_in_on_host(base, 0)
    keys = TrainingKeys(ranges, moments, fold_in_on_host(base, 1),
                        *(fold_in_on_host(moments, number) for number in range(1, 6)))
    words = [tuple(np.ravel(jax.random.key_data(x)).tolist()) for x in keys if x is not None]
    if len(set(words)) < len(words):
        raise ValueError("Two releases of a training would have one key, by a chance of 2^-64: "
                         "draw another key, noise.secret_key().")
    return keys


def root_of_training(key: jax.Array, number: int) -> jax.Array:
    """The root of training `number` = 0, 1, ... of one key; that of the first is the key itself."""
    # f(key, 0) and f(key, 1) are of the first training
    return fold_in_on_host(key, number + 1) if number else key


class SearchKeys(NamedTuple):
    """The keys of run k = 1, 2, ... of a search: f(f(key, k), 0), 1 and 2, with f = `fold_in`."""

    candidate: jax.Array
    training: jax.Array
    score: jax.Array


def search_keys(key: jax.Array, number: jax.typing.ArrayLike) -> SearchKeys:
    """Derives the keys of run `number` of a search."""
    run_key = fold_in(key, number)
    return SearchKeys(*(fold_in(run_key, use) for use in range(3)))


def run_count_key(key: jax.Array) -> jax.Array:
    """The key that the number of runs of a search is drawn from; runs begin at 1."""
    return fold_in(key, 0)


# --- operators that draw ---


@dataclasses.dataclass(frozen=True)
class _WithKey:
    """A function of `(*point, record, key)`, as one of `(*point, (record, words))`."""

    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        # (z, (record, words)), or (w, v, (record, words)) for a loss of both players
        *point, (record, words) = arguments
        return self.function(*point, record, threefry_key(words))


def operator_of(problem: Problem | GroupProblem) -> Callable[[Saddle, PyTree], Saddle]:
    """The operator of one record, or of a pair of a record and its words if the problem draws."""
    return _keyed(problem.operator) if problem.random else problem.operator


def loss_of(problem: GroupProblem) -> Callable[[PyTree, PyTree], jax.Array]:
    """The loss of one record, or of a pair of a record and its words if the problem draws."""
    return _WithKey(problem.loss) if problem.random else problem.loss


def _keyed(operator: Callable[..., Any]) -> Callable[[Saddle, PyTree], Saddle]:
    if type(operator) is SaddleOperator:
        # the key goes to the loss, so that ghost clipping may still trace it
        return dataclasses.replace(operator, loss=_WithKey(operator.loss))
    if isinstance(operator, OwnOperator | ClippedOperator):
        return dataclasses.replace(operator, operator=_keyed(operator.operator))  # type: ignore[arg-type]
    return _WithKey(operator)


def public_term(problem: Problem, z: Saddle, key: jax.Array, mechanism: Answered,
                number: jax.typing.ArrayLike) -> Saddle:
    """The public term at z; that of a problem that draws has a key of its own."""
    assert problem.public is not None
    if not problem.random:
        return problem.public(z)
    # a key apart from those of sample, noise and operators
    kind, (_, number) = stream(mechanism), parts.placed(mechanism, number)
    return problem.public(z, release_operation.bind_public_key(
        lambda key, number: Keys(key, kind, number).public(), key, number))


def with_key_data(examples: PyTree, rows: jax.Array, key_data: jax.Array | None,
                  group: jax.typing.ArrayLike = 0) -> PyTree:
    """Pairs of a record and the data of its key; the records themselves where nothing is drawn.

    Args:
      examples: leaves `[b, ...]`.
      rows: their numbers in the data, or in their group, int32 `[b]`; of any shape.
      key_data: of the release, `Keys.operators`; None for a problem that draws nothing.
      group: that they are in; one for all, or of the shape of `rows`.
    """
    if key_data is None:
        return examples
    # threefry_{key of the operators}(group, row), [..., 2]
    group = jnp.broadcast_to(jnp.asarray(group).astype(jnp.uint32), rows.shape)
    return examples, jnp.stack(threefry(key_data, group, rows.astype(jnp.uint32)), -1)


def with_key_data_in_groups(examples: PyTree, group: jax.Array, rows: jax.Array,
                            key_data: jax.Array | None) -> PyTree:
    """Calls `with_key_data`, with the arguments in the order of `shard_sums.GroupAttach`."""
    return with_key_data(examples, rows, key_data, group)


def with_key_data_of_groups(data: PyTree, key_data: jax.Array | None) -> PyTree:
    """The same of all records of all groups, leaves `[p, n_max, ...]`."""
    # [p, 1] and [1, n_max]: numbers in the data, not places in a sample
    group, row = jnp.indices(jax.tree.leaves(data)[0].shape[:2], sparse=True)
    return with_key_data(data, jnp.broadcast_to(row, (group.size, row.size)), key_data, group)


def refuse(problem: Problem | GroupProblem, caller: str) -> None:
    """Refuses a problem that draws.

    Raises:
      ValueError: naming who asks for an operator without a key.
    """
    if problem.random:
        raise ValueError(f"{caller} needs one operator for a record, and with random=True the "
                         "problem draws another one in every release: give a problem whose "
                         "operator takes no key.")
