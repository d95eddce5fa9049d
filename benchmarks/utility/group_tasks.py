"""Tables cut into groups by public attributes, and the settings that private training uses."""

import dataclasses
import os
from typing import Any, NamedTuple

import numpy as np

import jaxminimax as jmm
from benchmarks import data

# Names of the groups of every attribute, and the columns of the loaded features that say which one
# a record is in: the column that is switched on, or the last name if none is.
ATTRIBUTES: dict[str, dict[str, tuple[tuple[str, ...], slice]]] = {
    "adult": {
        "sex": (("female", "male"), slice(71, 73)),
        "race": (("white", "Asian", "American Indian", "other race", "black"), slice(66, 71)),
    },
    "randhie": {"health": (("good", "fair", "poor", "excellent"), slice(6, 9))},
    "ijcnn1": {"phase": (tuple(f"phase {i}" for i in range(10)), slice(0, 10))},
}
GROUPS = {"adult": ("sex_race", "sex", "race"), "randhie": ("health",), "ijcnn1": ("phase",)}
SMALL = ("merge", "drop")


class Settings(NamedTuple):
    """How a linear model is trained; chosen on Adult, on its training file, at epsilon = 1.

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


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A data set in groups.

    Attributes:
      name: of the data set.
      groups: what made the groups, in words.
      names: of the groups, `p` of them.
      train: x `[p, n_max, d]` and y `[p, n_max]` in {-1, 1}.
      sizes: training records of each group.
      test: as `train`.
      test_sizes: held-out records of each group.
      flat: the training records without groups, x `[n, d]` and y `[n]`.
      loss: its name.
      problem: loss and set of models.
      settings: see `Settings`.
      unit: what one record is.
      public: the public knowledge that preprocessing and groups use.
      left_out: what became of groups that are too small, in words.
    """

    name: str
    groups: str
    names: tuple[str, ...]
    train: Any
    sizes: tuple[int, ...]
    test: Any
    test_sizes: tuple[int, ...]
    flat: Any
    loss: str
    problem: jmm.GroupProblem
    settings: Settings
    unit: str
    public: tuple[str, ...]
    left_out: str

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return int(self.flat[0].shape[1])


def attribute(dataset: str, name: str, x: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """The number of every record's group by one attribute, and the groups' names."""
    names, columns = ATTRIBUTES[dataset][name]
    on = x[:, columns] > 0.3  # indicators are shifted and scaled: to 0.63 or more, or below 0.1
    number = np.where(on.any(1), on.argmax(1), len(names) - 1)
    return number, names


def cut(dataset: str, groups: str, by_label: bool, x: np.ndarray,
        y: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Every record's group by several attributes, and by its label where asked."""
    number, names = np.zeros(len(x), int), ("",)
    for part in groups.split("_"):
        more, own = attribute(dataset, part, x)
        number = number * len(own) + more
        names = tuple(f"{a} {b}".strip() for a in names for b in own)
    if by_label:
        number = number * 2 + (y > 0.5)
        names = tuple(f"{a} {sign}" for a in names for sign in ("-", "+"))
    return number, names


def large_enough(number: np.ndarray, names: tuple[str, ...], least: int, small: str,
                 ) -> tuple[np.ndarray, tuple[str, ...], str]:
    """New numbers for old ones, -1 to drop, so that every group has `least` training records.

    Args:
      number: groups of the training records.
      names: of all groups.
      least: records.
      small: "merge" puts the others into one group, or drops them if that is still too small.

    Returns:
      The new number of every old one, the new names, and in words what became of the others.

    Raises:
      ValueError: if no group is left.
    """
    counts = np.bincount(number, minlength=len(names))
    kept = np.flatnonzero(counts >= least)
    few = np.flatnonzero(counts < least)
    new = np.full(len(names), -1)
    new[kept] = np.arange(len(kept))
    kept_names = tuple(names[i] for i in kept)
    listed = ", ".join(f"{names[i]} ({counts[i]})" for i in few if counts[i])
    total = int(counts[few].sum())
    said = "" if not total else f"Below {least} training records, dropped: {listed}."
    if total >= least and small == "merge":
        new[few] = len(kept)
        kept_names += ("others",)
        said = f"Below {least} training records, merged: {listed}."
    if not kept_names:
        raise ValueError(f"no group has {least} training records; lower --min-rows")
    return new, kept_names, said


def _with_constant(x: np.ndarray) -> np.ndarray:
    return np.hstack([x, np.ones((len(x), 1), x.dtype)])


def load(dataset: str, groups: str, *, by_label: bool = False, least: int = 500,
         small: str = "merge", loss: str = "logistic", data_dir: str | os.PathLike | None = None,
         seed: int = 0) -> Task:
    """A task; the split into training and held-out records is the one of `seed`.

    Raises:
      ValueError: for data that cannot be loaded, or no group with enough records.
    """
    found = data.load(dataset, data_dir=data_dir, seed=seed)
    number, names = cut(dataset, groups, by_label, found.x_train, found.y_train)
    other, _ = cut(dataset, groups, by_label, found.x_test, found.y_test)
    new, names, left_out = large_enough(number, names, least, small)

    def part(x: np.ndarray, y: np.ndarray, number: np.ndarray) -> tuple:
        kept = new[number] >= 0
        rows = _with_constant(x[kept]), (2 * y[kept] - 1).astype(np.float32)
        return rows, *jmm.problems.by_group(rows, new[number][kept])

    flat, train, sizes = part(found.x_train, found.y_train, number)
    _, test, test_sizes = part(found.x_test, found.y_test, other)
    chosen = Settings()
    problem = jmm.problems.group_glm(loss, feature_bound=chosen.feature_bound,
                                     radius=chosen.radius)
    said = groups.replace("_", " and ") + (" and label" if by_label else "")
    public = (*found.public, f"Groups are made by {said}. These are public for every record"
              + (", its label included: replacing a record keeps them." if by_label else
                 ": replacing a record keeps them."),
              "Which groups are too small is decided from their public sizes.")
    return Task(dataset, said, names, train, sizes, test, test_sizes, flat, loss, problem,
                chosen, found.unit, public, left_out)


def synthetic(records: int, groups: int, dim: int, seed: int = 0) -> Task:
    """Groups of equal size with labels by a linear rule of their own near a common one."""
    rng = np.random.default_rng(seed)
    n = records // groups
    rule = rng.normal(size=dim) + 0.5 * rng.normal(size=(groups, dim))

    def sample(n: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(groups, n, dim)).astype(np.float32)
        x *= np.float32(3 / dim**0.5)
        score = np.einsum("gnd,gd->gn", x, rule.astype(np.float32))
        return x, np.where(score + 0.5 * rng.normal(size=score.shape) > 0, 1, -1).astype(np.float32)

    train, test = sample(n), sample(min(n, 1000))
    flat = tuple(v.reshape(groups * n, *v.shape[2:]) for v in train)
    chosen = Settings(iterations=100, rounds=records // 2)
    problem = jmm.problems.group_glm("logistic", feature_bound=chosen.feature_bound,
                                     radius=chosen.radius)
    return Task("synthetic", "construction", tuple(f"group {i}" for i in range(groups)), train,
                (n,) * groups, test, (min(n, 1000),) * groups, flat, "logistic", problem, chosen,
                "one record", (), "")
