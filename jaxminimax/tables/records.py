"""Rows of a table as records: of persons, on one scale, in public groups with their losses."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.types import GroupProblem, PyTree, Saddle
from jaxminimax.mechanism import GroupLosses
from jaxminimax.problems import by_group
from jaxminimax.problems._people import rows_of_people
from jaxminimax.releases.losses import release_group_losses
from jaxminimax.tables.scaling import Moments
from jaxminimax.tables.storage import MEMORY, Store, blocks, in_blocks


class Records(NamedTuple):
    """A table as records, each a person with rows of weight 1 in all.

    Attributes:
      x: features in [-1, 1], `[n, rows, d]`.
      y: labels, `[n, rows]`: in {0, 1}, or in [-1, 1] of numbers; of K classes `[n, rows, K]`.
      weight: `[n, rows]`, 0 where a person has no further row, or the label is a missing number.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray


def by_person(rows: int, owners: Any | None, most: int) -> np.ndarray:
    """Returns the first rows of each person by number, `[n, most]`, -1 where there is none.

    Args:
      rows: how many there are.
      owners: whose each one is, `[rows]`; None: every row is a person's only one.
      most: rows of a person that are read.

    Raises:
      ValueError: for owners of another number, and as `problems.by_person`.
    """
    if owners is None:
        return np.arange(rows)[:, None]
    if len(owners) != rows:
        raise ValueError(f"owners must be one for each of {rows} rows, got {len(owners)}.")
    return rows_of_people(owners, most)


def records(x: np.ndarray, y: np.ndarray, owners: Any | None = None, most: int = 1,
            *, out: np.ndarray | None = None, store: Store = MEMORY) -> Records:
    """Arranges rows as records of persons.

    Args:
      x: `[rows, d]`.
      y: `[rows]` or `[rows, K]`; NaN where the label is missing, and counts with weight 0.
      owners: whose each row is; None: every row is a person's only one.
      most: rows of a person that are read.
      out: where features of persons with owners go, `[n, most, d]`; None: new memory.
      store: of labels and weights.
    """
    if owners is None:
        weight = in_blocks(_labelled, store.zeros(len(y)), y)
        return Records(x[:, None], in_blocks(np.nan_to_num, store.zeros(*y.shape), y)[:, None],
                       weight[:, None])
    index = by_person(len(x), owners, most)
    n = len(index)
    result = Records(np.empty((n, most, x.shape[1]), x.dtype) if out is None else out,
                     store.zeros(n, most, *y.shape[1:]), store.zeros(n, most))
    for part in blocks(n):
        rows, present = index[part], index[part] >= 0
        # where there is no row, no other person's may stand, not even with weight 0
        result.x[part] = np.where(present[:, :, None], x[rows], 0)
        result.y[part] = np.where(present.reshape(*rows.shape, *[1] * (y.ndim - 1)),
                                  np.nan_to_num(y[rows]), 0)
        labelled = _labelled(y[rows].reshape(rows.size, -1)).reshape(rows.shape)
        result.weight[part] = present * labelled / np.maximum(
            np.sum(present, 1, keepdims=True), 1)
    return result


def _labelled(y: np.ndarray) -> np.ndarray:
    """Returns which rows have a label, `[rows]`."""
    return ~np.isnan(y).reshape(len(y), -1).any(1)


def weighted(rows: Records, by: Moments, class_weight: Any) -> tuple[np.ndarray, Moments]:
    """Returns the weights of rows under weights of classes, and the share of positives under them.

    The weights are divided by the larger one, so that rows of a person still add up to 1 at most.

    Args:
      rows: of every person, with labels in {0, 1}.
      by: the released moments.
      class_weight: of labels 0 and 1, above 0, or "balanced" for 1 over their released shares.
    """
    shares = np.array([1 - by.prior, by.prior])
    weights = 1 / shares if isinstance(class_weight, str) and class_weight == "balanced" else (
        class_weight)
    weights = np.asarray(weights, float) / np.max(weights)
    positive = float(np.clip(weights[1] * shares[1] / (weights @ shares), 1e-6, 1 - 1e-6))
    return rows.weight * weights[(rows.y > 0.5).astype(int)], by._replace(prior=positive)


def group_of_persons(group: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Returns the group of every person, `[n]`.

    Args:
      group: of every row, `[rows]`; public.
      index: numbers of the rows of each person, see `by_person`.

    Raises:
      ValueError: for a person with rows of several groups: groups are public, so the
        refusal reveals nothing.
    """
    own = np.where(index >= 0, np.asarray(group)[index], -1)
    first = own[:, 0]
    if np.any((own != first[:, None]) & (index >= 0)):
        raise ValueError("a person has rows of several groups: groups must be of persons, the same "
                         "in all rows of one (with by_label, the label too).")
    return first


# --- groups ---


PUBLIC = "Who is in which group is public, and so are the groups' sizes."
LABELLED = ("Groups contain the label, so every record's label is public: the guarantee is about "
            "the rest of a record.")
SIGNS = ("negative", "positive")


def _loss(w: jax.Array, record: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
    """Returns a person's mean logistic loss: sum_k weight_k (ln(1 + e^(x_k w)) - y_k x_k w)."""
    x, y, weight = record
    t = x @ w
    return weight @ (jax.nn.softplus(t) - y * t)


def _gradient(z: Saddle, record: tuple[jax.Array, jax.Array, jax.Array]) -> Saddle:
    """Returns the loss's gradient: sum_k weight_k (sigma(x_k w) - y_k) x_k."""
    x, y, weight = record
    return Saddle((weight * (jax.nn.sigmoid(x @ z.w) - y)) @ x, ())


def _everywhere(w: PyTree) -> PyTree:
    return w


GROUP_LOGISTIC = GroupProblem(loss=_loss, operator=_gradient, project=_everywhere, diameter=np.inf,
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
    def assumed(self) -> tuple[str, ...]:
        """Returns sentences for the statement."""
        return (PUBLIC, LABELLED) if self.by_label else (PUBLIC,)

    def cut(self, y: np.ndarray) -> "Groups":
        """Cuts each group by the label, `[n]` in {0, 1}: negatives first."""
        names = tuple(f"{name}, {sign}" for name in self.names for sign in SIGNS)
        inside = self.number < len(self.names)
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
