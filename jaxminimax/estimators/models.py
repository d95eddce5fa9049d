"""Private models of rows: classifiers of two classes and of several, and of numbers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import roc_auc_score
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted

from jaxminimax.base import checks
from jaxminimax.estimators.base import PrivateEstimator
from jaxminimax.tables import columns, records
from jaxminimax.tables.schema import Schema
from jaxminimax.tables.scorer import Scorer


class PrivateScorer(ClassifierMixin, PrivateEstimator):
    """Base of the classifiers: scores, probabilities, decisions."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def decision_function(self, X: Any) -> np.ndarray:
        """Returns the log-odds of the second class, `[n]`."""
        check_is_fitted(self)
        table, _ = self._table(X, None)
        return self.scorer_.decision_function(table)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns the probabilities of both classes, `[n, 2]`, see `Scorer.predict_proba`."""
        check_is_fitted(self)
        table, _ = self._table(X, None)
        return self.scorer_.predict_proba(table)

    def predict(self, X: Any, threshold: float = 0.5) -> np.ndarray:
        """Returns the second class for rows whose probability of it is above a threshold, `[n]`.

        Args:
          X: as for `fit`.
          threshold: in (0, 1); public, chosen before any look at these records. One that was
            chosen by errors on records of the training is not covered by the statement.

        Raises:
          ValueError: for a threshold out of range.
        """
        checks.number("threshold", threshold, low=0.0, high=1.0)
        above = self.decision_function(X) > np.log(threshold / (1 - threshold))
        return self.classes_[above.astype(int)]

    def _target(self, y: Any) -> np.ndarray:
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise ValueError("Only binary classification is supported. The type of the target "
                             f"is {kind}.")
        return self._number(y).astype(np.float32)

    def _number(self, y: Any) -> np.ndarray:
        """Keeps the classes, and returns the number of each label's class, `[n]`."""
        self.classes_, number = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("Classifier can't train when only one class is present.")
        return number


@dataclasses.dataclass(eq=False, repr=False)
class PrivateAUCClassifier(PrivateScorer):
    """A private linear scorer of two classes, trained for the area under the ROC curve.

    Args:
      epsilon: epsilon of everything that `fit` releases, replace-one.
      delta: delta, in (0, 1), below 1/n.
      class_weight: weights of the classes by name, public, or "balanced", by the released share of
        positives. The heavier class keeps its influence, the other one loses some, so a record
        moves a release by no more than without weights. Probabilities are those under the weights.
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

    Examples:
        >>> from jaxminimax.estimators import PrivateAUCClassifier
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-1, 1, (300, 2))
        >>> y = X[:, 0] + 0.1 * rng.normal(size=300) > 0
        >>> model = PrivateAUCClassifier(epsilon=4.0, delta=1e-4, bounds=(-1.0, 1.0)).fit(X, y)
        >>> model.decision_function(X).shape, model.statement_.epsilon <= 4
        ((300,), True)
    """

    _: dataclasses.KW_ONLY
    class_weight: Any = None

    def _trained(self, key: jax.Array, rows: records.Records, kept: Any, schema: Schema,
                 chosen: Any, assumed: tuple[str, ...] = (), **stated: Any) -> Scorer:
        weights = self._weights()
        if isinstance(weights, list):
            assumed = (*assumed, "The weights of the classes are public: they were not chosen by "
                                 "looking at these records.")
        return super()._trained(key, rows, kept, schema, chosen, class_weight=weights,
                                assumed=assumed, **stated)

    def _target(self, y: Any) -> np.ndarray:
        target = super()._target(y)
        self._weights()  # refused before anything is released
        return target

    def _weights(self) -> Any:
        """Returns the weights of both classes, "balanced", or None."""
        asked, names = self.class_weight, self.classes_.tolist()
        if asked is None or (isinstance(asked, str) and asked == "balanced"):
            return asked
        if not isinstance(asked, Mapping) or set(asked) - set(names):
            raise ValueError('class_weight must be None, "balanced" or numbers by class, of '
                             f"{names}, got {asked!r}.")
        weights = [asked.get(name, 1.0) for name in names]
        checks.number("class_weight", np.array(weights), low=0.0)
        return weights

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Returns the AUC; it is not private, and for records that were not used to train."""
        return float(roc_auc_score(np.asarray(y) == self.classes_[1], self.decision_function(X),
                                   sample_weight=sample_weight))


class PrivateClassifier(PrivateScorer):
    """A private linear classifier of two classes or more.

    Three classes or more are trained together, by the logistic loss of all of them (softmax). Every
    round is one release of the gradient of all K logits, with one clip norm and one budget, see
    `tables.labels`. Two classes have the model of `PrivateAUCClassifier`, which K = 2 amounts to.

    `score` is the share of right predictions. scikit-learn's `scoring="roc_auc_ovr"` and
    `"neg_log_loss"` score the probabilities.

    Args:
      epsilon: epsilon of everything that `fit` releases, replace-one.
      delta: delta, in (0, 1), below 1/n.
      schema: `Schema`, of which the columns are read, or columns by name; public. None if X are
        numbers.
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
      scorer_: the `Scorer`.
      classes_: the classes.

    Examples:
        >>> from jaxminimax.estimators import PrivateClassifier
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-1, 1, (300, 2))
        >>> y = np.digitize(X[:, 0], [-0.3, 0.3])
        >>> model = PrivateClassifier(epsilon=4.0, delta=1e-4, bounds=(-1.0, 1.0)).fit(X, y)
        >>> model.predict_proba(X).shape, model.statement_.epsilon <= 4
        ((300, 3), True)
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = True
        return tags

    def predict(self, X: Any, threshold: float = 0.5) -> np.ndarray:
        """Returns the likeliest class, `[n]`.

        Args:
          X: as for `fit`.
          threshold: of two classes only, see `PrivateAUCClassifier.predict`.

        Raises:
          ValueError: for a threshold with more classes, or one out of range.
        """
        check_is_fitted(self)
        if len(self.classes_) == 2:
            return super().predict(X, threshold)
        if threshold != 0.5:
            raise ValueError(f"a threshold is for two classes, and there are {len(self.classes_)}: "
                             "leave it out, or decide by predict_proba.")
        return self.classes_[np.argmax(self.decision_function(X), 1)]

    def _target(self, y: Any) -> np.ndarray:
        check_classification_targets(y)
        number = self._number(y)
        if len(self.classes_) == 2:
            return number.astype(np.float32)
        return np.eye(len(self.classes_), dtype=np.float32)[number]

    def _label(self) -> dict[str, Any]:
        if len(self.classes_) == 2:
            return super()._label()
        return {"target": columns.Category(tuple(map(str, range(len(self.classes_)))))}


@dataclasses.dataclass(eq=False, repr=False)
class PrivateRegressor(RegressorMixin, PrivateEstimator):
    """A private linear model of a number with a public range, by Huber's loss.

    The label is put on one scale by its released mean and second moment; the loss is linear beyond
    one standard deviation, see `tables.labels`. `score` is R^2.

    Args:
      epsilon: epsilon of everything that `fit` releases, replace-one.
      delta: delta, in (0, 1), below 1/n.
      label_range: (low, high) of the label; public. Labels outside are clipped, and so are
        predictions. None: that of `schema`.
      schema: `Schema`, of which the columns are read and the label's range, or columns by name;
        public. None if X are numbers.
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
      scorer_: the `Scorer`.

    Examples:
        >>> from jaxminimax.estimators import PrivateRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-1, 1, (300, 2))
        >>> y = 20 + 5 * X[:, 0] + rng.normal(size=300)
        >>> model = PrivateRegressor(4.0, 1e-4, label_range=(10, 30), bounds=(-1.0, 1.0))
        >>> model.fit(X, y).predict(X).shape, model.statement_.epsilon <= 4
        ((300,), True)
    """

    _public = "The range of the label is public: it was not read off these records."

    _: dataclasses.KW_ONLY
    label_range: Any = None

    def predict(self, X: Any) -> np.ndarray:
        """Returns the predicted number of each row, within the range of the label, `[n]`."""
        check_is_fitted(self)
        table, _ = self._table(X, None)
        return self.scorer_.predict(table)

    @property
    def coef_(self) -> np.ndarray:
        """Returns the coefficients in the units of columns and label, `[d]`, as of classifiers."""
        return super().coef_[0]

    @property
    def intercept_(self) -> float:
        """Returns the intercept that goes with `coef_`."""
        return float(super().intercept_[0])

    def _target(self, y: Any) -> np.ndarray:
        label = Schema({"x": columns.Number(0, 1)}, "y", **self._label())  # refuses a wrong range
        return label.labels({"y": np.asarray(y, np.float64)})

    def _label(self) -> dict[str, Any]:
        if self.label_range is not None:
            low, high = self.label_range
            return {"target": columns.Number(float(low), float(high))}
        if isinstance(self.schema, Schema) and isinstance(self.schema.target, columns.Number):
            return {"target": self.schema.target}
        raise ValueError("the label's range must be public: label_range=(low, high), from a "
                         "codebook or a law of nature.")
