"""Private models of labels of any number of classes, and of numbers."""

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from jaxminimax.estimators.base import PrivateEstimator
from jaxminimax.estimators.binary import PrivateScorer
from jaxminimax.tables.columns import Category, Number
from jaxminimax.tables.schema import Schema


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
        return {"target": Category(tuple(map(str, range(len(self.classes_)))))}


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

    def __init__(self, epsilon: float = 1.0, delta: float = 1e-6, *, label_range: Any = None,
                 schema: Any = None, bounds: Any = None, most: int = 1, people: int = 1,
                 ledger: Any = None, allow_large_delta: bool = False,
                 random_state: Any = None) -> None:
        super().__init__(epsilon, delta, schema=schema, bounds=bounds, most=most, people=people,
                         ledger=ledger, allow_large_delta=allow_large_delta,
                         random_state=random_state)
        self.label_range = label_range

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
        label = Schema({"x": Number(0, 1)}, "y", **self._label())  # refuses a wrong range
        return label.labels({"y": np.asarray(y, np.float64)})

    def _label(self) -> dict[str, Any]:
        if self.label_range is not None:
            low, high = self.label_range
            return {"target": Number(float(low), float(high))}
        if isinstance(self.schema, Schema) and isinstance(self.schema.target, Number):
            return {"target": self.schema.target}
        raise ValueError("the label's range must be public: label_range=(low, high), from a "
                         "codebook or a law of nature.")
