"""Private classifiers for groups: the worst of public ones, and fairness to private ones."""

import dataclasses
from typing import Any

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from jaxminimax.base.identity import exact
from jaxminimax.estimators.models import PrivateScorer
from jaxminimax.tables import columns, fair, records, scorer
from jaxminimax.tables.schema import Schema


@dataclasses.dataclass(eq=False, repr=False)
class PrivateWorstGroupClassifier(PrivateScorer):
    """A private classifier for the worst of several groups.

    With `by_label` each group is cut by the label, so that the worst one is the worst share of
    errors of one label in one group. Every group has the same weight at first, then weights move
    towards the groups of the largest noisy losses (`balanced_groups`). Labels are then public like
    groups: the guarantee is about the rest of a record.

    Without `by_label` the model is that of the average record. Groups with all labels in them
    differ in how hard they are, and more weight does not make the hardest one easier. Their mean
    losses under the model are released, `group_losses_`.

    Args:
      epsilon: epsilon of everything that `fit` releases, replace-one.
      delta: delta, in (0, 1), below 1/n.
      groups: name or number of the column of X with the group, where `fit` gets no groups; without
        either, those of `schema` are used, and its `by_label`.
      by_label: whether groups are cut by the label.
      schema: `Schema`, or columns by name; public. None if X are numbers.
      bounds: (low, high) of all columns or of each; public. None without a schema: ranges are
        released, and charged.
      most: the largest number of rows of one owner that are read, if `fit` gets owners.
      people: k, if any k rows may be of one person and owners are not known; a ledger must have the
        same number.
      ledger: a `Ledger` that every `fit` is charged to, and that refuses a fit beyond its budget.
      allow_large_delta: whether delta may be 1/n or more, which `fit` otherwise refuses.
      random_state: None for noise of the system's entropy. A seed is for experiments: anyone with
        the seed can remove the noise.

    Attributes:
      statement_: the privacy statement of `fit`.
      notes_: likely mistakes, from public facts and from released numbers.
      scorer_: the `Scorer`.
      classes_: the two classes.
      group_losses_: noisy mean losses of the groups by name, without `by_label`; else None.

    Examples:
        >>> from jaxminimax.estimators import PrivateWorstGroupClassifier
        >>> rng = np.random.default_rng(0)
        >>> X, group = rng.uniform(-1, 1, (300, 2)), np.arange(300) % 3
        >>> y = X[:, 0] + 0.1 * rng.normal(size=300) > 0
        >>> model = PrivateWorstGroupClassifier(epsilon=4.0, delta=1e-4, bounds=(-1.0, 1.0))
        >>> model.fit(X, y, groups=group).statement_.epsilon <= 4
        True
    """

    _: dataclasses.KW_ONLY
    groups: Any = None
    by_label: bool = False

    @property
    def group_losses_(self) -> dict[str, float] | None:
        """Returns the groups' losses that `fit` released."""
        check_is_fitted(self)
        return self.scorer_.group_losses

    def _groups(self, groups: Any, table: Any, target: np.ndarray,
                index: np.ndarray) -> records.Groups:
        groups, values = _found(self, groups, table)
        by_label = self.by_label or (values is not None and self.schema.by_label)
        if values is None:
            names, number = np.unique(exact(groups).astype(str), return_inverse=True)
            values = tuple(map(str, names))
        else:
            number = columns.places(groups, values)
        if number.shape != target.shape:
            raise ValueError(f"groups has shape {number.shape} and y {target.shape}: one for "
                             "every row.")
        cells = records.Groups(number, values)
        if by_label:
            cells = cells.cut(target)
        return dataclasses.replace(cells, number=records.group_of_persons(cells.number, index))


@dataclasses.dataclass(eq=False, repr=False)
class PrivateFairClassifier(PrivateScorer):
    """A private classifier whose predictions depend little on a group that is private too.

    Args:
      epsilon: epsilon of everything that `fit` releases, replace-one.
      delta: delta, in (0, 1), below 1/n.
      weight: the weight of the chi-square information between prediction and group, next to the
        logistic loss: a larger one is fairer and less accurate; public.
      kind: "parity", predictions independent of the group, or "odds", independent among the records
        of each class.
      groups: name or number of the column of X with the group, where `fit` gets no groups; without
        either, those of `schema` are used.
      group_values: the groups; public. None for those of `schema` with its column, else those that
        occur, which is then public. A row with another value is in no group.
      schema: `Schema`, or columns by name; public. None if X are numbers.
      bounds: (low, high) of all columns or of each; public. None without a schema: ranges are
        released, and charged.
      most: the largest number of rows of one owner that are read, if `fit` gets owners.
      people: k, if any k rows may be of one person and owners are not known; a ledger must have the
        same number.
      ledger: a `Ledger` that every `fit` is charged to, and that refuses a fit beyond its budget.
      allow_large_delta: whether delta may be 1/n or more, which `fit` otherwise refuses.
      random_state: None for noise of the system's entropy. A seed is for experiments: anyone with
        the seed can remove the noise.

    Attributes:
      statement_: the privacy statement of `fit`.
      notes_: likely mistakes, from public facts and from released numbers.
      scorer_: the `Scorer`.
      classes_: the two classes.
      groups_: the groups.

    Examples:
        >>> from jaxminimax.estimators import PrivateFairClassifier
        >>> rng = np.random.default_rng(0)
        >>> X, group = rng.uniform(-1, 1, (300, 2)), np.arange(300) % 2
        >>> y = X[:, 0] + 0.1 * rng.normal(size=300) > 0
        >>> model = PrivateFairClassifier(epsilon=4.0, delta=1e-4, bounds=(-1.0, 1.0))
        >>> model.fit(X, y, groups=group).statement_.epsilon <= 4
        True
    """

    _: dataclasses.KW_ONLY
    weight: float = 4.0
    kind: str = "parity"
    groups: Any = None
    group_values: Any = None

    def _groups(self, groups: Any, table: Any, target: np.ndarray,
                index: np.ndarray) -> np.ndarray:
        groups, values = _found(self, groups, table)
        values = values if self.group_values is None else self.group_values
        self._as_they_occur = values is None
        number, self.groups_ = _numbered(groups, values, len(target))
        # where a person has no further row, no other person's group may stand
        return np.where(index >= 0, number[index], -1)

    def _chosen(self, population: int, schema: Schema, kept: Any,
                **numbers: Any) -> fair.FairDefaults:
        return fair.fair_defaults(population, schema, len(self.groups_), weight=self.weight,
                                  kind=self.kind, **numbers)

    def _trained(self, key: jax.Array, rows: records.Records, kept: Any, schema: Schema,
                 chosen: Any, assumed: tuple[str, ...] = (), **stated: Any) -> scorer.Scorer:
        which = ": these are those that occur." if self._as_they_occur else "."
        return fair.train_fair(key, rows, kept, schema, chosen, **stated, assumed=(
            *assumed, "Which groups there are is public" + which))


def _found(model: Any, groups: Any, table: Any) -> tuple[Any, tuple[str, ...] | None]:
    """Returns the groups of all rows: those of `fit`, or a column; and those that are declared."""
    column, values = model.groups, None
    if groups is None and column is None and isinstance(model.schema, Schema):
        column, values = model.schema.groups, model.schema.group_values
    if groups is not None:
        return groups, None
    if column is None:
        raise ValueError("groups must be given: fit(X, y, groups=...), one for every row, or the "
                         "column that they are in, groups=... of the estimator.")
    if model.schema is None:  # columns of arrays have numbers
        names = list(getattr(model, "feature_names_in_", ()))
        column = f"x{names.index(column) if column in names else column}"
    if column not in table:
        raise ValueError(f"groups={model.groups!r} is no column of X: give its name or number.")
    return table[column], values


def _numbered(groups: Any, values: Any, rows: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns every row's group by number, -1 for a row in none of them, and the groups."""
    words = columns.as_words(groups)
    if words.shape != (rows,):
        raise ValueError(f"groups must be one for every row, got shape {words.shape} for {rows} "
                         "rows.")
    names = tuple(np.unique(words.astype(str)) if values is None else dict.fromkeys(
        map(columns.word, values)))
    if len(names) < 2:
        raise ValueError(f"groups must be two at least, got {list(names)}.")
    number = columns.places(words, names)
    return np.where(number < len(names), number, -1).astype(np.int32), names
