"""The public schema of a table: its columns with their ranges or values, label, owner, groups."""

import dataclasses
import numbers
import os
import re
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from jaxminimax.apps.tables import columns as kinds
from jaxminimax.apps.tables.columns import Category, Charged, Column, Number, places, word
from jaxminimax.base import checks, identity, row_names, saved_json

_KINDS: dict[str, tuple[Any, str]] = {
    "columns": (Mapping, "a mapping of names to columns, such as {'age': Number(18, 90)}"),
    "label": (str | int | tuple, "a column's name"),
    "owner": (str | int | tuple | None, "a column's name or None"),
    "groups": (str | int | tuple | None, "a column's name or None"),
    "group_values": (tuple | list, "the groups, such as ('f', 'm')"),
    "positive": (str | numbers.Number | np.bool_ | None, "one value, or None"),
    "by_label": checks.TRUTH, "path": (str | os.PathLike, "a path")}


@dataclasses.dataclass(frozen=True)
class Schema:
    """The public description of a table, in TOML or as a record.

        [label]
        name = "income"
        positive = ">50K"

        [columns.age]
        range = [17, 90]          # years; what lies outside is clipped

        [columns.gain]
        range = [0, 99999]
        log = true                # log(1 + x) is taken first
        missing = true            # a number of its own says where the cell is missing

        [columns.weight]
        range = "charged"         # not known: `train` releases it, for a share of the budget

        [columns.sex]
        categories = ["Female", "Male"]

        [owner]                   # a record is a person, not a row
        name = "person"
        most = 5                  # rows of a person that are read, the first ones

        [groups]                  # public: who is in which group is known
        name = "sex"
        values = ["Female", "Male"]
        by_label = true           # each is cut by the label, so labels are public too

    In place of `positive`, a label of several classes has `values = ["low", "middle", "high"]`, and
    a label that is a number has `range = [0, 120]`. A row whose label is missing counts as a
    record, with weight 0, and so does one with a label that is none of the classes, or no number.
    Every value but the positive one is negative, and numbers outside are clipped.

    Columns of the table that are not declared are not read. Whatever is declared must be known
    without these data: from a codebook, a form, a law of nature.

    Attributes:
      columns: name -> `Number`, `Category` or `Charged`.
      label: name of the label's column.
      positive: the value that counts as positive, every other one as negative; None for a `target`.
      owner: name of the column that says whose row it is; None: every row is a record of its own.
      most: rows of one owner that are read.
      groups: name of the column with the group; None: no groups.
      group_values: the groups.
      by_label: whether each group is cut by the label; then every record's label is public.
      target: `Category` of a label of three classes or more, `Number` of one that is a number; None
        for a label with a positive value.

    Examples:
        >>> schema = jmm.tables.Schema.from_dict({
        ...     "label": {"name": "ill", "positive": "yes"},
        ...     "columns": {"age": {"range": [18, 90]}, "job": {"categories": ["desk", "field"]}}})
        >>> table = {"age": [18, 90], "job": ["desk", "other"], "ill": ["no", "yes"]}
        >>> schema.features(table).tolist()
        [[-1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """

    columns: Mapping[str, Column]
    label: str
    positive: str | None = None
    owner: str | None = None
    most: int = 1
    groups: str | None = None
    group_values: tuple[str, ...] = ()
    by_label: bool = False
    target: Category | Number | None = None

    def __post_init__(self) -> None:
        checks.kinds(_KINDS, vars(self))
        if not self.columns:
            raise ValueError("schema must declare a column at least: [columns.NAME] with range = "
                             "[low, high] or categories = [...].")
        for name, kind in self.columns.items():
            if not isinstance(kind, Number | Category | Charged):
                raise ValueError(f"column {name!r} must be a Number or a Category, got "
                                 f"{checks.describe(kind)}.")
        for role in (self.label, self.owner):
            if role in self.columns:
                raise ValueError(f"column {role!r} is declared as a feature and as label or owner: "
                                 "take it out of [columns].")
        checks.count("most", self.most, high=identity.MOST_ROWS)
        if self.owner is None and self.most != 1:
            raise ValueError(f"most = {self.most} rows are those of an owner: say [owner] name.")
        if (self.groups is None) != (not self.group_values):
            raise ValueError("groups must have a name and values: [groups] name, values = [...].")
        if self.by_label and self.groups is None:
            raise ValueError("by_label must be of groups: [groups] name, values = [...], "
                             "by_label = true.")
        self._check_target()
        if self.positive is not None:
            object.__setattr__(self, "positive", word(self.positive))

    def _check_target(self) -> None:
        """Refuses a label of no kind, or of two."""
        if (self.positive is None) == (self.target is None):
            raise ValueError("label must have one of positive = ..., values = [...] and range = "
                             "[low, high]: its positive value, its classes, or its range if it is "
                             "a number.")
        if self.target is None:
            return
        if not isinstance(self.target, Category | Number):
            raise ValueError(f"target must be a Category or a Number, got "
                             f"{checks.describe(self.target)}.")
        if isinstance(self.target, Category) and self.target.width < 3:
            raise ValueError(f"label values must be three at least, got {self.target.width}: for "
                             "two classes give the positive one, positive = ....")
        if isinstance(self.target, Number) and (self.target.log or self.target.missing):
            raise ValueError("a label's range takes no log and no missing: Number(low, high).")
        if self.groups is not None:
            raise ValueError("groups need a label with a positive value: take out [groups], or say "
                             "positive = ....")

    @property
    def width(self) -> int:
        """Returns d, the count of numbers that a row becomes."""
        return sum(column.width for column in self.columns.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the columns of a table that are read."""
        return tuple(dict.fromkeys(name for name in (
            *self.columns, self.label, self.owner, self.groups) if name is not None))

    @property
    def numeric(self) -> tuple[str, ...]:
        """Returns the columns of numbers alone, with a declared range or one to be released.

        A column of groups is not among them: its cells stay text, whatever others hold.
        """
        return tuple(name for name, kind in self.columns.items()
                     if not isinstance(kind, Category) and name != self.groups)

    @property
    def charged(self) -> tuple[str, ...]:
        """Returns the columns whose ranges are to be released."""
        return tuple(name for name, kind in self.columns.items() if isinstance(kind, Charged))

    @classmethod
    def from_toml(cls, path: Any) -> Self:
        """Reads a schema from a TOML file.

        Raises:
          ValueError: for a file that is not there.
          DamagedFileError: for a file that is no TOML, and as `from_dict`.
        """
        import tomllib

        checks.kinds(_KINDS, {"path": path})
        try:
            with open(path, "rb") as file, saved_json.explained(
                    path, "schema in TOML", "The published schema of schemas says what it holds."):
                return cls.from_dict(tomllib.load(file))
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}.") from None

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Makes a schema of the record that a TOML file holds.

        Raises:
          ValueError: naming the entry that is missing, unknown or wrong.
        """
        saved_json.check(saved_json.plain(record), "model", "table")
        label, owner, groups = (record.get(name, {}) for name in ("label", "owner", "groups"))
        if groups and "values" not in groups:
            kind = record.get("columns", {}).get(groups["name"], {})
            if "categories" not in kind:
                raise ValueError("schema needs [groups] values = [...]: groups are public.")
            groups = {**groups, "values": kind["categories"]}
        columns = {name: kinds.column_from_record(name, column_record)
                   for name, column_record in record["columns"].items()}
        return cls(columns, str(label["name"]), label.get("positive"), owner.get("name"),
                   owner.get("most", 1 if not owner else 5), groups.get("name"),
                   tuple(map(word, groups.get("values", ()))), groups.get("by_label", False),
                   _target(label))

    def to_dict(self) -> dict[str, Any]:
        """Returns the record, as `from_dict` takes it."""
        record: dict[str, Any] = {
            "label": self.declared_label(),
            "columns": {name: column.declared() for name, column in self.columns.items()}}
        if self.owner is not None:
            record["owner"] = {"name": self.owner, "most": self.most}
        if self.groups is not None:
            record["groups"] = {"name": self.groups, "values": list(self.group_values),
                                "by_label": self.by_label}
        return record

    @property
    def kind(self) -> str:
        """Returns the kind of label: "binary", "classes" or "number"."""
        if self.target is None:
            return "binary"
        return "classes" if isinstance(self.target, Category) else "number"

    def declared_label(self) -> dict[str, Any]:
        """Returns what [label] says, as a record."""
        if self.target is None:
            return {"name": self.label, "positive": self.positive}
        if isinstance(self.target, Category):
            return {"name": self.label, "values": list(self.target.values)}
        return {"name": self.label, **self.target.declared()}

    def without(self, names: tuple[str, ...]) -> "Schema":
        """Returns the schema without some columns.

        Raises:
          ValueError: for a name that is not declared.
        """
        unknown = [name for name in names if name not in self.columns]
        if unknown:
            raise ValueError(f"columns {unknown} are not declared; there are {list(self.columns)}.")
        kept_columns = {name: c for name, c in self.columns.items() if name not in names}
        return dataclasses.replace(self, columns=kept_columns)

    def without_charged(self) -> "Schema | None":
        """Returns the schema without columns whose ranges are to be released; None if all are."""
        return None if len(self.charged) == len(self.columns) else self.without(self.charged)

    def described(self) -> list[dict[str, Any]]:
        """Returns for each of the `width` numbers its name, its column and how it is read."""
        return [{"column": name, **number, "name": f"{name}{number['name']}"}
                for name, column in self.columns.items() for number in column.described()]

    def read(self, frame: Any) -> dict[str, Any]:
        """Returns the declared columns of a table by name, those of numbers as float64 `[n]`.

        Raises:
          ValueError: for a table without one of them, or with columns of several lengths.
        """
        cells = {name: self.cells(frame, name) for name in self.columns}
        cells |= {name: kinds.as_numbers(cells[name]) for name in self.numeric}
        lengths = {name: len(column) for name, column in cells.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns must have one length, got {lengths}.")
        return cells

    def features(self, frame: Any) -> np.ndarray:
        """Encodes every row by itself: `[n, width]` float32 in [-1, 1].

        Raises:
          ValueError: as `read`.
        """
        cells = self.read(frame)
        x, first = np.empty((len(next(iter(cells.values()))), self.width), np.float32), 0
        for name, column in self.columns.items():
            x[:, first: first + column.width] = column.encode(cells[name])
            first += column.width
        return x

    def odd(self, frame: Any) -> dict[str, dict[str, np.ndarray]]:
        """Returns for each column which cells are missing, unseen or clipped, each `[n]`.

        Raises:
          ValueError: as `read`.
        """
        return {name: self.columns[name].odd(cells) for name, cells in self.read(frame).items()}

    def labels(self, frame: Any) -> np.ndarray:
        """Returns the label of every row, float32.

        With a positive value `[n]`, 1 for it, 0 for others, and NaN where it is missing (empty, or
        a word for that, such as NA, which is not the positive value). Of K classes `[n, K]`, a 1 in
        the place of the class, and zeros for none of them. Of a number `[n]` in [-1, 1], by its
        range, and NaN where it is missing.
        """
        cells = self.cells(frame, self.label)
        if self.target is None:
            assert self.positive is not None
            marks = [mark for mark in kinds.NO_LABEL if mark != self.positive]
            place = places(cells, (self.positive, *marks))
            return np.array([1.0, *[np.nan] * len(marks), 0.0], np.float32)[place]
        y = self.target.encode(cells).astype(np.float32)
        if isinstance(self.target, Category):
            return y
        return np.where(np.isnan(kinds.as_numbers(cells)), np.float32(np.nan), y[:, 0])

    def charged_cells(self, frame: Any) -> np.ndarray:
        """Reads the charged columns, `[rows, columns]`; NaN where a cell is no number."""
        return np.stack([kinds.as_numbers(self.cells(frame, name)) for name in self.charged], -1)

    def group_of(self, frame: Any) -> np.ndarray:
        """Returns the number of each row's group, `[n]`; the count of groups for a row in none."""
        assert self.groups is not None
        return places(self.cells(frame, self.groups), self.group_values)

    def owners(self, frame: Any) -> Any:
        """Returns the owner of each row, `[n]`; None if the schema has none.

        Raises:
          ValueError: as `cells`.
        """
        return None if self.owner is None else self.cells(frame, self.owner)

    def cells(self, frame: Any, name: str) -> Any:
        """Returns one column of a table.

        Raises:
          ValueError: for a table that has none of that name, or several, for no table at all, and
            for a dictionary whose declared columns have several indexes.
        """
        columns = columns_of(frame)
        if name not in columns:
            alike = [x for x in columns if _plain(x) == _plain(name)]
            raise ValueError(f"the table has no column {name!r}; it has " + (
                f"{alike[0]!r}, which is written differently: use one of both." if alike else
                f"{kinds.listed(columns, columns, self.names)}."))
        if columns.count(name) > 1:
            raise ValueError(f"the table has {columns.count(name)} columns {name!r}: give them "
                             "different names.")
        column = frame[name]
        if isinstance(frame, Mapping):
            first = next((x for x in self.names if row_names.has(frame.get(x))), name)
            row_names.check({f"column {x!r}": frame[x] for x in (first, name)})
        if not hasattr(column, "__len__") or isinstance(column, str):
            raise ValueError(f"column {name!r} must have a cell for each row, got a "
                             f"{type(column).__name__}.")
        if name in self.numeric:
            kinds.check_type(name, getattr(column, "dtype", getattr(column, "type", "")))
        listed = isinstance(column, list | tuple | np.ma.MaskedArray) or identity.in_dictionary(
            column)
        return identity.exact(column) if listed else column


def columns_of(frame: Any) -> list[Any]:
    """Returns the names of a table's columns.

    Raises:
      ValueError: for what is no table.
    """
    if hasattr(frame, "collect_schema") and not hasattr(frame, "__len__"):
        raise ValueError("the table is a lazy frame, which has no rows yet: give .collect() of it.")
    column_names = getattr(frame, "column_names", getattr(frame, "columns", frame))
    if column_names is frame and not isinstance(frame, Mapping):
        raise ValueError("a table must be a data frame or a dictionary of columns, got a "
                         f"{type(frame).__name__}: pandas.DataFrame(...) makes one of a list "
                         "of records, or of an array and columns=[...].")
    return list(column_names)


def _plain(name: Any) -> str:
    return re.sub(r"[\W_]", "", str(name).casefold())


def _target(label: Mapping[str, Any]) -> Category | Number | None:
    """Returns what [label] says of classes or of a range; None for a positive value."""
    if "values" in label:
        return Category(tuple(label["values"]))
    if "range" not in label:
        return None
    return Number(*label["range"])
