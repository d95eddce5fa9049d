"""What `fit` of an estimator does where the groups are private."""

from typing import Any

import jax
import numpy as np

from jaxminimax.tables import ranges
from jaxminimax.tables.columns import as_numbers, as_words, word
from jaxminimax.tables.fair import fair_defaults, train_fair
from jaxminimax.tables.records import by_person, records
from jaxminimax.tables.schema import Schema


class FairFit:
    """`fit` with private groups, for an estimator that has the parts it calls."""

    def fit(self: Any, X: Any, y: Any, groups: Any = None, owners: Any = None) -> Any:
        """Trains on all rows.

        Args:
          X: numbers `[n, d]`, or a data frame with the columns of `schema`.
          y: labels of two classes, `[n]`; which classes there are is public.
          groups: of every row, `[n]`, as private as the row; which groups there are is public.
          owners: whose each row is, `[n]`: a record is a person, of whom `most` rows are read.

        Raises:
          ValueError: without groups or with a single one, for labels of one class or of more than
            two, for numbers out of range, or where the ledger cannot pay.
        """
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        table, y = self._table(X, y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError("Classifier can't train when only one class is present.")
        number, self.groups_ = _numbered(groups, self.group_values, len(y))
        key = self._key()
        positive = (y == self.classes_[1]).astype(np.float32)
        most = 1 if owners is None else self.most
        index = by_person(len(y), owners, most)
        columns, how = self._columns(table)
        schema = Schema(columns, _LABEL, "1")
        paid = ranges.paid(len(index), schema, self.epsilon, self.delta)
        chosen = fair_defaults(len(index), schema, len(self.groups_), epsilon=self.epsilon,
                               delta=self.delta, weight=self.weight, kind=self.kind,
                               alongside=paid)
        if self.ledger is not None:  # charged before anything is released, or refused
            self.ledger.reserve(chosen.mechanism())
        for described in paid:
            values = np.stack([as_numbers(schema.cells(table, x)) for x in schema.charged], -1)
            given = records(values, positive, owners, most)
            schema = ranges.within(schema, ranges.released(jax.random.fold_in(key, 1), described,
                                                           given.x, given.weight))
        unit = "one row" if owners is None else f"one person, {self.most} rows of whom are read"
        # where a person has no further row, no other person's group may stand
        own = np.where(index >= 0, number[index], -1)
        self.scorer_ = train_fair(
            jax.random.fold_in(key, 0), records(schema.features(table), positive, owners, most),
            own, schema, chosen, unit=unit, assumed=(
                how, "Which classes there are is public.", "Which groups there are is public"
                + (": these are those that occur." if self.group_values is None else ".")))
        self.statement_ = self.scorer_.statement
        return self


_LABEL = "label of the records"  # no column of a table that a schema could declare


def _numbered(groups: Any, values: Any, rows: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Every row's group by number, -1 for one in none of the groups, and the groups."""
    if groups is None:
        raise ValueError("groups must be given: fit(X, y, groups=...), one for every row.")
    words = as_words(groups)
    if words.shape != (rows,):
        raise ValueError(f"groups must be one for every row, got shape {words.shape} for {rows} "
                         "rows.")
    known = tuple(np.unique(words.astype(str)) if values is None else dict.fromkeys(
        map(word, values)))
    if len(known) < 2:
        raise ValueError(f"groups must be two at least, got {list(known)}.")
    order = {value: k for k, value in enumerate(known)}
    return np.array([order.get(x, -1) for x in words], np.int32), known
