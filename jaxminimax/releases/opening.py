"""A release is opened once: its description is checked, and its keys are derived.

    open -> rows -> sum -> add noise -> close

Every release takes these stages. `open_sum`, `open_losses` and `open_release` check all that can be
checked before a record is read, and answer one frozen value, `Opened`. What follows (`reading`,
`noisy_sums`, `groups`, `solutions`) reads that value and no more of the run, so that no stage can
have another key, clip norm or number of the release than the one that was checked. The release is
closed by `nan_if_refused`.
"""

import dataclasses
import warnings
from types import UnionType
from typing import Any

import jax
import jax.numpy as jnp

from jaxminimax.base import arguments, checks, tree
from jaxminimax.base.types import GroupProblem, Problem, PyTree, Saddle
from jaxminimax.gradients import unmoved
from jaxminimax.gradients.clipping import ClippedSum, clipped_sum
from jaxminimax.mechanism import Repeat, description, grid
from jaxminimax.mechanism.sampling import check_population
from jaxminimax.placement import host_data, sharding
from jaxminimax.releases import record_isolation, release_keys
from jaxminimax.releases.budget import within_budget

Place = tuple[jax.Array, ...]  # an index for each leading axis


# --- the end of the budget ---


def nan_if_refused(answered: jax.Array, released: PyTree) -> PyTree:
    """The released values; NaN everywhere, whatever the data, where a release is refused."""
    return jax.tree.map(lambda a: jnp.where(answered, a, jnp.nan), released)


# --- one release ---


@dataclasses.dataclass(frozen=True)
class Opened:
    """One release that was checked.

    Attributes:
      number: of the release in its stream, int32 `[]`.
      mechanism: the description that is charged.
      keys: of its sample and of its noise, derived once.
      operator_key_data: what the operators draw from, uint32 `[2]`; None where they draw nothing.
      answered: whether it is within the budget, bool `[]`; later stages may refuse it, too.
      point: arrays.
      data: arrays, rows on a mesh, or rows sent ahead.
      clipped: the sum of clipped operators; None for other releases.
      noise_multiplier: by player, of the noise on that sum; None for other releases.
    """

    number: jax.Array
    mechanism: Any
    keys: release_keys.Keys
    operator_key_data: jax.Array | None
    answered: jax.Array
    point: PyTree
    data: PyTree
    clipped: ClippedSum | None = None
    noise_multiplier: Saddle | None = None

    @property
    def query(self) -> Any:
        """The query of one release: of a `Repeat` the one that it repeats."""
        return self.mechanism.query if isinstance(self.mechanism, Repeat) else self.mechanism

    @property
    def like(self) -> Saddle:
        """Arrays of the numbers that are released, None for a player without a clip norm."""
        assert self.clipped is not None
        return Saddle(*(None if c is None else x
                        for c, x in zip(self.clipped.clip, self.point, strict=True)))


def open_release(key: jax.Array, mechanism: description.Answered, spent: jax.Array, point: PyTree,
                 data: PyTree, *, draws: bool = False, **sums: Any) -> Opened:
    """A release of whatever kind; what is particular to it was checked before.

    Args:
      key: root key of the run.
      mechanism: the description.
      spent: releases of it that were made before.
      point: where it is made.
      data: as the release takes them.
      draws: whether the problem's functions draw.
      **sums: of `Opened`, for sums.

    Raises:
      ValueError: for a `spent` that is no integer, and for data on a mesh with a key that is not
        threefry's.
    """
    within = within_budget(spent, mechanism.releases())
    keys = release_keys.Keys(key, release_keys.stream(mechanism), spent)
    point, data = jax.tree.map(jnp.asarray, point), sharding.as_rows(data)
    if isinstance(data, sharding.Sharded):
        sharding.check_key(key)
    return Opened(spent, mechanism, keys, keys.operators() if draws else None, within, point, data,
                  **sums)


def open_sum(key: jax.Array, mechanism: Any, spent: jax.Array, problem: Problem | GroupProblem,
             z: Saddle, data: PyTree, place: Place | None = None, shared: bool = False,
             before_clip: bool = False) -> Opened:
    """A release of a sum of clipped operators at z, with the clip norms of the description's facts.

    Args:
      key: root key of the run.
      mechanism: the description.
      spent: releases of it that were made before.
      problem: `operator` is used, and whether it draws.
      z: the point.
      data: as the release takes them.
      place: of the one record that is read; None for a sample.
      shared: whether records come with their shares in [0, 1].
      before_clip: whether a share multiplies an operator before the clip, as any number.

    Raises:
      ValueError: for what no release should start from.
      TypeError: for arguments of another kind.
    """
    facts = mechanism.facts()
    noise = grid.check_set(facts.noise)
    if isinstance(noise, Saddle):
        for player, clip, z_player in zip(Saddle._fields, facts.clip, noise, strict=True):
            checks.scalars(**{f"clip.{player}": clip, f"noise_multiplier.{player}": z_player})
    else:  # one number for all players
        for clip in facts.clip:
            checks.scalars(clip=clip, noise_multiplier=noise)
        noise = Saddle(*(None if clip is None else noise for clip in facts.clip))
    axes = check_layout(data, mechanism, place)
    # before a record is read: sensitivity needs operators of one record each
    operator = release_keys.operator_of(problem)
    program, value, record = record_isolation.check(
        operator, z, data, axes, facts.sizes, problem.random)
    arguments.players("The operator's value", value, "like z")
    for name, norm in facts.clip._asdict().items():
        if norm is not None:
            arguments.same_shapes(getattr(value, name), getattr(z, name),
                                  f"The operator's value for {name}", f"z.{name}")
    for text in unmoved.notes(program, value, z, record, facts.clip):
        warnings.warn(text, unmoved.UnmovedWarning, stacklevel=2)
    clipped = dataclasses.replace(clipped_sum(operator, facts.clip, joint=facts.joint),
                                  counted=facts.counts is not None, shared=shared,
                                  before_clip=before_clip)
    # what rounding to the grid costs grows with the number of coordinates
    check_size([x for c, x in zip(facts.clip, z, strict=True) if c is not None], facts.parameters,
               facts.counts or 0)
    return open_release(key, mechanism, spent, z, data, draws=problem.random, clipped=clipped,
                        noise_multiplier=noise)


def open_losses(key: jax.Array, mechanism: Any, spent: jax.Array, problem: GroupProblem, w: PyTree,
                data: PyTree, place: Place | None = None) -> Opened:
    """A release of what is computed of clipped losses at w; arguments as of `open_sum`."""
    axes = check_layout(data, mechanism, place)
    checks.scalars(bound=mechanism.bound, noise_multiplier=grid.check_noise(mechanism))
    record_isolation.check(release_keys.loss_of(problem), w, data, axes, mechanism.facts().sizes,
                           problem.random)
    return open_release(key, mechanism, spent, w, data, draws=problem.random)


# --- what a release refuses ---


def check_kind(mechanism: Any, kind: type | UnionType, release: str, answers: str) -> None:
    """Refuses another description than the one that a release function answers.

    Raises:
      ValueError: naming both.
    """
    if not isinstance(mechanism, kind):
        raise ValueError(f"{release} answers {answers}, got {type(mechanism).__name__}.")


def check_layout(data: PyTree, mechanism: description.Answered, place: Place | None = None) -> int:
    """Refuses data whose leading axes are not those of the described records.

    Args:
      data: leaves with a leading axis for the records' numbers, or two: groups and records in them;
        on a mesh or sent ahead.
      mechanism: the description.
      place: of one record, where the description leaves the axes open.

    Returns:
      How many axes number the records.

    Raises:
      ValueError: naming the axes and what was described.
    """
    if place is not None:
        return len(check_place(data, place))
    sizes = mechanism.facts().sizes  # type: ignore[attr-defined]
    if sizes:
        check_groups(data, sizes)
        return 2
    query: Any = mechanism.query if isinstance(mechanism, Repeat) else mechanism
    parts, n = mechanism.parts if isinstance(mechanism, Repeat) else 1, query.population
    checks.count("population", n)
    if isinstance(mechanism, Repeat):
        check_population(n)
    described = f"population={n}" if parts == 1 else f"{parts} parts of {n} records"
    _check_rows(data, (parts * n,), described, more=parts > 1)
    return 1


def check_groups(data: PyTree, sizes: tuple[int, ...]) -> None:
    """Refuses data that are not `[p, n_max, ...]` for groups of these sizes."""
    checks.count("sizes", min(sizes))
    _check_rows(data, (len(sizes), max(sizes)), f"{len(sizes)} groups of up to {max(sizes)} "
                "records: use problems.by_group")


def check_place(data: PyTree, place: Place) -> tuple[int, ...]:
    """Lengths of the axes that number the records, as many as a place has indices.

    Raises:
      ValueError: for arrays of different lengths, and for a place with more indices or fewer.
    """
    rows = data.lead if isinstance(data, sharding.Sharded) else next(
        (jnp.shape(x)[: len(place)] for x in jax.tree.leaves(data)), ())
    _check_rows(data, rows, f"records with {len(place)} number(s), the same for every array")
    if len(rows) != len(place):
        raise ValueError(f"data has leading axes {rows}, but a record is named by {len(place)} "
                         "number(s).")
    return rows


def _check_rows(data: PyTree, rows: tuple[int, ...], described: str, *, more: bool = False) -> None:
    """Refuses other leading axes than `rows`; with `more`, one axis may be longer."""
    axes = ({(data.population,)} if isinstance(data, host_data.Window) else
            {data.lead} if isinstance(data, sharding.Sharded) else
            {jnp.shape(x)[: len(rows)] for x in jax.tree.leaves(data)})
    enough = more and len(axes) == 1 and len(min(axes)) == len(rows) and min(axes) >= rows
    if axes != {rows} and not enough:
        raise ValueError(f"data has leading axes {axes}, but the mechanism was described for "
                         f"{described}.")


def check_size(like: PyTree, num_coordinates: int, extra: int = 0) -> None:
    """Refuses a release of more numbers than its description pays for, and complex ones.

    Args:
      like: arrays of what is released.
      num_coordinates: `parameters` of the description.
      extra: numbers that are released with them.

    Raises:
      ValueError: naming both.
    """
    tree.refuse_complex(like, "z")
    size = extra + sum(map(jnp.size, jax.tree.leaves(like)))
    if size > num_coordinates:
        raise ValueError(f"A release has {size} numbers, but its description is charged for "
                         f"parameters={num_coordinates}: give the query parameters={size} or "
                         "more.")
