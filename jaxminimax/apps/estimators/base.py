"""The bases of all estimators: parameters, reading of tables, one way to charge and to train."""

import dataclasses
import numbers
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import jax
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, multiclass, validation

from jaxminimax.accounting.ledger import UsedKeyError
from jaxminimax.apps.tables import linear, notes, preparation, records, rule, scorer, training
from jaxminimax.apps.tables.columns import Charged, Column, check_column, range_of
from jaxminimax.apps.tables.schema import Schema, columns_of
from jaxminimax.base import checks, identity, row_names
from jaxminimax.noise import secret_key


@dataclasses.dataclass(eq=False, repr=False)
class PrivateEstimator(BaseEstimator):
    """Base of the estimators: a private linear model with the settings of `tables.rule`.

    A subclass has `_target`, which turns labels into numbers, and may have `_label`, `_weights`,
    `_groups`, `_rule` and `_trained`. Its fields are the parameters that scikit-learn reads.
    """

    epsilon: float = 1.0
    delta: float = 1e-6
    _: dataclasses.KW_ONLY
    schema: Any = None
    bounds: Any = None
    most: int = 1
    people: int = 1
    ledger: Any = None
    unit: str | None = None
    allow_large_delta: bool = False
    random_state: Any = None

    # what each field may be; a subclass has some of them
    _kinds: ClassVar[dict[str, tuple[Any, str]]] = preparation.ARGUMENTS | {
        "schema": (Schema | Mapping | None, "a Schema, columns by name, or None"),
        "randomised": checks.TRUTH,
        "groups": (str | numbers.Integral | tuple | None,
                   "the name or number of a column, or None"),
        "group_values": (tuple | list | np.ndarray | None,
                         "the groups, such as ('f', 'm'), or None")}
    _public = "Which classes there are is public."

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # a missing value is the middle of its range
        tags.non_deterministic = self.random_state is None
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None, owners: Any = None, **refused: Any) -> Self:
        """Trains on all rows.

        Args:
          X: numbers `[n, d]`, or a data frame with the columns of `schema`.
          y: what is predicted, `[n]`; which classes there are is public.
          groups: of every row, `[n]`; the classifiers of groups need them. Those of the worst group
            are public, those to be fair to as private as the row.
          owners: whose each row is, `[n]`: a record is a person, of whom `most` rows are read.
            None: as a `Schema` with an owner says, else every row is a record.
          **refused: `sample_weight`, for which there is none.

        Raises:
          ValueError: for values that `y` may not have, for numbers out of range, for owners and
            `people`, for groups that would not be used, for owners, groups or columns whose index
            differs from that of X, or where the ledger cannot pay or is for another unit or number
            of people.
          TypeError: for a sample weight, or another argument that there is not.
        """
        if refused:
            raise TypeError(
                "fit takes no sample_weight: the guarantee bounds what one record adds to a "
                "release, so a record of weight 2 cannot count twice. Leave the weights out."
                if "sample_weight" in refused else
                f"fit has no argument {', '.join(sorted(refused))}.")
        checks.kinds(self._kinds, vars(self))
        checks.count("most", self.most, high=identity.MOST_ROWS)
        for name, cells in (("owners", owners), ("groups", groups)):
            if cells is not None:
                check_column(name, cells)
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        row_names.check({"X": X, "owners": owners, "groups": groups}, y)
        listed = isinstance(y, list | tuple) or identity.in_dictionary(y)
        outcomes = np.asarray(identity.exact(y) if listed else y).ravel()
        if any(map(identity.absent, outcomes)) if outcomes.dtype == object else (
                np.any(outcomes != outcomes)):
            raise ValueError("y has rows without a label (Input y contains NaN): leave them out if "
                             "it is public which they are; tables.train gives them weight 0.")
        table, y = self._table(X, identity.exact(y) if identity.in_dictionary(y) else y)
        target, weights = self._target(y), self._weights()
        owners, rows_per_owner = self._owners(X, owners)
        columns, declared = self._columns(table)
        schema = Schema(columns, "label of the records", **self._label())
        prepared = preparation.prepare(
            records.encoded(table, schema, labels=target, owners=owners), schema, self._rule(),
            epsilon=self.epsilon, delta=self.delta, names=columns_of(table),
            groups=self._groups(groups, table, target), rows_per_owner=rows_per_owner,
            people=self.people, unit=self.unit, allow_large_delta=self.allow_large_delta,
            assumed=(*declared, *self._assumed(isinstance(weights, list))), class_weight=weights,
            certify=getattr(self, "held_out", None))
        try:
            self.scorer_: scorer.Scorer = training.carry_out(
                prepared, self._key(), self._trained, ledger=self.ledger)
        except UsedKeyError:
            raise ValueError(
                f"random_state={checks.describe(self.random_state)} was used for another fit of "
                "this ledger, and two fits with equal noise reveal the data: say random_state=None"
                ", or give each fit, as each fold of a cross-validation, a seed of its own."
            ) from None
        self.statement_ = self.scorer_.statement
        return self

    def _assumed(self, weighted: bool) -> tuple[str, ...]:
        """Returns what is assumed of classes, of their weights if they have any, and of a seed."""
        weights = ("The weights of the classes are public: they were not chosen by looking at "
                   "these records.",) * weighted
        return self._public, *weights, *(() if self.random_state is None else (
            "Operator: Nobody else has random_state, or can guess it. Anyone who can may remove "
            "the noise: this is an experiment, and no release.",))

    @property
    def epsilon_spent_(self) -> float:
        """Returns the epsilon of everything that `fit` released, at `delta`."""
        return float(self.statement_.epsilon)

    @property
    def coef_(self) -> np.ndarray:
        """Returns the coefficients in the units of the columns, `[1, d]`; of K classes `[K, d]`.

        Rows more than one standard unit from the released means are cut to that length. So with b
        the score at the means, and |x| the length in these units, a row c has the score

            b + (c . coef_ + intercept_ - b) / max(1, |x|).

        `Scorer.linear` derives it. With a `schema` there is one coefficient for each number that a
        row becomes, in the order of `Schema.described`, which names them.
        """
        return np.atleast_2d(self.scorer_.linear()[0].T)

    @property
    def intercept_(self) -> Any:
        """Returns the intercept that goes with `coef_`, `[1]` or `[K]`."""
        return np.atleast_1d(self.scorer_.linear()[1])

    @property
    def notes_(self) -> tuple[notes.Note, ...]:
        """Returns likely mistakes, from public facts and from released numbers."""
        return self.scorer_.notes

    def _key(self) -> jax.Array:
        """Draws a secret key, or for experiments one from `random_state`."""
        if self.random_state is None:
            return secret_key()
        try:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        except ValueError:  # scikit-learn would print it
            raise ValueError("random_state must be None, an integer from 0 to 2^32 - 1 or a "
                             f"RandomState, got {checks.describe(self.random_state)}.") from None
        return jax.random.key(seed, impl="threefry2x32")

    def _table(self, X: Any, y: Any) -> tuple[Mapping[str, Any] | Any, Any]:
        """Returns columns by name, and checked labels."""
        if self.schema is not None:
            if y is not None:
                y = np.asarray(y)
                names = list(self._declared())
                has_it = names[0] in columns_of(X)  # a missing one is named later
                rows = len(X[names[0]]) if has_it else len(y)
                if len(y) != rows:
                    raise ValueError(f"X has {rows} rows and y {len(y)}: they must be equal.")
                self.n_features_in_ = len(names)
                self.feature_names_in_ = np.array(names, dtype=object)
            return X, y
        # infinity is clipped like any number: that a cell is refused would tell of it
        checks_of_cells: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": False}
        # of pyarrow, whose missing cells NumPy may read as others
        X = X.to_pandas() if hasattr(X, "column_names") else X
        is_array = hasattr(X, "__array__") or hasattr(X, "tocsr")  # sparse: refused below
        if not is_array and (isinstance(X, Mapping) or not hasattr(X, "__len__")):
            raise ValueError("X must be numbers [n, d], or a table with a schema, got "
                             f"{checks.describe(X)}: say schema={{name: Number(low, high)}}.")
        try:
            if y is None:
                X = validation.validate_data(self, X, reset=False, **checks_of_cells)
            else:
                X, y = validation.validate_data(self, X, y, ensure_min_samples=2, **checks_of_cells)
        except ValueError as error:
            # errors of scikit-learn that print cells, and what to say instead
            for text, words in {
                    "could not convert string":
                        "X has text where numbers must be: give a data frame and schema={name: "
                        "Category(values), ...}.",
                    "Complex data": "Complex data not supported: X and y must be real numbers.",
                    "feature names should match":
                        "X has none of the columns that fit had: give it those names.",
                    "Expected 2D array":
                        "X must be a table of numbers, [n, d]. Expected 2D array, got another "
                        "shape. Reshape your data: X[:, None] makes one of a single column.",
                    }.items():
                if text in str(error) and not set(columns_of(X) if "names" in text else ()) & set(
                        getattr(self, "feature_names_in_", ())):
                    raise ValueError(words) from None
            raise
        names = list(getattr(self, "feature_names_in_", ()))
        if len(set(names)) < X.shape[1]:  # none, or a name twice
            names = [f"x{k}" for k in range(X.shape[1])]
        return dict(zip(names, X.T, strict=True)), y

    def _scored(self, X: Any, method_name: str) -> np.ndarray:
        """Returns what a method of the scorer makes of a table."""
        validation.check_is_fitted(self)
        return getattr(self.scorer_, method_name)(self._table(X, None)[0])

    def _declared(self) -> Mapping[str, Column]:
        return self.schema.columns if isinstance(self.schema, Schema) else self.schema

    def _columns(self, table: Any) -> tuple[Mapping[str, Column], tuple[str, ...]]:
        """Returns the columns as declared or with ranges to be released, and what is public."""
        if self.schema is not None:
            return self._declared(), ("The schema is public: it was not read off these records.",)
        if self.bounds is not None:
            return self._bounded(list(table)), (
                "The bounds are public: they were not read off these records.",)
        return dict.fromkeys(table, Charged()), ()

    def _bounded(self, names: list[Any]) -> dict[Any, Column]:
        """Returns the columns with the ranges of `bounds`."""
        bounds = self.bounds
        if isinstance(bounds, Mapping):
            if set(bounds) == set(range(len(names))):  # columns of arrays have numbers
                bounds = {name: bounds[k] for k, name in enumerate(names)}
            if set(bounds) != set(names):
                raise ValueError("bounds by column must have each column of X, got "
                                 f"{len(set(bounds) & set(names))} of {len(names)}.")
            return {name: range_of("bounds", bounds[name]) for name in names}
        # [(0, 1), (2, 3)] may be two pairs, or all lower ends and all upper ones
        pairs = isinstance(bounds, list | tuple) and any(
            isinstance(x, list | tuple) and len(x) == 2 for x in bounds)
        ends = () if pairs or not isinstance(bounds, list | tuple | np.ndarray) else [
            np.asarray(x) for x in bounds]
        if len(ends) != 2 or any(x.shape not in ((), (len(names),)) for x in ends):
            raise ValueError("bounds must be (low, high), a number or an array of all columns "
                             "each, or by column, {name: (low, high)}; pairs are not taken, got "
                             f"{checks.describe(bounds)}.")
        low, high = (np.broadcast_to(x, len(names)) for x in ends)
        return {name: range_of("bounds", (a, b))
                for name, a, b in zip(names, low, high, strict=True)}

    def _target(self, y: Any) -> np.ndarray:
        """Returns what is predicted as `Schema.labels` does, and keeps what is public of it."""
        raise TypeError(f"{type(self).__name__} is a base: use one of its subclasses.")

    def _label(self) -> dict[str, Any]:
        """Returns what the schema says of the label."""
        return {"positive": "1"}

    def _owners(self, X: Any, owners: Any) -> tuple[Any, int]:
        """Returns whose each row is, of `fit` or of the schema, and the rows of a person."""
        owned = isinstance(self.schema, Schema) and self.schema.owner is not None
        preparation.check_people(self.people, owned or owners is not None)
        if not owned:
            return owners, 1 if owners is None else self.most
        if owners is not None or self.most not in (1, self.schema.most):
            raise ValueError(f"the schema says that {self.schema.owner!r} owns the rows, most = "
                             f"{self.schema.most}: give neither owners nor another most.")
        return self.schema.owners(X), self.schema.most

    def _weights(self) -> Any:
        """Returns the weights of both classes, "balanced", or None."""
        return None

    def _groups(self, groups: Any, table: Any, target: np.ndarray) -> Any:
        """Returns the groups of all rows, for a classifier that uses them.

        Raises:
          ValueError: for groups of `fit` or of the schema, where they would not be used.
        """
        if groups is not None or getattr(self.schema, "groups", None) is not None:
            raise ValueError(f"{type(self).__name__} does not use groups: PrivateWorstGroup"
                             "Classifier and PrivateWorstGroupRegressor train for the worst of "
                             "public groups, PrivateFairClassifier for fairness to private ones. "
                             "Otherwise leave them out of fit, and of the schema: "
                             "dataclasses.replace(schema, groups=None, "
                             "group_values=(), by_label=False).")
        return None

    def _rule(self) -> Callable[..., Any]:
        """Returns the rule of the settings, a function of public numbers."""
        return rule.defaults

    def _trained(self, run: linear.Run) -> scorer.Scorer:
        """Returns what was trained."""
        return linear.train_linear(run)


class Scored:
    """The score of scikit-learn's mixins, of rows that X and y name alike."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Returns the score of the mixin; it is not private, and for records not used to train.

        Raises:
          ValueError: for an index of `sample_weight` that differs from that of X, or one of y that
            is in another order.
        """
        row_names.check({"X": X, "sample_weight": sample_weight}, y)
        mixin: Any = super()
        return float(mixin.score(X, y, sample_weight))


class PrivateScorer(Scored, ClassifierMixin, PrivateEstimator):
    """Base of the classifiers: scores, probabilities, decisions."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def decision_function(self, X: Any) -> np.ndarray:
        """Returns the log-odds of the second class, `[n]`."""
        return self._scored(X, "decision_function")

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns the probabilities of both classes, `[n, 2]`, see `Scorer.predict_proba`."""
        return self._scored(X, "predict_proba")

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
        is_second = self.decision_function(X) > np.log(threshold / (1 - threshold))
        return self.classes_[is_second.astype(int)]

    def _target(self, y: Any) -> np.ndarray:
        multiclass.check_classification_targets(y)
        kind = multiclass.type_of_target(y, input_name="y", raise_unknown=True)
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
