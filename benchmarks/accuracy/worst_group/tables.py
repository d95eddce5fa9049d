"""Tables that are cut into groups: what is public of their columns, and which group a row is in."""

import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.data_sets import data
from jaxminimax.apps.tables import Category, Number, Schema
from jaxminimax.apps.tables.columns import Column

LABEL = "label"
_FLAG = Category(("1",))
# names and widths of the attributes of Adult's 123 columns of zeros and ones, in their order
_ADULT = {"age": 5, "work": 8, "weight": 5, "education": 16, "years": 5, "marital": 7,
          "occupation": 14, "relationship": 6, "race": 5, "sex": 2, "gain": 2, "loss": 2,
          "hours": 5, "country": 41}
# of every attribute, the column that is read and the names of its values; the last one also stands
# for what is none of them
_GROUPS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "adult": {"sex": ("sex", ("female", "male")),
              "race": ("race", ("white", "Asian", "American Indian", "other race", "black"))},
    "cattaneo": {"race": ("mrace", ("other race", "white"))},
    "ijcnn1": {"phase": ("phase", tuple(f"phase {i}" for i in range(10)))},
    "randhie": {"health": ("health", ("good", "fair", "poor", "excellent"))},
}
GROUPS = {"randhie": ("health",), "cattaneo": ("race",), "adult": ("sex", "sex_race", "race"),
          "ijcnn1": ("phase",)}


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A table and what is public of it.

    Attributes:
      train: columns by name; of all rows where there is no published test file.
      test: the published test rows, or None.
      schema: of the columns.
      unit: what one record is.
      public: the public knowledge that preprocessing uses.
    """

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray] | None
    schema: Schema
    unit: str
    public: tuple[str, ...]


def _adult(data_dir: Any) -> Table:
    result = data.load("adult", data_dir=data_dir)

    def frame(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        made, first = {LABEL: y}, 0
        for name, width in _ADULT.items():
            on = x[:, first: first + width] > 0.3  # shifted: to 0.88 or to -0.12
            made[name] = np.where(on.any(1), on.argmax(1), -1)
            first += width
        return made

    columns = {name: Category(tuple(map(str, range(width)))) for name, width in _ADULT.items()}
    return Table(frame(result.x_train, result.y_train), frame(result.x_test, result.y_test),
                 Schema(columns, LABEL, "1"), result.unit, result.public)


def _randhie(_: Any) -> Table:
    from statsmodels.datasets import randhie

    frame = randhie.load_pandas().data
    made = {name: frame[name].to_numpy() for name in frame.columns if name != "mdvis"}
    made[LABEL] = (frame["mdvis"] > 0).to_numpy(int)
    health = frame[["hlthg", "hlthf", "hlthp"]].to_numpy() > 0
    made["health"] = np.where(health.any(1), health.argmax(1), 3)
    columns: dict[str, Column] = {
        "lncoins": Number(0, 5), "idp": _FLAG, "lpi": Number(0, 8), "fmde": Number(0, 9),
        "physlm": Number(0, 1), "disea": Number(0, 60), "hlthg": _FLAG, "hlthf": _FLAG,
        "hlthp": _FLAG}
    return Table(made, None, Schema(columns, LABEL, "1"), "one person's year", (
        "Ranges of the columns are those that the study's description suggests.",))


def _cattaneo(_: Any) -> Table:
    import pandas as pd
    import statsmodels

    path = (pathlib.Path(statsmodels.__file__).parent
            / "treatment" / "tests" / "results" / "cataneo2.csv")
    if not path.is_file():
        raise ValueError("cattaneo comes with the tests of statsmodels 0.14 or later, which are "
                         f"not at {path}")
    frame = pd.read_csv(path)
    made = {name: frame[name].to_numpy() for name in frame.columns}
    made[LABEL] = frame["mbsmoke_"].to_numpy()
    columns: dict[str, Column] = {
               "mage": Number(10, 50), "medu": Number(0, 20), "fage": Number(0, 60),
               "fedu": Number(0, 20), "nprenatal": Number(0, 40), "monthslb": Number(0, 300),
               "order": Number(0, 12), "birthmonth": Number(1, 12), "prenatal": Number(0, 3),
               **dict.fromkeys(("mmarried_", "mhisp", "fhisp", "foreign", "alcohol", "deadkids",
                                "mrace", "frace", "fbaby_"), _FLAG)}
    return Table(made, None, Schema(columns, LABEL, "1"), "one birth", (
        "Ranges of the columns are what birth records can hold.",))


def _ijcnn1(data_dir: Any) -> Table:
    result = data.load("ijcnn1", data_dir=data_dir)

    def frame(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        on = x[:, :10] > 0.3
        return {LABEL: y, "phase": np.where(on.any(1), on.argmax(1), 9),
                **{f"x{k}": x[:, k] for k in range(x.shape[1])}}

    columns = {f"x{k}": Number(-1, 1) for k in range(result.x_train.shape[1])}
    return Table(frame(result.x_train, result.y_train), frame(result.x_test, result.y_test),
                 Schema(columns, LABEL, "1"), result.unit, result.public)


_LOADERS: dict[str, Callable[[Any], Table]] = {
    "adult": _adult, "cattaneo": _cattaneo, "ijcnn1": _ijcnn1, "randhie": _randhie}


def load(dataset: str, data_dir: str | os.PathLike[str] | None = None) -> Table:
    """A table by its name, a key of `GROUPS`.

    Raises:
      ValueError: for files that are missing or not as they should be.
    """
    return _LOADERS[dataset](data_dir)


def cut(dataset: str, groups: str, by_label: bool,
        frame: dict[str, np.ndarray]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Every row's group by several attributes, and by its label where asked; and the names."""
    number, names = np.zeros(len(frame[LABEL]), int), tuple([""])
    for part in groups.split("_"):
        column, own = _GROUPS[dataset][part]
        value = np.asarray(frame[column]).astype(int)
        value = np.where((value >= 0) & (value < len(own)), value, len(own) - 1)
        number = number * len(own) + value
        names = tuple(f"{a} {b}".strip() for a in names for b in own)
    if by_label:
        number = number * 2 + (np.asarray(frame[LABEL]) > 0.5)
        names = tuple(f"{a} {sign}" for a in names for sign in ("-", "+"))
    return number, names


def large_enough(number: np.ndarray, names: tuple[str, ...], least: int, small: str,
                 ) -> tuple[np.ndarray, tuple[str, ...], str]:
    """New numbers for old ones, -1 to drop, so that every group has `least` records.

    Args:
      number: groups of the records.
      names: of all groups.
      least: records.
      small: "merge" puts the others into one group, or drops them if that is still too small.

    Returns:
      The new number of every old one, the new names, and in words what became of the others.

    Raises:
      ValueError: if no group is left.
    """
    counts = np.bincount(number, minlength=len(names))
    kept = np.flatnonzero(counts >= least)
    few = np.flatnonzero(counts < least)
    new = np.full(len(names), -1)
    new[kept] = np.arange(len(kept))
    kept_names = tuple(names[i] for i in kept)
    listed = ", ".join(f"{names[i]} ({counts[i]})" for i in few if counts[i])
    total = int(counts[few].sum())
    said = "" if not total else f"Below {least} records, dropped: {listed}."
    if total >= least and small == "merge":
        new[few] = len(kept)
        kept_names += ("others",)
        said = f"Below {least} records, merged: {listed}."
    if not kept_names:
        raise ValueError(f"no group has {least} records: ask for fewer")
    return new, kept_names, said
