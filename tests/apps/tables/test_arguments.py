"""Every public argument of tables and estimators against twelve wrong kinds.

The library names the argument and the kind of what it got, before anything is charged or released,
and prints none of its cells.
"""

import datetime
import inspect

import numpy as np
import pandas as pd
import pytest

import jaxminimax as jmm
from benchmarks.privacy.mutants import tables as mutants
from jaxminimax import estimators
from jaxminimax.apps.tables import (
    Category,
    Charged,
    Number,
    Schema,
    defaults,
    fair_defaults,
    train,
)

N = 60
_RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"a": _RNG.uniform(-1, 1, N), "b": _RNG.uniform(-1, 1, N),
                      "g": np.array(["p", "q"])[np.arange(N) % 2]})
TABLE["y"] = (TABLE.a > 0).astype(int)
CELL = "a cell of someone"
SCHEMA = Schema({"a": Number(-1, 1)}, "y", "1")


class Lazy:
    """As a lazy frame of polars: it has columns, and no rows."""

    columns = ("a", "y")

    def collect_schema(self):
        """Says what it has."""

    def __bool__(self):
        raise TypeError("the truth value of a lazy frame is ambiguous")

    def __getitem__(self, name):
        raise TypeError("a lazy frame is not subscriptable")


WRONG = {
    "dictionary": lambda: {"k": CELL}, "frame": lambda: TABLE.assign(z=CELL),
    "pairs": lambda: [("a", CELL), ("b", CELL)], "text": lambda: CELL,
    "generator": lambda: (x for x in (CELL,)), "lazy frame": Lazy,
    "date": lambda: datetime.date(2020, 1, 1), "None": lambda: None, "NaN": lambda: float("nan"),
    "length": lambda: np.full(N + 1, 0.123456), "rank": lambda: np.full((2, 2, 2), 0.123456),
    "function": lambda: lambda x: x}


def trained(frame=TABLE, schema=SCHEMA, **how):
    return train(frame, schema, **{"epsilon": 4.0, "delta": 1e-4, **how})


def fitted(form):
    def fit(X=TABLE[["a", "b"]].to_numpy(), y=TABLE.y, owners=None, **how):
        given = {"label_range": (-1, 2)} if form is estimators.PrivateRegressor else {}
        groups = {"groups": TABLE.g} if hasattr(form, "by_label") or hasattr(form, "kind") else {}
        given |= {"epsilon": 4.0, "delta": 1e-4, "bounds": (-1.0, 1.0)}
        if "groups of fit" in how:
            groups = {"groups": how.pop("groups of fit")}
        elif "groups" in how:
            groups = {}
        return form(**given | how).fit(X, y, owners=owners, **groups)

    return fit


FITS = (estimators.PrivateAUCClassifier, estimators.PrivateClassifier, estimators.PrivateRegressor,
        estimators.PrivateWorstGroupClassifier, estimators.PrivateFairClassifier)
# name -> function, and its arguments
FUNCTIONS = {
    "train": (trained, tuple(name for name in inspect.signature(train).parameters
                             if name != "driver")),
    **{form.__name__: (fitted(form), (*inspect.signature(form).parameters, "X", "y", "owners",
                                      "groups of fit")) for form in FITS},
    "Schema": (lambda **how: Schema(**{"columns": {"a": Number(0, 1)}, "label": "y",
                                       "positive": "1", **how}),
               tuple(inspect.signature(Schema).parameters)),
    "Number": (lambda **how: Number(**{"low": 0, "high": 1, **how}),
               ("low", "high", "log", "missing")),
    "Charged": (Charged, ("missing",)), "Category": (Category, ("values",)),
    "defaults": (lambda **how: defaults(**{
        "population": N, "schema": SCHEMA, "epsilon": 1.0, "delta": 1e-4, **how}),
        tuple(inspect.signature(defaults).parameters)),
    "fair_defaults": (lambda **how: fair_defaults(**{
        "population": N, "schema": SCHEMA, "groups": 2, "epsilon": 1.0, "delta": 1e-4, **how}),
        tuple(inspect.signature(fair_defaults).parameters)),
    "from_dict": (Schema.from_dict, ("record",)), "from_toml": (Schema.from_toml, ("path",))}
# what an argument may be, besides what is refused
_OPTIONAL = {"key", "method", "folder", "ledger", "name", "unit", "mesh", "shards", "certify",
             "bounds", "random_state", "held_out", "class_weight", "owners", "groups",
             "group_values", "owner", "target", "groups of fit", "positive", "schema of fit"}
RIGHT = {("text", name) for name in ("folder", "name", "unit", "label", "owner", "groups of schema",
                                     "values", "positive")}
RIGHT |= {("frame", "frame"), ("pairs", "values"), ("generator", "values"), ("NaN", "positive"),
          ("pairs", "group_values"), *(("None", name) for name in _OPTIONAL)}
# what a message calls an argument, where it is no word of its own
WORDS = {"frame": ("table",), "certify": ("certif", "share"), "held_out": ("share",),
         "columns": ("column",), "target": ("label",), "values": ("categories",),
         "low": ("range",), "high": ("range",), "record": ("it must", "label"), "rows": ("rows",),
         "path": ("path", "cannot be read"), "groups of fit": ("groups",),
         "alongside": ("alongside", "mechanism"), "schema": ("schema", "column", "table"),
         "X": ("X", "array", "dim", "Expected"), "y": ("y", "array", "samples", "dim", "target"),
         "group_values": ("group", "values"), "label_range": ("label_range", "label's range"),
         "positive": ("label", "positive")}
CASES = [(function, name) for function, (_, names) in FUNCTIONS.items() for name in names]
QUICK = {"train", "Schema", "Number", "Charged", "Category"}


@pytest.mark.parametrize(("function", "name"), [
    pytest.param(*one, marks=() if one[0] in QUICK else pytest.mark.slow) for one in CASES])
def test_an_argument_of_another_kind_is_named_and_nothing_is_released(
        function, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make = FUNCTIONS[function][0]
    optional = name in _OPTIONAL or (name == "schema" and function.startswith("Private"))
    for kind, value in WRONG.items():
        allowed = (kind, name) in RIGHT or (kind == "None" and optional) or (
            name == "groups" and function == "Schema" and kind == "text")
        with mutants.without_releases() as made:
            try:
                make(**{name: value()})
            except ValueError as error:
                message = str(error)
            except TypeError as error:  # a list of mechanisms is refused as everywhere
                message = str(error) if name == "alongside" else ""
            else:
                assert allowed, (kind, "is taken")
                continue
        assert any(word in message for word in WORDS.get(name, (name,))), (kind, message)
        # of text in the place of a public word, and of what a schema declares, the value is said
        assert kind == "text" or name == "columns" or CELL not in message
        assert "0.123456" not in message
        assert not made


PAIR = np.array([[0.2, 0.4], [0.1, 0.9]])


@pytest.mark.parametrize("bounds", [
    [(0, 1), (0, 1)], ((0, 1), (0, 1)), ([0, 0], [1, 1]), [[0, 1], (0, 1)], {"x0": (0, 1)},
    {"x0": (0, 1), "x1": (0, 1), "x2": (0, 1)}, {"x0": (1, 0), "x1": (0, 1)}, {"x0": 1, "x1": 2},
    {"x0": "01", "x1": (0, 1)}, (np.zeros(3), np.ones(3)), (np.zeros((2, 2)), 1), 1, "01"])
def test_bounds_that_may_be_pairs_or_miss_a_column_are_refused(bounds):
    """Two pairs of two columns look like all lower ends and all upper ones."""
    with pytest.raises(ValueError, match="bounds"):
        estimators.PrivateAUCClassifier(4.0, 0.1, bounds=bounds).fit(PAIR, [0, 1])


def test_bounds_by_column_are_those_of_each_column():
    table, how = TABLE[["a", "b"]], {"epsilon": 4.0, "delta": 1e-3, "random_state": 0}
    ends = {"b": (-3, 3), "a": (-1, 2)}
    with mutants.without_releases():
        one = estimators.PrivateAUCClassifier(bounds=ends, **how).fit(table, TABLE.y)
        two = estimators.PrivateAUCClassifier(
            bounds=(np.array([-1, -3]), np.array([2, 3])), **how).fit(table, TABLE.y)
    assert one.scorer_.schema == two.scorer_.schema
    assert one.scorer_.schema.columns["b"] == Number(-3, 3)


@pytest.mark.parametrize("two", [
    TABLE[["g", "y"]], TABLE[["g", "y"]].to_numpy(), list(zip(TABLE.g, TABLE.y, strict=True)),
    {"g": TABLE.g, "y": TABLE.y}])
@pytest.mark.parametrize("form", FITS[3:])
def test_two_sensitive_columns_are_refused_with_the_way_to_make_one(form, two):
    model = form(4.0, 1e-4, bounds=(-1.0, 1.0))
    with pytest.raises(ValueError, match=r"groups must be one column.*astype\(str\)"):
        model.fit(TABLE[["a", "b"]].to_numpy(), TABLE.y, groups=two)


def test_a_lazy_frame_of_polars_is_named():
    polars = pytest.importorskip("polars")
    with pytest.raises(ValueError, match=r"lazy frame.*collect"):
        jmm.tables.train(polars.LazyFrame({"a": [1.0], "y": [1]}), SCHEMA, epsilon=1.0, delta=0.1)
