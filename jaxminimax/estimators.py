"""Estimators with scikit-learn's conventions; needs `pip install 'jaxminimax[sklearn]'`.

    model = PrivateAUCClassifier(epsilon=1.0, delta=1e-6, bounds=(-1.0, 1.0)).fit(X, y)
    model.decision_function(X), model.statement_

Every `fit` is a release of its own: what a cross-validation costs is the sum over its folds.
Parameters are public: choosing them by scores on the same records is not in the statement.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import jax
import numpy as np

from jaxminimax.base import public_names as _public_names
from jaxminimax.base.identity import exact
from jaxminimax.noise import secret_key
from jaxminimax.tables import notes, records, statistics
from jaxminimax.tables.columns import Charged, Column, Number, as_words, places, word
from jaxminimax.tables.fair import FairDefaults, fair_defaults, train_fair
from jaxminimax.tables.rule import defaults
from jaxminimax.tables.schema import Schema
from jaxminimax.tables.scorer import Scorer
from jaxminimax.tables.training import train_records

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.metrics import roc_auc_score
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("jaxminimax.estimators needs scikit-learn: pip install "
                      "'jaxminimax[sklearn]'") from error


_LABEL = "label of the records"  # no column of a table that a schema could declare


def __dir__() -> list[str]:
    return _public_names(globals())


class _PrivateScorer(ClassifierMixin, BaseEstimator):
    """Base of the estimators: a private linear scorer with the settings of `tables.rule`."""

    def __init__(self, epsilon: float = 1.0, delta: float = 1e-6, *, schema: Any = None,
                 bounds: Any = None, most: int = 1, ledger: Any = None,
                 allow_large_delta: bool = False, random_state: Any = None) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.bounds = bounds
        self.most = most
        self.ledger = ledger
        self.allow_large_delta = allow_large_delta
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.allow_nan = True  # a missing value is the middle of its range
        tags.non_deterministic = self.random_state is None
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None, owners: Any = None) -> Self:
        """Trains on all rows.

        Args:
          X: numbers `[n, d]`, or a data frame with the columns of `schema`.
          y: labels of two classes, `[n]`; which classes there are is public.
          groups: of every row, `[n]`; the classifiers of groups need them. Those of the worst group
            are public, those to be fair to as private as the row.
          owners: whose each row is, `[n]`: a record is a person, of whom `most` rows are read.

        Raises:
          ValueError: for labels of one class or of more than two, for numbers out of range, or
            where the ledger cannot pay.
        """
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        table, y = self._table(X, y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError("Classifier can't train when only one class is present.")
        key = self._key()
        positive = (y == self.classes_[1]).astype(np.float32)
        most = 1 if owners is None else self.most
        index = records.by_person(len(y), owners, most)
        kept = self._groups(groups, positive, index)
        columns, how = self._columns(table)
        schema = Schema(columns, _LABEL, self.classes_[1])
        notes.check_delta(self.delta, len(index), self.allow_large_delta)
        paid = statistics.ranges_query(len(index), schema, self.epsilon, self.delta)
        chosen = self._chosen(len(index), schema, kept, epsilon=self.epsilon, delta=self.delta,
                              alongside=paid)
        noted = (*notes.before(schema, len(index), schema.names(table)), *chosen.notes())
        notes.warn(noted)
        if self.ledger is not None:  # charged before anything is released, or refused
            self.ledger.reserve(chosen.mechanism())
        for described in paid:
            cells = records.records(statistics.charged_cells(schema, table), positive, owners, most)
            schema = statistics.with_ranges(schema, statistics.release_ranges(
                jax.random.fold_in(key, 1), described, cells.x, cells.weight))
        rows = records.records(schema.features(table), positive, owners, most)
        self.scorer_: Scorer = self._trained(
            jax.random.fold_in(key, 0), rows, kept, schema, chosen,
            unit="one row" if owners is None else f"one person, {self.most} rows of whom are read",
            assumed=(how, "Which classes there are is public."), noted=noted)
        self.statement_ = self.scorer_.statement
        return self

    @property
    def notes_(self) -> tuple[notes.Note, ...]:
        """Returns likely mistakes, from public facts and from released numbers."""
        check_is_fitted(self)
        return self.scorer_.notes

    def decision_function(self, X: Any) -> np.ndarray:
        """Returns the log-odds of the second class, `[n]`."""
        check_is_fitted(self)
        table, _ = self._table(X, None)
        return self.scorer_.decision_function(table)

    def predict(self, X: Any) -> np.ndarray:
        """Returns the likelier class, `[n]`."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int)]

    def _key(self) -> jax.Array:
        """Draws a secret key, or for experiments one from `random_state`."""
        if self.random_state is None:
            return secret_key()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return jax.random.key(seed, impl="threefry2x32")

    def _table(self, X: Any, y: Any) -> tuple[Mapping[str, Any] | Any, Any]:
        """Returns columns by name, and checked labels."""
        if y is not None:
            check_classification_targets(y)
            kind = type_of_target(y, input_name="y", raise_unknown=True)
            if kind != "binary":
                raise ValueError("Only binary classification is supported. The type of the target "
                                 f"is {kind}.")
        if self.schema is not None:
            if y is not None:
                y = np.asarray(y)
                first = next(iter(self._declared()))
                rows = len(X[first]) if first in X else len(y)  # a missing column is named later
                if len(y) != rows:
                    raise ValueError(f"X has {rows} rows and y {len(y)}: they must be equal.")
                self.n_features_in_ = len(self._declared())
            return X, y
        # infinity is clipped like any number: that a cell is refused would tell of it
        how: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": False}
        if y is None:
            X = validate_data(self, X, reset=False, **how)
        else:
            X, y = validate_data(self, X, y, ensure_min_samples=2, **how)
        return {f"x{k}": X[:, k] for k in range(X.shape[1])}, y

    def _declared(self) -> Mapping[str, Column]:
        return self.schema.columns if isinstance(self.schema, Schema) else self.schema

    def _columns(self, table: Any) -> tuple[Mapping[str, Column], str]:
        """Returns the columns as declared or with ranges to be released, and a sentence."""
        charged = "Ranges of {} were released, for a tenth of the budget."
        if self.schema is not None:
            columns = self._declared()
            asked = [name for name, kind in columns.items() if isinstance(kind, Charged)]
            return columns, " ".join(("The schema is public: it was not read off these records.",
                                      *([charged.format(", ".join(asked))] if asked else ())))
        if self.bounds is not None:
            low, high = (np.broadcast_to(b, len(table)) for b in self.bounds)
            return ({name: Number(float(a), float(b))
                     for name, a, b in zip(table, low, high, strict=True)},
                    "The bounds are public: they were not read off these records.")
        return dict.fromkeys(table, Charged()), charged.format("the columns")

    def _groups(self, groups: Any, positive: np.ndarray, index: np.ndarray) -> Any:
        """Returns the records' groups, for a classifier that uses them."""
        return None

    def _chosen(self, population: int, schema: Schema, kept: Any, **target: Any) -> Any:
        """Chooses the settings from public numbers."""
        how = {} if kept is None else {"sizes": kept.sizes, "by_label": kept.by_label}
        return defaults(population, schema, **how, **target)

    def _trained(self, key: jax.Array, rows: records.Records, kept: Any, schema: Schema,
                 chosen: Any, assumed: tuple[str, ...] = (), **stated: Any) -> Scorer:
        return train_records(key, rows, schema, chosen, groups=kept, assumed=assumed, **stated)


class PrivateAUCClassifier(_PrivateScorer):
    """A private linear scorer of two classes, trained for the area under the ROC curve.

    Args:
      epsilon: epsilon of everything that `fit` releases, replace-one.
      delta: delta, in (0, 1), below 1/n.
      schema: `Schema`, or columns by name; public. None if X are numbers.
      bounds: (low, high) of all columns or of each; public. None without a schema: ranges are
        released, and charged.
      most: the largest number of rows of one owner that are read, if `fit` gets owners.
      ledger: a `Ledger` that every `fit` is charged to, and that refuses a fit beyond its budget.
      allow_large_delta: whether delta may be 1/n or more, which `fit` otherwise refuses.
      random_state: None for noise of the system's entropy. A seed is for experiments: anyone with
        the seed can remove the noise.

    Attributes:
      statement_: the privacy statement of `fit`.
      notes_: likely mistakes, from public facts and from released numbers.
      scorer_: the `Scorer`.
      classes_: the two classes.

    Examples:
        >>> from jaxminimax.estimators import PrivateAUCClassifier
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-1, 1, (300, 2))
        >>> y = X[:, 0] + 0.1 * rng.normal(size=300) > 0
        >>> model = PrivateAUCClassifier(epsilon=4.0, delta=1e-4, bounds=(-1.0, 1.0)).fit(X, y)
        >>> model.decision_function(X).shape, model.statement_.epsilon <= 4
        ((300,), True)
    """

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Returns the AUC; it is not private, and for records that were not used to train."""
        return float(roc_auc_score(np.asarray(y) == self.classes_[1], self.decision_function(X),
                                   sample_weight=sample_weight))


class PrivateWorstGroupClassifier(_PrivateScorer):
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
      by_label: whether groups are cut by the label.
      schema: `Schema`, or columns by name; public. None if X are numbers.
      bounds: (low, high) of all columns or of each; public. None without a schema: ranges are
        released, and charged.
      most: the largest number of rows of one owner that are read, if `fit` gets owners.
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

    def __init__(self, epsilon: float = 1.0, delta: float = 1e-6, *, by_label: bool = False,
                 schema: Any = None, bounds: Any = None, most: int = 1, ledger: Any = None,
                 allow_large_delta: bool = False, random_state: Any = None) -> None:
        super().__init__(epsilon, delta, schema=schema, bounds=bounds, most=most, ledger=ledger,
                         allow_large_delta=allow_large_delta, random_state=random_state)
        self.by_label = by_label

    @property
    def group_losses_(self) -> dict[str, float] | None:
        """Returns the groups' losses that `fit` released."""
        check_is_fitted(self)
        return self.scorer_.group_losses

    def _groups(self, groups: Any, positive: np.ndarray, index: np.ndarray) -> records.Groups:
        if groups is None:
            raise ValueError("groups must be given: fit(X, y, groups=...), one for every row.")
        names, number = np.unique(exact(groups).astype(str), return_inverse=True)
        if number.shape != positive.shape:
            raise ValueError(f"groups has shape {number.shape} and y {positive.shape}: one for "
                             "every row.")
        cells = records.Groups(number, tuple(map(str, names)))
        if self.by_label:
            cells = cells.cut(positive)
        return dataclasses.replace(cells, number=records.group_of_persons(cells.number, index))


class PrivateFairClassifier(_PrivateScorer):
    """A private classifier whose predictions depend little on a group that is private too.

    Args:
      epsilon: epsilon of everything that `fit` releases, replace-one.
      delta: delta, in (0, 1), below 1/n.
      weight: the weight of the chi-square information between prediction and group, next to the
        logistic loss: a larger one is fairer and less accurate; public.
      kind: "parity", predictions independent of the group, or "odds", independent among the records
        of each class.
      group_values: the groups; public. None for those that occur, which is then public. A row with
        another value is in no group.
      schema: `Schema`, or columns by name; public. None if X are numbers.
      bounds: (low, high) of all columns or of each; public. None without a schema: ranges are
        released, and charged.
      most: the largest number of rows of one owner that are read, if `fit` gets owners.
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

    def __init__(self, epsilon: float = 1.0, delta: float = 1e-6, *, weight: float = 4.0,
                 kind: str = "parity", group_values: Any = None, schema: Any = None,
                 bounds: Any = None, most: int = 1, ledger: Any = None,
                 allow_large_delta: bool = False, random_state: Any = None) -> None:
        super().__init__(epsilon, delta, schema=schema, bounds=bounds, most=most, ledger=ledger,
                         allow_large_delta=allow_large_delta, random_state=random_state)
        self.weight = weight
        self.kind = kind
        self.group_values = group_values

    def _groups(self, groups: Any, positive: np.ndarray, index: np.ndarray) -> np.ndarray:
        number, self.groups_ = _numbered(groups, self.group_values, len(positive))
        # where a person has no further row, no other person's group may stand
        return np.where(index >= 0, number[index], -1)

    def _chosen(self, population: int, schema: Schema, kept: Any, **target: Any) -> FairDefaults:
        return fair_defaults(population, schema, len(self.groups_), weight=self.weight,
                             kind=self.kind, **target)

    def _trained(self, key: jax.Array, rows: records.Records, kept: Any, schema: Schema,
                 chosen: Any, assumed: tuple[str, ...] = (), **stated: Any) -> Scorer:
        which = ": these are those that occur." if self.group_values is None else "."
        return train_fair(key, rows, kept, schema, chosen, **stated, assumed=(
            *assumed, "Which groups there are is public" + which))


def _numbered(groups: Any, values: Any, rows: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns every row's group by number, -1 for a row in none of them, and the groups."""
    if groups is None:
        raise ValueError("groups must be given: fit(X, y, groups=...), one for every row.")
    words = as_words(groups)
    if words.shape != (rows,):
        raise ValueError(f"groups must be one for every row, got shape {words.shape} for {rows} "
                         "rows.")
    names = tuple(np.unique(words.astype(str)) if values is None else dict.fromkeys(
        map(word, values)))
    if len(names) < 2:
        raise ValueError(f"groups must be two at least, got {list(names)}.")
    number = places(words, names)
    return np.where(number < len(names), number, -1).astype(np.int32), names
