"""Tables in groups, split into training and held-out records, and the settings of the methods."""

import dataclasses
import os
from typing import Any, NamedTuple

import numpy as np

import jaxminimax as jmm
from benchmarks.accuracy.worst_group import tables
from jaxminimax.apps.tables import records
from jaxminimax.apps.tables.records import Groups

SMALL = ("merge", "drop")


class Settings(NamedTuple):
    """How the theorems' methods train a linear model; chosen on Adult at epsilon = 1.

    Attributes:
      feature_bound: r, on a record's features with a constant 1 appended.
      radius: R, of the ball of models.
      clip: C, on a record's gradient.
      loss_bound: B, on a record's loss where it is released.
      iterations: rounds.
      reach: the step is this times `group_sgd.gradient_step`.
      weight_step: of the log weights.
      share: of epsilon, for the losses.
      solved: r and R of `phased_erm`, whose noise grows with them.
      phases: of `phased_erm`.
      farther: its step size eta is this times `phased_erm.calibrated_eta`.
      online: R, C and B of `group_oco`.
      rounds: of `group_oco`.
    """

    feature_bound: float = 4.0
    radius: float = 5.0
    clip: float = 1.0
    loss_bound: float = 3.0
    iterations: int = 300
    reach: float = 0.4
    weight_step: float = 0.3
    share: float = 0.2
    solved: tuple[float, float] = (2.0, 2.0)
    phases: int = 2
    farther: float = 8.0
    online: tuple[float, float, float] = (1.0, 1.0, 1.0)
    rounds: int = 2000


class Rows(NamedTuple):
    """Records of a split.

    Attributes:
      x: features in [-1, 1], `[n, width]`.
      y: labels in {0, 1}, `[n]`.
      group: `[n]`, below p.
    """

    x: np.ndarray
    y: np.ndarray
    group: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A table in groups. Every split has the same number of records in every group.

    Attributes:
      name: of the table.
      groups: what made the groups, in words.
      names: of the groups, `p` of them.
      by_label: whether groups contain the label.
      rows: training records, or all of them if there is no published test file.
      held: the published test records, or None.
      table: where they are from; None of made-up records.
      settings: see `Settings`.
      unit: what one record is.
      public: the public knowledge that preprocessing and groups use.
      left_out: what became of groups that are too small, in words.
    """

    name: str
    groups: str
    names: tuple[str, ...]
    by_label: bool
    rows: Rows
    held: Rows | None
    table: tables.Table | None
    settings: Settings
    unit: str
    public: tuple[str, ...]
    left_out: str

    @property
    def title(self) -> str:
        """Of the table and its groups."""
        return f"{self.name}, {self.groups}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Training records of each group."""
        return tuple(map(int, np.bincount(self.split(0)[0].group)))

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return int(self.rows.x.shape[1]) + 1

    def split(self, seed: int) -> tuple[Rows, Rows]:
        """Training and held-out rows: the published ones, or a fifth of every group held out."""
        if self.held is not None:
            return self.rows, self.held
        order = np.random.default_rng(seed).permutation(len(self.rows.y))
        group = self.rows.group[order]
        held = np.zeros(len(order), bool)
        for i in range(len(self.names)):
            own = np.flatnonzero(group == i)
            held[own[: len(own) // 5]] = True
        return (Rows(*(x[order[~held]] for x in self.rows)),
                Rows(*(x[order[held]] for x in self.rows)))

    def groups_of(self, rows: Rows) -> Groups:
        """The groups of a split, as tables know them."""
        return Groups(rows.group, self.names, self.by_label)

    def table_of(self, rows: Rows) -> records.Table:
        """The rows of a split, as tables know them."""
        x = np.hstack([rows.x, np.zeros((len(rows.x), 1))]).astype(np.float32)
        return records.Table(x, np.array(rows.y, np.float32), None, None, None, records.Store())

    def centred(self, x: np.ndarray) -> np.ndarray:
        """Zeros and ones of a category of k values minus 1/k, and a constant 1: public numbers."""
        if self.table is not None:
            shift = [np.full(c.width, 0.0 if any(c.squares) else 1 / max(c.width, 2))
                     for c in self.table.schema.columns.values()]
            x = x - np.concatenate(shift)
        return np.hstack([x, np.ones((len(x), 1))]).astype(np.float32)

    def arranged(self, rows: Rows) -> tuple[Any, tuple[int, ...]]:
        """Features `[p, n_max, d]`, a constant 1 the last, y in {-1, 1} `[p, n_max]`, and sizes."""
        return jmm.problems.by_group((self.centred(rows.x), 2 * rows.y - 1), rows.group)


def load(dataset: str, groups: str, *, by_label: bool = False, least: int = 150,
         small: str = "merge", data_dir: str | os.PathLike[str] | None = None) -> Task:
    """A task.

    Raises:
      ValueError: for data that cannot be loaded, or no group with enough records.
    """
    table = tables.load(dataset, data_dir)
    number, names = tables.cut(dataset, groups, by_label, table.train)
    new, names, left_out = tables.large_enough(number, names, least, small)

    def rows(frame: Any, number: np.ndarray) -> Rows:
        kept = new[number] >= 0
        return Rows(table.schema.features(frame)[kept], table.schema.labels(frame)[kept],
                    new[number][kept])

    held = None
    if table.test is not None:
        held = rows(table.test, tables.cut(dataset, groups, by_label, table.test)[0])
    said = groups.replace("_", " and ") + (" and label" if by_label else "")
    public = (*table.public, f"Groups are made by {said}. These are public for every record"
              + (", its label included: replacing a record keeps them." if by_label else
                 ": replacing a record keeps them."),
              "Which groups are too small is decided from their public sizes.")
    return Task(dataset, said, names, by_label, rows(table.train, number), held, table, Settings(),
                table.unit, public, left_out)


def synthetic(records: int, groups: int, dim: int, seed: int = 0) -> Task:
    """Groups of equal size with labels by a linear rule of their own near a common one."""
    rng = np.random.default_rng(seed)
    rule = rng.normal(size=dim - 1) + 0.5 * rng.normal(size=(groups, dim - 1))

    def sample(n: int) -> Rows:
        x = rng.normal(size=(groups, n, dim - 1)).astype(np.float32)
        x *= np.float32(3 / dim**0.5)
        score = np.einsum("gnd,gd->gn", x, rule.astype(np.float32))
        y = (score + 0.5 * rng.normal(size=score.shape) > 0).astype(np.float32)
        return Rows(x.reshape(groups * n, -1), y.ravel(), np.repeat(np.arange(groups), n))

    n = records // groups
    return Task("synthetic", "construction", tuple(f"group {i}" for i in range(groups)), False,
                sample(n), sample(min(n, 1000)), None,
                Settings(iterations=100, rounds=records // 2), "one record", (), "")
