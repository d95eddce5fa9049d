"""Estimators with scikit-learn's conventions; needs `pip install 'jaxminimax[sklearn]'`.

    model = PrivateAUCClassifier(epsilon=1.0, delta=1e-6, bounds=(-1.0, 1.0)).fit(X, y)
    model.decision_function(X), model.statement_

Every `fit` is a release of its own: what a cross-validation costs is the sum over its folds.
Parameters are public: choosing them by scores on the same records is not in the statement.
"""

from collections.abc import Mapping
from typing import Any, Self

import jax
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import roc_auc_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from jaxminimax.accounting import calibrate_noise
from jaxminimax.base.types import Saddle
from jaxminimax.mechanism import Query, Repeat
from jaxminimax.noise import secret_key
from jaxminimax.tables import ranges
from jaxminimax.tables.columns import Column, Number, as_numbers
from jaxminimax.tables.records import Records, balanced, by_person, records
from jaxminimax.tables.rule import defaults
from jaxminimax.tables.schema import Schema
from jaxminimax.tables.scorer import Scorer, train_records

_LABEL = "label of the records"  # no column of a table that a schema could declare


class _PrivateScorer(ClassifierMixin, BaseEstimator):
    """What the estimators share: a private linear scorer by the defaults of `tables.rule`."""

    def __init__(self, epsilon: float = 1.0, delta: float = 1e-6, *, schema: Any = None,
                 bounds: Any = None, most: int = 1, ledger: Any = None,
                 random_state: Any = None) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.bounds = bounds
        self.most = most
        self.ledger = ledger
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
          groups: of every row, public; the classifier of the worst group needs them.
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
        index = by_person(len(y), owners, most)
        sizes, importance = self._groups(groups, index)
        columns, paid, how = self._columns(table, len(index))
        schema = Schema(columns, _LABEL, "1")
        chosen = defaults(len(index), schema, epsilon=self.epsilon, delta=self.delta, sizes=sizes,
                          alongside=paid)
        if self.ledger is not None:  # charged before anything is released, or refused
            self.ledger.reserve(chosen.mechanism())
        for described in paid:
            schema = Schema(self._released(table, index, described, jax.random.fold_in(key, 1)),
                            _LABEL, "1")
        rows: Records = records(schema.features(table), positive, owners, most)
        unit = "one row" if owners is None else f"one person, {self.most} rows of whom are read"
        known = [how, "Which classes there are is public."]
        if sizes:
            known.append("Who is in which group is public, and so are the groups' sizes.")
        self.scorer_: Scorer = train_records(jax.random.fold_in(key, 0), rows, schema, chosen,
                                             importance=importance, unit=unit,
                                             assumed=tuple(known))
        self.statement_ = self.scorer_.statement
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds of the second class, `[n]`."""
        check_is_fitted(self)
        table, _ = self._table(X, None)
        return self.scorer_.decision_function(table)

    def predict(self, X: Any) -> np.ndarray:
        """The likelier class, `[n]`."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int)]

    def _key(self) -> jax.Array:
        """A secret, or for experiments one that `random_state` makes."""
        if self.random_state is None:
            return secret_key()
        return jax.random.key(int(check_random_state(self.random_state).randint(2**31 - 1)))

    def _table(self, X: Any, y: Any) -> tuple[Mapping[str, Any] | Any, Any]:
        """Columns by name, and checked labels."""
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

    def _columns(self, table: Any, people: int) -> tuple[Mapping[str, Column],
                                                        tuple[Repeat, ...], str]:
        """The columns as declared, or with ranges that stand in until they are released."""
        if self.schema is not None:
            return self._declared(), (), "The schema is public: it was not read off these records."
        if self.bounds is not None:
            low, high = (np.broadcast_to(b, len(table)) for b in self.bounds)
            return ({name: Number(float(a), float(b))
                     for name, a, b in zip(table, low, high, strict=True)}, (),
                    "The bounds are public: they were not read off these records.")
        one = Repeat(query=Query(clip=Saddle(1.0, None), population=people), times=1)
        z = calibrate_noise(one, self.epsilon, self.delta).query.noise_multiplier.w
        return (dict.fromkeys(table, Number(0.0, 1.0)),
                (ranges.mechanism(people, len(table), z / np.sqrt(ranges.SHARE)),),
                "Ranges of the columns were released, for a tenth of the budget.")

    def _released(self, table: Any, index: np.ndarray, described: Repeat,
                  key: jax.Array) -> Mapping[str, Column]:
        """The columns with released ranges."""
        values = np.stack([as_numbers(x) for x in table.values()], -1)
        there = index >= 0
        found = ranges.released(key, described, values[index],
                                there / np.maximum(there.sum(1, keepdims=True), 1))
        return dict(zip(table, found, strict=True))

    def _groups(self, groups: Any, index: np.ndarray) -> tuple[tuple[int, ...], Any]:
        return (), None


class PrivateAUCClassifier(_PrivateScorer):
    """A private scorer whose score is the area under the ROC curve.

    Args:
      epsilon: of everything that `fit` releases, replace-one.
      delta: in (0, 1), below 1/n.
      schema: `Schema`, or columns by name; public. None: X are numbers.
      bounds: (low, high) of all columns or of each; public. None without a schema: ranges are
        released, and charged.
      most: rows of one owner that are read, where `fit` gets owners.
      ledger: a `Ledger` that every `fit` is charged to, and that refuses the one too many.
      random_state: None: noise of the system's entropy. A seed is for experiments: whoever knows it
        can subtract the noise.

    Attributes:
      statement_: the privacy statement of `fit`.
      scorer_: the `Scorer`.
      classes_: the two classes.
    """

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The AUC; not private, for records that did not train."""
        return float(roc_auc_score(np.asarray(y) == self.classes_[1], self.decision_function(X),
                                   sample_weight=sample_weight))


class PrivateWorstGroupClassifier(_PrivateScorer):
    """A private classifier for the worst of several groups: each has the same weight.

    Arguments and attributes are those of `PrivateAUCClassifier`. `fit` needs groups; who is in
    which group is public. Rows of a class that is rare in a small group count most, so that groups
    of label and attribute together (a group for every pair) serve the worst error of any of them.
    """

    def _groups(self, groups: Any, index: np.ndarray) -> tuple[tuple[int, ...], Any]:
        if groups is None:
            raise ValueError("groups must be given: fit(X, y, groups=...), one for every row.")
        _, group = np.unique(np.asarray(groups).astype(str), return_inverse=True)
        sizes = tuple(int(n) for n in np.bincount(group))
        return sizes, balanced(group, sizes)[index]
