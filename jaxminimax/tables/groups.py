"""Records of a table in groups: which one each is in, the problem, and the losses of a model."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxminimax.base.types import GroupProblem, PyTree, Saddle
from jaxminimax.mechanism import GroupLosses
from jaxminimax.problems import by_group
from jaxminimax.releases.losses import release_group_losses

PUBLIC = "Who is in which group is public, and so are the groups' sizes."
LABELLED = ("Groups contain the label, so every record's label is public: the guarantee is about "
            "the rest of a record.")
SIGNS = ("negative", "positive")


def _loss(w: jax.Array, record: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
    """Mean logistic loss over a person's rows: sum_k weight_k (ln(1 + e^(x_k w)) - y_k x_k w)."""
    x, y, weight = record
    t = x @ w
    return weight @ (jax.nn.softplus(t) - y * t)


def _gradient(z: Saddle, record: tuple[jax.Array, jax.Array, jax.Array]) -> Saddle:
    """sum_k weight_k (sigma(x_k w) - y_k) x_k."""
    x, y, weight = record
    return Saddle((weight * (jax.nn.sigmoid(x @ z.w) - y)) @ x, ())


def _everywhere(w: PyTree) -> PyTree:
    return w


LOGISTIC = GroupProblem(loss=_loss, operator=_gradient, project=_everywhere, diameter=np.inf,
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
        """Records of each group.

        Raises:
          ValueError: for a group without one.
        """
        found = np.bincount(self.number, minlength=len(self.names) + 1)[: len(self.names)]
        if not found.all():
            empty = self.names[int(np.argmin(found))]
            raise ValueError(f"group {empty!r} has no row in the table: take it out of the groups, "
                             "or merge it with another one.")
        return tuple(map(int, found))

    @property
    def assumed(self) -> tuple[str, ...]:
        """Sentences for the statement."""
        return (PUBLIC, LABELLED) if self.by_label else (PUBLIC,)

    def cut(self, y: np.ndarray) -> "Groups":
        """Each group cut by the label, `[n]` in {0, 1}: negatives first."""
        names = tuple(f"{name}, {sign}" for name in self.names for sign in SIGNS)
        inside = self.number < len(self.names)
        return Groups(np.where(inside, 2 * self.number + (np.asarray(y) > 0.5), len(names)), names,
                      True)

    def arranged(self, records: PyTree) -> PyTree:
        """Records `[n, ...]` as `[p, n_max, ...]`, without those that are in no group."""
        inside = self.number < len(self.names)
        return by_group(jax.tree.map(lambda x: x[inside], records), self.number[inside])[0]


def losses_of(key: jax.Array, described: GroupLosses, w: np.ndarray, records: PyTree,
              groups: Groups) -> dict[str, float]:
    """The groups' noisy mean losses at a released model, by name.

    Args:
      key: for this release only.
      described: what was charged; one release.
      w: the model.
      records: `[n, ...]`.
      groups: of the records.
    """
    found: Any = release_group_losses(key, described, jnp.int32(0), LOGISTIC,
                                      jnp.asarray(w, jnp.float32), groups.arranged(records))
    return dict(zip(groups.names, np.asarray(found, float).tolist(), strict=True))
