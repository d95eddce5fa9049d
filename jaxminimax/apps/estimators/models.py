"""Private models of rows: of two classes and of several, of numbers, and of rows in groups."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from jaxminimax.apps.estimators.base import PrivateEstimator, PrivateScorer, Scored
from jaxminimax.apps.tables import columns, fair, linear, preparation, records, scorer
from jaxminimax.apps.tables.schema import Schema
from jaxminimax.base import checks, row_names


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
      bounds: (low, high) of all columns, or an array of each end, or {name: (low, high)} by column;
        public. None without a schema: ranges are released, and charged.
      most: the largest number of rows of one owner that are read, if `fit` gets owners.
      people: k, if any k rows may be of one person and owners are not known; a ledger must have the
        same number.
      ledger: a `Ledger` that every `fit` is charged to, and that refuses a fit beyond its budget.
      unit: what one record is, as in the ledger, for the statement: your claim about the rows. None
        for "one row", or the person whose rows they are.
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

    def _weights(self) -> Any:
        """Returns the weights of both classes, "balanced", or None."""
        class_weight, names = self.class_weight, self.classes_.tolist()
        if class_weight is None or (isinstance(class_weight, str) and class_weight == "balanced"):
            return class_weight
        if not isinstance(class_weight, Mapping) or set(class_weight) - set(names):
            raise ValueError('class_weight must be None, "balanced" or numbers by class, of '
                             f"{names}, got {checks.describe(class_weight)}.")
        weights = [class_weight.get(name, 1.0) for name in names]
        checks.number("class_weight", np.array(weights), low=0.0)
        return weights

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Returns the AUC; it is not private, and for records that were not used to train."""
        row_names.check({"X": X, "sample_weight": sample_weight}, y)
        from sklearn.metrics import roc_auc_score  # loads much that fit does not need

        return float(roc_auc_score(np.asarray(y) == self.classes_[1], self.decision_function(X),
                                   sample_weight=sample_weight))


class PrivateClassifier(PrivateScorer):
    """A private linear classifier of two classes or more.

    Three classes or more are trained together, by the logistic loss of all of them (softmax). Every
    round is one release of the gradient of all K logits, with one clip norm and one budget, see
    `tables.labels`. Two classes have the model of `PrivateAUCClassifier`, which K = 2 amounts to.

    `score` is the share of right predictions, and is not private. scikit-learn's
    `scoring="roc_auc_ovr"` and `"neg_log_loss"` score the probabilities.

    Args:
      epsilon: epsilon of everything that `fit` releases, replace-one.
      delta: delta, in (0, 1), below 1/n.
      schema: `Schema`, of which the columns are read, or columns by name; public. None if X are
        numbers.
      bounds, most, people, ledger, unit, allow_large_delta, random_state: as of
        `PrivateAUCClassifier`.

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
class PrivateRegressor(Scored, RegressorMixin, PrivateEstimator):
    """A private linear model of a number with a public range, by Huber's loss.

    The label is put on one scale by its released mean and second moment; the loss is linear beyond
    one standard deviation, see `tables.labels`. `score` is R^2, and not
    private.

    Args:
      epsilon: epsilon of everything that `fit` releases, replace-one.
      delta: delta, in (0, 1), below 1/n.
      label_range: (low, high) of the label; public. Labels outside are clipped, and so are
        predictions. None: that of `schema`.
      schema: `Schema`, of which the columns are read and the label's range, or columns by name;
        public. None if X are numbers.
      bounds, most, people, ledger, unit, allow_large_delta, random_state: as of
        `PrivateAUCClassifier`.

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
        return self._scored(X, "predict")

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
        try:
            return label.labels({"y": np.asarray(y, np.float64)})
        except (ValueError, TypeError):  # NumPy would print the cell
            raise ValueError("y has a cell that is no number: encode labels as numbers.") from None

    def _label(self) -> dict[str, Any]:
        if self.label_range is not None:
            return {"target": columns.range_of("label_range", self.label_range)}
        if isinstance(self.schema, Schema) and isinstance(self.schema.target, columns.Number):
            return {"target": self.schema.target}
        raise ValueError("the label's range must be public: label_range=(low, high), from a "
                         "codebook or a law of nature.")


# --- groups ---


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
      held_out: share of each group's rows to hold out for a certificate of the worst group's share
        of wrong predictions, at no further epsilon; None for none.
      schema: `Schema`, or columns by name; public. None if X are numbers.
      bounds, most, people, ledger, unit, allow_large_delta, random_state: as of
        `PrivateAUCClassifier`.

    Attributes:
      statement_: the privacy statement of `fit`.
      notes_: likely mistakes, from public facts and from released numbers.
      scorer_: the `Scorer`.
      classes_: the two classes.
      group_losses_: noisy mean losses of the groups by name, without `by_label`; else None.
      certificate_: of the worst group, with `held_out`; else None.

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
    held_out: float | None = None

    @property
    def certificate_(self) -> Any:
        """Returns the `Certificate` of `fit`; None without `held_out`."""
        check_is_fitted(self)
        return self.scorer_.certificate

    @property
    def group_losses_(self) -> dict[str, float] | None:
        """Returns the groups' losses that `fit` released."""
        check_is_fitted(self)
        return self.scorer_.group_losses

    def _groups(self, groups: Any, table: Any, target: np.ndarray) -> records.Groups:
        public, of_schema = _public_groups(self, groups, table, target)
        by_label = self.by_label or (of_schema and self.schema.by_label)
        return public.cut(target) if by_label else public


@dataclasses.dataclass(eq=False, repr=False)
class PrivateWorstGroupRegressor(PrivateRegressor):
    """A private linear model of a number, trained for the worst of several public groups.

    The largest of the groups' mean Huber losses is made small (bounded group loss): every group has
    the same weight at first, then weights move towards the groups of the largest noisy losses, by
    `balanced_groups`; where these losses would be noise, weights stay equal. The label is private.

    Args:
      epsilon: epsilon of everything that `fit` releases, replace-one.
      delta: delta, in (0, 1), below 1/n.
      groups: name or number of the column of X with the group, where `fit` gets no groups.
      label_range, schema: as of `PrivateRegressor`.
      bounds, most, people, ledger, unit, allow_large_delta, random_state: as of
        `PrivateAUCClassifier`.

    Attributes:
      statement_: the privacy statement of `fit`.
      scorer_: the `Scorer`.

    Examples:
        >>> from jaxminimax.estimators import PrivateWorstGroupRegressor
        >>> rng = np.random.default_rng(0)
        >>> X, group = rng.uniform(-1, 1, (300, 2)), np.arange(300) % 3
        >>> y = 20 + 5 * X[:, 0] + 3 * (group == 0) + rng.normal(size=300)
        >>> model = PrivateWorstGroupRegressor(4.0, 1e-4, label_range=(10, 30), bounds=(-1.0, 1.0))
        >>> model.fit(X, y, groups=group).statement_.epsilon <= 4
        True
    """

    _: dataclasses.KW_ONLY
    groups: Any = None

    def _groups(self, groups: Any, table: Any, target: np.ndarray) -> records.Groups:
        return _public_groups(self, groups, table, target)[0]


@dataclasses.dataclass(eq=False, repr=False)
class PrivateFairClassifier(PrivateScorer):
    """A private classifier whose predictions depend little on a group that is private too.

    Args:
      epsilon: epsilon of everything that `fit` releases, replace-one.
      delta: delta, in (0, 1), below 1/n.
      weight: the weight of the chi-square information between prediction and group, next to the
        logistic loss: a larger one is fairer and less accurate; public.
      kind: "parity", predictions independent of the group; "error_rate", errors independent of it;
        or "odds", predictions independent of it among the records of each class.
      randomised: whether `predict` draws one of the last iterates for every row, and decides by it,
        and `predict_proba` is their mean. The training, its release and its charge are the same.
      groups: name or number of the column of X with the group, where `fit` gets no groups; without
        either, those of `schema` are used.
      group_values: the groups; public. None for those of `schema` with its column, else those that
        occur, which is then public. A row with another value is in no group.
      schema: `Schema`, or columns by name; public. None if X are numbers.
      bounds, most, people, ledger, unit, allow_large_delta, random_state: as of
        `PrivateAUCClassifier`.

    Attributes:
      statement_: the privacy statement of `fit`.
      notes_: likely mistakes, from public facts and from released numbers.
      scorer_: the `Scorer`; it scores by the mean of the iterates, and has some of them as its
        `members`, `[30, d + 1]`, which are no part of its file.
      classes_: the two classes.
      groups_: the groups.

    The randomised classifier is the mixture of iterates w_t, t > T / 2, as those of Agarwal et al.,
    "A Reductions Approach to Fair Classification", ICML 2018, and of Cotter et al., "Optimization
    with Non-Differentiable Constraints", JMLR 2019. A bound on the regret of player v bounds the
    largest over v of the mean over t of f(w_t, v), f the penalised loss: the mixture is fair, where
    the problem is not convex in w and neither a single w_t nor their mean need be. Departures: w
    moves by gradient steps in place of best responses; the penalty is on probabilities, and members
    decide by thresholds; 30 of the iterates stand for all. They are functions of released
    operators, which the statement covers, so that any number of predictions costs nothing more.

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
    randomised: bool = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic |= bool(self.randomised)
        return tags

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns the probabilities of both classes, `[n, 2]`, if randomised the members' mean."""
        if not self.randomised:
            return super().predict_proba(X)
        scores = self._member_scores(X)
        positive = self.scorer_.probability(scores).mean(1)
        return np.stack([1 - positive, positive], 1)

    def positive_rate(self, X: Any, threshold: float = 0.5) -> np.ndarray:
        """Returns the probability that `predict` returns the second class, of each row, `[n]`.

        If randomised it is the share of members that decide so, else 0 or 1. Differences between
        groups in its mean are those of the randomised classifier, without the noise of a draw.

        Args:
          X: as for `fit`.
          threshold: as of `predict`.

        Raises:
          ValueError: for a threshold out of range.
        """
        checks.number("threshold", threshold, low=0.0, high=1.0)
        scores = self._member_scores(X) if self.randomised else self.decision_function(X)[:, None]
        return (scores > np.log(threshold / (1 - threshold))).mean(1)

    def predict(self, X: Any, threshold: float = 0.5, random_state: Any = None) -> np.ndarray:
        """Returns the decision of each row, `[n]`, if randomised by a member that is drawn for it.

        Args:
          X: as for `fit`.
          threshold: see `PrivateAUCClassifier.predict`.
          random_state: of the draw, as scikit-learn takes it; public, and not the secret
            `random_state` of the noise. None for NumPy's global generator.

        Raises:
          ValueError: for a threshold out of range, or a `random_state` without `randomised`.
        """
        if random_state is not None and not self.randomised:
            raise ValueError("random_state draws members of a randomised classifier, and this one "
                             "decides by its mean scorer: leave it out, or say randomised=True.")
        rate = self.positive_rate(X, threshold)
        draw = check_random_state(random_state).random_sample(len(rate)) if self.randomised else 0
        return self.classes_[(draw < rate).astype(int)]

    def _member_scores(self, X: Any) -> np.ndarray:
        """Returns the log-odds of every row by every member, `[n, m]`."""
        check_is_fitted(self)
        assert self.scorer_.members is not None
        mixture = dataclasses.replace(self.scorer_, weights=self.scorer_.members.T)
        return mixture.decision_function(self._table(X, None)[0])

    def _groups(self, groups: Any, table: Any, target: np.ndarray) -> preparation.PrivateGroups:
        number, self.groups_, of_schema = _numbered(self, groups, table, len(target),
                                                    self.group_values)
        occur = not of_schema and self.group_values is None
        origin = ": these are those that occur." if occur else "."
        return preparation.PrivateGroups(
            number, self.groups_, ("Which groups there are is public" + origin,))

    def _rule(self) -> Callable[..., Any]:
        return functools.partial(fair.fair_defaults, weight=self.weight, kind=self.kind)

    def _trained(self, run: linear.Run) -> scorer.Scorer:
        return fair.train_fair(run)


def _public_groups(model: Any, groups: Any, table: Any, target: np.ndarray) -> tuple[
        records.Groups, bool]:
    """Returns the public groups of all rows, and whether the schema declares their column."""
    number, names, of_schema = _numbered(model, groups, table, len(target))
    return records.Groups(np.where(number < 0, len(names), number), names), of_schema


def _numbered(model: Any, groups: Any, table: Any, rows: int, values: Any = None) -> tuple[
        np.ndarray, tuple[str, ...], bool]:
    """Returns every row's group by number, -1 for a row in none of them, and the groups.

    They are those of `fit`, or of a column of X; and whether the schema declares the column.
    """
    column, of_schema = model.groups, False
    if groups is None:
        if column is None and isinstance(model.schema, Schema):
            column, of_schema = model.schema.groups, model.schema.groups is not None
            values = model.schema.group_values if values is None and of_schema else values
        if column is None:
            raise ValueError("groups must be given: fit(X, y, groups=...), one for every row, or "
                             "the column that they are in, groups=... of the estimator.")
        if model.schema is None and column not in table:  # columns of arrays have numbers
            column = dict(enumerate(table)).get(column, column)
        if column not in table:
            raise ValueError("groups must be the name or number of a column of X, got "
                             f"{checks.describe(model.groups)}.")
        groups = table[column]
    words = columns.as_words(groups)
    if words.shape != (rows,):
        raise ValueError(f"groups must be one for every row, got shape {words.shape} for {rows} "
                         "rows.")
    # a missing cell is in no group, unless it is declared
    names = tuple(sorted(set(words) - {""}) if values is None else dict.fromkeys(
        map(columns.word, values)))
    if len(names) < 2:
        raise ValueError(f"groups must be two at least, got {len(names)}.")
    number = columns.places(words, names)
    return np.where(number < len(names), number, -1).astype(np.int32), names, of_schema
