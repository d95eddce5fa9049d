"""Rows of a table: encoded once and piece by piece, as records of persons, in public groups.

Arrays with a row for each row of the table lie in memory, or in files where they would fill it. All
work on rows goes block by block, with the same blocks in memory and in a file. So results are the
same, bit for bit, and nothing else grows with the number of rows.
"""

import dataclasses
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.apps.tables import columns, files
from jaxminimax.apps.tables.schema import Schema
from jaxminimax.apps.tables.scorer import Moments
from jaxminimax.base.identity import exact
from jaxminimax.base.types import GroupProblem, PyTree, Saddle
from jaxminimax.drivers import runs
from jaxminimax.mechanism import GroupLosses
from jaxminimax.problems import by_group
from jaxminimax.problems._groups import rows_of_people
from jaxminimax.releases.groups import release_group_losses

MAPPED = 0.3  # share of the memory from which on the rows of a table lie in files
_BLOCK = 2**14  # rows


def _memory() -> float:
    """Returns the bytes of memory that the machine has; infinite where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf


class Store:
    """Makes arrays for the rows of one table.

    Args:
      size: bytes of the table's features, which decide where all of its arrays lie.
    """

    def __init__(self, size: float = 0.0) -> None:
        self._in_files, self._claimed = size > MAPPED * _memory(), False

    def claim(self) -> None:
        """Lets one training have the arrays, which it changes in place.

        Raises:
          ValueError: for a second one, whose equal noise would stand on other numbers.
        """
        if self._claimed:
            raise ValueError("a training has changed the rows of this table in place: read the "
                             "table, and prepare, anew for a further one.")
        self._claimed = True

    def zeros(self, *shape: int) -> np.ndarray:
        """Makes float32 zeros that a device may use as they lie; pages not written take no memory.

        An array in a file lies in one without a name, which is the user's alone and ends with the
        process: the system writes pages there when it needs their memory, and reads them again.
        """
        size, begin = 4 * math.prod(shape), 0
        if self._in_files and size:
            with tempfile.TemporaryFile() as file:
                flat = np.asarray(np.memmap(file, np.uint8, "w+", shape=(size,)))
        else:
            # to 64 bytes, as a device that shares the host's memory uses such arrays as they lie
            flat = np.zeros(size + 64, np.uint8)
            begin = -flat.ctypes.data % 64
        return flat[begin: begin + size].view(np.float32).reshape(shape)


MEMORY = Store()


def blocks(rows: int) -> Iterator[slice]:
    """Yields the blocks of so many rows."""
    for first in range(0, rows, _BLOCK):
        yield slice(first, min(first + _BLOCK, rows))


def in_blocks(function: Callable[..., Any], out: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
    """Writes a function of the arrays' rows into `out`, which may be one of them; returns `out`."""
    for block in blocks(len(out)):
        out[block] = function(*(x[block] for x in arrays))
    return out


class Table(NamedTuple):
    """Everything that training reads of a table, row by row.

    Attributes:
      x: features in [-1, 1], and last a column for the constant, `[n, d + 1]` float32. Columns
        whose ranges are to be released are 0 until then.
      labels: as `Schema.labels`, `[n, ...]` float32.
      groups: the number of each row's group, `[n]`; None without groups.
      charged: cells of the columns whose ranges are to be released, `[n, c]`; None without them.
      owners: whose each row is; None if the schema has no owner.
      store: of features and labels, and of what is made of them.
    """

    x: np.ndarray
    labels: np.ndarray
    groups: np.ndarray | None
    charged: np.ndarray | None
    owners: Any
    store: Store

    def public_groups(self, schema: Schema) -> "Groups | None":
        """Returns the public groups of all rows, if the schema has any."""
        if self.groups is None:
            return None
        groups = Groups(self.groups, schema.group_values)
        return groups.cut(self.labels) if schema.by_label else groups

    def part(self, rows: np.ndarray) -> "Table":
        """Returns some rows of a table without owners."""
        return self._replace(x=self.x[rows], labels=self.labels[rows], **{
            name: x[rows] for name, x in (("groups", self.groups), ("charged", self.charged))
            if x is not None})


def encoded(frame: Any, schema: Schema, progress: bool = False, *,
            labels: np.ndarray | None = None, owners: Any = None) -> Table:
    """Encodes a table; one in a file never lies in memory as a whole, but for its owners.

    Args:
      frame: a data frame, a dictionary of columns or `files.Frames`.
      schema: of the table.
      progress: whether to show a bar.
      labels: as `Schema.labels`, for a frame that has none; None: those of the frame.
      owners: whose each row is, for a frame that does not say; None: as the schema says.

    Raises:
      ValueError: for a table without a declared column, and as `files.read`.
    """
    frames = frame if isinstance(frame, files.Frames) else [frame]
    declared, declared_places = schema.without_charged(), _places(schema, charged=False)
    read: dict[str, list[np.ndarray]] = {"groups": [], "charged": [], "owners": []}
    row_count, width = getattr(frame, "row_count", 0), schema.width + 1
    x, y, first, store = np.empty(0), np.empty(0), 0, Store()
    with runs.bar(row_count, 0, progress and row_count > 0, "row") as bar:
        for piece in frames:
            piece_y = schema.labels(piece) if labels is None else labels
            piece_owners = schema.owners(piece) if owners is None else owners
            last = first + len(piece_y)
            if not first:
                row_count = max(last, row_count)
                store = Store(4.0 * row_count * width)
                x, y = store.zeros(row_count, width), store.zeros(row_count, *piece_y.shape[1:])
            y[first:last] = piece_y
            if declared is not None:
                x[first:last, declared_places] = _as_many(declared.features(piece), len(piece_y))
            if schema.groups is not None:
                read["groups"].append(_as_many(schema.group_of(piece), len(piece_y)))
            if schema.charged:
                read["charged"].append(_as_many(schema.charged_cells(piece), len(piece_y)))
            if piece_owners is not None:
                read["owners"].append(exact(piece_owners))
            if bar is not None:
                bar.update(len(piece_y))
            first = last
    joined = {name: np.concatenate(parts) for name, parts in read.items() if parts}
    return Table(x[:first], y[:first], joined.get("groups"), joined.get("charged"),
                 joined.get("owners"), store)


def encode_charged(table: Table, schema: Schema, released: Schema) -> None:
    """Encodes the cells whose ranges were released into their places.

    Args:
      table: by `schema`.
      schema: with the charged columns.
      released: the same with their ranges.
    """
    assert table.charged is not None
    cells = dict(zip(schema.charged, table.charged.T, strict=True))
    table.x[:, _places(schema, charged=True)] = np.concatenate(
        [released.columns[name].encode(column) for name, column in cells.items()], 1)


def _places(schema: Schema, *, charged: bool) -> slice | np.ndarray:
    """Returns the places of the charged columns' numbers, or of the others'."""
    kinds = [isinstance(kind, columns.Charged) for kind in schema.columns.values() for _ in
             range(kind.width)]
    if not any(kinds):
        return slice(0, 0 if charged else schema.width)
    return np.flatnonzero(np.array(kinds) == charged)


def _as_many(rows: np.ndarray, length: int) -> np.ndarray:
    """Returns the rows of a column, or of several; a `ValueError` if labels are not as many."""
    if len(rows) != length:
        raise ValueError(f"columns must have one length, got {len(rows)} rows and {length} labels.")
    return rows


def scaled(x: np.ndarray, moments: Moments, floor: float | None,
           out: np.ndarray | None = None) -> np.ndarray:
    """Scales features, cuts rows to length 1 and adds a constant 1: rows are at most sqrt(2) long.

    A fixed function of the row and of released numbers.

    Args:
      x: `[..., d]`.
      moments: the released numbers.
      floor: least variance that a feature is divided by; None: features are not scaled.
      out: where the result goes, `[..., d + 1]` float32, and `x` may lie; None: new memory.
    """
    result = np.empty((*x.shape[:-1], x.shape[-1] + 1), np.float32) if out is None else out
    result[..., -1] = 1
    for row_range in blocks(len(x)):  # float64 of all rows at once would be several copies
        block = np.asarray(x[row_range], np.float64)
        if floor is not None:
            block = (block - moments.mean) / np.sqrt(moments.variance + floor)
        block = block / np.sqrt(x.shape[-1])
        length = np.sqrt(np.sum(block * block, -1, keepdims=True))
        result[row_range, ..., :-1] = block / np.maximum(length, 1.0)
    return result


def stretched(moments: Moments, cut: float) -> Moments:
    """Returns moments of variances `cut`^2 as large.

    With these and `cut`^2 times the floor `scaled` divides rows by `cut` times as much: they are
    cut at that length instead of 1, in units of the first moments, and still at most 1 long. It is
    a function of released numbers, so no bound on a record's gradient changes.
    """
    return moments._replace(second=moments.mean**2 + cut**2 * moments.variance)


def typical_length(moments: Moments, floor: float) -> float:
    """Returns the root of the mean squared length of rows before the cut, by released moments.

    A feature of variance v gives v / (v + floor) of 1 / d: where ranges are much wider than the
    data, rows are short. Noise may hide all variances, so it is at least 0.6.
    """
    variance = moments.variance
    return max(math.sqrt(np.mean(variance / (variance + floor))), 0.6)


# --- records of persons ---


class Records(NamedTuple):
    """A table as records, each a person with rows of weight 1 in all.

    Attributes:
      x: features in [-1, 1], `[n, rows, d]`.
      y: labels, `[n, rows]`: in {0, 1}, or in [-1, 1] of numbers; of K classes `[n, rows, K]`.
      weight: `[n, rows]`, 0 where a person has no further row, or the row no label. A row without
        one takes nothing from the weight of the person's other rows.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray


def by_person(rows: int, owners: Any, rows_per_owner: int) -> np.ndarray | None:
    """Returns the numbers of each person's first rows, `[n, rows_per_owner]`, -1 for none.

    Args:
      rows: how many there are.
      owners: whose each one is, `[rows]`; None: every row is a person's only one, which has None.
      rows_per_owner: rows of a person that are read.

    Raises:
      ValueError: for owners of another number, and as `problems.by_person`.
    """
    if owners is None:
        return None
    if len(owners) != rows:
        raise ValueError(f"owners must be one for each of {rows} rows, got {len(owners)}.")
    return rows_of_people(owners, rows_per_owner)


def records(x: np.ndarray, y: np.ndarray, row_numbers: np.ndarray | None = None, *,
            out: np.ndarray | None = None, store: Store = MEMORY) -> Records:
    """Arranges rows as records of persons.

    Args:
      x: `[rows, d]`.
      y: `[rows]` or `[rows, K]`; rows that are not `labelled` count with weight 0.
      row_numbers: the rows of each person, see `by_person`.
      out: where features of persons with several rows go, `[n, rows_per_owner, d]`; None: new
        memory.
      store: of labels and weights.
    """
    if row_numbers is None:
        weight = in_blocks(labelled, store.zeros(len(y)), y)
        return Records(x[:, None], in_blocks(np.nan_to_num, store.zeros(*y.shape), y)[:, None],
                       weight[:, None])
    shape = row_numbers.shape
    result = Records(np.empty((*shape, x.shape[1]), x.dtype) if out is None else out,
                     store.zeros(*shape, *y.shape[1:]), store.zeros(*shape))
    for block in blocks(len(row_numbers)):
        rows, present = row_numbers[block], row_numbers[block] >= 0
        # where there is no row, no other person's may stand, not even with weight 0
        result.x[block] = np.where(present[:, :, None], x[rows], 0)
        result.y[block] = np.where(present.reshape(*rows.shape, *[1] * (y.ndim - 1)),
                                   np.nan_to_num(y[rows]), 0)
        result.weight[block] = present * labelled(y[rows.ravel()]).reshape(rows.shape) / np.maximum(
            np.sum(present, 1, keepdims=True), 1)
    return result


def labelled(y: np.ndarray) -> np.ndarray:
    """Returns which rows have a label, `[rows]`: no NaN, and of K classes `[rows, K]` one."""
    return np.asarray(y.any(1) if y.ndim > 1 else ~np.isnan(y))


def weighted(rows: Records, moments: Moments, class_weight: Any) -> tuple[np.ndarray, Moments]:
    """Returns the weights of rows under weights of classes, and the share of positives under them.

    The weights are divided by the larger one, so that rows of a person still add up to 1 at most.

    Args:
      rows: of every person, with labels in {0, 1}.
      moments: the released ones.
      class_weight: of labels 0 and 1, above 0, or "balanced" for 1 over their released shares.
    """
    shares = np.array([1 - moments.prior, moments.prior])
    weights = 1 / shares if isinstance(class_weight, str) and class_weight == "balanced" else (
        class_weight)
    weights = np.asarray(weights, float) / np.max(weights)
    positive = float(np.clip(weights[1] * shares[1] / (weights @ shares), 1e-6, 1 - 1e-6))
    return rows.weight * weights[(rows.y > 0.5).astype(int)], moments._replace(prior=positive)


def group_of_persons(group: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Returns the group of every person, `[n]`.

    Args:
      group: of every row, `[rows]`; public.
      index: numbers of the rows of each person, see `by_person`.

    Raises:
      ValueError: for a person with rows of several groups: groups are public, so the
        refusal reveals nothing.
    """
    own_groups = np.where(index >= 0, np.asarray(group)[index], -1)
    first = own_groups[:, 0]
    if np.any((own_groups != first[:, None]) & (index >= 0)):
        raise ValueError("a person has rows of several groups: groups must be of persons, the same "
                         "in all rows of one (with by_label, the label too).")
    return first


# --- groups ---


def _loss(w: jax.Array, record: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
    """Returns a person's mean logistic loss: sum_k weight_k (ln(1 + e^(x_k w)) - y_k x_k w)."""
    x, y, weight = record
    t = x @ w
    return weight @ (jax.nn.softplus(t) - y * t)


def _gradient(z: Saddle, record: tuple[jax.Array, jax.Array, jax.Array]) -> Saddle:
    """Returns the loss's gradient: sum_k weight_k (sigma(x_k w) - y_k) x_k."""
    x, y, weight = record
    return Saddle((weight * (jax.nn.sigmoid(x @ z.w) - y)) @ x, ())


GROUP_LOGISTIC = GroupProblem(loss=_loss, operator=_gradient, project=lambda w: w, diameter=np.inf,
                              lipschitz=np.inf, bound=np.inf, convex=True)


@dataclasses.dataclass(frozen=True)
class Groups:
    """The group of every record; public.

    Attributes:
      number: `[n]`, from 0; `len(names)` for a record that is in none.
      names: of the groups.
      by_label: whether groups contain the label.
    """

    number: np.ndarray
    names: tuple[str, ...]
    by_label: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """Counts the records of each group.

        Raises:
          ValueError: for a group without one.
        """
        counts = np.bincount(self.number, minlength=len(self.names) + 1)[: len(self.names)]
        if not counts.all():
            empty = self.names[int(np.argmin(counts))]
            raise ValueError(f"group {empty!r} has no row in the table: take it out of the groups, "
                             "or merge it with another one.")
        return tuple(map(int, counts))

    @property
    def public_numbers(self) -> dict[str, Any]:
        """Returns the arguments of `rule.defaults`."""
        return {"sizes": self.sizes, "by_label": self.by_label}

    @property
    def assumed(self) -> tuple[str, ...]:
        """Returns sentences for the statement."""
        return ("Who is in which group is public, and so are the groups' sizes.",
                *("Groups contain the label, so every record's label is public: the guarantee is "
                  "about the rest of a record.",) * self.by_label)

    def part(self, rows: np.ndarray) -> "Groups":
        """Returns the groups of some records."""
        return dataclasses.replace(self, number=self.number[rows])

    def for_persons(self, row_numbers: np.ndarray | None) -> "Groups":
        """Returns the groups of persons by those of their rows; None: each has one row.

        Raises:
          ValueError: as `group_of_persons`.
        """
        return self if row_numbers is None else dataclasses.replace(
            self, number=group_of_persons(self.number, row_numbers))

    def cut(self, y: np.ndarray) -> "Groups":
        """Cuts each group by the label, `[n]` in {0, 1} or NaN for none: negatives first."""
        names = tuple(f"{name}, {sign}" for name in self.names for sign in ("negative", "positive"))
        inside = (self.number < len(self.names)) & ~np.isnan(y)
        return Groups(np.where(inside, 2 * self.number + (np.asarray(y) > 0.5), len(names)), names,
                      True)

    def arranged(self, records: PyTree) -> PyTree:
        """Arranges records `[n, ...]` as `[p, n_max, ...]`, without those that are in no group."""
        inside = self.number < len(self.names)
        return by_group(jax.tree.map(lambda x: x[inside], records), self.number[inside])[0]


def losses_of(key: jax.Array, described: GroupLosses, w: np.ndarray, records: PyTree,
              groups: Groups) -> dict[str, float]:
    """Releases the groups' noisy mean losses at a released model, by name.

    Args:
      key: for this release only.
      described: what was charged; one release.
      w: the model.
      records: `[n, ...]`.
      groups: of the records.
    """
    released: Any = release_group_losses(key, described, jnp.int32(0), GROUP_LOGISTIC,
                                         jnp.asarray(w, jnp.float32), groups.arranged(records))
    return dict(zip(groups.names, np.asarray(released, float).tolist(), strict=True))
