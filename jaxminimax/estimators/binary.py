"""Private classifiers of two classes: their base, and the scorer."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.metrics import roc_auc_score
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted

from jaxminimax.base import checks
from jaxminimax.estimators.base import PrivateEstimator
from jaxminimax.tables import records
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

    def __init__(self, epsilon: float = 1.0, delta: float = 1e-6, *, class_weight: Any = None,
                 schema: Any = None, bounds: Any = None, most: int = 1, people: int = 1,
                 ledger: Any = None, allow_large_delta: bool = False,
                 random_state: Any = None) -> None:
        super().__init__(epsilon, delta, schema=schema, bounds=bounds, most=most, people=people,
                         ledger=ledger, allow_large_delta=allow_large_delta,
                         random_state=random_state)
        self.class_weight = class_weight

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
